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


def golden():
    """Return the content of the golden file: the frequencies and the amplitude of each case."""
    rows = []
    for case in CASES.values():
        last = torch.tensor([case["length"] - 1])
        _, _, omega, amplitude = tables(case["config"], last, case["layer_type"])
        numbers = {"amplitude": amplitude.hex(), "inv_freq": [float(w).hex() for w in omega]}
        rows.append(json.dumps(case | numbers))
    return '{"cases": [\n' + ",\n".join(rows) + "\n]}\n"


if __name__ == "__main__":
    GOLDEN.write_text(golden(), encoding="utf-8", newline="\n")
