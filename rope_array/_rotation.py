"""Rotation: cos and sin as a value, made once per forward pass and used by every layer."""

import copyreg
import gc
from collections.abc import Callable
from typing import Any, NamedTuple, Never
from weakref import WeakValueDictionary

from . import _dispatch, _dynamo
from ._array_api.tables import arranged, cast_table, inverse_tables, one_per_feature
from ._dispatch import ArrayOrTuple, without_autograph
from ._dynamo import traced_memo
from ._errors import SpecError, describe
from ._spec.plan import Layout, Pairing


class _CosSin(NamedTuple):
    cos: Any
    sin: Any


class _RotationType(type):
    """Metaclass of Rotation, for which copyreg has a rule: a type is pickled as its layout."""


class Rotation(_CosSin, metaclass=_RotationType):
    """Cos and sin of a rope at some positions, made by `RoPE.rotation` or `RoPE.rotation_from`.

    A named tuple: ``cos, sin = rotation``.

    Attributes
    ----------
    cos, sin : array of shape pos.shape + (rotary_dim/2,)
        Amplitude included.

    Notes
    -----
    The property `layout`, which features form the pairs, is part of the type and not of the tuple: each
    layout has a subclass of its own. The tree utilities of JAX and PyTorch flatten a named tuple without
    registration, and keep its type: cos and sin are the leaves, and the layout is structure. So a Rotation
    passes through jax.jit, jax.vmap, jax.lax.scan, torch.func and torch.export as it is.

    Two limits in PyTorch: a reentrant checkpoint takes no gradient of a tuple, so pass it cos and sin of
    learned frequencies one by one, and call `RoPE.rotation_from` inside. Training refuses tables that were
    made under ``torch.inference_mode()``; ``type(rotation)(*map(torch.clone, rotation))`` makes others.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> q = np.ones((2, 3, 4), dtype=np.float32)
    >>> rotation = ra.RoPE(head_dim=4).rotation([0, 1, 2], like=q)
    >>> cos, sin = rotation
    >>> cos.shape
    (3, 2)
    >>> bool(np.allclose(rotation.inverse().apply(rotation.apply(q)), q))
    True
    """

    __slots__ = ()

    @property
    def layout(self) -> Layout:
        """Which features form the pairs, and the amplitude; a subclass has it as an attribute."""
        raise SpecError(
            "a Rotation made by its class has no layout: which features form the pairs? Make it by "
            "rope.rotation(pos, like=x), or from tables by rope.rotation_from(cos, sin)."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return load_rotation, (self.layout, *self)

    def __repr__(self) -> str:
        layout = ", ".join(f"{k}={v!r}" for k, v in self.layout._asdict().items())
        return f"Rotation(cos={describe(self.cos)}, sin={describe(self.sin)}, {layout})"

    @without_autograph
    def apply(
        self, x: ArrayOrTuple, *more: Never, seq_axis: int = -2, out: Any = None, backend: str | None = None
    ) -> ArrayOrTuple:
        """Rotate x by these tables.

        Parameters
        ----------
        x : array of shape (..., S, head_dim), or a tuple of such arrays
            Arrays of the tables' library and device. A float64 x needs float64 tables.
        *more
            Nothing: several arrays are one tuple, and the rotation has its positions.
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
        if more:
            _dispatch.refuse_extra_arguments(more, "rotation.apply((q, k)), without positions")
        y: ArrayOrTuple = _dispatch.rotate(x, (self.cos, self.sin, self.layout), (seq_axis,), out, backend)
        return y

    def full_width(self, dtype: Any = None, *, pairing: Pairing | None = None) -> tuple[Any, Any]:
        """Return cos and sin for each feature instead of each pair, as Hugging Face's models take them.

        Parameters
        ----------
        dtype : dtype of the tables' library, optional
            Dtype of the result, such as ``x.dtype``; by default the tables' dtype.
        pairing : {"interleaved", "half"}, optional
            Pairing for which the result is arranged; by default the rotation's. Some models rotate
            interleaved pairs, and take tables arranged for half pairs: GLM, Helium, DeepSeek-V3.

        Returns
        -------
        (array, array)
            Cos and sin of shape pos.shape + (rotary_dim,). The number of pair i is at two features: i and
            i + rotary_dim/2 for half pairs, 2i and 2i + 1 for interleaved pairs.

        Raises
        ------
        ArrayTypeError
            `dtype` is no real floating dtype of the tables' library.
        SpecError
            `pairing` is no pairing, or it is not given and the rotation has an `out_pairing`.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> rotation = ra.RoPE(4, pairing="half").rotation([0, 1], like=np.ones(4))
        >>> cos, sin = rotation.full_width()
        >>> cos.round(4)
        array([[1.    , 1.    , 1.    , 1.    ],
               [0.5403, 1.    , 0.5403, 1.    ]])
        """
        layout, ops = self.layout, _dispatch.library_of_like(self.cos).ops(self.cos)
        if pairing is None and layout.pairing != layout.out_pairing:
            raise SpecError(
                f"the rotation has the pairing {layout.pairing!r} and the out_pairing "
                f"{layout.out_pairing!r}; give the pairing that the tables are arranged for: "
                "full_width(pairing='half'), say."
            )
        layout = arranged(layout, pairing)
        cos, sin = (one_per_feature(table, layout, ops) for table in self)
        return (cos, sin) if dtype is None else (cast_table(cos, dtype, ops), cast_table(sin, dtype, ops))

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
        self.layout.check()
        cos, sin = self.cos, -self.sin
        if self.layout.amplitude != 1.0:
            ops = _dispatch.library_of_like(cos, "cos").ops(cos)
            cos, sin = inverse_tables(self.cos, self.sin, self.layout.amplitude, ops)
        return _inverse_type(type(self))(cos, sin)

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
        self.layout.check()
        return _adjoint_type(type(self))(self.cos, -self.sin)


# ---- the types, by memos that Dynamo can trace: it passes plain values, plans and classes to them ----

# One class for all layouts, registered with the layout as auxiliary data, serves PyTorch and JAX only after
# they are imported and rope_array runs again: until then it is a leaf. Code without a registry, such as
# tf.nest, flattens named tuples, whose structure is their type: a layout in a third field would be a leaf.


class _Registry(NamedTuple):
    """A library's names of types, for exported programs. It keeps each type that it has a name for."""

    add: Callable[[type[Rotation]], None]
    remove: Callable[[type[Rotation]], None]


_registries: list[_Registry] = []
_max_types = 1024  # from which on unused types are removed from the registries

# The type of each layout, as long as anything refers to it; each is in all registries.
_types: WeakValueDictionary[tuple[Any, ...], type[Rotation]] = WeakValueDictionary()


def name_types(add: Callable[[type[Rotation]], None], remove: Callable[[type[Rotation]], None]) -> None:
    """Have a library name every type of Rotation, and remove types that are unused."""
    with _dynamo.lock:
        _registries.append(_Registry(add, remove))
        _for_each_type(add)


def _for_each_type(function: Callable[[type[Rotation]], None]) -> None:
    for cls in [*_types.values()]:
        function(cls)


def _release_types() -> None:
    """Free the types that only registries refer to, by the collector, as types refer to themselves."""
    global _max_types
    for registry in _registries:
        _for_each_type(registry.remove)
    gc.collect()
    for registry in _registries:
        _for_each_type(registry.add)
    _max_types = max(_max_types, 2 * len(_types))


def _make_type(*layout: Any) -> type[Rotation]:
    key = _type_key(*layout)
    with _dynamo.lock:
        if len(_types) >= _max_types and _registries:
            _release_types()  # first: finalizers that run then may make types
        cls = _types.get(key)
        if cls is None:
            cls = _types[key] = _make_new_type(Layout(*layout))
    return cls


def _make_new_type(layout: Layout) -> type[Rotation]:
    names = {"__slots__": (), "__module__": __name__, "__doc__": Rotation.__doc__, "layout": layout}
    cls = type("Rotation", (Rotation,), names)
    for registry in _registries:
        registry.add(cls)
    return cls


def _type_key(*layout: Any) -> tuple[Any, ...]:
    """Return the key of a layout in the memo of types. Types are part of it, as True equals 1."""
    return (*layout, *map(type, layout))


def _make_inverse(cls: Any) -> type[Rotation]:
    amplitude = cls.layout.amplitude
    return rotation_type(*cls.layout.transposed(None if amplitude is None else 1.0 / amplitude))


def _make_adjoint(cls: Any) -> type[Rotation]:
    return rotation_type(*cls.layout.transposed(cls.layout.amplitude))


Types = Callable[..., type[Rotation]]
rotation_type: Types = traced_memo(_make_type, _type_key)  # of a layout, given field by field
type_of_plan: Types = traced_memo(lambda plan: rotation_type(*plan.layout))
_inverse_type: Types = traced_memo(_make_inverse)
_adjoint_type: Types = traced_memo(_make_adjoint)


def _reduce_type(cls: Any) -> Any:
    """Reduce a type for pickle: Rotation itself to its name, the type of a layout to the layout."""
    return cls.__qualname__ if cls is Rotation else (load_type, tuple(cls.layout))


copyreg.pickle(_RotationType, _reduce_type)


def load_type(*layout: Any) -> type[Rotation]:
    """Return a pickled type of Rotation."""
    return rotation_type(*layout)


def load_rotation(layout: Layout, cos: Any, sin: Any) -> Rotation:
    """Recreate a pickled Rotation."""
    return rotation_type(*layout)(cos, sin)
