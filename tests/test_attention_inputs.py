"""`attention_inputs` against a judge in long doubles, and its caches against loops, on every library.

The judge bounds the results of the array-api backend on NumPy. All other calls must have the bits of these:
other libraries, backends, strides, company, tables, results in place, and rows of caches.
"""

import contextlib
import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from compare import bits, normal, values
from refusals import refusals, refused

import rope_array as ra
from rope_array.testing import apply_definition, rotation_matrix
from rope_array.testing._contract import ROTATED, compute_dtype, eps, ulp
from rope_array.testing._definition import pairs_of

HAS_CACHES = pytest.mark.without("strict", "dask")
WRITES = pytest.mark.without("strict", "dask", "jax")
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
    """A random call: values in NumPy, which the dtypes of the call hold exactly."""

    q: Any
    k: Any
    pos: Any
    weights: tuple
    fields: dict
    options: dict

    def norm(self, convert):
        """Return the arguments of the norm."""
        if not self.options["norm"]:
            return {}
        weights = tuple(weight if weight is None else convert(weight) for weight in self.weights)
        return {"norm": weights, "eps": self.options["eps"], "offset": self.options["offset"]}

    def call(self, convert, pos=None, *, backend=None, **changes):
        """Make q and k from arrays that `convert` makes of values in NumPy."""
        rope = ra.RoPE(self.q.shape[-1], **self.fields)
        q, k, pos = convert(self.q), convert(self.k), self.pos if pos is None else pos
        options = {**self.norm(convert), "seq_axis": self.options["seq_axis"], "backend": backend, **changes}
        source = (pos,) if isinstance(pos, ra.Rotation) else (pos, rope)
        return ra.attention_inputs(q, k, *source, **options)

    def reference(self, dtype):
        """Return q and k by the array-api backend on NumPy, in the compute dtype."""
        compute = compute_dtype(dtype)
        return self.call(lambda array: array.astype(compute), backend="array-api")


def random_case(rng, dtype, **options):
    widths = [2, 7, 16, 64, 66, 96, 128, 192, 256, 576, 2 * int(rng.integers(1, 280))]
    width = int(rng.choice(widths))
    rotary_dim = 2 * int(rng.integers(0, width // 2 + 1)) if width % 2 or rng.random() < 0.5 else width
    fields = {"rotary_dim": rotary_dim, "rotary_start": int(rng.integers(0, width - rotary_dim + 1))}
    fields["pairing"], fields["out_pairing"] = rng.choice(["half", "interleaved"], 2).tolist()
    fields |= {"base": 1e6} if rng.random() < 0.5 else {"attention_factor": 1.3}
    batch, length, seq_axis = int(rng.integers(1, 3)), int(rng.integers(1, 5)), int(rng.choice([-2, -3]))
    drawn = {"seq_axis": seq_axis, "norm": rng.random() < 0.9, "eps": float(rng.choice([0.0, 1e-6, 0.1]))}
    drawn |= {"offset": float(rng.choice([0.0, 1.0])), **options}

    def array(*shape, scale=1.0, of=dtype):
        return (scale * rng.standard_normal(shape)).astype(numpy_dtype(of)).astype(np.float64)

    arrays, weights = [], []
    for heads in (3, int(rng.integers(1, 3))):
        lead = (heads, length) if drawn["seq_axis"] == -2 else (length, heads)
        arrays.append(array(batch, *lead, width, scale=10.0 ** rng.uniform(-3, 3)))
        shape = [(width,), (heads, width), None][rng.integers(3)]
        weights.append(None if shape is None else array(*shape))
    pos = rng.integers(-(2**31), 2**31, [(length,), (batch, length)][rng.integers(2)]).astype(np.int32)
    return Case(*arrays, pos, tuple(weights), fields, drawn)


def judge(case, dtype):
    """Judge the reference of a case; return it."""
    reference = case.reference(dtype)
    for x, y, weight in zip((case.q, case.k), reference, case.weights, strict=True):
        options, error = case.options, norm_error(x.shape[-1]) if case.options["norm"] else 0
        if options["norm"]:
            factor = 1.0 if weight is None else weight + np.longdouble(options["offset"])
            factor = factor[:, None] if np.ndim(factor) == 2 and options["seq_axis"] == -2 else factor
            x = exact_norm(x, factor, options["eps"])
        exact_dtype = compute_dtype(dtype)
        assert_within_contract(y, x, case.pos, exact_dtype, options["seq_axis"], case.fields, error)
    return reference


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
    for _ in range(4 if lib.name in ("numpy", "torch") else 1):
        case = random_case(rng, float_dtype)
        expected = [rounded(y, float_dtype) for y in judge(case, float_dtype)]
        q, k = convert(case.q), convert(case.k)
        pos = lib.asarray(case.pos, "int32")
        rope = ra.RoPE(q.shape[-1], **case.fields)
        assert_bits(case.call(convert, pos), expected, case)
        assert_bits(case.call(convert, rope.rotation(pos, like=q)), expected, case)
        assert_bits((*case._replace(k=None).call(lambda x: None if x is None else convert(x), pos),),
                    (expected[0], None), case)  # fmt: skip
        if lib.name in ("numpy", "torch"):
            for backend in (None, "array-api" if lib.name == "numpy" else "torch"):
                for out in ((convert(case.q), convert(case.k)), (q, k)):
                    arrays = iter((q, k, *(convert(w) for w in case.weights if w is not None)))
                    ys = case.call(lambda _, arrays=arrays: next(arrays), pos, out=out, backend=backend)
                    assert ys[0] is out[0]
                    assert ys[1] is out[1]
                    assert_bits(out, expected, case)
                q, k = convert(case.q), convert(case.k)


def halves(array):
    """Yield parts of an array, and the index of each."""
    for axis, size in enumerate(array.shape[:-1]):
        for part in (slice(0, size // 2), slice(size // 2, size), slice(0, size, 2)):
            index = (slice(None),) * axis + (part,)
            yield index, axis
    yield ..., None


@pytest.mark.neutral
@pytest.mark.without("strict", "dask")
def test_bits_do_not_depend_on_company(lib, float_dtype):
    """A part of the batch, tokens or heads, alone or with another k, of any strides, has the bits of all."""
    rng = np.random.default_rng(5)
    for width in (66, 128) if lib.name != "jax" else (66,):
        rope, q = ra.RoPE(width, pairing="half"), normal(lib, 4, 6, 5, width, dtype=float_dtype)
        weight, pos = normal(lib, 6, width, dtype=float_dtype), rng.integers(0, 9999, (4, 5))
        options = {"norm": (weight, None), "offset": 1.0}
        y = values(ra.attention_inputs(q, q[:, :1, :, :], lib.asarray(pos, "int32"), rope, **options)[0])
        for index, axis in [*halves(q)][:: 8 if lib.name == "jax" else 1]:
            w = weight[index[1]] if axis == 1 else weight
            p = pos[index] if axis == 0 else pos[:, index[2]] if axis == 2 else pos
            part = ra.attention_inputs(
                q[index], None, lib.asarray(p, "int32"), rope, **{**options, "norm": (w, None)}
            )
            assert np.array_equal(values(part[0]), y[index]), (index, axis)
        for name, x in lib.strided(q) if lib.name in ("numpy", "torch") else ():
            part = ra.attention_inputs(x, x[:, ::3], lib.asarray(pos, "int32"), rope, **options)[0]
            assert np.array_equal(values(part), y), name


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
    y, _ = ra.attention_inputs(convert(x), None, [5, 6, 7], rope, rounding=rounding, **options)
    assert_within_contract(y, exact, [5, 6, 7], dtype, -2, {"pairing": "half"}, 0, judged=pairs)
    assert not np.array_equal(
        values(y), values(ra.attention_inputs(convert(x), None, [5, 6, 7], rope, **options)[0])
    )


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


@pytest.mark.without("strict", "dask")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_tables_of_float64_are_rounded_once(lib, dtype):
    """Heads whose norm is 1 have the bits of `apply`."""
    if "float64" not in lib.dtypes:
        return
    x = lib.asarray(np.sign(np.random.default_rng(1).standard_normal((5, 16))), dtype)  # of norm 1
    rotation = LONG.rotation(range(5), like=normal(lib, 1, 16, dtype="float64"))
    y, _ = ra.attention_inputs(x, None, rotation, norm=(None, None), eps=0.0)
    assert np.array_equal(values(y), values(rotation.apply(x)))


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


SECOND = slice(None, None, 2)
LATENT_ROWS = {"k": (..., None, slice(LATENT, None)), "v": (..., None, slice(LATENT)), "heads": 1,
               "v_width": LATENT}  # fmt: skip
LAYOUTS = {
    "slots, heads": Layout((2, 14, HEADS, WIDTH), -3),
    "heads, slots": Layout((2, HEADS, 14, WIDTH), -2),
    "pages, slots, heads": Layout((2, 4, 4, HEADS, WIDTH), -3),
    "pages, heads, slots": Layout((2, 4, HEADS, 4, WIDTH), -2),
    "one pool": Layout((4, 2, 4, HEADS, WIDTH), -3, (slice(None), 0), (slice(None), 1)),
    "one pool, heads first": Layout((4, 2, HEADS, 4, WIDTH), -2, (slice(None), 0), (slice(None), 1)),
    "joint rows": Layout((4, 4, HEADS, 40), -3, (..., slice(16)), (..., slice(16, 40)), v_width=24),
    "every second feature": Layout((8, 4, HEADS, 32), -3, (SECOND, ..., SECOND), (1, ..., SECOND)),
    "pages of latent rows": Layout((4, 4, LATENT + WIDTH), -3, **LATENT_ROWS),
    "latent rows": Layout((14, LATENT + WIDTH), -3, **LATENT_ROWS),
    "sequences of heads": Layout((2, 2, HEADS, 14, WIDTH), -2, tokens=(5,)),
    "sequences of slots": Layout((2, 2, 14, HEADS, WIDTH), -3, tokens=(5,)),
}
LAYOUTS["every second feature"] = LAYOUTS["every second feature"]._replace(v=(slice(1, None, 2), ..., SECOND))


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
        if slots[token] >= 0:
            page, row = divmod(int(slots[token]), cache.shape[axis])
            np.moveaxis(cache[page] if has_pages else cache, axis, 0)[row if has_pages else slots[token]] = (
                rows[token]
            )


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
    rng = np.random.default_rng(len(LAYOUTS) * CACHE_DTYPES.index(cache_dtype))
    scales, weight = SCALES.get(cache_dtype, (1.0, 1.0)), rng.standard_normal(WIDTH).astype(np.float32)
    cases = list(zip(lib.dtypes, (-2, -3, -2, -3), (True, False, False, False), strict=False))
    for dtype, seq_axis, unique in cases[1:2] if lib.name == "jax" else cases:
        slots, free = random_slots(rng, layout.tokens, unique), layout.free
        shapes = [(*layout.tokens, *free[:-1], n, d)
                  for n, d in ((3, WIDTH), (free[-1], WIDTH), (free[-1], layout.v_width))]  # fmt: skip
        rows = [rng.standard_normal(shape).astype(numpy_dtype(dtype)) for shape in shapes]
        xs = [np.moveaxis(array, len(layout.tokens) - 1, seq_axis) for array in rows]
        wide = [x.astype(compute_dtype(dtype)) for x in xs]
        norm = {"norm": (None, weight), "seq_axis": seq_axis}
        pos = rng.integers(0, 9999, layout.tokens[-1]).astype(np.int32)
        expected = ra.attention_inputs(*wide[:2], pos, LONG, backend="array-api", **norm)
        expected_rows = np.moveaxis(expected[1], seq_axis, len(layout.tokens) - 1)
        memory = np.frombuffer(
            rng.bytes(math.prod(layout.shape) * numpy_dtype(cache_dtype).itemsize), np.uint8
        )
        expected_memory = memory.copy().view(numpy_dtype(cache_dtype)).reshape(layout.shape)
        for index, x, scale in zip((layout.k, layout.v), (expected_rows, rows[2]), scales, strict=True):
            x = x.astype(compute_dtype(dtype))
            write_by_loops(expected_memory[index], stored(x, cache_dtype, scale), slots, layout.axis)
        backends = {"numpy": (None, "array-api"), "torch": (None, "torch"), "jax": (None,)}[lib.name]
        for backend, slot_dtype in zip(
            backends, ("int64" if lib.name != "jax" else "int32", "int32"), strict=False
        ):
            buffer = memory.copy().view(numpy_dtype(cache_dtype)).reshape(layout.shape)
            whole = in_library(lib, buffer)
            caches = whole[layout.k], whole[layout.v]
            q, k, v = (in_library(lib, np.ascontiguousarray(x)) for x in xs)
            y_q, y_k, written = ra.attention_inputs(
                q, k, in_library(lib, pos), LONG, v=v, seq_axis=seq_axis, cache=caches,
                norm=(None, in_library(lib, weight)), slots=in_library(lib, slots.astype(slot_dtype)),
                scales=scales, cache_seq_axis=layout.axis, unique_slots=unique, backend=backend,
            )  # fmt: skip
            call = dtype, seq_axis, backend, slots.tolist()
            assert_bits((y_q, y_k), [rounded(y, dtype) for y in expected], call)
            for cache, index in zip(written, (layout.k, layout.v), strict=True):
                assert array_bytes(cache) == expected_memory[index].tobytes(), call
            if lib.name == "jax":
                assert array_bytes(whole) == memory.tobytes()
            else:
                assert written[0] is caches[0]
                assert written[1] is caches[1]
                assert buffer.tobytes() == expected_memory.tobytes(), call


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


@HAS_CACHES
@pytest.mark.parametrize("dtype", SCALES)
def test_nan_and_infinities_in_quantised_caches(lib, dtype):
    """Infinities are the largest numbers; NaN is NaN, and 0 in int8."""
    v = np.zeros((1, 1, WIDTH), np.float32)
    v[..., :3] = np.nan, np.inf, -np.inf
    cache = np.zeros((2, 1, 1, WIDTH), numpy_dtype(dtype))
    caches = tuple(in_library(lib, part) for part in cache)
    k = normal(lib, 1, 1, WIDTH)
    *_, (_, written) = ra.attention_inputs(
        k, k, 0, LONG, v=in_library(lib, v), cache=caches, slots=lib.asarray(np.zeros(1), "int32")
    )
    first = np.frombuffer(array_bytes(written), numpy_dtype(dtype))[:3].astype(np.float64)
    ends = {"int8": [0, 127, -128], "float8_e4m3fn": [np.nan, 448, -448]}[dtype]
    np.testing.assert_array_equal(first, ends)


# ---- refused calls ----


def arguments(lib):
    """Return the names that texts of refused calls have."""
    q, k = normal(lib, 3, 5, 4), normal(lib, 2, 5, 4, seed=1)
    names = {"q": q, "k": k, "v": normal(lib, 2, 5, 4, seed=2), "w": normal(lib, 4), "np": np, "lib": lib}
    names |= {"kc": normal(lib, 2, 8, 4, seed=3), "vc": normal(lib, 2, 8, 4, seed=4), "ra": ra}
    names |= {"slots": lib.asarray(np.arange(5), "int32"), "rope": ra.RoPE(4), "normal": partial(normal, lib)}

    def inputs(q=q, k=k, pos=0, rope=names["rope"], **options):
        return ra.attention_inputs(q, k, pos, rope, **options)

    def into(cache, slots=names["slots"], **options):
        return inputs(cache=cache if type(cache) is tuple else (cache, None), slots=slots, **options)

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


@refusals("attention inputs")
def test_refused_calls(lib, call, error, words):
    refuses(lib, call, error, words)


@HAS_CACHES
@refusals("attention inputs with caches")
def test_refused_caches(lib, call, error, words):
    refuses(lib, call, error, words)


@WRITES
@refusals("attention inputs that are written")
def test_refused_memory(lib, call, error, words):
    refuses(lib, call, error, words)


@pytest.mark.library("numpy")
@refusals("attention inputs of numpy")
def test_refused_arrays_of_numpy(lib, call, error, words):
    refuses(lib, call, error, words)


@pytest.mark.library("torch")
@refusals("attention inputs of torch")
def test_refused_tensors(lib, call, error, words):
    refuses(lib, call, error, words)


@pytest.mark.library("strict", "dask")
def test_libraries_without_caches(lib):
    words = "cache is given | not written into | NumPy, PyTorch, CuPy and JAX"
    refuses(lib, "into(kc)", ra.ArrayTypeError, words)


# ---- PyTorch ----


@pytest.mark.library("torch")
def test_modes_of_torch_change_no_bits(lib):
    torch, rope = lib.native, ra.RoPE(WIDTH, pairing="half")
    fake = pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode()
    for dtype in lib.dtypes:
        q, weight = normal(lib, 2, 3, 5, WIDTH, dtype=dtype), normal(lib, 3, WIDTH)
        cache, slots = torch.zeros(2, 3, 3, 4, WIDTH, dtype=q.dtype), torch.arange(10).reshape(2, 5)

        def call(q=q, weight=weight, rope=rope, **options):
            return ra.attention_inputs(q, q, range(5), rope, norm=(weight, weight), eps=0.5, **options)

        y, _k = call()
        for mode in (
            torch.inference_mode(),
            *(torch.autocast("cpu", t) for t in (torch.bfloat16, torch.half)),
        ):
            with mode:
                y_q, y_k, written = call(v=q + 0, cache=(cache[0], cache[1]), slots=slots, cache_seq_axis=-2)
                assert torch.equal(y_q, y)
                assert torch.equal(
                    written[0].swapaxes(1, 2).flatten(0, 1)[:10], y_k.swapaxes(1, 2).flatten(0, 1)
                )
        assert torch.equal(torch.func.vmap(lambda q: call(q)[0])(q), y)
        (of_fake, _), (of_meta, _) = (
            call(fake.from_tensor(q), fake.from_tensor(weight)),
            call(q.to("meta"), weight.to("meta")),
        )
        assert of_fake.shape == of_meta.shape == y.shape
        assert of_fake.dtype == of_meta.dtype == y.dtype


# ---- gradients ----

GRADIENT_FIELDS = {"rotary_dim": 8, "rotary_start": 2, "pairing": "half", "attention_factor": 1.25}


def definition(matrices, offset, epsilon):
    """Return the map of q, k and their weights, in plain operations of a library."""

    def make(x, weight):
        scale = (weight + offset)[:, None] if weight.ndim == 2 else weight + offset
        n = x / ((x * x).sum(-1)[..., None] / x.shape[-1] + epsilon) ** 0.5 * scale
        return (matrices @ n[..., None])[..., 0]

    return lambda q, k, q_weight, k_weight: (make(q, q_weight), make(k, k_weight))


def loss(of, cotangents):
    return lambda *args: sum((y * c).sum() for y, c in zip(of(*args), cotangents, strict=True))


def by_grad(native, of, args, tangents, cotangents):
    return native.grad(loss(of, cotangents), (0, 1, 2, 3))(*args)


def by_jvp(native, of, args, tangents, cotangents):
    return native.jvp(of, args, tangents)[1]


def by_vmap(native, of, args, tangents, cotangents):
    stacked = tuple(native.stack([a, b]) for a, b in zip(args, tangents, strict=True))
    return native.vmap(native.grad(loss(of, cotangents), (0, 1, 2, 3)))(*stacked)


def by_second_derivative(native, of, args, tangents, cotangents):
    return native.jvp(native.grad(loss(of, cotangents), (0, 1, 2, 3)), args, tangents)[1]


def by_autograd(native, of, args, tangents, cotangents):
    """Backward twice, without functorch: the kernel serves the first."""
    args = [array.clone().requires_grad_() for array in args]
    first = native.autograd.grad(loss(of, cotangents)(*args), args, create_graph=True)
    return first + native.autograd.grad(
        sum((g * t).sum() for g, t in zip(first, tangents, strict=True)), args
    )


def by_jit(native, of, args, tangents, cotangents):
    return native.jit(native.grad(loss(of, cotangents), (0, 1, 2, 3)))(*args)


class Functions:
    """The transforms of a library, and its function stack."""

    def __init__(self, lib):
        self.stack, self.__dict__["lib"] = lib.stack, lib

    def __getattr__(self, name):
        native = self.lib.native
        return getattr(native.func if self.lib.name == "torch" and name != "autograd" else native, name)


@pytest.mark.library("torch", "jax")
@pytest.mark.parametrize("transform", [by_grad, by_jvp, by_vmap, by_second_derivative, by_autograd, by_jit])
@pytest.mark.parametrize("width", [12, 70])
def test_derivatives_are_those_of_the_definition(lib, transform, width):
    """Of q, k and both weights, in float64; one weight is shared, the other of each head."""
    if (lib.name, transform) in (("torch", by_jit), ("jax", by_autograd)):
        return
    fields, pos, options = {"head_dim": width, **GRADIENT_FIELDS}, [3, -1], {"eps": 0.1, "offset": 1.0}
    with lib.native.enable_x64(True) if lib.name == "jax" else contextlib.nullcontext():
        shapes = (2, 3, 2, width), (2, 1, 2, width), (3, width), (width,)
        args, tangents = (
            tuple(normal(lib, *shape, dtype="float64", seed=seed + i) for i, shape in enumerate(shapes))
            for seed in (0, 4)
        )
        cotangents = tuple(normal(lib, *shape, dtype="float64", seed=9) for shape in shapes[:2])

        def of(q, k, *weights):
            return ra.attention_inputs(q, k, pos, ra.RoPE(**fields), norm=weights, **options)

        exact = definition(lib.asarray(rotation_matrix(pos, **fields), "float64"), 1.0, 0.1)
        results, expected = (transform(Functions(lib), f, args, tangents, cotangents) for f in (of, exact))
        for y, e in zip(results, expected, strict=True):
            y, e = (values(array.detach() if lib.name == "torch" else array) for array in (y, e))
            np.testing.assert_allclose(y, e, rtol=1e-9, atol=1e-12)
