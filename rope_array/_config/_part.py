"""One part of a config: its content and its model's convention; and the record of a reading."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rope_array._config._convention import Convention, Note
from rope_array._config._conventions import REMOTE
from rope_array._config._model_defaults import WITHOUT
from rope_array._errors import short


class Foreign:
    """A value of a type outside JSON: an error names the type."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def __repr__(self) -> str:
        return f"a {self.type_name}"


def quoted(value: Any) -> str:
    """Write any value of a config, shortened for a message."""
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    if isinstance(value, (int, float, str, bytes, type(None))):
        return short(value)
    if isinstance(value, Foreign):
        return repr(value)
    length = f" of length {len(value)}" if isinstance(value, (list, tuple)) else ""
    return f"a {type(value).__name__}{length}"


def listed(names: Sequence[str]) -> str:
    """Write the first of several names for a message."""
    return ", ".join(map(quoted, names[:20]))


@dataclass
class Record:
    """The values that one reading has used, stated in the config or inferred, and its notes."""

    inferred: dict[str, Any]
    notes: list[Note] = field(default_factory=list)
    stated: dict[str, Any] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Add a note once; a plain text is a doubt."""
        if text not in self.notes:
            self.notes.append(text if isinstance(text, Note) else Note(text))


@dataclass(frozen=True, kw_only=True)
class ConfigPart:
    """One part of a config, its class's defaults and its model's convention, and notes on finding it."""

    content: Mapping[str, Any]
    path: str = ""
    root: str | None = None  # the model type of the whole config
    model_type: str | None
    key: str | None = None  # of its convention
    defaults: Mapping[str, Any]
    convention: Convention | None  # None for an unknown model type
    above: Mapping[str, Any] = field(default_factory=dict)  # the config around the part
    foreign: bool = False  # in another format than Hugging Face's
    converted: Mapping[str, Any] = field(default_factory=dict)  # the class's, in place of stated ones
    inferred: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the part in a message."""
        name = quoted(self.model_type)[1:-1] if self.model_type else "the config"
        return f"{name}, part {quoted(self.path)}" if self.path else name

    @property
    def known(self) -> bool:
        """Whether the model type is a known one, and its convention no guess."""
        return self.convention is not None and "convention" not in self.inferred

    @property
    def parts(self) -> Mapping[str, str]:
        """The parts that the class has, with their keys."""
        return self.defaults.get("parts", {})  # type: ignore[no-any-return]

    @property
    def in_transformers(self) -> bool:
        """Whether transformers has the model, and its code is not on the hub or in another package."""
        elsewhere = self.foreign or self.key in REMOTE
        return not elsewhere and (bool(self.defaults) or self.key in WITHOUT)

    def unread(self, key: str) -> str:
        """Return the note on a key that the code of the model does not read."""
        place = " in transformers" if self.in_transformers else ""
        return f"{key} is not used: the model's code{place} does not read it"

    def outside(self, key: str) -> str:
        """Return the note on a key of the config around the part, which no step reads."""
        return f"{key} outside of the part {quoted(self.path)} is not used: only keys in it are read"
