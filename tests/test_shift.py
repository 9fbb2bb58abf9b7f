"""Rows of caches that move in place: each row by the definition in float64, and nothing else changes."""

import contextlib

import numpy as np
import pytest
from compare import bits, normal
from refusals import refusals, refused

import rope_array as ra
from rope_array import _registry
from rope_array.convert import shift_keys
from rope_array.testing import apply_definition
from rope_array.testing._contract import ROTATED, compute_dtype, eps, ulp

HAS_CACHES = pytest.mark.without("strict", "dask")
WRITES = pytest.mark.without("strict", "dask", "jax")
D, SLICE, AXES = 16, slice(4, 12), ra.Axes.chunked(2, 1, 1)
WRITTEN = {"pairing": "half", "out_pairing": "interleaved", "attention_factor": 3, "max_position": 3}
ROPE = ra.RoPE(D, rotary_start=4, rotary_dim=8, **WRITTEN)  # a distance may be above max_position
MROPE = ra.RoPE(D, rotary_start=4, rotary_dim=8, axes=AXES)
LIMITS = {"int8": (-128, 127), "float8_e4m3fn": (-448, 448)}
LAYOUTS = {  # the shape, the axis of slots, and whether pages come first
    "slots, heads": ((40, 3, D), -3, False),
    "slots": ((40, D), -2, False),
    "pages, slots, heads": ((8, 5, 3, D), -3, True),
    "pages, heads, slots": ((8, 3, 5, D), -2, True),
    "pages, slots": ((8, 5, D), -2, True),
}


def row_of(pool, layout, slot):
    """Return a view of the row of a slot, with heads or without."""
    shape, axis, has_pages = layout
    page, row = divmod(slot, shape[axis]) if has_pages else (..., slot)
    return np.moveaxis(pool[page], axis, 0)[row]


def assert_moved(before, after, layout, distances, dtype, **fields):
    """Assert that the slots of a dict moved by their distances, and that all else has its bits."""
    expected = before.copy()
    for slot, distance in distances.items():
        x, y = (row_of(pool, layout, slot)[..., SLICE].astype(np.float64) for pool in (before, after))
        exact = apply_definition(x, distance, pairing="interleaved", **fields)
        pair = np.hypot(x[..., ::2], x[..., 1::2]).repeat(2, axis=-1)
        # The roundings of float64 are the judge's too.
        error = (
            (ROTATED.get(dtype, ROTATED["float32"])[0] + (dtype == "float64"))
            * eps(compute_dtype(dtype))
            * pair
        )
        half = 0.5 * (1.0 if dtype == "int8" else ulp(np.abs(exact) + error, dtype))
        wrong = np.abs(y - exact.clip(*LIMITS.get(dtype, (-np.inf, np.inf)))) > error + half
        assert not wrong.any(), (slot, distance)
        row_of(expected, layout, slot)[..., SLICE] = row_of(after, layout, slot)[..., SLICE]
    assert after.tobytes() == expected.tobytes()


def random_pool(rng, shape, dtype):
    """Return keys and values in one memory, of random bits but for numbers in the slice of the keys."""
    stored = np.dtype(getattr(pytest.importorskip("ml_dtypes"), dtype, dtype))
    memory = np.frombuffer(bytearray(rng.bytes(int(2 * np.prod(shape)) * stored.itemsize)), stored)
    memory = memory.reshape(shape[0], 2, *shape[1:])
    numbers = rng.standard_normal(memory[:, 0, ..., SLICE].shape) * (60.0 if dtype in LIMITS else 1.0)
    memory[:, 0, ..., SLICE] = numbers.clip(-128, 127).astype(stored)
    return memory


def in_library(lib, memory):
    """Return memory of NumPy as an array of a library; it is shared but in JAX."""
    if lib.name == "torch":
        return lib.native.from_numpy(memory.view(np.uint8)).view(getattr(lib.native, memory.dtype.name))
    return lib.native.numpy.asarray(memory) if lib.name == "jax" else memory


def as_bytes(array):
    if type(array).__module__ == "torch":
        array = array.contiguous().view(__import__("torch").uint8).numpy()
    return np.ascontiguousarray(array).tobytes()


def calls(rng, layout, lib, last=()):
    """Yield options, the distance, and the distance of each slot that moves; `last` is of coordinates."""
    shape, axis, has_pages = layout
    distances = lambda *lead: rng.integers(-(2**20), 2**20, (*lead, *last))  # noqa: E731
    if len(shape) != 3 or not has_pages:
        numbers, each, one = np.insert(rng.permutation(40)[:7], 3, [-1, -1, -9]), distances(10), distances()
        moves = {int(s): d for s, d in zip(numbers, each, strict=True) if s >= 0}
        yield {"slots": lib.asarray(numbers, "int32")}, lib.asarray(each, "int32"), moves
        yield {"slots": lib.asarray(numbers, lib.integers[0])}, each.tolist(), moves
        yield {"slots": numbers.tolist()}, one.tolist(), dict.fromkeys(moves, one)
    if has_pages:
        each, of_rows, size = distances(3), distances(3, shape[axis]), shape[axis]
        for d, rows in ((each, each[:, None].repeat(size, 1)), (of_rows, of_rows)):
            moves = {page * size + row: rows[i, row] for i, page in ((0, 6), (2, 2)) for row in range(size)}
            yield {"pages": lib.asarray(np.array([6, -1, 2]), "int32")}, lib.asarray(d, "int32"), moves
            yield {"pages": [6, -1, 2]}, d.tolist(), moves


def shifted(lib, memory, *call, **options):
    """Shift the keys of keys and values in one memory; return the memory after that."""
    pool = in_library(lib, memory)[:, 0]
    moved = shift_keys(pool, *call, **options)
    if lib.name == "jax":
        memory[:, 0] = np.asarray(moved)
    assert lib.name == "jax" or moved is pool
    return memory


@HAS_CACHES
@pytest.mark.neutral
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", *LIMITS])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("rope", [ROPE, MROPE], ids=["numbers", "coordinates"])
def test_rows_of_slots_and_pages(lib, rope, layout, dtype, monkeypatch):
    """By a backend's own shift, and by array operations, with the same bits."""
    if dtype == "float64" and dtype not in lib.dtypes:
        return
    rng, fields = np.random.default_rng(0), {"axes": {"coordinates": (0, 0, 1, 2)}} if rope is MROPE else {}
    for options, distance, moves in calls(rng, layout, lib, (3,) if fields else ()):
        before = random_pool(rng, layout[0], dtype)
        options |= {"seq_axis": layout[1]}
        after = shifted(lib, before.copy(), distance, rope, **options)
        assert_moved(before[:, 0], after[:, 0], layout, moves, dtype, **fields)
        assert after[:, 1:].tobytes() == before[:, 1:].tobytes()
        if lib.name != "jax":
            with monkeypatch.context() as patch:
                patch.setattr(_registry, "choose", lambda backends, *call: backends.in_order[-1])
                backends = _registry.backends_of(type(in_library(lib, before)))
                patch.delattr(backends.in_order[0], "try_fast_shift", raising=False)
                again = shifted(lib, before.copy(), distance, rope, **options)
            assert again.tobytes() == after.tobytes()


@HAS_CACHES
def test_groups_of_layers(lib):
    """Each array has the bits of a call of its own; layers of None stay, as latent features of MLA do."""
    rng, latent = np.random.default_rng(2), ra.RoPE(48, rotary_start=32, rotary_dim=16)
    ropes = (ROPE, None, ra.RoPE(D, base=500.0), ROPE, latent)
    layers = [random_pool(rng, (8, 5, 3, D), "bfloat16")[:, 0].copy() for _ in range(3)]
    layers += [random_pool(rng, (8, 5, 3, D), "int8")[:, 0].copy(), normal("numpy", 8, 5, 1, 48)]
    options, arrays = {"seq_axis": -3, "pages": [7, 1]}, [in_library(lib, layer.copy()) for layer in layers]
    moved = shift_keys(tuple(arrays), [5, -9], ropes, **options)
    for array, layer, rope in zip(moved, layers, ropes, strict=True):
        alone = in_library(lib, layer.copy())
        alone = alone if rope is None else shift_keys(alone, [5, -9], rope, **options)
        assert as_bytes(array) == as_bytes(alone)
        assert (as_bytes(array) == layer.tobytes()) == (rope is None)
    assert as_bytes(moved[4][..., :32]) == layers[4][..., :32].tobytes()
    whole = shift_keys(tuple(arrays[:3]), 4, ropes[:3], seq_axis=-3)  # all rows, as new arrays
    for array, rope, new in zip(arrays, ropes, whole, strict=False):
        assert as_bytes(new) == as_bytes(shift_keys(array, 4, rope, seq_axis=-3) if rope else array)
        assert not lib.shares_memory(new, array)


@WRITES
def test_all_rows_in_place(lib):
    keys = normal(lib, 2, 3, 5, D), normal(lib, 3, 5, D, seed=1)
    expected = shift_keys(keys, range(5), ROPE)
    assert shift_keys(keys, range(5), ROPE, out=keys) is keys
    assert bits(keys) == bits(expected)


@HAS_CACHES
def test_one_distance_with_coordinates_for_as_many_slots(lib):
    pools, slots = [normal(lib, 8, 5, 3, D) for _ in range(2)], [3, 9, 38]
    one, each = (
        shift_keys(pool, delta, MROPE, seq_axis=-3, slots=slots)
        for pool, delta in zip(pools, ([[5, -2, 7]], [[5, -2, 7]] * 3), strict=True)
    )
    assert bits(one) == bits(each)


@HAS_CACHES
def test_nothing_to_move(lib):
    for shape, none in (((8, 5, 3, D), []), ((8, 0, 3, D), [-1, -2]), ((0, 5, 3, D), [-1])):
        for rows in ("slots", "pages"):
            pool = normal(lib, *shape)
            assert bits(shift_keys(pool + 0, 3, ROPE, seq_axis=-3, **{rows: none})) == bits(pool)


@pytest.mark.library("jax", "torch")
def test_a_slot_that_is_given_twice_on_a_device_moves_once(lib):
    """By its last distance. Slots of a compiled program are on a device."""
    slots, distances = (lib.asarray(np.array(n), "int32") for n in ([3, 9, 3, -1, 9], [1, 2, 30, 4, 50]))
    pool = normal(lib, 8, 5, 3, D)
    call = lib.traced(lambda pool, slots, d: shift_keys(pool, d, ROPE, seq_axis=-3, slots=slots))
    expected = lib.to_numpy(shift_keys(pool + 0, [30, 50], ROPE, seq_axis=-3, slots=[3, 9]))
    np.testing.assert_allclose(lib.to_numpy(call(pool + 0, slots, distances)), expected, atol=1e-6)


@pytest.mark.library("torch")
def test_modes_of_torch_change_no_bits(lib, monkeypatch):
    torch, ropes = lib.native, (ROPE, None, ra.RoPE(D))
    call = lambda *pools: shift_keys(pools, -5, ropes, seq_axis=-3, pages=[7, 2])  # noqa: E731
    compiled = torch.compile(call, fullgraph=True, backend="eager")

    def in_place(dtype, call=call):
        pools = [normal(lib, 8, 5, 3, D, seed=seed).to(dtype) for seed in range(3)]
        call(*pools)
        return [*map(as_bytes, pools)]

    for dtype in (torch.float32, torch.float8_e4m3fn):
        expected = in_place(dtype, compiled)
        for mode in (contextlib.nullcontext(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
            with mode, monkeypatch.context() as patch:
                assert in_place(dtype) == expected
                patch.setattr(_registry, "choose", lambda backends, *call: backends.in_order[-1])
                assert in_place(dtype) == expected


# ---- refused calls ----


def refused_calls(section, mark):
    """Return a test of the calls of a section: none writes anything."""

    @mark
    @refusals(section)
    def test(lib, call, error, words):
        pool, other = normal(lib, 8, 5, 3, D), normal(lib, 8, 5, 3, D, seed=1)
        names = {"pool": pool, "other": other, "ROPE": ROPE, "MROPE": MROPE, "ra": ra, "np": np, "lib": lib}
        names["S"] = lib.asarray(np.array([3, 39, -1]), "int32")

        def shift(keys=pool, delta=1, rope=ROPE, **options):
            return shift_keys(keys, delta, rope, **{"seq_axis": -3, **options})

        with contextlib.suppress(ra.ArrayTypeError):  # so that the C++ entry knows the rope
            shift(delta=0, slots=names["S"][2:])
        before = bits((pool, other))
        refused(error, words, lambda: eval(call, names | {"shift": shift}))
        assert bits((pool, other)) == before

    return test


test_refused_calls = refused_calls("shift of rows", HAS_CACHES)
test_refused_memory = refused_calls("shift of rows in place", WRITES)
test_refused_tensors = refused_calls("shift of rows of torch", pytest.mark.library("torch"))
test_other_libraries = refused_calls("no shift of rows", pytest.mark.without("numpy", "torch", "jax"))
