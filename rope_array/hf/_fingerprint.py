"""The fingerprint of a model of transformers: a pass at the probe's positions, and each rotation again."""

from functools import partial
from typing import Any

import torch

from rope_array._errors import FingerprintError
from rope_array._fingerprint import Fingerprint
from rope_array._fingerprint._layers import APART, Layer, fingerprint_of_layers, positions_of_pass

from ._patch import check_module
from ._record import RotationCall, observe


def fingerprint(model: Any, length: int | None) -> Fingerprint:
    """Measure the rotations of a model; see `rope_array.hf.fingerprint`."""
    check_module(model)
    length = length_of(model) if length is None else length
    sections = (getattr(text_config_of(model), "rope_parameters", None) or {}).get("mrope_section") or ()
    passes = [_calls(model, pos) for pos in positions_of_pass(length, len(sections))]
    return fingerprint_of_layers(map(_layer, *passes), passes[0][0].before[0], length)


def text_config_of(model: Any) -> Any:
    """Return the config of a model's text, or None."""
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def length_of(model: Any) -> int:
    """Return the length of a model's context, by its config."""
    length = getattr(text_config_of(model), "max_position_embeddings", None)
    if isinstance(length, int):
        return length
    name = type(model).__name__
    raise FingerprintError(f"the config of {name} has no max_position_embeddings; give length=.")


def _calls(model: Any, positions: Any) -> list[RotationCall]:
    """Return the rotations of a pass at positions, (S,) or (coordinates, S)."""
    name, device = type(model).__name__, next(model.parameters()).device
    pos = torch.from_numpy(positions).unsqueeze(-2).to(device)
    tokens = torch.zeros((1, pos.shape[-1]), dtype=torch.int64, device=device)
    try:
        recording = observe(model, {"input_ids": tokens, "position_ids": pos})
    except Exception as error:  # whatever a model raises that needs other inputs
        raise FingerprintError(
            f"{name} does not run on input_ids and position_ids alone: {error}. Give the part that does, "
            "or a shorter length=."
        ) from error
    rotated = [p.flatten()[-tokens.numel() :] for p in recording.positions.values()]
    if not recording.calls or not all(torch.equal(p, pos.flatten()[-len(p) :]) for p in rotated):
        raise FingerprintError(
            f"{name} has no rotation at the position_ids that it gets, or rotates by unknown code. {APART}"
        )
    return recording.calls


def _layer(call: RotationCall, *others: RotationCall) -> Layer:
    functions: Any = [partial(_rotate, c) for c in (call, *others)]
    return call.layer, call.name, call.before[0].shape[-1], functions


def _rotate(call: RotationCall, x: Any) -> Any:
    """Rotate heads, (heads, S, head_dim), in the shape that a call had."""
    axes = (0, 1) if call.seq_axis == -2 else (1, 0)
    shape = [1] * (call.before[0].ndim - 3)
    x = x.permute(*axes, 2)
    return call.rotate(x.reshape(*shape, *x.shape)).reshape(x.shape).permute(*axes, 2)
