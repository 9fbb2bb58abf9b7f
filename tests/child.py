"""Run a script in a new interpreter: for first calls and imports, or with other environment variables."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

TESTS = str(Path(__file__).parent)


def run(script, *arguments, **environment):
    """Run a script, which may import the tests' helpers; return its output. AssertionError if it fails."""
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
