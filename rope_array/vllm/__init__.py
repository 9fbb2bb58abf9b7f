"""Serve models by vLLM with exact angles and without tables: set ``ROPE_ARRAY_VLLM=1``.

vLLM finds `register` by an entry point and calls it in each of its processes. Without the variable `register`
returns at once, and vLLM is unchanged. Importing `rope_array.vllm` imports neither vLLM nor PyTorch.
"""

import os

from rope_array._errors import PatchError

from ._report import EngineReport, ReplacedModule, UnchangedModule, report

__all__ = ["EngineReport", "ReplacedModule", "UnchangedModule", "register", "report"]


def __dir__() -> list[str]:
    return __all__


VARIABLE = "ROPE_ARRAY_VLLM"


def register() -> None:
    """Replace vLLM's rotary embeddings in this process, if the environment variable ROPE_ARRAY_VLLM is 1.

    vLLM calls this function before it makes a model. A program that makes layers of vLLM itself can call it
    too, also repeatedly.

    Raises
    ------
    PatchError
        ROPE_ARRAY_VLLM is neither 0 nor 1, or this version of vLLM has no class that can be replaced.

    Notes
    -----
    A rotary embedding of vLLM that is no plain rotation, or that `rope_array` does not know, raises
    `PatchError` when vLLM makes it: the engine does not start.
    """
    value = os.environ.get(VARIABLE, "0")
    if value not in ("", "0", "1"):
        raise PatchError(
            f"The environment variable {VARIABLE} is {value!r}. Set it to 1 for the rotary embeddings of "
            "rope_array, or to 0 for vLLM's own."
        )
    if value == "1":
        from . import _register  # imported late: it needs vLLM

        _register.register()
