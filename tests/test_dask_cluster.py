"""dask on a cluster of processes: arrays larger than a worker's memory, with the bits of NumPy."""

import cluster_cases
import numpy as np
import pytest

import rope_array as ra

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
pytestmark = pytest.mark.library("dask")

MEMORY = 200 * 2**20  # of a worker; more ends it
SHAPE, CHUNKS = (5, 8, 2**15, 64), (1, 8, 2**12, 64)  # 320 MiB in chunks of 8 MiB
ROPE = ra.RoPE(64, base=500_000.0, pairing="half")
ROWS = 40
X = cluster_cases.numbers(range(2), range(3), range(ROWS), 64)


@pytest.fixture(scope="module")
def client():
    """Two workers of one thread each, which write nothing to disk to save memory."""
    names = [f"distributed.worker.memory.{name}" for name in ("target", "spill", "pause")]
    with (
        dask.config.set(dict.fromkeys(names, False)),
        distributed.LocalCluster(
            2, threads_per_worker=1, memory_limit=MEMORY, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.mark.slow
def test_an_array_larger_than_memory(client):
    pieces = tuple((size,) * (n // size) for n, size in zip(SHAPE, CHUNKS, strict=True))
    meta = np.empty((0,) * 4, np.float32)
    x = da.map_blocks(cluster_cases.chunk, chunks=pieces, dtype=np.float32, meta=meta)
    assert x.nbytes > 1.5 * MEMORY
    y = ROPE.apply(x, range(SHAPE[2]))
    sums = y.map_blocks(cluster_cases.checksum, chunks=(1, 1, 1, 1), dtype=np.uint32).compute()
    assert sums.shape == x.numblocks
    for b in (0, 4):
        batch = cluster_cases.numbers(range(b, b + 1), *map(range, SHAPE[1:3]), SHAPE[3])
        chunks = np.split(ROPE.apply(batch, range(SHAPE[2])), x.numblocks[2], axis=2)
        assert sums[b].ravel().tolist() == [cluster_cases.checksum(chunk).item() for chunk in chunks]


def test_calls_of_every_kind(client):
    x, k = da.from_array(X, chunks=(2, 3, 16, 32)), da.from_array(X[:, :2], chunks=(1, 2, 7, 64))
    order = np.random.default_rng(0).permutation(ROWS) * 100_003
    lazy, keep = da.from_array(order, chunks=9), np.arange(ROWS) % 3 != 0
    lazy_keep = da.from_array(keep, chunks=16)
    kept, kept_order = x[:, :, lazy_keep], da.from_array(order, chunks=16)[lazy_keep]
    rotated, rotated_kept = ROPE.apply(X, order), ROPE.apply(X[:, :, keep], order[keep])
    swapped = ROPE.apply(x.transpose(0, 2, 1, 3), lazy, seq_axis=-3)
    pairs = {
        "out of order": (ROPE.apply(x, order), rotated),
        "dask positions": (ROPE.apply(x, lazy), rotated),
        "a tuple": (ROPE.apply((x, k), lazy)[1], rotated[:, :2]),
        "a Rotation": (ROPE.rotation(lazy, like=x).apply(x), rotated),
        "sequence before heads": (swapped, rotated.transpose(0, 2, 1, 3)),
        "persisted": (ROPE.apply(x.persist(), lazy.persist()).persist(), rotated),
        "chunks of unknown size": (ROPE.apply(kept, kept_order), rotated_kept),
        "sizes computed": (ROPE.apply(kept.compute_chunk_sizes(), order[keep]), rotated_kept),
    }
    computed = dask.compute({name: y for name, (y, _) in pairs.items()})[0]
    for name, (_, expected) in pairs.items():
        np.testing.assert_array_equal(computed[name], expected, err_msg=name, strict=True)
