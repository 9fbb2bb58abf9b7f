"""Scaling rules for longer contexts, in decimals, for the definition.

A rule is a mapping with ``rope_type`` and other keys of a Hugging Face config's ``rope_parameters``; a rule
that depends on the length of the sequence has the key ``length`` too. The formulas are from the papers, as in
transformers' modeling_rope_utils, and share no code with `rope_array`'s own rules. All arithmetic is in the
caller's decimal context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

Rule: TypeAlias = Mapping[str, Any]
Omegas: TypeAlias = Sequence[Decimal]

PI = Decimal(
    "3."
    "14159265358979323846264338327950288419716939937510"
    "58209749445923078164062862089986280348253421170679"
    "82148086513282306647093844609550582231725359408128"
    "48111745028410270193852110555964462294895493038196"
)


def scaled_base(rule: Rule, base: Decimal, width: int) -> Decimal:
    """Return the base after NTK-aware or dynamic scaling; the same base for other rules."""
    rope_type = rule["rope_type"]
    if rope_type == "ntk":  # bloc97's NTK-aware scaling; HunYuan's alpha
        return base * _power(_number(rule, "factor"), Decimal(width) / (width - 2))
    if rope_type == "dynamic":  # emozilla
        trained, factor = _number(rule, "max_position_embeddings"), _number(rule, "factor")
        length = max(_number(rule, "length"), trained)
        return base * _power(factor * length / trained - (factor - 1), Decimal(width) / (width - 2))
    return base


def scaled_series(rule: Rule, omegas: Omegas, base: Decimal, width: int) -> list[Decimal]:
    """Return the frequencies of a series after scaling."""
    rope_type = rule["rope_type"]
    if rope_type not in RULES:
        raise ValueError(
            f"scaling has the rope_type {rope_type!r}; give one of {', '.join(map(repr, RULES))}"
        )
    return RULES[rope_type].series(rule, omegas, base, width)


def amplitude(rule: Rule) -> Decimal:
    """Return a rule's factor on cos and sin."""
    if rule.get("attention_factor") is not None:
        return _number(rule, "attention_factor")
    factor = _number(rule, "factor") if rule.get("factor") is not None else Decimal(1)
    if rule["rope_type"] == "yarn":
        if rule.get("mscale") and rule.get("mscale_all_dim"):
            return _gain(factor, _number(rule, "mscale")) / _gain(factor, _number(rule, "mscale_all_dim"))
        return _gain(factor, Decimal(1))
    if rule["rope_type"] == "longrope" and factor > 1:
        return (1 + factor.ln() / _number(rule, "original_max_position_embeddings").ln()).sqrt()
    return Decimal(1)


def _gain(factor: Decimal, mscale: Decimal) -> Decimal:
    return Decimal(1) if factor <= 1 else mscale * factor.ln() / 10 + 1


def _kept(rule: Rule, omegas: Omegas, base: Decimal, width: int) -> list[Decimal]:
    """Return the frequencies of the new base: `scaled_base` has the rule."""
    return list(omegas)


def _linear(rule: Rule, omegas: Omegas, base: Decimal, width: int) -> list[Decimal]:
    return [omega / _number(rule, "factor") for omega in omegas]  # Chen et al., arXiv 2306.15595


def _yarn(rule: Rule, omegas: Omegas, base: Decimal, width: int) -> list[Decimal]:
    """Peng et al., arXiv 2309.00071, section 3.2, in indices of frequencies instead of wavelengths."""
    trained, factor = _number(rule, "original_max_position_embeddings"), _number(rule, "factor")

    def index(turns: Decimal) -> Decimal:  # of the frequency with trained·ω = 2π·turns
        return width * ln(trained / (2 * PI * turns)) / (2 * ln(base))

    first, last = index(_number(rule, "beta_fast", 32)), index(_number(rule, "beta_slow", 1))
    if rule.get("truncate", True):
        first, last = first.to_integral_value(ROUND_FLOOR), last.to_integral_value(ROUND_CEILING)
    first, last = max(first, Decimal(0)), min(last, Decimal(width - 1))
    last += Decimal("0.001") if first == last else 0
    shares = [min(max((i - first) / (last - first), Decimal(0)), Decimal(1)) for i in range(len(omegas))]
    return [w * (share / factor + 1 - share) for w, share in zip(omegas, shares, strict=True)]


def _llama3(rule: Rule, omegas: Omegas, base: Decimal, width: int) -> list[Decimal]:
    """Return Llama 3.1's smoothed step; meta-llama/llama-models, apply_scaling."""
    low, high = _number(rule, "low_freq_factor"), _number(rule, "high_freq_factor")
    scaled = []
    for omega in omegas:
        turns = _number(rule, "original_max_position_embeddings") * omega / (2 * PI)
        kept = min(max((turns - low) / (high - low), Decimal(0)), Decimal(1))
        scaled.append(omega * (kept + (1 - kept) / _number(rule, "factor")))
    return scaled


def _longrope(rule: Rule, omegas: Omegas, base: Decimal, width: int) -> list[Decimal]:
    """Ding et al., arXiv 2402.13753; sequences longer than the trained context use the long list."""
    long = rule["length"] > rule["original_max_position_embeddings"]
    divisors = rule["long_factor" if long else "short_factor"]
    return [omega / Decimal(divisor) for omega, divisor in zip(omegas, divisors, strict=True)]


def _proportional(rule: Rule, omegas: Omegas, base: Decimal, width: int) -> list[Decimal]:
    """Gemma 4: keep the first share of the frequencies, set the others to 0."""
    turning = int(_number(rule, "partial_rotary_factor") * width / 2)
    factor = _number(rule, "factor", 1)
    return [omega / factor if i < turning else Decimal(0) for i, omega in enumerate(omegas)]


def _periods(rule: Rule, omegas: Omegas, base: Decimal, width: int) -> list[Decimal]:
    """DINOv3, arXiv 2508.10104: 2π over periods that are powers of the base."""
    return [2 * PI * omega for omega in omegas]


class Formula(NamedTuple):
    """A rule of the definition."""

    # Returns the frequencies of a series, for a rule, the series, its base and its width.
    series: Callable[[Rule, Omegas, Decimal, int], list[Decimal]]
    # The parameters of the rule in the suite's calls; 16 bits round the factors. A name of
    # `_named_values.LISTS` is a list with a number for each pair.
    parameters: Mapping[str, Any]

    @property
    def requirement(self) -> str:
        """The requirement of the rule's check: the first line of the function's docstring."""
        return (self.series.__doc__ or "").partition("\n")[0]


_TRAINED = {"original_max_position_embeddings": 64}
# The rules by their rope_type. The suite's levels, capabilities and checks of each rule are made from them.
RULES = {
    "linear": Formula(_linear, {"factor": 3.3}),
    "ntk": Formula(_kept, {"factor": 3.3}),
    "dynamic": Formula(_kept, {"factor": 2.0, "max_position_embeddings": 64, "length": 200}),
    "yarn": Formula(_yarn, {"factor": 3.3, **_TRAINED}),
    "llama3": Formula(_llama3, {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **_TRAINED}),
    "longrope": Formula(
        _longrope,
        {"factor": 32.0, "short_factor": "rising", "long_factor": "steep", "length": 65, **_TRAINED},
    ),
    "proportional": Formula(_proportional, {"partial_rotary_factor": 0.5, "factor": 2.0}),
    "periods": Formula(_periods, {}),
}


@lru_cache(maxsize=256)
def ln(number: Decimal) -> Decimal:
    """Return the natural logarithm in the definition's context, the only one it is called in."""
    return number.ln()


def _number(rule: Rule, key: str, default: float | None = None) -> Decimal:
    return _decimal(rule[key] if default is None else rule.get(key, default))


_decimal = lru_cache(maxsize=256)(Decimal)  # conversion takes longer than a product


def _power(number: Decimal, exponent: Decimal) -> Decimal:
    return (ln(number) * exponent).exp()
