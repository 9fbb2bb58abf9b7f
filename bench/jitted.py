"""The rotation under jax.jit on the CPU, one thread: our time divided by others' in the same run.

The others are a jitted copy into new memory, `x + 0` (for one token `x + 1`); Equinox's
RotaryPositionalEmbedding; the textbook form, `x * cos + rotate_half(x) * sin` with float32 tables; and our
array form, `backend="array-api"`, which XLA compiles and fuses.

x is (1, 32, 2048, 128), in the decode cases (1, 32, 1, 128). Positions are an argument of the jitted
function. By positions, ours and the textbook form compute their tables in each call; by Rotation, both get
tables made before. Equinox rotates half pairs only, at positions from 0, and its table is a constant of the
function.

Forward: `f(x)`. Gradient: `jax.vjp(f, x)[1](g)`, jitted, so that XLA drops the unused result; the copy is
`g + 0`. Both: the result and the gradient, and two copies.

The cases of neighbours compare the kernel with the array form where XLA could fuse the rotation with another
operation: a cast before it, a projection before it, a transposition before it, a factor after it. "alone" is
the time of the other operation without the rotation.

Each result is compared with NumPy's kernel before it is timed.
"""

import argparse
import sys
import time
from itertools import product
from typing import NamedTuple

from _one_thread import HOW, add_option  # before jax

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
from _blocks import compare, finish, parse, print_table, take_turns
from _record import record

import rope_array as ra

PACKAGES = ("numpy", "jax", "jaxlib", "equinox", "array-api-compat", "rope-array")
HEADS, LENGTH, WIDTH, MODEL = 32, 2048, 128, 256
BASE, START = 10_000.0, 4095  # the base that Equinox's table has; the position of one token
ROUNDS, SECONDS = 7, 0.1  # of a block
TOLERANCE = {"float32": 2e-3, "bfloat16": 3e-2}  # of the largest |y|; angles of theirs are float32
COPY, OURS, ARRAYS, EQUINOX, TEXTBOOK = "copy", "ours", "array form", "Equinox", "textbook"
PARTS = ("forward", "gradient", "both")
OTHERS = (COPY, EQUINOX, TEXTBOOK, ARRAYS)
NEIGHBOUR_HEAD = ("case", "kernel, ms", "array form, ms", "kernel ÷ array form", "alone, ms")


class JittedCase(NamedTuple):
    """The inputs, and the rotation. `source` is "positions" or "Rotation"."""

    dtype: str
    source: str
    pairing: str
    length: int = LENGTH

    @property
    def name(self):
        return f"{'decode' if self.length == 1 else 'prefill'}, {self.dtype}, {self.source}, {self.pairing}"

    @property
    def rope(self):
        return ra.RoPE(head_dim=WIDTH, base=BASE, pairing=self.pairing)

    @property
    def positions(self):
        return np.arange(self.length, dtype=np.int32) + (START if self.length == 1 else 0)


def cases():
    every = product(("float32", "bfloat16"), ("positions", "Rotation"), ("half", "interleaved"))
    return [JittedCase(*options, length) for length, options in product((LENGTH, 1), list(every))]


# ---- functions of (x, source) ----


def ours(case, backend=None):
    rope = case.rope
    if case.source == "positions":
        return lambda x, pos: rope.apply(x, pos, backend=backend)
    return lambda x, rotation: rotation.apply(x, backend=backend)


def textbook(case):
    """Return the form of most tutorials and models: a number of cos and sin for each feature."""
    frequencies = BASE ** -(np.arange(0, WIDTH, 2, dtype=np.float32) / WIDTH)

    def tables(pos):
        angles = pos.astype(jnp.float32)[:, None] * frequencies
        return tuple(spread(table) for table in (jnp.cos(angles), jnp.sin(angles)))

    def spread(table):
        if case.pairing == "half":
            return jnp.concat([table, table], axis=-1)
        return jnp.repeat(table, 2, axis=-1)

    def partner(x):
        if case.pairing == "half":
            first, second = jnp.split(x, 2, axis=-1)
            return jnp.concat([-second, first], axis=-1)
        return jnp.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)

    def rotate(x, source):
        cos, sin = tables(source) if case.source == "positions" else source
        return (x * cos + partner(x) * sin).astype(x.dtype)

    return rotate, tables


def equinox(case):
    from equinox.nn import RotaryPositionalEmbedding

    module = RotaryPositionalEmbedding(WIDTH, theta=BASE, dtype=getattr(jnp, case.dtype))
    return lambda x, source: jax.vmap(jax.vmap(module))(x)


def copy(case):
    return lambda x: x + (1 if case.length == 1 else 0)


def functions(case, pos):
    """Return name: (function, its source)."""
    form, tables = textbook(case)
    by_tables = case.source == "Rotation"
    source = case.rope.rotation(pos, like=jnp.ones((1, WIDTH), case.dtype)) if by_tables else pos
    functions_by_name = {
        COPY: (copy(case), source),
        OURS: (ours(case), source),
        ARRAYS: (ours(case, "array-api"), source),
        TEXTBOOK: (form, jax.jit(tables)(pos) if by_tables else pos),
    }
    if case.pairing == "half" and case.length > 1:
        functions_by_name[EQUINOX] = (equinox(case), source)
    return functions_by_name


# ---- calls without arguments ----


def normal(seed, dtype, *shape):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def calls(case):
    """Return the calls of each part by name, and the expected results of each part."""
    x, g = (normal(seed, case.dtype, 1, HEADS, case.length, WIDTH) for seed in (0, 1))
    calls_by_pass = {pass_: {} for pass_ in PARTS}
    for name, (function, source) in functions(case, jnp.asarray(case.positions)).items():
        calls = copies(function, x, g) if name == COPY else parts(function, x, g, source)
        for pass_, call in zip(PARTS, calls, strict=True):
            calls_by_pass[pass_][name] = call
    y, dx = (
        case.rope.apply(np.asarray(a, np.float32), case.positions, inverse=inverse)
        for a, inverse in ((x, False), (g, True))
    )
    return calls_by_pass, {"forward": (y,), "gradient": (dx,), "both": (y, dx)}


def parts(function, x, g, source):
    """Return the calls of the parts: forward, gradient, both."""

    def both(x, g, source):
        y, pull = jax.vjp(lambda x: function(x, source), x)
        return y, *pull(g)

    gradient = jitted(lambda x, g, source: both(x, g, source)[1], x, g, source)
    return jitted(function, x, source), gradient, jitted(both, x, g, source)


def copies(function, x, g):
    return jitted(function, x), jitted(function, g), jitted(lambda x, g: (function(x), function(g)), x, g)


def jitted(function, *arguments):
    """Return a call of the jitted function, which waits for the result."""
    compiled = jax.jit(function)
    return lambda: jax.block_until_ready(compiled(*arguments))


def check(name, calls, expected, dtype):
    """Raise if a result differs from NumPy's kernel; copies are not compared."""
    for row, call in calls.items():
        if row in (COPY, "alone"):
            continue
        for y, right in zip(jax.tree.leaves(call()), expected, strict=True):
            error = np.abs(np.asarray(y, np.float32) - right).max() / np.abs(right).max()
            if not error <= TOLERANCE[dtype]:
                raise SystemExit(f"{name}: the result of {row} is off by {error:.2g} of the largest |y|")


# ---- neighbours that XLA could fuse ----


class Neighbour(NamedTuple):
    """Another operation before or after the rotation, in one jitted function."""

    operation: str
    dtype: str
    length: int = LENGTH

    @property
    def name(self):
        return f"{'decode' if self.length == 1 else 'prefill'}, {self.dtype}, {self.operation}"


def neighbours():
    operations = ("cast to float32", "projection", "transposition", "factor")
    every = product((LENGTH, 1), operations, ("float32", "bfloat16"))
    return [Neighbour(o, d, n) for n, o, d in every if (o, d) != ("cast to float32", "float32")]


def neighbour_calls(case):
    """Return the calls by name, and the expected result, (1, heads, tokens, width)."""
    rope = ra.RoPE(head_dim=WIDTH, base=BASE, pairing="half")
    positions = np.arange(case.length, dtype=np.int32)
    pos, by_heads = jnp.asarray(positions), (1, HEADS, case.length, WIDTH)
    axis = -3 if case.operation == "projection" else -2
    weight = normal(2, case.dtype, MODEL, HEADS * WIDTH) / MODEL**0.5
    shape = {
        "projection": (1, case.length, MODEL), "transposition": (1, case.length, HEADS, WIDTH)
    }.get(case.operation, by_heads)  # fmt: skip
    x = normal(0, case.dtype, *shape)

    def before(x, weight):
        if case.operation == "cast to float32":
            return x.astype(jnp.float32)
        if case.operation == "projection":
            return (x @ weight).reshape(1, case.length, HEADS, WIDTH)
        return x.swapaxes(1, 2) if case.operation == "transposition" else x

    def after(y):
        return y * WIDTH**-0.5 if case.operation == "factor" else y

    def rotated(backend):
        return lambda x, weight, pos: after(
            rope.apply(before(x, weight), pos, seq_axis=axis, backend=backend)
        )

    rows = {
        OURS: rotated(None),
        ARRAYS: rotated("array-api"),
        "alone": lambda x, weight, pos: after(before(x, weight)),
    }
    calls = {name: jitted(function, x, weight, pos) for name, function in rows.items()}
    right = np.asarray(before(x, weight), np.float32)
    return calls, (after(rope.apply(right, positions, seq_axis=axis)),)


# ---- results ----


def measure(chosen, rounds, seconds):
    return {case.name: measure_case(case, rounds, seconds) for case in chosen}


def measure_case(case, rounds, seconds):
    """Return milliseconds and ratios of ours, by part."""
    jax.clear_caches()
    begun, numbers = time.perf_counter(), {}
    if isinstance(case, Neighbour):
        calls_by_pass, expected = neighbour_calls(case)
        calls_by_pass, expected = {"forward": calls_by_pass}, {"forward": expected}
    else:
        calls_by_pass, expected = calls(case)
    for pass_ in calls_by_pass:
        check(f"{case.name}, {pass_}", calls_by_pass[pass_], expected[pass_], case.dtype)
        numbers[pass_] = compare(take_turns(calls_by_pass[pass_], rounds, seconds), OURS)
    print(f"  {case.name}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    return numbers


def row(name, numbers):
    return [name, f"{numbers['ms'][OURS]:.4g}", *(numbers["ratios"].get(peer, "") for peer in OTHERS)]


def neighbour_row(name, numbers):
    ms, ratios = numbers["forward"]["ms"], numbers["forward"]["ratios"]
    return [name, *(f"{ms[key]:.4g}" for key in (OURS, ARRAYS)), ratios[ARRAYS], f"{ms['alone']:.4g}"]


def show(numbers):
    rotations, near = numbers["rotation"], numbers["neighbours"]
    for pass_ in PARTS if rotations else ():
        head = (pass_, "ms", *(f"÷ {peer}" for peer in OTHERS))
        print_table(head, [row(name, timing[pass_]) for name, timing in rotations.items()])
        print()
    if near:
        print_table(NEIGHBOUR_HEAD, [neighbour_row(*row) for row in near.items()])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="WORD", help="the cases whose name has all these"
    )
    add_option(parser)
    options = parse(parser, "jitted")
    chosen, near = (
        [case for case in group if all(word in case.name for word in options.only)]
        for group in (cases(), neighbours())
    )
    rounds, seconds = (2, 0.01) if options.quick else (ROUNDS, SECONDS)
    numbers = {
        name: measure(group, rounds, seconds) for name, group in (("rotation", chosen), ("neighbours", near))
    }
    run = record("jitted", numbers, __doc__, PACKAGES) | {"one thread by": HOW}
    show(numbers)
    finish(run, options)


if __name__ == "__main__":
    main()
