"""Which coordinate drives which lane, as data: what tells M-RoPE's maps and axial RoPE from one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from rope_array._errors import SpecError

from .validation import integer, sequence, truth

_MOST = 2**16  # far beyond every head


@dataclass(frozen=True)
class Axes:
    """A lane-to-axis map: which coordinate of a position drives each lane, and by which frequency.

    With `axes`, positions have one more, last, axis: their coordinates, such as (t, h, w). Lane i turns by
    coordinate ``coordinates[i]`` times the frequency of number ``indices[i]`` in that coordinate's series, which is
    base^(-2j/width) for j = 0, 1, ... or what the rope's scaling makes of it.

    Parameters
    ----------
    coordinates : sequence of int or None
        For each of the rotary_dim/2 lanes the coordinate, from 0, that drives it. None: it never turns.
    indices : sequence of int, optional
        For each lane the number of its frequency. By default, where `widths` is None, lane i takes frequency
        i (one series over all lanes, as in M-RoPE); else the series restarts: the k-th lane of a coordinate
        takes its frequency k.
    widths : sequence of int, optional
        For each coordinate the width that its frequencies count over. By default rotary_dim for all.
    blocks : int
        The rotated slice is cut into so many equal blocks, and pairs stand inside a block.
    count : int, optional
        How many coordinates a position has. By default as many as `coordinates` names.

    Raises
    ------
    SpecError
        A value that names no map.

    See Also
    --------
    Axes.chunked, Axes.interleaved, Axes.alternating : the maps of M-RoPE.
    Axes.axial, Axes.even_odd : the maps of vision and video models.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> rope = ra.RoPE(8, pairing="half", axes=ra.Axes.axial(4, 4))  # a ViT's: half of the lanes h, half w
    >>> x = np.ones((2, 8), dtype=np.float32)                        # two patches
    >>> rope.apply(x, [[0, 0], [0, 1]]).shape                        # at (h, w) = (0, 0) and (0, 1)
    (2, 8)
    """

    coordinates: tuple[int | None, ...]
    _: KW_ONLY
    indices: tuple[int, ...] | None = None
    widths: tuple[int, ...] | None = None
    blocks: int = 1
    count: int | None = None

    def __post_init__(self) -> None:
        lanes = tuple(
            None if a is None else integer(f"coordinates[{i}]", a, 0)
            for i, a in enumerate(
                sequence("coordinates", self.coordinates, "a sequence of coordinates' numbers")
            )
        )
        named = max((a + 1 for a in lanes if a is not None), default=0)
        count = max(named, 1) if self.count is None else integer("count", self.count, 1)
        if count < named:
            raise SpecError(f"count is {count}, and coordinates names {named - 1}; give at least {named}.")
        settled: dict[str, Any] = {
            "coordinates": lanes,
            "count": count,
            "indices": _integers("indices", self.indices, 0, len(lanes), "lane"),
            "widths": _integers("widths", self.widths, 1, count, "coordinate"),
            "blocks": integer("blocks", self.blocks, 1),
        }
        if lanes and len(lanes) % settled["blocks"]:
            raise SpecError(
                f"blocks is {self.blocks}, which does not divide {len(lanes)} lanes; give a divisor of them."
            )
        if (most := max(settled["indices"] or (), default=0)) > _MOST:
            raise SpecError(
                f"indices holds {most}; give numbers of frequencies, up to half of the width they count over "
                f"as a rule, and at most {_MOST}: a series is made as far as its last one."
            )
        for name, value in settled.items():
            object.__setattr__(self, name, value)

    def sources(self, rotary_dim: int) -> list[tuple[int, int] | None]:
        """Return where the frequency of each lane comes from.

        Parameters
        ----------
        rotary_dim : int
            The width of every series where `widths` is None.

        Returns
        -------
        list of (int, int) or None
            For each lane the width of the series and the number in it; None for a lane that never turns.

        Examples
        --------
        >>> import rope_array as ra
        >>> ra.Axes((0, 1, None, 1), widths=(2, 4)).sources(8)
        [(2, 0), (4, 0), None, (4, 1)]
        """
        numbers = self.indices or self._counted()
        return [
            None if a is None else (self.widths[a] if self.widths else rotary_dim, number)
            for a, number in zip(self.coordinates, numbers, strict=True)
        ]

    def _counted(self) -> Sequence[int]:
        if self.widths is None:
            return range(len(self.coordinates))
        return [self.coordinates[:i].count(a) for i, a in enumerate(self.coordinates)]

    @classmethod
    def chunked(cls, *sections: int) -> Axes:
        """Give each coordinate a run of lanes of one series: M-RoPE of Qwen2-VL.

        Parameters
        ----------
        *sections : int
            Lanes of each coordinate, (t, h, w) say; their sum is rotary_dim/2. "mrope_section" in configs.

        Returns
        -------
        Axes

        References
        ----------
        .. [1] Wang et al., "Qwen2-VL", arXiv 2409.12191, section 2.1.

        Examples
        --------
        >>> import rope_array as ra
        >>> ra.Axes.chunked(2, 1, 1).coordinates
        (0, 0, 1, 2)
        """
        return cls(tuple(a for a, n in enumerate(_sections(sections)) for _ in range(n)), count=len(sections))

    @classmethod
    def interleaved(cls, *sections: int) -> Axes:
        """Let coordinates take turns along one series, the first having what is left: M-RoPE of Qwen3-VL.

        Of n coordinates, number a > 0 drives the lanes a, a + n, a + 2n, ..., as many as its section says,
        and coordinate 0 all others. Not to be confused with the interleaved pairing, which is about features.

        Parameters
        ----------
        *sections : int
            Lanes of each coordinate, (t, h, w) say; their sum is rotary_dim/2.

        Returns
        -------
        Axes

        Raises
        ------
        SpecError
            A section that does not fit: its lanes would lie beyond the last one.

        References
        ----------
        .. [1] "Qwen3-VL Technical Report", arXiv 2511.21631; transformers, modeling_qwen3_vl.

        Examples
        --------
        >>> import rope_array as ra
        >>> ra.Axes.interleaved(4, 2, 2).coordinates
        (0, 1, 2, 0, 1, 2, 0, 0)
        """
        n, total = len(_sections(sections)), sum(sections)
        lanes = [0] * total
        for a, size in enumerate(sections[1:], 1):
            if size and a + n * (size - 1) >= total:
                raise SpecError(
                    f"sections are {sections}: coordinate {a} takes lane {a} and every {n}th after it, "
                    f"and of {total} there are not {size} such; give it at most {len(range(a, total, n))}."
                )
            lanes[a : n * size : n] = [a] * size
        return cls(tuple(lanes), count=n)

    @classmethod
    def alternating(cls, t: int, h: int, w: int) -> Axes:
        """Let h and w take turns along one series, and t the rest of it: M-RoPE of ERNIE-4.5-VL.

        Parameters
        ----------
        t, h, w : int
            Lanes of each coordinate, t being coordinate 0; h equals w. ERNIE's "mrope_section" is (h, w, t).

        Returns
        -------
        Axes

        Raises
        ------
        SpecError
            h and w differ.

        References
        ----------
        .. [1] transformers, modeling_ernie4_5_vl_moe.

        Examples
        --------
        >>> import rope_array as ra
        >>> ra.Axes.alternating(2, 2, 2).coordinates
        (1, 2, 1, 2, 0, 0)
        """
        if len({*_sections((h, w))}) > 1:
            raise SpecError(f"h is {h} and w {w}; coordinates that take turns have equally many lanes.")
        return cls((1, 2) * h + (0,) * integer("t", t, 0), count=3)

    @classmethod
    def axial(cls, *widths: int, order: Sequence[int] | None = None, blocks: bool = False) -> Axes:
        """Give each coordinate a run of lanes with a series of its own: axial RoPE of images and video.

        Parameters
        ----------
        *widths : int
            Features of each coordinate, even; their sum is rotary_dim.
        order : sequence of int, optional
            Coordinates in the order of their lanes: (1, 0) for w before h. By default 0, 1, ...
        blocks : bool
            Pairs stand inside the features of their coordinate (Gemma 4's vision tower), for equal widths.

        Returns
        -------
        Axes

        Raises
        ------
        SpecError
            Odd widths, an order that is no permutation, blocks of unequal widths.

        References
        ----------
        .. [1] Heo et al., "Rotary Position Embedding for Vision Transformer", arXiv 2403.13298, section 3.2.

        Examples
        --------
        >>> import rope_array as ra
        >>> ra.Axes.axial(4, 2).sources(6)
        [(4, 0), (4, 1), (2, 0)]
        """
        for a, width in enumerate(_sections(widths)):
            if width % 2:
                raise SpecError(f"width {a} is {width}, odd; features turn in pairs: give an even width.")
        order = _integers(
            "order", range(len(widths)) if order is None else order, 0, len(widths), "coordinate"
        )
        assert order is not None
        if sorted(order) != [*range(len(widths))]:
            raise SpecError(
                f"order is {tuple(order)}; give each of the coordinates 0 to {len(widths) - 1} once."
            )
        if truth("blocks", blocks) and len({*widths}) > 1:
            raise SpecError(f"widths are {widths}; blocks are of equal widths.")
        lanes = tuple(a for a in order for _ in range(widths[a] // 2))
        # A width of 0 has no series, and no lane that would take from it.
        series = tuple(w or 2 for w in widths)
        return cls(lanes, widths=series, blocks=len(widths) if blocks else 1, count=len(widths))

    @classmethod
    def even_odd(cls, rotary_dim: int) -> Axes:
        """Give coordinate 0 the even frequencies of one series, then coordinate 1 the odd ones: Pixtral.

        Parameters
        ----------
        rotary_dim : int
            Rotated features; a multiple of 4.

        Returns
        -------
        Axes

        Raises
        ------
        SpecError
            rotary_dim is no multiple of 4.

        References
        ----------
        .. [1] Agrawal et al., "Pixtral 12B", arXiv 2410.07073; transformers, modeling_pixtral.

        Examples
        --------
        >>> import rope_array as ra
        >>> ra.Axes.even_odd(8).coordinates, ra.Axes.even_odd(8).indices
        ((0, 0, 1, 1), (0, 2, 1, 3))
        """
        if integer("rotary_dim", rotary_dim, 0) % 4:
            raise SpecError(
                f"rotary_dim is {rotary_dim}; two coordinates with a pair each need a multiple of 4."
            )
        half = rotary_dim // 4
        indices = (*range(0, 2 * half, 2), *range(1, 2 * half, 2))
        return cls((0,) * half + (1,) * half, indices=indices, count=2)


def _sections(sections: Sequence[int]) -> Sequence[int]:
    for a, size in enumerate(sections):
        integer(f"section {a}", size, 0)
    if not sections:
        raise SpecError("no section is given; give one for each coordinate.")
    return sections


def _integers(name: str, values: Any, least: int, count: int, of: str) -> tuple[int, ...] | None:
    if values is None:
        return None
    made = tuple(
        integer(f"{name}[{i}]", v, least) for i, v in enumerate(sequence(name, values, "a sequence of ints"))
    )
    if len(made) != count:
        raise SpecError(f"{name} has {len(made)} numbers, and there are {count} {of}s; give one for each.")
    return made
