"""Launches of the Triton kernel: from tensors and a source to pointers, numbers and a grid.

A call whose checks have passed once is recognised afterwards by its metadata: shapes, strides, dtypes, device
and layout. Its launches are kept under that key, so a repeated call makes its result and launches.
"""

from typing import Any, NamedTuple

import torch
import triton

from rope_array._array_api.library import computes_in_float64
from rope_array._array_api.source import Positions, Source, Tables
from rope_array._backends import _gpu
from rope_array._backends._gpu import Kind, Rows, SourceView
from rope_array._errors import BackendError
from rope_array._spec.plan import Layout, Plan

from ._library import PLAIN_TYPES
from ._triton_kernel import rotate_rows

transposes_tables = True
interpreted = not isinstance(rotate_rows, triton.runtime.JITFunction)

# A compiled kernel takes all arguments, the constants too, since this version of Triton.
_KEEPS_COMPILED = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 3)
_INTEGERS = (torch.int64, torch.int32)
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_LIMIT = 1024  # launches that are kept
_TILE_BYTES = 8192  # of x, in a program; measured offline: see tests/test_triton_compile.py
_MAX_HEADS = 32  # of one array, in a program


class _Launch(NamedTuple):
    """One launch: the arrays it rotates, where it begins in them, and the arguments after the pointers."""

    first: int
    second: int  # the same as `first` if it rotates one array
    offsets: tuple[int, ...] | None
    programs: int
    numbers: tuple[int, ...]
    constants: tuple[Any, ...]
    num_warps: int
    compiled: list[Any]  # the function that launches the compiled kernel, once there is one


_launches: dict[Any, list[_Launch]] = {}


def rotate(
    x: Any, source: Source, seq_axis: Any, out: Any, checked: bool = False, transposed: bool = False
) -> Any:
    """Rotate plain tensors of one compute dtype; see rope_array/_backends/torch/_eager.py."""
    xs = x if type(x) is tuple else (x,)
    outs = None if out is None else out if type(out) is tuple else (out,)
    key = _key(xs, source, seq_axis, outs, checked)
    if key is None:
        return NotImplemented
    ys = [torch.empty_like(x) for x in xs] if outs is None else outs
    key = (*key, transposed, *_memory_key(xs, ys, source))
    launches = _launches.get(key)
    if launches is None:
        if not checked:
            return NotImplemented
        launches = _prepare(xs, ys, source, seq_axis, transposed)
        if len(_launches) >= _LIMIT:
            _launches.clear()
        _launches[key] = launches
    if launches:
        _run(launches, xs, ys, source)
    if out is not None:
        return out
    return tuple(ys) if type(x) is tuple else ys[0]


# ---- the key of a call ----


def _key(xs: Any, source: Any, seq_axis: Any, outs: Any, checked: bool) -> tuple[Any, ...] | None:
    """Return the metadata of a call that the kernel serves, or None."""
    if type(seq_axis) is not int:
        return None
    if not xs or type(xs[0]) not in PLAIN_TYPES:
        return None
    device = xs[0].device
    given = [_tensor_key(x, device, _FLOATS) for x in xs]
    if isinstance(source, Tables):
        given += [_tensor_key(table, device, _FLOATS) for table in source[:2]]
        of_source: Any = source.layout
    else:
        of_source = _positions_key(source, device)
        if of_source is None:
            return None
    if outs is not None:
        if checked:
            given += [_tensor_key(out, device, _FLOATS) for out in outs]
        elif len(outs) != len(xs) or any([out is not x for out, x in zip(outs, xs, strict=True)]):
            return None  # whether memory overlaps is for the checks to find
    return None if None in given else (device, *given, of_source, seq_axis, outs is None)


def _tensor_key(x: Any, device: Any, dtypes: Any) -> Any:
    """Return the metadata of a tensor whose memory the kernel can read, or None."""
    if type(x) not in PLAIN_TYPES or x.device != device or x.layout is not torch.strided:
        return None
    if x.dtype not in dtypes or x.is_neg() or x._is_zerotensor():
        return None
    return x.shape, x.stride(), x.dtype


def _positions_key(source: Positions, device: Any) -> Any:
    """Return the metadata of positions with exact angles that the kernel reads itself, or None."""
    values, plan, inv_freq = source
    if inv_freq is not None or not plan.exact:
        return None
    coordinates = plan.coordinates and plan.coordinates.number
    if isinstance(values, torch.Tensor):
        of_tensor = _tensor_key(values, device, _INTEGERS)
        return of_tensor and (of_tensor, plan.layout, coordinates)
    if coordinates is not None or not _is_spaced(values):
        return None
    return (range, len(values), values.step, plan.layout) if type(values) is range else (int, plan.layout)


def reads(source: Positions, device: Any) -> bool:
    """Return whether the kernel reads positions as they are."""
    return _positions_key(source, device) is not None


def _is_spaced(values: Any) -> bool:
    """Return whether positions are an int or a range whose numbers all fit into 64 bits."""
    if type(values) is int:
        return -(2**63) <= values < 2**63
    if type(values) is not range:
        return False
    ends = (values.start, values.step, *((values[0], values[-1]) if values else ()))
    return all([-(2**63) <= end < 2**63 for end in ends])


def _memory_key(xs: Any, ys: Any, source: Any) -> tuple[Any, ...]:
    """Return what Triton compiles for beside metadata: which results are in place, and addresses modulo 16.

    For AMD also which tensors are in memory of less than 2 GiB, whose offsets have 32 bits.
    """
    read = [tensor for tensor in source[:2] if isinstance(tensor, torch.Tensor)]
    addresses = [tensor.data_ptr() for tensor in (*xs, *ys, *read)]
    in_place = [addresses[i] == addresses[i + len(xs)] for i in range(len(xs))]
    small: list[bool] = []
    if torch.version.hip:
        small = [tensor.untyped_storage().nbytes() < 2**31 for tensor in (*xs, *ys, *read)]
    return *in_place, *[address % 16 for address in addresses], *small


# ---- from a call to its launches ----


def _prepare(xs: Any, ys: Any, source: Source, seq_axis: int, transposed: bool) -> list[_Launch]:
    """Return the launches of a checked call: one for two arrays whose tokens line up."""
    view = _view(source)
    arrays = [_gpu.Strided(x.shape, x.stride(), y.stride()) for x, y in zip(xs, ys, strict=True)]
    rows = _gpu.arrange(arrays, seq_axis, view)
    layout = source.layout
    if transposed:
        layout = layout.transposed(layout.amplitude)
    found = []
    i = 0
    while i < len(xs):
        pair = i + 1 < len(xs) and [r.tokens for r in rows[i]] == [r.tokens for r in rows[i + 1]]
        second = i + 1 if pair else i
        for k, one in enumerate(rows[i]):
            other = rows[second][k] if pair else None
            found.append(_launch(xs, ys, i, second, one, other, source, view.kind, layout, transposed))
        i = second + 1
    return found


def _view(source: Source) -> SourceView:
    """Return a source as the kernel reads it."""
    if isinstance(source, Tables):
        cos, sin = source.cos, source.sin
        return SourceView(Kind.TABLES, tuple(cos.shape[:-1]), (cos.stride()[:-1], sin.stride()[:-1]))
    values, plan = source.values, source.plan
    if not isinstance(values, torch.Tensor):
        steps = (values.step,) if type(values) is range else ()
        return SourceView(Kind.SPACED, (len(values),) if steps else (), (steps,))
    axes = values.ndim if plan.coordinates is None else values.ndim - 1
    return SourceView(Kind.POSITIONS, tuple(values.shape[:axes]), (values.stride()[:axes],))


def _launch(
    xs: Any, ys: Any, i: int, j: int, one: Rows, other: Rows | None, source: Source, kind: Kind, layout: Layout,
    transposed: bool,
) -> _Launch:  # fmt: skip
    """Return the launch that rotates the rows `one` of array i, and the rows `other` of array j."""
    last = other or one
    arrays = ((xs[i], ys[i], one), (xs[j], ys[j], last))
    unit = min(
        _gpu.common_alignment((*rows.x, *rows.y, rows.x_offset, rows.y_offset), x.itemsize)
        for x, _, rows in arrays
    )
    strides: list[int] = []
    for x, y, rows in arrays:
        strides += [*(stride // unit for stride in rows.x), x.stride(-1)]
        strides += [*(stride // unit for stride in rows.y), y.stride(-1)]
    has_coordinates = isinstance(source, Positions) and source.plan.coordinates is not None
    of_source = (*one.source[0], *one.source[-1])
    source_unit = 1
    if isinstance(source, Tables):
        source_unit = _gpu.common_alignment((*of_source, *one.source_offsets), source.cos.itemsize)
    of_source = tuple(stride // source_unit for stride in of_source)
    of_source = (*of_source, source[0].stride(-1) if has_coordinates else 0)
    heads = (one.heads, other.heads if other else 0)
    tile = _tile(one, heads, layout, max(x.itemsize for x, _, _ in arrays))
    in_place = [ys[k].data_ptr() == xs[k].data_ptr() for k in (i, j)]
    strided = layout.head_dim > 1 and any(t.stride(-1) != 1 for array in arrays for t in array[:2])
    amplitude = layout.amplitude
    constants = (
        int(kind), unit, source_unit, strided, layout.head_dim, layout.start, layout.num_pairs, layout.blocks,
        layout.pairing == "half", layout.out_pairing == "half",
        2 * layout.num_pairs < layout.head_dim and not all(in_place),
        has_coordinates,
        kind is not Kind.TABLES and amplitude not in (None, 1.0), transposed, any(in_place),
        triton.language.float64 if computes_in_float64(xs[i]) else triton.language.float32,
        tile.tokens, tile.heads0, tile.heads1, triton.next_power_of_2(max(1, layout.num_pairs)),
    )  # fmt: skip
    chunks = max(_ceil(heads[0], tile.heads0), _ceil(heads[1], tile.heads1) if heads[1] else 1)
    programs = one.outer * _ceil(one.seq, tile.tokens) * chunks
    offsets = None
    if any((*one.source_offsets, one.x_offset, one.y_offset, last.x_offset, last.y_offset)):
        of_arrays = (one.x_offset, one.y_offset, last.x_offset, last.y_offset)
        offsets = (*of_arrays, one.source_offsets[0], one.source_offsets[-1])
    return _Launch(
        i,
        j,
        offsets,
        programs,
        (one.seq, chunks, *heads, *strides, *of_source),
        constants,
        tile.num_warps,
        [],
    )


class _Tile(NamedTuple):
    """How many rows a program rotates, and by how many warps."""

    tokens: int
    heads0: int
    heads1: int
    num_warps: int


def _tile(rows: Rows, heads: tuple[int, int], layout: Layout, itemsize: int) -> _Tile:
    """Return the tile of a launch: all heads of a token if they are few enough, of several tokens if fewer."""
    chunks = _ceil(max(heads), _MAX_HEADS)
    heads0, heads1 = (triton.next_power_of_2(_ceil(n, chunks)) if n else 0 for n in heads)
    row = triton.next_power_of_2(max(2, layout.head_dim)) * itemsize
    tokens = 1
    while tokens < rows.seq and 2 * tokens * (heads0 + heads1) * row <= _TILE_BYTES:
        tokens *= 2
    num_warps = 1
    while num_warps < 8 and 2 * num_warps * 4096 <= tokens * heads0 * row:  # 128 bytes of x for each thread
        num_warps *= 2
    return _Tile(tokens, heads0, heads1, num_warps)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


# ---- running ----


def _run(launches: list[_Launch], xs: Any, ys: Any, source: Any) -> None:
    device = xs[0].device
    position = 0
    if isinstance(source, Tables):
        first, second = source.cos, source.sin
        words = first
    else:
        values = source.values
        words = _words(source.plan, device)
        if isinstance(values, torch.Tensor):
            first = second = values
        else:
            first = second = words
            position = values.start if type(values) is range else values
    if interpreted or device.index == torch.cuda.current_device():
        return _launch_all(launches, xs, ys, first, second, words, position)
    with torch.cuda.device(device):
        return _launch_all(launches, xs, ys, first, second, words, position)


def _launch_all(
    launches: list[_Launch], xs: Any, ys: Any, first: Any, second: Any, words: Any, position: int
) -> None:
    for launch in launches:
        i, j = launch.first, launch.second
        arrays, of_source, start = (xs[i], ys[i], xs[j], ys[j]), (first, second), position
        if launch.offsets is not None:
            arrays = tuple(map(_from, arrays, launch.offsets))
            if first is words:  # positions are spaced
                start += launch.offsets[-1]
            else:
                of_source = tuple(map(_from, of_source, launch.offsets[4:]))
        arguments = (*arrays, *of_source, words, start, *launch.numbers, *launch.constants)
        if launch.compiled:
            launch.compiled[0](*arguments)
            continue
        compiled = rotate_rows[(launch.programs,)](*arguments, **({} if interpreted else options_of(launch)))
        if _KEEPS_COMPILED and not interpreted:
            launch.compiled.append(compiled[(launch.programs, 1, 1)])


def options_of(launch: _Launch) -> dict[str, Any]:
    """Return the options that the kernel is compiled with. Without fusion its bits are those of the CPU."""
    return {"num_warps": launch.num_warps, "enable_fp_fusion": False}


def _from(tensor: Any, offset: int) -> Any:
    """Return a tensor that begins some elements later in the same memory."""
    return tensor.as_strided((1,), (1,), tensor.storage_offset() + offset)


_CAPTURED: list[Any] = []  # constants that CUDA graphs read: a graph does not keep them


def _words(plan: Plan, device: Any) -> Any:
    """Return the constants of a plan on a device, copied there once."""
    found = plan.on_devices.get(device)
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if found is None:
        if capturing:
            raise BackendError(
                "a CUDA graph is being captured, and the rope's frequencies are not on the GPU yet: copying "
                "them cannot be captured. Call the rotation once before the capture."
            )
        words = torch.tensor(_gpu.plan_words(plan), dtype=torch.int64, device=device)
        found = plan.on_devices[device] = (words, None if device.type == "cpu" else _stream(device))
    words, stream = found
    if stream is not None and stream != _stream(device):
        # The memory belongs to the first stream: it must not be reused while this stream reads it.
        words.record_stream(torch.cuda.current_stream(device))
    if capturing and not any(words is kept for kept in _CAPTURED):
        _CAPTURED.append(words)
    return words


def _stream(device: Any) -> Any:
    return torch.cuda.current_stream(device).cuda_stream
