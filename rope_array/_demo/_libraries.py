"""The array libraries that are installed, and the demo's own operations: copy, and wait for results."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from rope_array.testing._libraries import LIBRARIES, ArrayLibrary

_NAMES = ("numpy", "array_api_strict", "dask", "jax", "torch", "cupy")


def display_name(library: ArrayLibrary) -> str:
    """Return the name by which a user installs a library."""
    return library.name.replace("_", "-")


def copy(library: ArrayLibrary, x: Any) -> Any:
    """Copy an array, for the unit of time."""
    if library.name == "dask":
        return x.map_blocks(np.copy)  # x.copy() copies only the graph
    if library.name == "torch":
        return x.clone()
    return library.xp.asarray(x, copy=True) if library.name == "array_api_strict" else x.copy()


def finish(library: ArrayLibrary, ys: tuple[Any, ...]) -> tuple[Any, ...]:
    """Wait until arrays are computed."""
    if library.name == "dask":
        return tuple(import_module("dask").persist(*ys))
    if library.name == "jax":
        return tuple(library.native.block_until_ready(ys))
    if library.name == "cupy":
        library.native.cuda.get_current_stream().synchronize()
    return ys


def installed() -> tuple[list[ArrayLibrary], list[str], list[str]]:
    """Return the libraries that work here, and the names of absent and of broken libraries."""
    working, absent, broken = [], [], []
    for library in (LIBRARIES[name] for name in _NAMES):
        try:
            if find_spec(library.module.partition(".")[0]) is None:
                absent.append(display_name(library))
            else:
                library.asarray(np.zeros(1, np.float32), "float32")
                working.append(library)
        except Exception as error:  # a broken installation or a missing device may raise any exception
            broken.append(f"{display_name(library)} ({type(error).__name__})")
    return working, absent, broken
