"""Name sets of indices of an axis, in a few words: "rows 512 to 599", "every odd feature"."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
# Indices are listed up to this number.
LISTED = 4


class IndexPhrase(NamedTuple):
    """The phrase of a set of indices, and whether it names every index."""

    text: str
    simple: bool = True


def _plural(name: str) -> str:
    return f"{name}es" if name.endswith("ch") else f"{name}s"


def indices_text(name: str, chosen: Mask) -> IndexPhrase:
    """Return the phrase of a set of indices; an empty one for all indices."""
    indices, size = np.flatnonzero(chosen), len(chosen)
    if len(indices) == size:
        return IndexPhrase("")
    noun, many = (name, _plural(name)) if not name.startswith("axis") else ("index", "indices")
    end = f" of {name}" if name.startswith("axis") else ""
    text = _set_text(noun, many, indices, size)
    if text is not None:
        return IndexPhrase(f"{text}{end}")
    return IndexPhrase(f"{len(indices):,} of {size:,} {many}{end}", simple=False)


def _set_text(noun: str, many: str, indices: NDArray[np.intp], size: int) -> str | None:
    """Describe indices exactly in a few words; None if they have no simple form."""
    first, last, count = int(indices[0]), int(indices[-1]), len(indices)
    if count == 1:
        return f"{noun} {first:,}"
    if count == last - first + 1:
        return _range_text(many, first, last, size)
    missing = np.setdiff1d(np.arange(size), indices)
    if len(missing) == 1 and size > 3:
        return f"every {noun} but {int(missing[0]):,}"
    steps = np.unique(np.diff(indices))
    if count > 2 and len(steps) == 1 and (step := int(steps[0])) > 1:
        if first < step and last + step >= size:
            return f"every {('even', 'odd')[first]} {noun}" if step == 2 else _every(noun, step, first)
        if count > LISTED:
            return f"{_every(noun, step, first)} to {last:,}"
    if count <= LISTED:
        return f"{many} {', '.join(f'{i:,}' for i in indices.tolist())}"
    runs = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
    if len(runs) <= 3:
        return f"{many} {' and '.join(_run_text(run) for run in runs)}"
    return None


def _every(noun: str, step: int, first: int) -> str:
    return f"every {step}{ {2: 'nd', 3: 'rd'}.get(step, 'th') } {noun} from {first:,}"


def _run_text(run: NDArray[np.intp]) -> str:
    first, last = int(run[0]), int(run[-1])
    return f"{first:,} to {last:,}" if len(run) > 2 else ", ".join(f"{i:,}" for i in run.tolist())


def _range_text(many: str, first: int, last: int, size: int) -> str:
    if last == size - 1 and first == 1:
        return f"{many} after the first"
    if last - first < 2:
        return f"{many} {first:,}, {last:,}"
    if last == size - 1:
        return f"{many} from {first:,} on"
    return f"{many} {first:,} to {last:,}"
