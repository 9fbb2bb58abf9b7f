"""One timed rotation, on ready arrays of each library and layout."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np


class Timed(NamedTuple):
    """One rotation, as a call without arguments, and the array of its result if the call returns none.

    `layout` is the order of axes, "bhsd" or "bshd". The result is judged outside the timing.
    """

    call: Callable[[], Any]
    layout: str = "bhsd"
    result: Any = None


class NotServedError(Exception):
    """The peer does not support a case, so its row is empty rather than failed."""


class Arrays:
    """The arrays of one case, made on first use and then shared: x, positions and a result.

    `shape` is (B, H, S, D), or (H, S, D), to which most peers add a batch of one. A layout of (B, S, H, D)
    holds the same numbers in that order of memory.
    """

    def __init__(self, shape, dtype, pairing, start=0, threads=1):
        self.flat = len(shape) == 3
        self.shape = (1, *shape) if self.flat else tuple(shape)
        self.dtype, self.pairing, self.start, self.threads = dtype, pairing, start, threads
        self._made = {}

    @cached_property
    def pos(self):
        """Positions: (S,), or (B, 1) for one token each of sequences of several lengths."""
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
        """Return the result array that all rows with `out=` share."""
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
    """Return standard normal numbers: none is subnormal, which is slow."""
    numbers = np.random.default_rng(0).standard_normal(shape, np.float32)
    return numbers.astype(numpy_dtype(dtype), copy=False)


def numpy_dtype(name):
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def as_torch(array):
    """Return a tensor of the same memory; ml_dtypes' bfloat16 becomes PyTorch's."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def compiled(function, *arguments):
    """Compile by torch.compile for one case's shapes, and call once, so that compiling is not timed."""
    import torch

    call = torch.compile(function, dynamic=False, fullgraph=True)
    call(*arguments)
    return Timed(lambda: call(*arguments))


def jitted(function, *arguments, layout="bhsd"):
    """Compile by jax.jit; the call waits for its result, as JAX returns before it is computed."""
    import jax

    call = jax.jit(function)
    call(*arguments).block_until_ready()
    return Timed(lambda: call(*arguments).block_until_ready(), layout)


class Rotate(NamedTuple):
    """A rotation on a GPU: a function of a tuple of tensors, which returns a tuple of tensors.

    `layout` is the order of axes that the function takes and returns: "bshd", "bhsd", or "tokens", which is
    (B S, H, D). A function that is `in_place` writes into its arguments: it gets copies of its own.
    `gradient` is True if the result can be differentiated, `graph` if a CUDA graph can capture the call.
    """

    function: Callable[[tuple], tuple]
    layout: str = "bshd"
    in_place: bool = False
    gradient: bool = True
    graph: bool = True


def compiled_on_gpu(function, mode=None):
    """Return the function compiled for one case's shapes; its first call compiles.

    `mode="reduce-overhead"` captures CUDA graphs in the next calls, which copy their arguments.
    """
    import torch
    import torch._functorch.config

    # A backward that is timed alone keeps its graph, which donated buffers forbid.
    torch._functorch.config.donated_buffer = False
    return torch.compile(function, dynamic=False, fullgraph=True, mode=mode)
