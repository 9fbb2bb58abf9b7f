"""Serve models by SGLang with exact tables of cos and sin: set ``ROPE_ARRAY_SGLANG=tables``.

SGLang keeps its classes and its kernels. It finds `register` by an entry point and calls it in each of its
processes. Without the variable `register` returns at once, and SGLang is unchanged. Importing
`rope_array.sglang` imports neither SGLang nor PyTorch.
"""

import os

from rope_array._errors import PatchError

from ._report import report

__all__ = ["register", "report"]


def __dir__() -> list[str]:
    return __all__


def register() -> None:
    """Let SGLang fill its tables with exact values, if the environment variable ROPE_ARRAY_SGLANG is tables.

    SGLang calls this function, and applies what it has registered. Repeated calls change nothing.

    Raises
    ------
    PatchError
        ROPE_ARRAY_SGLANG is neither 0 nor tables. SGLang logs the error, and starts with its own tables.

    Notes
    -----
    The tables are filled when SGLang has loaded a model and made them as long as its context. The engine does
    not start if a table stays shorter than the context. A rotary embedding that is no plain rotation, or that
    `rope_array` does not know, stays SGLang's, with a line of the `report`, which SGLang's log has.
    """
    value = os.environ.get("ROPE_ARRAY_SGLANG", "0")
    if value not in ("", "0", "tables"):
        raise PatchError(
            f"The environment variable ROPE_ARRAY_SGLANG is {value!r}. Set it to tables for exact tables in "
            "SGLang's rotary embeddings, or to 0 for SGLang's own."
        )
    if value == "tables":
        from . import _register  # imported late: it needs SGLang

        _register.register()
