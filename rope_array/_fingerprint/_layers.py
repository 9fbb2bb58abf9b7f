"""The fingerprint of a model, from functions that rotate as its layers do."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rope_array import _dispatch
from rope_array._array_api.library import computes_in_float64, dtype_name
from rope_array._diagnose._observation import Floats, host_floats
from rope_array._errors import FingerprintError

from ._measure import MeasuredRotation, Probe, measure, probe
from ._report import Fingerprint, of_layers

APART = "Measure its code apart, by rope_array.fingerprint(function, head_dim=...)."
# The number of a layer, its name in messages, its head_dim, and functions that rotate heads, (heads, S,
# head_dim), at each of `positions_of_pass`.
Layer = tuple[int | None, str, int, list[Callable[[Any], Any]]]


def positions_of_pass(length: int, coordinates: int) -> list[Any]:
    """Return the probe's positions, (S,); or (coordinates, S), equal ones and then each alone."""
    pos = np.array(probe(2, length, "float32").positions)
    rows = (np.ones(coordinates, int), *np.eye(coordinates, dtype=int))
    return [row[:, None] * pos for row in rows] if coordinates else [pos]


def fingerprint_of_layers(layers: Iterable[Layer], like: Any, length: int) -> Fingerprint:
    """Measure layers; of layers that return the same bits, the first."""
    inputs: dict[int, tuple[Probe, Any]] = {}
    known: dict[bytes, MeasuredRotation] = {}
    measured: dict[int | None, MeasuredRotation] = {}
    for number, name, head_dim, functions in layers:
        if "indexer" in name:  # of DeepSeek V3.2: it selects keys, and rotates by another layout
            continue
        if head_dim not in inputs:
            heads = probe(head_dim, length, dtype_name(like))
            inputs[head_dim] = heads, to_library(heads.x, like)
        heads, x = inputs[head_dim]
        results = [host_floats(rotate(x), "the result") for rotate in functions]
        bits = b"".join(y.tobytes() for y in results)
        rotation = known[bits] = known.get(bits) or measure(heads, *results)
        if measured.setdefault(number, rotation) != rotation:
            raise FingerprintError(f"layer {number} rotates in two ways, in {name} by the second. {APART}")
    return of_layers(measured, length, dtype_name(like))


def layer_of_function(
    number: int | None,
    rotate: Callable[[Any, Any], Any],
    head_dim: int,
    coordinates: int,
    like: Any,
    length: int,
) -> Layer:
    """Return a layer that rotates by a function ``(x, pos) -> y`` of arrays of like's library."""
    lib = _dispatch.library_of_like(like)
    dtype = lib.xp.int64 if lib.has_int64(like) else lib.xp.int32
    passes = positions_of_pass(length, coordinates)
    arrays = [lib.xp.asarray(pos.T, dtype=dtype, **lib.ops(like).creation_kwargs) for pos in passes]

    def at(pos: Any) -> Callable[[Any], Any]:
        return lambda x: rotate(x, pos)

    return number, "the rope", head_dim, [at(pos) for pos in arrays]


def to_library(x: Floats, like: Any) -> Any:
    """Return float64 numbers of NumPy as an array of like's library, device and dtype."""
    lib = _dispatch.library_of_like(like)
    host = x.astype(np.float64 if computes_in_float64(like) else np.float32)
    return lib.ops(like).cast(lib.xp.asarray(host, **lib.ops(like).creation_kwargs), like.dtype)
