"""The report of a model that vLLM has made."""

import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from rope_array._rope import RoPE

__all__ = ["EngineReport", "FilledTable", "ReplacedModule", "UnchangedModule", "report"]


class FilledTable(NamedTuple):
    """A table of cos and sin with exact values.

    Attributes
    ----------
    name : str
        The name of the buffer.
    rows : int
        Its number of positions; more if a layer has several tables in one buffer.
    dtype : str
        Its dtype, as vLLM has chosen it.
    error : float
        The largest error that the rounding to this dtype leaves in cos and sin.
    """

    name: str
    rows: int
    dtype: str
    error: float

    def __str__(self) -> str:
        return f"{self.name}: {self.rows:,} rows, rounded to {self.dtype} (2^{math.log2(self.error):.0f})"


@dataclass(frozen=True)
class ReplacedModule:
    """A rotary embedding that `rope_array` replaced, or whose tables it filled.

    Attributes
    ----------
    cls : str
        The name of vLLM's class.
    rope : RoPE or dict
        Its rope; of a model that vLLM takes from transformers also a dict of ropes by layer type.
    names : tuple of str
        The modules of the model that hold it. vLLM shares one rotary embedding between layers.
    tables : tuple of FilledTable
        Its tables, with ``ROPE_ARRAY_VLLM=tables``.
    """

    cls: str
    rope: RoPE | dict[str, RoPE]
    names: tuple[str, ...]
    tables: tuple[FilledTable, ...] = ()


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
        Why it was left, if `rope_array` has tried to replace it or to fill its tables.
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
        The rotary embeddings that were replaced, or whose tables were filled.
    left : tuple of UnchangedModule
        The modules that rotate as without `rope_array`, such as vision encoders with code of their own.
    """

    entries: tuple[ReplacedModule, ...]
    left: tuple[UnchangedModule, ...]

    def __repr__(self) -> str:
        count = len(self.entries)
        lines = [f"{count} rotary embedding{'s' if count != 1 else ''} by rope_array"]
        for entry in self.entries:
            lines.append(f"  {len(entry.names)} x {entry.cls}: {entry.rope!r}")
            lines += [f"    {table}" for table in entry.tables]
        for left in self.left:
            reason = f": {left.reason}" if left.reason else ""
            lines.append(f"  not by rope_array: {len(left.names)} x {left.cls}, {left.names[0]}{reason}")
        return "\n".join(lines)


def report(model: Any) -> EngineReport:
    """List the rotary embeddings of a model that vLLM has made, with their ropes.

    Parameters
    ----------
    model : torch.nn.Module
        A model of vLLM. ``llm.apply_model(rope_array.vllm.report)`` calls the function in each worker. Some
        rows of each table that was filled are compared with exact values.

    Returns
    -------
    EngineReport
        The ropes, with their number of layers, and the modules that rotate without `rope_array`.
    """
    from . import _tables  # imported late: it needs vLLM

    modules: dict[int, tuple[Any, list[str]]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        modules.setdefault(id(module), (module, []))[1].append(name)
    listed = [
        (_entry_of_tables if module in _tables.layers else _entry)(module, tuple(names))
        for module, names in modules.values()
    ]
    entries = tuple(entry for entry in listed if isinstance(entry, ReplacedModule))
    return EngineReport(entries, tuple(entry for entry in listed if isinstance(entry, UnchangedModule)))


def _entry(module: Any, names: tuple[str, ...]) -> ReplacedModule | UnchangedModule | None:
    """Return the entry of a module; None if it does not rotate."""
    from . import _layer, _transformers

    cls, is_exact = type(module).__name__, isinstance(module, _layer.ExactLayer)
    rope = module.rope if is_exact else _transformers.ropes.get(module)
    if rope is not None:
        return ReplacedModule(cls, rope, names)
    reason = _transformers.reasons.get(module, "")
    return UnchangedModule(cls, names, reason) if _rotates(cls) else None


def _entry_of_tables(module: Any, names: tuple[str, ...]) -> ReplacedModule | UnchangedModule:
    """Return the entry of a layer whose tables were filled, after a look at what they have now."""
    import torch

    from rope_array._engines import fill

    from . import _tables

    cls, reason, tables = type(module).__name__, _tables.reason_of(module), []
    for name, (table, parts) in ({} if reason else fill.tables_of(module)).items():
        if not fill.is_filled(table, parts):
            reason = f"something has written other values into {name}"
        exponent = math.ceil(math.log2(max(rope.amplitude for rope, _ in parts)))
        error = torch.finfo(table.dtype).eps / 4 * 2.0**exponent
        tables.append(FilledTable(name, len(table), str(table.dtype).removeprefix("torch."), error))
    if reason:
        return UnchangedModule(cls, names, reason)
    return ReplacedModule(cls, fill.rope_of_tables(module), names, tuple(tables))


def _rotates(cls: str) -> bool:
    """Return whether a class has the name of a rotary embedding. `ApplyRotaryEmb` is handed its tables."""
    return bool(re.search("[Rr]otary|R[Oo][Pp][Ee]", cls)) and cls != "ApplyRotaryEmb"
