"""`ra.positions`: its builders against plain loops, M-RoPE included; test_phase.py has positions of calls."""

import contextlib
import importlib
import itertools
import math
import tomllib
from fractions import Fraction
from functools import partial

import numpy as np
import oracle
import pytest
import test_errors
from compare import assert_same, words
from conftest import LIBS
from refusals import refusals, refused

import rope_array as ra
from rope_array import positions

pytestmark = pytest.mark.neutral
GOLDEN = tomllib.loads((oracle.GOLDEN / "positions.toml").read_text("utf-8"))

# ---- arrays ----


@pytest.fixture
def like(lib):
    """An array for `like=`; the library runs in its strictest setting."""
    with lib.running():
        yield lib.asarray(np.ones(2, np.float32))


def default(lib):
    return "int32" if lib.name == "jax" else "int64"


def integers(lib, values):
    """Make an array of the library's widest integers by default."""
    return lib.asarray(np.array(values, default(lib)))


def equals(lib, pos, expected, dtype=None):
    """Assert the library, dtype, shape and numbers of positions."""
    assert lib.owns(pos)
    assert lib.dtype_of(pos) == (dtype or default(lib))
    assert tuple(pos.shape) == np.shape(expected)
    assert lib.to_numpy(pos).tolist() == np.asarray(expected).tolist()


def is_made(pos, expected, shape=None, dtype=np.int64):
    """Assert the dtype, shape and numbers of positions of NumPy."""
    expected = np.array(expected, dtype)
    np.testing.assert_array_equal(pos, expected if shape is None else expected.reshape(shape), strict=True)


@pytest.mark.library("torch")
def test_document_ids_in_a_tensor_of_the_cpu_are_refused(lib):
    ids = lib.native.tensor([0, 0, 0, 1, 1, 2])
    with pytest.raises(ra.PositionError, match=r"positions\.documents"):
        ra.positions.packed(ids, total=6)
    compiled = lib.native.compile(ra.positions.packed, fullgraph=True, backend="eager")
    assert compiled(lib.native.tensor([0, 4, 6]), total=6).tolist() == [0, 1, 2, 3, 0, 1]


WRONG_TENSORS = {
    "packed(torch.tensor([3, 5]), 8)": "begins with 3 | not lengths",
    "packed(torch.tensor([0, 5, 3]), 8)": "falls from 5 to 3",
    "packed(torch.tensor([0, 3, 8]), 5)": "beyond total 5",
    "packed(torch.tensor([0, 3]), 3, offsets=torch.tensor(2**31 - 2), dtype='int32')": "offsets holds",
    "offset(4, torch.tensor([[2**31 - 2]]), dtype='int32')": "offsets holds 2147483646",
    "context_parallel(8, 0, 2, cu_seqlens=torch.tensor([0, 3, 8]))": "sequence 0",
}


@pytest.mark.library("torch")
@pytest.mark.parametrize(("call", "words"), WRONG_TENSORS.items(), ids=WRONG_TENSORS)
def test_tensors_of_the_cpu_are_checked_as_lists(call, words, lib):
    error = ra.ShapeError if call.startswith("context") else ra.PositionError
    refused(error, words, lambda: eval(call, vars(positions) | {"torch": lib.native}))


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
    float64_grid = partial(positions.normalized_grid, 2, like=like, dtype="float64")
    if lib.name != "jax":
        assert lib.dtype_of(float64_grid()) == "float64"
        return
    for build in (float64_grid, partial(positions.offset, 2, like=like, dtype="int64")):
        with pytest.raises(ra.ArrayTypeError, match="jax_enable_x64"):
            build()
    for build in (partial(positions.offset, 1, 2**31), partial(positions.grid, 2, origin=2**31 - 1)):
        with pytest.raises(ra.PositionError, match="32 bits"):
            build(like=like)
    with lib.native.enable_x64(True):
        assert lib.dtype_of(positions.offset(2, integers(lib, [1]))) == "int64"
        assert lib.dtype_of(float64_grid()) == "float64"


# ---- offset, packed, from_mask: in NumPy; each library's arrays follow below ----


@pytest.mark.parametrize("length", [0, 4])
@pytest.mark.parametrize("offsets", [0, -3, [5], [0, 10, -2], [[1, 2], [3, 4]], []], ids=str)
def test_offset(length, offsets):
    expected = [start + k for start in np.ravel(offsets).tolist() for k in range(length)]
    for first in (offsets, np.array(offsets, int)):
        is_made(positions.offset(length, first), expected, (*np.shape(offsets), length))


PACKS = [([3, 2], 0), ([], 4), ([], 0), ([0], 3), ([0, 3, 0, 0, 2, 0], 3)]


@pytest.mark.parametrize(("lengths", "padding"), PACKS, ids=str)
@pytest.mark.parametrize("offsets", [None, 5, "each"])
def test_packed(lengths, padding, offsets):
    cu, total = [0, *itertools.accumulate(lengths)], sum(lengths) + padding
    if offsets == "each":
        offsets = [10 * i + 1 for i in range(len(lengths))]
    starts = offsets if isinstance(offsets, list) else [offsets or 0] * len(lengths)
    expected = [start + k for n, start in zip(lengths, starts, strict=True) for k in range(n)]
    expected += [-1] * padding
    for ends in (cu, np.array(cu), np.array(cu, np.uint16)):
        is_made(positions.packed(ends, total, offsets=offsets, pad=-1), expected)
    is_made(positions.packed(cu, offsets=offsets), expected[: sum(lengths)])


@pytest.mark.without("numpy")
def test_lengths_on_a_device_are_not_read(lib, like):
    """So the total is given, and lengths beyond it are cut off; on the CPU, PyTorch's are refused."""
    with pytest.raises(ra.ShapeError, match=r"total=x.shape\[0\]"):
        positions.packed(integers(lib, [0, 2]))
    if lib.name == "torch":
        return
    tokens = positions.context_parallel(8, 1, 2, cu_seqlens=integers(lib, [0, 4, 40]))
    equals(lib, tokens, [2, 3, 6, 7])


MASKS = [[[0, 0, 1, 1, 1], [1, 1, 0, 1, 0], [0, 0, 0, 0, 0]], [0, 1, 1], [[[1, 0], [0, 1]]], [], [[], []]]


def loop_mask(row, pad):
    if row and isinstance(row[0], list):
        return [loop_mask(inner_row, pad) for inner_row in row]
    return [sum(row[:i]) if keep else pad for i, keep in enumerate(row)]


@pytest.mark.parametrize("mask", MASKS, ids=words)
def test_from_mask(mask):
    for pad, dtype in itertools.product((0, 1, np.int8(-1)), (None, "bool", "uint8", "int8", "int64")):
        typed_mask = mask if dtype is None else np.array(mask, dtype)
        is_made(positions.from_mask(typed_mask, pad=pad), loop_mask(mask, pad))


IDS = [[0, 0, 0, 1, 1, 2], [7, 7, -1, 7, 7, 7], [[1, 1, 2, 0], [0, 0, 0, 0]], [[[3], [3]]], [5], [], [[], []]]


def loop_documents(row):
    if row and isinstance(row[0], list):
        return [loop_documents(inner_row) for inner_row in row]
    return [len([*itertools.takewhile(row[i].__eq__, row[:i][::-1])]) for i in range(len(row))]


@pytest.mark.parametrize("ids", IDS, ids=words)
def test_documents(ids):
    for dtype in (None, "int8", ">i4", "int64"):
        is_made(positions.documents(ids if dtype is None else np.array(ids, dtype)), loop_documents(ids))


def test_ids_are_compared_before_they_are_cast():
    is_made(positions.documents(np.array([0, 2**32, 2**32]), dtype="int32"), [0, 0, 1], dtype=np.int32)


# ---- context_parallel ----


def loop_parallel(length, rank, size, layout):
    if layout == "contiguous":
        return [t for t in range(length) if t * size // length == rank]
    chunks = [t * 2 * size // length for t in range(length)]
    return [t for t in range(length) if min(chunks[t], 2 * size - 1 - chunks[t]) == rank]


# Lengths of packed sequences (None: one sequence), tokens after them, and ranks.
PARTS = [(None, 12, 3), (None, 0, 2), ([12], 12, 3), ([], 8, 2), ([0], 0, 4), ([4, 0, 0, 20, 0, 4], 4, 2)]
PARTS += [([6, 4], 2, 1)]


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize(("lengths", "padding", "size"), PARTS, ids=str)
def test_context_parallel_of_packed_sequences(layout, lengths, padding, size):
    """Each sequence is cut on its own, and the tokens after the last one; arrays are cut along any axis."""
    cu = [0, *itertools.accumulate(lengths or [])]
    cu_arguments = [None] if lengths is None else [cu, np.array(cu), np.array(cu, np.int32)]
    lengths = [*(lengths or []), padding]
    total, held = sum(lengths), []
    rows = np.arange(3 * total).reshape(3, total)
    for rank in range(size):
        starts = itertools.accumulate(lengths, initial=0)
        cuts = [loop_parallel(n, rank, size, layout) for n in lengths]
        expected = [start + t for start, tokens in zip(starts, cuts, strict=False) for t in tokens]
        held += expected
        for ends, number in itertools.product(cu_arguments, (rank, np.array(rank))):
            cut = partial(positions.context_parallel, rank=number, size=size, layout=layout, cu_seqlens=ends)
            is_made(cut(total), expected)
            for array, axis in ((rows, -1), (rows.T, 0), (rows.T, -2)):
                is_made(cut(array, axis=axis), np.take(array, np.array(expected, int), axis=axis))
    assert sorted(held) == [*range(total)]


# ---- text ----


@pytest.mark.parametrize("n", [1, 3, 4])
def test_text(n):
    for pos in (5, [1, 2, 3], range(3), [[1, 2], [3, 4]], []):
        expected = [[p] * n for p in np.ravel(pos).tolist()]
        is_made(positions.text(pos, n), expected, (*np.shape(pos), n))
    for dtype in ("int8", "uint32", "float32"):
        is_made(positions.text(np.array([[1, 2]], dtype), n), [[[1] * n, [2] * n]], dtype=dtype)


# ---- grids ----


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (2, 3, 4), (0, 3), (3, 0), (1, 2, 1, 3)], ids=str)
@pytest.mark.parametrize(("origin", "step"), [(0, 1), (-2, 3), ("each", "each")])
def test_grid(sizes, origin, step):
    n = len(sizes)
    origin, step = ([*range(5, 5 + n)], [*range(1, 1 + n)]) if origin == "each" else (origin, step)
    o, s = np.broadcast_to(origin, n).tolist(), np.broadcast_to(step, n).tolist()
    points = itertools.product(*map(range, sizes))
    expected = [[o[a] + s[a] * i for a, i in enumerate(point)] for point in points]
    for dtype in ("int64", "float32"):
        grid = positions.grid(*sizes, origin=origin, step=step, dtype=dtype)
        is_made(grid, expected, (math.prod(sizes), n), dtype)


def test_grid_of_fractions_rounds_once():
    expected = [[np.float32(0.1 + i), np.float32(0.3 * k)] for i in range(2) for k in range(50)]
    is_made(positions.grid(2, 50, origin=(0.1, 0), step=(1, 0.3)), expected, dtype=np.float32)


def loop_blocks(t, h, w, merge):
    """Return the patches of Qwen2-VL's vision tower: block by block, and row by row in a block."""
    return [
        [frame, merge * row + y, merge * column + x]
        for frame, row, column in itertools.product(range(t), range(h // merge), range(w // merge))
        for y, x in itertools.product(range(merge), range(merge))
    ]


@pytest.mark.parametrize(("sizes", "merge"), [((2, 4, 6), 2), ((1, 3, 6), 3), ((3, 2, 5), 1), ((0, 2, 2), 2)])
def test_video_grid(sizes, merge):
    make, points = partial(positions.video_grid, *sizes, spatial_merge_size=merge), loop_blocks(*sizes, merge)
    is_made(make(), points, (math.prod(sizes), 3))
    grid = make(origin=(1.5, 0, 4), step=(1 / 24, 1, 2))
    expected = np.array([[1.5 + t / 24, y, 4 + 2 * x] for t, y, x in points]).reshape(-1, 3)
    np.testing.assert_allclose(grid, expected, rtol=1e-7)
    assert grid.dtype == np.float32


@pytest.mark.parametrize("normalize", ["separate", "min", "max"])
@pytest.mark.parametrize("sizes", [(2, 3), (1, 1), (0, 4), (4, 0), (5,), (2, 3, 7)], ids=str)
def test_normalized_grid(normalize, sizes):
    extents = {"separate": sizes, "min": [min(sizes)] * 3, "max": [max(sizes)] * 3}[normalize]
    expected = [
        [float(2 * (i + Fraction(1, 2)) / extents[a] - 1) for a, i in enumerate(point)]
        for point in itertools.product(*map(range, sizes))
    ]
    for dtype in ("float32", "float64"):
        grid = positions.normalized_grid(*sizes, normalize=normalize, dtype=dtype)
        is_made(grid, expected, (math.prod(sizes), len(sizes)), dtype)


# ---- mrope: goldens are of transformers 5.23.0; test_hf_mrope.py has random calls of Qwen-Omni ----


def ids(text):
    return [[float(x) for x in point.split(",")] for point in text.split()]


SHARED = {"audio_token_id": 3, "shared_delimiters": True}


def evaluate(call):
    """Make the call of a text."""
    return eval(call, globals() | vars(positions))


@pytest.mark.parametrize(("call", "golden"), GOLDEN["mrope"].items(), ids=GOLDEN["mrope"])
def test_mrope(call, golden):
    pos, delta = evaluate(call)
    points, surplus = golden
    np.testing.assert_array_equal(pos, np.array(ids(points), pos.dtype).reshape(pos.shape))
    np.testing.assert_array_equal(delta, np.array(surplus, pos.dtype), strict=True)


@pytest.mark.parametrize("tokens", [[], [[]], [[], []], [[0, 0, 0]], np.zeros((0, 4), int)], ids=str)
def test_mrope_of_text(tokens):
    pos, delta = positions.mrope(tokens)
    shape = np.shape(tokens)
    is_made(pos, np.broadcast_to(np.arange(shape[-1])[:, None], (*shape, 3)))
    is_made(delta, np.zeros(shape[:-1]))


@pytest.mark.without("dask")  # whose arrays have no values
def test_mrope_of_packed_rows(lib, like):
    """Each sequence has positions of its own, with its images; tokens after the last are padding."""
    tokens = [0, 1, 1, 0, 0, 2, 2, 0, 0, 1, 0, 9, 9]
    cu, images, videos = [0, 4, 4, 8, 11], [(1, 2, 4), (1, 2, 2)], [(2, 2, 2)]
    sequences = "0,0,0 1,1,1 1,1,2 3,3,3", "0,0,0 1,1,1 2,1,1 3,3,3", "0,0,0 1,1,1 2,2,2 -1,-1,-1 -1,-1,-1"
    expected = np.array(ids(" ".join(sequences)), int)
    arrays, row = [integers(lib, values) for values in (tokens, images, videos)], integers(lib, [tokens])
    arguments_of_calls = [(tokens, images, videos), ([tokens], images, videos), arrays, [row, *arrays[1:]]]
    for (rows, *grids), ends in itertools.product(arguments_of_calls, (cu, np.array(cu), integers(lib, cu))):
        pos, delta = positions.mrope(rows, *grids, cu_seqlens=ends, pad=-1, like=like)
        equals(lib, pos, expected.reshape(tuple(pos.shape)))
        equals(lib, delta, [0, 0, 0, 0])
    mask = lib.asarray(np.array([False] + [True] * 12))
    pos, _ = positions.mrope(*arrays, cu_seqlens=cu, mask=mask)
    equals(lib, pos[:11, ...], [*np.array(ids("0,0,0 0,0,0 0,0,1 2,2,2"), int), *expected[4:11]])


# ---- calls and their values, in NumPy ----

zigzag = partial(positions.context_parallel, layout="zigzag")


def times(frames, **options):
    """Return the times of a video's frames, of one token each."""
    return positions.mrope([2] * frames, (), [(frames, 2, 2)], **options)[0][:, 0]


@pytest.mark.parametrize(("call", "expected"), GOLDEN["values"].items(), ids=GOLDEN["values"])
def test_golden(call, expected):
    pos = evaluate(call)
    assert pos.tolist() == expected
    assert pos.dtype.isnative


# ---- each library: eager, traced, lazy ----


def calls(a):
    """Call each builder that traces, on `arguments(lib)`."""
    cut, like = positions.context_parallel, a["coords"]
    return {
        "offset": positions.offset(3, a["offsets"]),
        "packed": positions.packed(a["cu"], 8, offsets=a["offsets"], pad=-1),
        "packed with empty sequences": positions.packed(a["parts"], 36),
        "documents": positions.documents(a["ids"]),
        "documents of a row": positions.documents(a["parts"]),
        "mask": positions.from_mask(a["mask"], pad=1),
        "rank": zigzag(8, a["rank"], 2),
        "rank of packed": cut(32, a["rank"], 2, cu_seqlens=a["parts"]),
        "cut": zigzag(a["mask"], 1, 2),
        "cut by rank": cut(a["cu"][1:], a["rank"], 2),
        "cut of packed": cut(a["coords"], 1, 2, axis=-1, cu_seqlens=a["cu"][:2]),
        "text": positions.text(a["offsets"]),
        "grid": positions.grid(2, 3, origin=-2, step=3, like=like),
        "grid of fractions": positions.grid(2, 3, step=0.1, like=like),
        "video_grid": positions.video_grid(2, 2, 4, spatial_merge_size=2, like=like),
        "normalized_grid": positions.normalized_grid(2, 3, like=like),
    }


def edges(a):
    """Call builders on values of the host, and where there are no tokens or several images."""
    cut, like = positions.context_parallel, a["coords"]
    return {
        "offset of a batch": positions.offset(2, a["mask"]),
        "offset of no token": positions.offset(0, a["offsets"]),
        "offset of the host": positions.offset(4, [[1, 2], [3, 4]], like=like),
        "offset of one": positions.offset(4, 7, like=like),
        "packed and strided": positions.packed(a["strided"], 8, offsets=3),
        "packed of none": positions.packed(a["none"][:1], 4, pad=-1),
        "packed of no token": positions.packed(a["none"], 0),
        "packed of the host": positions.packed([0, 2, 5], offsets=[1, 0], like=like),
        "documents of the host": positions.documents([[3, 3, -1]], like=like),
        "documents of bytes": positions.documents(a["bytes"]),
        "documents of unsigned ids": positions.documents(a["unsigned"]),
        "documents of no row": positions.documents(a["mask"][:0, ...]),
        "documents of no column": positions.documents(a["mask"][:, :0]),
        "mask of booleans": positions.from_mask(a["kept"]),
        "mask of bytes": positions.from_mask(a["bytes"]),
        "mask of no row": positions.from_mask(a["mask"][:0, ...]),
        "mask of no column": positions.from_mask(a["mask"][:, :0]),
        "mask of the host": positions.from_mask([[0, 1, 1]], pad=-1, like=like),
        "rank of the host": zigzag(8, 1, 2, like=like),
        "rank of packed on the host": zigzag(32, a["rank"], 2, cu_seqlens=[0, 4, 4, 28]),
        "rank of none": zigzag(8, a["rank"], 2, cu_seqlens=a["none"][:1]),
        "rank of no token": zigzag(0, a["rank"], 4, cu_seqlens=a["none"]),
        "cut along the first axis": cut(a["coords"][:2, ...], 0, 2, axis=-2),
        "text of floats": positions.text(a["floats"], 4),
        "text of the host": positions.text(range(3), 2, like=like),
        "grid of no point": positions.grid(0, 3, like=like),
    }


def arguments(lib):
    mask = [[0, 1, 1, 0], [1, 1, 1, 1]]
    return {
        "offsets": integers(lib, [4, 9]),
        "cu": integers(lib, [0, 2, 5]),
        "strided": integers(lib, [[0, 9], [2, 9], [5, 9]])[:, 0],
        "parts": integers(lib, [0, 4, 4, 4, 24, 24, 28]),
        "none": integers(lib, [0, 0]),
        "mask": integers(lib, mask),
        "ids": integers(lib, [[[5, 5, 5, -2], [-2, -2, 5, 5]], [[0, 1, 1, 1], [1, 1, 1, 1]]]),
        "kept": lib.asarray(np.array(mask, bool)),
        "bytes": lib.asarray(np.ones(300, np.uint8)),  # their sum does not fit a byte
        "unsigned": lib.asarray(np.array([2**32 - 1, 2**32 - 1, 7], np.uint32)),
        "rank": integers(lib, 1),
        "coords": lib.asarray(np.array([[-0.5, 0.25], [0.75, -1.0], [0.0, 0.5]], np.float32)),
        "floats": lib.asarray(np.array([0.25, 0.75], np.float32)),
    }


OF_NUMPY = calls(arguments(LIBS["numpy"])) | edges(arguments(LIBS["numpy"]))


def test_each_library_has_the_values_of_numpy(lib, like):
    """Nothing is computed before a value is asked for, and no argument is written or returned."""
    values = arguments(lib)
    before = {name: lib.snapshot(value) for name, value in values.items()}
    lazy = lib.name == "dask"
    settings = importlib.import_module("dask").config.set if lazy else contextlib.nullcontext
    with settings({"scheduler": test_errors.forbid_computing}):
        positions_by_name = calls(values) | edges(values)
    for name, pos in positions_by_name.items():
        expected = OF_NUMPY[name]
        assert lib.owns(pos), name
        assert lib.dtype_of(pos) == ("float32" if expected.dtype == np.float32 else default(lib)), name
        assert pos.shape == expected.shape, name
        np.testing.assert_array_equal(lib.to_numpy(pos), expected, err_msg=name)
        assert not any(lib.shares_memory(pos, value) for value in values.values()), name
    assert {name: lib.snapshot(value) for name, value in values.items()} == before


@pytest.mark.library("jax")
def test_under_jax_jit(lib, like):
    import jax

    with jax.numpy_rank_promotion("raise"):
        positions_by_name = jax.jit(calls)(arguments(lib))
    positions_by_name |= jax.jit(edges)(arguments(lib))
    for name, pos in positions_by_name.items():
        np.testing.assert_array_equal(pos, OF_NUMPY[name], err_msg=name)
    with pytest.raises(ra.ArrayTypeError, match="cannot be read"):
        jax.jit(lambda t: positions.mrope(t)[0])(integers(lib, [0, 0]))


def of_length(x, start, cu, mask):
    """Call each builder with the length of x."""
    n = x.shape[0]
    return {
        "offset": positions.offset(n, start, like=x),
        "packed": positions.packed(cu, n),
        "documents": positions.documents(mask),
        "mask": positions.from_mask(mask),
        "grid": positions.grid(n, 2, like=x),
        "grid of fractions": positions.grid(n, 2, origin=0.1, step=0.3, like=x),
        "normalized_grid": positions.normalized_grid(n, 2 * n, normalize="max", like=x),
        "contiguous": positions.context_parallel(2 * n, 1, 2, like=x),
        "zigzag of packed": zigzag(4 * n, 1, 2, cu_seqlens=4 * cu),
    }


@pytest.mark.library("torch")
@pytest.mark.parametrize("function", [calls, of_length])
def test_under_torch_compile(function, lib, like, fresh_dynamo):
    """Other values compile nothing more; other lengths and offsets compile once more at most."""
    import torch
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    numbers = {"offsets": [11, 3], "cu": [0, 2, 7], "parts": [0, 4, 4, 8, 8, 16, 20]}
    tensors = {name: torch.tensor(values) for name, values in numbers.items()}
    cases = [(arguments(lib),), (arguments(lib) | tensors,)]
    if function is of_length:
        lengths, cu = ((4, 5), (8, 6), (12, 7), (20, 100)), torch.tensor([0, 3])
        cases = [(torch.ones(n), start, cu, torch.ones(2, n, dtype=torch.uint8)) for n, start in lengths]
    for case in cases:
        eager = function(*case)
        for name, pos in compiled(*case).items():
            assert_same(pos, eager[name], name)
    assert counter.frame_count <= (1 if function is calls else 2)


@pytest.mark.library("torch")
def test_exported_over_lengths():
    import torch

    class Module(torch.nn.Module):
        def forward(self, x, cu, mask):
            return tuple(of_length(x, cu, cu, mask).values())

    def inputs(n):
        return torch.ones(n), torch.tensor([0, 3, 4]), torch.ones(2, n, dtype=torch.uint8)

    n = torch.export.Dim("n", min=2)
    program = torch.export.export(Module(), inputs(4), dynamic_shapes=({0: n}, None, {1: n}), strict=False)
    assert all(map(torch.equal, program.module()(*inputs(9)), Module()(*inputs(9))))


@pytest.mark.library("torch")
@pytest.mark.filterwarnings("ignore:Converting a tensor:torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_a_trace_counts_positions_by_the_library():
    """Its sizes are tensors; a size of the host would be a constant of the program."""
    import torch

    def count(x, start):
        return start + torch.arange(x.shape[-2], device=x.device)

    arguments_of_trace = torch.ones(2, 3, 4), torch.tensor(5)
    with pytest.raises(ra.ArrayTypeError, match=r"start \+ torch\.arange\(x\.shape\[-2\], device"):
        torch.jit.trace(lambda x, start: positions.offset(x.shape[-2], start), arguments_of_trace)
    traced = torch.jit.trace(count, arguments_of_trace)
    assert traced(torch.ones(2, 6, 4), torch.tensor(9)).tolist() == [*range(9, 15)]


# ---- errors ----

HUGE, F16 = 2**63, np.ones(2, np.float16)
RING = []
RING.append(RING)


@refusals("positions")
def test_refused(call, error, words):
    refused(error, words, lambda: evaluate(call))


@pytest.mark.library("torch")
@refusals("positions in torch")
def test_refused_in_torch(call, error, words):
    torch = importlib.import_module("torch")
    meta = torch.zeros(2, dtype=torch.int64, device="meta")
    refused(error, words, lambda: eval(call, vars(positions) | {"torch": torch, "META": meta}))


@pytest.mark.library("jax", "numpy", "torch")
@refusals("positions of two libraries")
def test_refused_with_two_libraries(call, error, words):
    names = {name: importlib.import_module(name) for name in ("jax", "torch")}
    refused(error, words, lambda: eval(call, vars(positions) | names | {"np": np}))


@pytest.mark.library("dask")
@refusals("positions in dask")
def test_refused_in_dask(call, error, words):
    names = {"dask": importlib.import_module("dask"), "UNKNOWN": unknown_size()}
    refused(error, words, lambda: eval(call, vars(positions) | names))


def unknown_size():
    """Return an array of dask that is a mask of 5 tokens, of unknown size."""
    mask = importlib.import_module("dask.array").from_array(np.array([0, 1, 1, 0, 1]), chunks=2)
    return mask[mask >= 0]


@pytest.mark.library("dask")
def test_a_mask_of_unknown_size():
    assert np.isnan(unknown_size().shape[0])
    assert positions.from_mask(unknown_size()).compute().tolist() == [0, 0, 1, 0, 2]
