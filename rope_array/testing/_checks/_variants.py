"""Rules that scale frequencies for longer contexts, and maps from coordinates to lanes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_array.testing._judge import Judge, check

# ---- scaling ----

# The context that rules are stated for here: short, so that all that they do shows in a narrow head.
_TRAINED = 64
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": _TRAINED}


def _scaled(j: Judge, *rules: dict[str, Any], base: float | None = None) -> None:
    more = {} if base is None or not j.claims("base") else {"base": base}
    for rule in rules:
        j.rotated(j.x(), j.places(), scaling=rule, **more)


@check("scaling")
def scaling_linear(j: Judge) -> None:
    """Linear scaling divides every frequency by the factor (Chen et al., arXiv 2306.15595)."""
    _scaled(j, *({"rope_type": "linear", "factor": factor} for factor in (4.0, 1.0, 2.5, 0.5, 3)))


@check("scaling")
def scaling_ntk(j: Judge) -> None:
    """NTK-aware scaling makes the base θ·f^(d/(d-2)); it keeps the first frequency, divides the last by f."""
    _scaled(j, *({"rope_type": "ntk", "factor": factor} for factor in (4.0, 1.0, 1000.0)))


@check("scaling")
def scaling_dynamic(j: Judge) -> None:
    """Dynamic NTK goes by the length said: θ·(f·L/m - (f - 1))^(d/(d-2)), and up to m changes nothing."""
    rule = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": _TRAINED}
    _scaled(j, *({**rule, "length": length} for length in (2 * _TRAINED, _TRAINED, 1, 5 * _TRAINED + 1)))


@check("scaling")
def scaling_yarn(j: Judge) -> None:
    """YaRN ramps from kept to divided frequencies; its ends are rounded unless truncate is false."""
    _scaled(
        j,
        _YARN,
        {**_YARN, "truncate": False},
        {**_YARN, "factor": 40.0, "beta_fast": 8.0, "beta_slow": 2.0},
        {**_YARN, "original_max_position_embeddings": 4096},
        {**_YARN, "beta_fast": 2.0, "beta_slow": 2.0, "truncate": False},  # bounds that are equal
        {**_YARN, "factor": 0.5},
    )


@check("scaling")
def scaling_amplitude(j: Judge) -> None:
    """YaRN's amplitude is attention_factor, else g(mscale)/g(mscale_all_dim), else g(1); it counts once."""
    more: list[dict[str, Any]] = [
        {},
        {"attention_factor": 1.25},
        {"mscale": 1.0, "mscale_all_dim": 0.5},
        {"mscale": 0.7, "mscale_all_dim": 0.7},
        {"mscale": 0.7},
        {"factor": 0.5},
    ]
    _scaled(j, *({**_YARN, "factor": 40.0, **fields} for fields in more))


@check("scaling", "attention_factor")
def scaling_and_attention_factor(j: Judge) -> None:
    """An attention_factor of the call stands in place of the rule's amplitude."""
    j.rotated(j.x(), j.places(), scaling=_YARN, attention_factor=1.75)


@check("scaling", "rotary_dim")
def scaling_of_a_part(j: Judge) -> None:
    """A rule goes by the rotated width, not by the head's."""
    for rule in (_YARN, {"rope_type": "ntk", "factor": 4.0}):
        j.rotated(j.x(), j.places(), scaling=rule, rotary_dim=8)


@check("scaling")
def scaling_llama3(j: Judge) -> None:
    """Llama 3's rule keeps short wavelengths, divides long ones, and goes over smoothly between them."""
    rule = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    _scaled(
        j,
        {**rule, "original_max_position_embeddings": _TRAINED},
        {**rule, "original_max_position_embeddings": 8192},
        {**rule, "original_max_position_embeddings": 900, "high_freq_factor": 32.0},
        base=1000.0,
    )


@check("scaling")
def scaling_longrope(j: Judge) -> None:
    """LongRoPE divides each frequency by its own number: of the long list beyond the trained context only."""
    lanes = len(j.pairs()[0][0])
    rule = {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.125 * i for i in range(lanes)],
        "long_factor": [2.0 + i for i in range(lanes)],
        "original_max_position_embeddings": _TRAINED,
        "factor": 32.0,
    }
    _scaled(j, *({**rule, "length": length} for length in (_TRAINED, _TRAINED + 1, 1)))
    _scaled(j, {**rule, "length": 1, "attention_factor": 1.5})


@check("scaling")
def scaling_proportional(j: Judge) -> None:
    """The proportional rule turns the first share of the lanes, by exponents over the full width."""
    rule = {"rope_type": "proportional"}
    shares = ((0.25, 1.0), (0.5, 8.0), (1.0, 1.0), (0.0, 1.0), (0.3, 2.0))
    _scaled(j, *({**rule, "partial_rotary_factor": share, "factor": factor} for share, factor in shares))


@check("scaling")
def scaling_periods(j: Judge) -> None:
    """Periods make every frequency 2π times the usual one."""
    _scaled(j, {"rope_type": "periods"})


@check("scaling")
def scaling_in_turn(j: Judge) -> None:
    """Rules in turn, and none between them: nothing is kept that is keyed by less than all of a rule."""
    x, pos = j.x(), j.places()
    linear = {"rope_type": "linear", "factor": 2.0}
    for rule in (linear, None, {**linear, "factor": 4.0}, {**_YARN, "factor": 2.0}, linear, None):
        j.rotated(x, pos, **({} if rule is None else {"scaling": rule}))


@check("scaling", "inverse")
def scaling_inverse(j: Judge) -> None:
    """The inverse turns back by the scaled frequencies, and divides by the rule's amplitude."""
    j.rotated(j.x(), j.places(), scaling=_YARN, inverse=True)


# ---- coordinates ----


def _coordinates(j: Judge, count: int, rows: int = 5) -> NDArray[np.int64]:
    """Return positions whose coordinates differ."""
    drawn = [np.roll(j.places(rows), 2 * a) + 3 * a for a in range(count)]
    return np.minimum(np.stack(drawn, axis=-1), j.target.reach)


def _mapped(j: Judge, axes: dict[str, Any], count: int, **spec: Any) -> None:
    j.rotated(j.x(), _coordinates(j, count), axes=axes, **spec)


def _sections(j: Judge) -> tuple[int, int, int]:
    lanes = j.width // 2
    t = lanes // 2
    return t, (lanes - t + 1) // 2, (lanes - t) // 2


def _chunked(j: Judge) -> dict[str, Any]:
    return {"coordinates": tuple(a for a, n in enumerate(_sections(j)) for _ in range(n))}


def _in_turn(j: Judge) -> dict[str, Any]:
    lanes = [0] * (j.width // 2)
    for a in (1, 2):
        for i in range(a, min(3 * _sections(j)[a], len(lanes)), 3):
            lanes[i] = a
    return {"coordinates": tuple(lanes), "count": 3}


def _axial(j: Judge, blocks: int = 1) -> dict[str, Any]:
    part = j.width // 4
    return {"coordinates": (0,) * part + (1,) * part, "widths": (2 * part,) * 2, "blocks": blocks}


@check("axes", "any_positions")
def axes_chunked(j: Judge) -> None:
    """Runs of lanes of one series turn by a coordinate each: M-RoPE of Qwen2-VL (arXiv 2409.12191)."""
    _mapped(j, _chunked(j), 3)


@check("axes", "any_positions")
def axes_interleaved(j: Judge) -> None:
    """Coordinates take turns along one series, the first having what is left: M-RoPE of Qwen3-VL."""
    _mapped(j, _in_turn(j), 3)


@check("axes", "any_positions")
def axes_alternating(j: Judge) -> None:
    """Two coordinates take turns and the third has the slow lanes: M-RoPE of ERNIE-4.5-VL."""
    half = j.width // 8
    _mapped(j, {"coordinates": (1, 2) * half + (0,) * (j.width // 2 - 2 * half)}, 3)


@check("axes", "any_positions")
def axes_axial(j: Judge) -> None:
    """Each coordinate has a series of its own, over its own width: of vision and video models."""
    _mapped(j, _axial(j), 2)
    wide = j.width // 2 - 4
    _mapped(j, {"coordinates": (0,) * 2 + (2,) * 2 + (1,) * wide, "widths": (4, 2 * wide or 2, 4)}, 3)
    _mapped(j, {"coordinates": (1, 0) * (j.width // 4), "widths": (j.width // 2,) * 2}, 2)


@check("axes", "any_positions", "pairing")
def axes_blocks(j: Judge) -> None:
    """With blocks, halves are those of each coordinate's own features: Gemma 4's vision tower."""
    for pairing in ("half", "interleaved"):
        _mapped(j, _axial(j, blocks=2), 2, pairing=pairing)


@check("axes", "any_positions")
def axes_indices(j: Judge) -> None:
    """A lane takes the frequency whose number its index is: even ones, then odd ones, in Pixtral."""
    part = j.width // 4
    indices = (*range(0, 2 * part, 2), *range(1, 2 * part, 2))
    _mapped(j, {"coordinates": (0,) * part + (1,) * part, "indices": indices}, 2)


@check("axes", "any_positions")
def axes_without_a_coordinate(j: Judge) -> None:
    """A lane that no coordinate drives never turns, and a coordinate that drives none changes nothing."""
    lanes = tuple((0, None, 1, None)[i % 4] for i in range(j.width // 2))
    _mapped(j, {"coordinates": lanes}, 2)
    _mapped(j, {"coordinates": lanes, "count": 4}, 4)
    if j.claims("inv_freq"):
        _mapped(j, {"coordinates": lanes}, 2, inv_freq=tuple(1.5 * 0.7**i for i in range(j.width // 2)))


@check("axes", "any_positions")
def axes_of_text(j: Judge) -> None:
    """Where all coordinates are equal, a map with one series is RoPE by one position."""
    x, pos = j.x(), j.places()
    same = np.stack([pos] * 3, axis=-1)
    for axes in (_chunked(j), _in_turn(j)):
        j.check(j.run(x, same, axes=axes), x, pos)


@check("axes", "any_positions", "rotary_start", "rotary_dim")
def axes_of_a_part(j: Judge) -> None:
    """The lanes of a map are those of the rotated slice."""
    lanes = {"coordinates": (0, 0, 1, 1)}
    _mapped(j, lanes, 2, rotary_dim=8)
    _mapped(j, lanes, 2, rotary_dim=8, rotary_start=4)


@check("axes", "any_positions", "float_positions")
def axes_of_floats(j: Judge) -> None:
    """Coordinates are floats too: fractions of an image, seconds of a video."""
    pos = (_coordinates(j, 2) / 8 - 1).astype("float32")
    x = j.x()
    j.check(j.run(x, j.pos(pos, "float32"), axes=_axial(j)), x, pos, axes=_axial(j))


@check("axes", "any_positions", "batch_positions")
def axes_of_a_batch(j: Judge) -> None:
    """Coordinates of shape (B, S, n) line up as positions of shape (B, S) do; as many rows as n too."""
    for rows in (5, 3):
        pos = np.stack([_coordinates(j, 3, rows), _coordinates(j, 3, rows)[::-1] + 1])
        pos = np.minimum(pos, j.target.reach)
        j.rotated(j.x(2, 3, rows, 16), pos, axes=_chunked(j))


@check("axes", "any_positions", "broadcast_positions")
def axes_of_one_position(j: Judge) -> None:
    """One position's coordinates, of shape (n,), serve all rows."""
    j.rotated(j.x(), _coordinates(j, 3)[3], axes=_chunked(j))


@check("axes", "any_positions", "seq_axis")
def axes_and_seq_axis(j: Judge) -> None:
    """seq_axis is an axis of x, whatever axes positions have."""
    j.rotated(j.x(2, 5, 3, 16), _coordinates(j, 3), axes=_chunked(j), seq_axis=-3)


@check("axes", "any_positions", "inverse")
def axes_inverse(j: Judge) -> None:
    """The inverse turns each lane back by its own coordinate."""
    for axes, count in ((_chunked(j), 3), (_axial(j, blocks=2), 2)):
        _mapped(j, axes, count, inverse=True, **({"pairing": "half"} if j.claims("pairing") else {}))


@check("axes", "scaling", "any_positions")
def axes_and_scaling(j: Judge) -> None:
    """A rule makes each series, by that series' width; lanes take from it."""
    for rule in (_YARN, {"rope_type": "ntk", "factor": 4.0}):
        for axes, count in ((_chunked(j), 3), (_axial(j), 2)):
            _mapped(j, axes, count, scaling=rule)


@check("axes", "inv_freq", "any_positions")
def axes_and_inv_freq(j: Judge) -> None:
    """Frequencies given are those of the lanes, whatever coordinate drives them."""
    omegas = tuple(1.5 * 0.7**i for i in range(j.width // 2))
    _mapped(j, _chunked(j), 3, inv_freq=omegas)


@check("axes", "tuple", "any_positions")
def axes_of_a_tuple(j: Judge) -> None:
    """The arrays of a tuple are rotated by the same coordinates."""
    xs, pos = (j.x(2, 4, 5, 16), j.x(2, 1, 5, 16, seed=1)), _coordinates(j, 3)
    for x, y in zip(xs, j.run(xs, pos, axes=_chunked(j)), strict=True):
        j.check(y, x, pos, axes=_chunked(j))
