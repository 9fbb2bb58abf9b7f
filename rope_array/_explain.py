"""The backend that a call would use and why, and the list of backends. Nothing is computed here."""

import math
from dataclasses import dataclass
from typing import Any, Unpack

from . import _dispatch, _registry
from ._apply import plan_for
from ._array_api.checks import check_call
from ._array_api.library import computes_in_float64, dtype_name
from ._array_api.source import Call, Positions
from ._errors import printable
from ._rope import RoPE
from ._spec.plan import Plan
from ._spec.shape_rule import is_unknown_size, paired_axes, sequence_axis, without_coordinates
from ._spec.spec import Fields

__all__ = ["Backend", "Explanation", "backends", "explain"]


@dataclass(frozen=True)
class Explanation:
    """The result of `explain`: the backend of a call, and why. Printed, it is a few lines of text.

    Attributes
    ----------
    backend : str
        Name of the backend that would serve the call, as `backend=` takes it.
    declined : dict of str to str
        Backends of x's type that are asked first and decline, each with its reason.
    notes : tuple of str
        The backend's description, the axis that positions run along, the precision of the arithmetic, and how
        angles are made, with their error at integers beyond 32 bits.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> ra.explain(np.ones((3, 4)), range(3)).notes[-1]
    'angles: exact, in fixed point'
    """

    __module__ = "rope_array"  # the public name, in the reference and in pickles

    backend: str
    declined: dict[str, str]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"backend: {self.backend}", *(f"  {note}" for note in self.notes)]
        lines += [f"declined: {name}: {reason}" for name, reason in self.declined.items()]
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(frozen=True)
class Backend:
    """An entry of the list that `backends` returns.

    Attributes
    ----------
    name : str
        The name that `backend=` takes.
    serves : str
        The array types that it serves.
    usable : bool or None
        Whether it can be used here; None if its library is not imported yet.
    description : str
        Its own description (the instruction set that runs, say), or why it cannot be used.
    outdated : str
        That its compiled code is of other sources than the checkout has from which it was installed; an empty
        string if not, if it cannot be told, or if `usable` is None.

    Examples
    --------
    >>> import rope_array as ra
    >>> last = ra.backends()[-1]
    >>> last.name, last.usable
    ('array-api', True)
    """

    __module__ = "rope_array"  # the public name, in the reference and in pickles

    name: str
    serves: str
    usable: bool | None
    description: str
    outdated: str = ""


def explain(
    x: Any,
    pos: Any,
    rope: RoPE | None = None,
    *,
    seq_axis: int = -2,
    backend: str | None = None,
    **spec: Unpack[Fields],
) -> Explanation:
    """Explain which backend `rope_array.apply` would use for a call, and why. Nothing is rotated.

    Parameters
    ----------
    x, pos, rope, seq_axis, backend, **spec
        As in `rope_array.apply`, with the same checks and errors, except for the values of positions.

    Returns
    -------
    Explanation
        The backend, the backends that declined, each with its reason, and notes.

    Raises
    ------
    ArrayTypeError, ShapeError, SpecError, BackendError
        As in `rope_array.apply`.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> ra.explain(np.ones((3, 4)), range(3), backend="array-api").backend
    'array-api'
    """
    source = Positions(pos, plan_for(x, rope, spec))
    xs = x if type(x) is tuple else (x,)
    backends = _dispatch.backends_for(xs)
    call = check_call(xs, source, (seq_axis,), backends.library(xs[0]))
    chosen = _registry.choose(backends, xs, source, backend)
    notes = _notes(chosen, call, source)
    return Explanation(chosen.name, _declined(backends, chosen, call, backend), notes)


def _positions(call: Call, plan: Plan) -> str:
    """Name the axis that positions run along, and the axes that a wrong seq_axis could name."""
    shape, seq_axis = without_coordinates(call.pos.shape, plan), call.options.seq_axis
    return "positions: " + "; and ".join(dict.fromkeys(_axis(x, shape, seq_axis) for x in call.xs))


def _axis(x: Any, shape: tuple[Any, ...], seq_axis: int) -> str:
    axis = sequence_axis(x.ndim, seq_axis)
    if axis < 0:
        return "one, as x is a single vector"
    text = f"along axis {axis} of x (seq_axis={axis - x.ndim}), of size {x.shape[axis]}"
    equal = [a for a in range(x.ndim - 1) if a != axis and x.shape[a] == x.shape[axis] != 1]
    text += f", not along axis {' or '.join(map(str, equal))}, of the same size" if equal else ""
    if not shape or (shape[-1] == 1 and x.shape[axis] != 1):
        return text + _at_one_position(x, shape, seq_axis)
    differ = _differing_axes(x, shape, seq_axis)
    return text + (f"; other positions{differ}" if differ else "")


def _at_one_position(x: Any, shape: tuple[Any, ...], seq_axis: int) -> str:
    """Say that positions do not differ along their axis of x, and along which other axes they do."""
    size = x.shape[sequence_axis(x.ndim, seq_axis)]
    tokens = (
        ", all at one position" if is_unknown_size(size) or size == 1 else f", all {size} at one position"
    )
    return tokens + _differing_axes(x, shape, seq_axis)


def _differing_axes(x: Any, shape: tuple[Any, ...], seq_axis: int) -> str:
    """Name the axes of x along which positions differ, besides the axis that they run along."""
    paired = paired_axes(x.ndim, len(shape), seq_axis)[:-1]
    axes = [str(a) for a, n in zip(paired, shape, strict=False) if n != 1]
    return f" for each index of axis {' and '.join(axes)}" if axes else ""


def _declined(backends: _registry.Backends, chosen: Any, call: Call, requested: Any) -> dict[str, str]:
    reasons = {}
    for backend in backends.in_order:
        if backend.name == chosen.name:
            break
        reason = _registry.decline_reason(backend, call.xs, call.source)
        reasons[backend.name] = reason or f"backend={requested!r} was requested"
    listed = {chosen.name, *reasons}
    return reasons | {name: fault for name, fault in _registry.broken().items() if name not in listed}


def _notes(backend: Any, call: Call, source: Positions) -> tuple[str, ...]:
    description = _ask(backend, "description")
    steps = [f"{dtype_name(x)} in {'float64' if computes_in_float64(x) else 'float32'}" for x in call.xs]
    arithmetic = f"rotated: {', '.join(dict.fromkeys(steps))}"
    notes = (_positions(call, source.plan), arithmetic, f"angles: {_angles(call, source.plan)}")
    return (description, *notes) if description else notes


def _ask(backend: Any, function: str) -> str:
    """Call a function of a backend that returns text; another package's may be missing, or raise."""
    try:
        text = getattr(backend, function, str)()
        return printable(str(text or ""))
    except (Exception, SystemExit) as error:
        return printable(f"its {function}() raised {type(error).__name__}: {error}")


def _angles(call: Call, plan: Plan) -> str:
    if not plan.exact:
        return "float32 products, as Hugging Face's (angles='float32')"
    if call.pos.has_floats():
        text = "exact at the nearest integer, and a product for the rest of each position, below 2^31"
        farthest = abs(call.pos.farthest_from(0) or 0.0)
        return f"{text}; here they reach {farthest:.3g}: subtract a start" if farthest >= 2**31 else text
    return f"exact, in fixed point{_beyond_int32(call)}"


def _beyond_int32(call: Call) -> str:
    """Return the error at integers of more than 32 bits; empty if there are none."""
    bits = 97 if all(map(computes_in_float64, call.xs)) else 65
    bound, farthest = f"2π·|pos|·2^-{bits}", call.pos.farthest_from(0)
    if farthest is None:
        return f"; from 2^31 on with an error of {bound} radians" if call.pos.dtype == "int64" else ""
    if abs(farthest) <= 2**31:
        return ""
    error = 2 * math.pi * abs(farthest) * 2.0**-bits
    remedy = "; subtract a start, or give x in float64" if error > 1e-3 else ""
    return f" to 2^31; here within {error:.1g} radians, {bound}{remedy}"


def backends() -> tuple[Backend, ...]:
    """List the backends, and whether each can be used here.

    Returns
    -------
    tuple of Backend
        In the order in which they are asked, the array-api backend last.

    Notes
    -----
    No library is imported for this; a backend of a library that is not imported yet has ``usable=None``.

    Examples
    --------
    >>> import rope_array as ra
    >>> [backend.name for backend in ra.backends()][-1]
    'array-api'
    """
    in_order = [_backend(record) for record in _registry.records()]
    listed = {backend.description for backend in in_order}
    broken = [Backend(n, "", False, fault) for n, fault in _registry.broken().items() if fault not in listed]
    name, description = _registry.ARRAY_API, "written against the Python Array API"
    return (*broken, *in_order, Backend(name, "any array with the Array API", True, description))


def _backend(record: _registry.Record) -> Backend:
    serves = ", ".join(record.types)
    if not any(_registry.is_loaded(name) for name in record.types):
        return Backend(record.name, serves, None, "its library is not imported")
    backend = _registry.imported(record)
    if backend is None:
        return Backend(record.name, serves, False, _registry.broken()[record.name])
    usable = not _ask(backend, "unavailable_reason")
    return Backend(record.name, serves, usable, _ask(backend, "description"), _ask(backend, "outdated"))
