"""PyTorch, eager: every situation has the same bits and gradients, by either backend; DTensors too."""

import contextlib
import functools
import threading

import child
import pytest
from compare import judge, same
from torch_cases import (
    BY,
    DECLINED,
    FIELDS,
    GRADIENTS,
    HALF,
    IGNORED,
    KERNEL,
    OTHER,
    POS,
    ROPE,
    SERVED,
    RecordDispatch,
    Tagged,
    by,
    by_array_api,
    by_backend,
    forward_ad,
    judge_gradient,
    near,
    negated,
    normal,
)

import rope_array as ra
from rope_array._array_api.source import Positions
from rope_array._backends import _native
from rope_array._backends.torch import _eager
from rope_array._backends.torch.native import try_fast_tables

torch = pytest.importorskip("torch")
from torch._subclasses import FakeTensorMode  # noqa: E402

pytestmark = [pytest.mark.library("torch"), *IGNORED]


# ---- which backend serves ----


@pytest.mark.parametrize("name", ["cos", "sin"])
def test_one_table_alone_gets_a_gradient(name):
    x, tables = normal(2, len(POS), 16), ROPE.rotation(POS, like=normal(2, len(POS), 16))._asdict()
    tables[name] = tables[name].clone().requires_grad_()
    ROPE.rotation_from(**tables).apply(x).sum().backward()
    assert tables[name].grad.abs().sum() > 0


SITUATIONS = {name: (run, True) for name, run in SERVED.items()}
SITUATIONS |= {name: (run, False) for name, (run, _) in DECLINED.items()}


@by_backend
@by
@pytest.mark.parametrize("name", SITUATIONS)
def test_every_situation_has_the_same_bits(name, of, backend, runs):
    run, served = SITUATIONS[name]
    x = normal(2, 5, 16)
    expected = of(x, backend if served else backend or "torch")
    runs.clear()
    y = run(lambda x: of(x, backend), x)
    assert same(y, expected)
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
    for unreadable in (zeros, negated(x), x.as_subclass(Tagged)):
        assert torch.equal(ROPE.apply((x, unreadable), POS)[0].as_subclass(torch.Tensor), by_array_api(x))
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
    assert _eager.CAN_DETECT_MODES  # this PyTorch has them
    x = normal(2, 5, 16)
    with monkeypatch.context() as patched:
        patched.setattr(_eager, "CAN_DETECT_MODES", False)
        _eager.register_gate(_native.kernel)
        for of in BY.values():
            for tensor in (x, x.clone().requires_grad_()):
                assert same(of(tensor).detach(), by_array_api(x))
        assert not runs
        with pytest.raises(ra.BackendError, match="this version of PyTorch"):
            ROPE.apply(x, POS, backend="native")
    _eager.register_gate(_native.kernel)


@KERNEL
def test_a_mode_affects_its_own_thread_only(runs):
    x, ys = normal(2, 5, 16), []
    with RecordDispatch():
        assert same(ROPE.apply(x, POS), by_array_api(x))
        assert not runs
        thread = threading.Thread(target=lambda: ys.append(ROPE.apply(x, POS)))
        thread.start()
        thread.join()
    assert near(ys[0], by_array_api(x))
    assert len(runs) == 1


# ---- errors ----


X, TABLES = torch.ones(5, 16), ROPE.rotation(POS, like=torch.ones(5, 16))
BAD = {
    "a width": lambda x, **options: ROPE.apply(x[:, :8], 3, **options),
    "a length": lambda x, **options: ROPE.apply(x, torch.arange(4), **options),
    "an axis beyond 64 bits": lambda x, **options: ROPE.apply(x, 3, seq_axis=10**30, **options),
    "narrow tables": lambda x, **options: TABLES._replace(cos=TABLES.cos[:, :2]).apply(x, **options),
    "short tables": lambda x, **options: TABLES._replace(cos=TABLES.cos[:4]).apply(x, **options),
}


@KERNEL
@pytest.mark.parametrize("name", BAD)
def test_every_backend_raises_the_same_error_where_a_gradient_is_recorded(name):
    """The kernel leaves invalid calls to the full checks; test_errors.py has many without a gradient."""
    texts = set()
    for backend in (None, "native", "torch"):
        with pytest.raises(ra.RoPEError) as caught:
            BAD[name](X.clone().requires_grad_(), backend=backend)
        texts.add((type(caught.value), str(caught.value)))
    assert len(texts) == 1


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


# ---- gradients: methods, hooks, memory, threads; test_torch_transforms.py has the derivatives ----


ONES = torch.ones(2, 5, 16)


@by_backend
@by
@pytest.mark.parametrize("name", GRADIENTS)
def test_every_gradient_is_the_adjoint(name, of, backend):
    x, weight = normal(2, 5, 16), normal(2, 5, 16, seed=1)
    gradient = GRADIENTS[name](lambda x: of(x, backend), x, weight)
    judge_gradient(gradient, weight)
    assert near(gradient, GRADIENTS["plain"](by_array_api, x, weight))


@by
def test_backward_under_autocast_that_the_kernel_declines(of):
    """Autocast joins no tensors of the other 16-bit dtype, so PyTorch's operations run without it."""
    x, weight = (normal(2, 5, 16, dtype="bfloat16", seed=seed) for seed in (0, 1))
    y = of(x.requires_grad_())
    with torch.autocast("cpu", dtype=torch.float16), RecordDispatch() as mode:
        (gradient,) = torch.autograd.grad(y, x, weight)
    assert mode.recorded
    judge_gradient(gradient, weight)


def test_an_active_transform_of_other_tensors(runs):
    """The kernel declines: the transform may capture a tensor that the call makes. vmap captures none."""
    x, ys = normal(2, 5, 16), []
    expected = by_array_api(x)
    for transform, served in ((torch.func.jacrev, False), (torch.func.vmap, True)):
        transform(lambda dummy: ys.append(ROPE.apply(x, POS)) or 2 * dummy)(torch.zeros(2))
        assert torch.equal(ys.pop(), expected)
        assert bool(runs) == (served and _native.kernel is not None)


def test_gradient_outside_of_a_transform_inside():
    """An outer graph records a tensor that an inner transform captures."""
    x, scale = normal(5, 16), torch.tensor(2.0, requires_grad=True)

    def gradient(of):
        inner = torch.func.grad(lambda x: (of(x * scale) ** 2).sum())(x)
        return torch.autograd.grad(inner.sum(), scale)[0]

    expected = gradient(by_array_api)
    assert torch.allclose(gradient(lambda x: ROPE.apply(x, POS)), expected)
    assert expected.abs() > 1e-3


@by
@KERNEL
def test_forward_mode_over_a_gradient_that_the_kernel_recorded(of, runs):
    """The forward is recorded outside; the backward runs on dual numbers, and keeps their tangents."""
    x, weight, tangent = (normal(2, 5, 16, seed=seed) for seed in range(3))
    y = of(x.requires_grad_())
    assert runs
    runs.clear()
    with forward_ad.dual_level():
        (gradient,) = torch.autograd.grad(y, x, forward_ad.make_dual(weight, tangent))
        for rotated, expected in zip(forward_ad.unpack_dual(gradient), (weight, tangent), strict=True):
            judge_gradient(rotated, expected)
    assert not runs


def test_cotangents_without_memory_of_their_own():
    x = normal(2, 5, 16).requires_grad_()
    for of in BY.values():
        weight = negated(normal(2, 5, 16))
        (gradient,) = torch.autograd.grad(of(x), x, weight)
        judge_gradient(gradient, weight.resolve_neg())
        (gradient,) = torch.autograd.grad(of(x), x, torch._efficientzerotensor(2, 5, 16))
        assert not gradient.any()


def test_a_tuple_of_which_some_require_a_gradient_or_get_one():
    q, k = normal(2, 5, 16).requires_grad_(), normal(5, 16, seed=1)
    for of in (lambda *xs: ROPE.apply(xs, POS), lambda *xs: ROPE.rotation(POS, like=q).apply(xs)):
        for xs in ((q, k), (k, q)):
            ys = of(*xs)
            assert [y.requires_grad for y in ys] == [x.requires_grad for x in xs]
            (gradient,) = torch.autograd.grad(sum(y.sum() for y in ys), q)
            judge_gradient(gradient, ONES)
        leaf = k.clone().requires_grad_()
        of_q, of_k = torch.autograd.grad(of(q, leaf)[1].sum(), (q, leaf), allow_unused=True)
        assert of_q is None or not of_q.any()
        judge_gradient(of_k, ONES[0])


@KERNEL
def test_a_tuple_of_several_dtypes(runs):
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float64)
    xs, weights = (
        tuple(normal(2, 5, 16, dtype=dtype, seed=seed + i) for i, dtype in enumerate(dtypes))
        for seed in (0, 9)
    )
    leaves = tuple(x.requires_grad_() for x in xs)
    ys = ROPE.apply(leaves, POS)
    runs.clear()
    gradients = torch.autograd.grad(ys, leaves, weights)
    assert runs
    for x, y, gradient, weight in zip(leaves, ys, gradients, weights, strict=True):
        alone = ROPE.apply(x, POS)
        assert same(y.detach(), alone.detach())
        assert same(gradient, torch.autograd.grad(alone, x, weight)[0])
        judge_gradient(gradient, weight)


# ---- gradients: memory that is written between forward and backward ----


@KERNEL
@pytest.mark.parametrize("changed", ["pos", "pos of a tuple", "sin"])
def test_a_source_changed_between_forward_and_backward_is_noticed(changed):
    x, pos = normal(2, 5, 16).requires_grad_(), POS.clone()
    rotation = ROPE.rotation(POS, like=x)
    if changed == "sin":
        y = rotation.apply(x)
        rotation.sin.neg_()
    else:
        y = ROPE.apply(x, pos) if changed == "pos" else ROPE.apply((x, x), pos)[0]
        pos += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_positions_of_other_integers_are_copied():
    x = normal(2, 5, 16).requires_grad_()
    for dtype in (torch.int32, torch.uint8, torch.int16, torch.float32):
        pos = torch.arange(5).to(dtype)
        y = ROPE.apply(x, pos)
        pos += 1
        judge_gradient(torch.autograd.grad(y, x, ONES)[0], ONES, range(5))


@KERNEL
@pytest.mark.parametrize(
    ("seq_axis", "shape"), [(-2, (2, 4)), (-3, (2, 4)), (0, (2, 4)), (-2, (1, 4)), (-2, ())]
)
@pytest.mark.parametrize("name", ["interleaved", "partial to interleaved", "blocks of axes"])
def test_gradients_of_positions_and_tables_by_the_kernel(name, seq_axis, shape, runs):
    """The numbers of x differ along each axis, so a sum over a wrong one is another gradient."""
    rope = {
        "interleaved": ra.RoPE(6),
        "partial to interleaved": ra.RoPE(
            8, rotary_dim=6, rotary_start=2, pairing="half", out_pairing="interleaved", attention_factor=1.3
        ),
        "blocks of axes": ra.RoPE(8, pairing="half", axes=ra.Axes.axial(4, 4, blocks=True)),
    }[name]
    coordinates = (2,) if rope.axes else ()
    sizes = {-2: (2, 3, 4), -3: (2, 4, 3), 0: (4, 2, 3)}[seq_axis]
    x = normal(*sizes, rope.head_dim).double().requires_grad_()
    pos = (3 * normal(*shape, *coordinates, seed=1)).double().requires_grad_()
    tables = [table.detach().requires_grad_() for table in rope.rotation(pos, like=x)]
    by_positions = functools.partial(rope.apply, seq_axis=seq_axis, backend="native")

    def by_tables(x, cos, sin):
        return rope.rotation_from(cos, sin).apply((x, 2 * x), seq_axis=seq_axis, backend="native")

    for function, arguments in ((by_positions, (x, pos)), (by_tables, (x, *tables))):
        runs.clear()
        assert torch.autograd.gradcheck(function, arguments)
        assert torch.autograd.gradgradcheck(function, arguments)
        assert runs


def test_neither_x_nor_the_result_is_kept():
    """The rotation is linear: both may be written in place, and hooks on saved tensors see none of them."""
    leaf, packed = normal(2, 5, 16).requires_grad_(), []
    for of in BY.values():
        x = leaf * 2
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: packed.append(t) or t.numpy().copy(), torch.from_numpy
        ):
            y = of(x)
        x.zero_()
        y.mul_(3)
        (gradient,) = torch.autograd.grad(y, leaf, ONES)
        judge_gradient(gradient / 6, ONES)
    assert packed
    assert all(tensor.shape != leaf.shape for tensor in packed)


def test_inference_tensors_where_gradients_are_recorded(runs):
    """Of x, positions or tables: PyTorch may refuse to save them; otherwise the gradient is right."""
    with torch.inference_mode():
        pos, inference = POS.clone(), normal(2, 5, 16)
        rotation = ROPE.rotation(pos, like=inference)
    x, weight = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1)
    calls = {
        "positions": lambda: ROPE.apply(x, pos),
        "positions of a tuple": lambda: ROPE.apply((inference, x), pos)[1],
        "tables": lambda: rotation.apply(x),
    }
    for name, call in calls.items():
        try:
            y = call()
        except RuntimeError as error:
            assert name == "tables" and "Inference tensors" in str(error)  # noqa: PT017, PT018
            continue
        judge_gradient(torch.autograd.grad(y, x, weight)[0], weight)
    assert same(ROPE.apply(inference, pos), ROPE.apply(normal(2, 5, 16), POS))


# ---- settings, devices, fake tensors ----


def test_autocast_changes_nothing():
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
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            for name, run in cases.items():
                assert same(run(), wanted[name]), name


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
    expected = HALF.apply(x, pos), HALF.rotation(pos, like=x).cos
    for setting, changed, default in (("dtype", torch.float16, torch.float32), ("device", "meta", None)):
        change = getattr(torch, f"set_default_{setting}")
        change(changed)
        try:
            assert same((HALF.apply(x, pos), HALF.rotation(pos, like=x).cos), expected)
        finally:
            change(default)


@pytest.mark.parametrize("name", POSITIONS)
def test_tensors_without_values(name):
    """On meta, and fake ones outside of their mode and in it; none is cached for real tensors."""
    mode, x, pos = FakeTensorMode(), normal(2, 3, 5, 16, dtype=torch.bfloat16), POSITIONS[name]
    without = contextlib.nullcontext()
    to_meta = functools.partial(torch.Tensor.to, device="meta")
    for convert, context in ((to_meta, without), (mode.from_tensor, without), (mode.from_tensor, mode)):
        like, at = (convert(value) if isinstance(value, torch.Tensor) else value for value in (x, pos))
        with context:
            ys = [HALF.apply(like, at), OTHER.rotation(at, like=like).apply(like)]
            ys += [HALF.apply((like, like.double()), at)[0], ra.apply(like, at, rotary_dim=0)]
        for y in ys:
            assert type(y) is type(like)
            assert (y.device, y.dtype, y.shape) == (like.device, x.dtype, x.shape)
    assert type(HALF.apply(normal(2, 5, 16), 3)) is torch.Tensor


@KERNEL
def test_tables_made_first_in_a_mode_do_not_stay_in_it():
    """A rope of another width for each mode: its constants are made in the mode."""
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


AXES = ra.RoPE(16, axes=ra.Axes.chunked(2, 3, 3), pairing="half")


@KERNEL
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("rope", [HALF, ROPE, AXES], ids=["half", "partial with amplitude", "axes"])
def test_tables_by_the_kernel_have_the_array_api_backend_s_bits(rope, dtype, runs):
    x = torch.zeros(1, dtype=getattr(torch, dtype))
    far = torch.arange(12).reshape(2, 6) * 123_457 - 5
    for pos in (far, torch.tensor([7], dtype=torch.int32), torch.tensor(2**31 - 1), range(5)):
        if rope is AXES:
            pos = torch.as_tensor([*pos] if type(pos) is range else pos)
            pos = torch.stack((pos, 3 * pos, -pos), -1)
        runs.clear()
        tables = tuple(rope.rotation(pos, like=x))
        assert runs
        assert same(tables, tuple(rope.rotation(pos, like=x, backend="array-api")))


@pytest.mark.slow
@pytest.mark.parametrize(
    "rank", [3, *(pytest.param(rank, marks=pytest.mark.nightly) for rank in (0, 1))], ids="rank {}".format
)
def test_dtensor(rank):
    """Each rank has its own process, as PyTorch caches a mesh and its rank."""
    if not torch.distributed.is_available():
        pytest.skip("this build of torch has no torch.distributed")
    child.run("import dtensor_cases; dtensor_cases.main()", str(rank))
