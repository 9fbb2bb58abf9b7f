"""Functions of conventions: the rotated width, the axes and the frequencies."""

import math
from collections.abc import Sequence
from typing import Any

from rope_array._config._values import PartValues
from rope_array._errors import ConfigError, SpecError, short
from rope_array._spec.axes import Axes

# The rotated width


def all_features(values: PartValues, width: int) -> int:
    return width


def half_of_the_features(values: PartValues, width: int) -> int:
    return width // 2


def three_shares(values: PartValues, width: int) -> int:
    return 3 * 2 * (width // 3 // 2)


def rotary_key(values: PartValues, width: int, key: str, times: int = 1) -> int:
    return times * values.integer(key)


def stated_width(values: PartValues, width: int, keys: Sequence[str]) -> int:
    return values.width(*keys)


def clvp_width(values: PartValues, width: int) -> int:
    return max(values.integer("projection_dim") // (values.integer("num_attention_heads") * 2), 32)


def flamingo_width(values: PartValues, width: int) -> int:
    """Return the features of MusicFlamingo's two series, over the window and the time."""
    series = _flamingo_series(values)
    return 2 * (series + series % 2)


def _flamingo_series(values: PartValues) -> int:
    key = "partial_rotary_factor"
    places = (f"rope_parameters.{key}", f"rope_scaling.{key}", key)
    stated_key = next((name for name in places if values.get(name) is not None), key)
    return int(values.width("audio_config.hidden_size", "1280") * values.number(stated_key, 0.2))


# Axes


def equal_shares(
    values: PartValues, width: int, count: int = 2, order: Sequence[int] | None = None, blocks: bool = False
) -> Axes:
    """Give each coordinate the same number of adjacent pairs, with a series of its own."""
    return Axes.axial(*[_share(width, count)] * count, order=order, blocks=blocks)


def _share(width: int, count: int) -> int:
    if width % (2 * count):
        number = {2: "two", 3: "three"}[count]
        raise SpecError(
            f"the rotated width is {width}; {number} coordinates that share it equally need a multiple of "
            f"{2 * count}."
        )
    return width // count


def alternating_pairs(values: PartValues, width: int, order: Sequence[int] = (0, 1)) -> Axes:
    """Alternate two coordinates, each with the frequency series of half the width."""
    half = _share(width, 2)
    return Axes((*order,) * (half // 2), widths=(half, half))


def even_odd_pairs(values: PartValues, width: int) -> Axes:
    """Alternate two coordinates over the frequencies of one series."""
    return Axes(tuple(i % 2 for i in range(width // 2)), count=2)


def even_odd(values: PartValues, width: int) -> Axes:
    return Axes.even_odd(width)


def thirds_and_rest(values: PartValues, width: int) -> Axes:
    """Give height and width a third each, in whole pairs, and the frame the rest (Wan)."""
    third = 2 * (width // 6)
    return Axes.axial(width - 2 * third, third, third)


def quarter_for_the_frame(values: PartValues, width: int) -> Axes:
    """Give the frame a quarter, and height and width three eighths each (CogVideoX)."""
    return Axes.axial(width // 4, width // 8 * 3, width // 8 * 3)


def listed_widths(values: PartValues, width: int, key: str) -> Axes:
    """Give each coordinate the width that a list states; together they have the whole head."""
    sizes = whole_numbers(key, values.get(key))
    if sum(sizes) != width:
        raise ConfigError(f"{key} sums to {sum(sizes)}, and a head has {width} features; give widths of all.")
    return Axes.axial(*sizes)


def every_third_pair(values: PartValues, width: int, keys: Sequence[str]) -> Axes:
    """Return the map of Qwen3-VL, with the sections under the first stated key."""
    value = next((sections for key in keys if (sections := values.get(key)) is not None), [24, 20, 20])
    sections = whole_numbers(keys[0], value)
    if len(sections) != 3:
        raise ConfigError(f"{keys[0]} is {short(value)}; give a list of three numbers of pairs.")
    return clipped_axes(sections, width // 2)


def clipped_axes(sections: Sequence[int], num_pairs: int) -> Axes:
    """Give height and width every third pair, up to the end of their sections, and the frame the others."""
    return Axes(tuple(i % 3 if i < 3 * sections[i % 3] else 0 for i in range(num_pairs)), count=3)


def ltx_axes(values: PartValues, width: int, count: int, heads: str | None = None) -> Axes:
    """Return the map of LTX: the coordinates alternate; with `heads`, each head pairs its own halves."""
    steps = width // (2 * count)
    unrotated = width // 2 - steps * count
    blocks = values.integer(heads) if heads else 1
    return Axes((*[None] * unrotated, *[*range(count)] * steps), blocks=blocks, count=count)


def flamingo_axes(values: PartValues, width: int) -> Axes:
    pairs, series = width // 4, _flamingo_series(values)
    return Axes((0,) * pairs + (1,) * pairs, widths=(series, series))


def atom_axes(values: PartValues, width: int) -> Axes:
    spatial, residue = _atom_pairs(values, width)
    pairs = (*(axis for axis in range(3) for _ in range(spatial)), *(3,) * residue)
    return Axes((*pairs, *(None,) * (width // 2 - len(pairs))), count=4)


def _atom_pairs(values: PartValues, width: int) -> tuple[int, int]:
    """Return the number of pairs of each coordinate of a place, and of the residue's number."""
    spatial = values.integer("num_spatial_rope_pairs_per_axis", 2)
    residue = values.integer("num_uid_rope_pairs", 10)
    if 3 * spatial + residue > width // 2:
        raise SpecError(
            f"num_spatial_rope_pairs_per_axis is {short(spatial)} and num_uid_rope_pairs {short(residue)}; "
            f"give numbers so that three times the first plus the second is at most {width // 2} pairs."
        )
    return spatial, residue


def whole_numbers(key: str, sizes: Any) -> list[int]:
    """Return a stated list of up to 16 whole numbers, one for each coordinate."""
    if not isinstance(sizes, (list, tuple)) or not 0 < len(sizes) <= 16:
        raise ConfigError(f"{key} is {short(sizes)}; give a list of whole numbers.")
    if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes):
        raise ConfigError(f"{key} is {short(sizes)}; give whole numbers from 0.")
    return list(sizes)


# Frequencies


def atom_frequencies(values: PartValues, width: int) -> tuple[float, ...]:
    spatial, residue = _atom_pairs(values, width)
    place = _series(values, "spatial_rope_base_frequency", 20.0, spatial)
    table = (*place * 3, *_series(values, "uid_rope_base_frequency", 1e4, residue))
    return (*table, *(0.0,) * (width // 2 - len(table)))


def _series(values: PartValues, key: str, default: float, count: int) -> list[float]:
    """Return the frequencies of a number of pairs by the base under a key."""
    if (base := values.base(key, default)) is None:
        raise SpecError(f"{key} is null, which is no base; state the base that the model was trained with.")
    return [base ** (-i / count) for i in range(count)]


def cosmos_frequencies(values: PartValues, width: int) -> tuple[float, ...]:
    """Return the frequencies of frame, height and width, each with a base of its own (Cosmos)."""
    scales = values.get("rope_scale")
    if not isinstance(scales, (list, tuple)) or len(scales) != 3:
        raise ConfigError(f"rope_scale is {short(scales)}; give three numbers, for frame, height and width.")
    if not all(isinstance(s, (int, float)) and not isinstance(s, bool) and 0 < s < 1e9 for s in scales):
        raise ConfigError(f"rope_scale is {short(scales)}; give numbers above 0.")
    third = width // 6 * 2
    sizes = (width - 2 * third, third, third)
    if min(sizes) < 4:
        raise ConfigError(f"attention_head_dim is {width}; Cosmos needs at least 12 features.")
    bases = [1e4 * scale ** (size / (size - 2)) for size, scale in zip(sizes, scales, strict=True)]
    return tuple(
        base ** (-2 * i / size) for base, size in zip(bases, sizes, strict=True) for i in range(size // 2)
    )


def ltx_frequencies(
    values: PartValues, width: int, count: int, theta: str | None = None
) -> tuple[float, ...]:
    """Return π/2·θ^(k/(n-1)) for k < n, repeated for each coordinate, after pairs that stay (LTX)."""
    base = values.number(theta, 1e4) if theta else 1e4
    steps = width // (2 * count)
    powers = [base ** (k / (steps - 1)) if steps > 1 else 1.0 for k in range(steps)]
    rotated = [math.pi / 2 * power for power in powers for _ in range(count)]
    return (*[0.0] * (width // 2 - len(rotated)), *rotated)
