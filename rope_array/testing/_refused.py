"""Distinguish a refusal from a fault: code may refuse a call that no claim and no trial covers.

A call is refused if it raises each time and writes nothing, while the plain call succeeds, and each of the
call's fields alone. Then the code refuses these sizes, shapes or values, and they are not judged.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ._claims import TRIALS, describe, one_line
from ._compilers import CannotCompile
from ._library_target import Declined


class Refused(Declined):
    """A target refuses a call; the message is its exception's."""


@dataclass
class CheckCalls:
    """The calls of one check: the number of those that a target served, and the others with their errors."""

    served: int = 0
    refused: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return the calls that were refused, as text; "" if there are none."""
        if not self.refused:
            return ""
        number = len(self.refused)
        share = f"{number} of {self.served + number} calls" if self.served else "every call"
        return f"refuses {share}: {self.refused[0]}"


class EndingError(Exception):
    """A call raised an exception that is no `Exception`, such as SystemExit: a fault, no refusal."""


def caught(error: BaseException) -> EndingError:
    """Return an exception that would end the process as one that `except Exception` catches.

    It has the name, the message and the traceback of the original.
    """
    cls: type[EndingError] = type(type(error).__name__, (EndingError,), {})
    return cls(*error.args).with_traceback(error.__traceback__)


def refusal(judge: Any, x: Any, pos: Any, spec: Mapping[str, Any], error: Exception) -> str:
    """Return a call of a judge's target that raised, with its error, as text; "" if it is a fault."""
    inputs = x if isinstance(x, tuple) and not hasattr(x, "array") else (x,)
    if judge.target.declared or isinstance(error, Declined | CannotCompile | EndingError):
        return ""
    # With other threads a call may raise only sometimes; traced arrays have no values.
    traced = any(getattr(x, "array", None) is None for x in inputs)
    if traced or threading.current_thread() is not threading.main_thread():
        return ""
    try:
        # A call that is compiled was repeated without the compiler.
        again = judge.target.compiled or _raises(judge, x, pos, spec) is type(error)
        if not again or not _is_served_else(judge, inputs[0].dtype, spec):
            return ""
        if not all(np.array_equal(judge.numbers(x.array), x.values, equal_nan=True) for x in inputs):
            return ""
    except Exception:  # the target's own
        return ""
    arrays = tuple(x.array for x in inputs) if len(inputs) > 1 else inputs[0].array
    return f"{one_line(error)}; {describe(arrays, pos, spec)}"


def _raises(judge: Any, x: Any, pos: Any, spec: Mapping[str, Any]) -> type[Exception] | None:
    """Make a call once more; return the type of its exception."""
    try:
        judge.bare_call(x, pos, dict(spec))
    except Exception as error:
        return type(error)
    return None


def _is_served_else(judge: Any, dtype: str, spec: Mapping[str, Any]) -> bool:
    """Return whether the plain call is served, and every field of a call alone."""
    from ._call import arguments_of  # late: it needs the judge, whose calls this module judges

    texts = [f"dtype={dtype}", *(_alone(name, value) for name, value in spec.items())]
    return not any(_raises(judge, *arguments_of(judge, text)) for text in texts)


def _alone(name: str, value: Any) -> str:
    """Return the call of a field alone as text: with a plain value, or a rule of the same kind."""
    return f"scaling={value['rope_type']}" if name == "scaling" else TRIALS[name]
