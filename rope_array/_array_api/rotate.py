"""The path that every library has: check, positions to tables, tables and x to y. Array API only.

A fast path offers the same three functions, `apply`, `tables` and `rotate`; most are made of these.
"""

from collections.abc import Iterator
from typing import Any

from rope_array._errors import ArrayTypeError, RoPEError, ShapeError, describe
from rope_array._spec.plan import Layout, Plan
from rope_array._spec.shape_rule import check_line_up, placement, sequence_axis, unknown, without_coordinates

from . import position_input as _host
from .angles import by_lane, cos_sin, floats, product_cos_sin, split
from .library import X_DTYPES, Library, dtype_name
from .ops import Kit
from .pairs import rotate as turn

Arrays = tuple[Any, ...]


def apply(xs: Arrays, pos: Any, plan: Plan, seq_axis: int, lib: Library) -> Arrays:
    """Rotate each of xs by its positions; angles are made once for each precision."""
    whole, fraction = positions(xs, pos, plan, seq_axis, lib)
    return compute(xs, whole, fraction, plan, seq_axis, lib.kit(xs[0]))


def positions(xs: Arrays, pos: Any, plan: Plan, seq_axis: int, lib: Library) -> tuple[Any, Any]:
    """Check a whole call, and hand its positions to the library (see `_host.read`)."""
    check_arrays(xs, plan.layout, lib)
    own = lib.owns(pos)
    _host.check(pos, xs[0], own, lib)
    shape = without_coordinates(positions_shape(pos, own), plan)
    for x in xs:
        check_line_up(x.shape, shape, seq_axis)
    return (pos, None) if own else _host.read(pos, lib.host_kit(xs[0]), any(map(is_double, xs)))


def positions_shape(pos: Any, own: bool) -> tuple[Any, ...]:
    """Return the shape of positions, which are the library's own array or Python's."""
    return tuple(pos.shape) if own else _host.shape_of(pos)


def compute(xs: Arrays, whole: Any, fraction: Any, plan: Plan, seq_axis: int, kit: Kit) -> Arrays:
    """Rotate checked arrays by positions that the library has."""
    if len(xs) == 1:
        cos, sin = make_tables(whole, fraction, plan, is_double(xs[0]), kit)
        return (turn_one(xs[0], cos, sin, plan.layout, seq_axis, kit),)
    made = tables_by_precision(xs, whole, fraction, plan, kit)
    return tuple(turn_one(x, *made[is_double(x)], plan.layout, seq_axis, kit) for x in xs)


def tables_by_precision(
    xs: Arrays, whole: Any, fraction: Any, plan: Plan, kit: Kit
) -> dict[bool, tuple[Any, Any]]:
    """Make cos and sin for each precision of xs; the key tells whether it is float64."""
    return {double: make_tables(whole, fraction, plan, double, kit) for double in {*map(is_double, xs)}}


def by_precision(xs: Arrays, ys: Arrays) -> Iterator[tuple[bool, list[tuple[Any, Any]]]]:
    """Yield whether arithmetic is in float64, and the pairs (x, y) of which it is so."""
    for double in {*map(is_double, xs)}:
        yield double, [(x, y) for x, y in zip(xs, ys, strict=True) if is_double(x) == double]


def tables(pos: Any, like: Any, plan: Plan, inv_freq: Any, lib: Library) -> tuple[Any, Any]:
    """Cos and sin at positions, beside `like` and in its compute dtype, shape pos.shape + (lanes,)."""
    whole, fraction = table_positions(pos, like, plan, inv_freq, lib)
    return make_tables(whole, fraction, plan, is_double(like), lib.kit(like), inv_freq)


def table_positions(pos: Any, like: Any, plan: Plan, inv_freq: Any, lib: Library) -> tuple[Any, Any]:
    """Check a call for tables, and hand its positions to the library."""
    own = lib.owns(pos)
    _host.check(pos, like, own, lib)
    without_coordinates(positions_shape(pos, own), plan)
    check_frequencies(inv_freq, like, plan.layout, lib)
    return (pos, None) if own else _host.read(pos, lib.host_kit(like), is_double(like))


def make_tables(
    whole: Any, fraction: Any, plan: Plan, double: bool, kit: Kit, inv_freq: Any = None
) -> tuple[Any, Any]:
    """Cos and sin at positions that the library has; learned frequencies take the plain product."""
    if inv_freq is not None:
        return _learned(whole, fraction, plan, double, kit, inv_freq)
    if fraction is None and _is_float(whole):
        whole, fraction = split(whole, kit.xp, kit.wide)
    return cos_sin(whole, fraction, plan, double, kit)


def rotate(xs: Arrays, cos: Any, sin: Any, layout: Layout, seq_axis: int, lib: Library) -> Arrays:
    """Rotate each of xs by tables that were made before."""
    check_rotation(xs, cos, sin, layout, seq_axis, lib)
    return turn_all(xs, cos, sin, layout, seq_axis, lib.kit(xs[0]))


def check_rotation(xs: Arrays, cos: Any, sin: Any, layout: Layout, seq_axis: int, lib: Library) -> None:
    """Check a call that brings its tables."""
    check_arrays(xs, layout, lib)
    for table in (cos, sin):
        check_tables(xs, table, lib)
    _check_table_shapes(tuple(cos.shape), tuple(sin.shape), layout)
    for x in xs:
        check_line_up(tuple(x.shape), tuple(cos.shape)[:-1], seq_axis)


def turn_all(xs: Arrays, cos: Any, sin: Any, layout: Layout, seq_axis: int, kit: Kit) -> Arrays:
    """Rotate checked arrays by checked tables, which may be wider than an array's arithmetic."""
    narrow = None
    ys = []
    for x in xs:
        pair = cos, sin
        if is_double(cos) and not is_double(x):
            pair = narrow = narrow or (kit.cast(cos, kit.xp.float32), kit.cast(sin, kit.xp.float32))
        ys.append(turn_one(x, *pair, layout, seq_axis, kit))
    return tuple(ys)


def undone(cos: Any, sin: Any) -> tuple[Any, Any]:
    """Return the tables of the inverse where the amplitude is another at each position and lane."""
    # The size is divided out first: squares would leave the range of floats half as far out.
    size = abs(cos) + abs(sin)
    c, s = cos / size, sin / size
    square = c * c + s * s
    return c / square / size, -s / square / size


def turn_one(x: Any, cos: Any, sin: Any, layout: Layout, seq_axis: int, kit: Kit) -> Any:
    """Rotate one array by tables of its own precision."""
    return turn(x, *laid_out(x, cos, sin, seq_axis, kit), layout, kit)


def laid_out(x: Any, cos: Any, sin: Any, seq_axis: int, kit: Kit) -> tuple[Any, Any]:
    """Give tables the axes of x."""
    order, index = placement(x.ndim, cos.ndim - 1, sequence_axis(x.ndim, seq_axis))
    if order is not None:
        cos, sin = kit.xp.permute_dims(cos, order), kit.xp.permute_dims(sin, order)
    return cos[index], sin[index]


def _learned(whole: Any, fraction: Any, plan: Plan, double: bool, kit: Kit, inv_freq: Any) -> tuple[Any, Any]:
    xp = kit.xp
    dtype = xp.float64 if double else xp.float32
    pos = by_lane(floats(whole, fraction, dtype, xp), plan, kit)
    frequencies = xp.astype(inv_freq, dtype)
    if plan.coordinates is not None and plan.coordinates.moves is not None:
        frequencies = frequencies * kit.constants(plan.coordinates.moves, dtype, kit.create)
    frequencies = frequencies[(None,) * (pos.ndim - 1) + (...,)]
    return product_cos_sin(pos, frequencies, plan, dtype, xp)


def check_kinds(xs: Arrays, lib: Library, name: str = "x") -> None:
    """Check that each of xs is an array of the library that can be rotated: its kind, its dtype."""
    for x in xs:
        _check_kind(x, lib, name)


def _check_kind(x: Any, lib: Library, name: str) -> None:
    if not lib.owns(x):
        raise _stranger(x, lib)
    lib.check_sound(x)
    if dtype_name(x) not in X_DTYPES:
        raise ArrayTypeError(
            f"{name} is {describe(x)}; a rotation needs real floating point: {', '.join(X_DTYPES)}. "
            f"Cast {name} first."
        )
    if not x.ndim:
        raise ShapeError(f"x is {describe(x)}, a single number; give an array whose last axis is one head.")


def _stranger(x: Any, lib: Library) -> RoPEError:
    if not hasattr(x, "dtype"):
        return ArrayTypeError(f"x holds {describe(x)} beside arrays of {lib.name}; give arrays only.")
    if not x.shape:
        return ShapeError(f"x is {describe(x)}, a single number; give an array whose last axis is one head.")
    return ArrayTypeError(
        f"the arrays of one call are of two libraries: {describe(x)} beside arrays of {lib.name}; "
        "call once for each library."
    )


def check_arrays(xs: Arrays, layout: Layout, lib: Library) -> None:
    """Check width and device of every x, whose kind is checked."""
    for x in xs:
        if x.shape[-1] != layout.head_dim:
            raise ShapeError(
                f"x is {describe(x)}; its last axis must hold the {layout.head_dim} features of one head "
                f"(head_dim={layout.head_dim}). Split heads off first, or give the rope x's head_dim."
            )
        if x is not xs[0] and not lib.together(x, xs[0]):
            raise ArrayTypeError(
                f"the arrays of one call are on {lib.device(xs[0])} and {lib.device(x)}; "
                "call once for each device."
            )


def check_tables(xs: Arrays, cos: Any, lib: Library) -> None:
    """Check that a rotation's tables are of x's library and device, and as wide as its arithmetic."""
    for x in xs:
        if not lib.owns(cos) or not lib.together(cos, x):
            raise ArrayTypeError(
                f"the rotation's tables are {lib.place(cos)} and x is {lib.place(x)}; "
                "make the rotation beside x: rope.rotation(pos, like=x)."
            )
        if is_double(x) and not is_double(cos):
            raise ArrayTypeError(
                "x is float64 and the rotation's tables are float32, which would leave float32 accuracy in "
                "float64; make them with rope.rotation(pos, like=x)."
            )


def _check_table_shapes(cos: tuple[Any, ...], sin: tuple[Any, ...], layout: Layout) -> None:
    """Check that both tables have a column per lane, at the same positions: they may be made by hand."""
    known = [(a, b) for a, b in zip(cos, sin, strict=False) if not unknown(a) and not unknown(b)]
    if len(cos) != len(sin) or any(a != b for a, b in known) or cos[-1:] != (layout.lanes,):
        raise ShapeError(
            f"the rotation's tables have the shapes {cos} and {sin}; both need one shape, whose last axis "
            f"has {layout.lanes} lanes. Make them with rope.rotation(pos, like=x)."
        )


def check_frequencies(inv_freq: Any, like: Any, layout: Layout, lib: Library) -> None:
    """Check learned frequencies: a floating array of one number per pair, where the positions are."""
    if inv_freq is None:
        return
    check_frequency_kind(inv_freq, like, lib)
    if tuple(inv_freq.shape) != (layout.lanes,):
        raise ShapeError(
            f"inv_freq has the shape {tuple(inv_freq.shape)}; a rotary_dim of {2 * layout.lanes} needs "
            f"({layout.lanes},)."
        )


def check_frequency_kind(inv_freq: Any, like: Any, lib: Library) -> None:
    """Check that learned frequencies are a floating array of the library, where the positions are."""
    if not lib.owns(inv_freq) or not dtype_name(inv_freq).startswith(("float", "bfloat")):
        raise ArrayTypeError(
            f"inv_freq is {describe(inv_freq)}; give a floating array of the library of {describe(like)}."
        )
    lib.check_sound(inv_freq)
    if not lib.together(inv_freq, like):
        raise ArrayTypeError(
            f"inv_freq is on {lib.device(inv_freq)} and like on {lib.device(like)}; move one of them."
        )


def is_double(x: Any) -> bool:
    """Tell whether x is rotated in float64; every other dtype is rotated in float32."""
    return dtype_name(x) == "float64"


def _is_float(pos: Any) -> bool:
    return dtype_name(pos) in ("float32", "float64")
