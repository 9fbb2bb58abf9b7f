"""Notes on a peer, and helpers that several peers share."""

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

FLOAT32_ANGLES = (
    "angles are rounded to float32; this rounding alone is up to 0.03 radians at positions below 2^20, 0.5 "
    "below 2^24 and 64 below 2^31"
)
# Checks at positions where float32 angles are wrong; narrow dtypes reach 2^31 - 1 too.
FAR = dict.fromkeys(
    ("accuracy_2e*", "accuracy_int32*", "accuracy_negative*", "positions_of_narrow*"), FLOAT32_ANGLES
)

# Checks that call in several dtypes: where 16-bit x are wrong, these pass with float32 and float64 alone.
WITH_16_BITS = (
    *("* bfloat16", "* float16", "*combinations", "sizes_and_fields", "one_field_*", "no_grad"),
    *("inference_mode", "training_after_inference", "*autocast", "default_*", "deterministic"),
    *("widths_and_positions", "calls_that_differ_*", "threads_of_each_field", "gradient_at_far_*"),
    *("fields_and_many_elements", "calls_after_a_mapped_one", "calls_after_a_gradient"),
)
# A fault of rotary-embedding-torch and x-transformers, by one author.
WIDTH_2 = dict.fromkeys(
    ("narrow_heads", "rotary_dim"),
    "the base is rescaled by 1 ** (dim / (dim - 2)), which divides by zero for a rotated width of 2",
)


class Note(NamedTuple):
    """How a peer is called, and why checks fail: glob patterns of "check" or "check dtype", first match."""

    how: str
    why: Mapping[str, str] = {}


def release(*distributions: str) -> str:
    return ", ".join(f"{name} {version(name)}" for name in distributions)


def built(make: Callable, size: int = 64) -> Callable:
    """Cache the modules that a function makes of its arguments: a model makes them once, outside of calls.

    So they are made in PyTorch's default settings, whatever the settings of the first call that needs them.
    """

    @lru_cache(maxsize=size)
    @wraps(make)
    def build(*arguments):
        import torch

        if torch.compiler.is_compiling():  # Dynamo cannot enter these settings
            return make(*arguments)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            with torch.inference_mode(False), torch.device("cpu"):
                return make(*arguments)
        finally:
            torch.set_default_dtype(before)

    return build


def first(pos) -> int:
    """Return the first position, for a peer that takes only a start."""
    if pos.ndim != 1:
        raise TypeError(f"takes one start for all, not positions of shape {tuple(pos.shape)}")
    return int(pos[0]) if len(pos) else 0


def without_init(*packages: str) -> None:
    """Make packages importable without running their __init__, which imports packages RoPE does not need."""
    for name in packages:
        spec = find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}")
        package = ModuleType(name)
        package.__path__ = list(spec.submodule_search_locations or ())
        package.__spec__ = spec
        sys.modules[name] = package
