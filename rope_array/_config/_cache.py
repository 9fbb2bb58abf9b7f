"""The positions that a model's cached keys hold: the kinds of caches.toml."""

from typing import NamedTuple

from rope_array._config._conventions import CONVENTIONS
from rope_array._config._part import ConfigPart
from rope_array._config._tables import read_table
from rope_array._config._values import PartValues

__all__ = ["CONVENTIONS", "KINDS", "Kind", "kind_of_model"]


class Kind(NamedTuple):
    """Whether keys may move to other positions, the reason, and whether ropes of layers rotate them."""

    ok: bool
    reason: str
    ropes: bool


_TABLE = read_table("caches.toml")
KINDS = {name: Kind(row["ok"], row["reason"], row.get("ropes", False)) for name, row in _TABLE.items()}
_BY_MODEL = {model: name for name, row in _TABLE.items() for model in row.get("models", ())}
_BY_WORD = {word: name for name, row in _TABLE.items() for word in row.get("names", ())}


def kind_of_model(config_part: ConfigPart) -> Kind | None:
    """Return the kind of a whole model; None if the ropes of its layers tell it, or nothing does."""
    values, convention = PartValues(config_part), config_part.convention
    unless = values.convention.unless.items()
    off = {key: value for key, allowed in unless if (value := values.get(key)) not in allowed}
    rules = (values.content.get(name) for name in ("rope_parameters", "rope_scaling"))
    rule_names = (rule.get("rope_type", rule.get("type")) for rule in rules if isinstance(rule, dict))
    words = (word for word in (*off, *off.values(), *rule_names) if isinstance(word, str))
    default = _BY_MODEL.get(config_part.key or "") if convention is None else convention.cache
    name = next((_BY_WORD[word] for word in words if word in _BY_WORD), "unknown" if off else default)
    return None if name is None else KINDS[name]
