"""The models of bench/roformer against NumPy in float64, written from the equations of the papers.

The equations: Vaswani et al. (arXiv 1706.03762) for attention, BERT (arXiv 1810.04805) for the layers,
RoFormer (arXiv 2104.09864, eq. 14 to 16) for the rotation of queries and keys.
"""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from roformer.encodings import ENCODINGS
from roformer.generation import generate, translate
from roformer.model import Cache, Classifier, Config, LanguageModel, Seq2Seq, Transformer

pytestmark = pytest.mark.library("torch")

torch.set_num_threads(1)

SMALL = Config(vocab_size=11, hidden_size=8, num_layers=2, num_heads=2, intermediate_size=12, max_length=32)
NARROW = replace(SMALL, hidden_size=24, embedding_size=10, num_layers=3, num_heads=3)
CAUSAL = replace(SMALL, causal=True)
ABSOLUTE = ("sinusoidal", "learned", "tupe-absolute", "tupe-relative")  # padding moves their positions
ROUNDING = 1e-12  # of float64, in sums of tens of products
BEGIN, END = 1, 2


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


# The oracle: NumPy, one sequence at a time, one head at a time.


class Oracle:
    def __init__(self, model, config):
        self.weights = {name: value.numpy() for name, value in model.state_dict().items()}
        self.config = config

    def linear(self, name, x):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name, x):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.config.eps)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attention(self, name, x, context, visible, rotated):
        """Return attention of x (S, d) to context (T, d) where visible (S, T)."""
        dim = self.config.hidden_size // self.config.num_heads
        heads = []
        for h in range(self.config.num_heads):
            part = slice(h * dim, (h + 1) * dim)
            q = self.linear(f"{name}.query", x)[:, part]
            k, v = (self.linear(f"{name}.{role}", context)[:, part] for role in ("key", "value"))
            if rotated:
                q, k = (np.stack([rotation(m, dim) @ row for m, row in enumerate(rows)]) for rows in (q, k))
            weights = np.exp(q @ k.T / math.sqrt(dim)) * visible
            heads.append(weights / weights.sum(-1, keepdims=True) @ v)
        return self.linear(f"{name}.output", np.concatenate(heads, -1))

    def body(self, name, tokens, keep, types=None, causal=False, context=None, context_keep=None):
        """Return hidden states of one sequence. `name` is a prefix of weights."""
        types = np.zeros_like(tokens) if types is None else types
        x = self.weights[f"{name}words.weight"][tokens] + self.weights[f"{name}types.weight"][types]
        x = self.norm(f"{name}embedding_norm", x)
        if f"{name}project.weight" in self.weights:
            x = self.linear(f"{name}project", x)
        visible = np.tile(keep, (len(tokens), 1))
        visible = np.tril(visible) if causal else visible
        for i in range(self.config.num_layers):
            x = self.layer(f"{name}layers.{i}", x, visible, context, context_keep)
        return x

    def layer(self, name, x, visible, context, context_keep):
        x = self.norm(f"{name}.attention_norm", x + self.attention(f"{name}.attention", x, x, visible, True))
        if context is not None:
            y = self.attention(f"{name}.cross", x, context, np.tile(context_keep, (len(x), 1)), False)
            x = self.norm(f"{name}.cross_norm", x + y)
        inner = gelu(self.linear(f"{name}.inner", x))
        return self.norm(f"{name}.norm", x + self.linear(f"{name}.outer", inner))

    def head(self, x):
        x = self.norm("head.norm", gelu(self.linear("head.dense", x)))
        return x @ self.weights["head.words.weight"].T + self.weights["head.bias"]


def rotation(m, dim):
    """Return R(m) of RoFormer, eq. 15, with θ_i = 10000^(−2(i−1)/d)."""
    matrix = np.zeros((dim, dim))
    for i in range(dim // 2):
        angle = m * 10000 ** (-2 * i / dim)
        matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [
            [math.cos(angle), -math.sin(angle)],
            [math.sin(angle), math.cos(angle)],
        ]
    return matrix


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def assert_near(x, y, most=ROUNDING):
    torch.testing.assert_close(torch.as_tensor(x), torch.as_tensor(y), atol=most, rtol=0)


@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("config", [SMALL, NARROW], ids=["small", "narrow"])
@torch.no_grad()
def test_hidden_states_and_logits_are_the_papers(config, causal):
    model = randomised(LanguageModel(replace(config, causal=causal)))
    tokens, types = words(2, 9), words(2, 9, seed=1) % 2
    keep = torch.ones(2, 9, dtype=torch.bool)
    keep[1, 6:] = False
    oracle = Oracle(model, config)
    hidden, logits = model.body(tokens, keep=keep, types=types), model(tokens, keep=keep, types=types)
    for row in range(2):
        expected = oracle.body("body.", *(each[row].numpy() for each in (tokens, keep, types)), causal)
        assert_near(hidden[row], expected)
        assert_near(logits[row], oracle.head(expected))


@torch.no_grad()
def test_classes_come_from_the_first_token():
    model = randomised(Classifier(SMALL, 3))
    tokens, oracle = words(1, 7), Oracle(model, SMALL)
    first = oracle.body("body.", tokens[0].numpy(), np.ones(7, bool))[0]
    assert_near(model(tokens)[0], oracle.linear("output", gelu(oracle.linear("dense", first))))


@torch.no_grad()
def test_translation_logits_are_the_papers():
    model = randomised(Seq2Seq(NARROW))
    source, target = words(2, 7), words(2, 5, seed=1)
    keep = torch.arange(7) < torch.tensor([[7], [4]])
    logits, oracle = model(source, keep, target), Oracle(model, NARROW)
    for row in range(2):
        shown = keep[row].numpy()
        context = oracle.body("encoder.", source[row].numpy(), shown)
        everything = np.ones(5, bool)
        x = oracle.body("decoder.", target[row].numpy(), everything, None, True, context, shown)
        assert_near(logits[row], oracle.head(x))


# Masks.


@pytest.mark.parametrize("encoding", ENCODINGS)
@torch.no_grad()
def test_a_later_token_changes_no_earlier_logit(encoding):
    model = randomised(LanguageModel(replace(CAUSAL, encoding=encoding)))
    tokens, at = words(1, 12), 7
    changed = tokens.clone()
    changed[0, at] += 1 if tokens[0, at] < 10 else -1
    before, after = model(tokens), model(changed)
    assert_near(before[:, :at], after[:, :at])
    assert ((before - after).abs().amax(-1)[:, at:] > 1e-6).all()


@pytest.mark.parametrize("encoding", ENCODINGS)
@torch.no_grad()
def test_padding_on_the_right_changes_nothing(encoding):
    model = randomised(LanguageModel(replace(SMALL, encoding=encoding)))
    tokens, keep = words(1, 12), torch.arange(12)[None] < 8
    assert_near(model(tokens, keep=keep)[:, :8], model(tokens[:, :8]))
    assert (model(tokens)[:, :8] - model(tokens[:, :8])).abs().max() > 1e-6


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name not in ABSOLUTE])
@torch.no_grad()
def test_padding_on_the_left_changes_nothing(encoding):
    model = randomised(LanguageModel(replace(CAUSAL, encoding=encoding)))
    tokens, keep = words(1, 12), torch.arange(12)[None] >= 4
    assert_near(model(tokens, keep=keep)[:, 4:], model(tokens[:, 4:]))


# The cache.


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("sizes", [(1,) * 9, (5, 1, 3)], ids=["one", "several"])
@torch.no_grad()
def test_a_cache_changes_no_logit(encoding, sizes):
    model = randomised(LanguageModel(replace(CAUSAL, encoding=encoding)))
    tokens, cache = words(2, 9), Cache()
    parts = [model(part, cache=cache) for part in tokens.split(sizes, 1)]
    assert_near(torch.cat(parts, 1), model(tokens))
    assert cache.length == 9


@torch.no_grad()
def test_the_likeliest_tokens_are_generated():
    model = randomised(LanguageModel(CAUSAL))
    tokens = expected = words(2, 4)
    for _ in range(9):
        new = model(expected)[:, -1].argmax(-1, keepdim=True)
        expected = torch.cat((expected, new), 1)
    assert torch.equal(generate(model, tokens, 9), expected)


def test_padded_texts_generate_the_same():
    model, tokens = randomised(LanguageModel(CAUSAL)), words(20, 8)
    padding = torch.arange(20) % 8
    together = generate(model, tokens, 9, torch.arange(8) >= padding[:, None])
    for row, start in zip(range(20), padding, strict=True):
        alone = generate(model, tokens[row : row + 1, start:], 9)
        assert torch.equal(together[row, start:], alone[0])


@torch.no_grad()
def test_drawn_tokens_have_the_probabilities_of_the_model():
    model, count = randomised(LanguageModel(CAUSAL)), 20_000
    tokens = words(1, 4).expand(count, -1)
    drawn = generate(model, tokens, 1, generator=torch.Generator().manual_seed(0))[:, -1]
    again = generate(model, tokens, 1, generator=torch.Generator().manual_seed(0))[:, -1]
    assert torch.equal(drawn, again)
    p = model(tokens[:1])[0, -1].softmax(-1)
    deviation = (p * (1 - p) / count).sqrt()
    assert ((drawn.bincount(minlength=len(p)) / count - p).abs() < 5 * deviation).all()


def test_generation_needs_a_causal_model():
    with pytest.raises(ValueError, match="causal=True"):
        generate(LanguageModel(SMALL), words(1, 4), 1)


# Translation.


def translator():
    """Return a model that ends a target after a few words."""
    model = randomised(Seq2Seq(SMALL), seed=2)
    model.head.bias.data[END] += 0.9
    return model


@pytest.mark.parametrize("encoding", ["none", "sinusoidal", "rope"])
@torch.no_grad()
def test_steps_with_a_cache_have_the_logits_of_teacher_forcing(encoding):
    model = randomised(Seq2Seq(replace(SMALL, encoding=encoding)))
    source, target, keep = words(2, 7), words(2, 6, seed=1), torch.arange(7) < torch.tensor([[7], [4]])
    context, cache = model.encoder(source, keep), Cache()
    steps = [model.decode(word, context, keep, cache) for word in target.split(1, 1)]
    assert_near(torch.cat(steps, 1), model(source, keep, target))


@torch.no_grad()
def test_a_context_is_projected_once():
    model, calls = randomised(Seq2Seq(SMALL)), []
    for layer in model.decoder.layers:
        layer.cross.key.register_forward_hook(lambda *_: calls.append("key"))
    assert translate(model, words(2, 7), None, BEGIN, END, max_steps=5).shape[1] == 5
    assert len(calls) == SMALL.num_layers


@torch.no_grad()
def test_padding_of_a_source_changes_nothing():
    model, source, target = randomised(Seq2Seq(SMALL)), words(1, 7), words(1, 5, seed=1)
    keep = torch.arange(7)[None] < 4
    assert_near(model(source, keep, target), model(source[:, :4], None, target))


@torch.no_grad()
def test_cross_attention_has_no_position():
    model, target, order = randomised(Seq2Seq(SMALL)), words(1, 5), torch.tensor([3, 0, 2, 1])
    context = torch.randn(1, 4, SMALL.hidden_size, generator=torch.Generator().manual_seed(0)).double()
    assert_near(model.decode(target, context[:, order]), model.decode(target, context))


def test_one_table_of_words_serves_source_target_and_output():
    model = Seq2Seq(SMALL)
    tables = [p for p in model.parameters() if p.shape == (SMALL.vocab_size, SMALL.hidden_size)]
    assert len(tables) == 1
    model(words(1, 3), None, words(1, 3)).sum().backward()
    assert (tables[0].grad != 0).all()


def first_words(model, source, keep, steps):
    """Return the likeliest words of one source, one after another, without a cache."""
    target = [BEGIN]
    while len(target) <= steps and END not in target:
        logits = model(source, keep, torch.tensor([target]))
        target.append(int(logits[0, -1].argmax()))
    return target[1:]


@torch.no_grad()
def test_greedy_translations_end_on_their_own():
    model, source = translator(), words(12, 7, seed=2)
    keep = torch.arange(7) < 3 + torch.arange(12)[:, None] % 5
    together = translate(model, source, keep, BEGIN, END, max_steps=15)
    expected = [first_words(model, s[None], k[None], 15) for s, k in zip(source, keep, strict=True)]
    assert len({len(each) for each in expected}) > 2
    for row, each in enumerate(expected):
        alone = translate(model, source[row, None], keep[row, None], BEGIN, END, max_steps=15)
        assert alone.tolist() == [each]
        assert together[row].tolist() == each + [END] * (15 - len(each))


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
@torch.no_grad()
def test_beams_keep_the_best_targets(beams, penalty):
    model, source = translator(), words(30, 5, seed=2)
    model.decoder.words.weight *= 2  # words are more certain, and targets end sooner or later
    targets = translate(model, source, None, BEGIN, END, max_steps=6, beams=beams, penalty=penalty)
    lengths = set()
    for target, each in zip(targets.tolist(), source, strict=True):
        best = best_target(model, each[None], 6, beams, penalty)
        lengths.add(len(best))
        assert target == [*best] + [END] * (len(target) - len(best))
    assert len(lengths) > 1


@torch.no_grad()
def test_enough_beams_find_the_best_of_all_targets():
    model = randomised(Seq2Seq(replace(SMALL, vocab_size=4)), seed=4)
    source = words(3, 6) % 4
    targets = translate(model, source, None, BEGIN, END, max_steps=3, beams=64)
    for target, each in zip(targets.tolist(), source, strict=True):
        best = best_target(model, each[None], 3, 64, 0.6)
        assert target == [*best] + [END] * (3 - len(best))


@torch.no_grad()
def test_beams_of_sources_do_not_mix():
    model, source = translator(), words(5, 7, seed=2)
    keep = torch.arange(7) < torch.tensor([[7], [4], [3], [6], [5]])
    together = translate(model, source, keep, BEGIN, END, max_steps=8, beams=3)
    for row in range(5):
        alone = translate(model, source[row, None], keep[row, None], BEGIN, END, max_steps=8, beams=3)
        assert torch.equal(together[row, : alone.shape[1]], alone[0])


# Parameters.


def test_weights_begin_as_berts():
    torch.manual_seed(0)
    model = Transformer(Config(vocab_size=500))
    for name, value in model.named_parameters():
        if value.ndim == 2 and len(value) > 2:
            assert abs(float(value.detach().std()) / 0.02 - 1) < 0.05, name
        elif "norm" not in name and name.endswith("bias"):
            assert not value.any(), name


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_layers_share_a_shared_encoding(encoding):
    layers = Transformer(replace(SMALL, encoding=encoding)).layers
    one_module = layers[0].attention.encoding is layers[1].attention.encoding
    assert one_module == ENCODINGS[encoding].shared
