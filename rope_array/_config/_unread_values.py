"""Refuse defaults of a class where the config states sizes or a base that the class does not read."""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from rope_array._config._convention import Convention
from rope_array._config._document import Document
from rope_array._config._model_defaults import MODELS
from rope_array._config._part import ConfigPart, listed, quoted
from rope_array._config._tables import KEYS
from rope_array._errors import ConfigError

_SIZES = frozenset(
    (*(factor for key in KEYS["widths"] for factor in key.split("/")), *KEYS["sizes_of_others"])
)
_OTHERS = frozenset(
    (*KEYS["sizes_of_others"], "n_embd", "n_head", "n_heads", "d_model", "d_head", "head_size")
)
_BASES = frozenset((*KEYS["bases"], *KEYS["bases_of_others"]))
# Objects of other parts of a model, of its training and of its files.
_OTHER_OBJECTS = re.compile(
    r"vision|visual|image|video|audio|speech|quanti|compress|per_layer|lora|peft|adapter|projector|perceiver"
    r"|resampler|connector|tokenizer|generation|task_specific|label|mtp|draft|medusa|eagle|moe|mamba|ssm|linear"
)
_MAIN_OBJECTS = ("model", "pretrained", "text", "llm", "language", "backbone")
_MOST_PLACES, _MOST_OBJECTS, _MOST_KEYS = 24, 12, 96


def check_unread_values(
    config_part: ConfigPart, convention: Convention, asked: "set[str]", document: Document
) -> None:
    """Refuse a default width, or a default base, of a config that states one where no step has read it."""
    if config_part.foreign or not config_part.known:
        return
    is_default_width = _is_default_width(config_part, convention)
    is_default_base = any(key.endswith("rope_theta") for key in config_part.inferred)
    check = (config_part.path, is_default_width, is_default_base)
    if check in document.checked:  # for another layer
        return
    names = (_SIZES if is_default_width else frozenset()) | (_BASES if is_default_base else frozenset())
    contents = [config_part.content]
    if config_part.path and config_part.root in MODELS:
        contents.append(document.content)
    for content in contents:
        for place, keys in islice(_unread_places(config_part, content, asked), _MOST_PLACES):
            if found := [key for key in keys if key in names]:
                raise ConfigError(
                    f"{config_part.name}: {place} states {listed(found)}, which the model's class does not "
                    "read: its defaults would take their place. This is no config of Hugging Face's class: "
                    "give the config.json of the model's Hugging Face folder, or state its rope: RoPE(...)."
                )
    document.checked.add(check)


def _is_default_width(config_part: ConfigPart, convention: Convention) -> bool:
    """Return whether a size of the head is a default of the class."""
    factors = {factor.rpartition("*")[2] for key in convention.width for factor in key.split("/")}
    return bool(factors & config_part.inferred.keys())


def _unread_places(
    config_part: ConfigPart, content: Mapping[str, Any], asked: "set[str]"
) -> Iterator[tuple[str, list[str]]]:
    """Yield the places of keys that no step has read, with the keys: the config itself, and its objects."""
    read = {*asked, *config_part.defaults, *config_part.defaults.get("alias", ())}
    if content is config_part.content:
        yield (
            "the config",
            [k for k, v in content.items() if _is_number(v) and k in _OTHERS and k not in read],
        )
    outer = {name.partition(".")[0] for name in asked if "." in name}
    parts = {*config_part.parts, *MODELS.get(config_part.root or "", {}).get("parts", ())}
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Mapping) or key in outer:
            continue
        name = key.removesuffix("_config")
        is_of_class = name in parts or key in ("rope_parameters", "rope_scaling")
        is_other = _OTHER_OBJECTS.search(key) or (parts and name != key and name not in _MAIN_OBJECTS)
        if not is_of_class and not is_other:
            yield f"its object {quoted(key)}", list(_keys_of(value))


def _keys_of(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of numbers in an object and in the objects within it."""
    objects = [value]
    for outer in objects:
        for key, inner in islice(outer.items(), _MOST_KEYS):
            if isinstance(inner, Mapping):
                objects += [inner] * (len(objects) < _MOST_OBJECTS)
            elif isinstance(key, str) and _is_number(inner):
                yield key


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
