"""Run a script in a new interpreter: for first calls and imports, or with other environment variables."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

TESTS = str(Path(__file__).parent)


def run(script, *arguments, **environment):
    """Run a script, which may import the tests' helpers; return its output. AssertionError if it fails."""
    return _run("the script", "-c", textwrap.dedent(script), *arguments, **environment)


def torchrun(processes, path, *arguments):
    """Run a file on several processes of PyTorch; return the output of all. AssertionError if one fails."""
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
    return _run(path, *launcher, path, *arguments, OMP_NUM_THREADS="1")


def python(*arguments, cwd=None, timeout=300, **environment):
    """Run Python; in a folder as a user does, who imports from it. Return the finished process."""
    env = {**os.environ, **environment}
    if cwd is not None:
        env.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, *map(str, arguments)]
    options = {"capture_output": True, "text": True, "timeout": timeout, "check": False}
    return subprocess.run(command, cwd=cwd, env=env, **options)


def _run(name, *command, **environment):
    paths = [TESTS, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = python(*command, **{"PYTHONPATH": os.pathsep.join(paths), **environment})
    assert done.returncode == 0, f"{name} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout
