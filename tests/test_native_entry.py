"""The kernel's entry point: it declines each call that it cannot rotate, and writes nothing."""

import math

import numpy as np
import pytest
from compare import assert_same, words
from native_cases import F16, F32, F64, SEVERAL, RoPE, kernel
from numpy.lib.stride_tricks import as_strided

import rope_array as ra
from rope_array._array_api.source import Positions, Tables
from rope_array._backends import _native
from rope_array._errors import RoPEError
from rope_array._rotation import rotation_type
from rope_array._spec.plan import Derived

pytestmark = pytest.mark.usefixtures("kernel_settings")

X = np.zeros((3, 5, 8), F32)


PLAN = RoPE(8)._plan


class Sub(np.ndarray):
    pass


def prepared(plan):
    """Create the kernel's handle of a plan; return the plan."""
    _native.prepare(plan)
    return plan


def changes(*names, values):
    """Return, for each value, a dict that gives it to all of these arguments."""
    return [dict.fromkeys(names, value) for value in values]


FAST = [
    *changes("x", values=((), (X, (X,)), "x", ("x",), (None,), [X], X.view(Sub), X.astype(">f4"), 3.0)),
    *changes("x", values=(X[..., :6], np.zeros((3, 5, 8), int), np.float32(3), np.array(3.0), X[0, 0, 0])),
    *({"x": (X, value)} for value in (X.astype(F64), X[:, :4], X[..., :4], "x", None)),
    *changes(
        "pos",
        values=("a", math.nan, -(2.0**31), True, None, 2**63, [1, 2], (), range(4), range(2**70, 2**70 + 5)),
    ),
    *changes(
        "pos",
        values=(np.arange(4), np.arange(5, dtype=F16), np.arange(5).view(Sub), np.arange(5, dtype="i2")),
    ),
    *changes("pos", values=(np.zeros((1, 3, 5), int), np.zeros((1, 1, 1, 5), int), np.zeros(5, bool))),
    *changes("seq_axis", values=("a", None, 1.0, True, 2**70, -1, 2, -4, 9)),
    *changes("out", values=("o", (X,), X[:2], X.astype(F16), (None,), [X], X.view(Sub), X[..., ::-1])),
    *changes("out", values=(np.broadcast_to(F32.type(0), X.shape), np.zeros((3, 5, 16))[..., ::2])),
    *({"x": (X,), "out": value} for value in (X, (X, X), ("o",), ())),
]


def test_declined_by_positions():
    def rotated(x=X, pos=range(5), seq_axis=-2, out=None):
        return kernel.rotate(x, Positions(pos, prepared(PLAN)), (seq_axis,), out)

    assert (rotated() == X).all()
    assert rotated(out=(out := np.ones_like(X))) is out
    assert not out.any()
    for arguments in FAST:
        assert rotated(**arguments) is NotImplemented, words(arguments)


COS = np.ones((5, 4), F32)
LAYOUT = PLAN.layout
HOSTILE = [
    *(("head_dim", value) for value in (2**62, 2**70, 8.0, 6, -8)),
    *(("start", value) for value in (-2, 2, 9, 2**62, -(2**63), 0.0, False)),
    *(("stop", value) for value in (9, 7, 6, -8, 2**62, 2**63 - 1, None)),
    *(("amplitude", value) for value in (0.0, -1.0, math.inf, math.nan, 2, "1.0")),
    *(("blocks", value) for value in (0, 3, 8, -1, -(2**63), True, 2**64)),
    *((name, value) for name in ("pairing", "out_pairing") for value in ("foo", None, 1, b"half", "halfé")),
]


OTHER_SHAPES = [np.ones(shape, F32) for shape in ((), (5, 8), (2, 5, 4), (1, 1, 1, 5, 4))]
BY_TABLES = [
    *changes("cos", values=((), None, "c", (COS,), COS[:3], COS[:, :2], COS.astype(F64), COS.view(Sub))),
    *changes("sin", values=((), None, "s", (COS,), COS[:1], COS[0], np.asfortranarray(COS), COS[:, ::-1])),
    *changes("sin", values=(COS[:, :1], np.tile(COS, (2, 1)))),
    *changes("cos", "sin", values=(COS[:4], COS[:, :2], COS[:, :1], COS[0, 0], COS.astype(">f4"))),
    *changes("cos", "sin", values=OTHER_SHAPES),
    *changes("x", values=((), (X, (X,)), None, X.astype(F64), (X, X.astype(F64)), X[0, 0, 0], X[:, :4])),
    *changes("layout", values=("layout", PLAN, (), LAYOUT[:6])),
    *({"layout": LAYOUT._replace(**{name: value})} for name, value in HOSTILE),
    *changes("seq_axis", values=(None, 2**70, -1, 2)),
    *changes("out", values=((X,), X[:2], X[..., ::-1], as_strided(np.zeros(99, F32), X.shape, (80, 16, 4)))),
]


def test_declined_by_tables():
    def rotated(x=X, cos=COS, sin=COS, layout=LAYOUT, seq_axis=-2, out=None):
        return kernel.rotate(x, Tables(cos, sin, layout), (seq_axis,), out)

    assert_same(rotated(), X)
    assert rotated(out=(out := np.ones_like(X))) is out
    assert not out.any()
    for arguments in BY_TABLES:
        assert rotated(**arguments) is NotImplemented, words(arguments)


@pytest.mark.parametrize("name", ["native", "array-api", None])
def test_hostile_layouts_are_refused(name):
    for field, value in HOSTILE:
        layout = LAYOUT._replace(**{field: value})
        for cos in (COS, np.ones((5, 2**10), F32)):
            for x in (X, X.astype(F16)[::2], np.zeros((3, 5, 6), F32)):
                with pytest.raises(RoPEError):
                    rotation_type(*layout)(cos, cos).apply(x, backend=name)


def test_invalid_sources():
    class Other:
        derived = Derived()

    Other.derived.kernel = "plan"
    with pytest.raises(AttributeError):
        kernel.rotate(X, Positions(0, "plan"), (-2,), None)
    positions = Positions(0, Other()), Positions(0, RoPE(8, base=77)._plan)
    for source in (None, (), (0,), X, [0, PLAN, None], *positions):
        assert kernel.rotate(X, source, (-2,), None) is NotImplemented
    assert kernel.rotate(X, Positions(0, prepared(PLAN), X), (-2,), None) is NotImplemented
    for options in (None, -2, (), (None,), (-2, None)):  # the kernel knows one option
        assert kernel.rotate(X, Positions(0, prepared(PLAN)), options, None) is NotImplemented
    for pos in (np.zeros((5, 2), int), np.zeros(5, int), np.zeros((), int), 3, range(5)):  # three needed
        source = Positions(pos, prepared(SEVERAL["chunked axes"]._plan))
        assert kernel.rotate(np.zeros((5, 72), F32), source, (-2,), None) is NotImplemented
    good = _native.plan_words(PLAN.layout, PLAN)
    kernel.make_plan(good)
    no_amplitude, no_width = [*good[:8], 0, *good[9:]], [0, *good[1:]]
    for wrong in (good[:-1], good[:9], [], [good[0], -2, *good[2:]], no_amplitude, no_width):
        with pytest.raises(ValueError, match="not a plan"):
            kernel.make_plan(wrong)


def test_a_range_beyond_64_bits():
    x = np.ones((1, 8), F32)
    assert_same(RoPE(8).apply(x, range(7, 2**63 + 5, 2**63)), RoPE(8).apply(x, [7]))
    for pos in (range(-(2**63), 2**63 - 1), range(2**63), range(-(2**62), 2**62)):
        with pytest.raises(ra.PositionError, match="longer than an axis"):
            RoPE(8).apply(X, pos)


@pytest.mark.library("torch")
def test_tensors_that_are_declined(tensors):
    import torch

    x, out, plan = torch.ones(5, 8), torch.zeros(5, 8), prepared(PLAN)

    def done(x=x, out=out, pos=3, axis=-2):
        return kernel.rotate(x, Positions(pos, plan), (axis,), out) is not NotImplemented

    assert done()
    for pos in (torch.arange(5), torch.arange(5, dtype=torch.int32), range(5)):
        assert done(pos=pos)
    out.zero_()
    freed = torch.ones(5, 8)
    freed.untyped_storage().resize_(0)
    neither = freed, torch.complex(x, x).conj().imag, torch._efficientzerotensor(5, 8), x.to("meta")
    wrong = {
        "pos": [
            *(
                torch.arange(4),
                torch.zeros((5, 1, 1), dtype=torch.int64),
                torch.arange(5.0).half(),
                range(4),
                "3",
            ),
            *(2**63, -(2**63) - 1, torch.arange(5, dtype=torch.uint8), np.arange(5), np.int64(3), True),
        ],
        "x": [
            *(torch.ones(5, 8, dtype=dtype) for dtype in (torch.int32, torch.complex64, torch.bool)),
            *(torch.ones(5, 6), torch.ones(()), torch.ones(5, 8).double(), np.ones((5, 8), F32), *neither),
            *(None, ()),
        ],
        "out": [(out,), out.numpy(), out.double(), out.T, out[:4], torch.zeros(8).expand(5, 8), *neither],
        "axis": [-1, 1, 2, -4, 2**62, -(2**63), None, "a"],
    }
    for name, values in wrong.items():
        for value in values:
            assert not done(**{name: value}), (name, words(value))
    good = torch.ones(5, 4)
    strided = torch.ones(4, 5).T
    alone = good[:1], good[0], good[:, :1], good.tile(2, 1), good.double(), strided, ()
    shapes = good[:, :2], good[:, :1], good.tile(1, 2)
    for cos, sin in (*((good, sin) for sin in alone), *zip(shapes, shapes, strict=True)):
        assert kernel.rotate(x, Tables(cos, sin, LAYOUT), (-2,), out) is NotImplemented, words((cos, sin))
    assert not out.any()
    assert done()


def test_seq_axis_of_numpy_with_out():
    """The kernel takes Python's integers alone; users' axes may be numbers of NumPy."""
    x = np.random.default_rng(0).standard_normal((3, 5, 8))
    out = np.empty_like(x)
    RoPE(8).apply(x, range(3), seq_axis=np.int64(-3), out=out)
    assert np.array_equal(out, RoPE(8).apply(x, range(3), seq_axis=-3))
