"""Readings of configs against transformers: models that do not rotate, indexers, permuted weights."""

import importlib

import pytest
import torch
from hf._tiny import set_weights
from hf._tiny_config import merged, reduced, with_tokens
from transformers.core_model_loading import PermuteForRope
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from rope_array import ConfigError, Linear, RoPE
from rope_array._config._conventions import CONVENTIONS, convention_of
from rope_array.config import read, read_layers


def model_file(model_type):
    name = CONFIG_MAPPING[model_type].__module__
    return importlib.import_module(name.replace("configuration", "modeling"))


# ---- models that do not rotate ----

MLP = ["linear_attention", "full_attention", "mlp"]
HYBRID = {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2}
# A model's class, and the values that `tiny_config` does not know.
UNROTATED = {
    "inkling2_loop_text": ("Inkling2Loop", {}),
    "inkling2_text": ("Inkling2", {}),
    "jamba": ("Jamba", {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4}),
    "kimi_linear": ("KimiLinear", {}),
    "nemotron_h": (
        "NemotronH",
        {"layers_block_type": MLP, "n_groups": 1, "mamba_num_heads": 4, "mamba_head_dim": 16},
    ),
    "zamba": ("Zamba", {**HYBRID, "attention_hidden_size": 128, "attention_head_dim": 64}),
}
# Without a language model of their own, or with another embedding of positions; see their modeling files.
BY_THE_CODE = {"glm5_next_text", "inkling_text", "moshi_depth", "moonshine_streaming_encoder"}


def test_every_model_without_rotation_is_listed():
    never_rotate = {key for key in CONVENTIONS if convention_of(key).never is not None}
    assert never_rotate == UNROTATED.keys() | BY_THE_CODE


@pytest.mark.parametrize("model_type", UNROTATED)
def test_logits_do_not_depend_on_the_positions(model_type):
    name, changes = UNROTATED[model_type]
    torch.manual_seed(0)
    cls = CONFIG_MAPPING[model_type]
    values = merged(with_tokens(reduced(cls().to_dict()), {}), changes)
    model = getattr(model_file(model_type), f"{name}ForCausalLM")(cls(**values)).eval()
    set_weights(model)
    ids = torch.randint(3, 100, (2, 12))
    positions = torch.arange(12).expand(2, -1)
    with torch.no_grad():
        logits, shifted, stretched = (
            model(input_ids=ids, position_ids=p, attention_mask=torch.ones_like(ids), use_cache=False).logits
            for p in (positions, positions + 17, positions * 3)
        )
        shuffled = model(input_ids=ids.flip(1), position_ids=positions, use_cache=False).logits
    assert torch.equal(logits, shifted)
    assert torch.equal(logits, stretched)
    assert not torch.allclose(logits[:, -1], shuffled[:, -1], atol=1e-3)  # the order of the tokens matters
    assert {r.rope.rotary_dim for _, r in read_layers({"model_type": model_type, "rope_theta": 1e4})} == {0}


# ---- the indexers of sparse attention ----

INDEXERS = {"axk2": "AXK2", "deepseek_v32": "DeepseekV32", "dots3_note_text": "Dots3NoteText"}
INDEXERS |= {"glm_moe_dsa": "GlmMoeDsa", "hy_v4": "HYV4"}
SMALL = {"hidden_size": 48, "q_lora_rank": 24, "index_n_heads": 2, "index_head_dim": 40}
SMALL["qk_rope_head_dim"] = 16
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 5e4}


class Keys:
    """A cache that keeps the rotated keys of an indexer."""

    def update_indexer(self, keys, layer):
        self.keys = keys
        return keys


@pytest.mark.parametrize("model_type", INDEXERS)
def test_the_part_indexer_rotates_as_the_indexer_does(model_type):
    names = f"{INDEXERS[model_type]}Indexer", f"{INDEXERS[model_type]}RotaryEmbedding"
    module, rotary = (getattr(model_file(model_type), name) for name in names)
    config = CONFIG_MAPPING[model_type](**SMALL, rope_parameters=dict(YARN))
    torch.manual_seed(0)
    layer_config = config.per_layer_config[0] if config.is_heterogeneous else config
    indexer, cache = module(layer_config, 0).eval(), Keys()
    hidden, residual = torch.randn(2, 9, 48), torch.randn(2, 9, 24)
    positions = torch.arange(9)[None] * 37
    layer_type = {"layer_type": "indexed_attention"} if model_type == "dots3_note_text" else {}
    tables = rotary(config)(hidden, positions, **layer_type)
    with torch.no_grad():
        indexer(hidden, residual, tables, torch.zeros(2, 1, 9, 9), positions, past_key_values=cache)
        unrotated = indexer.k_norm(indexer.wk(hidden))
    for form in (config, config.to_dict()):
        rope = RoPE.from_config(form, part="indexer", layer_type=0)
        assert (rope.head_dim, rope.rotary_dim) == (40, 16)
        torch.testing.assert_close(rope.apply(unrotated, positions[0]), cache.keys, rtol=0, atol=2e-5)


def test_a_flag_of_the_indexer_has_no_effect_on_attention():
    """transformers does not read the flag, which GLM-5's config states."""
    config = {"model_type": "glm_moe_dsa", "indexer_rope_interleave": True}
    assert read(config).notes == ()
    assert read(config).rope == read({"model_type": "glm_moe_dsa"}).rope
    assert not any("interleave" in note for note in read(config, part="indexer").notes)
    notes = read({**config, "indexer_rope_interleave": False}, part="indexer").notes
    assert any(note.startswith("indexer_rope_interleave is not used") for note in notes)
    with pytest.raises(ConfigError, match="no part 'indexer'"):
        read({"model_type": "deepseek_v3"}, part="indexer")


# ---- weights that are permuted when they are loaded ----

PERMUTED = {"kimi_k25": "vision", "step3p7": "vision", "mistral_large4": "vision", "gradium_phonon_tts": None}


def test_every_permutation_of_transformers_is_noted():
    conversions = importlib.import_module("transformers.conversion_mapping")
    permuted = {
        model_type
        for model_type, steps in conversions._build_checkpoint_conversion_mapping().items()
        for operation in (op for step in steps for op in getattr(step, "operations", ()))
        if isinstance(operation, PermuteForRope)
    }
    names = {"step3p5_vision": "step3p7"}  # the converter has the name of the part
    assert {names.get(model_type, model_type) for model_type in permuted} == PERMUTED.keys()


@pytest.mark.parametrize("model_type", PERMUTED)
def test_the_pairing_of_the_file_is_noted(model_type):
    reading = read({"model_type": model_type}, part=PERMUTED[model_type])
    (note,) = (note for note in reading.notes if "permutes the rows" in note)
    assert note.endswith("the pairing is 'interleaved'")
    assert reading.rope.pairing == "half"


def test_the_pairing_of_the_file_gives_the_same_scores():
    config = type("Config", (), {"num_attention_heads": 2})
    torch.manual_seed(0)
    stored, x, positions = torch.randn(2 * 16, 24), torch.randn(7, 24), torch.arange(7)
    loaded = PermuteForRope()._permute_for_rope(stored, config)
    scores = []
    for weight, pairing in ((stored, "interleaved"), (loaded, "half")):
        q = RoPE(16, pairing=pairing).apply((x @ weight.T).view(7, 2, 16).transpose(0, 1), positions)
        scores.append(q @ q.transpose(1, 2))
    torch.testing.assert_close(*scores, rtol=1e-5, atol=1e-4)


def test_a_rule_that_is_assigned_to_a_config_object_has_no_base():
    config = CONFIG_MAPPING["llama"](rope_theta=5e5)
    with pytest.warns(FutureWarning, match="`rope_scaling` is deprecated"):
        config.rope_scaling = {"rope_type": "linear", "factor": 2.0}
    with pytest.raises(TypeError):
        model_file("llama").LlamaRotaryEmbedding(config)
    with pytest.raises(ConfigError, match="assign rope_parameters, with rope_theta"):
        read(config)
    config.rope_parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    assert read(config).rope == RoPE(128, base=5e5, pairing="half", scaling=Linear(2.0))
