"""From one part of a config to the fields of a rope: which kind of layer, and its parameters."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rope_array._config import _unread
from rope_array._config._document import Spot, listed, said
from rope_array._config._models import Convention
from rope_array._config._module import Module
from rope_array._config._rules import SAME_AS, kind_of
from rope_array._config._tables import (
    KEYS,
    MOST_KEYS,
    MOST_LAYERS,
    RotaryParameters,
    Values,
    check_keys,
    check_shape,
)
from rope_array._errors import ConfigError
from rope_array._spec.spec import Spec
from rope_array._spec.validation import number

_NO_ATTENTION = ("linear_attention", "conv", "mamba", "mamba2", "recurrent")
_UNSAID = object()


class Reader:
    """The steps from one part of a config to the rope of one kind of layer."""

    def __init__(self, spot: Spot, convention: Convention, layer_type: Any) -> None:
        self.spot, self.convention = spot, convention
        self.values = Values(spot)
        self.index: int | None = None
        self.label: str | None = None
        self.given: Mapping[str, Any] = {}  # the rotary parameters as the config states them
        self.asked = layer_type
        if isinstance(layer_type, str):
            self.label = layer_type
        elif layer_type is not None:
            self.index = self._checked(layer_type)
            self.label = self._label_of(self.index)

    def fields(self) -> dict[str, Any]:
        """Return the fields of the rope of the layer that was asked for."""
        made = self._fields()
        if self.asked is None and made["rotary_dim"]:
            self._note_layers_without()
        _unread.check(self.spot, self.convention, self.values.asked, made)
        _unread.check_above(self.spot)
        return made

    def _fields(self) -> dict[str, Any]:
        if (why := self._why_none()) is not None:
            return self._identity(why)
        given = self._given()
        check_shape(given)
        self._check_nested(given)
        self._note_flat(given)
        if self.convention.parameters is not None:
            given = self.convention.parameters(self.values, dict(given))
        if any(isinstance(value, Mapping) for value in given.values()):
            return self._of_nested(given)
        self._check_label()
        return self._of_one(given, "")

    def _note_layers_without(self) -> None:
        """Tell of layers that do not rotate, where none was asked for."""
        scratch = Reader(replace(self.spot, stated={}, inferred={}, notes=[]), self.convention, None)
        lists = ("no_rope_layers", "no_rope_layer_interval", "layer_rope_theta")
        every = any(scratch.values.get(key) is not None for key in lists) or self.convention.nope_every
        if not self.convention.nope and not every:
            return
        count = min(scratch.values.count() or len(scratch.values.types_of_layers()), MOST_LAYERS)
        still = [index for index in range(count) if scratch._stands(index)]
        if still:
            first = ", ".join(map(str, still[:8])) + (", ..." if len(still) > 8 else "")
            self.spot.note(
                f"layers {first} ({len(still)} of {count}) have no rotation: ask for a layer with layer_type="
            )

    def _stands(self, index: int) -> bool:
        """Whether a layer with attention has no rotation."""
        self.index, self.label = index, self._label_of(index)
        if self.label in _NO_ATTENTION:
            return False
        thetas = self.values.stated("layer_rope_theta")
        listed_base = isinstance(thetas, (list, tuple)) and index < len(thetas)
        return self._why_none() is not None or (listed_base and not thetas[index])

    def _check_nested(self, given: Mapping[str, Any]) -> None:
        """Refuse what is not known in the parameters of any layer type, asked for or not."""
        for label, own in given.items():
            if isinstance(own, Mapping):
                check_keys(own)
                for key in ("rope_type", "type"):
                    if own.get(key) is not None:
                        kind_of(f"rope_parameters.{said(label)[1:-1]}.{key}", own[key], self.convention)

    def _note_flat(self, given: Mapping[str, Any]) -> None:
        """Tell of rules that the class of a family with parameters by layer type drops."""
        if not self.convention.by_type or not self.given:
            return
        flat = not any(isinstance(own, Mapping) for own in given.values())
        if flat and self.values.content.get("rope_parameters"):
            self.spot.note("rope_parameters of no layer type are honoured here; transformers 5.23 drops them")
        elif any(
            own.get("type") is not None and own.get("rope_type") is None
            for own in (given, *given.values())
            if isinstance(own, Mapping)
        ):
            self.spot.note("type is honoured here; transformers 5.23 reads rope_type alone for this model")

    def _identity(self, why: str) -> dict[str, Any]:
        """Return the fields of the rope of a layer without rotation."""
        self.spot.note(f"{why}: no rotation")
        convention = self.convention.layers.get(self.label or "", self.convention)
        head = self.values.width(*convention.width)
        return {"head_dim": head, "rotary_dim": 0, "pairing": convention.pairing}

    # Layers

    def _checked(self, index: Any) -> int:
        if isinstance(index, bool) or not isinstance(index, int):
            raise ConfigError(f"layer_type is {said(index)}; give a name, or the index of a layer.")
        count = self.values.count()
        if index < 0 or (count is not None and index >= count):
            last = "that of the last layer" if count is None else said(count - 1)
            raise ConfigError(f"layer_type is {said(index)}; the index of a layer is from 0 to {last}.")
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
            has = listed(tuple(dict.fromkeys(known))) or "layers of one kind, without names"
            raise ConfigError(f"layer_type is {said(self.label)}; the config has {has}.")

    def _why_none(self) -> str | None:
        """Return why the layer does not rotate; None if it does."""
        for key, allowed in self.convention.unless.items():
            if (value := self.values.get(key)) not in allowed:
                return f"{key} is {said(value)}"
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
        layers = self.values.stated("no_rope_layers")
        default = self.convention.nope_every
        interval = None if layers else self.values.get("no_rope_layer_interval", default)
        if not layers and interval is None:
            return None
        if layers and not isinstance(layers, (list, tuple)):
            raise ConfigError(f"no_rope_layers is {said(layers)}; it must be a list of 0 and 1.")
        every = 1 if layers else self.values.integer("no_rope_layer_interval", default)

        def turns(index: int) -> bool:
            return self._is_listed(layers, index) if layers else (index + 1) % every != 0

        if self.index is not None:
            return None if turns(self.index) else f"no_rope_layers, layer {self.index}"
        return self._why_all(turns, len(layers) if layers else 0) if self.label else None

    def _is_listed(self, layers: Any, index: int) -> bool:
        if index >= len(layers):
            raise ConfigError(f"no_rope_layers has {len(layers)} layers, and the layer is {said(index)}.")
        if layers[index] not in (0, 1):
            raise ConfigError(f"no_rope_layers[{index}] is {said(layers[index])}; it must be 0 or 1.")
        return bool(layers[index])

    def _why_all(self, turns: Callable[[int], bool], count: int) -> str | None:
        types = self.values.types_of_layers()
        count = count or max(len(types), min(self.values.count() or 0, MOST_LAYERS))
        alike = [i for i in range(count) if types and types[i % len(types)] == self.label]
        found = {turns(i) for i in alike}
        if len(found) == 2:
            raise ConfigError(
                f"of the layers of type {said(self.label)}, no_rope_layers leaves some without rotation; "
                "give the layer's index."
            )
        return f"no_rope_layers, layer type {self.label!r}" if found == {False} else None

    def _theta(self) -> Any:
        """Return what `layer_rope_theta` says of the layer's base, or `_UNSAID`."""
        thetas = self.values.stated("layer_rope_theta")
        if thetas is None or (self.label is None and self.index is None):
            return _UNSAID
        if not isinstance(thetas, (list, tuple)):
            raise ConfigError(f"layer_rope_theta is {said(thetas)}; it must be a list of bases.")
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
            raise ConfigError(f"layers of type {said(self.label)} differ in layer_rope_theta; give an index.")
        return own[0] if own else _UNSAID

    # Rotary parameters

    def _given(self) -> Mapping[str, Any]:
        """Return the rotary parameters that the config states, or else the class's own."""
        new, old = self._mapping("rope_parameters"), self._mapping("rope_scaling")
        if new and old:
            _agree(_renamed(new), _renamed(old))
            self.spot.note("rope_parameters and rope_scaling are both given, and agree")
        self.given = {**old, **new}
        # What a family makes of older keys, it makes of no keys at all.
        own = {} if self.convention.parameters else self.spot.defaults.get("rope_parameters", {})
        return self.given or own

    def _mapping(self, name: str) -> Mapping[str, Any]:
        if (value := self.values.content.get(name)) is None:
            return {}
        if name in self.convention.drops:
            if value and not self._is_usual(value):
                self.spot.note(f"{name} is not used: the model's code in transformers does not read it")
            return {}
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} is {said(value)}; it must be an object, or null.")
        if len(value) > MOST_KEYS:
            raise ConfigError(f"{name} has {len(value)} keys; no model has over {MOST_KEYS}.")
        if not all(isinstance(key, str) for key in value):
            raise ConfigError(f"{name} has a key that is no name.")
        return value

    def _is_usual(self, value: Any) -> bool:
        """Whether rotary parameters say what the code does without them."""
        usual = {"rope_type": "default", "type": "default", "rope_theta": self.convention.theta}
        return isinstance(value, Mapping) and all(
            own is None or (key in usual and own == usual[key]) for key, own in value.items()
        )

    def _of_nested(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Read parameters by layer type; null there is a type without rotation."""
        nested = {k: v for k, v in given.items() if isinstance(v, Mapping) or (v is None and k not in KEYS)}
        beside = [key for key in given if key not in nested]
        check_keys(beside)
        if beside:
            self.spot.note(f"{listed(beside)} beside the parameters of layer types is not used")
        if self.label is None:
            return self._shared(nested)
        label = self.convention.labels.get(self.label, self.label)
        if label not in nested:
            raise ConfigError(
                f"layer_type is {said(self.label)}; there are rotary parameters of {listed([*nested])}."
            )
        return self._of_label(nested, label)

    def _of_label(self, nested: Mapping[str, Any], label: str) -> dict[str, Any]:
        if nested[label] is None:
            return self._identity(f"the rotary parameters of {label!r} are null")
        return self._of_one(nested[label], label)

    def _shared(self, nested: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the rope that all layer types share."""
        made, ropes = [], []
        for label in nested:
            self.label = label
            made.append(self._of_label(nested, label))
            ropes.append(Spec(**made[-1]))
        if any(rope != ropes[0] for rope in ropes[1:]):
            raise ConfigError(
                f"layers differ: the config has rotary parameters of {listed([*nested])}; say which with "
                "layer_type=."
            )
        return made[0]

    def _of_one(self, given: Mapping[str, Any], label: str) -> dict[str, Any]:
        check_keys(given)
        convention = self.convention.layers.get(label or self.label or "", self.convention)
        self.values.layer = self._overrides(label)
        prefix = f"rope_parameters.{label}." if label else "rope_parameters."
        table = RotaryParameters(given, prefix, self.spot, {*self.given, *(self.given.get(label) or {})})
        kind = self._kind(table, convention)
        module = Module(self.spot, self.values, table, convention, label, kind)
        theta = self._theta()
        if theta is _UNSAID:
            return module.fields(None)
        if not theta:
            return self._identity(f"layer_rope_theta is {said(theta)}")
        return module.fields(number("layer_rope_theta", theta))

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

    def _kind(self, table: RotaryParameters, convention: Convention) -> str:
        """Return the rule's name, other names of it resolved."""
        if convention.scaled_layers is not None and not self._is_scaled(convention.scaled_layers):
            return "default"
        named = {key: table.get(key) for key in ("rope_type", "type") if table.get(key) is not None}
        kinds = {kind_of(table.prefix + key, kind, convention) for key, kind in named.items()}
        if len(kinds) > 1 and named["rope_type"] == "default":
            # What the class adds to a rule in the older form.
            self.spot.note(f"type {said(named['type'])} is not used: rope_type is 'default'")
            return "default"
        if len(kinds) > 1:
            rope_type, other = map(said, named.values())
            raise ConfigError(f"rope_type is {rope_type} and type is {other}, which differ; leave one out.")
        if not kinds:
            self.spot.inferred["rope_type"] = "default"
        kind = next(iter(kinds), "default")
        if convention.types is not None and kind not in {SAME_AS.get(k, k) for k in convention.types}:
            raise ConfigError(f"rope_type is {kind!r}; {self.spot.name} takes {listed(convention.types)}.")
        return kind

    def _is_scaled(self, key: str) -> bool:
        if self.index is None:
            return self.label != "unscaled"
        chosen = self.values.get(key)
        return not isinstance(chosen, (list, tuple)) or self.index in chosen


def _renamed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with the type under its newer name, and without what is null."""
    made = {key: value for key, value in given.items() if value is not None}
    if "type" in made:
        made.setdefault("rope_type", made.pop("type"))
    return made


def _agree(new: Mapping[str, Any], old: Mapping[str, Any]) -> None:
    """Refuse two sets of parameters that differ; the newer holds the base and the share as well."""
    more = {"rope_theta", "partial_rotary_factor"} - old.keys()
    for key in sorted(map(str, (new.keys() | old.keys()) - more)):
        if new.get(key) != old.get(key):
            raise ConfigError(
                f"rope_parameters and rope_scaling are both given, and differ in {said(key)}: "
                f"{said(new.get(key))} and {said(old.get(key))}; leave one out."
            )
