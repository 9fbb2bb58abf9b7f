"""PyTorch compiled, exported and traced: the eager bits, and no more graphs than needed."""

import functools
import logging
import shutil

import child
import pytest
from compare import judge, same
from torch_cases import BY, HALF, IGNORED, OTHER, POS, ROPE, Attention, judge_gradient, near, normal

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
