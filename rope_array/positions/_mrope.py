"""M-RoPE positions of text with images and videos: a walk through tokens, in plain Python."""

from collections.abc import Iterator
from itertools import chain, combinations, count, groupby, pairwise
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, get_args

from rope_array._array_api import library as _library
from rope_array._errors import ArrayTypeError, ShapeError, SpecError, describe
from rope_array._spec import validation
from rope_array._spec.float32_steps import float32

from . import _factory
from ._sequences import count_sequences, refuse_document_ids, total_of

Advance = Literal["max", "last", "spatial"]
TimeRounding = Literal["interval", "seconds"]
Number = int | float
Point = tuple[Number, Number, Number]


def mrope(
    tokens: Any,
    image_grid_thw: Any = (),
    video_grid_thw: Any = (),
    *,
    mask: Any = None,
    cu_seqlens: Any = None,
    image_token_id: int = 1,
    video_token_id: int = 2,
    audio_token_id: int | None = None,
    shared_delimiters: bool = False,
    spatial_merge_size: int = 2,
    temporal_merge_size: int = 1,
    tokens_per_second: float = 1,
    second_per_grid_ts: Any = 1,
    time_rounding: TimeRounding = "interval",
    split_frames: bool = False,
    advance: Advance = "max",
    pad: int = 0,
    like: Any = None,
    dtype: Any = None,
) -> tuple[Any, Any]:
    """Return the coordinates (t, h, w) of tokens of text, images and videos: the M-RoPE of Qwen2-VL.

    A text token repeats its position on all three axes. The tokens of an image or a frame, from the next
    position p, have the coordinates p + (time, row, column), rows and columns counted in tokens. The text
    after it continues from the largest coordinate plus 1. Tokens of audio are positioned as text, unless
    they are mixed with the tokens of a video (`audio_token_id`).

    This function runs on the host. It reads the values of `tokens`, so it waits for a device, and it does not
    work in a tracer. The guide "Positions" has a table of the options of each model.

    Parameters
    ----------
    tokens : sequence of int, or integer array of shape (S,) or (B, S)
        Token types, 0 for text, 1 for images and 2 for videos; or token ids, with the two ids below.
    image_grid_thw, video_grid_thw : sequence or integer array of shape (number, 3)
        The grid (t, h, w) of each image and each video in patches, before merging, in the order of the
        tokens, row after row of the batch.
    mask : sequence or array of tokens' shape, optional
        The attention mask, as in `from_mask`: padding is left out.
    cu_seqlens : sequence of int, or integer array of shape (n + 1,), optional
        Cumulative lengths of packed sequences, from 0, as for `packed`: tokens is then one row, (S,) or
        (1, S). The coordinates restart with each sequence. Tokens after the last sequence are padding.
    image_token_id, video_token_id : int
        The tokens of patches; all others are text.
    audio_token_id : int, optional
        The token of audio, for videos with audio (``use_audio_in_video`` of Qwen2.5-Omni and Qwen3-Omni).
        Audio tokens between or directly after the tokens of a video count from the video's start: the k-th
        has the position start + k on all three axes. Token ids come from the model's processor, which sorts
        both kinds by time. By default no token is audio.
    shared_delimiters : bool
        The two tokens before a video with audio share one position, and so do the two tokens after it
        (Qwen2.5-Omni). These tokens mark the begin and the end of the video and of its audio.
    spatial_merge_size : int
        Side of the blocks of patches that are one token.
    temporal_merge_size : int
        Frames of a video that are one token in time (ERNIE-4.5-VL: 2). It divides the number of frames.
    tokens_per_second : float
        Positions per second of video (Qwen2.5-VL). Qwen-Omni calls it ``position_id_per_seconds``.
    second_per_grid_ts : float, or one for each video
        Seconds between the frames of a video's grid.
    time_rounding : {"interval", "seconds"}
        How the time of frame k is rounded, as in the model's training. "interval" multiplies k by the float32
        of tokens_per_second · second_per_grid_ts (Qwen2.5-VL). "seconds" multiplies k by the float32 of
        second_per_grid_ts, then by tokens_per_second (Qwen-Omni). Each product is rounded to float32. With an
        integer `dtype` the time is then cut to an integer, so the two may differ by 1.
    split_frames : bool
        Whether each frame of a video is a block of its own, with text between the frames (Qwen3-VL, whose
        prompts have time stamps there).
    advance : {"max", "last", "spatial"}
        The position of the text after a block. "max" is the largest coordinate plus 1 [1]_. "last" is the
        largest coordinate of the block's last token plus 1 (Qwen-Omni); it differs from "max" if a video is
        larger than its audio is long. "spatial" is the block's start plus the larger of its rows and columns,
        whatever its time (transformers 5.23).
    pad : int
        The coordinates of padding.
    like : array, optional
        An array with the library and device of the results. By default they follow `tokens`.
    dtype : {"int64", "int32", "float32"}, optional
        By default int64, or int32 where the library has no 64-bit integers. "float32" keeps the fractions of
        times (Qwen3-Omni).

    Returns
    -------
    positions : array of shape (S, 3) or (B, S, 3)
        Coordinates (t, h, w) on the last axis. Floats are rounded once.
    deltas : array of shape () or (B,), or (n,) for packed sequences
        Largest coordinate plus 1, minus the number of tokens (without padding), for each sequence. In
        decoding, a token with n tokens before it has the position n + delta, on all three axes.

    Raises
    ------
    ArrayTypeError
        A type, dtype, library or device is not supported, or the values of tokens cannot be read.
    ShapeError
        Grids do not match the tokens, or are not (t, h, w) in whole blocks; the mask has another shape; or
        `shared_delimiters` is true, and a video with audio is not between pairs of text tokens; or tokens
        with `cu_seqlens` are of several rows.
    SpecError
        An option is meaningless.
    PositionError
        The mask holds another number than 0 and 1, `cu_seqlens` does not begin at 0, decreases or ends beyond
        the tokens, or a coordinate is out of the range of the dtype.

    References
    ----------
    .. [1] Wang et al., "Qwen2-VL", arXiv 2409.12191, section 2.1.
    .. [2] Bai et al., "Qwen2.5-VL Technical Report", arXiv 2502.13923, section 2.1.2.
    .. [3] Xu et al., "Qwen2.5-Omni Technical Report", arXiv 2503.20215, section 2.2.

    Examples
    --------
    >>> from rope_array import positions
    >>> pos, delta = positions.mrope([0, 0, 1, 1, 0, 0], [(1, 2, 4)])
    >>> pos.tolist()
    [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [4, 4, 4], [5, 5, 5]]
    >>> int(delta)
    0
    """
    factory = _factory.integers(dtype, like, ("int32", "int64", "float32"), tokens=tokens)
    rows, shape = _token_rows(tokens)
    kept = _kept(mask, shape)
    num_padding = 0
    if cu_seqlens is not None:
        rows, kept, num_padding = _packed(rows[0], kept[0], shape, cu_seqlens)
    ids = _token_ids(image_token_id, video_token_id, audio_token_id)
    merge = _factory.size_of("spatial_merge_size", spatial_merge_size, 1)
    merge_frames = _factory.size_of("temporal_merge_size", temporal_merge_size, 1)
    rules = Rules(
        ids["video"],
        ids.pop("audio", None),
        validation.truth("shared_delimiters", shared_delimiters),
        validation.choice("advance", advance, get_args(Advance)),
    )
    by_interval = validation.choice("time_rounding", time_rounding, get_args(TimeRounding)) == "interval"
    images = _blocks("image_grid_thw", image_grid_thw, merge, 1)
    videos = _blocks("video_grid_thw", video_grid_thw, merge, merge_frames)
    videos = _with_times(videos, tokens_per_second, second_per_grid_ts, by_interval, factory.has_fractions)
    if validation.truth("split_frames", split_frames):
        videos = [video._replace(times=(0,)) for video in videos for _ in video.times]
    pad = _factory.pad_of(pad, factory)
    queues = {ids[name]: Queue(name, iter(b)) for name, b in (("image", images), ("video", videos))}
    sequences = [_walk(row, keep, queues, rules, pad) for row, keep in zip(rows, kept, strict=True)]
    _check_empty(queues)
    coordinates = [*chain.from_iterable(s.coordinates for s in sequences), *[(pad,) * 3] * num_padding]
    deltas = [sequence.delta for sequence in sequences]
    return _as_arrays(coordinates, deltas, shape, shape[:-1] if cu_seqlens is None else (len(rows),), factory)


class Block(NamedTuple):
    """An image or a video in tokens, and the time of each of its frames."""

    times: tuple[Number, ...]
    rows: int
    columns: int

    def size(self) -> int:
        return len(self.times) * self.rows * self.columns

    def coordinates(self, start: Number) -> Iterator[Point]:
        rows, columns = range(self.rows), range(self.columns)
        return ((start + t, start + h, start + w) for t in self.times for h in rows for w in columns)


class Queue(NamedTuple):
    """The blocks of images, or of videos, that the walk has yet to read."""

    name: str
    blocks: Iterator[Block]


class Rules(NamedTuple):
    """How the walk reads tokens of video and audio, and continues after a block."""

    video: int
    audio: int | None
    shared_delimiters: bool
    advance: str


class _Sequence(NamedTuple):
    """The coordinates of one sequence, and its delta."""

    coordinates: list[Point]
    delta: Number


# ---- reading ----


def _token_ids(image: Any, video: Any, audio: Any) -> dict[str, int]:
    """Return the token id of each kind that is in use; check that they differ."""
    values = {"image": image, "video": video} | ({} if audio is None else {"audio": audio})
    ids = {name: validation.integer(f"{name}_token_id", value, 0) for name, value in values.items()}
    for (name, number), (second_name, second_number) in combinations(ids.items(), 2):
        if number == second_number:
            raise SpecError(f"{name}_token_id and {second_name}_token_id are both {number}; give two ids.")
    return ids


def _read(name: str, value: Any, boolean: bool = False, real: bool = False) -> tuple[Any, tuple[int, ...]]:
    """Return values as nested lists, and their shape; wait for an array on a device."""
    if not _factory.is_array(value):
        shape = _factory.shape_of(name, value, Real if real else Integral)
        return _plain(value), shape
    _factory.library_of(value).check_supported(value)
    other_dtypes = _factory.REAL if real else frozenset({"bool"} if boolean else ())
    if _library.dtype_name(value) not in _factory.SIGNED | other_dtypes:
        accepted = "integers, float32 or float64" if real else _factory.need_of(boolean)
        raise ArrayTypeError(f"{name} is {describe(value)}; give {accepted}.")
    try:
        read = value.tolist() if hasattr(value, "tolist") else _through_dlpack(value)
    # Tracers, meta and fake tensors, and dask arrays have no values on the host; each raises its own error.
    except (TypeError, ValueError, RuntimeError, AttributeError, BufferError, NotImplementedError):
        read = None
    if read is None:
        raise ArrayTypeError(
            f"{name} is {describe(value)}, whose values cannot be read; give values of NumPy, outside of "
            "compiled functions (of a lazy array, its compute())."
        ) from None
    return read, tuple(value.shape)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple, range)):
        return [_plain(element) for element in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _through_dlpack(value: Any) -> Any:
    return _library.numpy_library().xp.from_dlpack(value).tolist()


def _token_rows(tokens: Any) -> tuple[list[Any], tuple[int, ...]]:
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
    read, mask_shape = _read("mask", mask, boolean=True)
    if mask_shape != shape:
        raise ShapeError(
            f"mask has the shape {mask_shape} and tokens {shape}; give one value for each token."
        )
    _factory.check_mask(read)
    return read if len(shape) == 2 else [read]


def _packed(
    row: list[Any], keep: list[Any], shape: tuple[int, ...], cu_seqlens: Any
) -> tuple[list[Any], list[Any], int]:
    """Return the tokens and the mask of each packed sequence, and the number of tokens after the last."""
    if len(shape) == 2 and shape[0] != 1:
        raise ShapeError(
            f"tokens has the shape {shape}, and cu_seqlens is given; give one row of packed tokens, (S,) or "
            "(1, S)."
        )
    ends, _ = _read("cu_seqlens", cu_seqlens)
    count_sequences(ends)
    total_of(ends, len(row))
    refuse_document_ids(ends, len(row))
    spans = [slice(start, end) for start, end in pairwise(ends)]
    return [row[span] for span in spans], [keep[span] for span in spans], len(row) - ends[-1]


def _blocks(name: str, grids: Any, merge: int, merge_frames: int) -> list[Block]:
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
        if t % merge_frames:
            raise ShapeError(
                f"{name} holds ({t}, {h}, {w}); give numbers of frames t that are multiples of "
                f"temporal_merge_size {merge_frames}: pad the video to a multiple."
            )
    return [Block(tuple(range(t // merge_frames)), h // merge, w // merge) for t, h, w in read]


def _with_times(
    videos: list[Block], tokens_per_second: Any, second_per_grid_ts: Any, by_interval: bool, fractions: bool
) -> list[Block]:
    """Return videos with the times of their frames."""
    rate = validation.positive("tokens_per_second", tokens_per_second)
    seconds, shape = _read("second_per_grid_ts", second_per_grid_ts, real=True)
    if shape not in ((), (len(videos),)):
        raise ShapeError(
            f"second_per_grid_ts has the shape {shape} for {len(videos)} videos; give one number, or one for "
            "each."
        )
    intervals = [validation.positive("second_per_grid_ts", s) for s in (seconds if shape else [seconds])]
    intervals = intervals if shape else intervals * len(videos)
    timed = []
    for video, s in zip(videos, intervals, strict=True):
        frames = len(video.times)
        if not frames * rate * s < 2**62:
            raise SpecError(
                f"tokens_per_second is {rate} and second_per_grid_ts {s}, which takes {frames} frames "
                "out of the range of integers; give smaller ones."
            )
        times = [_time(k, rate, s, by_interval) for k in range(frames)]
        timed.append(video._replace(times=tuple(times if fractions else map(int, times))))
    return timed


def _time(frame: int, rate: float, seconds: float, by_interval: bool) -> float:
    """Return the time of a frame in positions, each product rounded to float32 as in training."""
    if by_interval:
        return float32(frame * float32(rate * seconds))
    return float32(float32(frame * float32(seconds)) * float32(rate))


# ---- the walk ----


def _walk(row: list[int], keep: list[Any], queues: dict[int, Queue], rules: Rules, pad: int) -> _Sequence:
    """Return the coordinates of one sequence."""
    tokens = [token for token, kept in zip(row, keep, strict=True) if kept]
    repeats = _repeats(tokens, queues, rules)
    points: list[Point] = []
    following: Number = 0
    largest: Number = 0
    while (at := len(points)) < len(tokens):
        if at in repeats:
            points.append(points[-1])
            continue
        queue = queues.get(tokens[at])
        if queue is None:
            points.append((following,) * 3)
            following += 1
            largest = max(largest, following)
            continue
        block = _next_block(queue, at)
        added = _points_of(block, following, tokens[at : _block_end(block, queue.name, tokens, at, rules)])
        points += added
        largest = max(largest, 1 + max(map(max, added)))
        following = _text_after(block, following, added, largest, rules)
    remaining = iter(points)
    return _Sequence([next(remaining) if kept else (pad,) * 3 for kept in keep], largest - len(tokens))


def _next_block(queue: Queue, at: int) -> Block:
    block = next(queue.blocks, None)
    if block is None:
        raise ShapeError(
            f"tokens has a block of {queue.name} tokens, from token {at} of a sequence, for which there is "
            f"no grid; give {queue.name}_grid_thw one (t, h, w) for each {queue.name}."
        )
    return block


def _block_end(block: Block, name: str, tokens: list[int], at: int, rules: Rules) -> int:
    """Return the end of the block that begins at a token; check that all of its tokens are there."""
    # Audio belongs to the video whose tokens it follows.
    audio = rules.audio if tokens[at] == rules.video else None
    patches, end, size = 0, at, block.size()
    while end < len(tokens) and (tokens[end] == audio or (tokens[end] == tokens[at] and patches < size)):
        patches += tokens[end] == tokens[at]
        end += 1
    if patches < size:
        raise ShapeError(
            f"the grid of {len(block.times)} by {block.rows} by {block.columns} tokens needs {size} {name} "
            f"tokens in a row, and tokens has {patches} from token {at} of a sequence; give the grids in the "
            "order of the tokens, the model's spatial_merge_size and temporal_merge_size, split_frames for "
            "a model with text between the frames of a video, and audio_token_id for audio among them."
        )
    return end


def _points_of(block: Block, start: Number, tokens: list[int]) -> list[Point]:
    """Return the coordinates of a block's tokens: of patches, and of audio among them."""
    patches, sound = block.coordinates(start), count()
    # A block begins with a patch, so any other token is audio.
    return [next(patches) if token == tokens[0] else (start + next(sound),) * 3 for token in tokens]


def _text_after(block: Block, start: Number, added: list[Point], largest: Number, rules: Rules) -> Number:
    """Return the position of the token after a block."""
    if rules.advance == "spatial":
        return start + max(block.rows, block.columns)
    return largest if rules.advance == "max" else max(added[-1]) + 1


def _repeats(tokens: list[int], queues: dict[int, Queue], rules: Rules) -> set[int]:
    """Return the tokens that have the position of the token before them, by `shared_delimiters`."""
    repeats: set[int] = set()
    end = 0
    for mixed, run in groupby(tokens, lambda token: token in (rules.video, rules.audio)):
        run_tokens = [*run]
        start, end = end, end + len(run_tokens)
        if rules.shared_delimiters and mixed and {rules.video, rules.audio} <= {*run_tokens}:
            _check_delimiters(tokens, start, end, queues)
            repeats |= {start - 1, end + 1}
    return repeats


def _check_delimiters(tokens: list[int], start: int, end: int, queues: dict[int, Queue]) -> None:
    around = [*tokens[max(start - 2, 0) : start], *tokens[end : end + 2]]
    if len(around) < 4 or any(token in queues for token in around):
        raise ShapeError(
            f"shared_delimiters needs two text tokens before and after the video with audio at tokens "
            f"{start} to {end} of a sequence; add the model's tokens of begin and end, or leave "
            "shared_delimiters out."
        )


def _check_empty(queues: dict[int, Queue]) -> None:
    for name, blocks in queues.values():
        if unread := len([*blocks]):
            raise ShapeError(
                f"{name}_grid_thw has {unread} blocks more than tokens has; give the grids of these tokens."
            )


def _as_arrays(
    points: list[Point],
    deltas: list[Number],
    shape: tuple[int, ...],
    shape_of_deltas: tuple[int, ...],
    factory: _factory.ArrayFactory,
) -> tuple[Any, Any]:
    """Return the coordinates and the deltas of all sequences as arrays."""
    coordinates = [list(point) for point in points]
    if not factory.has_fractions:
        for value in (deltas, coordinates):
            _factory.check_range("the result", value, factory)
    return (
        factory.xp.reshape(factory.from_values(coordinates), (*shape, 3)),
        factory.xp.reshape(factory.from_values(deltas), shape_of_deltas),
    )
