"""The replacement of a rotary embedding of vLLM: it keeps vLLM's attributes, and has no tables."""

from typing import Any

import torch
from vllm.model_executor.custom_op import CustomOp

from rope_array._engines.ropes import ROPES, patch_coordinates
from rope_array._errors import PatchError, RoPEError
from rope_array._rope import RoPE

__all__ = ["ExactLayer", "ExactPatches", "exact_class"]

TABLES = ("cos_sin_cache", "cos_sin_cache_bf16", "long_short_cos_sin_cache")


def exact_class(cls: type) -> type:
    """Return a subclass of a class of ROPES that rotates by its rope."""
    mixin = ExactPatches if cls.__name__ == "Llama4VisionRotaryEmbedding" else ExactLayer
    return type(cls.__name__, (mixin, cls), {"__doc__": cls.__doc__, "__module__": cls.__module__})


def _read_rope(layer: Any) -> RoPE:
    """Return the rope of a layer of vLLM by the table ROPES."""
    name = type(layer).__name__
    try:
        return ROPES[name](layer)
    except (AttributeError, RoPEError, TypeError, ValueError, ZeroDivisionError) as error:
        raise PatchError(
            f"rope_array cannot read the rope of vLLM's {name}: {error}. "
            "Set ROPE_ARRAY_VLLM=0 for this model."
        ) from error


def _no_table(name: str) -> property:
    def read(self: Any) -> Any:
        # No AttributeError: hasattr and getattr with a default would go on without the table.
        raise PatchError(
            f"vLLM reads {type(self).__name__}.{name}. With ROPE_ARRAY_VLLM=1 there is no table of cos "
            "and sin, and a kernel that takes it cannot run. Turn that kernel off, or set ROPE_ARRAY_VLLM=0."
        )

    return property(read)


class ExactLayer(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """The methods of a replacement, before a class of vLLM in the order of its bases."""

    head_size: int
    dtype: torch.dtype
    _like: torch.Tensor

    cos_sin_cache = _no_table("cos_sin_cache")
    long_short_cos_sin_cache = _no_table("long_short_cos_sin_cache")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._check_tables()
        self.rope = _read_rope(self)
        self._is_operator = isinstance(self, CustomOp) and self.enabled()
        # Moves with the module to its device.
        super().register_buffer("_like", torch.empty(0, dtype=torch.float32), persistent=False)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # Models of ERNIE 4.5 change the pairing of a layer that exists; vLLM reads it in each call.
        if name == "is_neox_style" and "rope" in vars(self):
            self.rope = _read_rope(self)

    def _check_tables(self) -> None:
        """Raise if a table has another name: it would be empty."""
        for name, _ in self.named_buffers():
            raise PatchError(
                f"vLLM's {type(self).__name__} has the buffer {name}, which is unknown to rope_array. "
                "Set ROPE_ARRAY_VLLM=0 for this model."
            )

    def register_buffer(self, name: str, tensor: torch.Tensor | None, persistent: bool = True) -> None:
        """Leave out the tables."""
        if name not in TABLES:
            super().register_buffer(name, tensor, persistent)

    def _compute_cos_sin_cache(self, *args: Any) -> torch.Tensor:
        return torch.empty(0)

    def get_cos_sin(self, seqlen: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin of the positions below `seqlen`: vision encoders index them by patch."""
        positions = torch.arange(seqlen, device=self._like.device)
        cos, sin = self.rope.rotation(positions, like=self._like)
        return cos.to(self.dtype), sin.to(self.dtype)

    def forward(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor | None = None,
        offsets: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rotate query and key in place; in a compiled graph, to new tensors.

        vLLM's own classes do the same. Its compiler would copy query and key before each operator that writes
        in place. With "+rotary_embedding" in the engine's `custom_ops`, models rely on writing in place in
        graphs too.

        Parameters
        ----------
        positions : tensor of int, shape (T,) or (coordinates, T)
            For a rope with axes, one coordinate serves all.
        query, key : tensor, shape (T, heads * head_size) or (T, heads, head_size)
        offsets : tensor of int, shape (T,), optional
            Added to the positions.
        """
        if offsets is not None:
            positions = positions + offsets
        positions = self._coordinates_last(positions)
        xs = (query,) if key is None else (query, key)
        heads = tuple(self._split_heads(x, positions) for x in xs)
        if torch.compiler.is_compiling() and not self._is_operator:
            ys = self.rope.apply(heads, positions, seq_axis=-3)
            query, *keys = (y.reshape(x.shape) for x, y in zip(xs, ys, strict=True))
            return query, keys[0] if keys else None
        self.rope.apply(heads, positions, seq_axis=-3, out=heads)
        return query, key

    # vLLM chooses by platform; the rotation chooses by the tensors.
    forward_native = forward_cpu = forward_cuda = forward_hip = forward_xpu = forward
    forward_tpu = forward_oot = forward

    def _coordinates_last(self, positions: torch.Tensor) -> torch.Tensor:
        """Return positions as (T,), or as (T, coordinates) for a rope with axes: a view."""
        if self.rope.axes is None:
            return positions.flatten()
        if positions.ndim == 1:  # text: all coordinates are equal
            assert self.rope.axes.count is not None  # Axes counts its coordinates
            return positions[:, None].expand(-1, self.rope.axes.count)
        return positions.movedim(0, -1)

    def _split_heads(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """View (T, heads * head_size) or (T, heads, head_size) as the latter."""
        tokens, width = positions.shape[0], self.head_size
        if x.ndim == 3 and x.shape[0] == tokens and x.shape[-1] != width:
            raise PatchError(f"vLLM gives heads of {x.shape[-1]} features to a rotary embedding of {width}")
        heads = x.shape[-2] if x.ndim == 3 else x.shape[-1] // width  # -1 is ambiguous without tokens
        return x.view(tokens, heads, width)


class ExactPatches(ExactLayer):
    """The methods of a replacement of Llama4VisionRotaryEmbedding: its positions are an image's patches."""

    _patches: torch.Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        coordinates = torch.tensor(patch_coordinates(self), dtype=torch.int32)
        self.register_buffer("_patches", coordinates, persistent=False)

    def forward(  # type: ignore[override]
        self, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate query and key, of shape (images, patches + 1, heads, head_size), in place."""
        self.rope.apply((query, key), self._patches, seq_axis=-3, out=(query, key))
        return query, key

    forward_native = forward_cpu = forward_cuda = forward  # type: ignore[assignment]
    forward_hip = forward_xpu = forward_tpu = forward_oot = forward  # type: ignore[assignment]
