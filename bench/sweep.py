"""Every kind of call: its time, divided by the time of a plain call on as many bytes. It finds slow kinds.

    python bench/sweep.py [--only WORD ...] [--json [PATH]]
    ROPE_ARRAY_KERNEL_LEVEL=x86-64-v3 python bench/sweep.py     # as on processors without AVX-512

A plain call rotates contiguous float32 with half pairs of heads of 128, by an array of int64 positions, into
a new result; in JAX it is jitted. The other calls differ from it in one value of AXES or in the mode, up to
4 MiB also in two. One thread. The two calls alternate in blocks, and the fastest block of each counts, as
other load can only add time. Large ratios are measured again, and the smaller ratio counts. `--only NumPy
Fortran` measures the calls whose names have all words.
"""

import argparse
import itertools
import os
import sys
from functools import partial
from typing import ClassVar

from _harness import OFFLINE, ONE, block, finish, is_chosen, pace, parse, print_table, settle

os.environ |= ONE | OFFLINE

import ml_dtypes
import numpy as np
from _record import record
from _targets import COPY

import rope_array as ra

PACKAGES = ("numpy", "torch", "jax", "jaxlib", "ml_dtypes", "array-api-compat", "rope-array")
NAME = "sweep-avx2" if os.environ.get("ROPE_ARRAY_KERNEL_LEVEL") == "x86-64-v3" else "sweep"
SIZES = {"one token": 2**14, "64 KiB": 2**16, "4 MiB": 2**22, "64 MiB": 2**26}
ROUNDS, SECONDS = 3, 1e-3  # of a block
LARGE, KEPT = 3, 8  # ratios to measure again, and to keep of calls that differ in two values
SHOWN = 60


def ordered(*axes):
    """Return a layout whose memory has the axes (batch, heads, tokens, features) in another order."""
    return lambda new, shape: permuted(new(*(shape[a] for a in axes)), np.argsort(axes).tolist())


def permuted(x, axes):
    return x.permute(axes) if hasattr(x, "permute") else x.transpose(axes)


def broadcast(new, shape):
    x = new(shape[0], 1, *shape[2:])
    return x.expand(shape) if hasattr(x, "expand") else np.broadcast_to(x, shape)


def unaligned(new, shape):
    x = new(*shape)
    return np.ndarray(shape, x.dtype, np.zeros(x.nbytes + 1, np.uint8), 1)


LAYOUTS = {
    "C order": lambda new, shape: new(*shape),
    "Fortran order": ordered(3, 2, 1, 0),
    "transposed features": ordered(0, 1, 3, 2),
    "heads last": ordered(0, 2, 3, 1),
    "heads inside": ordered(0, 2, 1, 3),
    "tokens first": ordered(2, 0, 1, 3),
    "every second feature": lambda new, shape: new(*shape[:3], 2 * shape[3])[..., ::2],
    "every second token": lambda new, shape: new(*shape[:2], 2 * shape[2], shape[3])[:, :, ::2],
    "offset features": lambda new, shape: new(*shape[:3], shape[3] + 1)[..., 1:],
    "sliced heads": lambda new, shape: new(shape[0], 3 * shape[1], *shape[2:])[:, shape[1] : 2 * shape[1]],
    "reversed features": lambda new, shape: new(*shape)[..., ::-1],  # NumPy
    "broadcast heads": broadcast,
    "unaligned": unaligned,  # NumPy
}
RANDOM = np.random.default_rng(0)
POSITIONS = {  # of b rows of s tokens
    "int64 positions": lambda b, s: np.arange(s),
    "an int": lambda b, s: 7,
    "a float": lambda b, s: 7.5,
    "a range": lambda b, s: range(s),
    "a list": lambda b, s: list(range(s)),
    "a tuple of floats": lambda b, s: tuple(k + 0.5 for k in range(s)),
    "int32 positions": lambda b, s: np.arange(s, dtype=np.int32),
    "uint8 positions": lambda b, s: np.zeros(s, np.uint8),
    "shuffled positions": lambda b, s: RANDOM.permutation(s),
    "positions far apart": lambda b, s: RANDOM.integers(-(2**31), 2**31, s),
    "float32 positions": lambda b, s: np.arange(s, dtype=np.float32) + np.float32(0.5),
    "float64 positions": lambda b, s: np.arange(s) + 0.5,
    "positions of each row": lambda b, s: np.arange(b * s).reshape(b, s),
    "float32 positions of each row": lambda b, s: RANDOM.random((b, s), np.float32) * 1000,
    "coordinates": lambda b, s: RANDOM.integers(0, 64, (s, 2)),
    "float32 coordinates": lambda b, s: RANDOM.random((s, 2), np.float32) * 64,
}
LLAMA3 = ra.Llama3(8.0)
SPECS = {  # fields for heads of d
    "half": lambda d: {"pairing": "half"},
    "interleaved": lambda d: {},
    "half to interleaved": lambda d: {"pairing": "half", "out_pairing": "interleaved"},
    "a quarter of the width": lambda d: {"pairing": "half", "rotary_dim": max(2, d // 8 * 2)},
    "Llama3 with max_position": lambda d: {"pairing": "half", "scaling": LLAMA3, "max_position": 2**40},
    "float32 angles": lambda d: {"pairing": "half", "angles": "float32"},
}
AXES = {
    "positions": POSITIONS,
    "layout": LAYOUTS,
    "dtype": {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2},
    "width": {f"heads of {width}": width for width in (128, 2, 16, 64, 80, 256, 4096)},
    "spec": SPECS,
}


class NumPy:
    def new(self, dtype, *shape):
        return np.ones(shape, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def positions(self, pos):
        return pos

    def copy(self, x):
        return x.copy()

    def empty(self, x):
        return np.empty(x.shape, x.dtype)

    modes: ClassVar = {
        "new": lambda lib, rope, x, pos: partial(rope.apply, x, pos),
        "out=": lambda lib, rope, x, pos: partial(rope.apply, x, pos, out=lib.empty(x)),
        "in place": lambda lib, rope, x, pos: partial(rope.apply, x, pos, out=x),
        "inverse": lambda lib, rope, x, pos: partial(rope.apply, x, pos, inverse=True),
        "Rotation": lambda lib, rope, x, pos: partial(rope.rotation(pos, like=x).apply, x),
        "making a Rotation": lambda lib, rope, x, pos: partial(rope.rotation, pos, like=x),
        "a tuple of four": lambda lib, rope, x, pos: partial(
            rope.apply, tuple(x[:, x.shape[1] * k // 4 : x.shape[1] * (k + 1) // 4] for k in range(4)), pos
        ),
        COPY: lambda lib, rope, x, pos: partial(lib.copy, x),
    }


class PyTorch(NumPy):
    def __init__(self):
        import torch

        torch.set_num_threads(1)
        self.torch = torch

    def new(self, dtype, *shape):
        return self.torch.ones(shape, dtype=getattr(self.torch, dtype))

    def positions(self, pos):
        return self.torch.from_numpy(pos) if isinstance(pos, np.ndarray) else pos

    def copy(self, x):
        return x.clone()

    def empty(self, x):
        return self.torch.empty_like(x, memory_format=self.torch.contiguous_format)

    def backward(self, rope, x, pos):
        x, g = x.requires_grad_(), self.new("float32", *x.shape).to(x.dtype)
        return lambda: self.torch.autograd.grad(rope.apply(x, pos), x, g)

    def gradient_of_positions(self, rope, x, pos):
        pos, g = pos.requires_grad_(), self.new("float32", *x.shape).to(x.dtype)
        return lambda: self.torch.autograd.grad(rope.apply(x, pos), pos, g)

    def vmap(self, rope, x, pos):
        return partial(self.torch.func.vmap(lambda row: rope.apply(row, pos)), x)

    def compiled(self, rope, x, pos):
        self.torch.compiler.reset()
        return partial(self.torch.compile(lambda x, pos: rope.apply(x, pos)), x, pos)

    modes: ClassVar = NumPy.modes | {
        "gradient recorded": lambda lib, rope, x, pos: partial(rope.apply, x.requires_grad_(), pos),
        "forward and backward": backward,
        "gradient of positions": gradient_of_positions,
        "vmap": vmap,
        "torch.compile": compiled,
    }


class JAX(NumPy):
    def __init__(self):
        import jax

        self.jax = jax

    def new(self, dtype, *shape):
        return self.jax.numpy.ones(shape, dtype)

    def positions(self, pos):
        return self.jax.numpy.asarray(pos) if isinstance(pos, np.ndarray) else pos

    def call(self, rotate, x, pos, compiles=True):
        """Return a call of rotate(x, pos) that waits for its result. A jitted call takes arrays alone."""
        is_array = type(pos) not in (int, float, range, list, tuple)
        function = rotate if is_array else lambda x, _: rotate(x, pos)
        function, argument = self.jax.jit(function) if compiles else function, pos if is_array else 0
        return lambda: self.jax.block_until_ready(function(x, argument))

    def gradient(self, rope, x, pos):
        return self.call(self.jax.grad(lambda x, pos: rope.apply(x, pos).sum()), x, pos)

    modes: ClassVar = {
        "new": lambda lib, rope, x, pos: lib.call(rope.apply, x, pos),
        "not jitted": lambda lib, rope, x, pos: lib.call(rope.apply, x, pos, compiles=False),
        "inverse": lambda lib, rope, x, pos: lib.call(partial(rope.apply, inverse=True), x, pos),
        "Rotation": lambda lib, rope, x, pos: lib.call(
            lambda x, rotation: rotation.apply(x), x, rope.rotation(pos, like=x)
        ),
        "making a Rotation": lambda lib, rope, x, pos: lib.call(
            lambda x, pos: rope.rotation(pos, like=x), x, pos
        ),
        "forward and backward": gradient,
        "vmap": lambda lib, rope, x, pos: lib.call(
            lambda x, pos: lib.jax.vmap(lambda row: rope.apply(row, pos))(x), x, pos
        ),
    }


LIBRARIES = {"NumPy": NumPy, "PyTorch": PyTorch, "JAX": JAX}


def shape_of(size, itemsize, width):
    rows = max(1, SIZES[size] // itemsize // width)
    if size == "one token":
        return 1, rows, 1, width
    batch, heads = (2, 8) if rows >= 64 else (1, min(rows, 4))
    return batch, heads, rows // batch // heads, width


def make_call(lib, size, values):
    """Return x's bytes and a call without arguments."""
    positions, layout, dtype, heads, spec, mode = values
    width = AXES["width"][heads]
    shape = shape_of(size, AXES["dtype"][dtype], width)
    sections = width // 4, width // 2 - width // 4
    axes = ra.Axes.chunked(*sections) if "coordinates" in positions else None
    rope = ra.RoPE(width, **SPECS[spec](width), axes=axes)
    x = LAYOUTS[layout](partial(lib.new, dtype), shape)
    pos = lib.positions(POSITIONS[positions](shape[0], shape[2]))
    call = lib.modes[mode](lib, rope, x, pos)
    call()
    return x.nbytes, call


def combinations(modes, most):
    """Yield the values of AXES and a mode that differ from a plain call in at most `most` values."""
    axes = [list(values) for values in (*AXES.values(), modes)]
    plain = [values[0] for values in axes]
    for count in range(1, most + 1):
        for chosen in itertools.combinations(range(len(axes)), count):
            for values in itertools.product(*(axes[a][1:] for a in chosen)):
                changes = dict(zip(chosen, values, strict=True))
                yield [changes.get(a, value) for a, value in enumerate(plain)], values


def measure_ratio(call, plain, rounds=ROUNDS):
    """Return the ratio of the fastest blocks."""
    counts = {function: pace(function, SECONDS)[0] for function in (call, plain)}
    times = [[block(function, counts[function], warm=False) for function in counts] for _ in range(rounds)]
    ours, others = map(min, zip(*times, strict=True))
    return ours / others


def sweep(options):
    """Return the ratio of each kind of call, and print the calls that are refused."""
    ratios, refused = {}, {}
    for library, size in itertools.product(LIBRARIES, SIZES):
        lib, plain = LIBRARIES[library](), None
        most = 1 if library == "JAX" or size == "64 MiB" else 2
        for values, changes in combinations(lib.modes, most):
            name = ", ".join((library, size, *changes))
            if not is_chosen(name, options) or (len(changes) > 1 and {COPY, "torch.compile"} & {*changes}):
                continue
            if plain is None:
                plain_bytes, plain = make_call(lib, size, [*(next(iter(v)) for v in AXES.values()), "new"])
            try:
                num_bytes, call = make_call(lib, size, values)
            except Exception as error:
                refused.setdefault(f"{type(error).__name__}: {str(error)[:150]}", []).append(name)
                continue
            ratio = measure_ratio(call, plain)
            if ratio > LARGE:
                ratio = min(ratio, measure_ratio(call, plain, 3 * ROUNDS))
            ratio *= plain_bytes / num_bytes
            if ratio > KEPT or len(changes) == 1:
                ratios[name] = round(ratio, 2)
        print(f"{library}, {size}", file=sys.stderr)
    for error, names in refused.items():
        print(f"refused: {len(names)}, such as {names[0]}: {error}", file=sys.stderr)
    return dict(sorted(ratios.items(), key=lambda item: -item[1]))


def main():
    options = parse(argparse.ArgumentParser(description=__doc__.partition("\n")[0]), NAME)
    settle(1)
    ratios = sweep(options)
    print_table(("slowest calls", "ratio"), itertools.islice(ratios.items(), SHOWN))
    finish(record(NAME, ratios, __doc__.partition("\n")[0], PACKAGES), options)


if __name__ == "__main__":
    main()
