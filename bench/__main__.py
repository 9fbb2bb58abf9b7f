"""Run every benchmark here and write bench/results/<date>-<name>.json: `python bench`."""

import datetime
import subprocess
import sys
from pathlib import Path

from _record import RESULTS

HERE = Path(__file__).resolve().parent
for name in ("latency", "sweep", "import_time"):
    path = RESULTS / f"{datetime.date.today()}-{name.replace('_', '-')}.json"
    # One process for each benchmark: imports and warm caches would speed up the next.
    subprocess.run([sys.executable, HERE / f"{name}.py", "--json", path], check=True)
