"""PyTorch on several processes: DTensor, the examples of docs/examples, FSDP2.

`test_torch.py::test_dtensor` has the values of DTensors on a mesh of one axis.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import child
import docs_blocks
import pytest
import torch

pytestmark = [
    pytest.mark.library("torch"),
    pytest.mark.slow,
    pytest.mark.skipif(
        not torch.distributed.is_available(), reason="this build of torch has no torch.distributed"
    ),
]
EXAMPLES = docs_blocks.DOCS / "examples"
MOST = pytest.param(4, marks=pytest.mark.nightly)


def torchrun(script, processes):
    """Run a script on several processes; return the output of all. AssertionError if one fails."""
    paths = [child.TESTS, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={processes}",
            script,
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{script} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


# Each rank has its own process, as PyTorch caches a mesh and its rank.
@pytest.mark.parametrize("rank", [3, pytest.param(0, marks=pytest.mark.nightly)], ids="rank {}".format)
def test_sharded_gradients_and_compiled_programs_communicate_nothing(rank):
    child.run("import sharded_cases; sharded_cases.main()", str(rank))


@pytest.mark.parametrize("processes", [2, MOST], ids="{} processes".format)
def test_shared_gradients_are_summed_and_fsdp_trains_as_one_process(processes):
    torchrun(os.path.join(child.TESTS, "torchrun_cases.py"), processes)


@pytest.mark.parametrize("processes", [2, MOST], ids="{} processes".format)
@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_examples_have_the_losses_of_one_process(name, processes):
    # The example itself asserts it.
    first, *others = torchrun(str(EXAMPLES / f"{name}.py"), processes).splitlines()
    assert first.startswith("one process")
    losses = [[*map(float, re.findall(r"\d+\.\d+", line))] for line in (first, *others)]
    assert len(losses) > 1
    for line in losses:
        assert len(line) == 8, "one loss for each step"
        assert line[-1] < line[0] / 2


def test_the_page_names_every_example():
    page = Path(docs_blocks.DOCS, "distributed.md").read_text("utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f"torchrun --nproc-per-node=2 docs/examples/{path.name}" in page, path.name
        assert f"torchrun --nproc-per-node=2 docs/examples/{path.name}" in path.read_text("utf-8")
