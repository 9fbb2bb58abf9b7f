"""Find a target's claims: from its declaration, its signature, and the calls that it refuses in trials."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ._libraries import Library, rounded

DTYPES = ("float16", "bfloat16", "float32", "float64")
# For each field a valid value that changes the result, for an x of any even width from 6 on.
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
# Fields of a call, not of an embedding: `fixed` cannot hold them.
CALL_FIELDS = ("inverse", "seq_axis")
# Sizes that differ from each other, so that a mixed-up axis shows; and the default width.
SIZES = (2, 3, 5)
WIDTH = 16
DEFAULTS: dict[str, Any] = {"base": 10000.0, "pairing": "interleaved", "inverse": False, "seq_axis": -2}

CAPABILITIES = {
    **{name: f"takes {name}" for name in FIELDS},
    "values": "computes values, not only shapes",
    "any_positions": "takes positions in any order",
    "offset_positions": "takes positions that start anywhere",
    "batch_positions": "takes positions of shape (B, S)",
    "head_positions": "takes positions of shape (B, H, S)",
    "broadcast_positions": "takes a scalar position, and axes of size 1",
    "python_positions": "takes an int, a range or a list as positions",
    "negative_positions": "takes negative positions",
    "float_positions": "takes float positions",
    "narrow_positions": "takes positions of every integer dtype",
    "wide_positions": "takes positions beyond 32 bits",
    "reaches_2e16": "takes positions beyond 4,095",
    "reaches_2e20": "takes positions beyond 2^16",
    "reaches_2e24": "takes positions beyond 2^20",
    "reaches_int32": "takes positions beyond 2^24",
    "ranks": "takes x of any number of axes",
    "narrow_heads": "takes every even head_dim from 2 on",
    "widths": "takes the head_dims of models, 64 to 256",
    "wide_heads": "takes a head_dim beyond 256",
    "odd_width": "takes an odd head_dim with an even rotary_dim",
    "zero_size": "takes arrays without elements",
    "strides": "takes arrays of any strides",
    "tuple": "takes several arrays in a tuple",
    "nonfinite": "keeps NaN and infinities in their pair",
    "nonfinite_rows": "keeps NaN and infinities in their vector",
    "same_bits": "rotates a row to the same bits in every batch, slice and tuple",
    "threads": "can be called from several threads at once",
    "gradient": "is differentiable",
    "float16": "takes float16",
    "bfloat16": "takes bfloat16",
    "float32": "takes float32",
    "float64": "takes float64",
    "lazy": "returns arrays that are computed later",
    "jit": "can be compiled by its library",
}
# The first position of each range.
REACH = {
    "reaches_2e16": 2**12,
    "reaches_2e20": 2**16 + 1,
    "reaches_2e24": 2**20 + 1,
    "reaches_int32": 2**24 + 4,
}
POSITION_KINDS = {"any": (), "offset": ("any_positions",), "arange": ("any_positions", "offset_positions")}
# Sizes of x without the features, for one to six axes.
RANKS: tuple[tuple[int, ...], ...] = ((), (5,), (3, 5), (2, 3, 5), (2, 2, 3, 5), (1, 2, 2, 1, 5))
# Calls tried on a callable that declares nothing. A refused capability is reported as not applicable.
_ATTEMPTS: dict[str, Callable[[_Trial], Any]] = {
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
    "strides": lambda t: t.call_any(t.lib.strided(t.x())),
    "narrow_positions": lambda t: [t.raw(t.x(), t.pos(t.rows(5), kind)) for kind in t.lib.integers],
    "float16": lambda t: t(t.x(dtype="float16"), t.rows(5)),
    "bfloat16": lambda t: t(t.x(dtype="bfloat16"), t.rows(5)),
    "float64": lambda t: t(t.x(dtype="float64"), t.rows(5)),
}
# Positions tried in rising order, up to the first that the callable refuses.
_REACH_STEPS = (
    31, 63, 127, 255, 511, 1023, 2047, 2**12 - 1, 2**13 - 1, 2**14 - 1, 2**15 - 1, 2**16, 2**17, 2**20,
    2**24 + 3, 2**31 - 1,
)  # fmt: skip
# Capabilities of the contract: not claimed for angles that are floating-point products.
_CONTRACT_ONLY = ("same_bits", "nonfinite")
_POSITION_NAMES = tuple(
    name for name in CAPABILITIES if name.endswith("_positions") and name not in POSITION_KINDS["arange"]
)


def find_declines(target: Any) -> dict[str, str]:
    """Return every capability that a target does not claim, with the reason."""
    reasons = {
        **target.arrays.lacks,
        **_by_dtypes(target),
        **_by_positions(target),
        **_by_layout(target),
        **_by_width(target),
        **_by_class(target),
    }
    reasons = {**_by_fields(target, reasons), **reasons, **target.lacks}
    if "rotary_dim" in reasons:
        reasons.setdefault("odd_width", f"rotary_dim: {reasons['rotary_dim']}")
    return {**reasons, **({} if target.declared or "values" in reasons else _try_calls(target, reasons))}


def find_reach(target: Any) -> int:
    """Return the largest position that a target takes: as claimed, or the last that it does not refuse."""
    if target.declared or target.positions == "arange" or "values" in target.arrays.lacks:
        return int(target.furthest)
    trial, accepted = _Trial(target), 0
    for step in sorted({*(step for step in _REACH_STEPS if step < target.furthest), target.furthest}):
        if _exception_of(target, partial(trial, trial.x(), np.arange(step - 4, step + 1))) is not None:
            break
        accepted = step
    return accepted or int(target.furthest)  # a target that refuses every call fails its checks later


def only_width(target: Any) -> int | None:
    """Try head_dims; return the only one that a callable takes, or None if it takes several or none."""
    if target.declared or "values" in target.arrays.lacks:
        return None
    trial = _Trial(target)

    def accepts(width: int) -> bool:
        return (
            _exception_of(target, lambda: trial(trial.array((*SIZES, width)), trial.rows(SIZES[-1]))) is None
        )

    least = target._least_width(WIDTH)
    if all(map(accepts, (least, least + 8, max(64, least)))):
        return None
    return next(filter(accepts, (WIDTH, 32, 64, 80, 96, 128, 192, 256)), None)


def _by_dtypes(target: Any) -> dict[str, str]:
    if target.dtypes is not None:
        return {name: "not among its dtypes" for name in DTYPES if name not in target.dtypes}
    if target.arrays.name.startswith("numpy"):
        return {"bfloat16": "not a dtype of NumPy's own; name it in dtypes"}
    return {}


def _by_positions(target: Any) -> dict[str, str]:
    reasons = dict.fromkeys(POSITION_KINDS[target.positions], f"takes positions {target.positions} only")
    if target.positions == "arange":
        reasons.update(dict.fromkeys(_POSITION_NAMES, "takes no positions: rows count from 0"))
        beyond = (
            "reaches_2e24",
            "reaches_int32",
            *(("reaches_2e20",) if target.width_of(0) > 2 * WIDTH else ()),
        )
        reasons.update(dict.fromkeys(beyond, "would need as many rows as positions"))
    too_far = f"takes positions up to {target.reach:,}"
    reasons.update({name: too_far for name, first in REACH.items() if target.reach < first})
    if target.reach < 2**32:
        reasons["wide_positions"] = too_far
    return reasons


def _by_layout(target: Any) -> dict[str, str]:
    if target.layout == "...sd":
        return {}
    return dict.fromkeys(("ranks", "seq_axis"), f"takes x as ({', '.join(target.layout)})")


def _by_width(target: Any) -> dict[str, str]:
    if (only := target.only_width) is not None:
        names = ("narrow_heads", "widths", "wide_heads", "odd_width")
        return dict.fromkeys(names, f"takes a head_dim of {only} only")
    if (least := target.width_of(0)) > 2:
        return {"narrow_heads": f"needs a head_dim of at least {least}"}
    return {}


def _by_class(target: Any) -> dict[str, str]:
    if target.angles == "exact":
        return {}
    return dict.fromkeys(_CONTRACT_ONLY, "claimed with exact angles only")


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


def signature_defaults(rotate: Callable[..., Any]) -> dict[str, Any]:
    """Return the fields that a callable's signature gives a default other than None."""
    named, _ = _parameters(rotate)
    return {
        name: p.default for name, p in named.items() if p.default is not p.empty and p.default is not None
    }


def _by_fields(target: Any, declines: Mapping[str, str]) -> dict[str, str]:
    if target.fields is not None:
        return {name: "not among its fields" for name in FIELDS if name not in target.fields}
    named, takes_any = _parameters(target.rotate)
    if not takes_any:
        return {name: "its signature does not name it" for name in FIELDS if name not in named}
    if target.declared or "values" in declines:
        return {}
    reasons = {name: _try_field(target, name, bool(named)) for name in FIELDS if name not in named}
    return {name: reason for name, reason in reasons.items() if reason}


def _try_field(target: Any, name: str, others_are_named: bool) -> str:
    trial = _Trial(target)
    x, pos = trial.x((2, 5, 5)), trial.rows(5)  # as many heads as positions, for seq_axis
    if name == "axes":
        pos = np.stack([pos, pos + 1], -1)
    spec = {name: FIELDS[name](target.width_of(WIDTH))}
    refusal = _exception_of(target, lambda: trial(x, pos, **spec))
    if refusal is not None:
        names_it = isinstance(refusal, NotImplementedError) or (
            isinstance(refusal, TypeError | ValueError | LookupError) and name in str(refusal)
        )
        return f"refuses it: {one_line(refusal)}" if names_it else ""  # another error fails the field's check
    if others_are_named:
        plain_pos = pos[..., 0] if name == "axes" else pos
        with target.arrays.running():
            changed = trial.numbers(trial(x, pos, **spec))
            plain = trial.numbers(trial(x, plain_pos))
        if np.array_equal(changed, plain):
            return "is caught by its ** parameter and changes nothing"
    return ""


def _try_calls(target: Any, declines: Mapping[str, str]) -> dict[str, str]:
    """Try each capability that a callable may refuse; return the refused ones with the errors."""
    trial, reasons = _Trial(target), {}
    for name, attempt in _ATTEMPTS.items():
        if name not in declines and (refusal := _exception_of(target, partial(attempt, trial))) is not None:
            reasons[name] = f"refuses it: {one_line(refusal)}"
    return reasons


def _exception_of(target: Any, attempt: Callable[[], Any]) -> BaseException | None:
    """Return the exception that a trial raises, or None."""
    try:
        with target.arrays.running():
            attempt()
    except (Exception, SystemExit) as error:
        return error
    return None


def one_line(error: BaseException, length: int = 160) -> str:
    """Describe an exception in one line of printable characters."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # its own __str__ raises
        text = "(its message cannot be read)"
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return shorten(text, length)


def shorten(text: str, length: int = 400) -> str:
    """Return a text as one line of at most `length` printable characters."""
    text = " ".join(text.split())[: 2 * length]
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return text if len(text) <= length else f"{text[: length - 3]}..."


class _Trial:
    """Trial calls of a target."""

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
        start = int(self.target.positions != "arange")
        return np.broadcast_to(start + (np.arange(shape[-1]) if shape else np.array(0)), shape)

    def pos(self, values: Any, kind: str) -> Any:
        return self.lib.asarray(np.asarray(values, kind))

    def raw(self, x: Any, pos: Any, **spec: Any) -> Any:
        with np.errstate():  # undo changes that the call makes to NumPy's error handling
            return self.target.first_calls.call(self.lib, self.target.call, x, pos, spec)

    def __call__(self, x: Any, pos: Any, **spec: Any) -> Any:
        kind = "float32" if pos.dtype.kind == "f" else self.lib.integers[0]
        y = self.raw(x, self.lib.asarray(pos.astype(kind)), **spec)
        if isinstance(x, tuple) and not isinstance(y, tuple | list):
            raise TypeError("the call returned one array for a tuple")
        return y

    def call_any(self, arrays: Any) -> None:
        """Raise if the target refuses every one of these arrays."""
        errors = [_exception_of(self.target, partial(self, x, self.rows(5))) for _, x in arrays]
        if errors[0] is not None and None not in errors:
            raise errors[0]

    def numbers(self, y: Any) -> Any:
        return self.lib.to_numpy(y)
