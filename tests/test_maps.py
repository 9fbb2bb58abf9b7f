"""Compare each model's map of pairs to axes with its formula, written out here.

The angle of a pair is its coordinate times its frequency; comments name the sources of the formulas.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from config_cases import heads, model
from refusals import refusals, refused

from rope_array import Axes, Periods, RoPE, ShapeError

pytestmark = pytest.mark.neutral

Pair = tuple[int, float] | None  # the coordinate and the frequency, or None: unrotated


def power(base: float, numerator: float, width: float) -> float:
    return float(base ** (-numerator / width))


def series(*widths: int, base: float = 10000.0) -> list[Pair]:
    """Return the pairs of coordinates with a series of frequencies each: base^(-2j/width)."""
    return [(a, power(base, 2 * j, width)) for a, width in enumerate(widths) for j in range(width // 2)]


def letters(text: str, base: float) -> list[Pair]:
    """Return the pairs of one series, each driven by the coordinate that its letter names."""
    return [("THW".index(letter), power(base, i, len(text))) for i, letter in enumerate(text)]


class Map(NamedTuple):
    """A model's rope, its pairs, and the two features of each pair."""

    rope: RoPE
    pairs: list[Pair]
    features: Callable[[int], tuple[int, int]]

    @property
    def coordinates(self) -> int:
        return 1 + max(pair[0] for pair in self.pairs if pair is not None)


def halves(width: int, axes: Axes, pairs: list[Pair], **fields: Any) -> Map:
    middle = fields.get("rotary_dim", width) // 2
    return Map(RoPE(width, axes=axes, pairing="half", **fields), pairs, lambda i: (i, i + middle))


def adjacent(width: int, axes: Axes, pairs: list[Pair], **fields: Any) -> Map:
    return Map(RoPE(width, axes=axes, **fields), pairs, lambda i: (2 * i, 2 * i + 1))


def in_blocks(i: int) -> tuple[int, int]:
    """Pair the halves of each block of 32: Gemma 4 rotates each coordinate's part of the head on its own."""
    first = i // 16 * 32 + i % 16
    return first, first + 16


# M-RoPE: one series, coordinates (t, h, w)
ONE_SERIES = {
    "Qwen2-VL": halves(128, Axes.chunked(16, 24, 24), letters("T" * 16 + "H" * 24 + "W" * 24, 1e6), base=1e6),
    "GLM-4V": adjacent(
        128, Axes.chunked(8, 12, 12), letters("T" * 8 + "H" * 12 + "W" * 12, 1e4), rotary_dim=64
    ),
    "Qwen3-VL": halves(128, Axes.interleaved(24, 20, 20), letters("THW" * 20 + "TTTT", 5e6), base=5e6),
    "Qwen3.5": halves(
        256, Axes.interleaved(11, 11, 10), letters("THW" * 10 + "TH", 1e7), base=1e7, rotary_dim=64
    ),
    "ERNIE-4.5-VL": adjacent(128, Axes.alternating(20, 22, 22), letters("HW" * 22 + "T" * 20, 5e5), base=5e5),
    "NeoMME": halves(64, Axes((0, 1) * 16), letters("TH" * 16, 1e4)),
}
WIDTH_FIRST = [(1 - a, omega) for a, omega in series(48, 48)]
TWO_COORDINATES_BY_TURNS = [(a, power(1e4, 2 * j, 36)) for j in range(18) for a in (1, 0)]
EVEN_AND_ODD = [(a, power(1e4, 2 * (2 * j + a), 64)) for a in (0, 1) for j in range(16)]
PERIODS = [(a, 2 * math.pi / 100 ** (j / 16)) for a in (0, 1) for j in range(16)]
OF_ATOMS = [(a, 20 ** (-j / 2)) for a in range(3) for j in range(2)]
OF_ATOMS += [(3, 1e4 ** (-j / 8)) for j in range(8)]
BLOCKS_OF_GEMMA = halves(64, Axes.axial(32, 32, blocks=True), series(32, 32, base=100.0), base=100.0)
# Axial: each coordinate has a series of its own
MAPS = ONE_SERIES | {
    "Qwen2-VL's ViT": halves(80, Axes.axial(40, 40), series(40, 40)),
    "Step-3's ViT": halves(96, Axes.axial(48, 48, order=(1, 0)), WIDTH_FIRST),
    "SAM 2": adjacent(256, Axes.axial(128, 128), series(128, 128)),
    "Kimi's ViT": halves(72, Axes((1, 0) * 18, widths=(36, 36)), TWO_COORDINATES_BY_TURNS),
    "Gemma 4's ViT": BLOCKS_OF_GEMMA._replace(features=in_blocks),
    "Pixtral": halves(64, Axes.even_odd(64), EVEN_AND_ODD),
    # 80 // 3 // 2 = 13 pairs for each coordinate; two features are not rotated
    "MiniMax-M3's ViT": halves(80, Axes.axial(26, 26, 26), series(26, 26, 26), rotary_dim=78),
    # h and w have 2·(d//6) features each, t the rest
    "Wan": adjacent(128, Axes.axial(128 - 2 * 42, 42, 42), series(44, 42, 42)),
    "DINOv3": halves(64, Axes.axial(32, 32), PERIODS, base=100.0, scaling=Periods()),
    # Unrotated pairs, and frequencies from a table
    "ESMFold2's atoms": halves(
        32,
        Axes((0, 0, 1, 1, 2, 2, *(3,) * 8, None, None)),
        [*OF_ATOMS, None, None],
        inv_freq=(*(1.0, 20**-0.5) * 3, *(10 ** (-i / 2) for i in range(8)), 0.0, 0.0),
    ),
}
each_map = pytest.mark.parametrize("name", MAPS)


def places(map_: Map, floats: bool = False) -> np.ndarray:
    """Return positions whose coordinates differ at nearly every token."""
    steps = np.arange(9)[:, None] * np.array([3, 5, 7, 2])[: map_.coordinates]
    pos = (steps + np.array([0, 4, 1, 9])[: map_.coordinates]) % 31
    return (pos / 8 - 1.3).astype(np.float32) if floats else pos


def expected(map_: Map, x: np.ndarray, pos: np.ndarray) -> np.ndarray:
    """Rotate pair after pair by the formula of the map."""
    y = x.astype(np.float64).copy()
    for i, pair in enumerate(map_.pairs):
        a, b = map_.features(i)
        angle = np.zeros(len(pos)) if pair is None else pos[:, pair[0]].astype(np.float64) * pair[1]
        y[..., a] = x[..., a] * np.cos(angle) - x[..., b] * np.sin(angle)
        y[..., b] = x[..., b] * np.cos(angle) + x[..., a] * np.sin(angle)
    return y


def features(width: int, *lead: int) -> np.ndarray:
    return np.random.default_rng(width).standard_normal((*lead, width))


@each_map
def test_rotation(lib: Any, name: str) -> None:
    """Every library rotates each pair by its coordinate, at integer and at float positions."""
    map_ = MAPS[name]
    for floats in (False, True):
        pos = places(map_, floats=floats)
        x = features(map_.rope.head_dim, 2, 3, len(pos)).astype(np.float32)
        y = map_.rope.apply(lib.asarray(x, "float32"), lib.asarray(pos, "float32" if floats else "int32"))
        # Angles at float positions are off by up to 2.1e-7 · max(1, ω); features up to 4 multiply that.
        tolerance = 2e-6 * max(1.0, max(map_.rope.frequencies))
        np.testing.assert_allclose(lib.to_numpy(y), expected(map_, x, pos), rtol=0, atol=tolerance)


@each_map
def test_pairs(name: str) -> None:
    """Coordinates and frequencies, and in double apply, its matrix and its inverse.

    Scores depend only on differences of coordinates.
    """
    map_ = MAPS[name]
    assert map_.rope.axes is not None
    assert map_.rope.axes.coordinates == tuple(None if pair is None else pair[0] for pair in map_.pairs)
    omegas = [0.0 if pair is None else pair[1] for pair in map_.pairs]
    np.testing.assert_allclose(map_.rope.frequencies, omegas, rtol=1e-13)
    pos, shift = places(map_), np.array([2, -3, 11, 5])[: map_.coordinates]
    q, k = features(map_.rope.head_dim, 2, len(pos))
    y, exact = map_.rope.apply(q, pos), expected(map_, q, pos)
    np.testing.assert_allclose(y, exact, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.einsum("sij,sj->si", map_.rope.matrix(pos), q), exact, rtol=0, atol=1e-12)
    np.testing.assert_allclose(map_.rope.apply(y, pos, inverse=True), q, atol=1e-13)
    scores = [map_.rope.apply(q, p) @ map_.rope.apply(k, p).T for p in (pos, pos + shift)]
    np.testing.assert_allclose(*scores, atol=1e-10)


def test_a_row_of_coordinates_is_one_position_unless_x_has_as_many_tokens(lib: Any) -> None:
    map_, row = MAPS["SAM 2"], lib.asarray(np.array([5, 9]), "int32")
    for lead in ((), (3,), (2, 3), (2, 1)):
        x = features(256, *lead).astype(np.float32)
        y = lib.to_numpy(map_.rope.apply(lib.asarray(x, "float32"), row))
        np.testing.assert_allclose(y, expected(map_, x, np.array([[5, 9]])).reshape(x.shape), atol=2e-6)
    x = lib.asarray(features(256, 3, 2), "float32")
    for pos in (row, [5, 9]):
        with pytest.raises(ShapeError, match=r"there are 2 tokens\. .* \(1, 2\) .* \(2, 2\) for one of each"):
            map_.rope.apply(x, pos)
    assert len({lib.to_numpy(map_.rope.apply(x, pos)).tobytes() for pos in ([[5, 9]], [[5, 9]] * 2)}) == 1


@pytest.mark.parametrize("name", ONE_SERIES)
def test_equal_coordinates(lib: Any, name: str) -> None:
    """Text, whose coordinates are equal, is rotated as by 1-D RoPE, bit for bit."""
    map_, line = MAPS[name], np.array([0, 1, 2, 77, 4097, 2**31 - 1], dtype=np.int32)
    mrope, x = map_.rope, lib.asarray(features(map_.rope.head_dim, len(line)), "float32")
    plain = RoPE(mrope.head_dim, base=mrope.base, rotary_dim=mrope.rotary_dim, pairing=mrope.pairing)
    pos = np.repeat(line[:, None], map_.coordinates, axis=-1)
    bits, expected = (
        lib.to_numpy(rope.apply(x, lib.asarray(p, "int32"))) for rope, p in ((mrope, pos), (plain, line))
    )
    assert bits.tobytes() == expected.tobytes()


def test_pairs_that_are_never_rotated(lib: Any) -> None:
    """Features of unrotated pairs and after the rotated slice keep their bits at any position."""
    partial = RoPE(20, rotary_dim=16, pairing="half", axes=Axes((0, None, 1, 1, None, 0, None, None)))
    still = [1, 4, 6, 7]
    kept = [*still, *(i + 8 for i in still), *range(16, 20)]
    x = features(20, 3).astype(np.float32)
    pos = np.array([[5, 9], [2**31 - 1, 7], [-3, -(2**31)]], dtype=np.int32)
    y = lib.to_numpy(partial.apply(lib.asarray(x, "float32"), lib.asarray(pos, "int32")))
    assert y[:, kept].tobytes() == x[:, kept].tobytes()
    assert (y != x).sum() == 3 * (20 - len(kept))
    assert [partial.frequencies[i] for i in still] == [0.0] * 4


# ---- pairs beyond the sections ----


@pytest.mark.parametrize("sections", [(4, 6, 6), (8, 2, 3), (0, 5, 1), (16, 8, 8), (5, 0, 0)])
def test_leftover_pairs(sections: tuple[int, int, int]) -> None:
    """By default they are t's.

    transformers' apply_interleaved_mrope begins with t, and writes h and w over every third pair. Liger's
    kernel gives w all pairs from its section on.
    """
    coordinates = np.zeros(32, dtype=int)
    for a in (1, 2):
        coordinates[a : 3 * sections[a] : 3] = a
    assert Axes.interleaved(*sections, num_pairs=32).coordinates == tuple(coordinates)
    t, h, w = sections
    pairs = np.arange(32)
    liger = np.where(pairs < t, 0, np.where(pairs < t + h, 1, 2))
    assert Axes.chunked(*sections, num_pairs=32, rest=2).coordinates == tuple(liger)
    ours = np.where(pairs < t + h + w, liger, 0)
    assert Axes.chunked(*sections, num_pairs=32).coordinates == tuple(ours)


@refusals("maps")
def test_wrong_and_too_large_maps_are_refused(call: str, error: type[Exception], words: str) -> None:
    """Too large maps at once: without the limits most of these would take minutes, or all memory."""
    refused(error, words, lambda: eval(call))


def test_largest_map() -> None:
    axes = Axes((0, 1) * 16384, widths=(32768, 32768))
    assert axes.sources(65536)[-2:] == [(32768, 16383), (32768, 16383)]


def test_sections_are_plain_ints() -> None:
    """The sum of NumPy's int8 would overflow."""
    sections = (np.int8(100), np.int8(20), np.int8(20))
    assert Axes.interleaved(*sections) == Axes.interleaved(100, 20, 20)
    assert Axes.axial(*sections) == Axes.axial(100, 20, 20)


# ---- ggml ----


def ggml_angles(sections: tuple[int, ...], mode: str, pairs: int, pos: tuple[int, ...]) -> list[float]:
    """Return the angle of each pair as ggml_mrope_cache_init of ggml-cpu/ops.cpp does, in float64.

    ggml keeps one angle for each coordinate and multiplies all four from pair to pair.
    """
    angles, scale = [*map(float, pos)], 5e6 ** (-2.0 / (pairs if mode == "vision" else 2 * pairs))
    bounds, by_pair = [0, sections[0], sum(sections[:2]), sum(sections[:3])], []
    for pair in range(pairs):
        sector = pair % sum(sections)
        if mode == "vision":  # each section restarts the angle of its coordinate
            for a, bound in enumerate(bounds):
                if sector == bound:
                    angles[a] = float(pos[a])
                    break
        if mode == "imrope":
            a = next((c for c in (1, 2, 0) if sector % 3 == c and sector < 3 * sections[c]), 3)
        else:
            a = 3 if sector >= bounds[3] else 2 if sector >= bounds[2] else int(sector >= bounds[1])
        by_pair.append(angles[a])
        angles = [angle * scale for angle in angles]
    return by_pair


SECTIONS = [(16, 24, 24, 0), (24, 20, 20, 0), (11, 11, 10, 0), (8, 8, 8, 8), (3, 0, 2, 1), (0, 4, 4, 0)]


@pytest.mark.parametrize("pairs", [None, 5, 36])
@pytest.mark.parametrize("mode", ["mrope", "imrope", "vision"])
@pytest.mark.parametrize("sections", [*SECTIONS, (2, 5, 1, 7)], ids=str)
def test_ggml(sections: tuple[int, ...], mode: Any, pairs: int | None) -> None:
    axes = Axes.ggml(*sections, mode=mode, num_pairs=pairs)
    count = len(axes.coordinates)
    assert count == (pairs or sum(sections) // (2 if mode == "vision" else 1))
    pos, x = (3, 50, 7, 11), features(2 * count, 1)
    angle = np.array(ggml_angles(sections, mode, count, pos))
    a, b = np.split(x, 2, -1)
    cos, sin = np.cos(angle), np.sin(angle)
    expected = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    y = RoPE(2 * count, base=5e6, pairing="half", axes=axes).apply(x, [pos])
    np.testing.assert_allclose(y, expected, atol=1e-11)


# ---- repr ----

REPR = [
    "Axes.chunked(8, 8, 8, num_pairs=32)",
    "Axes.axial(4, 0, 2, order=(2, 0, 1))",
    "Axes.even_odd(64)",
    "Axes.chunked(0)",
    "Axes.chunked(2, 0, 0)",
    "Axes((0, 1, None, None))",
    "Axes((None,))",
    "Axes((0, None, None, None, 1, 2))",
    "Axes((*(0,) * 4, *(None,) * 4), count=2)",
    "Axes((0,) * 9, indices=range(9))",
    "Axes((0,) * 8, indices=(*range(4, 8), *range(9, 1, -2)))",
    "Axes((*(0,) * 18, *(1,) * 18), indices=(*range(18), *range(18)), widths=(36,) * 4, count=4)",
    "Axes.axial(32768, 32768)",
    "Axes((*(0,) * 32767, None), count=32768)",
]


@pytest.mark.parametrize("text", REPR)
def test_repr_is_short_and_makes_the_map_again(text: str) -> None:
    assert repr(eval(text)) == text


@each_map
def test_repr_of_the_maps_in_use(name: str) -> None:
    axes = MAPS[name].rope.axes
    text = repr(axes)
    assert eval(text) == axes
    assert len(text) < 100
    assert text in repr(MAPS[name].rope)
    assert pickle.loads(pickle.dumps(MAPS[name].rope)) == MAPS[name].rope


def test_repr_of_a_map_without_order_is_cut() -> None:
    random = np.random.default_rng(0).integers(0, 30, 3000).tolist()
    text = repr(Axes(random, widths=[2] * 30))
    assert len(text) < 200
    assert text.startswith(f"Axes(({', '.join(map(str, random[:4]))}")
    assert "...)" in text
    assert "\n" not in text


# ---- configs ----

CONFIGS: dict[str, tuple[dict[str, Any], str | None]] = {
    "Step-3's ViT": (model("step3p5_vision", **heads(1536, 16)), None),
    "SAM 2": (model("sam2_video", memory_attention_hidden_size=256), None),
    "Kimi's ViT": (model("kimi_k25_vision", **heads(1152, 16)), None),
    "Gemma 4's ViT": (model("gemma4", vision_config={"head_dim": 64}), "vision"),
    "Pixtral": (model("llava", vision_config=model("pixtral")), "vision"),
    "MiniMax-M3's ViT": (model("minimax_m3_vl_vision", **heads(640, 8)), None),
    "DINOv3": (model("dinov3_vit", **heads(384, 6)), None),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_from_config(name: str) -> None:
    """A checkpoint's config.json, without the fields that transformers adds, gives the map."""
    config, part = CONFIGS[name]
    assert RoPE.from_config(config, part=part) == MAPS[name].rope


def test_atoms_from_config() -> None:
    """Two bases in one head make a table of frequencies."""
    config = model("esmfold2", atom_encoder={"num_uid_rope_pairs": 8})
    rope, expected = RoPE.from_config(config, part="atom_encoder"), MAPS["ESMFold2's atoms"].rope
    assert rope.axes == expected.axes
    np.testing.assert_allclose(rope.frequencies, expected.frequencies, rtol=1e-14)


def test_older_base_of_sam2() -> None:
    assert RoPE.from_config(model("sam2_video", memory_attention_rope_theta=500.0)).base == 500.0
