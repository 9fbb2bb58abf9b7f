"""Libraries without a module of their own; `LIBRARIES`, at the end, lists them."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._base import Array, ArrayLibrary, Context, Function, MissingLibrary, widened


class StrictLibrary(ArrayLibrary):
    """array-api-strict with its strictest flags: the standard's functions only."""

    name = module = "array_api_strict"
    title = package = "array-api-strict"
    session = "strict"
    floats = ("float32", "float64")
    reasons = MappingProxyType(dict.fromkeys(("float16", "bfloat16"), "the standard has none"))
    has_strides = True
    device = ""  # of arrays; empty for the default
    label = "strict"
    configuration = "no boolean indexing, data-dependent shapes or extensions"

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        array = super().asarray(array, dtype)
        return self._moved(array, self.device) if self.device else array

    def to_numpy(self, array: Array) -> NDArray[Any]:
        array = self._moved(array, "CPU_DEVICE") if self.device else array
        try:
            return np.from_dlpack(array)
        except BufferError:  # NumPy 2.0 exports no read-only array
            return np.from_dlpack(self.xp.asarray(array, copy=True))

    def _moved(self, array: Array, device: str) -> Array:
        return self.xp.asarray(array, device=self.native.Device(device))

    def running(self) -> Context:
        return self.native.ArrayAPIStrictFlags(
            boolean_indexing=False, data_dependent_shapes=False, enabled_extensions=()
        )


class CuPyLibrary(ArrayLibrary):
    """CuPy on its current GPU."""

    name = module = "cupy"
    title = "CuPy"
    package = "cupy-cuda13x"
    session = "gpu"
    namespace = "array_api_compat.cupy"
    has_strides = has_caches = writes_caches = True
    reasons = MappingProxyType({"bfloat16": "CuPy holds bfloat16 only through ml_dtypes"})
    quantised = ("int8",)

    def check_present(self) -> None:
        try:
            self.native.cuda.runtime.getDeviceCount()
        except Exception as error:  # a missing driver raises CuPy's own errors
            raise MissingLibrary(f"cupy needs a GPU: {error}") from None

    def to_numpy(self, array: Array) -> NDArray[Any]:
        return array.get()

    def shares_memory(self, a: Array, b: Array) -> bool:
        return bool(self.native.shares_memory(a, b))


class MLXLibrary(ArrayLibrary):
    """MLX on its default device."""

    name = package = "mlx"
    title = "MLX"
    module = "mlx.core"
    floats = ("float16", "bfloat16", "float32", "float64")
    reasons = MappingProxyType({
        "float64": "MLX has float64 on the CPU only", "lazy": "an array does not show whether it is computed",
    })  # fmt: skip

    @property
    def dtypes(self) -> list[str]:
        on_cpu = self.native.default_device() == self.native.Device(self.native.cpu, 0)
        return list(self.floats if on_cpu else self.floats[:3])

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        array = widened(np.asarray(array))
        same_dtype = self.native.array(array, self.dtype(array.dtype.name))
        return same_dtype.astype(self.dtype(dtype or array.dtype.name))

    def to_numpy(self, array: Array) -> NDArray[Any]:
        is_bfloat16 = array.dtype == self.native.bfloat16  # which NumPy lacks
        return np.array(array.astype(self.native.float32) if is_bfloat16 else array)

    def copied(self, array: Array) -> Array:
        return self.native.array(array)

    def pullback(self, f: Function, x: Any) -> tuple[Any, Function]:
        def pull(cotangent: Any) -> Any:
            if not isinstance(x, tuple):
                return self.native.vjp(f, [x], [cotangent])[1][0]
            return tuple(self.native.vjp(lambda *xs: f(xs), [*x], [*cotangent])[1])

        return f(x), pull

    def second_gradient(self, f: Function, x: Array, g: Array, h: Array) -> Array | None:
        return self.native.vjp(lambda cotangent: self.native.vjp(f, [x], [cotangent])[1][0], [g], [h])[1][0]

    def traced(self, f: Function) -> Function:
        return self.native.compile(f)


class TensorFlowLibrary(ArrayLibrary):
    """TensorFlow's tensors."""

    name = module = "tensorflow"
    title = "TensorFlow"
    package = "tensorflow-cpu"
    floats = ("float16", "bfloat16", "float32", "float64")

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        tensor = self.native.constant(np.array(array))
        return tensor if dtype is None else self.native.cast(tensor, self.dtype(dtype))

    def to_numpy(self, array: Array) -> NDArray[Any]:
        return widened(array.numpy())

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        return self.native.transpose(array, axes)

    def copied(self, array: Array) -> Array:
        return self.native.identity(array)

    def pullback(self, f: Function, x: Any) -> tuple[Any, Function]:
        with self.native.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = f(x)
        return y, lambda cotangent: tape.gradient(y, x, cotangent)

    def second_gradient(self, f: Function, x: Array, g: Array, h: Array) -> Array | None:
        with self.native.GradientTape() as tape:
            tape.watch(g)
            _y, pull = self.pullback(f, x)
            pulled = pull(g)
        return tape.gradient(pulled, g, h)

    def traced(self, f: Function) -> Function:
        return self.native.function(f, autograph=False)


class NDonnxLibrary(ArrayLibrary):
    """ndonnx: arrays of values, and of ONNX graphs that ONNX Runtime runs."""

    name = title = package = module = "ndonnx"

    def to_numpy(self, array: Array) -> NDArray[Any]:
        return np.asarray(array.unwrap_numpy())

    def copied(self, array: Array) -> Array:
        return array.copy()

    def traced(self, f: Function) -> Function:
        def run(*arrays: Array) -> Array:
            names = [f"input{i}" for i, _ in enumerate(arrays)]
            inputs = [self.native.argument(shape=array.shape, dtype=array.dtype) for array in arrays]
            model = self.native.build(dict(zip(names, inputs, strict=True)), {"y": f(*inputs)})
            session = import_module("onnxruntime").InferenceSession(model.SerializeToString())
            values = map(self.to_numpy, arrays)
            return self.asarray(session.run(None, dict(zip(names, values, strict=True)))[0])

        return run


class MArrayLibrary(ArrayLibrary):
    """marray over NumPy, with no element masked."""

    name = title = package = module = "marray"
    floats = ("float32", "float64")

    @cached_property
    def xp(self) -> Any:
        return self.native.numpy  # each look-up makes a namespace, with an array type of its own

    def to_numpy(self, array: Array) -> NDArray[Any]:
        return np.asarray(array.data)

    def copied(self, array: Array) -> Array:
        return self.xp.asarray(array, copy=True)


LIBRARIES = (
    CuPyLibrary(),
    StrictLibrary(),
    StrictLibrary(
        "array_api_strict:device1",
        device="device1",
        configuration=f"{StrictLibrary.configuration}; arrays on device1",
    ),
    StrictLibrary(
        "array_api_strict:no_x64",
        device="no_x64",
        configuration=f"{StrictLibrary.configuration}; arrays on no_x64",
        floats=("float32",),
        integers=ArrayLibrary.integers[1:],
    ),
    MLXLibrary(),
    TensorFlowLibrary(),
    NDonnxLibrary(),
    MArrayLibrary(),
)
