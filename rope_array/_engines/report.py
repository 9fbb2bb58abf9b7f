"""The report of a model that an engine has made. Importing it imports neither an engine nor PyTorch."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from rope_array._errors import RoPEError
from rope_array._rope import RoPE

__all__ = [
    "EngineReport",
    "FilledTable",
    "ReplacedModule",
    "UnchangedModule",
    "entry_of_tables",
    "reason_of_tables",
    "report_of",
    "rotates",
]


class FilledTable(NamedTuple):
    """A table of cos and sin with exact values.

    Attributes
    ----------
    name : str
        The name of the buffer.
    rows : int
        Its number of positions; more if a layer has several tables in one buffer.
    dtype : str
        Its dtype, as the engine has chosen it.
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
        The name of the engine's class.
    rope : RoPE or dict
        Its rope; of a model that vLLM takes from transformers also a dict of ropes by layer type.
    names : tuple of str
        The modules of the model that hold it. Engines share one rotary embedding between layers.
    tables : tuple of FilledTable
        Its tables, in the mode ``tables``.
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


Entry = ReplacedModule | UnchangedModule | None


@dataclass(frozen=True)
class EngineReport:
    """The rotary embeddings of a model in an engine.

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


def report_of(model: Any, entry_of: Callable[[Any, tuple[str, ...]], Entry]) -> EngineReport:
    """Return the report of a model, from the entry of each module, by the module and its names."""
    modules: dict[int, tuple[Any, list[str]]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        modules.setdefault(id(module), (module, []))[1].append(name)
    entries = [entry_of(module, tuple(names)) for module, names in modules.values()]
    filled = tuple(entry for entry in entries if isinstance(entry, ReplacedModule))
    return EngineReport(filled, tuple(entry for entry in entries if isinstance(entry, UnchangedModule)))


def reason_of_tables(layer: Any, package: str, by_class: Any, length: int = 0) -> str:
    """Return why the tables of a layer cannot be filled, or ""; its class is to be of an engine's package."""
    from . import fill, ropes  # imported late: PyTorch

    cls = type(layer)
    if not cls.__module__.startswith(package) or cls.__name__ not in by_class:
        return ropes.REFUSED.get(cls.__name__, "this class is unknown to rope_array")
    try:
        fill.tables_of(layer, length, by_class)
    except (AttributeError, RoPEError, TypeError, ValueError, ZeroDivisionError) as error:
        return str(error)
    return ""


def entry_of_tables(
    layer: Any,
    names: tuple[str, ...],
    reason: str,
    by_class: Any,
    rope_of: Callable[[Any], RoPE] | None = None,
) -> Entry:
    """Return the entry of a layer whose tables were filled, unless for a reason, after a look at them now.

    Its rope is by `rope_of`, else the rope of its last table.
    """
    import torch

    from . import fill

    cls, tables, rope = type(layer).__name__, [], None
    for name, (table, runs) in ({} if reason else fill.tables_of(layer, 0, by_class)).items():
        if not fill.is_filled(table, runs):
            reason = f"something has written other values into {name}"
        rope = runs[-1][0]
        exponent = math.ceil(math.log2(max(rope.amplitude for rope, _ in runs)))
        error = torch.finfo(table.dtype).eps / 4 * 2.0**exponent
        tables.append(FilledTable(name, len(table), str(table.dtype).removeprefix("torch."), error))
    if reason or rope is None:
        return UnchangedModule(cls, names, reason)
    return ReplacedModule(cls, rope_of(layer) if rope_of else rope, names, tuple(tables))


def rotates(cls: str) -> bool:
    """Return whether a class has the name of a rotary embedding. `ApplyRotaryEmb` is handed its tables."""
    return bool(re.search("[Rr]otary|R[Oo][Pp][Ee]", cls)) and cls != "ApplyRotaryEmb"
