"""Find the claims of undeclared code: make trial calls, and see which of them it refuses.

A trial is the plain call with one factor at another level, or in another context. `_call` makes its arguments
as for checks; its judge has all claims that neither the declaration nor a trial takes away.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np

from ._call import arguments_of
from ._capability_parts import ALL_WIDTHS, BROADCAST, FIRST_WIDTHS, parts_of, whole_of, with_parts
from ._claims import (
    TRIALS,
    by_declaration,
    least_width,
    one_line,
    parameters_of,
    takes_any,
    undeclared_fields,
)
from ._factors import FIELDS, SIZES, WIDTH
from ._judge import Judge
from ._libraries import SETTINGS, TorchLibrary, rounded
from ._modes import jvp, one_device, settings_of, vmap
from ._trial_log import ProcessEnded

Target = Any  # of `_target`, which imports this module

# Positions tried in rising order, up to the first that the callable refuses.
_REACH_STEPS = (
    0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 2047, 2**14 - 1, 2**17, 2**20, 2**24 + 3, 2**31 - 1,
)  # fmt: skip
# The capability that another one needs.
_NEEDED = {"odd_width": "rotary_dim", "mixed_dtypes": "tuple[2]", "array_frequencies": "inv_freq"} | {
    f"broadcast_positions[{axes}]": {2: "batch_positions", 3: "head_positions"}[len(axes)]
    for axes in BROADCAST if len(axes) in (2, 3)
}  # fmt: skip


def find_declines(target: Target) -> Mapping[str, str]:
    """Return every capability and part that a target does not claim, with the reason."""
    reasons = by_declaration(target)
    reasons = with_parts(
        {**undeclared_fields(target), **_refused_fields(target, reasons), **reasons, **target.lacks}
    )
    reasons = with_parts({**_without_needed(reasons), **reasons})
    if not target.declared and "values" not in reasons:
        reasons = with_parts({**reasons, **_refused_calls(target, reasons)})
    return MappingProxyType(reasons)


def _without_needed(reasons: Mapping[str, str], tried: Collection[str] = ()) -> dict[str, str]:
    """Return the capabilities that need a declined capability, except those `tried`."""
    return {
        name: f"{needed}: {reasons[needed]}"
        for name, needed in _NEEDED.items()
        if needed in reasons and name not in tried
    }


def _refused_calls(target: Target, declines: Mapping[str, str]) -> dict[str, str]:
    """Try each capability that a callable may refuse; return the refused ones with the errors."""
    trials, reasons = Trials(target, declines), {}
    for name in (name for name in TRIALS if name not in FIELDS and name not in declines):
        if (refusal := exception_of(target, partial(trials.try_capability, name))) is not None:
            reasons[name] = f"refuses it: {one_line(refusal)}"
            if isinstance(refusal, ProcessEnded):
                target.trials.lost[name] = reasons[name]
    if reasons.keys() >= {*parts_of("scaling")}:  # it names the field, and takes no rule: a fault
        reasons = {name: why for name, why in reasons.items() if whole_of(name) != "scaling"}
    return {**reasons, **_without_needed({**declines, **reasons}, tried=TRIALS)}


def exception_of(target: Target, attempt: Callable[[], Any]) -> BaseException | None:
    """Return the exception that a trial raises, or None."""
    try:
        with target.arrays.running(), _silence():
            attempt()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if not isinstance(error, Exception):  # SystemExit would end the process, were it not caught here
            target.trials.exits.append(one_line(error))
        return error
    return None


@contextmanager
def _silence() -> Iterator[None]:
    """Silence the messages that a compiler logs when a trial call is refused."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)


class Trials:
    """Trial calls of a target; `declines` has the capabilities known not to be claimed."""

    def __init__(self, target: Target, declines: Mapping[str, str] = MappingProxyType({})):
        self.target, self.lib, self.declines = target, target.arrays, declines
        self.dtype = (target.dtypes or ["float32"])[0]

    @cached_property
    def judge(self) -> Judge:
        """The judge that makes the arguments: of a target with every claim that is not declined."""
        claimed = replace(self.target, declared=True)
        known = {name: getattr(self.target, name) for name in ("position_dtype", "refused_widths", "reach")}
        vars(claimed).update(known, depth=known["reach"], declines=self.declines)
        return Judge(claimed)

    def array(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return an array of random numbers."""
        return self.lib.asarray(rounded(np.random.default_rng(0).standard_normal(shape), dtype), dtype)

    def rotate(self, x: Any, pos: Any, **spec: Any) -> Any:
        """Call; raise if a tuple of arrays is not taken as one."""
        with np.errstate():  # undo changes that the call makes to NumPy's error handling
            y = self.target.trials.call(self.lib, self.target.call, x, pos, spec)
        if isinstance(x, tuple):
            if not isinstance(y, tuple | list):
                raise TypeError("the call returned one array for a tuple")
            if len(x) != 2 and len(y) != len(x):
                raise TypeError(f"the call returned {len(y)} results for {len(x)} arrays")
        return y

    def call(self, text: str) -> Any:
        """Call with the values of factors in a text."""
        x, pos, spec = arguments_of(self.judge, text)
        return self.rotate(x, pos, **spec)

    def at(self, row: Any, width: int | None = None, dtype: str | None = None) -> Any:
        """Call at the positions of a row."""
        width = self.target.width_of(WIDTH) if width is None else width
        x = self.array((*SIZES[:2], len(row), width), self.dtype)
        return self.rotate(x, self.lib.asarray(np.asarray(row, dtype or self.target.position_dtype)))

    def takes(self, row: Any) -> bool:
        """Return whether the target takes the positions of a row."""
        return exception_of(self.target, partial(self.at, row)) is None

    def try_capability(self, name: str) -> None:
        """Make the calls that only a target with a capability, or a part, takes; raise if it takes none."""
        if name not in CONTEXTS:
            self.call(TRIALS[name])
            return
        x, pos, spec = arguments_of(self.judge, TRIALS[name])
        self.target.trials.begin(x, pos, spec)
        errors = [exception_of(self.target, attempt) for attempt in CONTEXTS[name](self, x, pos)]
        if errors and errors[0] is not None and None not in errors:
            raise errors[0]


# ---- contexts: each yields calls, of which a target with the capability takes one ----

_Attempts = Iterator[Callable[[], Any]]


def _of_two_dtypes(t: Trials, x: Any, pos: Any) -> _Attempts:
    shape = tuple(x[0].shape)
    for dtype in t.target.dtypes or t.lib.dtypes:
        if dtype != t.dtype:
            yield partial(t.rotate, (t.array(shape, dtype), x[1]), pos)


def _under(mode: str, t: Trials, x: Any, pos: Any) -> _Attempts:
    """Yield a call under each setting of a mode of the library."""

    def attempt(setting: Any) -> None:
        with setting(), one_device(t.lib) if mode == "default_device" else nullcontext():
            t.rotate(x, pos)

    yield from (partial(attempt, setting) for setting in settings_of(t.lib, mode).values())


def _mapped(t: Trials, x: Any, pos: Any) -> _Attempts:
    """Yield a call mapped over the first axis of x, and of positions with two axes or more."""
    yield partial(vmap(t.lib, t.target.call, (0, 0 if pos.ndim > 1 else None)), x, pos)


def _recorded(t: Trials, x: Any, pos: Any) -> _Attempts:
    """Yield a call while PyTorch records a gradient; JAX records gradients of traced calls."""
    if isinstance(t.lib, TorchLibrary):
        yield lambda: t.rotate(x.requires_grad_(), pos)


def _traced(t: Trials, x: Any, pos: Any) -> _Attempts:
    """Yield a call compiled by PyTorch; code for JAX is compiled as a rule, and fails if it cannot be."""
    if isinstance(t.lib, TorchLibrary):
        yield lambda: t.lib.traced(t.target.call)(x, pos)


def _derived(t: Trials, x: Any, pos: Any) -> _Attempts:
    """Yield a call for a derivative in forward mode; PyTorch gives none for an operator without a rule."""

    def attempt() -> None:
        if jvp(t.lib, lambda x: t.rotate(x, pos), x, x)[1] is None:
            raise TypeError("the result has no derivative in forward mode")

    yield attempt


# The capabilities whose trial is a call of another kind.
CONTEXTS: dict[str, Callable[[Trials, Any, Any], _Attempts]] = {
    "strides": lambda t, x, pos: (partial(t.rotate, array, pos) for _, array in t.lib.strided(x)),
    "mixed_dtypes": _of_two_dtypes,
    **{mode: partial(_under, mode) for mode in SETTINGS},
    "vmap": _mapped,
    "vmap_positions": _mapped,
    "gradient": _recorded,
    "jit": _traced,
    "jvp": _derived,
    "shards": lambda t, x, pos: iter([partial(t.lib.in_shards, t.target.call, x, pos)]),
}


# ---- fields ----


def _refused_fields(target: Target, declines: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that are not declared, and that trials refuse."""
    if target.fields is not None or target.declared or "values" in declines:
        return {}
    named, _ = parameters_of(target.rotate)
    unnamed, trials = undeclared_fields(target), Trials(target, declines)
    reasons = {
        name: _why_traced(trials, name) if name in named else _why_refused(trials, name, bool(named))
        for name in FIELDS if name not in unnamed
    }  # fmt: skip
    return {name: reason for name, reason in reasons.items() if reason}


def _why_traced(trials: Trials, name: str) -> str:
    """Return why a function compiled by JAX refuses a field that its signature names, or ""."""
    if not hasattr(trials.target.rotate, "lower"):  # not the result of jax.jit
        return ""
    _, refusal = _tried_field(trials, name)
    if refusal is None:
        return ""
    if type(refusal).__module__.startswith("jax") or isinstance(refusal, TypeError | IndexError):
        return f"jax.jit traces it, as static_argnames does not name it: {one_line(refusal)}"
    return ""


def _tried_field(trials: Trials, name: str) -> tuple[str, BaseException | None]:
    """Return the first call with a field that a target takes, or the first call with its exception."""
    texts = [TRIALS[name]] if name in TRIALS else [TRIALS[part] for part in parts_of(name)]
    refused = []
    for text in texts:
        error = exception_of(trials.target, partial(trials.call, text))
        if error is None:
            return text, None
        refused.append((text, error))
    return refused[0]


def _why_refused(trials: Trials, name: str, others_are_named: bool) -> str:
    """Return why a field that a signature does not name is refused, or changes nothing; "" if neither."""
    text, refusal = _tried_field(trials, name)
    if refusal is not None:
        names_it = isinstance(refusal, NotImplementedError) or (
            isinstance(refusal, TypeError | ValueError | LookupError) and name in str(refusal)
        )
        return f"refuses it: {one_line(refusal)}" if names_it else ""  # another error fails the field's check
    if others_are_named and trials.target.width_of(WIDTH) >= 6:  # narrower, some values change nothing
        x, pos, spec = arguments_of(trials.judge, text)
        with trials.lib.running():
            plain, changed = (trials.lib.to_numpy(trials.rotate(x, pos, **fields)) for fields in ({}, spec))
        if np.array_equal(plain, changed):
            return "is caught by its ** parameter and changes nothing"
    return ""


# ---- positions ----


def find_reach(target: Target) -> int:
    """Return the largest position that a target takes: as claimed, or the last that it does not refuse."""
    if target.declared or target.positions == "arange" or "values" in target.arrays.lacks:
        return int(target.furthest)

    def accepts(last: int) -> bool:
        row = np.arange(last - 4, last + 1)
        return Trials(target).takes(row.clip(0) if takes_any(target) else row[row >= 0])

    reach = _last_taken(accepts, target.furthest, -1)
    return int(target.furthest) if reach < 0 else reach


def find_depth(target: Target) -> int:
    """Return the largest p, up to `target.reach`, for which a target takes position -p."""
    if "negative_positions" in target.declines:
        return 0
    if target.declared or not takes_any(target) or "values" in target.arrays.lacks:
        return int(target.reach)

    @cache
    def accepts(depth: int) -> bool:
        return Trials(target).takes(-np.arange(depth - 4, depth + 1).clip(0))

    return int(target.reach) if accepts(target.reach) else _last_taken(accepts, target.reach, 0)


def _last_taken(accepts: Callable[[int], bool], furthest: int, taken: int) -> int:
    """Return the last number up to `furthest` that is taken: of more than `taken`, all up to a limit are."""
    for step in sorted({*(step for step in _REACH_STEPS if taken < step < furthest), furthest}):
        if not accepts(step):
            return taken + bisect_left(range(taken + 1, step), True, key=lambda number: not accepts(number))
        taken = step
    return taken


def find_position_dtype(target: Target) -> str:
    """Return the first integer dtype of positions that a target does not refuse, the widest first."""
    dtypes: tuple[str, ...] = target.arrays.integers
    if target.declared or "values" in target.arrays.lacks:
        return dtypes[0]
    rows = min(SIZES[-1], target.furthest + 1)
    row = int(target.positions != "arange" and target.furthest >= rows) + np.arange(rows)
    width = min(target.taken_widths) if target.head_dim is not None else least_width(target, WIDTH)
    attempts = ((dtype, partial(Trials(target).at, row, width, dtype)) for dtype in dtypes)
    return next((dtype for dtype, attempt in attempts if exception_of(target, attempt) is None), dtypes[0])


# ---- widths ----


def find_refused_widths(target: Target) -> Mapping[int, str]:
    """Try head_dims; return the refused ones with their errors, or none if all are refused."""
    if target.declared or "values" in target.arrays.lacks:
        return MappingProxyType({})
    rows = min(SIZES[-1], target.furthest + 1)
    # The first calls of all: at positions other than 0, where the result is not x.
    row = np.resize([1, 1, 0], rows) * min(1, target.furthest) if takes_any(target) else np.arange(rows)
    widths = sorted({least_width(target, width) for width in ALL_WIDTHS})
    # Where each width is compiled, the others are tried only if one of a few is refused.
    few = [width for width in widths if width in FIRST_WIDTHS]
    if few and target.arrays.calls < 1000 and not _refused_widths(target, few, row):
        return MappingProxyType({})
    refusals = _refused_widths(target, widths, row)
    if len(refusals) == len(widths) and takes_any(target):  # perhaps a table of one row
        refusals = _refused_widths(target, widths, 0 * row)
    return MappingProxyType(refusals if len(refusals) < len(widths) else {})


def _refused_widths(target: Target, widths: Collection[int], row: Any) -> dict[int, str]:
    trials = Trials(target)

    def attempt(width: int) -> None:
        shape = (*SIZES[:2], len(row), width)
        if (result_shape := tuple(getattr(trials.at(row, width), "shape", shape))) != shape:
            raise ValueError(f"the result has shape {result_shape}")  # tables of another width were broadcast

    errors = {width: exception_of(target, partial(attempt, width)) for width in widths}
    return {width: one_line(error) for width, error in errors.items() if error is not None}
