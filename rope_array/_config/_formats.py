"""Model configs in formats that are not Hugging Face's: recognise one, and return its convention.

A format is recognised by keys that no config of Hugging Face has together, and never if one of Hugging Face's
own keys is stated. `formats.toml` has the rows; `_gguf` and `_diffusers` have the formats of those libraries.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rope_array._config import _diffusers, _gguf
from rope_array._config._convention import Convention
from rope_array._config._conventions import all_of, convention_from
from rope_array._config._conventions_unknown import BY_HAND
from rope_array._config._tables import read_table
from rope_array._errors import ConfigError, short

_TABLE = read_table("formats.toml")
_KEYS, _NOTES, _MLX_BASES = _TABLE["keys"], _TABLE["notes"], _TABLE["mlx_bases"]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format of configs: its name, the convention of its code, and the values that a file may leave out.

    Attributes
    ----------
    name
        The name that `Reading.inferred` shows under "format".
    convention
        The convention of the model's code.
    defaults
        The defaults of the code's own class, and under "alias" the names of keys that Hugging Face's configs
        name otherwise.
    model_type
        The name of the model in messages, and `Reading.model_type`.
    notes
        Notes for the reader of the result.
    parts
        Other parts of the model that rotate, by name: their format, and the key of their values (None: the
        whole config).
    main
        Names of the part that is read by default.
    """

    name: str
    convention: Convention
    defaults: Mapping[str, Any] = field(default_factory=dict)
    model_type: str | None = None
    notes: tuple[str, ...] = ()
    parts: "Mapping[str, tuple[Format, str | None]]" = field(default_factory=dict)
    main: tuple[str, ...] = ("text",)


def _format(name: str) -> Format:
    """Return the format of a row."""
    row = all_of(_TABLE["rows"][name], _TABLE["rows"])
    convention, notes = convention_from(row, _TABLE["rows"]), tuple(row.get("notes", ()))
    return Format(name=row["name"], convention=convention, defaults=row.get("defaults", {}), notes=notes)


def recognise(content: Mapping[str, Any]) -> Format | None:
    """Return the format of a config; None for a config of Hugging Face, and for one of no known format."""
    if isinstance(content, _gguf.Metadata):
        return _made(_gguf.read_gguf(content))
    _diffusers.refuse_nameless(content)
    if _has_keys_of_others(content):
        return _of_named(content)
    if content.get("model_type") not in (None, "transformer", "mamba"):  # the latter two are Mistral's
        return None
    if any(key in content for key in _KEYS["hugging_face"]):
        return None
    if isinstance(content.get("_class_name"), str):
        return _made(_diffusers.read_diffusers(content))
    return _by_keys(content)


def _by_keys(content: Mapping[str, Any]) -> Format | None:
    readers = (_of_gpt_oss, _of_deepseek, _of_mistral, _of_executorch, _of_meta)
    formats = (read(content) for read in readers)
    return next((config_format for config_format in formats if config_format is not None), None)


# Configs with a model_type of Hugging Face, and the keys of another format


def _has_keys_of_others(content: Mapping[str, Any]) -> bool:
    """Return whether a config has a model_type of Hugging Face, but the makers' names of the sizes."""
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "text_config")
    return (
        content.get("model_type") in _TABLE["model_types"]["also_elsewhere"]
        and _has(content, "dim", "n_layers", "n_heads")
        and not any(content.get(key) is not None for key in sizes)
    )


def _of_named(content: Mapping[str, Any]) -> Format:
    """Return the format of a config that `_has_keys_of_others`, or refuse it."""
    name = content["model_type"]
    contradicts = any(key in content for key in _KEYS["hugging_face"])
    config_format = None if contradicts else _by_keys(content) or (_LLAMA if name == "llama" else None)
    if config_format is None:
        raise ConfigError(
            f"model_type is {short(name)}, but the sizes have the names of another format (dim, n_layers, "
            "n_heads), and none has Hugging Face's, such as hidden_size; give the config.json of the model's "
            f"Hugging Face folder, or read {BY_HAND}."
        )
    if config_format.name in (_MISTRAL.name, _LLAMA.name) and name in _MLX_BASES:
        config_format = _of_mlx(config_format, name, content.get("rope_theta") is None)
    keys_of = config_format.name
    note = f"model_type is {short(name)}, but the keys are of {keys_of}: it has the pairs of its weights"
    return replace(config_format, model_type=name, notes=(*config_format.notes, note))


def _of_mlx(maker: Format, name: str, no_base: bool) -> Format:
    """Return the format of mlx-examples, from the format of the model's maker."""
    width = maker.convention.width
    if maker.name == _LLAMA.name:
        width = ("head_dim", *width)
    convention = replace(maker.convention, width=width, pairing_flag="rope_traditional")
    notes = maker.notes
    if no_base:
        convention = replace(convention, theta=_MLX_BASES[name])
        of_makers = {_NOTES["old_base"], _NOTES["new_base"], _NOTES["no_base"]}
        notes = tuple(note for note in notes if note not in of_makers)
        default = f"{convention.theta:.0f} is the default of mlx-examples"
        notes = (*notes, f"rope_theta is not stated: {default}")
    return replace(maker, name="mlx-examples' config.json", convention=convention, notes=notes)


def _made(fields: dict[str, Any]) -> Format:
    inner_fields = fields.get("parts", {})
    formats = {name: (Format(name=fields["name"], **inner), None) for name, inner in inner_fields.items()}
    return Format(**{**fields, "parts": formats})


# Files


_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz", ".onnx", ".pte", ".h5", ".msgpack")


def read_file(path: Path, name: str) -> dict[str, Any] | None:
    """Return the content of a file that is no JSON; None for a JSON file. Refuse files that are no config."""
    if _gguf.is_gguf(path):
        return _gguf.metadata(path, name)
    if path.suffix in _WEIGHTS or path.name.endswith(".index.json"):
        raise ConfigError(
            f"{name} is a file of weights, which states no rotation; give the config.json beside it."
        )
    if path.name in _TABLE["other_files"]:
        raise ConfigError(f"{name} is {_TABLE['other_files'][path.name]}.")
    return None


def other_config(folder: Path) -> str:
    """Return the remedy, for an error, where a folder has no config.json."""
    for pattern in ("params.json", "transformer/config.json", "original/config.json", "*.gguf"):
        if paths := sorted(folder.glob(pattern)):
            return f"give the path of its {paths[0].relative_to(folder)}"
    return "give the path of one"


def _has(content: Mapping[str, Any], *keys: str) -> bool:
    return all(content.get(key) is not None for key in keys)


def _has_one(content: Mapping[str, Any], *sections: str) -> bool:
    """Return whether a config states one of the keys of a section of the table."""
    return any(content.get(key) is not None for section in sections for key in _KEYS[section])


_GPT_OSS, _DEEPSEEK, _MISTRAL, _LLAMA = map(_format, ("gpt_oss", "deepseek", "mistral", "llama"))


def _of_gpt_oss(content: Mapping[str, Any]) -> Format | None:
    return _GPT_OSS if _has(content, "initial_context_length", "rope_ntk_alpha", "rope_ntk_beta") else None


def _of_deepseek(content: Mapping[str, Any]) -> Format | None:
    if _has(content, "dim", "n_layers", "compress_ratios", "rope_head_dim"):
        raise ConfigError(
            "this is the inference config of DeepSeek-V4, which is not read: give the config.json of the "
            "model's Hugging Face folder."
        )
    if not _has(content, "dim", "n_layers", "n_heads", "inter_dim", "qk_rope_head_dim", "kv_lora_rank"):
        return None
    if not _has(content, "index_head_dim"):
        return _DEEPSEEK
    notes = (*_DEEPSEEK.notes, _NOTES["indexer_differs"])
    return replace(_DEEPSEEK, notes=notes, parts={"indexer": (_format("deepseek_indexer"), None)})


def _of_mistral(content: Mapping[str, Any]) -> Format | None:
    if content.get("model_type") == "mamba" and _has(content, "dim", "n_layers", "n_groups"):
        raise ConfigError("this is Mistral's params.json of a Mamba model, which has no rotation.")
    if not _has(content, "dim", "n_layers", "head_dim", "hidden_dim", "n_heads", "n_kv_heads", "norm_eps"):
        return None
    if _has_one(content, "meta", "executorch"):
        return None
    convention, notes, formats = _MISTRAL.convention, [], {}
    if content.get("qk_rope_head_dim") is not None:
        convention = replace(convention, width=("qk_rope_head_dim",))
    if content.get("rope_theta") is None:
        old = content.get("sliding_window") or content.get("_sliding_window")
        convention = replace(convention, theta=1e4 if old else 1e6, theta_keys=())  # null is no base, too
        notes.append(_NOTES["old_base" if old else "new_base"])
    if content.get("llama_4_scaling") is not None:
        notes.append(_NOTES["llama_4_scaling"])
    for where in ("vision_encoder", "multimodal.vision_encoder_args"):
        if isinstance(value_at(content, where), Mapping):
            formats["vision"] = (_format("pixtral"), where)
    return replace(_MISTRAL, convention=convention, notes=tuple(notes), parts=formats)


def value_at(content: Any, path: str) -> Any:
    """Return the value at a path of keys; None if there is none."""
    for key in path.split("."):
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def _is_llama(content: Mapping[str, Any]) -> bool:
    return _has(content, "dim", "n_layers", "n_heads", "norm_eps")  # Code Llama's has no vocab_size


def _of_meta(content: Mapping[str, Any]) -> Format | None:
    if not _is_llama(content) or not _has_one(content, "meta"):
        return None
    if _has_one(content, "llama4"):
        return _format("llama4")
    notes = (_NOTES["no_base"],) if content.get("rope_theta") is None else ()
    scaled = (_NOTES["factor_8"],) if content.get("use_scaled_rope") else ()
    return replace(_LLAMA, notes=notes + scaled)


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
        notes.append(_NOTES["local_rope_theta"])
    # A null rope_theta is the default of ExecuTorch's class: then rope_freq_base is the base.
    bases = ("rope_freq_base",) if content.get("rope_theta") is None else ("rope_theta", "rope_freq_base")
    executorch = _format("executorch_half" if half else "executorch")
    convention = replace(executorch.convention, theta_keys=bases)
    return replace(executorch, convention=convention, notes=tuple(notes))
