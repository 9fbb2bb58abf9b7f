"""PyTorch: eager, compiled, transformed, exported and faked, the result is the same."""

import copy
import functools
import logging
import pickle
import shutil

import child
import compare
import numpy as np
import pytest
from compare import judge, same

import rope_array as ra
from rope_array.testing import apply_definition, rotation_matrix
from rope_array.testing._contract import allowed, assert_contract, compute_dtype, eps

torch = pytest.importorskip("torch")
normal = functools.partial(compare.normal, "torch")
pytestmark = pytest.mark.library("torch")

FIELDS = {
    "plain": {},
    "half": {"pairing": "half", "base": 500_000.0},
    "partial": {"pairing": "half", "rotary_dim": 8, "rotary_start": 4, "attention_factor": 1.25},
    "mixed": {"pairing": "interleaved", "out_pairing": "half", "rotary_dim": 12},
}
ROPE = ra.RoPE(16, base=500_000.0, pairing="half")
OTHER = ra.RoPE(16, base=77.0, rotary_dim=8, rotary_start=4, attention_factor=1.25)
LENGTHS = (3, 4, 5, 9, 17, 100, 1)


# Parts of torch that are loaded late use what torch has deprecated.
torch_uses_its_own_script = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")


# ---- torch.compile ----


@pytest.fixture
def compile_counting(monkeypatch):
    """torch.compile without graph breaks, whose backend runs each operation as it is and counts graphs."""
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
    "rope": lambda x, pos: ROPE.apply(x, pos),
    "front door": lambda x, pos: ra.apply(x, pos, ROPE, inverse=True),
    "inline": lambda x, pos: ra.apply(x, pos, base=123.0, pairing="half", rotary_dim=8),
    "plain": lambda x, pos: ra.apply(x, pos),
    "float32 angles": lambda x, pos: ra.apply(x, pos, angles="float32"),
    "positions made inside": lambda x, pos: ROPE.apply(x, torch.arange(5, 5 + x.shape[-2])),
    "two ropes": lambda x, pos: ROPE.apply(x, pos) + OTHER.apply(x, pos),
    "tuple": lambda x, pos: ROPE.apply((x, x[:1].bfloat16(), x.double()), pos),
    "seq_axis": lambda x, pos: ROPE.apply(x.transpose(0, 1), pos, seq_axis=-3),
    "rotation": made_inside,
    "float positions": lambda x, pos: ROPE.apply(x, pos + 0.25),
    "one position each": lambda x, pos: ROPE.apply(x, pos[None] + torch.arange(2)[:, None]),
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


@pytest.mark.parametrize("start", [0, 5, -7, 2**31 - 3])
def test_compiled_over_offsets(start, compile_counting):
    compiled, counter = compile_counting(lambda x, pos: ROPE.apply(x, pos))
    x = normal(2, 1, 16)
    for offset in range(start, start + 20):
        y = compiled(x, offset)
        assert same(y, ROPE.apply(x, offset))
        if offset < 2**31:
            judge(y, x, offset, pairing="half", base=500_000.0)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("start", [0.0, -1e6])
def test_compiled_over_float_offsets(start, compile_counting):
    compiled, counter = compile_counting(lambda x, pos: ROPE.apply(x, pos))
    x = normal(2, 1, 16)
    for step in range(20):
        assert same(compiled(x, start + 0.75 * step), ROPE.apply(x, start + 0.75 * step))
    assert counter.frame_count <= 2


def test_compiled_with_a_range_and_a_list(compile_counting):
    # Each length is compiled: Dynamo makes a constant of any range and of a list's length.
    function = lambda x: (ROPE.apply(x, range(5, 5 + x.shape[-2])), ROPE.apply(x, [0, 2, 0.5]))  # noqa: E731
    compiled, _ = compile_counting(function)
    assert same(compiled(normal(2, 3, 16)), function(normal(2, 3, 16)))


def test_compiled_decoding_loop(compile_counting):
    # A prompt, then one token at a time: a length and an offset that both change.
    compiled, counter = compile_counting(lambda q, k, pos: ROPE.apply((q, k), pos, seq_axis=1))
    for length, offset in [(7, 0), (1, 7), (1, 8), (1, 9), (1, 10), (12, 11), (1, 23), (1, 24)]:
        q, k = normal(2, length, 4, 16), normal(2, length, 1, 16)
        pos = torch.arange(offset, offset + length)
        assert same(compiled(q, k, pos), ROPE.apply((q, k), pos, seq_axis=1))
    assert counter.frame_count <= 3


def test_a_second_rope_compiles_nothing_more(compile_counting):
    first, counter = compile_counting(lambda x, pos: ROPE.apply(x, pos))
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

    assert same(first(x, pos), ROPE.apply(x, pos))
    assert same(first(x, 3), ROPE.apply(x, 3))
    assert same(inline(x, pos), ra.apply(x, pos, base=31.0))
    assert (counter.frame_count, inline_counter.frame_count) == before


def test_ropes_take_turns_in_one_function(compile_counting):
    # A model with local and global layers: one compiled layer, two ropes.
    class Layer(torch.nn.Module):
        def __init__(self, rope):
            super().__init__()
            self.rope = rope

        def forward(self, x, pos):
            return self.rope.apply(x, pos)

    x, pos = normal(2, 5, 16), torch.arange(5)
    layers = [Layer(rope) for rope in (ROPE, OTHER)]
    compiled, counters = zip(*map(compile_counting, layers), strict=True)
    for _ in range(3):
        for layer, run in zip(layers, compiled, strict=True):
            assert same(run(x, pos), layer(x, pos))
    assert sum(counter.frame_count for counter in counters) <= 2


def test_compiled_with_a_rotation_as_argument(compile_counting):
    compiled, counter = compile_counting(lambda x, rotation: rotation.apply(x))
    for length in LENGTHS:
        x = normal(2, length, 16)
        rotation = ROPE.rotation(torch.arange(length), like=x)
        assert same(compiled(x, rotation), ROPE.apply(x, torch.arange(length)))
    assert counter.frame_count <= 3


def test_compiled_that_returns_a_rotation(compile_counting):
    compiled, _ = compile_counting(lambda x, pos: ROPE.rotation(pos, like=x))
    x, pos = normal(2, 5, 16), torch.arange(5)
    rotation = compiled(x, pos)
    turned, truth = rotation.apply(x), ROPE.apply(x, pos)
    assert type(rotation) is ra.Rotation
    assert same(turned, truth)
    judge(rotation.inverse().apply(turned), truth, pos, inverse=True, pairing="half", base=500_000.0)


def test_compiled_under_autocast_and_no_grad(compile_counting):
    def function(x, pos):
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            return ROPE.apply(x, pos)

    compiled, _ = compile_counting(function)
    x, pos = normal(2, 5, 16), torch.arange(5)
    assert same(compiled(x, pos), ROPE.apply(x, pos))


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


@pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++", "cl"))), reason="needs a C++ compiler"
)
@torch_uses_its_own_script
def test_inductor_keeps_the_contract():
    torch._dynamo.reset()

    def function(q, k, pos):
        return ROPE.apply((q, k), pos)

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
    import torch._inductor.config  # noqa: what they warn of is their own
    from torch._dynamo.testing import CompileCounter
    import rope_array as ra

    warnings.simplefilter("error")
    assert not any(name.startswith("rope_array._backends.") for name in sys.modules)
    ROPE = ra.RoPE(16, pairing="half")
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
    "made inside": "lambda x, pos: ROPE.rotation(pos, like=x).apply(x)",
}


@pytest.mark.parametrize("name", FIRST_USES)
def test_the_first_use_may_be_compiled(name):
    script = COLD.format(function=FIRST_USES[name])
    if name == "inline":
        # What comes into the process later compiles nothing again: other libraries, specs, dtypes.
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


# ---- gradients and transforms ----


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_gradient_is_the_adjoint(fields, dtype):
    x, weight = normal(2, 5, 16, dtype=dtype).requires_grad_(), normal(2, 5, 16, dtype=dtype, seed=1)
    pos = torch.tensor([0, 1, -5, 2**31 - 1, -(2**31)])
    y = ra.apply(x, pos, **fields)
    judge(y, x, pos, **fields)
    (gradient,) = torch.autograd.grad(y, x, weight)
    # The adjoint is the inverse of the rotation by the reciprocal amplitude.
    adjoint = fields | {"attention_factor": 1 / fields.get("attention_factor", 1.0)}
    judge(gradient, weight, pos, inverse=True, **adjoint)


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_gradcheck_of_x_and_positions(fields):
    x = normal(2, 6, 16, dtype=torch.float64).requires_grad_()
    pos = torch.tensor([0.0, 0.25, 0.5, -1.5, 7.75, 1000.3], dtype=torch.float64).requires_grad_()

    def function(x, pos):
        return ra.apply(x, pos, **fields)

    assert torch.autograd.gradcheck(function, (x, pos))
    assert torch.autograd.gradgradcheck(function, (x, pos))


def test_gradcheck_of_integer_positions():
    x = normal(2, 3, 16, dtype=torch.float64).requires_grad_()
    pos = torch.tensor([0, -3, 2**31 - 1])
    assert torch.autograd.gradcheck(lambda x: OTHER.apply(x, pos), x)
    assert torch.autograd.gradgradcheck(lambda x: OTHER.apply(x, pos), x)


def test_gradcheck_of_learned_frequencies():
    x = normal(2, 3, 16, dtype=torch.float64).requires_grad_()
    omegas = torch.tensor(OTHER.frequencies, dtype=torch.float64).requires_grad_()
    pos = torch.tensor([0.5, 1.0, -3.25], dtype=torch.float64).requires_grad_()

    def function(x, pos, omegas):
        return OTHER.rotation(pos, like=x, inv_freq=omegas).apply(x)

    assert torch.autograd.gradcheck(function, (x, pos, omegas))
    assert torch.autograd.gradgradcheck(function, (x, pos, omegas))
    assert torch.autograd.gradcheck(lambda x, w: function(x, torch.arange(3), w), (x, omegas))


def test_gradient_of_float32_positions():
    # dy/dpos = ω·J·y with J a quarter turn of every pair.
    pos = torch.tensor([0.0, 0.3, 123456.5], requires_grad=True)
    x, weight = normal(3, 16), normal(3, 16, seed=1)
    (gradient,) = torch.autograd.grad(ra.apply(x, pos), pos, weight)
    y = apply_definition(x.double().numpy(), pos.detach().numpy())
    turned = np.stack([-y[:, 1::2], y[:, ::2]], axis=-1).reshape(3, 16)
    omegas = np.repeat(ra.RoPE(16).frequencies, 2)
    exact = (turned * omegas * weight.double().numpy()).sum(-1)
    np.testing.assert_allclose(gradient.numpy(), exact, atol=1e-5)


@torch_uses_its_own_script
@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("transform", ["jacrev", "jacfwd"])
def test_jacobian_is_the_matrix(transform, fields):
    x, pos = normal(16), 12345
    jacobian = getattr(torch.func, transform)(lambda x: ra.apply(x, pos, **fields))(x)
    matrix = rotation_matrix(pos, head_dim=16, **fields)
    np.testing.assert_allclose(jacobian.numpy(), matrix, atol=2.5e-7)


@torch_uses_its_own_script
def test_func_grad_vjp_jvp_hessian():
    x, weight, pos = normal(2, 5, 16), normal(2, 5, 16, seed=1), torch.arange(5)
    truth = ROPE.rotation(pos, like=x).adjoint().apply(weight)
    judge(truth, weight, pos, inverse=True, base=500_000.0, pairing="half")
    assert same(torch.func.grad(lambda x: (ROPE.apply(x, pos) * weight).sum())(x), truth)
    y, pullback = torch.func.vjp(lambda x: ROPE.apply(x, pos), x)
    assert same(y, ROPE.apply(x, pos))
    assert same(pullback(weight)[0], truth)
    y, tangent = torch.func.jvp(lambda x: ROPE.apply(x, pos), (x,), (weight,))
    assert same(y, ROPE.apply(x, pos))
    assert same(tangent, ROPE.apply(weight, pos))
    hessian = torch.func.hessian(lambda x: (OTHER.apply(x, 3) ** 2).sum() / 2)(x[0, 0])
    matrix = rotation_matrix(
        3, head_dim=16, base=77.0, rotary_dim=8, rotary_start=4, attention_factor=OTHER.amplitude
    )
    np.testing.assert_allclose(hessian.numpy(), matrix.T @ matrix, atol=1e-6)


def test_vmap():
    x, pos = normal(3, 2, 5, 16), torch.arange(15).reshape(3, 5)
    truth = ROPE.apply(x, pos)
    judge(truth, x, pos, base=500_000.0, pairing="half")
    vmap = torch.func.vmap
    assert same(vmap(ROPE.apply)(x, pos), truth)
    assert same(vmap(ROPE.apply, in_dims=(1, None), out_dims=1)(x, pos), truth)
    assert same(vmap(vmap(ROPE.apply))(x.transpose(1, 2), pos).transpose(1, 2), truth)
    shared = ROPE.rotation(pos[0], like=x)
    assert same(
        vmap(lambda rotation, x: rotation.apply(x), in_dims=(None, 0))(shared, x), ROPE.apply(x, pos[0])
    )
    rotations = ROPE.rotation(pos, like=x)
    assert same(vmap(lambda rotation, x: rotation.apply(x))(rotations, x), truth)
    assert same(vmap(lambda x: ROPE.apply(x, 7))(x), ROPE.apply(x, 7))
    assert same(vmap(lambda x: ROPE.apply(x, [0, 1, 2, 3, 0.5]))(x), ROPE.apply(x, [0, 1, 2, 3, 0.5]))


def test_vmap_of_gradients():
    x, pos = normal(3, 5, 16), torch.arange(15).reshape(3, 5)
    per_sample = torch.func.vmap(torch.func.grad(lambda x, pos: ROPE.apply(x, pos).sum()))(x, pos)
    each = [torch.func.grad(lambda x, p=p: ROPE.apply(x, p).sum())(a) for a, p in zip(x, pos, strict=True)]
    assert same(per_sample, torch.stack(each))


def test_functionalize():
    x, pos = normal(2, 5, 16), torch.arange(5)
    assert same(torch.func.functionalize(ROPE.apply)(x, pos), ROPE.apply(x, pos))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    from torch.utils.checkpoint import checkpoint

    x, pos = normal(2, 5, 16), torch.arange(5)
    grads = []
    for run in (
        lambda x: checkpoint(lambda x: ROPE.apply(x, pos) ** 3, x, use_reentrant=reentrant),
        lambda x: ROPE.apply(x, pos) ** 3,
    ):
        leaf = x.clone().requires_grad_()
        run(leaf).sum().backward()
        grads.append(leaf.grad)
    assert same(*grads)


# ---- export and tracing ----


class Attention(torch.nn.Module):
    def __init__(self, rope=ROPE):
        super().__init__()
        self.rope = rope
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x, pos):
        return self.rope.apply(x, pos)


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_export_with_a_dynamic_length(strict):
    length = torch.export.Dim("length", min=2, max=4096)
    arguments = normal(2, 3, 5, 16), torch.arange(5)
    program = torch.export.export(
        Attention(), arguments, dynamic_shapes=({2: length}, {0: length}), strict=strict
    )
    for size in (2, 77):
        x, pos = normal(2, 3, size, 16), torch.arange(size) * 9_999_991
        assert same(program.module()(x, pos), ROPE.apply(x, pos))
    assert not any("float64" in str(node.meta.get("val")) for node in program.graph.nodes)


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_export_with_a_dynamic_offset(strict):
    class Step(torch.nn.Module):
        def forward(self, x, pos: int):
            return ROPE.apply(x, pos)

    x = normal(2, 1, 16)
    program = torch.export.export(
        Step(), (x, 3), dynamic_shapes=({}, torch.export.Dim.DYNAMIC), strict=strict
    )
    for offset in (3, 77, 2**31 - 1):
        assert same(program.module()(x, offset), ROPE.apply(x, offset))


def test_export_with_positions_made_inside():
    class Prompt(torch.nn.Module):
        def forward(self, x):
            return ROPE.apply(x, torch.arange(x.shape[-2]))

    length = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(Prompt(), (normal(2, 5, 16),), dynamic_shapes=({1: length},))
    x = normal(2, 77, 16)
    assert same(program.module()(x), ROPE.apply(x, range(77)))


def test_export_with_a_rotation_as_argument():
    class Layer(torch.nn.Module):
        def forward(self, x, rotation):
            return rotation.apply(x)

    x = normal(2, 5, 16)
    rotation = ROPE.rotation(range(5), like=x)
    program = torch.export.export(Layer(), (x, rotation))
    other = ROPE.rotation(range(7, 12), like=x)
    assert same(program.module()(x, other), ROPE.apply(x, range(7, 12)))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode):
    from torch.fx.experimental.proxy_tensor import make_fx

    x, pos = normal(2, 5, 16), torch.arange(5)
    graph = make_fx(lambda x, pos: ROPE.apply(x, pos), tracing_mode=mode)(x, pos)
    length = 9 if mode == "symbolic" else 5
    x, pos = normal(2, length, 16, seed=1), torch.arange(length) * 1_234_567
    assert same(graph(x, pos), ROPE.apply(x, pos))


def rotate_by(pos, x):
    return ROPE.apply(x, pos)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_of_positions_on_the_host(mode):
    from torch.fx.experimental.proxy_tensor import make_fx

    x = normal(2, 3, 16)
    for pos in (7, 0.5, range(3), [0, 2.5, 9]):
        graph = make_fx(functools.partial(rotate_by, pos), tracing_mode=mode)(x)
        assert same(graph(-x), ROPE.apply(-x, pos))


# ---- modes ----


def test_autocast_and_matmul_precision_change_nothing():
    x, pos = normal(2, 5, 16), torch.tensor([0, 1, 257, 123457, 2**31 - 1])
    cases = {
        "rope": lambda: ROPE.apply(x, pos),
        "float": lambda: ROPE.apply(x, pos.float() + 0.5),
        "learned": lambda: ROPE.rotation(pos, like=x, inv_freq=torch.tensor(ROPE.frequencies)).apply(x),
        "half": lambda: ROPE.apply(x.bfloat16(), pos),
    }
    truth = {name: run() for name, run in cases.items()}
    judge(truth["rope"], x, pos, base=500_000.0, pairing="half")
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("medium", "high"):
            torch.set_float32_matmul_precision(precision)
            for dtype in (torch.bfloat16, torch.float16):
                with torch.autocast("cpu", dtype=dtype):
                    for name, run in cases.items():
                        assert same(run(), truth[name]), name
    finally:
        torch.set_float32_matmul_precision(before)


def test_inference_mode_leaves_nothing_behind():
    x, pos = normal(2, 5, 16), torch.arange(5)
    rope = ra.RoPE(16, base=222.0)
    with torch.inference_mode():
        y = rope.apply(x, pos)
        inline = ra.apply(x, pos, base=223.0)
        assert y.is_inference()
    leaf = x.clone().requires_grad_()
    assert same(rope.apply(leaf, pos), y)
    rope.apply(leaf, pos).sum().backward()
    assert same(ra.apply(leaf, pos, base=223.0), inline)
    ra.apply(leaf, pos, base=223.0).sum().backward()


def test_no_grad():
    x, pos = normal(2, 5, 16).requires_grad_(), torch.arange(5)
    with torch.no_grad():
        y = ROPE.apply(x, pos)
    assert not y.requires_grad
    assert same(y, ROPE.apply(x, pos))


POSITIONS = {
    "int": 7,
    "float": 2.5,
    "range": range(3, 8),
    "list": [0, 1, 2, 3, 4],
    "list of floats": [0, 1.5, 2, 3, 4],
    "tensor": torch.arange(5),
    "tensor of floats": torch.arange(5) + 0.25,
}


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_default_dtype_and_device_change_nothing(name, dtype):
    x, pos = normal(2, 5, 16, dtype=dtype), POSITIONS[name]
    truth, cos = ROPE.apply(x, pos), ROPE.rotation(pos, like=x).cos
    judge(truth, x, pos, base=500_000.0, pairing="half")
    assert compare.name_of(cos.dtype) == compute_dtype(compare.name_of(x.dtype))
    try:
        for default in (torch.float64, torch.float16):
            torch.set_default_dtype(default)
            assert same(ROPE.apply(x, pos), truth)
            assert same(ROPE.rotation(pos, like=x).cos, cos)
    finally:
        torch.set_default_dtype(torch.float32)
    try:
        torch.set_default_device("meta")
        assert same(ROPE.apply(x, pos), truth)
        assert same(ROPE.rotation(pos, like=x).cos, cos)
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("name", POSITIONS)
def test_meta(name):
    x, pos = normal(2, 3, 5, 16, dtype=torch.bfloat16).to("meta"), POSITIONS[name]
    pos = pos.to("meta") if isinstance(pos, torch.Tensor) else pos
    for y in (ROPE.apply(x, pos), OTHER.rotation(pos, like=x).apply(x), ra.apply(x, pos, rotary_dim=0)):
        assert (y.device.type, y.dtype, y.shape) == ("meta", x.dtype, x.shape)


def test_two_devices_are_refused():
    with pytest.raises(ra.ArrayTypeError, match=r"pos is on cpu and x on meta"):
        ROPE.apply(normal(5, 16).to("meta"), torch.arange(5))
    with pytest.raises(ra.ArrayTypeError, match=r"meta"):
        ROPE.apply((normal(5, 16), normal(5, 16).to("meta")), 3)


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("inside", [True, False])
def test_fake_tensors(name, inside):
    from torch._subclasses import FakeTensor, FakeTensorMode

    mode, pos = FakeTensorMode(), POSITIONS[name]
    x = mode.from_tensor(normal(2, 3, 5, 16, dtype=torch.bfloat16))
    pos = mode.from_tensor(pos) if isinstance(pos, torch.Tensor) else pos

    def check():
        for y in (
            ROPE.apply(x, pos),
            OTHER.rotation(pos, like=x).apply(x),
            ROPE.apply((x, x.double()), pos)[0],
        ):
            assert isinstance(y, FakeTensor)
            assert (y.device.type, y.dtype, y.shape) == ("cpu", x.dtype, x.shape)

    if inside:
        with mode:
            check()
    else:
        check()
    # Nothing fake is kept for real tensors.
    assert not isinstance(ROPE.apply(normal(2, 5, 16), 3), FakeTensor)


# ---- tensors of every kind ----


def test_parameter_gives_a_plain_tensor():
    x = normal(2, 5, 16)
    parameter = torch.nn.Parameter(x.clone())
    y = ROPE.apply(parameter, torch.arange(5))
    assert type(y) is torch.Tensor
    assert y.requires_grad
    assert same(y.detach(), ROPE.apply(x, torch.arange(5)))
    positions = torch.nn.Parameter(torch.arange(5.0))
    assert ROPE.apply(x, positions).requires_grad
    identity = ra.apply(parameter, 3, rotary_dim=0)
    assert type(identity) is torch.Tensor
    (gradient,) = torch.autograd.grad(identity.sum(), parameter)
    assert same(gradient, torch.ones_like(x))


def test_subclass_gives_right_values():
    class Named(torch.Tensor):
        pass

    x = normal(2, 5, 16)
    y = ROPE.apply(x.as_subclass(Named), torch.arange(5))
    assert same(y.as_subclass(torch.Tensor), ROPE.apply(x, torch.arange(5)))


LAYOUTS = {
    "stride 0": lambda: normal(1, 5, 16).expand(3, 5, 16),
    "stride 0 in the sequence": lambda: normal(3, 1, 16).expand(3, 5, 16),
    "stride 0 in the features": lambda: normal(3, 5, 1).expand(3, 5, 16),
    "flipped": lambda: normal(3, 5, 16).flip(1, 2),
    "transposed": lambda: normal(16, 5, 3).permute(2, 1, 0),
    "every second": lambda: normal(6, 10, 32)[::2, 1::2, ::2],
    "offset": lambda: normal(4, 7, 19)[1:, 2:, 3:],
    "diagonal": lambda: normal(5, 16, 5).diagonal(dim1=0, dim2=2).T.expand(3, 5, 16),
    "channels last": lambda: normal(3, 2, 5, 16).contiguous(memory_format=torch.channels_last),
    "negated view": lambda: torch.complex(normal(3, 5, 16), normal(3, 5, 16, seed=1)).conj().imag,
    "part of complex": lambda: torch.complex(normal(3, 5, 16), normal(3, 5, 16, seed=1)).real,
    "empty batch": lambda: normal(0, 5, 16),
    "one element": lambda: normal(1, 1, 16),
    "one vector each": lambda: normal(7, 1, 5, 16)[:, 0],
}


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name, fields):
    x = LAYOUTS[name]()
    version, bits = x._version, x.resolve_neg().clone(memory_format=torch.contiguous_format)
    pos = torch.arange(x.shape[-2]) * 1_000_003
    y = ra.apply(x, pos, **fields)
    assert same(y, ra.apply(bits, pos, **fields))
    judge(y, x.resolve_neg(), pos, **fields)
    every_second = torch.arange(2 * x.shape[-2])[::2]
    assert same(ra.apply(x, every_second, **fields), ra.apply(bits, every_second.clone(), **fields))
    assert x._version == version
    assert torch.equal(x, bits)


def test_zero_size():
    for shape in ((0, 16), (2, 0, 16), (0, 3, 16)):
        x = normal(*shape).requires_grad_()
        for pos in (3, range(shape[-2]), torch.arange(shape[-2]), torch.zeros(1)):
            y = ROPE.apply(x, pos)
            assert (y.shape, y.dtype) == (x.shape, x.dtype)
            y.sum().backward()


def storages(tensors):
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rotary_dim", [0, 2, 16])
@pytest.mark.parametrize("pos", [0, torch.zeros(5), torch.arange(5)], ids=["0", "floats", "tensor"])
def test_result_never_aliases(pos, rotary_dim, dtype):
    x = normal(3, 5, 16, dtype=dtype)
    bits = x.clone()
    rope = ra.RoPE(16, rotary_dim=rotary_dim)
    ys = [*rope.apply((x, x, x[:1]), pos), rope.apply(x, pos), rope.apply(x, pos, inverse=True)]
    ys += [rope.rotation(pos, like=x).apply(x), rope.apply(x, pos, backend="array-api")]
    assert len(storages([x, *ys])) == 1 + len(ys)
    assert x._version == 0
    for y in ys:
        y.fill_(7.0)
    assert torch.equal(x, bits)


def test_tables_alias_no_positions():
    pos = torch.zeros(5)
    rotation = ROPE.rotation(pos, like=normal(5, 16))
    assert len(storages([pos, rotation.cos, rotation.sin])) == 3


def test_dtypes_and_heads_in_a_tuple():
    pos = torch.tensor([[0, 5, 10**6, -3, 2**31 - 1]])
    dtypes = (torch.float16, torch.float64, torch.bfloat16, torch.float32)
    xs = tuple(normal(2, heads, 5, 16, dtype=d) for heads, d in zip((8, 1, 2, 3), dtypes, strict=True))
    ys = ROPE.apply(xs, pos)
    for x, y in zip(xs, ys, strict=True):
        judge(y, x, pos, base=500_000.0, pairing="half")
        assert same(y, ROPE.apply(x, pos))
    shared = ROPE.rotation(pos, like=xs[1]).apply(xs)
    for x, y in zip(xs, shared, strict=True):
        exact = apply_definition(x.double().numpy(), pos.numpy(), base=500_000.0, pairing="half")
        # Tables of float64, narrowed to float32: half an ulp more.
        bound = allowed(x.double().numpy(), compare.name_of(x.dtype), {"pairing": "half"}, exact=exact)
        assert (np.abs(y.double().numpy() - exact) <= bound + eps("float32")).all()


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"])
def test_positions_of_every_integer_dtype(dtype):
    info = torch.iinfo(getattr(torch, dtype))
    numbers = [0, 1, max(info.min, -(2**31)), min(info.max, 2**32 - 1), info.max // 3 % 2**31]
    pos = torch.tensor(numbers, dtype=getattr(torch, dtype))
    x = normal(2, 5, 16)
    exact = apply_definition(x.double().numpy(), numbers)
    assert_contract(ra.apply(x, pos).numpy(), x.numpy(), numbers, exact=exact)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "bool", "uint64", "complex64"])
def test_refused_positions(dtype):
    pos = torch.ones(5).to(getattr(torch, dtype))
    with pytest.raises(ra.ArrayTypeError, match=f"pos is {dtype}"):
        ROPE.apply(normal(2, 5, 16), pos)


def test_refused_tensors():
    x = normal(2, 5, 16)
    with pytest.raises(ra.ArrayTypeError, match="nested"):
        ROPE.apply(torch.nested.as_nested_tensor([x[0], x[1, :3]], layout=torch.jagged), 3)
    with pytest.raises(ra.ArrayTypeError, match="to_dense"):
        ROPE.apply(x.to_sparse(), 3)
    with pytest.raises(ra.ArrayTypeError, match=r"torch\.as_tensor"):
        ROPE.apply(x, np.arange(5))
    with pytest.raises(ra.ArrayTypeError, match="real floating point"):
        ROPE.apply(x.to(torch.complex64), 3)
    with pytest.raises(ra.ArrayTypeError, match="real floating point"):
        ROPE.apply(x.int(), 3)


def test_thread_count_changes_no_bits():
    x, pos = normal(8, 300, 128), torch.arange(300) * 7_000_001
    rope, threads = ra.RoPE(128, pairing="half"), torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(rope.apply(x, pos))
    finally:
        torch.set_num_threads(threads)
    assert same(results[0], results[1])
    assert same(results[0], results[2])
    rows = torch.cat([rope.apply(x[:, i : i + 1], pos[i : i + 1]) for i in range(0, 300, 23)], dim=1)
    assert same(rows, results[0][:, ::23])


def test_module_with_a_rope_is_copied_and_pickled():
    module = Attention()
    x, pos = normal(2, 5, 16), torch.arange(5)
    copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), module.to(torch.float64)]
    for other in copies:
        assert other.rope == ROPE
        assert hash(other.rope) == hash(ROPE)
        assert same(other(x, pos), ROPE.apply(x, pos))
    assert list(module.state_dict()) == ["linear.weight", "linear.bias"]
    assert not list(module.buffers())


def test_rotation_is_a_tree():
    from torch.utils import _pytree

    x, pos = normal(2, 5, 16), torch.arange(5)
    rotation = OTHER.rotation(pos, like=x)
    leaves, spec = _pytree.tree_flatten(rotation)
    assert [leaf.shape for leaf in leaves] == [(5, 4), (5, 4)]
    again = _pytree.tree_unflatten([leaf.clone() for leaf in leaves], spec)
    assert same(again.inverse().apply(x), rotation.inverse().apply(x))
    assert spec != _pytree.tree_flatten(ROPE.rotation(pos, like=x))[1]
    moved = pickle.loads(pickle.dumps(rotation))
    assert same(moved.apply(x), rotation.apply(x))


# ---- DTensor ----


@pytest.mark.parametrize("rank", [1, 3])
def test_dtensor(rank):
    # In a process of its own for each rank: torch keeps what it learned of a mesh, and so of a rank.
    if not torch.distributed.is_available():
        pytest.skip("this build of torch has no torch.distributed")
    child.run("import dtensor_cases; dtensor_cases.main()", str(rank))


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize(
    "rule", [lambda: ra.Llama3(factor=32.0), lambda: ra.Linear(4.0), lambda: ra.Periods(1.0, 2.0)]
)
def test_rules_made_inside_a_compiled_function_are_refused(rule, fullgraph):
    """Dynamo hands them over without their fields: the class's defaults would be rotated by."""
    torch._dynamo.reset()

    def of(x):
        return ra.apply(x, torch.arange(5), scaling=rule())

    compiled = torch.compile(of, fullgraph=fullgraph, backend="aot_eager")
    with pytest.raises(Exception, match="make it outside"):
        compiled(torch.ones(5, 16))


def test_axes_decode_without_compiling_anew(compile_counting):
    rope, x = ra.RoPE(16, axes=ra.Axes.chunked(4, 2, 2)), torch.ones(1, 2, 1, 16)

    def of(x, start):
        return rope.apply(x, ra.positions.text(ra.positions.offset(1, start, like=x)))

    compiled, counter = compile_counting(of)
    for start in range(5, 15):
        assert same(compiled(x, start), of(x, start))
    assert counter.frame_count <= 2
