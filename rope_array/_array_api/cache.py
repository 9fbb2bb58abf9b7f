"""Writing keys and values into a cache by slots: the checks, and the write by operations of the Array API.

A cache has the axes of k, with slots along its sequence axis; with an axis of pages, which comes first, the
slots continue from page to page:

    k       tokens, heads, features                    sequence axis -3
    cache   pages, page size, heads, features          its sequence axis is -3; slot s is row s % page size
                                                       of page s // page size
            pages, heads, page size, features          the same with the sequence axis -2
            slots, heads, features                     without pages
"""

from numbers import Integral
from typing import Any, NamedTuple

from rope_array._dynamo import known
from rope_array._errors import ArrayTypeError, PositionError, ShapeError, SpecError, describe
from rope_array._spec.shape_rule import paired_axes, sequence_axis
from rope_array._spec.validation import positive, truth

from .library import X_DTYPES, Library, computes_in_float64, dtype_name, flat
from .norm import as_compute
from .ops import ArrayOps

QUANTISED = {"float8_e4m3fn": 448.0, "int8": 127.0}  # the largest number
CACHE_DTYPES = (*X_DTYPES, *QUANTISED)


class CacheWrite(NamedTuple):
    """The caches of a call: arguments of `rope_array.attention_inputs`, in the order that the kernel reads.

    Attributes
    ----------
    caches
        The caches of k and of v; the second may be None.
    values
        v, or None.
    slots
        An array of int32 or int64: the slot of each token; below 0 for none.
    scales
        Two numbers, by which k and v are divided; 1.0 in caches of floats.
    seq_axis
        The axis of the caches along which slots run, from the end.
    unique_slots
        Whether the caller promises that no slot appears twice.
    """

    caches: tuple[Any, Any]
    values: Any
    slots: Any
    scales: tuple[float, float]
    seq_axis: int
    unique_slots: bool


class Target(NamedTuple):
    """One cache of a call, and the rows that go into it.

    Attributes
    ----------
    name
        "k" or "v".
    x
        The array with the rows.
    cache
        The array to write.
    scale
        The number by which rows are divided.
    tokens, free
        The axes of x along which tokens run, as the axes of slots, and its others without the last.
    pages, slot_axis
        The axes of the cache along which slots run: none or (0,), and the axis within a page.
    """

    name: str
    x: Any
    cache: Any
    scale: float
    tokens: tuple[int, ...]
    free: tuple[int, ...]
    pages: tuple[int, ...]
    slot_axis: int

    @property
    def order(self) -> tuple[int, ...]:
        """The axes of the cache, the axes of slots first."""
        slots = (*self.pages, self.slot_axis)
        return (*slots, *(a for a in range(self.cache.ndim) if a not in slots))

    @property
    def num_slots(self) -> int:
        """How many slots the cache has."""
        pages: int = self.cache.shape[0] if self.pages else 1
        return int(pages * self.cache.shape[self.slot_axis])


# ---- checks ----


def checked_write(fields: tuple[Any, ...], k: Any) -> CacheWrite:
    """Return the caches of a call; which of them are given, and their numbers, are checked."""
    cache, v, slots, scales, seq_axis, unique_slots = fields
    if cache is None:
        given = "slots" if v is None else "v"
        raise ArrayTypeError(f"{given} is given, and cache is None; give cache=(k_cache, v_cache).")
    if type(cache) is not tuple or len(cache) != 2:
        raise ArrayTypeError(f"cache is {describe(cache)}; give a tuple of the caches of k and of v.")
    if k is None or slots is None:
        raise ArrayTypeError(f"cache is given, and {'k' if k is None else 'slots'} is None; give both.")
    if (v is None) != (cache[1] is None):
        given, missing = ("the cache of v", "v") if v is None else ("v", "the cache of v")
        raise ArrayTypeError(f"{given} is given, and {missing} is None; give both, or neither.")
    if not isinstance(seq_axis, Integral) or isinstance(seq_axis, bool) or int(seq_axis) > -2:
        raise ShapeError(
            f"the sequence axis of the caches is {describe(seq_axis)}; give cache_seq_axis, -2 or less: it "
            "counts from the end."
        )
    if type(scales) is not tuple or len(scales) != 2:
        raise SpecError(f"scales is {describe(scales)}; give a tuple of two positive numbers, for k and v.")
    checked_scales = positive("scales[0]", scales[0]), positive("scales[1]", scales[1])
    return CacheWrite(cache, v, slots, checked_scales, int(seq_axis), truth("unique_slots", unique_slots))


def check_cache(write: CacheWrite, k: Any, seq_axis: int, lib: Library) -> list[Target]:
    """Check caches, v and slots before anything is computed; return the targets of k and of v."""
    if not lib.has_caches:
        raise ArrayTypeError(
            f"cache is given, and arrays of {lib.name} are not written into; caches serve NumPy, PyTorch, "
            "CuPy and JAX. Omit cache, and write the results yourself."
        )
    slots = write.slots
    if not (lib.is_array(slots) or (lib.takes_numpy and hasattr(slots, "__array_interface__"))):
        raise ArrayTypeError(f"slots is {describe(slots)}; give an array of k's library, of int32 or int64.")
    if dtype_name(slots) not in ("int32", "int64"):
        raise ArrayTypeError(f"slots is {describe(slots)}; give the slot of each token as int32 or int64.")
    if lib.is_array(slots):
        check_same_device("slots", slots, "k", k, lib)
    named = [("k", k, write.caches[0], write.scales[0])]
    if write.values is not None:
        named.append(("v", write.values, write.caches[1], write.scales[1]))
    targets = []
    for name, x, cache, scale in named:
        check_cache_array(name, cache, k, scale, lib)
        targets.append(_target(name, x, cache, scale, write, seq_axis))
    _check_range(targets, slots, lib)
    return targets


def check_cache_array(name: str, cache: Any, k: Any, scale: float, lib: Library) -> None:
    """Check the library, dtype and device of a cache, and that only a quantised cache has a scale."""
    if not lib.is_array(cache):
        raise ArrayTypeError(f"the cache of {name} is {describe(cache)}; give an array of {lib.name}.")
    if dtype_name(cache) not in CACHE_DTYPES:
        raise ArrayTypeError(
            f"the cache of {name} is {describe(cache)}; give one of {', '.join(CACHE_DTYPES)}."
        )
    check_same_device(f"the cache of {name}", cache, "another array of the call", k, lib)
    if scale != 1.0 and dtype_name(cache) not in QUANTISED:
        raise SpecError(
            f"scales has {scale} for {name}, whose cache is {describe(cache)}; give 1.0, or a cache of int8 "
            "or float8_e4m3fn."
        )


def check_same_device(name: str, array: Any, other_name: str, other: Any, lib: Library) -> None:
    """Raise for an array whose library has a layout without plain arithmetic, or on another device."""
    lib.check_supported(array)
    if not lib.same_device(array, other):
        raise ArrayTypeError(
            f"{name} is on {lib.device(array)} and {other_name} on {lib.device(other)}; move one of them."
        )


def _target(name: str, x: Any, cache: Any, scale: float, write: CacheWrite, seq_axis: int) -> Target:
    """Return a cache with the axes of its rows; raise if the shapes do not fit."""
    slots, seq = write.slots, sequence_axis(x.ndim, seq_axis)
    if 1 <= slots.ndim < x.ndim and seq >= 0:
        tokens = paired_axes(x.ndim, slots.ndim, seq_axis)
        free = tuple(a for a in range(x.ndim - 1) if a not in tokens)
        num_pages = cache.ndim - len(free) - 2  # axes of pages
        slot_axis = write.seq_axis + cache.ndim
        if num_pages in (0, 1) and num_pages <= slot_axis < cache.ndim - 1:
            sizes = [cache.shape[a] for a in range(num_pages, cache.ndim) if a != slot_axis]
            fits = sizes == [x.shape[a] for a in (*free, x.ndim - 1)]
            if fits and tuple(slots.shape) == tuple(x.shape[a] for a in tokens):
                return Target(name, x, cache, scale, tokens, free, (0,)[:num_pages], slot_axis)
    raise ShapeError(
        f"{name} has the shape {tuple(x.shape)}, its cache {tuple(cache.shape)} and slots "
        f"{tuple(slots.shape)}; the sequence axis is {seq_axis}, that of the cache {write.seq_axis}. "
        f"Give slots a number for each token, and the cache the axes of {name}, with slots along its "
        "sequence axis and, if it has pages, their axis first: (pages, page size, heads, features) with "
        "cache_seq_axis=-3, (pages, heads, page size, features) with -2."
    )


def _check_range(targets: list[Target], slots: Any, lib: Library) -> None:
    """Raise for a slot beyond a cache, where slots are on the host."""
    if hasattr(slots, "__array_interface__"):
        largest = int(slots.max(initial=-1))
    else:
        largest = max(flat(lib.host_numbers(slots)), default=-1)
    for target in targets:
        if -1 < largest >= target.num_slots:  # torch.export makes a size that is compared a constant
            last = f"up to {target.num_slots - 1}, or " if target.num_slots else ""
            raise PositionError(
                f"slots has {largest}, and the cache of {target.name} {target.num_slots} slots; give slots "
                f"{last}-1 to write nothing."
            )


# ---- the write by operations of the Array API ----


def write_caches(
    write: CacheWrite, targets: list[Target], k: Any, lib: Library, ops: ArrayOps
) -> tuple[Any, Any]:
    """Write rows of k, rotated and not yet rounded, and of v; return the caches of k and v."""
    # Clipped in NumPy: without 64-bit integers, JAX would read -2**40 as 0.
    slots = write.slots if lib.is_array(write.slots) else ops.xp.asarray(write.slots.clip(-1))
    slots = ops.reshape(ops.cast(slots, _integer(ops)), (-1,))
    if not write.unique_slots:
        slots = last_of_each(slots, ops)
    written = list(write.caches)
    for i, target in enumerate(targets):
        rows = stored_values(_rows(target, k if target.name == "k" else target.x, ops), target, ops)
        size = max(1, target.cache.shape[target.slot_axis])
        index = (slots // size, slots % size) if target.pages else (slots,)
        written[i] = lib.write_rows(target.cache, target.order, index, slots >= 0, rows, ops)
    return written[0], written[1]


def _integer(ops: ArrayOps) -> Any:
    return ops.xp.int64 if ops.has_int64 else ops.xp.int32


def last_of_each(slots: Any, ops: ArrayOps) -> Any:
    """Return slots with -1 where a later token has the same slot."""
    xp = ops.xp
    order = xp.argsort(slots, stable=True)
    in_order = xp.take(slots, order, axis=0)
    # After the last one comes -1. Comparing n - 1 numbers would need 3 tokens in a program of torch.export.
    is_last = in_order != xp.concat([in_order, xp.full_like(in_order[:1], -1)], axis=0)[1:]
    back = xp.argsort(order, stable=True)
    return xp.where(xp.take(is_last, back, axis=0), slots, xp.full_like(slots, -1))


def _rows(target: Target, x: Any, ops: ArrayOps) -> Any:
    """Return x with one axis of tokens first, as the slots are in order."""
    order = (*target.tokens, *target.free, x.ndim - 1)
    x = x if order == (*range(x.ndim),) else ops.xp.permute_dims(x, order)
    return ops.reshape(x, (-1, *x.shape[len(target.tokens) :]))


def stored_values(rows: Any, target: Target, ops: ArrayOps) -> Any:
    """Return rows in the dtype of a cache; numbers beyond the range of a quantised dtype become its last.

    Rows of float64 are rounded to float32 first if the cache has narrower floats, as PyTorch and XLA do.
    """
    xp, name = ops.xp, dtype_name(target.cache)
    limit = known(QUANTISED.get(name))
    if limit is not None:
        rows = as_compute(rows, ops)
        # Stored, and an array of rows' shape: XLA would multiply by the reciprocal of a number.
        rows = rows / ops.stored(xp.full_like(rows, target.scale))
        if name == "int8":
            rows = xp.round(xp.where(rows == rows, rows, xp.zeros_like(rows)))  # NaN is 0
        rows = xp.clip(rows, -limit - (limit == 127.0), limit)
    if computes_in_float64(rows) and name not in ("float64", "float32", "int8"):
        rows = ops.cast(rows, xp.float32)
    return rows if rows.dtype == target.cache.dtype else ops.cast(rows, target.cache.dtype)
