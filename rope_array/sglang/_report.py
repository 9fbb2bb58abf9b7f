"""The report of a model that SGLang has loaded."""

from typing import Any

from rope_array._engines.report import EngineReport, entry_of_tables, reason_of_tables, report_of, rotates

__all__ = ["PACKAGE", "reason_of", "report"]

PACKAGE = "sglang.srt.layers.rotary_embedding"


def report(model: Any) -> EngineReport:
    """List the rotary embeddings of a model that SGLang has loaded, with their ropes and tables.

    Parameters
    ----------
    model : torch.nn.Module
        A model of SGLang. Some rows of each table are compared with exact values.

    Returns
    -------
    EngineReport
        The ropes and tables, with their number of layers, and the modules with tables of SGLang's.
    """
    from ._runs import RUNS  # imported late: it needs PyTorch

    def entry_of(layer: Any, names: tuple[str, ...]) -> Any:
        if not rotates(type(layer).__name__):
            return None
        return entry_of_tables(layer, names, reason_of(layer), RUNS)

    return report_of(model, entry_of)


def reason_of(layer: Any, length: int = 0) -> str:
    """Return why the tables of a layer cannot be filled, or ""."""
    from ._runs import RUNS

    return reason_of_tables(layer, PACKAGE, RUNS, length)
