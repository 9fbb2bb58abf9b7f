"""Find a target's claims: from its declaration, its signature, and the calls that it refuses in trials."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from . import _watch
from ._calls import takes_two
from ._libraries import Library, Torch, rounded
from ._modes import jvp, one_device, settings_of, vmap
from ._parts import (
    ALL_WIDTHS,
    BROADCAST,
    EMPTY,
    FIRST_WIDTHS,
    PARTS,
    RANKS,
    broadcast_shape,
    parts_of,
    spread,
    whole_of,
    words_for,
)

DTYPES = ("float16", "bfloat16", "float32", "float64")
# For each field a valid value that changes the result, for an x of any even width from 6 on.
FIELDS: dict[str, Callable[[int], Any]] = {
    "base": lambda width: 50.0,
    "rotary_dim": lambda width: 2,
    "rotary_start": lambda width: min(2, width - 2),
    "pairing": lambda width: "half",
    "out_pairing": lambda width: "half",
    "inv_freq": lambda width: (0.5,) * (width // 2),
    "attention_factor": lambda width: 2.0,
    "scaling": lambda width: rule_of("linear", width // 2),
    "axes": lambda width: {"coordinates": tuple(range(2)) * (width // 4) + (0,) * (width // 2 % 2)},
    "inverse": lambda width: True,
    "seq_axis": lambda width: -3,
}


def rule_of(kind: str, pairs: int) -> dict[str, Any]:
    """Return a scaling rule of a kind, a part of `scaling`, for a number of pairs."""
    trained = {"original_max_position_embeddings": 64}
    more: dict[str, dict[str, Any]] = {
        "dynamic": {"max_position_embeddings": 64, "length": 128},
        "yarn": trained,
        "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0, **trained},
        "longrope": {"short_factor": [1.5] * pairs, "long_factor": [2.0] * pairs, "length": 65, **trained},
        "proportional": {"partial_rotary_factor": 0.5},
    }
    factor = {} if kind == "periods" else {"factor": 2.0}
    return {"rope_type": kind, **factor, **more.get(kind, {})}


# Fields of a call, not of an embedding: `fixed` cannot hold them.
CALL_FIELDS = ("inverse", "seq_axis")
# Sizes that differ from each other, so that a mixed-up axis shows; and the default width.
SIZES = (2, 3, 5)
WIDTH = 16
DEFAULTS: dict[str, Any] = {"base": 10000.0, "pairing": "interleaved", "inverse": False, "seq_axis": -2}

# Modes of a library: settings around a call, and transforms of it.
MODES = {
    "no_grad": "takes a call under torch.no_grad()",
    "inference_mode": "takes a call under torch.inference_mode()",
    "autocast": "takes a call under torch.autocast()",
    "default_dtype": "takes a call under another default dtype of the library",
    "default_device": "takes a call under another default device of the library",
    "deterministic": "takes a call with PyTorch's deterministic algorithms",
    "vmap": "takes a call that the library's vmap maps over x",
    "vmap_positions": "takes a call that the library's vmap maps over positions",
    "jvp": "is differentiable in forward mode",
    "shards": "takes the part of a sequence that each device has, under jax.shard_map",
}
CAPABILITIES = {
    **{name: f"takes {name}" for name in FIELDS},
    "values": "computes values, not only shapes",
    "any_positions": "takes positions in any order",
    "offset_positions": "takes positions that start anywhere",
    "batch_positions": "takes positions of shape (B, S)",
    "head_positions": "takes positions of shape (B, H, S)",
    "broadcast_positions": "takes a scalar position, and positions with axes of size 1",
    "python_positions": "takes an int, a range, a list or a tuple as positions",
    "negative_positions": "takes negative positions",
    "float_positions": "takes float positions",
    "narrow_positions": "takes positions of every integer dtype",
    "wide_positions": "takes positions beyond 32 bits",
    "reaches_2e16": "takes positions beyond 4,095",
    "reaches_2e20": "takes positions beyond 2^16",
    "reaches_2e24": "takes positions beyond 2^20",
    "reaches_int32": "takes positions beyond 2^24",
    "ranks": "takes x of any number of axes",
    "narrow_heads": "takes a head_dim below 16",
    "widths": "takes the head_dims of models, 16 to 256",
    "wide_heads": "takes a head_dim beyond 256",
    "odd_width": "takes an odd head_dim with an even rotary_dim",
    "keeps_x": "does not write or delete x",
    "zero_size": "takes arrays without elements",
    "strides": "takes arrays of any strides",
    "tuple": "takes several arrays in a tuple",
    "mixed_dtypes": "takes a tuple of arrays of two dtypes",
    "nonfinite": "keeps NaN and infinities in their pair",
    "nonfinite_rows": "keeps NaN and infinities in their vector",
    "same_bits": "rotates a row to the same bits in every batch, slice and tuple",
    "threads": "can be called from several threads at once",
    "gradient": "is differentiable",
    **MODES,
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
# Calls tried on a callable that declares nothing. A refused capability is reported as not applicable.
_ATTEMPTS: dict[str, Callable[[_Trial], Any]] = {
    "batch_positions": lambda t: t(t.x(), t.rows(2, 5)),
    "head_positions": lambda t: t(t.x(), t.rows(2, 3, 5)),
    "negative_positions": lambda t: t(t.x(), -t.rows(5)[::-1]),
    "odd_width": lambda t: t(t.x(width=WIDTH + 1), t.rows(5), rotary_dim=t.width(4)),
    "mixed_dtypes": lambda t: t.mixed(),
    "strides": lambda t: t.call_any(t.lib.strided(t.x())),
    "no_grad": lambda t: t.under("no_grad"),
    "inference_mode": lambda t: t.under("inference_mode"),
    "autocast": lambda t: t.under("autocast"),
    "default_dtype": lambda t: t.under("default_dtype"),
    "default_device": lambda t: t.under("default_device"),
    "deterministic": lambda t: t.under("deterministic"),
    "vmap": lambda t: t.mapped((0, None)),
    "vmap_positions": lambda t: t.mapped((0, 0)),
    "gradient": lambda t: t.recorded(),
    "jit": lambda t: t.traced(),
    "jvp": lambda t: t.derived(),
    "shards": lambda t: t.in_shards(),
    "float16": lambda t: t(t.x(dtype="float16"), t.rows(5)),
    "bfloat16": lambda t: t(t.x(dtype="bfloat16"), t.rows(5)),
    "float64": lambda t: t(t.x(dtype="float64"), t.rows(5)),
}
# The same for each part of a capability, by the part's label.
_PART_ATTEMPTS: dict[str, Callable[[_Trial, str], Any]] = {
    "ranks": lambda t, n: t(t.x(RANKS[int(n) - 1]), t.rows(*RANKS[int(n) - 1][-1:])),
    "broadcast_positions": lambda t, axes: t(t.x(), t.rows(*broadcast_shape(axes, SIZES))),
    "python_positions": lambda t, kind: t.raw(t.x(), t.python(kind)),
    "narrow_positions": lambda t, kind: t.raw(t.x(), t.pos(t.rows(5), kind)),
    "float_positions": lambda t, kind: t.raw(t.x(), t.pos(t.fractions(5), kind)),
    "tuple": lambda t, n: t.several(int(n)),
    "zero_size": lambda t, axis: t(t.x(EMPTY[axis]), t.rows(EMPTY[axis][-1])),
    "scaling": lambda t, kind: t.with_field("scaling", _rule_for(t.target, kind)),
}
# Positions tried in rising order, up to the first that the callable refuses.
_REACH_STEPS = (
    0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 2047, 2**14 - 1, 2**17, 2**20, 2**24 + 3, 2**31 - 1,
)  # fmt: skip
# Capabilities of the contract: not claimed for angles that are floating-point products.
_CONTRACT_ONLY = ("same_bits", "nonfinite")
_POSITION_NAMES = tuple(
    name for name in CAPABILITIES if name.endswith("_positions") and name not in POSITION_KINDS["arange"]
)


def find_declines(target: Any) -> dict[str, str]:
    """Return every capability and part that a target does not claim, with the reason."""
    reasons = {
        **target.arrays.lacks,
        **by_library(target),
        **_by_dtypes(target),
        **_by_positions(target),
        **_by_call(target),
        **_by_layout(target),
        **_by_width(target),
        **_by_class(target),
    }
    reasons = spread({**_by_fields(target, reasons), **reasons, **target.lacks})
    reasons = spread({**_by_dependence(reasons), **reasons})
    if target.declared or "values" in reasons:
        return reasons
    return spread({**reasons, **_try_calls(target, reasons)})


def _by_dependence(reasons: Mapping[str, str], tried: Collection[str] = ()) -> dict[str, str]:
    """Return the capabilities that need another one, which is declined; the ones `tried` need none."""
    needs = {"odd_width": "rotary_dim", "mixed_dtypes": "tuple[2]"}
    for axes in BROADCAST:
        kind = {2: "batch_positions", 3: "head_positions"}.get(len(axes)) if axes != "scalar" else None
        needs.update({f"broadcast_positions[{axes}]": kind} if kind else {})
    return {
        name: f"{need}: {reasons[need]}"
        for name, need in needs.items()
        if need in reasons and name not in tried
    }


def find_reach(target: Any) -> int:
    """Return the largest position that a target takes: as claimed, or the last that it does not refuse."""
    if target.declared or target.positions == "arange" or "values" in target.arrays.lacks:
        return int(target.furthest)
    trial = _Trial(target)

    def accepts(last: int) -> bool:
        row = np.arange(last - 4, last + 1).clip(0) if takes_any(target) else _last_rows(last)
        return _exception_of(target, lambda: trial(trial.x((*SIZES[:2], len(row))), row)) is None

    accepted = -1
    for step in sorted({*(step for step in _REACH_STEPS if step < target.furthest), target.furthest}):
        if not accepts(step):
            return _last_accepted(accepts, accepted, step) if accepted >= 0 else int(target.furthest)
        accepted = step
    return accepted


def find_depth(target: Any) -> int:
    """Return the largest p for which a target takes position -p: as far as positive ones, if it can."""
    if target.declared or not takes_any(target) or "values" in target.arrays.lacks:
        return int(target.reach)
    trial = _Trial(target)

    def accepts(depth: int) -> bool:
        row = -np.arange(depth - 4, depth + 1).clip(0)
        return _exception_of(target, lambda: trial(trial.x((*SIZES[:2], len(row))), row)) is None

    if accepts(target.reach):
        return int(target.reach)
    accepted = 0
    for step in (step for step in _REACH_STEPS if 0 < step < target.reach):
        if not accepts(step):
            return _last_accepted(accepts, accepted, step)
        accepted = step
    return _last_accepted(accepts, accepted, target.reach)


def takes_any(target: Any) -> bool:
    """Return whether a target takes positions in any order."""
    return "any_positions" not in POSITION_KINDS[target.positions]


def _last_rows(last: int) -> Any:
    return np.arange(max(last - 4, 0), last + 1)


def _last_accepted(accepts: Callable[[int], bool], accepted: int, refused: int) -> int:
    """Return the last accepted position, between an accepted and a refused one."""
    while refused - accepted > 1:
        middle = (accepted + refused) // 2
        accepted, refused = (middle, refused) if accepts(middle) else (accepted, middle)
    return accepted


def find_position_dtype(target: Any) -> str:
    """Return the first integer dtype of positions that a target does not refuse, the widest first."""
    lib = target.arrays
    if target.declared or "values" in lib.lacks:
        return str(lib.integers[0])
    trial, rows = _Trial(target), min(SIZES[-1], target.furthest + 1)
    start = int(target.positions != "arange" and target.furthest >= rows)
    width = min(target.taken_widths) if target.head_dim is not None else target.least_width(WIDTH)

    def refuses(kind: str) -> bool:
        x, pos = trial.array((*SIZES[:2], rows, width)), trial.pos(start + np.arange(rows), kind)
        return _exception_of(target, lambda: trial.raw(x, pos)) is not None

    return str(next((kind for kind in lib.integers if not refuses(kind)), lib.integers[0]))


def find_widths(target: Any) -> dict[int, str]:
    """Try head_dims; return the ones that a callable refuses, with the errors: none if it refuses all."""
    if target.declared or "values" in target.arrays.lacks:
        return {}
    trial, rows = _Trial(target), min(SIZES[-1], target.furthest + 1)
    # The first calls of all: at positions other than 0, where the result is not x.
    pos = np.resize([1, 1, 0], rows) * min(1, target.furthest)
    pos = pos if takes_any(target) else np.arange(rows)

    def attempt(width: int, pos: Any) -> None:
        shape = (*SIZES[:2], rows, width)
        if (found := tuple(getattr(trial(trial.array(shape), pos), "shape", shape))) != shape:
            raise ValueError(f"the result has shape {found}")  # tables of another width were broadcast

    widths = sorted({target.least_width(width) for width in ALL_WIDTHS})

    def errors_at(some: Collection[int], pos: Any) -> dict[int, BaseException]:
        errors = {width: _exception_of(target, partial(attempt, width, pos)) for width in some}
        return {width: error for width, error in errors.items() if error is not None}

    # Where each width is compiled, the others are tried only if one of a few is refused.
    few = [width for width in widths if width in FIRST_WIDTHS]
    if few and target.arrays.calls < 1000 and not errors_at(few, pos):
        return {}
    refusals = errors_at(widths, pos)
    if len(refusals) == len(widths) and takes_any(target):  # perhaps a table of one row
        refusals = errors_at(widths, 0 * pos)
    return {} if len(refusals) == len(widths) else {w: one_line(error) for w, error in refusals.items()}


def by_library(target: Any) -> dict[str, str]:
    """Return the parts that no array of the target's library can have, with the reason."""
    lib = target.arrays
    narrow = (kind for kind in PARTS["narrow_positions"] if kind not in lib.integers)
    reasons = {f"narrow_positions[{kind}]": f"{lib.name} has no {kind}" for kind in narrow}
    if "float64" in lib.lacks:
        reasons["float_positions[float64]"] = lib.lacks["float64"]
    if target.library.endswith(":compile"):
        reasons["jit"] = "every call is compiled"
        reasons["jvp"] = "torch.compile takes no forward mode"
    return reasons


def _by_dtypes(target: Any) -> dict[str, str]:
    if target.dtypes is not None:
        reasons = {name: "not among its dtypes" for name in DTYPES if name not in target.dtypes}
        return reasons | ({"mixed_dtypes": "takes one dtype"} if len(target.dtypes) == 1 else {})
    if target.arrays.name.startswith("numpy"):
        return {"bfloat16": "not a dtype of NumPy's own; name it in dtypes"}
    return {}


def _by_positions(target: Any) -> dict[str, str]:
    text = _KIND_TEXTS.get(target.positions, f"takes positions {target.positions} only")
    reasons = dict.fromkeys(POSITION_KINDS[target.positions], text)
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
    if target.reach == 0:
        reasons["negative_positions"] = "takes position 0 only"
    if target.reach < 2**32:
        reasons["wide_positions"] = too_far
    return reasons


def _by_call(target: Any) -> dict[str, str]:
    reasons = {"keeps_x": "writes its result into x"} if target.in_place else {}
    if takes_two(target.arguments):
        reasons.update(dict.fromkeys(("tuple[1]", "tuple[3]"), "takes q and k"))
    return reasons


def _by_layout(target: Any) -> dict[str, str]:
    if target.layout == "...sd":
        return {}
    return dict.fromkeys(("ranks", "seq_axis"), f"takes x as ({', '.join(target.layout)})")


def _by_width(target: Any) -> dict[str, str]:
    few = f"takes a head_dim of {words_for(target.taken_widths)} only"
    reasons = {"odd_width": few} if target.head_dim is not None else {}
    if (width := target.width_of(WIDTH)) < WIDTH:
        reasons["axes"] = f"the checks of axes need a head_dim of 16 or more, not {width}"
        if width < 4:
            reasons["scaling"] = f"the checks of scaling need a head_dim of 4 or more, not {width}"
    for name in ("narrow_heads", "widths", "wide_heads"):
        for label in PARTS[name]:
            width = target.least_width(int(label))
            if width > int(label) + 1:
                reasons[f"{name}[{label}]"] = f"needs a head_dim of at least {width}"
            elif target.taken_widths and width not in target.taken_widths:
                error = target.refused_widths.get(width) if len(target.taken_widths) > 4 else None
                reasons[f"{name}[{label}]"] = f"refuses it: {error}" if error else few
    return reasons


def _by_class(target: Any) -> dict[str, str]:
    if target.angles == "exact":
        return {}
    return dict.fromkeys(_CONTRACT_ONLY, "claimed with exact angles only")


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


def _by_fields(target: Any, declines: Mapping[str, str]) -> dict[str, str]:
    if target.fields is not None:
        return {name: "not among its fields" for name in FIELDS if name not in target.fields}
    named, takes_any = parameters_of(target.rotate)
    reasons = {} if takes_any else {n: "its signature does not name it" for n in FIELDS if n not in named}
    if target.declared or "values" in declines:
        return reasons
    untried = [name for name in FIELDS if name not in reasons]
    tried = {name: _try_traced(target, name) for name in untried if name in named}
    tried |= {name: _try_field(target, name, bool(named)) for name in untried if name not in named}
    return {**reasons, **{name: reason for name, reason in tried.items() if reason}}


def _try_traced(target: Any, name: str) -> str:
    """Return why a function compiled by JAX refuses a field that its signature names, or ""."""
    if not hasattr(target.rotate, "lower"):  # not the result of jax.jit
        return ""
    refusal = _refusal_of_field(target, name)
    if refusal is None:
        return ""
    if type(refusal).__module__.startswith("jax") or isinstance(refusal, TypeError | IndexError):
        return f"jax.jit traces it, as static_argnames does not name it: {one_line(refusal)}"
    return ""


def _refusal_of_field(target: Any, name: str) -> BaseException | None:
    return _tried_values(target, name)[1]


def _tried_values(target: Any, name: str) -> tuple[Any, BaseException | None]:
    """Return the first value of a field that a target takes, or the first value with its exception."""
    refused = []
    for value in _values_of(target, name):
        error = _exception_of(target, partial(_Trial(target).with_field, name, value))
        if error is None:
            return value, None
        refused.append((value, error))
    return refused[0]


def _values_of(target: Any, name: str) -> list[Any]:
    """Return valid values of a field: scaling rules of every kind."""
    if name == "scaling":
        return [_rule_for(target, kind) for kind in PARTS["scaling"]]
    return [FIELDS[name](target.width_of(WIDTH))]


def _rule_for(target: Any, kind: str) -> dict[str, Any]:
    width, start = target.width_of(WIDTH), target.defaults.get("rotary_start") or 0
    return rule_of(kind, int(target.defaults.get("rotary_dim") or width - start) // 2)


def field_call(target: Any, name: str, value: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Return a call that a target takes if it claims a field: with a plain value, a rule of the same kind."""
    trial = _Trial(target)
    kind = value["rope_type"] if name == "scaling" else ""
    value = _rule_for(target, kind) if kind else FIELDS[name](target.width_of(WIDTH))
    x, pos = trial.of_field(name)
    return x, trial.pos(pos, target.position_dtype), {name: value}


def _try_field(target: Any, name: str, others_are_named: bool) -> str:
    value, refusal = _tried_values(target, name)
    if refusal is not None:
        names_it = isinstance(refusal, NotImplementedError) or (
            isinstance(refusal, TypeError | ValueError | LookupError) and name in str(refusal)
        )
        return f"refuses it: {one_line(refusal)}" if names_it else ""  # another error fails the field's check
    if others_are_named and target.width_of(WIDTH) >= 6:  # narrower, some values change nothing
        trial = _Trial(target)
        with target.arrays.running():
            changed = trial.numbers(trial.with_field(name, value))
            plain = trial.numbers(trial.with_field())
        if np.array_equal(changed, plain):
            return "is caught by its ** parameter and changes nothing"
    return ""


def _try_calls(target: Any, declines: Mapping[str, str]) -> dict[str, str]:
    """Try each capability that a callable may refuse; return the refused ones with the errors."""
    trial, reasons = _Trial(target), {}
    attempts = {name: partial(attempt, trial) for name, attempt in _ATTEMPTS.items()}
    for name, try_part in _PART_ATTEMPTS.items():
        attempts |= {f"{name}[{label}]": partial(try_part, trial, label) for label in PARTS[name]}
    for name, attempt in attempts.items():
        if name not in declines and (refusal := _exception_of(target, attempt)) is not None:
            reasons[name] = f"refuses it: {one_line(refusal)}"
    if reasons.keys() >= {*parts_of("scaling")}:  # it names the field, and takes no rule: a fault
        reasons = {name: why for name, why in reasons.items() if whole_of(name) != "scaling"}
    return {**reasons, **_by_dependence({**declines, **reasons}, tried=attempts)}


def _exception_of(target: Any, attempt: Callable[[], Any]) -> BaseException | None:
    """Return the exception that a trial raises, or None."""
    try:
        with target.arrays.running(), _silence():
            attempt()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if not isinstance(error, Exception):  # SystemExit would end the process, were it not caught here
            target.exits.append(one_line(error))
        return error
    return None


@contextmanager
def _silence() -> Iterator[None]:
    """Leave out what a compiler logs when a trial call is refused."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)


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
        rows = start + (np.arange(shape[-1]) if shape else np.array(0))
        return np.broadcast_to(rows % (self.target.reach + 1), shape)

    def fractions(self, count: int) -> Any:
        """Return positions between integers."""
        return np.minimum(self.rows(count) + 0.5, self.target.reach)

    def python(self, kind: str) -> Any:
        """Return positions as an int, or as a range, list or tuple of ints."""
        rows = range(min(5, self.target.reach + 1))
        row = [i % len(rows) for i in range(5)]
        return {"int": rows[-1], "range": rows, "list": row, "tuple": tuple(row)}[kind]

    def of_field(self, name: str) -> tuple[Any, Any]:
        """Return x and positions for a call with a field."""
        x, pos = self.x((2, 5, 5)), self.rows(5)  # as many heads as positions, for seq_axis
        return x, np.stack([pos, np.minimum(pos + 1, self.target.reach)], -1) if name == "axes" else pos

    def with_field(self, name: str = "", value: Any = None) -> Any:
        """Call with a field, or without."""
        x, pos = self.of_field(name)
        return self(x, pos, **({name: value} if name else {}))

    def width(self, width: int) -> int:
        """Return an even width that the default head holds."""
        return min(width, int(self.target.width_of(WIDTH)) // 2 * 2)

    def several(self, count: int) -> None:
        """Call with a tuple of arrays that differ in heads; raise if it is not taken as a tuple of arrays."""
        xs = tuple(self.x((2, heads, 5)) for heads in (3, 1, 2)[:count])
        ys = self(xs, self.rows(5))
        if count != 2 and len(ys) != count:
            raise TypeError(f"the call returned {len(ys)} results for {count} arrays")

    def mixed(self) -> None:
        """Call with tuples of two dtypes; raise if the target refuses all of them."""
        first, *others = self.target.dtypes or self.lib.dtypes
        self.call_any((other, (self.x(dtype=other), self.x(dtype=first))) for other in others)

    def pos(self, values: Any, kind: str) -> Any:
        return self.lib.asarray(np.asarray(values, kind))

    def raw(self, x: Any, pos: Any, **spec: Any) -> Any:
        _watch.trying(x, pos, spec)
        with np.errstate():  # undo changes that the call makes to NumPy's error handling
            return self.target.first_calls.call(self.lib, self.target.call, x, pos, spec)

    def __call__(self, x: Any, pos: Any, **spec: Any) -> Any:
        kind = "float32" if pos.dtype.kind == "f" else self.target.position_dtype
        y = self.raw(x, self.lib.asarray(pos.astype(kind)), **spec)
        if isinstance(x, tuple) and not isinstance(y, tuple | list):
            raise TypeError("the call returned one array for a tuple")
        return y

    def call_any(self, arrays: Any) -> None:
        """Raise if the target refuses every one of these arrays."""
        errors = [_exception_of(self.target, partial(self, x, self.rows(5))) for _, x in arrays]
        refused = [error for error in errors if error is not None]
        if refused and len(refused) == len(errors):
            raise refused[0]

    def under(self, mode: str) -> None:
        """Call under each setting of a mode of the library; raise if the target refuses all of them."""
        x, pos = self.x(), self.pos(self.rows(5), self.target.position_dtype)

        def attempt(setting: Any) -> None:
            with setting(), one_device(self.lib) if mode == "default_device" else nullcontext():
                self.raw(x, pos)

        settings = settings_of(self.lib, mode).values()
        errors = [_exception_of(self.target, partial(attempt, setting)) for setting in settings]
        if errors[0] is not None and None not in errors:
            raise errors[0]

    def traced(self) -> None:
        """Call compiled by PyTorch; code for JAX is compiled as a rule, and fails if it cannot be."""
        if isinstance(self.lib, Torch):
            self.lib.traced(self.target.call)(self.x(), self.pos(self.rows(5), self.target.position_dtype))

    def recorded(self) -> None:
        """Call while PyTorch records a gradient; JAX records gradients of what it traces."""
        if isinstance(self.lib, Torch):
            self(self.x().requires_grad_(), self.rows(5))

    def derived(self) -> None:
        """Call for a derivative in forward mode: PyTorch gives none for an operator without a rule for it."""
        if jvp(self.lib, lambda x: self(x, self.rows(5)), self.x(), self.x())[1] is None:
            raise TypeError("the result has no derivative in forward mode")

    def mapped(self, axes: tuple[int | None, ...]) -> None:
        """Call mapped over x, or over x and positions."""
        pos = self.rows(5) if axes[1] is None else self.rows(4, 5)
        mapped = vmap(self.lib, self.target.call, axes)
        mapped(self.x((4, *SIZES)), self.pos(pos, self.target.position_dtype))

    def in_shards(self) -> None:
        """Call on the parts of a sequence of 16 rows."""
        pos = self.pos(self.rows(16), self.target.position_dtype)
        self.lib.in_shards(self.target.call, self.x((2, 3, 16)), pos)

    def numbers(self, y: Any) -> Any:
        return self.lib.to_numpy(y)
