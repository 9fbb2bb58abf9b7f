"""Functions of conventions: the changes of one model, where a model type has several, or of older content.

Each takes the content of the config's part. See `conventions.toml` for the rows that are named.
"""

from collections.abc import Mapping
from typing import Any

from rope_array._errors import short

Content = Mapping[str, Any]
Row = dict[str, Any]


def deepseek_v2(content: Content) -> Row:
    has_latent = content.get("use_mla") is not False and content.get("qk_rope_head_dim") != 0
    return {} if has_latent else {"like": "deepseek_v2_llama"}


def chatglm(content: Content) -> Row:
    if (has_two_axes := content.get("position_encoding_2d")) is not None:
        return {"like": "chatglm_2d" if has_two_axes else "chatglm_1d"}
    if content.get("rope_ratio") in (None, 1) or content.get("num_layers") != 28:
        return {}
    return {"like": "chatglm_divided" if divides_positions(content) else "chatglm_multiplied"}


def divides_positions(content: Any) -> bool:
    """Return whether `rope_ratio` divides positions, as in ChatGLM2-6B-32K."""
    name = content.get("_name_or_path")
    return isinstance(name, str) and "chatglm2" in name.lower()


def baichuan(content: Content) -> Row:
    """Distinguish 7B, which rotates, from 13B: only the class of 7B has max_position_embeddings."""
    if content.get("max_position_embeddings") is not None:
        return {}
    is_13b = content.get("model_max_length") is not None
    return {"like": "baichuan_13b" if is_13b else "baichuan_of_no_size"}


def qwen(content: Content) -> Row:
    return {"note": _by_powers(content, ("seq_length",))} if content.get("use_dynamic_ntk", True) else {}


def telechat(content: Content) -> Row:
    note = _by_powers(content, ("base_seqlen", "training_seqlen"))
    return {"note": f"{note}, and attention_factor=0.1*ln(n/training_seqlen) + 1"}


def _by_powers(content: Content, keys: tuple[str, ...]) -> str:
    """Return the note on a base that grows in steps beyond the trained context."""
    length = short(next((content[key] for key in keys if content.get(key) is not None), 8192))
    return (
        f"beyond {length} positions the model's code multiplies the base: for n positions add "
        f"scaling=NTKAware(2**ceil(log2(n/{length}) + 1) - 1)"
    )


def xverse(content: Content) -> Row:
    return {} if content.get("rope_theta") is not None else {"like": "xverse_without_base"}


def mpt(content: Content) -> Row:
    attention = content.get("attn_config")
    if content.get("block_overrides"):
        return {"like": "mpt_of_blocks"}
    has_rope = isinstance(attention, Mapping) and attention.get("rope") is True
    return {} if has_rope else {"like": "mpt_unrotated"}


def nomic_bert(content: Content) -> Row:
    """Distinguish the configs of the hub's own code, which has GPT-2's names of the sizes."""
    if content.get("n_embd") is None:
        return {}
    if content.get("rotary_head_dim") or (
        content.get("rotary_emb_scale_base") and content.get("rotary_scaling_factor")
    ):
        return {
            "like": "nomic_bert_of_hub",
            "refusal": "rotary_head_dim, or rotary_emb_scale_base, changes it",
        }
    pairing = "interleaved" if content.get("rotary_emb_interleaved") else "half"
    return {"like": "nomic_bert_of_hub", "pairing": pairing}


def zaya(content: Content) -> Row:
    """Distinguish the configs of ZAYA's own code, which have keys that transformers' conversion drops."""
    is_older = any(
        content.get(key) is not None for key in ("cca", "swa_layers", "swa_rotary_base", "zaya_layers")
    )
    return {"like": "zaya_before_transformers"} if is_older else {}


def olmo_hybrid(content: Content) -> Row:
    """Take a null base for no rotation, as the code does."""
    rules = (content.get(name) for name in ("rope_scaling", "rope_parameters"))
    stated = {key: value for rule in rules if isinstance(rule, Mapping) for key, value in rule.items()}
    base = (stated if "rope_theta" in stated else content).get("rope_theta", 0)
    return {"never": "rope_theta is null"} if base is None else {}


def null_head_dim(content: Content) -> Row:
    """Take a head_dim of null for none, and not for the class's default."""
    is_null = content.get("head_dim", 0) is None
    return {"width": ["hidden_size/num_attention_heads"]} if is_null else {}


# Content that the model's class converts


def last_is_full(content: Content) -> Row:
    """Give the last layer full attention, even if the config states another type."""
    types = content.get("layer_types")
    if not isinstance(types, (list, tuple)) or not types:
        return {}
    return {"converted": {"layer_types": [*types[:-1], "full_attention"]}}


def dory(content: Content) -> Row:
    """Count an attention and its MLP as one layer, where the config lists MLPs as layers."""
    types, count = content.get("layer_types"), content.get("num_hidden_layers")
    if not isinstance(types, (list, tuple)) or "mlp" not in types:
        return {}
    count = 36 if count is None else count
    layers = count // 2 if isinstance(count, int) else count
    return {"converted": {"layer_types": types[::2], "num_hidden_layers": layers}}
