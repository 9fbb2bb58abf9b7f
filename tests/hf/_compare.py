"""Comparisons of outputs and of models, for the tests with transformers."""

import sys
from typing import Any

import torch


def off(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest value."""
    return float((x.double() - y.double()).abs().max() / y.double().abs().max())


def state(model: torch.nn.Module) -> dict[Any, Any]:
    """Return every attribute of every module, and every global of the model's code, in their order."""
    files = dict.fromkeys(type(module).__module__ for module in model.modules())
    found = {(name, key): value for name, m in model.named_modules() for key, value in _flat(vars(m))}
    return found | {(file, key): value for file in files for key, value in vars(sys.modules[file]).items()}


def _flat(attributes: dict[str, Any]) -> Any:
    """Yield attributes, and the items of dictionaries, such as buffers and hooks."""
    for key, value in attributes.items():
        yield key, value
        if isinstance(value, dict):
            yield from (((key, inner), item) for inner, item in value.items())


def is_same(before: dict[Any, Any], after: dict[Any, Any]) -> bool:
    """Compare two states: the same names in the same order, each the same object."""
    return list(before) == list(after) and all(value is after[key] for key, value in before.items())
