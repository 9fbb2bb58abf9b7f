"""The class RoPE: a model's rotary embedding, and its methods that take arrays."""

from dataclasses import dataclass, replace
from typing import Any

from . import _registry
from ._apply import apply
from ._array_api import builders as _builders
from ._array_api import rotate as _core
from ._array_api.library import Library, numpy_library
from ._errors import ArrayTypeError, SpecError, describe, short
from ._rotation import Rotation
from ._spec.spec import Spec, settled
from ._spec.validation import integer, number, positive


def _refuse_scaling(rope: "RoPE") -> None:
    """Refuse learned frequencies beside a rule, each of which says what the frequencies are."""
    if rope.scaling is not None:
        raise SpecError(
            f"the rope has scaling={short(rope.scaling)}, and inv_freq says what frequencies are too; "
            "give a rope without scaling, dataclasses.replace(rope, scaling=None). A rule's amplitude goes "
            "with learned frequencies as attention_factor."
        )


def _library_of(like: Any) -> Library:
    """Return the library of an array that tables are made beside, its kind checked."""
    if not hasattr(like, "dtype"):
        raise ArrayTypeError(f"like is {describe(like)}; give one array, as it will be rotated.")
    lib = _registry.library_of(like)
    _core.check_kinds((like,), lib, "like")
    return lib


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
    scaling : rule, optional
        What makes other frequencies of the usual ones: `Linear`, `NTKAware`, `DynamicNTK`, `YaRN`, `Llama3`,
        `LongRoPE`, `Proportional`, `Periods` or `Backwards`. Where it depends on the length of the sequence,
        `at_length` must say it before anything is rotated.
    axes : Axes, optional
        Which coordinate drives each lane. Positions then have one more, last, axis: the coordinates. The map
        fixes rotary_dim where that is not given.
    inv_freq : sequence of float, optional
        The frequency of each pair in radians per position, each taken as the exact number it is, in place of
        base and scaling.
    attention_factor : float, optional
        Factor on cos and sin, above 0, in place of the scaling's. The inverse divides by it, and the adjoint
        keeps it.
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
        self,
        x: Any,
        pos: Any,
        *,
        seq_axis: int = -2,
        inverse: bool = False,
        out: Any = None,
        backend: str | None = None,
    ) -> Any:
        """Rotate x by its positions: `rope_array.apply` with this rope.

        Parameters
        ----------
        x, pos, seq_axis, inverse, out, backend
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
        return apply(x, pos, self, seq_axis=seq_axis, inverse=inverse, out=out, backend=backend)

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
        SpecError
            The frequencies go by a length that is not given, or `inv_freq` is given beside `scaling`.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> q = np.ones((2, 8, 3, 64), dtype=np.float32)
        >>> rot = ra.RoPE(head_dim=64).rotation(range(3), like=q)
        >>> rot.cos.shape, rot.apply(q).shape
        ((3, 32), (2, 8, 3, 64))
        """
        _library_of(like)
        if inv_freq is not None:
            _refuse_scaling(self)
        plan = settled(self)
        beside = (pos, inv_freq)
        path = _registry.choose(_registry.chain((like,)), (like,), beside, plan.layout, backend)
        cos, sin = path.tables(pos, like, plan, inv_freq, _registry.run)
        return Rotation(cos, sin, {plan.layout: ()})

    def at_length(self, length: int) -> "RoPE":
        """Return this rope for sequences of a length, where its scaling depends on one.

        The length is said once for all keys that are read together: keys that were rotated at one length and
        stand in a cache must not be read by queries rotated at another.

        Parameters
        ----------
        length : int
            Positions in the sequence, or in the longest one to come; at least 1.

        Returns
        -------
        RoPE
            Itself where the length changes nothing. Lengths that mean the same give equal ropes.

        Raises
        ------
        SpecError
            `length` is not an int of at least 1.

        Examples
        --------
        >>> import rope_array as ra
        >>> rope = ra.RoPE(16, scaling=ra.DynamicNTK(factor=2.0, max_position_embeddings=4096))
        >>> rope.at_length(100).frequencies == ra.RoPE(16).frequencies
        True
        >>> round(rope.at_length(8192).frequencies[1], 6)
        0.270296
        """
        length = integer("length", length, 1)
        scaling = self.scaling and self.scaling._at_length(length)
        return self if scaling == self.scaling else replace(self, scaling=scaling)

    def rotation_mixed(self, pos: Any, *, like: Any, inv_freq: Any) -> Rotation:
        """Make cos and sin of learned frequencies per head and coordinate: RoPE-ViT's mixed form [1]_.

        The angle of lane i in head h at coordinates p is the sum of p_a·inv_freq[h, a, i] over coordinates a:
        every lane looks in a direction of its own.

        Parameters
        ----------
        pos : array or sequence of shape (..., S, n)
            Coordinates; n is that of `inv_freq`.
        like : array
            An array as it will be rotated, as of `rotation`.
        inv_freq : array of shape (heads, n, rotary_dim/2)
            Learned frequencies, radians per unit of a coordinate, of like's library. Angles are plain
            products and sums in the compute dtype, differentiable in both.

        Returns
        -------
        Rotation
            With cos and sin of shape (..., heads, S, rotary_dim/2), where ... is the batch: 1 for a pos of
            shape (S, n), and nothing where like has no batch. It rotates arrays of shape (B, heads, S,
            head_dim) or (heads, S, head_dim), and those of (B, S, heads, head_dim) with ``seq_axis=-3``.

        Raises
        ------
        ArrayTypeError, PositionError
            As of `rope_array.apply`.
        ShapeError
            `inv_freq` is not of the shape above, or pos has not as many coordinates.
        SpecError
            The rope has `axes`, which give each lane one coordinate, or `scaling`.

        References
        ----------
        .. [1] Heo et al., "Rotary Position Embedding for Vision Transformer", arXiv 2403.13298, eq. 9.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> q = np.ones((2, 3, 4, 8), dtype=np.float32)              # 3 heads, 2 × 2 patches
        >>> inv_freq = np.random.default_rng(0).normal(size=(3, 2, 4))
        >>> patches = [[0, 0], [0, 1], [1, 0], [1, 1]]
        >>> rot = ra.RoPE(8).rotation_mixed(patches, like=q, inv_freq=inv_freq)
        >>> rot.cos.shape, rot.apply(q).shape
        ((1, 3, 4, 4), (2, 3, 4, 8))
        """
        lib = _library_of(like)
        _refuse_scaling(self)
        return Rotation(*_builders.mixed(pos, like, settled(self), inv_freq, lib))

    def rotation_xpos(
        self, pos: Any, *, like: Any, scale_base: float = 512.0, center: float = 0.0
    ) -> tuple[Rotation, Rotation]:
        """Make the rotations of queries and of keys for xPos, whose scores decay with the distance [1]_.

        Lane i of d/2 is multiplied by ζ_i^((p - center)/scale_base) in queries and divided by it in keys,
        with ζ_i = (2i + 0.4·d)/(1.4·d). A score then depends on the distance alone if queries and keys share
        one center. It is fixed, so that keys in a growing cache stay right; implementations that take the
        middle of the sequence change it with every token.

        Parameters
        ----------
        pos, like
            As of `rotation`.
        scale_base : float
            Positions over which a lane decays by ζ_i; above 0. 512 in the paper.
        center : float
            The position at which nothing is scaled. Powers grow with the distance from it: in float32 the
            lowest lane, ζ_0 = 2/7, leaves the range of normal numbers beyond some 35,000 positions from it.

        Returns
        -------
        (Rotation, Rotation)
            For queries and for keys.

        Raises
        ------
        ArrayTypeError, PositionError
            As of `rope_array.apply`.
        SpecError
            A scale_base that is not above 0, or a center that is no finite number; a rope with `axes`.

        References
        ----------
        .. [1] Sun et al., "A Length-Extrapolatable Transformer", arXiv 2212.10554, section 3.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> q = k = np.ones((3, 8))
        >>> of_q, of_k = ra.RoPE(8).rotation_xpos(range(3), like=q)
        >>> scores = of_q.apply(q) @ of_k.apply(k).T
        >>> bool(np.isclose(scores[1, 0], scores[2, 1]))
        True
        """
        lib = _library_of(like)
        scale = positive("scale_base", scale_base), number("center", center)
        rotation = self.rotation(pos, like=like)
        of_q, of_k = _builders.xpos(pos, like, settled(self), rotation[:2], *scale, lib)
        return Rotation(*of_q), Rotation(*of_k)

    @classmethod
    def from_config(
        cls, config: Any, *, part: str | None = None, layer_type: str | int | None = None
    ) -> "RoPE":
        """Read the rope of a Hugging Face model from its config; needs neither torch nor transformers.

        Parameters
        ----------
        config : path, mapping or object
            A config.json or the folder that holds one, its contents, or an object with ``to_dict()``.
        part : str, optional
            The part of a model that has several: "text", "vision", "audio", or a path of keys such as
            "thinker.text". By default the text part.
        layer_type : str or int, optional
            The type of layer ("sliding_attention"), or a layer's number, where a model's layers differ.

        Returns
        -------
        RoPE
            Of rotary_dim 0 for layers without position embedding. A rule that depends on the length waits for
            ``rope.at_length(n)``.

        Raises
        ------
        ConfigError
            The config cannot be read, contradicts itself, has a key or rope type that is not known, or is of
            a model whose position embedding is not a rotation.

        See Also
        --------
        rope_array.config.read : The same, with a report of what was stated and what was inferred.

        Examples
        --------
        >>> import rope_array as ra
        >>> rope = ra.RoPE.from_config({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
        ...                             "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3",
        ...                             "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        ...                             "original_max_position_embeddings": 8192}})
        >>> rope.head_dim, rope.pairing, rope.scaling.factor
        (128, 'half', 8.0)
        """
        from . import _config  # beside the usual way: most programs never read a config

        with _config.refusals(config):
            return cls(**_config.fields(config, part, layer_type)[0])

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
        lib = _library_of(like)
        lead = tuple(rotation.cos.shape)[:-1]
        units = lib.xp.eye(self.head_dim, dtype=like.dtype, **lib.kit(like).create)
        units = lib.xp.broadcast_to(units, (*lead, self.head_dim, self.head_dim))
        # Row j is the image of the unit vector j: column j of the matrix.
        return lib.xp.matrix_transpose(rotation.apply(units, seq_axis=-3 if lead else -2))
