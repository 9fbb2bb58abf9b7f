"""Output of commands: text for a terminal, and refusals."""

import sys


def refuse(command: str, reason: object) -> int:
    """Print why a command cannot run; return its exit status."""
    print(f"rope_array {command}: {escaped(str(reason))}", file=sys.stderr)
    return 2


def show(text: str) -> None:
    """Print a text in the encoding of the terminal."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print("\n".join(map(escaped, text.split("\n"))).encode(encoding, "backslashreplace").decode(encoding))


def escaped(text: str) -> str:
    """Escape control characters: a terminal obeys them, and other packages' messages may hold them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
