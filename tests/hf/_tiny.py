"""Tiny random models of transformers: each model type of docs/models.md.

A tiny model has two layers, or one of each kind, and heads of 32 features (see `_tiny_config`). Its weights
are larger than at the start of training, so that scores are of the order of 1 and the rotation matters to
the outputs.
"""

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from hf import _tiny_inputs
from hf._compare import FLOAT32, FLOAT64, precision
from hf._tiny_config import FAMILY, by_family, tiny_config
from hf._walk import NAMES, cases, config_class, config_classes, modeling
from transformers import modeling_outputs

ABSENT: Mapping[str, str] = by_family(FAMILY["absent"])  # the reason why a type has no tiny model
CLASSES: Mapping[str, list[str]] = FAMILY["classes"]
# Llama 4's whole model, in transformers 5.24, reads it from the result of its language model, which lacks it.
modeling_outputs.MoeCausalLMOutputWithPast.image_outputs = None
TASKS = (
    *("FOR_IMAGE_TEXT_TO_TEXT", "FOR_CAUSAL_LM", "FOR_MULTIMODAL_LM", "FOR_SEQ_TO_SEQ_CAUSAL_LM"),
    *("FOR_SPEECH_SEQ_2_SEQ", "FOR_MASKED_LM"),
)
WEIGHTS, DEEP = 1.5, 0.5  # the gain of a layer; of a convolution, as dozens follow each other


@dataclass(frozen=True)
class Tiny:
    """A tiny model of a type, with changes of its config, and its inputs."""

    model_type: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def make(self, dtype=FLOAT32):
        """Return a new model for inference, with the same weights in float32 and float64.

        Other dtypes have these weights rounded, and float32 frequencies, as from `from_pretrained`.
        """
        config_cls, cls = model_class(self.model_type)
        with torch.random.fork_rng(), precision(dtype):
            torch.manual_seed(0)
            config = tiny_config(self.model_type, config_cls, self.changes)
            config._experts_implementation = "eager"  # the default has no float64
            model = cls(config).eval()
        if dtype is FLOAT64:
            for weight, drawn in zip(weights(model).values(), weights(self.make()).values(), strict=True):
                weight.copy_(drawn)
            return model
        set_weights(model)
        # Attention layers have rotary names too: the weights of their projections are no frequencies.
        own = ((*module.buffers(), *module.parameters(recurse=False)) for module in rotaries(model))
        frequencies = {id(x) for values in own for x in values}
        for x in (*model.parameters(), *model.buffers()):
            if dtype is not FLOAT32 and x.is_floating_point() and id(x) not in frequencies:
                x.data = x.data.to(dtype)
        return model

    def inputs(self, model):
        """Return keyword arguments for the model, with floats of the default dtype."""
        return _tiny_inputs.inputs(self.model_type, model)


TRAINED = 24  # positions of the models whose rule depends on the length
LISTS = {"short_factor": [1.0 + i / 8 for i in range(16)], "long_factor": [2.0 + i for i in range(16)]}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, **LISTS}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
LENGTHS = {
    "phi3": Tiny("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": TRAINED}),
    "dynamic": Tiny("llama", {"max_position_embeddings": TRAINED, "rope_parameters": DYNAMIC}),
}


def tiny_of(name):
    """Return the tiny model of a type, or of LENGTHS."""
    return LENGTHS.get(name, Tiny(name))


FAMILIES = tuple(Tiny(name) for name in sorted({case.model for case in cases()} - ABSENT.keys()))


def model_class(folder):
    """Return the config class and the model class of a folder: the whole model rather than a part."""
    if folder in CLASSES:
        config, model = CLASSES[folder]
        return config_class(folder, config), getattr(modeling(folder), model)
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    tables = [getattr(auto, f"MODEL_{task}_MAPPING_NAMES", {}) for task in TASKS] + [auto.MODEL_MAPPING_NAMES]
    for config_cls in sorted(config_classes(folder), key=lambda cls: -len(getattr(cls, "sub_configs", ()))):
        for table in tables:
            name = table.get(config_cls.model_type)
            if name and hasattr(modeling(folder), name):
                return config_cls, getattr(modeling(folder), name)
    raise LookupError(
        f"transformers has no automatic class for a config of {folder}: add it to families.toml."
    )


def rotaries(model):
    """Return the rotary modules of a model."""
    return [module for module in model.modules() if NAMES.search(type(module).__name__)]


def weights(model):
    """Return the parameters, and the codebooks, which are buffers."""
    parameters = {name: parameter.data for name, parameter in model.named_parameters()}
    return parameters | {name: book for name, book in model.named_buffers() if name.endswith("embed_sum")}


def set_weights(model):
    """Set weights from a fixed seed: a layer keeps the size of its input, and norms and biases vary."""
    random = torch.Generator().manual_seed(0)
    for name, weight in weights(model).items():
        values = torch.randn(weight.shape, generator=random)
        constant = weight.numel() and bool((weight == weight.flatten()[0]).all())
        if constant and (weight.ndim < 2 or weight.any()):
            weight.add_(0.2 * values)
        elif weight.ndim >= 2:
            inputs = weight.shape[-1] if "expert" in name else weight[0].numel()
            gain = DEEP if "conv" in name else WEIGHTS
            is_table = re.search(r"(embed|token|position)[^.]*(\.weight)?$", name)
            weight.copy_(values * (1.0 if is_table else gain / inputs**0.5))


def answer(output):
    """Return a model's logits, or its first floating-point array."""
    logits = getattr(output, "logits", None)
    array = next(arrays(output), None) if logits is None else logits
    if array is None:
        raise LookupError(f"{type(output).__name__} has no floating-point array")
    return array


def arrays(output):
    """Yield the floating-point arrays of an output."""
    if isinstance(output, torch.Tensor):
        if output.is_floating_point() and output.ndim:
            yield output
    elif isinstance(output, dict | tuple):
        for value in output.values() if isinstance(output, dict) else output:
            yield from arrays(value)
