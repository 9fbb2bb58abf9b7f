"""Floats in turns: the words of frequencies in arrays, and the phases of angles, on every library.

mpmath's quotients by 2π give the expected words.
"""

import copy
from fractions import Fraction

import numpy as np
import oracle
import pytest
from test_phase import all_ops, with_int64, x64
from test_spec import word

import rope_array as ra
from rope_array._array_api import angles, turns
from rope_array._spec.frequencies import inverse_two_pi, turns_of_floats
from rope_array._spec.plan import plan_of_angles, without_frequencies
from rope_array.testing._libraries import LIBRARIES

RNG = np.random.default_rng(5)
# By the dtype: the bits of a significand, and the exponents of its last bit.
FLOATS = {"float32": (24, range(-149, 105)), "float64": (53, range(-1074, 972))}
BITS = (32, 64, 96)


def floats(dtype):
    """Frequencies of both signs, of all sizes, and at the places where a float gets another first digit."""
    largest = np.log10(float(np.finfo(dtype).max))
    usual, any_size = 10.0 ** RNG.uniform(-8, 3, 60), 10.0 ** RNG.uniform(-largest, largest, 60)
    ends = 2.0 ** np.arange(-112, 113, 14)
    special = [0.0, 1.0, np.pi, 2 * np.pi, float(np.finfo(dtype).tiny), float(np.finfo(dtype).max)]
    numbers = np.concatenate([usual, any_size, ends, special]).astype(dtype)
    below = np.nextafter(ends.astype(dtype), np.array(0, dtype))
    return np.concatenate([numbers, below, -numbers])


def words_of(in_turns, lib, bits):
    """Return the words of digits, as Python's integers."""
    digits = [lib.to_numpy(digit).astype(object) for digit in in_turns.digits]
    places = len(digits) * in_turns.bits
    number = sum(digit << places - in_turns.bits * (i + 1) for i, digit in enumerate(digits))
    return [int(n) >> places - bits for n in number]


def routes(lib, dtype):
    """Yield operations of each kind: 64-bit integers, 32-bit ones, and those of an export."""
    for ops in all_ops(lib):
        exported = copy.copy(ops)
        exported.is_exported = True
        yield from (ops, exported) if ops.has_int64 else (ops,)
        if dtype == "float32":
            yield with_int64(ops, False)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_word_is_the_nearest_to_the_quotient(lib, dtype):
    numbers = floats(dtype)
    with x64(lib, dtype == "float64"), np.errstate(all="raise", under="ignore"):
        array = lib.xp.asarray(numbers)
        for ops in routes(lib, dtype):
            for bits in BITS:
                got = words_of(turns.turns(array, bits, ops), lib, bits)
                assert got == [word(float(n), bits) % 2**bits for n in numbers]


def test_added_words(lib):
    numbers, added = floats("float32")[:8], [*range(5), 2**63, -1, -(2**62)]
    array = lib.xp.asarray(numbers)
    for ops in routes(lib, "float32"):
        got = words_of(turns.turns(array, 64, ops, added), lib, 64)
        assert got == [(word(float(n), 64) + m) % 2**64 for n, m in zip(numbers, added, strict=True)]


def test_words_on_the_host():
    numbers = floats("float64").tolist()
    for bits, words in zip(BITS, turns_of_floats(numbers, *BITS), strict=True):
        assert words == [word(n, bits) for n in numbers]
    assert turns_of_floats([], 64) == [[]]


# ---- the columns that are left out ----


def closest(ratio, limit):
    """Return the smallest distance of m·ratio to an integer, 0 < m < limit: that of a convergent."""
    rest, earlier, last, distance = ratio, (0, 1), (1, 0), None
    while True:
        quotient = rest.numerator // rest.denominator
        earlier, last = last, tuple(quotient * n + m for n, m in zip(last, earlier, strict=True))
        if last[1] >= limit:
            return distance
        distance = abs(last[1] * ratio - last[0])
        rest = 1 / (rest - quotient)


@pytest.mark.parametrize("dtype", FLOATS)
def test_no_float_is_so_near_to_a_tie_that_a_column_left_out_matters(dtype):
    """m·2^e·2^bits/2π is near to a half only if twice the number is near to an integer."""
    size, exponents = FLOATS[dtype]
    inverse = Fraction(inverse_two_pi(1400), 2**1400)
    places = {e + bits for e in exponents for bits in BITS if e + bits > -size - 3}
    nearest = min(closest(inverse * Fraction(2) ** (p + 1) % 1, 2**size) / 2 for p in places)
    for (is_float64, _), radix in turns._RADIX.items():
        for bits in BITS if is_float64 == (dtype == "float64") else ():
            first = radix.columns(bits) + 1
            # A column is a sum of products of two digits; the series of columns ends below twice its first.
            left_out = 2 * radix.digits * Fraction(2 ** (2 * radix.bits + bits), 2 ** (radix.bits * first))
            assert left_out < nearest
    assert Fraction(1, 2**70) < nearest  # of `turns_of_floats`
    # Below the smallest e a float is no unit of any word.
    assert all(Fraction(2) ** (r.bits * r.first + 96) < Fraction(1, 2) for r in turns._RADIX.values())


# ---- cos and sin ----

POSITIONS = [0, 1, -3, 1000, 131_073, 2**31 - 1, -(2**31)]
OMEGAS = (1.0, 0.31415927, -7.5, 1e-4, 123.456, 0.0, 2.5e-9, 6.2831853)
ROPE = ra.RoPE(16)
BOUND = {"float32": 9.5e-8, "float64": 1.7e-16}


def exact(pos, omegas):
    """cos and sin of the sums of pos·ω over the last axis of pos and the first of omegas."""

    def angle(row, column):
        return sum(oracle.real(p) * oracle.real(w) for p, w in zip(row, column, strict=True))

    sums = [[angle(row, column) for column in omegas.T] for row in pos]
    functions = oracle.CONTEXT.cos, oracle.CONTEXT.sin
    return [np.array([[float(function(a)) for a in row] for row in sums]) for function in functions]


def of_heads(pos, omegas):
    """The tables of each head, stacked."""
    return [np.stack(tables) for tables in zip(*(exact(pos, of_head) for of_head in omegas), strict=True)]


def check(lib, rotation, expected, dtype):
    for table, truth in zip(rotation, expected, strict=True):
        assert dtype in str(table.dtype)
        assert np.abs(lib.to_numpy(table) - truth).max() <= BOUND[dtype]


def dtypes_of(lib):
    return [dtype for dtype in ("float32", "float64") if dtype in lib.dtypes]


def frequencies_of_each_pair(lib):
    """Of each float dtype, for tables of each; with the bits of a rope that has these frequencies."""
    for dtype in dtypes_of(lib):
        like = lib.asarray(np.zeros((2, 3, 7, 16)), dtype)
        for source in dtypes_of(lib):
            omegas = np.array(OMEGAS, source)
            rotation = ROPE.rotation(POSITIONS, like=like, inv_freq=lib.asarray(omegas, source))
            check(lib, rotation, exact(np.array(POSITIONS)[:, None], omegas[None]), dtype)
            if lib.label in ("numpy", "strict", "torch"):
                same = ra.RoPE(16, inv_freq=omegas.tolist()).rotation(POSITIONS, like=like)
                for table, other in zip(rotation, same, strict=True):
                    np.testing.assert_array_equal(lib.to_numpy(table), lib.to_numpy(other))


def frequencies_of_each_head(lib):
    omegas = np.array([OMEGAS, OMEGAS[::-1], [2.0] * 8], np.float32)
    like = lib.asarray(np.zeros((2, 3, 7, 16)), "float32")
    array = lib.asarray(omegas, "float32")
    truth = of_heads(np.array(POSITIONS)[:, None], omegas[:, None])
    rotation = ROPE.rotation(POSITIONS, like=like, inv_freq=array)
    assert tuple(rotation.cos.shape) == (1, 3, 7, 8)
    check(lib, rotation, [table[None] for table in truth], "float32")
    rotation = ROPE.rotation(POSITIONS, like=like, inv_freq=lib.asarray(omegas[:, None], "float32"))
    check(lib, rotation, [table[None] for table in truth], "float32")
    batch = lib.asarray(np.array([POSITIONS, POSITIONS[::-1]]) + 0, "int32")
    check(lib, ROPE.rotation(batch, like=like, inv_freq=array),
          [np.stack([table, table[:, ::-1]]) for table in truth], "float32")  # fmt: skip
    assert tuple(ROPE.rotation(5, like=like, inv_freq=array).cos.shape) == (1, 3, 1, 8)
    like = lib.asarray(np.zeros((3, 7, 16)), "float32")
    assert tuple(ROPE.rotation(range(7), like=like, inv_freq=array).cos.shape) == (3, 7, 8)


def mixed_frequencies(lib):
    """The sum of all coordinates is reduced once; the coordinates sum to 2^31 at most."""
    pos = np.array([[0, 0, 0], [1, -2, 3], [131_073, 77, -5], [2**30, -(2**30) + 1, 5], [-(2**30), 0, 2**29]])
    omegas = np.array(
        [[OMEGAS, OMEGAS[::-1], OMEGAS[1:] + OMEGAS[:1]], [[0.1] * 8, [2.0] * 8, [1e-3] * 8]], "f4"
    )
    truth = [table[None] for table in of_heads(pos, omegas)]
    for dtype in dtypes_of(lib):
        like = lib.asarray(np.zeros((2, 2, 5, 16)), dtype)
        rotation = ROPE.rotation_mixed(pos.tolist(), like=like, inv_freq=lib.asarray(omegas, "float32"))
        check(lib, rotation, truth, dtype)
        if lib.label in ("strict", "torch"):  # PyTorch by the kernel, NumPy by array operations
            same = ROPE.rotation_mixed(pos.tolist(), like=np.zeros((2, 2, 5, 16), dtype), inv_freq=omegas)
            for table, other in zip(rotation, same, strict=True):
                np.testing.assert_array_equal(lib.to_numpy(table), other)


def angles_are_reduced(lib):
    for dtype in dtypes_of(lib):
        for source in dtypes_of(lib):
            numbers = floats(source)[: 8 * 30].reshape(2, 5, 3, 8)
            like = lib.asarray(np.zeros((2, 5, 3, 16)), dtype)
            rotation = ra.RoPE(16, pairing="half").rotation_of_angles(lib.asarray(numbers, source), like=like)
            ends = [oracle.exact_cos_sin(float(n), 1) for n in numbers.ravel()]
            truth = [
                np.array([float(t) for t in table]).reshape(numbers.shape)
                for table in zip(*ends, strict=True)
            ]
            check(lib, rotation, truth, dtype)


CHECKS = [frequencies_of_each_pair, frequencies_of_each_head, mixed_frequencies, angles_are_reduced]


@pytest.mark.parametrize("check", CHECKS)  # test_libraries.py and test_cubed.py have the other libraries
def test_cos_and_sin(lib, check):
    check(lib)


def test_no_positions_with_frequencies_of_each_head(lib):
    like, omegas = (lib.asarray(np.ones(shape), "float32") for shape in ((3, 0, 16), (3, 8)))
    assert tuple(ROPE.rotation(range(0), like=like, inv_freq=omegas).cos.shape) == (3, 0, 8)


def test_nan_and_infinities_stay_in_their_pair(lib):
    omegas, like = np.array([1.0, np.nan, np.inf, -np.inf] + [0.5] * 4, np.float32), np.zeros((3, 16))
    like, expected = lib.asarray(like, "float32"), ~np.isfinite(omegas)
    with np.errstate(all="ignore"):
        of_array = ROPE.rotation([0, 1, 2], like=like, inv_freq=lib.asarray(omegas, "float32"))
        of_angles = ROPE.rotation_of_angles(lib.asarray(omegas[None], "float32"), like=like)
    for table in (*of_array, *of_angles):
        np.testing.assert_array_equal(np.isnan(lib.to_numpy(table)), np.broadcast_to(expected, table.shape))


@pytest.mark.library("numpy")
@pytest.mark.parametrize("use_float64", [False, True], ids=["float32", "float64"])
def test_exports_have_the_same_phase(use_float64):
    """Their last sum rounds otherwise: within one unit in the last place of u."""
    (ops, *_) = all_ops(LIBRARIES["numpy"])
    exported = copy.copy(ops)
    exported.is_exported = True
    pos = np.array(POSITIONS)
    mixed = np.array([[OMEGAS, OMEGAS[::-1]]] * 2, np.float32)
    cases = [
        (pos, ROPE._plan, None),
        (pos, without_frequencies(ROPE._plan), np.array(OMEGAS, np.float32)),
        (pos, ROPE._plan, -np.array(OMEGAS)),
        (np.stack([pos, pos[::-1]], -1), without_frequencies(ROPE._plan, 2), mixed),
        (floats("float32")[:80].reshape(10, 8), plan_of_angles(ROPE._plan), None),
    ]
    for integers, plan, inv_freq in cases:
        one, other = (angles.cos_sin(integers, None, plan, use_float64, o, inv_freq) for o in (ops, exported))
        eps = 2.0**-52 if use_float64 else 2.0**-23
        for table, same in zip(one, other, strict=True):
            assert np.abs(table - same).max() <= eps
