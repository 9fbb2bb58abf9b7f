"""Layers of each class of vLLM's rotary embeddings, stock or by rope_array; vLLM's rotation in float64."""

import contextlib
import importlib
import pkgutil
import tomllib
import types
from pathlib import Path
from unittest import mock

import mpmath
import numpy as np
import torch
from hf._compare import FLOAT64, precision
from vllm.config import VllmConfig, set_current_vllm_config

PACKAGE = "vllm.model_executor.layers.rotary_embedding"
COMMON = {"head_size": 32, "rotary_dim": 32, "max_position_embeddings": 4096, "base": 10000.0}
COMMON |= {"is_neox_style": True, "dtype": torch.float32}
TABLE = tomllib.loads(Path(__file__).with_name("layers.toml").read_text("utf-8"))
# A layer by a name: the class, and the arguments that differ from COMMON.
LAYERS = {name: (cls, arguments) for cls, rows in TABLE.items() for name, arguments in rows.items()}
LAYERS["patches"][1]["dtype"] = torch.complex64


def class_of(name):
    """Return a class of vLLM's package, exported or not."""
    package = importlib.import_module(PACKAGE)
    if hasattr(package, name):
        return getattr(package, name)
    return getattr(importlib.import_module(f"{PACKAGE}.ernie45_vl_rope"), name)


def all_classes():
    """Return the names of the classes of vLLM's package, exported or not, that rotate or make tables."""
    package = importlib.import_module(PACKAGE)
    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    modules = [importlib.import_module(f"{PACKAGE}.{name}") for name in names]
    classes = (cls for module in modules for cls in vars(module).values() if isinstance(cls, type))
    return {cls.__name__ for cls in classes if "RotaryEmbedding" in cls.__name__} - {"RotaryEmbeddingBase"}


@contextlib.contextmanager
def engine_config(max_model_len=1024):
    """Set the configuration that layers of vLLM ask for."""
    phi3 = f"{PACKAGE}.phi3_long_rope_scaled_rope.get_current_vllm_config"
    config = types.SimpleNamespace(model_config=types.SimpleNamespace(max_model_len=max_model_len))
    with set_current_vllm_config(VllmConfig()), mock.patch(phi3, return_value=config):
        yield


def make(name, stock=False, **changes):
    """Make a layer of LAYERS: vLLM's own if `stock`, past the replacement of its `__new__`."""
    cls_name, arguments = LAYERS[name]
    cls, arguments = class_of(cls_name), {**COMMON, **arguments, **changes}
    with engine_config(2048 if name == "longrope long" else 1024):
        if not stock:
            return cls(**arguments)
        layer = torch.nn.Module.__new__(cls)
        layer.__init__(**arguments)
        return layer


def coordinates_of(name):
    """Return the number of coordinates of a position; 0 for a plain number."""
    return len(LAYERS[name][1].get("mrope_section", ()))


def stock_rotation(name, positions, x):
    """Return vLLM's own rotation in float64 of x, (T, heads, head_dim), at positions that its table has."""
    with precision(FLOAT64):
        layer = make(name, stock=True, dtype=FLOAT64)
        method = "forward" if "Interleaved" in type(layer).__name__ else "forward_native"
        q = x.double() if name == "deepseek" else x.double().flatten(1)
        y, _ = getattr(layer, method, layer.forward)(positions, q, q.clone())
        return y.view(x.shape)


def pairs_of(layer):
    """Return the features of each pair, (first, second)."""
    width = layer.rotary_dim
    i = torch.arange(width // 2)
    return (i, i + width // 2) if getattr(layer, "is_neox_style", True) else (2 * i, 2 * i + 1)


def frequencies(name):
    """Return vLLM's frequencies in float64, (coordinates, pairs), and its factor on cos and sin.

    Each coordinate is 1 in turn: the vector (1, 0) of a pair becomes A (cos ω, sin ω).
    """
    layer, count = make(name, stock=True), max(coordinates_of(name), 1)
    first, second = pairs_of(layer)
    x = torch.zeros(count, 1, layer.head_size, dtype=FLOAT64)
    x[..., first] = 1
    positions = torch.eye(count, dtype=torch.int64)
    y = stock_rotation(name, positions if coordinates_of(name) else positions[0], x)[:, 0]
    amplitude = torch.hypot(y[..., first], y[..., second]).max().item()
    return torch.atan2(y[..., second], y[..., first]).numpy(), amplitude


def exact_rotation(name, positions, x):
    """Return x, (T, heads, head_dim), rotated in float64 at any position, by `frequencies` and mpmath."""
    omegas, amplitude = frequencies(name)
    first, second = pairs_of(make(name, stock=True))
    positions = np.atleast_2d(positions.numpy())
    with mpmath.workprec(120):
        angles = [
            [mpmath.fdot(zip(map(int, p), map(mpmath.mpf, map(float, w)), strict=True)) for w in omegas.T]
            for p in positions.T
        ]
        cos, sin = (
            np.array([[float(f(a)) for a in row] for row in angles]) for f in (mpmath.cos, mpmath.sin)
        )
    cos, sin = (torch.from_numpy(table * amplitude)[:, None] for table in (cos, sin))
    y = x.double().clone()
    a, b = y[..., first].clone(), y[..., second].clone()
    y[..., first], y[..., second] = a * cos - b * sin, b * cos + a * sin
    return y
