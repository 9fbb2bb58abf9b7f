"""The cases of tests/configs/*.json, a config and what it is read as, and short forms for tests of configs.

A file is a list of groups. The `base` of a group is in each of its configs, and `expect` in each of its
cases. `tests/test_config_cases.py` has the meaning of a case's keys. A rope is written as its repr.
"""

import copy
import json
from pathlib import Path
from struct import pack

import pytest

import rope_array as ra
from rope_array import ConfigError
from rope_array.config import read


def _read_cases():
    for file in sorted((Path(__file__).parent / "configs").glob("*.json")):
        for group in json.loads(file.read_text("utf-8")):
            for name, case in group["cases"].items():
                config = {**group.get("base", {}), **case["config"]}
                yield f"{file.stem}: {name}", {**group.get("expect", {}), **case, "config": config}


CASES = dict(_read_cases())


def config_of(name, **changes):
    """Return the config of a case, with changed keys."""
    return {**copy.deepcopy(CASES[name]["config"]), **changes}


def model(model_type, **keys):
    """Return the config of a model type."""
    return {"model_type": model_type, **keys}


def half(head_dim, **fields):
    """Return a rope of half pairs."""
    return ra.RoPE(head_dim, pairing="half", **fields)


def rope(config, **which):
    return read(config, **which).rope


def refuse(text, config, **which):
    with pytest.raises(ConfigError, match=text):
        read(config, **which)


def heads(width, count):
    return {"hidden_size": width, "num_attention_heads": count}


def gguf_file(path, keys, tensors=()):
    """Write a GGUF 3 file (ggml's docs/gguf.md) of numbers, texts, lists of texts, and tensors."""

    def text(value):
        value = value if isinstance(value, bytes) else value.encode()
        return pack("<Q", len(value)) + value

    def typed(value):
        if isinstance(value, list):
            return pack("<I", 9), pack("<IQ", 8, len(value)) + b"".join(map(text, value))
        if isinstance(value, str):
            return pack("<I", 8), text(value)
        return (
            (pack("<I", 6), pack("<f", value))
            if isinstance(value, float)
            else (pack("<I", 4), pack("<I", value))
        )

    content = pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys))
    content += b"".join(text(key) + b"".join(typed(value)) for key, value in keys.items())
    offset, data = 0, b""
    for name, values in dict(tensors).items():
        content += text(name) + pack("<IQIQ", 1, len(values), 0, offset)
        data += pack(f"<{len(values)}f", *values).ljust(-(-4 * len(values) // 32) * 32, b"\0")
        offset = len(data)
    path.write_bytes(content + bytes(-len(content) % 32) + data)
    return path
