"""Conversion of pairings, judged by index loops and by scores; K-shift, judged by the rope itself.

Each library has the results that NumPy has: `test_each_library_has_numpys_results`.
"""

import itertools
import types
from dataclasses import replace

import numpy as np
import pytest
from compare import on_host, words
from oracle import pair
from refusals import refusals, refused

import rope_array as ra
from rope_array import convert
from rope_array.testing._contract import assert_contract

PAIRINGS = ("interleaved", "half")
OTHER = {"interleaved": "half", "half": "interleaved"}
# A whole head, partial rotary, a slice that starts late (MLA) or in the middle, and nothing rotated.
SLICES = [{}, *({"rotary_dim": width} for width in (6, 2, 0))]
SLICES += [{"rotary_start": 2}, {"rotary_start": 2, "rotary_dim": 4}]
D, INPUTS = 8, 5
BLOCKS = ra.Axes.axial(4, 4, blocks=True)
each_pairing = pytest.mark.parametrize("pairing", PAIRINGS)


def converted_row(row, rope, to):
    """Move one head's features, pair by pair in each block."""
    out = list(row)
    blocks = rope.axes.blocks if rope.axes else 1
    width = rope.rotary_dim // blocks
    for block, i in itertools.product(range(blocks), range(width // 2)):
        old, new = (pair(p, i, width, rope.rotary_start + block * width) for p in (rope.pairing, to))
        out[new[0]], out[new[1]] = row[old[0]], row[old[1]]
    return out


def converted(w, rope, to):
    """Move the rows of whole heads, head by head."""
    return np.concatenate([converted_row([*w[i : i + D]], rope, to) for i in range(0, len(w), D)])


def numbers(shape, dtype=np.float32, seed=0):
    """Return an array of distinct integers that float16 holds exactly."""
    return np.random.default_rng(seed).permutation(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape)


def same(x, expected):
    np.testing.assert_array_equal(on_host(x), on_host(expected))


def close(x, expected, ulps=8):
    x = on_host(x)
    atol = ulps * np.finfo(x.dtype).eps * np.abs(expected).max()
    np.testing.assert_allclose(x, expected, rtol=0, atol=atol)


# ---- weights ----


@pytest.mark.parametrize("spec", [*SLICES, {"axes": BLOCKS}], ids=words)
@each_pairing
def test_weights_of_every_layout(spec, pairing):
    rope, to = ra.RoPE(D, pairing=pairing, **spec), OTHER[pairing]
    for heads in (1, 3):
        w = numbers((heads * D, INPUTS))
        expected = converted(w, rope, to)
        for change, axis in (
            (lambda a: a, 0),  # PyTorch
            (lambda a: a[:, 0], 0),  # a bias
            (lambda a: a.T, -1),  # Flax
            (lambda a, heads=heads: a.T.reshape(INPUTS, heads, D), -1),
            (lambda a, heads=heads: a[:, 0].reshape(heads, D), 1),
            (lambda a: a[None], -2),
        ):
            w_of_layout = change(w)
            moved = convert.weights(w_of_layout, rope, to, axis=axis)
            assert moved.dtype == w_of_layout.dtype
            same(moved, change(expected))


# Conversions of an array of shape (8, 8) to a pairing. A head of two features has one order in both pairings.
CALLS = {
    "weights": lambda w, to: convert.weights(w, ra.RoPE(D, rotary_dim=6), to),
    "columns": lambda w, to: convert.weights(w, ra.RoPE(4, pairing="half"), to, axis=-1),
    "one order": lambda w, to: convert.weights(w, ra.RoPE(2, pairing="half"), to),
    "nothing rotated": lambda w, to: convert.weights(w, ra.RoPE(4, rotary_dim=0), to),
    "blocks": lambda w, to: convert.weights(w, ra.RoPE(D, axes=BLOCKS), to),
    "fused": lambda w, to: convert.fused(w, ra.RoPE(2, pairing="half"), to, num_heads=2, order="qg"),
    "keys": lambda w, to: convert.keys(w, ra.RoPE(D, pairing="half", rotary_dim=6), to),
    "keys, one order": lambda w, to: convert.keys(w, ra.RoPE(D, pairing="half", rotary_dim=2), to),
    "shift_keys of nothing": lambda w, to: convert.shift_keys(w, 0, ra.RoPE(D, rotary_dim=0)),
    "rerotate of nothing": lambda w, to: convert.rerotate(w, 0, *[ra.RoPE(D, rotary_dim=0)] * 2),
    "shift_keys": lambda w, to: convert.shift_keys(w, [*range(8)], ra.RoPE(D, pairing=to)),
    "rerotate": lambda w, to: convert.rerotate(
        w, range(8), ra.RoPE(D, attention_factor=1.5), ra.RoPE(D, base=50.0)
    ),
    "all layers": lambda w, to: convert.shift_keys((w, w + 1), -5, ra.RoPE(D, pairing=to))[1],
    "rerotate all layers": lambda w, to: convert.rerotate((w, w + 1), 3, ra.RoPE(D), ra.RoPE(D, base=9.0))[1],
}


@pytest.mark.parametrize("name", CALLS)
def test_each_library_has_numpys_results(lib, name):
    """The input is neither written nor aliased, even where nothing is moved."""
    host = numbers((8, 8)) / 64
    for to in PAIRINGS if lib.name in ("numpy", "torch") else ("interleaved",):
        w = lib.asarray(host.copy())
        moved = CALLS[name](w, to)
        assert type(moved) is type(w)
        assert moved.dtype == w.dtype
        np.testing.assert_allclose(lib.to_numpy(moved), CALLS[name](host, to), rtol=0, atol=1e-5)
        assert not lib.shares_memory(moved, w)
        same(w, host)
        if lib.name in ("numpy", "torch"):
            kept = lib.to_numpy(moved).copy()
            w[...] = 7
            same(moved, kept)


@pytest.mark.neutral
@pytest.mark.parametrize("spec", SLICES, ids=words)
@each_pairing
def test_a_round_trip_is_the_identity_to_the_bit(lib, float_dtype, spec, pairing):
    rope = ra.RoPE(D, pairing=pairing, **spec)
    host = numbers((2 * D, INPUTS))
    host[3:5, 1:3] = [[np.nan, -0.0], [np.inf, -np.inf]]
    w = lib.asarray(host, float_dtype)
    moved = convert.weights(w, rope, OTHER[pairing], num_heads=2)
    back = convert.weights(moved, replace(rope, pairing=OTHER[pairing]), pairing, num_heads=2)
    assert back.dtype == w.dtype
    assert lib.to_numpy(back).tobytes() == lib.to_numpy(w).tobytes()


@pytest.mark.neutral
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "bool", "float8_e4m3fn"])
def test_quantised_weights_and_masks(lib, dtype):
    """A conversion only moves elements, so any dtype works."""
    if dtype == "float8_e4m3fn" and lib.name not in ("torch", "jax"):
        return  # the library has no such dtype
    host = numbers((2 * D,), np.int32)  # the integers to 16, which 8 bits hold
    host = host % 2 == 0 if dtype == "bool" else host
    moved = convert.weights(lib.asarray(host, dtype), ra.RoPE(D), "half")
    assert lib.dtype_of(moved) == dtype
    moved = lib.xp.astype(moved, lib.dtype("float32")) if dtype == "float8_e4m3fn" else moved
    same(moved, converted(host, ra.RoPE(D), "half"))


def test_a_permutation_is_the_matrix_of_position_0():
    for spec, pairing, to in itertools.product([*SLICES, {"axes": BLOCKS}], PAIRINGS, PAIRINGS):
        rope = ra.RoPE(D, pairing=pairing, **spec)
        permutation = convert.weights(np.arange(D), rope, to)
        assert permutation.tolist() == converted_row(range(D), rope, to)
        unrotated = replace(rope, out_pairing=to).matrix((0, 0) if rope.axes else 0)
        np.testing.assert_array_equal(np.eye(D)[permutation], unrotated)


# ---- state dicts; test_hf_families.py has the models of transformers ----

CONFIG = {"model_type": "llama", "hidden_size": 4 * D, "num_attention_heads": 4, "num_key_value_heads": 2}
META = {"dim": 4 * D, "n_heads": 4, "n_kv_heads": 2, "n_layers": 1, "norm_eps": 1e-5, "multiple_of": 256}
LATENT = {"kv_lora_rank": 512, "num_attention_heads": 3, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
Q, K = "model.layers.0.self_attn.q", "model.layers.0.self_attn.k"
STATE = {f"{Q}_proj.weight": numbers((4 * D, INPUTS)), f"{K}_proj.weight": numbers((2 * D, INPUTS))}


def test_a_state_dict_has_new_arrays_where_each_feature_has_an_entry():
    sizes = {
        "_proj.bias": 2,
        "_proj.lora_B.default.weight": 2,
        "_norm.weight": 1,
        "_proj.base_layer.weight": 2,
    }
    moved = {K + name: numbers((heads * D,)) for name, heads in sizes.items()} | STATE
    moved |= {name.replace("layers.0", "layers.99"): x for name, x in STATE.items()}  # of more tokens
    kept = {
        K + name: np.ones((1, 1))
        for name in ("_proj.lora_A.weight", "_proj.weight_scale", "_proj.input_scale")
    }
    kept |= {name.replace("model", "vision_tower"): x for name, x in STATE.items()}
    rope, state = ra.RoPE(D, pairing="half"), types.MappingProxyType(moved | kept)
    new = convert.weights(state, CONFIG, "interleaved")
    assert (type(new), [*new]) == (dict, [*state])
    for name, x in state.items():
        same(new[name], converted(x, rope, "interleaved") if name in moved else x)
        assert (new[name] is x) is (name in kept)
    no_rope = {"model_type": "smollm3", "no_rope_layers": [0, 1], "num_hidden_layers": 2}
    for config, to in ((CONFIG, "half"), (CONFIG | no_rope, "interleaved")):
        assert all(x is STATE[name] for name, x in convert.weights(STATE, config, to).items())
    meta = {
        f"layers.0.attention.w{part}.weight": STATE[f"{name}_proj.weight"]
        for part, name in zip("qk", (Q, K), strict=True)
    }
    for name, x in convert.weights(meta, META, "half").items():
        same(x, converted(meta[name], ra.RoPE(D), "half"))


def test_scales_stay_if_no_feature_leaves_its_block():
    """As in DeepSeek-V3, whose rotated features of a head are in one block of 128."""
    latent = f"{K.removesuffix('k')}kv_a_proj_with_mqa.weight"
    state = {latent: np.arange(576), f"{latent}_scale_inv": np.arange(5), f"{Q}_proj.weight": np.arange(576)}
    new = convert.weights(state, {"model_type": "deepseek_v3", **LATENT}, "half")
    assert new[f"{latent}_scale_inv"] is state[f"{latent}_scale_inv"]
    for name, starts in ((latent, [512]), (f"{Q}_proj.weight", [128, 320, 512])):
        for start in starts:
            assert new[name][start : start + 64].tolist() == [
                *range(start, start + 64, 2),
                *range(start + 1, start + 64, 2),
            ]
        assert sum(new[name] != state[name]) == 62 * len(starts)


# ---- scores ----


SCORED = [*SLICES, {"attention_factor": 1.3}, {"base": 500.0}, {"axes": BLOCKS}]
SCORED += [{"axes": ra.Axes.axial(4, 4)}, *({"out_pairing": pairing} for pairing in PAIRINGS)]


@pytest.mark.parametrize("spec", SCORED, ids=words)
@each_pairing
def test_scores_are_unchanged(spec, pairing):
    """Scores change if features are not moved, moved twice, or moved in wrong heads or outside the slice.

    Reported in transformers#25199, #39687, PR #47403; llama.cpp#7481; for partial rotary, PR #48652.
    """
    rope = ra.RoPE(D, pairing=pairing, **spec)
    x, pos = normal(3, INPUTS), np.array([-1000, 7, 99_999])
    pos = np.stack([pos % 50, pos % 31], axis=-1) if rope.axes else pos
    projections = [normal(heads * D, INPUTS + heads)[:, :INPUTS] for heads in (4, 2)]  # of q and of k

    def rotated(rope, projections):
        return [rope.apply((x @ w.T).reshape(3, -1, D), pos, seq_axis=0) for w in projections]

    def scores(rope, projections):
        q, k = rotated(rope, projections)
        return np.einsum("thd,shd->hts", q, np.repeat(k, 2, axis=1))

    before, after = scores(rope, projections), replace(rope, pairing=OTHER[pairing])
    moved = [convert.weights(w, rope, OTHER[pairing]) for w in projections]
    np.testing.assert_allclose(scores(after, moved), before, rtol=0, atol=1e-12 * np.abs(before).max())
    same(convert.weights(moved[0], after, OTHER[pairing]), moved[0])  # a second conversion moves nothing
    if rope.out_pairing:  # the keys of a cache stay valid
        for new, old in zip(rotated(after, moved), rotated(rope, projections), strict=True):
            close(new, old)
    if rope.rotary_dim > 2:
        assert np.abs(scores(rope, moved) - before).max() > 1e-3  # scores differ between pairings


@pytest.mark.parametrize("out_pairing", [None, *PAIRINGS])
@each_pairing
@pytest.mark.parametrize("to", PAIRINGS)
def test_cached_keys_are_in_the_pairing_that_was_written(out_pairing, pairing, to):
    rope = ra.RoPE(D, pairing=pairing, out_pairing=out_pairing, rotary_dim=6)
    x, by = numbers((2, 3, D)) / 8, {"backend": "array-api"}  # its bits do not depend on the pairing
    keys = convert.keys(rope.apply(x, range(3), **by), rope, to)
    same(keys, replace(rope, out_pairing=to).apply(x, range(3), **by))


# ---- fused projections ----

# Groups, order, heads of q, heads of k and v, by model (Hugging Face's modelling files).
FUSED = {
    "phi3": (1, "qkv", 4, 2),
    "gpt_neox, falcon-rw, persimmon": (4, "qkv", 4, 4),
    "falcon, new architecture": (2, "qkv", 4, 2),
    "codegen": (2, "qvk", 4, 4),
    "qwen3_next, q with its gate": (4, "qg", 4, 2),
    "a gate in each group": (2, "qgkv", 4, 2),
    "keys and values": (1, "kv", 4, 2),
    "keys first": (2, "vkq", 4, 2),
    "v of its own width": (2, "qkv", 4, 2),
}


def assembled(heads, order, groups):
    """Rows of a fused projection: group after group, part after part, head after head."""
    shares = {name: np.reshape(heads[name], (groups, -1, INPUTS)) for name in order}
    return np.concatenate([shares[name][group] for group in range(groups) for name in order])


@pytest.mark.parametrize("name", FUSED)
@each_pairing
def test_fused_projections(name, pairing):
    groups, order, q, kv = FUSED[name]
    v_head_dim = 3 if name == "v of its own width" else None
    rope, to = ra.RoPE(D, pairing=pairing, rotary_dim=6), OTHER[pairing]
    heads = {
        n: numbers((kv if n in "kv" else q, (v_head_dim or D) if n == "v" else D, INPUTS), seed=i)
        for i, n in enumerate(order)
    }
    moved = {n: [converted(h, rope, to) for h in heads[n]] if n in "qk" else heads[n] for n in order}
    fused, expected = assembled(heads, order, groups), assembled(moved, order, groups)
    options = {"num_heads": q, "num_kv_heads": kv, "order": order, "groups": groups, "v_head_dim": v_head_dim}
    for take, axis in ((lambda w: w, 0), (lambda w: w[:, 0], 0), (lambda w: w.T, -1)):
        new = convert.fused(take(fused), rope, to, axis=axis, **options)
        same(new, take(expected))
        same(convert.fused(new, replace(rope, pairing=to), pairing, axis=axis, **options), take(fused))


# ---- K-shift ----


RULES = [
    ra.YaRN(factor=8.0, original_max_position_embeddings=32, attention_factor=3.0),
    ra.Llama3(factor=8.0, original_max_position_embeddings=32),
    ra.DynamicNTK(factor=2.0, max_position_embeddings=32),
    ra.LongRoPE((1.0, 1.5, 2.0, 3.0), (2.0, 4.0, 8.0, 16.0), original_max_position_embeddings=32, factor=8.0),
]
MAPS = [ra.Axes.chunked(1, 2, 1), ra.Axes.axial(4, 4), BLOCKS, ra.Axes([0, None, 1, 1])]
SHIFTED = [
    *({"pairing": p, **s} for s in SLICES for p in PAIRINGS),
    {"attention_factor": 1.5},
    {"attention_factor": 0.25, "rotary_dim": 4, "rotary_start": 2, "pairing": "half"},
    {"pairing": "interleaved", "out_pairing": "half"},
    {"pairing": "half", "out_pairing": "interleaved", "attention_factor": 1.5, "rotary_dim": 6},
    {"inv_freq": (1.0, 0.1, 0.01, 0.0), "pairing": "half"},
    *({"scaling": rule, "out_pairing": "half"} for rule in RULES),
    *({"axes": axes, "pairing": p, "attention_factor": 1.5} for axes in MAPS for p in PAIRINGS),
]


@pytest.mark.parametrize("spec", SHIFTED, ids=words)
def test_shifted_keys_are_rotated_to_the_new_positions(spec):
    """A shift changes neither the amplitude, nor the unrotated features, nor the order of pairs.

    Reported in llama.cpp PR #4889, #13870: context shift with an amplitude. YaRN and LongRoPE have one too.
    """
    rope, rng = ra.RoPE(D, **spec).at_length(100), np.random.default_rng(0)
    coordinates = (rope.axes.count,) if rope.axes else ()
    raw, pos = normal(2, 3, 5, D), rng.integers(1000, 2000, (5, *coordinates))
    cached = rope.apply(raw, pos)
    of_each_axis, of_each_token = (rng.integers(-99, 99, shape) for shape in (coordinates, pos.shape))
    for delta in (np.full(coordinates, -990), np.full(coordinates, 123_456), of_each_axis, of_each_token):
        close(convert.shift_keys(cached, delta.tolist(), rope), rope.apply(raw, pos + delta))
    shift = convert.shift_rope(rope)
    assert shift.pairing == (rope.out_pairing or rope.pairing)
    assert (shift.out_pairing, shift.amplitude) == (None, 1.0)
    assert shift.frequencies == rope.frequencies


def test_deltas_of_sequences_and_tokens():
    rope = ra.RoPE(D, attention_factor=2.0, pairing="half")
    raw, pos = normal(2, 5, 3, D), np.arange(5) + 100
    cached = rope.apply(raw, pos, seq_axis=-3)
    for delta in ([[-3], [40]], [0, 0, -1, -1, -2], [[0, 0, -1, -1, -2], [7, 6, 5, 4, 3]]):
        for delta_of_type in (delta, np.asarray(delta, np.int32)):
            shifted = convert.shift_keys(cached, delta_of_type, rope, seq_axis=-3)
            close(shifted, rope.apply(raw, pos + np.asarray(delta), seq_axis=-3))


def test_a_shift_is_one_rotation_within_the_contract(lib, float_dtype):
    """The shift rotates the cached keys by delta, with amplitude 1, and rounds once."""
    rope = ra.RoPE(D, attention_factor=1.5, pairing="half", out_pairing="interleaved")
    cached = lib.asarray(normal(3, 5, D).astype(np.float32), float_dtype)
    shifted = convert.shift_keys(cached, -7, rope)
    assert shifted.dtype == cached.dtype
    assert_contract(lib.to_numpy(shifted), lib.to_numpy(cached), -7, dtype=float_dtype, pairing="interleaved")


def test_moves_of_base_keys_are_one_shift(lib, float_dtype):
    """Sixteen moves, one with a distance for each token, rotate the first keys once, by their sum."""
    rope = ra.RoPE(D, attention_factor=1.5, pairing="half")
    cached, of_each_token = lib.asarray(normal(3, 5, D).astype(np.float32), float_dtype), np.arange(-2, 3)
    base = convert.BaseKeys(cached, rope)
    for delta in (*range(3, 18), lib.asarray(of_each_token, "int32")):
        base = base.moved(delta)
    assert base.keys is cached
    moves = of_each_token + sum(range(3, 18))
    assert_contract(
        lib.to_numpy(base.shifted()), lib.to_numpy(cached), moves, dtype=float_dtype, pairing="half"
    )


@pytest.mark.parametrize("delta", [0.5, True, [1, 2], np.ones(5)], ids=["float", "bool", "list", "floats"])
def test_moves_of_base_keys_are_integers(delta):
    with pytest.raises(ra.PositionError, match="give an int, or an array of integers"):
        convert.BaseKeys(normal(5, D), ra.RoPE(D)).moved(delta)
    with pytest.raises(ra.PositionError, match="give an int, or an array of integers"):
        convert.BaseKeys(normal(5, D), ra.RoPE(D), delta)


def test_sums_of_moves_do_not_overflow():
    base = convert.BaseKeys(normal(1, D), ra.RoPE(D))
    for delta in [np.asarray([-60], "int8")] * 1000:
        base = base.moved(delta)
    assert base.moved(np.asarray([2**31 - 1], "int32")).delta.tolist() == [2**31 - 60_001]


def test_base_keys_are_not_written():
    keys = normal(5, D)
    with pytest.raises(ra.ArrayTypeError, match="out is the keys, which hold the base positions"):
        convert.BaseKeys(keys, ra.RoPE(D), 3).shifted(out=keys)


# ---- other frequencies ----


def test_rerotated_keys_equal_keys_of_the_new_rope():
    """Keys for one length and a query for another mix two rotations (transformers#25104, PR #33129)."""
    raw, pos = normal(2, 5, D), range(100, 105)
    ropes = [
        ra.RoPE(D, attention_factor=1.5),
        ra.RoPE(D, base=50.0, rotary_dim=6, out_pairing="half"),
        ra.RoPE(D, rotary_dim=0),
        ra.RoPE(D, rotary_start=4, attention_factor=0.5),
    ]
    lengths = [[ra.RoPE(D, scaling=rule).at_length(n) for n in (20, 100)] for rule in RULES[-2:]]
    for old, new in (*itertools.permutations(ropes, 2), *lengths):
        cached, expected = old.apply(raw, pos), new.apply(raw, pos)
        assert np.abs(cached - expected).max() > 0.1
        close(convert.rerotate(cached, pos, old, new), expected, ulps=16)
    old, new = ropes[0], ra.RoPE(D, base=50.0)
    raw, pos = normal(2, 5, 3, D), np.arange(10).reshape(2, 5)
    rerotated = convert.rerotate(old.apply(raw, pos, seq_axis=1), pos.tolist(), old, new, seq_axis=1)
    close(rerotated, new.apply(raw, pos, seq_axis=1), ulps=16)


def test_rerotated_half_precision_is_rounded_once(lib, float_dtype):
    half_ulp = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(float_dtype)
    if half_ulp is None:
        return
    old, new = ra.RoPE(64, attention_factor=1.5), ra.RoPE(64, base=50.0)
    cached = lib.asarray(normal(100, 64).astype(np.float32), float_dtype)
    rerotated = convert.rerotate(cached, range(100), old, new)
    assert rerotated.dtype == cached.dtype
    keys = old.apply(lib.to_numpy(cached).astype(np.float64), range(100), inverse=True)
    exact = new.apply(keys, range(100))
    error = np.abs(lib.to_numpy(rerotated).astype(np.float64) - exact)
    assert (error <= half_ulp * np.abs(exact) + 1e-6).all()


# ---- tracing, gradients, laziness ----


@pytest.mark.library("jax", "torch")
def test_under_tracing(lib):
    rope = ra.RoPE(D, rotary_dim=6, attention_factor=1.5)
    shift, new = convert.shift_rope(rope), replace(rope, base=50.0)
    pos = lib.asarray(np.arange(2 * D, dtype=np.int32))  # PyTorch refuses a range in compiled code

    def every_conversion(w):
        w = convert.weights(w, rope, "half", num_heads=2)
        w = convert.fused(w, rope, "half", num_heads=1, order="qg", axis=-1)
        k = convert.keys(w[:, :D], rope, "half")
        return shift.apply(convert.rerotate(k, pos, rope, new), -3)

    w = lib.asarray(numbers((2 * D, 2 * D)) / 64)
    traced, eager = (lib.to_numpy(call(w)) for call in (lib.traced(every_conversion), every_conversion))
    np.testing.assert_allclose(traced, eager, rtol=1e-5, atol=1e-6)


@pytest.mark.library("jax", "torch")
def test_gradients_are_moved_back(lib):
    rope = ra.RoPE(D, rotary_dim=6)
    w, cotangent = (lib.asarray(numbers((2 * D, INPUTS), seed=s)) for s in (0, 1))
    gradient = lib.gradient(lambda w: convert.weights(w, rope, "half"), w, cotangent)
    same(gradient, convert.weights(cotangent, replace(rope, pairing="half"), "interleaved"))


@pytest.mark.library("dask")
def test_dask_stays_lazy(lib):
    import dask.array as da

    host, rope = numbers((6 * D, INPUTS)), ra.RoPE(D, rotary_dim=6)
    expected = converted(host, rope, "half")
    for chunks in (-1, D, (5, 2)):
        w = da.from_array(host, chunks=chunks)
        weights, fused = convert.weights(w, rope, "half"), convert.fused(w, rope, "half", num_heads=2)
        assert all(map(lib.is_lazy, (weights, fused)))
        same(weights, expected)
        same(fused, np.concatenate([expected[: 4 * D], host[4 * D :]]))
    keys = lib.poisoned(da.from_array(host.reshape(3, 2 * D, INPUTS)[..., :4], chunks=(1, 4, 2)))
    rope = ra.RoPE(4, attention_factor=1.5)
    convert.shift_keys(keys, 3, rope)
    convert.rerotate(keys, 3, rope, replace(rope, base=2.0))
    convert.keys(keys, rope, "half")
    w = da.ones((8, 4), chunks=2)
    refused(ra.ShapeError, "unknown", lambda: convert.weights(w[w[:, 0] > 0], ra.RoPE(4), "half"))


@pytest.mark.library("torch")
def test_torch_under_autocast_fake_and_parameters():
    import torch
    from torch._subclasses import FakeTensorMode

    rope, host = ra.RoPE(D, rotary_dim=6), numbers((2 * D, INPUTS))
    for dtype in (torch.bfloat16, torch.float32):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            moved = convert.weights(torch.tensor(host, dtype=dtype), rope, "half")
        assert moved.dtype == dtype
        np.testing.assert_array_equal(moved.float().numpy(), converted(host, rope, "half"))
    tensor = torch.tensor(host)
    assert convert.weights(torch.nn.Parameter(tensor), rope, "half").requires_grad
    fake = FakeTensorMode().from_tensor(tensor)
    assert convert.weights(fake, rope, "half").shape == (2 * D, INPUTS)
    assert convert.weights(torch.empty(2 * D, device="meta"), rope, "half").device.type == "meta"
    refused(ra.ArrayTypeError, "layout", lambda: convert.weights(torch.eye(D).to_sparse(), rope, "half"))


def test_memory_layouts_of_numpy():
    host, rope = numbers((2 * D, INPUTS)), ra.RoPE(D, rotary_dim=6)
    big = np.zeros((4 * D, 2 * INPUTS), np.float32)
    big[::2, ::-2] = host
    for w in (big[::2, ::-2], np.asfortranarray(host), host.astype(">f4"), host.astype(">i2")):
        moved = convert.weights(w, rope, "half", num_heads=2)
        assert moved.dtype == w.dtype
        assert moved.dtype.byteorder == w.dtype.byteorder
        np.testing.assert_array_equal(moved, converted(host, rope, "half"))
    host.flags.writeable = False
    assert convert.weights(host, rope, "half").flags.writeable
    for shape in ((0, INPUTS), (2 * D, 0)):
        assert convert.weights(np.ones(shape), rope, "half").shape == shape


# ---- refusals ----

ROPE = ra.RoPE(D)
W, KEYS = np.ones((2 * D, INPUTS)), np.ones((3, D))
WAITING = ra.RoPE(D, scaling=ra.DynamicNTK(factor=2.0, max_position_embeddings=32))


@refusals("convert")
def test_refusals(call, error, words):
    """The missing length is found before the keys, which are no array."""
    refused(error, words, lambda: eval(call, globals() | vars(convert) | {"replace": replace}))


def test_the_permutation_depends_on_no_length():
    assert convert.weights(np.arange(D), WAITING, "half").tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
