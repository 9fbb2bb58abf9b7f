"""Which path a call would take and why, and which paths there are. Nothing is computed here."""

from dataclasses import dataclass
from typing import Any

from . import _registry
from ._apply import plan_for
from ._array_api import position_input as _host
from ._array_api import rotate as _core
from ._array_api.library import dtype_name
from ._rope import RoPE
from ._spec.plan import Plan
from ._spec.shape_rule import check_line_up, without_coordinates

__all__ = ["Backend", "Explanation", "backends", "explain"]


@dataclass(frozen=True)
class Explanation:
    """What a call would do, as `explain` found it; printed, a few lines of text.

    Attributes
    ----------
    path : str
        The path that would serve: what `backend=` calls it.
    declined : dict of str to str
        Paths of x's type that were asked before and declined, each with its reason.
    notes : tuple of str
        What the path says of itself, how angles are made, and in which precision.
    """

    path: str
    declined: dict[str, str]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"path: {self.path}", *(f"  {note}" for note in self.notes)]
        lines += [f"declined: {name}: {reason}" for name, reason in self.declined.items()]
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(frozen=True)
class Backend:
    """A path, as `backends` lists it.

    Attributes
    ----------
    name : str
        What `backend=` calls it.
    serves : str
        The array type that it serves.
    usable : bool or None
        Whether it can be used here; None where its library is not loaded, and so nothing is known.
    about : str
        What it says of itself (the instruction set that runs, say), or why it cannot be used.
    """

    name: str
    serves: str
    usable: bool | None
    about: str


def explain(
    x: Any, pos: Any, rope: RoPE | None = None, *, seq_axis: int = -2, backend: str | None = None, **spec: Any
) -> Explanation:
    """Say which path `rope_array.apply` would take for a call, and why. Nothing is rotated.

    Parameters
    ----------
    x, pos, rope, seq_axis, backend, **spec
        As of `rope_array.apply`. What it refuses is refused here by the same errors, but for the values of
        positions.

    Returns
    -------
    Explanation
        With the path, the paths that declined, each with its reason, and notes.

    Raises
    ------
    ArrayTypeError, ShapeError, SpecError, BackendError
        As of `rope_array.apply`.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> ra.explain(np.ones((3, 4)), range(3), backend="array-api").path
    'array-api'
    """
    xs = x if type(x) is tuple else (x,)
    chain = _registry.chain(xs)
    lib = chain.library(xs[0])
    _core.check_kinds(xs, lib)
    plan = plan_for(xs[0], rope, spec)
    own = lib.owns(pos)
    _core.check_arrays(xs, plan.layout, lib)
    _host.check(pos, xs[0], own, lib)
    shape = without_coordinates(_core.positions_shape(pos, own), plan)
    for one in xs:
        check_line_up(one.shape, shape, seq_axis)
    path = _registry.choose(chain, xs, (pos,), plan.layout, backend)
    return Explanation(path.name, _declined(chain, path, xs, pos, plan), _notes(path, xs, pos, plan))


def _declined(chain: Any, path: Any, xs: Any, pos: Any, plan: Plan) -> dict[str, str]:
    reasons = {}
    for other in chain.paths:
        if other.name == path.name:
            break
        reasons[other.name] = _registry.reason(other, xs, (pos,), plan.layout) or "another was asked for"
    served = {path.name, *reasons}
    return reasons | {name: reason for name, reason in _registry.broken().items() if name not in served}


def _notes(path: Any, xs: Any, pos: Any, plan: Plan) -> tuple[str, ...]:
    about = _said(path, "about")
    steps = [f"{dtype_name(x)} in {'float64' if _core.is_double(x) else 'float32'}" for x in xs]
    arithmetic = ", ".join(dict.fromkeys(steps))
    return (*([about] if about else ()), f"rotated: {arithmetic}", f"angles: {_angles(pos, plan)}")


def _said(path: Any, what: str) -> str:
    """Return what a path says of itself, nothing where it says nothing; another package's may fail to."""
    function = getattr(path, what, None)
    try:
        return str(function() or "") if function else ""
    except Exception as error:
        return f"its {what}() raised {type(error).__name__}: {error}"


def _angles(pos: Any, plan: Plan) -> str:
    if not plan.exact:
        return "float32 products, as Hugging Face's (angles='float32')"
    if _has_floats(pos):
        return "exact at the nearest integer, and a product for the rest of each position"
    return "exact, in fixed point"


def _has_floats(pos: Any) -> bool:
    if isinstance(pos, (list, tuple)):
        return any(map(_has_floats, pos))
    return isinstance(pos, float) or (hasattr(pos, "dtype") and dtype_name(pos).startswith("float"))


def backends() -> tuple[Backend, ...]:
    """List the paths there are, and whether each can be used here; called as ``rope_array.backends()``.

    Returns
    -------
    tuple of Backend
        In the order in which paths are asked, the core last.

    Notes
    -----
    Libraries are not imported for this: of one that is not loaded yet, nothing is known.

    Examples
    --------
    >>> import rope_array as ra
    >>> [path.name for path in ra.backends()][-1]
    'array-api'
    """
    found = [_backend(record) for record in _registry.records()]
    said = {backend.about for backend in found}
    broken = [Backend(n, "", False, why) for n, why in _registry.broken().items() if why not in said]
    core = Backend(_registry.ARRAY_API.name, "any array with the Array API", True, "the core")
    return (*broken, *found, core)


def _backend(record: _registry.Record) -> Backend:
    serves = ", ".join(record.types)
    if not any(_registry.is_loaded(name) for name in record.types):
        return Backend(record.name, serves, None, "its library is not imported")
    path = _registry.imported(record)
    if path is None:
        return Backend(record.name, serves, False, _registry.broken()[record.name])
    return Backend(record.name, serves, not _said(path, "missing"), _said(path, "about"))
