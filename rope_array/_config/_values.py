"""Read a config's values by type: check each value, name it in errors, and enter it in the record."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

from rope_array._config._convention import Convention
from rope_array._config._part import ConfigPart, Record, listed, quoted
from rope_array._config._tables import KEYS, REFUSED, SAME_AS
from rope_array._errors import ConfigError
from rope_array._spec import validation

# Far above every published config, and small enough that a hostile config costs no time.
MOST_KEYS = 64
MOST_LAYERS = 1024
_WIDEST = 2**16
_LARGEST = 2**62

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
NEWER_NAMES: dict[str, str] = KEYS["newer_layer_types"]

# The rotary parameters that every rule reads, or none.
_OF_ANY_RULE = frozenset((*KEYS["parameters"]["of_every_rule"], *KEYS["parameters"]["of_no_rule"]))


@cache
def keys_of_rules() -> dict[str, frozenset[str]]:
    """Return the keys that each rule reads: by the table, else the fields of its class but the length."""
    from rope_array._spec.scaling import OF_CONFIGS  # late: most configs state no rule

    of_classes = {name: [f.name for f in fields(rule)] for name, rule in OF_CONFIGS.items()}  # type: ignore[arg-type]
    return {name: frozenset(keys) - {"length"} for name, keys in (of_classes | KEYS["rules"]).items()}


def known_parameters() -> frozenset[str]:
    """Return all rotary parameters that some rule reads."""
    return _OF_ANY_RULE.union(*keys_of_rules().values())


def unknown_parameters(keys: Iterable[str]) -> list[str]:
    """Return the keys that are no rotary parameters, sorted."""
    others = set(keys) - _OF_ANY_RULE
    return sorted(others - known_parameters()) if others else []


def is_among(layers: Sequence[Any], index: int | None) -> bool:
    """Return whether a list of layers has an index; refuse a list that is longer than any model's."""
    if len(layers) > MOST_LAYERS:
        raise ConfigError(f"a list of layers has {len(layers)} values; give at most {MOST_LAYERS}.")
    return index in layers


def check_parameters(parameters: Mapping[str, Any], convention: Convention) -> None:
    """Refuse unknown rotary parameters, of any layer type, and an object as a rotary parameter."""
    flat = [key for key, value in parameters.items() if not isinstance(value, Mapping) and value is not None]
    rules = {key: value for key, value in parameters.items() if isinstance(value, Mapping)}
    for key, rule in rules.items():
        if not unknown_parameters([key]):
            raise ConfigError(f"{key} in the rotary parameters is {quoted(rule)}; give a plain value.")
    for keys in (flat, *rules.values()):
        check_keys(keys)
    for key, rule in rules.items():
        for name in ("rope_type", "type"):
            if rule.get(name) is not None:
                rule_name_of(f"rope_parameters.{quoted(key)[1:-1]}.{name}", rule[name], convention)


def check_keys(keys: Collection[Any]) -> None:
    """Refuse unknown rotary parameters."""
    if not all(isinstance(key, str) for key in keys):
        raise ConfigError("the rotary parameters have a key that is no name.")
    if unknown := unknown_parameters(keys):
        raise ConfigError(
            f"unknown rotary parameters: {listed(unknown)}; the known ones are "
            f"{', '.join(sorted(known_parameters()))}. If the model's code reads another, write the "
            "frequencies: RoPE(head_dim, inv_freq=...)."
        )


def rule_name_of(name: str, stated_name: Any, convention: Convention) -> str:
    """Return the name of a rule, with the other names of configs resolved."""
    if not isinstance(stated_name, str):
        raise ConfigError(f"{name} is {quoted(stated_name)}; it must be a name.")
    rule = convention.rope_type_aliases.get(stated_name, stated_name)
    rule = SAME_AS.get(rule, rule)
    if rule in REFUSED:
        raise ConfigError(f"{name} is {stated_name!r}: {REFUSED[rule]}.")
    if rule != "default" and rule not in keys_of_rules():
        raise ConfigError(
            f"{name} is {quoted(stated_name)}, and the known rules are {', '.join(sorted(keys_of_rules()))}; "
            "for a rule of the model's own, write its frequencies: RoPE(head_dim, inv_freq=...), and if a "
            "token has several coordinates, RoPE(axes=...) and their positions by the model's code."
        )
    return rule


class TypedMapping:
    """A mapping with typed getters, which name a value in errors and enter it in the record of a reading."""

    def __init__(self, content: Mapping[str, Any], prefix: str, record: Record) -> None:
        self.content, self.prefix, self.record = content, prefix, record

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value under a key, unchecked."""
        value = self.content.get(name)
        if value is None:
            return default
        self.enter(name, value)
        return value

    def enter(self, name: str, value: Any) -> None:
        self.record.stated[self.prefix + name] = _brief(value)

    def integer(self, name: str, default: int | None = None) -> int:
        """Return the whole number under a key, or raise an error that names the key."""
        value = self._number(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if (number := validation.integer(self.prefix + name, value, 1)) > _LARGEST:
            raise ConfigError(f"{self.prefix}{name} is {quoted(number)}; give at most {_LARGEST}.")
        return number

    def number(self, name: str, default: float | None = None) -> float:
        """Return the finite number under a key, or raise an error that names the key."""
        return validation.number(self.prefix + name, self._number(name, default))

    def flag(self, name: str) -> bool | None:
        """Return whether a key is true, or raise an error that names the key; None if it is missing."""
        if (value := self.get(name)) not in (None, False, True):
            raise ConfigError(f"{self.prefix}{name} is {quoted(value)}; it must be true or false.")
        return None if value is None else bool(value)

    def optional(self, name: str) -> float | None:
        """Return the finite number under a key, None if it is missing."""
        return None if self.get(name) is None else self.number(name)

    def _number(self, name: str, default: float | None) -> Any:
        if (value := self.get(name, default)) is None:
            raise ConfigError(f"{self.prefix}{name} is missing; the config must state it.")
        if not isinstance(value, (int, float)):
            raise ConfigError(f"{self.prefix}{name} is {quoted(value)}; it must be a number.")
        return value


class RotaryParameters(TypedMapping):
    """The rotary parameters of one layer type, stated by the config or added by the model's class."""

    def __init__(self, content: Mapping[str, Any], prefix: str, record: Record, names: "set[str]") -> None:
        super().__init__(content, prefix, record)
        self.names = names  # of the stated parameters

    def enter(self, name: str, value: Any) -> None:
        origin = self.record.stated if name in self.names else self.record.inferred
        origin[self.prefix + name] = _brief(value)


def _brief(value: Any) -> Any:
    """Return a value for the record, plain and small, as the config may hold anything."""
    if isinstance(value, (list, tuple)) and len(value) <= 256 and all(map(_is_small, value)):
        return list(value)
    return value if _is_small(value) else quoted(value)


def _is_small(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= 256
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= _LARGEST)


def value_at(where: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key, or of a key inside an object as "object.key"."""
    outer, dot, inner = key.partition(".")
    value = where.get(outer)
    if not dot:
        return value
    return value.get(inner) if isinstance(value, Mapping) else None


class PartValues(TypedMapping):
    """One part's values: stated for the layer, else for the part, else the class's default.

    The values of one reading: they keep its record, and the layer that it is of, by index and type.
    """

    def __init__(self, config_part: ConfigPart) -> None:
        record = Record({**config_part.inferred})
        for note in config_part.notes:
            record.note(note)
        super().__init__({**config_part.content, **config_part.converted}, "", record)
        self.config_part = config_part
        self.convention = config_part.convention or Convention()
        self.alias = {**config_part.defaults.get("alias", {}), **self.convention.older_keys}
        self.index: int | None = None
        self.label: str | None = None
        self.layer: Mapping[str, Any] = {}
        self.asked: set[str] = set()
        self.types: tuple[str, ...] | None = None

    def stated(self, name: str) -> Any:
        """Return the stated value of a name or its alias, without a record."""
        return next((value for _, value in self._stated(name)), None)

    def stated_key(self, names: Sequence[str]) -> str | None:
        """Return the first of several names that has a stated value."""
        return next((name for name in names if self.stated(name) is not None), None)

    def _stated(self, name: str) -> Iterator[tuple[str, Any]]:
        """Yield the keys and values that state a name: the class lets other keys override its own."""
        class_key = self.alias.get(name, name)
        keys = (*(key for key, target in self.alias.items() if target == class_key), class_key)
        self.asked |= {name, *keys}
        for key in keys:
            for where in (self.layer, self.content):
                if (value := value_at(where, key)) is not None:
                    yield key, value

    def get(self, name: str, default: Any = None) -> Any:
        if name.startswith("layer."):
            return self._of_layer(name.removeprefix("layer."), default)
        for key, value in self._stated(name):
            self.enter(name if key in self.layer else key, value)
            return value
        for key in (self.alias.get(name, name), name):
            if (value := self.config_part.defaults.get(key)) is not None:
                self.record.inferred[name] = value
                return value
        return default

    def given(self, name: str) -> Any:
        """Return a stated value, null included, or the class's default, without a record."""
        return self.content[name] if name in self.content else self.config_part.defaults.get(name)

    def is_null(self, name: str) -> bool:
        """Return whether a key, or a key inside an object, is stated as null and nothing else states it."""
        outer, dot, inner = name.partition(".")
        where = self.content.get(outer) if dot else self.content
        is_null = isinstance(where, Mapping) and where.get(inner or outer, 0) is None
        return is_null and self.stated(name) is None

    def base(self, name: str, default: float) -> float | None:
        """Return the number under a key, the default if the key is missing, or None if it is null."""
        return None if self.is_null(name) else self.number(name, default)

    def _of_layer(self, name: str, default: Any) -> Any:
        if (value := self.layer.get(name)) is None:
            return default
        self.enter(f"layer.{name}", value)
        return value

    def width(self, *keys: str) -> int:
        """Return the first stated of several widths; ``"a/b"`` divides the values of two keys."""
        for key in keys:
            values = [self._factor(factor) for factor in key.split("/")]
            if all(value is not None for value in values):
                return self._quotient(key, [value for value in values if value is not None])
        raise ConfigError(
            f"{self.config_part.name}: the width of a head is missing; the config must state "
            f"{' or '.join(keys)}."
        )

    def _factor(self, name: str) -> int | None:
        if name.isdigit():
            return int(name)
        times, _, key = name.rpartition("*")
        return None if self.get(key) is None else int(times or 1) * self.integer(key)

    def _quotient(self, name: str, values: list[int]) -> int:
        width = values[0]
        for value in values[1:]:
            width, remainder = divmod(width, value)
            if remainder:
                problem = f"{name} is {'/'.join(map(quoted, values))}, which leaves a remainder"
                if not self.config_part.known:
                    raise ConfigError(f"head_dim is missing, and {problem}; state head_dim.")
                self.record.note(f"{problem}: the model's code drops it")
        if not 0 < width <= _WIDEST:
            raise ConfigError(f"{name} is {quoted(width)}; give a head width from 1 to {_WIDEST}.")
        return width

    def count(self) -> int | None:
        """Return the number of layers if it is known."""
        key = "num_hidden_layers"
        return None if self.get(key) is None else self.integer(key)

    def types_of_layers(self) -> Sequence[str]:
        """Return the type of each layer, stated or by the class's rule; empty if neither is known."""
        if self.types is None:
            self.types = tuple(self._types())
        return self.types

    def _types(self) -> Sequence[str]:
        type_of = self.convention.layer_type_of
        if type_of is not None and self.stated("layer_types") is None and (count := self.count()):
            if count > MOST_LAYERS:
                raise ConfigError(f"num_hidden_layers is {quoted(count)}; give at most {MOST_LAYERS}.")
            return [self.newer_name(type_of(self, count, index)) for index in range(count)]
        types = self.get("layer_types", ())
        if not (isinstance(types, (list, tuple)) and all(isinstance(name, str) for name in types)):
            raise ConfigError(f"layer_types is {quoted(types)}; it must be a list of names.")
        if len(types) > MOST_LAYERS:
            raise ConfigError(f"layer_types has {len(types)} values; give at most {MOST_LAYERS}.")
        if self.stated("layer_types") is None:
            return types
        newer_names = {name: self.newer_name(name) for name in dict.fromkeys(types)}
        return [newer_names[name] for name in types]

    def newer_name(self, name: str) -> str:
        """Return the name of a layer type as the model's class converts it."""
        newer, alias = NEWER_NAMES.get(name, name), self.convention.layer_type_alias
        return newer if alias is None else alias(self, newer)

    def layer_types(self) -> tuple[str, ...]:
        """Return the distinct layer types of the model."""
        return tuple(dict.fromkeys(self.types_of_layers()))
