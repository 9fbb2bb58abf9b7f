"""Fields, shapes, dtypes and positions in combination."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from rope_array.testing._judge import Judge, check
from rope_array.testing._own import Declined

# (B, H, S): all different, one row, B equal to H, H equal to S, one head, all 1.
_ROWS = ((2, 3, 5), (2, 3, 1), (3, 3, 5), (2, 5, 5), (2, 1, 5), (1, 1, 1))
_ROWS_OF_ANY_RANK = ((5,), (3, 5), (2, 2, 3, 5), (1, 2, 1, 2, 3))
# Axes of positions, as sizes of (B, H, S) or 1.
_AXES = ("S", "", "1", "BS", "1S", "B1", "11", "BHS", "B1S", "1HS", "BH1")
_TRIES = 25
_RULES = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "ntk": {"rope_type": "ntk", "factor": 3.0},
    "yarn": {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 64},
}
# Axes of two coordinates for a number of pairs.
_MAPS: dict[str, Callable[[int], dict[str, Any]]] = {
    "alternating": lambda n: {"coordinates": (0, 1) * (n // 2) + (0,) * (n % 2), "count": 2},
    "blocks": lambda n: {"coordinates": (0,) * (n // 2) + (1,) * (n // 2), "widths": (n, n), "blocks": 2},
}


class Case(NamedTuple):
    """One call: a value for each factor, or None to leave a field out."""

    dtype: str
    rows: tuple[int, ...]
    axes: str
    kind: str
    reach: str
    seq_axis: int | None
    base: float | None
    rotary_dim: int | None
    rotary_start: int | None
    pairing: str | None
    out_pairing: str | None
    inv_freq: bool | None
    attention_factor: float | None
    scaling: str | None
    axes_map: str | None
    inverse: bool | None
    in_tuple: bool | None

    def spec(self, j: Judge) -> dict[str, Any]:
        """Return the fields of the call."""
        fields = ("seq_axis", "base", "rotary_dim", "rotary_start", "pairing", "out_pairing")
        spec = {name: getattr(self, name) for name in (*fields, "attention_factor", "inverse")}
        spec = {name: value for name, value in spec.items() if value is not None}
        if self.inv_freq:
            spec["inv_freq"] = tuple(1.75 * 0.61**i * (-1) ** (i == 2) for i in range(self.num_pairs(j)))
        if self.scaling:
            spec["scaling"] = _RULES[self.scaling]
        if self.axes_map:
            spec["axes"] = _MAPS[self.axes_map](self.num_pairs(j))
        return spec

    def num_pairs(self, j: Judge) -> int:
        """Return the number of pairs."""
        fields = {"rotary_dim": self.rotary_dim, "rotary_start": self.rotary_start}
        return len(j.pairs({name: value for name, value in fields.items() if value is not None})[0][0])

    def __str__(self) -> str:
        fields = ", ".join(f"{n}={v}" for n, v in self._asdict().items() if v is not None)
        return f"with {fields}"


@check()
def combinations(j: Judge) -> None:
    """Any two of the claimed fields, shapes, dtypes and kinds of positions are correct in one call.

    Calls are drawn, with a fixed seed, until every two values have been in one call.
    """
    cases = itertools.islice(_covering(_levels(j), lambda case: _fits(j, case)), _many(j))
    if not sum([_check_case(j, case) for case in cases]):
        # Reported as not applicable. Where claims are declared, only a forced backend can decline a call.
        raise (Declined if j.target.declared else NotImplementedError)("refuses every call")


def _many(j: Judge) -> int:
    # Each case is compiled again; the first cases cover most combinations.
    return 10 if j.target.compiled else j.lib.calls


def _check_case(j: Judge, case: Case) -> bool:
    """Call and check; return False if the target refused the call."""
    spec = case.spec(j)
    axis = case.seq_axis if case.seq_axis is not None else -2
    values = np.random.default_rng(0).standard_normal((*case.rows, j.width))
    values = np.moveaxis(values, -2, axis) if len(case.rows) > 1 or axis != -2 else values
    x, (pos, numbers) = j.array(values, case.dtype), _positions(j, case)
    other = j.array(values[..., ::-1], j.dtypes[-1])
    try:
        ys = j.try_call((other, x) if case.in_tuple else x, pos, **spec)
        if ys is not None:
            for y, one in zip(ys, (other, x), strict=True) if case.in_tuple else [(ys, x)]:
                j.check(y, one, numbers, **spec)
    except Exception as error:
        raise AssertionError(f"{case}: {error}") from error
    return ys is not None


def _positions(j: Judge, case: Case) -> tuple[Any, Any]:
    """Return positions for the target, and their numbers for the definition."""
    shape = _shape(case)
    draw = np.random.default_rng(len(shape) + sum(shape))
    low, high = _bounds(j, case)
    if case.axes_map:
        shape = (*shape, 2)
    numbers: np.ndarray = draw.integers(low, high, shape, endpoint=True)
    if not j.claims("any_positions"):
        numbers = np.broadcast_to(j.row(max(low, high - 8), shape[-1]), shape)
    if case.kind == "python":
        return (numbers.tolist() if shape else int(numbers)), numbers
    if case.kind == "python float":
        numbers = numbers + 0.25
        return numbers.tolist(), numbers
    if case.kind == "float":
        wide = (
            case.dtype == "float64" and j.target.angles == "float64" and j.claims("float_positions[float64]")
        )
        wide = wide or not j.claims("float_positions[float32]")
        numbers = (numbers + 0.25).astype("float64" if wide else "float32")
        return j.pos(numbers, numbers.dtype.name), numbers
    return j.pos(numbers, case.kind), numbers


def _far(j: Judge) -> int:
    # Beyond 2^15 float32 angles may exceed their bound; accuracy_* report it.
    return min(j.target.reach, 2**15 if j.target.angles == "float32" else 2**31 - 1)


def _bounds(j: Judge, case: Case) -> tuple[int, int]:
    far = min(_far(j), 2**15 if "float" in case.kind else 2**31 - 1)
    if case.kind in j.lib.integers:
        far = min(far, int(np.iinfo(case.kind).max))
    near = min(100, far)
    return {"small": (0, near), "far": (far // 2, far), "negative": (-near, -1)}[case.reach]


def _shape(case: Case) -> tuple[int, ...]:
    rows = dict(zip("BH", case.rows[:-1], strict=False)) | {"S": case.rows[-1], "1": 1}
    return tuple(rows[axis] for axis in case.axes)


# ---- the cases ----


def _levels(j: Judge) -> dict[str, list[Any]]:
    """Return the values of every factor that is claimed."""
    any_positions, width = j.claims("any_positions"), j.width
    optional: dict[str, list[Any]] = {
        "seq_axis": [-2, -3, -4, 0, 1],
        "base": [500.0, 1_000_003.5, 10.0],
        "rotary_dim": [4, 8, width // 2 * 2],
        "rotary_start": [3, 4],
        "pairing": ["interleaved", "half"],
        "out_pairing": ["interleaved", "half"],
        "inv_freq": [True],
        "attention_factor": [1.1, 0.7],
        "scaling": [*_RULES],
        "inverse": [True],
    }
    levels: dict[str, list[Any]] = {
        "dtype": list(j.dtypes),
        "rows": [*_ROWS, *(rows for rows in _ROWS_OF_ANY_RANK if j.claims(f"ranks[{len(rows) + 1}]"))],
        "axes": [axes for axes in _AXES if _claimed(j, axes)],
        "kind": _kinds(j),
        "reach": ["small"],
    }
    if any_positions or j.claims("offset_positions"):
        levels["reach"].append("far")
    if any_positions and j.claims("negative_positions"):
        levels["reach"].append("negative")
    for name, values in optional.items():
        levels[name] = [None, *(values if j.claims(name) else ())]
    levels["axes_map"] = [None, *(_MAPS if any_positions and j.claims("axes") else ())]
    levels["in_tuple"] = [None, *([True] if j.claims("tuple[2]") else [])]
    return levels


def _kinds(j: Judge) -> list[str]:
    kinds = [j.lib.integers[0], *(kind for kind in j.parts("narrow_positions") if kind != j.lib.integers[0])]
    if j.claims("any_positions", "python_positions[list]"):
        kinds.append("python")
    if j.claims("any_positions", "float_positions"):
        kinds += ["float", *(["python float"] if j.claims("python_positions[list]") else [])]
    return kinds


def _claimed(j: Judge, axes: str) -> bool:
    needs = ["head_positions"] if len(axes) == 3 else ["batch_positions"] if len(axes) == 2 else []
    if "1" in axes or not axes:
        needs += [f"broadcast_positions[{axes or 'scalar'}]", "any_positions"]
    return j.claims(*needs, *(["offset_positions"] if len(axes) > 1 else []))


def _fits(j: Judge, case: Case) -> bool:
    """Return whether a case is valid and claimed."""
    lead, exact = len(case.rows) - 1, j.target.angles == "exact"
    if len(case.axes) > 1 and (len(case.axes) - 1 > lead or not (exact or lead == 2)):
        return False  # other code may broadcast positions of a batch differently, except for (B, H, S, D)
    if case.seq_axis is not None and not -lead - 2 <= case.seq_axis <= lead:
        return False
    if case.kind.startswith("python") and (len(case.axes) > 1 and not exact):
        return False
    if case.kind.startswith("python") and not case.axes and not j.claims("python_positions[int]"):
        return False
    if case.reach == "negative" and case.kind.startswith("uint"):
        return False
    if case.inv_freq and (case.base is not None or case.scaling):
        return False
    if not _slice_fits(j, case):
        return False
    if case.axes_map != "blocks":
        return True
    # NTK scaling needs two frequencies or more in each block.
    return case.num_pairs(j) % 2 == 0 and not (case.scaling == "ntk" and case.num_pairs(j) == 2)


def _slice_fits(j: Judge, case: Case) -> bool:
    fields = j.fields({})
    start = case.rotary_start if case.rotary_start is not None else fields.get("rotary_start") or 0
    width = case.rotary_dim if case.rotary_dim is not None else fields.get("rotary_dim")
    fixed = fields.get("inv_freq")
    if fixed is not None and not case.inv_freq and (case.rotary_dim or case.rotary_start):
        return False
    return (j.width - start) % 2 == 0 if width is None else start + width <= j.width


def _covering(levels: dict[str, list[Any]], fits: Callable[[Case], bool]) -> Iterator[Case]:
    """Yield cases until each valid pair of levels occurs; prefer cases with the most new pairs."""
    draw, names = random.Random(0), list(levels)
    missing = {
        pair
        for a, b in itertools.combinations(range(len(names)), 2)
        for pair in itertools.product(
            ((a, i) for i in range(len(levels[names[a]]))), ((b, i) for i in range(len(levels[names[b]])))
        )
    }
    while missing:
        best: tuple[int, Case | None, set[Any]] = (0, None, set())
        needed = min(missing) if len(missing) < 200 else draw.choice(sorted(missing))
        for _ in range(_TRIES):
            indices = [draw.randrange(len(levels[name])) for name in names]
            for factor, index in needed:
                indices[factor] = index
            case = Case(**{name: levels[name][index] for name, index in zip(names, indices, strict=True)})
            new = missing.intersection(itertools.combinations(enumerate(indices), 2))
            if len(new) > best[0] and fits(case):
                best = (len(new), case, new)
        missing -= best[2] | {needed}
        if best[1] is not None:
            yield best[1]
