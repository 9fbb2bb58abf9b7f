"""Short texts of long sequences: repeats and ranges are folded."""

from collections.abc import Iterator, Sequence

MOST_PIECES = 16


def folded(values: Sequence[int | None]) -> str:
    """Return an expression of a sequence, repeats and ranges folded; "..." after the first pieces of many.

    Examples
    --------
    >>> folded((0, 0, 0, 0, 1, 2, 1, 2))
    '(*(0,) * 4, *(1, 2) * 2)'
    """
    pieces = [*_pieces(values)]
    if len(pieces) == 1 and pieces[0].startswith("*"):
        return pieces[0][1:]
    if len(pieces) > MOST_PIECES:
        pieces = [*pieces[: MOST_PIECES // 2], "..."]
    text = ", ".join(pieces)
    return f"({text},)" if len(pieces) == 1 else f"({text})"


def _pieces(values: Sequence[int | None]) -> Iterator[str]:
    start = 0
    while start < len(values):
        # max takes the first of equals: a range, then the shortest pattern.
        length, text = max(_folds(values, start), key=lambda fold: fold[0])
        start += length
        yield text


def _folds(values: Sequence[int | None], start: int) -> Iterator[tuple[int, str]]:
    """Yield the ways to fold the values from a start: how many values each takes, and its text."""
    yield 1, repr(values[start])
    first, second = (*values[start : start + 2], None)[:2]
    if first is not None and second is not None and first != second:
        yield from _range_fold(values, start, first, second - first)
    for period in range(1, min(8, (len(values) - start) // 2) + 1):
        end = start + period
        while end < len(values) and values[end] == values[end - period]:
            end += 1
        times = (end - start) // period
        if times > 1 and times * period > 3:
            yield times * period, f"*{tuple(values[start : start + period])!r} * {times}"


def _range_fold(values: Sequence[int | None], start: int, first: int, step: int) -> Iterator[tuple[int, str]]:
    """Yield the fold of values that are a range, if there are more than three."""
    length = 2
    while start + length < len(values) and values[start + length] == first + step * length:
        length += 1
    if length > 3:
        stop = first + step * length
        arguments = f"{first}, {stop}, {step}" if step != 1 else f"{first}, {stop}" if first else f"{stop}"
        yield length, f"*range({arguments})"
