"""The study's models with every encoding: masks, padding and the cache.

tests/test_hf_roformer.py compares layers, heads, cross attention and generation with transformers' RoFormer.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from roformer.encodings import ENCODINGS
from roformer.model import Cache, Config, LanguageModel, Seq2Seq

pytestmark = pytest.mark.library("torch")

torch.set_num_threads(1)

SMALL = Config(vocab_size=11, hidden_size=8, num_layers=2, num_heads=2, intermediate_size=12, max_length=32)
CAUSAL = replace(SMALL, causal=True)
ABSOLUTE = ("sinusoidal", "learned", "tupe-absolute", "tupe-relative")  # padding moves their positions
each_encoding = pytest.mark.parametrize("encoding", ENCODINGS)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def randomised(model, seed=0):
    """Draw every parameter so that each has an effect: biases and norms too."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.double().named_parameters():
        deviation = 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * deviation
        parameter.data = values + 1 if "norm" in name else values
    return model


def words(*shape, seed=0):
    return torch.randint(3, SMALL.vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def assert_near(x, y):
    torch.testing.assert_close(x, y, atol=1e-12, rtol=0)


@each_encoding
def test_a_later_token_changes_no_earlier_logit(encoding):
    model = randomised(LanguageModel(replace(CAUSAL, encoding=encoding)))
    tokens, at = words(1, 12), 7
    changed = tokens.clone()
    changed[0, at] += 1 if tokens[0, at] < 10 else -1
    before, after = model(tokens), model(changed)
    assert_near(before[:, :at], after[:, :at])
    assert ((before - after).abs().amax(-1)[:, at:] > 1e-6).all()


@each_encoding
def test_padding_changes_nothing(encoding):
    model = randomised(LanguageModel(replace(SMALL, encoding=encoding)))
    tokens, keep = words(1, 12), torch.arange(12)[None] < 8
    assert_near(model(tokens, keep=keep)[:, :8], model(tokens[:, :8]))
    if encoding not in ABSOLUTE:
        assert_near(model(tokens, keep=keep.flip(1))[:, 4:], model(tokens[:, 4:]))


@each_encoding
def test_a_cache_changes_no_logit(encoding):
    model = randomised(LanguageModel(replace(CAUSAL, encoding=encoding)))
    tokens, cache = words(2, 9), Cache()
    parts = [model(part, cache=cache) for part in tokens.split((5, 1, 3), 1)]
    assert_near(torch.cat(parts, 1), model(tokens))


# ---- translation ----


@pytest.mark.parametrize("encoding", ["none", "sinusoidal", "rope"])
def test_steps_with_a_cache_have_the_logits_of_teacher_forcing(encoding):
    model = randomised(Seq2Seq(replace(SMALL, encoding=encoding)))
    source, target, keep = words(2, 7), words(2, 6, seed=1), torch.arange(7) < torch.tensor([[7], [4]])
    context, cache = model.encoder(source, keep), Cache()
    steps = [model.decode(word, context, keep, cache) for word in target.split(1, 1)]
    assert_near(torch.cat(steps, 1), model(source, keep, target))
    assert_near(model(source, keep, target)[1:], model(source[1:, :4], None, target[1:]))
