"""Check rotary keys that no step has read: refuse misspelt keys, note keys of other models."""

from collections.abc import Callable, Mapping
from typing import Any

from rope_array._config._convention import Convention
from rope_array._config._conventions_unknown import BY_HAND, contradicts, generic, may_change, reads
from rope_array._config._part import ConfigPart, quoted
from rope_array._config._tables import KEYS, PATTERNS, SAME_AS
from rope_array._config._values import PartValues
from rope_array._errors import ConfigError

_TABLE = {name: frozenset(keys) for name, keys in KEYS["of_some_models"].items()}
_TABLE["pairings"] |= KEYS["pairings"].keys()
_BASES, _SHARES = _TABLE["bases"].union(KEYS["bases"]), frozenset(KEYS["shares"])
_WITHOUT_EFFECT = _TABLE.pop("without_effect")
_KNOWN = frozenset.union(_BASES, _SHARES, *_TABLE.values())
# Keys around a part that would change its rotation.
_AROUND = _KNOWN | {"mrope_section", "mrope_interleaved"}
_SIZES = frozenset((*KEYS["widths"], *KEYS["sizes_of_others"]))


def check_unread_keys(
    values: PartValues, fields: Mapping[str, Any], read_by_others: "Callable[[], set[str]]"
) -> None:
    """Refuse keys of no model; note keys of other models that would change the fields.

    `read_by_others` returns the keys that layers of other types read: it is called where a key is unread.
    """
    config_part, convention, record = values.config_part, values.convention, values.record
    keys_of_model = (*config_part.defaults, *_keys_of(convention), "rope_parameters", "rope_scaling")
    read_keys = {*values.asked, *keys_of_model}
    for key, value in config_part.content.items():
        if key not in read_keys and _contradicts(key, value, fields):
            record.note(config_part.unread(key))
    unread = [key for key in config_part.content if _is_unread(config_part, key, read_keys)]
    if unread:
        read_keys = read_by_others()
    for key in unread:
        value = config_part.content[key]
        if key in read_keys:
            continue
        if key not in _KNOWN:
            _refuse(config_part, convention, key, value, read_keys)
        elif not config_part.known and not _has_no_effect(key, value, fields):
            raise ConfigError(may_change(config_part.name, key, value))
        elif fields["rotary_dim"] and not _has_no_effect(key, value, fields):
            record.note(config_part.unread(key))


def _contradicts(key: Any, value: Any, fields: Mapping[str, Any]) -> bool:
    """Return whether a key states another position embedding or another base than the fields."""
    if not isinstance(key, str) or not fields["rotary_dim"]:
        return False
    if key in KEYS["bases_of_others"]:
        return isinstance(value, (int, float)) and value != fields.get("base")
    return contradicts(key, value, fields["pairing"])


def _is_unread(config_part: ConfigPart, key: Any, read_keys: "set[str]") -> bool:
    if config_part.content[key] is None or not _is_rotary(key) or key in read_keys or _never_has_effect(key):
        return False
    return config_part.known or not reads(key, config_part.content)


def _is_rotary(key: Any) -> bool:
    return isinstance(key, str) and (
        PATTERNS["any_rotary"].search(key) is not None or key in KEYS["pairings"]
    )


def _never_has_effect(key: str) -> bool:
    """Return whether a rotary key has no effect on the rotation of any model."""
    return key in _WITHOUT_EFFECT or PATTERNS["speed"].search(key) is not None


def _keys_of(convention: Convention) -> "set[str]":
    # ERNIE's name for its sections.
    ernie = {"rope_3d"} if convention.sections == "alternating" else set()
    flag = {convention.pairing_flag} if convention.pairing_flag else set()
    return {*convention.theta_keys, *convention.unless, *convention.keys, *ernie, *flag}


def _refuse(
    config_part: ConfigPart, convention: Convention, key: str, value: Any, read_keys: "set[str]"
) -> None:
    if value is False and key.startswith("use_"):
        return
    from difflib import get_close_matches

    # Only a key that is read for this model can be the one that is meant.
    names = {*convention.theta_keys, *convention.share_keys, "rope_parameters", "rope_scaling"}
    near = get_close_matches(key[:80], sorted(names), 1, 0.85)
    if PATTERNS["axes"].match(key):
        near = [name for name in read_keys if PATTERNS["axes"].match(name)][:1]
    hint = f"is {near[0]!r} meant? If not, and" if near else "it may change the rotation. If"
    if config_part.known and not config_part.foreign:
        raise ConfigError(
            f"the key {quoted(key)} is unknown: {hint} the model's code does not read it, leave it out."
        )
    hint = f"is {near[0]!r} meant? If not," if near else "it may change the rotation;"
    raise ConfigError(f"the key {quoted(key)} is unknown: {hint} read {BY_HAND}.")


def _has_no_effect(key: str, value: Any, fields: Mapping[str, Any]) -> bool:
    """Return whether the value of an unread key agrees with the fields."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if key in _SHARES:
        return is_number and abs(value) <= 1 and int(fields["head_dim"] * value) == fields["rotary_dim"]
    if key in _TABLE["widths"]:
        return bool(value == fields["rotary_dim"])
    if key in _BASES:
        return bool(value == fields.get("base"))
    if key in _TABLE["pairings"]:
        return value is ((fields["pairing"] == "interleaved") is KEYS["pairings"].get(key, True))
    if key in _TABLE["flags"]:
        return isinstance(value, bool)
    if key == "rope_type":
        return isinstance(value, str) and SAME_AS.get(value, value) == "default"
    return value is False or (is_number and key.endswith("factor") and value == 1)


def check_above(values: PartValues, fields: Mapping[str, Any]) -> None:
    """Note rotary keys of the config around the part, which no step reads; refuse a guess against them."""
    config_part, record = values.config_part, values.record
    place = f"the part {quoted(config_part.path)}"
    around = {}
    for key, value in config_part.above.items():
        if value is None or not _is_rotary(key) or key not in _AROUND:
            if not isinstance(value, Mapping) and key not in _SIZES:
                around[key] = value
            if key not in config_part.content and _contradicts(key, value, fields):
                record.note(config_part.outside(key))
            continue
        inner_value = config_part.content.get(key)
        if inner_value is None and record.stated.get(key) == value:
            continue  # a step has read it there
        if inner_value is None:
            record.note(config_part.outside(key))
        elif not _agree(inner_value, value):
            raise ConfigError(
                f"{key} is {quoted(inner_value)} in {place}, and {quoted(value)} outside of it; leave one "
                "out."
            )
    if around and not config_part.known:
        generic(config_part.name, {**around, **config_part.content})


def _agree(inner: Any, outer: Any) -> bool:
    if not isinstance(inner, dict) or not isinstance(outer, dict):
        return bool(inner == outer)
    pairs = [
        {k: v for k, v in mapping.items() if k not in ("type", "rope_type")} for mapping in (inner, outer)
    ]
    types = [mapping.get("rope_type") or mapping.get("type") or "default" for mapping in (inner, outer)]
    names = [SAME_AS.get(name, name) if isinstance(name, str) else None for name in types]
    return names[0] == names[1] and all(pairs[0][k] == pairs[1][k] for k in pairs[0].keys() & pairs[1].keys())
