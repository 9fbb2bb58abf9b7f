"""Whole transformers models with random weights, on real text: our rotation in place of theirs.

Collected only with `--models`, as it needs transformers and PyTorch. The true logits come from the model's
own code, all of it in float64. Our rotation must give these logits, within the rounding of float64 in a
float64 model, which shows errors below the rounding of float32. In a float32 model, its error must be about
as small as the error of the model's own code.
"""

import copy
from dataclasses import replace

import pytest
import torch
import transformers
from hf._compare import off
from hf._models_patch import FAMILIES, FLOAT32, FLOAT64, PASSAGE, built, logits, run, swapped, tokens

import rope_array as ra
from rope_array import convert

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

BY_NAME = {family.name: family for family in FAMILIES}
UNITS = 2.0**-29  # the rounding of float64, relative to the rounding of float32
STEPS = 6


def of_each(*names):
    chosen = [BY_NAME[name] for name in names] if names else FAMILIES
    return pytest.mark.parametrize("family", chosen, ids=lambda family: family.name)


def of_theirs(family):
    """Return the true logits, and the error of the model's own code in float32."""
    true = logits(family, built(family, FLOAT64))
    error = off(logits(family, built(family, FLOAT32)), true)
    # A few float32 roundings, grown by dozens of sums. A smaller error would mean that float32 was not used.
    assert 1e-8 < error < 1e-4
    return true, error


def same(got, true, error, dtype):
    """Return whether logits are the true logits, within a bound from the model's own float32 error.

    The bound in float32 is three times the error, as both are maxima of 100,000 rounding errors. In float64
    it is ten times the error in float64 roundings, as the true logits are rounded too.
    """
    return off(got, true) <= (3 * error if dtype is FLOAT32 else 10 * error * UNITS)


def backwards(rope):
    turned = tuple(-f for f in rope.frequencies)
    return replace(rope, scaling=None, inv_freq=turned, attention_factor=rope.amplitude)


OTHER = {"half": "interleaved", "interleaved": "half"}
WRONG = {
    "other pairing": lambda rope: replace(rope, pairing=OTHER[rope.pairing]),
    "base 10 % off": lambda rope: replace(rope, base=1.1 * rope.base),
    "backwards": backwards,
    "without its rule": lambda rope: replace(rope, scaling=None),
    "another map": lambda rope: (
        rope.axes and replace(rope, axes=replace(rope.axes, coordinates=rope.axes.coordinates[::-1]))
    ),
    "another part of the head": lambda rope: replace(rope, rotary_start=rope.head_dim - rope.rotary_dim),
}


# Logits


@of_each()
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=["float32", "float64"])
def test_logits_are_the_same(family, dtype):
    true, error = of_theirs(family)
    model = built(family, dtype)
    with swapped(family, model) as swap:
        got = logits(family, model)
        assert swap.calls == {rope: family.rotations[key] for key, rope in family.ropes(model.config).items()}
    assert same(got, true, error, dtype)


@of_each()
def test_a_wrong_rope_changes_the_logits(family):
    true, error = of_theirs(family)
    model = built(family, FLOAT32)
    for key, rope in family.ropes(model.config).items():
        wrongs = {name: wrong for name, wrong in WRONG.items() if wrong(rope) not in (None, rope)}
        assert len(wrongs) >= 3
        for name, wrong in wrongs.items():
            with swapped(family, model, wrong, key):
                assert off(logits(family, model), true) > 100 * error, (key, name)


@of_each()
def test_float64_shows_an_error_in_the_tenth_digit_of_the_base(family):
    true, error = of_theirs(family)
    model = built(family, FLOAT64)
    with swapped(family, model, lambda rope: replace(rope, base=rope.base * (1 + 1e-10))):
        assert off(logits(family, model), true) > 20 * error * UNITS


@of_each()
def test_the_model_is_left_as_it_was(family):
    model = built(family, FLOAT32)
    before = logits(family, model)
    with swapped(family, model):
        pass
    assert torch.equal(logits(family, model), before)


def test_the_coordinates_of_qwen2_vl_are_unequal():
    family = BY_NAME["qwen2_vl"]
    model = built(family, FLOAT32)
    with swapped(family, model) as swap:
        logits(family, model)
    picture, video, text = swap.positions
    assert picture.shape[-1] == video.shape[-1] == 2
    t, h, w = text.unbind(-1)
    assert (t != h).any()
    assert (h != w).any()
    assert (t != w).any()


def test_far_positions_leave_the_logits_unchanged():
    # Scores depend only on differences of positions. This holds for exact angles, not for float32 angles.
    family = BY_NAME["llama"]
    true, error = of_theirs(family)
    model = built(family, FLOAT32)
    pos = 1_000_000 + torch.arange(true.shape[1])[None]
    with swapped(family, model):
        assert same(logits(family, model, position_ids=pos), true, error, FLOAT32)
    assert off(logits(family, model, position_ids=pos), true) > 1000 * error


# Generation


def prompts(family):
    """Return two texts of different length, padded on the left; one text if it has pictures."""
    given = family.inputs(PASSAGE[:150])
    if len(given) > 1:
        return given
    ids = torch.cat((given["input_ids"], tokens(PASSAGE)[:, : given["input_ids"].shape[1]]))
    mask = torch.ones_like(ids)
    ids[1, :37], mask[1, :37] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def generated(family, model):
    """Return the prompts with the generated tokens, and the logits that choose the tokens."""
    settings = dict(max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False, pad_token_id=0)
    more = dict(use_cache=True, output_logits=True, return_dict_in_generate=True)
    out = run(model, lambda: model.generate(**prompts(family), **settings, **more))
    return out.sequences, torch.stack(out.logits).to(FLOAT64)


@of_each(*(family.name for family in FAMILIES if family.name != "roformer"))
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=["float32", "float64"])
def test_generation_is_the_same(family, dtype):
    sequences, true = generated(family, built(family, FLOAT64))
    _, error = of_theirs(family)
    model = built(family, dtype)
    with swapped(family, model) as swap:
        ours, got = generated(family, model)
        passes = {key: 1 if key == "vision" else STEPS for key in family.rotations}
        ropes = family.ropes(model.config)
        assert swap.calls == {ropes[key]: n * passes[key] for key, n in family.rotations.items()}
    assert len(got) == STEPS
    assert torch.equal(ours, sequences)
    assert same(got, true, error, dtype)


# Converted weights: the model's rope and its projections, with the other pairing


def llama(model, rope, to):
    for layer in model.model.layers:
        for name, heads in (("q_proj", 4), ("k_proj", 2)):
            move(getattr(layer.self_attn, name), lambda w, n=heads: convert.weights(w, rope, to, num_heads=n))


def gpt_neox(model, rope, to):
    for layer in model.gpt_neox.layers:
        move(layer.attention.query_key_value, lambda w: convert.fused(w, rope, to, num_heads=2, groups=2))


def deepseek(model, rope, to):
    # The rotated features are the last 16 of each head of q, and the last 16 of the latent vector with k.
    of_q = replace(rope, head_dim=24, rotary_start=8)
    of_k = replace(rope, head_dim=32, rotary_start=16)
    for layer in model.model.layers:
        move(layer.self_attn.q_b_proj, lambda w: convert.weights(w, of_q, to, num_heads=4))
        move(layer.self_attn.kv_a_proj_with_mqa, lambda w: convert.weights(w, of_k, to, num_heads=1))


def move(projection, change):
    for parameter in projection.parameters():
        parameter.data = change(parameter.data)


CONVERTED = {"llama": llama, "glm": llama, "gpt_neox": gpt_neox, "deepseek_v3": deepseek}


@of_each(*CONVERTED)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=["float32", "float64"])
def test_converted_weights_give_the_same_logits(family, dtype):
    true, error = of_theirs(family)
    model = copy.deepcopy(built(family, dtype))
    (rope,) = family.ropes(model.config).values()
    to = OTHER[rope.pairing]
    CONVERTED[family.name](model, rope, to)
    assert off(logits(family, model), true) > 100 * error
    with swapped(family, model, lambda rope: replace(rope, pairing=to)):
        assert same(logits(family, model), true, error, dtype)


def test_deepseek_runs_its_own_half_pairs_on_converted_weights():
    family = BY_NAME["deepseek_v3"]
    true, error = of_theirs(family)
    model = copy.deepcopy(built(family, FLOAT64))
    deepseek(model, ra.RoPE.from_config(model.config), "half")
    model.config.rope_interleave = False
    assert same(logits(family, model), true, error, FLOAT64)
