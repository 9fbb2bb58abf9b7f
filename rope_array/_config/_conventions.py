"""Conventions of model families: the parts of a rotation that a config.json leaves to the model's code.

A `Convention` is one rotary module. `TEXT` is keyed by the `model_type` of the config part that holds the
module's parameters, or by ``"root model_type:part"`` if the part's model type is shared or missing.
Read from the modeling and configuration files of transformers 5.23.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from rope_array._errors import SpecError, short
from rope_array._spec.axes import Axes

Pairing = Literal["interleaved", "half"]


class Values(Protocol):
    """The values of a config part for the functions of a `Convention`: stated values, then class defaults.

    The typed getters check values, as the config may hold anything.
    """

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value under a key, unchecked."""

    def stated(self, name: str) -> Any:
        """Return the stated value under a key, unchecked and without a record; None if there is none."""

    def integer(self, name: str, default: int | None = None) -> int:
        """Return the whole number under a key, or raise an error that names the key."""

    def number(self, name: str, default: float | None = None) -> float:
        """Return the finite number under a key, or raise an error that names the key."""

    def is_null(self, name: str) -> bool:
        """Return whether a key is stated as null, and no other key states its value."""

    def base(self, name: str, default: float) -> float | None:
        """Return the number under a key, the default if the key is missing, or None if it is null."""

    def width(self, *keys: str) -> int:
        """Return the first stated of several widths; ``"a/b"`` divides the values of two keys."""

    def layer_types(self) -> tuple[str, ...]:
        """Return the distinct layer types of the model, stated or by its class's rule."""

    def types_of_layers(self) -> Sequence[str]:
        """Return the type of each layer; empty if it is not known."""


Parameters = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Convention:
    """The behaviour of one rotary module that its config does not state.

    Attributes
    ----------
    pairing, out_pairing
        The pairing of features read and written.
    width
        Keys of the head's width, the first stated wins; ``"hidden_size/num_attention_heads"`` divides, a
        number before ``*`` multiplies, a number alone is a constant of the code, and ``"layer.key"`` is the
        layer's value in `per_layer_config`.
    rotated
        The rotated width, from the part's values and the head's width. None: the share of the width that
        `partial_rotary_factor` states, cut to a whole number.
    partial
        False: the model's default rule ignores `partial_rotary_factor` (scaling rules use it).
    share
        The rotated share of the head under the model's default rule if the config states none.
    absolute
        `rotary_dim` states the rotated width, in features.
    start
        "first" or "last": the place of the rotated slice in the head.
    pairing_flag
        A key; if it is false, the pairing read and written is "half".
    sign
        -1 if the model rotates by negative angles.
    theta
        The base if neither the config nor the class defaults have a base.
    theta_keys, share_keys
        Keys, outside of the rotary parameters, of the base and of the rotated share of the head.
    bases
        The keys, outside of the rotary parameters, from which `parameters` takes the base of a layer type.
    null_notes
        The meaning of a null in older code, for an error, by the key of a base.
    theta_note
        A note for the reader if the base comes from `theta_keys`.
    axes
        The map of pairs to axes, from the part's values and the rotated width (None: one position).
    sections
        The layout of `mrope_section`: "chunked", "interleaved" or "alternating" (None: not read).
    default_sections
        The sections of a model whose code has them.
    scaling, inv_freq, attention_factor
        Computed from the part's values and the rotated width. None: by `rope_type`.
    drops
        The keys among `rope_parameters` and `rope_scaling` that the model's code ignores.
    by_type
        The class reads parameters by layer type only, and drops flat parameters and an older `type`.
    null_head_dim
        A head_dim of null means that there is none, not the class's default.
    types
        The rope types that the module accepts (None: all).
    type_names
        Rope types with another meaning in this model, and the meaning.
    parameters
        Rewrites the rotary parameters before they are read, from the part's values and the parameters.
    layers
        Conventions of single layer types that differ from this convention.
    labels
        The key of the rotary parameters of a layer type, if it differs from the type's name.
    overrides
        The values of a layer type that the class sets if the config states no `per_layer_config`.
    keys
        Further rotary keys that the model's code reads: they are neither refused nor noted.
    never
        The reason that the model's code rotates nothing, whatever the config states.
    nope
        Layer types without rotation.
    rotates
        Whether a layer, by index, rotates although its type is in `nope`.
    nope_at
        Whether a layer, by index, has no rotation.
    nope_needs, nope_unless
        `nope` and `nope_at` apply if the first key is set, and the second is not stated.
    nope_every
        Every n-th layer has no rotation, if neither `no_rope_layers` nor an interval is stated.
    scaled_layers
        A key that lists the layers with the stated rule; the others have none.
    unless
        Keys with the values that the module needs; with other values the layer has no rotation.
    null_theta
        A stated base of null means that nothing rotates.
    refusal
        The reason, for an error, that this is no rotation of pairs.
    note
        A note for the reader of the result.
    variant
        Returns the convention of one model from the part's content, where a model type has several.
    """

    pairing: Pairing = "half"
    out_pairing: Pairing | None = None
    width: tuple[str, ...] = ("head_dim", "hidden_size/num_attention_heads")
    rotated: "Callable[[Values, int], int] | None" = None
    partial: bool = True
    share: float = 1.0
    absolute: bool = False
    start: Literal["first", "last"] = "first"
    pairing_flag: str | None = None
    sign: int = 1
    theta: float = 10000.0
    theta_keys: tuple[str, ...] = ("rope_theta",)
    bases: Mapping[str, str] = field(default_factory=dict)
    null_notes: Mapping[str, str] = field(default_factory=dict)
    theta_note: str | None = None
    share_keys: tuple[str, ...] = ("partial_rotary_factor",)
    axes: "Callable[[Values, int], Any] | None" = None
    sections: Literal["chunked", "interleaved", "alternating"] | None = None
    default_sections: tuple[int, ...] | None = None
    scaling: "Callable[[Values, int], Any] | None" = None
    inv_freq: "Callable[[Values, int], tuple[float, ...]] | None" = None
    attention_factor: "Callable[[Values], float] | None" = None
    drops: tuple[str, ...] = ()
    by_type: bool = False
    null_head_dim: bool = False
    types: tuple[str, ...] | None = None
    type_names: Mapping[str, str] = field(default_factory=dict)
    parameters: "Callable[[Values, Parameters], Parameters] | None" = None
    layers: "Mapping[str, Convention]" = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    overrides: "Callable[[Values, str], Mapping[str, Any]] | None" = None
    keys: tuple[str, ...] = ()
    never: str | None = None
    nope: tuple[str, ...] = ()
    rotates: "Callable[[Values, int], bool] | None" = None
    nope_at: "Callable[[Values, int], bool] | None" = None
    nope_needs: str | None = None
    nope_unless: str | None = None
    nope_every: int | None = None
    scaled_layers: str | None = None
    unless: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    null_theta: bool = False
    refusal: str | None = None
    note: str | None = None
    variant: "Callable[[Mapping[str, Any]], Convention] | None" = None


# Rotary parameters from a family's older keys


def _by_layer_type(
    thetas: Mapping[str, tuple[str, float]], scaled: tuple[str, ...]
) -> Callable[[Values, Parameters], Parameters]:
    """Return `parameters` for families with a base per layer type; older configs scale the types `scaled`."""

    def parameters(values: Values, stated: Parameters) -> Parameters:
        nested = {k: v for k, v in stated.items() if isinstance(v, Mapping)}
        flat = {k: v for k, v in stated.items() if k not in thetas}
        found: Parameters = {}
        for label, (key, theta) in thetas.items():
            own = nested.get(label) if nested else (flat if label in scaled else None)
            found[label] = {"rope_theta": values.base(key, theta) if key else theta, **(own or {})}
        return found

    return parameters


_gemma3 = _by_layer_type(
    {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)},
    ("full_attention",),
)
_modernbert = _by_layer_type(
    {"full_attention": ("global_rope_theta", 1.6e5), "sliding_attention": ("local_rope_theta", 1e4)},
    ("full_attention", "sliding_attention"),
)
# The class uses a rope_theta outside of the parameters for full_attention only.
_olmo3 = _by_layer_type(
    {"full_attention": ("rope_theta", 5e5), "sliding_attention": ("", 5e5)}, ("full_attention",)
)


def _neomme(values: Values, stated: Parameters) -> Parameters:
    defaults = {"full_attention": (1e6, 0.25), "sliding_attention": (1e4, 1.0)}
    return {
        label: {
            "rope_theta": values.number("rope_theta", theta),
            "partial_rotary_factor": share,
            **(stated.get(label) or {}),
        }
        for label, (theta, share) in defaults.items()
    }


def _deepseek_v4(values: Values, stated: Parameters) -> Parameters:
    """Scale only the layers with a compressor, with an amplitude of 1."""
    if isinstance(stated.get("main"), Mapping) and isinstance(stated.get("compress"), Mapping):
        return {"main": stated["main"], "compress": stated["compress"]}
    share = _share_of_v4(values)
    rule = {k: v for k, v in stated.items() if k not in ("main", "compress")}
    main = {"rope_theta": values.base("rope_theta", 1e4), "partial_rotary_factor": share}
    compress = {**rule, "rope_theta": values.base("compress_rope_theta", 1.6e5)}
    compress["partial_rotary_factor"] = share
    if compress.get("rope_type", compress.get("type")) == "yarn":
        compress.setdefault("attention_factor", 1.0)
    return {"main": main, "compress": compress}


def _share_of_v4(values: Values) -> float:
    if values.get("partial_rotary_factor") is not None:
        return values.number("partial_rotary_factor")
    head = values.integer("head_dim", 512)
    return (
        values.integer("qk_rope_head_dim") / head if values.get("qk_rope_head_dim") is not None else 64 / 512
    )


def _dots3_note(values: Values, stated: Parameters) -> Parameters:
    thetas = {"sliding_attention": values.base("swa_rope_theta", 5e4)}
    theta = values.base("rope_theta", 8e7)
    labels = values.layer_types() or ("indexed_attention", "sliding_attention")
    if any(isinstance(stated.get(label), Mapping) for label in labels):
        return stated
    if stated or values.stated("rope_parameters") is not None:
        return {label: {"rope_theta": theta, **stated} for label in labels}
    return {label: {"rope_theta": thetas.get(label, theta)} for label in labels}


def _dots3_sliding(values: Values, label: str) -> Mapping[str, Any]:
    if label != "sliding_attention":
        return {}
    if values.get("swa_qk_rope_head_dim") is not None:
        return {"qk_rope_head_dim": values.integer("swa_qk_rope_head_dim")}
    width = values.integer("swa_head_dim", 256) - values.integer("swa_qk_nope_head_dim", 192)
    return {"qk_rope_head_dim": width}


def _step3p7(values: Values, stated: Parameters) -> Parameters:
    labels = values.layer_types() or ("full_attention",)
    if all(isinstance(stated.get(label), Mapping) for label in labels):
        return {label: stated[label] for label in labels}
    flat = {k: v for k, v in stated.items() if not isinstance(v, Mapping)}
    thetas = None if values.is_null("rope_theta") else values.get("rope_theta", 1e4)
    shares = values.get("partial_rotary_factors")
    types = list(values.types_of_layers()) or labels
    found: Parameters = {}
    for label in labels:
        index = types.index(label)
        found[label] = {"rope_theta": _nth("rope_theta", thetas, index)}
        if shares:
            found[label]["partial_rotary_factor"] = _nth("partial_rotary_factors", shares, index)
        if label == "full_attention":
            found[label].update(flat)
    return found


def _ultrabert(values: Values, stated: Parameters) -> Parameters:
    if stated or values.stated("rope_parameters") is not None:
        return stated
    thetas = values.get("rope_theta")
    if thetas is None:
        return {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 2.56e6}}
    if not isinstance(thetas, (list, tuple)):
        raise SpecError(f"rope_theta is {short(thetas)}; give a base for each layer.")
    types = values.types_of_layers()
    return {kind: {"rope_theta": theta} for kind, theta in zip(types, thetas, strict=False)}


def _nth(name: str, values: Any, index: int) -> Any:
    if not isinstance(values, (list, tuple)):
        return values
    if index >= len(values):
        raise SpecError(f"{name} has {len(values)} values and layer_types more; give one for each layer.")
    return values[index]


def _dbrx(values: Values, stated: Parameters) -> Parameters:
    """Leave out the class's own base, which a config object has in addition to the base of `attn_config`."""
    nested, base = (values.stated(key) for key in ("attn_config.rope_theta", "rope_theta"))
    base = stated.get("rope_theta", base)
    if nested is None or base in (None, nested):
        return stated
    if base != 1e4:
        raise SpecError(
            f"attn_config.rope_theta is {short(nested)}, and rope_theta {short(base)}; leave one out."
        )
    return {key: value for key, value in stated.items() if key != "rope_theta"}


def _hunyuan_vl(values: Values, stated: Parameters) -> Parameters:
    name = "mrope_section" if stated.get("mrope_section") else "xdrope_section"
    if sections := stated.get(name):
        raise SpecError(
            f"{name} is {short(sections)}, and HunYuan-VL spreads sections over the full width of the "
            "head: the two features of a pair follow different coordinates, which is no rotation unless all "
            "are equal. For text alone, leave the sections out."
        )
    return stated


# Layers


def _is_dense_prefix(values: Values, index: int) -> bool:
    """Return whether a layer is in Cohere2-MoE's dense prefix, which rotates with any attention."""
    if values.get("prefix_dense_sliding_window_pattern", 1) != 1:
        return False
    kinds = values.get("mlp_layer_types")
    if isinstance(kinds, (list, tuple)) and index < len(kinds):
        return bool(kinds[index] == "dense")
    return values.get("first_k_dense_replace") is not None and index < values.integer("first_k_dense_replace")


def _is_every_fourth_from_the_last(values: Values, index: int) -> bool:
    """Return whether a layer of Muse has no base in the `layer_rope_theta` that its class makes."""
    return (values.integer("num_hidden_layers") - 1 - index) % 4 == 0


def _is_cross_attention(values: Values, index: int) -> bool:
    """Return whether a layer of Mllama attends to the image alone, without a position."""
    layers = values.get("cross_attention_layers", (3, 8, 13, 18, 23, 28, 33, 38))
    if not isinstance(layers, (list, tuple)):
        raise SpecError(f"cross_attention_layers is {short(layers)}; give a list of indices of layers.")
    return index in layers


# Families

PLAIN = _HALF = Convention(partial=False)
_PARTIAL = Convention()
_NEOX = Convention(theta_keys=("rotary_emb_base",), share_keys=("rotary_pct",))
_INTERLEAVED = Convention(pairing="interleaved", partial=False)
_INTERLEAVED_PARTIAL = Convention(pairing="interleaved")
_MLA = Convention(
    pairing="interleaved",
    out_pairing="half",
    width=("qk_rope_head_dim",),
    partial=False,
    rotated=lambda values, width: width,
)
_MLA_HALF = replace(_MLA, pairing="half", out_pairing=None)
# Of the indexers of sparse attention, which have heads of their own.
_INDEXER = replace(
    _MLA,
    width=("index_head_dim",),
    rotated=lambda values, width: values.width("layer.qk_rope_head_dim", "qk_rope_head_dim"),
    note="this is the rope of the indexer, which selects the tokens to attend to; attention has another",
)
_INDEXER_HALF = replace(_INDEXER, pairing="half", out_pairing=None)
_WITHOUT_LATENT = replace(
    _HALF,
    width=("hidden_size/num_attention_heads",),
    note="the attention is Llama's, without latents, as in DeepSeek's own code",
)


def _deepseek_v2(content: Mapping[str, Any]) -> Convention:
    has_latent = content.get("use_mla") is not False and content.get("qk_rope_head_dim") != 0
    return replace(_MLA, out_pairing=None) if has_latent else _WITHOUT_LATENT


_SECTIONS_QWEN2 = replace(_HALF, sections="chunked", default_sections=(16, 24, 24))
_SECTIONS_QWEN3 = replace(_HALF, sections="interleaved", default_sections=(24, 20, 20))
_SECTIONS_QWEN3_5 = replace(_PARTIAL, sections="interleaved", default_sections=(11, 11, 10))
_SECTIONS_GLM = replace(_PARTIAL, sections="chunked", default_sections=(8, 12, 12))
_SLIDING_ONLY = replace(_HALF, nope=("full_attention",), nope_needs="sliding_window")
_COHERE2 = replace(_INTERLEAVED, nope=("full_attention",))
_COHERE2_MOE = replace(_COHERE2, rotates=_is_dense_prefix, drops=("rope_scaling",))
_GEMMA3 = replace(
    _HALF, parameters=_gemma3, by_type=True, bases={"sliding_attention": "rope_local_base_freq"}
)
_MODERNBERT = replace(
    _HALF,
    parameters=_modernbert,
    by_type=True,
    bases={"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"},
    null_notes={"local_rope_theta": "transformers 4 took global_rope_theta for it"},
)
_DROPS = ("rope_parameters", "rope_scaling")
_GLOBAL = ("layer.head_dim", "global_head_dim", "512")
_GEMMA4 = replace(_HALF, layers={"full_attention": replace(_HALF, width=_GLOBAL)})
_PHI3 = replace(_PARTIAL, type_names={"su": "longrope", "yarn": "longrope"})
_DOTS3 = replace(
    _MLA,
    width=("layer.qk_rope_head_dim", "qk_rope_head_dim"),
    parameters=_dots3_note,
    bases={"sliding_attention": "swa_rope_theta"},
    overrides=_dots3_sliding,
    keys=("swa_rope_theta", "swa_qk_rope_head_dim"),
)


_NEVER = replace(_HALF, keys=("mla_use_nope", "qk_rope_head_dim"), never="the model's code rotates nothing")
_DIVIDED = ("hidden_size/num_attention_heads",)

# fmt: off
_WITHOUT = ("inkling_text", "inkling2_text", "jamba", "nemotron_h")
_INTERLEAVED_MODELS = (
    "blt_patcher", "blt_local_encoder", "blt_local_decoder", "blt_global_transformer", "cohere",
    "ernie4_5_moe", "helium", "llama4_text", "openai_privacy_filter",
)
_PARTIAL_MODELS = (
    "bamba", "glm4_moe", "laguna", "minimax_m3_vl_text", "nemotron", "persimmon", "phi", "qwen3_next",
    "recurrent_gemma", "solar_open", "stablelm", "mellum",
)
_QWEN3_MODELS = (
    "cohere_compass_text", "cosmos3_edge_text", "qwen3_omni_moe_text", "qwen3_omni_moe_talker_text",
    "qwen3_vl_text", "qwen3_vl_moe_text",
)
# fmt: on

# Rotary modules that differ from Llama's.
TEXT: dict[str, Convention] = {
    # Pairs of neighbours
    **dict.fromkeys(_INTERLEAVED_MODELS, _INTERLEAVED),
    **dict.fromkeys(("glm", "glm4"), _INTERLEAVED_PARTIAL),
    "ernie4_5": replace(_INTERLEAVED, null_head_dim=True),
    "cohere2": _COHERE2,
    "cohere2_moe": _COHERE2_MOE,
    **dict.fromkeys(
        ("gptj", "codegen"),
        replace(
            _INTERLEAVED,
            width=("hidden_size/num_attention_heads",),
            rotated=lambda values, width: values.integer("rotary_dim"),
            theta_keys=(),
            drops=_DROPS,
        ),
    ),
    "roformer": replace(
        _INTERLEAVED, width=("hidden_size/num_attention_heads",), theta_keys=(), drops=_DROPS
    ),
    # Multi-head latent attention: the rotated arrays are separate projections
    **dict.fromkeys(("axk2", "bailing_hybrid", "deepseek_v32", "longcat_flash"), _MLA),
    "glm_moe_dsa": replace(_MLA, keys=("indexer_rope_interleave",)),
    "mistral_large4_text": replace(_MLA, nope_every=4),
    **dict.fromkeys(
        ("axk1", "deepseek_v3", "glm4_moe_lite", "mistral4", "youtu"),
        replace(_MLA, pairing_flag="rope_interleave"),
    ),
    **dict.fromkeys(("hy_v4", "minicpm3"), _MLA_HALF),
    "deepseek_v2": replace(_MLA, out_pairing=None, variant=_deepseek_v2),
    "dots3_note_text": _DOTS3,
    **dict.fromkeys(("axk2:indexer", "deepseek_v32:indexer"), _INDEXER_HALF),
    "glm_moe_dsa:indexer": _INDEXER,
    "hy_v4:indexer": replace(_INDEXER_HALF, start="last"),
    "dots3_note_text:indexer": replace(_INDEXER, parameters=_dots3_note, keys=_DOTS3.keys),
    "deepseek_v4": Convention(
        pairing="interleaved",
        start="last",
        parameters=_deepseek_v4,
        bases={"compress": "compress_rope_theta"},
        labels={
            "sliding_attention": "main",
            "compressed_sparse_attention": "compress",
            "heavily_compressed_attention": "compress",
        },
    ),
    # Partial rotation
    **dict.fromkeys(_PARTIAL_MODELS, _PARTIAL),
    "gpt_neox": _NEOX,
    "gpt_neox_japanese": _NEOX,
    **dict.fromkeys(("phi3", "phi4_multimodal"), _PHI3),
    "minimax_m2": replace(_PARTIAL, absolute=True),
    "step3p5": replace(_PARTIAL, parameters=_step3p7, by_type=True, share_keys=()),
    "mimo_v2_flash": replace(_PARTIAL, share=0.334),
    "zaya": replace(_PARTIAL, by_type=True),
    **dict.fromkeys(
        ("deepseek_ocr2_text", "unlimited_ocr_text"),
        replace(_HALF, width=("hidden_size/num_attention_heads",)),
    ),
    # Several coordinates
    **dict.fromkeys(
        ("qwen2_5_omni_text", "qwen2_5_omni_talker", "qwen2_5_vl_text", "qwen2_vl_text"), _SECTIONS_QWEN2
    ),
    "paddleocr_vl_text": replace(_SECTIONS_QWEN2, null_head_dim=True),
    **dict.fromkeys(_QWEN3_MODELS, _SECTIONS_QWEN3),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp_text"), _SECTIONS_QWEN3_5),
    **dict.fromkeys(("glm4v_moe_text", "glm_image_text"), _SECTIONS_GLM),
    **dict.fromkeys(("glm4v_text", "glm_ocr_text"), replace(_SECTIONS_GLM, pairing="interleaved")),
    "ernie4_5_vl_moe_text": Convention(
        pairing="interleaved",
        partial=False,
        sections="alternating",
        default_sections=(22, 22, 20),
        types=("default",),
    ),
    "hunyuan_vl_text": replace(
        _HALF,
        parameters=_hunyuan_vl,
        types=("default", "dynamic", "linear", "yarn", "llama3", "longrope", "proportional"),
    ),
    "neomme": Convention(
        parameters=_neomme,
        axes=lambda values, width: Axes(tuple(i % 2 for i in range(width // 2)), count=2),
        note="coordinates are (row, column), equal for text",
    ),
    # Parameters by layer type
    **dict.fromkeys(("gemma3_text", "gemma3n_text", "t5gemma2_text", "t5gemma2_decoder"), _GEMMA3),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text", "embedding_gemma2_text"), _GEMMA4),
    "diffusion_gemma_text": replace(
        _GEMMA4, partial=True, layers={"full_attention": replace(_PARTIAL, width=_GLOBAL)}
    ),
    **dict.fromkeys(("modernbert", "modernbert-decoder"), _MODERNBERT),
    "olmo3": replace(_HALF, parameters=_olmo3, by_type=True),
    "ultrabert": replace(_HALF, parameters=_ultrabert, theta_keys=()),
    "dbrx": replace(
        _HALF,
        parameters=_dbrx,
        theta_keys=("attn_config.rope_theta", "rope_theta"),
        theta_note="attn_config.rope_theta is honoured here; transformers 5.23 does not read it",
    ),
    # Layers without rotation
    **dict.fromkeys(("exaone4", "exaone_moe", "kolibri1"), _SLIDING_ONLY),
    **dict.fromkeys(("afmoe", "flint"), replace(_HALF, nope=("full_attention",))),
    **dict.fromkeys(
        ("muse_glimmer_text", "muse_spark_text"),
        replace(_HALF, nope_at=_is_every_fourth_from_the_last, nope_unless="layer_rope_theta"),
    ),
    # The keys of a rope have no effect on these models: positions come from other layers.
    **dict.fromkeys(_WITHOUT, _NEVER),
    "glm5_next_text": replace(_NEVER, width=_DIVIDED),  # its head_dim is 0
    "kimi_linear": replace(_NEVER, width=("qk_rope_head_dim",)),
    "zamba": replace(_NEVER, width=("head_dim", "2*hidden_size/num_attention_heads")),
    "mllama_text_model": replace(_HALF, nope_at=_is_cross_attention),
    "olmo_hybrid": replace(_HALF, null_theta=True),
    # Used in some configs only
    "falcon": replace(_HALF, unless={"alibi": (False, None)}),
    "granitemoehybrid": replace(_HALF, unless={"position_embedding_type": ("rope",)}),
    "zamba2": replace(
        _HALF, width=("head_dim", "2*hidden_size/num_attention_heads"), unless={"use_mem_rope": (True,)}
    ),
    # Negative angles
    "nanochat": replace(_HALF, sign=-1),
    "molmo2_text": replace(_HALF, scaled_layers="rope_scaling_layers"),
}
