"""The cases of `bench/gpu.py`: sizes, dtypes, pairings, memory orders and directions."""

from itertools import product
from typing import NamedTuple

# Rows: the copy that times are divided by, and ours, by exact angles and by tables made before.
COPY, OURS, ROTATION = "copy", "rope_array", "rope_array, Rotation"
FORWARD, BACKWARD, BOTH = "forward", "backward", "forward and backward"
DTYPES, PAIRINGS = ("bfloat16", "float32"), ("half", "interleaved")
PREFILL = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)  # tokens of one sequence
DECODE = (1, 8, 64, 512, 4096)  # sequences of one token
HEADS, ONE_KEY_HEAD, ONE_HEAD = (32, 8), (32, 1), (1,)  # of q and k; ONE_HEAD is one array


class Case(NamedTuple):
    """Arrays of `batch` × `tokens` with `heads` heads each; `layout` is their order in memory.

    `direction` is the call that is timed: forward, the backward alone, or both. `more` adds the rows that
    take long to prepare: the array-api backend and compiled functions.
    """

    group: str
    batch: int
    tokens: int
    dtype: str
    pairing: str
    direction: str = FORWARD
    layout: str = "bshd"
    heads: tuple[int, ...] = HEADS
    head_dim: int = 128
    more: bool = False

    @property
    def name(self):
        size = f"{self.tokens} tokens" if self.tokens > 1 else f"{self.batch} sequences"
        parts = [self.group, size, f"heads {'+'.join(map(str, self.heads))}", f"width {self.head_dim}"]
        return ", ".join((*parts, self.dtype, self.pairing, self.layout, self.direction))

    @property
    def bytes(self):
        """The bytes of the arrays, which a call reads once; it writes as many."""
        itemsize = 2 if self.dtype == "bfloat16" else 4
        return self.batch * self.tokens * sum(self.heads) * self.head_dim * itemsize

    @property
    def moved(self):
        return 2 * self.bytes


def cases(quick=False):
    """Return the cases; with `quick`, a few with every kind of row."""
    return _quick() if quick else [*_prefill(), *_order(), *_decode(), *_widths(), *_heads(), *_both()]


def _quick():
    return [
        *(Case("prefill", 1, 8192, *each) for each in product(DTYPES, PAIRINGS, (FORWARD, BACKWARD))),
        Case("prefill", 1, 32768, "bfloat16", "half", more=True),
        Case("decode", 64, 1, "bfloat16", "half"),
    ]


def _prefill():
    for each in product(PREFILL, DTYPES, PAIRINGS, (FORWARD, BACKWARD)):
        yield Case("prefill", 1, *each, more=each[0] == 8192 and each[2] == "half")


def _order():
    """(B, H, S, D), at sizes that exceed every L2."""
    for each in product((8192, 32768), DTYPES, PAIRINGS, (FORWARD, BACKWARD)):
        yield Case("prefill, heads first", 1, *each, layout="bhsd")


def _decode():
    for batch, dtype, pairing in product(DECODE, DTYPES, PAIRINGS):
        yield Case("decode", batch, 1, dtype, pairing, more=batch == 64 and pairing == "half")


def _widths():
    """Tokens in inverse proportion to the width: the arrays have the bytes of 16,384 tokens of 128."""
    for width, *each in product((64, 256), DTYPES, PAIRINGS, (FORWARD, BACKWARD)):
        yield Case("other widths", 1, 16384 * 128 // width, *each, head_dim=width)


def _heads():
    """One head of k with 32 of q, and a single head, whose angles no other head shares."""
    for heads, tokens in ((ONE_KEY_HEAD, 16384), (ONE_HEAD, 524288)):
        for each in product(DTYPES, PAIRINGS, (FORWARD, BACKWARD)):
            yield Case("fewer heads", 1, tokens, *each, heads=heads)


def _both():
    for each in product((1024, 16384), DTYPES, PAIRINGS):
        yield Case("forward and backward", 1, *each, direction=BOTH)
