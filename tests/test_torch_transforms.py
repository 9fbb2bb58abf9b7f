"""PyTorch's transforms of a rotation: each gives the derivative of the definition, never a silent zero.

Each source of a rotation has two functions of the same arguments: a call of the package, and the definition,
written in plain float64 operations that PyTorch differentiates. A transform of the one must equal the
transform of the other, and must not be 0. The definition is compared with `rotation_matrix`, which uses no
array library.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from torch_cases import FIELDS, IGNORED, ROPES, forward_ad, normal

import rope_array as ra
from rope_array.testing import frequencies, rotation_matrix

torch = pytest.importorskip("torch")
from torch import func  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten  # noqa: E402

pytestmark = [
    pytest.mark.library("torch"),
    *IGNORED,
    # torch.func.linearize warns of every tensor that a function captures.
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
]

WIDTH = 16
COORDINATES = [0, 0, 0, 0, 1, 1, 2, 2]
AXES = ra.RoPE(WIDTH, axes=ra.Axes.chunked(4, 2, 2))
POSITIONS = [3, -1, 40]
FLOATS = [0.25, -1.5, 40.375]


# ---- the definition, in operations that PyTorch differentiates ----


def pairs_of(fields):
    """Return the features of each pair, read and written: two arrays of shape (2, pairs)."""
    start, width = fields.get("rotary_start", 0), fields.get("rotary_dim", WIDTH)
    members = {
        "interleaved": torch.arange(start, start + width).reshape(-1, 2).T,
        "half": torch.arange(start, start + width).reshape(2, -1),
    }
    pairing = fields.get("pairing", "interleaved")
    return members[pairing], members[fields.get("out_pairing", pairing)]


def omegas_of(fields):
    """Return the frequency of each pair in float64."""
    omegas = frequencies(fields.get("rotary_dim", WIDTH), base=fields.get("base", 10000.0))
    return torch.tensor(np.asarray(omegas, dtype=np.float64))


def constant_matrices(fields):
    """Return the matrices that cos and sin multiply, of shape (pairs, d, d), and the rest of the identity."""
    (a, b), (out_a, out_b) = pairs_of(fields)
    each = torch.arange(len(a))
    of_cos, of_sin = torch.zeros(2, len(a), WIDTH, WIDTH, dtype=torch.float64)
    of_cos[each, out_a, a] = of_cos[each, out_b, b] = of_sin[each, out_b, a] = 1.0
    of_sin[each, out_a, b] = -1.0
    rest = torch.eye(WIDTH, dtype=torch.float64)
    rest[torch.cat([a, b])] = 0.0
    return of_cos, of_sin, rest


class Definition:
    """The rotation by its matrix: cos and sin times constant matrices."""

    def __init__(self, fields):
        self.matrices = constant_matrices(fields)
        self.omegas = omegas_of(fields)
        self.factor = fields.get("attention_factor", 1.0)

    def angles(self, pos, omegas=None):
        """Return pos * omega, exact enough in float64 for the small positions here."""
        return torch.as_tensor(pos).double()[..., None] * (self.omegas if omegas is None else omegas)

    def matrix(self, cos, sin):
        of_cos, of_sin, rest = self.matrices
        turned = torch.einsum("...i,ijk->...jk", cos, of_cos) + torch.einsum("...i,ijk->...jk", sin, of_sin)
        return turned + rest

    def rotate(self, x, angles, way="forward"):
        factor = {"inverse": 1 / self.factor}.get(way, self.factor)
        matrix = self.matrix(factor * angles.cos(), factor * angles.sin())
        matrix = matrix if way == "forward" else matrix.transpose(-1, -2)
        return torch.einsum("...jk,...k->...j", matrix, x)

    def rotate_by_tables(self, x, cos, sin):
        return torch.einsum("...jk,...k->...j", self.matrix(cos, sin), x)

    def tables(self, pos):
        return self.factor * self.angles(pos).cos(), self.factor * self.angles(pos).sin()


@pytest.mark.parametrize("name", FIELDS)
def test_the_differentiable_definition_is_the_matrix(name):
    eye, fields = torch.eye(WIDTH, dtype=torch.float64), FIELDS[name]
    definition = Definition(fields)
    for pos in (*POSITIONS, *FLOATS):
        matrix = rotation_matrix(pos, head_dim=WIDTH, **fields)
        defined = definition.rotate(eye, definition.angles(pos)).T
        np.testing.assert_allclose(defined.numpy(), matrix, atol=1e-13)
        inverse = definition.rotate(eye, definition.angles(pos), "inverse").T
        np.testing.assert_allclose(inverse.numpy() @ matrix, np.eye(WIDTH), atol=1e-13)
        adjoint = definition.rotate(eye, definition.angles(pos), "adjoint").T
        np.testing.assert_allclose(adjoint.numpy(), matrix.T, atol=1e-13)


# ---- the cases: every source of a rotation ----


class Case(NamedTuple):
    """A call of the package, the definition, and the arguments of both."""

    call: Callable[..., Any]
    define: Callable[..., Any]
    arguments: tuple[Any, ...]


def an_x(dtype, *shape, seed=0):
    return normal(*(shape or (2, 3, WIDTH)), dtype=dtype, seed=seed)


def by_positions(pos_dtype):
    def case(rope, fields, dtype):
        d, numbers = Definition(fields), POSITIONS if pos_dtype else FLOATS
        pos = torch.tensor(numbers, dtype=pos_dtype or dtype)
        return Case(rope.apply, lambda x, pos: d.rotate(x, d.angles(pos)), (an_x(dtype), pos))

    return case


def by_number(rope, fields, dtype):
    d = Definition(fields)
    return Case(lambda x: rope.apply(x, 7), lambda x: d.rotate(x, d.angles(7)), (an_x(dtype),))


def by_arange(rope, fields, dtype):
    d = Definition(fields)
    return Case(
        lambda x: rope.apply(x, torch.arange(5, 5 + x.shape[-2])),
        lambda x: d.rotate(x, d.angles(torch.arange(5, 5 + x.shape[-2]))),
        (an_x(dtype),),
    )


def by_rows(rope, fields, dtype):
    """Each sequence has positions of its own."""
    d, pos = Definition(fields), torch.tensor([POSITIONS, [9, 8, 7]])
    return Case(rope.apply, lambda x, pos: d.rotate(x, d.angles(pos)), (an_x(dtype), pos))


def by_inverse(rope, fields, dtype):
    d = Definition(fields)
    return Case(
        lambda x, pos: rope.apply(x, pos, inverse=True),
        lambda x, pos: d.rotate(x, d.angles(pos), "inverse"),
        (an_x(dtype), torch.tensor(POSITIONS)),
    )


def by_tuple(rope, fields, dtype):
    d = Definition(fields)
    return Case(
        lambda q, k, pos: rope.apply((q, k), pos),
        lambda q, k, pos: (d.rotate(q, d.angles(pos)), d.rotate(k, d.angles(pos))),
        (an_x(dtype), an_x(dtype, 3, WIDTH, seed=1), torch.tensor(POSITIONS)),
    )


def by_seq_axis(rope, fields, dtype):
    d = Definition(fields)
    return Case(
        lambda x, pos: rope.apply(x, pos, seq_axis=-3),
        lambda x, pos: d.rotate(x, d.angles(pos)[:, None]),
        (an_x(dtype, 3, 2, WIDTH), torch.tensor(POSITIONS)),
    )


def by_rotation(rope, fields, dtype):
    """A rotation made inside; its inverse, and its adjoint of a tuple."""
    d = Definition(fields)

    def call(x, pos):
        rotation = rope.rotation(pos, like=x)
        return rotation.apply(x), rotation.inverse().apply(x), *rotation.adjoint().apply((x, 2 * x))

    def define(x, pos):
        forward, inverse, adjoint = (
            d.rotate(x, d.angles(pos), way) for way in ("forward", "inverse", "adjoint")
        )
        return forward, inverse, adjoint, 2 * adjoint

    return Case(call, define, (an_x(dtype), torch.tensor(POSITIONS)))


def by_float_rotation(rope, fields, dtype):
    d = Definition(fields)
    return Case(
        lambda x, pos: rope.rotation(pos, like=x).apply((x, 2 * x)),
        lambda x, pos: (d.rotate(x, d.angles(pos)), d.rotate(2 * x, d.angles(pos))),
        (an_x(dtype), torch.tensor(FLOATS, dtype=dtype)),
    )


def by_captured_rotation(rope, fields, dtype):
    """A rotation made before the transform, which captures its tables."""
    d, pos = Definition(fields), torch.tensor(POSITIONS)
    rotation = rope.rotation(pos, like=an_x(dtype))
    return Case(rotation.apply, lambda x: d.rotate(x, d.angles(pos)), (an_x(dtype),))


def by_rotation_argument(rope, fields, dtype):
    """The tables are differentiable, inside a Rotation; their gradient is a Rotation."""
    rotation = rope.rotation(torch.tensor(POSITIONS), like=an_x(dtype))
    return Case(
        lambda x, rotation: rotation.apply(x),
        lambda x, rotation: Definition(fields).rotate_by_tables(x, *rotation),
        (an_x(dtype), rotation),
    )


def by_given_tables(rope, fields, dtype):
    d = Definition(fields)
    tables = (table.to(dtype) for table in d.tables(torch.tensor(POSITIONS)))
    return Case(
        lambda x, cos, sin: rope.rotation_from(cos, sin).apply(x), d.rotate_by_tables, (an_x(dtype), *tables)
    )


def by_learned_frequencies(rope, fields, dtype):
    d = Definition(fields)
    return Case(
        lambda x, pos, omegas: rope.rotation(pos, like=x, inv_freq=omegas).apply(x),
        lambda x, pos, omegas: d.rotate(x, d.angles(pos, omegas)),
        (an_x(dtype), torch.tensor(FLOATS, dtype=dtype), d.omegas.to(dtype)),
    )


def by_coordinates(pos_dtype):
    """Positions of three coordinates; the fields of `AXES`, whatever the rope."""

    def case(rope, fields, dtype):
        d, omegas = Definition({}), torch.tensor(AXES.frequencies, dtype=torch.float64)
        pos = torch.tensor([[1, 2, 3], [9, 0, -4], [5, 5, 6]]).to(pos_dtype or dtype)
        pos = pos if pos_dtype else pos + 0.25
        return Case(
            AXES.apply,
            lambda x, pos: d.rotate(x, pos.double()[..., COORDINATES] * omegas),
            (an_x(dtype), pos),
        )

    return case


SOURCES = {
    "int64": by_positions(torch.int64),
    "int32": by_positions(torch.int32),
    "number": by_number,
    "arange": by_arange,
    "rows": by_rows,
    "floats": by_positions(None),
    "inverse": by_inverse,
    "tuple": by_tuple,
    "seq_axis": by_seq_axis,
    "rotation": by_rotation,
    "float rotation": by_float_rotation,
    "captured rotation": by_captured_rotation,
    "rotation argument": by_rotation_argument,
    "given tables": by_given_tables,
    "learned frequencies": by_learned_frequencies,
    "coordinates": by_coordinates(torch.int64),
    "float coordinates": by_coordinates(None),
}


# ---- the transforms ----


def is_float(argument):
    return all(leaf.is_floating_point() for leaf in tree_leaves(argument))


def split(of, arguments):
    """Return `of` as a function of its differentiable arguments, and these."""
    floats = tuple(argument for argument in arguments if is_float(argument))

    def of_floats(*floats):
        rest = iter(floats)
        return of(*(next(rest) if is_float(argument) else argument for argument in arguments))

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


def every(floats):
    return tuple(range(len(floats)))


def by_grad(of, *arguments):
    of, floats = split(of, arguments)
    return func.grad(loss(of), every(floats))(*floats)


def by_vjp(of, *arguments):
    of, floats = split(of, arguments)
    y, pull = func.vjp(of, *floats)
    return y, pull(weighted(y))


def by_jvp(of, *arguments):
    of, floats = split(of, arguments)
    return func.jvp(of, floats, weighted(floats))


def by_linearize(of, *arguments):
    of, floats = split(of, arguments)
    y, push = func.linearize(of, *floats)
    return y, push(*weighted(floats))


def by_jacrev(of, *arguments):
    of, floats = split(of, arguments)
    return func.jacrev(of, every(floats))(*floats)


def by_jacfwd(of, *arguments):
    of, floats = split(of, arguments)
    return func.jacfwd(of, every(floats))(*floats)


def by_hessian(of, *arguments):
    of, floats = split(of, arguments)
    return func.hessian(loss(of), every(floats))(*floats)


def forward_over_reverse(of, *arguments):
    """The product of the Hessian and a vector."""
    of, floats = split(of, arguments)
    return func.jvp(func.grad(loss(of), every(floats)), floats, weighted(floats))


def reverse_over_forward(of, *arguments):
    of, floats = split(of, arguments)

    def moved(*floats):
        return func.jvp(loss(of), floats, weighted(floats))[1]

    return func.grad(moved, every(floats))(*floats)


def reverse_over_reverse(of, *arguments):
    of, floats = split(of, arguments)

    def norm(*floats):
        return sum((leaf**2).sum() for leaf in tree_leaves(func.grad(loss(of), every(floats))(*floats)))

    return func.grad(norm, every(floats))(*floats)


def third_derivative(of, *arguments):
    """Forward over reverse over reverse."""
    of, floats = split(of, arguments)
    return func.jvp(lambda *floats: reverse_over_reverse(of, *floats), floats, weighted(floats))[1]


def batch(argument, axis=0):
    """Stack three different arguments."""

    def stacked(leaf):
        if leaf.is_floating_point():
            return torch.stack([leaf, 0.5 * leaf, leaf - 0.125], axis)
        return torch.stack([leaf, leaf + 3, 2 * leaf], axis)

    return tree_map(stacked, argument)


def vmap_all(of, *arguments):
    return func.vmap(of)(*map(batch, arguments))


def vmap_x(of, x, *others):
    """X is batched along its second axis, and so is the result; the other arguments are not batched."""
    in_dims = (1, *(None for _ in others))
    return func.vmap(of, in_dims=in_dims, out_dims=1)(batch(x, 1), *others)


def vmap_others(of, x, *others):
    return func.vmap(of, in_dims=(None, *(0 for _ in others)))(x, *map(batch, others))


def vmap_twice(of, x, *others):
    """The inner vmap batches everything, the outer one x."""
    outer = func.vmap(func.vmap(of), in_dims=(-1, *(None for _ in others)))
    return outer(batch(batch(x), -1), *map(batch, others))


def vmap_of_grad(of, *arguments):
    return func.vmap(lambda *arguments: by_grad(of, *arguments))(*map(batch, arguments))


def grad_of_vmap(of, *arguments):
    return by_grad(func.vmap(of), *map(batch, arguments))


def vmap_of_jvp(of, *arguments):
    return func.vmap(lambda *arguments: by_jvp(of, *arguments))(*map(batch, arguments))


def jvp_of_vmap(of, *arguments):
    return by_jvp(func.vmap(of), *map(batch, arguments))


def vmap_of_hessian_product(of, *arguments):
    return func.vmap(lambda *arguments: forward_over_reverse(of, *arguments))(*map(batch, arguments))


def by_functionalize(of, *arguments):
    return func.functionalize(of)(*arguments)


def grad_of_functionalize(of, *arguments):
    return by_grad(func.functionalize(of), *arguments)


def by_autograd(of, *arguments):
    """The gradient of the plain autograd, and the gradient of its norm."""
    of, floats = split(of, tree_map(lambda leaf: leaf.clone(), arguments))
    leaves = [leaf.requires_grad_() for leaf in tree_leaves(floats)]
    first = torch.autograd.grad(loss(of)(*floats), leaves, create_graph=True)
    second = torch.autograd.grad(sum((g**2).sum() for g in first), leaves)
    return [g.detach() for g in first], second


def by_dual_numbers(of, *arguments):
    of, floats = split(of, arguments)
    with forward_ad.dual_level():
        ys = of(*tree_map(forward_ad.make_dual, floats, weighted(floats)))
        return [tuple(forward_ad.unpack_dual(y)) for y in tree_leaves(ys)]


def by_batched_gradients(of, *arguments):
    of, floats = split(of, tree_map(lambda leaf: leaf.clone(), arguments))
    leaves = [leaf.requires_grad_() for leaf in tree_leaves(floats)]
    ys = tree_leaves(of(*floats))
    weights = [batch(weighted(y.detach())) for y in ys]
    return torch.autograd.grad(ys, leaves, weights, is_grads_batched=True)


def value(of, *arguments):
    return of(*arguments)


TRANSFORMS = {
    "grad": by_grad,
    "vjp": by_vjp,
    "jvp": by_jvp,
    "linearize": by_linearize,
    "jacrev": by_jacrev,
    "jacfwd": by_jacfwd,
    "hessian": by_hessian,
    "forward over reverse": forward_over_reverse,
    "reverse over forward": reverse_over_forward,
    "reverse over reverse": reverse_over_reverse,
    "third derivative": third_derivative,
    "vmap of all": vmap_all,
    "vmap of x": vmap_x,
    "vmap of others": vmap_others,
    "vmap twice": vmap_twice,
    "vmap of grad": vmap_of_grad,
    "grad of vmap": grad_of_vmap,
    "vmap of jvp": vmap_of_jvp,
    "jvp of vmap": jvp_of_vmap,
    "vmap of a Hessian product": vmap_of_hessian_product,
    "functionalize": by_functionalize,
    "grad of functionalize": grad_of_functionalize,
    "autograd": by_autograd,
    "dual numbers": by_dual_numbers,
    "batched gradients": by_batched_gradients,
}


def widened(arguments):
    """Return the same arguments in float64."""
    return tree_map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, arguments)


TOLERANCE = {torch.float64: 1e-11, torch.float32: 5e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def assert_equal_to_definition(got, want, dtype):
    """Compare trees of tensors; the truth must not be 0, or a silent zero would pass."""
    got, want = tree_leaves(got), tree_leaves(want)
    assert max(leaf.abs().max() for leaf in want) > 0.05
    for leaf, truth in zip(got, want, strict=True):
        assert leaf.dtype == dtype
        bound = TOLERANCE[dtype] * max(1.0, truth.abs().max().item())
        np.testing.assert_allclose(leaf.detach().double(), truth.detach(), rtol=0, atol=bound)


def rope_for(source, transform):
    """Return a rope's name: each source and each transform meets every rope."""
    return list(FIELDS)[(list(SOURCES).index(source) + list(TRANSFORMS).index(transform)) % len(FIELDS)]


def has_other_arguments(source):
    return source not in ("number", "arange", "captured rotation")


CELLS = [
    (source, transform)
    for source in SOURCES
    for transform in TRANSFORMS
    if transform != "vmap of others" or has_other_arguments(source)
]


@pytest.mark.parametrize(("source", "transform"), CELLS)
def test_transform_of_every_source(source, transform):
    name = rope_for(source, transform)
    case = SOURCES[source](ROPES[name], FIELDS[name], torch.float32)
    got = TRANSFORMS[transform](case.call, *case.arguments)
    want = TRANSFORMS[transform](case.define, *widened(case.arguments))
    assert_equal_to_definition(got, want, torch.float32)


# Dynamo refuses these in a graph, of any function.
REFUSED = {"linearize", "functionalize", "grad of functionalize", "batched gradients"}
DYNAMO = torch._dynamo.config
AUTOGRAD = {"trace_autograd_ops": True} if hasattr(DYNAMO, "trace_autograd_ops") else {}
if not AUTOGRAD:
    REFUSED.add("autograd")


def compiled_cell(source, transform):
    """Mark cells for the nightly run: all but one transform of every third source."""
    number = list(SOURCES).index(source)
    here = [name for name in TRANSFORMS if name not in REFUSED][number]
    marks = () if transform == here and number % 3 == 0 else pytest.mark.nightly
    return pytest.param(source, transform, marks=marks)


COMPILED = [compiled_cell(*cell) for cell in CELLS if cell[1] not in REFUSED]


@pytest.mark.parametrize(("source", "transform"), COMPILED)
@DYNAMO.patch(AUTOGRAD)
def test_compiled_transform_of_every_source(source, transform, fresh_dynamo):
    """The transform is inside the compiled function."""
    name = rope_for(source, transform)
    case = SOURCES[source](ROPES[name], FIELDS[name], torch.float32)
    of = TRANSFORMS[transform]
    got = torch.compile(lambda *arguments: of(case.call, *arguments), backend="aot_eager", fullgraph=True)(
        *case.arguments
    )
    assert_equal_to_definition(got, of(case.define, *widened(case.arguments)), torch.float32)


# ---- transforms of a compiled function ----


def compiled(of):
    return torch.compile(of, backend="aot_eager", fullgraph=True)


# Every transform of a compiled function is refused by PyTorch, or right.
REFUSALS = "Unsupported functorch tracing|not currently support double backward|view functorch tensor"


SERVED = ["dual numbers", "batched gradients"]
OUTSIDE = [pytest.param(name, marks=() if name in SERVED else pytest.mark.nightly) for name in TRANSFORMS]


@pytest.mark.parametrize("source", ["int64", "tuple", "rotation argument"])
@pytest.mark.parametrize("transform", OUTSIDE)
def test_transform_of_a_compiled_function(source, transform, fresh_dynamo):
    name, of = rope_for(source, transform), TRANSFORMS[transform]
    case = SOURCES[source](ROPES[name], FIELDS[name], torch.float32)
    try:
        got = of(compiled(case.call), *case.arguments)
    except Exception as error:
        if not re.search(REFUSALS, str(error)):
            raise
    else:
        assert_equal_to_definition(got, of(case.define, *widened(case.arguments)), torch.float32)


def test_gradcheck_of_a_compiled_function(fresh_dynamo):
    case = by_tuple(ROPES["mixed"], FIELDS["mixed"], torch.float64)
    of, floats = split(compiled(case.call), case.arguments)
    leaves = [x.requires_grad_() for x in floats]
    checks = {"check_forward_ad": True, "check_batched_grad": True, "check_undefined_grad": True}
    assert torch.autograd.gradcheck(of, leaves, **checks)
    assert torch.autograd.gradcheck(of, leaves, fast_mode=True)


@pytest.mark.parametrize("source", ["int64", "tuple", "captured rotation"])
def test_gradgradcheck_of_a_compiled_function(source, fresh_dynamo):
    """With the backend that runs Dynamo's graph as it is; AOTAutograd refuses double backward."""
    case = SOURCES[source](ROPES["mixed"], FIELDS["mixed"], torch.float64)
    of, floats = split(torch.compile(case.call, backend="eager", fullgraph=True), case.arguments)
    leaves = [x.requires_grad_() for x in floats]
    assert torch.autograd.gradgradcheck(of, leaves, fast_mode=True, check_batched_grad=True)


# ---- numerical derivatives, with every check that gradcheck has ----


@pytest.mark.parametrize("fast", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["fast", "slow"])
@pytest.mark.parametrize("source", SOURCES)
def test_gradcheck_with_every_check(source, fast):
    name = list(FIELDS)[list(SOURCES).index(source) % len(FIELDS)]
    case = SOURCES[source](ROPES[name], FIELDS[name], torch.float64)
    of, floats = split(case.call, case.arguments)
    leaves, tree = tree_flatten(tree_map(lambda leaf: leaf.clone().requires_grad_(), floats))

    def of_leaves(*leaves):
        return tuple(tree_leaves(of(*tree_unflatten(leaves, tree))))

    batched = {"check_batched_grad": True}
    both = {"check_forward_ad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(of_leaves, leaves, fast_mode=fast, **both, **batched)
    second = {"check_fwd_over_rev": True, "check_rev_over_rev": True}
    assert torch.autograd.gradgradcheck(of_leaves, leaves, fast_mode=fast, **second, **batched)


# ---- graphs of operations ----


GRAPHS = {"value": lambda of, *arguments: of(*arguments), "grad": by_grad, "vmap": vmap_all, "jvp": by_jvp}


GRAPH_CELLS = [
    pytest.param(transform, mode, marks=() if transform == "value" or mode == "fake" else pytest.mark.nightly)
    for transform in GRAPHS
    for mode in ("real", "fake", "symbolic")
]


@pytest.mark.parametrize(("transform", "mode"), GRAPH_CELLS)
@pytest.mark.parametrize(
    "source", ["int64", "floats", "tuple", "rotation", "rotation argument", "coordinates"]
)
def test_make_fx_of_a_transform(source, transform, mode):
    name, of = rope_for(source, "grad"), GRAPHS[transform]
    case = SOURCES[source](ROPES[name], FIELDS[name], torch.float32)
    graph = make_fx(lambda *arguments: of(case.call, *arguments), tracing_mode=mode)(*case.arguments)
    others = tree_map(lambda leaf: leaf + 1 if leaf.is_floating_point() else leaf + 7, case.arguments)
    assert_equal_to_definition(graph(*others), of(case.define, *widened(others)), torch.float32)


@pytest.mark.parametrize("source", SOURCES)
def test_fake_tensors(source):
    """A fake call has the shapes, dtypes and strides of a real one, and its gradient too."""
    name = rope_for(source, "grad")
    case = SOURCES[source](ROPES[name], FIELDS[name], torch.float32)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = tree_map(mode.from_tensor, case.arguments)
        outputs = tree_leaves((case.call(*fakes), by_grad(case.call, *fakes)))
    reals = tree_leaves((case.call(*case.arguments), by_grad(case.call, *case.arguments)))
    for fake, real in zip(outputs, reals, strict=True):
        assert isinstance(fake, FakeTensor)
        assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("transform", ["vjp", "jvp", "vmap of grad", "vmap of jvp"])
@pytest.mark.parametrize("source", ["int64", "tuple", "captured rotation"])
def test_transforms_of_other_dtypes(source, transform, dtype):
    name, of = rope_for(source, transform), TRANSFORMS[transform]
    case = SOURCES[source](ROPES[name], FIELDS[name], dtype)
    assert_equal_to_definition(
        of(case.call, *case.arguments), of(case.define, *widened(case.arguments)), dtype
    )


# ---- modules ----


class Layer(torch.nn.Module):
    """A projection, rotated by positions and scaled; the parameters are differentiated."""

    def __init__(self, rotate):
        super().__init__()
        self.rotate = rotate
        self.linear = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, x, pos):
        return self.rotate(self.linear(x), pos)


@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_functional_call_over_an_ensemble(way, fresh_dynamo):
    """Gradients of each of three layers by vmap over stacked parameters, for each example."""
    definition, pos = Definition(FIELDS["mixed"]), torch.tensor(POSITIONS)
    layer = Layer(ROPES["mixed"].apply)
    parameters = batch({name: tensor.detach() for name, tensor in layer.named_parameters()})
    truth = Layer(lambda x, pos: definition.rotate(x, definition.angles(pos)))
    xs = normal(4, 3, WIDTH, dtype=torch.float64)

    def per_example(layer):
        def of(parameters, x):
            return func.functional_call(layer, parameters, (x, pos)).sin().sum()

        return func.vmap(func.vmap(func.grad(of), in_dims=(None, 0)), in_dims=(0, None))

    of = compiled(per_example(layer)) if way == "compiled" else per_example(layer)
    assert_equal_to_definition(of(parameters, xs), per_example(truth)(parameters, xs), torch.float64)
