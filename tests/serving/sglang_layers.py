"""Layers of SGLang's rotary embeddings without SGLang's kernels, which need a GPU.

The modules of rotary embeddings, plugins and settings are SGLang's own files, of a wheel that is installed
without its dependencies. What they import beyond these is a stand-in.
"""

import importlib
import importlib.util
import sys
import types
from pathlib import Path
from unittest import mock

import pytest
import torch
from peer_cases import definitions_of

SPEC = importlib.util.find_spec("sglang")
if SPEC is None:
    pytest.skip("SGLang is not installed: it has no wheel for this Python", allow_module_level=True)
ROOT = Path(*SPEC.submodule_search_locations)
PACKAGE = "sglang.srt.layers.rotary_embedding"
OWN = ("sglang", "sglang.srt", "sglang.srt.layers")  # packages of which only the named files are run


def _module(name, **attributes):
    sys.modules[name] = module = types.ModuleType(name)
    vars(module).update(attributes)
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    return module


def load():
    """Return SGLang's package of rotary embeddings, loaded once."""
    if PACKAGE in sys.modules:
        return sys.modules[PACKAGE]
    for name in OWN:
        _module(name, __path__=[str(ROOT.joinpath(*name.split(".")[1:]))])
    no, nothing = (lambda *args, **kwargs: False), (lambda *args, **kwargs: None)
    platforms = ("cuda", "hip", "npu", "xpu", "musa", "mps")
    utils = {f"is_{name}": no for name in platforms} | {"is_cpu": lambda: True, "get_device": lambda: "cpu"}
    utils |= {"cpu_has_amx_support": no, "get_bool_env_var": no, "support_triton": no}
    utils["get_compiler_backend"] = lambda: "eager"
    _module("sglang.srt.utils", **utils)
    _module("sglang.srt.platforms", current_platform=types.SimpleNamespace(is_out_of_tree=no))
    bags = {"get_exec": nothing, "publish_role": nothing, "attention_backends": nothing}
    _module("sglang.srt.runtime_context", **bags)
    for name in ("", ".ops", ".ops.attention"):
        _module(f"sglang.kernels{name}")
    _module("sglang.kernels.fused_op", BaseFusedOp=torch.nn.Module)
    triton = ("triton_mrope_fused", "triton_ernie45_rope_fused_inplace")
    _module("sglang.kernels.ops.attention.rotary_triton", **dict.fromkeys(triton, nothing))
    _module("sglang.kernels.ops.attention.mrope", apply_interleaved_rope_triton=nothing)
    spec = types.SimpleNamespace(speculative_num_steps=0, speculative_num_draft_tokens=0)
    bag = types.SimpleNamespace(context_length=None)
    path = ROOT / "srt" / "utils" / "common.py"
    reserve = "reserve_rope_cache_for_long_sequences"
    functions = definitions_of(path, reserve, get_model=lambda: bag, get_spec=lambda: spec)
    _module("sglang.srt.utils.common", **functions)
    return importlib.import_module(PACKAGE)


COMMON = {"head_size": 32, "rotary_dim": 32, "max_position_embeddings": 4096, "base": 10000.0}
COMMON |= {"is_neox_style": True, "dtype": torch.float32}
SECTIONS, YARN = {"mrope_section": [4, 6, 6]}, {"scaling_factor": 8.0}
FACTORS = {"short_factor": [1 + i / 16 for i in range(16)], "long_factor": [1 + i / 4 for i in range(16)]}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "orig_max_position": 8192}
# By name: the class without "RotaryEmbedding", and the arguments that differ from COMMON.
LAYERS = {
    "default": ("", {}),
    "partial": ("", {"rotary_dim": 16, "is_neox_style": False}),
    "from -7": ("", {"position_start": -7}),
    "linear": ("LinearScaling", {"scaling_factors": 4.0}),
    "llama3": ("Llama3", {"scaling_factor": 8.0, **LLAMA3}),
    "yarn": ("YaRNScaling", YARN),
    "yarn not truncated": ("YaRNScaling", {**YARN, "truncate": False, "attn_factor": 0.7}),
    "yarn mscale": ("YaRNScaling", {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}),
    "deepseek": ("DeepseekScaling", {**YARN, "mscale": 0.707, "mscale_all_dim": 0.3}),
    "ntk alpha": ("DynamicNTKAlpha", {"scaling_alpha": 1000.0}),
    "ntk dynamic": ("DynamicNTKScaling", {"scaling_factor": 4.0}),
    "proportional": ("Gemma4", {"rotary_dim": 8, "base": 1e6}),
    "longrope": ("Phi3LongRoPEScaled", {"original_max_position_embeddings": 1024, **FACTORS}),
    "mrope": ("M", SECTIONS),
    "mrope interleaved": ("M", {"mrope_section": [6, 5, 5], "mrope_interleaved": True}),
    "mrope yarn": ("YaRNScalingM", {**YARN, **SECTIONS}),
    "mrope ernie": ("Ernie4_5_VL", {"mrope_section": [5, 5, 6]}),
    "mrope bailing": ("BailingM", {**SECTIONS, "video_rope": True}),
    "mrope bailing yarn": ("BailingM", {**YARN, "original_max_position_embeddings": 2048}),
    "dual chunk": ("DualChunk", {"chunk_size": 48, "local_size": 8}),
}


def classes():
    """Return the classes of SGLang's package that rotate, by name."""
    names = ("base", "mrope", "rope_variant", "yarn", "bailing_mrope")
    modules = [importlib.import_module(f"{PACKAGE}.{name}") for name in names]
    found = (cls for module in modules for cls in vars(module).values() if isinstance(cls, type))
    return {cls.__name__: cls for cls in found if "RotaryEmbedding" in cls.__name__}


def make(name, **changes):
    """Make a layer of LAYERS; dual chunk's, which asks for a GPU, on the CPU."""
    cls, arguments = LAYERS[name]
    gpu = {"device": lambda _: torch.device("cpu"), "cuda": mock.Mock()} if cls == "DualChunk" else {}
    with mock.patch(f"{PACKAGE}.rope_variant.torch", types.SimpleNamespace(**{**vars(torch), **gpu})):
        return classes()[f"{cls}RotaryEmbedding"](**COMMON | arguments | changes)
