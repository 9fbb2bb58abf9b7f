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


def rule(rng, kind, pairs, longest):
    """Return a rule's own keys. `longest` is the config's max_position_embeddings."""
    before = {BEFORE: int(rng.integers(16, longest))}
    if kind in ("linear", "dynamic"):
        return {"factor": real(rng, 1, 8)}
    if kind == "yarn":
        optional = {"beta_fast": real(rng, 8, 40), "beta_slow": real(rng, 0.5, 4)}
        optional |= {"truncate": bool(rng.random() < 0.5), "attention_factor": real(rng, 0.5, 2)}
        scales = {"mscale": real(rng, 0.5, 2), "mscale_all_dim": real(rng, 0.5, 2)}
        rope = {"factor": real(rng, 1, 40), **before, **some(rng, optional)}
        return {**rope, **scales} if rng.random() < 0.5 else rope
    if kind == "longrope":
        factors = {name: [real(rng, 1, 30) for _ in range(pairs)] for name in ("short_factor", "long_factor")}
        optional = {"factor": real(rng, 1, 32), "attention_factor": real(rng, 0.5, 2)}
        return {**before, **factors, **some(rng, optional)}
    if kind == "llama3":
        low = real(rng, 0.5, 4)
        ends = {"low_freq_factor": low, "high_freq_factor": low + real(rng, 1, 4)}
        return {"factor": real(rng, 1, 32), **before, **ends}
    if kind == "proportional":
        return {"partial_rotary_factor": real(rng, 0.1, 1), **some(rng, {"factor": real(rng, 1, 8)})}
    return {}


def positions(rope, longest):
    """Return positions on both sides of every length at which a rule changes."""
    ends = {longest, longest + 1, 3 * longest}
    ends |= {rope[BEFORE], rope[BEFORE] + 1} if BEFORE in rope else set()
    return tuple(np.array([0, 1, end // 3, end - 1]) for end in sorted(ends))


def stated(rng, rope, kind):
    """State a rule in the current form or an older form."""
    style, theta = rng.integers(4), base(rng)
    if style < 2:
        key = ("rope_parameters", "rope_scaling")[style]
        return {key: {"rope_type": kind, "rope_theta": theta, **rope}}
    if kind == "default" and not rope:
        return {"rope_theta": theta, **some(rng, {"rope_scaling": None})}
    return {"rope_theta": theta, "rope_scaling": {"type" if style == 2 else "rope_type": kind, **rope}}


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
    others: tuple[str, ...] = ()  # rules of the second layer type
    global_width: bool = False  # heads of twice the width in the layers of full attention

    def draw(self, rng, kind, in_older_keys):
        """Return a config, its rule's keys, and the rule whose slack holds."""
        heads, width = int(rng.choice([2, 4, 8])), int(rng.choice([16, 32, 48, 64]))
        longest = int(rng.integers(64, 512))
        given = {"num_attention_heads": heads, "num_key_value_heads": heads // 2, "num_hidden_layers": 4}
        given["max_position_embeddings"] = longest
        explicit = rng.random() < 0.5 if self.explicit is None else self.explicit
        given |= {"hidden_size": heads * (32 if explicit else width)}
        given |= {"head_dim": width} if explicit else {}
        if self.latent:
            width = int(rng.choice([16, 32, 64]))
            given |= {"qk_rope_head_dim": width, "qk_nope_head_dim": 48, "v_head_dim": 32, "kv_lora_rank": 16}
        if self.others:
            kinds = dict(zip(t.TYPES, (kind, str(rng.choice(self.others))), strict=True))
            ropes = {name: self.parameters(rng, one, width, longest) for name, one in kinds.items()}
            given |= {"layer_types": [*t.TYPES] * 2, "rope_parameters": ropes}
            given |= {"global_head_dim": 2 * width} if self.global_width else {}
            both = {key: value for rope in ropes.values() for key, value in rope.items()}
            return given, both, "llama3"  # the largest slack, for either rule
        if self.shares and not in_older_keys:
            rope = self.parameters(rng, kind, width, longest)
            return {**given, "rope_parameters": rope}, rope, kind
        share, (theta, part) = float(rng.choice(self.shares or [1.0])), self.old
        rope = rule(rng, kind, int(width * share) // 2, longest)
        if not self.shares:
            return {**given, **stated(rng, rope, kind)}, rope, kind
        scaling = {} if kind == "default" else {"rope_scaling": {"type": kind, **rope}}
        return {**given, theta: base(rng), part: share, **scaling}, rope, kind

    def parameters(self, rng, kind, width, longest):
        """Return rotary parameters with a share."""
        has_share = self.shares and kind != "proportional"
        share = float(rng.choice(self.shares)) if has_share else 1.0
        pairs = int(width * share) // 2
        more = {"partial_rotary_factor": share} if has_share else {}
        rope = rule(rng, kind, pairs, longest)
        if self.others:
            rope.pop("truncate", None)  # transformers reads it from the outer dict
        return {"rope_type": kind, "rope_theta": base(rng), **rope, **more}

    def probes(self, seed):
        """Yield a probe of each rule and layer type; the dict of the config is read the same."""
        (case,) = (one for one in cases() if one.cls == f"{self.name}RotaryEmbedding")
        form, (owner, _) = case.row.form, places(case.model, case.cls, case.row.parts)[-1]
        for number, kind in enumerate(self.rules):
            rng = np.random.default_rng([seed, number, *self.name.encode()])
            stated_fields, rope, slack_rule = self.draw(rng, kind, in_older_keys=(seed + number) % 2 == 0)
            at = positions(rope, stated_fields["max_position_embeddings"])
            config = owner(**copy.deepcopy(stated_fields))
            for layer in t.layers_of(form, config):
                probe = t.probe(replace(form, positions=at), layer, case.model, case.cls, config, config)
                others = ({"model_type": owner.model_type, **stated_fields},)
                yield replace(probe, others=others, slack=SLACK.get(slack_rule, 1.0))


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
    *drawn("Gemma3 Olmo3", rules=NO_LONG, explicit=True, others=STATIC),
    *drawn("Laguna MiMoV2Flash", rules=NO_LONG, explicit=True, others=STATIC, shares=(0.25, 0.5, 1.0)),
    *drawn("Lfm3", rules=STATIC, explicit=True, others=(*STATIC, "proportional")),
    *drawn("Gemma4Text", rules=GLOBAL, explicit=True, others=GLOBAL[:2], global_width=True),
)
