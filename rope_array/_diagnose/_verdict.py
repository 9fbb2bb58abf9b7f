"""Judge a proposal: compare its output, by `RoPE.apply` in float64, with `after`; and choose the best."""

import math
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from rope_array._rope import RoPE

from ._observation import EPS32, Floats, Observation
from ._pair_hypotheses import PairHypothesis, features_of_pairs
from ._report import RotationExplanation, arguments_of
from ._tried_positions import TriedPositions

_BLOCK = 2**16  # features of rows; their arrays fit into a cache


class Rank(IntEnum):
    """The origin of a rope. Among equally good explanations the lowest rank is preferred."""

    CANDIDATE = 0
    KNOWN = 1
    ONE_NUMBER = 2
    TWO_NUMBERS = 3
    ESTIMATE = 4


@dataclass(frozen=True)
class Proposal:
    """A rope and positions that may explain the output; or a mistake, whose formula no rope computes."""

    rope: RoPE
    positions: TriedPositions
    rank: Rank = Rank.KNOWN
    uncertainty: float = 0.0  # relative, of the numbers that were read off the data
    notes: tuple[str, ...] = ()
    mistaken: PairHypothesis | None = None
    rounding: tuple[str, str] = ("", "")  # a dtype, and the quantity of the formula that is rounded to it

    @property
    def code(self) -> str:
        """The call that reproduces the output, or the formula."""
        arguments, seq_axis = arguments_of(self.rope), self.positions.seq_axis
        if self.mistaken:
            rope = f"ra.RoPE({', '.join([str(self.rope.head_dim), *arguments])})"
            return f"{self.mistaken.formula}; φ of {rope}"
        arguments += [f"seq_axis={seq_axis}"] if seq_axis != -2 else []
        return f"ra.apply({', '.join(['x', self.positions.code, *arguments])})"

    def output(self, observation: Observation) -> Floats:
        """Return the output for the rows."""
        rope, x, at = self.rope, observation.x, self.positions.rows(observation)
        if self.mistaken:
            omegas = np.array(rope.frequencies)
            return self.mistaken.forward(
                x, positions_of_pairs(rope, at), omegas, rope.amplitude, *self.rounding
            )
        count = math.prod(observation.shape[:-1])
        if 2 * len(x) < count:
            return np.asarray(rope.apply(x[:, None], at[:, None])[:, 0])
        # Rotate the whole array: its angles are computed once for each position.
        if len(x) < count:
            x = np.zeros((count, rope.head_dim))
            x[observation.rows] = observation.x
        y = rope.apply(x.reshape(observation.shape), self.positions.pos, seq_axis=self.positions.seq_axis)
        y = np.asarray(y).reshape(x.shape)
        return y if len(observation.rows) == count else y[observation.rows]


class Trial(NamedTuple):
    """A proposal that was tried, and its errors."""

    proposal: Proposal
    explanation: RotationExplanation
    errors: Floats  # (head_dim,): the mean square of each feature's error, relative to its pair
    angles: Floats  # (head_dim,): the mean square of the error that rounded angles may have
    rows: Floats  # (N,): the largest error of each row, in units of the error of the dtypes

    @property
    def mean(self) -> float:
        return float(self.errors.mean())

    @property
    def fits(self) -> bool:
        """Whether the rounding of the dtypes explains every error."""
        return bool((self.rows <= 1.0).all())


def judge(proposal: Proposal, observation: Observation) -> Trial | None:
    """Measure a proposal, by exact and by float32 angles; None if its positions lack the coordinates."""
    if proposal.positions.coordinates != (proposal.rope.axes.count if proposal.rope.axes else 0):
        return None
    choices = dict.fromkeys((proposal.rope.angles, "exact", "float32"))
    best: Trial | None = None
    for angles in (proposal.rope.angles,) if proposal.mistaken else choices:
        trial = measure(replace(proposal, rope=replace(proposal.rope, angles=angles)), observation)
        if best is None or trial.mean < best.mean / 2:
            best = trial
        if angles == "exact" and min(trial.mean, trial.angles.max()) < (observation.tol / 16) ** 2:
            break  # float32 angles would not fit better
    return best


def measure(proposal: Proposal, observation: Observation) -> Trial:
    """Compare an output with `after`: `residual` is of unrounded rows, the mean errors of rounded rows."""
    rope, positions = proposal.rope, proposal.positions
    at = positions.rows(observation)
    features = [proposal.output(observation), observation.y]
    if proposal.mistaken:  # no rotation, so that the output pair may be small: look at the input pair too
        features.append(rope.amplitude * observation.x)
    floor = max(1e-150 + 1e-7 * abs(observation.y).max(), observation.floor)
    sums, largest, worst = np.zeros((2, rope.head_dim)), 0.0, np.zeros(len(at))
    size = max(1, _BLOCK // rope.head_dim)
    for n in range(0, len(at), size):
        block = slice(n, n + size)
        squares, off, allowed = _errors(
            observation, rope, [rows[block] for rows in features], at[block], floor
        )
        sums, largest = sums + squares, max(largest, float(off.max()))
        worst[block] = (off / (observation.tol + allowed)).max(1)
    explanation = RotationExplanation(
        rope, proposal.code, largest, positions.mistake, positions.seq_axis, proposal.notes
    )
    return Trial(proposal, explanation, sums[0] / len(at), 4 * sums[1] / len(at), worst)


def _errors(
    observation: Observation, rope: RoPE, features: list[Floats], at: Floats, floor: float
) -> tuple[Floats, Floats, Floats]:
    """Return the sums of squares of the errors and of errors of angles, the errors, and errors of angles.

    Errors are relative to the largest pair in `features`: rows, the rows after, and others.
    """
    rows, y, *_ = features
    layout, blocks = rope.out_pairing or rope.pairing, rope.axes.blocks if rope.axes else 1
    a, b = features_of_pairs(layout, rope.rotary_start, rope.rotary_dim, blocks)
    size = reduce(np.maximum, map(abs, features))
    size[:, a] = size[:, b] = np.sqrt(reduce(np.maximum, (z[:, a] ** 2 + z[:, b] ** 2 for z in features)))
    size = np.maximum(size, floor)
    allowed = np.zeros(rows.shape)
    allowed[:, a] = allowed[:, b] = observation.angle_errors(
        positions_of_pairs(rope, at) * np.array(rope.frequencies)
    )
    off = abs(rows - y) / size
    rounded = (_rounded(rows, observation.after_eps) - y) / size
    squares = np.array([(rounded**2).sum(0), (allowed**2).sum(0)])
    return squares, off, allowed


def positions_of_pairs(rope: RoPE, at: Any) -> Floats:
    """Return the position of each pair, (N, 1 or pairs), of the positions of rows."""
    at = at[:, [axis or 0 for axis in rope.axes.coordinates]] if rope.axes else at[:, None]
    return np.asarray(at, np.float64)


def _rounded(y: Floats, eps: float) -> Floats:
    """Round to the digits of a dtype: then a wrong rope differs more clearly from a rounded output."""
    mantissa, exponent = np.frexp(y)
    return np.ldexp(np.rint(mantissa * (2 / eps)) * (eps / 2), exponent)


def equally_good(trials: list[Trial], observation: Observation) -> list[Trial]:
    """Return the best trials: the data do not tell them apart, given the noise of the best.

    The noise is measured, not assumed: the errors of the best trials. A trial is out if all its features
    together, or any feature, have errors that the noise does not explain. No tolerance enters here.
    An estimate of each pair fits a part of the noise too, so it leaves less: a simpler rope may have more.
    """
    if not trials:
        return []
    best = min(t.mean for t in trials)
    near = [t for t in trials if t.mean <= 4 * best]
    noise = np.min([t.errors for t in near], axis=0)
    simple = [t.errors for t in near if t.proposal.rank < Rank.ESTIMATE]
    noise_of_simple = np.min(simple, axis=0) if simple else noise
    count, (rows, width) = observation.num_positions, observation.x.shape
    pairs = max(width // 2, 1)
    spread = (pairs + 5 * np.sqrt(2 * pairs) + 10) / (2 * pairs * count)  # of a sum of squares, 5 deviations
    # A right rope has wrong last bits: few after float32 arithmetic of 16-bit arrays, else more.
    bits = observation.after_eps**2 * (1 / rows + (2.0**-12 if observation.after_eps > EPS32 else 2.0**-6))
    # Float64 arrays may hold float32 results.
    wider = (observation.angle_tol(float(np.sqrt(best))) / observation.angle_tol()) ** 2

    def together(t: Trial) -> bool:
        return bool(t.mean <= best * (1 + spread) + wider * t.angles.mean() + 3 * bits / width)

    def by_feature(t: Trial) -> bool:
        limit = noise * (1 + 25 / count)  # 5 deviations
        if t.proposal.rank < Rank.ESTIMATE:
            # An estimate may fit all noise of a feature: take the mean noise for its deviation.
            hidden = noise + np.maximum(noise, best) * 25 / count
            limit = np.minimum(noise_of_simple * (1 + 25 / count), hidden)
        return bool((t.errors <= limit + wider * t.angles + bits).all())

    good = [t for t in trials if together(t)]
    # Per-feature errors are comparable only for one slice: two slices pair features differently.
    return [t for t in good if by_feature(t)] or good or [t for t in trials if t.mean == best]
