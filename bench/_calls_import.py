"""Starts of fresh interpreters, for bench/calls.py.

import-time: interpreters that import rope_array alternate with interpreters that import nothing, after a
first start of each, which writes the bytecode and fills the file cache.
"""

import os
import subprocess
import sys
from functools import partial

# Keep bytecode, as for users.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def import_time():
    rows = {"import rope_array": "import rope_array", "nothing": "pass"}
    yield "a fresh interpreter", lambda: [("", {name: partial(start, code) for name, code in rows.items()})]


def start(code):
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)
