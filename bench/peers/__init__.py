"""Other implementations, each a `Target` of the conformance suite, called as documented.

A module here has `targets()`, which imports its package, and `NOTES`, by the target's name: how it is called,
and why checks fail. `bench/scoreboard.py` runs each module in a separate process.

`timed(arrays)` has a module's rows for `bench/speed.py` on the CPU, `on_gpu(inputs)` its rows on a GPU. The
kernels of FlashInfer and vLLM need a GPU: their modules have `on_gpu` alone.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Group(NamedTuple):
    """A module here, the names of the rows of its `targets()` in order, and its environment."""

    module: str
    rows: tuple[str, ...]
    environment: Mapping[str, str] = MappingProxyType({})


_NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
# Triton's interpreter runs a kernel's own code on the CPU, block by block.
_INTERPRETED = {**_NO_GPU, "TRITON_INTERPRET": "1"}

GROUPS = (
    Group("own", ("rope_array, NumPy", "rope_array, PyTorch", "rope_array, JAX"), _NO_GPU),
    Group(
        "huggingface",
        ("transformers Llama", "transformers RoFormer", "transformers V-JEPA 2"),
        {**_NO_GPU, "HF_HUB_OFFLINE": "1"},
    ),
    Group("meta", ("Llama, complex form",), _NO_GPU),
    Group("rotary_embedding_torch", ("rotary-embedding-torch",), _NO_GPU),
    Group("x_transformers", ("x-transformers",), _NO_GPU),
    Group("torchtune", ("torchtune",), _NO_GPU),
    Group("equinox", ("Equinox",), _NO_GPU),
    Group("keras_hub", ("keras-hub on JAX",), {**_NO_GPU, "KERAS_BACKEND": "jax"}),
    Group("keras_hub", ("keras-hub on PyTorch",), {**_NO_GPU, "KERAS_BACKEND": "torch"}),
    Group("onnx_reference", ("ONNX reference evaluator",), _NO_GPU),
    Group("onnx_runtime", ("ONNX Runtime, ai.onnx", "ONNX Runtime, com.microsoft"), _NO_GPU),
    Group("flash_attention", ("flash-attn, Triton kernel",), _INTERPRETED),
    Group("liger", ("Liger, Triton kernel",), {**_INTERPRETED, "HF_HUB_OFFLINE": "1"}),
    Group("tutorials", ("tutorial: rotate_half", "tutorial: table", "tutorial: matrix"), _NO_GPU),
)
