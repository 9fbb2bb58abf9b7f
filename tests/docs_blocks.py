"""The Python programs of a page of the documentation: extracted, and run as a reader pastes them.

A program is all ```python blocks of one second-level section, in order and in one namespace. A ```text block
after a ```python block is its output. A block that begins with a file name, such as `# mylib/backend.py`,
is a file and no part of a program.
"""

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rope_array.testing._libraries import DEFAULT_CONFIGURATIONS

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLOCK = re.compile(
    r"^```python\n(?!# \S+\.py\n)(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)
IMPORT = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)
EDGE = {"api/onnx.md", "in-my-model/export.md"}  # for the session `edge`, which has the packages
# By the name in an import statement. No program imports the strict library, or a library that needs a GPU.
LIBRARIES = {
    lib.module.partition(".")[0] for lib in DEFAULT_CONFIGURATIONS if lib.session not in ("strict", "gpu")
}


@dataclass(frozen=True)
class Program:
    """The code of a section, block by block, each with its output or None."""

    page: str
    section: str
    blocks: tuple[tuple[str, str | None], ...]

    @property
    def imports(self) -> set[str]:
        return {name for code, _ in self.blocks for name in IMPORT.findall(code)}

    @property
    def libraries(self) -> set[str]:
        """The array libraries that it imports, as the mark `library` names them."""
        found = self.imports & LIBRARIES
        return found - {"numpy"} or {"numpy"}  # NumPy is there with every library

    @property
    def id(self) -> str:
        return f"{self.page}: {self.section}"

    def run(self) -> dict[str, Any]:
        """Run the blocks; fail if a block prints other text than the page shows. Return their names."""
        names: dict[str, Any] = {"__name__": "program"}
        for code, output in self.blocks:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, self.id, "exec"), names)
            if output is not None and printed.getvalue().strip() != output.strip():
                raise AssertionError(f"{self.id} prints\n{printed.getvalue()}\nand shows\n{output}")
        return names


def programs(edge: bool = False) -> list[Program]:
    """Return the programs of all pages for the session `edge`, or of all others."""
    found = []
    for path in sorted(DOCS.rglob("*.md")):
        name = path.relative_to(DOCS).as_posix()
        if (name in EDGE) is edge:
            sections = re.split(r"^## +", path.read_text("utf-8"), flags=re.MULTILINE)
            found += [program_of(name, section.partition("\n")[0].strip(), section) for section in sections]
    return [program for program in found if program.blocks]


def program_of(page: str, section: str, text: str) -> Program:
    """Return the text of a section, or of a page, as one program."""
    blocks = tuple((code, output or None) for code, output in BLOCK.findall(text))
    return Program(page, section, blocks)
