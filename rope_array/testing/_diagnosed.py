"""Ask `rope_array.diagnose` for the rotation that a result is, in the words of the suite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._own import RULES

_PLAIN = {"pairing": "interleaved", "base": 10000.0, "rotary_start": 0}


class Diagnosis(NamedTuple):
    """The fields and the direction of a rotation; or a mistake, of a result that is no rotation."""

    fields: Mapping[str, Any]
    inverse: bool = False
    mistake: str = ""


def diagnosis_of(x: NDArray[np.float64], y: NDArray[np.float64], pos: Any, dtype: str) -> Diagnosis | None:
    """Return the only rotation, or the mistake, that explains a result; None if none or several do."""
    narrow = dtype == "bfloat16"  # not a dtype of NumPy
    before, after = (each if narrow else each.astype(dtype) for each in (x, y))
    try:
        found = import_module("rope_array").diagnose(
            before, after, pos, tolerance=2.0**-5 if narrow else None
        )
    except ValueError:
        return None
    if (rope := found.rope) is not None:
        return _of_rope(rope)
    if len(found.explanations) == 1 and found.explanations[0].mistake:
        return Diagnosis({}, mistake=found.explanations[0].mistake)
    return None


def _of_rope(rope: Any) -> Diagnosis | None:
    """Return the fields of a rope that differ from the defaults; None if the suite has no words for it."""
    rule, inverse = rope.scaling, False
    if type(rule).__name__ == "Reversed":
        rule, inverse = rule.rule, True
    known = {name: getattr(rope, name) for name in (*_PLAIN, "out_pairing", "attention_factor", "inv_freq")}
    found = {name: value for name, value in known.items() if value not in (None, _PLAIN.get(name))}
    if rope.rotary_dim != rope.head_dim - rope.rotary_start:
        found["rotary_dim"] = rope.rotary_dim
        if rope.base != float(f"{rope.base:.3g}"):  # one series, cut: the other pairs may be wrong
            return None
    if rule is not None:
        names = {name: kind for kind, name in RULES.items()}
        if rope.axes is not None or type(rule).__name__ not in names:
            return None
        given = {one.name: getattr(rule, one.name) for one in fields(rule)}
        given = {name: value for name, value in given.items() if value is not None}
        found["scaling"] = {"rope_type": names[type(rule).__name__], **given}
    return Diagnosis(found, inverse)
