"""Maps from pairs of features to coordinates, as data: M-RoPE and axial RoPE differ only in this map.

For 8 pairs, each entry is the pair's coordinate (t, h, w, or 0 and 1) and the number of its frequency::

    pair                  0   1   2   3   4   5   6   7
    chunked(4, 2, 2)      t0  t1  t2  t3  h4  h5  w6  w7    one series: the frequency has the pair's number
    interleaved(4, 2, 2)  t0  h1  w2  t3  h4  w5  t6  t7
    alternating(4, 2, 2)  h0  w1  h2  w3  t4  t5  t6  t7
    axial(8, 4, 4)        t0  t1  t2  t3  h0  h1  w0  w1    a series for each coordinate
    even_odd(16)          00  02  04  06  11  13  15  17    two coordinates
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import accumulate
from itertools import count as counter
from typing import Any, Literal, get_args

from rope_array._errors import SpecError, short

from .folding import MOST_PIECES, folded
from .validation import MAX_PAIRS, MAX_WIDTH, choice, integer, sequence, truth

GgmlMode = Literal["mrope", "imrope", "vision"]


@dataclass(frozen=True)
class Axes:
    """A map from pairs to coordinates: which coordinate of a position drives each pair, by which frequency.

    With `axes`, positions have one more, last, axis: their coordinates, such as (t, h, w). Pair i rotates by
    coordinate ``coordinates[i]`` times frequency number ``indices[i]`` of that coordinate's series, which is
    base^(-2j/width) for j = 0, 1, ..., or the result of the rope's scaling for it.

    Parameters
    ----------
    coordinates : sequence of int or None
        For each of the rotary_dim/2 pairs, the coordinate that drives it, counted from 0. A pair with None is
        not rotated. At most 32,768 pairs.
    indices : sequence of int, optional
        For each pair, the number of its frequency. Without `widths`, the default is one series over all
        pairs, as in M-RoPE: pair i takes frequency i. With `widths`, each coordinate counts its own pairs:
        its k-th pair takes frequency k.
    widths : sequence of int, optional
        For each coordinate, the width of its series. By default rotary_dim for all.
    blocks : int
        Number of equal blocks of the rotated slice. Both features of a pair are in one block.
    count : int, optional
        Number of coordinates of a position, at most 32,768. By default the largest of `coordinates` plus 1.

    Raises
    ------
    SpecError
        A value is invalid, or the series have more than 32,768 frequencies in all.

    See Also
    --------
    Axes.chunked, Axes.interleaved, Axes.alternating, Axes.ggml : the maps of M-RoPE.
    Axes.axial, Axes.even_odd : the maps of vision and video models.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> rope = ra.RoPE(8, pairing="half", axes=ra.Axes.axial(4, 4))  # a ViT's: half of the pairs h, half w
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
        coordinates = sequence("coordinates", self.coordinates, "a sequence of ints or None", _coordinate)
        pairs, named = len(coordinates), max((1, *(a + 1 for a in coordinates if a is not None)))
        count = integer("count", named if self.count is None else self.count, 1, MAX_PAIRS)
        if count < named:
            raise SpecError(f"count is {count}, and coordinates names {named - 1}; give at least {named}.")
        blocks = integer("blocks", self.blocks, 1, MAX_PAIRS)
        if pairs % blocks:
            raise SpecError(f"blocks is {blocks}, which does not divide {pairs} pairs; give a divisor.")
        for name, value in {
            "coordinates": coordinates,
            "indices": _integers("indices", self.indices, 0, pairs, "pair"),
            "widths": _integers("widths", self.widths, 1, count, "coordinate"),
            "blocks": blocks,
            "count": count,
        }.items():
            object.__setattr__(self, name, value)
        if (total := sum(series_lengths(self.sources(2 * pairs)).values())) > MAX_PAIRS:
            raise SpecError(
                f"widths and indices need series of {total} frequencies in all, each over half its width and "
                f"as far as its last index; give a map that needs at most {MAX_PAIRS}."
            )

    def __repr__(self) -> str:
        """Return the call of a named constructor that makes this map, else all fields, repeats folded."""
        return self._named() or f"Axes({', '.join(self._arguments())})"

    def _named(self) -> str | None:
        """Return the call of the first constructor that makes this map; None if none does."""
        for name, args, options in self._candidates():
            try:
                axes = getattr(Axes, name)(*args, **options)
            except SpecError:
                continue
            if axes == self:
                arguments = [*map(str, args), *(f"{option}={value}" for option, value in options.items())]
                return f"Axes.{name}({', '.join(arguments)})"
        return None

    def _candidates(self) -> Iterator[tuple[str, Sequence[int], dict[str, Any]]]:
        """Yield the calls that could make a map with these pairs for each coordinate."""
        assert self.count is not None
        if self.count > MOST_PIECES:
            return
        counts = Counter(self.coordinates)
        sections = [counts[a] for a in range(self.count)]
        yield "chunked", sections, {}
        yield "interleaved", sections, {}
        trailing = next((i for i, a in enumerate(reversed(self.coordinates)) if a != 0), 0)
        yield "chunked", [sections[0] - trailing, *sections[1:]], {"num_pairs": len(self.coordinates)}
        if self.count == 3:
            yield "alternating", sections, {}
        yield "even_odd", [2 * len(self.coordinates)], {}
        drivers = dict.fromkeys(a for a in self.coordinates if a is not None)
        order = (*drivers, *(a for a in range(self.count) if a not in drivers))
        options = {"order": order} if order != tuple(range(self.count)) else {}
        blocks = {"blocks": True} if self.blocks > 1 else {}
        yield "axial", [2 * n for n in sections], options | blocks

    def _arguments(self) -> Iterator[str]:
        """Yield the fields that differ from their defaults, as arguments."""
        yield folded(self.coordinates)
        if self.indices is not None:
            yield f"indices={folded(self.indices)}"
        if self.widths is not None:
            yield f"widths={folded(self.widths)}"
        if self.blocks != 1:
            yield f"blocks={self.blocks}"
        if self.count != max((a + 1 for a in self.coordinates if a is not None), default=1):
            yield f"count={self.count}"

    def sources(self, rotary_dim: int) -> list[tuple[int, int] | None]:
        """Return the series and the number of each pair's frequency.

        Parameters
        ----------
        rotary_dim : int
            The width of every series if `widths` is None.

        Returns
        -------
        list of (int, int) or None
            For each pair the width of the series and the number in it; None if the pair is not rotated.

        Examples
        --------
        >>> import rope_array as ra
        >>> ra.Axes((0, 1, None, 1), widths=(2, 4)).sources(8)
        [(2, 0), (4, 0), None, (4, 1)]
        """
        rotary_dim = integer("rotary_dim", rotary_dim, 0)
        numbers = self.indices or self._default_indices()
        return [
            None if a is None else (self.widths[a] if self.widths else rotary_dim, number)
            for a, number in zip(self.coordinates, numbers, strict=True)
        ]

    def _default_indices(self) -> Sequence[int]:
        if self.widths is None:
            return range(len(self.coordinates))
        counters: dict[int | None, counter[int]] = defaultdict(counter)
        return [next(counters[a]) for a in self.coordinates]

    @classmethod
    def chunked(cls, *sections: int, num_pairs: int | None = None, rest: int = 0) -> Axes:
        """Give each coordinate consecutive pairs of one series: M-RoPE of Qwen2-VL.

        Parameters
        ----------
        *sections : int
            Pairs of each coordinate, such as (t, h, w); their sum is rotary_dim/2. In configs
            "mrope_section".
        num_pairs : int, optional
            Number of all pairs, rotary_dim/2. By default the sections' sum.
        rest : int
            The coordinate of the pairs after the last section. The kernels of Liger and vLLM use w,
            ``rest=2`` [2]_.

        Returns
        -------
        Axes

        Raises
        ------
        SpecError
            `num_pairs` is less than the sections' sum, or `rest` names no coordinate.

        References
        ----------
        .. [1] Wang et al., "Qwen2-VL", arXiv 2409.12191, section 2.1.
        .. [2] Liger-Kernel, ``_triton_qwen2vl_mrope``; vLLM, ``_triton_mrope_forward``.

        Examples
        --------
        >>> import rope_array as ra
        >>> ra.Axes.chunked(2, 1, 1).coordinates
        (0, 0, 1, 2)
        >>> ra.Axes.chunked(2, 1, 1, num_pairs=6, rest=2).coordinates
        (0, 0, 1, 2, 2, 2)
        """
        sizes = _sections(sections, MAX_PAIRS)
        last = integer("rest", rest, 0, len(sizes) - 1)
        coordinates = [a for a, n in enumerate(sizes) for _ in range(n)]
        return cls((*coordinates, *[last] * (_num_pairs(num_pairs, sizes) - sum(sizes))), count=len(sizes))

    @classmethod
    def interleaved(cls, *sections: int, num_pairs: int | None = None) -> Axes:
        """Alternate the coordinates along one series; coordinate 0 has the other pairs: M-RoPE of Qwen3-VL.

        Of n coordinates, number a > 0 drives the pairs a, a + n, a + 2n, ..., as many as its section has.
        Coordinate 0 drives all other pairs. The interleaved pairing is unrelated: it defines which two
        features are a pair.

        Parameters
        ----------
        *sections : int
            Pairs of each coordinate, such as (t, h, w); their sum is rotary_dim/2.
        num_pairs : int, optional
            Number of all pairs, rotary_dim/2. By default the sections' sum. Coordinate 0 drives the pairs
            that are in no section, as in transformers.

        Returns
        -------
        Axes

        Raises
        ------
        SpecError
            A section would go beyond the last pair, or `num_pairs` is less than the sections' sum.

        References
        ----------
        .. [1] "Qwen3-VL Technical Report", arXiv 2511.21631; transformers, modeling_qwen3_vl.

        Examples
        --------
        >>> import rope_array as ra
        >>> ra.Axes.interleaved(4, 2, 2).coordinates
        (0, 1, 2, 0, 1, 2, 0, 0)
        >>> ra.Axes.interleaved(1, 2, 2, num_pairs=8).coordinates
        (0, 1, 2, 0, 1, 2, 0, 0)
        """
        sizes = _sections(sections, MAX_PAIRS)
        n, total = len(sizes), _num_pairs(num_pairs, sizes)
        coordinates = [0] * total
        for a, size in enumerate(sizes[1:], 1):
            if size and a + n * (size - 1) >= total:
                raise SpecError(
                    f"sections are {short(sizes)}: coordinate {a} takes pair {a} and every {n}th after it, "
                    f"{len(range(a, total, n))} of {total} pairs; give it at most as many, or num_pairs if "
                    "the map has more pairs than its sections."
                )
            coordinates[a : n * size : n] = [a] * size
        return cls(tuple(coordinates), count=n)

    @classmethod
    def alternating(cls, t: int, h: int, w: int) -> Axes:
        """Alternate h and w along one series; t has the other pairs: M-RoPE of ERNIE-4.5-VL.

        Parameters
        ----------
        t, h, w : int
            Pairs of each coordinate; t is coordinate 0, and h equals w. ERNIE's "mrope_section" is (h, w, t).

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
        t, h, w = _sections((t, h, w), MAX_PAIRS)
        if h != w:
            raise SpecError(f"h is {h} and w {w}; coordinates that alternate need equally many pairs.")
        return cls((1, 2) * h + (0,) * t, count=3)

    @classmethod
    def ggml(cls, *sections: int, mode: GgmlMode = "mrope", num_pairs: int | None = None) -> Axes:
        """Read the four sections of ggml: M-RoPE of llama.cpp, with the coordinates (t, h, w, e).

        Every mode pairs features by halves, ``pairing="half"``. llama.cpp gives text the coordinates
        (p, p, p, 0).

        Parameters
        ----------
        *sections : int
            Four numbers of pairs, for the coordinates t, h, w and e; in GGUF files
            "rope.dimension_sections". Pairs beyond their sum begin with the first section again.
        mode : {"mrope", "imrope", "vision"}
            "mrope" gives each coordinate consecutive pairs of one series (Qwen2-VL). "imrope" gives each of
            t, h and w every third pair, as many as its section has, and all other pairs to e (Qwen3-VL).
            "vision" gives each coordinate consecutive pairs and a series of its own, of the width
            rotary_dim/2 (vision towers).
        num_pairs : int, optional
            Number of all pairs, rotary_dim/2. By default the sections' sum. For "vision" half of the sum,
            because each of its four sections is a quarter of the head.

        Returns
        -------
        Axes

        Raises
        ------
        SpecError
            The sections are not four, or the sections of t, h and w are all 0.

        References
        ----------
        .. [1] ggml, ``ggml_rope_multi``, and ggml-cpu/ops.cpp, ``ggml_mrope_cache_init``.

        Examples
        --------
        >>> import rope_array as ra
        >>> ra.Axes.ggml(3, 3, 2, 0, mode="imrope").coordinates
        (0, 1, 2, 0, 1, 2, 0, 1)
        >>> ra.Axes.ggml(2, 2, 2, 2, mode="vision").sources(8)
        [(4, 0), (4, 1), (4, 0), (4, 1)]
        """
        sizes = _sections(sections, MAX_WIDTH)
        if len(sizes) != 4 or not any(sizes[:3]):
            raise SpecError(
                f"sections are {short(sizes)}; give four, for t, h, w and e, of which t, h or w has pairs."
            )
        vision = choice("mode", mode, get_args(GgmlMode)) == "vision"
        pairs = sum(sizes) // (2 if vision else 1)
        pairs = integer("num_pairs", pairs if num_pairs is None else num_pairs, 0, MAX_PAIRS)
        sectors = [i % sum(sizes) for i in range(pairs)]
        if mode == "imrope":
            return cls(tuple(s % 3 if s < 3 * sizes[s % 3] else 3 for s in sectors), count=4)
        starts = [*accumulate(sizes[:3], initial=0)]
        coordinates = tuple(sum(s >= start for start in starts[1:]) for s in sectors)
        if not vision:
            return cls(coordinates, count=4)
        return cls(
            coordinates, indices=_restarted(coordinates, sectors, starts), widths=(pairs or 1,) * 4, count=4
        )

    @classmethod
    def axial(cls, *widths: int, order: Sequence[int] | None = None, blocks: bool = False) -> Axes:
        """Give each coordinate consecutive pairs and a series of its own: axial RoPE of images and video.

        Parameters
        ----------
        *widths : int
            Features of each coordinate, even; their sum is rotary_dim.
        order : sequence of int, optional
            Coordinates in the order of their pairs: (1, 0) for w before h. By default 0, 1, ...
        blocks : bool
            Whether both features of a pair are among the features of its coordinate (Gemma 4's vision tower).
            The widths must then be equal.

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
        sizes = _sections(widths, MAX_WIDTH, "widths")
        n = len(sizes)
        for a, width in enumerate(sizes):
            if width % 2:
                raise SpecError(f"width {a} is {width}, odd; features rotate in pairs: give an even width.")
        order = range(n) if order is None else _integers("order", order, 0, n, "coordinate")
        assert order is not None
        if sorted(order) != [*range(n)]:
            raise SpecError(f"order is {short(order)}; give each of the coordinates 0 to {n - 1} once.")
        if truth("blocks", blocks) and len({*sizes}) > 1:
            raise SpecError(f"widths are {short(sizes)}; blocks need equal widths.")
        coordinates = tuple(a for a in order for _ in range(sizes[a] // 2))
        # Axes needs widths above 0; a coordinate without pairs may have any.
        return cls(coordinates, widths=tuple(w or 2 for w in sizes), blocks=n if blocks else 1, count=n)

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
        if (width := integer("rotary_dim", rotary_dim, 0, MAX_WIDTH)) % 4:
            raise SpecError(f"rotary_dim is {width}; two coordinates with a pair each need a multiple of 4.")
        pairs = width // 4  # of each coordinate
        indices = (*range(0, 2 * pairs, 2), *range(1, 2 * pairs, 2))
        return cls((0,) * pairs + (1,) * pairs, indices=indices, count=2)


def _num_pairs(num_pairs: int | None, sizes: tuple[int, ...]) -> int:
    """Return the number of pairs of a map: the sections' sum, or more."""
    total = sum(sizes) if num_pairs is None else integer("num_pairs", num_pairs, 0, MAX_PAIRS)
    if total < sum(sizes):
        raise SpecError(
            f"num_pairs is {total}, and the sections' sum is {sum(sizes)}; give at least the sum."
        )
    return total


def _restarted(coordinates: Sequence[int], sectors: Sequence[int], starts: Sequence[int]) -> tuple[int, ...]:
    """Return the number of each pair's frequency if a coordinate's series begins with its section."""
    first, indices = [0] * len(starts), []
    for i, (coordinate, sector) in enumerate(zip(coordinates, sectors, strict=True)):
        if sector in starts:
            # Empty sections share a start with the section after them; restart the first, as ggml does.
            first[starts.index(sector)] = i
        indices.append(i - first[coordinate])
    return tuple(indices)


def series_lengths(sources: Sequence[tuple[int, int] | None]) -> dict[int, int]:
    """Return the length of each series by its width.

    A series is computed over all of its width even if pairs take only a part; a rule may depend on all of it.
    """
    lengths: dict[int, int] = {}
    for source in sources:
        if source is not None:
            width, number = source
            lengths[width] = max(lengths.get(width, (width + 1) // 2), number + 1)
    return lengths


def _coordinate(name: str, value: Any) -> int | None:
    return None if value is None else integer(name, value, 0)


def _sections(sections: Sequence[int], max_sum: int, name: str = "sections") -> tuple[int, ...]:
    if len(sections) == 1 and isinstance(listed := sections[0], (list, tuple)):
        raise SpecError(
            f"the {name} are in a {type(listed).__name__}; give each as an argument: *{short(listed)}."
        )
    sizes = sequence(name, sections, "a sequence of ints", partial(integer, minimum=0, maximum=max_sum))
    if not sizes:
        raise SpecError("no section is given; give one for each coordinate.")
    if sum(sizes) > max_sum:
        raise SpecError(f"the sections' sum is {sum(sizes)}; give sections of at most {max_sum} in all.")
    return sizes


def _integers(name: str, values: Any, minimum: int, count: int, unit: str) -> tuple[int, ...] | None:
    if values is None:
        return None
    numbers = sequence(name, values, "a sequence of ints", partial(integer, minimum=minimum))
    if len(numbers) != count:
        raise SpecError(
            f"{name} has {len(numbers)} numbers, and there are {count} {unit}s; give one for each."
        )
    return numbers
