"""transformers' models before and after `rope_array.hf.patch`: a decode step and a training step, one thread.

Models of moderate size, and the tiny models of every family in `tests/hf/_tiny.py`; random weights, eager or
compiled, float32 and bfloat16 (tiny models: float32). Each round times a block of steps of the model and a
block of its patched copy, which has the same weights in the same memory, in random order. The median of a
block counts, and `÷` is the median of the ratios within rounds: below 1, the patched model is faster.
"÷ fastest" is the ratio of the fastest steps, as other load on the machine can only add time.

A decode step is one forward pass of one token under `torch.inference_mode`, with a static cache of the tokens
before it if the model takes one, else with its own. Each block begins with a copy of the cache. A training
step is forward and backward in training mode, without an optimizer, whose time is the same in both. The loss
of a tiny model is the mean of its squared outputs.
"""

import argparse
import copy
import importlib
import os
import statistics
import sys

os.environ |= {"ROPE_ARRAY_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import torch
import transformers
from _blocks import finish, in_rounds, milliseconds, parse, print_table, spread, time_one, times_of
from _record import ROOT, record

PACKAGES = ("numpy", "torch", "transformers", "array-api-compat", "rope-array")
PREFIX, LENGTH = 128, 256  # tokens before a decode step, and of a training step
ROUNDS, SECONDS, MOST = 24, 0.06, 64  # of a block, and the most steps of one: a cache grows by them
TINY_ROUNDS, TINY_SECONDS = 24, 0.02
HEAD = ("", "decode, ms", "patched", "÷", "÷ fastest", "training, ms", "patched", "÷", "÷ fastest")
SIZE = {"num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 1024, "max_position_embeddings": 2048}
MODELS = {
    "Llama, 4 × 512": ("Llama", {"hidden_size": 512, "intermediate_size": 1408, "num_key_value_heads": 4}),
    "Llama, 2 × 1024": (
        "Llama",
        {"hidden_size": 1024, "intermediate_size": 2816, "num_key_value_heads": 2, "num_hidden_layers": 2},
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


# ---- steps: each function returns a step without arguments; making it is not timed ----


def decoding(model, prefix, compiled):
    """Return a function that makes a decode step, after the tokens of `prefix`."""
    model.eval()
    with torch.inference_mode():
        output = prefill(model, prefix)
    token = torch.full((len(output.logits), 1), 5)
    if model.config.is_encoder_decoder:
        states = getattr(output, "encoder_last_hidden_state", None)
        encoded = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=states)
        inputs = {"decoder_input_ids": token, "encoder_outputs": encoded}
    else:
        inputs = {"input_ids": token}
    if output.past_key_values is None:
        raise ValueError("the model returns no cache")
    run = torch.compile(model) if compiled else model

    def make():
        model.eval()
        cache = copy.deepcopy(output.past_key_values)
        return torch.inference_mode()(lambda: run(**inputs, past_key_values=cache, use_cache=True))

    return make


def prefill(model, prefix):
    """Return the output for a prefix: with a static cache, or the model's own where it takes none."""
    try:
        length = prefix["input_ids"].shape[1] + MOST + 8
        config = model.config.get_text_config(decoder=True)
        cache = transformers.StaticCache(config=config, max_cache_len=length)
        return model(**prefix, past_key_values=cache, use_cache=True)
    except Exception:  # whatever a model raises for a cache of another kind
        return model(**prefix, use_cache=True)


def training(model, inputs, loss, compiled):
    """Return a function that makes a training step."""
    run = torch.compile(model) if compiled else model

    def step():
        model.zero_grad(set_to_none=True)
        loss(run(**inputs)).backward()

    def make():
        model.train()
        return step

    return make


# ---- before and after, in turns ----


def compare(steps, rounds, seconds):
    """Return the milliseconds of a step of both models, and the quartiles of their ratio in rounds.

    `steps`: two functions that make a step, of the unpatched and of the patched model.
    """
    count = min(MOST, max(2, round(seconds / time_one(steps[0]()))))
    blocks = {i: lambda make=make: times_of(make(), count) for i, make in enumerate(steps)}
    times = in_rounds(blocks, rounds)
    before, after = ([statistics.median(block) for block in times[i]] for i in blocks)
    return {
        "before, ms": milliseconds(before),
        "after, ms": milliseconds(after),
        "÷": spread([a / b for a, b in zip(after, before, strict=True)]),
        "÷ fastest": round(min(map(min, times[1])) / min(map(min, times[0])), 3),
        "steps of a block": count,
    }


def before_and_after(model, prefix, inputs, loss, times, options):
    """Return the numbers of both steps; a text where a model has no such step, or is refused.

    `times`: the rounds, and the seconds of a block.
    """
    after = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    torch.compiler.reset()
    try:
        options.patch(after)
    except Exception as error:  # a model that patch does not know
        return {"refused": one_line(error)}
    rows = {}
    for name, make in {
        "decode": lambda model: decoding(model, prefix, options.compiled),
        "train": lambda model: training(model, inputs, loss, options.compiled),
    }.items():
        if name not in options.steps:
            continue
        try:
            steps = make(model), make(after)
            for step in steps:
                step()()
        except Exception as error:  # a vision model has no cache, and a module in place no gradient
            rows[name] = {"none": one_line(error)}
        else:
            rows[name] = compare(steps, *times)
    return rows


def one_line(error):
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


# ---- models ----


def moderate(options):
    """Time models of moderate size."""
    times = (2, 0.01) if options.quick else (ROUNDS, SECONDS)
    rows = {}
    for name, (family, fields) in MODELS.items():
        for dtype in ("float32", "bfloat16"):
            if chosen(label := f"{name}, {dtype}", options):
                model = make_model(family, fields).to(getattr(torch, dtype))
                tokens = torch.randint(3, 1000, (1, LENGTH), generator=torch.Generator().manual_seed(0))
                prefix, inputs = {"input_ids": tokens[:, :PREFIX]}, {"input_ids": tokens, "labels": tokens}
                loss = lambda output: output.loss  # noqa: E731
                rows[label] = before_and_after(model, prefix, inputs, loss, times, options)
                tell(label, rows[label])
    return rows


def make_model(family, fields):
    torch.manual_seed(0)
    text = "Text" if family == "Gemma3" else ""
    config = getattr(transformers, f"{family}{text}Config")(**SIZE | fields)
    return getattr(transformers, f"{family}ForCausalLM")(config)


def families(options):
    """Time the tiny model of each family."""
    sys.path.append(str(ROOT / "tests"))
    tiny = importlib.import_module("hf._tiny")
    times = (3, 0.005) if options.quick else (TINY_ROUNDS, TINY_SECONDS)
    rows = {}
    for family in tiny.FAMILIES:
        name = family.model_type
        if not chosen(name, options):
            continue
        try:
            model = family.make()
            inputs = family.inputs(model)
        except Exception as error:
            rows[name] = {"refused": one_line(error)}
            continue
        loss = lambda output: tiny.answer(output).float().square().mean()  # noqa: E731
        rows[name] = before_and_after(model, inputs, inputs, loss, times, options)
        tell(name, rows[name])
    return rows


def chosen(name, options):
    return all(word.lower() in name.lower() for word in options.only)


# ---- results ----


def tell(name, timings):
    print("  " + "  ".join(str(cell) for cell in row(name, timings)), file=sys.stderr)


def row(name, timings):
    if "refused" in timings:
        return name, timings["refused"]
    cells = [name]
    for step in ("decode", "train"):
        timing = timings.get(step, {"none": ""})
        cells += ["", "", "", "none"] if "none" in timing else numbers_of(timing)
    return cells


def numbers_of(timing):
    return [timing["before, ms"], timing["after, ms"], timing["÷"][1], timing["÷ fastest"]]


def show(run):
    for group, models in run["numbers"].items():
        timed = {name: timing for name, timing in models.items() if "refused" not in timing}
        if models:
            print(f"\n{group}")
            print_table(HEAD, [row(*row_of_model) for row_of_model in timed.items()])
        for step in ("decode", "train"):
            with_step = {name: timing[step] for name, timing in timed.items() if "÷" in timing.get(step, {})}
            if with_step:
                print(summary(step, with_step))
        refused = {name: timing["refused"] for name, timing in models.items() if "refused" in timing}
        for name, reason in refused.items():
            print(f"refused: {name}: {reason[:140]}")


def summary(step, timings):
    """Return a line about all models."""
    by = {label: [pick(timing) for timing in timings.values()] for label, pick in RATIOS.items()}
    slower = [name for name, timing in timings.items() if all(pick(timing) > 1 for pick in RATIOS.values())]
    medians = ", ".join(f"{label} {statistics.median(ratios):.3f}" for label, ratios in by.items())
    return (
        f"{step}: {len(timings)} models, medians: {medians}; slower by both: {len(slower)} {' '.join(slower)}"
    )


RATIOS = {"÷": lambda timing: timing["÷"][1], "÷ fastest": lambda timing: timing["÷ fastest"]}


def main():
    options = arguments()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    options.patch = patching(options)
    numbers = {"moderate sizes": moderate(options)}
    if not options.no_families:
        numbers["tiny models"] = families(options)
    run = record("hf-models", numbers, __doc__, PACKAGES)
    run |= {"angles": options.angles, "compiled": options.compiled}
    show(run)
    finish(run, options)


def patching(options):
    """Return the function that patches a model; with --control, it does nothing."""
    if options.control:
        return lambda model: None
    from rope_array import hf

    return lambda model: hf.patch(model, angles=options.angles)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--no-families", action="store_true", help="models of moderate size only")
    parser.add_argument("--angles", default="exact", help='"exact" or "float32"')
    parser.add_argument("--compiled", action="store_true", help="both models by torch.compile")
    parser.add_argument("--steps", nargs="+", default=("decode", "train"), choices=("decode", "train"))
    parser.add_argument("--control", action="store_true", help="patch nothing: the noise of the ratios")
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="WORD", help="the models whose name has all these"
    )
    return parse(parser, "hf-models")


if __name__ == "__main__":
    main()
