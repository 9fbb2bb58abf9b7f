"""What a model's rotary embedding is: a frozen record of plain Python values, checked when it is made."""

import math
import operator
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from decimal import Decimal
from itertools import count
from numbers import Integral, Real
from threading import Lock
from typing import Any, ClassVar, Literal, get_args

from ._errors import SpecError, describe, short
from ._plan import Layout, Plan
from ._scaling import default_frequencies, float32, float32_frequencies, turns

Pairing = Literal["interleaved", "half"]
Angles = Literal["exact", "float32"]


@dataclass(frozen=True)
class Spec:
    """The fields of `RoPE`, their checks and their read-outs; `RoPE` adds the doors that take arrays."""

    head_dim: int
    _: KW_ONLY
    base: float = 10000.0
    rotary_dim: int = None  # type: ignore[assignment]  # resolved below: the rest of the head
    rotary_start: int = 0
    pairing: Pairing = "interleaved"
    out_pairing: Pairing | None = None
    inv_freq: tuple[float, ...] | None = None
    attention_factor: float | None = None
    angles: Angles = "exact"
    _plan: ClassVar[Plan]  # of each instance, but no field of it

    def __post_init__(self) -> None:
        for name, value in _checked(self).items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_plan", _plan(self))

    def __reduce__(self) -> tuple[Any, ...]:
        # The plan is derived: it is made anew where the spec is loaded, by the version that runs there.
        return _load, (type(self), {name: getattr(self, name) for name in _FIELDS})

    @property
    def frequencies(self) -> tuple[float, ...]:
        """Effective frequency ω of each lane, in radians per position: rotary_dim/2 floats."""
        return self._plan.frequencies.values

    @property
    def amplitude(self) -> float:
        """The factor on cos and sin: `attention_factor`, or 1.0 where none is given."""
        return 1.0 if self.attention_factor is None else self.attention_factor


def _load(cls: type[Spec], values: dict[str, Any]) -> Spec:
    return cls(**values)


def _checked(spec: Spec) -> dict[str, Any]:
    """Return the values that the checks settled: defaults resolved, numbers made plain Python ones."""
    head_dim = _integer("head_dim", spec.head_dim, 1)
    start = _integer("rotary_start", spec.rotary_start, 0)
    if start > head_dim:
        raise SpecError(
            f"rotary_start is {start}, past the end of a head of {head_dim}; give at most head_dim."
        )
    width = _rotary_dim(spec.rotary_dim, head_dim, start)
    pairing = _choice("pairing", spec.pairing, get_args(Pairing))
    return {
        "head_dim": head_dim,
        "base": _base(spec.base),
        "rotary_dim": width,
        "rotary_start": start,
        "pairing": pairing,
        "out_pairing": _out_pairing(spec.out_pairing, pairing),
        "inv_freq": _inv_freq(spec.inv_freq, width),
        "attention_factor": _amplitude(spec.attention_factor),
        "angles": _choice("angles", spec.angles, get_args(Angles)),
    }


def _out_pairing(value: Any, pairing: str) -> str | None:
    # None where it is the same, so that dataclasses.replace(rope, pairing=...) changes both.
    return (
        None if value is None or _choice("out_pairing", value, get_args(Pairing)) == pairing else str(value)
    )


def _rotary_dim(value: Any, head_dim: int, start: int) -> int:
    width = head_dim - start if value is None else _integer("rotary_dim", value, 0)
    if start + width > head_dim:
        raise SpecError(
            f"rotary_dim is {width} from rotary_start {start}, beyond head_dim {head_dim}; "
            f"give a rotary_dim of at most {head_dim - start}."
        )
    if width % 2:
        derived = "head_dim - rotary_start" if start else "head_dim"
        name = derived if value is None else "rotary_dim"
        raise SpecError(
            f"{name} is {width}, odd; features turn in pairs, so the rotated width must be even: "
            f"give rotary_dim={width - 1} to leave one feature unrotated."
        )
    return width


def _integer(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SpecError(f"{name} is {describe(value)}; give a Python int of at least {least}.")
    if (number := operator.index(value)) < least:
        raise SpecError(f"{name} is {short(number)}; give an int of at least {least}.")
    return number


def _number(name: str, value: Any, need: str) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError
        number = float(value)
    except (TypeError, OverflowError):
        raise SpecError(f"{name} is {describe(value)}; give {need}.") from None
    if not math.isfinite(number):
        raise SpecError(f"{name} is {number}; give {need}.")
    return number


def _base(value: Any) -> float:
    base = _number("base", value, "a finite number above 0, such as 10000.0")
    if base <= 0:
        raise SpecError(f"base is {base}; give a finite number above 0, such as 10000.0.")
    return base


def _amplitude(value: Any) -> float | None:
    if value is None:
        return None
    factor = _number("attention_factor", value, "a finite number above 0, or None")
    if factor <= 0:
        # 0 has no inverse, and a negative factor would be a half turn that no model means.
        raise SpecError(f"attention_factor is {factor}; give a finite number above 0, or None.")
    if not math.isfinite(1 / factor):
        raise SpecError(
            f"attention_factor is {factor}, whose inverse is beyond floats; give one nearer to 1."
        )
    return factor


def _inv_freq(value: Any, width: int) -> tuple[float, ...] | None:
    if value is None:
        return None
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise SpecError(
            f"inv_freq is {describe(value)}; a RoPE holds plain Python numbers. Give a tuple of floats "
            "(inv_freq.tolist() makes one), or pass the array to rope.rotation(pos, like=x, inv_freq=...), "
            "which keeps its gradient."
        )
    if len(value) != width // 2:
        raise SpecError(
            f"inv_freq has {len(value)} frequencies; a rotary_dim of {width} has {width // 2} pairs. "
            f"Give {width // 2} frequencies, or rotary_dim={2 * len(value)}."
        )
    return tuple(_number(f"inv_freq[{i}]", v, "a finite number") for i, v in enumerate(value))


def _choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise SpecError(f"{name} is {short(value)}; give one of {', '.join(map(repr, allowed))}.")
    return str(value)


def _plan(spec: Spec) -> Plan:
    layout = Layout(
        spec.head_dim,
        spec.rotary_start,
        spec.rotary_start + spec.rotary_dim,
        spec.pairing,
        spec.out_pairing or spec.pairing,
        spec.amplitude,
    )
    omegas = _frequencies(spec)
    if not all(math.isfinite(float(omega)) for omega in omegas):
        raise SpecError(
            f"base is {spec.base} and angles {spec.angles!r}, which gives frequencies beyond the range of "
            "floats; give a base or inv_freq nearer to 1."
        )
    return Plan(layout, spec.angles == "exact", [*map(float, omegas)], turns(omegas, 64), turns(omegas, 96))


def _frequencies(spec: Spec) -> tuple[Decimal, ...]:
    """Return the numbers the angles are made of: the real base^(-2i/d), or each float taken exactly."""
    if spec.angles == "float32":
        if spec.inv_freq is None:
            return tuple(map(Decimal, float32_frequencies(spec.base, spec.rotary_dim)))
        return tuple(Decimal(float32(omega)) for omega in spec.inv_freq)
    if spec.inv_freq is None:
        return default_frequencies(spec.base, spec.rotary_dim)
    return tuple(map(Decimal, spec.inv_freq))


_FIELDS = tuple(f.name for f in fields(Spec) if f.init)


class _Kept:
    """Plans of specs given field by field, each an attribute: see `_registry._Loaded`."""


_kept = _Kept()
_numbers = count()
_names: dict[tuple[Any, ...], str] = {}
_lock = Lock()
_KEPT_AT_MOST = 256


def plan_of(head_dim: int, **spec: Any) -> Plan:
    """Return the plan of a spec given field by field; kept, as one-liners ask for the same one again."""
    plan: Plan | None = getattr(_kept, _name_of(head_dim, **spec), None)
    return plan_of(head_dim, **spec) if plan is None else plan  # None if another thread made room just then


def _name_of(head_dim: int, **spec: Any) -> str:
    if unknown := set(spec).difference(_FIELDS):
        raise SpecError(
            f"RoPE has no field {', '.join(map(repr, sorted(unknown)))}; it has {', '.join(_FIELDS)}."
        )
    key = (*_typed(head_dim), *((name, _typed(value)) for name, value in spec.items()))
    try:
        return _names.get(key) or _keep(key, Spec(head_dim, **spec))
    except TypeError:  # not hashable: a list of frequencies, which the spec makes a tuple, or bad input
        made = Spec(head_dim, **spec)
        return _keep((made,), made)


def _typed(value: Any) -> tuple[Any, ...]:
    """Make a value a key that says of what type it is: True equals 1, but is no width."""
    return (type(value), value, *map(type, value)) if type(value) is tuple else (type(value), value)


# Called by Dynamo while it traces, its result a constant: see _registry._name_of.
_name_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _keep(key: tuple[Any, ...], spec: Spec) -> str:
    with _lock:
        if key not in _names:
            if len(_names) >= _KEPT_AT_MOST:
                _names.clear()
                vars(_kept).clear()
            name = f"plan{next(_numbers)}"
            setattr(_kept, name, spec._plan)
            _names[key] = name
        return _names[key]
