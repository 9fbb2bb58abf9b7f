"""Measure `import rope_array` in a fresh interpreter, without the interpreter's start; count its modules.

Interpreters that import it alternate with interpreters that do nothing, after a first start of each that
writes the bytecode and fills the file cache; the result is the difference of the medians.
"""

import json
import os
import subprocess
import sys
import time
from statistics import median

from _record import main

STARTS = 20
IMPORTED = """
import sys
before = set(sys.modules)
import rope_array, json
found = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps([sorted(found - sys.stdlib_module_names), len(set(sys.modules) - before)]))
"""


# Keep bytecode, as for users.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def milliseconds(code):
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)
    return 1e3 * (time.perf_counter() - start)


def measure():
    codes = ("pass", "import rope_array")
    rounds = [[milliseconds(code) for code in codes] for _ in range(STARTS + 1)][1:]
    bare, with_import = (median(times) for times in zip(*rounds, strict=True))
    done = subprocess.run([sys.executable, "-c", IMPORTED], check=True, capture_output=True, text=True)
    packages, modules = json.loads(done.stdout)
    return {
        "import rope_array, ms": round(with_import - bare, 1),
        "starting the interpreter, ms": round(bare, 1),
        "packages imported that are not of the standard library": packages,
        "modules imported": modules,
    }


if __name__ == "__main__":
    sys.exit(
        main("import-time", measure, f"median of {STARTS} fresh interpreters less those that import nothing")
    )
