"""Moving cached keys to other positions in place: rows of pools, rotated by the distances of their slots."""

from typing import Any, NamedTuple

from .source import Source


class KeyShift(NamedTuple):
    """A checked shift of rows of caches by one rope; see `rope_array.convert.shift_keys`.

    Row ``slots[t]`` of each cache becomes the rotated row: ``round(rotate(row · scale) / scale)``, in float32
    (float64 for float64), each head by the same angles, with an amplitude of 1. int8 and float8_e4m3fn are
    rounded as by `cache.stored_values`. Nothing else in the caches changes, nor features outside the slice.

    Attributes
    ----------
    caches
        The arrays of keys, of one library and compute dtype: axes as the caches of
        `rope_array.attention_inputs`, with pages first if there are any, and slots along `seq_axis`. Their
        numbers of axes, slots and heads, and their dtypes, may differ.
    slots
        An array of int32 or int64, of shape (T,), of the caches' library or NumPy's: a row each. Below 0 for
        none. No other slot appears twice.
    source
        The distances, of the shape (T,) or () without coordinates.
    scales
        A number for each cache: the row is the stored numbers times it. 1.0 for floats.
    seq_axis
        The axis of the caches along which slots run, from the end.
    has_pages
        Whether the first axis of the caches has pages: (pages, slots, features) and (heads, slots, features)
        have as many axes.
    """

    caches: tuple[Any, ...]
    slots: Any
    source: Source
    scales: tuple[float, ...]
    seq_axis: int
    has_pages: bool
