"""``python -m rope_array demo``: rotate a text on every library."""

from typing import Any


def add_demo(commands: Any) -> None:
    """Add the command to the parser's."""
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
    parser.set_defaults(command=_run_demo)


def _run_demo(file: str | None) -> int:
    from rope_array._demo import run  # imports NumPy, unused by other commands

    return run(file)
