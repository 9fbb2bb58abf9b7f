"""Formats of inference engines and other libraries, some with the values in an object of the config.

`formats.toml` has, under `engines`, the keys that recognise each format, and why some are refused.
These configs may have a model_type of Hugging Face, but none of its sizes on the top level.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rope_array._config._conventions import known_convention
from rope_array._config._conventions_unknown import BY_HAND
from rope_array._config._format import Format, format_of, table
from rope_array._config._model_defaults import MODELS
from rope_array._config._values import value_at
from rope_array._errors import ConfigError, short

_SOURCE = "give the config.json of the model's Hugging Face folder"


def read_engine(content: Mapping[str, Any]) -> Format | None:
    """Return the format of an engine's config; None if it is none of them, an error if it states no rope."""
    for row in table("engines").values():
        if all(value_at(content, key) is not None for key in row["keys"]):
            if (reader := row.get("reader")) is None:
                raise ConfigError(f"this is {row['name']}, {row['why']}; {_SOURCE}.")
            return _READERS[reader](content)
    return None


def _of_mlc(content: Mapping[str, Any]) -> Format | None:
    inner = content["model_config"]
    if not isinstance(inner, Mapping):
        return None
    model_type = content.get("model_type")
    if not isinstance(model_type, str) or model_type not in table("mlc_models"):
        raise ConfigError(
            f"this is MLC's mlc-chat-config.json of the model type {short(model_type)}, which is not read; "
            f"{_SOURCE}."
        )
    rule_key = table("mlc_models")[model_type]
    convention = replace(
        known_convention(model_type),
        theta_keys=("position_embedding_base", "rope_theta"),
        rope_types=("default", "longrope" if rule_key == "type" else "llama3"),
        rope_type_aliases={},
        drops=() if rule_key else ("rope_scaling",),
    )
    # 0 is MLC's value for a size or a base that is not stated.
    inner = {key: value for key, value in inner.items() if value != 0 or isinstance(value, bool)}
    rule = inner.get("rope_scaling")
    notes: tuple[str, ...] = ()
    if rule_key and isinstance(rule, Mapping) and rule:
        inner["rope_scaling"] = _rule_of_mlc(rule, rule_key)
        if inner["rope_scaling"] is None:
            notes = (f"rope_scaling is not used: MLC's code of {model_type} reads it with a {rule_key} only",)
    defaults = {
        "alias": {"max_position_embeddings": "context_window_size"},
        "added": MODELS.get(model_type, {}).get("added", {}),
    }
    return Format(
        name="MLC's mlc-chat-config.json",
        convention=convention,
        defaults=defaults,
        model_type=model_type,
        notes=notes,
        content=inner,
    )


def _rule_of_mlc(rule: Mapping[str, Any], rule_key: str) -> Mapping[str, Any] | None:
    """Return the keys of a rope_scaling that MLC reads; None if it reads none."""
    if rule.get(rule_key) is None:
        return None
    if rule_key == "rope_type":
        return {key: value for key, value in rule.items() if key != "type"}
    return {key: rule[key] for key in ("type", "short_factor", "long_factor") if key in rule}


def _of_keras_hub(content: Mapping[str, Any]) -> Format | None:
    packages = (content.get("module"), content.get("registered_name"))
    if not any(isinstance(name, str) and name.startswith(("keras_hub", "keras_nlp")) for name in packages):
        return None
    name = content["class_name"]
    row = table("keras_hub_classes").get(name) if isinstance(name, str) else None
    if row is None:
        is_backbone = isinstance(name, str) and name.endswith("Backbone")
        remedy = _SOURCE if is_backbone else f"give the config.json of a preset's backbone, or {_SOURCE[5:]}"
        raise ConfigError(
            f"this is a config of keras-hub's class {short(name)}, which is not read; {remedy}, or read "
            f"{BY_HAND}."
        )
    return replace(format_of(row), model_type=name, content=content["config"])


def _of_engine(content: Mapping[str, Any]) -> Format | None:
    return _of_tensorrt(content["pretrained_config"])


def _of_tensorrt(content: Mapping[str, Any]) -> Format | None:
    if not isinstance(content, Mapping) or "architectures" in content:  # the latter is Hugging Face's
        return None
    embedding = content.get("position_embedding_type")
    pairing = table("tensorrt_pairings").get(embedding) if isinstance(embedding, str) else None
    if pairing is None or content.get("kv_lora_rank"):
        why = "latent attention" if pairing else f"the position_embedding_type {short(embedding)}"
        raise ConfigError(f"this is TensorRT-LLM's config.json with {why}, which is not read; {_SOURCE}.")
    architecture = content.get("architecture")
    is_gemma3 = isinstance(architecture, str) and architecture.startswith("Gemma3")
    tensorrt = format_of("tensorrt_gemma3" if is_gemma3 else "tensorrt")
    convention = replace(tensorrt.convention, pairing=pairing)
    return replace(tensorrt, convention=convention, model_type=architecture, content=content)


_READERS = {
    "mlc": _of_mlc,
    "keras_hub": _of_keras_hub,
    "tensorrt": _of_tensorrt,
    "tensorrt_engine": _of_engine,
}
