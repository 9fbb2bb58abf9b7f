"""The front door: see what x is, settle the spec, hand over to the path that x's type has.

The way of a call: `_registry` finds the path by the type of x; `_core` checks what x is; `_spec` makes the
plan, which is static; the path then checks shapes and positions, makes cos and sin (`_angles`) and rotates
(`_rotate`). The core (`_core`) does this in order, and the paths of PyTorch, JAX and dask are made of it.
"""

import operator
from dataclasses import dataclass
from typing import Any

from . import _core, _registry
from ._errors import ArrayTypeError, ShapeError, SpecError, describe
from ._namespace import numpy_library
from ._plan import Plan, unknown
from ._rotation import Rotation
from ._spec import Spec, plan_of


def apply(
    x: Any,
    pos: Any,
    rope: "RoPE | None" = None,
    *,
    seq_axis: int = -2,
    inverse: bool = False,
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
    backend : str, optional
        Force a path by name; "array-api" is the core, on any library. None picks by the type of x.
    **spec
        Fields of `RoPE`, such as ``base=500_000.0, pairing="half"``, for calls without `rope`.

    Returns
    -------
    array or tuple of arrays
        Of x's library, shape, dtype and device; never a view of x.

    Raises
    ------
    ArrayTypeError
        x or pos is of a type, dtype, library or device that is not served.
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
    path = _registry.choose(xs, backend)
    _core.check_kinds(xs, path.library(xs[0]))
    plan = rope._plan if type(rope) is RoPE and not spec else _plan(xs[0], rope, spec)
    ys = path.apply(xs, pos, plan.inverse if inverse else plan, seq_axis, _registry.run)
    return ys if type(x) is tuple else ys[0]


def _plan(x: Any, rope: "RoPE | None", spec: dict[str, Any]) -> Plan:
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
    return rope._plan


@dataclass(frozen=True, repr=False, eq=False)
class RoPE(Spec):
    """A model's rotary embedding: a frozen, hashable, picklable record of plain Python values.

    Parameters
    ----------
    head_dim : int
        Features of one head: the size of x's last axis.
    base : float
        θ_i = base^(-2(i-1)/rotary_dim); "rope_theta" in Hugging Face configs. Not used beside `inv_freq`.
    rotary_dim : int, optional
        Features that are rotated; even. By default the rest of the head, and then that number is the field;
        0 is the identity (a NoPE layer).
        Frequencies count over rotary_dim, not head_dim.
    rotary_start : int
        The first rotated feature.
    pairing : {"interleaved", "half"}
        Which features turn together: (2i, 2i+1) as in RoFormer, GPT-J and Meta's Llama, or
        (i, i + rotary_dim/2) as in GPT-NeoX and most Hugging Face models.
    out_pairing : {"interleaved", "half"}, optional
        How the result is laid out; None, the default, is as `pairing`.
    inv_freq : sequence of float, optional
        The frequency of each pair in radians per position, each taken as the exact number it is.
    attention_factor : float, optional
        Factor on cos and sin, above 0. The inverse divides by it, the adjoint keeps it.
    angles : {"exact", "float32"}
        "float32" follows the steps of Hugging Face's code, whose error grows with the position.

    Attributes
    ----------
    frequencies : tuple of float
        The effective frequency of each pair, radians per position.
    amplitude : float
        The factor on cos and sin.

    Raises
    ------
    SpecError
        A field has no meaning; the message says which and what would have.

    Examples
    --------
    >>> import rope_array as ra
    >>> rope = ra.RoPE(head_dim=8, base=500_000.0, pairing="half")
    >>> [round(f, 6) for f in rope.frequencies]
    [1.0, 0.037606, 0.001414, 5.3e-05]
    """

    def apply(
        self, x: Any, pos: Any, *, seq_axis: int = -2, inverse: bool = False, backend: str | None = None
    ) -> Any:
        """Rotate x by its positions: `rope_array.apply` with this rope.

        Parameters
        ----------
        x, pos, seq_axis, inverse, backend
            As of `rope_array.apply`, which says what is raised too.

        Returns
        -------
        array or tuple of arrays
            As x.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> rope = ra.RoPE(head_dim=4, pairing="half")
        >>> q, k = rope.apply((np.ones((1, 3, 2, 4)), np.ones((1, 3, 1, 4))), range(3), seq_axis=-3)
        >>> q.shape, k.shape
        ((1, 3, 2, 4), (1, 3, 1, 4))
        """
        return apply(x, pos, self, seq_axis=seq_axis, inverse=inverse, backend=backend)

    def rotation(self, pos: Any, *, like: Any, inv_freq: Any = None, backend: str | None = None) -> Rotation:
        """Make cos and sin once, for all layers of a forward pass.

        Parameters
        ----------
        pos
            Positions, as of `rope_array.apply`; what they line up with is checked where they are applied.
        like : array
            An array as it will be rotated: its library, device and compute dtype are those of cos and sin,
            float64 for float64 and float32 for every other dtype.
        inv_freq : array of shape (rotary_dim/2,), optional
            Learned frequencies, radians per position, of like's library. They are multiplied with the
            positions in the compute dtype: the angle rounds as any product does, and is differentiable.
        backend : str, optional
            As of `rope_array.apply`.

        Returns
        -------
        Rotation
            With cos and sin of shape pos.shape + (rotary_dim/2,).

        Raises
        ------
        ArrayTypeError, PositionError, BackendError
            As of `rope_array.apply`.
        ShapeError
            `inv_freq` is not of shape (rotary_dim/2,).

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> q = np.ones((2, 8, 3, 64), dtype=np.float32)
        >>> rot = ra.RoPE(head_dim=64).rotation(range(3), like=q)
        >>> rot.cos.shape, rot.apply(q).shape
        ((3, 32), (2, 8, 3, 64))
        """
        if not hasattr(like, "dtype"):
            raise ArrayTypeError(f"like is {describe(like)}; give one array, as it will be rotated.")
        path = _registry.choose((like,), backend)
        _core.check_kinds((like,), path.library(like), "like")
        cos, sin = path.tables(pos, like, self._plan, inv_freq, _registry.run)
        return Rotation(cos, sin, {self._plan.layout: ()})

    def matrix(self, pos: Any, like: Any = None) -> Any:
        """Return the rotation as a dense matrix M: for a vector x, ``rope.apply(x, pos)`` is M @ x.

        Parameters
        ----------
        pos
            Positions, as of `rope_array.apply`.
        like : array, optional
            Whose library, device and dtype the matrix has. NumPy's float64 by default.

        Returns
        -------
        array of shape pos.shape + (head_dim, head_dim)
            Block-diagonal, of 2 × 2 rotations, but for the order of rows and columns (RoFormer, eq. 15).

        Raises
        ------
        ArrayTypeError, PositionError
            As of `rope_array.apply`.

        Examples
        --------
        >>> import rope_array as ra
        >>> ra.RoPE(head_dim=2).matrix(1).round(4)
        array([[ 0.5403, -0.8415],
               [ 0.8415,  0.5403]])
        """
        if like is None:
            like = numpy_library().xp.empty(0, dtype="float64")
        rotation = self.rotation(pos, like=like)
        lib = _registry.choose((like,), None).library(like)
        lead = tuple(rotation.cos.shape)[:-1]
        units = lib.xp.eye(self.head_dim, dtype=like.dtype, **lib.kit(like).create)
        units = lib.xp.broadcast_to(units, (*lead, self.head_dim, self.head_dim))
        # Row j is the image of the unit vector j: column j of the matrix.
        return lib.xp.matrix_transpose(rotation.apply(units, seq_axis=-3 if lead else -2))
