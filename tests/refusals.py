"""The calls of refusals.toml, and the form of every message: it names the fault and the remedy."""

import re
import tomllib
from pathlib import Path

import pytest

import rope_array as ra

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
# Verbs of a remedy; every message has one.
VERBS = "give|call|make|move|cast|split|shard|redistribute|pad|compute|repeat|omit"
REMEDY = re.compile(rf"\b({VERBS}|would fit|needs|it has|have the shape|must hold)\b", re.I)
# None as a value to pass; any other None is a leaked value.
NONE_TO_GIVE = re.compile(r"=None\b|\bgive None\b|\bor None\b|\bNone or\b")


def refusals(section):
    """Parametrize a test by the calls of a section: a text, the exception, and words of the message."""
    rows = [
        (call, getattr(ra, error), words)
        for error, row in TABLE[section].items()
        for call, words in row.items()
    ]
    return pytest.mark.parametrize(("call", "error", "words"), rows, ids=[call for call, *_ in rows])


def faults_of(text, *, none_given=False):
    """Return the faults in the form of a message."""
    faults = []
    if not text.endswith("."):
        faults.append("does not end with a period")
    if not REMEDY.search(text):
        faults.append("names no remedy")
    if not none_given and "None" in NONE_TO_GIVE.sub("", text):
        faults.append("None leaks")
    if re.search(r"object at 0x|<class|<function|array\(\[|\n|  ", text):
        faults.append("contains a long repr or a line break")
    if re.search(r"(?<!\.)\.\.(?!\.)|,\.|\(\)\(|\{\}|\{[a-z_]+\}", text):
        faults.append("contains stray punctuation or braces")
    if len(text) > 600:
        faults.append(f"has {len(text)} characters")
    for low, high in re.findall(r"(?<!falls )from (-?\d+) to (-?\d+)", text):
        if int(low) > int(high):
            faults.append(f"offers an empty range, from {low} to {high}")
    return faults


def raised(error, words, call):
    """Check that a call raises exactly this exception, with these words; return its message.

    `words` is a list, or a text of words between bars; "!word" must not be in the message.
    """
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    text = str(caught.value)
    words = words.split(" | ") if isinstance(words, str) else words
    missing = [word for word in words if (word[1:] in text if word[:1] == "!" else word not in text)]
    assert not missing, f"{missing}: {text!r}"
    return text


def refused(error, words, call):
    """Check that a call is refused with this exception, these words and a message of the right form."""
    text = raised(error, words, call)
    faults = faults_of(text, none_given="None" in words)
    assert not faults, f"{faults} in {text!r}"
    return text
