"""The reason that there is not exactly one explanation, and remarks on the data."""

import math
from collections.abc import Iterator

from ._observation import EPS32, LOOSEST, Observation
from ._report import RotationExplanation
from ._verdict import Rank, Trial

_WIDE = 8.0  # positions; a frequency of 1 turns once in 2π
_SURE = 1e-3  # relative; a rope with less certain numbers is not given


def reason_of(
    chosen: list[Trial],
    kept: list[RotationExplanation],
    nearest: list[RotationExplanation],
    observation: Observation,
) -> str:
    """Return the reason that there is no rope to rely on, and a remedy; empty if there is one."""
    if not kept:
        return _too_far(observation) + _too_wide(observation) + _no_fit(nearest, observation)
    if len(kept) > 1:
        return f"{_too_far(observation)}{'; '.join(_causes(kept)) or 'several fit'}. {_remedy(observation)}"
    unsure, is_estimate = chosen[0].proposal.uncertainty, chosen[0].proposal.rank == Rank.ESTIMATE
    if unsure <= _SURE or kept[0].mistake:
        return ""
    if unsure >= 1 and not is_estimate:
        text = (
            "the pairs that would show the numbers of the rule, or the slice, rotate by less than the noise"
        )
    else:
        numbers = "the slowest frequencies" if is_estimate else "the numbers of the rule"
        text = f"{numbers} are known to ±{min(unsure, 1):.1%} only, at these positions"
    return f"{text}. {_remedy(observation)}"


def _no_fit(nearest: list[RotationExplanation], observation: Observation) -> str:
    text = (
        "frequencies may follow a rule to be given in `candidates`, features may pair in another order, or "
        "`after` may contain more than a rotation, such as a norm"
    )
    residual = min((e.residual for e in nearest), default=1.0)
    if residual >= 0.1:
        return text
    tolerance = observation.tolerance
    limit = f"the tolerance {tolerance:g}" if tolerance else "the rounding of the dtypes"
    return (
        f"the nearest explanation has an error of {residual:.1e}, above {limit}: if `after` was computed in "
        f"a narrower precision than its dtype, give tolerance={float(f'{1.5 * residual:.1g}'):g}; else {text}"
    )


def _remedy(observation: Observation) -> str:
    """Return data that would decide."""
    wider = ", in float32" if observation.eps > EPS32 else ""
    return (
        f"Give random features of several rows at more and later positions with a step of 1{wider}, "
        "different on every axis and in every coordinate; or give possible ropes or configs as `candidates`"
    )


def _too_far(observation: Observation) -> str:
    """Return the reason that positions are too far for rounded angles; empty if they are not."""
    if observation.reach <= observation.decidable_reach:
        return ""
    dtype = "float32" if observation.angle_tol() >= EPS32 else "float64"
    return (
        f"positions reach {observation.reach:.3g}, where angles rounded to {dtype} have errors above "
        f"{LOOSEST:g}, so that the output does not determine the rope: give nearer positions, below "
        f"{observation.decidable_reach:.3g}; else "
    )


def _too_wide(observation: Observation) -> str:
    """Return the reason that pairs turn several times between positions; empty if they need not."""
    if observation.smallest_gap <= _WIDE:
        return ""
    return (
        f"positions are {observation.smallest_gap:.3g} apart or more, and fast pairs turn several times in "
        "between: give positions with a step of 1 too; else "
    )


def _causes(kept: list[RotationExplanation]) -> Iterator[str]:
    """Yield the differences of explanations, and the data that hide them."""
    ropes = [e.rope for e in kept if e.rope]
    if len({(r.pairing, r.out_pairing) for r in ropes}) > 1:
        if min(r.rotary_dim for r in ropes) == 2:
            yield "a slice of 2 features is one pair in either pairing"
        else:
            yield "the features do not distinguish pairings (symmetric, or too few rotate)"
    if len({e.direction for e in kept}) > 1:
        yield "+φ and -φ give the same (multiples of a half turn, or too few positions)"
    if len({r.base for r in ropes}) > 1:
        yield "the pairs that rotate by more than the rounding do not distinguish bases"
    if len({r.scaling for r in ropes if r.base == ropes[0].base}) > 1:
        yield "the slow pairs rotate too little to distinguish rules"
    if len({(r.rotary_dim, r.rotary_start) for r in ropes}) > 1:
        yield "the last pairs rotate by less than the rounding, so that the slice does not show"
    if len({r.axes for r in ropes}) > 1:
        yield "the coordinates are equal, or pairs are too slow to show, so several maps to axes fit"
    if len({(e.seq_axis, e.mistake) for e in kept}) > 1:
        yield "the intended positions equal others (of another axis, or another count)"


def notes_of(chosen: list[Trial], kept: list[RotationExplanation], observation: Observation) -> Iterator[str]:
    """Yield remarks on the data."""
    dropped = math.prod(observation.shape[:-1]) - len(observation.x)
    if dropped:
        yield f"{dropped} rows hold NaN or infinities and were left out"
    if len(kept) == 1:
        frequencies = chosen[0].proposal.rope.frequencies
        # A mean over many elements shows less than one unit of the dtype.
        shown = max(observation.eps, chosen[0].mean ** 0.5) / len(observation.x) ** 0.5
        hidden = sum(0 < abs(omega) * observation.reach < shown for omega in frequencies)
        if hidden:
            yield f"{hidden} of {len(frequencies)} pairs rotate by less than the rounding here"
