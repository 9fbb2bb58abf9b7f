"""The entry points of the array-api backend: rotate a checked call, and make cos and sin; helpers on tables.

The backends of PyTorch and JAX call these functions too.
"""

from typing import Any

from rope_array._errors import ArrayTypeError, describe
from rope_array._spec.plan import PAIRINGS, Layout, Plan
from rope_array._spec.validation import choice

from .angles import cos_sin, rounded_angle
from .library import X_DTYPES, Library, computes_in_float64, dtype_name
from .ops import ArrayOps
from .pairs import align_and_rotate, align_tables_to, join, split_blocks
from .position_input import parse
from .source import Call, CallOptions, Positions, Tables

Arrays = tuple[Any, ...]
CosSin = tuple[Any, Any]


def rotate_by_array_api(call: Call) -> Arrays:
    """Rotate the arrays of a call."""
    source = call.source
    if isinstance(source, Tables):
        return rotate_by_tables(call.xs, source, call.options, call.ops)
    integers, fraction = call.pos.read(call.lib, call.ops, any(call.float64))
    return rotate_by_positions(call.xs, call.float64, integers, fraction, source.plan, call.options, call.ops)


def rotate_by_positions(
    xs: Arrays,
    float64: tuple[bool, ...],
    integers: Any,
    fraction: Any,
    plan: Plan,
    options: CallOptions,
    ops: ArrayOps,
    rotate_one: Any = align_and_rotate,
) -> Arrays:
    """Rotate each of xs by integers and fractions, with tables once per compute dtype."""
    tables = {use_64: cos_sin(integers, fraction, plan, use_64, ops) for use_64 in {*float64}}
    ys = []
    for x, use_float64 in zip(xs, float64, strict=True):
        ys.append(rotate_one(x, *tables[use_float64], plan.layout, options, ops))
    return tuple(ys)


def rotate_by_tables(
    xs: Arrays, tables: Tables, options: CallOptions, ops: ArrayOps, rotate_one: Any = align_and_rotate
) -> Arrays:
    """Rotate each of xs by tables, which may be wider than an array's arithmetic."""
    ys = []
    for x in xs:
        cos, sin = cast_tables(tables, computes_in_float64(x), ops)
        ys.append(rotate_one(x, cos, sin, tables.layout, options, ops))
    return tuple(ys)


def make_tables(source: Positions, like: Any, lib: Library, ops: ArrayOps | None = None) -> CosSin:
    """Return cos and sin at checked positions, in the compute dtype of `like`.

    The shape is that of the positions and (pairs,); with frequencies of each head it is that of
    `with_axes_of`, with the axis of heads before the sequence.
    """
    use_float64, ops = computes_in_float64(like), ops or lib.ops(like)
    pos = parse(source.values, like, lib)
    integers, fraction = pos.read(lib, ops, use_float64, split=not source.plan.takes_angles)
    integers, fraction = (with_axes_of(like, p, source) for p in (integers, fraction))
    return cos_sin(integers, fraction, source.plan, use_float64, ops, source.inv_freq)


def angle_of(source: Positions, like: Any, lib: Library) -> Any:
    """Return the angles of frequencies in an array, rounded: for their gradient, not for cos and sin."""
    if source.plan.takes_angles:
        return source.values
    use_float64, ops = computes_in_float64(like), lib.ops(like)
    integers, fraction = parse(source.values, like, lib).read(lib, ops, use_float64)
    integers, fraction = (with_axes_of(like, p, source) for p in (integers, fraction))
    return rounded_angle(integers, fraction, source.plan, use_float64, ops, source.inv_freq)


def with_axes_of(like: Any, pos: Any, source: Positions) -> Any:
    """Give positions axes of size 1 for frequencies of each head: as many as `like` has without its heads."""
    if pos is None or source.inv_freq is None or source.inv_freq.ndim == 1:
        return pos
    coordinates = source.plan.coordinates is not None
    return pos[(None,) * (like.ndim - 2 - pos.ndim + coordinates) + (...,)]


def aligned_tables(call: Call) -> list[CosSin]:
    """Return for each array of a call the tables in its compute dtype and with its axes."""
    source, ops = call.source, call.ops
    if isinstance(source, Tables):
        by_dtype = {use_64: cast_tables(source, use_64, ops) for use_64 in {*call.float64}}
    else:
        integers, fraction = call.pos.read(call.lib, ops, any(call.float64))
        plan = source.plan
        by_dtype = {use_64: cos_sin(integers, fraction, plan, use_64, ops) for use_64 in {*call.float64}}
    return [
        align_tables_to(x, *by_dtype[use_float64], call.options, ops)
        for x, use_float64 in zip(call.xs, call.float64, strict=True)
    ]


def cast_tables(tables: Tables, use_float64: bool, ops: ArrayOps) -> CosSin:
    """Return cos and sin, cast to float32 for float32 arithmetic."""
    if use_float64:
        return tables.cos, tables.sin
    cos, sin = (ops.cast(t, ops.xp.float32) if computes_in_float64(t) else t for t in tables.arrays)
    return cos, sin


def arranged(layout: Layout, pairing: Any) -> Layout:
    """Return a layout with another pairing, for tables of full width; the layout itself if it is None."""
    return layout if pairing is None else layout._replace(pairing=choice("pairing", pairing, PAIRINGS))


def one_per_feature(table: Any, layout: Layout, ops: ArrayOps) -> Any:
    """Return a table with the number of each pair at both of its features: shape (..., rotary_dim)."""
    if not layout.num_pairs:
        return table
    shape = (*table.shape[:-1], 2 * layout.num_pairs)
    if layout.pairing == "interleaved":
        return ops.reshape(join([table[..., None]] * 2, ops), shape)
    if layout.blocks == 1:
        return join([table] * 2, ops)
    return ops.reshape(join([split_blocks(table, layout, ops)] * 2, ops), shape)


def cast_table(table: Any, dtype: Any, ops: ArrayOps) -> Any:
    """Cast a table to a floating dtype that the caller gave."""
    try:
        cast = ops.cast(table, dtype)
    except (AttributeError, TypeError):  # array-api-strict raises the first
        raise ArrayTypeError(f"dtype is {describe(dtype)}; give a dtype of the tables' library.") from None
    if dtype_name(cast) not in X_DTYPES:
        raise ArrayTypeError(
            f"dtype is {describe(dtype)}; give one of real floating point: {', '.join(X_DTYPES)}."
        )
    return cast


def one_per_pair(table: Any, layout: Layout, ops: ArrayOps) -> Any:
    """Return a table with one number for each pair; of a table with one for each feature, keep half."""
    if table.shape[-1] == layout.num_pairs:
        return table
    if layout.pairing == "interleaved":
        return table[..., ::2]
    if layout.blocks == 1:
        return table[..., : layout.num_pairs]
    first = split_blocks(table, layout, ops)[..., : layout.num_pairs // layout.blocks]
    return ops.reshape(first, (*table.shape[:-1], layout.num_pairs))


def inverse_tables(cos: Any, sin: Any, amplitude: float | None, ops: ArrayOps) -> CosSin:
    """Return the tables of the inverse; the amplitude is None if it varies by position and pair."""
    product = ops.product
    if amplitude is not None:
        # One factor undoes the amplitude in the tables, the other the amplitude in x. Two products, as the
        # square of the factor may overflow the dtype.
        factor = 1.0 / amplitude
        return product(product(cos, factor), factor), product(product(-sin, factor), factor)
    # Divide by the magnitude first: squares of cos and sin could overflow or underflow.
    size = abs(cos) + abs(sin)
    c, s = cos / size, sin / size
    square = product(c, c) + product(s, s)
    return c / square / size, -s / square / size
