"""Times of calls on a GPU, in rounds with a copy of the same bytes: cases of bench/gpu_session.py."""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import product
from unittest import mock

import torch
import torch.nn.functional as F
from _gpu_bits import tiles_of
from _harness import in_rounds, one_line, spread
from _speed_cases import BACKWARD, COPY, DTYPES, OURS, PAIRINGS, GpuCase
from _speed_gpu import BASE, LOOPS, REPLAYS, Contender, GpuTrial, facts_of_row
from _speed_rounds import alternate, run, summary

import rope_array as ra

# Rows of rotations: all but CuPy's, which has a step, and the array-api backend's, which takes long.
ROWS = ("*", "-*backend=*", "-*CuPy*")
# Constants of `_triton_launch` that `tiles` tries, by the group of a case; {} is the module as it is.
TILES = {
    "decode": (
        *({}, {"_FEW_TOKENS": 0}, {"_FEW_TOKENS": 1024}),
        *({"_FEW_BYTES": 8}, {"_FEW_BYTES": 32}, {"_FEW_BYTES": 64}, {"_FEW_TOKENS": 0, "_MAX_HEADS": 8}),
    ),
    "heads first": (
        *({}, {"_RUN_TOKENS": 1, "_RUN_HEADS": 32}, {"_RUN_TOKENS": 2}, {"_RUN_TOKENS": 8, "_RUN_HEADS": 8}),
        *({"_RUN_HEADS": 8}, {"_RUN_HEADS": 32}, {"_THREAD_BYTES": {"half": 64, "interleaved": 32}}),
    ),
    "one head": (
        *({}, {"_ONE_HEAD_PAIRS": 4}, {"_ONE_HEAD_PAIRS": 8}, {"_ONE_HEAD_PAIRS": 32}),
        *({"_TILE_BYTES": 4096}, {"_TILE_BYTES": 16384}, {"_TILE_BYTES": 16384, "_ONE_HEAD_PAIRS": 32}),
    ),
}
LAYERS, WIDTH = 4, 128
SIZES, TINY = (2048, 32, 8), (32, 2, 1)  # of a model: its width, heads, and heads of k


# ---- rotations, as by bench/speed.py --gpu ----


class CapturedTrial(GpuTrial):
    """Every row is also timed in a replayed CUDA graph."""

    is_captured = True


class WarmTrial(CapturedTrial):
    """One set of arrays, which stays in the L2."""

    cover = 0


def prefill(session):
    cases = [GpuCase("prefill", 1, 8192, *setting, rows=ROWS) for setting in product(DTYPES, PAIRINGS)]
    yield from rotations(session, CapturedTrial, cases)


def decode(session):
    settings = product((1, 8, 64), DTYPES, PAIRINGS)
    cases = [GpuCase("decode", batch, 1, *setting, rows=ROWS) for batch, *setting in settings]
    yield from rotations(session, CapturedTrial, cases)


def decode_warm(session):
    rows = (*ROWS, "-*torch.compile*")
    cases = [GpuCase("decode, warm L2", n, 1, "bfloat16", "half", rows=rows) for n in (1, 8, 64)]
    yield from rotations(session, WarmTrial, cases)


def other_heads(session):
    first = [GpuCase("heads first", 1, 8192, "bfloat16", p, layout="bhsd", rows=ROWS) for p in PAIRINGS]
    one = [GpuCase("one head", 1, 524288, dtype, "half", heads=(1,), rows=ROWS) for dtype in DTYPES]
    yield from rotations(session, CapturedTrial, first + one)


def backward(session):
    settings = product(DTYPES, PAIRINGS)
    cases = [GpuCase("backward", 1, 8192, *setting, BACKWARD, rows=ROWS) for setting in settings]
    yield from rotations(session, GpuTrial, cases)


def rotations(session, trial, cases):
    trial = partial(trial, device=session.device)
    for case in cases:
        quick = session.dry or session.once
        yield case.name, partial(run, small(session, case), trial, ("*",), quick)


def small(session, case):
    if not session.dry:
        return case
    heads = tuple(min(n, 2) for n in case.heads)
    return replace(case, batch=min(case.batch, 2), tokens=min(case.tokens, 4), heads=heads, head_dim=16)


# ---- other calls ----


class CallsTrial(GpuTrial):
    """Calls that are ready."""

    copies = (("copies", COPY),)

    def __init__(self, device):
        self.device = device


def timed(session, calls, captured=True):
    """Return the numbers of calls by their names."""
    trial, rows, contenders = CallsTrial(session.device), {}, {}
    for name, call in calls.items():
        try:
            call()
            contenders[name] = Contender(name, [call], None, captured and "reduce-overhead" not in name)
        except Exception as error:  # a call that fails costs its row only
            rows[name] = {"failed": one_line(error)}
    if not session.once:
        times, paces = alternate(contenders, trial, session.dry)
        for name, timings in times.items():
            facts = facts_of_row(contenders[name], timings)
            rows[name] = summary(name, times, paces[name], trial.copies) | facts
        trial.add_graphs(contenders, rows)
    session.device.forget()
    return {"rows": rows}


# ---- models of several layers ----


class Attention(torch.nn.Module):
    def __init__(self, hidden, heads, kv_heads):
        super().__init__()
        self.heads = [heads, kv_heads, kv_heads]
        self.qkv = torch.nn.Linear(hidden, sum(self.heads) * WIDTH, bias=False)
        self.out = torch.nn.Linear(heads * WIDTH, hidden, bias=False)

    def forward(self, x, rotate):
        q, k, v = self.qkv(x).unflatten(-1, (-1, WIDTH)).split(self.heads, 2)
        q, k, v = (y.transpose(1, 2) for y in (*rotate(q, k), v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Model(torch.nn.Module):
    """Layers of attention; `rotation(x, pos)` returns the function that rotates q and k of each."""

    def __init__(self, rotation, sizes):
        super().__init__()
        self.layers = torch.nn.ModuleList(Attention(*sizes) for _ in range(LAYERS))
        self.rotation = rotation

    def forward(self, x, pos):
        rotate = self.rotation(x, pos)
        for layer in self.layers:
            x = layer(x, rotate)
        return x


def by_apply(rope, x, pos):
    return lambda q, k: rope.apply((q, k), pos, seq_axis=-3)


def by_rotation(rope, x, pos):
    rotation = rope.rotation(pos, like=x)
    return lambda q, k: rotation.apply((q, k), seq_axis=-3)


def no_rotation(x, pos):
    return lambda q, k: (q, k)


class ByTransformers(torch.nn.Module):
    """Llama's module and function, as its model calls them."""

    def __init__(self):
        super().__init__()
        from peers import _llama
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        self.embedding, self.apply_to = deepcopy(_llama._embedding(WIDTH, BASE)), apply_rotary_pos_emb

    def forward(self, x, pos):
        cos, sin = self.embedding(x, pos)
        return lambda q, k: self.apply_to(q, k, cos, sin, unsqueeze_dim=2)


def models(session):
    for name in MODELS:
        yield name, partial(of_models, session, name)


def of_models(session, size):
    """Return the times of models with equal weights, in the time of one without a rotation.

    An error is the distance of the first result to the first model's, relative to its length.
    """
    rope = ra.RoPE(WIDTH, base=BASE, pairing="half")
    variants = {
        OURS: lambda: partial(by_apply, rope),
        "rope_array, Rotation": lambda: partial(by_rotation, rope),
        "transformers": ByTransformers,
        COPY: lambda: no_rotation,
    }
    rows, calls, results = {}, {}, {}
    for name, make in variants.items():
        torch.manual_seed(0)
        try:
            model = Model(make(), TINY if session.dry else SIZES)
            model.to(session.device.device).layers.to(torch.bfloat16)
            calls[name] = MODELS[size](session, model)
            results[name] = calls[name]()[0].float()
        except Exception as error:  # transformers is missing, or a model cannot be compiled
            rows[name] = {"failed": one_line(error)}
            calls.pop(name, None)
    rows |= timed(session, calls, captured=False)["rows"]
    right = results.pop(OURS)
    for name, y in results.items():
        rows.setdefault(name, {})["error"] = float((y - right).norm() / right.norm())
    return {"copies": "times without a rotation", "rows": rows}


def tokens_of(session, batch, tokens):
    """Return hidden states and positions."""
    batch, tokens = (min(batch, 2), min(tokens, 4)) if session.dry else (batch, tokens)
    options, (hidden, *_) = {"device": session.device.device}, TINY if session.dry else SIZES
    torch.manual_seed(1)
    x = torch.randn(batch, tokens, hidden, dtype=torch.bfloat16, **options)
    return x, torch.arange(batch * tokens, **options).view(batch, tokens) + 4095


def forward(session, model, batch, tokens, mode=None):
    x, pos = tokens_of(session, batch, tokens)
    call = torch.compile(model, fullgraph=True, dynamic=False, mode=mode)

    def run_model():
        with torch.no_grad():
            return (call(x, pos),)

    return run_model


def forward_and_backward(session, model, batch, tokens):
    x, pos = tokens_of(session, batch, tokens)
    call, parameters = torch.compile(model, fullgraph=True, dynamic=False), [*model.parameters()]
    return lambda: torch.autograd.grad(call(x, pos).float().square().mean(), parameters)


MODELS = {
    "training": partial(forward_and_backward, batch=1, tokens=4096),
    "prefill": partial(forward, batch=1, tokens=4096),
    "decode": partial(forward, batch=64, tokens=1, mode="reduce-overhead"),
}


# ---- attention's inputs ----


def inputs(session):
    for dtype, tokens in (*product(("bfloat16",), (1, 64, 8192)), ("float32", 8192)):
        yield f"{dtype}, {tokens} tokens", partial(of_inputs, session, dtype, 1 if session.dry else tokens)


def of_inputs(session, dtype, tokens):
    """Return times of the rows of bench/calls.py attention-inputs, and more; small arrays are in the L2."""
    import _calls_attention as calls

    device = session.device.device
    width = (calls.HEADS + 2 * calls.KV_HEADS) * calls.WIDTH
    with torch.inference_mode():
        joint = torch.randn(tokens, width, device=device).to(getattr(torch, dtype))
        arguments = joint, calls.weights(joint, requires_grad=False), torch.arange(tokens, device=device)
        rows = {}
        for make in (calls.our_rows, calls.unfused_rows, calls.qwen3_rows, partial(more_inputs, calls)):
            rows |= make(*arguments)
        return timed(session, {COPY: rows.pop("a copy"), **rows})


def more_inputs(calls, joint, norm, pos):
    """Return rows of compiled functions with new results, of caches of 8 bits, and of a copy with v."""
    q, k, v = calls.split(joint)
    rotation, (caches, slots) = calls.ROPE.rotation(pos, like=joint), calls.paged(joint)
    narrow = tuple(cache.to(torch.float8_e4m3fn) for cache in caches)
    options = {"eps": calls.EPS, "seq_axis": -3}
    ours = compiled(lambda q, k, rotation: ra.attention_inputs(q, k, rotation, norm=norm, **options))
    steps = compiled(lambda q, k, rotation: rotation.apply(calls.normed((q, k), norm), seq_axis=-3))
    cached = partial(ra.attention_inputs, q, k, rotation, v=v, norm=norm, out=(q, k), **options)
    return {
        "a copy with v": lambda: joint.clone(),
        "norm + rotation, torch.compile": lambda: ours(q, k, rotation),
        "unfused, torch.compile": lambda: steps(q, k, rotation),
        "norm + rotation + float8 cache": lambda: cached(cache=narrow, slots=slots, scales=(0.1, 0.1)),
    }


def compiled(function):
    return torch.compile(function, dynamic=False, fullgraph=True)


# ---- tiles ----


def tiles(session):
    settings = [*product((1, 8, 64), DTYPES, ("half",)), *((n, "bfloat16", "interleaved") for n in (1, 256))]
    cases = [GpuCase("decode", batch, 1, *setting) for batch, *setting in settings]
    cases += [GpuCase("heads first", 1, 8192, "bfloat16", p, layout="bhsd") for p in PAIRINGS]
    cases += [GpuCase("one head", 1, 524288, dtype, "half", heads=(1,)) for dtype in DTYPES]
    for case in cases:
        yield case.name, partial(of_tiles, session, small(session, case))


def of_tiles(session, case):
    """Return the times of variants of TILES in a replayed CUDA graph, and its tile."""
    trial = CapturedTrial(case, session.device)
    rows, replays = {}, {}
    rotate = partial(trial.rope.apply, pos=trial.pos, seq_axis=trial.seq_axis, backend="triton")
    copies = [partial(copied, xs) for xs in trial.xs]
    functions = {COPY: ({}, copies)} | {
        str(variant): (variant, [partial(rotate, xs) for xs in trial.xs]) for variant in TILES[case.group]
    }
    for name, (variant, sets) in functions.items():
        try:
            replays[name], rows[name] = captured(session, name, variant, sets)
        except Exception as error:  # of a constant that the module does not have, or of a tile too large
            rows[name] = {"failed": one_line(error)}
    times = in_rounds({} if session.once else replays, REPLAYS)
    for name, seconds in times.items():
        ratios = [a / b for a, b in zip(seconds, times[COPY], strict=True)]
        rows[name] |= {"graph": spread(seconds), "copies": spread(ratios)}
    session.device.forget()
    return case.facts() | {"sets": trial.count, "rows": rows}


def copied(xs):
    return [x.clone() for x in xs]


def captured(session, name, variant, sets):
    """Return a replay of calls whose launches are prepared with other constants, and their tiles."""
    from rope_array._backends.torch import _triton_launch

    if unknown := variant.keys() - vars(_triton_launch).keys():
        raise AttributeError(f"_triton_launch has no {', '.join(unknown)}")
    _triton_launch._launches.clear()
    with mock.patch.dict(vars(_triton_launch), variant):
        contender = Contender(name, sets, None, True)
        replay = session.device.graph(contender, min(LOOPS, len(sets)))
    return replay, {"tiles": tiles_of(_triton_launch)}
