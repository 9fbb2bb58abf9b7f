"""The report of a model that vLLM has made."""

import re
from dataclasses import dataclass
from typing import Any

from rope_array._rope import RoPE

__all__ = ["EngineReport", "ReplacedModule", "UnchangedModule", "report"]


@dataclass(frozen=True)
class ReplacedModule:
    """A rotary embedding that `rope_array` replaced.

    Attributes
    ----------
    cls : str
        The name of vLLM's class.
    rope : RoPE or dict
        Its rope; of a model that vLLM takes from transformers also a dict of ropes by layer type.
    names : tuple of str
        The modules of the model that hold it. vLLM shares one rotary embedding between layers.
    """

    cls: str
    rope: RoPE | dict[str, RoPE]
    names: tuple[str, ...]


@dataclass(frozen=True)
class UnchangedModule:
    """A module that rotates, or makes tables for it, without `rope_array`.

    Attributes
    ----------
    cls : str
        The name of its class.
    names : tuple of str
        Its names in the model.
    reason : str
        Why it was left, if `rope_array` has tried to replace it.
    """

    cls: str
    names: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class EngineReport:
    """The rotary embeddings of a model in vLLM.

    Attributes
    ----------
    entries : tuple of ReplacedModule
        The rotary embeddings that were replaced.
    left : tuple of UnchangedModule
        The modules that rotate as without `rope_array`, such as vision encoders with code of their own.
    """

    entries: tuple[ReplacedModule, ...]
    left: tuple[UnchangedModule, ...]

    def __repr__(self) -> str:
        count = len(self.entries)
        lines = [f"{count} rotary embedding{'s' if count != 1 else ''} by rope_array"]
        lines += [f"  {len(e.names)} x {e.cls}: {e.rope!r}" for e in self.entries]
        for left in self.left:
            reason = f": {left.reason}" if left.reason else ""
            lines.append(f"  not by rope_array: {len(left.names)} x {left.cls}, {left.names[0]}{reason}")
        return "\n".join(lines)


def report(model: Any) -> EngineReport:
    """List the rotary embeddings of a model that vLLM has made, with their ropes.

    Parameters
    ----------
    model : torch.nn.Module
        A model of vLLM. ``llm.apply_model(rope_array.vllm.report)`` calls the function in each worker.

    Returns
    -------
    EngineReport
        The ropes, with their number of layers, and the modules that rotate without `rope_array`.
    """
    from . import _transformers  # imported late: it needs torch

    modules: dict[int, tuple[Any, list[str]]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        modules.setdefault(id(module), (module, []))[1].append(name)
    entries, left = [], []
    for module, names in modules.values():
        cls, rope = type(module).__name__, _replaced_rope(module)
        if rope is not None:
            entries.append(ReplacedModule(cls, rope, tuple(names)))
        elif _rotates(cls):
            left.append(UnchangedModule(cls, tuple(names), _transformers.reasons.get(module, "")))
    return EngineReport(tuple(entries), tuple(left))


def _replaced_rope(module: Any) -> Any:
    """Return the rope of a module that `rope_array` has replaced, else None."""
    from . import _layer, _transformers

    return module.rope if isinstance(module, _layer.ExactLayer) else _transformers.ropes.get(module)


def _rotates(cls: str) -> bool:
    """Return whether a class has the name of a rotary embedding. `ApplyRotaryEmb` is handed its tables."""
    return bool(re.search("[Rr]otary|R[Oo][Pp][Ee]", cls)) and cls != "ApplyRotaryEmb"
