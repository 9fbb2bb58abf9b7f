"""`attention_inputs` against a judge in long doubles, and its caches against loops, on every library.

The judge bounds the results of the array-api backend on NumPy. All other calls must have the bits of these:
other libraries, backends, strides, company, tables, results in place, and rows of caches.
"""

import contextlib
import functools
import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from compare import KERNEL, bits, normal, values
from refusals import refusals, refused

import rope_array as ra
from rope_array._array_api.library import Library
from rope_array._backends import _native
from rope_array.testing import apply_definition, rotation_matrix
from rope_array.testing._contract import ROTATED, compute_dtype, eps, ulp
from rope_array.testing._definition import pairs_of

HAS_CACHES = pytest.mark.without("strict", "dask")
WRITES = pytest.mark.without("strict", "dask", "jax")
BACKENDS = {"numpy": (None, "array-api"), "torch": (None, "torch")}  # of libraries whose arrays are written
LONG = ra.RoPE(16, pairing="half", base=500_000.0)


def numpy_dtype(name):
    narrow = name in ("bfloat16", "float8_e4m3fn")
    return np.dtype(getattr(pytest.importorskip("ml_dtypes"), name) if narrow else name)


def rounded(array, dtype):
    """Round an array of NumPy to a dtype; from float64 to narrow floats by float32."""
    via = np.float32 if array.dtype == np.float64 and dtype not in ("float64", "int8") else array.dtype
    with np.errstate(over="ignore"):
        return array.astype(via).astype(numpy_dtype(dtype))


# ---- the judge ----


def exact_norm(x, factor, epsilon):
    """Return the normed heads in long doubles; the factor is 1, or weight + offset."""
    x = np.asarray(x, np.longdouble)
    mean = (x * x).sum(-1, keepdims=True) / x.shape[-1]
    return x / np.sqrt(mean + np.longdouble(epsilon)) * factor


def assert_within_contract(y, normed, pos, dtype, seq_axis, fields, norm_error, judged=True):
    """Assert item 6 of the contract in docs/numerics.md; `norm_error` is its n, 0 without a norm."""
    y, normed = values(y), normed.astype(np.float64)
    exact, plan = apply_definition(normed, pos, seq_axis=seq_axis, **fields), pairs_of(y.shape[-1], fields)
    amplitude = float(plan.amplitude)
    length = amplitude * np.hypot(*(normed[..., member] for member in plan.source))
    error = norm_error * np.abs(normed)
    for out in plan.target:
        error[..., out] = (norm_error + ROTATED[dtype][amplitude != 1.0]) * length
    error *= eps(compute_dtype(dtype))
    if dtype == "float64":
        size = np.abs(normed)
        for out in plan.target:
            size[..., out] = length
        error += 2 * eps("float64") * size  # of the judge, which rounds to float64 twice
    bound = error + 0.5 * ulp(np.abs(exact) + error, dtype)
    wrong = ~(np.abs(y - exact) <= bound) & judged
    assert not wrong.any(), (np.argwhere(wrong)[0], (np.abs(y - exact) / bound).max())


def norm_error(width):
    return 5 + math.ceil(width / 64) / 4


class Case(NamedTuple):
    """A random call: values in NumPy, which the dtype of the call holds exactly."""

    q: Any
    k: Any
    pos: Any
    weights: tuple
    fields: dict
    options: dict

    def call(self, convert, pos=None, **changes):
        """Call with arrays that `convert` makes of the values; `pos` may be a Rotation."""
        q, k, *weights = (x if x is None else convert(x) for x in (self.q, self.k, *self.weights))
        source = (pos,) if isinstance(pos, ra.Rotation) else (pos, ra.RoPE(q.shape[-1], **self.fields))
        norm = tuple(weights) if "eps" in self.options else None
        return ra.attention_inputs(q, k, *source, norm=norm, **{**self.options, **changes})


def random_case(rng, dtype):
    width = int(rng.choice([2, 7, 16, 64, 66, 96, 128, 192, 256, 576, 2 * rng.integers(1, 280)]))
    rotary_dim = 2 * int(rng.integers(0, width // 2 + 1)) if width % 2 or rng.random() < 0.5 else width
    fields = {"rotary_dim": rotary_dim, "rotary_start": int(rng.integers(0, width - rotary_dim + 1))}
    fields["pairing"], fields["out_pairing"] = rng.choice(["half", "interleaved"], 2).tolist()
    fields |= {"base": 1e6} if rng.random() < 0.5 else {"attention_factor": 1.3}
    batch, length, seq_axis = int(rng.integers(1, 3)), int(rng.integers(1, 5)), int(rng.choice([-2, -3]))
    options = {"eps": float(rng.choice([0.0, 1e-6, 0.1])), "offset": float(rng.choice([0.0, 1.0]))}
    options = {"seq_axis": seq_axis, **(options if rng.random() < 0.9 else {})}

    def array(*shape, scale=1.0):
        return (scale * rng.standard_normal(shape)).astype(numpy_dtype(dtype)).astype(np.float64)

    arrays, weights = [], []
    for heads in (3, int(rng.integers(1, 3))):
        lead = (heads, length) if seq_axis == -2 else (length, heads)
        arrays.append(array(batch, *lead, width, scale=10.0 ** rng.uniform(-3, 3)))
        weights.append([array(width), array(heads, width), None][rng.integers(3)])
    pos = rng.integers(-(2**31), 2**31, [(length,), (batch, length)][rng.integers(2)]).astype(np.int32)
    return Case(*arrays, pos, tuple(weights), fields, options)


def judged_reference(case, dtype):
    """Return the results of the array-api backend on NumPy, in the compute dtype, judged."""
    compute, options = compute_dtype(dtype), case.options
    ys = case.call(lambda array: array.astype(compute), case.pos, backend="array-api")
    for x, y, weight in zip((case.q, case.k), ys, case.weights, strict=True):
        error = 0
        if "eps" in options:
            factor = 1.0 if weight is None else weight + np.longdouble(options["offset"])
            factor = factor[:, None] if np.ndim(factor) == 2 and options["seq_axis"] == -2 else factor
            x, error = exact_norm(x, factor, options["eps"]), norm_error(x.shape[-1])
        assert_within_contract(y, x, case.pos, compute, options["seq_axis"], case.fields, error)
    return ys


def assert_bits(ys, expected, call=""):
    for y, e in zip(ys, expected, strict=True):
        assert (y is None) == (e is None), call
        assert y is None or np.array_equal(values(y), values(e)), call


# ---- norm and rotation ----


@pytest.mark.neutral
@pytest.mark.parametrize("seed", range(8))
def test_random_calls(lib, float_dtype, seed):
    """By positions and by a Rotation; results new, in other arrays and in place."""
    rng, convert = np.random.default_rng(seed), partial(lib.asarray, dtype=float_dtype)
    for _ in range(4 if lib.name in BACKENDS else 1):
        case = random_case(rng, float_dtype)
        expected = [rounded(y, float_dtype) for y in judged_reference(case, float_dtype)]
        pos, rope = lib.asarray(case.pos, "int32"), ra.RoPE(case.q.shape[-1], **case.fields)
        assert_bits(case.call(convert, pos), expected, case)
        assert_bits(case.call(convert, rope.rotation(pos, like=convert(case.q))), expected, case)
        assert_bits(case._replace(k=None).call(convert, pos), (expected[0], None), case)
        for backend in BACKENDS.get(lib.name, ()):
            q, k = convert(case.q), convert(case.k)
            for out in ((convert(case.q), convert(case.k)), (q, k)):
                given = {id(case.q): q, id(case.k): k}
                ys = case.call(lambda x, g=given: g.get(id(x), convert(x)), pos, out=out, backend=backend)
                assert all(y is o for y, o in zip(ys, out, strict=True))
                assert_bits(out, expected, case)


@pytest.mark.neutral
@pytest.mark.without("strict", "dask")
@pytest.mark.parametrize("width", [66, 128])
def test_bits_do_not_depend_on_company(lib, float_dtype, width):
    """A part of the batch, heads or tokens, with another k or none, of any strides, has the bits of all."""
    rope, q = ra.RoPE(width, pairing="half"), normal(lib, 4, 6, 5, width, dtype=float_dtype)
    weight, pos = normal(lib, 6, width), lib.asarray(np.arange(20).reshape(4, 5) ** 3, "int32")

    def call(q, k, pos, weight):
        return values(ra.attention_inputs(q, k, pos, rope, norm=(weight, None), offset=1.0)[0])

    y = call(q, q[:, :1], pos, weight)
    for part in (slice(0, 1), slice(1, None), slice(0, None, 2))[: 1 if lib.name == "jax" else 3]:
        assert np.array_equal(call(q[part], None, pos[part], weight), y[part])
        assert np.array_equal(call(q[:, part], q, pos, weight[part]), y[:, part])
        assert np.array_equal(call(q[:, :, part], None, pos[:, part], weight), y[:, :, part])
    for name, x in lib.strided(q) if lib.name in BACKENDS else ():
        assert np.array_equal(call(x, x[:, ::3], pos, weight), y), name


def determined(exact, error, dtype):
    """Return numbers rounded to a dtype, and whether all numbers within the error round alike."""
    low, high = (rounded((exact * (1 + e)).astype(np.float64), dtype) for e in (-error, error))
    return low.astype(np.longdouble), low == high


@pytest.mark.neutral
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rounding", ["norm", "steps"])
@pytest.mark.without("strict")
def test_values_are_rounded_where_a_model_rounds_them(lib, dtype, rounding):
    if dtype not in lib.dtypes:
        return
    width, error = 96, norm_error(96) * eps("float32")
    x = values(normal(lib, 4, 3, width, dtype=dtype, scale=3.0))
    weight = values(normal(lib, width, dtype=dtype, seed=1))
    exact, sure = exact_norm(x, 1.0, 1e-6), True
    if rounding == "steps":
        exact, sure = determined(exact, error, dtype)
    exact, sure_too = determined(exact * (weight + 1.0), error, dtype)
    pairs = sure & sure_too
    pairs &= np.roll(pairs, width // 2, axis=-1)  # the other member
    assert pairs.mean() > 0.8
    rope, convert = ra.RoPE(width, pairing="half"), partial(lib.asarray, dtype=dtype)
    options = {"norm": (convert(weight), None), "offset": 1.0}
    for backend in BACKENDS.get(lib.name, (None,)):
        call = partial(ra.attention_inputs, convert(x), None, [5, 6, 7], rope, backend=backend, **options)
        y = call(rounding=rounding)[0]
        assert_within_contract(y, exact, [5, 6, 7], dtype, -2, {"pairing": "half"}, 0, judged=pairs)
        assert not np.array_equal(values(y), values(call()[0]))


def test_rounding_changes_no_float32(lib):
    x, weight = normal(lib, 2, 5, 16), normal(lib, 16, seed=1)
    ys = [ra.attention_inputs(x, None, range(5), LONG, norm=(weight, None), rounding=rounding)[0]
          for rounding in ("none", "norm", "steps")]  # fmt: skip
    assert len(set(map(bits, ys))) == 1


def test_heads_whose_squares_overflow_become_zero(lib):
    x = lib.asarray(np.full((1, 16), 1e25), "float32")
    with np.errstate(over="ignore"):
        y = ra.attention_inputs(x, None, 3, LONG, norm=(None, None))[0]
        assert not values(y).any()


def test_arrays_without_elements_and_single_vectors(lib):
    weight, empty = normal(lib, 16), normal(lib, 2, 0, 16)
    for q, k in ((empty, empty), (empty, None)):
        y_q, y_k = ra.attention_inputs(q, k, range(0), LONG, norm=(weight, None))
        assert tuple(y_q.shape) == (2, 0, 16)
        assert (y_k is None) == (k is None)
    x = normal(lib, 1, 16)
    y, _ = ra.attention_inputs(x[0, :], None, 7, LONG, norm=(weight, None))
    assert np.array_equal(values(y), values(ra.attention_inputs(x, None, 7, LONG, norm=(weight, None))[0])[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_tables_of_float64_are_rounded_to_float32_first(lib, dtype):
    """As by `apply`: the arithmetic is x's."""
    if "float64" not in lib.dtypes or dtype not in lib.dtypes:
        return
    x, rotation = (
        normal(lib, 99, 16, dtype=dtype),
        LONG.rotation(range(99), like=normal(lib, 1, 16, dtype="float64")),
    )
    narrow = (lib.asarray(values(table), "float32") for table in (rotation.cos, rotation.sin))
    ys = [ra.attention_inputs(x, None, source, norm=(None, None))[0]
          for source in (rotation, rotation._replace(cos=next(narrow), sin=next(narrow)))]  # fmt: skip
    assert np.array_equal(*map(values, ys))


# ---- caches ----

HEADS, WIDTH, LATENT = 2, 16, 24
CACHE_DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "float8_e4m3fn"]
SCALES = {"int8": (0.02, 0.011), "float8_e4m3fn": (0.005, 0.003)}


class Layout(NamedTuple):
    """The shape of the memory of both caches, their sequence axis, and the index of each in the memory."""

    shape: tuple
    axis: int
    k: Any = 0
    v: Any = 1
    heads: int = HEADS
    v_width: int = WIDTH
    tokens: tuple = (2, 5)  # the shape of the slots

    @property
    def free(self):
        """The axes of a cache that are neither pages nor slots nor features."""
        return (self.heads,) if len(self.tokens) == 2 else (2, self.heads)


# fmt: off
ALL, EVEN, ODD = slice(None), slice(None, None, 2), slice(1, None, 2)
LATENT_ROWS = {"heads": 1, "v_width": LATENT,
               "k": (..., None, slice(LATENT, None)), "v": (..., None, slice(LATENT))}
LAYOUTS = {
    "slots, heads": Layout((2, 14, HEADS, WIDTH), -3),
    "heads, slots": Layout((2, HEADS, 14, WIDTH), -2),
    "pages, slots, heads": Layout((2, 4, 4, HEADS, WIDTH), -3),
    "pages, heads, slots": Layout((2, 4, HEADS, 4, WIDTH), -2),
    "one pool": Layout((4, 2, 4, HEADS, WIDTH), -3, (ALL, 0), (ALL, 1)),
    "one pool, heads first": Layout((4, 2, HEADS, 4, WIDTH), -2, (ALL, 0), (ALL, 1)),
    "joint rows": Layout((4, 4, HEADS, 40), -3, (..., slice(16)), (..., slice(16, 40)), v_width=24),
    "every second feature": Layout((8, 4, HEADS, 32), -3, (EVEN, ..., EVEN), (ODD, ..., EVEN)),
    "pages of latent rows": Layout((4, 4, LATENT + WIDTH), -3, **LATENT_ROWS),
    "latent rows": Layout((14, LATENT + WIDTH), -3, **LATENT_ROWS),
    "sequences of heads": Layout((2, 2, HEADS, 14, WIDTH), -2, tokens=(5,)),
    "sequences of slots": Layout((2, 2, 14, HEADS, WIDTH), -3, tokens=(5,)),
}
# fmt: on


def stored(rows, dtype, scale):
    """Return rows as a cache of a dtype holds them."""
    rows = rows / rows.dtype.type(scale)
    if dtype == "int8":
        rows = np.clip(np.rint(rows), -128, 127)
    return rounded(np.clip(rows, -448, 448) if dtype == "float8_e4m3fn" else rows, dtype)


def random_slots(rng, shape, unique=False):
    """Return slots of tokens; two are negative, and one slot may be given several times."""
    slots = rng.permutation(14)[: math.prod(shape)]
    if not unique:
        slots[rng.permutation(slots.size)[:2]] = slots[0]
    slots[1 + rng.permutation(slots.size - 1)[:2]] = [-1, -(2**31)]
    return slots.reshape(shape)


def write_by_loops(cache, rows, slots, axis):
    """Write the rows of all tokens, one after another."""
    has_pages = cache.ndim == rows.ndim - slots.ndim + 2
    for token in np.ndindex(slots.shape):
        page, row = divmod(int(slots[token]), cache.shape[axis] if has_pages else 2**40)
        if page >= 0:
            np.moveaxis(cache[page] if has_pages else cache, axis, 0)[row] = rows[token]


def in_library(lib, memory):
    """Return memory of NumPy as an array of a library; it is shared but in JAX."""
    if lib.name == "torch":
        torch = lib.native
        return torch.from_numpy(memory.view(np.uint8)).view(getattr(torch, memory.dtype.name))
    return lib.native.numpy.asarray(memory) if lib.name == "jax" else memory


def array_bytes(array):
    """Return the bits of an array of any dtype."""
    if type(array).__module__ == "torch":
        array = array.contiguous().view(__import__("torch").uint8).numpy()
    return np.ascontiguousarray(array).tobytes()


@HAS_CACHES
@pytest.mark.neutral
@pytest.mark.parametrize("cache_dtype", CACHE_DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_caches(lib, layout, cache_dtype):
    """Rows have the bits of results in float32 that are rounded once; all other memory is as it was."""
    if cache_dtype == "float64" and "float64" not in lib.dtypes:
        return
    rng, stored_dtype, at = np.random.default_rng(8), numpy_dtype(cache_dtype), len(layout.tokens) - 1
    scales, weight = SCALES.get(cache_dtype, (1.0, 1.0)), rng.standard_normal(WIDTH).astype(np.float32)
    size = math.prod(layout.shape) * stored_dtype.itemsize
    cases = [*zip(lib.dtypes, (-2, -3, -2, -3), ("int64", "int32", "int64", "int32"), strict=False)]
    for dtype, seq_axis, slot_dtype in cases[1:2] if lib.name == "jax" else cases:
        slots, (*free, heads) = random_slots(rng, layout.tokens, slot_dtype == "int64"), layout.free
        shapes = [(*free, 3, WIDTH), (*free, heads, WIDTH), (*free, heads, layout.v_width)]
        rows = [rng.standard_normal((*layout.tokens, *end)).astype(numpy_dtype(dtype)) for end in shapes]
        xs = [np.ascontiguousarray(np.moveaxis(array, at, seq_axis)) for array in rows]
        q, k, v = (x.astype(compute_dtype(dtype)) for x in xs)
        pos, options = rng.integers(0, 9999, layout.tokens[-1]).astype(np.int32), {"seq_axis": seq_axis}
        norm = (None, weight) if seq_axis == -2 else None
        ys = ra.attention_inputs(q, k, pos, LONG, norm=norm, backend="array-api", **options)
        before = rng.bytes(size)
        expected = np.frombuffer(bytearray(before), stored_dtype).reshape(layout.shape)
        for index, x, scale in zip((layout.k, layout.v), (ys[1], v), scales, strict=True):
            x = stored(np.moveaxis(x, seq_axis, at), cache_dtype, scale)
            write_by_loops(expected[index], x, slots, layout.axis)
        options |= {"scales": scales, "cache_seq_axis": layout.axis, "unique_slots": slot_dtype == "int64"}
        options["slots"] = in_library(lib, slots.astype(slot_dtype))
        options["norm"] = norm and (None, in_library(lib, weight))
        pos = in_library(lib, pos)
        for backend in BACKENDS.get(lib.name, (None,)):
            memory = np.frombuffer(bytearray(before), stored_dtype).reshape(layout.shape)
            whole, (q, k, v) = in_library(lib, memory), (in_library(lib, x) for x in xs)
            cache = whole[layout.k], whole[layout.v]
            *results, written = ra.attention_inputs(
                q, k, pos, LONG, v=v, cache=cache, backend=backend, **options
            )
            call = dtype, seq_axis, backend, slots.tolist()
            assert_bits(results, [rounded(y, dtype) for y in ys], call)
            for one, index in zip(written, (layout.k, layout.v), strict=True):
                assert array_bytes(one) == expected[index].tobytes(), call
            assert memory.tobytes() == (before if lib.name == "jax" else expected.tobytes()), call
            assert lib.name == "jax" or all(a is b for a, b in zip(written, cache, strict=True))


@WRITES
def test_caches_of_more_than_2_31_elements(lib):
    """Memory that is never touched costs nothing: slots of one byte, slots of rows, and pages far apart."""
    xs, memory = normal(lib, 1, 3, 4), np.zeros(2**31 + 2**12, np.int8)
    whole, far = in_library(lib, memory), 2**31 + 5
    if lib.name == "torch":
        pages = whole.as_strided((3, 1, 2, 4), (2**30, 4, 16, 1))
    else:
        pages = np.lib.stride_tricks.as_strided(whole, (3, 1, 2, 4), (2**30, 4, 16, 1))
    one, row = xs[..., :1], ra.RoPE(1, rotary_dim=0)
    for cache, slots, x, rope, places in (
        (whole.reshape(1, -1, 1), [far, -1, 7], one, row, {far: 0, 7: 2}),
        (whole.reshape(1, -1, 4), [far // 4, 2, -1], xs, ra.RoPE(4), {4 * (far // 4): 0, 8: 1}),
        (pages, [5, -1, 1], xs, ra.RoPE(4), {2**31 + 16: 0, 16: 2}),
    ):
        ys, scales = values(ra.attention_inputs(x, x, 0, rope)[1]), (0.05, 1.0)
        numbers = lib.asarray(np.array(slots), "int64")
        ra.attention_inputs(x, x, 0, rope, cache=(cache, None), slots=numbers, scales=scales)
        for place, token in places.items():
            expected = stored(ys[0, token].astype(np.float32), "int8", 0.05)
            near = memory[place - 4 : place + 8].copy()
            assert near.tolist() == [0] * 4 + expected.tolist() + [0] * (8 - expected.size)
            memory[place - 4 : place + 8] = 0


@pytest.mark.library("jax")
def test_slots_of_more_than_32_bits_are_no_slots_of_jax(lib):
    """JAX without x64 reads the lower 32 bits of a NumPy array."""
    k = normal(lib, 1, 2, 16)
    cache, slots = (normal(lib, 1, 4, 16), None), np.array([-(2**40), -(2**32) + 1])
    assert bits(ra.attention_inputs(k, k, 0, LONG, cache=cache, slots=slots)[2][0]) == bits(cache[0])


NAN, INF = math.nan, math.inf
SPECIAL = {  # dtypes of v and of its cache, numbers, and what the cache holds
    "int8": ("float32", "int8", [NAN, INF, -INF, 0.5, 1.5, -128.5], [0, 127, -128, 0, 2, -128]),
    "float8_e4m3fn": (
        "float32",
        "float8_e4m3fn",
        [NAN, INF, -INF, 464.5, 2.0**-10],
        [NAN, 448, -448, 448, 0],
    ),
    "float64": ("float64", "float16", [1 + 2.0**-11 + 2.0**-40], [1.0]),  # rounded to float32 first
}


@HAS_CACHES
@pytest.mark.parametrize("case", SPECIAL.values(), ids=SPECIAL)
def test_special_numbers_in_caches(lib, case):
    dtype, cache_dtype, numbers, expected = case
    if dtype not in lib.dtypes:
        return
    x = np.zeros((1, 1, WIDTH), dtype)
    x[..., : len(numbers)] = numbers
    v, slots = in_library(lib, x), lib.asarray(np.zeros(1), "int32")
    for backend in BACKENDS.get(lib.name, (None,)):
        cache = (in_library(lib, part) for part in np.zeros((2, 1, 1, WIDTH), numpy_dtype(cache_dtype)))
        with np.errstate(invalid="ignore"):
            *_, (_, written) = ra.attention_inputs(
                v, v, 0, LONG, v=v, cache=(*cache,), slots=slots, backend=backend
            )
        numbers = np.frombuffer(array_bytes(written), numpy_dtype(cache_dtype)).astype(np.float64)
        np.testing.assert_array_equal(numbers[: len(expected)], expected)


@HAS_CACHES
def test_caches_without_slots(lib):
    k, slots = normal(lib, 2, 5, 4), lib.asarray(np.full(5, -1), "int32")
    for shape in ((2, 0, 4), (0, 2, 3, 4), (3, 2, 0, 4)):
        cache = normal(lib, *shape), None
        *_, (written, _) = ra.attention_inputs(k, k, 0, ra.RoPE(4), cache=cache, slots=slots)
        assert tuple(written.shape) == shape


@pytest.mark.library("numpy")
def test_the_last_token_of_a_slot_remains_if_rows_are_written_in_any_order(monkeypatch):
    """As on a GPU. The promise that no slot appears twice saves the search for the last."""
    write_rows = Library.write_rows

    def backwards(self, cache, order, index, keep, rows, ops):
        return write_rows(self, cache, order, tuple(i[::-1] for i in index), keep[::-1], rows[::-1], ops)

    monkeypatch.setattr(Library, "write_rows", backwards)
    k, options = normal("numpy", 1, 6, 4), {"slots": np.array([3, -1, 3, 0, 3, 0]), "backend": "array-api"}
    for unique, tokens in ((False, {3: 4, 0: 5}), (True, {3: 0, 0: 3})):
        cache = np.zeros((1, 4, 4), np.float32)
        call = partial(ra.attention_inputs, cache=(cache, None), unique_slots=unique, **options)
        _, y, _ = call(k, k, 0, ra.RoPE(4))
        assert all((cache[0, slot] == y[0, token]).all() for slot, token in tokens.items())
        assert not cache[0, 1:3].any()


def test_the_last_token_of_a_slot_remains_if_tokens_are_in_another_order_in_memory():
    """The C++ kernel follows the memory: here the first tokens of all batches, then the second tokens."""
    k = normal("numpy", 5, 20, 1, 4).swapaxes(0, 1)  # batch, tokens, heads, features
    slots, cache = np.arange(100).reshape(20, 5), np.zeros((100, 1, 4), np.float32)
    slots[0, 4] = slots[1, 0]
    _, y, _ = ra.attention_inputs(k, k, 0, ra.RoPE(4), seq_axis=-3, cache=(cache, None), slots=slots)
    assert (cache[5] == y[1, 0]).all()
    assert not cache[4].any()


@KERNEL
@pytest.mark.parametrize("cache_dtype", ["float16", "bfloat16", "float32", *SCALES])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_levels_and_threads_of_the_kernel_change_no_bits(level, dtype, cache_dtype, monkeypatch):
    """Slots are in random order, and two tokens have one."""
    monkeypatch.setenv("ROPE_ARRAY_NUM_THREADS", "3")
    _native.kernel.share_out_from(2**14)
    slots = np.random.default_rng(1).permutation(40)[:37]
    slots[3] = slots[30]
    for width, rounding in ((66, "none"), (576, "steps")):
        q, k, v = (normal("numpy", 4, 37, width, dtype=dtype, seed=seed) for seed in range(3))
        options = {"norm": (normal("numpy", width), normal("numpy", 4, width)), "rounding": rounding}
        options |= {"v": v, "slots": slots, "scales": SCALES.get(cache_dtype, (1.0, 1.0))}
        rope, results = ra.RoPE(width, rotary_dim=64, pairing="half"), []
        for backend in (None, "array-api"):
            cache = np.zeros((2, 4, 40, width), numpy_dtype(cache_dtype))
            ys = ra.attention_inputs(q, k, range(37), rope, cache=(*cache,), backend=backend, **options)
            results.append([array.tobytes() for array in (*ys[:2], cache)])
        assert results[0] == results[1]


# ---- refused calls ----


def arguments(lib):
    """Return the names that texts of refused calls have."""
    q, k = normal(lib, 3, 5, 4), normal(lib, 2, 5, 4, seed=1)
    names = {"q": q, "k": k, "v": normal(lib, 2, 5, 4, seed=2), "w": normal(lib, 4), "np": np, "lib": lib}
    names |= {"kc": normal(lib, 2, 8, 4, seed=3), "vc": normal(lib, 2, 8, 4, seed=4), "ra": ra}
    names |= {"slots": lib.asarray(np.arange(5), "int32"), "rope": ra.RoPE(4), "normal": partial(normal, lib)}

    def inputs(q=q, k=k, pos=0, rope=names["rope"], **options):
        return ra.attention_inputs(q, k, pos, rope, **options)

    def into(cache, slots=names["slots"], q=q, **options):
        return inputs(q, cache=cache if type(cache) is tuple else (cache, None), slots=slots, **options)

    return names | {"inputs": inputs, "into": into, "frozen": frozen}


def frozen(array):
    array.flags.writeable = False
    return array


def refuses(lib, call, error, words):
    """Check that a call is refused before anything is written, also once the kernel knows the rope."""
    names = arguments(lib)
    names["inputs"]()
    arrays = {name: array for name, array in names.items() if type(array) is type(names["q"])}
    before = {name: bits(array) for name, array in arrays.items()}
    refused(error, words, lambda: eval(call, names))
    assert {name: bits(array) for name, array in arrays.items()} == before


def refused_calls(section, *marks):
    """Return a test of the calls of a section."""

    @refusals(section)
    def test(lib, call, error, words):
        refuses(lib, call, error, words)

    return functools.reduce(lambda test, mark: mark(test), marks, test)


test_refused_calls = refused_calls("attention inputs")
test_refused_caches = refused_calls("attention inputs with caches", HAS_CACHES)
test_refused_memory = refused_calls("attention inputs that are written", WRITES)
test_refused_arrays_of_numpy = refused_calls("attention inputs of numpy", pytest.mark.library("numpy"))
test_refused_tensors = refused_calls("attention inputs of torch", pytest.mark.library("torch"))
test_libraries_without_caches = refused_calls("no caches", pytest.mark.without("numpy", "torch", "jax"))


# ---- PyTorch ----


@pytest.mark.library("torch")
def test_modes_of_torch_change_no_bits(lib, float_dtype):
    torch, fake = lib.native, pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode()
    q, weight = normal(lib, 2, 3, 5, WIDTH, dtype=float_dtype), normal(lib, 3, WIDTH)
    cache = torch.zeros(2, 3, 3, 4, WIDTH, dtype=q.dtype)

    def call(q=q, weight=weight, **options):
        return ra.attention_inputs(q, q, range(5), LONG, norm=(weight, weight), eps=0.5, **options)

    y, _ = call()
    for mode in (
        torch.inference_mode(),
        torch.autocast("cpu", torch.bfloat16),
        torch.autocast("cpu", torch.half),
    ):
        with mode:
            y_q, _, (k_cache, _) = call(
                v=q + 0, cache=(cache[0], cache[1]), slots=torch.arange(10).reshape(2, 5)
            )
            assert torch.equal(y_q, y)
            assert torch.equal(k_cache.swapaxes(1, 2).flatten(0, 1)[:10], y.swapaxes(1, 2).flatten(0, 1))
    assert torch.equal(torch.func.vmap(lambda q: call(q)[0])(q), y)
    for convert in (fake.from_tensor, lambda tensor: tensor.to("meta")):
        z, _ = call(convert(q), convert(weight))
        assert (z.shape, z.dtype) == (y.shape, y.dtype)


# ---- gradients ----

GRADIENT_FIELDS = {"rotary_dim": 8, "rotary_start": 2, "pairing": "half", "attention_factor": 1.25}


def definition(matrices, offset, epsilon):
    """Return the map of q, k and their weights, in plain operations of a library."""

    def make(x, weight):
        scale = (weight + offset)[:, None] if weight.ndim == 2 else weight + offset
        n = x / ((x * x).sum(-1)[..., None] / x.shape[-1] + epsilon) ** 0.5 * scale
        return (matrices @ n[..., None])[..., 0]

    return lambda q, k, q_weight, k_weight: (make(q, q_weight), make(k, k_weight))


# Of the library's transforms, a function of q, k and weights, its loss, and arguments with tangents.
TRANSFORMS = {
    "gradient": lambda t, of, loss, args, tangents: t.grad(loss, (0, 1, 2, 3))(*args),
    "jvp": lambda t, of, loss, args, tangents: t.jvp(of, args, tangents)[1],
    "autograd": lambda t, of, loss, args, tangents: by_autograd(loss, args, tangents),
}


def by_autograd(loss, args, tangents):
    """Return first and second derivatives by backward; a kernel may serve the first."""
    grad = pytest.importorskip("torch").autograd.grad
    args = [array.clone().requires_grad_() for array in args]
    first = grad(loss(*args), args, create_graph=True)
    return first + grad(sum((g * t).sum() for g, t in zip(first, tangents, strict=True)), args)


@pytest.mark.library("torch", "jax")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_derivatives_of_wide_heads_are_those_of_the_definition(lib, transform):
    """Of q, k and both weights, in float64; one weight is shared, the other of each head."""
    if (lib.name, transform) == ("jax", "autograd"):
        return
    width, pos = 134, [3, -1]
    fields = {"head_dim": width, **GRADIENT_FIELDS}
    with lib.native.enable_x64(True) if lib.name == "jax" else contextlib.nullcontext():
        shapes = (2, 3, 2, width), (2, 1, 2, width), (3, width), (width,)
        args, tangents, cotangents = (
            tuple(normal(lib, *shape, dtype="float64", seed=seed + i) for i, shape in enumerate(shapes))
            for seed in (0, 4, 8)
        )

        def of(q, k, *weights):
            return ra.attention_inputs(q, k, pos, ra.RoPE(**fields), norm=weights, eps=0.1, offset=1.0)

        def derivative(of):
            loss = lambda *args: sum((y * c).sum() for y, c in zip(of(*args), cotangents, strict=False))  # noqa: E731
            transforms = lib.native.func if lib.name == "torch" else lib.native
            return TRANSFORMS[transform](transforms, of, loss, args, tangents)

        exact = definition(lib.asarray(rotation_matrix(pos, **fields), "float64"), 1.0, 0.1)
        for y, e in zip(derivative(of), derivative(exact), strict=True):
            y, e = (values(array.detach() if lib.name == "torch" else array) for array in (y, e))
            np.testing.assert_allclose(y, e, rtol=1e-9, atol=1e-12)
