"""Properties of every rotation, which find errors at values that no other check uses."""

import numpy as np

from rope_array.testing._call import make, make_at
from rope_array.testing._failure import Failure
from rope_array.testing._judge import Judge, check
from rope_array.testing._observe import rotated
from rope_array.testing._where import describe

from ._accuracy import positions_in

_SLACK = 1e-30


@check("invariants", "nonfinite_rows")
def nonfinite_rows(j: Judge) -> None:
    """NaN and infinities stay inside their vector, and do not vanish: other vectors are rotated as usual."""
    inputs = make(j, j.plain)
    values, numbers = inputs.xs[0].values.copy(), inputs.numbers
    values[0, 1, 2, 3 % j.width], values[1, 2, 4, 0] = np.nan, np.inf
    y = j.numbers(j.call(j.array(values), inputs.pos))
    mask = ~np.isfinite(values).all(axis=-1, keepdims=True)
    assert np.isfinite(np.where(mask, 0.0, y)).all(), "a NaN or an infinity left its vector"
    j.check_nonfinite(y, values)
    # Zeros replace the masked vectors; the check `nonfinite` judges their finite pairs.
    j.check_values(np.where(mask, 0.0, y), j.array(np.where(mask, 0.0, values)), numbers)
    if j.claims("rotary_dim"):
        values[0, 2, 1, 13 % j.width] = np.nan
        with j.if_served():
            y_of_slice = j.numbers(j.call(j.array(values), inputs.pos, rotary_dim=8))
            j.check_nonfinite(y_of_slice, values, {"rotary_dim": 8})


@check("invariants", "any_positions", each_dtype=True)
def identity_at_zero(j: Judge, dtype: str) -> None:
    """Position 0 does not change x; with exact angles, not in one bit."""
    inputs = make(j, j.plain.replace(dtype=dtype, reach=0))
    (y,) = rotated(j, inputs)
    if j.target.angles == "exact" and j.amplitude == 1.0:
        j.check_equal(y, j.exact(inputs.xs[0].values, inputs.numbers), "differ from x at position 0")


@check("invariants")
def norm(j: Judge) -> None:
    """Every pair keeps its length."""
    inputs = make_at(j, positions_in(j, "2^16" if j.claims("reaches_2e16", "offset_positions") else "small"))
    x, pos = inputs.xs[0], inputs.numbers
    y = j.numbers(j.call(x, inputs.pos))
    (a, b), (c, d) = j.pairs()
    before = j.amplitude * np.hypot(x.values[..., a], x.values[..., b])
    after = np.hypot(y[..., c], y[..., d])
    # Both results of a pair are within the bound.
    bound = 2**0.5 * j.bound(x.values, pos, x.dtype)[..., c]
    wrong = ~(np.abs(after - before) <= bound + _SLACK)  # NaN is wrong, too
    features = np.zeros(x.values.shape, bool)
    features[..., c] = features[..., d] = wrong
    if wrong.any():
        lengths = f"the first from {before[wrong][0]:.6g} to {after[wrong][0]:.6g}"
        place = describe(features, pos, pairs=(c, d))
        raise Failure(f"{wrong.sum():,} pairs change their length, {lengths}", place=place)


@check("invariants", "any_positions")
def rotations_add(j: Judge) -> None:
    """Rotating by m, then by n, equals rotating by m + n."""
    inputs = make(j, j.plain)
    (x,), first, second = inputs.xs, inputs.numbers // 2, inputs.numbers[::-1] // 2
    once = j.amplitude * j.numbers(j.call(x, j.pos(first + second)))
    between, (read, written) = j.numbers(j.call(x, j.pos(first))), j.pairs()
    between[..., np.concatenate(read)] = between[..., np.concatenate(written)]  # undo out_pairing
    twice = j.numbers(j.call(j.array(between), j.pos(second)))
    # Three rotations, each within the bound, which depends on the length of a pair only.
    bound = 3.1 * 2**0.5 * max(j.amplitude, 1.0) * j.bound(x.values, first + second, x.dtype).max()
    error = np.abs(once - twice).max()
    assert error <= bound, f"off by {error:.3g}; {bound:.3g} is allowed"


@check("invariants", "any_positions")
def scores_are_relative(j: Judge) -> None:
    """The score of a query and a key depends on the difference of their positions only."""
    plain = j.plain.replace(rows=(1, 1, 3))
    q, k = (make(j, plain, seed).xs[0] for seed in range(2))
    far = min(9, j.target.reach // 2)

    def scores(shift: int) -> np.ndarray:
        yq = j.numbers(j.call(q, j.pos(np.array([5, 0, 9]).clip(0, far) + shift)))
        yk = j.numbers(j.call(k, j.pos(np.array([0, 7, 2]).clip(0, far) + shift)))
        return np.asarray(yq @ np.swapaxes(yk, -1, -2))

    near, furthest = scores(0), j.target.reach - far
    size = j.amplitude * np.linalg.norm(q.values, axis=-1).max() * np.linalg.norm(k.values, axis=-1).max()
    for shift in (min(1, furthest), min(1000, furthest), min(2**16 - 20, furthest)):
        unit = j.bound(np.ones((1, j.width)), np.array([shift + far]), q.dtype).max()
        error = np.abs(scores(shift) - near).max()
        bound = 4.1 * 2**0.5 * unit * size
        assert error <= bound, f"shifted by {shift}, scores change by {error:.3g}; {bound:.3g} is allowed"


@check("invariants")
def linear(j: Judge) -> None:
    """Rotating 2x gives twice the result of x, to the last bit."""
    inputs = make(j, j.plain)
    doubled = j.array(2 * inputs.xs[0].values)
    once, twice = (j.numbers(j.call(array, inputs.pos)) for array in (inputs.x, doubled))
    j.check_equal(twice, 2 * once, "differ between the result of 2x and twice the result of x")


@check("invariants")
def heads_alike(j: Judge) -> None:
    """Equal vectors at equal positions give equal results, in every batch and head."""
    inputs = make(j, j.plain)
    x = j.array(np.broadcast_to(inputs.xs[0].values[:1, :1], inputs.xs[0].values.shape))
    y = j.numbers(j.call(x, inputs.pos))
    bound = 2 * j.bound(x.values, inputs.numbers, j.dtype)
    wrong = ~(np.abs(y - y[:1, :1]) <= bound)
    if wrong.any():
        raise Failure("differs from batch 0, head 0, though x is equal there", place=describe(wrong))
