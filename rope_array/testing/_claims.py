"""What a target claims: by its declaration, its signature, and what it refuses when it is tried."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ._libraries import Library, rounded

DTYPES = ("float16", "bfloat16", "float32", "float64")
# A valid value of each field of a call that changes the result, for an x of any even width from 6 on.
FIELDS: dict[str, Callable[[int], Any]] = {
    "base": lambda width: 50.0,
    "rotary_dim": lambda width: 2,
    "rotary_start": lambda width: 2,
    "pairing": lambda width: "half",
    "out_pairing": lambda width: "half",
    "inv_freq": lambda width: (0.5,) * (width // 2),
    "attention_factor": lambda width: 2.0,
    "scaling": lambda width: {"rope_type": "linear", "factor": 2.0},
    "axes": lambda width: {"coordinates": tuple(range(2)) * (width // 4) + (0,) * (width // 2 % 2)},
    "inverse": lambda width: True,
    "seq_axis": lambda width: -3,
}
# Those of a call: what is fixed of an embedding cannot be one of them.
OF_A_CALL = ("inverse", "seq_axis")
# Sizes that differ from each other, so that no axis can stand for another; and the usual width.
SIZES = (2, 3, 5)
WIDTH = 16
DEFAULTS: dict[str, Any] = {"base": 10000.0, "pairing": "interleaved", "inverse": False, "seq_axis": -2}

CAPABILITIES = {
    **{name: f"takes {name}" for name in FIELDS},
    "values": "gives values, not only shapes",
    "any_positions": "serves positions in any order",
    "offset_positions": "serves positions that start anywhere",
    "batch_positions": "takes positions of shape (B, S)",
    "head_positions": "takes positions of shape (B, H, S)",
    "broadcast_positions": "takes one position for all, and sizes of 1",
    "python_positions": "takes an int, a range or a list as positions",
    "negative_positions": "serves negative positions",
    "float_positions": "takes float positions",
    "narrow_positions": "takes positions of every integer dtype",
    "wide_positions": "serves positions beyond 32 bits",
    "reaches_2e16": "serves positions beyond 4,095",
    "reaches_2e20": "serves positions beyond 2^16",
    "reaches_2e24": "serves positions beyond 2^20",
    "reaches_int32": "serves positions beyond 2^24",
    "ranks": "takes x of any number of axes",
    "narrow_heads": "takes every even head_dim from 2 on",
    "widths": "takes the usual head_dims, 64 to 256",
    "wide_heads": "takes a head_dim beyond 256",
    "odd_width": "takes an odd head_dim, of which an even part is rotated",
    "zero_size": "takes arrays without elements",
    "strides": "takes arrays of any strides",
    "tuple": "takes several arrays in a tuple",
    "nonfinite": "keeps NaN and infinities in their pair",
    "nonfinite_rows": "keeps NaN and infinities in their vector",
    "same_bits": "gives a row the same bits whatever stands beside it",
    "threads": "is called in several threads at once",
    "gradient": "is differentiable",
    "float16": "takes float16",
    "bfloat16": "takes bfloat16",
    "float32": "takes float32",
    "float64": "takes float64",
    "lazy": "has arrays that are computed later",
    "jit": "is compiled by its library",
}
# The first position that counts as such.
REACH = {
    "reaches_2e16": 2**12,
    "reaches_2e20": 2**16 + 1,
    "reaches_2e24": 2**20 + 1,
    "reaches_int32": 2**24 + 4,
}
SPREAD = {"any": (), "offset": ("any_positions",), "arange": ("any_positions", "offset_positions")}
# Axes before the features, of one to six in all.
RANKS: tuple[tuple[int, ...], ...] = ((), (5,), (3, 5), (2, 3, 5), (2, 2, 3, 5), (1, 2, 2, 1, 5))
# What a callable that declares nothing may refuse, loudly: it is tried, and named as not applicable.
_OPTIONAL: dict[str, Callable[[_Trial], Any]] = {
    "batch_positions": lambda t: t(t.x(), t.rows(2, 5)),
    "head_positions": lambda t: t(t.x(), t.rows(2, 3, 5)),
    "broadcast_positions": lambda t: [t(t.x(), t.rows(*shape)) for shape in ((), (1,), (1, 5), (2, 1))],
    "python_positions": lambda t: [t.raw(t.x(), pos) for pos in (1, range(5), [2, 3, 4, 5, 6])],
    "negative_positions": lambda t: t(t.x(), t.rows(5) - 9),
    "float_positions": lambda t: t(t.x(), t.rows(5) + 0.5),
    "ranks": lambda t: [t(t.x(lead), t.rows(*lead[-1:])) for lead in RANKS],
    "narrow_heads": lambda t: [t(t.x(width=width), t.rows(5)) for width in (2, 4, 6)],
    "widths": lambda t: [t(t.x(width=width), t.rows(5)) for width in (64, 80, 256)],
    "wide_heads": lambda t: t(t.x(width=512), t.rows(5)),
    "odd_width": lambda t: t(t.x(width=WIDTH + 1), t.rows(5), rotary_dim=4),
    "tuple": lambda t: t((t.x(), t.x((2, 1, 5))), t.rows(5)),
    "zero_size": lambda t: [t(t.x(lead), t.rows(lead[-1])) for lead in ((0, 3, 5), (2, 0, 5), (2, 3, 0))],
    "strides": lambda t: t.some(t.lib.strided(t.x())),
    "narrow_positions": lambda t: [t.raw(t.x(), t.pos(t.rows(5), kind)) for kind in t.lib.integers],
    "float16": lambda t: t(t.x(dtype="float16"), t.rows(5)),
    "bfloat16": lambda t: t(t.x(dtype="bfloat16"), t.rows(5)),
    "float64": lambda t: t(t.x(dtype="float64"), t.rows(5)),
}
# How far a callable is tried, up to the first position that it refuses.
_FURTHER = (
    31, 63, 127, 255, 511, 1023, 2047, 2**12 - 1, 2**13 - 1, 2**14 - 1, 2**15 - 1, 2**16, 2**17, 2**20,
    2**24 + 3, 2**31 - 1,
)  # fmt: skip
# What belongs to the contract, and code that forms its angles as products does not claim unless it says so.
_OF_THE_CONTRACT = ("same_bits", "nonfinite", "threads")
_OF_POSITIONS = tuple(
    name for name in CAPABILITIES if name.endswith("_positions") and name not in SPREAD["arange"]
)


def declined(target: Any) -> dict[str, str]:
    """Return every capability that a target does not claim, with the reason."""
    found = {
        **target.arrays.lacks,
        **_by_dtypes(target),
        **_by_positions(target),
        **_by_layout(target),
        **_by_width(target),
        **_by_class(target),
    }
    found = {**_by_fields(target, found), **found, **target.lacks}
    if "rotary_dim" in found:
        found.setdefault("odd_width", f"rotary_dim: {found['rotary_dim']}")
    return {**found, **({} if target.declared or "values" in found else _refused(target, found))}


def reach_of(target: Any) -> int:
    """Return the furthest position that a target serves: as it claims, or up to where it refuses."""
    if target.declared or target.positions == "arange" or "values" in target.arrays.lacks:
        return int(target.furthest)
    trial, served = _Trial(target), 0
    for step in sorted({*(step for step in _FURTHER if step < target.furthest), target.furthest}):
        if _refusal(target, partial(trial, trial.x(), np.arange(step - 4, step + 1))) is not None:
            break
        served = step
    return served or int(target.furthest)  # where it refuses every call, its checks say so


def only_width(target: Any) -> int | None:
    """Return the one head_dim that a callable takes, by trying; None where it takes more, or none."""
    if target.declared or "values" in target.arrays.lacks:
        return None
    trial = _Trial(target)

    def served(width: int) -> bool:
        return _refusal(target, lambda: trial(trial.array((*SIZES, width)), trial.rows(SIZES[-1]))) is None

    usual = target._least_width(WIDTH)
    if all(map(served, (usual, usual + 8, max(64, usual)))):
        return None
    return next(filter(served, (WIDTH, 32, 64, 80, 96, 128, 192, 256)), None)


def _by_dtypes(target: Any) -> dict[str, str]:
    if target.dtypes is not None:
        return {name: "not among its dtypes" for name in DTYPES if name not in target.dtypes}
    if target.arrays.name.startswith("numpy"):
        return {"bfloat16": "not a dtype of NumPy's own; name it in dtypes"}
    return {}


def _by_positions(target: Any) -> dict[str, str]:
    found = dict.fromkeys(SPREAD[target.positions], f"serves positions {target.positions} only")
    if target.positions == "arange":
        found.update(dict.fromkeys(_OF_POSITIONS, "takes no positions: rows count from 0"))
        beyond = (
            "reaches_2e24",
            "reaches_int32",
            *(("reaches_2e20",) if target.width_of(0) > 2 * WIDTH else ()),
        )
        found.update(dict.fromkeys(beyond, "would need as many rows as positions"))
    too_far = f"serves positions up to {target.reach:,}"
    found.update({name: too_far for name, first in REACH.items() if target.reach < first})
    if target.reach < 2**32:
        found["wide_positions"] = too_far
    return found


def _by_layout(target: Any) -> dict[str, str]:
    if target.layout == "...sd":
        return {}
    return dict.fromkeys(("ranks", "seq_axis"), f"takes x as ({', '.join(target.layout)})")


def _by_width(target: Any) -> dict[str, str]:
    if (only := target.only_width) is not None:
        names = ("narrow_heads", "widths", "wide_heads", "odd_width")
        return dict.fromkeys(names, f"takes a head_dim of {only} only")
    if (least := target.width_of(0)) > 2:
        return {"narrow_heads": f"rotates a slice that ends at {least}"}
    return {}


def _by_class(target: Any) -> dict[str, str]:
    if target.angles == "exact":
        return {}
    return dict.fromkeys(_OF_THE_CONTRACT, "promised by the class of exact angles only")


def _parameters(rotate: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
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


def stated_defaults(rotate: Callable[..., Any]) -> dict[str, Any]:
    named, _ = _parameters(rotate)
    return {
        name: p.default for name, p in named.items() if p.default is not p.empty and p.default is not None
    }


def _by_fields(target: Any, found: Mapping[str, str]) -> dict[str, str]:
    if target.fields is not None:
        return {name: "not among its fields" for name in FIELDS if name not in target.fields}
    named, catches = _parameters(target.rotate)
    if not catches:
        return {name: "its signature does not name it" for name in FIELDS if name not in named}
    if target.declared or "values" in found:
        return {}
    reasons = {name: _trial_of_field(target, name, bool(named)) for name in FIELDS if name not in named}
    return {name: reason for name, reason in reasons.items() if reason}


def _trial_of_field(target: Any, name: str, others_are_named: bool) -> str:
    trial = _Trial(target)
    x, pos = trial.x((2, 5, 5)), trial.rows(5)  # as many heads as positions, for seq_axis
    if name == "axes":
        pos = np.stack([pos, pos + 1], -1)
    spec = {name: FIELDS[name](target.width_of(WIDTH))}
    refusal = _refusal(target, lambda: trial(x, pos, **spec))
    if refusal is not None:
        said = isinstance(refusal, NotImplementedError) or (
            isinstance(refusal, TypeError | ValueError | LookupError) and name in str(refusal)
        )
        return f"refuses it: {one_line(refusal)}" if said else ""  # else a fault, which its check will show
    if others_are_named:
        plain_pos = pos[..., 0] if name == "axes" else pos
        with target.arrays.running():
            changed = trial.numbers(trial(x, pos, **spec))
            plain = trial.numbers(trial(x, plain_pos))
        if np.array_equal(changed, plain):
            return "goes to its ** parameter and changes nothing"
    return ""


def _refused(target: Any, found: Mapping[str, str]) -> dict[str, str]:
    """Try what a callable may refuse; return what it does."""
    trial, reasons = _Trial(target), {}
    for name, attempt in _OPTIONAL.items():
        if name not in found and (refusal := _refusal(target, partial(attempt, trial))) is not None:
            reasons[name] = f"refuses it: {one_line(refusal)}"
    return reasons


def _refusal(target: Any, attempt: Callable[[], Any]) -> BaseException | None:
    """Return what a callable raises where it is tried: whatever a refusal is made of."""
    try:
        with target.arrays.running():
            attempt()
    except (Exception, SystemExit) as error:
        return error
    return None


def one_line(error: BaseException, length: int = 160) -> str:
    """Say in one line of printable characters what was raised."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # its own __str__ raises
        text = "(its message cannot be read)"
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return shortened(text, length)


def shortened(text: str, length: int = 400) -> str:
    """Return a text as one line of printable characters, no longer than that."""
    text = " ".join(text.split())[: 2 * length]
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return text if len(text) <= length else f"{text[: length - 3]}..."


class _Trial:
    """Calls of a target, to see what it takes."""

    target: Any
    lib: Library

    def __init__(self, target: Any):
        self.target, self.lib = target, target.arrays

    def x(self, lead: tuple[int, ...] = SIZES, *, width: int = WIDTH, dtype: str = "") -> Any:
        return self.array((*lead, self.target.width_of(width)), dtype)

    def array(self, shape: tuple[int, ...], dtype: str = "") -> Any:
        dtype = dtype or (self.target.dtypes or ["float32"])[0]
        values = np.random.default_rng(0).standard_normal(shape)
        return self.lib.asarray(rounded(values, dtype), dtype)

    def rows(self, *shape: int) -> Any:
        """Return positions of a shape, consecutive along its last axis."""
        start = 0 if self.target.positions == "arange" else 1
        return np.broadcast_to(start + (np.arange(shape[-1]) if shape else np.array(0)), shape)

    def pos(self, values: Any, kind: str) -> Any:
        return self.lib.asarray(np.asarray(values, kind))

    def raw(self, x: Any, pos: Any, **spec: Any) -> Any:
        with np.errstate():  # what the call makes of NumPy's error handling stays its own
            return self.target.call(x, pos, **spec)

    def __call__(self, x: Any, pos: Any, **spec: Any) -> Any:
        kind = "float32" if pos.dtype.kind == "f" else self.lib.integers[0]
        y = self.raw(x, self.lib.asarray(pos.astype(kind)), **spec)
        if isinstance(x, tuple) and not isinstance(y, tuple | list):
            raise TypeError("one array came back for a tuple")
        return y

    def some(self, arrays: Any) -> None:
        """Raise where none of these arrays is taken."""
        errors = [_refusal(self.target, partial(self, x, self.rows(5))) for _, x in arrays]
        if errors[0] is not None and None not in errors:
            raise errors[0]

    def numbers(self, y: Any) -> Any:
        return self.lib.to_numpy(y)
