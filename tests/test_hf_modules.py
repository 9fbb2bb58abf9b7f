"""rope_array.torch in models of transformers: the same bits as their rotary modules, loading and saving.

Collected only with `--models`, as it needs transformers and PyTorch.
"""

from dataclasses import replace

import pytest
import torch
from hf._compare import needs_avx512
from hf._tiny import Tiny
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import rope_array as ra

pytestmark = pytest.mark.filterwarnings("default")  # allow the warnings of transformers

# YaRN has an amplitude; the frequencies of each rule are compared in tests/test_hf.py.
RULES = {"default": {}, "yarn": {"factor": 4.0, "original_max_position_embeddings": 32}}
MODULES = {"fixed": ra.torch.RotaryEmbedding, "learned": ra.torch.LearnedRotaryEmbedding}
TOKENS = torch.arange(12)[None] % 50


def llama(rule):
    return Tiny("llama", {"head_dim": 128, "rope_parameters": {"rope_type": rule, **RULES[rule]}}).make()


def rope_of(config):
    return replace(ra.RoPE.from_config(config), angles="float32")


@needs_avx512
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_tables_and_logits_have_the_bits_of_llama(make, rule):
    model, ids = llama(rule), torch.tensor([[0, 1, 2], [7, 63, 100_000]])
    module = make(rope_of(model.config))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.zeros(2, 3, 256, dtype=dtype)
        want = LlamaRotaryEmbedding(model.config)(x, ids)
        for tables in (module(x, ids), module(x, position_ids=ids)):
            assert [table.dtype for table in tables] == [dtype, dtype]
            assert all(map(torch.equal, tables, want))
    with torch.no_grad():
        want = model(TOKENS).logits
        model.model.rotary_emb = module
        assert torch.equal(model(TOKENS).logits, want)
        model.model.rotary_emb = make(replace(rope_of(model.config), base=77.0, scaling=None))
        assert not torch.equal(model(TOKENS).logits, want)


class Model(LlamaForCausalLM):
    """A model whose code has a module of rope_array, as a user's own model class."""

    def __init__(self, config):
        super().__init__(config)
        self.model.rotary_emb = MODULES[config.rotary](rope_of(config))
        self.post_init()


@pytest.mark.parametrize("rotary", MODULES)
def test_a_model_is_saved_and_loaded(rotary, tmp_path):
    config = llama("default").config
    config.rotary = rotary
    model = Model(config).eval()
    for parameter in model.model.rotary_emb.parameters():
        parameter.data += torch.linspace(-0.1, 0.1, parameter.numel())
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        loaded = Model.from_pretrained(tmp_path).eval()  # made on the device "meta"
        assert torch.equal(loaded(TOKENS).logits, model(TOKENS).logits)
        narrow = Model.from_pretrained(tmp_path, dtype=torch.bfloat16)
        narrow(TOKENS)
    state = {name: value for name, value in model.state_dict().items() if "rotary" in name}
    assert [*state] == (["model.rotary_emb.log_scale"] if rotary == "learned" else [])
    for name, value in narrow.state_dict().items():
        assert value.dtype == (torch.float32 if name in state else torch.bfloat16), name
        assert name not in state or torch.equal(value, state[name])
