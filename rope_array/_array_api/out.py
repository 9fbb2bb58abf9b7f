"""The arrays given as `out=`: checked before anything is computed.

out[i] may be x[i] itself, or memory that no array of the call shares. Arrays are apart if their extents are
apart, or, as for q and k of one projection, their columns. NumPy's solver decides all other cases exactly, up
to a limit of work; beyond it, they are refused.
"""

from typing import Any

from rope_array._errors import ArrayTypeError, BackendError, ShapeError, describe

from .library import Library, Memory
from .source import Call

# Steps of NumPy's solver. Slices of one array need a few steps; this limit takes some milliseconds.
_MOST_WORK = 100_000


def rotate_into(backend: Any, call: Call, x: Any, out: Any) -> Any:
    """Rotate the arrays of a call by a backend into `out`; x is the caller's array or tuple of arrays."""
    outs = check_outs(out, x, call.xs, call.source.arrays, call.lib)
    if getattr(backend, "accepts_outs", False):
        backend.rotate(call, outs)
    else:
        ys = backend.rotate(call)
        if len(ys) != len(outs):
            raise wrong_number(backend, ys, outs)
        for o, y in zip(outs, ys, strict=True):
            call.lib.copy_into(o, y)
    return out


def wrong_number(backend: Any, ys: tuple[Any, ...], xs: tuple[Any, ...]) -> BackendError:
    """Return the error for a backend that returned another number of arrays than it was given."""
    return BackendError(
        f"backend {backend.name!r} returned {len(ys)} arrays for {len(xs)}; it needs one for each."
    )


def check_outs(
    out: Any,
    x: Any,
    xs: tuple[Any, ...],
    source_arrays: tuple[Any, ...],
    lib: Library,
    source_name: str = "the positions or tables",
) -> tuple[Any, ...]:
    """Return the arrays to write, one for each of xs, or raise; the source's arrays are read too."""
    outs = _one_for_each(out, x, xs)
    names, x_names = _names("out", x, outs), _names("x", x, xs)
    for name, o, x_i in zip(names, outs, xs, strict=True):
        _check_type(name, o, x_i, lib)
    if lib.checks_while_tracing(outs, xs, source_arrays):
        return outs
    for o, x_i in zip(outs, xs, strict=True):
        lib.check_out(o, x_i, source_arrays)
    x_memories = [lib.memory(x_i) for x_i in xs]
    memories = [
        _require_memory(x_memory if o is x_i else lib.memory(o), lib)
        for o, x_i, x_memory in zip(outs, xs, x_memories, strict=True)
    ]
    for name, o, memory in zip(names, outs, memories, strict=True):
        _check_writable(name, o, memory)
    read = list(zip(x_names, x_memories, strict=True))
    read += [(source_name, lib.memory(array)) for array in source_arrays if lib.is_array(array)]
    for i, (name, memory) in enumerate(zip(names, memories, strict=True)):
        for j, (read_name, read_memory) in enumerate(read):
            _check_disjoint(name, memory, f"{read_name}, which is read", read_memory, may_be_same=i == j)
        for written_name, written_memory in zip(names[:i], memories, strict=False):
            _check_disjoint(name, memory, f"{written_name}, which is written too", written_memory)
    return outs


def check_apart(caches: list[tuple[str, Any]], others: tuple[Any, ...], lib: Library) -> None:
    """Raise if a cache cannot be written, or shares memory with another cache or array of the call."""
    if not caches or lib.checks_while_tracing([c for _, c in caches], [c for _, c in caches], ()):
        return
    written: list[tuple[str, Memory]] = []
    for name, cache in caches:
        name = f"the cache of {name}"
        lib.check_cache(name, cache)
        memory = lib.memory(cache)
        if memory is None:  # of a library that returns new caches
            return
        _check_writable(name, cache, memory)
        for other in others:
            if lib.is_array(other):
                _check_disjoint(name, memory, f"{describe(other)}, an array of the call", lib.memory(other))
        for earlier_name, earlier in written:
            _check_disjoint(name, memory, earlier_name, earlier)
        written.append((name, memory))


def _names(argument: str, x: Any, arrays: tuple[Any, ...]) -> list[str]:
    """Return the names of the arrays of an argument in errors."""
    return [f"{argument}[{i}]" for i in range(len(arrays))] if type(x) is tuple else [argument]


def _one_for_each(out: Any, x: Any, xs: tuple[Any, ...]) -> tuple[Any, ...]:
    if type(x) is not tuple and type(out) is not tuple:
        return (out,)
    if type(x) is tuple and type(out) is tuple and len(out) == len(xs):
        return out
    out_text = f"a tuple of {len(out)}" if type(out) is tuple else describe(out)
    x_text, remedy = "one array", "one array"
    if type(x) is tuple:
        x_text, remedy = "a tuple", f"a tuple of {len(xs)} arrays"
    raise ArrayTypeError(f"out is {out_text}, and x {x_text}; give {remedy}.")


def _check_type(name: str, out: Any, x: Any, lib: Library) -> None:
    if not lib.is_array(out):
        if lib.memory(x) is None:
            raise _not_written(lib)
        raise ArrayTypeError(f"{name} is {describe(out)}; give an array of {lib.name}, as x is.")
    lib.check_supported(out)
    if tuple(out.shape) != tuple(x.shape):
        raise ShapeError(f"{name} is {describe(out)} and x {describe(x)}; give {name} x's shape.")
    if out.dtype != x.dtype:  # not their names, which are equal in both byte orders
        raise ArrayTypeError(
            f"{name} is {describe(out)}, of the dtype {out.dtype}, and x {describe(x)}, of {x.dtype}; "
            f"give {name} x's dtype."
        )
    if not lib.same_device(out, x):
        raise ArrayTypeError(
            f"{name} is on {lib.device(out)} and x on {lib.device(x)}; give {name} x's device."
        )


def _require_memory(memory: Memory | None, lib: Library) -> Memory:
    if memory is None:
        raise _not_written(lib)
    return memory


def _not_written(lib: Library) -> ArrayTypeError:
    return ArrayTypeError(
        f"out is given, and arrays of {lib.name} are not written into; out= serves NumPy, PyTorch and CuPy. "
        "Omit out, and use the result."
    )


def _check_writable(name: str, out: Any, memory: Memory) -> None:
    if not memory.writable:
        raise ArrayTypeError(
            f"{name} is {describe(out)}, which is read-only; give an array that can be written."
        )
    if _may_overlap_itself(memory):
        raise ArrayTypeError(
            f"{name} is {describe(out)} with the strides {memory.strides} in bytes, whose elements may share "
            "memory, as in a broadcast view; give an array with memory for each element."
        )


def _may_overlap_itself(memory: Memory) -> bool:
    """Return whether elements may share memory: not if each stride spans all axes of smaller strides."""
    if 0 in memory.shape:
        return False
    reach = memory.itemsize
    for size, stride in sorted(zip(memory.shape, memory.strides, strict=True), key=lambda axis: abs(axis[1])):
        if size > 1 and abs(stride) < reach:
            return True
        reach += (size - 1) * abs(stride)
    return False


def _check_disjoint(
    name: str, memory: Memory, other_name: str, other_memory: Memory | None, may_be_same: bool = False
) -> None:
    if other_memory is None or (may_be_same and _is_same(memory, other_memory)):
        return
    shared = _share(memory, other_memory)
    if shared is False:
        return
    verb = "shares memory with" if shared else "may share memory with"
    in_place = ", or x itself to rotate in place" if may_be_same else ""
    raise ArrayTypeError(f"{name} {verb} {other_name}; give memory apart from it{in_place}.")


def _is_same(a: Memory, b: Memory) -> bool:
    """Return whether two arrays are the same elements in the same order."""
    if a is b:
        return True
    if (a.address, a.shape, a.itemsize) != (b.address, b.shape, b.itemsize):
        return False
    axes = zip(a.shape, a.strides, b.strides, strict=True)
    return all(a_stride == b_stride for size, a_stride, b_stride in axes if size > 1)


def _share(a: Memory, b: Memory) -> bool | None:
    """Return whether two arrays share memory; None if that takes too long to decide."""
    if _are_apart(a, b):
        return False
    import numpy as np  # only here; it decides for the other libraries too

    try:
        views = np.asarray(_View(a)), np.asarray(_View(b))
        return bool(np.shares_memory(*views, max_work=_MOST_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return None


def _are_apart(a: Memory, b: Memory) -> bool:
    """Return whether two arrays share no byte; False if that takes a search.

    The C++ kernel has the same rule: overlap.cpp, with a figure.
    """
    if 0 in a.shape or 0 in b.shape:
        return True
    (a_from, a_to), (b_from, b_to) = _extent(a), _extent(b)
    if a_to <= b_from or b_to <= a_from:
        return True
    return any(_have_columns_apart(a, b, abs(stride)) for stride in {*a.strides, *b.strides} if stride)


def _have_columns_apart(a: Memory, b: Memory, period: int) -> bool:
    """Return whether two arrays have no column in common if memory is cut into rows of `period` bytes."""
    (a_from, a_to), (b_from, b_to) = _extent(a, period), _extent(b, period)
    distance = (b_from - a_from) % period
    return a_to - a_from <= distance and b_to - b_from <= period - distance


def _extent(memory: Memory, period: int = 0) -> tuple[int, int]:
    """Return the first byte and the byte after the last, along axes that `period` does not divide."""
    first, last = memory.address, memory.address + memory.itemsize
    for size, stride in zip(memory.shape, memory.strides, strict=True):
        if not period or stride % period:
            first, last = first + min(0, (size - 1) * stride), last + max(0, (size - 1) * stride)
    return first, last


class _View:
    """A view of memory for NumPy's solver, which reads no element."""

    def __init__(self, memory: Memory):
        self.__array_interface__ = {
            "version": 3,
            "shape": memory.shape,
            "typestr": f"|V{memory.itemsize}",
            "data": (memory.address, True),
            "strides": memory.strides,
        }
