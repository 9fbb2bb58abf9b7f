"""dask: results are lazy, one task per chunk, and right for any chunks of x and of the positions."""

import pickle

import cluster_cases
import compare
import numpy as np
import pytest

import rope_array as ra
from rope_array._backends import _native
from rope_array.testing._contract import assert_contract

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
pytestmark = pytest.mark.library("dask")

HALF = {"pairing": "half", "base": 500_000.0}
FIELDS = {
    "half": HALF,
    "partial": {"rotary_dim": 8, "rotary_start": 4, "attention_factor": 1.25},
    "mixed": {"out_pairing": "half"},
}
ROPE = ra.RoPE(16, **HALF)
B, H, S = 4, 3, 10
X = np.random.default_rng(0).standard_normal((B, H, S, 16)).astype(np.float32)
CHUNKS = (2, 3, 4, 16)
BS = np.random.default_rng(1).integers(-(10**9), 10**9, (B, S))


def refuse(*arguments, **options):
    raise AssertionError("something was computed")


@pytest.fixture
def lazily():
    """A scheduler that runs nothing."""
    with dask.config.set(scheduler=refuse):
        yield


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def judge(y, x, pos, **fields):
    """Assert that a result keeps the contract, and has the dtype that its graph declares."""
    result = y.compute()
    assert result.dtype == y.dtype == y._meta.dtype
    compare.judge(result, x, host(pos), **fields)


def lazy(function, *arguments, **options):
    """Call a function and assert that nothing was computed."""
    with dask.config.set(scheduler=refuse):
        return function(*arguments, **options)


def host(pos):
    return pos.compute() if isinstance(pos, da.Array) else pos


def tasks(array):
    return len(dict(array.__dask_graph__()))


def positions():
    """Positions of every kind for an x of (batch, head, sequence, features)."""
    return {
        "int": 7,
        "float": 0.5,
        "NumPy scalar": np.int64(123456789),
        "range": range(3, 13),
        "range down": range(12, 2, -1),
        "list": [*range(5), 9, 8, 2**31 - 1, -(2**31), 0],
        "list of floats": [i + 0.25 for i in range(S)],
        "nested list": [[i + 10 * b for i in range(S)] for b in range(B)],
        "NumPy (S,)": BS[0],
        "NumPy floats": np.arange(S) - 2.25,
        "NumPy strided": np.arange(2 * S)[::-2],
        "NumPy uint8": np.arange(S, dtype=np.uint8),
        "NumPy (1,)": np.array([5]),
        "NumPy (B, S)": BS,
        "NumPy (1, S)": BS[:1],
        "NumPy (B, 1)": BS[:, :1],
        "NumPy (1, 1)": BS[:1, :1],
        "NumPy (B, 1, S)": BS[:, None],
        "NumPy (1, H, 1)": np.arange(H)[None, :, None],
        "dask (S,)": da.from_array(BS[0], chunks=3),
        "dask whole": da.from_array(BS, chunks=-1),
        "dask alike": da.from_array(BS, chunks=(2, 4)),
        "dask other": da.from_array(BS, chunks=(3, 3)),
        "dask one by one": da.from_array(BS, chunks=1),
        "dask floats": da.from_array(np.arange(S) * 0.25, chunks=4),
        "dask (1, S)": da.from_array(BS[:1], chunks=(1, 5)),
        "dask (B, 1)": da.from_array(BS[:, :1], chunks=(3, 1)),
        "dask ()": da.from_array(np.array(9)),
    }


POSITIONS = list(positions())


# ---- lazy, whole heads, few tasks ----


@pytest.mark.parametrize("name", POSITIONS)
def test_apply(name):
    pos = positions()[name]
    x = da.from_array(X, chunks=CHUNKS)
    y = lazy(ROPE.apply, x, pos)
    assert y.chunks == x.chunks
    assert isinstance(y._meta, np.ndarray)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    judge(y, X, pos, **HALF)
    judge(lazy(ROPE.apply, x, pos, inverse=True), X, pos, inverse=True, **HALF)
    judge(lazy(ROPE.apply, x, pos, backend="array-api"), X, pos, **HALF)


@pytest.mark.parametrize("name", POSITIONS)
def test_at_most_one_task_for_each_chunk(name):
    pos = positions()[name]
    x = da.from_array(X, chunks=CHUNKS).persist()
    y = lazy(ROPE.apply, x, pos)
    # The tasks of dask positions, rechunked like x, are not counted.
    own = 0
    if isinstance(pos, da.Array):
        cut = {a: (1,) if pos.shape[a] == 1 else x.chunks[(0, 2)[a - pos.ndim]] for a in range(pos.ndim)}
        own = tasks(pos.rechunk(cut))
    assert tasks(y) - tasks(x) - own <= x.npartitions
    assert y.npartitions == x.npartitions
    (optimized,) = dask.optimize(y)
    assert tasks(optimized) - own <= 2 * x.npartitions


@pytest.mark.parametrize("name", POSITIONS)
def test_rotation(name):
    pos = positions()[name]
    x = da.from_array(X, chunks=CHUNKS)
    rotation = lazy(ROPE.rotation, pos, like=x)
    assert isinstance(rotation.cos, da.Array)
    assert rotation.cos.dtype == "float32"
    assert rotation.cos.numblocks[-1] == 1
    y = lazy(rotation.apply, x)
    assert y.chunks == x.chunks
    judge(y, X, pos, **HALF)
    judge(lazy(rotation.inverse().apply, x), X, pos, inverse=True, **HALF)
    judge(lazy(rotation.adjoint().apply, x), X, pos, inverse=True, **HALF)


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("width", [(8, 8), (5, 11), (1,) * 16, (4, 8, 4)], ids=str)
def test_split_heads_are_joined(width, fields):
    x = da.from_array(X, chunks=((2, 2), (3,), (4, 4, 2), width))
    y = lazy(ra.apply, x, BS, **fields)
    assert y.chunks == (*x.chunks[:-1], (16,))
    judge(y, X, BS, **fields)
    rotation = lazy(ra.RoPE(16, **fields).rotation, range(S), like=x)
    judge(lazy(rotation.apply, x), X, range(S), **fields)
    y = lazy(ra.apply, x, BS, backend="array-api", **fields)
    judge(y, X, BS, **fields)


@pytest.mark.parametrize(
    "chunks", [(1, 1, 1, 16), (4, 3, 10, 16), (3, 2, 7, 16), ((1, 3), (3,), (9, 1), (16,))]
)
def test_chunks_of_x_stay(chunks):
    x = da.from_array(X, chunks=chunks)
    for pos in (range(S), BS, BS[:, :1], da.from_array(BS, chunks=(4, 1)), da.from_array(BS, chunks=(1, 10))):
        y = lazy(ROPE.apply, x, pos)
        assert y.chunks == x.chunks
        judge(y, X, pos, **HALF)


SEQUENCE_SECOND = {"(S,)": BS[0], "(1, S)": BS[:1], "(B, 1)": BS[:, :1], "(B, S)": BS}


@pytest.mark.parametrize("kind", ["numpy", "dask"])
@pytest.mark.parametrize("shape", SEQUENCE_SECOND)
def test_sequence_before_heads(shape, kind):
    pos, x = SEQUENCE_SECOND[shape], np.ascontiguousarray(X.transpose(0, 2, 1, 3))
    pos = pos if kind == "numpy" else da.from_array(pos, chunks=3)
    dx = da.from_array(x, chunks=(2, 4, 2, 8))
    judge(lazy(ROPE.apply, dx, pos, seq_axis=-3), x, pos, seq_axis=-3, **HALF)
    judge(lazy(ROPE.apply, dx, pos, seq_axis=1, inverse=True), x, pos, seq_axis=1, inverse=True, **HALF)
    judge(lazy(ROPE.rotation(pos, like=dx).apply, dx, seq_axis=-3), x, pos, seq_axis=-3, **HALF)
    judge(lazy(ROPE.apply, dx, pos, seq_axis=-3, backend="array-api"), x, pos, seq_axis=-3, **HALF)


@pytest.mark.parametrize("kind", ["numpy", "dask"])
@pytest.mark.parametrize("seq_axis", [0, 1, 2])
def test_positions_of_three_axes(seq_axis, kind):
    shape = np.moveaxis(np.empty((B, H, S)), seq_axis, -1).shape
    pos = np.random.default_rng(2).integers(-(2**31), 2**31, shape)
    own = pos if kind == "numpy" else da.from_array(pos, chunks=2)
    x = da.from_array(X, chunks=CHUNKS)
    judge(lazy(ROPE.apply, x, own, seq_axis=seq_axis), X, pos, seq_axis=seq_axis, **HALF)
    judge(lazy(ROPE.rotation(own, like=x).apply, x, seq_axis=seq_axis), X, pos, seq_axis=seq_axis, **HALF)


def test_misfits_raise_at_once(lazily):
    x = da.from_array(X, chunks=CHUNKS)
    for pos in (range(S + 1), np.arange(S - 1), da.arange(S + 2, chunks=4), BS[:3], BS.T, [[1, 2]]):
        with pytest.raises(ra.ShapeError, match="line up"):
            ROPE.apply(x, pos)
    with pytest.raises(ra.ShapeError, match="seq_axis=-3"):
        ROPE.apply(x, range(H))
    with pytest.raises(ra.ShapeError, match="head_dim"):
        ra.RoPE(8).apply(x, 3)
    with pytest.raises(ra.ArrayTypeError, match="real floating point"):
        ROPE.apply(x.astype(int), 3)
    with pytest.raises(ra.ArrayTypeError, match="pos is float16"):
        ROPE.apply(x, da.ones(S, dtype="float16"))
    with pytest.raises(ra.ArrayTypeError, match="pos is uint64"):
        ROPE.apply(x, np.arange(S, dtype="uint64"))
    with pytest.raises(ra.PositionError):
        ROPE.apply(x, float("nan"))
    with pytest.raises(ra.PositionError):
        ROPE.apply(x, [2**63] * S)
    with pytest.raises(ra.ArrayTypeError):
        ROPE.apply((x, X), 3)


# ---- unknown sizes ----


def unknown():
    """Return x and positions of unknown length, and the same in NumPy."""
    numbers = da.arange(S, chunks=4)
    mask = numbers % 3 != 0
    kept = np.arange(S) % 3 != 0
    x = da.from_array(X, chunks=CHUNKS)[:, :, mask]
    assert np.isnan(x.shape[2])
    return x, (numbers * 1_000_003)[mask], X[:, :, kept], (np.arange(S) * 1_000_003)[kept]


def test_unknown_sizes():
    dx, dpos, x, pos = unknown()
    judge(lazy(ROPE.apply, dx, dpos), x, pos, **HALF)
    judge(lazy(ROPE.apply, dx, dpos[None]), x, pos[None], **HALF)
    judge(lazy(ROPE.rotation(dpos, like=dx).apply, dx), x, pos, **HALF)
    for one in (5, 0.5, np.int64(3), [5], np.array([5]), np.array([[5]]), da.from_array(np.array([5]))):
        judge(lazy(ROPE.apply, dx, one), x, one, **HALF)
        judge(lazy(ROPE.rotation(one, like=dx).apply, dx), x, one, **HALF)


def test_unknown_sizes_of_another_axis():
    keep = np.array([True, False, True, True])
    x = da.from_array(X, chunks=CHUNKS)[da.from_array(keep, chunks=2)]
    judge(lazy(ROPE.apply, x, range(S)), X[keep], range(S), **HALF)
    judge(lazy(ROPE.apply, x, BS[:1]), X[keep], BS[:1], **HALF)
    judge(lazy(ROPE.apply, x, da.from_array(BS[0], chunks=3)), X[keep], BS[0], **HALF)
    own = da.from_array(BS, chunks=(2, 4))[da.from_array(keep, chunks=2)]
    judge(lazy(ROPE.apply, x, own), X[keep], BS[keep], **HALF)


@pytest.mark.parametrize(
    "call", [ROPE.apply, lambda x, pos: ROPE.rotation(pos, like=x).apply(x)], ids=["apply", "rotation"]
)
def test_unknown_sizes_that_may_not_match_raise(call):
    dx, dpos, x, _ = unknown()
    numbers = da.arange(S, chunks=4)
    bad = {
        "NumPy": np.arange(x.shape[2]),
        "list": [*range(x.shape[2])],
        "too long": numbers,
        "fewer chunks": da.arange(S, chunks=5),
        "another mask": numbers[numbers % 3 == 0],
        "one more": numbers[numbers % 3 != 5],
        "one in every chunk": numbers[numbers % 4 == 1],
        "none": numbers[numbers < 0],
        "cut elsewhere": da.arange(x.shape[2], chunks=3),
        "one chunk": da.arange(x.shape[2], chunks=-1),
    }
    # The error comes at once if the numbers of chunks differ, else when a chunk is computed.
    taken = []
    for name, pos in bad.items():
        try:
            call(dx, pos).compute()
        except ra.ShapeError:
            continue
        taken.append(name)
    assert not taken
    with pytest.raises(ra.ShapeError):
        call(da.from_array(X, chunks=CHUNKS), dpos).compute()


def test_unknown_width_is_refused(lazily):
    x = da.from_array(X, chunks=CHUNKS)[..., da.arange(16) < 20]
    for call in (ROPE.apply, ra.apply):
        with pytest.raises(ra.ShapeError, match=r"nan\] \(dask\).* unknown.*x\.compute_chunk_sizes\(\)"):
            call(x, 3)


def test_a_width_computed_as_the_error_says():
    x = da.from_array(X, chunks=CHUNKS)[..., da.arange(16) < 20].compute_chunk_sizes()
    judge(ROPE.apply(x, 3), X, 3, **HALF)


# ---- arrays of every kind ----


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dtypes(dtype):
    x = X.astype(dtype)
    y = lazy(ROPE.apply, da.from_array(x, chunks=CHUNKS), BS)
    judge(y, x, BS, **HALF)
    rotation = lazy(ROPE.rotation, BS, like=da.from_array(x, chunks=CHUNKS))
    assert (
        rotation.cos.dtype == rotation.cos.compute().dtype == ("float64" if dtype == "float64" else "float32")
    )


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = X.astype(ml_dtypes.bfloat16)
    judge(lazy(ROPE.apply, da.from_array(x, chunks=CHUNKS), BS), x, BS, **HALF)


def test_tuple():
    pos = da.from_array(BS, chunks=(3, 3))
    xs = X, X[:, :1].astype(np.float64), X[:, :2].astype(np.float16)
    chunks = CHUNKS, (1, 1, 5, 8), (4, 2, 10, 16)
    ys = lazy(ROPE.apply, tuple(map(da.from_array, xs, chunks)), pos)
    assert type(ys) is tuple
    for y, x in zip(ys, xs, strict=True):
        judge(y, x, BS, **HALF)
    like = da.from_array(xs[1], chunks=chunks[1])
    for y, x in zip(
        lazy(ROPE.rotation(pos, like=like).apply, tuple(map(da.from_array, xs, chunks))), xs, strict=True
    ):
        assert_contract(y.compute().astype(np.float64), x, BS, dtype=x.dtype.name, **HALF)


@pytest.mark.parametrize("shape", [(0, 3, 10, 16), (4, 3, 0, 16), (4, 0, 10, 16), (16,), (1, 16)], ids=str)
def test_sizes(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    dx = da.from_array(x, chunks=2)
    for pos in (3, range(shape[-2])) if len(shape) > 1 else (3,):
        judge(lazy(ROPE.apply, dx, pos), x, pos, **HALF)
    judge(lazy(ra.apply, dx, 3, rotary_dim=0), x, 3, rotary_dim=0)
    if len(shape) > 1:
        pos = da.arange(shape[-2], chunks=3)
        judge(lazy(ROPE.apply, dx, pos), x, pos, **HALF)


def test_masked_chunks_are_refused(lazily):
    x = da.ma.masked_greater(da.from_array(X, chunks=CHUNKS), 1.0)
    for call in (lambda: ROPE.apply(x, 3), lambda: ROPE.rotation(3, like=da.from_array(X)).apply(x)):
        with pytest.raises(ra.ArrayTypeError, match=r"map_blocks .* masked"):
            call()


def test_learned_frequencies():
    x = da.from_array(X, chunks=CHUNKS)
    omegas = np.array(ROPE.frequencies)
    for inv_freq in (da.from_array(omegas, chunks=-1), da.from_array(omegas, chunks=3)):
        for pos in (range(S), da.arange(S, chunks=4), 3, BS % 10):
            rotation = lazy(ROPE.rotation, pos, like=x, inv_freq=inv_freq)
            truth = ROPE.apply(X, host(pos) if not isinstance(pos, range) else pos)
            np.testing.assert_allclose(lazy(rotation.apply, x).compute(), truth, atol=1e-5)


def test_matrix():
    from rope_array.testing import rotation_matrix

    pos = da.arange(S, chunks=4)
    matrix = lazy(ROPE.matrix, pos, like=da.from_array(X.astype(float), chunks=CHUNKS))
    np.testing.assert_allclose(
        matrix.compute(), rotation_matrix(np.arange(S), head_dim=16, **HALF), atol=1e-15
    )


# ---- large arrays: few tasks, small graphs ----


@pytest.mark.skipif(_native.kernel is None, reason="the C++ kernel is not built")
@pytest.mark.parametrize("pos", [7, range(S), [*range(S)], BS], ids=["int", "range", "list", "NumPy"])
def test_the_kernel_rotates_each_chunk(pos, monkeypatch):
    cluster_cases.leave_the_kernel_alone(monkeypatch.setattr)
    x = da.from_array(X, chunks=CHUNKS)
    np.testing.assert_array_equal(ROPE.apply(x, pos).compute(), ROPE.apply(X, pos))
    np.testing.assert_array_equal(ROPE.rotation(pos, like=x).apply(x).compute(), ROPE.apply(X, pos))


LAYERS, LENGTH = 24, 2**17
LARGE = (LAYERS, 32, LENGTH, 256)  # 103 GB of float32
SLICES = {"range": range(LENGTH), "int": 3, "dask": "dask", "a range down": range(LENGTH, 0, -1)}


@pytest.mark.parametrize("pos", SLICES.values(), ids=SLICES)
def test_100_gigabytes_are_planned_as_one_task_for_each_chunk(lazily, pos):
    cloudpickle = pytest.importorskip("cloudpickle")
    x = da.zeros(LARGE, chunks=(1, 32, 4096, 256), dtype="float32")
    pos = da.arange(LENGTH, chunks=4096) if isinstance(pos, str) else pos
    assert x.nbytes > 100e9
    y = ra.RoPE(256, **HALF).apply(x, pos)
    own = tasks(pos) if isinstance(pos, da.Array) else 0
    assert tasks(y) == 2 * x.npartitions + own
    (optimized,) = dask.optimize(y)
    assert tasks(optimized) == x.npartitions + own  # made and rotated by one task
    assert len(cloudpickle.dumps(y)) < 300 * x.npartitions


def test_a_task_has_its_own_positions_only():
    cloudpickle = pytest.importorskip("cloudpickle")
    x = da.zeros((2, 1, LENGTH, 16), chunks=(1, 1, 2**12, 16))
    sizes = {}
    for name, pos in {"int": 3, "range": range(LENGTH), "NumPy": np.arange(LENGTH)}.items():
        (optimized,) = dask.optimize(ROPE.apply(x, pos))
        sizes[name] = max(len(cloudpickle.dumps(task)) for task in dict(optimized.__dask_graph__()).values())
    assert sizes["range"] < sizes["int"] + 200
    assert sizes["NumPy"] < sizes["int"] + 8 * 2**12 + 1000


def test_tables_of_many_positions_are_chunked(lazily):
    x = da.zeros((1, 4, 2**20, 256), chunks=(1, 1, 2**12, 256), dtype="float32")
    rope, limit = ra.RoPE(256), dask.utils.parse_bytes(dask.config.get("array.chunk-size"))
    for pos in (range(2**20), np.arange(2**20)):
        cos = rope.rotation(pos, like=x).cos
        assert cos.nbytes > 2 * limit
        assert max(cos.chunks[0]) * cos.shape[1] * cos.itemsize <= limit


# ---- names, pickles, schedulers ----


def test_names_follow_the_computation():
    x = da.from_array(X, chunks=CHUNKS)
    for pos in (3, 0.5, range(S), [*range(S)], BS, da.from_array(BS, chunks=3)):
        name = ROPE.apply(x, pos).name
        again = pickle.loads(pickle.dumps(ra.RoPE(16, **HALF)))
        assert again.apply(da.from_array(X, chunks=CHUNKS), pos).name == name
        assert ra.apply(x, pos, **HALF).name == name
        others = [
            ROPE.apply(x, pos, inverse=True),
            ra.apply(x, pos),
            ra.apply(x, pos, **HALF, attention_factor=2.0),
            ROPE.apply(x, 4),
            ROPE.apply(x + 1, pos),
        ]
        assert len({name, *(other.name for other in others)}) == 1 + len(others)
    assert ROPE.apply(x, BS).name != ROPE.apply(x, BS + 1).name
    square = da.from_array(X[:, :, :3], chunks=CHUNKS)
    assert ROPE.apply(square, range(3)).name != ROPE.apply(square, range(3), seq_axis=1).name
    rotations = [ROPE.rotation(range(S), like=x).apply(x).name for _ in range(2)]
    assert rotations[0] == rotations[1]


def graphs():
    x = da.from_array(X, chunks=CHUNKS)
    rotation = ROPE.rotation(da.from_array(BS, chunks=3), like=x)
    return [ROPE.apply(x, BS), ROPE.apply(x, da.from_array(BS, chunks=3)), rotation.apply(x)]


def test_graphs_are_pickled():
    cloudpickle = pytest.importorskip("cloudpickle")
    for y in graphs():
        again = pickle.loads(cloudpickle.dumps(y))
        judge(again, X, BS, **HALF)
        (optimized,) = dask.optimize(y)
        judge(pickle.loads(cloudpickle.dumps(optimized)), X, BS, **HALF)


def test_threads():
    with dask.config.set(scheduler="threads", num_workers=4):
        for y in graphs():
            judge(y, X, BS, **HALF)


def test_processes():
    # dask starts the process by "spawn": it has imported and rotated nothing before.
    with dask.config.set(scheduler="processes", num_workers=1):
        judge(graphs()[1], X, BS, **HALF)


@pytest.mark.library("dask", "jax")
def test_chunks_of_jax():
    import jax

    with jax.enable_x64(False):
        x = da.from_array(jax.numpy.asarray(X), chunks=CHUNKS, asarray=False)
        pos = (np.arange(S) * 1_000_003).astype(np.int32)
        for own in (3, pos, da.from_array(pos, chunks=3)):
            by_tables = lazy(ROPE.rotation(own, like=x).apply, x)  # dask joins chunks to arrays of NumPy
            for y in (lazy(ROPE.apply, x, own), by_tables):
                assert_contract(np.asarray(y.compute()), X, host(own), flushes=True, **HALF)
