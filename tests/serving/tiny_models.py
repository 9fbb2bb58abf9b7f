"""Tiny models with random weights, saved as vLLM reads them, and their log-probabilities in float64."""

import torch
import transformers

LENGTH = 1_048_576  # of a table, so that stock vLLM has rows for positions about a million
LLAMA = {"hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA |= {"num_key_value_heads": 2, "head_dim": 64, "vocab_size": 128, "max_position_embeddings": LENGTH}
LLAMA |= {"initializer_range": 0.16, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}
LLAMA |= {"pad_token_id": 0}
# The kernel for latent attention takes 512 latent and 64 rotated features.
MLA = {"q_lora_rank": None, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64}
MLA |= {"v_head_dim": 64, "first_k_dense_replace": 2, "num_key_value_heads": 4}


def _rule(rope_type, theta=10000.0, **fields):
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": theta, **fields}}


YARN = {"factor": 16.0, "original_max_position_embeddings": LENGTH // 16}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
LONGROPE = {"short_factor": [1.0] * 32, "long_factor": [1.0 + i / 8 for i in range(32)]}
GEMMA3 = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
GEMMA3["full_attention"] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}
GEMMA3 = {"rope_parameters": GEMMA3, "layer_types": [*GEMMA3], "query_pre_attn_scalar": 64}
TRAINED = {"original_max_position_embeddings": 32}

# The class of the config, and the fields that differ from LLAMA. vLLM takes GLM from transformers.
MODELS = {
    "llama": ("LlamaConfig", _rule("default")),
    "llama3": ("LlamaConfig", _rule("llama3", 500000.0, **LLAMA3)),
    "linear": ("LlamaConfig", _rule("linear", factor=4.0)),
    "yarn": ("LlamaConfig", _rule("yarn", **YARN)),
    "qwen3": ("Qwen3Config", _rule("default", 1e6)),
    "gemma3": ("Gemma3TextConfig", GEMMA3),
    "deepseek": ("DeepseekV2Config", {**MLA, **_rule("yarn", **YARN, mscale=0.7, mscale_all_dim=0.7)}),
    "phi3": ("Phi3Config", {**_rule("longrope", **LONGROPE, **TRAINED), **TRAINED}),
    "glm": ("GlmConfig", _rule("default", partial_rotary_factor=0.5)),
}
# vLLM calls no hooks of this model, which would shift its positions.
UNSHIFTED = {"ernie": ("Ernie4_5Config", _rule("default"))}


def config_of(name):
    cls, fields = {**MODELS, **UNSHIFTED}[name]
    return getattr(transformers, cls)(**{**LLAMA, **fields})


def model_of(name):
    """Return the model of a name, always with the same weights."""
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config_of(name), dtype=torch.float32).eval()


def save(name, folder):
    """Save a model for vLLM; there is no tokenizer, as prompts are given by their tokens."""
    model_of(name).save_pretrained(folder)
    return folder


def prompts(count=3, length=40, seed=0):
    """Return prompts of tokens, each with a part that repeats, for n-gram speculation."""
    generator = torch.Generator().manual_seed(seed)
    halves = torch.randint(3, LLAMA["vocab_size"], (count, length // 2), generator=generator)
    return torch.cat([halves, halves], dim=1).tolist()


def exact_log_probabilities(name, tokens):
    """Return the log-probability of each token but the first, of lists of tokens, in float64.

    The positions count from 0, where the angles of transformers are exact enough: a rotation depends on
    differences of positions alone.
    """
    model = model_of(name).double()
    tokens = torch.tensor(tokens)
    with torch.no_grad():
        logits = model(tokens).logits[:, :-1]
    return torch.log_softmax(logits.double(), -1).gather(-1, tokens[:, 1:, None])[..., 0]
