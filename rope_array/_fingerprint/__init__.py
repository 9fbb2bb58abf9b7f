"""The fingerprint of a rotation, as this process computes it: its numbers, and hashes of its bits.

`_measure.probe` has the heads to rotate, `_measure.measure` reads a rotation from their results, `_layers`
has the rotations of layers, and `_report.Fingerprint` prints, parses and compares them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rope_array import _dispatch
from rope_array._errors import SpecError, describe_other, of_a_model
from rope_array._rope import RoPE
from rope_array._spec.spec import require_plan
from rope_array._spec.validation import integer

from ._layers import fingerprint_of_layers, layer_of_function
from ._measure import LONGEST
from ._report import Fingerprint, by_layer, of_layers

__all__ = ["Fingerprint", "fingerprint"]


def fingerprint(
    rope: RoPE | Callable[[Any, Any], Any],
    *,
    head_dim: int | None = None,
    length: int | None = None,
    like: Any = None,
) -> Fingerprint:
    """Measure a rotation as this process computes it: with equal fingerprints the measured bits are equal.

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
    Unit vectors and random heads are rotated at up to 93 positions, in each octave three. The bits of cos and
    sin, and of the random heads' results, are hashed. Frequencies are known modulo a turn per position.

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
        return fingerprint_of_ropes([((), rope)], like, length)
    if isinstance(rope, RoPE) or head_dim is None or not callable(rope):
        if remedy := of_a_model(rope, "ra.hf.fingerprint(model)"):
            raise SpecError(f"rope is {remedy}.")
        raise SpecError(
            f"rope is {describe_other(rope)}, and head_dim is {'missing' if head_dim is None else head_dim}; "
            "give a RoPE alone, or a function (x, pos) and its head_dim."
        )
    length, head_dim = LONGEST if length is None else length, integer("head_dim", head_dim, 1)
    return fingerprint_of_layers([layer_of_function(None, rope, head_dim, 0, like, length)], like, length)


def fingerprint_of_ropes(
    groups: Sequence[tuple[tuple[int, ...], RoPE]], like: Any, length: int | None
) -> Fingerprint:
    """Return the fingerprint of ropes and their layers, by default at all positions that all ropes allow."""
    if length is None:
        limits = [require_plan(rope).max_position for _, rope in groups]
        length = min(LONGEST if limit is None else limit + 1 for limit in limits)
    firsts = []
    for layers, rope in groups:
        resolved = rope if rope.scaling is None or rope.scaling.resolved else rope.at_length(length)
        count, first = (rope.axes.count or 0) if rope.axes else 0, (*layers, None)[0]
        firsts.append(layer_of_function(first, resolved.apply, rope.head_dim, count, like, length))
    found = fingerprint_of_layers(firsts, like, length)
    rotations = by_layer(found)
    measured = {n: rotations[(*layers, None)[0]] for layers, _ in groups for n in layers or (None,)}
    return of_layers(measured, length, found.dtype)
