"""The float32 frequencies and tables of transformers for configs of released models.

tests/golden/transformers/float32.json holds the configs; a new case is a line with a name, a config, its
layer type and a length. `python -m hf._float32`, with `tests` on the path, writes the numbers of each case.
Write them on an x86-64 CPU with AVX-512: on others PyTorch's float32 power has other bits in a width that is
no multiple of 64.
"""

import json
import pathlib
from typing import Any

import torch
import transformers
from hf import _random
from hf._walk import modeling

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "transformers" / "float32.json"
KEYS = ("name", "config", "layer_type", "length")
CASES: dict[str, dict[str, Any]] = {
    row["name"]: {key: row[key] for key in KEYS} for row in json.loads(GOLDEN.read_text("utf-8"))["cases"]
}


def rotary_of(config):
    """Return the rotary module of a config, given as a dict."""
    made = transformers.AutoConfig.for_model(**json.loads(json.dumps(config)))
    model = modeling(config["model_type"].removesuffix("_text"))
    (cls,) = (
        value
        for name, value in vars(model).items()
        if name.endswith("RotaryEmbedding") and "Vision" not in name
    )
    return cls(made)


def tables(config, positions, layer=None):
    """Return cos and sin (S, num_pairs) at positions (S,), the frequencies, and the amplitude."""
    rotary, prefix = rotary_of(config), f"{layer}_" if layer else ""
    cos, sin = rotary(torch.zeros(1), positions[None], **({"layer_type": layer} if layer else {}))
    omega = getattr(rotary, f"{prefix}inv_freq")
    pairs = len(omega)
    return cos[0, :, :pairs], sin[0, :, :pairs], omega.tolist(), getattr(rotary, f"{prefix}attention_scaling")


def drawn(kind, rng):
    """Return a random Llama config with a rule, and a length of the sequence."""
    width, longest = int(rng.choice([64, 128, 192, 256])), int(rng.integers(1000, 200_000))
    rule = {"rope_type": kind, "rope_theta": _random.base(rng)}
    rule |= _random.rule(rng, kind, width // 2, longest)
    config = {"max_position_embeddings": longest, "rope_parameters": rule}
    if kind in ("linear", "dynamic", "yarn", "llama3") and rng.random() < 0.3:
        rule["partial_rotary_factor"] = 0.5
        config |= {"model_type": "stablelm", "hidden_size": 8 * width, "num_attention_heads": 4}
    else:
        config |= {"model_type": "llama", "head_dim": width}
    return config, int(rng.integers(1, 3 * longest))


def frequencies(config, length, layer=None):
    """Return the frequencies and the amplitude of transformers for a sequence of `length` positions."""
    return tables(config, torch.tensor([length - 1]), layer)[2:]


def golden():
    """Return the content of the golden file: the frequencies and the amplitude of each case."""
    rows = []
    for case in CASES.values():
        omega, amplitude = frequencies(case["config"], case["length"], case["layer_type"])
        numbers = {"amplitude": amplitude.hex(), "inv_freq": [float(w).hex() for w in omega]}
        rows.append(json.dumps(case | numbers))
    return '{"cases": [\n' + ",\n".join(rows) + "\n]}\n"


if __name__ == "__main__":
    GOLDEN.write_text(golden(), encoding="utf-8", newline="\n")
