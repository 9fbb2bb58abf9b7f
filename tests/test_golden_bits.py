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
POSITIONS = [0, 1, -77_777, 123_456_789, 2**31 - 1]


def hash_of(name, lib, dtype):
    """Return a hash of rotated heads, cos and sin of a rope; of a rounding, of normed and rotated heads."""
    numbers = np.arange(5 * 16, dtype=np.int64).reshape(5, 16) * 2654435761 % 251 - 125
    x, weight = lib.asarray(numbers, dtype), lib.asarray(numbers[0] / 64, dtype)
    if name in ROUNDINGS:
        options = {"norm": (weight, None), "rounding": name}
        results = ra.attention_inputs(x, None, POSITIONS, rope_named("half"), **options)[:1]
    else:
        rope = rope_named(name)
        pos = [[p, -p // 3, p // 7][: rope.axes.count] for p in POSITIONS] if rope.axes else POSITIONS
        results = rope.apply(x, pos), *rope.rotation(pos, like=x)
    arrays = (np.asarray(lib.to_numpy(y)).astype("<f8") + 0.0 for y in results)
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


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
