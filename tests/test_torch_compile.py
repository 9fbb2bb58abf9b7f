"""PyTorch compiled, exported and traced: the eager bits, and no more graphs than needed."""

import copy
import functools
import io
import logging
import math
import shutil

import child
import numpy as np
import pytest
from compare import judge, same
from threads import in_threads
from torch_cases import (
    BY,
    FIELDS,
    HALF,
    IGNORED,
    LIST,
    OTHER,
    POS,
    ROPE,
    Attention,
    forward_ad,
    judge_gradient,
    near,
    normal,
)

import rope_array as ra

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.library("torch"), *IGNORED]


LENGTHS = (3, 4, 5, 9, 17, 100, 1)


@pytest.fixture
def compile_counting(monkeypatch):
    """torch.compile with fullgraph=True, and a backend that runs operations unchanged and counts graphs."""
    from torch._dynamo.testing import CompileCounter

    records = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append
    logger = logging.getLogger("torch")
    logger.addHandler(handler)
    torch._dynamo.reset()

    def compile_counting(function, **options):
        counter = CompileCounter()
        return torch.compile(function, backend=counter, fullgraph=True, **options), counter

    yield compile_counting
    logger.removeHandler(handler)
    torch._dynamo.reset()
    assert not records, [record.getMessage() for record in records]


def made_inside(x, pos):
    rotation = OTHER.rotation(pos, like=x)
    a, b = rotation.apply((x, 2 * x))
    return a, rotation.inverse().apply(b), rotation.adjoint().apply(x)


MROPE = ra.RoPE(16, axes=ra.Axes.interleaved(4, 2, 2), scaling=ra.YaRN(4.0, 64))
OVER_LENGTHS = {
    "coordinates": lambda x, pos: MROPE.apply(x, pos[:, None] + torch.arange(3)),
    "rotation of coordinates": lambda x, pos: MROPE.rotation(pos[:, None] * torch.arange(3), like=x).apply(x),
    "rope": lambda x, pos: HALF.apply(x, pos),
    "ra.apply": lambda x, pos: ra.apply(x, pos, HALF, inverse=True),
    "inline": lambda x, pos: ra.apply(x, pos, base=123.0, pairing="half", rotary_dim=8),
    "plain": lambda x, pos: ra.apply(x, pos),
    "float32 angles": lambda x, pos: ra.apply(x, pos, angles="float32"),
    "positions made inside": lambda x, pos: HALF.apply(x, torch.arange(5, 5 + x.shape[-2])),
    "two ropes": lambda x, pos: HALF.apply(x, pos) + OTHER.apply(x, pos),
    "tuple": lambda x, pos: HALF.apply((x, x[:1].bfloat16(), x.double()), pos),
    "seq_axis": lambda x, pos: HALF.apply(x.transpose(0, 1), pos, seq_axis=-3),
    "rotation": made_inside,
    "float positions": lambda x, pos: HALF.apply(x, pos + 0.25),
    "one position each": lambda x, pos: HALF.apply(x, pos[None] + torch.arange(2)[:, None]),
    "no rotation": lambda x, pos: ra.apply(x, pos, rotary_dim=0),
}


@pytest.mark.parametrize("name", OVER_LENGTHS)
def test_compiled_over_lengths(name, compile_counting):
    function = OVER_LENGTHS[name]
    compiled, counter = compile_counting(function)
    for length in LENGTHS:
        x, pos = normal(2, length, 16, seed=length), torch.arange(length) - 2
        assert same(compiled(x, pos), function(x, pos))
    assert 1 <= counter.frame_count <= 3


@pytest.mark.parametrize("name", ["rope", "inline", "rotation"])
def test_compiled_with_every_size_dynamic(name, compile_counting):
    function = OVER_LENGTHS[name]
    compiled, counter = compile_counting(function, dynamic=True)
    for length in (3, 9, 17):
        x, pos = normal(2, length, 16), torch.arange(length)
        assert same(compiled(x, pos), function(x, pos))
    assert 1 <= counter.frame_count <= 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_compiled_in_every_dtype(dtype, compile_counting):
    compiled, _ = compile_counting(lambda x, pos: OTHER.apply(x, pos))
    for length in LENGTHS:
        x, pos = normal(2, length, 16, dtype=dtype), torch.arange(length) * 10**8
        assert same(compiled(x, pos), OTHER.apply(x, pos))


@pytest.mark.parametrize("start", [0, 5, -7, 2**31 - 3], ids="from {}".format)
def test_compiled_over_offsets(start, compile_counting):
    compiled, counter = compile_counting(lambda x, pos: HALF.apply(x, pos))
    x = normal(2, 1, 16)
    for offset in range(start, start + 20):
        y = compiled(x, offset)
        assert same(y, HALF.apply(x, offset))
        if offset < 2**31:
            judge(y, x, offset, pairing="half", base=500_000.0)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("start", [0.0, -1e6], ids="from {}".format)
def test_compiled_over_float_offsets(start, compile_counting):
    compiled, counter = compile_counting(lambda x, pos: HALF.apply(x, pos))
    x = normal(2, 1, 16)
    for step in range(20):
        assert same(compiled(x, start + 0.75 * step), HALF.apply(x, start + 0.75 * step))
    assert counter.frame_count <= 2


def test_compiled_with_a_list(compile_counting):
    function = lambda x: HALF.apply(x, [0, 2, 0.5])  # noqa: E731
    compiled, _ = compile_counting(function)
    assert same(compiled(normal(2, 3, 16)), function(normal(2, 3, 16)))


@pytest.mark.parametrize("fullgraph", [True, False], ids=["fullgraph", "graph breaks"])
@pytest.mark.parametrize(
    "of",
    [
        lambda x, pos: HALF.apply(x, range(x.shape[-2])),
        lambda x, pos: HALF.apply(x, range(5, 5 + x.shape[-2])),
        lambda x, pos: HALF.apply(x, pos),
        lambda x, pos: ra.apply((x, x), pos),
        lambda x, pos: HALF.rotation(pos, like=x).apply(x),
    ],
    ids=["length of x", "offset", "argument", "one-liner", "rotation"],
)
def test_ranges_are_refused_in_a_compiled_function(fresh_dynamo, of, fullgraph):
    """Dynamo makes a constant of every range: it would compile each length, and stop at the ninth."""
    compiled = torch.compile(of, fullgraph=fullgraph, backend="aot_eager")
    with pytest.raises(Exception, match=r"ArrayTypeError: pos is a range .* give torch\.arange"):
        compiled(normal(2, 5, 16), range(5))
    of(normal(2, 5, 16), range(5))  # eager calls take it


def test_a_rope_made_inside_a_compiled_function(compile_counting):
    of = lambda x, pos: ra.RoPE(16, pairing="half", base=500_000.0).apply(x, pos)  # noqa: E731
    compiled, counter = compile_counting(of)
    for length in (5, 6, 7, 8):
        x, pos = normal(2, length, 16), torch.arange(length)
        assert near(compiled(x, pos), of(x, pos))
    assert counter.frame_count <= 2


@pytest.mark.parametrize("fullgraph", [True, False], ids=["fullgraph", "graph breaks"])
def test_axes_made_inside_a_compiled_function_are_refused(fresh_dynamo, fullgraph):
    def of(x, pos):
        return ra.RoPE(16, axes=ra.Axes.chunked(5, 3)).apply(x, torch.stack([pos, pos + 1], -1))

    compiled = torch.compile(of, fullgraph=fullgraph, backend="aot_eager")
    with pytest.raises(Exception, match=r"SpecError: .* Axes .* make it outside"):
        compiled(normal(2, 5, 16), torch.arange(5))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("pos", [torch.arange(5), [0, 1, 2, 3, 10]], ids=["tensor", "list"])
def test_max_position_in_a_compiled_function(fresh_dynamo, pos):
    rope = ra.RoPE(16, max_position=10)
    compiled = torch.compile(rope.apply, fullgraph=True, backend="aot_eager")
    x = normal(2, 5, 16)
    assert near(compiled(x, pos), rope.apply(x, pos))


def test_compiled_decoding_loop(compile_counting):
    # A prompt, then one token at a time: a length and an offset that both change.
    compiled, counter = compile_counting(lambda q, k, pos: HALF.apply((q, k), pos, seq_axis=1))
    for length, offset in [(7, 0), (1, 7), (1, 8), (1, 9), (1, 10), (12, 11), (1, 23), (1, 24)]:
        q, k = normal(2, length, 4, 16), normal(2, length, 1, 16)
        pos = torch.arange(offset, offset + length)
        assert same(compiled(q, k, pos), HALF.apply((q, k), pos, seq_axis=1))
    assert counter.frame_count <= 3


def test_a_second_rope_compiles_nothing_more(compile_counting):
    first, counter = compile_counting(lambda x, pos: HALF.apply(x, pos))
    inline, inline_counter = compile_counting(lambda x, pos: ra.apply(x, pos, base=31.0))
    x, pos = normal(2, 5, 16), torch.arange(5)
    first(x, pos), first(x, 3), inline(x, pos)
    before = counter.frame_count, inline_counter.frame_count

    second_rope = ra.RoPE(16, base=4321.0)
    second_rope.apply(x, pos)
    ra.RoPE(8).apply(x[..., :8].double(), 3)
    for base in (32.0, 33.0, 34.0):
        ra.apply(x, pos, base=base)
    ra.apply(x.numpy(), pos.numpy(), base=35.0)
    ra.apply(torch.nn.Parameter(x), pos)
    second, second_counter = compile_counting(lambda x, pos: second_rope.apply(x, pos))
    assert same(second(x, pos), second_rope.apply(x, pos))
    other_inline, _ = compile_counting(lambda x, pos: ra.apply(x, pos, base=36.0, pairing="half"))
    other_inline(x, pos)
    assert second_counter.frame_count == 1

    assert same(first(x, pos), HALF.apply(x, pos))
    assert same(first(x, 3), HALF.apply(x, 3))
    assert same(inline(x, pos), ra.apply(x, pos, base=31.0))
    assert (counter.frame_count, inline_counter.frame_count) == before


def test_ropes_alternate_in_one_layer_class(compile_counting):
    # A model with local and global layers: one compiled layer, two ropes.
    class Layer(torch.nn.Module):
        def __init__(self, rope):
            super().__init__()
            self.rope = rope

        def forward(self, x, pos):
            return self.rope.apply(x, pos)

    x, pos = normal(2, 5, 16), torch.arange(5)
    layers = [Layer(rope) for rope in (HALF, OTHER)]
    compiled, counters = zip(*map(compile_counting, layers), strict=True)
    for _ in range(3):
        for layer, run in zip(layers, compiled, strict=True):
            assert same(run(x, pos), layer(x, pos))
    assert sum(counter.frame_count for counter in counters) <= 2


def test_compiled_with_a_rotation_as_argument(compile_counting):
    compiled, counter = compile_counting(lambda x, rotation: rotation.apply(x))
    for length in LENGTHS:
        x = normal(2, length, 16)
        rotation = HALF.rotation(torch.arange(length), like=x)
        assert same(compiled(x, rotation), HALF.apply(x, torch.arange(length)))
    assert counter.frame_count <= 3


def test_compiled_that_returns_a_rotation(compile_counting):
    compiled, _ = compile_counting(lambda x, pos: HALF.rotation(pos, like=x))
    x, pos = normal(2, 5, 16), torch.arange(5)
    rotation = compiled(x, pos)
    turned, truth = rotation.apply(x), HALF.apply(x, pos)
    assert isinstance(rotation, ra.Rotation)
    assert same(turned, truth)
    judge(rotation.inverse().apply(turned), truth, pos, inverse=True, pairing="half", base=500_000.0)


def test_compiled_under_autocast_and_no_grad(compile_counting):
    def function(x, pos):
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            return HALF.apply(x, pos)

    compiled, _ = compile_counting(function)
    x, pos = normal(2, 5, 16), torch.arange(5)
    assert same(compiled(x, pos), HALF.apply(x, pos))


def test_compiled_gradient_has_the_bits_of_the_eager_one():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, pos: OTHER.apply(x, pos), backend="aot_eager", fullgraph=True)
    for length in (3, 5, 9):
        x, pos, weight = normal(2, length, 16), torch.arange(length), normal(2, length, 16, seed=1)
        grads = []
        for function in (compiled, OTHER.apply):
            leaf = x.clone().requires_grad_()
            function(leaf, pos).backward(weight)
            grads.append(leaf.grad)
        assert same(*grads)


NEEDS_COMPILER = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++", "cl"))), reason="needs a C++ compiler"
)


@pytest.mark.slow
@NEEDS_COMPILER
def test_inductor_with_few_pairs_and_positions_made_inside(fresh_dynamo):
    """Inductor writes arrays of up to 8 numbers into its code, where the C++ compiler knows both factors."""
    ropes = [ra.RoPE(2 * num_pairs, pairing="half") for num_pairs in (1, 4, 8)]
    dtypes = torch.float32, torch.float64
    xs = [normal(2, 40, rope.head_dim, dtype=dtype) for rope in ropes for dtype in dtypes]

    @torch.compile(fullgraph=True)
    def function(*xs):
        return [rope.apply(x, torch.arange(40)) for rope in ropes for x in xs if x.shape[-1] == rope.head_dim]

    for y, x in zip(function(*xs), xs, strict=True):
        judge(y, x, range(40), pairing="half")


@pytest.mark.slow
@NEEDS_COMPILER
def test_inductor_keeps_the_contract():
    torch._dynamo.reset()

    def function(q, k, pos):
        return HALF.apply((q, k), pos)

    compiled = torch.compile(function, fullgraph=True)
    pos = torch.arange(33) * 30_000_001 - 77
    q, k = normal(2, 4, 33, 16).requires_grad_(), normal(2, 1, 33, 16, dtype=torch.bfloat16)
    ys = compiled(q, k, pos)
    for y, x in zip(ys, (q, k), strict=True):
        judge(y, x, pos, pairing="half", base=500_000.0)
    weight = normal(2, 4, 33, 16, seed=1)
    (gradient,) = torch.autograd.grad(ys[0], q, weight)
    judge(gradient, weight, pos, inverse=True, pairing="half", base=500_000.0)


COLD = """
    import sys, warnings
    import torch
    import torch._inductor.config  # imported before warnings become errors: it warns
    from torch._dynamo.testing import CompileCounter
    import rope_array as ra

    warnings.simplefilter("error")
    assert not any(name.startswith("rope_array._backends.") for name in sys.modules)
    HALF = ra.RoPE(16, pairing="half")
    function = {function}
    counter = CompileCounter()
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    calls = [(torch.randn(2, s, 16), torch.arange(s)) for s in (3, 4, 9, 1)]
    results = [compiled(*call) for call in calls]
    assert 1 <= counter.frame_count <= 3, counter.frame_count
    for call, y in zip(calls, results):
        assert torch.equal(y, function(*call))
    """
FIRST_USES = {
    "inline": "lambda x, pos: ra.apply(x, pos, base=99.0)",
    "made inside": "lambda x, pos: HALF.rotation(pos, like=x).apply(x)",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST_USES)
def test_the_first_use_may_be_compiled(name):
    script = COLD.format(function=FIRST_USES[name])
    if name == "inline":
        # Other libraries, specs and dtypes that the process uses later cause no recompilation.
        script += """
    before = counter.frame_count
    import importlib.util
    import numpy as np
    ra.apply(np.ones((2, 16)), [0, 1])
    if importlib.util.find_spec("jax"):
        import jax
        ra.apply(jax.numpy.ones((2, 16)), [0, 1])
    if importlib.util.find_spec("dask"):
        import dask.array
        ra.apply(dask.array.ones((2, 16)), [0, 1]).compute()
    ra.apply(calls[0][0].double(), 3, base=98.0)
    for call in calls:
        compiled(*call)
    assert counter.frame_count == before, (counter.frame_count, before)
    """
    child.run(script)


@pytest.mark.parametrize("fullgraph", [True, False], ids=["fullgraph", "graph breaks"])
@pytest.mark.parametrize(
    "rule",
    [lambda: ra.Llama3(factor=32.0), lambda: ra.Linear(4.0), lambda: ra.Periods(1.0, 2.0)],
    ids=["Llama3", "Linear", "Periods"],
)
@pytest.mark.parametrize("field", [True, False], ids=["one-liner", "rope"])
def test_rules_made_inside_a_compiled_function_are_refused(rule, field, fullgraph):
    """Dynamo makes a rule without its fields, so that the class's defaults would be used."""
    torch._dynamo.reset()

    def of(x):
        pos = torch.arange(5)
        return ra.apply(x, pos, scaling=rule()) if field else ra.RoPE(16, scaling=rule()).apply(x, pos)

    compiled = torch.compile(of, fullgraph=fullgraph, backend="aot_eager")
    with pytest.raises(Exception, match="make it outside"):
        compiled(torch.ones(5, 16))


def test_axes_decode_without_recompiling(compile_counting):
    rope, x = ra.RoPE(16, axes=ra.Axes.chunked(4, 2, 2)), torch.ones(1, 2, 1, 16)

    def of(x, start):
        return rope.apply(x, ra.positions.text(ra.positions.offset(1, start, like=x)))

    compiled, counter = compile_counting(of)
    for start in range(5, 15):
        assert same(compiled(x, start), of(x, start))
    assert counter.frame_count <= 2


def test_eager_calls_leave_compiled_code_in_one_graph(runs, fresh_dynamo):
    """The compiled function is one graph, and no eager call between its calls recompiles it."""
    from torch._dynamo.testing import CompileCounter

    counter, x = CompileCounter(), normal(2, 5, 16)
    compiled = torch.compile(BY["apply"], fullgraph=True, backend=counter)
    for _ in range(3):
        eager = ROPE.apply(x, POS)
        assert near(compiled(x), eager)
    assert counter.frame_count == 1
    assert len(runs) == 6


def test_compiled_autograd(runs, fresh_dynamo):
    """A compiled backward traces the array-api backend's operations, or calls the kernel."""
    x, weight = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1)
    y = (ROPE.apply(x, POS) * weight).sum()
    with torch._dynamo.compiled_autograd._enable(functools.partial(torch.compile, backend="eager")):
        y.backward()
    judge_gradient(x.grad, weight)


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_export_with_a_dynamic_length(strict):
    length = torch.export.Dim("length", min=2, max=4096)
    arguments = normal(2, 3, 5, 16), torch.arange(5)
    program = torch.export.export(
        Attention(), arguments, dynamic_shapes=({2: length}, {0: length}), strict=strict
    )
    for size in (2, 77):
        x, pos = normal(2, 3, size, 16), torch.arange(size) * 9_999_991
        assert same(program.module()(x, pos), HALF.apply(x, pos))
    assert not any("float64" in str(node.meta.get("val")) for node in program.graph.nodes)


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_export_with_a_dynamic_offset(strict):
    class Step(torch.nn.Module):
        def forward(self, x, pos: int):
            return HALF.apply(x, pos)

    x = normal(2, 1, 16)
    program = torch.export.export(
        Step(), (x, 3), dynamic_shapes=({}, torch.export.Dim.DYNAMIC), strict=strict
    )
    for offset in (3, 77, 2**31 - 1):
        assert same(program.module()(x, offset), HALF.apply(x, offset))


def test_export_with_positions_made_inside():
    class Prompt(torch.nn.Module):
        def forward(self, x):
            return HALF.apply(x, torch.arange(x.shape[-2]))

    length = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(Prompt(), (normal(2, 5, 16),), dynamic_shapes=({1: length},))
    x = normal(2, 77, 16)
    assert same(program.module()(x), HALF.apply(x, range(77)))


def test_export_with_a_rotation_as_argument():
    class Layer(torch.nn.Module):
        def forward(self, x, rotation):
            return rotation.apply(x)

    x = normal(2, 5, 16)
    rotation = HALF.rotation(range(5), like=x)
    program = torch.export.export(Layer(), (x, rotation))
    other = HALF.rotation(range(7, 12), like=x)
    assert same(program.module()(x, other), HALF.apply(x, range(7, 12)))


MADE_BY = {
    "apply": lambda x, pos: HALF.apply(x, pos),
    "rotation": lambda x, pos: HALF.rotation(pos, like=x).apply(x),
    "tuple": lambda x, pos: HALF.apply((2 * x, x), pos)[1],
}


@pytest.mark.parametrize("of", MADE_BY.values(), ids=MADE_BY)
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(of, mode, runs):
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(of, tracing_mode=mode)(normal(2, 5, 16), torch.arange(5))
    length = 9 if mode == "symbolic" else 5
    x, pos = normal(2, length, 16, seed=1), torch.arange(length) * 1_234_567
    assert same(graph(x, pos), HALF.apply(x, pos, backend="torch"))
    assert not runs


def rotate_by(pos, x):
    return HALF.apply(x, pos)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_of_positions_on_the_host(mode):
    from torch.fx.experimental.proxy_tensor import make_fx

    x = normal(2, 3, 16)
    for pos in (7, 0.5, range(3), [0, 2.5, 9]):
        graph = make_fx(functools.partial(rotate_by, pos), tracing_mode=mode)(x)
        assert same(graph(-x), HALF.apply(-x, pos))


def test_inverse_and_adjoint_compiled_with_every_size_dynamic(fresh_dynamo):
    """Dynamo's numbers, the amplitude too, are symbols then; the types of rotations need none."""
    rope, x, pos = ra.RoPE(16, pairing="half", attention_factor=1.5), normal(5, 16), torch.arange(5)

    def of(x, pos):
        rotation = rope.rotation(pos, like=x)
        return rotation.inverse().adjoint().apply(x), rotation.adjoint()

    y, adjoint = torch.compile(of, fullgraph=True, dynamic=True, backend="eager")(x, pos)
    want, eager = of(x, pos)
    assert near(y, want)
    assert type(adjoint) is type(eager)


# ---- every backend, dynamic and fixed sizes ----


BACKENDS = [
    "aot_eager",
    pytest.param("eager", marks=pytest.mark.nightly),
    pytest.param("inductor", marks=[pytest.mark.nightly, NEEDS_COMPILER]),
]
by_compiler = pytest.mark.parametrize("backend", BACKENDS)


def judge_half(y, x, pos):
    judge(y.detach(), x.detach(), pos, pairing="half", base=500_000.0)


def pulled(of, x, weight, *others):
    """Return the result and the gradient of x."""
    leaf = x.detach().clone().requires_grad_()
    y = of(leaf, *others)
    return y.detach(), torch.autograd.grad(y, leaf, weight)[0]


@by_compiler
@pytest.mark.parametrize(
    "dynamic", [None, *(pytest.param(fixed, marks=pytest.mark.nightly) for fixed in (True, False))], ids=str
)
@pytest.mark.parametrize("name", ["rope", "rotation outside", "rotation inside"])
def test_training_over_lengths(name, dynamic, backend, fresh_dynamo):
    """Prompts and steps of four lengths and many offsets, forward and backward."""
    of = {
        "rope": lambda x, pos: HALF.apply(x, pos),
        "rotation inside": lambda x, pos: HALF.rotation(pos, like=x).apply(x),
        "rotation outside": lambda x, rotation: rotation.apply(x),
    }[name]
    compiled = torch.compile(of, backend=backend, fullgraph=True, dynamic=dynamic)
    torch._dynamo.utils.counters.clear()
    for length, offset in [(8, 0), (2048, 0), (1, 8), (1, 9), (2, 10), (8, 10**6), (17, -5)]:
        pos = torch.arange(offset, offset + length)
        x, weight = (normal(2, length, 16, seed=length + seed) for seed in (0, 1))
        y, gradient = pulled(
            compiled, x, weight, HALF.rotation(pos, like=x) if name == "rotation outside" else pos
        )
        judge_half(y, x, pos)
        judge_gradient(gradient, weight, pos, "half")
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs <= (5 if dynamic is False else 3)  # a length of 1 has a graph of its own


@by_compiler
def test_a_training_step(backend, fresh_dynamo):
    """q and k in one graph, between projections; steps of an optimizer follow the eager model's."""

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.qkv = torch.nn.Linear(32, 4 * 16 + 2 * 16)
            self.out = torch.nn.Linear(64, 32)

        def forward(self, x, pos):
            q, k, v = self.qkv(x).split([64, 16, 16], dim=-1)
            q, k, v = (part.unflatten(-1, (-1, 16)).transpose(1, 2) for part in (q, k, v))
            q, k = self.rotate(q, k, pos)
            y = torch.nn.functional.scaled_dot_product_attention(
                q, k.expand_as(q), v.expand_as(q), is_causal=True
            )
            return self.out(y.transpose(1, 2).flatten(2))

        def rotate(self, q, k, pos):
            return HALF.apply((q, k), pos)

    class ByMatrix(Block):
        def rotate(self, q, k, pos):
            matrix = torch.tensor(HALF.matrix(pos.numpy()))
            return (torch.einsum("sij,bhsj->bhsi", matrix, x.double()).to(x.dtype) for x in (q, k))

    def losses(block, step):
        optimizer = torch.optim.AdamW(block.parameters(), lr=1e-2)
        for size in (9, 9, 12, 5):
            x, pos = normal(2, size, 32, seed=size), torch.arange(size) + 100
            loss = (step(x, pos) - x.flip(-1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()

    block, truth = Block(), ByMatrix()
    compiled = torch.compile(block, backend=backend, fullgraph=True)
    assert list(losses(block, compiled)) == pytest.approx(list(losses(truth, truth)), abs=1e-5)


@pytest.mark.nightly
@NEEDS_COMPILER
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_inductor_in_every_mode(mode, dtype, fresh_dynamo):
    compiled = torch.compile(lambda x, pos: ROPE.apply((x, x + 1), pos)[0], mode=mode, fullgraph=True)
    for length in (5, 9):
        x, weight = (normal(2, 3, length, 16, dtype=dtype, seed=seed) for seed in (0, 1))
        pos = torch.arange(length) * 1_000_003
        y, gradient = pulled(compiled, x, weight, pos)
        judge(y, x, pos, **FIELDS["partial"])
        judge_gradient(gradient, weight, pos)


# ---- layouts and memory ----


LAYOUTS = {
    "contiguous": lambda x: x.contiguous(),
    "transposed": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "heads last": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "expanded": lambda x: x[:1].expand(4, -1, -1, -1)[:2],
    "every second": lambda x: x.repeat_interleave(2, 1).repeat_interleave(2, 3)[:, ::2, :, ::2],
    "offset": lambda x: torch.nn.functional.pad(x, (3, 1, 1, 0))[..., 1:, 3:-1],
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "a split projection": lambda x: (
        torch.cat([x.transpose(1, 2).flatten(2)] * 3, -1)
        .split(48, -1)[1]
        .unflatten(-1, (3, 16))
        .transpose(1, 2)
    ),
}


@by_compiler
@pytest.mark.parametrize("name", ["rope", "rotation"])
def test_layouts_change_no_bits(name, backend, fresh_dynamo):
    """Within compiled calls, the bits of a row depend on nothing else; so do its gradients."""
    of = {"rope": lambda x: HALF.apply(x, POS), "rotation": lambda x: HALF.rotation(POS, like=x).apply(x)}
    compiled = torch.compile(of[name], backend=backend, fullgraph=True)
    x, weight = normal(1, 3, 5, 16).expand(2, -1, -1, -1), normal(2, 3, 5, 16, seed=1)
    want, want_gradient = pulled(compiled, x.contiguous(), weight)
    judge_half(want, x, POS)
    judge_gradient(want_gradient, weight, POS, "half")
    for layout in LAYOUTS.values():
        leaf = layout(x).detach().requires_grad_()  # keeps its strides
        assert same(leaf, x)
        y = compiled(leaf)
        assert same(y.detach(), want)
        (gradient,) = torch.autograd.grad(y, leaf, layout(weight))
        judge_gradient(gradient, layout(weight), POS, "half")
        (gradient,) = torch.autograd.grad(compiled(leaf), leaf, LAYOUTS["heads last"](weight))
        assert same(gradient, want_gradient)
    with torch.no_grad():  # one row alone
        assert same(compiled(x[:1])[0], want[0])


@by_compiler
@pytest.mark.parametrize("shape", [(0, 5, 16), (2, 0, 16), (0, 0, 16)], ids="{}".format)
def test_empty_arrays(shape, backend, fresh_dynamo):
    def of(x, pos):
        return HALF.apply((x, 2 * x), pos)[1], HALF.rotation(pos, like=x).apply(x)

    x, pos = torch.ones(shape, requires_grad=True), torch.arange(shape[1])
    ys = torch.compile(of, backend=backend, fullgraph=True)(x, pos)
    assert [y.shape for y in ys] == [shape, shape]
    sum(y.sum() for y in ys).backward()
    assert x.grad.shape == shape


ROPES_AND_NONE = {"half": HALF, "no rotation": ra.RoPE(16, rotary_dim=0)}


@by_compiler
@pytest.mark.parametrize("name", ROPES_AND_NONE)
def test_memory_is_not_shared(name, backend, fresh_dynamo):
    """Write into the results, and into x after the call: nothing else changes."""
    rope = ROPES_AND_NONE[name]
    compiled = torch.compile(lambda x, pos: rope.apply((x, x), pos), backend=backend, fullgraph=True)
    x = normal(2, 5, 16).requires_grad_()
    before = x.detach().clone()
    ys = compiled(x, POS)
    kept = [y.detach().clone() for y in ys]
    assert len({t.untyped_storage().data_ptr() for t in (x, *ys)}) == 3
    ys[0].mul_(3)
    assert same(x.detach(), before)
    assert same(ys[1].detach(), kept[1])
    x.detach().zero_()
    assert same(ys[1].detach(), kept[1])
    weight = normal(2, 5, 16, seed=1)
    (gradient,) = torch.autograd.grad(ys, x, (weight, torch.zeros_like(weight)))
    if name == "half":
        judge_gradient(gradient / 3, weight, POS, "half")
    else:
        assert torch.allclose(gradient, 3 * weight)


@by_compiler
def test_writes_inside_the_compiled_function(backend, fresh_dynamo):
    """Arguments and results are written in place, before and after the rotation that reads them."""

    def of(x, pos, cache):
        x.mul_(2)
        pos.add_(1)
        y = HALF.apply(x, pos)
        cache[:, 2:7].copy_(y)
        x.zero_()
        pos.zero_()
        y.neg_()
        return y, HALF.apply(cache[:, 2:7], pos)

    def arguments():
        return normal(2, 5, 16), torch.arange(5), torch.zeros(2, 9, 16)

    x, pos, cache = arguments()
    y, again = torch.compile(of, backend=backend, fullgraph=True)(x, pos, cache)
    judge_half(-y, 2 * arguments()[0], arguments()[1] + 1)
    assert not x.any()
    assert not pos.any()
    assert same(cache[:, 2:7], -y)
    assert same(again, -y)  # position 0
    assert not cache[:, :2].any()


def test_positions_changed_before_the_backward_are_noticed(fresh_dynamo):
    """The gradient is that of the positions of the forward, or PyTorch raises."""
    compiled = torch.compile(lambda x, pos: HALF.apply(x, pos), backend="aot_eager", fullgraph=True)
    x, weight = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1)
    for dtype in (torch.int64, torch.int32, torch.float32):
        pos = torch.arange(5).to(dtype)
        y = compiled(x, pos)
        pos += 1
        try:
            (gradient,) = torch.autograd.grad(y, x, weight)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)  # noqa: PT017
        else:
            judge_gradient(gradient, weight, np.arange(5), "half")


# ---- gradients of a compiled call ----


def test_a_compiled_graph_used_twice(fresh_dynamo):
    compiled = torch.compile(lambda x, pos: HALF.apply(x, pos), backend="aot_eager", fullgraph=True)
    x, weight = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1)
    y = compiled(x, POS)
    y.backward(weight, retain_graph=True)
    judge_gradient(x.grad, weight, POS, "half")
    y.backward(weight)
    judge_gradient(x.grad / 2, weight, POS, "half")
    with pytest.raises(RuntimeError, match="second time"):
        y.backward(weight)


@pytest.mark.parametrize("name", ["apply", "rotation of a tuple"])
def test_double_backward_of_a_compiled_call(name, fresh_dynamo):
    """Without AOTAutograd it is the derivative of the adjoint; AOTAutograd refuses every double backward."""
    compiled = torch.compile(BY[name], backend="eager", fullgraph=True)
    x, weight = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1)
    (first,) = torch.autograd.grad(compiled(x).sin().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first, x, weight)
    matrix, exact = torch.tensor(ROPE.matrix(LIST)), x.detach().double()
    moved = torch.einsum("sij,bsj->bsi", matrix, weight.double())
    curved = -torch.einsum("sij,bsj->bsi", matrix, exact).sin() * moved
    want = torch.einsum("sji,bsj->bsi", matrix, curved)
    assert torch.allclose(second.double(), want, atol=1e-5)
    assert want.abs().max() > 0.1


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("eager", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", ["apply", "rotation of a tuple"])
def test_forward_mode_over_a_compiled_backward(name, backend, fresh_dynamo):
    """The backward of a compiled call meets dual numbers: it is right or refused, and loses no tangent."""
    compiled = torch.compile(BY[name], backend=backend, fullgraph=True)
    x, weight, moved = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1), normal(2, 5, 16, seed=2)
    y = compiled(x)
    with forward_ad.dual_level():
        try:
            (gradient,) = torch.autograd.grad(y, x, forward_ad.make_dual(weight, moved))
        except (RuntimeError, ra.ArrayTypeError) as error:
            assert "forward-mode" in str(error) or "forward mode" in str(error)  # noqa: PT017
            return
        value, tangent = forward_ad.unpack_dual(gradient)
    judge_gradient(value, weight)
    assert tangent is not None
    judge_gradient(tangent, moved)


def test_double_backward_by_aot_autograd_is_refused(fresh_dynamo):
    """As for every function: by its own error, or because the saved results are no part of the graph."""
    compiled = torch.compile(lambda x: BY["apply"](x).sin(), backend="aot_eager", fullgraph=True)
    x = normal(2, 5, 16).requires_grad_()
    (first,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"double backward|donated buffers|not have been used"):
        torch.autograd.grad(first.sum(), x)


@by_compiler
@pytest.mark.parametrize("name", ["rope", "rotation"])
def test_a_gradient_of_one_of_a_tuple(name, backend, fresh_dynamo):
    of = {
        "rope": lambda q, k, pos: HALF.apply((q, k), pos),
        "rotation": lambda q, k, pos: HALF.rotation(pos, like=q).apply((q, k)),
    }[name]
    compiled = torch.compile(of, backend=backend, fullgraph=True)
    q, k, weight = normal(2, 5, 16), normal(5, 16, seed=1), normal(2, 5, 16, seed=2)
    for learned in ((True, False), (False, True), (True, True)):
        leaves = [x.clone().requires_grad_(needed) for x, needed in zip((q, k), learned, strict=True)]
        ys = compiled(*leaves, POS)
        assert tuple(y.requires_grad for y in ys) == learned
        for y, x in zip(ys, (q, k), strict=True):
            judge_half(y, x, POS)
        for leaf, y, needed in zip(leaves, ys, learned, strict=True):
            if needed:  # the other result gets no gradient
                part = weight[0] if y.ndim == 2 else weight
                (gradient,) = torch.autograd.grad(y, leaf, part, retain_graph=True)
                judge_gradient(gradient, part, POS, "half")


def saved_shapes(call):
    """Return the shapes of the tensors that a call saves for its backward."""
    shapes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append(tuple(t.shape)) or t, lambda t: t):
        call()
    return shapes


@pytest.mark.parametrize("of", BY.values(), ids=BY)
def test_a_compiled_call_saves_no_x(of, fresh_dynamo):
    compiled = torch.compile(lambda x: of(x), backend="aot_eager", fullgraph=True)
    x = normal(64, 5, 16).requires_grad_()
    assert all(math.prod(shape) < x.numel() / 32 for shape in saved_shapes(lambda: compiled(x)))


# ---- activation checkpointing ----


def keep(policy):
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    return {
        "use_reentrant": False,
        "context_fn": functools.partial(
            create_selective_checkpoint_contexts, lambda ctx, op, *args, **kwargs: policy
        ),
    }


CHECKPOINTS = {
    "non-reentrant": lambda policies: {"use_reentrant": False},
    "reentrant": lambda policies: {"use_reentrant": True},
    "must save": lambda policies: keep(policies.MUST_SAVE),
    "prefer to save": lambda policies: keep(policies.PREFER_SAVE),
    "must recompute": lambda policies: keep(policies.MUST_RECOMPUTE),
    "prefer to recompute": lambda policies: keep(policies.PREFER_RECOMPUTE),
}


@pytest.mark.parametrize("way", ["eager", "compiled outside", "compiled inside"])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_activation_checkpointing(name, way, fresh_dynamo):
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint

    options = CHECKPOINTS[name](CheckpointPolicy)

    def block(q, k):
        ys = ROPE.apply((q.sin(), k), POS)
        return ROPE.rotation(POS, like=q).apply(ys[0]), ys[1]

    inner = torch.compile(block, backend="aot_eager", fullgraph=True) if way == "compiled inside" else block

    def run(q, k):
        return checkpoint(inner, q, k, **options)

    outer = torch.compile(run, backend="aot_eager", fullgraph=True) if way == "compiled outside" else run
    q, k, weight = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1).requires_grad_(), None
    weight = normal(2, 5, 16, seed=2)
    ys = outer(q, k)
    (ys[0] * weight).sum().add((ys[1] * weight).sum()).backward()
    judge_gradient(k.grad, weight)
    matrix = torch.tensor(ROPE.matrix(LIST))
    twice = torch.einsum("sji,bsj->bsi", matrix @ matrix, weight.double()) * q.detach().double().cos()
    assert torch.allclose(q.grad.double(), twice, atol=1e-5)
    assert twice.abs().max() > 0.1


# ---- modes and defaults ----


def test_inference_then_training(fresh_dynamo):
    """A module is compiled under inference mode, then trains, then infers again."""
    compiled = torch.compile(Attention(), backend="aot_eager", fullgraph=True)
    x, weight, pos = normal(2, 5, 16), normal(2, 5, 16, seed=1), torch.arange(5)
    for _ in range(2):
        with torch.inference_mode():
            judge_half(compiled(normal(2, 5, 16), torch.arange(5)), x, pos)
        y, gradient = pulled(compiled, x, weight, pos)
        judge_half(y, x, pos)
        judge_gradient(gradient, weight, pos, "half")
        with torch.no_grad():
            judge_half(compiled(x, pos), x, pos)


@pytest.mark.parametrize("name", ["rope", "rotation", "floats", "number"])
@pytest.mark.parametrize("setting", ["dtype", "device"])
def test_defaults_of_new_tensors_change_nothing(name, setting, fresh_dynamo):
    """A default dtype of bfloat16, as models are made, and a default device of meta."""
    of = {
        "rope": lambda x, pos: HALF.apply(x, pos),
        "rotation": lambda x, pos: HALF.rotation(pos, like=x).apply(x),
        "floats": lambda x, pos: HALF.apply(x, pos.to(x.dtype)),
        "number": lambda x, pos: HALF.apply(x, 3),
    }[name]
    x, weight, pos = normal(2, 5, 16), normal(2, 5, 16, seed=1), torch.arange(5)
    compiled = torch.compile(of, backend="aot_eager", fullgraph=True)
    change, back = {
        "dtype": (
            lambda: torch.set_default_dtype(torch.bfloat16),
            lambda: torch.set_default_dtype(torch.float32),
        ),
        "device": (lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None)),
    }[setting]
    try:
        change()
        got = [pulled(run, x, weight, pos) for run in (compiled, of)]
    finally:
        back()
    at = 3 if name == "number" else pos
    for y, gradient in got:
        judge_half(y, x, at)
        judge_gradient(gradient, weight, at, "half")


@pytest.mark.parametrize(
    ("autocast", "outside"),
    [
        pytest.param(torch.bfloat16, True, id="bfloat16 outside"),
        pytest.param(torch.bfloat16, False, id="bfloat16 inside", marks=pytest.mark.nightly),
        pytest.param(torch.float16, True, id="float16 outside", marks=pytest.mark.nightly),
        pytest.param(torch.float16, False, id="float16 inside"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_autocast_changes_no_dtype(dtype, autocast, outside, fresh_dynamo):
    def of(x, pos):
        return HALF.apply(x, pos) + 0 * HALF.rotation(pos, like=x).apply((x, x))[1]

    def inside(x, pos):
        with torch.autocast("cpu", dtype=autocast):
            return of(x, pos)

    compiled = torch.compile(of if outside else inside, backend="aot_eager", fullgraph=True)
    x, weight, pos = normal(2, 5, 16, dtype=dtype), normal(2, 5, 16, dtype=dtype, seed=1), torch.arange(5)
    leaf = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=autocast, enabled=outside):
        y = compiled(leaf, pos)
    judge_half(y, x, pos)
    (gradient,) = torch.autograd.grad(y, leaf, weight)
    judge_gradient(gradient, weight, pos, "half")


def test_compiled_autograd_of_a_compiled_call(fresh_dynamo):
    compiled = torch.compile(lambda q, k: ROPE.apply((q, k), POS), backend="aot_eager", fullgraph=True)
    q, k = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1).requires_grad_()
    weight = normal(2, 5, 16, seed=2)
    compiler = functools.partial(torch.compile, backend="aot_eager")
    for _ in range(2):
        q.grad = k.grad = None
        loss = sum((y * weight).sum() for y in compiled(q, k))
        with torch._dynamo.compiled_autograd._enable(compiler):
            loss.backward()
        judge_gradient(q.grad, weight)
        judge_gradient(k.grad, weight)


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_positions_read_from_a_tensor(fresh_dynamo):
    """With capture_scalar_outputs, item() is a number that the graph does not know."""

    def of(x, start):
        number = start.item()
        return HALF.apply(x, number), HALF.apply(x, torch.arange(5) + number)

    compiled = torch.compile(of, backend="aot_eager", fullgraph=True)
    x = normal(2, 5, 16)
    for start in (3, 4, -1, 10**6):
        one, each = compiled(x, torch.tensor(start))
        judge_half(one, x, start)
        judge_half(each, x, torch.arange(5) + start)


# ---- ways to hold and share compiled code ----


def test_threads_compile_and_call(fresh_dynamo):
    compiled = torch.compile(lambda x, pos: HALF.apply((x, x), pos)[1], backend="aot_eager", fullgraph=True)

    def work(number):
        for length in (5, 6 + number):
            x, weight = normal(2, length, 16, seed=number), normal(2, length, 16, seed=9)
            pos = torch.arange(length) + number
            y, gradient = pulled(compiled, x, weight, pos)
            judge_half(y, x, pos)
            judge_gradient(gradient, weight, pos, "half")

    in_threads(work, 2)


def test_a_compiled_function_in_a_compiled_function(fresh_dynamo):
    inner = torch.compile(lambda x, pos: HALF.apply(x, pos), backend="aot_eager")
    outer = torch.compile(lambda x, pos: -inner(inner(x, pos), -pos), backend="aot_eager", fullgraph=True)
    x, pos = normal(2, 5, 16), torch.arange(5)
    assert near(-outer(x, pos), x)
    judge_half(inner(x, pos), x, pos)


def test_a_compiled_module_is_copied(fresh_dynamo):
    compiled = torch.compile(Attention(), backend="aot_eager", fullgraph=True)
    x, pos = normal(2, 5, 16), torch.arange(5)
    want = compiled(x, pos)
    for other in (copy.deepcopy(compiled), copy.copy(compiled)):
        assert same(other(x, pos), want)
    state = compiled.state_dict()
    assert list(state) == ["_orig_mod.linear.weight", "_orig_mod.linear.bias"]
    judge_half(want, x, pos)


# ---- export ----

# torch.export.save uses a function of PyTorch that PyTorch deprecates.
QUIET_SAVE = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")


def save_and_load(program):
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    return torch.export.load(buffer)


class Shared(torch.nn.Module):
    """A layer that takes a Rotation, and returns its inverse beside the rotated arrays."""

    def forward(self, q, k, rotation):
        return rotation.apply((q, k)), rotation.inverse()


@QUIET_SAVE
@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_a_saved_program_with_a_rotation(strict):
    length = torch.export.Dim("length", min=2, max=4096)
    q, k, pos = normal(2, 5, 16), normal(5, 16, seed=1), torch.arange(5)
    rotation = HALF.rotation(pos, like=q)
    shapes = ({1: length}, {0: length}, rotation._replace(cos={0: length}, sin={0: length}))
    program = torch.export.export(Shared(), (q, k, rotation), dynamic_shapes=shapes, strict=strict)
    loaded = save_and_load(program).module()
    for size in (2, 77):
        q, k, pos = normal(2, size, 16), normal(size, 16, seed=1), torch.arange(size) + 1000
        rotation = HALF.rotation(pos, like=q)
        ys, inverse = loaded(q, k, rotation)
        judge_half(ys[0], q, pos)
        judge_half(ys[1], k, pos)
        assert type(inverse) is type(rotation.inverse())
        judge(inverse.apply(ys[0]), ys[0], pos, inverse=True, pairing="half", base=500_000.0)
    with pytest.raises(Exception, match=r"Rotation|[Ii]nput"):  # another layout is no match
        loaded(q, k, OTHER.rotation(pos, like=q))


@QUIET_SAVE
@pytest.mark.parametrize("name", ["rope", "tuple", "inside"])
def test_a_saved_program(name):
    class Layer(torch.nn.Module):
        def forward(self, x, pos):
            rotation = HALF.rotation(pos, like=x)
            return {
                "rope": lambda: HALF.apply(x, pos),
                "tuple": lambda: HALF.apply((x, -x), pos)[0],
                "inside": lambda: rotation.apply(x),
            }[name]()

    length = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(
        Layer(), (normal(2, 5, 16), torch.arange(5)), dynamic_shapes=({1: length}, {0: length})
    )
    for exported in (save_and_load(program), save_and_load(program.run_decompositions())):
        x, pos = normal(2, 9, 16), torch.arange(9) + 50_000
        judge_half(exported.module()(x, pos), x, pos)


LOAD = """
    import sys
    import torch
    {first}
    import numpy as np
    program = torch.export.load(sys.argv[1])
    x, pos = torch.ones(2, 7, 16), torch.arange(7)
    np.save(sys.argv[2], program.module()(x, pos).numpy())
    """


@QUIET_SAVE
@pytest.mark.nightly
@pytest.mark.parametrize("first", ["pass", "import rope_array"], ids=["only torch", "rope_array"])
def test_a_saved_program_in_another_process(first, tmp_path):
    """The program needs PyTorch alone: no operator of a package that the other process lacks."""
    program = torch.export.export(Attention(), (normal(2, 7, 16), torch.arange(7)))
    path, result = tmp_path / "program.pt2", tmp_path / "result.npy"
    torch.export.save(program, path)
    child.run(LOAD.format(first=first), str(path), str(result))
    judge_half(torch.tensor(np.load(result)), torch.ones(2, 7, 16), torch.arange(7))


# The type of a Rotation exists once its rope has made one.
ROTATION_LOAD = """
    import sys
    import torch
    import rope_array as ra

    rope = ra.RoPE(16, pairing="half", base=500_000.0)
    x, pos = torch.ones(2, 5, 16), torch.arange(5) + 7
    rotation = rope.rotation(pos, like=x)
    program = torch.export.load(sys.argv[1])
    ys, inverse = program.module()(x, x[0], rotation)
    assert torch.allclose(ys[0], rope.apply(x, pos), atol=1e-6)
    assert torch.allclose(inverse.apply(ys[0]), x, atol=1e-5)
    """


@QUIET_SAVE
@pytest.mark.nightly
def test_a_saved_program_with_a_rotation_in_another_process(tmp_path):
    q, k = normal(2, 5, 16), normal(5, 16, seed=1)
    program = torch.export.export(Shared(), (q, k, HALF.rotation(torch.arange(5), like=q)))
    path = tmp_path / "program.pt2"
    torch.export.save(program, path)
    child.run(ROTATION_LOAD, str(path))


@QUIET_SAVE
@pytest.mark.nightly
@NEEDS_COMPILER
@pytest.mark.parametrize("name", ["positions", "rotation"])
def test_ahead_of_time_inductor(name, tmp_path):
    length = torch.export.Dim("length", min=2, max=4096)

    class Layer(torch.nn.Module):
        def forward(self, x, cos, sin):
            return HALF.rotation_from(cos, sin).apply(x)

    def arguments(size):
        x, pos = normal(2, 3, size, 16), torch.arange(size) + 50_000
        return (x, pos) if name == "positions" else (x, *HALF.rotation(pos, like=x))

    shapes = ({2: length}, *({0: length} for _ in arguments(5)[1:]))
    layer = Attention() if name == "positions" else Layer()
    program = torch.export.export(layer, arguments(5), dynamic_shapes=shapes)
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "layer.pt2"))
    loaded = torch._inductor.aoti_load_package(path)
    for size in (2, 5, 77):
        with torch.no_grad():
            y = loaded(*arguments(size))
        judge_half(y, arguments(size)[0], torch.arange(size) + 50_000)


# ---- caches ----


CACHED = """
    import torch
    import torch._inductor.config
    from torch._dynamo.utils import counters
    import rope_array as ra

    HALF = ra.RoPE(16, pairing="half")

    @torch.compile(fullgraph=True)
    def step(q, k, pos):
        return HALF.apply((q, k), pos)

    q, k = torch.ones(2, 3, 64, 16, requires_grad=True), torch.ones(2, 1, 64, 16, requires_grad=True)
    ys = step(q, k, torch.arange(64))
    sum((y * y.detach()).sum() for y in ys).backward()
    assert torch.allclose(q.grad, torch.ones_like(q), atol=1e-5)
    found = counters["aot_autograd"]
    print(found["autograd_cache_hit"], found["autograd_cache_miss"], found["autograd_cache_bypass"])
    """


@pytest.mark.nightly
@NEEDS_COMPILER
def test_the_second_process_compiles_nothing(tmp_path):
    """AOTAutograd keeps forward and backward of the first process on disk."""
    runs = [child.run(CACHED, TORCHINDUCTOR_CACHE_DIR=str(tmp_path)).split() for _ in range(2)]
    assert runs == [["0", "1", "0"], ["1", "0", "0"]]
