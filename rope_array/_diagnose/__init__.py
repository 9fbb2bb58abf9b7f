"""What RoPE made an output: find the pairing, direction, frequencies, slice and positions from two arrays.

A host tool: arrays of every library are brought to NumPy's float64 first (`_case`). The way of a call, which
`_search.Search` goes:

1. `_mixes.mixes`: which features might have turned together, and how; the features that did not change say
   where.
2. `_mixes.Sums`: of each mix and lane, the cos and sin that make `after` of `before` (least squares), so that
   every lane gives one complex number for each position.
3. `_frequencies.Fit`: the frequencies behind these numbers, first by the bases that models use, then by
   estimate.
4. `_verdict.judge`: each candidate is rebuilt by `RoPE.apply` in float64 and held against `after`.
"""

from collections.abc import Sequence
from typing import Any

from rope_array._diagnose._case import checked_candidates, read_case
from rope_array._diagnose._report import Diagnosis, Explanation
from rope_array._diagnose._search import Search

__all__ = ["Diagnosis", "Explanation", "diagnose"]


def diagnose(
    before: Any,
    after: Any,
    pos: Any,
    *,
    candidates: Sequence[Any] | None = None,
    seq_axis: int = -2,
    tolerance: float | None = None,
) -> Diagnosis:
    """Find which rotary embedding makes `after` of `before`: that of a kernel, or of a checkpoint's code.

    Parameters
    ----------
    before : array of shape (..., S, head_dim)
        A query or key before its rotation, of any library. Brought to the host.
    after : array of the same shape
        The same after it.
    pos : int, float, range, sequence of numbers, or array
        The positions that it should have been rotated by, as of `rope_array.apply`. With one more, last, axis
        they may be coordinates.
    candidates : sequence of RoPE or of scaling rules, optional
        Ropes, or rules such as ``Llama3(factor=8.0)``, to try beside those that are tried anyway. A rule is
        tried with the bases that models use.
    seq_axis : int
        The axis of x along which positions should run.
    tolerance : float, optional
        The largest error, relative to the size of a pair, that counts as explained. By default four units of
        the narrower dtype of the two, and what angles in float32 cost at these positions, 2^-7 at most.

    Returns
    -------
    Diagnosis
        With `explanations`, `rope` (where exactly one fits), `ambiguous` and `reason`; printed, a report.

    Raises
    ------
    ArrayTypeError
        An array or positions of a kind or dtype that is not served, or that hold no values yet.
    ShapeError
        The shapes differ, hold nothing, or positions or a candidate's head_dim do not line up with them.
    SpecError
        A candidate that is neither a RoPE nor a rule, or one that waits for a length.

    Notes
    -----
    Frequencies show modulo 2π over the step of the positions, and lanes that turn by less than the rounding
    do not show at all: give positions with a step of 1 that reach far, and random features.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> x = np.random.default_rng(0).standard_normal((2, 64, 32)).astype("float32")
    >>> y = ra.apply(x, range(64), base=500_000.0, pairing="half", rotary_dim=16)
    >>> found = ra.diagnose(x, y, range(64))
    >>> found.rope.base, found.rope.pairing, found.rope.rotary_dim
    (500000.0, 'half', 16)
    """
    case = read_case(before, after, pos, seq_axis, tolerance)
    return Search(case, checked_candidates(candidates, case.before.shape[-1])).run()
