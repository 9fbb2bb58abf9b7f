"""Refuse defaults of a class where the config states sizes, a base or a rule that the class does not read."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rope_array._config._document import Document
from rope_array._config._model_defaults import MODELS
from rope_array._config._part import ConfigPart, Foreign, listed, quoted
from rope_array._config._tables import KEYS, PATTERNS
from rope_array._config._values import PartValues
from rope_array._errors import ConfigError

_LONGEST_NAME = 100


def _name_of(key: Any) -> str | None:
    """Return a key from its last dot on, in lower case, without hyphens and underscores."""
    if not isinstance(key, str) or len(key) > _LONGEST_NAME:
        return None
    return key.rpartition(".")[2].lower().replace("-", "").replace("_", "")


def _names_of(*keys: str) -> "frozenset[str | None]":
    return frozenset(map(_name_of, keys))


_WIDTHS = frozenset(factor for key in KEYS["widths"] for factor in key.split("/"))
_OTHERS = {*KEYS["sizes_of_others"], "n_embd", "n_head", "n_heads", "d_model", "d_head", "head_size"}
# Keys of the config itself that a class may leave unread, and keys that `_unused_keys` notes.
_OF_CLASSES = (_WIDTHS - _OTHERS) | {*KEYS["bases"], *KEYS["shares"], "rope_parameters", "rope_scaling"}
_SIZES = _names_of(*_WIDTHS, *_OTHERS)
_BASES = _names_of(*KEYS["bases"], *KEYS["bases_of_others"])
_SHARES = _names_of(*KEYS["shares"])
_RULES = _names_of("rope_parameters", "rope_scaling", "rotary_scaling")


def check_unread_values(values: PartValues, document: Document) -> None:
    """Refuse a default of the class where the config states a value for it that no step has read."""
    config_part, asked = values.config_part, values.asked
    if config_part.foreign or not config_part.known:
        return
    names = _names_of_defaults(values)
    _note_above(values, names)
    if (check := (config_part.path, names)) in document.checked:  # for another layer
        return
    read = {*asked, *config_part.defaults, *config_part.defaults.get("alias", ())}
    base = values.record.inferred.get("rope_theta")
    own_keys = {
        key: value
        for key, value in config_part.content.items()
        if key not in read and key not in _OF_CLASSES and not (value == base and _name_of(key) in _BASES)
    }
    places = [("the config", _stated_keys(own_keys, names)), *_objects(config_part, document, asked, names)]
    for place, keys in places:
        if keys:
            raise ConfigError(
                f"{config_part.name}: {place} states {listed(keys)}, which the model's class does not "
                "read: its defaults would take their place. This is no config of Hugging Face's class: "
                "give the config.json of the model's Hugging Face folder, or state its rope: RoPE(...)."
            )
    document.checked.add(check)


def _names_of_defaults(values: PartValues) -> "frozenset[str | None]":
    """Return the names of the values for which the reading has taken defaults of the class."""
    inferred, stated = values.record.inferred, values.record.stated
    factors = {factor.rpartition("*")[2] for key in values.convention.width for factor in key.split("/")}
    states_share = any(key.rpartition(".")[2] in KEYS["shares"] for key in stated)
    return frozenset().union(
        _SIZES if factors & inferred.keys() else (),
        _BASES if any(key.endswith("rope_theta") for key in inferred) else (),
        () if states_share or "rotary_dim" in stated else _SHARES,
        _RULES if "rope_type" in inferred else (),
    )


def _note_above(values: PartValues, names: "frozenset[str | None]") -> None:
    """Note values of the config around the part that its class's defaults replace."""
    config_part = values.config_part
    around = {k: v for k, v in config_part.above.items() if not isinstance(v, Mapping)}
    for key in _stated_keys(around, names & (_SIZES | _BASES)):
        if key not in config_part.content:
            values.record.note(config_part.outside(key))


def _objects(
    config_part: ConfigPart, document: Document, asked: "set[str]", names: "frozenset[str | None]"
) -> Iterator[tuple[str, list[str]]]:
    """Yield each object that no step has read, with its keys of these names, at any depth.

    Named parts of the class, objects that it reads, and objects of other modalities are left out.
    """
    if not names:
        return
    contents = [config_part.content]
    if config_part.path and config_part.root in MODELS:
        contents.append(document.content)
    read = {name.partition(".")[0] for name in asked} | {"rope_parameters", "rope_scaling"}
    parts = {*config_part.parts, *MODELS.get(config_part.root or "", {}).get("parts", ())}
    read |= parts | {f"{name}_config" for name in parts}
    seen = {id(config_part.content)}
    for content in contents:
        for key, value in content.items():
            if isinstance(value, (Mapping, list)) and key not in read and not _is_other(key):
                yield f"its object {quoted(key)}", _keys_within(value, names, seen)


def _is_other(key: Any) -> bool:
    return isinstance(key, str) and PATTERNS["other_objects"].search(key[:_LONGEST_NAME].lower()) is not None


def _keys_within(value: Any, names: "frozenset[str | None]", seen: "set[int]") -> list[str]:
    """Return the keys of these names in an object and in the objects within it, each looked at once."""
    containers, keys = [value], []
    for outer in containers:
        if id(outer) in seen:
            continue
        seen.add(id(outer))
        if isinstance(outer, Mapping):
            keys += _stated_keys(outer, names)
            containers += [v for k, v in outer.items() if isinstance(v, (Mapping, list)) and not _is_other(k)]
        else:
            containers += [inner for inner in outer if isinstance(inner, (Mapping, list))]
    return keys


def _stated_keys(values: Mapping[Any, Any], names: "frozenset[str | None]") -> list[str]:
    """Return the keys of these names that have a value, or an object for a rule."""
    return [k for k, v in values.items() if _name_of(k) in names and _has_value(v, _name_of(k) in _RULES)]


def _has_value(value: Any, of_rule: bool) -> bool:
    if of_rule:
        return isinstance(value, Mapping) and len(value) > 0
    if isinstance(value, str):
        return (
            re.fullmatch(r"\s*[+-]?[\d_.]+(?:e[+-]?\d+)?\s*", value[:_LONGEST_NAME], re.IGNORECASE)
            is not None
        )
    return isinstance(value, (int, float, Foreign)) and not isinstance(value, bool)
