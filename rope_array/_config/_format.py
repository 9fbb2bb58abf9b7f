"""A `Format`: the config of a model in keys that are not Hugging Face's. `formats.toml` has the rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rope_array._config._convention import Convention, Note, note_of
from rope_array._config._conventions import all_of, convention_from
from rope_array._config._tables import read_table


class Metadata(dict[str, Any]):
    """The values of a GGUF file: "architecture", "tensors", and the keys of the architecture in groups."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format of configs: its name, the convention of its code, and the values that a file may leave out.

    Attributes
    ----------
    name
        The name that `Reading.inferred` shows under "format".
    convention
        The convention of the model's code.
    defaults
        The defaults of the code's own class, and under "alias" the names of keys that Hugging Face's configs
        name otherwise.
    model_type
        The name of the model in messages, and `Reading.model_type`.
    notes
        Notes for the reader of the result.
    part_formats
        The formats of other parts of the model that rotate, by name.
    content
        The values that are read in place of the whole config's: those of an object in it, or changed ones.
    main
        Names of the part that is read by default.
    """

    name: str
    convention: Convention
    defaults: Mapping[str, Any] = field(default_factory=dict)
    model_type: str | None = None
    notes: tuple[str, ...] = ()
    part_formats: "Mapping[str, Format]" = field(default_factory=dict)
    content: Any = None
    main: tuple[str, ...] = ("text",)


def table(section: str) -> dict[str, Any]:
    """Return a section of formats.toml."""
    return read_table("formats.toml")[section]  # type: ignore[no-any-return]


def note(name: str) -> Note:
    """Return a note of formats.toml."""
    return note_of(table("notes")[name])


@cache
def format_of(name: str) -> Format:
    """Return the format of a row."""
    rows = table("rows")
    row = all_of(rows[name], rows)
    convention, notes = convention_from(row, rows), tuple(map(note_of, row.get("notes", ())))
    return Format(name=row["name"], convention=convention, defaults=row.get("defaults", {}), notes=notes)
