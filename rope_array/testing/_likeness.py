"""Find the rotation that results are: in another layout, pairing or direction, or with another base."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._claims import one_line
from ._contract import Accuracy, assert_contract
from ._diagnosed import Diagnosis, diagnosis_of
from ._factors import WIDTH
from ._guess import Change, Guess
from ._judge import Floats, Input, Judge
from ._own import OwnApply
from ._target import Target


class Seen(NamedTuple):
    """A call of the target, and its result."""

    y: Floats
    x: Input
    pos: NDArray[np.int64]
    fields: dict[str, Any]
    dtype: str

    def is_rotated(self, fields: Mapping[str, Any], change: Change) -> bool:
        """Return whether y is x rotated with these fields, in the weakest class of accuracy."""
        accuracy = Accuracy("float32", "float32" if self.x.dtype in ("float32", "float64") else "own")
        try:
            assert_contract(
                self.y, self.x.values, self.pos + change.shift, dtype=self.x.dtype, flushes=True,
                accuracy=accuracy, inverse=change.inverse, **{**self.fields, **fields},
            )  # fmt: skip
        except (AssertionError, ValueError, TypeError):
            return False
        return True


_LAYOUTS = ("...sd", "bshd", "sbhd", "hsd", "shd", "bsd", "sd", "1hsd", "1shd", "b1sd", "11sd")
_ANOTHER = {"half": "interleaved", "interleaved": "half"}


def find_rotation(target: Target) -> Guess | str | None:
    """Return claims and changes with which results are rotations; else the fault of the call, or None."""
    seen: dict[Any, Seen | Exception] = {}
    for place, pairing, change in _rotations(target):
        if place not in seen:
            seen[place] = _observe(target, place)
        found = seen[place]
        fields = {"pairing": pairing} if pairing else {}
        if isinstance(found, Seen) and found.is_rotated(fields, change):
            batched = _of_a_batch(target) if place[1] != target.layout else None
            return batched or _guess_of(target, place, found, fields, change)
    first = next(iter(seen.values()))
    if isinstance(first, Exception) and (guess := _of_other_positions(target)):
        return guess
    fault = _fault_of(first)
    for place in (place for place, found in seen.items() if isinstance(found, Seen) and not place[2]):
        if fault == _UNCHANGED:
            break
        diagnosed = _diagnosed(target, place)
        if isinstance(diagnosed, str):
            if place[:2] == (target.library, target.layout):
                return diagnosed
            continue  # of an x whose axes may be in another order
        if diagnosed is not None:
            return _guess_of(target, place, *diagnosed)
    return fault


_OTHER_POSITIONS = {
    "offset": "it takes consecutive positions only",
    "batch": "it takes positions of shape (B, S) only",
    "row": "it takes positions of shape (1, S) only",
    "arange": "it takes no positions: rows count from 0",
}


def _of_other_positions(target: Target, kinds: Iterable[str] = _OTHER_POSITIONS) -> Guess | None:
    """Return the guess of a target that takes positions of another shape only, or none."""
    for kind in kinds if target.positions == "any" else ():
        text = _OTHER_POSITIONS[kind]
        try:
            found = find_rotation(replace(target, positions=kind))
        except ValueError:  # other claims contradict it
            continue
        if isinstance(found, Guess):
            claims = {"positions": kind, **found.claims}
            return found._replace(texts=(text, *found.texts), claims=claims)
    return None


def _of_a_batch(target: Target) -> Guess | None:
    """Return the guess of positions of shape (B, S) if they explain what another layout does.

    Tables of rows, with an axis for the heads after the first, broadcast to (B, S, H, D) too.
    """
    guess = _of_other_positions(target, ["batch"])
    return None if guess is None or "layout" in guess.claims else guess


_UNCHANGED = "it returns x as it is"


def _fault_of(first: Seen | Exception) -> str | None:
    """Return the fault of a plain call that is no rotation of any kind, or None."""
    if isinstance(first, Seen):
        return _UNCHANGED if np.array_equal(first.y, first.x.values) else None
    if isinstance(first, NotAnArray):
        return str(first)
    return f"rotate(x, pos) raises {one_line(first)}"


class NotAnArray(Exception):
    """A call returned something else than an array; the message is the fault."""


def _rotations(target: Target) -> list[tuple[tuple[str, str, bool], str, Change]]:
    """Return what to try, the least changes first: library, layout and rows; pairing; changes of the code."""
    own = isinstance(target.rotate, OwnApply)
    loaded = [name for name in ("numpy", "torch", "jax") if name in sys.modules]
    libraries = [target.library, *(() if own else (n for n in loaded if n != target.library))]
    layouts = [target.layout, *(() if own else (each for each in _LAYOUTS if each != target.layout))]
    pairings = ["", *(() if own else (_ANOTHER[target.defaults.get("pairing") or "interleaved"],))]
    changes = [Change(), Change(inverse=True), Change(shift=1), Change(shift=-1)]
    tried = itertools.product(
        enumerate(libraries), enumerate(layouts), (False, True), enumerate(pairings), enumerate(changes)
    )
    ranked = [
        (bool(i) + bool(k) + rows + bool(p) + 1.5 * bool(c), ((library, layout, rows), pairing, change))
        for (i, library), (k, layout), rows, (p, pairing), (c, change) in tried
    ]
    return [each for cost, each in sorted(ranked, key=lambda each: each[0]) if cost <= 3]


def _observe(
    target: Target, place: tuple[str, str, bool], width: int = WIDTH, pos: Any = None
) -> Seen | Exception:
    """Call the target in a library and a layout; return the exception if it raises.

    If the place says rows, call with positions 0, 1, 2, ..., which the target has to ignore.
    """
    try:
        judge = _judge_of(target, place, width)
    except ValueError as error:  # a claim that contradicts the layout
        return error
    x = judge.x() if pos is None else judge.x(1, 2, len(pos), width)
    pos = np.arange(5) if place[2] else judge.positions() if pos is None else pos
    with judge.lib.running(), np.errstate(all="ignore"):
        try:
            y = judge.run(x, pos)
            if not hasattr(y, "dtype"):
                claim = ", or claim in_place=true if it writes its result into x" if y is None else ""
                return NotAnArray(
                    f"rotate(x, pos) returns a {type(y).__name__}; return x rotated, one array{claim}"
                )
            if place[2] and not np.array_equal(judge.numbers(y), judge.numbers(judge.run(x, pos + 1))):
                return ValueError("it uses pos")
            return Seen(judge.numbers(y), x, pos, judge.fields({}), judge.lib.dtype_of(y))
        except Exception as error:
            return error
        except SystemExit as error:
            return RuntimeError(f"SystemExit: {error}")


def _judge_of(target: Target, place: tuple[str, str, bool], width: int) -> Judge:
    """Return a judge that calls the target in a library and a layout, in a dtype that it takes."""
    moved = replace(target, library=place[0], layout=place[1])
    head_dim = moved.width_of(width) if moved.taken_widths or width != WIDTH else None
    dtypes = target.claimed if place[0] == target.library else target.dtypes or ()
    dtype = next(
        (name for name in ("float32", "float64", "float16", "bfloat16") if name in dtypes), "float32"
    )
    furthest = min(target.reach, 2**31 - 1)
    return Judge(replace(moved, declared=True, head_dim=head_dim, furthest=furthest, dtypes=(dtype,)))


def _diagnosed(
    target: Target, place: tuple[str, str, bool]
) -> tuple[Seen, dict[str, Any], Change] | str | None:
    """Return the fields and the direction that `diagnose` finds in more rows; or the mistake."""
    rows = np.arange(min(64, target.reach + 1))
    seen = _observe(target, place, pos=rows)
    found = _diagnosis_of(seen)
    if found is None or not isinstance(seen, Seen) or found.mistake:
        return f"in the plain call, {found.mistake}" if found and found.mistake else None
    fields = dict(found.fields)
    if "rotary_dim" in fields:  # it may be a share of the head_dim
        wide = _observe(target, place, pos=rows, width=64)
        if isinstance(wide, Seen) and not wide.is_rotated(fields, Change(inverse=found.inverse)):
            again = _diagnosis_of(wide)
            if again is None or again.mistake:
                return None
            seen, fields = wide, {**again.fields, "head_dim": 64}
    return seen, fields, Change(inverse=found.inverse)


def _diagnosis_of(seen: Seen | Exception) -> Diagnosis | None:
    """Ask `diagnose`; the definition has to agree with its answer."""
    if not isinstance(seen, Seen) or seen.y.shape != seen.x.values.shape:
        return None
    found = diagnosis_of(seen.x.values, seen.y, seen.pos, seen.x.dtype)
    if found is None or found.mistake or seen.is_rotated(found.fields, Change(inverse=found.inverse)):
        return found
    return None


def _guess_of(
    target: Target, place: tuple[str, str, bool], seen: Seen, fields: dict[str, Any], change: Change
) -> Guess:
    guess, (library, layout, rows) = Guess(target), place
    if library != target.library:
        guess = guess.adding(f"it takes arrays of {library}", library=library)
    if layout != target.layout:
        guess = guess.adding(f"the layout of x is ({', '.join(layout)})", layout=layout)
    if rows:
        guess = guess.adding("it does not use pos: rows count from 0", positions="arange")
    for name, value in fields.items():
        claims = {name: value} if name == "head_dim" else {"fixed": {name: value}}
        guess = guess.adding(_text_of(name, value, "rotary_start" in fields), **claims)
    if change.inverse:
        guess = guess._replace(texts=(*guess.texts, "it rotates by -pos, the inverse; negate sin"))
    if change.shift:
        text = f"it rotates by pos {'+' if change.shift > 0 else '-'} 1"
        guess = guess._replace(texts=(*guess.texts, text))
    if seen.dtype != seen.x.dtype:
        text = f"the result for {seen.x.dtype} is {seen.dtype}; convert it to x's dtype"
        guess, change = guess._replace(texts=(*guess.texts, text)), change._replace(cast=True)
    return guess._replace(change=change)


_TEXTS = {
    "pairing": "{} pairing",
    "out_pairing": "results are in {} pairing",
    "base": "the base is {:g}",
    "rotary_dim": "it rotates {} features",
    "rotary_start": "the rotated slice starts at feature {}",
    "head_dim": "of a head_dim of {}",
    "attention_factor": "results are {:.7g} times as long",
    "inv_freq": "the frequencies are {}",
    "scaling": "frequencies are scaled by {}",
}


def _text_of(name: str, value: Any, starts: bool) -> str:
    if name == "scaling" and value["rope_type"] == "linear":
        return f"frequencies are divided by {value['factor']:g}"
    if name == "rotary_dim" and not starts:
        return f"it rotates the first {value} features"
    return _TEXTS[name].format(value)
