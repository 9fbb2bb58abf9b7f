"""`examine` of vLLM's layers and of whole engines: right layers have no finding, and faults are named."""

import json

import pytest
import torch
import transformers
from serving.test_engine import run
from serving.vllm_layers import make

import rope_array as ra

pytestmark = pytest.mark.library("torch")
CONFIG = {"head_dim": 32, "num_hidden_layers": 3, "max_position_embeddings": 4096, "rope_theta": 10000.0}


def model(*layers, dtype=torch.float32, **config):
    """Return a model with the names and the config that models of vLLM have."""
    blocks = torch.nn.ModuleList()
    for layer in layers:
        block = torch.nn.Module()
        block.self_attn = torch.nn.Module()
        block.self_attn.rotary_emb = layer
        blocks.append(block)
    made = torch.nn.Module()
    made.layers, made.head = blocks, torch.nn.Linear(2, 2, dtype=dtype)
    made.config = transformers.LlamaConfig(**CONFIG | config)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stock", [True, False])
def test_faults_of_layers_are_named(stock, dtype):
    right, wrong = (make("default", stock=stock, dtype=dtype, base=base) for base in (10000.0, 500000.0))
    assert ra.vllm.examine(model(right, right, right, dtype=dtype)).ok
    examination = ra.vllm.examine(model(right, wrong, make("interleaved", stock=stock), dtype=dtype))
    assert [(f.kind, f.layers) for f in examination.findings] == [("base", (1,)), ("pairing", (2,))]
    assert "base 500000, expected base 10000" in str(examination)


def test_a_rounded_table_and_a_module_without_rope_are_reported():
    layer = make("default", stock=True)
    layer.cos_sin_cache = layer.cos_sin_cache.bfloat16().float()
    examination = ra.vllm.examine(model(layer, torch.nn.Module(), make("patches", stock=True)))
    assert [(f.kind, f.layers) for f in examination.findings] == [("16-bit tables", (0,))]
    assert examination.unseen[0][0] == "layers.2.self_attn.rotary_emb"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["0", "1", "tables"])
@pytest.mark.parametrize("name", ["gemma3", "deepseek"])
def test_an_engine_has_no_findings(name, mode, tmp_path):
    answers, _ = run(name, tmp_path, mode, shifts=[], examine=True, dtype="bfloat16")
    assert answers["examination"].splitlines() == ["2 layers compared: no findings"], json.dumps(answers)
