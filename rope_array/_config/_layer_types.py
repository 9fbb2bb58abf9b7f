"""The type of each layer, by the rule of a model's class if `layer_types` is not stated.

Read from the configuration files of transformers 5.23.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rope_array._config._conventions import Values
from rope_array._errors import SpecError, short

# A rule: takes the part's values, the number of layers and a layer's index, and returns the layer's type.
TypeOf = Callable[[Values, int, int], str]

_FULL, _SLIDING, _LINEAR = "full_attention", "sliding_attention", "linear_attention"


def _every(key: str, default: int, rest: str = _SLIDING, full: str = _FULL, first: int = 1) -> TypeOf:
    """Return the rule of full attention in the last of every `key` layers; in the first if `first` is 0."""

    def type_of(values: Values, count: int, index: int) -> str:
        return rest if (index + first) % values.integer(key, default) else full

    return type_of


def _fixed(every: int, rest: str = _SLIDING) -> TypeOf:
    """Return the rule of full attention in the last of every `every` layers, and in the last layer."""
    return lambda values, count, index: _FULL if (index + 1) % every == 0 or index == count - 1 else rest


def _exaone4(values: Values, count: int, index: int) -> str:
    # Without a window all layers are full; then the pattern may be null.
    if values.get("sliding_window_pattern") is None and values.get("sliding_window") is None:
        return _FULL
    return _SLIDING if (index + 1) % values.integer("sliding_window_pattern", 4) else _FULL


def _cohere2_moe(values: Values, count: int, index: int) -> str:
    dense = values.integer("first_k_dense_replace") if values.get("first_k_dense_replace") else 0
    if index < dense:
        return _SLIDING if (index + 1) % values.integer("prefix_dense_sliding_window_pattern", 1) else _FULL
    return _SLIDING if (index - dense + 1) % values.integer("sliding_window_pattern", 4) else _FULL


def _lfm2(values: Values, count: int, index: int) -> str:
    chosen = values.get("full_attn_idxs")
    return _FULL if not isinstance(chosen, (list, tuple)) or index in chosen else "conv"


def _flint(values: Values, count: int, index: int) -> str:
    return _FULL if index < 2 or index % 4 == 1 or index == count - 1 else _SLIDING


def _bamba(values: Values, count: int, index: int) -> str:
    chosen = values.get("attn_layer_indices")
    if chosen is not None and not isinstance(chosen, (list, tuple)):
        raise SpecError(f"attn_layer_indices is {short(chosen)}; give a list of indices of layers.")
    return _FULL if chosen and index in chosen else _LINEAR


def _recurrent_gemma(values: Values, count: int, index: int) -> str:
    blocks = values.get("block_types", ("recurrent", "recurrent", "attention"))
    if not isinstance(blocks, (list, tuple)) or not blocks:
        raise SpecError(f"block_types is {short(blocks)}; give a list of 'recurrent' and 'attention'.")
    if (block := blocks[index % len(blocks)]) not in ("recurrent", "attention"):
        raise SpecError(f"block_types has {short(block)}; it must be 'recurrent' or 'attention'.")
    return _LINEAR if block == "recurrent" else _SLIDING


def _muse(values: Values, count: int, index: int) -> str:
    return _SLIDING if (count - 1 - index) % 4 else _FULL


def _minimax(values: Values, count: int, index: int) -> str:
    kinds = values.get("attn_type_list")
    listed = isinstance(kinds, (list, tuple)) and index < len(kinds)
    return _LINEAR if listed and kinds[index] == 0 else _FULL


def _baichuan_m1(values: Values, count: int, index: int) -> str:
    windows = values.get("sliding_window_layers")
    return _SLIDING if isinstance(windows, (list, tuple)) and index in windows else _FULL


def _mimo(values: Values, count: int, index: int) -> str:
    return _FULL if index == 0 or (index + 1) % 6 == 0 else _SLIDING


def _by_list(key: str, names: "Callable[[Any], str | None]", otherwise: TypeOf) -> TypeOf:
    """Return the rule of a list with a value for each layer; `otherwise` if it is not stated."""

    def type_of(values: Values, count: int, index: int) -> str:
        listed = values.get(key)
        if listed is None:
            return otherwise(values, count, index)
        if not isinstance(listed, (list, tuple)) or index >= len(listed):
            raise SpecError(f"{key} is {short(listed)}; give a value for each of {count} layers.")
        if (name := names(listed[index])) is None:
            raise SpecError(f"{key}[{index}] is {short(listed[index])}, which is no kind of layer.")
        return name

    return type_of


def _compressed(ratio: Any) -> "str | None":
    names = {0: _SLIDING, 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    return names.get(ratio) if isinstance(ratio, int) else None


def _deepseek_v4(values: Values, count: int, index: int) -> str:
    return "compressed_sparse_attention" if index > 2 and index % 2 else "heavily_compressed_attention"


def _dots3_note(values: Values, count: int, index: int) -> str:
    slides = values.get("use_sliding_window", True) and index >= 2 and index % 4 != 1
    return _SLIDING if slides else _FULL


def _lfm3(values: Values, count: int, index: int) -> str:
    if index % 4 == 2:
        return _FULL
    return "conv" if index % 4 or index == 0 else _SLIDING


def _lfm3_vision(values: Values, count: int, index: int) -> str:
    return "conv" if index < 2 or index % 2 else _FULL


def _olmo_hybrid(values: Values, count: int, index: int) -> str:
    return _FULL if index % 4 == 3 or (count < 4 and index == count - 1) else _LINEAR


def _thirds(values: Values, count: int, index: int) -> str:
    return _SLIDING if (index + 1) % 3 else _FULL


def _sparse(values: Values, count: int, index: int) -> str:
    sparse = values.get("sparse_attention_config.sparse_attention_freq")
    is_sparse = isinstance(sparse, (list, tuple)) and index < len(sparse) and sparse[index]
    return "minimax_m3_sparse" if is_sparse else _FULL


_QWEN3_5 = _every("full_attention_interval", 4, _LINEAR)

TYPES: dict[str, TypeOf] = {
    "afmoe": _every("global_attn_every_n_layers", 4),
    "baichuan_m1": _baichuan_m1,
    "bailing_hybrid": _every("layer_group_size", 6, _LINEAR),
    "bamba": _bamba,
    "beam": _fixed(6),
    "cohere2": _every("sliding_window_pattern", 4),
    "cohere2_moe": _cohere2_moe,
    "deepseek_v4": _by_list("compress_ratios", _compressed, _deepseek_v4),
    "dots3_note_text": _dots3_note,
    **dict.fromkeys(("exaone4", "exaone_moe"), _exaone4),
    "flint": _flint,
    **dict.fromkeys(
        ("gemma3_text", "t5gemma2_text", "t5gemma2_decoder", "embedding_gemma2_text"),
        _every("sliding_window_pattern", 6),
    ),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text", "diffusion_gemma_text"), _fixed(6)),
    "lfm2": _lfm2,
    "lfm3": _lfm3,
    "lfm3_vl_vision": _lfm3_vision,
    "mimo_v2_flash": _mimo,
    **dict.fromkeys(("minimax_text_01", "minimax_m1"), _minimax),
    **dict.fromkeys(("modernbert", "modernbert-decoder"), _every("global_attn_every_n_layers", 3, first=0)),
    **dict.fromkeys(("muse_glimmer_text", "muse_spark_text"), _muse),
    **dict.fromkeys(("muse_glimmer_vision", "muse_spark_vision"), _fixed(4, "window_attention")),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _QWEN3_5),
    "minimax_m3_vl_text": _sparse,
    "neomme": _fixed(6),
    "olmo_hybrid": _olmo_hybrid,
    "qwen4_exp_text": _every("full_attention_interval", 4, _LINEAR, "indexed_attention"),
    "recurrent_gemma": _recurrent_gemma,
    "ultrabert": _by_list("attention_windows", lambda window: _SLIDING if window else _FULL, _thirds),
}

# Models whose last layer has full attention even if the config states another type.
LAST_IS_FULL = frozenset(
    ("gemma4_text", "gemma4_unified_text", "diffusion_gemma_text", "embedding_gemma2_text")
)


# Names of layer types in older configs (transformers' remap_legacy_layer_types).
NEWER_NAMES = {
    "mamba": _LINEAR,
    "attention": _FULL,
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}


def in_newer_names(key: "str | None", values: Values, types: Sequence[str]) -> Sequence[str]:
    """Return layer types as the model's class converts them; its last layer may need full attention."""
    newer = [NEWER_NAMES.get(name, name) for name in types]
    if key == "dots3_note_text":
        newer = [_dots3_name(values, name) for name in newer]
    return (*newer[:-1], _FULL) if key in LAST_IS_FULL and newer else newer


def _dots3_name(values: Values, name: str) -> str:
    """Return the type of a layer of Dots 3: older configs call a layer with an indexer a full one."""
    indexed = values.get("use_dsa")
    if indexed is None and values.get("per_layer_config") is not None:
        return name
    older, newer = (_FULL, "indexed_attention") if indexed in (None, True) else ("indexed_attention", _FULL)
    return newer if name == older else name
