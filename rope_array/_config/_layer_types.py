"""Functions of conventions: the type of a layer by a model's class, and whether the layer rotates.

A rule of layer types takes the part's values, the number of layers and a layer's index. It applies if the
config does not state `layer_types`. Read from the configuration files of transformers 5.24.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rope_array._config._layers import why_by_index
from rope_array._config._values import FULL, LINEAR, SLIDING, PartValues, is_among
from rope_array._errors import SpecError, short


def full_every(
    values: PartValues,
    count: int,
    index: int,
    default: int,
    key: str | None = None,
    other_type: str = SLIDING,
    full: str = FULL,
    offset: int = 1,
    last: bool = False,
) -> str:
    """Return full attention for the last of every `key` layers, and for the last layer if `last` is true.

    If `offset` is 0, for the first of them.
    """
    every = default if key is None else values.integer(key, default)
    return full if (index + offset) % every == 0 or (last and index == count - 1) else other_type


def in_turn(
    values: PartValues,
    count: int,
    index: int,
    types: Sequence[str],
    first: Sequence[str] = (),
    last: str | None = None,
) -> str:
    """Return the types in turn, but of the `first` layers, and of the `last` layer."""
    if index < len(first):
        return first[index]
    return last if last and index == count - 1 else types[index % len(types)]


def by_indices(values: PartValues, count: int, index: int, key: str, types: Sequence[str]) -> str:
    """Return the first of two types for the layers that a list has, and the last if there is no list."""
    if (chosen := values.get(key)) is None:
        return types[-1]
    if not isinstance(chosen, (list, tuple)):
        raise SpecError(f"{key} is {short(chosen)}; give a list of indices of layers.")
    return types[0] if is_among(chosen, index) else types[1]


def by_flags(values: PartValues, count: int, index: int, key: str, types: Sequence[str]) -> str:
    """Return the first of two types for the layers with a value but 0, and the last beyond the list."""
    flags = values.get(key)
    if not isinstance(flags, (list, tuple)) or index >= len(flags):
        return types[-1]
    return types[0] if flags[index] else types[1]


def keras_gemma3(values: PartValues, count: int, index: int) -> str:
    return full_every(values, count, index, 6) if values.flag("use_sliding_window_attention") else FULL


def exaone4(values: PartValues, count: int, index: int) -> str:
    # Without a window all layers are full; then the pattern may be null.
    if values.get("sliding_window_pattern") is None and values.get("sliding_window") is None:
        return FULL
    return full_every(values, count, index, 4, "sliding_window_pattern")


def cohere2_moe(values: PartValues, count: int, index: int) -> str:
    dense = values.integer("first_k_dense_replace") if values.get("first_k_dense_replace") else 0
    if index < dense:
        return full_every(values, count, index, 1, "prefix_dense_sliding_window_pattern")
    return full_every(values, count, index - dense, 4, "sliding_window_pattern")


def recurrent_gemma(values: PartValues, count: int, index: int) -> str:
    blocks = values.get("block_types", ("recurrent", "recurrent", "attention"))
    if not isinstance(blocks, (list, tuple)) or not blocks:
        raise SpecError(f"block_types is {short(blocks)}; give a list of 'recurrent' and 'attention'.")
    if (block := blocks[index % len(blocks)]) not in ("recurrent", "attention"):
        raise SpecError(f"block_types has {short(block)}; it must be 'recurrent' or 'attention'.")
    return LINEAR if block == "recurrent" else SLIDING


def muse(values: PartValues, count: int, index: int) -> str:
    return SLIDING if (count - 1 - index) % 4 else FULL


def renamed(values: PartValues, name: str, names: Mapping[str, str]) -> str:
    """Return the name of a layer type in the model's code; other names are its own."""
    return names.get(name, name)


def deepseek_v4(values: PartValues, count: int, index: int) -> str:
    compressed, heavily = "compressed_sparse_attention", "heavily_compressed_attention"
    if (ratios := values.get("compress_ratios")) is None:
        return compressed if index > 2 and index % 2 else heavily
    names = {0: SLIDING, 4: compressed, 128: heavily}

    def name_of(ratio: Any) -> str | None:
        return names.get(ratio) if isinstance(ratio, int) else None

    return _listed_type("compress_ratios", ratios, count, index, name_of)


def ultrabert(values: PartValues, count: int, index: int) -> str:
    if (windows := values.get("attention_windows")) is None:
        return SLIDING if (index + 1) % 3 else FULL
    return _listed_type(
        "attention_windows", windows, count, index, lambda window: SLIDING if window else FULL
    )


def _listed_type(key: str, listed: Any, count: int, index: int, name_of: Callable[[Any], str | None]) -> str:
    """Return the type of a layer by a list with a value for each layer."""
    if not isinstance(listed, (list, tuple)) or index >= len(listed):
        raise SpecError(f"{key} is {short(listed)}; give a value for each of {count} layers.")
    if (name := name_of(listed[index])) is None:
        raise SpecError(f"{key}[{index}] is {short(listed[index])}, which is no kind of layer.")
    return name


def dots3_note(values: PartValues, count: int, index: int) -> str:
    slides = values.get("use_sliding_window", True) and index >= 2 and index % 4 != 1
    return SLIDING if slides else FULL


def dots3_name(values: PartValues, name: str) -> str:
    """Return the type of a layer of Dots 3: older configs call a layer with an indexer a full one."""
    indexed = values.get("use_dsa")
    if indexed is None and values.get("per_layer_config") is not None:
        return name
    older, newer = (FULL, "indexed_attention") if indexed in (None, True) else ("indexed_attention", FULL)
    return newer if name == older else name


def olmo_hybrid(values: PartValues, count: int, index: int) -> str:
    return FULL if index % 4 == 3 or (count < 4 and index == count - 1) else LINEAR


# The reason that the layer of a reading has no rotation; empty if it rotates whatever its type


def full_beside_windows(values: PartValues) -> str | None:
    """Let layers of full attention rotate in a model without windows: a null overrides the class's window."""
    return None if values.given("sliding_window") is not None else ""


def cohere2_moe_prefix(values: PartValues) -> str | None:
    """Let the layers of the dense prefix rotate with any attention."""
    index = values.index
    if index is None or values.get("prefix_dense_sliding_window_pattern", 1) != 1:
        return None
    types = values.get("mlp_layer_types")
    if isinstance(types, (list, tuple)) and index < len(types):
        return "" if types[index] == "dense" else None
    dense = values.integer("first_k_dense_replace") if values.get("first_k_dense_replace") is not None else 0
    return "" if index < dense else None


def muse_without_base(values: PartValues) -> str | None:
    """Apply the `layer_rope_theta` that Muse's class makes: every fourth layer from the last has no base."""
    if values.stated("layer_rope_theta") is not None:
        return None
    return why_by_index(values, lambda index: (values.integer("num_hidden_layers") - 1 - index) % 4 != 0)


def cross_attention(values: PartValues) -> str | None:
    """Leave out the layers of Mllama that attend to the image alone, without a position."""

    def rotates(index: int) -> bool:
        layers = values.get("cross_attention_layers", (3, 8, 13, 18, 23, 28, 33, 38))
        if not isinstance(layers, (list, tuple)):
            raise SpecError(f"cross_attention_layers is {short(layers)}; give a list of indices of layers.")
        return not is_among(layers, index)

    return why_by_index(values, rotates)
