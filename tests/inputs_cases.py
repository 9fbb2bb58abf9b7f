"""Random calls of `attention_inputs` for the kernels of GPUs, and their judge: bits of NumPy's operations.

A call's arrays are views of memory in NumPy. Another library reads and writes a copy of this memory, all of
which is compared.
"""

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import rope_array as ra

DTYPES = {name: np.dtype(name) for name in ("float32", "float16", "float64", "int8")}
DTYPES |= {name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn")}


class Array(NamedTuple):
    """A view of memory: the axes of the view in the order of memory, and where it begins and ends."""

    memory: np.ndarray
    index: tuple
    order: tuple

    def view(self):
        return self.memory[self.index].transpose(self.order)

    def copy(self):
        return self._replace(memory=self.memory.copy())


def strided(rng, values, plain=False):
    """Return an array with gaps between its elements and its axes in any order, but for the features."""
    ndim = values.ndim
    order = list(range(ndim)) if plain else [*map(int, rng.permutation(ndim - 1)), ndim - 1]
    gap = 1 if plain else int(rng.choice([1, 1, 2]))
    skip = 0 if plain else int(rng.integers(0, 3))
    sizes = [values.shape[a] + (0 if plain else 1) for a in order]
    sizes[-1] = values.shape[-1] * gap + 2 * skip
    memory = np.full(sizes, 7).astype(values.dtype)
    index = (
        *(slice(0, values.shape[a]) for a in order[:-1]),
        slice(skip, skip + gap * values.shape[-1], gap),
    )
    array = Array(memory, index, tuple(map(int, np.argsort(order))))
    array.view()[...] = values
    return array


class Case(NamedTuple):
    """A call: its arrays by their names, and its other arguments."""

    arrays: dict[str, Array]
    rope: Any
    options: dict
    in_place: bool
    by_tables: bool

    def run(self, backend, convert=lambda view: view):
        """Return all memory after the call, and the results, of a copy."""
        arrays = {name: array.copy() for name, array in self.arrays.items()}
        given = {name: convert(array.view()) for name, array in arrays.items()}
        options = {**self.options, "backend": backend}
        q, k, pos = given["q"], given.get("k"), given.get("pos", self.options.get("pos"))
        options.pop("pos", None)
        if "eps" in options:
            options["norm"] = (given.get("q_weight"), given.get("k_weight"))
        if "slots" in given:
            options |= {"cache": (given["k_cache"], given.get("v_cache")), "slots": given["slots"]}
            options["v"] = given.get("v")
        if self.in_place:
            options["out"] = (q, k)
        if self.by_tables:
            rotation = self.rope.rotation(pos, like=q, backend=backend)
            results = ra.attention_inputs(q, k, rotation, **options)
        else:
            results = ra.attention_inputs(q, k, pos, self.rope, **options)
        return {name: array.memory for name, array in arrays.items()}, results[:2]


def random_case(seed, dtypes=("float32", "float16", "bfloat16", "float64"), **fixed):
    """Return a call; `fixed` has choices that are not left to chance."""
    rng = np.random.default_rng(seed)

    def choose(name, *values):
        chosen = values[int(rng.integers(len(values)))]
        return fixed.get(name, chosen)

    head_dim = choose("head_dim", 2, 6, 16, 20, 64, 72, 130, 192)
    rotary_dim = 2 * int(rng.integers(0, head_dim // 2 + 1)) if choose("slice", True, False) else head_dim
    pairings = {name: choose(name, "half", "interleaved") for name in ("pairing", "out_pairing")}
    start = int(rng.integers(0, head_dim - rotary_dim + 1))
    rope = ra.RoPE(head_dim, rotary_dim=rotary_dim, rotary_start=start, **pairings)
    dtype = DTYPES[choose("dtype", *dtypes)]
    heads = choose("heads", (4, 2), (1, 1), (3, 5), (40, 1))
    batch, tokens = choose("tokens", (2, 5), (1, 1), (3, 4), (1, 17))
    form = choose("form", "tokens", "tokens first", "heads first", "slots of all sequences")
    in_place, plain = choose("in_place", True, False), choose("plain", True, False)

    def values(count, width):
        shape = {"tokens": (tokens, count, width), "heads first": (batch, count, tokens, width)}
        x = rng.standard_normal(shape.get(form, (batch, tokens, count, width))) * rng.choice([1e-3, 1, 300])
        if rng.integers(2):
            x[rng.random(x.shape) < 0.02] = rng.choice([np.nan, np.inf, -0.0])
        return strided(rng, x.astype(dtype), plain)

    arrays = {"q": values(heads[0], head_dim)}
    seq_axis = -2 if form == "heads first" else -3
    options = {"seq_axis": seq_axis}
    shape = (tokens,) if form == "tokens" else choose("positions", (tokens,), (batch, tokens), (batch, 1))
    pos_kind = choose("pos_kind", "int64", "int32", "float32", "range", "int")
    if pos_kind in ("range", "int"):
        options["pos"] = range(3, 3 + 2 * tokens, 2) if pos_kind == "range" else 77
    else:
        arrays["pos"] = Array(
            rng.integers(-5000, 90_000, shape).astype(pos_kind), (...,), tuple(range(len(shape)))
        )
    if choose("has_k", True, True, True, False):
        arrays["k"] = values(heads[1], head_dim)
    if choose("norm", True, True, False):
        options |= {
            "eps": float(rng.choice([1e-6, 1e-5, 0.3])),
            "offset": float(rng.choice([0.0, 1.0, -0.7])),
        }
        options["rounding"] = choose("rounding", "none", "norm", "steps")
        for name, count in (("q_weight", heads[0]), ("k_weight", heads[1])):
            if kind := choose("weights", 0, 1, 1, 2):
                weight = rng.standard_normal((count, head_dim)[-kind:])
                dtype_name = choose("weight_dtype", dtype.name, dtype.name, "float32")
                arrays[name] = strided(rng, weight.astype(DTYPES[dtype_name]), plain)
    if "k" in arrays and choose("cache", True, True, False):
        _add_cache(rng, choose, arrays, options, values, form, (batch, tokens), heads[1], head_dim, plain)
    return Case(arrays, rope, options, in_place, choose("by_tables", True, False, False))


def _add_cache(rng, choose, arrays, options, values, form, sizes, heads, head_dim, plain):
    """Add v, slots and caches to the arrays of a call."""
    dtype = arrays["q"].memory.dtype.name
    names = (
        ("float64",) if dtype == "float64" else ("float32", "bfloat16", "float16", "int8", "float8_e4m3fn")
    )
    if choose("same_dtype", True, False):
        names = (dtype,)
    names, scales = [choose("cache_dtype", *names) for _ in "kv"], []
    for name in names:
        is_quantised = name in ("int8", "float8_e4m3fn")
        scales.append(float(rng.choice([1.0, 0.037, 2.5])) if is_quantised else 1.0)
    shape = sizes[1:] if form in ("tokens", "slots of all sequences") else sizes
    count, page = int(np.prod(shape)), choose("page", 0, 1, 3, 16)
    num_slots = (2 * count + 16) // max(page, 1) * max(page, 1)
    unique = choose("unique", False, False, True)
    slots = rng.permutation(num_slots)[:count] if unique else rng.integers(0, max(2, count), count)
    slots = np.where(rng.random(count) < 0.2, -1, slots)
    dtype = choose("slots_dtype", "int32", "int64")
    arrays["slots"] = Array(slots.reshape(shape).astype(dtype), (...,), tuple(range(len(shape))))
    free, pages = [heads], [num_slots // page] if page else []
    if form == "slots of all sequences":
        free = [sizes[0], heads]
    at = choose("slot_axis", *range(len(free) + 1))
    width = choose("v_dim", head_dim, 5, 16)
    arrays["v"] = values(heads, width)
    for name, of_array, last in zip(("k_cache", "v_cache"), names, (head_dim, width), strict=True):
        cache_shape = [*pages, *free[:at], page or num_slots, *free[at:], last]
        arrays[name] = strided(rng, np.full(cache_shape, 3).astype(DTYPES[of_array]), plain)
    options |= {"scales": tuple(scales), "cache_seq_axis": at - len(free) - 2, "unique_slots": unique}
    if choose("has_v", True, True, False):
        return
    for name in ("v", "v_cache"):
        del arrays[name]
    options["scales"] = (scales[0], 1.0)


def assert_same_memory(case, backend, convert, to_numpy):
    """Assert that a backend leaves the memory, and returns the results, that NumPy's operations do."""
    with np.errstate(all="ignore"):
        expected, expected_results = case.run("array-api")
        memory, results = case.run(backend, convert)
    for name, wanted in expected.items():
        _assert_same_bits(memory[name], wanted, name)
    for name, y, wanted in zip("qk", results, expected_results, strict=True):
        if wanted is not None:
            _assert_same_bits(to_numpy(y), wanted, f"the result of {name}")


def _assert_same_bits(y, wanted, name):
    """Assert equal bits; a NaN equals any NaN."""
    assert (y.dtype, y.shape) == (wanted.dtype, wanted.shape)
    words = f"u{y.dtype.itemsize}"
    y, wanted = np.ascontiguousarray(y), np.ascontiguousarray(wanted)
    wrong = (y.view(words) != wanted.view(words)) & ~((y != y) & (wanted != wanted))
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        text = f"{wrong.sum()} of {wrong.size} differ, the first at {at}: {y[at]!r}, not {wanted[at]!r}"
        raise AssertionError(f"{name}: {text}")
