"""The checks by subject, in the order of their runs and reports."""

from rope_array.testing._judge import Check, registered

from . import (
    _accuracy,
    _alone,
    _arrays,
    _bits,
    _fields,
    _first,
    _invariants,
    _kinds,
    _memory,
    _modes,
    _positions,
    _refusals,
    _sizes,
    _state,
    _together,
    _transforms,
    _variants,
)

__all__ = ["checks"]

# Importing a module registers its checks.
_SUBJECTS = (
    _first,  # before any other call
    _kinds,
    _fields,
    _variants,
    _accuracy,
    _positions,
    _together,
    _alone,
    _state,
    _refusals,
    _arrays,
    _memory,
    _sizes,
    _invariants,
    _bits,
    _transforms,
    _modes,
)
_CHECKS = tuple(
    check for subject in _SUBJECTS for check in registered if check.function.__module__ == subject.__name__
)


def checks() -> tuple[Check, ...]:
    """Return every check."""
    return _CHECKS
