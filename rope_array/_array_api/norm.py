"""RMSNorm of each head before the rotation, by operations of the Array API.

    r = 1 / sqrt(Σ x² / D + eps)        D features of a head
    n = (x · r) · (weight + offset)     Zhang and Sennrich, arXiv 1910.07467, eq. 4

The arithmetic is in the compute dtype. Its sum has one order, which every kernel repeats, so that the bits
do not depend on the backend: 64 columns, then halves onto halves. For 4 columns and 10 features:

    x²          0  1  2  3
              + 4  5  6  7
              + 8  9             missing features are zeros
              = a  b  c  d
    folded    (a + c)  (b + d)
              (a + c) + (b + d)

The error of n is at most (5 + ceil(D / 64) / 4) · eps · |n|, where eps is that of the compute dtype, unless a
square overflows or Σ x² / D + eps is below 2^-100. docs/numerics.md counts the roundings.
"""

from operator import index
from typing import Any, NamedTuple

from rope_array._errors import ArrayTypeError, SpecError, describe
from rope_array._spec.validation import choice, number

from .library import computes_in_float64
from .ops import ArrayOps
from .pairs import join

ROUNDINGS = ("none", "norm", "steps")
COLUMNS = 64


class Norm(NamedTuple):
    """The RMSNorm of the heads of q and k: arguments of `rope_array.attention_inputs`.

    Attributes
    ----------
    weights
        For each array of the call its weight, of shape (head_dim,) or (heads, head_dim), or None.
    eps, offset, rounding
        See `rope_array.attention_inputs`.
    """

    weights: tuple[Any, ...]
    eps: float
    offset: float
    rounding: str


def checked_norm(fields: tuple[Any, ...], num_xs: int) -> Norm:
    """Return the norm of a call, its numbers checked; `fields` has the weights of q and of k."""
    weights, eps, offset, rounding = fields
    if type(weights) is not tuple or len(weights) != 2:
        raise ArrayTypeError(
            f"norm is {describe(weights)}; give a tuple of the weights of q and of k, each an array or None."
        )
    remedy = "a finite number, 0 or more"
    if (checked_eps := number("eps", eps, remedy)) < 0:
        raise SpecError(f"eps is {checked_eps}; give {remedy}.")
    rounded = choice("rounding", rounding, ROUNDINGS)
    return Norm(weights[:num_xs], checked_eps, number("offset", offset), rounded)


def normalise(x: Any, weight: Any, norm: Norm, seq_axis: int, ops: ArrayOps) -> Any:
    """Return the normed heads of x in its compute dtype, rounded to x's dtype between as `norm` has it."""
    scale = None if weight is None else scale_of(weight, norm.offset, x, seq_axis, ops)
    return normalise_by_scale(x, scale, norm, ops)


def normalise_by_scale(x: Any, scale: Any, norm: Norm, ops: ArrayOps) -> Any:
    """Return the normed heads of x, times a scale in its compute dtype; see `normalise`."""
    values = as_compute(x, ops)
    n = values * inverse_rms(values, norm.eps, ops)
    if norm.rounding == "steps":
        n = _rounded(n, x.dtype, ops)
    if scale is not None:
        n = n * scale
    return n if norm.rounding == "none" else _rounded(n, x.dtype, ops)


def inverse_rms(values: Any, eps: float, ops: ArrayOps) -> Any:
    """Return 1 / sqrt(mean of squares + eps) of each head, with a last axis of size 1."""
    # Rounded: XLA would contract a product and a sum into one operation.
    mean = sum_in_order(ops.rounded(values * values), ops) * (1.0 / _width(values))
    return ops.inverse_sqrt(ops.rounded(mean) + eps)


def sum_in_order(terms: Any, ops: ArrayOps) -> Any:
    """Return the sum of non-negative terms, or of any, over the last axis in the order of this module."""
    width = _width(terms)
    size = min(COLUMNS, 1 << max(0, width - 1).bit_length())  # columns of zeros change no sum
    total = terms[..., :size] if size < width else terms
    for start in range(size, width, size):
        part = terms[..., start : min(start + size, width)]
        rest = _width(part)
        added = total[..., :rest] + part
        total = added if rest == size else join([added, total[..., rest:]], ops)
    while size > 1:
        size //= 2
        rest = _width(total) - size  # fewer than `size` if the head is narrower than its columns
        if rest <= 0:
            continue
        added = total[..., :rest] + total[..., size:]
        total = added if rest == size else join([added, total[..., rest:size]], ops)
    return total


def _width(x: Any) -> int:
    """Return the size of the last axis as an int; for torch.jit.trace sizes are tensors."""
    return index(x.shape[-1])


def scale_of(weight: Any, offset: float, x: Any, seq_axis: int, ops: ArrayOps) -> Any:
    """Return weight + offset in the compute dtype of x, with the axes of x."""
    scale = as_compute(weight, ops, like=x)
    if offset:
        scale = scale + offset
    if weight.ndim == 2 and heads_axis(x, seq_axis) == x.ndim - 3:  # heads before the sequence
        scale = scale[:, None, :]
    return scale[(*(None,) * (x.ndim - scale.ndim), ...)]


def heads_axis(x: Any, seq_axis: int) -> int:
    """Return the axis of heads: the last but for features and sequence; -1 if there is none."""
    seq = seq_axis % x.ndim
    return x.ndim - 3 if seq == x.ndim - 2 else x.ndim - 2 if x.ndim > 2 else -1


def as_compute(array: Any, ops: ArrayOps, like: Any = None) -> Any:
    """Cast an array to the compute dtype of x, by default its own."""
    xp = ops.xp
    dtype = xp.float64 if computes_in_float64(array if like is None else like) else xp.float32
    return array if array.dtype == dtype else ops.cast(array, dtype)


def _rounded(values: Any, dtype: Any, ops: ArrayOps) -> Any:
    """Round values to a dtype, and return them in their own."""
    return values if values.dtype == dtype else ops.cast(ops.stored(ops.cast(values, dtype)), values.dtype)
