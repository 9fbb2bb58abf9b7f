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
    _add_check(commands)
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


def _add_check(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="run the conformance suite on a library, or on any rotary embedding",
        description="Run every check of rope_array.testing on TARGET and print a table fit for a bug report. "
        "TARGET is a library that rope_array serves, such as numpy, jax:jit or torch:cuda, or "
        "package.module:attribute: a callable rotate(x, pos, **spec) or a rope_array.testing.Target.",
        epilog="exit status: 0 all is well; 1 a check failed, or passed that was expected to fail; "
        "2 TARGET cannot be judged",
    )
    parser.add_argument("target", metavar="TARGET", nargs="?", help="what is judged; see --list")
    parser.add_argument("--json", dest="as_json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--list", dest="listing", action="store_true", help="list targets and checks")
    parser.add_argument("--backend", metavar="NAME", help="force a path of rope_array, such as array-api")
    parser.add_argument("--library", metavar="NAME", help="whose arrays a callable takes (default: numpy)")
    parser.add_argument(
        "--claim",
        dest="claims",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="what a callable claims: a field that is built in (pairing=half), a field of Target "
        "(angles=float32, layout=bshd, dtypes=float32,bfloat16), or a capability it lacks, with the reason",
    )
    parser.add_argument(
        "--expect",
        dest="expected",
        metavar="CHECK=REASON",
        action="append",
        default=[],
        help="a check known to fail, with the reason and a link; that it passes is then reported",
    )
    parser.set_defaults(command=_check)


def _check(**given: Any) -> int:
    from rope_array.testing._command import run  # imports NumPy, which other commands may not need

    return run(**given)


def _exit() -> None:
    try:
        status = main()
        if sys.stdout is not None:  # which it is where standard output was closed
            sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough; a second failure to flush would print a traceback
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)


if __name__ == "__main__":
    _exit()
