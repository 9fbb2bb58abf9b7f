"""Functions of conventions: the scaling rules of models whose configs state no `rope_type`."""

import math
from collections.abc import Mapping
from typing import Any

from rope_array._config._part import quoted
from rope_array._config._values import PartValues
from rope_array._errors import ConfigError, SpecError, short
from rope_array._spec.frequencies import Scaling
from rope_array._spec.scaling import OF_CONFIGS, DynamicNTK, Linear, Llama3, LongRoPE, Periods, YaRN


def periods(values: PartValues, width: int) -> Periods:
    return Periods()


def kandinsky_rule(values: PartValues, width: int) -> Linear:
    return Linear(1 / values.number("audio_freqs_scaling", 1.0))


def mpt_rule(values: PartValues, width: int) -> Linear | DynamicNTK | None:
    rule = values.get("attn_config.rope_hf_config")
    dail = values.get("attn_config.rope_dail_config")
    if (library := values.get("attn_config.rope_impl", "dail")) not in ("dail", "hf"):
        raise SpecError(f"attn_config.rope_impl is {short(library)}; it must be 'dail' or 'hf'.")
    if library == "dail":
        if isinstance(dail, dict) and dail.get("type", "original") != "original":
            raise SpecError(f"rope_dail_config has the type {short(dail['type'])}: see RoPE.rotation_xpos.")
        return None
    rule_name = rule.get("type", "no_scaling") if isinstance(rule, dict) else "no_scaling"
    if rule_name == "no_scaling":
        return None
    if rule_name == "linear":
        return Linear(_mpt_factor(rule))
    if rule_name == "dynamic":
        return DynamicNTK(_mpt_factor(rule), values.integer("max_seq_len"))
    raise SpecError(
        f"rope_hf_config has the type {short(rule_name)}; it must be no_scaling, linear or dynamic."
    )


def _mpt_factor(rule: Any) -> float:
    factor = rule.get("factor", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not math.isfinite(factor):
        raise SpecError(f"factor in rope_hf_config is {short(factor)}; it must be a number.")
    return float(factor)


def by_keys(
    values: PartValues,
    width: int,
    rope_type: str,
    keys: Mapping[str, str],
    constants: Mapping[str, Any],
    above: tuple[str, str | float],
) -> Scaling | None:
    """Return a rule with fields under other keys, if the value of a key is above another's, or a number."""
    key, least = above
    if values.number(key) <= (values.number(least) if isinstance(least, str) else least):
        return None
    return OF_CONFIGS[rope_type](**{name: values.number(key) for name, key in keys.items()}, **constants)


def nomic_rule(values: PartValues, width: int) -> DynamicNTK | None:
    """Return the rule of the hub's NomicBertDynamicNTKRotaryEmbedding, if there is a factor."""
    if not values.get("rotary_scaling_factor"):
        return None
    return DynamicNTK(values.number("rotary_scaling_factor"), values.integer("max_trained_positions", 2048))


_YARN = ("factor", "original_max_position_embeddings", "beta", "alpha", "apply_scale")


def mistral_yarn(values: PartValues, width: int) -> YaRN | None:
    """Return the rule of `yarn` as in vLLM, transformers_utils/configs/mistral.py.

    beta and alpha are the turns at the ramp's ends. The amplitude is 1 if apply_scale is false, and in latent
    attention, where mscale and mscale_all_dim are both 1.
    """
    yarn = values.get("yarn")
    if yarn is None:
        return None
    if not isinstance(yarn, Mapping) or (unknown := sorted(map(str, yarn.keys() - {*_YARN}))):
        problem = (
            f"has the unknown keys {', '.join(unknown)}" if isinstance(yarn, Mapping) else "is no object"
        )
        raise ConfigError(f"yarn {problem}; give an object with the keys {', '.join(_YARN)}.")
    scaled = yarn.get("apply_scale", True)
    if not isinstance(scaled, bool):
        raise ConfigError(f"yarn.apply_scale is {short(scaled)}; it must be true or false.")
    latent = values.get("qk_rope_head_dim") is not None
    return YaRN(
        values.number("yarn.factor"),
        values.number("yarn.original_max_position_embeddings"),
        beta_fast=values.number("yarn.beta", 32.0),
        beta_slow=values.number("yarn.alpha", 1.0),
        attention_factor=None if scaled and not latent else 1.0,
    )


def scaled_rope(
    values: PartValues,
    width: int,
    factor: tuple[str, float] | None = None,
    high: tuple[str, float] | None = None,
) -> Llama3 | None:
    """Return the rule of use_scaled_rope; `factor` and `high` are keys with defaults, None for constants."""
    if not values.flag("use_scaled_rope"):
        return None
    stretch, high_freq = (values.number(*factor) if factor else 8.0), (values.number(*high) if high else 4.0)
    return Llama3(stretch, 1.0, high_freq, 8192)


_OF_KERAS_LLAMA3 = (
    "rope_frequency_adjustment_factor",
    "rope_low_freq_factor",
    "rope_high_freq_factor",
    "rope_pretraining_sequence_length",
)


def keras_phi3_rule(values: PartValues, width: int) -> LongRoPE | None:
    """Return the rule of keras-hub's Phi3SuScaledRotaryEmbedding."""
    if (rule_name := values.get("rope_scaling_type")) is None:
        return None
    if rule_name != "su":
        raise SpecError(f"rope_scaling_type is {short(rule_name)}; it must be 'su', or null.")
    trained = values.integer("pretraining_sequence_length", 4096)
    short_factor, long_factor = (_factors_of_keras(values, name, width // 2) for name in ("short", "long"))
    factor = values.integer("max_sequence_length", 4096) / trained
    return LongRoPE(short_factor, long_factor, trained, factor=factor)


def _factors_of_keras(values: PartValues, name: str, num_pairs: int) -> tuple[float, ...]:
    factors = values.get(key := f"rope_scaling_{name}_factor")
    if not isinstance(factors, (list, tuple)) or len(factors) != num_pairs:
        raise SpecError(f"{key} is {quoted(factors)}; give a list of {num_pairs} numbers.")
    return tuple(factors)


def keras_rule(values: PartValues, width: int) -> Linear | Llama3 | None:
    """Return the rule of keras-hub's LlamaRotaryEmbedding, or the factor of its RotaryEmbedding."""
    if (position := values.number("rope_position_scaling_factor", 1.0)) != 1:
        raise SpecError(
            f"rope_position_scaling_factor is {position}: older versions of keras-hub divide positions by "
            "it, and LlamaRotaryEmbedding does not read it; state the rope by the version of the model."
        )
    linear = values.number("rope_scaling_factor", 1.0)
    missing = [key for key in _OF_KERAS_LLAMA3 if values.get(key) is None]
    if len(missing) == len(_OF_KERAS_LLAMA3):
        return None if linear == 1 else Linear(linear)
    if missing:
        raise SpecError(
            f"{', '.join(missing)} is missing: keras-hub needs all or none of "
            f"{', '.join(_OF_KERAS_LLAMA3)}; state the values that the model was trained with."
        )
    if linear != 1:
        raise SpecError(f"rope_low_freq_factor and a factor of {linear} are both stated; leave one out.")
    return Llama3(
        values.number("rope_frequency_adjustment_factor"),
        values.number("rope_low_freq_factor"),
        values.number("rope_high_freq_factor"),
        values.integer("rope_pretraining_sequence_length"),
    )
