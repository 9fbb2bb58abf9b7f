"""The convention of an unknown model type: the most common one, unless a key tells that it is not that."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rope_array._config._convention import Convention
from rope_array._config._conventions import known_convention
from rope_array._config._tables import KEYS
from rope_array._errors import ConfigError, short

# The remedy where only the model's code tells how it rotates.
BY_HAND = "the model's code, and write RoPE(head_dim, base=..., rotary_dim=..., pairing=...) by it"
# Keys that change the rotation, its place or the width, by words of vLLM, llama.cpp's converter, mlx-lm,
# TensorRT-LLM and Megatron-LM; `_unused_keys` looks at those with rope, rotary or ntk.
_OTHER = re.compile(
    r"(?:^|_)(?:alibi|(?<!qk_)nope|no_rope|xpos|yarn|longrope|interpolation|neox|gptj|theta|rot)(?:_|$)"
    r"|^position_encoding_2d$|^(?:swa|sliding|global|local)_(?:head_dim|base|base_freq|freq_base)$|_swa_.*heads$"
    r"|^(?:beta_fast|beta_slow|mscale|mscale_all_dim|(?:short|long)_factor|(?:low|high)_freq_factor)$"
    r"|^(?:position|pos)_(?:scale|scaling|ratio|factor|base)(?:_|$)|^n_rot$"
    r"|relative_(?:attention|position|pos)|(?:^|_)(?:rel_pos|t5)_?|position_buckets|sinusoidal"
    r"|(?:learned|absolute)_(?:pos|position)"
)
# Keys of latent attention, whose rotated width is in qk_rope_head_dim.
_LATENT = re.compile(
    r"^(?:kv|q|qk)_(?:lora_rank|latent_dim|lora_dim|compress\w*)$|^qk_nope_head_dim$"
    r"|(?:^|_)(?:mla|latent_attention)(?:_|$)"
)
# Keys of the kind of position embedding, or of attention, and the names of kinds that are no plain rotation.
_KIND = re.compile(
    r"^(?!max_|num_|n_|original_)"
    r"(?:pe|position\w*|pos(?:_\w*)?|\w*_pos|\w*(?:pos|position|positional)_?(?:emb|enc|bias|type)\w*)$"
)
_ATTENTION = re.compile(r"^(?!.*(?:impl|backend|kernel)).*(?:attn|attention|bias)")
_OTHER_KINDS = re.compile(r"alibi|xpos|kerple|nope|learned|sinusoid|relative|t5|mla|latent")
# Words of model types and classes whose code pairs neighbours: a model with one of them may be their child.
_INTERLEAVED = re.compile(
    r"gpt_?j|codegen|progen|moss|chatglm|cohere|command_?r|helium|ernie4_?5|roformer|llama_?4"
)
# Switches: whether the model has a rotary embedding at all.
_SWITCH = re.compile(
    r"^(?:use_|apply_|add_)?(?:(?:rope|rotary)(?:_emb\w*|_pos\w*|_enabled)?|pos(?:ition|itional)?_(?:emb|enc)\w*)$"
)
_READ_ELSEWHERE = frozenset((*KEYS["bases"], "no_rope_layers", "no_rope_layer_interval"))
_INNER = re.compile(r"attn|attention|rope|rotary|position|pos_emb")
_ROTARY = re.compile(r"(?:^|_)(?:rope|rotary)")
_PARAMETERS = ("rope_parameters", "rope_scaling")


def generic(name: str, content: Mapping[str, Any]) -> Convention:
    """Return the convention for an unknown model type: the most common one, with the keys of older models."""
    _refuse_other_embeddings(name, content)
    _refuse_inner(name, content)
    _refuse_two_values(name, content, KEYS["bases"])
    interleaved = _is_interleaved(name, content)
    if interleaved is None:
        _refuse_children(name, content)
    if content.get("qk_rope_head_dim"):  # 0 in a model without latent attention
        return _latent(name, interleaved)
    _refuse_two_values(name, content, [key for key in KEYS["widths"] if "/" not in key])
    parameters = content.get("rope_parameters") or content.get("rope_scaling")
    sections = isinstance(parameters, Mapping) and parameters.get("mrope_interleaved") is True
    return Convention(
        pairing="interleaved" if interleaved else "half",
        width=tuple(KEYS["widths"]),
        absolute=True,
        theta_keys=tuple(KEYS["bases"]),
        share_keys=tuple(KEYS["shares"]),
        sections="interleaved" if sections else "chunked",
    )


def reads(key: str, content: Mapping[str, Any]) -> bool:
    """Return whether a key of an unknown model type is read here: the pairing, or whether it rotates."""
    value = content.get(key)
    on = value is True and _SWITCH.match(key) is not None
    return on or key in KEYS["pairings"] or (key == "qk_rope_head_dim" and value == 0)


def may_change(name: str, key: str, value: Any) -> str:
    """Return the message on a key of an unknown model type that no step reads."""
    return f"{name} is unknown, and {key} is {short(value)}, which may change the rotation; read {BY_HAND}."


def _latent(name: str, interleaved: bool | None) -> Convention:
    """Return the convention of latent attention, whose models pair halves as often as neighbours."""
    if interleaved is None:
        raise ConfigError(
            f"{name} is unknown and has latent attention (qk_rope_head_dim), where models differ in the "
            f"pairs that they read and write; read {BY_HAND}, with out_pairing if it reorders features."
        )
    return known_convention("deepseek_v3" if interleaved else "minicpm3")


def _is_interleaved(name: str, content: Mapping[str, Any]) -> bool | None:
    """Return whether a key states interleaved pairs; None if none states the pairing."""
    flags = {key: content[key] for key in KEYS["pairings"] if content.get(key) is not None}
    for key, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{key} is {short(value)}; it must be true or false.")
    pairings = {key: value is KEYS["pairings"][key] for key, value in flags.items()}
    for key, value in content.items():
        kind = _kind_of(value) if isinstance(key, str) and _KIND.match(key) else None
        if kind in ("half", "interleaved"):
            pairings[key] = kind == "interleaved"
    if len({*pairings.values()}) > 1:
        raise ConfigError(f"{name}: {', '.join(pairings)} contradict each other on the pairing.")
    return next(iter(pairings.values()), None)


def _kind_of(embedding: Any) -> str | None:
    """Return what the name of a position embedding states: "plain", "half", "interleaved", or None."""
    word = embedding.lower().replace("-", "_") if isinstance(embedding, str) else None
    return next((kind for kind, names in KEYS["embedding_names"].items() if word in names), None)


def contradicts(key: Any, value: Any, pairing: str) -> bool:
    """Return whether the name of a position embedding contradicts a rotation with a pairing."""
    if not isinstance(key, str) or not isinstance(value, str) or not _KIND.match(key):
        return False
    kind = _kind_of(value)
    return (
        kind not in (pairing, "plain") if kind else re.search("alibi|xpos|kerple", value.lower()) is not None
    )


def _refuse_children(name: str, content: Mapping[str, Any]) -> None:
    """Refuse to guess the pairs of a model that may be of a family whose code pairs neighbours."""
    classes = content.get("architectures")
    names = [content.get("model_type"), *(classes if isinstance(classes, list) else ())]
    words = [word.lower() for word in names if isinstance(word, str)]
    family = next((match[0] for word in words if (match := _INTERLEAVED.search(word))), None)
    # GPT-J's children pair neighbours, and Phi-1's pair halves.
    if content.get("n_embd") is not None and content.get("rotary_dim") is not None:
        family = "GPT-J (n_embd and rotary_dim)"
    if content.get("dim") is not None and content.get("n_heads") is not None:
        family = "Llama in Meta's format (dim and n_heads)"
    for key in ("multi_query_attention", "multi_query_group_num", "padded_vocab_size"):
        if content.get(key) is not None:
            family = f"ChatGLM ({key})"
    if family:
        raise ConfigError(
            f"{name} is unknown, and may be a child of {family}, whose code pairs neighbours; read {BY_HAND}."
        )


def _refuse_other_embeddings(name: str, content: Mapping[str, Any]) -> None:
    """Refuse a config that states a position embedding other than a rotation, or layers without one."""
    for key, value in content.items():
        if not isinstance(key, str) or value is None or key in KEYS["pairings"]:
            continue
        off = value is False and _SWITCH.match(key)
        neutral = value in (0, [], {}) or (value == 1 and key.endswith("factor"))  # False is 0 too
        is_latent = _LATENT.search(key) and not content.get("qk_rope_head_dim")
        may_change_it = key not in _READ_ELSEWHERE and (is_latent or _OTHER.search(key))
        if _is_other_kind(key, value) or off or (may_change_it and not neutral):
            raise ConfigError(may_change(name, key, value))


def _is_other_kind(key: str, value: Any) -> bool:
    """Return whether a key names a position embedding that is no plain rotation, or latent attention."""
    if not isinstance(value, str):
        return False
    if _KIND.match(key):
        return _kind_of(value) is None
    return _ATTENTION.search(key) is not None and _OTHER_KINDS.search(value.lower()) is not None


def _refuse_inner(name: str, content: Mapping[str, Any]) -> None:
    """Refuse rotary keys in an object within the config, which no step reads."""
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Mapping) or key in _PARAMETERS:
            continue
        has_rotary_key = any(isinstance(inner, str) and _ROTARY.search(inner) for inner in value)
        if _INNER.search(key):
            _refuse_other_embeddings(f"{name}, {short(key)}", value)
            _refuse_inner(name, value)
        is_of_model = _INNER.search(key) or not key.endswith("_config")  # others are parts of the model
        if (is_of_model and has_rotary_key) or _ROTARY.search(key) or _KIND.match(key):
            raise ConfigError(
                f"{name} is unknown, and {short(key)} has rotary parameters in a form of its own; read "
                f"{BY_HAND}."
            )


def _refuse_two_values(name: str, content: Mapping[str, Any], keys: Sequence[str]) -> None:
    values = {key: content[key] for key in keys if content.get(key) is not None}
    first = next(iter(values.values()), None)
    if any(value != first for value in values.values()):
        listed = ", ".join(f"{key} {short(value)}" for key, value in values.items())
        raise ConfigError(f"{name} is unknown, and states {listed}; read {BY_HAND}.")
