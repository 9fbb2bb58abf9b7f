"""Invalid calls raise the documented exception before any work; the message names fault and remedy."""

import importlib
import inspect
import itertools
import operator
import re
import types
import warnings

import numpy as np
import pytest
from conftest import LIBS
from refusals import refusals, refused

import rope_array as ra
from rope_array import ArrayTypeError, PositionError, RoPE, ShapeError
from rope_array._spec import spec as _spec
from rope_array.testing import apply_definition

NAN, INF, BIG = float("nan"), float("inf"), 2**63


def test_exceptions_have_public_names_and_docstrings():
    """Their classes are in docs/public_names.txt."""
    for error in (getattr(ra, name) for name in ra.__all__ if name.endswith("Error")):
        assert error.__module__ == "rope_array"  # shown in tracebacks
        assert inspect.getdoc(error).endswith(".")


# ---- the spec: no arrays ----


class BrokenRepr:
    def __repr__(self):
        raise RuntimeError


@refusals("fields")
def test_spec(call, error, words):
    """Python prints no integer of 5000 digits, nor a container of it."""
    fields = eval(f"dict({call})")
    refused(error, words, lambda: RoPE(**fields))
    if type(fields["head_dim"]) is int and fields["head_dim"]:  # by ra.apply too: x gives the width
        width = fields.pop("head_dim")
        words = words.replace("; it has head_dim, base", "")
        refused(error, words, lambda: ra.apply(np.ones((2, width)), 0, **fields))


def test_every_hint_names_a_field():
    names = {*RoPE.__dataclass_fields__, *inspect.signature(ra.apply).parameters}
    for hint in _spec._OTHER_NAMES.values():
        assert re.split(r"[ ,=]", hint)[0] in names


def run_suggested_lines(x, words="4 features | head_dim"):
    """Return the y of the lines that are suggested for an x whose last axis is not a head."""
    text = refused(ShapeError, words, lambda: RoPE(4).apply(x, range(5)))
    lines = re.search(r"(?:heads|back): (.*?)(?:, where.*)?\.$", text)[1]
    names = {"x": x, "pos": range(5), "rope": RoPE(4), "xp": np}
    exec(lines if " = " in lines else f"y = {lines}", names)
    return names["y"]


def test_the_suggested_lines_merge_heads_that_are_rotated_together():
    """The rope of LTX; its heads are split here."""
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 2))
    merged = RoPE(4).apply(x.transpose(0, 2, 1, 3).reshape(1, 5, 4), range(5))
    expected = merged.reshape(1, 5, 2, 2).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(run_suggested_lines(x, "2 heads | head_dim"), expected)


def test_the_suggested_lines_rotate_heads_in_one_axis_and_features_that_are_not_last():
    x = np.random.default_rng(0).standard_normal((5, 3, 4))
    expected = apply_definition(x, [*range(5)], seq_axis=0)
    for form in (lambda array: array.reshape(5, 12), np.transpose):
        np.testing.assert_allclose(run_suggested_lines(form(x)), form(expected), rtol=0, atol=1e-15)


# ---- the calls, on every library ----


def ones(lib, *shape, dtype="float32"):
    return lib.asarray(np.ones(shape), dtype)


def of(lib, dtype, *shape):
    """Make an array of a dtype that is not real floating point."""
    return lib.xp.ones(shape, dtype=lib.dtype(dtype))


def arange(lib, n):
    return lib.asarray(np.arange(n, dtype=np.int32))


class Spy(np.ndarray):
    """A NumPy array whose ufuncs raise."""

    def __array_ufunc__(self, *args, **kwargs):
        raise AssertionError("arithmetic")


SPIED = operator.methodcaller("view", Spy)


def evaluate(text, lib, view=lambda array: array):
    """Make the call of a text, in which `x` is ones of shape (2, 4), with arrays of the library."""
    like = ones(lib, 2, 4)
    names = {"np": np, "lib": lib, "types": types, "NAN": NAN, "INF": INF, "BIG": BIG, "RoPE": RoPE}
    names |= {"apply": ra.apply, "rope": RoPE(4), "other": "torch" if lib.name == "jax" else "jax"}
    names |= {"x": view(like), "arange": lambda n: view(arange(lib, n))}
    names |= {"ones": lambda *shape: view(ones(lib, *shape)), "of": lambda *args: view(of(lib, *args))}
    names["rotation"] = lambda pos=0, **options: RoPE(4).rotation(pos, **{"like": like, **options})
    return eval(text, names)


def forbid_computing(*args, **kwargs):
    raise AssertionError("something was computed")


@pytest.fixture
def no_work(lib):
    """Fail if dask computes a graph."""
    if lib.name != "dask":
        yield
        return
    with importlib.import_module("dask").config.set(scheduler=forbid_computing):
        yield


@pytest.mark.usefixtures("no_work")
@refusals("calls")
def test_call(lib, call, error, words):
    refused(error, words, lambda: evaluate(call, lib))
    if lib.name == "numpy":
        refused(error, words, lambda: evaluate(call, lib, SPIED))


def test_the_spy_notices_the_arithmetic_of_a_valid_call():
    with pytest.raises(AssertionError, match="arithmetic"):
        evaluate("apply(x, arange(2))", LIBS["numpy"], SPIED)


def each_place(make, lib, backend=None, places=("x", "second", "pos", "like", "applied", "inv_freq")):
    """Yield calls that have an array made by `make`, of a sound array, in one argument."""
    x, pos, rope = ones(lib, 2, 4), arange(lib, 2), RoPE(4)
    calls = {
        "x": lambda: ra.apply(make(x), 0, backend=backend),
        "second": lambda: ra.apply((x, make(x)), 0, backend=backend),
        "pos": lambda: ra.apply(x, make(pos), backend=backend),
        "like": lambda: rope.rotation(0, like=make(x), backend=backend),
        "applied": lambda: rope.rotation(0, like=x).apply(make(x), backend=backend),
        "inv_freq": lambda: rope.rotation(0, like=x, inv_freq=make(ones(lib, 2)), backend=backend),
    }
    return [calls[place] for place in places]


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.without("strict")
def test_float8(lib, dtype):
    """A 16-bit float is the narrowest that is rotated."""
    if lib.name in ("numpy", "dask"):
        value = np.ones((2, 4)).astype(getattr(pytest.importorskip("ml_dtypes"), dtype))
        x = value if lib.name == "numpy" else importlib.import_module("dask.array").from_array(value)
    else:
        x = lib.asarray(np.ones((2, 4)), dtype)
    says = f"{dtype}[2, 4] | float16 | bfloat16 | float64 | multiplied by its scale | !ast x first"
    for call in each_place(lambda _: x, lib, places=("x", "second", "like", "applied")):
        refused(ArrayTypeError, says, call)


@pytest.mark.usefixtures("no_work")
def test_float64_by_tables_of_float32(lib):
    if "float64" not in lib.dtypes:
        return  # JAX has it with x64 alone
    rotation = RoPE(4).rotation(0, like=ones(lib, 2, 4))
    for x in (ones(lib, 2, 4, dtype="float64"), (ones(lib, 2, 4), ones(lib, 2, 4, dtype="float64"))):
        refused(ArrayTypeError, "float64 | float32 | like=x", lambda x=x: rotation.apply(x))


# ---- positions: dtypes ----

REFUSED = ["float16", "bfloat16", "bool", "uint64", "complex64"]
LACKING = {("array_api_strict", "float16"), ("array_api_strict", "bfloat16"), ("jax", "uint64")}


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("dtype", REFUSED)
def test_position_arrays_of_a_refused_dtype(lib, dtype):
    """A NumPy scalar is a number, not an array of another library; asarray(pos) would be refused again."""
    x = ones(lib, 2, 2, 4)
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else None
    value = (bfloat16 or np.dtype(dtype).type)(1)
    for pos in (value, [value, value], [(value, value)], [0.5, value]):
        says = [dtype, "!two libraries", "!asarray(pos)"]
        refused(ArrayTypeError, says, lambda pos=pos: ra.apply(x, pos))
    if lib.name in ("dask", "jax"):  # they accept NumPy positions of other dtypes
        refused(ArrayTypeError, [dtype, "float32"], lambda: ra.apply(x, np.ones(2, bfloat16 or dtype)))
    if (lib.name, dtype) in LACKING:
        return  # the library has no such dtype
    for shape in ((), (2,), (2, 2)):
        by_numpy = bfloat16 and lib.name in ("numpy", "dask")
        pos = lib.asarray(np.ones(shape), dtype) if by_numpy else of(lib, dtype, *shape)
        says = [dtype, "integer", "float32", "float64"]
        refused(ArrayTypeError, says, lambda pos=pos: ra.apply(x, pos))
        refused(ArrayTypeError, says, lambda pos=pos: RoPE(4).rotation(pos, like=x))


def test_numpy_positions_that_are_no_numbers():
    for dtype in ("object", "S1", "longdouble", "datetime64[s]", "complex128"):
        pos = np.zeros(2, "int64").astype(dtype)
        says = [pos.dtype.name, "!16-bit"]  # the reason for float16 and bfloat16, not for these
        refused(ArrayTypeError, says, lambda pos=pos: ra.apply(np.ones((2, 4)), pos))


# ---- positions: values that are read on the host ----


@pytest.mark.library("jax")
def test_positions_beyond_32_bits_of_jax_need_x64(lib):
    says = "position | out of range | 2**31 | x64"
    refused(PositionError, says, lambda: ra.apply(ones(lib, 2, 4), np.array([0, 2**31])))


def test_the_ends_of_the_range_are_served(lib):
    ends = [2**31 - 1, -(2**31), range(2**31 - 2, 2**31), 2.0**31 - 256, -(2.0**31) + 256, [], range(0)]
    if lib.name != "jax":  # it has no 64-bit integers
        ends += [2**63 - 1, -(2**63), [-(2**63), 2**63 - 1], range(2**63 - 2, 2**63), np.int64(2**63 - 1)]
    for pos in ends:
        x = ones(lib, 2, 4) if np.ndim(pos) == 0 or len(pos) else ones(lib, 0, 4)
        lib.to_numpy(ra.apply(x, pos))


class NaN(float):
    def __float__(self):
        return float("nan")


class Huge(int):
    def __int__(self):
        return 10**30

    __index__ = __int__


class Long(list):
    def __len__(self):
        return 5


@pytest.mark.without("strict", "dask", "jax")  # the kernel reads positions by itself
def test_subclasses_of_numbers_and_lists_count_by_their_values(lib):
    """Methods of a subclass may contradict its values: another length, or another number."""
    x, rope = ones(lib, 1, 3, 4), RoPE(4, max_position=7)
    for pos, plain in (
        (NaN(1.5), 1.5),
        (Huge(7), 7),
        (Long([1, 2, 3]), [1, 2, 3]),
        (Long([1, NaN(2.5), 3]), [1, 2.5, 3]),
        ((1, Huge(2), 3), [1, 2, 3]),
        ([Long([1, 2, 3])], [[1, 2, 3]]),
    ):
        np.testing.assert_array_equal(lib.to_numpy(rope.apply(x, pos)), lib.to_numpy(rope.apply(x, plain)))
        if isinstance(pos, Long):
            refused(ShapeError, "(3,) | line up", lambda pos=pos: rope.apply(ones(lib, 5, 4), pos))


# ---- lining up: the shapes of a call are checked by code which all libraries share ----


def zeros(*shape):
    return np.zeros(shape, np.int32)


ONE, AXIAL = RoPE(4), RoPE(4, axes=ra.Axes.axial(2, 2))


@pytest.mark.parametrize(
    ("rope", "shape", "pos_shape", "seq_axis", "fits"),
    [
        (ONE, (2, 3, 4), (2,), -2, [-3]),
        (ONE, (2, 3, 5, 4), (2, 5), -3, [-2]),
        (ONE, (3, 3, 5, 4), (3,), -2, [-4, -3]),
        (ONE, (2, 5, 3, 4), (3, 2), -2, []),
        (ONE, (2, 3, 4), (2, 3, 1), -2, []),
        (ONE, (2, 3, 5, 4), (5, 1), -2, []),
        (ONE, (2, 5, 3, 4), (5, 1), -2, [-3]),
        (ONE, (2, 3, 5, 4), (1, 2, 1), -2, [-4]),
        (ONE, (3, 4), (1, 3), -2, []),
        (AXIAL, (2, 3, 7, 4), (3, 5, 2), -2, []),
        (AXIAL, (2, 3, 5, 4), (5, 1, 2), -2, []),
    ],
    ids=lambda value: "" if isinstance(value, RoPE) else str(value),
)
def test_lining_up(rope, shape, pos_shape, seq_axis, fits):
    """The message offers shapes, with an axis of coordinates, or other axes for these shapes; each works."""
    x, pos = np.ones(shape), zeros(*pos_shape)
    calls = [lambda: rope.apply(x, pos, seq_axis=seq_axis)]
    if rope is ONE:  # tables have no axis of coordinates
        calls.append(lambda: rope.rotation(pos, like=x).apply(x, seq_axis=seq_axis))
    for call in calls:
        text = refused(ShapeError, [str(pos_shape), str(shape), f"seq_axis={seq_axis}"], call)
        remedy = text.partition("equal or 1. ")[2] or text.partition("axis 0 (")[2].partition(". ")[2]
        assert [int(axis) for axis in re.findall(r"seq_axis=(-?\d+)", remedy)] == fits
        offered = [tuple(map(int, re.findall(r"\d+", s))) for s in re.findall(r"\(([\d, ]+)\)", remedy)]
        assert offered or fits
        for form, axis in itertools.product(offered or [pos_shape], fits or [seq_axis]):
            rope.apply(x, zeros(*form), seq_axis=axis)


@pytest.mark.parametrize(
    ("shape", "patches", "axes", "tokens"),
    [
        ((2, 3, 17, 4), (4, 4), [], "(1, 2)"),
        ((2, 10, 16, 4), (3, 3), [-3], "(1, 2)"),
        ((2, 10, 10, 4), (3, 3), [-3], "(1, 2)"),
        ((2, 16, 10, 4), (3, 3), [], "(1, 2)"),
        ((2, 3, 20, 4), (4, 4), [], "(4, 2)"),
        ((2, 3, 32, 4), (4, 4), [], None),
        ((2, 3, 53, 4), (6, 6), [], None),
    ],
    ids=str,
)
def test_class_tokens_are_a_condition(shape, patches, axes, tokens):
    """Coordinates of 0 leave class tokens as they are; many more tokens than patches are not class tokens.

    Other axes as near to the number of patches come first.
    """
    x, pos = np.random.default_rng(0).standard_normal(shape), ra.positions.grid(*patches)
    text = refused(ShapeError, [str(pos.shape)], lambda: AXIAL.apply(x, pos))
    remedy = text.partition("equal or 1. ")[2]
    assert [int(axis) for axis in re.findall(r"seq_axis=(-?\d+), if axis", remedy)] == axes
    offer = re.search(r"Only if .* class token.* zeros of shape (\(.*?\)) joined with pos", remedy)
    assert (offer and offer[1]) == tokens
    for axis in (axes or [-2]) if tokens else []:
        joined = np.concatenate([zeros(*eval(tokens)), pos])
        y, rows = (np.moveaxis(a, axis, -2) for a in (AXIAL.apply(x, joined, seq_axis=axis), x))
        count = len(joined) - len(pos)
        np.testing.assert_array_equal(y[..., :count, :], rows[..., :count, :])
        np.testing.assert_array_equal(y[..., count:, :], AXIAL.apply(rows[..., count:, :], pos))


@pytest.mark.parametrize(
    ("shape", "seq_axis", "coordinates", "form", "axis"),
    [
        ((2, 4, 1, 4), -2, (), "(2, 1)", -4),
        ((2, 1, 4, 4), -3, (), "(2, 1)", -4),
        ((1, 2, 4, 4), 0, (), "(2, 1)", -3),
        ((2, 4, 1, 4), -2, (2,), "(2, 1, 2)", -4),
    ],
    ids=str,
)
def test_one_new_token_in_each_sequence(shape, seq_axis, coordinates, form, axis):
    rope = AXIAL if coordinates else ONE
    x, pos = np.ones(shape), np.arange(4)[: 4 if coordinates else 2].reshape(2, *coordinates)
    batch = 1 if seq_axis == 0 else 0
    says = [f"If axis {batch} is the batch, give pos the shape {form},", f"tokens, give seq_axis={axis}."]
    refused(ShapeError, says, lambda: rope.apply(x, pos, seq_axis=seq_axis))
    y = rope.apply(x, pos.reshape(eval(form)), seq_axis=seq_axis)
    for sequence, position in zip(np.moveaxis(y, batch, 0), pos, strict=True):
        expected = rope.apply(np.ones(4), position)
        np.testing.assert_array_equal(sequence, np.broadcast_to(expected, sequence.shape))
    rope.apply(x, pos, seq_axis=axis)


@pytest.mark.parametrize(
    ("shape", "pos_shape", "seq_axis", "axes"),
    [
        ((2, 6, 3, 5, 4), (15, 2), -2, (2, 3)),
        ((2, 3, 5, 6, 4), (15, 2), -3, (1, 2)),
        ((2, 3, 5, 6, 4), (1, 15, 2), -2, (1, 2)),
        ((2, 6, 3, 5, 4), (3, 5, 2), -2, (2, 3)),
        ((7, 2, 3, 5, 4), (7, 30, 2), -2, (1, 3)),
        ((2, 6, 3, 5, 4), (15,), -2, (2, 3)),
    ],
    ids=str,
)
def test_the_axes_of_a_grid_are_flattened(shape, pos_shape, seq_axis, axes):
    """The remedy gives each point of the image its own coordinates."""
    rope = ONE if pos_shape == (15,) else AXIAL
    x, pos = np.random.default_rng(0).standard_normal(shape), np.arange(np.prod(pos_shape)).reshape(pos_shape)
    says = f"If axes {axes[0]} {'and' if axes[1] == axes[0] + 1 else 'to'} {axes[1]} of x hold the"
    text = refused(ShapeError, says, lambda: rope.apply(x, pos, seq_axis=seq_axis))
    flat, tokens, axis = re.search(
        r"x\.reshape(\(.*?\))(?:, pos the shape (\(.*?\)),)? and seq_axis=(-\d+)", text
    ).groups()
    moved = pos if tokens is None else pos.reshape(eval(tokens))
    y = rope.apply(x.reshape(eval(flat)), moved, seq_axis=int(axis)).reshape(shape)
    sizes = shape[axes[0] : axes[1] + 1]
    per_point = pos.reshape(-1, *sizes, *(pos_shape[-1:] if rope is AXIAL else ()))
    for batch, *point in np.ndindex(shape[0], *sizes):
        index = (batch, *(slice(None),) * (axes[0] - 1), *point)
        position = per_point[(batch % len(per_point), *point)]
        expected = rope.apply(x[index].reshape(-1, 4), position[None])
        np.testing.assert_array_equal(y[index].reshape(-1, 4), expected)


def test_arrays_of_different_lengths_are_two_calls():
    q, k = np.ones((2, 3, 5, 4)), np.ones((2, 1, 7, 4))
    for xs in ((q, k), (k, q)):
        says = "array of shape (2, 3, 5, 4) | call once for each array | cross-attention"
        refused(ShapeError, says, lambda xs=xs: ra.apply(xs, range(5)))
    refused(ShapeError, "or (2, 5) or", lambda: ra.apply((q, q), range(6)))  # no other array lines up


IDS = np.arange(30).reshape(3, 2, 5)


@pytest.mark.parametrize(
    ("pos", "remedy"),
    [
        (IDS, "xp.moveaxis(pos, 0, -1)"),
        (np.concatenate([IDS[:1], IDS]), "xp.moveaxis(pos[1:, ...], 0, -1)"),
        (IDS[0], "ra.positions.text(pos, 3, like=x)"),
        (7, "ra.positions.text(pos, 3, like=x)"),
        (np.arange(25).reshape(5, 1, 5), ""),
    ],
    ids=["three rows", "four rows", "batch", "number", "unknown"],
)
def test_remedies_for_positions_without_coordinates(pos, remedy):
    """The remedy in the message gives positions that rotate as (t, h, w) on the last axis."""
    rope, x = RoPE(8, axes=ra.Axes.chunked(2, 1, 1)), np.random.default_rng(0).standard_normal((2, 3, 5, 8))
    text = refused(
        ShapeError, ["3 coordinates", "(..., 3)", remedy or "(..., 3)."], lambda: rope.apply(x, pos)
    )
    if not remedy:
        assert text.endswith("(..., 3).")
        return
    host = np.asarray(pos)
    stacked = np.moveaxis(host[-3:], 0, -1) if "moveaxis" in remedy else np.stack([host] * 3, -1)
    y = rope.apply(x, eval(remedy, {"xp": np, "pos": pos, "ra": ra, "x": x}))
    np.testing.assert_array_equal(y, rope.apply(x, stacked))


# ---- two libraries ----

PAIRS = [
    pytest.param(a, b, marks=pytest.mark.library(a, b), id=f"{a}-{b}") for a in LIBS for b in LIBS if a != b
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_libraries(first, second):
    a, b = LIBS[first], LIBS[second]
    x, y, names = ones(a, 2, 4), ones(b, 2, 4), [a.name, b.name]
    rotation = RoPE(4).rotation(0, like=x)
    refused(ArrayTypeError, [*names, "two libraries"], lambda: ra.apply((x, y), 0))
    refused(ArrayTypeError, [*names, "like="], lambda: rotation.apply(y))
    refused(ArrayTypeError, [*names, "inv_freq"], lambda: RoPE(4).rotation(0, like=x, inv_freq=ones(b, 2)))
    pos = arange(b, 2)
    if second == "numpy" and first in ("jax", "dask", "cubed"):
        ra.apply(x, pos)  # these accept NumPy positions
        return
    remedies = {"torch": "torch.as_tensor(pos", "dask": "numpy.asarray(pos)", "cubed": "numpy.asarray(pos)"}
    if second == "numpy":
        grid = ra.positions.grid(2, 1)[:, 0]
        refused(ArrayTypeError, "ra.positions with like=x", lambda: ra.apply(x, grid))
        ra.apply(x, ra.positions.grid(2, 1, like=x)[:, 0])
    says = [*names, "int32[2]", "float32[2, 4]", remedies.get(first, "asarray(pos)")]
    refused(ArrayTypeError, says, lambda: ra.apply(x, pos))
    refused(ArrayTypeError, says[:3], lambda: RoPE(4).rotation(pos, like=x))


@pytest.mark.library("torch")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor.*deprecated:UserWarning")
def test_a_quantised_tensor_needs_its_scale():
    torch = importlib.import_module("torch")
    x = torch.quantize_per_tensor(torch.ones(2, 4), 0.5, 0, torch.qint8)
    for call in (ra.apply, lambda x, pos: RoPE(4).rotation(pos, like=x)):
        with pytest.raises(ArrayTypeError, match=r"Rotate before you quantise.* (x|like)\.dequantize\(\)"):
            call(x, 3)
    assert torch.equal(ra.apply(x.dequantize(), 3), ra.apply(torch.ones(2, 4), 3))


@pytest.mark.library("torch", "numpy")
def test_an_array_of_no_axes_is_an_array_of_its_library():
    """A 0-d tensor is no number: it is refused with NumPy, and a 0-d NumPy array with PyTorch."""
    torch = importlib.import_module("torch")
    for x, pos in ((np.ones((2, 4)), torch.tensor(3)), (torch.ones(2, 4), np.array(3))):
        refused(ArrayTypeError, "two libraries", lambda x=x, pos=pos: ra.apply(x, pos))


@pytest.mark.library("strict", "torch")
def test_two_devices(lib):
    """Arrays on another device than x are refused; tests/jax_devices.py has JAX's."""
    name, device = ("meta", "meta") if lib.name == "torch" else ("device1", lib.xp.Device("device1"))
    rope, x, pos = RoPE(4), ones(lib, 2, 4), lib.xp.arange(2, device=device)
    y = lib.xp.ones((2, 4), dtype=lib.xp.float32, device=device)
    refused(ArrayTypeError, [name, "device"], lambda: ra.apply((x, y), 0))
    refused(ArrayTypeError, [name, "pos"], lambda: ra.apply(x, pos))
    refused(ArrayTypeError, [name, "pos"], lambda: rope.rotation(pos, like=x))
    refused(ArrayTypeError, [name, "like="], lambda: rope.rotation(0, like=x).apply(y))
    refused(ArrayTypeError, [name, "inv_freq"], lambda: rope.rotation(0, like=x, inv_freq=y[0, :2]))
    assert ra.apply(y, pos).device == ra.apply(y, [0, 1]).device == y.device


# ---- arrays without plain elementwise arithmetic ----

BACKENDS = [None, "array-api"]


@pytest.mark.usefixtures("no_work")
@pytest.mark.without("strict", "jax", "torch")
@pytest.mark.parametrize("backend", BACKENDS)
def test_masked_arrays(lib, backend):
    ma = np.ma if lib.name == "numpy" else importlib.import_module("dask.array").ma
    for call in each_place(lambda array: ma.masked_equal(array, 1), lib, backend):
        refused(ArrayTypeError, "mask", call)


def test_numpy_matrix():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        for call in each_place(np.asmatrix, LIBS["numpy"]):
            refused(ArrayTypeError, "matrix | asarray", call)


def nested(x, layout):
    return importlib.import_module("torch").nested.nested_tensor([x, x], layout=layout)


TENSORS = {
    "coo": (lambda torch, x: x.to_sparse(), "sparse_coo | to_dense()"),
    "csr": (lambda torch, x: x.reshape(-1, x.shape[-1]).to_sparse_csr(), "sparse_csr | to_dense()"),
    "mkldnn": (lambda torch, x: x.float().to_mkldnn(), "mkldnn | to_dense()"),
    "jagged": (lambda torch, x: nested(x, torch.jagged), "nested"),
    "nested": (lambda torch, x: nested(x, torch.strided), "nested"),
    "masked": (lambda torch, x: torch.masked.masked_tensor(x, x == 1), "mask"),
}


@pytest.mark.library("torch")
@pytest.mark.filterwarnings("ignore:.*(prototype|beta state|sparse)")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", TENSORS)
def test_torch_tensors_of_another_kind(kind, backend):
    torch, (make, says) = importlib.import_module("torch"), TENSORS[kind]
    places = ["x", "second", "like", "applied"] + ["pos"] * (kind != "mkldnn")  # which is of floats alone
    for call in each_place(lambda x: make(torch, x), LIBS["torch"], backend, places):
        refused(ArrayTypeError, says, call)
