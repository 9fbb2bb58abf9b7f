"""Class defaults of transformers' models: `model_defaults.json`, written by docs/_model_defaults.py.

An entry has the key of a model type, or of the root's type and the path of the part. Besides plain fields an
entry has: alias (from a name to the key of its value), parts (from a sub-config to its entry), fixed (parts
that have one class, whatever model type they state), of_parts (the values that the root sets in parts that
the config does not state), merged (parts that have these values also if they are stated), default_theta,
rope_parameters (if none are stated), added (to stated parameters), labels (of rotary parameters), layer_types
(as a run that repeats).
"""

import json
import os
from typing import Any


def _entry(row: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}


with open(os.path.join(os.path.dirname(__file__), "model_defaults.json"), encoding="utf-8") as stream:
    _TABLE = json.load(stream)
# The version whose rules the readings follow.
TRANSFORMERS: str = _TABLE["transformers"]
MODELS: dict[str, dict[str, Any]] = {key: _entry(row) for key, row in _TABLE["models"].items()}
# The entries with rope_parameters.
ROTARY = frozenset(key for key, entry in MODELS.items() if entry.pop("rotary", False))
# Classes whose model type is another's too, and their entries.
SHARED: dict[str, str] = {entry.pop("class"): key for key, entry in MODELS.items() if "class" in entry}
# Other model types, whose code in transformers rotates nothing.
WITHOUT = frozenset(_TABLE["without"])
