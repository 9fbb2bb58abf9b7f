"""dask: results are lazy, one task for each chunk, and right for any chunks of x and of the positions.

The rows of the suite show fields, dtypes and sizes: see test_conformance.py.
"""

import functools
import pickle

import child
import cluster_cases
import numpy as np
import position_cases
import pytest

import rope_array as ra
from rope_array._backends import _native
from rope_array.testing import rotation_matrix
from rope_array.testing._contract import assert_contract, eps

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
pytestmark = pytest.mark.library("dask")

HALF = {"pairing": "half", "base": 500_000.0}
ROPE = ra.RoPE(16, **HALF)
B, H, S = 4, 3, 10
X = np.random.default_rng(0).standard_normal((B, H, S, 16)).astype(np.float32)
CHUNKS = (2, 3, 4, 16)
BS = np.random.default_rng(1).integers(-(10**9), 10**9, (B, S))
array, arange = da.from_array, da.arange


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


def lazy(function, *arguments, **options):
    """Call a function and assert that nothing was computed."""
    with dask.config.set(scheduler=refuse):
        return function(*arguments, **options)


def by_tables(x, pos, rope=ROPE, **options):
    return rope.rotation(pos, like=x).apply(x, **options)


by_array_api = functools.partial(ROPE.apply, backend="array-api")


def host(pos):
    return pos.compute() if isinstance(pos, da.Array) else pos


def check(y, x, pos, rope=ROPE, **options):
    """Compare a result with NumPy's, and with what its graph declares."""
    computed, expected = y.compute(), rope.apply(x, host(pos), **options)
    assert isinstance(y._meta, np.ndarray)
    assert (y.dtype, y.shape) == (computed.dtype, computed.shape) or np.isnan(y.shape).any()
    assert computed.dtype == expected.dtype
    np.testing.assert_allclose(computed, expected, rtol=0, atol=8 * eps(x.dtype.name))


def tasks(array):
    return len(dict(array.__dask_graph__()))


# For an x of (batch, head, sequence, features); test_positions_along_each_axis has other shapes.
POSITIONS = {
    "int": 7,
    "range": range(12, 2, -1),
    "list": [*range(5), 9, 8, 2**31 - 1, -(2**31), 0],
    "NumPy (B, S)": BS,
    "NumPy strided": np.arange(2 * S)[::-2],
    "NumPy (1, H, 1)": np.arange(H)[None, :, None],
    "dask alike": array(BS, chunks=(2, 4)),
    "dask one by one": array(BS, chunks=1),
    "dask floats": array(np.arange(S) * 0.25, chunks=4),
    "dask (B, 1)": array(BS[:, :1], chunks=(3, 1)),
    "dask ()": array(np.array(9)),
}


# ---- lazy, whole heads, few tasks ----


@pytest.mark.parametrize("name", POSITIONS)
def test_one_task_rotates_a_chunk(name):
    """Nothing is computed, x keeps its chunks, and there is at most a task for each of them."""
    pos, x = POSITIONS[name], array(X, chunks=CHUNKS).persist()
    y = lazy(ROPE.apply, x, pos)
    assert y.chunks == x.chunks
    check(y, X, pos)
    check(lazy(by_array_api, x, pos), X, pos)
    # The tasks of dask positions, rechunked like x, are not counted.
    pos_tasks = 0
    if isinstance(pos, da.Array):
        cut = {a: (1,) if pos.shape[a] == 1 else x.chunks[(0, 2)[a - pos.ndim]] for a in range(pos.ndim)}
        pos_tasks = tasks(pos.rechunk(cut))
    assert tasks(y) - tasks(x) - pos_tasks <= x.npartitions
    (optimized,) = dask.optimize(y)
    assert tasks(optimized) - pos_tasks <= 2 * x.npartitions
    rotation = lazy(ROPE.rotation, pos, like=x)
    assert (rotation.cos.dtype, rotation.cos.numblocks[-1]) == ("float32", 1)
    y = lazy(rotation.apply, x)
    assert y.chunks == x.chunks
    check(y, X, pos)
    check(lazy(rotation.inverse().apply, x), X, pos, inverse=True)


# Widths of the chunks of a head, and fields.
SPLIT = [
    ((8, 8), HALF),
    ((5, 11), {"rotary_dim": 8, "rotary_start": 4, "attention_factor": 1.25}),
    ((1,) * 16, {"out_pairing": "half"}),
]


@pytest.mark.parametrize(("widths", "fields"), SPLIT, ids=["halves", "a part", "features"])
def test_split_heads_are_joined(widths, fields):
    x, rope = array(X, chunks=((2, 2), (3,), (4, 4, 2), widths)), ra.RoPE(16, **fields)
    for rotate in (rope.apply, functools.partial(by_tables, rope=rope)):
        y = lazy(rotate, x, BS)
        assert y.chunks == (*x.chunks[:-1], (16,))
        check(y, X, BS, rope)
    check(lazy(rope.apply, x, BS, backend="array-api"), X, BS, rope)


@pytest.mark.parametrize("seq_axis", [0, 1, 2])
def test_positions_along_each_axis(seq_axis):
    first, *_, last = shape_of_rows = np.moveaxis(np.empty((B, H, S)), seq_axis, -1).shape
    x = array(X, chunks=(2, 2, 4, 8))
    for shape in ((last,), (1, last), (first, 1), (first, last), shape_of_rows):
        pos = np.random.default_rng(2).integers(-(2**31), 2**31, shape)
        for positions in (pos, array(pos, chunks=2)):
            for rotate in (ROPE.apply, by_tables):
                check(lazy(rotate, x, positions, seq_axis=seq_axis), X, pos, seq_axis=seq_axis)
    check(lazy(by_array_api, x, positions, seq_axis=seq_axis), X, pos, seq_axis=seq_axis)


def test_arrays_of_a_tuple_have_their_own_chunks():
    pos = array(BS, chunks=(3, 3))
    xs = X, X[:, :1].astype(np.float64), X[:, :2].astype(np.float16)
    lazy_xs = tuple(map(array, xs, (CHUNKS, (1, 1, 5, 8), (4, 2, 10, 16))))
    for y, x in zip(lazy(ROPE.apply, lazy_xs, pos), xs, strict=True):
        check(y, x, BS)
    tables = ROPE.rotation(BS, like=xs[1])
    for y, x in zip(lazy(ROPE.rotation(pos, like=lazy_xs[1]).apply, lazy_xs), xs, strict=True):
        np.testing.assert_allclose(y.compute(), tables.apply(x), atol=4 * eps(x.dtype.name))


def test_misfits_raise_at_once(lazily):
    x = array(X, chunks=CHUNKS)
    shapes = (range(S + 1), BS[:3], arange(S + 2, chunks=4))
    for error, wrong in {
        ra.ShapeError: shapes,
        ra.ArrayTypeError: (da.ones(S, dtype="float16"),),
        ra.PositionError: (float("nan"), [2**63] * S),
    }.items():
        for pos in wrong:
            with pytest.raises(error):
                ROPE.apply(x, pos)
    masked = da.ma.masked_greater(x, 1.0)
    for call in (functools.partial(ROPE.apply, pos=3), ROPE.rotation(3, like=array(X)).apply):
        with pytest.raises(ra.ArrayTypeError, match="masked"):
            call(masked)


def test_positions_are_those_of_the_call():
    """Of NumPy, however x is chunked, and in a loop that reuses one array."""
    for chunks in (2, (5, 16)):
        position_cases.check_written_after_the_call(
            functools.partial(array, chunks=chunks), lambda y: y.compute()
        )
    pos, shards = np.arange(S), []
    for _ in range(3):
        shards.append(ROPE.apply(array(X, chunks=CHUNKS), pos))
        pos += S
    for i, shard in enumerate(shards):
        assert_contract(shard.compute(), X, np.arange(i * S, (i + 1) * S), **HALF)


# ---- unknown sizes ----

KEPT = np.arange(S) % 3 != 0


def unknown():
    """Return x and positions of unknown length, and the same in NumPy."""
    numbers = arange(S, chunks=4)
    mask = numbers % 3 != 0
    return array(X, chunks=CHUNKS)[:, :, mask], numbers[mask], X[:, :, KEPT], np.arange(S)[KEPT]


def test_unknown_sizes():
    """Of the sequence, and of another axis."""
    dx, dpos, x, pos = unknown()
    check(lazy(ROPE.apply, dx, dpos[None]), x, pos[None])
    for positions in (dpos, 5, np.array([[5]]), array(np.array([5]))):
        for rotate in (ROPE.apply, by_tables):
            check(lazy(rotate, dx, positions), x, positions)
    keep = np.array([True, False, True, True])
    lazy_keep = array(keep, chunks=2)
    x = array(X, chunks=CHUNKS)[lazy_keep]
    for pos in (range(S), BS[:1], array(BS[0], chunks=3), array(BS, chunks=(2, 4))[lazy_keep]):
        check(lazy(ROPE.apply, x, pos), X[keep], pos)


@pytest.mark.parametrize("rotate", [ROPE.apply, by_tables], ids=["apply", "rotation"])
def test_unknown_sizes_that_may_not_match_raise(rotate):
    """At once if the numbers of chunks differ, else when a chunk is computed."""
    dx, dpos, x, _ = unknown()
    numbers = arange(S, chunks=4)
    bad = {
        "NumPy": np.arange(x.shape[2]),
        "fewer chunks": arange(S, chunks=5),
        "another mask": numbers[numbers % 3 == 0],
        "one in every chunk": numbers[numbers % 4 == 1],
        "one chunk": arange(x.shape[2], chunks=-1),
    }
    for name, pos in bad.items():
        with pytest.raises(ra.ShapeError):
            print(name, rotate(dx, pos).compute())
    with pytest.raises(ra.ShapeError):
        rotate(array(X, chunks=CHUNKS), dpos).compute()


def test_an_unknown_width_is_refused_until_it_is_computed():
    x = array(X, chunks=CHUNKS)[..., arange(16) < 20]
    for call in (ROPE.apply, ra.apply):
        with pytest.raises(ra.ShapeError, match=r"x\.compute_chunk_sizes\(\)"):
            lazy(call, x, 3)
    check(ROPE.apply(x.compute_chunk_sizes(), 3), X, 3)


# ---- tables, large arrays ----


def test_learned_frequencies_and_matrices():
    x, omegas, pos = array(X, chunks=CHUNKS), array(np.array(ROPE.frequencies), chunks=3), arange(S, chunks=4)
    y = lazy(lambda: ROPE.rotation(pos, like=x, inv_freq=omegas).apply(x))
    np.testing.assert_allclose(y.compute(), ROPE.apply(X, np.arange(S)), atol=1e-5)
    matrix = lazy(ROPE.matrix, pos, like=array(X.astype(float), chunks=CHUNKS))
    exact = rotation_matrix(np.arange(S), head_dim=16, **HALF)
    np.testing.assert_allclose(matrix.compute(), exact, atol=1e-15)


@pytest.mark.skipif(_native.kernel is None, reason="the C++ kernel is not built")
def test_the_kernel_rotates_each_chunk(monkeypatch):
    expected = ROPE.apply(X, BS)
    cluster_cases.leave_the_kernel_alone(monkeypatch.setattr)
    x = array(X, chunks=CHUNKS)
    for rotate in (ROPE.apply, by_tables):
        np.testing.assert_array_equal(rotate(x, BS).compute(), expected)


LENGTH = 2**17
LARGE = (24, 32, LENGTH, 256)  # 103 GB of float32


def test_100_gigabytes_are_planned_as_one_task_for_each_chunk(lazily):
    cloudpickle = pytest.importorskip("cloudpickle")
    x = da.zeros(LARGE, chunks=(1, 32, 4096, 256), dtype="float32")
    assert x.nbytes > 100e9
    for pos in (range(LENGTH, 0, -1), 3, arange(LENGTH, chunks=4096)):
        y = ra.RoPE(256, **HALF).apply(x, pos)
        pos_tasks = tasks(pos) if isinstance(pos, da.Array) else 0
        assert tasks(y) == 2 * x.npartitions + pos_tasks
        (optimized,) = dask.optimize(y)
        assert tasks(optimized) == x.npartitions + pos_tasks  # made and rotated by one task
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
    limit = dask.utils.parse_bytes(dask.config.get("array.chunk-size"))
    for pos in (range(2**20), np.arange(2**20)):
        cos = ra.RoPE(256).rotation(pos, like=x).cos
        assert cos.nbytes > 2 * limit
        assert max(cos.chunks[0]) * cos.shape[1] * cos.itemsize <= limit


def test_a_chunk_may_have_as_many_tokens_as_a_position_has_coordinates():
    rope = ra.RoPE(16, axes=ra.Axes.axial(8, 8), **HALF)
    x, row = array(X, chunks=CHUNKS), np.array([5, 9])
    assert 2 in x.chunks[-2]
    for pos in ([5, 9], row, array(row, chunks=1)):
        np.testing.assert_array_equal(rope.apply(x, pos).compute(), rope.apply(X, row))


# ---- names, pickled graphs, chunks of another library; test_dask_cluster.py has other processes ----


def test_a_graph_that_is_pickled_rotates_by_each_coordinate():
    cloudpickle = pytest.importorskip("cloudpickle")
    pos = np.stack([np.arange(S), np.arange(S)[::-1]], -1)
    y = ra.RoPE(16, axes=ra.Axes.axial(8, 8), **HALF).apply(array(X, chunks=CHUNKS), pos)
    np.testing.assert_array_equal(pickle.loads(cloudpickle.dumps(y)).compute(), y.compute())


def test_names_follow_the_computation():
    x = array(X, chunks=CHUNKS)
    for pos in (3, 0.5, range(S), [*range(S)], BS, array(BS, chunks=3)):
        name = ROPE.apply(x, pos).name
        again = pickle.loads(pickle.dumps(ra.RoPE(16, **HALF)))
        assert again.apply(array(X, chunks=CHUNKS), pos).name == name
        assert ra.apply(x, pos, **HALF).name == name
        changed = [
            ROPE.apply(x, pos, inverse=True),
            ra.apply(x, pos),
            ROPE.apply(x, 4),
            ROPE.apply(x + 1, pos),
        ]
        assert len({name, *(array.name for array in changed)}) == 1 + len(changed)
    assert ROPE.apply(x, BS).name != ROPE.apply(x, BS + 1).name
    square = array(X[:, :, :3], chunks=CHUNKS)
    assert ROPE.apply(square, range(3)).name != ROPE.apply(square, range(3), seq_axis=1).name
    assert by_tables(x, range(S)).name == by_tables(x, range(S)).name


def test_positions_that_differ_in_the_middle_of_a_long_chunk():
    """NumPy's repr, by which dask would name them, leaves the middle out."""
    x = da.ones((2000, 16), chunks=(2000, 16))
    first = np.arange(2000)
    second = np.where(first == 1000, 7, first)
    difference = (ROPE.apply(x, first) - ROPE.apply(x, second)).compute()
    assert difference[1000].any()
    assert not np.delete(difference, 1000, axis=0).any()


def test_equal_plans_have_equal_tokens_in_every_process():
    script = """
        import pickle, sys
        from dask.base import tokenize
        print(*map(tokenize, pickle.loads(bytes.fromhex(sys.argv[1]))))
    """
    fields = [
        {}, {"pairing": "half"}, {"base": 10_000.000000000002}, {"attention_factor": 1.0000000000000002},
        {"angles": "float32"}, {"scaling": ra.Linear(2.0)}, {"rotary_start": 2, "rotary_dim": 14},
        {"axes": ra.Axes.axial(8, 8)}, {"axes": ra.Axes.axial(8, 8, order=(1, 0))},
        {"inv_freq": ra.RoPE(16).frequencies},  # float64 numbers, which the default's are rounded to
        {"inv_freq": (0.0,) * 8},  # equals its inverse, which has -0.0
    ]  # fmt: skip
    plans = [ra.RoPE(16, **each)._plan for each in fields]
    plans += [plan.inverse for plan in plans]
    tokens = [dask.base.tokenize(plan) for plan in plans]
    assert child.run(script, pickle.dumps(plans).hex()).split() == tokens
    assert len({*tokens}) == len({*plans}) == 2 * len(fields) - 1


@pytest.mark.library("dask", "jax")
def test_chunks_of_jax():
    import jax

    with jax.enable_x64(False):
        x = array(jax.numpy.asarray(X), chunks=CHUNKS, asarray=False)
        pos = (np.arange(S) * 1_000_003).astype(np.int32)
        for positions in (3, pos, array(pos, chunks=3)):
            for rotate in (ROPE.apply, by_tables):  # dask joins chunks of tables to arrays of NumPy
                y = np.asarray(lazy(rotate, x, positions).compute())
                assert_contract(y, X, host(positions), flushes=True, **HALF)
