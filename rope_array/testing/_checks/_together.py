"""Fields, shapes, sizes, dtypes, strides and positions in combination.

Each check draws calls, with a fixed seed, until the values of its groups of factors have been combined.
"""

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rope_array.testing._case import (
    FAR,
    MAPS,
    NEAR,
    RULES,
    SHAPES,
    Case,
    check_case,
    claimed_shape,
    claimed_widths,
    fits,
    in_tuples,
    layout_name,
    orders,
    plain_case,
    position_kinds,
)
from rope_array.testing._checks._sizes import check_large
from rope_array.testing._covering import covering, pairs_among
from rope_array.testing._judge import Judge, check
from rope_array.testing._shrink import explained

Levels = dict[str, list[Any]]
# (B, H, S): all different, one row, B equal to H, H equal to S, one head, all 1.
_ROWS = ((2, 3, 5), (2, 3, 1), (3, 3, 5), (2, 5, 5), (2, 1, 5), (1, 1, 1))
_ROWS_OF_ANY_RANK = ((5,), (3, 5), (2, 2, 3, 5), (1, 2, 1, 2, 3))
# (B, H, S) for more than 2^18 elements at head_dim 64: no size is large, many rows, many heads.
_LARGE = ((4, 9, 115), (1, 3, 1380), (2, 150, 14))
# Many rows, heads or batches; one at a time, and two.
_MANY = ((1, 1, 1030), (2, 1, 600), (1, 130, 2), (70, 2, 2), (5, 40, 3), (70, 3, 1))
_FEW = ((2, 1, 600), (1, 70, 2), (40, 2, 2))
_MORE = ((1, 1, 4100), (1, 520, 2), (260, 1, 2), (3, 70, 40))
FIELDS = (
    "seq_axis", "base", "rotary_dim", "rotary_start", "pairing", "out_pairing", "inv_freq",
    "attention_factor", "scaling", "axes", "inverse", "in_tuple",
)  # fmt: skip
_SIMPLE = (
    "seq_axis", "base", "rotary_dim", "rotary_start", "pairing", "out_pairing", "attention_factor", "inverse",
)  # fmt: skip


@check()
def combinations(j: Judge) -> None:
    """Any two of the claimed fields, shapes, dtypes and kinds of positions are correct in one call."""
    levels = _levels(j)
    # Each case is compiled again; the first cases cover most combinations.
    check_covering(j, levels, pairs_among(levels), few=10 if j.target.compiled else j.lib.calls)


@check("widths")
def widths_and_fields(j: Judge) -> None:
    """Every claimed field is correct at the head_dims of models, for slices of any width."""
    fields = field_levels(j)
    parts: list[Any] = [8, 24, 48, 96, "most"] if j.claims("rotary_dim") else []
    few = is_compiled(j)
    levels = plain_levels(
        j,
        dtype=j.dtypes,
        **{**fields, "rotary_dim": [None, *(parts[1::2] if few else parts)]},
        width=some_widths(j, 64, 112, 128) if few else claimed_widths(j),
        rows=[(2, 3, 2)] if few else [(1, 2, 3), (2, 3, 2)],
        positions=_shapes(j, "S", "BS"),
    )
    groups = [
        *(("width", name) for name in ("dtype", *FIELDS, "positions")),
        *(("width", "rotary_dim", "pairing"), ("width", "pairing", "out_pairing")),
        *(("width", "dtype", "pairing"), ("width", "dtype", "inverse"), ("rotary_dim", "pairing", "dtype")),
    ]
    check_covering(j, levels, _pairs_in(groups) if few else groups, few=12)


@check("widths")
def widths_and_positions(j: Judge) -> None:
    """Any three of head_dim, dtype, pairing, and range, shape and order of positions are right together."""
    fields = field_levels(j)
    same_angles = ("seq_axis", "pairing", "out_pairing", "inverse", "in_tuple")
    levels = plain_levels(
        j,
        **{name: fields[name] for name in (*same_angles, "base")},
        dtype=j.dtypes,
        width=[j.width, *some_widths(j, 64, 80, 128, 256)],
        rows=[(3, 2, 3), (2, 3, 2), (2, 1, 1)],
        positions=_shapes(j, "S", "BS", "BHS", ""),
        kind=[kind for kind in position_kinds(j) if not kind.startswith("python")],
        layout=[None, *(_layouts(j) if j.claims("strides") else ())],
        reach=list(dict.fromkeys(min(reach, j.target.reach) for reach in (NEAR, 5000, *_reaches(j)))),
        order=orders(j),
    )
    groups = [
        *itertools.combinations(("dtype", "width", "reach", "positions"), 3),
        *(("width", "reach", name) for name in same_angles),
        *(("dtype", "reach", name) for name in same_angles),
        *(("width", name) for name in ("rows", "layout", "kind")),
        *(("order", name) for name in ("width", "rows", "kind", "reach")),
        *(("order", "positions", name) for name in ("dtype", "base", *same_angles)),
        ("dtype", "kind"),
        ("kind", "reach"),
        *(("pairing", name, "reach") for name in ("inverse", "seq_axis", "in_tuple")),
    ]
    check_covering(j, levels, _pairs_in(groups) if is_compiled(j) else groups, few=3)


@check()
def sizes_and_fields(j: Judge) -> None:
    """Every claimed field is correct for many rows, heads or batches, in every claimed dtype."""
    levels = plain_levels(
        j,
        dtype=j.dtypes,
        **field_levels(j),
        rows=_FEW if is_compiled(j) else [*_MANY, *(_MORE if j.thorough else ())],
        positions=_shapes(j, "S", "BS", "BHS"),
        layout=[None, *(_layouts(j) if j.claims("strides") else ())],
        reach=_reaches(j)[:2],
    )
    groups = [
        *(("rows", "dtype", name) for name in (*FIELDS, "positions")),
        *(("rows", "reach"), ("rows", "positions", "seq_axis"), ("rows", "positions", "inverse")),
        ("rows", "layout"),
    ]
    check_covering(j, levels, _pairs_in(groups) if is_compiled(j) else groups, few=9)


@check()
def fields_and_many_elements(j: Judge) -> None:
    """Any two of the claimed fields, dtypes, head_dims and many rows, heads or batches are right together.

    Calls are of more than 2^18 elements: code chooses by size.
    """
    fields = {name: values for name, values in field_levels(j).items() if name not in ("axes", "in_tuple")}
    fields["rotary_dim"] = [None, *((24, "most") if j.claims("rotary_dim") else ())]
    levels = plain_levels(
        j,
        **fields,
        dtype=j.dtypes,
        width=list(dict.fromkeys((j.target.width_of(64), *some_widths(j, 36, 80, 96, 192)))),
        rows=_LARGE,
        positions=_shapes(j, "S", "BS"),
        layout=[None, *(_layouts(j)[::4] if j.claims("strides") else ())],
    )
    groups = pairs_among((*fields, "dtype", "width", "rows", "positions"))
    groups += [("layout", name) for name in ("dtype", "rows", "pairing", "inverse")]
    check_large_cases(j, covering_cases(j, levels, groups), compiled=5)


@check("strides")
def strides_and_fields(j: Judge) -> None:
    """An x of any strides is rotated correctly with every claimed field, in every dtype and at wide heads."""
    levels = plain_levels(
        j,
        dtype=j.dtypes,
        **field_levels(j),
        layout=_layouts(j),
        rows=[(2, 3, 5), (2, 1, 3), (1, 3, 1)],
        width=list(dict.fromkeys((j.width, *some_widths(j, 64, 80)))),
        positions=_shapes(j, "S", "BS"),
    )
    groups = [("layout", name) for name in (*FIELDS, "width", "rows", "positions")]
    check_covering(j, levels, [*groups, ("layout", "dtype", "pairing"), ("layout", "width", "dtype")], few=2)


@check()
def calls_that_differ_in_one_thing(j: Judge) -> None:
    """A call is right after one that differs in one thing: no cache leaves that thing out of its key."""
    few = is_compiled(j)
    levels = {name: values for name, values in _levels(j).items() if len(values) > 1}
    if few:  # only what needs no new shape
        kept = ("base", "inv_freq", "scaling", "attention_factor", "inverse", "reach", "dtype")
        levels = {name: levels[name] for name in kept if name in levels}
    draw, case = random.Random(0), plain_case(j)
    served = int(_served(j, case))
    for step in range(10 if few else 160):
        name = list(levels)[step % len(levels)]
        value = levels[name][int(draw.random() * len(levels[name]))]
        other = _made(j, {**case._asdict(), name: value})
        if other is not None and other != case:
            with j.part(f"after a call that differs in {name} only"):
                served += _served(j, other)
            case = other
    if not served:
        j.raise_refused("refuses every call")


# ---- the calls ----


def _pairs_in(groups: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the first factor of each group with each other one: what a few calls can combine."""
    return [(first, other) for first, *others in groups for other in others]


def is_compiled(j: Judge) -> bool:
    """Return whether calls of new shapes take long, so that a check makes a few only."""
    return j.lib.calls < 1000 or j.target.compiled


def check_covering(j: Judge, levels: Levels, groups: Iterable[tuple[str, ...]], few: int) -> None:
    """Call and judge covering cases; `few` if each is compiled. Raise if every call is refused."""
    check_cases(j, itertools.islice(covering_cases(j, levels, groups), few if is_compiled(j) else None))


def check_large_cases(j: Judge, cases: Iterable[Case], compiled: int) -> None:
    """Call and judge cases of many rows; `compiled` if each is compiled."""
    for case in itertools.islice(cases, compiled if is_compiled(j) else None):
        *lead, rows = case.rows
        # As many elements at each width.
        case = case._replace(rows=(*lead, -(-rows * 64 // case.width)))
        shape, per_batch = (*case.rows, case.width), case.positions == "BS"
        with j.part(f"with {case.text(plain_case(j))}"):
            check_large(j, shape, dtype=case.dtype, per_batch=per_batch, layout=case.layout, **case.spec(j))


def simple_cases(j: Judge, dtypes: Sequence[str], together: int) -> Iterator[Case]:
    """Yield calls with any two or more simple fields in each dtype, and none of the others.

    Code may have a path for them: without axes, rules of scaling, and frequencies of its caller's.
    """
    fields = {name: values[:2] for name, values in field_levels(j).items() if name in _SIMPLE}
    groups = [("dtype", *some) for some in itertools.combinations(_SIMPLE, together)]
    return covering_cases(j, plain_levels(j, **fields, dtype=dtypes, rows=[(2, 3, 3)]), groups)


def covering_cases(j: Judge, levels: Levels, groups: Iterable[tuple[str, ...]]) -> Iterator[Case]:
    """Yield cases until each valid combination of each group's values occurs."""
    return covering(levels, groups, lambda values: _made(j, values))


def check_cases(j: Judge, cases: Iterable[Case]) -> None:
    """Call and judge cases; raise if every call is refused."""
    if not sum([_served(j, case) for case in cases]):
        j.raise_refused("refuses every call")


def _served(j: Judge, case: Case) -> bool:
    try:
        return check_case(j, case)
    except Exception as error:
        raise AssertionError(explained(j, case, error)) from error


def _made(j: Judge, values: Mapping[str, Any]) -> Case | None:
    """Return the case of a value for each factor, or None if it is not valid."""
    values = dict(values)
    if values["rotary_dim"] == "most":
        values["rotary_dim"] = values["width"] - 2
    if values["out_pairing"] == "other":
        values["out_pairing"] = other_pairing(values["pairing"] or j.target.defaults["pairing"])
    case = Case(**values)
    return case if fits(j, case) else None


def other_pairing(pairing: str) -> str:
    """Return the pairing that is not this one."""
    return "half" if pairing == "interleaved" else "interleaved"


# ---- the values of factors ----


def _layouts(j: Judge) -> list[str]:
    return [layout_name(name) for name, _ in j.lib.strided(j.x().array)]


def some_widths(j: Judge, *widths: int) -> list[int]:
    """Return the claimed ones of some head_dims, or the usual one."""
    return [width for width in claimed_widths(j) if width in widths and width != j.width] or [j.width]


def plain_levels(j: Judge, **levels: Any) -> Levels:
    """Return levels for every factor: these, and one plain value of each other."""
    return {name: list(levels.get(name, [value])) for name, value in plain_case(j)._asdict().items()}


def field_levels(j: Judge) -> Levels:
    """Return a few values of every field: None, and those that are claimed."""
    values: Levels = {
        "seq_axis": [-3, 1],
        "base": [500.0],
        "rotary_dim": [8],
        "rotary_start": [4],
        "pairing": [other_pairing(j.target.defaults["pairing"])],
        "out_pairing": ["other"],
        "inv_freq": [True],
        "attention_factor": [1.1],
        "scaling": [kind for kind in ("yarn", "ntk", "linear") if j.claims(f"scaling[{kind}]")][:2],
        "axes": ["blocks"] if j.claims("any_positions") else [],
        "inverse": [True],
    }
    levels = {name: [None, *(some if j.claims(name) else ())] for name, some in values.items()}
    return {**levels, "in_tuple": [None, *in_tuples(j)]}


def _levels(j: Judge) -> Levels:
    """Return many values of every factor that is claimed, at small sizes."""
    any_positions, width = j.claims("any_positions"), j.width
    values: Levels = {
        "seq_axis": [-2, -3, -4, 0, 1],
        "base": [500.0, 1_000_003.5, 10.0],
        "pairing": ["interleaved", "half"],
        "out_pairing": ["interleaved", "half"],
        "rotary_dim": [4, 8, width // 2 * 2],
        "rotary_start": [3, 4],
        "attention_factor": [1.1, 0.7],
        "scaling": [*RULES],
        "axes": [*MAPS] if any_positions else [],
    }
    levels = {name: [None, *(some if j.claims(name) else ())] for name, some in values.items()}
    return plain_levels(
        j,
        **{**field_levels(j), **levels},
        dtype=j.dtypes,
        rows=[*_ROWS, *(rows for rows in _ROWS_OF_ANY_RANK if j.claims(f"ranks[{len(rows) + 1}]"))],
        positions=_shapes(j, *SHAPES),
        kind=position_kinds(j),
        reach=_reaches(j),
        order=orders(j),
    )


def _shapes(j: Judge, *shapes: str) -> list[str]:
    return [shape for shape in shapes if claimed_shape(j, shape)]


def _reaches(j: Judge) -> list[int]:
    any_positions = j.claims("any_positions")
    far = [min(FAR, j.target.reach)] if any_positions or j.claims("offset_positions") else []
    near = min(NEAR, j.target.reach)
    return [near, *far, *([-min(near, j.target.depth)] if any_positions and j.target.depth else [])]
