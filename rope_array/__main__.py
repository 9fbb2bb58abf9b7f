"""The command line: ``python -m rope_array COMMAND``."""

import argparse
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

_WIDTH = 100


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
    options = vars(_parser().parse_args(arguments))
    status: int = options.pop("command")(**options)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rope_array", description="Rotary position embedding (RoPE) for every array library."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_check(commands)
    _add_backends(commands)
    _add_explain(commands)
    return parser


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


def _add_backends(commands: Any) -> None:
    parser = commands.add_parser(
        "backends",
        help="list the backends, and which can be used here",
        description="List the backends of rope_array.backends(), in the order in which apply asks them: the "
        "name for backend=, the array types, whether the backend can be used here, and its description. A "
        "backend of a library that is not imported shows '?'.",
        epilog="exit status: 0; 2 if a setting of the environment is invalid",
    )
    parser.add_argument(
        "--import",
        dest="importing",
        action="store_true",
        help="first import the installed libraries of the backends",
    )
    parser.set_defaults(command=_backends)


def _backends(importing: bool) -> int:
    import rope_array as ra

    try:
        if importing:
            _import_libraries()
        listed: Any = ra.backends()
    except ra.RoPEError as error:
        return _refuse("backends", error)
    _print("\n".join(_table(listed)))
    if not importing and any(backend.usable is None for backend in listed):
        _print("\n--import imports the libraries that are installed, so that each backend can be described.")
    return 0


def _import_libraries() -> None:
    from rope_array._registry import records

    for name in dict.fromkeys(each.partition(":")[0] for record in records() for each in record.types):
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name.partition(".")[0]:  # the library is installed, and lacks another module
                _refuse("backends", f"{name} cannot be imported: {error}")
        except Exception as error:  # a broken installation may raise any exception
            _refuse("backends", f"{name} cannot be imported: {type(error).__name__}: {error}")


def _table(listed: Sequence[Any]) -> Iterator[str]:
    usable_text = {True: "yes", False: "no", None: "?"}
    rows = [("name", "serves", "usable", "about")]
    rows += [(b.name, b.serves, usable_text[b.usable], b.description) for b in listed]
    first, second = (min(max(len(row[i]) for row in rows), 32) for i in (0, 1))
    for name, serves, usable, about in rows:
        start = f"{name:<{first}}  {serves:<{second}}  {usable:<6}  "
        yield from textwrap.wrap(start + about, _WIDTH, subsequent_indent=" " * len(start)) or [start]


def _add_explain(commands: Any) -> None:
    parser = commands.add_parser(
        "explain",
        help="show the backend that a call would use, and why",
        description="Make an array of zeros, and print rope_array.explain of its rotation by the positions "
        "0, 1, 2, ... along its last axis but one.",
        epilog="exit status: 0; 2 if there is no such array here, or the call is refused",
    )
    parser.add_argument(
        "--library", metavar="NAME", default="numpy", help="a name of `check --list`, such as torch:cuda"
    )
    parser.add_argument("--dtype", metavar="NAME", default="float32", help="default: float32")
    parser.add_argument(
        "--shape", metavar="SIZES", default="1,32,2048,128", help="default: 1,32,2048,128; features last"
    )
    parser.add_argument(
        "--pairing", metavar="NAME", default="interleaved", help="interleaved (default) or half"
    )
    parser.add_argument("--backend", metavar="NAME", help="the backend to force, as in rope_array.apply")
    parser.set_defaults(command=_explain)


def _explain(library: str, dtype: str, shape: str, pairing: str, backend: str | None) -> int:
    import rope_array as ra
    from rope_array.testing._libraries import LIBRARIES

    try:
        if library not in LIBRARIES:
            raise ValueError(f"unknown library {library!r}; give one of {', '.join(LIBRARIES)}")
        lib = LIBRARIES[library]
        lib.check_present()
        with lib.running():
            x = _zeros(lib, dtype, _sizes(shape))
            pos = range(x.shape[-2]) if len(x.shape) > 1 else 0
            explanation = ra.explain(x, pos, pairing=pairing, backend=backend)
    except (ra.RoPEError, ValueError, ImportError, OSError, RuntimeError, MemoryError) as error:
        return _refuse("explain", error)
    _print(str(explanation))
    return 0


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(map(int, text.split(",")))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 0:
        raise ValueError(f"the shape is {text!r}; give the size of each axis, such as 1,32,2048,128")
    return sizes


def _zeros(lib: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return zeros, broadcast from one number if the library can: no backend's choice depends on strides."""
    floats = lib.dtypes
    if dtype not in floats:
        reason = f" ({lib.gaps[dtype]})" if dtype in lib.gaps else ""
        raise ValueError(f"the dtype is {dtype!r}; {lib.name} has {', '.join(floats)} here{reason}")
    import numpy as np  # unused by other commands

    return lib.expanded(lib.asarray(np.zeros((1,) * len(shape), np.float32), dtype), shape)


def _refuse(command: str, reason: object) -> int:
    print(f"rope_array {command}: {_escaped(str(reason))}", file=sys.stderr)
    return 2


def _print(text: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print("\n".join(map(_escaped, text.split("\n"))).encode(encoding, "backslashreplace").decode(encoding))


def _escaped(text: str) -> str:
    """Escape control characters: a terminal obeys them, and other packages' messages may hold them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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
