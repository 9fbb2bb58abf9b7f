"""The fingerprint of a model that vLLM has made."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rope_array._engines.report import rotates
from rope_array._engines.ropes import REFUSED, ROPES
from rope_array._errors import FingerprintError

if TYPE_CHECKING:
    from rope_array._fingerprint import Fingerprint
    from rope_array._fingerprint._layers import Layer

__all__ = ["fingerprint"]


def fingerprint(model: Any, *, length: int | None = None) -> "Fingerprint":
    """Measure the rotations of a model of vLLM, by layer, as ``llm.apply_model`` runs this in a worker.

    Each rotary embedding is called, outside of compiled graphs and with or without ROPE_ARRAY_VLLM. A model
    that vLLM takes from transformers runs once.

    Parameters
    ----------
    model, length
        As in `rope_array.hf.fingerprint`.

    Returns
    -------
    Fingerprint
        Equal to a trainer's if its rotations have the same bits.

    Raises
    ------
    FingerprintError
        A table ends before `length`, where vLLM would read other memory; or a layer is no plain rotation.
    """
    import torch  # imported late, with everything that imports it

    from rope_array._fingerprint._layers import fingerprint_of_layers
    from rope_array.hf import _fingerprint, _patch

    length = _fingerprint.length_of(model) if length is None else length
    modules = [
        (name, module)
        for name, module in model.named_modules(remove_duplicate=False)
        if rotates(type(module).__name__) and not _patch.TOWER.search(name)
    ]
    if any(type(module).__module__.startswith("transformers.") for _, module in modules):
        with _attention_without_cache(model):
            return _fingerprint.fingerprint(model.model, length)
    like = next(p for p in model.parameters() if p.is_floating_point() and p.itemsize > 1)
    with torch.inference_mode():
        return fingerprint_of_layers(_layers(model, modules, length), like, length)


@contextmanager
def _attention_without_cache(model: Any) -> Iterator[None]:
    """Let attentions return at once, as in the pass by which vLLM measures its memory."""
    from vllm.forward_context import ForwardContext, override_forward_context

    layers = {module.layer_name: module for module in model.modules() if hasattr(module, "layer_name")}
    with override_forward_context(ForwardContext(layers, None, {}, skip_compiled=True)):
        yield


def _layers(model: Any, modules: list[tuple[str, Any]], length: int) -> "Iterator[Layer]":
    from rope_array._fingerprint._layers import APART, positions_of_pass
    from rope_array.hf._record import layer_of

    for name, module in modules:
        if not is_called(model.get_submodule(name.rpartition(".")[0])):
            continue
        cls, rows = type(module).__name__, rows_of_tables(module)
        if cls not in ROPES:
            reason = REFUSED.get(cls, "this class is unknown to rope_array")
            raise FingerprintError(f"{name} ({cls}) is not measured: {reason}. {APART}")
        if rows < length:
            raise FingerprintError(
                f"the table of {name} ({cls}) ends at position {rows}, and the length is {length}. Give "
                f"length={rows} in both programs, or set ROPE_ARRAY_VLLM=1, which needs no tables."
            )
        positions = positions_of_pass(length, len(getattr(module, "mrope_section", None) or ()))
        yield (
            layer_of(name),
            name,
            module.head_size,
            [partial(rotate_by_layer, module, pos) for pos in positions],
        )


def is_called(attention: Any) -> bool:
    """Return whether an attention calls its rotary embedding: Step 3.5, EXAONE 4, Cohere."""
    names = ("apply_rope_all_layers", "force_rope", "v1")
    flags = [getattr(attention, name) for name in names if hasattr(attention, name)]
    return bool(getattr(attention, "use_rope", not flags or any(flags) or attention.sliding_window))


def rows_of_tables(layer: Any) -> float:
    """Return the number of positions in the tables of a layer."""
    tables = [len(table) for name, table in layer.named_buffers() if "cos_sin" in name]
    if tables and hasattr(layer, "use_long_rope"):
        short: int = layer.original_max_position_embeddings  # the rows of the short factors come first
        return tables[0] - short if layer.use_long_rope else short
    return min(tables, default=math.inf)


def rotate_by_layer(layer: Any, positions: Any, x: Any) -> Any:
    """Rotate heads, (heads, S, head_dim), by a layer that works in place, and stays as it is."""
    import torch

    heads, is_deepseek = x.transpose(0, 1).contiguous(), type(layer).__name__.startswith("Deepseek")
    q, k = ((heads if is_deepseek else heads.flatten(1)).clone() for _ in range(2))
    buffers = dict(layer._buffers)  # vLLM casts a table to the dtype of q, and keeps the result
    try:
        y, _ = layer(torch.from_numpy(positions).to(x.device), q, k)
    finally:
        layer._buffers.update(buffers)
    return y.view(heads.shape).transpose(0, 1)
