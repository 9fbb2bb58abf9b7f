"""Prove the bounds of the contract, and print them. Exit status 1: a bound exceeds the contract's."""

import sys
import time

from .report import rows, table
from .tools import missing, versions


def main() -> int:
    if absent := missing():
        print(
            f"not installed: {', '.join(absent)} (Debian, Ubuntu: apt install sollya gappa)", file=sys.stderr
        )
        return 2
    began = time.perf_counter()
    found = rows()
    print(table(found))
    tools = ", ".join(f"{name} {version}" for name, version in versions().items())
    print(f"\n{tools}; {time.perf_counter() - began:.0f} s")
    return int(not all(row.holds for row in found))


sys.exit(main())
