"""The conventions of model families, by key: the rows of `conventions.toml`."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import Any

from rope_array._config._convention import Convention, note_of
from rope_array._config._model_defaults import ROTARY
from rope_array._config._tables import read_table

Row = Mapping[str, Any]
# The modules of the functions that rows name, by the field of the convention; loaded if a row names one.
_MODULES = {
    **dict.fromkeys(("axes", "inv_freq", "rotated"), "_maps"),
    **dict.fromkeys(("layer_type_alias", "layer_type_of", "unrotated"), "_layer_types"),
    **dict.fromkeys(("overrides", "parameters"), "_parameters"),
    "scaling": "_model_rules",
    "variant": "_variants",
}
# Fields of a row that are not of its convention.
_OF_THE_MODEL = ("by_rope_type", "coordinates", "defaults", "like", "models", "name", "notes", "part_rows")


def convention_from(row: Row, rows: Mapping[str, Row]) -> Convention:
    """Return the convention of a row; `rows` has the rows that it may be like."""
    fields = {name: value for name, value in all_of(row, rows).items() if name not in _OF_THE_MODEL}
    return Convention(**{name: _field(name, value, rows) for name, value in fields.items()})


def all_of(row: Row, rows: Mapping[str, Row]) -> dict[str, Any]:
    """Return the fields of a row and of the rows that it is like."""
    likes = row.get("like", ())
    fields: dict[str, Any] = {}
    for name in (likes,) if isinstance(likes, str) else likes:
        fields |= all_of(rows[name], rows)
    return {**fields, **row}


def _field(name: str, value: Any, rows: Mapping[str, Row]) -> Any:
    if name in _MODULES:
        options = {"function": value} if isinstance(value, str) else dict(value)
        module = import_module(f"rope_array._config.{_MODULES[name]}")
        function = getattr(module, options.pop("function"))
        return partial(function, **options) if options else function
    if name == "of_layer_type":
        return {label: convention_from(row, rows) for label, row in value.items()}
    if name == "note":
        return note_of(value)
    if name == "unless":
        return {
            key: (*allowed, None) if False in allowed else tuple(allowed) for key, allowed in value.items()
        }
    return tuple(value) if isinstance(value, list) else value


_SECTIONS = read_table("conventions.toml")
_ROWS: dict[str, Row] = {name: row for rows in _SECTIONS.values() for name, row in rows.items()}


def _by_model(section: str) -> dict[str, Row]:
    """Return the rows of a section by the key of each model."""
    return {key: row for name, row in _SECTIONS[section].items() for key in row.get("models", (name,))}


REMOTE = _by_model("remote")
# The row of every convention that differs from Llama's, by its key.
CONVENTIONS = {**REMOTE, **_by_model("vision"), **_by_model("text")}
# Class defaults that `_model_defaults` has not: of remote models, and of lists that a class makes.
DEFAULTS: dict[str, dict[str, Any]] = {
    key: row["defaults"] for key, row in CONVENTIONS.items() if "defaults" in row
}


def convention_of(key: str | None) -> Convention | None:
    """Return the convention under a key; None if the model type is unknown."""
    return known_convention(key) if key in CONVENTIONS or key in ROTARY else None


@cache
def known_convention(key: str) -> Convention:
    """Return the convention under the key of a known model."""
    try:
        return convention_from(CONVENTIONS.get(key, {"like": "half"}), _ROWS)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the row of {key!r} in conventions.toml is wrong: {error!r}") from error


def changed(convention: Convention, changes: Row) -> Convention:
    """Return a convention with changed fields, or the one that the changes are like."""
    if not changes:
        return convention
    if "like" in changes:
        return convention_from(changes, _ROWS)
    return replace(convention, **{name: _field(name, value, _ROWS) for name, value in changes.items()})
