"""``python -m rope_array check``: run the suite on a target and print the results, for a bug report."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rope_array._command._output import OutputError, complain, refuse, show, wrapped

from ._checks import checks
from ._claims import CAPABILITIES
from ._compilers import arrays_of, library_names
from ._junit import write_junit, write_junit_error
from ._libraries import NOT_COMPILED, MissingLibrary, registered_names
from ._options import Options
from ._outcome import INAPPLICABLE
from ._process import CannotJudge, Judgement
from ._report_text import lines_of

__all__ = ["lines_of", "run"]


def run(
    target: str | None, *, as_json: bool, listing: bool, verbose: bool, junit: str | None,
    timeout: float | None, in_process: bool, **options: Any,
) -> int:  # fmt: skip
    """Run the command; return its exit status: 0 if all passed, 1 on a failure, 2 if no check could run."""
    if listing or target is None:
        _print(_listing())
        return 0 if listing else 2
    parsed_options, path = Options(target, **options), Path(junit).absolute() if junit else None
    try:
        _check_usable(path, timeout)
        with _ending_by_signal():
            plain = _judged(parsed_options, timeout, in_process)
    except CannotJudge as error:
        complain(f"rope_array check: {error}")
        if path:
            with contextlib.suppress(OSError):
                write_junit_error(path, target, str(error))
        return 2
    except KeyboardInterrupt:
        complain("rope_array check: interrupted")
        return 130
    judged = len(plain["results"]) > plain["counts"][INAPPLICABLE]
    status = (0 if plain["ok"] else 1) if judged else 2
    try:
        if path:
            write_junit(path, plain)
    except OSError as error:
        status = refuse("check", error)
    text = json.dumps(plain, indent=1, default=str) if as_json else None
    _print(text or "\n".join(lines_of(plain, parsed_options.repeated(), verbose=verbose)))
    return status


def _judged(options: Options, timeout: float | None, in_process: bool) -> dict[str, Any]:
    """Return the plain values of the report."""
    # In this process, prints of the target are kept out of the report.
    redirected = contextlib.redirect_stdout(sys.stderr) if in_process else contextlib.nullcontext()
    with redirected, Judgement(options, timeout=timeout, in_process=in_process) as judgement:
        for name in judgement.checks:
            judgement.run(name)
        return judgement.report()


def _check_usable(junit: Path | None, timeout: float | None) -> None:
    """Raise for options that no run can serve, before the run."""
    if junit and (junit.is_dir() or not junit.parent.is_dir()):
        raise CannotJudge(f"--junit {junit}: give a file in a folder that exists")
    if timeout is not None and not timeout > 0:
        raise CannotJudge(f"--timeout {timeout:g}: give seconds above 0")


@contextlib.contextmanager
def _ending_by_signal() -> Iterator[None]:
    """Let SIGTERM end the child process too: it raises SystemExit here."""

    def end(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print(text: str) -> None:
    """Print a text; a closed pipe (`| head`) does not change the exit status."""
    try:
        show(text)
    except OutputError as error:
        if not error.is_closed:
            raise


# ---- check --list ----


def _listing() -> str:
    lines = ["Targets (each with the capabilities that its arrays lack):"]
    for name in library_names():
        lines += wrapped(f"  {name:<28}{_gaps(name)}", 30)
    lines += [f"  {name:<28}arrays of another package's backend" for name in registered_names()]
    lines.append(f"  {'package.module:attribute':<28}a callable rotate(x, pos, **spec), or a Target")
    lines.append("\nChecks:")
    for name, requirement in {c.name.partition("[")[0]: c.requirement for c in checks()}.items():
        lines += wrapped(f"  {name:<31} {requirement}", 34)
    lines.append("\nCapabilities, which a check may need:")
    for name, meaning in CAPABILITIES.items():
        lines += wrapped(f"  {name:<31} {meaning}", 34)
    return "\n".join(lines)


def _gaps(name: str) -> str:
    lib = arrays_of(name)
    try:
        lib.check_present()
        gaps: Mapping[str, str] = lib.lacks
    except (MissingLibrary, ImportError):
        return "not installed here"
    gaps = {**gaps, **(NOT_COMPILED if lib.name != name else {})}
    return ", ".join(gap for gap in gaps if gap != "jit") or "-"
