"""Positions to try: the intended positions, and positions that an implementation may use by mistake."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rope_array._diagnose._case import COORDINATES, Case, Floats


class Positions(NamedTuple):
    """Positions to try: the value for each row, and the code that writes them."""

    rows: Floats  # (N,) or (N, coordinates), of the rows of the search
    pos: Any  # the argument of apply
    code: str
    seq_axis: int
    mistake: str = ""
    free: bool = False  # whether the search may add a constant

    @property
    def coordinates(self) -> int:
        return self.rows.shape[1] if self.rows.ndim == 2 else 0


def intended_positions(case: Case) -> Iterator[Positions]:
    """Yield the intended positions: as numbers, as coordinates, or both if both line up."""
    plain = case.spread(case.pos, case.seq_axis)
    if plain is not None:
        yield Positions(plain.astype(float), case.pos, "pos", case.seq_axis)
    if case.pos.ndim > 1:
        several = case.spread(case.pos, case.seq_axis, True)
        if several is not None and 0 < several.shape[1] <= COORDINATES:
            yield Positions(several.astype(float), case.pos, "pos", case.seq_axis)


def mistaken_positions(case: Case) -> Iterator[Positions]:
    """Yield positions that an implementation may use by mistake."""
    intended = [p for p in intended_positions(case) if not p.coordinates]
    if not intended and not [*intended_positions(case)]:
        return
    lead = case.before.ndim - 1
    usual = case.seq_axis if case.seq_axis < 0 else case.seq_axis - case.before.ndim
    for positions in intended:
        yield positions._replace(free=True, mistake="the positions are off by a constant")
    for axis in range(lead):
        size, name = case.before.shape[axis], axis - lead - 1
        own = axis == case.seq_axis % case.before.ndim
        where = "" if own else f"positions run along axis {name} of x, not along axis {usual}"
        counted = np.arange(size)
        rows = case.spread(case.pos, name) if case.pos.ndim and not own else None
        if rows is not None and not any(np.array_equal(rows, p.rows) for p in intended):
            yield Positions(rows.astype(float), case.pos, "pos", name, where)
        rows = case.spread(counted, name)
        assert rows is not None
        text = where or "the intended positions are not used: tokens are counted from 0"
        if not any(np.array_equal(rows, p.rows) for p in intended):
            yield Positions(rows.astype(float), counted, f"range({size})", name, text)
    constant = np.zeros(len(case.x))
    text = "the intended positions are not used: all tokens rotate by the same angles"
    yield Positions(constant, np.array(0), "0", case.seq_axis, text, free=True)


def moved_positions(positions: Positions, offset: float, on_host: bool) -> Positions:
    """Add a constant to positions."""
    whole = int(offset)
    if positions.code == "0":
        text = f"{positions.mistake}, the angles of position {whole}"
        return positions._replace(
            rows=positions.rows + offset, pos=np.array(whole), code=f"{whole}", mistake=text
        )
    code = f"[p + {whole} for p in pos]" if on_host else f"pos + {whole}"
    return positions._replace(
        rows=positions.rows + offset,
        pos=positions.pos + whole,
        code=code.replace("+ -", "- "),
        mistake=f"the positions are off by {whole}",
    )
