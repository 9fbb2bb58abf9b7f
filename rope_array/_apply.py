"""The front function `apply`: make a plan of the spec, and dispatch the call."""

import operator
from typing import Any, Never, Unpack

from . import _dispatch
from ._array_api.checks import MAKE_KNOWN, check_arrays
from ._dispatch import ArrayOrTuple, without_autograph
from ._dynamo import known
from ._errors import ShapeError, SpecError, describe
from ._spec.plan import Plan
from ._spec.shape_rule import is_unknown_size
from ._spec.spec import FIELDS, Fields, Spec, plan_of, require_plan, unknown_fields


@without_autograph
def apply(
    x: ArrayOrTuple,
    pos: Any,
    rope: Spec | None = None,
    *more: Never,
    seq_axis: int = -2,
    inverse: bool = False,
    out: Any = None,
    backend: str | None = None,
    **spec: Unpack[Fields],
) -> ArrayOrTuple:
    """Rotate the features of x by their positions: rotary position embedding (RoPE).

    Each head vector x at position m becomes R(Θ, m)·x, where R is block-diagonal of 2 × 2 rotations by m·θ_i
    with θ_i = base^(-2i/d), i from 0 [1]_.

    Parameters
    ----------
    x : array of shape (..., S, head_dim), or a tuple of such arrays
        Real floating point: float16, bfloat16, float32 or float64, of any array library. The arrays of a
        tuple may differ in heads and dtype; they share their positions, and the angles are computed once.
        Written only if it is `out` too.
    pos : int, float, range, sequence of numbers, or array
        Positions: integers of any signed width or unsigned up to 32 bits, or float32 or float64. Take x's
        axes without the last, with `seq_axis` moved to the end: (lead..., S). The last axis of pos pairs with
        S, its other axes with the first lead axes in order. Each size is equal or 1; a scalar serves all
        rows. So (S,), (B, S), (1, S) and (B, 1) all serve an x of shape (B, H, S, D). A number is the
        position of all tokens, not an offset: that is ``range(offset, offset + S)``. An array must be of x's
        library; JAX and dask accept NumPy arrays too, and copy them in the call.
    rope : RoPE, optional
        The model's rotary embedding. By default it is made from x's width and the fields in `spec`.
    *more
        Nothing: several arrays are one tuple.
    seq_axis : int
        The axis of x along which positions run: -2 for (B, H, S, D), -3 for (B, S, H, D). A wrong axis of the
        same size raises no error; `rope_array.explain` names the axis.
    inverse : bool
        Undo the rotation, and divide by the amplitude.
    out : array or tuple of arrays, optional
        Array for the result, of x's shape and dtype: x itself, to rotate in place, or memory that no array of
        the call shares. For NumPy, PyTorch and CuPy. If x is a tuple, so is `out`, and ``out[i]`` may be
        ``x[i]``. While PyTorch records a gradient of x, out must be x, and no leaf.
    backend : str, optional
        Name of the backend to use; raise if it does not serve the call. "array-api" serves every library;
        `rope_array.backends` lists the others. By default the type of x decides.
    **spec
        Fields of `RoPE`, such as ``base=500_000.0, pairing="half"``, for calls without `rope`.

    Returns
    -------
    array or tuple of arrays
        Results of x's library, shape, dtype and device, never views of x; `out` itself if given.

    Raises
    ------
    ArrayTypeError
        x or pos is of a type, dtype, library or device that is not served, or out cannot be written to.
    ShapeError
        x's width is not the head_dim, or pos does not line up with x.
    PositionError
        A position is out of range: of a number, range or sequence, or of a NumPy array for JAX or dask.
    SpecError
        A field of the spec has no meaning, or both `rope` and `spec` are given.
    BackendError
        `backend` is no name of a backend, or the backend does not serve x.

    Notes
    -----
    float16, bfloat16 and float32 are rotated in float32, float64 in float64, and the result is rounded once.
    Angles are exact: cos and sin are within 9.5e-8 (float32) or 1.7e-16 (float64) at every int32 position.

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
    if more:
        _dispatch.refuse_extra_arguments(more, "ra.apply((q, k), pos, rope)")
    plan = rope._plan if isinstance(rope, Spec) and not spec else None
    if plan is None:
        plan = plan_for(x, rope, spec)
    if plan.max_position is not None:
        _dispatch.check_max_position(x, pos, plan.max_position)
    if inverse is not False:
        plan = plan.for_direction(inverse)
    y: ArrayOrTuple = _dispatch.rotate(x, (pos, plan, None), (seq_axis,), out, backend)
    return y


def plan_for(x: Any, rope: Spec | None, spec: Any) -> Plan:
    """Return the plan of a rope, or of spec fields for the width of x, an array or a tuple of arrays."""
    if rope is None:
        if spec:
            spec = {name: known(field) for name, field in spec.items()}
        head_dim = spec.pop("head_dim") if "head_dim" in spec else _width(x)
        plan: Plan = plan_of(head_dim, **spec)
        return plan
    if not isinstance(rope, Spec):
        raise _wrong_rope(rope)
    if not spec.keys() <= {*FIELDS}:
        raise unknown_fields(spec.keys() - {*FIELDS})
    if spec:
        fields = ", ".join(f"{name}=..." for name in spec)
        raise SpecError(
            f"both rope and {fields} are given; give one, or dataclasses.replace(rope, {fields})."
        )
    return require_plan(rope)


def _wrong_rope(rope: Any) -> SpecError:
    """Return the error for a third argument that is no RoPE; often it is pos, after two arrays."""
    if hasattr(rope, "full_width"):
        return SpecError("the third argument is a Rotation, which has its positions; call rotation.apply(x).")
    if isinstance(rope, (int, float, range, list, tuple)) or hasattr(rope, "shape"):
        return SpecError(
            f"the third argument, rope, is {describe(rope)}. Give several arrays as one tuple: "
            "ra.apply((q, k), pos)."
        )
    return SpecError(
        f"rope is {describe(rope)}; give a RoPE, and fields by name: ra.apply(x, pos, base=...)."
    )


def _width(x: Any) -> int:
    """Return the size of x's last axis."""
    xs = x if type(x) is tuple else (x,)
    try:
        width = xs[0].shape[-1]
    except (AttributeError, IndexError, RuntimeError, TypeError):  # not an array with axes: say so
        check_arrays(xs, _dispatch.backends_for(xs).library(xs[0]))
        raise
    if is_unknown_size(width):
        raise ShapeError(f"x is {describe(xs[0])}, its last axis of unknown size; {MAKE_KNOWN}")
    return operator.index(width)  # torch.compile may hold the size as a symbol, and the plan needs a number
