"""Weights of transformers' RoFormer in the models of `model.py`: the names of both, and the config.

Needs no transformers: a config is a dict (of config.json) or an object, the weights are a state dict.
"""

import re
from collections.abc import Mapping

import torch
from torch import nn

from .model import Config, Transformer

CONFIG = {  # ours: theirs
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "embedding_size": "embedding_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_length": "max_position_embeddings",
    "num_types": "type_vocab_size",
    "causal": "is_decoder",
    "eps": "layer_norm_eps",
}
OPTIONAL = ("embedding_size", "causal", "eps")  # fields of which Config has RoFormer's own default
SUPPORTED = {
    "model_type": "roformer",
    "hidden_act": "gelu",
    "rotary_value": False,
    "tie_word_embeddings": True,
}

BODY = {  # ours: theirs, of RoFormerModel; N is the number of a layer
    "words": "embeddings.word_embeddings",
    "types": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "project": "embeddings_project",
    "layers.N.attention.query": "encoder.layer.N.attention.self.query",
    "layers.N.attention.key": "encoder.layer.N.attention.self.key",
    "layers.N.attention.value": "encoder.layer.N.attention.self.value",
    "layers.N.attention.output": "encoder.layer.N.attention.output.dense",
    "layers.N.attention_norm": "encoder.layer.N.attention.output.LayerNorm",
    "layers.N.cross.query": "encoder.layer.N.crossattention.self.query",
    "layers.N.cross.key": "encoder.layer.N.crossattention.self.key",
    "layers.N.cross.value": "encoder.layer.N.crossattention.self.value",
    "layers.N.cross.output": "encoder.layer.N.crossattention.output.dense",
    "layers.N.cross_norm": "encoder.layer.N.crossattention.output.LayerNorm",
    "layers.N.inner": "encoder.layer.N.intermediate.dense",
    "layers.N.outer": "encoder.layer.N.output.dense",
    "layers.N.norm": "encoder.layer.N.output.LayerNorm",
}
WHOLE = {  # of the models with a head
    **{f"body.{ours}": f"roformer.{theirs}" for ours, theirs in BODY.items()},
    "head.words": "roformer.embeddings.word_embeddings",
    "head.dense": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head": "cls.predictions",  # its bias
    "dense": "classifier.dense",
    "output": "classifier.out_proj",
}
# Files may leave out the copies; a state dict has them.
TIED = {  # a copy: its original
    "cls.predictions.decoder.weight": "roformer.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
# The sin and cos of each position, which `Rotary` computes.
TABLES = {"encoder.embed_positions.weight", "roformer.encoder.embed_positions.weight"}


def config_from(config: object) -> Config:
    """Return the sizes of a RoFormerConfig, or of a dict of its fields.

    Raises ValueError for a RoFormer that the models of `model.py` do not compute.
    """
    values = config if isinstance(config, Mapping) else config.to_dict()
    for name, supported in SUPPORTED.items():
        if values.get(name, supported) != supported:
            raise ValueError(f"{name} is {values[name]!r}: only {supported!r} is supported")
    fields = {ours: values[theirs] for ours, theirs in CONFIG.items() if theirs in values}
    if missing := [theirs for ours, theirs in CONFIG.items() if ours not in (*fields, *OPTIONAL)]:
        raise ValueError(f"the config lacks {', '.join(missing)}")
    return Config(**fields)


def load(model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Copy the weights of a RoFormer into a model of the same sizes.

    A Transformer takes a RoFormerModel, a LanguageModel a RoFormerForMaskedLM or RoFormerForCausalLM, and a
    Classifier a RoFormerForSequenceClassification. Raises ValueError for weights that are missing, left over,
    or not tied, and RuntimeError for other sizes.
    """
    table = BODY if isinstance(model, Transformer) else WHOLE
    names = {ours: _their_name(ours, table) for ours in model.state_dict()}
    if missing := set(names.values()) - state.keys():
        raise ValueError(f"the state dict lacks {', '.join(sorted(missing))}")
    if unused := state.keys() - names.values() - TIED.keys() - TABLES:
        raise ValueError(f"the model has no {', '.join(sorted(unused))}")
    if untied := [a for a, b in TIED.items() if a in state and not torch.equal(state[a], state[b])]:
        raise ValueError(f"the output is not tied to the word embeddings: {', '.join(untied)}")
    model.load_state_dict({ours: state[theirs] for ours, theirs in names.items()})


def _their_name(name: str, table: dict[str, str]) -> str:
    """Return their name of our `layers.3.norm.bias`, in which 3 is the N of the table."""
    module, _, tensor = name.rpartition(".")
    number = re.search(r"\d+|$", module)[0]
    theirs = table.get(re.sub(r"\d+", "N", module))
    if theirs is None:
        raise ValueError(f"RoFormer has no {name}")
    return f"{theirs.replace('.N.', f'.{number}.')}.{tensor}"
