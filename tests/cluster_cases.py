"""Functions that workers of a cluster import: they make arrays chunk by chunk, and check the backend."""

import zlib

import numpy as np


def numbers(batches, heads, rows, width):
    """Return float32 numbers for ranges of the first three axes, however they are chunked."""
    row = (np.arange(rows.start, rows.stop) * 7919 % 65521).astype(np.float32)[:, None]
    head = np.array(heads, np.float32)[:, None, None] * 0.37
    batch = np.array(batches, np.float32)[:, None, None, None] * 0.11
    return row / 65521 - np.linspace(0, 1, width, dtype=np.float32) + head + batch


def chunk(block_info):
    """Return the chunk of `numbers` at the place that dask names."""
    *axes, width = (range(*ends) for ends in block_info[None]["array-location"])
    return numbers(*axes, len(width))


def checksum(x):
    """Return the CRC of an array's bytes, in an array of size 1."""
    return np.full((1,) * x.ndim, zlib.crc32(np.ascontiguousarray(x)), np.uint32)


def leave_the_kernel_alone(set_attribute=setattr):
    """Let the array-api backend, which serves NumPy arrays that the kernel declines, raise."""
    from rope_array import _registry

    set_attribute(_registry.ArrayAPI, "rotate", _refuse)


def _refuse(*call):
    raise AssertionError("the kernel declined")
