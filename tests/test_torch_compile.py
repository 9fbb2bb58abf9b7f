"""PyTorch compiled, exported and traced: the eager bits, and no more graphs than needed."""

import functools
import io
import logging

import child
import pytest
from compare import judge, same
from torch_cases import (
    BY,
    FIELDS,
    HALF,
    IGNORED,
    LIST,
    NEEDS_COMPILER,
    NIGHTLY,
    OTHER,
    POS,
    ROPE,
    by_compiler,
    compiled,
    forward_ad,
    judge_gradient,
    near,
    normal,
)

import rope_array as ra

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.library("torch"), *IGNORED]


def judge_half(y, x, pos):
    judge(y.detach(), x.detach(), pos, **FIELDS["half"])


def pulled(of, x, weight, *others):
    """Return the result and the gradient of x."""
    leaf = x.detach().clone().requires_grad_()
    y = of(leaf, *others)
    return y.detach(), torch.autograd.grad(y, leaf, weight)[0]


# ---- the number of graphs ----


@pytest.fixture
def compile_counting(fresh_dynamo):
    """torch.compile with a backend that runs operations unchanged and counts graphs; no warning is logged."""
    from torch._dynamo.testing import CompileCounter

    records = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append
    logger = logging.getLogger("torch")
    logger.addHandler(handler)

    def compile_counting(function, **options):
        counter = CompileCounter()
        return compiled(function, counter, **options), counter

    yield compile_counting
    logger.removeHandler(handler)
    assert not records, [record.getMessage() for record in records]


def rotations(x, pos):
    rotation = OTHER.rotation(pos, like=x)
    a, b = rotation.apply((x, 2 * x))
    return a, rotation.inverse().apply(b), rotation.inverse().adjoint().apply(x), rotation.adjoint()


MROPE = ra.RoPE(16, axes=ra.Axes.interleaved(4, 2, 2), scaling=ra.YaRN(4.0, 64))
OVER_LENGTHS = {
    "rope": lambda x, pos: HALF.apply(x, pos),
    "inline": lambda x, pos: ra.apply(x, pos, base=123.0, pairing="half", rotary_dim=8, inverse=True),
    "rotation": rotations,
    "coordinates": lambda x, pos: MROPE.apply(x, pos[:, None] + torch.arange(3)),
    "rotation of coordinates": lambda x, pos: MROPE.rotation(pos[:, None] * torch.arange(3), like=x).apply(x),
    "float32 angles": lambda x, pos: ra.apply(x, pos, angles="float32"),
    "positions made inside": lambda x, pos: HALF.apply(x, torch.arange(5, 5 + x.shape[-2])),
    "two ropes": lambda x, pos: HALF.apply(x, pos) + OTHER.apply(x, pos),
    "tuple": lambda x, pos: HALF.apply((x, x[:1].bfloat16(), x.double()), pos),
    "seq_axis": lambda x, pos: HALF.apply(x.transpose(0, 1), pos, seq_axis=-3),
    "float positions": lambda x, pos: HALF.apply(x, pos + 0.25),
    "one position each": lambda x, pos: HALF.apply(x, pos[None] + torch.arange(2)[:, None]),
    "made inside, max_position": lambda x, pos: ra.RoPE(16, max_position=1000).apply(x, pos),
    "no rotation": lambda x, pos: ra.apply(x, pos, rotary_dim=0),
}


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [*((name, None) for name in OVER_LENGTHS), *((name, True) for name in ("rope", "inline", "rotation"))],
)
def test_compiled_over_lengths(name, dynamic, compile_counting):
    """With dynamic=True the amplitude, as each number of Dynamo, is a symbol."""
    function = OVER_LENGTHS[name]
    run, counter = compile_counting(function, dynamic=dynamic)
    for length in (3, 4, 9, 17, 1):
        x, pos = normal(2, length, 16, seed=length), torch.arange(length) - 2
        results, wanted = run(x, pos), function(x, pos)
        assert same(results, wanted)
        assert type(results[-1]) is type(wanted[-1])  # of a Rotation too
    assert 1 <= counter.frame_count <= 3


@pytest.mark.parametrize("start", [5, -7, 2**31 - 3, -1e6], ids="from {}".format)
def test_compiled_over_offsets(start, compile_counting):
    run, counter = compile_counting(lambda x, pos: HALF.apply(x, pos))
    x, step = normal(2, 1, 16), 0.75 if isinstance(start, float) else 1
    for offset in (start + step * i for i in range(12)):
        y = run(x, offset)
        assert same(y, HALF.apply(x, offset))
        if isinstance(offset, int) and offset < 2**31:
            judge_half(y, x, offset)
    assert counter.frame_count <= 2


def test_compiled_decoding_loop(compile_counting):
    """A prompt, then one token at a time: a length and an offset that both change."""
    axial = ra.RoPE(16, axes=ra.Axes.chunked(4, 2, 2))

    def step(q, k, start):
        pos = ra.positions.text(ra.positions.offset(q.shape[1], start, like=q))
        return HALF.apply((q, k), pos[..., 0], seq_axis=1), axial.apply(q, pos, seq_axis=1)

    run, counter = compile_counting(step)
    for length, offset in [(7, 0), (1, 7), (1, 8), (1, 9), (1, 10), (12, 11), (1, 23), (1, 24)]:
        q, k = normal(2, length, 4, 16), normal(2, length, 1, 16)
        assert same(run(q, k, offset), step(q, k, offset))
    assert counter.frame_count <= 4


def test_other_calls_compile_nothing_more(compile_counting, runs):
    """Neither a second rope, compiled or not, nor an eager call of any kind."""
    x, pos, second_rope = normal(2, 5, 16), torch.arange(5), ra.RoPE(16, base=4321.0)
    of = {"rope": lambda x, pos: HALF.apply(x, pos), "inline": lambda x, pos: ra.apply(x, pos, base=31.0)}
    compiled = {name: compile_counting(function) for name, function in of.items()}
    calls = [("rope", pos), ("rope", 3), ("inline", pos)]
    for name, at in calls:
        compiled[name][0](x, at)
    before = [counter.frame_count for _, counter in compiled.values()]

    second_rope.apply(x, pos)
    ra.RoPE(8).apply(x[..., :8].double(), 3)
    for base in (32.0, 33.0, 34.0):
        ra.apply(x, pos, base=base)
    ra.apply(x.numpy(), pos.numpy(), base=35.0)
    ra.apply(torch.nn.Parameter(x), pos)
    second, second_counter = compile_counting(lambda x, pos: second_rope.apply(x, pos))
    assert same(second(x, pos), second_rope.apply(x, pos))
    assert second_counter.frame_count == 1
    compile_counting(lambda x, pos: ra.apply(x, pos, base=36.0, pairing="half"))[0](x, pos)

    for name, at in calls:
        assert same(compiled[name][0](x, at), of[name](x, at))
    assert [counter.frame_count for _, counter in compiled.values()] == before


MADE_INSIDE = {
    "a range": (lambda x, pos: HALF.apply(x, range(5, 5 + x.shape[-2])), "pos is a range .* torch.arange"),
    "a range, by a rotation": (lambda x, pos: HALF.rotation(range(5), like=x).apply(x), "pos is a range"),
    "axes": (
        lambda x, pos: ra.RoPE(16, axes=ra.Axes.chunked(5, 3)).apply(x, torch.stack([pos, pos + 1], -1)),
        "Axes .* make it outside",
    ),
    "Llama3": (lambda x, pos: ra.apply(x, pos, scaling=ra.Llama3(factor=32.0)), "make it outside"),
    "Linear": (lambda x, pos: ra.RoPE(16, scaling=ra.Linear(4.0)).apply(x, pos), "make it outside"),
    "Periods": (lambda x, pos: ra.apply(x, pos, scaling=ra.Periods(1.0, 2.0)), "make it outside"),
}


@pytest.mark.parametrize("fullgraph", [True, False], ids=["fullgraph", "graph breaks"])
@pytest.mark.parametrize("name", MADE_INSIDE)
def test_refused_in_a_compiled_function(name, fullgraph, fresh_dynamo):
    """Dynamo would compile for each range, and make a rule or axes without their fields."""
    of, message = MADE_INSIDE[name]
    run = torch.compile(of, fullgraph=fullgraph, backend="eager")
    with pytest.raises(Exception, match=message):
        run(normal(2, 5, 16), torch.arange(5))
    with pytest.raises(Exception, match="pos is a range"):
        torch.compile(HALF.apply, fullgraph=fullgraph, backend="eager")(normal(2, 5, 16), range(5))


@pytest.mark.slow
@NEEDS_COMPILER
def test_inductor_keeps_the_contract(fresh_dynamo):
    """Also for few pairs: Inductor writes up to 8 numbers into C++, whose compiler knew both factors."""
    ropes = [ra.RoPE(2 * num_pairs, pairing="half") for num_pairs in (1, 4, 8)]
    xs = [
        normal(2, 40, rope.head_dim, dtype=dtype)
        for rope in ropes
        for dtype in (torch.float32, torch.float64)
    ]

    @torch.compile(fullgraph=True)
    def function(q, k, pos, *xs):
        few = [rope.apply(x, torch.arange(40)) for rope in ropes for x in xs if x.shape[-1] == rope.head_dim]
        return HALF.apply((q, k), pos), few

    pos, weight = torch.arange(33) * 30_000_001 - 77, normal(2, 4, 33, 16, seed=1)
    q, k = normal(2, 4, 33, 16).requires_grad_(), normal(2, 1, 33, 16, dtype=torch.bfloat16)
    ys, few = function(q, k, pos, *xs)
    for y, x in zip(ys, (q, k), strict=True):
        judge_half(y, x, pos)
    for y, x in zip(few, xs, strict=True):
        judge(y, x, range(40), pairing="half")
    (gradient,) = torch.autograd.grad(ys[0], q, weight)
    judge_gradient(gradient, weight, pos, "half")


# ---- every compiler, dynamic and fixed sizes ----


ENTRY_POINTS = {
    "rope": lambda x, pos: HALF.apply(x, pos),
    "rotation inside": lambda x, pos: HALF.rotation(pos, like=x).apply(x),
    "rotation outside": lambda x, rotation: rotation.apply(x),
}


@by_compiler
@pytest.mark.parametrize(
    "dynamic", [None, *(pytest.param(fixed, marks=NIGHTLY) for fixed in (True, False))], ids=str
)
@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_training_over_lengths(name, dynamic, backend, fresh_dynamo):
    """Prompts and steps of four lengths and many offsets, forward and backward."""
    run = compiled(ENTRY_POINTS[name], backend, dynamic=dynamic)
    torch._dynamo.utils.counters.clear()
    for length, offset in [(8, 0), (2048, 0), (1, 8), (1, 9), (2, 10), (8, 10**6), (17, -5)]:
        pos = torch.arange(offset, offset + length)
        x, weight = (normal(2, length, 16, seed=length + seed) for seed in (0, 1))
        y, gradient = pulled(
            run, x, weight, HALF.rotation(pos, like=x) if name == "rotation outside" else pos
        )
        judge_half(y, x, pos)
        judge_gradient(gradient, weight, pos, "half")
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs <= (5 if dynamic is False else 3)  # a length of 1 has a graph of its own


# ---- memory ----


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

    x, pos, cache = normal(2, 5, 16), torch.arange(5), torch.zeros(2, 9, 16)
    y, again = compiled(of, backend)(x, pos, cache)
    judge_half(-y, 2 * normal(2, 5, 16), range(1, 6))
    assert not x.any()
    assert not pos.any()
    assert same(cache[:, 2:7], -y)
    assert same(again, -y)  # position 0
    assert not cache[:, :2].any()


def test_positions_changed_before_the_backward_are_noticed(fresh_dynamo):
    """The gradient is that of the positions of the forward, or PyTorch raises."""
    run = compiled(lambda x, pos: HALF.apply(x, pos))
    x, weight = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1)
    for dtype in (torch.int64, torch.int32, torch.float32):
        pos = torch.arange(5).to(dtype)
        y = run(x, pos)
        pos += 1
        try:
            (gradient,) = torch.autograd.grad(y, x, weight)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)  # noqa: PT017
        else:
            judge_gradient(gradient, weight, range(5), "half")


# ---- gradients of a compiled call ----


@pytest.mark.parametrize("name", ["apply", "rotation of a tuple"])
def test_double_backward_of_a_compiled_call(name, fresh_dynamo):
    """Without AOTAutograd, which refuses every double backward, it is the derivative of the adjoint."""
    run = compiled(BY[name], "eager")
    x, weight = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1)
    (first,) = torch.autograd.grad(run(x).sin().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first, x, weight)
    matrix, exact = torch.tensor(ROPE.matrix(LIST)), x.detach().double()
    moved = torch.einsum("sij,bsj->bsi", matrix, weight.double())
    curved = -torch.einsum("sij,bsj->bsi", matrix, exact).sin() * moved
    want = torch.einsum("sji,bsj->bsi", matrix, curved)
    assert torch.allclose(second.double(), want, atol=1e-5)


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
@pytest.mark.parametrize("name", ["apply", pytest.param("rotation of a tuple", marks=NIGHTLY)])
def test_forward_mode_over_a_compiled_backward(name, backend, fresh_dynamo):
    """The backward of a compiled call meets dual numbers: it is right or refused, and loses no tangent."""
    x, weight, moved = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1), normal(2, 5, 16, seed=2)
    y = compiled(BY[name], backend)(x)
    with forward_ad.dual_level():
        try:
            (gradient,) = torch.autograd.grad(y, x, forward_ad.make_dual(weight, moved))
        except (RuntimeError, ra.ArrayTypeError) as error:
            assert "forward-mode" in str(error) or "forward mode" in str(error)  # noqa: PT017
            return
        value, tangent = forward_ad.unpack_dual(gradient)
    judge_gradient(value, weight)
    judge_gradient(tangent, moved)


@by_compiler
def test_a_gradient_of_one_of_a_tuple(backend, fresh_dynamo):
    run = compiled(lambda q, k, pos: HALF.apply((q, k), pos), backend)
    weights = normal(2, 5, 16, seed=2), normal(5, 16, seed=3)
    for learned in ((True, False), (False, True), (True, True)):
        xs = [normal(2, 5, 16).requires_grad_(learned[0]), normal(5, 16, seed=1).requires_grad_(learned[1])]
        ys = run(*xs, POS)
        assert tuple(y.requires_grad for y in ys) == learned
        for x, y, weight in zip(xs, ys, weights, strict=True):
            judge_half(y, x, POS)
            if y.requires_grad:  # the other result gets no gradient
                (gradient,) = torch.autograd.grad(y, x, weight, retain_graph=True)
                judge_gradient(gradient, weight, POS, "half")


@pytest.mark.parametrize("name", ["list", "rotation of a tuple"])
def test_a_compiled_call_saves_no_x(name, fresh_dynamo):
    x, sizes = normal(64, 5, 16).requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        compiled(lambda x: BY[name](x))(x)
    assert all(size < x.numel() / 32 for size in sizes)


def test_compiled_autograd(fresh_dynamo):
    """A compiled backward, of an eager and of a compiled forward."""
    compiler = functools.partial(torch.compile, backend="aot_eager")
    weight = normal(2, 5, 16, seed=2)
    for forward in (lambda xs: ROPE.apply(xs, POS), compiled(lambda xs: ROPE.apply(xs, POS))):
        for _ in range(2):
            xs = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1).requires_grad_()
            loss = sum((y * weight).sum() for y in forward(xs))
            with torch._dynamo.compiled_autograd._enable(compiler):
                loss.backward()
            for x in xs:
                judge_gradient(x.grad, weight)


def checkpoint_options(name):
    """Return options of checkpoint: a policy, by its name, for every operation."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    always = lambda ctx, op, *args, **kwargs: CheckpointPolicy[name]  # noqa: E731
    contexts = functools.partial(create_selective_checkpoint_contexts, always)
    plain = {"reentrant": {"use_reentrant": True}, "not reentrant": {"use_reentrant": False}}
    return plain.get(name) or {"use_reentrant": False, "context_fn": contexts}


@pytest.mark.parametrize("place", ["compiled outside", "eager", pytest.param("inside", marks=NIGHTLY)])
@pytest.mark.parametrize("name", ["reentrant", "not reentrant", "MUST_SAVE", "MUST_RECOMPUTE"])
def test_activation_checkpointing(name, place, fresh_dynamo):
    from torch.utils.checkpoint import checkpoint

    def block(q, k):
        ys = ROPE.apply((q.sin(), k), POS)
        return ROPE.rotation(POS, like=q).apply(ys[0]), ys[1]

    options = checkpoint_options(name)
    inner = compiled(block) if place == "inside" else block
    run = lambda q, k: checkpoint(inner, q, k, **options)  # noqa: E731
    q, k = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1).requires_grad_()
    ys, weight = (compiled(run) if place == "compiled outside" else run)(q, k), normal(2, 5, 16, seed=2)
    sum((y * weight).sum() for y in ys).backward()
    judge_gradient(k.grad, weight)
    matrix = torch.tensor(ROPE.matrix(LIST))
    twice = torch.einsum("sji,bsj->bsi", matrix @ matrix, weight.double()) * q.detach().double().cos()
    assert torch.allclose(q.grad.double(), twice, atol=1e-5)


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_positions_read_from_a_tensor(fresh_dynamo):
    """With capture_scalar_outputs, item() is a number that the graph does not know."""

    def of(x, start):
        number = start.item()
        return HALF.apply(x, number), HALF.apply(x, torch.arange(5) + number)

    run, x = compiled(of), normal(2, 5, 16)
    for start in (3, 4, -1, 10**6):
        one, each = run(x, torch.tensor(start))
        judge_half(one, x, start)
        judge_half(each, x, torch.arange(5) + start)


# ---- export ----

# torch.export.save uses a function of PyTorch that PyTorch deprecates.
QUIET_SAVE = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")


def module_of(function):
    """Return a module whose forward is a function."""

    class Module(torch.nn.Module):
        forward = staticmethod(function)

    return Module()


def x_and(source):
    return lambda size: (normal(2, 3, size, 16), source(torch.arange(size) * 9_999_991))


def by_shared(q, k, rotation):
    return *rotation.apply((q, k)), rotation.inverse()


def for_shared(size):
    q = normal(2, size, 16)
    return q, normal(size, 16, seed=1), HALF.rotation(torch.arange(size) + 1000, like=q)


def export(name, size=5, **options):
    """Export a program of dynamic sizes."""
    length = torch.export.Dim("length", min=2, max=4096)
    of, arguments, shapes = EXPORTED[name]
    return torch.export.export(module_of(of), arguments(size), dynamic_shapes=shapes(length), **options)


LONG = lambda length: ({2: length}, {0: length})  # noqa: E731
EXPORTED = {
    "positions": (lambda x, pos: HALF.apply(x, pos), x_and(lambda pos: pos), LONG),
    "tuple": (lambda x, pos: HALF.apply((x, -x), pos), x_and(lambda pos: pos), LONG),
    "rotation inside": (lambda x, pos: HALF.rotation(pos, like=x).apply(x), x_and(lambda pos: pos), LONG),
    "positions made inside": (
        lambda x: HALF.apply(x, torch.arange(x.shape[-2])),
        lambda size: (normal(2, size, 16),),
        lambda length: ({1: length},),
    ),
    "offset": (
        lambda x, pos: HALF.apply(x, pos),
        lambda size: (normal(2, 1, 16), size),
        lambda _: ({}, torch.export.Dim.DYNAMIC),
    ),
    "in place": (lambda x, pos: HALF.apply(x, pos, out=x), x_and(lambda pos: pos), LONG),
    "rotation": (
        by_shared,
        for_shared,
        lambda length: ({1: length}, {0: length}, type(for_shared(5)[2])({0: length}, {0: length})),
    ),
}


@QUIET_SAVE
@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=NIGHTLY)], ids=["non-strict", "strict"])
@pytest.mark.parametrize("name", EXPORTED)
def test_export_with_a_dynamic_length(name, strict):
    """And by a program that was saved and loaded: of PyTorch's operations, and without float64."""
    program, file = export(name, strict=strict), io.BytesIO()
    nodes = program.graph.nodes
    assert not any(
        "rope_array" in str(node.target) or "float64" in str(node.meta.get("val")) for node in nodes
    )
    torch.export.save(program.run_decompositions(), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    of, arguments, _ = EXPORTED[name]
    for size in (2, 77):
        given, *others = (arguments(size) for _ in range(3))
        want = of(*given)
        for exported, other in zip((program.module(), loaded), others, strict=True):
            assert same(exported(*other), want)
            assert name == "offset" or same(other, given)  # written alike
    if name == "rotation":  # a Rotation of another layout is no match
        with pytest.raises(Exception, match=r"Rotation|[Ii]nput"):
            loaded(*arguments(5)[:2], OTHER.rotation(POS, like=arguments(5)[0]))


def test_a_symbolic_graph_serves_other_lengths():
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(ENTRY_POINTS["rope"], tracing_mode="symbolic")(normal(2, 5, 16), torch.arange(5))
    x, pos = normal(2, 9, 16, seed=1), torch.arange(9) * 1_234_567
    assert same(graph(x, pos), HALF.apply(x, pos, backend="torch"))


LOADS = {
    # The program needs PyTorch alone: no operator of a package that the other process lacks.
    "positions": "arguments = torch.ones(2, 3, 7, 16), torch.arange(7)",
    # The type of a Rotation exists once its rope has made one.
    "rotation": """import rope_array as ra
    x, rope = torch.ones(2, 7, 16), ra.RoPE(16, pairing="half", base=500_000.0)
    arguments = x, x[0], rope.rotation(torch.arange(7), like=x)""",
}
LOAD = """
    import sys, torch
    {arguments}
    result = torch.export.load(sys.argv[1]).module()(*arguments)
    torch.save(result[0] if type(result) is tuple else result, sys.argv[2])
    """


@QUIET_SAVE
@NIGHTLY
@pytest.mark.parametrize("name", LOADS)
def test_a_saved_program_in_another_process(name, tmp_path):
    torch.export.save(export(name), tmp_path / "program.pt2")
    child.run(LOAD.format(arguments=LOADS[name]), str(tmp_path / "program.pt2"), str(tmp_path / "result.pt"))
    y = torch.load(tmp_path / "result.pt")
    judge_half(y, torch.ones(y.shape), range(7))


@QUIET_SAVE
@NIGHTLY
@NEEDS_COMPILER
@pytest.mark.parametrize("name", ["positions", "in place", "rotation"])
def test_ahead_of_time_inductor(name, tmp_path):
    path = torch._inductor.aoti_compile_and_package(export(name), package_path=str(tmp_path / "layer.pt2"))
    loaded, (of, arguments, _) = torch._inductor.aoti_load_package(path), EXPORTED[name]
    for size in (2, 5, 77):
        with torch.no_grad():
            ys, wanted = (torch.utils._pytree.tree_leaves(f(*arguments(size))) for f in (loaded, of))
        for y, want in zip(ys, wanted, strict=True):
            assert near(y, want)


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


@NIGHTLY
@NEEDS_COMPILER
def test_the_second_process_compiles_nothing(tmp_path):
    """AOTAutograd keeps forward and backward of the first process on disk."""
    runs = [child.run(CACHED, TORCHINDUCTOR_CACHE_DIR=str(tmp_path)).split() for _ in range(2)]
    assert runs == [["0", "1", "0"], ["1", "0", "0"]]
