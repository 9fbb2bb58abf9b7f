"""M-RoPE positions of text with images and videos: a walk through tokens, in plain Python."""

from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, get_args

from rope_array._array_api import library as _library
from rope_array._errors import ArrayTypeError, ShapeError, SpecError, describe
from rope_array._spec import validation
from rope_array._spec.frequencies import float32

from . import _factory

Advance = Literal["max", "spatial"]


def mrope(
    tokens: Any,
    image_grid_thw: Any = (),
    video_grid_thw: Any = (),
    *,
    mask: Any = None,
    image_token_id: int = 1,
    video_token_id: int = 2,
    spatial_merge_size: int = 2,
    tokens_per_second: float = 1,
    second_per_grid_ts: Any = 1,
    split_frames: bool = False,
    advance: Advance = "max",
    pad: int = 0,
    like: Any = None,
    dtype: Any = None,
) -> tuple[Any, Any]:
    """Return the coordinates (t, h, w) of tokens of text, images and videos: the M-RoPE of Qwen2-VL.

    A text token repeats its position on all three axes. The tokens of an image or a frame, from the next
    position p, have the coordinates p + (time, row, column), rows and columns counted in tokens. The text
    after it continues from the largest coordinate plus 1.

    This function runs on the host: it reads the values of `tokens`, so it waits for a device, and it does not
    work in a tracer.

    Parameters
    ----------
    tokens : sequence of int, or integer array of shape (S,) or (B, S)
        Token types, 0 for text, 1 for images and 2 for videos; or token ids, with the two ids below.
    image_grid_thw, video_grid_thw : sequence or integer array of shape (number, 3)
        The grid (t, h, w) of each image and each video in patches, before merging, in the order of the
        tokens, row after row of the batch.
    mask : sequence or array of tokens' shape, optional
        The attention mask, as in `from_mask`: padding is left out.
    image_token_id, video_token_id : int
        The tokens of patches; all others are text.
    spatial_merge_size : int
        Side of the blocks of patches that are one token.
    tokens_per_second : float
        Positions per second of video (Qwen2.5-VL).
    second_per_grid_ts : float, or one for each video
        Seconds between the frames of a video's grid. Frame k has the time
        int(k · tokens_per_second · second_per_grid_ts), the product in float32, as in training.
    split_frames : bool
        Every frame of a video is a vision block, with text between the frames: Qwen3-VL, whose prompts have
        time stamps there.
    advance : {"max", "spatial"}
        The position of the text after a block: the largest coordinate plus 1 [1]_, or the block's start
        plus the larger of its rows and columns, whatever its time (transformers 5.23). They differ if the
        time of a video exceeds its rows and columns.
    pad : int
        The coordinates of padding.
    like : array, optional
        An array with the library and device of the results. By default they follow `tokens`.
    dtype : {"int64", "int32"}, optional
        See `offset`.

    Returns
    -------
    positions : array of shape (S, 3) or (B, S, 3)
        Coordinates (t, h, w) on the last axis.
    deltas : array of shape () or (B,)
        Largest coordinate plus 1, minus the number of tokens (without padding), for each sequence. In
        decoding, a token with n tokens before it has the position n + delta, on all three axes.

    Raises
    ------
    ArrayTypeError
        A type, dtype, library or device is not supported, or the values of tokens cannot be read.
    ShapeError
        Grids do not match the tokens, or are not (t, h, w) in whole blocks; or the mask has another shape.
    SpecError
        An option is meaningless.
    PositionError
        The mask holds another number than 0 and 1, or a coordinate is out of the range of the dtype.

    References
    ----------
    .. [1] Wang et al., "Qwen2-VL", arXiv 2409.12191, section 2.1.
    .. [2] Bai et al., "Qwen2.5-VL Technical Report", arXiv 2502.13923, section 2.1.2.

    Examples
    --------
    >>> from rope_array import positions
    >>> pos, delta = positions.mrope([0, 0, 1, 1, 0, 0], [(1, 2, 4)])
    >>> pos.tolist()
    [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [4, 4, 4], [5, 5, 5]]
    >>> int(delta)
    0
    """
    factory = _factory.integers(dtype, like, tokens=tokens)
    rows, shape = _rows(tokens)
    kept = _kept(mask, shape)
    ids = _token_ids(image_token_id, video_token_id)
    merge = _factory.size_of("spatial_merge_size", spatial_merge_size, 1)
    spatial = validation.choice("advance", advance, get_args(Advance)) == "spatial"
    images = _blocks("image_grid_thw", image_grid_thw, merge)
    videos = _blocks("video_grid_thw", video_grid_thw, merge)
    videos = _with_intervals(videos, tokens_per_second, second_per_grid_ts)
    if validation.truth("split_frames", split_frames):
        videos = [Block(1, h, w, 1.0) for t, h, w, _ in videos for _ in range(t)]
    pad = _factory.pad_of(pad, factory)
    queues = dict(zip(ids, (Queue("image", iter(images)), Queue("video", iter(videos))), strict=True))
    sequences = [_walk(row, keep, queues, spatial, pad) for row, keep in zip(rows, kept, strict=True)]
    _check_empty(queues)
    return _as_arrays(sequences, shape, factory)


class Block(NamedTuple):
    """An image or a video in tokens, and the time from one frame to the next."""

    frames: int
    rows: int
    columns: int
    interval: float = 1.0

    def coordinates(self, start: int) -> list[tuple[int, int, int]]:
        # As in training, round the product to float32 before cutting it to an integer.
        times = [int(float32(k * self.interval)) for k in range(self.frames)]
        rows, columns = range(self.rows), range(self.columns)
        return [(start + t, start + h, start + w) for t in times for h in rows for w in columns]


class Queue(NamedTuple):
    """The blocks of images, or of videos, that the walk has yet to read."""

    name: str
    blocks: Iterator[Block]


class _Sequence(NamedTuple):
    """The coordinates of one sequence, and its delta."""

    coordinates: list[tuple[int, int, int]]
    delta: int


# ---- reading ----


def _token_ids(image: Any, video: Any) -> list[int]:
    found = [validation.integer("image_token_id", image, 0), validation.integer("video_token_id", video, 0)]
    if found[0] == found[1]:
        raise SpecError(f"image_token_id and video_token_id are both {found[0]}; give two ids.")
    return found


def _read(name: str, value: Any, boolean: bool = False, kind: type = Integral) -> tuple[Any, tuple[int, ...]]:
    """Return values as nested lists, and their shape; wait for an array on a device."""
    if not _factory.is_array(value):
        shape = _factory.shape_of(name, value, kind)
        return _plain(value), shape
    _factory.library_of(value).check_supported(value)
    more = _factory.REAL if kind is Real else frozenset({"bool"} if boolean else ())
    if _library.dtype_name(value) not in _factory.SIGNED | more:
        need = "integers, float32 or float64" if kind is Real else _factory.need_of(boolean)
        raise ArrayTypeError(f"{name} is {describe(value)}; give {need}.")
    try:
        read = value.tolist() if hasattr(value, "tolist") else _through_dlpack(value)
    # Tracers, meta and fake tensors, and dask arrays have no values on the host; each raises its own error.
    except (TypeError, ValueError, RuntimeError, AttributeError, BufferError, NotImplementedError):
        read = None
    if read is None:
        raise ArrayTypeError(
            f"{name} is {describe(value)}, whose values cannot be read here; call mrope outside of compiled "
            "functions, on values (of a dask array, its compute())."
        ) from None
    return read, tuple(value.shape)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple, range)):
        return [_plain(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _through_dlpack(value: Any) -> Any:
    return _library.numpy_library().xp.from_dlpack(value).tolist()


def _rows(tokens: Any) -> tuple[list[Any], tuple[int, ...]]:
    """Return the rows of tokens, and the shape of tokens."""
    read, shape = _read("tokens", tokens)
    if len(shape) not in (1, 2):
        raise ShapeError(f"tokens is {describe(tokens)}; give the shape (S,) or (B, S).")
    return read if len(shape) == 2 else [read], shape


def _kept(mask: Any, shape: tuple[int, ...]) -> list[Any]:
    """Return the mask of each row of tokens."""
    rows = 1 if len(shape) == 1 else shape[0]
    if mask is None:
        return [[True] * shape[-1]] * rows
    read, have = _read("mask", mask, boolean=True)
    if have != shape:
        raise ShapeError(f"mask has the shape {have} and tokens {shape}; give one value for each token.")
    _factory.check_mask(read)
    return read if len(shape) == 2 else [read]


def _blocks(name: str, grids: Any, merge: int) -> list[Block]:
    """Return the blocks of tokens of grids of patches."""
    read, shape = _read(name, () if grids is None else grids)
    if shape != (0,) and (len(shape) != 2 or shape[1] != 3):
        raise ShapeError(f"{name} has the shape {shape}; give one (t, h, w) for each, (number, 3).")
    for t, h, w in read:
        if min(t, h, w) < 1 or h % merge or w % merge:
            raise ShapeError(
                f"{name} holds ({t}, {h}, {w}); give numbers of patches (t, h, w) of at least 1, h and w "
                f"multiples of spatial_merge_size {merge}."
            )
    return [Block(t, h // merge, w // merge) for t, h, w in read]


def _with_intervals(videos: list[Block], tokens_per_second: Any, second_per_grid_ts: Any) -> list[Block]:
    """Return videos with the time from frame to frame."""
    rate = validation.positive("tokens_per_second", tokens_per_second)
    seconds, shape = _read("second_per_grid_ts", second_per_grid_ts, kind=Real)
    if shape not in ((), (len(videos),)):
        raise ShapeError(
            f"second_per_grid_ts has the shape {shape} for {len(videos)} videos; give one number, or one for "
            "each."
        )
    checked = [validation.positive("second_per_grid_ts", s) for s in (seconds if shape else [seconds])]
    each = checked if shape else checked * len(videos)
    for video, s in zip(videos, each, strict=True):
        if not video.frames * rate * s < 2**62:
            raise SpecError(
                f"tokens_per_second is {rate} and second_per_grid_ts {s}, which takes {video.frames} frames "
                "out of the range of integers; give smaller ones."
            )
    return [video._replace(interval=float32(rate * s)) for video, s in zip(videos, each, strict=True)]


# ---- the walk ----


def _walk(row: list[int], keep: list[Any], queues: dict[int, Queue], spatial: bool, pad: int) -> _Sequence:
    """Return the coordinates of one sequence."""
    tokens = [token for token, kept in zip(row, keep, strict=True) if kept]
    found: list[tuple[int, int, int]] = []
    following = largest = 0
    while len(found) < len(tokens):
        queue = queues.get(tokens[len(found)])
        if queue is None:
            found.append((following,) * 3)
            following += 1
            largest = max(largest, following)
            continue
        block = _next_block(queue, tokens, len(found))
        added = block.coordinates(following)
        found += added
        largest = max(largest, 1 + max(map(max, added)))
        following = following + max(block.rows, block.columns) if spatial else largest
    rest = iter(found)
    return _Sequence([next(rest) if kept else (pad,) * 3 for kept in keep], largest - len(tokens))


def _next_block(queue: Queue, tokens: list[int], at: int) -> Block:
    """Return the block that begins at a token; check that all of its tokens are there."""
    block = next(queue.blocks, None)
    if block is None:
        raise ShapeError(
            f"tokens has a block of {queue.name} tokens, from token {at} of a sequence, for which there is "
            f"no grid; give {queue.name}_grid_thw one (t, h, w) for each {queue.name}."
        )
    need = block.frames * block.rows * block.columns
    have = 0
    while have < need and at + have < len(tokens) and tokens[at + have] == tokens[at]:
        have += 1
    if have < need:
        raise ShapeError(
            f"the grid of {block.frames} by {block.rows} by {block.columns} tokens needs {need} {queue.name} "
            f"tokens in a row, and tokens has {have} from token {at} of a sequence; give the grids in the "
            "order of the tokens, the model's spatial_merge_size, and split_frames for a model with text "
            "between the frames of a video."
        )
    return block


def _check_empty(queues: dict[int, Queue]) -> None:
    for name, blocks in queues.values():
        if rest := len([*blocks]):
            raise ShapeError(
                f"{name}_grid_thw has {rest} blocks more than tokens has; give the grids of these tokens."
            )


def _as_arrays(
    sequences: list[_Sequence], shape: tuple[int, ...], factory: _factory.ArrayFactory
) -> tuple[Any, Any]:
    """Return the coordinates and the deltas of all sequences as arrays."""
    deltas = [sequence.delta for sequence in sequences]
    points = [[list(point) for point in sequence.coordinates] for sequence in sequences]
    for value in (deltas, points):
        _factory.check_range("the result", value, factory)
    return (
        factory.xp.reshape(factory.from_values(points), (*shape, 3)),
        factory.xp.reshape(factory.from_values(deltas), shape[:-1]),
    )
