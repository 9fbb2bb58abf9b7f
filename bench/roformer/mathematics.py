"""RoFormer's section 3 in numbers: rotations, scores, decay, the base (Su et al., arXiv 2104.09864).

Equations have the paper's numbers. Arrays are float64 with D features, S positions; pair i is the features
2i and 2i + 1, i = 0 .. D/2 − 1.
"""

import math

import numpy as np

import rope_array as ra
from rope_array import plots

BASES = (100.0, 10_000.0)
WIDE, NARROW = 128, 16  # features of a head: of Llama, and of the models that this study trains
FAR = range(100, 100_001)  # distances after the first fall of the score: a high score is a repetition
LINES = ("bound", "equal", "independent")


# ---- rotations ----


def rotate_by_matrix(x, positions):
    """Return R_m x for each row of x (S, D): the product with a block-diagonal matrix (eq. 14 and 15)."""
    return (ra.RoPE(x.shape[-1]).matrix(positions) @ x[..., None])[..., 0]


def rotate_elementwise(x, positions):
    """Return x ⊗ cos mθ + (−x_2, x_1, −x_4, x_3, …) ⊗ sin mθ for each row of x (S, D) (eq. 34)."""
    rotation = ra.RoPE(x.shape[-1]).rotation(positions, like=x)
    cos, sin = (np.repeat(table, 2, axis=-1) for table in (rotation.cos, rotation.sin))
    swapped = np.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)
    return x * cos + swapped * sin


def rotate_complex(x, positions):
    """Return each pair of x (S, D), as a complex number, times exp(i mθ) (eq. 12)."""
    rotation = ra.RoPE(x.shape[-1]).rotation(positions, like=x)
    rotated = (x[..., ::2] + 1j * x[..., 1::2]) * (rotation.cos + 1j * rotation.sin)
    return np.stack([rotated.real, rotated.imag], axis=-1).reshape(x.shape)


# ---- scores ----


def score(q, k, m, n):
    """Return (R_m q)·(R_n k) of the vectors q, k (D,): the left side of eq. 16."""
    return float(ra.apply(q, m) @ ra.apply(k, n))


def relative_score(q, k, offset):
    """Return q·(R_{n−m} k) of the vectors q, k (D,), offset = n − m: the right side of eq. 16."""
    return float(q @ ra.apply(k, offset))


def score_bound(q, k, offset):
    """Return the bound of |q·(R_{n−m} k)| by partial sums S_i of exp(i(m−n)θ) (eq. 35 to 37).

    Abel's transformation writes the score as sums S_i times differences of h_i = q_i k_i*, with the pairs of
    q and k as complex numbers, and h_{D/2} = 0.
    """
    h = (q[::2] + 1j * q[1::2]) * (k[::2] - 1j * k[1::2])
    steps = np.abs(np.diff(h, append=0.0))
    rotation = ra.RoPE(len(q)).rotation(-offset, like=q)
    partial_sums = np.cumsum(rotation.cos + 1j * rotation.sin)
    return float(steps.max() * np.abs(partial_sums).sum())


def decay_lines(head_dim, furthest):
    """Return figure 2 and the mean |score|, by the names of LINES, at distances 0 .. furthest, relative to 0.

    The score of independent q and k does not decay: only scores of similar q and k do. See `plots.decay`.
    """
    rope = ra.RoPE(head_dim)
    return {
        name: np.asarray(plots.decay(rope, furthest=furthest, lines=[name]).lines[0].get_ydata())
        for name in LINES
    }


# ---- the base ----


def wavelengths(head_dim, base):
    """Return the positions (D/2,) in which each pair rotates once: 2π/θ_i."""
    return 2 * math.pi / np.array(ra.RoPE(head_dim, base=base).frequencies)


def equal_scores(head_dim, base, distances):
    """Return scores of q = k, all ones, at distances, divided by the score at 0: the mean of cos nθ_i."""
    units = np.ones((len(distances), head_dim))
    return ra.RoPE(head_dim, base=base).apply(units, distances).sum(-1) / head_dim


# ---- tutorials ----


def get_rotary_matrix(context_window, embedding_dim, first_position=1):
    """Return matrices R_m (S, D, D), as the function of this name in tutorials of Llama does.

    Its exponent is −2(i − 1)/D, as in the paper's section 3.2.2, with i from 0 instead of 1:
    every frequency is 10000^(2/D) times the paper's. R[0] has the first position: 1 or, in many copies, 0.
    """
    matrices = np.zeros((context_window, embedding_dim, embedding_dim))
    for index in range(context_window):
        for i in range(embedding_dim // 2):
            angle = (first_position + index) * 10000.0 ** (-2.0 * (i - 1) / embedding_dim)
            cos, sin = math.cos(angle), math.sin(angle)
            matrices[index, 2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = (cos, -sin), (sin, cos)
    return matrices


def rotate_rows(x, matrices):
    """Return x_m @ R_m for each row of x (S, D), as tutorials do: R_mᵀ x_m, the inverse rotation.

    Scores then depend on n − m alone, with the opposite sign: (R_mᵀ q)·(R_nᵀ k) = q·(R_{m−n} k). A model
    learns this as well as RoPE, because R_mᵀ = P R_m P with P = `reflect`: RoPE of P q, P k has these scores.
    """
    return (x[:, None, :] @ matrices)[:, 0]


def reflect(x):
    """Return P x, the rows of x (S, D) with the second feature of each pair negated."""
    return x * np.tile((1.0, -1.0), x.shape[-1] // 2)
