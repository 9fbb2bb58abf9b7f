"""The entry points of the kernel: each declines or refuses what it cannot rotate."""

import numpy as np
import pytest
from compare import assert_same, words
from native_cases import F16, F32, F64, SEVERAL, RoPE, kernel

import rope_array as ra
from rope_array._backends import _native
from rope_array._errors import RoPEError

pytestmark = pytest.mark.usefixtures("kernel_settings")

X = np.zeros((3, 5, 8), F32)


PLAN = RoPE(8)._plan


class Sub(np.ndarray):
    pass


def address(array):
    return array.__array_interface__["data"][0]


def changes(*names, values):
    """Return arguments that replace the named ones, for each value."""
    return [dict.fromkeys(names, value) for value in values]


FAST = [
    *changes("x", values=((), (X, (X,)), "x", ("x",), (None,), [X], X.view(Sub), X.astype(">f4"), 3.0)),
    *changes("x", values=(X[..., :6], np.zeros((3, 5, 8), int), np.float32(3), np.array(3.0), X[0, 0, 0])),
    *({"x": (X, value)} for value in (X.astype(F64), X[:, :4], X[..., :4], "x", None)),
    *changes("pos", values=("a", 2.5, True, 2**63, [1, 2], (), range(4), range(2**70, 2**70 + 5))),
    *changes("pos", values=(np.arange(4), np.arange(5.0), np.arange(5).view(Sub), np.arange(5, dtype="i2"))),
    *changes("pos", values=(np.zeros((1, 3, 5), int), np.zeros((1, 1, 1, 5), int), np.zeros(5, bool))),
    *changes("seq_axis", values=("a", 1.0, True, 2**70, -1, 2, -4, 9)),
    *changes("out", values=("o", (X,), X[:2], X.astype(F16), (None,), [X], X.view(Sub), X[..., ::-1])),
    *changes("out", values=(np.broadcast_to(F32.type(0), X.shape), np.zeros((3, 5, 16))[..., ::2])),
    *({"x": (X,), "out": value} for value in (X, (X, X), ("o",), ())),
]


@pytest.mark.parametrize("given", FAST, ids=words)
@pytest.mark.library("numpy")
def test_the_fast_entry_declines(given):
    arguments = {"x": X, "pos": range(5), "plan": PLAN, "seq_axis": -2, "out": None} | given
    _native.spec_of(PLAN)
    assert kernel.quick(*arguments.values()) is NotImplemented


COS = np.ones((5, 4), F32)
TABLES = {"x": X, "cos": COS, "sin": COS, "spec": None, "seq_axis": -2, "out": None}


BY_TABLES = [
    *changes("cos", values=((), None, "c", (COS,), COS[:3], COS[:, :2], COS.astype(F64), COS.view(Sub))),
    *changes("sin", values=((), None, "s", (COS,), COS[:1], COS[0], np.asfortranarray(COS), COS[:, ::-1])),
    *changes("cos", "sin", values=(COS[:4], COS[:, :2], COS[:, :1], COS[0, 0], np.array(1, F32))),
    *changes(
        "cos",
        "sin",
        values=(COS.astype(">f4"), *(np.ones(n, F32) for n in ((5, 8), (2, 5, 4), (1, 1, 1, 5, 4)))),
    ),
    *changes("x", values=((), (X, (X,)), None, X.astype(F64), (X, X.astype(F64)), X[0, 0, 0], X[:, :4])),
    *changes("spec", values=("spec", PLAN, ())),
    *changes("seq_axis", values=(None, 2**70, -1, 2)),
    *changes("out", values=((X,), X[:2], X[..., ::-1], np.zeros(200, F32)[::-1][:120].reshape(X.shape))),
]


@pytest.mark.parametrize("given", BY_TABLES, ids=words)
@pytest.mark.library("numpy")
def test_the_fast_entry_for_tables_declines(given):
    arguments = TABLES | {"spec": _native.spec_of_tables(PLAN.layout)}
    assert_same(kernel.quick_tables(*arguments.values()), X)
    assert kernel.quick_tables(*(arguments | given).values()) is NotImplemented


@pytest.mark.library("numpy")
def test_an_object_that_is_no_plan_is_declined():
    class Other:
        native = "spec"

    with pytest.raises(AttributeError):
        kernel.quick(X, 0, "plan", -2, None)
    assert kernel.quick(X, 0, Other(), -2, None) is NotImplemented
    by_tables = type("Plan", (), {"native": _native.spec_of_tables(PLAN.layout)})
    assert kernel.quick(X, 0, by_tables(), -2, None) is NotImplemented
    for pos in (np.zeros((5, 2), int), np.zeros(5, int), np.zeros((), int), 3, range(5)):  # it takes three
        plan = SEVERAL["runs"]._plan
        assert _native.spec_of(plan)
        assert kernel.quick(np.zeros((5, 72), F32), pos, plan, -2, None) is NotImplemented


@pytest.mark.parametrize(
    "given", [{"pos": None}, {"seq_axis": None}, {"seq_axis": "a"}, {"x": None}, {"x": ()}], ids=words
)
@pytest.mark.library("numpy", "torch")
def test_errors_are_those_of_the_array_api_backend(given):
    torch = pytest.importorskip("torch")
    for x in (X, torch.zeros(3, 5, 8)):
        arguments = {"x": x, "pos": range(5)} | given
        with pytest.raises(RoPEError) as of_core:
            RoPE(8).apply(**arguments, backend="array-api")
        with pytest.raises(type(of_core.value)):
            RoPE(8).apply(**arguments)


@pytest.mark.library("numpy")
def test_a_range_beyond_64_bits():
    with pytest.raises((RoPEError, OverflowError)):
        RoPE(8).apply(X, range(-(2**63), 2**63 - 1))


@pytest.mark.library("numpy")
def test_results_that_overlap_are_refused():
    buffer = np.zeros(2 * X.size, F32)
    x = buffer[: X.size].reshape(X.shape)
    for out in (buffer[1 : X.size + 1].reshape(X.shape), x[::-1], buffer[8 : X.size + 8].reshape(X.shape)):
        with pytest.raises(ra.ArrayTypeError, match="shares memory"):
            RoPE(8).apply(x, range(5), out=out)
    for turned in (x[::-1], x[:, ::-1], x[..., ::-1], x[::-1, ::-1, ::-1]):
        for out in (x, buffer[8 : X.size + 8].reshape(X.shape)):
            with pytest.raises(ra.ArrayTypeError, match="shares memory"):
                RoPE(8).apply(turned, range(5), out=out)
    pos = np.arange(15.0).view(np.int64).reshape(3, 5)
    for given in (pos, pos[::-1], pos[:, ::-1]):
        with pytest.raises(ra.ArrayTypeError, match="shares memory"):
            RoPE(2).apply(np.zeros((3, 5, 2), F32), given, out=pos.view(F32).reshape(3, 5, 2))
    rotation = RoPE(8).rotation(range(5), like=x)
    for change in ({"cos": buffer[:20].reshape(5, 4)}, {"sin": buffer[100:120].reshape(5, 4)}):
        with pytest.raises(ra.ArrayTypeError, match="shares memory"):
            rotation._replace(**change).apply(np.zeros_like(x), out=x)
    one, other = np.zeros((5, 8), F32), np.zeros((5, 8), F32)
    for outs in ((other, other), (one, one), (other, one)):
        with pytest.raises(ra.ArrayTypeError, match="shares memory"):
            RoPE(8).apply((one, other), range(5), out=outs)


def described(x=X, y=None, **changes):
    y = np.empty_like(x) if y is None else y
    fields = [0, x.shape, address(x), x.strides, address(y), y.strides, 1]
    for i, value in changes.items():
        fields[int(i[1:])] = value
    return tuple(fields)


SPACED = (_native.SPACED, 0, 1, (5,))
MANY = (1,) * 70
REFUSED = {
    "no arrays": (None, SPACED),
    "a text": ("abc", SPACED),
    "None for an array": ((None,), SPACED),
    "an empty description": (((),), SPACED),
    "a short description": ((described()[:3],), SPACED),
    "no sizes": ((described(_1=()),), SPACED),
    "sizes in a list": ((described(_1=[3, 5, 8]),), SPACED),
    "too few strides": ((described(_3=(8, 4)),), SPACED),
    "too few strides of the result": ((described(_5=(8, 4)),), SPACED),
    "an address of text": ((described(_2="address"),), SPACED),
    "a dtype of text": ((described(_0="type"),), SPACED),
    "a size beyond 64 bits": ((described(_1=(3, 2**80, 8)),), SPACED),
    "an empty source": ((described(),), ()),
    "a short source": ((described(),), SPACED[:2]),
    "positions of 70 axes": ((described(),), (_native.SPACED, 0, 1, MANY)),
    "a start beyond 64 bits": ((described(),), (_native.SPACED, 2**64, 1, (5,))),
    "positions without strides": ((described(),), (_native.INT64, 0, (), (5,), 1)),
    "tables without strides": ((described(),), (_native.TABLES, 0, (), (), 1, 0, ())),
}
ERRORS = (TypeError, ValueError, LookupError, OverflowError, RuntimeError, SystemError)


@pytest.mark.parametrize(("arrays", "given"), REFUSED.values(), ids=REFUSED)
@pytest.mark.library("numpy")
def test_the_general_entry_refuses(arrays, given):
    try:
        done = kernel.run(_native.spec_of(PLAN), arrays, given, -2, None, False)
    except ERRORS:
        return
    assert not done


@pytest.mark.library("numpy")
def test_the_general_entry_checks_its_arguments():
    with pytest.raises(ValueError, match="takes tables"):
        kernel.run(_native.spec_of_tables(PLAN.layout), (described(),), SPACED, -2, None, False)
    with pytest.raises(TypeError):
        kernel.run("spec", (described(),), SPACED, -2, None, False)
    with pytest.raises(TypeError):
        kernel.run(_native.spec_of(PLAN), (described(),), SPACED, "axis", None, False)
    assert kernel.run(_native.spec_of(PLAN), (), SPACED, -2, None, False)
    for given in (
        (_native.SPACED, 0, 1, (4,)),
        (_native.SPACED, 0, 1, (5, 5)),
        (_native.SPACED, 0, 1, (1, 1, 1, 1)),
    ):
        assert not kernel.run(_native.spec_of(PLAN), (described(),), given, -2, None, False)
    assert not kernel.run(_native.spec_of(PLAN), (described(_1=MANY),), SPACED, -2, None, False)
    for axis in (-1, 2, -4, 2**62, -(2**63)):
        assert not kernel.run(_native.spec_of(PLAN), (described(),), SPACED, axis, None, False)


@pytest.mark.library("torch")
def test_the_tensor_entry_declines():
    import torch

    from rope_array._backends.torch import native

    if not native._SEEN:
        pytest.skip("this version of PyTorch does not show its tensors")
    spec, x, y = _native.spec_of(PLAN), torch.ones(5, 8), torch.zeros(5, 8)

    def done(x=x, y=y, pos=3, axis=-2, spec=spec):
        return kernel.run_tensor(spec, x, y, pos, axis, None, False)

    assert done()
    assert done(pos=torch.arange(5))
    y.zero_()
    assert not done(pos=torch.arange(4))
    assert not done(pos=torch.zeros((5, 1, 1), dtype=torch.int64))
    assert not done(pos=torch.arange(5, dtype=torch.int32))
    assert not done(pos=torch.arange(5.0))
    assert not done(pos=2**63)
    assert not done(pos=-(2**63) - 1)
    assert not done(x=torch.ones(5, 6))
    for other in (torch.int32, torch.complex64, torch.bool):
        assert not done(x=torch.ones(5, 8, dtype=other))
    assert not done(x=torch.ones(()), y=torch.ones(()))
    for axis in (-1, 1, 2, -4, 2**62, -(2**63)):
        assert not done(axis=axis)
    assert not y.any()
    for given in ({"pos": "3"}, {"spec": "spec"}):
        with pytest.raises(TypeError):
            done(**given)
    assert not kernel.use_tensors("no type")
    assert not kernel.use_tensors(list)
    assert done()
