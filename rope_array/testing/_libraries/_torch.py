"""PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_array.testing._triton_interpreter import use_interpreter

from ._base import MODES, Array, ArrayLibrary, Function, MissingLibrary


class TorchLibrary(ArrayLibrary):
    """PyTorch on a device; for the backend "triton", in Triton's interpreter."""

    name = module = package = session = "torch"
    title = "PyTorch"
    namespace = "array_api_compat.torch"
    floats = ("float16", "bfloat16", "float32", "float64")
    device = "cpu"
    has_strides = has_caches = writes_caches = True
    compiler = "compile"
    negative_steps = False
    modes = MODES

    def check_present(self) -> None:
        if self.device == "cuda" and not self.native.cuda.is_available():
            raise MissingLibrary(
                f"{self.name} needs a GPU that PyTorch can use; torch.cuda.is_available() is False"
            )
        self.native  # noqa: B018 (raises MissingLibrary)
        if self.backend == "triton" and (reason := use_interpreter()):
            raise MissingLibrary(f"{self.name} needs Triton's interpreter: {reason}")

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        torch = self.native
        array = np.array(array, order="C")  # copy, as torch warns about read-only memory
        if array.dtype.name == "bfloat16":
            tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(array)
        tensor = tensor if self.device == "cpu" else tensor.to(self.device)
        return tensor if dtype is None else tensor.to(self.dtype(dtype))

    def to_numpy(self, array: Array) -> NDArray[Any]:
        array = array.detach().cpu().resolve_conj()
        widened = array.dtype in (self.native.bfloat16, self.native.float8_e4m3fn)
        return (array.float() if widened else array).numpy()

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        return self.native.permute(array, axes)

    def stack(self, arrays: list[Array]) -> Array:
        return self.native.stack(arrays)  # Dynamo traces it

    def copied(self, array: Array) -> Array:
        return array.clone()

    def sevens(self, shape: tuple[int, ...], like: Array) -> Array | None:
        return like.new_full(shape, 7)

    def snapshot(self, array: Array) -> bytes:
        return b"" if self.device == "meta" else super().snapshot(array)

    def shares_memory(self, a: Array, b: Array) -> bool:
        if self.device == "meta" or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
            return False
        # Two views of a storage may share no element.
        return bool(np.isin(_addresses(a), _addresses(b)).any())

    def strides_of(self, array: Array) -> tuple[int, ...] | None:
        return tuple(array.stride())

    def overwrite(self, array: Array, values: Any = 7) -> bool:
        array.detach()[...] = values
        return True

    def watch(self, array: Array) -> Callable[[], bool]:
        # A view that is kept keeps the memory, not the tensor.
        weak = import_module("torch.multiprocessing.reductions").StorageWeakRef
        reference = weak(array.untyped_storage())
        return lambda: not reference.expired()

    def defaults(self) -> dict[str, Any]:
        torch = self.native
        return {
            **super().defaults(),
            "PyTorch's default dtype": torch.get_default_dtype(),
            "PyTorch's default device": str(torch.get_default_device()),
            "whether PyTorch records gradients": torch.is_grad_enabled(),
            "PyTorch's inference mode": torch.is_inference_mode_enabled(),
            "PyTorch's autocast": torch.is_autocast_enabled("cpu"),
            "PyTorch's detection of anomalies": torch.is_anomaly_enabled(),
            "PyTorch's deterministic mode": torch.get_deterministic_debug_mode(),
            "PyTorch's number of threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
            "PyTorch's precision of matrix products": torch.get_float32_matmul_precision(),
            "PyTorch's cuDNN": (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark),
        }

    def state(self) -> dict[str, Any]:
        random_state = hash(self.native.get_rng_state().numpy().tobytes())
        return {**super().state(), "PyTorch's random state": random_state}

    def pullback(self, f: Function, x: Any) -> tuple[Any, Function]:
        # A leaf of the same memory and strides as x; a parameter is one.
        xs, parameter = x if isinstance(x, tuple) else (x,), self.native.nn.Parameter
        leaves = [x if isinstance(x, parameter) else x.detach().requires_grad_(True) for x in xs]
        y = f(tuple(leaves) if isinstance(x, tuple) else leaves[0])

        def pull(cotangent: Any, retain_graph: bool = False) -> Any:
            pulled = self.native.autograd.grad(y, leaves, cotangent, retain_graph=retain_graph)
            return pulled if isinstance(x, tuple) else pulled[0]

        return y, pull

    def pulled_twice(self, pull: Function, cotangent: Any) -> tuple[Any, Any]:
        return pull(cotangent, retain_graph=True), pull(cotangent)

    def second_gradient(self, f: Function, x: Array, g: Array, h: Array) -> Array | None:
        grad = self.native.autograd.grad
        x, g = x.detach().requires_grad_(True), g.detach().requires_grad_(True)
        (pulled,) = grad(f(x), x, g, create_graph=True)
        if not pulled.requires_grad:
            return None
        (by_g,) = grad(pulled, g, h, allow_unused=True, retain_graph=True)
        if by_g is None:
            pulled.backward(h)  # raises where once_differentiable says so
        return by_g

    def traced(self, f: Function) -> Function:
        # Dynamo alone, as one graph: no compiler, which would take seconds. `torch:compile` has more of it.
        return self.native.compile(with_own_code(f), backend="eager", fullgraph=True, dynamic=False)


LIBRARIES = (
    TorchLibrary(),
    TorchLibrary(
        "torch:meta", device="meta", has_values=False, compiler="", configuration="shapes and dtypes only"
    ),
    TorchLibrary("torch:cuda", device="cuda"),
    TorchLibrary(
        "torch:triton-interpret",
        backend="triton",
        compiler="",
        calls=40,  # each takes milliseconds
        configuration="the Triton kernel, interpreted",
    ),
)


def _addresses(array: Array) -> NDArray[np.int64]:
    """Return the address of every element of a tensor."""
    places = np.zeros(1, np.int64)
    for n, stride in zip(array.shape, array.stride(), strict=True):
        places = (places[:, None] + stride * np.arange(n)).ravel()
    return np.asarray(places * array.element_size() + array.data_ptr(), np.int64)


_NUMBERS = itertools.count()


def with_own_code(f: Function) -> Function:
    """Return a function that calls f and has its own code object.

    Dynamo compiles a code object for a handful of shapes, dtypes and constants only: beyond its recompile
    limit the code is called without the compiler, or an error is raised.
    """

    def called(*arguments: Any, **named: Any) -> Any:
        return f(*arguments, **named)

    called.__code__ = called.__code__.replace(co_name=f"called{next(_NUMBERS)}")
    return called
