"""What `bench/speed.py` times: one rotation of arrays that are ready, as each library wants them."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np


class Timed(NamedTuple):
    """One rotation, without arguments: its result, or where that stands if it returns none.

    `layout` is the order of axes, "bhsd" or "bshd"; the result is read to be judged, outside of the timing.
    """

    call: Callable[[], Any]
    layout: str = "bhsd"
    result: Any = None


class NotServedError(Exception):
    """What a peer does not offer, so that a case of it is left empty rather than failed."""


class Arrays:
    """The arrays of one case, made when first asked for and then shared: x, positions and room for a result.

    `shape` is (B, H, S, D), or (H, S, D) for who takes that; others get a batch of one. A layout of
    (B, S, H, D) holds the same numbers in that order of memory.
    """

    def __init__(self, shape, dtype, pairing, start=0, threads=1):
        self.flat = len(shape) == 3
        self.shape = (1, *shape) if self.flat else tuple(shape)
        self.dtype, self.pairing, self.start, self.threads = dtype, pairing, start, threads
        self._made = {}

    @cached_property
    def pos(self):
        """Positions: (S,), or (B, 1) of one token each, as sequences of several lengths have."""
        batch, _, tokens, _ = self.shape
        if batch > 1 and tokens == 1:
            return (self.start + 17 * np.arange(batch))[:, None]
        return self.start + np.arange(tokens)

    def numpy(self, layout="bhsd"):
        return self._once(("numpy", layout), lambda: self._ordered(layout))

    def torch(self, layout="bhsd"):
        return self._once(("torch", layout), lambda: as_torch(self.numpy(layout)))

    def jax(self, layout="bhsd"):
        import jax.numpy as jnp

        return self._once(("jax", layout), lambda: jnp.asarray(self.numpy(layout)))

    def out(self):
        """One array for all who are told where to write, so that none of them finds other memory."""
        return self._once("out", lambda: np.zeros_like(self.numpy()))

    def torch_out(self):
        return as_torch(self.out())

    def one_start(self):
        if self.pos.ndim > 1:
            raise NotServedError("takes one start for all")
        return int(self.pos[0])

    def only(self, pairing):
        if self.pairing != pairing:
            raise NotServedError(f"{pairing} pairs alone")

    def _once(self, key, make):
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _ordered(self, layout):
        if layout == "bhsd":
            return normal(self.shape, self.dtype)
        return np.ascontiguousarray(self.numpy().swapaxes(1, 2))


def normal(shape, dtype):
    """Standard normal numbers: none is subnormal, which processors are slow with."""
    numbers = np.random.default_rng(0).standard_normal(shape, np.float32)
    return numbers.astype(numpy_dtype(dtype), copy=False)


def numpy_dtype(name):
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def as_torch(array):
    """A tensor of the same memory; NumPy's bfloat16 is not one that PyTorch knows."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def compiled(function, *arguments):
    """A torch.compile for one case's shapes, called once here: compiling is no part of a call."""
    import torch

    made = torch.compile(function, dynamic=False, fullgraph=True)
    made(*arguments)
    return Timed(lambda: made(*arguments))


def jitted(function, *arguments, layout="bhsd"):
    """A jax.jit, whose results are waited for: JAX returns before they are there."""
    import jax

    made = jax.jit(function)
    made(*arguments).block_until_ready()
    return Timed(lambda: made(*arguments).block_until_ready(), layout)
