"""PyTorch, eager: every situation has the same bits, by the kernel or by the array-api backend."""

import copy
import os
import pickle
import threading

import child
import compare
import numpy as np
import pytest
from compare import judge, same
from torch_cases import (
    BY,
    DECLINED,
    FIELDS,
    HALF,
    IGNORED,
    KERNEL,
    OTHER,
    POS,
    ROPE,
    SERVED,
    Attention,
    RecordDispatch,
    Tagged,
    by,
    by_array_api,
    by_backend,
    near,
    negated,
    normal,
)

import rope_array as ra
from rope_array._array_api.source import Positions
from rope_array._backends import _native
from rope_array._backends.torch import _gate
from rope_array._backends.torch._cos_sin import tables_by_kernel, try_fast_tables
from rope_array.testing import apply_definition
from rope_array.testing._contract import allowed, assert_contract, compute_dtype, eps

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.library("torch"), *IGNORED]


SITUATIONS = {name: (run, True) for name, run in SERVED.items()}
SITUATIONS |= {name: (run, False) for name, (run, _) in DECLINED.items()}


@by_backend
@by
@pytest.mark.parametrize("name", SITUATIONS)
def test_every_situation_has_the_same_bits(name, of, backend, runs):
    run, served = SITUATIONS[name]
    x = normal(2, 5, 16)
    want = of(x, backend if served else backend or "torch")
    runs.clear()
    y = run(lambda x: of(x, backend), x)
    assert same(y, want)
    assert type(y) is torch.Tensor
    assert bool(runs) == (served and backend is None)


@KERNEL
@pytest.mark.parametrize("name", [name for name, (_, reason) in DECLINED.items() if reason])
def test_a_declined_situation_is_named(name):
    run, reason = DECLINED[name]

    def refused(x):
        rotation = HALF.rotation(POS, like=x)
        for call in (
            lambda: HALF.apply(x, POS, backend="native"),
            lambda: rotation.apply(x, backend="native"),
        ):
            with pytest.raises(ra.BackendError, match=reason):
                call()
        assert reason in ra.explain(x, POS, HALF).declined["native"]
        return by_array_api(x)

    run(refused, normal(2, 5, 16))


@KERNEL
def test_zeros_without_memory_are_declined(runs):
    x, plain = torch._efficientzerotensor(2, 5, 16), torch.zeros(2, 5, 16)
    for of in BY.values():
        assert torch.equal(of(x), by_array_api(plain))
    for other in (x, negated(plain), plain.as_subclass(Tagged)):  # one array of the tuple is enough
        assert torch.equal(ROPE.apply((plain, other), POS)[1].as_subclass(torch.Tensor), by_array_api(plain))
    assert not runs
    with pytest.raises(ra.BackendError, match="not in memory as they are"):
        ROPE.apply(x, POS, backend="native")


def test_a_flop_counter_makes_the_kernel_decline(runs):
    from torch.utils.flop_counter import FlopCounterMode

    x = normal(5, 16)
    with FlopCounterMode(display=False) as counter:
        y = by_array_api(x) @ x.T
        z = BY["apply"](x) @ x.T
    assert same(y, z)
    assert counter.get_total_flops() == 2 * 2 * 5 * 5 * 16
    assert not runs


def test_lazy_or_subclassed_positions_and_tables_are_declined(runs):
    x = normal(2, 5, 16)
    reals = torch.complex(torch.zeros(5), -torch.arange(5.0)).conj().imag
    assert reals.is_neg()
    assert torch.equal(ROPE.apply(x, reals), ROPE.apply(x, torch.arange(5.0), backend="torch"))
    zeros = torch._efficientzerotensor(5, dtype=torch.int64)
    assert same(ROPE.apply(x, zeros), by_array_api(x, torch.zeros(5, dtype=torch.int64)))
    tagged = POS.as_subclass(Tagged)
    assert same(ROPE.apply(x, tagged).as_subclass(torch.Tensor), by_array_api(x))
    rotation = ROPE.rotation(POS, like=x, backend="torch")
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


@KERNEL
def test_another_pytorch_without_the_private_names(runs, monkeypatch):
    """Without PyTorch's private names modes cannot be detected, so the kernel declines every call."""
    x = normal(2, 5, 16)
    want = by_array_api(x)
    with monkeypatch.context() as patched:
        patched.setattr(_gate, "CAN_DETECT_MODES", False)
        _gate.give_to(_native.kernel)
        for of in BY.values():
            assert same(of(x), want)
            leaf = x.clone().requires_grad_()
            assert same(of(leaf).detach(), want)
        assert not runs
        with pytest.raises(ra.BackendError, match="this version of PyTorch"):
            ROPE.apply(x, POS, backend="native")
    _gate.give_to(_native.kernel)


@KERNEL
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_the_mode_of_the_first_call_changes_no_later_backend():
    """The kernel registers PyTorch's types in its first call, in any mode."""
    script = """
        import contextlib, os, traceback, torch
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

        def check(name):
            with contexts[name]():
                if name == "vmap":
                    torch.func.vmap(lambda x: rope.apply(x, 3))(torch.ones(2, 5, 16))
                else:
                    rope.apply(torch.ones(5, 16), 3)
            for x in (torch.ones(5, 16), torch.ones(5, 16, requires_grad=True)):
                assert ra.explain(x, 3, rope).backend == "native", name
                with torch.inference_mode():
                    assert ra.explain(torch.ones(5, 16), 3, rope).backend == "native", name

        for name in contexts:  # a process for each first call, which PyTorch need not be imported for again
            if (process := os.fork()) == 0:
                try:
                    check(name)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            assert os.waitpid(process, 0)[1] == 0, name
    """
    child.run(script)


def test_eager_calls_do_not_import_the_compiler():
    """torch._dynamo takes a second to import, which a first call without torch.compile need not wait for."""
    script = """
        import sys, torch
        import rope_array as ra
        rope, pos = ra.RoPE(16), torch.arange(3)
        x = torch.ones(2, 3, 16, requires_grad=True)
        ra.apply(x, pos).sum().backward()
        rope.rotation(pos, like=x).apply((x, x))
        ra.torch.RotaryEmbedding(rope)(x, pos)
        print("torch._dynamo" in sys.modules)
    """
    assert child.run(script).split() == ["False"]


BAD = {
    "a single number": (lambda: torch.ones(()), 3, {}),
    "a width": (lambda: torch.ones(5, 8), 3, {}),
    "a length": (lambda: torch.ones(5, 16), torch.arange(4), {}),
    "too many axes": (lambda: torch.ones(5, 16), torch.ones(5, 5, dtype=torch.int64), {}),
    "an axis": (lambda: torch.ones(5, 16), 3, {"seq_axis": 7}),
    "an axis of a vector": (lambda: torch.ones(16), 3, {"seq_axis": 0}),
    "an axis beyond 64 bits": (lambda: torch.ones(5, 16), 3, {"seq_axis": 10**30}),
    "complex numbers": (lambda: torch.ones(5, 16, dtype=torch.complex64), 3, {}),
    "eight bits": (lambda: torch.ones(5, 16).to(torch.float8_e5m2), 3, {}),
    "positions of booleans": (lambda: torch.ones(5, 16), torch.ones(5, dtype=torch.bool), {}),
    "a position beyond 64 bits": (lambda: torch.ones(5, 16), 2**63, {}),
}


@KERNEL
@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "requires grad"])
def test_every_backend_raises_the_same_error(name, grad):
    """try_fast leaves invalid calls to the full checks, which raise."""
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


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "requires grad"])
def test_tables_that_do_not_fit_are_refused(grad):
    x, rotation = torch.ones(5, 16, requires_grad=grad), ROPE.rotation(POS, like=torch.ones(5, 16))
    for cos, sin in [((5, 2), (5, 2)), ((5, 4), (1, 4)), ((4, 4), (4, 4)), ((1, 5, 4), (1, 5, 4)), ((), ())]:
        with pytest.raises(ra.RoPEError):
            rotation._replace(cos=torch.ones(cos), sin=torch.ones(sin)).apply(x)


@pytest.mark.parametrize("axes", [63, 64, 65, 70], ids="{} axes".format)
def test_any_number_of_axes(axes):
    x = normal(5, 16).reshape([1] * (axes - 2) + [5, 16])
    of = [lambda x, b: ROPE.apply(x, 7, backend=b), lambda x, b: ROPE.rotation(7, like=x).apply(x, backend=b)]
    for rotated in of:
        leaf = x.clone().requires_grad_()
        gradient = lambda b, r=rotated, a=leaf: torch.autograd.grad(r(a, b), a, x)[0]  # noqa: E731
        for make in (lambda b, r=rotated: r(x, b), gradient):
            own, expected = (make(backend).reshape(5, 16) for backend in (None, "torch"))
            assert near(own, expected)


def test_the_private_names_exist():
    """If PyTorch drops a private name, the kernel declines every call: fail here, not in a benchmark."""
    assert _gate.CAN_DETECT_MODES


@KERNEL
def test_a_mode_affects_its_own_thread_only(runs):
    """A mode of this thread does not make another thread's calls decline."""
    x, results = normal(2, 5, 16), []
    with RecordDispatch():
        assert same(ROPE.apply(x, POS), by_array_api(x))
        assert not runs
        thread = threading.Thread(target=lambda: results.append(ROPE.apply(x, POS)))
        thread.start()
        thread.join()
    assert near(results[0], by_array_api(x))
    assert len(runs) == 1


def freed(x):
    x.untyped_storage().resize_(0)
    return x


FREED = {
    "x": lambda: ROPE.apply(freed(normal(2, 5, 16)), 3),
    "x with a gradient": lambda: ROPE.apply(freed(normal(2, 5, 16)).requires_grad_(), 3),
    "positions": lambda: ROPE.apply(normal(2, 5, 16), freed(POS.clone())),
    "positions, x with a gradient": lambda: ROPE.apply(normal(2, 5, 16).requires_grad_(), freed(POS.clone())),
    "one of a tuple": lambda: ROPE.apply((normal(2, 5, 16), freed(normal(2, 5, 16))), POS),
    "out": lambda: ROPE.apply(normal(2, 5, 16), POS, out=freed(normal(2, 5, 16))),
    "x of a rotation": lambda: ROPE.rotation(POS, like=normal(2)).apply(freed(normal(2, 5, 16))),
    "tables": lambda: rotation_of_freed_tables().apply(normal(2, 5, 16)),
}


def rotation_of_freed_tables():
    rotation = ROPE.rotation(POS, like=torch.zeros(2))
    return rotation._replace(cos=freed(rotation.cos), sin=freed(rotation.sin))


@pytest.mark.parametrize("name", FREED)
def test_freed_memory_is_an_error(name):
    ROPE.apply(normal(2, 5, 16), POS)  # a first call, so that try_fast can serve the next
    with pytest.raises((RuntimeError, ra.ArrayTypeError)):
        FREED[name]()


def test_freed_memory_without_elements_is_accepted():
    x = freed(torch.zeros(0, 5, 16))
    assert ROPE.apply(x, POS).shape == x.shape


def test_autocast_and_matmul_precision_change_nothing():
    x, pos = normal(2, 5, 16), torch.tensor([0, 1, 257, 123457, 2**31 - 1])
    cases = {
        "rope": lambda: HALF.apply(x, pos),
        "float": lambda: HALF.apply(x, pos.float() + 0.5),
        "learned": lambda: HALF.rotation(pos, like=x, inv_freq=torch.tensor(HALF.frequencies)).apply(x),
        "half": lambda: HALF.apply(x.bfloat16(), pos),
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
    truth, cos = HALF.apply(x, pos), HALF.rotation(pos, like=x).cos
    judge(truth, x, pos, base=500_000.0, pairing="half")
    assert compare.name_of(cos.dtype) == compute_dtype(compare.name_of(x.dtype))
    try:
        for default in (torch.float64, torch.float16):
            torch.set_default_dtype(default)
            assert same(HALF.apply(x, pos), truth)
            assert same(HALF.rotation(pos, like=x).cos, cos)
    finally:
        torch.set_default_dtype(torch.float32)
    try:
        torch.set_default_device("meta")
        assert same(HALF.apply(x, pos), truth)
        assert same(HALF.rotation(pos, like=x).cos, cos)
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("name", POSITIONS)
def test_meta(name):
    x, pos = normal(2, 3, 5, 16, dtype=torch.bfloat16).to("meta"), POSITIONS[name]
    pos = pos.to("meta") if isinstance(pos, torch.Tensor) else pos
    for y in (HALF.apply(x, pos), OTHER.rotation(pos, like=x).apply(x), ra.apply(x, pos, rotary_dim=0)):
        assert (y.device.type, y.dtype, y.shape) == ("meta", x.dtype, x.shape)


def test_two_devices_are_refused():
    with pytest.raises(ra.ArrayTypeError, match=r"pos is on cpu and x on meta"):
        HALF.apply(normal(5, 16).to("meta"), torch.arange(5))
    with pytest.raises(ra.ArrayTypeError, match=r"meta"):
        HALF.apply((normal(5, 16), normal(5, 16).to("meta")), 3)


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("inside", [True, False], ids=["in the mode", "outside"])
def test_fake_tensors(name, inside):
    from torch._subclasses import FakeTensor, FakeTensorMode

    mode, pos = FakeTensorMode(), POSITIONS[name]
    x = mode.from_tensor(normal(2, 3, 5, 16, dtype=torch.bfloat16))
    pos = mode.from_tensor(pos) if isinstance(pos, torch.Tensor) else pos

    def check():
        for y in (
            HALF.apply(x, pos),
            OTHER.rotation(pos, like=x).apply(x),
            HALF.apply((x, x.double()), pos)[0],
        ):
            assert isinstance(y, FakeTensor)
            assert (y.device.type, y.dtype, y.shape) == ("cpu", x.dtype, x.shape)

    if inside:
        with mode:
            check()
    else:
        check()
    # No fake tensor is cached for real tensors.
    assert not isinstance(HALF.apply(normal(2, 5, 16), 3), FakeTensor)


def test_parameter_gives_a_plain_tensor():
    x = normal(2, 5, 16)
    parameter = torch.nn.Parameter(x.clone())
    y = HALF.apply(parameter, torch.arange(5))
    assert type(y) is torch.Tensor
    assert y.requires_grad
    assert same(y.detach(), HALF.apply(x, torch.arange(5)))
    positions = torch.nn.Parameter(torch.arange(5.0))
    assert HALF.apply(x, positions).requires_grad
    identity = ra.apply(parameter, 3, rotary_dim=0)
    assert type(identity) is torch.Tensor
    (gradient,) = torch.autograd.grad(identity.sum(), parameter)
    assert same(gradient, torch.ones_like(x))


LAYOUTS = {
    "stride 0 in the sequence": lambda: normal(3, 1, 16).expand(3, 5, 16),
    "stride 0 in the features": lambda: normal(3, 5, 1).expand(3, 5, 16),
    "flipped": lambda: normal(3, 5, 16).flip(1, 2),
    "diagonal": lambda: normal(5, 16, 5).diagonal(dim1=0, dim2=2).T.expand(3, 5, 16),
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
            y = HALF.apply(x, pos)
            assert (y.shape, y.dtype) == (x.shape, x.dtype)
            y.sum().backward()


def storages(tensors):
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rotary_dim", [0, 2, 16], ids=["none", "one pair", "whole"])
@pytest.mark.parametrize("pos", [0, torch.zeros(5), torch.arange(5)], ids=["number", "floats", "integers"])
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


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    "fields",
    [
        {"pairing": "half"},
        {"rotary_dim": 8, "attention_factor": 1.3, "scaling": ra.Llama3(factor=8.0)},
        {"axes": ra.Axes.chunked(2, 3, 3), "pairing": "half"},
    ],
    ids=["half", "partial with amplitude", "axes"],
)
def test_tables_by_the_kernel_have_the_array_api_backend_s_bits(dtype, fields):
    rope, x = ra.RoPE(head_dim=16, **fields), torch.zeros(1, dtype=getattr(torch, dtype))
    for pos in (
        torch.arange(9),
        torch.arange(12).reshape(2, 6) * 123_457 - 5,
        torch.tensor([7], dtype=torch.int32),
        torch.tensor(2**31 - 1),
        range(5),
    ):
        if rope.axes is not None:
            pos = torch.as_tensor([*pos] if type(pos) is range else pos)
            pos = torch.stack((pos, 3 * pos, -pos), -1)
        made, expected = rope.rotation(pos, like=x), rope.rotation(pos, like=x, backend="array-api")
        made_by_kernel = tables_by_kernel(_native.kernel, Positions(pos, rope._plan), x, _native.prepare)
        assert made_by_kernel is not NotImplemented
        assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(made, expected, strict=True))


def test_tables_alias_no_positions():
    pos = torch.zeros(5)
    rotation = HALF.rotation(pos, like=normal(5, 16))
    assert len(storages([pos, rotation.cos, rotation.sin])) == 3


def test_dtypes_and_heads_in_a_tuple():
    pos = torch.tensor([[0, 5, 10**6, -3, 2**31 - 1]])
    dtypes = (torch.float16, torch.float64, torch.bfloat16, torch.float32)
    xs = tuple(normal(2, heads, 5, 16, dtype=d) for heads, d in zip((8, 1, 2, 3), dtypes, strict=True))
    ys = HALF.apply(xs, pos)
    for x, y in zip(xs, ys, strict=True):
        judge(y, x, pos, base=500_000.0, pairing="half")
        assert same(y, HALF.apply(x, pos))
    shared = HALF.rotation(pos, like=xs[1]).apply(xs)
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
        HALF.apply(normal(2, 5, 16), pos)


def test_refused_tensors():
    x = normal(2, 5, 16)
    with pytest.raises(ra.ArrayTypeError, match="nested"):
        HALF.apply(torch.nested.as_nested_tensor([x[0], x[1, :3]], layout=torch.jagged), 3)
    with pytest.raises(ra.ArrayTypeError, match="to_dense"):
        HALF.apply(x.to_sparse(), 3)
    with pytest.raises(ra.ArrayTypeError, match=r"torch\.as_tensor"):
        HALF.apply(x, np.arange(5))
    with pytest.raises(ra.ArrayTypeError, match="real floating point"):
        HALF.apply(x.to(torch.complex64), 3)
    with pytest.raises(ra.ArrayTypeError, match="real floating point"):
        HALF.apply(x.int(), 3)


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
        assert other.rope == HALF
        assert hash(other.rope) == hash(HALF)
        assert same(other(x, pos), HALF.apply(x, pos))
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
    assert spec != _pytree.tree_flatten(HALF.rotation(pos, like=x))[1]
    moved = pickle.loads(pickle.dumps(rotation))
    assert same(moved.apply(x), rotation.apply(x))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 3], ids="rank {}".format)
def test_dtensor(rank):
    # Each rank has its own process, as PyTorch caches a mesh and its rank.
    if not torch.distributed.is_available():
        pytest.skip("this build of torch has no torch.distributed")
    child.run("import dtensor_cases; dtensor_cases.main()", str(rank))


@KERNEL
def test_tables_made_first_in_a_mode_do_not_stay_in_it():
    """A rope of another width for each mode: its constants are made in the mode."""
    from torch._subclasses import FakeTensorMode

    modes = [FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode()]
    for width, mode in zip((46, 50), modes, strict=True):
        rope, x, pos = ra.RoPE(width), torch.ones(3, width), torch.tensor([0, 1, 2**31 - 1])
        with mode:
            rope.rotation(pos, like=x)
        assert try_fast_tables(Positions(pos, rope._plan), x) is not NotImplemented
        rotation = rope.rotation(pos, like=x)
        assert type(rotation.cos) is torch.Tensor
        assert not rotation.cos.is_inference()
        judge(rotation.apply(x), x, pos, head_dim=width)
