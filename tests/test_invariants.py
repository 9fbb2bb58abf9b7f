"""Properties of every rotary embedding, for random specs, positions and vectors, on every library."""

import numpy as np
import pytest
from compare import normal, values
from conftest import TIMES
from hypothesis import given, settings
from hypothesis import strategies as st

import rope_array as ra
from rope_array.testing import rotation_matrix

pytestmark = pytest.mark.neutral  # JAX compiles each random spec: one dtype runs by default

EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
SOME = settings(max_examples=25 * TIMES)


@st.composite
def specs(draw, same_layout=False):
    head_dim = draw(st.integers(1, 24))
    start = draw(st.integers(0, head_dim))
    num_pairs = draw(st.integers(0, (head_dim - start) // 2))
    pairings = st.sampled_from(["interleaved", "half"])
    pairing = draw(pairings)
    return ra.RoPE(
        head_dim,
        base=draw(st.sampled_from([10_000.0, 500_000.0, 2.0, 0.5])),
        rotary_dim=2 * num_pairs,
        rotary_start=start,
        pairing=pairing,
        out_pairing=pairing if same_layout else draw(pairings),
    )


POSITIONS = st.integers(-(2**31), 2**31 - 1)
SEEDS = st.integers(0, 2**32 - 1)


def compute_eps(dtype):
    return EPS["float64" if dtype == "float64" else "float32"]


def one_step(dtype):
    """Return the contract's error of one rotation, relative to the pair's length; half an ulp is eps/2."""
    return 2.5 * compute_eps(dtype) + EPS[dtype] / 2


def lengths(rope, x, pairing):
    """The length of each pair."""
    part = x[..., rope.rotary_start : rope.rotary_start + rope.rotary_dim]
    half = rope.rotary_dim // 2
    a, b = (part[..., :half], part[..., half:]) if pairing == "half" else (part[..., ::2], part[..., 1::2])
    return np.hypot(a, b)


@SOME
@given(specs(), POSITIONS, SEEDS)
def test_norm_of_every_pair_is_kept(lib, float_dtype, rope, pos, seed):
    x = normal(lib, 3, rope.head_dim, dtype=float_dtype, seed=seed)
    before = lengths(rope, values(x), rope.pairing)
    after = lengths(rope, values(rope.apply(x, pos)), rope.out_pairing or rope.pairing)
    # Each of a pair's two results is off by at most one step.
    assert (np.abs(after - before) <= 2**0.5 * one_step(float_dtype) * before + 1e-37).all()


@SOME
@given(specs(same_layout=True), SEEDS)
def test_position_zero_is_the_identity(lib, float_dtype, rope, seed):
    x = normal(lib, 3, rope.head_dim, dtype=float_dtype, seed=seed)
    np.testing.assert_array_equal(values(rope.apply(x, 0)), values(x))


@SOME
@given(specs(same_layout=True), st.integers(-(2**30), 2**30 - 1), st.integers(-(2**30), 2**30 - 1), SEEDS)
def test_rotations_add(lib, float_dtype, rope, a, b, seed):
    x = normal(lib, 2, rope.head_dim, dtype=float_dtype, seed=seed)
    twice = values(rope.apply(rope.apply(x, a), b))
    once = values(rope.apply(x, a + b))
    size = np.abs(values(x)).max() * 2**0.5
    assert np.abs(twice - once).max() <= 3.1 * 2**0.5 * one_step(float_dtype) * size


@SOME
@given(specs(), POSITIONS, SEEDS)
def test_inverse_undoes(lib, float_dtype, rope, pos, seed):
    x = normal(lib, 2, rope.head_dim, dtype=float_dtype, seed=seed)
    back = values(rope.apply(rope.apply(x, pos), pos, inverse=True))
    size = np.abs(values(x)).max() * 2**0.5
    assert np.abs(back - values(x)).max() <= 2.1 * 2**0.5 * one_step(float_dtype) * size


@SOME
@given(specs(), st.integers(-(2**30), 2**30), st.integers(-1000, 1000), st.integers(0, 2**30), SEEDS)
def test_scores_depend_on_the_distance_only(lib, rope, pos, distance, shift, seed):
    q, k = normal(lib, rope.head_dim, seed=seed), normal(lib, rope.head_dim, seed=seed + 1)

    def score(offset):
        places = (pos + offset, pos + offset + distance)
        return float(np.dot(*(values(rope.apply(v, p)) for v, p in zip((q, k), places, strict=True))))

    # Four rotations, each off by one step of the vector's length.
    size = np.linalg.norm(values(q)) * np.linalg.norm(values(k))
    places = 2**31 - 1 - 2**30 - 1000
    assert abs(score(min(shift, places)) - score(0)) <= 4.1 * 2**0.5 * one_step("float32") * size


@SOME
@given(specs(), POSITIONS, SEEDS, st.floats(-8, 8))
def test_linear_in_x(lib, rope, pos, seed, factor):
    a, b = normal(lib, rope.head_dim, seed=seed), normal(lib, rope.head_dim, seed=seed + 1)
    both = lib.asarray((lib.to_numpy(a) * np.float32(factor) + lib.to_numpy(b)).astype(np.float32))
    parts = values(rope.apply(a, pos)) * float(np.float32(factor)) + values(rope.apply(b, pos))
    size = (9 * np.abs(values(a)).max() + np.abs(values(b)).max()) * 2**0.5
    assert np.abs(values(rope.apply(both, pos)) - parts).max() <= 4 * one_step("float32") * size


@SOME
@given(specs(), POSITIONS, SEEDS)
def test_one_shot_rotation_and_matrix_agree(lib, rope, pos, seed):
    x = normal(lib, rope.head_dim, seed=seed)
    matrix = rotation_matrix(pos, **{k: getattr(rope, k) for k in FIELDS})
    want = matrix @ values(x)
    size = np.abs(values(x)).max() * 2**0.5
    for y in (rope.apply(x, pos), rope.rotation(pos, like=x).apply(x)):
        assert np.abs(values(y) - want).max() <= 1.01 * one_step("float32") * size
    np.testing.assert_allclose(np.asarray(rope.matrix(pos)), matrix, rtol=0, atol=4e-16)


FIELDS = ("head_dim", "base", "rotary_dim", "rotary_start", "pairing", "out_pairing")


# The paper's three forms, each written out on the library's own arrays. RoFormer (arXiv 2104.09864): eq. 15
# is the block-diagonal matrix, eq. 12 the complex number e^{imθ}, eq. 34 the elementwise product.


def cos_sin(lib, rope, pos):
    omega = np.array(rope.frequencies)
    angles = np.asarray(pos, dtype=np.float64)[:, None] * omega
    return np.cos(angles), np.sin(angles)


def as_matrix(lib, rope, x, pos):
    cos, sin = cos_sin(lib, rope, pos)
    blocks = np.zeros((len(pos), rope.head_dim, rope.head_dim))
    blocks[:] = np.eye(rope.head_dim)
    start, half = rope.rotary_start, rope.rotary_dim // 2
    for i in range(half):
        a = start + (i if rope.pairing == "half" else 2 * i)
        b = a + (half if rope.pairing == "half" else 1)
        blocks[:, a, a], blocks[:, a, b] = cos[:, i], -sin[:, i]
        blocks[:, b, a], blocks[:, b, b] = sin[:, i], cos[:, i]
    return lib.xp.matmul(lib.asarray(blocks.astype(np.float32)), x[..., None])[..., 0]


def members(rope, part):
    half = rope.rotary_dim // 2
    return (
        (part[..., :half], part[..., half:]) if rope.pairing == "half" else (part[..., ::2], part[..., 1::2])
    )


def join(lib, rope, a, b):
    if rope.pairing == "half":
        return lib.xp.concat([a, b], axis=-1)
    return lib.xp.reshape(lib.xp.stack([a, b], axis=-1), (*a.shape[:-1], rope.rotary_dim))


def as_complex(lib, rope, x, pos):
    cos, sin = cos_sin(lib, rope, pos)
    start, stop = rope.rotary_start, rope.rotary_start + rope.rotary_dim
    a, b = members(rope, x[..., start:stop])
    turned = (a + 1j * b) * lib.asarray((cos + 1j * sin).astype(np.complex64))
    middle = join(lib, rope, lib.xp.real(turned), lib.xp.imag(turned))
    return lib.xp.concat([x[..., :start], middle, x[..., stop:]], axis=-1)


def as_product(lib, rope, x, pos):
    cos, sin = (lib.asarray(t.astype(np.float32)) for t in cos_sin(lib, rope, pos))
    start, stop = rope.rotary_start, rope.rotary_start + rope.rotary_dim
    part = x[..., start:stop]
    a, b = members(rope, part)
    middle = part * join(lib, rope, cos, cos) + join(lib, rope, -b, a) * join(lib, rope, sin, sin)
    return lib.xp.concat([x[..., :start], middle, x[..., stop:]], axis=-1)


@pytest.mark.parametrize("form", [as_matrix, as_complex, as_product])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("width", "start"), [(8, 0), (4, 0), (4, 3), (2, 6)])
def test_three_forms_of_the_paper(lib, form, pairing, sign, width, start):
    rope = ra.RoPE(8, rotary_dim=width, rotary_start=start, pairing=pairing)
    x = normal(lib, 6, 8, seed=0)
    pos = [sign * p for p in (0, 1, 2, 3, 50, 1000)]
    want = values(form(lib, rope, x, pos))
    y = values(rope.apply(x, pos))
    # The form itself rounds its tables and its products in float32: at most as much as the contract allows.
    assert np.abs(y - want).max() <= 2 * one_step("float32") * np.abs(values(x)).max() * 2**0.5


@pytest.mark.library("torch")
@SOME
@given(specs(), POSITIONS, SEEDS)
def test_gradient_is_the_adjoint_in_torch(rope, pos, seed):
    import torch

    rng = np.random.default_rng(seed)
    x = torch.tensor(rng.standard_normal((3, rope.head_dim)), requires_grad=True)
    g = torch.tensor(rng.standard_normal((3, rope.head_dim)))
    rope.apply(x, pos).backward(g)
    matrix = rotation_matrix(pos, **{k: getattr(rope, k) for k in FIELDS})
    bound = 1.01 * one_step("float64") * np.abs(g.numpy()).max() * 2**0.5
    assert np.abs(x.grad.numpy() - g.numpy() @ matrix).max() <= bound


@pytest.mark.library("jax")
@settings(max_examples=10 * TIMES)
@given(specs(), POSITIONS, SEEDS)
def test_gradient_is_the_adjoint_in_jax(rope, pos, seed):
    import jax

    rng = np.random.default_rng(seed)
    x, g = (rng.standard_normal((3, rope.head_dim)).astype(np.float32) for _ in range(2))
    (got,) = jax.vjp(lambda x: rope.apply(x, pos), jax.numpy.asarray(x))[1](jax.numpy.asarray(g))
    matrix = rotation_matrix(pos, **{k: getattr(rope, k) for k in FIELDS})
    bound = 1.01 * one_step("float32") * np.abs(g).max() * 2**0.5
    assert np.abs(np.asarray(got) - g @ matrix).max() <= bound
