"""The rotation in place, in eager mode and in graphs that Dynamo traces."""

import torch

from rope_array._rope import RoPE

__all__ = ["name_of", "rotate"]

# Ropes by their repr, a constant of compiled graphs. vLLM reads a graph from its cache in another process,
# after the layers have made the same ropes.
_ROPES: dict[str, RoPE] = {}


def name_of(rope: RoPE) -> str:
    """Return the name of a rope for `rotate`."""
    name = repr(rope)
    _ROPES[name] = rope
    return name


def rotate(name: str, heads: list[torch.Tensor], positions: torch.Tensor) -> None:
    """Rotate tensors of shape (..., T, heads, head_dim) in place."""
    if torch.compiler.is_compiling():
        torch.ops.rope_array.rotate_in_place(heads, positions, name)
    else:
        _rotate(heads, positions, name)


def _rotate(heads: list[torch.Tensor], positions: torch.Tensor, name: str) -> None:
    _ROPES[name].apply(tuple(heads), positions, seq_axis=-3, out=tuple(heads))


def _return_nothing(heads: list[torch.Tensor], positions: torch.Tensor, name: str) -> None:
    return None


_OPERATOR = torch.library.custom_op("rope_array::rotate_in_place", _rotate, mutates_args=["heads"])
_OPERATOR.register_fake(_return_nothing)
