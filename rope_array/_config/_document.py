"""Load a config from a file, a dict or a config object."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rope_array._config._part import Foreign, quoted
from rope_array._errors import ConfigError

# Far above every published config, and small enough that a hostile config costs no time.
_MOST_VALUES = 2**21
_DEEPEST_VALUE = 100
_PLAIN_TYPES = frozenset((str, int, float, bool, type(None)))


@dataclass(frozen=True)
class Document:
    """A config's content in plain values, and the name of its class where it is an object."""

    content: dict[Any, Any]
    class_name: str | None = None
    checked: "set[tuple[Any, ...]]" = field(default_factory=set, compare=False)  # by `_unread_values`

    @property
    def name(self) -> str:
        """The name of the config in a message while its part is unknown."""
        model_type = self.content.get("model_type")
        return quoted(model_type)[1:-1] if isinstance(model_type, str) else "the config"


def load(config: Any) -> Document:
    """Return a config's content in plain values; an exception of foreign code becomes a ConfigError."""
    try:
        return _document_of(config)
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError("the config is nested too deeply, or holds itself.") from None
    except Exception as problem:
        raise ConfigError(f"the config cannot be read: it raised {type(problem).__name__}.") from problem


def _document_of(config: Any) -> Document:
    if isinstance(config, Mapping):
        content = Copy().mapping(config)
        if type(config).__module__ == "diffusers.configuration_utils":  # its FrozenDict
            content.setdefault("_use_default_values", [])
        return Document(content)
    if isinstance(config, (str, os.PathLike)):
        from rope_array._config._file import load_file

        return Document(load_file(os.fsdecode(config)))
    if not isinstance(config, type) and callable(to_dict := getattr(config, "to_dict", None)):
        if isinstance(content := to_dict(), Mapping):
            return Document(Copy().mapping(content), type(config).__name__)
        raise ConfigError(f"to_dict() of {type(config).__name__} returned {quoted(content)}, no dict.")
    if getattr(config, "config_name", None) == "config.json" and isinstance(config.config, Mapping):
        # A model of diffusers: its own config does not name the class.
        return Document(Copy().mapping({"_class_name": type(config).__name__, **config.config}))
    raise ConfigError(
        f"config is {quoted(plain(config))}; give the path of a config.json or a GGUF file, the content of "
        "a config.json as a dict, or a config object."
    )


def plain(value: Any) -> Any:
    """Return a number, string, bool or None, a subclass's instance converted; for others, a `Foreign`."""
    if value is None or issubclass(type(value), (bool, str, int, float)):
        return _exact(value)
    return Foreign(str(type(value).__name__)[:80])


def _exact(value: Any) -> Any:
    for cls, copy in ((str, str.__str__), (int, int.__int__), (float, float.__float__)):
        if type(value) is not cls and type(value) is not bool and issubclass(type(value), cls):
            return copy(value)
    return value


class Copy:
    """Copies a config into exact dicts, lists and scalars, so that reading them calls no foreign code."""

    def __init__(self) -> None:
        self.left = _MOST_VALUES
        self.copies: dict[int, tuple[Any, Any]] = {}  # by id; holding the original keeps its id unique

    def mapping(self, original: Any, depth: int = 0) -> dict[Any, Any]:
        return self._once(original, depth, self._mapping)  # type: ignore[no-any-return]

    def _value(self, value: Any, depth: int) -> Any:
        if issubclass(type(value), Mapping):  # isinstance would ask the value itself
            return self.mapping(value, depth)
        if issubclass(type(value), (list, tuple)):
            return self._once(value, depth, self._list)
        return plain(value)

    def _once(self, original: Any, depth: int, copy: "Callable[[Any, int], Any]") -> Any:
        """Copy a container, or return its copy if there is one."""
        if depth > _DEEPEST_VALUE:
            raise ConfigError("the config is nested too deeply.")
        if id(original) in self.copies:
            copied = self.copies[id(original)][1]
            if copied is None:
                raise ConfigError("the config is nested too deeply: it holds itself.")
            return copied
        self.copies[id(original)] = (original, None)
        copied = copy(original, depth)
        self.copies[id(original)] = (original, copied)
        return copied

    def _mapping(self, original: Any, depth: int) -> dict[Any, Any]:
        copied: dict[Any, Any] = {}
        for key in original:
            self._count()
            copied[plain(key)] = self._value(original[key], depth + 1)
        return copied

    def _list(self, original: Any, depth: int) -> list[Any]:
        copied = []
        for value in original:
            self._count()
            copied.append(value if type(value) in _PLAIN_TYPES else self._value(value, depth + 1))
        return copied

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise ConfigError(f"the config has more than {_MOST_VALUES} values; no model's has as many.")
