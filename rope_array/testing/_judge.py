"""Make arrays for a target, call it, and judge its results by the definition."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ._budget import Budget
from ._capability_parts import PARTS, whole_of
from ._claims import describe, one_line
from ._contract import Accuracy, allowed, assert_contract, read_and_written_pairs
from ._definition import apply_definition
from ._factors import DTYPES, NEAR, WIDTH, CallFactors
from ._failure import Failure, difference, named
from ._libraries import ArrayLibrary, rounded
from ._named_values import FrequenciesInArray
from ._refused import CheckCalls, Declined, EndingError, Refused, caught

Target = Any  # of `_target`, which imports this module by way of `_trials`

Floats = NDArray[np.float64]


DELETES_X = "the call deleted x, as jax.jit does with donate_argnums"


class NoCalls(NotImplementedError):
    """A target claims none of the calls of a check."""


class DeletedError(AssertionError):
    """A call deleted x: no refusal of the call."""


class Input(NamedTuple):
    """An array for a target, and its values in float64."""

    array: Any
    values: Floats
    dtype: str


class Judge:
    """Makes arrays for one target and judges its results."""

    explains = True  # whether a failed check looks for the simplest call that fails
    # Writes a line before each call; None outside of a child process.
    announce: Callable[[str], None] | None = None

    def __init__(self, target: Target, thorough: bool = False):
        self.target, self.thorough = target, thorough
        self.lib: ArrayLibrary = target.arrays
        with self.lib.running():  # before `claimed` below, which may call the target
            self.settings = self.lib.defaults()  # defaults of the library before the first call of the target
        # Largest error of the results in `dtype` by range of positions, in lengths of the pair.
        self.worst: dict[str, float] = {}
        # Whether x is released as soon as the caller drops it; not if a call makes cycles of references.
        self.releases = True
        # Why the target refused all calls of a check that was run, by the check's name.
        self.refusals: dict[str, str] = {}
        self.left_out: dict[str, str] = {}  # the same for some of its calls
        self.faults: dict[str, Failure] = {}  # the fault of each failed check, by the check's name
        self.calls = CheckCalls()  # the calls of the check that runs
        self.fresh = 0  # number of calls that were made for the first time; see `_checks._first`
        # Earlier results with their bits, to see whether a later call writes to them.
        self.kept: list[tuple[Any, bytes]] = []
        # The first fault that each observer saw, by the name of its check.
        self.observed: dict[str, Failure] = {}
        self.reported: set[str] = set()  # the names of the checks of observers that failed
        self.is_observed = False  # whether the calls for observers were made
        # How many calls checks make, and costly observers watch.
        self.budget = Budget(self.lib.calls, target.compiled)
        # Whether positions of shape (B, S) match the first axis of x, by the number of axes before its rows.
        self.matched_ranks: dict[int, bool] = {}
        claimed = target.claimed
        self.dtypes = [d for d in ("float32", "float64", "float16", "bfloat16") if d in claimed]

    @property
    def dtype(self) -> str:
        """The default dtype of checks: float32 if claimed."""
        return self.dtypes[0]

    @cached_property
    def plain(self) -> CallFactors:
        """The call without fields, at the suite's usual sizes."""
        kind, reach = self.target.position_dtype, min(NEAR, self.target.reach)
        return CallFactors(dtype=self.dtype, width=self.width, kind=kind, reach=reach)

    def claims(self, *names: str) -> bool:
        """Return whether all these capabilities are claimed."""
        claimed: frozenset[str] = self.target.claimed
        return claimed.issuperset(names)

    def parts(self, name: str) -> list[str]:
        """Return the labels of the claimed parts of a capability: ["1", "2"] of `ranks`."""
        return [label for label in PARTS[name] if self.claims(f"{name}[{label}]")]

    @property
    def width(self) -> int:
        """The default head_dim of checks."""
        width: int = self.target.width_of(WIDTH)
        return width

    def array(self, values: NDArray[Any], dtype: str | None = None) -> Input:
        """Make an array of these numbers, rounded to its dtype."""
        dtype = dtype or self.dtype
        numbers = rounded(np.asarray(values, np.float64, order="C"), dtype)
        return Input(self.lib.asarray(numbers, dtype), numbers, dtype)

    def pos(self, values: Any, dtype: str | None = None) -> Any:
        """Make an array of positions, by default float32 or an integer dtype that it takes."""
        values = np.asarray(self.within(values))
        dtype = dtype or ("float32" if values.dtype.kind == "f" else self.target.position_dtype)
        return self.lib.asarray(values.astype(dtype))

    def row(self, start: int, count: int) -> NDArray[np.int64]:
        """Return consecutive positions, from `start` or as near to it as the target's claims allow."""
        last_start = max(self.target.reach + 1 - count, 0)
        start = min(start, last_start) if self.claims("offset_positions") else 0
        row = np.arange(start, start + count)
        return self.wrap(row) if self.claims("any_positions") else row

    def wrap(self, positions: Any) -> NDArray[np.int64]:
        """Return positions modulo the number of positions that the target takes."""
        return np.asarray(np.asarray(positions) % (self.target.reach + 1), np.int64)

    def within(self, pos: Any) -> Any:
        """Return positions; integers of a NumPy array beyond the reach of the target are wrapped."""
        reach, depth = self.target.reach, self.target.reach
        if not isinstance(pos, np.ndarray) or pos.dtype.kind not in "iu" or not pos.size:
            return pos
        if int(pos.min()) < 0:
            depth = self.target.depth
        if int(pos.max()) <= reach and int(pos.min()) >= -depth - (depth == reach):
            return pos
        wrapped = np.where(pos < 0, -(-pos % (depth + 1)), pos % (reach + 1))
        return wrapped.astype(pos.dtype)

    def call(self, x: Any, pos: Any, **spec: Any) -> Any:
        """Call the target without converting positions; raise `Refused` for a call that it may refuse."""
        spec = self.fit(spec)
        try:
            y = self.bare_call(x, pos, spec)
        except Exception as error:
            if text := self.calls.refusal(self, x, pos, spec, error):
                self.calls.refused.append(text)
                raise Refused(text) from error
            raise
        self.calls.served += 1
        return y

    def bare_call(self, x: Any, pos: Any, spec: dict[str, Any]) -> Any:
        """Call the target; what it raises is an `Exception`, or the user's KeyboardInterrupt."""
        x = self.begin_call(x, pos, spec)
        try:
            with np.errstate():  # undo changes that the call makes to NumPy's error handling
                y = self.target.call(x, pos, **spec)
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise caught(error) from error
        if any(map(self.lib.is_deleted, x if isinstance(x, tuple) else (x,))):
            raise DeletedError(DELETES_X)
        return y

    def make_inputs(self, xs: tuple[Input, ...], pos: Any, **options: Any) -> Any:
        """Make attention's inputs of q, or of q and k; see `Target.make_inputs`."""
        arrays = self.begin_call(xs, pos, options)
        with np.errstate():
            result = self.target.make_inputs(arrays, pos, **options)
        self.calls.served += 1
        return result

    def begin_call(self, x: Any, pos: Any, spec: dict[str, Any]) -> Any:
        """Announce a call, so that a process that ends in it has said which; return its array or arrays."""
        x = tuple(map(_array_of, x)) if type(x) is tuple else _array_of(x)
        if self.announce is not None:
            self.announce(f"call {describe(x, pos, spec)}")
        return x

    def try_call(self, x: Any, pos: Any, **spec: Any) -> Any:
        """Call the target; return None if it declines, or raises and has not declared its claims."""
        try:
            return self.call(x, pos, **spec)
        except Declined:
            return None
        except Exception as error:
            if self.target.declared or isinstance(error, DeletedError | EndingError):
                raise
            self.calls.refused.append(one_line(error))
            return None

    def numbers(self, y: Any) -> Floats:
        """Return a result's values in float64."""
        return self.lib.to_numpy(y).astype(np.float64)

    def fields(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the definition for a call: defaults, fixed fields and spec."""
        merged = {**self.target.defaults, **self.fit(spec)}
        if spec.get("axes") is not None and "rotary_dim" not in spec:
            merged.pop("rotary_dim", None)  # implied by the axes
        if isinstance(frequencies := merged.get("inv_freq"), FrequenciesInArray):
            merged["inv_freq"] = tuple(frequencies)  # without the array, as plans are cached
        return {name: value for name, value in merged.items() if name not in ("inverse", "seq_axis")}

    def fit(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Return a call's fields, with a smaller slice if a head narrower than 16 does not hold it."""
        start, rotated, width = spec.get("rotary_start") or 0, spec.get("rotary_dim"), self.width
        if width >= WIDTH or start + (rotated or 0) <= width:
            return spec
        start = start * width // WIDTH
        if rotated is None:
            return {**spec, "rotary_start": start // 2 * 2 + width % 2}
        rotated = max(2, min(rotated, WIDTH) * width // (2 * WIDTH) * 2)
        fitted = {"rotary_start": min(start, width - rotated), "rotary_dim": rotated}
        return {**spec, **{name: value for name, value in fitted.items() if name in spec}}

    def exact(self, values: Floats, pos: Any, **spec: Any) -> Floats:
        """Return the definition's result."""
        return apply_definition(values, pos, **self._arguments(spec))

    def _arguments(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the definition, with the direction and the axis of the call."""
        return self.fields(spec) | {name: spec[name] for name in ("inverse", "seq_axis") if name in spec}

    def check_kind(self, y: Any, x: Input) -> None:
        """Assert that a result has x's library, shape, dtype and device."""
        assert self.lib.owns(y), (
            f"the result is a {type(y).__module__}.{type(y).__qualname__}, not an array of {self.lib}"
        )
        shape = tuple(y.shape)
        assert shape == x.values.shape, f"the result has shape {shape}, x {x.values.shape}"
        dtype = self.lib.dtype_of(y)
        assert dtype == x.dtype, f"the result is {dtype}, x {x.dtype}"
        devices = [self.lib.device_of(a) for a in (y, x.array)]
        assert devices[0] == devices[1], f"the result is on {devices[0]}, x on {devices[1]}"

    def check_values(
        self, y: Floats, x: Input, pos: Any, accuracy: Accuracy | None = None, **spec: Any
    ) -> None:
        """Assert that the values are x rotated, within `accuracy` or the target's class."""
        for head, y_of_head, x_of_head, fields in _by_head(y, x, spec):
            with named(head):
                assert_contract(
                    y_of_head, x_of_head.values, pos, dtype=x.dtype, flushes=True,
                    accuracy=accuracy or self.target.accuracy, **self._arguments(fields),
                )  # fmt: skip

    def if_served(self) -> AbstractContextManager[None]:
        """Return a context that ends where a call is refused, so that a check can go on."""
        return suppress(Declined)

    def raise_refused(self, reason: str) -> NoReturn:
        """End a check whose calls are all refused: it is reported as not applicable."""
        if self.calls.refused:
            raise Refused(self.calls.refused[-1])
        # Where claims are declared, only a forced backend can decline a call.
        raise (Declined if self.target.declared else NotImplementedError)(reason)

    def check_equal(self, actual: Floats, expected: Floats, text: str, pos: Any = None) -> None:
        """Assert that results have equal values; the text follows the number of the elements that differ."""
        if failure := difference(actual, expected, text, pos):
            raise failure

    def bound(self, x: Floats, pos: Any, dtype: str) -> Floats:
        """Return the allowed error of one rotation for each element."""
        return allowed(x, dtype, self.fields({}), pos=pos, flushes=True, accuracy=self.target.accuracy)

    def pairs(self, spec: dict[str, Any] | None = None, width: int | None = None) -> Any:
        """Return the indices of the pairs that a call reads, then of the pairs that it writes."""
        spec = spec or {}
        return read_and_written_pairs(
            width or self.width, self.fields(spec), bool(spec.get("inverse", False))
        )

    @property
    def amplitude(self) -> float:
        """The attention factor of a call without fields."""
        return abs(float(self.fields({}).get("attention_factor") or 1.0))

    def check_nonfinite(self, y: Floats, values: Floats, spec: dict[str, Any] | None = None) -> None:
        """Assert that pairs and features with a NaN or an infinity give a NaN or an infinity."""
        (a, b), (c, d) = self.pairs(spec, values.shape[-1])
        lost = ~np.isfinite(values)
        in_pair = lost[..., a] | lost[..., b]
        lost[..., a] = lost[..., b] = False
        # An infinity leaves one of the two results finite at angle 0.
        lost[..., c], lost[..., d] = in_pair & np.isfinite(y[..., d]), False
        lost &= np.isfinite(y)
        assert not lost.any(), f"{lost.sum()} of the NaN and infinities in x became numbers"


def _by_head(
    y: Floats, x: Input, spec: dict[str, Any]
) -> Iterator[tuple[str, Floats, Input, dict[str, Any]]]:
    """Yield a name, y, x and the fields of each head; of all heads at once if their frequencies are equal."""
    frequencies = spec.get("inv_freq")
    if not isinstance(frequencies, FrequenciesInArray) or not frequencies.heads:
        yield "", y, x, spec
        return
    axis = 3 - spec.get("seq_axis", -2) % 4  # of (B, H, S, D) or (B, S, H, D)
    without_axis = {name: value for name, value in spec.items() if name != "seq_axis"}
    for head, omegas in enumerate(frequencies.heads):
        y_of_head, values = (np.take(array, head, axis=axis) for array in (y, x.values))
        yield f"head {head}", y_of_head, x._replace(values=values), {**without_axis, "inv_freq": omegas}


def _array_of(x: Any) -> Any:
    return x.array if isinstance(x, Input) else x


@dataclass(frozen=True, eq=False)
class Check:
    """One named requirement."""

    name: str  # stable; ends in the dtype in brackets if the check runs for each dtype
    requirement: str
    needs: tuple[str, ...]  # capabilities that a target must claim for the check to apply
    # Called with a `Judge`; raises AssertionError if the requirement is not met.
    function: Callable[..., None]
    arguments: tuple[Any, ...] = ()
    thorough: bool = False  # whether it takes long, and is run only if asked for

    def __call__(self, judge: Judge) -> None:
        self.function(judge, *self.arguments)

    def inapplicable(self, judge: Judge) -> str | None:
        """Return why the check does not apply to a judge's target, or None if it applies."""
        if self.thorough and not judge.thorough:
            return "it takes long; --thorough runs it"
        declines = judge.target.declines
        lacking = [name for name in self.needs if name in declines]
        lacking = [name for name in lacking if name == whole_of(name) or whole_of(name) not in lacking]
        return "; ".join(f"{name}: {declines[name]}" for name in lacking) or None


# The checks that are code, by their subject.
registered: dict[str, list[Check]] = {}


def check(
    subject: str, *needs: str, each_dtype: bool = False, values: bool = True, thorough: bool = False
) -> Callable[..., Any]:
    """Register a function as a check of the same name; its docstring is the requirement."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        requirement = re.sub(r"\s+", " ", function.__doc__ or "").strip()
        all_needs = (*(("values",) if values else ()), *needs)
        for dtype in DTYPES if each_dtype else [None]:
            name = function.__name__ if dtype is None else f"{function.__name__}[{dtype}]"
            arguments = () if dtype is None else (dtype,)
            new = Check(name, requirement, (*all_needs, *arguments), function, arguments, thorough)
            registered.setdefault(subject, []).append(new)
        return function

    return register
