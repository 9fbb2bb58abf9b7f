"""Running Sollya and Gappa."""

from __future__ import annotations

import re
import shutil
import subprocess

from .expressions import ProofError

TOOLS = ("sollya", "gappa")


def missing() -> list[str]:
    """Return the tools that are not installed."""
    return [tool for tool in TOOLS if not shutil.which(tool)]


def versions() -> dict[str, str]:
    found = {}
    for tool in TOOLS:
        done = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True, timeout=60)
        match = re.search(r"\d+\.\d+(\.\d+)?", done.stdout + done.stderr)
        found[tool] = match[0] if match else "unknown"
    return found


def run(tool: str, script: str) -> str:
    """Return a tool's output for a script on its standard input; raise ProofError if it fails."""
    done = subprocess.run([tool], input=script, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode or "error" in done.stdout.lower():
        raise ProofError(f"{tool} failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}\n{script[-3000:]}")
    return done.stdout + done.stderr
