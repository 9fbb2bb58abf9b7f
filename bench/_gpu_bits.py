"""Bits of all kernels on a GPU against the array-api backend on the CPU: cases of bench/gpu_session.py.

A case raises an AssertionError with the number of bytes that differ, or returns how many calls it compared.
"""

from functools import partial
from itertools import product

import numpy as np
import torch
from _speed_cases import PAIRINGS

import rope_array as ra

WIDTH = 128
FIELDS = {
    "half": {},
    "interleaved": {"pairing": "interleaved"},
    "half to interleaved": {"out_pairing": "interleaved"},
    "first features": {"rotary_dim": 64},
    "a slice": {"rotary_dim": 64, "rotary_start": 32},
    "amplitude": {"attention_factor": 1.3},
    "axes": {"axes": ra.Axes(tuple(pair % 3 for pair in range(WIDTH // 2)))},
}
# Tokens and heads in every tier of `_triton_launch._tile`.
TOKENS, HEADS = (1, 2, 3, 8, 33, 64, 300), ((32, 8), (1,), (1, 1), (4, 2), (71, 9))
ROUNDINGS, CACHES = ("none", "norm", "steps"), ("bfloat16", "float8_e4m3fn", "int8")
FAR = 2**31 - 1
EAGER = (lambda call: call), "triton"  # a function that wraps calls, and their backend


def by_compiler(session):
    """Return what EAGER has; a dry run compiles for the CPU, which the kernel does not serve."""
    return partial(torch.compile, fullgraph=True), None if session.dry else "triton"


def normal(shape, dtype, seed=0):
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(getattr(torch, dtype))


def integers(*shape):
    return torch.randint(-FAR, FAR, shape, generator=torch.Generator().manual_seed(1))


def rope_of(fields, width=WIDTH):
    return ra.RoPE(width, **{"base": 500_000.0, "pairing": "half", **fields})


def assert_same(ys, expected, label):
    """Assert equal bytes of tensors on any device."""
    for number, (y, right) in enumerate(zip(ys, expected, strict=True)):
        if (y.dtype, y.shape) != (right.dtype, right.shape):
            raise AssertionError(f"{label}, result {number}: {y.dtype}, {tuple(y.shape)}")
        a, b = (t.detach().cpu().contiguous().flatten().view(torch.uint8) for t in (y, right))
        if not torch.equal(a, b):
            raise AssertionError(f"{label}, result {number}: {int((a != b).sum())} of {len(a)} bytes differ")


class Calls:
    """Rotations by the Triton kernel on the device, each compared with array operations on the CPU."""

    def __init__(self, session, rope, xs, seq_axis=-2):
        self.move = lambda tensors: tuple(t.clone().to(session.device.device) for t in tensors)
        self.rope, self.xs, self.seq_axis, self.compared = rope, xs, seq_axis, 0

    def check(self, label, pos, **options):
        """Compare new results and results in place, by positions."""
        options = {"seq_axis": self.seq_axis, **options}
        moved_pos = self.move([pos])[0] if isinstance(pos, torch.Tensor) else pos
        expected = self.rope.apply(self.xs, pos, backend="array-api", **options)
        self.compare(partial(self.rope.apply, pos=moved_pos, **options), expected, label)

    def check_tables(self, pos):
        rotation = self.rope.rotation(pos, like=self.xs[0], backend="array-api")
        on_device = self.rope.rotation(self.move([pos])[0], like=self.move(self.xs)[0], backend="triton")
        assert_same(on_device, rotation, "tables")
        expected = rotation.apply(self.xs, seq_axis=self.seq_axis, backend="array-api")
        self.compare(partial(on_device.apply, seq_axis=self.seq_axis), expected, "by tables")

    def compare(self, function, expected, label):
        assert_same(function(self.move(self.xs), backend="triton"), expected, label)
        out = self.move(self.xs)
        assert_same(function(out, out=out, backend="triton"), expected, f"{label}, in place")
        self.compared += 2


# ---- eager rotations ----


def eager(session, dtype, other):
    for name, fields in FIELDS.items():
        yield f"{name}, {dtype}", partial(sources, session, fields, dtype)
    yield f"half, {other}", partial(sources, session, {}, other)


def sources(session, fields, dtype):
    """Compare positions of each dtype, tables, and the inverse, heads first and tokens first."""
    batch, tokens, axes = 2, 5, (3,) * ("axes" in fields)
    shapes = [(batch, heads, tokens, WIDTH) for heads in (4, 2)]
    calls = Calls(session, rope_of(fields), tuple(normal(shape, dtype) for shape in shapes))
    pos = integers(batch, tokens, *axes)
    calls.check("int64", pos)
    calls.check("int32, inverse", pos.int(), inverse=True)
    calls.check("float32", pos / 7e4)
    calls.check("float64, inverse", pos.double() / 7e4, inverse=True)
    if not axes:
        calls.check("an int", FAR)
        calls.check("a range", range(10**9, 10**9 - 3 * tokens, -3))
    calls.check_tables(pos)
    calls.xs, calls.seq_axis = tuple(x.transpose(1, 2).contiguous() for x in calls.xs), -3
    calls.check("int64, tokens first", pos)
    calls.check_tables(pos)
    return {"calls": calls.compared}


def few_tokens(session):
    for heads, dtype in product(HEADS, ("bfloat16", "float32")):
        yield f"heads {heads}, {dtype}", partial(sizes, session, heads, dtype)


def sizes(session, heads, dtype):
    """Compare few and many tokens of several sequences; return the tiles that were used too."""
    from rope_array._backends.torch import _triton_launch

    _triton_launch._launches.clear()
    for tokens in TOKENS[:3] if session.dry else TOKENS:
        xs = tuple(normal((2, tokens, n, WIDTH), dtype) for n in heads)
        for pairing in PAIRINGS[: 1 + (heads in HEADS[:2])]:
            calls = Calls(session, rope_of({"pairing": pairing}), xs, -3)
            calls.check(f"{tokens} tokens, {pairing}", integers(2, tokens))
    return {"tiles": tiles_of(_triton_launch)}


def tiles_of(module):
    """Return the tokens, heads and warps of the programs so far."""
    places = [module.CONSTANTS.index(name) for name in ("TOKENS", "HEADS0", "HEADS1")]
    launches = [launch for launches in module._launches.values() for launch in launches]
    return sorted({(*(launch.constants[i] for i in places), launch.num_warps) for launch in launches})


# ---- gradients ----


def gradients(session):
    for name, dtype in product(FIELDS, ("bfloat16", "float32")):
        yield f"{name}, {dtype}", partial(differentiated, session, FIELDS[name], dtype, *EAGER)


def differentiated(session, fields, dtype, wrap, backend):
    """Compare the gradients of a rotation by positions and by a Rotation."""
    rope, shapes = rope_of(fields), [(2, heads, 5, WIDTH) for heads in (4, 2)]
    xs, gs = (tuple(normal(shape, dtype, seed) for shape in shapes) for seed in (0, 2))
    pos = integers(2, 5, *(3,) * ("axes" in fields))
    device = session.device.device
    moved = [tuple(t.to(device) for t in tensors) for tensors in (xs, gs)]
    expected = gradient(xs, gs, (pos, rope), EAGER[0], "array-api")
    assert_same(gradient(*moved, (pos.to(device), rope), wrap, backend), expected, "positions")
    rotation = rope.rotation(pos.to(device), like=moved[0][0])
    assert_same(gradient(*moved, (rotation,), wrap, backend), expected, "Rotation")
    return {"calls": 2}


def gradient(xs, gs, source, wrap, backend):
    leaves = tuple(x.detach().clone().requires_grad_() for x in xs)
    return torch.autograd.grad(wrap(partial(rotate, backend=backend))(leaves, *source), leaves, gs)


def rotate(xs, source, rope=None, backend=None, **options):
    if rope is None:
        return source.apply(xs, backend=backend, **options)
    return rope.apply(xs, source, backend=backend, **options)


# ---- compiled ----


def compiled(session):
    yield "lengths", partial(lengths, session)
    for name, fields in FIELDS.items():
        yield f"{name}, bfloat16", partial(traced, session, fields, "bfloat16")
    for name in PAIRINGS:
        yield f"{name}, float32", partial(traced, session, FIELDS[name], "float32")


def gradients_compiled(session):
    for name, dtype in product((*PAIRINGS, "first features"), ("bfloat16", "float32")):
        case = partial(differentiated, session, FIELDS[name], dtype, *by_compiler(session))
        yield f"{name}, {dtype}", case


def traced(session, fields, dtype):
    """Compare new results and results in place of a compiled function, by positions and by tables."""
    rope, device = rope_of(fields), session.device.device
    xs = tuple(normal((2, heads, 5, WIDTH), dtype) for heads in (4, 2))
    pos = integers(2, 5, *(3,) * ("axes" in fields))
    expected = rope.apply(xs, pos, backend="array-api")
    wrap, backend = by_compiler(session)
    functions = {
        "positions": lambda xs, pos: rope.apply(xs, pos, backend=backend),
        "tables": lambda xs, pos: rope.rotation(pos, like=xs[0]).apply(xs, backend=backend),
        "in place": lambda xs, pos: rope.apply(xs, pos, out=xs, backend=backend),
    }
    for label, function in functions.items():
        moved = tuple(x.clone().to(device) for x in xs)
        ys = wrap(function)(moved, pos.to(device))
        assert_same(moved if label == "in place" else ys, expected, label)
    return {"calls": len(functions)}


def lengths(session):
    """Compare several lengths of one compiled function; return how often it was compiled."""
    torch._dynamo.utils.counters.clear()
    rope = rope_of({})
    function = torch.compile(lambda xs, pos: rope.apply(xs, pos), fullgraph=True)
    for tokens in (5, 7, 11, 64):
        xs, pos = tuple(normal((1, n, tokens, WIDTH), "bfloat16") for n in (4, 2)), torch.arange(tokens) + 9
        ys = function(tuple(x.to(session.device.device) for x in xs), pos.to(session.device.device))
        assert_same(ys, rope.apply(xs, pos, backend="array-api"), f"{tokens} tokens")
    return {"graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"]}


# ---- attention's inputs ----


def inputs(session):
    yield from inputs_by(session, *EAGER)


def inputs_compiled(session):
    yield from inputs_by(session, *by_compiler(session))


def inputs_by(session, *by):
    for dtype, rounding in (*product(("bfloat16",), ROUNDINGS), ("float32", "none")):
        yield f"norm, {dtype}, {rounding}", partial(of_inputs, session, *by, dtype, rounding)
    for dtype, cache in (*product(("bfloat16",), CACHES), ("float32", "int8")):
        yield f"norm and {cache} caches, {dtype}", partial(of_inputs, session, *by, dtype, "none", cache)
    yield "bfloat16 caches without a norm", partial(of_inputs, session, *by, "bfloat16", None, "bfloat16")
    if not session.dry:
        many = partial(of_inputs, session, *by, "bfloat16", "none", "bfloat16", tokens=200)
        yield "norm and bfloat16 caches, bfloat16, 200 tokens", many


def of_inputs(session, wrap, backend, dtype, rounding, cache=None, tokens=17):
    """Compare q, k and the caches, of new results and of results in place."""
    q, k, v = (normal((tokens, heads, WIDTH), dtype, heads) for heads in (8, 2, 3))
    tensors = {"q": q, "k": k, "pos": integers(tokens)}
    rope, options = rope_of({}), {"seq_axis": -3}
    if rounding:
        tensors |= {"q_weight": normal(WIDTH, dtype, 5), "k_weight": normal(WIDTH, dtype, 6)}
        options |= {"eps": 1e-6, "rounding": rounding}
    if cache:
        slots = torch.arange(tokens).flip(0) % (tokens - 4)  # some appear twice
        slots[3] = -1
        pages = torch.zeros(16, 16, 2, WIDTH).to(getattr(torch, cache))
        tensors |= {"v": v[:, :2], "slots": slots, "k_cache": pages, "v_cache": pages}
        options |= {"scales": (0.03, 0.04) if cache != "bfloat16" else (1.0, 1.0)}
    for in_place in (False, True):
        call = partial(attention, rope, options, in_place)
        expected = call("array-api", **{name: tensor.clone() for name, tensor in tensors.items()})
        on_device = {name: t.clone().to(session.device.device) for name, t in tensors.items()}
        ys = wrap(partial(call, backend))(**on_device)
        assert_same(ys, expected, "in place" if in_place else "new results")
    return {"calls": 2}


def attention(rope, options, in_place, backend, q, k, pos, **tensors):
    """Return q, k and the caches."""
    options = {**options, "backend": backend, "v": tensors.get("v"), "slots": tensors.get("slots")}
    if "q_weight" in tensors:
        options["norm"] = (tensors["q_weight"], tensors["k_weight"])
    caches = (tensors["k_cache"], tensors["v_cache"]) if "slots" in tensors else ()
    if caches:
        options["cache"] = caches
    if in_place:
        options["out"] = (q, k)
    y, z, *_ = ra.attention_inputs(q, k, pos, rope, **options)
    return y, z, *caches


# ---- CuPy ----


def cupy(session):
    import cupy

    for (name, fields), dtype in product(FIELDS.items(), ("float32", "float16", "float64")):
        yield f"{name}, {dtype}", partial(of_cupy, cupy, fields, dtype)


def of_cupy(cupy, fields, dtype):
    """Compare new results, results in place, the inverse, and heads with a norm."""
    x, pos = normal((2, 4, 5, WIDTH), dtype).numpy(), integers(2, 5, *(3,) * ("axes" in fields)).numpy()
    rope, weight = rope_of(fields), np.linspace(-1, 2, WIDTH).astype(dtype)

    def results(asarray, backend):
        xs, source = [asarray(x) for _ in range(4)], asarray(pos)
        options = {"norm": (asarray(weight), None), "backend": backend}
        return [
            rope.apply(xs[0], source, backend=backend),
            rope.apply(xs[1], source, backend=backend, inverse=True),
            rope.apply(xs[2], source, backend=backend, out=xs[2]),
            ra.attention_inputs(xs[3], None, source, rope, **options)[0],
        ]

    ys = [torch.from_numpy(cupy.asnumpy(y)) for y in results(cupy.asarray, "cuda")]
    assert_same(ys, map(torch.from_numpy, results(np.array, "array-api")), "CuPy")
    return {"calls": 4}
