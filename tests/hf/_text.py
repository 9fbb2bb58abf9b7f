"""The rotary classes of text models, with one position or M-RoPE, called as their attentions call them."""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hf._walk import Case, Probe, Theirs, config_class, modeling, own_config

# Positions: a range from 0, then unsorted positions with some far from 0.
LINE = (np.arange(12), np.array([3, 0, 40, 4093, 17, 1000, 1023]))


def grid(axes: int) -> tuple[np.ndarray, ...]:
    """Return positions (S, axes): coordinates that differ everywhere, then equal coordinates, as in text."""
    steps = np.array([1, 5, 11][:axes])
    unequal = np.arange(9)[:, None] * steps + np.array([40, 0, 7][:axes])
    return unequal, unequal[::-1] + 900, np.repeat(np.arange(5)[:, None], axes, axis=1)


@dataclass(frozen=True)
class Layer:
    """A layer type: the `layer_type` for `from_config`, the key of its parameters, and whether it rotates."""

    ask: str | int | None = None
    key: str | None = None
    turns: bool = True
    change: Callable[[Any], Any] | None = None  # makes the config of this layer's module


@dataclass(frozen=True)
class Form:
    """How a class is constructed, and how its attention rotates.

    `apply` rotates (q, k), each (B, H, S, D), by the tables that the module returns; `lanes` reduces a table
    to one number per pair. `width` returns the size of the last axis of q and k.
    """

    apply: Callable[..., tuple[Any, Any]]
    lanes: Callable[[Any], Any]
    width: Callable[[Any, Layer], int] | None = None
    axes: int = 1
    layers: tuple[Layer, ...] = (Layer(),)
    sign: int = 1
    factor: Callable[[Any, int], float] | None = None
    frequencies: Callable[[Any, Any], Any] | None = None


def first_half(table: Any) -> Any:
    """Undo the repetition of the whole table for half pairs."""
    return table[..., : table.shape[-1] // 2]


def every_other(table: Any) -> Any:
    """Undo the repetition of each number for interleaved pairs."""
    return table[..., ::2]


def as_it_is(table: Any) -> Any:
    """Return a table that already has one number per pair."""
    return table


# How attentions rotate. `module` is the model's file.


def both(module: Any, config: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """Most attentions: q and k in one call; the function copies features beyond the width of cos."""
    return module.apply_rotary_pos_emb(q, k, cos, sin)


def each(module: Any, config: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """Gemma 3n and later: one array at a time, (B, S, H, D)."""
    turn = module.apply_rotary_pos_emb
    return tuple(turn(x.transpose(1, 2), cos, sin, unsqueeze_dim=2).transpose(1, 2) for x in (q, k))


def last_features(module: Any, config: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """DeepSeek-V4: the function slices the last features of a head."""
    return tuple(module.apply_rotary_pos_emb(x, cos, sin) for x in (q, k))


def sliced(module: Any, config: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """Phi, Persimmon, StableLM, GPT-NeoX Japanese: the attention slices the features that rotate."""
    cat, share = importlib.import_module("torch").cat, config.rope_parameters["partial_rotary_factor"]
    turning = int(head_width(config) * share)
    turned = module.apply_rotary_pos_emb(q[..., :turning], k[..., :turning], cos, sin)
    return tuple(cat((y, x[..., turning:]), dim=-1) for x, y in zip((q, k), turned, strict=True))


def latent(module: Any, config: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """DeepSeek-V3's q_pe and k_pe: from interleaved pairs to half pairs."""
    return module.apply_rotary_pos_emb_interleave(q, k, cos, sin)


def latent_by_config(module: Any, config: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """Choose by the config's `rope_interleave`."""
    return (latent if config.rope_interleave else both)(module, config, q, k, cos, sin)


def complex_heads_first(module: Any, config: Any, q: Any, k: Any, turns: Any) -> Any:
    """DeepSeek-V2: complex numbers, (B, H, S, D)."""
    return module.apply_rotary_emb(q, k, turns)


def complex_positions_first(module: Any, config: Any, q: Any, k: Any, turns: Any) -> Any:
    """Llama 4: complex numbers, (B, S, H, D)."""
    return tuple(
        y.transpose(1, 2) for y in module.apply_rotary_emb(q.transpose(1, 2), k.transpose(1, 2), turns)
    )


# Widths


def head_width(config: Any, layer: Layer = Layer()) -> int:
    """Return the width of a head, as most attentions compute it."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def width_of_layer(config: Any, layer: Layer) -> int:
    """Return the head width of a layer type, for models whose layer types differ in it."""
    return config.per_layer_config[layer.key].head_dim


def latent_width(config: Any, layer: Layer) -> int:
    """Return the width of q_pe and k_pe."""
    return config.qk_rope_head_dim


HALF = Form(both, first_half)
INTERLEAVED = Form(both, every_other)
HALF_TO_INTERLEAVED = Form(both, first_half)  # the tables are for half pairs; the function reorders them
SLICED = Form(sliced, first_half)
LATENT = Form(latent, first_half, latent_width)
LATENT_BY_CONFIG = Form(latent_by_config, first_half, latent_width)
MROPE = Form(both, first_half, axes=3)
BY_LANE = Form(both, as_it_is)


# Probes


def rotary(
    form: Form, layer: Layer, model: str, cls: str, config: Any, pos: np.ndarray, **options: Any
) -> Theirs:
    """Run the class, and its model's function, on one array of positions."""
    torch = importlib.import_module("torch")
    if not layer.turns:
        return Theirs(rotate=lambda arrays: arrays, inv_freq=np.zeros(0, np.float32))
    config = layer.change(config) if layer.change else config
    made = getattr(modeling(model), cls)(config, **options)
    ids = torch.from_numpy(np.ascontiguousarray(pos.T))
    ids = ids[None] if form.axes == 1 else ids[:, None]
    call = {} if layer.key is None else {"layer_type": layer.key}
    with torch.no_grad():
        out = made(torch.zeros(1, 1), ids, **call)
    tables = out if isinstance(out, tuple) else (out,)
    prefix = "" if layer.key is None else f"{layer.key}_"
    factor = getattr(made, f"{prefix}attention_scaling")
    frequencies = form.frequencies(made, config) if form.frequencies else getattr(made, f"{prefix}inv_freq")
    parts = (tables[0].real, tables[0].imag) if len(tables) == 1 else tables
    cos, sin = (np.asarray(form.lanes(part)[0]) for part in parts)

    def rotate(arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        with torch.no_grad():
            turned = form.apply(modeling(model), config, *map(torch.from_numpy, arrays), *tables)
        return tuple(np.asarray(y) for y in turned)

    return Theirs(
        rotate=rotate,
        inv_freq=form.sign * np.asarray(frequencies, dtype=np.float32),
        factor=float(form.factor(made, int(pos.max()) + 1) if form.factor else factor),
        cos=cos,
        sin=form.sign * sin,
    )


@dataclass(frozen=True)
class Place:
    """The location of a class's config: a config class, and the path inside it, "" for the config itself."""

    holder: str
    path: str = ""
    part: str | None = None
    change: Callable[[Any], None] | None = None

    def config(self, model: str) -> Any:
        """Return a new default config of the class `holder`."""
        made = config_class(model, self.holder)()
        if self.change is not None:
            self.change(made)
        return made

    def inner(self, config: Any) -> Any:
        """Return the config at `path`, from which the rotary class is constructed."""
        for key in filter(None, self.path.split(".")):
            config = getattr(config, key)
        return config


def probes(
    form: Form,
    model: str,
    cls: str,
    places: tuple[Place, ...],
    positions: tuple[np.ndarray, ...] | None = None,
    **options: Any,
) -> Iterator[Probe]:
    """Yield a probe for each place of a config and each layer type."""
    for place in places:
        whole = place.config(model) if place.holder else own_config(model, cls)
        inner = place.inner(whole)
        for layer in form.layers:
            yield probe(form, layer, model, cls, whole, inner, place.part, positions, **options)


def probe(
    form: Form,
    layer: Layer,
    model: str,
    cls: str,
    whole: Any,
    inner: Any,
    part: str | None = None,
    positions: tuple[np.ndarray, ...] | None = None,
    **options: Any,
) -> Probe:
    """Return the probe of one layer type of one config."""
    return Probe(
        config=whole,
        theirs=lambda pos: rotary(form, layer, model, cls, inner, pos, **options),
        head_dim=(form.width or head_width)(inner, layer),
        positions=positions or (grid(form.axes) if form.axes > 1 and layer.turns else LINE),
        part=part,
        layer_type=layer.ask,
    )


# The classes


OWN = (Place(""),)


def text(name: str, own: str | None = None) -> tuple[Place, ...]:
    """Return the places of a text part: inside the whole config, and as a config of the class `own`."""
    return Place(f"{name}Config", "text_config", "text"), Place(f"{own or name + 'Text'}Config")


def keyed(*names: str) -> tuple[Layer, ...]:
    """Return layer types whose names are the keys of their parameters."""
    return tuple(Layer(name, name) for name in names)


def turning(*asks: str | int) -> tuple[Layer, ...]:
    """Return layer types that rotate by the shared parameters."""
    return tuple(Layer(ask) for ask in asks)


def still(*asks: str | int | None) -> tuple[Layer, ...]:
    """Return layer types that do not rotate."""
    return tuple(Layer(ask, turns=False) for ask in asks)


def case(
    form: Form,
    model: str,
    name: str,
    places: tuple[Place, ...] = OWN,
    more: tuple[tuple[Form, tuple[Place, ...]], ...] = (),
) -> Case:
    """Return a class's case: a form with the places of its configs, and `more` forms with places."""
    cls = f"{name}RotaryEmbedding"

    def made() -> Iterator[Probe]:
        for shape, where in ((form, places), *more):
            yield from probes(shape, model, cls, where)

    return Case(model, cls, made)


def plain(form: Form, names: str) -> list[Case]:
    """Return the cases of classes whose config is not a part of another config: model:Class."""
    return [case(form, *name.split(":")) for name in names.split()]


def part(form: Form, names: str) -> list[Case]:
    """Return the cases of the classes of text parts: model:Class:whole config:config of the part."""
    split = [name.split(":") for name in names.split()]
    return [case(form, model, name, text(root, own)) for model, name, root, own in split]


def ernie_frequencies(made: Any, config: Any) -> Any:
    """Reorder the class's frequencies, h, w, t, by pair: h and w alternate, then t."""
    torch = importlib.import_module("torch")
    h, w, t = made.inv_freq.split(made.mrope_section)
    return torch.cat((torch.stack((h, w), dim=-1).flatten(), t))


def sections(*counts: int, at: str | None = None) -> Callable[[Any], None]:
    """Return a change that sets sections: the default sections do not sum to the pairs, and cannot run."""

    def change(config: Any) -> None:
        inner = config if at is None else getattr(config, at)
        inner.rope_parameters = {**inner.rope_parameters, "mrope_section": list(counts)}

    return change


def fields(at: str | None = None, **values: Any) -> Callable[[Any], None]:
    """Return a change that sets fields of a config."""

    def change(config: Any) -> None:
        for key, value in values.items():
            setattr(config if at is None else getattr(config, at), key, value)

    return change


def alternating(*names: str, at: str | None = None, **values: Any) -> Callable[[Any], None]:
    """Return a change that alternates two layer types; the default has parameters for both, uses one."""

    def change(config: Any) -> None:
        inner = config if at is None else getattr(config, at)
        types = [names[i % 2] for i in range(inner.num_hidden_layers)]
        fields(layer_types=types, **values)(inner)

    return change


def theta(value: float) -> Callable[[Any], Any]:
    """Return a change that makes the config for the module of a layer with its own base."""

    def change(config: Any) -> Any:
        made = type(config)()
        made.rope_parameters = {**config.rope_parameters, "rope_theta": value}
        return made

    return change


SLIDING_TURNS = turning("sliding_attention") + still("full_attention")
TYPES = "full_attention", "sliding_attention"
BOTH_TYPES = keyed(*TYPES)
KEYED = replace(HALF, layers=BOTH_TYPES)
KEYED_EACH = replace(HALF, apply=each, layers=BOTH_TYPES)
KEYED_WIDTH = replace(KEYED_EACH, width=width_of_layer)
MROPE_INTERLEAVED = Form(both, every_other, axes=3)
LAYERS_OF_THETA = fields(layer_rope_theta=[10000.0, 50000.0, 0, 10000.0] * 8)
THETAS = (Layer(0), Layer(1, change=theta(50000.0)), Layer(2, turns=False))


def compass(at: str | None = None) -> Callable[[Any], None]:
    """Return a change of Cohere Compass's config: its default has no parameters, and cannot run."""
    rope = {"rope_type": "default", "rope_theta": 50000.0, "mrope_section": [24, 20, 20]}
    kinds = {"sliding_attention": rope, "full_attention": None}
    return alternating(*kinds, at=at, rope_parameters=kinds)


def dense(config: Any) -> None:
    """Make Cohere 2 MoE's first layer dense and of full attention."""
    rest = config.num_hidden_layers - 4
    types = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    config.layer_types = types + ["sliding_attention"] * rest
    config.mlp_layer_types = ["dense"] + ["sparse"] * (rest + 3)


def step_types(config: Any) -> None:
    """Give Step 3.7 the two types of layer of its checkpoints; the default has one."""
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    whole = {**rope, "rope_theta": 5e6, "partial_rotary_factor": 0.5}
    alternating(*TYPES, rope_parameters=dict(zip(TYPES, (whole, rope), strict=True)))(config)


def thinker_width(config: Any) -> None:
    """Set the width that the checkpoints have; the default, 73, is odd and cannot run."""
    config.thinker_config.text_config.head_dim = 128


def molmo_probes() -> Iterator[Probe]:
    """Yield Molmo 2's default, and layers in and out of `rope_scaling_layers`."""
    names = "molmo2", "Molmo2RotaryEmbedding"
    yield from probes(HALF, *names, text("Molmo2"))
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    change = fields(rope_parameters=rope, rope_scaling_layers=[0, 2])
    for layer, scaled in ((0, True), (1, False)):
        form = replace(HALF, layers=turning(layer))
        yield from probes(form, *names, (Place("Molmo2TextConfig", change=change),), scaled=scaled)


CASES: list[Case] = [
    *plain(
        HALF,
        "apertus:Apertus arcee:Arcee bitnet:BitNet bamba:Bamba chameleon:Chameleon cwm:Cwm dbrx:Dbrx"
        " diffllama:DiffLlama doge:Doge dots1:Dots1 eurobert:EuroBert evolla:Evolla falcon_h1:FalconH1"
        " flex_olmo:FlexOlmo gemma:Gemma gemma2:Gemma2 glm4_moe:Glm4Moe gpt_neox:GPTNeoX granite:Granite"
        " granitemoe:GraniteMoe granitemoeshared:GraniteMoeShared gte:Gte hrm_text:HrmText"
        " hunyuan_v1_dense:HunYuanDenseV1 hunyuan_v1_moe:HunYuanMoEV1 hy_v3:HYV3 hyperclovax:HyperCLOVAX"
        " idefics:Idefics jais2:Jais2 jetmoe:JetMoe jina_embeddings_v3:JinaEmbeddingsV3 lfm2:Lfm2"
        " lfm2_moe:Lfm2Moe llama:Llama minimax:MiniMax minimax_m2:MiniMaxM2 ministral:Ministral"
        " ministral3:Ministral3 mistral:Mistral mixtral:Mixtral muse_glimmer_assistant:MuseGlimmerAssistant"
        " nemotron:Nemotron nomic_bert:NomicBert olmo:Olmo olmo2:Olmo2 olmo_hybrid:OlmoHybrid olmoe:Olmoe"
        " phi3:Phi3 phi4_multimodal:Phi4Multimodal phimoe:Phimoe qwen2:Qwen2 qwen2_moe:Qwen2Moe qwen3:Qwen3"
        " qwen3_moe:Qwen3Moe qwen3_next:Qwen3Next recurrent_gemma:RecurrentGemma seed_oss:SeedOss"
        " solar_open:SolarOpen starcoder2:Starcoder2 vaultgemma:VaultGemma",
    ),
    *part(
        HALF,
        "aria:AriaText:Aria:AriaText deepseek_ocr2:DeepseekOcr2Text:DeepseekOcr2:DeepseekOcr2Text"
        " emu3:Emu3:Emu3:Emu3Text granite_docling:GraniteDoclingText:GraniteDocling:GraniteDoclingText"
        " minimax_m3_vl:MiniMaxM3VL:MiniMaxM3VL:MiniMaxM3VLText mllama:Mllama:Mllama:MllamaText"
        " unlimited_ocr:UnlimitedOcrText:UnlimitedOcr:UnlimitedOcrText",
    ),
    Case("molmo2", "Molmo2RotaryEmbedding", molmo_probes),
    case(HALF, "granite4_vision", "Granite4VisionText", text("Granite4Vision")),
    case(
        HALF,
        "t5gemma",
        "T5Gemma",
        (Place("T5GemmaConfig", "encoder", "encoder"), Place("T5GemmaConfig", "decoder", "decoder")),
    ),
    # The patcher, both local models and the global model.
    case(
        INTERLEAVED,
        "blt",
        "Blt",
        (
            *(Place("BltConfig", f"{p}_config", p) for p in ("patcher", "encoder", "decoder", "global")),
            *(Place("BltLocalEncoderConfig"), Place("BltGlobalTransformerConfig")),
        ),
    ),
    *plain(INTERLEAVED, "cohere:Cohere"),
    *plain(
        HALF_TO_INTERLEAVED, "ernie4_5:Ernie4_5 ernie4_5_moe:Ernie4_5_Moe glm:Glm glm4:Glm4 helium:Helium"
    ),
    *plain(BY_LANE, "gpt_oss:GptOss openai_privacy_filter:OpenAIPrivacyFilter"),
    *plain(SLICED, "gpt_neox_japanese:GPTNeoXJapanese persimmon:Persimmon phi:Phi stablelm:StableLm"),
    # q_pe and k_pe.
    *plain(
        LATENT,
        "axk2:AXK2 bailing_hybrid:BailingHybrid deepseek_v32:DeepseekV32 glm_moe_dsa:GlmMoeDsa"
        " longcat_flash:LongcatFlash",
    ),
    *plain(
        LATENT_BY_CONFIG,
        "axk1:AXK1 deepseek_v3:DeepseekV3 glm4_moe_lite:Glm4MoeLite mistral4:Mistral4 youtu:Youtu",
    ),
    *plain(replace(HALF, width=latent_width), "hy_v4:HYV4 minicpm3:MiniCPM3"),
    case(
        replace(
            LATENT,
            layers=(*turning(None, 0), *still(3)),
            frequencies=lambda made, config: made.inv_freq * made.alpha.exp(),
        ),
        "mistral_large4",
        "MistralLarge4Text",
        text("MistralLarge4"),
    ),
    case(
        replace(LATENT, layers=keyed("indexed_attention", "sliding_attention")),
        "dots3_note",
        "Dots3NoteText",
        text("Dots3Note"),
    ),
    case(Form(complex_heads_first, as_it_is, latent_width), "deepseek_v2", "DeepseekV2"),
    case(
        Form(
            complex_positions_first,
            as_it_is,
            layers=(*turning("chunked_attention", 0), *still("full_attention", 3)),
        ),
        "llama4",
        "Llama4Text",
        text("Llama4"),
    ),
    case(Form(last_features, as_it_is, layers=keyed("main", "compress")), "deepseek_v4", "DeepseekV4"),
    # NanoChat's rotate_half has the opposite sign, so it rotates by −pos·ω.
    case(replace(HALF, sign=-1), "nanochat", "NanoChat"),
    # Layers that do not rotate.
    *plain(
        replace(HALF, layers=SLIDING_TURNS), "afmoe:Afmoe exaone_moe:ExaoneMoe flint:Flint kolibri1:Kolibri1"
    ),
    # Without a window, all layers rotate.
    case(
        replace(HALF, layers=SLIDING_TURNS),
        "exaone4",
        "Exaone4",
        more=(
            (
                replace(HALF, layers=turning("full_attention")),
                (Place("Exaone4Config", change=fields(sliding_window=None)),),
            ),
        ),
    ),
    *plain(replace(INTERLEAVED, layers=SLIDING_TURNS), "cohere2:Cohere2"),
    # The dense layers at the front also rotate, although they have full attention.
    case(
        replace(INTERLEAVED, layers=SLIDING_TURNS),
        "cohere2_moe",
        "Cohere2Moe",
        more=(
            (
                replace(INTERLEAVED, layers=(*turning(0, 1), *still(3))),
                (Place("Cohere2MoeConfig", change=dense),),
            ),
        ),
    ),
    case(replace(HALF, layers=(*turning(0), *still(3))), "smollm3", "SmolLM3"),
    *(
        case(
            HALF,
            model,
            name,
            more=((replace(HALF, layers=THETAS), (Place(f"{name}Config", change=LAYERS_OF_THETA),)),),
        )
        for model, name in (("granite_swa", "GraniteSWA"), ("granitemoe_swa", "GraniteMoeSWA"))
    ),
    *(
        case(replace(HALF, layers=(*turning(last - 1), *still(last))), model, f"{name}Text", text(name))
        for model, name, last in (("muse_glimmer", "MuseGlimmer", 51), ("muse_spark", "MuseSpark", 61))
    ),
    case(
        replace(HALF, layers=still(None)),
        "granitemoehybrid",
        "GraniteMoeHybrid",
        more=((HALF, (Place("GraniteMoeHybridConfig", change=fields(position_embedding_type="rope")),)),),
    ),
    case(
        replace(HALF, layers=still(None)),
        "zamba2",
        "Zamba2",
        more=((HALF, (Place("Zamba2Config", change=fields(use_mem_rope=True)),)),),
    ),
    case(
        HALF,
        "falcon",
        "Falcon",
        more=((replace(HALF, layers=still(None)), (Place("FalconConfig", change=fields(alibi=True)),)),),
    ),
    # Parameters by layer type.
    *plain(
        KEYED,
        "mimo_v2_flash:MiMoV2Flash modernbert:ModernBert modernbert_decoder:ModernBertDecoder olmo3:Olmo3"
        " lfm3:Lfm3 ultrabert:Ultrabert",
    ),
    *(
        case(
            replace(HALF, layers=keyed(full)),
            model,
            name,
            more=(
                (
                    replace(HALF, layers=keyed(full, other)),
                    (Place(f"{name}Config", change=alternating(full, other)),),
                ),
            ),
        )
        for model, name, full, other in (
            ("laguna", "Laguna", *TYPES),
            ("mellum", "Mellum", *TYPES),
            ("zaya", "Zaya", "hybrid", "hybrid_sliding"),
        )
    ),
    case(
        replace(HALF, layers=keyed("full_attention")),
        "step3p7",
        "Step3p7",
        text("Step3p7"),
        more=((KEYED, (Place("Step3p7TextConfig", change=step_types),)),),
    ),
    *part(KEYED, "gemma3:Gemma3:Gemma3:Gemma3Text"),
    *part(KEYED_EACH, "gemma3n:Gemma3n:Gemma3n:Gemma3nText"),
    *part(
        KEYED_WIDTH,
        "diffusion_gemma:DiffusionGemmaText:DiffusionGemma:DiffusionGemmaText"
        " gemma4:Gemma4Text:Gemma4:Gemma4Text"
        " gemma4_unified:Gemma4UnifiedText:Gemma4Unified:Gemma4UnifiedText",
    ),
    *part(
        replace(KEYED, width=width_of_layer),
        "embedding_gemma2:EmbeddingGemma2:EmbeddingGemma2:EmbeddingGemma2Text",
    ),
    case(
        KEYED,
        "t5gemma2",
        "T5Gemma2",
        (
            Place("T5Gemma2Config", "encoder.text_config", "encoder.text"),
            Place("T5Gemma2Config", "decoder", "decoder"),
            Place("T5Gemma2TextConfig"),
        ),
    ),
    case(replace(HALF, layers=(*keyed("sliding_attention"), *still("full_attention"))), "beam", "Beam"),
    # Three coordinates.
    *part(
        MROPE,
        "qwen2_vl:Qwen2VL:Qwen2VL:Qwen2VLText qwen2_5_vl:Qwen2_5_VL:Qwen2_5_VL:Qwen2_5_VLText"
        " paddleocr_vl:PaddleOCR:PaddleOCRVL:PaddleOCRText qwen3_vl:Qwen3VLText:Qwen3VL:Qwen3VLText"
        " qwen3_vl_moe:Qwen3VLMoeText:Qwen3VLMoe:Qwen3VLMoeText"
        " cosmos3_edge:Cosmos3EdgeText:Cosmos3Edge:Cosmos3EdgeText qwen3_5:Qwen3_5Text:Qwen3_5:Qwen3_5Text"
        " qwen3_5_moe:Qwen3_5MoeText:Qwen3_5Moe:Qwen3_5MoeText qwen4_exp:Qwen4ExpText:Qwen4Exp:Qwen4ExpText",
    ),
    *(
        case(
            form,
            model,
            f"{name}Text",
            (
                Place(f"{name}Config", "text_config", "text", sections(*counts, at="text_config")),
                Place(f"{name}TextConfig", change=sections(*counts)),
            ),
        )
        for model, name, form, counts in (
            ("glm4v", "Glm4v", MROPE_INTERLEAVED, (16, 24, 24)),
            ("glm4v_moe", "Glm4vMoe", MROPE, (3, 4, 4)),
            ("glm_image", "GlmImage", MROPE, (16, 24, 24)),
        )
    ),
    *part(MROPE_INTERLEAVED, "glm_ocr:GlmOcrText:GlmOcr:GlmOcrText"),
    *part(
        replace(MROPE_INTERLEAVED, frequencies=ernie_frequencies),
        "ernie4_5_vl_moe:Ernie4_5_VLMoeText:Ernie4_5_VLMoe:Ernie4_5_VLMoeText",
    ),
    case(
        replace(MROPE, layers=(*keyed("sliding_attention"), *still("full_attention"))),
        "cohere_compass",
        "CohereCompass",
        (
            Place("CohereCompassConfig", "text_config", "text", compass("text_config")),
            Place("CohereCompassTextConfig", change=compass()),
        ),
    ),
    case(
        MROPE,
        "qwen2_5_omni",
        "Qwen2_5Omni",
        (
            Place("Qwen2_5OmniConfig", "thinker_config.text_config", "thinker.text"),
            Place("Qwen2_5OmniConfig", "talker_config", "talker"),
            Place("Qwen2_5OmniTextConfig"),
        ),
    ),
    case(
        MROPE,
        "qwen3_omni_moe",
        "Qwen3OmniMoeThinkerText",
        (
            Place("Qwen3OmniMoeConfig", "thinker_config.text_config", "thinker.text", thinker_width),
            Place("Qwen3OmniMoeTextConfig", change=fields(head_dim=128)),
        ),
    ),
    case(
        MROPE,
        "qwen3_omni_moe",
        "Qwen3OmniMoeTalker",
        (Place("Qwen3OmniMoeConfig", "talker_config.text_config", "talker.text"),),
    ),
]
