"""Faults for the CUDA source, of gpu_mutants.toml: each has a case of cuda_cases.py that has to fail."""

import tomllib
from pathlib import Path
from typing import NamedTuple

TABLE = tomllib.loads(Path(__file__).with_name("gpu_mutants.toml").read_text("utf-8"))


class Mutant(NamedTuple):
    """A fault: `old`, which the file has once, becomes `new`; compiled for one dtype alone, to save time."""

    old: str
    new: str
    case: str
    dtype: int = 32
    file: str = ""

    def change(self, file, text):
        """Return the text of a file with the fault in it."""
        if file != self.file:
            return text
        assert text.count(self.old) == 1, f"{file} has {self.old!r} {text.count(self.old)} times, not once"
        return text.replace(self.old, self.new)


MUTANTS = {
    old: Mutant(old, new, case, *dtype, file=file)
    for file in ("cupy/rotate.cu", "_native/cos_sin.h")
    for case, rows in TABLE[file].items()
    for old, new, *dtype in rows
}
