"""Each field without others, as a fast path for it would be chosen: at all widths, and at large sizes.

The checks of `_together` combine fields; code for a call with one field only, or none, is tried here.
"""

import itertools
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_array.testing._case import claimed_widths, fits, plain_case
from rope_array.testing._checks._together import (
    check_cases,
    check_large_cases,
    field_levels,
    is_compiled,
    other_pairing,
)
from rope_array.testing._judge import Judge, check

# Odd sizes, and powers of two, for which a faster path may be taken.
_ROWS = ((1, 1, 71), (1, 131, 2), (71, 2, 2), (1, 1, 1031), (2, 64, 2), (1, 1, 1024))
_FIRST_WIDTHS = (112, 64, 192, 80)
_SOME_WIDTHS = (36, 96, 112, 128, 256, 64, 80, 160)
# Fields that the checks of wide heads below, or other checks, try alone.
_CHECKED_ELSEWHERE = {"seq_axis", "in_tuple", "pairing", "scaling", "axes"}
# Fields of calls in which x or positions have other axes, or x is a tuple.
OF_ANOTHER_SHAPE = frozenset({"axes", "in_tuple", "seq_axis"})
_FIVE_AXES = ((2, 3, 4, 5), (2, 2, 3, 5), (2, 3, 2, 5), (3, 2, 3, 3), (2, 2, 2, 2))
_SLICES = {
    64: ((32, 32), (40, 16), (48, 8), (33, 24), (60, None)),
    96: ((32, 64), (48, 32), (72, 24)),
    128: ((64, 64), (96, 32), (100, 20), (32, None)),
    256: ((128, 64), (192, 64)),
}


def single_fields(j: Judge) -> list[dict[str, Any]]:
    """Return no field, and every claimed field alone, in the form of a `Case`."""
    claimed = [(name, value) for name, values in field_levels(j).items() for value in values if value]
    if j.claims("axes", "any_positions"):
        claimed.append(("axes", "alternating"))
    if j.claims("scaling[linear]"):
        claimed.append(("scaling", "linear"))
    claimed = list(dict.fromkeys(claimed))
    usual = j.target.defaults["pairing"]
    return [{}, *({name: other_pairing(usual) if value == "other" else value} for name, value in claimed)]


def field_specs(j: Judge) -> list[dict[str, Any]]:
    """Return no fields, and every claimed field alone whose positions have shape (S,), at the usual width."""
    plain = plain_case(j)
    cases = [plain._replace(**some) for some in single_fields(j) if not some.keys() & OF_ANOTHER_SHAPE]
    return [case.spec(j) for case in cases if fits(j, case)]


def with_both_pairings(j: Judge, fields: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return fields, then the same with the other pairing if it is claimed."""
    fields = list(fields)
    if not j.claims("pairing"):
        return fields
    other = other_pairing(j.target.defaults["pairing"])
    return [*fields, *({**some, "pairing": other} for some in fields if not some.keys() & {"pairing"})]


def _check_alone(j: Judge, values: Iterable[dict[str, Any]], compiled: int) -> None:
    """Call and judge valid cases, if any; `compiled` if each is compiled, four times as many by JAX."""
    compiled *= 4 if j.lib.calls < 1000 else 1
    plain = plain_case(j)
    cases = [case for case in dict.fromkeys(plain._replace(**some) for some in values) if fits(j, case)]
    cases = cases[:compiled] if is_compiled(j) else cases
    if cases:
        check_cases(j, cases)


@check("widths")
def one_field_at_every_width(j: Judge) -> None:
    """The plain call and every field alone are right at the head_dims of models, in every dtype."""
    widths = [j.target.width_of(int(label)) for label in j.parts("widths")]
    pairings = with_both_pairings(j, [{}])
    first = [width for width in _FIRST_WIDTHS if width in widths]  # where few calls are made
    values = [
        some for width in (*first, *widths) for some in at_widths(pairings[::-1], [width], j.dtypes[:1])
    ]
    _check_alone(j, values, 3)
    if not is_compiled(j):
        _check_alone(j, at_widths(pairings, [*claimed_widths(j), *_SOME_WIDTHS], j.dtypes[1:]), 0)
        fields = [some for some in single_fields(j) if some and not some.keys() & _CHECKED_ELSEWHERE]
        _check_alone(j, at_widths(fields, _SOME_WIDTHS, j.dtypes[:1]), 0)
        _check_alone(j, at_widths(with_both_pairings(j, fields), _SOME_WIDTHS[-3:], j.dtypes[:1]), 0)


def at_widths(
    fields: Iterable[dict[str, Any]], widths: Iterable[int], dtypes: Iterable[str]
) -> Iterable[dict[str, Any]]:
    """Yield each field at each width in each dtype; a slice is half of the head."""
    for some, width, dtype in itertools.product(fields, widths, dtypes):
        part = {"rotary_dim": width // 4 * 2} if "rotary_dim" in some else {}
        yield {"rows": (1, 2, 2), **some, **part, "width": width, "dtype": dtype}


@check()
def one_field_and_many_rows(j: Judge) -> None:
    """The plain call and every field alone are right for many rows, heads or batches."""
    few = is_compiled(j)
    fields = [some for some in single_fields(j) if "seq_axis" not in some]
    if few:
        fields.sort(key=lambda some: not some.keys() & {"attention_factor", "pairing"})
    _check_alone(j, [{**some, "rows": rows} for some in fields for rows in _ROWS[: 1 if few else None]], 2)


@check()
def one_field_and_many_elements(j: Judge) -> None:
    """Every field alone is right for an x of more than 2^17 elements.

    Code chooses by size: threads, blocks of memory, a kernel.
    """
    fields = [some for some in single_fields(j) if some and not some.keys() & {"axes", "in_tuple"}]
    rows = (3, 7, 103) if j.lib.calls >= 1000 else (1, 3, 690)
    cases = [plain_case(j)._replace(rows=rows, width=j.target.width_of(64), **some) for some in fields]
    check_large_cases(j, [case for case in cases if fits(j, case)], compiled=3)


@check("rotary_dim", "rotary_start", "widths")
def rotary_starts_of_wide_heads(j: Judge) -> None:
    """A rotated slice may start anywhere in a wide head, beyond 32 and 64 too."""
    values = [
        {"rows": (1, 2, 2), "width": width, "rotary_start": start, "rotary_dim": part}
        for width in (128, 64, 96, 256)
        if width in claimed_widths(j)
        for start, part in _SLICES[width]
    ]
    _check_alone(j, with_both_pairings(j, values), 1)


# ---- rules and axes at wide heads ----

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 64}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def rules(pairs: int) -> list[dict[str, Any]]:
    """Return rules of every kind, with each of their parameters, for a number of pairs."""
    short, long = [1.0 + i / 8 for i in range(pairs)], [2.0 + i for i in range(pairs)]
    longrope = {"rope_type": "longrope", "short_factor": short, "long_factor": long, "factor": 32.0}
    return [
        {"rope_type": "linear", "factor": 4.0},
        {**_LLAMA3, "original_max_position_embeddings": 8192},
        {**_YARN, "truncate": False},
        _YARN,
        {**_YARN, "factor": 40.0, "original_max_position_embeddings": 4096, "truncate": False},
        {**_YARN, "beta_fast": 8.0, "beta_slow": 2.0},
        {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
        {**_YARN, "attention_factor": 1.25},
        {"rope_type": "ntk", "factor": 4.0},
        {**_DYNAMIC, "length": 128},
        {**_DYNAMIC, "length": 64},
        {**_LLAMA3, "original_max_position_embeddings": 64, "high_freq_factor": 32.0},
        {**longrope, "original_max_position_embeddings": 64, "length": 65},
        {**longrope, "original_max_position_embeddings": 64, "length": 1},
        {"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 2.0},
        {"rope_type": "periods"},
    ]


def as_text(rule: dict[str, Any]) -> str:
    """Return a rule in JSON without spaces, as a `Case` has it."""
    return json.dumps(rule, separators=(",", ":"))


@check("scaling", "widths")
def rules_at_wide_heads(j: Judge) -> None:
    """Every scaling rule changes every pair of a wide head as it should, whatever its parameters."""
    for width in [width for width in (128, 64) if width in claimed_widths(j)]:
        of_width = plain_case(j)._replace(width=width)
        named = [as_text(rule) for rule in rules(of_width.num_pairs(j))]
        values = [{"rows": (1, 2, 2), "width": width, "scaling": text} for text in named]
        _check_alone(j, with_both_pairings(j, values[: 2 if is_compiled(j) else None]), 4)


def axes_of_width(width: int) -> dict[str, tuple[dict[str, Any], int]]:
    """Return axes of every kind for a head_dim, a multiple of 8, and their numbers of coordinates."""
    pairs = width // 2
    quarter, third = pairs // 4, (pairs - pairs // 4) // 2
    sections = (quarter, third, pairs - quarter - third)
    chunked = tuple(a for a, size in enumerate(sections) for _ in range(size))
    half = (0,) * (pairs // 2) + (1,) * (pairs // 2)
    return {
        "alternating coordinates": ({"coordinates": (0, 1) * (pairs // 2)}, 2),
        "chunks": ({"coordinates": chunked}, 3),
        "interleaved coordinates": ({"coordinates": ((0, 1, 2) * pairs)[:pairs]}, 3),
        "a series for each coordinate": ({"coordinates": half, "widths": (pairs, pairs)}, 2),
        "blocks": ({"coordinates": half, "widths": (pairs, pairs), "blocks": 2}, 2),
        "indices": ({"coordinates": half, "indices": (*range(0, pairs, 2), *range(1, pairs, 2))}, 2),
        "pairs without a coordinate": ({"coordinates": (0, None, 1, None) * quarter}, 2),
    }


@check("axes", "any_positions", "widths")
def axes_at_wide_heads(j: Judge) -> None:
    """Every pair of a wide head is rotated by its own coordinate, for axes of every kind."""
    for width in [width for width in (128, 64) if width in claimed_widths(j)]:
        x = j.x(1, 2, 2, width)
        maps = axes_of_width(width)
        names = list(maps)[: 1 if is_compiled(j) else None]
        for fields in with_both_pairings(j, [{}])[: 1 if is_compiled(j) else None]:
            for name in names:
                axes, count = maps[name]
                shown = "".join(f" with pairing={value}" for value in fields.values())
                with j.part(f"axes with {name} at head_dim {width}{shown}"):
                    j.check_call(x, _coordinates(j, count), axes=axes, **fields)
        if is_compiled(j):
            break


def _coordinates(j: Judge, count: int) -> NDArray[np.int64]:
    """Return two rows of coordinates that all differ."""
    return j.wrap(np.array([[900, 7, 3000], [41, 5000, 12]])[:, :count])


# ---- positions ----


@check("batch_positions", "offset_positions", "ranks[5]")
def batch_positions_of_five_axes(j: Judge) -> None:
    """Positions of shape (B, S) match the first axis of an x of five axes, whatever the sizes of others."""
    # Code that matches another axis cannot take sizes that all differ.
    if j.try_call(j.x(2, 3, 4, 5, 16), j.pos(_rows_of_batches(j, 2, 5))) is None:
        j.raise_refused("does not match positions of shape (B, S) to the first of five axes")
    for rows in _FIVE_AXES[: 1 if is_compiled(j) else None]:
        with j.part(f"x of shape {(*rows, j.width)} and positions of shape {(rows[0], rows[-1])}"):
            j.check_call(j.x(*rows, 16), _rows_of_batches(j, rows[0], rows[-1]))


def _rows_of_batches(j: Judge, batches: int, rows: int) -> NDArray[np.int64]:
    return np.stack([j.row(3 + 20 * b, rows) for b in range(batches)])
