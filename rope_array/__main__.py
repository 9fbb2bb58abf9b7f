"""The command line: ``python -m rope_array COMMAND``."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from rope_array._command._backends import add_backends
from rope_array._command._check import add_check
from rope_array._command._demo import add_demo
from rope_array._command._explain import add_explain
from rope_array._command._fingerprint import add_fingerprint
from rope_array._command._output import OutputError, complain, show
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
    try:
        return _run(arguments)
    except OutputError as error:
        if error.is_closed:
            return 0
        complain(f"rope_array: {error}")
        return 2


def _run(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    command = options.pop("command", None)
    if command is None:
        parser.print_help()
        return 0
    status: int = command(**options)
    return status


class _Parser(argparse.ArgumentParser):
    """A parser whose help is not lost in silence, if standard output cannot be written."""

    def print_help(self, file: Any = None) -> None:
        show(self.format_help().rstrip("\n"))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
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
    add_fingerprint(commands)
    add_plot(commands)
    return parser


class _Version(argparse.Action):
    """Print the version, which is looked up here: no other command needs it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        import rope_array as ra

        show(f"rope_array {ra.__version__}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
