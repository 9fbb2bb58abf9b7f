"""Make the arrays, positions and fields of a call; say whether a target takes the call."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._capability_parts import ALL_WIDTHS
from ._contract import FORMATS, largest
from ._factors import (
    FAR,
    NEAR,
    SIZES,
    WIDTH,
    CallFactors,
    fields_of,
    first_feature,
    needs_of,
    needs_of_width,
    num_pairs,
    read_call,
    shape_of_positions,
)
from ._judge import Input, Judge
from ._libraries import ArrayLibrary
from ._named_values import (
    AXES,
    BROADCAST_AXES,
    LONG_ORDERS,
    OF_EVEN_PAIRS,
    ORDERS,
    TUPLES,
    TWO_DTYPES,
    FrequenciesInArray,
    differs_by_head,
)

Ints = NDArray[np.int64]

# Longer sequences have no order, as it may give each row another position, whose exact angles take time.
_MOST_ORDERED = 130
# Calls for one x, if the target takes no batch or no heads.
_MOST_CALLS = 30
# Distinct positions of one call: each costs an exact angle for every pair.
_DISTINCT = 8


class CallInputs(NamedTuple):
    """The arguments of a call, and the numbers that the definition needs to judge it."""

    # The arrays, and the larger arrays that they are views of.
    xs: list[Input]
    larger_arrays: list[Any]
    in_tuple: bool  # whether they are given as a tuple
    # The positions for the target, and for the definition.
    pos: Any
    numbers: Any
    spec: dict[str, Any]

    @property
    def x(self) -> Any:
        """The first argument."""
        return tuple(self.xs) if self.in_tuple else self.xs[0]


def make(j: Judge, call: CallFactors, seed: int = 0) -> CallInputs:
    """Make the arguments of a call; another seed gives other numbers in x."""
    xs, larger_arrays = inputs_of(j, call, seed)
    pos, numbers = positions_of(j, call)
    return CallInputs(xs, larger_arrays, bool(call.in_tuple), pos, numbers, spec_of(j, call))


def plain_x(j: Judge) -> Input:
    """Return the array of the plain call."""
    return inputs_of(j, j.plain, 0)[0][0]


def make_at(j: Judge, numbers: Any, seed: int = 0, kind: str | None = None, **values: Any) -> CallInputs:
    """Make the arguments of a call at these positions; `values` of factors replace the plain ones.

    Positions beyond the target's reach are wrapped, and a head_dim is one that it takes.
    """
    numbers = j.within(np.asarray(numbers))
    values = {"rows": (1, 2, numbers.shape[-1]), **values}
    values["width"] = j.target.width_of(values.get("width", j.width))
    inputs = make(j, j.plain.replace(**values), seed)
    return inputs._replace(pos=j.pos(numbers, kind), numbers=numbers)


def spec_of(j: Judge, call: CallFactors) -> dict[str, Any]:
    """Return the fields of a call; make an array of frequencies anew."""
    spec = fields_of(call, j.target.defaults)
    if isinstance(frequencies := spec.get("inv_freq"), FrequenciesInArray):
        numbers = np.array(frequencies.heads or frequencies)
        frequencies.array = j.lib.asarray(numbers, frequencies.dtype)
    return spec


def arguments_of(j: Judge, text: str) -> tuple[Any, Any, dict[str, Any]]:
    """Return x, positions and fields of a judge's plain call with the values of factors in a text."""
    call = read_call(text, j.plain)
    call = call.replace(width=j.target.width_of(call.width))
    if call.rotary_start is not None:
        call = call.replace(rotary_start=min(call.rotary_start, call.width - 2))
    if call.in_tuple is True:  # q and k, which differ in heads
        call = call.replace(in_tuple="fewer_heads")
    inputs = make(j, call)
    x = tuple(x.array for x in inputs.xs) if inputs.in_tuple else inputs.xs[0].array
    return x, inputs.pos, inputs.spec


# ---- whether a call can be made ----


def fits(j: Judge, call: CallFactors) -> bool:
    """Return whether a call is valid, and its combination of values claimed."""
    return j.claims(*needs_of(call, j.plain)) and is_valid(j, call)


def is_valid(j: Judge, call: CallFactors) -> bool:
    """Return whether a call can be made of values that are claimed."""
    return (
        _slice_fits(j, call)
        and _shapes_fit(j, call)
        and _positions_fit(j, call)
        and _memory_fits(j, call)
        and _pairs_fit(j, call)
    )


def _shapes_fit(j: Judge, call: CallFactors) -> bool:
    lead = len(call.rows) - 1
    if lead < 0:
        return not (call.positions or call.axes or call.in_tuple or call.seq_axis is not None)
    if call.rows[-1] > j.target.reach + 1 and not j.claims("any_positions"):
        return False
    if call.seq_axis is not None and (call.seq_axis == -1 or not -lead - 2 <= call.seq_axis <= lead):
        return False
    if len(call.positions) > 1 and (len(call.positions) - 1 > lead or not matches_batches(j, lead)):
        return False
    looped = [size for axis, size in zip("bh", call.rows[:-1], strict=False) if axis in j.target.looped]
    return math.prod(looped) <= _MOST_CALLS and 0 not in looped


def matches_batches(j: Judge, lead: int) -> bool:
    """Return whether positions of shape (B, S) match the first of `lead` axes before the rows.

    Other code may match another axis, except for an x of shape (B, H, S, D).
    """
    if lead == 2 or (j.target.declared and j.target.angles == "exact"):
        return True
    if lead not in j.matched_ranks:
        pos, shape = np.stack([j.row(3, 5), j.row(23, 5)]), (*(2, 3, 4)[:lead], 5)
        inputs = make_at(j, pos, rows=shape, positions="BS")
        y = j.try_call(inputs.x, inputs.pos) if lead in (1, 3) else None
        j.matched_ranks[lead] = y is not None and tuple(y.shape) == inputs.xs[0].values.shape
    return j.matched_ranks[lead]


def _positions_fit(j: Judge, call: CallFactors) -> bool:
    if call.kind.startswith("python"):
        if len(call.positions) > 1 and j.target.angles != "exact":
            return False
        if not call.positions and not j.claims("python_positions[int]"):
            return False
    if call.reach < 0 and call.kind.startswith("uint"):
        return False
    if isinstance(call.order, tuple):
        return _order_fits(call)
    few = call.rows[-1:] <= (_MOST_ORDERED,) or call.order in LONG_ORDERS
    return not call.order or (call.positions.endswith("S") and few)


def _order_fits(call: CallFactors) -> bool:
    """Return whether the order has a position for every row of x, or for every row of each batch."""
    shape, of_order = shape_of_positions(call), np.shape(call.order)
    if of_order[1:]:
        return shape == of_order and not call.axes
    return (shape[-1:] or (1,)) == of_order and call.positions[-1:] in ("S", "")


def _memory_fits(j: Judge, call: CallFactors) -> bool:
    if call.layout is not None and (not call.rows or 0 in call.rows):
        return False
    if call.pos_layout is None:
        return True
    return not (call.kind.startswith("python") or not call.positions or call.axes or 0 in call.rows)


def _slice_fits(j: Judge, call: CallFactors) -> bool:
    fields = j.target.defaults
    if not claimed_width(j, call.width):
        return False
    fixed = fields.get("inv_freq")
    if fixed is not None and not call.inv_freq and (call.rotary_dim or call.rotary_start):
        return False
    start = first_feature(call, fields)
    width = call.rotary_dim if call.rotary_dim is not None else fields.get("rotary_dim")
    width = call.width - start if width is None else width
    return start >= 0 and width >= 0 and width % 2 == 0 and start + width <= call.width


def claimed_width(j: Judge, width: int) -> bool:
    """Return whether a head_dim is claimed, and holds the built-in slice."""
    if width == j.width:
        return True
    held = width not in ALL_WIDTHS or j.target.width_of(width) == width
    return bool(held and j.claims(*needs_of_width(width)))


def _pairs_fit(j: Judge, call: CallFactors) -> bool:
    if call.inv_freq and (call.base is not None or call.scaling):
        return False
    if differs_by_head(call.inv_freq) and not _heads_fit(call):
        return False
    pairs = num_pairs(call, j.target.defaults)
    # NTK scaling needs two frequencies or more in each block.
    if call.scaling and ("ntk" in call.scaling or "dynamic" in call.scaling):
        fewest_pairs = 4 if call.axes in OF_EVEN_PAIRS else 2
        if pairs < fewest_pairs:
            return False
    if call.axes is None:
        return True
    return pairs > (4 if call.axes not in ("blocks", "alternating") else 0) and (
        call.axes not in OF_EVEN_PAIRS or pairs % 2 == 0
    )


def _heads_fit(call: CallFactors) -> bool:
    """Return whether x has an axis of heads, and positions have none."""
    has_heads = len(call.rows) == 3 and len(call.positions) in (1, 2) and not call.in_tuple
    return has_heads and call.seq_axis in (None, 1, -3, -2)


def every_width(j: Judge) -> list[int]:
    """Return all claimed head_dims up to 256. If all tried ones are claimed, the other even ones are too."""
    return [width for width in range(2, 257, 2) if claimed_width(j, width)]


# ---- x ----


def inputs_of(j: Judge, call: CallFactors, seed: int) -> tuple[list[Input], list[Any]]:
    """Return the arrays of a call, and the larger arrays that they are views of."""
    axis = -2 if call.seq_axis is None else call.seq_axis
    values = np.random.default_rng(seed).standard_normal((*call.rows, call.width))
    values = np.moveaxis(values, -2, axis) if len(call.rows) > 1 or axis != -2 else values
    values = _with_numbers(values, call)
    x, larger_arrays = with_layout(j, j.array(values, call.dtype), call.layout)
    if not call.in_tuple:
        return [x], larger_arrays
    return _tuple_with(j, call, values, x), larger_arrays


def _tuple_with(j: Judge, call: CallFactors, values: NDArray[Any], x: Input) -> list[Input]:
    if call.in_tuple == "one":
        return [x]
    if call.in_tuple == "twice":
        return [x, x]
    permuted = np.random.default_rng(99).permuted(values, axis=-1)
    if call.in_tuple == "fewer_heads" and len(call.rows) == 3 and len(call.positions) < 3:
        permuted = np.concatenate([permuted, permuted], axis=1)
    # Of another dtype, if the call asks for two.
    others = [name for name in j.dtypes if name != call.dtype and j.claims("mixed_dtypes")]
    first = j.array(permuted, others[-1] if others and call.in_tuple == TWO_DTYPES else call.dtype)
    return [first, x, j.array(permuted[..., ::-1], call.dtype)][: TUPLES[call.in_tuple]]


def _with_numbers(values: NDArray[Any], call: CallFactors) -> NDArray[Any]:
    """Return the numbers of x with the values that the call asks for."""
    if call.numbers is None or not values.size:
        return values
    if call.numbers in ("nan", "infinity"):
        values = values.copy()
        values.reshape(-1)[[values.size // 3, -1]] = np.nan if call.numbers == "nan" else np.inf
        return values
    if call.numbers == "unit":
        return np.broadcast_to(np.arange(call.width) == 0, values.shape).astype(float)
    smallest = 2.0 ** (FORMATS[call.dtype][1] + 4)
    scale = largest(call.dtype) / 4 if call.numbers == "huge" else smallest
    return np.asarray((1 + np.abs(values) % 1) * scale)


def with_layout(j: Judge, x: Input, layout: str | None) -> tuple[Input, list[Any]]:
    """Return an array of the same values in other memory, and the larger array that it is a view of.

    A broadcast array repeats the first batch, head or both. An unknown layout changes nothing.
    """
    if layout in BROADCAST_AXES and x.values.ndim == 4:
        index = tuple(slice(0, 1) if axis in BROADCAST_AXES[layout] else slice(None) for axis in range(4))
        first = j.array(x.values[index], x.dtype)
        values = np.broadcast_to(first.values, x.values.shape)
        return Input(j.lib.expanded(first.array, values.shape), values, x.dtype), []
    for name, array, larger_arrays in views_of(j, x) if layout not in (None, "contiguous") else ():
        if name == layout:
            return x._replace(array=array), larger_arrays
    return x, []


def views_of(j: Judge, x: Input) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield names, arrays of the values of x in other memory, and the larger arrays around them."""
    if x.values.ndim == 4:
        yield from ((_layout_name(name), array, []) for name, array in j.lib.strided(x.array))
        if j.claims("same_bits"):  # other code need not read such memory
            yield from ((_layout_name(name), array, []) for name, array in j.lib.exotic(x.array))
    for name, array, larger_array in j.lib.inside(x.array):
        yield _layout_name(name), array, [larger_array]


def layouts_of(lib: ArrayLibrary) -> list[str]:
    """Return the names of all layouts of x that a library has."""
    array = lib.asarray(np.zeros((*SIZES, WIDTH)), "float32")
    inside = ((name, view) for name, view, _ in lib.inside(array))
    views = (*lib.strided(array), *lib.exotic(array), *inside)
    return [*dict.fromkeys(_layout_name(name) for name, _ in views), *BROADCAST_AXES]


def _layout_name(name: str) -> str:
    return name.replace(" ", "_")


# ---- positions ----


def positions_of(j: Judge, call: CallFactors) -> tuple[Any, Any]:
    """Return positions for the target, and their numbers for the definition."""
    shape = shape_of_positions(call)
    numbers = _drawn_positions(j, call, (*shape, num_coordinates(j, call)) if call.axes else shape)
    if call.kind.startswith("python"):
        return _of_python(j, call.kind.removeprefix("python").strip("_"), numbers)
    if "float" in call.kind:
        numbers = np.minimum(numbers + 0.25, j.target.reach).astype(_float_of(j, call))
        return j.pos(numbers, numbers.dtype.name), numbers
    if call.pos_layout == "expanded":  # a view of the first row for all rows
        numbers = np.broadcast_to(numbers[:1], numbers.shape) if numbers.ndim > 1 else numbers
    return with_position_layout(j, numbers, call.kind, call.pos_layout), numbers


def _of_python(j: Judge, name: str, numbers: Ints) -> tuple[Any, NDArray[Any]]:
    """Return positions as values of a type of Python, and their numbers."""
    if name.startswith("float"):
        numbers = np.minimum(numbers + 0.25, j.target.reach)
    if name == "range":
        first, step = (*numbers.tolist(), 0)[0], int(np.diff(numbers[:2]).sum()) or 1
        row = range(first, first + step * len(numbers), step)
        fits = -j.target.depth <= min(row) and max(row) <= j.target.reach
        row = row if fits else range(len(numbers))
        return row, np.array(row)
    values: Any = numbers.tolist() if numbers.ndim else numbers.item()
    return tuple(values) if name.endswith("tuple") else values, numbers


def num_coordinates(j: Judge, call: CallFactors) -> int:
    """Return the number of coordinates of each position."""
    axes = AXES[call.axes](num_pairs(call, j.target.defaults))
    return int(axes.get("count") or 1 + max(a for a in axes["coordinates"] if a is not None))


def _float_of(j: Judge, call: CallFactors) -> str:
    """Return the dtype of float positions: an angle that is a product is as exact as its position."""
    asks_for_float64 = call.kind == "float64" or (call.dtype == "float64" and j.target.angles == "float64")
    use_float64 = asks_for_float64 and j.claims("float_positions[float64]")
    return "float64" if use_float64 or not j.claims("float_positions[float32]") else "float32"


def _drawn_positions(j: Judge, call: CallFactors, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return positions in their order; by default drawn out of a few, the same few for each range."""
    low, high = _bounds(j, call)
    if not j.claims("any_positions"):
        row = j.row(max(low, high - 8), shape[-1] if shape else 1)
        return np.broadcast_to(row if shape else row[0], shape)
    if isinstance(call.order, tuple):
        numbers = np.array(call.order)
        numbers = numbers if numbers.shape == shape else _ordered(numbers, call, shape)
        return _within(j, call, numbers).reshape(shape)
    if call.order:
        order = (ORDERS | LONG_ORDERS)[call.order]
        return np.asarray(low + _ordered(order(shape[len(call.positions) - 1]), call, shape)
                          % (high - low + 1))  # fmt: skip
    few = np.random.default_rng(0).integers(low, high, _DISTINCT, endpoint=True)
    few[0] = high
    distinct = _DISTINCT if call.width <= 32 else 2
    return np.asarray(few[np.random.default_rng(len(shape) + sum(shape)).integers(0, distinct, shape)])


def _ordered(row: Ints, call: CallFactors, shape: tuple[int, ...]) -> Ints:
    """Return a row of positions with a start for each batch; with axes, coordinates of an image."""
    lead = shape[: len(call.positions) - 1]
    batches = np.arange(math.prod(lead))
    # The first and last batches have equal positions, too.
    starts = 11 * batches * (batches < len(batches) - 1) if call.order == "same_ends" else 11 * batches
    numbers = starts.reshape(*lead, 1) + row
    if not call.axes:
        return numbers
    return np.stack([numbers // 2, numbers % 2, numbers + 3, numbers // 3][: shape[-1]], -1)


def _within(j: Judge, call: CallFactors, numbers: Ints) -> Ints:
    """Return the positions of a call; large ones modulo the number of positions that it takes."""
    far = _furthest(j, call)
    return np.asarray(np.where(numbers > far, numbers % (far + 1), j.within(numbers)))


def _furthest(j: Judge, call: CallFactors) -> int:
    # Beyond 2^15 float32 angles may exceed their bound; accuracy_* report it.
    inexact = j.target.angles == "float32" or "float" in call.kind
    far: int = min(j.target.reach, 2**15) if inexact else j.target.reach
    return min(far, int(np.iinfo(call.kind).max)) if call.kind in j.lib.integers else far


def _bounds(j: Judge, call: CallFactors) -> tuple[int, int]:
    far = min(_furthest(j, call), FAR)
    if call.reach < 0:
        return max(call.reach, -far, -j.target.depth), -1
    far = min(far, call.reach)
    return (far // 2 if far > NEAR else 0), far


def with_position_layout(j: Judge, numbers: NDArray[Any], dtype: str, layout: str | None) -> Any:
    """Return integer positions in memory of a layout, a name in `POSITION_LAYOUTS`."""
    pos = j.pos(numbers, dtype)
    if layout is None:
        return pos
    if layout in ("column", "part"):
        columns = j.pos(np.stack([numbers, numbers], -1), dtype)
        longer = j.pos(np.concatenate([numbers, numbers, numbers], -1), dtype)
        count = numbers.shape[-1]
        return columns[..., 1] if layout == "column" else longer[..., count : 2 * count]
    if layout in ("reversed", "third") and numbers.ndim == 1:
        index = np.s_[::-1] if layout == "reversed" else np.s_[::3]
        array = (
            numbers[::-1] if layout == "reversed" else np.repeat(numbers, 3) + np.arange(3 * len(numbers)) % 3
        )
        view = j.lib.part_of(j.pos(array, dtype), index)
        return pos if view is None else view
    if layout == "transposed" and numbers.ndim > 1:
        return j.lib.permute(j.pos(np.ascontiguousarray(numbers.T), dtype), tuple(range(numbers.ndim))[::-1])
    if layout == "expanded" and numbers.ndim > 1:
        return j.lib.expanded(j.pos(numbers[:1], dtype), numbers.shape)
    names = (*j.lib.exotic(pos), *(("shifted", array) for _, array, _ in j.lib.inside(pos)))
    return next((array for name, array in names if _layout_name(name) == layout), pos)
