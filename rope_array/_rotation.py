"""Cos and sin as a value: made once per forward pass, used by every layer."""

from typing import Any, NamedTuple

from . import _registry
from ._array_api import out as _out
from ._array_api import rotate as _core
from ._errors import describe
from ._spec.plan import Layout


class Rotation(NamedTuple):
    """Cos and sin of a rope at some positions, made by `RoPE.rotation`.

    Attributes
    ----------
    cos, sin : array of shape pos.shape + (rotary_dim/2,)
        Amplitude included.
    static : dict
        Where the pairs stand, as the key of a dictionary without values.

    Notes
    -----
    A named tuple is taken apart by the tree utilities of JAX and PyTorch without being registered, whichever
    was imported first; cos and sin are its leaves, and the key of a dictionary is structure. So a Rotation
    passes through jax.jit, jax.vmap, jax.lax.scan, torch.func and torch.export as it is.

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
        """Where the pairs stand, and the amplitude: the static part."""
        return next(iter(self.static))

    def apply(self, x: Any, *, seq_axis: int = -2, out: Any = None, backend: str | None = None) -> Any:
        """Rotate x by these tables.

        Parameters
        ----------
        x : array of shape (..., S, head_dim), or a tuple of such arrays
            Of the tables' library and device. A float64 x needs float64 tables.
        seq_axis, out, backend
            As of `rope_array.apply`; positions line up with x as they do there.

        Returns
        -------
        array or tuple of arrays
            As x.

        Raises
        ------
        ArrayTypeError
            x is of a dtype, library or device that the tables do not serve.
        ShapeError
            x's width is not the head_dim, or the positions do not line up with x.
        BackendError
            `backend` names no path, or one that does not serve x.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> q, k = np.ones((1, 8, 3, 4)), np.ones((1, 2, 3, 4))
        >>> q, k = ra.RoPE(head_dim=4).rotation(range(3), like=q).apply((q, k))
        >>> q.shape, k.shape
        ((1, 8, 3, 4), (1, 2, 3, 4))
        """
        xs = x if type(x) is tuple else (x,)
        chain = _registry.chain(xs)
        if backend is None:
            y = chain.quick_rotate(x, self.cos, self.sin, self.layout, seq_axis, out)
            if y is not NotImplemented:
                return y
        lib = chain.library(xs[0])
        _core.check_kinds(xs, lib)
        layout = self.layout
        path = _registry.choose(chain, xs, self[:2], layout, backend)
        args = (self.cos, self.sin, layout, seq_axis, _registry.run)
        return _out.done(path, path.rotate, x, xs, args, out, self[:2], lib)

    def inverse(self) -> "Rotation":
        """Return the rotation that undoes this one: angles, the order of features, and the amplitude.

        Returns
        -------
        Rotation
            At the same positions.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> rope = ra.RoPE(head_dim=2, attention_factor=2.0)
        >>> rope.rotation(0, like=np.ones(2)).inverse().apply(np.ones(2))
        array([0.5, 0.5])
        """
        layout = self.layout
        if layout.amplitude is None:
            return Rotation(*_core.undone(self.cos, self.sin), {layout.transposed(None): ()})
        factor = 1.0 / layout.amplitude
        cos, sin = self.cos, -self.sin
        if factor != 1.0:
            # One factor undoes the amplitude in the tables, the other that in x. Not their square, which may
            # be beyond the dtype where each of them is not.
            cos, sin = cos * factor * factor, sin * factor * factor
        return Rotation(cos, sin, {layout.transposed(factor): ()})

    def adjoint(self) -> "Rotation":
        """Return the transposed rotation, amplitude kept: the map of gradients.

        Returns
        -------
        Rotation
            At the same positions.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> rope = ra.RoPE(head_dim=2, attention_factor=2.0)
        >>> rope.rotation(0, like=np.ones(2)).adjoint().apply(np.ones(2))
        array([2., 2.])
        """
        return Rotation(self.cos, -self.sin, {self.layout.transposed(self.layout.amplitude): ()})
