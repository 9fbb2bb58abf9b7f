"""DINOv3's augmentation of coordinates in training: shift, then jitter, then rescale."""

import math
from numbers import Real
from typing import Any

from rope_array._errors import ArrayTypeError, PositionError, ShapeError, SpecError, describe
from rope_array._spec import validation

from . import _factory


def shift(coords: Any, amount: float, uniform: Any) -> Any:
    """Shift coordinates at random, each axis by its own amount: the first step of DINOv3's augmentation.

    DINOv3 shifts, then jitters, then rescales, in training only.

    Parameters
    ----------
    coords : array of shape (..., S, n)
        Coordinates, float32 or float64.
    amount : float
        The largest shift s.
    uniform : array of shape (..., n), sequence of n floats, or random generator
        Random numbers u of [0, 1), one for each axis. For several images, add their axes in front: they line
        up with the axes of `coords` before S. A ``numpy.random.Generator`` or ``random.Random`` draws n
        numbers on the host. In a tracer they become constants, so give an array there.

    Returns
    -------
    array of shape (..., S, n)
        coords + s·(2u - 1), of coords' dtype.

    Raises
    ------
    ArrayTypeError
        A type, dtype, library or device is not supported.
    ShapeError
        The shapes do not line up.
    SpecError
        `amount` is no finite number of at least 0.

    Examples
    --------
    >>> from rope_array import positions
    >>> coords = positions.normalized_grid(1, 2)
    >>> positions.shift(coords, 0.5, [0.0, 0.75])
    array([[-0.5 , -0.25],
           [-0.5 ,  0.75]], dtype=float32)
    """
    limit = validation.number("amount", amount, "a finite number of at least 0")
    if limit < 0:
        raise SpecError(f"amount is {limit}; give a finite number of at least 0.")
    draw, _ = _draw(coords, uniform, per_axis=True)
    return coords + limit * draw


def jitter(coords: Any, factor: float, uniform: Any) -> Any:
    """Stretch coordinates at random, each axis by its own factor: the second step of DINOv3's augmentation.

    Parameters
    ----------
    coords : array of shape (..., S, n)
        Coordinates, float32 or float64.
    factor : float
        The largest factor J, at least 1; the smallest is 1/J, and their logarithm is uniform.
    uniform : array of shape (..., n), sequence of n floats, or random generator
        See `shift`.

    Returns
    -------
    array of shape (..., S, n)
        coords · exp(ln J·(2u - 1)), of coords' dtype.

    Raises
    ------
    ArrayTypeError, ShapeError
        See `shift`.
    SpecError
        `factor` is no finite number of at least 1.

    Examples
    --------
    >>> from rope_array import positions
    >>> coords = positions.normalized_grid(2, 2, dtype="float64")
    >>> positions.jitter(coords, 2.0, [0.5, 0.0])
    array([[-0.5 , -0.25],
           [-0.5 ,  0.25],
           [ 0.5 , -0.25],
           [ 0.5 ,  0.25]])
    """
    limit = _log("factor", factor)
    draw, xp = _draw(coords, uniform, per_axis=True)
    return coords * xp.exp(limit * draw)


def rescale(coords: Any, factor: float, uniform: Any) -> Any:
    """Stretch coordinates at random, all axes by one factor: the last step of DINOv3's augmentation.

    Parameters
    ----------
    coords : array of shape (..., S, n)
        Coordinates, float32 or float64.
    factor : float
        The largest factor R, at least 1; the smallest is 1/R, and their logarithm is uniform.
    uniform : array of shape (...), float, sequence of floats, or random generator
        See `shift`, with one number for all axes: of shape (), or one for each image.

    Returns
    -------
    array of shape (..., S, n)
        coords · exp(ln R·(2u - 1)), of coords' dtype.

    Raises
    ------
    ArrayTypeError, ShapeError
        See `shift`.
    SpecError
        `factor` is no finite number of at least 1.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_array import positions
    >>> coords = positions.normalized_grid(1, 2, dtype="float64")
    >>> positions.rescale(coords, 2.0, 0.0)
    array([[ 0.  , -0.25],
           [ 0.  ,  0.25]])
    >>> positions.rescale(coords, 2.0, np.random.default_rng(0)).shape
    (2, 2)
    """
    limit = _log("factor", factor)
    draw, xp = _draw(coords, uniform, per_axis=False)
    return coords * xp.exp(limit * draw)


def _log(name: str, factor: Any) -> float:
    number = validation.number(name, factor, "a finite number of at least 1")
    if number < 1:
        raise SpecError(
            f"{name} is {number}; give a finite number of at least 1: the range is 1/{name} to {name}."
        )
    return math.log(number)


def _draw(coords: Any, uniform: Any, *, per_axis: bool) -> tuple[Any, Any]:
    """Return 2u - 1 in coords' dtype, reshaped to broadcast with coords; and the namespace."""
    if not _factory.is_array(coords):
        raise ArrayTypeError(f"coords is {describe(coords)}; give an array of float32 or float64.")
    lib = _factory.library_of(coords)
    factory = _factory.ArrayFactory(lib, coords, lib.ops(coords).creation_kwargs, coords.dtype, 0)
    factory.check("coords", coords, _factory.REAL, "an array of float32 or float64")
    if coords.ndim < 2:
        raise ShapeError(f"coords is {describe(coords)}; give an array of shape (..., S, n).")
    u = _uniform(uniform, coords.shape[-1], per_axis, factory)
    _check_uniform(tuple(u.shape), coords, per_axis)
    centred = 2 * factory.cast(u) - 1
    return centred[..., None, :] if per_axis else centred[..., None, None], lib.xp


def _uniform(uniform: Any, n: Any, per_axis: bool, factory: _factory.ArrayFactory) -> Any:
    """Return random numbers, the caller's or drawn, as an array of coords' library."""
    if factory.lib.is_array(uniform) and _factory.is_array(uniform):
        factory.check("uniform", uniform, _factory.REAL, "random numbers of [0, 1) in float32 or float64")
        return uniform
    if callable(getattr(uniform, "random", None)):
        drawn = [float(uniform.random()) for _ in range(n if per_axis else 1)]
        return factory.from_values(drawn if per_axis else drawn[0])
    if not _factory.is_host(uniform):
        raise ArrayTypeError(
            f"uniform is {describe(uniform)} and coords {describe(factory.like)}; give arrays of one library."
        )
    shape = _factory.shape_of("uniform", uniform, Real)
    return factory.xp.reshape(factory.from_values(_unit_floats(uniform)), shape)


def _unit_floats(uniform: Any) -> Any:
    """Return random numbers on the host as checked floats."""
    if isinstance(uniform, (list, tuple, range)):
        return [_unit_floats(part) for part in uniform]
    if _factory.is_array(uniform):
        return _unit_floats(uniform.tolist())
    if isinstance(uniform, bool) or not 0 <= uniform <= 1:
        raise PositionError(f"uniform holds {uniform}; give random numbers from 0 to 1.")
    return float(uniform)


def _check_uniform(shape: tuple[Any, ...], coords: Any, per_axis: bool) -> None:
    """Check that random numbers broadcast with coords."""
    n, lead = coords.shape[-1], tuple(coords.shape[:-2])
    axes = shape[:-1] if per_axis else shape
    fits = not per_axis or (len(shape) > 0 and shape[-1] == n)
    # Without leading axes one number serves all images; several numbers for one image give several results.
    fits = fits and (not axes or not lead or len(axes) == len(lead))
    if not fits or any(1 not in (a, b) and a != b for a, b in zip(axes, lead, strict=False)):
        need = f"({n},)" if per_axis else "()"
        raise ShapeError(
            f"uniform has the shape {shape}, and coords is {describe(coords)}; give {need}, or add the axes "
            f"of images before it{f', {lead}' if lead else ''}."
        )
