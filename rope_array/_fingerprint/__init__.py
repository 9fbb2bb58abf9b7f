"""The fingerprint of a rotation: what it does, measured in this process, in numbers and in hashes of bits.

`_measure.probe` has the heads to rotate, `_measure.measure` reads a rotation from their results, and
`_report.Fingerprint` prints, parses and compares rotations.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rope_array import _dispatch
from rope_array._array_api.library import computes_in_float64, dtype_name
from rope_array._diagnose._observation import Floats, host_floats
from rope_array._errors import SpecError, describe_other
from rope_array._rope import RoPE
from rope_array._spec.spec import require_plan
from rope_array._spec.validation import integer

from ._measure import LONGEST, MeasuredRotation, Probe, measure, probe
from ._report import Fingerprint, of_layers

__all__ = ["Fingerprint", "fingerprint"]


def fingerprint(
    rope: RoPE | Callable[[Any, Any], Any],
    *,
    head_dim: int | None = None,
    length: int | None = None,
    like: Any = None,
) -> Fingerprint:
    """Measure a rotation as this process computes it: equal fingerprints rotate alike, to the bit.

    Parameters
    ----------
    rope : RoPE or callable
        A rope; or any code that rotates, as a function ``(x, pos) -> y`` of heads of shape (heads, S,
        head_dim) and an array of S positions, both of like's library.
    head_dim : int, optional
        Features of a head, for a function.
    length : int, optional
        Positions 0 to length - 1 are measured; by default all that a rope allows, at most 2**31. Rules that
        depend on the length are resolved at it. Fingerprints compare at one length.
    like : array, optional
        An array as it will be rotated, for its library, dtype and device; by default NumPy's float32.

    Returns
    -------
    Fingerprint
        Printed, a report of a few lines, which `Fingerprint.parse` reads.

    Raises
    ------
    SpecError
        `length` is no int from 2 to 2**31, or the rule needs one; or `head_dim` is missing, or of no use.
    ArrayTypeError
        `like` is no array that can be rotated.
    FingerprintError
        The function returns another shape, or numbers that are not finite.

    Notes
    -----
    Some unit vectors and random heads are rotated at about 90 positions. The bits of cos and sin, and of the
    random heads' results, are hashed. Frequencies are known modulo a turn per position.

    Examples
    --------
    >>> import rope_array as ra
    >>> rope = ra.RoPE(128, base=500_000.0, pairing="half")
    >>> ours = ra.fingerprint(rope, length=8192)
    >>> ours == ra.Fingerprint.parse(str(ours))
    True
    """
    like = np.empty(0, np.float32) if like is None else like
    _dispatch.library_of_like(like)
    if isinstance(rope, RoPE) and head_dim is None:
        return fingerprint_of_ropes({None: rope}, like, length)
    if isinstance(rope, RoPE) or head_dim is None or not callable(rope):
        raise SpecError(
            f"rope is {describe_other(rope)}, and head_dim is {'missing' if head_dim is None else head_dim}; "
            "give a RoPE alone, or a function (x, pos) and its head_dim."
        )
    heads = probe(integer("head_dim", head_dim, 1), LONGEST if length is None else length, dtype_name(like))
    return of_layers({None: measure_code(rope, like, heads)}, heads.length, heads.dtype)


def fingerprint_of_ropes(ropes: Mapping[Any, RoPE], like: Any, length: int | None) -> Fingerprint:
    """Return the fingerprint of the ropes of layers by number, by default at all positions that all allow."""
    if length is None:
        limits = [require_plan(rope).max_position for rope in ropes.values()]
        length = min(LONGEST if limit is None else limit + 1 for limit in limits)
    measured = {rope: measure_rope(rope, like, length) for rope in set(ropes.values())}
    return of_layers({layer: measured[rope] for layer, rope in ropes.items()}, length, dtype_name(like))


def measure_rope(rope: RoPE, like: Any, length: int) -> MeasuredRotation:
    """Return the rotation of a rope at a length; of coordinates: equal ones, and each alone."""
    heads, coordinates = probe(rope.head_dim, length, dtype_name(like)), rope.axes.count if rope.axes else 0
    if rope.scaling is not None and not rope.scaling.resolved:
        rope = rope.at_length(length)
    return measure_code(rope.apply, like, heads, coordinates or 0)


def measure_code(
    rotate: Callable[[Any, Any], Any], like: Any, probe: Probe, coordinates: int = 0
) -> MeasuredRotation:
    """Return the rotation of a function ``(x, pos) -> y`` of arrays of like's library."""
    lib = _dispatch.library_of_like(like)
    x, pos = to_library(probe.x, like), np.array(probe.positions)
    dtype = lib.xp.int64 if lib.has_int64(like) else lib.xp.int32
    weights = np.concatenate([np.ones((1, coordinates), int), np.eye(coordinates, dtype=int)])
    calls = [pos[:, None] * row for row in weights] if coordinates else [pos]
    arrays = (lib.xp.asarray(p, dtype=dtype, **lib.ops(like).creation_kwargs) for p in calls)
    return measure(probe, *(host_floats(rotate(x, p), "the result") for p in arrays))


def to_library(x: Floats, like: Any) -> Any:
    """Return float64 numbers of NumPy as an array of like's library, device and dtype."""
    lib = _dispatch.library_of_like(like)
    ops = lib.ops(like)
    host = x.astype(np.float64 if computes_in_float64(like) else np.float32)
    return ops.cast(lib.xp.asarray(host, **ops.creation_kwargs), like.dtype)
