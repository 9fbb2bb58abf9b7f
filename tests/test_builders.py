"""Learned frequencies, frequencies mixed over coordinates for each head, and xPos."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rope_array as ra
from rope_array import ArrayTypeError, RoPE, ShapeError, SpecError

RNG = np.random.default_rng(0)
PATCHES = np.stack(np.meshgrid(np.arange(3), np.arange(2), indexing="ij"), -1).reshape(6, 2)


def made(lib: Any, array: Any, dtype: str = "float32") -> Any:
    return lib.asarray(np.asarray(array).astype(dtype), dtype)


def pairs_of(x: np.ndarray, pairing: str) -> tuple[np.ndarray, np.ndarray]:
    return (x[..., ::2], x[..., 1::2]) if pairing == "interleaved" else tuple(np.split(x, 2, -1))  # type: ignore[return-value]


def joined(a: np.ndarray, b: np.ndarray, pairing: str) -> np.ndarray:
    if pairing == "half":
        return np.concatenate([a, b], -1)
    return np.stack([a, b], -1).reshape(*a.shape[:-1], -1)


def rotated(x: np.ndarray, angle: np.ndarray, pairing: str) -> np.ndarray:
    """Rotate by complex numbers, another form than the library's."""
    a, b = pairs_of(np.asarray(x, np.float64), pairing)
    z = (a + 1j * b) * np.exp(1j * angle)
    return joined(z.real, z.imag, pairing)


# ---- mixed ----


def mixed_angles(pos: np.ndarray, inv_freq: np.ndarray) -> np.ndarray:
    """Sum over coordinates: pos (..., S, n), inv_freq (heads, n, pairs), result (..., heads, S, pairs)."""
    return np.einsum("...sn,hnl->...hsl", pos.astype(np.float64), inv_freq.astype(np.float64))


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("lead", [(), (2,), (1,)], ids=str)
def test_mixed_is_the_sum_over_coordinates(lib: Any, pairing: str, lead: tuple[int, ...]) -> None:
    inv_freq, x = (
        RNG.normal(size=(3, 2, 4)).astype("float32"),
        RNG.normal(size=(2, 3, 6, 8)).astype("float32"),
    )
    pos = np.broadcast_to(PATCHES, (*lead, 6, 2)) + np.arange(lead[0] if lead else 1).reshape(-1, 1, 1)
    pos = pos if lead else pos[0]
    like = made(lib, x)
    rotation = RoPE(8, pairing=pairing).rotation_mixed(
        made(lib, pos, "int32"), like=like, inv_freq=made(lib, inv_freq)
    )
    assert tuple(rotation.cos.shape) == ((lead or (1,))[0], 3, 6, 4)
    wanted = rotated(x, mixed_angles(pos, inv_freq), pairing)
    np.testing.assert_allclose(lib.to_numpy(rotation.apply(like)), wanted, atol=3e-6)
    swapped = made(lib, np.moveaxis(x, 1, 2))
    found = lib.to_numpy(rotation.apply(swapped, seq_axis=-3))
    np.testing.assert_allclose(np.moveaxis(found, 2, 1), wanted, atol=3e-6)


def test_mixed_takes_floats_and_host_positions(lib: Any) -> None:
    inv_freq = RNG.normal(size=(3, 2, 4)).astype("float32")
    like = made(lib, RNG.normal(size=(1, 3, 6, 8)))
    pos = (PATCHES + 0.5) / 3
    rope = RoPE(8)
    wanted = np.cos(mixed_angles(pos, inv_freq))[None]
    for given in (made(lib, pos, "float32"), pos.tolist()):
        cos = rope.rotation_mixed(given, like=like, inv_freq=made(lib, inv_freq)).cos
        np.testing.assert_allclose(lib.to_numpy(cos), wanted, atol=1e-6)


def test_inverse_of_mixed(lib: Any) -> None:
    like = made(lib, RNG.normal(size=(1, 3, 6, 8)))
    rope = RoPE(8, attention_factor=1.5)
    rotation = rope.rotation_mixed(
        PATCHES.tolist(), like=like, inv_freq=made(lib, RNG.normal(size=(3, 2, 4)))
    )
    back = rotation.inverse().apply(rotation.apply(like))
    np.testing.assert_allclose(lib.to_numpy(back), lib.to_numpy(like), atol=1e-6)


@pytest.mark.library("torch")
def test_mixed_frequencies_have_gradients() -> None:
    import torch

    like = torch.randn(1, 3, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inv_freq = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    pos = torch.tensor(PATCHES + 0.25, requires_grad=True)

    def of(inv_freq: Any, pos: Any) -> Any:
        return RoPE(8).rotation_mixed(pos, like=like, inv_freq=inv_freq).apply(like)

    assert torch.autograd.gradcheck(of, (inv_freq, pos))


@pytest.mark.library("jax")
def test_mixed_under_jit() -> None:
    import jax

    x = jax.numpy.asarray(RNG.normal(size=(1, 3, 6, 8)), "float32")
    inv_freq = jax.numpy.asarray(RNG.normal(size=(3, 2, 4)), "float32")

    def of(x: Any, pos: Any, inv_freq: Any) -> Any:
        return RoPE(8).rotation_mixed(pos, like=x, inv_freq=inv_freq).apply(x)

    eager = of(x, jax.numpy.asarray(PATCHES), inv_freq)
    np.testing.assert_allclose(jax.jit(of)(x, jax.numpy.asarray(PATCHES), inv_freq), eager, atol=1e-6)
    assert jax.grad(lambda w: of(x, jax.numpy.asarray(PATCHES), w)[..., 0].sum())(inv_freq).shape == (3, 2, 4)


@pytest.mark.library("torch")
def test_mixed_compiles() -> None:
    import torch

    x, inv_freq = torch.randn(1, 3, 6, 8), torch.randn(3, 2, 4)
    rope = RoPE(8)

    def of(x: Any, pos: Any, inv_freq: Any) -> Any:
        return rope.rotation_mixed(pos, like=x, inv_freq=inv_freq).apply(x)

    compiled = torch.compile(of, fullgraph=True, backend="aot_eager")
    pos = torch.tensor(PATCHES)
    np.testing.assert_allclose(compiled(x, pos, inv_freq), of(x, pos, inv_freq), atol=1e-6)


@pytest.mark.parametrize(
    ("pos", "shape", "fields", "error", "message"),
    [
        (PATCHES, (2, 4), {}, ShapeError, "heads, coordinates, pairs"),
        (PATCHES, (3, 2, 5), {}, ShapeError, "4 pairs"),
        (PATCHES, (3, 3, 4), {}, ShapeError, "3 coordinates"),
        (PATCHES[0], (3, 2, 4), {}, ShapeError, "coordinates"),
        (PATCHES, (3, 2, 4), {"axes": ra.Axes.chunked(2, 2)}, SpecError, "without axes"),
    ],
    ids=["ndim", "pairs", "coordinates", "one position", "axes"],
)
def test_mixed_refusals(
    pos: Any, shape: tuple[int, ...], fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    like = np.ones((1, 3, 6, 8))
    with pytest.raises(error, match=message):
        RoPE(8, **fields).rotation_mixed(pos, like=like, inv_freq=np.ones(shape))


def test_mixed_frequencies_are_floats_of_the_library() -> None:
    for inv_freq in ([[[1.0] * 4] * 2] * 3, np.ones((3, 2, 4), np.int64), None, 1.0):
        with pytest.raises(ArrayTypeError, match="inv_freq"):
            RoPE(8).rotation_mixed(PATCHES, like=np.ones((1, 3, 6, 8)), inv_freq=inv_freq)


# ---- learned, by coordinate ----


def test_learned_frequencies_with_axes(lib: Any) -> None:
    omegas, pos = np.asarray([1.0, 0.5, 0.25, 0.125]), PATCHES * 3
    axes = ra.Axes((0, 1, 1, 0))
    like = made(lib, RNG.normal(size=(1, 3, 6, 8)))
    rotation = RoPE(8, axes=axes).rotation(made(lib, pos, "int32"), like=like, inv_freq=made(lib, omegas))
    wanted = np.cos(pos[:, [0, 1, 1, 0]] * omegas)
    np.testing.assert_allclose(lib.to_numpy(rotation.cos), wanted, atol=1e-6)


# ---- xPos ----

# (2i + 0.4 d)/(1.4 d) for d = 8 (Sun et al., arXiv 2212.10554; torchscale, flash-attention)
ZETA = np.asarray([0.2857143, 0.4642857, 0.6428571, 0.8214286])


def xpos_oracle(x: np.ndarray, pos: np.ndarray, sign: int, center: float, scale_base: float) -> np.ndarray:
    power = ((pos - center) / scale_base)[:, None]
    zeta = (2 * np.arange(4) + 0.4 * 8) / (1.4 * 8)
    np.testing.assert_allclose(zeta, ZETA, atol=1e-7)
    angle = pos[:, None] * 10000.0 ** (-np.arange(4) / 4)
    a, b = pairs_of(rotated(x, angle, "interleaved"), "interleaved")
    return joined(a * zeta ** (sign * power), b * zeta ** (sign * power), "interleaved")


@pytest.mark.parametrize(("center", "scale_base"), [(0.0, 512.0), (40.0, 64.0)])
def test_xpos(lib: Any, center: float, scale_base: float) -> None:
    pos = np.asarray([0, 3, 40, 90])
    q, k = (RNG.normal(size=(2, 3, 4, 8)).astype("float32") for _ in range(2))
    for given in (made(lib, pos, "int32"), pos.tolist(), made(lib, pos + 0.0, "float32")):
        of_q, of_k = RoPE(8).rotation_xpos(given, like=made(lib, q), scale_base=scale_base, center=center)
        for rotation, x, sign in ((of_q, q, 1), (of_k, k, -1)):
            found = lib.to_numpy(rotation.apply(made(lib, x)))
            wanted = xpos_oracle(x, pos, sign, center, scale_base)
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


def test_xpos_scores_depend_on_the_distance_alone() -> None:
    q, k = RNG.normal(size=(1, 8)), RNG.normal(size=(1, 8))
    rope = RoPE(8, pairing="half")
    scores = []
    for shift in (0, 17, 500):
        of_q, _ = rope.rotation_xpos([20 + shift], like=q)
        _, of_k = rope.rotation_xpos([5 + shift], like=k)
        scores.append(float((of_q.apply(q) * of_k.apply(k)).sum()))
    np.testing.assert_allclose(scores, scores[0], rtol=1e-12)


def test_xpos_stays_right_while_a_cache_grows() -> None:
    """lucidrains rotary-embedding-torch #27: a center in the middle of the sequence moves with each token."""
    rope, k = RoPE(8), RNG.normal(size=(6, 8))
    whole = rope.rotation_xpos(range(6), like=k)[1].apply(k)
    parts = [rope.rotation_xpos([p], like=k)[1].apply(k[p : p + 1]) for p in range(6)]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-15)


def test_inverse_and_adjoint_of_xpos(lib: Any) -> None:
    """The factor differs by position: the inverse divides by it, the adjoint multiplies by it."""
    x = made(lib, RNG.normal(size=(2, 3, 4, 8)))
    for rotation in RoPE(8, attention_factor=1.25, out_pairing="half").rotation_xpos([0, 9, 99, 999], like=x):
        back = lib.to_numpy(rotation.inverse().apply(rotation.apply(x)))
        np.testing.assert_allclose(back, lib.to_numpy(x), atol=2e-6)
        again = lib.to_numpy(rotation.inverse().inverse().apply(x))
        np.testing.assert_allclose(again, lib.to_numpy(rotation.apply(x)), rtol=1e-5, atol=1e-6)
        y = made(lib, RNG.normal(size=(2, 3, 4, 8)))
        left = (lib.to_numpy(rotation.apply(x)) * lib.to_numpy(y)).sum()
        right = (lib.to_numpy(x) * lib.to_numpy(rotation.adjoint().apply(y))).sum()
        np.testing.assert_allclose(left, right, rtol=1e-4)


@pytest.mark.library("torch")
def test_xpos_compiles() -> None:
    import torch

    rope, q = RoPE(8), torch.randn(2, 3, 4, 8)

    def of(q: Any, pos: Any) -> Any:
        of_q, of_k = rope.rotation_xpos(pos, like=q)
        return of_q.apply(q), of_k.apply(q)

    pos = torch.arange(4)
    for found, wanted in zip(
        torch.compile(of, fullgraph=True, backend="aot_eager")(q, pos), of(q, pos), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "call", "message"),
    [
        ({}, {"scale_base": 0.0}, "scale_base"),
        ({}, {"scale_base": float("nan")}, "scale_base"),
        ({}, {"center": float("inf")}, "center"),
        ({}, {"center": "0"}, "center"),
        ({"axes": ra.Axes.chunked(2, 2)}, {}, "axes"),
    ],
    ids=str,
)
def test_xpos_refusals(fields: dict[str, Any], call: dict[str, Any], message: str) -> None:
    pos = [[0, 0], [1, 1]] if fields else [0, 1]
    with pytest.raises(SpecError, match=message):
        RoPE(8, **fields).rotation_xpos(pos, like=np.ones((2, 8)), **call)


def test_learned_frequencies_of_unrotated_pairs(lib: Any) -> None:
    """A pair without a coordinate has the frequency 0, whatever inv_freq has for it."""
    axes, pos = ra.Axes((0, None, 1, None)), PATCHES * 3
    like = made(lib, RNG.normal(size=(1, 3, 6, 8)))
    rope = RoPE(8, axes=axes, inv_freq=(1.0, 2.0, 3.0, 4.0))
    assert rope.frequencies == (1.0, 0.0, 3.0, 0.0)
    given = made(lib, [1.0, 2.0, 3.0, 4.0])
    for rotation in (
        rope.rotation(made(lib, pos, "int32"), like=like),
        RoPE(8, axes=axes).rotation(made(lib, pos, "int32"), like=like, inv_freq=given),
    ):
        np.testing.assert_allclose(lib.to_numpy(rotation.sin)[:, [1, 3]], 0)
        np.testing.assert_allclose(lib.to_numpy(rotation.cos)[:, 2], np.cos(pos[:, 1] * 3.0), atol=1e-5)
    still = RoPE(8, axes=axes, inv_freq=(0.0,) * 4)
    moving = RoPE(8, axes=ra.Axes((0, 0, 1, 0)), inv_freq=(0.0,) * 4)
    assert still._plan != moving._plan  # compiled code is cached by plan


@pytest.mark.parametrize(
    "rule", [ra.Linear(2.0), ra.DynamicNTK(2.0, 64, length=100)], ids=["linear", "dynamic"]
)
def test_learned_frequencies_with_a_rule_are_refused(rule: Any) -> None:
    rope, x = RoPE(8, scaling=rule), np.ones((1, 3, 6, 8))
    with pytest.raises(SpecError, match="scaling=None"):
        rope.rotation(range(6), like=x, inv_freq=np.ones(4))
    with pytest.raises(SpecError, match="scaling=None"):
        rope.rotation_mixed(PATCHES, like=x, inv_freq=np.ones((3, 2, 4)))


def test_mixed_without_a_batch(lib: Any) -> None:
    inv_freq, x = (RNG.normal(size=size).astype("float32") for size in ((3, 2, 4), (3, 6, 8)))
    like = made(lib, x)
    rotation = RoPE(8).rotation_mixed(PATCHES.tolist(), like=like, inv_freq=made(lib, inv_freq))
    wanted = rotated(x, mixed_angles(PATCHES, inv_freq), "interleaved")
    np.testing.assert_allclose(lib.to_numpy(rotation.apply(like)), wanted, atol=3e-6)


def test_xpos_is_inverted_up_to_its_largest_position() -> None:
    """In float32, squares of the tables are 0 or infinite from about position 20,000 on."""
    x = np.ones((1, 8), np.float32)
    for pos in ([30_000], [-30_000]):
        for rotation in RoPE(8).rotation_xpos(pos, like=x):
            back = rotation.inverse().apply(rotation.apply(x))
            np.testing.assert_allclose(back, x, rtol=1e-5)
