"""The fields of a RoPE: a frozen record of plain Python values, checked when it is made."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, TypedDict, get_args

from rope_array._dynamo import known, traced_memo
from rope_array._errors import SpecError, describe, short

from .axes import Axes, series_lengths
from .float32_steps import float32
from .frequencies import RULE_REMEDY, Scaling, frequencies, turns
from .plan import PAIRINGS, Constants, Coordinates, Layout, Plan, Words
from .plan import Pairing as Pairing
from .validation import (
    MAX_PAIRS,
    MAX_WIDTH,
    choice,
    complete,
    integer,
    invertible,
    number,
    positive,
    record,
    sequence,
)

Angles = Literal["exact", "float32"]


class Fields(TypedDict, total=False):
    """The fields of `RoPE` as keyword arguments, for type checkers."""

    head_dim: int
    base: float
    rotary_dim: int | None
    rotary_start: int
    pairing: Pairing
    out_pairing: Pairing | None
    scaling: Scaling | None
    axes: Axes | None
    inv_freq: Sequence[float] | None
    attention_factor: float | None
    angles: Angles
    max_position: int | None


@dataclass(frozen=True)
class Spec:
    """The fields of `RoPE` with their checks and read-outs. `RoPE` adds the methods that take arrays."""

    head_dim: int
    _: KW_ONLY
    base: float = 10000.0
    rotary_dim: int = None  # type: ignore[assignment]  # resolved below: the rest of the head
    rotary_start: int = 0
    pairing: Pairing = "interleaved"
    out_pairing: Pairing | None = None
    scaling: Scaling | None = None
    axes: Axes | None = None
    inv_freq: tuple[float, ...] | None = None
    attention_factor: float | None = None
    angles: Angles = "exact"
    max_position: int | None = None
    _plan: ClassVar[Plan | None]  # not a field; None if scaling needs at_length first

    def __new__(cls, *args: Any, **fields: Any) -> "Spec":
        """Check the names of the fields: a misspelt one is a SpecError, with the field that it may mean."""
        if has_own_init(cls):
            return super().__new__(cls)
        names = cls.__dataclass_fields__.keys()
        if not fields.keys() <= names:
            raise unknown_fields(fields.keys() - names)
        if len(args) > 1:
            raise SpecError(f"RoPE takes head_dim by position, not {short(args)}; give the others by name.")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        values = _build(*[known(getattr(self, name)) for name in FIELDS])
        for name, value in zip((*FIELDS, "_plan"), values, strict=True):
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # The version that loads the spec derives its own plan.
        return _load, (type(self), {f.name: getattr(self, f.name) for f in fields(self) if f.init})

    def __repr__(self) -> str:
        """Return the fields that differ from their defaults."""
        defaults = {field.name: field.default for field in fields(self)}
        defaults["rotary_dim"] = self.head_dim - self.rotary_start
        values = {name: getattr(self, name) for name in defaults}
        text = ", ".join(f"{name}={value!r}" for name, value in values.items() if value != defaults[name])
        return f"{type(self).__name__}({text})"

    @property
    def frequencies(self) -> tuple[float, ...]:
        """Effective frequency ω of each pair, in radians per position: rotary_dim/2 floats."""
        return require_plan(self).frequencies.values

    @property
    def amplitude(self) -> float:
        """The factor on cos and sin: `attention_factor`, or the scaling's, or 1.0."""
        factor = require_plan(self).layout.amplitude
        assert factor is not None
        return factor


def has_own_init(cls: type[Spec]) -> bool:
    """Return whether a subclass has an __init__ of its own, with its own parameters."""
    owner = next(c for c in cls.__mro__ if "__init__" in vars(c))
    return "__dataclass_params__" not in vars(owner)


def require_plan(spec: Spec) -> Plan:
    """Return the plan of a spec; raise SpecError if its scaling needs a length first."""
    if spec._plan is None:
        assert spec.scaling is not None
        spec.scaling._check_length()
    return spec._plan  # type: ignore[return-value]  # _check_length has raised


def _check_and_plan(*values: Any) -> tuple[Any, ...]:
    """Check the fields of a spec; return them with defaults resolved, and the plan.

    The plan is None if the rule needs a length first. Fields become plain Python values.
    """
    spec = SimpleNamespace(**dict(zip(FIELDS, values, strict=True)))
    spec.head_dim = integer("head_dim", spec.head_dim, 1)
    spec.rotary_start = integer("rotary_start", spec.rotary_start, 0)
    if spec.rotary_start > spec.head_dim:
        raise SpecError(
            f"rotary_start is {spec.rotary_start}, past the end of a head of {spec.head_dim}; give at most "
            "head_dim."
        )
    spec.axes = record("axes", spec.axes, Axes, _AXES_REMEDY)
    spec.rotary_dim = _rotary_dim(spec.rotary_dim, spec.head_dim, spec.rotary_start, spec.axes)
    spec.pairing = check_pairing("pairing", spec.pairing)
    spec.base = positive("base", spec.base, "a finite number above 0, such as 10000.0")
    spec.out_pairing = _out_pairing(spec.out_pairing, spec.pairing)
    spec.scaling = _scaling(spec.scaling)
    spec.inv_freq = _inv_freq(spec.inv_freq, spec.rotary_dim, spec.scaling)
    if spec.attention_factor is not None:
        spec.attention_factor = invertible("attention_factor", spec.attention_factor)
    spec.angles = choice("angles", spec.angles, get_args(Angles))
    if spec.max_position is not None:
        spec.max_position = integer("max_position", spec.max_position, 0)
    spec._plan = _plan(spec)
    return tuple(getattr(spec, name) for name in (*FIELDS, "_plan"))


def _key(*values: Any) -> tuple[Any, ...]:
    """Return the key of a spec's values in a memo. Types are part of it, as True equals 1."""
    for value in values:
        if hasattr(value, "__dataclass_fields__"):
            complete(value)
    types = [tuple(map(type, v[:MAX_PAIRS])) if type(v) is tuple else type(v) for v in values]
    return (*values, *types)


# The checked fields and the plan of a spec. A memo, so that a compiled function may make a spec.
_build = traced_memo(_check_and_plan, _key)


# The rule at a length, by a memo too.
rule_at_length = traced_memo(lambda rule, length: rule._at_length(length), _key)


def _load(cls: type[Spec], values: dict[str, Any]) -> Spec:
    return cls(**values)


def check_pairing(name: str, value: Any) -> str:
    if isinstance(value, str) and (meaning := _OTHER_PAIRINGS.get(value.lower())):
        raise SpecError(
            f"{name} is {short(value)}, which here is named {meaning}; give 'interleaved' or 'half'."
        )
    return choice(name, value, PAIRINGS)


# Names that other libraries give to the two pairings.
_OTHER_PAIRINGS = {
    **dict.fromkeys(("neox", "gpt_neox", "gpt-neox", "rotate_half", "hf", "huggingface", "split"), "'half'"),
    **dict.fromkeys(("gptj", "gpt_j", "gpt-j", "rotate_every_two", "roformer", "adjacent"), "'interleaved'"),
    "llama": "'half' for Hugging Face's weights and 'interleaved' for Meta's",
}


def _scaling(value: Any) -> Scaling | None:
    """Check a rule; for the rotary parameters of a config, or their rope_type, name the rule to give."""
    if value is None:
        return None
    is_mapping = isinstance(value, Mapping)
    rope_type = value.get("rope_type", value.get("type")) if is_mapping else value
    rule = _written_rule(rope_type) if isinstance(rope_type, str) else None
    if is_mapping or rule:
        raise SpecError(
            f"scaling is {describe(value)}; give {rule or 'a rule, such as ra.Linear(factor=4.0)'}, "
            "or read the whole config with ra.RoPE.from_config(config)."
        )
    return record("scaling", value, Scaling, RULE_REMEDY)  # type: ignore[no-any-return]


def _written_rule(rope_type: str) -> str | None:
    """Return the rule to give for a config's rope_type, with the fields that it needs."""
    if rope_type == "default":
        return "None, as it changes nothing"
    from .scaling import OF_CONFIGS  # late: few programs give a config's parameters

    rule = OF_CONFIGS.get("longrope" if rope_type == "su" else rope_type)
    return f"ra.{rule.__name__}({rule._example})" if rule else None


_AXES_REMEDY = (
    "an Axes, such as Axes.chunked(16, 24, 24), or a map of your own, as Axes(coordinates, indices=..., "
    "widths=...)"
)


def _out_pairing(value: Any, pairing: str) -> str | None:
    # None if equal to pairing, so that dataclasses.replace(rope, pairing=...) changes both.
    checked = pairing if value is None else check_pairing("out_pairing", value)
    return None if checked == pairing else checked


def _rotary_dim(value: Any, head_dim: int, start: int, axes: Axes | None) -> int:
    if value is not None:
        name, width = "rotary_dim", integer("rotary_dim", value, 0)
    else:
        name, width = "head_dim - rotary_start" if start else "head_dim", head_dim - start
    if start + width > head_dim:
        raise SpecError(
            f"rotary_dim is {width} from rotary_start {start}, beyond head_dim {head_dim}; "
            f"give a rotary_dim of at most {head_dim - start}."
        )
    if axes is not None and 2 * len(axes.coordinates) != width:
        raise _other_width(len(axes.coordinates), name, width, head_dim - start)
    if width > MAX_WIDTH:
        raise SpecError(f"{name} is {width}; give a rotary_dim of at most {MAX_WIDTH}.")
    if width % 2:
        raise SpecError(
            f"{name} is {width}, odd; features are rotated in pairs, so the rotated width must be even: "
            f"give rotary_dim={width - 1} to leave one feature unrotated."
        )
    return width


def _other_width(pairs: int, name: str, width: int, available: int) -> SpecError:
    """Return the error for a map of fewer or more pairs than the rotated slice has."""
    fits, even = [], width - width % 2
    if pairs != width // 2:
        fits = [f"a map of {even // 2} pairs{f' and rotary_dim={even}' if width % 2 else ''}"]
        if 2 * pairs < width:
            fits[0] += (
                f" (the widths of Axes.axial are features: their sum is {even}; num_pairs={even // 2} of "
                "Axes.chunked and Axes.interleaved adds pairs)"
            )
    if 2 * pairs <= available:
        fits.append(f"rotary_dim={2 * pairs} to rotate the features of the map alone")
    return SpecError(
        f"axes has {pairs} pairs, which are {2 * pairs} features, and {name} is {width}; give "
        f"{', or '.join(fits)}."
    )


def _inv_freq(value: Any, width: int, scaling: Any) -> tuple[float, ...] | None:
    if value is None:
        return None
    if scaling is not None:
        raise SpecError(
            f"both inv_freq and scaling={short(scaling)} are given, and each sets the frequencies; give one. "
            "To keep a rule's amplitude with inv_freq, give it as attention_factor."
        )
    omegas: tuple[float, ...] = sequence("inv_freq", value, _INV_FREQ_REMEDY, number)
    if len(omegas) != width // 2:
        raise SpecError(
            f"inv_freq has {len(omegas)} frequencies; a rotary_dim of {width} has {width // 2} pairs. "
            f"Give {width // 2} frequencies, or rotary_dim={2 * len(omegas)}."
        )
    return omegas


_INV_FREQ_REMEDY = (
    "a tuple of floats (inv_freq.tolist() makes one), or pass the array to "
    "rope.rotation(pos, like=x, inv_freq=...), which keeps its gradient"
)


def _plan(spec: Any) -> Plan | None:
    """Return the plan of checked fields; None if a rule needs a length first."""
    if spec.scaling is not None and not spec.scaling.resolved:
        for width, length in series_lengths(_sources(spec)).items():
            spec.scaling._check_series(width, length)
        return None
    omegas = exact_frequencies(spec)
    values = [*map(float, omegas)]
    if not all(map(math.isfinite, values)):
        source = f"base {spec.base}" if spec.inv_freq is None else "inv_freq"
        rule = "" if spec.scaling is None else f", scaling {short(spec.scaling)}"
        raise SpecError(
            f"{source}{rule} and angles {spec.angles!r} give frequencies beyond the range of floats; give "
            "values nearer to 1."
        )
    amplitude = 1.0 if spec.scaling is None else spec.scaling.amplitude
    layout = Layout(
        spec.head_dim,
        spec.rotary_start,
        spec.rotary_start + spec.rotary_dim,
        spec.pairing,
        spec.out_pairing or spec.pairing,
        amplitude if spec.attention_factor is None else spec.attention_factor,
        spec.axes.blocks if spec.axes else 1,
    )
    return Plan(
        layout,
        Words(values, *turns(omegas, 64, 96)),
        exact=spec.angles == "exact",
        coordinates=_coordinates(spec.axes),
        max_position=spec.max_position,
    )


def _coordinates(axes: Axes | None) -> Coordinates | None:
    if axes is None:
        return None
    assert axes.count is not None
    drivers = axes.coordinates
    mask = Constants([float(a is not None) for a in drivers]) if None in drivers else None
    return Coordinates(axes.count, Constants([a or 0 for a in drivers]), mask)


def exact_frequencies(spec: Any) -> tuple[Decimal, ...]:
    """Return the frequency of each pair as the number that the contract defines, to 60 digits.

    `spec` is a spec, or its checked fields.
    """
    if spec.inv_freq is not None:
        omegas = spec.inv_freq if spec.angles == "exact" else map(float32, spec.inv_freq)
        drivers = spec.axes.coordinates if spec.axes else spec.inv_freq
        return tuple(
            Decimal.from_float(0 if a is None else omega) for omega, a in zip(omegas, drivers, strict=True)
        )
    sources = _sources(spec)
    series = {
        width: frequencies(spec.base, width, length, spec.scaling, spec.angles)
        for width, length in series_lengths(sources).items()
    }
    return tuple([series[source[0]][source[1]] if source else Decimal(0) for source in sources])


def _sources(spec: Any) -> list[tuple[int, int] | None]:
    """Return the series of each pair, by its width, and the number of the pair's frequency in it."""
    if spec.axes is not None:
        return spec.axes.sources(spec.rotary_dim)  # type: ignore[no-any-return]
    return [(spec.rotary_dim, i) for i in range(spec.rotary_dim // 2)]


FIELDS = tuple(f.name for f in fields(Spec) if f.init)


_OPTIONS = ("seq_axis", "inverse", "out", "backend")

# Names that other implementations have, with the field here.
_OTHER_NAMES = {
    **dict.fromkeys(("theta", "rope_theta", "rotary_base", "freq_base", "max_wavelength"), "base"),
    **dict.fromkeys(("head_size", "d_head", "features"), "head_dim"),
    "dim": "head_dim, and rotary_dim if part of a head is rotated",
    **dict.fromkeys(("axis", "seq_dim", "unsqueeze_dim"), "seq_axis, an argument of apply"),
    **dict.fromkeys(("in_place", "inplace"), "out=x, an argument of apply"),
    **dict.fromkeys(("position", "positions", "position_ids", "offset"), "pos, an argument of apply"),
    **dict.fromkeys(("rotary_ndims", "partial_rotary_factor", "rotary_percent"), "rotary_dim, in features"),
    **dict.fromkeys(("interleaved", "is_neox_style", "traditional"), "pairing='interleaved' or 'half'"),
    **dict.fromkeys(("rope_scaling", "rope_type"), "scaling, a rule such as YaRN, or use RoPE.from_config"),
    **dict.fromkeys(("max_position_embeddings", "max_seq_len"), "max_position, if positions need a limit"),
    **dict.fromkeys(("mrope_section", "sections"), "axes, such as Axes.chunked(16, 24, 24)"),
}


def unknown_fields(names: set[str]) -> SpecError:
    """Return the error for names that are no fields, with the field or argument that each may mean."""
    from difflib import get_close_matches  # only here

    meanings = dict(zip(FIELDS, FIELDS, strict=True))
    meanings |= {name: f"{name}, an argument of apply" for name in _OPTIONS}
    clauses = []
    for name in sorted(names):
        close = get_close_matches(name, meanings, n=1)
        hint = _OTHER_NAMES.get(name) or "".join(map(meanings.__getitem__, close))
        clauses.append(f"{name!r} (give {hint})" if hint else repr(name))
    return SpecError(f"RoPE has no field {', '.join(clauses)}; it has {', '.join(FIELDS)}.")


def _make_plan(head_dim: int, **spec: Any) -> Plan:
    return require_plan(Spec(head_dim, **spec))


def _plan_key(head_dim: int, **spec: Any) -> tuple[Any, ...]:
    """Return the key of a spec in the memo of plans."""
    return (*spec, *_key(head_dim, *spec.values()))


# The plan of a spec given field by field: plan_of(head_dim, **spec). One-liners ask for the same plan again.
plan_of = traced_memo(_make_plan, _plan_key)
