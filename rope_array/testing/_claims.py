"""The capabilities that a target can claim, and the ones that its declaration leaves out.

Calls that show whether undeclared code has a capability are made in `_trials`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ._adapt import takes_two
from ._capability_parts import PARTS, TABLE
from ._factors import DTYPES, FIELDS, WIDTH
from ._libraries import MODES as MODES_OF_LIBRARIES

Target = Any  # of `_target`, which imports this module

NOT_OF_NUMPY = "not a dtype of NumPy's own; name it in dtypes"
# Fields of a call, not of an embedding: `fixed` cannot hold them.
CALL_FIELDS = ("inverse", "seq_axis")
DEFAULTS: dict[str, Any] = {"base": 10000.0, "pairing": "interleaved", "inverse": False, "seq_axis": -2}

CAPABILITIES = {name: capability.words for name, capability in TABLE.items()}
# The trial call of each capability that has one, and of each part.
TRIALS = {name: c.trial for name, c in TABLE.items() if c.trial is not None and not c.parts}
for _name in (name for name in PARTS if TABLE[name].trial is not None):
    TRIALS |= {f"{_name}[{label}]": call for label, call in PARTS[_name].items()}
MODES = (*MODES_OF_LIBRARIES, "shards")
# Ranges of positions: the capability that each needs, its first and its last position.
RANGES = {
    "small": ("", 0, 2**12 - 1),
    "2^16": ("reaches_2e16", 2**12, 2**16),
    "2^20": ("reaches_2e20", 2**16 + 1, 2**20),
    "2^24": ("reaches_2e24", 2**20 + 1, 2**24 + 3),
    "int32": ("reaches_int32", 2**24 + 4, 2**31 - 1),
}
REACH = {capability: first for capability, first, _ in RANGES.values() if capability}
_OF_ONE_SHAPE = ("broadcast_positions", "head_positions", "python_positions", "ranks")
# The capabilities that each kind of positions takes away.
POSITION_KINDS = {
    "any": (),
    "offset": ("any_positions",),
    "arange": ("any_positions", "offset_positions"),
    "batch": _OF_ONE_SHAPE,
    "row": ("batch_positions", *_OF_ONE_SHAPE),
}
_KIND_TEXTS = {"batch": "takes positions of shape (B, S) only", "row": "takes positions of shape (1, S) only"}
_POSITION_NAMES = tuple(
    name for name in CAPABILITIES if name.endswith("_positions") and name not in POSITION_KINDS["arange"]
)


def takes_any(target: Target) -> bool:
    """Return whether a target takes positions in any order."""
    return "any_positions" not in POSITION_KINDS[target.positions]


# ---- signatures ----


def parameters_of(rotate: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the fields that a signature names, and whether it takes any others."""
    try:
        parameters = inspect.signature(rotate).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return {}, True
    named = {
        name: p
        for name, p in parameters.items()
        if name in FIELDS and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
    }
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def signature_defaults(rotate: Callable[..., Any]) -> dict[str, Any]:
    """Return the fields that a callable's signature gives a default other than None."""
    named, _ = parameters_of(rotate)
    return {
        name: p.default for name, p in named.items() if p.default is not p.empty and p.default is not None
    }


def specific_needs(capabilities: Collection[str]) -> set[str]:
    """Return the needs that a check is about. A refused call shows a lack of these needs only."""
    return {*capabilities} - {*DTYPES, "values", "any_positions", "offset_positions", "widths", "ranks[5]"}


# ---- declarations ----


def by_declaration(target: Target) -> dict[str, str]:
    """Return the capabilities and parts that a declaration leaves out, with the reason; no fields."""
    return {
        **target.arrays.lacks,
        **by_library(target),
        **_by_dtypes(target),
        **_by_positions(target),
        **_by_arguments(target),
        **_by_width(target),
        **({} if target.takes_arrays else {"array_frequencies": "applies only if --require names it"}),
    }


def by_library(target: Target) -> dict[str, str]:
    """Return the parts that no array of the target's library can have, with the reason."""
    lib = target.arrays
    narrow = (dtype for dtype in PARTS["narrow_positions"] if dtype not in lib.integers)
    reasons = {f"narrow_positions[{dtype}]": f"{lib.name} has no {dtype}" for dtype in narrow}
    if "float64" in lib.lacks:
        reasons["float_positions[float64]"] = lib.lacks["float64"]
    if target.library.endswith(":compile"):
        reasons["jit"] = "every call is compiled"
        reasons["jvp"] = "torch.compile takes no forward mode"
    return reasons


def _by_dtypes(target: Target) -> dict[str, str]:
    if target.dtypes is not None:
        reasons = {name: "not among its dtypes" for name in DTYPES if name not in target.dtypes}
        return reasons | ({"mixed_dtypes": "takes one dtype"} if len(target.dtypes) == 1 else {})
    if target.arrays.name.startswith("numpy"):
        return {"bfloat16": NOT_OF_NUMPY}
    return {}


def _by_positions(target: Target) -> dict[str, str]:
    text = _KIND_TEXTS.get(target.positions, f"takes positions {target.positions} only")
    reasons = dict.fromkeys(POSITION_KINDS[target.positions], text)
    if target.positions == "arange":
        reasons.update(dict.fromkeys(_POSITION_NAMES, "takes no positions: rows count from 0"))
        beyond = ["reaches_2e24", "reaches_int32"]
        beyond += ["reaches_2e20"] if target.width_of(0) > 2 * WIDTH else []
        reasons.update(dict.fromkeys(beyond, "would need as many rows as positions"))
    too_far = f"takes positions up to {target.reach:,}"
    reasons.update({name: too_far for name, first in REACH.items() if target.reach < first})
    if target.reach == 0:
        reasons["negative_positions"] = "takes position 0 only"
    if target.reach < 2**32:
        reasons["wide_positions"] = too_far
    return reasons


def _by_arguments(target: Target) -> dict[str, str]:
    reasons = {"keeps_x": "writes its result into x"} if target.in_place else {}
    if target.attention_inputs is None:
        reasons |= dict.fromkeys(("attention_inputs", "caches", "out"), "no attention_inputs is given")
    if takes_two(target.arguments):
        reasons.update(dict.fromkeys(("tuple[1]", "tuple[3]"), "takes q and k"))
    if target.layout != "...sd":
        reasons.update(dict.fromkeys(("ranks", "seq_axis"), f"takes x as ({', '.join(target.layout)})"))
    if target.angles != "exact":  # capabilities of the contract
        reasons.update(dict.fromkeys(("same_bits", "nonfinite"), "claimed with exact angles only"))
    return reasons


def _by_width(target: Target) -> dict[str, str]:
    few = f"takes a head_dim of {', '.join(map(str, target.taken_widths))} only"
    reasons = {"odd_width": few} if target.head_dim is not None else {}
    if (width := target.width_of(WIDTH)) < WIDTH:
        reasons["axes"] = f"the checks of axes need a head_dim of 16 or more, not {width}"
        if width < 4:
            reasons["scaling"] = f"the checks of scaling need a head_dim of 4 or more, not {width}"
    return {**reasons, **dict(_refused_widths(target, few))}


def least_width(target: Target, width: int) -> int:
    """Return `width`, widened to hold the slice that a target's built-in fields rotate."""
    start, rotated = int(target.defaults.get("rotary_start") or 0), target.defaults.get("rotary_dim")
    if rotated is not None:
        return max(width, start + int(rotated))
    if (frequencies := target.defaults.get("inv_freq")) is not None:
        return start + 2 * len(frequencies)
    if not start:
        return width
    width = max(width, start + WIDTH)  # room for every rotary_dim of the checks
    return width + (width - start) % 2


def _refused_widths(target: Target, few: str) -> Iterator[tuple[str, str]]:
    for name in ("narrow_heads", "widths", "wide_heads"):
        for label in PARTS[name]:
            width = least_width(target, int(label))
            if width > int(label) + 1:
                yield f"{name}[{label}]", f"needs a head_dim of at least {width}"
            elif target.taken_widths and width not in target.taken_widths:
                error = target.refused_widths.get(width) if len(target.taken_widths) > 4 else None
                yield f"{name}[{label}]", f"refuses it: {error}" if error else few


def undeclared_fields(target: Target) -> dict[str, str]:
    """Return the fields that the declaration, or else the signature, does not name, with the reason."""
    if target.fields is not None:
        return {name: "not among its fields" for name in FIELDS if name not in target.fields}
    named, takes_others = parameters_of(target.rotate)
    return {} if takes_others else {n: "its signature does not name it" for n in FIELDS if n not in named}


# ---- errors and calls in words ----


def one_line(error: BaseException, length: int = 160) -> str:
    """Describe an exception in one line of printable characters."""
    try:
        text = str(error).strip()
    except Exception:  # its own __str__ raises
        text = "(its message cannot be read)"
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return shorten(text, length)


def shorten(text: str, length: int = 400) -> str:
    """Return a text as one line of at most `length` printable characters."""
    text = " ".join(text.split())[: 2 * length]
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return text if len(text) <= length else f"{text[: length - 3]}..."


def describe(x: Any, pos: Any, spec: Mapping[str, Any]) -> str:
    """Describe a call in a few words."""
    try:
        fields = "".join(f", {name}={shorten(repr(value), 60)}" for name, value in spec.items())
        return f"x {_array_text(x)}, positions {_array_text(pos)}{fields}"
    except Exception:  # an object that cannot be described
        return "arguments that cannot be described"


def _array_text(value: Any) -> str:
    """Return "float32[2, 3, 5, 16]" for an array."""
    if isinstance(value, tuple | list) and any(hasattr(member, "dtype") for member in value):
        return f"({', '.join(map(_array_text, value))})"
    if not hasattr(value, "dtype"):
        return shorten(repr(value), 60)
    return f"{str(value.dtype).rpartition('.')[2]}{list(value.shape)}"
