"""Convert projections and cached keys to the other pairing, and move cached keys to other positions.

A score q·k is a sum over the features of a head, so the same permutation of q's and k's features leaves it
unchanged. If the permutation moves each pair to its features in the other pairing, a projection trained for
one pairing works with the other. Pair i remains pair i: frequencies, scaling rules and axes do not change.
"""

import copy
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from . import _dispatch, _errors, _registry
from ._array_api import library as _library
from ._rope import RoPE as _RoPE
from ._spec import shape_rule as _shape_rule
from ._spec import spec as _spec
from ._spec import validation as _validation

__all__ = ["BaseKeys", "fused", "keys", "rerotate", "shift_keys", "shift_rope", "weights"]


def __dir__() -> list[str]:
    return __all__


def weights(
    w: Any, rope: Any, to: str, *, num_heads: int | None = None, axis: int = 0, pairing: Any = None
) -> Any:
    """Move the output features of a q or k projection, or of a whole state dict, to another pairing.

    Parameters
    ----------
    w : array, or mapping of names to arrays
        A weight or bias of q or of k, of any library and dtype, or another array with one entry per feature
        of a head: the weight of a per-head norm, the scales of quantised rows, the B matrix of a LoRA. Or a
        state dict of the whole model, by the names of transformers, Meta or Mistral.
    rope : RoPE; for a state dict path, dict or config object
        The rotary embedding of w. `pairing` is the pairing of w; `head_dim`, `rotary_dim` and `rotary_start`
        select the features of each head that move. For a state dict the config of its model, as in
        `RoPE.from_config`: heads and ropes are read from it by layer.
    to : {"interleaved", "half"}
        The new pairing. If w has it already, the result is a copy.
    num_heads : int, optional
        Heads in w; k has fewer than q in grouped attention. The size of w is checked; by default any whole
        number of heads is accepted.
    axis : int
        The axis of the output features, or of the features of one head: 0 for PyTorch's (num_heads *
        head_dim, inputs) and for a bias, -1 for the kernels of Flax, (inputs, num_heads * head_dim) or
        (inputs, num_heads, head_dim).
    pairing : {"interleaved", "half"}, optional
        The pairing of w, if it is not the pairing of the rope or of the config.

    Returns
    -------
    array or mapping
        Of w's library, shape, dtype and device; never a view of w. For a state dict a new dict of the same
        type, a plain dict for other mappings. Arrays that do not move are in it themselves, uncopied.

    Raises
    ------
    SpecError
        `rope` is no RoPE, `to` no pairing, or `num_heads` no number of heads.
    ConfigError
        The names of the config's model are not known, none of its layers rotates, or names do not fit.
    ShapeError
        w has no such axis, or the axis does not hold `num_heads` heads.
    ArrayTypeError
        w is no supported array.

    Notes
    -----
    Convert q and k, each with its number of heads, and never v. Then use
    ``dataclasses.replace(rope, pairing=to)``. A second conversion with this rope changes nothing; a second
    conversion with the first rope, or of a state dict, spoils the weights without an error: nothing in
    weights tells their pairing. Convert back by `pairing`.

    Examples
    --------
    >>> import dataclasses
    >>> import numpy as np
    >>> import rope_array as ra
    >>> from rope_array import convert
    >>> meta = ra.RoPE(head_dim=4, pairing="interleaved")
    >>> bias = np.asarray([0, 1, 2, 3, 10, 11, 12, 13])
    >>> convert.weights(bias, meta, "half", num_heads=2)
    array([ 0,  2,  1,  3, 10, 12, 11, 13])
    >>> hugging_face = dataclasses.replace(meta, pairing="half")
    """
    if isinstance(w, Mapping):
        if num_heads is not None or axis != 0:
            raise _errors.SpecError("num_heads and axis are of one array; give a state dict without them.")
        return _convert_state_dict(w, rope, to, pairing)
    if not isinstance(rope, _RoPE) and not hasattr(w, "shape"):
        raise _errors.ArrayTypeError(
            f"w is {_errors.describe_other(w)}; with a config give a state dict, such as model.state_dict(), "
            "and with a RoPE an array."
        )
    if pairing is not None and isinstance(rope, _RoPE):
        rope = dataclasses.replace(rope, pairing=pairing)
    permuted = _FeaturePermutation(rope, to)
    ops, axis = _check_array(w, axis)
    heads = _count_heads(w, axis, permuted.head_dim, num_heads)
    return ops.reshape(permuted.heads(w, axis, heads, ops), w.shape)


def fused(
    w: Any,
    rope: _RoPE,
    to: str,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    order: str = "qkv",
    groups: int = 1,
    v_head_dim: int | None = None,
    axis: int = 0,
) -> Any:
    """Move the output features of q and k in a projection that computes several of q, k and v.

    Parameters
    ----------
    w : array
        A weight or bias, as in `weights`. Its output features consist of `groups` equal groups, each with
        its share of the heads in `order`.
    rope, to
        See `weights`.
    num_heads : int
        Heads of q, in all groups together.
    num_kv_heads : int, optional
        Heads of k, and of v; `num_heads` by default.
    order : str
        The parts of a group, in order, each at most once: "q", "k", "v", and "g", an output gate with a head
        for each of q's. Only q and k are moved.
    groups : int
        Number of groups: 1 if all of q comes before all of k; `num_kv_heads` if each head of k follows its
        heads of q; the degree of tensor parallelism if each device's share was fused separately.
    v_head_dim : int, optional
        Width of a head of v, if it is not rope.head_dim.
    axis : int
        See `weights`.

    Returns
    -------
    array
        Of w's library, shape, dtype and device; never a view of w.

    Raises
    ------
    SpecError
        An argument is invalid, or `groups` does not divide the heads.
    ShapeError
        w has no such axis, or another number of features along it.
    ArrayTypeError
        w is no supported array.

    Examples
    --------
    In Phi-3 all heads of q come before all of k, then v (here with two heads of q, and one of k and v):

    >>> import numpy as np
    >>> import rope_array as ra
    >>> from rope_array import convert
    >>> rope, w = ra.RoPE(head_dim=4, pairing="half"), np.arange(16)
    >>> convert.fused(w, rope, "interleaved", num_heads=2, num_kv_heads=1)
    array([ 0,  2,  1,  3,  4,  6,  5,  7,  8, 10,  9, 11, 12, 13, 14, 15])

    In GPT-NeoX each head has its q, k and v together:

    >>> convert.fused(np.arange(24), rope, "interleaved", num_heads=2, groups=2)[12:]
    array([12, 14, 13, 15, 16, 18, 17, 19, 20, 21, 22, 23])
    """
    permuted = _FeaturePermutation(rope, to)
    projections = _projections(order, num_heads, num_kv_heads, groups, permuted.head_dim, v_head_dim)
    ops, axis = _check_array(w, axis)
    _check_fused(w, axis, groups, projections)
    grouped = ops.reshape(w, (*w.shape[:axis], groups, w.shape[axis] // groups, *w.shape[axis + 1 :]))
    pieces, start = [], 0
    for name, heads, width in projections:
        piece = grouped[_slice_of(axis + 1, start, start + heads * width)]
        if name in "qk":
            piece = ops.reshape(permuted.heads(piece, axis + 1, heads, ops), piece.shape)
        pieces.append(piece)
        start += heads * width
    return ops.reshape(_concat(pieces, axis + 1, w.dtype, ops), w.shape)


def keys(k: Any, rope: _RoPE, to: str) -> Any:
    """Move the features of rotated keys, such as cached keys, to another pairing.

    Parameters
    ----------
    k : array of shape (..., head_dim)
        Keys (or queries) that `rope` rotated, of any dtype.
    rope : RoPE
        The rotary embedding that rotated the keys. They have its `out_pairing`, by default its `pairing`.
    to : {"interleaved", "half"}
        The new pairing.

    Returns
    -------
    array
        Of k's library, shape, dtype and device; never a view of k.

    Raises
    ------
    SpecError
        `rope` is no RoPE, or `to` no pairing.
    ShapeError
        The last axis is not one head.
    ArrayTypeError
        k is no supported array.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> from rope_array import convert
    >>> deepseek = ra.RoPE(head_dim=4, pairing="interleaved", out_pairing="half")
    >>> convert.keys(np.arange(4), deepseek, "interleaved")
    array([0, 2, 1, 3])
    """
    permuted = _FeaturePermutation(rope, to, written=True)
    ops, axis = _check_array(k, -1, "k")
    if k.shape[-1] != permuted.head_dim:
        raise _errors.ShapeError(
            f"k is {_errors.describe(k)}; its last axis must hold the {permuted.head_dim} features of one "
            f"head (head_dim={permuted.head_dim}). Give heads an axis first, or give the rope k's head_dim."
        )
    return ops.reshape(permuted.heads(k, axis, 1, ops), k.shape)


def shift_rope(rope: _RoPE) -> _RoPE:
    """Return the rotary embedding that rotates keys which `rope` has already rotated.

    It reads and writes the pairing that `rope` writes, with an amplitude of 1, as the keys have `rope`'s
    amplitude, and without a `max_position`. Make it once to shift often: ``shift.apply(keys, delta)``.

    Parameters
    ----------
    rope : RoPE
        The rotary embedding that rotated the keys.

    Returns
    -------
    RoPE
        ``shift_rope(rope).apply(keys, delta)`` is ``shift_keys(keys, delta, rope)``.

    Raises
    ------
    SpecError
        `rope` is no RoPE.

    Examples
    --------
    >>> import rope_array as ra
    >>> from rope_array import convert
    >>> rope = ra.RoPE(head_dim=4, pairing="interleaved", out_pairing="half", attention_factor=1.2)
    >>> shift = convert.shift_rope(rope)
    >>> shift.pairing, shift.out_pairing, shift.amplitude
    ('half', None, 1.0)
    """
    _check_rope("rope", rope)
    pairing = _written_pairing(rope)
    # No max_position: a distance may be larger.
    return dataclasses.replace(
        rope, pairing=pairing, out_pairing=None, attention_factor=1.0, max_position=None
    )


def shift_keys(
    keys: Any,
    delta: Any,
    rope: _RoPE | tuple[_RoPE | None, ...],
    *,
    seq_axis: int | None = None,
    slots: Any = None,
    pages: Any = None,
    out: Any = None,
) -> Any:
    """Move cached keys from positions p to p + delta by one more rotation (a K-shift).

    By default all rows move, into new arrays or into `out`. With `slots` or `pages`, rows of the pools of a
    serving engine move in place, and nothing else in the pools changes.

    Parameters
    ----------
    keys : array of shape (..., S, head_dim), or a tuple of such arrays
        Keys that `rope` rotated, in the pairing it wrote. The arrays of a tuple, such as the keys of all
        layers, share one computation of the angles. With slots or pages, each is a pool, of any strides:
        (pages, page size, heads, head_dim) or (slots, heads, head_dim) with ``seq_axis=-3``; with -2 (pages,
        heads, page size, head_dim), (slots, head_dim), or for `pages` (pages, page size, head_dim).
    delta
        The distance, by the shape rule of positions in `rope_array.apply`: a number for all, or numbers per
        sequence or token; negative to move back. For pools a number, or one per slot (T,), per page (P,), or
        per row of each page (P, page size). With a multi-axis rope its last axis holds the coordinates.
    rope : RoPE, or a tuple with a RoPE or None for each array
        The rotary embedding that rotated the keys, a length-dependent rule resolved; None for a layer that
        does not rotate. Features outside its slice keep their bits, such as the latent features of MLA:
        ``RoPE(576, rotary_start=512, rotary_dim=64)``.
    seq_axis : int, optional
        The axis of the positions in keys, or of the slots of a pool: -2 by default. Pools of four axes have
        no default, as engines order their axes in both ways.
    slots : array of int32 or int64, or sequence of int
        Rows to move, of shape (T,): slot s is row ``s % page_size`` of page ``s // page_size``, if there are
        pages. An array is of the keys' library; JAX takes NumPy's too. Slots below 0 are skipped. A slot that
        is given twice raises an error; on a device, in JAX and in compiled programs, where slots are not
        read, it moves once, by its last distance.
    pages : array of int32 or int64, or sequence of int
        Pages to move, of shape (P,), all rows of each; as for `slots`.
    out : array or tuple of arrays, optional
        As for `rope_array.apply`: ``out=keys`` works in place. Not with slots, pages or several ropes.

    Returns
    -------
    array or tuple of arrays
        As keys; never a view of them. With slots or pages the pools themselves; JAX returns new arrays.

    Raises
    ------
    SpecError
        `rope` is no RoPE, its frequencies depend on an unknown length, or options exclude each other.
    ArrayTypeError, ShapeError, PositionError
        See `rope_array.apply`. Or pools share memory or require a gradient, or slots on the host are out of
        range or given twice. Nothing is written before all checks.

    Notes
    -----
    Rotations by p and by delta compose to one by p + delta; the second has an amplitude of 1, so that the
    amplitude is applied once. Each rotation rounds, so a shifted key is rounded twice. With
    ``angles="float32"`` each angle is rounded, and their sum differs from the rounded angle of p + delta.
    Frequencies must be the same before and after; otherwise see `rerotate`.

    Pools of int8 and float8_e4m3fn need no scale, as a rotation is linear: a scale of the tensor, or of each
    head, token or page, is the same before and after. But a rotation can make a feature larger, by up to a
    factor of 1.42, and numbers beyond the range of the dtype become its last. So leave room in the scale; of
    scales that are the largest number of a token, rotate the floats and quantise anew, as for a scale of each
    feature.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> from rope_array import convert
    >>> rope = ra.RoPE(head_dim=64, attention_factor=1.2)
    >>> k = np.random.default_rng(0).standard_normal((2, 10, 64))
    >>> cached = rope.apply(k, range(100, 110))
    >>> bool(np.allclose(convert.shift_keys(cached, -90, rope), rope.apply(k, range(10, 20)), atol=1e-14))
    True

    Page 1 of a pool with pages of 5 rows and one head moves forward by 7 positions, in place:

    >>> pool = cached.reshape(4, 5, 1, 64)
    >>> pool = convert.shift_keys(pool, 7, rope, seq_axis=-3, pages=[1])
    >>> bool(np.allclose(pool[1, :, 0], rope.apply(k[0, 5:], range(112, 117)), atol=1e-14))
    True
    """
    try:
        return _shift_keys(keys, delta, rope, seq_axis, slots, pages, out)
    except (_errors.ArrayTypeError, _errors.PositionError, _errors.ShapeError) as error:
        text = re.sub(r"\bpos\b", "delta", str(error))  # leaves `ra.positions`, which is a module
        raise type(error)(re.sub(r"\bposition(?= -?\d)", "distance", text)) from None


def _shift_keys(
    keys: Any, delta: Any, rope: Any, seq_axis: int | None, slots: Any, pages: Any, out: Any
) -> Any:
    has_rows, has_groups = slots is not None or pages is not None, isinstance(rope, tuple)
    if (slots is not None and pages is not None) or (out is not None and (has_rows or has_groups)):
        raise _errors.SpecError(
            "slots, pages and out are given together, or out with a tuple of ropes; give one of them. By "
            "several ropes, keys of (batch, heads, positions, head_dim) move in place by pages=range(batch)."
        )
    arrays = keys if type(keys) is tuple else (keys,)
    if seq_axis is None:
        seq_axis = _default_axis(arrays if has_rows else ())
    if not has_rows and not isinstance(rope, tuple):
        return shift_rope(rope).apply(keys, delta, seq_axis=seq_axis, out=out)
    if isinstance(rope, tuple):
        ropes = [r if r is None else shift_rope(r) for r in _checked_ropes(rope, arrays)]
    else:
        ropes = [shift_rope(rope)] * len(arrays)
    if has_rows:
        plans = [r if r is None else _spec.require_plan(r) for r in ropes]
        ys = _dispatch.shift_rows([*zip(arrays, plans, strict=True)], delta, seq_axis, slots, pages)
    else:
        ys = _shift_groups(arrays, delta, ropes, seq_axis)
    return ys if type(keys) is tuple else ys[0]


def _shift_groups(keys: tuple[Any, ...], delta: Any, ropes: list[_RoPE | None], seq_axis: int) -> Any:
    """Shift whole arrays, with one call for equal ropes; copy arrays without a rope."""
    ys = [k if r else _ops(k).xp.asarray(k, copy=True) for k, r in zip(keys, ropes, strict=True)]
    for rope in dict.fromkeys(filter(None, ropes)):
        members = [i for i, r in enumerate(ropes) if r == rope]
        moved = rope.apply(tuple([keys[i] for i in members]), delta, seq_axis=seq_axis)
        for i, y in zip(members, moved, strict=True):
            ys[i] = y
    return tuple(ys)


def _default_axis(pools: tuple[Any, ...]) -> int:
    """Return -2. Raise for pools of four axes: the wrong axis would rotate other rows, without an error."""
    for pool in pools:
        if getattr(pool, "ndim", 0) == 4:
            raise _errors.ShapeError(
                f"keys is {_errors.describe(pool)}, without seq_axis; give -3 for (pages, page size, heads, "
                "head_dim), or -2 for (pages, heads, page size, head_dim)."
            )
    return -2


def _checked_ropes(ropes: tuple[Any, ...], arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    if isinstance(arrays[0], list):
        raise _errors.ArrayTypeError(f"keys is {_errors.describe(arrays[0])}; give a tuple of arrays.")
    if len(ropes) != len(arrays):
        raise _errors.SpecError(
            f"rope is a tuple of {len(ropes)}, and keys has {len(arrays)} arrays; give one for each."
        )
    return ropes


@dataclasses.dataclass(frozen=True, eq=False)
class BaseKeys:
    """Keys as a rope first rotated them, and the distance that they have moved since.

    Each shift of shifted keys rounds again. Here distances add up in integers, and `shifted` rotates once.

    Parameters
    ----------
    keys, rope
        As in `shift_keys`.
    delta : int or array of integers
        The distance from the positions at which the keys were rotated to their present positions.

    Raises
    ------
    PositionError
        `delta` is no int and no array of integers.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> from rope_array import convert
    >>> rope, k = ra.RoPE(head_dim=4), np.ones((2, 4))
    >>> base = convert.BaseKeys(rope.apply(k, [5, 6]), rope).moved(-1).moved(-1)
    >>> bool(np.allclose(base.shifted(), rope.apply(k, [3, 4]), atol=1e-15))
    True
    """

    keys: Any
    rope: _RoPE | tuple[_RoPE | None, ...]
    delta: Any = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", _exact_distance(self.delta))

    def moved(self, delta: Any) -> "BaseKeys":
        """Add a distance; nothing is rotated.

        Parameters
        ----------
        delta : int or array of integers
            As in `shift_keys`; an array of NumPy or of the keys' library.

        Returns
        -------
        BaseKeys
            The same keys, with the sum of the distances.

        Raises
        ------
        PositionError
            `delta` is no int and no array of integers.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> from rope_array import convert
        >>> base = convert.BaseKeys(np.ones((2, 4)), ra.RoPE(head_dim=4))
        >>> base.moved(7).moved(np.asarray([0, -9])).delta
        array([ 7, -2])
        """
        return dataclasses.replace(self, delta=self.delta + _exact_distance(delta))

    def shifted(self, *, seq_axis: int = -2, out: Any = None) -> Any:
        """Return the keys at their present positions, by one `shift_keys`.

        Parameters
        ----------
        seq_axis, out
            As in `shift_keys`; out is not the keys, which the next call rotates again.

        Returns
        -------
        array or tuple of arrays
            As `shift_keys`, with its exceptions.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_array as ra
        >>> from rope_array import convert
        >>> pool = np.zeros((5, 4))
        >>> pool[[0, 3]] = convert.BaseKeys(np.ones((2, 4)), ra.RoPE(head_dim=4)).moved(7).shifted()
        """
        arrays, outs = (a if isinstance(a, tuple) else (a,) for a in (self.keys, out))
        if out is not None and any(a is o for a in arrays for o in outs):
            raise _errors.ArrayTypeError(
                "out is the keys, which hold the base positions; give other arrays, or move the keys in "
                "place by convert.shift_keys(keys, delta, rope, out=keys)."
            )
        return shift_keys(self.keys, self.delta, self.rope, seq_axis=seq_axis, out=out)


def _exact_distance(delta: Any) -> Any:
    """Return an int, or an array of 64-bit integers where its library has them."""
    if isinstance(delta, int) and not isinstance(delta, bool):
        return delta
    if not (hasattr(delta, "dtype") and "int" in _library.dtype_name(delta)):
        raise _errors.PositionError(
            f"delta is {_errors.describe(delta)}; give an int, or an array of integers: sums are exact."
        )
    ops = _ops(delta)
    return ops.cast(delta, ops.xp.int64) if ops.has_int64 else delta


def rerotate(keys: Any, pos: Any, from_rope: _RoPE, to_rope: _RoPE, *, seq_axis: int = -2) -> Any:
    """Convert cached keys from one rotary embedding to another at the same positions.

    Use it when frequencies change while a cache is in use: LongRoPE when a text exceeds the original length,
    dynamic NTK at any new length, a scaling rule that is added to a running model.

    Parameters
    ----------
    keys : array of shape (..., S, head_dim), or a tuple of such arrays
        Keys that `from_rope` rotated, in the pairing it wrote.
    pos
        The positions of the keys, as in `rope_array.apply`.
    from_rope, to_rope : RoPE
        The rotary embedding that rotated the keys, and the new rotary embedding. Both read the same pairing.
    seq_axis : int
        The axis of the positions in keys.

    Returns
    -------
    array or tuple of arrays
        As keys; never a view of them.

    Raises
    ------
    SpecError
        One of the two is no RoPE, they differ in `head_dim` or `pairing`, or the frequencies of one depend on
        an unknown length.
    ArrayTypeError, ShapeError, PositionError
        See `rope_array.apply`.

    Notes
    -----
    The inverse of `from_rope` divides by its amplitude, and `to_rope` applies its own. Between the two,
    float16 and bfloat16 keys are float32, so that they are rounded to their dtype once, not twice.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> from rope_array import convert
    >>> short, long = ra.RoPE(head_dim=8, base=1e4), ra.RoPE(head_dim=8, base=1e6, attention_factor=1.2)
    >>> k = np.random.default_rng(0).standard_normal((3, 8))
    >>> moved = convert.rerotate(short.apply(k, range(3)), range(3), short, long)
    >>> bool(np.allclose(moved, long.apply(k, range(3)), atol=1e-14))
    True
    """
    _check_same(from_rope, to_rope)
    if type(keys) is not tuple:
        return rerotate((keys,), pos, from_rope, to_rope, seq_axis=seq_axis)[0]
    unrotated = from_rope.apply(tuple(map(_to_float32, keys)), pos, seq_axis=seq_axis, inverse=True)
    rotated = to_rope.apply(unrotated, pos, seq_axis=seq_axis)
    return tuple(_ops(k).cast(y, k.dtype) for y, k in zip(rotated, keys, strict=True))


def _convert_state_dict(arrays: Mapping[Any, Any], config: Any, to: str, pairing: Any) -> Any:
    """Convert the arrays that belong to a pairing, after the checks of all."""
    from ._state_dict import arguments_by_name  # imported late: it reads configs

    to = _spec.check_pairing("to", to)
    converted = copy.copy(arrays) if isinstance(arrays, dict) else dict(arrays)
    for name, options in arguments_by_name(arrays, config).items():
        rope = dataclasses.replace(options["rope"], pairing=pairing or options["rope"].pairing)
        if rope.pairing != to:
            convert = fused if "order" in options else weights
            converted[name] = convert(arrays[name], **{**options, "rope": rope, "to": to})
    return converted


class _FeaturePermutation:
    """The permutation of a head's features from the pairing that a rope reads (or writes) to another."""

    def __init__(self, rope: _RoPE, to: str, *, written: bool = False):
        _check_rope("rope", rope)
        self.source = _written_pairing(rope) if written else rope.pairing
        self.to = _spec.check_pairing("to", to)
        self.head_dim = rope.head_dim
        self.start, self.stop = rope.rotary_start, rope.rotary_start + rope.rotary_dim
        self.blocks = rope.axes.blocks if rope.axes else 1

    def heads(self, w: Any, axis: int, count: int, ops: Any) -> Any:
        """Permute the features of consecutive heads along an axis, and give heads an axis.

        Slices and reshapes need no index array on w's device, and keep the sharding along whole heads.
        """
        x = ops.reshape(w, (*w.shape[:axis], count, self.head_dim, *w.shape[axis + 1 :]))
        axis += 1
        before, after = x[_slice_of(axis, 0, self.start)], x[_slice_of(axis, self.stop, self.head_dim)]
        middle = self._permute_pairs(x[_slice_of(axis, self.start, self.stop)], axis, ops)
        return _concat([before, middle, after], axis, w.dtype, ops)

    def _permute_pairs(self, x: Any, axis: int, ops: Any) -> Any:
        """Permute the rotated features, which fill an axis of x."""
        if self.source == self.to or self.start == self.stop:
            return x
        num_pairs = x.shape[axis] // self.blocks // 2
        inner = (num_pairs, 2) if self.to == "half" else (2, num_pairs)
        pairs = ops.reshape(x, (*x.shape[:axis], self.blocks, *inner, *x.shape[axis + 1 :]))
        order = list(range(pairs.ndim))
        order[axis + 1], order[axis + 2] = axis + 2, axis + 1
        return ops.reshape(ops.xp.permute_dims(pairs, tuple(order)), x.shape)


def _slice_of(axis: int, start: int, stop: int) -> tuple[Any, ...]:
    return (*(slice(None),) * axis, slice(start, stop), ...)


def _concat(pieces: list[Any], axis: int, dtype: Any, ops: Any) -> Any:
    y = ops.xp.concat(pieces, axis=axis)
    # NumPy's concat returns the native byte order.
    return y if y.dtype == dtype else ops.cast(y, dtype)


def _projections(
    order: Any, num_heads: Any, num_kv_heads: Any, groups: Any, width: int, v_width: Any
) -> list[tuple[str, int, int]]:
    """Return the parts of one group of a fused projection: name, number of heads, width of a head."""
    q = _validation.integer("num_heads", num_heads, 1)
    kv = q if num_kv_heads is None else _validation.integer("num_kv_heads", num_kv_heads, 1)
    v_width = width if v_width is None else _validation.integer("v_head_dim", v_width, 1)
    groups = _validation.integer("groups", groups, 1)
    if not isinstance(order, str) or {*order} - {*"qkvg"} or len({*order}) < len(order):
        raise _errors.SpecError(
            f"order is {_errors.short(order)}; give the parts in order, each of 'q', 'k', 'v' and 'g' (an "
            "output gate) at most once, such as 'qkv'."
        )
    if not {*order} & {*"qk"}:
        raise _errors.SpecError(f"order is {order!r}, with neither q nor k to convert; give one.")
    shapes = {"q": (q, width), "k": (kv, width), "v": (kv, v_width), "g": (q, width)}
    for name in order:
        if shapes[name][0] % groups:
            raise _errors.SpecError(
                f"groups is {groups}, which does not divide the {shapes[name][0]} heads of {name}; give a "
                "number that does."
            )
    return [(name, shapes[name][0] // groups, shapes[name][1]) for name in order]


def _check_fused(w: Any, axis: int, groups: int, projections: list[tuple[str, int, int]]) -> None:
    wanted = groups * sum(heads * width for _, heads, width in projections)
    if w.shape[axis] != wanted:
        terms = " + ".join(f"{groups * heads} of {name} x {width}" for name, heads, width in projections)
        raise _errors.ShapeError(
            f"w is {_errors.describe(w)}; along axis {axis} it must have {wanted} features: {terms}. "
            "Give the numbers of heads, order and axis of w."
        )


def _count_heads(w: Any, axis: int, head_dim: int, num_heads: Any) -> int:
    """Return the number of heads along an axis."""
    size = w.shape[axis]
    heads = size // head_dim if num_heads is None else _validation.integer("num_heads", num_heads, 1)
    if heads * head_dim != size:
        expected = "whole heads" if num_heads is None else f"{heads} heads"
        raise _errors.ShapeError(
            f"w is {_errors.describe(w)}; along axis {axis} it must have {expected} of {head_dim} features "
            f"(head_dim={head_dim}), and has {size}. Give the num_heads and axis of w (k may have fewer "
            "heads than q), and a rope of its head_dim."
        )
    return int(heads)


def _check_array(w: Any, axis: Any, name: str = "w") -> tuple[Any, int]:
    """Check an array and its axis; return the array's operations, and the axis counted from the front."""
    if isinstance(w, (list, tuple)):
        raise _errors.ArrayTypeError(f"{name} is {_errors.describe(w)}; give one array at a time.")
    lib = _registry.library_of(w)
    lib.check_supported(w)
    index = axis if isinstance(axis, bool) else getattr(axis, "__index__", lambda: None)()
    if index is None or isinstance(index, bool) or not -w.ndim <= index < w.ndim:
        raise _errors.ShapeError(
            f"axis is {_errors.short(axis)}, and {name} is {_errors.describe(w)}; give an axis of it."
        )
    if any(map(_shape_rule.is_unknown_size, w.shape)):
        raise _errors.ShapeError(
            f"{name} is {_errors.describe(w)}, of unknown size; give an array whose size is computed."
        )
    return lib.ops(w), index % w.ndim


def _written_pairing(rope: _RoPE) -> _spec.Pairing:
    return rope.out_pairing or rope.pairing


def _check_rope(name: str, rope: Any) -> None:
    if not isinstance(rope, _RoPE):
        raise _errors.SpecError(f"{name} is {_errors.describe(rope)}; give a RoPE.")


def _check_same(from_rope: Any, to_rope: Any) -> None:
    """Check that two ropes rotate the same features, and have frequencies."""
    for name, rope in (("from_rope", from_rope), ("to_rope", to_rope)):
        _check_rope(name, rope)
        _spec.require_plan(rope)
    for name in ("head_dim", "pairing", "blocks"):
        before, after = (getattr(rope._plan.layout, name) for rope in (from_rope, to_rope))
        if before != after:
            raise _errors.SpecError(
                f"from_rope has {name} {before!r} and to_rope {after!r}; give two ropes that differ in "
                "frequencies, slice or amplitude only."
            )


def _to_float32(k: Any) -> Any:
    ops = _ops(k)
    return ops.cast(k, ops.xp.float32) if _library.dtype_name(k) in ("float16", "bfloat16") else k


def _ops(x: Any) -> Any:
    return _registry.library_of(x).ops(x)
