"""Run a script in an interpreter of its own, for what has to happen first, or under settings of its own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

TESTS = str(Path(__file__).parent)


def run(script, *arguments, **environment):
    """Run a script, which may import what the tests may; its output, or an AssertionError with its errors."""
    paths = [TESTS, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"the script failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout
