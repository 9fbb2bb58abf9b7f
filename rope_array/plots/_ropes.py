"""The ropes of a plot, with their labels, and the numbers that are read off a rope."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rope_array._errors import SpecError, describe, of_a_model, short
from rope_array._rope import RoPE
from rope_array._spec.validation import integer

Ropes: TypeAlias = RoPE | Sequence[RoPE] | Mapping[str, RoPE]
Floats: TypeAlias = NDArray[np.float64]

_NEED = "a RoPE, a sequence of them, or a dict from labels to ropes"
_MOST = 100
FURTHEST = 2**31 - 1  # exact angles are promised up to here


def label_ropes(ropes: Ropes) -> dict[str, RoPE]:
    """Return ropes by label, each checked; the label of a single rope is empty."""
    if isinstance(ropes, RoPE):
        labelled = {"": ropes}
    elif isinstance(ropes, Mapping):
        labelled = dict(ropes)
    elif isinstance(ropes, Sequence) and not isinstance(ropes, (str, bytes)):
        labelled = dict(zip(_labels(ropes), ropes, strict=True))
    else:
        raise SpecError(f"ropes is {of_a_model(ropes) or f'{describe(ropes)}; give {_NEED}'}.")
    if not 1 <= len(labelled) <= _MOST:
        raise SpecError(f"ropes has {len(labelled)} items; give from 1 to {_MOST}.")
    for label, rope in labelled.items():
        _check_labelled(label, rope)
    return labelled


def _check_labelled(label: Any, rope: Any) -> None:
    if not isinstance(label, str):
        raise SpecError(f"a label of ropes is {describe(label)}; give a str.")
    if not isinstance(rope, RoPE):
        raise SpecError(f"ropes has {of_a_model(rope) or f'{describe(rope)}; give {_NEED}'}.")
    if not rope.frequencies:  # raises if a rule needs a length first
        raise SpecError(f"the rope {short(rope)} rotates nothing: rotary_dim is 0; give one that rotates.")


def _labels(ropes: Sequence[Any]) -> list[str]:
    """Name each rope by the fields in which the ropes differ."""
    if not all(isinstance(rope, RoPE) for rope in ropes) or len(ropes) < 2:
        return ["", *map(str, range(2, len(ropes) + 1))][: len(ropes)]
    names = [field.name for field in fields(ropes[0])]
    names = [name for name in names if any(getattr(r, name) != getattr(ropes[0], name) for r in ropes)]
    texts = [", ".join(f"{name} {short(getattr(rope, name))}" for name in names) for rope in ropes]
    return [f"{i}: {text}" if texts.count(text) > 1 else text for i, text in enumerate(texts, 1)]


def for_coordinates(rope: RoPE, pos: Any) -> Any:
    """Return positions of the rope's shape: every coordinate has the same, as a text token's in M-RoPE."""
    if rope.axes is None:
        return pos
    return np.repeat(np.asarray(pos)[..., None], rope.axes.count or 1, axis=-1)


def tables(rope: RoPE, pos: Any, dtype: str = "float64") -> tuple[Floats, Floats]:
    """Return the rope's cos and sin at positions, computed in a dtype, as float64."""
    rotation = rope.rotation(for_coordinates(rope, np.asarray(pos)), like=np.empty(0, dtype))
    return np.asarray(rotation.cos, np.float64), np.asarray(rotation.sin, np.float64)


def position_count(name: str, value: Any, minimum: int = 1) -> int:
    """Return a number of positions that is checked."""
    return integer(name, value, minimum, FURTHEST)
