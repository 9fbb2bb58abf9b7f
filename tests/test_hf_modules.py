"""rope_array.torch in models of transformers: the logits of the models, loading and saving."""

import pytest
import torch
from hf._tiny import Tiny
from transformers import LlamaForCausalLM

import rope_array as ra

pytestmark = pytest.mark.filterwarnings("default")  # allow the warnings of transformers

MODULES = {"fixed": ra.torch.RotaryEmbedding, "learned": ra.torch.LearnedRotaryEmbedding}
TOKENS = torch.arange(12)[None]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}  # with an amplitude


class Model(LlamaForCausalLM):
    """A model whose code has a module of rope_array, as a user's own model class."""

    def __init__(self, config):
        super().__init__(config)
        self.model.rotary_emb = MODULES[config.rotary](ra.RoPE.from_config(config))
        self.post_init()


@pytest.mark.parametrize("rotary", MODULES)
def test_a_model_is_saved_and_loaded(rotary, tmp_path):
    llama = Tiny("llama", {"rope_parameters": YARN}).make()
    llama.config.rotary = rotary
    model = Model(llama.config).eval()
    model.load_state_dict(llama.state_dict(), strict=False)
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS).logits, llama(TOKENS).logits, rtol=0, atol=1e-4)
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
