"""The checks by subject, in the order of their runs and reports: rows, and the checks that are code."""

from collections.abc import Iterator

from rope_array.testing import _rows, _rows_of_attention, _rows_of_gradients, _rows_of_modes, _rows_of_scaling
from rope_array.testing._factors import DTYPES
from rope_array.testing._judge import Check, registered
from rope_array.testing._row import CheckRow, check_of

from . import _accuracy, _first, _invariants, _memory, _observed, _state  # noqa: F401 - they register

__all__ = ["checks", "subjects"]


def _rows_of(rows: list[CheckRow]) -> Iterator[Check]:
    for row in rows:
        yield from map(check_of, [row] * len(DTYPES), DTYPES) if row.each_dtype else [check_of(row)]


# The subjects in words.
_BY_SUBJECT = {
    "first calls": registered["first calls"],  # before any other call
    "kinds": _rows_of(_rows.KIND_ROWS),
    "fields": [*registered["fields"], *_rows_of(_rows.FIELD_ROWS)],
    "scaling and axes": [*_rows_of(_rows_of_scaling.SCALING_ROWS), *_rows_of(_rows_of_scaling.AXES_ROWS)],
    "accuracy": [*_accuracy.checks_of_ranges(), *registered["accuracy"]],
    "positions": [*_rows_of(_rows.POSITION_ROWS), *registered["positions"]],
    "combinations": _rows_of(_rows.COVER_ROWS),
    "state": [*_rows_of(_rows.STATE_ROWS), *registered["state"], *_rows_of(_rows.THREAD_ROWS)],
    "refusals": registered["refusals"],
    "sizes": _rows_of(_rows.SIZE_ROWS),
    "invariants": registered["invariants"],
    "gradients": _rows_of(_rows_of_gradients.GRADIENT_ROWS),
    "attention's inputs": [check for row in _rows_of_attention.ROWS for check in row.checks()],
    "modes": _rows_of(_rows_of_modes.MODE_ROWS),
    "memory": [*_observed.observed_checks(), *registered["memory"]],  # last: observers watch all other calls
}
_SUBJECTS = {subject: tuple(subject_checks) for subject, subject_checks in _BY_SUBJECT.items()}
_CHECKS = tuple(check for subject_checks in _SUBJECTS.values() for check in subject_checks)


def checks() -> tuple[Check, ...]:
    """Return every check."""
    return _CHECKS


def subjects() -> dict[str, tuple[Check, ...]]:
    """Return the checks by subject, in words."""
    return dict(_SUBJECTS)
