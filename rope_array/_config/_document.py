"""A config's content, and the part of it that is read: from a file, a dict or a config object.

The record of what was stated, inferred and noted goes with the part, which is a `Spot`.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rope_array._config._model_defaults import MODELS, ROTARY, SHARED
from rope_array._config._models import PLAIN, TEXT, Convention, generic
from rope_array._config._models_vision import VISION
from rope_array._errors import ConfigError, short

# Every convention that is not Llama's, by its key.
CONVENTIONS: dict[str, Convention] = {**VISION, **TEXT}

# Model types of published configs that transformers has under another name.
OTHER_NAMES = {"ernie4_5_moe_vl": "ernie4_5_vl_moe"}

# Wholes whose class gives a part its values beneath those that are stated, too.
_MERGED = frozenset(("voxtral", "voxtral_realtime"))

# Far above every published config, and small enough that a hostile one costs no time.
_MOST_BYTES = 2 * 2**20
_MOST_VALUES = 2**21
_DEEPEST_VALUE = 100
_DEEPEST = 4  # parts within parts
_PLAIN_TYPES = frozenset((str, int, float, bool, type(None)))


class Foreign:
    """A value that JSON has not: it is kept only so that an error can name its type."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


def said(value: Any) -> str:
    """Write a value of a config, which may be anything, so that it fits a message."""
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    if isinstance(value, (int, float, str, bytes, type(None))):
        return short(value)
    length = f" of length {len(value)}" if isinstance(value, (list, tuple)) else ""
    return f"a {value.kind if isinstance(value, Foreign) else type(value).__name__}{length}"


def listed(names: Sequence[str]) -> str:
    """Write the first of several names for a message."""
    return ", ".join(map(said, names[:20]))


# The document


@dataclass(frozen=True)
class Document:
    """A config's content in plain values, and the name of its class where it is an object."""

    content: dict[Any, Any]
    class_name: str | None = None

    @property
    def name(self) -> str:
        """What to call the config before its part is known."""
        kind = self.content.get("model_type")
        return said(kind)[1:-1] if isinstance(kind, str) else "the config"


def load(config: Any) -> Document:
    """Return a config's content in plain values, whatever foreign code does while it is read."""
    try:
        return _load(config)
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError("the config is nested too deeply, or holds itself.") from None
    except Exception as problem:
        raise ConfigError(f"the config cannot be read: that raised {type(problem).__name__}.") from problem


def _load(config: Any) -> Document:
    if isinstance(config, Mapping):
        return Document(Copy().mapping(config))
    if isinstance(config, (str, os.PathLike)):
        return Document(_load_file(os.fsdecode(config)))
    if not isinstance(config, type) and callable(to_dict := getattr(config, "to_dict", None)):
        if isinstance(made := to_dict(), Mapping):
            return Document(Copy().mapping(made), type(config).__name__)
        raise ConfigError(f"to_dict() of {type(config).__name__} returned {said(made)}, no dict.")
    raise ConfigError(
        f"config is {said(plain(config))}; give the path of a config.json, its content as a dict, or a "
        "config object."
    )


def plain(value: Any) -> Any:
    """Return a plain number, string, bool or None as it is, a subclass's as a plain one, else its type."""
    if value is None or isinstance(value, (bool, str, int, float)):
        return _exact(value)
    return Foreign(str(type(value).__name__)[:80])


def _exact(value: Any) -> Any:
    for kind, copy in ((str, str.__str__), (int, int.__int__), (float, float.__float__)):
        if type(value) is not kind and type(value) is not bool and issubclass(type(value), kind):
            return copy(value)
    return value


class Copy:
    """A copy of a config in exact dicts, lists and scalars: reading it calls no foreign code."""

    def __init__(self) -> None:
        self.left = _MOST_VALUES
        self.made: dict[int, tuple[Any, Any]] = {}  # by id, with what was copied, so that ids stay taken

    def mapping(self, given: Any, depth: int = 0) -> dict[Any, Any]:
        """Return a copy of a mapping."""
        return self._once(given, depth, self._mapping)  # type: ignore[no-any-return]

    def _value(self, value: Any, depth: int) -> Any:
        if isinstance(value, Mapping):
            return self.mapping(value, depth)
        if isinstance(value, (list, tuple)):
            return self._once(value, depth, self._list)
        return plain(value)

    def _once(self, given: Any, depth: int, copy: "Callable[[Any, int], Any]") -> Any:
        if depth > _DEEPEST_VALUE:
            raise ConfigError("the config is nested too deeply.")
        if id(given) in self.made:
            made = self.made[id(given)][1]
            if made is None:
                raise ConfigError("the config is nested too deeply: it holds itself.")
            return made
        self.made[id(given)] = (given, None)
        made = copy(given, depth)
        self.made[id(given)] = (given, made)
        return made

    def _mapping(self, given: Any, depth: int) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for key in given:
            self._count()
            made[plain(key)] = self._value(given[key], depth + 1)
        return made

    def _list(self, given: Any, depth: int) -> list[Any]:
        made = []
        for value in given:
            self._count()
            made.append(value if type(value) in _PLAIN_TYPES else self._value(value, depth + 1))
        return made

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise ConfigError(f"the config has more than {_MOST_VALUES} values; no model's has as many.")


def _load_file(path: str) -> dict[str, Any]:
    name = short(path)
    try:
        file = Path(path)
        file = file / "config.json" if file.is_dir() else file
        # Not a device, nor a pipe: those may have no end.
        if not file.is_file():
            raise ConfigError(f"{name} is no file; give a config.json, or the folder that holds it.")
        # Nor a file of the system's without a size, which may wait for ever.
        if file.stat().st_size == 0:
            raise ConfigError(f"{name} is no JSON: it is empty.")
        with file.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except ConfigError:
        raise
    except (OSError, ValueError) as problem:  # ValueError: a name that no file can have
        why = getattr(problem, "strerror", None) or type(problem).__name__
        raise ConfigError(f"{name} cannot be read: {why}.") from None
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{name} has more than {_MOST_BYTES} bytes; no config.json is as large.")
    return _parse(content, name)


def _parse(content: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_without_twins)
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply to be a config.") from None
    except ValueError as problem:
        digits = "set_int_max_str_digits" in str(problem)
        why = "a number has too many digits" if digits else problem
        raise ConfigError(f"{name} is no JSON that can be read: {why}.") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{name} holds {said(document)}; a config.json holds an object.")
    return document


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ConfigError(f"the key {said(name)} is there twice in one object; leave one of them out.")
        made[name] = value
    return made


# The part


def convention_of(key: str | None) -> Convention | None:
    """Return the convention under a key; None where the model type is not known."""
    return None if key is None else CONVENTIONS.get(key) or (PLAIN if key in ROTARY else None)


_ROTARY_KEYS = (
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "partial_rotary_factor",
    "rotary_dim",
    "rotary_pct",
    "rotary_emb_base",
    "qk_rope_head_dim",
)


@dataclass
class Spot:
    """One part of a document: its content, its class's defaults, and the record of what was read."""

    content: Mapping[str, Any]
    path: str
    root: str | None  # the model type of the whole
    model_type: str | None
    key: str | None  # of its convention
    defaults: Mapping[str, Any]
    above: Mapping[str, Any] = field(default_factory=dict)  # beside the part, where it should be in it
    stated: dict[str, Any] = field(default_factory=dict)
    inferred: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What to call the part in a message."""
        kind = said(self.model_type)[1:-1] if self.model_type else "the config"
        return f"{kind}, part {said(self.path)}" if self.path else kind

    @property
    def known(self) -> bool:
        """Whether the model type is a known one."""
        return convention_of(self.key) is not None

    @property
    def parts(self) -> Mapping[str, str]:
        """The parts that the class has, with their keys."""
        return self.defaults.get("parts", {})  # type: ignore[no-any-return]

    def convention(self) -> Convention:
        """Return how the model reads its config; of an unknown model, how most do."""
        if (found := convention_of(self.key)) is not None:
            return found
        if not any(self.content.get(key) is not None for key in _ROTARY_KEYS):
            raise ConfigError(
                f"{self.name} is of no known model with a rotary embedding, and states none of "
                f"{', '.join(_ROTARY_KEYS)}."
            )
        self.inferred["convention"] = (
            f"model_type {said(self.model_type)} is not known: read as most models are, in half pairs"
        )
        return generic(self.content)

    def note(self, text: str) -> None:
        """Tell the reader of the result once."""
        if text not in self.notes:
            self.notes.append(text)


def locate(content: Mapping[str, Any], class_name: str | None, part: str | None) -> Spot:
    """Return the part that is asked for, or else the text part, or the whole."""
    kind = _model_type(content)
    root = OTHER_NAMES.get(kind or "", kind)
    # Some parts share the name of their whole: of an object, the class tells them apart.
    key = SHARED.get(class_name or "", root)
    spot = Spot(content, "", root, kind, key, MODELS.get(key or "", {}))
    names = _text_part(spot) if part is None else _names(part)
    if part == "text" and not _part_names(spot):
        return spot
    if part is not None:
        names = [*_way_to(spot, names[0]), *names]
    for name in names:
        spot = _descend(spot, name)
    if part is not None:
        for name in _text_part(spot):
            spot = _descend(spot, name)
    if part is None and names:
        spot.inferred["part"] = spot.path
    return spot


def _way_to(spot: Spot, name: str) -> list[str]:
    """Return the parts that lead to the text, vision or audio part of the main part."""
    found: list[str] = []
    if name not in ("text", "vision", "audio"):
        return found
    for _ in range(_DEEPEST):
        names = _part_names(spot)
        main = [other for other in _TEXT_PARTS if other in names]
        if name in names:
            return found
        if not main:
            break
        found.append(main[0])
        spot = _descend(spot, main[0])
    return []


def _names(part: Any) -> list[str]:
    if not isinstance(part, str) or not part or len(part) > 200:
        raise ConfigError(f"part is {said(part)}; give a name such as 'text' or 'thinker.text'.")
    return [name.removesuffix("_config") for name in part.split(".")]


def _model_type(content: Mapping[str, Any]) -> str | None:
    kind = content.get("model_type")
    if kind is None or kind == "":
        return None
    if not isinstance(kind, str) or len(kind) > 200:
        raise ConfigError(f"model_type is {said(kind)}; it must be a name.")
    return kind


def _descend(spot: Spot, name: str) -> Spot:
    path = f"{spot.path}.{name}" if spot.path else name
    keys = (f"{name}_config", name)
    stated = {key: spot.content[key] for key in keys if spot.content.get(key) is not None}
    content = next((c for c in stated.values() if isinstance(c, Mapping)), None)
    if content is None and keys[0] in stated:
        raise ConfigError(f"{keys[0]} is {said(stated[keys[0]])}; it must be an object.")
    if content is not None:
        above = spot.content if name in _TEXT_PARTS and convention_of(spot.key) is None else {}
        made = _part(spot, name, path, content)
        given = spot.defaults.get("of_parts", {}).get(name, {}) if spot.key in _MERGED else {}
        return replace(made, above=above, defaults={**made.defaults, **given})
    if name not in spot.parts:
        raise ConfigError(
            f"{spot.name} has no part {said(name)}; it has {listed(_part_names(spot)) or 'no parts'}."
        )
    # Older configs of several parts state the text's keys beside the other parts.
    if name == "text" and "hidden_size" in spot.content:
        return _part(spot, name, path, {**spot.content, "model_type": None})
    made = _part(spot, name, path, {})
    given = spot.defaults.get("of_parts", {}).get(name, {})
    return replace(made, defaults={**made.defaults, **given})


def _part(spot: Spot, name: str, path: str, content: Mapping[str, Any]) -> Spot:
    own, known, by_path = _model_type(content), spot.parts.get(name), f"{spot.root}:{path}"
    # A part's own model type tells, unless it repeats the whole's or is none: then its place does.
    if own in (None, spot.root) or convention_of(own) is None:
        key = by_path if by_path in CONVENTIONS else known if own in (None, spot.root) else own
    else:
        key = own
    defaults = MODELS.get(key or "") or MODELS.get((known if key == by_path else None) or "", {})
    kind = own if own is not None else key if key and ":" not in key else spot.root
    return Spot(content, path, spot.root, kind, key, defaults)


def _part_names(spot: Spot) -> list[str]:
    stated = (
        k.removesuffix("_config")
        for k, v in spot.content.items()
        if isinstance(k, str) and k.endswith("_config") and isinstance(v, Mapping)
    )
    return list(dict.fromkeys([*spot.parts, *islice(stated, 20)]))


_TEXT_PARTS = ("text", "llm", "language", "thinker", "decoder", "backbone", "vlm")
_OTHER_PARTS = ("vision", "audio", "speech", "quantization", "per_layer")


def _text_part(spot: Spot) -> list[str]:
    """Return the path of the part to read where none is asked for: empty if the whole has a rope itself."""
    found: list[str] = []
    for _ in range(_DEEPEST):
        names = [n for n in _part_names(spot) if n not in ("quantization", "per_layer")]
        if not names or _has_rope(spot):
            break
        found.append(_main_of(spot, names))
        spot = _descend(spot, found[-1])
    return found


def _has_rope(spot: Spot) -> bool:
    if convention_of(spot.key) is not None:
        return True
    return "text" not in _part_names(spot) and any(spot.content.get(k) is not None for k in _ROTARY_KEYS)


def _main_of(spot: Spot, names: list[str]) -> str:
    for name in _TEXT_PARTS:
        if name in names:
            return name
    rest = [name for name in names if not name.startswith(_OTHER_PARTS)]
    if len(rest) == 1 or len(names) == 1:
        return (rest or names)[0]
    raise ConfigError(f"{spot.name} has no text part, but {listed(names)}; say which with part=.")
