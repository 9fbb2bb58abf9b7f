"""Functions of conventions: the changes of one model, where a model type has several, or of older content.

Each takes the content of the config's part. See `conventions.toml` for the rows that are named.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rope_array._config._values import value_at
from rope_array._errors import short

Content = Mapping[str, Any]
Row = dict[str, Any]


def _is_stated(content: Content, keys: Sequence[str]) -> bool:
    return any(value_at(content, key) is not None for key in keys)


def _has_value(content: Content, pair: tuple[str, Any]) -> bool:
    value = value_at(content, pair[0])
    return bool(value == pair[1]) and isinstance(value, bool) is isinstance(pair[1], bool)


# The conditions of a case, by what the case states for them.
_CONDITIONS: dict[str, Callable[[Content, Any], bool]] = {
    "stated": _is_stated,  # one of the keys
    "missing": lambda content, keys: not _is_stated(content, keys),
    "null": lambda content, key: content.get(key, 0) is None,
    "filled": lambda content, keys: all(map(content.get, keys)),
    "value": _has_value,  # a key and its value
    "object": lambda content, key: isinstance(value_at(content, key), Mapping),
}


def first_of(content: Content, cases: Sequence[Row]) -> Row:
    """Return the changes of the first case whose conditions hold; none if there is no such case."""
    for case in cases:
        if all(holds(content, case[name]) for name, holds in _CONDITIONS.items() if name in case):
            return {name: value for name, value in case.items() if name not in _CONDITIONS}
    return {}


def chatglm(content: Content) -> Row:
    if (has_two_axes := content.get("position_encoding_2d")) is not None:
        return {"like": "chatglm_2d" if has_two_axes else "chatglm_1d"}
    if content.get("rope_ratio") in (None, 1) or content.get("num_layers") != 28:
        return {}
    return {"like": "chatglm_divided" if divides_positions(content) else "chatglm_multiplied"}


def divides_positions(content: Any) -> bool:
    """Return whether `rope_ratio` divides positions, as in ChatGLM2-6B-32K."""
    name = content.get("_name_or_path")
    return isinstance(name, str) and "chatglm2" in name.lower()


def qwen(content: Content) -> Row:
    return _by_powers(content, ("seq_length",)) if content.get("use_dynamic_ntk", True) else {}


def telechat(content: Content) -> Row:
    factor = ", and attention_factor=0.1*ln(n/training_seqlen) + 1"
    return _by_powers(content, ("base_seqlen", "training_seqlen"), factor)


def _by_powers(content: Content, keys: tuple[str, ...], factor: str = "") -> Row:
    """Note a base that grows in steps beyond the trained context."""
    length = short(next((content[key] for key in keys if content.get(key) is not None), 8192))
    note = (
        f"beyond {length} positions the model's code multiplies the base: for n positions add "
        f"scaling=NTKAware(2**ceil(log2(n/{length}) + 1) - 1){factor}"
    )
    return {"note": note, "cache": "length"}


def olmo_hybrid(content: Content) -> Row:
    """Take a null base for no rotation, as the code does."""
    rules = (content.get(name) for name in ("rope_scaling", "rope_parameters"))
    stated = {key: value for rule in rules if isinstance(rule, Mapping) for key, value in rule.items()}
    base = (stated if "rope_theta" in stated else content).get("rope_theta", 0)
    return {"never": "rope_theta is null"} if base is None else {}


# Content that the model's class converts


def last_is_full(content: Content) -> Row:
    """Give the last layer full attention, even if the config states another type."""
    types = content.get("layer_types")
    if not isinstance(types, (list, tuple)) or not types:
        return {}
    return {"converted": {"layer_types": [*types[:-1], "full_attention"]}}


def dory(content: Content) -> Row:
    """Count an attention and its MLP as one layer, where the config lists MLPs as layers."""
    types, count = content.get("layer_types"), content.get("num_hidden_layers")
    if not isinstance(types, (list, tuple)) or "mlp" not in types:
        return {}
    count = 36 if count is None else count
    layers = count // 2 if isinstance(count, int) else count
    return {"converted": {"layer_types": types[::2], "num_hidden_layers": layers}}
