"""Rotation: tables, apply, inverse, adjoint, learned frequencies, copies, and trees of frameworks."""

from __future__ import annotations

import copy
import importlib
import pickle
import warnings
from typing import Any

import child
import numpy as np
import pytest
from compare import array_and_values

from rope_array import ArrayTypeError, Axes, RoPE, Rotation, ShapeError, SpecError
from rope_array._rotation import rotation_type
from rope_array.testing import apply_definition, cos_sin
from rope_array.testing._contract import AMPLIFIED, AT_INTEGERS, allowed, assert_contract, compute_dtype, eps
from rope_array.testing._definition import pairs_of

POSITIONS = [0, 1, -7, 4097, 2**31 - 1, -(2**31)]
S = len(POSITIONS)

# All four combinations of pairing and out_pairing. Amplitudes that are powers of two have exact reciprocals,
# which the tests of adjoints need.
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "slice": (10, {"rotary_dim": 4, "rotary_start": 3, "pairing": "half", "out_pairing": "interleaved"}),
    "amplitude": (8, {"attention_factor": 0.5, "out_pairing": "half", "base": 500_000.0}),
    "odd amplitude": (7, {"rotary_dim": 6, "attention_factor": 1.1386294361119891}),
    "explicit": (4, {"inv_freq": (1.5, -0.3), "attention_factor": 2.0, "pairing": "half"}),
    "identity": (4, {"rotary_dim": 0, "attention_factor": 2.0}),
}
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


def amplitude_of(fields: dict[str, Any]) -> float:
    return fields.get("attention_factor", 1.0)


# ---- tables ----


@each_layout
def test_tables(lib: Any, float_dtype: str, layout: str) -> None:
    """Cos and sin have the right shape, dtype and library, and values within the contract."""
    width, fields = LAYOUTS[layout]
    rope, like = RoPE(width, **fields), array_and_values(lib, float_dtype, 2)[0]
    compute = compute_dtype(float_dtype)
    for pos in (5, POSITIONS, [POSITIONS, POSITIONS[::-1]], lib.asarray(np.array([[7], [8]], np.int32))):
        rotation = rope.rotation(pos, like=like)
        pos = lib.to_numpy(pos) if hasattr(pos, "shape") else np.array(pos)
        assert rotation.cos.shape == rotation.sin.shape == (*pos.shape, len(rope.frequencies))
        want = cos_sin(pos, rotary_dim=rope.rotary_dim, base=rope.base, inv_freq=rope.inv_freq)
        for table, exact in zip((rotation.cos, rotation.sin), want, strict=True):
            assert type(table) is type(like)
            assert table.dtype == lib.dtype(compute)
            # The definition's cos and sin, and their product with the amplitude, are rounded to float64.
            bound = (AT_INTEGERS if rope.amplitude == 1.0 else AMPLIFIED)[compute] + 2.0**-53
            error = np.abs(lib.to_numpy(table).astype(np.float64) - exact * rope.amplitude)
            assert (error <= bound * rope.amplitude).all()


@pytest.mark.library("strict")
def test_tables_are_where_like_is_in_strict() -> None:
    xp = importlib.import_module("array_api_strict")
    like = xp.ones((2, 4), dtype=xp.float32, device=xp.Device("device1"))
    rotation = RoPE(4).rotation([1, 2], like=like)
    for r in (rotation, rotation.inverse(), rotation.adjoint()):
        assert r.cos.device == r.sin.device == r.apply(like).device == like.device


@pytest.mark.library("torch")
def test_tables_are_where_like_is_in_torch() -> None:
    torch = importlib.import_module("torch")
    like = torch.ones(2, 4, device="meta")
    rotation = RoPE(4).rotation([1, 2], like=like)
    assert rotation.cos.device == rotation.sin.device == rotation.apply(like).device == like.device
    grad = RoPE(4).rotation([1, 2], like=torch.ones(2, 4, requires_grad=True))
    assert not grad.cos.requires_grad


def test_values_and_shape_of_like_do_not_matter(lib: Any) -> None:
    want = RoPE(4).rotation([1, 2], like=lib.asarray(np.ones(4), "float32"))
    for like in (np.full((3, 5, 2), np.nan), np.ones((0, 3))):
        got = RoPE(4).rotation([1, 2], like=lib.asarray(like, "float32"))
        np.testing.assert_array_equal(lib.to_numpy(got.cos), lib.to_numpy(want.cos))
        np.testing.assert_array_equal(lib.to_numpy(got.sin), lib.to_numpy(want.sin))


# ---- apply, inverse, adjoint ----


@each_layout
def test_apply_holds_the_contract(lib: Any, float_dtype: str, layout: str) -> None:
    width, fields = LAYOUTS[layout]
    x, values = array_and_values(lib, float_dtype, 2, S, width)
    y = RoPE(width, **fields).rotation(POSITIONS, like=x).apply(x)
    assert type(y) is type(x)
    assert (y.dtype, tuple(y.shape)) == (x.dtype, tuple(x.shape))
    assert_contract(lib.to_numpy(y), values, POSITIONS, dtype=float_dtype, **fields)


@pytest.mark.parametrize("layout", ["slice", "odd amplitude"])
def test_apply_has_the_bits_of_the_one_shot(lib: Any, float_dtype: str, layout: str) -> None:
    """Rotating by tables has the bits of RoPE.apply."""
    check_bits(lib, float_dtype, layout, None)


@pytest.mark.parametrize("backend", [None, "array-api"])
@each_layout
def test_tables_give_the_same_bits_on_every_backend(lib: Any, layout: str, backend: str | None) -> None:
    check_bits(lib, "float32", layout, backend)


def check_bits(lib: Any, dtype: str, layout: str, backend: str | None) -> None:
    width, fields = LAYOUTS[layout]
    rope, (x, _) = RoPE(width, **fields), array_and_values(lib, dtype, 2, S, width)
    once = rope.apply(x, POSITIONS, backend=backend)
    twice = rope.rotation(POSITIONS, like=x, backend=backend).apply(x, backend=backend)
    np.testing.assert_array_equal(lib.to_numpy(twice), lib.to_numpy(once))


@each_layout
def test_inverse_divides_by_the_amplitude(lib: Any, float_dtype: str, layout: str) -> None:
    width, fields = LAYOUTS[layout]
    y, values = array_and_values(lib, float_dtype, 2, S, width)
    x = RoPE(width, **fields).rotation(POSITIONS, like=y).inverse().apply(y)
    assert_contract(lib.to_numpy(x), values, POSITIONS, dtype=float_dtype, inverse=True, **fields)


@each_layout
def test_inverse_undoes(lib: Any, float_dtype: str, layout: str) -> None:
    width, fields = LAYOUTS[layout]
    x, values = array_and_values(lib, float_dtype, 2, S, width)
    rotation = RoPE(width, **fields).rotation(POSITIONS, like=x)
    for there, back in ((rotation, rotation.inverse()), (rotation.inverse(), rotation)):
        inverse = there is not rotation
        y = there.apply(x)
        exact = apply_definition(values, POSITIONS, inverse=inverse, **fields)
        first = allowed(values, float_dtype, fields, exact=exact, inverse=inverse)
        second = allowed(
            lib.to_numpy(y).astype(np.float64), float_dtype, fields, exact=values, inverse=not inverse
        )
        # The first call's error, rotated back: at most the length of a pair's error, over the amplitude.
        factor = amplitude_of(fields) if inverse else 1.0 / amplitude_of(fields)
        left = 2**0.5 * factor * first.max(axis=-1, keepdims=True)
        error = np.abs(lib.to_numpy(back.apply(y)).astype(np.float64) - values)
        assert (error <= left + second).all()


@each_layout
def test_adjoint_is_the_transpose(lib: Any, float_dtype: str, layout: str) -> None:
    """⟨R q, k⟩ = ⟨q, Rᵀ k⟩, each side within the contract's error."""
    width, fields = LAYOUTS[layout]
    (q, q64), (k, k64) = (array_and_values(lib, float_dtype, S, width, seed=i) for i in (0, 1))
    rotation = RoPE(width, **fields).rotation(POSITIONS, like=q)
    turned = lib.to_numpy(rotation.apply(q)).astype(np.float64)
    back = lib.to_numpy(rotation.adjoint().apply(k)).astype(np.float64)
    # The adjoint is the inverse of a rotation of the reciprocal amplitude.
    reciprocal = {**fields, "attention_factor": 1.0 / amplitude_of(fields)}
    errors = allowed(q64, float_dtype, fields), allowed(k64, float_dtype, reciprocal, inverse=True)
    bound = (errors[0] * np.abs(k64) + errors[1] * np.abs(q64)).sum(axis=-1)
    # Two sums of `width` products in float64.
    size = (np.abs(turned * k64) + np.abs(back * q64)).sum(axis=-1)
    bound = bound + (width + 1) * 2.0**-53 * size
    assert (np.abs((turned * k64).sum(axis=-1) - (q64 * back).sum(axis=-1)) <= bound).all()


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "odd amplitude"])
def test_adjoint_keeps_the_amplitude(lib: Any, float_dtype: str, layout: str) -> None:
    width, fields = LAYOUTS[layout]
    k, values = array_and_values(lib, float_dtype, 2, S, width)
    y = RoPE(width, **fields).rotation(POSITIONS, like=k).adjoint().apply(k)
    reciprocal = {**fields, "attention_factor": 1.0 / amplitude_of(fields)}
    assert_contract(lib.to_numpy(y), values, POSITIONS, dtype=float_dtype, inverse=True, **reciprocal)


@each_layout
def test_the_adjoint_of_the_adjoint(lib: Any, layout: str) -> None:
    width, fields = LAYOUTS[layout]
    x, _ = array_and_values(lib, "float32", S, width)
    rotation = RoPE(width, **fields).rotation(POSITIONS, like=x)
    again = rotation.adjoint().adjoint()
    np.testing.assert_array_equal(lib.to_numpy(again.apply(x)), lib.to_numpy(rotation.apply(x)))
    assert again.layout == rotation.layout
    back = rotation.inverse().inverse()
    assert back.layout._replace(amplitude=1.0) == rotation.layout._replace(amplitude=1.0)
    assert back.layout.amplitude == pytest.approx(rotation.layout.amplitude, rel=2.0**-51)


@pytest.mark.parametrize("amplitude", [1e-25, 1e-12, 1e12, 1e25])
def test_inverse_of_amplitudes_that_have_no_square(lib: Any, amplitude: float) -> None:
    """1e-25 and 1e25 are float32 numbers, but their squares are not: the inverse must not square."""
    rope, (x, values) = RoPE(4, attention_factor=amplitude), array_and_values(lib, "float32", 2, 4)
    fields = {"attention_factor": amplitude}
    y = rope.rotation([3, 4], like=x).apply(x)
    back = rope.rotation([3, 4], like=x).inverse().apply(y)
    assert_contract(lib.to_numpy(y), values, [3, 4], dtype="float32", **fields)
    turned = lib.to_numpy(y).astype(np.float64)
    assert_contract(lib.to_numpy(back), turned, [3, 4], dtype="float32", inverse=True, **fields)


@pytest.mark.parametrize("amplitude", [1e-200, 1e200])
def test_inverse_of_amplitudes_that_have_no_square_in_float64(amplitude: float) -> None:
    rope, x = RoPE(4, attention_factor=amplitude), np.array([[1.0, 2.0, 3.0, 4.0]]) * amplitude
    back = rope.rotation([3], like=x).inverse().apply(x)
    assert_contract(back, x, [3], inverse=True, attention_factor=amplitude)


def test_float64_tables_serve_float32(lib: Any) -> None:
    """Tables like a float64 array rotate each array of a tuple in its own precision."""
    if lib.name == "jax":
        with importlib.import_module("jax").enable_x64(True):
            check_float64_tables(lib)
    else:
        check_float64_tables(lib)


def check_float64_tables(lib: Any) -> None:
    fields = {"pairing": "half", "attention_factor": 1.25}
    wide, wide64 = array_and_values(lib, "float64", 2, S, 8)
    rotation = RoPE(8, **fields).rotation(POSITIONS, like=wide)
    assert rotation.cos.dtype == lib.dtype("float64")
    for dtype in lib.dtypes:
        x, values = array_and_values(lib, dtype, 1, S, 8)
        y = rotation.apply(x)
        assert y.dtype == x.dtype
        assert_contract(lib.to_numpy(y), values, POSITIONS, dtype=dtype, **fields)
        if dtype != "float64":  # rotated in float32, as by float32 tables
            cos, sin = (lib.xp.astype(t, lib.dtype("float32")) for t in rotation)
            narrow = rotation._replace(cos=cos, sin=sin).apply(x)
            np.testing.assert_array_equal(lib.to_numpy(y), lib.to_numpy(narrow))
        first, second, third = rotation.apply((x, wide, x))
        assert_contract(lib.to_numpy(second), wide64, POSITIONS, dtype="float64", **fields)
        for got in (first, third):
            np.testing.assert_array_equal(lib.to_numpy(got), lib.to_numpy(y))


# ---- tuples, and shapes of positions ----


def test_a_tuple_of_other_heads_and_dtypes(lib: Any) -> None:
    q, q64 = array_and_values(lib, "float32", 2, 4, S, 8)
    k, k64 = array_and_values(lib, lib.dtypes[0], 2, 1, S, 8, seed=1)
    rotation = RoPE(8).rotation(POSITIONS, like=q)
    together = rotation.apply((q, k))
    assert type(together) is tuple
    for got, x, values in zip(together, (q, k), (q64, k64), strict=True):
        assert (got.dtype, tuple(got.shape)) == (x.dtype, tuple(x.shape))
        np.testing.assert_array_equal(lib.to_numpy(got), lib.to_numpy(rotation.apply(x)))
        dtype = "float32" if x is q else lib.dtypes[0]
        assert_contract(lib.to_numpy(got), values, POSITIONS, dtype=dtype)
    (alone,) = rotation.apply((q,))
    np.testing.assert_array_equal(lib.to_numpy(alone), lib.to_numpy(together[0]))


@pytest.mark.parametrize(
    ("shape", "seq_axis", "pos_shape"),
    [
        ((8,), -2, ()),
        ((5, 8), -2, (5,)),
        ((2, 3, 5, 8), -2, (5,)),
        ((2, 3, 5, 8), -2, (2, 5)),
        ((2, 3, 5, 8), -2, (2, 1)),
        ((2, 3, 5, 8), -2, (1, 5)),
        ((2, 3, 5, 8), -2, (2, 3, 5)),
        ((2, 3, 5, 8), -2, ()),
        ((2, 5, 3, 8), -3, (5,)),
        ((2, 5, 3, 8), -3, (2, 5)),
        ((2, 5, 3, 8), 1, (2, 3, 5)),
        ((5, 2, 3, 8), 0, (2, 5)),
        ((5, 0, 8), 0, (5,)),
        ((2, 0, 8), -2, (0,)),
    ],
    ids=str,
)
def test_shapes_of_positions(
    lib: Any, shape: tuple[int, ...], seq_axis: int, pos_shape: tuple[int, ...]
) -> None:
    pos = np.random.default_rng(2).integers(-1000, 1000, pos_shape).astype(np.int32)
    x, values = array_and_values(lib, "float32", *shape)
    rotation = RoPE(8, pairing="half").rotation(lib.asarray(pos), like=x)
    assert tuple(rotation.cos.shape) == (*pos_shape, 4)
    y = rotation.apply(x, seq_axis=seq_axis)
    assert_contract(lib.to_numpy(y), values, pos, dtype="float32", seq_axis=seq_axis, pairing="half")


def test_x_is_not_written_and_not_aliased(lib: Any) -> None:
    for fields in ({}, {"rotary_dim": 0}):
        x, values = array_and_values(lib, "float32", 2, 8)
        rotation = RoPE(8, **fields).rotation([0, 0], like=x)
        tables = lib.to_numpy(rotation.cos).copy()
        y = rotation.apply(x)
        assert y is not x
        if lib.name in ("numpy", "torch"):
            assert not np.shares_memory(lib.to_numpy(x), lib.to_numpy(y))
        np.testing.assert_array_equal(lib.to_numpy(x).astype(np.float64), values)
        np.testing.assert_array_equal(lib.to_numpy(rotation.cos), tables)


def test_later_writes_to_positions_change_no_rotation() -> None:
    pos, x = np.array([1, 2]), np.ones((2, 4))
    rotation = RoPE(4).rotation(pos, like=x)
    before = rotation.apply(x)
    pos[:] = 9
    np.testing.assert_array_equal(rotation.apply(x), before)


def test_inverse_and_adjoint_leave_the_rotation_unchanged(lib: Any) -> None:
    x, _ = array_and_values(lib, "float32", 2, 4)
    rotation = RoPE(4, attention_factor=2.0).rotation([1, 2], like=x)
    before = lib.to_numpy(rotation.apply(x)).copy()
    rotation.inverse()
    rotation.adjoint()
    np.testing.assert_array_equal(lib.to_numpy(rotation.apply(x)), before)


# ---- learned frequencies ----

LEARNED = [1.0, 0.5, 0.1234567, -0.003]


def assert_product(lib: Any, rotation: Rotation, pos: Any, omegas: Any, dtype: str, amplitude: float) -> None:
    """Assert cos and sin of pos · ω, times the amplitude; each step is rounded."""
    pos, omegas = np.asarray(pos, np.float64), np.asarray(omegas, np.float64)
    angle = pos[..., None] * omegas
    compute = compute_dtype(dtype)
    # A position and the product each to half an ulp; cos and sin to 4 eps.
    bound = eps(compute) * (np.abs(angle) + 4.0) * amplitude
    for table, exact in ((rotation.cos, np.cos(angle)), (rotation.sin, np.sin(angle))):
        assert table.dtype == lib.dtype(compute)
        assert tuple(table.shape) == angle.shape
        assert (np.abs(lib.to_numpy(table).astype(np.float64) - exact * amplitude) <= bound).all()


@pytest.mark.parametrize("pos", [5, [0, 1, -7, 300], [[1], [2]], 2.5, [0.25, 100.75]], ids=str)
def test_learned_frequencies(lib: Any, float_dtype: str, pos: Any) -> None:
    like = array_and_values(lib, float_dtype, 2)[0]
    omegas = lib.asarray(np.array(LEARNED), float_dtype)
    given_omegas = lib.to_numpy(omegas)
    rope = RoPE(10, rotary_dim=8, pairing="half", attention_factor=1.25)
    rotation = rope.rotation(pos, like=like, inv_freq=omegas)
    assert_product(lib, rotation, pos, given_omegas, float_dtype, 1.25)
    assert rotation.layout == rope.rotation(pos, like=like).layout
    x, values = array_and_values(lib, float_dtype, *np.shape(pos), 10)
    if np.ndim(pos) < 2:
        turned = lib.to_numpy(rotation.apply(x)).astype(np.float64)
        back = lib.to_numpy(rotation.inverse().apply(rotation.apply(x))).astype(np.float64)
        np.testing.assert_array_equal(turned[..., 8:], values[..., 8:])
        # Two rotations: 2 · 2.5 eps(compute), and two roundings to the dtype, of pairs of length |pair|.
        slack = 8 * eps(compute_dtype(float_dtype)) + 2 * eps(float_dtype)
        assert (np.abs(back - values) <= slack * np.abs(values).max() * 2).all()


def test_learned_frequencies_take_positions_of_the_library(lib: Any) -> None:
    like = array_and_values(lib, "float32", 2)[0]
    omegas = lib.asarray(np.array(LEARNED), "float32")
    for dtype in ("int32", "float32"):
        pos = lib.asarray(np.array([[3, 4, 5]], dtype))
        rotation = RoPE(8).rotation(pos, like=like, inv_freq=omegas)
        assert_product(lib, rotation, [[3, 4, 5]], np.float32(LEARNED), "float32", 1.0)


def gradients(pos: np.ndarray, omegas: np.ndarray, amplitude: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradients of Σ cos + 2 Σ sin by the frequencies and by the positions."""
    angle = pos[:, None] * omegas
    slope = amplitude * (2 * np.cos(angle) - np.sin(angle))
    return (slope * pos[:, None]).sum(axis=0), (slope * omegas).sum(axis=1)


def gradient_bounds(pos: np.ndarray, omegas: np.ndarray, amplitude: float, dtype: str) -> Any:
    """Bound their errors: of the angle, of cos and sin (3 amplitudes), and of the sum, in each term."""
    angle = np.abs(pos[:, None] * omegas)
    term = eps(dtype) * (angle + 8.0 + sum(angle.shape)) * 3 * amplitude
    return (term * np.abs(pos[:, None])).sum(axis=0), (term * np.abs(omegas)).sum(axis=1)


POS = np.array([0.5, -3.0, 17.25])


@pytest.mark.library("torch")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_learned_frequencies_in_torch(dtype: str) -> None:
    torch = importlib.import_module("torch")
    kind = getattr(torch, dtype)
    omegas = torch.nn.Parameter(torch.tensor(LEARNED, dtype=kind))
    pos = torch.tensor(POS, dtype=kind, requires_grad=True)
    like = torch.ones(3, 8, dtype=kind)
    rotation = RoPE(8, attention_factor=1.5).rotation(pos, like=like, inv_freq=omegas)
    (rotation.cos.sum() + 2 * rotation.sin.sum()).backward()
    exact_omegas = omegas.detach().double().numpy()
    want = gradients(POS, exact_omegas, 1.5)
    bounds = gradient_bounds(POS, exact_omegas, 1.5, dtype)
    for grad, exact, bound in zip((omegas.grad, pos.grad), want, bounds, strict=True):
        assert (np.abs(grad.double().numpy() - exact) <= bound).all()
    # The gradient passes through apply too.
    omegas.grad = None
    RoPE(8).rotation([1, 2, 3], like=like, inv_freq=omegas).apply(like).sum().backward()
    assert omegas.grad is not None
    assert bool((omegas.grad != 0).all())


@pytest.mark.library("jax")
def test_gradients_of_learned_frequencies_in_jax() -> None:
    jax = importlib.import_module("jax")
    jnp = jax.numpy
    omegas, pos, like = jnp.array(LEARNED), jnp.array(POS), jnp.ones((3, 8))

    def loss(omegas: Any, pos: Any) -> Any:
        rotation = RoPE(8, attention_factor=1.5).rotation(pos, like=like, inv_freq=omegas)
        return rotation.cos.sum() + 2 * rotation.sin.sum()

    exact_omegas = np.asarray(omegas, np.float64)
    want = gradients(POS, exact_omegas, 1.5)
    bounds = gradient_bounds(POS, exact_omegas, 1.5, "float32")
    for transform in (lambda f: f, jax.jit):
        got = transform(jax.grad(loss, argnums=(0, 1)))(omegas, pos)
        for grad, exact, bound in zip(got, want, bounds, strict=True):
            assert (np.abs(np.asarray(grad, np.float64) - exact) <= bound).all()
    through = jax.grad(lambda w: RoPE(8).rotation([1, 2, 3], like=like, inv_freq=w).apply(like).sum())(omegas)
    assert bool((through != 0).all())


# ---- tables of full width, and tables that exist ----

SEVERAL_LAYOUTS = {
    "half": (8, {"pairing": "half"}),
    "interleaved": (8, {}),
    "half slice": (12, {"rotary_dim": 8, "rotary_start": 2, "pairing": "half", "attention_factor": 1.5}),
    "half blocks": (12, {"pairing": "half", "axes": Axes.axial(6, 6, blocks=True)}),
    "interleaved blocks": (12, {"axes": Axes.axial(6, 6, blocks=True)}),
    "identity": (4, {"rotary_dim": 0}),
}
each_of_several = pytest.mark.parametrize("layout", SEVERAL_LAYOUTS)


def case(lib: Any, layout: str, dtype: str = "float32") -> tuple[RoPE, Any, np.ndarray, Any]:
    width, fields = SEVERAL_LAYOUTS[layout]
    rope = RoPE(width, **fields)
    x, values = array_and_values(lib, dtype, 2, 3, width)
    pos = [[1, 2], [3, 4], [5, 6]] if rope.axes else [1, 2, 3]
    return rope, x, values, pos


@each_of_several
def test_full_width_is_the_form_of_rotate_half(lib: Any, layout: str) -> None:
    """x·cos + rotate(x)·sin, where rotate moves each pair (a, b) to (-b, a), is the rotation."""
    rope, x, values, pos = case(lib, layout)
    cos, sin = (lib.to_numpy(t).astype(np.float64) for t in rope.rotation(pos, like=x).full_width())
    assert cos.shape == sin.shape == (3, rope.rotary_dim)
    rotated = slice(rope.rotary_start, rope.rotary_start + rope.rotary_dim)
    # The definition's pairs, which know axes as a mapping.
    fields = SEVERAL_LAYOUTS[layout][1] | ({"axes": vars(rope.axes)} if rope.axes else {})
    first, second = pairs_of(rope.head_dim, fields).source
    moved = np.zeros_like(values)
    moved[..., first], moved[..., second] = -values[..., second], values[..., first]
    want = values.copy()
    want[..., rotated] = values[..., rotated] * cos + moved[..., rotated] * sin
    # The tables' float32 errors are in both; the products here are in float64.
    assert_near(lib.to_numpy(rope.rotation(pos, like=x).apply(x)), want)


def assert_near(got: Any, want: Any) -> None:
    """Assert two forms of one rotation equal within the roundings of float32."""
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=0, atol=4 * eps("float32") * 3)


@each_of_several
def test_rotation_from_has_the_bits_of_rotation(lib: Any, layout: str) -> None:
    rope, x, _, pos = case(lib, layout)
    rotation = rope.rotation(pos, like=x)
    for tables in (rotation, rotation.full_width()):
        again = rope.rotation_from(*tables)
        assert again.layout == rotation.layout
        np.testing.assert_array_equal(lib.to_numpy(again.apply(x)), lib.to_numpy(rotation.apply(x)))
        back = again.inverse().apply(x)
        np.testing.assert_array_equal(lib.to_numpy(back), lib.to_numpy(rotation.inverse().apply(x)))


def test_narrow_tables_are_converted_exactly(lib: Any, float_dtype: str) -> None:
    rope, x, _, pos = case(lib, "half", float_dtype)
    narrow = rope.rotation(pos, like=x).full_width(x.dtype)
    assert narrow[0].dtype == x.dtype
    rotation = rope.rotation_from(*narrow)
    assert rotation.cos.dtype == lib.dtype(compute_dtype(float_dtype))
    for table, given in zip(rotation, narrow, strict=True):
        given = lib.to_numpy(given).astype(np.float64)[..., :4]
        np.testing.assert_array_equal(lib.to_numpy(table).astype(np.float64), given)


def test_tables_that_rotation_from_refuses(lib: Any) -> None:
    rope, x, _, pos = case(lib, "half")
    cos, sin = rope.rotation(pos, like=x)
    ints = lib.asarray(np.ones((3, 4)), "int32")
    with lib.running():
        for bad, error in [
            ((cos, sin[:2, ...]), ShapeError),
            ((cos[:, :3], sin[:, :3]), ShapeError),
            ((cos, ints), ArrayTypeError),
            ((cos, 1.0), ArrayTypeError),
            ((1.0, sin), ArrayTypeError),
            (([1.0], sin), ArrayTypeError),
        ]:
            with pytest.raises(error):
                rope.rotation_from(*bad)


@pytest.mark.parametrize("layout", ["half", "interleaved", "half slice"])
def test_full_width_for_either_pairing_and_back(lib: Any, layout: str) -> None:
    rope, x, _, pos = case(lib, layout)
    rotation = rope.rotation(pos, like=x)
    pairs = [lib.to_numpy(table) for table in rotation]
    expected = {
        "half": [np.concatenate([table, table], -1) for table in pairs],
        "interleaved": [np.repeat(table, 2, -1) for table in pairs],
    }
    for pairing, tables in expected.items():
        wide = rotation.full_width(pairing=pairing)
        for got, want in zip(wide, tables, strict=True):
            np.testing.assert_array_equal(lib.to_numpy(got), want)
        again = rope.rotation_from(*wide, pairing=pairing)
        assert type(again) is type(rotation)
        np.testing.assert_array_equal(lib.to_numpy(again.apply(x)), lib.to_numpy(rotation.apply(x)))
    with pytest.raises(SpecError, match="pairing is 'neox'"):
        rotation.full_width(pairing="neox")
    with pytest.raises(SpecError, match="pairing is 'neox'"):
        rope.rotation_from(*rotation, pairing="neox")


def test_full_width_of_two_pairings_takes_either() -> None:
    rope = RoPE(4, pairing="interleaved", out_pairing="half")
    cos, sin = rope.rotation([1], like=np.ones(4)).full_width(pairing="half")
    np.testing.assert_array_equal(cos[:, :2], cos[:, 2:])
    np.testing.assert_array_equal(sin[:, :2], sin[:, 2:])


def test_full_width_needs_one_pairing() -> None:
    rotation = RoPE(4, pairing="half", out_pairing="interleaved").rotation([1], like=np.ones(4))
    with pytest.raises(SpecError, match="out_pairing"):
        rotation.full_width()


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64", "a word"])
def test_dtypes_that_full_width_refuses(lib: Any, dtype: str) -> None:
    rope, x, _, pos = case(lib, "half")
    given = dtype if dtype == "a word" else getattr(lib.xp, dtype)
    with lib.running(), pytest.raises(ArrayTypeError, match="dtype is"):
        rope.rotation(pos, like=x).full_width(given)


@pytest.mark.library("jax")
def test_full_width_and_back_in_a_jitted_function() -> None:
    jax = importlib.import_module("jax")
    rope, x = RoPE(8, pairing="half"), jax.numpy.ones((3, 8))
    through = jax.jit(lambda r, x: rope.rotation_from(*r.full_width()).apply(x))
    rotation = rope.rotation([1, 2, 3], like=x)
    np.testing.assert_allclose(through(rotation, x), rotation.apply(x), rtol=0, atol=4 * eps("float32"))


@pytest.mark.library("torch")
def test_full_width_and_back_in_a_compiled_function() -> None:
    torch = importlib.import_module("torch")
    torch._dynamo.reset()
    rope, x = RoPE(8, pairing="half"), torch.ones(3, 8)
    rotation = rope.rotation([1, 2, 3], like=x)
    through = torch.compile(
        lambda r, x: rope.rotation_from(*r.full_width()).apply(x), fullgraph=True, backend="eager"
    )
    torch.testing.assert_close(through(rotation, x), rotation.apply(x), rtol=0, atol=0)
    torch._dynamo.reset()


# ---- a value: repr, pickle, copy ----


@each_layout
def test_repr_is_short(lib: Any, layout: str) -> None:
    width, fields = LAYOUTS[layout]
    rope = RoPE(width, **fields)
    rotation = rope.rotation(POSITIONS, like=array_and_values(lib, "float32", 2)[0])
    text = repr(rotation)
    table = f"float32[{S}, {rope.rotary_dim // 2}] ({lib.name})"
    assert text.startswith(f"Rotation(cos={table}, sin={table}, ")
    assert f"head_dim={width}" in text
    assert f"amplitude={rope.amplitude}" in text
    assert repr(rope.pairing) in text
    assert len(text) < 300
    assert str(rotation) == text


@pytest.mark.without("strict")  # its arrays cannot be pickled
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_pickles(lib: Any, protocol: int) -> None:
    check_copies(lib, lambda rotation: pickle.loads(pickle.dumps(rotation, protocol)))


LOAD_TYPE = """
    import pickle, sys
    import numpy as np
    from rope_array import RoPE
    cls = pickle.loads(bytes.fromhex(sys.argv[1]))
    assert cls is type(RoPE(8, pairing="half", attention_factor=2.0).rotation(0, like=np.ones(8)))
    """


def test_types_are_pickled() -> None:
    rotation = RoPE(8, pairing="half", attention_factor=2.0).rotation(0, like=np.ones(8))
    cls = type(rotation)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for one in (Rotation, cls, type(rotation.inverse())):
            assert pickle.loads(pickle.dumps(one, protocol)) is one
    child.run(LOAD_TYPE, pickle.dumps(cls).hex())  # where the type was not made before


@pytest.mark.without("strict")  # arrays of old versions cannot be copied
@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
def test_copies(lib: Any, make: Any) -> None:
    check_copies(lib, make)


def check_copies(lib: Any, make: Any) -> None:
    width, fields = LAYOUTS["amplitude"]
    x, _ = array_and_values(lib, "float32", S, width)
    rotation = RoPE(width, **fields).rotation(POSITIONS, like=x)
    for one in (rotation, rotation.inverse()):
        again = make(one)
        assert isinstance(again, Rotation)
        assert again.layout == one.layout
        np.testing.assert_array_equal(lib.to_numpy(again.apply(x)), lib.to_numpy(one.apply(x)))


# ---- a tree ----


def layers(rotation: Any, x: Any) -> Any:
    q, k = rotation.apply((x, x))
    return rotation.inverse().apply(q) + k


@pytest.mark.library("jax")
@each_layout
def test_tree_of_jax(layout: str) -> None:
    jax = importlib.import_module("jax")
    width, fields = LAYOUTS[layout]
    x = jax.numpy.asarray(np.random.default_rng(0).standard_normal((S, width)), "float32")
    rotation = RoPE(width, **fields).rotation(POSITIONS, like=x)
    leaves, structure = jax.tree.flatten(rotation)
    assert len(leaves) == 2
    assert leaves[0] is rotation.cos
    assert leaves[1] is rotation.sin
    again = jax.tree.unflatten(structure, leaves)
    assert isinstance(again, Rotation)
    assert again.layout == rotation.layout
    assert again.layout.num_pairs == rotation.cos.shape[-1]
    doubled = jax.tree.map(lambda table: 2 * table, rotation)
    np.testing.assert_array_equal(doubled.cos, 2 * rotation.cos)
    other = RoPE(12).rotation(POSITIONS, like=x)
    assert jax.tree.structure(other) != structure
    if rotation.inverse().layout != rotation.layout:
        assert jax.tree.structure(rotation.inverse()) != structure


@pytest.mark.library("jax")
def test_jit_takes_and_gives_rotations() -> None:
    jax = importlib.import_module("jax")
    x = jax.numpy.asarray(np.random.default_rng(0).standard_normal((S, 8)), "float32")
    pos = jax.numpy.asarray(POSITIONS, "int32")
    rope, traces = RoPE(8, pairing="half", attention_factor=2.0), []

    @jax.jit
    def use(rotation: Any, x: Any) -> Any:
        traces.append(rotation.layout)
        return rotation.apply(x)

    made = jax.jit(lambda pos: rope.rotation(pos, like=x))(pos)
    assert isinstance(made, Rotation)
    eager = rope.rotation(pos, like=x)
    assert made.layout == eager.layout
    np.testing.assert_array_equal(made.cos, eager.cos)
    values = np.asarray(x, np.float64)
    fields = {"pairing": "half", "attention_factor": 2.0}
    for rotation in (made, eager, rope.rotation(pos, like=x)):
        assert_contract(np.asarray(use(rotation, x)), values, POSITIONS, **fields)
    assert len(traces) == 1  # equal layouts share a program
    assert_contract(np.asarray(use(eager.inverse(), x)), values, POSITIONS, inverse=True, **fields)
    assert len(traces) == 2  # other layouts do not


@pytest.mark.library("jax")
def test_vmap_and_scan_of_jax() -> None:
    jax = importlib.import_module("jax")
    x = jax.numpy.asarray(np.random.default_rng(0).standard_normal((3, S, 8)), "float32")
    pos = jax.numpy.arange(3 * S).reshape(3, S)
    rope, values = RoPE(8), np.asarray(x, np.float64)
    batch = rope.rotation(pos, like=x)  # its tables have a batch axis first, as x has
    each = jax.vmap(lambda rotation, x: rotation.apply(x))(batch, x)
    assert_contract(np.asarray(each), values, np.asarray(pos))
    one = rope.rotation(pos[0], like=x)
    shared = jax.vmap(lambda rotation, x: rotation.apply(x), in_axes=(None, 0))(one, x)
    assert_contract(np.asarray(shared), values, np.asarray(pos[0]))

    def step(carry: Any, layer: Any) -> Any:  # one rotation is the carry, one is scanned
        rotation, y = carry
        return (rotation, rotation.apply(y)), layer.apply(x[0])

    (last, y), scanned = jax.lax.scan(step, (one, x[0]), batch)
    assert isinstance(last, Rotation)
    assert last.layout == one.layout
    by_hand = x[0]
    for _ in range(3):
        by_hand = one.apply(by_hand)
    # Two programs may differ by twice the contract's error in each of three steps.
    bound = 3 * 2 * allowed(values[0], "float32", {}).max()
    assert np.abs(np.asarray(y, np.float64) - np.asarray(by_hand, np.float64)).max() <= bound
    stacked = np.broadcast_to(values[0], (3, S, 8))
    assert_contract(np.asarray(scanned), stacked, np.asarray(pos))


@pytest.mark.library("jax")
def test_gradient_through_a_rotation_in_jax() -> None:
    jax = importlib.import_module("jax")
    x = jax.numpy.asarray(np.random.default_rng(0).standard_normal((S, 8)), "float32")
    k = jax.numpy.asarray(np.random.default_rng(1).standard_normal((S, 8)), "float32")
    fields = {"pairing": "half", "out_pairing": "interleaved", "attention_factor": 0.5}
    rotation = RoPE(8, **fields).rotation(POSITIONS, like=x)
    grad = jax.grad(lambda x: (rotation.apply(x) * k).sum())(x)
    reciprocal = {**fields, "attention_factor": 2.0}
    assert_contract(np.asarray(grad), np.asarray(k), POSITIONS, inverse=True, **reciprocal)
    tables = jax.grad(lambda r: (r.apply(x) * k).sum(), allow_int=True)(rotation)  # by its tables
    assert isinstance(tables, Rotation)
    assert tables.cos.shape == rotation.cos.shape


@pytest.mark.library("torch")
@each_layout
def test_tree_of_torch(layout: str) -> None:
    torch = importlib.import_module("torch")
    pytree = importlib.import_module("torch.utils._pytree")
    width, fields = LAYOUTS[layout]
    x = torch.asarray(np.random.default_rng(0).standard_normal((S, width)), dtype=torch.float32)
    rotation = RoPE(width, **fields).rotation(POSITIONS, like=x)
    leaves, structure = pytree.tree_flatten(rotation)
    assert len(leaves) == 2
    assert leaves[0] is rotation.cos
    assert leaves[1] is rotation.sin
    again = pytree.tree_unflatten(leaves, structure)
    assert isinstance(again, Rotation)
    assert again.layout == rotation.layout
    torch.testing.assert_close(again.apply(x), rotation.apply(x), rtol=0, atol=0)
    moved = pytree.tree_map(lambda table: table.to(torch.float64), rotation)
    assert moved.apply(x.double()).dtype == torch.float64
    other = RoPE(12).rotation(POSITIONS, like=x)
    assert pytree.tree_flatten(other)[1] != structure


@pytest.mark.library("torch")
def test_transforms_of_torch() -> None:
    torch = importlib.import_module("torch")
    x = torch.asarray(np.random.default_rng(0).standard_normal((3, S, 8)), dtype=torch.float32)
    pos = torch.arange(3 * S).reshape(3, S)
    rope, values = RoPE(8, attention_factor=0.5), x.double().numpy()
    batch, one = rope.rotation(pos, like=x), rope.rotation(pos[0], like=x)
    apply = lambda rotation, x: rotation.apply(x)  # noqa: E731
    fields = {"attention_factor": 0.5}
    assert_contract(torch.func.vmap(apply)(batch, x).numpy(), values, pos.numpy(), **fields)
    shared = torch.func.vmap(apply, in_dims=(None, 0))(one, x)
    assert_contract(shared.numpy(), values, pos[0].numpy(), **fields)
    k = torch.ones(S, 8)
    grad = torch.func.grad(lambda x: (one.apply(x) * k).sum())(x[0])
    adjoint = {"attention_factor": 2.0, "inverse": True}
    assert_contract(grad.numpy(), np.ones((S, 8)), pos[0].numpy(), **adjoint)


@pytest.mark.library("torch")
def test_a_compiled_function_takes_and_gives_rotations() -> None:
    torch = importlib.import_module("torch")
    counted = importlib.import_module("torch._dynamo.testing").CompileCounter()
    torch._dynamo.reset()
    x = torch.asarray(np.random.default_rng(0).standard_normal((S, 8)), dtype=torch.float32)
    rotation = RoPE(8, pairing="half", attention_factor=2.0).rotation(POSITIONS, like=x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = torch.compile(layers, fullgraph=True, backend=counted)
        turned = torch.compile(lambda r: r.inverse(), fullgraph=True, backend=counted)
        # The counter runs the operations eagerly, with the same bits.
        torch.testing.assert_close(compiled(rotation, x), layers(rotation, x), rtol=0, atol=0)
        compiled(rotation.adjoint().adjoint(), x)
        assert counted.frame_count == 1
        back = turned(rotation)
    assert isinstance(back, Rotation)
    assert back.layout == rotation.inverse().layout
    torch.testing.assert_close(back.cos, rotation.inverse().cos, rtol=0, atol=0)
    torch._dynamo.reset()


@pytest.mark.library("torch")
def test_export_takes_a_rotation() -> None:
    torch = importlib.import_module("torch")

    class Layer(torch.nn.Module):
        def forward(self, rotation: Any, x: Any) -> Any:
            return layers(rotation, x)

    x = torch.asarray(np.random.default_rng(0).standard_normal((S, 8)), dtype=torch.float32)
    rotation = RoPE(8, pairing="half").rotation(POSITIONS, like=x)
    program = torch.export.export(Layer(), (rotation, x))
    other = RoPE(8, pairing="half").rotation(range(S), like=x)
    for r in (rotation, other):
        torch.testing.assert_close(program.module()(r, x), layers(r, x), rtol=0, atol=0)


@pytest.mark.library("torch")
def test_export_takes_a_rotation_of_any_length() -> None:
    torch = importlib.import_module("torch")

    class Layer(torch.nn.Module):
        def forward(self, rotation: Any, x: Any) -> Any:
            return rotation.apply(x)

    x = torch.ones(S, 8)
    length = torch.export.Dim("length", min=2, max=64)
    rotation = RoPE(8).rotation(POSITIONS, like=x)
    shapes = importlib.import_module("torch.utils._pytree").tree_map(lambda _: {0: length}, rotation)
    program = torch.export.export(Layer(), (rotation, x), dynamic_shapes=(shapes, {0: length}))
    x = torch.ones(9, 8)
    rotation = RoPE(8).rotation(range(9), like=x)
    torch.testing.assert_close(program.module()(rotation, x), rotation.apply(x), rtol=0, atol=0)


# ---- made before the framework was imported ----

BEFORE = """
import sys
import numpy as np
import rope_array as ra

x = np.random.default_rng(0).standard_normal((3, 8)).astype("float32")
rotation = ra.RoPE(8, pairing="half", attention_factor=2.0).rotation([1, 2, 3], like=x)
want = rotation.apply(x)
assert not {"jax", "torch"} & set(sys.modules)
"""

IN_JAX = """
import jax

leaves, structure = jax.tree.flatten(rotation)
assert [leaf is table for leaf, table in zip(leaves, (rotation.cos, rotation.sin))] == [True, True]
assert jax.tree.unflatten(structure, leaves).layout == rotation.layout
moved = jax.tree.map(jax.numpy.asarray, rotation)
y = jax.jit(lambda r, x: r.apply(x))(rotation, x)  # jit makes jax's arrays of NumPy's
for got in (y, moved.apply(jax.numpy.asarray(x))):
    assert isinstance(got, jax.Array)
    assert abs(got - want).max() <= 2 * 2.5 * 2.0**-23 * 2.0 * np.hypot(x, x).max() * 2
assert rotation.apply(x).tobytes() == want.tobytes()
"""

IN_TORCH = """
import torch
from torch.utils import _pytree as pytree

leaves, structure = pytree.tree_flatten(rotation)
assert [leaf is table for leaf, table in zip(leaves, (rotation.cos, rotation.sin))] == [True, True]
assert pytree.tree_unflatten(leaves, structure).layout == rotation.layout
moved = pytree.tree_map(torch.from_numpy, rotation)
assert isinstance(moved, ra.Rotation)
t = torch.from_numpy(x)
compiled = torch.compile(lambda r, x: r.apply(x), backend="eager", fullgraph=True)
for got in (moved.apply(t), torch.func.vmap(lambda r, x: r.apply(x))(moved, t), compiled(moved, t)):
    assert (got - torch.from_numpy(want)).abs().max() <= 2 * 2.5 * 2.0**-23 * 2.0 * np.hypot(x, x).max() * 2
assert rotation.apply(x).tobytes() == want.tobytes()
"""


@pytest.mark.library("jax")
def test_made_before_jax_was_imported() -> None:
    child.run(BEFORE + IN_JAX)


@pytest.mark.library("torch")
def test_made_before_torch_was_imported() -> None:
    child.run(BEFORE + IN_TORCH)


def test_tables_of_other_dtypes_are_refused(lib):
    x = lib.asarray(np.ones((3, 4), np.float32), "float32")
    rotation = RoPE(4).rotation(range(3), like=x)
    for dtype in {"float16", "bfloat16", "int32"} & {*lib.dtypes, "int32"}:
        cast = lib.asarray(np.ones((3, 2)), dtype)
        for tables in ({"cos": cast}, {"sin": cast}, {"cos": cast, "sin": cast}):
            with lib.running(), pytest.raises(ArrayTypeError, match="float32 or float64"):
                rotation._replace(**tables).apply(x)


def test_a_rotation_made_by_its_class_has_no_layout():
    x = np.ones((3, 4))
    cos, sin = RoPE(4).rotation(range(3), like=x)
    bare = Rotation(cos, sin)
    for use in (lambda: bare.apply(x), bare.inverse, bare.adjoint, lambda: repr(bare)):
        with pytest.raises(SpecError, match="rotation_from"):
            use()


def test_a_rotation_is_two_tables(lib):
    x = lib.asarray(np.ones((3, 4)), "float32")
    rotation = RoPE(4).rotation(range(3), like=x)
    cos, sin = rotation
    assert len(rotation) == 2
    assert cos is rotation.cos
    assert sin is rotation[1]


@pytest.mark.parametrize("count", [300])
def test_rotations_of_many_layouts(count):
    """More layouts than the memo of their types holds."""
    x = np.ones((3, 2 * count), np.float32)
    first = RoPE(2 * count, rotary_dim=2).rotation(range(3), like=x)
    others = [RoPE(2 * count, rotary_dim=2 * i).rotation(range(3), like=x) for i in range(2, count)]
    assert len({type(rotation) for rotation in others}) == len(others)
    again = pickle.loads(pickle.dumps(first))
    assert again.layout == first.layout
    np.testing.assert_array_equal(again.apply(x), first.apply(x))


def test_each_layout_has_one_type():
    x = np.ones((3, 4))
    layout = RoPE(4).rotation(range(3), like=x).layout
    assert rotation_type(*layout) is rotation_type(*layout) is type(RoPE(4).rotation(3, like=x))
    # Equal numbers of another type are no layout of a rope; nor may they be taken for one.
    assert rotation_type(*layout._replace(start=0.0)) is not rotation_type(*layout)


def test_tables_of_two_precisions_are_cast_one_by_one(lib):
    x = lib.asarray(np.linspace(-1, 1, 12).reshape(3, 4), "float32")
    if "float64" not in lib.dtypes:
        pytest.skip("the library has no float64 here")
    rotation = RoPE(4).rotation(range(3), like=x)
    wide = lib.asarray(lib.to_numpy(rotation.sin).astype(np.float64), "float64")
    with lib.running():
        for backend in (None, "array-api"):
            want = lib.to_numpy(rotation.apply(x, backend=backend))
            got = lib.to_numpy(rotation._replace(sin=wide).apply(x, backend=backend))
            np.testing.assert_array_equal(got, want)
