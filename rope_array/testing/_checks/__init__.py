"""The checks by subject, in the order in which they are run."""

from . import _kinds, _fields, _accuracy, _positions, _arrays, _invariants, _bits, _transforms  # noqa: I001

__all__ = ["_accuracy", "_arrays", "_bits", "_fields", "_invariants", "_kinds", "_positions", "_transforms"]
