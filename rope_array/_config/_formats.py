"""Model configs in formats that are not Hugging Face's: recognise one, and return its convention.

A format is recognised by keys that no config of Hugging Face has together, and never if one of Hugging Face's
own keys is stated. Each convention follows the published code that a comment names. `_gguf` and `_diffusers`
have the formats of those libraries.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rope_array._config import _diffusers, _gguf
from rope_array._config._convention import Convention
from rope_array._config._conventions_unknown import BY_HAND
from rope_array._config._values import PartValues
from rope_array._errors import ConfigError, short
from rope_array._spec.axes import Axes
from rope_array._spec.scaling import Llama3, YaRN

# Keys of every Hugging Face config, of which no other format has one.
_HUGGING_FACE = ("architectures", "auto_map", "transformers_version")

_ALIASES = {
    "num_hidden_layers": "n_layers",
    "max_position_embeddings": "max_seq_len",
    "no_rope_layer_interval": "nope_layer_interval",
}

# Model types of Hugging Face whose makers publish configs in formats of their own.
# fmt: off
_ALSO_ELSEWHERE = (
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "llama", "llama4", "llama4_text", "ministral3", "mistral",
    "mistral3", "mistral4", "mixtral",
)
# fmt: on


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


def recognise(content: Mapping[str, Any]) -> Format | None:
    """Return the format of a config; None for a config of Hugging Face, and for one of no known format."""
    if isinstance(content, _gguf.Metadata):
        return _made(_gguf.read_gguf(content))
    _diffusers.refuse_nameless(content)
    if _has_keys_of_others(content):
        return _of_named(content)
    if content.get("model_type") not in (None, "transformer", "mamba"):  # the latter two are Mistral's
        return None
    if any(key in content for key in _HUGGING_FACE):
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
        content.get("model_type") in _ALSO_ELSEWHERE
        and _has(content, "dim", "n_layers", "n_heads")
        and not any(content.get(key) is not None for key in sizes)
    )


def _of_named(content: Mapping[str, Any]) -> Format:
    """Return the format of a config that `_has_keys_of_others`, or refuse it."""
    name = content["model_type"]
    config_format = _by_keys(content) or (_LLAMA_FORMAT if name == "llama" else None)
    if config_format is None or any(key in content for key in _HUGGING_FACE):
        raise ConfigError(
            f"model_type is {short(name)}, but the sizes have the names of another format (dim, n_layers, "
            "n_heads), and none has Hugging Face's, such as hidden_size; give the config.json of the model's "
            f"Hugging Face folder, or read {BY_HAND}."
        )
    if config_format.name in (_MISTRAL.name, _LLAMA_FORMAT.name) and name in _MLX_BASES:
        config_format = _of_mlx(config_format, name, content.get("rope_theta") is None)
    keys_of = config_format.name
    note = f"model_type is {short(name)}, but the keys are of {keys_of}: it has the pairs of its weights"
    return replace(config_format, model_type=name, notes=(*config_format.notes, note))


# Source: ml-explore/mlx-examples, llms/llama, llms/mistral and llms/mixtral: the converters keep the makers'
# keys and weights, and add a model_type. Halves are pairs if Llama's rope_traditional is false.
_MLX_BASES = {"llama": 1e4, "mistral": 1e4, "mixtral": 1e6}


def _of_mlx(maker: Format, name: str, no_base: bool) -> Format:
    """Return the format of mlx-examples, from the format of the model's maker."""
    width = maker.convention.width
    if maker.name == _LLAMA_FORMAT.name:
        width = ("head_dim", *width)
    convention = replace(maker.convention, width=width, pairing_flag="rope_traditional")
    notes = maker.notes
    if no_base:
        convention = replace(convention, theta=_MLX_BASES[name])
        notes = tuple(note for note in notes if note not in (_OLD_BASE, _NEW_BASE, _NO_BASE))
        default = f"{convention.theta:.0f} is the default of mlx-examples"
        notes = (*notes, f"rope_theta is not stated: {default}")
    return replace(maker, name="mlx-examples' config.json", convention=convention, notes=notes)


def _made(fields: dict[str, Any]) -> Format:
    inner_fields = fields.get("parts", {})
    formats = {name: (Format(name=fields["name"], **inner), None) for name, inner in inner_fields.items()}
    return Format(**{**fields, "parts": formats})


# Files


_OTHER_FILES = {
    "adapter_config.json": "the config of a LoRA adapter; give the config.json of its base model",
    "generation_config.json": "the settings of text generation; give the config.json beside it",
    "model_index.json": "a pipeline of diffusers; give the config.json of its folder 'transformer'",
    "preprocessor_config.json": "the config of an image processor; give the config.json beside it",
    "processor_config.json": "the config of a processor; give the config.json beside it",
    "special_tokens_map.json": "a tokenizer's file; give the config.json beside it",
    "tokenizer.json": "a tokenizer; give the config.json beside it",
    "tokenizer_config.json": "the config of a tokenizer; give the config.json beside it",
}
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz", ".onnx", ".pte", ".h5", ".msgpack")


def read_file(path: Path, name: str) -> dict[str, Any] | None:
    """Return the content of a file that is no JSON; None for a JSON file. Refuse files that are no config."""
    if _gguf.is_gguf(path):
        return _gguf.metadata(path, name)
    if path.suffix in _WEIGHTS or path.name.endswith(".index.json"):
        raise ConfigError(
            f"{name} is a file of weights, which states no rotation; give the config.json beside it."
        )
    if path.name in _OTHER_FILES:
        raise ConfigError(f"{name} is {_OTHER_FILES[path.name]}.")
    return None


def other_config(folder: Path) -> str:
    """Return the remedy, for an error, where a folder has no config.json."""
    for pattern in ("params.json", "transformer/config.json", "original/config.json", "*.gguf"):
        if paths := sorted(folder.glob(pattern)):
            return f"give the path of its {paths[0].relative_to(folder)}"
    return "give the path of one"


def _has(content: Mapping[str, Any], *keys: str) -> bool:
    return all(content.get(key) is not None for key in keys)


def _has_one(content: Mapping[str, Any], keys: "frozenset[str]") -> bool:
    return any(content.get(key) is not None for key in keys)


# gpt-oss, the folder "original"


# Source: openai/gpt-oss, gpt_oss/torch/model.py, ModelConfig and RotaryEmbedding. Halves are pairs, alpha is
# the number of turns at the ramp's slow end, and its ends are not rounded. A factor up to 1 is no rule.
def _yarn_of_gpt_oss(values: PartValues, width: int) -> YaRN | None:
    factor = values.number("rope_scaling_factor")
    if factor <= 1:
        return None
    return YaRN(
        factor,
        values.number("initial_context_length"),
        beta_fast=values.number("rope_ntk_beta"),
        beta_slow=values.number("rope_ntk_alpha"),
        truncate=False,
    )


_GPT_OSS = Format(
    name="gpt-oss's original config",
    convention=Convention(width=("head_dim",), scaling=_yarn_of_gpt_oss, partial=False),
    defaults={
        "head_dim": 64,
        "initial_context_length": 4096,
        "rope_theta": 150000.0,
        "rope_scaling_factor": 32.0,
        "rope_ntk_alpha": 1.0,
        "rope_ntk_beta": 32.0,
    },
)


def _of_gpt_oss(content: Mapping[str, Any]) -> Format | None:
    return _GPT_OSS if _has(content, "initial_context_length", "rope_ntk_alpha", "rope_ntk_beta") else None


# DeepSeek's inference code


# Source: deepseek-ai/DeepSeek-V3 and DeepSeek-V3.2-Exp, inference/model.py, precompute_freqs_cis and
# apply_rotary_emb: neighbours are pairs. Frequencies are stretched only if max_seq_len exceeds
# original_seq_len. cos and sin have no amplitude: mscale is a part of the softmax's scale.
def _yarn_of_deepseek(values: PartValues, width: int) -> YaRN | None:
    original = values.number("original_seq_len")
    if values.number("max_seq_len") <= original:
        return None
    return YaRN(
        values.number("rope_factor"),
        original,
        beta_fast=values.number("beta_fast"),
        beta_slow=values.number("beta_slow"),
        attention_factor=1.0,
    )


_DEEPSEEK = Format(
    name="DeepSeek's inference config",
    convention=Convention(
        pairing="interleaved", width=("qk_rope_head_dim",), scaling=_yarn_of_deepseek, partial=False
    ),
    defaults={
        "alias": _ALIASES,
        "qk_rope_head_dim": 64,
        "max_seq_len": 16384,
        "original_seq_len": 4096,
        "rope_theta": 10000.0,
        "rope_factor": 40.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    },
    notes=("mscale is not used: DeepSeek's code applies it to the scale of the softmax, not to cos and sin",),
)
# Source: deepseek-ai/DeepSeek-V3.2-Exp, inference/model.py, Indexer: halves are pairs. Until 2025-11-17 the
# published code rotated neighbours here, which its README calls a mistake.
_INDEXER = replace(
    _DEEPSEEK,
    name="DeepSeek's inference config, indexer",
    convention=replace(
        _DEEPSEEK.convention,
        pairing="half",
        width=("index_head_dim",),
        rotated=lambda values, width: values.integer("qk_rope_head_dim"),
        note="this is the rope of the indexer, which selects the tokens to attend to; attention has another",
    ),
)
_INDEXER_DIFFERS = (
    "the sparse attention's indexer rotates the first qk_rope_head_dim features of its heads by the same "
    "frequencies, in half pairs: part='indexer' reads its rope"
)


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
    notes = (*_DEEPSEEK.notes, _INDEXER_DIFFERS)
    return replace(_DEEPSEEK, notes=notes, parts={"indexer": (_INDEXER, None)})


# Mistral


# Source: mistralai/mistral-inference, args.py and rope.py: neighbours are pairs. `yarn` is read as in vLLM,
# transformers_utils/configs/mistral.py: beta and alpha are the turns at the ramp's ends. The amplitude is 1
# if apply_scale is false, and in latent attention, where mscale and mscale_all_dim are both 1.
_YARN = ("factor", "original_max_position_embeddings", "beta", "alpha", "apply_scale")


def _yarn_of_mistral(values: PartValues, width: int) -> YaRN | None:
    yarn = values.get("yarn")
    if yarn is None:
        return None
    if not isinstance(yarn, Mapping) or (unknown := sorted(map(str, yarn.keys() - {*_YARN}))):
        problem = (
            f"has the unknown keys {', '.join(unknown)}" if isinstance(yarn, Mapping) else "is no object"
        )
        raise ConfigError(f"yarn {problem}; give an object with the keys {', '.join(_YARN)}.")
    scaled = yarn.get("apply_scale", True)
    if not isinstance(scaled, bool):
        raise ConfigError(f"yarn.apply_scale is {short(scaled)}; it must be true or false.")
    latent = values.get("qk_rope_head_dim") is not None
    return YaRN(
        values.number("yarn.factor"),
        values.number("yarn.original_max_position_embeddings"),
        beta_fast=values.number("yarn.beta", 32.0),
        beta_slow=values.number("yarn.alpha", 1.0),
        attention_factor=None if scaled and not latent else 1.0,
    )


_PIXTRAL = Format(
    name="Mistral's params.json, vision_encoder",
    convention=Convention(
        pairing="interleaved",
        width=("hidden_size/num_attention_heads",),
        partial=False,
        axes=lambda values, width: Axes.even_odd(width),
    ),
    notes=("coordinates are (row, column) of a patch",),
)
_MISTRAL = Format(
    name="Mistral's params.json",
    convention=Convention(
        pairing="interleaved", width=("head_dim",), scaling=_yarn_of_mistral, partial=False, theta=1e6
    ),
    defaults={"alias": {"num_hidden_layers": "n_layers"}},
)
_OLD_BASE = (
    "rope_theta is not stated: with a sliding window the base is 10000, as in Mistral 7B v0.1; the code of "
    "mistral-inference now takes 1000000"
)
_NEW_BASE = "rope_theta is not stated: 1000000 is mistral-inference's default"


def _of_mistral(content: Mapping[str, Any]) -> Format | None:
    if content.get("model_type") == "mamba" and _has(content, "dim", "n_layers", "n_groups"):
        raise ConfigError("this is Mistral's params.json of a Mamba model, which has no rotation.")
    if not _has(content, "dim", "n_layers", "head_dim", "hidden_dim", "n_heads", "n_kv_heads", "norm_eps"):
        return None
    if _has_one(content, _META | _EXECUTORCH):
        return None
    convention, notes, formats = _MISTRAL.convention, [], {}
    if content.get("qk_rope_head_dim") is not None:
        convention = replace(convention, width=("qk_rope_head_dim",))
    if content.get("rope_theta") is None:
        old = content.get("sliding_window") or content.get("_sliding_window")
        convention = replace(convention, theta=1e4 if old else 1e6, theta_keys=())  # null is no base, too
        notes.append(_OLD_BASE if old else _NEW_BASE)
    if content.get("llama_4_scaling") is not None:
        notes.append("llama_4_scaling scales the queries by their position, and is no part of the rotation")
    for where in ("vision_encoder", "multimodal.vision_encoder_args"):
        if isinstance(value_at(content, where), Mapping):
            formats["vision"] = (_PIXTRAL, where)
    return replace(_MISTRAL, convention=convention, notes=tuple(notes), parts=formats)


def value_at(content: Any, path: str) -> Any:
    """Return the value at a path of keys; None if there is none."""
    for key in path.split("."):
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


# Meta and ExecuTorch


def _scaled_rope(
    values: PartValues, width: int, factor: tuple[str, float] | None, high: tuple[str, float] | None
) -> Llama3 | None:
    """Return the rule of use_scaled_rope; `factor` and `high` are keys with defaults, None for constants."""
    if not values.flag("use_scaled_rope"):
        return None
    return Llama3(values.number(*factor) if factor else 8.0, 1.0, values.number(*high) if high else 4.0, 8192)


# Source: meta-llama/llama-models, models/llama3/model.py, apply_scaling.
_llama3_of_meta = partial(_scaled_rope, factor=None, high=None)
# Source: meta-llama/llama-models, models/llama4/args.py and model.py.
_llama3_of_llama4 = partial(
    _scaled_rope, factor=("rope_scaling_factor", 16.0), high=("rope_high_freq_factor", 1.0)
)
# Source: pytorch/executorch, examples/models/llama/model_args.py, and rope.py of the text decoder.
_llama3_of_executorch = partial(
    _scaled_rope, factor=("rope_scale_factor", 8.0), high=("high_freq_factor", 4.0)
)


_META = frozenset(("multiple_of", "ffn_dim_multiplier", "use_scaled_rope", "nope_layer_interval", "moe_args"))
_LLAMA_4 = frozenset(("nope_layer_interval", "moe_args", "attention_chunk_size", "rope_high_freq_factor"))
# fmt: off
_EXECUTORCH = frozenset((
    "act_fn", "attention_qkv_bias", "attention_type", "no_rope_layer_interval", "norm_type",
    "partial_rotary_factor", "post_attention_norm", "qk_norm_before_rope", "rope_freq_base",
    "rope_scale_factor", "use_hf_rope",
))
# fmt: on
_LLAMA = Convention(pairing="interleaved", width=("head_dim", "dim/n_heads"), partial=False)
_NO_BASE = (
    "rope_theta is not stated: 10000 is the constant of the code of Llama 1 and 2; the code of Llama 3 in "
    "llama-models takes 500000"
)
_FACTOR_8 = (
    "use_scaled_rope states no factor: 8 is the constant of llama-models' code; Hugging Face's configs of "
    "Llama 3.2 (1B and 3B) state 32"
)
_LLAMA_FORMAT = Format(
    name="Meta's params.json",
    convention=replace(_LLAMA, width=("dim/n_heads",), scaling=_llama3_of_meta),
    defaults={"alias": _ALIASES},
)


def _is_llama(content: Mapping[str, Any]) -> bool:
    return _has(content, "dim", "n_layers", "n_heads", "norm_eps")  # Code Llama's has no vocab_size


def _of_meta(content: Mapping[str, Any]) -> Format | None:
    if not _is_llama(content) or not _has_one(content, _META):
        return None
    if _has_one(content, _LLAMA_4):
        llama4 = replace(_LLAMA, width=("dim/n_heads",), scaling=_llama3_of_llama4, theta=5e5)
        return replace(_LLAMA_FORMAT, name="Meta's params.json of Llama 4", convention=llama4)
    notes = (_NO_BASE,) if content.get("rope_theta") is None else ()
    scaled = (_FACTOR_8,) if content.get("use_scaled_rope") else ()
    return replace(_LLAMA_FORMAT, notes=notes + scaled)


def _of_executorch(content: Mapping[str, Any]) -> Format | None:
    if not _is_llama(content) or not _has_one(content, _EXECUTORCH):
        return None
    # A null rope_theta is the default of ExecuTorch's class: then rope_freq_base is the base.
    bases = ("rope_freq_base",) if content.get("rope_theta") is None else ("rope_theta", "rope_freq_base")
    stock = replace(_LLAMA, theta_keys=bases, scaling=_llama3_of_executorch)
    half, notes = content.get("use_hf_rope"), []
    if half not in (None, False, True):
        raise ConfigError(f"use_hf_rope is {short(half)}; it must be true or false.")
    unread, default = ("use_scaled_rope", False) if half else ("partial_rotary_factor", 1)
    if content.get(unread, default) not in (None, default):
        notes.append(f"{unread} is not used: ExecuTorch's code does not read it where use_hf_rope is {half}")
    if content.get("local_rope_theta") is not None:
        notes.append("local_rope_theta is not used: ExecuTorch's code rotates all layers by rope_theta")
    halves = replace(stock, pairing="half", scaling=None, partial=True)
    aliases = {"num_hidden_layers": "n_layers", "max_position_embeddings": "max_context_len"}
    return Format(
        name="ExecuTorch's params.json",
        convention=halves if half else stock,
        defaults={"alias": aliases, **dict.fromkeys(_READ_BY_NAME)},
        notes=tuple(notes),
    )


# Keys that are noted above, or that change no rotation.
_READ_BY_NAME = (
    "local_rope_theta",
    "partial_rotary_factor",
    "qk_norm_before_rope",
    "rope_freq_base",
    "rope_scale_factor",
    "use_hf_rope",
    "use_scaled_rope",
)
