"""The command line: ``python -m rope_array COMMAND``."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the command line by default.

    Returns
    -------
    int
        Exit status.
    """
    given = vars(_parser().parse_args(arguments))
    status: int = given.pop("command")(**given)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rope_array",
        description="Rotary position embedding (RoPE) for every array library.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(commands)
    return parser


def _add_demo(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="rotate a text on every library installed, and check every result",
        description="Turn a text into queries and keys, rotate them on every array library installed, "
        "and compare each result with the definition. Then show that attention scores depend only on the "
        "distance, and what float32 angles lose far into a text.",
        epilog="exit status: 0 all results are within the contract; 1 one is not; 2 FILE cannot be used",
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help="text in UTF-8 (default: one shipped here)")
    parser.set_defaults(command=_demo)


def _demo(file: str | None) -> int:
    from rope_array._demo import run  # imports NumPy, which other commands may not need

    return run(file)


def _exit() -> None:
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough; a second failure to flush would print a traceback
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)


if __name__ == "__main__":
    _exit()
