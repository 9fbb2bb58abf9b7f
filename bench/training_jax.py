"""Training a small GPT with this library's rotation and with others, by JAX on the CPU, one thread.

4 layers of width 256 with 4 heads, 2 sequences of 512 bytes of this repository's documentation in a batch,
AdamW, all in one jitted function; float32, and bfloat16 with float32 weights. rope_array makes its tables
once per forward pass (`rope.rotation`), and in the row "positions" in each layer (`rope.apply`). Equinox's
RotaryPositionalEmbedding has a table that is a constant of the function. The textbook form is
`x * cos + rotate_half(x) * sin` with float32 tables, made once per forward pass. All models start from the
same weights and see the same batches, so that only roundings make their loss curves different.

Tokens per second: the models of a setting take turns in blocks of steps; the median of the blocks counts, and
ratios are medians of the ratios within rounds. A step is forward, backward and optimizer.

Memory: the temporary arrays of the compiled step, as XLA has planned them. They have activations and
gradients; weights and optimizer state are arguments.
"""

import argparse
import sys
from functools import partial

from _one_thread import HOW, add_option  # before jax

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
from _blocks import finish, parse
from _record import record
from _training import (
    BASE,
    HEAD_DIM,
    HEADS,
    LAYERS,
    LENGTH,
    NONE,
    OURS,
    ROUNDS,
    WIDTH,
    Run,
    show,
    text_batches,
    train,
)

import rope_array as ra

PACKAGES = ("numpy", "jax", "jaxlib", "equinox", "array-api-compat", "rope-array")
POSITIONS, EQUINOX, TEXTBOOK = f"{OURS}, positions", "Equinox", "textbook form"
OTHERS = (EQUINOX, TEXTBOOK)
ROPE = ra.RoPE(head_dim=HEAD_DIM, base=BASE, pairing="half")
LEARNING_RATE, BETAS, EPSILON, DECAY = 1e-3, (0.9, 0.95), 1e-8, 1e-2


# ---- rotations: tables once per forward pass, then a function of q and k, (B, S, H, D), in each layer ----


def positions(x):
    return jnp.arange(LENGTH)


def rope_array(q, k, rotation):
    return rotation.apply((q, k), seq_axis=-3)


def rope_array_at(q, k, pos):
    return ROPE.apply((q, k), pos, seq_axis=-3)


def equinox(q, k, tables):
    from equinox.nn import RotaryPositionalEmbedding

    module = RotaryPositionalEmbedding(HEAD_DIM, theta=BASE, dtype=q.dtype)  # of an array (S, D)
    rotate = jax.vmap(jax.vmap(module, in_axes=1, out_axes=1))
    return rotate(q), rotate(k)


def textbook_tables(x):
    frequencies = BASE ** -(np.arange(0, HEAD_DIM, 2, dtype=np.float32) / HEAD_DIM)
    angles = jnp.tile(positions(x).astype(jnp.float32)[:, None] * frequencies, 2)[:, None]
    return jnp.cos(angles), jnp.sin(angles)


def textbook(q, k, tables):
    cos, sin = tables

    def rotate(x):
        first, second = jnp.split(x, 2, axis=-1)
        return (x * cos + jnp.concat([-second, first], axis=-1) * sin).astype(x.dtype)

    return rotate(q), rotate(k)


ROTATIONS = {
    OURS: (lambda x: ROPE.rotation(positions(x), like=x), rope_array),
    POSITIONS: (positions, rope_array_at),
    EQUINOX: (positions, equinox),
    TEXTBOOK: (textbook_tables, textbook),
    NONE: (positions, lambda q, k, tables: (q, k)),
}


# ---- the model ----


def weights():
    """Return the weights of a new model, in float32."""
    keys = iter(jax.random.split(jax.random.key(0), 2 + 6 * LAYERS))

    def linear(width, out):
        return jax.random.uniform(next(keys), (width, out), minval=-1, maxval=1) / width**0.5

    def layer():
        square = {name: linear(WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
        norms = {"norm": jnp.ones(WIDTH), "second norm": jnp.ones(WIDTH)}
        return square | norms | {"up": linear(WIDTH, 4 * WIDTH), "down": linear(4 * WIDTH, WIDTH)}

    embedding = jax.random.normal(next(keys), (256, WIDTH))
    layers = [layer() for _ in range(LAYERS)]
    return {"embedding": embedding, "layers": layers, "norm": jnp.ones(WIDTH), "head": linear(WIDTH, 256)}


def normalized(x, weight):
    x32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.square(x32).mean(-1, keepdims=True) + 1e-6)
    return (x32 * scale).astype(x.dtype) * weight


def layer(x, weights, rotate, tables):
    normal = normalized(x, weights["norm"])
    q, k, v = ((normal @ weights[name]).reshape(*x.shape[:-1], HEADS, HEAD_DIM) for name in ("q", "k", "v"))
    q, k = rotate(q, k, tables)
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + y.reshape(x.shape) @ weights["out"]
    return x + jax.nn.gelu(normalized(x, weights["second norm"]) @ weights["up"]) @ weights["down"]


def loss(weights, tokens, rotation, dtype):
    """Return the loss of the next bytes."""
    weights = jax.tree.map(lambda weight: weight.astype(dtype), weights)
    make_tables, rotate = rotation
    x = weights["embedding"][tokens[:, :-1]]
    tables = make_tables(x)
    for layer_weights in weights["layers"]:
        x = layer(x, layer_weights, rotate, tables)
    logits = (normalized(x, weights["norm"]) @ weights["head"]).astype(jnp.float32)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
    return -chosen.mean()


# ---- training ----


def adamw(weight, gradient, first, second, count):
    first = BETAS[0] * first + (1 - BETAS[0]) * gradient
    second = BETAS[1] * second + (1 - BETAS[1]) * gradient**2
    step = first / (1 - BETAS[0] ** count) / (jnp.sqrt(second / (1 - BETAS[1] ** count)) + EPSILON)
    return weight - LEARNING_RATE * (step + DECAY * weight), first, second


class JaxRun(Run):
    def __init__(self, name, dtype, batches):
        super().__init__(batches)
        start = weights()
        zeros = jax.tree.map(jnp.zeros_like, start)
        self.state = start, zeros, jax.tree.map(jnp.zeros_like, start)
        value_and_grad = jax.value_and_grad(partial(loss, rotation=ROTATIONS[name], dtype=dtype))

        @partial(jax.jit, donate_argnums=0)
        def step(state, tokens, count):
            value, gradients = value_and_grad(state[0], tokens)
            leaves = zip(*map(jax.tree.leaves, (state[0], gradients, *state[1:])), strict=True)
            new = zip(*(adamw(*leaf, count) for leaf in leaves), strict=True)
            return [jax.tree.unflatten(jax.tree.structure(state[0]), list(tree)) for tree in new], value

        self.jitted = step

    def arguments(self):
        done = min(len(self.losses), len(self.batches) - 1)
        return self.state, self.batches[done], jnp.float32(done + 1)

    def step(self):
        self.state, value = self.jitted(*self.arguments())
        self.losses.append(float(value))

    def peak(self):
        return self.jitted.lower(*self.arguments()).compile().memory_analysis().temp_size_in_bytes


def setting(dtype, rounds):
    batches = jnp.asarray(text_batches(rounds))
    return train({name: JaxRun(name, dtype, batches) for name in ROTATIONS}, rounds, OTHERS)


def measure(rounds):
    settings = {}
    for name in ("float32", "bfloat16"):
        print(name, file=sys.stderr)
        settings[name] = setting(getattr(jnp, name), rounds)
    return settings


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_option(parser)
    options = parse(parser, "training-jax")
    run = record("training-jax", measure(1 if options.quick else ROUNDS), __doc__, PACKAGES)
    run["one thread by"] = HOW
    show(run, OTHERS)
    finish(run, options)


if __name__ == "__main__":
    main()
