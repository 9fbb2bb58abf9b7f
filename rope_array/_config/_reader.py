"""From one part of a config to the fields of the rope of one layer: find its rotary parameters."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rope_array._config import _unused_keys
from rope_array._config._convention import Convention, Note
from rope_array._config._layer_rope import LayerRope
from rope_array._config._layers import check_length, choose_layer, note_on_unrotated, why_unrotated
from rope_array._config._part import ConfigPart, listed, quoted
from rope_array._config._tables import SAME_AS
from rope_array._config._values import (
    MOST_KEYS,
    PartValues,
    RotaryParameters,
    check_keys,
    check_parameters,
    rule_name_of,
    unknown_parameters,
)
from rope_array._errors import ConfigError, SpecError
from rope_array._spec.spec import Spec
from rope_array._spec.validation import number

_UNSTATED = object()


class Reader:
    """The steps from one part of a config to the rope of one layer."""

    def __init__(self, config_part: ConfigPart, layer_type: Any) -> None:
        self.config_part, self.values = config_part, PartValues(config_part)
        self.convention, self.record = self.values.convention, self.values.record
        self.stated_parameters: Mapping[str, Any] = {}  # the rotary parameters as the config states them
        self.requested = layer_type
        choose_layer(self.values, layer_type)

    def fields(self) -> dict[str, Any]:
        """Return the fields of the rope of the requested layer."""
        why = why_unrotated(self.values)
        fields = self._rotated_fields() if why is None else self._identity(why)
        if self.requested is None and fields["rotary_dim"] and (note := note_on_unrotated(self.config_part)):
            self.record.note(note)
        _unused_keys.check_unread_keys(self.values, fields, self._asked_by_others)
        _unused_keys.check_above(self.values, fields)
        return fields

    def _rotated_fields(self) -> dict[str, Any]:
        parameters = self._rotary_parameters()
        check_parameters(parameters, self.convention)
        self._note_flat(parameters)
        if self.convention.parameters is not None:
            parameters = self.convention.parameters(self.values, dict(parameters))
        if any(isinstance(value, Mapping) for value in parameters.values()):
            return self._of_nested(parameters)
        self._check_label()
        return self._of_one(parameters, "")

    def _asked_by_others(self) -> set[str]:
        """Return the keys that a layer of any type with rotation reads."""
        other = Reader(self.config_part, None)
        for label in (None, *other.values.layer_types(), *self.convention.of_layer_type):
            other.values.label = label
            with suppress(ConfigError, SpecError, ArithmeticError):  # a reading of that layer raises them
                other._rotated_fields()
        return other.values.asked

    def _note_flat(self, parameters: Mapping[str, Any]) -> None:
        """Note rules that transformers drops in a family with parameters by layer type."""
        if not self.convention.by_layer_type or not self.stated_parameters:
            return
        flat = not any(isinstance(rule, Mapping) for rule in parameters.values())
        if flat and self.values.content.get("rope_parameters"):
            self.record.note(
                "rope_parameters without layer types are used here; transformers 5.24 drops them"
            )
        elif any(
            rule.get("type") is not None and rule.get("rope_type") is None
            for rule in (parameters, *parameters.values())
            if isinstance(rule, Mapping)
        ):
            self.record.note("type is used here; transformers 5.24 reads only rope_type for this model")

    def _identity(self, why: str) -> dict[str, Any]:
        """Return the fields of the rope of a layer without rotation."""
        self.record.note(Note(f"{why}: no rotation", "unrotated"))
        convention = self.convention.of_layer_type.get(self.values.label or "", self.convention)
        head = self.values.width(*convention.width)
        return {"head_dim": head, "rotary_dim": 0, "pairing": convention.pairing}

    def _check_label(self) -> None:
        """Refuse the name of a layer type that the config does not have."""
        labels = (
            *self.values.layer_types(),
            *self.config_part.defaults.get("labels", ()),
            *self.convention.of_layer_type,
            *self.convention.nope,
        )
        if self.values.label is not None and self.values.index is None and self.values.label not in labels:
            names = listed(tuple(dict.fromkeys(labels))) or "layers of one type, without names"
            raise ConfigError(f"layer_type is {quoted(self.values.label)}; the config has {names}.")

    def _theta(self) -> Any:
        """Return the layer's base in `layer_rope_theta`, or `_UNSTATED`."""
        thetas = self.values.stated("layer_rope_theta")
        if thetas is None or (self.values.label is None and self.values.index is None):
            return _UNSTATED
        if not isinstance(thetas, (list, tuple)):
            raise ConfigError(f"layer_rope_theta is {quoted(thetas)}; it must be a list of bases.")
        if self.values.index is not None:
            check_length("layer_rope_theta", thetas, self.values.index)
            return thetas[self.values.index]
        types = self.values.types_of_layers()
        bases = [base for base, label in zip(thetas, types, strict=False) if label == self.values.label]
        if any(base != bases[0] for base in bases):
            raise ConfigError(
                f"layers of type {quoted(self.values.label)} differ in layer_rope_theta; give an index."
            )
        return bases[0] if bases else _UNSTATED

    # Rotary parameters

    def _rotary_parameters(self) -> Mapping[str, Any]:
        """Return the rotary parameters that the config states, or else the class's own."""
        new, old = self._mapping("rope_parameters"), self._mapping("rope_scaling")
        if new and old:
            _check_agreement(_renamed(new), _renamed(old))
            self.record.note("rope_parameters and rope_scaling are both stated, and agree")
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
                self.record.note(self.config_part.unread(name))
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
            self.record.note(f"{listed(flat)} outside of the parameters of layer types is not used")
        if not isinstance(self.requested, str):
            self._note_unused_bases(nested)
        if self.values.label is None:
            return self._shared(nested)
        if (label := self.values.label) not in nested:
            raise ConfigError(
                f"layer_type is {quoted(label)}; give one with rotary parameters: {listed([*nested])}."
            )
        return self._of_label(nested, label)

    def _of_label(self, nested: Mapping[str, Any], label: str) -> dict[str, Any]:
        if nested[label] is None:
            return self._identity(f"the rotary parameters of {label!r} are null")
        return self._of_one(nested[label], label)

    def _note_unused_bases(self, nested: Mapping[str, Any]) -> None:
        """Note a base of a layer type that no layer has, unless it is the class's."""
        keys = {label: self.convention.bases.get(label, "rope_theta") for label in nested}
        labels = self.values.layer_types()
        used = {key for label, key in keys.items() if label in labels}
        for label, key in keys.items():
            if (
                used
                and key not in used
                and self.values.stated(key) not in (None, self.config_part.defaults.get(key))
            ):
                self.record.note(f"{key} is not used: no layer is of the type {quoted(label)}")

    def _shared(self, nested: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the rope that all layer types of the model share."""
        labels, fields, ropes = self.values.layer_types(), [], []
        for label in [label for label in nested if label in labels] or nested:
            self.values.label = label
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
        convention = self.convention.of_layer_type.get(label or self.values.label or "", self.convention)
        self.values.layer = self._overrides(label)
        prefix = f"rope_parameters.{label}." if label else "rope_parameters."
        parameters = RotaryParameters(
            rule, prefix, self.record, {*self.stated_parameters, *(self.stated_parameters.get(label) or {})}
        )
        rule_name = self._rule_name(parameters, convention)
        layer_rope = LayerRope(self.values, parameters, convention, label, rule_name)
        theta = self._theta()
        if theta is _UNSTATED:
            return layer_rope.fields(None)
        if not theta:
            return self._identity(f"layer_rope_theta is {quoted(theta)}")
        return layer_rope.fields(number("layer_rope_theta", theta))

    def _overrides(self, label: str) -> Mapping[str, Any]:
        """Return the layer's `per_layer_config`, or the first layer's of its type.

        transformers states only the values that differ from the config's own.
        """
        layers, index = self.values.content.get("per_layer_config"), self.values.index
        if not isinstance(layers, Mapping):
            overrides = self.convention.overrides
            return {} if overrides is None else overrides(self.values, label or self.values.label or "")
        if index is None:
            types, layer_type = self.values.types_of_layers(), label or self.values.label
            index = next((i for i, name in enumerate(types) if name == layer_type), None)
        of_part = {"head_dim": self.values.get("head_dim")}
        if index is None:
            return of_part
        keys = (index, *(f"{index:0{digits}d}" for digits in range(1, 5)))
        of_layer = next((layers[key] for key in keys if key in layers), None)
        return {**of_part, **of_layer} if isinstance(of_layer, Mapping) else of_part

    def _rule_name(self, parameters: RotaryParameters, convention: Convention) -> str:
        """Return the name of the scaling rule, with other names resolved."""
        named = {key: parameters.get(key) for key in ("rope_type", "type") if parameters.get(key) is not None}
        names = {rule_name_of(parameters.prefix + key, name, convention) for key, name in named.items()}
        if len(names) > 1 and named["rope_type"] == "default":
            # The class adds rope_type "default" to a rule in the older form.
            self.record.note(f"type {quoted(named['type'])} is not used: rope_type is 'default'")
            return "default"
        if len(names) > 1:
            rope_type, older_type = map(quoted, named.values())
            raise ConfigError(
                f"rope_type is {rope_type} and type is {older_type}, which differ; leave one out."
            )
        if not names and not self.config_part.foreign:
            self.record.inferred["rope_type"] = "default"
        name = next(iter(names), "default")
        if convention.rope_types is not None and name not in {
            SAME_AS.get(key, key) for key in convention.rope_types
        }:
            raise ConfigError(
                f"rope_type is {name!r}; {self.config_part.name} takes {listed(convention.rope_types)}."
            )
        return name


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
