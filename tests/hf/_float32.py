"""The float32 frequencies and tables of transformers for configs of released models.

tests/golden/transformers/float32.json holds the configs; a new case is a line with a name, a config, its
layer type and a length. `python -m hf._float32`, with `tests` on the path, writes the numbers of each case.
Write them on an x86-64 CPU with AVX-512: on others PyTorch's float32 power has other bits in a width that is
no multiple of 64.
"""

import copy
import json
import pathlib
from dataclasses import replace
from typing import Any

import numpy as np
import transformers
from hf import _text
from hf._walk import cases

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "transformers" / "float32.json"
KEYS = ("name", "config", "layer_type", "length")
CASES: dict[str, dict[str, Any]] = {
    row["name"]: {key: row[key] for key in KEYS} for row in json.loads(GOLDEN.read_text("utf-8"))["cases"]
}


def probe_of(name):
    """Return the probe of a case, with all positions of its length."""
    _, config, layer_type, length = CASES[name].values()
    config_object = transformers.AutoConfig.for_model(**copy.deepcopy(config))
    folder = config["model_type"].removesuffix("_text")
    (case,) = (case for case in cases() if case.model == folder and "Vision" not in case.cls)
    form = replace(case.row.form, positions=(np.arange(length),))
    (layer,) = (layer for layer in _text.layers_of(form, config_object) if layer.ask == layer_type)
    return _text.probe(form, layer, folder, case.cls, config, config_object)


def golden():
    """Return the content of the golden file: the frequencies and the amplitude of each case."""
    rows = []
    for name, case in CASES.items():
        theirs = probe_of(name).theirs(np.array([case["length"] - 1]))
        numbers = {"amplitude": theirs.factor.hex(), "inv_freq": [float(w).hex() for w in theirs.inv_freq]}
        rows.append(json.dumps(case | numbers))
    return '{"cases": [\n' + ",\n".join(rows) + "\n]}\n"


if __name__ == "__main__":
    GOLDEN.write_text(golden(), encoding="utf-8", newline="\n")
