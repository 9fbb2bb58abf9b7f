"""`attention_inputs` in JAX: bits of NumPy, transforms, donated caches and devices."""

import functools
import re

import child
import native_cases
import numpy as np
import pytest
from compare import assert_same
from native_cases import normal

import rope_array as ra

jax = pytest.importorskip("jax")
ml_dtypes = pytest.importorskip("ml_dtypes")
pytest.importorskip("rope_array._backends.jax")  # it registers the calls of the kernel
jnp = jax.numpy
pytestmark = pytest.mark.library("jax")

ROPE = ra.RoPE(48, rotary_dim=32, rotary_start=4, pairing="half")
POS = np.array([3, 1_000_003, 0, 7, 8], np.int32)
SLOTS = np.array([[17, -1, 0, 5, 17], [40, 2, 1, 9, 3]], np.int32)  # one twice
LAYOUTS = {
    "pages of heads": ((3, 2, 16), -2, -2),
    "pages of slots": ((3, 16, 2), -3, -3),
    "heads": ((2, 48), -2, -2),
    "slots": ((48, 2), -3, -3),
}
QUANTISED = {"int8": (0.03, 0.015), "float8_e4m3fn": (0.003, 0.7)}


@pytest.fixture(autouse=True)
def _strict():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def arrays(dtype="float32", layout="pages of heads", cache_dtype=None):
    """Return q, k, v, weights of q and k, and two caches, as NumPy arrays."""
    sizes, _, seq_axis = LAYOUTS[layout]
    shape = (2, 5, 2) if seq_axis == -3 else (2, 2, 5)
    q_shape = (2, 5, 4) if seq_axis == -3 else (2, 4, 5)
    shapes = [(*q_shape, 48), (*shape, 48), (*shape, 20), (48,), (2, 48)]
    xs = [normal(shape, seed=seed).astype(named(dtype)) for seed, shape in enumerate(shapes)]
    caches = (normal((*sizes, width)).astype(named(cache_dtype or dtype)) for width in (48, 20))
    return *xs, *caches


def named(dtype):
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def make(q, k, v, w_q, w_k, k_cache, v_cache, slots=SLOTS, pos=POS, layout="pages of heads", **kwargs):
    """Return q, k and the caches, flat."""
    _, cache_seq_axis, seq_axis = LAYOUTS[layout]
    kwargs = {"norm": (w_q, w_k), "seq_axis": seq_axis, "cache_seq_axis": cache_seq_axis, **kwargs}
    q, k, cache = ra.attention_inputs(
        q, k, pos, ROPE, v=v, slots=slots, cache=(k_cache, v_cache), offset=1.0, **kwargs
    )
    return q, k, *cache


def by_numpy(arrays, **kwargs):
    return make(*map(np.copy, arrays), backend="array-api", **kwargs)


def on_jax(arrays):
    return tuple(map(jnp.asarray, arrays))


def assert_bits(ys, expected, call=""):
    assert_same(tuple(map(np.asarray, ys)), expected, call)


# ---- bits ----


@pytest.mark.parametrize(
    ("dtype", "rounding", "layout", "cache_dtype"),
    native_cases.covering(
        ["float32", "bfloat16", "float16", "float64"],
        ["none", "norm", "steps"],
        LAYOUTS,
        [None, "bfloat16", *QUANTISED],
    ),
)
def test_bits_equal_numpys(dtype, rounding, layout, cache_dtype):
    """Eager and compiled: no compiler contracts a product and a sum, nor divides by another number."""
    inputs = arrays(dtype, layout, cache_dtype)
    kwargs = {"rounding": rounding, "layout": layout, "scales": QUANTISED.get(cache_dtype, (1.0, 1.0))}
    expected, run = by_numpy(inputs, **kwargs), functools.partial(make, **kwargs)
    with jax.enable_x64(dtype == "float64"):
        assert_bits(run(*on_jax(inputs)), expected, "eager")
        assert_bits(jax.jit(run)(*on_jax(inputs)), expected, "compiled")


@pytest.mark.parametrize("x64", [False, True], ids=["x64 off", "x64 on"])
def test_slots_and_positions(x64):
    """Slots are of NumPy or traced; a traced slot beyond the cache is not written."""
    inputs, far = arrays(), SLOTS.astype(np.int64)
    far[0, 1] = -(2**33)  # 0 in 32 bits
    expected = by_numpy(inputs, slots=far)
    with jax.enable_x64(x64):
        assert_bits(make(*on_jax(inputs), slots=far), expected)
        beyond = np.where(SLOTS < 0, 48, SLOTS)
        run = jax.jit(lambda slots, pos: make(*on_jax(inputs), slots=slots, pos=pos))
        assert_bits(run(beyond, POS), expected)


# ---- caches ----


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_donated_caches_are_written_in_place(layout, dtype):
    """Nothing of a cache's size is computed: XLA's scatter would cast a whole cache of bfloat16."""
    inputs = on_jax(arrays("bfloat16", layout, dtype))
    compiled = jax.jit(functools.partial(make, layout=layout), donate_argnums=(5, 6)).lower(*inputs).compile()
    caches, text = inputs[5:], compiled.as_text()
    assert compiled.memory_analysis().alias_size_in_bytes == sum(cache.nbytes for cache in caches)
    for cache in caches:
        shape = f"[{','.join(map(str, cache.shape))}]"
        results = [line for line in text.splitlines() if re.search(rf" = \w+{re.escape(shape)}", line)]
        assert all(" parameter(" in line or WRITE_TARGET in line for line in results), results
    addresses = [cache.unsafe_buffer_pointer() for cache in caches]
    written = compiled(*inputs)[2:]
    assert all(cache.is_deleted() for cache in caches)
    assert [cache.unsafe_buffer_pointer() for cache in written] == addresses


def test_gradients_of_caches():
    """Rows written have the cache's gradient; what they replace, and rows not written, have none."""
    inputs = on_jax(arrays("bfloat16"))
    k_cache = inputs[5]

    def written(v, v_cache):
        return make(*inputs[:2], v, *inputs[3:5], k_cache, v_cache)[3]

    y, pull = jax.vjp(written, inputs[2], inputs[6])
    of_v, of_cache = pull(jnp.ones_like(y))
    is_last = (SLOTS >= 0) & ~np.isin(np.arange(10).reshape(2, 5), [0])  # token 0 is overwritten
    assert (np.asarray(of_v, np.float32) == is_last[:, None, :, None]).all()
    assert float(of_cache.astype(jnp.float32).sum()) == y.size - 8 * 2 * 20


def test_caches_carried_by_a_scan():
    inputs = arrays()
    steps = np.arange(4, dtype=np.int32)[:, None] * 5 + POS

    def step(caches, pos):
        q, _, *caches = make(*on_jax(inputs[:5]), *caches, pos=pos, slots=(SLOTS + pos[0]) % 48)
        return tuple(caches), q

    caches, qs = jax.lax.scan(step, on_jax(inputs[5:]), jnp.asarray(steps))
    expected = inputs[5:]
    for i, pos in enumerate(steps):
        q, _, *expected = by_numpy((*inputs[:5], *expected), pos=pos, slots=(SLOTS + pos[0]) % 48)
        assert_bits((qs[i],), (q,))
    assert_bits(caches, tuple(expected))


def test_a_batch_of_caches():
    """By vmap, with weights that are batched or shared."""
    inputs = arrays()
    stacks = [np.stack([a, a[::-1]]) for a in inputs]
    slots = np.stack([SLOTS, SLOTS + 3])
    axes = (0, 0, 0, None, 0, 0, 0, 0)
    stacks[3] = inputs[3]
    ys = jax.vmap(make, axes)(*on_jax(stacks), jnp.asarray(slots))
    for i in range(2):
        one = [a if axis is None else a[i] for a, axis in zip((*stacks, slots), axes, strict=True)]
        assert_bits([y[i] for y in ys], by_numpy(one[:7], slots=one[7]))


def test_out_is_refused():
    q, k, v, w_q, w_k, *caches = on_jax(arrays())
    with pytest.raises(ra.ArrayTypeError, match=r"arrays of jax are not written into.*Omit out"):
        make(q, k, v, w_q, w_k, *caches, out=(q, k))


# ---- the C++ kernel ----

TARGET, WRITE_TARGET = "rope_array_norm_rotate_1", "rope_array_write_1"


def calls(function, *arrays):
    return jax.jit(function).lower(*arrays).compile().as_text().count(f'custom_call_target="{TARGET}"')


def normed(x, weight, pos=POS):
    return ra.attention_inputs(x, None, pos, ROPE, norm=(weight, None), offset=1.0, rounding="steps")[0]


def test_norm_and_rotation_are_one_call_of_the_kernel():
    """Also in a batch; a donated array is its result. Heads of own weights and positions are operations."""
    q, k, _, w_q, w_k, *_ = arrays()
    of_heads = np.arange(20).reshape(2, 2, 5)
    cases = [
        (normed, (q, w_q), 1),
        (normed, (k, w_k), 1),
        (functools.partial(normed, pos=of_heads), (k, w_q), 1),
        (functools.partial(normed, pos=of_heads), (k, w_k), 0),
        (jax.vmap(normed), (np.stack([k, -k]), np.stack([w_k, 2 * w_k])), 1),
        (jax.vmap(normed, (None, 0, None)), (k, np.stack([w_q, 2 * w_q]), POS), 1),
    ]
    for function, inputs, count in cases:
        inputs = on_jax(inputs)
        assert calls(function, *inputs) == count
        expected = jax.disable_jit()(function)(*inputs)  # operations, one by one
        assert_same(np.asarray(jax.jit(function)(*inputs)), np.asarray(expected))
    x = jnp.asarray(q)
    address, expected = x.unsafe_buffer_pointer(), normed(x, jnp.asarray(w_q))
    donating = jax.jit(normed, donate_argnums=0).lower(x, jnp.asarray(w_q)).compile()
    assert "copy(" not in donating.as_text()
    y = donating(x, jnp.asarray(w_q))
    assert y.unsafe_buffer_pointer() == address
    assert_same(np.asarray(y), np.asarray(expected))


def test_an_export_has_no_call_of_the_kernel():
    q, _, _, w_q, *_ = on_jax(arrays())
    exported = jax.export.export(jax.jit(normed), platforms=("cpu", "cuda"))(q, w_q)
    assert f"@{TARGET}" not in exported.mlir_module()
    np.testing.assert_allclose(exported.call(q, w_q), normed(q, w_q), atol=1e-5)


X, AT, SCALE = normal((2, 3, 5, 16)), np.zeros((1, 1, 5, 1), np.int32), np.ones((1, 1, 1, 16), np.float32)
PLAN = np.array([16, 0, 8, 1, 1, 1, 0, 0, 4607182418800017408, *range(24)], np.int64)
GOOD = {"plan": PLAN, "norm": np.array([0, 0], np.int64)}
WRONG = {
    "a rounding that is none": ((X, SCALE, AT), {**GOOD, "norm": np.array([0, 3], np.int64)}),
    "eps alone": ((X, SCALE, AT), {**GOOD, "norm": np.array([0], np.int64)}),
    "a norm in int32": ((X, SCALE, AT), {**GOOD, "norm": np.array([0, 0], np.int32)}),
    "no scale": ((X, AT), GOOD),
    "a scale in float16": ((X, SCALE.astype(np.float16), AT), GOOD),
    "a narrow scale": ((X, SCALE[..., :8], AT), GOOD),
    "a scale of one axis": ((X, SCALE[0, 0, 0], AT), GOOD),
    "scales of two heads": ((X, np.tile(SCALE, (1, 2, 1, 1)), AT), GOOD),
    "scales of positions": ((X, np.tile(SCALE, (1, 1, 5, 1)), AT), GOOD),
}


CACHE, ROWS, AT_SLOTS = normal((3, 2, 4, 8)), normal((5, 2, 8)), np.array([0, 11, -1, 12, 99], np.int32)
AXES = {"axes": np.array([1, 2], np.int64)}
WRONG_WRITES = {
    "no axes": ((CACHE, ROWS, AT_SLOTS), {}),
    "an axis beyond the cache": ((CACHE, ROWS, AT_SLOTS), {"axes": np.array([1, 4], np.int64)}),
    "slots as pages": ((CACHE, ROWS, AT_SLOTS), {"axes": np.array([1, 0], np.int64)}),
    "rows of fewer tokens": ((CACHE, ROWS[:4], AT_SLOTS), AXES),
    "rows of another dtype": ((CACHE, ROWS.astype(np.int32), AT_SLOTS), AXES),
    "slots of two axes": ((CACHE, ROWS, AT_SLOTS[None]), AXES),
    "slots in int8": ((CACHE, ROWS, AT_SLOTS.astype(np.int8)), AXES),
    "a cache of integers": ((CACHE.astype(np.int32), ROWS.astype(np.int32), AT_SLOTS), AXES),
    "no slots": ((CACHE, ROWS), AXES),
}


@pytest.mark.parametrize("name", [*WRONG, *WRONG_WRITES])
def test_operands_that_are_refused(name):
    """A program that this library did not make raises an error; nothing is read out of bounds."""
    operands, attributes = WRONG.get(name) or WRONG_WRITES[name]
    struct = jax.ShapeDtypeStruct(operands[0].shape, operands[0].dtype)
    if name in WRONG:
        call = jax.ffi.ffi_call(TARGET, struct)
    else:
        call = jax.ffi.ffi_call(WRITE_TARGET, struct, input_output_aliases={0: 0})
    with pytest.raises(jax.errors.JaxRuntimeError, match="does not serve these operands"):
        jax.block_until_ready(call(*on_jax(operands), **attributes))


def test_slots_outside_of_a_cache_are_not_written():
    call = jax.ffi.ffi_call(
        WRITE_TARGET, jax.ShapeDtypeStruct(CACHE.shape, CACHE.dtype), input_output_aliases={0: 0}
    )
    expected = CACHE.copy()
    expected[0, :, 0], expected[2, :, 3] = ROWS[:2]
    assert_same(np.asarray(call(*on_jax((CACHE, ROWS, AT_SLOTS)), **AXES)), expected)


# ---- derivatives ----


def test_derivatives():
    """First and second, forward and backward, of q, k, both weights and the tables."""
    from jax.test_util import check_grads

    rotation = ROPE.rotation(POS, like=normal(1, "float64"))

    def loss(q, k, w_q, w_k, cos):
        tables = ROPE.rotation_from(cos, jnp.asarray(rotation.sin))
        q, k = ra.attention_inputs(q, k, tables, norm=(w_q, w_k), offset=1.0)
        return (q**3).sum() + jnp.sin(k).sum()

    q, k, _, *weights, _, _ = arrays("float64")
    with jax.enable_x64(True):
        inputs = on_jax((q[:1, :2], k[:1], *weights, rotation.cos))
        check_grads(jax.jit(loss), inputs, order=2, modes=["fwd", "rev"])
        gradients = jax.grad(loss, (0, 1, 2, 3, 4))
        expected = gradients(*inputs)
        batch = jax.vmap(gradients)(*(jnp.stack([a, 2 * a]) for a in inputs))
        for y, z in zip(batch, expected, strict=True):
            np.testing.assert_allclose(y[0], z, rtol=1e-12)


def test_gradients_are_rounded_once():
    """The derivative is of the map without rounding, in float32."""
    q, _, _, w_q, *_ = arrays("bfloat16")
    dy = normal(q.shape, seed=9).astype(q.dtype)
    gradients = jax.vjp(normed, *on_jax((q, w_q)))[1](jnp.asarray(dy))

    def unrounded(x, weight):
        return ra.attention_inputs(x, None, POS, ROPE, norm=(weight, None), offset=1.0)[0]

    exact = jax.vjp(unrounded, *(jnp.asarray(a, jnp.float32) for a in (q, w_q)))[1](
        jnp.asarray(dy, jnp.float32)
    )
    for gradient, expected in zip(gradients, exact, strict=True):
        gradient, expected = np.asarray(gradient, np.float32), np.asarray(expected)
        np.testing.assert_allclose(gradient, expected, rtol=2**-8, atol=1e-5)


# ---- devices ----


def split_over_devices():
    """Run in a process of four devices: by jit, the heads split by XLA or by shard_map."""
    mesh = jax.make_mesh((2, 2), ("batch", "heads"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    inputs = arrays()
    expected = by_numpy(inputs)
    for batch in ("batch", None):
        split, cache, whole = jax.P(batch, "heads"), jax.P(None, "heads"), jax.P()
        specs = (split, split, split, whole, jax.P("heads"), cache, cache)
        placed = [
            jax.device_put(a, jax.sharding.NamedSharding(mesh, s)) for a, s in zip(inputs, specs, strict=True)
        ]
        assert_bits(jax.jit(make)(*placed), expected)
    mapped = jax.shard_map(make, mesh=mesh, in_specs=specs, out_specs=(split, split, cache, cache))
    assert_bits(jax.jit(mapped)(*inputs), expected)


@pytest.mark.slow
def test_several_devices():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    child.run("import test_jax_attention as t; t.split_over_devices()", **flags)
