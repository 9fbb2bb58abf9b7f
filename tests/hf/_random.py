"""Random configs of text models: rules, widths, sections, layer types, and the keys of older files."""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hf import _text as t
from hf._walk import Probe, config_class

# Factors on the tolerance of a float32 frequency, by rule: DynamicNTK subtracts numbers as large as its
# factor, Llama3 and YaRN divide by a difference and multiply by 1/factor.
SLACK = {"dynamic": 8.0, "llama3": 16.0, "yarn": 16.0}
RULES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
Random = np.random.Generator
Given = dict[str, Any]


def real(rng: Random, low: float, high: float) -> float:
    """Return a number with three decimals, as in configs."""
    return round(float(rng.uniform(low, high)), 3)


def base(rng: Random) -> float | int:
    """Return a base between 100 and 1e8, half of the time an integer."""
    value = 10 ** float(rng.uniform(2, 8))
    return int(value) if rng.random() < 0.5 else round(value, 2)


def some(rng: Random, values: Given) -> Given:
    """Return about half of the optional keys."""
    return {key: value for key, value in values.items() if rng.random() < 0.5}


def rule(rng: Random, kind: str, lanes: int, longest: int) -> Given:
    """Return a rule's own keys. `longest` is the config's max_position_embeddings."""
    before = int(rng.integers(16, longest))
    if kind in ("linear", "dynamic"):
        return {"factor": real(rng, 1, 8)}
    if kind == "yarn":
        optional = some(
            rng,
            {
                "beta_fast": real(rng, 8, 40),
                "beta_slow": real(rng, 0.5, 4),
                "truncate": bool(rng.random() < 0.5),
                "attention_factor": real(rng, 0.5, 2),
            },
        )
        scales = (
            {"mscale": real(rng, 0.5, 2), "mscale_all_dim": real(rng, 0.5, 2)} if rng.random() < 0.5 else {}
        )
        return {"factor": real(rng, 1, 40), "original_max_position_embeddings": before, **optional, **scales}
    if kind == "longrope":
        factors = {name: [real(rng, 1, 30) for _ in range(lanes)] for name in ("short_factor", "long_factor")}
        optional = some(rng, {"factor": real(rng, 1, 32), "attention_factor": real(rng, 0.5, 2)})
        return {"original_max_position_embeddings": before, **factors, **optional}
    if kind == "llama3":
        low = real(rng, 0.5, 4)
        ends = {"low_freq_factor": low, "high_freq_factor": low + real(rng, 1, 4)}
        return {"factor": real(rng, 1, 32), "original_max_position_embeddings": before, **ends}
    if kind == "proportional":
        return {"partial_rotary_factor": real(rng, 0.1, 1), **some(rng, {"factor": real(rng, 1, 8)})}
    return {}


def lengths(rope: Given, longest: int) -> tuple[np.ndarray, ...]:
    """Return positions on both sides of every length at which a rule changes."""
    ends = {longest, longest + 1, 3 * longest}
    if before := rope.get("original_max_position_embeddings"):
        ends |= {before, before + 1}
    return tuple(np.array([0, 1, end // 3, end - 1]) for end in sorted(ends))


def grids(rope: Given, longest: int, axes: int) -> tuple[np.ndarray, ...]:
    """Return positions of several coordinates; each coordinate is the largest at some position."""
    lines = lengths(rope, longest)
    return tuple(np.stack([np.roll(pos, shift) for shift in range(axes)], axis=-1) for pos in lines)


def stated(rng: Random, rope: Given, kind: str, theta: Any, old: str = "rope_theta") -> Given:
    """State a rule in the current form or an older form; `old` is the older key of the base."""
    style = rng.integers(4)
    if style == 0:
        return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **rope}}
    if style == 1:
        return {"rope_scaling": {"rope_type": kind, "rope_theta": theta, **rope}}
    if kind == "default" and not rope:
        return {old: theta, **some(rng, {"rope_scaling": None})}
    return {old: theta, "rope_scaling": {"type" if style == 2 else "rope_type": kind, **rope}}


@dataclass(frozen=True)
class Form:
    """A class, how it rotates, and `make`: returns a random config's fields, its rule's keys and kind."""

    name: str
    form: t.Form
    model: str
    cls: str
    config: str
    make: Callable[[Random, str], tuple[Given, Given, str]]
    rules: tuple[str, ...] = RULES

    def probes(self, seed: int) -> Iterator[tuple[str, str, Probe]]:
        """Yield the config as text, a name, and the probe, for the dict, the object, and the saved JSON."""
        for number, kind in enumerate(self.rules):
            rng = np.random.default_rng([seed, number, *self.name.encode()])
            given, rope, ruled = self.make(rng, kind)
            yield from self._probes(given, rope, ruled)

    def _probes(self, given: Given, rope: Given, kind: str) -> Iterator[tuple[str, str, Probe]]:
        owner = config_class(self.model, self.config)
        made = owner(**copy.deepcopy(given))
        raw = {"model_type": owner.model_type, **given}
        axes, longest = self.form.axes, given["max_position_embeddings"]
        positions = lengths(rope, longest) if axes == 1 else grids(rope, longest, axes)
        for layer in self.form.layers:
            whole = t.probe(self.form, layer, self.model, self.cls, made, made, None, positions)
            whole = replace(whole, slack=SLACK.get(kind, 1.0))
            saved = json.loads(made.to_json_string())
            for name, config in (("dict", raw), ("config", made), ("saved", saved)):
                yield str(raw), f"{name}, {layer.ask}", replace(whole, config=copy.deepcopy(config))


# Fields of random configs


def sized(rng: Random, explicit: bool | None = None) -> tuple[Given, int]:
    """Return a config's widths, with head_dim or hidden_size alone, and the width of a head."""
    heads, width = int(rng.choice([2, 4, 8])), int(rng.choice([16, 32, 48, 64]))
    fields = {"num_attention_heads": heads, "num_key_value_heads": heads // 2, "num_hidden_layers": 4}
    fields["max_position_embeddings"] = int(rng.integers(64, 512))
    if rng.random() < 0.5 if explicit is None else explicit:
        return {**fields, "hidden_size": heads * 32, "head_dim": width}, width
    return {**fields, "hidden_size": heads * width}, width


def flat(rng: Random, kind: str, explicit: bool | None = None) -> tuple[Given, Given, str]:
    """Return a config with one rule over the whole head."""
    fields, width = sized(rng, explicit)
    rope = rule(rng, kind, width // 2, fields["max_position_embeddings"])
    return {**fields, **stated(rng, rope, kind, base(rng))}, rope, kind


def by_heads(rng: Random, kind: str) -> tuple[Given, Given, str]:
    """Return `flat` without head_dim, for configs without this field."""
    return flat(rng, kind, explicit=False)


def with_width(rng: Random, kind: str) -> tuple[Given, Given, str]:
    """Return `flat` with head_dim, for configs whose default is not hidden_size / num_attention_heads."""
    return flat(rng, kind, explicit=True)


def partial(
    keys: dict[str, str], explicit: bool = False
) -> Callable[[Random, str], tuple[Given, Given, str]]:
    """Return `make` for partial rotation; `keys` are the older names of the base and the share."""

    def make(rng: Random, kind: str) -> tuple[Given, Given, str]:
        fields, width = sized(rng, explicit)
        share = float(rng.choice([0.25, 0.5, 0.75, 1.0]))
        rope = rule(rng, kind, int(width * share) // 2, fields["max_position_embeddings"])
        theta = base(rng)
        if rng.random() < 0.5:
            inside = {"rope_type": kind, "rope_theta": theta, "partial_rotary_factor": share, **rope}
            return {**fields, "rope_parameters": inside}, rope, kind
        old = {keys["base"]: theta, keys["part"]: share}
        scaling = {} if kind == "default" else {"rope_scaling": {"type": kind, **rope}}
        return {**fields, **old, **scaling}, rope, kind

    return make


def latent(rng: Random, kind: str) -> tuple[Given, Given, str]:
    """Return a config of multi-head latent attention."""
    fields, _ = sized(rng, explicit=False)
    width = int(rng.choice([16, 32, 64]))
    rope = rule(rng, kind, width // 2, fields["max_position_embeddings"])
    fields |= {"qk_rope_head_dim": width, "qk_nope_head_dim": 48, "v_head_dim": 32, "kv_lora_rank": 16}
    return {**fields, **stated(rng, rope, kind, base(rng))}, rope, kind


def rope_interleave(rng: Random, kind: str) -> tuple[Given, Given, str]:
    """Return `latent` with the key that chooses the pairing."""
    fields, rope, kind = latent(rng, kind)
    return {**fields, "rope_interleave": bool(rng.random() < 0.5)}, rope, kind


def original_outside(rng: Random, kind: str) -> tuple[Given, Given, str]:
    """Return a config of Phi-3: a rule with the older name "su", or with its original length outside."""
    fields, width = sized(rng, explicit=False)
    rope = rule(rng, kind, width // 2, fields["max_position_embeddings"])
    theta, key = {"rope_theta": base(rng)}, "original_max_position_embeddings"
    if kind == "default":
        return {**fields, **theta}, rope, kind
    if rng.random() < 0.5:  # transformers moves an outer length into the rule for the newer name only
        return {**fields, **theta, "rope_scaling": {"type": "su", **rope}}, rope, kind
    inside = {"type": kind, **{name: value for name, value in rope.items() if name != key}}
    return {**fields, **theta, key: rope[key], "rope_scaling": inside}, rope, kind


def alpha(rng: Random, kind: str) -> tuple[Given, Given, str]:
    """Return a config of HunYuan: "dynamic" with alpha, which does not depend on the length."""
    fields, _ = sized(rng, explicit=True)
    rope = {"alpha": real(rng, 1, 1000), "factor": 1.0}
    return {**fields, **stated(rng, rope, "dynamic", base(rng))}, rope, "default"


def legacy_width(rng: Random, kind: str) -> tuple[Given, Given, str]:
    """Return a config of MiniMax-M2: rotary_dim in place of a share."""
    fields, width = sized(rng, explicit=True)
    theta = {"rope_theta": base(rng)}
    return {**fields, **theta, "rotary_dim": int(rng.choice([width // 4, width // 2, width]))}, {}, "default"


def split(rng: Random, lanes: int) -> list[int]:
    """Return three sections that sum to the number of pairs."""
    t, h = sorted(rng.choice(np.arange(1, lanes), size=2, replace=False).tolist())
    return [int(t), int(h - t), int(lanes - h)]


def third(rng: Random, lanes: int) -> list[int]:
    """Return sections for the stride-3 map: height and width are below a third of the pairs."""
    h, w = (int(rng.integers(1, max(2, lanes // 3))) for _ in range(2))
    return [lanes - h - w, h, w]


def equal_pair(rng: Random, lanes: int) -> list[int]:
    """Return sections for the alternating map: equal height and width, then time."""
    h = int(rng.integers(1, lanes // 2))
    return [h, h, lanes - 2 * h]


def sections(
    choose: Callable[[Random, int], list[int]], part: bool = False, mrope: bool = False
) -> Callable[[Random, str], tuple[Given, Given, str]]:
    """Return `make` for M-RoPE; with `mrope`, the rule "default" has its older name "mrope" at times."""

    def make(rng: Random, kind: str) -> tuple[Given, Given, str]:
        fields, width = sized(rng, explicit=not mrope)
        share = float(rng.choice([0.5, 1.0])) if part else 1.0
        lanes = int(width * share) // 2
        rope = rule(rng, kind, lanes, fields["max_position_embeddings"])
        extra = {"mrope_section": choose(rng, lanes)} | ({"partial_rotary_factor": share} if part else {})
        if mrope and kind == "default" and rng.random() < 0.7:
            old = {"rope_theta": base(rng), "rope_scaling": {"type": "mrope", **extra}}
            return {**fields, **old}, rope, kind
        inside = {"rope_type": kind, "rope_theta": base(rng), **rope, **extra}
        return {**fields, "rope_parameters": inside}, rope, kind

    return make


def layered(
    names: tuple[str, str], part: bool = False, kinds: tuple[str, ...] = RULES
) -> Callable[[Random, str], tuple[Given, Given, str]]:
    """Return `make` with a rule for each of two layer types: `kind`, and a random rule of `kinds`."""

    def make(rng: Random, kind: str) -> tuple[Given, Given, str]:
        fields, width = sized(rng, explicit=True)
        ropes, both = {}, {}
        for name, own in zip(names, (kind, str(rng.choice(kinds))), strict=True):
            share = float(rng.choice([0.25, 0.5, 1.0])) if part and own != "proportional" else 1.0
            rope = rule(rng, own, int(width * share) // 2, fields["max_position_embeddings"])
            rope.pop("truncate", None)  # transformers reads it from the outer dict
            ropes[name] = {"rope_type": own, "rope_theta": base(rng), **rope}
            if part and own != "proportional":
                ropes[name]["partial_rotary_factor"] = share
            both |= rope
        types = [names[i % 2] for i in range(fields["num_hidden_layers"])]
        slack = "llama3"  # the largest slack, for either rule
        return {**fields, "layer_types": types, "rope_parameters": ropes}, both, slack

    return make


def two_bases(
    keys: tuple[str, str], explicit: bool = True
) -> Callable[[Random, str], tuple[Given, Given, str]]:
    """Return `make` for older configs with two bases, and a rule for the layers of full attention."""

    def make(rng: Random, kind: str) -> tuple[Given, Given, str]:
        fields, width = sized(rng, explicit)
        rope = rule(rng, kind, width // 2, fields["max_position_embeddings"])
        rope.pop("truncate", None)
        theta = dict(zip(keys, (base(rng), base(rng)), strict=True))
        scaling = {} if kind == "default" else {"rope_scaling": {"rope_type": kind, **rope}}
        types = ["full_attention", "sliding_attention"] * 2
        return {**fields, "layer_types": types, **theta, **scaling}, rope, kind

    return make


def global_width(rng: Random, kind: str) -> tuple[Given, Given, str]:
    """Return a config of Gemma 4: heads of twice the width in the layers of full attention."""
    fields, rope, kind = layered(t.TYPES, kinds=("default", "linear"))(rng, kind)
    return {**fields, "global_head_dim": 2 * fields["head_dim"]}, rope, kind


OLD = {"base": "rope_theta", "part": "partial_rotary_factor"}
NEOX = {"base": "rotary_emb_base", "part": "rotary_pct"}
NO_LONG = ("default", "linear", "dynamic", "yarn", "llama3")
STATIC = ("default", "linear", "yarn", "llama3")


def _form(
    form: t.Form, model: str, name: str, make: Any, rules: tuple[str, ...] = RULES, **options: Any
) -> Form:
    cls, config = options.get("cls", f"{name}RotaryEmbedding"), options.get("config", f"{name}Config")
    return Form(options.get("label", model), form, model, cls, config, make, rules)


def _text_form(form: t.Form, model: str, name: str, make: Any, rules: tuple[str, ...] = RULES) -> Form:
    cls, config = f"{name}TextRotaryEmbedding", f"{name}TextConfig"
    return _form(form, model, name, make, rules, cls=cls, config=config)


FORMS: tuple[Form, ...] = (
    _form(t.HALF, "llama", "Llama", flat, (*RULES, "proportional")),
    _form(t.HALF, "mistral", "Mistral", flat),
    _form(t.HALF, "qwen2", "Qwen2", by_heads),
    _form(t.HALF, "qwen3", "Qwen3", with_width),
    _form(t.INTERLEAVED, "cohere", "Cohere", by_heads),
    _form(t.HALF_TO_INTERLEAVED, "helium", "Helium", with_width),
    _form(t.BY_LANE, "gpt_oss", "GptOss", with_width),
    _form(t.BY_LANE, "openai_privacy_filter", "OpenAIPrivacyFilter", with_width),
    _form(replace(t.HALF, sign=-1), "nanochat", "NanoChat", by_heads),
    _form(t.HALF, "gpt_neox", "GPTNeoX", partial(NEOX)),
    _form(t.SLICED, "gpt_neox_japanese", "GPTNeoXJapanese", partial(NEOX)),
    _form(t.SLICED, "stablelm", "StableLm", partial(OLD)),
    _form(t.SLICED, "phi", "Phi", partial(OLD)),
    _form(t.SLICED, "persimmon", "Persimmon", partial(OLD)),
    _form(t.HALF, "nemotron", "Nemotron", partial(OLD, explicit=True)),
    _form(t.HALF_TO_INTERLEAVED, "glm4", "Glm4", partial(OLD, explicit=True)),
    _form(t.HALF, "qwen3_next", "Qwen3Next", partial(OLD, explicit=True)),
    _form(t.HALF, "phi3", "Phi3", original_outside, ("default", "longrope")),
    _form(t.HALF, "minimax_m2", "MiniMaxM2", legacy_width, ("default",)),
    _form(t.HALF, "hunyuan_v1_dense", "HunYuanDenseV1", alpha, ("default",)),
    _form(t.LATENT_BY_CONFIG, "deepseek_v3", "DeepseekV3", rope_interleave),
    _form(t.LATENT, "deepseek_v32", "DeepseekV32", latent),
    _form(
        t.Form(t.complex_heads_first, t.as_it_is, t.latent_width),
        "deepseek_v2",
        "DeepseekV2",
        latent,
        NO_LONG,
    ),
    _form(replace(t.HALF, width=t.latent_width), "minicpm3", "MiniCPM3", latent),
    _form(t.MROPE, "qwen2_vl", "Qwen2VL", sections(split, mrope=True), config="Qwen2VLTextConfig"),
    _form(t.MROPE, "qwen2_5_vl", "Qwen2_5_VL", sections(split, mrope=True), config="Qwen2_5_VLTextConfig"),
    _text_form(t.MROPE, "qwen3_vl", "Qwen3VL", sections(third)),
    _text_form(t.MROPE, "qwen3_5", "Qwen3_5", sections(third, part=True)),
    _text_form(t.MROPE_INTERLEAVED, "glm_ocr", "GlmOcr", sections(split)),
    _text_form(
        replace(t.MROPE_INTERLEAVED, frequencies=t.ernie_frequencies),
        "ernie4_5_vl_moe",
        "Ernie4_5_VLMoe",
        sections(equal_pair),
        ("default",),
    ),
    _form(t.KEYED, "gemma3", "Gemma3", layered(t.TYPES, kinds=STATIC), NO_LONG, config="Gemma3TextConfig"),
    _form(
        t.KEYED,
        "gemma3",
        "Gemma3",
        two_bases(("rope_theta", "rope_local_base_freq")),
        STATIC,
        config="Gemma3TextConfig",
        label="gemma3, two bases",
    ),
    _form(
        t.KEYED,
        "modernbert",
        "ModernBert",
        two_bases(("global_rope_theta", "local_rope_theta"), explicit=False),
        STATIC,
    ),
    _form(t.KEYED, "olmo3", "Olmo3", layered(t.TYPES, kinds=STATIC), NO_LONG),
    _form(t.KEYED, "laguna", "Laguna", layered(t.TYPES, part=True, kinds=STATIC), NO_LONG),
    _form(t.KEYED, "mimo_v2_flash", "MiMoV2Flash", layered(t.TYPES, part=True, kinds=STATIC), NO_LONG),
    _form(t.KEYED, "lfm3", "Lfm3", layered(t.TYPES, kinds=(*STATIC, "proportional")), STATIC),
    _text_form(t.KEYED_WIDTH, "gemma4", "Gemma4", global_width, ("default", "linear", "proportional")),
)
