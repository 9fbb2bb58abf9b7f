"""From one part of a config to the fields of a rope: find the layer type and its rotary parameters."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rope_array._config import _unused_keys
from rope_array._config._convention import Convention
from rope_array._config._layer_rope import LayerRope
from rope_array._config._part import ConfigPart, listed, quoted
from rope_array._config._tables import SAME_AS
from rope_array._config._values import (
    MOST_KEYS,
    MOST_LAYERS,
    NEWER_NAMES,
    PartValues,
    RotaryParameters,
    check_keys,
    check_shape,
    is_among,
    rule_name_of,
    unknown_parameters,
)
from rope_array._errors import ConfigError, SpecError
from rope_array._spec.spec import Spec
from rope_array._spec.validation import number

_NO_ATTENTION = ("linear_attention", "conv", "mamba", "mamba2", "recurrent")
_UNSTATED = object()


class Reader:
    """The steps from one part of a config to the rope of one layer type."""

    def __init__(self, config_part: ConfigPart, convention: Convention, layer_type: Any) -> None:
        self.config_part, self.convention = config_part, convention
        self.values = PartValues(config_part)
        self.index: int | None = None
        self.label: str | None = None
        self.stated_parameters: Mapping[str, Any] = {}  # the rotary parameters as the config states them
        self.requested = layer_type
        if isinstance(layer_type, str):
            self.label = NEWER_NAMES.get(layer_type, layer_type)
        elif layer_type is not None:
            self.index = self._layer_index(layer_type)
            self.label = self._label_of(self.index)

    def fields(self) -> dict[str, Any]:
        """Return the fields of the rope of the requested layer."""
        why = self._why_unrotated()
        fields = self._rotated_fields() if why is None else self._identity(why)
        if self.requested is None and fields["rotary_dim"]:
            self._note_unrotated_layers()
        _unused_keys.check_unread_keys(
            self.config_part, self.convention, self.values.asked, fields, self._asked_by_others
        )
        _unused_keys.check_above(self.config_part, fields)
        return fields

    def _rotated_fields(self) -> dict[str, Any]:
        parameters = self._rotary_parameters()
        check_shape(parameters)
        self._check_nested(parameters)
        self._note_flat(parameters)
        if self.convention.parameters is not None:
            parameters = self.convention.parameters(self.values, dict(parameters))
        if any(isinstance(value, Mapping) for value in parameters.values()):
            return self._of_nested(parameters)
        self._check_label()
        return self._of_one(parameters, "")

    def _asked_by_others(self) -> set[str]:
        """Return the keys that a layer of any type with rotation reads."""
        scratch = Reader(replace(self.config_part, stated={}, inferred={}, notes=[]), self.convention, None)
        for label in (None, *self.values.layer_types(), *self.convention.layers):
            scratch.label = label
            with suppress(ConfigError, SpecError, ArithmeticError):  # a reading of that layer raises them
                scratch._rotated_fields()
        return scratch.values.asked

    def _note_unrotated_layers(self) -> None:
        """Note the layers that do not rotate, if the caller requests no layer."""
        scratch = Reader(replace(self.config_part, stated={}, inferred={}, notes=[]), self.convention, None)
        lists = ("no_rope_layers", "no_rope_layer_interval", "layer_rope_theta")
        every = any(scratch.values.get(key) is not None for key in lists) or self.convention.nope_every
        if not (self.convention.nope or self.convention.nope_at or every):
            return
        count = min(scratch.values.count() or len(scratch.values.types_of_layers()), MOST_LAYERS)
        unrotated = [index for index in range(count) if scratch._is_unrotated(index)]
        if unrotated:
            first = ", ".join(map(str, unrotated[:8])) + (", ..." if len(unrotated) > 8 else "")
            self.config_part.note(
                f"layers {first} ({len(unrotated)} of {count}) have no rotation: choose with layer_type="
            )

    def _is_unrotated(self, index: int) -> bool:
        """Return whether a layer with attention has no rotation."""
        self.index, self.label = index, self._label_of(index)
        if self.label in _NO_ATTENTION:
            return False
        thetas = self.values.stated("layer_rope_theta")
        listed_base = isinstance(thetas, (list, tuple)) and index < len(thetas)
        return self._why_unrotated() is not None or (listed_base and not thetas[index])

    def _check_nested(self, parameters: Mapping[str, Any]) -> None:
        """Refuse unknown parameters of any layer type, requested or not."""
        for label, rule in parameters.items():
            if isinstance(rule, Mapping):
                check_keys(rule)
                prefix = f"rope_parameters.{quoted(label)[1:-1]}"
                for key in ("rope_type", "type"):
                    if rule.get(key) is not None:
                        rule_name_of(f"{prefix}.{key}", rule[key], self.convention)

    def _note_flat(self, parameters: Mapping[str, Any]) -> None:
        """Note rules that transformers drops in a family with parameters by layer type."""
        if not self.convention.by_type or not self.stated_parameters:
            return
        flat = not any(isinstance(rule, Mapping) for rule in parameters.values())
        if flat and self.values.content.get("rope_parameters"):
            self.config_part.note(
                "rope_parameters without layer types are used here; transformers 5.24 drops them"
            )
        elif any(
            rule.get("type") is not None and rule.get("rope_type") is None
            for rule in (parameters, *parameters.values())
            if isinstance(rule, Mapping)
        ):
            self.config_part.note("type is used here; transformers 5.24 reads only rope_type for this model")

    def _identity(self, why: str) -> dict[str, Any]:
        """Return the fields of the rope of a layer without rotation."""
        self.config_part.note(f"{why}: no rotation")
        convention = self.convention.layers.get(self.label or "", self.convention)
        head = self.values.width(*convention.width)
        return {"head_dim": head, "rotary_dim": 0, "pairing": convention.pairing}

    # Layers

    def _layer_index(self, index: Any) -> int:
        if isinstance(index, bool) or not isinstance(index, int):
            raise ConfigError(f"layer_type is {quoted(index)}; give a name, or the index of a layer.")
        count = self.values.count()
        if index < 0 or (count is not None and index >= count):
            last = "the last layer's" if count is None else quoted(count - 1)
            raise ConfigError(f"layer_type is {quoted(index)}; give the index of a layer, from 0 to {last}.")
        return index

    def _label_of(self, index: int) -> str | None:
        types = self.values.types_of_layers()
        if not types:
            return None
        if self.values.stated("layer_types") is None:
            return types[index % len(types)]
        _check_length("layer_types", types, index)
        return types[index]

    def _check_label(self) -> None:
        """Refuse the name of a layer type that the config does not have."""
        labels = (
            *self.values.layer_types(),
            *self.config_part.defaults.get("labels", ()),
            *self.convention.layers,
            *self.convention.nope,
            *(("scaled", "unscaled") if self.convention.scaled_layers else ()),
        )
        if self.label is not None and self.index is None and self.label not in labels:
            names = listed(tuple(dict.fromkeys(labels))) or "layers of one type, without names"
            raise ConfigError(f"layer_type is {quoted(self.label)}; the config has {names}.")

    def _why_unrotated(self) -> str | None:
        """Return the reason that the layer does not rotate; None if it does."""
        if self.convention.never is not None:
            return self.convention.never
        for key, allowed in self.convention.unless.items():
            if (value := self.values.get(key)) not in allowed:
                return f"{key} is {quoted(value)}"
        if self.label in self.convention.nope and self._nope_applies():
            return f"layer type {self.label!r}"
        if self.label in _NO_ATTENTION and self.label in self.values.layer_types():
            return f"layer type {self.label!r} has no attention that rotates"
        return self._why_by_index() or self._why_listed()

    def _why_by_index(self) -> str | None:
        """Apply the model's rule of layers without rotation, by index."""
        unrotated = self.convention.nope_at
        if unrotated is None or not self._nope_applies():
            return None
        return self._why_unrotated_by("", lambda index: not unrotated(self.values, index), 0)

    def _nope_applies(self) -> bool:
        convention = self.convention
        if convention.rotates and self.index is not None and convention.rotates(self.values, self.index):
            return False
        if convention.nope_needs is not None and not self._has_value(convention.nope_needs):
            return False
        return convention.nope_unless is None or self.values.stated(convention.nope_unless) is None

    def _has_value(self, key: str) -> bool:
        """Return whether a key has a value; a stated null overrides the class's default."""
        content = self.values.content
        return (content[key] if key in content else self.config_part.defaults.get(key)) is not None

    def _why_listed(self) -> str | None:
        """Apply `no_rope_layers`, which has 0 for a layer without rotation, or its interval."""
        layers = self.values.stated("no_rope_layers")
        default = self.convention.nope_every
        interval = None if layers else self.values.get("no_rope_layer_interval", default)
        if not layers and interval is None:
            return None
        if layers and not isinstance(layers, (list, tuple)):
            raise ConfigError(f"no_rope_layers is {quoted(layers)}; it must be a list of 0 and 1.")
        every = 1 if layers else self.values.integer("no_rope_layer_interval", default)

        def rotates(index: int) -> bool:
            return self._is_listed(layers, index) if layers else (index + 1) % every != 0

        return self._why_unrotated_by("no_rope_layers, ", rotates, len(layers) if layers else 0)

    def _is_listed(self, layers: Any, index: int) -> bool:
        _check_length("no_rope_layers", layers, index)
        if layers[index] not in (0, 1):
            raise ConfigError(f"no_rope_layers[{index}] is {quoted(layers[index])}; it must be 0 or 1.")
        return bool(layers[index])

    def _why_unrotated_by(self, rule: str, rotates: Callable[[int], bool], count: int) -> str | None:
        """Return the reason by a rule of indices, for the layer or all layers of its type."""
        if self.index is not None:
            return None if rotates(self.index) else f"{rule}layer {self.index}"
        if not self.label:
            return None
        types = self.values.types_of_layers()
        count = count or max(len(types), min(self.values.count() or 0, MOST_LAYERS))
        indices = [i for i in range(count) if types and types[i % len(types)] == self.label]
        rotations = {rotates(i) for i in indices}
        if len(rotations) == 2:
            raise ConfigError(
                f"of the layers of type {quoted(self.label)}, some have no rotation; give the layer's index."
            )
        return f"no layer of type {self.label!r} rotates" if rotations == {False} else None

    def _theta(self) -> Any:
        """Return the layer's base in `layer_rope_theta`, or `_UNSTATED`."""
        thetas = self.values.stated("layer_rope_theta")
        if thetas is None or (self.label is None and self.index is None):
            return _UNSTATED
        if not isinstance(thetas, (list, tuple)):
            raise ConfigError(f"layer_rope_theta is {quoted(thetas)}; it must be a list of bases.")
        if self.index is not None:
            _check_length("layer_rope_theta", thetas, self.index)
            return thetas[self.index]
        types = self.values.types_of_layers()
        bases = [base for base, label in zip(thetas, types, strict=False) if label == self.label]
        if any(base != bases[0] for base in bases):
            raise ConfigError(
                f"layers of type {quoted(self.label)} differ in layer_rope_theta; give an index."
            )
        return bases[0] if bases else _UNSTATED

    # Rotary parameters

    def _rotary_parameters(self) -> Mapping[str, Any]:
        """Return the rotary parameters that the config states, or else the class's own."""
        new, old = self._mapping("rope_parameters"), self._mapping("rope_scaling")
        if new and old:
            _check_agreement(_renamed(new), _renamed(old))
            self.config_part.note("rope_parameters and rope_scaling are both stated, and agree")
        self.stated_parameters = {**old, **new}
        # `Convention.parameters` has its own defaults; an empty object replaces the class's.
        is_empty = self.values.content.get("rope_parameters") == {}
        if self.stated_parameters or self.convention.parameters or is_empty:
            return self.stated_parameters
        return self.config_part.defaults.get("rope_parameters", {})  # type: ignore[no-any-return]

    def _mapping(self, name: str) -> Mapping[str, Any]:
        if (value := self.values.content.get(name)) is None or value is False:
            return {}
        if name in self.convention.drops:
            if value and not self._equals_defaults(value):
                self.config_part.note_unread(name)
            return {}
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} is {quoted(value)}; it must be an object, or null.")
        if len(value) > MOST_KEYS:
            raise ConfigError(f"{name} has {len(value)} keys; give at most {MOST_KEYS}.")
        if not all(isinstance(key, str) for key in value):
            raise ConfigError(f"{name} has a key that is no name.")
        return value

    def _equals_defaults(self, parameters: Any) -> bool:
        """Return whether rotary parameters equal the defaults of the code."""
        defaults = {"rope_type": "default", "type": "default", "rope_theta": self.convention.theta}
        return isinstance(parameters, Mapping) and all(
            value is None or (key in defaults and value == defaults[key]) for key, value in parameters.items()
        )

    def _of_nested(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields from parameters by layer type; null marks a type without rotation."""
        nested = {
            k: v
            for k, v in parameters.items()
            if isinstance(v, Mapping) or (v is None and unknown_parameters([k]))
        }
        if flat := [key for key in parameters if key not in nested]:
            self.config_part.note(f"{listed(flat)} outside of the parameters of layer types is not used")
        if not isinstance(self.requested, str):
            self._note_unused_bases(nested)
        if self.label is None:
            return self._shared(nested)
        label = self.convention.labels.get(self.label, self.label)
        if label not in nested:
            raise ConfigError(
                f"layer_type is {quoted(self.label)}; give one with rotary parameters: {listed([*nested])}."
            )
        return self._of_label(nested, label)

    def _of_label(self, nested: Mapping[str, Any], label: str) -> dict[str, Any]:
        if nested[label] is None:
            return self._identity(f"the rotary parameters of {label!r} are null")
        return self._of_one(nested[label], label)

    def _labels_of_layers(self) -> "set[str]":
        return {self.convention.labels.get(name, name) for name in self.values.layer_types()}

    def _note_unused_bases(self, nested: Mapping[str, Any]) -> None:
        """Note a base of a layer type that no layer has, unless it is the class's."""
        keys = {label: self.convention.bases.get(label, "rope_theta") for label in nested}
        labels = self._labels_of_layers()
        used = {key for label, key in keys.items() if label in labels}
        for label, key in keys.items():
            if (
                used
                and key not in used
                and self.values.stated(key) not in (None, self.config_part.defaults.get(key))
            ):
                self.config_part.note(f"{key} is not used: no layer is of the type {quoted(label)}")

    def _shared(self, nested: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the rope that all layer types of the model share."""
        labels, fields, ropes = self._labels_of_layers(), [], []
        for label in [label for label in nested if label in labels] or nested:
            self.label = label
            fields.append(self._of_label(nested, label))
            ropes.append(Spec(**fields[-1]))
        if any(rope != ropes[0] for rope in ropes[1:]):
            raise ConfigError(
                f"layers differ: the config has rotary parameters of {listed([*nested])}; choose with "
                "layer_type=."
            )
        return fields[0]

    def _of_one(self, rule: Mapping[str, Any], label: str) -> dict[str, Any]:
        check_keys(rule)
        if self.convention.null_theta and self._has_null_base(rule):
            return self._identity("rope_theta is null")
        convention = self.convention.layers.get(label or self.label or "", self.convention)
        self.values.layer = self._overrides(label)
        prefix = f"rope_parameters.{label}." if label else "rope_parameters."
        parameters = RotaryParameters(
            rule,
            prefix,
            self.config_part,
            {*self.stated_parameters, *(self.stated_parameters.get(label) or {})},
        )
        rule_name = self._rule_name(parameters, convention)
        layer_rope = LayerRope(self.config_part, self.values, parameters, convention, label, rule_name)
        theta = self._theta()
        if theta is _UNSTATED:
            return layer_rope.fields(None)
        if not theta:
            return self._identity(f"layer_rope_theta is {quoted(theta)}")
        return layer_rope.fields(number("layer_rope_theta", theta))

    def _has_null_base(self, rule: Mapping[str, Any]) -> bool:
        where = rule if "rope_theta" in rule else self.values.content
        return where.get("rope_theta", 0) is None

    def _overrides(self, label: str) -> Mapping[str, Any]:
        """Return the layer's `per_layer_config`, or the first layer's of its type.

        transformers states only the values that differ from the config's own.
        """
        layers, index = self.values.content.get("per_layer_config"), self.index
        if not isinstance(layers, Mapping):
            overrides = self.convention.overrides
            return {} if overrides is None else overrides(self.values, label or self.label or "")
        if index is None:
            types, layer_type = self.values.types_of_layers(), label or self.label
            index = next((i for i, name in enumerate(types) if name == layer_type), None)
        of_part = {"head_dim": self.values.get("head_dim")}
        if index is None:
            return of_part
        keys = (index, *(f"{index:0{digits}d}" for digits in range(1, 5)))
        of_layer = next((layers[key] for key in keys if key in layers), None)
        return {**of_part, **of_layer} if isinstance(of_layer, Mapping) else of_part

    def _rule_name(self, parameters: RotaryParameters, convention: Convention) -> str:
        """Return the name of the scaling rule, with other names resolved."""
        if convention.scaled_layers is not None and not self._is_scaled(convention.scaled_layers):
            return "default"
        named = {key: parameters.get(key) for key in ("rope_type", "type") if parameters.get(key) is not None}
        names = {rule_name_of(parameters.prefix + key, name, convention) for key, name in named.items()}
        if len(names) > 1 and named["rope_type"] == "default":
            # The class adds rope_type "default" to a rule in the older form.
            self.config_part.note(f"type {quoted(named['type'])} is not used: rope_type is 'default'")
            return "default"
        if len(names) > 1:
            rope_type, older_type = map(quoted, named.values())
            raise ConfigError(
                f"rope_type is {rope_type} and type is {older_type}, which differ; leave one out."
            )
        if not names and not self.config_part.foreign:
            self.config_part.inferred["rope_type"] = "default"
        name = next(iter(names), "default")
        if convention.types is not None and name not in {SAME_AS.get(key, key) for key in convention.types}:
            raise ConfigError(
                f"rope_type is {name!r}; {self.config_part.name} takes {listed(convention.types)}."
            )
        return name

    def _is_scaled(self, key: str) -> bool:
        if self.index is None:
            return self.label != "unscaled"
        chosen = self.values.get(key)
        return not isinstance(chosen, (list, tuple)) or is_among(chosen, self.index)


def _check_length(name: str, values: Sequence[Any], index: int) -> None:
    if index >= len(values):
        raise ConfigError(
            f"{name} has {len(values)} values, none for layer {index}; give a value for each layer, or a "
            f"layer_type below {len(values)}."
        )


def _renamed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters without null values, and `type` as `rope_type`."""
    renamed = {key: value for key, value in parameters.items() if value is not None}
    if "type" in renamed:
        renamed.setdefault("rope_type", renamed.pop("type"))
    return renamed


def _check_agreement(new: Mapping[str, Any], old: Mapping[str, Any]) -> None:
    """Refuse two sets of parameters that differ; only the newer holds the base and the share."""
    only_new = {"rope_theta", "partial_rotary_factor"} - old.keys()
    for key in sorted(map(str, (new.keys() | old.keys()) - only_new)):
        if new.get(key) != old.get(key):
            raise ConfigError(
                f"rope_parameters and rope_scaling are both stated, and differ in {quoted(key)}: "
                f"{quoted(new.get(key))} and {quoted(old.get(key))}; leave one out."
            )
