"""Configs of diffusers' transformers, by `_class_name`: the rows of `diffusers.toml`.

`Axes` states most of their rotary classes: each coordinate of a token drives pairs of its own.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from rope_array._config._convention import Convention, Note
from rope_array._config._conventions import Row, all_of, convention_from
from rope_array._config._format import Format
from rope_array._config._maps import whole_numbers
from rope_array._config._tables import read_table
from rope_array._errors import ConfigError, short


@cache
def table() -> dict[str, dict[str, Any]]:
    """Return the sections of the table; "classes" has the row of each class, "rows" the rows by name."""
    sections = read_table("diffusers.toml")
    rows = {**sections["family"], **sections["classes"]}
    classes = {key: row for name, row in sections["classes"].items() for key in row.get("models", (name,))}
    return {**sections, "classes": classes, "rows": rows}


def read_diffusers(content: Mapping[str, Any]) -> Format:
    """Return the format of a config with `_class_name`."""
    name, sections = content["_class_name"], table()
    if name in sections["refused"]:
        return _format(name, Convention(refusal=sections["refused"][name]))
    if name in sections["unrotated"]:
        width = (sections["unrotated"][name],)
        unrotated = Convention(pairing="interleaved", width=width, unless={"_class_name": ()})
        return _format(name, unrotated, defaults=dict.fromkeys(sections["unused"]))
    if name not in sections["classes"]:
        raise ConfigError(_why_unknown(content, name))
    row = _row_of(content, sections["classes"][name])
    inherited = {**row.get("defaults", {}), **content}
    formats = {
        part_name: _format_of(name, _row_of({}, {"like": like}), inherited)
        for part_name, like in row.get("part_rows", {}).items()
    }
    return replace(_format_of(name, row, content), part_formats=formats)


def _format(name: str, convention: Convention, **fields: Any) -> Format:
    return Format(name="diffusers", model_type=short(name)[1:-1], main=(), convention=convention, **fields)


def _row_of(content: Mapping[str, Any], row: Row) -> dict[str, Any]:
    """Return a row with the fields of the rows that it is like; LTX-2 has a row for each rope_type."""
    if (rows := row.get("by_rope_type")) is not None:
        rope_type = content.get("rope_type", "interleaved")
        if rope_type not in ("interleaved", "split"):
            raise ConfigError(f"rope_type is {short(rope_type)}; it must be 'interleaved' or 'split'.")
        row = {"like": rows[rope_type]}
    return all_of(row, table()["rows"])


def _format_of(name: str, row: Row, content: Mapping[str, Any]) -> Format:
    class_defaults = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in row.get("defaults", {}).items()
    }
    defaults = {"attention_head_dim": 128, **dict.fromkeys(table()["unused"]), **class_defaults}
    computed = {
        key: _computed_width(key, {**defaults, **content})
        for key in row["width"]
        if key in table()["computed_widths"]
    }
    coordinates = row["coordinates"].format_map(table()["phrases"])
    convention = convention_from(row, table()["rows"])
    return _format(name, convention, defaults={**defaults, **computed}, notes=(Note(coordinates, "fact"),))


def _computed_width(name: str, content: Mapping[str, Any]) -> int:
    keys = table()["computed_widths"][name]
    if "product" in keys:
        factors = [content.get(key) for key in keys["product"]]
        return math.prod(whole_numbers(" and ".join(keys["product"]), factors))
    lists = keys["sum_of_first"]
    key = next((key for key in lists if content.get(key) is not None), lists[0])
    return sum(whole_numbers(key, content.get(key)))


def _why_unknown(content: Mapping[str, Any], name: str) -> str:
    if name.endswith("Pipeline") or any(map(_is_component, content.values())):
        return (
            f"this is the model_index.json of {short(name)}, a pipeline of diffusers; give the config.json "
            "in its folder 'transformer'."
        )
    return (
        f"_class_name is {short(name)}, which is no transformer of diffusers 0.42. Of a pipeline give the "
        "config.json of its folder 'transformer'; for another model state RoPE(axes=...) by its code."
    )


def _is_component(value: Any) -> bool:
    """Return whether a value names a part of a pipeline: its library and its class."""
    return isinstance(value, list) and len(value) == 2 and value[0] in ("diffusers", "transformers")
