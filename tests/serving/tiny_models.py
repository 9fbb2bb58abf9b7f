"""Tiny models with random weights, saved as vLLM reads them, and their log-probabilities in float64."""

import tomllib
from pathlib import Path

import torch
import transformers

MODELS = tomllib.loads(Path(__file__).with_name("models.toml").read_text("utf-8"))
COMMON = MODELS.pop("common")
MODELS["deepseek"]["q_lora_rank"] = None  # which TOML has not
UNSHIFTED = {"ernie": MODELS.pop("ernie")}


def config_of(name):
    fields = COMMON | {**MODELS, **UNSHIFTED}[name]
    return getattr(transformers, fields.pop("class"))(**fields)


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
    halves = torch.randint(3, COMMON["vocab_size"], (count, length // 2), generator=generator)
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
