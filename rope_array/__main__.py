"""The command line: ``python -m rope_array COMMAND``."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from rope_array._command._backends import add_backends
from rope_array._command._check import add_check
from rope_array._command._demo import add_demo
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
    add_demo(commands)
    add_check(commands)
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
