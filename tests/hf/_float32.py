"""Configs of released models, and the float32 frequencies and tables of transformers for them.

`python -m hf._float32`, with `tests` on the path, writes tests/golden/transformers/float32.json. Write it on
an x86-64 CPU with AVX-512: on others PyTorch's float32 power has other bits in a width that is no multiple
of 64.
"""

import json
import pathlib
from typing import Any

import numpy as np
import torch
import transformers
from hf import _random
from hf._walk import modeling

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "transformers" / "float32.json"
LENGTH = 100_000  # positions
Case = tuple[str, dict[str, Any], str | None]

LISTS = {
    "short_factor": [round(1 + 0.02 * i**1.3, 4) for i in range(48)],
    "long_factor": [round(1.07 * 1.09**i, 12) for i in range(48)],
}


def llama(width: int = 128, base: float = 500_000.0, longest: int = 131_072, **rule: Any) -> dict[str, Any]:
    """Return a Llama config with a rule."""
    return {
        "model_type": "llama",
        "head_dim": width,
        "max_position_embeddings": longest,
        "rope_parameters": {"rope_type": "default", "rope_theta": base, **rule},
    }


def llama3(factor: float, **more: Any) -> dict[str, Any]:
    """Return the rotary parameters of Llama 3.1 and 3.2."""
    numbers = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    return {"rope_type": "llama3", "factor": factor, **numbers, **more}


def yarn(factor: float, trained: int, **more: Any) -> dict[str, Any]:
    """Return the rotary parameters of a YaRN."""
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained, **more}


def phi3(**more: Any) -> dict[str, Any]:
    """Return Phi-3's config for long contexts, with lists of the same kind."""
    return {
        "model_type": "phi3",
        "hidden_size": 3072,
        "num_attention_heads": 32,
        "max_position_embeddings": 131_072,
        "original_max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 10_000.0, **LISTS},
        **more,
    }


def qwen(**rule: Any) -> dict[str, Any]:
    """Return Qwen2.5's config with a rule."""
    return {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "max_position_embeddings": 32_768,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, **rule},
    }


GEMMA3 = {
    "model_type": "gemma3_text",
    "head_dim": 256,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "head_dim": 64,
    "max_position_embeddings": 131_072,
    "rope_parameters": yarn(32.0, 4096, rope_theta=150_000.0, beta_fast=32.0, beta_slow=1.0, truncate=False),
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "max_position_embeddings": 163_840,
    "rope_parameters": yarn(
        40.0, 4096, rope_theta=10_000.0, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0
    ),
}
UNEQUAL_SCALES = {
    **DEEPSEEK,
    "rope_parameters": {**DEEPSEEK["rope_parameters"], "mscale": 1.0, "mscale_all_dim": 0.707},
}
GEMMA4 = {
    "model_type": "gemma4_text",
    "head_dim": 256,
    "global_head_dim": 512,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
GLM4 = {
    "model_type": "glm4",
    "head_dim": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
}
PHI = {
    "model_type": "phi",
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
}

# By name: the rotary class, the config, and the layer type if the model has several.
CASES: dict[str, Case] = {
    "llama 2": ("LlamaRotaryEmbedding", llama(base=10_000.0), None),
    "llama 3": ("LlamaRotaryEmbedding", llama(), None),
    "llama 3.1": ("LlamaRotaryEmbedding", llama(**llama3(8.0)), None),
    "llama 3.2 1B": ("LlamaRotaryEmbedding", llama(64, **llama3(32.0)), None),
    "qwen 2.5": ("Qwen2RotaryEmbedding", qwen(), None),
    "qwen 2.5 yarn": ("Qwen2RotaryEmbedding", qwen(**yarn(4.0, 32_768)), None),
    "deepseek v3": ("DeepseekV3RotaryEmbedding", DEEPSEEK, None),
    "deepseek with unequal scales": ("DeepseekV3RotaryEmbedding", UNEQUAL_SCALES, None),
    "gpt-oss": ("GptOssRotaryEmbedding", GPT_OSS, None),
    "phi 3 longrope": ("Phi3RotaryEmbedding", phi3(), None),
    "phi 3 longrope short": ("Phi3RotaryEmbedding", phi3(original_max_position_embeddings=LENGTH), None),
    "gemma 3": ("Gemma3RotaryEmbedding", GEMMA3, "full_attention"),
    "gemma 3 sliding": ("Gemma3RotaryEmbedding", GEMMA3, "sliding_attention"),
    "gemma 4 proportional": ("Gemma4TextRotaryEmbedding", GEMMA4, "full_attention"),
    "glm 4, half of the head": ("Glm4RotaryEmbedding", GLM4, None),
    "phi, half of the head": ("PhiRotaryEmbedding", PHI, None),
    "linear by 3.7": ("LlamaRotaryEmbedding", llama(rope_type="linear", factor=3.7), None),
    "dynamic by 4": ("LlamaRotaryEmbedding", llama(128, 1e4, 3000, rope_type="dynamic", factor=4.0), None),
    "dynamic by 3.7": ("LlamaRotaryEmbedding", llama(64, 5e5, 3000, rope_type="dynamic", factor=3.7), None),
    "dynamic, short": ("LlamaRotaryEmbedding", llama(64, 5e5, LENGTH, rope_type="dynamic", factor=3.7), None),
    "yarn by 3.7, factor 1.3": (
        "LlamaRotaryEmbedding",
        llama(**yarn(3.7, 5000, attention_factor=1.3, beta_fast=20.5, beta_slow=1.7)),
        None,
    ),
    "yarn of a part": (
        "StableLmRotaryEmbedding",
        {
            "model_type": "stablelm",
            "hidden_size": 2560,
            "num_attention_heads": 20,
            "max_position_embeddings": 16_384,
            "rope_parameters": yarn(4.0, 4096, rope_theta=1e5, partial_rotary_factor=0.5),
        },
        None,
    ),
    "llama 3 by 7.3": ("LlamaRotaryEmbedding", llama(**llama3(7.3, low_freq_factor=1.3)), None),
}


def module(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Return the rotary module of a case, and the arguments of its forward method for the layer type."""
    cls, config, layer_type = CASES[name]
    model = config["model_type"].removesuffix("_text")
    made = transformers.AutoConfig.for_model(**json.loads(json.dumps(config)))
    return getattr(modeling(model), cls)(made), {"layer_type": layer_type} if layer_type else {}


def tables(name: str, count: int = LENGTH) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Return cos and sin (count, num_pairs) at the first positions, the frequencies, and the amplitude."""
    rotary, arguments = module(name)
    cos, sin = rotary(torch.zeros(1), torch.arange(count)[None], **arguments)
    prefix = f"{arguments['layer_type']}_" if arguments else ""
    inv_freq = getattr(rotary, f"{prefix}inv_freq")
    pairs = len(inv_freq)
    amplitude = getattr(rotary, f"{prefix}attention_scaling")
    return cos[0, :, :pairs], sin[0, :, :pairs], inv_freq, amplitude


def drawn(kind: str, rng: np.random.Generator) -> tuple[dict[str, Any], int]:
    """Return a random Llama config with a rule, and a length of the sequence."""
    width, longest = int(rng.choice([64, 128, 192, 256])), int(rng.integers(1000, 200_000))
    rule = {
        "rope_type": kind,
        "rope_theta": _random.base(rng),
        **_random.rule(rng, kind, width // 2, longest),
    }
    config = llama(width, longest=longest, **rule)
    if kind in ("linear", "dynamic", "yarn", "llama3") and rng.random() < 0.3:
        config |= {"model_type": "stablelm", "hidden_size": 8 * width, "num_attention_heads": 4}
        del config["head_dim"]
        config["rope_parameters"]["partial_rotary_factor"] = 0.5
    return config, int(rng.integers(1, 3 * longest))


def frequencies(config: dict[str, Any], length: int) -> tuple[list[float], float]:
    """Return the frequencies and the amplitude of transformers for a sequence of `length` positions."""
    made = transformers.AutoConfig.for_model(**json.loads(json.dumps(config)))
    rotary = modeling("llama").LlamaRotaryEmbedding(made)
    rotary(torch.zeros(1), torch.tensor([[length - 1]]))
    return rotary.inv_freq.tolist(), rotary.attention_scaling


def golden() -> str:
    """Return the content of the golden file: the frequencies and the amplitude of each case."""
    rows = []
    for name, (_, config, layer_type) in CASES.items():
        _, _, inv_freq, amplitude = tables(name)
        row = {"name": name, "config": config, "layer_type": layer_type, "length": LENGTH}
        row |= {"amplitude": amplitude.hex(), "inv_freq": [float(w).hex() for w in inv_freq]}
        rows.append(json.dumps(row))
    return '{"cases": [\n' + ",\n".join(rows) + "\n]}\n"


if __name__ == "__main__":
    GOLDEN.write_text(golden(), encoding="utf-8", newline="\n")
