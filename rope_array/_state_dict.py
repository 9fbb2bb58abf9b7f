"""The arrays of a state dict that belong to a pairing, found by their names and measured by a config."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from . import _config, _errors
from ._config._part import listed
from ._config._tables import read_table
from ._rope import RoPE

_TABLE = read_table("projections.toml")
_NAME = re.compile("".join(_TABLE["name"].values()))
_TYPES = {name: types.split() for name, types in _TABLE["types"].items()}
_FORMATS, _SHARED_KEYS = _TABLE["formats"].values(), ("num_kv_shared_layers", "kv_source_layers")
_BLOCK = 128  # features of a scale in checkpoints of FP8


def arguments_by_name(arrays: Mapping[Any, Any], config: Any) -> dict[str, dict[str, Any]]:
    """Return the arguments of `convert.fused`, or for norms of `convert.weights`, by the names of arrays.

    Raises ConfigError for an unknown model and for names that do not fit it, ShapeError for sizes.
    """
    matches = [match for name in arrays if isinstance(name, str) and (match := _NAME.fullmatch(name))]
    model = _Model(config, [match[0] for match in matches] or [*map(str, arrays)])
    rotated = [(match, options) for match in matches if (options := model.arguments(match, arrays[match[0]]))]
    model.check_pairs(rotated)
    return {match[0]: options for match, options in rotated}


class _Model:
    """The layers of a config whose names are known."""

    def __init__(self, config: Any, names: list[str]) -> None:
        document = _config.load(config)
        with _config.refusals(document):
            part = _config.find_part(document, None)
            indices = range(_config.layer_count(part)) or (None,)
            readings = [_config.fields(document, None, index) for index in indices]
            self.layers = [(RoPE(**fields), reader.values) for fields, reader in readings]
        self.name, self.key = part.name, part.key or part.inferred.get("format")
        self.get = self.layers[0][1].get
        rotating = [layer for layer in self.layers if layer[0].rotary_dim]
        self.ropes = [*{(r.head_dim, r.rotary_dim, r.rotary_start): (r, v) for r, v in rotating}.values()]
        if not self.ropes:
            raise self.refusal("no layer rotates, so no array belongs to a pairing")
        if self.key not in (*_TYPES["known"], *_FORMATS):
            raise self.refusal(f"the names of its projections are not known; the arrays are {listed(names)}")
        if not any(map(_NAME.fullmatch, names)):
            raise self.refusal(f"by its name, none of the arrays {listed(names)} is of q or k")
        if name := next(filter(self.get, ("attention_k_eq_v", "rotary_value")), None):
            raise self.refusal(f"{name} is true: values have the pairing of keys, and outputs with them")

    def refusal(self, why: str) -> _errors.ConfigError:
        by_hand = "give its arrays one by one to convert.weights or convert.fused, with a rope"
        return _errors.ConfigError(f"{self.name}: {why}. By hand: {by_hand}.")

    def arguments(self, match: re.Match[str], w: Any) -> dict[str, Any]:
        """Return the arguments for an array; none for an array without rotated features."""
        name, projection, (rope, values) = match[0], match["projection"], self._layer(match)
        if not rope.rotary_dim or match["unmoved"]:
            return {}
        if (projection in ("wq", "wk")) is not (self.key in _FORMATS):
            raise self.refusal(f"{name} is no name of the config's format; give this checkpoint's config")
        if not (match["rows"] or match["scale"]):
            raise self.refusal(f"{name} is unknown, or packs features: dequantise the model first")
        shape = tuple(getattr(w, "shape", ())) or (1,)
        options = self._heads(projection, rope, values, shape[0])
        size = options.pop("size")
        if match["scale"] and shape[0] != size and _keeps_blocks(options["rope"], size, shape[0]):
            return {}
        if shape[0] != size if projection else shape[-1] % size:
            raise _errors.ShapeError(
                f"{name} is {_errors.describe(w)}; by the config it has {size} features. Give the config of "
                "this state dict, of the whole model, and unpack weights with several features in a number."
            )
        return options

    def _layer(self, match: re.Match[str]) -> tuple[RoPE, Any]:
        """Return the rope and the values of an array's layer."""
        if (index := int(match["index"])) < len(self.layers) and not match[0].startswith("mtp."):
            return self.layers[index]
        if len(self.ropes) > 1:
            raise self.refusal(f"{match[0]} is of a layer beyond the config's, which differ")
        return self.ropes[0]  # of layers of multi-token prediction

    def _heads(self, name: str | None, rope: RoPE, values: Any, size: int) -> dict[str, Any]:
        """Return the heads and the size of a projection; its size tells the numbers that the config lacks."""
        if name is None:  # a norm, of one head or of all
            return {"rope": rope, "axis": -1, "size": rope.head_dim}
        table = _TABLE["fused"]
        order, groups = table.get(f"{self.key}:{name}") or table.get(name) or ["k" if "k" in name else "q", 1]
        if name == "q_proj" and self.key in _TYPES["gated"]:
            order, groups = "qg", "num_heads"
        is_latent = any("qk_rope_head_dim" in key for key in values.convention.width)
        if is_latent:
            before = values.integer("kv_lora_rank" if order == "k" else "qk_nope_head_dim")
            width = before + rope.rotary_dim + (values.integer("v_head_dim") if name == "q_gate_proj" else 0)
            rope = replace(rope, head_dim=width, rotary_start=before, rotary_dim=rope.rotary_dim)
        of_q, of_kv = (sum(map(order.count, parts)) for parts in ("qg", "kv"))
        stated = values.integer if self.key not in _TYPES["uneven"] else lambda key, default: default
        count = size // rope.head_dim
        heads = stated("num_attention_heads", max(1, count // max(1, of_q)))
        kv_default = max(1, (count - heads * of_q) // max(1, of_kv))
        kv_heads = 1 if is_latent else stated("num_key_value_heads", kv_default)
        numbers = {"num_heads": heads, "num_kv_heads": kv_heads}
        size = rope.head_dim * (heads * of_q + kv_heads * of_kv)
        return {"rope": rope, "order": order, "groups": numbers.get(groups, groups), "size": size, **numbers}

    def check_pairs(self, rotated: list[tuple[re.Match[str], dict[str, Any]]]) -> None:
        """Refuse the weight of q without the weight of k in an attention, and the reverse."""
        base = [(m[0][: m.start("projection")], o.get("order", "")) for m, o in rotated if "lora" not in m[0]]
        with_q, with_k = ({attention for attention, order in base if part in order} for part in "qk")
        if (alone := with_q ^ with_k) and not any(map(self.get, _SHARED_KEYS)):
            raise self.refusal(
                f"{min(alone)} has one of q and k only; give the state dict of the whole model"
            )


def _keeps_blocks(rope: RoPE, size: int, scales: int) -> bool:
    """Return whether the rotated features of each head have one scale."""
    block = size // scales if size % scales == 0 else _BLOCK
    starts = range(rope.rotary_start, size, rope.head_dim)
    blocks = {(start // block, (start + rope.rotary_dim - 1) // block) for start in starts}
    return -(-size // block) == scales and all(first == last for first, last in blocks)
