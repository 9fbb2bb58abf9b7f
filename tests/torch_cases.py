"""Ropes, calls, situations and gradients for PyTorch's tests: one table for the kernel and array-api."""

import functools
import shutil

import compare
import numpy as np
import pytest
from compare import KERNEL, values
from ropes import BASIC, fields_of, ropes_of

import rope_array as ra
from rope_array.testing._contract import assert_contract

torch = pytest.importorskip("torch")
forward_ad = torch.autograd.forward_ad
normal = functools.partial(compare.normal, "torch")

# Warnings of torch.jit.trace, and of anomaly detection, which tests use.
IGNORED = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning"),
]

NIGHTLY = pytest.mark.nightly
NEEDS_COMPILER = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++", "cl"))), reason="needs a C++ compiler"
)
by_compiler = pytest.mark.parametrize(
    "backend",
    [
        "aot_eager",
        pytest.param("eager", marks=NIGHTLY),
        pytest.param("inductor", marks=[pytest.mark.slow, NIGHTLY, NEEDS_COMPILER]),
    ],
)

FIELDS, ROPES = fields_of(*BASIC), ropes_of(*BASIC)
ROPE, HALF = ROPES["partial"], ROPES["half"]
OTHER = ra.RoPE(16, base=77.0, rotary_dim=8, rotary_start=4, attention_factor=1.25)
LIST = [0, 1, -5, 70_000, 2**31 - 1]
POS = torch.tensor(LIST)

# Every entry point, as a function of x and a backend's name or None.
BY = {
    "apply": lambda x, b=None: ROPE.apply(x, POS, backend=b),
    "list": lambda x, b=None: ROPE.apply(x, LIST, backend=b),
    "rotation": lambda x, b=None: ROPE.rotation(POS, like=x, backend=b).apply(x, backend=b),
    "tuple": lambda x, b=None: ROPE.apply((2 * x, x), POS, backend=b)[1],
    "rotation of a tuple": lambda x, b=None: ROPE.rotation(POS, like=x, backend=b).apply(
        (2 * x, x), backend=b
    )[1],
}
by = pytest.mark.parametrize("of", BY.values(), ids=BY)
by_backend = pytest.mark.parametrize(
    "backend", [pytest.param(None, id="kernel", marks=KERNEL), pytest.param("array-api", id="array-api")]
)


def near(a, b):
    """Return whether two results have one dtype, and are equal up to a few float32 roundings."""
    return a.dtype == b.dtype and torch.allclose(a, b, atol=2e-6, rtol=1e-6)


def by_array_api(x, pos=POS):
    return ROPE.apply(x, pos, backend="torch")


def judge_gradient(gradient, weight, pos=POS, name="partial"):
    """Assert that a gradient is the adjoint: the inverse rotation by the reciprocal amplitude."""
    fields = FIELDS[name] | {"attention_factor": 1 / FIELDS[name].get("attention_factor", 1.0)}
    dtype = compare.name_of(weight.dtype)
    assert_contract(values(gradient), values(weight), np.asarray(pos), dtype=dtype, inverse=True, **fields)


class Tagged(torch.Tensor):
    pass


def negated(x):
    """Return the same numbers as a lazily negated view."""
    view = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert view.is_neg()
    return view


class RecordDispatch(torch.utils._python_dispatch.TorchDispatchMode):
    """A mode that counts operations."""

    recorded = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.recorded += 1
        return func(*args, **(kwargs or {}))


class RecordFunctions(torch.overrides.TorchFunctionMode):
    """A mode that counts functions."""

    recorded = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.recorded += 1
        return func(*args, **(kwargs or {}))


def within(context):
    """Return a situation that calls in a context; a mode that counts operations must have counted some."""

    def run(of, x):
        with context() as mode:
            y = of(x)
        assert getattr(mode, "recorded", True)
        return y

    return run


def autocast(dtype):
    return lambda: torch.autocast("cpu", dtype=dtype)


def compiled(function, backend="aot_eager", **options):
    """Compile a function or module as one graph, by default without generating code."""
    return torch.compile(function, fullgraph=True, backend=backend, **options)


def call_compiled(of, x):
    torch._dynamo.reset()
    y = compiled(of)(x)
    torch._dynamo.reset()
    return y


def module_of(function):
    """Return a module whose forward is a function."""

    class FunctionModule(torch.nn.Module):
        forward = staticmethod(function)

    return FunctionModule()


def make_fx(of, x):
    from torch.fx.experimental import proxy_tensor

    return proxy_tensor.make_fx(of)(2 * x)(x)


def dual(of, x):
    with forward_ad.dual_level():
        y, tangent = forward_ad.unpack_dual(of(forward_ad.make_dual(x, x)))
        assert compare.same(y, tangent)  # the rotation is linear
        assert forward_ad.unpack_dual(of(x)).tangent is None
        return y


# Situations that the kernel serves, with its bits.
SERVED = {
    "plain": lambda of, x: of(x),
    "torch.compile": call_compiled,
    "a parameter": lambda of, x: of(torch.nn.Parameter(x)),
    "a gradient is recorded": lambda of, x: of(x.clone().requires_grad_()),
    "under no_grad": lambda of, x: within(torch.no_grad)(of, x.clone().requires_grad_()),
    "in inference mode": within(torch.inference_mode),
    "under autocast to bfloat16": within(autocast(torch.bfloat16)),
    "under detect_anomaly": within(lambda: torch.autograd.detect_anomaly(False)),
    "a device": within(lambda: torch.device("cpu")),
    "expanded": lambda of, x: of(x[None].expand(3, 2, 5, 16))[1],
    "vmap": lambda of, x: torch.func.vmap(of)(x),
    "vmap in chunks": lambda of, x: torch.func.vmap(of, 1, 1, chunk_size=1)(x.movedim(0, 1)).movedim(1, 0),
    "nested vmap": lambda of, x: torch.func.vmap(torch.func.vmap(of), 1, 1)(x[:, None])[:, 0],
    "vmap under autocast": lambda of, x: within(autocast(torch.bfloat16))(torch.func.vmap(of), x),
}
# Situations that the kernel declines, with the reason if x alone causes it; the array-api backend serves.
DECLINED = {
    "a dispatch mode": (within(RecordDispatch), "a mode watches"),
    "a function mode": (within(RecordFunctions), "a mode watches"),
    "forward mode": (within(forward_ad.dual_level), "forward-mode"),
    "dual numbers": (dual, "forward-mode"),
    "a subclass": (lambda of, x: of(x.as_subclass(Tagged)).as_subclass(torch.Tensor), "Tagged is a subclass"),
    "a negated view": (lambda of, x: of(negated(x)), "lazily negated"),
    "vmap in a mode": (lambda of, x: within(RecordDispatch)(torch.func.vmap(of), x), "a mode watches"),
    "vmap in vjp": (lambda of, x: torch.func.vjp(torch.func.vmap(of), x)[0], "functorch"),
    "vjp": (lambda of, x: torch.func.vjp(of, x)[0], "functorch"),
    "jvp": (lambda of, x: torch.func.jvp(of, (x,), (x,))[0], "functorch"),
    "functionalize": (lambda of, x: torch.func.functionalize(of)(x), "functorch"),
    "make_fx": (make_fx, None),
    "torch.jit.trace": (lambda of, x: torch.jit.trace(of, (2 * x,), check_trace=False)(x), None),
    "torch.export": (lambda of, x: torch.export.export(module_of(lambda x: of(x)), (x,)).module()(x), None),
}


def pulled(of, x, weight, **options):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(of(x), x, weight, **options)[0].detach()


def pulled_within(context):
    return lambda of, x, weight: within(context)(lambda x: pulled(of, x, weight), x)


def pulled_later(context):
    """The forward runs outside of a context, the backward inside."""

    def run(of, x, weight):
        x = x.clone().requires_grad_()
        y = of(x)
        with context() as mode:
            (gradient,) = torch.autograd.grad(y, x, weight)
        assert mode.recorded if isinstance(mode, RecordDispatch) else True
        return gradient

    return run


# Methods to compute a gradient of x; test_torch_compile.py has checkpoints.
GRADIENTS = {
    "plain": pulled,
    "with create_graph": functools.partial(pulled, create_graph=True),
    "under autocast": pulled_within(autocast(torch.bfloat16)),
    "backward under autocast": pulled_later(autocast(torch.float16)),
    "backward in a dispatch mode": pulled_later(RecordDispatch),
    "backward in a function mode": pulled_later(RecordFunctions),
    "backward on meta": pulled_later(lambda: torch.device("meta")),
}
