"""Keys that look rotary and that nothing read: misspelt ones are errors, another model's are noted."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from rope_array._config._document import Spot, said
from rope_array._config._models import Convention
from rope_array._config._rules import SAME_AS
from rope_array._errors import ConfigError

_LOOKS = re.compile(r"(?:^|_)(?:m|x|xd)?(?:rope|rotary|ntk)")

_BASES = frozenset(
    (
        "rope_theta",
        "rotary_emb_base",
        "rotary_base",
        "rotary_embedding_base",
        "rope_local_base_freq",
        "local_rope_theta",
        "global_rope_theta",
        "compress_rope_theta",
        "swa_rope_theta",
        "memory_attention_rope_theta",
    )
)
_SHARES = frozenset(
    ("partial_rotary_factor", "rotary_pct", "rotary_percent", "rope_percent", "rotary_emb_fraction")
)
_DIMS = frozenset(("rotary_dim", "qk_rope_head_dim"))
_PAIRS = frozenset(("rope_interleave", "rope_is_neox_style", "rope_interleaved", "rotary_emb_interleaved"))
_YES = frozenset(("rotary", "use_mem_rope", "use_rotary_embedding", "use_rotary_pos_emb"))
_OTHERS = frozenset(
    (
        "layer_rope_theta",
        "memory_attention_rope_dropout",
        "memory_attention_rope_feat_sizes",
        "memory_attention_rope_k_sizes",
        "no_rope_layer_interval",
        "no_rope_layers",
        "num_spatial_rope_pairs_per_axis",
        "num_uid_rope_pairs",
        "partial_rotary_factors",
        "position_embedding_xdrope",
        "rope_parameters",
        "rope_reorder",
        "rope_scaling",
        "rope_scaling_factor",
        "rope_scaling_layers",
        "rope_type",
        "rotary_emb_scale_base",
        "rotary_scaling_factor",
        "rotary_value",
        "spatial_rope_base_frequency",
        "uid_rope_base_frequency",
    )
)
# Of SAM: the grid's size, from which positions are made, and what training alone uses.
_NO_MATTER = frozenset(
    (
        "memory_attention_rope_dropout",
        "memory_attention_rope_feat_sizes",
        "memory_attention_rope_k_sizes",
    )
)
_KEYS = _BASES | _SHARES | _DIMS | _PAIRS | _YES | _OTHERS


def check(spot: Spot, convention: Convention, read: "set[str]", made: Mapping[str, Any]) -> None:
    """Refuse keys of no model, and note those of other models that would change what was made."""
    known = {*read, *spot.defaults, *_of(convention), "rope_parameters", "rope_scaling"}
    for key, value in spot.content.items():
        if value is None or not _looks(key) or key in known or key in _NO_MATTER:
            continue
        if key not in _KEYS:
            _refuse(key, value)
        elif made["rotary_dim"] and not _says_the_same(key, value, made):
            spot.note(f"{key} is not used: the model's code in transformers does not read it")


def _looks(key: Any) -> bool:
    return isinstance(key, str) and _LOOKS.search(key) is not None


def _of(convention: Convention) -> "set[str]":
    flags = (
        convention.pairing_flag,
        convention.nope_needs,
        convention.nope_unless,
        convention.scaled_layers,
    )
    # ERNIE's own name for its sections.
    ernie = {"rope_3d"} if convention.sections == "alternating" else set()
    return {*convention.theta_keys, *convention.unless, *ernie, *(flag for flag in flags if flag)}


def _refuse(key: str, value: Any) -> None:
    if value is False and key.startswith("use_"):
        return
    near = get_close_matches(key[:80], sorted(_KEYS), 1, 0.75)
    hint = f"is {near[0]!r} meant" if near else "is it a rotary parameter by another name"
    raise ConfigError(f"the key {said(key)} is not known: {hint}? Leave it out if it changes no rotation.")


def _says_the_same(key: str, value: Any, made: Mapping[str, Any]) -> bool:
    """Whether a key that is not read says what is done all the same."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if key in _SHARES:
        return is_number and abs(value) <= 1 and int(made["head_dim"] * value) == made["rotary_dim"]
    if key in _DIMS:
        return bool(value == made["rotary_dim"])
    if key in _BASES:
        return bool(value == made.get("base"))
    if key in _PAIRS:
        return value is ((made["pairing"] == "interleaved") is not (key == "rope_is_neox_style"))
    if key in _YES:
        return isinstance(value, bool)
    if key == "rope_type":
        return isinstance(value, str) and SAME_AS.get(value, value) == "default"
    return value is False or (is_number and key.endswith("factor") and value == 1)


def check_above(spot: Spot) -> None:
    """Note rotary keys that stand beside the part they are meant for, where nothing reads them."""
    for key, value in spot.above.items():
        if value is None or not _looks(key) or key not in _KEYS:
            continue
        own = spot.content.get(key)
        if own is None:
            spot.note(f"{key} beside the part {said(spot.path)} is not used: only what is in it is read")
        elif not _alike(own, value):
            raise ConfigError(
                f"{key} is {said(own)} in the part {said(spot.path)}, and {said(value)} beside it; "
                "leave one out."
            )


def _alike(one: Any, other: Any) -> bool:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return bool(one == other)
    pairs = [{k: v for k, v in given.items() if k not in ("type", "rope_type")} for given in (one, other)]
    kinds = [given.get("rope_type") or given.get("type") or "default" for given in (one, other)]
    names = [SAME_AS.get(kind, kind) if isinstance(kind, str) else None for kind in kinds]
    return names[0] == names[1] and all(pairs[0][k] == pairs[1][k] for k in pairs[0].keys() & pairs[1].keys())
