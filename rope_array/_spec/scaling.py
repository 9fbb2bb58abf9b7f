"""Rules that stretch a model's frequencies to contexts longer than it was trained on: plain Python numbers.

A rule is a frozen record. It computes one series of frequencies from another: `_new_base` changes the base of
the series, `_stretched` each of its frequencies, in float64. A rule depends on the base and the width of a
series (the d of base^(-2i/d)). `amplitude` is the rule's factor on cos and sin.

`_float32_series` has the float32 steps of Hugging Face's function for the rule, in its order: transformers
5.23, modeling_rope_utils.py, ROPE_INIT_FUNCTIONS. There ``number / tensor`` rounds twice: the reciprocal, and
its product with the number.

A new rule is a class here and a name in `__all__`, from which the package, the command, the reader of configs
and errors have it. Its fields are its keys in a config. Then follow the tests that fail: CONTRIBUTING.md.
"""

import math
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import ClassVar, Literal, get_args

from rope_array._errors import SpecError, short

from .float32_steps import float32 as f32
from .float32_steps import inverse, inverses, powers
from .frequencies import RULE_REMEDY, Omegas, Scaling, divided
from .validation import choice, integer, invertible, number, positive, record, sequence, truth

# Every rule, in the order of the documentation.
__all__ = [  # noqa: RUF022
    "Linear",
    "NTKAware",
    "DynamicNTK",
    "YaRN",
    "Llama3",
    "LongRoPE",
    "Proportional",
    "Periods",
    "Reversed",
]

_size = partial(integer, minimum=1)
_divisors = partial(sequence, remedy="a sequence of numbers above 0", check=positive)


@dataclass(frozen=True, repr=False)
class Linear(Scaling):
    """Position interpolation: all frequencies divided by one factor, ω/f [1]_.

    Parameters
    ----------
    factor : float
        How many times the trained context; above 0. Below 1 it raises the frequencies, for positions in
        smaller steps: a factor that stretches the context is above 1. llama.cpp's ``rope_freq_scale`` is
        1/factor: its 0.25 is 4.0 here.

    Raises
    ------
    SpecError
        The factor is not a finite number above 0.

    References
    ----------
    .. [1] Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation",
       arXiv 2306.15595.

    Examples
    --------
    >>> import rope_array as ra
    >>> ra.RoPE(4, scaling=ra.Linear(factor=4.0)).frequencies
    (0.25, 0.0025)
    """

    _rope_type: ClassVar[str] = "linear"
    _example: ClassVar[str] = "factor=4.0"

    factor: float

    def __post_init__(self) -> None:
        self._check_fields(positive, "factor")

    def _stretched(self, omegas: Omegas, base: float, width: int) -> Omegas:
        return [omega / self.factor for omega in omegas]

    def _exact(self, series: tuple[Decimal, ...]) -> tuple[Decimal, ...]:
        return divided(series, self.factor)

    def _float32_series(self, base: float, width: int, count: int) -> Omegas:
        return [omega / f32(self.factor) for omega in inverses(powers(base, width, count))]


Variant = Literal["aware", "fixed", "mixed", "base", "every_pair"]


@dataclass(frozen=True, repr=False)
class NTKAware(Scaling):
    """NTK-aware scaling: low frequencies are divided, high ones kept, by another base [1]_.

    Parameters
    ----------
    factor : float
        How many times the trained context (HunYuan's "alpha"); above 0. Below 1 as in `Linear`.
    variant : {"aware", "fixed", "mixed", "base", "every_pair"}
        Of a series of width d, base θ and factor f:

        * "aware": the base becomes θ·f^(d/(d-2)), so that the lowest frequency is divided by f and the
          highest stays (HunYuan's ``alpha``, lucidrains' ``theta_rescale_factor``, vLLM's ``dynamic`` with
          ``alpha``).
        * "fixed": the base becomes θ·f and every frequency is divided by f^(2/d) [2]_ (vLLM's ``ntk``).
        * "mixed": frequency i is divided by exp(a·(i+1)^b), a = ln f/(d/2)^b, b = `mixed_b` [2]_ (vLLM's
          ``ntk`` with ``mixed_b``).
        * "base": the base becomes θ·f (diffusers' ``ntk_factor``).
        * "every_pair": every frequency is divided by f^(d/(d-2)) (keras-hub's ``dynamic``, which is not NTK).
    mixed_b : float, optional
        The exponent b of "mixed", which needs it.

    Raises
    ------
    SpecError
        A value that names no rule; a `mixed_b` with another variant.

    References
    ----------
    .. [1] bloc97, "NTK-Aware Scaled RoPE allows LLaMA models to have extended (8k+) context size", 2023.
    .. [2] Su, "Transformer upgrade 11: base-β positions", kexue.fm/archives/9706, 2023.

    Examples
    --------
    >>> import rope_array as ra
    >>> [round(w, 6) for w in ra.RoPE(16, scaling=ra.NTKAware(4.0)).frequencies[:3]]
    [1.0, 0.259413, 0.067295]
    """

    _rope_type: ClassVar[str] = "ntk"
    _example: ClassVar[str] = "factor=4.0, variant='fixed'"

    factor: float
    variant: Variant = "aware"
    mixed_b: float | None = None

    def __post_init__(self) -> None:
        variant = choice("variant", self.variant, get_args(Variant))
        if (variant == "mixed") != (self.mixed_b is not None):
            raise SpecError(
                f"variant is {variant!r} and mixed_b is {short(self.mixed_b)}; give mixed_b with "
                "variant='mixed', and with no other."
            )
        self._set_fields(variant=variant)
        self._check_fields(positive, "factor")
        self._check_fields(number, "mixed_b", optional=True)

    def _new_base(self, base: float, width: int) -> float:
        if self.variant == "aware":
            return float(base * self.factor ** _ntk_exponent(width))
        return base * self.factor if self.variant in ("fixed", "base") else base

    def _stretched(self, omegas: Omegas, base: float, width: int) -> Omegas:
        if self.variant == "mixed":
            assert self.mixed_b is not None
            a = math.log(self.factor) / (width / 2) ** self.mixed_b
            return [omega / math.exp(a * (i + 1) ** self.mixed_b) for i, omega in enumerate(omegas)]
        exponents = {"fixed": 2 / width, "every_pair": _ntk_exponent(width)} if width else {}
        divisor = self.factor ** exponents.get(self.variant, 0.0)
        return [omega / divisor for omega in omegas]


def _ntk_exponent(width: int) -> float:
    if width == 2:
        raise SpecError(
            "NTK scaling divides by d - 2, and d, the width of a series of frequencies, is 2; "
            "give ra.Linear(factor), or a wider rotary_dim."
        )
    return float(width / (width - 2))


@dataclass(frozen=True, repr=False)
class DynamicNTK(Scaling):
    """NTK-aware scaling by the length of the sequence: the longer it is, the larger the base [1]_.

    At a length L above `max_position_embeddings` m the base becomes θ·(f·L/m - (f - 1))^(d/(d-2)); up to m
    nothing changes. The caller gives the length, by ``rope.at_length(L)``; it is never read off positions:
    queries must be rotated at the same length as the keys in a cache were.

    Parameters
    ----------
    factor : float
        f; above 0. Below 1 as in `Linear`.
    max_position_embeddings : int
        m, the trained context.
    length : int, optional
        L. None until ``rope.at_length`` sets it; a length below m becomes m, at which the rule does nothing.

    Raises
    ------
    SpecError
        A value that names no rule.

    References
    ----------
    .. [1] emozilla, "Dynamically Scaled RoPE further increases performance of long context LLaMA", 2023;
       transformers, modeling_rope_utils.

    Examples
    --------
    >>> import rope_array as ra
    >>> rope = ra.RoPE(16, scaling=ra.DynamicNTK(factor=2.0, max_position_embeddings=4096))
    >>> [round(w, 6) for w in rope.at_length(8192).frequencies[:3]]
    [1.0, 0.270296, 0.07306]
    """

    _rope_type: ClassVar[str] = "dynamic"
    _example: ClassVar[str] = "factor=2.0, max_position_embeddings=4096"

    factor: float
    max_position_embeddings: int
    length: int | None = None

    def __post_init__(self) -> None:
        self._check_fields(positive, "factor")
        self._check_fields(_size, "max_position_embeddings")
        self._check_fields(_size, "length", optional=True)
        if self.length is not None:
            # One record for all lengths of the same meaning: a spec is static under jit.
            self._set_fields(length=self._representative(self.length))

    @property
    def resolved(self) -> bool:
        return self.length is not None

    def _at_length(self, length: int) -> "DynamicNTK":
        return replace(self, length=length)

    def _representative(self, length: int) -> int:
        return max(length, self.max_position_embeddings)

    def _new_base(self, base: float, width: int) -> float:
        assert self.length is not None
        growth = self.factor * self.length / self.max_position_embeddings - (self.factor - 1)
        return base if self.length == self.max_position_embeddings else base * growth ** _ntk_exponent(width)

    def _float32_series(self, base: float, width: int, count: int) -> Omegas:
        return inverses(powers(self._float32_base(base, width), width, count))

    def _float32_base(self, base: float, width: int) -> float:
        """Return the base, rounded to float32 at each step: the length is a tensor."""
        assert self.length is not None
        if self.length == self.max_position_embeddings:
            return base
        stretch = f32(f32(f32(self.factor) * f32(self.length)) / f32(self.max_position_embeddings))
        growth = f32(stretch - f32(self.factor - 1))
        return f32(base) * f32(growth ** _ntk_exponent(width))


@dataclass(frozen=True, repr=False)
class YaRN(Scaling):
    """YaRN: frequencies with many turns in the trained context are kept, slow ones divided by f [1]_.

    Between the frequency numbers low and high, of `beta_fast` and `beta_slow` turns in the trained context, a
    linear ramp goes from ω to ω/f. cos and sin have an amplitude: `attention_factor`, else
    g(mscale)/g(mscale_all_dim) if both are given and not 0, else g(1), with g(m) = 0.1·m·ln f + 1, or 1 for
    f ≤ 1.

    Parameters
    ----------
    factor : float
        f; above 0. Below 1 as in `Linear`.
    original_max_position_embeddings : float
        The trained context; above 0.
    beta_fast, beta_slow : float
        Turns in the trained context; above 0, fast ≥ slow.
    truncate : bool
        Whether low and high are rounded outwards to whole frequency numbers (gpt-oss does not).
    attention_factor : float, optional
        The amplitude; above 0.
    mscale, mscale_all_dim : float, optional
        DeepSeek's: see above; 0 counts as missing, as in transformers. vLLM's code of DeepSeek's models takes
        g(mscale)/g(mscale_all_dim), with 1 and 0 for missing values: give that as `attention_factor`.
        DeepSeek's factor on the softmax scale is not a part of the rotation.

    Raises
    ------
    SpecError
        A value that names no rule, or a base of 1, whose frequencies are all the same.

    References
    ----------
    .. [1] Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", arXiv 2309.00071;
       the amplitude of mscale and mscale_all_dim: DeepSeek-V2, arXiv 2405.04434.

    Examples
    --------
    >>> import rope_array as ra
    >>> rope = ra.RoPE(16, scaling=ra.YaRN(factor=4.0, original_max_position_embeddings=4096))
    >>> [round(w, 6) for w in rope.frequencies[2:5]], round(rope.amplitude, 6)
    ([0.1, 0.025694, 0.00625], 1.138629)
    """

    _rope_type: ClassVar[str] = "yarn"
    _example: ClassVar[str] = "factor=4.0, original_max_position_embeddings=4096"

    factor: float
    original_max_position_embeddings: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def __post_init__(self) -> None:
        self._check_fields(positive, "factor", "original_max_position_embeddings", "beta_fast", "beta_slow")
        self._check_betas()
        self._check_fields(truth, "truncate")
        self._check_fields(invertible, "attention_factor", optional=True)
        self._check_fields(number, "mscale", "mscale_all_dim", optional=True)
        factors = f"the amplitude of mscale {self.mscale} and mscale_all_dim {self.mscale_all_dim}"
        invertible(factors, self.amplitude)

    def _check_betas(self) -> None:
        if self.beta_fast < self.beta_slow:
            raise SpecError(
                f"beta_fast is {self.beta_fast}, below beta_slow {self.beta_slow}; give the larger as "
                "beta_fast: a high frequency has more turns in the trained context."
            )

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            over = self._gain(self.mscale_all_dim)
            return self._gain(self.mscale) / over if over else math.inf
        return self._gain(1.0)

    def _gain(self, mscale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * mscale * math.log(self.factor) + 1.0

    def _stretched(self, omegas: Omegas, base: float, width: int) -> Omegas:
        low, high = self._ramp(base, width)
        ramps = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(len(omegas))]
        return [w / self.factor * ramp + w * (1 - ramp) for w, ramp in zip(omegas, ramps, strict=True)]

    def _float32_series(self, base: float, width: int, count: int) -> Omegas:
        low, high = self._ramp(base, width)
        factor, start, length = f32(self.factor), f32(low), f32(high - low)
        ramps = [min(max(f32(f32(i - start) / length), 0.0), 1.0) for i in range(count)]
        return [
            _mixed(inverse(f32(factor * power)), inverse(power), f32(1 - ramp))
            for power, ramp in zip(powers(base, width, count), ramps, strict=True)
        ]

    def _ramp(self, base: float, width: int) -> tuple[float, float]:
        """Return where the ramp begins and ends, in frequency numbers."""
        if base == 1:
            raise SpecError("base is 1, at which all frequencies are 1 and YaRN has no ramp; give another.")

        def number_with(turns: float) -> float:
            inv_freq = self.original_max_position_embeddings / (turns * 2 * math.pi)
            return width * math.log(inv_freq) / (2 * math.log(base))

        low, high = number_with(self.beta_fast), number_with(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        # The upper bound is width - 1, not the last frequency's number, as in the reference code.
        low, high = max(low, 0), min(high, width - 1)
        return low, high + 0.001 if low == high else high


def _mixed(slow: float, fast: float, share: float) -> float:
    """Return slow·(1 - share) + fast·share in float32."""
    return f32(f32(slow * f32(1 - share)) + f32(fast * share))


@dataclass(frozen=True, repr=False)
class Llama3(Scaling):
    """Llama 3.1's rule: wavelengths short in the trained context are kept, long ones stretched by the factor.

    With λ = 2π/ω and the trained context n: λ < n/high_freq_factor is kept, λ > n/low_freq_factor becomes
    ω/f, and between them (1 - s)·ω/f + s·ω with s = (n/λ - low)/(high - low) [1]_.

    Parameters
    ----------
    factor : float
        f; above 0. 8 in Llama 3.1, 32 in Llama 3.2. Below 1 as in `Linear`.
    low_freq_factor, high_freq_factor : float
        Wavelengths in the trained context at both ends of the ramp; above 0, low ≤ high.
    original_max_position_embeddings : float
        n; above 0.

    Raises
    ------
    SpecError
        A value that names no rule.

    References
    ----------
    .. [1] Llama team, "The Llama 3 Herd of Models", arXiv 2407.21783; meta-llama/llama-models,
       ``apply_scaling``.

    Examples
    --------
    >>> import rope_array as ra
    >>> rope = ra.RoPE(16, base=500_000.0, scaling=ra.Llama3(factor=8.0))
    >>> [round(w, 7) for w in rope.frequencies[2:5]]
    [0.037606, 0.0072927, 0.0005248]
    """

    _rope_type: ClassVar[str] = "llama3"
    _example: ClassVar[str] = "factor=8.0"

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: float = 8192.0

    def __post_init__(self) -> None:
        self._check_fields(
            positive, "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"
        )
        if self.low_freq_factor > self.high_freq_factor:
            raise SpecError(
                f"low_freq_factor is {self.low_freq_factor}, above high_freq_factor {self.high_freq_factor}; "
                "give the smaller first: a low frequency has fewer turns in the trained context."
            )

    def _stretched(self, omegas: Omegas, base: float, width: int) -> Omegas:
        return [self._stretched_one(omega) for omega in omegas]

    def _stretched_one(self, omega: float) -> float:
        turns = self.original_max_position_embeddings * omega / (2 * math.pi)
        if turns < self.low_freq_factor:
            return omega / self.factor
        if turns > self.high_freq_factor or self.low_freq_factor == self.high_freq_factor:
            return omega
        s = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - s) * omega / self.factor + s * omega

    def _float32_series(self, base: float, width: int, count: int) -> Omegas:
        return [self._float32_one(omega) for omega in inverses(powers(base, width, count))]

    def _float32_one(self, omega: float) -> float:
        low, high = self.low_freq_factor, self.high_freq_factor
        trained = self.original_max_position_embeddings
        wavelength = f32(inverse(omega) * f32(2 * math.pi))
        if wavelength > f32(trained / low):
            return omega / f32(self.factor)
        if wavelength < f32(trained / high) or low == high:
            return omega
        turns = f32(inverse(wavelength) * f32(trained))
        s = f32(f32(turns - f32(low)) / f32(high - low))
        return f32(f32(f32(1 - s) * omega) / f32(self.factor)) + f32(s * omega)


@dataclass(frozen=True, repr=False)
class LongRoPE(Scaling):
    """LongRoPE (Phi-3's "su"): every frequency has its own divisor, found by search [1]_.

    One list of divisors is for sequences up to the trained context, another for longer ones. The caller
    chooses, by ``rope.at_length(n)``; the length is never read off positions: queries must be rotated as the
    keys in a cache were.

    Parameters
    ----------
    short_factor, long_factor : sequence of float
        The divisors, one per frequency; above 0.
    original_max_position_embeddings : int
        The trained context: a sequence of more positions takes `long_factor`.
    factor : float, optional
        The longest context over the trained one: max_position_embeddings over the original.
        The amplitude is √(1 + ln f/ln n) with n the trained context, or 1 for f ≤ 1 or no f.
    attention_factor : float, optional
        The amplitude; above 0.
    short_mscale, long_mscale : float, optional
        The amplitude for each list (Phi-3.5-MoE); above 0.
    length : int, optional
        None until ``rope.at_length`` sets it: to the trained context for the short list, to one position more
        for the long list.

    Raises
    ------
    SpecError
        A value that names no rule, or lists without one divisor per frequency.

    References
    ----------
    .. [1] Ding et al., "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", arXiv 2402.13753;
       the amplitude and the switch: transformers, modeling_rope_utils.

    Examples
    --------
    >>> import rope_array as ra
    >>> rule = ra.LongRoPE(short_factor=(1.0, 1.1), long_factor=(2.0, 3.0),
    ...                    original_max_position_embeddings=4096, factor=32.0)
    >>> rope = ra.RoPE(4, scaling=rule)
    >>> rope.at_length(4097).frequencies[0], round(rope.at_length(1).amplitude, 6)
    (0.5, 1.190238)
    """

    _rope_type: ClassVar[str] = "longrope"
    _example: ClassVar[str] = "short_factor=..., long_factor=..., original_max_position_embeddings=4096"

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    factor: float | None = None
    attention_factor: float | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        self._check_fields(_size, "original_max_position_embeddings")
        self._check_fields(_divisors, "short_factor", "long_factor")
        self._check_fields(positive, "factor", optional=True)
        self._check_fields(invertible, "attention_factor", "short_mscale", "long_mscale", optional=True)
        trained = self.original_max_position_embeddings
        if trained == 1 and (self.factor or 0) > 1:
            raise SpecError(
                "original_max_position_embeddings is 1, whose logarithm the amplitude divides by; give the "
                "trained context."
            )
        self._check_fields(_size, "length", optional=True)
        if self.length is not None:
            # One record for all lengths of the same meaning: a spec is static under jit.
            self._set_fields(length=self._representative(self.length))

    @property
    def resolved(self) -> bool:
        return self.length is not None

    @property
    def _long(self) -> bool:
        assert self.length is not None
        return self.length > self.original_max_position_embeddings

    @property
    def amplitude(self) -> float:
        self._check_length()
        mscale = self.long_mscale if self._long else self.short_mscale
        for amplitude in (mscale, self.attention_factor):
            if amplitude is not None:
                return amplitude
        if self.factor is None or self.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_position_embeddings))

    def _at_length(self, length: int) -> "LongRoPE":
        return replace(self, length=length)

    def _representative(self, length: int) -> int:
        trained = self.original_max_position_embeddings
        return trained + 1 if length > trained else trained

    def _check_series(self, width: int, count: int) -> None:
        for name, divisors in (("short_factor", self.short_factor), ("long_factor", self.long_factor)):
            if len(divisors) != count:
                raise SpecError(
                    f"{name} has {len(divisors)} numbers, and a series of width {width} has {count} "
                    f"frequencies; give one for each, or a width of {2 * len(divisors)}: rotary_dim, or the "
                    "width of the axes."
                )

    def _stretched(self, omegas: Omegas, base: float, width: int) -> Omegas:
        self._check_series(width, len(omegas))
        divisors = self.long_factor if self._long else self.short_factor
        return [omega / divisor for omega, divisor in zip(omegas, divisors, strict=True)]

    def _float32_series(self, base: float, width: int, count: int) -> Omegas:
        self._check_series(width, count)
        divisors = self.long_factor if self._long else self.short_factor
        return [
            inverse(f32(f32(divisor) * power))
            for divisor, power in zip(divisors, powers(base, width, count), strict=True)
        ]


@dataclass(frozen=True, repr=False)
class Proportional(Scaling):
    """Gemma 4's rule ("p-RoPE"): the first share of the frequencies, divided by the factor; the others are 0.

    The exponents count over the full width, and with the half pairing the rotated features are the first of
    each half of the head. A rotary_dim of that share differs: its exponents count over the smaller width.

    Parameters
    ----------
    partial_rotary_factor : float
        The share of pairs that are rotated, rounded down to whole pairs; from 0 to 1.
    factor : float
        The divisor of the frequencies; above 0. Below 1 as in `Linear`.

    Raises
    ------
    SpecError
        A value that names no rule.

    References
    ----------
    .. [1] Barbero et al., "Round and Round We Go! What makes Rotary Positional Encodings useful?",
       arXiv 2410.06205; transformers, modeling_rope_utils.

    Examples
    --------
    >>> import rope_array as ra
    >>> ra.RoPE(8, base=1e4, pairing="half", scaling=ra.Proportional(0.5)).frequencies
    (1.0, 0.1, 0.0, 0.0)
    """

    _rope_type: ClassVar[str] = "proportional"
    _example: ClassVar[str] = "partial_rotary_factor=0.25"

    partial_rotary_factor: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        share = number("partial_rotary_factor", self.partial_rotary_factor, "a number from 0 to 1")
        if not 0 <= share <= 1:
            raise SpecError(f"partial_rotary_factor is {share}; give a number from 0 to 1.")
        self._set_fields(partial_rotary_factor=share)
        self._check_fields(positive, "factor")

    def _stretched(self, omegas: Omegas, base: float, width: int) -> Omegas:
        rotated = int(self.partial_rotary_factor * width // 2)
        return [omega / self.factor if i < rotated else 0.0 for i, omega in enumerate(omegas)]

    def _float32_series(self, base: float, width: int, count: int) -> Omegas:
        rotated = int(self.partial_rotary_factor * width // 2)
        series = inverses(powers(base, width, rotated))
        return [omega / f32(self.factor) for omega in series] + [0.0] * (count - rotated)


@dataclass(frozen=True, repr=False)
class Periods(Scaling):
    """DINOv3's frequencies: 2π divided by periods, for coordinates that are normalised to [-1, 1] [1]_.

    It takes no list of periods: for one, give the rope ``inv_freq=[2 * math.pi / p for p in periods]``.

    Without arguments the periods are base^(2j/d): every frequency is 2π times the usual one. With both, the
    n periods of a series are min·(max/min)^(j/(n-1)).

    Parameters
    ----------
    min_period, max_period : float, optional
        Both or neither; above 0. The base is then not used.

    Raises
    ------
    SpecError
        A value that names no rule, or one of the two alone.

    References
    ----------
    .. [1] Siméoni et al., "DINOv3", arXiv 2508.10104; facebookresearch/dinov3, ``rope_position_encoding``.

    Examples
    --------
    >>> import rope_array as ra
    >>> rope = ra.RoPE(16, base=100.0, pairing="half", axes=ra.Axes.axial(8, 8), scaling=ra.Periods())
    >>> [round(w, 6) for w in rope.frequencies[:4]]
    [6.283185, 1.986918, 0.628319, 0.198692]
    """

    min_period: float | None = None
    max_period: float | None = None

    def __post_init__(self) -> None:
        self._check_fields(positive, "min_period", "max_period", optional=True)
        if (self.min_period is None) != (self.max_period is None):
            raise SpecError(
                f"min_period is {self.min_period} and max_period {self.max_period}; give both, or neither."
            )

    def _stretched(self, omegas: Omegas, base: float, width: int) -> Omegas:
        if self.min_period is None or self.max_period is None:
            return [2 * math.pi * omega for omega in omegas]
        last = max(len(omegas) - 1, 1)
        if math.isinf(growth := self.max_period / self.min_period):
            raise OverflowError
        return [2 * math.pi / (self.min_period * growth ** (j / last)) for j in range(len(omegas))]


@dataclass(frozen=True, repr=False)
class Reversed(Scaling):
    """Rotation in the other direction: the frequencies of another rule, or of none, with the opposite sign.

    Features (a, b) become (a·cos + b·sin, b·cos - a·sin), as in nanochat's models.

    Parameters
    ----------
    rule : rule, optional
        The rule whose frequencies change sign; its amplitude stays. None: the default frequencies.

    Raises
    ------
    SpecError
        `rule` is no rule.

    Examples
    --------
    >>> import rope_array as ra
    >>> ra.RoPE(4, scaling=ra.Reversed()).frequencies
    (-1.0, -0.01)
    >>> ra.RoPE(4, scaling=ra.Reversed(ra.Linear(2.0))).frequencies
    (-0.5, -0.005)
    """

    rule: Scaling | None = None

    def __post_init__(self) -> None:
        self._set_fields(rule=record("rule", self.rule, Scaling, RULE_REMEDY))
        if isinstance(self.rule, Reversed) and isinstance(self.rule.rule, Reversed):
            self._set_fields(rule=self.rule.rule.rule)  # two reversals cancel

    @property
    def resolved(self) -> bool:
        return self._rule.resolved

    @property
    def amplitude(self) -> float:
        return self._rule.amplitude

    def _exact(self, series: tuple[Decimal, ...]) -> tuple[Decimal, ...] | None:
        exact = series if self.rule is None else self.rule._exact(series)
        return None if exact is None else tuple(omega.copy_negate() for omega in exact)

    @property
    def _rule(self) -> Scaling:
        return self.rule or Scaling()

    def _new_base(self, base: float, width: int) -> float:
        return self._rule._new_base(base, width)

    def _stretched(self, omegas: Omegas, base: float, width: int) -> Omegas:
        return [-omega for omega in self._rule._stretched(omegas, base, width)]

    def _float32_series(self, base: float, width: int, count: int) -> Omegas:
        return [-omega for omega in self._rule._float32_series(base, width, count)]

    def _at_length(self, length: int) -> "Reversed":
        return Reversed(self.rule and self.rule._at_length(length))

    def _representative(self, length: int) -> int:
        return self.rule._representative(length) if self.rule else 1

    def _check_series(self, width: int, count: int) -> None:
        self._rule._check_series(width, count)

    def _check_length(self) -> None:
        self._rule._check_length()


RULES: tuple[type[Scaling], ...] = tuple(globals()[name] for name in __all__)
# The rules of configs, by their rope_type.
OF_CONFIGS = {rule._rope_type: rule for rule in RULES if rule._rope_type}
