"""A spec in the form that the array code needs: static numbers, no arrays.

Plans and layouts are hashable and compare by value: tracers (jax.jit, torch.compile) take them as constants.
"""

import hashlib
import struct
import zlib
from collections.abc import Callable, Sequence
from math import inf, nan, pi
from typing import Any, Literal, NamedTuple, get_args

from rope_array._dynamo import mark_as_constant, traced_memo
from rope_array._errors import ArrayTypeError, SpecError, describe, static_remedy

from .validation import MAX_PAIRS

Pairing = Literal["interleaved", "half"]
PAIRINGS = get_args(Pairing)


class Layout(NamedTuple):
    """Which features form the pairs, and the amplitude of the tables.

    Pair i of "interleaved" is (2i, 2i+1), of "half" (i, i + d/2), both counted from `start`. Pairs are read
    by `pairing` and written by `out_pairing`. With several blocks, the slice from `start` to `stop` is cut
    into equal blocks, d is the width of one block, and the numbering of pairs continues from block to block.

    The tables already contain the amplitude. It is kept here because the inverse divides by it twice: once to
    undo the rotation, once because the tables contain it. None if the amplitude varies by position and pair
    (xPos).
    """

    head_dim: int
    start: int
    stop: int
    pairing: str
    out_pairing: str
    amplitude: float | None
    blocks: int = 1

    @property
    def num_pairs(self) -> int:
        return (self.stop - self.start) // 2

    def transposed(self, amplitude: float | None) -> "Layout":
        """Return the layout of the transposed rotation, which reads `out_pairing` and writes `pairing`."""
        return self._replace(pairing=self.out_pairing, out_pairing=self.pairing, amplitude=amplitude)

    def check(self) -> None:
        """Raise SpecError for a layout that no rope has, such as one that was changed by hand."""
        sizes = (self.head_dim, self.start, self.stop, self.blocks)
        if (
            any(type(size) is not int for size in sizes)
            or not 0 <= self.start <= self.stop <= self.head_dim
            or not 1 <= self.blocks <= max(1, self.num_pairs)
            or (self.stop - self.start) % (2 * self.blocks)
            or self.pairing not in PAIRINGS
            or self.out_pairing not in PAIRINGS
            or not (
                self.amplitude is None or (isinstance(self.amplitude, float) and 0 < self.amplitude < inf)
            )
        ):
            raise SpecError(
                f"{self} is no layout of a rope: it needs 0 <= start <= stop <= head_dim, a slice of blocks "
                f"of whole pairs, and pairings of {PAIRINGS}. Take the layout of a rope as it is."
            )


class Coordinates(NamedTuple):
    """Which coordinate of a position drives each pair.

    Attributes
    ----------
    number
        How many coordinates a position has, along the last axis of positions.
    of_pairs
        The coordinate of each pair.
    driven_mask
        1.0 for each pair that a coordinate drives and 0.0 for the others; None if all are driven.
    are_angles
        Whether coordinates are the angles of the pairs in radians: see `RoPE.rotation_of_angles`.
    """

    number: int
    of_pairs: "Constants"
    driven_mask: "Constants | None" = None
    are_angles: bool = False


class Words(NamedTuple):
    """The frequencies of all pairs, in the forms that a plan takes.

    Attributes
    ----------
    omegas
        ω in radians per position, as floats.
    turns64, turns96
        round(ω/2π · 2^64), and round(ω/2π · 2^96).
    """

    omegas: Sequence[float]
    turns64: list[int]
    turns96: list[int]


def _is_flag(value: Any) -> bool:
    """Return whether a value is a scalar array of booleans or integers."""
    dtype = str(getattr(value, "dtype", ""))
    return ("bool" in dtype or "int" in dtype) and getattr(value, "shape", None) == ()


class Plan:
    """A spec ready for arrays: its layout, and its frequencies in the forms that the angles need.

    Attributes
    ----------
    layout
        Which features form the pairs.
    coordinates
        Which coordinate drives each pair; None if a position is one number.
    exact
        Whether angles are exact or follow the float32 product.
    frequencies
        ω of each pair, radians per position, as float64.
    turns_q64
        round(ω/2π · 2^64) of each pair, modulo 2^64, as signed 64-bit integers.
    turns_q96
        round(ω/2π · 2^96) modulo 2^96: the upper 64 bits signed, and the lower 32 bits unsigned.
    eighth_turns
        ω in eighths of a turn per position, as float64, for the fraction of a float position.
    inverse
        The inverse plan.
    max_position
        The largest position accepted, where values are on the host; None for no limit. Not part of equality,
        nor of a pickle: the front functions check it before a plan travels.
    derived
        Forms of the plan that backends cache. Not part of equality, nor of a pickle.
    """

    __slots__ = (
        "_hash",
        "_key",
        "coordinates",
        "derived",
        "eighth_turns",
        "exact",
        "frequencies",
        "inverse",
        "layout",
        "max_position",
        "turns_q64",
        "turns_q96",
    )

    def __init__(
        self,
        layout: Layout,
        words: Words,
        *,
        exact: bool = True,
        coordinates: Coordinates | None = None,
        max_position: int | None = None,
        inverse: "Plan | None" = None,
    ):
        mark_as_constant(Plan)  # here, as Dynamo has to know the class before it sees a plan
        self.derived = Derived()
        self.max_position = max_position
        self.layout = layout
        self.coordinates = coordinates
        self.exact = exact
        self.frequencies = Constants(words.omegas)
        self.eighth_turns = Constants([omega * 4 / pi for omega in words.omegas])
        self.set_turns(words.turns64, words.turns96)
        drivers = coordinates and (
            coordinates.number,
            coordinates.of_pairs.values,
            coordinates.driven_mask and coordinates.driven_mask.values,
            coordinates.are_angles,
        )
        turns96 = (constants.values for constants in self.turns_q96)
        self._key: tuple[Any, ...] = (layout, drivers, exact, self.frequencies.values, *turns96)
        self._hash = hash(self._key)
        self.check()
        self.inverse = inverse or self._make_inverse(words)

    def set_turns(self, turns64: Sequence[int], turns96: Sequence[int]) -> None:
        """Set the fixed-point frequencies, of a plan that is being made."""
        self.turns_q64 = Constants(_signed64(turns64))
        upper, lower = [f >> 32 for f in turns96], [f & 0xFFFFFFFF for f in turns96]
        self.turns_q96 = Constants(_signed64(upper)), Constants(lower)

    def _make_inverse(self, words: Words) -> "Plan":
        """Negate the frequencies and transpose the layout: the inverse is a rotation too."""
        assert self.layout.amplitude is not None
        return Plan(
            self.layout.transposed(1.0 / self.layout.amplitude),
            Words([-omega for omega in words.omegas], *([-n for n in ns] for ns in words[1:])),
            exact=self.exact,
            coordinates=self.coordinates,
            max_position=self.max_position,
            inverse=self,
        )

    def for_direction(self, inverse: Any) -> "Plan":
        """Return the plan, or the inverse plan; raise if `inverse` is traced, or no bool."""
        try:
            if not isinstance(inverse, int) and not _is_flag(inverse):
                raise TypeError  # a string such as "no" is true
            return self.inverse if inverse else self
        except Exception:  # raised here, or by a tracer of another library
            text = f"inverse is {describe(inverse)}; give True or False."
            traced = static_remedy("inverse=True") if hasattr(inverse, "dtype") else ""
            raise ArrayTypeError(text + traced) from None

    def check(self) -> None:
        """Raise SpecError for a plan that no rope has, such as one with a layout changed by hand."""
        self.layout.check()
        count = self.layout.num_pairs
        drivers = self.coordinates.of_pairs.values if self.coordinates else (0,) * count
        number = self.coordinates.number if self.coordinates else 1
        sizes = {len(c.values) for c in (self.frequencies, self.turns_q64, *self.turns_q96)} | {len(drivers)}
        outside = drivers and (min(drivers) < 0 or max(drivers) >= number)
        if sizes != {count} or number > MAX_PAIRS or outside:
            raise SpecError(
                f"the plan has {count} pairs, and arrays of {sorted(sizes)}, or more than {MAX_PAIRS} "
                f"coordinates, or one outside 0 to {number - 1}; make the rope anew from its fields."
            )

    def words(self) -> Words:
        """Return the frequencies as `Plan` takes them."""
        upper, lower = (constants.values for constants in self.turns_q96)
        turns96 = [high << 32 | low for high, low in zip(upper, lower, strict=True)]
        return Words([*self.frequencies.values], [*self.turns_q64.values], turns96)

    def of_units(self) -> "Plan":
        """Return the plan whose rotation of (1, 0) in each pair, as half pairs, gives (cos, sin).

        For plans with exact angles alone.
        """
        if self.derived.units is None:
            width = 2 * self.layout.num_pairs
            layout = Layout(width, 0, width, "half", "half", self.layout.amplitude)
            self.derived.units = Plan(layout, self.words(), coordinates=self.coordinates)
        return self.derived.units

    @property
    def takes_angles(self) -> bool:
        """Whether positions are the angles of the pairs."""
        return self.coordinates is not None and self.coordinates.are_angles

    @property
    def takes_fractions(self) -> bool:
        """Whether a kernel may add the angles of fractions of positions, |f| ≤ 1/2.

        A kernel rounds a sum of angles to quarters of a turn by adding 1.5·2^24 eighths to it. That is
        exact for fewer than 2^22 quarters.
        """
        if self.derived.takes_fractions is None:
            small = all([abs(eighths) < 2**22 for eighths in self.eighth_turns.values])
            self.derived.takes_fractions = self.exact and small
        return self.derived.takes_fractions

    def __dask_tokenize__(self) -> str:
        """Return a text by which dask names results: equal plans have equal texts, in every process."""
        if self.derived.token is None:
            layout, drivers, exact, frequencies, *words = self._key
            values = [omega + 0.0 for omega in frequencies]  # 0.0 for -0.0, which is equal
            text = repr((layout, drivers, exact, values, words))
            self.derived.token = f"rope_array.Plan-{hashlib.sha256(text.encode()).hexdigest()}"
        return self.derived.token

    def __reduce__(self) -> tuple[Any, ...]:
        # The hash of a string differs between processes, so a loaded plan computes its own.
        return _load_plan, (self.layout, self.words(), self.exact, self.coordinates)

    def __repr__(self) -> str:
        """Return a line for programs of JAX: equal plans have equal texts, in every process."""
        number = zlib.crc32(repr(self._key).encode())
        return f"Plan(num_pairs={self.layout.num_pairs}, exact={self.exact}, crc32={number:#010x})"

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self._key == other._key


def _load_plan(layout: Layout, words: Words, exact: bool, coordinates: Coordinates | None) -> Plan:
    return Plan(layout, words, exact=exact, coordinates=coordinates)


def _make_plan_of_angles(plan: Plan) -> Plan:
    count = plan.layout.num_pairs
    drivers = Coordinates(count, Constants(range(count)), are_angles=True)
    words = Words([1] * count, [0] * count, [0] * count)
    return Plan(plan.layout, words, exact=plan.exact, coordinates=drivers)


# The plan of a layout whose positions are angles in radians, one for each pair: `plan_of_angles(plan)`.
plan_of_angles: Callable[[Plan], Plan] = traced_memo(_make_plan_of_angles)


def _make_without_frequencies(plan: Plan, coordinates: int = 0) -> Plan:
    zeros = [0] * plan.layout.num_pairs
    drivers = Coordinates(coordinates, Constants(zeros)) if coordinates else plan.coordinates
    return Plan(plan.layout, Words(zeros, zeros, zeros), exact=plan.exact, coordinates=drivers)


# A plan with frequencies of 0, to which those of an array are added: `without_frequencies(plan)`. With a
# number of coordinates, each of them drives every pair: mixed frequencies.
without_frequencies: Callable[..., Plan] = traced_memo(_make_without_frequencies)


class TurnsPlan(Plan):
    """A plan of units, as `Plan.of_units` returns, for one call of a kernel; the caller sets its turns.

    The pairs of all heads are in one row. It is neither hashed nor compared, and has no inverse.
    """

    __slots__ = ()

    def __init__(self, plan: Plan, heads: int):
        width = 2 * heads * plan.layout.num_pairs
        self.layout = Layout(width, 0, width, "half", "half", plan.layout.amplitude)
        self.coordinates, self.exact, self.derived = plan.coordinates, True, Derived()
        self.eighth_turns = Constants([nan] * (width // 2))  # it takes no fractions
        if plan.coordinates is not None:
            of_pairs = Constants(plan.coordinates.of_pairs.values * heads)
            self.coordinates = Coordinates(plan.coordinates.number, of_pairs)

    def check(self) -> None:
        """Raise nothing: the plan is not made by hand."""

    @classmethod
    def for_positions_in_turns(cls, plan: Plan) -> "TurnsPlan":
        """Return the plan for positions that are turns in units of 2^-64, one for each pair."""
        turns_plan, count = cls(plan, 1), plan.layout.num_pairs
        turns_plan.coordinates = Coordinates(count, Constants(range(count)))
        turns_plan.set_turns([1] * count, [2**32] * count)
        return turns_plan


class Derived:
    """Forms of a plan that cost time to make, each cached by the backend that needs it first.

    Attributes
    ----------
    kernel
        The C++ kernel's handle, which bindings.cpp reads.
    text
        The plan as text, in compiled programs of PyTorch.
    token
        The plan's digest in the names of dask's results.
    units
        The plan that `Plan.of_units` returns.
    on_devices
        The numbers of `_gpu.plan_rows` in the memory of each GPU that has used them, by device.
    takes_fractions
        The value of `Plan.takes_fractions`.
    lost
        Of a `TurnsPlan` that a device has computed: NaN for each pair whose frequency is no finite number.
    """

    __slots__ = ("kernel", "lost", "on_devices", "takes_fractions", "text", "token", "units")

    def __init__(self) -> None:
        self.kernel: Any = None
        self.text: str | None = None
        self.token: str | None = None
        self.units: Plan | None = None
        self.on_devices: dict[Any, Any] = {}
        self.takes_fractions: bool | None = None
        self.lost: Any = None


class Constants:
    """Plain numbers, one for each pair.

    Attributes
    ----------
    values
        The numbers.
    arrays
        Arrays of the numbers by dtype, and by device where it has one, cached by libraries and backends that
        know that nothing wraps them.
    """

    __slots__ = ("arrays", "values")

    def __init__(self, values: Sequence[Any]):
        self.values = tuple(values)
        self.arrays: dict[Any, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Constants, (self.values,)


def bits_of_floats(numbers: Sequence[float]) -> tuple[int, ...]:
    """Return the bits of numbers in float64, as signed 64-bit integers, in which form kernels take them."""
    return struct.unpack(f"<{len(numbers)}q", struct.pack(f"<{len(numbers)}d", *numbers))


def _signed64(numbers: Sequence[int]) -> list[int]:
    """Reduce numbers modulo 2^64 into the range of a signed 64-bit integer."""
    return [(number + 2**63) % 2**64 - 2**63 for number in numbers]
