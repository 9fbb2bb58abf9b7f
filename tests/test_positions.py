"""Builders of positions against plain loops, on every library, traced and lazy; and their errors."""

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from compare import words

import rope_array as ra
from rope_array import positions

pytestmark = pytest.mark.neutral

# ---- arrays of the library under test ----


@pytest.fixture
def like(lib):
    """An array for `like=`; the library runs in its strictest setting."""
    with lib.running():
        yield lib.asarray(np.ones(2, np.float32))


def integers(lib, values, dtype=None):
    """Make an array of the library; int64 becomes int32 in JAX."""
    array = np.asarray(values)
    if dtype or array.dtype == np.int64:
        array = array.astype(dtype or (np.int32 if lib.name == "jax" else np.int64))
    return lib.asarray(array)


def default(lib):
    return "int32" if lib.name == "jax" else "int64"


def equals(lib, result, want, dtype=None, shape=None):
    """Assert the library, dtype, shape and numbers of a result."""
    assert lib.owns(result)
    assert lib.dtype_of(result) == (dtype or default(lib))
    want = np.asarray(want)
    assert tuple(result.shape) == (want.shape if shape is None else shape)
    assert lib.to_numpy(result).tolist() == want.reshape(tuple(result.shape)).tolist()


# ---- offset ----


@pytest.mark.parametrize("length", [0, 1, 4])
@pytest.mark.parametrize("offsets", [0, 7, -3, [5], [0, 10, -2], [[1, 2], [3, 4]], []], ids=str)
def test_offset(lib, like, length, offsets):
    shape = (*np.shape(offsets), length)
    want = [start + k for start in np.ravel(offsets).tolist() for k in range(length)]
    equals(lib, positions.offset(length, offsets, like=like), want, shape=shape)
    if np.size(offsets):
        equals(lib, positions.offset(length, integers(lib, offsets)), want, shape=shape)


def test_offset_without_offsets_is_arange(lib, like):
    equals(lib, positions.offset(3, like=like), [0, 1, 2])


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32"])
def test_narrow_integers_are_widened_first(lib, like, dtype):
    """100 + 100 does not fit int8, nor 200 + 100 uint8."""
    start = 100 if dtype == "int8" else 200
    equals(lib, positions.offset(3, integers(lib, [start], dtype)), [[start, start + 1, start + 2]])
    long = positions.offset(101, integers(lib, [start], dtype))
    assert lib.to_numpy(long)[0, -1] == start + 100


def test_values_on_the_host_move_to_the_device_of_like(lib, like):
    for offsets in ([3, 5], (3, 5), range(3, 6, 2), np.array([3, 5]), [np.int8(3), np.uint64(5)]):
        equals(lib, positions.offset(1, offsets, like=like), [[3], [5]])
    for one in (3, np.int64(3), np.array(3)):
        equals(lib, positions.offset(np.int64(2), one, like=like), [3, 4])


def test_numpy_is_the_default_library():
    mask = positions.from_mask([1, 1])
    for made in (positions.offset(2), positions.packed([0, 2]), positions.grid(2), mask):
        assert type(made) is np.ndarray
        assert made.dtype == np.int64


def test_dtypes_asked_for(lib, like):
    for build in (
        lambda **k: positions.offset(2, 1, **k),
        lambda **k: positions.packed([0, 2], **k),
        lambda **k: positions.from_mask([1, 1], **k),
        lambda **k: positions.context_parallel(4, 1, 2, **k),
        lambda **k: positions.grid(2, 2, **k),
        lambda **k: positions.video_grid(1, 1, 1, **k),
        lambda **k: positions.mrope([0, 0], **k)[0],
        lambda **k: positions.mrope([[0, 0]], **k)[1],
    ):
        assert lib.dtype_of(build(like=like)) == default(lib)
        assert lib.dtype_of(build(like=like, dtype="int32")) == "int32"
        assert lib.dtype_of(build(like=like, dtype=lib.xp.int32)) == "int32"
        with pytest.raises(ra.ArrayTypeError, match="dtype is 'float16'"):
            build(like=like, dtype="float16")
    for build in (positions.grid, positions.normalized_grid):
        assert lib.dtype_of(build(2, like=like, dtype="float32")) == "float32"
        with pytest.raises(ra.ArrayTypeError, match="dtype is 'bfloat16'"):
            build(2, like=like, dtype="bfloat16")
    if lib.name == "jax":
        with pytest.raises(ra.ArrayTypeError, match="jax_enable_x64"):
            positions.offset(2, like=like, dtype="int64")
        with pytest.raises(ra.ArrayTypeError, match="jax_enable_x64"):
            positions.normalized_grid(2, like=like, dtype="float64")
    else:
        assert lib.dtype_of(positions.normalized_grid(2, like=like, dtype="float64")) == "float64"


@pytest.mark.library("jax")
def test_offset_where_jax_promotes_no_ranks():
    import jax

    for offsets in (7, [0, 10, -2], [[1, 2], [3, 4]]):
        with jax.numpy_rank_promotion("raise"):
            result = positions.offset(4, jax.numpy.asarray(offsets))
        assert result.shape == (*np.shape(offsets), 4)
        assert np.ravel(result).tolist() == [start + k for start in np.ravel(offsets) for k in range(4)]


@pytest.mark.library("jax")
def test_jax_with_x64_has_int64():
    import jax
    import jax.numpy as jnp

    with jax.enable_x64(True):
        assert positions.offset(2, jnp.asarray([1], jnp.int32)).dtype == jnp.int64
        assert positions.normalized_grid(2, like=jnp.ones(1), dtype="float64").dtype == jnp.float64


# ---- packed ----


def loop_packed(lengths, total, offsets, pad):
    starts = offsets if isinstance(offsets, list) else [offsets] * len(lengths)
    made = [start + k for n, start in zip(lengths, starts, strict=True) for k in range(n)]
    return made + [pad] * (total - len(made))


PACKS = [([3, 2], 0), ([1], 0), ([], 4), ([], 0), ([0], 2), ([0, 0], 0), ([0, 3, 0, 0, 2, 0], 3)]
PACKS += [([5, 1, 1], 1)]


@pytest.mark.parametrize(("lengths", "padding"), PACKS, ids=str)
@pytest.mark.parametrize("offsets", [None, 5, "each"])
def test_packed(lib, like, lengths, padding, offsets):
    cu = [0, *itertools.accumulate(lengths)]
    total = sum(lengths) + padding
    each = [10 * i + 1 for i in range(len(lengths))] if offsets == "each" else offsets
    want = loop_packed(lengths, total, each or 0 if each is None else each, -1)
    made = positions.packed(cu, total, offsets=each, pad=-1, like=like)
    equals(lib, made, want, shape=(total,))
    own = integers(lib, each) if isinstance(each, list) and each else each
    for dtype in ("int32", "uint16", default(lib)):
        made = positions.packed(integers(lib, cu, dtype), total, offsets=own, pad=-1)
        equals(lib, made, want, shape=(total,))


def test_packed_finds_the_total_on_the_host(lib, like):
    equals(lib, positions.packed([0, 2, 5], like=like), [0, 1, 0, 1, 2])
    equals(lib, positions.packed(np.array([0, 2, 5], np.int32), like=like), [0, 1, 0, 1, 2])
    equals(lib, positions.packed([0, 2], 4, like=like), [0, 1, 0, 0])


def test_packed_sequences_have_their_own_positions(lib, like):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 4)).astype(np.float32)
    together = ra.apply(lib.asarray(x), positions.packed(integers(lib, [0, 2, 6]), 6))
    alone = [ra.apply(part, range(len(part))) for part in (x[:2], x[2:])]
    assert np.allclose(lib.to_numpy(together), np.concatenate(alone), atol=1e-6)


@pytest.mark.library("torch")
def test_strided_lengths():
    """torch.searchsorted warns of strided tensors, and warnings are errors here."""
    import torch

    cu = torch.tensor([[0, 9], [2, 9], [5, 9]])[:, 0]
    assert positions.packed(cu, 5, offsets=torch.tensor([[1, 9], [2, 9]])[:, 0]).tolist() == [1, 2, 2, 3, 4]


# ---- from_mask ----

MASKS = [
    [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]],
    [[1, 1, 0, 0], [1, 0, 1, 0]],
    [0, 1, 1],
    [[[1, 0], [0, 1]]],
]


def loop_mask(row, pad):
    if isinstance(row[0], list):
        return [loop_mask(part, pad) for part in row]
    return [sum(row[:i]) if keep else pad for i, keep in enumerate(row)]


@pytest.mark.parametrize("mask", MASKS, ids=words)
@pytest.mark.parametrize("pad", [0, 1, -1])
def test_from_mask(lib, like, mask, pad):
    want = loop_mask(mask, pad)
    equals(lib, positions.from_mask(mask, pad=pad, like=like), want)
    for dtype in ("bool", "uint8", "int8", default(lib)):
        equals(lib, positions.from_mask(integers(lib, mask, dtype), pad=np.int8(pad)), want)


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), (1, 1)])
def test_from_mask_of_no_size(lib, like, shape):
    equals(lib, positions.from_mask(lib.asarray(np.ones(shape, bool))), np.zeros(shape, int), shape=shape)


def test_a_long_uint8_mask_counts_beyond_a_byte(lib, like):
    made = positions.from_mask(integers(lib, np.ones(300), "uint8"))
    assert lib.to_numpy(made).tolist() == [*range(300)]


def test_left_padding_rotates_as_no_padding_does(lib, like):
    x = np.random.default_rng(0).standard_normal((1, 5, 4)).astype(np.float32)
    padded = ra.apply(lib.asarray(x), positions.from_mask(lib.asarray(np.array([[0, 0, 1, 1, 1]], bool))))
    assert np.allclose(lib.to_numpy(padded)[:, 2:], ra.apply(x[:, 2:], range(3)), atol=1e-6)


# ---- context_parallel ----


def loop_parallel(length, rank, size, layout):
    if layout == "contiguous":
        return [t for t in range(length) if t * size // length == rank]
    chunks = [t * 2 * size // length for t in range(length)]
    return [t for t in range(length) if min(chunks[t], 2 * size - 1 - chunks[t]) == rank]


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize(("length", "size"), [(8, 2), (12, 3), (6, 1), (24, 4), (16, 8), (0, 2)])
def test_context_parallel(lib, like, layout, length, size):
    whole = np.arange(3 * length).reshape(3, length)
    held = []
    for rank in range(size):
        want = loop_parallel(length, rank, size, layout)
        shape = (length // size,)
        held += want
        call = {"layout": layout}
        equals(lib, positions.context_parallel(length, rank, size, like=like, **call), want, shape=shape)
        traced = integers(lib, rank)
        equals(lib, positions.context_parallel(length, traced, size, **call), want, shape=shape)
        for array, axis in ((whole, -1), (whole, 1), (whole.T, 0), (whole.T, -2)):
            own = integers(lib, array)
            part = np.take(array, np.array(want, int), axis=axis)
            equals(lib, positions.context_parallel(own, rank, size, axis=axis, **call), part)
            if length:
                equals(lib, positions.context_parallel(own, traced, size, axis=axis, **call), part)
    assert sorted(held) == [*range(length)]


def test_zigzag_is_that_of_megatron():
    """Four ranks, eight chunks, as in Megatron-LM's get_batch_on_this_cp_rank."""
    got = [positions.context_parallel(16, r, 4, layout="zigzag").tolist() for r in range(4)]
    assert got == [[0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9]]


def test_context_parallel_keeps_a_dtype_and_copies(lib, like, float_dtype):
    x = lib.asarray(np.arange(8).reshape(4, 2).astype(np.float32), float_dtype)
    for rank in (0, integers(lib, 0)):
        part = positions.context_parallel(x, rank, 2, axis=0)
        assert part.dtype == x.dtype
        assert lib.to_numpy(part).tolist() == [[0, 1], [2, 3]]
        assert not lib.shares_memory(part, x)


def test_rank_of_any_integer_kind():
    for rank in (1, np.int64(1), np.array(1), np.uint8(1)):
        assert positions.context_parallel(4, rank, np.int32(2)).tolist() == [2, 3]


# ---- context_parallel of packed sequences ----


def loop_parallel_packed(lengths, total, rank, size, layout):
    """Cut each sequence, and the tokens after the last one, on its own."""
    index, start = [], 0
    for length in (*lengths, total - sum(lengths)):
        index += [start + t for t in loop_parallel(length, rank, size, layout)]
        start += length
    return index


def transformer_engine(cu, rank, size):
    """The positions of the format "thd" in Transformer Engine: fused_rope.cu, fused_rope_forward_kernel.

    Each rank holds cu/size; a token in the first half of its sequence there is moved by rank half lengths,
    a token in the second half by the length of the whole sequence less rank + 1 half lengths, less a half.
    """
    made = []
    for start, end in itertools.pairwise(np.array(cu) // size):
        length = end - start
        for token in range(length):
            first = rank * length // 2
            second = length * size - (rank + 1) * length // 2 - length // 2
            made.append(token + (first if token < length // 2 else second))
    return made


PARTS = [([8, 16], 0, 2), ([12], 12, 3), ([], 8, 2), ([0], 0, 4), ([4, 0, 0, 20, 0, 4], 4, 2), ([6, 3], 3, 1)]
PARTS += [([16, 48], 16, 8)]


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize(("lengths", "padding", "size"), PARTS, ids=str)
def test_context_parallel_of_packed_sequences(lib, like, layout, lengths, padding, size):
    if layout == "zigzag" and size == 1:
        lengths, padding = [2 * n for n in lengths], 2 * padding
    cu, total = [0, *itertools.accumulate(lengths)], sum(lengths) + padding
    x = np.arange(3 * total).reshape(3, total)
    held, shape = [], (total // size,)
    for rank in range(size):
        want = loop_parallel_packed(lengths, total, rank, size, layout)
        held += want
        for lengths_given in (cu, integers(lib, cu), integers(lib, cu, "int32")):
            for rank_given in (rank, integers(lib, rank)):
                call = {"rank": rank_given, "size": size, "layout": layout, "cu_seqlens": lengths_given}
                equals(lib, positions.context_parallel(total, like=like, **call), want, shape=shape)
                part = np.take(x, np.array(want, int), axis=1)
                equals(lib, positions.context_parallel(integers(lib, x), **call), part)
                part = positions.context_parallel(integers(lib, x.T), axis=0, **call)
                assert lib.to_numpy(part).tolist() == x.T[want].tolist()
    assert sorted(held) == [*range(total)]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_packed_zigzag_is_that_of_transformer_engine(lib, like, size, seed):
    rng = random.Random(seed)
    lengths = [2 * size * rng.randint(0, 3) for _ in range(rng.randint(1, 5))]
    cu, total = [0, *itertools.accumulate(lengths)], sum(lengths)
    pos = positions.packed(integers(lib, cu), total)
    for rank in range(size):
        want = transformer_engine(cu, rank, size)
        call = {"layout": "zigzag", "cu_seqlens": integers(lib, cu)}
        equals(lib, positions.context_parallel(pos, rank, size, **call), want, shape=(total // size,))


def test_packed_zigzag_indices_of_transformer_engine():
    """The case of Transformer Engine's test of thd_get_partitioned_indices: 16 tokens, two ranks."""
    cu = [0, 8, 16]
    got = [positions.context_parallel(16, r, 2, layout="zigzag", cu_seqlens=cu).tolist() for r in (0, 1)]
    assert got == [[0, 1, 6, 7, 8, 9, 14, 15], [2, 3, 4, 5, 10, 11, 12, 13]]


def test_packed_parts_with_offsets_and_coordinates(lib, like):
    """Any array is cut: positions after caches, and coordinates on a later axis."""
    cu = integers(lib, [0, 4, 12])
    pos = positions.packed(cu, 16, offsets=integers(lib, [100, 7]), pad=-1)
    call = {"layout": "zigzag", "cu_seqlens": cu}
    equals(lib, positions.context_parallel(pos, 1, 2, **call), [101, 102, 9, 10, 11, 12, -1, -1])
    equals(
        lib,
        positions.context_parallel(positions.text(pos, 2), 1, 2, axis=0, **call),
        [[p] * 2 for p in [101, 102, 9, 10, 11, 12, -1, -1]],
    )


def test_lengths_on_a_device_beyond_the_total_are_cut_off(lib, like):
    if lib.name == "numpy":
        return  # NumPy's lengths are read, and refused
    made = positions.context_parallel(8, 1, 2, cu_seqlens=integers(lib, [0, 4, 40]))
    equals(lib, made, [2, 3, 6, 7])


# ---- text ----


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_text(lib, like, n):
    for pos in (5, [1, 2, 3], range(3), [[1, 2], [3, 4]], []):
        want = [[p] * n for p in np.ravel(pos).tolist()]
        equals(lib, positions.text(pos, n, like=like), want, shape=(*np.shape(pos), n))
    for dtype in ("int8", "uint32", "float32"):
        own = lib.asarray(np.array([[1, 2]], dtype))
        equals(lib, positions.text(own, n), [[[1] * n, [2] * n]], dtype=dtype)


def test_ids_of_hugging_face_are_moved():
    """The documentation's expression for Hugging Face's ids."""
    ids = np.arange(24).reshape(3, 2, 4)
    ours = np.moveaxis(ids, 0, -1)
    assert ours.shape == (2, 4, 3)
    assert ours[1, 2].tolist() == [ids[0, 1, 2], ids[1, 1, 2], ids[2, 1, 2]]


# ---- grids ----

GRIDS = [(3,), (2, 3), (1, 1), (2, 3, 4), (0, 3), (3, 0), (1, 2, 1, 3)]


@pytest.mark.parametrize("sizes", GRIDS, ids=str)
@pytest.mark.parametrize(("origin", "step"), [(0, 1), (7, 1), (-2, 3), ("each", "each")])
def test_grid(lib, like, sizes, origin, step):
    n = len(sizes)
    origin, step = ([*range(5, 5 + n)], [*range(1, 1 + n)]) if origin == "each" else (origin, step)
    o, s = np.broadcast_to(origin, n).tolist(), np.broadcast_to(step, n).tolist()
    points = itertools.product(*map(range, sizes))
    want = [[o[a] + s[a] * i for a, i in enumerate(point)] for point in points]
    shape = (math.prod(sizes), n)
    equals(lib, positions.grid(*sizes, origin=origin, step=step, like=like), want, shape=shape)
    floats = positions.grid(*sizes, origin=origin, step=step, like=like, dtype="float32")
    equals(lib, floats, want, dtype="float32", shape=shape)


def test_grid_of_fractions_rounds_once(lib, like):
    made = positions.grid(2, 50, origin=(0.1, 0), step=(1, 0.3), like=like)
    want = [[np.float32(0.1 + i), np.float32(0.3 * k)] for i in range(2) for k in range(50)]
    equals(lib, made, want, dtype="float32")


def loop_blocks(t, h, w, merge):
    """Return the patches of Qwen2-VL's vision tower: block by block, and row by row in a block."""
    return [
        [frame, merge * row + y, merge * column + x]
        for frame in range(t)
        for row in range(h // merge)
        for column in range(w // merge)
        for y in range(merge)
        for x in range(merge)
    ]


@pytest.mark.parametrize(("sizes", "merge"), [((2, 4, 6), 2), ((1, 3, 6), 3), ((3, 2, 5), 1), ((0, 2, 2), 2)])
def test_video_grid(lib, like, sizes, merge):
    want = loop_blocks(*sizes, merge)
    made = positions.video_grid(*sizes, spatial_merge_size=merge, like=like)
    equals(lib, made, want, shape=(math.prod(sizes), 3))


def test_video_grid_in_one_block_is_a_grid(lib, like):
    made = positions.video_grid(2, 2, 3, like=like)
    equals(lib, made, lib.to_numpy(positions.grid(2, 2, 3, like=like)))


def test_video_grid_in_seconds(lib, like):
    made = positions.video_grid(
        3, 2, 2, origin=(1.5, 0, 4), step=(1 / 24, 1, 2), spatial_merge_size=2, like=like
    )
    want = [[np.float32(1.5 + t / 24), y, 4 + 2 * x] for t, y, x in loop_blocks(3, 2, 2, 2)]
    assert np.allclose(lib.to_numpy(made), want, rtol=1e-7, atol=0)
    assert lib.dtype_of(made) == "float32"


def test_order_of_patches_in_transformers():
    """get_vision_position_ids of transformers 5.23.0 for a grid (1, 4, 6), blocks of 2 by 2."""
    want = "00 01 10 11 02 03 12 13 04 05 14 15 20 21 30 31 22 23 32 33 24 25 34 35"
    made = positions.video_grid(1, 4, 6, spatial_merge_size=2)[:, 1:]
    assert " ".join(f"{h}{w}" for h, w in made.tolist()) == want


@pytest.mark.parametrize("normalize", ["separate", "min", "max"])
@pytest.mark.parametrize("sizes", [(2, 3), (7, 7), (1, 1), (0, 4), (4, 0), (5,), (2, 3, 7)], ids=str)
def test_normalized_grid(lib, like, normalize, sizes):
    extents = {"separate": sizes, "min": [min(sizes)] * 3, "max": [max(sizes)] * 3}[normalize]
    exact = [
        [2 * (Fraction(i) + Fraction(1, 2)) / extents[a] - 1 for a, i in enumerate(point)]
        for point in itertools.product(*map(range, sizes))
    ]
    shape = (math.prod(sizes), len(sizes))
    for dtype in [d for d in ("float32", "float64") if d in lib.dtypes]:
        want = np.array([[float(c) for c in point] for point in exact]).astype(dtype)
        made = positions.normalized_grid(*sizes, normalize=normalize, like=like, dtype=dtype)
        equals(lib, made, want, dtype=dtype, shape=shape)


# ---- augmentation ----

COORDS = np.array([[-0.5, 0.25], [0.75, -1.0], [0.0, 0.5]], np.float32)


def drawn(limit, u):
    return limit * (2 * u - 1)


def by_hand(name, point, limit, u):
    """Augment one point in Python's floats; u has one number for each coordinate."""
    if name == "shift":
        return [c + drawn(limit, v) for c, v in zip(point, u, strict=True)]
    return [c * math.exp(drawn(math.log(limit), v)) for c, v in zip(point, u, strict=True)]


@pytest.mark.parametrize("name", ["shift", "jitter", "rescale"])
@pytest.mark.parametrize("u", [[0.0, 0.75], [1.0, 0.25], [0.5, 0.5]], ids=str)
def test_augmentation(lib, like, name, u):
    function = getattr(positions, name)
    given = u[0] if name == "rescale" else u
    want = [by_hand(name, point, 1.7, [given] * 2 if name == "rescale" else u) for point in COORDS.tolist()]
    coords = lib.asarray(COORDS)
    for numbers in (given, np.array(given), lib.asarray(np.array(given, np.float32))):
        made = function(coords, 1.7, numbers)
        assert lib.owns(made)
        assert lib.dtype_of(made) == "float32"
        assert np.allclose(lib.to_numpy(made), want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["shift", "jitter", "rescale"])
def test_augmentation_of_a_batch(lib, like, name):
    """Each image has its own numbers; images share coordinates, or each image has its own."""
    function = getattr(positions, name)
    u = np.array([[0.1, 0.9], [0.3, 0.6]], np.float32)
    u = u[:, 0] if name == "rescale" else u
    want = [lib.to_numpy(function(lib.asarray(COORDS), 2.0, lib.asarray(one))) for one in u]
    for coords in (COORDS, np.stack([COORDS, COORDS])):
        made = function(lib.asarray(coords), 2.0, lib.asarray(u))
        assert tuple(made.shape) == (2, 3, 2)
        assert np.array_equal(lib.to_numpy(made), want)


def test_augmentation_in_float64():
    for name in ("shift", "jitter", "rescale"):
        u = 0.3 if name == "rescale" else [0.3, 0.3]
        made = getattr(positions, name)(COORDS.astype(np.float64), 1.5, u)
        want = [by_hand(name, point, 1.5, [0.3, 0.3]) for point in COORDS.tolist()]
        assert made.dtype == np.float64
        assert np.allclose(made, want, rtol=1e-15)


def test_neutral_settings_change_nothing(lib, like):
    coords = lib.asarray(COORDS)
    for made in (
        positions.shift(coords, 0, [0.1, 0.9]),
        positions.jitter(coords, 1, [0.1, 0.9]),
        positions.rescale(coords, 1.0, 0.9),
    ):
        assert lib.to_numpy(made).tolist() == COORDS.tolist()


@pytest.mark.parametrize("make", [np.random.default_rng, random.Random], ids=["numpy", "python"])
def test_random_generators(lib, like, make):
    """shift and jitter draw one number for each axis, rescale draws one."""
    coords = lib.asarray(COORDS)
    for name, count in (("shift", 2), ("jitter", 2), ("rescale", 1)):
        function, numbers = getattr(positions, name), make(7)
        u = [float(numbers.random()) for _ in range(count)]
        used = make(7)
        made = function(coords, 2.0, used)
        want = function(coords, 2.0, u if count > 1 else u[0])
        assert lib.to_numpy(made).tolist() == lib.to_numpy(want).tolist()
        assert used.random() == numbers.random()


def test_jitter_and_rescale_are_uniform_in_the_logarithm():
    rng = np.random.default_rng(0)
    one = np.ones((1, 1))
    for function in (positions.jitter, positions.rescale):
        logs = [math.log2(function(one, 2.0, rng)[0, 0]) for _ in range(2000)]
        assert -1 <= min(logs) < -0.99
        assert 0.99 < max(logs) <= 1
        assert abs(np.mean(logs)) < 0.05


def test_the_order_of_augmentation_matters():
    u, v = [0.9, 0.2], [0.3, 0.8]
    first = positions.jitter(positions.shift(COORDS, 0.5, u), 2.0, v)
    other = positions.shift(positions.jitter(COORDS, 2.0, v), 0.5, u)
    assert not np.allclose(first, other)


# ---- mrope ----


def by_segments(segments, spatial=False):
    """Return tokens and coordinates of segments: ("text", n) or (kind, frames, rows, columns, dt)."""
    tokens, points, start = [], [], 0
    for kind, *what in segments:
        if kind == "text":
            tokens += [0] * what[0]
            points += [[start + k] * 3 for k in range(what[0])]
            start += what[0]
            continue
        t, rows, columns, dt = what
        tokens += [{"image": 1, "video": 2}[kind]] * (t * rows * columns)
        points += [
            [start + math.floor(k * dt), start + i, start + j]
            for k in range(t)
            for i in range(rows)
            for j in range(columns)
        ]
        start = start + max(rows, columns) if spatial else max(max(p) for p in points) + 1
    return tokens, points


def some_segments(rng):
    made = []
    for _ in range(rng.randint(0, 4)):
        kind = rng.choice(["text", "image", "video"])
        if kind == "text":
            made.append(("text", rng.randint(1, 4)))
        else:
            t, dt = (1, 1) if kind == "image" else (rng.randint(1, 4), rng.choice([1, 2, 0.5, 1.75]))
            made.append((kind, t, rng.randint(1, 3), rng.randint(1, 4), dt))
    return made


@pytest.mark.parametrize("advance", ["max", "spatial"])
@pytest.mark.parametrize("seed", range(12))
def test_mrope(lib, like, advance, seed):
    """Random layouts, padded left or right; adjacent images need no text between them."""
    if lib.name == "dask":
        return  # mrope reads values: refused below
    rng = random.Random(seed)
    merge = rng.choice([1, 2, 3])
    batch = [some_segments(rng) for _ in range(rng.randint(1, 3))]
    expected = [by_segments(segments, advance == "spatial") for segments in batch]
    width = max(len(tokens) for tokens, _ in expected) + rng.randint(0, 2)
    left = rng.random() < 0.5
    rows, mask, want = [], [], []
    for tokens, points in expected:
        gap = width - len(tokens)
        before, behind = (gap, 0) if left else (0, gap)
        rows.append([9] * before + tokens + [9] * behind)
        mask.append([0] * before + [1] * len(tokens) + [0] * behind)
        want.append([[-7] * 3] * before + points + [[-7] * 3] * behind)
    deltas = [max(map(max, points), default=-1) + 1 - len(tokens) for tokens, points in expected]
    grids = {
        k: [(t, merge * h, merge * w) for s in batch for kind, t, h, w, _ in [x for x in s if x[0] == k]]
        for k in ("image", "video")
    }
    intervals = [x[4] for s in batch for x in s if x[0] == "video"]
    options = {"spatial_merge_size": merge, "advance": advance, "pad": -7}
    options["second_per_grid_ts"] = intervals or 1
    host = positions.mrope(rows, grids["image"], grids["video"], mask=mask, like=like, **options)
    given = [integers(lib, np.array(grids[k], int).reshape(-1, 3)) for k in ("image", "video")]
    own = positions.mrope(
        integers(lib, np.array(rows, int)), *given, mask=lib.asarray(np.array(mask, bool)), **options
    )
    for pos, delta in (host, own):
        equals(lib, pos, want, shape=(len(batch), width, 3))
        equals(lib, delta, deltas)


def ids(text):
    return [[int(x) for x in point.split(",")] for point in text.split()]


def test_golden_of_qwen2_vl():
    """get_rope_index of Qwen2VLModel, transformers 5.23.0: two images, and a video after left padding."""
    tokens = [[0, 0, 1, 1, 1, 1, 0, 1, 1, 0], [0, 0, 0, 2, 2, 2, 2, 0, 0, 0]]
    mask = [[1] * 10, [0, 0] + [1] * 8]
    pos, delta = positions.mrope(tokens, [(1, 4, 4), (1, 2, 4)], [(4, 2, 2)], mask=mask, advance="spatial")
    assert pos.tolist() == [
        ids("0,0,0 1,1,1 2,2,2 2,2,3 2,3,2 2,3,3 4,4,4 5,5,5 5,5,6 7,7,7"),
        ids("0,0,0 0,0,0 0,0,0 1,1,1 2,1,1 3,1,1 4,1,1 2,2,2 3,3,3 4,4,4"),
    ]
    assert delta.tolist() == [-2, -3]


def test_golden_of_qwen2_5_vl():
    """get_rope_index of Qwen2_5_VLModel, transformers 5.23.0: tokens_per_second 2, a video and an image."""
    tokens = [0, 2, 2, 2, 2, 2, 2, 0, 1, 1, 0, 0]
    options = {"tokens_per_second": 2, "second_per_grid_ts": [1 / 3 * 3.7], "advance": "spatial"}
    pos, delta = positions.mrope(tokens, [(1, 4, 2)], [(3, 2, 4)], **options)
    assert pos.tolist() == ids("0,0,0 1,1,1 1,1,2 3,1,1 3,1,2 5,1,1 5,1,2 3,3,3 4,4,4 4,5,4 6,6,6 7,7,7")
    assert delta == -4


def test_golden_of_qwen3_vl():
    """get_rope_index of Qwen3VLModel, transformers 5.23.0: a video with text between its frames."""
    tokens = [0, 2, 2, 0, 0, 2, 2, 0, 1, 0]
    for advance in ("spatial", "max"):
        pos, delta = positions.mrope(tokens, [(1, 2, 2)], [(2, 4, 2)], split_frames=True, advance=advance)
        assert pos.tolist() == ids("0,0,0 1,1,1 1,2,1 3,3,3 4,4,4 5,5,5 5,6,5 7,7,7 8,8,8 9,9,9")
        assert delta == 0


# The golden tests of Qwen-Omni: text, an image, a video with audio sorted among its frames, audio, text.
OMNI = {"image_grid_thw": [(1, 2, 4)], "video_grid_thw": [(3, 4, 2)], "audio_token_id": 3}
OMNI |= {"tokens_per_second": 2, "time_rounding": "seconds", "advance": "last"}


def test_golden_of_qwen2_5_omni():
    """get_rope_index of Qwen2_5Omni, transformers 5.23.0: 2 positions per second, chunks of one second."""
    tokens = [9, 9, 4, 1, 1, 5, 4, 6, 2, 2, 3, 3, 2, 2, 3, 3, 2, 2, 3, 3, 3, 7, 5, 9, 6, 3, 3, 7]
    pos, delta = positions.mrope(tokens, **OMNI, second_per_grid_ts=1.0, shared_delimiters=True)
    assert pos.tolist() == ids(
        "0,0,0 1,1,1 2,2,2 3,3,3 3,3,4 5,5,5 6,6,6 6,6,6 7,7,7 7,8,7 7,7,7 8,8,8 9,7,7 9,8,7 9,9,9 10,10,10 "
        "11,7,7 11,8,7 11,11,11 12,12,12 13,13,13 14,14,14 14,14,14 15,15,15 16,16,16 17,17,17 18,18,18 "
        "19,19,19"
    )
    assert delta == -8


def test_golden_of_qwen3_omni(lib, like):
    """get_rope_index of Qwen3OmniMoe, transformers 5.23.0: times are fractions, 1.5 from frame to frame."""
    if lib.name == "dask":
        return  # mrope reads values
    tokens = [9, 9, 4, 1, 1, 5, 4, 6, 2, 2, 3, 3, 2, 2, 3, 2, 2, 3, 3, 3, 7, 5, 9, 6, 3, 3, 7]
    want = (
        "0,0,0 1,1,1 2,2,2 3,3,3 3,3,4 5,5,5 6,6,6 7,7,7 8,8,8 8,9,8 8,8,8 9,9,9 9.5,8,8 9.5,9,8 10,10,10 "
        "11,8,8 11,9,8 11,11,11 12,12,12 13,13,13 14,14,14 15,15,15 16,16,16 17,17,17 18,18,18 "
        "19,19,19 20,20,20"
    )
    want = [[float(x) for x in point.split(",")] for point in want.split()]
    call = {**OMNI, "second_per_grid_ts": 0.75}
    pos, delta = positions.mrope(tokens, **call, like=like, dtype="float32")
    equals(lib, pos, want, dtype="float32")
    equals(lib, delta, -6, dtype="float32")
    cut, _ = positions.mrope(tokens, **call)
    assert cut.tolist() == [[math.floor(x) for x in point] for point in want]


def test_golden_of_ernie_4_5_vl():
    """get_rope_index of Ernie4_5_VLMoeModel, transformers 5.23.0: two frames are one token in time."""
    tokens = [0, 2, 2, 2, 2, 0, 1, 1, 0]
    call = {"temporal_merge_size": 2, "advance": "spatial"}
    pos, delta = positions.mrope(tokens, [(1, 2, 4)], [(4, 2, 4)], **call)
    assert pos.tolist() == ids("0,0,0 1,1,1 1,1,2 2,1,1 2,1,2 3,3,3 4,4,4 4,4,5 6,6,6")
    assert delta == -2


def test_fractions_of_times_are_kept_and_rounded_once():
    pos, delta = positions.mrope([0, 2, 2, 0], (), [(2, 2, 2)], second_per_grid_ts=1.7, dtype="float32")
    last = np.float32(1 + float(np.float32(1.7)))
    assert pos.tolist() == [[0] * 3, [1] * 3, [last, 1, 1], [np.float32(2 + float(np.float32(1.7)))] * 3]
    assert delta == np.float32(3 + float(np.float32(1.7)) - 4)


def test_rounding_of_times():
    """5 frames of 0.08 s at 25 positions a second: float32(0.08) is below 0.08, float32(25 · 0.08) is 2."""
    frame = {kind: [] for kind in ("interval", "seconds")}
    for kind, times in frame.items():
        call = {"tokens_per_second": 25, "second_per_grid_ts": 0.08, "time_rounding": kind}
        times += positions.mrope([2] * 6, (), [(6, 2, 2)], **call)[0][:, 0].tolist()
    assert frame["interval"] == [0, 2, 4, 6, 8, 10]
    f = np.float32
    assert frame["seconds"] == [int(f(f(k) * f(0.08)) * f(25)) for k in range(6)] == [0, 2, 4, 6, 8, 9]


def test_text_after_a_video_with_audio():
    """The video has 3 rows, the audio 2 tokens: "last" continues after the audio, "max" after the rows."""
    call = {"tokens": [0, 2, 2, 2, 3, 3, 0], "video_grid_thw": [(1, 6, 2)], "audio_token_id": 3}
    block = "0,0,0 1,1,1 1,2,1 1,3,1 1,1,1 2,2,2"
    for advance, after in (("last", " 3,3,3"), ("max", " 4,4,4"), ("spatial", " 4,4,4")):
        assert positions.mrope(**call, advance=advance)[0].tolist() == ids(block + after)


def test_audio_alone_is_text():
    tokens = [0, 3, 3, 0, 1, 3, 3, 0]
    with_id, _ = positions.mrope(tokens, [(1, 2, 2)], audio_token_id=3, shared_delimiters=True)
    assert with_id.tolist() == positions.mrope([0, 0, 0, 0, 1, 0, 0, 0], [(1, 2, 2)])[0].tolist()


def test_text_after_a_long_video():
    """Text continues after the last frame, or with "spatial" after the rows and columns alone."""
    call = {"tokens": [0, 2, 2, 2, 0], "video_grid_thw": [(3, 2, 2)]}
    assert positions.mrope(**call)[0].tolist() == ids("0,0,0 1,1,1 2,1,1 3,1,1 4,4,4")
    assert positions.mrope(**call, advance="spatial")[0].tolist() == ids("0,0,0 1,1,1 2,1,1 3,1,1 2,2,2")


def test_times_are_rounded_to_float32_before_they_are_cut():
    """10 times float32(0.7) is below 7, but the models multiply in float32, which rounds to 7."""
    assert int(10 * float(np.float32(0.7))) == 6
    pos, _ = positions.mrope([2] * 11, (), [(11, 2, 2)], second_per_grid_ts=0.7)
    assert pos[:, 0].tolist() == [0, 0, 1, 2, 2, 3, 4, 4, 5, 6, 7]
    assert pos[:, 0].tolist() == [int(np.float32(k) * np.float32(0.7)) for k in range(11)]


def test_token_ids_of_a_vocabulary():
    tokens = [15, 151655, 151655, 16, 151656, 17]
    pos, _ = positions.mrope(tokens, [(1, 2, 4)], [(1, 2, 2)], image_token_id=151655, video_token_id=151656)
    assert pos.tolist() == positions.mrope([0, 1, 1, 0, 2, 0], [(1, 2, 4)], [(1, 2, 2)])[0].tolist()


def test_deltas_place_the_tokens_that_are_decoded(lib, like):
    """Three tokens after the prompt have the positions offset(3, tokens before + delta)."""
    prompts = [[0, 1, 1, 1, 1, 0], [2, 2, 2, 0, 0, 0]]
    mask = [[0, *[1] * 5], [1] * 6]
    prompts[0] = [0, 0, 1, 1, 1, 1]
    grids = [(1, 4, 4)], [(3, 2, 2)]
    _, delta = positions.mrope(prompts, *grids, mask=mask, like=like)
    more = positions.offset(3, delta + integers(lib, [5, 6]))
    whole, _ = positions.mrope(
        [p + [0] * 3 for p in prompts], *grids, mask=[m + [1] * 3 for m in mask], like=like
    )
    assert lib.to_numpy(positions.text(more)).tolist() == lib.to_numpy(whole)[:, 6:].tolist()


@pytest.mark.parametrize("tokens", [[], [[]], [[], []], [0], [[0, 0, 0]], np.zeros((0, 4), int)], ids=str)
def test_mrope_of_text(lib, like, tokens):
    pos, delta = positions.mrope(tokens, like=like)
    shape = np.shape(tokens)
    want = np.broadcast_to(np.arange(shape[-1])[:, None], (*shape, 3))
    equals(lib, pos, want, shape=(*shape, 3))
    equals(lib, delta, np.zeros(shape[:-1], int))


def test_a_row_that_is_all_padding():
    pos, delta = positions.mrope([[0, 0], [1, 0]], [(1, 2, 2)], mask=[[0, 0], [1, 1]], pad=1)
    assert pos.tolist() == [[[1] * 3] * 2, [[0] * 3, [1] * 3]]
    assert delta.tolist() == [0, 0]


def test_mrope_of_packed_rows(lib, like):
    """Each sequence has positions of its own, with its images; tokens after the last are padding."""
    tokens = [0, 1, 1, 0, 0, 2, 2, 0, 0, 1, 0, 9, 9]
    cu, images, videos = [0, 4, 4, 8, 11], [(1, 2, 4), (1, 2, 2)], [(2, 2, 2)]
    want = [
        *ids("0,0,0 1,1,1 1,1,2 3,3,3"),
        *ids("0,0,0 1,1,1 2,1,1 3,3,3"),
        *ids("0,0,0 1,1,1 2,2,2 -1,-1,-1 -1,-1,-1"),
    ]
    for given, form in ((tokens, (13,)), ([tokens], (1, 13))):
        arrays = [] if lib.name == "dask" else [lib.asarray(np.array(cu, np.int32))]  # dask's has no values
        for ends in (cu, np.array(cu), *arrays):
            pos, delta = positions.mrope(given, images, videos, cu_seqlens=ends, pad=-1, like=like)
            equals(lib, pos, np.reshape(want, (*form, 3)))
            equals(lib, delta, [0, 0, 0, 0])
    mask = [0] + [1] * 12
    pos, delta = positions.mrope(tokens, images, videos, cu_seqlens=cu, mask=mask, like=like)
    equals(lib, pos[:4, ...], ids("0,0,0 0,0,0 0,0,1 2,2,2"))
    parts = [positions.mrope(tokens[8:11], images[1:]), positions.mrope(tokens[4:8], [], videos)]
    for (part, of_part), span in zip(parts, (slice(8, 11), slice(4, 8)), strict=True):
        equals(lib, pos[span, ...], part)
        assert of_part == 0


@pytest.mark.parametrize(
    ("tokens", "cu_seqlens", "error", "says"),
    [
        ([[0, 0], [0, 0]], [0, 2], ra.ShapeError, "one row of packed tokens"),
        ([0, 0], [1, 2], ra.PositionError, "begin with 0"),
        ([0, 0], [0, 3], ra.PositionError, "3"),
        ([0, 0], [0, 2, 1], ra.PositionError, "1"),
        ([0, 0], [[0, 2]], ra.ShapeError, "one array of n"),
        ([0, 0], [0, True], ra.ArrayTypeError, "no bools"),
    ],
    ids=["two rows", "begin", "end", "decreasing", "axes", "bool"],
)
def test_packed_rows_of_mrope_are_checked(tokens, cu_seqlens, error, says):
    with pytest.raises(error, match=says):
        positions.mrope(tokens, cu_seqlens=cu_seqlens)


def test_a_block_of_packed_rows_ends_with_its_sequence():
    """Patches of one image in two sequences are an error, not a block over the border."""
    with pytest.raises(ra.ShapeError, match="needs 2 image tokens in a row"):
        positions.mrope([1, 1], [(1, 2, 4)], cu_seqlens=[0, 1, 2])


# ---- traced, lazy, without values ----


def calls(length):
    """Return a call of each builder that traces, as a function of `arguments(lib)`."""
    return {
        "offset": lambda a: positions.offset(3, a["offsets"]),
        "packed": lambda a: positions.packed(a["cu"], length, offsets=a["offsets"], pad=-1),
        "from_mask": lambda a: positions.from_mask(a["mask"], pad=1),
        "rank": lambda a: positions.context_parallel(length, a["rank"], 2, layout="zigzag"),
        "cut": lambda a: positions.context_parallel(a["mask"], 1, 2, layout="zigzag"),
        "cut by rank": lambda a: positions.context_parallel(a["cu"][1:], a["rank"], 2),
        "rank of packed": lambda a: positions.context_parallel(
            length, a["rank"], 2, layout="zigzag", cu_seqlens=a["parts"]
        ),
        "cut of packed": lambda a: positions.context_parallel(
            a["coords"], 1, 2, axis=-1, cu_seqlens=a["parts"][:2] // 2
        ),
        "text": lambda a: positions.text(a["offsets"]),
        "grid": lambda a: positions.grid(2, 3, like=a["coords"]),
        "grid of fractions": lambda a: positions.grid(2, 3, step=0.1, like=a["coords"]),
        "video_grid": lambda a: positions.video_grid(2, 2, 4, spatial_merge_size=2, like=a["coords"]),
        "normalized_grid": lambda a: positions.normalized_grid(2, 3, like=a["coords"]),
        "shift": lambda a: positions.shift(a["coords"], 0.5, a["uniform"]),
        "jitter": lambda a: positions.jitter(a["coords"], 2.0, a["uniform"]),
        "rescale": lambda a: positions.rescale(a["coords"], 2.0, a["uniform"][0]),
    }


CALLS = calls(8)


def arguments(lib):
    return {
        "offsets": integers(lib, [4, 9]),
        "cu": integers(lib, [0, 2, 5]),
        "parts": integers(lib, [0, 4, 8]),
        "mask": integers(lib, [[0, 1, 1, 0], [1, 1, 1, 1]]),
        "rank": integers(lib, 1),
        "coords": lib.asarray(COORDS),
        "uniform": lib.asarray(np.array([0.25, 0.75], np.float32)),
    }


class AsNumPy:
    """NumPy in place of the fixture `lib`, for expected results."""

    name = "numpy"
    asarray = staticmethod(np.asarray)


@pytest.mark.library("jax")
@pytest.mark.parametrize("name", CALLS)
def test_under_jax_jit(lib, like, name):
    import jax

    made = jax.jit(CALLS[name])(arguments(lib))
    want = CALLS[name](arguments(AsNumPy))
    assert made.shape == want.shape
    assert np.allclose(made, want, rtol=1e-6)


@pytest.mark.library("torch")
@pytest.mark.parametrize("name", CALLS)
def test_under_torch_compile(lib, like, name):
    import torch
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(CALLS[name], backend=counter, fullgraph=True)
    made, want = compiled(arguments(lib)), CALLS[name](arguments(lib))
    assert made.dtype == want.dtype
    assert torch.equal(made, want)
    assert counter.frame_count == 1
    other = arguments(lib) | {"offsets": torch.tensor([11, 3]), "cu": torch.tensor([0, 7, 8])}
    other |= {"parts": torch.tensor([0, 0, 4])}
    assert torch.equal(compiled(other), CALLS[name](other))
    assert counter.frame_count == 1  # other values compile nothing more


@pytest.mark.library("torch")
def test_lengths_and_offsets_that_change_compile_twice_at_most():
    import torch
    from torch._dynamo.testing import CompileCounter

    def function(x, start):
        n = x.shape[0]
        return (
            positions.offset(n, start, like=x),
            positions.context_parallel(n, 0, 2, layout="zigzag", like=x),
            positions.grid(n, 2, like=x),
            positions.packed(torch.tensor([0, 3]), n),
        )

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    for n, start in ((4, 5), (8, 6), (12, 7), (20, 100)):
        x = torch.ones(n)
        assert all(map(torch.equal, compiled(x, start), function(x, start)))
    assert counter.frame_count <= 2


@pytest.mark.library("torch")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_exported_over_lengths(strict):
    import torch

    class Module(torch.nn.Module):
        def forward(self, x, cu, mask):
            n = x.shape[0]
            return (
                positions.offset(n, cu),
                positions.packed(cu, n),
                positions.from_mask(mask),
                positions.grid(n, 2, like=x),
                positions.context_parallel(2 * n, 1, 2, like=x),
                positions.context_parallel(4 * n, 1, 2, layout="zigzag", cu_seqlens=4 * cu),
            )

    def given(n):
        return torch.ones(n), torch.tensor([0, 3, 4]), torch.ones(2, n, dtype=torch.uint8)

    n = torch.export.Dim("n", min=2)
    program = torch.export.export(Module(), given(4), dynamic_shapes=({0: n}, None, {1: n}), strict=strict)
    assert all(map(torch.equal, program.module()(*given(9)), Module()(*given(9))))


@pytest.mark.library("torch")
@pytest.mark.parametrize("name", CALLS)
def test_no_value_is_read(name):
    """Tensors on the device meta have no values; results have the right shape and dtype."""
    import torch

    values = {k: torch.from_numpy(np.asarray(v)) for k, v in arguments(AsNumPy).items()}
    made = CALLS[name]({k: v.to("meta") for k, v in values.items()})
    want = CALLS[name](values)
    assert made.device.type == "meta"
    assert (made.shape, made.dtype) == (want.shape, want.dtype)


@pytest.mark.library("dask")
@pytest.mark.parametrize("name", CALLS)
def test_dask_is_lazy(lib, like, name):
    import dask

    def refuse(*args, **kwargs):
        raise AssertionError("computed")

    given = arguments(lib)
    with dask.config.set(scheduler=refuse):
        made = CALLS[name](given)
    assert lib.owns(made)
    want = CALLS[name](arguments(AsNumPy))
    assert made.shape == want.shape
    assert np.array_equal(lib.to_numpy(made), want)


def test_traced_calls_are_all_builders():
    """`calls` has every builder except mrope, which reads values."""
    import inspect

    text = inspect.getsource(calls)
    assert {n for n in positions.__all__ if f"positions.{n}(" not in text} == {"mrope"}


@pytest.mark.library("jax")
def test_ranks_of_a_mesh(lib, like):
    """Under vmap, jax.lax.axis_index is a traced rank, as in shard_map."""
    import jax

    made = jax.vmap(
        lambda _: positions.context_parallel(8, jax.lax.axis_index("cp"), 2, layout="zigzag"), axis_name="cp"
    )(np.zeros(2, np.float32))
    assert made.tolist() == [[0, 1, 6, 7], [2, 3, 4, 5]]


@pytest.mark.library("torch")
def test_results_are_on_the_device_of_the_arrays():
    import torch

    meta = torch.empty(2, device="meta", dtype=torch.int64)
    grid = positions.grid(2, like=meta)
    for made in (positions.offset(2, like=meta), positions.text([1], like=meta), grid):
        assert made.device.type == "meta"
    with pytest.raises(ra.ArrayTypeError, match="nothing moves silently"):
        positions.offset(2, meta, like=torch.ones(1))
    with pytest.raises(ra.ArrayTypeError, match="nothing moves silently"):
        positions.packed(torch.tensor([0, 1, 2]), 2, offsets=meta)
    with pytest.raises(ra.ArrayTypeError, match="on one device"):
        positions.context_parallel(meta, 0, 2, like=torch.ones(1))


def test_inputs_are_not_written(lib, like):
    given = arguments(lib)
    before = {k: lib.snapshot(v) for k, v in given.items()}
    for call in CALLS.values():
        made = call(given)
        assert not any(lib.shares_memory(made, v) for v in given.values())
    assert {k: lib.snapshot(v) for k, v in given.items()} == before


# ---- errors ----

Type, Shape, Spec, Position = ra.ArrayTypeError, ra.ShapeError, ra.SpecError, ra.PositionError
F16, F32 = np.ones(2, np.float16), np.ones(2, np.float32)
HUGE = 2**63
REFUSED = [
    # offset
    (lambda: positions.offset(2.0), Type, "length is 2.0"),
    (lambda: positions.offset(True), Type, "length is True"),
    (lambda: positions.offset("3"), Type, "length is '3'"),
    (lambda: positions.offset(-1), Shape, "length is -1"),
    (lambda: positions.offset(2, 1.5), Type, "offsets is 1.5"),
    (lambda: positions.offset(2, None), Type, "offsets is None"),
    (lambda: positions.offset(2, True), Type, "a bool"),
    (lambda: positions.offset(2, [1, True]), Type, "a bool"),
    (lambda: positions.offset(2, [1, 2.5]), Type, "offsets is 2.5"),
    (lambda: positions.offset(2, [[1], [1, 2]]), Shape, "ragged"),
    (lambda: positions.offset(2, F16), Type, "offsets is float16"),
    (lambda: positions.offset(2, F32), Type, "offsets is float32"),
    (lambda: positions.offset(2, np.array([1], np.uint64)), Type, "offsets is uint64"),
    (lambda: positions.offset(2, np.array([True])), Type, "offsets is bool"),
    (lambda: positions.offset(2, np.array(["1"])), Type, "offsets is"),
    (lambda: positions.offset(2, np.ma.masked_array([1])), Type, "masked array"),
    (lambda: positions.offset(2, HUGE), Position, "offsets holds 9223372036854775808"),
    (lambda: positions.offset(2, -HUGE - 1), Position, "must fit"),
    (lambda: positions.offset(2, HUGE - 1), Position, "must fit"),
    (lambda: positions.offset(2, [0, 2**31 - 1], dtype="int32"), Position, "and 2 positions from there"),
    (lambda: positions.offset(2, np.array([0, 2**40]), dtype="int32"), Position, "signed integer of 32 bits"),
    (lambda: positions.offset(2, 10**5000), Position, "bits"),
    (lambda: positions.offset(2, like=3), Type, "like is 3"),
    (lambda: positions.offset(2, dtype="int8"), Type, "dtype is 'int8'"),
    (lambda: positions.offset(2, dtype="float32"), Type, "dtype is 'float32'"),
    # packed
    (lambda: positions.packed(5), Shape, "cu_seqlens is 5"),
    (lambda: positions.packed([]), Shape, "n \\+ 1"),
    (lambda: positions.packed([[0, 1]]), Shape, "n \\+ 1"),
    (lambda: positions.packed([1, 2]), Position, "begins with 1"),
    (lambda: positions.packed([0, 3, 2]), Position, "falls from 3 to 2"),
    (lambda: positions.packed([0, -1]), Position, "falls from 0 to -1"),
    (lambda: positions.packed(np.array([0, 3, 2])), Position, "falls from 3 to 2"),
    (lambda: positions.packed([0, 5], 4), Position, "beyond total 4"),
    (lambda: positions.packed([0, 2.0]), Type, "cu_seqlens is 2.0"),
    (lambda: positions.packed([0, True]), Type, "cu_seqlens"),
    (lambda: positions.packed(np.array([0.0, 2.0])), Type, "cu_seqlens is float64"),
    (lambda: positions.packed(np.array([0, 1], bool)), Type, "cu_seqlens is bool"),
    (lambda: positions.packed([0, 2], -1), Shape, "total is -1"),
    (lambda: positions.packed([0, 2], 2.0), Type, "total is 2.0"),
    (lambda: positions.packed([0, 2], offsets=[1, 2]), Shape, "offsets has the shape \\(2,\\)"),
    (lambda: positions.packed([0, 2], offsets=[[1]]), Shape, "offsets has the shape \\(1, 1\\)"),
    (lambda: positions.packed([0, 2], offsets=[1.0]), Type, "offsets is 1.0"),
    (lambda: positions.packed([0, 2], offsets=[2**31 - 1], dtype="int32"), Position, "offsets holds"),
    (lambda: positions.packed([0, 2], pad=0.5), Type, "pad is 0.5"),
    (lambda: positions.packed([0, 2], pad=HUGE), Position, "pad holds"),
    (lambda: positions.packed([0, 2], pad=[1]), Type, "pad is a list"),
    (lambda: positions.packed([0, 2**31], 3, dtype="int32"), Position, "beyond total 3"),
    # from_mask
    (lambda: positions.from_mask(1), Shape, "mask is 1"),
    (lambda: positions.from_mask(np.array(1)), Shape, "mask is int64\\[\\]"),
    (lambda: positions.from_mask([0, 2]), Position, "another number than 0 and 1"),
    (lambda: positions.from_mask(np.array([[0, -1]])), Position, "another number than 0 and 1"),
    (lambda: positions.from_mask([0.0, 1.0]), Type, "mask is 0.0"),
    (lambda: positions.from_mask(F32), Type, "mask is float32"),
    (lambda: positions.from_mask([[1], [1, 0]]), Shape, "ragged"),
    (lambda: positions.from_mask([1], pad=HUGE), Position, "pad holds"),
    (lambda: positions.from_mask([1], pad=True), Type, "a bool"),
    # context_parallel
    (lambda: positions.context_parallel(7, 0, 2), Shape, "7 tokens, no multiple of size = 2"),
    (lambda: positions.context_parallel(6, 0, 2, layout="zigzag"), Shape, "no multiple of 2·size = 4"),
    (lambda: positions.context_parallel(np.ones((4, 3)), 0, 2), Shape, "3 tokens"),
    (lambda: positions.context_parallel(8, 2, 2), Spec, "rank is 2 of size 2"),
    (lambda: positions.context_parallel(8, -1, 2), Spec, "rank is -1"),
    (lambda: positions.context_parallel(8, np.array(2), 2), Spec, "rank is 2 of size 2"),
    (lambda: positions.context_parallel(8, 0.0, 2), Spec, "rank is 0.0"),
    (lambda: positions.context_parallel(8, np.array([0]), 2), Shape, "give one number"),
    (lambda: positions.context_parallel(8, 0, 0), Spec, "size is 0"),
    (lambda: positions.context_parallel(8, 0, 2, layout="striped"), Spec, "layout is 'striped'"),
    (lambda: positions.context_parallel(8.0, 0, 2), Type, "sequence is 8.0"),
    (lambda: positions.context_parallel(-8, 0, 2), Shape, "sequence is -8"),
    (lambda: positions.context_parallel([0, 1], 0, 2), Type, "sequence is a list"),
    (lambda: positions.context_parallel(np.ones(4), 0, 2, axis=1), Shape, "axis is 1"),
    (lambda: positions.context_parallel(np.array(4), 0, 2), Shape, "axis is -1"),
    (lambda: positions.context_parallel(np.ones(4), 0, 2, axis=0.0), Type, "axis is 0.0"),
    (lambda: positions.context_parallel(np.ma.masked_array([1, 2]), 0, 2), Type, "masked array"),
    (
        lambda: positions.context_parallel(2**33, 0, 2**33, dtype="int32"),
        Position,
        "signed integer of 32 bits",
    ),
    (
        lambda: positions.context_parallel(8, 0, 2, layout="zigzag", cu_seqlens=[0, 2, 8]),
        Shape,
        "sequence 0 of cu_seqlens has 2 tokens, no multiple of 2·size = 4",
    ),
    (lambda: positions.context_parallel(8, 0, 2, cu_seqlens=[0, 8, 4]), Position, "falls from 8 to 4"),
    (lambda: positions.context_parallel(8, 0, 2, cu_seqlens=[2, 8]), Position, "begins with 2"),
    (lambda: positions.context_parallel(8, 0, 2, cu_seqlens=np.array([0, 12])), Position, "beyond total 8"),
    (lambda: positions.context_parallel(8, 0, 2, cu_seqlens=[[0, 8]]), Shape, "n \\+ 1"),
    (lambda: positions.context_parallel(8, 0, 2, cu_seqlens=[0, 8.0]), Type, "cu_seqlens is 8.0"),
    (lambda: positions.context_parallel(8, 0, 2, cu_seqlens=F32), Type, "cu_seqlens is float32"),
    (lambda: positions.context_parallel(6, 0, 4, cu_seqlens=[0, 4]), Shape, "the sequence has 6 tokens"),
    # text
    (lambda: positions.text([0], 0), Shape, "n is 0"),
    (lambda: positions.text([0], 1.0), Type, "n is 1.0"),
    (lambda: positions.text([0.5]), Type, "pos is 0.5"),
    (lambda: positions.text(F16), Type, "pos is float16"),
    (lambda: positions.text(np.array([True])), Type, "pos is bool"),
    (lambda: positions.text(HUGE), Position, "pos holds"),
    # grids
    (lambda: positions.grid(), Shape, "no axis"),
    (lambda: positions.grid(2, -1), Shape, "sizes\\[1\\] is -1"),
    (lambda: positions.grid(2.0), Type, "sizes\\[0\\] is 2.0"),
    (lambda: positions.grid((2, 3)), Type, "sizes\\[0\\] is a tuple"),
    (lambda: positions.grid(2, 2, origin=(1, 2, 3)), Shape, "origin has 3 numbers for 2 axes"),
    (lambda: positions.grid(2, 2, step=[1]), Shape, "step has 1 numbers"),
    (lambda: positions.grid(2, origin=math.nan), Spec, "origin is nan"),
    (lambda: positions.grid(2, step=math.inf), Spec, "step is inf"),
    (lambda: positions.grid(2, step="1"), Spec, "step is '1'"),
    (lambda: positions.grid(2, step=True), Spec, "step is True"),
    (lambda: positions.grid(2, step=0.5, dtype="int64"), Spec, "give an integer, or dtype='float32'"),
    (lambda: positions.grid(2, origin=HUGE), Position, "a coordinate of the grid"),
    (lambda: positions.grid(3, step=2**30, dtype="int32"), Position, "integer of 32 bits"),
    (lambda: positions.grid(3, step=2**62), Position, "integer of 64 bits"),
    (lambda: positions.grid(2, origin=1e39), Position, "beyond float32"),
    (lambda: positions.grid(2, step=1e308, origin=1e308, dtype="float64"), Position, "beyond float64"),
    (lambda: positions.grid(2, origin=10**400, step=0.5), Spec, "origin"),
    (lambda: positions.grid(2, dtype="float16"), Type, "dtype is 'float16'"),
    (lambda: positions.video_grid(1, 3, 2, spatial_merge_size=2), Shape, "height is 3"),
    (lambda: positions.video_grid(1, 2, 3, spatial_merge_size=2), Shape, "width is 3"),
    (lambda: positions.video_grid(1, 2, 2, spatial_merge_size=0), Shape, "spatial_merge_size is 0"),
    (lambda: positions.video_grid(1, -2, 2), Shape, "is -2"),
    (lambda: positions.video_grid(1, 2, 2, step=(1, 1)), Shape, "step has 2 numbers for 3 axes"),
    (lambda: positions.normalized_grid(), Shape, "no axis"),
    (lambda: positions.normalized_grid(2, normalize="mean"), Spec, "normalize is 'mean'"),
    (lambda: positions.normalized_grid(2, dtype="int64"), Type, "dtype is 'int64'"),
    # augmentation
    (lambda: positions.shift(COORDS, -0.5, [0, 0]), Spec, "amount is -0.5"),
    (lambda: positions.shift(COORDS, math.nan, [0, 0]), Spec, "amount is nan"),
    (lambda: positions.jitter(COORDS, 0.5, [0, 0]), Spec, "factor is 0.5"),
    (lambda: positions.rescale(COORDS, 0.5, 0), Spec, "factor is 0.5"),
    (lambda: positions.rescale(COORDS, None, 0), Spec, "factor is None"),
    (lambda: positions.shift([[0.5]], 0.5, [0]), Type, "coords is a list"),
    (lambda: positions.shift(np.ones((2, 2), int), 0.5, [0, 0]), Type, "coords is int64"),
    (lambda: positions.shift(np.ones((2, 2), np.float16), 0.5, [0, 0]), Type, "coords is float16"),
    (lambda: positions.shift(F32, 0.5, [0, 0]), Shape, "coords is float32\\[2\\]"),
    (lambda: positions.shift(COORDS, 0.5, [0, 0, 0]), Shape, "uniform has the shape \\(3,\\)"),
    (lambda: positions.shift(COORDS, 0.5, 0.5), Shape, "uniform has the shape \\(\\)"),
    (lambda: positions.jitter(COORDS[None].repeat(2, 0), 2.0, np.ones((3, 2))), Shape, "axes of images"),
    (lambda: positions.rescale(COORDS[None].repeat(2, 0), 2.0, [0.5] * 3), Shape, "uniform has the shape"),
    (lambda: positions.shift(COORDS, 0.5, [0, 1.5]), Position, "holds 1.5; give random numbers from 0 to 1"),
    (lambda: positions.shift(COORDS, 0.5, [0, math.nan]), Position, "uniform holds nan"),
    (lambda: positions.shift(COORDS, 0.5, [0, -0.5]), Position, "uniform holds -0.5"),
    (lambda: positions.shift(COORDS, 0.5, [0, "1"]), Type, "uniform is '1'"),
    (lambda: positions.shift(COORDS, 0.5, None), Type, "uniform is None"),
    (lambda: positions.shift(COORDS, 0.5, F16), Type, "uniform is float16"),
    (lambda: positions.shift(COORDS, 0.5, np.ones(2, int)), Type, "uniform is int64"),
    # mrope
    (lambda: positions.mrope(0), Shape, "tokens is 0"),
    (lambda: positions.mrope([[[0]]]), Shape, "tokens"),
    (lambda: positions.mrope([0.0]), Type, "tokens is 0.0"),
    (lambda: positions.mrope(F32), Type, "tokens is float32"),
    (lambda: positions.mrope(np.array([True])), Type, "tokens is bool"),
    (lambda: positions.mrope([[0], [0, 0]]), Shape, "ragged"),
    (lambda: positions.mrope([1]), Shape, "there is no grid"),
    (lambda: positions.mrope([0, 2], [(1, 2, 2)]), Shape, "a block of video tokens"),
    (lambda: positions.mrope([0], [(1, 2, 2)]), Shape, "image_grid_thw has 1 blocks more"),
    (lambda: positions.mrope([0], (), [(2, 2, 2)]), Shape, "video_grid_thw has 1 blocks more"),
    (
        lambda: positions.mrope([1, 1, 0], [(1, 2, 6)]),
        Shape,
        "needs 3 image tokens in a row, and tokens has 2",
    ),
    (lambda: positions.mrope([1, 0, 1], [(1, 2, 4)]), Shape, "tokens has 1 from token 0"),
    (lambda: positions.mrope([1, 1], [(1, 2, 2)]), Shape, "there is no grid"),
    (lambda: positions.mrope([1], [(1, 3, 2)]), Shape, "multiples of spatial_merge_size 2"),
    (lambda: positions.mrope([1], [(0, 2, 2)]), Shape, "at least 1"),
    (lambda: positions.mrope([1], [(1, 2)]), Shape, "image_grid_thw has the shape \\(1, 2\\)"),
    (lambda: positions.mrope([1], (1, 2, 2)), Shape, "image_grid_thw has the shape \\(3,\\)"),
    (lambda: positions.mrope([1], [(1, 2.0, 2)]), Type, "image_grid_thw is 2.0"),
    (lambda: positions.mrope([1], np.array([[1.0, 2, 2]])), Type, "image_grid_thw is float64"),
    (lambda: positions.mrope([0, 0], mask=[1]), Shape, "mask has the shape \\(1,\\) and tokens \\(2,\\)"),
    (lambda: positions.mrope([0, 0], mask=[1, 2]), Position, "another number than 0 and 1"),
    (lambda: positions.mrope([0, 0], mask=F32), Type, "mask is float32"),
    (lambda: positions.mrope([0], image_token_id=2), Spec, "are both 2"),
    (lambda: positions.mrope([0], video_token_id=-1), Spec, "video_token_id is -1"),
    (lambda: positions.mrope([0], image_token_id=None), Spec, "image_token_id is None"),
    (lambda: positions.mrope([0], spatial_merge_size=0), Shape, "spatial_merge_size is 0"),
    (lambda: positions.mrope([0], advance="time"), Spec, "advance is 'time'"),
    (lambda: positions.mrope([0], tokens_per_second=0), Spec, "tokens_per_second is 0"),
    (lambda: positions.mrope([0], second_per_grid_ts=-1), Spec, "second_per_grid_ts is -1"),
    (lambda: positions.mrope([0], second_per_grid_ts=F16), Type, "give integers, float32 or float64"),
    (lambda: positions.mrope([2], (), [(1, 2, 2)], second_per_grid_ts=[1, 2]), Shape, "for 1 videos"),
    (lambda: positions.mrope([2], (), [(1, 2, 2)], second_per_grid_ts=[math.nan]), Spec, "is nan"),
    (lambda: positions.mrope([2, 2], (), [(2, 2, 2)], tokens_per_second=1e300), Spec, "tokens_per_second"),
    (lambda: positions.mrope([2, 2], (), [(2, 2, 2)], tokens_per_second=1e30), Spec, "takes 2 frames out"),
    (lambda: positions.mrope([2, 2], (), [(2, 2, 2)], tokens_per_second=1e10, dtype="int32"), Position, "32"),
    (lambda: positions.mrope([0], audio_token_id=2), Spec, "video_token_id and audio_token_id are both 2"),
    (lambda: positions.mrope([0], audio_token_id=-3), Spec, "audio_token_id is -3"),
    (lambda: positions.mrope([2, 3], (), [(1, 2, 4)], audio_token_id=3), Shape, "tokens has 1 from token 0"),
    (lambda: positions.mrope([2, 3, 2], (), [(1, 2, 4)]), Shape, "audio_token_id for audio among them"),
    (lambda: positions.mrope([0], shared_delimiters=1), Spec, "shared_delimiters is 1"),
    (
        lambda: positions.mrope([0, 2, 3, 0, 0], (), [(1, 2, 2)], audio_token_id=3, shared_delimiters=True),
        Shape,
        "two text tokens before and after the video with audio at tokens 1 to 3",
    ),
    (
        lambda: positions.mrope(
            [0, 0, 2, 3, 0, 1], [(1, 2, 2)], [(1, 2, 2)], audio_token_id=3, shared_delimiters=True
        ),
        Shape,
        "two text tokens before and after",
    ),
    (lambda: positions.mrope([0], temporal_merge_size=0), Shape, "temporal_merge_size is 0"),
    (lambda: positions.mrope([2], (), [(3, 2, 2)], temporal_merge_size=2), Shape, "pad the video"),
    (lambda: positions.mrope([0], time_rounding="frames"), Spec, "time_rounding is 'frames'"),
    (lambda: positions.mrope([0], dtype="float64"), Type, "dtype is 'float64'"),
    (lambda: positions.mrope([0], pad=HUGE), Position, "pad holds"),
    (lambda: positions.mrope([0], pad=0.5), Type, "pad is 0.5"),
]


def test_a_list_that_holds_itself_is_refused():
    ring: list = []
    ring.append(ring)
    for call in (positions.text, positions.packed, positions.from_mask, positions.mrope):
        with pytest.raises(ra.ShapeError, match="holds itself"):
            call(ring)
    for call in (lambda: positions.offset(2, ring), lambda: positions.shift(COORDS, 0.5, ring)):
        with pytest.raises(ra.ShapeError, match="holds itself"):
            call()


@pytest.mark.parametrize(("call", "error", "match"), REFUSED, ids=words)
def test_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_total_is_required_except_for_numpy(lib, like):
    if lib.name == "numpy":
        return  # NumPy's lengths are read
    with pytest.raises(ra.ShapeError, match=r"total=x.shape\[0\]"):
        positions.packed(integers(lib, [0, 2]))


def test_dtypes_are_refused_in_every_library(lib, like):
    floats = lib.asarray(np.ones(2, np.float32))
    with pytest.raises(ra.ArrayTypeError, match="offsets is float32"):
        positions.offset(2, floats)
    with pytest.raises(ra.ArrayTypeError, match="mask is float32"):
        positions.from_mask(floats)
    with pytest.raises(ra.ArrayTypeError, match="cu_seqlens is float32"):
        positions.packed(floats, 2)
    with pytest.raises(ra.ArrayTypeError, match="rank is float32"):
        positions.context_parallel(4, lib.asarray(np.array(0.0, np.float32)), 2)
    with pytest.raises(ra.ArrayTypeError, match="tokens is float32"):
        positions.mrope(floats)
    if "float16" in lib.dtypes:
        half = lib.asarray(np.ones((2, 2), np.float32), "float16")
        with pytest.raises(ra.ArrayTypeError, match="pos is float16"):
            positions.text(half)
        with pytest.raises(ra.ArrayTypeError, match="coords is float16"):
            positions.shift(half, 0.5, [0, 0])


@pytest.mark.library("jax", "torch")
def test_libraries_are_not_mixed():
    import jax.numpy as jnp
    import torch

    for call in (
        lambda: positions.offset(2, torch.tensor([1]), like=jnp.ones(1)),
        lambda: positions.packed(jnp.asarray([0, 1]), 1, offsets=torch.tensor([1])),
        lambda: positions.context_parallel(torch.ones(4), jnp.asarray(0), 2),
        lambda: positions.context_parallel(torch.ones(4), 0, 2, like=jnp.ones(1)),
        lambda: positions.context_parallel(np.ones(4), 0, 2, like=jnp.ones(1)),
        lambda: positions.shift(torch.ones(2, 1), 0.5, jnp.ones(1)),
    ):
        with pytest.raises(ra.ArrayTypeError, match="one library"):
            call()


@pytest.mark.library("jax")
def test_numbers_beyond_32_bits_do_not_wrap_in_jax(lib, like):
    for call in (
        lambda: positions.offset(1, 2**31, like=like),
        lambda: positions.offset(2, np.array([2**31 - 1]), like=like),
        lambda: positions.text([2**31], like=like),
        lambda: positions.grid(2, origin=2**31 - 1, like=like),
    ):
        with pytest.raises(ra.PositionError, match="32 bits"):
            call()


@pytest.mark.library("jax")
def test_mrope_under_a_tracer(lib, like):
    import jax

    with pytest.raises(ra.ArrayTypeError, match="cannot be read"):
        jax.jit(lambda t: positions.mrope(t)[0])(integers(lib, [0, 0]))


@pytest.mark.library("dask")
def test_mrope_of_dask(lib, like):
    with pytest.raises(ra.ArrayTypeError, match="compute"):
        positions.mrope(integers(lib, [0, 0]))


@pytest.mark.library("dask")
def test_dask_of_unknown_sizes(lib, like):
    import dask.array as da

    mask = da.from_array(np.array([0, 1, 1, 0, 1]), chunks=2)
    some = mask[mask >= 0]
    assert np.isnan(some.shape[0])
    assert positions.from_mask(some).compute().tolist() == [0, 0, 1, 0, 2]
    with pytest.raises(ra.ShapeError, match="cu_seqlens"):
        positions.packed(some, 5)
    with pytest.raises(ra.ShapeError, match="unknown length"):
        positions.context_parallel(some, 0, 1)


@pytest.mark.library("torch")
def test_tensors_of_other_kinds():
    import torch

    with pytest.raises(ra.ArrayTypeError, match="layout"):
        positions.from_mask(torch.tensor([[0, 1]]).to_sparse())
    with pytest.raises(ra.ArrayTypeError, match="cannot be read"):
        positions.mrope(torch.zeros(2, dtype=torch.int64, device="meta"))


def test_numpy_of_other_kinds():
    swapped = np.array([0, 2, 5], ">i4")
    assert positions.packed(swapped).tolist() == [0, 1, 0, 1, 2]
    assert positions.packed(swapped).dtype.isnative
    assert positions.from_mask(np.array([[1, 0, 1, 0]], np.uint8)[:, ::-2]).tolist() == [[0, 0]]
    assert positions.offset(2, np.arange(6)[::-3]).tolist() == [[5, 6], [2, 3]]


class Long(list):
    def __len__(self):
        return 5


class Huge(int):
    def __index__(self):
        return 10**30


@pytest.mark.library("numpy")
@pytest.mark.parametrize(
    ("build", "want"),
    [
        (lambda: positions.packed(Long([0, Huge(3), 5])), [0, 1, 2, 0, 1]),
        (lambda: positions.offset(2, Huge(4)), [4, 5]),
        (lambda: positions.offset(2, Long([0, Huge(4)])), [[0, 1], [4, 5]]),
        (lambda: positions.from_mask(Long([0, 1, 1])), [0, 0, 1]),
        (lambda: positions.text(Long([0, 1]), 2), [[0, 0], [1, 1]]),
        (lambda: positions.mrope(Long([0, 0]))[0], [[0, 0, 0], [1, 1, 1]]),
    ],
    ids=["packed", "one offset", "offsets", "mask", "text", "mrope"],
)
def test_subclasses_of_numbers_and_lists_count_by_their_values(build, want):
    assert build().tolist() == want
