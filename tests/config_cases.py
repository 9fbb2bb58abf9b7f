"""Short forms for tests of configs."""

import pytest

import rope_array as ra
from rope_array import ConfigError
from rope_array.config import read


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
