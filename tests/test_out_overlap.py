"""Random views for out= against a map of bytes: rotated, or refused as they share memory; see test_out.py."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from compare import bits
from numpy.lib.stride_tricks import as_strided

import rope_array as ra

WRITES = pytest.mark.without("strict", "dask", "jax")
BACKENDS = {"numpy": (None, None, "array-api"), "torch": (None, None, "torch")}
ROPES = [ra.RoPE(4), ra.RoPE(4, pairing="half"), ra.RoPE(4, out_pairing="half", rotary_dim=2)]
SIZE = 1024  # bytes of a buffer
ITEM = 4  # bytes of float32, and of int32


class View(NamedTuple):
    """A view of the buffer: its first byte, shape, and strides in bytes."""

    at: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, lib: Any, buffer: np.ndarray, dtype: str = "float32") -> Any:
        """Return the view of a buffer of bytes, as an array of the library."""
        if lib.name == "numpy":
            return as_strided(buffer[self.at : self.at + ITEM].view(dtype), self.shape, self.strides)
        tensor = pytest.importorskip("torch").from_numpy(buffer.view(dtype))
        return tensor.as_strided(self.shape, [stride // ITEM for stride in self.strides], self.at // ITEM)

    def axes(self) -> list[tuple[int, int]]:
        """Return stride and size of each axis of more than one element: other strides are never used."""
        return [(stride, n) for stride, n in zip(self.strides, self.shape, strict=True) if n > 1]

    def counts(self) -> np.ndarray:
        """Return how many elements have each byte of the buffer."""
        address = np.array(self.at)
        for size, stride in zip((*self.shape, ITEM), (*self.strides, 1), strict=True):
            address = np.add.outer(address, stride * np.arange(size))
        return np.bincount(address.ravel(), minlength=SIZE)

    def is_nested(self) -> bool:
        """Return whether each stride spans the axes inside it, which results need."""
        reach = ITEM
        for stride, size in sorted((abs(stride), size) for stride, size in self.axes()):
            if stride < reach:
                return False
            reach += (size - 1) * stride
        return True


def random_view(rng, shape, unit, lib):
    """Return a random view, often with rows of one length, as parts of a joint q, k, v have."""
    backwards = 0.1 if lib.name == "numpy" else 0  # PyTorch has no negative strides
    while True:
        row, choices = rng.integers(4, 33), rng.choice(3, len(shape), p=(0.5, 0.3, 0.2))
        steps = [
            (row * rng.integers(1, 4), rng.integers(0, row), rng.integers(0, 65))[choice]
            for choice in choices
        ]
        strides = [int(unit * step) * (-1 if rng.random() < backwards else 1) for step in steps]
        if rng.random() < 0.8:
            strides[-1] = ITEM * int(rng.choice([1, 1, 2, 3]))
        reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
        low, high = -sum(r for r in reach if r < 0), SIZE - ITEM - sum(r for r in reach if r > 0)
        if low <= high:
            return View(unit * int(rng.integers(-(-low // unit), high // unit + 1)), shape, tuple(strides))


def random_call(rng, lib):
    """Return x and out, one or two each, and positions, all of them random views of one buffer."""
    unit = ITEM if lib.name == "torch" or rng.random() < 0.9 else 2
    length, outer = int(rng.integers(1, 4)), tuple(map(int, rng.integers(1, 4, rng.integers(0, 3))))
    shapes = [(*outer, length, 4), (*outer[1:], length, 4)][: rng.integers(1, 3)]
    xs = [random_view(rng, shape, unit, lib) for shape in shapes]
    outs = [x if rng.random() < 0.6 else random_view(rng, x.shape, unit, lib) for x in xs]
    return xs, outs, random_view(rng, (length,), unit, lib)


def is_allowed(xs, outs, pos):
    """Return whether each element of out has bytes that no other result has, and that no other x has."""
    counts, read = [out.counts() for out in outs], [x.counts() for x in xs]
    for i, written in enumerate(counts):
        in_place = (xs[i].at, xs[i].axes()) == (outs[i].at, outs[i].axes())
        operands = [pos.counts(), *counts[:i], *(x for j, x in enumerate(read) if i != j or not in_place)]
        if written.max() > 1 or any((written * operand).any() for operand in operands):
            return False
    return True


@WRITES
@pytest.mark.parametrize("number", [1500, pytest.param(100_000, marks=pytest.mark.nightly)])
def test_random_views_of_one_buffer(lib, number):
    rng, counts = np.random.default_rng(7), {"rotated": 0, "refused": 0, "not nested": 0}
    for _ in range(number):
        call = xs, outs, pos = random_call(rng, lib)
        rope, backend = rng.choice(ROPES), rng.choice(BACKENDS[lib.name])
        buffer = rng.integers(0, 64, SIZE, np.uint8)  # so that all floats are finite
        before, is_free = buffer.copy(), np.ones(SIZE, bool)
        x, out = (tuple(view.of(lib, buffer) for view in views) for views in (xs, outs))
        expected = bits(rope.apply(x, pos.of(lib, buffer, "int32"), backend=backend))
        try:
            rope.apply(x, pos.of(lib, buffer, "int32"), out=out, backend=backend)
        except ra.ArrayTypeError:
            nested = all(view.is_nested() for view in outs)
            assert not (nested and is_allowed(*call)), call
            counts["refused" if nested else "not nested"] += 1
        else:
            assert is_allowed(*call), call
            assert bits(out) == expected, call
            is_free &= ~sum(view.counts() for view in outs).astype(bool)
            counts["rotated"] += 1
        assert np.array_equal(buffer[is_free], before[is_free]), call
    print(counts)
    assert min(counts.values()) > number / 20
