"""Verdicts of `rope_array.hf.patch` on a tiny model of each family of docs/models.md, for any transformers.

    python tests/long/hf_families.py [--json PATH] [NAME ...]

A verdict is one of:

* "patched": in both modes the outputs are right, by the limits of tests/test_hf_families.py;
* "refused: REASON", the reason being the error's first sentence;
* "not in this version" of transformers;
* "not run: REASON" if the tiny model itself fails in this version.

Wrong outputs of a patched model make the script fail.
"""

import argparse
import importlib
import json
import re
import sys
import textwrap
import warnings
from pathlib import Path

import torch
import transformers

from rope_array import PatchError, hf

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
_tiny, _tiny_config = (importlib.import_module(f"hf.{name}") for name in ("_tiny", "_tiny_config"))
off, Family = (importlib.import_module("test_hf_families").__dict__[name] for name in ("off", "Family"))

ABSENT = "not in this version"
TEXTS = ("patched", "refused", ABSENT, "not run", "wrong")
MODELS = Path(transformers.__file__).parent / "models"
VERSION = tuple(map(int, transformers.__version__.split(".")[:2]))
OLDER = _tiny_config.by_family(_tiny_config.FAMILY["older_changes"])
OLDER["dbrx"] = {"attn_config": None, "ffn_config": None}  # the defaults; its classes refuse keys of to_dict
FLAT = ("qwen2_vl", "qwen2_5_vl")  # before 4.52 their configs have no part text_config, and no ids of tokens
IDS = {"image_token_id": 127, "video_token_id": 126, "vision_start_token_id": 125}


def names():
    """Return the model types of docs/models.md with a tiny model."""
    page = (ROOT / "docs" / "models.md").read_text("utf-8")
    return sorted({*re.findall(r"`(\w+)` `\w+`", page)} - _tiny.ABSENT.keys())


def with_older_keys(changes):
    """Return changes of a config in the keys before transformers 5: rope_theta and rope_scaling."""
    new = {key: with_older_keys(old) if isinstance(old, dict) else old for key, old in changes.items()}
    rule = new.pop("rope_parameters", None)
    if rule and "rope_theta" in rule:
        base, rule = rule["rope_theta"], {key: value for key, value in rule.items() if key != "rope_theta"}
        new |= {"rope_theta": base, "rope_scaling": rule}
    return new


def verdict(name):
    """Return the verdict of a family; raise AssertionError if a patched model has wrong outputs."""
    if not (MODELS / name / f"modeling_{name}.py").exists():
        return ABSENT
    try:
        family = Family(_tiny.Tiny(name))
        unpatched = family.own
    except Exception as error:  # whatever a model of another version raises
        return f"not run: {shortened(str(error).splitlines()[0])}"
    try:
        with hf.patched(family.model, angles="float32"):
            assert torch.equal(family.run(family.model), unpatched), f"{name}: other outputs in float32 mode"
        with hf.patched(family.model):
            exact = family.run(family.model)
    except PatchError as error:
        return f"refused: {reason(error)}"
    error = off(exact, family.true)
    assert error <= 3 * family.error, f"{name}: error {error:.2g}, of the model itself {family.error:.2g}"
    return "patched"


def reason(error):
    """Return why `patch` refuses a model: the first reason that its error has for a module."""
    reasons = re.findall(r" \(\w+\): (.*?)\. ", f"{error} ")
    return shortened(next(iter(reasons), "no rotary module that patch supports"))


def shortened(text):
    """Return a text that fits into the cell of a table."""
    return textwrap.shorten(text, 64, placeholder=" …")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="model types; all by default")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the verdicts")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if VERSION < (5, 0):
        older = {name: with_older_keys(changes) for name, changes in _tiny_config.CHANGES.items()}
        if VERSION < (4, 52):
            older |= {name: {**older[name]["text_config"], **IDS} for name in FLAT}
        _tiny_config.CHANGES = _tiny_config.merged(older, OLDER)
        _tiny.CLASSES = {**_tiny.CLASSES, **_tiny_config.FAMILY["older_classes"]}
        _tiny.TASKS = (*_tiny.TASKS, "FOR_VISION_2_SEQ")
    verdicts, wrong = {}, []
    for name in options.names or names():
        try:
            verdicts[name] = verdict(name)
        except AssertionError as error:
            verdicts[name] = "wrong"
            wrong.append(str(error))
        print(f"{name:28} {verdicts[name]}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(verdicts, indent=1, sort_keys=True) + "\n", "utf-8")
    counts = {text: sum(value.startswith(text) for value in verdicts.values()) for text in TEXTS}
    print(f"transformers {transformers.__version__}: {counts}")
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main()
