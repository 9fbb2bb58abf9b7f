"""Calls of `rope_array.positions`, and of many coordinates, for libraries that few tests run with."""

import numpy as np

import rope_array as ra
from rope_array.testing._contract import assert_contract

MAKE = ra.positions
X = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
# Each takes a function that makes an array of the library from one of NumPy.
MAKERS = {
    "offset": lambda make: MAKE.offset(5, [3, 4], like=make(X)),
    "grid": lambda make: MAKE.grid(2, 3, like=make(X)),
    "normalized grid": lambda make: MAKE.normalized_grid(2, 3, like=make(X)),
    "packed": lambda make: MAKE.packed(make(np.array([0, 2, 5, 5, 6])), 7),
    "documents": lambda make: MAKE.documents(make(np.array([[4, 4, 1, 1, 1], [1, 1, 1, 7, -1]]))),
    "documents of a row": lambda make: MAKE.documents(make(np.array([0, 0, 0, 1, 1, 2]))),
    "mask": lambda make: MAKE.from_mask(make(np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]))),
    "zigzag": lambda make: MAKE.context_parallel(8, 1, 2, layout="zigzag", like=make(X)),
    "zigzag of packed": lambda make: MAKE.context_parallel(
        8, 1, 2, layout="zigzag", cu_seqlens=make(np.array([0, 4, 8]))
    ),
    "part of a sequence": lambda make: MAKE.context_parallel(make(np.arange(8)), 1, 2, layout="zigzag"),
    "text": lambda make: MAKE.text(make(np.arange(3))),
    "matrix": lambda make: ra.RoPE(4).matrix([3, 5], like=make(X)),
}


def check(name, make, to_numpy):
    """Compare positions with NumPy's."""
    found, wanted = to_numpy(MAKERS[name](make)), MAKERS[name](np.asarray)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=0 if wanted.dtype.kind == "i" else 1e-6)


def check_written_after_the_call(make, compute):
    """Write to NumPy positions between a call and the computation of its result."""
    x = make(X)
    arrays = [np.arange(5, dtype=dtype) for dtype in ("int64", "int8", "uint32", "float32", "float64")]
    for pos in (*arrays, np.array(3), np.array([3]), np.arange(10).reshape(5, 2)):
        axes = None if pos.ndim < 2 else {"coordinates": (0, 1) * 4}
        rope, given = ra.RoPE(16, axes=axes and ra.Axes(**axes)), pos.copy()
        ys = rope.apply((x, x), pos)[1], rope.rotation(pos, like=x).apply(x)
        pos += pos.dtype.type(7)
        for y in ys:
            assert_contract(compute(y), X, given, flushes=True, axes=axes)


def check_as_many_coordinates_as_pairs(make, to_numpy):
    """Compare with a call for each pair: the coordinates are in another order than the pairs."""
    order = [3, 0, 7, 1, 6, 2, 5, 4]
    rope, pos = ra.RoPE(16, axes=ra.Axes(order)), np.arange(40).reshape(5, 8) * 1_000_003
    y = to_numpy(ra.apply(make(X), make(pos), rope, backend="array-api"))
    for pair, coordinate in enumerate(order):
        wanted = ra.apply(X, pos[:, coordinate], base=rope.base)[:, 2 * pair : 2 * pair + 2]
        np.testing.assert_allclose(y[:, 2 * pair : 2 * pair + 2], wanted, rtol=0, atol=1e-6)
