"""Every case of tests/configs/*.json: a config is read as the rope of the model's code, or refused."""

import re

import pytest
from config_cases import CASES

import rope_array as ra
from rope_array import ConfigError
from rope_array.config import read, read_layers

_NAMES = {name: getattr(ra, name) for name in ra.__all__}
_OUTCOMES = {"rope", "layers", "refused", "by_hand", "notes", "note_count", "unnoted"}
_CONDITIONS = {"config", "part", "layer_type", "format", "known", "in_part"}


def rope_of(text):
    return eval(text, _NAMES)


def which_of(case):
    return {key: case[key] for key in ("part", "layer_type") if key in case}


REFUSED = [name for name, case in CASES.items() if {"refused", "by_hand"} & case.keys()]
READ = [name for name in CASES if name not in REFUSED]


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    """By the words `refused`; `by_hand`: by the remedy to write a rope, and no key to state for a guess."""
    case = CASES[name]
    with pytest.raises(ConfigError, match=case.get("refused")) as caught:
        read(case["config"], **which_of(case))
    if "by_hand" in case:
        text = str(caught.value)
        assert "write RoPE(head_dim, base=..., rotary_dim=..., pairing=...)" in text
        assert not re.search(r"or one of|\bleave|is '\w+' meant", text)


def notes_of_layers(case):
    """Compare the ropes of `layers`, by their indices, and return the notes on all of them."""
    groups = read_layers(case["config"])
    ropes = {" ".join(map(str, indices)): reading.rope for indices, reading in groups}
    assert ropes == {indices: rope_of(text) for indices, text in case["layers"].items()}
    return [note for _, reading in groups for note in reading.notes]


def notes_of_one(case):
    """Compare the `rope`, the `format`, and `in_part`, and return the notes."""
    reading = read(case["config"], **which_of(case))
    if "rope" in case:
        assert reading.rope == rope_of(case["rope"])
    if "format" in case:
        assert reading.inferred["format"].startswith(case["format"])
        assert "rope_type" not in reading.inferred or case.get("note_count") == 0
    if "known" in case:
        assert "convention" not in reading.inferred
    assert reading.part == case.get("in_part", reading.part)
    return reading.notes


@pytest.mark.parametrize("name", READ)
def test_read(name):
    """Each of `notes` is found in a note, and `unnoted` in none; `note_count` counts them."""
    case = CASES[name]
    notes = notes_of_layers(case) if "layers" in case else notes_of_one(case)
    for text in case.get("notes", ()):
        assert any(re.search(text, note) for note in notes), notes
    assert "unnoted" not in case or not any(re.search(case["unnoted"], note) for note in notes)
    assert len(notes) == case.get("note_count", len(notes))


def test_every_case_states_an_outcome():
    for name, case in CASES.items():
        assert _OUTCOMES & case.keys(), name
        assert case.keys() <= _OUTCOMES | _CONDITIONS, name
