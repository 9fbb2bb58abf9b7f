"""Serve models by vLLM with exact angles: set ``ROPE_ARRAY_VLLM`` to ``tables`` or to ``1``.

With ``tables``, vLLM keeps its classes and its kernels, and its own tables get exact values. With ``1``,
`rope_array` rotates, without tables.

vLLM finds `register` by an entry point and calls it in each of its processes. Without the variable `register`
returns at once, and vLLM is unchanged. Importing `rope_array.vllm` imports neither vLLM nor PyTorch.
"""

import os

from rope_array._errors import PatchError

from ._examine import examine
from ._fingerprint import fingerprint
from ._report import EngineReport, FilledTable, ReplacedModule, UnchangedModule, report

__all__ = [
    "EngineReport",
    "FilledTable",
    "ReplacedModule",
    "UnchangedModule",
    "examine",
    "fingerprint",
    "register",
    "report",
]


def __dir__() -> list[str]:
    return __all__


VARIABLE = "ROPE_ARRAY_VLLM"


def register() -> None:
    """Replace vLLM's rotary embeddings in this process, or their tables, as ROPE_ARRAY_VLLM says.

    vLLM calls this function before it makes a model. A program that makes layers of vLLM itself can call it
    too, also repeatedly.

    Raises
    ------
    PatchError
        ROPE_ARRAY_VLLM is not 0, 1 or tables, or this version of vLLM has no class that can be replaced.

    Notes
    -----
    A rotary embedding that is no plain rotation, or that `rope_array` does not know: with ``1`` it raises
    `PatchError` when vLLM makes it, so that the engine does not start. With ``tables`` it stays vLLM's, with
    a warning and a line of the `report`; it raises only if its table is shorter than ``max_model_len``.
    """
    value = os.environ.get(VARIABLE, "0")
    if value not in ("", "0", "1", "tables"):
        raise PatchError(
            f"The environment variable {VARIABLE} is {value!r}. Set it to tables for exact tables in vLLM's "
            "rotary embeddings, to 1 for the rotary embeddings of rope_array, or to 0 for vLLM's own."
        )
    if value in ("1", "tables"):
        from . import _register  # imported late: it needs vLLM

        _register.register(value)
