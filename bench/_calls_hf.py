"""transformers' models before and after `rope_array.hf.patch`, for bench/calls.py.

hf-models, hf-models-compiled: a decode step and a training step of models of moderate size, eager or
compiled, and of the tiny model of every family in `tests/hf/_tiny.py`; random weights, float32 and bfloat16
(tiny models: float32). The patched model is a copy, which has the same weights in the same memory.

A decode step is one forward pass of one token under `torch.inference_mode`, with a static cache of the tokens
before it if the model takes one, else with its own. Each block begins with a copy of the cache. A training
step is forward and backward in training mode, without an optimizer, whose time is the same in both. The loss
of a tiny model is the mean of its squared outputs.
"""

import copy
import importlib
import sys
from functools import partial

import torch
import transformers
from _harness import Fresh, one_line
from _record import ROOT

from rope_array import hf

PREFIX, LENGTH = 128, 256  # tokens before a decode step, and of a training step
MOST = 64  # steps of a block, for which a cache has room
SIZE = {"num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 1024, "max_position_embeddings": 2048}
MODELS = {
    "Llama, 4 × 512": ("Llama", {"hidden_size": 512, "intermediate_size": 1408, "num_key_value_heads": 4}),
    "Llama, 2 × 1024": (
        "Llama",
        {"hidden_size": 1024, "intermediate_size": 2816, "num_key_value_heads": 2, "num_hidden_layers": 2},
    ),
    "Qwen3, 4 × 512": (
        "Qwen3",
        {"hidden_size": 512, "intermediate_size": 1408, "num_key_value_heads": 4, "head_dim": 64},
    ),
    "Qwen3, 2 × 1024": (
        "Qwen3",
        {"hidden_size": 1024, "intermediate_size": 2816, "num_key_value_heads": 4, "head_dim": 128,
         "num_hidden_layers": 2},
    ),
    "GPT-NeoX, 4 × 512, a quarter of the width": ("GPTNeoX", {"hidden_size": 512, "intermediate_size": 2048}),
    "Cohere, 4 × 512, interleaved": (
        "Cohere", {"hidden_size": 512, "intermediate_size": 1408, "num_key_value_heads": 4, "pad_token_id": 0}
    ),
    "Gemma 3, 4 × 512, two ropes": (
        "Gemma3",
        {"hidden_size": 512, "intermediate_size": 1408, "num_key_value_heads": 4, "head_dim": 64,
         "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
}  # fmt: skip


def hf_models(run=lambda model: model):
    transformers.logging.set_verbosity_error()
    for name, (family, fields) in MODELS.items():
        for dtype in ("float32", "bfloat16"):
            yield f"moderate, {name}, {dtype}", partial(steps, partial(moderate, family, fields, dtype), run)
    sys.path.append(str(ROOT / "tests"))
    tiny = importlib.import_module("hf._tiny")
    for family in tiny.FAMILIES:
        yield f"tiny, {family.model_type}", partial(steps, partial(tiny_model, family, tiny.answer), run)


def hf_models_compiled():
    return hf_models(torch.compile)


# ---- models, each with the inputs of a prefix and of training, and its loss ----


def moderate(family, fields, dtype):
    model = make_model(family, fields).to(getattr(torch, dtype))
    tokens = torch.randint(3, 1000, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    return (
        model,
        {"input_ids": tokens[:, :PREFIX]},
        {"input_ids": tokens, "labels": tokens},
        lambda out: out.loss,
    )


def make_model(family, fields):
    torch.manual_seed(0)
    text = "Text" if family == "Gemma3" else ""
    config = getattr(transformers, f"{family}{text}Config")(**SIZE | fields)
    return getattr(transformers, f"{family}ForCausalLM")(config)


def tiny_model(family, answer):
    model = family.make()
    inputs = family.inputs(model)
    return model, inputs, inputs, lambda output: answer(output).float().square().mean()


# ---- steps ----


def steps(make, run):
    """Yield the steps of a model and of its patched copy; say why there are none."""
    torch.compiler.reset()
    try:
        model, prefix, inputs, loss = make()
        after = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
        hf.patch(after)
    except Exception as error:  # a model that patch does not know
        print(f"refused: {one_line(error)}", file=sys.stderr)
        return
    for name, step in (("decode", partial(decoding, prefix)), ("train", partial(training, inputs, loss))):
        try:
            rows = {"before": step(model, run(model)), "after": step(after, run(after))}
            for row in rows.values():
                row.make()()
        except Exception as error:  # a vision model has no cache, and a module in place no gradient
            print(f"no step {name}: {one_line(error)}", file=sys.stderr)
        else:
            yield name, rows


def decoding(prefix, model, run):
    """Return the decode steps after the tokens of `prefix`."""
    model.eval()
    with torch.inference_mode():
        output = prefill(model, prefix)
    token = torch.full((len(output.logits), 1), 5)
    inputs = {"input_ids": token}
    if model.config.is_encoder_decoder:
        states = getattr(output, "encoder_last_hidden_state", None)
        encoded = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=states)
        inputs = {"decoder_input_ids": token, "encoder_outputs": encoded}
    if output.past_key_values is None:
        raise ValueError("the model returns no cache")

    def make():
        model.eval()
        cache = copy.deepcopy(output.past_key_values)
        return torch.inference_mode()(lambda: run(**inputs, past_key_values=cache, use_cache=True))

    return Fresh(make, MOST)


def prefill(model, prefix):
    """Return the output for a prefix: with a static cache, or the model's own where it takes none."""
    try:
        length = prefix["input_ids"].shape[1] + MOST + 8
        config = model.config.get_text_config(decoder=True)
        cache = transformers.StaticCache(config=config, max_cache_len=length)
        return model(**prefix, past_key_values=cache, use_cache=True)
    except Exception:  # whatever a model raises for a cache of another kind
        return model(**prefix, use_cache=True)


def training(inputs, loss, model, run):
    def step():
        model.zero_grad(set_to_none=True)
        loss(run(**inputs)).backward()

    def make():
        model.train()
        return step

    return Fresh(make, MOST)
