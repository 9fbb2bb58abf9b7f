"""Bits change with a minor version only: hashes of results at fixed inputs, the same in every library.

A change of tests/golden/bits.toml is a line of CHANGELOG.md under *Bits*: see "Changes between versions" in
docs/install.md. `PYTHONPATH=.:tests python tests/test_golden_bits.py` writes the file.
"""

import hashlib
import tomllib
from pathlib import Path

import numpy as np
import pytest
from ropes import FIELDS
from ropes import rope as rope_named

import rope_array as ra
from rope_array.testing._libraries import LIBRARIES

GOLDEN = Path(__file__).with_name("golden") / "bits.toml"
ROPES = [name for name in FIELDS if name != "float32 angles"]
ROUNDINGS = "none", "norm", "steps"


def hash_of(name, lib, dtype):
    """Return the fingerprint of a rope; of a rounding, a hash of normed and rotated heads."""
    if name not in ROUNDINGS:
        return ra.fingerprint(rope_named(name), like=lib.asarray(np.zeros(1), dtype), length=2**31).hash
    numbers = np.arange(5 * 16, dtype=np.int64).reshape(5, 16) * 2654435761 % 251 - 125
    x, weight = lib.asarray(numbers, dtype), lib.asarray(numbers[0] / 64, dtype)
    y, _ = ra.attention_inputs(
        x, None, range(0, 500_000, 100_000), rope_named("half"), norm=(weight, None), rounding=name
    )
    return hashlib.sha256(np.asarray(lib.to_numpy(y)).astype("<f8").tobytes()).hexdigest()[:16]


@pytest.mark.neutral
@pytest.mark.without("dask")
@pytest.mark.parametrize("name", [*ROPES, *ROUNDINGS])
def test_bits_are_those_of_the_version(name, lib, float_dtype):
    assert hash_of(name, lib, float_dtype) == tomllib.loads(GOLDEN.read_text("utf-8"))[float_dtype][name]


if __name__ == "__main__":
    lines = []
    for dtype in ("float32", "float16", "bfloat16", "float64"):
        rows = (f'"{name}" = "{hash_of(name, LIBRARIES["torch"], dtype)}"' for name in (*ROPES, *ROUNDINGS))
        lines += [f"[{dtype}]", *rows, ""]
    GOLDEN.write_text("\n".join(lines[:-1]) + "\n", "utf-8")
