"""From a `rope_type` to the scaling rule, each from a layer and its rotated width."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rope_array._config._document import listed, said
from rope_array._config._layer import Layer
from rope_array._config._models import Convention
from rope_array._config._tables import Table
from rope_array._errors import ConfigError
from rope_array._spec.frequencies import Scaling
from rope_array._spec.scaling import DynamicNTK, Linear, Llama3, LongRoPE, NTKAware, Proportional, YaRN
from rope_array._spec.validation import number

# fmt: off
# Read by every rule, or no matter of the rotation.
_ALWAYS = frozenset((
    "attn_factor", "extrapolation_factor", "finetuned", "interleaved", "llama_4_scaling_beta",
    "max_position_embeddings", "mrope_interleaved", "mrope_section", "partial_rotary_factor", "rope_dim",
    "rope_theta", "rope_type", "type",
))
# fmt: on
SAME_AS = {
    "axial": "default",
    "mrope": "default",
    "mllama4": "default",
    "none": "default",
    "no_scaling": "default",
    "su": "longrope",
    "ntk_alpha": "dynamic",
    "deepseek_llama_scaling": "deepseek_yarn",
    "telechat3-yarn": "deepseek_yarn",
}
XDROPE = (
    "sections over the full width of the head put the two features of a pair on different coordinates, which "
    "is no rotation unless all coordinates are equal"
)
_NOT_READ = {
    "xdrope": XDROPE,
    "openpangu": "a lane-to-axis map of vLLM's own; state it with RoPE(axes=...)",
    "bailing_mrope": "h and w by turns, in neighbours; state it with RoPE(axes=Axes.alternating(t, h, w))",
    "fope": "cos and sin are mixed by learned matrices, which is no rotation",
}


def _default(layer: Layer, width: int) -> Scaling | None:
    return None


def _linear(layer: Layer, width: int) -> Scaling:
    return Linear(layer.table.number("factor"))


def _dynamic(layer: Layer, width: int) -> Scaling:
    if layer.table.optional("alpha"):
        _check_alpha(layer)
        return NTKAware(layer.table.number("alpha"))
    longest, own = layer.values.integer("max_position_embeddings"), layer.table.get("max_position_embeddings")
    if own not in (None, longest):
        raise ConfigError(
            f"max_position_embeddings is {longest}, and {said(own)} in the rotary parameters; leave one out."
        )
    return DynamicNTK(layer.table.number("factor"), longest)


def _check_alpha(layer: Layer) -> None:
    """Refuse HunYuan's factor elsewhere: the code of other models does not know it."""
    names = f"{layer.spot.key} {layer.table.get('rope_type')} {layer.table.get('type')}"
    if layer.spot.known and "hunyuan" not in names and "ntk_alpha" not in names:
        raise ConfigError(
            f"{layer.table.prefix}alpha is known of HunYuan's models alone, and {layer.spot.name} is none; "
            "leave it out."
        )


def _ntk(layer: Layer, width: int) -> Scaling:
    mixed = layer.table.optional("mixed_b")
    return NTKAware(layer.table.number("factor"), "fixed" if mixed is None else "mixed", mixed)


def _yarn(layer: Layer, width: int) -> YaRN:
    table = layer.table
    if "factor" not in table.content:
        raise ConfigError(
            f"{table.prefix}factor is missing; state it, or null for the ratio of the contexts."
        )
    truncate = table.get("truncate", True)
    if truncate is not True and layer.label:
        layer.spot.note("truncate of one layer type is honoured here; transformers 5.23 does not see it")
    mscale, all_dim = table.optional("mscale"), table.optional("mscale_all_dim")
    both = bool(mscale and all_dim)
    return YaRN(
        layer.stretch(),
        layer.original(),
        beta_fast=table.optional("beta_fast") or 32.0,
        beta_slow=table.optional("beta_slow") or 1.0,
        truncate=truncate,
        attention_factor=table.optional("attention_factor"),
        mscale=mscale if both else None,
        mscale_all_dim=all_dim if both else None,
    )


def _deepseek_yarn(layer: Layer, width: int) -> Scaling:
    """VLLM's and mlx-lm's name: mscale is 1 and mscale_all_dim 0 where they are not given."""
    made, table = _yarn(layer, width), layer.table
    log = math.log(made.factor) if made.factor > 1 else 0.0
    above = 0.1 * table.number("mscale", 1.0) * log + 1
    return replace(
        made,
        attention_factor=above / (0.1 * table.number("mscale_all_dim", 0.0) * log + 1),
        mscale=None,
        mscale_all_dim=None,
    )


def _llama3(layer: Layer, width: int) -> Scaling:
    number_of = layer.table.number
    low, high = number_of("low_freq_factor"), number_of("high_freq_factor")
    return Llama3(number_of("factor"), low, high, layer.original())


def _longrope(layer: Layer, width: int) -> Scaling:
    table, lanes = layer.table, (width + 1) // 2
    if table.get("long_mscale") is not None:
        layer.spot.note("long_factor is honoured here; PhiMoE's code in transformers 5.23 never turns by it")
    return LongRoPE(
        _divisors(table, "short_factor", lanes),
        _divisors(table, "long_factor", lanes),
        layer.original(),
        factor=layer.stretch(),
        attention_factor=table.optional("attention_factor"),
        short_mscale=table.optional("short_mscale"),
        long_mscale=table.optional("long_mscale"),
    )


def _divisors(table: Table, name: str, lanes: int) -> tuple[float, ...]:
    given = table.get(name)
    if not isinstance(given, (list, tuple)):
        raise ConfigError(f"{table.prefix}{name} is {said(given)}; it must be a list of {lanes} numbers.")
    if len(given) != lanes:
        raise ConfigError(
            f"{table.prefix}{name} has {len(given)} numbers, and the width {lanes} pairs, each with one."
        )
    return tuple(number(f"{table.prefix}{name}[{i}]", value) for i, value in enumerate(given))


def _proportional(layer: Layer, width: int) -> Scaling:
    return Proportional(layer.share(), layer.table.number("factor", 1.0))


_YARN = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
_ORIGINAL = ("factor", "original_max_position_embeddings")
_RULES: dict[str, tuple[Callable[[Layer, int], Scaling | None], Sequence[str]]] = {
    "default": (_default, ()),
    "linear": (_linear, ("factor",)),
    "dynamic": (_dynamic, ("factor", "alpha")),
    "ntk": (_ntk, ("factor", "mixed_b")),
    "yarn": (_yarn, (*_ORIGINAL, *_YARN)),
    "deepseek_yarn": (_deepseek_yarn, (*_ORIGINAL, *_YARN)),
    "llama3": (_llama3, (*_ORIGINAL, "low_freq_factor", "high_freq_factor")),
    "longrope": (
        _longrope,
        (*_ORIGINAL, "attention_factor", "short_factor", "long_factor", "short_mscale", "long_mscale"),
    ),
    "proportional": (_proportional, ("factor",)),
}


def kind_of(name: str, kind: Any, convention: Convention) -> str:
    """Return the name of a rule, whatever a config calls it."""
    if not isinstance(kind, str):
        raise ConfigError(f"{name} is {said(kind)}; it must be a name.")
    made = convention.type_names.get(kind, kind)
    made = SAME_AS.get(made, made)
    if made in _NOT_READ:
        raise ConfigError(f"{name} is {kind!r}: {_NOT_READ[made]}.")
    if made not in _RULES:
        raise ConfigError(f"{name} is {said(kind)}, which is not known; known: {', '.join(sorted(_RULES))}.")
    return made


def rule_of(layer: Layer, width: int) -> Scaling | None:
    """Return the scaling rule of a layer whose rotated features are `width`."""
    if layer.convention.scaling is not None:
        return layer.convention.scaling(layer.values, width)  # type: ignore[no-any-return]
    rule, keys = _RULES[layer.kind]
    given = {k: v for k, v in layer.table.content.items() if v is not None}
    if unused := sorted(given.keys() - _ALWAYS - set(keys)):
        layer.spot.note(f"rope_type {layer.kind!r} does not use {listed(unused)}")
    for name in ("attn_factor", "extrapolation_factor"):
        if name in given and given[name] != 1:
            raise ConfigError(
                f"{layer.table.prefix}{name} is {said(given[name])}: libraries differ on what that does; "
                "state attention_factor."
            )
    return rule(layer, width)
