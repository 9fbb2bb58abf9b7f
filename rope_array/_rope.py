"""The class RoPE: a model's rotary embedding, and its methods that take arrays."""

import sys
import warnings
from contextlib import suppress
from dataclasses import MISSING, dataclass, replace
from typing import Any, Never

from . import _dispatch, _tables
from ._array_api import builders
from ._array_api.checks import check_angles, check_frequencies
from ._array_api.library import numpy_library
from ._array_api.source import Positions
from ._dispatch import ArrayOrTuple, without_autograph
from ._dynamo import known, traced_constant
from ._errors import ArrayTypeError, ShapeError, SpecError, describe, short
from ._rotation import Rotation, rotation_type, type_of_plan
from ._spec.plan import Pairing, plan_of_angles, without_frequencies
from ._spec.shape_rule import is_unknown_size
from ._spec.spec import FIELDS, Spec, has_own_init, require_plan, rule_at_length
from ._spec.validation import integer, number, positive


@dataclass(frozen=True, repr=False, eq=False)
class RoPE(Spec):
    """A model's rotary embedding: a frozen, hashable, picklable record of plain Python values.

    Parameters
    ----------
    head_dim : int
        Features of one head: the size of x's last axis.
    base : float
        θ_i = base^(-2i/rotary_dim), i from 0; "rope_theta" in Hugging Face configs. Not used with `inv_freq`:
        to change it then changes nothing.
    rotary_dim : int, optional
        Number of rotated features; even. By default the rest of the head, and the field then holds that
        number. 0 is the identity (a NoPE layer). Frequencies count over rotary_dim, not head_dim.
    rotary_start : int
        The first rotated feature.
    pairing : {"interleaved", "half"}
        Which features form a pair: (2i, 2i+1) as in RoFormer, GPT-J and Meta's Llama, or
        (i, i + rotary_dim/2) as in GPT-NeoX and most Hugging Face models.
    out_pairing : {"interleaved", "half"}, optional
        Pairing of the result; by default the same as `pairing`.
    scaling : rule, optional
        A scaling rule of rope_array, such as `Linear` or `YaRN`, which changes the frequencies. If it depends
        on the length of the sequence, call `at_length` before the first rotation.
    axes : Axes, optional
        Which coordinate drives each pair. Positions then have one more, last, axis: the coordinates. A map
        of fewer pairs than the head has needs `rotary_dim`.
    inv_freq : sequence of float, optional
        Frequency of each pair in radians per position, used exactly, in place of base and scaling.
    attention_factor : float, optional
        Factor on cos and sin, above 0, in place of the scaling's. The inverse divides by it; the adjoint
        keeps it.
    angles : {"exact", "float32"}
        "float32" has the bits of Hugging Face's frequencies for every rule, and in PyTorch on the CPU the
        bits of its cos and sin. Its error grows with the position.
    max_position : int, optional
        The largest position, or coordinate, that is allowed. Numbers, ranges, sequences and NumPy arrays are
        checked; arrays of other libraries are not, as reading them would wait for a device.

    Attributes
    ----------
    frequencies : tuple of float
        The effective frequency of each pair, radians per position.
    amplitude : float
        The factor on cos and sin.

    Raises
    ------
    SpecError
        A field has a value without meaning; the message names the field and valid values.

    Examples
    --------
    >>> import rope_array as ra
    >>> rope = ra.RoPE(head_dim=8, base=500_000.0, pairing="half")
    >>> [round(f, 6) for f in rope.frequencies]
    [1.0, 0.037606, 0.001414, 5.3e-05]
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self) is RoPE:
            _register_in_jax()
        else:
            _refuse_unread_names(type(self))

    def __call__(self, *args: Never, **options: Never) -> Never:
        """Raise: a rope is no module of PyTorch; its functions have names."""
        raise ArrayTypeError(
            "a RoPE is not called; call rope.apply(x, pos), or rope.apply((q, k), pos) for several arrays. "
            "Positions are always given: range(S) for S tokens from the start of a sequence."
        )

    @without_autograph
    def apply(
        self,
        x: ArrayOrTuple,
        pos: Any,
        *more: Never,
        seq_axis: int = -2,
        inverse: bool = False,
        out: Any = None,
        backend: str | None = None,
    ) -> ArrayOrTuple:
        """Rotate x by its positions: `rope_array.apply` with this rope.

        Parameters
        ----------
        x, pos, seq_axis, inverse, out, backend
            As in `rope_array.apply`, with the same exceptions.
        *more
            Nothing: several arrays are one tuple.

        Returns
        -------
        array or tuple of arrays
            The result, of the kind of x.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> rope = ra.RoPE(head_dim=4, pairing="half")
        >>> q, k = rope.apply((np.ones((1, 3, 2, 4)), np.ones((1, 3, 1, 4))), range(3), seq_axis=-3)
        >>> q.shape, k.shape
        ((1, 3, 2, 4), (1, 3, 1, 4))
        """
        if more:
            _dispatch.refuse_extra_arguments(more, "rope.apply((q, k), pos)")
        plan = self._plan or require_plan(self)
        if plan.max_position is not None:
            _dispatch.check_max_position(x, pos, plan.max_position)
        if inverse is not False:
            plan = plan.for_direction(inverse)
        y: ArrayOrTuple = _dispatch.rotate(x, (pos, plan, None), (seq_axis,), out, backend)
        return y

    @without_autograph
    def rotation(self, pos: Any, *, like: Any, inv_freq: Any = None, backend: str | None = None) -> Rotation:
        """Make cos and sin once, for all layers of a forward pass.

        Parameters
        ----------
        pos
            Positions, as in `rope_array.apply`; `Rotation.apply` checks that they line up with x.
        like : array
            An array as it will be rotated. Cos and sin get its library, its device and its compute dtype:
            float64 for float64, and float32 for every other dtype.
        inv_freq : array of shape (rotary_dim/2,), (heads, rotary_dim/2) or (heads, 1, rotary_dim/2), optional
            Learned frequencies, radians per position, of like's library. Each float is taken exactly, so the
            angles have the errors of a rope with ``inv_freq=``; they are differentiable.
        backend : str, optional
            As in `rope_array.apply`.

        Returns
        -------
        Rotation
            Tables of shape pos.shape + (rotary_dim/2,). With frequencies of each head (..., heads, S,
            rotary_dim/2), where ... is the batch: 1 for a pos of shape (S,), and absent if like has no batch.

        Raises
        ------
        ArrayTypeError, PositionError, BackendError
            As in `rope_array.apply`.
        ShapeError
            `inv_freq` has none of these shapes; or it has heads, and `like` no axis for them, or pos one too.
        SpecError
            The scaling needs `at_length` first, or both `inv_freq` and `scaling` are given.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> q = np.ones((2, 8, 3, 64), dtype=np.float32)
        >>> rot = ra.RoPE(head_dim=64).rotation(range(3), like=q)
        >>> rot.cos.shape, rot.apply(q).shape
        ((3, 32), (2, 8, 3, 64))
        """
        plan = require_plan(self)
        if inv_freq is not None:
            self._refuse_scaling()
            lib = _dispatch.library_of_like(like)
            check_frequencies(inv_freq, plan.layout.num_pairs, like, lib)
            plan = without_frequencies(plan)
        return self._rotation(Positions(pos, plan, inv_freq), like, backend)

    def _rotation(self, source: Positions, like: Any, backend: str | None = None) -> Rotation:
        """Make the rotation at positions, by the plan's frequencies plus those of an array."""
        if self.max_position is not None:
            _dispatch.check_max_position(like, source.values, self.max_position)
        cos, sin, _ = _dispatch.make_tables(source, like, backend)
        return type_of_plan(source.plan)(cos, sin)

    def tables(self, positions: Any, format: str = "split", *, dtype: Any = None, like: Any = None) -> Any:
        """Make exact tables in the format of an engine, an exporter or another library.

        Each number is the exact one rounded once to `dtype`. Rotations need no tables: `apply` computes the
        angles as fast. Tables serve programs of others, which read them.

        Parameters
        ----------
        positions : int, range, sequence or NumPy array
            An int is the length of the table: its rows are the positions 0 to length - 1. Or the positions of
            the rows, as in `rope_array.apply`. With axes, the coordinates of a row of a length are equal.
        format : {"split", "joined", "full", "stacked", "complex", "angles"}
            The arrays and their last axes, with the amplitude in cos and sin:

            * "split": cos and sin apart, of (pairs,) each. ONNX, ONNX Runtime, FlashAttention.
            * "joined": one array, cos of all pairs and then sin, (2·pairs,). vLLM, SGLang, FlashInfer.
            * "full": cos and sin apart, (rotary_dim,) each, a number at both features of its pair:
              [c0, c1, c0, c1] for half pairs, [c0, c0, c1, c1] for interleaved. Hugging Face, diffusers.
            * "stacked": one array of cos and sin of each pair, (pairs, 2). TensorRT-LLM, torchtune.
            * "complex": one array of cos + i·sin, (pairs,). Meta's Llama.
            * "angles": one array of angles in radians, reduced to (-π, π], (rotary_dim,), arranged as in
              "full". Transformer Engine, Megatron-LM.
        dtype : dtype of like's library, optional
            By default float64 for a `like` of float64, and float32 for every other. Of "complex", the dtype
            of the real part.
        like : array, optional
            An array whose library and device the tables get; by default NumPy.

        Returns
        -------
        array or (array, array)
            Of shape positions.shape without coordinates, and the last axes above.

        Raises
        ------
        ArrayTypeError
            `positions` are no integers or floats in host memory, or `dtype` is no real floating dtype of
            like's library.
        PositionError
            The length is below 1 or above 2**31, or a position is out of range.
        SpecError
            `format` is no format; the scaling needs `at_length` first; or the rope has an amplitude, and the
            format is "angles".

        Notes
        -----
        At integers, cos and sin are within half a unit of the last place of the exact ones, plus 2e-16 times
        the amplitude, as they are computed in float64; angles are within half a unit, plus 1e-15. Of a rope
        with ``angles="float32"`` cos and sin are exact at these angles. Make tables outside of functions that
        `torch.compile` compiles. Long tables are computed in chunks, so that no memory is needed but the
        table's; JAX and other libraries without writable arrays need it twice.

        Examples
        --------
        >>> import rope_array as ra
        >>> rope = ra.RoPE(head_dim=128, base=500_000.0, pairing="half")
        >>> cos, sin = rope.tables(4096)
        >>> cos.shape, rope.tables(4096, "joined").shape
        ((4096, 64), (4096, 128))
        """
        require_plan(self)
        return _tables.make_tables(self, positions, format, dtype, like)

    def rotation_from(self, cos: Any, sin: Any, *, pairing: Pairing | None = None) -> Rotation:
        """Make a rotation of tables that exist: a model's cache, or the output of another implementation.

        Parameters
        ----------
        cos, sin : array of shape (..., rotary_dim/2) or (..., rotary_dim)
            Tables with the rope's amplitude in them, as `rotation` makes them, for each pair or for each
            feature (see `Rotation.full_width`). float16 and bfloat16 are converted to float32, exactly. Of
            two numbers for one pair, the first is used. The other axes follow the shape rule of
            positions: tables with an axis of heads need the batch, or 1, before it, (1, H, S, rotary_dim/2).
        pairing : {"interleaved", "half"}, optional
            Pairing for which tables of full width are arranged; by default the rope's. Tables made by
            ``concatenate([cos, cos])`` are arranged for half pairs, whichever pairs the model rotates.

        Returns
        -------
        Rotation
            The rotation by these tables. The rope sets the pairs; its frequencies are not used.

        Raises
        ------
        ArrayTypeError
            `cos` or `sin` is no floating array, or they differ in library or device.
        ShapeError
            Their shapes differ, or their last axis is neither rotary_dim/2 nor rotary_dim.
        SpecError
            `pairing` is no pairing, or the scaling needs `at_length` first.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> x = np.ones((3, 4))
        >>> angle = np.arange(3)[:, None] * np.array([1.0, 0.01])     # (positions, pairs)
        >>> rotation = ra.RoPE(head_dim=4).rotation_from(np.cos(angle), np.sin(angle))
        >>> bool(np.allclose(rotation.apply(x), ra.apply(x, range(3))))
        True
        """
        lib = _dispatch.library_of_like(cos, "cos")
        plan = require_plan(self)
        return type_of_plan(plan)(*builders.given(cos, sin, plan.layout, lib, pairing))

    def rotation_of_angles(self, angles: Any, *, like: Any) -> Rotation:
        """Make a rotation of angles that a model computes: of its input, of a clock, of learned functions.

        The angles are reduced to one turn exactly, whatever their size, unless the rope has
        ``angles="float32"``. Their own rounding stays: the float32 numbers next to 100,000 radians are 0.008
        apart. So compute large angles in float64, or give positions and frequencies to `rotation` instead.

        Parameters
        ----------
        angles : array of shape (..., rotary_dim/2)
            The angle of each pair in radians, float32 or float64, of like's library. Selective RoPE and
            context-aware frequencies have angles of shape (batch, heads, S, rotary_dim/2).
        like : array
            An array as it will be rotated, as in `rotation`.

        Returns
        -------
        Rotation
            Tables of the shape of `angles`, with the rope's amplitude; differentiable in the angles. The rope
            sets the pairs; its frequencies are not used.

        Raises
        ------
        ArrayTypeError
            `angles` is no array of float32 or float64 of like's library and device.
        ShapeError
            The last axis of `angles` is not rotary_dim/2.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> x = np.ones((3, 4))
        >>> angles = np.arange(3)[:, None] * np.array([1.0, 0.01])    # (positions, pairs)
        >>> rotation = ra.RoPE(head_dim=4).rotation_of_angles(angles, like=x)
        >>> bool(np.allclose(rotation.apply(x), ra.apply(x, range(3))))
        True
        """
        plan = require_plan(self)
        check_angles(angles, plan.layout.num_pairs, like, _dispatch.library_of_like(like))
        cos, sin, _ = _dispatch.make_tables(Positions(angles, plan_of_angles(plan)), like)
        return type_of_plan(plan)(cos, sin)

    def _refuse_scaling(self) -> None:
        """Raise SpecError if the rope has a rule: learned frequencies replace it."""
        if self.scaling is not None:
            raise SpecError(
                f"the rope has scaling={short(self.scaling)}, and inv_freq sets the frequencies too; give a "
                "rope without scaling, dataclasses.replace(rope, scaling=None). To keep a rule's amplitude, "
                "give it as attention_factor."
            )

    def at_length(self, length: int) -> "RoPE":
        """Return this rope for sequences of a length, if its scaling depends on the length.

        Use one length for all keys that are read together: queries rotated at one length must not read cached
        keys that were rotated at another.

        Parameters
        ----------
        length : int
            Positions in the sequence, or in the longest one to come; at least 1.

        Returns
        -------
        RoPE
            The rope itself if the length changes nothing. Lengths with the same effect give equal ropes.

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
        if self.scaling is None:
            return self
        scaling = rule_at_length(self.scaling, known(self.scaling._representative(length)))
        return self if scaling == self.scaling else replace(self, scaling=scaling)

    def rotation_mixed(self, pos: Any, *, like: Any, inv_freq: Any) -> Rotation:
        """Make cos and sin of learned frequencies per head and coordinate: RoPE-ViT's mixed form [1]_.

        The angle of pair i in head h at coordinates p is the sum of p_a·inv_freq[h, a, i] over coordinates a:
        every pair has its own direction.

        Parameters
        ----------
        pos : array or sequence of shape (..., S, n)
            Coordinates; n is the second size of `inv_freq`.
        like : array
            An array as it will be rotated, as in `rotation`.
        inv_freq : array of shape (heads, n, rotary_dim/2)
            Learned frequencies, radians per unit of a coordinate, of like's library. Each float is taken
            exactly, and the sums are exact before they are reduced to one turn; differentiable in both.

        Returns
        -------
        Rotation
            Tables of shape (..., heads, S, rotary_dim/2), where ... is the batch: 1 for a pos of shape (S,
            n), and absent if like has no batch. They rotate arrays of shape (B, heads, S, head_dim) or
            (heads, S, head_dim), and arrays of shape (B, S, heads, head_dim) with ``seq_axis=-3``.

        Raises
        ------
        ArrayTypeError, PositionError
            As in `rope_array.apply`.
        ShapeError
            `inv_freq` does not have the shape above, or pos has another number of coordinates.
        SpecError
            The rope has `axes`, which give each pair one coordinate, or `scaling`.

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
        plan = require_plan(self)
        self._refuse_scaling()
        if plan.coordinates is not None:
            raise SpecError(
                "the rope has axes, one coordinate for each pair, and inv_freq has frequencies for each "
                "coordinate; give a rope without axes."
            )
        lib = _dispatch.library_of_like(like)
        check_frequencies(inv_freq, plan.layout.num_pairs, like, lib, mixed=True)
        return self._rotation(Positions(pos, without_frequencies(plan, inv_freq.shape[1]), inv_freq), like)

    def rotation_xpos(
        self, pos: Any, *, like: Any, scale_base: float = 512.0, center: float = 0.0
    ) -> tuple[Rotation, Rotation]:
        """Make the rotations of queries and of keys for xPos, whose scores decay with the distance [1]_.

        Pair i of d/2 is multiplied by ζ_i^((p - center)/scale_base) in queries and divided by it in keys,
        with ζ_i = (2i + 0.4·d)/(1.4·d). A score then depends on the distance alone if queries and keys share
        one center. The center is fixed, so that keys in a growing cache stay right; implementations that use
        the middle of the sequence change it with every token.

        Parameters
        ----------
        pos, like
            As in `rotation`.
        scale_base : float
            Number of positions over which a pair decays by ζ_i; above 0. 512 in the paper.
        center : float
            Position at which nothing is scaled. Powers grow with the distance from it: in float32 the lowest
            pair, ζ_0 = 2/7, leaves the range of normal numbers some 35,000 positions from the center.

        Returns
        -------
        (Rotation, Rotation)
            The rotations for queries and for keys.

        Raises
        ------
        ArrayTypeError, PositionError
            As in `rope_array.apply`; or a position on the host, or in a tensor of the CPU, is too far from
            the center.
        SpecError
            `scale_base` is not above 0, `center` is not a finite number, or the rope has `axes`.

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
        lib = _dispatch.library_of_like(like)
        scale = positive("scale_base", scale_base), number("center", center)
        tables = self.rotation(pos, like=like)
        of_q, of_k = builders.xpos(Positions(pos, require_plan(self)), like, tables, *scale, lib)
        cls = rotation_type(*of_q.layout)
        return cls(of_q.cos, of_q.sin), cls(of_k.cos, of_k.sin)

    @classmethod
    def from_config(
        cls, config: Any, *, part: str | None = None, layer_type: str | int | None = None
    ) -> "RoPE":
        """Read the rope of a model from its config; needs neither torch nor transformers.

        Parameters
        ----------
        config : path, mapping or object
            A config.json of Hugging Face or the folder that holds one, its contents, or an object with
            ``to_dict()``; or a file of another format, as in `config.read`.
        part : str, optional
            Part of a model with several: "text", "vision", "audio", or a path of keys such as "thinker.text";
            "indexer" for the indexer of sparse attention. By default the text part.
        layer_type : str or int, optional
            Type of layer ("sliding_attention"), or a layer's number, if the layers of the model differ.

        Returns
        -------
        RoPE
            The rope; with rotary_dim 0 for layers without position embedding. A rule that depends on the
            length needs ``rope.at_length(n)`` before the first rotation.

        Raises
        ------
        ConfigError
            The config cannot be read, contradicts itself, has an unknown key or rope type, or belongs to a
            model whose position embedding is not a rotation.

        Warns
        -----
        UserWarning
            The model type is missing or unknown: the config is read as most models are, with half pairs.

        See Also
        --------
        rope_array.config.read : The same, with a report of stated and inferred values.

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
        from . import _config  # imported late: most programs never read a config

        document = _config.load(config)
        with _config.refusals(document):
            fields, reader = _config.fields(document, part, layer_type)
            rope = cls(**fields)
        if (guess := reader.record.inferred.get("convention")) is not None:
            warnings.warn(
                f"{reader.config_part.name}: {guess}; check the pairing.", UserWarning, stacklevel=2
            )
        return rope

    def matrix(self, pos: Any, like: Any = None) -> Any:
        """Return the rotation as a dense matrix M: for a vector x, ``rope.apply(x, pos)`` is M @ x.

        Parameters
        ----------
        pos
            Positions, as in `rope_array.apply`.
        like : array, optional
            Array that sets the library, device and dtype of the matrix. NumPy's float64 by default.

        Returns
        -------
        array of shape pos.shape + (head_dim, head_dim)
            Block-diagonal, of 2 × 2 rotations, but for the order of rows and columns (RoFormer, eq. 15).

        Raises
        ------
        ArrayTypeError, PositionError
            As in `rope_array.apply`.
        ShapeError
            The positions are of unknown size.

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
        lib = _dispatch.library_of_like(like)
        lead = tuple(rotation.cos.shape)[:-1]
        if any(map(is_unknown_size, lead)):
            raise ShapeError(f"pos is {describe(pos)}, of unknown size; give positions of known sizes.")
        units = lib.xp.eye(self.head_dim, dtype=like.dtype, **lib.ops(like).creation_kwargs)
        units = lib.xp.broadcast_to(units, (*lead, self.head_dim, self.head_dim))
        # Row j is the image of the unit vector j: column j of the matrix.
        return lib.xp.matrix_transpose(rotation.apply(units, seq_axis=-3 if lead else -2))


@traced_constant
def _refuse_unread_names(cls: type[RoPE]) -> None:
    """Raise SpecError if a subclass defines a name that no rotation reads."""
    for name in ("frequencies", "amplitude"):
        if getattr(cls, name) is not getattr(RoPE, name):
            raise SpecError(
                f"{cls.__name__} defines {name}, which no rotation calls; give the numbers as fields: "
                "RoPE(head_dim, inv_freq=..., attention_factor=...)."
            )
    for name in () if has_own_init(cls) else FIELDS:
        default = cls.__dataclass_fields__[name].default
        if default is not MISSING and getattr(cls, name) is not default:
            raise SpecError(
                f"{cls.__name__} sets {name} in its class body, which is not the field's default; annotate "
                "it, and decorate the class with @dataclasses.dataclass(frozen=True, repr=False, eq=False)."
            )


@traced_constant
def _register_in_jax() -> None:
    """Make a RoPE a static argument of JAX's functions, if JAX is imported: part of the tree, not a leaf."""
    register = getattr(sys.modules.get("jax.tree_util"), "register_static", None)
    if register is not None and not _registered:
        _registered.append(RoPE)
        with suppress(ValueError):  # a program has registered it already
            register(RoPE)


_registered: list[type[RoPE]] = []
