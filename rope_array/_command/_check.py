"""``python -m rope_array check``: run the conformance suite on a target."""

from typing import Any

_REPEATABLE = {"action": "append", "default": []}
# The options that say how a target is judged; the pytest plugin has them too, with "rope-" before each name.
OPTIONS: dict[str, dict[str, Any]] = {
    "library": {"metavar": "NAME", "help": "the library of a callable's arrays (default: numpy)"},
    "claim": {
        "dest": "claims",
        "metavar": "NAME=VALUE",
        "help": "a claim of a callable: a field that is built in (pairing=half), a field of Target "
        "(angles=float32, layout=bshd, dtypes=float32,bfloat16), or a capability it lacks, with the reason",
        **_REPEATABLE,
    },
    "require": {
        "metavar": "CAPABILITY[,CAPABILITY]",
        "help": "capabilities that a callable has to have: it must not refuse their calls; repeatable",
        **_REPEATABLE,
    },
    "only": {
        "metavar": "CHECK[,CHECK]",
        "help": "run these checks of the suite alone; a name without a dtype has every dtype; repeatable",
        **_REPEATABLE,
    },
    "thorough": {"action": "store_true", "help": "run the checks that take long, too"},
    "examples": {"metavar": "N", "type": int, "default": 0, "help": "judge N random calls in addition"},
    "seed": {"metavar": "N", "type": int, "help": "the seed of the random calls (default: 0)"},
    "timeout": {
        "metavar": "SECONDS",
        "type": float,
        "help": "fail a check that takes longer (default: no limit)",
    },
    "in-process": {"action": "store_true", "help": "judge in this process, for a debugger or a profiler"},
    "expect": {
        "dest": "expected",
        "metavar": "CHECK=REASON",
        "help": "a check known to fail, with the reason and a link; a pass is then a failure",
        **_REPEATABLE,
    },
}


def add_check(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "check",
        help="run the conformance suite on a library, or on any rotary embedding",
        description="Run every check of rope_array.testing on TARGET and print a report: the verdict and the "
        "likely cause of failures first. "
        "TARGET is a library that rope_array supports, such as numpy, jax:jit or torch:cuda, or "
        "package.module:attribute: a callable rotate(x, pos, **spec) or a rope_array.testing.Target. The "
        "package is imported and run, from the current folder too.",
        epilog="TARGET is judged in a child process: if it ends the process, the check that was running has "
        "failed, and the others are run in a new process. exit status: 0 no surprise; 1 a check failed, or "
        "passed that was expected to fail; 2 TARGET cannot be judged, an option is wrong, or the report "
        "cannot be written",
    )
    parser.add_argument("target", metavar="TARGET", nargs="?", help="the target to judge; see --list")
    parser.add_argument("--json", dest="as_json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--junit", metavar="PATH", help="write JUnit XML to PATH, a test case for each check")
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="list every check, every failure's detail, and why checks do not apply",
    )
    parser.add_argument("--list", dest="listing", action="store_true", help="list targets and checks")
    parser.add_argument(
        "--backend", metavar="NAME", help="judge one backend of rope_array by the calls that it serves"
    )
    parser.add_argument(
        "--case",
        dest="cases",
        metavar="TEXT",
        help="judge this call alone, as the message of a failure shows it; repeatable",
        **_REPEATABLE,
    )
    for name, option in OPTIONS.items():
        parser.add_argument(f"--{name}", **option)
    parser.set_defaults(command=_run_check)


def _run_check(**options: Any) -> int:
    from rope_array.testing._command import run  # imports NumPy, unused by other commands

    return run(**options)
