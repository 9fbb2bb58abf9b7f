"""Configs of diffusers' transformers against that library's own rotary classes, at real grids.

Each class is made from its config up to its rotary module. The library's own formula rotates by this module's
tables; the rope that is read from the config must give the same.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
from pathlib import Path

import diffusers.models.transformers as transformers_package
import numpy as np
import pytest
import torch
from diffusers.configuration_utils import ConfigMixin
from diffusers.models import embeddings

import rope_array as ra
from rope_array._config import _diffusers
from rope_array.config import ConfigError, read

PACKAGE = "diffusers.models.transformers"
T, H, W = 3, 4, 6


def model_classes():
    """Return the model classes of diffusers.models.transformers by name."""
    found = {}
    for module in pkgutil.iter_modules(transformers_package.__path__):
        loaded = importlib.import_module(f"{PACKAGE}.{module.name}")
        for name, each in vars(loaded).items():
            if inspect.isclass(each) and issubclass(each, ConfigMixin) and each.__module__ == loaded.__name__:
                found[name] = each
    return found


CLASSES = model_classes()


def config_of(name, **changes):
    """Return a class's config.json: its defaults, changed, as JSON writes them."""
    parameters = inspect.signature(CLASSES[name].__init__).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    return json.loads(json.dumps({"_class_name": name, **defaults, **changes}))


class Found(Exception):
    """Carries the rotary module out of a model's __init__."""


def rotary(name, rotary_class, config):
    """Return the rotary module that a class makes from its config; the rest of the model has no memory."""
    module = inspect.getmodule(CLASSES[name])
    original = getattr(module, rotary_class)

    def stop(*args, **options):
        with torch.device("cpu"):
            raise Found(original(*args, **options))

    options = {key: value for key, value in config.items() if key != "_class_name"}
    with pytest.MonkeyPatch.context() as patch, torch.device("meta"):
        patch.setattr(module, rotary_class, stop)
        with pytest.raises(Found) as caught:
            CLASSES[name](**options)
    return caught.value.args[0]


def grid(*sizes):
    """Return the numbers of all cells of a grid, (cells, axes)."""
    return np.stack(np.meshgrid(*[np.arange(n) for n in sizes], indexing="ij"), -1).reshape(-1, len(sizes))


def latents(*sizes):
    return torch.zeros(1, 16, *sizes)


# Rotations: by tables of the library, of x with the shape (tokens, features)


def by_real(x, tables, dim=-1):
    """Rotate by diffusers' apply_rotary_emb; dim -1 pairs neighbours, -2 halves."""
    cos, sin = (table.reshape(len(x), -1) for table in tables)
    return embeddings.apply_rotary_emb(x[None, None], (cos, sin), use_real_unbind_dim=dim)[0, 0]


def by_halves(x, tables):
    return by_real(x, tables, -2)


def by_complex(x, table):
    return embeddings.apply_rotary_emb(x[None, :, None], table.reshape(1, len(x), -1), use_real=False)[
        0, :, 0
    ]


def by_wan(x, tables):
    """Rotate as WanAttnProcessor does: cos of the even columns, sin of the odd ones."""
    cos, sin = (table.reshape(len(x), -1) for table in tables)
    return by_real(x, (cos[:, 0::2].repeat_interleave(2, 1), sin[:, 1::2].repeat_interleave(2, 1)))


def by_matrices(x, matrices):
    """Rotate by 2x2 matrices, the last axes of the table, as the models of Kandinsky, PRX and HiDream do."""
    matrices = matrices.reshape(len(x), -1, 2, 2)
    return (matrices * x.reshape(len(x), -1, 1, 2)).sum(-1).reshape(x.shape)


def partly(x, rotate, width):
    return torch.cat([rotate(x[:, :width]), x[:, width:]], 1)


# Cases: from the class's name to (config, positions, rotate)

IDS = np.concatenate([np.zeros((5, 3), int), grid(1, H, W) + np.array([2, 0, 0])])
FOUR_IDS = np.concatenate([grid(1, 1, 1, 5), grid(2, H, W, 1)])


def of_ids(name, rotary_class, ids=IDS, **changes):
    """Return the case of a class whose rotary module takes ids, and returns cos and sin."""
    config = config_of(name, **changes)
    tables = rotary(name, rotary_class, config)(torch.tensor(ids, dtype=torch.float32))
    return config, ids, lambda x: by_real(x, tables)


def of_matrices(name, rotary_class, ids=IDS, **changes):
    config = config_of(name, **changes)
    table = rotary(name, rotary_class, config)(torch.tensor(ids, dtype=torch.float32)[None])
    return config, ids, lambda x: by_matrices(x, table)


def of_latents(name, rotary_class, rotate=by_real, sizes=(T, H, W), patch=(1, 1, 1), places=None, **changes):
    """Return the case of a class whose rotary module takes the latents."""
    config = config_of(name, **changes)
    shape = [n * p for n, p in zip(sizes, patch, strict=True)]
    tables = rotary(name, rotary_class, config)(latents(*shape))
    return config, grid(*sizes) if places is None else places, lambda x: rotate(x, tables)


def of_table(name, rotary_class):
    """Return the case of a class whose rotary module indexes tables of complex numbers by ids."""
    config = config_of(name)
    table = rotary(name, rotary_class, config)(torch.tensor(IDS))
    return config, IDS, lambda x: by_complex(x, table)


def of_qwen(name, rotary_class):
    config = config_of(name)
    image, text = rotary(name, rotary_class, config)(
        [(1, H, W)], max_txt_seq_len=5, device=torch.device("cpu")
    )
    centred = grid(1, H, W) - [0, H - H // 2, W - W // 2]
    words = max(H // 2, W // 2) + np.arange(5)[:, None].repeat(3, 1)
    table = torch.cat([text, image])
    return config, np.concatenate([words, centred]), lambda x: by_complex(x, table)


def qwen21():
    name = "QwenImage21Transformer2DModel"
    config = config_of(name)
    mask = torch.tensor([False] * 5 + [True] * (H * W) + [False] * 2)
    table = rotary(name, "QwenImage21Rope", config)([(1, H, W)], mask, torch.device("cpu"))
    centred = grid(1, H, W) - [0, H - H // 2, W - W // 2] + [5, 0, 0]
    words = np.array([0, 1, 2, 3, 4, 5 + max(H, W), 6 + max(H, W)])[:, None].repeat(3, 1)
    return config, np.concatenate([words[:5], centred, words[5:]]), lambda x: by_complex(x, table)


def framepack():
    name = "HunyuanVideoFramepackTransformer3DModel"
    config = config_of(name)
    frames = torch.tensor([0, 4, 9])
    tables = rotary(name, "HunyuanVideoFramepackRotaryPosEmbed", config)(frames, 2 * H, 2 * W, "cpu")
    places = grid(T, H, W)
    places[:, 0] = frames.numpy()[places[:, 0]]
    return config, places, lambda x: by_real(x, tables)


def helios():
    name = "HeliosTransformer3DModel"
    config = config_of(name)
    table = rotary(name, "HeliosRotaryPosEmbed", config)(torch.arange(T)[None], H, W, "cpu")
    cos, sin = table.flatten(2).transpose(1, 2)[0].chunk(2, -1)
    return config, grid(T, H, W), lambda x: by_wan(x, (cos, sin))


def lumina2():
    name = "Lumina2Transformer2DModel"
    config = config_of(name)
    table = rotary(name, "Lumina2RotaryPosEmbed", config)(
        latents(2 * H, 2 * W), torch.ones(1, 5, dtype=torch.int64)
    )[3]
    text = np.arange(5)[:, None] * [1, 0, 0]
    return config, np.concatenate([text, grid(1, H, W) + np.array([5, 0, 0])]), lambda x: by_complex(x, table)


def of_anyflow(name, rotary_class):
    config = config_of(name)
    module = rotary(name, rotary_class, config)
    table = module._forward_full_frame(T, H, W, torch.device("cpu"))
    return config, grid(T, H, W), lambda x: by_complex(x, table)


def sana_wm():
    config = config_of("SanaWMTransformer3DModel")
    module = rotary("SanaWMTransformer3DModel", "SanaWMRotaryPosEmbed", config)
    table = module((T, H, W), "cpu")
    return config, grid(T, H, W), lambda x: by_complex(x, table)


def wan_animate2():
    from diffusers.models.transformers import transformer_wan_animate_2 as module

    config = config_of("WanAnimate2Transformer3DModel")
    d = config["dim"] // config["num_heads"]
    widths = (d - 4 * (d // 6), 2 * (d // 6), 2 * (d // 6))  # _rope_freqs of the class
    table = torch.cat([module.rope_params(512, width) for width in widths], 1)
    sizes = torch.tensor([[T, H, W]])
    return config, grid(T, H, W), lambda x: module.rope_apply(x[None, :, None], sizes, table)[0, :, 0]


def chronoedit():
    places = grid(2, H, W) * [7, 1, 1]
    name = "ChronoEditTransformer3DModel"
    return of_latents(name, "ChronoEditRotaryPosEmbed", by_wan, (2, H, W), (1, 2, 2), places)


def cogvideo(name="CogVideoXTransformer3DModel"):
    """Return the case of the tables that the pipeline of CogVideoX 1.0 makes: fractions of a base grid."""
    config = config_of(name, use_rotary_positional_embeddings=True)
    tables = embeddings.get_3d_rotary_pos_embed(config["attention_head_dim"], ((0, 1), (30, 44)), (H, W), T)
    places = grid(T, H, W) * [1, 30 / H, 43 / W] + [0, 0, 1]
    places[:, 2] = (1 + np.arange(W) * (44 * (W - 1) / W - 1) / (W - 1))[grid(T, H, W)[:, 2]]
    return config, places, lambda x: by_real(x, tables)


def easyanimate():
    name = "EasyAnimateTransformer3DModel"
    config = config_of(name, patch_size=2)
    tables = rotary(name, "EasyAnimateRotaryPosEmbed", config)(latents(T, 60, 90))
    return config, grid(T, 30, 45), lambda x: by_real(x, tables)


def hunyuan_dit():
    config = config_of("HunyuanDiT2DModel")
    tables = embeddings.get_2d_rotary_pos_embed(config["attention_head_dim"], ((0, 0), (8, 8)), (H, W))
    return config, grid(H, W) * [8 / H, 8 / W], lambda x: by_real(x, tables)


def lumina_next():
    config = config_of("LuminaNextDiT2DModel")
    head = config["hidden_size"] // config["num_attention_heads"]
    table = embeddings.get_2d_rotary_pos_embed_lumina(head, H, W, linear_factor=2.0)
    return config, grid(H, W) / 2, lambda x: by_complex(x, table)


def joy(name="JoyImageEditTransformer3DModel"):
    config = config_of(name)
    fields = {key: config[key] for key in ("hidden_size", "num_attention_heads", "rope_dim_list", "theta")}
    model = type("Model", (), fields)()
    (cos, sin), (text_cos, text_sin) = CLASSES["JoyImageEditTransformer3DModel"].get_rotary_pos_embed(
        model, [T, H, W], 3
    )
    words = W + np.arange(3)[:, None].repeat(3, 1)
    tables = torch.cat([cos, text_cos]), torch.cat([sin, text_sin])
    return config, np.concatenate([grid(T, H, W), words]), lambda x: by_real(x, tables)


def of_kandinsky(name, rotary_class, scale):
    config = config_of(name)
    module = rotary(name, rotary_class, config)
    axes = [torch.arange(n) for n in (T, H, W)]
    table = module(*([(1, T, H, W)] if name.startswith("Kandinsky5") else []), axes, scale)
    return config, grid(T, H, W) / np.array(scale), lambda x: by_matrices(x, table)


def of_kandinsky_text(name, rotary_class, part="text", **changes):
    config = config_of(name, **changes)
    widths = config.get("axes_dims_a") if part == "audio" else None
    scaling = {"freqs_scaling": config["audio_freqs_scaling"]} if part == "audio" else {}
    original = getattr(inspect.getmodule(CLASSES[name]), rotary_class)
    table = original(sum(widths or config["axes_dims"]), **scaling)(torch.arange(7))
    return config, np.arange(7), lambda x: by_matrices(x, table), part


def ltx():
    """Return the case of all heads together, with positions 2g - 1."""
    name = "LTXVideoTransformer3DModel"
    config = config_of(name)
    scale = (0.3, 32, 32)
    tables = rotary(name, "LTXVideoRotaryPosEmbed", config)(latents(1), T, H, W, scale)
    fractions = grid(T, H, W) * np.array(scale) / [20, 2048, 2048]
    return config, 2 * fractions - 1, lambda x: by_real(x, tables)


def of_ltx2(kind, part=None, name="LTX2VideoTransformer3DModel"):
    config = config_of(name, rope_type=kind)
    source = inspect.getmodule(CLASSES[name])
    prefix = "audio_" if part else ""
    heads, size = config[f"{prefix}num_attention_heads"], config[f"{prefix}attention_head_dim"]
    options = {"modality": part or "video", "rope_type": kind, "num_attention_heads": heads}
    rotary_class = next(c for n, c in vars(source).items() if n.endswith("AudioVideoRotaryPosEmbed"))
    module = rotary_class(heads * size, **options)
    coordinates = module.prepare_coords(1, T, *([] if part else [H, W]), device="cpu")
    tables = module(coordinates)
    middle = coordinates.double().mean(-1)[0].T.numpy()
    fractions = middle / np.array([20.0] if part else [20.0, 2048.0, 2048.0])

    def rotate(x):
        if kind == "interleaved":
            return source.apply_interleaved_rotary_emb(x[None], tables)[0]
        return source.apply_split_rotary_emb(x[None], tables)[0]

    return config, 2 * fractions - 1, rotate, part


def allegro():
    config = config_of("AllegroTransformer3DModel")
    scale = tuple(config[f"interpolation_scale_{axis}"] for axis in "thw")
    *tables, _, _, _ = embeddings.get_3d_rotary_pos_embed_allegro(
        config["attention_head_dim"], ((0, 0), (H, W)), (H, W), T, scale
    )
    places = [torch.tensor(each)[None] for each in grid(T, H, W).T]

    def rotate(x):
        return embeddings.apply_rotary_emb_allegro(x[None, None], tables, places)[0, 0]

    return config, grid(T, H, W) / np.array(scale), rotate


def of_sections(name, rotary_class, **changes):
    """Return the case of Qwen3-VL's map, at coordinates that differ."""
    config = config_of(name, **changes)
    places = grid(T, H, W) + np.array([5, 0, 0])
    module, ids = rotary(name, rotary_class, config), torch.tensor(places)
    tables = module(ids[None]) if "Ideogram" in name else module(ids.T[:, None], "cpu", torch.float32)
    return config, places, lambda x: by_halves(x, tables)


def cogview4():
    name = "CogView4Transformer2DModel"
    config = config_of(name)
    tables = rotary(name, "CogView4RotaryPosEmbed", config)(latents(2 * H, 2 * W))
    return config, grid(H, W) * 256 // np.array([H, W]), lambda x: by_halves(x, tables)


def cosmos():
    name = "CosmosTransformer3DModel"
    config = config_of(name)
    tables = rotary(name, "CosmosRotaryPosEmbed", config)(latents(T, 2 * H, 2 * W), fps=16)
    return config, grid(T, H, W) * [24 / 16, 1, 1], lambda x: by_halves(x, tables)


def minimax_h3():
    name = "MiniMaxH3Transformer3DModel"
    config = config_of(name)
    ids = torch.tensor(grid(T, H, W))
    cos, sin = rotary(name, "MiniMaxH3RotaryPosEmbed", config)(ids)
    return config, grid(T, H, W), lambda x: partly(x, lambda y: by_halves(y, (cos, sin)), cos.shape[-1])


def omnigen(length):
    name = "OmniGenTransformer2DModel"
    pairs = 48
    lists = {f"{key}_factor": [1 + i / by for i in range(pairs)] for key, by in (("short", 9), ("long", 2))}
    config = config_of(name, rope_scaling={"type": "su", **lists})
    positions = np.arange(length - 7, length)
    tables = rotary(name, "OmniGenSuScaledRotaryEmbedding", config)(
        torch.zeros(1), torch.tensor(positions)[None]
    )
    return config, positions, lambda x: by_halves(x, tables), None, length


def of_line(name, width, tables, rotated=None, **changes):
    """Return the case of a model with one position for each token."""
    config = config_of(name, **changes)
    return config, np.arange(7), lambda x: partly(x, lambda y: by_halves(y, tables), rotated or width)


def line(width, theta=1e4):
    return embeddings.get_1d_rotary_pos_embed(
        width, np.arange(7), theta, use_real=True, repeat_interleave_real=False
    )


def stable_audio3():
    name = "StableAudio3DiTModel"
    config = config_of(name)
    angles = rotary(name, "StableAudio3RotaryEmbedding", config)(7, "cpu")
    module = inspect.getmodule(CLASSES[name])
    return config, np.arange(7), lambda x: module._apply_rotary_partial(x[None, :, None], angles)[0, :, 0]


def of_module(name, rotary_class, *arguments):
    config = config_of(name)
    cos, sin = rotary(name, rotary_class, config)(*arguments)
    return config, np.arange(7), lambda x: partly(x, lambda y: by_halves(y, (cos, sin)), cos.shape[-1])


WAN = {"patch": (1, 2, 2), "rotate": by_wan}
CASES = {
    "FluxTransformer2DModel": lambda: of_ids("FluxTransformer2DModel", "FluxPosEmbed"),
    "ChromaTransformer2DModel": lambda: of_ids("ChromaTransformer2DModel", "FluxPosEmbed"),
    "LongCatImageTransformer2DModel": lambda: of_ids(
        "LongCatImageTransformer2DModel", "LongCatImagePosEmbed"
    ),
    "OvisImageTransformer2DModel": lambda: of_ids("OvisImageTransformer2DModel", "OvisImagePosEmbed"),
    "BriaTransformer2DModel": lambda: of_ids("BriaTransformer2DModel", "BriaEmbedND", rope_theta=5000),
    "BriaFiboTransformer2DModel": lambda: of_ids("BriaFiboTransformer2DModel", "BriaFiboEmbedND"),
    "Flux2Transformer2DModel": lambda: of_ids("Flux2Transformer2DModel", "Flux2PosEmbed", FOUR_IDS),
    "Flux3Transformer2DModel": lambda: of_ids("Flux3Transformer2DModel", "Flux3PosEmbed", FOUR_IDS),
    "Krea2Transformer2DModel": lambda: of_ids("Krea2Transformer2DModel", "Krea2RotaryPosEmbed"),
    "HiDreamImageTransformer2DModel": lambda: of_matrices(
        "HiDreamImageTransformer2DModel", "HiDreamImageEmbedND", axes_dims_rope=[64, 32, 32], patch_size=2
    ),
    "PRXTransformer2DModel": lambda: of_matrices(
        "PRXTransformer2DModel", "PRXEmbedND", grid(H, W), axes_dim=[32, 32]
    ),
    "QwenImageTransformer2DModel": lambda: of_qwen("QwenImageTransformer2DModel", "QwenEmbedRope"),
    "NucleusMoEImageTransformer2DModel": lambda: of_qwen(
        "NucleusMoEImageTransformer2DModel", "NucleusMoEEmbedRope"
    ),
    "QwenImage21Transformer2DModel": qwen21,
    "HunyuanVideoTransformer3DModel": lambda: of_latents(
        "HunyuanVideoTransformer3DModel", "HunyuanVideoRotaryPosEmbed", patch=(1, 2, 2)
    ),
    "HunyuanVideo15Transformer3DModel": lambda: of_latents(
        "HunyuanVideo15Transformer3DModel", "HunyuanVideo15RotaryPosEmbed"
    ),
    "HunyuanVideoFramepackTransformer3DModel": framepack,
    "HunyuanImageTransformer2DModel": lambda: of_latents(
        "HunyuanImageTransformer2DModel", "HunyuanImageRotaryPosEmbed", sizes=(H, W), patch=(1, 1)
    ),
    "MotifVideoTransformer3DModel": lambda: of_latents(
        "MotifVideoTransformer3DModel", "MotifVideoRotaryPosEmbed", patch=(1, 2, 2)
    ),
    "HeliosTransformer3DModel": helios,
    "JoyImageEditTransformer3DModel": joy,
    "JoyImageEditPlusTransformer3DModel": lambda: joy("JoyImageEditPlusTransformer3DModel"),
    "Lumina2Transformer2DModel": lumina2,
    "ZImageTransformer2DModel": lambda: of_table("ZImageTransformer2DModel", "RopeEmbedder"),
    "BriaFibo2Transformer2DModel": lambda: of_table("BriaFibo2Transformer2DModel", "RopeEmbedder"),
    "WanTransformer3DModel": lambda: of_latents("WanTransformer3DModel", "WanRotaryPosEmbed", **WAN),
    "WanVACETransformer3DModel": lambda: of_latents("WanVACETransformer3DModel", "WanRotaryPosEmbed", **WAN),
    "WanAnimateTransformer3DModel": lambda: of_latents(
        "WanAnimateTransformer3DModel", "WanRotaryPosEmbed", **WAN
    ),
    "SkyReelsV2Transformer3DModel": lambda: of_latents(
        "SkyReelsV2Transformer3DModel", "SkyReelsV2RotaryPosEmbed", **WAN
    ),
    "SanaVideoTransformer3DModel": lambda: of_latents(
        "SanaVideoTransformer3DModel", "WanRotaryPosEmbed", **WAN
    ),
    "ChronoEditTransformer3DModel": chronoedit,
    "AnyFlowTransformer3DModel": lambda: of_anyflow("AnyFlowTransformer3DModel", "AnyFlowRotaryPosEmbed"),
    "AnyFlowFARTransformer3DModel": lambda: of_anyflow(
        "AnyFlowFARTransformer3DModel", "AnyFlowCausalRotaryPosEmbed"
    ),
    "SanaWMTransformer3DModel": sana_wm,
    "WanAnimate2Transformer3DModel": wan_animate2,
    "CogVideoXTransformer3DModel": cogvideo,
    "ConsisIDTransformer3DModel": lambda: cogvideo("ConsisIDTransformer3DModel"),
    "EasyAnimateTransformer3DModel": easyanimate,
    "HunyuanDiT2DModel": hunyuan_dit,
    "LuminaNextDiT2DModel": lumina_next,
    "Kandinsky5Transformer3DModel": lambda: of_kandinsky(
        "Kandinsky5Transformer3DModel", "Kandinsky5RoPE3D", (1.0, 2.0, 4.0)
    ),
    "Kandinsky5Transformer3DModel, text": lambda: of_kandinsky_text(
        "Kandinsky5Transformer3DModel", "Kandinsky5RoPE1D"
    ),
    "Kandinsky6Transformer3DModel": lambda: of_kandinsky(
        "Kandinsky6Transformer3DModel", "Kandinsky6RoPE3D", (1.0, 2.0, 2.0)
    ),
    "Kandinsky6Transformer3DModel, audio": lambda: of_kandinsky_text(
        "Kandinsky6Transformer3DModel",
        "Kandinsky6RoPE1D",
        "audio",
        axes_dims_a=[16, 24, 24],
        audio_freqs_scaling=0.5,
    ),
    "Kandinsky6SRTransformer3DModel": lambda: of_kandinsky(
        "Kandinsky6SRTransformer3DModel", "Kandinsky6SRRoPE3D", (1.0, 2.0, 2.0)
    ),
    "LTXVideoTransformer3DModel": ltx,
    "LTX2VideoTransformer3DModel": lambda: of_ltx2("interleaved"),
    "LTX2VideoTransformer3DModel, split": lambda: of_ltx2("split"),
    "LTX2VideoTransformer3DModel, audio": lambda: of_ltx2("split", "audio"),
    "SanaWMLTX2RefinerTransformer3DModel": lambda: of_ltx2(
        "split", name="SanaWMLTX2RefinerTransformer3DModel"
    ),
    "CosmosTransformer3DModel": cosmos,
    "Cosmos3OmniTransformer": lambda: of_sections("Cosmos3OmniTransformer", "Cosmos3VLTextRotaryEmbedding"),
    "Cosmos3OmniTransformer, stated": lambda: of_sections(
        "Cosmos3OmniTransformer",
        "Cosmos3VLTextRotaryEmbedding",
        rope_scaling={"rope_type": "default", "mrope_section": [20, 22, 22], "mrope_interleaved": True},
    ),
    "Ideogram4Transformer2DModel": lambda: of_sections("Ideogram4Transformer2DModel", "Ideogram4MRoPE"),
    "CogView4Transformer2DModel": cogview4,
    "GlmImageTransformer2DModel": lambda: of_latents(
        "GlmImageTransformer2DModel", "GlmImageRotaryPosEmbed", by_halves, (H, W), (2, 2)
    ),
    "AllegroTransformer3DModel": allegro,
    "MiniMaxH3Transformer3DModel": minimax_h3,
    "OmniGenTransformer2DModel": lambda: omnigen(4000),
    "OmniGenTransformer2DModel, long": lambda: omnigen(5000),
    "AceStepTransformer1DModel": lambda: of_line("AceStepTransformer1DModel", 128, line(128, 1e6)),
    "LongCatAudioDiTTransformer": lambda: of_module(
        "LongCatAudioDiTTransformer", "AudioDiTRotaryEmbedding", torch.zeros(1, 7)
    ),
    "StableAudioDiTModel": lambda: of_line("StableAudioDiTModel", 64, line(32), 32),
    "StableAudio3DiTModel": stable_audio3,
    "MiniMaxMusic3Transformer1DModel": lambda: of_module(
        "MiniMaxMusic3Transformer1DModel", "MiniMaxMusic3RotaryEmbedding", 7, torch.device("cpu")
    ),
}


@pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated")
@pytest.mark.parametrize("case", CASES)
def test_a_rope_rotates_as_the_library_does(case):
    config, positions, rotate, *more = CASES[case]()
    part, length = (*more, None, None)[:2]
    reading = read(config, part=part)
    rope = reading.rope if length is None else reading.rope.at_length(length)
    generator = np.random.default_rng(7)
    x = generator.standard_normal((len(positions), rope.head_dim))
    ours = rope.apply(x, np.asarray(positions, np.float64))
    theirs = rotate(torch.tensor(x, dtype=torch.float32)).double().numpy()
    # The library computes angles in float32: errors of 6e-8 of the largest angle, here up to 16,000 (LTX).
    largest = max(map(abs, rope.frequencies)) * max(1.0, np.abs(positions).max())
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 + 8e-7 * largest)
    assert np.abs(ours - x).max() > 0.5
    assert (reading.inferred["format"], reading.model_type) == ("diffusers", config["_class_name"])


def test_every_class_is_known():
    cases = {case.split(",")[0] for case in CASES}
    assert cases == set(_diffusers._ROWS)
    assert {*_diffusers._ROWS, *_diffusers._NO_ROTATION, *_diffusers._NOT_STATED} == set(CLASSES)


@pytest.mark.parametrize("name", sorted(_diffusers._ROWS))
def test_defaults_are_those_of_the_class(name):
    """A config of an older version may lack a key: the class's own default has its place."""
    own = config_of(name)
    defaults = json.loads(json.dumps(_diffusers.read({"_class_name": name})["defaults"]))
    compared = {k: v for k, v in defaults.items() if v is not None and own.get(k) is not None}
    assert compared == {key: own[key] for key in compared}


def test_the_docs_count_the_classes():
    page = (Path(__file__).parents[2] / "docs" / "configs.md").read_text(encoding="utf-8")
    kinds = (_diffusers._ROWS, _diffusers._NO_ROTATION, _diffusers._NOT_STATED)
    read_, none, refused = map(len, kinds)
    assert f"{read_} classes that rotate, {none} that do not, and {refused} that are refused" in page


@pytest.mark.parametrize("name", sorted(_diffusers._NO_ROTATION))
def test_a_model_without_rotation_has_an_identity(name):
    reading = read(config_of(name))
    assert reading.rope.rotary_dim == 0
    assert any(note.endswith(": no rotation") for note in reading.notes)
    source = inspect.getsource(inspect.getmodule(CLASSES[name])).lower()
    assert not re.search(r"rotary|\brope|rope_|rope\b", source)


@pytest.mark.parametrize("name", sorted(_diffusers._NOT_STATED))
def test_a_model_that_no_rope_states_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name}: .* RoPE cannot state it"):
        read(config_of(name))


@pytest.mark.filterwarnings("ignore:In CPU autocast")
def test_mochi_mixes_the_coordinates_in_each_pair():
    """Show the reason of the refusal: all of a pair's frequencies, one for each coordinate, are learned."""
    from diffusers.models.transformers.transformer_mochi import MochiRoPE

    frequencies = torch.ones(3, 2, 5)  # coordinates, heads, pairs
    cos, _ = MochiRoPE()(frequencies, T, 4, 4, dtype=torch.float32)
    t, h, w = MochiRoPE()._get_positions(T, 4, 4, dtype=torch.float32).T
    torch.testing.assert_close(cos[:, 0, 0], torch.cos(t + h + w))


def test_ernie_image_rotates_no_pairs():
    """Show the reason of the refusal: the two features that it combines have different angles."""
    module = importlib.import_module(f"{PACKAGE}.transformer_ernie_image")
    angles = module.ErnieImageEmbedND3(128, 256, (32, 48, 48))(torch.ones(1, 1, 3))[0, 0, 0]
    assert not torch.allclose(angles[:64], angles[64:])


def test_a_model_object_is_read():
    model = CLASSES["FluxTransformer2DModel"](
        num_layers=1,
        num_single_layers=0,
        attention_head_dim=16,
        num_attention_heads=2,
        axes_dims_rope=(4, 6, 6),
        joint_attention_dim=8,
        pooled_projection_dim=8,
    )
    assert ra.RoPE.from_config(model) == ra.RoPE(16, axes=ra.Axes.axial(4, 6, 6))


def test_an_index_of_a_pipeline_and_an_unknown_class_are_refused():
    index = {"_class_name": "FluxPipeline", "transformer": ["diffusers", "FluxTransformer2DModel"]}
    with pytest.raises(ConfigError, match="folder 'transformer'"):
        read(index)
    with pytest.raises(ConfigError, match="'AutoencoderKL', which is no transformer of diffusers"):
        read({"_class_name": "AutoencoderKL", "latent_channels": 4})
