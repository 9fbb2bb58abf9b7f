"""The models of bench/roformer with the weights of transformers' RoFormer: the same numbers."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from roformer.generation import generate
from roformer.model import Classifier, Config, LanguageModel, Transformer
from roformer.weights import config_from, load
from transformers import (
    RoFormerConfig,
    RoFormerForCausalLM,
    RoFormerForMaskedLM,
    RoFormerForSequenceClassification,
    RoFormerModel,
)

from rope_array import ConfigError, RoPE, convert

pytestmark = pytest.mark.library("torch")

torch.set_num_threads(1)

WORDS, LONGEST = 50, 128
FLOAT32, FLOAT64 = 1e-5, 1e-13
FLOAT32_TABLES = 1e-6  # the tables of transformers are rounded to float32, also in a float64 model
SMALL = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}


def theirs(cls, dtype=torch.float64, **fields):
    """Return a random model of transformers, in which every weight has an effect."""
    fields = {"num_hidden_layers": 2, **SMALL, **fields}
    config = RoFormerConfig(vocab_size=WORDS, max_position_embeddings=LONGEST, pad_token_id=None, **fields)
    torch.manual_seed(0)
    model = cls(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            deviation = 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
            torch.nn.init.normal_(parameter, 1.0 if name.endswith("LayerNorm.weight") else 0.0, deviation)
    return model.to(dtype)


def ours(model):
    """Return the model of the study with the weights of a model of transformers."""
    config = config_from(model.config)
    if isinstance(model, RoFormerModel):
        model_of_study = Transformer(config, cross=model.config.add_cross_attention)
    elif isinstance(model, RoFormerForSequenceClassification):
        model_of_study = Classifier(config, model.config.num_labels)
    else:
        model_of_study = LanguageModel(config)
    load(model_of_study.to(model.dtype), model.state_dict())
    return model_of_study


def exact_tables(model):
    """Replace the tables by sin and cos in float64."""
    table = model.base_model.encoder.embed_positions.weight
    positions, half = np.arange(len(table))[:, None], table.shape[1] // 2
    angles = positions / 10000.0 ** (np.arange(half) / half)
    table.data = torch.from_numpy(np.concatenate((np.sin(angles), np.cos(angles)), 1))
    return model


def random_words(*shape):
    return torch.randint(1, WORDS, shape, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def difference(model, length):
    """Return the largest difference at the words of three texts, two with padding on the right."""
    keep = torch.arange(length) < torch.tensor([[length], [length // 2 + 1], [1]])
    words = random_words(3, length) * keep
    expected = model(words, attention_mask=keep.long(), token_type_ids=words % 2)[0]
    y = ours(model)(words, keep=keep, types=words % 2)
    assert y.shape == expected.shape
    return (y - expected).abs()[keep if y.ndim == 3 else ...].max()


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (RoFormerModel, {"hidden_size": 48, "embedding_size": 20, "num_attention_heads": 3}),
        (RoFormerForMaskedLM, {"hidden_size": 128, "num_attention_heads": 2}),
        (RoFormerForCausalLM, {"is_decoder": True}),
        (RoFormerForSequenceClassification, {"num_labels": 5, "hidden_size": 6, "num_attention_heads": 1}),
    ],
    ids=["hidden", "masked", "causal", "classes"],
)
def test_models_agree(cls, fields):
    for length in (1, 17, LONGEST):
        assert difference(theirs(cls, torch.float32, **fields), length) < FLOAT32
    model = theirs(cls, **fields)
    assert FLOAT64 < difference(model, LONGEST) < FLOAT32_TABLES
    assert difference(exact_tables(model), LONGEST) < FLOAT64


@torch.no_grad()
def test_cross_attention_agrees():
    model = exact_tables(theirs(RoFormerModel, is_decoder=True, add_cross_attention=True))
    context, words = torch.randn(3, 9, 32, dtype=torch.float64), random_words(3, 7)
    keep = torch.arange(9) < torch.tensor([[9], [5], [1]])
    expected = model(words, encoder_hidden_states=context, encoder_attention_mask=keep.long())[0]
    y = ours(model)(words, context=context, context_keep=keep)
    torch.testing.assert_close(y, expected, atol=FLOAT64, rtol=0)


@torch.no_grad()
def test_converted_weights_give_the_outputs_with_half_pairs(monkeypatch):
    model, words, rope = (
        exact_tables(theirs(RoFormerForMaskedLM)),
        random_words(2, 20),
        RoPE(8, pairing="half"),
    )
    own, state = model(words)[0], convert.weights(model.state_dict(), model.config, "half")
    attention, name = type(model.roformer.encoder.layer[0].attention.self), "apply_rotary_position_embeddings"
    monkeypatch.setattr(attention, name, lambda self, tables, *qk: rope.apply(qk, range(20)))
    assert (model(words)[0] - own).abs().max() > 0.01
    model.load_state_dict(state)
    torch.testing.assert_close(model(words)[0], own, atol=FLOAT64, rtol=0)
    with pytest.raises(ConfigError, match="values"):
        convert.weights(state, {**model.config.to_dict(), "rotary_value": True}, "half")


@torch.no_grad()
def lively(model):
    """Make generated words vary, where random weights repeat one. Rounding errors grow a hundredfold."""
    for name, weight in model.named_parameters():
        if "word_embeddings" in name:
            weight *= 6
        elif name.endswith("weight") and ("attention.self" in name or "attention.output.dense" in name):
            weight *= 3
        elif name.startswith("cls") and name.endswith("bias"):
            weight.zero_()
    return model


@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_generated_tokens_and_logits_agree(padded):
    model = exact_tables(lively(theirs(RoFormerForCausalLM, is_decoder=True, num_hidden_layers=3)))
    words, steps = random_words(3, 8), 40
    keep = torch.arange(8) >= torch.tensor([[0], [3], [7]]) * padded
    expected = model.generate(
        words, attention_mask=keep.long(), max_new_tokens=steps, do_sample=False, pad_token_id=0
    )
    copy = ours(model)
    tokens = generate(copy, words, steps, keep)
    assert torch.equal(tokens, expected)
    assert len(tokens[:, 8:].unique()) >= 6
    every = torch.cat((keep, torch.ones(3, steps, dtype=torch.bool)), 1)
    logits = model(tokens, attention_mask=every.long()).logits[:, 7:-1]
    torch.testing.assert_close(copy(tokens, keep=every)[:, 7:-1], logits, atol=100 * FLOAT64, rtol=0)


def test_a_config_is_read_from_an_object_and_a_file():
    fields = {"embedding_size": 20, "is_decoder": True, "layer_norm_eps": 1e-5, "type_vocab_size": 7}
    config = theirs(RoFormerModel, **fields).config
    sizes = {"hidden_size": 32, "embedding_size": 20, "intermediate_size": 64, "max_length": LONGEST}
    expected = Config(WORDS, **sizes, causal=True, eps=1e-5, num_types=7)
    assert config_from(config) == config_from(json.loads(config.to_json_string())) == expected
    left_out = ("is_decoder", "layer_norm_eps", "embedding_size", "rotary_value", "tie_word_embeddings")
    short = {name: value for name, value in RoFormerConfig().to_dict().items() if name not in left_out}
    assert config_from(short) == replace(config_from(RoFormerConfig()), embedding_size=None)


def test_other_configs_are_refused():
    changes = {"hidden_act": "relu", "rotary_value": True, "tie_word_embeddings": False, "model_type": "bert"}
    for name, value in changes.items():
        with pytest.raises(ValueError, match=f"{name} is {value!r}: only"):
            config_from({**RoFormerConfig().to_dict(), name: value})


def test_other_weights_are_refused():
    model = theirs(RoFormerForMaskedLM)
    config, state = config_from(model.config), model.state_dict()
    lacking = {name: value for name, value in state.items() if name != "roformer.embeddings.LayerNorm.bias"}
    untied = {"cls.predictions.decoder.bias": torch.ones(WORDS)}
    for model_of_study, weights, message in (
        (LanguageModel(config), lacking, "lacks roformer.embeddings.LayerNorm.bias"),
        (LanguageModel(config), state | {"roformer.pooler.bias": torch.ones(3)}, "has no roformer.pooler"),
        (LanguageModel(config), state | untied, "not tied.*: cls.predictions.decoder.bias"),
        (LanguageModel(replace(config, encoding="learned")), state, "has no .*layers.0.attention.encoding"),
    ):
        with pytest.raises(ValueError, match=message):
            load(model_of_study, weights)
    load(LanguageModel(config), {name: value for name, value in state.items() if "decoder" not in name})
