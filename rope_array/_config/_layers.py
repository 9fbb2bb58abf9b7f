"""The layers of a part: the type of the layer that is read, and the reason if it has no rotation."""

from collections.abc import Callable, Sequence
from typing import Any

from rope_array._config._part import ConfigPart, quoted
from rope_array._config._values import MOST_LAYERS, PartValues
from rope_array._errors import ConfigError

NO_ATTENTION = ("linear_attention", "conv", "mamba", "mamba2", "recurrent")
_LISTS = ("no_rope_layers", "no_rope_layer_interval", "layer_rope_theta")


def choose_layer(values: PartValues, layer_type: Any) -> None:
    """Set the layer of a reading, by the name of its type or its index."""
    if isinstance(layer_type, str):
        values.label = values.newer_name(layer_type)
    elif layer_type is not None:
        values.index = _layer_index(values, layer_type)
        values.label = _label_of(values, values.index)


def _layer_index(values: PartValues, index: Any) -> int:
    if isinstance(index, bool) or not isinstance(index, int):
        raise ConfigError(f"layer_type is {quoted(index)}; give a name, or the index of a layer.")
    count = values.count()
    if index < 0 or (count is not None and index >= count):
        last = "the last layer's" if count is None else quoted(count - 1)
        raise ConfigError(f"layer_type is {quoted(index)}; give the index of a layer, from 0 to {last}.")
    return index


def _label_of(values: PartValues, index: int) -> str | None:
    types = values.types_of_layers()
    if not types:
        return None
    if values.stated("layer_types") is None:
        return types[index % len(types)]
    check_length("layer_types", types, index)
    return types[index]


def check_length(name: str, values: Sequence[Any], index: int) -> None:
    """Refuse a list that has no value for a layer."""
    if index >= len(values):
        raise ConfigError(
            f"{name} has {len(values)} values, none for layer {index}; give a value for each layer, or a "
            f"layer_type below {len(values)}."
        )


def why_unrotated(values: PartValues) -> str | None:
    """Return the reason that the layer of a reading does not rotate; None if it does."""
    convention, label = values.convention, values.label
    if convention.never is not None:
        return convention.never
    for key, allowed in convention.unless.items():
        if (value := values.get(key)) not in allowed:
            return f"{key} is {quoted(value)}"
    rule = convention.unrotated if label in convention.nope or not convention.nope else None
    by_model = rule(values) if rule else None
    if label in convention.nope and by_model != "":
        return f"layer type {label!r}"
    if label in NO_ATTENTION and label in values.layer_types():
        return f"layer type {label!r} has no attention that rotates"
    return by_model or _why_listed(values)


def _why_listed(values: PartValues) -> str | None:
    """Apply `no_rope_layers`, which has 0 for a layer without rotation, or its interval."""
    layers = values.stated("no_rope_layers")
    if not layers and values.get("no_rope_layer_interval") is None:
        return None
    if layers and not isinstance(layers, (list, tuple)):
        raise ConfigError(f"no_rope_layers is {quoted(layers)}; it must be a list of 0 and 1.")
    if layers:
        return why_by_index(values, lambda index: _is_listed(layers, index), "no_rope_layers, ", len(layers))
    every = values.integer("no_rope_layer_interval")
    return why_by_index(values, lambda index: (index + 1) % every != 0, "no_rope_layers, ")


def _is_listed(layers: Sequence[Any], index: int) -> bool:
    check_length("no_rope_layers", layers, index)
    if layers[index] not in (0, 1):
        raise ConfigError(f"no_rope_layers[{index}] is {quoted(layers[index])}; it must be 0 or 1.")
    return bool(layers[index])


def why_by_index(
    values: PartValues, rotates: Callable[[int], bool], rule: str = "", count: int = 0
) -> str | None:
    """Return the reason by a rule of indices, for the layer of a reading or all layers of its type."""
    if values.index is not None:
        return None if rotates(values.index) else f"{rule}layer {values.index}"
    if not values.label:
        return None
    types = values.types_of_layers()
    count = count or max(len(types), min(values.count() or 0, MOST_LAYERS))
    indices = [i for i in range(count) if types and types[i % len(types)] == values.label]
    rotations = {rotates(i) for i in indices}
    if len(rotations) == 2:
        raise ConfigError(
            f"of the layers of type {quoted(values.label)}, some have no rotation; give the layer's index."
        )
    return f"no layer of type {values.label!r} rotates" if rotations == {False} else None


def note_on_unrotated(config_part: ConfigPart) -> str | None:
    """Return the note on the layers that do not rotate, for a reading of no single layer."""
    values = PartValues(config_part)
    if not (values.convention.nope or values.convention.unrotated or any(map(values.get, _LISTS))):
        return None
    count = min(values.count() or len(values.types_of_layers()), MOST_LAYERS)
    indices = [index for index in range(count) if _is_unrotated(values, index)]
    first = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
    text = f"layers {first} ({len(indices)} of {count}) have no rotation: choose with layer_type="
    return text if indices else None


def _is_unrotated(values: PartValues, index: int) -> bool:
    """Return whether a layer with attention has no rotation."""
    values.index, values.label = index, _label_of(values, index)
    if values.label in NO_ATTENTION:
        return False
    thetas = values.stated("layer_rope_theta")
    listed_base = isinstance(thetas, (list, tuple)) and index < len(thetas)
    return why_unrotated(values) is not None or (listed_base and not thetas[index])
