"""Learned frequencies, frequencies mixed over coordinates for each head, and xPos."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import numpy as np
import pytest
from refusals import refusals, refused

import rope_array as ra
from rope_array import RoPE

RNG = np.random.default_rng(0)
PATCHES = np.stack(np.meshgrid(np.arange(3), np.arange(2), indexing="ij"), -1).reshape(6, 2)
MIXED = RNG.normal(size=(3, 2, 4)).astype("float32")
X = RNG.normal(size=(2, 3, 6, 8)).astype("float32")


def made(lib: Any, array: Any, dtype: str = "float32") -> Any:
    return lib.asarray(np.asarray(array).astype(dtype), dtype)


def rotated(x: np.ndarray, angle: np.ndarray, pairing: str = "interleaved") -> np.ndarray:
    """Rotate by complex numbers, another form than the library's."""
    x = np.asarray(x, np.float64)
    a, b = (x[..., ::2], x[..., 1::2]) if pairing == "interleaved" else np.split(x, 2, -1)
    z = (a + 1j * b) * np.exp(1j * angle)
    if pairing == "half":
        return np.concatenate([z.real, z.imag], -1)
    return np.stack([z.real, z.imag], -1).reshape(x.shape)


def mixed_angles(pos: np.ndarray, inv_freq: np.ndarray = MIXED) -> np.ndarray:
    """Sum over coordinates: pos (..., S, n), inv_freq (heads, n, pairs), result (..., heads, S, pairs)."""
    return np.einsum("...sn,hnl->...hsl", pos.astype(np.float64), inv_freq.astype(np.float64))


# ---- mixed ----


BATCH = PATCHES + np.arange(2).reshape(-1, 1, 1)


@pytest.mark.parametrize(
    ("pos", "dtype", "pairing"),
    [
        (PATCHES, "int32", "half"),
        (BATCH, "int32", "interleaved"),
        (BATCH[:1], None, "half"),
        ((PATCHES + 0.5) / 3, "float32", "interleaved"),
        ((PATCHES + 0.5) / 3, None, "half"),
    ],
    ids=["patches", "batch", "batch of one on the host", "floats", "floats on the host"],
)
def test_mixed_is_the_sum_over_coordinates(
    lib: Any, pos: np.ndarray, dtype: str | None, pairing: Any
) -> None:
    """With and without a batch, and heads before or after the sequence; the inverse divides."""
    positions = pos.tolist() if dtype is None else made(lib, pos, dtype)
    rope, like = RoPE(8, pairing=pairing, attention_factor=1.5), made(lib, X)
    rotation = rope.rotation_mixed(positions, like=like, inv_freq=made(lib, MIXED))
    assert tuple(rotation.cos.shape) == (len(pos) if pos.ndim == 3 else 1, 3, 6, 4)
    wanted = 1.5 * rotated(X, mixed_angles(pos), pairing)
    y = rotation.apply(like)
    np.testing.assert_allclose(lib.to_numpy(y), wanted, atol=5e-6)
    np.testing.assert_allclose(lib.to_numpy(rotation.inverse().apply(y)), X, atol=1e-6)
    rotated_x = lib.to_numpy(rotation.apply(made(lib, np.moveaxis(X, 1, 2)), seq_axis=-3))
    np.testing.assert_allclose(np.moveaxis(rotated_x, 2, 1), wanted, atol=5e-6)
    if pos.ndim == 2:
        like = made(lib, X[0])
        rotation = rope.rotation_mixed(positions, like=like, inv_freq=made(lib, MIXED))
        np.testing.assert_allclose(lib.to_numpy(rotation.apply(like)), wanted[0], atol=5e-6)


def of_mixed(x: Any, pos: Any, inv_freq: Any) -> Any:
    return RoPE(8).rotation_mixed(pos, like=x, inv_freq=inv_freq).apply(x)


def of_xpos(x: Any, pos: Any) -> Any:
    of_q, of_k = RoPE(8).rotation_xpos(pos, like=x)
    return of_q.apply(x) + of_k.apply(x)


@pytest.mark.library("jax")
def test_gradients_of_mixed_frequencies_and_positions_in_jax() -> None:
    """Compare with differences, in double. test_torch_modules.py does so for PyTorch."""
    jax = importlib.import_module("jax")
    check = importlib.import_module("jax.test_util").check_grads
    with jax.enable_x64(True):
        x, *arrays = (jax.numpy.asarray(a, "float64") for a in (X[:1], PATCHES + 0.25, MIXED))
        check(jax.jit(partial(of_mixed, x)), arrays, order=1, modes=["rev"])


@pytest.mark.library("jax", "torch")
def test_xpos_compiles(lib: Any) -> None:
    """test_torch_modules.py compiles mixed frequencies, as the test above does with JAX."""
    library, arrays = importlib.import_module(lib.name), (made(lib, X), made(lib, np.arange(6), "int32"))
    if lib.name == "jax":
        compiled = library.jit(of_xpos)
    else:
        compiled = library.compile(of_xpos, fullgraph=True, backend="aot_eager")
    np.testing.assert_allclose(lib.to_numpy(compiled(*arrays)), lib.to_numpy(of_xpos(*arrays)), atol=1e-6)


# ---- learned, by coordinate ----


def test_learned_frequencies_with_axes(lib: Any) -> None:
    """A pair without a coordinate has the frequency 0, whatever inv_freq has for it."""
    axes, omegas = ra.Axes((0, None, 1, 1, None)), [1.0, 2.0, 3.0, 0.5, 4.0]
    pos, like = PATCHES * 3, made(lib, X)
    rope = RoPE(10, axes=axes, inv_freq=omegas)
    assert rope.frequencies == (1.0, 0.0, 3.0, 0.5, 0.0)
    learned = {"like": like, "inv_freq": made(lib, omegas)}
    for rotation in (
        rope.rotation(made(lib, pos, "int32"), like=like),
        RoPE(10, axes=axes).rotation(made(lib, pos, "int32"), **learned),
    ):
        angles = pos[:, [0, 0, 1, 1, 0]] * rope.frequencies
        np.testing.assert_allclose(lib.to_numpy(rotation.cos), np.cos(angles), atol=1e-5)
        np.testing.assert_allclose(lib.to_numpy(rotation.sin), np.sin(angles), atol=1e-5)
    still = RoPE(10, axes=axes, inv_freq=(0.0,) * 5)
    moving = RoPE(10, axes=ra.Axes((0, 0, 1, 1, 0)), inv_freq=(0.0,) * 5)
    assert still._plan != moving._plan  # compiled code is cached by plan


def test_a_nan_does_not_reach_pairs_without_a_coordinate(lib: Any) -> None:
    like, omegas = made(lib, X), made(lib, [1.0, np.inf, 0.5, 1.0, np.nan])
    rotation = RoPE(10, axes=ra.Axes((0, None, 1, 1, None))).rotation(
        made(lib, PATCHES, "int32"), like=like, inv_freq=omegas
    )
    assert np.isfinite(lib.to_numpy(rotation.cos)).all()


# ---- xPos ----

# (2i + 0.4 d)/(1.4 d) for d = 8 (Sun et al., arXiv 2212.10554; torchscale, flash-attention)
ZETA = np.asarray([0.2857143, 0.4642857, 0.6428571, 0.8214286])


def xpos_oracle(x: np.ndarray, pos: np.ndarray, sign: int, center: float, scale_base: float) -> np.ndarray:
    zeta = (2 * np.arange(4) + 0.4 * 8) / (1.4 * 8)
    np.testing.assert_allclose(zeta, ZETA, atol=1e-7)
    factor = zeta ** (sign * ((pos - center) / scale_base)[:, None])
    return rotated(x, pos[:, None] * 10000.0 ** (-np.arange(4) / 4)) * np.repeat(factor, 2, -1)


@pytest.mark.parametrize(("center", "scale_base"), [(0.0, 512.0), (40.0, 64.0)])
def test_xpos(lib: Any, center: float, scale_base: float) -> None:
    pos = np.asarray([0, 3, 40, 90])
    x = X[:, :, :4]
    for positions in (made(lib, pos, "int32"), pos.tolist(), made(lib, pos + 0.0, "float32")):
        rotations = RoPE(8).rotation_xpos(positions, like=made(lib, x), scale_base=scale_base, center=center)
        for rotation, sign in zip(rotations, (1, -1), strict=True):
            y = lib.to_numpy(rotation.apply(made(lib, x)))
            wanted = xpos_oracle(x, pos, sign, center, scale_base)
            np.testing.assert_allclose(y, wanted, rtol=2e-5, atol=2e-6)


def test_xpos_stays_right_while_a_cache_grows() -> None:
    """lucidrains rotary-embedding-torch #27: a center in the middle of the sequence moves with each token."""
    rope, k = RoPE(8), RNG.normal(size=(6, 8))
    at_once = rope.rotation_xpos(range(6), like=k)[1].apply(k)
    one_by_one = [rope.rotation_xpos([p], like=k)[1].apply(k[p : p + 1]) for p in range(6)]
    np.testing.assert_allclose(np.concatenate(one_by_one), at_once, rtol=1e-15)


def test_inverse_and_adjoint_of_xpos(lib: Any) -> None:
    """The factor differs by position: the inverse divides by it, the adjoint multiplies by it."""
    x, y = made(lib, X), made(lib, X[::-1])
    rope = RoPE(8, attention_factor=1.25, out_pairing="half")
    for rotation in rope.rotation_xpos([0, 9, 99, 999, 5, 2], like=x):
        back = lib.to_numpy(rotation.inverse().apply(rotation.apply(x)))
        np.testing.assert_allclose(back, X, atol=2e-6)
        again = lib.to_numpy(rotation.inverse().inverse().apply(x))
        np.testing.assert_allclose(again, lib.to_numpy(rotation.apply(x)), rtol=1e-5, atol=1e-6)
        left = (lib.to_numpy(rotation.apply(x)) * X[::-1]).sum()
        right = (X * lib.to_numpy(rotation.adjoint().apply(y))).sum()
        np.testing.assert_allclose(left, right, rtol=1e-4)


def test_xpos_is_inverted_up_to_its_largest_position() -> None:
    """In float32, squares of the tables are 0 or infinite from about position 20,000 on."""
    x = np.ones((1, 8), np.float32)
    for pos in ([30_000], [-30_000]):
        for rotation in RoPE(8).rotation_xpos(pos, like=x):
            np.testing.assert_allclose(rotation.inverse().apply(rotation.apply(x)), x, rtol=1e-5)


def test_xpos_refuses_positions_beyond_the_range_of_its_powers(lib: Any) -> None:
    x = made(lib, X)
    for sign in (1, -1):
        pos = sign * np.arange(36_000, 36_006)
        host = [36_000.0 * sign, range(*pos[[0, -1]], sign), pos.tolist()]
        for values in (*host, made(lib, pos)) if lib.name in ("numpy", "torch") else host:
            with pytest.raises(ra.PositionError, match="from the center 0"):
                RoPE(8).rotation_xpos(values, like=x)
    assert np.isfinite(lib.to_numpy(RoPE(8).rotation_xpos(36_000, like=x, center=30_000)[0].cos)).all()
    RoPE(8).rotation_xpos(36_000, like=X.astype("float64"))


# ---- refusals ----

ONES = np.ones((3, 2, 4))


def mixed(inv_freq: Any, pos: Any = PATCHES, **fields: Any) -> Any:
    return RoPE(8, **fields).rotation_mixed(pos, like=X, inv_freq=inv_freq)


def learned(**fields: Any) -> Any:
    return RoPE(8, **fields).rotation(range(6), like=X, inv_freq=np.ones(4))


def xpos(pos: Any = (0, 1), axes: Any = None, **options: Any) -> Any:
    return RoPE(8, axes=axes).rotation_xpos(pos, like=X, **options)


@refusals("builders")
def test_refused(call: str, error: type[Exception], words: str) -> None:
    refused(error, words, lambda: eval(call))
