"""Rotary position embedding (RoPE) for every array library, exact at every position."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._apply import apply
from ._errors import (
    ArrayTypeError,
    BackendError,
    ConfigError,
    PatchError,
    PositionError,
    RoPEError,
    ShapeError,
    SpecError,
)
from ._rope import RoPE
from ._rotation import Rotation
from ._spec.axes import Axes

__all__ = [
    "ArrayTypeError",
    "Axes",
    "Backend",
    "BackendError",
    "ConfigError",
    "DynamicNTK",
    "Explanation",
    "Linear",
    "Llama3",
    "LongRoPE",
    "NTKAware",
    "PatchError",
    "Periods",
    "PositionError",
    "Proportional",
    "Reversed",
    "RoPE",
    "RoPEError",
    "Rotation",
    "ShapeError",
    "SpecError",
    "YaRN",
    "apply",
    "backend_tools",
    "backends",
    "config",
    "convert",
    "diagnose",
    "explain",
    "hf",
    "plots",
    "positions",
    "testing",
]

if TYPE_CHECKING:
    from . import backend_tools, config, convert, hf, positions
    from . import torch as torch
    from . import vllm as vllm
    from ._diagnose import diagnose
    from ._explain import Backend, Explanation, backends, explain
    from ._spec.scaling import (
        DynamicNTK,
        Linear,
        Llama3,
        LongRoPE,
        NTKAware,
        Periods,
        Proportional,
        Reversed,
        YaRN,
    )

# Names imported on first use, with their modules: most programs need few.
# `torch` and `vllm` are not in __all__: `from rope_array import *` would hide those packages' own names.
_MODULES = ("backend_tools", "config", "convert", "hf", "plots", "positions", "testing", "torch", "vllm")
_RULES = "Reversed DynamicNTK Linear Llama3 LongRoPE NTKAware Periods Proportional YaRN"
_LATE = {
    **dict.fromkeys(_RULES.split(), "_spec.scaling"),
    **dict.fromkeys(("Backend", "Explanation", "backends", "explain"), "_explain"),
    "diagnose": "_diagnose",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":  # looked up when asked for: reading metadata takes longer than the rest
        return import_module(f"{__name__}._version").version()
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _LATE:
        value = globals()[name] = getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
