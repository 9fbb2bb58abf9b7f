"""Random configs of text models: rules, widths, layer types, and the keys of older files."""

import copy
from dataclasses import dataclass, replace

import numpy as np
from hf import _text as t
from hf._walk import cases, places

# Factors on the tolerance of a float32 frequency, by rule: DynamicNTK subtracts numbers as large as its
# factor, Llama3 and YaRN divide by a difference and multiply by 1/factor.
SLACK = {"dynamic": 8.0, "llama3": 16.0, "yarn": 16.0}
STATIC = ("default", "linear", "yarn", "llama3")
NO_LONG = (*STATIC, "dynamic")
RULES = (*NO_LONG, "longrope")
BEFORE = "original_max_position_embeddings"


def real(rng, low, high):
    """Return a number with three decimals, as in configs."""
    return round(float(rng.uniform(low, high)), 3)


def base(rng):
    """Return a base between 100 and 1e8, half of the time an integer."""
    value = 10 ** float(rng.uniform(2, 8))
    return int(value) if rng.random() < 0.5 else round(value, 2)


def some(rng, values):
    """Return about half of the optional keys."""
    return {key: value for key, value in values.items() if rng.random() < 0.5}


def rule(rng, rule_type, pairs, longest):
    """Return a rule's own keys. `longest` is the config's max_position_embeddings."""
    before = {BEFORE: int(rng.integers(16, longest))}
    if rule_type in ("linear", "dynamic"):
        return {"factor": real(rng, 1, 8)}
    if rule_type == "yarn":
        optional = {"beta_fast": real(rng, 8, 40), "beta_slow": real(rng, 0.5, 4)}
        optional |= {"truncate": bool(rng.random() < 0.5), "attention_factor": real(rng, 0.5, 2)}
        scales = {"mscale": real(rng, 0.5, 2), "mscale_all_dim": real(rng, 0.5, 2)}
        rope = {"factor": real(rng, 1, 40), **before, **some(rng, optional)}
        return {**rope, **scales} if rng.random() < 0.5 else rope
    if rule_type == "longrope":
        factors = {name: [real(rng, 1, 30) for _ in range(pairs)] for name in ("short_factor", "long_factor")}
        optional = {"factor": real(rng, 1, 32), "attention_factor": real(rng, 0.5, 2)}
        return {**before, **factors, **some(rng, optional)}
    if rule_type == "llama3":
        low = real(rng, 0.5, 4)
        ends = {"low_freq_factor": low, "high_freq_factor": low + real(rng, 1, 4)}
        return {"factor": real(rng, 1, 32), **before, **ends}
    if rule_type == "proportional":
        return {"partial_rotary_factor": real(rng, 0.1, 1), **some(rng, {"factor": real(rng, 1, 8)})}
    return {}


def positions(rope, longest):
    """Return positions on both sides of every length at which a rule changes."""
    ends = {longest, longest + 1, 3 * longest}
    ends |= {rope[BEFORE], rope[BEFORE] + 1} if BEFORE in rope else set()
    return tuple(np.array([0, 1, end // 3, end - 1]) for end in sorted(ends))


def stated(rng, rope, rule_type):
    """State a rule in the current form or an older form."""
    style, theta = rng.integers(4), base(rng)
    if style < 2:
        key = ("rope_parameters", "rope_scaling")[style]
        return {key: {"rope_type": rule_type, "rope_theta": theta, **rope}}
    if rule_type == "default" and not rope:
        return {"rope_theta": theta, **some(rng, {"rope_scaling": None})}
    return {"rope_theta": theta, "rope_scaling": {"type" if style == 2 else "rope_type": rule_type, **rope}}


# Configs


@dataclass(frozen=True)
class Drawn:
    """Random configs of a class, named without "RotaryEmbedding".

    `old` has the older names of the base and of the share.
    """

    name: str
    first: bool  # of the classes of these fields
    rules: tuple[str, ...] = RULES
    explicit: bool | None = None  # whether head_dim is given; None: at times
    shares: tuple[float, ...] = ()  # of the features that rotate
    old: tuple[str, str] = ("rope_theta", "partial_rotary_factor")
    latent: bool = False
    second_rules: tuple[str, ...] = ()  # of the second layer type
    global_width: bool = False  # heads of twice the width in the layers of full attention

    def draw(self, rng, rule_type, in_older_keys):
        """Return a config, its rule's keys, and the rule whose slack holds."""
        heads, width = int(rng.choice([2, 4, 8])), int(rng.choice([16, 32, 48, 64]))
        longest = int(rng.integers(64, 512))
        fields = {"num_attention_heads": heads, "num_key_value_heads": heads // 2, "num_hidden_layers": 4}
        fields["max_position_embeddings"] = longest
        explicit = rng.random() < 0.5 if self.explicit is None else self.explicit
        fields |= {"hidden_size": heads * (32 if explicit else width)}
        fields |= {"head_dim": width} if explicit else {}
        if self.latent:
            width = int(rng.choice([16, 32, 64]))
            fields |= {
                "qk_rope_head_dim": width,
                "qk_nope_head_dim": 48,
                "v_head_dim": 32,
                "kv_lora_rank": 16,
            }
        if self.second_rules:
            rule_types = dict(zip(t.TYPES, (rule_type, str(rng.choice(self.second_rules))), strict=True))
            ropes = {
                name: self.parameters(rng, layer_rule, width, longest)
                for name, layer_rule in rule_types.items()
            }
            fields |= {"layer_types": [*t.TYPES] * 2, "rope_parameters": ropes}
            fields |= {"global_head_dim": 2 * width} if self.global_width else {}
            rules = {key: value for rope in ropes.values() for key, value in rope.items()}
            return fields, rules, "llama3"  # the largest slack, for either rule
        if self.shares and not in_older_keys:
            rope = self.parameters(rng, rule_type, width, longest)
            return {**fields, "rope_parameters": rope}, rope, rule_type
        share, (theta, share_key) = float(rng.choice(self.shares or [1.0])), self.old
        rope = rule(rng, rule_type, int(width * share) // 2, longest)
        if not self.shares:
            return {**fields, **stated(rng, rope, rule_type)}, rope, rule_type
        scaling = {} if rule_type == "default" else {"rope_scaling": {"type": rule_type, **rope}}
        return {**fields, theta: base(rng), share_key: share, **scaling}, rope, rule_type

    def parameters(self, rng, rule_type, width, longest):
        """Return rotary parameters with a share."""
        has_share = self.shares and rule_type != "proportional"
        share = float(rng.choice(self.shares)) if has_share else 1.0
        pairs = int(width * share) // 2
        share_field = {"partial_rotary_factor": share} if has_share else {}
        rope = rule(rng, rule_type, pairs, longest)
        if self.second_rules:
            rope.pop("truncate", None)  # transformers reads it from the outer dict
        return {"rope_type": rule_type, "rope_theta": base(rng), **rope, **share_field}

    def probes(self, seed):
        """Yield a probe of each rule and layer type; the dict of the config is read the same."""
        (case,) = (case for case in cases() if case.cls == f"{self.name}RotaryEmbedding")
        form, (owner, _) = case.row.form, places(case.model, case.cls, case.row.paths)[-1]
        for number, rule_type in enumerate(self.rules):
            rng = np.random.default_rng([seed, number, *self.name.encode()])
            stated_fields, rope, slack_rule = self.draw(
                rng, rule_type, in_older_keys=(seed + number) % 2 == 0
            )
            at = positions(rope, stated_fields["max_position_embeddings"])
            config = owner(**copy.deepcopy(stated_fields))
            for layer in t.layers_of(form, config):
                probe = t.probe(replace(form, positions=at), layer, case.model, case.cls, config, config)
                as_dict = {"model_type": owner.model_type, **stated_fields}
                yield replace(probe, equal_configs=(as_dict,), slack=SLACK.get(slack_rule, 1.0))


def drawn(names, **fields):
    """Return the random configs of classes."""
    return [Drawn(name, name == names.split()[0], **fields) for name in names.split()]


GLOBAL = ("default", "linear", "proportional")
SHARES = (0.25, 0.5, 0.75, 1.0)
FORMS: tuple[Drawn, ...] = (
    *drawn("Llama Mistral", rules=(*RULES, "proportional")),
    *drawn("Qwen2 Cohere NanoChat", explicit=False),
    *drawn("Qwen3 Helium", explicit=True),
    # Older files without a rule have YaRN, as these models do by default.
    *drawn("GptOss OpenAIPrivacyFilter", rules=RULES[1:], explicit=True),
    *drawn("GPTNeoX GPTNeoXJapanese", explicit=False, shares=SHARES, old=("rotary_emb_base", "rotary_pct")),
    *drawn("StableLm Phi Persimmon", explicit=False, shares=SHARES),
    *drawn("Nemotron Glm4 Qwen3Next", explicit=True, shares=SHARES),
    *drawn("DeepseekV2", rules=NO_LONG, explicit=False, latent=True),
    *drawn("DeepseekV3 DeepseekV32 MiniCPM3", explicit=False, latent=True),
    *drawn("Gemma3 Olmo3", rules=NO_LONG, explicit=True, second_rules=STATIC),
    *drawn("Laguna MiMoV2Flash", rules=NO_LONG, explicit=True, second_rules=STATIC, shares=(0.25, 0.5, 1.0)),
    *drawn("Lfm3", rules=STATIC, explicit=True, second_rules=(*STATIC, "proportional")),
    *drawn("Gemma4Text", rules=GLOBAL, explicit=True, second_rules=GLOBAL[:2], global_width=True),
)
