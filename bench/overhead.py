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
from rope_array._array_api.angles import _C32, _S32

ROUNDS, CALLS = 400, 200
ROPE = ra.RoPE(head_dim=128, base=500_000.0)
X = np.random.default_rng(0).normal(size=(32, 1, 128)).astype(np.float32)
POS = np.array([123_456])
WORDS = np.array(ROPE._plan.turns_q64.values)


def arithmetic(x, pos):
    """The steps of the array-api backend for this case, and nothing else."""
    shifted = ((pos[..., None] * WORDS) >> 32) + 0x20000000
    quadrant, rest = shifted >> 30, shifted & 0x3FFFFFFF
    u = (rest - 0x20000000).astype(np.float32) * (1.0 / 0x20000000)
    z = u * u
    s0, s1, s2, s3 = _S32
    c1, c2, c3, c4 = _C32
    cos = (((z * c4 + c3) * z + c2) * z + c1) * z + 1.0
    sin = u * (((z * s3 + s2) * z + s1) * z + s0)
    odd = (quadrant & 1) != 0
    cos, sin = np.where(odd, sin, cos), np.where(odd, cos, sin)
    cos = cos * (1 - (quadrant + 1 & 2)).astype(np.float32)
    sin = sin * (1 - (quadrant & 2)).astype(np.float32)
    return turning(x, cos, sin)


def turning(x, cos, sin):
    """Apply cos and sin: all that is left where they are made already."""
    cos, sin = cos[None, ...], sin[None, ...]
    a, b = x[..., ::2], x[..., 1::2]
    halves = [(a * cos - b * sin)[..., None], (b * cos + a * sin)[..., None]]
    return np.concatenate(halves, axis=-1).reshape(x.shape)


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
