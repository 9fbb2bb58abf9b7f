"""The convention of an unknown model type: the most common one, unless a key tells that it is not that."""

import re
from collections.abc import Mapping
from typing import Any

from rope_array._config._convention import Convention
from rope_array._config._conventions import known_convention
from rope_array._config._tables import KEYS
from rope_array._errors import ConfigError, short

# The remedy where only the model's code tells how it rotates.
BY_HAND = "the model's code, and write RoPE(head_dim, base=..., rotary_dim=..., pairing=...) by it"
# Keys that change the rotation or its place; `_unused_keys` looks at those with rope, rotary or ntk.
_OTHER = re.compile(
    r"(?:^|_)(?:alibi|nope|no_rope|xpos|yarn|longrope|interpolation)(?:_|$)"
    r"|^position_encoding_2d$|^(?:swa|global|local)_head_dim$|_swa_.*heads$"
)
# Switches: whether the model has a rotary embedding at all.
_SWITCH = re.compile(r"^(?:use_|apply_)?(?:rope|rotary)(?:_emb\w*|_pos\w*|_enabled)?$")
_READ_ELSEWHERE = frozenset(("qk_nope_head_dim", "no_rope_layers", "no_rope_layer_interval"))
_INNER = re.compile(r"attn|attention|rope|rotary|position|pos_emb")
_ROTARY = re.compile(r"(?:^|_)(?:rope|rotary)")
_PARAMETERS = ("rope_parameters", "rope_scaling")


def generic(name: str, content: Mapping[str, Any]) -> Convention:
    """Return the convention for an unknown model type: the most common one, with the keys of older models."""
    _refuse_other_embeddings(name, content)
    _refuse_inner(name, content)
    _refuse_two_bases(name, content)
    interleaved = _is_interleaved(name, content)
    if content.get("qk_rope_head_dim"):  # 0 in a model without latent attention
        return _latent(name, interleaved)
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
    are_interleaved = {value is KEYS["pairings"][key] for key, value in flags.items()}
    if len(are_interleaved) > 1:
        raise ConfigError(f"{name}: {', '.join(flags)} contradict each other on the pairing.")
    return next(iter(are_interleaved), None)


def _refuse_other_embeddings(name: str, content: Mapping[str, Any]) -> None:
    """Refuse a config that states a position embedding other than a rotation, or layers without one."""
    for key, value in content.items():
        if not isinstance(key, str) or value is None or key in _READ_ELSEWHERE:
            continue
        names_embedding = key in KEYS["embeddings"] and isinstance(value, str)
        is_other = names_embedding and not re.search("rope|rotary", value.lower())
        off = value is False and _SWITCH.match(key)
        neutral = value in (0, [], {}) or (value == 1 and key.endswith("factor"))  # False is 0 too
        if is_other or off or (_OTHER.search(key) and not neutral):
            raise ConfigError(may_change(name, key, value))


def _refuse_inner(name: str, content: Mapping[str, Any]) -> None:
    """Refuse rotary keys in an object within the config, which no step reads."""
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Mapping) or key in _PARAMETERS:
            continue
        has_rotary_key = any(isinstance(inner, str) and _ROTARY.search(inner) for inner in value)
        if _INNER.search(key) and (has_rotary_key or _ROTARY.search(key)):
            raise ConfigError(
                f"{name} is unknown, and {short(key)} has rotary parameters in a form of its own; read "
                f"{BY_HAND}."
            )


def _refuse_two_bases(name: str, content: Mapping[str, Any]) -> None:
    bases = {key: content[key] for key in KEYS["bases"] if content.get(key) is not None}
    first = next(iter(bases.values()), None)
    if any(base != first for base in bases.values()):
        values = ", ".join(f"{key} {short(base)}" for key, base in bases.items())
        raise ConfigError(f"{name} is unknown, and states {values}; read {BY_HAND}.")
