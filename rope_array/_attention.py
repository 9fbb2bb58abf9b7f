"""The front function `attention_inputs`: norm, rotation and the write into a cache, in one pass."""

from typing import Any

from . import _dispatch
from ._dispatch import without_autograph
from ._errors import ArrayTypeError, SpecError, describe
from ._rotation import Rotation
from ._spec.spec import Spec, require_plan


@without_autograph
def attention_inputs(
    q: Any,
    k: Any,
    pos: Any,
    rope: Spec | None = None,
    *,
    v: Any = None,
    norm: tuple[Any, Any] | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
    rounding: str = "none",
    cache: tuple[Any, Any] | None = None,
    slots: Any = None,
    scales: tuple[float, float] = (1.0, 1.0),
    cache_seq_axis: int | None = None,
    unique_slots: bool = False,
    seq_axis: int = -2,
    out: tuple[Any, Any] | None = None,
    backend: str | None = None,
) -> Any:
    """Make the inputs of attention in one pass: norm of each head, rotation, write into a cache.

    Each head of q and k is normed (optional) and rotated; k and v are written into a cache (optional). The
    arithmetic is in float32 (float64 for float64), and each result is rounded once.

    Parameters
    ----------
    q, k : array of shape (..., S, head_dim)
        Queries and keys, of one library and one dtype, as for `rope_array.apply`. k may be None.
    pos : positions, or Rotation
        Positions as for `rope_array.apply`; or cos and sin of `RoPE.rotation`, made once for all layers.
    rope : RoPE, optional
        The model's rotary embedding; omit it if pos is a Rotation.
    v : array of shape (..., S, width), optional
        Values for the cache. v is read only, and its width may differ from the head_dim.
    norm : (q_weight, k_weight), optional
        RMSNorm [1]_ of each head before the rotation, over all its features: weights of shape (head_dim,), or
        (heads, head_dim) for weights of each head. ``(None, None)`` is a norm without weights. By default
        there is no norm.
    eps : float
        Added to the mean of squares.
    offset : float
        Added to weights that are given: 1.0 for Gemma's norm, which multiplies by 1 + weight.
    rounding : {"none", "norm", "steps"}
        Values rounded to q's dtype before the rotation: none; the normed head, as by Gemma 3 and
        `torch.nn.functional.rms_norm`; or also the head before it is multiplied by its weight, as by the norm
        of Llama, Qwen3 and GLM. So models of 16 bits keep the values of their norm.
    cache : (k_cache, v_cache), optional
        Caches of k and of v, of any strides; v_cache is None without v. A cache has the axes of k (of v)
        that slots do not have, and slots along the sequence axis. With an axis of pages, which comes first,
        slots continue from page to page: slot s is row ``s % page_size`` of page ``s // page_size``. Of
        float16, bfloat16, float32, float64, int8 or float8_e4m3fn. Memory outside the slots is not written.
    slots : array of int32 or int64
        The slot of each token: of shape (S,), or (B, S) for k with a batch. If slots of shape (S,) are given
        for a batch, the cache has an axis of the batch too. A token with a slot below 0 is not written. If a
        slot appears twice, its last token is kept.
    scales : (float, float)
        Numbers by which k and v are divided before they are rounded to int8 or float8_e4m3fn. Numbers beyond
        the dtype's range become its last: -128 and 127, or ±448. NaN becomes 0 in int8.
    cache_seq_axis : int, optional
        The sequence axis of the caches, negative; by default `seq_axis`. -3 for (pages, page_size, heads,
        head_dim), -2 for (pages, heads, page_size, head_dim).
    unique_slots : bool
        Promise that no slot appears twice. A GPU then skips the search for the last token of each slot.
    seq_axis, backend
        As for `rope_array.apply`.
    out : (array, array), optional
        Arrays for q and k, as for `rope_array.apply`: ``out=(q, k)`` works in place, also if k is None. Not
        while PyTorch records a gradient of a weight.

    Returns
    -------
    q, k : array
        The normed and rotated arrays, of the shapes and dtypes given; k is None if it was.
    cache : (k_cache, v_cache)
        If caches are given. NumPy, PyTorch and CuPy write the arrays given. JAX returns new arrays; donate
        the old ones under `jax.jit` to write in place.

    Raises
    ------
    ArrayTypeError
        An array is of a type, dtype, library or device that is not served, or cannot be written.
    ShapeError
        The shapes of q, k, v, pos, weights, caches or slots do not line up.
    PositionError
        A position, or a slot in host memory, is out of range.
    SpecError
        An option has no meaning.
    BackendError
        `backend` is no name of a backend, or the backend does not serve q.

    See Also
    --------
    rope_array.apply : The rotation alone, of any number of arrays.

    Notes
    -----
    The norm is ``(x · r) · (weight + offset)`` with ``r = 1 / sqrt(Σ x² / head_dim + eps)``. Its sum has one
    order, so the bits do not depend on the backend, the batch or the number of threads. If the squares exceed
    the largest float32, the head becomes 0, as in the models. The gradients of q, k and the weights are those
    of the map without `rounding`. Caches have a gradient in JAX only. The bits of gradients of a
    norm, and of JAX on GPUs, depend on the backend: see docs/numerics.md.

    References
    ----------
    .. [1] Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467, eq. 4.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> rope, rng = ra.RoPE(head_dim=4), np.random.default_rng(0)
    >>> q, k, v = (rng.normal(size=(2, heads, 4)).astype("float32") for heads in (8, 2, 2))
    >>> k_cache, v_cache = np.zeros((2, 3, 16, 2, 4), dtype="float32")  # 3 pages of 16 slots
    >>> q, k, cache = ra.attention_inputs(
    ...     q, k, [5, 6], rope, v=v, norm=(np.ones(4), np.ones(4)), seq_axis=-3,
    ...     cache=(k_cache, v_cache), slots=np.array([17, -1]),
    ... )
    >>> bool((k_cache[1, 1] == k[0]).all()), int(np.count_nonzero(v_cache))
    (True, 8)
    """
    if type(q) is tuple:
        raise ArrayTypeError("q is a tuple; give q and k one by one: attention_inputs(q, k, pos, rope).")
    xs = (q,) if k is None else (q, k)
    if rope is None and isinstance(pos, Rotation):
        source: Any = (pos.cos, pos.sin, pos.layout)
    else:
        plan = rope._plan if isinstance(rope, Spec) and not isinstance(pos, Rotation) else None
        if plan is None:
            plan = require_plan(_checked_rope(rope, pos))
        if plan.max_position is not None:
            _dispatch.check_max_position(q, pos, plan.max_position)
        source = (pos, plan, None)
    if norm is None and (rounding != "none" or offset != 0.0):
        raise SpecError(
            f"{'rounding' if rounding != 'none' else 'offset'} is given, and norm is None; give the weights, "
            "norm=(q_weight, k_weight), or norm=(None, None) for a norm without weights."
        )
    norm_fields = None if norm is None else (norm, eps, offset, rounding)
    cache_fields = None
    if cache is not None or v is not None or slots is not None:
        axis = seq_axis if cache_seq_axis is None else cache_seq_axis
        cache_fields = (cache, v, slots, scales, axis, unique_slots)
    elif cache_seq_axis is not None or unique_slots is not False or scales != (1.0, 1.0):
        raise SpecError(
            "scales, cache_seq_axis or unique_slots is given, and cache is None; give "
            "cache=(k_cache, v_cache), or omit them."
        )
    outs = out if k is not None else _out_of_q(out)
    ys, caches = _dispatch.attention_inputs(xs, source, (seq_axis,), norm_fields, cache_fields, outs, backend)
    if k is None:
        return ys[0], None
    return ys if cache is None else (*ys, caches)


def _checked_rope(rope: Any, pos: Any) -> Spec:
    if isinstance(pos, Rotation):
        raise SpecError("pos is a Rotation, which has its rope; omit rope.")
    if not isinstance(rope, Spec):
        raise SpecError(
            f"rope is {describe(rope)}; give a RoPE, or a Rotation as pos: attention_inputs(q, k, rotation)."
        )
    return rope


def _out_of_q(out: Any) -> Any:
    """Return the arrays for the results of a call without k."""
    if out is None:
        return None
    if type(out) is not tuple or len(out) != 2 or out[1] is not None:
        raise ArrayTypeError(f"out is {describe(out)}, and k is None; give a tuple of an array and None.")
    return out[:1]
