"""Tables of this folder, in TOML."""

import os
import re
import tomllib
from functools import cache
from typing import Any


@cache
def read_table(name: str) -> dict[str, Any]:
    """Return the sections of a table."""
    with open(os.path.join(os.path.dirname(__file__), name), "rb") as stream:
        return tomllib.load(stream)


# Rotary keys of configs and of their rotary parameters, apart from single models.
KEYS = read_table("keys.toml")
PATTERNS = {name: re.compile("|".join(patterns)) for name, patterns in KEYS["patterns"].items()}
SAME_AS: dict[str, str] = KEYS["same_as"]
REFUSED: dict[str, str] = KEYS["refused_rules"]
