"""Rotary position embedding (RoPE) for every array library, exact at every position."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from . import _errors
from ._apply import apply as apply
from ._attention import attention_inputs as attention_inputs
from ._errors import *  # noqa: F403
from ._rope import RoPE as RoPE
from ._rotation import Rotation as Rotation
from ._spec.axes import Axes as Axes

if TYPE_CHECKING:
    from . import backend_tools as backend_tools
    from . import config as config
    from . import convert as convert
    from . import hf as hf
    from . import onnx as onnx
    from . import positions as positions
    from . import sglang as sglang
    from . import torch as torch
    from . import vllm as vllm
    from ._diagnose import diagnose as diagnose
    from ._examine import Examination as Examination
    from ._examine import Finding as Finding
    from ._examine import examine as examine
    from ._explain import Backend as Backend
    from ._explain import Explanation as Explanation
    from ._explain import backends as backends
    from ._explain import explain as explain
    from ._fingerprint import Fingerprint as Fingerprint
    from ._fingerprint import fingerprint as fingerprint
    from ._spec.scaling import *  # noqa: F403

# Names imported on first use, with their modules: most programs need few. The others are scaling rules.
_MODULES = (
    *("backend_tools", "config", "convert", "hf", "onnx", "plots", "positions"),
    *("sglang", "testing", "torch", "vllm"),
)
_LATE = {
    **dict.fromkeys(("Backend", "Explanation", "backends", "explain"), "_explain"),
    **dict.fromkeys(("Examination", "Finding", "examine"), "_examine"),
    "diagnose": "_diagnose",
    **dict.fromkeys(("Fingerprint", "fingerprint"), "_fingerprint"),
}
_RULES = "_spec.scaling"


def __getattr__(name: str) -> Any:
    if name == "__version__":  # looked up when asked for: reading metadata takes longer than the rest
        return import_module(f"{__name__}._version").version()
    if name == "__all__":
        return _public_names()
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if not name.startswith("_"):
        module = import_module(f"{__name__}.{_LATE.get(name, _RULES)}")
        if name in module.__all__:
            value = globals()[name] = getattr(module, name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _public_names() -> list[str]:
    # Without these: `from rope_array import *` would hide the packages' own names.
    modules = {*_MODULES} - {"onnx", "sglang", "torch", "vllm"}
    rules = import_module(f"{__name__}.{_RULES}").__all__
    return sorted(
        [*_errors.__all__, "Axes", "RoPE", "Rotation", "apply", "attention_inputs", *_LATE, *modules, *rules]
    )


def __dir__() -> list[str]:
    # help() and other loops over `dir` import each module; `torch` alone fails without its library.
    missing = () if sys.modules.get("torch") or find_spec("torch") else ("torch",)
    return [*sorted({*_public_names(), *_MODULES}.difference(missing)), "__version__"]
