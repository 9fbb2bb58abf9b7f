"""Fingerprints of models of transformers: by layer the rope of the config, or the reason for a difference."""

import pytest
import torch
from hf._tiny import Tiny
from serving.tiny_models import MODELS, model_of

import rope_array as ra
from rope_array import FingerprintError, hf

pytestmark = pytest.mark.library("torch")
BY_LAYER = {"gemma3": ["sliding_attention", "full_attention"]}


def patched(model, length=None):
    hf.patch(model)
    return hf.fingerprint(model, length=length)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_patched_model_has_the_fingerprint_of_its_config(name, dtype):
    model = model_of(name).to(dtype)
    measured = patched(model)
    for layer, layer_type in enumerate(BY_LAYER.get(name, [None, None])):
        rope = ra.RoPE.from_config(model.config, layer_type=layer_type)
        expected = ra.fingerprint(rope, length=2**20, like=torch.empty(0, dtype=dtype))
        (rotation,) = (rotation for layers, rotation in measured.rotations if layer in layers)
        assert rotation == expected.rotations[0][1]


def test_coordinates_of_m_rope_are_measured_apart():
    model = Tiny("qwen2_vl").make()
    measured, expected = patched(model, 4096), ra.fingerprint(ra.RoPE.from_config(model.config), length=4096)
    assert measured.difference(expected) == ""
    sections = model.config.get_text_config().rope_parameters["mrope_section"]
    assert measured.rotations[0][1].axes == "".join(f"{i}" * n for i, n in enumerate(sections))


def test_an_indexer_which_has_another_layout_is_left_out():
    assert [layers for layers, _ in patched(Tiny("deepseek_v32").make(), 4096).rotations] == [(0, 1)]


DIFFERENCES = {
    "base": "qwen3",
    "rule": "yarn",
    "factor": "linear",
    "pairing": "ernie",
    "float32 angles": "llama",
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_explained(name):
    difference = hf.fingerprint(model_of(DIFFERENCES[name])).difference(patched(model_of("llama")))
    assert difference.startswith(f"layers 0-1: {name}: ")


def test_tables_and_frequencies_in_16_bits_are_found():
    plain, cast, expected = (model_of("llama").bfloat16() for _ in range(3))
    plain.model.rotary_emb.inv_freq = model_of("llama").model.rotary_emb.inv_freq  # as by from_pretrained
    expected = patched(expected)
    assert "16-bit tables: bfloat16 here" in hf.fingerprint(plain).difference(expected)
    assert "base: 9955 here" in hf.fingerprint(cast).difference(expected)


def test_a_model_stays_as_it_is():
    model, tokens = model_of("phi3").train(), torch.arange(20)[None]
    before = model(tokens).logits
    states = [(dict(vars(module)), dict(module._buffers)) for module in model.modules()]
    hf.fingerprint(model)
    assert [(dict(vars(module)), dict(module._buffers)) for module in model.modules()] == states
    assert torch.equal(model(tokens).logits, before)


REFUSALS = {
    "does not run on input_ids": ("pixtral", 64),
    "a shorter length": ("gptj", 4096),
    "has no rotation": ("gpt2", 64),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_a_model_that_cannot_be_measured_is_refused(message):
    name, length = REFUSALS[message]
    with pytest.raises(FingerprintError, match=message):
        hf.fingerprint(Tiny(name).make(), length=length)


def test_a_length_is_asked_for_where_no_config_has_it():
    with pytest.raises(FingerprintError, match="no max_position_embeddings; give length="):
        hf.fingerprint(torch.nn.Linear(2, 2))
