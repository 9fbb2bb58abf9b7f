"""Write the golden vectors beside this file: exact rotations by mpmath alone, as float64 in hexadecimal.

    python tests/golden/make.py

needs mpmath and rewrites the files byte for byte. The inputs in x fit bfloat16 and float16, so that one
result serves every dtype.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import oracle  # noqa: E402  (found beside this folder)

INTEGERS = [0, 1, -1, 3, 4097, 2**16, 131071, 2**20, 2**24 - 1, 2**24 + 1, 2**31 - 1, -(2**31)]
POSITIONS = [*INTEGERS, 0.5, 2.25, -1000000.75]
X = [1.0, 2.0, -3.0, 0.5, -0.75, 1.328125, 3.984375, -0.0078125, 1.5, -1.0, 0.171875, 2.625]


ROTATIONS: dict[str, dict[str, dict[str, Any]]] = tomllib.loads((HERE / "cases.toml").read_text("utf-8"))


def hexadecimal(values: Iterable[float]) -> list[str]:
    return [value.hex() for value in values]


def rotation_case(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    x = X[: fields["head_dim"]]
    arguments = {key: value for key, value in fields.items() if key != "head_dim"}
    rows = [{"pos": pos, "y": hexadecimal(oracle.rotate(x, pos, **arguments))} for pos in POSITIONS]
    return {"name": name, "fields": fields, "x": x, "rows": rows}


def angle_case(rotary_dim: int, base: float) -> dict[str, Any]:
    omegas = oracle.frequencies(rotary_dim, base)
    rows = []
    for pos in POSITIONS:
        cos, sin = zip(*(oracle.cos_sin(pos, omega) for omega in omegas), strict=True)
        rows.append({"pos": pos, "cos": hexadecimal(cos), "sin": hexadecimal(sin)})
    return {"name": f"base-{base:g}", "fields": {"rotary_dim": rotary_dim, "base": base}, "rows": rows}


def text(cases: list[dict[str, Any]]) -> str:
    """JSON with one line for each row, which keeps differences readable."""
    texts = []
    for case in cases:
        head = {key: value for key, value in case.items() if key != "rows"}
        rows = ",\n".join(f"   {json.dumps(row)}" for row in case["rows"])
        texts.append(f'  {json.dumps(head)[:-1]}, "rows": [\n{rows}\n  ]}}')
    return '{"cases": [\n' + ",\n".join(texts) + "\n]}\n"


def files() -> dict[str, str]:
    """Every golden file's name and text."""
    texts = {
        name: text([rotation_case(*case) for case in cases.items()]) for name, cases in ROTATIONS.items()
    }
    texts["angles"] = text([angle_case(16, base) for base in (10000.0, 500000.0, 1000000.0)])
    return {f"{name}.json": content for name, content in texts.items()}


def main() -> None:
    for name, content in files().items():
        (HERE / name).write_text(content, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
