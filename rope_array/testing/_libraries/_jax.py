"""JAX."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np

from ._base import Array, ArrayLibrary, Context, Function, MissingLibrary, numpy_copy


class JaxLibrary(ArrayLibrary):
    """JAX on a platform, with or without 64-bit numbers."""

    name = module = package = session = "jax"
    title = "JAX"
    namespace = "jax.numpy"
    floats = ("float16", "bfloat16", "float32")
    integers = ("int32", "int16", "int8", "uint8", "uint16", "uint32")
    x64 = False
    has_caches = True
    platform = "cpu"
    calls = 40
    compiler = "jit"
    modes = ("default_dtype", "vmap", "vmap_positions", "jvp")
    reasons = MappingProxyType({
        "float64": "JAX without x64 has no float64",
        "wide_positions": "JAX without x64 has no 64-bit integers",
    })  # fmt: skip

    @property
    def dtypes(self) -> list[str]:
        # As the process is configured; `running` narrows it to `floats`.
        has_float64 = "float64" in self.floats or import_module("jax").config.jax_enable_x64
        return [*JaxLibrary.floats, *(["float64"] if has_float64 else [])]

    def check_present(self) -> None:
        try:
            self.native.devices(self.platform)
        except RuntimeError as error:
            raise MissingLibrary(
                f"{self.name} needs a device of JAX's platform {self.platform!r}: {error}"
            ) from None

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        # jax.numpy.asarray compiles a copy for each shape. A copy: JAX reads NumPy's own memory otherwise.
        array = numpy_copy(array, dtype)
        places = () if self.platform == "cpu" else self.native.devices(self.platform)[:1]
        return self.native.device_put(array, *places)

    def strided(self, array: Array) -> Iterator[tuple[str, Array]]:
        # Arrays of JAX have no strides; the program that makes one is compiled for each shape.
        transposed = self.asarray(self.to_numpy(array).T, self.dtype_of(array))
        yield "transposed", self.permute(transposed, tuple(range(array.ndim))[::-1])

    def copied(self, array: Array) -> Array:
        return self.xp.array(array, copy=True)

    def is_deleted(self, array: Array) -> bool:
        return not isinstance(array, self.native.core.Tracer) and bool(array.is_deleted())

    def running(self) -> Context:
        return self.native.enable_x64(self.x64)

    @contextmanager
    def unusual(self) -> Iterator[None]:
        config = self.native.config
        x64_before = config.jax_enable_x64
        config.update("jax_enable_x64", not x64_before)
        try:
            yield
        finally:
            config.update("jax_enable_x64", x64_before)

    def defaults(self) -> dict[str, Any]:
        thread_settings = {f"{name} of the thread": value for name, value in self._settings().items()}
        # A setting changed for the process does not show in this thread if `running` has set it.
        with ThreadPoolExecutor(1) as pool:
            return {**super().defaults(), **thread_settings, **pool.submit(self._settings).result()}

    def _settings(self) -> dict[str, str]:
        """Return every setting of JAX as the thread has it."""
        return {name: str(value) for name, value in self.native.config.values.items()}

    def pullback(self, f: Function, x: Any) -> tuple[Any, Function]:
        y, pull = self.native.vjp(f, x)
        return y, lambda cotangent: pull(cotangent)[0]

    def second_gradient(self, f: Function, x: Array, g: Array, h: Array) -> Array | None:
        return self.native.vjp(lambda cotangent: self.native.vjp(f, x)[1](cotangent)[0], g)[1](h)[0]

    def traced(self, f: Function) -> Function:
        return self.native.jit(f)


class ShardedJaxLibrary(JaxLibrary):
    """JAX on eight devices of the CPU. The axes of x but the last are split; positions are whole."""

    name = "jax:sharded"
    compiler = ""
    configuration = "on eight devices of the CPU"

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
        array = numpy_copy(array, dtype)
        names = iter(self.mesh.axis_names)
        even = [size > 0 and size % 2 == 0 and array.ndim > 2 for size in array.shape[:-1]]
        split = [next(names, None) if is_split else None for is_split in even]
        return self._placed(array, self.mesh, split)

    def _placed(self, array: Any, mesh: Any, split: list[str | None]) -> Array:
        """Put an array on the devices of a mesh: by each axis' name in the mesh, or whole."""
        sharding = self.native.sharding
        place = sharding.NamedSharding(mesh, sharding.PartitionSpec(*split))
        return self.native.device_put(array, place)

    def owns(self, value: Any) -> bool:
        # Do not make an array to compare with: under shard_map nothing can be put on devices.
        return isinstance(value, self.native.Array) and not isinstance(value, self.native.core.Tracer)

    def strided(self, array: Array) -> Iterator[tuple[str, Array]]:
        yield "as it is", array  # a transposed array has split features

    def device_of(self, array: Array) -> str:
        # XLA chooses how a result is split.
        is_traced = isinstance(array, self.native.core.Tracer)
        return "" if is_traced else str(sorted(device.id for device in array.devices()))

    def in_shards(self, f: Function, x: Array, pos: Array) -> Array:
        sharding = self.native.sharding
        mesh = sharding.Mesh(self.mesh.devices.reshape(-1), ("sequence",))
        split_x, split_pos = [None] * (x.ndim - 2) + ["sequence"], [None] * (pos.ndim - 1) + ["sequence"]
        of_x, of_pos = sharding.PartitionSpec(*split_x), sharding.PartitionSpec(*split_pos)
        mapped = self.native.shard_map(f, mesh=mesh, in_specs=(of_x, of_pos), out_specs=of_x)
        return mapped(self._placed(x, mesh, split_x), self._placed(pos, mesh, split_pos))


LIBRARIES = (
    JaxLibrary(),
    JaxLibrary(
        "jax:x64",
        x64=True,
        floats=(*JaxLibrary.floats, "float64"),
        integers=ArrayLibrary.integers,
        configuration="x64",
    ),
    JaxLibrary("jax:gpu", platform="gpu"),
    ShardedJaxLibrary(),
)
