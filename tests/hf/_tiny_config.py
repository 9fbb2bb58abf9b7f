"""Small configs of transformers' models: the default config, reduced by the names of its keys.

`tiny_config` serves each model type of docs/models.md. The names of most keys tell their sizes; `CHANGES` has
the values that they do not tell.
"""

import re
from collections.abc import Mapping
from typing import Any

HEAD, HEADS, HIDDEN, VOCAB = 32, 2, 64, 128
KINDS = 4  # a list with more values does not say which kind of layer each layer is

# The new value of an integer by its key: the first pattern that fits the whole key.
SIZES: tuple[tuple[str, Any], ...] = (
    (r"qk_(rope|nope)_head_dim|v_head_dim|(linear|conv)_.*head_dim|mamba_d_state", 16),
    (r"qk_head_dim|.*head_dim|kv_channels|(kv|q|o)_lora_rank|query_pre_attn_scalar|mamba_d_head", HEAD),
    (r"mamba_n_heads|num_filters", 4),
    (r"mamba_d_ssm", 128),
    (r"codebook_size", 32),
    (r"(codebook|vector_quantization_hidden)_dim(ension)?|embedding_rank", 16),
    (r".*(hidden_size(_global)?|embed_dim|d_model|hidden_dim|embedding_size|emb_dim|projection_dim)", HIDDEN),
    (r"(lru_)?width|upsample_groups|condition_dim|projector_(in|out)put_dim|vision_output_dim", HIDDEN),
    (r"(ext_pw|depthwise_separable)_out_channel|nemo_conv_channels", HIDDEN),
    (r"adapter_((in|out)_dim|input_size)", HIDDEN),
    (r"num_blocks", 1),
    (r".*(intermediate_size|ffn_dim|ffn_hidden_size|mlp_dim|intermediate_dim)", 96),
    (r".*(num_experts_per_tok|moe_topk|moe_top_k|moe_k|experts_per_token)", 2),
    (r".*num_.*experts|n_routed_experts|.*num_experts", 4),
    (r"n_group|topk_group|num_expert_group|topk_.*group", 1),
    (r".*vocab_size.*|vocab_offset", VOCAB),
    (r".*(num_hidden_layers|num_layers)|depth|n_layers?|(en|de)coder_layers", 2),
    (r".*num_.*key_value_.*heads|num_kv_heads|kv_n_heads", "of keys"),
    (r".*(attention_heads|num_heads|n_heads|key_heads|value_heads)", HEADS),
    (r"sliding_window|attention_chunk_size", 16),
    (r"max_position_embeddings|max_seq_len", 2048),
    (r"image_size", "of a picture"),
    (r"num_position_embeddings", 16),
)
COMMON_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


# Reduction


def new_size(key, old, config):
    """Return the reduced value of a key, or the value itself if it is no size."""
    if not isinstance(old, int) or isinstance(old, bool):
        return old
    if key == "head_dim" and old == config.get("qk_rope_head_dim"):
        return 16
    new = next((new for pattern, new in SIZES if re.fullmatch(pattern, key)), None)
    if new == "of keys":
        return HEADS if old == heads(config, old) else 1
    if new == "of a picture":
        return 4 * config.get("patch_size", 14)
    return old if new is None else min(old, new)


def heads(config, default):
    """Return the number of heads of q."""
    return next((v for k, v in config.items() if re.fullmatch("num_(attention_)?heads|n_heads", k)), default)


def kept_layers(config):
    """Choose the layers to keep: one for each kind in each list with one value per layer, at least two."""
    count = config.get("num_hidden_layers") or 0
    lists = [[*map(str, v)] for v in config.values() if isinstance(v, list) and len(v) == count]
    if special := config.get("per_layer_config"):
        lists.append([str(special.get(f"{layer:02d}")) for layer in range(count)])
    chosen = {names.index(name) for names in lists if len({*names}) <= KINDS for name in names}
    unchosen = [layer for layer in range(count) if layer not in chosen]
    return sorted(chosen | {*unchosen[: max(0, 2 - len(chosen))]})


def reduced(config):
    """Reduce a config, given and returned as a dict, and all configs in it."""
    layers, count = kept_layers(config), config.get("num_hidden_layers")
    new: dict[str, Any] = {}
    for key, old in config.items():
        if key == "per_layer_config" and old:
            of_layers = {n: old.get(f"{layer:02d}") for n, layer in enumerate(layers)}
            new[key] = {n: of_layer(values, config) for n, values in of_layers.items() if values is not None}
        elif key in ("rope_parameters", "rope_scaling") and isinstance(old, dict):
            new[key] = reduced_rule(old, config)
        elif isinstance(old, dict) and (key.endswith("config") or "model_type" in old):
            new[key] = reduced(old)
        elif isinstance(old, list) and len(old) == count and count > 2:
            new[key] = [old[layer] for layer in layers]
        elif key == "num_hidden_layers" and isinstance(old, int):
            new[key] = max(2, len(layers))
        else:
            new[key] = new_size(key, old, config)
    return new


def of_layer(layer_config, config):
    """Reduce the sizes that a layer has of its own. Its heads stay wider than in the other layers."""
    new = {key: new_size(key, value, {**config, **layer_config}) for key, value in layer_config.items()}
    return new | {"head_dim": 2 * HEAD} if "head_dim" in layer_config else new


def reduced_rule(rule, config):
    """Reduce the sections of M-RoPE, in the rotary parameters of a config or of its layer types."""
    new = dict(rule)
    for key, value in rule.items():
        if isinstance(value, dict):
            new[key] = reduced_rule(value, config)
        elif key == "mrope_section":
            width = min(config.get("head_dim") or HEAD, HEAD) * rule.get("partial_rotary_factor", 1)
            sections = [int(width) // 2 * size // sum(value) for size in value]
            new[key] = [int(width) // 2 - sum(sections[1:]), *sections[1:]]
    return new


def with_tokens(config, used):
    """Give each special token an id of the reduced vocabulary, from its end; `used` holds them by key."""
    new = dict(config)
    for key, value in config.items():
        if isinstance(value, dict):
            new[key] = with_tokens(value, used)
        elif key in COMMON_TOKENS and value is not None:
            new[key] = COMMON_TOKENS[key]
        elif str(key).endswith(("token_id", "token_index")) and isinstance(value, int):
            new[key] = used.setdefault(key, VOCAB - 1 - len(used))
    return new


def merged(config, changes):
    """Change values of a config; a dict changes a config inside it."""
    new = dict(config)
    for key, value in changes.items():
        inner = new.get(key)
        new[key] = merged(inner, value) if isinstance(value, dict) and isinstance(inner, dict) else value
    return new


def tiny_config(folder, cls, changes=None):
    """Return a small config of a class, for the model type of a folder, with more changes."""
    values = with_tokens(reduced(cls().to_dict()), {})
    values.pop("transformers_version", None)
    return cls(**merged(merged(values, CHANGES.get(folder, {})), changes or {}))


# Values that the names of the keys do not tell


def text(**changes):
    """Return changes of the text config."""
    return {"text_config": changes}


def rule(**fields):
    """Return rotary parameters."""
    return {"rope_type": "default", "rope_theta": 10_000.0, **fields}


def mrope(*sections, base=10_000.0):
    """Return the key of rotary parameters with sections of M-RoPE, which some default configs lack."""
    return {"rope_parameters": rule(rope_theta=base, mrope_section=[*sections])}


def each(names, changes):
    """Return the same changes of several models."""
    return dict.fromkeys(names.split(), changes)


SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
CODEC = {"upsampling_ratios": [2, 2], "num_quantizers": 4, "layer_scale_initial_scale": 1.0}
BYTES = {"vocab_size": 260}
MOE = {"num_experts_per_tok": 2, "first_k_dense_replace": 1}
DAC = {"encoder_hidden_size": 4, "downsampling_ratios": [2, 4, 4], "upsampling_ratios": [4, 4, 2]}

CHANGES: Mapping[str, dict[str, Any]] = {
    **each("glm4v glm_image glm_ocr paddleocr_vl qwen2_5_vl qwen2_vl", text(**mrope(4, 6, 6))),
    **each("csm kyutai_speech_to_text", {"codec_config": CODEC}),
    **each("hunyuan_v1_dense hunyuan_v1_moe ministral", {"head_dim": HEAD}),
    **each("mimi pocket_tts_audio_tokenizer", CODEC),
    **each("neucodec xcodec2", {"quantization_dim": 128, "encoder_hidden_size": 4}),
    **each("seamless_m4t wav2vec2_bert wav2vec2_conformer", {"position_embeddings_type": "rotary"}),
    "apertus1p5": {"audio_config": {"codebook_dim": HIDDEN},
                   "image_token_offset": 64, "audio_token_offset": 96},
    "bamba": {"attn_layer_indices": [1]},
    "blt": {**BYTES, "encoder_hash_byte_group_vocab": 64,
            **{f"{name}_config": BYTES for name in ("patcher", "encoder", "decoder")}},
    "chameleon": {"vocabulary_map": {"<image>": 127},
                  "vq_config": {"resolution": 32, "base_channels": 32, "num_embeddings": 32}},
    "cohere_compass": text(layer_types=[SLIDING, FULL], rope_parameters={
        SLIDING: rule(rope_theta=50_000.0, mrope_section=[6, 5, 5]), FULL: None}),
    "dbrx": {"attn_config": {"rope_theta": 10_000.0, "clip_qkv": 8.0}},
    "deepseek_ocr2": text(mlp_layer_types=["dense", "sparse"], num_experts_per_tok=2),
    "deepseek_v2": MOE,
    "deepseek_v3": {"first_k_dense_replace": 1},
    "deepseek_v4": {
        "num_hidden_layers": 3, "mlp_layer_types": ["hash_moe", "moe", "moe"],
        "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention", SLIDING],
        "compress_rates": {"heavily_compressed_attention": 8},
        "rope_parameters": {key: {"partial_rotary_factor": 0.5} for key in ("main", "compress")},
    },
    "diffusion_gemma": text(num_experts=4, top_k_experts=2, moe_intermediate_size=32),
    "dinov3_vit": {"out_features": ["stage2"], "out_indices": [2]},
    "dory": {"num_hidden_layers": 4, "layer_types": [SLIDING, FULL] * 2, "n_input_layers": 1,
             "n_output_layers": 1, "n_recurrent_layers": 2, "initializer_range": 1.0},
    "dots1": {**MOE, "n_shared_experts": 1, "n_routed_experts": 4},
    "efficientloftr": {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 8},
    "emu3": {"vocabulary_map": {"<image>": 127, "<|extra_200|>": 126},
             "vq_config": {"base_channels": 32, "num_embeddings": 32}},
    "ernie4_5_vl_moe": text(**mrope(6, 6, 4, base=500_000.0)),
    "esm": {"position_embedding_type": "rotary", "vocab_size": 33, "mask_token_id": 32, "pad_token_id": 1},
    "falcon_h1": {"mamba_d_head": 32},
    "gemma3n": {"num_kv_shared_layers": 0, "intermediate_size": 96},
    "gemma4": {"vision_config": {
        "hidden_size": HIDDEN, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "head_dim": HEAD, "position_embedding_size": 16}},
    "glm4v_moe": text(**mrope(2, 3, 3)),
    "granite4_vision": {"downsample_rate": "1/2", "deepstack_layer_map": [[0, 0]],
                        "spatial_target_layers": [1]},
    "granitemoehybrid": {"layer_types": [LINEAR, FULL], "position_embedding_type": "rope"},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "hy_v4_vl": text(**mrope(3, 3, 2)),
    "hunyuan_vl": text(head_dim=HEAD, **mrope(4, 4, 4, 4)),
    "lasr": {"encoder_config": {"conv_kernel_size": 31}},  # PyTorch warns of even sizes
    "lfm2_moe": {"layer_types": ["conv", FULL], "num_dense_layers": 1},
    "llama4": {"text_config": {"moe_layers": [0, 1], "intermediate_size_mlp": 96},
               "vision_config": {"intermediate_size": 4 * HIDDEN}},
    "longcat_flash": {"expert_ffn_hidden_size": 32, "zero_expert_num": 2},
    "mistral_large4": text(kv_source_layers=[0, 1, 2]),
    "molmo2": {"text_config": {"rope_scaling_layers": [0]},
               "adapter_config": {"vision_feature_layer": [1, 0]}},
    "moonshine_streaming": {"num_key_value_heads": HEADS},
    "muse_glimmer_assistant": {"target_layer_ids": [0], "block_size": 8},
    "muse_glimmer": {"out_hidden_size": 4 * HIDDEN},
    "muse_spark": {"out_hidden_size": 4 * HIDDEN,
                   "audio_config": {"hidden_sizes": [16] * 4, "depths": [1] * 4}},
    "nemotron": {"num_key_value_heads": 1},
    "nemotron3_5_transcribe": text(n_groups=1, mamba_num_heads=4, layers_block_type=[LINEAR, "moe", FULL]),
    "pe_audio": {"audio_config": {"dac_config": {**DAC, "hop_length": 32, "codebook_dim": 128}}},
    "phi4_multimodal": {"vision_config": {"crop_size": 56}},
    "qwen2_5_omni": {"vision_start_token_id": 110, **text(**mrope(4, 6, 6))},
    "qwen3_omni_moe": {"vision_start_token_id": 110, **text(**mrope(6, 5, 5))},
    "qwen4_exp": text(indexer_budget=64, indexer_compress_ratio=4, indexer_n_heads=2, indexer_kv_heads=1,
                      indexer_head_dim=HEAD),
    "recurrent_gemma": {"num_hidden_layers": 3},
    "sapiens2": {"num_key_value_heads_per_layer": [2, 1], "out_features": ["stage2"], "out_indices": [2]},
    "step3p7": text(sliding_window=16, layer_types=[FULL, SLIDING]),
    "zamba2": {"use_mem_rope": True, "mamba_headdim": 16, "attention_head_dim": 64, "adapter_rank": 8,
               "attention_hidden_size": 128, "num_query_groups": 2, "hybrid_layer_ids": [1]},
}  # fmt: skip
