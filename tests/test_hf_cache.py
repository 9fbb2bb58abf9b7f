"""`config.can_shift` against models of transformers: keys are moved, or computed at the new positions.

Tiny models in float64. Each push tests the families of `in_full`, `nightly` all that have a cache of text.
"""

import copy
from dataclasses import replace
from inspect import signature

import pytest
import torch
from hf._compare import FLOAT64, off, precision
from hf._tiny import FAMILIES, LENGTHS, Tiny, answer
from hf._tiny_config import FAMILY

from rope_array import config, convert

START, DELTA = 5, 37
OLD, NEW = torch.randint(3, 30, (1, 11), generator=torch.Generator().manual_seed(1)).split([8, 3], 1)
# 2**-29 times 1e-4, the largest error of the models' own code in float32: see test_hf_families.
ROUNDING = 1e-4 * 2.0**-29

CACHED = [tiny for tiny in FAMILIES if tiny.model_type not in FAMILY["no_text_cache"].split()]
# Deeper values depend on positions, by more than a rotation of keys.
BOUND = ["deepseek_v4", "dory", "hunyuan_v1_dense", "hunyuan_v1_moe", "mistral_large4"]
# Its factor of queries is another one at the new positions.
STEPS = Tiny("ministral3", {"rope_parameters": {"original_max_position_embeddings": 16}})


def run(model, ids, start, cache=None):
    """Return logits and the cache of tokens at consecutive positions."""
    names = signature(model.forward).parameters
    cache = {"cache" if "cache" in names else "past_key_values": cache}
    out = model(ids, position_ids=torch.arange(start, start + ids.shape[1])[None], use_cache=True, **cache)
    return answer(out), next(value for name, value in out.items() if name in cache)


def moved(keys, rope):
    """Rotate the last features of keys, or all, by DELTA in each coordinate."""
    rest = keys.shape[-1] - rope.head_dim
    rope = replace(rope, head_dim=keys.shape[-1], rotary_start=rope.rotary_start + rest) if rest else rope
    return convert.shift_keys(keys, torch.tensor([DELTA] * 3) if rope.axes else DELTA, rope)


def move(layer, rope, indexer):
    """Move the keys of a cache's layer, and the keys of its indexer."""
    latent = layer.keys.shape[-1] != layer.values.shape[-1] and layer.values.shape[-1] == rope.head_dim
    for name in ("values",) if latent else ("keys", "prefill_keys"):
        if (keys := getattr(layer, name, None)) is not None and keys.numel():
            setattr(layer, name, moved(keys, rope))
    if indexer and getattr(layer, "indexer_keys", None) is not None:
        layer.indexer_keys = moved(layer.indexer_keys, indexer)


def errors(tiny, length=None):
    """Return the answer, and the errors of new logits with a moved cache and with the cache as it was."""
    with precision(FLOAT64), torch.no_grad():
        model = tiny.make(FLOAT64)
        moves = config.can_shift(model.config)
        cache = run(model, OLD, START)[1]
        still, new = copy.deepcopy(cache), START + DELTA + OLD.shape[1]
        ropes = moves.ropes or (moves.groups[0].rope,) * len(cache.layers)
        for index, layer in enumerate(cache.layers):  # Longcat has two caches in each layer
            if (rope := ropes[index % len(ropes)]) is not None:
                by_index = {"layer_type": index} if "its indexer's" in repr(moves) else None
                indexer = by_index and config.read(model.config, part="indexer", **by_index).rope
                move(layer, rope.at_length(length) if length else rope, indexer)
        truth = run(model, NEW, new, run(model, OLD, START + DELTA)[1])[0]
        return moves, *(off(run(model, NEW, new, kept)[0], truth) for kept in (cache, still))


@pytest.mark.parametrize(
    "tiny",
    [
        pytest.param(tiny, marks=[pytest.mark.nightly] * (tiny.model_type not in FAMILY["in_full"].split()))
        for tiny in CACHED
    ],
    ids=lambda tiny: tiny.model_type,
)
def test_moved_keys_equal_keys_computed_at_the_new_positions(tiny):
    moves, error, error_unmoved = errors(tiny)
    is_bound = tiny.model_type in BOUND
    assert moves.ok is not (is_bound or "where no token moves to another step" in repr(moves))
    assert (error < ROUNDING) is not is_bound
    assert (error_unmoved > 1e-4) is (any(group.rope for group in moves.groups) or is_bound)


@pytest.mark.parametrize(
    ("tiny", "length"),
    [(STEPS, None), (LENGTHS["phi3"], 16), (LENGTHS["dynamic"], 16)],
    ids=["temperature", "longrope", "dynamic"],
)
def test_answers_with_a_condition_are_no_where_it_fails(tiny, length):
    moves, error, _ = errors(tiny, length)
    assert not moves.ok
    assert error > 1e-4


@pytest.mark.parametrize(("name", "ok"), [("gpt2", False), ("opt", False), ("bloom", True), ("mpt", True)])
def test_models_without_a_rope(name, ok):
    """Tokens that a mask hides move the others."""
    with precision(FLOAT64), torch.no_grad():
        model = Tiny(name).make(FLOAT64)
        ids, mask = torch.cat([OLD, NEW], 1), torch.tensor([[0] * 8 + [1] * 3])
        assert config.can_shift(model.config).ok is ok
        places = {"position_ids": torch.arange(11)[None]} if name in ("gpt2", "opt") else {}
        there = answer(model(ids, attention_mask=mask, **places))[:, 8:]
        assert (off(answer(model(NEW)), there) < ROUNDING) is ok
