"""PyTorch on several processes: the examples of docs/examples, FSDP2; DTensors alone are in test_torch.py.

`test_torch.py::test_dtensor` has the cases of DTensors that communicate nothing.
"""

import re
from pathlib import Path

import child
import docs_blocks
import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.library("torch"),
    pytest.mark.slow,
    pytest.mark.skipif(
        not torch.distributed.is_available(), reason="this build of torch has no torch.distributed"
    ),
]
FILES = sorted((docs_blocks.DOCS / "examples").glob("*.py"))
EXAMPLES = [str(path) for path in FILES if "torch.distributed" in path.read_text("utf-8")]
CASES = str(Path(child.TESTS, "torchrun_cases.py"))


def check_losses(lines):
    """Check the losses of an example: of one process, then of several. Its own assertion compares them."""
    losses = [[*map(float, re.findall(r"\d+\.\d+", line))] for line in lines]
    assert len(losses) > 1
    for line in losses:
        assert len(line) == 8, "one loss for each step"
        assert line[-1] < line[0] / 2


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_examples_and_cases(processes):
    lines = child.torchrun(processes, CASES, *EXAMPLES).splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("one process")]
    assert len(starts) == len(EXAMPLES)
    for start, stop in zip(starts, [*starts[1:], None], strict=True):
        check_losses(lines[start:stop])


@pytest.mark.nightly
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: Path(path).stem)
def test_each_example_by_its_own_command(path):
    check_losses(child.torchrun(2, path).splitlines())


def test_the_page_names_every_example():
    page = Path(docs_blocks.DOCS, "distributed.md").read_text("utf-8")
    for path in map(Path, EXAMPLES):
        command = f"torchrun --nproc-per-node=2 docs/examples/{path.name}"
        assert command in page, path.name
        assert command in path.read_text("utf-8"), path.name
