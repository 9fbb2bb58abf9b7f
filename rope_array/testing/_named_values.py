"""Named values of factors: rules, frequencies, axes, orders and shapes of positions, memory, tuples."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._libraries import rounded
from ._rules import RULES

# The lists of LongRoPE, for a number of pairs.
LISTS: dict[str, Callable[[int], list[float]]] = {
    "rising": lambda pairs: [1.0 + i / 8 for i in range(pairs)],
    "steep": lambda pairs: [2.0 + i for i in range(pairs)],
    "ones": lambda pairs: [1.0] * pairs,
    "last": lambda pairs: [1.0] * (pairs - 1) + [3.0],
}
# Frequencies of the caller's: in no order, one of them negative; then some that differ in one item.
FREQUENCIES: dict[Any, Callable[[int], tuple[float, ...]]] = {
    True: lambda pairs: tuple(1.75 * 0.61**i * (-1) ** (i == 2) for i in range(pairs)),
    "mixed": lambda pairs: tuple((0.1, 0.2, 0.0, -0.4)[i % 4] for i in range(pairs)),
    "halving": lambda pairs: tuple(0.5**i for i in range(pairs)),
    "other_last": lambda pairs: _with_item(tuple(0.5**i for i in range(pairs)), pairs - 1, 0.75),
    "other_first": lambda pairs: _with_item(tuple(0.5**i for i in range(pairs)), 0, 0.75),
    "other_middle": lambda pairs: _with_item(tuple(0.5**i for i in range(pairs)), (pairs - 1) // 2, 0.75),
    "any_size": lambda pairs: ((-70000.7, 1e-4, 0.0, 3e-7, 5.3, -1e-3, 812.9, 2e-12) * pairs)[:pairs],
}
# Frequencies with one of these dtypes after a colon are handed over in an array of x's library.
ARRAY_DTYPES = ("float32", "float64", "float16", "bfloat16")


def _with_item(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


class FrequenciesInArray(tuple[float, ...]):
    """Frequencies that a target gets in an array of x's library; if heads differ, the first head's."""

    dtype: str  # the dtype of the array, which holds the numbers exactly
    heads: tuple[tuple[float, ...], ...]  # the frequencies of each head; none if the heads do not differ
    array: Any  # the array, once it is made

    def __repr__(self) -> str:
        return f"an array of {self.dtype} with {super().__repr__()}{' for head 0' if self.heads else ''}"


def is_in_array(value: Any) -> bool:
    """Return whether a value of the factor inv_freq is an array of x's library: "halving:float32"."""
    return ":" in str(value)


def differs_by_head(value: Any) -> bool:
    """Return whether a value of the factor inv_freq has other frequencies for each head."""
    return str(value).endswith(":heads")


def frequencies_of(value: Any, pairs: int, heads: int) -> tuple[float, ...]:
    """Return the frequencies that a value of the factor inv_freq names, for numbers of pairs and of heads."""
    name, *options = str(value).split(":")
    numbers = FREQUENCIES[name == "True" or name](pairs)
    if not options:
        return numbers
    factors = 1 + np.arange(heads if differs_by_head(value) else 1)[:, None] / 8
    rows = tuple(map(tuple, rounded(np.array(numbers) * factors, options[0]).tolist()))
    frequencies = FrequenciesInArray(rows[0])
    frequencies.dtype, frequencies.heads = options[0], rows if differs_by_head(value) else ()
    return frequencies


def arrays_in(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays among the fields of a call."""
    return {name: value.array for name, value in spec.items() if isinstance(value, FrequenciesInArray)}


def _with_reversed_part(row: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a row with its middle third in reverse order."""
    third = len(row) // 3
    return np.concatenate([row[:third], row[third : 2 * third][::-1], row[2 * third :]])


def _sections(pairs: int) -> tuple[int, ...]:
    """Return the coordinate of each pair, in three runs, the first the longest or the last."""
    first = pairs // 2
    sizes = (first, (pairs - first + 1) // 2, (pairs - first) // 2)
    return tuple(a for a, size in enumerate(sizes) for _ in range(size))


def _in_threes(pairs: int) -> tuple[int, ...]:
    """Return coordinates that alternate, until the second and third coordinate have all of their pairs."""
    counts = np.bincount(_sections(pairs), minlength=3)
    return tuple(i % 3 if i < 3 * counts[i % 3] else 0 for i in range(pairs))


def _halves(pairs: int) -> tuple[int, ...]:
    return (0,) * (pairs // 2) + (1,) * (pairs - pairs // 2)


# Axes for a number of pairs. The models are named in docs/axes.md.
AXES: dict[str, Callable[[int], dict[str, Any]]] = {
    "blocks": lambda n: {"coordinates": _halves(n), "widths": (n, n), "blocks": 2},
    "alternating": lambda n: {"coordinates": ((0, 1) * n)[:n], "count": 2},
    "chunks": lambda n: {"coordinates": _sections(n), "count": 3},
    "interleaved": lambda n: {"coordinates": _in_threes(n), "count": 3},
    "in_turn": lambda n: {"coordinates": ((0, 1, 2) * n)[:n], "count": 3},
    "slow_last": lambda n: {"coordinates": (1, 2) * (n // 4) + (0,) * (n - 2 * (n // 4)), "count": 3},
    "series": lambda n: {"coordinates": _halves(n), "widths": (n, n), "count": 2},
    "three_series": lambda n: {"coordinates": (0, 0, 2, 2) + (1,) * (n - 4), "widths": (4, 2 * n - 8, 4)},
    "series_in_turn": lambda n: {"coordinates": (1, 0) * (n // 2), "widths": (n, n)},
    "indices": lambda n: {"coordinates": _halves(n), "indices": (*range(0, n, 2), *range(1, n, 2))},
    "gaps": lambda n: {"coordinates": ((0, None, 1, None) * n)[:n]},
    "gaps_of_four": lambda n: {"coordinates": ((0, None, 1, None) * n)[:n], "count": 4},
    "other_last": lambda n: {"coordinates": (*((0, 1) * n)[: n - 1], n % 2), "count": 2},
    "other_first": lambda n: {"coordinates": (1, *((0, 1) * n)[1:n]), "count": 2},
}
# Axes that need an even number of pairs, and more than four.
OF_EVEN_PAIRS = {"blocks", "series", "series_in_turn", "indices"}

# Orders of the positions in a row of n: packed sequences, a prompt that is padded on the left, and others.
ORDERS: dict[str, Callable[[int], NDArray[np.int64]]] = {
    "ascending": np.arange,
    "descending": lambda n: np.arange(n)[::-1],
    "packed": lambda n: np.arange(n) % (n // 2 + 1),
    "padded": lambda n: np.where(np.arange(n) < n // 2, 1, np.arange(n) - n // 2),
    "same_ends": lambda n: np.arange(n) * (np.arange(n) < n - 1),
    "same": lambda n: np.zeros(n, int),
}
# Orders of as many positions as rows, of which covers take none: their exact angles take long.
LONG_ORDERS: dict[str, Callable[[int], NDArray[np.int64]]] = {
    "repeated": lambda n: np.arange(n) % 600,
    "repeated_and_reversed": lambda n: _with_reversed_part(np.arange(n) % 600),
    "reversed_in_part": lambda n: _with_reversed_part(np.arange(n)),
}
# Axes of positions, as sizes of (B, H, S) or 1.
SHAPES = ("S", "", "1", "BS", "1S", "B1", "11", "BHS", "B1S", "1HS", "BH1")
# Memory of the cotangent; and other ways to ask for a gradient: of a parameter, twice, after another call, of
# each array of a tuple alone, and of a gradient.
COTANGENTS = ("contiguous", "transposed", "broadcast", "every_second", "sum")
WAYS_TO_ASK = ("parameter", "twice", "later", "alone", "second")
# Memory of positions: a view, or memory of an odd alignment.
POSITION_LAYOUTS = (
    "column", "reversed", "third", "transposed", "part", "expanded", "shifted", "unaligned",
    "the_other_byte_order",
)  # fmt: skip
# Layouts of an x that is broadcast, with the axes along which it repeats.
BROADCAST_AXES = {
    "broadcast": (0,), "broadcast_heads": (1,), "broadcast_batches_and_heads": (0, 1), "broadcast_rows": (2,),
}  # fmt: skip
# The value of `in_tuple` for a tuple of arrays of two dtypes.
TWO_DTYPES = "two_dtypes"
TUPLES: dict[Any, int] = {True: 2, TWO_DTYPES: 2, "one": 1, "twice": 2, "three": 3, "fewer_heads": 2}
# Numbers of x: near the ends of the dtype's range, some that are not finite, or (1, 0, 0, ...).
NUMBERS = ("huge", "tiny", "nan", "infinity", "unit")


def rule_of(text: str, pairs: int) -> dict[str, Any]:
    """Return the scaling rule of a text: "yarn:factor=40:truncate=False" changes some parameters; or JSON."""
    if text.startswith("{"):
        return dict(json.loads(text))
    rope_type, *changes = text.split(":")
    changed = {name: _parameter(value) for name, value in (change.split("=") for change in changes)}
    rule = {"rope_type": rope_type, **RULES[rope_type].parameters, **changed}
    return {name: LISTS[value](pairs) if value in LISTS else value for name, value in rule.items()
            if value is not None}  # fmt: skip


def _parameter(text: str) -> Any:
    return text if text in LISTS else json.loads(text.lower())
