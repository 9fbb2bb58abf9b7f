"""The factors of a call: everything in which two calls can differ.

This module has the values of each factor: the plain value, the levels to try, the reader of ``--case``, the
claims that a value needs, and simpler values. `_call` makes the arrays of a call from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ._capability_parts import ALL_WIDTHS, EMPTY, PARTS
from ._named_values import (
    ARRAY_DTYPES,
    AXES,
    COTANGENTS,
    FREQUENCIES,
    LONG_ORDERS,
    NUMBERS,
    ORDERS,
    POSITION_LAYOUTS,
    SHAPES,
    TUPLES,
    TWO_DTYPES,
    WAYS_TO_ASK,
    frequencies_of,
    is_in_array,
    rule_of,
)
from ._rules import RULES

DTYPES = ("float16", "bfloat16", "float32", "float64")
# Sizes (B, H, S) that differ from each other, so that a mixed-up axis shows; and the default width.
SIZES = (2, 3, 5)
WIDTH = 16
NEAR, FAR = 100, 2**31 - 1


class Factor(NamedTuple):
    """One factor of a call."""

    plain: Any = None  # the value of a plain call; None leaves a field out
    # The other values that covers try; a cover that takes two levels takes the first two.
    levels: tuple[Any, ...] = ()
    read: Callable[[str], Any] = str  # makes the value of a text; raises ValueError
    needs: Callable[[Any], Iterable[str]] = lambda value: ()  # the capabilities that a value needs
    is_field: bool = False  # whether it is a field of the call
    # Values to try in place of one that fails, the simplest first, up to the value itself.
    simpler: Callable[[Any], Iterable[Any]] = lambda value: ()
    meaning: str = ""  # a phrase for the documentation; fields need none


# ---- texts ----


def _one_of(*names: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"give one of {', '.join(name or 'scalar' for name in names)}")
        return text

    return read


def _true_or(*names: str) -> Callable[[str], Any]:
    read_name = _one_of("True", *names)
    return lambda text: True if text == "True" else read_name(text)


def _as_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("give a whole number") from None


def _as_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("give a number") from None


def _as_rows(text: str) -> tuple[int, ...]:
    rows = () if text == "none" else tuple(_as_int(size) for size in text.split(","))
    if rows and min(rows) < 0:
        raise ValueError("give sizes of 0 or more")
    return rows


def _as_shape(text: str) -> str:
    return _one_of(*SHAPES)("" if text == "scalar" else text)


def _as_order(text: str) -> Any:
    if text.strip("-,/0123456789"):
        return _one_of(*ORDERS, *LONG_ORDERS)(text)
    rows = tuple(tuple(map(_as_int, row.split(","))) for row in text.split("/"))
    return rows if rows[1:] else rows[0]


def _as_rule(text: str) -> str:
    try:
        is_rule = isinstance(json.loads(text), dict) if text.startswith("{") else bool(rule_of(text, 1))
    except (KeyError, ValueError):
        is_rule = False
    if not is_rule:
        raise ValueError(
            f"give one of {', '.join(RULES)}, with parameters as in linear:factor=2, or a rule in JSON"
        )
    return text


def _as_frequencies(text: str) -> Any:
    name, *options = text.split(":")
    value = _true_or(*(n for n in FREQUENCIES if n is not True))(name)
    if options and (options[0] not in ARRAY_DTYPES or options[1:] not in ([], ["heads"])):
        raise ValueError(f"give one of {', '.join(ARRAY_DTYPES)} after the colon, or one with :heads")
    return text if options else value


def text_of(value: Any) -> str:
    """Return a value as ``--case`` reads it."""
    if isinstance(value, tuple):
        return ("/" if isinstance((*value, 0)[0], tuple) else ",").join(map(text_of, value)) or "none"
    return "scalar" if value == "" else str(value)


# ---- the capabilities that values need ----

_EVEN_WIDTHS = ("narrow_heads", "widths", "wide_heads")


def _needs_of_rows(rows: tuple[int, ...]) -> Iterator[str]:
    if len(rows) != len(SIZES):
        yield f"ranks[{len(rows) + 1}]"
    if 0 in rows:
        yield f"zero_size[{dict(zip((0, 1, 2), EMPTY, strict=True)).get(rows.index(0), 'rows')}]"


def needs_of_width(width: int) -> Iterator[str]:
    """Yield the capabilities that a head_dim needs: all of the even widths, if none names this head_dim."""
    if width % 2:
        yield "odd_width"
    elif width in ALL_WIDTHS:
        yield from (f"{name}[{width}]" for name in _EVEN_WIDTHS if str(width) in PARTS[name])
    else:
        yield from _EVEN_WIDTHS[:2]


def needs_of_shape(shape: str) -> Iterator[str]:
    """Yield the capabilities that positions of a shape, a name in `SHAPES`, need."""
    if len(shape) > 1:
        yield "offset_positions"
    if len(shape) > 1 and "1" not in shape:  # else a part of `broadcast_positions` is needed, which is tried
        yield "batch_positions" if len(shape) == 2 else "head_positions"
    if "1" in shape or not shape:
        yield from (f"broadcast_positions[{shape or 'scalar'}]", "any_positions")


_PYTHON = PARTS["python_positions"]


def _needs_of_kind(kind: str) -> Iterator[str]:
    if kind.startswith("python"):
        python_type = kind.rpartition("_")[2]
        yield from ("any_positions", f"python_positions[{python_type if python_type in _PYTHON else 'list'}]")
    if "float" in kind:
        yield from ("any_positions", "float_positions")
    elif kind in PARTS["narrow_positions"]:
        yield f"narrow_positions[{kind}]"


def _needs_of_order(order: Any) -> Iterator[str]:
    yield "any_positions"
    if isinstance(order, tuple):
        numbers = np.array(order)
        yield from ("negative_positions",) if numbers.min() < 0 else ()
        yield from ("wide_positions",) if numbers.max() >= 2**32 else ()


def _needs_of_rule(text: str) -> tuple[str, ...]:
    rope_type = json.loads(text).get("rope_type") if text.startswith("{") else text.partition(":")[0]
    return "scaling", f"scaling[{rope_type}]"


def _needs_of_frequencies(value: Any) -> Iterator[str]:
    yield "inv_freq"
    if is_in_array(value):
        yield from ("array_frequencies", *({*value.split(":")} & {*DTYPES} - {"float32"}))


def _needs_of_tuple(value: Any) -> tuple[str, ...]:
    return "tuple", f"tuple[{TUPLES[value]}]", *(["mixed_dtypes"] if value == TWO_DTYPES else [])


def _field(name: str, *levels: Any, read: Callable[[str], Any], **extra: Any) -> Factor:
    """Return the factor of a field, which needs the capability of the same name."""
    return Factor(None, levels, read, extra.pop("needs", lambda value: (name,)), is_field=True, **extra)


def _halvings(low: int, step: int = 1) -> Callable[[Any], Iterator[int]]:
    """Return a function of numbers from `low` to a number, each nearer to it: 1, 1/2, 3/4, ... of the way."""

    def simpler(number: int) -> Iterator[int]:
        distance = max(number - low, 0) // step
        yield from (number - step * (distance >> n) for n in range(distance.bit_length()))

    return simpler


def _simpler_rows(rows: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield smaller sizes along each axis."""
    for axis, size in enumerate(rows):
        yield from ((*rows[:axis], smaller, *rows[axis + 1 :]) for smaller in _halvings(1)(size))


def _simpler_start(start: int) -> Iterator[int]:
    yield from _halvings(2, 2)(start)  # the rest of the head has to be even
    yield from _halvings(1)(start)


def _simpler_reach(reach: int) -> Iterator[int]:
    sign = -1 if reach < 0 else 1
    low = 1 if reach < 0 else NEAR + 1
    yield from (sign * smaller for smaller in _halvings(low)(abs(reach)) if abs(reach) > low)


def _as_dim(text: str) -> Any:
    return text if text in ("most", "all", "half_of_it") else _as_int(text)


# `_cover.resolved` replaces "other" (the pairing that is not the usual one), "most", "all" and "half_of_it".
_PAIRING = _one_of("interleaved", "half", "other")
_KINDS = (*PARTS["narrow_positions"], "python", "float", "python_float", "float64")

FACTORS: dict[str, Factor] = {
    "dtype": Factor("float32", DTYPES, _one_of(*DTYPES), lambda value: (value,), meaning="the dtype of x"),
    # (B, H, S): all different, one row, B equal to H, H equal to S, one head, all 1; and other ranks.
    "rows": Factor(
        SIZES,
        ((2, 3, 1), (3, 3, 5), (2, 5, 5), (2, 1, 5), (1, 1, 1), (5,), (3, 5), (2, 2, 3, 5), (1, 2, 1, 2, 3)),
        _as_rows,
        _needs_of_rows,
        simpler=_simpler_rows,
        meaning="sizes of x but head_dim, the sequence last: `2,3,5` is (B, H, S); `none` for a vector",
    ),
    "width": Factor(
        WIDTH,
        (),
        _as_int,
        needs_of_width,
        simpler=_halvings(WIDTH, 2),
        meaning="head_dim: any number from 2 on",
    ),
    "positions": Factor(
        "S", SHAPES[1:], _as_shape, needs_of_shape, meaning="the axes of positions, `1` for an axis of size 1"
    ),
    "kind": Factor(
        "int64",
        _KINDS,
        _one_of(*_KINDS, "float32", "python_float_tuple", *(f"python_{name}" for name in _PYTHON)),
        _needs_of_kind,
        meaning="the dtype of positions; `python` for a list, `float` for float32, or float64 as x",
    ),
    # Positions are a few numbers drawn from 0 to this one, or from half of it if it is beyond NEAR.
    "reach": Factor(
        NEAR,
        (FAR, -NEAR),
        _as_int,
        lambda value: ("any_positions", "negative_positions") if value < 0 else (),
        simpler=_simpler_reach,
        meaning="the largest position, or the smallest if it is negative",
    ),
    "order": Factor(
        None,
        tuple(ORDERS),
        _as_order,
        _needs_of_order,
        meaning="the order of the positions in a row, or each of them: `5,0,9,2`, and `5,0/9,2` for two "
        "batches; by default few at random",
    ),
    # Each library has its own levels: see `_cover.levels_of`.
    "layout": Factor(
        needs=lambda value: ("strides",),
        meaning="the memory of x: a view of a larger array, strides, alignment, broadcast axes",
    ),
    "pos_layout": Factor(
        None,
        POSITION_LAYOUTS,
        _one_of(*POSITION_LAYOUTS),
        lambda value: ("strides", "any_positions"),
        meaning="the memory of positions",
    ),
    "numbers": Factor(
        None,
        NUMBERS,
        _one_of(*NUMBERS),
        lambda value: ("nonfinite",) if value in ("nan", "infinity") else (),
        meaning="the elements of x: near the ends of the dtype's range, not finite, or (1, 0, 0, ...)",
    ),
    "seq_axis": _field("seq_axis", -3, 1, -2, -4, 0, read=_as_int, simpler=lambda value: (-3,)),
    "base": _field("base", 500.0, 1_000_003.5, 10.0, read=_as_float, simpler=lambda value: (500.0,)),
    "rotary_dim": _field("rotary_dim", 8, 4, "all", read=_as_dim, simpler=_halvings(2, 2)),
    "rotary_start": _field("rotary_start", 4, 3, read=_as_int, simpler=_simpler_start),
    "pairing": _field("pairing", "other", "half", "interleaved", read=_PAIRING),
    "out_pairing": _field("out_pairing", "other", "half", "interleaved", read=_PAIRING),
    "inv_freq": _field(
        "inv_freq",
        True,
        "True:float32",
        "any_size:float64",
        "True:float32:heads",
        read=_as_frequencies,
        needs=_needs_of_frequencies,
        simpler=lambda value: ("True:float32", value.removesuffix(":heads")) if is_in_array(value) else (),
    ),
    "attention_factor": _field("attention_factor", 1.1, 0.7, read=_as_float, simpler=lambda value: (2.0,)),
    "scaling": _field(
        "scaling",
        "yarn",
        "ntk",
        "linear",
        read=_as_rule,
        needs=_needs_of_rule,
        simpler=lambda value: ("linear", "ntk", "yarn"),
    ),
    "axes": _field(
        "axes", "blocks", "alternating", read=_one_of(*AXES), needs=lambda value: ("axes", "any_positions")
    ),
    "inverse": _field("inverse", True, read=_true_or()),
    "in_tuple": Factor(
        None,
        (True,),
        _true_or(*(name for name in TUPLES if name is not True)),
        _needs_of_tuple,
        simpler=lambda value: (True,),
        meaning="x is one of several arrays in a tuple",
    ),
    "gradient": Factor(
        None,
        COTANGENTS,
        _one_of(*COTANGENTS, *WAYS_TO_ASK),
        lambda value: ("gradient", "no_grad") if value == "parameter" else ("gradient",),
        simpler=lambda value: ("contiguous",),
        meaning="the gradient is judged too, for a cotangent of this memory; `sum` is one number broadcast",
    ),
}
FIELDS = tuple(name for name, factor in FACTORS.items() if factor.is_field)
# Fields that keep the shapes of x and positions, and change no frequency but by a number.
SIMPLE_FIELDS = (
    "base", "rotary_dim", "rotary_start", "pairing", "out_pairing", "attention_factor", "inverse",
)  # fmt: skip
# How many levels of each field, and of tuples, covers take.
FEW_FIELDS = dict.fromkeys((*FIELDS, "in_tuple"), 1) | {"seq_axis": 2, "inv_freq": 2, "scaling": 3, "axes": 2}


class CallFactors:
    """A call as a value: a value for each factor, read as attributes."""

    __slots__ = ("_values",)

    def __init__(self, **values: Any):
        self._values = tuple({**_PLAIN, **values}.values())

    def __getattr__(self, name: str) -> Any:
        if name not in FACTORS:
            raise AttributeError(name)
        return self._values[_PLACES[name]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallFactors) and self._values == other._values

    def __hash__(self) -> int:
        return hash(self._values)

    def __repr__(self) -> str:
        return f"CallFactors({self.text(CallFactors())})"

    def values(self) -> dict[str, Any]:
        """Return the value of each factor."""
        return dict(zip(FACTORS, self._values, strict=True))

    def replace(self, **values: Any) -> CallFactors:
        """Return a call with other values for some factors."""
        return CallFactors(**{**self.values(), **values})

    def differing(self, plain: CallFactors) -> list[str]:
        """Return the names of the factors in which two calls differ."""
        factor_values = zip(FACTORS, self._values, plain._values, strict=True)
        return [name for name, value, plain_value in factor_values if value != plain_value]

    def text(self, plain: CallFactors) -> str:
        """Return the factors that differ from a plain call, as `read_call` reads them."""
        return " ".join(f"{name}={text_of(getattr(self, name))}" for name in self.differing(plain))


_PLACES = {name: place for place, name in enumerate(FACTORS)}
_PLAIN = {name: factor.plain for name, factor in FACTORS.items()}


def read_call(text: str, plain: CallFactors) -> CallFactors:
    """Return the call that a text describes; factors that it leaves out are as in `plain`.

    Raise ValueError for an unknown factor, or a value that cannot be read.
    """
    values: dict[str, Any] = {}
    for factor in text.split():
        name, equals, value = factor.partition("=")
        if name not in FACTORS or not equals:
            names = ", ".join(FACTORS)
            raise ValueError(f"case: cannot read {factor!r}; give factors as NAME=VALUE, of {names}")
        if name in values:
            raise ValueError(f"case: {name} is given twice; give each factor once")
        try:
            values[name] = FACTORS[name].read(value)
        except ValueError as error:
            raise ValueError(f"case: cannot read {factor!r}: {error}") from None
    return plain.replace(**values)


def needs_of(call: CallFactors, plain: CallFactors) -> set[str]:
    """Return the capabilities that a call needs, and a plain call does not."""
    return {
        capability
        for name in call.differing(plain)
        if (value := getattr(call, name)) is not None
        for capability in FACTORS[name].needs(value)
    }


# ---- fields and shapes of a call ----


def num_pairs(call: CallFactors, defaults: Mapping[str, Any]) -> int:
    """Return the number of rotated pairs, for the fields of a call without fields."""
    if call.rotary_dim is not None:
        return int(call.rotary_dim) // 2
    for name, count in (("inv_freq", len), ("axes", lambda axes: len(axes["coordinates"]))):
        if defaults.get(name) is not None:
            return int(count(defaults[name]))
    return int(defaults.get("rotary_dim") or call.width - first_feature(call, defaults)) // 2


def first_feature(call: CallFactors, defaults: Mapping[str, Any]) -> int:
    """Return the index of the first rotated feature."""
    start = call.rotary_start
    return int(start if start is not None else defaults.get("rotary_start") or 0)


def fields_of(call: CallFactors, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a call, for a target that has `defaults` for fields that are left out."""
    spec = {name: getattr(call, name) for name in FIELDS if getattr(call, name) is not None}
    pairs = num_pairs(call, defaults)
    builders: dict[str, Callable[[Any], Any]] = {
        "inv_freq": lambda value: frequencies_of(value, pairs, heads=call.rows[-2] if call.rows[1:] else 1),
        "scaling": lambda text: rule_of(text, pairs),
        "axes": lambda name: AXES[name](pairs),
    }
    return {name: builders[name](value) if name in builders else value for name, value in spec.items()}


def shape_of_positions(call: CallFactors) -> tuple[int, ...]:
    """Return the shape of a call's positions, without coordinates."""
    sizes = dict(zip("BH", call.rows[:-1], strict=False)) | {"S": (call.rows or (1,))[-1], "1": 1}
    return tuple(sizes[axis] for axis in call.positions)
