"""The array libraries that the suite knows: conversions, capabilities and gaps of each.

The tests' marks, the command line and the documentation's table are made from this table. A library is
imported on first use.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from threading import Thread
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._settings import lasting_settings, process_settings
from ._triton_interpreter import use_interpreter

Array = Any


class MissingLibrary(ImportError):
    """A library is not installed, or has no device of the needed kind."""


class Library:
    """One array library, in one configuration.

    Attributes
    ----------
    name
        The library's name in the suite: "torch", or "torch:cuda" with a configuration.
    module
        The module to import.
    namespace
        The module of the Array API namespace, from array-api-compat where it has one.
    floats
        Names of the floating dtypes.
    integers
        Names of the integer dtypes that positions may have; the first is the widest.
    gaps
        The capabilities that it lacks, each with the reason.
    calls
        Number of calls in `combinations`: few if each is compiled.
    has_strides
        Whether its arrays may have any strides.
    backend
        The backend of rope_array that this configuration is for, or None.
    compiles
        Whether the library has a compiler for this configuration.
    """

    name = ""
    module = ""
    namespace = ""
    floats: tuple[str, ...] = ("float16", "float32", "float64")
    integers: tuple[str, ...] = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32")
    gaps: Mapping[str, str] = MappingProxyType({})
    calls = 1000
    has_strides = True
    backend: str | None = None
    compiles = False

    def __repr__(self) -> str:
        return self.name

    @property
    def label(self) -> str:
        """The name in test ids."""
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
        self.native  # noqa: B018 (raises MissingLibrary)
        return str(import_module(self.module.partition(".")[0]).__version__)

    def check_present(self) -> None:
        """Raise `MissingLibrary` if the library or its device is missing."""
        self.native  # noqa: B018

    @property
    def dtypes(self) -> list[str]:
        """Names of the floating dtypes."""
        return list(self.floats)

    @cached_property
    def lacks(self) -> dict[str, str]:
        """The missing capabilities with reasons: `gaps` without the dtypes that are available here."""
        available = self.dtypes
        return {name: reason for name, reason in self.gaps.items() if name not in available}

    def dtype(self, name: str) -> Any:
        """Return the library's own object for a dtype."""
        return getattr(self.xp, name)

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        """Convert a NumPy array, on the configured device."""
        return self.xp.asarray(array, dtype=None if dtype is None else self.dtype(dtype))

    def to_numpy(self, array: Array) -> NDArray[Any]:
        """Convert to NumPy, bfloat16 to float32."""
        return widened(np.asarray(array))

    def owns(self, value: Any) -> bool:
        """Return whether a value is an array of the library."""
        return isinstance(value, type(self.asarray(np.zeros(1, np.float32))))

    def dtype_of(self, array: Array) -> str:
        """Return the name of an array's dtype."""
        return getattr(array.dtype, "name", None) or str(array.dtype).rpartition(".")[2]

    def device_of(self, array: Array) -> str:
        """Return an array's device as a string."""
        return str(getattr(array, "device", "cpu"))

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        """Reorder axes."""
        return self.native.permute_dims(array, axes)

    def stack(self, arrays: list[Array]) -> Array:
        """Stack arrays along a new first axis."""
        return self.native.stack(arrays)

    def pullback(self, f: Callable[[Any], Any], x: Any) -> tuple[Any, Callable[[Any], Any]]:
        """Return f(x), recorded for gradients, and its vector-Jacobian product; x may be a tuple."""
        raise NotImplementedError

    def pulled_twice(self, pull: Callable[[Any], Any], cotangent: Any) -> tuple[Any, Any]:
        """Return two results of a `pullback`'s product."""
        return pull(cotangent), pull(cotangent)

    def gradient(self, f: Callable[[Array], Array], x: Array, cotangent: Array) -> Array:
        """Return the vector-Jacobian product of f at x with a cotangent."""
        return self.pullback(f, x)[1](cotangent)

    def second_gradient(self, f: Callable[[Array], Array], x: Array, g: Array, h: Array) -> Array | None:
        """Return the gradient, by g, of the inner product of h and f's gradient at x with cotangent g.

        None if the gradient does not depend on g, as far as the library knows.
        """
        raise NotImplementedError

    def running(self) -> AbstractContextManager[Any]:
        """Return the context manager for using the library."""
        return nullcontext()

    def strided(self, array: Array) -> Iterator[tuple[str, Array]]:
        """Yield names and arrays of the same values with other strides or memory."""
        backwards = tuple(range(array.ndim))[::-1]
        yield "transposed", self.permute(self._packed(self.permute(array, backwards)), backwards)
        two = self.stack([array, array])
        yield "a slice", two[1, ...]
        yield "every second", self._packed(self.permute(two, (1, 2, 3, 0, 4)))[:, :, :, 1, :]
        yield "every second feature", self._packed(self.permute(two, (1, 2, 3, 4, 0)))[..., 0]
        # q, k and v in one array (B, S, 3, H, D), of which x is k.
        three = self._packed(self.permute(self.stack([array] * 3), (1, 3, 0, 2, 4)))
        yield "a fused projection", self.permute(three[:, :, 1, ...], (0, 2, 1, 3))

    def exotic(self, array: Array) -> Iterator[tuple[str, Array]]:
        """Yield names and arrays of the same values in memory that few programs have."""
        yield from ()

    def expanded(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Broadcast an array to a shape, as a view if the library has views."""
        return self.xp.broadcast_to(array, shape)

    def copied(self, array: Array) -> Array:
        """Return a copy that can be written, with the same strides where they do not overlap."""
        raise NotImplementedError

    def part_of(self, array: Array, index: slice) -> Array | None:
        """Return a part of an array of one axis, or None if the library has no such part."""
        return array[index]

    def parts(self, array: Array) -> Iterator[tuple[str, Array, Array]]:
        """Yield names, views of the same values in larger arrays, and the larger arrays."""
        yield from ()

    def _packed(self, array: Array) -> Array:
        # Reshaping to one axis makes C order; a copy keeps the strides' order.
        return self.xp.reshape(self.xp.reshape(array, (-1,)), array.shape)

    def snapshot(self, array: Array) -> bytes:
        """Return an array's shape and bits, to detect writes."""
        return f"{tuple(array.shape)}".encode() + np.ascontiguousarray(self.to_numpy(array)).tobytes()

    def shares_memory(self, a: Array, b: Array) -> bool:
        """Return whether two arrays share memory."""
        return False

    def strides_of(self, array: Array) -> tuple[int, ...] | None:
        """Return an array's strides in one unit, or None if arrays have none."""
        return None

    def shifted(self, array: Array) -> Iterator[tuple[str, Array]]:
        """Yield names and arrays of the same values that start inside a longer memory."""
        yield from ()

    def is_writable(self, array: Array) -> bool:
        """Return whether an array can be written, or no array of the library can."""
        return True

    def overwrite(self, array: Array) -> bool:
        """Write 7 to every element; return False if arrays cannot be written."""
        return False

    def watch(self, array: Array) -> Callable[[], bool]:
        """Return a function that tells whether the array is still in memory; it does not keep it there."""
        try:
            reference = weakref.ref(array)
        except TypeError:  # arrays without weak references
            return lambda: False
        return lambda: reference() is not None

    def advance(self, array: Array) -> bool:
        """Add 1 to an array of positions in place; return False if arrays cannot be written."""
        return False

    def is_deleted(self, array: Array) -> bool:
        """Return whether an array was deleted: its memory was given away."""
        return False

    def defaults(self) -> dict[str, Any]:
        """Return lasting settings, of the library and of the process, which a call should not change."""
        return lasting_settings()

    def state(self) -> dict[str, Any]:
        """Return `defaults` and other settings of the process."""
        return {**self.defaults(), **process_settings()}

    def thread(self) -> AbstractContextManager[Any]:
        """Return the context manager that each thread needs in addition to `running`."""
        return nullcontext()

    def unusual(self) -> AbstractContextManager[Any] | None:
        """Return the context of other settings, for threads that set none themselves, or None."""
        return None

    def is_lazy(self, array: Array) -> bool:
        """Return whether an array is not computed yet."""
        return False

    def traced(self, f: Callable[..., Array]) -> Callable[..., Array]:
        """Compile a function of arrays."""
        raise NotImplementedError

    def in_shards(self, f: Callable[[Array, Array], Array], x: Array, pos: Array) -> Array:
        """Call f on each device's part of a sequence, the axis -2 of x and the last of pos."""
        raise NotImplementedError  # only JaxSharded claims `shards`

    def poisoned(self, array: Array) -> Array:
        """Return an array of the same shape and dtype that raises when it is computed."""
        raise NotImplementedError

    def settings(self) -> str:
        """Describe the configuration; empty for the default."""
        return ""


# Elements before an array in a longer memory: no multiple of a vector's width.
_SHIFTS = (1, 3)
_WHOLE = {"shards": "jax:sharded has several devices"}
_EAGER = {"lazy": "arrays are computed at once", **_WHOLE}
_NO_MODE = "the library has no such mode"
_OF_TORCH = dict.fromkeys(
    ("no_grad", "inference_mode", "autocast", "default_device", "deterministic"), _NO_MODE
)
_NOT_MAPPED = dict.fromkeys(
    ("default_dtype", "vmap", "vmap_positions", "jvp"), "the suite has this mode for JAX and PyTorch only"
)
_PLAIN = {
    **_WHOLE,
    "gradient": "the library has no gradients",
    "jit": "the library has no compiler",
    **_OF_TORCH,
    **dict.fromkeys(("default_dtype", "vmap", "vmap_positions", "jvp"), _NO_MODE),
}


class NumPy(Library):
    """NumPy, with bfloat16 where ml_dtypes is installed."""

    name = module = "numpy"
    namespace = "array_api_compat.numpy"
    gaps = MappingProxyType({"bfloat16": "NumPy has bfloat16 only through ml_dtypes", **_PLAIN, **_EAGER})

    @property
    def dtypes(self) -> list[str]:
        return [*self.floats, *(["bfloat16"] if find_spec("ml_dtypes") else [])]

    def dtype(self, name: str) -> Any:
        return numpy_dtype(name)

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        return np.array(array, dtype=None if dtype is None else numpy_dtype(dtype))

    def owns(self, value: Any) -> bool:
        return type(value) is np.ndarray  # a subclass may redefine multiplication

    def dtype_of(self, array: Array) -> str:
        return str(array.dtype.name if array.dtype.isnative else array.dtype.str)

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        return np.transpose(array, axes)

    def copied(self, array: Array) -> Array:
        strides = array.strides
        if not array.size or any(n > 1 and not step for n, step in zip(array.shape, strides, strict=True)):
            return np.array(array)
        spans = [(n - 1) * step for n, step in zip(array.shape, strides, strict=True)]
        start = -sum(span for span in spans if span < 0)
        memory = np.zeros(start + sum(span for span in spans if span > 0) + array.itemsize, np.uint8)
        copy: Array = np.ndarray(array.shape, array.dtype, memory, start, strides)
        copy[...] = array
        return copy

    def parts(self, array: Array) -> Iterator[tuple[str, Array, Array]]:
        for name, index, larger in _parts(array):
            whole = np.full(larger, 7, array.dtype)
            whole[index] = array
            yield name, whole[index], whole

    def advance(self, array: Array) -> bool:
        if array.flags.writeable:
            array += 1
        return bool(array.flags.writeable)

    def strides_of(self, array: Array) -> tuple[int, ...] | None:
        return tuple(array.strides)

    def shifted(self, array: Array) -> Iterator[tuple[str, Array]]:
        for count in _SHIFTS:
            whole = np.full(array.size + count + 5, 7, array.dtype)
            part = whole[count : count + array.size].reshape(array.shape)
            part[...] = array
            yield f"{count} elements into its memory", part

    def is_writable(self, array: Array) -> bool:
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        # Memory of another library, such as JAX, may be read-only.
        return bool(array.flags.writeable) or root.base is not None

    def overwrite(self, array: Array) -> bool:
        if array.flags.writeable:
            array[...] = 7
        return bool(array.flags.writeable)

    def strided(self, array: Array) -> Iterator[tuple[str, Array]]:
        yield from super().strided(array)
        yield "reversed", array[..., ::-1, ::-1].copy()[..., ::-1, ::-1]
        yield "Fortran order", np.asfortranarray(array)
        fixed = array.copy()
        fixed.flags.writeable = False
        yield "read-only", fixed

    def exotic(self, array: Array) -> Iterator[tuple[str, Array]]:
        if array.dtype.kind in "fiu":  # not ml_dtypes' bfloat16
            yield "the other byte order", array.astype(array.dtype.newbyteorder())
        shifted = np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:]
        yield "unaligned", shifted.view(array.dtype).reshape(array.shape)

    def shares_memory(self, a: Array, b: Array) -> bool:
        return np.shares_memory(a, b)


class ReadOnlyNumPy(NumPy):
    """NumPy with read-only arrays."""

    name = "numpy:readonly"

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        made = super().asarray(array, dtype)
        made.flags.writeable = False
        return made

    copied = Library.copied

    def settings(self) -> str:
        return "read-only arrays"


class Strict(Library):
    """array-api-strict with its strictest flags: the standard's functions only."""

    name = "array_api_strict"
    module = namespace = "array_api_strict"
    floats: tuple[str, ...] = ("float32", "float64")
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
    place = "device1"

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        made = super().asarray(array, dtype)
        return self.xp.asarray(made, device=self.native.Device(self.place))

    def to_numpy(self, array: Array) -> NDArray[Any]:
        return super().to_numpy(self.xp.asarray(array, device=self.native.Device("CPU_DEVICE")))

    def settings(self) -> str:
        return f"{super().settings()}; arrays on {self.place}"


class StrictNoX64(StrictDevice1):
    """array-api-strict on a device without 64-bit dtypes."""

    name = "array_api_strict:no_x64"
    floats = ("float32",)
    integers = ("int32", "int16", "int8", "uint8", "uint16", "uint32")
    place = "no_x64"
    gaps = MappingProxyType(
        {
            **Strict.gaps,
            "float64": "the device has no float64",
            "mixed_dtypes": "the device has one floating dtype",
            "wide_positions": "the device has no 64-bit integers",
        }
    )


class Dask(Library):
    """dask: arrays in chunks, two along each axis but the last."""

    name = "dask"
    module = "dask.array"
    namespace = "array_api_compat.dask.array"
    gaps = MappingProxyType({"bfloat16": "dask is tested with NumPy's own dtypes", **_PLAIN})

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

    def state(self) -> dict[str, Any]:
        # dask.utils.disable_gc, around its optimization, ends with the setting at its import.
        return {name: value for name, value in super().state().items() if "garbage" not in name}

    def running(self) -> AbstractContextManager[Any]:
        # One thread: the arrays are small, and dask would start a thread pool for each.
        context: AbstractContextManager[Any] = import_module("dask").config.set(scheduler="synchronous")
        return context


class Cubed(Library):
    """cubed: arrays in chunks, two along each axis but the last."""

    name = module = "cubed"
    namespace = "cubed.array_api"
    gaps = MappingProxyType({"bfloat16": "cubed is tested with NumPy's own dtypes", **_PLAIN})
    calls = 40  # each takes tens of milliseconds
    has_strides = False

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        array = np.asarray(array, dtype=None if dtype is None else numpy_dtype(dtype))
        chunks = tuple(max(1, (n + 1) // 2) for n in array.shape[:-1]) + array.shape[-1:]
        return self.native.from_array(array, chunks=chunks)

    def dtype(self, name: str) -> Any:
        return numpy_dtype(name)

    def to_numpy(self, array: Array) -> NDArray[Any]:
        return widened(np.asarray(array.compute()))

    def is_lazy(self, array: Array) -> bool:
        return self.owns(array)

    def poisoned(self, array: Array) -> Array:
        return self.native.map_blocks(_computed, array, dtype=array.dtype)

    def strided(self, array: Array) -> Iterator[tuple[str, Array]]:
        yield "transposed", self.permute(self.asarray(self.to_numpy(array).T), (*range(array.ndim),)[::-1])

    def part_of(self, array: Array, index: slice) -> Array | None:
        return array[index] if (index.step or 1) > 0 else None  # cubed has no negative steps

    def watch(self, array: Array) -> Callable[[], bool]:
        return lambda: False  # each operation reads the callers' frames, which keeps their variables


class Jax(Library):
    """JAX with its defaults: no 64-bit numbers."""

    name = "jax"
    module = "jax"
    namespace = "jax.numpy"
    floats: tuple[str, ...] = ("float16", "bfloat16", "float32")
    integers: tuple[str, ...] = ("int32", "int16", "int8", "uint8", "uint16", "uint32")
    x64 = False
    platform = "cpu"
    calls = 40
    compiles = True
    has_strides = False
    gaps = MappingProxyType(
        {
            "float64": "JAX without x64 has no float64",
            "wide_positions": "JAX without x64 has no 64-bit integers",
            **_EAGER,
            **_OF_TORCH,
        }
    )

    @property
    def dtypes(self) -> list[str]:
        # As the process is configured; `running` narrows it to `floats`.
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
        # jax.numpy.asarray compiles a copy for each shape. A copy: JAX reads NumPy's own memory otherwise.
        array = np.array(array, dtype=None if dtype is None else numpy_dtype(dtype))
        places = () if self.platform == "cpu" else self.native.devices(self.platform)[:1]
        return self.native.device_put(array, *places)

    def strided(self, array: Array) -> Iterator[tuple[str, Array]]:
        # Arrays of JAX have no strides; the program that makes one is compiled for each shape.
        backwards = tuple(range(array.ndim))[::-1]
        yield (
            "transposed",
            self.permute(self.asarray(self.to_numpy(array).T, self.dtype_of(array)), backwards),
        )

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        return import_module("jax.numpy").permute_dims(array, axes)

    def stack(self, arrays: list[Array]) -> Array:
        return import_module("jax.numpy").stack(arrays)

    def pullback(self, f: Callable[[Any], Any], x: Any) -> tuple[Any, Callable[[Any], Any]]:
        y, pull = self.native.vjp(f, x)
        return y, lambda cotangent: pull(cotangent)[0]

    def is_deleted(self, array: Array) -> bool:
        return not isinstance(array, self.native.core.Tracer) and bool(array.is_deleted())

    def second_gradient(self, f: Callable[[Array], Array], x: Array, g: Array, h: Array) -> Array | None:
        return self.native.vjp(lambda cotangent: self.native.vjp(f, x)[1](cotangent)[0], g)[1](h)[0]

    def traced(self, f: Callable[..., Array]) -> Callable[..., Array]:
        compiled: Callable[..., Array] = self.native.jit(f)
        return compiled

    def defaults(self) -> dict[str, Any]:
        here = self._settings()
        # A setting changed for the process does not show in this thread if `running` has set it.
        return {
            **super().defaults(),
            **{f"{name} of the thread": value for name, value in here.items()},
            **_in_a_new_thread(self._settings),
        }

    def _settings(self) -> dict[str, str]:
        """Return every setting of JAX as the thread has it."""
        return {name: str(value) for name, value in self.native.config.values.items()}

    def thread(self) -> AbstractContextManager[Any]:
        return self.running()

    def copied(self, array: Array) -> Array:
        return self.xp.array(array, copy=True)

    @contextmanager
    def unusual(self) -> Iterator[None]:
        config = self.native.config
        usual = config.jax_enable_x64
        config.update("jax_enable_x64", not usual)
        try:
            yield
        finally:
            config.update("jax_enable_x64", usual)


class JaxX64(Jax):
    """JAX with 64-bit numbers."""

    name = "jax:x64"
    x64 = True
    floats = (*Jax.floats, "float64")
    integers = Library.integers
    gaps = MappingProxyType({**_EAGER, **_OF_TORCH})

    def settings(self) -> str:
        return "x64"


class JaxGPU(Jax):
    """JAX on a GPU."""

    name = "jax:gpu"
    platform = "gpu"


class JaxSharded(Jax):
    """JAX on eight devices of the CPU. The axes of x but the last are split; positions are whole."""

    name = "jax:sharded"
    compiles = False
    gaps = MappingProxyType({name: reason for name, reason in Jax.gaps.items() if name not in _WHOLE})

    def check_present(self) -> None:
        with suppress(RuntimeError):  # JAX has its devices already
            self.native.config.update("jax_num_cpu_devices", 8)
        if len(self.native.devices("cpu")) < 8:
            raise MissingLibrary(
                f"{self.name} needs 8 devices, and JAX runs with {len(self.native.devices('cpu'))}: start "
                "another process, or set XLA_FLAGS=--xla_force_host_platform_device_count=8."
            )

    @cached_property
    def mesh(self) -> Any:
        """The devices as a mesh of 2 x 2 x 2."""
        devices = np.array(self.native.devices("cpu")[:8]).reshape(2, 2, 2)
        return self.native.sharding.Mesh(devices, ("a", "b", "c"))

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        array = np.array(array, dtype=None if dtype is None else numpy_dtype(dtype))
        names = iter(self.mesh.axis_names)
        even = [size > 0 and size % 2 == 0 and array.ndim > 2 for size in array.shape[:-1]]
        parts = [next(names, None) if is_split else None for is_split in even]
        sharding = self.native.sharding
        place = sharding.NamedSharding(self.mesh, sharding.PartitionSpec(*parts))
        return self.native.device_put(array, place)

    def owns(self, value: Any) -> bool:
        # Not by an array of its own: under shard_map nothing can be put on devices.
        return isinstance(value, self.native.Array) and not isinstance(value, self.native.core.Tracer)

    def in_shards(self, f: Callable[[Array, Array], Array], x: Array, pos: Array) -> Array:
        sharding = self.native.sharding
        mesh = sharding.Mesh(self.mesh.devices.reshape(-1), ("sequence",))
        of_x, of_pos = (
            sharding.PartitionSpec(*[None] * (a.ndim - n), "sequence") for a, n in ((x, 2), (pos, 1))
        )
        mapped = self.native.shard_map(f, mesh=mesh, in_specs=(of_x, of_pos), out_specs=of_x)
        place = self.native.device_put
        y: Array = mapped(*(place(a, sharding.NamedSharding(mesh, p)) for a, p in ((x, of_x), (pos, of_pos))))
        return y

    def strided(self, array: Array) -> Iterator[tuple[str, Array]]:
        yield "as it is", array  # a transposed array has split features

    def device_of(self, array: Array) -> str:
        # XLA chooses how a result is split.
        is_traced = isinstance(array, self.native.core.Tracer)
        return "" if is_traced else str(sorted(device.id for device in array.devices()))

    def settings(self) -> str:
        return "on eight devices of the CPU"


class Torch(Library):
    """PyTorch on the CPU."""

    name = module = "torch"
    namespace = "array_api_compat.torch"
    floats = ("float16", "bfloat16", "float32", "float64")
    device = "cpu"
    compiles = True
    gaps = MappingProxyType(_EAGER)

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        torch = self.native
        array = np.array(array, order="C")  # copy, as torch warns about read-only memory
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

    def copied(self, array: Array) -> Array:
        return array.clone()

    def part_of(self, array: Array, index: slice) -> Array | None:
        return array[index] if (index.step or 1) > 0 else None  # strides are not negative

    def parts(self, array: Array) -> Iterator[tuple[str, Array, Array]]:
        for name, index, larger in _parts(array):
            whole = self.native.full(larger, 7.0, dtype=array.dtype, device=array.device)
            whole[index] = array
            yield name, whole[index], whole

    def advance(self, array: Array) -> bool:
        array.add_(1)
        return True

    def strides_of(self, array: Array) -> tuple[int, ...] | None:
        return tuple(array.stride())

    def shifted(self, array: Array) -> Iterator[tuple[str, Array]]:
        for count in _SHIFTS:
            whole = array.new_full((array.numel() + count + 5,), 7)
            part = whole[count : count + array.numel()].view(array.shape)
            part.copy_(array)
            yield f"{count} elements into its memory", part

    def overwrite(self, array: Array) -> bool:
        array.detach().fill_(7)
        return True

    def watch(self, array: Array) -> Callable[[], bool]:
        # A view that is kept keeps the memory, not the tensor.
        weak = import_module("torch.multiprocessing.reductions").StorageWeakRef
        reference = weak(array.untyped_storage())
        return lambda: not reference.expired()

    def traced(self, f: Callable[..., Array]) -> Callable[..., Array]:
        # Dynamo alone, as one graph: no compiler, which would take seconds. `torch:compile` has more of it.
        compiled: Callable[..., Array] = self.native.compile(
            with_own_code(f), backend="eager", fullgraph=True, dynamic=False
        )
        return compiled

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

    def pulled_twice(self, pull: Callable[..., Any], cotangent: Any) -> tuple[Any, Any]:
        return pull(cotangent, retain_graph=True), pull(cotangent)

    def pullback(self, f: Callable[[Any], Any], x: Any) -> tuple[Any, Callable[[Any], Any]]:
        # A leaf of the same memory and strides as x.
        leaves = [one.detach().requires_grad_(True) for one in (x if isinstance(x, tuple) else (x,))]
        y = f(tuple(leaves) if isinstance(x, tuple) else leaves[0])

        def pull(cotangent: Any, retain_graph: bool = False) -> Any:
            pulled = self.native.autograd.grad(y, leaves, cotangent, retain_graph=retain_graph)
            return pulled if isinstance(x, tuple) else pulled[0]

        return y, pull

    def second_gradient(self, f: Callable[[Array], Array], x: Array, g: Array, h: Array) -> Array | None:
        grad = self.native.autograd.grad
        x, g = x.detach().requires_grad_(True), g.detach().requires_grad_(True)
        (pulled,) = grad(f(x), x, g, create_graph=True)
        if not pulled.requires_grad:
            return None
        (found,) = grad(pulled, g, h, allow_unused=True, retain_graph=True)
        if found is None:
            pulled.backward(h)  # raises where once_differentiable says so
        return found

    def shares_memory(self, a: Array, b: Array) -> bool:
        if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
            return False
        # Two views of a storage may share no element.
        return bool(np.isin(self._addresses(a), self._addresses(b)).any())

    def _addresses(self, array: Array) -> NDArray[np.int64]:
        """Return the address of every element."""
        places = np.zeros(1, np.int64)
        for n, stride in zip(array.shape, array.stride(), strict=True):
            places = (places[:, None] + stride * np.arange(n)).ravel()
        return np.asarray(places * array.element_size() + array.data_ptr(), np.int64)


class TorchMeta(Torch):
    """PyTorch on the meta device: shapes and dtypes, no values."""

    name = "torch:meta"
    device = "meta"
    compiles = False
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


class TorchTritonInterpreted(Torch):
    """PyTorch on the CPU, by the Triton kernel in Triton's interpreter."""

    name = "torch:triton-interpret"
    backend = "triton"
    compiles = False
    calls = 40  # each takes milliseconds

    def check_present(self) -> None:
        self.native  # noqa: B018
        if reason := use_interpreter():
            raise MissingLibrary(f"{self.name} needs Triton's interpreter: {reason}")

    def settings(self) -> str:
        return "the Triton kernel, interpreted"


class CuPy(Library):
    """CuPy on its current GPU."""

    name = module = "cupy"
    namespace = "array_api_compat.cupy"
    gaps = MappingProxyType({"bfloat16": "CuPy holds bfloat16 only through ml_dtypes", **_PLAIN, **_EAGER})

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


class MLX(Library):
    """MLX on its default device."""

    name = "mlx"
    module = namespace = "mlx.core"
    floats = ("float16", "bfloat16", "float32", "float64")
    has_strides = False
    gaps = MappingProxyType(
        {
            "float64": "MLX has float64 on the CPU only",
            "lazy": "an array does not show whether it is computed",
            **_WHOLE,
            **_OF_TORCH,
            **_NOT_MAPPED,
        }
    )

    @property
    def version(self) -> str:
        return str(self.native.__version__)

    @property
    def dtypes(self) -> list[str]:
        on_cpu = self.native.default_device() == self.native.Device(self.native.cpu, 0)
        return list(self.floats if on_cpu else self.floats[:3])

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        array = widened(np.asarray(array))
        return self.native.array(array, self.dtype(array.dtype.name)).astype(
            self.dtype(dtype or array.dtype.name)
        )

    def to_numpy(self, array: Array) -> NDArray[Any]:
        wide = array.astype(self.native.float32) if array.dtype == self.native.bfloat16 else array
        return np.array(wide)

    def copied(self, array: Array) -> Array:
        return self.native.array(array)

    def pullback(self, f: Callable[[Any], Any], x: Any) -> tuple[Any, Callable[[Any], Any]]:
        def pull(cotangent: Any) -> Any:
            if not isinstance(x, tuple):
                return self.native.vjp(f, [x], [cotangent])[1][0]
            pulled = self.native.vjp(lambda *xs: f(xs), [*x], [*cotangent])[1]
            return tuple(pulled)

        return f(x), pull

    def second_gradient(self, f: Callable[[Array], Array], x: Array, g: Array, h: Array) -> Array | None:
        return self.native.vjp(lambda cotangent: self.native.vjp(f, [x], [cotangent])[1][0], [g], [h])[1][0]

    def traced(self, f: Callable[..., Array]) -> Callable[..., Array]:
        compiled: Callable[..., Array] = self.native.compile(f)
        return compiled


class TensorFlow(Library):
    """TensorFlow's tensors."""

    name = module = namespace = "tensorflow"
    floats = ("float16", "bfloat16", "float32", "float64")
    has_strides = False
    gaps = MappingProxyType({**_EAGER, **_OF_TORCH, **_NOT_MAPPED})

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        made = self.native.constant(np.array(array))
        return made if dtype is None else self.native.cast(made, self.dtype(dtype))

    def to_numpy(self, array: Array) -> NDArray[Any]:
        return widened(array.numpy())

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        return self.native.transpose(array, axes)

    def copied(self, array: Array) -> Array:
        return self.native.identity(array)

    def pullback(self, f: Callable[[Any], Any], x: Any) -> tuple[Any, Callable[[Any], Any]]:
        with self.native.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = f(x)
        return y, lambda cotangent: tape.gradient(y, x, cotangent)

    def second_gradient(self, f: Callable[[Array], Array], x: Array, g: Array, h: Array) -> Array | None:
        with self.native.GradientTape() as tape:
            tape.watch(g)
            _y, pull = self.pullback(f, x)
            pulled = pull(g)
        return tape.gradient(pulled, g, h)

    def traced(self, f: Callable[..., Array]) -> Callable[..., Array]:
        compiled: Callable[..., Array] = self.native.function(f, autograph=False)
        return compiled


class NDonnx(Library):
    """ndonnx: arrays of values, and of ONNX graphs that ONNX Runtime runs."""

    name = module = namespace = "ndonnx"
    has_strides = False
    gaps = MappingProxyType(
        {
            "bfloat16": "ndonnx has no bfloat16",
            **{name: reason for name, reason in _PLAIN.items() if name != "jit"},
            **_EAGER,
        }
    )

    def to_numpy(self, array: Array) -> NDArray[Any]:
        return np.asarray(array.unwrap_numpy())

    def copied(self, array: Array) -> Array:
        return array.copy()

    def traced(self, f: Callable[..., Array]) -> Callable[..., Array]:
        def run(*arrays: Array) -> Array:
            names = [f"input{i}" for i, _ in enumerate(arrays)]
            made = [self.native.argument(shape=array.shape, dtype=array.dtype) for array in arrays]
            model = self.native.build(dict(zip(names, made, strict=True)), {"y": f(*made)})
            session = import_module("onnxruntime").InferenceSession(model.SerializeToString())
            values = map(self.to_numpy, arrays)
            return self.asarray(session.run(None, dict(zip(names, values, strict=True)))[0])

        return run


class MArray(Library):
    """marray over NumPy, with no element masked."""

    name = module = "marray"
    floats = ("float32", "float64")
    has_strides = False
    gaps = MappingProxyType(
        {"float16": "marray has the standard's dtypes", "bfloat16": "marray has the standard's dtypes"}
        | {**_PLAIN, **_EAGER}
    )

    @cached_property
    def xp(self) -> Any:
        return self.native.numpy  # each look-up makes a namespace, with an array type of its own

    def to_numpy(self, array: Array) -> NDArray[Any]:
        return np.asarray(array.data)

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        return self.xp.permute_dims(array, axes)

    def stack(self, arrays: list[Array]) -> Array:
        return self.xp.stack(arrays)

    def copied(self, array: Array) -> Array:
        return self.xp.asarray(array, copy=True)


# Compiling takes seconds: compile float32, and bfloat16 for all widened dtypes.
NOT_COMPILED = {
    **dict.fromkeys(
        (
            *("float16", "float64", "narrow_heads", "widths", "wide_heads", "python_positions"),
            *("inference_mode", "autocast", "default_dtype", "default_device", "deterministic"),
            *("vmap", "vmap_positions", "jvp"),
        ),
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
        StrictNoX64(),
        Dask(),
        Cubed(),
        Jax(),
        JaxX64(),
        JaxGPU(),
        JaxSharded(),
        Torch(),
        TorchMeta(),
        TorchCUDA(),
        TorchTritonInterpreted(),
        CuPy(),
        MLX(),
        TensorFlow(),
        NDonnx(),
        MArray(),
    )
}


def _computed(block: Any) -> Any:
    raise AssertionError("an array was computed before its values were asked for")


def _parts(array: Array) -> Iterator[tuple[str, tuple[Any, ...], tuple[int, ...]]]:
    """Yield names, indices of an array in larger arrays, and the larger shapes."""
    *lead, s, d = array.shape
    for name, start in (("rows", 2), ("the first rows", 0), ("the last rows", 4)):
        yield f"{name} of a longer array", np.s_[..., start : s + start, :], (*lead, s + 4, d)
    yield "features of a wider array", np.s_[..., d : 2 * d], (*lead, s, 3 * d)
    if lead:
        yield "a part of a larger batch", np.s_[1 : lead[0] + 1, ...], (lead[0] + 2, *lead[1:], s, d)


_NUMBERS = itertools.count()


def with_own_code(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with a code object of its own, that calls f.

    Dynamo compiles a code object for a handful of shapes, dtypes and constants only: beyond its recompile
    limit the code is called without the compiler, or an error is raised.
    """

    def called(*arguments: Any) -> Any:
        return f(*arguments)

    called.__code__ = called.__code__.replace(co_name=f"called{next(_NUMBERS)}")
    return called


def _in_a_new_thread(read: Callable[[], dict[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    thread = Thread(target=lambda: found.update(read()))
    thread.start()
    thread.join()
    return found


def numpy_dtype(name: str) -> Any:
    """Return NumPy's dtype of a name; for bfloat16, the dtype of ml_dtypes."""
    return import_module("ml_dtypes").bfloat16 if name == "bfloat16" else np.dtype(name)


def widened(array: NDArray[Any]) -> NDArray[Any]:
    """Convert bfloat16 to float32; return other arrays as they are."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def rounded(values: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """Round numbers to a dtype and return them in float64."""
    if dtype != "bfloat16":
        return values.astype(dtype).astype(np.float64)
    # NumPy has no bfloat16: round float32 to its upper half, ties to even.
    bits = values.astype(np.float32).view(np.uint32)
    bits = bits + 0x7FFF + (bits >> 16 & 1) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)
