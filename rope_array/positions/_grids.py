"""Coordinates of the patches of images and videos."""

import math
from numbers import Integral
from typing import Any, Literal, get_args

from rope_array._errors import PositionError, ShapeError, SpecError, short
from rope_array._spec import validation

from . import _factory

Normalize = Literal["separate", "min", "max"]


def grid(*sizes: int, origin: Any = 0, step: Any = 1, like: Any = None, dtype: Any = None) -> Any:
    """Return the coordinates of a grid's points, the last axis fastest: patches of an image, (h, w).

    Parameters
    ----------
    *sizes : int
        Points along each axis.
    origin : number, or one for each axis
        The coordinate of the first point.
    step : number, or one for each axis
        The distance from one point to the next.
    like : array, optional
        An array with the library and device of the result. NumPy by default.
    dtype : {"int64", "int32", "float32", "float64"}, optional
        By default integers if `origin` and `step` are integers, else float32.

    Returns
    -------
    array of shape (product of sizes, number of axes)
        origin + step · index, floats rounded once.

    Raises
    ------
    ArrayTypeError
        A type or dtype is not supported.
    ShapeError
        There is no size, a size is negative, or the number of origins or steps is not the number of axes.
    SpecError
        An origin or a step is no finite number, or no integer for an integer dtype.
    PositionError
        A coordinate is out of the range of the dtype.

    Examples
    --------
    >>> from rope_array import positions
    >>> positions.grid(2, 2)
    array([[0, 0],
           [0, 1],
           [1, 0],
           [1, 1]])
    >>> positions.grid(3, origin=0.5, step=2)
    array([[0.5],
           [2.5],
           [4.5]], dtype=float32)
    """
    extents = _factory.sizes_of(sizes)
    factory, series = _series_of_axes(extents, origin, step, like, dtype)
    return _mesh(series, *_row_major(extents), factory)


def video_grid(
    frames: int,
    height: int,
    width: int,
    *,
    origin: Any = 0,
    step: Any = 1,
    spatial_merge_size: int = 1,
    like: Any = None,
    dtype: Any = None,
) -> Any:
    """Return the coordinates (t, h, w) of a video's patches, frame by frame.

    Parameters
    ----------
    frames, height, width : int
        Patches along each axis.
    origin, step : number, or one each for t, h and w
        See `grid`: ``step=(seconds_per_frame, 1, 1)`` gives time in seconds.
    spatial_merge_size : int
        Side of the blocks of patches that a model merges into one token. The patches of a block follow one
        another, and blocks follow row by row: the order of Qwen2-VL's vision tower. 1 orders patches row by
        row.
    like, dtype
        See `grid`.

    Returns
    -------
    array of shape (frames · height · width, 3)
        Take ``[:, 1:]`` for a model without a time coordinate.

    Raises
    ------
    ArrayTypeError, SpecError, PositionError
        See `grid`.
    ShapeError
        See `grid`; or height or width is no multiple of `spatial_merge_size`.

    Examples
    --------
    >>> from rope_array import positions
    >>> positions.video_grid(1, 2, 4, spatial_merge_size=2)[:, 1:].tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]]
    """
    frames, height, width = sizes = _factory.sizes_of((frames, height, width))
    merge = _factory.size_of("spatial_merge_size", spatial_merge_size, 1)
    for name, extent in (("height", height), ("width", width)):
        if extent % merge:
            raise ShapeError(
                f"{name} is {extent}, no multiple of spatial_merge_size {merge}; give whole blocks."
            )
    factory, series = _series_of_axes(sizes, origin, step, like, dtype)
    h, w = height // merge, width // merge
    # Axes: frame, row of blocks, block in the row, row in the block, patch in that row.
    shapes = [(frames, 1, 1, 1, 1), (1, h, 1, merge, 1), (1, 1, w, 1, merge)]
    return _mesh(series, shapes, (frames, h, w, merge, merge), factory)


def normalized_grid(
    *sizes: int, normalize: Normalize = "separate", like: Any = None, dtype: Any = None
) -> Any:
    """Return the centres of a grid's patches, from -1 to 1 over its extent: the coordinates of DINOv3.

    Parameters
    ----------
    *sizes : int
        Patches along each axis.
    normalize : {"separate", "min", "max"}
        The extent that maps to -1 ... 1: each axis's own ("separate"), or for all axes the shortest ("min")
        or the longest ("max").
    like : array, optional
        An array with the library and device of the result. NumPy by default.
    dtype : {"float32", "float64"}, optional
        float32 by default.

    Returns
    -------
    array of shape (product of sizes, number of axes)
        2·(index + 1/2)/extent - 1, rounded once, the last axis fastest.

    Raises
    ------
    ArrayTypeError
        A type or dtype is not supported.
    ShapeError
        There is no size, or a size is negative.
    SpecError
        `normalize` is unknown.

    Examples
    --------
    >>> from rope_array import positions
    >>> positions.normalized_grid(1, 4)
    array([[ 0.  , -0.75],
           [ 0.  , -0.25],
           [ 0.  ,  0.25],
           [ 0.  ,  0.75]], dtype=float32)
    """
    counts = _factory.sizes_of(sizes)
    rule = validation.choice("normalize", normalize, get_args(Normalize))
    extents = counts if rule == "separate" else [min(counts) if rule == "min" else max(counts)] * len(counts)
    factory = _factory.floats(dtype, like)
    # A grid with an extent of 0 is empty; any divisor serves its other axes.
    series = [_quotients(n, 1 - (e or 1), 2, e or 1, factory) for n, e in zip(counts, extents, strict=True)]
    return _mesh(series, *_row_major(counts), factory)


def _series_of_axes(
    sizes: list[Any], origin: Any, step: Any, like: Any, dtype: Any
) -> tuple[_factory.ArrayFactory, list[Any]]:
    """Return origin + step·index for each axis: integers, or floats rounded once on the host."""
    origins, steps = _for_each_axis("origin", origin, len(sizes)), _for_each_axis("step", step, len(sizes))
    are_integers = all(isinstance(number, Integral) for number in (*origins, *steps))
    name = None if dtype is None else _factory.name_of_dtype(dtype)
    if (are_integers and name is None) or (name or "").startswith("int"):
        factory = _factory.integers(dtype, like)
        return factory, [
            _integer_coordinates(n, o, s, factory) for n, o, s in zip(sizes, origins, steps, strict=True)
        ]
    factory = _factory.floats(dtype, like)
    origins = [validation.number("origin", o) for o in origins]
    steps = [validation.number("step", s) for s in steps]
    axes = zip(sizes, origins, steps, strict=True)
    return factory, [_fractional_coordinates(n, o, s, factory) for n, o, s in axes]


def _fractional_coordinates(size: Any, origin: float, step: float, factory: _factory.ArrayFactory) -> Any:
    if max(abs(origin), abs(step)) < 2.0**62:  # no coordinate can overflow
        return _quotients(size, origin, step, 1, factory)
    return factory.from_values([_finite(origin + step * i, factory) for i in range(size)])


def _quotients(size: Any, origin: Any, step: Any, divisor: Any, factory: _factory.ArrayFactory) -> Any:
    """Return (origin + step·i) / divisor of the points i, computed in float64 and rounded once."""
    if factory.lib.name != "torch" or factory.like.device.type == "mps":  # which has no float64
        return factory.from_values([(origin + step * i) / divisor for i in range(size)])
    # A list has a fixed length: where PyTorch traces a size as a symbol, it would make the size a constant.
    index = factory.xp.arange(size, dtype=factory.xp.float64, **factory.ops.creation_kwargs)
    return factory.cast((origin + step * index) / divisor)


def _integer_coordinates(size: Any, origin: Any, step: Any, factory: _factory.ArrayFactory) -> Any:
    for name, number in (("origin", origin), ("step", step)):
        if not isinstance(number, Integral):
            raise SpecError(
                f"{name} is {number}, and the dtype is an integer dtype; give an integer, or dtype='float32'."
            )
    # Skip the comparison with a traced size where no size can overflow: see `_factory.check_range`.
    small = factory.bits == 63 and max(abs(origin), abs(step)) < 2**31
    for end in () if small else (origin, step, origin + step * max(size - 1, 0)):
        if not -(2**factory.bits) <= end < 2**factory.bits:
            raise PositionError(
                f"a coordinate of the grid is {short(end)}, which does not fit a signed integer of "
                f"{factory.bits + 1} bits; give a smaller origin or step."
            )
    return factory.arange(size) * step + origin


def _finite(coordinate: float, factory: _factory.ArrayFactory) -> float:
    bits = factory.bits + 1
    if not abs(coordinate) <= _factory.LARGEST[bits]:
        raise PositionError(
            f"a coordinate of the grid is {coordinate}, beyond float{bits}; give a smaller origin or step."
        )
    return float(coordinate)


def _for_each_axis(name: str, value: Any, count: int) -> list[Any]:
    """Return one number for each axis, integers unchanged."""
    numbers = list(value) if isinstance(value, (list, tuple)) else [value] * count
    if len(numbers) != count:
        raise ShapeError(f"{name} has {len(numbers)} numbers for {count} axes; give one, or one for each.")
    return [
        validation.plain_int(number)
        if isinstance(number, Integral) and not isinstance(number, bool)
        else validation.number(name, number, "a finite number, or one for each axis")
        for number in numbers
    ]


def _mesh(
    series: list[Any], shapes: list[tuple[Any, ...]], full: tuple[Any, ...], factory: _factory.ArrayFactory
) -> Any:
    """Broadcast each axis's coordinates, reshaped to its shape, to the whole grid; stack them last."""
    xp, count = factory.xp, math.prod(full)
    shaped = [xp.reshape(array, shape) for array, shape in zip(series, shapes, strict=True)]
    return xp.stack([xp.reshape(xp.broadcast_to(array, full), (count,)) for array in shaped], axis=-1)


def _row_major(sizes: list[Any]) -> tuple[list[tuple[Any, ...]], tuple[Any, ...]]:
    """Return the shape of each axis's coordinates in a row-major grid, and the grid's shape."""
    count = len(sizes)
    return [(1,) * i + (n,) + (1,) * (count - 1 - i) for i, n in enumerate(sizes)], tuple(sizes)
