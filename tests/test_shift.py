"""Rows of caches that move in place: each row by the definition in float64, and nothing else changes."""

from functools import partial

import numpy as np
import pytest
from compare import bits, normal
from refusals import refusals, refused

import rope_array as ra
from rope_array._array_api.shift import check_shifts
from rope_array.convert import shift_keys
from rope_array.testing import apply_definition
from rope_array.testing._contract import ROTATED, compute_dtype, eps, ulp

HAS_CACHES = pytest.mark.without("strict", "dask")
D, SLICE = 16, slice(4, 12)
ROPE = ra.RoPE(D, rotary_start=4, rotary_dim=8, pairing="half", out_pairing="interleaved", attention_factor=3)
MROPE = ra.RoPE(D, rotary_start=4, rotary_dim=8, axes=ra.Axes.chunked(2, 1, 1))
SCALES = {"int8": 0.02, "float8_e4m3fn": 0.005}
LAYOUTS = {  # the shape, the axis of slots, and whether pages come first
    "slots, heads": ((40, 3, D), -3, False),
    "slots": ((40, D), -2, False),
    "pages, slots, heads": ((8, 5, 3, D), -3, True),
    "pages, heads, slots": ((8, 3, 5, D), -2, True),
    "pages, slots": ((8, 5, D), -2, True),
}
each_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


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
        # Two more roundings: the product and the quotient of the scale, or the judge's own of float64.
        error = (ROTATED.get(dtype, ROTATED["float32"])[0] + 1.0) * eps(compute_dtype(dtype)) * pair
        limits = {"int8": (-128, 127), "float8_e4m3fn": (-448, 448)}.get(dtype, (-np.inf, np.inf))
        half = 0.5 * (1.0 if dtype == "int8" else ulp(np.abs(exact) + error, dtype))
        assert (np.abs(y - exact.clip(*limits)) <= error + half).all(), (slot, distance)
        row_of(expected, layout, slot)[..., SLICE] = row_of(after, layout, slot)[..., SLICE]
    assert after.tobytes() == expected.tobytes()


def random_pool(rng, shape, dtype):
    """Return memory of random bits but for numbers in the slice, as keys of a pool of keys and values."""
    stored = np.dtype(getattr(pytest.importorskip("ml_dtypes"), dtype, dtype))
    size = int(2 * np.prod(shape)) * stored.itemsize
    memory = np.frombuffer(bytearray(rng.bytes(size)), stored).reshape(shape[0], 2, *shape[1:])
    numbers = rng.standard_normal(shape) * {"int8": 60.0, "float8_e4m3fn": 200.0}.get(dtype, 1.0)
    memory[:, 0, ..., SLICE] = numbers[..., SLICE].clip(-128, 127).astype(stored)
    return memory


def in_library(lib, memory):
    """Return memory of NumPy as an array of a library; it is shared but in JAX."""
    if lib.name == "torch":
        return lib.native.from_numpy(memory.view(np.uint8)).view(getattr(lib.native, memory.dtype.name))
    return lib.native.numpy.asarray(memory) if lib.name == "jax" else memory


def shifted(lib, memory, distance, rope, **options):
    """Shift the keys of a pool of keys and values; return the memory after the call."""
    whole = in_library(lib, memory)
    pool = whole[:, 0]
    moved = shift_keys(pool, distance, rope, **options)
    if lib.name != "jax":
        assert moved is pool
        return memory
    after = memory.copy()
    after[:, 0] = np.asarray(moved)
    return after


def calls(rng, layout, lib, last=()):
    """Yield options, the distance, and the distance of each slot that moves; `last` is of coordinates."""
    shape, axis, has_pages = layout
    slots, size = rng.permutation(40)[:7], shape[axis]

    def distances(*lead):
        return rng.integers(-(2**20), 2**20, (*lead, *last))

    if len(shape) != 3 or not has_pages:
        numbers = np.insert(slots, 3, [-1, -1, -(2**31)])
        each = distances(10)
        moves = {int(s): d for s, d in zip(numbers, each, strict=True) if s >= 0}
        yield {"slots": lib.asarray(numbers, "int32")}, lib.asarray(each, "int32"), moves
        yield {"slots": lib.asarray(numbers, lib.integers[0])}, each.tolist(), moves
        one = distances()
        yield {"slots": numbers.tolist()}, one.tolist(), dict.fromkeys(moves, one)
    if not has_pages:
        return
    pages = np.array([6, -1, 2])
    each, of_rows = distances(3), distances(3, size)
    for forms, d in (((lib.asarray(each, "int32"), each.tolist()), each[:, None].repeat(size, 1)),
                     ((lib.asarray(of_rows, "int32"), of_rows.tolist()), of_rows)):  # fmt: skip
        moves = {int(p * size + row): d[i, row] for i, p in enumerate(pages) for row in range(size) if p >= 0}
        yield {"pages": lib.asarray(pages, "int32")}, forms[0], moves
        yield {"pages": pages.tolist()}, forms[1], moves


@HAS_CACHES
@pytest.mark.neutral
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "float8_e4m3fn"])
@each_layout
def test_rows_of_slots_and_pages(lib, layout, dtype):
    if dtype == "float64" and dtype not in lib.dtypes:
        return
    rng, scale = np.random.default_rng(0), SCALES.get(dtype, 1.0)
    for options, distance, moves in calls(rng, layout, lib):
        memory = random_pool(rng, layout[0], dtype)
        before = memory.copy()
        after = shifted(lib, memory, distance, ROPE, seq_axis=layout[1], scales=scale, **options)
        assert after[:, 1:].tobytes() == before[:, 1:].tobytes()
        assert_moved(before[:, 0], after[:, 0], layout, moves, dtype)


@HAS_CACHES
def test_distances_of_several_coordinates(lib):
    layout, rng, dtype = LAYOUTS["pages, slots, heads"], np.random.default_rng(1), "float32"
    for options, distance, moves in calls(rng, layout, lib, last=(3,)):
        memory = random_pool(rng, layout[0], dtype)
        before = memory.copy()
        after = shifted(lib, memory, distance, MROPE, seq_axis=-3, **options)
        assert_moved(before[:, 0], after[:, 0], layout, moves, dtype, axes={"coordinates": (0, 0, 1, 2)})


@HAS_CACHES
def test_groups_of_layers_share_tables_and_layers_without_rotation_stay(lib):
    """The bits are those of a call for each array; of latent rows (MLA) the last features move."""
    rng, latent = np.random.default_rng(2), ra.RoPE(48, rotary_start=32, rotary_dim=16)
    ropes = (ROPE, None, ra.RoPE(D, base=500.0), ROPE, latent)
    layers = [random_pool(rng, (8, 5, 3, D), "bfloat16")[:, 0].copy() for _ in range(3)]
    layers += [random_pool(rng, (8, 5, 3, D), "int8")[:, 0].copy(), normal("numpy", 8, 5, 1, 48)]
    options = {"seq_axis": -3, "pages": [7, 1]}
    arrays = tuple(in_library(lib, layer.copy()) for layer in layers)
    scales = (1.0, 1.0, 1.0, 0.02, 1.0)
    moved = shift_keys(arrays, [5, -9], ropes, scales=scales, **options)
    for array, layer, rope, scale in zip(moved, layers, ropes, scales, strict=True):
        alone = in_library(lib, layer.copy())
        if rope is not None:
            alone = shift_keys(alone, [5, -9], rope, scales=scale, **options)
        assert as_bytes(array) == as_bytes(alone)
        assert (as_bytes(array) == layer.tobytes()) == (rope is None)
    assert as_bytes(moved[4][..., :32]) == layers[4][..., :32].tobytes()
    plans = [rope and rope._plan for rope in ropes]
    lib_of_call = ra._registry.library_of(arrays[0])
    shifts = check_shifts(lib_of_call, arrays, 1, plans, scales, -3, None, [1])
    assert [members for members, _ in shifts] == [[0, 3], [2], [4]]
    whole = shift_keys(tuple(arrays[i] for i in (0, 1, 2)), 4, ropes[:3], seq_axis=-3)  # all rows, new arrays
    assert as_bytes(whole[0]) == as_bytes(shift_keys(arrays[0], 4, ROPE, seq_axis=-3))
    assert as_bytes(whole[1]) == as_bytes(arrays[1])
    assert not lib.shares_memory(whole[1], arrays[1])


def as_bytes(array):
    """Return the bits of an array of any dtype."""
    if type(array).__module__ == "torch":
        array = array.contiguous().view(__import__("torch").uint8).numpy()
    return np.ascontiguousarray(array).tobytes()


@HAS_CACHES
def test_a_scale_of_a_head_cancels(lib):
    """Keys of int8 and float8 in a pool with any scale per row have the bits of a call without a scale."""
    for dtype in SCALES:
        memory = random_pool(np.random.default_rng(3), (8, 5, 3, D), dtype)
        once, scaled = (
            shifted(lib, memory.copy(), -7, ROPE, seq_axis=-3, pages=[1, 2, 3], scales=scale)[:, 0]
            for scale in (1.0, 2.0**-7)
        )
        assert once.tobytes() == scaled.tobytes()


@pytest.mark.without("strict", "dask", "jax")
def test_all_rows_in_place(lib):
    keys = normal(lib, 2, 3, 5, D), normal(lib, 3, 5, D, seed=1)
    expected = shift_keys(keys, range(5), ROPE)
    assert shift_keys(keys, range(5), ROPE, out=keys) is keys
    assert bits(keys) == bits(expected)


@pytest.mark.library("jax", "torch")
def test_a_row_that_is_given_twice_on_a_device_moves_once(lib):
    """By its last distance, in a compiled program too."""
    slots, distances = (lib.asarray(np.array(n), "int32") for n in ([3, 9, 3, -1, 9], [1, 2, 30, 4, 50]))
    pool = normal(lib, 8, 5, 3, D)
    expected = shift_keys(pool + 0, [30, 50], ROPE, seq_axis=-3, slots=[3, 9])
    call = lib.traced(lambda pool, slots, d: shift_keys(pool, d, ROPE, seq_axis=-3, slots=slots))
    np.testing.assert_allclose(*map(lib.to_numpy, (call(pool + 0, slots, distances), expected)), rtol=1e-6)
    if lib.name == "jax":
        assert bits(shift_keys(pool, distances, ROPE, seq_axis=-3, slots=slots)) == bits(expected)


@pytest.mark.library("torch")
def test_modes_of_torch_change_no_bits(lib):
    torch = lib.native
    ropes, slots = (ROPE, None, ra.RoPE(D)), torch.tensor([12, -1, 39])

    def call(*pools):
        return shift_keys(pools, -5, ropes, seq_axis=-3, slots=slots)

    def pools(dtype=torch.float32):
        layers = (normal(lib, 8, 5, 3, D, seed=seed) for seed in range(3))
        return [layer.to(dtype) for layer in layers]

    modes = torch.inference_mode, torch.no_grad, partial(torch.autocast, "cpu", torch.bfloat16)
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
        expected = call(*pools(dtype))
        for mode in modes:
            with mode():
                assert all(map(lib_equal, call(*pools(dtype)), expected))
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        given = pools(dtype)
        assert all(map(lib_equal, compiled(*given), expected))
        assert all(map(lib_equal, given, expected))  # in place
    module = torch.compile(lambda x: shift_keys(x, 2, (ROPE,), pages=[1, 0], seq_axis=-3), fullgraph=True)
    (x,) = pools()[:1]
    assert lib_equal(module(x + 0), shift_keys(x, 2, ROPE, pages=[1, 0], seq_axis=-3))


def lib_equal(a, b):
    return as_bytes(a) == as_bytes(b)


@HAS_CACHES
def test_nothing_to_move(lib):
    for shape, slots in (((8, 5, 3, D), []), ((8, 0, 3, D), [-1, -2]), ((0, 5, 3, D), [-1])):
        pool = normal(lib, *shape)
        assert bits(shift_keys(pool, 3, ROPE, seq_axis=-3, slots=slots)) == bits(pool)
        assert bits(shift_keys(pool, 3, ROPE, seq_axis=-3, pages=slots)) == bits(pool)


# ---- refused calls ----


def refused_calls(section, *marks):
    """Return a test of the calls of a section: none writes anything."""

    @refusals(section)
    def test(lib, call, error, words):
        pool, other = normal(lib, 8, 5, 3, D), normal(lib, 8, 5, 3, D, seed=1)
        names = {"pool": pool, "other": other, "ROPE": ROPE, "MROPE": MROPE, "ra": ra, "np": np, "lib": lib}
        names["S"] = lib.asarray(np.array([3, 39, -1]), "int32")

        def shift(keys=pool, delta=1, rope=ROPE, **options):
            return shift_keys(keys, delta, rope, **{"seq_axis": -3, **options})

        names |= {"shift": shift, "shift_keys": shift_keys}
        before = bits((pool, other))
        refused(error, words, lambda: eval(call, names))
        assert bits((pool, other)) == before

    for mark in marks:
        test = mark(test)
    return test


test_refused_calls = refused_calls("shift of rows", HAS_CACHES)
test_refused_memory = refused_calls("shift of rows in place", pytest.mark.without("strict", "dask", "jax"))
test_refused_tensors = refused_calls("shift of rows of torch", pytest.mark.library("torch"))
test_libraries_without_caches = refused_calls(
    "no shift of rows", pytest.mark.without("numpy", "torch", "jax")
)
