"""Conventions of models whose code is on the hub or in a package of their own, and not in transformers 5.23.

Each row names the code that it was read from. "Of the hub" means the modeling file that the config's
`auto_map` names. mlx-lm, vLLM, lmdeploy and ipex-llm have code of their own for the same models.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rope_array._config._conventions import PLAIN, Convention, Parameters, Values
from rope_array._errors import SpecError, short
from rope_array._spec.axes import Axes
from rope_array._spec.scaling import DynamicNTK, Linear

_DROPS = ("rope_parameters", "rope_scaling")
_HEADS = ("hidden_size/num_attention_heads",)
_OLDER_HEADS = ("n_embd/n_head", "hidden_size/num_attention_heads")
_ALIBI = "its code adds a bias to the scores by distance (ALiBi), and rotates nothing"
_Content = Mapping[str, Any]


# ChatGLM: modeling_chatglm.py of the hub; vLLM, chatglm.py, for original_rope; ipex-llm, chatglm4.py


def _chatglm_parameters(values: Values, stated: Parameters) -> Parameters:
    ratio = values.number("rope_ratio", 1.0)
    if _divides_positions(values):
        return {"rope_theta": 1e4, "rope_type": "linear", "factor": ratio}
    return {"rope_theta": 1e4 * ratio}


def _divides_positions(content: Any) -> bool:
    """Return whether `rope_ratio` divides positions, as in ChatGLM2-6B-32K."""
    name = content.get("_name_or_path")
    return isinstance(name, str) and "chatglm2" in name.lower()


# The first half of each head has the position, the second half the position in the answer.
_CHATGLM_1 = replace(
    PLAIN,
    width=_HEADS,
    theta_keys=(),
    drops=_DROPS,
    axes=lambda values, width: Axes.axial(width // 2, width // 2, blocks=True),
    note="coordinates are (position, position in the answer); ChatGLM-6B rounds frequencies to float16",
)
_CHATGLM = Convention(
    pairing="interleaved",
    pairing_flag="original_rope",
    width=("kv_channels", *_HEADS),
    rotated=lambda values, width: width // 2,
    theta_keys=(),
    drops=_DROPS,
    parameters=_chatglm_parameters,
)


def _chatglm(content: _Content) -> Convention:
    if (two := content.get("position_encoding_2d")) is not None:
        return _CHATGLM_1 if two else replace(_CHATGLM_1, axes=None, note=None)
    if content.get("rope_ratio") in (None, 1) or content.get("num_layers") != 28:
        return _CHATGLM
    if _divides_positions(content):
        return replace(_CHATGLM, note="rope_ratio divides the positions, as in ChatGLM2-6B-32K")
    return replace(
        _CHATGLM,
        note="rope_ratio multiplies the base, as in ChatGLM3; in ChatGLM2-6B-32K it divides the positions: "
        "for that model state its name as _name_or_path",
    )


# InternLM 1: modeling_internlm.py of the hub; ipex-llm, internlm.py


def _internlm(values: Values, stated: Parameters) -> Parameters:
    rotary = values.get("rotary")
    if rotary is None:
        return stated
    if not isinstance(rotary, Mapping) or rotary.get("type") not in ("dynamic", "origin"):
        raise SpecError(f"rotary is {short(rotary)}; its type must be 'dynamic' or 'origin'.")
    base = values.base("rotary.base", 1e4)
    if rotary["type"] == "origin":
        return {"rope_theta": base}
    factor = values.number("rotary.scaling_factor", 1.0)
    return {"rope_theta": base, "rope_type": "dynamic", "factor": factor}


# Baichuan: vLLM, baichuan.py; configuration_baichuan.py of the hub


def _baichuan(content: _Content) -> Convention:
    """Distinguish 7B, which rotates, from 13B: only the class of 7B has max_position_embeddings."""
    if content.get("max_position_embeddings") is not None:
        return replace(PLAIN, width=_HEADS)
    if content.get("model_max_length") is not None:
        return Convention(refusal=f"without max_position_embeddings it is a Baichuan of 13B: {_ALIBI}")
    return Convention(
        refusal="Baichuan of 7B rotates and of 13B does not, and the config has neither "
        "max_position_embeddings (7B) nor model_max_length (13B)"
    )


def _baichuan_m1(values: Values, stated: Parameters) -> Parameters:
    theta = {"rope_theta": values.base("rope_theta", 1e4)}
    return {"full_attention": theta, "sliding_attention": theta}


def _plamo3(values: Values, stated: Parameters) -> Parameters:
    if any(isinstance(own, Mapping) for own in stated.values()):
        return stated
    return {
        "full_attention": {"rope_theta": values.number("rope_theta"), **stated},
        "sliding_attention": {"rope_theta": values.number("rope_local_theta")},
    }


# Qwen 1: modeling_qwen.py of the hub. TeleChat: modeling_telechat.py of the hub


def _qwen(values: Values, stated: Parameters) -> Parameters:
    values.get("use_dynamic_ntk")
    return stated


def _by_powers(content: _Content, keys: tuple[str, ...], amplitude: str = "") -> str:
    """Return the note on a base that grows in steps beyond the trained context."""
    length = short(next((content[key] for key in keys if content.get(key) is not None), 8192))
    return (
        f"beyond {length} positions the model's code multiplies the base: for n positions add "
        f"scaling=NTKAware(2**ceil(log2(n/{length}) + 1) - 1){amplitude}"
    )


def _qwen_1(content: _Content) -> Convention:
    steps = content.get("use_dynamic_ntk", True)
    return replace(_QWEN, note=_by_powers(content, ("seq_length",))) if steps else _QWEN


def _telechat(content: _Content) -> Convention:
    amplitude = ", and attention_factor=0.1*ln(n/training_seqlen) + 1"
    return replace(_TELECHAT, note=_by_powers(content, ("base_seqlen", "training_seqlen"), amplitude))


_QWEN = Convention(
    width=("kv_channels", *_HEADS),
    theta_keys=("rotary_emb_base",),
    share_keys=("rotary_pct",),
    drops=_DROPS,
    parameters=_qwen,
)
_TELECHAT = replace(PLAIN, width=("hidden_size/n_head", *_HEADS))


def _xverse(content: _Content) -> Convention:
    if content.get("rope_theta") is not None:
        return PLAIN
    return Convention(
        refusal="rope_theta is missing, and the base in the code of XVERSE's models is 10000 or 500000; "
        "state the one in the model's own modeling_xverse.py"
    )


# Phi-3-small: vLLM, phi3_small.py; mlx-lm, phi3small.py


def _phi3small(values: Values, stated: Parameters) -> Parameters:
    scale = values.number("rope_position_scale", 1.0)
    if scale != 1:
        raise SpecError(
            f"rope_position_scale is {scale}: vLLM divides positions by it, and mlx-lm multiplies them; only "
            "the code that the model was trained with tells which."
        )
    return stated


# MPT: llm-foundry, modeling_mpt.py and config_defaults.py


def _mpt_rule(values: Values, width: int) -> Linear | DynamicNTK | None:
    rule = values.get("attn_config.rope_hf_config")
    dail = values.get("attn_config.rope_dail_config")
    if (library := values.get("attn_config.rope_impl", "dail")) not in ("dail", "hf"):
        raise SpecError(f"attn_config.rope_impl is {short(library)}; it must be 'dail' or 'hf'.")
    if library == "dail":
        if isinstance(dail, Mapping) and dail.get("type", "original") != "original":
            raise SpecError(f"rope_dail_config has the type {short(dail['type'])}: see RoPE.rotation_xpos.")
        return None
    kind = rule.get("type", "no_scaling") if isinstance(rule, Mapping) else "no_scaling"
    if kind == "no_scaling":
        return None
    if kind == "linear":
        return Linear(_factor(rule))
    if kind == "dynamic":
        return DynamicNTK(_factor(rule), values.integer("max_seq_len"))
    raise SpecError(f"rope_hf_config has the type {short(kind)}; it must be no_scaling, linear or dynamic.")


def _factor(rule: Any) -> float:
    factor = rule.get("factor", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not math.isfinite(factor):
        raise SpecError(f"factor in rope_hf_config is {short(factor)}; it must be a number.")
    return float(factor)


_MPT = Convention(
    width=("d_model/n_heads",),
    theta_keys=("attn_config.rope_theta",),
    partial=False,
    drops=_DROPS,
    scaling=_mpt_rule,
)


def _mpt(content: _Content) -> Convention:
    attention = content.get("attn_config")
    if content.get("block_overrides"):
        return Convention(refusal="block_overrides gives blocks an attention of their own, some without rope")
    if isinstance(attention, Mapping) and attention.get("rope") is True:
        return _MPT
    return Convention(
        refusal="without attn_config.rope its code rotates nothing: it has ALiBi, or learned positions"
    )


# MiniMax-Text-01 and M1: modeling_minimax_text_01.py of the hub; mlx-lm, minimax.py


# The layers with lightning attention, 0 in attn_type_list, rotate nothing.
_SHARE_OF_HEAD = Convention(absolute=True)  # rotary_dim in features, or partial_rotary_factor
_FALCON = replace(
    PLAIN, width=("hidden_size/n_head", *_HEADS), theta_keys=(), drops=_DROPS, unless={"alibi": (False, None)}
)
_OLDER_PHI = Convention(
    width=_OLDER_HEADS,
    rotated=lambda values, width: values.integer("rotary_dim"),
    theta_keys=(),
    drops=_DROPS,
)
_OLMO = replace(
    PLAIN, width=("d_model/n_heads",), unless={"rope": (True,), "alibi": (False, None)}, drops=_DROPS
)

# fmt: off
# Llama's module: half pairs over the whole head, and `rope_theta`, 10000 if it is missing.
_PLAIN_MODELS = (
    "aquila",  # ipex-llm, aquila.py
    "arctic",  # vLLM, arctic.py
    "deepseek",  # mlx-lm, deepseek.py
    "exaone",  # mlx-lm, exaone.py
    "internlm2",  # mlx-lm and lmdeploy, internlm2.py
    "minicpm",  # mlx-lm, minicpm.py
    "orion",  # vLLM, orion.py
    "ouro",  # modeling_ouro.py of the hub
    "plamo",  # mlx-lm, plamo.py
    "telechat3",  # mlx-lm, telechat3.py
    "Yi",  # vLLM read it by llama.py's module
)
_ALIBI_MODELS = (
    "btlm", "gpt_refact", "jais", "step1",  # modeling files of the hub; vLLM, jais.py
)
# fmt: on

REMOTE: dict[str, Convention] = {
    **dict.fromkeys(_PLAIN_MODELS, PLAIN),
    **dict.fromkeys(_ALIBI_MODELS, Convention(refusal=_ALIBI)),
    # vLLM, phi4flash.py
    "phi4flash": Convention(refusal="its code rotates nothing, though the config has a rope_theta"),
    "chatglm": replace(_CHATGLM, variant=_chatglm),
    # mlx-lm, hunyuan.py; modeling_hunyuan.py of the hub has attention_head_dim
    "hunyuan": replace(PLAIN, width=("head_dim", "attention_head_dim", *_HEADS)),
    "internlm": replace(PLAIN, width=_HEADS, parameters=_internlm, bases={"": "rotary.base"}, drops=_DROPS),
    "baichuan": replace(PLAIN, variant=_baichuan),
    "baichuan_m1": replace(  # mlx-lm, baichuan_m1.py
        PLAIN,
        width=_HEADS,
        parameters=_baichuan_m1,
        layers={
            "sliding_attention": replace(
                PLAIN, width=("hidden_size/num_swa_attention_heads", *_HEADS), parameters=_baichuan_m1
            )
        },
    ),
    "qwen": replace(_QWEN, variant=_qwen_1),
    # modeling_stablelm_epoch.py of the hub
    "stablelm_epoch": Convention(width=_HEADS, share=0.25, share_keys=("rope_pct",), drops=_DROPS),
    "phi3small": replace(
        PLAIN, width=_HEADS, theta_keys=("rope_embedding_base",), theta=1e6, parameters=_phi3small
    ),
    # mlx-lm, openelm.py
    "openelm": replace(PLAIN, width=("head_dim",), theta_keys=("rope_freq_constant",), drops=_DROPS),
    "grok-1": replace(PLAIN, width=_HEADS, theta_keys=(), drops=_DROPS),  # xai-org/grok-1, model.py
    "mpt": replace(_MPT, variant=_mpt),
    "telechat": replace(_TELECHAT, variant=_telechat),
    "nemotron-nas": replace(PLAIN, width=_HEADS, theta=5e5),  # mlx-lm, nemotron-nas.py
    # modeling_codeshell.py of the hub
    "codeshell": replace(
        PLAIN, width=_OLDER_HEADS, theta_keys=(), unless={"position_embedding_type": ("rope",)}
    ),
    # mlx-lm, bailing_moe.py and bailing_moe_linear.py: Ling and Ring
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2", "bailing_moe_linear"), _SHARE_OF_HEAD),
    # mlx-lm, plamo2.py
    "plamo2": replace(PLAIN, width=("hidden_size_per_head",), theta_keys=()),
    "plamo3": replace(PLAIN, width=("head_dim",), parameters=_plamo3),  # vLLM, plamo3.py
    **dict.fromkeys(("minimax_text_01", "minimax_m1"), _SHARE_OF_HEAD),
    # modelling_RW.py of the hub: Falcon before it was in transformers
    **dict.fromkeys(("RefinedWeb", "RefinedWebModel"), _FALCON),
    # modeling_mixformer_sequential.py and modeling_phi.py of the hub; mlx-lm, phixtral.py
    **dict.fromkeys(("mixformer-sequential", "phi-msft"), _OLDER_PHI),
    "moss": replace(_OLDER_PHI, pairing="interleaved"),  # modeling_moss.py of the hub, as CodeGen
    # modeling_llada.py of the hub; OLMo, model.py
    **dict.fromkeys(("hf_olmo", "llada"), _OLMO),
    # vLLM reads it by llama.py
    "xverse": replace(PLAIN, variant=_xverse),
    # modeling.py of Alibaba-NLP/new-impl
    "new": replace(PLAIN, unless={"position_embedding_type": ("rope",)}),
}

# Their classes' defaults, and their own names of Llama's keys.
REMOTE_DEFAULTS: dict[str, dict[str, Any]] = {
    "baichuan_m1": {"labels": ["full_attention", "sliding_attention"]},
    "chatglm": {"alias": {"max_position_embeddings": "seq_length", "num_hidden_layers": "num_layers"}},
    "codeshell": {
        "alias": {"max_position_embeddings": "n_positions", "num_hidden_layers": "n_layer"},
        "position_embedding_type": "rope",
    },
    "mpt": {"alias": {"max_position_embeddings": "max_seq_len", "num_hidden_layers": "n_layers"}},
    "new": {"position_embedding_type": "rope"},
    "plamo3": {"labels": ["full_attention", "sliding_attention"]},
    "openelm": {
        "alias": {
            "max_position_embeddings": "max_context_length",
            "num_hidden_layers": "num_transformer_layers",
        }
    },
    "stablelm_epoch": {"partial_rotary_factor": 0.25},
    "telechat": {"alias": {"num_hidden_layers": "n_layer"}},
}
