"""PyTorch's gate: what the kernel does not serve goes to the core, and nothing is lost by what it serves."""

import contextlib
import copy
import functools
import os
import pickle
import threading

import child
import numpy as np
import pytest

import rope_array as ra
from rope_array._backends import _native
from rope_array.testing import rotation_matrix
from rope_array.testing._contract import assert_contract

torch = pytest.importorskip("torch")
from rope_array._backends.torch import native  # noqa: E402

forward_ad = torch.autograd.forward_ad
pytestmark = [
    pytest.mark.library("torch"),
    pytest.mark.skipif(
        _native.kernel is None and not os.environ.get("ROPE_ARRAY_REQUIRE_KERNEL"),
        reason=_native.unavailable_reason() or "built",
    ),
    # Parts of torch that are loaded late use what torch has deprecated.
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
]

FIELDS = {
    "plain": {},
    "half": {"pairing": "half", "base": 500_000.0},
    "partial": {"pairing": "half", "rotary_dim": 8, "rotary_start": 4, "attention_factor": 1.25},
    "mixed": {"pairing": "interleaved", "out_pairing": "half", "rotary_dim": 12, "attention_factor": 0.5},
}
ROPES = {name: ra.RoPE(16, **fields) for name, fields in FIELDS.items()}
ROPE = ROPES["partial"]
LIST = [0, 1, -5, 70_000, 2**31 - 1]
POS = torch.tensor(LIST)


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def same(a, b):
    """Tell whether two results have the same bits."""
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a.dtype == b.dtype and torch.equal(a, b)


def near(a, b):
    """Tell whether two float32 results are roundings of one number."""
    return a.dtype == b.dtype and torch.allclose(a, b, atol=2e-6, rtol=1e-6)


def core(x, pos=POS, rope=ROPE):
    return rope.apply(x, pos, backend="torch")


def adjoint(weight, pos=POS, name="partial"):
    """The definition's gradient: the inverse of the rotation by the reciprocal amplitude."""
    fields = FIELDS[name] | {"attention_factor": 1 / FIELDS[name].get("attention_factor", 1.0)}
    return {"pos": np.asarray(pos), "inverse": True, **fields}, weight


def judge_gradient(gradient, weight, pos=POS, name="partial"):
    fields, weight = adjoint(weight, pos, name)
    assert_contract(
        gradient.detach().double().numpy(),
        weight.double().numpy(),
        fields.pop("pos"),
        dtype="float32",
        **fields,
    )


BY = {
    "apply": lambda x: ROPE.apply(x, POS),
    "list": lambda x: ROPE.apply(x, LIST),
    "rotation": lambda x: ROPE.rotation(POS, like=x).apply(x),
    "tuple": lambda x: ROPE.apply((2 * x, x), POS)[1],
    "rotation of a tuple": lambda x: ROPE.rotation(POS, like=x).apply((2 * x, x))[1],
}
by = pytest.mark.parametrize("of", BY.values(), ids=BY)


@pytest.fixture
def runs(monkeypatch):
    """The kernel's calls that did the work."""
    runs = []

    def counted(run):
        def counting(*args):
            done = run(*args)
            runs.append(args[0]) if done is not NotImplemented else None
            return done

        return counting

    monkeypatch.setattr(_native.kernel, "rotate", counted(_native.kernel.rotate))
    return runs


# ---- what the kernel serves ----


@by
def test_eager_calls_are_the_kernel_s(of, runs):
    x = normal(2, 5, 16)
    y = of(x)
    assert runs
    assert_contract(y.double().numpy(), x.double().numpy(), POS.numpy(), dtype="float32", **FIELDS["partial"])


SERVED = {
    "a parameter": (torch.nn.Parameter, contextlib.nullcontext),
    "under no_grad": (lambda x: x.requires_grad_(), torch.no_grad),
    "in inference mode": (lambda x: x, torch.inference_mode),
    "under autocast": (lambda x: x, lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "with anomalies looked for": (lambda x: x.requires_grad_(), lambda: torch.autograd.detect_anomaly(False)),
    "deterministic": (lambda x: x, lambda: torch.autograd.set_multithreading_enabled(False)),
    "detached": (lambda x: x.requires_grad_().detach(), contextlib.nullcontext),
    "in several threads": (lambda x: x, contextlib.nullcontext),
}


@by
@pytest.mark.parametrize("name", SERVED)
@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
def test_served_with_the_same_bits(name, of, runs):
    make, context = SERVED[name]
    want = of(normal(2, 5, 16))
    runs.clear()
    with context():
        y = of(make(normal(2, 5, 16)))
    assert runs
    assert same(y.detach(), want)
    assert type(y) is torch.Tensor


LAYOUTS = {
    "expanded": lambda: normal(1, 5, 16).expand(3, 5, 16),
    "expanded in the sequence": lambda: normal(3, 1, 16).expand(3, 5, 16),
    "expanded in the features": lambda: normal(3, 5, 1).expand(3, 5, 16),
    "transposed": lambda: normal(16, 5, 3).permute(2, 1, 0),
    "every second, from an offset": lambda: normal(7, 11, 33)[1::2, 1::2, 1::2],
    "channels last": lambda: normal(3, 2, 5, 16).contiguous(memory_format=torch.channels_last),
    "a part of complex numbers": lambda: torch.complex(normal(3, 5, 16), normal(3, 5, 16, seed=1)).imag,
    "windows": lambda: normal(200).as_strided((3, 5, 16), (3, 7, 1)),
}


@by
@pytest.mark.parametrize("name", LAYOUTS)
def test_strides_choose_no_path(name, of, runs):
    x = LAYOUTS[name]()
    want = of(x.clone(memory_format=torch.contiguous_format))
    runs.clear()
    leaf = x.detach().requires_grad_()
    for y in (of(x), of(leaf)):
        assert same(y.detach(), want)
        assert y.is_contiguous() or y.stride() == torch.empty_like(x).stride()
    assert runs


# ---- what it declines ----


class Seeing(torch.utils._python_dispatch.TorchDispatchMode):
    """A mode that sees operations as they are done."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class SeeingFunctions(torch.overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def default_device():
    torch.set_default_device("cpu")
    try:
        yield
    finally:
        torch.set_default_device(None)


MODES = {
    "dispatch": (Seeing, "a mode watches"),
    "function": (SeeingFunctions, "a mode watches"),
    "device": (lambda: torch.device("cpu"), "a mode watches"),
    "default device": (default_device, "a mode watches"),
    "forward mode": (forward_ad.dual_level, "forward-mode"),
}


@by
@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("grad", [False, True], ids=["", "requires grad"])
def test_modes(name, of, grad, runs):
    context, reason = MODES[name]
    x = normal(2, 5, 16).requires_grad_(grad)
    want = core(x)
    with context() as mode:
        assert same(of(x), want)
        if hasattr(mode, "seen"):
            assert mode.seen
        assert reason in ra.explain(x, POS, ROPE).declined["native"]
        with pytest.raises(ra.BackendError, match=reason):
            ROPE.apply(x, POS, backend="native")
        with pytest.raises(ra.BackendError, match=reason):
            ROPE.rotation(POS, like=x).apply(x, backend="native")
    assert not runs


def test_flops_are_counted_by_what_pytorch_does(runs):
    from torch.utils.flop_counter import FlopCounterMode

    x = normal(5, 16)
    with FlopCounterMode(display=False) as counter:
        y = core(x) @ x.T
        z = BY["apply"](x) @ x.T
    assert same(y, z)
    assert counter.get_total_flops() == 2 * 2 * 5 * 5 * 16
    assert not runs


class Tagged(torch.Tensor):
    pass


def negated(*shape):
    view = torch.complex(normal(*shape), normal(*shape, seed=1)).conj().imag
    assert view.is_neg()
    return view


TENSORS = {
    "subclass": (lambda: normal(2, 5, 16).as_subclass(Tagged), "Tagged is a subclass"),
    "negated view": (lambda: negated(2, 5, 16), "lazily negated"),
    "negated view of one": (lambda: negated(2, 5, 32)[..., ::2], "lazily negated"),
    "zeros without memory": (lambda: torch._efficientzerotensor(2, 5, 16), "not in memory as they are"),
}


@by
@pytest.mark.parametrize("name", TENSORS)
def test_tensors_unlike_their_memory(name, of, runs):
    make, reason = TENSORS[name]
    x = make()
    y = of(x).as_subclass(torch.Tensor)
    # The same numbers in memory, by the core.
    plain = torch.zeros(2, 5, 16) if x._is_zerotensor() else x.as_subclass(torch.Tensor).resolve_neg().clone()
    assert same(y, core(plain))
    assert not runs
    with pytest.raises(ra.BackendError, match=reason):
        ROPE.apply(x, POS, backend="native")
    assert reason in ra.explain(x, POS, ROPE).declined["native"]
    beside = ROPE.apply((plain, x), POS)  # one such tensor is enough
    assert same(beside[1].as_subclass(torch.Tensor), core(plain))
    assert not runs


def test_positions_and_tables_unlike_their_memory(runs):
    x = normal(2, 5, 16)
    reals = torch.complex(torch.zeros(5), -torch.arange(5.0)).conj().imag
    assert reals.is_neg()
    assert torch.equal(ROPE.apply(x, reals), ROPE.apply(x, torch.arange(5.0), backend="torch"))
    zeros = torch._efficientzerotensor(5, dtype=torch.int64)
    assert same(ROPE.apply(x, zeros), core(x, torch.zeros(5, dtype=torch.int64)))
    tagged = POS.as_subclass(Tagged)
    assert same(ROPE.apply(x, tagged).as_subclass(torch.Tensor), core(x))
    rotation = ROPE.rotation(POS, like=x)
    sin = torch.complex(rotation.cos, -rotation.sin).conj().imag
    assert sin.is_neg()
    want = rotation.apply(x, backend="torch")
    assert same(rotation._replace(sin=sin).apply(x), want)
    assert same(
        rotation._replace(cos=rotation.cos.as_subclass(Tagged)).apply(x).as_subclass(torch.Tensor), want
    )
    assert not runs


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_layouts_that_are_not_dense_are_refused():
    x = normal(5, 16)
    for other in (x.to_sparse(), x.to_sparse_csr(), x.to_mkldnn()):
        for backend in (None, "native", "torch"):
            with pytest.raises(ra.ArrayTypeError, match=r"sparse|mkldnn"):
                ROPE.apply(other, POS, backend=backend)


def test_meta_and_fake_tensors(runs):
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    x = torch.empty(2, 5, 16, device="meta")
    for of in (lambda x: ROPE.apply(x, range(5)), lambda x: ROPE.rotation(range(5), like=x).apply((x, x))[0]):
        assert of(x).device.type == "meta"
        with FakeTensorMode() as mode:
            assert isinstance(of(torch.empty(2, 5, 16)), FakeTensor)
            assert isinstance(of(mode.from_tensor(normal(2, 5, 16))), FakeTensor)
        assert isinstance(of(mode.from_tensor(normal(2, 5, 16))), FakeTensor)
    assert not runs
    with pytest.raises(ra.BackendError, match="on meta"):
        ROPE.apply(x, 3, backend="native")


def test_another_pytorch_without_the_private_names(runs, monkeypatch):
    """What they tell would go unseen: so the kernel declines all."""
    x = normal(2, 5, 16)
    want = core(x)
    monkeypatch.setattr(native, "_CAN_DETECT_MODES", False)
    for of in BY.values():
        assert same(of(x), want)
        leaf = x.clone().requires_grad_()
        assert same(of(leaf).detach(), want)
    assert not runs
    with pytest.raises(ra.BackendError, match="this version of PyTorch"):
        ROPE.apply(x, POS, backend="native")


def test_the_first_call_of_a_process_decides_nothing():
    """What plain tensors are is learned by it, in whatever mode it is."""
    script = """
        import contextlib, sys, torch
        import rope_array as ra
        contexts = {
            "inference": torch.inference_mode,
            "no_grad": torch.no_grad,
            "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
            "meta": lambda: torch.device("meta"),
            "vmap": contextlib.nullcontext,
            "forward": torch.autograd.forward_ad.dual_level,
        }
        rope = ra.RoPE(16)
        with contexts[sys.argv[1]]():
            if sys.argv[1] == "vmap":
                torch.func.vmap(lambda x: rope.apply(x, 3))(torch.ones(2, 5, 16))
            else:
                rope.apply(torch.ones(5, 16), 3)
        for x in (torch.ones(5, 16), torch.ones(5, 16, requires_grad=True)):
            print(ra.explain(x, 3, rope).backend)
            with torch.inference_mode():
                print(ra.explain(torch.ones(5, 16), 3, rope).backend)
    """
    for context in ("inference", "no_grad", "autocast", "meta", "vmap", "forward"):
        assert child.run(script, context).split() == ["native"] * 4, context


BAD = {
    "a single number": (lambda: torch.ones(()), 3, {}),
    "a width": (lambda: torch.ones(5, 8), 3, {}),
    "a length": (lambda: torch.ones(5, 16), torch.arange(4), {}),
    "too many axes": (lambda: torch.ones(5, 16), torch.ones(5, 5, dtype=torch.int64), {}),
    "an axis": (lambda: torch.ones(5, 16), 3, {"seq_axis": 7}),
    "an axis of a vector": (lambda: torch.ones(16), 3, {"seq_axis": 0}),
    "an axis that is none": (lambda: torch.ones(5, 16), 3, {"seq_axis": 10**30}),
    "complex numbers": (lambda: torch.ones(5, 16, dtype=torch.complex64), 3, {}),
    "eight bits": (lambda: torch.ones(5, 16).to(torch.float8_e5m2), 3, {}),
    "positions of booleans": (lambda: torch.ones(5, 16), torch.ones(5, dtype=torch.bool), {}),
    "a position beyond 64 bits": (lambda: torch.ones(5, 16), 2**63, {}),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("grad", [False, True], ids=["", "requires grad"])
def test_refusals_are_those_of_the_core(name, grad):
    """The short ways see less of a call, and leave what they refuse to the others."""
    make, pos, more = BAD[name]
    x = make().requires_grad_(grad)
    texts = []
    for backend in (None, "native", "torch"):
        with pytest.raises(ra.RoPEError) as caught:
            ROPE.apply(x, pos, backend=backend, **more)
        texts.append((type(caught.value), str(caught.value)))
    assert texts[0] == texts[1] == texts[2]
    if isinstance(pos, int) and pos == 3:
        rotation = ROPE.rotation(POS, like=torch.ones(5, 16))
        texts = []
        for backend in (None, "native", "torch"):
            with pytest.raises(ra.RoPEError) as caught:
                rotation.apply(x, backend=backend, **more)
            texts.append((type(caught.value), str(caught.value)))
        assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("grad", [False, True], ids=["", "requires grad"])
def test_tables_that_do_not_fit_are_refused(grad):
    x, static = torch.ones(5, 16, requires_grad=grad), ROPE.rotation(POS, like=torch.ones(5, 16)).static
    for cos, sin in [((5, 2), (5, 2)), ((5, 4), (1, 4)), ((4, 4), (4, 4)), ((1, 5, 4), (1, 5, 4)), ((), ())]:
        with pytest.raises(ra.RoPEError):
            ra.Rotation(torch.ones(cos), torch.ones(sin), static).apply(x)


@pytest.mark.parametrize("axes", [63, 64, 65, 70])
def test_any_number_of_axes(axes):
    x = normal(*[1] * (axes - 2), 5, 16)
    of = [lambda x, b: ROPE.apply(x, 7, backend=b), lambda x, b: ROPE.rotation(7, like=x).apply(x, backend=b)]
    for rotated in of:
        leaf = x.clone().requires_grad_()
        gradient = lambda b, r=rotated, a=leaf: torch.autograd.grad(r(a, b), a, x)[0]  # noqa: E731
        for make in (lambda b, r=rotated: r(x, b), gradient):
            own, by_core = (make(backend).reshape(5, 16) for backend in (None, "torch"))
            assert near(own, by_core)


def test_the_private_names_are_there():
    """Where one goes, the kernel is never used: to be seen here, not in a benchmark."""
    assert native._CAN_DETECT_MODES


# ---- compilers and tracers ----


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@by
def test_compiled_forward_and_backward(of, runs, fresh_dynamo):
    x, weight = normal(2, 5, 16), normal(2, 5, 16, seed=1)
    want = core(x.requires_grad_())
    (gradient,) = torch.autograd.grad(want, x, weight)
    compiled = torch.compile(of, fullgraph=True, backend="aot_eager")
    y = compiled(x)
    assert same(y, want)
    assert same(torch.autograd.grad(y, x, weight)[0], gradient)
    with torch.no_grad():
        assert same(compiled(x), want)
    assert not runs


def test_compiled_with_a_rotation_given(runs, fresh_dynamo):
    x = normal(2, 5, 16)
    rotation = ROPE.rotation(POS, like=x)
    runs.clear()
    compiled = torch.compile(lambda r, x: r.apply(x), fullgraph=True, backend="aot_eager")
    assert same(compiled(rotation, x), rotation.apply(x, backend="torch"))
    assert not runs


def test_the_way_to_the_core_leaves_compiled_code_in_one_piece(runs, fresh_dynamo):
    """The kernel before and after: what is compiled is one graph, and stays so."""
    from torch._dynamo.testing import CompileCounter

    counter, x = CompileCounter(), normal(2, 5, 16)
    compiled = torch.compile(BY["apply"], fullgraph=True, backend=counter)
    for _ in range(3):
        eager = ROPE.apply(x, POS)
        assert near(compiled(x), eager)
    assert counter.frame_count == 1
    assert len(runs) == 3


DOORS = {
    "apply": lambda x, pos: ROPE.apply(x, pos),
    "rotation": lambda x, pos: ROPE.rotation(pos, like=x).apply(x),
    "tuple": lambda x, pos: ROPE.apply((2 * x, x), pos)[1],
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(door, mode, runs):
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(DOORS[door], tracing_mode=mode)(normal(2, 5, 16), POS)
    x = normal(2, 5, 16, seed=5)
    assert same(graph(x, POS + 1), core(x, POS + 1))
    assert not runs


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict, runs, fresh_dynamo):
    class Layer(torch.nn.Module):
        def forward(self, x, pos):
            return ROPE.apply(x, pos), ROPE.rotation(pos, like=x).apply(x)

    program = torch.export.export(Layer(), (normal(2, 5, 16), POS), strict=strict)
    x = normal(2, 5, 16, seed=3)
    for y in program.module()(x, POS + 1):
        assert same(y, core(x, POS + 1))
    assert not runs


@by
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_jit_trace(of, runs):
    traced = torch.jit.trace(of, (normal(2, 5, 16),), check_trace=False)
    x = normal(2, 5, 16, seed=3)
    assert same(traced(x), core(x))
    assert not runs


def test_functionalize(runs):
    x = normal(2, 5, 16)
    for of in BY.values():
        assert same(torch.func.functionalize(of)(x), core(x))
    assert not runs


# ---- functorch ----


@by
def test_grad_vjp_and_jvp(of, runs):
    x, weight = normal(2, 5, 16), normal(2, 5, 16, seed=1)
    gradient = torch.func.grad(lambda x: (of(x) * weight).sum())(x)
    judge_gradient(gradient, weight)
    y, pull = torch.func.vjp(of, x)
    assert same(y, core(x))
    assert same(pull(weight)[0], gradient)
    y, tangent = torch.func.jvp(of, (x,), (weight,))
    assert same(y, core(x))
    assert same(tangent, core(weight))
    assert not runs


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("transform", ["jacrev", "jacfwd"])
def test_jacobian_is_the_matrix(name, transform, runs):
    x = normal(16)
    for of in (
        lambda x: ROPES[name].apply(x, 12345),
        lambda x: ROPES[name].rotation(12345, like=x).apply((x,))[0],
    ):
        jacobian = getattr(torch.func, transform)(of)(x)
        matrix = rotation_matrix(12345, head_dim=16, **FIELDS[name])
        np.testing.assert_allclose(jacobian.numpy(), matrix, atol=2.5e-7)
    assert not runs


@by
def test_hessian(of, runs):
    x = normal(5, 16)
    matrix = torch.func.hessian(lambda x: (of(x) ** 2).sum() / 2)(x).reshape(80, 80)
    amplitude = torch.ones(5, 16)
    amplitude[:, 4:12] = 1.25**2
    assert torch.allclose(matrix, torch.diag(amplitude.reshape(-1)), atol=1e-5)
    assert not runs


def test_vmap(runs):
    x, pos = normal(3, 2, 5, 16), torch.arange(15).reshape(3, 5)
    vmap, want = torch.func.vmap, core(x, pos)
    assert same(vmap(ROPE.apply)(x, pos), want)
    assert same(vmap(vmap(ROPE.apply))(x.transpose(1, 2), pos).transpose(1, 2), want)
    assert same(vmap(lambda x: ROPE.apply(x, pos[0]))(x), core(x, pos[0]))
    assert same(vmap(lambda pos: ROPE.apply(x[0], pos))(pos), core(x[:1].expand(3, 2, 5, 16), pos))
    rotations = ROPE.rotation(pos, like=x)
    runs.clear()
    assert same(vmap(lambda r, x: r.apply(x))(rotations, x), rotations.apply(x, backend="torch"))
    grads = vmap(torch.func.grad(lambda x, pos: (ROPE.apply(x, pos) ** 2).sum()))(x, pos)
    each = [
        torch.func.grad(lambda x, p=p: (ROPE.apply(x, p) ** 2).sum())(a) for a, p in zip(x, pos, strict=True)
    ]
    assert same(grads, torch.stack(each))
    assert not runs


def test_a_transform_that_the_tensors_are_no_part_of(runs):
    """Declined too: what is made there may be captured by it."""
    x = normal(2, 5, 16)
    want = core(x)
    seen = []
    torch.func.vmap(lambda dummy: seen.append(ROPE.apply(x, POS)) or dummy)(torch.zeros(2))
    assert same(seen[0], want)
    assert not runs


def test_gradient_outside_of_a_transform_inside(runs):
    """An inner transform over a tensor whose gradient an outer graph records."""
    x, scale = normal(5, 16), torch.tensor(2.0, requires_grad=True)
    inner = torch.func.grad(lambda x: (ROPE.apply(x * scale, POS) ** 2).sum())(x)
    inner.sum().backward()
    plain = torch.func.grad(lambda x: (core(x * scale) ** 2).sum())(x)
    (want,) = torch.autograd.grad(plain.sum(), scale)
    assert torch.allclose(scale.grad, want)
    assert scale.grad.abs() > 1e-3


# ---- forward mode ----


@by
def test_dual_numbers(of, runs):
    x, tangent = normal(2, 5, 16), normal(2, 5, 16, seed=1)
    with forward_ad.dual_level():
        y, moved = forward_ad.unpack_dual(of(forward_ad.make_dual(x, tangent)))
        assert same(y, core(x))
        assert same(moved, core(tangent))
        assert forward_ad.unpack_dual(of(x)).tangent is None
    assert not runs


def test_dual_positions(runs):
    x, pos = normal(5, 16), torch.tensor([0.0, 0.5, 1.25, -3.0, 9.0])
    with forward_ad.dual_level():
        y = forward_ad.unpack_dual(ROPE.apply(x, forward_ad.make_dual(pos, torch.ones(5))))
        want = forward_ad.unpack_dual(
            ROPE.apply(x, forward_ad.make_dual(pos, torch.ones(5)), backend="torch")
        )
        assert same(y.tangent, want.tangent)
    step = (core(x.double(), pos.double() + 1e-4) - core(x.double(), pos.double() - 1e-4)) / 2e-4
    assert torch.allclose(y.tangent.double(), step, atol=1e-4)
    assert y.tangent.abs().max() > 0.1


def test_dual_tables(runs):
    x = normal(5, 16)
    rotation = ROPE.rotation(POS, like=x)
    runs.clear()
    tangent = normal(5, 4, seed=2)
    with forward_ad.dual_level():
        turned = rotation._replace(cos=forward_ad.make_dual(rotation.cos, tangent)).apply(x)
        moved = forward_ad.unpack_dual(turned).tangent
    want = rotation._replace(cos=tangent, sin=torch.zeros(5, 4)).apply(x, backend="torch")
    assert torch.allclose(moved[:, 4:12], want[:, 4:12], atol=1e-6)
    assert moved[:, 4:12].abs().max() > 0.1
    assert not runs


@by
def test_forward_mode_over_a_gradient_that_the_kernel_recorded(of, runs):
    """The forward is recorded outside; the backward runs on dual numbers, and keeps their tangents."""
    x = normal(2, 5, 16).requires_grad_()
    weight, tangent = normal(2, 5, 16, seed=1), normal(2, 5, 16, seed=2)
    y = of(x)
    assert runs
    runs.clear()
    with forward_ad.dual_level():
        (gradient,) = torch.autograd.grad(y, x, forward_ad.make_dual(weight, tangent))
        value, moved = forward_ad.unpack_dual(gradient)
    judge_gradient(value, weight)
    assert moved is not None
    judge_gradient(moved, tangent)
    assert not runs


@by
def test_batched_backward_of_what_the_kernel_recorded(of, runs):
    x = normal(2, 5, 16).requires_grad_()
    y, weights = of(x), normal(3, 2, 5, 16, seed=1)
    each = [torch.autograd.grad(y, x, w, retain_graph=True)[0] for w in weights]
    runs.clear()
    (batched,) = torch.autograd.grad(y, x, weights, is_grads_batched=True, retain_graph=True)
    for one, by_itself, weight in zip(batched, each, weights, strict=True):
        assert near(one, by_itself)
        judge_gradient(one, weight)
    assert not runs
    jacobian = torch.autograd.functional.jacobian(of, x, vectorize=True)
    assert torch.allclose(jacobian, torch.autograd.functional.jacobian(of, x), atol=1e-6)


@pytest.mark.parametrize("context", ["dispatch", "function", "device", "default device", "meta"])
@by
def test_modes_around_the_backward_of_what_the_kernel_recorded(context, of, runs):
    contexts = {**{name: made for name, (made, _) in MODES.items()}, "meta": lambda: torch.device("meta")}
    weight = normal(2, 5, 16, seed=1)
    for pos in (POS, 70_000):
        x = normal(2, 5, 16).requires_grad_()
        y = of(x) if pos is POS else ROPE.apply(x, pos)
        runs.clear()
        with contexts[context]() as mode:
            (gradient,) = torch.autograd.grad(y, x, weight)
        judge_gradient(gradient, weight, pos)
        if context == "dispatch":  # those of functions are not active in a backward
            assert mode.seen
            assert not runs


# ---- reverse mode, by the kernel ----


@pytest.mark.parametrize("name", FIELDS)
@by
def test_gradient_is_the_adjoint_and_the_kernel_s(name, of, runs, monkeypatch):
    monkeypatch.setitem(globals(), "ROPE", ROPES[name])
    x, weight = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1)
    y = of(x)
    assert y.requires_grad
    runs.clear()
    (gradient,) = torch.autograd.grad(y, x, weight)
    assert runs
    judge_gradient(gradient, weight, name=name)
    leaf = x.detach().clone().requires_grad_()
    (by_core,) = torch.autograd.grad(core(leaf, rope=ROPES[name]), leaf, weight)
    assert near(gradient, by_core)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("how", ["apply", "number", "rotation", "inverse", "tuple", "rotation of floats"])
def test_gradcheck(name, how, runs):
    rope, pos = ROPES[name], torch.tensor([0, -3, 2**31 - 1])
    of = {
        "apply": lambda x: rope.apply(x, pos),
        "number": lambda x: rope.apply(x, 77),
        "rotation": lambda x: rope.rotation(pos, like=x).apply(x),
        "inverse": lambda x: rope.apply(rope.rotation(pos, like=x).inverse().apply(x), 5, inverse=True),
        "tuple": lambda x: rope.apply((x, x * x), pos),
        "rotation of floats": lambda x: rope.rotation(pos * 0.125, like=x).adjoint().apply((x * x, x)),
    }[how]
    x = normal(2, 3, 16, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(of, x)
    assert torch.autograd.gradgradcheck(of, x)
    assert torch.autograd.gradcheck(of, x, check_forward_ad=True)
    assert runs


def test_gradcheck_of_positions_and_tables(runs):
    x = normal(2, 3, 16, dtype=torch.float64).requires_grad_()
    pos = torch.tensor([0.5, -3.25, 1000.125], dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(ROPE.apply, (x, pos))
    rotation = ROPE.rotation(pos.detach(), like=x)
    tables = [table.clone().requires_grad_() for table in rotation[:2]]
    runs.clear()

    def of(x, cos, sin):
        return rotation._replace(cos=cos, sin=sin).apply(x)

    assert torch.autograd.gradcheck(of, (x, *tables))
    assert torch.autograd.gradgradcheck(of, (x, *tables))
    assert torch.autograd.gradcheck(lambda cos: of(x.detach(), cos, tables[1].detach()), tables[0])
    assert not runs


def test_gradients_of_positions_and_tables_are_those_of_the_core(runs):
    x = normal(2, 5, 16).requires_grad_()
    pos = torch.tensor([0.0, 0.25, 7.5, -100.0, 12345.0]).requires_grad_()
    weight = normal(2, 5, 16, seed=1)
    own = torch.autograd.grad(ROPE.apply(x, pos), (x, pos), weight)
    assert same(own, torch.autograd.grad(core(x, pos), (x, pos), weight))
    assert own[1].abs().max() > 0.1
    assert not runs
    with torch.no_grad():  # nothing to record: the kernel's
        ROPE.apply(x, pos)
    assert runs


def test_learned_frequencies(runs):
    x, omegas = normal(5, 16), torch.tensor(ROPE.frequencies, requires_grad=True)
    rotation = ROPE.rotation(torch.arange(5), like=x, inv_freq=omegas)
    (gradient,) = torch.autograd.grad(rotation.apply(x).sum(), omegas)
    assert gradient.abs().min() > 0
    assert not runs


def test_double_backward():
    x, weight = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1).requires_grad_()
    for of in BY.values():
        (first,) = torch.autograd.grad((of(x) * weight).sum(), x, create_graph=True)
        assert first.requires_grad
        cotangent = normal(2, 5, 16, seed=2)
        (second,) = torch.autograd.grad(first, weight, cotangent, retain_graph=True)
        assert near(second, core(cotangent))
        (again,) = torch.autograd.grad(first, weight, cotangent, create_graph=True)
        assert same(again, second)


@by
def test_a_graph_used_twice(of, runs):
    x, weight = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1)
    y = of(x)
    first = torch.autograd.grad(y, x, weight, retain_graph=True)
    assert same(torch.autograd.grad(y, x, weight), first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x, weight)


@by
def test_gradients_with_strides_of_zero(of):
    x = normal(2, 5, 16).requires_grad_()
    of(x).sum().backward()
    assert same(x.grad, torch.autograd.grad(of(x), x, torch.ones(2, 5, 16))[0])
    judge_gradient(x.grad, torch.ones(2, 5, 16))
    for weight in (normal(1, 1, 1).expand(2, 5, 16), negated(2, 5, 16), normal(16, 5, 2).permute(2, 1, 0)):
        (gradient,) = torch.autograd.grad(of(x), x, weight)
        judge_gradient(gradient, weight.resolve_neg())
        plain = weight.resolve_neg().contiguous()
        assert near(gradient, torch.autograd.grad(of(x), x, plain)[0])
    (gradient,) = torch.autograd.grad(of(x), x, torch._efficientzerotensor(2, 5, 16))
    assert not gradient.any()


def test_some_of_a_tuple_s_gradients(runs):
    q, k = normal(2, 5, 16).requires_grad_(), normal(5, 16, seed=1).requires_grad_()
    weight = normal(2, 5, 16, seed=2)
    for of in (lambda *xs: ROPE.apply(xs, POS), lambda *xs: ROPE.rotation(POS, like=q).apply(xs)):
        a, b = of(q, k)
        of_q, of_k = torch.autograd.grad(a, (q, k), weight, allow_unused=True)
        assert of_k is None or not of_k.any()
        judge_gradient(of_q, weight)
        a, b = of(q, k)
        assert near(torch.autograd.grad(a.sum() + b.sum(), q)[0], torch.autograd.grad(core(q).sum(), q)[0])
        q.grad = k.grad = None
        of(q, k)[1].sum().backward()
        assert q.grad is None or not q.grad.any()
        assert near(k.grad, torch.autograd.grad(core(k).sum(), k)[0])


def test_only_some_of_a_tuple_require_a_gradient(runs):
    q, k = normal(2, 5, 16).requires_grad_(), normal(5, 16, seed=1)
    for of in (lambda *xs: ROPE.apply(xs, POS), lambda *xs: ROPE.rotation(POS, like=q).apply(xs)):
        for xs in ((q, k), (k, q)):
            ys = of(*xs)
            assert [y.requires_grad for y in ys] == [x.requires_grad for x in xs]
            assert [y.requires_grad for y in core(xs)] == [x.requires_grad for x in xs]
            (gradient,) = torch.autograd.grad(sum(y.sum() for y in ys), q)
            judge_gradient(gradient, torch.ones(2, 5, 16))
    assert runs


def test_a_tuple_of_several_dtypes(runs):
    kinds = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float64)
    xs = tuple(normal(2, 5, 16, dtype=dtype, seed=i).requires_grad_() for i, dtype in enumerate(kinds))
    weights = tuple(normal(2, 5, 16, dtype=dtype, seed=9 + i) for i, dtype in enumerate(kinds))
    ys = ROPE.apply(xs, POS)
    grads = torch.autograd.grad(ys, xs, weights)
    for x, y, gradient, weight in zip(xs, ys, grads, weights, strict=True):
        assert gradient.dtype == y.dtype == x.dtype
        assert same(y, ROPE.apply(x, POS))
        assert same(gradient, torch.autograd.grad(ROPE.apply(x, POS), x, weight)[0])
        by_core = torch.autograd.grad(core(x), x, weight)[0]
        tolerance = {torch.float64: 1e-14, torch.float32: 2e-6}.get(x.dtype, 4e-2)
        assert torch.allclose(gradient, by_core, atol=tolerance, rtol=0)
    assert runs


def test_positions_changed_between_forward_and_backward_are_noticed():
    x = normal(2, 5, 16).requires_grad_()
    for of in (ROPE.apply, lambda x, pos: ROPE.apply((x, x), pos)[0]):
        pos = POS.clone()
        y = of(x, pos)
        pos += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    rotation = ROPE.rotation(POS, like=x)
    y = rotation.apply(x)
    rotation.sin.neg_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_positions_of_other_integers_are_copied_or_noticed():
    x = normal(2, 5, 16).requires_grad_()
    want = torch.autograd.grad(ROPE.apply(x, torch.arange(5)), x, torch.ones(2, 5, 16))[0]
    for dtype in (torch.int32, torch.uint8, torch.int16, torch.float32):
        pos = torch.arange(5).to(dtype)
        y = ROPE.apply(x, pos)
        pos += 1
        assert near(torch.autograd.grad(y, x, torch.ones(2, 5, 16))[0], want)


def test_x_changed_in_place_afterwards_changes_no_gradient():
    """The rotation is linear: x is not kept."""
    leaf = normal(2, 5, 16).requires_grad_()
    for of in BY.values():
        x = leaf * 2
        y = of(x)
        x.zero_()
        (gradient,) = torch.autograd.grad(y, leaf, torch.ones(2, 5, 16))
        judge_gradient(gradient / 2, torch.ones(2, 5, 16))


def test_results_may_be_changed_in_place():
    x = normal(2, 5, 16).requires_grad_()
    for of in BY.values():
        y = of(x)
        y.mul_(3)
        (gradient,) = torch.autograd.grad(y, x, torch.ones(2, 5, 16))
        judge_gradient(gradient / 3, torch.ones(2, 5, 16))


def test_hooks_on_saved_tensors_see_what_is_kept():
    x = normal(2, 5, 16).requires_grad_()
    for of in BY.values():
        packed = []

        def pack(tensor, packed=packed):
            packed.append(tensor)
            return tensor.numpy().copy()

        with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
            y = of(x)
        assert packed
        assert all(tuple(tensor.shape) != tuple(x.shape) for tensor in packed)  # not x
        (gradient,) = torch.autograd.grad(y, x, torch.ones(2, 5, 16))
        judge_gradient(gradient, torch.ones(2, 5, 16))


def test_hooks_on_gradients():
    x, seen = normal(2, 5, 16).requires_grad_(), []
    y = ROPE.apply(x, POS)
    y.register_hook(lambda gradient: seen.append("y") or 2 * gradient)
    x.register_hook(lambda gradient: seen.append("x"))
    y.backward(torch.ones(2, 5, 16))
    assert seen == ["y", "x"]
    judge_gradient(x.grad / 2, torch.ones(2, 5, 16))


@pytest.mark.parametrize("reentrant", [False, True])
@by
def test_checkpoint(reentrant, of, runs):
    from torch.utils.checkpoint import checkpoint

    grads = []
    for run in (lambda x: checkpoint(lambda x: of(x) ** 3, x, use_reentrant=reentrant), lambda x: of(x) ** 3):
        leaf = normal(2, 5, 16).requires_grad_()
        run(leaf).sum().backward()
        grads.append(leaf.grad)
    assert same(*grads)
    assert runs


@by
def test_autocast(of):
    """The rotation is done as without it, in both directions."""
    x, weight = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1)
    want = of(x)
    (gradient,) = torch.autograd.grad(want, x, weight)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            y = of(x)
            assert same(y, want)
            assert same(torch.autograd.grad(y, x, weight, retain_graph=True)[0], gradient)
        assert same(torch.autograd.grad(y, x, weight)[0], gradient)


def test_many_threads_forward_and_backward(runs):
    x, weight = normal(2, 5, 16), normal(2, 5, 16, seed=1)
    leaf = x.clone().requires_grad_()
    want = torch.autograd.grad(ROPE.apply(leaf, POS), leaf, weight)[0]
    faults, shared = [], x.clone().requires_grad_()
    y = ROPE.apply(shared, POS)
    barrier = threading.Barrier(8)

    def work():
        try:
            barrier.wait()
            for _ in range(20):
                own = x.clone().requires_grad_()
                (gradient,) = torch.autograd.grad(ROPE.apply(own, POS), own, weight)
                assert same(gradient, want)
                assert same(torch.autograd.grad(y, shared, weight, retain_graph=True)[0], want)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_modes_of_one_thread_are_not_those_of_another(runs):
    """What is active here says nothing about calls made there."""
    x, results = normal(2, 5, 16), []
    with Seeing():
        assert same(ROPE.apply(x, POS), core(x))
        assert not runs
        thread = threading.Thread(target=lambda: results.append(ROPE.apply(x, POS)))
        thread.start()
        thread.join()
    assert near(results[0], core(x))
    assert len(runs) == 1


def test_copies_of_a_rope_that_was_used(runs):
    rope = ra.RoPE(16, base=321.0, pairing="half")
    x = normal(2, 5, 16).requires_grad_()
    want = rope.apply(x, POS)
    want.sum().backward()
    for other in (copy.copy(rope), copy.deepcopy(rope), pickle.loads(pickle.dumps(rope))):
        assert other == rope
        assert hash(other) == hash(rope)
        assert same(other.apply(x, POS), want)

    module = torch.nn.Linear(16, 16)
    module.rope = rope
    assert same(copy.deepcopy(module).rope.apply(x, POS), want)
    rotation = rope.rotation(POS, like=x)
    rotation.apply(x)
    assert same(pickle.loads(pickle.dumps(rotation)).apply(x), rotation.apply(x))


def test_compiled_autograd(runs, fresh_dynamo):
    """The backward that is compiled sees the kernel's rule as the operations of the core, or calls it."""
    x, weight = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1)
    y = (ROPE.apply(x, POS) * weight).sum()
    with torch._dynamo.compiled_autograd._enable(functools.partial(torch.compile, backend="eager")):
        y.backward()
    judge_gradient(x.grad, weight)


def test_gradients_without_assertions():
    """What is done is no part of an assert, which python -O leaves out."""
    script = """
        import torch
        import rope_array as ra
        rope = ra.RoPE(16, pairing="half")
        for pos in (3, torch.arange(5)):
            x = torch.ones(2, 5, 16, requires_grad=True)
            y = rope.apply(x, pos)
            if not torch.equal(y, rope.apply(x, pos, backend="torch")):
                raise SystemExit("other numbers")
    """
    child.run(script, PYTHONOPTIMIZE="1")


def test_positions_of_inference_mode_beside_a_gradient(runs):
    with torch.inference_mode():
        pos = POS.clone()
    x, weight = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1)
    for of in (lambda: ROPE.apply(x, pos), lambda: ROPE.apply((normal(2, 5, 16), x), pos)[1]):
        y = of()
        assert same(y.detach(), ROPE.apply(x, POS).detach())
        judge_gradient(torch.autograd.grad(y, x, weight)[0], weight)
    runs.clear()
    assert same(ROPE.apply(normal(2, 5, 16), pos), ROPE.apply(normal(2, 5, 16), POS))
    assert runs


def freed(x):
    x.untyped_storage().resize_(0)
    return x


FREED = {
    "x": lambda: ROPE.apply(freed(normal(2, 5, 16)), 3),
    "x with a gradient": lambda: ROPE.apply(freed(normal(2, 5, 16)).requires_grad_(), 3),
    "positions": lambda: ROPE.apply(normal(2, 5, 16), freed(POS.clone())),
    "positions beside a gradient": lambda: ROPE.apply(normal(2, 5, 16).requires_grad_(), freed(POS.clone())),
    "one of a tuple": lambda: ROPE.apply((normal(2, 5, 16), freed(normal(2, 5, 16))), POS),
    "out": lambda: ROPE.apply(normal(2, 5, 16), POS, out=freed(normal(2, 5, 16))),
    "turned": lambda: ROPE.rotation(POS, like=normal(2)).apply(freed(normal(2, 5, 16))),
    "tables": lambda: rotation_of_freed_tables().apply(normal(2, 5, 16)),
}


def rotation_of_freed_tables():
    rotation = ROPE.rotation(POS, like=torch.zeros(2))
    return rotation._replace(cos=freed(rotation.cos), sin=freed(rotation.sin))


@pytest.mark.parametrize("name", FREED)
def test_freed_memory_is_an_error(name):
    ROPE.apply(normal(2, 5, 16), POS)  # after a first call the short way is open
    with pytest.raises((RuntimeError, ra.ArrayTypeError)):
        FREED[name]()


def test_freed_memory_without_elements_is_none():
    x = freed(torch.zeros(0, 5, 16))
    assert ROPE.apply(x, POS).shape == x.shape


def test_inference_tensors_where_gradients_are_recorded():
    with torch.inference_mode():
        x = normal(2, 5, 16)
        pos = torch.arange(5)
        y = ROPE.apply(x, pos)
        rotation = ROPE.rotation(pos, like=x)
    leaf = x.clone().requires_grad_()
    assert near(ROPE.apply(x, 3), core(x, 3))
    assert same(ROPE.apply(leaf.detach(), POS), ROPE.apply(x, POS))
    assert y.is_inference()
    for of in (lambda: ROPE.apply(leaf, pos), lambda: rotation.apply(leaf)):
        try:  # PyTorch keeps no such tensor for a backward, and says so: or what is kept is none
            z = of()
        except RuntimeError as error:
            assert "Inference tensors" in str(error)  # noqa: PT017
            continue
        z.sum().backward()
        judge_gradient(leaf.grad, torch.ones(2, 5, 16), np.arange(5))
        leaf.grad = None
