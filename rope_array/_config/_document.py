"""Load a config from a file, a dict or a config object, and find the part to read.

The part, a `ConfigPart`, keeps the record: which values were stated or inferred, and the notes.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rope_array._config import _formats
from rope_array._config._convention import Convention
from rope_array._config._conventions import CONVENTIONS, REMOTE_DEFAULTS, convention_of, variant_of
from rope_array._config._conventions_unknown import BY_HAND, generic
from rope_array._config._model_defaults import MODELS, SHARED, WITHOUT
from rope_array._config._part import ConfigPart, Foreign, listed, quoted
from rope_array._config._tables import KEYS
from rope_array._errors import ConfigError, short

MODELS = {**REMOTE_DEFAULTS, **MODELS}

# Model types of published configs that transformers has under another name.
OTHER_NAMES = {"ernie4_5_moe_vl": "ernie4_5_vl_moe", "exaone4_5_text": "exaone4", "kimi_k2": "deepseek_v3"}

# Models whose class reads the text's keys from the top level, if the config states no text part.
_FLAT = frozenset(("dots3_note", "fuyu", "hunyuan_vl", "paddleocr_vl", "qwen2_5_vl", "qwen2_vl"))

# Far above every published config, and small enough that a hostile config costs no time.
_MOST_BYTES = 2 * 2**20
_MOST_VALUES = 2**21
_DEEPEST_VALUE = 100
_DEEPEST = 4  # parts within parts
_PLAIN_TYPES = frozenset((str, int, float, bool, type(None)))


# The document


@dataclass(frozen=True)
class Document:
    """A config's content in plain values, and the name of its class where it is an object."""

    content: dict[Any, Any]
    class_name: str | None = None

    @property
    def name(self) -> str:
        """The name of the config in a message while its part is unknown."""
        kind = self.content.get("model_type")
        return quoted(kind)[1:-1] if isinstance(kind, str) else "the config"


def load(config: Any) -> Document:
    """Return a config's content in plain values; an exception of foreign code becomes a ConfigError."""
    try:
        return _load(config)
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError("the config is nested too deeply, or holds itself.") from None
    except Exception as problem:
        raise ConfigError(f"the config cannot be read: it raised {type(problem).__name__}.") from problem


def _load(config: Any) -> Document:
    if isinstance(config, Mapping):
        content = Copy().mapping(config)
        if type(config).__module__ == "diffusers.configuration_utils":  # its FrozenDict
            content.setdefault("_use_default_values", [])
        return Document(content)
    if isinstance(config, (str, os.PathLike)):
        return Document(_load_file(os.fsdecode(config)))
    if not isinstance(config, type) and callable(to_dict := getattr(config, "to_dict", None)):
        if isinstance(content := to_dict(), Mapping):
            return Document(Copy().mapping(content), type(config).__name__)
        raise ConfigError(f"to_dict() of {type(config).__name__} returned {quoted(content)}, no dict.")
    if getattr(config, "config_name", None) == "config.json" and isinstance(config.config, Mapping):
        # A model of diffusers: its own config does not name the class.
        return Document(Copy().mapping({"_class_name": type(config).__name__, **config.config}))
    raise ConfigError(
        f"config is {quoted(plain(config))}; give the path of a config.json, its content as a dict, or a "
        "config object."
    )


def plain(value: Any) -> Any:
    """Return a number, string, bool or None, a subclass's instance converted; for others, a `Foreign`."""
    if value is None or issubclass(type(value), (bool, str, int, float)):
        return _exact(value)
    return Foreign(str(type(value).__name__)[:80])


def _exact(value: Any) -> Any:
    for kind, copy in ((str, str.__str__), (int, int.__int__), (float, float.__float__)):
        if type(value) is not kind and type(value) is not bool and issubclass(type(value), kind):
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


def _load_file(path: str) -> dict[str, Any]:
    name = short(path)
    try:
        file = _find_file(Path(path), name)
        if file.stat().st_size == 0:  # reading a system file of size 0 may block for ever
            raise ConfigError(f"{name} is no JSON: it is empty; give a config.json.")
        if (metadata := _formats.read_file(file, name)) is not None:
            return metadata
        with file.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except ConfigError:
        raise
    except (OSError, ValueError) as problem:  # ValueError: a name that no file can have
        why = getattr(problem, "strerror", None) or type(problem).__name__
        raise ConfigError(f"{name} cannot be read: {why}.") from None
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{name} has more than {_MOST_BYTES} bytes; give a config.json, which is smaller.")
    return _parse(content, name)


_NOT_FETCHED = "To read a model of a hub, download its config.json first: nothing is fetched."


def _find_file(path: Path, name: str) -> Path:
    """Return the path of the config.json; a missing one may be the name of a model on a hub."""
    if path.is_dir():
        path = path / "config.json"
        if not path.exists():
            other = _formats.other_config(path.parent)
            raise ConfigError(f"the folder {name} has no config.json; {other}. {_NOT_FETCHED}")
    if not path.exists():
        raise ConfigError(
            f"no file or folder here is named {name}; give the path of a config.json, or of the folder that "
            f"holds it. {_NOT_FETCHED}"
        )
    if not path.is_file():  # a device or a pipe may have no end
        raise ConfigError(f"{name} is no regular file; give a config.json, or the folder that holds it.")
    return path


def _parse(content: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_unique_keys)
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply to be a config.") from None
    except ValueError as problem:
        digits = "set_int_max_str_digits" in str(problem)
        why = "a number has too many digits" if digits else problem
        raise ConfigError(f"{name} is no JSON that can be read: {why}; give a config.json.") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{name} holds {quoted(document)}; give a config.json, which holds an object.")
    return document


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ConfigError(f"the key {quoted(name)} appears twice in one object; leave one of them out.")
        found[name] = value
    return found


# The part


_ROTARY_KEYS = (
    *("rope_parameters", "rope_scaling", "rotary_dim", "qk_rope_head_dim"),
    *KEYS["bases"],
    *KEYS["shares"],
)


def locate(content: Mapping[str, Any], class_name: str | None, wanted: str | None) -> ConfigPart:
    """Return the wanted part; by default the text part, or the whole."""
    if (other := _formats.recognise(content)) is not None:
        return _part_of(other, content, wanted)
    kind = _model_type_of(content)
    root = OTHER_NAMES.get(kind or "", kind)
    # Some parts have the model type of the whole config: the class of a config object distinguishes them.
    key = SHARED.get(class_name or "", root)
    part = ConfigPart(content, "", root, kind, key, MODELS.get(key or "", {}), convention_of(key))
    names = _text_path(part) if wanted is None else _names(wanted)
    if wanted == "text" and not _part_names(part):
        return part
    if wanted is not None:
        names = [*_path_to(part, names[0]), *names]
    for name in names:
        part = _descend(part, name)
    if wanted is not None:
        for name in _text_path(part):
            part = _descend(part, name)
    elif names:
        part.inferred["part"] = part.path
    return part


def _part_of(other: _formats.Format, content: Mapping[str, Any], wanted: Any) -> ConfigPart:
    """Return the wanted part of a config in another format."""
    path = ""
    if wanted is not None and wanted not in (*other.parts, *other.main):
        names = listed((*other.parts, *other.main)) or "none"
        name = other.model_type or other.name
        raise ConfigError(f"{name} has no part {quoted(wanted)}; give one of: {names}.")
    if wanted in other.parts:
        path, (other, inner) = wanted, other.parts[wanted]
        content = content if inner is None else _formats.value_at(content, inner)
    part = ConfigPart(
        content, path, None, other.model_type, None, other.defaults, other.convention, foreign=True
    )
    return replace(part, inferred={"format": other.name}, notes=[*other.notes])


def _path_to(part: ConfigPart, name: str) -> list[str]:
    """Return the parts between the whole and the text, vision or audio part, or indexer, of its main part."""
    found: list[str] = []
    if name not in ("text", "vision", "audio", "indexer"):
        return found
    for _ in range(_DEEPEST):
        names = _part_names(part)
        main = [other for other in _TEXT_PARTS if other in names]
        if name in names or _is_indexer(part, name):
            return found
        if not main:
            break
        found.append(main[0])
        part = _descend(part, main[0])
    return []


def _is_indexer(part: ConfigPart, name: str) -> bool:
    """Return whether a name is the indexer of sparse attention, which has no config of its own."""
    return name == "indexer" and f"{part.key}:{name}" in CONVENTIONS


def _names(path: Any) -> list[str]:
    if not isinstance(path, str) or not path or len(path) > 200:
        raise ConfigError(f"part is {quoted(path)}; give a name such as 'text' or 'thinker.text'.")
    return [name.removesuffix("_config") for name in path.split(".")]


def _model_type_of(content: Mapping[str, Any]) -> str | None:
    kind = content.get("model_type")
    if kind is None or kind == "":
        return None
    if not isinstance(kind, str) or len(kind) > 200:
        raise ConfigError(f"model_type is {quoted(kind)}; it must be a name.")
    return kind


def _descend(part: ConfigPart, name: str) -> ConfigPart:
    path = f"{part.path}.{name}" if part.path else name
    if _is_indexer(part, name):
        key = f"{part.key}:{name}"
        return replace(part, path=path, key=key, convention=convention_of(key))
    # Older configs name the text part otherwise.
    others = ("language_config",) if name == "text" and "language" not in part.parts else ()
    keys = (f"{name}_config", name, *others)
    stated = {key: part.content[key] for key in keys if part.content.get(key) is not None}
    content = next((c for c in stated.values() if isinstance(c, Mapping)), None)
    if content is None and keys[0] in stated:
        raise ConfigError(f"{keys[0]} is {quoted(stated[keys[0]])}; it must be an object.")
    if content is not None:
        above = part.content if name in _TEXT_PARTS and not part.known else {}
        found = _make_part(part, name, path, content)
        is_merged = name in part.defaults.get("merged", ())
        of_part = part.defaults["of_parts"][name] if is_merged else {}
        return replace(found, above=above, defaults={**found.defaults, **of_part})
    if name not in part.parts:
        raise ConfigError(
            f"{part.name} has no part {quoted(name)}; give one of: {listed(_part_names(part)) or 'none'}."
        )
    # Older configs of several parts state the text's keys on the top level.
    if name == "text" and ("hidden_size" in part.content or part.key in _FLAT):
        return _make_part(part, name, path, {**part.content, "model_type": None})
    found = _make_part(part, name, path, {})
    of_part = part.defaults.get("of_parts", {}).get(name, {})
    return replace(found, defaults={**found.defaults, **of_part})


def _make_part(part: ConfigPart, name: str, path: str, content: Mapping[str, Any]) -> ConfigPart:
    stated, known, by_path = _model_type_of(content), part.parts.get(name), f"{part.root}:{path}"
    own = OTHER_NAMES.get(stated or "", stated)
    # The key is the part's model type; if that is missing, unknown or the root's, or has no effect on the
    # class, "root:path" or the class's.
    of_class = own in (None, part.root) or name in part.defaults.get("fixed", ())
    if of_class or own == known or convention_of(own) is None:
        key = by_path if by_path in CONVENTIONS else known if of_class else own
    else:
        key = own
    defaults = MODELS.get(key or "") or MODELS.get((known if key == by_path else None) or "", {})
    kind = stated if stated is not None else key if key and ":" not in key else part.root
    return ConfigPart(content, path, part.root, kind, key, defaults, convention_of(key))


def _part_names(part: ConfigPart) -> list[str]:
    stated = (
        k.removesuffix("_config")
        for k, v in part.content.items()
        if isinstance(k, str) and k.endswith("_config") and isinstance(v, Mapping)
    )
    return list(dict.fromkeys([*part.parts, *islice(stated, 20)]))


_TEXT_PARTS = ("text", "llm", "language", "thinker", "decoder", "backbone", "vlm")
_NO_MODELS = ("quantization", "per_layer")
_OTHER_PARTS = ("vision", "audio", "speech", *_NO_MODELS)


def _text_path(part: ConfigPart) -> list[str]:
    """Return the path of the default part: empty if the whole has a rope."""
    found: list[str] = []
    for _ in range(_DEEPEST):
        names = [n for n in _part_names(part) if n not in _NO_MODELS]
        if not names or _has_rope(part):
            break
        found.append(_main_of(part, names))
        part = _descend(part, found[-1])
    return found


def _has_rope(part: ConfigPart) -> bool:
    if part.known:
        return True
    return "text" not in _part_names(part) and any(part.content.get(k) is not None for k in _ROTARY_KEYS)


def _main_of(part: ConfigPart, names: list[str]) -> str:
    for name in _TEXT_PARTS:
        if name in names:
            return name
    rest = [name for name in names if not name.startswith(_OTHER_PARTS)]
    if len(rest) == 1 or len(names) == 1:
        return (rest or names)[0]
    raise ConfigError(f"{part.name} has no text part, but {listed(names)}; choose one with part=.")


# The convention


def convention_for(part: ConfigPart) -> Convention:
    """Return the convention of a part's model; for an unknown model, the most common one."""
    if part.convention is not None:
        return variant_of(part.convention, part.content)
    stated_keys = [key for key in _ROTARY_KEYS if part.content.get(key) is not None]
    if stated_keys and part.key in WITHOUT:
        raise ConfigError(
            f"{part.name} has no rotary embedding in transformers, and {listed(stated_keys)} no effect. If "
            "another code rotates, state its rope with RoPE(...)."
        )
    if not stated_keys:
        remedy = "state its model_type, or read" if part.model_type is None else "read"
        raise ConfigError(
            f"{part.name} is of no known model with a rotary embedding, and nothing in the config tells "
            f"how it rotates; {remedy} {BY_HAND}."
        )
    convention = generic(part.name, part.content)
    problem = "is missing" if part.model_type is None else f"{quoted(part.model_type)} is unknown"
    text = f"model_type {problem}: read as most models are, with {convention.pairing} pairs"
    part.inferred["convention"] = text
    part.note(
        f"the convention of {part.name} is a guess: compare pairing, rotary_dim, base, rule and axes "
        "with the model's code, or let rope_array.diagnose find them ('half' or 'interleaved')"
    )
    return convention
