"""Model configs in formats that are not Hugging Face's: recognise one, and return its convention.

A format is recognised by keys that no config of Hugging Face has together, and never if one of Hugging Face's
own keys is stated. `formats.toml` has the rows; `_gguf` and `_diffusers` have the formats of those libraries.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rope_array._config._conventions import changed
from rope_array._config._conventions_unknown import BY_HAND
from rope_array._config._format import Format, Metadata, format_of, note, table
from rope_array._config._values import value_at
from rope_array._config._variants import first_of
from rope_array._errors import ConfigError, short


def recognise(content: Mapping[str, Any]) -> Format | None:
    """Return the format of a config; None for a config of Hugging Face, and for one of no known format.

    A config with a model_type and sizes of Hugging Face reads no table of formats.
    """
    if isinstance(content, Metadata):
        from rope_array._config._gguf import read_gguf

        return read_gguf(content)
    _refuse_nameless(content)
    if _may_be_of_an_engine(content):
        from rope_array._config._formats_of_engines import read_engine

        if (engine_format := read_engine(content)) is not None:
            return engine_format
    if _has_keys_of_others(content):
        return _of_named(content)
    if content.get("model_type") not in (None, "transformer", "mamba"):  # the latter two are Mistral's
        return None
    if _has_keys_of_hugging_face(content):
        return None
    if isinstance(content.get("_class_name"), str):
        from rope_array._config._diffusers import read_diffusers

        return read_diffusers(content)
    return _by_keys(content)


def _may_be_of_an_engine(content: Mapping[str, Any]) -> bool:
    """Return whether a config lacks the sizes of Hugging Face's, or has a key of TensorRT-LLM's."""
    return "architecture" in content or not any(key in content for key in ("hidden_size", "architectures"))


def _refuse_nameless(content: Mapping[str, Any]) -> None:
    """Refuse a GGUF file's keys, and the `config` attribute of a model, which does not name its class."""
    keys = content.get("model_info", content)  # Ollama's name
    if isinstance(keys, Mapping) and "general.architecture" in keys:
        raise ConfigError(
            "these are the keys of a GGUF file, in a dict or in Ollama's model_info, without the file's "
            "tensors; give the path of the GGUF file, or the config.json of the model's Hugging Face folder."
        )
    # Keys that diffusers adds to the config of a model.
    if content.get("_class_name") is None and (
        "_use_default_values" in content or "_diffusers_version" in content
    ):
        raise ConfigError(
            "this is the config attribute of a model of diffusers, which does not name the model's class; "
            "give the model itself, or its config.json."
        )


# Configs with a model_type of Hugging Face, and the keys of another format


def _has_keys_of_others(content: Mapping[str, Any]) -> bool:
    """Return whether a config has a model_type of Hugging Face, but the makers' names of the sizes."""
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "text_config")
    return (
        _has(content, "dim", "n_layers", "n_heads")
        and content.get("model_type") in table("model_types")["also_elsewhere"]
        and not any(content.get(key) is not None for key in sizes)
    )


def _has_keys_of_hugging_face(content: Mapping[str, Any]) -> bool:
    return any(key in content for key in table("keys")["hugging_face"])


def _of_named(content: Mapping[str, Any]) -> Format:
    """Return the format of a config that `_has_keys_of_others`, or refuse it."""
    name = content["model_type"]
    default = format_of("llama") if name == "llama" else None
    config_format = None if _has_keys_of_hugging_face(content) else _by_keys(content) or default
    if config_format is None:
        raise ConfigError(
            f"model_type is {short(name)}, but the sizes have the names of another format (dim, n_layers, "
            "n_heads), and none has Hugging Face's, such as hidden_size; give the config.json of the model's "
            f"Hugging Face folder, or read {BY_HAND}."
        )
    if config_format.name in (format_of("mistral").name, format_of("llama").name) and name in table(
        "mlx_bases"
    ):
        config_format = _of_mlx(config_format, name, content.get("rope_theta") is None)
    keys_of = config_format.name
    text = f"model_type is {short(name)}, but the keys are of {keys_of}: it has the pairs of its weights"
    return replace(config_format, model_type=name, notes=(*config_format.notes, text))


def _of_mlx(maker: Format, name: str, no_base: bool) -> Format:
    """Return the format of mlx-examples, from the format of the model's maker."""
    width = maker.convention.width
    if maker.name == format_of("llama").name:
        width = ("head_dim", *width)
    convention = replace(maker.convention, width=width, pairing_flag="rope_traditional")
    notes = maker.notes
    if no_base:
        convention = replace(convention, theta=table("mlx_bases")[name])
        of_makers = {note(key) for key in ("old_base", "new_base", "no_base")}
        notes = tuple(text for text in notes if text not in of_makers)
        default = f"{convention.theta:.0f} is the default of mlx-examples"
        notes = (*notes, f"rope_theta is not stated: {default}")
    return replace(maker, name="mlx-examples' config.json", convention=convention, notes=notes)


def _has(content: Mapping[str, Any], *keys: str) -> bool:
    return all(content.get(key) is not None for key in keys)


# Formats of the makers of models


def _by_keys(content: Mapping[str, Any]) -> Format | None:
    """Return the format of the first maker whose keys a config has; None if it is of none."""
    for name, row in table("makers").items():
        if _has(content, *row["keys"]) and _sections_agree(content, row):
            if "why" in row:
                raise ConfigError(f"this is {row['why']}.")
            return _of_executorch(content, row) if name == "executorch" else _of_maker(content, row, name)
    return None


def _sections_agree(content: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Return whether a config has a key of each section in `some`, and none of those in `none`."""
    is_of_type = row.get("model_type") in (None, content.get("model_type"))
    none = any(_has_one(content, section) for section in row.get("none", ()))
    return is_of_type and not none and all(_has_one(content, section) for section in row.get("some", ()))


def _has_one(content: Mapping[str, Any], section: str) -> bool:
    return any(content.get(key) is not None for key in table("keys")[section])


def _of_maker(content: Mapping[str, Any], row: Mapping[str, Any], name: str) -> Format:
    """Return a format by its name, changed by the first case of each group that holds."""
    maker = format_of(name)
    for cases in row.get("cases", ()):
        maker = _changed(maker, content, first_of(content, cases))
    return maker


def _changed(maker: Format, content: Mapping[str, Any], changes: Mapping[str, Any]) -> Format:
    """Return a format with the changes of a case: notes, parts, and fields of its convention."""
    fields = dict(changes)
    notes = map(note, fields.pop("notes", ()))
    parts = {
        part: replace(
            format_of(row["row"]), content=value_at(content, row["place"]) if "place" in row else None
        )
        for part, row in fields.pop("parts", {}).items()
    }
    convention = changed(maker.convention, fields)
    return replace(
        maker, convention=convention, notes=(*maker.notes, *notes), part_formats=parts or maker.part_formats
    )


def _of_executorch(content: Mapping[str, Any], row: Mapping[str, Any]) -> Format:
    half = content.get("use_hf_rope")
    if half not in (None, False, True):
        raise ConfigError(f"use_hf_rope is {short(half)}; it must be true or false.")
    executorch = _of_maker(content, row, "executorch_half" if half else "executorch")
    unread, default = ("use_scaled_rope", False) if half else ("partial_rotary_factor", 1)
    if content.get(unread, default) in (None, default):
        return executorch
    text = f"{unread} is not used: ExecuTorch's code does not read it where use_hf_rope is {half}"
    return replace(executorch, notes=(text, *executorch.notes))
