"""Precision of models, and comparisons of outputs and of models, for the tests with transformers.

Importing this module silences transformers, and leaves one thread to PyTorch.
"""

import sys
from contextlib import contextmanager

import pytest
import torch
import transformers

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

FLOAT32, FLOAT64 = torch.float32, torch.float64  # bound here: `precision` patches torch.float32
needs_avx512 = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="PyTorch's power has other bits without AVX-512",
)


@contextmanager
def precision(dtype):
    """Run models in a dtype; for float64, make the name `float32` mean float64.

    Models of every dtype compute frequencies, angles, norms and softmax in float32 by name. With the name
    patched, the model's own code computes its outputs in float64 throughout.
    """
    if dtype is not FLOAT64:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for name in ("float", "float32"):
            patch.setattr(torch, name, dtype)
        patch.setattr(torch, "FloatTensor", torch.DoubleTensor)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(FLOAT32)


def off(x, y):
    """Return the largest difference, relative to the largest value."""
    return float((x.double() - y.double()).abs().max() / y.double().abs().max())


def state(model):
    """Return every attribute of every module, and every global of the model's code, in their order."""
    files = dict.fromkeys(type(module).__module__ for module in model.modules())
    attributes = {(name, key): value for name, m in model.named_modules() for key, value in _flat(vars(m))}
    code = {(file, key): value for file in files for key, value in vars(sys.modules[file]).items()}
    return attributes | code


def _flat(attributes):
    """Yield attributes, and the items of dictionaries, such as buffers and hooks."""
    for key, value in attributes.items():
        yield key, value
        if isinstance(value, dict):
            yield from (((key, inner), inner_value) for inner, inner_value in value.items())


def is_same(before, after):
    """Compare two states: the same names in the same order, each the same object."""
    return list(before) == list(after) and all(value is after[key] for key, value in before.items())
