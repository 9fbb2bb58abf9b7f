"""The command line: ``python -m rope_array COMMAND``."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from rope_array._command._backends import add_backends
from rope_array._command._explain import add_explain
from rope_array._command._plot import add_plot


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default the arguments of the command line.

    Returns
    -------
    int
        Exit status.
    """
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    command = options.pop("command", None)
    if command is None:
        parser.print_help()
        return 0
    status: int = command(**options)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rope_array", description="Rotary position embedding (RoPE) for every array library."
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, default=argparse.SUPPRESS, help="print the version and exit"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_demo(commands)
    _add_check(commands)
    add_backends(commands)
    add_explain(commands)
    add_plot(commands)
    return parser


class _Version(argparse.Action):
    """Print the version, which is looked up here: no other command needs it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        import rope_array as ra

        print(f"rope_array {ra.__version__}")
        parser.exit()


def _add_demo(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="rotate a text on every library installed, and check every result",
        description="Make queries and keys of a text, rotate them on every array library installed, and "
        "compare each result with the definition. Then show that attention scores depend only on the "
        "distance, and the loss of float32 angles far into a text.",
        epilog="exit status: 0 all results are within the contract; 1 a result is not; 2 FILE cannot be used",
    )
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="text in UTF-8 (default: a text shipped here)"
    )
    parser.set_defaults(command=_demo)


def _demo(file: str | None) -> int:
    from rope_array._demo import run  # imports NumPy, unused by other commands

    return run(file)


def _add_check(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="run the conformance suite on a library, or on any rotary embedding",
        description="Run every check of rope_array.testing on TARGET and print a report: the verdict and the "
        "likely cause of failures first. "
        "TARGET is a library that rope_array supports, such as numpy, jax:jit or torch:cuda, or "
        "package.module:attribute: a callable rotate(x, pos, **spec) or a rope_array.testing.Target. The "
        "package is imported and run, from the current folder too.",
        epilog="exit status: 0 no surprise; 1 a check failed, or passed that was expected to fail; "
        "2 TARGET cannot be judged",
    )
    parser.add_argument("target", metavar="TARGET", nargs="?", help="the target to judge; see --list")
    parser.add_argument("--json", dest="as_json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--verbose", action="store_true", help="list every check, and every failure's detail")
    parser.add_argument("--list", dest="listing", action="store_true", help="list targets and checks")
    parser.add_argument(
        "--backend", metavar="NAME", help="judge one backend of rope_array by the calls that it serves"
    )
    parser.add_argument(
        "--library", metavar="NAME", help="the library of a callable's arrays (default: numpy)"
    )
    parser.add_argument(
        "--claim",
        dest="claims",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a claim of a callable: a field that is built in (pairing=half), a field of Target "
        "(angles=float32, layout=bshd, dtypes=float32,bfloat16), or a capability it lacks, with the reason",
    )
    parser.add_argument(
        "--expect",
        dest="expected",
        metavar="CHECK=REASON",
        action="append",
        default=[],
        help="a check known to fail, with the reason and a link; a pass is then reported",
    )
    parser.set_defaults(command=_check)


def _check(**options: Any) -> int:
    from rope_array.testing._command import run  # imports NumPy, unused by other commands

    return run(**options)


def _exit() -> None:
    try:
        status = main()
        if sys.stdout is not None:  # None if standard output is closed
            sys.stdout.flush()
    except BrokenPipeError:  # `| head` has exited; without this, flushing at exit would print a traceback
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)


if __name__ == "__main__":
    _exit()
