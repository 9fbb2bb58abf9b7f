"""A CuPy on NumPy's arrays, for tests without a GPU: RawModule runs the CUDA source compiled for the CPU."""

import contextlib
import ctypes
import dataclasses
import re
import sys
import types

import array_api_compat.numpy as numpy_xp
import numpy as np

GUARD = 4096  # bytes around new arrays, which nothing may write
DTYPES = {"Float64": 64, "Float32": 32, "Float16": 16, "BFloat16": 8}


_current = [0]


@dataclasses.dataclass(frozen=True)
class Device:
    """A device; entered, the current one."""

    id: int = dataclasses.field(default_factory=lambda: _current[-1])

    def __enter__(self):
        _current.append(self.id)

    def __exit__(self, *error):
        _current.pop()


class ndarray:
    """An array on a device. `host` is its memory."""

    def __init__(self, host, device=None):
        self.host, self.device = host, Device() if device is None else device
        self.data = types.SimpleNamespace(ptr=host.__array_interface__["data"][0])

    shape, dtype, ndim, size, itemsize, strides = (
        property(lambda self, name=name: getattr(self.host, name))
        for name in ("shape", "dtype", "ndim", "size", "itemsize", "strides")
    )

    @property
    def __cuda_array_interface__(self):
        return {"data": (self.data.ptr, not self.host.flags.writeable), "shape": self.shape, "version": 3}

    def astype(self, dtype):
        return asarray(self.host.astype(dtype))

    def copy(self):
        return asarray(self.host)

    def __getitem__(self, index):
        return wrapped(self.host[unwrapped(index)])

    def __setitem__(self, index, value):
        self.host[unwrapped(index)] = unwrapped(value)


def _of_host(name):
    """Return an operator that acts on the memory."""
    return lambda self, *arrays: wrapped(np.asarray(getattr(self.host, name)(*map(unwrapped, arrays))))


for _name in ("eq", "ge", "gt", "le", "lt", "ne", "neg", "abs"):
    setattr(ndarray, f"__{_name}__", _of_host(f"__{_name}__"))
for _name in ("add", "sub", "mul", "truediv", "and", "rshift"):
    setattr(ndarray, f"__{_name}__", _of_host(f"__{_name}__"))
    setattr(ndarray, f"__r{_name}__", _of_host(f"__r{_name}__"))
ndarray.__hash__ = None


def unwrapped(value):
    if isinstance(value, (list, tuple)):
        return type(value)(map(unwrapped, value))
    return value.host if isinstance(value, ndarray) else value


def wrapped(value):
    return ndarray(value) if isinstance(value, (np.ndarray, np.generic)) else value


guards = []


def empty(shape, dtype):
    """Make an array at a multiple of 256 bytes, as CuPy's allocator does, between guards."""
    dtype = np.dtype(dtype)
    size = dtype.itemsize * int(np.prod(shape))
    memory = np.full(size + 2 * GUARD + 256, 0xA5, np.uint8)
    start = GUARD + -(memory.ctypes.data + GUARD) % 256
    guards.append((memory, start, start + size))
    return ndarray(np.ndarray(shape, dtype, memory, offset=start))


def check_guards():
    """Assert that nothing was written outside of arrays, and forget them."""
    for memory, start, stop in guards:
        assert (memory[:start] == 0xA5).all(), "written before an array"
        assert (memory[stop:] == 0xA5).all(), "written after an array"
    guards.clear()


def asarray(values, dtype=None, device=None):
    values = np.asarray(unwrapped(values), dtype)
    array = empty(values.shape, values.dtype)
    array.host[...] = values
    return array


def empty_like(x):
    order = sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))
    dense = empty([x.shape[axis] for axis in order], x.dtype)
    return ndarray(dense.host.transpose(np.argsort(order)))


class KernelLibrary:
    """The CUDA source, compiled for the CPU: a file for each dtype, by the harness's number of it."""

    def __init__(self, paths):
        self.functions = {dtype: ctypes.CDLL(str(path)) for dtype, path in paths.items()}
        self.launches = []

    def launch(self, name, grid, block, arguments):
        if "make_inputs" in name:
            return self.launch_inputs(name, grid, block, arguments)
        pattern = r"rope::rotate<rope::(\w+), (\w+), (\w+), (\w+), (\w+), ([\w:]+)>"
        dtype, *flags, number = re.fullmatch(pattern, name).groups()
        functions = self.functions[DTYPES[dtype]]
        assert arguments.size == 1  # others are refused by CuPy
        assert arguments.nbytes == functions.size_of_call()
        assert np.prod(block) <= 128
        assert block[2] <= 64
        assert grid[1] < 2**16
        self.launches.append((dtype, flags[0] == "true", number, grid, block, Device().id))
        sizes = (ctypes.c_uint * 3)(*grid, 1), (ctypes.c_uint * 3)(*block)
        flags = [ctypes.c_bool(flag == "true") for flag in flags]
        number_type = ctypes.c_char(number[0].encode())
        address = ctypes.c_void_p(arguments.ctypes.data)
        fault = functions.launch(DTYPES[dtype], number_type, *flags, *sizes, address)
        assert not fault, {1: f"no kernel {name}", 2: "an access of 16 bytes at another address"}[fault]

    def launch_inputs(self, name, grid, block, arguments):
        dtype, *flags = re.fullmatch(
            r"rope::make_inputs<rope::(\w+), (\w+), (\w+), (\w+), (\w+)>", name
        ).groups()
        functions = self.functions[DTYPES[dtype]]
        assert arguments.nbytes == functions.size_of_inputs()
        assert np.prod(block) <= 128
        self.launches.append((dtype, flags[0] == "true", "inputs", grid, block, Device().id))
        sizes = (ctypes.c_uint * 3)(*grid, 1), (ctypes.c_uint * 3)(*block)
        flags = [ctypes.c_bool(flag == "true") for flag in flags]
        fault = functions.launch_inputs(*flags, *sizes, ctypes.c_void_p(arguments.ctypes.data))
        assert not fault, "an access of 16 bytes at another address"

    def narrow(self, numbers, dtype):
        """Round float32 numbers to 16 bits; return them, and their negatives, both as 16-bit words."""
        words = np.empty(numbers.size, np.uint32)
        function = getattr(next(iter(self.functions.values())), f"narrow_{dtype}")
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (numbers, words))
        function(*pointers, ctypes.c_int64(numbers.size))
        return words.astype("u2"), (words >> 16).astype("u2")


class Namespace(types.ModuleType):
    """The Array API on this module's arrays."""

    def __getattr__(self, name):
        value = getattr(numpy_xp, name)
        if not callable(value) or isinstance(value, type):
            return value

        def function(*args, device=None, **kwargs):
            return wrapped(value(*map(unwrapped, args), **kwargs))

        return function

    def __array_namespace_info__(self):
        dtypes = numpy_xp.__array_namespace_info__().dtypes
        return types.SimpleNamespace(dtypes=lambda *, device, kind: dtypes(kind=kind))

    def asarray(self, values, dtype=None, device=None, copy=None):
        return asarray(values, dtype)


XP = Namespace("array_api_compat.cupy")


_active = []  # the library that RawModule runs, last


class RawModule:
    def __init__(self, *, code, options, name_expressions):
        assert "cos_sin(" in code
        assert '#include "' not in code
        assert "--fmad=false" in options
        (self.name,) = name_expressions

    def get_function(self, name):
        assert name == self.name
        return lambda grid, block, args: _active[-1].launch(name, grid, block, *args)


def _module():
    cupy = types.ModuleType("cupy")
    for value in (ndarray, asarray, empty_like, RawModule):
        setattr(cupy, value.__name__, value)
    stream = types.SimpleNamespace(synchronize=lambda: None, is_capturing=lambda: False)
    runtime = types.SimpleNamespace(is_hip=False)
    cupy.cuda = types.SimpleNamespace(Device=Device, get_current_stream=lambda: stream, runtime=runtime)
    return cupy


_PACKAGE = "rope_array._backends.cupy"
_MODULES = {"cupy": _module(), "array_api_compat.cupy": XP}
_MODULES |= dict.fromkeys([_PACKAGE, f"{_PACKAGE}._launch", f"{_PACKAGE}._inputs"])


@contextlib.contextmanager
def installed(library):
    """Put this CuPy in the place of the real one; the kernel is `library`, which is yielded."""
    before = {name: sys.modules.pop(name, None) for name in _MODULES}
    sys.modules.update({name: module for name, module in _MODULES.items() if module is not None})
    _active.append(library)
    try:
        yield library
    finally:
        _active.pop()
        for name, module in before.items():
            imported = sys.modules.pop(name, None)
            # The registry keeps the backend that it has imported.
            _MODULES[name] = imported or _MODULES[name]
            if module is not None:
                sys.modules[name] = module
