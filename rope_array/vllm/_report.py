"""The report of a model that vLLM has made."""

from typing import Any

from rope_array._engines.report import (
    EngineReport,
    FilledTable,
    ReplacedModule,
    UnchangedModule,
    entry_of_tables,
    report_of,
    rotates,
)

__all__ = ["EngineReport", "FilledTable", "ReplacedModule", "UnchangedModule", "report"]


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
    from rope_array._engines import fill

    from . import _tables  # imported late: it needs vLLM

    def entry_of(module: Any, names: tuple[str, ...]) -> Any:
        if module not in _tables.layers:
            return _entry(module, names)
        reason = _tables.reason_of(module)
        return entry_of_tables(module, names, reason, fill.RUNS, fill.rope_of_tables)

    return report_of(model, entry_of)


def _entry(module: Any, names: tuple[str, ...]) -> ReplacedModule | UnchangedModule | None:
    """Return the entry of a module; None if it does not rotate."""
    from . import _layer, _transformers

    cls, is_exact = type(module).__name__, isinstance(module, _layer.ExactLayer)
    rope = module.rope if is_exact else _transformers.ropes.get(module)
    if rope is not None:
        return ReplacedModule(cls, rope, names)
    reason = _transformers.reasons.get(module, "")
    return UnchangedModule(cls, names, reason) if rotates(cls) else None
