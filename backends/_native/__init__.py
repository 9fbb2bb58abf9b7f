"""The rotation in C++, for arrays whose elements lie in the host's memory: what `numpy` and `torch` share.

The compiled module is optional. Where it is not there, `kernel` is None and `unavailable_reason()` says why; the paths
that need it then decline.
"""

import os
from functools import lru_cache
from importlib import import_module
from typing import Any

from rope_array._errors import BackendError
from rope_array._spec.plan import Layout, Plan

# Kind of positions, as drive.hpp numbers them.
SPACED, INT32, INT64, TABLES = range(4)
# The type of an array by its name, as kernel.hpp numbers them.
TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}

_LEVEL = "ROPE_ARRAY_KERNEL_LEVEL"


def _load() -> tuple[Any, str]:
    if os.environ.get(_LEVEL) == "none":
        return None, f"the C++ kernel is switched off: {_LEVEL} is 'none'"
    try:
        _kernel = import_module(f"{__name__}._kernel")
    except ImportError as error:
        return None, f"the C++ kernel is not built ({error})"
    wanted = os.environ.get(_LEVEL)
    if wanted and wanted not in _kernel.level_names():
        raise BackendError(
            f"the environment variable {_LEVEL} is {wanted!r}; this processor has "
            f"{', '.join(map(repr, _kernel.level_names()))}, and 'none' switches the kernel off."
        )
    if wanted:
        _kernel.use_level(wanted)
    return _kernel, ""


kernel, _reason = _load()


def unavailable_reason() -> str:
    """Say why there is no kernel; nothing where there is one."""
    return _reason


def spec_of(plan: Plan) -> Any:
    """Return what the kernel makes of a plan with exact angles, kept with the plan; None of any other."""
    if plan.native is None and kernel is not None and plan.exact:
        plan.check()
        plan.native = _spec(plan.layout, plan)
    return plan.native


@lru_cache(maxsize=256)
def transposed_spec_of(plan: Plan) -> Any:
    """Return what the kernel makes of a plan's transposed rotation, the map of gradients: angles are kept."""
    return _spec(plan.layout.transposed(plan.layout.amplitude), plan, transposed=True)


@lru_cache(maxsize=256)
def spec_of_tables(layout: Layout) -> Any:
    """Return what the kernel makes of a layout, to which tables are given."""
    layout.check()
    return _spec(layout, None)


def _spec(layout: Layout, plan: Plan | None, transposed: bool = False) -> Any:
    words: tuple[Any, ...] = ((), (), ())
    coordinates: tuple[Any, int] = ((), 0)
    if plan is not None:
        words = (plan.turns_q64.values, plan.turns_q96[0].values, plan.turns_q96[1].values)
        if plan.coordinates is not None:
            coordinates = (plan.coordinates.of_pairs.values, plan.coordinates.number)
    half = (layout.pairing == "half", layout.out_pairing == "half")
    amplitude = 1.0 if plan is None or layout.amplitude is None else layout.amplitude
    ends = (layout.head_dim, layout.start, layout.stop)
    return kernel.make_spec(*ends, layout.blocks, *half, amplitude, transposed, *words, *coordinates)


def description() -> str:
    """Say which instruction set runs, and by how many threads at most."""
    if kernel is None:
        return _reason
    return f"{kernel.level_name()} instructions, up to {kernel.threads_of(0)} threads"
