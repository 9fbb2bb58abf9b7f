"""Output of commands: text for a terminal, and refusals."""

import os
import sys
import textwrap
from contextlib import suppress

WIDTH = 100  # of a line


class OutputError(Exception):
    """Standard output cannot be written: a disk is full, or the reader of a pipe has exited.

    Attributes
    ----------
    is_closed
        Whether the reader has exited, as of ``| head``: this is no error.
    """

    def __init__(self, error: OSError):
        super().__init__(f"standard output cannot be written: {error.strerror or error}")
        self.is_closed = isinstance(error, BrokenPipeError)


def refuse(command: str, reason: object) -> int:
    """Print why a command cannot run; return its exit status."""
    complain(f"rope_array {command}: {escaped(str(reason))}")
    return 2


def complain(text: str) -> None:
    """Print a text on standard error, if it can be written."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Print a text in the encoding of the terminal.

    Raise OutputError if it cannot be written; from then on standard output is discarded.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    shown = "\n".join(map(escaped, text.split("\n"))).encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(shown, flush=True)
    except OSError as error:
        _discard_output()
        raise OutputError(error) from error


def _discard_output() -> None:
    """Redirect standard output to the null device: Python writes the rest of its buffer again at exit."""
    with suppress(OSError):  # of a stream without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def escaped(text: str) -> str:
    """Escape control characters: a terminal obeys them, and other packages' messages may hold them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def wrapped(text: str, indent: int) -> list[str]:
    """Return the lines of a text, the lines after the first indented."""
    wrapper = textwrap.TextWrapper(
        WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.wrap(text) or [text]


def hanging(start: str, text: str) -> list[str]:
    """Return the lines of a text that begins after `start` and is wrapped to its column."""
    return wrapped(start + text, len(start))
