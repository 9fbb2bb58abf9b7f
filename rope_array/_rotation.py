"""Cos and sin as a value: made once per forward pass, used by every layer."""

from typing import Any, NamedTuple

from . import _registry
from ._plan import Layout


class Rotation(NamedTuple):
    """Cos and sin of a rope at some positions, ready to rotate arrays.

    Made by `RoPE.rotation`. It is a named tuple, which the tree utilities of JAX and PyTorch take apart and
    put together without being told of it: cos and sin are its leaves, and the static rest is the key of a
    dictionary without leaves, which trees keep as structure. So it passes through jax.jit, jax.vmap,
    jax.lax.scan, torch.func and torch.export as it is, whatever was imported first.
    """

    cos: Any
    sin: Any
    static: dict[Layout, tuple[()]]

    @property
    def layout(self) -> Layout:
        return next(iter(self.static))

    def apply(self, x: Any, *, seq_axis: int = -2, backend: str | None = None) -> Any:
        xs = x if type(x) is tuple else (x,)
        path = _registry.choose(xs[0], backend)
        ys = path.rotate(xs, self.cos, self.sin, self.layout, seq_axis, _registry.run)
        return ys if type(x) is tuple else ys[0]

    def inverse(self) -> "Rotation":
        layout = self.layout
        a = layout.amplitude
        back = layout.transposed(1.0 / a)
        if a == 1.0:
            return Rotation(self.cos, -self.sin, {back: ()})
        return Rotation(self.cos * a**-2, self.sin * -(a**-2), {back: ()})

    def adjoint(self) -> "Rotation":
        layout = self.layout
        return Rotation(self.cos, -self.sin, {layout.transposed(layout.amplitude): ()})
