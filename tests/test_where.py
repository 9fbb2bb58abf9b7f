"""Messages that name the place of wrong elements, and their values."""

import re

import faults
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rope_array.testing._checks import checks
from rope_array.testing._contract import assert_contract
from rope_array.testing._definition import apply_definition
from rope_array.testing._index_words import indices_text
from rope_array.testing._judge import Judge
from rope_array.testing._outcome import FAILED, outcome_of
from rope_array.testing._values import alike
from rope_array.testing._where import axis_names, describe, element_text, place_of
from rope_array.testing._wrong import Wrong

SHAPE = (3, 4, 6, 16)


def product(shape, **sets):
    """Return the product of index sets; an axis that is not named has all indices."""
    mask = np.zeros(shape, bool)
    mask[
        np.ix_(
            *(sets.get(name, range(size)) for name, size in zip(axis_names(len(shape)), shape, strict=True))
        )
    ] = True
    return mask


def evens(n):
    return range(0, n, 2)


NAMED = [
    ((5,), {"feature": [3]}, "feature 3"),
    ((5,), {}, "all elements"),
    (SHAPE, {}, "all elements"),
    (SHAPE, {"feature": [14, 15]}, "features 14, 15 (the last 2) of every row"),
    (SHAPE, {"feature": range(8, 16)}, "features from 8 on of every row"),
    (SHAPE, {"feature": range(4, 10)}, "features 4 to 9 of every row"),
    (SHAPE, {"feature": evens(16)}, "every even feature of every row"),
    (SHAPE, {"feature": range(1, 16, 2)}, "every odd feature of every row"),
    (SHAPE, {"feature": range(1, 16, 3)}, "every 3rd feature from 1 of every row"),
    (SHAPE, {"feature": [1, 2, 3, 4, 9, 10]}, "features 1 to 4 and 9, 10 of every row"),
    (SHAPE, {"feature": [i for i in range(16) if i != 5]}, "every feature but 5 of every row"),
    (SHAPE, {"row": [2]}, "row 2 of every head"),
    (SHAPE, {"row": [2], "batch": [1]}, "row 2 of batch 1"),
    (SHAPE, {"head": [2, 3]}, "heads 2, 3"),
    (SHAPE, {"batch": [1, 2]}, "batches after the first"),
    (SHAPE, {"batch": [0, 2]}, "batches 0, 2"),
    (SHAPE, {"feature": [0, 1], "row": [5], "head": [0]}, "features 0, 1 of row 5, head 0"),
    ((1, 70, 3, 16), {"head": range(64, 70)}, "heads from 64 on"),
    ((1, 2, 700, 16), {"row": range(512, 600)}, "rows 512 to 599 of every head"),
    ((1, 1, 1100, 16), {"row": range(1024, 1100)}, "rows from 1,024 on"),
    ((2, 2, 3, 5, 16), {"axis 1": [1]}, "index 1 of axis 1"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "sets", "text"), NAMED, ids=[text for *_, text in NAMED])
def test_a_product_of_index_sets_is_named(shape, sets, text):
    assert describe(product(shape, **sets)) == text


HALVES = (np.arange(8), np.arange(8) + 8)
OF_PAIRS = [
    ({"feature": [2, 3, 10, 11]}, "features 2, 3, 10, 11 of every row"),
    (
        {"feature": [*range(4, 8), *range(12, 16)]},
        "pairs from 4 on (features 4 to 7 and 12 to 15) of every row",
    ),
    ({"feature": range(8)}, "features 0 to 7 of every row"),
]


@pytest.mark.parametrize(("sets", "text"), OF_PAIRS, ids=[text for *_, text in OF_PAIRS])
def test_features_are_named_by_their_pairs(sets, text):
    assert describe(product(SHAPE, **sets), pairs=HALVES) == text


FAR = np.array([5, 70_000, 3, 65_536, 65_535, 0, 100_000, 9])
FRACTIONS, MIXED = np.array([0.5, 1, 2, 3.25, 7]), np.array([3, 5, 4, 8, 7, 2, 11])
AT = [
    (FAR, FAR >= 65_536, "rows 1, 3, 6 (positions from 65,536 on) of every head"),
    (FAR, FAR >= 70_000, "rows 1, 6 (positions from 70,000 on, right up to 65,536) of every head"),
    (FAR, FAR == 0, "row 5 (position 0) of every head"),
    (np.arange(-3, 5), np.arange(-3, 5) < 0, "rows 0 to 2 (negative positions) of every head"),
    (np.array([-1, 4, -7, 2]), np.array([1, 0, 1, 0], bool), "rows 0, 2 (negative positions) of every head"),
    (np.arange(9), np.arange(9) > 0, "rows after the first (every position but 0) of every head"),
    (FRACTIONS, FRACTIONS % 1 != 0, "rows 0, 3 (positions with a fraction) of every head"),
    (MIXED, MIXED % 2 == 1, "rows 0, 1, 4, 6 (odd positions) of every head"),
]  # fmt: skip


@pytest.mark.parametrize(("pos", "rows", "text"), AT, ids=[text for *_, text in AT])
def test_rows_are_named_by_their_positions(pos, rows, text):
    mask = np.broadcast_to(rows[:, None], (2, 3, len(pos), 8))
    assert describe(mask, pos) == text


def test_positions_of_a_batch_line_up_with_x():
    pos = np.array([[0, 7, 2], [9, 1, 8]])
    mask = np.broadcast_to((pos > 6)[:, None, :, None], (2, 4, 3, 8))
    assert describe(mask, pos) == "positions from 7 on, right up to 2"


def test_a_part_of_a_product_says_so():
    mask = product(SHAPE, feature=[0, 1, 2], row=[1])
    mask[0, 0, 1, 0] = False
    assert describe(mask) == "nearly all of features 0 to 2 of row 1 (35 of 36 there)"
    mask = product(SHAPE, feature=[0, 1, 2], row=[1])
    mask[:2] &= np.arange(3 * 16).reshape(-1, 16)[0] < 1
    assert describe(mask) == "some of features 0 to 2 of row 1 (20 of 36 there)"


def test_scattered_elements_are_not_a_place():
    mask = np.random.default_rng(0).random(SHAPE) < 0.3
    assert describe(mask) == "scattered elements"
    assert describe(~mask) == "most elements"


def test_right_elements_like_the_wrong_ones_may_be_covered():
    mask = product((2, 3, 5, 16), head=[2])
    wrong = mask & (np.arange(5) > 0)[:, None]
    assert describe(wrong, np.arange(5)) == "rows after the first (every position but 0) of head 2"
    assert describe(wrong, np.arange(5), same=mask) == "head 2"


sizes = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@st.composite
def products(draw):
    """Draw a product of index sets, and the sets."""
    shape = tuple(draw(sizes))
    sets = [sorted(draw(st.sets(st.integers(0, n - 1), min_size=1))) for n in shape]
    mask = np.zeros(shape, bool)
    mask[np.ix_(*sets)] = True
    return mask, sets


def indices_of(text, size):
    """Return the indices that a phrase names."""
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    if text == "rows after the first":
        return [*range(1, size)]
    if text.startswith("every row but "):
        return [i for i in range(size) if i != numbers[0]]
    if text in ("every even row", "every odd row"):
        return [*range("odd" in text, size, 2)]
    if text.startswith("every"):
        step, first, last = (*numbers, size - 1)[:3]
        return [*range(first, last + 1, step)]
    if text.endswith(" on"):
        return [*range(numbers[0], size)]
    found = []
    for part in re.split(r", | and ", text.partition(" ")[2]):
        first, _, last = part.partition(" to ")
        found += range(int(first), int(last or first) + 1)
    return found


@settings(deadline=None, max_examples=500)
@given(st.lists(st.booleans(), min_size=2, max_size=40).filter(lambda each: any(each) and not all(each)))
def test_a_phrase_names_the_indices(chosen):
    part = indices_text("row", np.array(chosen))
    if part.simple:
        assert indices_of(part.text, len(chosen)) == [*np.flatnonzero(chosen)]
    else:
        assert part.text == f"{sum(chosen)} of {len(chosen)} rows"


@settings(deadline=None, max_examples=300)
@given(products())
def test_the_phrase_of_a_product_is_of_all_its_sets(case):
    mask, _ = case
    names = axis_names(mask.ndim)
    parts = [
        indices_text(name, mask.any(tuple(j for j in range(mask.ndim) if j != i))).text
        for i, name in enumerate(names)
    ]
    text = re.sub(r" \(the last( 2)?\)", "", describe(mask))
    for name in ("row", "head", "batch"):
        text = text.removesuffix(f" of every {name}")
    joined = [*parts[-1:], *parts[-2::-1]]
    assert text.replace(" of ", ", ") == (", ".join(filter(None, joined)) or "all elements").replace(
        " of ", ", "
    )


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32 - 1), st.floats(0.02, 0.98))
def test_a_phrase_without_a_share_is_never_of_scattered_elements(seed, share):
    mask = np.random.default_rng(seed).random((2, 3, 4, 6)) < share
    if mask.any() and not all(
        np.array_equal(mask, part) for part in (mask.any(-1, keepdims=True) & mask.any((0, 1, 2)),)
    ):
        assert re.search("some of|nearly all|most|scattered", describe(mask))


# ---- values ----


def wrong_result(change, pos=None, dtype="float32", fields=None, **spec):
    """Return the message on a result that `change` makes of the right one."""
    pos = np.array([3, 8, 1, 9, 6]) if pos is None else pos
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 16)).astype(dtype)
    y = apply_definition(x, pos, **(fields or {}), **spec)
    with pytest.raises(AssertionError) as caught:
        assert_contract(change(x, y).astype(dtype), x, pos, **(fields or {}), **spec)
    return str(caught.value)


def at_heads(x, y, value):
    y = y.copy()
    y[:, 1:] = value[:, 1:] if np.ndim(value) else value
    return y


def rotated(x, pos, **fields):
    return apply_definition(x, pos, **fields)


POS = np.array([3, 8, 1, 9, 6])
VALUES = {
    "equal to x, unchanged": lambda x, y: at_heads(x, y, x),
    "zeros": lambda x, y: at_heads(x, y, 0.0),
    "NaN": lambda x, y: at_heads(x, y, np.nan),
    "1.5 times the right values": lambda x, y: at_heads(x, y, 1.5 * y),
    "the right values negated": lambda x, y: at_heads(x, y, -y),
    "the result of head 0": lambda x, y: at_heads(x, y, np.broadcast_to(y[:, :1], y.shape)),
    "the result of the previous row": lambda x, y: at_heads(x, y, np.roll(y, 1, 2)),
    "rotated by the inverse": lambda x, y: at_heads(x, y, rotated(x, -POS)),
    "rotated by pos + 1": lambda x, y: at_heads(x, y, rotated(x, POS + 1)),
    "rotated by the row's index": lambda x, y: at_heads(x, y, rotated(x, np.arange(5))),
    "rotated by sorted positions": lambda x, y: at_heads(x, y, rotated(x, np.sort(POS))),
    "rotated with half pairing": lambda x, y: at_heads(x, y, rotated(x, POS, pairing="half")),
    "the first and second members exchanged": lambda x, y: at_heads(
        x, y, y.reshape(2, 3, 5, 8, 2)[..., ::-1].reshape(y.shape)
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", VALUES)
def test_values_are_named(text):
    message = wrong_result(VALUES[text], fields={"pairing": "interleaved"})
    assert place_of(message) == "heads after the first"
    assert message.split("; ")[1] == text


def test_a_field_that_is_ignored_is_named():
    fields = {"base": 500.0, "attention_factor": 2.0}
    message = wrong_result(lambda x, y: rotated(x, POS, attention_factor=2.0), fields=fields)
    assert "; rotated as without base; " in message
    assert "base=500.0, attention_factor=2.0" in message


def test_no_value_is_named_if_none_holds():
    message = wrong_result(lambda x, y: y + np.random.default_rng(0).random(y.shape))
    assert place_of(message) == "all elements"
    assert message.split("; ")[1] == "480 of 480 elements, float32"


def test_few_or_small_errors_are_equal_to_nothing():
    """A few elements, and errors near the bound, are near other values by chance."""
    x = np.random.default_rng(1).standard_normal((1, 4))
    y = apply_definition(x, [3])
    mask = np.array([[True, False, False, False]])
    call = {"given_pos": np.array([3]), "pairs": ([0, 2], [1, 3]), "fields": {}}
    assert alike(Wrong(y + 0.5, x, y, np.full(y.shape, 0.4), mask, **call)) == ("", None)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_a_weaker_arithmetic_is_named(dtype):
    narrow = {"float16": np.float16, "float64": np.float32}[dtype]

    def change(x, y):
        noise = np.random.default_rng(2).uniform(-2, 2, y.shape)
        return y * (1 + noise * np.finfo(narrow).eps)

    assert f"; within the error of {narrow.__name__} arithmetic; " in wrong_result(change, dtype=dtype)


def test_an_element_and_its_position_are_shown():
    message = wrong_result(lambda x, y: y + (np.arange(16) == 14) * (np.arange(5) == 3)[:, None])
    assert place_of(message) == "feature 14 of row 3 (position 9)"
    assert re.search(r"worst at batch \d, head \d, row 3, feature 14, position 9: got -?\d", message)
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
    assert place_of(message) == "features from 8 on of every row"


# ---- mutants ----

# Mutant: a check that it fails, the place, and the values if the message names them.
PLACES = {
    "wrong_direction": ("definition", "all elements", "rotated by the inverse"),
    "base_ignored": ("base", "features from 2 on of every row", "rotated as without base"),
    "cache_keyed_without_offset": ("calls_at_other_positions", "all elements", ""),
    "exponent_i_over_d": ("definition", "features from 2 on of every row", ""),
    "frequencies_from_head_dim": ("odd_width", "features 2, 3 of every row", "rotated as without rotary_dim"),
    "pairing_mixed": ("definition", "features 1 to 14 of every row", ""),
    "other_pairing": ("definition", "all elements", "rotated with half pairing"),
    "halves_of_the_head": ("pairing", "features 0, 1, 8 of every row", ""),
    "rotary_start_ignored": ("rotary_start", "all elements", "rotated as without rotary_start"),
    "tail_zeroed": ("rotary_dim", "features from 2 on of every row", "zeros"),
    "block_of_256_features": (
        "wide_heads", "features 256, 257 (the last 2) of every row", "equal to x, unchanged"
    ),
    "only_128_features": ("widths", "features 128, 129 (the last 2) of every row", "equal to x, unchanged"),
    "frequencies_sorted": ("inv_freq", "features from 4 on of every row", ""),
    "amplitude_squared": ("attention_factor", "all elements", "2 times the right values"),
    "amplitude_on_all": ("attention_factor", "features from 2 on of every row", "2 times the right values"),
    "inverse_ignored": ("inverse", "all elements", "rotated forward, not by the inverse"),
    "vectors_and_videos": ("ranks", "all elements", "equal to x, unchanged"),
    "scaling_ignored": ("scaling_linear", "all elements", "rotated as without scaling"),
    "yarn_always_truncated": ("scaling_yarn", "features 2 to 5 of every row", ""),
    "llama3_without_the_ramp": ("scaling_llama3", "features 2 to 5 of every row", ""),
    "first_coordinate_only": ("axes", "features from 8 on of rows 0 to 3", ""),
    "given_frequencies_turn_every_lane": ("axes_and_frequencies", "every odd pair of every row", ""),
    "bfloat16_positions": ("accuracy_2e16[float32]", "56 of 61 rows", ""),
    "positions_counted_in_float32": (
        "accuracy_2e24[float32]",
        "rows 20, 22 (positions 16,777,217, 16,777,219) of every head",
        "rotated by pos converted to float32",
    ),
    "positions_wrapped_at_2_24": (
        "accuracy_2e24[float32]",
        "rows 19 to 22 (positions from 16,777,216 on) of every head",
        "rotated by pos modulo 2^24",
    ),
    "positions_clamped": ("accuracy_2e16[float32]", "positions from 45,368 on, right up to 39,430", ""),
    "positions_of_32_bits": ("accuracy_wide[float64]", "all elements", "rotated by pos converted to int32"),
    "positions_truncated": (
        "accuracy_float[float32]",
        "rows 1 to 5 (positions with a fraction) of every head",
        "rotated by pos without its fraction",
    ),
    "dtype_narrowed_inside": (
        "accuracy_small[float64]", "all elements", "within the error of float32 arithmetic"
    ),
    "off_by_one": ("definition", "all elements", "rotated by pos + 1"),
    "positions_sorted": (
        "positions_of_their_own",
        "every row but 2 of every head",
        "rotated by the position of the previous row",
    ),
    "one_row_is_the_first": ("positions_offset", "all elements", "equal to x, unchanged"),
    "batch_of_positions_ignored": ("positions_of_a_batch", "batch 1", "rotated by the positions of batch 0"),
    "square_positions_transposed": (
        "positions_of_a_batch", "all elements", "rotated by positions that run along the batch axis"
    ),
    "heads_of_positions_ignored": (
        "positions_of_heads", "heads after the first", "rotated by the positions of head 0"
    ),
    "second_of_a_tuple_shifted": ("tuples", "all elements", "rotated by pos + 1"),
    "only_1024_rows": ("many_rows[float32]", "row 1,024", "equal to x, unchanged"),
    "only_32_heads": ("many_heads", "head 32", "equal to x, unchanged"),
    "scaled": ("definition", "all elements", "1.01 times the right values"),
    "only_the_first_head": ("definition", "heads after the first", "equal to x, unchanged"),
    "bits_by_length": ("same_bits", "row 2", ""),
    "only_65536_rows": ("more_rows_than_2e16", "row 65,536", "equal to x, unchanged"),
    "step_of_the_first_batch": ("positions_of_a_batch", "batch 1", "rotated by the positions of batch 0"),
    "cache_keyed_by_the_ends": (
        "calls_at_like_positions", "rows 1, 2 (positions 5, 7) of every head", "rotated by sorted positions"
    ),
    "broadcast_misread": ("memory", "all elements", "zeros"),
    "bits_by_number_of_elements": ("same_bits", "feature 3 of every row", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_the_message_of_a_mutant_names_the_place(name):
    check_name, place, values = PLACES[name]
    (mutant,) = (each for each in faults.load_mutants() if each.name == name)
    (check,) = (each for each in checks() if each.name == check_name)
    judge = Judge(mutant.target())
    outcome, _ = outcome_of(check, judge)
    text = judge.faults[check_name].text
    assert (outcome, place_of(text)) == (FAILED, place)
    assert not values or f"; {values}; " in text
