"""Parts of capabilities, such as `ranks[1]` and `widths[80]`: a target may claim only some of the parts.

A part is a factor of a call at one level. A capability is declined if all of its parts are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ._rules import RULES

# Sizes of x without the features, for one to six axes.
RANKS: tuple[tuple[int, ...], ...] = ((), (5,), (3, 5), (2, 3, 5), (2, 2, 3, 5), (1, 2, 2, 1, 5))
# Sizes (B, H, S), one of them 0.
EMPTY = {"batch": (0, 3, 5), "heads": (2, 0, 5), "rows": (2, 3, 0)}
NARROW_WIDTHS = (2, 4, 6, 8, 10, 12, 14)
MODEL_WIDTHS = (
    16, 24, 32, 36, 40, 44, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 144, 160, 176, 192, 224, 256,
)  # fmt: skip
WIDE_WIDTHS = (320, 384, 512, 576, 1024, 2048)
# The widths that are tried first where each is compiled.
FIRST_WIDTHS = (2, 4, 6, 16, 24, 36, 64, 80, 256, 512)
ALL_WIDTHS = (*NARROW_WIDTHS, *MODEL_WIDTHS, *WIDE_WIDTHS)
# Positions that are broadcast: a scalar, or axes of size 1 in place of a B, H or S.
BROADCAST = ("scalar", "1", "1S", "B1", "11", "B1S", "1HS", "BH1")


def _levels(factor: str, levels: Iterable[Any]) -> dict[str, str]:
    return {str(level): f"{factor}={level}" for level in levels}


def _rows(sizes: Iterable[int]) -> str:
    return f"rows={','.join(map(str, sizes))}"


# The parts by their labels; each with the values of factors, as `_factors.read_call` reads them.
PARTS: dict[str, dict[str, str]] = {
    "ranks": {"1": "rows=none positions=scalar"} | {str(len(lead) + 1): _rows(lead) for lead in RANKS[1:]},
    "narrow_heads": _levels("width", NARROW_WIDTHS),
    "widths": _levels("width", MODEL_WIDTHS),
    "wide_heads": _levels("width", WIDE_WIDTHS),
    "broadcast_positions": _levels("positions", BROADCAST),
    "python_positions": {
        "int": "kind=python_int positions=scalar",
        "range": "kind=python_range order=ascending",
        "list": "kind=python_list",
        "tuple": "kind=python_tuple",
    },
    "narrow_positions": _levels("kind", ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32")),
    "float_positions": _levels("kind", ("float32", "float64")),
    "tuple": {"1": "in_tuple=one", "2": "in_tuple=True", "3": "in_tuple=three"},
    "scaling": _levels("scaling", RULES),
    "zero_size": {label: _rows(sizes) for label, sizes in EMPTY.items()},
}
PART_NAMES = tuple(f"{name}[{label}]" for name, labels in PARTS.items() for label in labels)


def whole_of(name: str) -> str:
    """Return the capability of a part, or the name itself."""
    return name.partition("[")[0]


def parts_of(name: str) -> tuple[str, ...]:
    """Return the names of a capability's parts: none for a part, or for a capability without parts."""
    return tuple(f"{name}[{label}]" for label in PARTS.get(name, ()))


def with_parts(reasons: Mapping[str, str]) -> dict[str, str]:
    """Add the parts of declined capabilities, and the capabilities whose parts are all declined."""
    all_reasons = dict(reasons)
    for name in PARTS:
        names = parts_of(name)
        if name in all_reasons:
            all_reasons.update({part: all_reasons.get(part, all_reasons[name]) for part in names})
        elif all(part in all_reasons for part in names):
            reasons_of_parts = [all_reasons[part] for part in names]
            all_reasons[name] = max(dict.fromkeys(reasons_of_parts), key=reasons_of_parts.count)
    return all_reasons


def parts_joined(names: Collection[str]) -> list[str]:
    """Return names with the parts of one capability together: "ranks[1, 2]"."""
    groups: dict[str, list[str]] = {}
    for name in names:
        capability, _, label = name.partition("[")
        groups.setdefault(capability, []).extend([label[:-1]] if label else [])
    return [f"{name}[{', '.join(labels)}]" if labels else name for name, labels in groups.items()]
