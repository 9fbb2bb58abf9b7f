"""Rotation: cos and sin as a value, made once per forward pass and used by every layer."""

from typing import Any, NamedTuple

from . import _dispatch
from ._array_api.source import Tables
from ._array_api.tables import inverse_tables
from ._errors import SpecError, describe, short
from ._spec.plan import Layout


class Rotation(NamedTuple):
    """Cos and sin of a rope at some positions, made by `RoPE.rotation`.

    Attributes
    ----------
    cos, sin : array of shape pos.shape + (rotary_dim/2,)
        Amplitude included.
    static : dict
        A dict with one key, the layout of the pairs; its value is ().

    Notes
    -----
    The tree utilities of JAX and PyTorch flatten a named tuple without registration: cos and sin are its
    leaves, and the key of the dictionary is structure. So a Rotation passes through jax.jit, jax.vmap,
    jax.lax.scan, torch.func and torch.export as it is.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> q = np.ones((2, 3, 4), dtype=np.float32)
    >>> rot = ra.RoPE(head_dim=4).rotation([0, 1, 2], like=q)
    >>> bool(np.allclose(rot.inverse().apply(rot.apply(q)), q))
    True
    """

    cos: Any
    sin: Any
    static: dict[Layout, tuple[()]]

    def __repr__(self) -> str:
        layout = ", ".join(f"{k}={v!r}" for k, v in self.layout._asdict().items())
        return f"Rotation(cos={describe(self.cos)}, sin={describe(self.sin)}, {layout})"

    @property
    def layout(self) -> Layout:
        """Which features form the pairs, and the amplitude: the static part."""
        try:
            (layout,) = self.static
        except (TypeError, ValueError):
            raise _no_layout(self.static) from None
        return layout

    def apply(self, x: Any, *, seq_axis: int = -2, out: Any = None, backend: str | None = None) -> Any:
        """Rotate x by these tables.

        Parameters
        ----------
        x : array of shape (..., S, head_dim), or a tuple of such arrays
            Arrays of the tables' library and device. A float64 x needs float64 tables.
        seq_axis, out, backend
            As in `rope_array.apply`; the positions of the tables line up with x in the same way.

        Returns
        -------
        array or tuple of arrays
            As x.

        Raises
        ------
        ArrayTypeError
            x is of a dtype, library or device that does not match the tables.
        ShapeError
            x's width is not the head_dim, or the positions do not line up with x.
        BackendError
            `backend` is no name of a backend, or the backend does not serve x.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> q, k = np.ones((1, 8, 3, 4)), np.ones((1, 2, 3, 4))
        >>> q, k = ra.RoPE(head_dim=4).rotation(range(3), like=q).apply((q, k))
        >>> q.shape, k.shape
        ((1, 8, 3, 4), (1, 2, 3, 4))
        """
        try:
            cos, sin, (layout,) = self
        except (TypeError, ValueError):
            raise _no_layout(self.static) from None
        return _dispatch.rotate(x, Tables(cos, sin, layout), seq_axis, out, backend)

    def inverse(self) -> "Rotation":
        """Return the rotation that undoes this one: angles, the order of features, and the amplitude.

        Returns
        -------
        Rotation
            The inverse at the same positions.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> rope = ra.RoPE(head_dim=2, attention_factor=2.0)
        >>> rope.rotation(0, like=np.ones(2)).inverse().apply(np.ones(2))
        array([0.5, 0.5])
        """
        layout = self.layout
        layout.check()
        if layout.amplitude is None:
            return Rotation(*inverse_tables(self.cos, self.sin), {layout.transposed(None): ()})
        factor = 1.0 / layout.amplitude
        cos, sin = self.cos, -self.sin
        if factor != 1.0:
            # One factor undoes the amplitude in the tables, the other the amplitude in x. Two products, as
            # the square of the factor may overflow the dtype.
            cos, sin = cos * factor * factor, sin * factor * factor
        return Rotation(cos, sin, {layout.transposed(factor): ()})

    def adjoint(self) -> "Rotation":
        """Return the transposed rotation, amplitude kept: the map of gradients.

        Returns
        -------
        Rotation
            The adjoint at the same positions.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> rope = ra.RoPE(head_dim=2, attention_factor=2.0)
        >>> rope.rotation(0, like=np.ones(2)).adjoint().apply(np.ones(2))
        array([2., 2.])
        """
        return Rotation(self.cos, -self.sin, {self.layout.transposed(self.layout.amplitude): ()})


def _no_layout(static: Any) -> SpecError:
    return SpecError(
        f"the rotation's static part is {short(static)}; it needs a dict with one key, the layout. Make the "
        "rotation with rope.rotation(pos, like=x)."
    )
