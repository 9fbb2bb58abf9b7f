"""Rules that scale frequencies for longer contexts, and axes: the coordinate of each pair."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_array.testing._checks._together import is_compiled
from rope_array.testing._judge import Judge, check

# ---- scaling ----

# The trained context: short, so that every branch of a rule shows in a narrow head.
_TRAINED = 64
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": _TRAINED}


def _claimed(j: Judge, *rules: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rules of claimed kinds."""
    return [rule for rule in rules if j.claims(f"scaling[{rule['rope_type']}]")]


def _check_rules(j: Judge, *rules: dict[str, Any], base: float | None = None) -> None:
    more = {} if base is None or not j.claims("base") else {"base": base}
    for rule in _claimed(j, *rules):
        j.check_call(j.x(), j.positions(), scaling=rule, **more)


@check("scaling", "scaling[linear]")
def scaling_linear(j: Judge) -> None:
    """Linear scaling divides every frequency by the factor (Chen et al., arXiv 2306.15595)."""
    _check_rules(j, *({"rope_type": "linear", "factor": factor} for factor in (4.0, 1.0, 2.5, 0.5, 3)))


@check("scaling", "scaling[ntk]")
def scaling_ntk(j: Judge) -> None:
    """NTK-aware scaling sets the base to θ·f^(d/(d-2)): keeps the first frequency, divides the last by f."""
    _check_rules(j, *({"rope_type": "ntk", "factor": factor} for factor in (4.0, 1.0, 1000.0)))


@check("scaling", "scaling[dynamic]")
def scaling_dynamic(j: Judge) -> None:
    """Dynamic NTK sets the base to θ·(f·L/m - (f - 1))^(d/(d-2)) for a length L beyond m."""
    rule = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": _TRAINED}
    _check_rules(j, *({**rule, "length": length} for length in (2 * _TRAINED, _TRAINED, 1, 5 * _TRAINED + 1)))


@check("scaling", "scaling[yarn]")
def scaling_yarn(j: Judge) -> None:
    """YaRN ramps from kept to divided frequencies; the ramp's ends are rounded unless truncate is false."""
    _check_rules(
        j,
        _YARN,
        {**_YARN, "truncate": False},
        {**_YARN, "factor": 40.0, "beta_fast": 8.0, "beta_slow": 2.0},
        {**_YARN, "original_max_position_embeddings": 4096},
        {**_YARN, "beta_fast": 2.0, "beta_slow": 2.0, "truncate": False},  # equal bounds
        {**_YARN, "factor": 1.0},
    )


@check("scaling", "scaling[yarn]")
def scaling_amplitude(j: Judge) -> None:
    """YaRN's amplitude is attention_factor, else g(mscale)/g(mscale_all_dim), else g(1)."""
    more: list[dict[str, Any]] = [
        {},
        {"attention_factor": 1.25},
        {"mscale": 1.0, "mscale_all_dim": 0.5},
        {"mscale": 0.7, "mscale_all_dim": 0.7},
        {"mscale": 0.7},
        {"factor": 1.0},
    ]
    _check_rules(j, *({**_YARN, "factor": 40.0, **fields} for fields in more))


@check("scaling", "scaling[yarn]", "attention_factor")
def scaling_and_attention_factor(j: Judge) -> None:
    """An attention_factor of the call replaces the rule's amplitude."""
    j.check_call(j.x(), j.positions(), scaling=_YARN, attention_factor=1.75)


@check("scaling", "rotary_dim")
def scaling_of_a_part(j: Judge) -> None:
    """A rule uses rotary_dim, not head_dim."""
    for rule in _claimed(j, _YARN, {"rope_type": "ntk", "factor": 4.0}):
        j.check_call(j.x(), j.positions(), scaling=rule, rotary_dim=8)


@check("scaling", "scaling[llama3]")
def scaling_llama3(j: Judge) -> None:
    """Llama 3's rule keeps short wavelengths, divides long ones, and interpolates between them."""
    rule = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    _check_rules(
        j,
        {**rule, "original_max_position_embeddings": _TRAINED},
        {**rule, "original_max_position_embeddings": 8192},
        {**rule, "original_max_position_embeddings": 900, "high_freq_factor": 32.0},
        base=1000.0,
    )


@check("scaling", "scaling[longrope]")
def scaling_longrope(j: Judge) -> None:
    """LongRoPE divides each frequency by its own factor: from the long list beyond the trained context."""
    num_pairs = len(j.pairs()[0][0])
    rule = {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.125 * i for i in range(num_pairs)],
        "long_factor": [2.0 + i for i in range(num_pairs)],
        "original_max_position_embeddings": _TRAINED,
        "factor": 32.0,
    }
    _check_rules(j, *({**rule, "length": length} for length in (_TRAINED, _TRAINED + 1, 1)))
    _check_rules(j, {**rule, "length": 1, "attention_factor": 1.5})


@check("scaling", "scaling[proportional]")
def scaling_proportional(j: Judge) -> None:
    """The proportional rule rotates the first share of the pairs, with exponents over the full width."""
    rule = {"rope_type": "proportional"}
    shares = ((0.25, 1.0), (0.5, 8.0), (1.0, 1.0), (0.0, 1.0), (0.3, 2.0))
    _check_rules(j, *({**rule, "partial_rotary_factor": share, "factor": factor} for share, factor in shares))


@check("scaling", "scaling[periods]")
def scaling_periods(j: Judge) -> None:
    """The periods rule multiplies every frequency by 2π."""
    _check_rules(j, {"rope_type": "periods"})


@check("scaling", "scaling[linear]")
def scaling_in_turn(j: Judge) -> None:
    """Each call uses its own rule, or none: no cache leaves a parameter of the rule out of its key."""
    x, pos = j.x(), j.positions()
    linear = {"rope_type": "linear", "factor": 2.0}
    for rule in (linear, None, {**linear, "factor": 4.0}, {**_YARN, "factor": 2.0}, linear, None):
        if rule is None or _claimed(j, rule):
            j.check_call(x, pos, **({} if rule is None else {"scaling": rule}))


def _changes(pairs: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return a rule of each kind for a number of pairs, and other values of parameters that matter in it."""
    trained = {"original_max_position_embeddings": _TRAINED}
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 32.0,
        **trained,
    }
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": _TRAINED, "length": 200}
    yarn = {**_YARN, "beta_fast": 8.0, "beta_slow": 1.0, "truncate": False}
    ones, more, longer = [1.0] * pairs, [1.0] * (pairs - 1) + [3.0], {"original_max_position_embeddings": 200}
    longrope = {"rope_type": "longrope", "factor": 32.0, **trained, "short_factor": ones, "long_factor": ones}
    share = {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0}
    return [
        ({"rope_type": "linear", "factor": 2.0}, {"factor": 4.0}),
        ({"rope_type": "ntk", "factor": 2.0}, {"factor": 4.0}),
        (dynamic, {"length": 300, "factor": 3.0, "max_position_embeddings": 50}),
        (yarn, {"beta_fast": 4.0, "beta_slow": 2.0, "factor": 5.0, **longer}),
        (yarn, {"truncate": True, "attention_factor": 1.5}),
        ({**yarn, "mscale": 1.0, "mscale_all_dim": 0.5}, {"mscale": 0.7, "mscale_all_dim": 0.7}),
        (llama3, {"high_freq_factor": 16.0, "low_freq_factor": 4.0, "factor": 4.0, **longer}),
        ({**longrope, "length": 1}, {"short_factor": more, "factor": 16.0, "attention_factor": 1.5}),
        ({**longrope, "length": 100}, {"long_factor": more, "original_max_position_embeddings": 50}),
        (share, {"partial_rotary_factor": 0.75, "factor": 4.0}),
    ]


@check("scaling")
def rules_that_differ_in_one_parameter(j: Judge) -> None:
    """A rule is used after one that differs in one parameter: no cache leaves it out of its key."""
    x, numbers = j.x(), j.positions()
    pos = j.pos(numbers)
    for rule, others in _changes(len(j.pairs()[0][0])):
        if not _claimed(j, rule):
            continue
        names = list(others)[: 2 if is_compiled(j) else None]
        for name, some in [("", rule), *((name, {**rule, name: others[name]}) for name in names), ("", rule)]:
            if (y := j.try_call(x, pos, scaling=some)) is not None:
                with j.part(f"after a rule that differs in {name} only" if name else ""):
                    j.check(y, x, numbers, scaling=some)


@check("scaling", "scaling[yarn]", "inverse")
def scaling_inverse(j: Judge) -> None:
    """The inverse rotates by the negated scaled frequencies, and divides by the rule's amplitude."""
    j.check_call(j.x(), j.positions(), scaling=_YARN, inverse=True)


# ---- coordinates ----


def _coordinates(j: Judge, count: int, rows: int = 5) -> NDArray[np.int64]:
    """Return positions whose coordinates differ."""
    drawn = [np.roll(j.positions(rows), 2 * a) + 3 * a for a in range(count)]
    return np.minimum(np.stack(drawn, axis=-1), j.target.reach)


def _check_axes(j: Judge, axes: dict[str, Any], count: int, **spec: Any) -> None:
    j.check_call(j.x(), _coordinates(j, count), axes=axes, **spec)


def _sections(j: Judge) -> tuple[int, int, int]:
    num_pairs = j.width // 2
    t = num_pairs // 2
    return t, (num_pairs - t + 1) // 2, (num_pairs - t) // 2


def _chunked(j: Judge) -> dict[str, Any]:
    return {"coordinates": tuple(a for a, n in enumerate(_sections(j)) for _ in range(n))}


def _interleaved(j: Judge) -> dict[str, Any]:
    coordinates = [0] * (j.width // 2)
    for a in (1, 2):
        for i in range(a, min(3 * _sections(j)[a], len(coordinates)), 3):
            coordinates[i] = a
    return {"coordinates": tuple(coordinates), "count": 3}


def _axial(j: Judge, blocks: int = 1) -> dict[str, Any]:
    part = j.width // 4
    return {"coordinates": (0,) * part + (1,) * part, "widths": (2 * part,) * 2, "blocks": blocks}


@check("axes", "any_positions")
def axes_chunked(j: Judge) -> None:
    """Each coordinate rotates a run of pairs of one series: M-RoPE of Qwen2-VL (arXiv 2409.12191)."""
    _check_axes(j, _chunked(j), 3)


@check("axes", "any_positions")
def axes_interleaved(j: Judge) -> None:
    """Coordinates alternate along one series, and the first rotates the rest: M-RoPE of Qwen3-VL."""
    _check_axes(j, _interleaved(j), 3)


@check("axes", "any_positions")
def axes_alternating(j: Judge) -> None:
    """Two coordinates alternate and the third rotates the slow pairs: M-RoPE of ERNIE-4.5-VL."""
    half = j.width // 8
    _check_axes(j, {"coordinates": (1, 2) * half + (0,) * (j.width // 2 - 2 * half)}, 3)


@check("axes", "any_positions")
def axes_axial(j: Judge) -> None:
    """Each coordinate has a series of its own, over its own width, as in vision and video models."""
    _check_axes(j, _axial(j), 2)
    wide = j.width // 2 - 4
    _check_axes(j, {"coordinates": (0,) * 2 + (2,) * 2 + (1,) * wide, "widths": (4, 2 * wide or 2, 4)}, 3)
    _check_axes(j, {"coordinates": (1, 0) * (j.width // 4), "widths": (j.width // 2,) * 2}, 2)


@check("axes", "any_positions", "pairing")
def axes_blocks(j: Judge) -> None:
    """With blocks, each coordinate's own features are paired: Gemma 4's vision tower."""
    for pairing in ("half", "interleaved"):
        _check_axes(j, _axial(j, blocks=2), 2, pairing=pairing)


@check("axes", "any_positions")
def axes_indices(j: Judge) -> None:
    """The indices choose each pair's frequency: even ones, then odd ones, in Pixtral."""
    part = j.width // 4
    indices = (*range(0, 2 * part, 2), *range(1, 2 * part, 2))
    _check_axes(j, {"coordinates": (0,) * part + (1,) * part, "indices": indices}, 2)


@check("axes", "any_positions")
def axes_without_a_coordinate(j: Judge) -> None:
    """A pair without a coordinate is not rotated, and a coordinate without pairs changes nothing."""
    coordinates = tuple((0, None, 1, None)[i % 4] for i in range(j.width // 2))
    _check_axes(j, {"coordinates": coordinates}, 2)
    _check_axes(j, {"coordinates": coordinates, "count": 4}, 4)
    if j.claims("inv_freq"):
        omegas = tuple(1.5 * 0.7**i for i in range(j.width // 2))
        _check_axes(j, {"coordinates": coordinates}, 2, inv_freq=omegas)


@check("axes", "any_positions")
def axes_of_text(j: Judge) -> None:
    """With equal coordinates and one series, axes give the result of one position."""
    x, pos = j.x(), j.positions()
    same = np.stack([pos] * 3, axis=-1)
    for axes in (_chunked(j), _interleaved(j)):
        with j.if_served():
            j.check(j.run(x, same, axes=axes), x, pos)


@check("axes", "any_positions", "rotary_start", "rotary_dim")
def axes_of_a_part(j: Judge) -> None:
    """The pairs of axes are in the rotated slice."""
    axes = {"coordinates": (0, 0, 1, 1)}
    _check_axes(j, axes, 2, rotary_dim=8)
    _check_axes(j, axes, 2, rotary_dim=8, rotary_start=4)


@check("axes", "any_positions", "float_positions")
def axes_of_floats(j: Judge) -> None:
    """Coordinates may be floats: fractions of an image, seconds of a video."""
    pos = (_coordinates(j, 2) / 8 - 1).astype("float32")
    x = j.x()
    j.check(j.run(x, j.pos(pos, "float32"), axes=_axial(j)), x, pos, axes=_axial(j))


@check("axes", "any_positions", "batch_positions")
def axes_of_a_batch(j: Judge) -> None:
    """Coordinates of shape (B, S, n) match x as positions of shape (B, S) do, even with n rows."""
    for rows in (5, 3):
        pos = np.stack([_coordinates(j, 3, rows), _coordinates(j, 3, rows)[::-1] + 1])
        pos = np.minimum(pos, j.target.reach)
        j.check_call(j.x(2, 3, rows, 16), pos, axes=_chunked(j))


@check("axes", "any_positions", "broadcast_positions")
def axes_of_one_position(j: Judge) -> None:
    """Coordinates of shape (n,), one position, rotate all rows."""
    j.check_call(j.x(), _coordinates(j, 3)[3], axes=_chunked(j))


@check("axes", "any_positions", "seq_axis")
def axes_and_seq_axis(j: Judge) -> None:
    """The axis seq_axis counts axes of x, whatever axes positions have."""
    j.check_call(j.x(2, 5, 3, 16), _coordinates(j, 3), axes=_chunked(j), seq_axis=-3)


@check("axes", "any_positions", "inverse")
def axes_inverse(j: Judge) -> None:
    """The inverse rotates each pair by the negative of its own coordinate."""
    for axes, count in ((_chunked(j), 3), (_axial(j, blocks=2), 2)):
        _check_axes(j, axes, count, inverse=True, **({"pairing": "half"} if j.claims("pairing") else {}))


@check("axes", "scaling", "any_positions")
def axes_and_scaling(j: Judge) -> None:
    """A scaling rule is applied to each series with the series' own width."""
    for rule in _claimed(j, _YARN, {"rope_type": "ntk", "factor": 4.0}):
        for axes, count in ((_chunked(j), 3), (_axial(j), 2)):
            _check_axes(j, axes, count, scaling=rule)


@check("axes", "inv_freq", "any_positions")
def axes_and_inv_freq(j: Judge) -> None:
    """The pairs have the frequencies of inv_freq, whichever coordinate they have."""
    omegas = tuple(1.5 * 0.7**i for i in range(j.width // 2))
    _check_axes(j, _chunked(j), 3, inv_freq=omegas)


@check("axes", "tuple", "tuple[2]", "any_positions")
def axes_of_a_tuple(j: Judge) -> None:
    """The arrays of a tuple are rotated by the same coordinates."""
    xs, pos = (j.x(2, 4, 5, 16), j.x(2, 1, 5, 16, seed=1)), _coordinates(j, 3)
    for x, y in zip(xs, j.run(xs, pos, axes=_chunked(j)), strict=True):
        j.check(y, x, pos, axes=_chunked(j))
