"""The modes of the array libraries: settings under which a call is made, and transforms of a call.

A mode is a capability. A target that refuses a mode by an exception does not claim it. A call that succeeds
has to be right, and so do the calls after it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from ._libraries import Array, ArrayLibrary, JaxLibrary

Settings = Mapping[str, Callable[[], AbstractContextManager[Any]]]


def settings_of(lib: ArrayLibrary, mode: str) -> Settings:
    """Return the settings of a mode by name, each with a function that makes its context manager."""
    return _jax_settings(lib) if isinstance(lib, JaxLibrary) else _torch_settings(lib, mode)


def is_taken(dtype: str, mode: str, setting: str) -> bool:
    """Return whether the library takes a dtype under a setting of a mode, by the setting's name.

    Under autocast, PyTorch refuses some in torch.cat and others. Without x64, JAX makes no float64.
    """
    if mode == "autocast":
        return dtype == "float32" or f".{dtype})" in setting
    return dtype != "float64" or setting != _JAX_SETTING.format(False)


_JAX_SETTING = "jax.enable_x64({})"


def _jax_settings(lib: JaxLibrary) -> Settings:
    return {_JAX_SETTING.format(not lib.x64): lambda: lib.native.enable_x64(not lib.x64)}


def _torch_settings(lib: Any, mode: str) -> Settings:
    torch = lib.native
    dtypes = {name: getattr(torch, name) for name in ("bfloat16", "float16", "float64")}
    settings: dict[str, Settings] = {
        "no_grad": {"torch.no_grad()": torch.no_grad},
        "inference_mode": {"torch.inference_mode()": torch.inference_mode},
        "autocast": {
            f"torch.autocast({lib.device!r}, torch.{name})": partial(
                torch.autocast, lib.device, dtype=dtypes[name]
            )
            for name in ("bfloat16", "float16")
        },
        "default_dtype": {
            f"torch.set_default_dtype(torch.{name})": partial(_set, torch, "default_dtype", dtype)
            for name, dtype in dtypes.items()
            if name != "float16"  # bfloat16 rounds more
        },
        "default_device": {'torch.device("meta")': partial(torch.device, "meta")},
        # use_deterministic_algorithms takes a second: it imports Inductor.
        "deterministic": {
            'torch.set_deterministic_debug_mode("error")': partial(
                _set, torch, "deterministic_debug_mode", "error"
            )
        },
    }
    return settings[mode]


@contextmanager
def _set(torch: Any, setting: str, value: Any) -> Iterator[None]:
    """Set a setting of PyTorch's, and restore it."""
    before = getattr(torch, f"get_{setting}")()
    getattr(torch, f"set_{setting}")(value)
    try:
        yield
    finally:
        getattr(torch, f"set_{setting}")(before)


@contextmanager
def one_device(lib: Any) -> Iterator[None]:
    """Raise where PyTorch computes with tensors on two devices.

    PyTorch does it by itself, but not where one of them is "meta": the result is memory without values.
    """
    torch, dispatch = lib.native, import_module("torch.utils._python_dispatch")
    leaves, copies = import_module("torch.utils._pytree").tree_leaves, ("copy_", "_to_copy")

    class OneDevice(dispatch.TorchDispatchMode):  # type: ignore[name-defined,misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            tensors = [arg for arg in leaves((args, kwargs)) if isinstance(arg, torch.Tensor) and arg.ndim]
            devices = {str(tensor.device) for tensor in tensors}
            if len(devices) > 1 and function.overloadpacket.__name__ not in copies:
                raise RuntimeError(f"{function} takes tensors on {' and '.join(sorted(devices))}")
            return function(*args, **(kwargs or {}))

    with OneDevice():
        yield


def fake(*arrays: Array) -> tuple[AbstractContextManager[Any], list[Array]]:
    """Return PyTorch's mode of fake tensors, and fake tensors of these shapes and dtypes."""
    mode = import_module("torch._subclasses.fake_tensor").FakeTensorMode()
    return mode, [mode.from_tensor(array) for array in arrays]


def vmap(
    lib: ArrayLibrary, f: Callable[..., Array], in_axes: tuple[int | None, ...], out_axis: int = 0
) -> Callable[..., Array]:
    """Map a function of arrays over an axis of each; None leaves an array whole."""
    mapped: Callable[..., Array] = lib.native.vmap(f, in_axes, out_axis)
    return mapped


def vjp(lib: ArrayLibrary, f: Callable[[Array], Array], x: Array, cotangent: Array) -> Array:
    """Return the vector-Jacobian product of a function, by a transform that can be mapped."""
    make = lib.native.vjp if isinstance(lib, JaxLibrary) else lib.native.func.vjp
    return make(f, x)[1](cotangent)[0]


def jvp(lib: ArrayLibrary, f: Callable[[Array], Array], x: Array, tangent: Array) -> tuple[Array, Array]:
    """Return a function's value, and its derivative along a tangent."""
    if isinstance(lib, JaxLibrary):
        value, derivative = lib.native.jvp(f, (x,), (tangent,))
        return value, derivative
    forward = import_module("torch.autograd.forward_ad")
    with warnings.catch_warnings():
        # PyTorch warns of its own torch.jit.script, in a category that changes with its version.
        warnings.filterwarnings("ignore", r".*torch\.jit\.script")
        with forward.dual_level():
            value, derivative = forward.unpack_dual(f(forward.make_dual(x, tangent)))
    return value, derivative
