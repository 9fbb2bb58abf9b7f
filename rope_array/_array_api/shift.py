"""Moving cached keys to other positions: rows of caches, rotated in place by the distances of their slots."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

from rope_array._errors import ArrayTypeError, PositionError, ShapeError, describe
from rope_array._spec.plan import Plan
from rope_array._spec.shape_rule import check_row_of_coordinates, sequence_axis, without_coordinates
from rope_array._spec.validation import integer

from .cache import QUANTISED, Target, check_cache_array, check_same_device, last_of_each, stored_values
from .library import Library, computes_in_float64, dtype_name, numpy_library
from .norm import as_compute
from .ops import ArrayOps
from .out import check_apart
from .pairs import join
from .position_input import parse
from .source import Positions, Source


class KeyShift(NamedTuple):
    """A checked shift of rows of caches by one rope; see `rope_array.convert.shift_keys`.

    Row ``slots[t]`` of each cache becomes ``round(rotate(row))``, in float32 (float64 for float64), rounded
    as by `cache.stored_values`. Features outside the slice, and all else, keep their bits.

    Attributes
    ----------
    caches
        Arrays of one library and compute dtype, with the axes of the caches of `rope_array.attention_inputs`.
    slots
        An array of int32 or int64, of shape (T,), in which only numbers below 0 appear twice: they are none.
    source
        The distances, of the shape (T,) or () without coordinates, and a plan with an amplitude of 1.
    seq_axis
        The axis of the caches along which slots run, from the end.
    has_pages
        Whether the first axis of the caches has pages.
    """

    caches: tuple[Any, ...]
    slots: Any
    source: Source
    seq_axis: int
    has_pages: bool


Layer = tuple[Any, Plan | None]  # keys, and the plan that rotates them or None


def check_shifts(
    lib: Library, layers: list[Layer], delta: Any, seq_axis: Any, slots: Any, pages: Any
) -> list[tuple[list[int], KeyShift]]:
    """Check a whole call before anything is written; return shifts, and the indices of their layers."""
    rows, numbers = ("slots", slots) if pages is None else ("pages", pages)
    if not lib.has_caches:
        raise ArrayTypeError(
            f"{rows} is given, and arrays of {lib.name} are not written into; {rows} serves NumPy, PyTorch, "
            f"CuPy and JAX. Omit {rows}, and write the rows yourself."
        )
    groups: dict[tuple[Any, ...], list[int]] = {}
    targets: dict[int, Target] = {}
    first, ops = layers[0][0], lib.ops(layers[0][0])
    for i, (keys, plan) in enumerate(layers):
        if plan is not None:
            name = f"keys[{i}]" if len(layers) > 1 else "keys"
            check_cache_array(name, keys, first, 1.0, lib)
            target = targets[i] = _target(name, keys, plan, seq_axis, rows)
            size = keys.shape[target.slot_axis] if rows == "pages" else None
            group = plan, target.slot_axis - keys.ndim, bool(target.pages), size, computes_in_float64(keys)
            if 0 not in keys.shape:
                groups.setdefault(group, []).append(i)
    numbers = _checked_numbers(rows, numbers, [*targets.values()], first, lib, ops)
    check_apart([(target.name, target.cache) for target in targets.values()], (numbers, delta), lib)
    shifts = []
    for (plan, axis, has_pages, size, _), members in groups.items():
        caches = tuple([targets[i].cache for i in members])
        lib.check_mix((*caches, numbers), Positions(delta, plan))
        shape, of_rows = tuple(numbers.shape), numbers
        if size is not None:  # the slots of all rows of pages; a page far outside the pools would overflow
            shape, row = (*shape, size), ops.xp.arange(size, dtype=numbers.dtype, **ops.creation_kwargs)
            pages = ops.xp.clip(numbers, -1, max(cache.shape[0] for cache in caches))
            of_rows = ops.reshape(pages[:, None] * size + row, (-1,))
        source = Positions(_distances(delta, plan, rows, shape, first, lib, ops), plan)
        shifts.append((members, KeyShift(caches, of_rows, source, axis, has_pages)))
    return shifts


def _target(name: str, keys: Any, plan: Plan, seq_axis: Any, rows: str) -> Target:
    """Return an array with the axes of its rows; raise if it has no rows of such keys."""
    axis, head_dim = sequence_axis(keys.ndim, seq_axis), plan.layout.head_dim
    # Before slots are pages, heads (if slots run along the last axis but one), both, or neither.
    if axis not in (1 + (axis == keys.ndim - 2), rows == "pages") or keys.shape[-1] != head_dim:
        raise ShapeError(
            f"{name} has the shape {tuple(keys.shape)}, seq_axis is {seq_axis}, the rope has {head_dim=}. "
            "Give (pages, page size, heads, head_dim) with seq_axis=-3, or (pages, heads, page size, "
            "head_dim) with -2; for slots also (slots, heads, head_dim) with -3. Rows without heads need an "
            "axis of one head, and heads without pages a first axis of one page: reshape them. Of keys and "
            "values in one array give the keys, a view: pool[0] or pool[:, 0]."
        )
    return Target(name, keys, keys, 1.0, (), (), (0,)[:axis], axis)


def _checked_numbers(
    rows: str, numbers: Any, targets: list[Target], like: Any, lib: Library, ops: ArrayOps
) -> Any:
    """Return slots or pages as an array in which only numbers below 0 appear twice."""
    dtype = ops.xp.int64 if ops.has_int64 else ops.xp.int32
    host: list[int] | None
    is_array, is_numpy = lib.is_array(numbers), hasattr(numbers, "__array_interface__")
    if isinstance(numbers, (list, tuple, range)):
        host = [integer(f"{rows}[{i}]", n, -(2**63)) for i, n in enumerate(numbers)]
    elif (
        not (is_array or (lib.takes_numpy and is_numpy))
        or dtype_name(numbers) not in ("int32", "int64")
        or numbers.ndim != 1
    ):
        raise ArrayTypeError(
            f"{rows} is {describe(numbers)}; give a sequence of integers, or an array of {lib.name} with one "
            "axis, of int32 or int64."
        )
    else:
        host = numbers.tolist() if is_numpy else lib.host_numbers(numbers)
    if is_array:
        check_same_device(rows, numbers, "keys", like, lib)
        numbers = ops.cast(numbers, dtype)
    if host is None:  # on a device, or unknown while a compiler traces
        return last_of_each(numbers, ops)
    for target in targets:
        size = target.num_slots if rows == "slots" else target.cache.shape[0]
        if max(host, default=-1) >= size:
            raise PositionError(
                f"{rows} has {max(host)}, and {target.name}, of the shape {tuple(target.cache.shape)}, has "
                f"{size} {rows} by this seq_axis; give {rows} below {size}, or -1 to move none."
            )
    for number, following in pairwise(sorted(host)):
        if 0 <= number == following:
            raise PositionError(f"{rows} has {number} more than once; give it once, with its whole distance.")
    # Clipped: without 64-bit integers, JAX would read -2**40 as 0.
    return numbers if is_array else ops.from_values([max(n, -1) for n in host], dtype)


def _distances(
    delta: Any, plan: Plan, rows: str, shape: tuple[int, ...], like: Any, lib: Library, ops: ArrayOps
) -> Any:
    """Return a distance for each slot, or one for all; `shape` is (slots,), or (pages, page size)."""
    parsed = parse(delta, like, lib)
    lead = without_coordinates(parsed.shape, plan)
    coordinates = parsed.shape[len(lead) :]
    if coordinates and lead == (1,) and shape[:1] != (1,):  # one for all, without a doubt
        delta, lead = delta[0], ()
    elif coordinates and not lead and lib.has_fixed_sizes(like):
        check_row_of_coordinates((*shape, 1), 0, coordinates[0], "delta", rows)
    if lead and lead not in (shape, shape[:1]):
        raise ShapeError(
            f"delta has the shape {parsed.shape}; give a distance for all {rows}, or distances of the shape "
            f"{(*shape[:1], *coordinates)}{f' or {(*shape, *coordinates)}' if rows == 'pages' else ''}."
        )
    if not lead or len(shape) == 1:
        return delta
    if parsed.form in ("range", "numbers"):
        return [d for row in delta for d in (row if lead == shape else [row] * shape[1])]
    xp = numpy_library().xp if parsed.form == "numpy" else ops.xp  # JAX may have no float64
    each = delta if lead == shape else xp.broadcast_to(delta[:, None], (*shape, *coordinates))
    return xp.reshape(each, (-1, *coordinates))


def shift_by_parts(
    shift: KeyShift, make_tables: Callable[..., Any], rotate: Callable[..., Any], lib: Library
) -> tuple[Any, ...]:
    """Take rows, rotate them by a backend, and write them; return the caches."""
    ops, layout, tables, written = lib.ops(shift.caches[0]), shift.source.layout, None, []
    kept = shift.slots >= 0
    slots = ops.xp.where(kept, shift.slots, ops.xp.zeros_like(shift.slots))
    for cache in shift.caches:
        axis = cache.ndim + shift.seq_axis
        target = Target("", cache, cache, 1.0, (), (), (0,)[: shift.has_pages], axis)
        size = max(1, cache.shape[axis])
        index = (slots // size, slots % size) if shift.has_pages else (slots,)
        rows = ops.xp.permute_dims(cache, target.order)[index]
        is_quantised = dtype_name(cache) in QUANTISED
        x = as_compute(rows, ops) if is_quantised else rows
        tables = make_tables(shift.source, x) if tables is None else tables
        y = rotate(x, tables, (0,))
        if is_quantised:  # the features outside the slice keep their bits
            y = as_compute(stored_values(y, target, ops), ops)[..., layout.start : layout.stop]
            y = ops.cast(join([x[..., : layout.start], y, x[..., layout.stop :]], ops), cache.dtype)
        written.append(lib.write_rows(cache, target.order, index, kept, y, ops))
    return tuple(written)
