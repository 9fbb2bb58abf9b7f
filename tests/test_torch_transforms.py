"""PyTorch's transforms of a rotation: each gives the derivative of the definition, never a silent zero.

Each source of a rotation has two functions of the same arguments: a call of the package, and the definition,
written in plain float64 operations that PyTorch differentiates. A transform of the one must equal the
transform of the other, and must not be 0. The definition is compared with `rotation_matrix`, which uses no
array library.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from torch_cases import FIELDS, IGNORED, KERNEL, NIGHTLY, ROPES, compiled, forward_ad, near, normal

import rope_array as ra
from rope_array.testing import frequencies, rotation_matrix

torch = pytest.importorskip("torch")
from torch import func  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

pytestmark = [pytest.mark.library("torch"), *IGNORED]

WIDTH = 16
COORDINATES = [0, 0, 0, 0, 1, 1, 2, 2]
AXES = ra.RoPE(WIDTH, axes=ra.Axes.chunked(4, 2, 2))
POSITIONS = [3, -1, 40]
FLOATS = [0.25, -1.5, 40.375]


# ---- the definition, in operations that PyTorch differentiates ----


class Definition:
    """The rotation of pairs of columns, in float64."""

    def __init__(self, fields):
        start, width = fields.get("rotary_start", 0), fields.get("rotary_dim", WIDTH)
        features = torch.arange(start, start + width)
        pairs = {"interleaved": features.view(-1, 2).T.flatten(), "half": features}
        pairing, unrotated = fields.get("pairing", "interleaved"), torch.arange(WIDTH)
        unrotated = unrotated[(unrotated < start) | (unrotated >= start + width)]
        self.read, self.written = (
            torch.cat([pairs[name], unrotated]) for name in (pairing, fields.get("out_pairing", pairing))
        )
        omegas = frequencies(width, base=fields.get("base", 10000.0))
        self.omegas = torch.tensor(np.asarray(omegas, dtype=np.float64))
        self.factor = fields.get("attention_factor", 1.0)

    def angles(self, pos, omegas=None):
        """Return pos * omega, exact enough in float64 for the small positions here."""
        return torch.as_tensor(pos).double()[..., None] * (self.omegas if omegas is None else omegas)

    def rotate(self, x, angles):
        return self.rotate_by_tables(x, self.factor * angles.cos(), self.factor * angles.sin())

    def rotate_by_tables(self, x, cos, sin):
        pairs = cos.shape[-1]
        a, b, unrotated = x[..., self.read].split([pairs, pairs, WIDTH - 2 * pairs], -1)
        a, b = a * cos - b * sin, a * sin + b * cos
        unrotated = unrotated.expand(*a.shape[:-1], -1)
        return torch.cat([a, b, unrotated], -1)[..., self.written.argsort()]


@pytest.mark.parametrize("name", FIELDS)
def test_the_differentiable_definition_is_the_matrix(name):
    eye, definition = torch.eye(WIDTH, dtype=torch.float64), Definition(FIELDS[name])
    for pos in (*POSITIONS, *FLOATS):
        matrix = rotation_matrix(pos, head_dim=WIDTH, **FIELDS[name])
        defined = definition.rotate(eye, definition.angles(pos)).T
        np.testing.assert_allclose(defined.numpy(), matrix, atol=1e-13)


# ---- the cases: sources of a rotation that the suite does not transform, and two that it does ----


class TransformCase(NamedTuple):
    """A call of the package, the definition, and the arguments of both."""

    call: Callable[..., Any]
    define: Callable[..., Any]
    arguments: tuple[Any, ...]


def cases(name):
    """Return the cases of a rope, by their names."""
    rope, d = ROPES[name], Definition(FIELDS[name])
    x, k = normal(2, 3, WIDTH), normal(3, WIDTH, seed=1)
    pos, floats = torch.tensor(POSITIONS), torch.tensor(FLOATS)
    coordinates = torch.tensor([[1, 2, 3], [9, 0, -4], [5, 5, 6]])
    omegas = torch.tensor(AXES.frequencies, dtype=torch.float64)

    def define(x, pos):
        return d.rotate(x, d.angles(pos))

    def define_by_coordinates(x, pos):
        return Definition({}).rotate(x, pos.double()[..., COORDINATES] * omegas)

    return {
        "int64": TransformCase(rope.apply, define, (x, pos)),
        "floats": TransformCase(rope.apply, define, (x, floats)),
        "tuple": TransformCase(
            lambda q, k, pos: rope.apply((q, k), pos),
            lambda q, k, pos: (define(q, pos), define(k, pos)),
            (x, k, pos),
        ),
        # The tables are differentiable, inside a Rotation; their gradient is a Rotation.
        "rotation argument": TransformCase(
            lambda x, rotation: rotation.apply(x),
            lambda x, rotation: d.rotate_by_tables(x, *rotation),
            (x, rope.rotation(pos, like=x)),
        ),
        "learned frequencies": TransformCase(
            lambda x, pos, omegas: rope.rotation(pos, like=x, inv_freq=omegas).apply(x),
            lambda x, pos, omegas: d.rotate(x, d.angles(pos, omegas)),
            (x, floats, d.omegas.float()),
        ),
        "coordinates": TransformCase(AXES.apply, define_by_coordinates, (x, coordinates.float() + 0.25)),
    }


SOURCES = [*cases("plain")]


# ---- the transforms ----


def split(of, arguments):
    """Return `of` as a function of its differentiable arguments, and these."""

    def is_float(argument):
        return all(leaf.is_floating_point() for leaf in tree_leaves(argument))

    floats = tuple(argument for argument in arguments if is_float(argument))

    def of_floats(*floats):
        in_order = iter(floats)
        return of(*(next(in_order) if is_float(argument) else argument for argument in arguments))

    return of_floats, floats


def weighted(y):
    """Return the same tree with other numbers: a cotangent or a tangent."""
    return tree_map(lambda y: torch.linspace(1, 2, y.numel(), dtype=y.dtype).reshape(y.shape).cos(), y)


def loss(of):
    """Return a function that is not linear in the results."""

    def of_results(*arguments):
        leaves = tree_leaves(of(*arguments))
        return sum((leaf.sin() * weighted(leaf)).sum() for leaf in leaves)

    return of_results


def derivative(transform):
    """Make a transform of a function of its differentiable arguments one of a function of all."""
    return lambda of, *arguments: transform(*split(of, arguments))


@derivative
def by_grad(of, floats):
    return func.grad(loss(of), tuple(range(len(floats))))(*floats)


@derivative
def by_jvp(of, floats):
    return func.jvp(of, floats, weighted(floats))


@derivative
def by_autograd(of, floats):
    """The gradient of the plain autograd, and the gradient of its norm."""
    floats = tree_map(lambda leaf: leaf.clone().requires_grad_(), floats)
    leaves = tree_leaves(floats)
    first = torch.autograd.grad(loss(of)(*floats), leaves, create_graph=True)
    second = torch.autograd.grad(sum((g**2).sum() for g in first), leaves)
    return [g.detach() for g in first], second


@derivative
def by_dual_numbers(of, floats):
    with forward_ad.dual_level():
        ys = of(*tree_map(forward_ad.make_dual, floats, weighted(floats)))
        return [tuple(forward_ad.unpack_dual(y)) for y in tree_leaves(ys)]


@derivative
def by_batched_gradients(of, floats):
    floats = tree_map(lambda leaf: leaf.clone().requires_grad_(), floats)
    ys = tree_leaves(of(*floats))
    weights = [batch(weighted(y.detach())) for y in ys]
    return torch.autograd.grad(ys, tree_leaves(floats), weights, is_grads_batched=True)


@derivative
def by_hessian(of, floats):
    return func.hessian(loss(of), tuple(range(len(floats))))(*floats)


def batch(argument):
    """Stack three different arguments."""

    def stacked(leaf):
        if leaf.is_floating_point():
            return torch.stack([leaf, 0.5 * leaf, leaf - 0.125])
        return torch.stack([leaf, leaf + 3, 2 * leaf])

    return tree_map(stacked, argument)


def mapped(transform):
    """Return the transform of each of a batch."""
    return lambda of, *arguments: func.vmap(functools.partial(transform, of))(*map(batch, arguments))


def of_mapped(transform):
    """Return the transform of a function over a batch."""
    return lambda of, *arguments: transform(func.vmap(of), *map(batch, arguments))


def value(of, *arguments):
    return of(*arguments)


TRANSFORMS = {
    "grad": by_grad,
    "jvp": by_jvp,
    "hessian": by_hessian,
    "vmap": mapped(value),
    "vmap of grad": mapped(by_grad),
    "grad of vmap": of_mapped(by_grad),
    "vmap of jvp": mapped(by_jvp),
    "jvp of vmap": of_mapped(by_jvp),
    "functionalize": lambda of, *arguments: func.functionalize(of)(*arguments),
    "autograd": by_autograd,
    "dual numbers": by_dual_numbers,
    "batched gradients": by_batched_gradients,
}


def widened(arguments):
    """Return the same arguments in float64."""
    return tree_map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, arguments)


def assert_equal_to_definition(actual, expected):
    """Compare trees of tensors; the truth must not be 0, or a silent zero would pass."""
    actual, expected = tree_leaves(actual), tree_leaves(expected)
    assert max(leaf.abs().max() for leaf in expected) > 0.01
    for leaf, truth in zip(actual, expected, strict=True):
        assert leaf.dtype == torch.float32
        bound = 5e-6 * max(1.0, truth.abs().max().item())
        np.testing.assert_allclose(leaf.detach().double(), truth.detach(), rtol=0, atol=bound)


def number_of(source, transform):
    return SOURCES.index(source) + list(TRANSFORMS).index(transform)


def case_of(source, transform="grad"):
    """Return a case; each source and each transform meets every rope."""
    return cases(list(FIELDS)[number_of(source, transform) % len(FIELDS)])[source]


def check(transform, case, prepare=lambda of: of):
    """Assert that a transform of a call, prepared, is the transform of the definition."""
    transformed = transform(prepare(case.call), *case.arguments)
    assert_equal_to_definition(transformed, transform(case.define, *widened(case.arguments)))


def cells(each_push, sources=SOURCES, transforms=TRANSFORMS):
    """Parametrize over pairs of a source and a transform; `nightly` runs those that are not `each_push`."""
    return pytest.mark.parametrize(
        ("source", "transform"),
        [
            pytest.param(source, transform, marks=() if each_push(source, transform) else NIGHTLY)
            for source in sources
            for transform in transforms
        ],
    )


@cells(lambda source, transform: source in ("int64", "tuple") or number_of(source, transform) % 3 == 0)
def test_transform_of_every_source(source, transform):
    check(TRANSFORMS[transform], case_of(source, transform))


# ---- vmap, which the kernel serves by the tensors inside ----

# The shapes of x and of positions, or a list of positions; the axes that are mapped, of size 3; seq_axis.
MAPPED = {
    "x": ((3, 2, 5, WIDTH), (5,), (0, None), -2),
    "x beside positions of each head": ((2, 5, 3, WIDTH), (2, 5), (2, None), -2),
    "x beside a list": ((3, 2, 5, WIDTH), [[3, -1, 40, 0, 2**31], [5, 4, 3, 2, 1]], (0, None), -2),
    "x, seq_axis -3": ((3, 5, 2, WIDTH), (5,), (0, None), -3),
    "x, seq_axis 0": ((5, 3, 2, WIDTH), (2, 5), (1, None), 0),
    "x and positions": ((3, 2, 5, WIDTH), (5, 3), (0, 1), -2),
    "x and positions of heads": ((3, 5, 2, WIDTH), (2, 3, 5), (-4, -2), -3),
    "x and a position": ((2, 3, 5, WIDTH), (3,), (1, 0), -2),
    "vectors": ((WIDTH, 3), (3,), (1, 0), -2),
    "vectors at one position": ((3, WIDTH), (), (0, None), -2),
    "positions": ((2, 5, WIDTH), (3, 5), (None, 0), -2),
    "a position": ((5, WIDTH), (3,), (None, 0), 0),
}
# Calls by positions, and the number of the kernel's calls.
MAPPED_SOURCES = {
    "positions": (lambda rope, x, pos, axis: rope.apply(x, pos, seq_axis=axis), 1),
    "rotation": (lambda rope, x, pos, axis: rope.rotation(pos, like=x).apply(x, seq_axis=axis), 2),
    "tuple": (lambda rope, x, pos, axis: rope.apply((x, x.bfloat16()), pos, seq_axis=axis)[0], 1),
}


@KERNEL
@pytest.mark.parametrize("source", MAPPED_SOURCES)
@pytest.mark.parametrize("name", MAPPED)
def test_vmap_by_the_kernel(name, source, runs):
    """The bits of a loop over the examples, in one call of the kernel; a gradient is recorded outside."""
    (shape, pos_shape, dims, axis), (of, number) = MAPPED[name], MAPPED_SOURCES[source]
    rope, x = ROPES["partial"], normal(*shape).requires_grad_()
    pos = pos_shape if isinstance(pos_shape, list) else torch.randint(-(2**31), 2**31, pos_shape)

    def rotate(x, pos):
        assert ra.explain(x, pos, rope, seq_axis=axis).backend == "native"
        return of(rope, x, pos, axis)

    y = func.vmap(rotate, dims)(x, pos)
    gradient = torch.autograd.grad(y, x, weighted(y.detach()))[0]
    assert len(runs) == number + 1
    examples = []
    for i in range(3):
        example = (a if dim is None else a.select(dim, i) for a, dim in zip((x, pos), dims, strict=True))
        examples.append(of(rope, *example, axis))
    assert torch.equal(y, torch.stack(examples))
    expected = torch.autograd.grad(torch.stack(examples), x, weighted(y.detach()))[0]
    assert torch.equal(gradient, expected) if dims[0] is not None else near(gradient, expected)


@KERNEL
@pytest.mark.parametrize("dims", [(0, 1, 0), (None, 0, 2), (0, None, None), (None, None, 0)])
def test_vmap_over_tables(dims, runs):
    """Over cos, sin and x."""
    rotation = ROPES["half"].rotation(torch.arange(30).view(3, 2, 5), like=normal(WIDTH))
    arrays = *rotation, normal(3, 2, 5, WIDTH)
    expected = [
        rotate_by(*(a[0 if dim is None else i] for a, dim in zip(arrays, dims, strict=True)))
        for i in range(3)
    ]
    moved = (a[0] if dim is None else a.movedim(0, dim) for a, dim in zip(arrays, dims, strict=True))
    runs.clear()
    assert torch.equal(func.vmap(rotate_by, dims)(*moved), torch.stack(expected))
    assert len(runs) == 1


def rotate_by(cos, sin, x):
    return ROPES["half"].rotation_from(cos, sin).apply(x)


def test_vmap_of_the_most_axes(runs):
    """The kernel takes no tensor of 65 axes."""
    x, pos = normal(*[1] * 62, 5, WIDTH), torch.arange(15).view(3, 5)
    y = func.vmap(ROPES["half"].apply, (None, 0))(x, pos)
    assert not runs
    assert torch.equal(y[2], ROPES["half"].apply(x, pos[2]))


# ---- compiled functions ----

# Dynamo refuses these in a graph, of any function.
REFUSED = {"functionalize", "batched gradients"}
DYNAMO = torch._dynamo.config
AUTOGRAD = {"trace_autograd_ops": True} if hasattr(DYNAMO, "trace_autograd_ops") else {}
if not AUTOGRAD:
    REFUSED.add("autograd")
TRACED = [name for name in TRANSFORMS if name not in REFUSED]
# PyTorch refuses the other transforms of a compiled function, or they are right.
SERVED = "dual numbers", "batched gradients"
REFUSALS = (
    "Unsupported functorch tracing|not currently support double backward|view functorch tensor"
    "|must not already be a functional tensor"
)


def is_every_third(source, transform):
    """Return whether a transform is that of a source's number, and the number is 0, 3, 6..."""
    return SOURCES.index(source) == TRACED.index(transform) and SOURCES.index(source) % 3 == 0


@cells(is_every_third, transforms=TRACED)
@DYNAMO.patch(AUTOGRAD)
def test_compiled_transform_of_every_source(source, transform, fresh_dynamo):
    """The transform is inside the compiled function."""
    case, of = case_of(source, transform), TRANSFORMS[transform]
    transformed = compiled(lambda *arguments: of(case.call, *arguments))(*case.arguments)
    assert_equal_to_definition(transformed, of(case.define, *widened(case.arguments)))


@cells(lambda source, transform: transform in SERVED, ("int64", "tuple", "rotation argument"))
def test_transform_of_a_compiled_function(source, transform, fresh_dynamo):
    try:
        check(TRANSFORMS[transform], case_of(source, transform), prepare=compiled)
    except Exception as error:  # from 2.14 on Dynamo refuses dual tensors as inputs
        if not re.search("wrap a dual tensor input" if transform in SERVED else REFUSALS, str(error)):
            raise


@pytest.mark.parametrize("source", ["int64", "tuple"])
def test_double_backward_of_a_compiled_function(source, fresh_dynamo):
    """Without AOTAutograd, which refuses every double backward."""
    check(by_autograd, case_of(source), prepare=functools.partial(compiled, backend="eager"))
