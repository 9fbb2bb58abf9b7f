"""bench/roformer/encodings against the papers' formulas, one query, key and head at a time, in float64."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from roformer.encodings import ENCODINGS
from roformer.encodings.t5 import buckets

pytestmark = pytest.mark.library("torch")

B, H, D, LENGTH = 2, 3, 4, 96
BOTH = pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])


def make(name, causal=False, **options):
    """Return an encoding in float64 with every parameter drawn anew, from N(0, 1)."""
    torch.manual_seed(sum(map(ord, name)))
    encoding = ENCODINGS[name](D, H, LENGTH, causal=causal, **options).double()
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter)
    return encoding


def draw(*lengths):
    """Return arrays (B, H, length, D) in float64."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(B, H, n, D, generator=generator, dtype=torch.float64) for n in lengths]


def array(parameter):
    return parameter.detach().numpy()


def close(actual, expected):
    actual = array(actual)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12 * max(1, np.abs(expected).max()))


# The formulas: score(encoding, q, k, h, m, n) of a query q (D,) at m and a key k (D,) at n, in head h.


def dot(encoding, q, k, h, m, n):
    return q @ k / math.sqrt(D)


def sinusoid(pos, width):
    angles = [pos / 10000 ** (2 * (i // 2) / width) for i in range(width)]
    return np.array([math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(angles)])


def of_head(x, h):
    """Return the D features of head h, of a vector of all heads."""
    return x[h * D : (h + 1) * D]


def clip(distance, low, high):
    return min(max(distance, low), high)


def shaw(encoding, q, k, h, m, n, reach=16):
    return q @ (k + array(encoding.keys)[clip(m - n, -reach, reach) + reach]) / math.sqrt(D)


def transformer_xl(encoding, q, k, h, m, n):
    w, u, v = map(array, (encoding.w, encoding.u, encoding.v))
    r = of_head(w @ sinusoid(m - n, H * D), h)
    return (q @ k + q @ r + u[h] @ k + v[h] @ r) / math.sqrt(D)


def bucket(distance, causal, count=32, reach=128):
    """T5's bucket by integers alone: the logarithm's floor is the number of powers that fit."""
    if not causal:
        half = count // 2
        return bucket(abs(distance), True, half, reach) + (half if distance < 0 else 0)
    exact, buckets = count // 2, count - count // 2
    if distance < exact:
        return max(distance, 0)
    # log(d/e)/log(r/e)·w ≥ j is d^w·e^j ≥ r^j·e^w, with e exact buckets, reach r and w wide buckets.
    fits = [j for j in range(1, buckets) if distance**buckets * exact**j >= reach**j * exact**buckets]
    return exact + len(fits)


def t5(encoding, q, k, h, m, n):
    return dot(encoding, q, k, h, m, n) + array(encoding.table)[bucket(m - n, encoding.causal), h]


def tupe_absolute(encoding, q, k, h, m, n):
    p, u_q, u_k = map(array, (encoding.table, encoding.u_q, encoding.u_k))
    return (q @ k + of_head(u_q @ p[m], h) @ of_head(u_k @ p[n], h)) / math.sqrt(2 * D)


def tupe_relative(encoding, q, k, h, m, n):
    bias = array(encoding.relative.table)[bucket(m - n, encoding.causal), h]
    return tupe_absolute(encoding, q, k, h, m, n) + bias


def deberta(encoding, q, k, h, m, n, reach=32):
    def delta(i, j):
        return 0 if i - j <= -reach else 2 * reach - 1 if i - j >= reach else i - j + reach

    p, w_q, w_k = map(array, (encoding.table, encoding.w_q, encoding.w_k))
    k_r, q_r = of_head(w_k @ p[delta(m, n)], h), of_head(w_q @ p[delta(n, m)], h)
    return (q @ k + q @ k_r + k @ q_r) / math.sqrt(3 * D)


def alibi(encoding, q, k, h, m, n):
    slope = [1 / 2**4, 1 / 2**8, 1 / 2**2][h]  # 2 heads: 2^−4, 2^−8; then the first of 4 heads: 2^−2
    return dot(encoding, q, k, h, m, n) - slope * abs(m - n)


def rotated_dot(q, k, distance, frequencies):
    """Return (R_m q)·(R_n k) as RoFormer's eq. 12: the real part of q k* e^(i(m−n)θ), for each pair."""
    q, k = q[::2] + 1j * q[1::2], k[::2] + 1j * k[1::2]
    return (q * k.conj() * np.exp(1j * distance * np.array(frequencies))).real


def thetas(width, base=10000.0):
    return [base ** (-2 * i / width) for i in range(width // 2)]


def rope(encoding, q, k, h, m, n):
    return sum(rotated_dot(q, k, m - n, thetas(D))) / math.sqrt(D)


def rope_linear(encoding, q, k, h, m, n, factor=2.0):
    return sum(rotated_dot(q, k, (m - n) / factor, thetas(len(q)))) / math.sqrt(len(q))


def rope_ntk(encoding, q, k, h, m, n, factor=2.0):
    frequencies = thetas(len(q), 10000.0 * factor ** (len(q) / (len(q) - 2)))
    return sum(rotated_dot(q, k, m - n, frequencies)) / math.sqrt(len(q))


def rope_yarn(encoding, q, k, h, m, n, factor=2.0, original_length=LENGTH / 2):
    # The pair with 32 rotations, and with 1, in the original length (YaRN, the authors' code).
    d = len(q)
    pairs = [d * math.log(original_length / (2 * math.pi * r)) / (2 * math.log(10000)) for r in (32, 1)]
    low, high = max(math.floor(pairs[0]), 0), min(math.ceil(pairs[1]), d - 1)
    ramps = [clip((i - low) / (high - low), 0, 1) for i in range(d // 2)]
    frequencies = [w * (1 - ramp) + w / factor * ramp for w, ramp in zip(thetas(d), ramps, strict=True)]
    temperature = (0.1 * math.log(factor) + 1) ** 2
    return sum(rotated_dot(q, k, m - n, frequencies)) * temperature / math.sqrt(d)


def xpos(encoding, q, k, h, m, n):
    zeta = [(2 * i / D + 0.4) / 1.4 for i in range(D // 2)]
    decay = [z ** ((m - n) / 512) for z in zeta]
    return rotated_dot(q, k, m - n, thetas(D)) @ decay / math.sqrt(D)


SCORES = dict.fromkeys(("none", "sinusoidal", "learned"), dot)
FORMULAS = (shaw, transformer_xl, t5, tupe_absolute, tupe_relative, deberta, alibi)
FORMULAS += (rope, rope_linear, rope_ntk, rope_yarn, xpos)
SCORES |= {formula.__name__.replace("_", "-"): formula for formula in FORMULAS}


def elu_features(encoding, x):
    return np.where(x > 0, x + 1, np.exp(x))


def favor_features(encoding, x):
    x = x / D**0.25
    return np.exp([w @ x - x @ x / 2 for w in array(encoding.omega)])


FEATURES = dict.fromkeys(("linear", "linear-rope"), elu_features)
FEATURES |= dict.fromkeys(("performer", "performer-rope"), favor_features)
ADDED = {
    "sinusoidal": lambda encoding, x, pos: x * math.sqrt(len(x)) + sinusoid(pos, len(x)),
    "learned": lambda encoding, x, pos: x + array(encoding.table.weight)[pos],
}


def test_every_encoding_has_a_formula():
    assert {*SCORES, *FEATURES} == {*ENCODINGS} >= {*ADDED}


@BOTH
@pytest.mark.parametrize("queries", [45, 3], ids=["all-queries", "last-queries"])
@pytest.mark.parametrize("name", SCORES)
def test_scores_are_the_formula(name, queries, causal):
    encoding, keys = make(name, causal), 45  # further apart than shaw and deberta clip
    q, k = draw(queries, keys)
    scores = array(encoding.scores(q, k))
    assert scores.shape == (B, H, queries, keys)
    expected = np.full(scores.shape, np.nan)
    for b, h, s, n in list(np.ndindex(*scores.shape))[::7]:  # every seventh, in all rows and columns
        m = keys - queries + s
        expected[b, h, s, n] = SCORES[name](encoding, array(q)[b, h, s], array(k)[b, h, n], h, m, n)
    chosen = ~np.isnan(expected)
    np.testing.assert_allclose(scores[chosen], expected[chosen], rtol=1e-11, atol=1e-11)


@BOTH
@pytest.mark.parametrize("name", ["none", "shaw"])  # which adds to the values; others inherit the first
def test_attention_is_the_softmax_of_the_scores(name, causal):
    encoding, queries, keys = make(name, causal), 6, 20
    q, k, v = draw(queries, keys, keys)
    keep = torch.ones(B, keys, dtype=torch.bool)
    keep[1, 12:] = keep[0, 2:5] = False
    scores, expected = array(encoding.scores(q, k)), np.zeros((B, H, queries, D))
    for b, h, s in np.ndindex(B, H, queries):
        m = keys - queries + s
        visible = [n for n in range(keys) if keep[b, n] and not (causal and n > m)]
        weights = np.exp(scores[b, h, s, visible])
        for n, weight in zip(visible, weights / weights.sum(), strict=True):
            value = array(v)[b, h, n]
            if name == "shaw":
                value = value + array(encoding.values)[clip(m - n, -16, 16) + 16]
            expected[b, h, s] += weight * value
    close(encoding.attend(q, k, v, keep), expected)


@pytest.mark.parametrize("name", ENCODINGS)
def test_embeddings_get_the_position(name):
    encoding, start = make(name), 7
    x = torch.randn(B, 5, H * D, dtype=torch.float64)
    if name not in ADDED:
        assert torch.equal(encoding.embed(x, start), x)
        return
    expected = np.empty(x.shape)
    for b, s in np.ndindex(B, 5):
        expected[b, s] = ADDED[name](encoding, array(x)[b, s], start + s)
    close(encoding.embed(x, start), expected)


@BOTH
@pytest.mark.parametrize("name", FEATURES)
def test_linear_attention_is_its_quadratic_form(name, causal):
    encoding, queries, keys = make(name, causal), 70, 75  # more than one chunk, and keys before all queries
    q, k, v = draw(queries, keys, keys)
    keep = torch.ones(B, keys, dtype=torch.bool)
    keep[1, 60:] = keep[0, 3:9] = False
    phi_q, phi_k = (np.apply_along_axis(partial(FEATURES[name], encoding), -1, array(x)) for x in (q, k))
    phi_k += getattr(encoding, "eps", 0)
    frequencies = thetas(phi_q.shape[-1])
    # Rows of both chunks, of one batch and head each.
    places = [(b, h, s) for b, h in ((0, 0), (1, 2)) for s in (0, 1, 30, 63, 64, 69)]
    attended, expected = encoding.attend(q, k, v, keep), np.empty((len(places), D))
    for i, (b, h, s) in enumerate(places):
        m, above, below = keys - queries + s, np.zeros(D), 0.0
        for n in (n for n in range(keys) if keep[b, n] and not (causal and n > m)):
            plain = phi_q[b, h, s] @ phi_k[b, h, n]
            rotated = sum(rotated_dot(phi_q[b, h, s], phi_k[b, h, n], m - n, frequencies))
            above += (rotated if name.endswith("rope") else plain) * array(v)[b, h, n]
            below += plain
        expected[i] = above / below
    close(torch.stack([attended[place] for place in places]), expected)


@BOTH
@pytest.mark.parametrize(("count", "reach"), [(32, 128), (16, 50)])
def test_buckets_far_beyond_the_largest_distance(count, reach, causal):
    distances = range(-3 * reach, 3 * reach)
    expected = [bucket(d, causal, count, reach) for d in distances]
    assert buckets(torch.tensor(distances), count, reach, causal).tolist() == expected


def test_performer_estimates_softmax_without_bias():
    torch.manual_seed(0)
    q, k = (0.5 * x for x in draw(3, 3))
    encodings = [ENCODINGS["performer"](D, H, LENGTH).double() for _ in range(1000)]
    estimates = np.array([(e.exponents(q).exp() @ e.exponents(k).exp().mT / 16).numpy() for e in encodings])
    mean, error = estimates.mean(0), estimates.std(0) / math.sqrt(len(estimates))
    expected = np.exp(array(q) @ array(k.mT) / math.sqrt(D))
    assert error.max() < 0.1 * expected.max()
    assert (np.abs(mean - expected) < 5 * error).all()
