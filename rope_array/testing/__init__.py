"""The definition of rotary position embedding, and a suite that checks any implementation against it."""

from ._cause import Cause
from ._definition import apply_definition, cos_sin, frequencies, rotation_matrix
from ._libraries import MissingLibrary
from ._outcome import Result
from ._report import Report
from ._run import ConformanceError, check_backend, iter_checks, run_checks
from ._target import Target

__all__ = [
    "Cause",
    "ConformanceError",
    "MissingLibrary",
    "Report",
    "Result",
    "Target",
    "apply_definition",
    "check_backend",
    "cos_sin",
    "frequencies",
    "iter_checks",
    "rotation_matrix",
    "run_checks",
]


def __dir__() -> list[str]:
    return __all__
