"""Make the scaling rule of a `rope_type`, from a layer and its rotated width."""

import math
import re
from collections.abc import Callable
from dataclasses import MISSING, fields, replace

from rope_array._config._layer import UNREAD_FACTOR, Layer
from rope_array._config._part import quoted
from rope_array._config._values import TypedMapping
from rope_array._errors import ConfigError
from rope_array._spec.frequencies import Scaling
from rope_array._spec.scaling import OF_CONFIGS, DynamicNTK, Llama3, LongRoPE, NTKAware, Proportional, YaRN
from rope_array._spec.validation import number


def dynamic_rule(layer: Layer, width: int) -> Scaling:
    if layer.parameters.optional("alpha"):
        _check_alpha(layer)
        return NTKAware(layer.parameters.number("alpha"))
    name = "max_position_embeddings"
    context, of_rule = layer.values.integer(name), layer.parameters.get(name)
    if of_rule not in (None, context):
        raise ConfigError(
            f"{name} is {context}, and in the rotary parameters {quoted(of_rule)}; leave one out."
        )
    return DynamicNTK(layer.parameters.number("factor"), context)


def _check_alpha(layer: Layer) -> None:
    """Refuse HunYuan's factor in other models, whose code does not read it."""
    names = f"{layer.config_part.key} {layer.parameters.get('rope_type')} {layer.parameters.get('type')}"
    if layer.config_part.known and "hunyuan" not in names and "ntk_alpha" not in names:
        raise ConfigError(
            f"{layer.parameters.prefix}alpha is a parameter of HunYuan's models, and "
            f"{layer.config_part.name} is none; leave it out."
        )


def ntk_rule(layer: Layer, width: int) -> Scaling:
    mixed = layer.parameters.optional("mixed_b")
    return NTKAware(layer.parameters.number("factor"), "fixed" if mixed is None else "mixed", mixed)


class SwappedYaRN(YaRN):
    """YaRN with beta_fast below beta_slow, which `YaRN` refuses and transformers computes, with a warning."""

    def _check_betas(self) -> None:
        pass


def yarn_rule(layer: Layer, width: int) -> YaRN:
    parameters = layer.parameters
    if "factor" not in parameters.content:
        raise ConfigError(
            f"{parameters.prefix}factor is missing; state it, or null for the ratio of the contexts."
        )
    truncate = parameters.get("truncate", True)
    if truncate is not True and layer.label and layer.config_part.in_transformers:
        layer.record.note("truncate of one layer type is used here; transformers 5.24 does not read it")
    mscale, all_dim = parameters.optional("mscale"), parameters.optional("mscale_all_dim")
    if not (mscale and all_dim):
        mscale = all_dim = None
    fast, slow = parameters.optional("beta_fast") or 32.0, parameters.optional("beta_slow") or 1.0
    if fast < slow:
        layer.record.note(
            f"beta_fast {fast} is below beta_slow {slow}: probably swapped. As in transformers, high "
            "frequencies are divided, and low ones are kept"
        )
    rule = (SwappedYaRN if fast < slow else YaRN)(
        layer.stretch(),
        layer.original(),
        beta_fast=fast,
        beta_slow=slow,
        truncate=truncate,
        attention_factor=parameters.optional("attention_factor"),
        mscale=mscale,
        mscale_all_dim=all_dim,
    )
    if layer.rule_name == "yarn":
        if rule.attention_factor is None and mscale is None:
            _note_amplitude_of_vllm(layer, rule)
        _note_attn_factor(layer, rule)
        _note_older_yarn(layer, rule)
    return rule


def _note_older_yarn(layer: Layer, rule: YaRN) -> None:
    """Note that the version of transformers that wrote the config computes YaRN otherwise.

    ROPE_INIT_FUNCTIONS has YaRN from 4.45 on. The rule is today's from 4.56 on.
    """
    part, state = layer.config_part, layer.parameters.get
    written = part.content.get("transformers_version") or part.above.get("transformers_version")
    match = re.match(r"4\.(\d\d)\b", written) if isinstance(written, str) else None
    if match is None or not part.in_transformers:
        return
    minor, differences = int(match[1]), []
    context, original = layer.values.get("max_position_embeddings"), state("original_max_position_embeddings")
    if 45 <= minor < 51:
        if original not in (None, context):
            differences.append("original_max_position_embeddings is max_position_embeddings")
        if rule.attention_factor is None and rule.mscale is not None:
            differences.append("mscale is not read")
    elif 51 <= minor < 56 and original and isinstance(context, int) and context / original != rule.factor:
        differences.append(f"the factor is {context / original:.6g}, the ratio of the contexts")
    if 45 <= minor < 55 and not rule.truncate:
        differences.append("truncate is not read")
    if differences:
        layer.record.note(
            f"this is YaRN of transformers 4.56 and later: in {match[0]}, which wrote the config, "
            + " and ".join(differences)
        )


def _note_amplitude_of_vllm(layer: Layer, rule: YaRN) -> None:
    """Note that vLLM has another amplitude, if mscale or mscale_all_dim is missing or 0."""
    of_vllm = _amplitude_of_vllm(layer, rule.factor)
    if not math.isclose(of_vllm, rule.amplitude):
        layer.record.note(
            "mscale and mscale_all_dim are not both stated and above 0, so transformers does not use them: "
            f"the factor on cos and sin is {rule.amplitude:.6g}; in vLLM's code of DeepSeek's models it is "
            f"{of_vllm * layer.attn_factor():.6g}: for that state rope_type 'deepseek_yarn', or "
            "attention_factor"
        )


def _amplitude_of_vllm(layer: Layer, factor: float) -> float:
    """Return the amplitude of vLLM's DeepseekScalingRotaryEmbedding without attn_factor.

    Missing values are 1 and 0.
    """
    log = math.log(factor) if factor > 1 else 0.0
    mscale, all_dim = (layer.parameters.optional(name) for name in ("mscale", "mscale_all_dim"))
    over = 0.1 * (all_dim or 0.0) * log + 1
    return (0.1 * (1.0 if mscale is None else mscale) * log + 1) / over if over else math.inf


def deepseek_yarn_rule(layer: Layer, width: int) -> Scaling:
    """Return YaRN of vLLM and mlx-lm, where mscale is 1 and mscale_all_dim 0 by default."""
    rule = yarn_rule(layer, width)
    amplitude = _amplitude_of_vllm(layer, rule.factor) * layer.attn_factor()
    return replace(rule, attention_factor=amplitude, mscale=None, mscale_all_dim=None)


def llama3_rule(layer: Layer, width: int) -> Scaling:
    number_of = layer.parameters.number
    low, high = number_of("low_freq_factor"), number_of("high_freq_factor")
    return Llama3(number_of("factor"), low, high, layer.original())


def longrope_rule(layer: Layer, width: int) -> Scaling:
    parameters, num_pairs = layer.parameters, (width + 1) // 2
    if parameters.get("long_mscale") is not None and layer.config_part.key == "phimoe":
        layer.record.note("long_factor is used here; PhiMoE's code in transformers 5.24 never rotates by it")
    return LongRoPE(
        _divisors(parameters, "short_factor", num_pairs),
        _divisors(parameters, "long_factor", num_pairs),
        layer.original(),
        factor=layer.stretch(),
        attention_factor=parameters.optional("attention_factor"),
        short_mscale=parameters.optional("short_mscale"),
        long_mscale=parameters.optional("long_mscale"),
    )


def _divisors(parameters: TypedMapping, name: str, num_pairs: int) -> tuple[float, ...]:
    divisors, full_name = parameters.get(name), parameters.prefix + name
    if not isinstance(divisors, (list, tuple)):
        raise ConfigError(f"{full_name} is {quoted(divisors)}; give a list of {num_pairs} numbers.")
    if len(divisors) != num_pairs:
        raise ConfigError(f"{full_name} has {len(divisors)} numbers; give one for each of {num_pairs} pairs.")
    return tuple(number(f"{full_name}[{i}]", divisor) for i, divisor in enumerate(divisors))


def proportional_rule(layer: Layer, width: int) -> Scaling:
    return Proportional(layer.share(), layer.parameters.number("factor", 1.0))


# The rules that do not just read each field by the key of its name.
_READERS: dict[str, Callable[[Layer, int], Scaling]] = {
    "dynamic": dynamic_rule,
    "ntk": ntk_rule,
    "yarn": yarn_rule,
    "deepseek_yarn": deepseek_yarn_rule,
    "llama3": llama3_rule,
    "longrope": longrope_rule,
    "proportional": proportional_rule,
}


def rule_of(layer: Layer, width: int) -> Scaling:
    """Return the rule of a layer, by its rope_type."""
    reader = _READERS.get(layer.rule_name)
    return _rule_by_fields(layer) if reader is None else reader(layer, width)


def _rule_by_fields(layer: Layer) -> Scaling:
    """Read each field by the key of its name: a number, which a field without a default needs."""
    rule, values = OF_CONFIGS[layer.rule_name], {}
    for field in fields(rule):  # type: ignore[arg-type]
        needed = field.default is MISSING
        if needed or layer.parameters.get(field.name) is not None:
            values[field.name] = layer.parameters.number(field.name)
    return rule(**values)


def _note_attn_factor(layer: Layer, rule: YaRN) -> None:
    """Note vLLM's amplitude by a factor that transformers does not read."""
    if (factor := layer.attn_factor()) != 1:
        of_vllm = YaRN(rule.factor, 1).amplitude * factor
        layer.record.note(
            f"{UNREAD_FACTOR}, and its factor on cos and sin is {rule.amplitude:.6g}. Other engines take "
            f"attn_factor otherwise; vLLM's factor is {of_vllm:.6g}: for that state attention_factor "
            f"{of_vllm!r}"
        )
