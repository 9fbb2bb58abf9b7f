"""`ra.positions`: its builders against plain loops, M-RoPE included; test_phase.py has positions of calls."""

import itertools
import math
import random
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from compare import words
from test_errors import Huge, Long, forbid_computing

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


def test_values_of_any_integer_kind(lib, like):
    equals(lib, positions.offset(3, like=like), [0, 1, 2])
    for dtype in ("int8", "int16", "int32", "uint8", "uint16", "uint32"):  # 100 + 200 does not fit a byte
        equals(lib, positions.offset(201, integers(lib, [100], dtype)), [[*range(100, 301)]])
    for offsets in ([3, 5], (3, 5), range(3, 6, 2), np.array([3, 5]), [np.int8(3), np.uint64(5)]):
        equals(lib, positions.offset(1, offsets, like=like), [[3], [5]])
    for one in (3, np.int64(3), np.array(3)):
        equals(lib, positions.offset(np.int64(2), one, like=like), [3, 4])


def test_dtypes_asked_for(lib, like):
    for build in (
        partial(positions.offset, 2, 1),
        partial(positions.packed, [0, 2]),
        partial(positions.from_mask, [1, 1]),
        partial(positions.context_parallel, 4, 1, 2),
        partial(positions.grid, 2, 2),
        partial(positions.video_grid, 1, 1, 1),
        lambda **options: positions.mrope([0, 0], **options)[0],
        lambda **options: positions.mrope([[0, 0]], **options)[1],
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
    wide = partial(positions.normalized_grid, 2, like=like, dtype="float64")
    if lib.name != "jax":
        assert lib.dtype_of(wide()) == "float64"
        return
    for build in (wide, partial(positions.offset, 2, like=like, dtype="int64")):
        with pytest.raises(ra.ArrayTypeError, match="jax_enable_x64"):
            build()
    for build in (partial(positions.offset, 1, 2**31), partial(positions.grid, 2, origin=2**31 - 1)):
        with pytest.raises(ra.PositionError, match="32 bits"):
            build(like=like)


@pytest.mark.library("jax")
def test_settings_of_jax():
    import jax
    import jax.numpy as jnp

    for offsets in (7, [0, 10, -2], [[1, 2], [3, 4]]):
        with jax.numpy_rank_promotion("raise"):
            result = positions.offset(4, jnp.asarray(offsets))
        assert result.tolist() == positions.offset(4, offsets).tolist()
    with jax.enable_x64(True):
        assert positions.offset(2, jnp.asarray([1], jnp.int32)).dtype == jnp.int64
        assert positions.normalized_grid(2, like=jnp.ones(1), dtype="float64").dtype == jnp.float64


# ---- packed ----

PACKS = [([3, 2], 0), ([1], 0), ([], 4), ([], 0), ([0], 2), ([0, 0], 0), ([0, 3, 0, 0, 2, 0], 3)]
PACKS += [([5, 1, 1], 1)]


@pytest.mark.parametrize(("lengths", "padding"), PACKS, ids=str)
@pytest.mark.parametrize("offsets", [None, 5, "each"])
def test_packed(lib, like, lengths, padding, offsets):
    cu, total = [0, *itertools.accumulate(lengths)], sum(lengths) + padding
    if offsets == "each":
        offsets = [10 * i + 1 for i in range(len(lengths))]
    starts = offsets if isinstance(offsets, list) else [offsets or 0] * len(lengths)
    want = [start + k for n, start in zip(lengths, starts, strict=True) for k in range(n)] + [-1] * padding
    equals(lib, positions.packed(cu, total, offsets=offsets, pad=-1, like=like), want, shape=(total,))
    own = integers(lib, offsets) if isinstance(offsets, list) and offsets else offsets
    for dtype in ("int32", "uint16", default(lib)):
        made = positions.packed(integers(lib, cu, dtype), total, offsets=own, pad=-1)
        equals(lib, made, want, shape=(total,))


def test_packed_finds_the_total_on_the_host(lib, like):
    equals(lib, positions.packed([0, 2, 5], like=like), [0, 1, 0, 1, 2])
    equals(lib, positions.packed(np.array([0, 2, 5], np.int32), like=like), [0, 1, 0, 1, 2])
    equals(lib, positions.packed([0, 2], 4, like=like), [0, 1, 0, 0])
    if lib.name != "numpy":
        with pytest.raises(ra.ShapeError, match=r"total=x.shape\[0\]"):
            positions.packed(integers(lib, [0, 2]))
        # Lengths beyond the total are cut off; NumPy's are refused.
        made = positions.context_parallel(8, 1, 2, cu_seqlens=integers(lib, [0, 4, 40]))
        equals(lib, made, [2, 3, 6, 7])


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


def test_from_mask_of_no_size_and_of_many(lib, like):
    """300 ones do not fit a byte."""
    for shape in ((0,), (2, 0), (0, 3), (1, 1)):
        equals(lib, positions.from_mask(lib.asarray(np.ones(shape, bool))), np.zeros(shape, int), shape=shape)
    equals(lib, positions.from_mask(integers(lib, np.ones(300), "uint8")), [*range(300)])


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


# Lengths of packed sequences (None: one sequence), tokens after them, and ranks.
PARTS = [(None, 8, 2), (None, 12, 3), (None, 0, 2), ([8, 16], 0, 2), ([12], 12, 3), ([], 8, 2), ([0], 0, 4)]
PARTS += [([4, 0, 0, 20, 0, 4], 4, 2), ([6, 4], 2, 1)]


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize(("lengths", "padding", "size"), PARTS, ids=str)
def test_context_parallel_of_packed_sequences(lib, like, layout, lengths, padding, size):
    """Each sequence is cut on its own, and the tokens after the last one; arrays are cut along any axis."""
    cu = [0, *itertools.accumulate(lengths or [])]
    given = [None] if lengths is None else [cu, integers(lib, cu), integers(lib, cu, "int32")]
    lengths = [*(lengths or []), padding]
    total, held = sum(lengths), []
    whole = np.arange(3 * total).reshape(3, total)
    for rank in range(size):
        starts = itertools.accumulate(lengths, initial=0)
        parts = [loop_parallel(n, rank, size, layout) for n in lengths]
        want = [start + t for start, part in zip(starts, parts, strict=False) for t in part]
        held += want
        for ends, number in itertools.product(given, (rank, integers(lib, rank))):
            cut = partial(positions.context_parallel, rank=number, size=size, layout=layout, cu_seqlens=ends)
            equals(lib, cut(total, like=like), want, shape=(total // size,))
            for array, axis in ((whole, -1), (whole.T, 0), (whole.T, -2)):
                if ends is given[0] and (total or isinstance(number, int)):
                    part = np.take(array, np.array(want, int), axis=axis)
                    equals(lib, cut(integers(lib, array), axis=axis), part)
    assert sorted(held) == [*range(total)]


@pytest.mark.parametrize(
    ("cu", "want"),
    [
        # Megatron-LM's get_batch_on_this_cp_rank: four ranks, eight chunks
        (None, [[0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9]]),
        # Transformer Engine's test of thd_get_partitioned_indices
        ([0, 8, 16], [[0, 1, 6, 7, 8, 9, 14, 15], [2, 3, 4, 5, 10, 11, 12, 13]]),
    ],
)
def test_zigzag_is_that_of_megatron(cu, want):
    call = partial(positions.context_parallel, 16, size=len(want), layout="zigzag", cu_seqlens=cu)
    for kind in (int, np.int64, np.array, np.uint8):
        assert [call(rank=kind(rank)).tolist() for rank in range(len(want))] == want


def test_context_parallel_keeps_a_dtype_and_copies(lib, like, float_dtype):
    x = lib.asarray(np.arange(8).reshape(4, 2).astype(np.float32), float_dtype)
    for rank in (0, integers(lib, 0)):
        part = positions.context_parallel(x, rank, 2, axis=0)
        assert part.dtype == x.dtype
        assert lib.to_numpy(part).tolist() == [[0, 1], [2, 3]]
        assert not lib.shares_memory(part, x)


# ---- text ----


@pytest.mark.parametrize("n", [1, 3, 4])
def test_text(lib, like, n):
    for pos in (5, [1, 2, 3], range(3), [[1, 2], [3, 4]], []):
        want = [[p] * n for p in np.ravel(pos).tolist()]
        equals(lib, positions.text(pos, n, like=like), want, shape=(*np.shape(pos), n))
    for dtype in ("int8", "uint32", "float32"):
        own = lib.asarray(np.array([[1, 2]], dtype))
        equals(lib, positions.text(own, n), [[[1] * n, [2] * n]], dtype=dtype)


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
    for dtype in (None, "float32"):
        made = positions.grid(*sizes, origin=origin, step=step, like=like, dtype=dtype)
        equals(lib, made, want, dtype=dtype, shape=(math.prod(sizes), n))


def test_grid_of_fractions_rounds_once(lib, like):
    made = positions.grid(2, 50, origin=(0.1, 0), step=(1, 0.3), like=like)
    want = [[np.float32(0.1 + i), np.float32(0.3 * k)] for i in range(2) for k in range(50)]
    equals(lib, made, want, dtype="float32")


def loop_blocks(t, h, w, merge):
    """Return the patches of Qwen2-VL's vision tower: block by block, and row by row in a block."""
    return [
        [frame, merge * row + y, merge * column + x]
        for frame, row, column in itertools.product(range(t), range(h // merge), range(w // merge))
        for y, x in itertools.product(range(merge), range(merge))
    ]


@pytest.mark.parametrize(("sizes", "merge"), [((2, 4, 6), 2), ((1, 3, 6), 3), ((3, 2, 5), 1), ((0, 2, 2), 2)])
def test_video_grid(lib, like, sizes, merge):
    want = loop_blocks(*sizes, merge)
    made = positions.video_grid(*sizes, spatial_merge_size=merge, like=like)
    equals(lib, made, want, shape=(math.prod(sizes), 3))
    if merge == 1:
        equals(lib, positions.video_grid(*sizes, like=like), want)  # the default: a grid
    options = {"origin": (1.5, 0, 4), "step": (1 / 24, 1, 2), "spatial_merge_size": merge}
    made = positions.video_grid(*sizes, **options, like=like)
    want = np.array([[1.5 + t / 24, y, 4 + 2 * x] for t, y, x in want]).reshape(-1, 3)
    assert np.allclose(lib.to_numpy(made), want, rtol=1e-7, atol=0)
    assert lib.dtype_of(made) == "float32"


def test_order_of_patches_in_transformers():
    """get_vision_position_ids of transformers 5.23.0 for a grid (1, 4, 6), blocks of 2 by 2."""
    want = "00 01 10 11 02 03 12 13 04 05 14 15 20 21 30 31 22 23 32 33 24 25 34 35"
    made = positions.video_grid(1, 4, 6, spatial_merge_size=2)[:, 1:]
    assert " ".join(f"{h}{w}" for h, w in made.tolist()) == want


@pytest.mark.parametrize("normalize", ["separate", "min", "max"])
@pytest.mark.parametrize("sizes", [(2, 3), (1, 1), (0, 4), (4, 0), (5,), (2, 3, 7)], ids=str)
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
AUGMENT = pytest.mark.parametrize("name", ["shift", "jitter", "rescale"])


def augmented(name, limit, u):
    """Augment COORDS in Python's floats; u has one number for each coordinate, or one for all."""
    drawn = [2 * v - 1 for v in np.broadcast_to(u, 2).tolist()]
    if name == "shift":
        return [[c + limit * v for c, v in zip(point, drawn, strict=True)] for point in COORDS.tolist()]
    return [[c * limit**v for c, v in zip(point, drawn, strict=True)] for point in COORDS.tolist()]


@AUGMENT
def test_augmentation(lib, like, name):
    """Numbers of a sequence, of NumPy and of the library; a neutral limit changes nothing."""
    function, coords = getattr(positions, name), lib.asarray(COORDS)
    for u in ([0.0, 0.75], [1.0, 0.25], [0.5, 0.5]):
        u = u[0] if name == "rescale" else u
        for numbers in (u, np.array(u), lib.asarray(np.array(u, np.float32))):
            made = function(coords, 1.7, numbers)
            assert lib.owns(made)
            assert lib.dtype_of(made) == "float32"
            assert np.allclose(lib.to_numpy(made), augmented(name, 1.7, u), rtol=1e-6, atol=1e-7)
        assert lib.to_numpy(function(coords, 1.0 - (name == "shift"), u)).tolist() == COORDS.tolist()
    # Each image has its own numbers; images share coordinates, or each image has its own.
    batch = np.array([[0.1, 0.9], [0.3, 0.6]], np.float32)
    batch = batch[:, 0] if name == "rescale" else batch
    want = [lib.to_numpy(function(coords, 2.0, lib.asarray(one))) for one in batch]
    for images in (COORDS, np.stack([COORDS, COORDS])):
        made = lib.to_numpy(function(lib.asarray(images), 2.0, lib.asarray(batch)))
        assert np.array_equal(made, np.stack(want))
    if lib.name == "numpy":
        made = function(COORDS.astype(np.float64), 1.5, u)
        assert made.dtype == np.float64
        assert np.allclose(made, augmented(name, 1.5, u), rtol=1e-15)


@AUGMENT
@pytest.mark.parametrize("make", [np.random.default_rng, random.Random], ids=["numpy", "python"])
def test_random_generators(lib, like, make, name):
    """shift and jitter draw one number for each axis, rescale draws one."""
    coords, numbers, used = lib.asarray(COORDS), make(7), make(7)
    u = float(numbers.random()) if name == "rescale" else [float(numbers.random()) for _ in range(2)]
    made, want = (lib.to_numpy(getattr(positions, name)(coords, 2.0, given)) for given in (used, u))
    assert made.tolist() == want.tolist()
    assert used.random() == numbers.random()


# ---- mrope: goldens are of transformers 5.23.0 ----


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
            for k, i, j in itertools.product(range(t), range(rows), range(columns))
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


@pytest.mark.without("dask")  # mrope reads values
@pytest.mark.parametrize("advance", ["max", "spatial"])
@pytest.mark.parametrize("seed", range(12))
def test_mrope(lib, like, advance, seed):
    """Random layouts, padded left or right; adjacent images need no text between them."""
    rng = random.Random(seed)
    merge = rng.choice([1, 2, 3])
    batch = [some_segments(rng) for _ in range(rng.randint(1, 3))]
    expected = [by_segments(segments, advance == "spatial") for segments in batch]
    width = max(len(tokens) for tokens, _ in expected) + rng.randint(0, 2)
    left = rng.random() < 0.5

    def padded(row, pad):
        gap = [pad] * (width - len(row))
        return [*gap, *row] if left else [*row, *gap]

    rows = [padded(tokens, 9) for tokens, _ in expected]
    mask = [padded([1] * len(tokens), 0) for tokens, _ in expected]
    want = [padded(points, [-7] * 3) for _, points in expected]
    deltas = [max(map(max, points), default=-1) + 1 - len(tokens) for tokens, points in expected]
    grids = {
        k: [(t, merge * h, merge * w) for s in batch for kind, t, h, w, _ in [x for x in s if x[0] == k]]
        for k in ("image", "video")
    }
    options = {"spatial_merge_size": merge, "advance": advance, "pad": -7}
    options["second_per_grid_ts"] = [x[4] for s in batch for x in s if x[0] == "video"] or 1
    host = positions.mrope(rows, grids["image"], grids["video"], mask=mask, like=like, **options)
    given = [integers(lib, np.array(grids[k], int).reshape(-1, 3)) for k in ("image", "video")]
    own = positions.mrope(
        integers(lib, np.array(rows, int)), *given, mask=lib.asarray(np.array(mask, bool)), **options
    )
    for pos, delta in (host, own):
        equals(lib, pos, want, shape=(len(batch), width, 3))
        equals(lib, delta, deltas)


def ids(text):
    return [[float(x) for x in point.split(",")] for point in text.split()]


# The golden rows of Qwen-Omni: text, an image, a video with audio sorted among its frames, audio, text.
OMNI = {"image_grid_thw": [(1, 2, 4)], "video_grid_thw": [(3, 4, 2)], "audio_token_id": 3}
OMNI |= {"tokens_per_second": 2, "time_rounding": "seconds", "advance": "last"}
OMNI_2_5 = [9, 9, 4, 1, 1, 5, 4, 6, 2, 2, 3, 3, 2, 2, 3, 3, 2, 2, 3, 3, 3, 7, 5, 9, 6, 3, 3, 7]
OMNI_3 = [9, 9, 4, 1, 1, 5, 4, 6, 2, 2, 3, 3, 2, 2, 3, 2, 2, 3, 3, 3, 7, 5, 9, 6, 3, 3, 7]
OMNI_3_IDS = (
    "0,0,0 1,1,1 2,2,2 3,3,3 3,3,4 5,5,5 6,6,6 7,7,7 8,8,8 8,9,8 8,8,8 9,9,9 9.5,8,8 9.5,9,8 10,10,10 "
    "11,8,8 11,9,8 11,11,11 12,12,12 13,13,13 14,14,14 15,15,15 16,16,16 17,17,17 18,18,18 "
    "19,19,19 20,20,20"
)
AUDIO = "0,0,0 1,1,1 1,2,1 1,3,1 1,1,1 2,2,2"
LATE = float(np.float32(1.7))
SHARED = {"audio_token_id": 3, "shared_delimiters": True}
# Calls, positions, and how many positions more than tokens. Of a model: its get_rope_index.
MROPE = [
    # Qwen2VLModel: two images; a video after left padding
    ("mrope([0, 0, 1, 1, 1, 1, 0, 1, 1, 0], [(1, 4, 4), (1, 2, 4)], advance='spatial')",
     "0,0,0 1,1,1 2,2,2 2,2,3 2,3,2 2,3,3 4,4,4 5,5,5 5,5,6 7,7,7", -2),
    ("mrope([0, 0, 0, 2, 2, 2, 2, 0, 0, 0], (), [(4, 2, 2)], advance='spatial', mask=[0, 0] + [1] * 8)",
     "0,0,0 0,0,0 0,0,0 1,1,1 2,1,1 3,1,1 4,1,1 2,2,2 3,3,3 4,4,4", -3),
    # Qwen2_5_VLModel: a video in seconds, and an image
    ("mrope([0, 2, 2, 2, 2, 2, 2, 0, 1, 1, 0, 0], [(1, 4, 2)], [(3, 2, 4)], tokens_per_second=2,"
     " second_per_grid_ts=[1 / 3 * 3.7], advance='spatial')",
     "0,0,0 1,1,1 1,1,2 3,1,1 3,1,2 5,1,1 5,1,2 3,3,3 4,4,4 4,5,4 6,6,6 7,7,7", -4),
    # Qwen3VLModel: text between the frames of a video
    ("mrope([0, 2, 2, 0, 0, 2, 2, 0, 1, 0], [(1, 2, 2)], [(2, 4, 2)], split_frames=True, advance='spatial')",
     "0,0,0 1,1,1 1,2,1 3,3,3 4,4,4 5,5,5 5,6,5 7,7,7 8,8,8 9,9,9", 0),
    # Qwen2_5Omni: chunks of one second
    ("mrope(OMNI_2_5, **OMNI, second_per_grid_ts=1.0, shared_delimiters=True)",
     "0,0,0 1,1,1 2,2,2 3,3,3 3,3,4 5,5,5 6,6,6 6,6,6 7,7,7 7,8,7 7,7,7 8,8,8 9,7,7 9,8,7 9,9,9 10,10,10 "
     "11,7,7 11,8,7 11,11,11 12,12,12 13,13,13 14,14,14 14,14,14 15,15,15 16,16,16 17,17,17 18,18,18 "
     "19,19,19", -8),
    # Ernie4_5_VLMoeModel: two frames are one token in time
    ("mrope([0, 2, 2, 2, 2, 0, 1, 1, 0], [(1, 2, 4)], [(4, 2, 4)], temporal_merge_size=2, advance='spatial')",
     "0,0,0 1,1,1 1,1,2 2,1,1 2,1,2 3,3,3 4,4,4 4,4,5 6,6,6", -2),
    # Fractions are rounded once.
    ("mrope([0, 2, 2, 0], (), [(2, 2, 2)], second_per_grid_ts=1.7, dtype='float32')",
     f"0,0,0 1,1,1 {1 + LATE},1,1 {2 + LATE},{2 + LATE},{2 + LATE}", LATE - 1),
    # A video of 3 rows with 2 tokens of audio: "last" continues after the audio, the others after the rows.
    ("mrope([0, 2, 2, 2, 3, 3, 0], (), [(1, 6, 2)], audio_token_id=3, advance='last')", f"{AUDIO} 3,3,3", -3),
    ("mrope([0, 2, 2, 2, 3, 3, 0], (), [(1, 6, 2)], audio_token_id=3)", f"{AUDIO} 4,4,4", -2),
    # Audio alone is text.
    ("mrope([0, 3, 3, 0, 1, 3], [(1, 2, 2)], **SHARED)", "0,0,0 1,1,1 2,2,2 3,3,3 4,4,4 5,5,5", 0),
    # Text continues after the last frame, or with "spatial" after the rows and columns alone.
    ("mrope([0, 2, 2, 2, 0], (), [(3, 2, 2)])", "0,0,0 1,1,1 2,1,1 3,1,1 4,4,4", 0),
    ("mrope([0, 2, 2, 2, 0], (), [(3, 2, 2)], advance='spatial')", "0,0,0 1,1,1 2,1,1 3,1,1 2,2,2", -1),
    ("mrope([5, 91, 91, 6, 92, 7], [(1, 2, 4)], [(1, 2, 2)], image_token_id=91, video_token_id=92)",
     "0,0,0 1,1,1 1,1,2 3,3,3 4,4,4 5,5,5", 0),
    ("mrope([0, 0], mask=[0, 0], pad=1)", "1,1,1 1,1,1", 0),
]  # fmt: skip


def evaluate(call):
    """Make the call of a text."""
    return eval(call, globals() | vars(positions))


@pytest.mark.parametrize(("call", "want", "more"), MROPE, ids=[call for call, _, _ in MROPE])
def test_golden_mrope(call, want, more):
    pos, delta = evaluate(call)
    np.testing.assert_array_equal(pos, np.array(ids(want), pos.dtype))
    assert delta == np.asarray(more, pos.dtype)


@pytest.mark.without("dask")
def test_fractions_of_times_in_each_library(lib, like):
    mrope, exact = partial(positions.mrope, OMNI_3, **OMNI, second_per_grid_ts=0.75), ids(OMNI_3_IDS)
    pos, delta = mrope(like=like, dtype="float32")
    equals(lib, pos, exact, dtype="float32")
    equals(lib, delta, -6, dtype="float32")
    cut, _ = mrope(like=like)
    equals(lib, cut, np.floor(exact).astype(int))


def test_rounding_of_times():
    """float32(0.08) is below 0.08, but float32(25 · 0.08) is 2; float32(10 · float32(0.7)) is 7, too."""
    f = np.float32
    for kind, want in (("interval", [0, 2, 4, 6, 8, 10]), ("seconds", [0, 2, 4, 6, 8, 9])):
        call = {"tokens_per_second": 25, "second_per_grid_ts": 0.08, "time_rounding": kind}
        assert positions.mrope([2] * 6, (), [(6, 2, 2)], **call)[0][:, 0].tolist() == want
    assert want == [int(f(f(k) * f(0.08)) * f(25)) for k in range(6)]
    pos, _ = positions.mrope([2] * 11, (), [(11, 2, 2)], second_per_grid_ts=0.7)
    assert pos[:, 0].tolist() == [0, 0, 1, 2, 2, 3, 4, 4, 5, 6, 7]


@pytest.mark.parametrize("tokens", [[], [[]], [[], []], [0], [[0, 0, 0]], np.zeros((0, 4), int)], ids=str)
def test_mrope_of_text(lib, like, tokens):
    pos, delta = positions.mrope(tokens, like=like)
    shape = np.shape(tokens)
    want = np.broadcast_to(np.arange(shape[-1])[:, None], (*shape, 3))
    equals(lib, pos, want, shape=(*shape, 3))
    equals(lib, delta, np.zeros(shape[:-1], int))


def test_mrope_of_packed_rows(lib, like):
    """Each sequence has positions of its own, with its images; tokens after the last are padding."""
    tokens = [0, 1, 1, 0, 0, 2, 2, 0, 0, 1, 0, 9, 9]
    cu, images, videos = [0, 4, 4, 8, 11], [(1, 2, 4), (1, 2, 2)], [(2, 2, 2)]
    parts = "0,0,0 1,1,1 1,1,2 3,3,3", "0,0,0 1,1,1 2,1,1 3,3,3", "0,0,0 1,1,1 2,2,2 -1,-1,-1 -1,-1,-1"
    want = np.array(ids(" ".join(parts)), int)
    arrays = [] if lib.name == "dask" else [lib.asarray(np.array(cu, np.int32))]  # dask's has no values
    for given, ends in itertools.product((tokens, [tokens]), (cu, np.array(cu), *arrays)):
        pos, delta = positions.mrope(given, images, videos, cu_seqlens=ends, pad=-1, like=like)
        equals(lib, pos, want.reshape(*np.shape(given), 3))
        equals(lib, delta, [0, 0, 0, 0])
    pos, _ = positions.mrope(tokens, images, videos, cu_seqlens=cu, mask=[0] + [1] * 12, like=like)
    equals(lib, pos[:11, ...], [*np.array(ids("0,0,0 0,0,0 0,0,1 2,2,2"), int), *want[4:11]])


# ---- traced, lazy, without values ----


def calls(a):
    """Call each builder that traces, on `arguments(lib)`."""
    zigzag = partial(positions.context_parallel, layout="zigzag")
    return {
        "offset": positions.offset(3, a["offsets"]),
        "packed": positions.packed(a["cu"], 8, offsets=a["offsets"], pad=-1),
        "from_mask": positions.from_mask(a["mask"], pad=1),
        "rank": zigzag(8, a["rank"], 2),
        "cut": zigzag(a["mask"], 1, 2),
        "cut by rank": positions.context_parallel(a["cu"][1:], a["rank"], 2),
        "rank of packed": zigzag(8, a["rank"], 2, cu_seqlens=a["parts"]),
        "cut of packed": positions.context_parallel(
            a["coords"], 1, 2, axis=-1, cu_seqlens=a["parts"][:2] // 2
        ),
        "text": positions.text(a["offsets"]),
        "grid": positions.grid(2, 3, like=a["coords"]),
        "grid of fractions": positions.grid(2, 3, step=0.1, like=a["coords"]),
        "video_grid": positions.video_grid(2, 2, 4, spatial_merge_size=2, like=a["coords"]),
        "normalized_grid": positions.normalized_grid(2, 3, like=a["coords"]),
        "shift": positions.shift(a["coords"], 0.5, a["uniform"]),
        "jitter": positions.jitter(a["coords"], 2.0, a["uniform"]),
        "rescale": positions.rescale(a["coords"], 2.0, a["uniform"][0]),
    }


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


WANT = calls(arguments(AsNumPy))


@pytest.mark.library("jax")
def test_under_jax_jit(lib, like):
    import jax

    for name, made in jax.jit(calls)(arguments(lib)).items():
        assert made.shape == WANT[name].shape, name
        assert np.allclose(made, WANT[name], rtol=1e-6), name
    with pytest.raises(ra.ArrayTypeError, match="cannot be read"):
        jax.jit(lambda t: positions.mrope(t)[0])(integers(lib, [0, 0]))


@pytest.mark.library("torch")
def test_under_torch_compile(lib, like):
    """Other values compile nothing more."""
    import torch
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(calls, backend=counter, fullgraph=True)
    numbers = {"offsets": [11, 3], "cu": [0, 7, 8], "parts": [0, 0, 4]}
    other = {name: torch.tensor(values) for name, values in numbers.items()}
    for given in (arguments(lib), arguments(lib) | other):
        want = calls(given)
        for name, made in compiled(given).items():
            assert made.dtype == want[name].dtype, name
            assert torch.equal(made, want[name]), name
        assert counter.frame_count == 1


def of_length(x, start, cu, mask):
    """Call each builder of an integer result with the length of x."""
    n = x.shape[0]
    return (
        positions.offset(n, start, like=x),
        positions.packed(cu, n),
        positions.from_mask(mask),
        positions.grid(n, 2, like=x),
        positions.context_parallel(2 * n, 1, 2, like=x),
        positions.context_parallel(4 * n, 1, 2, layout="zigzag", cu_seqlens=4 * cu),
    )


@pytest.mark.library("torch")
def test_lengths_and_offsets_that_change_compile_twice_at_most():
    import torch
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(of_length, backend=counter, fullgraph=True)
    for n, start in ((4, 5), (8, 6), (12, 7), (20, 100)):
        given = torch.ones(n), start, torch.tensor([0, 3]), torch.ones(2, n, dtype=torch.uint8)
        assert all(map(torch.equal, compiled(*given), of_length(*given)))
    assert counter.frame_count <= 2


@pytest.mark.library("torch")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_exported_over_lengths(strict):
    import torch

    class Module(torch.nn.Module):
        def forward(self, x, cu, mask):
            return of_length(x, cu, cu, mask)

    def given(n):
        return torch.ones(n), torch.tensor([0, 3, 4]), torch.ones(2, n, dtype=torch.uint8)

    n = torch.export.Dim("n", min=2)
    program = torch.export.export(Module(), given(4), dynamic_shapes=({0: n}, None, {1: n}), strict=strict)
    assert all(map(torch.equal, program.module()(*given(9)), Module()(*given(9))))


@pytest.mark.library("torch")
def test_no_value_is_read():
    """Tensors on the device meta have no values; results have the right shape and dtype."""
    import torch

    values = {k: torch.from_numpy(np.asarray(v)) for k, v in arguments(AsNumPy).items()}
    want = calls(values)
    for name, made in calls({k: v.to("meta") for k, v in values.items()}).items():
        assert made.device.type == "meta", name
        assert (made.shape, made.dtype) == (want[name].shape, want[name].dtype), name


@pytest.mark.library("dask")
def test_dask_is_lazy(lib, like):
    import dask

    given = arguments(lib)
    with dask.config.set(scheduler=forbid_computing):
        results = calls(given)
    for name, made in results.items():
        assert lib.owns(made), name
        assert made.shape == WANT[name].shape, name
        assert np.array_equal(lib.to_numpy(made), WANT[name]), name


@pytest.mark.library("jax")
def test_ranks_of_a_mesh(lib, like):
    """Under vmap, jax.lax.axis_index is a traced rank, as in shard_map."""
    import jax

    zigzag = partial(positions.context_parallel, layout="zigzag")
    made = jax.vmap(lambda _: zigzag(8, jax.lax.axis_index("cp"), 2), axis_name="cp")(np.zeros(2, np.float32))
    assert made.tolist() == [[0, 1, 6, 7], [2, 3, 4, 5]]


@pytest.mark.library("torch")
def test_arrays_of_two_devices_are_refused():
    import torch

    meta = torch.empty(2, device="meta", dtype=torch.int64)
    for call in (
        partial(positions.offset, 2, meta, like=torch.ones(1)),
        partial(positions.packed, torch.tensor([0, 1, 2]), 2, offsets=meta),
        partial(positions.context_parallel, meta, 0, 2, like=torch.ones(1)),
    ):
        with pytest.raises(ra.ArrayTypeError, match=r"nothing moves silently|on one device"):
            call()


def test_inputs_are_not_written(lib, like):
    given = arguments(lib)
    before = {k: lib.snapshot(v) for k, v in given.items()}
    for made in calls(given).values():
        assert not any(lib.shares_memory(made, v) for v in given.values())
    assert {k: lib.snapshot(v) for k, v in given.items()} == before


# ---- errors ----

Type, Shape, Spec, Position = ra.ArrayTypeError, ra.ShapeError, ra.SpecError, ra.PositionError
HUGE, F16, F32 = 2**63, np.ones(2, np.float16), np.ones(2, np.float32)
RING = []
RING.append(RING)
REFUSED = [
    ("offset(2.0)", Type, "length is 2.0"),
    ("offset(-1)", Shape, "length is -1"),
    ("offset(2, 1.5)", Type, "offsets is 1.5"),
    ("offset(2, [1, True])", Type, "a bool"),
    ("offset(2, [[1], [1, 2]])", Shape, "ragged"),
    ("offset(2, RING)", Shape, "holds itself"),
    ("offset(2, np.array([1], np.uint64))", Type, "offsets is uint64"),
    ("offset(2, np.array([True]))", Type, "offsets is bool"),
    ("offset(2, np.ma.masked_array([1]))", Type, "masked array"),
    ("offset(2, HUGE - 1)", Position, "must fit"),
    ("offset(2, [0, 2**31 - 1], dtype='int32')", Position, "and 2 positions from there"),
    ("offset(2, np.array([0, 2**40]), dtype='int32')", Position, "signed integer of 32 bits"),
    ("offset(2, 10**5000)", Position, "bits"),
    ("offset(2, like=3)", Type, "like is 3"),
    ("offset(2, dtype='float32')", Type, "dtype is 'float32'"),
    ("packed(5)", Shape, "cu_seqlens is 5"),
    ("packed([])", Shape, r"n \+ 1"),
    ("packed([1, 2])", Position, "begins with 1"),
    ("packed([0, 3, 2])", Position, "falls from 3 to 2"),
    ("packed([0, 5], 4)", Position, "beyond total 4"),
    ("packed([0, 2], -1)", Shape, "total is -1"),
    ("packed([0, 2], offsets=[1, 2])", Shape, r"offsets has the shape \(2,\)"),
    ("packed([0, 2], offsets=[2**31 - 1], dtype='int32')", Position, "offsets holds"),
    ("packed([0, 2], pad=HUGE)", Position, "pad holds"),
    ("from_mask(1)", Shape, "mask is 1"),
    ("from_mask([0, 2])", Position, "another number than 0 and 1"),
    ("context_parallel(7, 0, 2)", Shape, "7 tokens, no multiple of size = 2"),
    ("context_parallel(6, 0, 2, layout='zigzag')", Shape, "no multiple of 2·size = 4"),
    ("context_parallel(8, 2, 2)", Spec, "rank is 2 of size 2"),
    ("context_parallel(8, -1, 2)", Spec, "rank is -1"),
    ("context_parallel(8, np.array([0]), 2)", Shape, "give one number"),
    ("context_parallel(8, 0, 0)", Spec, "size is 0"),
    ("context_parallel(8, 0, 2, layout='striped')", Spec, "layout is 'striped'"),
    ("context_parallel([0, 1], 0, 2)", Type, "sequence is a list"),
    ("context_parallel(np.ones(4), 0, 2, axis=1)", Shape, "axis is 1"),
    ("context_parallel(np.ones(4), 0, 2, axis=0.0)", Type, "axis is 0.0"),
    ("context_parallel(np.ma.masked_array([1, 2]), 0, 2)", Type, "masked array"),
    ("context_parallel(2**33, 0, 2**33, dtype='int32')", Position, "signed integer of 32 bits"),
    ("context_parallel(8, 0, 2, layout='zigzag', cu_seqlens=[0, 2, 8])", Shape, r"sequence 0 .* 2·size = 4"),
    ("context_parallel(8, 0, 2, cu_seqlens=np.array([0, 12]))", Position, "beyond total 8"),
    ("text([0], 0)", Shape, "n is 0"),
    ("text(HUGE)", Position, "pos holds"),
    ("grid()", Shape, "no axis"),
    ("grid(2, -1)", Shape, r"sizes\[1\] is -1"),
    ("grid(2, 2, origin=(1, 2, 3))", Shape, "origin has 3 numbers for 2 axes"),
    ("grid(2, origin=math.nan)", Spec, "origin is nan"),
    ("grid(2, step=0.5, dtype='int64')", Spec, "give an integer, or dtype='float32'"),
    ("grid(2, origin=HUGE)", Position, "a coordinate of the grid"),
    ("grid(2, origin=1e39)", Position, "beyond float32"),
    ("grid(2, step=1e308, origin=1e308, dtype='float64')", Position, "beyond float64"),
    ("video_grid(1, 3, 2, spatial_merge_size=2)", Shape, "height is 3"),
    ("video_grid(1, 2, 3, spatial_merge_size=2)", Shape, "width is 3"),
    ("normalized_grid(2, normalize='mean')", Spec, "normalize is 'mean'"),
    ("normalized_grid(2, dtype='int64')", Type, "dtype is 'int64'"),
    ("shift(COORDS, -0.5, [0, 0])", Spec, "amount is -0.5"),
    ("jitter(COORDS, 0.5, [0, 0])", Spec, "factor is 0.5"),
    ("shift([[0.5]], 0.5, [0])", Type, "coords is a list"),
    ("shift(F32, 0.5, [0, 0])", Shape, r"coords is float32\[2\]"),
    ("shift(COORDS, 0.5, [0, 0, 0])", Shape, r"uniform has the shape \(3,\)"),
    ("shift(COORDS, 0.5, 0.5)", Shape, r"uniform has the shape \(\)"),
    ("jitter(COORDS[None].repeat(2, 0), 2.0, np.ones((3, 2)))", Shape, "axes of images"),
    ("shift(COORDS, 0.5, [0, 1.5])", Position, "holds 1.5; give random numbers from 0 to 1"),
    ("mrope([[[0]]])", Shape, "tokens"),
    ("mrope([1])", Shape, "there is no grid"),
    ("mrope([0], [(1, 2, 2)])", Shape, "image_grid_thw has 1 blocks more"),
    ("mrope([1, 0, 1], [(1, 2, 4)])", Shape, "tokens has 1 from token 0"),
    ("mrope([1], [(1, 3, 2)])", Shape, "multiples of spatial_merge_size 2"),
    ("mrope([1], [(0, 2, 2)])", Shape, "at least 1"),
    ("mrope([1], [(1, 2)])", Shape, r"image_grid_thw has the shape \(1, 2\)"),
    ("mrope([1], np.array([[1.0, 2, 2]]))", Type, "image_grid_thw is float64"),
    ("mrope([0, 0], mask=[1])", Shape, r"mask has the shape \(1,\) and tokens \(2,\)"),
    ("mrope([0, 0], mask=[1, 2])", Position, "another number than 0 and 1"),
    ("mrope([0], video_token_id=-1)", Spec, "video_token_id is -1"),
    ("mrope([0], tokens_per_second=0)", Spec, "tokens_per_second is 0"),
    ("mrope([0], dtype='float64')", Type, "dtype is 'float64'"),
    ("mrope([0, 0], cu_seqlens=[[0, 2]])", Shape, "one array of n"),
    ("mrope([0, 0], cu_seqlens=[0, True])", Type, "no bools"),
    ("mrope([0], advance='time')", Spec, "advance is 'time'"),
    ("mrope([0], second_per_grid_ts=F16)", Type, "give integers, float32 or float64"),
    ("mrope([2], (), [(1, 2, 2)], second_per_grid_ts=[1, 2])", Shape, "for 1 videos"),
    ("mrope([2, 2], (), [(2, 2, 2)], tokens_per_second=1e30)", Spec, "takes 2 frames out"),
    ("mrope([2, 2], (), [(2, 2, 2)], tokens_per_second=1e10, dtype='int32')", Position, "32"),
    ("mrope([0], audio_token_id=2)", Spec, "video_token_id and audio_token_id are both 2"),
    ("mrope([0], shared_delimiters=1)", Spec, "shared_delimiters is 1"),
    ("mrope([0, 2, 3, 0, 0], (), [(1, 2, 2)], **SHARED)", Shape, r"two text tokens .* at tokens 1 to 3"),
    ("mrope([0, 0, 2, 3, 0, 1], [(1, 2, 2)], [(1, 2, 2)], **SHARED)", Shape, "two text tokens before"),
    ("mrope([0], temporal_merge_size=0)", Shape, "temporal_merge_size is 0"),
    ("mrope([2], (), [(3, 2, 2)], temporal_merge_size=2)", Shape, "pad the video"),
    ("mrope([0], time_rounding='frames')", Spec, "time_rounding is 'frames'"),
    ("mrope([[0, 0], [0, 0]], cu_seqlens=[0, 2])", Shape, "one row of packed tokens"),
    # A block of packed rows ends with its sequence.
    ("mrope([1, 1], [(1, 2, 4)], cu_seqlens=[0, 1, 2])", Shape, "needs 2 image tokens in a row"),
]


@pytest.mark.parametrize(("call", "error", "match"), REFUSED, ids=[call for call, _, _ in REFUSED])
def test_refused(call, error, match):
    with pytest.raises(error, match=match):
        evaluate(call)


def test_dtypes_are_refused_in_every_library(lib, like):
    floats = lib.asarray(np.ones(2, np.float32))
    rank = lib.asarray(np.array(0.0, np.float32))
    refused = [
        (partial(positions.offset, 2, floats), "offsets is float32"),
        (partial(positions.from_mask, floats), "mask is float32"),
        (partial(positions.packed, floats, 2), "cu_seqlens is float32"),
        (partial(positions.context_parallel, 4, rank, 2), "rank is float32"),
        (partial(positions.mrope, floats), "tokens is float32"),
    ]
    if "float16" in lib.dtypes:
        half = lib.asarray(np.ones((2, 2), np.float32), "float16")
        refused.append((partial(positions.text, half), "pos is float16"))
        refused.append((partial(positions.shift, half, 0.5, [0, 0]), "coords is float16"))
    for call, match in refused:
        with pytest.raises(ra.ArrayTypeError, match=match):
            call()


@pytest.mark.library("jax", "torch")
def test_libraries_are_not_mixed():
    import jax.numpy as jnp
    import torch

    for call in (
        lambda: positions.offset(2, torch.tensor([1]), like=jnp.ones(1)),
        lambda: positions.context_parallel(torch.ones(4), 0, 2, like=jnp.ones(1)),
        lambda: positions.context_parallel(np.ones(4), 0, 2, like=jnp.ones(1)),
        lambda: positions.shift(torch.ones(2, 1), 0.5, jnp.ones(1)),
    ):
        with pytest.raises(ra.ArrayTypeError, match="one library"):
            call()


@pytest.mark.library("dask")
def test_values_and_sizes_that_dask_does_not_know(lib, like):
    import dask.array as da

    with pytest.raises(ra.ArrayTypeError, match="compute"):
        positions.mrope(integers(lib, [0, 0]))
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


def test_subclasses_of_numbers_and_lists_count_by_their_values():
    for made, want in (
        (positions.packed(Long([0, Huge(3), 5])), [0, 1, 2, 0, 1]),
        (positions.offset(2, Huge(4)), [4, 5]),
        (positions.mrope(Long([0, 0]))[0], [[0, 0, 0], [1, 1, 1]]),
    ):
        assert made.tolist() == want
