"""Typed reading of a config's values: each is checked, named in errors, and noted in the record."""

from collections.abc import Mapping, Sequence
from typing import Any

from rope_array._config._document import Spot, listed, said
from rope_array._config._layers import TYPES, with_last
from rope_array._errors import ConfigError
from rope_array._spec import validation as _values

# Far above every published config, and small enough that a hostile one costs no time.
MOST_KEYS = 64
MOST_LAYERS = 4096
_WIDEST = 2**16
_LARGEST = 2**62

# The rotary parameters that are known.
# fmt: off
KEYS = frozenset((
    "alpha", "attention_factor", "attn_factor", "beta_fast", "beta_slow", "extrapolation_factor", "factor",
    "finetuned", "high_freq_factor", "interleaved", "llama_4_scaling_beta", "long_factor", "long_mscale",
    "low_freq_factor", "max_position_embeddings", "mixed_b", "mrope_interleaved", "mrope_section", "mscale",
    "mscale_all_dim", "original_max_position_embeddings", "partial_rotary_factor", "rope_dim", "rope_theta",
    "rope_type", "short_factor", "short_mscale", "truncate", "type", "xdrope_section",
))
# fmt: on


def check_shape(given: Mapping[str, Any]) -> None:
    """Refuse an object under a rotary parameter's key, and what is none under a layer type's."""
    for key, value in given.items():
        if key in KEYS and isinstance(value, Mapping):
            raise ConfigError(f"{key} in the rotary parameters is {said(value)}; it must be no object.")
    check_keys([key for key, value in given.items() if not isinstance(value, Mapping) and value is not None])


def check_keys(keys: "Mapping[str, Any] | Sequence[str]") -> None:
    """Refuse a rotary parameter that is not known."""
    if not all(isinstance(key, str) for key in keys):
        raise ConfigError("the rotary parameters have a key that is no name.")
    if unknown := sorted(set(keys) - KEYS):
        raise ConfigError(
            f"no rotary parameter is known as {listed(unknown)}; known: {', '.join(sorted(KEYS))}."
        )


class Table:
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
        if (made := _values.integer(self.prefix + name, value, 1)) > _LARGEST:
            raise ConfigError(f"{self.prefix}{name} is {said(made)}; no model has as many.")
        return made

    def number(self, name: str, default: float | None = None) -> float:
        return _values.number(self.prefix + name, self._number(name, default))

    def optional(self, name: str) -> float | None:
        return None if self.get(name) is None else self.number(name)

    def _number(self, name: str, default: float | None) -> Any:
        if (value := self.get(name, default)) is None:
            raise ConfigError(f"{self.prefix}{name} is missing; the config must state it.")
        if not isinstance(value, (int, float)):
            raise ConfigError(f"{self.prefix}{name} is {said(value)}; it must be a number.")
        return value


class RotaryParameters(Table):
    """The rotary parameters of one kind of layer, of which the model's class may have added some."""

    def __init__(self, content: Mapping[str, Any], prefix: str, spot: Spot, stated: "set[str]") -> None:
        super().__init__(content, prefix, spot.stated)
        self.names, self.inferred = stated, spot.inferred

    def note(self, name: str, value: Any) -> None:
        (self.record if name in self.names else self.inferred)[self.prefix + name] = _brief(value)


def _brief(value: Any) -> Any:
    """Keep the record to plain values, and small: the config may hold anything."""
    if isinstance(value, (list, tuple)) and len(value) <= 256 and all(map(_is_small, value)):
        return list(value)
    return value if _is_small(value) else said(value)


def _is_small(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= 256
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= _LARGEST)


class Values(Table):
    """One part's values: what is stated, for the layer or at all, else the class's default."""

    def __init__(self, spot: Spot) -> None:
        super().__init__(spot.content, "", spot.stated)
        self.spot, self.alias = spot, spot.defaults.get("alias", {})
        self.layer: Mapping[str, Any] = {}
        self.asked: set[str] = set()
        self.types: tuple[str, ...] | None = None

    def stated(self, name: str) -> Any:
        """Return what the config states under a name or its alias, and leave no record."""
        self.asked |= {name, self.alias.get(name, name)}
        if "." in name:
            key, _, inner = name.partition(".")
            where = self.content.get(key)
            return where.get(inner) if isinstance(where, Mapping) else None
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
        raise ConfigError(
            f"{self.spot.name}: the width of a head is missing; the config must state {' or '.join(keys)}."
        )

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
                self._left_over(f"{name} is {'/'.join(map(said, values))}, which leaves a rest")
        if not 0 < made <= _WIDEST:
            raise ConfigError(f"{name} is {said(made)}; a head is 1 to {_WIDEST} wide.")
        return made

    def _left_over(self, what: str) -> None:
        if not self.spot.known:
            raise ConfigError(f"no head_dim is given, and {what}; state head_dim.")
        self.spot.note(f"{what}: transformers drops it")

    def count(self) -> int | None:
        """Return the number of layers, where it is known."""
        return None if self.get("num_hidden_layers") is None else self.integer("num_hidden_layers")

    def types_of_layers(self) -> Sequence[str]:
        """Return the type of each layer, stated, or as the class makes it, as far as that is known."""
        if self.types is None:
            self.types = tuple(self._types())
        return self.types

    def _types(self) -> Sequence[str]:
        type_of = TYPES.get(self.spot.key or "")
        if type_of is not None and self.stated("layer_types") is None and (count := self.count()):
            if count > MOST_LAYERS:
                raise ConfigError(f"num_hidden_layers is {said(count)}; no model has as many.")
            return with_last(self.spot.key, [type_of(self, count, index) for index in range(count)])
        found = self.get("layer_types")
        if found is None:
            return ()
        names = isinstance(found, (list, tuple)) and all(isinstance(name, str) for name in found)
        if not names:
            raise ConfigError(f"layer_types is {said(found)}; it must be a list of names.")
        return with_last(self.spot.key, found) if self.stated("layer_types") is not None else found

    def layer_types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.types_of_layers()))
