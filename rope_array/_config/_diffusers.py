"""Configs of diffusers' transformers, by `_class_name`: the conventions of their rotary classes.

Read from diffusers 0.42.1: diffusers.models.transformers, and diffusers.pipelines for models whose tables a
pipeline makes. `Axes` states most of them: each coordinate of a token drives pairs of its own.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rope_array._config._convention import Convention
from rope_array._config._values import PartValues as Values
from rope_array._errors import ConfigError, short
from rope_array._spec.axes import Axes
from rope_array._spec.scaling import Linear

_INTERLEAVED = Convention(pairing="interleaved", width=("attention_head_dim",), partial=False, theta_keys=())
_HALF = replace(_INTERLEAVED, pairing="half")
_MAX_COORDINATES = 16


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One class: its convention, the defaults of the values read, and the coordinates of a token."""

    convention: Convention
    coordinates: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    parts: "Mapping[str, _Row]" = field(default_factory=dict)


# Widths of the coordinates


def _whole_numbers(key: str, stated: Any) -> list[int]:
    if not isinstance(stated, (list, tuple)) or not 0 < len(stated) <= _MAX_COORDINATES:
        raise ConfigError(f"{key} is {short(stated)}; give a list of whole numbers.")
    if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in stated):
        raise ConfigError(f"{key} is {short(stated)}; give whole numbers from 0.")
    return list(stated)


def _sizes(values: Values, key: str, width: int) -> list[int]:
    """Return the stated width of each coordinate; together they have the whole head."""
    sizes = _whole_numbers(key, values.get(key))
    if sum(sizes) != width:
        raise ConfigError(f"{key} sums to {sum(sizes)}, and a head has {width} features; give widths of all.")
    return sizes


def _listed(key: str) -> Callable[[Values, int], Axes]:
    return lambda values, width: Axes.axial(*_sizes(values, key, width))


def _thirds(values: Values, width: int) -> Axes:
    """Give height and width a third each, in whole pairs, and the frame the rest (Wan)."""
    third = 2 * (width // 6)
    return Axes.axial(width - 2 * third, third, third)


def _quarter(values: Values, width: int) -> Axes:
    """Give the frame a quarter, and height and width three eighths each (CogVideoX)."""
    return Axes.axial(width // 4, width // 8 * 3, width // 8 * 3)


def _halves(values: Values, width: int) -> Axes:
    return Axes.axial(width // 2, width // 2)


def _width_first(values: Values, width: int) -> Axes:
    return Axes.axial(width // 2, width // 2, order=(1, 0))


def _alternating(values: Values, width: int) -> Axes:
    """Alternate height and width, each with a series of half the width (Lumina-Next)."""
    return Axes((0, 1) * (width // 4), widths=(width // 2, width // 2))


def _in_thirds(values: Values, width: int) -> Axes:
    return Axes.axial(width // 3, width // 3, width // 3, blocks=True)


def _three_series(values: Values, width: int) -> Axes:
    return Axes.axial(width // 3, width // 3, width // 3)


def _every_third(*keys: str) -> Callable[[Values, int], Axes]:
    """Return the map of Qwen3-VL: height and width have every third pair, as many as their section has."""

    def axes(values: Values, width: int) -> Axes:
        stated = next((value for key in keys if (value := values.get(key)) is not None), [24, 20, 20])
        sections = _whole_numbers(keys[0], stated)
        if len(sections) != 3:
            raise ConfigError(f"{keys[0]} is {short(stated)}; give a list of three numbers of pairs.")
        return Axes(tuple(i % 3 if i < 3 * sections[i % 3] else 0 for i in range(width // 2)), count=3)

    return axes


# Frequencies


def _cosmos_frequencies(values: Values, width: int) -> tuple[float, ...]:
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


def _ltx_frequencies(count: int, theta: str | None) -> Callable[[Values, int], tuple[float, ...]]:
    """Return π/2·θ^(k/(n-1)) for k < n, repeated for each coordinate, after pairs that stay (LTX)."""

    def frequencies(values: Values, width: int) -> tuple[float, ...]:
        base = values.number(theta, 1e4) if theta else 1e4
        steps = width // (2 * count)
        powers = [base ** (k / (steps - 1)) if steps > 1 else 1.0 for k in range(steps)]
        rotated = [math.pi / 2 * power for power in powers for _ in range(count)]
        return (*[0.0] * (width // 2 - len(rotated)), *rotated)

    return frequencies


def _ltx_axes(count: int, heads: str | None) -> Callable[[Values, int], Axes]:
    """Return the map of LTX: the coordinates alternate; with `heads`, each head pairs its own halves."""

    def axes(values: Values, width: int) -> Axes:
        steps = width // (2 * count)
        rest = width // 2 - steps * count
        blocks = values.integer(heads) if heads else 1
        return Axes((*[None] * rest, *[*range(count)] * steps), blocks=blocks, count=count)

    return axes


# Classes


def _axial(
    key: str,
    sizes: tuple[int, ...] | None,
    coordinates: str,
    *,
    theta: float = 1e4,
    theta_key: str | None = None,
    head: str = "attention_head_dim",
) -> _Row:
    """Return the row of a class with a list of widths, one for each coordinate, in interleaved pairs."""
    convention = replace(_INTERLEAVED, width=(head,), axes=_listed(key), theta=theta)
    defaults: dict[str, Any] = {} if sizes is None else {key: sizes}
    if theta_key:
        convention, defaults = replace(convention, theta_keys=(theta_key,)), {**defaults, theta_key: theta}
    return _Row(convention=convention, coordinates=coordinates, defaults=defaults)


_IDS = "coordinates are the model's ids (index, height, width); the ids of text are 0"
_IN_PLANE = "coordinates are the model's ids (index, height, width); text counts its tokens in the latter two"
_COUNTED = "coordinates are the model's ids (index, height, width); text counts its tokens in the first"
_FOUR_IDS = "coordinates are the model's ids (time, height, width, token); height and width of text are 0"
_GRID = "coordinates are (frame, height, width) of a patch, counted from 0"
_TEXT_STAYS = "text is not rotated: position 0 leaves it as it is"
_CENTRED = (
    "coordinates are (frame, height, width) of a patch; height and width are counted from the centre, from "
    "-(n - n//2) to n//2 - 1; text has one number in all three, which goes on after the image's"
)
_CROP = (
    "coordinates are (frame, height, width), fractions where the pipeline resizes the grid: "
    f"get_3d_rotary_pos_embed makes them; {_TEXT_STAYS}"
)
_LINE = "a token has one position, counted from 0"
_HISTORY = "; cos and sin of compressed history frames are averages, which no rope states"
_SCALED = "; give the coordinates divided by scale_factor"
_FRACTIONS = (
    "the rope rotates all heads together, before they are split; a coordinate is 2g - 1, of the fractions g "
    "that the model makes of {}"
)


def _flux(coordinates: str = _IDS, **more: Any) -> _Row:
    return _axial("axes_dims_rope", (16, 56, 56), coordinates, **more)


def _hunyuan(coordinates: str, sizes: tuple[int, ...] = (16, 56, 56)) -> _Row:
    return _axial("rope_axes_dim", sizes, coordinates, theta=256.0, theta_key="rope_theta")


def _wan(coordinates: str = _GRID, head: str = "attention_head_dim") -> _Row:
    return _Row(convention=replace(_INTERLEAVED, width=(head,), axes=_thirds), coordinates=coordinates)


def _kandinsky(sizes: tuple[int, ...], parts: "Mapping[str, _Row]") -> _Row:
    return replace(_axial("axes_dims", sizes, _GRID + _SCALED, head="sum_of_axes"), parts=parts)


def _one(*head: str, **changes: Any) -> _Row:
    defaults = changes.pop("defaults", {})
    return _Row(convention=replace(_HALF, width=head, **changes), coordinates=_LINE, defaults=defaults)


def _first_half(values: Values, width: int) -> int:
    return width // 2


def _ltx(kind: str = "interleaved", head: int = 64, theta: str | None = None, prefix: str = "") -> _Row:
    """Return the row of a video, or with `prefix` of its sound. A "split" rope pairs halves of each head."""
    count, half = (1 if prefix else 3), kind == "split"
    convention = replace(
        _HALF if half else _INTERLEAVED,
        width=(f"{prefix}inner_dim",),
        inv_freq=_ltx_frequencies(count, theta),
        axes=_ltx_axes(count, f"{prefix}num_attention_heads" if half else None),
    )
    of = "the time in seconds" if prefix else "(frame, height, width)"
    defaults = {f"{prefix}num_attention_heads": 32, f"{prefix}attention_head_dim": head}
    return _Row(convention=convention, coordinates=_FRACTIONS.format(of), defaults=defaults)


def _ltx2(content: Mapping[str, Any]) -> _Row:
    kind = content.get("rope_type", "interleaved")
    if kind not in ("interleaved", "split"):
        raise ConfigError(f"rope_type is {short(kind)}; it must be 'interleaved' or 'split'.")
    video, audio = _ltx(kind, 128, "rope_theta"), _ltx(kind, 64, "rope_theta", "audio_")
    more = "; attention between video and audio has another rope, over the time alone"
    return replace(video, coordinates=video.coordinates + more, parts={"audio": audio})


def _longrope(values: Values, stated: dict[str, Any]) -> dict[str, Any]:
    return {"rope_type": "longrope", **stated}


_COGVIDEO = _Row(
    convention=replace(_INTERLEAVED, axes=_quarter, unless={"use_rotary_positional_embeddings": (True,)}),
    coordinates=_CROP,
    defaults={"attention_head_dim": 64, "use_rotary_positional_embeddings": False},
)
_JOY = _axial(
    "rope_dim_list",
    (16, 56, 56),
    f"{_GRID}; with rope_type 'mrope' text has one number in all three, from the largest plus 1",
    theta=256.0,
    theta_key="theta",
    head="hidden_size/num_attention_heads",
)
_TEXT = _Row(convention=replace(_INTERLEAVED, width=("sum_of_axes",)), coordinates=_LINE)
_AUDIO = _Row(
    convention=replace(
        _INTERLEAVED,
        width=("sum_of_audio_axes",),
        scaling=lambda values, width: Linear(1 / values.number("audio_freqs_scaling", 1.0)),
    ),
    coordinates=_LINE,
)

# fmt: off
_QWEN = (
    "QwenImageTransformer2DModel", "QwenImage21Transformer2DModel", "NucleusMoEImageTransformer2DModel",
)
_WAN = (
    "WanTransformer3DModel", "WanVACETransformer3DModel", "WanAnimateTransformer3DModel",
    "SkyReelsV2Transformer3DModel", "AnyFlowTransformer3DModel",
)
# fmt: on

_ROWS: "dict[str, _Row | Callable[[Mapping[str, Any]], _Row]]" = {
    # A list of widths, in interleaved pairs
    **dict.fromkeys(("FluxTransformer2DModel", "ChromaTransformer2DModel"), _flux()),
    **dict.fromkeys(("LongCatImageTransformer2DModel", "OvisImageTransformer2DModel"), _flux(_IN_PLANE)),
    **dict.fromkeys(_QWEN, _flux(_CENTRED)),
    "BriaTransformer2DModel": _flux(theta_key="rope_theta"),
    "BriaFiboTransformer2DModel": _flux(theta_key="rope_theta"),
    "Flux2Transformer2DModel": _axial(
        "axes_dims_rope", (32,) * 4, _FOUR_IDS, theta=2e3, theta_key="rope_theta"
    ),
    "Flux3Transformer2DModel": _axial("axes_dims_rope", (32,) * 4, _FOUR_IDS, theta_key="rope_theta"),
    "Krea2Transformer2DModel": _axial(
        "axes_dims_rope", (32, 48, 48), _IDS, theta=1e3, theta_key="rope_theta"
    ),
    "HiDreamImageTransformer2DModel": _axial("axes_dims_rope", None, _IDS),
    "HunyuanVideoTransformer3DModel": _hunyuan(f"{_GRID}; {_TEXT_STAYS}"),
    "HunyuanVideo15Transformer3DModel": _hunyuan(f"{_GRID}; {_TEXT_STAYS}"),
    "HunyuanVideoFramepackTransformer3DModel": _hunyuan(f"{_GRID}; {_TEXT_STAYS}{_HISTORY}"),
    "MotifVideoTransformer3DModel": _hunyuan(f"{_GRID}; {_TEXT_STAYS}"),
    "HunyuanImageTransformer2DModel": _hunyuan(
        f"coordinates are (height, width), or (frame, height, width) for three widths; {_TEXT_STAYS}",
        (64, 64),
    ),
    "HeliosTransformer3DModel": _axial("rope_dim", (44, 42, 42), _GRID + _HISTORY, theta_key="rope_theta"),
    "JoyImageEditTransformer3DModel": _JOY,
    "JoyImageEditPlusTransformer3DModel": _JOY,
    "Lumina2Transformer2DModel": _axial(
        "axes_dim_rope",
        (32, 32, 32),
        "coordinates are (number, row, column); text counts its tokens in the first, where all of an image "
        "have the number of text tokens",
        head="hidden_size/num_attention_heads",
    ),
    **dict.fromkeys(
        ("ZImageTransformer2DModel", "BriaFibo2Transformer2DModel"),
        _axial("axes_dims", (32, 48, 48), _COUNTED, theta=256.0, theta_key="rope_theta", head="dim/n_heads"),
    ),
    "PRXTransformer2DModel": _axial(
        "axes_dim",
        (32, 32),
        f"coordinates are (height, width) of a patch; {_TEXT_STAYS}",
        theta_key="theta",
        head="hidden_size/num_heads",
    ),
    "Kandinsky5Transformer3DModel": _kandinsky((16, 24, 24), {"text": _TEXT}),
    "Kandinsky6Transformer3DModel": _kandinsky((32, 48, 48), {"text": _TEXT, "audio": _AUDIO}),
    "Kandinsky6SRTransformer3DModel": _kandinsky((16, 24, 24), {}),
    # Thirds of the head
    **dict.fromkeys(_WAN, _wan()),
    "SanaVideoTransformer3DModel": replace(_wan(), defaults={"attention_head_dim": 112}),
    "WanAnimate2Transformer3DModel": _wan(head="dim/num_heads"),
    "ChronoEditTransformer3DModel": _wan(
        f"{_GRID}; of two frames the second is number rope_temporal_skip_len - 1"
    ),
    "AnyFlowFARTransformer3DModel": _wan(_GRID + _HISTORY),
    "SanaWMTransformer3DModel": _wan(
        f"{_GRID}; the camera's attention rotates half of a head, by fewer frequencies",
        head="linear_head_dim",
    ),
    # Others in interleaved pairs
    "CogVideoXTransformer3DModel": _COGVIDEO,
    "ConsisIDTransformer3DModel": _COGVIDEO,
    "EasyAnimateTransformer3DModel": _Row(
        convention=replace(_INTERLEAVED, axes=_quarter),
        coordinates=_CROP,
        defaults={"attention_head_dim": 64},
    ),
    "HunyuanDiT2DModel": _Row(
        convention=replace(_INTERLEAVED, axes=_width_first),
        coordinates="coordinates are (height, width), fractions where the pipeline resizes the grid: "
        "get_2d_rotary_pos_embed makes them",
        defaults={"attention_head_dim": 88},
    ),
    "LuminaNextDiT2DModel": _Row(
        convention=replace(_INTERLEAVED, axes=_alternating, width=("hidden_size/num_attention_heads",)),
        coordinates="coordinates are (height, width) of a patch; where the pipeline has a linear_factor, "
        "divide both by it, and where it has an ntk_factor, give scaling=NTKAware(ntk_factor, 'base')",
    ),
    "LTXVideoTransformer3DModel": _ltx(),
    "LTX2VideoTransformer3DModel": _ltx2,
    "SanaWMLTX2RefinerTransformer3DModel": _ltx2,
    # Half pairs
    "CosmosTransformer3DModel": _Row(
        convention=replace(_HALF, axes=_thirds, inv_freq=_cosmos_frequencies),
        coordinates=f"{_GRID}; with a frame rate, the frame is 24/fps times its number",
        defaults={"rope_scale": (2.0, 1.0, 1.0)},
    ),
    "Cosmos3OmniTransformer": _Row(
        convention=replace(
            _HALF,
            width=("head_dim",),
            theta_keys=("rope_theta",),
            axes=_every_third("rope_axes_dim", "rope_scaling.mrope_section"),
        ),
        coordinates="coordinates are (time, height, width), equal for text",
        defaults={"head_dim": 128, "rope_theta": 5e6},
    ),
    "Ideogram4Transformer2DModel": _Row(
        convention=replace(_HALF, theta_keys=("rope_theta",), axes=_every_third("mrope_section")),
        coordinates="coordinates are (time, height, width), equal for text",
        defaults={"attention_head_dim": 256, "rope_theta": 5e6, "mrope_section": (24, 20, 20)},
    ),
    "CogView4Transformer2DModel": _Row(
        convention=replace(_HALF, axes=_halves),
        coordinates="coordinates are (row·a//rows, column·b//columns), with (a, b) of rope_axes_dim; "
        f"{_TEXT_STAYS}",
        defaults={"attention_head_dim": 40},
    ),
    "GlmImageTransformer2DModel": _Row(
        convention=replace(_HALF, axes=_halves),
        coordinates=f"coordinates are (height, width) of a patch; {_TEXT_STAYS}",
        defaults={"attention_head_dim": 40},
    ),
    "AllegroTransformer3DModel": _Row(
        convention=replace(_HALF, axes=_in_thirds),
        coordinates=f"{_GRID}, divided by interpolation_scale_t, _h and _w",
        defaults={"attention_head_dim": 96},
    ),
    "MiniMaxH3Transformer3DModel": _Row(
        convention=replace(
            _HALF,
            theta_keys=("rope_theta",),
            axes=_three_series,
            rotated=lambda values, width: 6 * values.integer("rope_freq_dim"),
        ),
        coordinates="coordinates are (time, height, width)",
        defaults={"rope_freq_dim": 16, "rope_theta": 1e4},
    ),
    "OmniGenTransformer2DModel": _one(
        "hidden_size/num_attention_heads",
        theta_keys=("rope_base",),
        parameters=_longrope,
        defaults={
            "rope_base": 1e4,
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
        },
    ),
    "AceStepTransformer1DModel": _one(
        "head_dim", theta_keys=("rope_theta",), defaults={"head_dim": 128, "rope_theta": 1e6}
    ),
    "LongCatAudioDiTTransformer": _one("dit_dim/dit_heads", theta=1e5),
    "StableAudioDiTModel": _one(
        "attention_head_dim", rotated=_first_half, defaults={"attention_head_dim": 64}
    ),
    "StableAudio3DiTModel": _one("embed_dim/num_heads", rotated=_first_half),
    "MiniMaxMusic3Transformer1DModel": _one(
        "attention_head_dim",
        rotated=lambda values, width: values.integer("rotary_dim"),
        defaults={"attention_head_dim": 64, "rotary_dim": 32},
    ),
}

# fmt: off
_WITHOUT = (
    "AuraFlowTransformer2DModel", "CogView3PlusTransformer2DModel", "DiTTransformer2DModel",
    "DreamLiteTransformer2DModel", "LatteTransformer3DModel", "PixArtTransformer2DModel", "PriorTransformer",
    "SD3Transformer2DModel", "SanaTransformer2DModel", "Transformer2DModel", "TransformerTemporalModel",
)
# fmt: on
_NO_ROTATION = {
    **dict.fromkeys(_WITHOUT, "attention_head_dim"),
    "MiniMaxMusic3RVQDepthDecoder": "hidden_size/num_attention_heads",
    "RFD4ProteinaTransformer": "token_dim/nheads",
    "T5FilmDecoder": "d_kv",
}
_NOT_STATED = {
    "MochiTransformer3DModel": "its frequencies are learned weights (pos_frequencies), and each pair follows "
    "all three coordinates",
    "ErnieImageTransformer2DModel": "it arranges cos and sin for neighbouring pairs, but rotates half pairs: "
    "the two features of a pair have different angles, which is no rotation",
}

# Keys of the classes that look rotary and change no rotation.
_UNUSED = dict.fromkeys(
    (
        "ca_rope",
        "rope_axes_dim",
        "rope_double_precision",
        "rope_max_seq_len",
        "rope_temporal_skip_len",
        "rope_type",
        "unified_3d_mrope_reset_spatial_ids",
        "unified_3d_mrope_temporal_modality_margin",
        "use_layer3d_rope",
    )
)


def read(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the `Format` of a config with `_class_name`."""
    name = content["_class_name"]
    fields = {"name": "diffusers", "model_type": short(name)[1:-1]}
    if name in _NOT_STATED:
        return {**fields, "convention": replace(_INTERLEAVED, refusal=_NOT_STATED[name])}
    if name in _NO_ROTATION:
        none = replace(_INTERLEAVED, width=(_NO_ROTATION[name],), unless={"_class_name": ()})
        return {**fields, "convention": none, "defaults": _UNUSED}
    if name not in _ROWS:
        raise ConfigError(_why_unknown(content, name))
    row = _ROWS[name]
    row = row(content) if callable(row) else row
    inherited = {**row.defaults, **content}
    parts = {key: {**_fields_of(part, inherited), "model_type": name} for key, part in row.parts.items()}
    return {**fields, **_fields_of(row, content), "parts": parts}


# Keys that diffusers adds to the config of a model.
_ADDED = ("_use_default_values", "_diffusers_version")


def refuse_nameless(content: Mapping[str, Any]) -> None:
    """Refuse the `config` attribute of a model, which does not name the model's class."""
    if content.get("_class_name") is None and any(key in content for key in _ADDED):
        raise ConfigError(
            "this is the config attribute of a model of diffusers, which does not name the model's class; "
            "give the model itself, or its config.json."
        )


def _fields_of(row: _Row, content: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {"attention_head_dim": 128, **_UNUSED, **row.defaults}
    computed = {
        name: _computed_width(name, {**defaults, **content})
        for name in row.convention.width
        if name in _PRODUCTS or name in _SUMS
    }
    return {"convention": row.convention, "defaults": {**defaults, **computed}, "notes": (row.coordinates,)}


# Widths that no key states: the product of some keys, or the sum of the first list that is stated.
_PRODUCTS = {
    "inner_dim": ("num_attention_heads", "attention_head_dim"),
    "audio_inner_dim": ("audio_num_attention_heads", "audio_attention_head_dim"),
}
_SUMS = {"sum_of_axes": ("axes_dims",), "sum_of_audio_axes": ("axes_dims_a", "axes_dims")}


def _computed_width(name: str, content: Mapping[str, Any]) -> int:
    if name in _PRODUCTS:
        factors = [content.get(key) for key in _PRODUCTS[name]]
        return math.prod(_whole_numbers(" and ".join(_PRODUCTS[name]), factors))
    key = next((key for key in _SUMS[name] if content.get(key) is not None), _SUMS[name][0])
    return sum(_whole_numbers(key, content.get(key)))


def _why_unknown(content: Mapping[str, Any], name: str) -> str:
    if name.endswith("Pipeline") or any(map(_is_component, content.values())):
        return (
            f"this is the model_index.json of {short(name)}, a pipeline of diffusers; give the config.json "
            "in its folder 'transformer'."
        )
    return (
        f"_class_name is {short(name)}, which is no transformer of diffusers 0.42. Of a pipeline give the "
        "config.json of its folder 'transformer'; for another model state RoPE(axes=...) by its code."
    )


def _is_component(value: Any) -> bool:
    """Return whether a value names a part of a pipeline: its library and its class."""
    return isinstance(value, list) and len(value) == 2 and value[0] in ("diffusers", "transformers")
