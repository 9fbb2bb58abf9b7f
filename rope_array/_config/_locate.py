"""Find the part of a config to read, and the convention of its model's code."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from rope_array._config._conventions import CONVENTIONS, DEFAULTS, REMOTE, changed, convention_of
from rope_array._config._conventions_unknown import BY_HAND, generic
from rope_array._config._format import Format
from rope_array._config._formats import recognise
from rope_array._config._model_defaults import MODELS, SHARED, WITHOUT
from rope_array._config._part import ConfigPart, listed, quoted
from rope_array._config._tables import KEYS
from rope_array._errors import ConfigError

MODELS = {**MODELS, **{key: {**defaults, **MODELS.get(key, {})} for key, defaults in DEFAULTS.items()}}

# Model types of published configs that transformers has under another name.
OTHER_NAMES = {"ernie4_5_moe_vl": "ernie4_5_vl_moe", "exaone4_5_text": "exaone4", "kimi_k2": "deepseek_v3"}

# Models whose class reads the text's keys from the top level, if the config states no text part.
_FLAT = frozenset(("dots3_note", "fuyu", "hunyuan_vl", "paddleocr_vl", "qwen2_5_vl", "qwen2_vl"))

_ON_THE_TOP_LEVEL = (
    "the keys of the text are read from the top level; transformers 5.24 does not read them there, and takes "
    "the defaults of its class"
)

_DEEPEST = 4  # parts within parts
_ROTARY_KEYS = (
    *("rope_parameters", "rope_scaling", "rotary_dim", "qk_rope_head_dim"),
    *KEYS["bases"],
    *KEYS["shares"],
)


def locate(content: Mapping[str, Any], class_name: str | None, requested: str | None) -> ConfigPart:
    """Return the requested part; by default the text part, or the whole."""
    if (config_format := recognise(content)) is not None:
        return _part_in_format(config_format, content, requested)
    model_type = _model_type_of(content)
    root = OTHER_NAMES.get(model_type or "", model_type)
    # Some parts have the model type of the whole config: the class of a config object distinguishes them.
    key = SHARED.get(class_name or "", root)
    config_part = ConfigPart(
        content=content,
        root=root,
        model_type=model_type,
        key=key,
        defaults=MODELS.get(key or "", {}),
        convention=convention_of(key),
    )
    if requested is None:
        config_part = _text_part(config_part)
        return replace(config_part, inferred={"part": config_part.path} if config_part.path else {})
    names = _names_on_path(requested)
    if requested == "text" and not _part_names(config_part):
        return config_part
    config_part = _holder_of(config_part, names[0])
    for name in names:
        config_part = _descend(config_part, name)
    return _text_part(config_part)


def _part_in_format(config_format: Format, content: Mapping[str, Any], requested: Any) -> ConfigPart:
    """Return the requested part of a config in another format than Hugging Face's."""
    path, names = "", (*config_format.part_formats, *config_format.main)
    if requested is not None and requested not in names:
        name = config_format.model_type or config_format.name
        raise _no_such_part(name, requested, names)
    if requested in config_format.part_formats:
        path, config_format = requested, config_format.part_formats[requested]
    if config_format.content is not None:
        content = config_format.content
    if not isinstance(content, Mapping):  # of keras-hub
        raise ConfigError(f"config is {quoted(content)}; it must be an object.")
    return ConfigPart(
        content=content,
        path=path,
        model_type=config_format.model_type,
        defaults=config_format.defaults,
        convention=config_format.convention,
        inferred={"format": config_format.name},
        notes=config_format.notes,
        foreign=True,
    )


def _no_such_part(name: str, requested: Any, names: Sequence[str]) -> ConfigError:
    remedy = f"give one of: {listed(names)}" if names else "the config is of one model: leave part out"
    return ConfigError(f"{name} has no part {quoted(requested)}; {remedy}.")


def _holder_of(whole: ConfigPart, name: str) -> ConfigPart:
    """Return the whole, or the main part within it, that has a text, vision or audio part, or an indexer."""
    config_part = whole
    if name not in ("text", "vision", "audio", "indexer"):
        return whole
    for _ in range(_DEEPEST):
        names = _part_names(config_part)
        if name in names or _is_indexer(config_part, name):
            return config_part
        if (main := next((text for text in _TEXT_PARTS if text in names), None)) is None:
            break
        config_part = _descend(config_part, main)
    return whole


def _is_indexer(config_part: ConfigPart, name: str) -> bool:
    """Return whether a name is the indexer of sparse attention, which has no config of its own."""
    return name == "indexer" and f"{config_part.key}:{name}" in CONVENTIONS


def _names_on_path(path: Any) -> list[str]:
    if not isinstance(path, str) or not path or len(path) > 200:
        raise ConfigError(f"part is {quoted(path)}; give a name such as 'text' or 'thinker.text'.")
    return [name.removesuffix("_config") for name in path.split(".")]


def _model_type_of(content: Mapping[str, Any]) -> str | None:
    model_type = content.get("model_type")
    if model_type is None or model_type == "":
        return None
    if not isinstance(model_type, str) or len(model_type) > 200:
        raise ConfigError(f"model_type is {quoted(model_type)}; it must be a name.")
    return model_type


def _descend(parent: ConfigPart, name: str) -> ConfigPart:
    path = f"{parent.path}.{name}" if parent.path else name
    if _is_indexer(parent, name):
        key = f"{parent.key}:{name}"
        return replace(parent, path=path, key=key, convention=convention_of(key))
    # Older configs name the text part otherwise.
    older_keys = ("language_config",) if name == "text" and "language" not in parent.parts else ()
    keys = (f"{name}_config", name, *older_keys)
    values = {key: parent.content[key] for key in keys if parent.content.get(key) is not None}
    content = next((value for value in values.values() if isinstance(value, Mapping)), None)
    if content is None and keys[0] in values:
        raise ConfigError(f"{keys[0]} is {quoted(values[keys[0]])}; it must be an object.")
    of_root = parent.defaults.get("of_parts", {}).get(name, {})
    is_around = not parent.known and not name.startswith(_OTHER_PARTS)
    above = {**parent.above, **parent.content} if is_around else {}
    if content is not None:
        inner = _make_part(parent, name, path, content)
        merged = of_root if name in parent.defaults.get("merged", ()) else {}
        return replace(inner, above=above, defaults={**inner.defaults, **merged})
    if name == "indexer":
        known = sorted(key.partition(":")[0] for key in CONVENTIONS if key.endswith(":indexer"))
        raise ConfigError(
            f"{parent.name} has no part 'indexer': the indexers of {listed(known)} are known here; for "
            f"another read {BY_HAND}."
        )
    if name not in parent.parts:
        raise _no_such_part(parent.name, name, _part_names(parent))
    # Older configs of several parts state the text's keys on the top level.
    if name == "text" and ("hidden_size" in parent.content or parent.key in _FLAT):
        inner = _make_part(parent, name, path, {**parent.content, "model_type": None})
        is_read = parent.key in _FLAT or not inner.in_transformers
        return replace(inner, above=parent.above, notes=() if is_read else (_ON_THE_TOP_LEVEL,))
    inner = _make_part(parent, name, path, {})
    return replace(inner, above=above, defaults={**inner.defaults, **of_root})


def _make_part(parent: ConfigPart, name: str, path: str, content: Mapping[str, Any]) -> ConfigPart:
    stated_type, class_key = _model_type_of(content), parent.parts.get(name)
    by_path = f"{parent.root}:{path}"
    type_key = OTHER_NAMES.get(stated_type or "", stated_type)
    # The key is the part's model type; if that is missing, unknown or the root's, or has no effect on the
    # class, "root:path" or the class's.
    is_of_class = type_key in (None, parent.root) or name in parent.defaults.get("fixed", ())
    key = class_key if is_of_class else type_key
    is_overridden = by_path in REMOTE or type_key == class_key or convention_of(type_key) is None
    if by_path in CONVENTIONS and (is_of_class or is_overridden):
        key = by_path
    defaults = MODELS.get(key or "") or MODELS.get((class_key if key == by_path else None) or "", {})
    type_of_class = key if key and ":" not in key else parent.root
    return ConfigPart(
        content=content,
        path=path,
        root=parent.root,
        model_type=stated_type or type_of_class,
        key=key,
        defaults=defaults,
        convention=convention_of(key),
    )


def _part_names(config_part: ConfigPart) -> list[str]:
    stated_names = (
        k.removesuffix("_config")
        for k, v in config_part.content.items()
        if isinstance(k, str)
        and isinstance(v, Mapping)
        and (k.endswith("_config") or _is_model(config_part, v))
    )
    return list(dict.fromkeys([*config_part.parts, *islice(stated_names, 20)]))


_TEXT_PARTS = ("text", "llm", "language", "thinker", "decoder", "backbone", "vlm")
_NO_MODELS = ("quantization", "per_layer")
_OTHER_PARTS = ("vision", "audio", "speech", *_NO_MODELS)


def _is_model(config_part: ConfigPart, value: Mapping[str, Any]) -> bool:
    """Return whether an object of an unknown model is a config of its own, which names its model type."""
    is_empty = not config_part.known and not config_part.parts and not _states_key(config_part.content)
    return is_empty and isinstance(value.get("model_type"), str)


def _states_key(content: Mapping[str, Any]) -> bool:
    return any(content.get(key) is not None for key in _ROTARY_KEYS)


def _text_part(config_part: ConfigPart) -> ConfigPart:
    """Return the part that is read by default: the whole if it has a rope."""
    for _ in range(_DEEPEST):
        names = [name for name in _part_names(config_part) if name not in _NO_MODELS]
        if not names or _has_rope(config_part):
            break
        config_part = _descend(config_part, _main_of(config_part, names))
    return config_part


def _has_rope(config_part: ConfigPart) -> bool:
    if config_part.known:
        return True
    return _states_key(config_part.content) and not set(_TEXT_PARTS) & set(_part_names(config_part))


def _main_of(config_part: ConfigPart, names: list[str]) -> str:
    for name in _TEXT_PARTS:
        if name in names:
            return name
    candidates = [name for name in names if not name.startswith(_OTHER_PARTS)]
    if len(candidates) > 1:
        candidates = [name for name in candidates if f"{name}_config" in config_part.content] or candidates
    if len(candidates) == 1 or len(names) == 1:
        return (candidates or names)[0]
    raise ConfigError(f"{config_part.name} has no text part, but {listed(names)}; choose one with part=.")


# The convention


def variant_of(config_part: ConfigPart) -> ConfigPart:
    """Return a part with the convention of its model, where a model type has several, and in newer values."""
    convention = config_part.convention
    if convention is None or convention.variant is None:
        return config_part
    changes = dict(convention.variant(config_part.content))
    converted = changes.pop("converted", {})
    return replace(config_part, converted=converted, convention=changed(convention, changes))


def with_convention(config_part: ConfigPart) -> ConfigPart:
    """Return a part with a convention; for an unknown model, the most common one."""
    if (convention := config_part.convention) is not None:
        if convention.refusal:
            raise ConfigError(f"{config_part.name}: {convention.refusal}. RoPE has no field for it.")
        return config_part
    _check_states_a_rope(config_part)
    convention = generic(config_part.name, config_part.content)
    problem = (
        "is missing" if config_part.model_type is None else f"{quoted(config_part.model_type)} is unknown"
    )
    text = f"model_type {problem}: read as most models are, with {convention.pairing} pairs"
    note = (
        f"the convention of {config_part.name} is a guess: compare pairing, rotary_dim, base, rule and axes "
        "with the model's code, or let rope_array.diagnose find them ('half' or 'interleaved')"
    )
    return replace(
        config_part,
        convention=convention,
        inferred={**config_part.inferred, "convention": text},
        notes=(*config_part.notes, note),
    )


def _check_states_a_rope(config_part: ConfigPart) -> None:
    """Refuse a part of an unknown model that states no rope, and one of a model without a rope."""
    stated_keys = [key for key in _ROTARY_KEYS if config_part.content.get(key) is not None]
    if stated_keys and config_part.key in WITHOUT:
        raise ConfigError(
            f"{config_part.name} has no rotary embedding in transformers, and {listed(stated_keys)} no "
            "effect. If another code rotates, state its rope with RoPE(...)."
        )
    if not stated_keys:
        objects = ((k, v) for k, v in config_part.content.items() if isinstance(v, Mapping))
        inner = next((k for k, v in objects if isinstance(k, str) and _states_key(v)), None)
        if inner is not None:
            raise ConfigError(
                f"{config_part.name} is of no known model with a rotary embedding, and its object "
                f"{quoted(inner)} names no model: give that object as the config, with its model_type, or "
                f"read {BY_HAND}."
            )
        remedy = "state its model_type, or read" if config_part.model_type is None else "read"
        raise ConfigError(
            f"{config_part.name} is of no known model with a rotary embedding, and nothing in the config "
            f"tells how it rotates; {remedy} {BY_HAND}."
        )
