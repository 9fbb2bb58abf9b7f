"""The suite's messages name the place of wrong elements, and their values."""

import itertools
import re

import faults
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rope_array.testing._checks import checks
from rope_array.testing._contract import assert_contract
from rope_array.testing._definition import apply_definition
from rope_array.testing._explanation import describe_values
from rope_array.testing._failure import Failure, difference
from rope_array.testing._judge import Judge
from rope_array.testing._outcome import FAILED, outcome_of
from rope_array.testing._where import axis_names, describe, element_text, indices_text
from rope_array.testing._wrong_result import WrongResult

SHAPE = (3, 4, 6, 16)


def product(shape=SHAPE, **sets):
    """Return the product of index sets; an axis that is not named has all indices."""
    mask = np.zeros(shape, bool)
    named = zip(axis_names(len(shape)), shape, strict=True)
    mask[np.ix_(*(sets.get(name, range(size)) for name, size in named))] = True
    return mask


def at_rows(rows):
    return np.broadcast_to(np.asarray(rows, bool)[:, None], (2, 3, len(rows), 8))


HALVES = {"pairs": (np.arange(8), np.arange(8) + 8)}
ADJACENT = {"pairs": (np.arange(0, 16, 2), np.arange(1, 16, 2))}
PAIRS_FROM_4 = [*range(4, 8), *range(12, 16)]
FAR = np.array([5, 70_000, 3, 65_536, 65_535, 0, 100_000, 9])
FRACTIONS, MIXED = np.array([0.5, 1, 2, 3.25, 7]), np.array([3, 5, 4, 8, 7, 2, 11])
NEGATIVE, BATCHES = np.arange(-3, 5), np.array([[0, 7, 2], [9, 1, 8]])
HEAD_2 = product((2, 3, 5, 16), head=[2])
LATER = HEAD_2 & (np.arange(5) > 0)[:, None]
# Wrong elements, facts of the call, and the place.
PLACES = [
    (product((5,), feature=[3]), {}, "feature 3"),
    (product(), {}, "all elements"),
    (product(feature=[14, 15]), {}, "features 14, 15 (the last 2) of every row"),
    (product(feature=range(8, 16)), {}, "features from 8 on of every row"),
    (product(feature=range(0, 16, 2)), {}, "every even feature of every row"),
    (product(feature=range(1, 16, 2)), {}, "every odd feature of every row"),
    (product(feature=[1, 2, 3, 4, 9, 10]), {}, "features 1 to 4 and 9, 10 of every row"),
    (product(feature=[i for i in range(16) if i != 5]), {}, "every feature but 5 of every row"),
    (product(feature=range(8, 16), row=range(4)), {}, "features from 8 on of rows 0 to 3"),
    (product((9, 5), row=[0, 2, 3, 5, 8]), {}, "5 of 9 rows"),
    (product(row=[2]), {}, "row 2 of every head"),
    (product(row=[2], batch=[1]), {}, "row 2 of batch 1"),
    (product(head=[2, 3]), {}, "heads 2, 3"),
    (product(batch=[1, 2]), {}, "batches after the first"),
    (product(batch=[0, 2]), {}, "batches 0, 2"),
    (product(feature=[0, 1], row=[5], head=[0]), {}, "features 0, 1 of row 5, head 0"),
    (product((1, 2, 700, 16), row=range(512, 600)), {}, "rows 512 to 599 of every head"),
    (product((1, 1, 1100, 16), row=range(1024, 1100)), {}, "rows from 1,024 on"),
    (product((2, 2, 3, 5, 16), **{"axis 1": [1]}), {}, "index 1 of axis 1"),
    (product(feature=[2, 3, 10, 11]), HALVES, "features 2, 3, 10, 11 of every row"),
    (product(feature=PAIRS_FROM_4), HALVES, "pairs from 4 on of every row"),
    (product(feature=range(8)), HALVES, "features 0 to 7 of every row"),
    (product(feature=[2, 3, 6, 7, 10, 11, 14, 15]), ADJACENT, "every odd pair of every row"),
    (at_rows(FAR >= 65_536), {"pos": FAR}, "rows 1, 3, 6 (positions from 65,536 on) of every head"),
    (at_rows(FAR > 65_536), {"pos": FAR},
     "rows 1, 6 (positions from 70,000 on, right up to 65,536) of every head"),
    (at_rows(FAR == 0), {"pos": FAR}, "row 5 (position 0) of every head"),
    (at_rows(NEGATIVE < 0), {"pos": NEGATIVE}, "rows 0 to 2 (negative positions) of every head"),
    (at_rows(FRACTIONS % 1), {"pos": FRACTIONS}, "rows 0, 3 (positions with a fraction) of every head"),
    (at_rows(MIXED % 2), {"pos": MIXED}, "rows 0, 1, 4, 6 (odd positions) of every head"),
    (np.broadcast_to((BATCHES > 6)[:, None, :, None], (2, 4, 3, 8)), {"pos": BATCHES},
     "positions from 7 on, right up to 2"),
    # Right elements like the wrong ones may be covered.
    (LATER, {"pos": np.arange(5)}, "rows after the first (every position but 0) of head 2"),
    (LATER, {"pos": np.arange(5), "alike": HEAD_2}, "head 2"),
]  # fmt: skip


@pytest.mark.parametrize(("mask", "call_facts", "text"), PLACES, ids=[text for *_, text in PLACES])
def test_a_place_is_named(mask, call_facts, text):
    assert describe(mask, **call_facts).text == text


def test_a_place_has_words_for_x_of_other_sizes():
    mask = at_rows(NEGATIVE < -2) & (np.arange(8) >= 6)
    place = describe(mask, NEGATIVE)
    assert place.text == "features 6, 7 (the last 2) of row 0 (position -3)"
    assert place.in_any_x == "the last 2 features of row 0"
    assert describe(at_rows(NEGATIVE == 4), NEGATIVE).text == "row 7 (the last, position 4) of every head"
    assert describe(at_rows(NEGATIVE == 4)).text == "row 7 of every head"


def test_a_part_of_a_product_is_called_a_part():
    mask = product(feature=[0, 1, 2], row=[1])
    mask[0, 0, 1, 0] = False
    assert describe(mask).text == "nearly all of features 0 to 2 of row 1 (35 of 36 there)"
    mask = np.random.default_rng(0).random(SHAPE) < 0.3
    assert (describe(mask).text, describe(~mask).text) == ("scattered elements", "most elements")


def test_different_indices_have_different_phrases():
    sets = [np.array(chosen) for chosen in itertools.product([False, True], repeat=10)][1:-1]
    phrases = [indices_text("row", chosen) for chosen in sets]
    exact = [phrase for phrase in phrases if " of 10 rows" not in phrase]
    assert 200 < len(exact) == len(set(exact))
    for chosen, phrase in zip(sets, phrases, strict=True):
        assert phrase in exact or phrase == f"{chosen.sum()} of 10 rows"


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32 - 1), st.floats(0.02, 0.98))
def test_a_phrase_without_a_share_is_never_of_scattered_elements(seed, share):
    mask = np.random.default_rng(seed).random((2, 3, 4, 6)) < share
    if mask.any() and not np.array_equal(mask, mask.any(-1, keepdims=True) & mask.any((0, 1, 2))):
        assert re.search("some of|nearly all|most|scattered", describe(mask).text)


# ---- values ----

POS = np.array([3, 8, 1, 9, 6])


def wrong_result(change, dtype="float32", fields=None, pos=POS):
    """Return the message on a result that `change` makes of the right one."""
    x = np.random.default_rng(1).standard_normal((2, 3, pos.shape[-1], 16)).astype(dtype)
    y = apply_definition(x, pos, **(fields or {}))
    with pytest.raises(Failure) as caught:
        assert_contract(change(x, y).astype(dtype), x, pos, **(fields or {}))
    return caught.value


def at_pos(pos, **fields):
    return lambda x, y: apply_definition(x, pos, **fields)


VALUES = {
    "equal to x, unchanged": lambda x, y: x,
    "zeros": lambda x, y: 0 * y,
    "NaN": lambda x, y: np.nan * y,
    "1.5 times the right values": lambda x, y: 1.5 * y,
    "the right values negated": lambda x, y: -y,
    "the result of head 0": lambda x, y: np.broadcast_to(y[:, :1], y.shape),
    "the result of the previous row": lambda x, y: np.roll(y, 1, 2),
    "rotated by the inverse": at_pos(-POS),
    "rotated by pos + 1": at_pos(POS + 1),
    "rotated by the row's index": at_pos(np.arange(5)),
    "rotated by sorted positions": at_pos(np.sort(POS)),
    "rotated with half pairing": at_pos(POS, pairing="half"),
    "the first and second members exchanged": lambda x, y: y[..., np.arange(16) ^ 1],
}


@pytest.mark.parametrize("text", VALUES)
def test_values_are_named(text):
    def change(x, y):
        y = y.copy()
        y[:, 1:] = VALUES[text](x, y)[:, 1:]
        return y

    message = wrong_result(change, fields={"pairing": "interleaved"})
    assert message.place == "heads after the first"
    assert message.words.values == text


# Positions, and the positions that code rotates by instead.
OTHER_POSITIONS = {
    "pos converted to float32": (POS + 2**24, lambda pos: pos.astype(np.float32).astype(np.int64)),
    "pos modulo 2^24": (POS + 2**24, lambda pos: pos % 2**24),
    "pos without its fraction": (POS + 0.5, np.trunc),
    "positions that run along the batch axis": (np.array([[0, 7], [9, 1]]), np.transpose),
    "the positions of head 0": (np.arange(30).reshape(2, 3, 5), lambda pos: pos[:, :1]),
}


@pytest.mark.parametrize("text", OTHER_POSITIONS)
def test_other_positions_are_named(text):
    pos, change = OTHER_POSITIONS[text]
    message = wrong_result(lambda x, y: apply_definition(x, change(pos)), pos=pos)
    assert message.words.values == f"rotated by {text}"


def test_a_field_that_is_ignored_is_named():
    fields = {"base": 500.0, "attention_factor": 2.0}
    message = wrong_result(at_pos(POS, attention_factor=2.0), fields=fields)
    assert message.words.values == "rotated as without base"
    assert "base=500.0, attention_factor=2.0" in str(message)
    assert "; rotated forward, not by the inverse; " in str(
        wrong_result(at_pos(POS), fields={"inverse": True})
    )


def test_no_value_is_named_if_none_holds():
    message = wrong_result(lambda x, y: y + np.random.default_rng(0).random(y.shape))
    assert message.place == "all elements"
    assert message.words.values == ""


def test_few_or_small_errors_are_equal_to_nothing():
    """A few elements, and errors near the bound, are near other values by chance."""
    x = np.random.default_rng(1).standard_normal((1, 4))
    y = apply_definition(x, [3])
    mask = np.array([[True, False, False, False]])
    call = {"given_pos": np.array([3]), "pairs": ([0, 2], [1, 3]), "fields": {}}
    assert describe_values(WrongResult(y + 0.5, x, y, np.full(y.shape, 0.4), mask, **call)) == ("", None)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_a_weaker_arithmetic_is_named(dtype):
    narrow = {"float16": np.float16, "float64": np.float32}[dtype]
    noise = np.random.default_rng(2).uniform(-2, 2, (2, 3, 5, 16)) * np.finfo(narrow).eps
    message = wrong_result(lambda x, y: y * (1 + noise), dtype=dtype)
    assert f"; within the error of {narrow.__name__} arithmetic; " in str(message)


def test_an_element_and_its_position_are_shown():
    message = wrong_result(lambda x, y: y + (np.arange(16) == 14) * (np.arange(5) == 3)[:, None])
    assert message.place == "feature 14 of row 3 (position 9)"
    assert re.search(r"worst at batch \d, head \d, row 3, feature 14, position 9: got -?\d", str(message))
    assert element_text((0, 1, 2, 3, 4)) == "index (0, 1, 2, 3, 4)"


def test_rows_are_named_along_seq_axis():
    x = np.random.default_rng(1).standard_normal((2, 5, 3, 8))
    y = apply_definition(x, POS, seq_axis=-3)
    y[:, 2] = 0
    with pytest.raises(AssertionError, match=r"wrong: row 2 \(position 1\) of every head; zeros; "):
        assert_contract(y, x, POS, seq_axis=-3)
    with pytest.raises(AssertionError, match="wrong: feature 3; zeros; "):
        assert_contract(y[0, 0, 0] * [1, 1, 1, 0, 1, 1, 1, 1], x[0, 0, 0], 3)


def test_features_outside_the_slice_are_named():
    message = wrong_result(lambda x, y: np.where(np.arange(16) < 8, y, 2 * y), fields={"rotary_dim": 8})
    assert message.place == "all features outside the rotated slice of every row"


def test_where_bits_differ_is_named():
    assert difference(POS, POS, "differ") is None
    text = "wrong: row 2; 5 of 40 elements differ; first at row 2, feature 0: 3.0, not 4.0"
    expected = 3 + (np.arange(8)[:, None] == 2) * np.ones(5)
    assert str(difference(np.full((8, 5), 3.0), expected, "differ")) == text


def test_the_message_of_a_check_names_the_place():
    judge = Judge(faults.target(faults.named("positions_wrapped_at_2_24"), "numpy"))
    (check,) = (check for check in checks() if check.name == "accuracy_2e24[float32]")
    assert outcome_of(check, judge)[0] == FAILED
    failure = judge.faults[check.name]
    assert failure.place == "rows 19 to 22 (positions from 16,777,216 on) of every head"
    assert failure.words.values == "rotated by pos modulo 2^24"
