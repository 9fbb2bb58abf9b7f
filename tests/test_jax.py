"""JAX: positions without 64 bits, compilations, transforms, exports and devices.

The rows of the suite show values, gradients and refusals of plain calls: see test_conformance.py.
"""

import contextlib
import functools
import importlib.util
import itertools
import logging
import pickle
import socket
from concurrent.futures import ThreadPoolExecutor

import child
import compare
import numpy as np
import pytest
from compare import judge, values
from conftest import sample
from refusals import refusals, refused
from ropes import BASIC, fields_of

import rope_array as ra
from rope_array._rotation import rotation_type
from rope_array.testing._contract import eps

jax = pytest.importorskip("jax")
jnp = jax.numpy
normal = functools.partial(compare.normal, "jax")
pytestmark = pytest.mark.library("jax")

FIELDS = fields_of(*BASIC)
HALF = FIELDS["half"]
ROPE = ra.RoPE(16, **HALF)
OTHER_FIELDS = {"base": 77.0, "rotary_dim": 8, "rotary_start": 4, "attention_factor": 1.25}
OTHER = ra.RoPE(16, **OTHER_FIELDS)
ENDS = [0, 1, -1, 2**31 - 1, -(2**31)]
FEW = np.arange(5)


@pytest.fixture(params=[False, True], ids=["x64 off", "x64 on"])
def x64(request):
    """JAX without 64-bit types, as by default, and with them; implicit promotion raises."""
    with settings(request.param):
        yield request.param


@pytest.fixture
def narrow():
    """JAX without 64-bit types, for tests that x64 does not affect."""
    with settings(False):
        yield


@contextlib.contextmanager
def settings(x64):
    with jax.enable_x64(x64), jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def close(a, b):
    """Return whether two results are equal up to a few roundings: XLA fuses programs differently."""
    return a.dtype == b.dtype and np.allclose(values(a), values(b), rtol=0, atol=20 * eps(a.dtype.name))


def adjoint(fields):
    """Return the fields by which the inverse rotation is the adjoint."""
    return fields | {"attention_factor": 1 / fields.get("attention_factor", 1.0)}


def programs_of(call):
    """Return how many programs a call compiles, by JAX's messages."""
    records = []
    handler = logging.Handler(logging.DEBUG)
    handler.emit = lambda record: records.append(record.getMessage())
    logger = logging.getLogger("jax")
    logger.addHandler(handler)
    try:
        with jax.log_compiles(True):
            call()
    finally:
        logger.removeHandler(handler)
    return sum(message.startswith("Compiling") for message in records)


# ---- positions and arguments ----

UINT32 = np.array([2**31, 2**31 + 1, 2**32 - 1, 3_000_000_000, 5], np.uint32)
# The last two round up to 2**31 in float32.
ROUNDED_UP = np.array([0.0, 0.25, -1.5, 1e6 + 0.123, 2.0**31 - 0.5]), 2.0**31 - 0.5


def test_positions_of_32_bits_are_exact(x64):
    """The host's positions keep their bits without x64; uint32 of JAX is not read as int32."""
    x = normal(2, 5, 16)
    for pos in (ENDS, -(2**31), np.array(ENDS), UINT32, *ROUNDED_UP, *([FEW + 2**40] if x64 else [])):
        judge(ROPE.apply(x, pos), x, pos, **HALF)
        judge(ROPE.rotation(pos, like=x).apply(x), x, pos, **HALF)
    for run in (ROPE.apply, jax.jit(ROPE.apply)):
        judge(run(x, jnp.asarray(UINT32)), x, UINT32, **HALF)


@pytest.mark.parametrize("dtype", ["int64", "int16", "uint32", "float64"])
def test_positions_are_those_of_the_call(dtype, x64):
    """A program that is traced reads NumPy's when it is compiled, and an eager one runs asynchronously."""
    x, pos = normal(2, 5, 16), np.arange(5).astype(dtype)
    calls = (ROPE.apply, lambda x, pos: ROPE.rotation(pos, like=x).apply(x))
    traced = [jax.jit(lambda x, call=call: call(x, pos)).trace(x) for call in calls]
    pos += pos.dtype.type(7)
    for program in traced:
        judge(program.lower().compile()(x), x, np.arange(5).astype(dtype), **HALF)


TOO_FAR = [
    *(2**31, -(2**31) - 1, 2**70, np.int64(2**33), float("nan"), float("inf"), 3e9),
    *([0, 2**31], [0.5, 3e9], np.array([2**33]), np.array([np.nan]), np.array([0.0, -(2.0**31)])),
    *(range(2**31 - 2, 2**31 + 3), range(-(2**31) + 1, -(2**31) - 4, -1)),
]


@pytest.mark.parametrize("pos", TOO_FAR, ids=str)
def test_positions_beyond_32_bits_are_refused_without_x64(pos, narrow):
    x = normal(1, np.size(pos), 16)
    for call in (
        ROPE.apply,
        lambda x, pos: ROPE.rotation(pos, like=x),
        lambda x, pos: jax.jit(lambda x: ROPE.apply(x, pos))(x),
    ):
        with pytest.raises(ra.PositionError):
            call(x, pos)


class Holder:
    """An object with the names of the array that it holds, like a Variable of Flax NNX."""

    def __init__(self, array):
        self.array = array

    def __jax_array__(self):
        return self.array

    def __getattr__(self, name):
        return getattr(self.array, name)


@refusals("jax")
def test_wrong_arguments(call, error, words, narrow):
    names = {"x": normal(2, 5, 16), "p": jnp.arange(5)}
    refused(error, words, lambda: eval(call, globals() | names))


def test_result_is_a_buffer_of_its_own(narrow):
    """Donating x must not free the result."""
    x, unrotated = normal(2, 5, 16), ra.RoPE(16, rotary_dim=0)
    for y in (ROPE.apply(x, 3), unrotated.apply(x, 3), unrotated.apply(x, 3, backend="array-api")):
        assert y.unsafe_buffer_pointer() != x.unsafe_buffer_pointer()


def test_operations_without_programs(narrow):
    """Under `jax.disable_jit`, operations rotate, forward and backward, and `explain` says so."""
    x, weight, fields = normal(2, 5, 16), normal(2, 5, 16, seed=1), FIELDS["partial"]
    assert "one after the other" not in str(ra.explain(x, 3))
    with jax.disable_jit():
        assert "one after the other" in str(ra.explain(x, 3))
        y, pull = jax.vjp(lambda x: ra.apply(x, FEW, **fields), x)
        judge(y, x, FEW, **fields)
        judge(pull(weight)[0], weight, FEW, inverse=True, **adjoint(fields))


# ---- compiling ----


# Positions of each kind, at a step.
KINDS = {
    "int": lambda i: 3 + i,
    "float": lambda i: 0.5 + i,
    "range": lambda i: range(i, i + 5),
    "list": lambda i: [i, i + 1, 7, 8, 9],
    "NumPy": lambda i: FEW + i,
    "NumPy floats": lambda i: FEW + i / 4,
    "JAX": lambda i: jnp.arange(5, dtype="int32"),
    "JAX floats": lambda i: jnp.arange(5, dtype="float32"),
}


def test_a_new_position_compiles_nothing(x64):
    x = normal(2, 5, 16)

    def rotate_at(i):
        for positions_at in KINDS.values():
            ROPE.apply(x, positions_at(i))
            ROPE.rotation(positions_at(i), like=x).apply(x)

    rotate_at(0)
    assert not programs_of(lambda: [rotate_at(i) for i in range(1, 10)])


@pytest.mark.parametrize("kind", ["int", "range", "NumPy", "JAX", "JAX floats"])
def test_a_call_is_one_program(kind, narrow):
    x, pos = normal(2, 5, 16), KINDS[kind](0)
    rope = ra.RoPE(16, base=4000.0 + [*KINDS].index(kind))  # not compiled yet
    rotation = rope.rotation(np.arange(5.0), like=x)
    assert programs_of(lambda: rope.apply(x, pos)) == 1
    assert programs_of(lambda: rope.rotation(pos, like=x)) == 1
    assert programs_of(lambda: rotation.apply(x)) <= 1  # 0 if another rotation has the program


def test_eager_transforms_are_programs(narrow):
    """An eager gradient, derivative or recomputation is one program, as the forward call is."""
    x, pos = normal(2, 5, 16), jnp.arange(5)

    def rotate(base):
        return lambda x: ra.apply(x, pos, base=base)

    # JAX's own operations around it, such as the axes of pos
    jax.vjp(rotate(4100.0), x)[1](x)
    jax.linearize(rotate(4100.0), x)[1](x)
    jax.checkpoint(lambda x: rotate(4100.0)(x)[0])(x)
    assert programs_of(lambda: jax.vjp(rotate(4200.0), x)) == 1
    pull = jax.vjp(rotate(4200.0), x)[1]
    assert programs_of(lambda: pull(x)) == 1
    assert programs_of(lambda: jax.checkpoint(lambda x: rotate(4200.0)(x)[0])(x)) <= 1  # the forward program


def test_equal_ropes_share_a_program(narrow):
    x, rope = normal(2, 5, 16), ra.RoPE(16, base=5151.0)
    equal = [rope.apply, pickle.loads(pickle.dumps(rope)).apply, functools.partial(ra.apply, base=5151.0)]
    assert programs_of(lambda: [rotate(x, pos) for pos, rotate in enumerate(equal)]) == 1
    assert programs_of(lambda: [rotate(x, pos, inverse=True) for pos, rotate in enumerate(equal)]) == 1


def test_a_rope_is_an_argument_with_and_without_static_argnames():
    """A RoPE is part of a tree's structure, registered when it is made: transforms take it as it is."""
    x, traces = jnp.ones((2, 3, 16)), []

    def rotated(rope, x):
        traces.append(rope)
        return rope.apply(x, jnp.arange(3))

    ropes = [ROPE, ra.RoPE(16, **HALF), OTHER, pickle.loads(pickle.dumps(OTHER)), ROPE]
    for jitted in (jax.jit(rotated), jax.jit(rotated, static_argnames="rope")):
        traces.clear()
        for rope in ropes:
            assert close(jitted(rope, x), rope.apply(x, jnp.arange(3)))
        assert len(traces) == 2
    assert close(jax.vmap(jitted, in_axes=(None, 0))(ROPE, x), ROPE.apply(x, FEW[:3]))
    assert jax.tree.leaves({"rope": ROPE, "x": x})[0] is x
    assert jax.tree.map(jnp.shape, {"rope": OTHER}) == {"rope": OTHER}


def test_traced_positions_compile_once(x64):
    x, step = normal(2, 1, 16), jax.jit(ROPE.apply)
    for pos in range(5):
        judge(step(x, pos), x, pos, **HALF)
        judge(step(x, np.int32(pos)), x, pos, **HALF)
    assert step._cache_size() <= 2  # a Python int is weakly typed, and is traced separately


def test_rotation_is_a_tree(narrow):
    """JAX's serialize_executable pickles such trees, of the arguments and the results."""
    x = normal(2, 5, 16)
    rotation = OTHER.rotation(FEW, like=x)
    leaves, tree = jax.tree.flatten(rotation)
    assert [leaf.shape for leaf in leaves] == [(5, 4), (5, 4)]
    assert tree != jax.tree.structure(ROPE.rotation(FEW, like=x))
    assert hash(tree) == hash(jax.tree.structure(OTHER.rotation(FEW, like=x)))
    again = jax.tree.unflatten(pickle.loads(pickle.dumps(tree)), leaves)
    through = jax.jit(lambda r: r)(rotation)
    assert isinstance(through, ra.Rotation)
    for rotation_again in (through, again):
        judge(rotation_again.apply(x), x, FEW, **OTHER_FIELDS)
    judge(jax.jit(lambda r, x: r.inverse().apply(x))(rotation, x), x, FEW, inverse=True, **OTHER_FIELDS)


def test_more_types_than_the_memo_holds(narrow):
    """JAX takes the name of a type once: a layout that the memo dropped still has its type."""
    x = normal(2, 5, 16)
    cos, sin = rotation = ROPE.rotation(range(5), like=x)
    for i in range(300):
        rotation_type(*rotation.layout._replace(amplitude=2.0 + i))
    again = rotation_type(*rotation.layout)
    assert again is type(rotation)
    judge(jax.jit(lambda rotation: rotation.apply(x))(again(cos, sin)), x, range(5), **HALF)


def test_no_tracer_leaks(narrow):
    """A rope that cached values under a tracer works outside of it."""
    x, rope = normal(2, 5, 16), ra.RoPE(16, base=3131.0)
    with jax.checking_leaks():
        jax.jit(lambda x: (rope.apply(x, FEW), rope.rotation(FEW, like=x).apply(x)))(x)
    judge(rope.apply(x, FEW), x, FEW, base=3131.0)


def test_no_64_bit_types_in_a_program_without_x64(narrow):
    for pos in (jnp.arange(5), jnp.arange(5.0)):
        program = str(jax.make_jaxpr(OTHER.apply)(normal(2, 5, 16), pos))
        assert "64[" not in program
        assert "dot_general" not in program


# ---- transforms ----


# Functions of x and positions of (batch, sequence) that return the rotated x.
ROTATED = {
    "vmap of rotations": lambda x, p: jax.vmap(lambda r, x: r.apply(x))(ROPE.rotation(p, like=x), x),
    "scan": lambda x, p: jax.lax.scan(lambda carry, row: (carry, ROPE.apply(*row)), 0, (x, p))[1],
    "scan of tables": lambda x, p: jax.vmap(lambda r, x: r.apply(x))(
        jax.lax.scan(lambda carry, p: (carry, ROPE.rotation(p, like=x)), 0, p)[1], x
    ),
    "loop": lambda x, p: jax.lax.fori_loop(0, 1, lambda i, x: ROPE.apply(x, p), x),
    "cond": lambda x, p: jax.lax.cond(p[0, 0] == p[0, 0], ROPE.apply, OTHER.apply, x, p),
}
# That return the x rotated back.
BACKWARD = {
    "linear_transpose": lambda x, p: jax.linear_transpose(lambda x: ROPE.apply(x, p), x)(x)[0],
    "checkpoint": lambda x, p: jax.vjp(lambda x: jax.checkpoint(ROPE.apply)(x, p), x)[1](x)[0],
}
BATCH = np.arange(15, dtype=np.int32).reshape(3, 5) * 1_000_003


def test_vmap_over_one_of_both_tables(narrow):
    x = normal(5, 16)
    cos, sin = ROPE.rotation(range(5), like=x)
    stacked = jnp.stack([sin, cos])
    for axes, tables in (((0, None), (stacked, sin)), ((None, 0), (cos, stacked))):
        y = jax.vmap(lambda cos, sin: ROPE.rotation_from(cos, sin).apply(x), axes)(*tables)
        for i, row in enumerate(y):
            row_tables = [table[i] if axis == 0 else table for table, axis in zip(tables, axes, strict=True)]
            np.testing.assert_array_equal(row, ROPE.rotation_from(*row_tables).apply(x))


@functools.cache
def transformed(x64):
    """Return an array and the results of all transforms, in one program."""
    with settings(x64):
        x, functions = normal(3, 2, 5, 16), ROTATED | BACKWARD
        run = jax.jit(lambda x, pos: {name: call(x, pos) for name, call in functions.items()})
        return x, run(x, jnp.asarray(BATCH))


@pytest.mark.parametrize("name", [*ROTATED, *BACKWARD])
def test_transforms(name, x64):
    x, arrays = transformed(x64)
    judge(arrays[name], x, BATCH, inverse=name in BACKWARD, **HALF)


def test_derivatives_of_other_operands(narrow):
    """Of positions, frequencies and tables: compare with differences, of the second order in float64."""
    from jax.test_util import check_grads

    at, by_positions = [0.25, -1.5, 2.75], jax.jit(OTHER.apply)
    with settings(x64=True):
        check_grads(by_positions, (normal(2, 3, 16, dtype="float64"), jnp.asarray(at)), 2, modes=["rev"])
    x, pos, frequencies = normal(2, 3, 16), jnp.asarray(at), jnp.asarray(OTHER.frequencies)
    learned = jax.jit(lambda x, pos, w: OTHER.rotation(pos, like=x, inv_freq=w).apply(x))
    check_grads(learned, (x, pos, frequencies), 1, modes=["rev"], rtol=0.01)
    by_tables = jax.jit(lambda x, cos, sin: OTHER.rotation_from(cos, sin).apply(x))
    tables = tuple(OTHER.rotation(pos, like=x))
    check_grads(by_tables, (x, *tables), 1, rtol=0.01)
    check_grads(functools.partial(by_tables, x), tables, 1, rtol=0.01)
    transposed = jax.linear_transpose(functools.partial(by_tables, x), *tables)(x)
    for gradient, expected in zip(transposed, jax.vjp(by_tables, x, *tables)[1](x)[1:], strict=True):
        assert close(gradient, expected)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_result_whose_gradient_is_not_needed(transform, narrow):
    """A later rule returns None for k: the gradient has the part of q alone, by positions and by tables."""
    product = jax.custom_vjp(lambda q, k: (q * k).sum())
    product.defvjp(lambda q, k: (product(q, k), k), lambda k, g: (g * k, None))
    q, k = normal(2, 5, 16), normal(2, 5, 16, seed=1)
    rotation = ROPE.rotation(FEW, like=q)
    for rotate in (functools.partial(ROPE.apply, pos=FEW), rotation.apply):
        gradient = jax.grad(lambda q, k, rotate=rotate: product(*rotate((q, k))), (0, 1))
        dq, dk = transform(gradient)(q, k)
        judge(dq, ROPE.apply(k, FEW), FEW, inverse=True, **HALF)
        assert not values(dk).any()
    of_tables = jax.grad(lambda cos, sin: product(q, ROPE.rotation_from(cos, sin).apply(k)), (0, 1))
    assert not any(values(table).any() for table in transform(of_tables)(*rotation))


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_the_forms_of_all_platforms(platform, narrow):
    """Rotate on the CPU in the form of each platform, forward and transposed; NaN stays in its pair.

    With explicit mesh axes, the form's type is x's.
    """
    from rope_array._backends.jax._forms import FORMS as forms

    mesh = jax.make_mesh((1,), ("batch",), axis_types=(jax.sharding.AxisType.Explicit,))
    cases = list(itertools.product(FIELDS, ("float32", "bfloat16"), (False, True)))
    xs = {dtype: normal(2, 5, 16, dtype=dtype).at[0, 0, 5].set(jnp.nan) for dtype in ("float32", "bfloat16")}
    xs = {dtype: x.at[1, 2, 4].set(jnp.inf) for dtype, x in xs.items()}

    def rotate(x, name, transposed):
        rotation = ra.RoPE(16, **FIELDS[name]).rotation(jnp.asarray(ENDS, "int32"), like=x)
        layout = type(rotation).layout.transposed(None) if transposed else type(rotation).layout
        cos, sin = (table[None] for table in rotation)
        return forms[platform].rotate(x, cos, sin, layout=layout, transposed=transposed)

    ys = jax.jit(lambda xs: [rotate(xs[dtype], name, t) for name, dtype, t in cases])(xs)
    for (name, dtype, transposed), y in zip(cases, ys, strict=True):
        fields = adjoint(FIELDS[name]) if transposed else FIELDS[name]
        judge(y, xs[dtype], ENDS, inverse=transposed, **fields)
        with jax.set_mesh(mesh):
            split = jax.device_put(xs[dtype], jax.sharding.PartitionSpec("batch"))
            (aval,) = jax.make_jaxpr(lambda x: rotate(x, name, transposed))(split).out_avals  # noqa: B023
            assert aval == jax.typeof(split)


def test_shard_map_over_positions_alone(narrow):
    """x is the same on each device, its positions are not: the result varies, the gradient is summed."""
    from rope_array._backends.jax._varying import varying_axes

    def rotate(x, pos):
        y = ROPE.apply(x, pos)
        assert "parts" in varying_axes(y)
        return y

    mesh = jax.make_mesh((1,), ("parts",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = {"mesh": mesh, "in_specs": (jax.P(), jax.P("parts")), "out_specs": jax.P(None, "parts")}
    x, weight = normal(2, 5, 16), normal(2, 5, 16, seed=1)
    y, pull = jax.vjp(lambda x: jax.shard_map(rotate, **specs)(x, FEW), x)
    judge(y, x, FEW, **HALF)
    judge(pull(weight)[0], weight, FEW, inverse=True, **HALF)


def test_nan_checks_of_checkify(narrow):
    """As docs/backends.md says: they check the operations of array-api, not the primitive."""
    from jax.experimental import checkify

    x = normal(2, 5, 16).at[0, 0, 0].set(jnp.nan)
    for backend, is_reported in ((None, False), ("array-api", True)):
        rotate = functools.partial(ROPE.apply, pos=3, backend=backend)
        error, _ = checkify.checkify(rotate, errors=checkify.nan_checks)(x)
        assert (error.get() is not None) == is_reported


def test_tables_in_a_kernel_of_pallas(narrow):
    """As docs/backends.md says: tables are inputs of the kernel, and the operations are the core's."""
    from jax import export
    from jax.experimental import pallas

    x, pos = normal(8, 16), np.arange(8)
    leaves, tree = jax.tree.flatten(ROPE.rotation(pos, like=x))

    def kernel(x, cos, sin, y):
        rotation = jax.tree.unflatten(tree, (cos[...], sin[...]))
        y[...] = rotation.apply(x[...], backend="array-api")

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    judge(pallas.pallas_call(kernel, out_shape=shape, interpret=True)(x, *leaves), x, pos, **HALF)
    export.export(jax.jit(pallas.pallas_call(kernel, out_shape=shape)), platforms=("tpu",))(x, *leaves)


# ---- exports ----


def test_export(x64):
    """The length is symbolic; the program is serialized."""
    from jax import export

    (length,) = export.symbolic_shape("s")
    exported = export.export(jax.jit(ROPE.apply))(
        jax.ShapeDtypeStruct((2, length, 16), "float32"), jax.ShapeDtypeStruct((length,), "int32")
    )
    if importlib.util.find_spec("flatbuffers"):  # serializing needs it
        exported = export.deserialize(exported.serialize())
    for size in (1, 77):
        x, pos = normal(2, size, 16), jnp.asarray(np.arange(size, dtype=np.int32) * 9_999_991)
        judge(exported.call(x, pos), x, pos, **HALF)


def test_export_of_a_batch_of_any_size(narrow):
    """The batch rule takes symbolic sizes: of positions, of x, and of a table whose other table is shared."""
    from jax import export

    (count,) = export.symbolic_shape("b")
    rotate = jax.vmap(lambda x, cos, sin: ROPE.rotation_from(cos, sin).apply(x), in_axes=(0, None, 0))
    program = jax.jit(lambda pos, x, cos, sin: (jax.vmap(ROPE.apply)(x, pos), rotate(x, cos, sin)))
    shapes = (count, 5, 16), (5, 8), (count, 5, 8)
    structs = (jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)
    exported = export.export(program)(jax.ShapeDtypeStruct((count, 5), "int32"), *structs)
    for size in (1, 3):
        x, pos = normal(size, 5, 16), jnp.asarray(ENDS, "int32")
        cos, sin = ROPE.rotation(pos, like=x)
        for y in exported.call(jnp.tile(pos, (size, 1)), x, cos, jnp.tile(sin, (size, 1, 1))):
            judge(y, x, ENDS, **HALF)


IN_ANOTHER_PROCESS = """
    import sys
    from pathlib import Path
    import numpy as np
    import rope_array as ra

    x = np.ones((2, 5, 16), np.float32)
    rotation = ra.RoPE(16).rotation(range(5), like=x)
    assert "jax" not in sys.modules
    import jax

    assert len(jax.tree.leaves(rotation)) == 2
    y = jax.jit(lambda r, x: r.apply(x))(rotation, x)
    assert np.allclose(np.asarray(y), rotation.apply(x), atol=1e-6)
    jax.tree_util.register_static(ra.RoPE)
    y = jax.jit(lambda rope, x: rope.apply(x, 1))(ra.RoPE(8), jax.numpy.ones(8))
    assert y.shape == (8,)

    folder, rope = Path(sys.argv[1]), ra.RoPE(16, pairing="half", base=500_000.0, attention_factor=1.375)
    x = jax.numpy.asarray(np.load(folder / "x.npy"))
    rotation = rope.rotation(range(5), like=x)  # so that JAX knows its type
    program = jax.export.deserialize(bytearray((folder / "program").read_bytes()))
    np.save(folder / "y.npy", program.call(rotation, x))
    print(jax.make_jaxpr(lambda x: ra.apply(x, 3, base=77.0))(x))
    """


def test_another_process(tmp_path, narrow):
    """It calls a saved program of a rotation, as docs/in-my-model/jax.md says, and has the same programs.

    A Rotation is made before JAX is imported, and a program registers RoPE itself.
    """
    from jax import export

    x = normal(2, 5, 16)
    # Of a layout of its own: JAX takes a name once, and the memo of types may have dropped its type.
    fields = {**HALF, "attention_factor": 1.375}
    rotation = ra.RoPE(16, **fields).rotation(range(5), like=x)
    exported = export.export(jax.jit(lambda rotation, x: rotation.apply(x)))(rotation, x)
    (tmp_path / "program").write_bytes(exported.serialize())
    np.save(tmp_path / "x.npy", x)
    text = child.run(IN_ANOTHER_PROCESS, str(tmp_path))
    judge(jnp.asarray(np.load(tmp_path / "y.npy")), x, range(5), **fields)
    for base in (77.0, 78.0):
        program = jax.make_jaxpr(lambda x, base=base: ra.apply(x, 3, base=base))(x)
        assert (text.strip() == str(program).strip()) == (base == 77.0)


# ---- devices: see jax_devices.py ----

EIGHT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
nightly = functools.partial(pytest.param, marks=pytest.mark.nightly)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("functions", "settings"),
    [
        ("SHARDED + jax_devices.OTHERS", {}),
        nightly("SHARDED", {"ROPE_ARRAY_KERNEL_LEVEL": "none"}),
        nightly("SHARDED", {"JAX_ENABLE_X64": "1"}),
    ],
    ids=["default", "without the kernel", "x64"],
)
def test_eight_devices(functions, settings):
    child.run(f"import jax_devices; jax_devices.run(*(jax_devices.{functions}))", **EIGHT, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["none", nightly("")], ids=["no kernel", "kernel"])
def test_the_suite_on_eight_devices(level):
    """Without the kernel by the array operations that other platforms have too."""
    names = sample("positions_of_a_shard", "positions_of_a_batch", "tuples", "gradient[float32]")
    script = f"import jax_devices; jax_devices.run_suite{names}"
    child.run(script, JAX_PLATFORMS="cpu", ROPE_ARRAY_KERNEL_LEVEL=level)


@pytest.mark.slow
def test_two_processes():
    """Each process of a mesh over two rotates its own parts, without communication."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
    script = "import jax_devices; jax_devices.run_process({!r}, {})"
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(child.run, script.format(address, n), JAX_PLATFORMS="cpu") for n in range(2)]
        assert [run.result() for run in runs]
