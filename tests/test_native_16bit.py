"""The kernel widens every 16-bit number exactly and rounds each result once, to the nearest even."""

import itertools

import numpy as np
import pytest
from compare import assert_same
from native_cases import BF16, F16, F32, LEVELS, PAIRINGS, apart, covering, in_pairs

from rope_array._rotation import rotation_type
from rope_array._spec.plan import Layout

pytestmark = pytest.mark.usefixtures("kernel_settings")

SIXTEEN = [dtype for dtype in (F16, BF16) if dtype is not None]
by_type = pytest.mark.parametrize(
    ("level", "sixteen", "num_pairs"), covering(LEVELS, SIXTEEN, (1, 32)), indirect=["level"], ids=str
)


def by_tables(x, cos, sin, pairing, out_pairing):
    """Rotate heads, each a row of x, by any numbers as cos and sin."""
    layout = Layout(x.shape[-1], 0, x.shape[-1], pairing, out_pairing, 1.0)
    return rotation_type(*layout)(cos, sin).apply(x)


@by_type
def test_every_number_of_16_bits_is_widened(level, sixteen, num_pairs):
    numbers = np.arange(65536, dtype=np.uint16).view(sixteen).reshape(-1, num_pairs)
    nothing, zeros = np.zeros_like(numbers), np.zeros((1, num_pairs), F32)
    for (pairing, out_pairing), factor in itertools.product(PAIRINGS, (1.5, 2.0**-9)):
        expected = (numbers.astype(F32) * F32.type(factor)).astype(sixteen)
        x = in_pairs(numbers, nothing, pairing), in_pairs(nothing, numbers, pairing)
        first, second = (by_tables(row, zeros + F32.type(factor), zeros, pairing, out_pairing) for row in x)
        assert_same(apart(first, out_pairing)[0], expected, (pairing, out_pairing, factor))
        assert_same(apart(second, out_pairing)[1] + nothing, expected + nothing, "but for -0")


def chosen_numbers(sixteen):
    """Return all numbers of a type in float32, the midpoints of neighbours, and the next numbers to each."""
    exact = np.arange(65536, dtype=np.uint16).view(sixteen).astype(F32)
    words = exact.view(np.uint32)
    half = np.uint32(1 << (12 if sixteen == F16 else 15))
    middle = words + half
    below = ((np.nextafter(exact, F32.type(0)) + exact) * F32.type(0.5)).view(np.uint32)
    tiny = np.arange(2**11 * 4, dtype=np.float64) * 2.0**-26 if sixteen == F16 else np.zeros(0)
    tiny = tiny.astype(F32).view(np.uint32)
    random = np.random.default_rng(6).integers(0, 2**32, 2**16, dtype=np.uint32)
    around = [w + np.uint32(d) for w in (words, middle, tiny, tiny ^ 0x80000000) for d in (0, 1, 2**32 - 1)]
    numbers = np.concatenate([*around, below, random])
    return np.resize(numbers, -(-len(numbers) // 32) * 32).view(F32)


@by_type
def test_results_of_16_bits_are_rounded_to_the_nearest_even(level, sixteen, num_pairs):
    numbers = chosen_numbers(sixteen)
    expected = numbers.astype(sixteen)
    finite = np.isfinite(numbers)
    for pairing, out_pairing in PAIRINGS:
        table = numbers.reshape(-1, num_pairs)
        ones_and_zeros = in_pairs(np.ones_like(table, sixteen), np.zeros_like(table, sixteen), pairing)
        nothing = np.zeros_like(table)
        y = apart(by_tables(ones_and_zeros, table, nothing, pairing, out_pairing), out_pairing)[0].ravel()
        # 1·c - 0·0
        assert_same(y, expected, (pairing, out_pairing))
        y = apart(by_tables(ones_and_zeros, nothing, table, pairing, out_pairing), out_pairing)[1].ravel()
        # 0·0 + 1·s, where -0 becomes 0
        assert_same(y[finite], (numbers + F32.type(0)).astype(sixteen)[finite], (pairing, out_pairing))
