"""The write of rows into slots of a cache, as a primitive of JAX.

On the CPU it is a call of the C++ kernel, which writes into the memory of a donated cache. There, XLA's
scatter converts a whole cache of bfloat16 to float32 and back. Elsewhere it is the scatter.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as xp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from . import _custom_call
from ._varying import varied_as

write_p = Primitive("rope_array_write")


def write(cache: Any, rows: Any, slots: Any, axes: tuple[int, ...]) -> Any:
    """Return a cache with rows at slots, of which -1 is none.

    `axes` of the cache have pages and slots, or slots alone; rows have its other axes after one of tokens.
    """
    return write_p.bind(varied_as(cache, rows, slots), rows, slots, axes=axes)


def _scatter(cache: Any, rows: Any, slots: Any, *, axes: tuple[int, ...]) -> Any:
    size = cache.shape[axes[-1]]
    place: list[Any] = [slice(None)] * cache.ndim
    # Dropped, and distinct: JAX differentiates a scatter of unique indices.
    outside = cache.shape[axes[0]] + xp.arange(slots.size, dtype=slots.dtype)
    place[axes[0]] = xp.where(slots < 0, outside, slots // size if len(axes) == 2 else slots)
    if len(axes) == 2:
        place[axes[1]] = slots % size
    else:  # indices of several axes put tokens first
        rows = xp.moveaxis(rows, 0, axes[0])
    return cache.at[tuple(place)].set(rows, mode="drop", unique_indices=True)


def _jvp(primals: Any, tangents: Any, *, axes: tuple[int, ...]) -> Any:
    written, (dcache, drows, _) = write_p.bind(*primals, axes=axes), tangents
    if type(dcache) is type(drows) is ad.Zero:
        return written, ad.Zero(dcache.aval)
    dcache, drows = map(ad.instantiate_zeros, (dcache, drows))
    return written, _scatter(dcache, drows, primals[2], axes=axes)


def _batch(arrays: Any, batch_axes: Any, *, axes: tuple[int, ...]) -> Any:
    return jax.vmap(partial(_scatter, axes=axes), batch_axes)(*arrays), 0


def _lower(ctx: Any, *operands: Any, axes: tuple[int, ...]) -> Any:
    if _custom_call.serves(ctx, None):
        return _custom_call.lower_write(ctx, *operands, axes=axes)
    return mlir.lower_fun(partial(_scatter, axes=axes), multiple_results=False)(ctx, *operands)


write_p.def_impl(_scatter)
write_p.def_abstract_eval(lambda cache, *_, axes: cache.update(weak_type=False))
ad.primitive_jvps[write_p] = _jvp
batching.primitive_batchers[write_p] = _batch
mlir.register_lowering(write_p, _lower)
