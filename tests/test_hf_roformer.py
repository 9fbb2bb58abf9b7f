"""The models of bench/roformer with the weights of transformers' RoFormer: the same numbers.

Collected only with `--models`, as it needs transformers and PyTorch.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

sys.path.append(str(Path(__file__).parents[1] / "bench"))

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

pytestmark = pytest.mark.library("torch")

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

WORDS = 50
FLOAT32 = 1e-5
FLOAT64 = 1e-13
# The tables of transformers are rounded to float32, also in a float64 model.
FLOAT32_TABLES = 1e-6

SIZES = {
    "small": {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64},
    "narrow-embeddings": {"hidden_size": 48, "embedding_size": 20, "num_attention_heads": 3},
    "heads-of-64": {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 96},
    "one-head": {"hidden_size": 6, "num_attention_heads": 1, "num_hidden_layers": 4},
}


def theirs(kind, sizes="small", dtype=torch.float64, **fields):
    """Return a random model of transformers, in which every weight has an effect."""
    fields = {"num_hidden_layers": 2, "intermediate_size": 40, **SIZES[sizes], **fields}
    config = RoFormerConfig(vocab_size=WORDS, max_position_embeddings=512, pad_token_id=None, **fields)
    torch.manual_seed(0)
    model = kind(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            deviation = 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
            torch.nn.init.normal_(parameter, 1.0 if name.endswith("LayerNorm.weight") else 0.0, deviation)
    return model.to(dtype)


def ours(model):
    """Return the model of the study with the weights of a model of transformers."""
    config = config_from(model.config)
    if isinstance(model, RoFormerModel):
        copy = Transformer(config, cross=model.config.add_cross_attention)
    elif isinstance(model, RoFormerForSequenceClassification):
        copy = Classifier(config, model.config.num_labels)
    else:
        copy = LanguageModel(config)
    load(copy.to(model.dtype), model.state_dict())
    return copy


def exact_tables(model):
    """Replace the tables by sin and cos in float64."""
    table = model.base_model.encoder.embed_positions.weight
    positions, half = np.arange(len(table))[:, None], table.shape[1] // 2
    angles = positions / 10000.0 ** (np.arange(half) / half)
    table.data = torch.from_numpy(np.concatenate((np.sin(angles), np.cos(angles)), 1))
    return model


def random_words(*shape):
    return torch.randint(1, WORDS, shape, generator=torch.Generator().manual_seed(0))


def padded(length):
    """Return words, and keep, of three texts with padding on the right."""
    keep = torch.arange(length) < torch.tensor([[length], [length // 2 + 1], [1]])
    return random_words(3, length) * keep, keep


@torch.no_grad()
def difference(model, length):
    """Return the largest absolute difference of outputs, at words and not at padding."""
    words, keep = padded(length)
    types = words % 2
    expected = model(words, attention_mask=keep.long(), token_type_ids=types)[0]
    y = ours(model)(words, keep=keep, types=types)
    assert y.shape == expected.shape
    difference = (y - expected).abs()
    return difference[keep].max() if y.ndim == 3 else difference.max()


MODELS = pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (RoFormerModel, {}),
        (RoFormerForMaskedLM, {}),
        (RoFormerForCausalLM, {"is_decoder": True}),
        (RoFormerForSequenceClassification, {"num_labels": 5}),
    ],
    ids=["hidden", "masked", "causal", "classes"],
)


@MODELS
@pytest.mark.parametrize("length", [1, 17, 512])
@pytest.mark.parametrize("sizes", SIZES)
def test_float32_models_agree(kind, fields, sizes, length):
    assert difference(theirs(kind, sizes, torch.float32, **fields), length) < FLOAT32


@MODELS
@pytest.mark.parametrize("sizes", SIZES)
def test_float64_models_agree_to_float64_with_exact_tables(kind, fields, sizes):
    model = theirs(kind, sizes, **fields)
    assert FLOAT64 < difference(model, 512) < FLOAT32_TABLES
    assert difference(exact_tables(model), 512) < FLOAT64


@torch.no_grad()
def test_cross_attention_agrees():
    model = exact_tables(theirs(RoFormerModel, is_decoder=True, add_cross_attention=True))
    context, keep = torch.randn(3, 9, 32, dtype=torch.float64), padded(9)[1]
    words = random_words(3, 7)
    expected = model(words, encoder_hidden_states=context, encoder_attention_mask=keep.long())[0]
    y = ours(model)(words, context=context, context_keep=keep)
    torch.testing.assert_close(y, expected, atol=FLOAT64, rtol=0)


@torch.no_grad()
def lively(model):
    """Make generated words vary, where random weights repeat one. Rounding errors grow a hundredfold."""
    model.roformer.embeddings.word_embeddings.weight *= 6
    for layer in model.roformer.encoder.layer:
        attention = layer.attention
        for linear in (
            *(getattr(attention.self, name) for name in ("query", "key", "value")),
            attention.output.dense,
        ):
            linear.weight *= 3
    head = model.cls.predictions
    for bias in (head.bias, head.transform.dense.bias, head.transform.LayerNorm.bias):
        bias.zero_()
    return model


@pytest.mark.parametrize("padding", [None, "left"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@torch.no_grad()
def test_generated_tokens_and_logits_agree(padding, dtype):
    model = exact_tables(lively(theirs(RoFormerForCausalLM, is_decoder=True, num_hidden_layers=3))).to(dtype)
    words, steps = random_words(3, 8), 40
    keep = torch.arange(8) >= torch.tensor([[0], [3], [7]]) if padding else torch.ones(3, 8, dtype=torch.bool)
    options = {"output_logits": True, "return_dict_in_generate": True, "pad_token_id": 0}
    expected = model.generate(
        words, attention_mask=keep.long(), max_new_tokens=steps, do_sample=False, **options
    )
    copy = ours(model)
    tokens = generate(copy, words, steps, keep)
    assert torch.equal(tokens, expected.sequences)
    assert len(tokens[:, 8:].unique()) >= 6
    every = torch.cat((keep, torch.ones(3, steps, dtype=torch.bool)), 1)
    logits = copy(tokens, keep=every)[:, 7:-1]  # in one pass, without the cache
    # `generate` of transformers returns float32.
    torch.testing.assert_close(logits.float(), torch.stack(expected.logits, 1), atol=100 * FLOAT32, rtol=0)
    in_one_pass = model(tokens, attention_mask=every.long()).logits[:, 7:-1]
    most = 100 * (FLOAT32 if dtype == torch.float32 else FLOAT64)
    torch.testing.assert_close(logits, in_one_pass, atol=most, rtol=0)


# Configs.


def test_a_config_is_read_from_an_object_a_dict_and_a_file(tmp_path):
    config = theirs(RoFormerModel, "narrow-embeddings", is_decoder=True).config
    expected = Config(
        vocab_size=WORDS,
        hidden_size=48,
        embedding_size=20,
        num_layers=2,
        num_heads=3,
        intermediate_size=40,
        max_length=512,
        causal=True,
    )
    config.save_pretrained(tmp_path)
    of_file = json.loads((tmp_path / "config.json").read_text())
    assert config_from(config) == config_from(config.to_dict()) == config_from(of_file) == expected
    assert config_from(RoFormerConfig(layer_norm_eps=1e-5, type_vocab_size=7)).eps == 1e-5
    assert config_from(RoFormerConfig(layer_norm_eps=1e-5, type_vocab_size=7)).num_types == 7


def test_a_config_may_leave_out_the_defaults():
    full = RoFormerConfig()
    left_out = ("is_decoder", "layer_norm_eps", "embedding_size", "rotary_value", "tie_word_embeddings")
    short = {name: value for name, value in full.to_dict().items() if name not in left_out}
    assert config_from(short) == replace(config_from(full), embedding_size=None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu': only 'gelu'"),
        ({"hidden_act": "gelu_new"}, "hidden_act is 'gelu_new': only 'gelu'"),
        ({"rotary_value": True}, "rotary_value is True: only False"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False: only True"),
        ({"model_type": "bert"}, "model_type is 'bert': only 'roformer'"),
    ],
    ids=["relu", "approximate-gelu", "rotated-values", "untied", "bert"],
)
def test_other_roformers_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        config_from({**RoFormerConfig().to_dict(), **fields})


def test_a_config_without_sizes_is_refused():
    values = RoFormerConfig().to_dict()
    del values["num_hidden_layers"], values["intermediate_size"]
    with pytest.raises(ValueError, match="lacks num_hidden_layers, intermediate_size"):
        config_from(values)


# Weights.


def test_the_weights_of_a_file_need_no_copies():
    model = theirs(RoFormerForMaskedLM)
    state = {name: value for name, value in model.state_dict().items() if "decoder" not in name}
    copy = LanguageModel(config_from(model.config))
    load(copy, state)
    assert torch.equal(copy.head.bias, model.cls.predictions.bias.float())


WRONG = {
    "missing": ("roformer.embeddings.LayerNorm.bias", None, "lacks roformer.embeddings.LayerNorm.bias"),
    "left-over": ("roformer.pooler.bias", torch.ones(3), "has no roformer.pooler.bias"),
    "untied": ("cls.predictions.decoder.bias", torch.ones(WORDS), "not tied.*: cls.predictions.decoder.bias"),
    "layer": ("roformer.encoder.layer.2.output.dense.bias", torch.ones(32), "has no .*layer.2.output.dense"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_weights_are_refused(case):
    name, value, message = WRONG[case]
    model = theirs(RoFormerForMaskedLM)
    state = {**model.state_dict(), name: value}
    if value is None:
        del state[name]
    with pytest.raises(ValueError, match=message):
        load(LanguageModel(config_from(model.config)), state)


def test_a_head_is_not_dropped():
    model = theirs(RoFormerForMaskedLM)
    with pytest.raises(ValueError, match=r"lacks classifier.dense.bias"):
        load(Classifier(config_from(model.config), 2), model.state_dict())
    body = {name.removeprefix("roformer."): value for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"has no cls.predictions.bias"):
        load(Transformer(config_from(model.config)), body)


def test_another_encoding_is_refused():
    model = theirs(RoFormerModel)
    with pytest.raises(ValueError, match=r"RoFormer has no layers.0.attention.encoding"):
        load(Transformer(replace(config_from(model.config), encoding="learned")), model.state_dict())


def test_other_sizes_are_refused():
    model = theirs(RoFormerModel)
    with pytest.raises(RuntimeError, match=r"size mismatch for words.weight"):
        load(Transformer(replace(config_from(model.config), vocab_size=7)), model.state_dict())
