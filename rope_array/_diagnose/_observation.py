"""The arguments of `diagnose` on the host: the two arrays in float64, the positions, and rows of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rope_array._array_api.library import POSITION_DTYPES, X_DTYPES, dtype_name, library
from rope_array._array_api.position_input import parse_host
from rope_array._errors import ArrayTypeError, PositionError, ShapeError, SpecError, describe
from rope_array._rope import RoPE
from rope_array._spec.frequencies import RULE_REMEDY, Scaling
from rope_array._spec.shape_rule import check_line_up, placement
from rope_array._spec.validation import positive, record

Floats: TypeAlias = NDArray[np.float64]
Complex: TypeAlias = NDArray[np.complex128]
Indices: TypeAlias = NDArray[np.intp]

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
EPS32 = EPS["float32"]
LOOSEST = 2.0**-7  # the largest error of rounded angles; a larger error is another rotation
_MOST_COORDINATES = 8  # more than any model has
_ROWS, _ROWS_OF_AXIS = 2048, 256  # of the search, which is slower than the final check
_ROUNDINGS = 4  # of a model in the narrower dtype: cos, two products, their sum


@dataclass(frozen=True)
class Observation:
    """Rows of the arrays on the host, and their positions."""

    shape: tuple[int, ...]  # of the arrays, before rows were left out
    x: Floats  # (N, head_dim)
    y: Floats
    rows: Indices  # (N,): flat indices, ascending
    pos: NDArray[Any]
    on_host: bool  # whether pos is a Python value, without array arithmetic
    seq_axis: int
    eps: float  # of the narrower dtype
    after_eps: float
    tolerance: float | None  # limits the report; the search does not depend on it
    floor: float  # of the size of a pair: below it the dtype rounds to subnormal numbers
    loosest: float = LOOSEST

    @property
    def tol(self) -> float:
        """The error of the dtypes, relative to a pair."""
        return _ROUNDINGS * self.eps

    def angle_tol(self, noise: float = 0.0) -> float:
        """Return the error of a rounded angle per radian; float32 angles are noisier than float64."""
        return 2 * EPS32 if max(self.eps, 8 * noise) >= EPS32 else 8 * EPS["float64"]

    def angle_errors(self, angles: Any, noise: float = 0.0) -> Any:
        """Return the error that rounded angles may have."""
        return np.minimum(self.angle_tol(noise) * abs(angles), self.loosest)

    @cached_property
    def coordinates(self) -> int:
        """The number of coordinates of a position, if pos may hold coordinates; else 0."""
        count = self.pos.shape[-1] if self.pos.ndim > 1 else 0
        in_range = 0 < count <= _MOST_COORDINATES
        return count if in_range and self.spread(self.pos, self.seq_axis, True) is not None else 0

    @cached_property
    def num_positions(self) -> int:
        """The number of different positions."""
        plain = self.spread(self.pos, self.seq_axis)
        rows = self.spread(self.pos, self.seq_axis, True) if plain is None else plain
        assert rows is not None
        return len(np.unique(rows, axis=0))

    @cached_property
    def reach(self) -> float:
        """The largest position, of any sign."""
        return float(abs(np.asarray(self.pos, np.float64)).max(initial=0.0))

    @cached_property
    def smallest_gap(self) -> float:
        """The smallest distance of two positions along the axis of tokens; 0 if there are none."""
        pos = np.asarray(self.pos, np.float64)
        axis = -2 if self.coordinates and pos.ndim > 1 else -1
        gaps = abs(np.diff(pos, axis=axis)) if pos.ndim else pos[None][:0]
        return float(gaps[gaps > 0].min(initial=np.inf)) if (gaps > 0).any() else 0.0

    @property
    def decidable_reach(self) -> float:
        """The position up to which rounded angles distinguish ropes."""
        return LOOSEST / self.angle_tol()

    def part(self, selected: Any) -> "Observation":
        """Return the observation with a selection of its rows."""
        return replace(self, x=self.x[selected], y=self.y[selected], rows=self.rows[selected])

    def sample(self) -> "Observation":
        """Return at most some thousand rows: successive rows of every axis, and far rows."""
        sizes, axis = np.array(self.shape[:-1]), self.seq_axis % len(self.shape)
        counts, weight = np.minimum(sizes, _ROWS_OF_AXIS), np.ones(len(sizes))
        weight[axis] = 1 / 8  # more positions than heads
        while counts.prod() > _ROWS:
            counts[(counts * weight).argmax()] //= 2
        if (counts == sizes).all():
            return self
        kept = [_spread_indices(*pair) for pair in zip(sizes, counts, strict=True)]
        if self.pos.shape == (sizes[axis],):  # successive positions, in any order of the rows
            kept[axis] = np.argsort(self.pos, kind="stable")[kept[axis]]
        sampled = np.isin(self.rows, np.ravel_multi_index(np.ix_(*kept), sizes))
        return self.part(sampled if sampled.any() else slice(None, None, -(-len(self.rows) // _ROWS)))

    def changed(self, limit: float | None = None) -> NDArray[np.bool_]:
        """Return the mask of features that changed by more than a relative limit, by default the rounding."""
        limit = self.tol / 4 if limit is None else limit
        return np.asarray(abs(self.y - self.x) > limit * abs(self.x) + 1e-300)

    def spread(self, pos: NDArray[Any], seq_axis: int, coordinates: bool = False) -> NDArray[Any] | None:
        """Return the position of each row, or None if positions do not line up."""
        table = pos if coordinates else pos[..., None]
        try:
            check_line_up(self.shape, table.shape[:-1], seq_axis)
        except ShapeError:
            return None
        order, index = placement(len(self.shape), table.ndim - 1, seq_axis)
        table = table if order is None else table.transpose(order)
        full = np.broadcast_to(table[index], (*self.shape[:-1], table.shape[-1]))
        rows = full.reshape(-1, table.shape[-1])[self.rows]
        return rows if coordinates else rows[:, 0]


def read_observation(
    before: Any, after: Any, pos: Any, seq_axis: int, tolerance: float | None
) -> Observation:
    """Check the arguments of `diagnose`, and convert them."""
    x, y = host_floats(before, "before"), host_floats(after, "after")
    if x.shape != y.shape:
        raise ShapeError(
            f"before is {describe(before)} and after {describe(after)}; give one array before and after its "
            "rotation, of one shape."
        )
    if not x.size:
        raise ShapeError(f"before is {describe(before)}, which holds no features; give an array that does.")
    if x.ndim < 2:
        raise ShapeError(f"before is {describe(before)}; give (..., S, head_dim), of two axes at least.")
    host_pos, on_host = _positions(pos)
    if tolerance is not None:
        tolerance = positive("tolerance", tolerance)
    finite = np.isfinite(x).all(-1) & np.isfinite(y).all(-1)
    if not finite.any():
        raise ShapeError(
            f"before is {describe(before)}, and no row is finite before and after; give finite rows."
        )
    # Scale features to about 1 by a power of two, exactly, so that their products stay in range.
    power = sum(int(np.frexp(abs(array[finite]).max())[1]) for array in (x, y)) // 2
    eps, after_eps = EPS[dtype_name(before)], EPS[dtype_name(after)]
    floor = 2.0 ** (-14 - power) if "float16" in (dtype_name(before), dtype_name(after)) else 0.0
    observation = Observation(
        x.shape, np.ldexp(x[finite], -power), np.ldexp(y[finite], -power), np.flatnonzero(finite),
        host_pos, on_host, seq_axis, max(eps, after_eps), after_eps, tolerance, floor,
    )  # fmt: skip
    if not observation.coordinates:
        check_line_up(x.shape, host_pos.shape, seq_axis)
    return observation


def _spread_indices(size: int, count: int) -> Indices:
    """Return successive indices at both ends, and indices between."""
    near, end = count - count // 2, count // 8
    between = np.linspace(near, size - 1 - end, count - near - end).round().astype(int)
    return np.unique([*range(near), *between, *range(size - end, size)])


def host_floats(array: Any, name: str) -> Floats:
    """Convert an array of any library to NumPy's float64."""
    if not hasattr(array, "dtype") or not hasattr(array, "shape"):
        raise ArrayTypeError(f"{name} is {describe(array)}; give an array.")
    library(array).check_supported(array)
    if dtype_name(array) not in X_DTYPES:
        raise ArrayTypeError(f"{name} is {describe(array)}; give real floating point: {', '.join(X_DTYPES)}.")
    return np.array(_on_host(array, name), np.float64)


def _on_host(array: Any, name: str) -> Any:
    """Return an array's values on the host, for `numpy.asarray`."""
    try:
        if hasattr(array, "detach"):  # PyTorch, whose bfloat16 NumPy cannot read
            array = array.detach().cpu()
            return (array.double() if array.is_floating_point() else array).numpy()
        if type(array).__module__.partition(".")[0] == "cupy":
            return array.get()
        return np.asarray(array)
    # Tracers, meta and fake tensors have no values on the host; each raises its own error.
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise ArrayTypeError(
            f"{name} is {describe(array)}, whose values cannot be read here ({type(error).__name__}); "
            "it is read on the host: call this outside of jit and compile, on arrays with values."
        ) from error


def _positions(pos: Any) -> tuple[NDArray[Any], bool]:
    """Return positions as a NumPy array, and whether they are Python values."""
    parsed = parse_host(pos)  # refuses ragged sequences and other types
    if parsed is not None:
        array = np.asarray(parsed.values).reshape(parsed.shape)
        if array.dtype.kind not in "if":
            raise ArrayTypeError(f"pos is {describe(pos)}; give integers of at most 64 bits, or floats.")
    elif not hasattr(pos, "dtype") or not hasattr(pos, "shape"):
        raise ArrayTypeError(f"pos is {describe(pos)}; give a number, a range, a sequence, or an array.")
    elif dtype_name(pos) not in POSITION_DTYPES:
        raise ArrayTypeError(f"pos is {describe(pos)}; give integers, or float32 or float64.")
    else:
        array = np.asarray(_on_host(pos, "pos"))
    if array.dtype.kind == "f" and not (abs(array) < 2.0**31).all():  # `apply` refuses them too
        raise PositionError(
            "pos holds a float that is not finite, or not below 2**31 in size; give smaller ones."
        )
    return array, parsed is not None


def read_candidates(candidates: Any, head_dim: int, name: str = "a candidate") -> list[RoPE | Scaling]:
    """Check the candidates, and read configs."""
    if candidates is None:
        return []
    if not isinstance(candidates, (list, tuple)):
        candidates = [candidates]
    read = [_read_candidate(value) for value in candidates]
    for candidate in read:
        rule = candidate.scaling if isinstance(candidate, RoPE) else candidate
        if isinstance(candidate, RoPE) and candidate.head_dim != head_dim:
            raise ShapeError(
                f"{name} has head_dim={candidate.head_dim} and the last axis of before holds {head_dim} "
                "features; give it that head_dim, with rotary_dim and rotary_start for a slice of the head."
            )
        if rule is not None and not rule.resolved:
            raise SpecError(f"{name} has {rule!r}, which needs a length; give it: at_length(n).")
    return read


def _read_candidate(value: Any) -> RoPE | Scaling:
    if isinstance(value, RoPE):  # the data may be beyond its limit of positions
        return replace(value, max_position=None)
    if isinstance(value, Scaling):
        return record("a candidate", value, Scaling, RULE_REMEDY)  # type: ignore[no-any-return]
    if isinstance(value, (str, PathLike, Mapping)) or hasattr(value, "to_dict"):
        return RoPE.from_config(value)
    raise SpecError(
        f"a candidate is {describe(value)}; give RoPEs, configs as for RoPE.from_config, or rules such as "
        "Linear(4.0)."
    )
