"""The walk through text with images and videos between, which gives M-RoPE positions: plain Python."""

from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any, NamedTuple

from rope_array import _errors
from rope_array._array_api import library as _namespace
from rope_array._spec import frequencies as _frequencies
from rope_array._spec import validation as _values

from . import _factory as _making


class Block(NamedTuple):
    """An image or a video in tokens, and the time from one frame to the next."""

    frames: int
    rows: int
    columns: int
    interval: float = 1.0

    def coordinates(self, start: int) -> list[tuple[int, int, int]]:
        # The product is rounded to float32 before it is cut to an integer, as it was in training.
        times = [int(_frequencies.float32(k * self.interval)) for k in range(self.frames)]
        rows, columns = range(self.rows), range(self.columns)
        return [(start + t, start + h, start + w) for t in times for h in rows for w in columns]


class Queue(NamedTuple):
    """The blocks of one kind that no token has been met of yet."""

    name: str
    blocks: Iterator[Block]


class _Along(NamedTuple):
    """The coordinates of one sequence, and its delta."""

    coordinates: list[tuple[int, int, int]]
    delta: int


def ids_of(*ids: Any) -> list[int]:
    found = [
        _values.integer(name, i, 0) for name, i in zip(("image_token_id", "video_token_id"), ids, strict=True)
    ]
    if found[0] == found[1]:
        raise _errors.SpecError(f"image_token_id and video_token_id are both {found[0]}; give two ids.")
    return found


def _read(name: str, value: Any, boolean: bool = False, kind: type = Integral) -> tuple[Any, tuple[int, ...]]:
    """Return values as nested lists, and their shape; for an array on a device this waits."""
    if not _making.is_array(value):
        shape = _making.shape_of(name, value, kind)
        return _plain(value), shape
    lib = _making.library_of(value)
    lib.check_supported(value)
    more = _making.REAL if kind is Real else frozenset({"bool"} if boolean else ())
    allowed = _making.SIGNED | more
    if _namespace.dtype_name(value) not in allowed:
        raise _errors.ArrayTypeError(f"{name} is {_errors.describe(value)}; give {_making.need_of(boolean)}.")
    try:
        read = value.tolist() if hasattr(value, "tolist") else _through_dlpack(value)
    # What tracers, meta and fake tensors and dask raise, each its own: all mean that the host has no values.
    except (TypeError, ValueError, RuntimeError, AttributeError, BufferError, NotImplementedError):
        read = None
    if read is None:
        raise _errors.ArrayTypeError(
            f"{name} is {_errors.describe(value)}, whose values cannot be read here; give values that the "
            "host has, outside of a compiled function (of a dask array, its compute())."
        ) from None
    return read, tuple(value.shape)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple, range)):
        return [_plain(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _through_dlpack(value: Any) -> Any:
    return _namespace.numpy_library().xp.from_dlpack(value).tolist()


def rows_of(tokens: Any) -> tuple[list[Any], tuple[int, ...]]:
    """Return the rows of tokens, and their shape."""
    read, shape = _read("tokens", tokens)
    if len(shape) not in (1, 2):
        raise _errors.ShapeError(f"tokens is {_errors.describe(tokens)}; give the shape (S,) or (B, S).")
    return read if len(shape) == 2 else [read], shape


def kept_of(mask: Any, shape: tuple[int, ...]) -> list[Any]:
    """Return for each row of tokens which of them are no padding."""
    rows = 1 if len(shape) == 1 else shape[0]
    if mask is None:
        return [[True] * shape[-1]] * rows
    read, have = _read("mask", mask, boolean=True)
    if have != shape:
        raise _errors.ShapeError(
            f"mask has the shape {have} and tokens {shape}; give one value for each token."
        )
    _making.check_mask(read)
    return read if len(shape) == 2 else [read]


def blocks_of(name: str, grids: Any, merge: int) -> list[Block]:
    """Return the blocks of tokens that grids of patches become."""
    read, shape = _read(name, () if grids is None else grids)
    if shape != (0,) and (len(shape) != 2 or shape[1] != 3):
        raise _errors.ShapeError(f"{name} has the shape {shape}; give one (t, h, w) for each, (number, 3).")
    for t, h, w in read:
        if min(t, h, w) < 1 or h % merge or w % merge:
            raise _errors.ShapeError(
                f"{name} holds ({t}, {h}, {w}); give numbers of patches (t, h, w) of at least 1, h and w "
                f"multiples of spatial_merge_size {merge}."
            )
    return [Block(t, h // merge, w // merge) for t, h, w in read]


def timed(videos: list[Block], tokens_per_second: Any, second_per_grid_ts: Any) -> list[Block]:
    """Give each video its time from frame to frame."""
    rate = _values.positive("tokens_per_second", tokens_per_second)
    seconds, shape = _read("second_per_grid_ts", second_per_grid_ts, kind=Real)
    if shape not in ((), (len(videos),)):
        raise _errors.ShapeError(
            f"second_per_grid_ts has the shape {shape} for {len(videos)} videos; give one number, or "
            "one for each."
        )
    checked = [_values.positive("second_per_grid_ts", s) for s in (seconds if shape else [seconds])]
    each = checked if shape else checked * len(videos)
    for video, s in zip(videos, each, strict=True):
        if not video.frames * rate * s < 2**62:
            raise _errors.SpecError(
                f"tokens_per_second is {rate} and second_per_grid_ts {s}, which takes {video.frames} frames "
                "out of the range of integers; give smaller ones."
            )
    intervals = [_frequencies.float32(rate * s) for s in each]
    return [video._replace(interval=one) for video, one in zip(videos, intervals, strict=True)]


def walk(row: list[int], keep: list[Any], queues: dict[int, Queue], spatial: bool, pad: int) -> _Along:
    """Walk along one sequence."""
    tokens = [token for token, kept in zip(row, keep, strict=True) if kept]
    made: list[tuple[int, int, int]] = []
    following = largest = 0
    while len(made) < len(tokens):
        queue = queues.get(tokens[len(made)])
        if queue is None:
            made.append((following,) * 3)
            following += 1
            largest = max(largest, following)
            continue
        block = _next(queue, tokens, len(made))
        added = block.coordinates(following)
        made += added
        largest = max(largest, 1 + max(map(max, added)))
        following = following + max(block.rows, block.columns) if spatial else largest
    left = iter(made)
    return _Along([next(left) if kept else (pad,) * 3 for kept in keep], largest - len(tokens))


def _next(queue: Queue, tokens: list[int], at: int) -> Block:
    """Take the block that begins at a token, if the tokens are those of it."""
    block = next(queue.blocks, None)
    if block is None:
        raise _errors.ShapeError(
            f"tokens has a block of {queue.name} tokens, from token {at} of a sequence, for which there is "
            f"no grid; give {queue.name}_grid_thw one (t, h, w) for each {queue.name}."
        )
    need = block.frames * block.rows * block.columns
    have = 0
    while have < need and at + have < len(tokens) and tokens[at + have] == tokens[at]:
        have += 1
    if have < need:
        raise _errors.ShapeError(
            f"the grid of {block.frames} by {block.rows} by {block.columns} tokens needs {need} {queue.name} "
            f"tokens in a row, and tokens has {have} from token {at} of a sequence; give the grids in the "
            "order of the tokens, the model's spatial_merge_size, and split_frames where text stands between "
            "the frames of a video."
        )
    return block


def check_rest(queues: dict[int, Queue]) -> None:
    for name, blocks in queues.values():
        if rest := len([*blocks]):
            raise _errors.ShapeError(
                f"{name}_grid_thw has {rest} blocks more than tokens has; give the grids of these "
                "tokens alone."
            )


def as_arrays(made: list[_Along], shape: tuple[int, ...], make: _making.Make) -> tuple[Any, Any]:
    """Make arrays of the coordinates and the deltas of all sequences."""
    deltas = [one.delta for one in made]
    nested = [[list(point) for point in one.coordinates] for one in made]
    for value in (deltas, nested):
        _making.check_range("the result", value, make)
    xp = make.xp
    return xp.reshape(make.filled(nested), (*shape, 3)), xp.reshape(make.filled(deltas), shape[:-1])
