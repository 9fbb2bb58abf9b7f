"""The report of a model that vLLM has made."""

from dataclasses import dataclass
from typing import Any

from rope_array._rope import RoPE

__all__ = ["Entry", "Left", "Report", "report"]


@dataclass(frozen=True)
class Entry:
    """A rotary embedding that `rope_array` replaced.

    Attributes
    ----------
    cls : str
        The name of vLLM's class.
    rope : RoPE
        Its rope.
    names : tuple of str
        The modules of the model that hold it. vLLM shares one rotary embedding between layers.
    """

    cls: str
    rope: RoPE
    names: tuple[str, ...]


@dataclass(frozen=True)
class Left:
    """A module that rotates, or makes tables for it, without `rope_array`.

    Attributes
    ----------
    cls : str
        The name of its class.
    names : tuple of str
        Its names in the model.
    """

    cls: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The rotary embeddings of a model in vLLM.

    Attributes
    ----------
    entries : tuple of Entry
        The rotary embeddings that were replaced.
    left : tuple of Left
        The modules that rotate as without `rope_array`, such as vision encoders with code of their own.
    """

    entries: tuple[Entry, ...]
    left: tuple[Left, ...]

    def __repr__(self) -> str:
        lines = [f"{len(self.entries)} rotary embeddings by rope_array"]
        lines += [f"  {len(e.names)} x {e.cls}: {e.rope!r}" for e in self.entries]
        lines += [f"  not by rope_array: {len(e.names)} x {e.cls}, {e.names[0]}" for e in self.left]
        return "\n".join(lines)


def report(model: Any) -> Report:
    """See `rope_array.vllm.report`."""
    from ._layer import ExactLayer

    modules: dict[int, tuple[Any, list[str]]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        modules.setdefault(id(module), (module, []))[1].append(name)
    entries, left = [], []
    for module, names in modules.values():
        if isinstance(module, ExactLayer):
            entries.append(Entry(type(module).__name__, module.rope, tuple(names)))
        elif _rotates(type(module).__name__):
            left.append(Left(type(module).__name__, tuple(names)))
    return Report(tuple(entries), tuple(left))


def _rotates(cls: str) -> bool:
    """Return whether a class has the name of a rotary embedding. `ApplyRotaryEmb` is handed its tables."""
    return any(word in cls.lower() for word in ("rotary", "rope")) and cls != "ApplyRotaryEmb"
