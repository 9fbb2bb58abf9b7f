"""The rotary classes of models with one position or M-RoPE, each called as its attention calls it."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from hf._walk import (
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

# Positions: a range from 0, then unsorted positions with some far from 0.
LINE = (np.arange(12), np.array([3, 0, 40, 4093, 17, 1000, 1023]))


def grid(axes):
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


# How attentions rotate. `module` is the model's file.


def both(module, config, q, k, cos, sin):
    """Most attentions: q and k in one call; the function copies features beyond the width of cos."""
    return module.apply_rotary_pos_emb(q, k, cos, sin)


def each(module, config, q, k, cos, sin):
    """Gemma 3n and later: one array at a time, (B, S, H, D)."""
    turn = module.apply_rotary_pos_emb
    return tuple(turn(x.transpose(1, 2), cos, sin, unsqueeze_dim=2).transpose(1, 2) for x in (q, k))


def last_features(module, config, q, k, cos, sin):
    """DeepSeek-V4: the function slices the last features of a head."""
    return tuple(module.apply_rotary_pos_emb(x, cos, sin) for x in (q, k))


def sliced(module, config, q, k, cos, sin):
    """Phi, Persimmon, StableLM, GPT-NeoX Japanese: the attention slices the features that rotate."""
    share = config.rope_parameters["partial_rotary_factor"]
    turning = int(head_width(config) * share)
    turned = module.apply_rotary_pos_emb(q[..., :turning], k[..., :turning], cos, sin)
    return tuple(torch.cat((y, x[..., turning:]), dim=-1) for x, y in zip((q, k), turned, strict=True))


def latent(module, config, q, k, cos, sin):
    """DeepSeek-V3's q_pe and k_pe: from interleaved pairs to half pairs, unless the config chooses half."""
    if not getattr(config, "rope_interleave", True):
        return both(module, config, q, k, cos, sin)
    return module.apply_rotary_pos_emb_interleave(q, k, cos, sin)


def complex_heads_first(module, config, q, k, turns):
    """DeepSeek-V2: complex numbers, (B, H, S, D)."""
    return module.apply_rotary_emb(q, k, turns)


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
        one = module.deinterleave_head_dim(x.reshape(-1, 1, *x.shape[2:]))
        done.append(module.apply_rotary_pos_emb(one, one, cos, sin)[0].reshape(x.shape))
    return tuple(done)


# Widths


def width_of_layer(config, layer):
    """Return the head width of a layer type, for models whose layer types differ in it."""
    return config.per_layer_config[layer.key].head_dim


def latent_width(config, layer):
    """Return the width of q_pe and k_pe."""
    return config.qk_rope_head_dim


@dataclass(frozen=True)
class Form:
    """How a class is constructed, and how its attention rotates.

    `apply` rotates (q, k), each (B, H, S, D), by the tables that the module returns. `repeats` says how the
    tables repeat the number of each pair. `width` returns the size of the last axis of q and k.
    """

    apply: Callable[..., tuple[Any, Any]] = both
    repeats: str | None = "half"
    width: Callable[[Any, Layer], int] | None = None
    axes: int = 1
    layers: tuple[Layer, ...] = (Layer(),)
    sign: int = 1
    frequencies: Callable[[Any, Any], Any] | None = None
    positions: tuple[np.ndarray, ...] = field(default=(), compare=False)


HALF = Form()
INTERLEAVED = Form(repeats="interleaved")
# GLM, ERNIE: the tables are for half pairs, and the function reorders them; another kind than HALF.
HALF_TO_INTERLEAVED = Form(lambda *call: both(*call))
SLICED = Form(sliced)
LATENT = Form(latent, width=latent_width)
MROPE = Form(axes=3)
MROPE_INTERLEAVED = Form(repeats="interleaved", axes=3)
ACROSS_HEADS = Form(positions_first("apply_rotary_pos_emb"))  # the index of a head is its position


# Probes


def rotary(form, layer, model, cls, config, pos, **options):
    """Run the class, and its model's function, on one array of positions."""
    if not layer.turns:
        return Theirs(rotate=lambda arrays: arrays, inv_freq=np.zeros(0, np.float32))
    config = layer.change(config) if layer.change else config
    made = getattr(modeling(model), cls)(config, **options)
    ids = torch.from_numpy(np.ascontiguousarray(pos.T))
    ids = ids[None] if form.axes == 1 else ids[:, None]
    with torch.no_grad():
        out = made(torch.zeros(1, 1), ids, **({} if layer.key is None else {"layer_type": layer.key}))
    tables = out if isinstance(out, tuple) else (out,)
    prefix = "" if layer.key is None else f"{layer.key}_"
    frequencies = form.frequencies(made, config) if form.frequencies else getattr(made, f"{prefix}inv_freq")
    parts = (tables[0].real, tables[0].imag) if len(tables) == 1 else tables
    cos, sin = (one_per_pair(np.asarray(part[0]), form.repeats) for part in parts)

    def rotate(arrays):
        with torch.no_grad():
            turned = form.apply(modeling(model), config, *map(torch.from_numpy, arrays), *tables)
        return tuple(np.asarray(y) for y in turned)

    return Theirs(
        rotate=rotate,
        inv_freq=form.sign * np.asarray(frequencies, dtype=np.float32),
        factor=float(getattr(made, f"{prefix}attention_scaling")),
        cos=cos,
        sin=form.sign * sin,
    )


@dataclass(frozen=True)
class Place:
    """Where the config of a class is: a config class, "" for the class of its annotation, and a part of it.

    The config is made with `values`, then changed by `change`.
    """

    holder: str = ""
    part: str | None = None
    change: Callable[[Any], None] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    def config(self, model, cls):
        """Return a new config that holds the part."""
        if not self.holder:
            return own_config(model, cls)
        made = config_class(model, self.holder)(**self.values)
        if self.change is not None:
            self.change(made)
        return made


def probes(form, model, cls, places, **options):
    """Yield a probe for each place of a config and each layer type, and with another base and width."""
    for place in places:
        whole = place.config(model, cls)
        inner = at_part(whole, place.part)
        for layer in form.layers:
            yield probe(form, layer, model, cls, whole, inner, place.part, **options)
    if form.layers == (Layer(),) and form.axes == 1 and not form.width:
        changed = other(at_part(places[-1].config(model, cls), places[-1].part))
        if getattr(changed, "model_type", ""):
            yield replace(probe(form, Layer(), model, cls, changed, changed, **options), shown=False)


def probe(form, layer, model, cls, whole, inner, part=None, **options):
    """Return the probe of one layer type of one config."""
    return Probe(
        config=whole,
        theirs=lambda pos: rotary(form, layer, model, cls, inner, pos, **options),
        head_dim=form.width(inner, layer) if form.width else head_width(inner),
        positions=form.positions or (grid(form.axes) if form.axes > 1 and layer.turns else LINE),
        part=part,
        layer_type=layer.ask,
    )


@dataclass(frozen=True)
class TextCase(Case):
    """A case whose kind is its last form, with the place of the config, for random configs."""

    place: Place = Place()


# The classes


def text(name, own=None, change=lambda at: None):
    """Return the places of a text part: inside the whole config, and as a config of the class `own`.

    `change` returns a change of the config, whose text part is its attribute `at`.
    """
    inside = Place(f"{name}Config", "text", change("text_config"))
    return inside, Place(f"{own or name + 'Text'}Config", None, change(None))


def of_layers(*keys, turns=(), still=(), form=HALF, **options):
    """Return a form for layer types with keys of parameters, that rotate by the others, or do not rotate."""
    layers = [Layer(key, key) for key in keys] + [
        one if isinstance(one, Layer) else Layer(one) for one in turns
    ]
    return replace(form, layers=(*layers, *(Layer(one, turns=False) for one in still)), **options)


def case(form, model, name, places=(Place(),), *more):
    """Return a class's case: a form with the places of its configs, and `more` forms, each with a place."""
    cls = f"{name}RotaryEmbedding"

    def made():
        for shape, where in ((form, places), *((shape, (place,)) for shape, place in more)):
            yield from probes(shape, model, cls, where)

    last, place = more[-1] if more else (form, places[-1])
    return TextCase(model, cls, made, kind=last, place=place)


def classes(form, names):
    """Return the cases of classes: model:Class[:whole config:part,part[:config of a part,...]]."""
    found = []
    for model, name, *where in (entry.split(":") for entry in names.split()):
        root, parts, own = (*where, "", "", "")[:3]
        places = [Place(f"{root}Config", one) for one in parts.split(",") if one]
        places += [Place(f"{one}Config") for one in own.split(",") if one]
        found.append(case(form, model, name, tuple(places) or (Place(),)))
    return found


def ernie_frequencies(made, config):
    """Reorder the class's frequencies, h, w, t, by pair: h and w alternate, then t."""
    h, w, t = made.inv_freq.split(made.mrope_section)
    return torch.cat((torch.stack((h, w), dim=-1).flatten(), t))


# Changes of default configs. `at` is the attribute with the config of the part.


def fields(at=None, **values):
    """Return a change that sets fields of a config."""

    def change(config):
        for key, value in values.items():
            setattr(config if at is None else getattr(config, at), key, value)

    return change


def sections(*counts):
    """Return changes that set sections: the default sections do not sum to the pairs, and cannot run."""

    def change(at, config):
        inner = config if at is None else getattr(config, at)
        inner.rope_parameters = {**inner.rope_parameters, "mrope_section": list(counts)}

    return lambda at: functools.partial(change, at)


def alternating(*names, at=None, **values):
    """Return a change that alternates two layer types; the default has parameters for both, uses one."""

    def change(config):
        inner = config if at is None else getattr(config, at)
        types = [names[i % 2] for i in range(inner.num_hidden_layers)]
        fields(layer_types=types, **values)(inner)

    return change


def theta(value):
    """Return a change that makes the config for the module of a layer with its own base."""

    def change(config):
        made = type(config)()
        made.rope_parameters = {**config.rope_parameters, "rope_theta": value}
        return made

    return change


def compass(at):
    """Return a change of Cohere Compass's config: its default has no parameters, and cannot run."""
    rope = {"rope_type": "default", "rope_theta": 50000.0, "mrope_section": [24, 20, 20]}
    kinds = {"sliding_attention": rope, "full_attention": None}
    return alternating(*kinds, at=at, rope_parameters=kinds)


def dense(config):
    """Make Cohere 2 MoE's first layer dense and of full attention."""
    rest = config.num_hidden_layers - 4
    types = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    config.layer_types = types + ["sliding_attention"] * rest
    config.mlp_layer_types = ["dense"] + ["sparse"] * (rest + 3)


def thinker_width(config):
    """Set the width that the checkpoints have; the default, 73, is odd and cannot run."""
    config.thinker_config.text_config.head_dim = 128


def molmo_probes():
    """Yield Molmo 2's default, and layers in and out of `rope_scaling_layers`."""
    names = "molmo2", "Molmo2RotaryEmbedding"
    yield from probes(HALF, *names, text("Molmo2"))
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    place = Place("Molmo2TextConfig", change=fields(rope_parameters=rope, rope_scaling_layers=[0, 2]))
    for layer, scaled in ((0, True), (1, False)):
        yield from probes(of_layers(turns=(layer,)), *names, (place,), scaled=scaled)


TYPES = FULL, SLIDING = "full_attention", "sliding_attention"
KEYED = of_layers(*TYPES)
KEYED_WIDTH = replace(KEYED, apply=each, width=width_of_layer)
SLIDING_TURNS = of_layers(turns=(SLIDING,), still=(FULL,))
SLIDING_KEYED = of_layers(SLIDING, still=(FULL,))
STILL = of_layers(still=(None,))
LAYERS_OF_THETA = fields(layer_rope_theta=[10000.0, 50000.0, 0, 10000.0] * 8)
THETAS = of_layers(turns=(0, Layer(1, change=theta(50000.0))), still=(2,))
# The two types of layers of Step 3.7's checkpoints; the default has one.
STEP_RULE = {"rope_type": "default", "rope_theta": 10000.0}
STEP_RULES = {FULL: {**STEP_RULE, "rope_theta": 5e6, "partial_rotary_factor": 0.5}, SLIDING: STEP_RULE}
ESM = {"position_embedding_type": "rotary", "vocab_size": 33, "pad_token_id": 1}
OTHER_ESM = {**ESM, "rope_theta": 300.0, "hidden_size": 320, "num_attention_heads": 5}

CASES: list[TextCase | Case] = [
    *classes(
        HALF,
        "llama:Llama apertus:Apertus arcee:Arcee bitnet:BitNet bamba:Bamba chameleon:Chameleon cwm:Cwm"
        " dbrx:Dbrx diffllama:DiffLlama doge:Doge dots1:Dots1 eurobert:EuroBert evolla:Evolla"
        " falcon_h1:FalconH1 flex_olmo:FlexOlmo gemma:Gemma gemma2:Gemma2 glm4_moe:Glm4Moe gpt_neox:GPTNeoX"
        " granite:Granite granitemoe:GraniteMoe granitemoeshared:GraniteMoeShared gte:Gte hrm_text:HrmText"
        " hunyuan_v1_dense:HunYuanDenseV1 hunyuan_v1_moe:HunYuanMoEV1 hy_v3:HYV3 hyperclovax:HyperCLOVAX"
        " idefics:Idefics jais2:Jais2 jetmoe:JetMoe jina_embeddings_v3:JinaEmbeddingsV3 lfm2:Lfm2"
        " lfm2_moe:Lfm2Moe minimax:MiniMax minimax_m2:MiniMaxM2 ministral:Ministral"
        " ministral3:Ministral3 mistral:Mistral mixtral:Mixtral muse_glimmer_assistant:MuseGlimmerAssistant"
        " nemotron:Nemotron nomic_bert:NomicBert olmo:Olmo olmo2:Olmo2 olmo_hybrid:OlmoHybrid olmoe:Olmoe"
        " phi3:Phi3 phi4_multimodal:Phi4Multimodal phimoe:Phimoe qwen2:Qwen2 qwen2_moe:Qwen2Moe qwen3:Qwen3"
        " qwen3_moe:Qwen3Moe qwen3_next:Qwen3Next recurrent_gemma:RecurrentGemma seed_oss:SeedOss"
        " solar_open:SolarOpen starcoder2:Starcoder2 vaultgemma:VaultGemma",
    ),
    # Sound and proteins.
    *classes(
        HALF,
        "esmc:Esmc gradium_phonon_tts:GradiumPhononTTS higgs_audio_v2:HiggsAudioV2"
        " kyutai_speech_to_text:KyutaiSpeechToText mimi:Mimi moonshine:Moonshine"
        " moonshine_streaming:MoonshineStreaming moshi:Moshi pocket_tts:PocketTTS"
        " pocket_tts_audio_tokenizer:PocketTTSAudioTokenizer",
    ),
    *classes(replace(HALF, positions=(*LINE, np.array([-7, -1, 0, 1, 4, 30]))), "timesfm2_5:TimesFm2_5"),
    *classes(ACROSS_HEADS, "neucodec:NeuCodec xcodec2:Xcodec2"),
    *classes(
        HALF,
        "deepseek_ocr2:DeepseekOcr2Vision:DeepseekOcr2:vision.encoder dia:Dia:Dia:encoder,decoder"
        " dots3_note:Dots3NoteAudio:Dots3Note:audio evolla:EvollaSaProt:Evolla:protein_encoder"
        " glmasr:GlmAsr:GlmAsr:audio lasr:LasrEncoder:LasrCTC:encoder"
        " nemotron3_5_transcribe:Nemotron3_5Transcribe:Nemotron3_5Transcribe:audio.asr,word_timestamp"
        " nemotron3_diarization:Nemotron3Diarization:Nemotron3Diarization:audio"
        " pe_audio:PeAudioEncoder:PeAudio:audio pe_audio_video:PeAudioVideoEncoder:PeAudioVideo:audio_video"
        " pe_video:PeVideoEncoder:PeVideo:video"
        " qwen3_omni_moe:Qwen3OmniMoe:Qwen3OmniMoe:code2wav,talker.code_predictor"
        " voxtral_realtime:VoxtralRealtime:VoxtralRealtime:audio,text",
    ),
    *classes(replace(HALF, apply=first_head), "qwen2_5_omni:Qwen2_5OmniDiT:Qwen2_5Omni:token2wav.dit"),
    case(HALF, "csm", "Csm", (Place("CsmConfig"), Place("CsmConfig", "depth_decoder"))),
    case(
        *(HALF, "esm", "Esm", tuple(Place("EsmConfig", values=values) for values in (ESM, OTHER_ESM))),
        (STILL, Place("EsmConfig", values={"vocab_size": 33, "pad_token_id": 1})),
    ),
    # Text parts of other models.
    *classes(
        HALF,
        "aria:AriaText:Aria:text:AriaText deepseek_ocr2:DeepseekOcr2Text:DeepseekOcr2:text:DeepseekOcr2Text"
        " emu3:Emu3:Emu3:text:Emu3Text"
        " granite_docling:GraniteDoclingText:GraniteDocling:text:GraniteDoclingText"
        " minimax_m3_vl:MiniMaxM3VL:MiniMaxM3VL:text:MiniMaxM3VLText mllama:Mllama:Mllama:text:MllamaText"
        " unlimited_ocr:UnlimitedOcrText:UnlimitedOcr:text:UnlimitedOcrText"
        " granite4_vision:Granite4VisionText:Granite4Vision:text:Granite4VisionText",
    ),
    Case("molmo2", "Molmo2RotaryEmbedding", molmo_probes),
    *classes(HALF, "t5gemma:T5Gemma:T5Gemma:encoder,decoder"),
    # The patcher, both local models and the global model
    *classes(INTERLEAVED, "blt:Blt:Blt:patcher,encoder,decoder,global:BltLocalEncoder,BltGlobalTransformer"),
    # Other pairings, and functions of other shapes.
    *classes(INTERLEAVED, "cohere:Cohere"),
    *classes(
        HALF_TO_INTERLEAVED, "glm:Glm glm4:Glm4 ernie4_5:Ernie4_5 ernie4_5_moe:Ernie4_5_Moe helium:Helium"
    ),
    *classes(Form(repeats=None), "gpt_oss:GptOss openai_privacy_filter:OpenAIPrivacyFilter"),
    *classes(SLICED, "gpt_neox_japanese:GPTNeoXJapanese persimmon:Persimmon phi:Phi stablelm:StableLm"),
    *classes(replace(HALF, sign=-1), "nanochat:NanoChat"),  # its rotate_half has the opposite sign
    # q_pe and k_pe.
    *classes(
        LATENT,
        "axk1:AXK1 axk2:AXK2 bailing_hybrid:BailingHybrid deepseek_v3:DeepseekV3 deepseek_v32:DeepseekV32"
        " glm4_moe_lite:Glm4MoeLite glm_moe_dsa:GlmMoeDsa longcat_flash:LongcatFlash mistral4:Mistral4"
        " youtu:Youtu",
    ),
    *classes(replace(HALF, width=latent_width), "hy_v4:HYV4 minicpm3:MiniCPM3"),
    *classes(Form(complex_heads_first, None, latent_width), "deepseek_v2:DeepseekV2"),
    *classes(
        of_layers(
            turns=(None, 0),
            still=(3,),
            form=LATENT,
            frequencies=lambda made, config: made.inv_freq * made.alpha.exp(),
        ),
        "mistral_large4:MistralLarge4Text:MistralLarge4:text:MistralLarge4Text",
    ),
    *classes(
        of_layers("indexed_attention", SLIDING, form=LATENT),
        "dots3_note:Dots3NoteText:Dots3Note:text:Dots3NoteText",
    ),
    # Layers that do not rotate.
    *classes(
        of_layers(
            turns=("chunked_attention", 0),
            still=(FULL, 3),
            form=Form(positions_first("apply_rotary_emb"), None),
        ),
        "llama4:Llama4Text:Llama4:text:Llama4Text",
    ),
    *classes(SLIDING_TURNS, "afmoe:Afmoe exaone_moe:ExaoneMoe flint:Flint kolibri1:Kolibri1"),
    # Without a window, all layers rotate.
    case(
        *(SLIDING_TURNS, "exaone4", "Exaone4", (Place(),)),
        (of_layers(turns=(FULL,)), Place("Exaone4Config", change=fields(sliding_window=None))),
    ),
    *classes(replace(SLIDING_TURNS, repeats="interleaved"), "cohere2:Cohere2"),
    # The dense layers at the front also rotate, although they have full attention.
    case(
        *(replace(SLIDING_TURNS, repeats="interleaved"), "cohere2_moe", "Cohere2Moe", (Place(),)),
        (of_layers(turns=(0, 1), still=(3,), form=INTERLEAVED), Place("Cohere2MoeConfig", change=dense)),
    ),
    *classes(of_layers(turns=(0,), still=(3,)), "smollm3:SmolLM3"),
    *(
        case(HALF, model, name, (Place(),), (THETAS, Place(f"{name}Config", change=LAYERS_OF_THETA)))
        for model, name in (("granite_swa", "GraniteSWA"), ("granitemoe_swa", "GraniteMoeSWA"))
    ),
    *(
        case(of_layers(turns=(last - 1,), still=(last,)), model, f"{name}Text", text(name))
        for model, name, last in (("muse_glimmer", "MuseGlimmer", 51), ("muse_spark", "MuseSpark", 61))
    ),
    # Models that rotate by a field of the config.
    *(
        case(default, model, name, (Place(),), (changed, Place(f"{name}Config", change=fields(**values))))
        for default, changed, model, name, values in (
            (STILL, HALF, "granitemoehybrid", "GraniteMoeHybrid", {"position_embedding_type": "rope"}),
            (STILL, HALF, "zamba2", "Zamba2", {"use_mem_rope": True}),
            (HALF, STILL, "falcon", "Falcon", {"alibi": True}),
        )
    ),
    # Parameters by layer type.
    *classes(
        KEYED,
        "mimo_v2_flash:MiMoV2Flash modernbert:ModernBert modernbert_decoder:ModernBertDecoder olmo3:Olmo3"
        " lfm3:Lfm3 ultrabert:Ultrabert",
    ),
    *(
        case(
            *(of_layers(names[0]), model, name, (Place(),)),
            (of_layers(*names), Place(f"{name}Config", change=alternating(*names))),
        )
        for model, name, names in (
            ("laguna", "Laguna", TYPES),
            ("mellum", "Mellum", TYPES),
            ("zaya", "Zaya", ("hybrid", "hybrid_sliding")),
        )
    ),
    case(
        *(of_layers(FULL), "step3p7", "Step3p7", text("Step3p7")),
        (KEYED, Place("Step3p7TextConfig", change=alternating(*TYPES, rope_parameters=STEP_RULES))),
    ),
    *classes(KEYED, "gemma3:Gemma3:Gemma3:text:Gemma3Text"),
    *classes(replace(KEYED, apply=each), "gemma3n:Gemma3n:Gemma3n:text:Gemma3nText"),
    *classes(
        KEYED_WIDTH,
        "diffusion_gemma:DiffusionGemmaText:DiffusionGemma:text:DiffusionGemmaText"
        " gemma4:Gemma4Text:Gemma4:text:Gemma4Text"
        " gemma4_unified:Gemma4UnifiedText:Gemma4Unified:text:Gemma4UnifiedText",
    ),
    *classes(
        replace(KEYED, width=width_of_layer),
        "embedding_gemma2:EmbeddingGemma2:EmbeddingGemma2:text:EmbeddingGemma2Text",
    ),
    *classes(KEYED, "t5gemma2:T5Gemma2:T5Gemma2:encoder.text,decoder:T5Gemma2Text"),
    *classes(SLIDING_KEYED, "beam:Beam"),
    *classes(of_layers("main", "compress", form=Form(last_features, None)), "deepseek_v4:DeepseekV4"),
    # Three coordinates.
    *classes(
        MROPE,
        "qwen2_vl:Qwen2VL:Qwen2VL:text:Qwen2VLText qwen2_5_vl:Qwen2_5_VL:Qwen2_5_VL:text:Qwen2_5_VLText"
        " paddleocr_vl:PaddleOCR:PaddleOCRVL:text:PaddleOCRText qwen3_vl:Qwen3VLText:Qwen3VL:text:Qwen3VLText"
        " qwen3_vl_moe:Qwen3VLMoeText:Qwen3VLMoe:text:Qwen3VLMoeText"
        " cosmos3_edge:Cosmos3EdgeText:Cosmos3Edge:text:Cosmos3EdgeText"
        " qwen3_5:Qwen3_5Text:Qwen3_5:text:Qwen3_5Text"
        " qwen3_5_moe:Qwen3_5MoeText:Qwen3_5Moe:text:Qwen3_5MoeText"
        " qwen4_exp:Qwen4ExpText:Qwen4Exp:text:Qwen4ExpText",
    ),
    *(
        case(form, model, f"{name}Text", text(name, change=sections(*counts)))
        for model, name, form, counts in (
            ("glm4v", "Glm4v", MROPE_INTERLEAVED, (16, 24, 24)),
            ("glm4v_moe", "Glm4vMoe", MROPE, (3, 4, 4)),
            ("glm_image", "GlmImage", MROPE, (16, 24, 24)),
        )
    ),
    *classes(MROPE_INTERLEAVED, "glm_ocr:GlmOcrText:GlmOcr:text:GlmOcrText"),
    *classes(
        replace(MROPE_INTERLEAVED, frequencies=ernie_frequencies),
        "ernie4_5_vl_moe:Ernie4_5_VLMoeText:Ernie4_5_VLMoe:text:Ernie4_5_VLMoeText",
    ),
    case(
        replace(SLIDING_KEYED, axes=3),
        *("cohere_compass", "CohereCompass", text("CohereCompass", change=compass)),
    ),
    *classes(MROPE, "qwen2_5_omni:Qwen2_5Omni:Qwen2_5Omni:thinker.text,talker:Qwen2_5OmniText"),
    case(
        *(MROPE, "qwen3_omni_moe", "Qwen3OmniMoeThinkerText"),
        (
            Place("Qwen3OmniMoeConfig", "thinker.text", thinker_width),
            Place("Qwen3OmniMoeTextConfig", change=fields(head_dim=128)),
        ),
    ),
    *classes(MROPE, "qwen3_omni_moe:Qwen3OmniMoeTalker:Qwen3OmniMoe:talker.text"),
]


# Models whose code has no rotary class: GPT-J's attention rotates the first features, RoFormer's whole heads


def gptj(model, config, pos):
    owner, width = modeling(model), config.rotary_dim
    sin, cos = owner.create_sinusoidal_positions(int(pos.max()) + 1, width)[pos].chunk(2, dim=-1)

    def rotate(arrays):
        done = [x.copy() for x in arrays]
        for x in done:
            first = torch.tensor(x[..., :width]).transpose(1, 2)
            x[..., :width] = owner.apply_rotary_pos_emb(first, sin[None], cos[None]).transpose(1, 2)
        return tuple(done)

    return Theirs(rotate, None, cos=cos.numpy(), sin=sin.numpy())


def roformer(config, pos):
    owner = modeling("roformer")
    rows = owner.RoFormerSinusoidalPositionalEmbedding(int(pos.max()) + 1, head_width(config)).create_weight()
    own, (sin, cos) = owner.RoFormerSelfAttention.apply_rotary_position_embeddings, rows[pos].chunk(2, dim=-1)

    def rotate(arrays):
        return tuple(x.numpy() for x in own(rows[pos], *map(torch.tensor, arrays)))

    return Theirs(rotate, None, cos=cos.numpy(), sin=sin.numpy())


def functions():
    """Yield probes of these models, with the default widths and with others."""
    of_gptj = {"n_embd": 96, "n_head": 4, "rotary_dim": 8}
    for model, name, theirs, values in (
        ("gptj", "GPTJ", functools.partial(gptj, "gptj"), of_gptj),
        ("codegen", "CodeGen", functools.partial(gptj, "codegen"), of_gptj),
        ("roformer", "RoFormer", roformer, {"hidden_size": 96, "num_attention_heads": 4}),
    ):
        for changes in ({}, values):
            config = config_class(model, f"{name}Config")(**changes)
            positions = (np.arange(12), np.array([3, 0, 40, 1000, 17]))
            yield Probe(config, functools.partial(theirs, config), head_width(config), positions)
