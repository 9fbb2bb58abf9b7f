"""Conventions of models of vision, video, audio, time series and proteins.

The coordinates of a position are in the model's own order: (h, w), or (t, h, w) for a video, unless a note
states another.
"""

from dataclasses import replace

from rope_array._config._conventions import Convention, Values
from rope_array._errors import SpecError, short
from rope_array._spec.axes import Axes
from rope_array._spec.scaling import Periods

_HEADS = ("head_dim", "hidden_size/num_attention_heads", "hidden_size/num_heads")
_AXIAL = ("axial", "default")
_DIVIDED = ("hidden_size/num_attention_heads",)
_FLAMINGO = ("audio_config.hidden_size", "1280")


def _quarters(width: int) -> int:
    """Return the number of pairs of each of two coordinates that share a head equally."""
    if width % 4:
        raise SpecError(
            f"the rotated width is {width}; two coordinates that share it equally need a multiple of 4."
        )
    return width // 4


# Maps


def _height_width(values: Values, width: int) -> Axes:
    half = 2 * _quarters(width)
    return Axes.axial(half, half)


def _width_height(values: Values, width: int) -> Axes:
    half = 2 * _quarters(width)
    return Axes.axial(half, half, order=(1, 0))


def _in_blocks(values: Values, width: int) -> Axes:
    half = 2 * _quarters(width)
    return Axes.axial(half, half, blocks=True)


def _even_odd(values: Values, width: int) -> Axes:
    return Axes.even_odd(width)


def _row_column_pairs(values: Values, width: int) -> Axes:
    """Alternate row and column, each with the frequency series of half the width."""
    pairs = _quarters(width)
    return Axes((0, 1) * pairs, widths=(2 * pairs, 2 * pairs))


def _column_row_pairs(values: Values, width: int) -> Axes:
    pairs = _quarters(width)
    return Axes((1, 0) * pairs, widths=(2 * pairs, 2 * pairs))


def _thirds(values: Values, width: int) -> Axes:
    return Axes.axial(width // 3, width // 3, width // 3)


# Widths


def _three_axes(values: Values, width: int) -> int:
    return 3 * 2 * (width // 3 // 2)


def _all(values: Values, width: int) -> int:
    return width


def _of_projection(values: Values, width: int) -> int:
    return max(values.integer("projection_dim") // (values.integer("num_attention_heads") * 2), 32)


# Periods, and tables


def _periods(values: Values, width: int) -> Periods:
    return Periods()


def _flamingo_series(values: Values) -> int:
    """Return the width of each of MusicFlamingo's two series."""
    key = "partial_rotary_factor"
    stated = (
        name
        for name in (f"rope_parameters.{key}", f"rope_scaling.{key}", key)
        if values.get(name) is not None
    )
    return int(values.width(*_FLAMINGO) * values.number(next(stated, key), 0.2))


def _window_and_time(values: Values, width: int) -> int:
    series = _flamingo_series(values)
    return 2 * (series + series % 2)


def _two_series(values: Values, width: int) -> Axes:
    pairs, series = width // 4, _flamingo_series(values)
    return Axes((0,) * pairs + (1,) * pairs, widths=(series, series))


def _atom_pairs(values: Values, width: int) -> tuple[int, int]:
    """Return the number of pairs of each coordinate of a place, and of the residue's number."""
    spatial, residue = (
        values.integer("num_spatial_rope_pairs_per_axis", 2),
        values.integer("num_uid_rope_pairs", 10),
    )
    if min(spatial, residue) < 0 or 3 * spatial + residue > width // 2:
        raise SpecError(
            f"num_spatial_rope_pairs_per_axis is {short(spatial)} and num_uid_rope_pairs {short(residue)}; "
            f"give numbers so that three times the first plus the second is at most {width // 2} pairs."
        )
    return spatial, residue


def _atoms(values: Values, width: int) -> Axes:
    spatial, residue = _atom_pairs(values, width)
    pairs = (*(axis for axis in range(3) for _ in range(spatial)), *(3,) * residue)
    return Axes((*pairs, *(None,) * (width // 2 - len(pairs))), count=4)


def _base(values: Values, key: str, default: float) -> float:
    if (base := values.base(key, default)) is None:
        raise SpecError(f"{key} is null, which is no base; state the base that the model was trained with.")
    return base


def _atom_frequencies(values: Values, width: int) -> tuple[float, ...]:
    spatial, residue = _atom_pairs(values, width)
    base, other = (
        _base(values, "spatial_rope_base_frequency", 20.0),
        _base(values, "uid_rope_base_frequency", 1e4),
    )
    place = [base ** (-i / spatial) for i in range(spatial)]
    table = (*place * 3, *(other ** (-i / residue) for i in range(residue)))
    return (*table, *(0.0,) * (width // 2 - len(table)))


# Families


def _vision(**changes: object) -> Convention:
    """Return the convention of Qwen2-VL's ViT and many others: half pairing, pairs of h, then pairs of w."""
    usual = Convention(width=_HEADS, partial=False, axes=_height_width, types=_AXIAL)
    return replace(usual, **changes)  # type: ignore[arg-type]


_WH = "the coordinates are (w, h)"
# transformers' PermuteForRope, in its conversion_mapping.
_PERMUTED = (
    "transformers permutes the rows of q and k when it loads the published weights: with the weights of the "
    "file itself the pairing is 'interleaved'"
)
_SAM = Convention(
    pairing="interleaved",
    width=(
        "memory_attention_hidden_size/memory_attention_downsample_rate/memory_attention_num_attention_heads",
    ),
    partial=False,
    theta_keys=("memory_attention_rope_theta", "rope_theta"),
    axes=_height_width,
    types=_AXIAL,
    note=f"memory attention: {_WH}; the last keys, the object pointers, are not rotated",
)
_DINO = Convention(
    width=_DIVIDED,
    partial=False,
    theta=100.0,
    axes=_height_width,
    scaling=_periods,
    types=("default",),
    note="the coordinates are patch centres (h, w), each from -1 to 1; prefix tokens are not rotated",
)
_CONFORMER = Convention(
    width=_DIVIDED,
    partial=False,
    theta_keys=("rotary_embedding_base",),
    types=("default",),
    unless={"position_embeddings_type": ("rotary",)},
    note="the input of the q and k projections is rotated, in head-sized slices, not q and k",
)
_PROTEIN = Convention(partial=False, types=("default",), unless={"position_embedding_type": ("rotary",)})
_HEAD_NUMBER = Convention(partial=False, note="the position is the number of the head, not of the token")
_PLAIN = Convention(partial=False)
_PARTIAL = Convention()
_NONE = Convention(never="this part has no rotary embedding")

# fmt: off
_TOWER_MODELS = (
    "cohere_compass_vision", "dots3_note_vision_encoder", "ernie4_5_vl_moe_vision", "exaone4_5_vision",
    "glm4v_vision", "glm4v_moe_vision", "glm5_next_vision", "glm_ocr_vision", "muse_glimmer_vision",
    "muse_spark_vision", "paddleocr_vl_vision", "qwen2_5_vl_vision", "qwen2_5_omni_vision_encoder",
    "qwen3_5_vision", "qwen3_5_moe_vision", "qwen3_omni_moe_vision_encoder", "qwen3_vl_vision",
    "qwen3_vl_moe_vision", "qwen4_exp_vision", "video_llama_3_vision",
)
_VISION_PARTS = (
    "cohere_compass", "ernie4_5_vl_moe", "exaone4_5", "gemma4", "glm4v", "glm4v_moe", "glm_ocr", "kimi_k25",
    "paddleocr_vl", "qwen2_vl", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe",
    "video_llama_3",
)
_PLAIN_MODELS = (
    "qwen3_omni_moe:code2wav", "qwen3_omni_moe_talker_code_predictor", "lasr_encoder", "mimi", "mimi_encoder",
    "mimi_decoder", "moshi", "kyutai_speech_to_text", "dia_encoder", "dia_decoder",
    "voxtral_realtime_encoder", "voxtral_realtime_text", "pocket_tts",
    "pocket_tts_audio_tokenizer", "pocket_tts_audio_tokenizer_encoder", "pocket_tts_audio_tokenizer_decoder",
    "timesfm2_5",
)
_PARTIAL_MODELS = (
    "dots3_note_audio_encoder", "glmasr_encoder", "nemotron3_5_transcribe_asr_audio",
    "nemotron3_5_transcribe_word_timestamp", "nemotron3_diarization_audio",
)
# fmt: on

_TOWERS = {
    **dict.fromkeys(_TOWER_MODELS, _vision()),
    "lfm3_vl_vision": _vision(theta=1e6),
    "mlcd_vision_model": _vision(note="the class token has a learned angle: it is not rotated by position"),
    "qwen2_vl_vision": _vision(width=("head_dim", "embed_dim/num_attention_heads", "embed_dim/num_heads")),
    # Other maps
    "gemma4_vision": _vision(theta=100.0, axes=_in_blocks, note="the coordinates are (x, y)"),
    "inkling2_vision": _vision(pairing="interleaved", axes=_width_height),
    "kimi_k25_vision": _vision(axes=_column_row_pairs, note=_PERMUTED),
    "llama4_vision_model": _vision(
        pairing="interleaved",
        axes=_height_width,
        note="the coordinates are (x, y), both counted from 1; the class token is at (0, 0)",
    ),
    "minimax_m3_vl_vision": _vision(rotated=_three_axes, axes=_thirds),
    "pixtral": _vision(axes=_even_odd),
    "sam3_vit_model": _vision(
        pairing="interleaved", note=f"{_WH}, scaled by window_size over the grid's size"
    ),
    "step3p5_vision": _vision(axes=_width_height, note=_PERMUTED),
}

# Older configs have another model type for the part, or none: the key is the root's type and the path.
_BY_PATH = {
    **{f"{name}:vision": f"{name}_vision" for name in _VISION_PARTS},
    "hyperclovax_vision_v2:vision": "qwen2_5_vl_vision",
    "llama4:vision": "llama4_vision_model",
    "step3p7:vision": "step3p5_vision",
}
_PERMUTED_BY_PATH = {"mistral_large4:vision": _vision(axes=_even_odd, note=_PERMUTED)}

_SIGHT = {
    "sam2_video": _SAM,
    "sam3_tracker_video": _SAM,
    "edgetam_video": _SAM,
    "dinov3_vit": _DINO,
    "sapiens2": _DINO,
    "eomt_dinov3": _DINO,
    "efficientloftr": Convention(
        pairing="interleaved",
        width=("hidden_size",),
        rotated=_all,
        axes=_row_column_pairs,
        note="the whole hidden state is rotated before it is cut into heads; coordinates (h, w) count from 1",
    ),
    "deepseek_ocr2_encoder": _PLAIN,
    "vjepa2": Convention(
        width=_DIVIDED,
        refusal="V-JEPA2 pairs neighbouring features but multiplies them by cos and sin of different "
        "frequencies: no rotation, norms change",
    ),
}

_SOUND = {
    **dict.fromkeys(_PLAIN_MODELS, _PLAIN),
    "gradium_phonon_tts": replace(_PLAIN, note=_PERMUTED),
    **dict.fromkeys(_PARTIAL_MODELS, _PARTIAL),
    **dict.fromkeys(
        ("pe_audio_encoder", "pe_audio_video_encoder", "pe_video_encoder"),
        Convention(pairing="interleaved", partial=False, theta=2e4),
    ),
    **dict.fromkeys(("csm", "csm_depth_decoder_model", "higgs_audio_v2"), replace(_PLAIN, theta=5e5)),
    "clvp_encoder": Convention(
        width=_DIVIDED,
        rotated=_of_projection,
        theta_keys=(),
        drops=("rope_parameters", "rope_scaling"),
        types=("default",),
        unless={"use_rotary_embedding": (True,)},
        note="v is rotated as well",
    ),
    "wav2vec2-bert": _CONFORMER,
    "wav2vec2-conformer": _CONFORMER,
    "seamless_m4t": replace(_CONFORMER, width=("hidden_size/speech_encoder_attention_heads",)),
    "moonshine": Convention(
        pairing="interleaved",
        width=("head_dim", "hidden_size/num_attention_heads", "hidden_size/decoder_num_attention_heads"),
    ),
    "moonshine_streaming": Convention(pairing="interleaved"),
    "moonshine_streaming_encoder": _NONE,
    "musicflamingo": Convention(
        pairing="interleaved",
        width=_FLAMINGO,
        rotated=_window_and_time,
        theta=1200.0,
        axes=_two_series,
        note="rotates the audio encoder's output. The coordinates of frame k, at t seconds, in a window of d "
        "seconds from t0, with m = rope_theta, are -2π·t·round(t0/d)/m and -4π²·t·k/m",
    ),
    "qwen2_5_omni_dit": replace(
        _PLAIN, pairing="interleaved", out_pairing="half", note="only head 0 is rotated"
    ),
    "moshi_depth": _NONE,
    "xcodec2": _HEAD_NUMBER,
    "neucodec": _HEAD_NUMBER,
}

_ATOMS = Convention(
    rotated=_all,
    axes=_atoms,
    inv_freq=_atom_frequencies,
    types=("default",),
    note="the coordinates are an atom's place (x, y, z) and the number of its residue",
)
_LIFE = {
    "esm": _PROTEIN,
    "evolla:protein_encoder": _PROTEIN,
    "esmc": _PLAIN,
    "esmfold2:atom_encoder": _ATOMS,
    "esmfold2:structure_head.diffusion_module.atom_encoder": _ATOMS,
}

VISION: dict[str, Convention] = {
    **_TOWERS,
    **{path: _TOWERS[name] for path, name in _BY_PATH.items()},
    **_PERMUTED_BY_PATH,
    **_SIGHT,
    **_SOUND,
    **_LIFE,
}
