"""The study's models with every encoding: masks, padding, the cache, generation and translation.

tests/test_hf_roformer.py compares layers, heads and cross attention with transformers' RoFormer.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from roformer.encodings import ENCODINGS
from roformer.generation import generate, translate
from roformer.model import Cache, Config, LanguageModel, Seq2Seq

pytestmark = pytest.mark.library("torch")

torch.set_num_threads(1)

SMALL = Config(vocab_size=11, hidden_size=8, num_layers=2, num_heads=2, intermediate_size=12, max_length=32)
CAUSAL = replace(SMALL, causal=True)
ABSOLUTE = ("sinusoidal", "learned", "tupe-absolute", "tupe-relative")  # padding moves their positions
BEGIN, END = 1, 2
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


def test_generated_tokens_are_the_likeliest_with_padding_too():
    model, tokens = randomised(LanguageModel(CAUSAL)), words(20, 8)
    padding = torch.arange(20) % 8
    together = generate(model, tokens, 9, torch.arange(8) >= padding[:, None])
    for row, start in enumerate(padding):
        expected = tokens[row : row + 1, start:]
        for _ in range(9):
            expected = torch.cat((expected, model(expected)[:, -1].argmax(-1, keepdim=True)), 1)
        assert torch.equal(together[row, start:], expected[0])
    with pytest.raises(ValueError, match="causal"):
        generate(LanguageModel(SMALL), tokens, 1)


# ---- translation ----


def translator():
    """Return a model that ends a target after a few words."""
    model = randomised(Seq2Seq(SMALL), seed=2)
    model.head.bias.data[END] += 0.9
    model.decoder.words.weight *= 2  # words are more certain, and targets end sooner or later
    return model


@pytest.mark.parametrize("encoding", ["none", "sinusoidal", "rope"])
def test_steps_with_a_cache_have_the_logits_of_teacher_forcing(encoding):
    model = randomised(Seq2Seq(replace(SMALL, encoding=encoding)))
    source, target, keep = words(2, 7), words(2, 6, seed=1), torch.arange(7) < torch.tensor([[7], [4]])
    context, cache = model.encoder(source, keep), Cache()
    steps = [model.decode(word, context, keep, cache) for word in target.split(1, 1)]
    assert_near(torch.cat(steps, 1), model(source, keep, target))
    assert_near(model(source, keep, target)[1:], model(source[1:, :4], None, target[1:]))


def rank(score, target, penalty):
    """Return the score of Wu et al., eq. 14, without its coverage."""
    return score / ((5 + len(target)) / 6) ** penalty


def continuations(model, source, target, score):
    """Yield each target with one more word, and its log-probability."""
    if END in target:
        yield target, score
        return
    logits = model(source, None, torch.tensor([[BEGIN, *target]]))[0, -1]
    for word, value in enumerate(logits.log_softmax(-1).tolist()):
        yield (*target, word), score + value


def best_target(model, source, steps, beams, penalty):
    """Return the best target of a beam search by lists, without a cache."""
    kept = [((), 0.0)]
    for _ in range(steps):
        longer = [new for target, score in kept for new in continuations(model, source, target, score)]
        kept = sorted(longer, key=lambda new: -rank(new[1], new[0], penalty))[:beams]
    return kept[0][0]


@pytest.mark.parametrize("penalty", [0.0, 0.6, 3.0])
@pytest.mark.parametrize("beams", [1, 2, 5])
def test_beams_keep_the_best_targets(beams, penalty):
    """Of sources together, some of them padded, the target of each alone."""
    model, source = translator(), words(30, 5, seed=2)
    sizes = torch.tensor([3, 4, 5, 5, 5]).repeat(6)
    keep = torch.arange(5) < sizes[:, None]
    targets = translate(model, source, keep, BEGIN, END, max_steps=6, beams=beams, penalty=penalty)
    lengths = set()
    for target, each, size in zip(targets.tolist(), source, sizes, strict=True):
        best = best_target(model, each[None, :size], 6, beams, penalty)
        lengths.add(len(best))
        assert target == [*best] + [END] * (len(target) - len(best))
    assert len(lengths) > 1
