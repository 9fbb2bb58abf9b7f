"""What a target claims: by its declaration, its signature, and what it refuses when it is tried."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ._libraries import Library, rounded

DTYPES = ("float16", "bfloat16", "float32", "float64")
# A valid value of each field of a call, for an x of four features, that changes the result.
FIELDS: dict[str, Any] = {
    "base": 50.0,
    "rotary_dim": 2,
    "rotary_start": 2,
    "pairing": "half",
    "out_pairing": "half",
    "inv_freq": (0.5, 0.25),
    "attention_factor": 2.0,
    "inverse": True,
    "seq_axis": -3,
}
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
    "reaches_2e16": "serves positions up to 2^16",
    "reaches_2e20": "serves positions up to 2^20",
    "reaches_2e24": "serves positions up to 2^24",
    "reaches_int32": "serves positions up to 2^31 - 1",
    "ranks": "takes x of any number of axes",
    "odd_width": "takes an odd head_dim, of which an even part is rotated",
    "wide_heads": "takes a head_dim beyond 256",
    "zero_size": "takes arrays without elements",
    "strides": "takes arrays of any strides",
    "tuple": "takes several arrays in a tuple",
    "nonfinite": "keeps NaN and infinities in their pair",
    "nonfinite_rows": "keeps NaN and infinities in their vector",
    "same_bits": "gives a row the same bits whatever stands beside it",
    "gradient": "is differentiable",
    "float16": "takes float16",
    "bfloat16": "takes bfloat16",
    "float32": "takes float32",
    "float64": "takes float64",
    "lazy": "has arrays that are computed later",
    "jit": "is compiled by its library",
}
_REACH = {"reaches_2e16": 2**16, "reaches_2e20": 2**20, "reaches_2e24": 2**24, "reaches_int32": 2**31 - 1}
SPREAD = {"any": (), "offset": ("any_positions",), "arange": ("any_positions", "offset_positions")}
# What a callable that declares nothing may refuse, loudly: it is tried, and named as not applicable.
_OPTIONAL: dict[str, Callable[[_Trial], Any]] = {
    "batch_positions": lambda t: t(t.x(2, 1, 2, 4), np.array([[0, 1], [2, 3]])),
    "head_positions": lambda t: t(t.x(1, 2, 1, 4), np.array([[[0], [1]]])),
    "broadcast_positions": lambda t: (
        t(t.x(2, 1, 2, 4), np.array(1)),
        t(t.x(2, 1, 2, 4), np.array([1])),
        t(t.x(2, 1, 2, 4), np.array([[1], [2]])),
    ),
    "python_positions": lambda t: [t.raw(t.x(1, 1, 2, 4), pos) for pos in (1, range(2), [1, 2])],
    "float_positions": lambda t: t(t.x(1, 1, 2, 4), np.array([0.5, 1.5])),
    "ranks": lambda t: [t(t.x(*shape), pos) for shape, pos in (((4,), np.array(1)), ((2, 4), np.arange(2)))],
    "odd_width": lambda t: t(t.x(1, 1, 2, 5), np.arange(2), rotary_dim=4),
    "wide_heads": lambda t: t(t.x(1, 1, 2, 512), np.arange(2)),
    "tuple": lambda t: t((t.x(1, 1, 2, 4), t.x(1, 2, 2, 4)), np.arange(2)),
    "zero_size": lambda t: (
        t(t.x(0, 3, 2, 4), np.arange(2)),
        t(t.x(2, 0, 2, 4), np.arange(2)),
        t(t.x(2, 3, 0, 4), np.arange(0)),
    ),
    "strides": lambda t: [t(x, np.arange(2)) for _, x in t.lib.strided(t.x(2, 3, 2, 4))],
    "narrow_positions": lambda t: [t.raw(t.x(1, 1, 2, 4), t.pos([1, 2], kind)) for kind in t.lib.integers],
    "float16": lambda t: t(t.x(1, 1, 2, 4, dtype="float16"), np.arange(2)),
    "bfloat16": lambda t: t(t.x(1, 1, 2, 4, dtype="bfloat16"), np.arange(2)),
    "float64": lambda t: t(t.x(1, 1, 2, 4, dtype="float64"), np.arange(2)),
}
# What belongs to the contract, and code that forms its angles as products does not claim unless it says so.
_OF_THE_CONTRACT = ("same_bits", "nonfinite")
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
        **_by_class(target),
    }
    found = {**_by_fields(target, found), **found, **target.lacks}
    if "rotary_dim" in found:
        found.setdefault("odd_width", f"rotary_dim: {found['rotary_dim']}")
    return {**found, **({} if target.declared or "values" in found else _refused(target, found))}


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
        found.update(dict.fromkeys(("reaches_2e24", "reaches_int32"), "would need as many rows as positions"))
    too_far = f"serves positions up to {target.furthest:,}"
    found.update({name: too_far for name, reach in _REACH.items() if target.furthest < reach})
    if target.furthest < 2**32:
        found["wide_positions"] = too_far
    return found


def _by_layout(target: Any) -> dict[str, str]:
    if target.layout == "...sd":
        return {}
    return dict.fromkeys(("ranks", "seq_axis"), f"takes x as ({', '.join(target.layout)})")


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
        name: p.default
        for name, p in named.items()
        if p.default is not p.empty and p.default is not None and name not in ("inverse", "seq_axis")
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
    x, pos = trial.x(1, 2, 2, 4), np.array([1, 2])
    try:
        with target.arrays.running():
            y = trial(x, pos, **{name: FIELDS[name]})
            if others_are_named and np.array_equal(trial.numbers(y), trial.numbers(trial(x, pos))):
                return "goes to its ** parameter and changes nothing"
    except NotImplementedError as error:
        return f"refuses it: {str(error) or 'NotImplementedError'}"
    except TypeError as error:
        return f"refuses it: {error}" if name in str(error) else ""
    except Exception:
        return ""  # a fault, which its check will show
    return ""


def _refused(target: Any, found: Mapping[str, str]) -> dict[str, str]:
    """Try what a callable may refuse; return what it does."""
    reasons = {}
    trial = _Trial(target)
    for name, attempt in _OPTIONAL.items():
        if name in found:
            continue
        try:
            with target.arrays.running():
                attempt(trial)
        except Exception as error:  # whatever a refusal is made of
            reasons[name] = f"refuses it: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return reasons


class _Trial:
    """Calls of a target, to see what it takes."""

    target: Any
    lib: Library

    def __init__(self, target: Any):
        self.target, self.lib = target, target.arrays

    def x(self, *shape: int, dtype: str = "") -> Any:
        dtype = dtype or (self.target.dtypes or ["float32"])[0]
        return self.lib.asarray(rounded(np.random.default_rng(0).standard_normal(shape), dtype), dtype)

    def pos(self, values: Any, kind: str) -> Any:
        return self.lib.asarray(np.asarray(values, kind))

    def raw(self, x: Any, pos: Any, **spec: Any) -> Any:
        return self.target.call(x, pos, **spec)

    def __call__(self, x: Any, pos: Any, **spec: Any) -> Any:
        kind = "float32" if pos.dtype.kind == "f" else self.lib.integers[0]
        y = self.raw(x, self.lib.asarray(pos.astype(kind)), **spec)
        if isinstance(x, tuple) and not isinstance(y, tuple | list):
            raise TypeError("one array came back for a tuple")
        return y

    def numbers(self, y: Any) -> Any:
        return self.lib.to_numpy(y)
