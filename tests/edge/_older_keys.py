"""The keys that transformers' config classes pop, rename and convert, and a telling value of each.

`keys_of` finds the keys in the classes' own code. A key of a class with a rotary embedding is in VALUES, in
COMPUTED, or in WITHOUT_EFFECT if it changes no rotation: any other key fails a test, so that it is noticed.
"""

import ast
import dataclasses
import importlib
import inspect
import pathlib
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import transformers
from transformers import PreTrainedConfig

from rope_array._config._conventions import CONVENTIONS
from rope_array._config._model_defaults import ROTARY, SHARED

LAYERS = 8
PROPERTIES = ("layer_types", "layers_block_type")  # the type of each layer, in `to_dict` or not
Config = dict[str, Any]


def classes() -> list[type[PreTrainedConfig]]:
    """Return every config class of transformers' models; of classes that share a model type, the root."""
    by_model_type: dict[str, type[PreTrainedConfig]] = {}
    folder = pathlib.Path(transformers.__file__).parent / "models"
    for file in sorted(folder.glob("*/configuration_*.py")):
        module = importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}")
        defined = [cls for cls in vars(module).values() if getattr(cls, "__module__", "") == module.__name__]
        for cls in defined:
            is_config = inspect.isclass(cls) and issubclass(cls, PreTrainedConfig)
            if is_config and cls.model_type and cls.__name__ not in SHARED:
                by_model_type.setdefault(cls.model_type, cls)
    return list(by_model_type.values())


def has_rotation(cls: type[PreTrainedConfig]) -> bool:
    """Return whether the class itself, not only a part of it, has a rotary embedding that is known."""
    return cls.model_type in ROTARY or cls.model_type in CONVENTIONS


def keys_of(cls: type[PreTrainedConfig]) -> set[str]:
    """Return the keys that the class takes from `kwargs`, of `attribute_map`, and that choose layers."""
    keys = set(cls.attribute_map) | _keys_of_layers(cls)
    for base in cls.__mro__:
        if base.__module__.startswith("transformers.models."):
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
            keys |= {key for node in ast.walk(tree) for key in _keys_at(node)}
    return keys


_OF_LAYERS = re.compile(r"layer|block|idx|indices|indexes|interval|period|offset|every|freq$")


def _keys_of_layers(cls: type[PreTrainedConfig]) -> set[str]:
    """Return the fields that may differ by layer: lists by their names, and fields that properties read."""
    fields = {field.name: str(field.type) for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    names = {name for name, annotation in fields.items() if "list" in annotation and _OF_LAYERS.search(name)}
    for name in PROPERTIES:
        if isinstance(rule := inspect.getattr_static(cls, name, None), property):
            tree = ast.parse(textwrap.dedent(inspect.getsource(rule.fget)))  # type: ignore[arg-type]
            names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & fields.keys()
    return names


def _keys_at(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        if node.func.attr in ("pop", "get", "setdefault") and ast.unparse(node.func.value) == "kwargs":
            yield _text(node.args[0])
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "kwargs":
        yield _text(node.slice)
    elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "kwargs":
        yield _text(node.left)


def model_types_of(cls: type[PreTrainedConfig]) -> set[str]:
    """Return the model types of parts that the class compares with, to replace them."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and _is_type(node.left)]
    constants = (leaf for node in compared for side in node.comparators for leaf in ast.walk(side))
    return {
        leaf.value for leaf in constants if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
    }


def _is_type(node: ast.expr) -> bool:
    return "model_type" in ast.unparse(node)


def _text(node: ast.expr) -> str:
    """Return the key of an expression; for a computed key, its source between brackets."""
    return node.value if isinstance(node, ast.Constant) else f"<{ast.unparse(node)}>"


def alternating(*layer_types: str) -> list[str]:
    return [layer_types[i % len(layer_types)] for i in range(LAYERS)]


FULL, SLIDING = "full_attention", "sliding_attention"
OLDER_TYPES = {"attention", "mamba", "deepseek_sparse_attention", "qwen_sparse_attention"}
LINEAR = {"factor": 4.0}
YARN = {"factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

# Keys that the base class takes, of every model.
OF_EVERY_CLASS: dict[str, list[Any]] = {
    "rope_theta": [777.5, None],
    "rope_scaling": [
        {"type": "linear", **LINEAR},
        {"rope_type": "linear", **LINEAR},
        {"type": "yarn", **YARN},
        {"rope_type": "llama3", **LLAMA3},
        {"rope_type": "default", "rope_theta": 99.5},
        {},
    ],
    "rope_parameters": [
        {"rope_type": "yarn", **YARN},
        {"rope_type": "linear", **LINEAR, "rope_theta": 99.5, "partial_rotary_factor": 0.5},
        {},
    ],
    "partial_rotary_factor": [0.5],
    "layer_types": [
        alternating("attention", "mamba"),
        alternating("mamba", "attention"),
        alternating("deepseek_sparse_attention", FULL),
        alternating("qwen_sparse_attention", "linear_attention"),
        alternating(FULL, SLIDING),
        [FULL] * LAYERS,
        [SLIDING] * LAYERS,
    ],
    "head_dim": [32, None],
    "hidden_size": [1024],
    "sliding_window": [64, None],
    "max_position_embeddings": [3000],
}

HALVES = LAYERS // 2


def each(values: list[Any], *names: str) -> dict[str, list[Any]]:
    return {name: values for name in names}


# Keys of single classes, and their fields that `__post_init__` converts.
VALUES: dict[str, list[Any]] = {
    **OF_EVERY_CLASS,
    **each([777.5, None], "global_rope_theta", "rotary_emb_base"),
    **each([55.5, None], "local_rope_theta", "rope_local_base_freq", "swa_rope_theta"),
    **each([[1, 4], [], None], "attn_layer_indices", "cross_attention_layers"),
    **each([[1, 4]], "full_attn_idxs", "rope_scaling_layers"),
    **each([True, False], "mla_use_nope", "use_dsa", "use_sliding_window"),
    **each([32], "attention_head_dim", "global_head_dim", "qk_rope_head_dim", "swa_qk_rope_head_dim"),
    **each([1024], "d_model", "n_embed"),
    **each([768], "embed_dim", "n_embd", "width"),
    **each([8], "heads", "n_head", "n_heads", "num_attention_heads", "num_heads", "num_key_value_heads"),
    **each([4], "global_attn_every_n_layers", "layers"),
    **each([3], "full_attention_interval", "no_rope_layer_interval", "sliding_window_pattern"),
    "attn_config": [{"rope_theta": 777.5}, {"rope_theta": 99.5}, {"rope_theta": None}],
    "attention_windows": [[64, 0] * HALVES, [0] * LAYERS],
    "block_types": [["attention", "recurrent", "recurrent"], ["recurrent"], ["attention", "recurrent"]],
    "compress_ratios": [[0, 4, 128, 4, 0, 4, 128, 4], [0] * LAYERS],
    "encoder_attention_heads": [16],
    "layer_rope_theta": [[55.5, 0.0] * HALVES, [55.5] * LAYERS],
    "layers_block_type": [alternating("attention", "mamba"), alternating("recurrent", "attention")],
    "linear_attn_config": [
        {"full_attn_layers": [1, 4, 8], "kda_layers": [2, 3, 5, 6, 7], "num_heads": 8, "head_dim": 32}
    ],
    "mlp_layer_types": [alternating("dense", "sparse")],
    "model_max_length": [3000],
    "no_rope_layers": [[1, 0] * HALVES, [1] * LAYERS],
    "num_hidden_layers": [LAYERS - 1],
    "num_layers": [LAYERS - 1],
    "partial_rotary_factors": [[0.5, 0.25] * HALVES],
    "per_layer_config": [{"3": {"head_dim": 64}}],
    "rotary_dim": [16],
    "rotary_pct": [0.5],
    "sliding_window_size": [64],
    "sparse_attention_config": [{"sparse_attention_freq": [0, 1] * HALVES}],
    "whisper_config": [{"d_model": 1280, "encoder_attention_heads": 10}],
}

# Keys that the code computes, and configs that state them.
COMPUTED: dict[str, list[Config]] = {
    "<f'swa_{name}'>": [{"swa_head_dim": 288}, {"swa_qk_nope_head_dim": 160}],
    "<key>": [{"rope_theta": [77.5] * (LAYERS + 1), "num_nextn_predict_layers": 1}],  # Step 3.5
}

# fmt: off
WITHOUT_EFFECT = frozenset((
    "_out_indices", "activation_function", "adapter_merge_size", "adapter_output_size",
    "attention_other_setting", "attn_layer_offset", "attn_layer_period", "audio_token_id", "bias",
    "block_ff_dim", "capacity_factor", "codebook_size", "compress_rate_csa", "compress_rate_hca",
    "deepstack_visual_indexes", "dense_intermediate_size", "dense_mlp_idx", "embedding_multiplier",
    "encoder_ffn_dim", "encoder_layerdrop", "encoder_layers", "first_k_dense_replace", "frame_rate",
    "fullatt_block_indexes", "global_attn_indexes", "hidden_act", "hybrid_override_pattern", "image_size",
    "image_token_id", "index_skip_topk_offset", "index_topk_freq", "index_topk_pattern", "indexer_types",
    "intermediate_size", "is_causal", "kv_source_layers", "layer_norm_eps", "layer_norm_epsilon",
    "local_layer_ids", "look_ahead_layers", "look_backward_layers", "loop_config", "ls_init_value",
    "mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv", "mamba_dt_init_floor", "mamba_dt_limit",
    "mamba_dt_max", "mamba_dt_min", "mamba_expand", "mamba_n_groups", "mlp_only_layers",
    "moe_intermediate_size", "moe_layer_freq", "moe_layers", "moe_layers_enum", "moe_num_experts",
    "moe_shared_expert_intermediate_size", "moe_top_k", "mtp_hybrid_override_pattern", "mtp_layer_types",
    "mtp_layers_block_type", "mtp_local_layer_ids", "mtp_mlp_layer_types", "n_group", "n_recurrent_loops",
    "n_shared_experts", "native_patch_size", "norm_topk_prob", "num_attention_groups",
    "num_attention_heads_per_layer", "num_experts", "num_experts_per_tok", "num_global_key_value_heads",
    "num_hash_layers", "num_key_value_heads_per_layer", "num_labels", "num_local_experts", "num_mtp_layers",
    "num_nextn_predict_layers", "num_shared_experts", "org_vocab_size", "out_features", "out_indices",
    "pad_id", "ple_layer_ids", "pyramid_num_routed", "q_head_dim", "qkv_bias", "resblock_dilation_sizes",
    "resblock_kernel_sizes", "rms_norm_eps", "routed_scaling_factor", "router_scale", "sconv_kernel_size",
    "share_expert_dims", "stage_num_blocks", "target_layer_ids", "tie_embedding", "tie_word_embeddings",
    "use_bias", "use_qkv_bias", "video_token_id", "whisper_adapter_in_dim", "whisper_adapter_out_dim",
))
# fmt: on
