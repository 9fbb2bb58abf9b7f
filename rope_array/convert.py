"""From one pairing to the other, in projections and in cached keys; and cached keys to other positions.

A score q·k is a sum over the features of a head. It stays the same when the features of q and k are put in
another order, if both are, and if the rotation then finds its pairs in the new places. So a projection that
was trained for one pairing serves the other once its output features are moved. Lane i stays lane i:
frequencies, scaling rules and lane-to-axis maps are not touched.
"""

import dataclasses
from typing import Any, get_args

from . import _errors, _registry
from ._array_api import library as _namespace
from ._rope import RoPE as _RoPE
from ._spec import shape_rule as _shape_rule
from ._spec import spec as _spec
from ._spec import validation as _values

__all__ = ["fused", "keys", "permutation", "rerotate", "shift_keys", "shift_rope", "weights"]


def weights(w: Any, rope: _RoPE, to: str, *, num_heads: int | None = None, axis: int = 0) -> Any:
    """Move the output features of a q or k projection from rope's pairing to another.

    Parameters
    ----------
    w : array
        A weight or bias of q or of k, of any library and dtype, or whatever else has one entry per feature of
        a head: the weight of a per-head norm, the scales of quantised rows, the B matrix of a LoRA.
    rope : RoPE
        The rotary embedding that w was made for. Its `pairing` is the one w is in; `head_dim`, `rotary_dim`
        and `rotary_start` say which features of each head move.
    to : {"interleaved", "half"}
        The pairing that is wanted. Where w is in it already, the result is a copy.
    num_heads : int, optional
        Heads in w: those of k are fewer than those of q in grouped attention. A w of another size is refused;
        without it, any whole number of heads is taken.
    axis : int
        The axis of the output features, or of the features of one head: 0 for PyTorch's (num_heads *
        head_dim, inputs) and for a bias, -1 for the kernels of Flax, (inputs, num_heads * head_dim) or
        (inputs, num_heads, head_dim).

    Returns
    -------
    array
        Of w's library, shape, dtype and device; never a view of w.

    Raises
    ------
    SpecError
        `rope` is no RoPE, `to` no pairing, or `num_heads` no number of heads.
    ShapeError
        w has no such axis, or along it not `num_heads` heads.
    ArrayTypeError
        w is no array that is served.

    Notes
    -----
    Convert q and k, each with its number of heads, and never v. The rope that fits afterwards is
    ``dataclasses.replace(rope, pairing=to)``; converting by that one again changes nothing, which the first
    one cannot know.

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
    move = _Move(rope, to)
    ops, axis = _opened(w, axis)
    heads = _heads(w, axis, move.head_dim, num_heads)
    return ops.reshape(move.heads(w, axis, heads, ops), w.shape)


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
    """Move the output features of q and k in a projection that makes several of q, k and v at once.

    Parameters
    ----------
    w : array
        A weight or bias, as of `weights`, whose output features are `groups` equal stretches. Each stretch
        holds its share of the heads: first of what `order` names first, and so on.
    rope, to
        As of `weights`.
    num_heads : int
        Heads of q, in all groups together.
    num_kv_heads : int, optional
        Heads of k, and of v; those of q by default.
    order : str
        What a stretch holds, in order, each at most once: "q", "k", "v", and "g", an output gate with a head
        for each of q's. Only q and k are moved.
    groups : int
        How many stretches there are: 1 where all of q comes before all of k; `num_kv_heads` where each head
        of k stands behind the heads of q that it serves; the degree of tensor parallelism where each device's
        share was fused by itself.
    v_head_dim : int, optional
        Width of a head of v, where it is not rope.head_dim.
    axis : int
        As of `weights`.

    Returns
    -------
    array
        Of w's library, shape, dtype and device; never a view of w.

    Raises
    ------
    SpecError
        A field is outside what is stated above, or `groups` does not divide the heads.
    ShapeError
        w has no such axis, or another number of features along it.
    ArrayTypeError
        w is no array that is served.

    Examples
    --------
    Phi-3 keeps all heads of q before all of k, and these before v (here with two heads, one of k and v):

    >>> import numpy as np
    >>> import rope_array as ra
    >>> from rope_array import convert
    >>> rope, w = ra.RoPE(head_dim=4, pairing="half"), np.arange(16)
    >>> convert.fused(w, rope, "interleaved", num_heads=2, num_kv_heads=1)
    array([ 0,  2,  1,  3,  4,  6,  5,  7,  8, 10,  9, 11, 12, 13, 14, 15])

    GPT-NeoX has q, k and v of each head together:

    >>> convert.fused(np.arange(24), rope, "interleaved", num_heads=2, groups=2)[12:]
    array([12, 14, 13, 15, 16, 18, 17, 19, 20, 21, 22, 23])
    """
    move = _Move(rope, to)
    parts = _parts(order, num_heads, num_kv_heads, groups, move.head_dim, v_head_dim)
    ops, axis = _opened(w, axis)
    _check_fused(w, axis, groups, parts)
    stretches = ops.reshape(w, (*w.shape[:axis], groups, w.shape[axis] // groups, *w.shape[axis + 1 :]))
    pieces, start = [], 0
    for name, heads, width in parts:
        piece = stretches[_along(axis + 1, start, start + heads * width)]
        if name in "qk":
            piece = ops.reshape(move.heads(piece, axis + 1, heads, ops), piece.shape)
        pieces.append(piece)
        start += heads * width
    return ops.reshape(_joined(pieces, axis + 1, w.dtype, ops), w.shape)


def keys(k: Any, rope: _RoPE, to: str) -> Any:
    """Move the features of rotated keys, as a cache holds them, to another pairing.

    Parameters
    ----------
    k : array of shape (..., head_dim)
        Keys (or queries) that `rope` rotated, of any dtype.
    rope : RoPE
        The rotary embedding that rotated them. They are in its `out_pairing`, which is its `pairing` unless
        given.
    to : {"interleaved", "half"}
        The pairing that is wanted.

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
        k is no array that is served.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> from rope_array import convert
    >>> deepseek = ra.RoPE(head_dim=4, pairing="interleaved", out_pairing="half")
    >>> convert.keys(np.arange(4), deepseek, "interleaved")
    array([0, 2, 1, 3])
    """
    move = _Move(rope, to, written=True)
    ops, axis = _opened(k, -1, "k")
    if k.shape[-1] != move.head_dim:
        raise _errors.ShapeError(
            f"k is {_errors.describe(k)}; its last axis must hold the {move.head_dim} features of one head "
            f"(head_dim={move.head_dim}). Split heads off first, or give the rope k's head_dim."
        )
    return ops.reshape(move.heads(k, axis, 1, ops), k.shape)


def permutation(rope: _RoPE, to: str) -> tuple[int, ...]:
    """Tell where each feature of a converted head comes from, for tools that move features themselves.

    Parameters
    ----------
    rope, to
        As of `weights`.

    Returns
    -------
    tuple of int
        One index for each feature of a head: in NumPy, ``converted = head[..., permutation]``.

    Raises
    ------
    SpecError
        `rope` is no RoPE, or `to` no pairing.

    Examples
    --------
    >>> import rope_array as ra
    >>> from rope_array import convert
    >>> convert.permutation(ra.RoPE(head_dim=8, rotary_dim=6), "half")
    (0, 2, 4, 1, 3, 5, 6, 7)
    """
    move = _Move(rope, to)
    source = list(range(move.head_dim))
    for a, b in zip(move.places(move.source), move.places(move.to), strict=True):
        source[b] = a
    return tuple(source)


def shift_rope(rope: _RoPE) -> _RoPE:
    """Return the rotary embedding that turns keys which `rope` has rotated already.

    It reads and writes the pairing that rope writes, and leaves the amplitude alone, which the keys have.
    Make it once, outside of compiled functions, where `shift_keys` is called often.

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
    >>> turn = convert.shift_rope(rope)
    >>> turn.pairing, turn.out_pairing, turn.amplitude
    ('half', None, 1.0)
    """
    _check_rope("rope", rope)
    return dataclasses.replace(rope, pairing=_written(rope), out_pairing=None, attention_factor=1.0)


def shift_keys(keys: Any, delta: Any, rope: _RoPE, *, seq_axis: int = -2) -> Any:
    """Turn cached keys on: keys rotated at positions p become keys rotated at p + delta (a K-shift).

    Parameters
    ----------
    keys : array of shape (..., S, head_dim), or a tuple of such arrays
        Keys that `rope` rotated, as it wrote them. The arrays of a tuple, one per layer for instance, share
        one computation of the angles.
    delta
        How much further, by the shape rule of positions in `rope_array.apply`: a number for all, or numbers
        per sequence or token; negative to move back. With a multi-axis rope its last axis holds the
        coordinates.
    rope : RoPE
        The rotary embedding that rotated the keys, its length-dependent rule resolved.
    seq_axis : int
        The axis of keys along which positions run.

    Returns
    -------
    array or tuple of arrays
        As keys; never a view of them.

    Raises
    ------
    SpecError
        `rope` is no RoPE, or its frequencies depend on a length that is not given.
    ArrayTypeError, ShapeError, PositionError
        As of `rope_array.apply`.

    Notes
    -----
    Rotations by p and by delta compose to one by p + delta, but the amplitude would be there twice: it is
    left out of the second. A shifted key has been rounded twice, once by each rotation; what was cut off in
    the cache does not come back. With ``angles="float32"`` the two angles are rounded each for itself, and
    their sum is that of p + delta only nearly. Frequencies must be the same before and after; else see
    `rerotate`.

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
    """
    return shift_rope(rope).apply(keys, delta, seq_axis=seq_axis)


def rerotate(keys: Any, pos: Any, from_rope: _RoPE, to_rope: _RoPE, *, seq_axis: int = -2) -> Any:
    """Turn cached keys of one rotary embedding into those that another makes at the same positions.

    For frequencies that change while a cache is in use: LongRoPE when a text outgrows the original length,
    dynamic NTK at any new length, a scaling rule that is put on a running model.

    Parameters
    ----------
    keys : array of shape (..., S, head_dim), or a tuple of such arrays
        Keys that `from_rope` rotated, as it wrote them.
    pos
        The positions at which it did, as of `rope_array.apply`.
    from_rope, to_rope : RoPE
        The rotary embedding that rotated the keys, and the one that should have. Both read the same pairing.
    seq_axis : int
        The axis of keys along which positions run.

    Returns
    -------
    array or tuple of arrays
        As keys; never a view of them.

    Raises
    ------
    SpecError
        One of the two is no RoPE, they differ in `head_dim` or `pairing`, or one has frequencies that depend
        on a length that is not given.
    ArrayTypeError, ShapeError, PositionError
        As of `rope_array.apply`.

    Notes
    -----
    The first rotation is undone, its amplitude divided out, and the second applied with its own. float16 and
    bfloat16 keys are float32 in between, so that they are rounded to their own dtype once more, not twice.

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
    wide = tuple(map(_widened, keys))
    raw = from_rope.apply(wide, pos, seq_axis=seq_axis, inverse=True)
    turned = to_rope.apply(raw, pos, seq_axis=seq_axis)
    return tuple(_ops(k).cast(y, k.dtype) for y, k in zip(turned, keys, strict=True))


class _Move:
    """The features of a head, moved from the pairing that a rope reads (or the one it writes) to another."""

    def __init__(self, rope: _RoPE, to: str, *, written: bool = False):
        _check_rope("rope", rope)
        self.source = _written(rope) if written else rope.pairing
        self.to = _values.choice("to", to, get_args(_spec.Pairing))
        self.head_dim = rope.head_dim
        self.start, self.stop = rope.rotary_start, rope.rotary_start + rope.rotary_dim
        self.blocks = rope.axes.blocks if rope.axes else 1

    def places(self, pairing: str) -> list[int]:
        """Return where the members of the pairs stand in a head: both of lane 0, both of lane 1, ..."""
        width = (self.stop - self.start) // self.blocks
        next_lane, next_member = (2, 1) if pairing == "interleaved" else (1, width // 2)
        return [
            self.start + block * width + lane * next_lane + member * next_member
            for block in range(self.blocks)
            for lane in range(width // 2)
            for member in (0, 1)
        ]

    def heads(self, w: Any, axis: int, count: int, ops: Any) -> Any:
        """Move the features of heads that stand one after another along an axis, and give heads an axis.

        By slices and changes of shape alone: no array of indices that would have to stand beside w, and
        an array that is split along whole heads stays so.
        """
        x = ops.reshape(w, (*w.shape[:axis], count, self.head_dim, *w.shape[axis + 1 :]))
        axis += 1
        before, after = x[_along(axis, 0, self.start)], x[_along(axis, self.stop, self.head_dim)]
        middle = self._pairs(x[_along(axis, self.start, self.stop)], axis, ops)
        return _joined([before, middle, after], axis, w.dtype, ops)

    def _pairs(self, x: Any, axis: int, ops: Any) -> Any:
        """Move the members of the pairs, which fill an axis of x."""
        if self.source == self.to or self.start == self.stop:
            return x
        lanes = x.shape[axis] // self.blocks // 2
        inner = (lanes, 2) if self.to == "half" else (2, lanes)
        pairs = ops.reshape(x, (*x.shape[:axis], self.blocks, *inner, *x.shape[axis + 1 :]))
        order = list(range(pairs.ndim))
        order[axis + 1], order[axis + 2] = axis + 2, axis + 1
        return ops.reshape(ops.xp.permute_dims(pairs, tuple(order)), x.shape)


def _along(axis: int, start: int, stop: int) -> tuple[Any, ...]:
    return (*(slice(None),) * axis, slice(start, stop), ...)


def _joined(pieces: list[Any], axis: int, dtype: Any, ops: Any) -> Any:
    y = ops.xp.concat(pieces, axis=axis)
    # NumPy joins arrays of the other byte order in its own.
    return y if y.dtype == dtype else ops.cast(y, dtype)


def _parts(
    order: Any, num_heads: Any, num_kv_heads: Any, groups: Any, width: int, v_width: Any
) -> list[tuple[str, int, int]]:
    """Return what one group of a fused projection holds: what it is, how many heads, how wide each."""
    q = _values.integer("num_heads", num_heads, 1)
    kv = q if num_kv_heads is None else _values.integer("num_kv_heads", num_kv_heads, 1)
    v_width = width if v_width is None else _values.integer("v_head_dim", v_width, 1)
    groups = _values.integer("groups", groups, 1)
    if not isinstance(order, str) or {*order} - {*"qkvg"} or len({*order}) < len(order):
        raise _errors.SpecError(
            f"order is {_errors.short(order)}; give the parts as they follow one another, each of 'q', 'k', "
            "'v' and 'g' (an output gate) at most once, such as 'qkv'."
        )
    if not {*order} & {*"qk"}:
        raise _errors.SpecError(f"order is {order!r}, with neither q nor k to convert; give one.")
    parts = {"q": (q, width), "k": (kv, width), "v": (kv, v_width), "g": (q, width)}
    for name in order:
        if parts[name][0] % groups:
            raise _errors.SpecError(
                f"groups is {groups}, which does not divide the {parts[name][0]} heads of {name}; give a "
                "number that does."
            )
    return [(name, parts[name][0] // groups, parts[name][1]) for name in order]


def _check_fused(w: Any, axis: int, groups: int, parts: list[tuple[str, int, int]]) -> None:
    wanted = groups * sum(heads * width for _, heads, width in parts)
    if w.shape[axis] != wanted:
        each = " + ".join(f"{groups * heads} of {name} x {width}" for name, heads, width in parts)
        raise _errors.ShapeError(
            f"w is {_errors.describe(w)}; along axis {axis} it must have {wanted} features: {each}. "
            "Give the numbers of heads, order and axis that w has."
        )


def _heads(w: Any, axis: int, head_dim: int, num_heads: Any) -> int:
    """Return how many heads there are along an axis."""
    size = w.shape[axis]
    heads = size // head_dim if num_heads is None else _values.integer("num_heads", num_heads, 1)
    if heads * head_dim != size:
        need = "whole heads" if num_heads is None else f"{heads} heads"
        raise _errors.ShapeError(
            f"w is {_errors.describe(w)}; along axis {axis} it must have {need} of {head_dim} features "
            f"(head_dim={head_dim}), and has {size}. Give the num_heads and axis of w (k may have fewer "
            "heads than q), and a rope of its head_dim."
        )
    return int(heads)


def _opened(w: Any, axis: Any, name: str = "w") -> tuple[Any, int]:
    """Return what works on an array, and an axis of it counted from the front."""
    if isinstance(w, (list, tuple)):
        raise _errors.ArrayTypeError(f"{name} is {_errors.describe(w)}; give one array at a time.")
    lib = _registry.library_of(w)
    lib.check_supported(w)
    index = axis if isinstance(axis, bool) else getattr(axis, "__index__", lambda: None)()
    if index is None or isinstance(index, bool) or not -w.ndim <= index < w.ndim:
        raise _errors.ShapeError(
            f"axis is {_errors.short(axis)}, and {name} is {_errors.describe(w)}; give an axis that it has."
        )
    if any(map(_shape_rule.is_unknown_size, w.shape)):
        raise _errors.ShapeError(
            f"{name} is {_errors.describe(w)}, of unknown size; give an array whose size is computed."
        )
    return lib.ops(w), index % w.ndim


def _written(rope: _RoPE) -> _spec.Pairing:
    return rope.out_pairing or rope.pairing


def _check_rope(name: str, rope: Any) -> None:
    if not isinstance(rope, _RoPE):
        raise _errors.SpecError(f"{name} is {_errors.describe(rope)}; give a RoPE.")


def _check_same(from_rope: Any, to_rope: Any) -> None:
    """Check that two ropes rotate the same features, and that both can."""
    for name, rope in (("from_rope", from_rope), ("to_rope", to_rope)):
        _check_rope(name, rope)
        _spec.require_plan(rope)
    for name in ("head_dim", "pairing", "blocks"):
        before, after = (getattr(rope._plan.layout, name) for rope in (from_rope, to_rope))
        if before != after:
            raise _errors.SpecError(
                f"from_rope has {name} {before!r} and to_rope {after!r}; both must rotate the "
                "same features; give two ropes that differ in frequencies, slice or amplitude."
            )


def _widened(k: Any) -> Any:
    ops = _ops(k)
    return ops.cast(k, ops.xp.float32) if _namespace.dtype_name(k) in ("float16", "bfloat16") else k


def _ops(x: Any) -> Any:
    return _registry.library_of(x).ops(x)
