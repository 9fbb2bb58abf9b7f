"""Settings of the process that a call should leave alone, and unusual values so that a call's own show."""

from __future__ import annotations

import decimal
import gc
import hashlib
import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

# The variables at the import of the suite. Libraries and calls set later ones.
_ENVIRONMENT = frozenset(os.environ)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGABRT)
# Variables that libraries read when they start threads.
_THREADS = ("OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "KMP_", "GOTO_", "VECLIB_")


def lasting_settings() -> dict[str, Any]:
    """Return settings that hold for every later computation of the process, or of the thread."""
    return {
        "NumPy's buffer size": np.getbufsize(),
        "the rounding and the subnormal numbers of the processor": _arithmetic(),
        "environment variables of threads": {k: v for k, v in os.environ.items() if k.startswith(_THREADS)},
        "the locale": locale.setlocale(locale.LC_ALL),
        "the current directory": current_folder(),
        "the handlers of signals": [signal.getsignal(n) for n in _SIGNALS],
    }


def current_folder() -> str:
    """Return the current directory; "" if it is deleted."""
    try:
        return os.getcwd()
    except OSError:  # it is deleted
        return ""


def process_settings() -> dict[str, Any]:
    """Return the settings of the process that the suite knows, besides the lasting ones."""
    variables = sorted(pair for pair in os.environ.items() if not pair[0].startswith(_THREADS))
    return {
        "NumPy's error handling": np.geterr(),
        "NumPy's print options": repr(np.get_printoptions()),
        "NumPy's random state": str(np.random.get_state()),  # noqa: NPY002 (the process's state)
        "Python's random state": hash(random.getstate()),
        "the precision of decimal": decimal.getcontext().prec,
        "the rounding of decimal": decimal.getcontext().rounding,
        "the filters of warnings": list(warnings.filters),
        "the recursion limit": sys.getrecursionlimit(),
        "the switch interval of threads": sys.getswitchinterval(),
        "the collection of garbage": (gc.isenabled(), gc.get_threshold()),
        "hooks of exceptions": (sys.excepthook, threading.excepthook),
        "standard output and errors": (id(sys.stdout), id(sys.stderr)),
        "logging": (logging.root.level, logging.root.manager.disable, *logging.root.handlers),
        "the import path": list(sys.path),
        "environment variables": hashlib.sha256(repr(variables).encode()).digest(),
    }  # fmt: skip


def _arithmetic() -> tuple[bool, bool]:
    """Return whether numbers are rounded to nearest, and whether subnormal numbers are kept."""
    units, tiny = np.array([1.0, -1.0]), np.array([1e-310, 1e-310])
    rounded = (units + 2.0**-54 == units).all() and (units - 2.0**-55 == units).all()
    return bool(rounded), bool((tiny * 1.0 != 0).all())


@contextmanager
def unusual_settings(second_values: bool = False) -> Iterator[None]:
    """Give settings unusual values; restore the old ones at the end.

    With `second_values`, a setting with few values, such as whether garbage is collected, gets another value:
    so a call that sets either is found.
    """
    with ExitStack() as stack:
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002 (the process's state)
        stack.callback(random.setstate, random.getstate())
        stack.callback(sys.setrecursionlimit, sys.getrecursionlimit())
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        stack.callback(gc.enable if gc.isenabled() else gc.disable)
        stack.callback(gc.set_threshold, *gc.get_threshold())
        stack.callback(setattr, sys, "excepthook", sys.excepthook)
        stack.callback(setattr, threading, "excepthook", threading.excepthook)
        stack.callback(logging.root.setLevel, logging.root.level)
        stack.callback(logging.disable, logging.root.manager.disable)
        stack.callback(_set_environment, dict(os.environ))
        stack.enter_context(np.errstate(all="ignore" if second_values else "warn"))
        stack.enter_context(np.printoptions(precision=2, threshold=4, edgeitems=1))
        stack.enter_context(decimal.localcontext(decimal.Context(prec=6, rounding=decimal.ROUND_DOWN)))
        stack.enter_context(warnings.catch_warnings())
        seed = np.random.default_rng().integers(2**31)
        np.random.seed(int(seed))  # noqa: NPY002
        random.seed(int(seed))
        warnings.simplefilter("ignore", RuntimeWarning)  # of NumPy's error handling
        warnings.filterwarnings("ignore", message="no call warns of this")
        sys.setrecursionlimit(sys.getrecursionlimit() + 11)
        sys.setswitchinterval(sys.getswitchinterval() * 1.5)
        gc.set_threshold(gc.get_threshold()[0] + 1)
        (gc.enable if second_values else gc.disable)()
        sys.excepthook, threading.excepthook = _hook, _hook
        logging.root.setLevel(logging.root.level + 1)
        logging.disable(logging.root.manager.disable + 1)
        _set_environment({k: v for k, v in os.environ.items() if k in _ENVIRONMENT})
        yield


def _hook(*arguments: object) -> None:
    """Report an exception as Python does: in place of a hook."""
    sys.__excepthook__(*sys.exc_info())


def _set_environment(variables: dict[str, str]) -> None:
    """Set the environment's variables; leave those that have the right value."""
    for name in [*os.environ]:
        if name not in variables:
            del os.environ[name]
    os.environ.update({k: v for k, v in variables.items() if os.environ.get(k) != v})


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, None]:
    """Return the names of the settings that differ."""
    return dict.fromkeys(name for name in before if before[name] != after[name])
