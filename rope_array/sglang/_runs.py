"""The rows of SGLang's tables by class, in runs as `_engines.fill` takes them. Imports no SGLang.

Most classes are copies of vLLM's. A new class of SGLang needs a line in RUNS. The names of attributes are
SGLang's.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from rope_array._engines import fill
from rope_array._engines.ropes import ROPES
from rope_array._rope import RoPE

__all__ = ["RUNS"]

_plain_rope, _yarn_rope = ROPES["RotaryEmbedding"], ROPES["YaRNScalingRotaryEmbedding"]


def _dynamic_ntk_rope(layer: Any) -> RoPE:
    """Return the rope of dynamic NTK at the longest position, `factor` times the trained context."""
    factor, width = float(layer.scaling_factor), layer.rotary_dim
    growth = factor * factor - (factor - 1)
    return replace(_plain_rope(layer), base=float(layer.base * growth ** (width / (width - 2))))


def _bailing_rope(layer: Any) -> RoPE:
    """Return the rope of Ling's layer, whose max_position_embeddings is the length of its table."""
    if layer.scaling_factor <= 1:
        return _plain_rope(layer)
    trained = {"max_position_embeddings": layer.original_max_position_embeddings}
    return _yarn_rope(SimpleNamespace(**vars(layer) | trained))


def _text_runs(rope_of: Callable[[Any], RoPE]) -> Callable[[Any], dict[str, fill.Runs]]:
    """Return a function from a layer to its table: of text, as kernels select the columns of M-RoPE."""

    def runs(layer: Any) -> dict[str, fill.Runs]:
        if (factor := getattr(layer, "extrapolation_factor", 1)) != 1:
            raise ValueError(f"extrapolation_factor is {factor}, and YaRN of rope_array has none")
        start = getattr(layer, "position_start", 0)
        return {"cos_sin_cache": ((rope_of(layer), lambda rows: range(start, start + rows)),)}

    return runs


_ROPES: Mapping[str, Callable[[Any], RoPE]] = {
    **dict.fromkeys(("RotaryEmbedding", "MRotaryEmbedding", "Ernie4_5_VLRotaryEmbedding"), _plain_rope),
    **dict.fromkeys(("YaRNScalingRotaryEmbedding", "YaRNScalingMRotaryEmbedding"), _yarn_rope),
    "DynamicNTKScalingRotaryEmbedding": _dynamic_ntk_rope,
    "BailingMRotaryEmbedding": _bailing_rope,
}
_AS_IN_VLLM = ("LinearScaling", "Llama3", "DeepseekScaling", "DynamicNTKAlpha", "Gemma4")
RUNS: fill.RunsByClass = {
    **{name: _text_runs(rope_of) for name, rope_of in _ROPES.items()},
    **{f"{name}RotaryEmbedding": _text_runs(ROPES[f"{name}RotaryEmbedding"]) for name in _AS_IN_VLLM},
    **{
        f"{name}RotaryEmbedding": fill.RUNS[f"{name}RotaryEmbedding"]
        for name in ("Phi3LongRoPEScaled", "DualChunk")
    },
}
