"""The rotations of a model that vLLM has made, against its config."""

from typing import TYPE_CHECKING, Any

from rope_array._engines.report import rotates
from rope_array._errors import RoPEError

from . import _fingerprint

if TYPE_CHECKING:
    from rope_array._examine import Examination

__all__ = ["examine"]

_TOKENS = 64  # near position 0, and as many before the end


def examine(model: Any) -> "Examination":
    """Compare the rotary embeddings of a model of vLLM with its config, by layer.

    Each rotates random heads at near positions, and before the end of its table or of the model's context.

    Parameters
    ----------
    model : torch.nn.Module
        A model of vLLM. ``llm.apply_model(rope_array.vllm.examine)`` calls the function in each worker.

    Returns
    -------
    Examination
        Its `unseen` has modules of vision towers and of transformers, and modules that are no plain rotation.

    Raises
    ------
    ConfigError
        The config of the model cannot be read.
    """
    import numpy as np  # imported late, with everything that imports PyTorch
    import torch

    from rope_array import _examine
    from rope_array.hf import _patch, _record

    ropes, rng = _examine.ropes_of(model.config), np.random.default_rng(0)
    context = getattr(model.config.get_text_config(), "max_position_embeddings", 4096)
    like = next(p for p in model.parameters() if p.is_floating_point() and p.itemsize > 1)
    layers, findings, unseen = [], [], []
    for name, module in model.named_modules(remove_duplicate=False):
        attention, cls = model.get_submodule(name.rpartition(".")[0]), type(module)
        if not rotates(cls.__name__) or not _fingerprint.is_called(attention):
            continue
        if _patch.TOWER.search(name) or not hasattr(module, "head_size"):
            unseen.append((name, f"{cls.__module__}.{cls.__name__} is called in another way"))
            continue
        layer = _record.layer_of(name)
        try:
            rope = ropes.get(layer) or ropes[None]
            end, count = (
                int(min(_fingerprint.rows_of_tables(module), context)),
                rope.axes.count if rope.axes else 0,
            )
            tokens = sorted({*range(_TOKENS), *range(end - _TOKENS, end)} & {*range(end)})
            pos = rng.permuted([tokens] * (count or 1), axis=1)
            x = torch.from_numpy(rng.standard_normal((2, len(tokens), rope.head_dim))).to(like)
            with torch.inference_mode():
                y = _fingerprint.rotate_by_layer(module, pos if count else pos[0], x)
            findings += _examine.findings_of(x, y, pos.T if count else pos[0], rope, layer=layer)
            layers.append(layer)
        except (RoPEError, AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            unseen.append((name, f"{cls.__name__}: {error}"))
    return _examine.Examination(tuple(dict.fromkeys(layers)), tuple(findings), tuple(unseen))
