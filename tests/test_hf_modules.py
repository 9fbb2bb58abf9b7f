"""rope_array.torch in models of transformers: the same bits as their rotary modules, loading and saving.

Collected only with `--models`, as it needs transformers and PyTorch.
"""

from dataclasses import replace

import pytest
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import rope_array as ra

transformers.logging.set_verbosity_error()
pytestmark = pytest.mark.filterwarnings("default")  # allow the warnings of transformers

needs_avx512 = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="PyTorch's power has other bits without AVX-512",
)
LENGTH = 64
RULES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
}
MODULES = {"fixed": ra.torch.RotaryEmbedding, "learned": ra.torch.LearnedRotaryEmbedding}


def config_of(rule):
    return LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_hidden_layers=2,
        intermediate_size=64,
        vocab_size=50,
        rope_parameters={"rope_theta": 10_000.0, **RULES[rule]},
        max_position_embeddings=LENGTH,
    )


def rope_of(config, angles="float32"):
    return replace(ra.RoPE.from_config(config), angles=angles)


@needs_avx512
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_tables_have_the_bits_of_llama(make, rule, dtype):
    config = config_of(rule)
    x, ids = torch.zeros(2, 3, 256, dtype=dtype), torch.tensor([[0, 1, 2], [7, 63, 100_000]])
    want = LlamaRotaryEmbedding(config)(x, ids)
    module = make(rope_of(config))
    for tables in (module(x, ids), module(x, position_ids=ids)):
        for table, truth in zip(tables, want, strict=True):
            assert table.dtype == truth.dtype
            assert torch.equal(table, truth)


@needs_avx512
@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_a_model_has_the_same_logits(make):
    config, tokens = config_of("llama3"), torch.arange(12)[None] % 50
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        want = model(tokens).logits
        model.model.rotary_emb = make(rope_of(config))
        assert torch.equal(model(tokens).logits, want)
        wrong = make(replace(rope_of(config), base=77.0, scaling=None))
        model.model.rotary_emb = wrong
        assert not torch.equal(model(tokens).logits, want)


class Model(LlamaForCausalLM):
    """A model whose code has a module of rope_array, as a user's own model class."""

    def __init__(self, config):
        super().__init__(config)
        self.model.rotary_emb = MODULES[config.rotary](rope_of(config))
        self.post_init()


@pytest.mark.parametrize("rotary", MODULES)
def test_a_model_is_saved_and_loaded(rotary, tmp_path):
    config, tokens = config_of("default"), torch.arange(12)[None] % 50
    config.rotary = rotary
    model = Model(config).eval()
    for parameter in model.model.rotary_emb.parameters():
        parameter.data += torch.linspace(-0.1, 0.1, parameter.numel())
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        loaded = Model.from_pretrained(tmp_path).eval()  # made on the device "meta"
        assert torch.equal(loaded(tokens).logits, model(tokens).logits)
        narrow = Model.from_pretrained(tmp_path, dtype=torch.bfloat16)
        narrow(tokens)
    state = {name: value for name, value in model.state_dict().items() if "rotary" in name}
    assert [*state] == (["model.rotary_emb.log_scale"] if rotary == "learned" else [])
    for name, value in narrow.state_dict().items():
        assert value.dtype == (torch.float32 if name in state else torch.bfloat16), name
        assert name not in state or torch.equal(value, state[name])
