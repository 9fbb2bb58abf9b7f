"""The rotary classes whose tables a function of their model multiplies: of text, M-RoPE and vision towers.

A class without a row in ROWS is compared as most models rotate, or as most vision towers do.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from hf import _walk
from hf._walk import Case, Probe, head_width, modeling

# Positions: a range from 0, then unsorted positions with some far from 0.
LINE = (np.arange(12), np.array([3, 0, 40, 4093, 17, 1000, 1023]))
# Rows and columns of patches, and fractions of them; the frames, rows and columns of a video.
GRID = np.stack([np.arange(20) // 5 * 3, np.arange(20) % 5 * 7 + 1], axis=-1)
FINE = (GRID * 0.75 + 0.125).astype(np.float32)
ROWS_OF_TEXT = np.array([[0, 0], [1, 1], [2, 9], [3, 11], [17, 5], [4, 4]])
VOLUME = np.stack([np.arange(24) // 12 * 2, np.arange(24) // 4 * 5 + 1, np.arange(24) % 4 * 3], axis=-1)
# Three coordinates that differ everywhere, and equal coordinates, as in text.
UNEQUAL = np.arange(9)[:, None] * [1, 5, 11] + [40, 0, 7]
TRIPLES = (UNEQUAL, UNEQUAL[::-1] + 900, np.repeat(np.arange(5)[:, None], 3, axis=1))


@dataclass(frozen=True)
class Layer:
    """A layer type: the `layer_type` for `from_config`, the key of its parameters, and whether it rotates."""

    ask: str | int | None = None
    key: str | None = None
    rotating: bool = True


# How attentions rotate. `module` is the model's file.


def by_name(name, **options):
    """Return a call of a function: of q and k, or of one array at a time, as in Gemma 3n and DeepSeek-V4."""

    def apply(module, config, q, k, *tables):
        function = getattr(module, name)
        if next(iter(inspect.signature(function).parameters)) == "x":
            return tuple(function(x, *tables) for x in (q, k))
        return function(q, k, *tables, **options)

    return apply


rotate_both = by_name("apply_rotary_pos_emb")  # it copies features beyond the width of cos


def sliced(module, config, q, k, cos, sin):
    """Phi, Persimmon, StableLM, GPT-NeoX Japanese: the attention slices the features that rotate."""
    share = config.rope_parameters["partial_rotary_factor"]
    turning = int(head_width(config) * share)
    turned = module.apply_rotary_pos_emb(q[..., :turning], k[..., :turning], cos, sin)
    return tuple(torch.cat((y, x[..., turning:]), dim=-1) for x, y in zip((q, k), turned, strict=True))


def latent(module, config, q, k, cos, sin):
    """DeepSeek-V3's q_pe and k_pe: from interleaved pairs to half pairs, unless the config chooses half."""
    if not getattr(config, "rope_interleave", True):
        return rotate_both(module, config, q, k, cos, sin)
    return module.apply_rotary_pos_emb_interleave(q, k, cos, sin)


def positions_first(name):
    """Return a call of the function `name` on q and k as (B, S, H, D)."""

    def apply(module, config, q, k, *tables):
        options = {} if len(tables) == 1 else {"unsqueeze_dim": 2}
        turned = getattr(module, name)(q.transpose(1, 2), k.transpose(1, 2), *tables, **options)
        return tuple(x.transpose(1, 2) for x in turned)

    return apply


def first_head(module, config, q, k, cos, sin):
    """Pass every head as head 0: Qwen2.5-Omni's DiT rotates only that head."""
    done = []
    for x in (q, k):
        head = module.deinterleave_head_dim(x.reshape(-1, 1, *x.shape[2:]))
        done.append(module.apply_rotary_pos_emb(head, head, cos, sin)[0].reshape(x.shape))
    return tuple(done)


def packed(module, config, q, k, cos, sin):
    """Vision towers: one sequence after another, as (S, heads, D)."""
    rotate = module.apply_rotary_pos_emb_vision
    pairs = [rotate(a.transpose(0, 1), b.transpose(0, 1), cos, sin) for a, b in zip(q, k, strict=True)]
    return tuple(torch.stack([pair[i].transpose(0, 1) for pair in pairs]) for i in (0, 1))


def in_blocks(module, config, q, k, cos, sin):
    """Gemma 4's tower: a block of features for each coordinate. The function reads the number of these."""
    rotate = functools.partial(module.apply_multidimensional_rope, position_ids=torch.empty(1, 1, 2))
    return tuple(rotate(x.transpose(1, 2), cos, sin).transpose(1, 2) for x in (q, k))


# Widths of q and k, and layer types


def width_of(config, layer):
    """Return the width of q_pe and k_pe, or of every head."""
    return getattr(config, "qk_rope_head_dim", None) or head_width(config)


def width_of_layer(config, layer):
    """Return the width of a layer type, for models whose layer types differ in it."""
    return config.per_layer_config[layer.key].head_dim


def width_in_memories(config, layer):
    """Return the width in SAM's attention to memories."""
    width = config.memory_attention_hidden_size // config.memory_attention_downsample_rate
    return int(width // config.memory_attention_num_attention_heads)


def layers_of(form, config):
    """Return the layer types of a form, or those with parameters of their own that the config uses."""
    rules = getattr(config, "rope_parameters", None) or {}
    keys = {key for key, rule in rules.items() if isinstance(rule, dict)}
    used = keys & {*(getattr(config, "layer_types", None) or ())}
    return form.layers or tuple(Layer(key, key) for key in sorted(used or keys)) or (Layer(),)


@dataclass(frozen=True)
class Form:
    """How the attention of a class rotates.

    `apply` rotates (q, k), each (B, H, S, D), by the tables that the module returns. `repeats` says how the
    tables repeat the number of each pair. `width` returns the size of the last axis of q and k. `frequencies`
    returns the frequency of each pair. `arrange` makes the positions for the module from positions (S,) or
    (S, axes).
    """

    apply: Callable[..., tuple[Any, Any]] = rotate_both
    repeats: str | None = "half"
    width: Callable[[Any, Layer], int] = width_of
    axes: int = 1
    layers: tuple[Layer, ...] = ()  # of the config
    sign: int = 1
    frequencies: Callable[[Any], Any] | None = None
    positions: tuple[np.ndarray, ...] = LINE
    arrange: Callable[[Any], Any] = lambda positions: positions[None]
    options: Mapping[str, Any] = field(default_factory=dict)  # of the class


HALF = Form()
INTERLEAVED = Form(repeats="interleaved")
LATENT = Form(latent)
ROWS_OF_AXES = Form(axes=2, arrange=lambda positions: positions.T[:, None])
MROPE = replace(ROWS_OF_AXES, axes=3, positions=TRIPLES)
FOR_EACH_AXIS = {"axes": 2, "frequencies": lambda module: module.inv_freq.tile(2), "positions": (GRID,)}
TOWER = Form(packed, arrange=lambda positions: positions, **FOR_EACH_AXIS)
SAM = replace(TOWER, apply=by_name("apply_rotary_pos_emb_2d"), repeats="interleaved", positions=(GRID, FINE))
MEMORIES = replace(SAM, width=width_in_memories)
SELF_ATTENTION = replace(MEMORIES, apply=by_name("apply_rotary_pos_emb_2d_self_attn"))


# Probes


def of_layer(config, layer):
    """Return the config of a layer's module: Granite's layers have bases of their own."""
    if layer.ask is None or not getattr(config, "layer_rope_theta", None):
        return config
    of_one_layer, base = type(config)(), config.layer_rope_theta[layer.ask]
    of_one_layer.rope_parameters = {**config.rope_parameters, "rope_theta": base}
    return of_one_layer


def rotary(form, layer, model, cls, config, pos):
    """Run the class, and its model's function, on one array of positions."""
    if not layer.rotating:
        return _walk.UNROTATED
    config = of_layer(config, layer)
    module = getattr(modeling(model), cls)(config, **form.options)
    option = {} if layer.key is None else {"layer_type": layer.key}
    with torch.no_grad():
        out = module(torch.zeros(1, 1), form.arrange(torch.tensor(pos)), **option)
    tables = out if isinstance(out, tuple) else (out,)
    prefix = "" if layer.key is None else f"{layer.key}_"
    frequencies = form.frequencies(module) if form.frequencies else getattr(module, f"{prefix}inv_freq")
    cos_sin = (tables[0].real, tables[0].imag) if len(tables) == 1 else tables
    cos, sin = (_walk.one_per_pair(table.reshape(len(pos), -1).numpy(), form.repeats) for table in cos_sin)

    def rotate(arrays):
        with torch.no_grad():
            turned = form.apply(modeling(model), config, *map(torch.from_numpy, arrays), *tables)
        return tuple(np.asarray(y) for y in turned)

    return _walk.Theirs(
        rotate=rotate,
        inv_freq=form.sign * np.asarray(frequencies, dtype=np.float32),
        factor=float(getattr(module, f"{prefix}attention_scaling")),
        cos=cos,
        sin=form.sign * sin,
    )


def probe(form, layer, model, cls, outer, inner, path=None):
    """Return the probe of one layer type of one config."""
    return Probe(
        config=outer,
        theirs=lambda pos: rotary(form, layer, model, cls, inner, pos),
        head_dim=form.width(inner, layer),
        positions=form.positions if layer.rotating else LINE,
        part=path,
        layer_type=layer.ask,
    )


@dataclass(frozen=True)
class Row:
    """How classes are compared.

    `change` changes their default config. `variants` are other forms, each with its change of the default
    config. `paths` are as in `places`. `tables` is the class that makes the tables of an attention layer.
    `status` is as in `Case`.
    Each push compares the class `first`.
    """

    first: str
    form: Form
    paths: tuple[str | None, ...]
    change: Callable[[Any], None]
    variants: tuple[tuple[Form, Callable[[Any], None]], ...]
    tables: str | None
    status: str


def probes(row, model, cls):
    """Yield a probe for each place of a config and each layer type, and with another base and width."""
    for owner, path in _walk.places(model, cls, row.paths):
        outer = owner()
        row.change(_walk.at_part(outer, path))
        yield from of_config(row.form, model, row.tables or cls, outer, path)
    for form, change in row.variants:
        config = owner()
        change(config)
        yield from of_config(form, model, cls, config, None)


def of_config(form, model, cls, outer, path):
    """Yield the probes of one config; if it is alone, also of the config with another base and width."""
    inner = _walk.at_part(outer, path)
    layers = layers_of(form, inner)
    for layer in layers:
        yield probe(form, layer, model, cls, outer, inner, path)
    is_plain = layers == (Layer(),) and form.axes < 3 and not hasattr(inner, "qk_rope_head_dim")
    if path is None and is_plain and (changed := _walk.other(inner)) is not None:
        yield replace(probe(form, Layer(), model, cls, changed, changed), shown=False)


# The classes


def layers(*keys, rotating=(), unrotated=()):
    """Return layer types with keys of parameters, that rotate by the others, or that do not rotate."""
    rotated = (*(Layer(key, key) for key in keys), *map(Layer, rotating))
    return (*rotated, *(Layer(layer_type, rotating=False) for layer_type in unrotated))


def row(
    form, names, paths=(), change=lambda config: None, variants=(), tables=None, status=_walk.EQUAL, **of_form
):
    """Return rows of classes, named without "RotaryEmbedding"; pushes compare the first.

    For classes of other places that rotate as Llama does, pushes compare Llama's class.
    """
    reference = "Llama" if paths and form is HALF else names.split()[0]
    of_names = Row(reference, replace(form, **of_form), paths, change, variants, tables, status)
    return dict.fromkeys(names.split(), of_names)


def cases_without(listed):
    """Return a case of each class that is not listed."""
    unlisted = []
    for model, cls in sorted(_walk.classes() - {(case.model, case.cls) for case in listed}):
        name = cls.removesuffix("RotaryEmbedding")
        class_row = ROWS.get(name, ROWS["Qwen2_5_VLVision" if name.endswith("Vision") else "Llama"])
        takes = f"an attention layer, which takes its tables from `{class_row.tables}`"
        make_probes = functools.partial(probes, class_row, model, cls)
        unlisted.append(
            Case(model, cls, make_probes, takes if class_row.tables else class_row.status, row=class_row)
        )
    return unlisted


def ernie_frequencies(module):
    """Reorder the class's frequencies, h, w, t, by pair: h and w alternate, then t."""
    h, w, t = module.inv_freq.split(module.mrope_section)
    return torch.cat((torch.stack((h, w), dim=-1).flatten(), t))


# Changes of default configs


def fields(**values):
    """Return a change that sets fields of a config."""

    def change(config):
        for key, value in values.items():
            setattr(config, key, value)

    return change


def sections(*counts):
    """Return a change that sets sections: the default sections do not sum to the pairs, and cannot run."""

    def change(config):
        config.rope_parameters = {**config.rope_parameters, "mrope_section": list(counts)}

    return change


def alternating(*names, **values):
    """Return a change that alternates two layer types; the default has parameters for both, uses one."""

    def change(config):
        fields(layer_types=[names[i % 2] for i in range(config.num_hidden_layers)], **values)(config)

    return change


def dense(config):
    """Make Cohere 2 MoE's first layer dense and of full attention."""
    num_extra = config.num_hidden_layers - 4
    config.layer_types = [FULL, SLIDING, SLIDING, FULL] + [SLIDING] * num_extra
    config.mlp_layer_types = ["dense"] + ["sparse"] * (num_extra + 3)


TYPES = FULL, SLIDING = "full_attention", "sliding_attention"
SLIDING_ROTATES = layers(rotating=(SLIDING,), unrotated=(FULL,))
SLIDING_KEYED = layers(SLIDING, unrotated=(FULL,))
UNROTATED_LAYERS = replace(HALF, layers=layers(unrotated=(None,)))
FULL_ROTATES = replace(HALF, layers=layers(rotating=(FULL,)))
FRONT_ROTATES = replace(INTERLEAVED, layers=layers(rotating=(0, 1), unrotated=(3,)))
LAYERS_OF_THETA = fields(layer_rope_theta=[10000.0, 50000.0, 0, 10000.0] * 8)
THETAS = replace(HALF, layers=layers(rotating=(0, 1), unrotated=(2,)))
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
# The two types of layers of Step 3.7's checkpoints; the default has one.
STEP_RULES = {FULL: {**DEFAULT, "rope_theta": 5e6, "partial_rotary_factor": 0.5}, SLIDING: DEFAULT}
# The default has no parameters, and cannot run.
COMPASS = {SLIDING: {**DEFAULT, "rope_theta": 50000.0, "mrope_section": [24, 20, 20]}, FULL: None}
SCALED_LAYER = replace(HALF, layers=layers(rotating=(0,)), options={"scaled": True})
OTHER_LAYER = replace(HALF, layers=layers(rotating=(1,)), options={"scaled": False})
SCALED = fields(
    rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}, rope_scaling_layers=[0, 2]
)
AXIAL = {"rope_parameters": {"rope_type": "axial", "rope_theta": 700.0}}
MEMORY_SIZES = {"hidden_size": 384, "num_attention_heads": 2, "downsample_rate": 3}
OTHER_MEMORIES = fields(**AXIAL, **{f"memory_attention_{key}": n for key, n in MEMORY_SIZES.items()})
OF_NEOMME = replace(ROWS_OF_AXES, positions=(ROWS_OF_TEXT, GRID))
NEOMME = {
    FULL: {**DEFAULT, "rope_theta": 3e4, "partial_rotary_factor": 0.5},
    SLIDING: {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
}

ROWS: dict[str, Row] = {
    # Of the classes without a row
    **row(HALF, "Llama"),
    **row(TOWER, "Qwen2_5_VLVision"),
    # Places of configs that the annotations do not tell
    **row(HALF, "Csm", paths=(None, "depth_decoder")),
    **row(HALF, "DeepseekOcr2Vision", paths=("vision.encoder",)),
    **row(HALF, "Dia T5Gemma", paths=("encoder", "decoder")),
    **row(HALF, "GlmAsr Nemotron3Diarization", paths=("audio",)),
    **row(HALF, "Nemotron3_5Transcribe", paths=("audio.asr", "word_timestamp")),
    **row(HALF, "Qwen3OmniMoe", paths=("code2wav", "talker.code_predictor")),
    **row(HALF, "VoxtralRealtime", paths=("audio", "text")),
    # Other pairings, and functions of other shapes
    **row(INTERLEAVED, "Blt", paths=("patcher", "encoder", "decoder", "global")),
    **row(INTERLEAVED, "Cohere"),
    **row(HALF, "Glm Glm4 Ernie4_5 Ernie4_5_Moe Helium"),  # the function reorders half tables
    **row(HALF, "GptOss OpenAIPrivacyFilter", repeats=None),
    **row(HALF, "GPTNeoXJapanese Persimmon Phi StableLm", apply=sliced),
    **row(HALF, "NanoChat", sign=-1),  # its rotate_half has the opposite sign
    # The index of a head is its position
    **row(HALF, "NeuCodec Xcodec2", apply=positions_first("apply_rotary_pos_emb")),
    **row(HALF, "Qwen2_5OmniDiT", apply=first_head),
    **row(HALF, "TimesFm2_5", positions=(*LINE, np.array([-7, -1, 0, 1, 4, 30]))),
    # q_pe and k_pe
    **row(LATENT, "DeepseekV3 AXK1 AXK2 BailingHybrid DeepseekV32 Glm4MoeLite GlmMoeDsa LongcatFlash Mistral4"
          " Youtu"),
    **row(LATENT, "Dots3NoteText"),  # parameters by layer type
    **row(HALF, "HYV4 MiniCPM3"),
    **row(HALF, "DeepseekV2", apply=by_name("apply_rotary_emb"), repeats=None),  # complex numbers
    **row(LATENT, "MistralLarge4Text", layers=layers(rotating=(None, 0), unrotated=(3,)),
          frequencies=lambda module: (module.inv_freq * module.alpha.exp()).detach(),
          status="learned frequencies, the config's times exp(alpha) with a parameter alpha: the rope is of"
                 " alpha 0"),
    # Layers that do not rotate
    **row(HALF, "Llama4Text", layers=layers(rotating=("chunked_attention", 0), unrotated=(FULL, 3)),
          apply=positions_first("apply_rotary_emb"), repeats=None),
    **row(HALF, "Afmoe ExaoneMoe Flint Kolibri1 LaraMini", layers=SLIDING_ROTATES),
    # Without a window, all layers rotate.
    **row(HALF, "Exaone4", layers=SLIDING_ROTATES, variants=((FULL_ROTATES, fields(sliding_window=None)),)),
    **row(INTERLEAVED, "Cohere2", layers=SLIDING_ROTATES),
    # The dense layers at the front also rotate, although they have full attention.
    **row(INTERLEAVED, "Cohere2Moe", layers=SLIDING_ROTATES, variants=((FRONT_ROTATES, dense),)),
    **row(HALF, "SmolLM3", layers=layers(rotating=(0,), unrotated=(3,))),
    **row(HALF, "GraniteSWA GraniteMoeSWA", variants=((THETAS, LAYERS_OF_THETA),)),
    **row(HALF, "MuseGlimmerText", layers=layers(rotating=(50,), unrotated=(51,))),
    **row(HALF, "MuseSparkText", layers=layers(rotating=(60,), unrotated=(61,))),
    # Models that rotate by a field of the config
    **row(HALF, "Esm", change=fields(position_embedding_type="rotary"),
          variants=((HALF, fields(position_embedding_type="rotary", rope_theta=300.0)),
                (UNROTATED_LAYERS, fields(position_embedding_type="absolute")))),
    **row(UNROTATED_LAYERS, "GraniteMoeHybrid", variants=((HALF, fields(position_embedding_type="rope")),)),
    **row(UNROTATED_LAYERS, "Zamba2", variants=((HALF, fields(use_mem_rope=True)),)),
    **row(HALF, "Falcon", variants=((UNROTATED_LAYERS, fields(alibi=True)),)),
    **row(HALF, "Molmo2", variants=((SCALED_LAYER, SCALED), (OTHER_LAYER, SCALED))),
    # Parameters by layer type
    **row(HALF, "Gemma3 MiMoV2Flash ModernBert ModernBertDecoder Olmo3 Lfm3 Ultrabert Dory"),
    **row(HALF, "T5Gemma2", paths=("encoder.text", "decoder")),
    **row(HALF, "Gemma3n"),  # one array at a time
    **row(HALF, "Gemma4Text DiffusionGemmaText EmbeddingGemma2 Gemma4UnifiedText", width=width_of_layer),
    **row(HALF, "Laguna Mellum", variants=((HALF, alternating(*TYPES)),)),
    **row(HALF, "Zaya", variants=((HALF, alternating("hybrid", "hybrid_sliding")),)),
    **row(HALF, "Step3p7", variants=((HALF, alternating(*TYPES, rope_parameters=STEP_RULES)),)),
    **row(HALF, "Beam", layers=SLIDING_KEYED),
    # The last features of a head
    **row(HALF, "DeepseekV4", layers=layers("main", "compress"), repeats=None,
          width=lambda config, layer: head_width(config)),
    # Three coordinates
    **row(MROPE, "Qwen2VL Qwen2_5_VL PaddleOCR Qwen3VLText Qwen3VLMoeText Cosmos3EdgeText Qwen3_5Text"
          " Qwen3_5MoeText Qwen4ExpText HYV4VL"),
    **row(MROPE, "Qwen2_5Omni", paths=("talker", "thinker.text")),
    **row(MROPE, "Qwen3OmniMoeTalker", paths=("talker.text",)),
    # The default width, 73, is odd and cannot run.
    **row(MROPE, "Qwen3OmniMoeThinkerText", change=fields(head_dim=128)),
    **row(MROPE, "Glm4vText", repeats="interleaved", change=sections(16, 24, 24)),
    **row(MROPE, "GlmOcrText", repeats="interleaved"),
    **row(MROPE, "Glm4vMoeText", change=sections(3, 4, 4)),
    **row(MROPE, "GlmImageText", change=sections(16, 24, 24)),
    **row(MROPE, "Ernie4_5_VLMoeText", repeats="interleaved", frequencies=ernie_frequencies),
    **row(MROPE, "CohereCompass", layers=SLIDING_KEYED,
          change=alternating(SLIDING, FULL, rope_parameters=COMPASS)),
    # Two coordinates
    **row(TOWER, "MLCD"),
    **row(Form(in_blocks, "blocks", **FOR_EACH_AXIS), "Gemma4Vision"),
    **row(TOWER, "Qwen2VLVision", width=lambda config, layer: config.embed_dim // config.num_heads),
    **row(TOWER, "Inkling2Vision", repeats="interleaved"),
    **row(TOWER, "Kimi_K25Vision", frequencies=lambda module: module.inv_freq.repeat_interleave(2)),
    **row(TOWER, "MiniMaxM3VLVision", frequencies=lambda module: module.inv_freq.tile(3),
          positions=(VOLUME,)),
    **row(TOWER, "PixtralVision", apply=by_name("apply_rotary_pos_emb", unsqueeze_dim=0),
          frequencies=lambda module: module.inv_freq.flatten()),
    **row(OF_NEOMME, "NeoMME", variants=((OF_NEOMME, fields(head_dim=32, rope_parameters=NEOMME)),)),
    # SAM, and the attention layers that take its tables
    **row(SAM, "Sam3ViT"),
    **row(SAM, "Sam3ViTRoPEAttention", tables="Sam3ViTRotaryEmbedding"),
    **row(MEMORIES, "Sam2VideoVision Sam3TrackerVideoVision", variants=((MEMORIES, OTHER_MEMORIES),)),
    **row(MEMORIES, "Sam2VideoRoPEAttention", tables="Sam2VideoVisionRotaryEmbedding"),
    **row(MEMORIES, "Sam3TrackerVideoRoPEAttention", tables="Sam3TrackerVideoVisionRotaryEmbedding"),
    **row(SELF_ATTENTION, "EdgeTamVideoVision", variants=((SELF_ATTENTION, OTHER_MEMORIES),)),
    **row(SELF_ATTENTION, "EdgeTamVideoRoPESelfAttention EdgeTamVideoRoPECrossAttention",
          tables="EdgeTamVideoVisionRotaryEmbedding"),
}  # fmt: skip
