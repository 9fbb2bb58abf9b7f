"""Small configs of transformers' models: the default config, reduced by the names of its keys.

`tiny_config` serves each model type of docs/models.md. The names of most keys tell their sizes;
tiny_configs.toml has the values that they do not tell, families.toml what else the tests know of a family.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

HEAD, HEADS, HIDDEN, VOCAB = 32, 2, 64, 128
KINDS = 4  # a list with more values does not say which kind of layer each layer is


def load(name):
    """Read a TOML file of this folder."""
    return tomllib.loads(Path(__file__).with_name(name).read_text("utf-8"))


def by_family(table):
    """Return a table with a key for each family: a key may name several."""
    return {name: value for names, value in table.items() for name in names.split()}


TABLES, FAMILY = load("tiny_configs.toml"), load("families.toml")
SIZES, CHANGES = TABLES["sizes"].items(), by_family(TABLES["changes"])
CHANGES["cohere_compass"]["text_config"]["rope_parameters"]["full_attention"] = None  # which TOML has not
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
