"""Gradients in PyTorch: methods, hooks, memory and threads; test_torch_transforms.py has the derivatives."""

import numpy as np
import pytest
from compare import KERNEL, judge, same
from threads import in_threads
from torch_cases import (
    BY,
    FIELDS,
    GRADIENTS,
    IGNORED,
    LIST,
    POS,
    ROPE,
    ROPES,
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
from rope_array.testing import apply_definition

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.library("torch"), *IGNORED]
ONES = torch.ones(2, 5, 16)


@by_backend
@by
@pytest.mark.parametrize("name", GRADIENTS)
def test_every_gradient_is_the_adjoint(name, of, backend):
    x, weight = normal(2, 5, 16), normal(2, 5, 16, seed=1)
    gradient = GRADIENTS[name](lambda x: of(x, backend), x, weight)
    judge_gradient(gradient, weight)
    assert near(gradient, GRADIENTS["plain"](by_array_api, x, weight))


@by_backend
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", FIELDS)
def test_gradients_of_every_dtype(name, dtype, backend, runs):
    for of in BY.values():
        x, weight = (normal(2, 5, 16, dtype=dtype, seed=seed) for seed in (0, 1))
        y = of(x.requires_grad_(), backend, ROPES[name])
        judge(y.detach(), x.detach(), LIST, **FIELDS[name])
        runs.clear()
        (gradient,) = torch.autograd.grad(y, x, weight)
        assert bool(runs) == (backend is None)
        judge_gradient(gradient, weight, name=name)


def test_an_active_transform_of_other_tensors(runs):
    """The kernel declines: the transform may capture a tensor that the call makes."""
    x, seen = normal(2, 5, 16), []
    want = by_array_api(x)
    torch.func.vmap(lambda dummy: seen.append(ROPE.apply(x, POS)) or dummy)(torch.zeros(2))
    assert same(seen[0], want)
    assert not runs


def test_gradient_outside_of_a_transform_inside():
    """An outer graph records a tensor that an inner transform captures."""
    x, scale = normal(5, 16), torch.tensor(2.0, requires_grad=True)

    def gradient(of):
        inner = torch.func.grad(lambda x: (of(x * scale) ** 2).sum())(x)
        return torch.autograd.grad(inner.sum(), scale)[0]

    want = gradient(by_array_api)
    assert torch.allclose(gradient(lambda x: ROPE.apply(x, POS)), want)
    assert want.abs() > 1e-3


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
        for part, want in zip(forward_ad.unpack_dual(gradient), (weight, tangent), strict=True):
            judge_gradient(part, want)
    assert not runs


@KERNEL
def test_gradients_of_positions_have_the_array_api_backend_s_bits(runs):
    x = normal(2, 5, 16).requires_grad_()
    pos = torch.tensor([0.0, 0.25, 7.5, -100.0, 12345.0]).requires_grad_()
    weight = normal(2, 5, 16, seed=1)
    own = torch.autograd.grad(ROPE.apply(x, pos), (x, pos), weight)
    assert same(own, torch.autograd.grad(by_array_api(x, pos), (x, pos), weight))
    assert not runs
    with torch.no_grad():  # nothing to record: the kernel rotates
        ROPE.apply(x, pos)
    assert runs


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
    for x, y, gradient, weight in zip(
        leaves, ys, torch.autograd.grad(ys, leaves, weights), weights, strict=True
    ):
        alone = ROPE.apply(x, POS)
        assert same(y.detach(), alone.detach())
        assert same(gradient, torch.autograd.grad(alone, x, weight)[0])
        judge_gradient(gradient, weight)
    assert runs


# ---- memory that is written between forward and backward ----


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


def test_many_threads_forward_and_backward():
    x, weight = normal(2, 5, 16), normal(2, 5, 16, seed=1)
    shared = x.clone().requires_grad_()
    y = ROPE.apply(shared, POS)
    want = torch.autograd.grad(y, shared, weight, retain_graph=True)[0]

    def work(_):
        for _ in range(20):
            own = x.clone().requires_grad_()
            assert same(torch.autograd.grad(ROPE.apply(own, POS), own, weight)[0], want)
            assert same(torch.autograd.grad(y, shared, weight, retain_graph=True)[0], want)

    in_threads(work)


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


# ---- gradients of positions ----


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_gradcheck_of_x_and_positions(fields):
    x = normal(2, 6, 16, dtype=torch.float64).requires_grad_()
    pos = torch.tensor([0.0, 0.25, 0.5, -1.5, 7.75, 1000.3], dtype=torch.float64).requires_grad_()
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda x, pos: ra.apply(x, pos, **fields), (x, pos), fast_mode=True)


def test_gradient_of_float32_positions():
    """dy/dpos = ω·J·y with J a quarter turn of every pair."""
    pos = torch.tensor([0.0, 0.3, 123456.5], requires_grad=True)
    x, weight = normal(3, 16), normal(3, 16, seed=1)
    (gradient,) = torch.autograd.grad(ra.apply(x, pos), pos, weight)
    y = apply_definition(x.double().numpy(), pos.detach().numpy())
    turned = np.stack([-y[:, 1::2], y[:, ::2]], axis=-1).reshape(3, 16)
    exact = (turned * np.repeat(ra.RoPE(16).frequencies, 2) * weight.double().numpy()).sum(-1)
    np.testing.assert_allclose(gradient.numpy(), exact, atol=1e-5)
