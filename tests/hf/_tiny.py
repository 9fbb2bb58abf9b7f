"""Tiny random models of transformers: each model type of docs/models.md.

A tiny model has the default config of its class, whose sizes `reduced` makes small by the names of the keys:
two layers, or one of each kind; heads of 32 features; 64 features in all. `CHANGES` has the sizes that the
names do not tell. The weights are random, and larger than at the start of training, so that scores are of
the order of 1 and the rotation matters to the outputs.
"""

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import transformers
from hf._models_patch import FLOAT32, precision
from hf._walk import cases, modeling

HEAD, HIDDEN, VOCAB, HEADS = 32, 64, 128, 2
LENGTH, BATCH = 24, 2
WEIGHTS, DEEP = 1.5, 0.5  # the gain of a layer; of a convolution, as dozens follow each other
KINDS = 4  # a list with more values has not one for each kind of layer

# The new value of an integer in a config, by the whole name of its key: the first pattern that fits.
SIZES: tuple[tuple[str, Any], ...] = (
    ("qk_(rope|nope)_head_dim|v_head_dim|(linear|conv)_.*head_dim|mamba_d_state", 16),
    ("qk_head_dim|.*head_dim|kv_channels|(kv|q|o)_lora_rank|query_pre_attn_scalar|mamba_d_head", HEAD),
    ("mamba_n_heads", 4),
    ("mamba_d_ssm", 128),
    (".*(hidden_size|embed_dim|d_model|hidden_dim|embedding_size|emb_dim|projection_dim)|width", HIDDEN),
    (".*(intermediate_size|ffn_dim|ffn_hidden_size|mlp_dim|intermediate_dim)", 96),
    (".*(num_experts_per_tok|moe_topk|moe_top_k|moe_k|experts_per_token)", 2),
    ("n_shared_experts|num_shared_experts|moe_num_shared_experts|num_experts_per_tok", None),
    (".*num_.*experts|n_routed_experts|.*num_experts", 4),
    ("n_group|topk_group|num_expert_group|topk_.*group", 1),
    (".*vocab_size.*|vocab_offset", VOCAB),
    (".*(num_hidden_layers|num_layers)|depth|n_layers?|(en|de)coder_layers", 2),
    (".*num_.*key_value_.*heads|num_kv_heads|kv_n_heads", "kv"),
    (".*(attention_heads|num_heads|n_heads|key_heads|value_heads)", HEADS),
    ("sliding_window|attention_chunk_size", 16),
    ("max_position_embeddings|max_seq_len", 2048),
    ("image_size", "image"),
    ("num_position_embeddings", 16),
)


def _new_size(key: str, old: int, config: Mapping[str, Any]) -> int:
    """Return the reduced value of an integer."""
    if key == "head_dim" and old == config.get("qk_rope_head_dim"):
        return 16
    if not isinstance(old, int) or isinstance(old, bool):
        return old
    for pattern, new in SIZES:
        if re.fullmatch(pattern, key):
            if new == "kv":
                heads = next((v for k, v in config.items() if re.fullmatch("num_(attention_)?heads|n_heads", k)), old)
                return HEADS if heads == old else 1
            if new == "image":
                return 4 * config.get("patch_size", 14)
            return old if new is None else min(old, new)
    return old


def kept_layers(config: Mapping[str, Any]) -> list[int]:
    """Choose the layers to keep: one for each value in each list of one value per layer, at least two."""
    count = config.get("num_hidden_layers") or 0
    lists = [[*map(str, v)] for v in config.values() if isinstance(v, list) and len(v) == count]
    if special := config.get("per_layer_config"):
        lists.append([str(special.get(f"{i:02d}")) for i in range(count)])
    chosen = {v.index(one) for v in lists if len(set(v)) <= KINDS for one in v}
    chosen |= set(range(count)[: 2 - len(chosen)] if len(chosen) < 2 else ())
    return sorted(chosen | set([i for i in range(count) if i not in chosen][: max(0, 2 - len(chosen))]))


def _sections(sections: list[int], pairs: int) -> list[int]:
    """Reduce the sections of M-RoPE to a number of pairs."""
    new = [pairs * size // sum(sections) for size in sections]
    new[0] += pairs - sum(new)
    return new


def _pairs(config: Mapping[str, Any], rule: Mapping[str, Any]) -> int:
    head = config.get("head_dim") or HEAD
    return int(min(head, HEAD) * rule.get("partial_rotary_factor", 1)) // 2


def reduced(config: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce a config, given and returned as a dict, and all configs in it."""
    new: dict[str, Any] = {}
    layers = kept_layers(config)
    count = config.get("num_hidden_layers")
    for key, old in config.items():
        if key == "per_layer_config" and old:
            new[key] = {n: _per_layer(old[f"{i:02d}"], config) for n, i in enumerate(layers) if f"{i:02d}" in old}
        elif isinstance(old, dict) and (key.endswith("config") or "model_type" in old or key in NESTED):
            new[key] = reduced(old)
        elif key in ("rope_parameters", "rope_scaling") and isinstance(old, dict):
            new[key] = _reduced_rule(config, old)
        elif isinstance(old, list) and len(old) == count and count > 2:
            new[key] = [old[i] for i in layers]
        elif key == "num_hidden_layers" and isinstance(old, int):
            new[key] = max(2, len(layers))
        elif isinstance(old, int) and not isinstance(old, bool):
            new[key] = _new_size(key, old, config)
        else:
            new[key] = old
    return new


def _per_layer(own: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce the sizes that a layer has of its own. Its heads stay wider than those of the other layers."""
    new = {key: _new_size(key, value, {**config, **own}) for key, value in own.items()}
    return new | {"head_dim": 2 * HEAD} if "head_dim" in own else new


NESTED = {"encoder", "decoder"}


def _reduced_rule(config: Mapping[str, Any], rule: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _reduced_rule(config, value)
        if isinstance(value, dict)
        else _sections(value, _pairs(config, rule))
        if key == "mrope_section"
        else value
        for key, value in rule.items()
    }


def _token_ids(config: dict[str, Any], free: list[int]) -> dict[str, Any]:
    """Give each special token that the reduced vocabulary lacks a new id, from `free`."""
    new = {}
    for key, value in config.items():
        if isinstance(value, dict):
            new[key] = _token_ids(value, free)
        elif re.search("(token_id|token_index)$", str(key)) and isinstance(value, int):
            common = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
            new[key] = common[key] if key in common else free.setdefault(key, VOCAB - 1 - len(free))
        elif key == "eos_token_id" and isinstance(value, list):
            new[key] = 2
        else:
            new[key] = value
    return new


def merged(config: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Change values of a config; a dict changes a config inside it."""
    new = dict(config)
    for key, value in changes.items():
        inner = new.get(key)
        new[key] = merged(inner, value) if isinstance(value, dict) and isinstance(inner, dict) else value
    return new


NO_TIMM = "its vision tower is a model of the package timm"
ABSENT: dict[str, str] = {
    "esmfold2": "its inputs are the atoms of a protein, dozens of arrays",
    **dict.fromkeys(("edgetam_video", "sam2_video", "sam3_tracker_video"), "it runs on a session of a video, not on arrays"),
    "pe_video": NO_TIMM, "pe_audio_video": NO_TIMM}
CODEC = {"upsample_groups": HIDDEN, "num_filters": 4, "upsampling_ratios": [2, 2], "num_quantizers": 4, "codebook_size": 32, "codebook_dim": 16, "layer_scale_initial_scale": 1.0, "vector_quantization_hidden_dimension": 16}

def mrope(*sections: int, base: float = 10000.0) -> dict[str, Any]:
    """Return rotary parameters with sections of M-RoPE."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": base, "mrope_section": [*sections]}}


def text(**changes: Any) -> dict[str, Any]:
    return {"text_config": changes}


CHANGES: dict[str, dict[str, Any]] = {
    "blt": {"patcher_config": {"vocab_size": 260}, "encoder_hash_byte_group_vocab": 64, "encoder_config": {"vocab_size": 260, "hidden_size_global": 64}, "decoder_config": {"vocab_size": 260, "hidden_size_global": 64}, "vocab_size": 260},
    "chameleon": {"vocabulary_map": {"<image>": 127}, "vq_config": {"resolution": 32, "base_channels": 32, "num_embeddings": 32}},
    "cohere_compass": {"text_config": {"layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 50000.0, "mrope_section": [6, 5, 5]}, "full_attention": None}}},
    "csm": {"codec_config": CODEC},
    "bamba": {"attn_layer_indices": [1]},
    "deepseek_ocr2": text(mlp_layer_types=["dense", "sparse"], num_experts_per_tok=2),
    "deepseek_v2": {"num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "deepseek_v3": {"first_k_dense_replace": 1},
    "efficientloftr": {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 8},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"], "position_embedding_type": "rope"},
    "pe_audio": {"audio_config": {"dac_config": {"encoder_hidden_size": 4, "decoder_hidden_size": 64, "downsampling_ratios": [2, 4, 4], "upsampling_ratios": [4, 4, 2], "hop_length": 32, "codebook_size": 32}}},
    "lasr": {"encoder_config": {"conv_kernel_size": 31}},
    "eomt_dinov3": {"num_blocks": 1},
    "neucodec": {"quantization_dim": 128, "encoder_hidden_size": 4},
    "xcodec2": {"quantization_dim": 128, "encoder_hidden_size": 4},
    "muse_glimmer": {"out_hidden_size": 256},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "zamba2": {"use_mem_rope": True, "mamba_headdim": 16, "attention_head_dim": 64, "attention_hidden_size": 128, "kv_channels": 32, "num_query_groups": 2, "adapter_rank": 8, "hybrid_layer_ids": [1], "n_mamba_heads": 8},
    "muse_glimmer_assistant": {"target_layer_ids": [0], "block_size": 8},
    "muse_spark": {"out_hidden_size": 256, "audio_config": {"hidden_sizes": [16, 16, 16, 16], "depths": [1, 1, 1, 1]}},
    "llama4": {"text_config": {"moe_layers": [0, 1], "intermediate_size_mlp": 96}, "vision_config": {"projector_input_dim": 64, "projector_output_dim": 64, "vision_output_dim": 64, "intermediate_size": 256, "image_size": 56, "pixel_shuffle_ratio": 0.5}},
    "phi4_multimodal": {"audio_config": {"num_blocks": 1, "ext_pw_out_channel": 64, "depthwise_separable_out_channel": 64, "nemo_conv_channels": 64}, "vision_config": {"crop_size": 56}},
    "longcat_flash": {"expert_ffn_hidden_size": 32, "zero_expert_num": 2, "n_routed_experts": 4},
    "dots3_note": {"vision_config": {"adapter_in_dim": 64, "adapter_out_dim": 64, "num_experts_per_tok": 2}, "audio_config": {"adapter_input_size": 64, "adapter_out_dim": 64}},
    "wav2vec2_bert": {"position_embeddings_type": "rotary"},
    "wav2vec2_conformer": {"position_embeddings_type": "rotary"},
    "seamless_m4t": {"position_embeddings_type": "rotary"},
    "diffusion_gemma": text(num_experts=4, top_k_experts=2, moe_intermediate_size=32),
    "qwen2_5_omni": {"vision_start_token_id": 110, **text(**mrope(4, 6, 6))},
    "qwen3_omni_moe": {"vision_start_token_id": 110, **text(**mrope(6, 5, 5))},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": HIDDEN},
    "granite4_vision": {"downsample_rate": "1/2", "deepstack_layer_map": [[0, 0]], "spatial_target_layers": [1]},

    "qwen4_exp": text(indexer_budget=64, indexer_compress_ratio=4, indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=32, ple_embed_dim=64),
    "neomme": {"embedding_rank": 16},
    "emu3": {"vocabulary_map": {"<image>": 127, "<|extra_200|>": 126}, "vq_config": {"base_channels": 32, "num_embeddings": 32}},
    "glm4v": text(**mrope(4, 6, 6)),
    "glm4v_moe": text(**mrope(2, 3, 3)),
    "glm_image": text(**mrope(4, 6, 6)),
    "glm_ocr": text(**mrope(4, 6, 6)),
    "paddleocr_vl": text(**mrope(4, 6, 6)),
    "qwen2_5_vl": text(**mrope(4, 6, 6)),
    "qwen2_vl": text(**mrope(4, 6, 6)),
    "gemma3n": {"num_kv_shared_layers": 0, "intermediate_size": 96},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "step3p7": text(sliding_window=16, layer_types=["full_attention", "sliding_attention"], rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 10000.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}),
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": HIDDEN},
    "nemotron3_5_transcribe": text(n_groups=1, mamba_num_heads=4, layers_block_type=["linear_attention", "moe", "full_attention"]),
    "dinov3_vit": {"out_features": ["stage2"], "out_indices": [2]},
    "sapiens2": {"num_key_value_heads_per_layer": [2, 1], "out_features": ["stage2"], "out_indices": [2]},
    "dots1": {"n_shared_experts": 1, "first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0, "mrope_section": [6, 6, 4]}}},
    "esm": {"position_embedding_type": "rotary", "vocab_size": 33, "mask_token_id": 32, "pad_token_id": 1},
    "falcon_h1": {"mamba_d_head": 32, "mamba_n_heads": 4},
    "gradium_phonon_tts": {"flow_head_config": {"condition_dim": HIDDEN}},
    "pocket_tts": {"flow_head_config": {"condition_dim": HIDDEN}},
    "hunyuan_v1_dense": {"head_dim": HEAD},
    "hunyuan_v1_moe": {"head_dim": HEAD},
    "hunyuan_vl": text(head_dim=HEAD, **mrope(4, 4, 4, 4)),
    "kyutai_speech_to_text": {"codec_config": CODEC},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mimi": CODEC,
    "ministral": {"head_dim": HEAD},
    "mistral_large4": {"text_config": {"kv_source_layers": [0, 1, 2]}},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "moonshine_streaming": {"num_key_value_heads": 2},
    "nemotron": {"num_key_value_heads": 1},
    "pocket_tts_audio_tokenizer": CODEC,
}
CLASSES: dict[str, tuple[str, str]] = {
    "eomt_dinov3": ("EomtDinov3Config", "EomtDinov3ForUniversalSegmentation"),
    "gemma3n": ("Gemma3nTextConfig", "Gemma3nForCausalLM"),
    "seamless_m4t": ("SeamlessM4TConfig", "SeamlessM4TForSpeechToText"),
    "t5gemma2": ("T5Gemma2Config", "T5Gemma2ForConditionalGeneration"),
}

PREFERRED = (
    "IMAGE_TEXT_TO_TEXT",
    "CAUSAL_LM",
    "MULTIMODAL_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "MASKED_LM",
)


def model_class(folder: str) -> tuple[Any, Any]:
    """Return a folder's config class and model class, by transformers' tables of automatic classes."""
    if folder in CLASSES:
        config, model = CLASSES[folder]
        return getattr(configuration(folder), config), getattr(modeling(folder), model)
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    names = [getattr(auto, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in PREFERRED] + [auto.MODEL_MAPPING_NAMES]
    found = vars(configuration(folder)).values()
    own = [c for c in found if isinstance(c, type) and c.__module__ == configuration(folder).__name__ and issubclass(c, transformers.PretrainedConfig)]
    own.sort(key=lambda c: -len(c.sub_configs or {}))
    for config in own:
        for table in names:
            if (name := table.get(getattr(config, "model_type", ""))) and hasattr(modeling(folder), name):
                return config, getattr(modeling(folder), name)
    raise LookupError(folder)


def configuration(folder):
    return importlib.import_module(f"transformers.models.{folder}.configuration_{folder}")


def tiny_config(folder: str) -> Any:
    """Return the small config of a model type."""
    cls, _ = model_class(folder)
    values = _token_ids(reduced(cls().to_dict()), {})
    values = merged(values, CHANGES.get(folder, {}))
    values.pop("transformers_version", None)
    return cls(**values)


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters, and the codebooks, which are buffers."""
    found = {name: parameter.data for name, parameter in model.named_parameters()}
    return found | {name: book for name, book in model.named_buffers() if name.endswith("embed_sum")}


def set_weights(model: torch.nn.Module) -> None:
    """Set weights from a fixed seed: a layer keeps the size of its input, and no norm or bias is a constant."""
    random = torch.Generator().manual_seed(0)
    for name, weight in weights(model).items():
        values = torch.randn(weight.shape, generator=random)
        constant = weight.numel() and bool((weight == weight.flatten()[0]).all())
        if constant and (weight.ndim < 2 or weight.any()):
            weight.add_(0.2 * values)
        elif weight.ndim >= 2:
            inputs = weight.shape[-1] if "expert" in name else weight[0].numel()
            gain = DEEP if "conv" in name else WEIGHTS
            is_table = re.search(r"(embed|token|position)[^.]*(\.weight)?$", name)
            weight.copy_(values * (1.0 if is_table else gain / inputs**0.5))


def build(folder: str, dtype: torch.dtype = FLOAT32) -> torch.nn.Module:
    """Return a model, with the same weights in each dtype."""
    _, cls = model_class(folder)
    with torch.random.fork_rng(), precision(dtype):
        torch.manual_seed(0)
        config = tiny_config(folder)
        config._experts_implementation = "eager"  # the default has no float64
        model = cls(config).eval()
    if dtype is FLOAT32:
        set_weights(model)
    else:
        for weight, drawn in zip(weights(model).values(), weights(build(folder)).values(), strict=True):
            weight.copy_(drawn)
    return model


def text_inputs(model: Any) -> dict[str, torch.Tensor]:
    """Return token ids that no special token has, and what the decoder of an encoder-decoder model needs."""
    ids = torch.randint(3, 30, (BATCH, LENGTH), generator=generator())
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids[:, : LENGTH // 2].flip(0)
    return inputs


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def normal(*shape: int) -> torch.Tensor:
    """Return random features, the same in each dtype."""
    return torch.randn(shape, generator=generator(), dtype=FLOAT32).to(torch.get_default_dtype())


def features(name: str, *shape: int, **more: Any) -> Callable[[Any], dict[str, torch.Tensor]]:
    """Return inputs of one array of features, and more inputs."""
    return lambda model: {name: normal(*shape), **{key: make() for key, make in more.items()}}


def ids(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(3, 30, shape, generator=generator())


GRID = (1, 4, 6)  # frames, rows and columns of patches, before the model merges neighbours


def picture(model: Any) -> dict[str, torch.Tensor]:
    """Return a text with a picture for each row: its patches in one array, and their grid."""
    config, vision = model.config, model.config.vision_config
    token = getattr(config, "image_token_id", None) or config.image_token_index
    merge = getattr(vision, "spatial_merge_size", None) or getattr(vision, "merge_size", 0) or 2
    inputs = text_inputs(model)
    inputs["input_ids"][:, 5 : 5 + prod(GRID) // merge**2] = token
    inputs["pixel_values"] = normal(BATCH * prod(GRID), *patch_shape(model))
    if config.model_type == "inkling2":  # arrays of 2 × 2 patches
        side = merge * vision.patch_size
        inputs["pixel_values"] = inputs["pixel_values"].reshape(-1, side, side, vision.num_channels)
    inputs["image_grid_thw"] = torch.tensor([GRID] * BATCH)
    if config.model_type == "inkling2":
        inputs["image_grid_thw"][:, 1:] //= merge
    names = inspect.signature(model.forward).parameters
    for name in ("mm_token_type_ids", "moe_mm_token_type_ids"):
        if name in names:
            inputs[name] = (inputs["input_ids"] == token).int()
    if "image_merge_sizes" in names:
        inputs["image_merge_sizes"] = torch.tensor([merge] * BATCH)
    return inputs


def patch_shape(model: Any) -> tuple[int, ...]:
    """Return the shape of a patch, from the first layer of the vision tower."""
    weight = next(p for name, p in model.named_parameters() if re.search("patch_embed|embeddings.*proj", name) and p.ndim >= 2)
    whole = model.config.model_type in SQUARE
    return tuple(weight.shape[1:]) if whole else (weight[0].numel(),)


def heard(model: Any) -> dict[str, torch.Tensor]:
    """Return a text with 12 tokens of sound."""
    inputs = text_inputs(model)
    inputs["input_ids"][:, 5:17] = model.config.audio_token_id
    return {
        **inputs,
        "input_features": normal(BATCH, 96, 128),
        "input_features_mask": torch.ones(BATCH, 96, dtype=torch.int64),
    }


SQUARE = {"paddleocr_vl", "kimi_k25"}
WITH_GRID = "cohere_compass cosmos3_edge dots3_note ernie4_5_vl_moe exaone4_5 glm4v glm4v_moe glm5_next glm_ocr inkling2 kimi_k25 lfm3_vl minimax_m3_vl muse_glimmer muse_spark paddleocr_vl qwen2_5_omni qwen2_5_vl qwen2_vl qwen3_5 qwen3_5_moe qwen3_omni_moe qwen3_vl qwen3_vl_moe qwen4_exp video_llama_3".split()

PIXELS = features("pixel_values", BATCH, 3, 64, 56)
INPUTS: dict[str, Callable[[Any], dict[str, torch.Tensor]]] = {
    **dict.fromkeys(WITH_GRID, picture),
    "dinov3_vit": PIXELS,
    "eomt_dinov3": features("pixel_values", BATCH, 3, 64, 64),
    "mlcd": PIXELS,
    "pixtral": PIXELS,
    "sapiens2": PIXELS,
    "lasr": features("input_features", BATCH, 96, 128),
    "mimi": features("input_values", BATCH, 1, 400, audio_codes=ids(BATCH, 4, LENGTH)),
    "pocket_tts_audio_tokenizer": features("input_values", BATCH, 1, 400),
    "moonshine": features("input_values", BATCH, 4000, decoder_input_ids=ids(BATCH, 12)),
    "moonshine_streaming": features("input_values", BATCH, 4000, decoder_input_ids=ids(BATCH, 12)),
    "nemotron3_diarization": features("input_features", BATCH, 96, 128),
    "muse_glimmer_assistant": features("noise_embeds", BATCH, 8, HIDDEN, context_hidden_states=lambda: normal(BATCH, 16, HIDDEN)),
    "timesfm2_5": features("past_values", BATCH, 256),
    "vjepa2": features("pixel_values_videos", BATCH, 4, 3, 32, 32),
    "wav2vec2_bert": features("input_features", BATCH, 24, 160),
    "wav2vec2_conformer": features("input_values", BATCH, 4000),
    "efficientloftr": features("pixel_values", BATCH, 2, 3, 64, 64),
    "clvp": features("input_features", BATCH, 80, 24, input_ids=ids(BATCH, 12)),
    "dia": lambda model: {"input_ids": ids(BATCH, LENGTH)(), "decoder_input_ids": ids(BATCH, 12, 9)()},
    "kyutai_speech_to_text": lambda model: {"input_ids": ids(BATCH, LENGTH, 33)()},
    "idefics": features("pixel_values", BATCH, 1, 3, 56, 56, input_ids=ids(BATCH, LENGTH), image_attention_mask=lambda: torch.ones(BATCH, LENGTH, 1)),
    "sam3": features("pixel_values", BATCH, 3, 56, 56, input_ids=ids(BATCH, 12)),
    "seamless_m4t": features("input_features", BATCH, LENGTH, 160, decoder_input_ids=ids(BATCH, 12)),
    "diffusion_gemma": lambda model: {**text_inputs(model), "decoder_input_ids": ids(BATCH, 256)()},
    "voxtral_realtime": features("input_features", BATCH, 128, 96, input_ids=ids(BATCH, 12)),
    "neucodec": features("input_values", BATCH, 1, 2560, input_features=lambda: normal(BATCH, 8, 160)),
    "xcodec2": features("input_values", BATCH, 1, 2560, input_features=lambda: normal(BATCH, 8, 160)),
    "nemotron3_5_transcribe": heard,
    "pe_audio": features("input_values", BATCH, 1, 4000, input_ids=ids(BATCH, 12)),
}


@dataclass(frozen=True)
class Tiny:
    """A tiny model of a type: how to make it, its inputs, and whether it generates tokens from them."""

    model_type: str
    make: Callable[..., Any]
    inputs: Callable[[Any], dict[str, torch.Tensor]]
    generates: bool = False


def families() -> list[Tiny]:
    found = sorted({case.model for case in cases()} - set(ABSENT))
    return [Tiny(n, functools.partial(build, n), INPUTS.get(n, text_inputs)) for n in found]


def answer(output: Any) -> torch.Tensor:
    """Return a model's logits, or its first floating-point array."""
    values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple) else [output]
    if getattr(output, "logits", None) is not None:
        return output.logits
    for value in values:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim:
            return value
        if isinstance(value, dict | tuple):
            try:
                return answer(value)
            except LookupError:
                pass
    raise LookupError(type(output))


FAMILIES = families()
