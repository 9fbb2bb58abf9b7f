"""Gradients in PyTorch: reverse and forward mode, functorch, hooks; kernel and array-api."""

import child
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
    OTHER,
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
from rope_array.testing import apply_definition, rotation_matrix

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.library("torch"), *IGNORED]


@by_backend
@by
@pytest.mark.parametrize("name", GRADIENTS)
def test_every_gradient_is_the_adjoint(name, of, backend):
    x, weight = normal(2, 5, 16), normal(2, 5, 16, seed=1)
    gradient = GRADIENTS[name](lambda x: of(x, backend), x, weight)
    judge_gradient(gradient, weight)
    assert near(gradient, GRADIENTS["plain"](by_array_api, x, weight))


@by_backend
@by
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", FIELDS)
def test_gradients_of_every_dtype(name, dtype, of, backend, runs):
    x, weight = (normal(2, 5, 16, dtype=dtype, seed=seed) for seed in (0, 1))
    x.requires_grad_()
    y = of(x, backend, ROPES[name])
    judge(y, x, LIST, **FIELDS[name])
    assert y.requires_grad
    runs.clear()
    (gradient,) = torch.autograd.grad(y, x, weight)
    assert bool(runs) == (backend is None)
    judge_gradient(gradient, weight, name=name)


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
    vmap, want = torch.func.vmap, by_array_api(x, pos)
    assert same(vmap(ROPE.apply)(x, pos), want)
    assert same(vmap(vmap(ROPE.apply))(x.transpose(1, 2), pos).transpose(1, 2), want)
    assert same(vmap(lambda x: ROPE.apply(x, pos[0]))(x), by_array_api(x, pos[0]))
    assert same(vmap(lambda pos: ROPE.apply(x[0], pos))(pos), by_array_api(x[:1].expand(3, 2, 5, 16), pos))
    assert same(vmap(ROPE.apply, in_dims=(1, None), out_dims=1)(x, pos), want)
    assert same(vmap(lambda x: ROPE.apply(x, [0, 1, 2, 3, 0.5]))(x), by_array_api(x, [0, 1, 2, 3, 0.5]))
    assert not runs
    shared = ROPE.rotation(pos[0], like=x)
    assert same(vmap(lambda r, x: r.apply(x), in_dims=(None, 0))(shared, x), by_array_api(x, pos[0]))
    rotations = ROPE.rotation(pos, like=x)
    runs.clear()
    assert same(vmap(lambda r, x: r.apply(x))(rotations, x), rotations.apply(x, backend="torch"))
    grads = vmap(torch.func.grad(lambda x, pos: (ROPE.apply(x, pos) ** 2).sum()))(x, pos)
    each = [
        torch.func.grad(lambda x, p=p: (ROPE.apply(x, p) ** 2).sum())(a) for a, p in zip(x, pos, strict=True)
    ]
    assert same(grads, torch.stack(each))
    assert not runs


def test_an_active_transform_of_other_tensors(runs):
    """The kernel declines: the transform may capture a tensor that the call makes."""
    x = normal(2, 5, 16)
    want = by_array_api(x)
    seen = []
    torch.func.vmap(lambda dummy: seen.append(ROPE.apply(x, POS)) or dummy)(torch.zeros(2))
    assert same(seen[0], want)
    assert not runs


def test_gradient_outside_of_a_transform_inside(runs):
    """An outer graph records a tensor that an inner transform captures."""
    x, scale = normal(5, 16), torch.tensor(2.0, requires_grad=True)
    inner = torch.func.grad(lambda x: (ROPE.apply(x * scale, POS) ** 2).sum())(x)
    inner.sum().backward()
    plain = torch.func.grad(lambda x: (by_array_api(x * scale) ** 2).sum())(x)
    (want,) = torch.autograd.grad(plain.sum(), scale)
    assert torch.allclose(scale.grad, want)
    assert scale.grad.abs() > 1e-3


def test_dual_positions(runs):
    x, pos = normal(5, 16), torch.tensor([0.0, 0.5, 1.25, -3.0, 9.0])
    with forward_ad.dual_level():
        y = forward_ad.unpack_dual(ROPE.apply(x, forward_ad.make_dual(pos, torch.ones(5))))
        want = forward_ad.unpack_dual(
            ROPE.apply(x, forward_ad.make_dual(pos, torch.ones(5)), backend="torch")
        )
        assert same(y.tangent, want.tangent)
    step = (
        by_array_api(x.double(), pos.double() + 1e-4) - by_array_api(x.double(), pos.double() - 1e-4)
    ) / 2e-4
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
@KERNEL
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
def test_batched_backward_of_a_recorded_call(of, runs):
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


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("how", ["apply", "number", "rotation", "inverse", "tuple", "rotation of floats"])
@KERNEL
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


@KERNEL
def test_gradients_of_positions_and_tables_have_the_array_api_backend_s_bits(runs):
    x = normal(2, 5, 16).requires_grad_()
    pos = torch.tensor([0.0, 0.25, 7.5, -100.0, 12345.0]).requires_grad_()
    weight = normal(2, 5, 16, seed=1)
    own = torch.autograd.grad(ROPE.apply(x, pos), (x, pos), weight)
    assert same(own, torch.autograd.grad(by_array_api(x, pos), (x, pos), weight))
    assert own[1].abs().max() > 0.1
    assert not runs
    with torch.no_grad():  # nothing to record: the kernel rotates
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
        assert near(second, by_array_api(cotangent))
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
    for weight in (
        normal(1, 1, 1).expand(2, 5, 16),
        negated(normal(2, 5, 16)),
        normal(16, 5, 2).permute(2, 1, 0),
    ):
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
        assert near(
            torch.autograd.grad(a.sum() + b.sum(), q)[0], torch.autograd.grad(by_array_api(q).sum(), q)[0]
        )
        q.grad = k.grad = None
        of(q, k)[1].sum().backward()
        assert q.grad is None or not q.grad.any()
        assert near(k.grad, torch.autograd.grad(by_array_api(k).sum(), k)[0])


@KERNEL
def test_only_some_of_a_tuple_require_a_gradient(runs):
    q, k = normal(2, 5, 16).requires_grad_(), normal(5, 16, seed=1)
    for of in (lambda *xs: ROPE.apply(xs, POS), lambda *xs: ROPE.rotation(POS, like=q).apply(xs)):
        for xs in ((q, k), (k, q)):
            ys = of(*xs)
            assert [y.requires_grad for y in ys] == [x.requires_grad for x in xs]
            assert [y.requires_grad for y in by_array_api(xs)] == [x.requires_grad for x in xs]
            (gradient,) = torch.autograd.grad(sum(y.sum() for y in ys), q)
            judge_gradient(gradient, torch.ones(2, 5, 16))
    assert runs


@KERNEL
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
        expected = torch.autograd.grad(by_array_api(x), x, weight)[0]
        tolerance = {torch.float64: 1e-14, torch.float32: 2e-6}.get(x.dtype, 4e-2)
        assert torch.allclose(gradient, expected, atol=tolerance, rtol=0)
    assert runs


@KERNEL
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


def test_hooks_on_saved_tensors_see_no_x():
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


def test_many_threads_forward_and_backward(runs):
    x, weight = normal(2, 5, 16), normal(2, 5, 16, seed=1)
    leaf = x.clone().requires_grad_()
    want = torch.autograd.grad(ROPE.apply(leaf, POS), leaf, weight)[0]
    shared = x.clone().requires_grad_()
    y = ROPE.apply(shared, POS)

    def work(_):
        for _ in range(20):
            own = x.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(ROPE.apply(own, POS), own, weight)
            assert same(gradient, want)
            assert same(torch.autograd.grad(y, shared, weight, retain_graph=True)[0], want)

    in_threads(work)


def test_gradients_without_assertions():
    """No assert statement does work that a call needs: python -O removes them."""
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


@KERNEL
def test_positions_of_inference_mode_with_a_gradient(runs):
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


def test_inference_tensors_where_gradients_are_recorded():
    with torch.inference_mode():
        x = normal(2, 5, 16)
        pos = torch.arange(5)
        y = ROPE.apply(x, pos)
        rotation = ROPE.rotation(pos, like=x)
    leaf = x.clone().requires_grad_()
    assert near(ROPE.apply(x, 3), by_array_api(x, 3))
    assert same(ROPE.apply(leaf.detach(), POS), ROPE.apply(x, POS))
    assert y.is_inference()
    for of in (lambda: ROPE.apply(leaf, pos), lambda: rotation.apply(leaf)):
        try:  # PyTorch may refuse to save an inference tensor; otherwise the gradient is right
            z = of()
        except RuntimeError as error:
            assert "Inference tensors" in str(error)  # noqa: PT017
            continue
        z.sum().backward()
        judge_gradient(leaf.grad, torch.ones(2, 5, 16), np.arange(5))
        leaf.grad = None


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_gradcheck_of_x_and_positions(fields):
    x = normal(2, 6, 16, dtype=torch.float64).requires_grad_()
    pos = torch.tensor([0.0, 0.25, 0.5, -1.5, 7.75, 1000.3], dtype=torch.float64).requires_grad_()

    def function(x, pos):
        return ra.apply(x, pos, **fields)

    assert torch.autograd.gradcheck(function, (x, pos))
    assert torch.autograd.gradgradcheck(function, (x, pos))


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
