"""The rotation under torch.compile on the CPU, one thread: our time divided by others' in the same run.

The others are a compiled `x * 2`, our eager kernel, and transformers' code compiled.

x is (1, 32, 2048, 128), contiguous, and positions are `torch.arange(2048)`, an argument of the compiled
function. By positions, every function computes its tables: ours by `rope.apply(x, pos)`, theirs by the
module of the model, `LlamaRotaryEmbedding(config)(x, position_ids)`. By `Rotation`, ours and theirs get
tables made before. q and k are 32 and 8 heads in one call; as views, they have the memory order of a
projection's result, (1, 2048, heads, 128). Interleaved pairs are compared with two functions of theirs:
Llama's, which rotates half pairs, and Cohere's, which rotates interleaved pairs.

Forward: no input requires a gradient; gradient mode is on. Forward and backward: x (or q and k) is a leaf
that requires a gradient, and the call is `torch.autograd.grad(function(x), x, g)`, with g made before:
normal numbers of x's dtype in x's memory order. No gradient is accumulated; positions and tables require
none.

Each result is compared with the eager kernel's before it is timed.
"""

import argparse
import os
import sys
import time
from itertools import product
from typing import NamedTuple

os.environ |= {"ROPE_ARRAY_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import torch
from _blocks import compare, finish, parse, print_table, take_turns
from _record import record

import rope_array as ra

PACKAGES = ("numpy", "torch", "transformers", "array-api-compat", "rope-array")
HEADS, KV_HEADS, LENGTH, WIDTH, PARTIAL = 32, 8, 2048, 128, 64
ROUNDS, SECONDS = 5, 0.1  # of a block
TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2}  # of the largest |y|; theirs have tables of x's dtype
TWICE, EAGER = "x * 2", "eager"
HEAD = (
    "case", "forward, ms", "÷ x * 2", "÷ eager", "÷ Llama", "÷ Cohere",
    "both, ms", "÷ x * 2", "÷ eager", "÷ Llama", "÷ Cohere",
)  # fmt: skip


class CompiledCase(NamedTuple):
    """The inputs, and the rotation. `source` is "positions" or "Rotation"."""

    dtype: str
    source: str
    pairing: str
    arrays: str = "x"
    rotary_dim: int = WIDTH

    @property
    def name(self):
        partial = f", {self.rotary_dim} of {WIDTH}" if self.rotary_dim < WIDTH else ""
        return f"{self.dtype}, {self.source}, {self.pairing}, {self.arrays}{partial}"

    @property
    def heads(self):
        return (HEADS,) if self.arrays == "x" else (HEADS, KV_HEADS)


QK, VIEWS = "q and k", "q and k, views"


def cases():
    every = list(product(("float32", "bfloat16"), ("positions", "Rotation"), ("half", "interleaved")))
    extra = [(QK, WIDTH), ("x", PARTIAL)]
    chosen = [CompiledCase(*args) for args in every] + [
        CompiledCase(*args, *more_) for more_ in extra for args in every
    ]
    return chosen + [CompiledCase(*args, VIEWS) for args in every if "Rotation" in args]


# ---- functions of (xs, source), which return a tuple ----


def ours(case):
    rope = ra.RoPE(head_dim=WIDTH, base=500_000.0, pairing=case.pairing, rotary_dim=case.rotary_dim)
    if case.source == "positions":
        return lambda xs, pos: rope.apply(xs, pos)
    return lambda xs, rotation: rotation.apply(xs)


def llama(case):
    from transformers.models.llama import modeling_llama as model

    config = model.LlamaConfig(**fields(case))
    return theirs(case, model.LlamaRotaryEmbedding(config), model.apply_rotary_pos_emb)


def cohere(case):
    from transformers.models.cohere import modeling_cohere as model

    config = model.CohereConfig(**fields(case))
    return theirs(case, model.CohereRotaryEmbedding(config), model.apply_rotary_pos_emb)


def fields(case):
    """Return the fields of a config, whose `head_dim` is the number of rotated features."""
    rope = {"rope_type": "default", "rope_theta": 500_000.0}
    return {"hidden_size": HEADS * WIDTH, "num_attention_heads": HEADS, "head_dim": case.rotary_dim,
            "rope_parameters": rope}  # fmt: skip


def theirs(case, module, apply):
    """Return transformers' function; a part of the width is rotated as in GPT-NeoX, by slices and cat."""

    def rotate_all(xs, cos, sin):
        q, k = xs if len(xs) == 2 else xs * 2  # of one array: the compiler drops the unused result
        return apply(q, k, cos, sin)[: len(xs)]

    def rotate(xs, cos, sin):
        if case.rotary_dim == WIDTH:
            return rotate_all(xs, cos, sin)
        rotated = rotate_all(tuple(x[..., : case.rotary_dim] for x in xs), cos, sin)
        return tuple(
            torch.cat((y, x[..., case.rotary_dim :]), dim=-1) for x, y in zip(xs, rotated, strict=True)
        )

    if case.source == "positions":
        return lambda xs, position_ids: rotate(xs, *module(xs[0], position_ids))
    return lambda xs, tables: rotate(xs, *tables)


def twice(xs, source):
    return tuple(x * 2 for x in xs)


# ---- inputs, and calls without arguments ----


def normal(case):
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, case.dtype)
    xs = (torch.randn(1, heads, LENGTH, WIDTH, generator=generator).to(dtype) for heads in case.heads)
    return tuple(as_view(x) if case.arrays == VIEWS else x for x in xs)


def as_view(x):
    """Return x in the memory order of a projection's result, (B, S, heads, width)."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def sources(case, xs):
    """Return the source of ours and of theirs: positions, or tables made before."""
    pos = torch.arange(LENGTH)
    if case.source == "positions":
        return pos, pos[None]
    rope = ra.RoPE(head_dim=WIDTH, base=500_000.0, pairing=case.pairing, rotary_dim=case.rotary_dim)
    rotation = rope.rotation(pos, like=xs[0])
    return rotation, tuple(table[None] for table in rotation.full_width(xs[0].dtype))


def functions(case):
    """Return name: (function, whether the source is ours)."""
    compile = lambda function: torch.compile(function, dynamic=False, fullgraph=True)  # noqa: E731
    compiled = {
        TWICE: (compile(twice), True),
        EAGER: (ours(case), True),
        "ours": (compile(ours(case)), True),
        "Llama": (compile(llama(case)), False),
    }
    if case.pairing == "interleaved":
        compiled["Cohere"] = (compile(cohere(case)), False)
    return compiled


def calls(case):
    """Return the forward calls, and the forward and backward calls, by name."""
    xs = normal(case)
    leaves = tuple(x.clone().requires_grad_() for x in xs)  # clone and flip keep the order of memory
    grads = tuple(x.flip(-1) for x in xs)
    source, table = sources(case, xs)
    forward, backward = {}, {}
    for name, (function, is_ours) in functions(case).items():
        source_of_row = source if is_ours else llama_tables(case, table, name)
        forward[name] = lambda f=function, s=source_of_row: f(xs, s)
        backward[name] = lambda f=function, s=source_of_row: torch.autograd.grad(f(leaves, s), leaves, grads)
    return forward, backward


def llama_tables(case, tables, name):
    """Return the tables of theirs in the arrangement of the function: Llama's is for half pairs."""
    if case.source == "positions" or name == "Cohere" or case.pairing == "half":
        return tables
    return tuple(torch.cat((table[..., ::2],) * 2, dim=-1) for table in tables)


def check(case, calls_of_row):
    """Raise if a result differs from the eager kernel's: `x * 2` and Llama's half pairs are not compared."""
    like_eager = {"ours"} | ({"Llama"} if case.pairing == "half" else {"Cohere"})
    expected = calls_of_row[EAGER]()
    for name in like_eager & set(calls_of_row):
        for y, right in zip(calls_of_row[name](), expected, strict=True):
            error = ((y.float() - right.float()).abs().max() / right.float().abs().max()).item()
            if not error <= TOLERANCE[case.dtype]:
                raise SystemExit(
                    f"{case.name}: the result of {name} is off by {error:.2g} of the largest |y|"
                )


# ---- results ----


def measure(chosen, rounds, seconds):
    return {case.name: measure_case(case, rounds, seconds) for case in chosen}


def measure_case(case, rounds, seconds):
    """Return milliseconds and ratios of ours, forward, and forward and backward."""
    torch._dynamo.reset()
    begun, numbers = time.perf_counter(), {}
    for pass_, rows in zip(("forward", "forward and backward"), calls(case), strict=True):
        check(case, rows)
        numbers[pass_] = compare(take_turns(rows, rounds, seconds), "ours")
    print(f"  {case.name}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    return numbers


def row(name, numbers):
    cells = [name]
    for pass_ in ("forward", "forward and backward"):
        timing = numbers[pass_]
        cells.append(f"{timing['ms']['ours']:.2f}")
        cells += [timing["ratios"].get(reference, "") for reference in (TWICE, EAGER, "Llama", "Cohere")]
    return cells


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="WORD", help="the cases whose name has all these"
    )
    options = parse(parser, "compiled")
    torch.set_num_threads(1)
    chosen = [case for case in cases() if all(word in case.name for word in options.only)]
    rounds, seconds = (2, 0.01) if options.quick else (ROUNDS, SECONDS)
    run = record("compiled", measure(chosen, rounds, seconds), __doc__, PACKAGES)
    print_table(HEAD, [row(*row_of_case) for row_of_case in run["numbers"].items()])
    finish(run, options)


if __name__ == "__main__":
    main()
