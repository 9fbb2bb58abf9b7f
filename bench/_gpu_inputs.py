"""The tensors of one case of `bench/gpu.py`: several sets of x and of gradients, positions, and tables."""

import math
from functools import cached_property

import torch
from peers._timed import NotServedError

import rope_array as ra

BASE = 500_000.0
COVER = 3  # the bytes of all sets, in sizes of the L2
SETS = 256  # at most
FIRST, STEP, FURTHEST = 4095, 17, 131072  # positions of decoding: the first, and from sequence to sequence
JUDGED = 64  # tokens, or sequences in decoding


class Inputs:
    """Tensors of one case on a device.

    `xs` has a tuple of tensors for each set, `gs` the gradients of the results. Positions are (S,), or (B,
    1) in decoding, int64 on the device.
    """

    def __init__(self, case, device):
        self.case, self.device = case, device
        self.count = min(SETS, math.ceil(COVER * device.l2_bytes / case.bytes))
        self.beyond_l2 = self.count * case.bytes >= 2 * device.l2_bytes
        self.seq_axis = -3 if case.layout == "bshd" else -2
        self.rope = ra.RoPE(case.head_dim, base=BASE, pairing=case.pairing)
        self._random = torch.Generator(device.device).manual_seed(0)
        self.xs = [self._normal() for _ in range(self.count)]
        self.gs = [self._normal() for _ in range(self.count)] if case.direction != "forward" else []

    def _normal(self):
        """Return standard normal tensors, generated in their own dtype to spare memory."""
        options = {"generator": self._random, "device": self.device.device}
        dtype = getattr(torch, self.case.dtype)
        return tuple(torch.randn(*self.shape(heads), dtype=dtype, **options) for heads in self.case.heads)

    def shape(self, heads):
        case = self.case
        middle = (case.tokens, heads) if case.layout == "bshd" else (heads, case.tokens)
        return (case.batch, *middle, case.head_dim)

    @cached_property
    def pos(self):
        if self.case.tokens > 1:
            return torch.arange(self.case.tokens, device=self.device.device)
        return ((FIRST + STEP * torch.arange(self.case.batch)) % FURTHEST)[:, None].to(self.device.device)

    @cached_property
    def flat_pos(self):
        """The position of each token of (B S, H, D)."""
        return self.pos.expand(self.case.batch, self.case.tokens).flatten()

    @property
    def length(self):
        """The rows that a table from position 0 on needs."""
        return max(self.case.tokens, FURTHEST if self.case.tokens == 1 else 0)

    def rotation(self):
        return self.rope.rotation(self.pos, like=self.xs[0][0])

    def token_tables(self):
        """Return cos and sin of each token as in transformers' models: (1 or B, S, D), in x's dtype."""
        tables = self.rotation().full_width(self.xs[0][0].dtype)
        return tuple(table if table.ndim == 3 else table[None] for table in tables)

    def half_tables(self):
        """Return cos and sin of the positions from 0 on: (length, D / 2), in x's dtype."""
        like = self.xs[0][0]
        rotation = self.rope.rotation(torch.arange(self.length, device=like.device), like=like)
        return tuple(table.to(like.dtype) for table in rotation)

    def only(self, pairing):
        if self.case.pairing != pairing:
            raise NotServedError(f"{pairing} pairs alone")

    def only_q_and_k(self):
        if len(self.case.heads) != 2:
            raise NotServedError("takes q and k together")

    # ---- the layouts that implementations take ----

    def view(self, x, layout):
        """Return a view of x in another order of axes."""
        if layout == self.case.layout:
            return x
        if layout != "tokens":
            return x.transpose(1, 2)
        tokens = self.view(x, "bshd").flatten(0, 1)
        if tokens.data_ptr() != x.data_ptr():
            raise NotServedError("takes the tokens of all sequences in one axis, which this order has not")
        return tokens

    def back(self, y, layout):
        """Return a view of a result in the case's order of axes."""
        if layout == "tokens":
            return self.back(y.unflatten(0, (self.case.batch, self.case.tokens)), "bshd")
        return y if layout == self.case.layout else y.transpose(1, 2)

    # ---- the truth ----

    def expected(self, number):
        """Return the right result for a set at some tokens, by the array-api backend on the same device."""
        case = self.case
        given = self.xs[number] if case.direction == "forward" else self.gs[number]
        xs = tuple(self.some(x) for x in given)
        pos = self.pos[self._chosen]
        options = {"seq_axis": self.seq_axis, "backend": "array-api"}
        # Without an amplitude the gradient of the rotation is its inverse.
        return xs, ra.apply(xs, pos, self.rope, inverse=case.direction != "forward", **options)

    def some(self, x):
        """Return x at some tokens with the first and the last, or at some sequences in decoding."""
        axis = 0 if self.case.tokens == 1 else x.ndim + self.seq_axis
        return x.index_select(axis, self._chosen)

    @cached_property
    def _chosen(self):
        size = self.case.tokens if self.case.tokens > 1 else self.case.batch
        return torch.linspace(0, size - 1, min(size, JUDGED)).long().to(self.device.device)
