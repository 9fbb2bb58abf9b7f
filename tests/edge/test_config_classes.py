"""One file gives one rope: the dict of a config and its config object are read alike, layer by layer.

The dicts state the keys that the classes of transformers pop, rename and convert (see `_older_keys`).
"""

import copy
import dataclasses
import logging
import re
import sys
from pathlib import Path

import pytest
from edge import _older_keys as keys
from edge._older_keys import COMPUTED, LAYERS, OF_EVERY_CLASS, VALUES, WITHOUT_EFFECT
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from rope_array import ConfigError, RoPE
from rope_array._config import _locate
from rope_array._config._conventions import convention_of
from rope_array._config._model_defaults import MODELS
from rope_array.config import read_layers

sys.path.append(str(Path(__file__).parents[2] / "docs"))

import _model_defaults as defaults

ROTARY = [cls for cls in keys.classes() if keys.has_rotation(cls)]
# The classes that tell layers apart, by a list or a property, and rotate some.
LISTS = (*keys.PROPERTIES, "no_rope_layers", "layer_rope_theta", "cross_attention_layers")
BY_LAYER = [
    cls
    for cls in ROTARY
    if any(hasattr(cls, name) or name in cls.attribute_map for name in LISTS)
    and not convention_of(cls.model_type).never
]
WHOLES = [cls for cls in keys.classes() if not keys.has_rotation(cls) and cls.sub_configs]

# Values that the class needs in addition to its defaults, which cannot rotate.
FIT = {
    "glm4v_moe_text": {"rope_parameters": {"rope_type": "default", "mrope_section": [3, 4, 4]}},
    "glm4v_text": {"rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24]}},
    "glm_image_text": {"rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24]}},
    "qwen3_omni_moe_text": {"head_dim": 128},
}
# Each key is read beside these too: a rule, as older configs state it, and a base.
BESIDE = ({}, {"rope_theta": 777.5, "rope_scaling": {"type": "yarn", **keys.YARN}})

# Classes that read the types of layers before the base class renames the older names.
BEFORE_RENAMING = (
    *("diffusion_gemma_text", "embedding_gemma2_text", "gemma4_text", "gemma4_unified_text"),
    *("dots3_note_text", "muse_glimmer_text", "muse_spark_text"),
)

# Keys that the class replaces in a dict; a value that is assigned to the object has an effect.
REPLACED = {("dots3_note_audio_encoder", "head_dim")}

# Keys of bases: with a null in them the dict is refused as the object is.
BASES = {key for key, values in VALUES.items() if None in values and re.search("theta|base", key)}

# Refusals of a dict that states two values, and notes of parameters that transformers drops.
CONTRADICTIONS = ("leave one out", "give one with rotary parameters", "which differ", "both stated")
DROPPED = ("transformers 5.24 drops them", "transformers 5.24 reads only rope_type")


@pytest.fixture(autouse=True)
def _quiet():
    """transformers warns of many of these configs."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def ropes(config, part=None):
    """Return the rope of each layer, or one rope for all, and the notes; or the refusal."""
    try:
        groups = read_layers(config, part=part)
    except ConfigError as refusal:
        return str(refusal), ()
    notes = tuple(note for _, reading in groups for note in reading.notes)
    if len(groups) == 1:
        return groups[0][1].rope, notes
    return {index: reading.rope for indices, reading in groups for index in indices}, notes


def difference(cls, config, part=None):
    """Return how the readings of the dict and of the object differ; None if they do not."""
    try:
        config_object = cls.from_dict(copy.deepcopy(config))
    except Exception:  # the class refuses the value, with errors of any kind
        return None
    (ours, notes), (theirs, _) = ropes(config, part), ropes(config_object, part)
    if ours == theirs or (isinstance(ours, str) and isinstance(theirs, str)):
        return None
    if isinstance(ours, str) and any(text in ours for text in CONTRADICTIONS):
        return None
    if any(text in note for text in DROPPED for note in notes):
        return None
    loses_base = isinstance(theirs, str) and "rope_theta is null" in theirs
    if loses_base and BASES.isdisjoint(key for key, value in config.items() if value is None):
        return None  # the class itself loses the base: its model cannot be made
    return f"{config}:\n  dict   {ours}\n  object {theirs}"


def assert_none(texts):
    failures = [text for text in texts if text]
    assert not failures, "\n".join(failures[:8])


def base_of(cls):
    count = cls.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    return {"model_type": cls.model_type, count: LAYERS, **FIT.get(cls.model_type, {})}


def stated(cls):
    """Yield the keys and values that the dicts of a class state, in addition to its base."""
    fields = {field.name for field in dataclasses.fields(cls)}
    known_keys = (keys.keys_of(cls) | fields) & (VALUES.keys() | COMPUTED.keys())
    for key in sorted(known_keys | {key for key in OF_EVERY_CLASS if key != "layer_types"}):
        if (cls.model_type, key) in REPLACED:
            continue
        values = COMPUTED[key] if key in COMPUTED else [{key: value} for value in VALUES[key]]
        if key == "layer_types" and cls.model_type in BEFORE_RENAMING:
            values = [value for value in values if keys.OLDER_TYPES.isdisjoint(value[key])]
        contexts = BESIDE if key not in OF_EVERY_CLASS or key in ("layer_types", "head_dim") else BESIDE[:1]
        yield from ({**context, **value} for value in values for context in contexts)


@pytest.mark.parametrize("cls", ROTARY, ids=lambda cls: cls.model_type)
def test_the_dict_and_the_object_are_read_alike(cls):
    base = base_of(cls)
    assert isinstance(ropes(base)[0], RoPE | dict) or cls.model_type in ("blt", "mpt", "vjepa2")
    counts = [{"num_hidden_layers": count} for count in (1, 3, 13)]
    assert_none(difference(cls, {**base, **values}) for values in ({}, *stated(cls), *counts))


# Values with which these classes rotate.
ROTATING = {"granitemoehybrid": {"position_embedding_type": "rope"}, "zamba2": {"use_mem_rope": True}}
# Types of layers without attention.
NO_ATTENTION = ("linear_attention", "conv", "mamba", "mamba2", "recurrent", "mlp", "moe")


def unrotated(config_object):
    """Return the layers that rotate nothing, by the lists of the class: types, indices, flags, bases."""
    lists = (getattr(config_object, name, None) for name in keys.PROPERTIES)
    types = next(filter(None, lists), ())
    flags = [getattr(config_object, name, None) or () for name in ("no_rope_layers", "layer_rope_theta")]
    null_types = {name for name, rule in (config_object.rope_parameters or {}).items() if rule is None}
    indices = {index for index, name in enumerate(types) if name in NO_ATTENTION or name in null_types}
    indices |= {index for values in flags for index, value in enumerate(values) if not value}
    return indices | set(getattr(config_object, "cross_attention_layers", None) or ())


def wrong_widths(cls, config):
    """Return how the widths of the layers differ from the class's lists; None if they do not."""
    try:
        config_object = cls.from_dict(copy.deepcopy(config))
    except Exception:  # the class refuses the value, with errors of any kind
        return None
    layers, _ = ropes(config)
    if isinstance(layers, str):
        return None
    layers = (
        layers if isinstance(layers, dict) else dict.fromkeys(range(config_object.num_hidden_layers), layers)
    )
    identities = {index for index, rope in layers.items() if not rope.rotary_dim}
    expected = unrotated(config_object) & layers.keys()
    types = getattr(config_object, "layer_types", None) or ()
    # `nope` has the types whose layers attend without a position.
    nope = convention_of(cls.model_type).nope
    expected |= {index for index in identities if index < len(types) and types[index] in nope}
    return None if identities == expected else f"{config}: {sorted(identities)}, expected {sorted(expected)}"


@pytest.mark.parametrize("cls", BY_LAYER, ids=lambda cls: cls.model_type)
def test_the_widths_of_layers_follow_the_lists_of_the_class(cls):
    base = {**base_of(cls), **ROTATING.get(cls.model_type, {})}
    # OLMo-Hybrid's code takes a null base for no rope, in every layer.
    configs = (values for values in stated(cls) if values.get("rope_theta", 0) is not None)
    assert_none(wrong_widths(cls, {**base, **values}) for values in ({}, *configs))


@pytest.mark.parametrize("cls", ROTARY, ids=lambda cls: cls.model_type)
def test_every_key_has_a_value(cls):
    unknown = keys.keys_of(cls) - VALUES.keys() - COMPUTED.keys() - WITHOUT_EFFECT
    assert not unknown, "give these keys telling values in VALUES, or list them in WITHOUT_EFFECT"


# ---- parts ----

# Model types that a part may state.
OTHERS = (None, "llama", "cohere", "no_such_model")


def parts_of(cls):
    """Yield the key, the name and the class of each part that has a rope."""
    try:
        config_object = cls()
    except Exception:  # the class's own defaults contradict each other
        return
    for key in cls.sub_configs:
        sub_config = getattr(config_object, key, None)
        if sub_config is not None and keys.has_rotation(type(sub_config)):
            yield key, key.removesuffix("_config"), type(sub_config)


@pytest.mark.parametrize("cls", WHOLES, ids=lambda cls: cls.model_type)
def test_the_part_of_the_dict_and_of_the_object_are_read_alike(cls):
    differences = []
    for key, name, part_class in parts_of(cls):
        is_fixed = key.removesuffix("_config") in MODELS.get(cls.model_type, {}).get("fixed", ())
        own_kinds = (part_class.model_type, *([cls.model_type] if is_fixed else []))
        model_types = dict.fromkeys((*OTHERS, *own_kinds, *sorted(keys.model_types_of(cls))))
        cases = [(model_type, values) for model_type in model_types for values in BESIDE]
        cases += [
            (None, values) for values in stated(part_class) if not values.keys() & OF_EVERY_CLASS.keys()
        ]
        for model_type, values in cases:
            content = {**base_of(part_class), **values, "model_type": model_type}
            content = {
                name: value for name, value in content.items() if name != "model_type" or value is not None
            }
            differences.append(difference(cls, {"model_type": cls.model_type, key: content}, name))
    assert_none(differences)


@pytest.mark.parametrize("model_type", sorted(_locate._FLAT))
def test_the_keys_of_the_text_on_the_top_level(model_type):
    cls = CONFIG_MAPPING[model_type]
    for values in ({}, {"rope_theta": 777.5}, {"hidden_size": 1024, "num_attention_heads": 8}, BESIDE[1]):
        assert difference(cls, {"model_type": model_type, **values}) is None


def test_only_these_classes_read_keys_of_their_text():
    """`<key>` is a key that a loop pops from the top level."""
    model_types = {cls.model_type for cls in WHOLES if "<key>" in keys.keys_of(cls)}
    assert model_types | {"dots3_note"} == _locate._FLAT


def test_the_data_file_has_the_defaults_of_transformers():
    assert defaults.text_of() == defaults.WRITTEN.read_text("utf-8")
