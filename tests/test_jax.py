"""JAX: eager, compiled, transformed and sharded, with x64 and without, the result is the same."""

import contextlib
import functools
import importlib.util
import pickle

import child
import compare
import numpy as np
import pytest
from compare import judge, same, values

import rope_array as ra
from rope_array._rotation import rotation_type
from rope_array.testing import apply_definition, rotation_matrix
from rope_array.testing._contract import eps

jax = pytest.importorskip("jax")
jnp = jax.numpy
normal = functools.partial(compare.normal, "jax")
pytestmark = pytest.mark.library("jax")

FIELDS = {
    "plain": {},
    "half": {"pairing": "half", "base": 500_000.0},
    "partial": {"pairing": "half", "rotary_dim": 8, "rotary_start": 4, "attention_factor": 1.25},
    "mixed": {"pairing": "interleaved", "out_pairing": "half", "rotary_dim": 12},
}
HALF = {"pairing": "half", "base": 500_000.0}
ROPE = ra.RoPE(16, **HALF)
OTHER = ra.RoPE(16, base=77.0, rotary_dim=8, rotary_start=4, attention_factor=1.25)
ENDS = [0, 1, -1, 2**31 - 1, -(2**31)]


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
    return a.dtype == b.dtype and np.allclose(values(a), values(b), rtol=0, atol=4 * eps(a.dtype.name) * 5)


@contextlib.contextmanager
def compilations():
    """Yield a list of JAX's messages about compilations, which grows."""
    import logging

    records = []
    handler = logging.Handler(logging.DEBUG)
    handler.emit = lambda record: records.append(record.getMessage())
    logger = logging.getLogger("jax")
    logger.addHandler(handler)
    try:
        # The messages are warnings to logging, not to Python.
        with jax.log_compiles(True):
            yield records
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def compiling_nothing():
    """Fail if a program is compiled."""
    with compilations() as records:
        yield
    compiled = [message for message in records if message.startswith(("Compiling", "Finished XLA"))]
    assert not compiled, compiled


# ---- values ----


CASES = [("float32", name) for name in FIELDS]
CASES += [(dtype, "partial") for dtype in ("float16", "bfloat16", "float64")]


@pytest.mark.parametrize(("dtype", "name"), CASES)
def test_eager_and_jit(dtype, name, x64):
    if dtype == "float64" and not x64:
        pytest.skip("there is no float64 without x64")
    fields = FIELDS[name]
    x, pos = normal(2, 5, 16, dtype=dtype), jnp.asarray(ENDS, dtype="int32")
    for inverse in (False, True):
        function = functools.partial(ra.apply, inverse=inverse, **fields)
        y = function(x, pos)
        judge(y, x, pos, inverse=inverse, **fields)
        if inverse:
            judge(jax.jit(function)(x, pos), x, pos, inverse=inverse, **fields)
        elif name == "partial" and x64 == (dtype == "float64"):  # slow; shared by both settings of x64
            with jax.disable_jit():
                judge(function(x, pos), x, pos, inverse=inverse, **fields)
            judge(function(x, pos, backend="array-api"), x, pos, inverse=inverse, **fields)
        rotation = ra.RoPE(16, **fields).rotation(pos, like=x)
        rotation = rotation.inverse() if inverse else rotation
        assert rotation.cos.dtype == ("float64" if dtype == "float64" else "float32")
        judge(rotation.apply(x), x, pos, inverse=inverse, **fields)


HOST_POSITIONS = {
    "int": 7,
    "last int32": 2**31 - 1,
    "first int32": -(2**31),
    "float": -2.75,
    "range": range(3, 8),
    "list": ENDS,
    "list of floats": [0, 1.5, 2, -3.25, 1e6],
    "nested": [[0, 1, 2, 3, 4], [9, 8, 7, 6, 5]],
    "NumPy int64": np.array(ENDS),
    "NumPy uint8": np.array([0, 1, 2, 254, 255], np.uint8),
    "NumPy int16": np.array([0, -1, 2, 32767, -32768], np.int16),
    "NumPy uint32": np.array([0, 1, 2, 3, 2**31 - 1], np.uint32),
    "NumPy float64": np.array([0.0, 0.25, -1.5, 1e6 + 0.123, 2.0**31 - 0.75]),
    "NumPy that rounds up to 2**31": np.array([0.0, 0.25, -1.5, 1e6 + 0.123, 2.0**31 - 0.5]),
    "a float that rounds up to 2**31": 2.0**31 - 0.5,
    "NumPy float32": np.array([0.0, 0.25, -1.5, 1e6, 3e7], np.float32),
    "NumPy scalar": np.int64(5),
    "NumPy float scalar": np.float64(5.25),
    "NumPy strided": np.arange(10)[::-2],
    "NumPy of shape ()": np.array(3),
    "NumPy (B, 1)": np.array([[3], [4]]),
}


@pytest.mark.parametrize("name", HOST_POSITIONS)
def test_positions_of_the_host(name, x64):
    pos = HOST_POSITIONS[name]
    x = normal(2, 5, 16)
    y = ROPE.apply(x, pos)
    judge(y, x, pos, **HALF)
    judge(ROPE.rotation(pos, like=x).apply(x), x, pos, **HALF)


@pytest.mark.parametrize("name", ["int", "list of floats", pytest.param("nested", marks=pytest.mark.nightly)])
def test_positions_of_the_host_under_jit_and_by_array_api(name, narrow):
    pos = HOST_POSITIONS[name]
    x = normal(2, 5, 16)
    judge(jax.jit(lambda x: ROPE.apply(x, pos))(x), x, pos, **HALF)
    judge(ROPE.apply(x, pos, backend="array-api"), x, pos, **HALF)
    with jax.disable_jit():
        judge(ROPE.apply(x, pos), x, pos, **HALF)


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float32", "float64"]
)
def test_positions_of_jax(dtype, x64):
    if dtype.endswith("64") and not x64:
        pytest.skip("there are no 64-bit types without x64")
    info = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    numbers = [0, 1, max(int(info.min), -(2**31)), min(int(info.max), 2**31 - 128), 100]
    pos = jnp.asarray(np.array(numbers, dtype))
    x = normal(2, 5, 16)
    for run in (ROPE.apply, jax.jit(ROPE.apply)):
        judge(run(x, pos), x, pos, **HALF)


def test_uint32_beyond_int32(x64):
    numbers = np.array([2**31, 2**31 + 1, 2**32 - 1, 3_000_000_000, 5], np.uint32)
    x = normal(2, 5, 16)
    for run in (ROPE.apply, jax.jit(ROPE.apply)):
        judge(run(x, jnp.asarray(numbers)), x, numbers, **HALF)


@pytest.mark.parametrize("dtype", [np.int64, np.uint32])
def test_host_positions_that_do_not_fit(dtype, x64):
    # In range they are exact; out of range they raise, never wrap.
    pos = np.array([2**31, 5, 6, 7, 2**32 - 1], dtype)
    x = normal(2, 5, 16)
    if x64 or dtype is np.uint32:  # uint32 needs no x64
        judge(ROPE.apply(x, pos), x, pos, **HALF)
        return
    for call in (ROPE.apply, lambda x, pos: jax.jit(lambda x: ROPE.apply(x, pos))(x)):
        with pytest.raises(ra.PositionError, match=r"2\*\*31"):
            call(x, pos)


@pytest.mark.parametrize(
    "pos",
    [
        2**31,
        -(2**31) - 1,
        [0, 2**31],
        range(2**31 - 2, 2**31 + 3),
        range(-(2**31) + 1, -(2**31) - 4, -1),
        np.array([2**33]),
        np.int64(2**33),
        2**70,
        float("nan"),
        float("inf"),
        3e9,
        [0.5, 3e9],
        np.array([np.inf]),
        np.array([np.nan]),
        np.array([0.0, -(2.0**31)]),
    ],
    ids=str,
)
@pytest.mark.usefixtures("narrow")
def test_out_of_range_without_x64(pos):
    x = normal(1, 1, 16) if np.ndim(pos) == 0 else normal(1, len(pos), 16)
    for call in (ROPE.apply, lambda x, pos: ROPE.rotation(pos, like=x)):
        with pytest.raises(ra.PositionError):
            call(x, pos)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "bool"])
def test_refused_positions(dtype, narrow):
    with pytest.raises(ra.ArrayTypeError, match=f"pos is {dtype}"):
        ROPE.apply(normal(2, 5, 16), jnp.ones(5, dtype))


class Holder:
    """An object with the names of the array that it holds, like a Variable of Flax NNX."""

    def __init__(self, array):
        self.array = array

    def __jax_array__(self):
        return self.array

    def __getattr__(self, name):
        return getattr(self.array, name)


# Of each wrong call: x and pos, options, and words of the message.
WRONG = {
    "traced seq_axis": (
        lambda x, p: jax.jit(ROPE.apply)(x, p, seq_axis=-2),
        ["seq_axis", "traced", "partial("],
    ),
    "seq_axis of JAX": (lambda x, p: ROPE.apply(x, p, seq_axis=jnp.int32(-2)), ["seq_axis is int32[] (jax)"]),
    "traced inverse": (
        lambda x, p: jax.jit(ROPE.apply)(x, p, inverse=True),
        ["inverse", "traced", "partial("],
    ),
    "traced base": (lambda x, p: jax.jit(ra.apply)(x, p, base=1e4), ["base is float32[] (jax, traced)"]),
    "x of NumPy": (
        lambda x, p: jax.jit(lambda p: ROPE.apply(np.ones((5, 16), "f4"), p))(p),
        ["two libraries", "jax.numpy.asarray(x)"],
    ),
    "x is described": (
        lambda x, p: ROPE.apply(jax.ShapeDtypeStruct(x.shape, x.dtype), p),
        ["a ShapeDtypeStruct, not an array"],
    ),
    "x is held": (lambda x, p: ROPE.apply(Holder(x), p), ["a Holder that holds an array", "variable[...]"]),
    "like is held": (lambda x, p: ROPE.rotation(p, like=Holder(x)), ["a Holder that holds an array"]),
    "a traced x is held": (
        lambda x, p: jax.jit(lambda x: ROPE.apply(Holder(x), p))(x),
        ["a Holder that holds an array"],
    ),
    "pos is held": (lambda x, p: ROPE.apply(x, Holder(p)), ["a Holder that holds an array", "pos[...]"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name, narrow):
    call, words = WRONG[name]
    with pytest.raises(ra.RoPEError) as caught:
        call(normal(2, 5, 16), jnp.arange(5))
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)


def test_tuple_of_dtypes(x64):
    dtypes = ["float16", "float32", "bfloat16", *(["float64"] if x64 else [])]
    xs = tuple(normal(2, heads, 5, 16, dtype=d) for heads, d in zip((8, 1, 2, 3), dtypes, strict=False))
    pos = np.array([ENDS, ENDS[::-1]])
    for run in (ROPE.apply, jax.jit(ROPE.apply)):
        for x, y in zip(xs, run(xs, pos.astype(np.int32)), strict=True):
            judge(y, x, pos, **HALF)


@pytest.mark.parametrize("shape", [(0, 16), (2, 0, 16), (0, 3, 16), (1, 1, 16), (16,)], ids=str)
def test_sizes(shape, narrow):
    x = normal(*shape)
    for pos in (3, 0.5, range(shape[-2]) if len(shape) > 1 else 0):
        y = ROPE.apply(x, pos)
        assert y.shape == x.shape
        judge(y, x, pos, **HALF)
    identity = ra.apply(x, 3, rotary_dim=0)
    assert same(identity, x)
    assert identity is not x


def test_result_is_a_buffer_of_its_own(narrow):
    # Donating x must not free the result.
    x = normal(2, 5, 16)
    for rope in (ROPE, ra.RoPE(16, rotary_dim=0)):
        y = rope.apply(x, 3)
        assert y.unsafe_buffer_pointer() != x.unsafe_buffer_pointer()
        core = rope.apply(x, 3, backend="array-api")
        assert core.unsafe_buffer_pointer() != x.unsafe_buffer_pointer()


# ---- compiling ----


def test_a_new_position_compiles_nothing(x64):
    x = normal(2, 5, 16)
    own = jnp.asarray(np.arange(5, dtype=np.int32))
    kinds = {
        "int": lambda i: 3 + i,
        "float": lambda i: 0.5 + i,
        "range": lambda i: range(i, i + 5),
        "list": lambda i: [i, i + 1, 7, 8, 9],
        "NumPy": lambda i: np.arange(5) + i,
        "NumPy floats": lambda i: np.arange(5) + i / 4,
        "JAX": lambda i: own,
    }
    for make in kinds.values():
        jax.block_until_ready(ROPE.apply(x, make(0)))
        jax.block_until_ready(ROPE.rotation(make(0), like=x).apply(x))
    with compiling_nothing():
        for i in range(1, 20):
            for make in kinds.values():
                ROPE.apply(x, make(i))
                ROPE.rotation(make(i), like=x).apply(x)


@pytest.mark.parametrize("kind", ["int", "range", "NumPy", "JAX", "float"])
def test_a_call_is_one_program(kind, narrow):
    own = jnp.arange(5)
    kinds = {"int": 7, "range": range(5), "NumPy": np.arange(5), "JAX": own, "float": own.astype("float32")}
    x, pos = normal(2, 5, 16), kinds[kind]
    rope = ra.RoPE(16, base=4000.0 + [*kinds].index(kind))  # not compiled yet
    rotation = rope.rotation(np.arange(5.0), like=x)
    assert programs_of(lambda: rope.apply(x, pos)) == 1
    assert programs_of(lambda: rope.rotation(pos, like=x)) == 1
    assert programs_of(lambda: rotation.apply(x)) <= 1  # 0 if another rotation has the program


def test_eager_transforms_are_programs(narrow):
    """An eager gradient, derivative or recomputation is one program, as the forward call is."""
    x, pos, rope = normal(2, 5, 16), jnp.arange(5), ra.RoPE(16, base=4100.0)
    pull, push = (
        jax.vjp(lambda x: rope.apply(x, pos), x)[1],
        jax.linearize(lambda x: rope.apply(x, pos), x)[1],
    )
    again = jax.checkpoint(lambda x: rope.apply(x, pos)[0])
    for call in (pull, push, again):
        call(normal(2, 5, 16))  # JAX's own operations around it, such as the axes of pos
    rope = ra.RoPE(16, base=4200.0)
    assert programs_of(lambda: jax.vjp(lambda x: rope.apply(x, pos), x)) == 1
    pull = jax.vjp(lambda x: rope.apply(x, pos), x)[1]
    assert programs_of(lambda: pull(x)) == 1
    assert programs_of(lambda: jax.checkpoint(lambda x: rope.apply(x, pos)[0])(x)) <= 1  # the forward program


def test_explain_without_programs(narrow):
    x = normal(2, 5, 16)
    with jax.disable_jit():
        assert "one after the other" in str(ra.explain(x, 3))
    assert "one after the other" not in str(ra.explain(x, 3))


def test_a_program_as_text_is_the_same_in_each_process(narrow):
    x, code = (
        normal(2, 5, 16),
        "print(jax.make_jaxpr(lambda x: ra.apply(x, 3, base=77.0))(jnp.ones((2, 5, 16))))",
    )
    own = str(jax.make_jaxpr(lambda x: ra.apply(x, 3, base=77.0))(x))
    assert own.strip() == child.run(f"import jax, jax.numpy as jnp, rope_array as ra\n{code}").strip()
    assert own != str(jax.make_jaxpr(lambda x: ra.apply(x, 3, base=78.0))(x))


def programs_of(call):
    """Return how many programs a call compiles."""
    with compilations() as records:
        call()
    return sum(message.startswith("Compiling") for message in records)


def test_equal_ropes_share_a_program(narrow):
    x = normal(2, 5, 16)
    jax.block_until_ready((ra.RoPE(16, base=5151.0).apply(x, 3), ra.apply(x, 3, base=5151.0, inverse=True)))
    with compiling_nothing():
        ra.RoPE(16, base=5151.0).apply(x, 4)
        ra.apply(x, 5, base=5151.0)
        pickle.loads(pickle.dumps(ra.RoPE(16, base=5151.0))).apply(x, 4, inverse=True)


def test_compiling_nothing_notices_a_compilation(narrow):
    with pytest.raises(AssertionError, match="Compiling"), compiling_nothing():
        ra.apply(normal(2, 5, 16), 3, base=61.25)


def test_a_rope_is_an_argument_without_static_argnames():
    """A RoPE is part of a tree's structure, registered when it is made: transforms take it as it is."""
    x = jnp.ones((2, 3, 16))

    @jax.jit
    def rotated(rope, x):
        return rope.apply(x, jnp.arange(3))

    ropes = [ra.RoPE(16), ra.RoPE(16, base=500.0), ra.RoPE(16)]
    for rope in ropes:
        assert (rotated(rope, x) == rope.apply(x, jnp.arange(3))).all()
        assert (jax.vmap(rotated, in_axes=(None, 0))(rope, x) == rotated(rope, x)).all()
    assert rotated._cache_size() >= 2
    assert jax.grad(lambda x, rope: rotated(rope, x).sum())(x, ropes[0]).shape == x.shape
    assert jax.tree.leaves({"rope": ropes[0], "x": x})[0] is x
    assert jax.tree.map(jnp.shape, {"rope": ropes[1]}) == {"rope": ropes[1]}


def test_a_program_may_have_registered_the_rope():
    child.run(
        """
        import jax
        import rope_array as ra

        jax.tree_util.register_static(ra.RoPE)
        rope = ra.RoPE(8)
        assert jax.jit(lambda rope, x: rope.apply(x, 1))(rope, jax.numpy.ones(8)).shape == (8,)
        """
    )


def test_traced_positions_compile_once(x64):
    traces = []

    @jax.jit
    def step(x, pos):
        traces.append(pos)
        return ROPE.apply(x, pos)

    x = normal(2, 1, 16)
    for pos in range(20):
        judge(step(x, pos), x, pos, **HALF)
        judge(step(x, np.int32(pos)), x, pos, **HALF)
    # A Python int is weakly typed, so that int and np.int32 are traced separately.
    assert len(traces) <= 2
    assert step._cache_size() <= 2


def test_a_rope_is_a_static_argument(narrow):
    traces = []

    @functools.partial(jax.jit, static_argnames="rope")
    def step(x, pos, rope):
        traces.append(rope)
        return rope.apply(x, pos)

    x = normal(2, 5, 16)
    for rope in (ROPE, ra.RoPE(16, **HALF), OTHER, pickle.loads(pickle.dumps(OTHER)), ROPE):
        assert close(step(x, 3, rope), rope.apply(x, 3))
    assert len(traces) == 2


def test_rotation_is_a_tree(narrow):
    x, pos = normal(2, 5, 16), np.arange(5)
    rotation = OTHER.rotation(pos, like=x)
    leaves, tree = jax.tree.flatten(rotation)
    assert [leaf.shape for leaf in leaves] == [(5, 4), (5, 4)]
    assert tree != jax.tree.flatten(ROPE.rotation(pos, like=x))[1]
    assert hash(tree) == hash(jax.tree.flatten(OTHER.rotation(pos, like=x))[1])
    through = jax.jit(lambda r: r)(rotation)
    assert isinstance(through, ra.Rotation)
    fields = {"base": 77.0, "rotary_dim": 8, "rotary_start": 4, "attention_factor": 1.25}
    judge(through.apply(x), x, pos, **fields)
    judge(jax.jit(lambda r, x: r.inverse().apply(x))(rotation, x), x, pos, inverse=True, **fields)
    judge(jax.jit(lambda x: OTHER.rotation(pos, like=x).apply(x))(x), x, pos, **fields)


# ---- transforms ----


@pytest.mark.parametrize(("dtype", "name"), CASES)
def test_gradient_is_the_adjoint(dtype, name, x64):
    if dtype == "float64" and not x64:
        pytest.skip("there is no float64 without x64")
    fields = FIELDS[name]
    x, weight = normal(2, 5, 16, dtype=dtype), normal(2, 5, 16, dtype=dtype, seed=1)
    pos = np.array(ENDS)
    adjoint = fields | {"attention_factor": 1 / fields.get("attention_factor", 1.0)}
    function = functools.partial(ra.apply, **fields)
    for run in (function, jax.jit(function)):
        y, pullback = jax.vjp(lambda x, run=run: run(x, pos.astype(np.int32)), x)
        judge(y, x, pos, **fields)
        judge(pullback(weight)[0], weight, pos, inverse=True, **adjoint)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradient_by_tables(dtype, narrow):
    x, weight = (normal(2, 5, 16, dtype=dtype, seed=n) for n in (0, 1))
    pos = np.array(ENDS)
    for fields in FIELDS.values():
        rotation = ra.RoPE(16, **fields).rotation(pos, like=x)
        gradient = jax.jit(lambda x, rotation=rotation: jax.vjp(rotation.apply, x)[1](weight)[0])(x)
        adjoint = fields | {"attention_factor": 1 / fields.get("attention_factor", 1.0)}
        judge(gradient, weight, pos, inverse=True, **adjoint)


def test_products_with_the_hessian(narrow):
    """Of the sum of cubes of y: H·v = Rᵀ(6·y·(R·v))."""
    x, v, pos = normal(2, 5, 16), normal(2, 5, 16, seed=1), np.arange(5)
    gradient = jax.grad(lambda x: (ROPE.apply(x, pos) ** 3).sum())
    y, rotated = (apply_definition(values(array), pos, **HALF) for array in (x, v))
    exact = apply_definition(6 * y * rotated, pos, inverse=True, **HALF)
    for transform in (lambda f: f, jax.jit):
        product = transform(lambda x, v: jax.jvp(gradient, (x,), (v,))[1])(x, v)
        # A few roundings of float32, of numbers up to 100.
        np.testing.assert_allclose(values(product), exact, atol=20 * eps("float32") * 100)


def test_inside_custom_derivatives(narrow):
    x, weight, pos = normal(2, 5, 16), normal(2, 5, 16, seed=1), np.arange(5)
    by_vjp = jax.custom_vjp(lambda x: ROPE.apply(x, pos))
    by_vjp.defvjp(lambda x: (by_vjp(x), None), lambda _, g: (ROPE.apply(g, pos, inverse=True),))
    judge(jax.jit(jax.vjp(by_vjp, x)[1])(weight)[0], weight, pos, inverse=True, **HALF)
    by_jvp = jax.custom_jvp(lambda x: ROPE.apply(x, pos))
    by_jvp.defjvp(lambda primals, tangents: (by_jvp(*primals), ROPE.apply(*tangents, pos)))
    judge(jax.vjp(by_jvp, x)[1](weight)[0], weight, pos, inverse=True, **HALF)


def test_a_result_whose_gradient_is_not_needed(narrow):
    """A later rule returns None for k: the gradient is that of q, by positions and by tables."""
    product = jax.custom_vjp(lambda q, k: (q * k).sum())
    product.defvjp(lambda q, k: (product(q, k), k), lambda k, g: (g * k, None))
    q, k, pos = normal(2, 5, 16), normal(2, 5, 16, seed=1), np.arange(5)
    rotation = ROPE.rotation(pos, like=q)
    y = ROPE.apply(k, pos)
    for rotate in (functools.partial(ROPE.apply, pos=pos), rotation.apply):
        for run in (lambda f: f, jax.jit):
            for function in (
                lambda q, k, rotate=rotate: product(*rotate((q, k))),
                lambda q, k, rotate=rotate: product(rotate(q), rotate(k)),
            ):
                dq, dk = run(jax.grad(function, (0, 1)))(q, k)
                judge(dq, y, pos, inverse=True, **HALF)
                assert not values(dk).any()

    def by_tables(cos, sin):
        return product(q, ROPE.rotation_from(cos, sin).apply(k))

    for table in jax.grad(by_tables, (0, 1))(*rotation):
        assert not values(table).any()


def test_vmap_of_vmap(narrow):
    x, pos = normal(3, 2, 5, 16), jnp.asarray(np.arange(15, dtype=np.int32).reshape(3, 5))
    judge(jax.vmap(jax.vmap(ROPE.apply, (0, None)))(x, pos), x, pos, **HALF)


def test_vmap_over_one_table(narrow):
    x, pos = normal(2, 5, 16), np.arange(5)
    cos, sin = ROPE.rotation(pos, like=x)
    for which in (0, 1):
        pair = [jnp.stack([table, table]) if n == which else table for n, table in enumerate((cos, sin))]
        axes = [0 if n == which else None for n in range(2)]
        y = jax.vmap(lambda c, s: ROPE.rotation_from(c, s).apply(x), axes)(*pair)
        for each in y:
            judge(each, x, pos, **HALF)


def test_tangents_of_x_and_tables(narrow):
    """The derivative by both is the sum of the derivatives; the value is not affected."""
    rope = OTHER
    x, dx = normal(2, 5, 16), normal(2, 5, 16, seed=1)
    tables = tuple(rope.rotation(np.arange(5), like=x))
    dtables = tuple(normal(5, 4, seed=n) for n in (2, 3))

    def function(x, cos, sin):
        return rope.rotation_from(cos, sin).apply(x)

    zeros = jax.tree.map(jnp.zeros_like, (x, *tables))
    y, whole = jax.jvp(function, (x, *tables), (dx, *dtables))
    by_x = jax.jvp(function, (x, *tables), (dx, *zeros[1:]))[1]
    by_tables = jax.jvp(function, (x, *tables), (zeros[0], *dtables))[1]
    assert close(y, function(x, *tables))
    assert close(whole, by_x + by_tables)
    steps = [
        function(x + s * dx, *(t + s * d for t, d in zip(tables, dtables, strict=True))) for s in (-1, 1)
    ]
    np.testing.assert_allclose(values(whole), (values(steps[1]) - values(steps[0])) / 2, atol=1e-5)


def test_grad_jvp_linearize(x64):
    x, weight, pos = normal(2, 5, 16), normal(2, 5, 16, seed=1), np.arange(5)
    function = functools.partial(ROPE.apply, pos=pos)
    gradient = jax.grad(lambda x: (function(x) * weight).sum())(x)
    judge(gradient, weight, pos, inverse=True, **HALF)
    for tangent in (jax.jvp(function, (x,), (weight,))[1], jax.linearize(function, x)[1](weight)):
        judge(tangent, weight, pos, **HALF)
    judge(jax.linear_transpose(function, x)(weight)[0], weight, pos, inverse=True, **HALF)


@pytest.mark.parametrize("name", ["plain", "partial"])
def test_jacobians_and_hessian(name, narrow):
    fields, x = FIELDS[name], normal(16)
    matrix = rotation_matrix(12345, head_dim=16, **fields)
    function = functools.partial(ra.apply, pos=12345, **fields)
    for jacobian in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(np.asarray(jacobian(function)(x)), matrix, atol=2.5e-7)
    hessian = jax.hessian(lambda x: (function(x) ** 2).sum() / 2)(x)
    np.testing.assert_allclose(np.asarray(hessian), matrix.T @ matrix, atol=2e-6)


def test_gradient_of_positions_and_frequencies(x64):
    # dy/dpos = ω·J·y with J a quarter turn of every pair; ω is differentiated the same way.
    x, weight = normal(3, 16), normal(3, 16, seed=1)
    pos = jnp.asarray(np.array([0.0, 0.3, 12.5], np.float32))
    y = apply_definition(values(x), np.asarray(pos))
    turned = np.stack([-y[:, 1::2], y[:, ::2]], axis=-1).reshape(3, 16) * values(weight)
    turned = turned.reshape(3, 8, 2).sum(-1)
    omegas = jnp.asarray(np.array(ra.RoPE(16).frequencies, np.float32))
    gradient = jax.grad(lambda pos: (ra.apply(x, pos) * weight).sum())(pos)
    np.testing.assert_allclose(np.asarray(gradient), (turned * np.asarray(omegas)).sum(-1), atol=2e-5)

    def learned(omegas, pos):
        return (ra.RoPE(16).rotation(pos, like=x, inv_freq=omegas).apply(x) * weight).sum()

    for positions in (pos, np.array([0.0, 0.3, 12.5])):
        gradient = jax.grad(learned)(omegas, positions)
        exact = (turned * np.asarray(pos)[:, None]).sum(0)
        np.testing.assert_allclose(np.asarray(gradient), exact, atol=1e-4)


def test_numerical_gradients():
    from jax.test_util import check_grads

    with jax.enable_x64(True):
        x, pos = normal(2, 3, 16, dtype="float64"), jnp.asarray([0.25, -1.5, 2.75])
        omegas = jnp.asarray(OTHER.frequencies)
        check_grads(OTHER.apply, (x, pos), order=2)
        check_grads(lambda x, pos, w: OTHER.rotation(pos, like=x, inv_freq=w).apply(x), (x, pos, omegas), 1)


def test_vmap(narrow):
    x, pos = normal(3, 2, 5, 16), jnp.asarray(np.arange(15, dtype=np.int32).reshape(3, 5))
    judge(jax.vmap(ROPE.apply)(x, pos), x, pos, **HALF)
    judge(jax.vmap(ROPE.apply, in_axes=(1, None), out_axes=1)(x, pos), x, pos, **HALF)
    judge(jax.vmap(lambda x: ROPE.apply(x, [0, 1, 2, 3, 0.5]))(x), x, [0, 1, 2, 3, 0.5], **HALF)
    judge(jax.vmap(lambda x, p: ROPE.apply(x, p))(x, pos[:, 0]), x, pos[:, :1], **HALF)
    rotations = ROPE.rotation(pos, like=x)
    judge(jax.vmap(lambda r, x: r.apply(x))(rotations, x), x, pos, **HALF)
    per_sample = jax.vmap(jax.grad(lambda x, pos: ROPE.apply(x, pos).sum()))(x, pos)
    judge(per_sample, jnp.ones_like(x), pos, inverse=True, **HALF)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_forms_of_all_platforms(platform, name, dtype, narrow):
    """Rotate on the CPU in the form of each platform; NaN and infinity stay in their pair."""
    from rope_array._backends.jax._forms import FORMS as forms

    fields = FIELDS[name]
    x, pos = normal(2, 5, 16, dtype=dtype), jnp.asarray(ENDS, dtype="int32")
    x = x.at[0, 0, 5].set(jnp.nan).at[1, 2, 4].set(jnp.inf)
    rotation = ra.RoPE(16, **fields).rotation(pos, like=x)
    cos, sin = (table[None] for table in rotation)

    def rotate(x, layout, transposed):
        return jax.jit(functools.partial(forms[platform], layout=layout, transposed=transposed))(x, cos, sin)

    layout = type(rotation).layout
    judge(rotate(x, layout, False), x, pos, **fields)
    weight = normal(2, 5, 16, dtype=dtype, seed=1)
    adjoint = fields | {"attention_factor": 1 / fields.get("attention_factor", 1.0)}
    judge(rotate(weight, layout.transposed(None), True), weight, pos, inverse=True, **adjoint)


def test_explicit_sharding(narrow):
    """The sharding of the result comes from x and from the tables, and is part of its type."""
    mesh = jax.make_mesh((1,), ("batch",), axis_types=(jax.sharding.AxisType.Explicit,))
    x, pos, weight = normal(2, 5, 16), jnp.arange(5, dtype="int32"), normal(2, 5, 16, seed=1)
    with jax.set_mesh(mesh):
        x = jax.device_put(x, jax.sharding.PartitionSpec("batch"))
        y, pull = jax.vjp(jax.jit(lambda x: ROPE.apply(x, pos)), x)
        judge(y, x, pos, **HALF)
        assert jax.typeof(y) == jax.typeof(x)
        judge(pull(jax.device_put(weight, x.sharding))[0], weight, pos, inverse=True, **HALF)


def test_shard_map_over_positions_alone(narrow):
    """x is the same on each device, its positions are not: the result varies, the gradient is summed."""
    from rope_array._backends.jax._primitive import _varying_axes

    def rotate(x, pos):
        y = ROPE.apply(x, pos)
        assert "parts" in _varying_axes(y)
        return y

    mesh = jax.make_mesh((1,), ("parts",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = {"mesh": mesh, "in_specs": (jax.P(), jax.P("parts")), "out_specs": jax.P(None, "parts")}
    x, weight, pos = normal(2, 5, 16), normal(2, 5, 16, seed=1), np.arange(5)
    y, pull = jax.vjp(lambda x: jax.shard_map(rotate, **specs)(x, pos), x)
    judge(y, x, pos, **HALF)
    judge(pull(weight)[0], weight, pos, inverse=True, **HALF)


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize("name", FIELDS)
def test_the_forms_with_explicit_sharding(platform, name, narrow):
    """Each form has x's type as its result, forward and transposed."""
    from rope_array._backends.jax._forms import FORMS as forms

    mesh = jax.make_mesh((1,), ("batch",), axis_types=(jax.sharding.AxisType.Explicit,))
    rotation = ra.RoPE(16, **FIELDS[name]).rotation(np.arange(5), like=normal(1))
    cos, sin = (table[None] for table in rotation)
    layout = type(rotation).layout
    with jax.set_mesh(mesh):
        x = jax.device_put(normal(2, 5, 16), jax.sharding.PartitionSpec("batch"))
        for each, transposed in ((layout, False), (layout.transposed(None), True)):
            form = functools.partial(forms[platform], layout=each, transposed=transposed)
            assert jax.typeof(jax.jit(form)(x, cos, sin)) == jax.typeof(x)


def test_linear_in_the_tables(narrow):
    x, weight = normal(2, 5, 16), normal(2, 5, 16, seed=1)
    tables = ROPE.rotation(jnp.arange(5, dtype="int32"), like=x)

    def function(cos, sin):
        return ROPE.rotation_from(cos, sin).apply(x)

    transposed = jax.linear_transpose(function, *tables)(weight)
    for found, expected in zip(transposed, jax.vjp(function, *tables)[1](weight), strict=True):
        assert close(found, expected)


def test_scan_over_positions_and_layers(narrow):
    x, pos = normal(6, 2, 16), jnp.asarray(np.arange(6, dtype=np.int32) * 1_000_003)
    _, ys = jax.lax.scan(lambda carry, item: (carry, ROPE.apply(*item)), 0, (x, pos))
    judge(ys, x, pos, seq_axis=0, **HALF)
    rotation = ROPE.rotation(pos[:2], like=x)
    total, _ = jax.lax.scan(lambda x, _: (rotation.apply(x), None), x, None, length=3)
    assert np.allclose(values(total), apply_definition(values(x), 3 * np.asarray(pos[:2]), **HALF), atol=1e-5)
    _, tables = jax.lax.scan(lambda carry, p: (carry, ROPE.rotation(p, like=x)), 0, pos)
    judge(tables.apply(x[0][None, :1].repeat(6, 1)), x[0][None, :1].repeat(6, 1), pos, **HALF)


def test_while_loop_and_cond(narrow):
    x = normal(2, 1, 16)

    def step(state):
        pos, total = state
        return pos + 1, total + ROPE.apply(x, pos)

    _, total = jax.lax.while_loop(lambda s: s[0] < 5, step, (jnp.int32(0), jnp.zeros_like(x)))
    exact = sum(apply_definition(values(x), pos, **HALF) for pos in range(5))
    assert np.allclose(values(total), exact, atol=1e-5)
    y = jax.lax.cond(True, lambda x: ROPE.apply(x, 3), lambda x: OTHER.apply(x, 3), x)
    judge(y, x, 3, **HALF)


def test_remat(narrow):
    x, pos = normal(2, 5, 16), np.arange(5)
    function = jax.checkpoint(lambda x: (ROPE.apply(x, pos) ** 3).sum())
    plain = jax.grad(lambda x: (ROPE.apply(x, pos) ** 3).sum())(x)
    assert np.allclose(values(jax.grad(function)(x)), values(plain), atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_eval_shape(dtype, x64):
    x = jax.ShapeDtypeStruct((2, 5, 16), dtype)
    pos = jax.ShapeDtypeStruct((5,), "int32")
    y, rotation = jax.eval_shape(lambda x, pos: (ROPE.apply(x, pos), ROPE.rotation(pos, like=x)), x, pos)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert isinstance(rotation, ra.Rotation)
    assert (rotation.cos.shape, rotation.cos.dtype) == ((5, 8), "float32")


def test_export(x64):
    from jax import export

    (length,) = export.symbolic_shape("s")
    exported = export.export(jax.jit(ROPE.apply))(
        jax.ShapeDtypeStruct((2, length, 16), "float32"), jax.ShapeDtypeStruct((length,), "int32")
    )
    if importlib.util.find_spec("flatbuffers"):  # serializing needs it
        exported = export.deserialize(exported.serialize())
    for size in (1, 5, 77):
        x, pos = normal(2, size, 16), jnp.asarray(np.arange(size, dtype=np.int32) * 9_999_991)
        judge(exported.call(x, pos), x, pos, **HALF)


def test_export_of_a_batch_of_any_size(narrow):
    """The batch rule takes symbolic sizes: of positions, of x, and of a table whose other table is shared."""
    from jax import export

    (count,) = export.symbolic_shape("b")
    struct = jax.ShapeDtypeStruct
    by_positions = export.export(jax.jit(jax.vmap(ROPE.apply)))(
        struct((count, 5, 16), "float32"), struct((count, 5), "int32")
    )
    rotate = jax.vmap(lambda x, cos, sin: ROPE.rotation_from(cos, sin).apply(x), in_axes=(0, None, 0))
    by_tables = export.export(jax.jit(rotate))(
        struct((count, 5, 16), "float32"), struct((5, 8), "float32"), struct((count, 5, 8), "float32")
    )
    for size in (1, 3):
        x, pos = normal(size, 5, 16), jnp.asarray(ENDS, "int32")
        judge(by_positions.call(x, jnp.tile(pos, (size, 1))), x, ENDS, **HALF)
        cos, sin = ROPE.rotation(pos, like=x)
        judge(by_tables.call(x, cos, jnp.tile(sin, (size, 1, 1))), x, ENDS, **HALF)


ROTATE_BY_SAVED = """
    import sys
    from pathlib import Path
    import jax.numpy as jnp
    import numpy as np
    from jax import export
    import rope_array as ra

    folder, rope = Path(sys.argv[1]), ra.RoPE(16, pairing="half", base=500_000.0)
    x = jnp.asarray(np.load(folder / "x.npy"))
    rotation = rope.rotation(range(5), like=x)  # so that JAX knows its type
    program = export.deserialize(bytearray((folder / "program").read_bytes()))
    np.save(folder / "y.npy", program.call(rotation, x))
    """


def test_export_takes_a_rotation(tmp_path, narrow):
    """Another process reads the program as docs/in-my-model/jax.md says."""
    from jax import export

    x = normal(2, 5, 16)
    rotation = ROPE.rotation(range(5), like=x)
    exported = export.export(jax.jit(lambda rotation, x: rotation.apply(x)))(rotation, x)
    (tmp_path / "program").write_bytes(exported.serialize())
    np.save(tmp_path / "x.npy", x)
    child.run(ROTATE_BY_SAVED, str(tmp_path))
    judge(jnp.asarray(np.load(tmp_path / "y.npy")), x, range(5), **HALF)


def test_more_types_than_the_memo_holds(narrow):
    """JAX keeps the name of a type that the memo dropped; a new type of the same layout works."""
    x = normal(2, 5, 16)
    cos, sin = rotation = ROPE.rotation(range(5), like=x)
    for i in range(300):
        rotation_type(*rotation.layout._replace(amplitude=2.0 + i))
    again = rotation_type(*rotation.layout)
    assert again is not type(rotation)
    judge(jax.jit(lambda rotation: rotation.apply(x))(again(cos, sin)), x, range(5), **HALF)


def test_a_tree_with_a_rotation_is_pickled(narrow):
    """JAX's serialize_executable returns such trees, of the arguments and the results."""
    x = normal(2, 5, 16)
    rotation = ROPE.rotation(range(5), like=x)
    leaves, tree = jax.tree.flatten((x, rotation))
    x, again = jax.tree.unflatten(pickle.loads(pickle.dumps(tree)), leaves)
    judge(again.apply(x), x, range(5), **HALF)


def test_nan_checks_of_checkify(narrow):
    """As docs/backends.md says: they check the operations of array-api, not the primitive."""
    from jax.experimental import checkify

    x = normal(2, 5, 16).at[0, 0, 0].set(jnp.nan)
    for backend, found in ((None, False), ("array-api", True)):
        rotate = functools.partial(ROPE.apply, pos=3, backend=backend)
        error, _ = checkify.checkify(rotate, errors=checkify.nan_checks)(x)
        assert (error.get() is not None) == found


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


def test_no_tracer_leaks(narrow):
    x, pos = normal(2, 5, 16), np.arange(5)
    rope = ra.RoPE(16, base=3131.0)
    with jax.checking_leaks():
        jax.jit(lambda x: rope.apply(x, pos))(x)
        jax.jit(lambda x: rope.rotation(pos, like=x).apply(x))(x)
        jax.grad(lambda x: ra.apply(x, pos, base=3132.0).sum())(x)
        jax.vmap(lambda x: rope.apply(x, 3))(x)
    # A rope that cached values under a tracer works outside of it.
    judge(rope.apply(x, pos), x, pos, base=3131.0)
    judge(ra.apply(x, pos, base=3132.0), x, pos, base=3132.0)


def test_x64_may_change(narrow):
    x, pos = np.random.default_rng(0).standard_normal((5, 16)), np.array(ENDS)
    rope = ra.RoPE(16, base=1717.0)
    for on in (False, True, False, True):
        with jax.enable_x64(on):
            own = jnp.asarray(x.astype("float64" if on else "float32"))
            judge(rope.apply(own, pos), own, pos, base=1717.0)
            judge(rope.rotation(pos, like=own).apply(own), own, pos, base=1717.0)


def test_precision_settings_change_nothing(narrow):
    x, pos = normal(2, 5, 16), np.array(ENDS)
    truth = ROPE.apply(x, pos)
    judge(truth, x, pos, **HALF)
    with jax.default_matmul_precision("bfloat16"):
        assert same(ROPE.apply(x, pos), truth)
    with jax.debug_nans(True), jax.debug_infs(True):
        assert same(ROPE.apply(x, pos), truth)


def test_no_64_bit_types_in_a_program_without_x64(narrow):
    x = normal(2, 5, 16)
    for pos in (jnp.arange(5), jnp.arange(5.0)):
        program = str(jax.make_jaxpr(lambda x, pos: OTHER.apply(x, pos))(x, pos))
        assert "64[" not in program
        assert "dot_general" not in program


# ---- devices ----

DEVICES = """
    import os, sys, warnings
    import jax, numpy as np
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec as P
    from rope_array.testing._contract import assert_contract
    from rope_array._backends import _native
    import rope_array as ra

    warnings.simplefilter("error")
    jax.config.update("jax_enable_x64", sys.argv[1] == "on")
    devices = jax.devices()
    assert len(devices) == 8
    HALF = {"pairing": "half", "base": 500_000.0}
    INTERLEAVED = {"rotary_dim": 12}
    X = np.random.default_rng(0).standard_normal((8, 16, 8, 16)).astype("float32")
    POS = (np.arange(128).reshape(8, 16) * 1_000_003).astype("int32")

    def judge(y, x, pos, **fields):
        assert_contract(np.asarray(y), np.asarray(x), np.asarray(pos), flushes=True, **fields)
    """

MESHES = """
    import tempfile
    from jax import export

    AUTO, EXPLICIT = jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit
    rope = ra.RoPE(16, **HALF)
    x = X.swapaxes(1, 2)    # (batch, heads, sequence, features)

    def mesh_of(kind, *sizes):
        return jax.make_mesh(sizes, ("a", "b")[: len(sizes)], axis_types=(kind,) * len(sizes))

    def put(array, mesh, *spec):
        return jax.device_put(array, NamedSharding(mesh, P(*spec)))

    auto, explicit, line = mesh_of(AUTO, 2, 4), mesh_of(EXPLICIT, 2, 4), mesh_of(AUTO, 8)

    # An argument without a place, and a constraint in the program.
    with jax.set_mesh(auto):
        y = jax.jit(lambda x, pos: rope.apply(jax.lax.with_sharding_constraint(x, P("a")), pos))(x, POS)
    judge(y, x, POS, **HALF)

    # Explicit axes, and an x without a mesh.
    own = jnp.asarray(x)
    with jax.set_mesh(explicit):
        for call in (jax.jit(lambda x: rope.apply(x, range(16))), lambda x: rope.apply(x, range(16)),
                     lambda x: rope.rotation(range(16), like=x).apply(x)):
            judge(call(own), x, range(16), **HALF)
        y, pull = jax.vjp(lambda x: rope.apply(x, range(16)), own)
        judge(pull(own)[0], x, range(16), inverse=True, **HALF)
        # Coordinates are split.
        axes = {"coordinates": [0, 0, 0, 0, 1, 1, 1, 1], "widths": [8, 8]}
        axial, pairs = ra.RoPE(16, axes=ra.Axes.axial(8, 8)), np.stack([POS, POS[::-1]], -1)
        split = jax.device_put(pairs, P(None, None, "a"))
        judge(axial.apply(own, split), x, pairs, axes=axes)
        judge(axial.rotation(split, like=own).apply(own), x, pairs, axes=axes)
        # A batch of positions stays split.
        mapped = jax.jit(jax.vmap(lambda pos: rope.apply(own[0, 0], pos)))
        split = jax.device_put(POS, P("a"))
        assert jax.typeof(mapped(split)).sharding.spec[0] == "a"
        assert "all-gather" not in mapped.lower(split).compile().as_text()
        # Split features are gathered, rotated and split again.
        for fields in (HALF, INTERLEAVED, {**HALF, "rotary_dim": 0}):
            partial = ra.RoPE(16, **fields)
            for spec in (P(None, None, None, "b"), P("a", None, None, "b"), P(None, None, None, ("a", "b"))):
                split = jax.device_put(x, spec)
                y, pull = jax.vjp(jax.jit(lambda x: partial.apply(x, range(16))), split)
                tables = partial.rotation(range(16), like=split).apply(split)
                (dx,) = pull(split)
                assert jax.typeof(y) == jax.typeof(dx) == jax.typeof(tables) == jax.typeof(split)
                judge(y, x, range(16), **fields)
                judge(tables, x, range(16), **fields)
                judge(dx, x, range(16), inverse=True, **fields)
    judge(jax.jit(rope.apply)(x, put(POS, explicit, "a")), x, POS, **HALF)

    # Two meshes in a program, and lowering without devices.
    y, _ = jax.jit(lambda x, pos, z: (rope.apply(x, pos), z * 2))(put(x, auto, "a"), POS, put(x, line, "a"))
    judge(y, x, POS, **HALF)
    place = NamedSharding(auto.abstract_mesh, P("a"))
    described = [jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place) for array in (x, POS)]
    for platform in ("cpu", "cuda", "tpu"):
        jax.jit(rope.apply).trace(*described).lower(lowering_platforms=(platform,))
    to_all = export.export(jax.jit(rope.apply), platforms=("cpu", "cuda", "tpu"))
    to_all(put(x, auto, "a"), put(POS, auto, "a")).serialize(vjp_order=2)

    # Split features are gathered or not, and the result is right.
    for spec in (("a", None, None, "b"), (None, None, None, ("a", "b"))):
        judge(jax.jit(rope.apply)(put(x, auto, *spec), POS), x, POS, **HALF)
    part = x[:, :3]    # 3 heads on 4 devices
    place = NamedSharding(auto, P(None, "b"))
    uneven = jax.jit(lambda x: rope.apply(jax.lax.with_sharding_constraint(x, place), POS))
    judge(uneven(part), part, POS, **HALF)

    # The partitioner before Shardy.
    jax.config.update("jax_use_shardy_partitioner", False)
    for spec, of_pos in ((("a", "b"), ("a",)), ((), ("a",)), (("a",), ())):
        judge(jax.jit(rope.apply)(put(x, auto, *spec), put(POS, auto, *of_pos)), x, POS, **HALF)
    jax.config.update("jax_use_shardy_partitioner", True)

    # Programs in the cache on disk differ by their ropes.
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        for base in range(100, 120):
            fields = {"base": float(base)}
            judge(jax.jit(lambda x: ra.apply(x, POS, **fields))(put(x, auto, "a")), x, POS, **fields)
            jax.clear_caches()
    """

COMMITTED = """
    x = jax.device_put(X, devices[3])
    rope, wrong = ra.RoPE(16, **HALF), []
    for pos in (7, 0.5, range(16), [*range(16)], POS, jnp.asarray(POS), jax.device_put(POS, devices[3])):
        y = rope.apply(x, pos, seq_axis=1)
        assert y.devices() == {devices[3]}, y.devices()
        rotation = rope.rotation(pos, like=x)
        wrong += [f"tables at {pos!r} on {rotation.cos.devices()}"] * (rotation.cos.devices() != {devices[3]})
        assert rotation.apply(x, seq_axis=1).devices() == {devices[3]}
        assert jax.jit(lambda x: rope.apply(x, pos, seq_axis=1))(x).devices() == {devices[3]}
    assert rope.apply(x, POS, seq_axis=1, backend="array-api").devices() == {devices[3]}
    judge(y, X, POS, seq_axis=1, **HALF)
    for bad in (lambda: rope.apply(x, jax.device_put(POS, devices[2]), seq_axis=1),
                lambda: rope.apply((x, jax.device_put(X, devices[2])), 3)):
        try:
            bad()
        except ra.ArrayTypeError as error:
            assert repr(devices[2]) in str(error), error
        else:
            raise AssertionError("two devices were taken")
    assert rope.matrix(3, like=x).devices() == {devices[3]}, "matrix"
    assert not wrong, wrong
    """

SHARDED = """
    NAMES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter",
             "collective-broadcast", "send(", "recv(")

    KERNEL = os.environ.get("ROPE_ARRAY_KERNEL_LEVEL") != "none" and _native.kernel is not None

    def silent(compiled):
        text = compiled.as_text()
        found = [name for name in NAMES if name in text]
        assert not found, found
        assert ('custom_call_target="rope_array_rotate"' in text) == KERNEL, text

    def typed(x_spec, pos_spec, is_silent=True):
        # With explicit mesh axes, the result has x's sharding in its type.
        mesh = jax.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=(jax.sharding.AxisType.Explicit,) * 3)
        with jax.set_mesh(mesh):
            x, pos = jax.device_put(X, x_spec), jax.device_put(POS, pos_spec)
            def gradient(x, pos):
                return jax.vjp(lambda x: rope.apply(x, pos, seq_axis=1), x)[1](x)[0]
            def forward(x, pos):
                return rope.apply(x, pos, seq_axis=1)
            for function, inverse in ((forward, False), (gradient, True)):
                if is_silent:
                    silent(jax.jit(function).lower(x, pos).compile())
                y = jax.jit(function)(x, pos)
                assert jax.typeof(y) == jax.typeof(x)
                judge(y, X, POS, seq_axis=1, inverse=inverse, **PARTIAL)

    PARTIAL = {**HALF, "rotary_dim": 12}
    AUTO = (jax.sharding.AxisType.Auto,) * 3
    rope = ra.RoPE(16, **PARTIAL)
    for specs in ((P("a", "b", "c"), P("a", "b")), (P(None, ("a", "c")), P()), (P(None, None, "b"), P())):
        typed(*specs)
    typed(P(), P("a", "b"), is_silent=False)  # positions are gathered, as x is whole
    meshes = {
        "batch": (jax.make_mesh((8,), ("a",), axis_types=AUTO[:1]), P("a"), P("a")),
        "sequence": (jax.make_mesh((8,), ("a",), axis_types=AUTO[:1]), P(None, "a"), P(None, "a")),
        "sequence, positions whole": (jax.make_mesh((8,), ("a",), axis_types=AUTO[:1]), P(None, "a"), P()),
        "heads": (jax.make_mesh((8,), ("a",), axis_types=AUTO[:1]), P(None, None, "a"), P()),
        "all": (jax.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=AUTO), P("a", "b", "c"), P("a", "b")),
    }
    if sys.argv[1] == "on":
        meshes = {"all": meshes["all"]}
    for label, (mesh, x_spec, pos_spec) in meshes.items():
        place = NamedSharding(mesh, x_spec)
        x, pos = jax.device_put(X, place), jax.device_put(POS, NamedSharding(mesh, pos_spec))
        for fields in (HALF, INTERLEAVED):
            rope = ra.RoPE(16, **fields)
            def forward(x, pos):
                return rope.apply(x, pos, seq_axis=1)
            def tables(x, pos):
                return rope.rotation(pos, like=x).apply(x, seq_axis=1)
            def gradient(x, pos):
                return jax.vjp(lambda x: forward(x, pos), x)[1](x)[0]
            for function, inverse in ((forward, False), (tables, False), (gradient, True)):
                jitted = jax.jit(function)
                silent(jitted.lower(x, pos).compile())    # by tables, the kernel makes the tables
                y = jitted(x, pos)
                assert y.sharding.is_equivalent_to(place, 4), (label, function, y.sharding)
                judge(y, X, POS, seq_axis=1, inverse=inverse, **fields)
            for pos_given, numbers in ((pos, POS), (7, 7), (POS, POS), (range(16), range(16))):
                y = rope.apply(x, pos_given, seq_axis=1)
                assert y.sharding.is_equivalent_to(place, 4), (label, y.sharding)
                judge(y, X, numbers, seq_axis=1, **fields)

            local = jax.shard_map(forward, mesh=mesh, in_specs=(x_spec, pos_spec), out_specs=x_spec)
            if "whole" not in label:
                jitted = jax.jit(local)
                silent(jitted.lower(x, pos).compile())
                y = jitted(x, pos)
                assert y.sharding.is_equivalent_to(place, 4)
                judge(y, X, POS, seq_axis=1, **fields)
    """


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "on", "level"),
    [
        *((SHARDED, "off", ""), (SHARDED, "off", "none"), (SHARDED, "on", "")),
        *((MESHES, "off", ""), (COMMITTED, "off", "")),
    ],
    ids=["sharded", "sharded without the kernel", "sharded with x64", "meshes", "committed"],
)
def test_eight_devices(script, on, level):
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    child.run(DEVICES + script, on, **devices, ROPE_ARRAY_KERNEL_LEVEL=level)


SUITE = """
    import sys
    import jax.numpy as jnp
    import rope_array as ra
    from rope_array.testing._checks import checks
    from rope_array.testing._judge import Judge
    from rope_array.testing._names import resolve
    from rope_array.testing._outcome import FAILED, PASSED, outcome_of

    def of_arange(x):
        return ra.apply(x, jnp.arange(x.shape[-2]))

    def from_zero(x, pos):
        return ra.apply(x, pos - pos[..., :1])

    own = resolve("jax:sharded")  # first: it makes the devices
    chosen = set(sys.argv[1:])
    some = [check for check in checks() if check.name.partition("[")[0] in chosen]
    outcomes = {check.name: outcome_of(check, Judge(own)) for check in some}
    assert PASSED in {outcome for outcome, _ in outcomes.values()}
    assert not {name: found for name, found in outcomes.items() if found[0] == FAILED}
    (shards,) = (check for check in checks() if check.name == "positions_of_a_shard")
    assert outcome_of(shards, Judge(own)) == (PASSED, "")
    for rotate, positions in ((of_arange, "arange"), (from_zero, "any")):
        target = resolve(rotate, library="jax:sharded", positions=positions)
        outcome, text = outcome_of(shards, Judge(target))
        assert outcome == FAILED and "an arange over its own length" in text, (outcome, text)
    """


@pytest.mark.slow
@pytest.mark.parametrize("level", ["", "none"], ids=["kernel", "no kernel"])
def test_the_suite_on_eight_devices(level):
    """Some checks; and the detector of positions made of a part's length, on code that makes them."""
    names = ("definition", "positions_of_a_batch", "tuples", "gradient", "vmap")
    child.run(SUITE, *names, JAX_PLATFORMS="cpu", ROPE_ARRAY_KERNEL_LEVEL=level)


@pytest.mark.nightly
@pytest.mark.parametrize("level", ["", "none"], ids=["kernel", "no kernel"])
def test_the_whole_suite_on_eight_devices(level):
    check = "from rope_array.__main__ import main; raise SystemExit(main(['check', 'jax:sharded']))"
    child.run(check, JAX_PLATFORMS="cpu", ROPE_ARRAY_KERNEL_LEVEL=level)


PROCESSES = """
    import os, sys
    import jax, numpy as np
    from jax.sharding import NamedSharding, PartitionSpec as P

    address, process = sys.argv[1], int(sys.argv[2])
    jax.config.update("jax_num_cpu_devices", 2)
    jax.distributed.initialize(address, num_processes=2, process_id=process)
    import rope_array as ra
    from rope_array.testing._contract import assert_contract

    assert len(jax.devices()) == 4 and len(jax.local_devices()) == 2
    X = np.random.default_rng(0).standard_normal((4, 16, 2, 16)).astype("float32")
    POS = (np.arange(64).reshape(4, 16) * 1_000_003).astype("int32")
    mesh = jax.make_mesh((2, 2), ("data", "sequence"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rope = ra.RoPE(16, pairing="half")

    def spread(array, spec):
        return jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), lambda part: array[part])

    def gradient(x, pos):
        return jax.vjp(lambda x: rope.apply(x, pos, seq_axis=1), x)[1](x)[0]

    x, pos = spread(X, P("data", "sequence")), spread(POS, P("data", "sequence"))
    for function, inverse in ((lambda x, pos: rope.apply(x, pos, seq_axis=1), False), (gradient, True)):
        text = jax.jit(function).lower(x, pos).compile().as_text()
        assert not any(name in text for name in ("all-gather", "all-reduce", "all-to-all", "permute"))
        y = jax.jit(function)(x, pos)
        assert y.sharding.is_equivalent_to(x.sharding, 4)
        for part in y.addressable_shards:
            x_part, pos_part = X[part.index], POS[part.index[:2]]
            fields = {"seq_axis": 1, "pairing": "half", "inverse": inverse}
            assert_contract(np.asarray(part.data), x_part, pos_part, **fields)
    print("right")
    jax.distributed.shutdown()
    """


@pytest.mark.slow
def test_two_processes():
    """Each process of a mesh over two rotates its own parts, without communication."""
    from concurrent.futures import ThreadPoolExecutor

    address = f"127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(child.run, PROCESSES, address, str(n), JAX_PLATFORMS="cpu") for n in range(2)]
        assert [run.result().strip() for run in runs] == ["right", "right"]


def free_port():
    import socket

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def test_built_before_jax_is_imported():
    # Making a Rotation imports no JAX; JAX imported later still flattens it as a tree.
    child.run(
        """
        import sys
        import numpy as np
        import rope_array as ra

        x = np.ones((2, 5, 16), np.float32)
        rotation = ra.RoPE(16).rotation(range(5), like=x)
        assert "jax" not in sys.modules
        import jax

        assert len(jax.tree.leaves(rotation)) == 2
        y = jax.jit(lambda r, x: r.apply(x))(rotation, x)
        assert np.allclose(np.asarray(y), rotation.apply(x), atol=1e-6)
        """
    )
