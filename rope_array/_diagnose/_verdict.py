"""Judge a proposal: compare its output, by `RoPE.apply` in float64, with `after`; and choose the best."""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from rope_array._rope import RoPE

from ._narrow_dtypes import tables
from ._observation import EPS32, Floats, Observation
from ._pair_hypotheses import PairHypothesis, features_of_pairs
from ._report import RotationExplanation, arguments_of
from ._tried_positions import TriedPositions

_BLOCK = 2048  # rows; their arrays fit into a cache


class Rank(IntEnum):
    """The origin of a rope. Among equally good explanations the lowest rank is preferred."""

    CANDIDATE = 0
    KNOWN = 1
    ONE_NUMBER = 2
    TWO_NUMBERS = 3
    ESTIMATE = 4


@dataclass(frozen=True)
class Proposal:
    """A rope and positions that may explain the output."""

    rope: RoPE
    positions: TriedPositions
    rank: Rank = Rank.KNOWN
    uncertainty: float = 0.0  # relative, of the numbers that were read off the data
    notes: tuple[str, ...] = ()

    @property
    def code(self) -> str:
        """The call that reproduces the output."""
        seq_axis = self.positions.seq_axis
        last = [f"seq_axis={seq_axis}"] if seq_axis != -2 else []
        return f"ra.apply({', '.join(['x', self.positions.code, *arguments_of(self.rope), *last])})"

    def variants(self) -> list["Proposal"]:
        """Return the proposal with the angles of its rope, with exact, and with float32 angles."""
        choices = dict.fromkeys((self.rope.angles, "exact", "float32"))
        return [replace(self, rope=replace(self.rope, angles=angles)) for angles in choices]

    def output(self, observation: Observation) -> Floats:
        """Return the output for the rows."""
        pos, seq_axis = self.positions.pos, self.positions.seq_axis
        if 2 * observation.x.size > observation.before.size:
            return observation.rows_of(self.rope.apply(observation.before, pos, seq_axis=seq_axis))
        at = self.positions.rows(observation)
        return np.asarray(self.rope.apply(observation.x[:, None], at[:, None])[:, 0])

    def smallest_sizes(self, observation: Observation) -> Floats:
        """Return the smallest sizes of pairs that errors are relative to."""
        return np.zeros(1)


@dataclass(frozen=True, kw_only=True)
class Formula(Proposal):
    """The formula of a mistake, which no rope computes."""

    pairs: PairHypothesis
    rounding: tuple[str, ...] = ()  # a dtype, and the quantity that is rounded to it

    @property
    def code(self) -> str:
        arguments = [str(self.rope.head_dim), *arguments_of(self.rope)]
        return f"{self.pairs.formula}; φ of ra.RoPE({', '.join(arguments)})"

    def variants(self) -> list[Proposal]:
        return [self]

    def output(self, observation: Observation) -> Floats:
        at = self.positions.rows(observation)[:, None].astype(float)
        cos, sin = tables(at, np.array(self.rope.frequencies), *self.rounding)
        return self.pairs.forward(observation.x, self.rope.amplitude * cos, self.rope.amplitude * sin)

    def smallest_sizes(self, observation: Observation) -> Floats:
        # Without a rotation the pair after may be small: errors are relative to the pair before.
        return self.rope.amplitude * self.pairs.sizes(observation.x)


class Trial(NamedTuple):
    """A proposal that was tried, and its errors."""

    proposal: Proposal
    explanation: RotationExplanation
    errors: Floats  # (head_dim,): the mean square of each feature's error, relative to its pair
    angles: Floats  # (head_dim,): the mean square of the error that rounded angles may have
    worst: float  # the largest error, in units of the error of the dtypes

    @property
    def mean(self) -> float:
        return float(self.errors.mean())

    @property
    def fits(self) -> bool:
        """Whether the rounding of the dtypes explains every error."""
        return self.worst <= 1.0


def judge(proposal: Proposal, observation: Observation) -> Trial | None:
    """Measure a proposal, by exact and by float32 angles; None if its positions lack the coordinates."""
    if proposal.positions.coordinates != (proposal.rope.axes.count if proposal.rope.axes else 0):
        return None
    best: Trial | None = None
    for variant in proposal.variants():
        trial = measure(variant, observation)
        if best is None or trial.mean < best.mean / 2:
            best = trial
        if (
            variant.rope.angles == "exact"
            and min(trial.mean, trial.angles.max()) < (observation.tol / 16) ** 2
        ):
            break  # float32 angles would not fit better
    return best


def measure(proposal: Proposal, observation: Observation) -> Trial:
    """Compare an output with `after`: `residual` is unrounded, the mean errors are of rounded rows."""
    rope, positions = proposal.rope, proposal.positions
    rows, y, at = proposal.output(observation), observation.y, positions.rows(observation)
    floor = np.maximum(1e-150 + 1e-7 * abs(y).max(), proposal.smallest_sizes(observation))
    floor = np.broadcast_to(floor, rows.shape)
    sums, largest = np.zeros((2, rows.shape[1])), np.zeros(2)
    for n in range(0, len(rows), _BLOCK):
        block = slice(n, n + _BLOCK)
        squares, errors = _errors(observation, rope, rows[block], y[block], at[block], floor[block])
        sums, largest = sums + squares, np.maximum(largest, errors)
    residual, worst = map(float, largest)
    explanation = RotationExplanation(
        rope, proposal.code, residual, positions.mistake, positions.seq_axis, proposal.notes
    )
    return Trial(proposal, explanation, sums[0] / len(rows), 4 * sums[1] / len(rows), worst)


def _errors(
    observation: Observation, rope: RoPE, rows: Floats, y: Floats, at: Floats, floor: Floats
) -> tuple[Floats, Floats]:
    """Return the sums of squares of the errors and of errors of angles, and the two largest errors."""
    layout, blocks = rope.out_pairing or rope.pairing, rope.axes.blocks if rope.axes else 1
    out = features_of_pairs(layout, rope.rotary_start, rope.rotary_dim, blocks)
    size = np.maximum(abs(rows), abs(y))
    norm = np.sqrt(np.maximum(*((z[:, out[0]] ** 2 + z[:, out[1]] ** 2) for z in (rows, y))))
    at = at[:, [a or 0 for a in rope.axes.coordinates]] if rope.axes else at[:, None]
    slack = observation.angle_errors(at * np.array(rope.frequencies))
    allowed = np.zeros(rows.shape)
    for feature in out:
        size[:, feature], allowed[:, feature] = norm, slack
    size = np.maximum(size, floor)
    off = abs(rows - y) / size
    rounded = (_rounded(rows, observation.after_eps) - y) / size
    squares = np.array([(rounded**2).sum(0), (allowed**2).sum(0)])
    return squares, np.array([off.max(), (off / (observation.tol + allowed)).max()])


def _rounded(y: Floats, eps: float) -> Floats:
    """Round to the digits of a dtype: then a wrong rope differs more clearly from a rounded output."""
    mantissa, exponent = np.frexp(y)
    return np.ldexp(np.rint(mantissa * (2 / eps)) * (eps / 2), exponent)


def equally_good(trials: list[Trial], observation: Observation) -> list[Trial]:
    """Return the best trials: the data do not tell them apart, given the noise of the best.

    The noise is measured, not assumed: the errors of the best trials. A trial is out if all its features
    together, or any feature, have errors that the noise does not explain. No tolerance enters here.
    """
    if not trials:
        return []
    best = min(t.mean for t in trials)
    noise = np.min([t.errors for t in trials if t.mean <= 4 * best], axis=0)
    count, (rows, width) = observation.num_positions, observation.x.shape
    pairs = max(width // 2, 1)
    spread = (pairs + 5 * np.sqrt(2 * pairs) + 10) / (2 * pairs * count)  # of a sum of squares, 5 deviations
    # A right rope has wrong last bits: few after float32 arithmetic of 16-bit arrays, else more.
    bits = observation.after_eps**2 * (1 / rows + (2.0**-12 if observation.after_eps > EPS32 else 2.0**-6))
    # Float64 arrays may hold float32 results.
    wider = (observation.angle_tol(float(np.sqrt(best))) / observation.angle_tol()) ** 2

    def together(t: Trial) -> bool:
        return bool(t.mean <= noise.mean() * (1 + spread) + wider * t.angles.mean() + 3 * bits / width)

    def by_feature(t: Trial) -> bool:
        return bool((t.errors <= noise * (1 + 25 / count) + wider * t.angles + bits).all())

    good = [t for t in trials if together(t)]
    # Per-feature errors are comparable only for one slice: two slices pair features differently.
    return [t for t in good if by_feature(t)] or good or [t for t in trials if t.mean == best]
