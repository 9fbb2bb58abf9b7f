"""Find the RoPE of an output: pairing, direction, frequencies, slice and positions, from two arrays.

`_observation` converts arrays of every library to NumPy's float64 on the host. `_search.Search` then runs:

1. `_pair_hypotheses.pair_hypotheses` yields pairings and slices; the changed features limit the slices.
2. `_pair_hypotheses.PhaseEstimates` computes, for each hypothesis, position and pair, the cos and sin of the
   least-squares map from `before` to `after`, as one complex number.
3. `_frequency_fit.FrequencyFitter` ranks frequencies by their distance from these numbers: the bases of
   published models, their rules, fits of one or two numbers, and an estimate of each pair.
4. `_verdict.judge` rebuilds the output of the best by `RoPE.apply` in float64 and measures the errors.
5. `_verdict.equally_good` keeps the best, and the explanations that the measured noise does not tell from it.

The caller's tolerance enters only the report: it refuses explanations, and steers nothing.
"""

from typing import Any

from ._observation import read_candidates, read_observation
from ._report import Diagnosis, RotationExplanation
from ._search import Search

__all__ = ["Diagnosis", "RotationExplanation", "diagnose"]


def diagnose(
    before: Any,
    after: Any,
    pos: Any,
    *,
    candidates: Any = None,
    seq_axis: int = -2,
    tolerance: float | None = None,
) -> Diagnosis:
    """Find the rotary embedding that maps `before` to `after`: of a kernel, or of a checkpoint's code.

    Parameters
    ----------
    before : array of shape (..., S, head_dim)
        A query or key before its rotation, of any library. It is copied to the host.
    after : array of the same shape
        The query or key after its rotation.
    pos : int, float, range, sequence of numbers, or array
        The intended positions, as in `rope_array.apply`. With one more, last, axis they may be coordinates.
    candidates : sequence of RoPE, of configs or of scaling rules, optional
        Ropes to try first; they are preferred to all other explanations that fit equally well. A config is
        read by `RoPE.from_config`; a rule such as ``Llama3(factor=8.0)`` is tried with the bases of published
        models.
    seq_axis : int
        The intended axis of the positions in `before`.
    tolerance : float, optional
        The largest accepted error, relative to the size of a pair. By default four units of the narrower
        dtype of the two, plus the error of float32 angles at these positions, 2^-7 at most. A rope that is
        found at one tolerance is found at every larger one.

    Returns
    -------
    Diagnosis
        With `explanations`, `rope` (if exactly one fits, and the data determine its numbers), `ambiguous`
        and `reason`; printed, a report. ``rope.apply(before, pos, seq_axis=seq_axis)`` reproduces `after`.

    Raises
    ------
    ArrayTypeError
        A type or dtype is not supported, or an array has no values yet.
    ShapeError
        The shapes differ, hold nothing, or positions or a candidate's head_dim do not line up with them.
    SpecError
        A candidate is no RoPE, config or rule, or needs a length.
    ConfigError
        A candidate is a config that cannot be read.

    Notes
    -----
    Frequencies are known modulo 2π over the step of the positions, and pairs that rotate by less than the
    rounding not at all: give positions with a step of 1 that reach far, and random features.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> x = np.random.default_rng(0).standard_normal((2, 64, 32)).astype("float32")
    >>> y = ra.apply(x, range(64), base=500_000.0, pairing="half", rotary_dim=16)
    >>> rope = ra.diagnose(x, y, range(64)).rope
    >>> rope.base, rope.pairing, rope.rotary_dim
    (500000.0, 'half', 16)
    """
    observation = read_observation(before, after, pos, seq_axis, tolerance)
    return Search(observation, read_candidates(candidates, observation.shape[-1])).run()
