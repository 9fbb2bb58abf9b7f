"""Cached keys moved by slots, in place, for bench/calls.py.

key-shift: the keys of 32 layers, pools of 8,192 slots, 8 heads of 128, under `torch.inference_mode`; random
slots with random distances. Rows: `convert.shift_keys`; and in steps, that is `index_select`, our rotation of
the rows of all layers, in place, and `index_copy_`.
"""

from functools import partial
from itertools import product

import torch
from _harness import check

import rope_array as ra
from rope_array import convert

LAYERS, POOL, HEADS, WIDTH = 32, 8192, 8, 128
DTYPES, COUNTS = ("bfloat16", "float32"), (1, 16, 256, 4096)
ROPE = ra.RoPE(WIDTH, pairing="half", base=500_000.0)


def key_shift():
    for dtype, count in product(DTYPES, COUNTS):
        yield f"{dtype}, {count}", partial(calls, dtype, count)


def calls(dtype, count):
    with torch.inference_mode():
        start = torch.randn(POOL, HEADS, WIDTH).to(getattr(torch, dtype))
        pools, shift = tuple(start.clone() for _ in range(LAYERS)), convert.shift_rope(ROPE)
        slots, distances = torch.randperm(POOL)[:count], torch.randint(-4096, 4096, (count,))

        def in_steps():
            rows = tuple([pool.index_select(0, slots) for pool in pools])
            shift.apply(rows, distances, seq_axis=-3, out=rows)
            for pool, moved in zip(pools, rows, strict=True):
                pool.index_copy_(0, slots, moved)

        rows = {
            "ours": lambda: convert.shift_keys(pools, distances, ROPE, seq_axis=-3, slots=slots),
            "in steps": in_steps,
        }

        def anew(row):
            for pool in pools:
                pool.copy_(start)
            row()
            return pools[0], pools[-1]

        expected = [pool.clone() for pool in anew(rows["in steps"])]
        check({name: partial(anew, row) for name, row in rows.items()}, expected, 0.0)
        yield "", rows
