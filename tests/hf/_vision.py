"""The rotary classes with a code of their own, and models without a class.

Coordinates differ from each other at nearly every position, so that each map of pairs to axes gives another
result. `theirs` of a class takes a config and positions.
"""

import math
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from hf._text import GRID
from hf._walk import UNROTATED, Case, Probe, Theirs, at_part, config_class, head_width, modeling

LINE = np.array([0, 1, 2, 3, 5, 8, 13, 40, 77, 150])


def theirs(rotate, inv_freq, cos=None, sin=None, factor=1.0):
    omega, cos, sin = (None if value is None else np.asarray(value) for value in (inv_freq, cos, sin))
    return Theirs(rotate, omega, factor, cos, sin)


def each(apply):
    """Apply a function of one torch tensor to each array of a tuple of NumPy arrays."""
    return lambda arrays: tuple(apply(torch.tensor(x)).numpy() for x in arrays)


def together(apply):
    return lambda arrays: tuple(y.numpy() for y in apply(*map(torch.tensor, arrays)))


def positions_first(apply, **options):
    """Call a function of q and k as (B, S, H, D)."""

    def both(q, k):
        return tuple(x.transpose(1, 2) for x in apply(q.transpose(1, 2), k.transpose(1, 2), **options))

    return together(both)


# Classes of which several models have a copy


def dino(model, cls, config, pos):
    """DINOv3: normalised coordinates. Two prefix tokens before the patches must stay unrotated."""
    owner = modeling(model)
    module = getattr(owner, cls)(config).eval()
    with mock.patch.object(owner, "get_patches_center_coordinates", return_value=torch.tensor(pos)):
        cos, sin = module(torch.zeros(1, 3, 64, 64))
    omega = module.inv_freq.tile(2) * 2 * math.pi

    def both(q, k):
        before = [torch.cat([x[..., :2, :] + 1, x], dim=-2) for x in (q, k)]
        after = owner.apply_rotary_pos_emb(*before, cos, sin)
        assert all(torch.equal(y[..., :2, :], x[..., :2, :]) for x, y in zip(before, after, strict=True))
        return tuple(x[..., 2:, :] for x in after)

    return theirs(together(both), omega, cos[:, : len(omega)], sin[:, : len(omega)])


def conformer(model, name, config, pos):
    owner = modeling(model)
    if config.position_embeddings_type != "rotary":
        return UNROTATED
    module = getattr(owner, f"{name}RotaryPositionalEmbedding")(config)
    table = module(torch.zeros(1, int(pos.max()) + 1, 1))[:, pos]
    rotate_flat = getattr(owner, f"{name}SelfAttention")._apply_rotary_embedding

    def rotate(x):
        batch, heads, length, width = x.shape
        self = SimpleNamespace(num_heads=heads, head_size=width)
        flat = x.transpose(1, 2).reshape(batch, length, heads * width)
        return rotate_flat(self, flat, table).reshape(batch, length, heads, width).transpose(1, 2)

    pairs = module.inv_freq.shape[0]
    return theirs(each(rotate), module.inv_freq, *table[:, :, 0, 0, :pairs])


# Classes of one model


def llama4(config, pos):
    """Select rows of the module's table: its grid counts from 1, and (0, 0) is the class token."""
    owner = modeling("llama4")
    side = config.image_size // config.patch_size
    rows = np.where(pos.any(axis=-1), (pos[:, 1] - 1) * side + pos[:, 0] - 1, side * side)
    all_rows = owner.Llama4VisionRotaryEmbedding(config)(torch.zeros(1))
    table = all_rows[rows]
    rotate = positions_first(owner.vision_apply_rotary_emb, freqs_ci=table)
    # Row 0 is position (1, 1): its angles are the frequencies.
    return theirs(rotate, all_rows[0, 0].angle(), table[:, 0].real, table[:, 0].imag)


def loftr(config, pos):
    owner = modeling("efficientloftr")
    module = owner.EfficientLoFTRRotaryEmbedding(config)
    side, step = config.q_aggregation_kernel_size, config.q_aggregation_stride
    height, width = (int(n) for n in pos[-1])
    cos, sin = module(torch.zeros(1, 1, (height - 1) * step + side, (width - 1) * step + side))
    cos, sin = (value.reshape(1, pos.shape[0], -1) for value in (cos, sin))
    rotate = positions_first(owner.apply_rotary_pos_emb, cos=cos, sin=sin, unsqueeze_dim=2)
    return theirs(rotate, module.inv_freq.repeat_interleave(2), cos[0, :, ::2], sin[0, :, ::2])


def atoms(config, pos):
    """ESMFold 2: three coordinates in space, and the number of the residue."""
    owner = modeling("esmfold2")
    module = owner.EsmFold2RotaryEmbedding(config)
    where, which = torch.tensor(pos[:, :3])[None].float(), torch.tensor(pos[:, 3])[None]
    cos, sin = module(where, which, torch.float32)
    pairs = config.head_dim // 2
    # At 1 the angles are the frequencies.
    at_one = module(torch.ones(1, 1, 3), torch.ones(1, 1), torch.float64)
    omega = torch.atan2(at_one[1], at_one[0])[0, 0, :pairs]
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
        first, unrotated = x[..., :width], x[..., width:]
        turned = owner.apply_rotary_pos_emb(first, first, first, angles.cos(), angles.sin(), ids)
        assert torch.equal(turned[0], turned[2])  # v is rotated too
        return torch.cat([turned[0], unrotated], dim=-1)

    pairs = angles[pos, : width // 2]
    return theirs(each(rotate), module.inv_freq, pairs.cos(), pairs.sin())


def gptj(model, cls, config, pos):
    """GPT-J and CodeGen: rows of sines, then cosines, for the first features of a head."""
    owner, width = modeling(model), config.rotary_dim
    sin, cos = getattr(owner, cls)(config)(torch.zeros(1), torch.tensor(pos)[None])

    def rotate(x):
        first = owner.apply_rotary_pos_emb(x[..., :width].transpose(1, 2), sin, cos)
        return torch.cat((first.transpose(1, 2), x[..., width:]), dim=-1)

    return theirs(each(rotate), None, cos[0], sin[0])


def flamingo(config, seconds, pos):
    owner = modeling("musicflamingo")
    module = owner.MusicFlamingoRotaryEmbedding(config)
    cos, sin = module(torch.tensor(seconds)[None], seq_len=len(seconds))
    rotate = each(lambda x: owner.apply_rotary_time_emb(x, cos, sin))
    return theirs(rotate, module.inv_freq.tile(2), cos[0, :, ::2], sin[0, :, ::2])


def flamingo_probes():
    """Yield the probes of three windows of sound: the module takes the seconds of frames."""
    config_cls = config_class("musicflamingo", "MusicFlamingoConfig")
    changed = {"rope_type": "default", "rope_theta": 600.0, "partial_rotary_factor": 0.1}
    frames = np.arange(20)
    for config, start in product((config_cls(), config_cls(rope_parameters=changed)), (0.0, 2.4, 7.2)):
        seconds = (start + frames * 0.04).astype(np.float32)
        window = np.round(start / (config.audio_frame_step * 4 * frames.size))
        angle = -2 * math.pi * seconds.astype(np.float64) / config.max_position_embeddings
        pos = np.stack([window * angle, 2 * math.pi * frames * angle], axis=-1)
        yield Probe(config, partial(flamingo, config, seconds), config.head_dim, (pos,))


# The list


def case(model, cls, of, root, *values, paths=(None,), width=head_width, positions=(GRID,)):
    """Return the case of a class from the values of whole configs, each with its parts in it and alone.

    `of` takes the config of the part and positions.
    """

    def probes():
        for fields, path in product(values, paths):
            outer = config_class(model, f"{root}Config")(**fields)
            inner = at_part(outer, path)
            probe = Probe(outer, partial(of, inner), width(inner), positions, path)
            yield probe
            if path is not None and inner.model_type:
                yield replace(probe, config=inner, part=None)

    return Case(model, cls, probes)


def dino_case(model, cls, root, **changed):
    changed = {"hidden_size": 320, "num_attention_heads": 5, **changed}
    return case(model, cls, partial(dino, model, cls), root, {}, changed, positions=AROUND)


def conformer_case(model, name, root, heads="num_attention_heads"):
    rotary = {"position_embeddings_type": "rotary"}
    values = (rotary, {**rotary, "rotary_embedding_base": 300, "hidden_size": 320, heads: 5}, {})
    names = (model, f"{name}RotaryPositionalEmbedding", partial(conformer, model, name), root)
    return case(
        *names, *values, width=lambda config: config.hidden_size // getattr(config, heads), positions=(LINE,)
    )


def gptj_case(model, root):
    cls, values = f"{root}RotaryEmbedding", {"n_embd": 96, "n_head": 4, "rotary_dim": 8}
    return case(model, cls, partial(gptj, model, cls), root, {}, values, positions=(LINE, 7 * LINE[::-1]))


NO_ROTATION = "no rotation, as the two features of a pair have different {}, and norms change"
BASE_30 = {"rope_type": "default", "rope_theta": 30.0}
ATOMS = {"num_spatial_rope_pairs_per_axis": 3, "num_uid_rope_pairs": 5, "spatial_rope_base_frequency": 7.0}
LOFTR = {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 4.0}
LLAMA4 = {"num_attention_heads": 8, "rope_parameters": {**BASE_30, "rope_theta": 500.0}}
CLVP = {"hidden_size": 512, "num_attention_heads": 4, "projection_dim": 640}
random = np.random.default_rng(2)
# Of DINOv3: the centres of patches, shifted and rescaled too.
CENTRES = np.stack(np.meshgrid([-2 / 3, 0, 2 / 3], [-0.8, -0.4, 0, 0.4, 0.8], indexing="ij"), -1)
AROUND = (CENTRES.reshape(-1, 2).astype(np.float32), (random.random((11, 2)) * 3 - 1.5).astype(np.float32))
# Of Llama 4: the last position is the class token.
OF_LLAMA4 = np.stack([*np.stack([np.arange(19) * 7 % 32 + 1, np.arange(19) + 3], axis=-1), [0, 0]])
OF_LOFTR = np.stack([np.repeat(np.arange(3), 6), np.tile(np.arange(6), 3)], axis=-1) + 1
OF_ATOMS = np.column_stack([random.standard_normal((12, 3)) * 4, np.arange(12) * 3]).astype(np.float32)

CASES: list[Case] = [
    case("llama4", "Llama4VisionRotaryEmbedding", llama4, "Llama4", {}, {"vision_config": LLAMA4},
         paths=("vision",), positions=(OF_LLAMA4,)),
    dino_case("dinov3_vit", "DINOv3ViTRopePositionEmbedding", "DINOv3ViT", rope_theta=30.0),
    dino_case("sapiens2", "Sapiens2RopePositionEmbedding", "Sapiens2", rope_theta=30.0),
    dino_case("eomt_dinov3", "EomtDinov3RotaryEmbedding", "EomtDinov3", rope_parameters=BASE_30),
    case("efficientloftr", "EfficientLoFTRRotaryEmbedding", loftr, "EfficientLoFTR",
         {}, {"rope_parameters": LOFTR}, width=lambda config: config.hidden_size, positions=(OF_LOFTR,)),
    case("esmfold2", "EsmFold2RotaryEmbedding", atoms, "EsmFold2", {}, {"atom_encoder": ATOMS},
         paths=("atom_encoder", "structure_head.diffusion_module.atom_encoder"), positions=(OF_ATOMS,)),
    case("clvp", "ClvpRotaryPositionalEmbedding", clvp, "Clvp",
         {}, {"text_config": CLVP}, {"text_config": {"use_rotary_embedding": False}},
         paths=("text", "speech"), positions=(LINE,)),
    conformer_case("wav2vec2_bert", "Wav2Vec2Bert", "Wav2Vec2Bert"),
    conformer_case("wav2vec2_conformer", "Wav2Vec2Conformer", "Wav2Vec2Conformer"),
    conformer_case("seamless_m4t", "SeamlessM4TConformer", "SeamlessM4T", "speech_encoder_attention_heads"),
    gptj_case("codegen", "CodeGen"),
    gptj_case("gptj", "GPTJ"),
    Case("musicflamingo", "MusicFlamingoRotaryEmbedding", flamingo_probes),
    Case("hunyuan_vl", "HunYuanVLRotaryEmbedding", status=NO_ROTATION.format("coordinates")),
    Case("vjepa2", "VJEPA2RopeAttention", status=NO_ROTATION.format("frequencies")),
]  # fmt: skip


# A model whose code has no rotary class


def roformer(config, pos):
    owner = modeling("roformer")
    rows = owner.RoFormerSinusoidalPositionalEmbedding(int(pos.max()) + 1, head_width(config)).create_weight()
    rotate = owner.RoFormerSelfAttention.apply_rotary_position_embeddings
    sin, cos = rows[pos].chunk(2, dim=-1)
    return theirs(together(partial(rotate, rows[pos])), None, cos, sin)


def functions():
    """Return probes of RoFormer, with the default width and another."""
    values = {"hidden_size": 96, "num_attention_heads": 4}
    return case("roformer", "", roformer, "RoFormer", {}, values, positions=(LINE, 7 * LINE[::-1])).probes()
