"""Rotary position embedding (RoPE) for every array library, exact at every position."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._apply import RoPE, apply
from ._axes import Axes
from ._errors import (
    ArrayTypeError,
    BackendError,
    ConfigError,
    PositionError,
    RoPEError,
    ShapeError,
    SpecError,
)
from ._rotation import Rotation

__all__ = [
    "ArrayTypeError",
    "Axes",
    "BackendError",
    "Backwards",
    "ConfigError",
    "DynamicNTK",
    "Linear",
    "Llama3",
    "LongRoPE",
    "NTKAware",
    "Periods",
    "PositionError",
    "Proportional",
    "RoPE",
    "RoPEError",
    "Rotation",
    "ShapeError",
    "SpecError",
    "YaRN",
    "apply",
    "backends",
    "config",
    "convert",
    "diagnose",
    "explain",
    "positions",
]

if TYPE_CHECKING:
    from . import config, convert, positions
    from ._diagnose import diagnose
    from ._explain import explain
    from ._scaling import (
        Backwards,
        DynamicNTK,
        Linear,
        Llama3,
        LongRoPE,
        NTKAware,
        Periods,
        Proportional,
        YaRN,
    )

# What is imported when it is asked for, from where: most programs need little of it.
_RULES = "Backwards DynamicNTK Linear Llama3 LongRoPE NTKAware Periods Proportional YaRN"
_LATE = {
    **dict.fromkeys(_RULES.split(), "_scaling"),
    "diagnose": "_diagnose",
    "explain": "_explain",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":  # looked up when asked for: reading metadata takes longer than the rest
        from importlib.metadata import version

        return version("rope-array")
    if name in ("backends", "config", "convert", "positions"):
        return import_module(f"{__name__}.{name}")
    if name in _LATE:
        value = globals()[name] = getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
