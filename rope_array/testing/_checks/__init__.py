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

__all__ = ["checks", "subjects"]

# The subjects in words. Importing a module registers its checks.
_SUBJECTS = {
    _first: "first calls",  # before any other call
    _kinds: "kinds",
    _fields: "fields",
    _variants: "scaling and axes",
    _accuracy: "accuracy",
    _positions: "positions",
    _together: "combinations",
    _alone: "fields alone",
    _state: "state",
    _refusals: "refusals",
    _arrays: "inputs",
    _memory: "memory",
    _sizes: "sizes",
    _invariants: "invariants",
    _bits: "bits",
    _transforms: "gradients",
    _modes: "modes",
}
_BY_SUBJECT = {
    word: tuple(check for check in registered if check.function.__module__ == subject.__name__)
    for subject, word in _SUBJECTS.items()
}
_CHECKS = tuple(check for some in _BY_SUBJECT.values() for check in some)


def checks() -> tuple[Check, ...]:
    """Return every check."""
    return _CHECKS


def subjects() -> dict[str, tuple[Check, ...]]:
    """Return the checks by subject, in words."""
    return dict(_BY_SUBJECT)
