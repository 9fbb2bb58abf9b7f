"""What a check is given: arrays for a target, its results, and the definition's verdict on them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._claims import DTYPES, REACH, SIZES, WIDTH
from ._contract import Accuracy, allowed, assert_contract, read_and_written
from ._definition import apply_definition
from ._libraries import rounded
from ._target import Target

Floats = NDArray[np.float64]
# First and last position of each range; each begins where the one before it ends.
RANGES = {
    "small": (0, 2**12 - 1),
    "2^16": (REACH["reaches_2e16"], 2**16),
    "2^20": (REACH["reaches_2e20"], 2**20),
    "2^24": (REACH["reaches_2e24"], 2**24 + 3),
    "int32": (REACH["reaches_int32"], 2**31 - 1),
}


class Given(NamedTuple):
    """An array handed to a target, and its values in float64."""

    array: Any
    values: Floats
    dtype: str


class Judge:
    """Makes arrays for one target and judges what comes back.

    Attributes
    ----------
    target, lib
        What is judged, and its arrays.
    settings
        Defaults of the library before the target was called.
    worst
        Largest error of the float32 results by range of positions, in lengths of the pair.
    """

    def __init__(self, target: Target):
        self.target, self.lib = target, target.arrays
        with self.lib.running():  # before the first call, of those by which claims are tried
            self.settings = self.lib.defaults()
        self.worst: dict[str, float] = {}
        claimed = target.claimed
        self.dtypes = [d for d in ("float32", "float64", "float16", "bfloat16") if d in claimed]

    @property
    def dtype(self) -> str:
        """The dtype of checks that are of none in particular: float32 where there is one."""
        return self.dtypes[0]

    def claims(self, *names: str) -> bool:
        """Tell whether all of these are claimed."""
        return self.target.claimed.issuperset(names)

    @property
    def width(self) -> int:
        """The head_dim of checks that are of none in particular."""
        return self.target.width_of(WIDTH)

    def x(self, *shape: int, dtype: str | None = None, seed: int = 0) -> Given:
        """Make an array of random numbers; the last size gives way to the only head_dim that is taken."""
        *lead, width = shape or (*SIZES, WIDTH)
        values = np.random.default_rng(seed).standard_normal((*lead, self.target.width_of(width)))
        return self.given(values, dtype)

    def given(self, values: NDArray[Any], dtype: str | None = None) -> Given:
        """Make an array of these numbers, rounded to its dtype."""
        dtype = dtype or self.dtype
        numbers = rounded(np.asarray(values, np.float64), dtype)
        return Given(self.lib.asarray(numbers, dtype), numbers, dtype)

    def pos(self, values: Any, kind: str | None = None) -> Any:
        """Make an array of positions; integers of the widest dtype that holds them here."""
        values = np.asarray(values)
        kind = kind or ("float32" if values.dtype.kind == "f" else self.lib.integers[0])
        return self.lib.asarray(values.astype(kind))

    def places(self, count: int = SIZES[2]) -> NDArray[np.int64]:
        """Return ordinary positions of the kind that the target serves."""
        if self.claims("any_positions"):
            drawn = np.random.default_rng(7).permutation(min(600, self.target.reach + 1))[:count]
            return drawn.astype(np.int64)
        return self.row(3, count)

    def row(self, start: int, count: int) -> NDArray[np.int64]:
        """Return consecutive positions, from `start` or as near to it as the target serves."""
        start = min(start, self.target.reach + 1 - count) if self.claims("offset_positions") else 0
        return np.arange(start, start + count)

    def served(self, positions: Any) -> NDArray[np.int64]:
        """Return positions as they are, or wrapped into those that the target serves."""
        return np.asarray(np.asarray(positions) % (self.target.reach + 1), np.int64)

    def spread(self, name: str, count: int = 40) -> NDArray[np.int64]:
        """Return positions of a range, its ends and powers of two in it among them, of the kind served."""
        low, high = RANGES[name]
        high = min(high, self.target.reach)
        if not self.claims("any_positions"):
            last = high + 1 if name != "small" or self.claims("offset_positions") else min(count, high + 1)
            return np.arange(max(last - count, 0), last)
        edges = {2**n + near for n in range(31) for near in (-1, 0, 1, 2, 3)} | {low, low + 1, high - 1, high}
        # As many in each octave: what is wrong of a part of the range is met.
        drawn = np.exp(np.random.default_rng(11).uniform(np.log(low + 1), np.log(high + 1), count))
        drawn = np.clip(drawn.astype(np.int64), low, high)
        return np.concatenate([sorted(edge for edge in edges if low <= edge <= high), drawn])

    def run(self, x: Any, pos: Any, **spec: Any) -> Any:
        """Call the target; positions of NumPy's become its own arrays first."""
        return self.call(x, self.pos(pos) if isinstance(pos, np.ndarray) else pos, **spec)

    def call(self, x: Any, pos: Any, **spec: Any) -> Any:
        """Call the target with positions as they are."""
        if isinstance(x, Given):
            x = x.array
        elif isinstance(x, tuple):
            x = tuple(one.array for one in x)
        with np.errstate():  # what the call makes of NumPy's error handling stays its own
            return self.target.call(x, pos, **spec)

    def offered(self, x: Any, pos: Any, **spec: Any) -> Any:
        """Call the target as `call` does; None where it refuses, which one that declares nothing may."""
        try:
            return self.call(x, pos, **spec)
        except Exception:
            if self.target.declared:
                raise
            return None

    def numbers(self, y: Any) -> Floats:
        """Return a result's values in float64."""
        return self.lib.to_numpy(y).astype(np.float64)

    def fields(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Return what a call means to the definition."""
        merged = {**self.target.defaults, **spec}
        if spec.get("axes") is not None and "rotary_dim" not in spec:
            merged.pop("rotary_dim", None)  # the map says it
        return {name: value for name, value in merged.items() if name not in ("inverse", "seq_axis")}

    def exact(self, values: Floats, pos: Any, **spec: Any) -> Floats:
        """Return the definition's result."""
        more = {name: spec[name] for name in ("inverse", "seq_axis") if name in spec}
        return apply_definition(values, pos, **self.fields(spec), **more)

    def check_kind(self, y: Any, x: Given) -> None:
        """Assert that a result is an array as x is: library, shape, dtype, device. Values come after."""
        assert self.lib.owns(y), (
            f"the result is a {type(y).__module__}.{type(y).__qualname__}, no array of {self.lib}"
        )
        shape = tuple(y.shape)
        assert shape == x.values.shape, f"the result has shape {shape}, x {x.values.shape}"
        dtype = self.lib.dtype_of(y)
        assert dtype == x.dtype, f"the result is {dtype}, x {x.dtype}"
        places = [self.lib.device_of(a) for a in (y, x.array)]
        assert places[0] == places[1], f"the result is on {places[0]}, x on {places[1]}"

    def check(self, y: Any, x: Given, pos: Any, **spec: Any) -> None:
        """Assert that y is x rotated, within what the target's class allows."""
        self.check_kind(y, x)
        self.check_values(self.numbers(y), x, pos, **spec)

    def check_values(
        self, y: Floats, x: Given, pos: Any, accuracy: Accuracy | None = None, **spec: Any
    ) -> None:
        """Assert it of the values; of another class than the target's where one is given."""
        more = {name: spec[name] for name in ("inverse", "seq_axis") if name in spec}
        assert_contract(
            y, x.values, pos, dtype=x.dtype, flushes=True, accuracy=accuracy or self.target.accuracy,
            **self.fields(spec), **more,
        )  # fmt: skip

    def rotated(self, x: Given, pos: Any, **spec: Any) -> Floats:
        """Rotate x, check the result, and return its values."""
        y = self.run(x, pos, **spec)
        self.check(y, x, pos, **spec)
        return self.numbers(y)

    def same(self, part: Any, whole: Floats, x: Given, pos: Any, what: str) -> None:
        """Assert that a result is what another call gave: its bits, where those are promised."""
        self.check(part, x, pos)
        if self.claims("same_bits"):
            different = self.numbers(part) != whole
            assert not different.any(), (
                f"{different.sum()} of {different.size} elements have other bits {what}"
            )

    def step(self, x: Floats, pos: Any, dtype: str) -> Floats:
        """Return what one rotation may be off by, for each element."""
        return allowed(x, dtype, self.fields({}), pos=pos, flushes=True, accuracy=self.target.accuracy)

    def pairs(self, spec: dict[str, Any] | None = None, width: int | None = None) -> Any:
        """Return the indices of the pairs that are read, and of those that are written."""
        return read_and_written(width or self.width, self.fields(spec or {}), False)

    @property
    def amplitude(self) -> float:
        """The attention factor of a call without fields."""
        return abs(float(self.fields({}).get("attention_factor") or 1.0))

    def touched(self, values: Floats, spec: dict[str, Any] | None = None) -> NDArray[np.bool_]:
        """Tell which results a NaN or an infinity among the values belongs to."""
        struck = ~np.isfinite(values)
        (a, b), (c, d) = self.pairs(spec)
        both = struck[..., a] | struck[..., b]
        struck[..., a] = struck[..., b] = False
        struck[..., c] = struck[..., d] = both
        return struck

    def check_struck(self, y: Floats, values: Floats, spec: dict[str, Any] | None = None) -> None:
        """Assert that a pair with a NaN or an infinity shows it, and so a feature that is not rotated."""
        struck = self.touched(values, spec)
        (_, _), (c, d) = self.pairs(spec)
        lost = struck & np.isfinite(y)
        lost[..., c] &= lost[..., d]  # one of the two may be finite: an infinity times 0 is not
        lost[..., d] = False
        assert not lost.any(), f"{lost.sum()} of the NaN and infinities in x became numbers"

    def note(self, name: str, y: Floats, x: Given, pos: Any) -> None:
        """Keep the worst error of a range, in lengths of the pair."""
        exact = self.exact(x.values, pos)
        (a, b), out = self.pairs(width=x.values.shape[-1])
        length = np.hypot(x.values[..., a], x.values[..., b])
        for member in out:
            error = float(np.max(np.abs(y[..., member] - exact[..., member]) / length))
            self.worst[name] = max(self.worst.get(name, 0.0), error if np.isfinite(error) else np.inf)


@dataclass(frozen=True)
class Check:
    """One named requirement.

    Attributes
    ----------
    name
        Stable; with the dtype in brackets where it is checked for each.
    requirement
        What is required, in a sentence or two.
    needs
        Capabilities without which it does not apply.
    function
        Called with a `Judge`; raises AssertionError where the requirement is not met.
    """

    name: str
    requirement: str
    needs: tuple[str, ...]
    function: Callable[..., None]
    arguments: tuple[Any, ...] = ()

    def __call__(self, judge: Judge) -> None:
        self.function(judge, *self.arguments)

    def inapplicable(self, target: Target) -> str | None:
        """Say why the check does not apply to a target; None where it does."""
        reasons = [f"{name}: {target.declines[name]}" for name in self.needs if name in target.declines]
        return "; ".join(reasons) or None


registered: list[Check] = []


def check(*needs: str, each_dtype: bool = False, values: bool = True) -> Callable[..., Any]:
    """Register a function as a check, by its name; its docstring is the requirement."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        requirement = re.sub(r"\s+", " ", function.__doc__ or "").strip()
        wanted = (*(("values",) if values else ()), *needs)
        for dtype in DTYPES if each_dtype else [None]:
            name = function.__name__ if dtype is None else f"{function.__name__}[{dtype}]"
            more = () if dtype is None else (dtype,)
            registered.append(Check(name, requirement, (*wanted, *more), function, more))
        return function

    return register
