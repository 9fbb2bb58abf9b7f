"""The model of a rotation's time on a GPU: its arithmetic, by figures worked out by hand."""

import pytest
from gpu_time_model import (
    A100,
    B200,
    GPUS,
    H100,
    copies,
    free_instructions,
    issue_share,
    pair_bytes,
    pair_instructions,
    seconds,
)

pytestmark = pytest.mark.library("numpy")

BFLOAT16, FLOAT32 = pair_bytes(2), pair_bytes(4)
# Instructions of a pair in CUDA C: 11 to rotate it, 54 for an exact angle.
ROTATING, ANGLE = 11, 54


def test_bytes_of_a_pair():
    assert (BFLOAT16, FLOAT32) == (8, 16)
    # A float32 table adds D × 4 bytes to the 4 × heads × D bytes of a token of bfloat16.
    assert pair_bytes(2, heads=1, table_itemsize=4) == 2 * BFLOAT16
    assert pair_bytes(2, heads=32, table_itemsize=4) == pytest.approx(BFLOAT16 * (1 + 1 / 32))


def test_an_h100_moves_pairs_as_fast_as_it_issues_76_instructions():
    assert H100.bandwidth / BFLOAT16 == 3.75e11
    assert free_instructions(H100, BFLOAT16) == pytest.approx(76, abs=1)
    assert free_instructions(H100, FLOAT32) == pytest.approx(153, abs=0.5)


@pytest.mark.parametrize(
    ("heads", "instructions", "share"), [(1, 65, 0.85), (4, 24.5, 0.32), (8, 17.75, 0.23)]
)
def test_exact_angles_are_shared_by_heads(heads, instructions, share):
    found = pair_instructions(ROTATING, ANGLE, heads)
    assert found == instructions
    assert issue_share(H100, BFLOAT16, found) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(("instructions", "share"), [(11, 0.14), (13, 0.17)])
def test_a_table_kernel_uses_a_sixth_of_the_issue_slots(instructions, share):
    assert issue_share(H100, BFLOAT16, instructions) == pytest.approx(share, abs=0.005)


def test_seconds_of_a_prefill():
    # 4,096 tokens, 32 and 8 heads of 128, bfloat16: 84 MB read and written, 28 µs at 3.0 TB/s.
    pairs = 4096 * 40 * 64
    assert pairs * BFLOAT16 == pytest.approx(84e6, rel=0.01)
    assert seconds(H100, pairs, BFLOAT16, 20) == pytest.approx(28e-6, rel=0.01)
    # The host's 20 µs of a launch are the time of 60 MB.
    assert seconds(H100, pairs, BFLOAT16, 20, launches=1) == pytest.approx(48e-6, rel=0.01)
    assert H100.launch * H100.bandwidth == pytest.approx(60e6)


def test_too_many_instructions_cost_time():
    free = free_instructions(H100, BFLOAT16)
    assert copies(H100, BFLOAT16, free, itemsize=2) == pytest.approx(1)
    assert copies(H100, BFLOAT16, 2 * free, itemsize=2) == pytest.approx(2)
    assert issue_share(H100, BFLOAT16, 2 * free) == pytest.approx(2)


def test_the_newest_gpu_leaves_the_fewest_instructions():
    free = {gpu.name: free_instructions(gpu, BFLOAT16) for gpu in GPUS}
    assert free == pytest.approx({"A100": 85, "H100": 77, "B200": 36}, abs=1)
    # So one head for each thread is free on an A100 and an H100, and not on a B200.
    one_head = pair_instructions(ROTATING, ANGLE, 1)
    assert [issue_share(gpu, BFLOAT16, one_head) < 1 for gpu in (A100, H100, B200)] == [True, True, False]
    assert issue_share(B200, BFLOAT16, pair_instructions(ROTATING, ANGLE, 8)) < 0.5
