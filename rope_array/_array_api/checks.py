"""The checks of a call, before anything is computed: types, dtypes, devices and shapes.

The values of positions are checked when they are read (`position_input`), results to write into in `out`.
"""

from typing import Any

from rope_array._errors import ArrayTypeError, RoPEError, ShapeError, SpecError, describe
from rope_array._spec.plan import Layout, Plan
from rope_array._spec.shape_rule import (
    check_line_up,
    check_row_of_coordinates,
    is_unknown_size,
    without_coordinates,
)

from .library import X_DTYPES, Library, computes_in_float64, dtype_name, name_of_dtype
from .position_input import parse
from .source import Call, CallOptions, OptionFields, Positions, Source, SourceFields, Tables

MAKE_KNOWN = "make it known first: call x.compute_chunk_sizes() in dask, or reshape x in a graph."

Arrays = tuple[Any, ...]


def as_source(fields: SourceFields) -> Source:
    """Return the source with these fields."""
    return Positions(*fields) if isinstance(fields[1], Plan) else Tables(*fields)


def check_call(xs: Arrays, source_fields: SourceFields, option_fields: OptionFields, lib: Library) -> Call:
    """Check a whole call but for the values of positions: arrays, source, and that they line up."""
    source, options = as_source(source_fields), CallOptions(*option_fields)
    dtypes = check_arrays(xs, lib)
    lib.check_mix(xs, source)
    ops = lib.ops(xs[0])
    float64 = tuple([name == "float64" for name in dtypes])
    coordinates, pos = 0, None
    if isinstance(source, Tables):
        layout = source.layout
        _check_tables(xs, source, any(float64), lib)
        shape = tuple(source.cos.shape)[:-1]
    else:
        layout = source.plan.layout
        pos = parse(source.values, xs[0], lib)
        shape = pos.shape
        if source.plan.coordinates is not None:
            shape, coordinates = without_coordinates(shape, source.plan), source.plan.coordinates.number
    for x in xs:
        if x.shape[-1] != layout.head_dim:
            raise _wrong_width(x, layout.head_dim)
        if x is not xs[0] and not lib.same_device(x, xs[0]):
            raise ArrayTypeError(
                f"the arrays of one call are on {lib.device(xs[0])} and {lib.device(x)}; "
                "call once for each device."
            )
        others = [y.shape for y in xs] if len(xs) > 1 else ()
        check_line_up(x.shape, shape, options.seq_axis, coordinates, others, pos is None)
        if coordinates and not shape and lib.has_fixed_sizes(x):
            check_row_of_coordinates(x.shape, options.seq_axis, coordinates)
    if options.seq_axis.__class__ is not int:  # of NumPy, say; kernels take Python's
        options = options._replace(seq_axis=int(options.seq_axis))
    return Call(xs, source, options, lib, ops, float64, pos)


def check_table_call(source: Positions, like: Any, lib: Library) -> None:
    """Check a call that makes tables in the compute dtype of `like`, an array that is checked."""
    lib.check_mix((like,), source)
    pos_shape = parse(source.values, like, lib).shape
    if source.inv_freq is not None and source.inv_freq.ndim == 3 and source.inv_freq.shape[1] != 1:
        _check_coordinates(tuple(source.inv_freq.shape), pos_shape)
    shape = without_coordinates(pos_shape, source.plan)
    if source.inv_freq is not None and source.inv_freq.ndim > 1:
        _check_heads(tuple(source.inv_freq.shape), shape, like)


def check_arrays(xs: Arrays, lib: Library, name: str = "x") -> list[str]:
    """Check that each of xs is an array of the library that can be rotated; return the dtypes' names."""
    names = []
    for x in xs:
        if not lib.is_array(x):
            raise _not_of_library(x, lib, name)
        lib.check_supported(x)
        names.append(name_of_dtype(x.dtype))
        if names[-1] not in X_DTYPES:
            raise ArrayTypeError(
                f"{name} is {describe(x)}; a rotation needs real floating point: {', '.join(X_DTYPES)}. "
                f"{_dtype_remedy(names[-1], name)}"
            )
        if not x.ndim:
            raise _single_number(x, name)
    return names


def _dtype_remedy(dtype: str, name: str) -> str:
    """Return what to do with an x of a dtype that is not rotated."""
    if dtype.startswith("complex"):
        return "Give its real and imaginary parts as the two features of a pair."
    if dtype.startswith(("float8", "float6", "float4")) or dtype in ("int4", "uint4", "int8", "uint8"):
        return (
            f"Rotate before you quantise, or give {name} dequantised: cast, and multiplied by its scale. A "
            "cast alone leaves out the scale."
        )
    if dtype.startswith(("qint", "quint")):
        return f"Rotate before you quantise, or give {name} dequantised: {name}.dequantize() in PyTorch."
    return f"If it holds positions, give them second: apply(x, pos). Otherwise cast {name} first."


def _wrong_width(x: Any, head_dim: int) -> ShapeError:
    """Return the error for an x whose last axis is not a head, with code that moves or splits the axis."""
    text = f"x is {describe(x)}; its last axis must hold the {head_dim} features of one head ({head_dim=})."
    width, axes = x.shape[-1], [axis for axis, size in enumerate(x.shape[:-1]) if size == head_dim]
    if is_unknown_size(width):
        return ShapeError(f"{text} Its size is unknown; {MAKE_KNOWN}")
    if axes:
        axis = axes[-1]
        return ShapeError(
            f"{text} If they are along axis {axis}, move them last, and back: y = rope.apply(xp.moveaxis(x, "
            f"{axis}, -1), pos); y = xp.moveaxis(y, -1, {axis}), where xp is the library."
        )
    if width and width % head_dim == 0:
        heads = width // head_dim
        return ShapeError(
            f"{text} If it holds q, k and v, take q and k. Split its {heads} heads: "
            f"rope.apply(x.reshape(*x.shape[:-1], {heads}, {head_dim}), pos, seq_axis=-3).reshape(x.shape)."
        )
    heads = head_dim // width if width else 0
    if width and heads * width == head_dim and heads in x.shape[:-1]:
        axis = x.shape.index(heads)
        return ShapeError(
            f"{text} If it rotates all heads together, merge the {heads} heads: z = xp.moveaxis(x, "
            f"{axis}, -2); y = rope.apply(z.reshape(*z.shape[:-2], {head_dim}), pos).reshape(z.shape); y = "
            f"xp.moveaxis(y, -2, {axis}), where xp is the library."
        )
    return ShapeError(f"{text} Split heads off first, or give the rope x's head_dim.")


def _single_number(x: Any, name: str) -> ShapeError:
    return ShapeError(f"{name} is {describe(x)}, a single number; give an array whose last axis is one head.")


def _not_of_library(x: Any, lib: Library, name: str) -> RoPEError:
    if not hasattr(x, "dtype"):
        return ArrayTypeError(f"{name} holds {describe(x)} and arrays of {lib.name}; give arrays only.")
    if not x.shape:
        return _single_number(x, name)
    return ArrayTypeError(
        f"the arrays of one call are of two libraries: {describe(x)} and arrays of {lib.name}; "
        "call once for each library."
    )


def _check_tables(xs: Arrays, tables: Tables, need_float64: bool, lib: Library) -> None:
    """Check library, device, precision and shapes of tables, and their layout: users can change them."""
    if not isinstance(tables.layout, Layout):
        raise SpecError(f"the rotation's layout is {describe(tables.layout)}; take the layout of a rope.")
    tables.layout.check()
    for table in tables.arrays:
        if not lib.is_array(table) or not lib.same_device(table, xs[0]):
            raise ArrayTypeError(
                f"the rotation's tables are {lib.describe(table)} and x is {lib.describe(xs[0])}; "
                "make the rotation on x's device: rope.rotation(pos, like=x)."
            )
        if dtype_name(table) not in ("float32", "float64"):
            raise _wrong_table_dtype(table, lib)
        if need_float64 and not computes_in_float64(table):
            raise ArrayTypeError(
                "x is float64 and the rotation's tables are float32, which would give float64 results of "
                "float32 accuracy; make them with rope.rotation(pos, like=x)."
            )
    cos, sin = tuple(tables.cos.shape), tuple(tables.sin.shape)
    count = tables.layout.num_pairs
    known_sizes = [
        (a, b) for a, b in zip(cos, sin, strict=False) if not is_unknown_size(a) and not is_unknown_size(b)
    ]
    if len(cos) != len(sin) or any(a != b for a, b in known_sizes) or cos[-1:] != (count,):
        raise ShapeError(
            f"the rotation's tables have the shapes {cos} and {sin}; both need one shape, "
            f"whose last axis has {count} pairs. Make them with rope.rotation(pos, like=x)."
        )


def _wrong_table_dtype(table: Any, lib: Library) -> ArrayTypeError:
    text = (
        f"a table of the rotation is {describe(table)}; cos and sin must stay float32 or float64, also in "
        "models of 16-bit floats, and a cast has changed them since they were made."
    )
    remedy = (
        "Pass the positions on instead, and make the rotation where it is used: rope.rotation(pos, like=x)."
    )
    if lib.name != "torch":
        return ArrayTypeError(f"{text} {remedy}")
    return ArrayTypeError(
        f"{text} Mixed precision of FSDP casts the floating inputs of a module, a Rotation's tables too. "
        f"{remedy} Or let FSDP cast the inputs of the whole model only: shard its layers with "
        "MixedPrecisionPolicy(..., cast_forward_inputs=False), for FSDP1 with MixedPrecision of the same "
        "arguments."
    )


def check_frequencies(inv_freq: Any, num_pairs: int, like: Any, lib: Library, mixed: bool = False) -> None:
    """Check that frequencies are a floating array of the library and of like's device, and their shape."""
    if not lib.is_array(inv_freq) or dtype_name(inv_freq) not in X_DTYPES:
        raise ArrayTypeError(
            f"inv_freq is {describe(inv_freq)}; give a floating array of the library of {describe(like)}: "
            f"{', '.join(X_DTYPES)}."
        )
    lib.check_supported(inv_freq)
    if not lib.same_device(inv_freq, like):
        raise ArrayTypeError(
            f"inv_freq is on {lib.device(inv_freq)} and like on {lib.device(like)}; move one of them."
        )
    shape = tuple(inv_freq.shape)
    if mixed and (len(shape) != 3 or shape[-1] != num_pairs or not shape[1]):
        raise ShapeError(
            f"inv_freq has the shape {shape}; mixed frequencies have the shape (heads, coordinates, pairs), "
            f"with {num_pairs} pairs for a rotary_dim of {2 * num_pairs}."
        )
    if not mixed and (shape[-1:] != (num_pairs,) or len(shape) > 3 or shape[1:-1] not in ((), (1,))):
        raise ShapeError(
            f"inv_freq has the shape {shape}; a rotary_dim of {2 * num_pairs} needs ({num_pairs},), or for "
            f"frequencies of each head (heads, {num_pairs}) or (heads, 1, {num_pairs}). For frequencies of "
            "each coordinate, call rope.rotation_mixed."
        )


def check_angles(angles: Any, num_pairs: int, like: Any, lib: Library) -> None:
    """Check that angles are an array of float32 or float64 of the library, with one for each pair."""
    dtype = dtype_name(angles) if lib.is_array(angles) else ""
    if dtype not in ("float32", "float64"):
        is_narrow = dtype in ("float16", "bfloat16")
        narrow = " At 4 radians the floats of 16 bits are 0.004 apart or more." if is_narrow else ""
        raise ArrayTypeError(
            f"angles is {describe(angles)}; give an array of float32 or float64, of the library of "
            f"{describe(like)}.{narrow}"
        )
    shape = tuple(angles.shape)
    if shape[-1:] != (num_pairs,):
        raise ShapeError(
            f"angles has the shape {shape}; its last axis must hold the {num_pairs} pairs of a rotary_dim of "
            f"{2 * num_pairs}."
        )


def _check_coordinates(shape: tuple[Any, ...], pos_shape: tuple[Any, ...]) -> None:
    """Raise if positions have another number of coordinates than mixed frequencies, or no axis of tokens."""
    count = shape[1]
    if len(pos_shape) < 2 or pos_shape[-1] != count:
        raise ShapeError(
            f"pos has the shape {pos_shape}, and inv_freq {shape}, which is (heads, coordinates, pairs), has "
            f"{count} coordinates; give pos the shape (..., S, {count})."
        )


def _check_heads(shape: tuple[Any, ...], pos_shape: tuple[Any, ...], like: Any) -> None:
    """Raise if `like` has no axis for heads, or positions have one too."""
    if like.ndim < 3 or len(pos_shape) > like.ndim - 2:
        raise ShapeError(
            f"inv_freq {shape} has frequencies of each head, pos has the shape {pos_shape} without "
            f"coordinates, and like is {describe(like)}. Give like axes of heads and of the sequence, for "
            "example (batch, heads, S, head_dim), and pos the shape (S,) or (batch, S), without heads."
        )
