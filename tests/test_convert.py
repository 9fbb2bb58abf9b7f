"""Conversion of pairings, judged by index loops and by scores; K-shift, judged by the definition."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from compare import words
from test_errors import refused

import rope_array as ra
from rope_array import convert
from rope_array.testing import apply_definition, rotation_matrix
from rope_array.testing._contract import assert_contract

pytestmark = pytest.mark.neutral

PAIRINGS = ("interleaved", "half")
OTHER = {"interleaved": "half", "half": "interleaved"}
# A whole head, partial rotary, a slice that starts late (MLA) or in the middle, and nothing rotated.
SLICES = [
    {},
    {"rotary_dim": 6},
    {"rotary_start": 2},
    {"rotary_start": 2, "rotary_dim": 4},
    {"rotary_dim": 2},
    {"rotary_dim": 0},
]
D, INPUTS = 8, 5
BLOCKS = ra.Axes.axial(4, 4, blocks=True)


def pair(pairing, i, width):
    """Return the two features of pair i, counted from the first rotated feature."""
    return (2 * i, 2 * i + 1) if pairing == "interleaved" else (i, i + width // 2)


def converted_row(row, rope, to):
    """Move one head's features, pair by pair in each block."""
    out = list(row)
    blocks = rope.axes.blocks if rope.axes else 1
    width = rope.rotary_dim // blocks
    for block, i in itertools.product(range(blocks), range(width // 2)):
        first = rope.rotary_start + block * width
        for a, b in zip(pair(rope.pairing, i, width), pair(to, i, width), strict=True):
            out[first + b] = row[first + a]
    return out


def converted(w, rope, to):
    """Move the rows of whole heads, head by head."""
    rows = [converted_row([*w[i : i + D]], rope, to) for i in range(0, len(w), D)]
    return np.asarray([row for head in rows for row in head]).reshape(w.shape)


def numbers(shape, dtype=np.float32, seed=0):
    """Return an array of distinct integers that float16 holds exactly."""
    return np.random.default_rng(seed).permutation(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def same(lib, got, want):
    np.testing.assert_array_equal(lib.to_numpy(got), want)


# ---- weights ----


def test_by_hand(lib):
    """Compare with indices written out: two heads of six features, of which four are rotated."""
    half = [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]
    interleaved = [0, 2, 1, 3, 4, 5, 10, 12, 11, 13, 14, 15]
    rope = ra.RoPE(6, rotary_dim=4, pairing="half")
    same(lib, convert.weights(lib.asarray(np.asarray(half, np.int32)), rope, "interleaved"), interleaved)
    # With four rotated features both directions are one permutation; with eight they differ.
    rope = ra.RoPE(8, pairing="half")
    x = lib.asarray(np.arange(8, dtype=np.int32))
    same(lib, convert.weights(x, rope, "interleaved"), [0, 4, 1, 5, 2, 6, 3, 7])
    same(lib, convert.weights(x, ra.RoPE(8), "half"), [0, 2, 4, 6, 1, 3, 5, 7])


@pytest.mark.parametrize("spec", [*SLICES, {"axes": BLOCKS}], ids=words)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("heads", [1, 3])
def test_weights_of_every_layout(lib, spec, pairing, heads):
    rope, to = ra.RoPE(D, pairing=pairing, **spec), OTHER[pairing]
    w = numbers((heads * D, INPUTS))
    want = converted(w, rope, to)
    layouts = [
        (w, want, 0),  # PyTorch
        (w[:, 0], want[:, 0], 0),  # a bias
        (w.T, want.T, -1),  # Flax
        (w.T.reshape(INPUTS, heads, D), want.T.reshape(INPUTS, heads, D), -1),
        (w[:, 0].reshape(heads, D), want[:, 0].reshape(heads, D), 1),
        (w.reshape(1, heads * D, INPUTS), want.reshape(1, heads * D, INPUTS), -2),
    ]
    for given, wanted, axis in layouts:
        array = lib.asarray(np.ascontiguousarray(given))
        got = convert.weights(array, rope, to, axis=axis)
        assert type(got) is type(array)
        assert got.dtype == array.dtype
        assert tuple(got.shape) == given.shape
        same(lib, got, wanted)


@pytest.mark.parametrize("spec", SLICES, ids=words)
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_a_round_trip_is_the_identity_to_the_bit(lib, float_dtype, spec, pairing):
    rope = ra.RoPE(D, pairing=pairing, **spec)
    values = numbers((2 * D, INPUTS)).astype(np.float32)
    values[3:5, 1:3] = [[np.nan, -0.0], [np.inf, -np.inf]]
    w = lib.asarray(values) if float_dtype == "float32" else lib.asarray(values, float_dtype)
    there = convert.weights(w, rope, OTHER[pairing], num_heads=2)
    back = convert.weights(there, replace(rope, pairing=OTHER[pairing]), pairing, num_heads=2)
    assert back.dtype == w.dtype
    assert lib.to_numpy(back).tobytes() == lib.to_numpy(w).tobytes()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "bool"])
def test_quantised_weights_and_masks(lib, dtype):
    """A conversion only moves elements, so any dtype works."""
    values = numbers((2 * D,), np.int32)
    values = values % 2 == 0 if dtype == "bool" else values.astype(dtype)
    rope = ra.RoPE(D)
    w = lib.asarray(values)
    got = convert.weights(w, rope, "half")
    assert got.dtype == w.dtype
    same(lib, got, converted(values, rope, "half"))


@pytest.mark.library("torch", "jax")
def test_8_bit_floats(lib):
    values = numbers((2 * D,), np.uint8)
    rope = ra.RoPE(D)
    if lib.name == "torch":
        import torch

        w = torch.tensor(values).view(torch.float8_e4m3fn)
        got = convert.weights(w, rope, "half").view(torch.uint8).numpy()
    else:
        import ml_dtypes

        w = lib.asarray(values.view(ml_dtypes.float8_e4m3fn))
        got = np.asarray(convert.weights(w, rope, "half")).view(np.uint8)
    np.testing.assert_array_equal(got, converted(values, rope, "half"))


def test_converting_to_the_pairing_of_the_rope_changes_nothing(lib):
    """Updating the rope after a conversion prevents a second conversion (transformers#25199)."""
    rope = ra.RoPE(D, pairing="interleaved")
    w = lib.asarray(numbers((2 * D, INPUTS)))
    once = convert.weights(w, rope, "half")
    twice = convert.weights(once, replace(rope, pairing="half"), "half")
    assert twice is not once
    same(lib, twice, lib.to_numpy(once))
    assert not np.array_equal(lib.to_numpy(once), lib.to_numpy(w))


CALLS = {
    "weights": lambda w, to: convert.weights(w, ra.RoPE(2, pairing="half"), to),
    "rotary_dim=0": lambda w, to: convert.weights(w, ra.RoPE(4, rotary_dim=0), to),
    "fused": lambda w, to: convert.fused(w, ra.RoPE(2, pairing="half"), to, num_heads=2, order="qg"),
    "keys": lambda w, to: convert.keys(w, ra.RoPE(8, pairing="half", rotary_dim=2), to),
    "shift_keys": lambda w, to: convert.shift_keys(w, 0, ra.RoPE(8, rotary_dim=0)),
    "rerotate": lambda w, to: convert.rerotate(w, 0, ra.RoPE(8, rotary_dim=0), ra.RoPE(8, rotary_dim=0)),
}


@pytest.mark.parametrize("to", PAIRINGS)
@pytest.mark.parametrize("name", CALLS)
def test_inputs_are_neither_written_nor_aliased(lib, name, to):
    """A head of two features has one order in both pairings, so that no reordering copies it."""
    values = numbers((8, 8))
    w = lib.asarray(values.copy())
    got = CALLS[name](w, to)
    assert got is not w
    assert not lib.shares_memory(got, w)
    same(lib, w, values)
    if lib.name in ("numpy", "torch"):
        kept = lib.to_numpy(got).copy()
        w[...] = 7
        same(lib, got, kept)


def test_permutation_agrees_with_the_matrices():
    for spec, pairing, to in itertools.product([*SLICES, {"axes": BLOCKS}], PAIRINGS, PAIRINGS):
        rope = ra.RoPE(D, pairing=pairing, **spec)
        source = convert.permutation(rope, to)
        assert type(source) is tuple
        assert [*source] == converted_row(range(D), rope, to)
        same_by_matrix = replace(rope, out_pairing=to).matrix((0, 0) if rope.axes else 0)
        np.testing.assert_array_equal(np.eye(D)[[*source]], same_by_matrix)
        if not rope.axes:
            exact = rotation_matrix(0, head_dim=D, pairing=pairing, out_pairing=to, **spec)
            np.testing.assert_array_equal(np.eye(D)[[*source]], exact)


# ---- scores ----


def fields_of(rope):
    names = ("base", "rotary_dim", "rotary_start", "pairing", "out_pairing", "inv_freq", "attention_factor")
    return {name: getattr(rope, name) for name in names}


class Attention:
    """Projections of q and k with biases and per-head norms: the scores by the definition, in float64."""

    def __init__(self, rope, heads=4, kv_heads=2, tokens=3, seed=0):
        rng = np.random.default_rng(seed)
        self.rope, self.heads, self.kv_heads = rope, heads, kv_heads
        self.x = rng.standard_normal((tokens, INPUTS))
        self.pos = rng.integers(-1000, 100_000, tokens)
        self.q, self.k = (rng.standard_normal((n * D, INPUTS)) for n in (heads, kv_heads))
        self.q_bias, self.k_bias = (rng.standard_normal(n * D) for n in (heads, kv_heads))
        self.q_norm, self.k_norm = rng.standard_normal((2, D))

    def rotated(self, name, heads):
        y = self.x @ getattr(self, name).T + getattr(self, f"{name}_bias")
        y = y.reshape(len(self.x), heads, D)
        y = y / np.sqrt((y**2).mean(-1, keepdims=True)) * getattr(self, f"{name}_norm")
        rope = self.rope
        if rope.axes:  # the definition has no axes
            pos = np.stack([self.pos % 50, self.pos % 31], axis=-1)
            return rope.apply(y, pos, seq_axis=0)
        matrix = rotation_matrix(self.pos, head_dim=D, **fields_of(rope))
        return np.einsum("tij,thj->thi", matrix, y)

    def scores(self):
        q, k = self.rotated("q", self.heads), self.rotated("k", self.kv_heads)
        k = np.repeat(k, self.heads // self.kv_heads, axis=1)
        return np.einsum("thd,shd->hts", q, k)

    def convert(self, lib, to):
        dtype = "float64" if "float64" in lib.dtypes else "float32"
        for name, heads in {"q": self.heads, "k": self.kv_heads, "q_norm": 1, "k_norm": 1}.items():
            for full in (name, f"{name}_bias") if len(name) == 1 else (name,):
                w = lib.asarray(getattr(self, full).astype(dtype))
                setattr(self, full, lib.to_numpy(convert.weights(w, self.rope, to, num_heads=heads)))
        self.rope = replace(self.rope, pairing=to)

    def rounded(self, lib):
        """Round the weights to float32 if the library has no float64."""
        if "float64" not in lib.dtypes:
            for name in ("q", "k", "q_bias", "k_bias", "q_norm", "k_norm"):
                setattr(self, name, getattr(self, name).astype(np.float32).astype(np.float64))
        return self


SCORED = [
    *SLICES,
    {"attention_factor": 1.3},
    {"base": 500.0},
    {"out_pairing": "half"},
    {"out_pairing": "interleaved"},
    {"axes": BLOCKS},
    {"axes": ra.Axes.axial(4, 4)},
]


@pytest.mark.parametrize("spec", SCORED, ids=words)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_scores_are_unchanged(lib, spec, pairing, kv_heads):
    """Scores change if features are not moved, moved twice, or moved in wrong heads or outside the slice.

    Reported in transformers#25199, #39687, PR #47403; llama.cpp#7481; for partial rotary, PR #48652.
    """
    model = Attention(ra.RoPE(D, pairing=pairing, **spec), kv_heads=kv_heads).rounded(lib)
    before, weight = model.scores(), model.q
    model.convert(lib, OTHER[pairing])
    np.testing.assert_allclose(model.scores(), before, rtol=1e-12, atol=1e-12 * np.abs(before).max())
    if model.rope.rotary_dim > 2:
        assert not np.array_equal(model.q, weight)
        model.rope = replace(model.rope, pairing=pairing)
        assert np.abs(model.scores() - before).max() > 1e-3  # scores differ between pairings


def test_an_explicit_out_pairing_keeps_a_cache_valid(lib):
    """Half pairs throughout write the same keys as interleaved pairs in and half pairs out."""
    deepseek = ra.RoPE(D, pairing="interleaved", out_pairing="half")
    w, x = numbers((D, INPUTS)) / 8, numbers((3, INPUTS)) / 8
    after = lib.to_numpy(convert.weights(lib.asarray(w), deepseek, "half"))
    rope = replace(deepseek, pairing="half")
    np.testing.assert_allclose(
        rope.apply(x @ after.T, range(3)), deepseek.apply(x @ w.T, range(3)), rtol=1e-5
    )


@pytest.mark.parametrize("out_pairing", [None, *PAIRINGS])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("to", PAIRINGS)
def test_cached_keys_are_in_the_pairing_that_was_written(lib, out_pairing, pairing, to):
    rope = ra.RoPE(D, pairing=pairing, out_pairing=out_pairing, rotary_dim=6)
    x = numbers((2, 3, D)) / 8
    by = {"backend": "array-api"}  # its bits do not depend on the pairing
    got = convert.keys(lib.asarray(rope.apply(x, range(3), **by)), rope, to)
    same(lib, got, replace(rope, out_pairing=to).apply(x, range(3), **by))


# ---- fused projections ----

# Groups, order, heads of q, heads of k and v, by model (Hugging Face's modelling files).
FUSED = {
    "phi3": (1, "qkv", 4, 2),
    "gpt_neox, falcon-rw, persimmon": (4, "qkv", 4, 4),
    "falcon, multi-query": (1, "qkv", 4, 1),
    "falcon, new architecture": (2, "qkv", 4, 2),
    "codegen": (2, "qvk", 4, 4),
    "two devices, each fused by itself": (2, "qkv", 8, 4),
    "qwen3_next, q with its gate": (4, "qg", 4, 2),
    "a gate in each group": (2, "qgkv", 4, 2),
    "keys and values": (1, "kv", 4, 2),
    "keys first": (2, "vkq", 4, 2),
    "v of its own width": (2, "qkv", 4, 2),
}
WITH_NARROW_V = "v of its own width"


def heads_of(name, kv, q, width, inputs):
    count = kv if name in "kv" else q
    return numbers((count, width, inputs), seed="qkvg".index(name))


def assembled(heads, order, groups):
    """Rows of a fused projection: group after group, part after part, head after head."""
    rows = []
    for group, name in itertools.product(range(groups), order):
        share = len(heads[name]) // groups
        for head in heads[name][group * share : (group + 1) * share]:
            rows.extend(head)
    return np.asarray(rows)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_fused_projections(lib, name, pairing):
    groups, order, q, kv = FUSED[name]
    v_head_dim = 3 if name == WITH_NARROW_V else None
    rope, to = ra.RoPE(D, pairing=pairing, rotary_dim=6), OTHER[pairing]
    widths = {n: (v_head_dim or D) if n == "v" else D for n in order}
    heads = {n: heads_of(n, kv, q, widths[n], INPUTS) for n in order}
    moved = {n: [converted(h, rope, to) for h in heads[n]] if n in "qk" else heads[n] for n in order}
    given, wanted = assembled(heads, order, groups), assembled(moved, order, groups)
    options = {"num_heads": q, "num_kv_heads": kv, "order": order, "groups": groups, "v_head_dim": v_head_dim}
    for w, want, axis in ((given, wanted, 0), (given[:, 0], wanted[:, 0], 0), (given.T, wanted.T, -1)):
        array = lib.asarray(np.ascontiguousarray(w))
        got = convert.fused(array, rope, to, axis=axis, **options)
        assert got.dtype == array.dtype
        same(lib, got, want)
        back = convert.fused(got, replace(rope, pairing=to), pairing, axis=axis, **options)
        same(lib, back, w)


def test_fused_defaults_to_one_group_in_the_order_q_k_v(lib):
    w = numbers((3 * 2 * D, INPUTS))
    rope = ra.RoPE(D)
    want = np.concatenate([converted(w[: 4 * D], rope, "half"), w[4 * D :]])
    same(lib, convert.fused(lib.asarray(w), rope, "half", num_heads=2), want)


# ---- K-shift ----


def rotated_by_definition(x, pos, rope, seq_axis=-2):
    return apply_definition(x.astype(np.float64), pos, seq_axis=seq_axis, **fields_of(rope))


def close(lib, got, want, ulps=8):
    dtype = lib.to_numpy(got).dtype
    np.testing.assert_allclose(
        lib.to_numpy(got), want, rtol=0, atol=ulps * np.finfo(dtype).eps * np.abs(want).max()
    )


SHIFTED = [
    *({"pairing": p, **s} for s in SLICES for p in PAIRINGS),
    {"attention_factor": 1.5},
    {"attention_factor": 0.25, "rotary_dim": 4, "rotary_start": 2, "pairing": "half"},
    {"pairing": "interleaved", "out_pairing": "half"},
    {"pairing": "half", "out_pairing": "interleaved", "attention_factor": 1.5, "rotary_dim": 6},
    {"inv_freq": (1.0, 0.1, 0.01, 0.0), "pairing": "half"},
]


@pytest.mark.parametrize("spec", SHIFTED, ids=words)
def test_shifted_keys_are_rotated_to_the_new_positions(lib, spec):
    """A shift changes neither the amplitude, nor the unrotated features, nor the order of pairs.

    Reported in llama.cpp PR #4889, #13870: context shift with an amplitude.
    """
    rope = ra.RoPE(D, **spec)
    raw = np.random.default_rng(0).standard_normal((2, 3, 5, D)).astype(np.float32)
    pos = np.arange(5) + 1000
    cached = lib.asarray(rope.apply(raw, pos))
    for delta in (-990, 0, 1, 123_456):
        close(lib, convert.shift_keys(cached, delta, rope), rotated_by_definition(raw, pos + delta, rope))


def test_deltas_of_sequences_and_tokens(lib):
    rope = ra.RoPE(D, attention_factor=2.0, pairing="half")
    raw = np.random.default_rng(0).standard_normal((2, 5, 3, D)).astype(np.float32)
    pos = np.arange(5) + 100
    cached = lib.asarray(rope.apply(raw, pos, seq_axis=-3))
    for delta in ([[-3], [40]], [0, 0, -1, -1, -2], [[0, 0, -1, -1, -2], [7, 6, 5, 4, 3]]):
        for given in (delta, lib.asarray(np.asarray(delta, np.int32))):
            got = convert.shift_keys(cached, given, rope, seq_axis=-3)
            close(lib, got, rotated_by_definition(raw, pos + np.asarray(delta), rope, -3))


def test_a_shift_is_one_rotation_within_the_contract(lib, float_dtype):
    """The shift rotates the cached keys by delta, with amplitude 1, and rounds once."""
    rope = ra.RoPE(D, attention_factor=1.5, pairing="half", out_pairing="interleaved")
    cached = lib.asarray(np.random.default_rng(0).standard_normal((3, 5, D)).astype(np.float32), float_dtype)
    got = convert.shift_keys(cached, -7, rope)
    assert got.dtype == cached.dtype
    assert_contract(lib.to_numpy(got), lib.to_numpy(cached), -7, dtype=float_dtype, pairing="interleaved")


def test_all_layers_at_once(lib):
    rope = ra.RoPE(D, attention_factor=1.5)
    layers = tuple(lib.asarray(numbers((2, 3, D), seed=i)) for i in range(3))
    for many, one in (
        (convert.shift_keys(layers, 5, rope), lambda k: convert.shift_keys(k, 5, rope)),
        (
            convert.rerotate(layers, range(3), rope, replace(rope, base=50.0)),
            lambda k: convert.rerotate(k, range(3), rope, replace(rope, base=50.0)),
        ),
    ):
        assert type(many) is tuple
        for got, k in zip(many, layers, strict=True):
            same(lib, got, lib.to_numpy(one(k)))


@pytest.mark.parametrize(
    "axes", [ra.Axes.chunked(1, 2, 1), ra.Axes.axial(4, 4), BLOCKS, ra.Axes([0, None, 1, 1])], ids=words
)
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_shifts_along_several_axes(lib, axes, pairing):
    rope = ra.RoPE(D, axes=axes, pairing=pairing, attention_factor=1.5)
    rng = np.random.default_rng(0)
    raw, pos = rng.standard_normal((2, 5, D)), rng.integers(0, 1000, (5, axes.count))
    cached = lib.asarray(rope.apply(raw, pos).astype(np.float32))
    for delta in (np.arange(axes.count) - 50, rng.integers(-99, 99, (5, axes.count))):
        close(lib, convert.shift_keys(cached, delta.tolist(), rope), rope.apply(raw, pos + delta))


RULES = [
    ra.Linear(4.0),
    ra.YaRN(factor=8.0, original_max_position_embeddings=32),
    ra.YaRN(factor=8.0, original_max_position_embeddings=32, attention_factor=3.0),
    ra.Llama3(factor=8.0, original_max_position_embeddings=32),
    ra.DynamicNTK(factor=2.0, max_position_embeddings=32),
    ra.LongRoPE((1.0, 1.5, 2.0, 3.0), (2.0, 4.0, 8.0, 16.0), original_max_position_embeddings=32, factor=8.0),
]


@pytest.mark.parametrize("rule", RULES, ids=words)
def test_a_shift_takes_no_amplitude_of_a_rule(lib, rule):
    """YaRN and LongRoPE have an amplitude, which the cached keys already contain."""
    rope = ra.RoPE(D, pairing="half", scaling=rule).at_length(100)
    raw = np.random.default_rng(0).standard_normal((2, 5, D))
    cached = lib.asarray(rope.apply(raw, np.arange(5) + 60).astype(np.float32))
    close(lib, convert.shift_keys(cached, -60, rope), rope.apply(raw, range(5)))


def test_shift_rope_keeps_frequencies_and_has_amplitude_1():
    for rule in RULES:
        rope = ra.RoPE(D, scaling=rule, out_pairing="half").at_length(100)
        shift = convert.shift_rope(rope)
        assert (shift.pairing, shift.out_pairing, shift.amplitude) == ("half", None, 1.0)
        assert shift.frequencies == rope.frequencies


# ---- other frequencies ----


def test_rerotated_keys_equal_keys_of_the_new_rope(lib):
    raw = np.random.default_rng(0).standard_normal((2, 5, D))
    ropes = [
        ra.RoPE(D, attention_factor=1.5),
        ra.RoPE(D, base=50.0, rotary_dim=6, out_pairing="half"),
        ra.RoPE(D, rotary_dim=0),
        ra.RoPE(D, rotary_start=4, attention_factor=0.5),
    ]
    for old, new in itertools.permutations(ropes, 2):
        cached = lib.asarray(old.apply(raw, range(100, 105)).astype(np.float32))
        got = convert.rerotate(cached, range(100, 105), old, new)
        close(lib, got, rotated_by_definition(raw, range(100, 105), new), ulps=16)


@pytest.mark.parametrize("rule", RULES[-2:], ids=["DynamicNTK", "LongRoPE"])
def test_a_cache_at_another_length(lib, rule):
    """Keys for one length and a query for another mix two rotations (transformers#25104, PR #33129)."""
    rope = ra.RoPE(D, pairing="half", scaling=rule)
    old, new = rope.at_length(20), rope.at_length(100)
    raw = np.random.default_rng(0).standard_normal((2, 20, D))
    cached = lib.asarray(old.apply(raw, range(20)).astype(np.float32))
    close(lib, convert.rerotate(cached, range(20), old, new), new.apply(raw, range(20)), ulps=16)
    assert np.abs(lib.to_numpy(cached) - new.apply(raw, range(20))).max() > 0.1


def test_rerotated_positions_by_sequence(lib):
    old, new = ra.RoPE(D, attention_factor=1.5), ra.RoPE(D, base=50.0)
    raw = np.random.default_rng(0).standard_normal((2, 5, 3, D))
    pos = np.arange(10).reshape(2, 5)
    cached = lib.asarray(old.apply(raw, pos, seq_axis=1).astype(np.float32))
    got = convert.rerotate(cached, pos.tolist(), old, new, seq_axis=1)
    close(lib, got, new.apply(raw, pos, seq_axis=1), ulps=16)


HALF_ULP = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def test_rerotated_half_precision_is_rounded_once(lib, float_dtype):
    old, new = ra.RoPE(64, attention_factor=1.5), ra.RoPE(64, base=50.0)
    values = np.random.default_rng(0).standard_normal((100, 64)).astype(np.float32)
    cached = lib.asarray(values, float_dtype)
    got = convert.rerotate(cached, range(100), old, new)
    assert got.dtype == cached.dtype
    if float_dtype in HALF_ULP:
        exact = new.apply(
            old.apply(lib.to_numpy(cached).astype(np.float64), range(100), inverse=True), range(100)
        )
        error = np.abs(lib.to_numpy(got).astype(np.float64) - exact)
        assert (error <= HALF_ULP[float_dtype] * np.abs(exact) + 1e-6).all()


# ---- tracing, gradients, laziness ----


def functions(rope):
    """All conversions in one function of a (2D, 2D) array."""
    shift = convert.shift_rope(rope)
    new = replace(rope, base=50.0)

    def f(w):
        w = convert.weights(w, rope, "half", num_heads=2)
        w = convert.fused(w, rope, "half", num_heads=1, order="qg", axis=-1)
        k = convert.keys(w[:, :D], rope, "half")
        return shift.apply(convert.rerotate(k, range(2 * D), rope, new), -3)

    return f


@pytest.mark.library("jax", "torch")
def test_under_tracing(lib):
    f = functions(ra.RoPE(D, rotary_dim=6, attention_factor=1.5))
    w = lib.asarray(numbers((2 * D, 2 * D)) / 64)
    if lib.name == "torch":
        import torch

        traced = torch.compile(f, fullgraph=True, backend="eager")
    else:
        traced = lib.traced(f)
    np.testing.assert_allclose(lib.to_numpy(traced(w)), lib.to_numpy(f(w)), rtol=1e-5, atol=1e-6)


@pytest.mark.library("jax", "torch")
def test_gradients_are_moved_back(lib):
    rope = ra.RoPE(D, rotary_dim=6)
    w, cotangent = (lib.asarray(numbers((2 * D, INPUTS), seed=s)) for s in (0, 1))
    got = lib.gradient(lambda w: convert.weights(w, rope, "half"), w, cotangent)
    same(lib, got, lib.to_numpy(convert.weights(cotangent, replace(rope, pairing="half"), "interleaved")))


@pytest.mark.library("dask")
def test_dask_stays_lazy(lib):
    import dask.array as da

    values = numbers((6 * D, INPUTS))
    rope = ra.RoPE(D, rotary_dim=6)
    for chunks in (-1, D, 2 * D, (5, 2)):
        w = da.from_array(values, chunks=chunks)
        for got, want in (
            (convert.weights(w, rope, "half"), converted(values, rope, "half")),
            (
                convert.fused(w, rope, "half", num_heads=2),
                np.concatenate([converted(values[: 4 * D], rope, "half"), values[4 * D :]]),
            ),
        ):
            assert lib.is_lazy(got)
            same(lib, got, want)
    keys = lib.poisoned(da.from_array(values.reshape(3, 2 * D, INPUTS)[..., :4], chunks=(1, 4, 2)))
    rope = ra.RoPE(4, attention_factor=1.5)
    convert.shift_keys(keys, 3, rope)
    convert.rerotate(keys, 3, rope, replace(rope, base=2.0))
    convert.keys(keys, rope, "half")


@pytest.mark.library("dask")
def test_dask_of_unknown_sizes_is_refused(lib):
    import dask.array as da

    w = da.ones((8, 4), chunks=2)
    w = w[w[:, 0] > 0]
    refused(ra.ShapeError, ["unknown"], lambda: convert.weights(w, ra.RoPE(4), "half"))


@pytest.mark.library("torch")
def test_torch_under_autocast_fake_and_parameters():
    import torch
    from torch._subclasses import FakeTensorMode

    rope = ra.RoPE(D, rotary_dim=6)
    values = numbers((2 * D, INPUTS))
    for dtype in (torch.bfloat16, torch.float32):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = convert.weights(torch.tensor(values, dtype=dtype), rope, "half")
        assert got.dtype == dtype
        np.testing.assert_array_equal(got.float().numpy(), converted(values, rope, "half"))
    tensor = torch.tensor(values)
    assert convert.weights(torch.nn.Parameter(tensor), rope, "half").requires_grad
    fake = FakeTensorMode().from_tensor(tensor)
    assert convert.weights(fake, rope, "half").shape == (2 * D, INPUTS)
    assert convert.weights(torch.empty(2 * D, device="meta"), rope, "half").device.type == "meta"


class TestNumPyMemory:
    """Memory layouts that only NumPy has."""

    ROPE = ra.RoPE(D, rotary_dim=6)

    def test_strides_and_byte_order(self):
        values = numbers((2 * D, INPUTS))
        want = converted(values, self.ROPE, "half")
        big = np.zeros((4 * D, 2 * INPUTS), np.float32)
        big[::2, ::-2] = values
        for w in (big[::2, ::-2], np.asfortranarray(values), values.astype(">f4"), values.astype(">i2")):
            got = convert.weights(w, self.ROPE, "half", num_heads=2)
            assert got.dtype == w.dtype
            assert got.dtype.byteorder == w.dtype.byteorder
            np.testing.assert_array_equal(got, want)

    def test_read_only(self):
        values = numbers((2 * D,))
        values.flags.writeable = False
        assert convert.weights(values, self.ROPE, "half").flags.writeable

    def test_no_heads_and_no_inputs(self):
        for shape in ((0, INPUTS), (2 * D, 0)):
            assert convert.weights(np.ones(shape), self.ROPE, "half").shape == shape


# ---- refusals ----

ROPE = ra.RoPE(D)
W = np.ones((2 * D, INPUTS))


def weights(**options):
    return lambda: convert.weights(W, ROPE, "half", **options)


def fused(**options):
    return lambda: convert.fused(W, ROPE, "half", **options)


HEADS = {"num_heads": 4, "num_kv_heads": 2}
REFUSALS = [
    (ra.SpecError, ["to is 'neox'", "'half'"], lambda: convert.weights(W, ROPE, "neox")),
    (ra.SpecError, ["to is 2"], lambda: convert.permutation(ROPE, 2)),
    (ra.SpecError, ["rope is 8", "RoPE"], lambda: convert.weights(W, 8, "half")),
    (ra.SpecError, ["rope is", "RoPE"], lambda: convert.shift_keys(W, 1, "half")),
    (ra.SpecError, ["to_rope is"], lambda: convert.rerotate(np.ones((2, D)), 1, ROPE, 1e6)),
    (ra.SpecError, ["num_heads is 0"], weights(num_heads=0)),
    (ra.SpecError, ["num_heads is 2.0"], weights(num_heads=2.0)),
    (ra.ShapeError, ["4 heads of 8", "has 16"], weights(num_heads=4)),
    (ra.ShapeError, ["1 heads", "has 16"], weights(num_heads=1)),
    (ra.ShapeError, ["whole heads of 8", "has 5", "axis 1"], weights(axis=-1)),
    (ra.ShapeError, ["whole heads"], lambda: convert.weights(W[:12], ROPE, "half")),
    (ra.ShapeError, ["axis is 2"], weights(axis=2)),
    (ra.ShapeError, ["axis is -3"], fused(num_heads=1, axis=-3)),
    (ra.ShapeError, ["axis is 0.0"], weights(axis=0.0)),
    (ra.ShapeError, ["axis is True"], weights(axis=True)),
    (ra.ShapeError, ["axis is 0"], lambda: convert.weights(np.asarray(1.0), ROPE, "half")),
    (ra.ArrayTypeError, ["list"], lambda: convert.weights([1.0] * 8, ROPE, "half")),
    (ra.ArrayTypeError, ["masked"], lambda: convert.weights(np.ma.ones(8), ROPE, "half")),
    (ra.ShapeError, ["last axis", "8 features"], lambda: convert.keys(np.ones((3, 16)), ROPE, "half")),
    (ra.SpecError, ["groups is 3", "2 heads"], fused(num_heads=2, groups=3)),
    (ra.SpecError, ["groups is 4", "2 heads of k"], fused(groups=4, **HEADS)),
    (ra.SpecError, ["order is 'qkz'"], fused(num_heads=2, order="qkz")),
    (ra.SpecError, ["order is 'qqkv'"], fused(num_heads=2, order="qqkv")),
    (ra.SpecError, ["order is ('q', 'k')"], fused(num_heads=2, order=("q", "k"))),
    (ra.SpecError, ["order is 'v'"], fused(num_heads=2, order="v")),
    (ra.SpecError, ["order is ''"], fused(num_heads=2, order="")),
    (ra.ShapeError, ["64 features", "4 of q x 8", "2 of k x 8", "2 of v x 8"], fused(groups=2, **HEADS)),
    (
        ra.SpecError,
        ["pairing", "'interleaved'", "'half'"],
        lambda: convert.rerotate(np.ones((3, D)), 1, ROPE, replace(ROPE, pairing="half")),
    ),
    (ra.SpecError, ["head_dim"], lambda: convert.rerotate(np.ones((3, D)), 1, ROPE, ra.RoPE(4))),
    (ra.ArrayTypeError, ["empty"], lambda: convert.rerotate((), 1, ROPE, ROPE)),
    (ra.ShapeError, ["line up"], lambda: convert.shift_keys(np.ones((3, D)), [1, 2], ROPE)),
    (ra.ArrayTypeError, ["int64"], lambda: convert.shift_keys(np.ones((3, D), np.int64), 1, ROPE)),
]


@pytest.mark.parametrize(("error", "says", "call"), REFUSALS, ids=words)
def test_refusals(error, says, call):
    refused(error, says, call)


def test_a_missing_length_is_refused():
    waiting = ra.RoPE(D, scaling=ra.DynamicNTK(factor=2.0, max_position_embeddings=32))
    keys = np.ones((3, D))
    for call in (
        lambda: convert.shift_keys(keys, 1, waiting),
        lambda: convert.rerotate(keys, 1, ROPE, waiting),
        lambda: convert.rerotate(keys, 1, waiting, ROPE),
        # The missing length is found before the keys, which are no array.
        lambda: convert.rerotate("no keys", 1, ROPE, waiting),
    ):
        with pytest.raises(ra.SpecError, match="length"):
            call()
    # The permutation depends on no length.
    assert convert.permutation(waiting, "half") == (0, 2, 4, 6, 1, 3, 5, 7)


@pytest.mark.library("torch")
def test_sparse_tensors_are_refused():
    import torch

    refused(ra.ArrayTypeError, ["layout"], lambda: convert.weights(torch.eye(D).to_sparse(), ROPE, "half"))
