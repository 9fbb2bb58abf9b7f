"""Patch a model of transformers, with one call: exact angles, a faster rotation, and back again.

`patch` changes one model, not its class and not the module of its code. `unpatch` changes it back. Needs
PyTorch and transformers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from rope_array._errors import PatchError

from ._report import Entry, Left, Report

__all__ = ["Entry", "Left", "PatchError", "Report", "patch", "patched", "unpatch"]


def patch(model: Any, *, angles: Literal["exact", "float32"] = "exact") -> Report:
    """Replace the rotary embedding of a model.

    Everything is checked before anything is changed: the ropes that the config means against the model's own
    tables, and the replaced functions against the model's own, on small random arrays.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers, or a module that contains one, such as a model with PEFT's adapters.
    angles : {"exact", "float32"}
        "exact": cos and sin are exact at every position, and q and k are rotated in float32 and rounded once.
        "float32": the model's own numbers. The tables stay the model's, and in half precision its
        multiplication too.

    Returns
    -------
    Report
        The modules that were changed, with their ropes, and the modules left alone, with the reasons.

    Raises
    ------
    PatchError
        The model is patched already; has no rotary module that is known; has tables that are not those of its
        config; or another library has replaced the `forward` of a module. The model is unchanged.

    Examples
    --------
    >>> import rope_array as ra
    >>> from transformers import LlamaConfig, LlamaForCausalLM       # doctest: +SKIP
    >>> model = LlamaForCausalLM(LlamaConfig())                      # doctest: +SKIP
    >>> report = ra.hf.patch(model)                                  # doctest: +SKIP
    """
    from . import _patch  # imported late: it needs torch

    return _patch.patch(model, angles)


def unpatch(model: Any) -> None:
    """Undo `patch`: every module is as before.

    Parameters
    ----------
    model : torch.nn.Module
        A model that `patch` has changed, a copy of it, or a module that contains it.

    Raises
    ------
    PatchError
        The model is not patched, or another library has replaced a function that `patch` had put in place.
        The model is unchanged.

    Examples
    --------
    >>> import rope_array as ra
    >>> ra.hf.unpatch(model)                                         # doctest: +SKIP
    """
    from . import _patch  # imported late: it needs torch

    _patch.unpatch(model)


@contextmanager
def patched(model: Any, *, angles: Literal["exact", "float32"] = "exact") -> Iterator[Report]:
    """Patch a model inside a `with`; it is unpatched at the end, also by an exception.

    Parameters
    ----------
    model, angles
        As in `patch`, with the same exceptions.

    Yields
    ------
    Report
        As `patch` returns it.

    Examples
    --------
    >>> import rope_array as ra
    >>> with ra.hf.patched(model) as report:                         # doctest: +SKIP
    ...     model.generate(**inputs)
    """
    report = patch(model, angles=angles)
    try:
        yield report
    finally:
        unpatch(model)
