"""Read a Hugging Face config.json into a `RoPE`: no transformers, no array library, no network.

A config says some of what a rotary embedding is; the rest is in the model's code and in its class's defaults,
which `_models.py` and `_model_defaults.py` hold. `read` says which value came from where.
"""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._axes import Axes
from ._errors import SpecError, short
from ._models import PLAIN, TEXT, Convention, generic
from ._scaling import (
    DynamicNTK,
    Linear,
    Llama3,
    LongRoPE,
    NTKAware,
    Proportional,
    Scaling,
    YaRN,
    frequencies,
)
from ._values import integer, number

if TYPE_CHECKING:
    from ._apply import RoPE

__all__ = ["ConfigError", "Reading", "read"]

# Far above every published config, and small enough that a hostile one costs no time.
_MOST_BYTES = 16 * 2**20
_MOST_KEYS = 64
_WIDEST = 2**16
_LARGEST = 2**62
_DEEPEST = 4


class ConfigError(SpecError):
    """A config that cannot be read, contradicts itself, or names what is no known rotary embedding."""


@dataclass(frozen=True)
class Reading:
    """What a config says of a model's rotary embedding, and what had to be inferred.

    Attributes
    ----------
    rope : RoPE
        The rotary embedding.
    model_type : str or None
        The `model_type` of the config, or of the part read.
    part : str or None
        The part read, such as "text" or "thinker.text"; None: the config itself.
    layer_type : str or int or None
        The layer type, or the layer, that was asked for.
    stated : dict
        The keys of the config that were used, with their values.
    inferred : dict
        What the config does not state: class defaults of the model type, and what its code does.
    notes : tuple of str
        What a reader should know: keys that are not used, and where transformers itself differs.
    """

    rope: "RoPE"
    model_type: str | None
    part: str | None
    layer_type: str | int | None
    stated: dict[str, Any]
    inferred: dict[str, Any]
    notes: tuple[str, ...]


def read(config: Any, *, part: str | None = None, layer_type: str | int | None = None) -> Reading:
    """Read the rotary embedding of a model from its Hugging Face config.

    Parameters
    ----------
    config : str, PathLike, mapping or object with ``to_dict()``
        The path of a config.json, or of the folder that holds one; its content; or a config object.
    part : str, optional
        The part of a config of several: "text", "vision", "audio", or a path of sub-config keys with dots,
        with or without "_config" ("thinker.text"). By default the config itself, or its text part.
    layer_type : str or int, optional
        A name in the config's `layer_types`, a key of its `rope_parameters`, or the index of a layer. Needed
        where layers differ.

    Returns
    -------
    Reading
        The rope, and where each value came from.

    Raises
    ------
    ConfigError
        The config cannot be read or contradicts itself; a rope type or key is unknown; the model's "RoPE" is
        no rotation; layers differ and no `layer_type` was given.

    Examples
    --------
    >>> from rope_array.config import read
    >>> reading = read({"model_type": "llama", "head_dim": 4, "rope_theta": 500000.0})
    >>> reading.rope.frequencies
    (1.0, 0.001414213562373095)
    >>> reading.stated
    {'rope_theta': 500000.0, 'head_dim': 4}
    >>> reading.inferred["pairing"]
    'half'
    """
    try:
        spot = _locate(*_load(config), part)
        return _read(spot, layer_type)
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError("the config is nested too deeply, or holds itself.") from None
    except (SpecError, ArithmeticError) as problem:
        raise ConfigError(f"{_name_of(config)}: {problem}") from None


def _name_of(config: Any) -> str:
    kind = config.get("model_type") if isinstance(config, Mapping) else None
    return _said(kind)[1:-1] if isinstance(kind, str) else "the config"


def _read(spot: "_Spot", layer_type: str | int | None) -> Reading:
    convention = spot.convention()
    if convention.refusal:
        raise ConfigError(f"{spot.name}: {convention.refusal}. RoPE cannot state it.")
    rope = _Reader(spot, convention, layer_type).rope()
    return Reading(
        rope, spot.model_type, spot.path or None, layer_type, spot.stated, spot.inferred, tuple(spot.notes)
    )


# The document


def _load(config: Any) -> tuple[Mapping[str, Any], str | None]:
    """Return a config's content, and the name of its class where it is an object."""
    if isinstance(config, Mapping):
        return config, None
    if isinstance(config, (str, os.PathLike)):
        return _load_file(config), None
    if not isinstance(config, type) and callable(to_dict := getattr(config, "to_dict", None)):
        if isinstance(made := to_dict(), Mapping):
            return made, type(config).__name__
        raise ConfigError(f"to_dict() of {type(config).__name__} returned {_said(made)}, no dict.")
    raise ConfigError(
        f"config is {_said(config)}; give the path of a config.json, its content as a dict, or a config "
        "object."
    )


def _load_file(path: "str | os.PathLike[Any]") -> Mapping[str, Any]:
    name = short(str(path))
    try:
        file = Path(os.fsdecode(path))
        file = file / "config.json" if file.is_dir() else file
        # Not a device, nor a pipe: those may have no end.
        if not file.is_file():
            raise ConfigError(f"{name} is no file; give a config.json, or the folder that holds it.")
        with file.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except ConfigError:
        raise
    except (OSError, ValueError) as problem:  # ValueError: a name that no file can have
        raise ConfigError(f"{name} cannot be read: {problem}.") from None
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{name} has more than {_MOST_BYTES} bytes; no config.json is as large.")
    return _parse(content, name)


def _parse(content: bytes, name: str) -> Mapping[str, Any]:
    try:
        document = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_without_twins)
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply to be a config.") from None
    except ValueError as problem:
        raise ConfigError(f"{name} is no JSON: {problem}.") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{name} holds {_said(document)}; a config.json holds an object.")
    return document


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ConfigError(f"the key {_said(name)} is there twice in one object; leave one of them out.")
        made[name] = value
    return made


# The part


@lru_cache(maxsize=1)
def conventions() -> dict[str, Convention]:
    """Every convention that is not Llama's, by its key; made late, as most programs read no config."""
    from ._models_vision import VISION

    return {**VISION, **TEXT}


def convention_of(key: str | None) -> Convention | None:
    """Return the convention under a key; None where the model type is not known."""
    from ._model_defaults import ROTARY

    return None if key is None else conventions().get(key) or (PLAIN if key in ROTARY else None)


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
class _Spot:
    """One part of a document: its content, its class's defaults, and the record of what was read."""

    content: Mapping[str, Any]
    path: str
    root: str | None  # the model type of the whole
    model_type: str | None
    key: str | None  # of its convention
    defaults: Mapping[str, Any]
    stated: dict[str, Any] = field(default_factory=dict)
    inferred: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What to call the part in a message."""
        kind = self.model_type or "the config"
        return f"{kind}, part {self.path!r}" if self.path else kind

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
            f"model_type {_said(self.model_type)} is not known: read as most models are, in half pairs"
        )
        return generic(self.content)

    def note(self, text: str) -> None:
        """Tell the reader of the result once."""
        if text not in self.notes:
            self.notes.append(text)


def _locate(content: Mapping[str, Any], class_name: str | None, part: str | None) -> _Spot:
    from ._model_defaults import MODELS, SHARED

    kind = _model_type(content)
    # Some parts share the name of their whole: of an object, the class tells them apart.
    key = SHARED.get(class_name or "", kind)
    spot = _Spot(content, "", kind, kind, key, MODELS.get(key or "", {}))
    names = _text_part(spot) if part is None else _names(part)
    if part == "text" and not _part_names(spot):
        return spot
    for name in names:
        spot = _descend(spot, name)
    if part is None and names:
        spot.inferred["part"] = spot.path
    return spot


def _names(part: Any) -> list[str]:
    if not isinstance(part, str) or not part or len(part) > 200:
        raise ConfigError(f"part is {_said(part)}; give a name such as 'text' or 'thinker.text'.")
    return [name.removesuffix("_config") for name in part.split(".")]


def _model_type(content: Mapping[str, Any]) -> str | None:
    kind = content.get("model_type")
    if kind is None or kind == "":
        return None
    if not isinstance(kind, str) or len(kind) > 200:
        raise ConfigError(f"model_type is {_said(kind)}; it must be a name.")
    return kind


def _descend(spot: _Spot, name: str) -> _Spot:
    path = f"{spot.path}.{name}" if spot.path else name
    keys = (f"{name}_config", name)
    content = next((c for key in keys if isinstance(c := spot.content.get(key), Mapping)), None)
    if content is not None:
        return _part(spot, name, path, content)
    if name not in spot.parts:
        raise ConfigError(
            f"{spot.name} has no part {_said(name)}; it has {_listed(_part_names(spot)) or 'no parts'}."
        )
    # Older configs of several parts state the text's keys beside the other parts.
    if name == "text" and "hidden_size" in spot.content:
        return _part(spot, name, path, {**spot.content, "model_type": None})
    made = _part(spot, name, path, {})
    given = spot.defaults.get("of_parts", {}).get(name, {})
    return replace(made, defaults={**made.defaults, **given})


def _part(spot: _Spot, name: str, path: str, content: Mapping[str, Any]) -> _Spot:
    from ._model_defaults import MODELS

    own, known, by_path = _model_type(content), spot.parts.get(name), f"{spot.root}:{path}"
    # A part's own model type tells, unless it repeats the whole's or is none: then its place does.
    if own is None or own == spot.root or convention_of(own) is None:
        key = by_path if by_path in conventions() else known if own in (None, spot.root) else own
    else:
        key = own
    defaults = MODELS.get(key or "") or MODELS.get((known if key == by_path else None) or "", {})
    kind = own if own is not None else key if key and ":" not in key else spot.root
    return _Spot(content, path, spot.root, kind, key, defaults)


def _part_names(spot: _Spot) -> list[str]:
    stated = (
        k.removesuffix("_config")
        for k, v in spot.content.items()
        if isinstance(k, str) and k.endswith("_config") and isinstance(v, Mapping)
    )
    return list(dict.fromkeys([*spot.parts, *islice(stated, 20)]))


_TEXT_PARTS = ("text", "llm", "language", "thinker", "decoder", "backbone", "vlm")
_OTHER_PARTS = ("vision", "audio", "speech", "quantization", "per_layer")


def _text_part(spot: _Spot) -> list[str]:
    """Return the path of the part to read where none is asked for: empty if the whole has a rope itself."""
    found: list[str] = []
    for _ in range(_DEEPEST):
        names = [n for n in _part_names(spot) if n not in ("quantization", "per_layer")]
        if not names or _has_rope(spot):
            break
        found.append(_main_of(spot, names))
        spot = _descend(spot, found[-1])
    return found


def _has_rope(spot: _Spot) -> bool:
    if convention_of(spot.key) is not None:
        return True
    return "text" not in _part_names(spot) and any(spot.content.get(k) is not None for k in _ROTARY_KEYS)


def _main_of(spot: _Spot, names: list[str]) -> str:
    for name in _TEXT_PARTS:
        if name in names:
            return name
    rest = [name for name in names if not name.startswith(_OTHER_PARTS)]
    if len(rest) == 1 or len(names) == 1:
        return (rest or names)[0]
    raise ConfigError(f"{spot.name} has no text part, but {_listed(names)}; say which with part=.")


def _said(value: Any) -> str:
    """Write a value of a config, which may be anything, so that it fits a message."""
    if isinstance(value, Mapping):
        return f"an object of {len(value)} keys"
    if isinstance(value, (int, float, str, bytes, type(None))):
        return short(value)
    length = f" of length {len(value)}" if isinstance(value, (list, tuple)) else ""
    return f"a {type(value).__name__}{length}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(_said, names[:20]))


# Values


class _Table:
    """A mapping whose values are read by type, each named in errors and noted in a record."""

    def __init__(self, content: Mapping[str, Any], prefix: str, record: dict[str, Any]) -> None:
        self.content, self.prefix, self.record = content, prefix, record

    def get(self, name: str, default: Any = None) -> Any:
        value = self.content.get(name)
        if value is None:
            return default
        self.note(name, value)
        return value

    def note(self, name: str, value: Any) -> None:
        self.record[self.prefix + name] = _brief(value)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._number(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if (made := integer(self.prefix + name, value, 1)) > _LARGEST:
            raise ConfigError(f"{self.prefix}{name} is {_said(made)}; no model has as many.")
        return made

    def number(self, name: str, default: float | None = None) -> float:
        return number(self.prefix + name, self._number(name, default))

    def optional(self, name: str) -> float | None:
        return None if self.get(name) is None else self.number(name)

    def _number(self, name: str, default: float | None) -> Any:
        if (value := self.get(name, default)) is None:
            raise ConfigError(f"{self.prefix}{name} is missing; the config must state it.")
        if not isinstance(value, (int, float)):
            raise ConfigError(f"{self.prefix}{name} is {_said(value)}; it must be a number.")
        return value


class _Parameters(_Table):
    """The rotary parameters of one kind of layer, of which the model's class may have added some."""

    def __init__(self, content: Mapping[str, Any], prefix: str, spot: _Spot, stated: "set[str]") -> None:
        super().__init__(content, prefix, spot.stated)
        self.names, self.inferred = stated, spot.inferred

    def note(self, name: str, value: Any) -> None:
        (self.record if name in self.names else self.inferred)[self.prefix + name] = _brief(value)


def _brief(value: Any) -> Any:
    """Keep the record to plain values, and small: the config may hold anything."""
    if isinstance(value, (list, tuple)) and len(value) <= 256 and all(map(_is_small, value)):
        return list(value)
    return value if _is_small(value) else _said(value)


def _is_small(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= 256
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= _LARGEST)


class _Values(_Table):
    """One part's values: what is stated, for the layer or at all, else the class's default."""

    def __init__(self, spot: _Spot) -> None:
        super().__init__(spot.content, "", spot.stated)
        self.spot, self.alias = spot, spot.defaults.get("alias", {})
        self.layer: Mapping[str, Any] = {}

    def stated(self, name: str) -> Any:
        """Return what the config states under a name or its alias, and leave no record."""
        values = (
            where.get(k) for k in (self.alias.get(name, name), name) for where in (self.layer, self.content)
        )
        return next((value for value in values if value is not None), None)

    def get(self, name: str, default: Any = None) -> Any:
        if "." in name:
            key, _, inner = name.partition(".")
            return self._inner(key, inner, default)
        if (value := self.stated(name)) is not None:
            key = self.alias.get(name, name)
            self.note(key if key in self.content else name, value)
            return value
        for key in (self.alias.get(name, name), name):
            if (value := self.spot.defaults.get(key)) is not None:
                self.spot.inferred[name] = value
                return value
        return default

    def _inner(self, key: str, name: str, default: Any) -> Any:
        """Return a value of the layer's own, "layer.x", or of a sub-config."""
        where = self.layer if key == "layer" else self.content.get(key)
        value = where.get(name) if isinstance(where, Mapping) else None
        if value is not None:
            self.record[f"{key}.{name}"] = _brief(value)
        return default if value is None else value

    def width(self, *keys: str) -> int:
        for key in keys:
            values = [self._factor(factor) for factor in key.split("/")]
            if all(value is not None for value in values):
                return self._quotient(key, [value for value in values if value is not None])
        raise ConfigError(f"the width of a head is missing; the config must state {' or '.join(keys)}.")

    def _factor(self, name: str) -> int | None:
        if name.isdigit():
            return int(name)
        times, _, key = name.rpartition("*")
        return None if self.get(key) is None else int(times or 1) * self.integer(key)

    def _quotient(self, name: str, values: list[int]) -> int:
        made = values[0]
        for value in values[1:]:
            made, rest = divmod(made, value)
            if rest:
                self._left_over(f"{name} is {'/'.join(map(_said, values))}, which leaves a rest")
        if not 0 < made <= _WIDEST:
            raise ConfigError(f"{name} is {_said(made)}; a head is 1 to {_WIDEST} wide.")
        return made

    def _left_over(self, what: str) -> None:
        if not self.spot.known:
            raise ConfigError(f"no head_dim is given, and {what}; state head_dim.")
        self.spot.note(f"{what}: transformers drops it")

    def types_of_layers(self) -> Sequence[str]:
        """Return the type of each layer, stated or as far as the class's default is known."""
        found = self.get("layer_types")
        if found is None:
            return ()
        names = isinstance(found, (list, tuple)) and all(isinstance(name, str) for name in found)
        if not names:
            raise ConfigError(f"layer_types is {_said(found)}; it must be a list of names.")
        return found  # type: ignore[no-any-return]

    def layer_types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.types_of_layers()))


# The reading


# fmt: off
_KEYS = frozenset((
    "alpha", "attention_factor", "attn_factor", "beta_fast", "beta_slow", "extrapolation_factor", "factor",
    "finetuned", "high_freq_factor", "interleaved", "llama_4_scaling_beta", "long_factor", "long_mscale",
    "low_freq_factor", "max_position_embeddings", "mixed_b", "mrope_interleaved", "mrope_section", "mscale",
    "mscale_all_dim", "original_max_position_embeddings", "partial_rotary_factor", "rope_dim", "rope_theta",
    "rope_type", "short_factor", "short_mscale", "truncate", "type", "xdrope_section",
))
# Read by every rule, or no matter of the rotation.
_ALWAYS = frozenset((
    "attn_factor", "extrapolation_factor", "finetuned", "interleaved", "llama_4_scaling_beta",
    "max_position_embeddings", "mrope_interleaved", "mrope_section", "partial_rotary_factor", "rope_dim",
    "rope_theta", "rope_type", "type",
))
# fmt: on
_SAME_AS = {
    "axial": "default",
    "mrope": "default",
    "mllama4": "default",
    "none": "default",
    "no_scaling": "default",
    "su": "longrope",
    "ntk_alpha": "dynamic",
    "deepseek_llama_scaling": "deepseek_yarn",
    "telechat3-yarn": "deepseek_yarn",
}
_XDROPE = (
    "sections over the full width of the head put the two features of a pair on different coordinates, which "
    "is no rotation unless all coordinates are equal"
)
_NOT_READ = {
    "xdrope": _XDROPE,
    "openpangu": "a lane-to-axis map of vLLM's own; state it with RoPE(axes=...)",
    "bailing_mrope": "h and w by turns, in neighbours; state it with RoPE(axes=Axes.alternating(t, h, w))",
    "fope": "cos and sin are mixed by learned matrices, which is no rotation",
}


_NO_ATTENTION = ("linear_attention", "conv", "mamba", "mamba2", "recurrent")


class _Reader:
    """The steps from one part of a config to the rope of one kind of layer."""

    def __init__(self, spot: _Spot, convention: Convention, layer_type: Any) -> None:
        self.spot, self.convention = spot, convention
        self.values = _Values(spot)
        self.index: int | None = None
        self.label: str | None = None
        self.given: Mapping[str, Any] = {}  # the rotary parameters as the config states them
        if isinstance(layer_type, str):
            self.label = layer_type
        elif layer_type is not None:
            self.index = self._checked(layer_type)
            self.label = self._label_of(self.index)

    def rope(self) -> "RoPE":
        """Return the rope of the layer that was asked for."""
        if (why := self._why_none()) is not None:
            return self.identity(why)
        given = self._given()
        _check_shape(given)
        if self.convention.parameters is not None:
            given = self.convention.parameters(self.values, dict(given))
        if any(isinstance(value, Mapping) for value in given.values()):
            return self._of_nested(given)
        self._check_label()
        return self._of_one(given, "")

    def identity(self, why: str) -> "RoPE":
        """Return the rope of a layer without rotation."""
        from ._apply import RoPE

        self.spot.note(f"{why}: no rotation")
        convention = self.convention.layers.get(self.label or "", self.convention)
        return RoPE(self.values.width(*convention.width), rotary_dim=0, pairing=convention.pairing)

    # Layers

    def _checked(self, index: Any) -> int:
        if isinstance(index, bool) or not isinstance(index, int):
            raise ConfigError(f"layer_type is {_said(index)}; give a name, or the index of a layer.")
        count = self.values.integer("num_hidden_layers") if self.values.get("num_hidden_layers") else None
        if index < 0 or (count is not None and index >= count):
            raise ConfigError(
                f"layer_type is {_said(index)}; the index of a layer is from 0 to {count or 'n'} - 1."
            )
        return index

    def _label_of(self, index: int) -> str | None:
        types = self.values.types_of_layers()
        if not types:
            return None
        if self.values.stated("layer_types") is None:
            return types[index % len(types)]
        if index >= len(types):
            raise ConfigError(f"layer_type is {index}, and layer_types names {len(types)} layers.")
        return types[index]

    def _check_label(self) -> None:
        """Refuse the name of a layer type that the config does not have."""
        known = (
            *self.values.layer_types(),
            *self.spot.defaults.get("labels", ()),
            *self.convention.layers,
            *self.convention.nope,
            *(("scaled", "unscaled") if self.convention.scaled_layers else ()),
        )
        if self.label is not None and self.index is None and self.label not in known:
            has = _listed(tuple(dict.fromkeys(known))) or "layers of one kind, without names"
            raise ConfigError(f"layer_type is {_said(self.label)}; the config has {has}.")

    def _why_none(self) -> str | None:
        """Return why the layer does not rotate; None if it does."""
        for key, allowed in self.convention.unless.items():
            if (value := self.values.get(key)) not in allowed:
                return f"{key} is {_said(value)}"
        if self.label in self.convention.nope and self._nope_holds():
            return f"layer type {self.label!r}"
        if self.label in _NO_ATTENTION and self.label in self.values.layer_types():
            return f"layer type {self.label!r} has no attention that rotates"
        return self._why_listed()

    def _nope_holds(self) -> bool:
        turns = self.convention.turns
        if turns is not None and self.index is not None and turns(self.values, self.index):
            return False
        needs, unless = self.convention.nope_needs, self.convention.nope_unless
        needed = needs is None or self._set(needs)
        return needed and (unless is None or self.values.stated(unless) is None)

    def _set(self, key: str) -> bool:
        """Whether a key has a value; null, where it is stated, goes before the class's default."""
        content = self.values.content
        return (content[key] if key in content else self.spot.defaults.get(key)) is not None

    def _why_listed(self) -> str | None:
        """Follow `no_rope_layers`, which has 0 for a layer without rotation, or its interval."""
        listed = self.values.stated("no_rope_layers")
        interval = None if listed else self.values.get("no_rope_layer_interval")
        if not listed and interval is None:
            return None
        if listed and not isinstance(listed, (list, tuple)):
            raise ConfigError(f"no_rope_layers is {_said(listed)}; it must be a list of 0 and 1.")
        every = 1 if listed else self.values.integer("no_rope_layer_interval")

        def turns(index: int) -> bool:
            return bool(listed[index]) if listed and index < len(listed) else (index + 1) % every != 0

        if self.index is not None:
            return None if turns(self.index) else f"no_rope_layers, layer {self.index}"
        return self._why_all(turns, len(listed) if listed else 0)

    def _why_all(self, turns: Callable[[int], bool], count: int) -> str | None:
        types = self.values.types_of_layers()
        alike = [i for i in range(count or len(types)) if types and types[i % len(types)] == self.label]
        found = {turns(i) for i in alike}
        if len(found) == 2:
            raise ConfigError(
                f"of the layers of type {_said(self.label)}, no_rope_layers leaves some without rotation; "
                "give the layer's index."
            )
        return f"no_rope_layers, layer type {self.label!r}" if found == {False} else None

    def theta_of_layer(self) -> Any:
        """Return what `layer_rope_theta` says of the layer's base, or `_UNSAID`."""
        thetas = self.values.stated("layer_rope_theta")
        if thetas is None or (self.label is None and self.index is None):
            return _UNSAID
        if not isinstance(thetas, (list, tuple)):
            raise ConfigError(f"layer_rope_theta is {_said(thetas)}; it must be a list of bases.")
        if self.index is not None:
            if self.index >= len(thetas):
                raise ConfigError(
                    f"layer_type is {self.index}, and layer_rope_theta has {len(thetas)} bases."
                )
            return thetas[self.index]
        own = [
            theta
            for theta, kind in zip(thetas, self.values.types_of_layers(), strict=False)
            if kind == self.label
        ]
        if any(theta != own[0] for theta in own):
            raise ConfigError(
                f"layers of type {_said(self.label)} differ in layer_rope_theta; give an index."
            )
        return own[0] if own else _UNSAID

    # Rotary parameters

    def _given(self) -> Mapping[str, Any]:
        """Return the rotary parameters that the config states, or else the class's own."""
        new, old = self._mapping("rope_parameters"), self._mapping("rope_scaling")
        if new and old:
            _agree(new, old)
            self.spot.note("rope_parameters and rope_scaling are both given, and agree")
        self.given = {**old, **new}
        # What a family makes of older keys, it makes of no keys at all.
        own = {} if self.convention.parameters else self.spot.defaults.get("rope_parameters", {})
        return self.given or own

    def _mapping(self, name: str) -> Mapping[str, Any]:
        if (value := self.values.content.get(name)) is None:
            return {}
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} is {_said(value)}; it must be an object, or null.")
        if len(value) > _MOST_KEYS:
            raise ConfigError(f"{name} has {len(value)} keys; no model has over {_MOST_KEYS}.")
        if not all(isinstance(key, str) for key in value):
            raise ConfigError(f"{name} has a key that is no name.")
        return value

    def _of_nested(self, given: Mapping[str, Any]) -> "RoPE":
        """Read parameters by layer type; null there is a type without rotation."""
        nested = {k: v for k, v in given.items() if isinstance(v, Mapping) or (v is None and k not in _KEYS)}
        beside = [key for key in given if key not in nested]
        _known_keys(beside)
        if beside:
            self.spot.note(f"{_listed(beside)} beside the parameters of layer types is not used")
        if self.label is None:
            return self._shared(nested)
        label = self.convention.labels.get(self.label, self.label)
        if label not in nested:
            raise ConfigError(
                f"layer_type is {_said(self.label)}; there are rotary parameters of {_listed([*nested])}."
            )
        return self._of_label(nested, label)

    def _of_label(self, nested: Mapping[str, Any], label: str) -> "RoPE":
        if nested[label] is None:
            return self.identity(f"the rotary parameters of {label!r} are null")
        return self._of_one(nested[label], label)

    def _shared(self, nested: Mapping[str, Any]) -> "RoPE":
        """Return the rope that all layer types share."""
        made = []
        for label in nested:
            self.label = label
            made.append(self._of_label(nested, label))
        if any(rope != made[0] for rope in made[1:]):
            raise ConfigError(
                f"layers differ: the config has rotary parameters of {_listed([*nested])}; say which with "
                "layer_type=."
            )
        return made[0]

    def _of_one(self, given: Mapping[str, Any], label: str) -> "RoPE":
        _known_keys(given)
        convention = self.convention.layers.get(label or self.label or "", self.convention)
        self.values.layer = self._overrides(label)
        prefix = f"rope_parameters.{label}." if label else "rope_parameters."
        table = _Parameters(given, prefix, self.spot, {*self.given, *(self.given.get(label) or {})})
        kind = self._kind(table, convention)
        return _Module(self.spot, self.values, table, convention, label, kind).rope(self)

    def _overrides(self, label: str) -> Mapping[str, Any]:
        """Return what `per_layer_config` says of the layer, or of the first of its type."""
        layers, index = self.values.content.get("per_layer_config"), self.index
        if index is None:
            types = self.values.types_of_layers() if isinstance(layers, Mapping) else ()
            wanted = label or self.label
            index = next((i for i, kind in enumerate(types) if kind == wanted), None)
        if index is None or not isinstance(layers, Mapping):
            return {}
        keys = (index, *(f"{index:0{digits}d}" for digits in range(1, 5)))
        found = next((layers[key] for key in keys if key in layers), None)
        return found if isinstance(found, Mapping) else {}

    def _kind(self, table: _Parameters, convention: Convention) -> str:
        """Return the rule's name, other names of it resolved."""
        if convention.scaled_layers is not None and not self._is_scaled(convention.scaled_layers):
            return "default"
        named = {key: table.get(key) for key in ("rope_type", "type") if table.get(key) is not None}
        kinds = {_resolved(table.prefix + key, kind, convention) for key, kind in named.items()}
        if len(kinds) > 1:
            rope_type, other = map(_said, named.values())
            raise ConfigError(f"rope_type is {rope_type} and type is {other}, which differ; leave one out.")
        if not kinds:
            self.spot.inferred["rope_type"] = "default"
        kind = next(iter(kinds), "default")
        if convention.types is not None and kind not in {_SAME_AS.get(k, k) for k in convention.types}:
            raise ConfigError(f"rope_type is {kind!r}; {self.spot.name} takes {_listed(convention.types)}.")
        return kind

    def _is_scaled(self, key: str) -> bool:
        if self.index is None:
            return self.label != "unscaled"
        chosen = self.values.get(key)
        return not isinstance(chosen, (list, tuple)) or self.index in chosen


_UNSAID = object()


def _agree(new: Mapping[str, Any], old: Mapping[str, Any]) -> None:
    for key in new.keys() & old.keys():
        if new[key] != old[key]:
            raise ConfigError(
                f"rope_parameters and rope_scaling are both given, and differ in {_said(key)}: "
                f"{_said(new[key])} and {_said(old[key])}; leave one out."
            )


def _check_shape(given: Mapping[str, Any]) -> None:
    """Refuse an object under a rotary parameter's key, and what is none under a layer type's."""
    for key, value in given.items():
        if key in _KEYS and isinstance(value, Mapping):
            raise ConfigError(f"{key} in the rotary parameters is {_said(value)}; it must be no object.")
    _known_keys([key for key, value in given.items() if not isinstance(value, Mapping) and value is not None])


def _known_keys(keys: "Mapping[str, Any] | Sequence[str]") -> None:
    if not all(isinstance(key, str) for key in keys):
        raise ConfigError("the rotary parameters have a key that is no name.")
    if unknown := sorted(set(keys) - _KEYS):
        raise ConfigError(
            f"no rotary parameter is known as {_listed(unknown)}; known: {', '.join(sorted(_KEYS))}."
        )


def _resolved(name: str, kind: Any, convention: Convention) -> str:
    if not isinstance(kind, str):
        raise ConfigError(f"{name} is {_said(kind)}; it must be a name.")
    made = convention.type_names.get(kind, kind)
    made = _SAME_AS.get(made, made)
    if made in _NOT_READ:
        raise ConfigError(f"{name} is {kind!r}: {_NOT_READ[made]}.")
    if made not in _RULES:
        raise ConfigError(f"{name} is {_said(kind)}, which is not known; known: {', '.join(sorted(_RULES))}.")
    return made


@dataclass(frozen=True)
class Backwards(Scaling):
    """Another rule, or none, with all frequencies negative: nanochat turns the other way."""

    rule: Scaling

    @property
    def resolved(self) -> bool:
        return self.rule.resolved

    @property
    def amplitude(self) -> float:
        return self.rule.amplitude

    def _new_base(self, base: float, width: int) -> float:
        return self.rule._new_base(base, width)

    def _stretched(self, omegas: Sequence[float], base: float, width: int) -> Sequence[float]:
        return [-omega for omega in self.rule._stretched(omegas, base, width)]

    def _at_length(self, length: int) -> "Backwards":
        return Backwards(self.rule._at_length(length))


_CLASS_OWN = "transformers takes the class's own rope_parameters instead"


@dataclass
class _Module:
    """One rotary module: its parameters, and how the model reads them."""

    spot: _Spot
    values: _Values
    table: _Parameters
    convention: Convention
    label: str
    kind: str

    def rope(self, reader: _Reader) -> "RoPE":
        from ._apply import RoPE

        theta = reader.theta_of_layer()
        if theta is not _UNSAID and not theta:
            return reader.identity(f"layer_rope_theta is {_said(theta)}")
        base = self._base() if theta is _UNSAID else number("layer_rope_theta", theta)
        head = self.values.width(*self.convention.width)
        width = self._rotated(head)
        rotary = width + width % 2  # an odd width has a last pair with one feature beyond it
        if rotary > head:
            raise ConfigError(f"the rotated width is {width} of a head of {head}; features turn in pairs.")
        start = head - rotary if self.convention.start == "last" else 0
        place: dict[str, Any] = {"head_dim": head, "rotary_dim": rotary, "rotary_start": start}
        if self.convention.note:
            self.spot.note(self.convention.note)
        return RoPE(base=base, **place, **self._pairing(), **self._turning(base, width, rotary))

    def _pairing(self) -> dict[str, Any]:
        convention = self.convention
        flag = convention.pairing_flag
        halves = flag is not None and self.values.get(flag) is False
        made = {
            "pairing": "half" if halves else convention.pairing,
            "out_pairing": None if halves else convention.out_pairing,
        }
        self.spot.inferred |= {key: value for key, value in made.items() if value}
        return made

    def _turning(self, base: float, width: int, rotary: int) -> dict[str, Any]:
        """Return the fields of what drives the lanes, and how fast."""
        convention = self.convention
        made: dict[str, Any] = {"axes": self._axes(rotary)}
        if convention.attention_factor is not None:
            made["attention_factor"] = convention.attention_factor(self.values)
        if convention.inv_freq is not None:
            return {**made, "inv_freq": convention.inv_freq(self.values, rotary)}
        rule = self._rule(width)
        if convention.sign < 0:
            self.spot.inferred["direction"] = "the other way round"
            rule = Backwards(rule or Scaling())
        return {**made, **(_of_odd(base, width, rule) if width % 2 else {"scaling": rule})}

    def _rule(self, width: int) -> Scaling | None:
        if self.convention.scaling is not None:
            return self.convention.scaling(self.values, width)  # type: ignore[no-any-return]
        rule, keys = _RULES[self.kind]
        given = {k: v for k, v in self.table.content.items() if v is not None}
        if unused := sorted(given.keys() - _ALWAYS - set(keys)):
            self.spot.note(f"rope_type {self.kind!r} does not use {_listed(unused)}")
        for name in ("attn_factor", "extrapolation_factor"):
            if name in given and given[name] != 1:
                raise ConfigError(
                    f"{self.table.prefix}{name} is {_said(given[name])}: libraries differ on what that does; "
                    "state attention_factor."
                )
        return rule(self, width)

    # The base

    def _base(self) -> float:
        names = self.convention.theta_keys
        top = next((name for name in names if self.values.stated(name) is not None), None)
        if self.table.get("rope_theta") is not None:
            self._compare(top)
            return self.table.number("rope_theta")
        if top is not None:
            return self.values.number(top)
        defaults = self.spot.defaults
        known = (defaults.get(name) for name in (*names, "default_theta"))
        base = next((float(value) for value in known if value is not None), self.convention.theta)
        self.spot.inferred["rope_theta"] = base
        return base

    def _compare(self, top: str | None) -> None:
        """Refuse two bases, unless the model's class has both."""
        own = self.table.content["rope_theta"]
        if top is None or self.label or self.values.stated(top) == own:
            return
        if "rope_theta" not in self.table.names:
            self.spot.note(f"{top} is not used: {_CLASS_OWN}")
        elif top in self.spot.defaults:
            self.spot.note(f"{top} is not used: rope_parameters has a rope_theta of its own")
        else:
            raise ConfigError(
                f"{top} is {_said(self.values.stated(top))}, and rope_theta in the rotary parameters "
                f"{_said(own)}; leave one out."
            )

    # The width

    def _rotated(self, head: int) -> int:
        convention = self.convention
        if convention.rotated is not None:
            width = convention.rotated(self.values, head)
        elif self.kind == "proportional" or (self.kind == "default" and not convention.partial):
            width = head
        else:
            width = self._partial(head)
        if not 0 <= width <= head:
            raise ConfigError(f"the rotated width is {_said(width)}, and the head is {head} wide.")
        return width

    def _partial(self, head: int) -> int:
        absolute, share = self._absolute(), self._stated_share()
        if absolute is None:
            share = self._default_share() if share is None else share
            return int(head * share)
        if share is not None and int(head * share) != absolute:
            raise ConfigError(
                f"partial_rotary_factor {share} of a head of {head} is {int(head * share)}, and the rotated "
                f"width is stated as {_said(absolute)}; leave one out."
            )
        return absolute

    def _absolute(self) -> int | None:
        """Return the rotated width where it is stated in features."""
        if self.table.get("rope_dim") is not None:
            return self.table.integer("rope_dim")
        if self.values.stated("rotary_dim") is None:
            return None
        if self.convention.absolute:
            return self.values.integer("rotary_dim")
        self.spot.note("rotary_dim is not used: the model's code in transformers does not read it")
        return None

    def share(self) -> float:
        """Return the share of the head that turns."""
        stated = self._stated_share()
        return self._default_share() if stated is None else stated

    def _stated_share(self) -> float | None:
        own = self.table.optional("partial_rotary_factor")
        names = self.convention.share_keys
        top = next((name for name in names if self.values.stated(name) is not None), None)
        above = None if top is None else self.values.number(top)
        # With parameters by layer type the one above is only for those that have none.
        if own is not None and above not in (None, own) and not self.label:
            if "partial_rotary_factor" not in self.table.names:
                self.spot.note(f"{top} is not used: {_CLASS_OWN}")
                return own
            raise ConfigError(
                f"partial_rotary_factor in the rotary parameters is {own}, and {top} {above}; leave one out."
            )
        share = above if own is None else own
        if share is not None and not 0 <= share <= 1:
            raise ConfigError(f"partial_rotary_factor is {share}; give a number from 0 to 1.")
        return share

    def _default_share(self) -> float:
        defaults = self.spot.defaults
        added = defaults.get("added", {}).get("partial_rotary_factor")
        share = defaults.get("partial_rotary_factor") if added is None else added
        if share is None:
            return self.convention.share if self.kind == "default" else 1.0
        self.spot.inferred["partial_rotary_factor"] = share
        return float(share)

    # The axes

    def _axes(self, rotary: int) -> Axes | None:
        convention = self.convention
        if convention.axes is not None:
            return convention.axes(self.values, rotary)  # type: ignore[no-any-return]
        if self.table.get("xdrope_section") is not None:
            raise ConfigError(f"xdrope_section is given: {_XDROPE}.")
        if (stated := self.table.get("mrope_section")) is not None:
            return self._stated_axes(stated, rotary // 2)
        if convention.default_sections is None or not rotary:
            return None
        self.spot.inferred["mrope_section"] = convention.default_sections
        if convention.sections == "interleaved":
            return _as_far_as_it_goes(convention.default_sections, rotary // 2)
        return self._stated_axes(convention.default_sections, rotary // 2)

    def _stated_axes(self, given: Any, lanes: int) -> Axes | None:
        if self.convention.sections is None:
            self.spot.note("mrope_section is not used: to the model's code a token has one position")
            return None
        if not isinstance(given, (list, tuple)) or len(given) != 3:
            raise ConfigError(
                f"mrope_section is {_said(given)}; it must be a list of three numbers of pairs."
            )
        sections = [integer(f"mrope_section[{i}]", size, 0) for i, size in enumerate(given)]
        if sum(sections) != lanes:
            raise ConfigError(
                f"mrope_section sums to {_said(sum(sections))} pairs; the rotated width has {lanes} of them."
            )
        return _LAYOUTS[self.convention.sections](*sections)

    # The lengths

    def original(self) -> int:
        """Return the trained context: beside the parameters, in them, or else the whole context."""
        name = "original_max_position_embeddings"
        own = self.table.get(name)
        if not self.label and self.values.get(name) is not None:
            top = self.values.integer(name)
            if own not in (None, top):
                self.spot.note(
                    f"{name} is {top} beside the rotary parameters, and {_said(own)} in them is not used"
                )
            return top
        if own is not None:
            return self.table.integer(name)
        self.spot.inferred[name] = "max_position_embeddings"
        return self.values.integer("max_position_embeddings")

    def stretch(self) -> float:
        """Return the factor, or else how many times the context is the trained one."""
        factor = self.table.optional("factor")
        return self.values.integer("max_position_embeddings") / self.original() if factor is None else factor


def _of_odd(base: float, width: int, rule: Scaling | None) -> dict[str, Any]:
    """Return the frequencies of an odd width: (width + 1)/2 of them, in steps of 2/width."""
    if isinstance(rule, YaRN) or (rule is not None and not rule.resolved):
        raise ConfigError(f"the rotated width is {width}, odd, which {type(rule).__name__} cannot take.")
    omegas = frequencies(base, width, (width + 1) // 2, rule, "exact")
    amplitude = 1.0 if rule is None else rule.amplitude
    return {
        "inv_freq": tuple(map(float, omegas)),
        **({} if amplitude == 1.0 else {"attention_factor": amplitude}),
    }


def _as_far_as_it_goes(sections: tuple[int, ...], lanes: int) -> Axes:
    """Lay out the code's own sections along fewer or more lanes than they sum to, as the code does."""
    return Axes(tuple(i % 3 if i < 3 * sections[i % 3] else 0 for i in range(lanes)), count=3)


# The rules: each from a module and its rotated width


def _default(module: _Module, width: int) -> Scaling | None:
    return None


def _linear(module: _Module, width: int) -> Scaling:
    return Linear(module.table.number("factor"))


def _dynamic(module: _Module, width: int) -> Scaling:
    if module.table.optional("alpha"):
        return NTKAware(module.table.number("alpha"))
    return DynamicNTK(module.table.number("factor"), module.values.integer("max_position_embeddings"))


def _ntk(module: _Module, width: int) -> Scaling:
    mixed = module.table.optional("mixed_b")
    return NTKAware(module.table.number("factor"), "fixed" if mixed is None else "mixed", mixed)


def _yarn(module: _Module, width: int) -> YaRN:
    table = module.table
    if "factor" not in table.content:
        raise ConfigError(
            f"{table.prefix}factor is missing; state it, or null for the ratio of the contexts."
        )
    truncate = table.get("truncate", True)
    if truncate is not True and module.label:
        module.spot.note("truncate of one layer type is honoured here; transformers 5.23 does not see it")
    mscale, all_dim = table.optional("mscale"), table.optional("mscale_all_dim")
    both = bool(mscale and all_dim)
    return YaRN(
        module.stretch(),
        module.original(),
        beta_fast=table.optional("beta_fast") or 32.0,
        beta_slow=table.optional("beta_slow") or 1.0,
        truncate=truncate,
        attention_factor=table.optional("attention_factor"),
        mscale=mscale if both else None,
        mscale_all_dim=all_dim if both else None,
    )


def _deepseek_yarn(module: _Module, width: int) -> Scaling:
    """VLLM's and mlx-lm's name: mscale is 1 and mscale_all_dim 0 where they are not given."""
    made, table = _yarn(module, width), module.table
    log = math.log(made.factor) if made.factor > 1 else 0.0
    above = 0.1 * table.number("mscale", 1.0) * log + 1
    return replace(
        made,
        attention_factor=above / (0.1 * table.number("mscale_all_dim", 0.0) * log + 1),
        mscale=None,
        mscale_all_dim=None,
    )


def _llama3(module: _Module, width: int) -> Scaling:
    number_of = module.table.number
    low, high = number_of("low_freq_factor"), number_of("high_freq_factor")
    return Llama3(number_of("factor"), low, high, module.original())


def _longrope(module: _Module, width: int) -> Scaling:
    table, lanes = module.table, (width + 1) // 2
    if table.get("long_mscale") is not None:
        module.spot.note("long_factor is honoured here; PhiMoE's code in transformers 5.23 never turns by it")
    return LongRoPE(
        _divisors(table, "short_factor", lanes),
        _divisors(table, "long_factor", lanes),
        module.original(),
        factor=module.stretch(),
        attention_factor=table.optional("attention_factor"),
        short_mscale=table.optional("short_mscale"),
        long_mscale=table.optional("long_mscale"),
    )


def _divisors(table: _Table, name: str, lanes: int) -> tuple[float, ...]:
    given = table.get(name)
    if not isinstance(given, (list, tuple)):
        raise ConfigError(f"{table.prefix}{name} is {_said(given)}; it must be a list of {lanes} numbers.")
    if len(given) != lanes:
        raise ConfigError(
            f"{table.prefix}{name} has {len(given)} numbers, and the width {lanes} pairs, each with one."
        )
    return tuple(number(f"{table.prefix}{name}[{i}]", value) for i, value in enumerate(given))


def _proportional(module: _Module, width: int) -> Scaling:
    return Proportional(module.share(), module.table.number("factor", 1.0))


_YARN = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
_ORIGINAL = ("factor", "original_max_position_embeddings")
_RULES: dict[str, tuple[Callable[[_Module, int], Scaling | None], Sequence[str]]] = {
    "default": (_default, ()),
    "linear": (_linear, ("factor",)),
    "dynamic": (_dynamic, ("factor", "alpha")),
    "ntk": (_ntk, ("factor", "mixed_b")),
    "yarn": (_yarn, (*_ORIGINAL, *_YARN)),
    "deepseek_yarn": (_deepseek_yarn, (*_ORIGINAL, *_YARN)),
    "llama3": (_llama3, (*_ORIGINAL, "low_freq_factor", "high_freq_factor")),
    "longrope": (
        _longrope,
        (*_ORIGINAL, "attention_factor", "short_factor", "long_factor", "short_mscale", "long_mscale"),
    ),
    "proportional": (_proportional, ("factor",)),
}
_LAYOUTS: dict[str, Callable[[int, int, int], Axes]] = {
    "chunked": lambda t, h, w: Axes.chunked(t, h, w),
    "interleaved": lambda t, h, w: Axes.interleaved(t, h, w),
    # ERNIE states its sections in the order h, w, t.
    "alternating": lambda h, w, t: Axes.alternating(t, h, w),
}
