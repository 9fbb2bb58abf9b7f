"""Launch the Triton kernel: from tensors and a source to pointers, numbers and a grid.

This module implements the kernel interface of _eager.py. A call whose checks have passed once is later
recognised by its metadata: shapes, strides, dtypes, device and layout. Its launches are cached under that
key, so a repeat of the call allocates its result and launches.
"""

from functools import cache, reduce
from operator import eq, is_, or_
from typing import Any, NamedTuple

import torch
import triton
from triton import language

from rope_array._array_api.angles import turns_of_array
from rope_array._array_api.checks import as_source
from rope_array._array_api.library import computes_in_float64
from rope_array._array_api.source import CallOptions, OptionFields, Positions, Source, SourceFields, Tables
from rope_array._backends import _gpu
from rope_array._backends._gpu import Kind, Rows, SourceView
from rope_array._internals import internal
from rope_array._spec.plan import Layout, Plan, TurnsPlan

from ._library import LIBRARY, PLAIN_TYPES, unit_pairs
from ._triton_kernel import rotate_rows

transposes_tables = True
_VERSION = tuple(map(int, triton.__version__.split(".")[:2]))
_NEWEST_READ = (3, 9)  # up to which a compiled kernel's `run` is known to take the arguments of `_launcher`
interpreted = not isinstance(rotate_rows, triton.runtime.JITFunction)

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_POSITIONS = (torch.int64, torch.int32, torch.float32, torch.float64)
LIMIT = 1024  # keys in the cache of launches
# The rows of a program, chosen by instructions and registers (tests/test_triton_compile.py), and by times on
# an H200. They may depend on sizes: the arithmetic of a row, and so its bits, are the same in every tile.
_MAX_HEADS = 32  # of each array
_TILE_BYTES = 8192  # max bytes of a tile of several tokens
# Where the next token is nearer in memory than the next head: tokens of a program, and max heads of an array.
_RUN_TOKENS, _RUN_HEADS = 4, 16
_ONE_HEAD_PAIRS = 16  # of each thread: each pair has its own angle, and more warps hide the arithmetic
# Up to so many tokens, a program has heads of one array, and a thread one angle and 16 bytes of a and of b.
_FEW_TOKENS, _FEW_BYTES = 128, 16
# Min bytes of the larger array for each thread. Interleaved is smaller, because split and join cost time.
_THREAD_BYTES = {"half": 128, "interleaved": 64}
_MAX_WARPS = 8
_MAX_BYTES = 32768  # of one token's heads in each array, so that the rows fit into registers
CONSTANTS = [name for name in rotate_rows.arg_names if name.isupper()]


class TritonLaunch(NamedTuple):
    """One launch: the arrays it rotates, where it begins in them, and the arguments after the pointers."""

    source_kind: Kind
    index0: int  # of the kernel's x0 among the arrays of the call
    index1: int  # of its x1; the same as `index0` if the launch rotates one array
    offsets: tuple[int, ...] | None
    programs: int
    numbers: tuple[int, ...]
    constants: tuple[Any, ...]
    num_warps: int
    compiled: list[Any]  # the function of `_launcher`, once there is a compiled kernel


_launches: dict[Any, list[TritonLaunch]] = {}


def rotate(
    x: Any,
    source: SourceFields,
    options: OptionFields,
    out: Any,
    checked: bool = False,
    transposed: bool = False,
) -> Any:
    """Rotate plain tensors of one compute dtype, by exact angles of positions or by tables.

    Return NotImplemented for other calls, and for a call that is not `checked` and has a new key.
    """
    xs = x if type(x) is tuple else (x,)
    outs = None if out is None else out if type(out) is tuple else (out,)
    read = (*xs, *tensors_of(source))
    key = key_of(xs, read, source, options, outs, checked)
    addresses = None if key is None else addresses_of(read)
    if key is None or addresses is None:
        return NotImplemented
    ys = (*map(torch.empty_like, xs),) if outs is None else outs
    key = (*key, transposed, *memory_key(xs, ys, source, addresses))
    launches = _launches.get(key)
    if launches is None:
        if not checked:
            return NotImplemented
        launches = prepare(xs, ys, as_source(source), CallOptions(*options), transposed)
        if len(_launches) >= LIMIT:
            _launches.clear()
        _launches[key] = launches
    if launches:
        run(launches, xs, ys, source, rotate_rows)
    if out is not None:
        return out
    return ys if type(x) is tuple else ys[0]


# ---- the key of a call ----


def key_of(
    xs: Any, read: Any, source: SourceFields, options: OptionFields, outs: Any, checked: bool
) -> tuple[Any, ...] | None:
    """Return the metadata of a call that the kernel serves, or None.

    `read`: xs, and the tensors of the source.
    """
    if type(options[0]) is not int or not xs or type(xs[0]) not in PLAIN_TYPES:
        return None
    in_place = outs is not None and len(outs) == len(xs) and all(map(is_, outs, xs))
    is_written = outs is not None and not in_place
    source_key = _positions_key(source) if isinstance(source[1], Plan) else source[2]
    if source_key is None or (is_written and not checked):
        return None
    device = xs[0].device
    metadata = metadata_of((*read, *outs) if is_written else read, device)
    if metadata is None or (in_place and not checked and not _are_apart(read)):
        return None
    return device, source_key, *options, outs is None, in_place, *metadata


def tensors_of(source: SourceFields) -> tuple[Any, ...]:
    """Return the tensors of a source that the kernel reads."""
    if isinstance(source[1], Plan):
        return source[:1] if isinstance(source[0], torch.Tensor) else ()
    return source[:2]


def _are_apart(tensors: Any) -> bool:
    """Return whether tensors have a memory each; if not, the checks find out whether they overlap."""
    memories = [t.untyped_storage().data_ptr() for t in tensors]
    return len({*memories}) == len(memories)


def metadata_of(tensors: Any, device: Any) -> list[Any] | None:
    """Return the metadata of tensors; None if the kernel cannot read the memory of one.

    A zero tensor has no address, by which `addresses_of` finds it.
    """
    metadata: list[Any] = []
    try:
        for x in tensors:
            if type(x) not in PLAIN_TYPES or x.device != device or x.is_neg():
                return None
            metadata += x.shape, x.stride(), x.dtype
    except RuntimeError:  # of a layout without strides
        return None
    return metadata


def _positions_key(source: SourceFields) -> Any:
    """Return the facts of positions with exact angles that the kernel reads itself, or None."""
    values, plan, inv_freq = source
    if inv_freq is not None or not plan.exact:
        return None
    coordinates = plan.coordinates and plan.coordinates.number
    if isinstance(values, torch.Tensor):
        dtype = values.dtype
        if dtype not in _POSITIONS or (dtype.is_floating_point and not plan.takes_fractions):
            return None
        return plan.layout, coordinates
    if coordinates is not None or not _gpu.is_spaced(values):
        return None
    return (range, len(values), values.step, plan.layout) if type(values) is range else (int, plan.layout)


def reads(source: Positions, device: Any) -> bool:
    """Return whether the kernel reads positions as they are."""
    return _positions_key(source) is not None and metadata_of(tensors_of(source), device) is not None


def addresses_of(tensors: Any) -> list[int] | None:
    """Return the addresses of tensors; None if a tensor has no memory.

    Its memory was freed, as fully sharded training does, or it is a BatchedTensor of is_grads_batched.
    """
    try:
        addresses = [*map(torch.Tensor.data_ptr, tensors)]
    except RuntimeError:
        return None
    if 0 in addresses and any(not a and t.numel() for a, t in zip(addresses, tensors, strict=True)):
        return None
    return addresses


def memory_key(xs: Any, ys: Any, source: Any, addresses: list[int]) -> tuple[Any, ...]:
    """Return the facts of memory that Triton compiles for; `addresses` are of xs and of the source.

    The results that are in place, and addresses modulo 16 unless all are 0. For AMD also the tensors in
    memory of less than 2 GiB, whose offsets have 32 bits.
    """
    written = [*map(torch.Tensor.data_ptr, ys)]
    memories = addresses + written
    key = *map(eq, written, addresses), *([a % 16 for a in memories] if reduce(or_, memories) % 16 else ())
    if torch.version.hip:
        tensors = (*xs, *ys, *tensors_of(source))
        key += tuple([tensor.untyped_storage().nbytes() < 2**31 for tensor in tensors])
    return key


# ---- from a call to its launches ----


def prepare(xs: Any, ys: Any, source: Source, options: CallOptions, transposed: bool) -> list[TritonLaunch]:
    """Return the launches of a checked call: one for two arrays whose tokens line up."""
    view = view_of(source)
    arrays = [_gpu.Strided(x.shape, x.stride(), y.stride()) for x, y in zip(xs, ys, strict=True)]
    rows = _gpu.arrange(arrays, options.seq_axis, view)
    layout = source.layout
    if transposed:
        layout = layout.transposed(layout.amplitude)
    launches = []
    pending = [[(i, xs[i], ys[i], launch_rows) for launch_rows in rows[i]] for i in range(len(xs))]
    while pending:
        first, *pending = pending
        second = pending.pop(0) if pending and _line_up(first, pending[0]) else None
        groups = [[*group] for group in (zip(first, second, strict=True) if second else zip(first))]
        launches += [make_launch(group, source, view.kind, layout, transposed) for group in groups]
    return launches


def _line_up(first: Any, second: Any) -> bool:
    """Return whether two arrays have the same tokens in each of their launches."""
    return [rows.tokens for *_, rows in first] == [rows.tokens for *_, rows in second]


def view_of(source: Source) -> SourceView:
    """Return a source as the kernel reads it."""
    if isinstance(source, Tables):
        cos, sin = source.cos, source.sin
        return SourceView(Kind.TABLES, tuple(cos.shape[:-1]), (cos.stride()[:-1], sin.stride()[:-1]))
    values, plan = source.values, source.plan
    if not isinstance(values, torch.Tensor):
        return _gpu.view_spaced(values)
    axes = values.ndim if plan.coordinates is None else values.ndim - 1
    return SourceView(Kind.POSITIONS, tuple(values.shape[:axes]), (values.stride()[:axes],))


def make_launch(
    group: list[tuple[int, Any, Any, Rows]],
    source: Source,
    source_kind: Kind,
    layout: Layout,
    transposed: bool,
    splits: bool = True,
) -> TritonLaunch:
    """Return the launch for one or two arrays: their indices, each x, its result, and their rows.

    `splits`: a program may have heads of one array alone.
    """
    numbers, unit, source_unit = _strides(group, source)
    rows = [rows for _, _, _, rows in group]
    heads = (rows[0].heads, rows[1].heads if len(rows) > 1 else 0)
    splits = splits and len({x.dtype for _, x, _, _ in group}) == 1 and all([type(n) is int for n in heads])
    tile = _tile(rows[0], heads, layout, max(x.itemsize for _, x, _, _ in group), splits)
    # Tensors that a compiler traces have no memory yet, and are of a subclass.
    in_place = [type(x) in PLAIN_TYPES and x.data_ptr() == y.data_ptr() for _, x, y, _ in group]
    constants = {
        "KIND": int(source_kind),
        "UNIT": unit,
        "SOURCE_UNIT": source_unit,
        "STRIDED": layout.head_dim > 1 and any(t.stride(-1) != 1 for _, x, y, _ in group for t in (x, y)),
        "HEAD_DIM": layout.head_dim,
        "START": layout.start,
        "PAIRS": layout.num_pairs,
        "BLOCKS": layout.blocks,
        "READS_HALF": layout.pairing == "half",
        "WRITES_HALF": layout.out_pairing == "half",
        "COPIES": 2 * layout.num_pairs < layout.head_dim and not all(in_place),
        "COORDINATES": _has_coordinates(source),
        "SCALED": source_kind is not Kind.TABLES and layout.amplitude not in (None, 1.0),
        "TRANSPOSED": transposed,
        "IN_PLACE": any(in_place),
        "REAL": language.float64 if computes_in_float64(group[0][1]) else language.float32,
        "TOKENS": tile.tokens,
        "HEADS0": tile.heads0,
        "HEADS1": tile.heads1,
        "WIDTH": _width(layout),
        "FUSED": False,
        "CHUNKS": tile.chunks,
    }
    chunks = tile.chunks or max(_ceil(heads[0], tile.heads0), _ceil(heads[1], tile.heads1 or 1))
    programs = rows[0].outer * _ceil(rows[0].seq, tile.tokens) * chunks
    offsets = (
        *(n for r in (rows[0], rows[-1]) for n in (r.x_offset, r.y_offset)),
        *_both(rows[0].source_offsets),
    )
    return TritonLaunch(
        source_kind,
        group[0][0],
        group[-1][0],
        offsets if any(offsets) else None,
        programs,
        (rows[0].seq, chunks, *heads, *numbers),
        tuple([constants[name] for name in CONSTANTS]),
        tile.num_warps,
        [],
    )


def _strides(group: Any, source: Source) -> tuple[list[int], int, int]:
    """Return all strides as the kernel takes them, the unit of the rows, and the unit of the source."""
    unit = min(
        _gpu.common_alignment((*rows.x, *rows.y, rows.x_offset, rows.y_offset), x.itemsize)
        for _, x, _, rows in group
    )
    numbers: list[int] = []
    for _, x, y, rows in (group[0], group[-1]):
        numbers += [*(stride // unit for stride in rows.x), x.stride(-1)]
        numbers += [*(stride // unit for stride in rows.y), y.stride(-1)]
    rows, source_unit = group[0][3], 1
    source_strides = [stride for strides in _both(rows.source) for stride in strides]
    if isinstance(source, Tables):
        source_unit = _gpu.common_alignment((*source_strides, *rows.source_offsets), source[0].itemsize)
    numbers += [stride // source_unit for stride in source_strides]
    return [*numbers, source[0].stride(-1) if _has_coordinates(source) else 0], unit, source_unit


def _both(numbers: Any) -> tuple[Any, Any]:
    """Return the numbers of the first and of the second array of a source, which may be the same array."""
    return numbers[0], numbers[-1]


def _has_coordinates(source: Source) -> bool:
    return isinstance(source, Positions) and source.plan.coordinates is not None


class _Tile(NamedTuple):
    """The number of tokens of a program, of their heads in each array, and of warps; CHUNKS of the kernel."""

    tokens: int
    heads0: int
    heads1: int
    num_warps: int
    chunks: int


def _tile(rows: Rows, heads: tuple[int, int], layout: Layout, itemsize: int, splits: bool) -> _Tile:
    """Return the tile of a launch.

    Of few tokens, a program has some heads, so that all of the GPU works: of one array if it `splits`, else
    as many of both, so that their angles are in the same threads. Otherwise it has all heads of one token if
    they fit _MAX_HEADS and _MAX_BYTES, and more tokens while the tile fits _TILE_BYTES.
    Decoding, whose sequences are one axis, has two tiles for all numbers of sequences.
    """
    heads = (_hint(heads[0]), _hint(heads[1]))
    seq, outer = _known(rows.seq), _known(rows.outer)
    row, width = triton.next_power_of_2(max(2, layout.head_dim)) * itemsize, _width(layout)
    tokens, most_heads, num_warps = 1, min(_MAX_HEADS, _MAX_BYTES // row), 1
    if outer * seq <= _FEW_TOKENS and max(heads) <= most_heads and width <= 32 * _MAX_WARPS:
        heads0 = triton.next_power_of_2(min(max(heads), _FEW_BYTES // itemsize))
        num_warps = max(1, width // 32)
        if splits and heads[1]:
            return _Tile(1, heads0, 0, num_warps, sum(_ceil(n, heads0) for n in heads))
        return _Tile(1, heads0, heads0 if heads[1] else 0, num_warps, 0)
    if seq > 1 and abs(rows.x[1]) < abs(rows.x[2]):
        tokens = max(1, min(_RUN_TOKENS, _MAX_BYTES // row))
        most_heads = min(_RUN_HEADS, _MAX_BYTES // (tokens * row))
    chunks = _ceil(max(heads), max(1, most_heads))
    heads0, heads1 = (triton.next_power_of_2(_ceil(n, chunks)) if n else 0 for n in heads)
    while tokens < seq and 2 * tokens * (heads0 + heads1) * row <= _TILE_BYTES:
        tokens *= 2
    size = tokens * max(heads0, heads1) * row
    thread_bytes = min(_THREAD_BYTES[layout.pairing], _THREAD_BYTES[layout.out_pairing])
    if max(heads) == 1:
        thread_bytes = min(thread_bytes, 2 * itemsize * _ONE_HEAD_PAIRS)
    while num_warps < _MAX_WARPS and 2 * num_warps * 32 * thread_bytes <= size:
        num_warps *= 2
    return _Tile(tokens, heads0, heads1, num_warps, 0)


def _known(size: Any) -> int:
    """Return a number of tokens; many for a symbol of a compiler, whose range a comparison would fix."""
    return size if type(size) is int else 2**20


def _hint(size: Any) -> int:
    """Return a number of heads; for a symbol its value in the call that is traced."""
    return size if type(size) is int else getattr(size.node, "hint", None) or _MAX_HEADS


def _width(layout: Layout) -> int:
    return int(triton.next_power_of_2(max(1, layout.num_pairs)))


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


# ---- running ----


def run(launches: list[TritonLaunch], xs: Any, ys: Any, source: Any, kernel: Any, more: Any = ()) -> None:
    """Run the launches of a call on the device of its arrays; `more`: arguments after the source's."""
    device = xs[0].device
    if interpreted or device.index == torch.cuda.current_device():
        return _run_here(launches, xs, ys, source, kernel, more)
    with torch.cuda.device(device):
        return _run_here(launches, xs, ys, source, kernel, more)


def _run_here(launches: list[TritonLaunch], xs: Any, ys: Any, source: Any, kernel: Any, more: Any) -> None:
    device = xs[0].device
    stream = stream_of(device)
    source_arrays, words, position = _source_arguments(source, device, stream)
    for launch in launches:
        i, j, read, start = launch.index0, launch.index1, source_arrays, position
        arrays: Any = (xs[i], ys[i], xs[j], ys[j])
        if launch.offsets is not None:
            arrays = tuple(map(_from, arrays, launch.offsets))
            if launch.source_kind is Kind.SPACED:  # the strides are steps
                start += launch.offsets[-1]
            else:
                read = tuple(map(_from, source_arrays, launch.offsets[4:]))
        pointers = (*arrays, *read, words)
        if launch.compiled:
            launch.compiled[0](stream, *map(torch.Tensor.data_ptr, pointers), *map(_address_of, more), start)
            continue
        arguments = (*pointers, *more, start, *launch.numbers, *launch.constants)
        compiled = kernel[(launch.programs,)](*arguments, **({} if interpreted else options_of(launch)))
        if hasattr(compiled, "__getitem__"):  # Triton does not document it
            launch.compiled.append(_launcher(compiled, launch))


def _launcher(compiled: Any, launch: TritonLaunch) -> Any:
    """Return `launch(stream, *arguments)` for a compiled kernel, with addresses in place of tensors.

    Triton asks the driver about the address of each tensor. At each launch its function makes an object for
    hooks, which profilers set; if there are none, `run`, which it calls, launches in half the time.
    """
    rest, programs = (*launch.numbers, *launch.constants), launch.programs
    with_hooks, runtime = compiled[(programs, 1, 1)], internal("triton.knobs.runtime")
    if runtime is None or _VERSION > _NEWEST_READ:
        return lambda stream, *arguments: with_hooks(*arguments, *rest, stream=stream)
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata

    def launch_at(stream: Any, *arguments: Any) -> None:
        if _has_hooks(runtime):
            with_hooks(*arguments, *rest, stream=stream)
        else:
            run(programs, 1, 1, stream, function, metadata, None, None, None, *arguments, *rest)

    return launch_at


def _has_hooks(runtime: Any) -> bool:
    """Return whether Triton calls a function at each launch; newer versions have chains of them."""
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def _address_of(argument: Any) -> Any:
    """Return the address of a tensor; a number as it is."""
    return argument.data_ptr() if isinstance(argument, torch.Tensor) else argument


def _source_arguments(source: SourceFields, device: Any, stream: Any) -> tuple[tuple[Any, Any], Any, int]:
    """Return the two arrays of a source, the plan's constants, and the first of spaced positions.

    Tables have no constants, and spaced positions no arrays: the kernel gets another array, which it ignores.
    """
    values, plan, _ = source
    if not isinstance(plan, Plan):
        return source[:2], values, 0
    words = words_on(plan, device, stream)
    if isinstance(values, torch.Tensor):
        return (values, values), words, 0
    return (words, words), words, values.start if type(values) is range else values


def options_of(launch: TritonLaunch) -> dict[str, Any]:
    """Return the options that the kernel is compiled with. Without fusion it has the bits of the CPU."""
    return {"num_warps": launch.num_warps, "enable_fp_fusion": False}


def _from(tensor: Any, offset: int) -> Any:
    """Return a tensor that begins some elements later in the same memory; empty tables as they are."""
    return tensor if not tensor.numel() else tensor.as_strided((1,), (1,), tensor.storage_offset() + offset)


def words_on(plan: Plan, device: Any, stream: Any) -> Any:
    """Return the constants of a plan on a device, copied there once; `stream`: the current one of a GPU."""
    words, first_stream = plan.derived.on_devices.get(device, (None, None))
    if stream is not None and torch.cuda.is_current_stream_capturing():
        _gpu.check_capture(words)
    if words is None:
        with torch.inference_mode(False):  # compiled programs save them for a backward
            words = torch.tensor(_gpu.plan_rows(plan), dtype=torch.int64, device=device)
        plan.derived.on_devices[device] = (words, stream)
    elif first_stream not in (None, stream):
        # The memory belongs to the first stream: it must not be reused while this stream reads it.
        words.record_stream(torch.cuda.current_stream(device))
    return words


def make_tables(device: Any, values: Any, plan: Plan, use_float64: bool) -> Any:
    """Return cos and sin at a tensor of positions, or NotImplemented: (1, 0) of each pair, rotated."""
    of_units = plan if isinstance(plan, TurnsPlan) else plan.of_units()
    # Not by a write: selective checkpointing refuses to save a tensor that is then written.
    units = unit_pairs(of_units.layout.num_pairs, use_float64, device)
    if of_units.derived.lost is not None:
        units = units + 0.0 * of_units.derived.lost.to(units.dtype).repeat(2)
    shape = values.shape if of_units.coordinates is None else values.shape[:-1]
    y = rotate(units.expand(*shape, -1), Positions(values, of_units), CallOptions(), None, checked=True)
    return y if y is NotImplemented else y.chunk(2, -1)


def plan_of_array(source: Positions, use_float64: bool) -> TurnsPlan:
    """Return the plan of frequencies in a tensor, plus its plan's, without waiting for the device."""
    plan, inv_freq = source.plan, source.inv_freq
    ops, count, device = LIBRARY.ops(inv_freq), inv_freq.numel(), inv_freq.device
    words, lost = turns_of_array(inv_freq, plan, use_float64, ops)
    turns_plan = TurnsPlan(plan, count // max(1, plan.layout.num_pairs))
    turns_plan.derived.lost = lost.reshape(-1)
    rows = torch.zeros((5, count), dtype=torch.int64, device=device)  # of _gpu.plan_rows
    for row, values in zip((1, 2) if use_float64 else (0,), words, strict=True):
        rows[row] = values.reshape(-1)
    if turns_plan.coordinates is not None:
        rows[3] = ops.constants(turns_plan.coordinates.of_pairs, torch.int64)
    rows[4] = _gpu.bits_of_amplitude(plan)
    turns_plan.derived.on_devices[device] = rows, None
    return turns_plan


def stream_of(device: Any) -> Any:
    """Return the current stream of a GPU as a number; None for the interpreter."""
    return None if interpreted else _current_stream()(device.index)


@cache
def _current_stream() -> Any:
    """Return the function of Triton, which takes a tenth of the time of torch.cuda's."""
    by_triton = internal("triton.runtime.driver.driver.active.get_current_stream")
    return by_triton or (lambda index: torch.cuda.current_stream(index).cuda_stream)
