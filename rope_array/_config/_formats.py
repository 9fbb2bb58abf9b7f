"""Model configs in formats that are not Hugging Face's: recognise one, and return its convention.

A format is recognised by keys that no config of Hugging Face has together, and never if one of Hugging Face's
own keys is stated. `formats.toml` has the rows; `_gguf` and `_diffusers` have the formats of those libraries.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rope_array._config._conventions_unknown import BY_HAND
from rope_array._config._format import Format, Metadata, format_of, note, table
from rope_array._config._values import value_at
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


def _by_keys(content: Mapping[str, Any]) -> Format | None:
    readers = (_of_gpt_oss, _of_deepseek, _of_mistral, _of_executorch, _of_meta)
    formats = (read(content) for read in readers)
    return next((config_format for config_format in formats if config_format is not None), None)


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


def _has_one(content: Mapping[str, Any], *sections: str) -> bool:
    """Return whether a config states one of the keys of a section of the table."""
    return any(content.get(key) is not None for section in sections for key in table("keys")[section])


def _of_gpt_oss(content: Mapping[str, Any]) -> Format | None:
    is_gpt_oss = _has(content, "initial_context_length", "rope_ntk_alpha", "rope_ntk_beta")
    return format_of("gpt_oss") if is_gpt_oss else None


def _of_deepseek(content: Mapping[str, Any]) -> Format | None:
    if _has(content, "dim", "n_layers", "compress_ratios", "rope_head_dim"):
        raise ConfigError(
            "this is the inference config of DeepSeek-V4, which is not read: give the config.json of the "
            "model's Hugging Face folder."
        )
    if not _has(content, "dim", "n_layers", "n_heads", "inter_dim", "qk_rope_head_dim", "kv_lora_rank"):
        return None
    deepseek = format_of("deepseek")
    if not _has(content, "index_head_dim"):
        return deepseek
    notes = (*deepseek.notes, note("indexer_differs"))
    return replace(deepseek, notes=notes, part_formats={"indexer": format_of("deepseek_indexer")})


def _of_mistral(content: Mapping[str, Any]) -> Format | None:
    if content.get("model_type") == "mamba" and _has(content, "dim", "n_layers", "n_groups"):
        raise ConfigError("this is Mistral's params.json of a Mamba model, which has no rotation.")
    if not _has(content, "dim", "n_layers", "head_dim", "hidden_dim", "n_heads", "n_kv_heads", "norm_eps"):
        return None
    if _has_one(content, "meta", "executorch"):
        return None
    convention, notes, formats = format_of("mistral").convention, [], {}
    if content.get("qk_rope_head_dim") is not None:
        convention = replace(convention, width=("qk_rope_head_dim",))
    if content.get("rope_theta") is None:
        old = content.get("sliding_window") or content.get("_sliding_window")
        convention = replace(convention, theta=1e4 if old else 1e6, theta_keys=())  # null is no base, too
        notes.append(note("old_base" if old else "new_base"))
    if content.get("llama_4_scaling") is not None:
        notes.append(note("llama_4_scaling"))
    for where in ("vision_encoder", "multimodal.vision_encoder_args"):
        if isinstance(value_at(content, where), Mapping):
            formats["vision"] = replace(format_of("pixtral"), place=where)
    return replace(format_of("mistral"), convention=convention, notes=tuple(notes), part_formats=formats)


def _is_llama(content: Mapping[str, Any]) -> bool:
    return _has(content, "dim", "n_layers", "n_heads", "norm_eps")  # Code Llama's has no vocab_size


def _of_meta(content: Mapping[str, Any]) -> Format | None:
    if not _is_llama(content) or not _has_one(content, "meta"):
        return None
    if _has_one(content, "llama4"):
        return format_of("llama4")
    notes = (note("no_base"),) if content.get("rope_theta") is None else ()
    scaled = (note("factor_8"),) if content.get("use_scaled_rope") else ()
    return replace(format_of("llama"), notes=notes + scaled)


def _of_executorch(content: Mapping[str, Any]) -> Format | None:
    if not _is_llama(content) or not _has_one(content, "executorch"):
        return None
    half, notes = content.get("use_hf_rope"), []
    if half not in (None, False, True):
        raise ConfigError(f"use_hf_rope is {short(half)}; it must be true or false.")
    unread, default = ("use_scaled_rope", False) if half else ("partial_rotary_factor", 1)
    if content.get(unread, default) not in (None, default):
        notes.append(f"{unread} is not used: ExecuTorch's code does not read it where use_hf_rope is {half}")
    if content.get("local_rope_theta") is not None:
        notes.append(note("local_rope_theta"))
    # A null rope_theta is the default of ExecuTorch's class: then rope_freq_base is the base.
    bases = ("rope_freq_base",) if content.get("rope_theta") is None else ("rope_theta", "rope_freq_base")
    executorch = format_of("executorch_half" if half else "executorch")
    convention = replace(executorch.convention, theta_keys=bases)
    return replace(executorch, convention=convention, notes=tuple(notes))
