"""Helpers for authors of backends: all that a backend of another package needs. See docs/write-a-backend.md.

A backend's ``rotate(call)`` gets a checked `Call`: its arrays, and their source, `Positions` or `Tables`.
"""

from typing import Any

from . import _dispatch
from ._array_api import tables as _tables
from ._array_api.library import Library
from ._array_api.ops import ArrayOps
from ._array_api.source import Call, CallOptions, Positions, Source, Tables
from ._errors import ArrayTypeError
from ._spec.plan import Layout

__all__ = [
    "ArrayOps",
    "ArrayTypeError",
    "Call",
    "CallOptions",
    "Layout",
    "Library",
    "Positions",
    "Source",
    "Tables",
    "aligned_tables",
    "make_tables_for",
    "rotate_by",
    "rotate_by_array_api",
]


def __dir__() -> list[str]:
    return __all__


def aligned_tables(call: Call) -> list[tuple[Any, Any]]:
    """Return cos and sin for each array of a call, ready for elementwise products.

    Parameters
    ----------
    call : Call
        The call that a backend's ``rotate`` gets.

    Returns
    -------
    list of (cos, sin)
        Tables for each of ``call.xs``, of its compute dtype (float64 for float64, else float32) and with its
        axes: shape (..., S, pairs), with the sizes of the positions, or 1. They include the amplitude.

    Raises
    ------
    PositionError
        A position in host memory is out of range.
    """
    return _tables.aligned_tables(call)


def rotate_by_array_api(call: Call) -> tuple[Any, ...]:
    """Rotate the arrays of a call by their library's functions of the Array API.

    For a backend that adapts a library: its ``library(x)`` returns a `Library`, whose `xp` has the functions,
    and whose `operations`, a subclass of `ArrayOps`, replaces those that the library lacks. Angles are exact.
    Gradients are the library's own.

    Parameters
    ----------
    call : Call
        The call that a backend's ``rotate`` gets.

    Returns
    -------
    tuple of array
        The rotated arrays, with the shapes and dtypes of ``call.xs``.

    Raises
    ------
    PositionError
        A position in host memory is out of range.
    """
    return _tables.rotate_by_array_api(call)


def rotate_by(x: Any, source: Source, options: CallOptions) -> Any:
    """Rotate x by the backend of its own type: for backends whose arrays hold arrays of another library.

    Parameters
    ----------
    x : array, or a tuple of arrays
        An inner array, such as a chunk.
    source : Source
        The positions or tables for x.
    options : CallOptions
        The options of the call.

    Returns
    -------
    array or tuple of arrays
        As `rope_array.apply` returns, with the same checks and exceptions.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> from rope_array.backend_tools import CallOptions, Tables, rotate_by
    >>> rot = ra.RoPE(head_dim=2).rotation(0, like=np.ones(2))
    >>> rotate_by(np.ones(2), Tables(rot.cos, rot.sin, rot.layout), CallOptions())
    array([1., 1.])
    """
    return _dispatch.rotate(x, source, options)


def make_tables_for(source: Positions, like: Any) -> Tables:
    """Make cos and sin by the backend of an array's own type; see `rotate_by`.

    Parameters
    ----------
    source : Positions
        Positions with a plan.
    like : array
        Array that sets the library, device and compute dtype of the tables.

    Returns
    -------
    Tables
        As `rope_array.RoPE.rotation` makes them, with the same checks and exceptions.
    """
    return _dispatch.make_tables(source, like)
