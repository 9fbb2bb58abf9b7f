"""The array libraries that the suite knows: the ways into and out of each, and what each lacks.

This is the one table of what a library can do. The tests' marks, the command line and the documentation's
table are made from it. A library is imported when something is asked of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from decimal import getcontext
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any


class MissingLibrary(ImportError):
    """A library that was asked for is not installed, or has no device of the kind asked for."""


class Library:
    """One array library, in one configuration.

    Attributes
    ----------
    name
        What the suite calls it: "torch", or "torch:cuda" with a configuration.
    module
        What is imported.
    namespace
        The Array API namespace, as array-api-compat completes it.
    floats
        Names of the floating dtypes that a result may be asked in.
    integers
        Names of the integer dtypes that positions may have; the first is the widest.
    gaps
        What it cannot do, each capability with its reason: the declared table.
    calls
        How many calls of different shapes and fields are quick: fewer where each is compiled.
    """

    name = ""
    module = ""
    namespace = ""
    floats: tuple[str, ...] = ("float16", "float32", "float64")
    integers: tuple[str, ...] = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32")
    gaps: Mapping[str, str] = MappingProxyType({})
    calls = 1000

    def __repr__(self) -> str:
        return self.name

    @property
    def label(self) -> str:
        """A name fit for a test's id."""
        return self.name

    @cached_property
    def native(self) -> Any:
        """The library itself."""
        try:
            return import_module(self.module)
        except ModuleNotFoundError as error:
            root = self.module.partition(".")[0]
            raise MissingLibrary(
                f"{self.name} needs the package {root}, which cannot be imported: {error}"
            ) from None

    @property
    def xp(self) -> Any:
        """The Array API namespace."""
        return import_module(self.namespace)

    @property
    def version(self) -> str:
        """The library's version."""
        self.native  # noqa: B018 (says what is missing)
        return str(import_module(self.module.partition(".")[0]).__version__)

    def check_present(self) -> None:
        """Raise `MissingLibrary` where the library, or its device, is not there."""
        self.native  # noqa: B018

    @property
    def dtypes(self) -> list[str]:
        """Names of the floating dtypes."""
        return list(self.floats)

    @property
    def lacks(self) -> dict[str, str]:
        """What it cannot do here, and why: `gaps`, less the dtypes that are there after all."""
        return {name: reason for name, reason in self.gaps.items() if name not in self.dtypes}

    def dtype(self, name: str) -> Any:
        """Return the library's own object for a dtype."""
        return getattr(self.xp, name)

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        """Make an array of NumPy's numbers, where the configuration says."""
        return self.xp.asarray(array, dtype=None if dtype is None else self.dtype(dtype))

    def to_numpy(self, array: Array) -> NDArray[Any]:
        """Return an array's values: NumPy's, bfloat16 as float32."""
        return widened(np.asarray(array))

    def owns(self, value: Any) -> bool:
        """Tell whether a value is an array of the library."""
        return isinstance(value, type(self.asarray(np.zeros(1, np.float32))))

    def dtype_of(self, array: Array) -> str:
        """Name an array's dtype."""
        return getattr(array.dtype, "name", None) or str(array.dtype).rpartition(".")[2]

    def device_of(self, array: Array) -> str:
        """Say where an array is."""
        return str(getattr(array, "device", "cpu"))

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        """Reorder axes."""
        return self.native.permute_dims(array, axes)

    def stack(self, arrays: list[Array]) -> Array:
        """Stack arrays along a new first axis."""
        return self.native.stack(arrays)

    def gradient(self, f: Callable[[Array], Array], x: Array, cotangent: Array) -> Array:
        """Pull a cotangent of f's result back to x."""
        raise NotImplementedError

    def running(self) -> AbstractContextManager[Any]:
        """Return the context in which the library is used."""
        return nullcontext()

    def strided(self, array: Array, *, exotic: bool = False) -> Iterator[tuple[str, Array]]:
        """Make arrays of the same values whose memory is laid otherwise, each with a name."""
        backwards = tuple(range(array.ndim))[::-1]
        yield "transposed", self.permute(self._packed(self.permute(array, backwards)), backwards)
        two = self.stack([array, array])
        yield "a slice", two[1, ...]
        yield "every second", self._packed(self.permute(two, (1, 2, 3, 0, 4)))[:, :, :, 1, :]

    def expanded(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Broadcast an array to a shape, its memory shared where the library can."""
        return self.xp.broadcast_to(array, shape)

    def parts(self, array: Array) -> Iterator[tuple[str, Array, Array]]:
        """Make arrays of the same values within larger ones, each with a name and the larger one."""
        yield from ()

    def _packed(self, array: Array) -> Array:
        # Through one axis, as a copy and a sum keep the order that the axes have in memory.
        return self.xp.reshape(self.xp.reshape(array, (-1,)), array.shape)

    def snapshot(self, array: Array) -> bytes:
        """Return an array's bits, to see whether it was written."""
        return np.ascontiguousarray(self.to_numpy(array)).tobytes()

    def shares_memory(self, a: Array, b: Array) -> bool:
        """Tell whether writing to one array could show in another."""
        return False

    def advance(self, array: Array) -> bool:
        """Add 1 to an array of positions where it lies; False where arrays cannot be written."""
        return False

    def defaults(self) -> dict[str, Any]:
        """Return the library's settings that a call might change."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return these, and what else of the process it might change."""
        return {
            **self.defaults(),
            "NumPy's error handling": np.geterr(),
            "NumPy's random state": str(np.random.get_state()),  # noqa: NPY002 (that of the process)
            "Python's random state": hash(random.getstate()),
            "the precision of decimal": getcontext().prec,
        }

    def thread(self) -> AbstractContextManager[Any]:
        """Return the context that a thread needs beside that of `running`."""
        return nullcontext()

    def is_lazy(self, array: Array) -> bool:
        """Tell whether an array is not computed yet."""
        return False

    def traced(self, f: Callable[..., Array]) -> Callable[..., Array]:
        """Compile a function of arrays."""
        raise NotImplementedError

    def poisoned(self, array: Array) -> Array:
        """Make an array like another, that raises when it is computed."""
        raise NotImplementedError

    def settings(self) -> str:
        """Say in what configuration it is."""
        return ""


_EAGER = {"lazy": "arrays are computed at once"}
_PLAIN = {"gradient": "the library has no gradients", "jit": "the library has no compiler"}


class NumPy(Library):
    """NumPy, with bfloat16 where ml_dtypes is installed."""

    name = module = "numpy"
    namespace = "array_api_compat.numpy"
    gaps = MappingProxyType({"bfloat16": "NumPy has bfloat16 through ml_dtypes alone", **_PLAIN, **_EAGER})

    @property
    def dtypes(self) -> list[str]:
        return [*self.floats, *(["bfloat16"] if find_spec("ml_dtypes") else [])]

    def dtype(self, name: str) -> Any:
        return numpy_dtype(name)

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        return np.array(array, dtype=None if dtype is None else numpy_dtype(dtype))

    def owns(self, value: Any) -> bool:
        return type(value) is np.ndarray  # a subclass may multiply otherwise

    def dtype_of(self, array: Array) -> str:
        return str(array.dtype.name if array.dtype.isnative else array.dtype.str)

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        return np.transpose(array, axes)

    def expanded(self, array: Array, shape: tuple[int, ...]) -> Array:
        return np.broadcast_to(array, shape)

    def parts(self, array: Array) -> Iterator[tuple[str, Array, Array]]:
        for name, index, larger in _parts(array):
            whole = np.full(larger, 7, array.dtype)
            whole[index] = array
            yield name, whole[index], whole

    def advance(self, array: Array) -> bool:
        if array.flags.writeable:
            array += 1
        return bool(array.flags.writeable)

    def strided(self, array: Array, *, exotic: bool = False) -> Iterator[tuple[str, Array]]:
        yield from super().strided(array)
        yield "reversed", array[..., ::-1, ::-1].copy()[..., ::-1, ::-1]
        yield "Fortran order", np.asfortranarray(array)
        fixed = array.copy()
        fixed.flags.writeable = False
        yield "read-only", fixed
        if exotic:
            yield from self._exotic(array)

    def _exotic(self, array: Array) -> Iterator[tuple[str, Array]]:
        if array.dtype.kind == "f":  # which ml_dtypes' bfloat16 is not
            yield "the other byte order", array.astype(array.dtype.newbyteorder())
        shifted = np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:]
        yield "unaligned", shifted.view(array.dtype).reshape(array.shape)

    def shares_memory(self, a: Array, b: Array) -> bool:
        return np.shares_memory(a, b)


class ReadOnlyNumPy(NumPy):
    """NumPy, every array read-only."""

    name = "numpy:readonly"

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        made = super().asarray(array, dtype)
        made.flags.writeable = False
        return made

    def settings(self) -> str:
        return "every array read-only"


class Strict(Library):
    """array-api-strict: what the standard has and no more, its strictest flags set."""

    name = "array_api_strict"
    module = namespace = "array_api_strict"
    floats = ("float32", "float64")
    gaps = MappingProxyType(
        {"float16": "the standard has none", "bfloat16": "the standard has none", **_PLAIN, **_EAGER}
    )

    @property
    def label(self) -> str:
        return "strict"

    def to_numpy(self, array: Array) -> NDArray[Any]:
        return np.from_dlpack(array)

    def running(self) -> AbstractContextManager[Any]:
        flags: AbstractContextManager[Any] = self.native.ArrayAPIStrictFlags(
            boolean_indexing=False, data_dependent_shapes=False, enabled_extensions=()
        )
        return flags

    def settings(self) -> str:
        return "no boolean indexing, data-dependent shapes or extensions"


class StrictDevice1(Strict):
    """array-api-strict on a device that is not the default one."""

    name = "array_api_strict:device1"

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        made = super().asarray(array, dtype)
        return self.xp.asarray(made, device=self.native.Device("device1"))

    def to_numpy(self, array: Array) -> NDArray[Any]:
        return super().to_numpy(self.xp.asarray(array, device=self.native.Device("CPU_DEVICE")))

    def settings(self) -> str:
        return f"{super().settings()}; arrays on device1"


class Dask(Library):
    """dask: arrays in chunks, two along each axis but the last."""

    name = "dask"
    module = "dask.array"
    namespace = "array_api_compat.dask.array"
    gaps = MappingProxyType({"bfloat16": "dask is tried with NumPy's own dtypes", **_PLAIN})

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        array = np.asarray(array, dtype=None if dtype is None else numpy_dtype(dtype))
        chunks = tuple(max(1, (n + 1) // 2) for n in array.shape[:-1]) + array.shape[-1:]
        return self.xp.asarray(self.native.from_array(array, chunks=chunks))

    def dtype(self, name: str) -> Any:
        return numpy_dtype(name)

    def to_numpy(self, array: Array) -> NDArray[Any]:
        return widened(np.asarray(array.compute()))

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        return self.native.transpose(array, axes)

    def is_lazy(self, array: Array) -> bool:
        return self.owns(array)

    def poisoned(self, array: Array) -> Array:
        return array.map_blocks(_computed, dtype=array.dtype, meta=np.empty((0,) * array.ndim, array.dtype))

    def running(self) -> AbstractContextManager[Any]:
        # One thread: the arrays here are small, and a pool would be made anew for each.
        context: AbstractContextManager[Any] = import_module("dask").config.set(scheduler="synchronous")
        return context


class Jax(Library):
    """JAX as it comes, without 64-bit numbers."""

    name = "jax"
    module = "jax"
    namespace = "jax.numpy"
    floats: tuple[str, ...] = ("float16", "bfloat16", "float32")
    integers: tuple[str, ...] = ("int32", "int16", "int8", "uint8", "uint16", "uint32")
    x64 = False
    platform = "cpu"
    calls = 40
    gaps = MappingProxyType(
        {
            "float64": "JAX without x64 has no float64",
            "wide_positions": "JAX without x64 has no 64-bit integers",
            **_EAGER,
        }
    )

    @property
    def dtypes(self) -> list[str]:
        # As the process is configured; `running` narrows it to the floats named here.
        wide = "float64" in self.floats or import_module("jax").config.jax_enable_x64
        return [*Jax.floats, *(["float64"] if wide else [])]

    def running(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self.native.enable_x64(self.x64)
        return context

    def check_present(self) -> None:
        try:
            self.native.devices(self.platform)
        except RuntimeError as error:
            raise MissingLibrary(
                f"{self.name} needs a device of JAX's platform {self.platform!r}: {error}"
            ) from None

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        made = super().asarray(array, dtype)
        return (
            made
            if self.platform == "cpu"
            else self.native.device_put(made, self.native.devices(self.platform)[0])
        )

    def dtype(self, name: str) -> Any:
        return getattr(import_module("jax.numpy"), name)

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        return import_module("jax.numpy").permute_dims(array, axes)

    def stack(self, arrays: list[Array]) -> Array:
        return import_module("jax.numpy").stack(arrays)

    def gradient(self, f: Callable[[Array], Array], x: Array, cotangent: Array) -> Array:
        return self.native.vjp(f, x)[1](cotangent)[0]

    def traced(self, f: Callable[..., Array]) -> Callable[..., Array]:
        compiled: Callable[..., Array] = self.native.jit(f)
        return compiled

    def defaults(self) -> dict[str, Any]:
        config = self.native.config
        names = ("jax_enable_x64", "jax_default_device", "jax_default_matmul_precision", "jax_disable_jit")
        return {name: str(getattr(config, name)) for name in names}

    def thread(self) -> AbstractContextManager[Any]:
        return self.running()


class JaxX64(Jax):
    """JAX with 64-bit numbers."""

    name = "jax:x64"
    x64 = True
    floats = (*Jax.floats, "float64")
    integers = Library.integers
    gaps = MappingProxyType(_EAGER)

    def settings(self) -> str:
        return "x64"


class JaxGPU(Jax):
    """JAX on a GPU."""

    name = "jax:gpu"
    platform = "gpu"


class Torch(Library):
    """PyTorch on the CPU."""

    name = module = "torch"
    namespace = "array_api_compat.torch"
    floats = ("float16", "bfloat16", "float32", "float64")
    device = "cpu"
    gaps = MappingProxyType({"jit": "torch.compile is a target of its own: torch:compile", **_EAGER})

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        torch = self.native
        array = np.array(array, order="C")  # a copy: torch warns of read-only memory
        if array.dtype.name == "bfloat16":
            tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(array)
        tensor = tensor if self.device == "cpu" else tensor.to(self.device)
        return tensor if dtype is None else tensor.to(self.dtype(dtype))

    def dtype(self, name: str) -> Any:
        return getattr(self.native, name)

    def to_numpy(self, array: Array) -> NDArray[Any]:
        array = array.detach().cpu().resolve_conj()
        numbers: NDArray[Any] = (array.float() if array.dtype == self.native.bfloat16 else array).numpy()
        return numbers

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        return self.native.permute(array, axes)

    def expanded(self, array: Array, shape: tuple[int, ...]) -> Array:
        return array.expand(shape)

    def parts(self, array: Array) -> Iterator[tuple[str, Array, Array]]:
        for name, index, larger in _parts(array):
            whole = self.native.full(larger, 7.0, dtype=array.dtype, device=array.device)
            whole[index] = array
            yield name, whole[index], whole

    def advance(self, array: Array) -> bool:
        array.add_(1)
        return True

    def defaults(self) -> dict[str, Any]:
        torch = self.native
        return {
            "PyTorch's default dtype": torch.get_default_dtype(),
            "whether PyTorch records gradients": torch.is_grad_enabled(),
            "PyTorch's deterministic mode": torch.are_deterministic_algorithms_enabled(),
        }

    def state(self) -> dict[str, Any]:
        random_state = hash(self.native.get_rng_state().numpy().tobytes())
        return {**super().state(), "PyTorch's random state": random_state}

    def gradient(self, f: Callable[[Array], Array], x: Array, cotangent: Array) -> Array:
        x = x.detach().clone().requires_grad_(True)
        (pulled,) = self.native.autograd.grad(f(x), x, cotangent)
        return pulled

    def shares_memory(self, a: Array, b: Array) -> bool:
        return bool(
            a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() and a.numel() and b.numel()
        )


class TorchMeta(Torch):
    """PyTorch on the meta device: shapes and dtypes, no values."""

    name = "torch:meta"
    device = "meta"
    gaps = MappingProxyType({"values": "the meta device has no values", **Torch.gaps})

    def snapshot(self, array: Array) -> bytes:
        return b""

    def shares_memory(self, a: Array, b: Array) -> bool:
        return False

    def settings(self) -> str:
        return "shapes and dtypes only"


class TorchCUDA(Torch):
    """PyTorch on a GPU."""

    name = "torch:cuda"
    device = "cuda"

    def check_present(self) -> None:
        if not self.native.cuda.is_available():
            raise MissingLibrary(
                "torch:cuda needs a GPU that PyTorch can use; torch.cuda.is_available() is False"
            )


class CuPy(Library):
    """CuPy on its current GPU."""

    name = module = "cupy"
    namespace = "array_api_compat.cupy"
    gaps = MappingProxyType({"bfloat16": "CuPy has no bfloat16 arithmetic", **_PLAIN, **_EAGER})

    def check_present(self) -> None:
        try:
            self.native.cuda.runtime.getDeviceCount()
        except Exception as error:  # a missing driver raises CuPy's own errors
            raise MissingLibrary(f"cupy needs a GPU: {error}") from None

    def to_numpy(self, array: Array) -> NDArray[Any]:
        numbers: NDArray[Any] = array.get()
        return numbers

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        return self.native.transpose(array, axes)

    def shares_memory(self, a: Array, b: Array) -> bool:
        return bool(self.native.shares_memory(a, b))


# Compiling takes seconds. Of dtypes, one that is rotated as it is and one that is widened are compiled.
NOT_COMPILED = {
    **dict.fromkeys(
        ("float16", "float64", "narrow_heads", "widths", "wide_heads", "python_positions"),
        "not compiled here, to save time; the target without a compiler has it",
    ),
    "threads": "compiled code is called by one thread here",
}

LIBRARIES: dict[str, Library] = {
    lib.name: lib
    for lib in (
        NumPy(),
        ReadOnlyNumPy(),
        Strict(),
        StrictDevice1(),
        Dask(),
        Jax(),
        JaxX64(),
        JaxGPU(),
        Torch(),
        TorchMeta(),
        TorchCUDA(),
        CuPy(),
    )
}


def _computed(block: Any) -> Any:
    raise AssertionError("an array was computed before its values were asked for")


def _parts(array: Array) -> Iterator[tuple[str, tuple[Any, ...], tuple[int, ...]]]:
    """Yield places of an array within larger ones: each with its index, and the larger shape."""
    b, h, s, d = array.shape
    yield "rows of a longer array", np.s_[:, :, 2 : s + 2, :], (b, h, s + 4, d)
    yield "features of a wider array", np.s_[:, :, :, d : 2 * d], (b, h, s, 3 * d)


def numpy_dtype(name: str) -> Any:
    """Return NumPy's object for a dtype; that of ml_dtypes for bfloat16."""
    return import_module("ml_dtypes").bfloat16 if name == "bfloat16" else np.dtype(name)


def widened(array: NDArray[Any]) -> NDArray[Any]:
    """Return bfloat16 as float32, which NumPy knows, and every other array as it is."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def rounded(values: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """Round numbers to a dtype and return them in float64: every library starts from the same ones."""
    if dtype != "bfloat16":
        return values.astype(dtype).astype(np.float64)
    # NumPy lacks it: the upper half of a float32, rounded to even.
    bits = values.astype(np.float32).view(np.uint32)
    bits = bits + 0x7FFF + (bits >> 16 & 1) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)
