"""Write rope_array/_config/model_defaults.json: default values of transformers' config classes.

    PYTHONPATH=. python docs/_model_defaults.py

A config.json may leave out every value that equals its class's default, so a reader needs the defaults: the
widths, the base, the rotary parameters, the layer types and the parts of each model type with a rotary
embedding. The values are plain numbers, names and dicts, read from instances of the classes.
"""

import dataclasses
import importlib
import inspect
import itertools
import json
import logging
import pathlib
import re
import warnings
from typing import Any

import transformers
from transformers import PreTrainedConfig

from rope_array._config._conventions import CONVENTIONS, REMOTE

WRITTEN = pathlib.Path(__file__).parents[1] / "rope_array" / "_config" / "model_defaults.json"
MODELS = pathlib.Path(transformers.__file__).parent / "models"
KEYS = re.compile(
    r"^(head_dim|hidden_size|hidden_dim|num_attention_heads|num_hidden_layers|max_position_embeddings|d_model"
    r"|n_embd|n_head|n_heads|num_heads|embed_dim|max_seq_len|n_positions|model_max_length|projection_dim"
    r"|index_head_dim|original_max_position_embeddings|\w*rope\w*|rotary_\w+|partial_rotary_factor|kv_channels|alibi"
    r"|attention_head_dim|global_head_dim|position_embeddings?_type|use_rotary_embedding|sliding_window"
    r"|(encoder|decoder)_num_attention_heads|speech_encoder_attention_heads|memory_attention_\w+"
    r"|num_spatial_rope_pairs_per_axis|num_uid_rope_pairs)$"
)
ELSEWHERE = {"rope_parameters", "rope_scaling", "no_rope_layers"}
CANONICAL = ("head_dim", "hidden_size", "num_attention_heads", "max_position_embeddings", "layer_types")
# A modeling file without these words rotates nothing.
ROTATES = re.compile(r"rotat|rope\b|_rope|rope_|freqs_cis|inv_freq", re.IGNORECASE)
# Stated parameters, and older keys that a class may derive parameters from; no value is a class's default.
PROBE = {"rope_type": "default", "rope_theta": 12345.0}
OLDER = {
    "rope_theta": 777.5,
    "rotary_emb_base": 777.5,
    "partial_rotary_factor": 0.375,
    "rotary_pct": 0.375,
    "max_position_embeddings": 4099,
}
# Model types with a convention that follows the code of transformers.
OURS = CONVENTIONS.keys() - REMOTE.keys()


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    WRITTEN.write_text(text_of(), encoding="utf-8")


def text_of() -> str:
    """Return the file's text: one line for each model, then the names of models without rotation."""
    classes = _classes()
    names = _names(classes)
    entries = _pruned({names[cls]: _entry(cls, names) for cls in classes})
    shared = {key: cls.__name__ for cls, key in names.items() if ":" in key and key in entries}
    rows = {key: entry | ({"class": shared[key]} if key in shared else {}) for key, entry in entries.items()}
    without = sorted(_without_rotation(classes) - entries.keys())
    letters = itertools.groupby(without, key=lambda name: name[0])
    models = ",\n".join(f"{json.dumps(key)}: {json.dumps(row)}" for key, row in sorted(rows.items()))
    unrotated = ",\n".join(json.dumps(list(group))[1:-1] for _, group in letters)
    head = f'"transformers": {json.dumps(transformers.__version__)}'
    return f'{{{head},\n"models": {{\n{models}}},\n"without": [\n{unrotated}]}}\n'


def _without_rotation(classes: list[Any]) -> set[str]:
    """Return the model types whose modeling files rotate nothing."""
    model_types = set()
    for cls in classes:
        files = list((MODELS / cls.__module__.split(".")[2]).glob("modeling_*.py"))
        if cls.model_type and files and not any(ROTATES.search(f.read_text(encoding="utf-8")) for f in files):
            model_types.add(cls.model_type)
    return model_types


def _classes() -> list[Any]:
    classes: dict[Any, None] = {}
    for path in sorted(MODELS.glob("*/configuration_*.py")):
        module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        for value in vars(module).values():
            if inspect.isclass(value) and issubclass(value, PreTrainedConfig):
                classes |= {value: None} if value.__module__ == module.__name__ else {}
    return [cls for cls in classes if not _is_another_name(cls, classes)]


def _is_another_name(cls: Any, classes: dict[Any, None]) -> bool:
    """Return whether a class is a deprecated name: a subclass of a class of the same model type."""
    return any(base in classes and base.model_type == cls.model_type for base in cls.__mro__[1:])


def _names(classes: list[Any]) -> dict[Any, str]:
    """Name each class by its model type; by its root's type and its path if classes share the model type."""
    owners: dict[str, list[Any]] = {}
    for cls in classes:
        owners.setdefault(cls.model_type, []).append(cls)
    paths = {sub: f"{root.model_type}:{path}" for root in classes for path, sub in _paths(root)}
    names = {}
    for model_type, sharing in owners.items():
        # The bare model type is the name of the root, the class that is no part of another.
        roots = [cls for cls in sharing if cls not in paths] or sharing[:1]
        for cls in sharing:
            bare = model_type and cls is roots[0]
            names[cls] = model_type if bare else paths.get(cls, f"{model_type}:{cls.__name__}")
    return names


def _paths(root: Any) -> list[tuple[str, Any]]:
    """Return the path and the class of each part of a default config, and of the parts' parts."""
    paths = []
    for name, sub in _parts(root).items():
        paths.append((name, type(sub)))
        paths += [(f"{name}.{path}", sub) for path, sub in _paths(type(sub))]
    return paths


def _parts(cls: Any) -> dict[str, Any]:
    config = _make(cls)
    subs = {key: getattr(config, key, None) for key in getattr(cls, "sub_configs", None) or {}}
    return {k.removesuffix("_config"): v for k, v in subs.items() if isinstance(v, PreTrainedConfig)}


def _make(cls: Any, **values: Any) -> Any:
    try:
        return cls(**values)
    except Exception:  # the class needs values without a default, or refuses the probe
        return None


def _entry(cls: Any, names: dict[Any, str]) -> dict[str, Any]:
    entry: dict[str, Any] = dict(sorted(_fields(cls).items()))
    mapped = {k: v for k, v in (cls.attribute_map or {}).items() if k in CANONICAL or v in CANONICAL}
    subs = _parts(cls)
    entry |= {"alias": mapped} if mapped else {}
    entry |= {"parts": {k: names.get(type(v), type(v).model_type) for k, v in subs.items()}} if subs else {}
    fixed = tuple(key for key, sub in subs.items() if _is_fixed(cls, key, type(sub)))
    entry |= {"fixed": fixed} if fixed else {}
    specs = {key.removesuffix("_config"): spec.init_kwargs for key, spec in cls.sub_configs_defaults.items()}
    of_parts = {k: values for k, v in subs.items() if (values := _of_part(v, specs.get(k, {})))}
    entry |= {"of_parts": of_parts} if of_parts else {}
    merged = tuple(key for key in of_parts if _is_merged(cls, key, subs[key], of_parts[key]))
    entry |= {"merged": merged} if merged else {}
    config = _make(cls)
    return entry if config is None else entry | _rotary(cls, config) | _layers(config)


def _with_part(cls: Any, name: str, **fields: Any) -> Any:
    """Return the part of a config that states some of its values."""
    key = next(key for key in cls.sub_configs if key.removesuffix("_config") == name)
    return getattr(_make(cls, **{key: fields}), key, None)


def _is_fixed(cls: Any, name: str, sub: Any) -> bool:
    """Return whether a part has its class whatever model type it states."""
    model_types = ("llama", "cohere") if sub.model_type != "llama" else ("cohere", "phi")
    return all(type(_with_part(cls, name, model_type=model_type)) is sub for model_type in model_types)


def _is_merged(cls: Any, name: str, sub: Any, values: dict[str, Any]) -> bool:
    """Return whether a part keeps the root's values, also if it states other keys."""
    config = _with_part(cls, name, model_type=sub.model_type, initializer_range=0.03)
    if config is None or type(config) is not type(sub):
        return False
    stated, defaults = _numbers(config.to_dict()), _numbers(type(sub)().to_dict())
    return all(stated.get(k) == v for k, v in values.items()) and any(
        defaults.get(k) != v for k, v in values.items()
    )


def _fields(cls: Any) -> dict[str, Any]:
    """Return the plain defaults of fields that may change a rotary embedding."""
    return {
        f.name: f.default
        for f in dataclasses.fields(cls)
        if KEYS.match(f.name) and f.name not in ELSEWHERE and isinstance(f.default, (int, float, str))
    }


def _of_part(sub: Any, explicit: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a part that the root sets: stated in its code, or other than its class's."""
    default = _make(type(sub))
    stated, defaults = sub.to_dict(), {} if default is None else default.to_dict()
    wanted = {k: v for k, v in stated.items() if KEYS.match(k) or k == "rope_parameters"}
    implied = {k: v for k, v in defaults.items() if k not in explicit}
    return {
        k: _numbers(v) for k, v in sorted(wanted.items()) if default and v is not None and v != implied.get(k)
    }


def _rotary(cls: Any, config: Any) -> dict[str, Any]:
    """Return the rotary parameters of the default config, and additions of the class to stated parameters."""
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict) or not parameters:
        return {}
    entry: dict[str, Any] = {"rotary": True}
    theta = getattr(cls, "default_theta", 10000.0)
    if not isinstance(theta, dict):
        entry["default_theta"] = float(theta)
    rule = _without_derived(cls, _numbers(parameters))
    if set(rule) - {"rope_type"} and rule != {"rope_type": "default", "rope_theta": theta}:
        entry["rope_parameters"] = rule
    if labels := getattr(cls, "_rope_type_labels", None):
        entry["labels"] = tuple(labels)
    added = getattr(_make(cls, rope_parameters=dict(PROBE)), "rope_parameters", None) or {}
    extra = {k: v for k, v in added.items() if k not in PROBE and not isinstance(v, dict) and k != "type"}
    return entry | ({"added": _numbers(extra)} if extra else {})


def _without_derived(cls: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """Leave out parameters that a class derives from its other keys: the reader derives them again."""
    probes = [getattr(_make(cls, **{key: value}), "rope_parameters", None) for key, value in OLDER.items()]
    dicts = [probe for probe in probes if isinstance(probe, dict)]
    kept: dict[str, Any] = {}
    for key, value in parameters.items():
        now = [probe[key] for probe in dicts if key in probe]
        if isinstance(value, dict):
            kept[key] = {k: v for k, v in value.items() if all((o or {}).get(k, v) == v for o in now)}
        elif all(v == value for v in now):
            kept[key] = value
    return kept


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _numbers(v) for k, v in sorted(value.items())}
    return [_numbers(v) for v in value] if isinstance(value, (list, tuple)) else value


def _layers(config: Any) -> dict[str, Any]:
    """Return the layer types as their shortest run that repeats; the last layer may break it."""
    types = getattr(config, "layer_types", None)
    if not isinstance(types, (list, tuple)) or not types:
        return {}
    for period in range(1, len(types)):
        if all(types[i] == types[i % period] for i in range(len(types) - 1)):
            return {"layer_types": tuple(types[:period])}
    return {"layer_types": tuple(types)}


def _pruned(entries: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Keep entries with a rotary embedding, or with parts that have a rotary embedding."""
    wanted = {key for key, entry in entries.items() if entry.get("rotary")} | OURS
    while True:
        leading = {k for k, e in entries.items() if wanted.intersection(e.get("parts", {}).values())}
        if leading <= wanted:
            break
        wanted |= leading
    kept = {key: dict(entry) for key, entry in entries.items() if key in wanted}
    for key, entry in kept.items():
        for name in ("parts", "of_parts"):
            of = {k: v for k, v in entry.pop(name, {}).items() if entries[key]["parts"][k] in wanted}
            entry |= {name: of} if of else {}
        for name in ("fixed", "merged"):
            names = tuple(k for k in entry.pop(name, ()) if k in entry.get("parts", {}))
            entry |= {name: names} if names else {}
        if not entry.get("rotary") and key not in OURS:
            kept[key] = {
                name: entry[name] for name in ("parts", "fixed", "of_parts", "merged") if name in entry
            }
    return kept


if __name__ == "__main__":
    main()
