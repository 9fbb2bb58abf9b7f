"""PyTorch compiled and exported: what eager calls return and write, and no more graphs than needed.

test_torch_operator.py has the operators of compiled programs.
"""

import functools
import io
import logging
import re

import child
import pytest
from compare import KERNEL, judge, same
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
    ROPES,
    by_compiler,
    compiled,
    forward_ad,
    judge_gradient,
    module_of,
    near,
    normal,
)

import rope_array as ra

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.library("torch"), *IGNORED]


def judge_half(y, x, pos):
    judge(y.detach(), x.detach(), pos, **FIELDS["half"])


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


AXIAL = ra.RoPE(16, axes=ra.Axes.chunked(4, 2, 2))
MROPE = ra.RoPE(16, axes=ra.Axes.interleaved(4, 2, 2), scaling=ra.YaRN(4.0, 64))


def axial_step(q, k, start):
    """A decoding step: its length and offset both change."""
    pos = ra.positions.text(ra.positions.offset(q.shape[1], start, like=q))
    return HALF.apply((q, k), pos[..., 0], seq_axis=1), AXIAL.apply(q, pos, seq_axis=1)


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


def at_a_number(x, start):
    """With capture_scalar_outputs, item() is a number that the graph does not know."""
    return HALF.apply(x, start.item()), HALF.apply(x, torch.arange(5) + start.item())


OF_LENGTHS = [(normal(2, length, 16), torch.arange(length) - 2) for length in (3, 4, 9, 17)]
ONE, FIVE = normal(2, 1, 16), normal(2, 5, 16)
# By name: a function, the arguments of its calls, and the most graphs.
CALLS = {name: (function, OF_LENGTHS, 2) for name, function in OVER_LENGTHS.items()}
CALLS |= {
    f"from {start}": (HALF.apply, [(ONE, start + step * i) for i in range(12)], 2)
    for start, step in ((5, 1), (-7, 1), (2**31 - 3, 1), (-1e6, 0.75))
}
CALLS["views in place"] = (
    lambda qkv, pos: of_views()(qkv.clone(), pos),
    [(normal(tokens, 128), torch.arange(tokens) + 10**6) for tokens in (7, 2, 33, 100)],
    2,
)
CALLS["a number of a tensor"] = (at_a_number, [(FIVE, torch.tensor(n)) for n in (3, 4, -1, 10**6)], 1)
CALLS["decoding"] = (
    axial_step,
    [
        (normal(2, length, 4, 16), normal(2, length, 1, 16), offset)
        for length, offset in [(7, 0), (1, 7), (1, 8), (1, 9), (1, 10), (12, 11), (1, 23), (1, 24)]
    ],
    4,
)


# The rest of the front, over four sizes n: the function, its arguments, and the most graphs. A number that
# becomes part of a rope needs a graph for each value.
DYNAMIC = ra.RoPE(16, scaling=ra.DynamicNTK(2.0, max_position_embeddings=6))
LONG_ROPE = ra.RoPE(16, scaling=ra.LongRoPE((1.0,) * 8, (2.0,) * 8, original_max_position_embeddings=6))
MIXED = ra.torch.MixedRotaryEmbedding(ra.RoPE(16), 3)
x_at = lambda n: (normal(2, n, 16), torch.arange(n) - 2)  # noqa: E731
heads_at = lambda n: (normal(2, 3, n, 16), normal(2, 3, n, 16), torch.arange(n))  # noqa: E731
ends_of = lambda n, count: torch.tensor([0, *range(2, count + 1), n])  # noqa: E731


def packed(q, cu_seqlens, offsets):
    return ra.positions.packed(cu_seqlens, total=q.shape[-2], offsets=offsets, pad=1)


def by_given_tables(x, pos):
    cos, sin = HALF.rotation(pos, like=x).full_width(x.dtype)
    return HALF.rotation_from(cos, sin).apply(x), HALF.matrix(pos, like=x)


FRONT = {
    f"packed, {count} sequences": (
        packed,
        lambda n, count=count: (normal(n, 16), ends_of(n, count), torch.arange(count) + n),
        2,
    )
    for count in (1, 2, 3)
}
FRONT |= {
    "one offset of packed sequences": (packed, lambda n: (normal(n, 16), ends_of(n, 2), n), 2),
    "an offset for each": (
        lambda x, offsets: ra.positions.offset(x.shape[-2], offsets, like=x),
        lambda n: (normal(2, n, 16), [n, 2**40 + n]),
        2,
    ),
    "mask": (lambda mask: ra.positions.from_mask(mask), lambda n: (torch.arange(n)[None] > 1,), 2),
    "zigzag": (
        lambda x, rank: ra.positions.context_parallel(x, rank, 2, layout="zigzag", axis=-2),
        lambda n: (normal(2, 4 * n, 16), n % 2),
        3,
    ),
    "grids": (
        lambda x, n: (
            ra.positions.grid(x.shape[-2], 2, origin=n, like=x),
            ra.positions.video_grid(n, 2, 4, like=x),
        ),
        lambda n: (normal(2, n, 16), n),
        3,
    ),
    "rotary module": (ra.torch.RotaryEmbedding(HALF), heads_at, 2),
    "learned module": (ra.torch.LearnedRotaryEmbedding(OTHER), heads_at, 2),
    "mixed module": (
        MIXED,
        lambda n: (*heads_at(n)[:2], torch.stack([torch.arange(n), torch.arange(n) % 2], -1)),
        2,
    ),
    "given tables": (by_given_tables, x_at, 2),
    "xPos": (
        lambda x, pos, base: tuple([r.apply(x) for r in HALF.rotation_xpos(pos, like=x, scale_base=base)]),
        lambda n: (*x_at(n), 500.0 + n),
        4,
    ),
    "base": (lambda x, pos, base: ra.apply(x, pos, base=base), lambda n: (*x_at(n), 1000.1 * n), 4),
    "width": (lambda x, pos, n: ra.apply(x, pos, rotary_dim=n), lambda n: (*x_at(n), 2 * (n % 8)), 4),
    "frequencies": (
        lambda x, pos, inv_freq: ra.RoPE(16, inv_freq=inv_freq, attention_factor=inv_freq[0]).apply(x, pos),
        lambda n: (*x_at(n), tuple(n / i for i in range(1, 9))),
        4,
    ),
    "rope of x's width": (lambda x, pos: ra.RoPE(x.shape[-1], base=77.0).apply(x, pos), x_at, 2),
    "at_length, dynamic NTK": (lambda x, pos: DYNAMIC.at_length(x.shape[-2]).apply(x, pos), x_at, 4),
    "at_length, LongRoPE": (lambda x, pos: LONG_ROPE.at_length(x.shape[-2]).apply(x, pos), x_at, 3),
    "at_length, a number": (lambda x, pos: LONG_ROPE.at_length(4096).apply(x, pos), x_at, 2),
    "shift_keys": (
        lambda x, n: ra.convert.shift_keys((x, 2 * x), n, OTHER),
        lambda n: (normal(2, n, 16), -n),
        3,
    ),
    "shift_keys at a length": (lambda x, pos: ra.convert.shift_keys(x, pos, DYNAMIC.at_length(9)), x_at, 2),
    "rerotate": (
        lambda x, pos: ra.convert.rerotate(x.bfloat16(), pos, LONG_ROPE.at_length(1), LONG_ROPE.at_length(9)),
        x_at,
        2,
    ),
    "conversions": (
        lambda x, pos: (
            ra.convert.keys(x, OTHER, "half"),
            ra.convert.weights(x, HALF, "interleaved", axis=-1),
        ),
        x_at,
        2,
    ),
}
CALLS |= {name: (f, [of(n) for n in (3, 4, 9, 17)], frames) for name, (f, of, frames) in FRONT.items()}
BASIC = "rope", "inline", "rotation", *FRONT


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [
        *(pytest.param(name, None, marks=[NIGHTLY] * (name in FRONT)) for name in CALLS),
        *((name, True) for name in BASIC),
    ],
)
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_compiled_over_lengths_and_offsets(name, dynamic, compile_counting):
    """With dynamic=True the amplitude, as each number of Dynamo, is a symbol."""
    function, calls, most_frames = CALLS[name]
    run, counter = compile_counting(lambda *arguments: function(*arguments), dynamic=dynamic)
    for arguments in calls:
        ys, wanted = run(*arguments), function(*arguments)
        assert same(ys, wanted)
        assert type(ys[-1]) is type(wanted[-1])  # of a Rotation too
    assert 1 <= counter.frame_count <= most_frames


class Layer(torch.nn.Module):
    """Makes its rope in each call, of fields that other layers have with other values."""

    def __init__(self, **fields):
        super().__init__()
        self.fields = fields

    def forward(self, x, pos):
        return ra.apply(x, pos, **self.fields), ra.RoPE(16, **self.fields).rotation(pos, like=x).apply(x)


LAYERS = {
    "base": [{"base": base} for base in (1e4, 2e4, 1e4, 123.456789)],
    "width": [{"rotary_dim": width, "rotary_start": 16 - width} for width in (16, 4, 8)],
    "amplitude": [{"attention_factor": factor} for factor in (1.5, 1.25, 2.0)],
    "frequencies": [{"inv_freq": kind([1.0 / i] * 8)} for i in (1, 2, 3) for kind in (tuple, list)],
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_make_a_rope_are_compiled_one_by_one(name, fresh_dynamo):
    x, pos = normal(2, 5, 16), torch.tensor(LIST)
    for fields in LAYERS[name]:
        for y in compiled(Layer(**fields))(x, pos):
            judge(y, x, LIST, **fields)


@by_compiler
def test_positions_in_lists_keep_their_values(backend, fresh_dynamo):
    """From the second call on, Dynamo holds the numbers as symbols."""
    run, x = compiled(lambda x, pos: HALF.apply(x, pos), backend), normal(2, 2, 16)
    for pos in ([1, 2], [2**31, 2**31 + 1], [-(2**33), 5], [2**40 + 3, -(2**31)]):
        judge_half(run(x, pos), x, pos)


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


REFUSED = {
    "a range": (HALF.apply, "pos is a range"),
    "a range made inside": (
        lambda x, pos: HALF.apply(x, range(5, 5 + x.shape[-2])),
        "pos is a range .* torch.arange",
    ),
    "a range, by a rotation": (lambda x, pos: HALF.rotation(range(5), like=x).apply(x), "pos is a range"),
    "axes": (
        lambda x, pos: ra.RoPE(16, axes=ra.Axes.chunked(5, 3)).apply(x, torch.stack([pos, pos + 1], -1)),
        "Axes .* make it outside|frozen dataclass",  # the latter in PyTorch 2.11
    ),
    "Llama3": (lambda x, pos: ra.apply(x, pos, scaling=ra.Llama3(factor=32.0)), "make it outside"),
}


@pytest.mark.parametrize("fullgraph", [True, False], ids=["fullgraph", "graph breaks"])
@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_a_compiled_function(name, fullgraph, fresh_dynamo):
    """Dynamo would compile for each range, and make a rule or axes without their fields."""
    of, message = REFUSED[name]
    pos = range(5) if name == "a range" else torch.arange(5)
    with pytest.raises(Exception, match=message):
        torch.compile(of, fullgraph=fullgraph, backend="eager")(normal(2, 5, 16), pos)


@pytest.mark.slow
@NEEDS_COMPILER
def test_inductor_keeps_the_contract(fresh_dynamo):
    """Few pairs by operations too: Inductor writes 8 numbers into C++, whose compiler knew both factors."""
    few = ra.RoPE(8, **FIELDS["half"])

    @torch.compile(fullgraph=True)
    def function(q, k, pos, *xs):
        ys = [few.apply(x, torch.arange(40), backend="torch") for x in xs]
        return *HALF.apply((q, k), pos), ys

    pos = torch.arange(33) * 30_000_001 - 77
    q, k = normal(2, 4, 33, 16), normal(2, 1, 33, 16, dtype=torch.bfloat16)
    xs = tuple(normal(2, 40, 8, dtype=dtype).requires_grad_() for dtype in (torch.float32, torch.float64))
    *ys, of_few = function(q, k, pos, *xs)
    for y, x in zip(ys, (q, k), strict=True):
        judge_half(y, x, pos)
    weights = tuple(normal(2, 40, 8, dtype=x.dtype, seed=1) for x in xs)
    for gradient, weight in zip(torch.autograd.grad(of_few, xs, weights), weights, strict=True):
        judge_gradient(gradient, weight, range(40), "half")
    for y, x in zip(of_few, xs, strict=True):
        judge_half(y, x, range(40))


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
        x, weight = normal(2, length, 16).requires_grad_(), normal(2, length, 16, seed=1)
        y = run(x, HALF.rotation(pos, like=x) if name == "rotation outside" else pos)
        (gradient,) = torch.autograd.grad(y, x, weight)
        judge_half(y, x, pos)
        judge_gradient(gradient, weight, pos, "half")
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs <= (5 if dynamic is False else 3)  # a length of 1 has a graph of its own


# ---- programs with the results, memory and gradients of eager calls, which test_out.py judges ----


HEADS = 4, 2, 2  # of q, k and v


def projection(tokens=5, dtype=torch.float32):
    """Make the output of a projection to q, k and v: (tokens, heads * 16)."""
    return normal(tokens, sum(HEADS) * 16, dtype=dtype)


def views_of(qkv):
    """Return q, k and v as views: (tokens, heads, 16)."""
    return tuple(x.view(-1, x.shape[-1] // 16, 16) for x in qkv.split([16 * n for n in HEADS], -1))


def rotate_in_place(xs, pos, rope=HALF, by_rotation=False):
    if by_rotation:
        return rope.rotation(pos, like=xs[0]).apply(xs, seq_axis=-3, out=xs)
    return rope.apply(xs, pos, seq_axis=-3, out=xs)


def of_views(name="half", by_rotation=False):
    """Return a layer that rotates q and k of a projection."""

    def layer(qkv, pos):
        q, k, _ = views_of(qkv)
        ys = rotate_in_place((q, k), pos, ROPES[name], by_rotation)
        assert ys[0] is q
        assert ys[1] is k
        return qkv + 0

    return layer


def read_before_and_after(qkv, pos):
    """Values that are read before the call are unrotated, through views too, until they are used."""
    q, k, v = views_of(qkv)
    sine, copied = q.sin(), k.clone()
    rotate_in_place((q, k), pos)
    return q.cos(), sine, copied, k - copied, qkv * 2, v


def rotate_in_a_row(x, pos):
    """Layers with ropes of their own, the second on the result of the first, and back."""
    HALF.apply(x, pos, out=x)
    OTHER.apply(x, pos, out=x)
    first = x * 1
    OTHER.apply(x, pos, out=x, inverse=True)
    return first


def coordinates_first(x, pos):
    """Engines have positions of M-RoPE as (3, batch, tokens)."""
    return AXIAL.apply(x, pos.movedim(0, -1), out=x)


def of_products(q, k):
    xs = q * 1, k * 1
    rotate_in_place(xs, POS)
    return xs[0] * 1, xs[1] * 1


def without_a_gradient(x, weight):
    with torch.no_grad():
        HALF.apply(x, POS, out=x)
    return x * weight


def q_and_k(of_q, of_k):
    """Return a function that makes q and k; a gradient of either may be recorded."""
    return lambda: (normal(5, 2, 16).requires_grad_(of_q), normal(5, 2, 16, seed=1).requires_grad_(of_k))


# Each program has a function that makes its arguments.
PROGRAMS = {
    "views of a projection": (of_views(), lambda: (projection(), POS)),
    "two pairings by a rotation": (
        of_views("mixed", by_rotation=True),
        lambda: (projection(dtype=torch.bfloat16), POS),
    ),
    "reads before and after": (read_before_and_after, lambda: (projection(), POS)),
    "calls in a row": (rotate_in_a_row, lambda: (normal(2, 5, 16), torch.arange(5))),
    "two dtypes": (
        lambda *xs: HALF.apply(xs, POS, out=xs),
        lambda: (normal(2, 5, 16), normal(5, 16, dtype=torch.float64)),
    ),
    "coordinates": (coordinates_first, lambda: (normal(2, 4, 5, 16), torch.arange(30).view(3, 2, 5))),
    "a cache": (
        lambda x, cache: HALF.apply(x, POS, out=cache[:, 2:7]) * 1,
        lambda: (normal(2, 5, 16), torch.zeros(2, 9, 16)),
    ),
    "gradients of q and k": (of_products, q_and_k(True, True)),
    "a gradient of q": (of_products, q_and_k(True, False)),
    "a gradient of k of a tuple": (lambda q, k: HALF.apply((q, k), POS, seq_axis=-3), q_and_k(False, True)),
    "a parameter under no_grad": (
        without_a_gradient,
        lambda: (torch.nn.Parameter(normal(2, 5, 16)), normal(2, 5, 16, seed=1)),
    ),
}


def outcome(function, arguments):
    """Return the results, the arguments that they were written into, and the gradients of these."""
    ys = torch.utils._pytree.tree_leaves(function(*arguments))
    torch.autograd.backward([y.sin().sum() for y in ys if y.requires_grad])
    memory = [x if x._base is None else x._base for x in arguments]
    return [*ys, *memory, *(x.grad for x in arguments if x.grad is not None)]


def judge_program(name, backend="aot_eager"):
    """Assert that a compiled program returns and writes what the eager calls do, and has their gradients."""
    function, make = PROGRAMS[name]
    for by_program, eager in zip(
        outcome(compiled(function, backend), make()), outcome(function, make()), strict=True
    ):
        assert by_program.requires_grad == eager.requires_grad
        assert near(by_program, eager)


@by_compiler
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_write_as_eager_calls_do(name, backend, fresh_dynamo):
    judge_program(name, backend)


@pytest.mark.slow
@NEEDS_COMPILER
def test_inductor_reads_before_and_after(fresh_dynamo):
    judge_program("reads before and after", "inductor")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes(mode, fresh_dynamo):
    with mode():
        judge_program("views of a projection")


@KERNEL
def test_without_the_second_functionalization(fresh_dynamo):
    """vLLM compiles so: PyTorch copies q and k before the operator, and back."""
    from torch._inductor import config

    with config.patch(enable_auto_functionalized_v2=False):
        judge_program("views of a projection")


# ---- memory that is refused, or that eager calls refuse ----


@by_compiler
def test_memory_that_overlaps_x_partly(backend, fresh_dynamo):
    """Eager calls refuse it. A compiled call computes the result before it writes."""
    memory = normal(5, 24)
    x, out = memory[:, :16], memory[:, 8:]
    original = x.clone()
    compiled(lambda x, out: HALF.apply(x, POS, out=out), backend)(x, out)
    judge(out, original, LIST, **FIELDS["half"])


OVERLAPS = {
    "q and k overlap": lambda qkv: (qkv[:, :16], qkv[:, 8:24]),
    "q is k": lambda qkv: (qkv[:, :16], qkv[:, :16]),
    "rows of q overlap": lambda qkv: (qkv.as_strided((5, 16), (8, 1)), qkv[:, 48:64]),
}


@KERNEL
@by_compiler
@pytest.mark.parametrize("name", OVERLAPS)
def test_overlaps_are_refused_when_the_program_runs(name, backend, fresh_dynamo):
    def layer(qkv, pos):
        xs = OVERLAPS[name](qkv)
        return HALF.apply(xs, pos, out=xs)

    qkv = projection()
    with pytest.raises(ra.ArrayTypeError, match="share"):
        compiled(layer, backend)(qkv, POS)
    assert same(qkv, projection())


def onto_itself(view):
    """Return a function that rotates a view of x in place."""

    def of(x):
        y = view(x)
        return HALF.apply(y, POS, out=y)

    return of


# Each has a function of x, whether x records a gradient, and a word of the message.
REFUSED_OUTS = {
    "twice": (lambda x: HALF.apply((x, x), POS, out=(x, x)), False, "given twice"),
    "expanded": (onto_itself(lambda x: x[:1].expand(2, 5, 16)), False, "share memory"),
    "shape": (lambda x: HALF.apply(x, POS, out=x[:1]), False, "out"),
    "a tuple": (lambda x: HALF.apply(x, POS, out=(x,)), False, "one array"),
    "a leaf": (onto_itself(lambda x: x), True, "a leaf"),
    "a view of a leaf": (onto_itself(lambda x: x[:1]), True, "a view of a leaf"),
    "a part of split": (onto_itself(lambda x: (x * 1).split(1)[0]), True, "split|multiple views|Split"),
    "other memory": (lambda x: HALF.apply(x * 1, POS, out=torch.zeros(2, 5, 16)), True, "would lose"),
}


@pytest.mark.parametrize("name", REFUSED_OUTS)
def test_refused_while_compiling(name, fresh_dynamo):
    of, grad, message = REFUSED_OUTS[name]
    x = normal(2, 5, 16).requires_grad_(grad)
    with pytest.raises(Exception, match=message):
        compiled(of)(x)
    assert same(x.detach(), normal(2, 5, 16))


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
    gradients = []
    for function in (block, compiled(run) if place == "compiled outside" else run):
        q, k = (normal(2, 5, 16, seed=seed).requires_grad_() for seed in (0, 1))
        sum((y * y.detach().cos()).sum() for y in function(q, k)).backward()
        gradients.append((q.grad, k.grad))
    assert all(map(near, *gradients))


# ---- export ----

# PyTorch warns of its own code: in torch.export.save, and before 2.13 in torch.export.load.
QUIET_SAVE = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:The given buffer")


def x_and_pos(size):
    return normal(2, 3, size, 16), torch.arange(size) * 9_999_991


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
    "positions made inside": (
        lambda x: HALF.apply(x, torch.arange(x.shape[-2])),
        lambda size: (normal(2, size, 16),),
        lambda length: ({1: length},),
    ),
    "offset": (HALF.apply, lambda size: (normal(2, 1, 16), size), lambda _: ({}, torch.export.Dim.DYNAMIC)),
    "one row": (AXIAL.apply, lambda n: (normal(2, n, 16), torch.tensor([5, 9, 2])), lambda n: ({1: n}, None)),
    "in place": (lambda x, pos: HALF.apply(x, pos, out=x), x_and_pos, LONG),
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
    """And by a program that was saved and loaded.

    It has PyTorch's operations, without float64, and without divisions, which are slow in AOTInductor.
    """
    program, file = export(name, strict=strict), io.BytesIO()
    text = " ".join(f"{node.target} {node.meta.get('val')}" for node in program.graph.nodes)
    assert not re.search("rope_array|float64|floor_divide", text)
    torch.export.save(program.run_decompositions(), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    of, arguments, _ = EXPORTED[name]
    for size in (2, 77):
        eager_arguments, *copies = (arguments(size) for _ in range(3))
        expected = of(*eager_arguments)
        for exported, copy in zip((program.module(), loaded), copies, strict=True):
            assert same(exported(*copy), expected)
            assert name == "offset" or same(copy, eager_arguments)  # written alike
    if name == "rotation":  # a Rotation of another layout is no match
        with pytest.raises(Exception, match=r"Rotation|[Ii]nput"):
            loaded(*arguments(5)[:2], OTHER.rotation(POS, like=arguments(5)[0]))


@QUIET_SAVE
@NIGHTLY
def test_a_saved_program_in_another_process(tmp_path):
    """The type of a Rotation exists there once its rope has made one."""
    script = """
        import sys, torch
        import rope_array as ra
        x, rope = torch.ones(2, 7, 16), ra.RoPE(16, pairing="half", base=500_000.0)
        rotation = rope.rotation(torch.arange(7), like=x)
        assert torch.equal(torch.export.load(sys.argv[1]).module()(x, x[0], rotation)[0], rotation.apply(x))
        """
    torch.export.save(export("rotation"), tmp_path / "program.pt2")
    child.run(script, str(tmp_path / "program.pt2"))


@QUIET_SAVE
@NIGHTLY
@NEEDS_COMPILER
@pytest.mark.parametrize("name", ["positions made inside", "in place", "rotation"])
def test_ahead_of_time_inductor(name, tmp_path):
    path = torch._inductor.aoti_compile_and_package(export(name), package_path=str(tmp_path / "layer.pt2"))
    loaded, (of, arguments, _) = torch._inductor.aoti_load_package(path), EXPORTED[name]
    for size in (2, 5, 77):
        with torch.no_grad():
            ys, wanted = (torch.utils._pytree.tree_leaves(f(*arguments(size))) for f in (loaded, of))
        for y, expected in zip(ys, wanted, strict=True):
            assert near(y, expected)


# ---- caches ----


@NIGHTLY
@NEEDS_COMPILER
def test_a_program_is_compiled_once_for_equal_ropes(fresh_dynamo):
    """AOTAutograd finds forward and backward on disk, under a key that has no object of the first process."""
    from torch._inductor.utils import fresh_cache

    torch._dynamo.utils.counters.clear()
    x, weight = normal(2, 64, 16).requires_grad_(), normal(2, 64, 16, seed=1)
    with fresh_cache():
        for hits in (0, 1):
            torch._dynamo.reset()
            rope = ra.RoPE(16, pairing="half", base=97.0)
            y = compiled(lambda x, pos, rope=rope: rope.apply(x, pos), "inductor")(x, torch.arange(64))
            expected = rope.rotation(range(64), like=x).adjoint().apply(weight)
            assert near(torch.autograd.grad(y, x, weight)[0], expected)
            counts = torch._dynamo.utils.counters["aot_autograd"]
            assert counts["autograd_cache_hit"] == hits
            assert counts["autograd_cache_miss"] == 1
