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
from rope_array import ConfigError
from rope_array._config import _diffusers
from rope_array.config import read

PACKAGE = "diffusers.models.transformers"
T, H, W = 3, 4, 6


def model_classes():
    """Return the model classes of diffusers.models.transformers by name."""
    classes = {}
    for module in pkgutil.iter_modules(transformers_package.__path__):
        loaded = importlib.import_module(f"{PACKAGE}.{module.name}")
        for name, cls in vars(loaded).items():
            if inspect.isclass(cls) and issubclass(cls, ConfigMixin) and cls.__module__ == loaded.__name__:
                classes[name] = cls
    return classes


CLASSES = model_classes()
TABLE = _diffusers.table()


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
    table = table.reshape(1, len(x), -1)
    return embeddings.apply_rotary_emb(x[None, :, None], table, use_real=False)[0, :, 0]


def by_wan(x, tables):
    """Rotate as WanAttnProcessor does: cos of the even columns, sin of the odd ones."""
    cos, sin = (table.reshape(len(x), -1) for table in tables)
    return by_real(x, (cos[:, 0::2].repeat_interleave(2, 1), sin[:, 1::2].repeat_interleave(2, 1)))


def by_matrices(x, matrices):
    """Rotate by 2x2 matrices, the last axes of the table, as the models of Kandinsky, PRX and HiDream do."""
    matrices = matrices.reshape(len(x), -1, 2, 2)
    return (matrices * x.reshape(len(x), -1, 1, 2)).sum(-1).reshape(x.shape)


def by_part(x, tables):
    """Rotate the first features, as many as the tables have."""
    width = tables[0].shape[-1]
    return torch.cat([by_halves(x[:, :width], tables), x[:, width:]], 1)


def by_helios(x, table):
    return by_wan(x, table.flatten(2).transpose(1, 2)[0].chunk(2, -1))


# Cases: from the class's name to (config, positions, rotate)

IDS = np.concatenate([np.zeros((5, 3), int), grid(1, H, W) + np.array([2, 0, 0])])
FOUR_IDS = np.concatenate([grid(1, 1, 1, 5), grid(2, H, W, 1)])
CENTRED = grid(1, H, W) - [0, H - H // 2, W - W // 2]
GRID, LINE = grid(T, H, W), np.arange(7)
CPU = torch.device("cpu")


def case(make, *arguments, **options):
    """Return the case of a function of the class's name and more."""
    return lambda name: make(name, *arguments, **options)


def of_call(name, rotary_class, *arguments, places=GRID, rotate=by_real, **changes):
    """Return the case of a class whose rotary module takes the arguments."""
    config = config_of(name, **changes)
    tables = rotary(name, rotary_class, config)(*arguments)
    return config, places, lambda x: rotate(x, tables)


def of_ids(name, rotary_class, ids=IDS, rotate=by_real, dtype=torch.float32, **changes):
    """Return the case of a class whose rotary module takes ids."""
    tensor = torch.tensor(ids, dtype=dtype)
    tensor = tensor[None] if rotate in (by_matrices, by_halves) else tensor
    return of_call(name, rotary_class, tensor, places=ids, rotate=rotate, **changes)


def of_latents(name, rotary_class, rotate=by_real, sizes=(T, H, W), patch=(1, 1, 1), places=None, **changes):
    """Return the case of a class whose rotary module takes the latents."""
    shape = [n * p for n, p in zip(sizes, patch, strict=True)]
    places = grid(*sizes) if places is None else places
    return of_call(name, rotary_class, latents(*shape), places=places, rotate=rotate, **changes)


def words(first, count):
    """Return the positions of words, which have one number on each axis."""
    return (first + np.arange(count))[:, None].repeat(3, 1)


def of_qwen(name, rotary_class):
    config = config_of(name)
    image, text = rotary(name, rotary_class, config)([(1, H, W)], max_txt_seq_len=5, device=CPU)
    table = torch.cat([text, image])
    places = np.concatenate([words(max(H // 2, W // 2), 5), CENTRED])
    return config, places, lambda x: by_complex(x, table)


def qwen21(name):
    mask = torch.tensor([False] * 5 + [True] * (H * W) + [False] * 2)
    places = np.concatenate([words(0, 5), CENTRED + np.array([5, 0, 0]), words(5 + max(H, W), 2)])
    return of_call(name, "QwenImage21Rope", [(1, H, W)], mask, CPU, places=places, rotate=by_complex)


def framepack(name):
    frames, places = torch.tensor([0, 4, 9]), GRID.copy()
    places[:, 0] = frames.numpy()[places[:, 0]]
    return of_call(name, "HunyuanVideoFramepackRotaryPosEmbed", frames, 2 * H, 2 * W, "cpu", places=places)


def lumina2(name):
    mask = torch.ones(1, 5, dtype=torch.int64)
    places = np.concatenate([np.arange(5)[:, None] * [1, 0, 0], grid(1, H, W) + np.array([5, 0, 0])])
    rotate = lambda x, tables: by_complex(x, tables[3])  # noqa: E731
    return of_call(name, "Lumina2RotaryPosEmbed", latents(2 * H, 2 * W), mask, places=places, rotate=rotate)


def of_anyflow(name, rotary_class):
    config = config_of(name)
    table = rotary(name, rotary_class, config)._forward_full_frame(T, H, W, CPU)
    return config, GRID, lambda x: by_complex(x, table)


def wan_animate2(name):
    module, config = inspect.getmodule(CLASSES[name]), config_of(name)
    d = config["dim"] // config["num_heads"]
    widths = (d - 4 * (d // 6), 2 * (d // 6), 2 * (d // 6))  # _rope_freqs of the class
    table = torch.cat([module.rope_params(512, width) for width in widths], 1)
    sizes = torch.tensor([[T, H, W]])
    return config, GRID, lambda x: module.rope_apply(x[None, :, None], sizes, table)[0, :, 0]


def cogvideo(name):
    """Return the case of the tables that the pipeline of CogVideoX 1.0 makes: fractions of a base grid."""
    config = config_of(name, use_rotary_positional_embeddings=True)
    tables = embeddings.get_3d_rotary_pos_embed(config["attention_head_dim"], ((0, 1), (30, 44)), (H, W), T)
    places = GRID * [1, 30 / H, 43 / W] + [0, 0, 1]
    places[:, 2] = (1 + np.arange(W) * (44 * (W - 1) / W - 1) / (W - 1))[GRID[:, 2]]
    return config, places, lambda x: by_real(x, tables)


def hunyuan_dit(name):
    config = config_of(name)
    tables = embeddings.get_2d_rotary_pos_embed(config["attention_head_dim"], ((0, 0), (8, 8)), (H, W))
    return config, grid(H, W) * [8 / H, 8 / W], lambda x: by_real(x, tables)


def lumina_next(name):
    config = config_of(name)
    head = config["hidden_size"] // config["num_attention_heads"]
    table = embeddings.get_2d_rotary_pos_embed_lumina(head, H, W, linear_factor=2.0)
    return config, grid(H, W) / 2, lambda x: by_complex(x, table)


def joy(name):
    config = config_of(name)
    fields = {key: config[key] for key in ("hidden_size", "num_attention_heads", "rope_dim_list", "theta")}
    model = type("Model", (), fields)()
    image, text = CLASSES["JoyImageEditTransformer3DModel"].get_rotary_pos_embed(model, [T, H, W], 3)
    tables = [torch.cat(pair) for pair in zip(image, text, strict=True)]
    return config, np.concatenate([GRID, words(W, 3)]), lambda x: by_real(x, tables)


def of_kandinsky(name, rotary_class, scale):
    axes = [torch.arange(n) for n in (T, H, W)]
    shape = [(1, T, H, W)] if name.startswith("Kandinsky5") else []
    places = GRID / np.array(scale)
    return of_call(name, rotary_class, *shape, axes, scale, places=places, rotate=by_matrices)


def of_kandinsky_line(name, rotary_class, part, widths, **changes):
    config = config_of(name, **changes)
    scaling = {"freqs_scaling": config["audio_freqs_scaling"]} if part == "audio" else {}
    original = getattr(inspect.getmodule(CLASSES[name]), rotary_class)
    table = original(sum(config[widths]), **scaling)(torch.arange(7))
    return config, LINE, lambda x: by_matrices(x, table), part


def ltx(name):
    """Return the case of all heads together, with positions 2g - 1."""
    scale = (0.3, 32, 32)
    places = 2 * GRID * np.array(scale) / [20, 2048, 2048] - 1
    return of_call(name, "LTXVideoRotaryPosEmbed", latents(1), T, H, W, scale, places=places)


def of_ltx2(name, rope_type, part=None):
    config = config_of(name, rope_type=rope_type)
    source = inspect.getmodule(CLASSES[name])
    prefix = "audio_" if part else ""
    heads, size = config[f"{prefix}num_attention_heads"], config[f"{prefix}attention_head_dim"]
    options = {"modality": part or "video", "rope_type": rope_type, "num_attention_heads": heads}
    rotary_class = next(c for n, c in vars(source).items() if n.endswith("AudioVideoRotaryPosEmbed"))
    module = rotary_class(heads * size, **options)
    coordinates = module.prepare_coords(1, T, *([] if part else [H, W]), device="cpu")
    tables, middle = module(coordinates), coordinates.double().mean(-1)[0].T.numpy()
    fractions = middle / np.array([20.0] if part else [20.0, 2048.0, 2048.0])
    apply = (
        source.apply_interleaved_rotary_emb if rope_type == "interleaved" else source.apply_split_rotary_emb
    )
    return config, 2 * fractions - 1, lambda x: apply(x[None], tables)[0], part


def allegro(name):
    config = config_of(name)
    scale = tuple(config[f"interpolation_scale_{axis}"] for axis in "thw")
    head, crop = config["attention_head_dim"], ((0, 0), (H, W))
    *tables, _, _, _ = embeddings.get_3d_rotary_pos_embed_allegro(head, crop, (H, W), T, scale)
    places = [torch.tensor(column)[None] for column in GRID.T]
    apply = embeddings.apply_rotary_emb_allegro
    return config, GRID / np.array(scale), lambda x: apply(x[None, None], tables, places)[0, 0]


# Qwen3-VL's map, at coordinates that differ
MOVED = GRID + np.array([5, 0, 0])
OF_SECTIONS = {"places": MOVED, "rotate": by_halves}
COSMOS3 = ("Cosmos3VLTextRotaryEmbedding", torch.tensor(MOVED).T[:, None], "cpu", torch.float32)
SECTIONS = {"rope_type": "default", "mrope_section": [20, 22, 22], "mrope_interleaved": True}


def cosmos(name):
    config = config_of(name)
    tables = rotary(name, "CosmosRotaryPosEmbed", config)(latents(T, 2 * H, 2 * W), fps=16)
    return config, GRID * [24 / 16, 1, 1], lambda x: by_halves(x, tables)


def omnigen(name, length):
    lists = {f"{key}_factor": [1 + i / by for i in range(48)] for key, by in (("short", 9), ("long", 2))}
    options = {"places": np.arange(length - 7, length), "rotate": by_halves}
    ids = torch.tensor(options["places"])[None]
    rule = {"type": "su", **lists}
    rotation = of_call(
        name, "OmniGenSuScaledRotaryEmbedding", torch.zeros(1), ids, **options, rope_scaling=rule
    )
    return *rotation, None, length


def of_line(name, width, theta=1e4):
    """Return the case of a model with one position for each token."""
    tables = embeddings.get_1d_rotary_pos_embed(width, LINE, theta, True, repeat_interleave_real=False)
    return config_of(name), LINE, lambda x: by_part(x, tables)


def stable_audio3(name):
    apply = inspect.getmodule(CLASSES[name])._apply_rotary_partial
    rotate = lambda x, angles: apply(x[None, :, None], angles)[0, :, 0]  # noqa: E731
    return of_call(name, "StableAudio3RotaryEmbedding", 7, "cpu", places=LINE, rotate=rotate)


WAN, IMAGE = {"patch": (1, 2, 2), "rotate": by_wan}, {"sizes": (H, W), "patch": (1, 1)}
BY_MATRICES, BY_TABLE = {"rotate": by_matrices}, {"rotate": by_complex, "dtype": torch.int64}
ON_LINE = {"places": LINE, "rotate": by_part}
HELIOS = ("HeliosRotaryPosEmbed", torch.arange(T)[None], H, W, "cpu")
AUDIO = {"axes_dims_a": [16, 24, 24], "audio_freqs_scaling": 0.5}
HIDREAM = {"axes_dims_rope": [64, 32, 32], "patch_size": 2}
COGVIEW = {"places": grid(H, W) * 256 // np.array([H, W]), "rotate": by_halves}
EASY = {"places": grid(T, 30, 45), "patch_size": 2}
CASES = {
    "FluxTransformer2DModel": case(of_ids, "FluxPosEmbed"),
    "ChromaTransformer2DModel": case(of_ids, "FluxPosEmbed"),
    "LongCatImageTransformer2DModel": case(of_ids, "LongCatImagePosEmbed"),
    "OvisImageTransformer2DModel": case(of_ids, "OvisImagePosEmbed"),
    "BriaTransformer2DModel": case(of_ids, "BriaEmbedND", rope_theta=5000),
    "BriaFiboTransformer2DModel": case(of_ids, "BriaFiboEmbedND"),
    "Flux2Transformer2DModel": case(of_ids, "Flux2PosEmbed", FOUR_IDS),
    "Flux3Transformer2DModel": case(of_ids, "Flux3PosEmbed", FOUR_IDS),
    "Krea2Transformer2DModel": case(of_ids, "Krea2RotaryPosEmbed"),
    "HiDreamImageTransformer2DModel": case(of_ids, "HiDreamImageEmbedND", **BY_MATRICES, **HIDREAM),
    "PRXTransformer2DModel": case(of_ids, "PRXEmbedND", grid(H, W), **BY_MATRICES, axes_dim=[32, 32]),
    "QwenImageTransformer2DModel": case(of_qwen, "QwenEmbedRope"),
    "NucleusMoEImageTransformer2DModel": case(of_qwen, "NucleusMoEEmbedRope"),
    "QwenImage21Transformer2DModel": qwen21,
    "HunyuanVideoTransformer3DModel": case(of_latents, "HunyuanVideoRotaryPosEmbed", patch=(1, 2, 2)),
    "HunyuanVideo15Transformer3DModel": case(of_latents, "HunyuanVideo15RotaryPosEmbed"),
    "HunyuanVideoFramepackTransformer3DModel": framepack,
    "HunyuanImageTransformer2DModel": case(of_latents, "HunyuanImageRotaryPosEmbed", **IMAGE),
    "MotifVideoTransformer3DModel": case(of_latents, "MotifVideoRotaryPosEmbed", patch=(1, 2, 2)),
    "HeliosTransformer3DModel": case(of_call, *HELIOS, rotate=by_helios),
    "JoyImageEditTransformer3DModel": joy,
    "JoyImageEditPlusTransformer3DModel": joy,
    "Lumina2Transformer2DModel": lumina2,
    "ZImageTransformer2DModel": case(of_ids, "RopeEmbedder", **BY_TABLE),
    "BriaFibo2Transformer2DModel": case(of_ids, "RopeEmbedder", **BY_TABLE),
    "WanTransformer3DModel": case(of_latents, "WanRotaryPosEmbed", **WAN),
    "WanVACETransformer3DModel": case(of_latents, "WanRotaryPosEmbed", **WAN),
    "WanAnimateTransformer3DModel": case(of_latents, "WanRotaryPosEmbed", **WAN),
    "SkyReelsV2Transformer3DModel": case(of_latents, "SkyReelsV2RotaryPosEmbed", **WAN),
    "SanaVideoTransformer3DModel": case(of_latents, "WanRotaryPosEmbed", **WAN),
    "ChronoEditTransformer3DModel": case(
        of_latents, "ChronoEditRotaryPosEmbed", sizes=(2, H, W), places=grid(2, H, W) * [7, 1, 1], **WAN
    ),
    "AnyFlowTransformer3DModel": case(of_anyflow, "AnyFlowRotaryPosEmbed"),
    "AnyFlowFARTransformer3DModel": case(of_anyflow, "AnyFlowCausalRotaryPosEmbed"),
    "SanaWMTransformer3DModel": case(of_call, "SanaWMRotaryPosEmbed", (T, H, W), "cpu", rotate=by_complex),
    "WanAnimate2Transformer3DModel": wan_animate2,
    "CogVideoXTransformer3DModel": cogvideo,
    "ConsisIDTransformer3DModel": cogvideo,
    "EasyAnimateTransformer3DModel": case(of_call, "EasyAnimateRotaryPosEmbed", latents(T, 60, 90), **EASY),
    "HunyuanDiT2DModel": hunyuan_dit,
    "LuminaNextDiT2DModel": lumina_next,
    "Kandinsky5Transformer3DModel": case(of_kandinsky, "Kandinsky5RoPE3D", (1.0, 2.0, 4.0)),
    "Kandinsky5Transformer3DModel, text": case(of_kandinsky_line, "Kandinsky5RoPE1D", "text", "axes_dims"),
    "Kandinsky6Transformer3DModel": case(of_kandinsky, "Kandinsky6RoPE3D", (1.0, 2.0, 2.0)),
    "Kandinsky6Transformer3DModel, audio": case(
        of_kandinsky_line, "Kandinsky6RoPE1D", "audio", "axes_dims_a", **AUDIO
    ),
    "Kandinsky6SRTransformer3DModel": case(of_kandinsky, "Kandinsky6SRRoPE3D", (1.0, 2.0, 2.0)),
    "LTXVideoTransformer3DModel": ltx,
    "LTX2VideoTransformer3DModel": case(of_ltx2, "interleaved"),
    "LTX2VideoTransformer3DModel, split": case(of_ltx2, "split"),
    "LTX2VideoTransformer3DModel, audio": case(of_ltx2, "split", "audio"),
    "SanaWMLTX2RefinerTransformer3DModel": case(of_ltx2, "split"),
    "CosmosTransformer3DModel": cosmos,
    "Cosmos3OmniTransformer": case(of_call, *COSMOS3, **OF_SECTIONS),
    "Cosmos3OmniTransformer, stated": case(of_call, *COSMOS3, **OF_SECTIONS, rope_scaling=SECTIONS),
    "Ideogram4Transformer2DModel": case(of_ids, "Ideogram4MRoPE", MOVED, by_halves, torch.int64),
    "CogView4Transformer2DModel": case(of_call, "CogView4RotaryPosEmbed", latents(2 * H, 2 * W), **COGVIEW),
    "GlmImageTransformer2DModel": case(of_latents, "GlmImageRotaryPosEmbed", by_halves, (H, W), (2, 2)),
    "AllegroTransformer3DModel": allegro,
    "MiniMaxH3Transformer3DModel": case(of_ids, "MiniMaxH3RotaryPosEmbed", GRID, by_part, torch.int64),
    "OmniGenTransformer2DModel": case(omnigen, 4000),
    "OmniGenTransformer2DModel, long": case(omnigen, 5000),
    "AceStepTransformer1DModel": case(of_line, 128, 1e6),
    "LongCatAudioDiTTransformer": case(of_call, "AudioDiTRotaryEmbedding", torch.zeros(1, 7), **ON_LINE),
    "StableAudioDiTModel": case(of_line, 32),
    "StableAudio3DiTModel": stable_audio3,
    "MiniMaxMusic3Transformer1DModel": case(of_call, "MiniMaxMusic3RotaryEmbedding", 7, CPU, **ON_LINE),
}


@pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated")
@pytest.mark.parametrize("case", CASES)
def test_a_rope_rotates_as_the_library_does(case):
    config, positions, rotate, *more = CASES[case](case.split(",")[0])
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
    assert cases == set(TABLE["classes"])
    assert {*TABLE["classes"], *TABLE["unrotated"], *TABLE["refused"]} == set(CLASSES)


@pytest.mark.parametrize("name", sorted(TABLE["classes"]))
def test_defaults_are_those_of_the_class(name):
    """A config of an older version may lack a key: the class's own default has its place."""
    config = config_of(name)
    defaults = json.loads(json.dumps(_diffusers.read_diffusers({"_class_name": name}).defaults))
    compared = {k: v for k, v in defaults.items() if v is not None and config.get(k) is not None}
    assert compared == {key: config[key] for key in compared}


def test_the_docs_count_the_classes():
    page = (Path(__file__).parents[2] / "docs" / "configs.md").read_text(encoding="utf-8")
    read_, none, refused = (len(TABLE[section]) for section in ("classes", "unrotated", "refused"))
    assert f"{read_} classes that rotate, {none} that do not, and {refused} that are refused" in page


@pytest.mark.parametrize("name", sorted(TABLE["unrotated"]))
def test_a_model_without_rotation_has_an_identity(name):
    reading = read(config_of(name))
    assert reading.rope.rotary_dim == 0
    assert any(note.endswith(": no rotation") for note in reading.notes)
    source = inspect.getsource(inspect.getmodule(CLASSES[name])).lower()
    assert not re.search(r"rotary|\brope|rope_|rope\b", source)


@pytest.mark.parametrize("name", sorted(TABLE["refused"]))
def test_a_model_that_no_rope_states_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name}: .* RoPE has no field for it"):
        read(config_of(name))


def test_a_model_object_is_read():
    sizes = {"num_layers": 1, "num_single_layers": 0, "attention_head_dim": 16, "num_attention_heads": 2}
    sizes |= {"axes_dims_rope": (4, 6, 6), "joint_attention_dim": 8, "pooled_projection_dim": 8}
    model = CLASSES["FluxTransformer2DModel"](**sizes)
    assert ra.RoPE.from_config(model) == ra.RoPE(16, axes=ra.Axes.axial(4, 6, 6))


@pytest.mark.parametrize(
    ("pairing", "format", "options"),
    [
        ("interleaved", "full", {"use_real": True}),
        ("half", "full", {"use_real": True, "repeat_interleave_real": False}),
        ("interleaved", "complex", {}),
    ],
    ids=["interleaved", "half", "complex"],
)
def test_tables_have_the_form_of_diffusers(pairing, format, options):
    """diffusers multiplies in float32: a relative error of some 2^-22."""
    theirs = embeddings.get_1d_rotary_pos_embed(64, 2048, **options)
    ours = ra.RoPE(64, base=10_000.0, pairing=pairing).tables(2048, format, like=torch.ones(1))
    theirs, ours = (each if isinstance(each, tuple) else (each,) for each in (theirs, ours))
    for table, expected in zip(ours, theirs, strict=True):
        assert (table.shape, table.dtype) == (expected.shape, expected.dtype)
        assert ((table - expected).abs().amax(1) <= 2.0**-22 * torch.arange(2048) + 2.0**-22).all()
