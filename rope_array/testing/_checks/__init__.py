"""The checks by subject, in the order in which they are run."""

from rope_array.testing._judge import Check, registered

# Importing a module registers its checks; the order is that of reports.
from . import _accuracy, _arrays, _bits, _fields, _invariants, _kinds, _positions, _transforms  # noqa: F401

__all__ = ["checks"]


def checks() -> tuple[Check, ...]:
    """Return every check."""
    return tuple(registered)
