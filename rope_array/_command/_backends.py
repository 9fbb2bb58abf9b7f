"""``python -m rope_array backends``: list the backends."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from rope_array._command._output import hanging, refuse, show


def add_backends(commands: Any) -> None:
    """Add the command to the parser's."""
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
    parser.set_defaults(command=_run_backends)


def _run_backends(importing: bool) -> int:
    import rope_array as ra

    try:
        if importing:
            _import_libraries()
        listed: Any = ra.backends()
    except ra.RoPEError as error:
        return refuse("backends", error)
    show("\n".join(_table(listed)))
    if not importing and any(backend.usable is None for backend in listed):
        show("\n--import imports the libraries that are installed, so that each backend can be described.")
    return 0


def _import_libraries() -> None:
    from rope_array._registry import records

    for name in dict.fromkeys(pattern.partition(":")[0] for record in records() for pattern in record.types):
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name.partition(".")[0]:  # the library is installed, and lacks another module
                refuse("backends", f"{name} cannot be imported: {error}")
        except Exception as error:  # a broken installation may raise any exception
            refuse("backends", f"{name} cannot be imported: {type(error).__name__}: {error}")


def _table(listed: Sequence[Any]) -> Iterator[str]:
    usable_text = {True: "yes", False: "no", None: "?"}
    rows = [("name", "serves", "usable", "about")]
    for b in listed:
        about = f"{b.description}; {b.outdated}" if b.outdated else b.description
        rows.append((b.name, b.serves, usable_text[b.usable], about))
    first, second = (min(max(len(row[i]) for row in rows), 40) for i in (0, 1))
    for name, serves, usable, about in rows:
        yield from hanging(f"{name:<{first}}  {serves:<{second}}  {usable:<6}  ", about)
