"""Calls of jitted functions of JAX, for bench/calls.py.

jitted: x is (1, 32, 2048, 128), in the decode cases (1, 32, 1, 128). The copy is `x + 0`, for one token `x +
1`, into new memory; the textbook form is `x * cos + rotate_half(x) * sin` with float32 tables; the array form
is `backend="array-api"`, which XLA compiles and fuses. Positions are an argument: ours and the textbook form
compute their tables in each call. By Rotation, both get tables made before. Equinox rotates half pairs only,
at positions from 0, and its table is a constant of the function. Gradient: `jax.vjp(f, x)[1](g)`, so that XLA
drops the unused result; the copy is `g + 0`.

The cases with another operation compare the kernel with the array form where XLA could fuse the rotation with
it: a cast, a projection or a transposition before it, a factor after it. "alone" is the operation without it.
"""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from _harness import check

import rope_array as ra

HEADS, LENGTH, WIDTH, MODEL = 32, 2048, 128, 256
BASE, START = 10_000.0, 4095  # the base that Equinox's table has; the position of one token
TOLERANCE = {"float32": 2e-3, "bfloat16": 3e-2}  # angles of theirs are float32
SIZES = {"prefill": LENGTH, "decode": 1}
DTYPES, PAIRINGS, SOURCES = ("float32", "bfloat16"), ("half", "interleaved"), ("positions", "Rotation")
OPERATIONS = ("cast to float32", "projection", "transposition", "factor")


def jitted():
    for size, dtype, source, pairing in product(SIZES, DTYPES, SOURCES, PAIRINGS):
        by_positions = source == "positions"
        yield (
            f"{size}, {dtype}, {source}, {pairing}",
            partial(alone, SIZES[size], dtype, by_positions, pairing),
        )
    for size, operation, dtype in product(SIZES, OPERATIONS, DTYPES):
        if (operation, dtype) != ("cast to float32", "float32"):
            yield f"{size}, {dtype}, {operation}", partial(neighbours, SIZES[size], dtype, operation)


def call_of(function, *arguments):
    """Return a call of the jitted function, which waits for the result."""
    function = jax.jit(function)
    return lambda: jax.block_until_ready(function(*arguments))


def normal(seed, dtype, *shape):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


# ---- a rotation alone ----


def alone(length, dtype, by_positions, pairing):
    """Yield the calls forward, and of the gradient."""
    jax.clear_caches()
    rope = ra.RoPE(WIDTH, base=BASE, pairing=pairing)
    x, g = (normal(seed, dtype, 1, HEADS, length, WIDTH) for seed in (0, 1))
    positions = np.arange(length, dtype=np.int32) + (START if length == 1 else 0)
    pos, copy = jnp.asarray(positions), lambda x: x + (1 if length == 1 else 0)

    rotate, tables = textbook(pairing, by_positions)
    source = pos if by_positions else rope.rotation(pos, like=x)
    functions = {
        "ours": (rotation_by(rope, by_positions, None), source),
        "array form": (rotation_by(rope, by_positions, "array-api"), source),
        "textbook": (rotate, pos if by_positions else jax.jit(tables)(pos)),
    }
    if pairing == "half" and length > 1:
        functions["Equinox"] = equinox(dtype), source
    for step, given, inverse in (("forward", x, False), ("gradient", g, True)):
        of = forward if step == "forward" else gradient
        rows = {
            name: call_of(partial(of, function), source, x, g)
            for name, (function, source) in functions.items()
        }
        right = rope.apply(np.asarray(given, np.float32), positions, inverse=inverse)
        check(rows, [right], TOLERANCE[dtype])
        yield step, {"copy": call_of(copy, given), **rows}


def forward(function, source, x, g):
    return function(x, source)


def gradient(function, source, x, g):
    return jax.vjp(lambda x: function(x, source), x)[1](g)


def rotation_by(rope, by_positions, backend):
    if by_positions:
        return lambda x, pos: rope.apply(x, pos, backend=backend)
    return lambda x, rotation: rotation.apply(x, backend=backend)


def textbook(pairing, by_positions):
    """Return the form of most tutorials and models, and its tables: cos and sin for each feature."""
    is_half = pairing == "half"
    frequencies = BASE ** -(np.arange(0, WIDTH, 2, dtype=np.float32) / WIDTH)

    def tables(pos):
        angles = pos.astype(jnp.float32)[:, None] * frequencies
        return spread(jnp.cos(angles)), spread(jnp.sin(angles))

    def spread(table):
        return jnp.concat([table, table], axis=-1) if is_half else jnp.repeat(table, 2, axis=-1)

    def partner(x):
        if is_half:
            first, second = jnp.split(x, 2, axis=-1)
            return jnp.concat([-second, first], axis=-1)
        return jnp.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)

    def rotate(x, source):
        cos, sin = tables(source) if by_positions else source
        return (x * cos + partner(x) * sin).astype(x.dtype)

    return rotate, tables


def equinox(dtype):
    from equinox.nn import RotaryPositionalEmbedding

    module = RotaryPositionalEmbedding(WIDTH, theta=BASE, dtype=getattr(jnp, dtype))
    return lambda x, source: jax.vmap(jax.vmap(module))(x)


# ---- next to an operation that XLA could fuse ----


def neighbours(length, dtype, operation):
    """Yield the calls of the rotation with another operation before or after it."""
    jax.clear_caches()
    rope, positions = ra.RoPE(WIDTH, base=BASE, pairing="half"), np.arange(length, dtype=np.int32)
    shapes = {"projection": (length, MODEL), "transposition": (length, HEADS, WIDTH)}
    x = normal(0, dtype, 1, *shapes.get(operation, (HEADS, length, WIDTH)))
    weight, pos = normal(2, dtype, MODEL, HEADS * WIDTH) / MODEL**0.5, jnp.asarray(positions)
    axis = -3 if operation == "projection" else -2

    def before(x, weight):
        if operation == "projection":
            return (x @ weight).reshape(1, length, HEADS, WIDTH)
        if operation == "cast to float32":
            return x.astype(jnp.float32)
        return x.swapaxes(1, 2) if operation == "transposition" else x

    def after(y):
        return y * WIDTH**-0.5 if operation == "factor" else y

    def rotated(x, weight, pos, backend=None):
        return after(rope.apply(before(x, weight), pos, seq_axis=axis, backend=backend))

    by_array_api = partial(rotated, backend="array-api")
    rows = {name: call_of(f, x, weight, pos) for name, f in (("ours", rotated), ("array form", by_array_api))}
    right = np.asarray(before(x, weight), np.float32)
    check(rows, [after(rope.apply(right, positions, seq_axis=axis))], TOLERANCE[dtype])
    yield "forward", rows | {"alone": call_of(lambda x, weight: after(before(x, weight)), x, weight)}
