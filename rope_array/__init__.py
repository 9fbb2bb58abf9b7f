"""Rotary position embedding (RoPE) for every array library, exact at every position."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._apply import RoPE, apply
from ._axes import Axes
from ._errors import ArrayTypeError, BackendError, PositionError, RoPEError, ShapeError, SpecError
from ._rotation import Rotation
from ._scaling import DynamicNTK, Linear, Llama3, LongRoPE, NTKAware, Periods, Proportional, YaRN

__all__ = [
    "ArrayTypeError",
    "Axes",
    "BackendError",
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
    "config",
    "convert",
    "diagnose",
    "positions",
]

if TYPE_CHECKING:
    from . import config, convert, positions
    from ._diagnose import diagnose


def __getattr__(name: str) -> Any:
    if name == "__version__":  # looked up when asked for: reading metadata takes longer than the rest
        from importlib.metadata import version

        return version("rope-array")
    if name in ("config", "convert", "positions"):  # imported when asked for: most programs need one or none
        return import_module(f"{__name__}.{name}")
    if name == "diagnose":
        from ._diagnose import diagnose

        return diagnose
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
