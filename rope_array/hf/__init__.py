"""Patch a transformers model with one call: exact angles, and our rotation. `unpatch` undoes it.

`patch` changes one model, not its class and not the module of its code. The functions need PyTorch and
transformers; importing `rope_array.hf` needs neither.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from rope_array._errors import PatchError

from ._report import Report

if TYPE_CHECKING:
    from rope_array._examine import Examination
    from rope_array._fingerprint import Fingerprint

__all__ = ["Report", "examine", "fingerprint", "patch", "patched", "unpatch"]


def __dir__() -> list[str]:
    return __all__


def patch(model: Any, *, angles: Literal["exact", "float32"] = "exact") -> Report:
    """Replace the rotary embedding of a model.

    `patch` first compares the config's rope with the model's tables, and its functions with ours on small
    random arrays. Only then it changes the model.

    The patch is on this model in this process. Saved weights do not contain it: call `patch` again after
    `from_pretrained` or `load_state_dict`. `copy.deepcopy` copies it; pickle and ``torch.save(model)`` raise.

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
        The modules that were patched, with their ropes, and the modules left unchanged, with the reasons.

    Raises
    ------
    PatchError
        The model is already patched, has no supported rotary module, has tables that differ from its config's
        rope, or has a `forward` that another library replaced. The model is unchanged.

    Examples
    --------
    >>> import rope_array as ra
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=2)
    >>> model = LlamaForCausalLM(config)
    >>> ra.hf.patch(model)
    3 modules patched, angles='exact'
      model.rotary_emb              LlamaRotaryEmbedding: exact tables
                                      RoPE(head_dim=16, pairing='half')
      model.layers.*.self_attn (2)  LlamaAttention: rotation
    """
    from . import _patch  # imported late: it needs torch

    return _patch.patch(model, angles)


def unpatch(model: Any) -> bool:
    """Undo `patch`: every module is as before.

    Parameters
    ----------
    model : torch.nn.Module
        A model that `patch` has changed, a copy of it, or a module that contains it.

    Returns
    -------
    bool
        Whether the model was patched. False, for example at a second call, if there was nothing to undo.

    Raises
    ------
    PatchError
        Another library has replaced a method that `patch` had set. The model is unchanged.

    Examples
    --------
    >>> import rope_array as ra
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=2)
    >>> model = LlamaForCausalLM(config)
    >>> report = ra.hf.patch(model)
    >>> ra.hf.unpatch(model)
    True
    """
    from . import _patch  # imported late: it needs torch

    return _patch.unpatch(model)


@contextmanager
def patched(model: Any, *, angles: Literal["exact", "float32"] = "exact") -> Iterator[Report]:
    """Patch a model inside a `with` block, and unpatch it on exit, also after an exception.

    A block may unpatch the model itself. If unpatching fails after an exception in the block, the exception
    gets a note.

    Parameters
    ----------
    model, angles
        As in `patch`, with the same exceptions.

    Returns
    -------
    context manager
        Yields the `Report` of `patch`.

    Examples
    --------
    >>> import rope_array as ra
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=2)
    >>> model = LlamaForCausalLM(config)
    >>> with ra.hf.patched(model, angles="float32") as report:
    ...     len(report)
    3
    """
    report = patch(model, angles=angles)
    try:
        yield report
    except BaseException as error:
        try:
            unpatch(model)
        except PatchError as reason:  # the exception of the block matters more
            error.add_note(f"rope_array.hf: the model is still patched. {reason}")
        raise
    unpatch(model)


def fingerprint(model: Any, *, length: int | None = None) -> "Fingerprint":
    """Measure the rotations of a model, patched or plain, by layer, as this process computes them.

    The model runs once, and stays as it is. Call this in each process of a sharded model, and in the
    `torch.autocast` of the training.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers that runs on tokens alone. Vision and audio encoders are not measured.
    length : int, optional
        Positions 0 to length - 1 are measured; by default ``max_position_embeddings`` of the config.

    Returns
    -------
    Fingerprint
        Equal to an engine's (`rope_array.vllm.fingerprint`) if its rotations have the same bits.

    Raises
    ------
    FingerprintError
        The model needs other inputs, or rotates by code that is unknown.
    """
    from . import _fingerprint  # imported late: it needs torch

    return _fingerprint.fingerprint(model, length)


def examine(model: Any, *, target: Any = None, **inputs: Any) -> "Examination":
    """Run a model, and compare the rotation of each layer with the config.

    Without inputs there are three passes of random tokens: a text, positions up to the config's
    `max_position_embeddings`, and one token in each row of the batch. The model keeps its dtype, and is as
    before afterwards. Compiled models run without their compiled code.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers, patched or not, with any changes of its code.
    target : torch.nn.Module, optional
        The model for which `model` drafts tokens. A rope of the draft's config that no layer of the target's
        has is a finding.
    **inputs
        The arguments of one forward pass, such as input_ids, attention_mask, position_ids or pixel_values.
        Needed for models that read more than a text. The positions of a text are `position_ids`, or else
        counted from 0, with or without the padding of `attention_mask`, or from the end of a cache on.

    Returns
    -------
    Examination
        The findings, by the number of a layer, or by the name of a module where the number is not unique; and
        under `unseen` the modules that were not compared, with the reasons.

    Raises
    ------
    PatchError
        `model` is no module or has no config, or a pass of random tokens raises: give the inputs.

    Examples
    --------
    >>> import rope_array as ra
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=2)
    >>> model = LlamaForCausalLM(config)
    >>> print(ra.hf.examine(model))
    2 layers compared: no findings
    >>> model.config.rope_parameters["rope_theta"] = 500_000.0
    >>> print(ra.hf.examine(model))
    2 layers compared: 1 finding
      layers 0-1: base: base 10000, expected base 500000
        remedy: give the code rope_theta of the config, and the exponents 2i/rotary_dim
    """
    from . import _examine  # imported late: it needs torch

    return _examine.examine(model, inputs, target)
