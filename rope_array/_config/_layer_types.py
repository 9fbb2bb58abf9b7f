"""The type of each layer, by the rule of a model's class if `layer_types` is not stated.

Read from the configuration files of transformers 5.23.
"""

from collections.abc import Callable, Sequence

from rope_array._config._conventions import Values

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


_QWEN3_5 = _every("full_attention_interval", 4, _LINEAR)

TYPES: dict[str, TypeOf] = {
    "afmoe": _every("global_attn_every_n_layers", 4),
    "baichuan_m1": _baichuan_m1,
    "bailing_hybrid": _every("layer_group_size", 6, _LINEAR),
    "beam": _fixed(6),
    "cohere2": _every("sliding_window_pattern", 4),
    "cohere2_moe": _cohere2_moe,
    **dict.fromkeys(("exaone4", "exaone_moe"), _exaone4),
    "flint": _flint,
    **dict.fromkeys(
        ("gemma3_text", "t5gemma2_text", "t5gemma2_decoder", "embedding_gemma2_text"),
        _every("sliding_window_pattern", 6),
    ),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text", "diffusion_gemma_text"), _fixed(6)),
    "lfm2": _lfm2,
    "mimo_v2_flash": _mimo,
    **dict.fromkeys(("minimax_text_01", "minimax_m1"), _minimax),
    **dict.fromkeys(("modernbert", "modernbert-decoder"), _every("global_attn_every_n_layers", 3, first=0)),
    **dict.fromkeys(("muse_glimmer_text", "muse_spark_text"), _muse),
    **dict.fromkeys(("muse_glimmer_vision", "muse_spark_vision"), _fixed(4, "window_attention")),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _QWEN3_5),
    "qwen4_exp_text": _every("full_attention_interval", 4, _LINEAR, "indexed_attention"),
}

# Models whose last layer has full attention even if the config states another type.
LAST_IS_FULL = frozenset(
    ("gemma4_text", "gemma4_unified_text", "diffusion_gemma_text", "embedding_gemma2_text")
)


def with_last(key: "str | None", types: Sequence[str]) -> Sequence[str]:
    """Return the types; the last layer has full attention if the model's class demands it."""
    return (*types[:-1], _FULL) if key in LAST_IS_FULL and types else types
