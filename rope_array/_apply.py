"""The front door: see what x is, settle the spec, hand over to the path that x's type has.

The way of a call: `_registry` finds the path by the type of x; `_core` checks what x is; `_spec` makes the
plan, which is static; the path then checks shapes and positions, makes cos and sin (`_angles`) and rotates
(`_rotate`). The core (`_core`) does this in order, and the paths of PyTorch, JAX and dask are made of it.
"""

import operator
from typing import Any

from . import _registry
from ._array_api import out as _out
from ._array_api import rotate as _core
from ._errors import ShapeError, SpecError, describe
from ._spec.plan import Plan
from ._spec.shape_rule import unknown
from ._spec.spec import Spec, plan_of, settled


def apply(
    x: Any,
    pos: Any,
    rope: Spec | None = None,
    *,
    seq_axis: int = -2,
    inverse: bool = False,
    out: Any = None,
    backend: str | None = None,
    **spec: Any,
) -> Any:
    """Rotate the features of x by their positions: rotary position embedding (RoPE).

    Each head vector x at position m becomes R(Θ, m)·x, where R is block-diagonal of 2 × 2 rotations by m·θ_i
    and θ_i = base^(-2(i-1)/d) [1]_.

    Parameters
    ----------
    x : array of shape (..., S, head_dim), or a tuple of such arrays
        Real floating point: float16, bfloat16, float32 or float64, of any array library. The arrays of a
        tuple may differ in heads and dtype; their angles are computed once. Never written.
    pos : int, float, range, sequence of numbers, or array
        Positions: integers of any signed width or unsigned up to 32 bits, or float32 or float64. Take x's
        axes without the last, with `seq_axis` moved to the end: (lead..., S). The last axis of pos pairs with
        S, its other axes with the first lead axes in order; each size is equal or 1, and a scalar serves all.
        So (S,), (B, S), (1, S) and (B, 1) all serve an x of shape (B, H, S, D). An array is of x's library,
        or of NumPy where x is of JAX or dask.
    rope : RoPE, optional
        What the model's rotary embedding is. Without it, one is made from x's width and the fields in `spec`.
    seq_axis : int
        The axis of x along which positions run: -2 for (B, H, S, D), -3 for (B, S, H, D).
    inverse : bool
        Undo the rotation (amplitude divided out).
    out : array or tuple of arrays, optional
        Where the result is written, of x's shape and dtype: x itself, to rotate in place, or memory apart
        from all that is read. For arrays of NumPy, PyTorch and CuPy; not while a gradient is recorded. A
        tuple for a tuple, where ``out[i]`` may be ``x[i]``.
    backend : str, optional
        Force a path by name, or raise with the reason why it does not serve: "array-api" is the core, on any
        library; `rope_array.backends` lists the others. None picks by the type of x.
    **spec
        Fields of `RoPE`, such as ``base=500_000.0, pairing="half"``, for calls without `rope`.

    Returns
    -------
    array or tuple of arrays
        Of x's library, shape, dtype and device; never a view of x. `out` itself where that is given.

    Raises
    ------
    ArrayTypeError
        x or pos is of a type, dtype, library or device that is not served, or out cannot be written to.
    ShapeError
        x's width is not the head_dim, or pos does not line up with x.
    PositionError
        A position that the host can see is out of range.
    SpecError
        A field of the spec has no meaning, or both `rope` and `spec` are given.
    BackendError
        `backend` names no path, or one that does not serve x.

    Notes
    -----
    float16, bfloat16 and float32 are rotated in float32, float64 in float64, and the result is rounded once.
    Angles are exact: cos and sin are within 1.2e-7 (float32) or 4e-16 (float64) at every int32 position.

    References
    ----------
    .. [1] Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv 2104.09864,
       eq. 15.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> x = np.ones((2, 4), dtype=np.float32)
    >>> ra.apply(x, [0, 1]).round(4)
    array([[ 1.    ,  1.    ,  1.    ,  1.    ],
           [-0.3012,  1.3818,  0.99  ,  1.0099]], dtype=float32)
    """
    xs = x if type(x) is tuple else (x,)
    chain = _registry.chain(xs)
    lib = None
    plan = rope._plan if isinstance(rope, Spec) and not spec else None
    if plan is None:
        lib = chain.library(xs[0])
        _core.check_kinds(xs, lib)
        plan = plan_for(xs[0], rope, spec)
    plan = plan.inverse if inverse else plan
    if backend is None and (y := chain.quick(x, pos, plan, seq_axis, out)) is not NotImplemented:
        return y
    if lib is None:
        lib = chain.library(xs[0])
        _core.check_kinds(xs, lib)
    path = _registry.choose(chain, xs, (pos,), plan.layout, backend)
    return _out.done(path, path.apply, x, xs, (pos, plan, seq_axis, _registry.run), out, (pos,), lib)


def plan_for(x: Any, rope: Spec | None, spec: dict[str, Any]) -> Plan:
    """Return the plan of a rope, or of a spec for x's width."""
    if rope is None:
        width = x.shape[-1]
        if unknown(width):
            raise ShapeError(f"x is {describe(x)}, its last axis of unknown size; compute its size first.")
        # torch.compile may hold the size as a symbol, of which this makes the number that the plan is of.
        return plan_of(spec.pop("head_dim", operator.index(width)), **spec)
    if not isinstance(rope, Spec):
        raise SpecError(f"rope is {describe(rope)}; give a RoPE, and everything after it by keyword.")
    if spec:
        given = ", ".join(f"{name}=..." for name in spec)
        raise SpecError(f"both rope and {given} are given; give one, or dataclasses.replace(rope, {given}).")
    return settled(rope)
