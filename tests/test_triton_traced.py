"""torch.compile on a GPU, without the GPU: the launches in the graphs, and the bits of the CPU's eager calls.

Triton's interpreter runs the launches (posing_gpu.py). test_inductor_offline.py has Inductor's programs.
"""

import contextlib
from typing import Any, NamedTuple

import pytest
import torch
from compare import assert_same
from ropes import rope
from triton_cases import normal  # before Triton is imported
from triton_mutants import TRACED_MUTANTS, installed

import posing_gpu  # isort: skip
import rope_array as ra
from rope_array._array_api.source import Tables
from rope_array._backends.torch import _triton_traced
from rope_array.hf import _operators

pytestmark = [pytest.mark.library("torch"), pytest.mark.usefixtures("fresh_dynamo")]
HALF, AXES = rope("half"), rope("three axes")
POS = torch.tensor([0, 1, -5, 70_000, 2**31 - 1])
TWICE = torch.stack([POS, POS - 9])
ONCE = {"rotate_rows": 1}
BY_OPERATOR = {"rope_array.rotate_at.default": 1}


def q_and_k(dtype="float32", batch=2, tokens=5, heads=4):
    shapes = (batch, tokens, heads, 16), (batch, tokens, 2, 16)
    return tuple(normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes))


class Traced(NamedTuple):
    """A function to compile, its arrays with gradients, its other arguments, and the launches of its graphs.

    Attributes
    ----------
    eager
        The function that is called without a compiler, if it is another one.
    """

    function: Any
    arrays: tuple
    others: tuple = ()
    forward: dict = ONCE
    backward: dict = ONCE
    eager: Any = None

    def check(self):
        """Assert the launches, and the bits of eager calls on the CPU: of results, then also of gradients."""
        program, arguments = posing_gpu.Program(self.function), (*self.arrays, *self.others)
        with posing_gpu.posing():
            ys = program.run(*arguments)
        assert program.operators() == [self.forward]
        eager = self.eager or self.function
        assert_same(ys, eager(*arguments))
        program.graphs.clear()
        arrays = [x.detach().requires_grad_() for x in self.arrays]
        with posing_gpu.posing():
            ys = program.run(*arrays, *self.others)
        cotangents = [normal(*y.shape, seed=7).to(y.dtype) for y in ys]
        gradients = torch.autograd.grad(ys, arrays, cotangents)
        assert program.operators() == [self.forward, self.backward]
        expected = eager(*arrays, *self.others)
        assert_same(tuple(y.detach() for y in ys), tuple(y.detach() for y in expected))
        assert_same(gradients, torch.autograd.grad(expected, arrays, cotangents))


def rotate_by(rope, **options):
    return lambda q, k, *pos: rope.apply((q, k), *pos, seq_axis=-3, **options)


rotate = rotate_by(HALF)


def rotate_one(rope, **options):
    return lambda x, *pos: (rope.apply(x, *pos, **options),)


def make_rotation(q, k, pos):
    rotation = HALF.rotation(pos, like=q)
    return rotation.inverse().apply((q, k), seq_axis=-3)


def make_rotation_of_axes(q, k, pos):
    return AXES.rotation(pos, like=q).apply((q, k), seq_axis=-3)


def of_dtypes():
    for dtype in ("float32", "bfloat16", "float16", "float64"):
        yield dtype, Traced(rotate, q_and_k(dtype), (POS,))
        twice = {"rotate_rows": 2}
        yield f"a rotation made for {dtype}", Traced(make_rotation, q_and_k(dtype), (POS,), twice)


def of_ropes():
    for name in ("plain", "partial", "mixed", "amplitude to half", "half to interleaved", "frequencies"):
        yield name, Traced(rotate_by(rope(name)), q_and_k(), (POS,))
    for name, count in (("three axes", 3), ("blocks", 2)):
        pos = torch.stack([POS, POS - 1, 3 - POS][:count], -1)
        yield name, Traced(rotate_by(rope(name)), q_and_k(), (pos,))
    yield "inverse", Traced(rotate_by(rope("amplitude"), inverse=True), q_and_k(), (POS,))
    pos = torch.stack([POS, POS - 1, 3 - POS], -1)
    yield "a rotation of axes", Traced(make_rotation_of_axes, q_and_k(), (pos,), {"rotate_rows": 2})


def of_positions():
    positions = {
        "int32": POS.to(torch.int32),
        "float32": POS / 3,
        "float64": POS.double() / 3,
        "of each sequence": TWICE,
        "one of each sequence": TWICE[:, 3:4],
        "strided": torch.stack([POS, POS], -1)[:, 0],
    }
    for name, pos in positions.items():
        yield f"{name} positions", Traced(rotate, q_and_k(), (pos,))
    yield "an int", Traced(lambda q, k: rotate(q, k, 70_000), q_and_k())
    yield "a float", Traced(lambda q, k: rotate(q, k, 7.25), q_and_k())
    yield "arange", Traced(lambda q, k: rotate(q, k, torch.arange(5, 5 + q.shape[1])), q_and_k())


def of_tables():
    rotation = HALF.rotation(TWICE, like=torch.ones(1))
    for name, tables in (("a rotation", rotation), ("the adjoint", rotation.adjoint())):
        yield name, Traced(lambda q, k, t=tables: t.apply((q, k), seq_axis=-3), q_and_k("bfloat16"))
    by_tables = lambda q, k, cos, sin: HALF.rotation_from(cos, sin).apply((q, k), seq_axis=-3)  # noqa: E731
    yield "tables", Traced(by_tables, q_and_k(), tuple(rotation))
    strided = tuple(torch.stack([table, table], -1)[..., 0] for table in rotation)
    by_operator = {"rope_array.rotate_by.default": 1}
    yield "strided tables", Traced(by_tables, q_and_k(), strided, by_operator, by_operator)


def of_arrays():
    q, k = q_and_k()
    twice = {"rotate_rows": 2}
    yield "one array", Traced(rotate_one(HALF), (q.transpose(1, 2),), (POS,))
    three = lambda q, k, x, pos: HALF.apply((q, k, x), pos, seq_axis=-3)  # noqa: E731
    yield "three arrays", Traced(three, (q, k, q[:, :, :1].clone()), (POS,), twice, twice)
    yield "three dtypes", Traced(three, (q.half(), k.bfloat16(), q.double()), (POS,), twice, twice)
    of_heads = lambda q, k, pos: HALF.apply((q.transpose(1, 2), k.transpose(1, 2)), pos)  # noqa: E731
    yield "heads first", Traced(of_heads, (q, k), (POS,))
    packed = lambda x, pos: HALF.apply(tuple(x.split((4, 2, 2), 2)[:2]), pos, seq_axis=-3)  # noqa: E731
    yield "a fused projection", Traced(packed, (normal(2, 5, 8, 16),), (POS,))
    views = lambda x, pos: HALF.apply((x[..., ::2], x[:, :, 1:, 16:]), pos, seq_axis=-3)  # noqa: E731
    yield "strided arrays", Traced(views, (normal(2, 5, 8, 32),), (POS,))
    parts = lambda x, pos: (HALF.apply(x[:, :2, :, ::2, 1:], pos, seq_axis=-3),)  # noqa: E731
    yield "parts of an array", Traced(parts, (normal(2, 3, 2, 5, 3, 16),), (POS[:3],), BY_OPERATOR)
    empty = lambda x, pos: (HALF.apply(x[:0], pos),)  # noqa: E731
    yield "an empty array", Traced(empty, (normal(2, 5, 16),), (POS,), BY_OPERATOR, BY_OPERATOR)
    first, second = rotate_by(HALF), rotate_by(ra.RoPE(16, base=50.0))
    both = lambda q, k, pos: (*first(q, k, pos), *second(q, k, pos))  # noqa: E731
    yield "two ropes", Traced(both, (q, k), (POS,), twice, twice)


def of_inputs():
    """Attention's inputs. Their gradient is by PyTorch's operations, whose bits the array-api backend has."""
    once = {"make_inputs": 1}
    for name in ("float32", "bfloat16"):
        weights = normal(16, dtype=name, seed=5), normal(16, dtype=name, seed=6)
        for count in (2, 0):

            def norm(q, k, *others, backend=None):
                *weights, pos = others
                weights = tuple(weights) or (None, None)
                return ra.attention_inputs(q, k, pos, HALF, norm=weights, seq_axis=-3, backend=backend)

            eager = lambda *arrays, norm=norm: norm(*arrays, backend="array-api")  # noqa: E731
            title = f"a norm of {name}" + (", without weights" if not count else "")
            yield title, Traced(norm, (*q_and_k(name), *weights[:count]), (POS,), once, {}, eager)
    plain = lambda q, k, pos: ra.attention_inputs(q, k, pos, HALF, seq_axis=-3)  # noqa: E731
    yield "inputs without a norm", Traced(plain, q_and_k(), (POS,))


KINDS = of_dtypes, of_ropes, of_positions, of_tables, of_arrays, of_inputs
CASES = {name: case for kind in KINDS for name, case in kind()}


@pytest.mark.parametrize("name", CASES)
def test_a_launch_has_the_bits_of_the_cpu(name):
    CASES[name].check()


# ---- a model ----


def layers(by_rotation):
    """Return a model of four layers, whose rotations are all of one set of positions."""

    def run(x, *others):
        *weights, pos = others
        rotation = HALF.rotation(pos, like=x) if by_rotation else None
        for weight in weights:
            q, k, v = (x @ weight).unflatten(-1, (8, 16)).split((4, 2, 2), 2)
            q, k = rotate(q, k, pos) if rotation is None else rotation.apply((q, k), seq_axis=-3)
            x = x + q.mean(2) + k.mean(2) * v.mean(2)
        return (x,)

    return run


@pytest.mark.parametrize("by_rotation", [False, True], ids=["by positions", "by a rotation"])
def test_a_layer_is_a_launch_and_the_tables_of_all_layers_are_one(by_rotation):
    arrays = normal(2, 5, 16), *(normal(16, 128, seed=i) for i in range(4))
    forward = {"rotate_rows": 4 + by_rotation}
    Traced(layers(by_rotation), arrays, (POS,), forward, {"rotate_rows": 4}).check()


def test_constants_are_inputs_at_a_static_address():
    """A constant of the program would be copied to the GPU in each call, and a CUDA graph copies inputs."""
    own = ra.RoPE(16, base=77.0)
    program = posing_gpu.Program(lambda q, k, pos: (*rotate_by(own)(q, k, pos), *rotate_by(own)(q, k, -pos)))
    with posing_gpu.posing():
        program.run(*q_and_k(), POS)
    (graph,), (static,) = program.graphs, program.static
    names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    words = {
        node.kwargs["kwargs"]["words"].name
        for node in graph.graph.nodes
        if node.target is posing_gpu.FUNCTIONAL
    }
    assert [node for node in graph.graph.nodes if node.op == "get_attr"] == []
    assert [names[i] for i in static] == list(words)


# ---- compilations ----


def at_offset(q, k, start):
    return rotate(q, k, torch.arange(q.shape[1]) + start)


def at_number(q, k, start):
    return rotate(q, k, start)


def normed(q, k, pos):
    return ra.attention_inputs(q, k, pos, HALF, norm=(None, None), seq_axis=-3)


def calls(function, *sizes):
    """Return calls of a function by batch, tokens and heads."""
    return function, [(*q_and_k("float32", *size), torch.arange(size[1]) + size[0]) for size in sizes]


# No two sizes of a call are equal: PyTorch would compile for that.
LENGTHS = (3, 5, 4), (3, 9, 4), (3, 33, 4)
CALLS = {
    "lengths": calls(rotate, *LENGTHS),
    "lengths of a rotation": calls(make_rotation, *LENGTHS),
    "lengths of normed heads": calls(normed, *LENGTHS),
    "batches": calls(rotate, (3, 5, 4), (7, 5, 4), (20, 5, 4)),
    "lengths and batches": calls(rotate, (3, 5, 4), (7, 6, 4), (20, 33, 4)),
    "heads": calls(rotate, (3, 5, 4), (3, 5, 6), (3, 5, 33)),
    "offsets": (at_offset, [(*q_and_k(), start) for start in (7, 8, 2**33)]),
    "numbers": (at_number, [(*q_and_k(), start) for start in (7, 8, 2**33)]),
}


@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
@pytest.mark.parametrize("name", CALLS)
def test_other_sizes_and_positions_are_not_compiled_again(name, dynamic):
    """Automatically, PyTorch compiles the first sizes alone, and then all others once."""
    function, all_arguments = CALLS[name]
    program = posing_gpu.Program(function, dynamic=dynamic)
    for arguments in all_arguments:
        with posing_gpu.posing():
            ys = program.run(*arguments)
        assert_same(ys, function(*arguments))
    assert len(program.graphs) <= (1 if dynamic else 2)
    assert all("rope_array" not in name for operators in program.operators() for name in operators)


def test_an_equal_rope_is_compiled_as_often_as_on_the_cpu():
    arguments = [(*q_and_k(), POS, ra.RoPE(16, base=9.0)) for _ in range(3)]
    by_rope = lambda q, k, pos, rope: rotate_by(rope)(q, k, pos)  # noqa: E731
    counts = []
    for enter in (posing_gpu.posing, contextlib.nullcontext):
        torch._dynamo.reset()
        program = posing_gpu.Program(by_rope)
        with enter():
            for call in arguments:
                program.run(*call)
        counts.append(len(program.graphs))
    assert counts[0] <= counts[1]


# ---- modes ----

MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("name", MODES)
def test_modes(name):
    xs = [x.requires_grad_() for x in q_and_k()]
    program = posing_gpu.Program(rotate)
    with MODES[name]():
        with posing_gpu.posing():
            ys = program.run(*xs, POS)
        assert_same(tuple(y.detach() for y in ys), tuple(y.detach() for y in rotate(*xs, POS)))
    assert [y.requires_grad for y in ys] == [name == "autocast"] * 2
    assert program.operators() == [ONCE]


@pytest.mark.parametrize(("follows_norm", "launches"), [(False, ONCE), (True, {})])
def test_a_patched_model_launches_unless_a_norm_precedes(follows_norm, launches, monkeypatch):
    """After a norm the compiler fuses PyTorch's operations with it."""
    monkeypatch.setattr(_operators, "_has_kernel", lambda device: True)
    cos, sin = HALF.rotation(POS, like=torch.ones(1))
    tables = Tables(cos, sin, HALF._plan.layout)
    program = posing_gpu.Program(lambda q, k: _operators.rotate_by_operator((q, k), tables, -3, follows_norm))
    gs, xs = q_and_k("bfloat16"), tuple(x.requires_grad_() for x in q_and_k("bfloat16"))
    with posing_gpu.posing():
        ys = program.run(*xs)
    expected = rotate(*xs, POS)
    assert_same(tuple(y.detach() for y in ys), tuple(y.detach() for y in expected))
    assert_same(torch.autograd.grad(ys, xs, gs), torch.autograd.grad(expected, xs, gs))
    assert program.operators() == [launches] * 2


def test_training_after_inference():
    """The constants of a call in inference mode are saved for a backward later."""
    rope, (x, _) = ra.RoPE(16, base=77.0), q_and_k()
    with torch.inference_mode():
        rope.apply(x, POS, seq_axis=-3, backend="triton")
    recorded = x.clone().requires_grad_()
    with posing_gpu.posing():
        y = posing_gpu.Program(lambda x, pos: rope.apply(x, pos, seq_axis=-3)).run(recorded, POS)
    expected = torch.autograd.grad(rope.apply(recorded, POS, seq_axis=-3), recorded, x)
    assert_same(torch.autograd.grad(y, recorded, x), expected)


# ---- calls whose launch is not shown ----


def compiled_with(function, *arguments):
    """Compile and call a function; return its result, and the operators of its graph."""
    program = posing_gpu.Program(function)
    with posing_gpu.posing():
        y = program.run(*arguments)
    (operators,) = program.operators()
    return y, operators


def test_sizes_that_depend_on_values():
    """No size may be compared with a number: an operator runs."""
    x, mask = normal(7, 16), torch.tensor([1, 0, 1, 1, 0, 0, 1])

    def rotate_some(x, mask):
        chosen = mask.nonzero().squeeze(-1)
        return HALF.apply(x[chosen], chosen)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        y, operators = compiled_with(rotate_some, x, mask)
    assert operators == BY_OPERATOR
    assert_same((y,), (rotate_some(x, mask),))


HIDDEN = {
    "AMD": (torch.version, "hip", "6.4"),  # whose compiler fuses what an instruction of NVIDIA's keeps apart
    "a PyTorch without wrap_triton": (_triton_traced, "_WRAP", None),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_an_operator_runs_where_a_launch_cannot_be_shown(name, monkeypatch):
    monkeypatch.setattr(*HIDDEN[name])
    ys, operators = compiled_with(rotate, *q_and_k(), POS)
    assert operators == BY_OPERATOR
    assert_same(ys, rotate(*q_and_k(), POS))


@pytest.mark.parametrize("make", [torch._neg_view, lambda x: torch._efficientzerotensor(x.shape)])
def test_lazy_arrays_are_in_memory_when_a_launch_reads_them(make):
    """PyTorch copies a lazily negated array, or zeros without memory, before it traces the operator."""
    q, k = q_and_k()
    ys, operators = compiled_with(lambda q, k, pos: rotate(make(q), k, pos), q, k, POS)
    assert operators == ONCE
    assert_same(ys, rotate(make(q).clone(), k, POS))


def in_place(q, k, pos):
    q, k = 2 * q, 2 * k
    return HALF.apply((q, k), pos, seq_axis=-3, out=(q, k))


def into_cache(q, k, pos):
    cache = k.new_zeros(8, 2, 16), k.new_zeros(8, 2, 16)
    slots = torch.arange(5)
    options = dict(v=k[0], cache=cache, slots=slots, norm=(None, None), seq_axis=-3)
    q, k, _ = ra.attention_inputs(q[0], k[0], pos, HALF, **options)
    return (q, k, *cache)


@pytest.mark.parametrize(("function", "name"), [(in_place, "rotate_at_"), (into_cache, "attention_at_")])
def test_writes_are_an_operator(function, name):
    ys, operators = compiled_with(function, *q_and_k(), POS)
    assert operators == {f"rope_array.{name}.default": 1}
    assert_same(tuple(ys), tuple(function(*q_and_k(), POS)))


def test_transforms_inside_are_operations():
    def both(q, k, pos):
        gradient = torch.func.grad(lambda q: rotate(q, k, pos)[0].square().sum())(q)
        return gradient, *torch.func.vmap(lambda q, k: rotate(q, k, pos))(q[None], k[None])

    ys, operators = compiled_with(both, *q_and_k(), POS)
    assert operators == {}
    assert_same(ys, both(*q_and_k(), POS))


@pytest.mark.parametrize("strict", [False, True], ids=["by calls", "by Dynamo"])
def test_an_exported_program_has_operations(strict):
    class Model(torch.nn.Module):
        def forward(self, q, k, pos):
            return rotate(q, k, pos)

    with posing_gpu.posing():
        program = torch.export.export(Model(), (*q_and_k(), POS), strict=strict)
    assert posing_gpu.operators_of(program.graph_module) == {}
    assert_same(program.module()(*q_and_k(), POS), rotate(*q_and_k(), POS))


# ---- the tests themselves ----


@pytest.mark.parametrize("mutant", TRACED_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_is_found(mutant, monkeypatch, tmp_path):
    """Each fault, put into the sources, fails the case that it names."""
    with installed(mutant, monkeypatch, tmp_path), pytest.raises(AssertionError):
        CASES[mutant.test].check()
