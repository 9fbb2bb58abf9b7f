"""The rotary classes of vision towers and others with several coordinates or a code of their own.

Coordinates differ from each other at nearly every position, so that each map of pairs to axes gives another
result. `theirs` of a class takes a config and positions.
"""

import functools
import math
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from hf._walk import (
    EQUAL,
    Case,
    Probe,
    Theirs,
    at_part,
    config_class,
    head_width,
    modeling,
    one_per_pair,
    other,
    own_config,
)

LINE = np.array([0, 1, 2, 3, 5, 8, 13, 40, 77, 150])
GRID = np.stack([np.arange(20) // 5 * 3, np.arange(20) % 5 * 7 + 1], axis=-1)
FINE = (GRID * 0.75 + 0.125).astype(np.float32)
ROWS = np.array([[0, 0], [1, 1], [2, 9], [3, 11], [17, 5], [4, 4]])
VOLUME = np.stack([np.arange(24) // 12 * 2, np.arange(24) // 4 * 5 + 1, np.arange(24) % 4 * 3], axis=-1)

Rotate = Callable[[tuple[np.ndarray, ...]], tuple[np.ndarray, ...]]


def theirs(rotate, inv_freq, cos=None, sin=None, factor=1.0):
    omega, cos, sin = (None if value is None else np.asarray(value) for value in (inv_freq, cos, sin))
    return Theirs(rotate, omega, factor, cos, sin)


def each(apply):
    """Apply a function of one torch tensor to each array of a tuple of NumPy arrays."""
    return lambda arrays: tuple(apply(torch.tensor(x)).numpy() for x in arrays)


def together(apply):
    return lambda arrays: tuple(y.numpy() for y in apply(*map(torch.tensor, arrays)))


def packed(apply):
    """Call a function of q and k as (S, heads, D) on one sequence after another, as vision towers do."""

    def both(q, k):
        pairs = [apply(a.transpose(0, 1), b.transpose(0, 1)) for a, b in zip(q, k, strict=True)]
        return tuple(torch.stack([pair[i].transpose(0, 1) for pair in pairs]) for i in (0, 1))

    return together(both)


def positions_first(apply, **options):
    """Call a function of q and k as (B, S, H, D)."""

    def both(q, k):
        return tuple(x.transpose(1, 2) for x in apply(q.transpose(1, 2), k.transpose(1, 2), **options))

    return together(both)


def pairwise(inv_freq):
    return np.repeat(inv_freq, 2)


def twice(inv_freq):
    return np.tile(inv_freq, 2)


# What the function of a config without rotation does
UNROTATED = theirs(lambda arrays: arrays, np.zeros(0, np.float32))

# Classes of which several models have a copy


def tower(model, cls, config, pos, lanes_of=twice, repeats="half", apply=None, call=packed, **more):
    """Two or three coordinates, like Qwen2-VL's ViT."""
    owner = modeling(model)
    module = getattr(owner, cls)(config)
    cos, sin = module(torch.zeros(1), torch.tensor(pos))
    omega = lanes_of(module.inv_freq.numpy())
    flat = [one_per_pair(x.reshape(pos.shape[0], -1).numpy(), repeats) for x in (cos, sin)]
    own = partial(getattr(owner, apply or "apply_rotary_pos_emb_vision"), cos=cos, sin=sin, **more)
    return theirs(call(own), omega, *flat, module.attention_scaling)


def dino(model, cls, config, pos):
    """DINOv3: normalised coordinates. Two prefix tokens before the patches must stay unrotated."""
    owner = modeling(model)
    module = getattr(owner, cls)(config).eval()
    with mock.patch.object(owner, "get_patches_center_coordinates", return_value=torch.tensor(pos)):
        cos, sin = module(torch.zeros(1, 3, 64, 64))
    omega = twice(module.inv_freq.numpy()) * 2 * math.pi

    def both(q, k):
        before = [torch.cat([x[..., :2, :] + 1, x], dim=-2) for x in (q, k)]
        after = owner.apply_rotary_pos_emb(*before, cos, sin)
        assert all(torch.equal(y[..., :2, :], x[..., :2, :]) for x, y in zip(before, after, strict=True))
        return tuple(x[..., 2:, :] for x in after)

    return theirs(together(both), omega, cos[:, : omega.size], sin[:, : omega.size])


def conformer(model, name, config, pos):
    owner = modeling(model)
    if config.position_embeddings_type != "rotary":
        return UNROTATED
    module = getattr(owner, f"{name}RotaryPositionalEmbedding")(config)
    table = module(torch.zeros(1, int(pos.max()) + 1, 1))[:, pos]
    own = getattr(owner, f"{name}SelfAttention")._apply_rotary_embedding

    def rotate(x):
        batch, heads, length, width = x.shape
        self = SimpleNamespace(num_heads=heads, head_size=width)
        flat = x.transpose(1, 2).reshape(batch, length, heads * width)
        return own(self, flat, table).reshape(batch, length, heads, width).transpose(1, 2)

    pairs = module.inv_freq.shape[0]
    return theirs(each(rotate), module.inv_freq, *table[:, :, 0, 0, :pairs])


# Classes of one model


def gemma4(config, pos):
    owner = modeling("gemma4")
    module = owner.Gemma4VisionRotaryEmbedding(config)
    ids = torch.tensor(pos)[None]
    cos, sin = module(torch.zeros(1), ids)

    def rotate(x):
        of_rows = ids.expand(x.shape[0], -1, -1)
        return owner.apply_multidimensional_rope(x.transpose(1, 2), cos, sin, of_rows).transpose(1, 2)

    omega = twice(module.inv_freq.numpy())
    flat = [one_per_pair(value[0].numpy(), "blocks") for value in (cos, sin)]
    return theirs(each(rotate), omega, *flat, module.attention_scaling)


def llama4(config, pos):
    """Select rows of the module's table: its grid counts from 1, and (0, 0) is the class token."""
    owner = modeling("llama4")
    side = config.image_size // config.patch_size
    rows = np.where(pos.any(axis=-1), (pos[:, 1] - 1) * side + pos[:, 0] - 1, side * side)
    whole = owner.Llama4VisionRotaryEmbedding(config)(torch.zeros(1))
    table = whole[rows]
    rotate = positions_first(owner.vision_apply_rotary_emb, freqs_ci=table)
    # Row 0 is position (1, 1): its angles are the frequencies.
    return theirs(rotate, whole[0, 0].angle(), table[:, 0].real, table[:, 0].imag)


def loftr(config, pos):
    owner = modeling("efficientloftr")
    module = owner.EfficientLoFTRRotaryEmbedding(config)
    side, step = config.q_aggregation_kernel_size, config.q_aggregation_stride
    height, width = (int(n) for n in pos[-1])
    cos, sin = module(torch.zeros(1, 1, (height - 1) * step + side, (width - 1) * step + side))
    cos, sin = (value.reshape(1, pos.shape[0], -1) for value in (cos, sin))
    rotate = positions_first(owner.apply_rotary_pos_emb, cos=cos, sin=sin, unsqueeze_dim=2)
    return theirs(rotate, pairwise(module.inv_freq.numpy()), cos[0, :, ::2], sin[0, :, ::2])


def neomme(config, pos, layer_type):
    owner = modeling("neomme")
    module = owner.NeoMMERotaryEmbedding(config)
    cos, sin = module(torch.zeros(1), torch.tensor(pos.T)[:, None], layer_type)
    omega = getattr(module, f"{layer_type}_inv_freq").numpy()
    rotate = together(partial(owner.apply_rotary_pos_emb, cos=cos, sin=sin))
    return theirs(rotate, omega, cos[0, :, : omega.size], sin[0, :, : omega.size])


def atoms(config, pos):
    """ESMFold 2: three coordinates in space, and the number of the residue."""
    owner = modeling("esmfold2")
    module = owner.EsmFold2RotaryEmbedding(config)
    where, which = torch.tensor(pos[:, :3])[None].float(), torch.tensor(pos[:, 3])[None]
    cos, sin = module(where, which, torch.float32)
    pairs = config.head_dim // 2
    one = module(torch.ones(1, 1, 3), torch.ones(1, 1), torch.float64)  # at 1 the angles are the frequencies
    omega = torch.atan2(one[1], one[0])[0, 0, :pairs]
    rotate = together(partial(owner.apply_rotary_pos_emb, cos=cos, sin=sin))
    return theirs(rotate, omega, cos[0, :, :pairs], sin[0, :, :pairs])


def clvp(config, pos):
    owner = modeling("clvp")
    if not getattr(config, "use_rotary_embedding", True):
        return UNROTATED
    module = owner.ClvpRotaryPositionalEmbedding(config)
    angles = module(torch.zeros(1, int(pos.max()) + 1, 1)).squeeze(0)
    width, ids = angles.shape[-1], torch.tensor(pos)[None]

    def rotate(x):
        first, rest = x[..., :width], x[..., width:]
        turned = owner.apply_rotary_pos_emb(first, first, first, angles.cos(), angles.sin(), ids)
        assert torch.equal(turned[0], turned[2])  # v is rotated too
        return torch.cat([turned[0], rest], dim=-1)

    pairs = angles[pos, : width // 2]
    return theirs(each(rotate), module.inv_freq, pairs.cos(), pairs.sin())


@functools.cache
def windows(longest, step):
    """Return the seconds of the frames of three windows of sound, by the bytes of our coordinates."""
    turn, known = 2 * math.pi, {}
    for start in (0.0, 2.4, 7.2):
        frames = np.arange(20)
        seconds = (start + frames * 0.04).astype(np.float32)
        window = np.round(start / (step * 4 * frames.size))
        angle = -turn * seconds.astype(np.float64) / longest
        known[np.stack([window * angle, turn * frames * angle], axis=-1).tobytes()] = seconds
    return known


def flamingo(config, pos):
    owner = modeling("musicflamingo")
    module = owner.MusicFlamingoRotaryEmbedding(config)
    known = windows(config.max_position_embeddings, config.audio_frame_step)
    cos, sin = module(torch.tensor(known[pos.tobytes()])[None], seq_len=pos.shape[0])
    rotate = each(lambda x: owner.apply_rotary_time_emb(x, cos, sin))
    return theirs(rotate, twice(module.inv_freq.numpy()), cos[0, :, ::2], sin[0, :, ::2])


def flamingo_probes():
    kind = config_class("musicflamingo", "MusicFlamingoConfig")
    changed = {"rope_type": "default", "rope_theta": 600.0, "partial_rotary_factor": 0.1}
    for config in (kind(), kind(rope_parameters=changed)):
        known = windows(config.max_position_embeddings, config.audio_frame_step)
        positions = tuple(np.frombuffer(data).reshape(-1, 2) for data in known)
        yield Probe(config, partial(flamingo, config), config.head_dim, positions)


# Not rotations


def assert_norms_change(rotate, width):
    x = np.random.default_rng(0).standard_normal((1, 1, 6, width)).astype(np.float32)
    before, after = (np.linalg.norm(value, axis=-1) for value in (x, rotate(torch.tensor(x)).numpy()))
    assert np.abs(after / before - 1).max() > 0.01


def vjepa2_refused():
    config = config_class("vjepa2", "VJEPA2Config")()
    attention = modeling("vjepa2").VJEPA2RopeAttention(config, config.hidden_size, config.num_attention_heads)
    ids = tuple(torch.tensor(axis) for axis in VOLUME[4:10].T)
    assert_norms_change(lambda x: attention.apply_rotary_embeddings(x, ids), attention.attention_head_size)
    yield config, None, "no rotation"


def hunyuan_refused():
    owner, kind = modeling("hunyuan_vl"), partial(config_class, "hunyuan_vl")
    sections = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 16, 16, 16]}
    text = {"head_dim": 128, "rope_parameters": sections}
    config = kind("HunYuanVLTextConfig")(**text)
    ids = torch.tensor(np.stack([*VOLUME[4:10].T, np.arange(6) * 2]))
    cos, sin = owner.HunYuanVLRotaryEmbedding(config)(torch.zeros(1), ids[:, None])
    assert_norms_change(lambda x: owner.apply_rotary_pos_emb(x, x, cos, sin)[0], 128)
    yield config, None, "no rotation"
    yield kind("HunYuanVLConfig")(text_config=text), "text", "no rotation"


# The list

Config = tuple[str, str | None, Mapping[str, Any]]  # a config class, a part of the config, values


def case(model, cls, of, *configs, width=head_width, positions=(GRID,), layer_types=(None,), status=EQUAL):
    """Return the case of a class from its configs. `of` takes the config of the part and positions."""

    def probes():
        for name, part, values in configs:
            whole = config_class(model, f"{name}Config")(**values)
            inner = at_part(whole, part)
            for layer in layer_types:
                call = partial(of, inner, **({"layer_type": layer} if layer else {}))
                yield Probe(whole, call, width(inner), positions, part, layer)

    return Case(model, cls, probes, status)


def vision(model, name, root=None, part="vision", *, of=None, width=head_width, positions=(GRID,), **options):
    """Return the case of a vision tower: its config inside the whole config, alone, and alone but changed."""
    cls = f"{name}RotaryEmbedding"
    make = of or partial(tower, model, cls, **options)

    def probes():
        configs = [(own_config(model, cls), None), (other(own_config(model, cls)), None)]
        if root is not None:
            configs.insert(0, (config_class(model, f"{root}Config")(), part))
        for config, path in configs:
            inner, shown = at_part(config, path), config is not configs[-1][0]
            yield Probe(config, partial(make, inner), width(inner), positions, path, shown=shown)

    return Case(model, cls, probes, kind=("tower", str(options)) if of is None else None)


def sam(model, name, *attentions):
    """Return the cases of SAM's tables in the attention to memories, and of the attentions that use them."""

    def width(config):
        whole = config.memory_attention_hidden_size // config.memory_attention_downsample_rate
        return int(whole // config.memory_attention_num_attention_heads)

    heads = {"hidden_size": 384, "num_attention_heads": 2, "downsample_rate": 3}
    changed = {f"memory_attention_{key}": value for key, value in heads.items()}
    changed["rope_parameters"] = {"rope_type": "axial", "rope_theta": 700.0}
    cls, apply = f"{name}VisionRotaryEmbedding", "apply_rotary_pos_emb_2d"
    apply += "_self_attn" if model == "edgetam_video" else ""
    of = partial(tower, model, cls, **{**AXIAL_SAM, "apply": apply})
    kind: Config = (name, None, {})
    options = {"width": width, "positions": (GRID, FINE)}
    status = f"an attention layer, which takes its tables from `{cls}`"
    return [
        case(model, cls, of, kind, (name, None, changed), **options),
        *(case(model, f"{name}RoPE{one}", of, kind, status=status, **options) for one in attentions),
    ]


def dino_case(model, cls, root, changed):
    centres = np.stack(np.meshgrid([-2 / 3, 0, 2 / 3], [-0.8, -0.4, 0, 0.4, 0.8], indexing="ij"), -1)
    outside = np.random.default_rng(5).random((11, 2)) * 3 - 1.5  # shifted, rescaled
    return case(
        *(model, cls, partial(dino, model, cls)),
        *((root, None, values) for values in ({}, {**FIVE_HEADS, **changed})),
        positions=(centres.reshape(-1, 2).astype(np.float32), outside.astype(np.float32)),
    )


def conformer_case(model, name, root, heads="num_attention_heads"):
    rotary = {"position_embeddings_type": "rotary"}
    changed = {**rotary, "rotary_embedding_base": 300, "hidden_size": 320, heads: 5}
    return case(
        *(model, f"{name}RotaryPositionalEmbedding"),
        partial(conformer, model, name),
        *((root, None, values) for values in (rotary, changed, {})),
        width=lambda config: config.hidden_size // getattr(config, heads),
        positions=(LINE,),
    )


def llama4_positions():
    pos = np.stack([np.arange(20) * 7 % 32 + 1, np.arange(20) + 3], axis=-1)
    pos[-1] = 0  # the class token
    return pos


def each_of(names):
    """Return the cases of vision towers: model:class:whole config."""
    return [vision(*name.split(":")) for name in names.split()]


FIVE_HEADS = {"hidden_size": 320, "num_attention_heads": 5}
BASE_30 = {"rope_type": "default", "rope_theta": 30.0}
AXIAL_SAM = {"repeats": "interleaved", "apply": "apply_rotary_pos_emb_2d", "call": together}
ATOMS = {"num_spatial_rope_pairs_per_axis": 3, "num_uid_rope_pairs": 5, "spatial_rope_base_frequency": 7.0}
NEOMME = {
    "full_attention": {"rope_type": "default", "rope_theta": 3e4, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
}
LOFTR = {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 4.0}

CASES: list[Case] = [
    *each_of(
        "cohere_compass:CohereCompassVision:CohereCompass dots3_note:Dots3NoteVision:Dots3Note"
        " ernie4_5_vl_moe:Ernie4_5_VLMoeVision:Ernie4_5_VLMoe exaone4_5:Exaone4_5_Vision:Exaone4_5_"
        " glm4v:Glm4vVision:Glm4v glm4v_moe:Glm4vMoeVision:Glm4vMoe glm5_next:Glm5NextVision:Glm5Next"
        " glm_ocr:GlmOcrVision:GlmOcr lfm3_vl:Lfm3VlVision:Lfm3Vl mlcd:MLCD"
        " muse_glimmer:MuseGlimmerVision:MuseGlimmer muse_spark:MuseSparkVision:MuseSpark"
        " paddleocr_vl:PaddleOCRVision:PaddleOCRVL qwen2_5_omni:Qwen2_5OmniVision:Qwen2_5Omni:thinker.vision"
        " qwen2_5_vl:Qwen2_5_VLVision:Qwen2_5_VL qwen3_5:Qwen3_5Vision:Qwen3_5"
        " qwen3_5_moe:Qwen3_5MoeVision:Qwen3_5Moe"
        " qwen3_omni_moe:Qwen3OmniMoeVision:Qwen3OmniMoe:thinker.vision"
        " qwen3_vl:Qwen3VLVision:Qwen3VL qwen3_vl_moe:Qwen3VLMoeVision:Qwen3VLMoe"
        " qwen4_exp:Qwen4ExpVision:Qwen4Exp step3p7:Step3p7Vision:Step3p7"
        " video_llama_3:VideoLlama3Vision:VideoLlama3"
    ),
    vision(
        *("qwen2_vl", "Qwen2VLVision", "Qwen2VL"),
        width=lambda config: getattr(config, "head_dim", None) or config.embed_dim // config.num_heads,
    ),
    vision("inkling2", "Inkling2Vision", "Inkling2", repeats="interleaved"),
    vision("kimi_k25", "Kimi_K25Vision", "Kimi_K25", lanes_of=pairwise),
    vision(
        "minimax_m3_vl",
        "MiniMaxM3VLVision",
        "MiniMaxM3VL",
        lanes_of=lambda omega: np.tile(omega, 3),
        positions=(VOLUME,),
    ),
    vision(
        *("pixtral", "PixtralVision"),
        lanes_of=lambda omega: omega,
        apply="apply_rotary_pos_emb",
        call=together,
        unsqueeze_dim=0,
    ),
    vision("gemma4", "Gemma4Vision", of=gemma4),
    vision("sam3", "Sam3ViT", "Sam3Vision", "backbone", positions=(GRID, FINE), **AXIAL_SAM),
    case(
        *("sam3", "Sam3ViTRoPEAttention", partial(tower, "sam3", "Sam3ViTRotaryEmbedding", **AXIAL_SAM)),
        ("Sam3ViT", None, {}),
        status="an attention layer, which takes its tables from `Sam3ViTRotaryEmbedding`",
    ),
    *sam("sam2_video", "Sam2Video", "Attention"),
    *sam("sam3_tracker_video", "Sam3TrackerVideo", "Attention"),
    *sam("edgetam_video", "EdgeTamVideo", "SelfAttention", "CrossAttention"),
    case(
        *("llama4", "Llama4VisionRotaryEmbedding", llama4),
        *(("Llama4", "vision", {}), ("Llama4Vision", None, {})),
        (
            "Llama4Vision",
            None,
            {"num_attention_heads": 8, "rope_parameters": {**BASE_30, "rope_theta": 500.0}},
        ),
        positions=(llama4_positions(),),
    ),
    dino_case("dinov3_vit", "DINOv3ViTRopePositionEmbedding", "DINOv3ViT", {"rope_theta": 30.0}),
    dino_case("sapiens2", "Sapiens2RopePositionEmbedding", "Sapiens2", {"rope_theta": 30.0}),
    dino_case("eomt_dinov3", "EomtDinov3RotaryEmbedding", "EomtDinov3", {"rope_parameters": BASE_30}),
    case(
        *("efficientloftr", "EfficientLoFTRRotaryEmbedding", loftr),
        *(("EfficientLoFTR", None, values) for values in ({}, {"rope_parameters": LOFTR})),
        width=lambda config: config.hidden_size,
        positions=(np.stack([np.repeat(np.arange(3), 6), np.tile(np.arange(6), 3)], axis=-1) + 1,),
    ),
    case(
        *("neomme", "NeoMMERotaryEmbedding", neomme),
        *(("NeoMME", None, values) for values in ({}, {"head_dim": 32, "rope_parameters": NEOMME})),
        positions=(ROWS, GRID),
        layer_types=("full_attention", "sliding_attention"),
    ),
    case(
        *("esmfold2", "EsmFold2RotaryEmbedding", atoms),
        *(
            ("EsmFold2", part, values)
            for values in ({}, {"atom_encoder": ATOMS})
            for part in ("atom_encoder", "structure_head.diffusion_module.atom_encoder")
        ),
        positions=(
            np.concatenate(
                [np.random.default_rng(2).standard_normal((12, 3)) * 4, np.arange(12)[:, None] * 3], axis=-1
            ).astype(np.float32),
        ),
    ),
    case(
        *("clvp", "ClvpRotaryPositionalEmbedding", clvp),
        *(("Clvp", "text", {}), ("Clvp", "speech", {})),
        ("ClvpEncoder", None, {"hidden_size": 512, "num_attention_heads": 4, "projection_dim": 640}),
        ("ClvpEncoder", None, {"use_rotary_embedding": False}),
        positions=(LINE,),
    ),
    conformer_case("wav2vec2_bert", "Wav2Vec2Bert", "Wav2Vec2Bert"),
    conformer_case("wav2vec2_conformer", "Wav2Vec2Conformer", "Wav2Vec2Conformer"),
    conformer_case("seamless_m4t", "SeamlessM4TConformer", "SeamlessM4T", "speech_encoder_attention_heads"),
    Case("musicflamingo", "MusicFlamingoRotaryEmbedding", flamingo_probes),
    Case(
        "hunyuan_vl",
        "HunYuanVLRotaryEmbedding",
        status="no rotation, as the two features of a pair have different coordinates, and norms change",
        refused=hunyuan_refused,
    ),
    Case(
        "vjepa2",
        "VJEPA2RopeAttention",
        status="no rotation, as the two features of a pair have different frequencies, and norms change",
        refused=vjepa2_refused,
    ),
]
