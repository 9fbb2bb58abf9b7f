"""What a call spends outside the array arithmetic, on a (32, 1, 128) float32 NumPy array and one position.

The size is one decoding step of a model: 32 heads, one new token. There the arithmetic is so small that what
a library does around it shows. The arithmetic is timed as well, written out below with NumPy's functions: the
same steps on the same values in the same order, on constants that are ready; its result must have the same
bits. A call's time less that is what its checks, its plan, its choice of a path and its Python calls cost.

Each round times every subject in turn; of all rounds the best of each counts, as whatever else the machine
does can only add time.
"""

import sys
import time
from itertools import repeat

import numpy as np
from _record import main

import rope_array as ra
from rope_array._angles import _COS32, _SIN32

ROUNDS, CALLS = 400, 200
ROPE = ra.RoPE(head_dim=128, base=500_000.0)
X = np.random.default_rng(0).normal(size=(32, 1, 128)).astype(np.float32)
POS = np.array([123_456])
WORDS = np.asarray(ROPE._plan.words64.buffer, dtype=np.int64)


def arithmetic(x, pos):
    """The steps of rope_array._angles and rope_array._rotate for this case, and nothing else."""
    shifted = ((pos[..., None] * WORDS) >> 32) + 0x20000000
    quadrant, rest = shifted >> 30, shifted & 0x3FFFFFFF
    u = (rest - 0x20000000).astype(np.float32) * (1.0 / 0x20000000)
    square = u * u
    value = square * _COS32[4] + _COS32[3]
    value = value * square + _COS32[2]
    value = value * square + _COS32[1]
    cos = value * square + _COS32[0]
    value = square * _SIN32[3] + _SIN32[2]
    value = value * square + _SIN32[1]
    sin = u * (value * square + _SIN32[0])
    odd = (quadrant & 1) != 0
    cos, sin = np.where(odd, sin, cos), np.where(odd, cos, sin)
    cos = np.where((quadrant + 1 & 2) != 0, -cos, cos)[None, ...]
    sin = np.where((quadrant & 2) != 0, -sin, sin)[None, ...]
    a, b = x[..., ::2], x[..., 1::2]
    return np.reshape(np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1), x.shape)


def turning(x, cos, sin):
    """The part of the arithmetic that is left where cos and sin are made already."""
    cos, sin = cos[None, ...], sin[None, ...]
    a, b = x[..., ::2], x[..., 1::2]
    return np.reshape(np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1), x.shape)


def seconds(call):
    start = time.perf_counter()
    for _ in repeat(None, CALLS):
        call()
    return (time.perf_counter() - start) / CALLS


def best(subjects):
    """Microseconds of each subject: the best round."""
    rounds = [[seconds(call) for call in subjects] for _ in range(ROUNDS)]
    return [1e6 * min(times) for times in zip(*rounds, strict=True)]


def measure():
    rotation = ROPE.rotation(POS, like=X)
    subjects = {
        "arithmetic": lambda: arithmetic(X, POS),
        "rope.apply(x, pos)": lambda: ROPE.apply(X, POS),
        "rope_array.apply(x, pos, rope)": lambda: ra.apply(X, POS, ROPE),
        "rope_array.apply(x, pos, base=500_000.0)": lambda: ra.apply(X, POS, base=500_000.0),
        "turning": lambda: turning(X, rotation.cos, rotation.sin),
        "rotation.apply(x)": lambda: rotation.apply(X),
    }
    expected = arithmetic(X, POS)
    for name, call in subjects.items():
        assert np.array_equal(call().view(np.uint32), expected.view(np.uint32)), name
    took = dict(zip(subjects, best(subjects.values()), strict=True))
    numbers = {f"{name}, µs": round(value, 2) for name, value in took.items()}
    for name in list(subjects)[1:4]:
        numbers[f"{name}, µs outside the arithmetic"] = round(took[name] - took["arithmetic"], 2)
    numbers["rotation.apply(x), µs outside the arithmetic"] = round(
        took["rotation.apply(x)"] - took["turning"], 2
    )
    return numbers


if __name__ == "__main__":
    sys.exit(
        main("overhead", measure, "a call on a (32, 1, 128) float32 NumPy array and a position array of one")
    )
