"""PyTorch, eager: every situation has the same bits, by the kernel or by the array-api backend."""

import copy
import pickle
import threading

import child
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

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.library("torch"), *IGNORED]


# ---- which backend serves ----


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
def test_tensors_without_plain_memory_are_declined(runs):
    """As x, as one of a tuple, as positions, and as tables."""
    x, zeros = normal(2, 5, 16), torch._efficientzerotensor(2, 5, 16)
    for of in BY.values():
        assert torch.equal(of(zeros), by_array_api(torch.zeros(2, 5, 16)))
    for other in (zeros, negated(x), x.as_subclass(Tagged)):
        assert torch.equal(ROPE.apply((x, other), POS)[0].as_subclass(torch.Tensor), by_array_api(x))
    assert not runs
    with pytest.raises(ra.BackendError, match="not in memory as they are"):
        ROPE.apply(zeros, POS, backend="native")

    floats, no_positions = torch.arange(5.0), torch._efficientzerotensor(5, dtype=torch.int64)
    assert same(ROPE.apply(x, negated(floats)), by_array_api(x, floats))
    assert same(ROPE.apply(x, no_positions), by_array_api(x, torch.zeros(5, dtype=torch.int64)))
    assert same(ROPE.apply(x, POS.as_subclass(Tagged)).as_subclass(torch.Tensor), by_array_api(x))
    rotation = ROPE.rotation(POS, like=x, backend="torch")
    for tables in ({"sin": negated(rotation.sin)}, {"cos": rotation.cos.as_subclass(Tagged)}):
        assert same(rotation._replace(**tables).apply(x).as_subclass(torch.Tensor), by_array_api(x))
    assert not runs


@KERNEL
def test_another_pytorch_without_the_private_names(runs, monkeypatch):
    """Without PyTorch's private names modes cannot be detected, so the kernel declines every call."""
    assert _gate.CAN_DETECT_MODES  # this PyTorch has them
    x = normal(2, 5, 16)
    with monkeypatch.context() as patched:
        patched.setattr(_gate, "CAN_DETECT_MODES", False)
        _gate.give_to(_native.kernel)
        for of in BY.values():
            for one in (x, x.clone().requires_grad_()):
                assert same(of(one).detach(), by_array_api(x))
        assert not runs
        with pytest.raises(ra.BackendError, match="this version of PyTorch"):
            ROPE.apply(x, POS, backend="native")
    _gate.give_to(_native.kernel)


@KERNEL
def test_a_mode_affects_its_own_thread_only(runs):
    x, results = normal(2, 5, 16), []
    with RecordDispatch():
        assert same(ROPE.apply(x, POS), by_array_api(x))
        assert not runs
        thread = threading.Thread(target=lambda: results.append(ROPE.apply(x, POS)))
        thread.start()
        thread.join()
    assert near(results[0], by_array_api(x))
    assert len(runs) == 1


# ---- errors ----


def with_tables(cos, sin):
    rotation = ROPE.rotation(POS, like=torch.ones(5, 16))
    return lambda x, **options: rotation._replace(cos=torch.ones(cos), sin=torch.ones(sin)).apply(
        x, **options
    )


def at(pos, **more):
    return lambda x, **options: ROPE.apply(x, pos, **more, **options)


def by_rotation(x, **options):
    return ROPE.rotation(POS, like=torch.ones(5, 16)).apply(x, **options)


X = torch.ones(5, 16)
BAD = {
    "a single number": (at(3), torch.ones(())),
    "a width": (at(3), torch.ones(5, 8)),
    "a width, by a rotation": (by_rotation, torch.ones(5, 8)),
    "a length": (at(torch.arange(4)), X),
    "too many axes": (at(torch.ones(5, 5, dtype=torch.int64)), X),
    "an axis": (at(3, seq_axis=7), X),
    "an axis of a vector": (at(3, seq_axis=0), torch.ones(16)),
    "an axis beyond 64 bits": (at(3, seq_axis=10**30), X),
    "complex numbers": (at(3), X.to(torch.complex64)),
    "complex numbers, by a rotation": (by_rotation, X.to(torch.complex64)),
    "eight bits": (at(3), X.to(torch.float8_e5m2)),
    "positions of booleans": (at(torch.ones(5, dtype=torch.bool)), X),
    "a position beyond 64 bits": (at(2**63), X),
    "narrow tables": (with_tables((5, 2), (5, 2)), X),
    "tables of two shapes": (with_tables((5, 4), (1, 4)), X),
    "short tables": (with_tables((4, 4), (4, 4)), X),
    "tables of more axes": (with_tables((1, 5, 4), (1, 5, 4)), X),
    "tables of no axes": (with_tables((), ()), X),
}


@KERNEL
@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "requires grad"])
def test_every_backend_raises_the_same_error(name, grad):
    """try_fast leaves invalid calls to the full checks, which raise."""
    call, x = BAD[name]
    texts = set()
    for backend in (None, "native", "torch"):
        with pytest.raises(ra.RoPEError) as caught:
            call(x.clone().requires_grad_(grad), backend=backend)
        texts.add((type(caught.value), str(caught.value)))
    assert len(texts) == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "bool", "uint64", "complex64"])
def test_refused_positions(dtype):
    with pytest.raises(ra.ArrayTypeError, match=dtype):
        HALF.apply(normal(2, 5, 16), torch.ones(5).to(getattr(torch, dtype)))


def freed(x):
    x.untyped_storage().resize_(0)
    return x


def new_x():
    return normal(2, 5, 16).requires_grad_()


ROTATION = ROPE.rotation(POS, like=torch.zeros(2))
FREED = {
    "x": lambda: ROPE.apply(freed(normal(2, 5, 16)), 3),
    "x with a gradient": lambda: ROPE.apply(freed(new_x()), 3),
    "positions": lambda: ROPE.apply(normal(2, 5, 16), freed(POS.clone())),
    "positions, x with a gradient": lambda: ROPE.apply(new_x(), freed(POS.clone())),
    "one of a tuple": lambda: ROPE.apply((normal(2, 5, 16), freed(normal(2, 5, 16))), POS),
    "out": lambda: ROPE.apply(normal(2, 5, 16), POS, out=freed(normal(2, 5, 16))),
    "x of a rotation": lambda: ROTATION.apply(freed(normal(2, 5, 16))),
    "tables": lambda: ROTATION._replace(cos=freed(ROTATION.cos.clone())).apply(normal(2, 5, 16)),
}


@pytest.mark.parametrize("name", FREED)
def test_freed_memory_is_an_error(name):
    ROPE.apply(normal(2, 5, 16), POS)  # a first call, so that try_fast can serve the next
    with pytest.raises((RuntimeError, ra.ArrayTypeError)):
        FREED[name]()
    assert ROPE.apply(freed(torch.zeros(0, 5, 16)), POS).shape == (0, 5, 16)  # no element is read


# ---- settings, devices, fake tensors ----


def test_autocast_and_matmul_precision_change_nothing():
    x, pos = normal(2, 5, 16), torch.tensor([0, 1, 257, 123457, 2**31 - 1])
    cases = {
        "rope": lambda: HALF.apply(x, pos),
        "float": lambda: HALF.apply(x, pos.float() + 0.5),
        "learned": lambda: HALF.rotation(pos, like=x, inv_freq=torch.tensor(HALF.frequencies)).apply(x),
        "half": lambda: HALF.apply(x.bfloat16(), pos),
        "half by operations": lambda: HALF.apply(x.bfloat16(), pos, backend="torch"),
    }
    wanted = {name: run() for name, run in cases.items()}
    judge(wanted["rope"], x, pos, **FIELDS["half"])
    before = torch.get_float32_matmul_precision()
    try:
        for precision, dtype in (("medium", torch.bfloat16), ("high", torch.float16)):
            torch.set_float32_matmul_precision(precision)
            with torch.autocast("cpu", dtype=dtype):
                for name, run in cases.items():
                    assert same(run(), wanted[name]), name
    finally:
        torch.set_float32_matmul_precision(before)


POSITIONS = {
    "int": 7,
    "float": 2.5,
    "range": range(3, 8),
    "list of floats": [0, 1.5, 2, 3, 4],
    "tensor": torch.arange(5),
    "tensor of floats": torch.arange(5) + 0.25,
}


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_default_dtype_and_device_change_nothing(name, dtype):
    x, pos = normal(2, 5, 16, dtype=dtype), POSITIONS[name]
    want = HALF.apply(x, pos), HALF.rotation(pos, like=x).cos
    for setting, other, usual in (("dtype", torch.float16, torch.float32), ("device", "meta", None)):
        change = getattr(torch, f"set_default_{setting}")
        change(other)
        try:
            assert same((HALF.apply(x, pos), HALF.rotation(pos, like=x).cos), want)
        finally:
            change(usual)


@pytest.mark.parametrize("name", POSITIONS)
def test_meta(name):
    x, pos = normal(2, 3, 5, 16, dtype=torch.bfloat16).to("meta"), POSITIONS[name]
    pos = pos.to("meta") if isinstance(pos, torch.Tensor) else pos
    for y in (HALF.apply(x, pos), OTHER.rotation(pos, like=x).apply(x), ra.apply(x, pos, rotary_dim=0)):
        assert (y.device.type, y.dtype, y.shape) == ("meta", x.dtype, x.shape)


@pytest.mark.parametrize("name", POSITIONS)
def test_fake_tensors(name):
    """In their mode and outside of it; none is cached for real tensors."""
    from torch._subclasses import FakeTensor, FakeTensorMode

    mode, pos = FakeTensorMode(), POSITIONS[name]
    x = mode.from_tensor(normal(2, 3, 5, 16, dtype=torch.bfloat16))
    pos = mode.from_tensor(pos) if isinstance(pos, torch.Tensor) else pos
    ys = [HALF.apply(x, pos), OTHER.rotation(pos, like=x).apply(x), HALF.apply((x, x.double()), pos)[0]]
    with mode:
        ys += [HALF.apply(x, pos), OTHER.rotation(pos, like=x).apply(x)]
    for y in ys:
        assert isinstance(y, FakeTensor)
        assert (y.device.type, y.dtype, y.shape) == ("cpu", x.dtype, x.shape)
    assert not isinstance(HALF.apply(normal(2, 5, 16), 3), FakeTensor)


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


# ---- values and memory ----


LAYOUTS = {
    "stride 0 in the features": lambda: normal(3, 5, 1).expand(3, 5, 16),
    "flipped": lambda: normal(3, 5, 16).flip(1, 2),
    "diagonal": lambda: normal(5, 16, 5).diagonal(dim1=0, dim2=2).T.expand(3, 5, 16),
    "negated view": lambda: torch.complex(normal(3, 5, 16), normal(3, 5, 16, seed=1)).conj().imag,
}


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name, fields):
    x, pos = LAYOUTS[name](), torch.arange(10)[::2] * 1_000_003
    version, bits = x._version, x.resolve_neg().clone(memory_format=torch.contiguous_format)
    y = ra.apply(x, pos, **fields)
    assert same(y, ra.apply(bits, pos.clone(), **fields))
    judge(y, bits, pos, **fields)
    assert x._version == version
    assert torch.equal(x, bits)


@KERNEL
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
        assert same(tuple(made), tuple(expected))


def test_module_with_a_rope_is_copied_and_pickled():
    module, x, pos = Attention(), normal(2, 5, 16), torch.arange(5)
    copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), module.to(torch.float64)]
    for other in copies:
        assert other.rope == HALF
        assert hash(other.rope) == hash(HALF)
        assert same(other(x, pos), HALF.apply(x, pos))
    assert list(module.state_dict()) == ["linear.weight", "linear.bias"]
    assert not list(module.buffers())


@pytest.mark.slow
@pytest.mark.parametrize(
    "rank", [3, *(pytest.param(rank, marks=pytest.mark.nightly) for rank in (0, 1))], ids="rank {}".format
)
def test_dtensor(rank):
    """Each rank has its own process, as PyTorch caches a mesh and its rank."""
    if not torch.distributed.is_available():
        pytest.skip("this build of torch has no torch.distributed")
    child.run("import dtensor_cases; dtensor_cases.main()", str(rank))
