"""Tables of this folder, in TOML."""

import tomllib
from pathlib import Path
from typing import Any


def read_table(name: str) -> dict[str, Any]:
    """Return the sections of a table."""
    return tomllib.loads(Path(__file__).with_name(name).read_text("utf-8"))


# Rotary keys of configs and of their rotary parameters, apart from single models.
KEYS = read_table("keys.toml")
