"""Read the metadata of a GGUF file, by the conventions of llama.cpp. Needs the package `gguf`.

Read from llama.cpp (the sources in llama-cpp-python 0.3.36): src/llama-model.cpp, llama_model_rope_type and
load_hparams; src/llama-context.cpp, the factor on cos and sin; src/models, the call of each architecture;
ggml/src/ggml-cpu/ops.cpp, rope_yarn and ggml_mrope_cache_init.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rope_array._config._convention import Convention
from rope_array._config._values import PartValues
from rope_array._errors import ConfigError, short
from rope_array._spec.axes import Axes, GgmlMode
from rope_array._spec.frequencies import Scaling, frequencies
from rope_array._spec.scaling import Linear, LongRoPE, YaRN

_MOST_LAYERS = 4096

# fmt: off
_ROPE_KEYS = frozenset((
    "dimension_count", "dimension_count_swa", "dimension_sections", "freq_base", "freq_base_swa",
    "scale_linear", "scaling.alpha", "scaling.attn_factor", "scaling.factor", "scaling.finetuned",
    "scaling.original_context_length", "scaling.type", "scaling.yarn_attn_factor", "scaling.yarn_beta_fast",
    "scaling.yarn_beta_slow", "scaling.yarn_ext_factor", "scaling.yarn_log_multiplier",
))
_NEIGHBOURS = frozenset((
    "arcee", "arctic", "chameleon", "chatglm", "command-r", "deepseek", "ernie4_5", "ernie4_5-moe", "glm4",
    "granite", "granitehybrid", "granitemoe", "internlm2", "llada", "llama", "llama-embed", "maincoder",
    "minicpm", "mistral3", "neo-bert", "olmo", "xverse",
))
_HALVES = frozenset((
    "apertus", "bailingmoe2", "bitnet", "codeshell", "dbrx", "dots1", "dream", "eurobert", "exaone", "falcon",
    "falcon-h1", "gemma", "glm4moe", "gptneox", "grovemoe", "hunyuan-dense", "hunyuan-moe", "hunyuan_vl",
    "jais2", "jina-bert-v3", "lfm2", "lfm2moe", "llada-moe", "minimax-m2", "nemotron", "nomic-bert",
    "nomic-bert-moe", "olmoe", "openelm", "orion", "pangu-embedded", "phi2", "phi3", "phimoe", "plamo",
    "qwen", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "qwen3next", "rnd1", "seed_oss", "stablelm",
    "starcoder2",
))
_LATENT = {"deepseek2": "interleaved", "plm": "interleaved", "minicpm3": "half"}
_SECTIONS: Mapping[str, GgmlMode] = {
    "qwen2vl": "mrope", "paddleocr": "mrope", "qwen3vl": "imrope", "qwen3vlmoe": "imrope", "qwen35": "imrope",
    "qwen35moe": "imrope",
}
# These have sections in some files only.
_MAYBE_SECTIONS = ("glm4", "glm4moe", "hunyuan_vl")
_WITHOUT = frozenset((
    "arwkv7", "bert", "bloom", "gpt2", "gptj", "jais", "jamba", "jina-bert-v2", "kimi-linear", "mamba",
    "mamba2", "mpt", "nemotron_h", "nemotron_h_moe", "refact", "rwkv6", "rwkv6qwen2", "rwkv7", "starcoder",
    "t5", "t5encoder",
))
# fmt: on


@dataclass(frozen=True, kw_only=True)
class _Windows:
    """An architecture whose layers alternate between a sliding window and full attention.

    Attributes
    ----------
    period
        One of so many layers has full attention, the last of each period, or the first. 0: the file must list
        the layers.
    first
        Whether it is the first.
    base
        The base of the layers with a window, if the file has no `rope.freq_base_swa`; None: the model's own.
    scaled
        Whether the layers with a window have the model's rule.
    rotates
        Whether the layers with full attention rotate.
    optional
        Whether the layers are alike in a file without `attention.sliding_window`.
    """

    pairing: str = "half"
    period: int
    first: bool = False
    base: float | None = None
    scaled: bool = True
    rotates: bool = True
    optional: bool = False


_WINDOWS = {
    "gemma2": _Windows(period=2),
    "gemma3": _Windows(period=6, base=1e4, scaled=False, optional=True),
    "gemma3n": _Windows(period=5, base=1e4, scaled=False),
    "gemma4": _Windows(period=0, base=1e4, scaled=False),
    "gemma-embedding": _Windows(period=6, base=1e4, scaled=False),
    "gpt-oss": _Windows(period=2),
    "modern-bert": _Windows(period=3, first=True, base=1e4, scaled=False, optional=True),
    "olmo2": _Windows(period=4, scaled=False, optional=True),
    "cohere2": _Windows(pairing="interleaved", period=4, rotates=False),
    "exaone4": _Windows(period=4, rotates=False, optional=True),
}
# Every fourth layer has no rotation.
_NO_ROPE_EVERY = {"llama4": 4, "smollm3": 4}


# The file


class Metadata(dict[str, Any]):
    """The values of a GGUF file: "architecture", "tensors", and the keys of the architecture in groups."""


def is_gguf(path: "os.PathLike[str]") -> bool:
    """Return whether a file begins as a GGUF file does, or is named as one."""
    with open(path, "rb") as stream:
        return stream.read(4) == b"GGUF" or str(path).endswith(".gguf")


def metadata(path: "os.PathLike[str]", name: str) -> Metadata:
    """Return the values of a GGUF file that concern its rotary embedding."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ConfigError(
            f"{name} is a GGUF file, which needs the package gguf: python -m pip install gguf, or give the "
            "config.json of the model that the file was converted from."
        ) from None
    try:
        return _values_of(GGUFReader(path), name)
    except ConfigError:
        raise
    except Exception as problem:
        raise ConfigError(f"{name} is no GGUF file that can be read: {short(str(problem))}.") from None


def _values_of(reader: Any, name: str) -> Metadata:
    stated = reader.fields.get("general.architecture")
    architecture = None if stated is None else stated.contents()
    if not isinstance(architecture, str):
        raise ConfigError(
            f"{name} states no general.architecture; of a model in several files give the first."
        )
    start = f"{architecture}."
    fields = (
        (key.removeprefix(start), field) for key, field in reader.fields.items() if key.startswith(start)
    )
    tensors = {tensor.name: tensor.data.tolist() for tensor in reader.tensors if _is_factor(tensor.name)}
    return _in_groups(architecture, {key: field.contents() for key, field in fields}, tensors)


def _is_factor(name: str) -> bool:
    return name in ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def _in_groups(architecture: str, stated: Mapping[str, Any], tensors: Mapping[str, Any]) -> Metadata:
    content = Metadata(architecture=architecture, tensors=dict(tensors))
    for key, value in stated.items():
        group, _, inner = key.partition(".")
        if group in ("rope", "attention"):
            content.setdefault(group, {})[inner] = value
        elif key in ("block_count", "context_length", "embedding_length"):
            content[key] = value
    heads = content.get("attention", {}).get("head_count")
    if isinstance(heads, list) and heads:  # one number for each layer; llama.cpp divides by the first
        content["attention"]["head_count"] = heads[0]
    return content


# The convention


def read(content: Metadata) -> dict[str, Any]:
    """Return the fields of the `Format` of a GGUF file's values."""
    architecture, rope = content["architecture"], content.get("rope", {})
    if unknown := sorted(rope.keys() - _ROPE_KEYS):
        raise ConfigError(f"{architecture}.rope.{unknown[0]} is unknown; llama.cpp has no such key.")
    if rope.get("scaling.alpha"):
        raise ConfigError(f"{architecture}.rope.scaling.alpha is not read; give the model's config.json.")
    convention = _convention(architecture, content)
    defaults: dict[str, Any] = {
        "alias": {"num_hidden_layers": "block_count", "max_position_embeddings": "context_length"},
        "rope": None,
    }
    windows = _WINDOWS.get(architecture)
    if windows is not None and _alternates(windows, content):
        convention = _with_windows(convention, windows)
        defaults["layer_types"] = _layer_types(windows, content)
    return {
        "name": "GGUF",
        "model_type": architecture,
        "convention": convention,
        "defaults": defaults,
        "notes": tuple(_notes(architecture, content, convention)),
    }


def _convention(architecture: str, content: Mapping[str, Any]) -> Convention:
    plain = Convention(
        width=("attention.key_length", "embedding_length/attention.head_count"),
        rotated=lambda values, width: values.integer("rope.dimension_count", width),
        theta_keys=("rope.freq_base",),
        scaling=_rule_of(architecture),
        nope_every=_NO_ROPE_EVERY.get(architecture),
    )
    if architecture in _WITHOUT:
        return replace(plain, unless={"architecture": ()})
    if architecture.startswith("granite"):  # its switch for the rotation
        plain = replace(plain, unless={"rope.scaling.finetuned": (None, True)})
    if (pairing := _pairing_of(architecture)) is None:
        raise ConfigError(
            f"the architecture {short(architecture)} of a GGUF file is not known here; give the config.json "
            "of the model that the file was converted from."
        )
    convention = replace(plain, pairing=pairing)
    if architecture in _LATENT:
        # The rotated features of latent attention are arrays of their own.
        convention = replace(convention, width=("rope.dimension_count",))
    if (mode := _sections_of(architecture, content)) is not None:
        convention = replace(convention, pairing="half", axes=_axes_of(mode))
    if content["tensors"].get("rope_freqs.weight") is not None:
        convention = replace(convention, inv_freq=_divided(architecture))
    factor = content.get("rope", {}).get("scaling.attn_factor", 1.0)
    return convention if factor == 1 else replace(convention, attention_factor=_amplitude_of(architecture))


def _pairing_of(architecture: str) -> Any:
    if architecture in _NEIGHBOURS or architecture in ("llama4", "smollm3"):
        return "interleaved"
    if architecture in _HALVES or architecture in _SECTIONS:
        return "half"
    if architecture in _WINDOWS:
        return _WINDOWS[architecture].pairing
    return _LATENT.get(architecture)


def _sections_of(architecture: str, content: Mapping[str, Any]) -> GgmlMode | None:
    if architecture in _SECTIONS:
        return _SECTIONS[architecture]
    stated = content.get("rope", {}).get("dimension_sections")
    first = stated[:2] if isinstance(stated, list) else []
    uses = len(first) == 2 and all(isinstance(size, int) and size > 0 for size in first)
    return "mrope" if architecture in _MAYBE_SECTIONS and uses else None


def _axes_of(mode: GgmlMode) -> Callable[[PartValues, int], Axes]:
    def axes(values: PartValues, width: int) -> Axes:
        stated = values.get("rope.dimension_sections")
        if not isinstance(stated, list) or len(stated) > 4:
            raise ConfigError(
                f"rope.dimension_sections is {short(stated)}; give up to four numbers of pairs."
            )
        return Axes.ggml(*stated, *[0] * (4 - len(stated)), mode=mode, num_pairs=width // 2)

    return axes


# Frequencies


def _factor(values: PartValues) -> float:
    """Return by how much a rule stretches; 0 and none are 1."""
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        if values.get(key) is not None:
            return values.number(key) or 1.0
    return 1.0


def _rule_of(architecture: str) -> Callable[[PartValues, int], Scaling | None]:
    def rule(values: PartValues, width: int) -> Scaling | None:
        kind, factor = values.get("rope.scaling.type", "linear"), _factor(values)
        if kind not in ("none", "linear", "yarn", "longrope"):
            raise ConfigError(
                f"rope.scaling.type is {short(kind)}; llama.cpp has none, linear, yarn, longrope."
            )
        lists = [values.get(f"tensors.rope_factors_{name}.weight") for name in ("short", "long")]
        if None not in lists:
            return _longrope(values, lists, 1.0 if kind == "none" else factor)
        if kind == "none" or factor == 1:
            return None
        return _yarn(architecture, values, factor) if kind == "yarn" else Linear(factor)

    return rule


def _original(values: PartValues) -> float:
    longest = values.number("context_length") if values.get("context_length") is not None else None
    return values.number("rope.scaling.original_context_length", longest)


def _longrope(values: PartValues, lists: list[Any], factor: float) -> LongRoPE:
    short_list, long_list = ([factor * float(each) for each in stated] for stated in lists)
    amplitude = values.number("rope.scaling.attn_factor", 1.0)
    return LongRoPE(tuple(short_list), tuple(long_list), int(_original(values)), attention_factor=amplitude)


def _yarn(architecture: str, values: PartValues, factor: float) -> YaRN:
    """Return the rule with llama.cpp's amplitude: its own factor times ggml's."""
    betas = architecture == "mistral3"  # others do not read them
    plain = YaRN(
        factor,
        _original(values),
        beta_fast=values.number("rope.scaling.yarn_beta_fast", 32.0) if betas else 32.0,
        beta_slow=values.number("rope.scaling.yarn_beta_slow", 1.0) if betas else 1.0,
    )
    all_dim = 0.0
    if architecture in ("deepseek2", "mistral3"):
        all_dim = values.number("rope.scaling.yarn_log_multiplier", 0.0)
    if architecture == "deepseek2":
        amplitude = 1.0 if all_dim else plain.amplitude
    else:
        amplitude = (
            replace(plain, mscale=1.0, mscale_all_dim=all_dim).amplitude if all_dim else plain.amplitude
        )
    return replace(plain, attention_factor=amplitude * values.number("rope.scaling.attn_factor", 1.0))


def _amplitude_of(architecture: str) -> Callable[[PartValues], float]:
    """Return the factor on cos and sin of an architecture, with the file's own factor."""

    def amplitude(values: PartValues) -> float:
        rule = _rule_of(architecture)(values, 0)
        return rule.amplitude if isinstance(rule, YaRN) else values.number("rope.scaling.attn_factor", 1.0)

    return amplitude


def _divided(architecture: str) -> Callable[[PartValues, int], tuple[float, ...]]:
    """Return the frequencies of a rule, each divided by the file's own number (Llama 3's rule)."""

    def divided(values: PartValues, width: int) -> tuple[float, ...]:
        divisors = values.get("tensors.rope_freqs.weight")
        if not isinstance(divisors, list) or len(divisors) != width // 2:
            raise ConfigError(f"rope_freqs.weight does not have {width // 2} numbers, one for each pair.")
        rule = _rule_of(architecture)(values, width)
        omegas = frequencies(values.number("rope.freq_base", 1e4), width, width // 2, rule, "exact")
        return tuple(float(omega) / float(by) for omega, by in zip(omegas, divisors, strict=True))

    return divided


# Layers


def _alternates(windows: _Windows, content: Mapping[str, Any]) -> bool:
    return not windows.optional or bool(content.get("attention", {}).get("sliding_window"))


def _layer_types(windows: _Windows, content: Mapping[str, Any]) -> tuple[str, ...]:
    stated = content.get("attention", {}).get("sliding_window_pattern")
    count = content.get("block_count")
    if not isinstance(count, int) or not 0 < count <= _MOST_LAYERS:
        raise ConfigError(f"block_count is {short(count)}; give the number of layers.")
    if isinstance(stated, list):
        slides = [bool(each) for each in stated[:count]]
    else:
        period = stated if isinstance(stated, int) and stated > 0 else windows.period
        if not period:
            raise ConfigError("attention.sliding_window_pattern is missing; it must list the layers.")
        full = 0 if windows.first else period - 1
        slides = [index % period != full for index in range(count)]
    return tuple("sliding_attention" if each else "full_attention" for each in slides)


def _rotated_in_windows(values: PartValues, width: int) -> int:
    return values.integer("rope.dimension_count_swa", values.integer("rope.dimension_count", width))


def _with_windows(convention: Convention, windows: _Windows) -> Convention:
    """Return the convention of an architecture whose layers alternate."""

    def parameters(values: PartValues, stated: dict[str, Any]) -> dict[str, Any]:
        own = values.number("rope.freq_base", 1e4)
        sliding = values.number("rope.freq_base_swa", own if windows.base is None else windows.base)
        return {"full_attention": {"rope_theta": own}, "sliding_attention": {"rope_theta": sliding}}

    unscaled = replace(
        convention,
        width=("attention.key_length_swa", *convention.width),
        rotated=_rotated_in_windows,
        scaling=lambda values, width: None,
        inv_freq=None,
        attention_factor=None,
    )
    layers = {} if windows.scaled else {"sliding_attention": unscaled}
    nope = () if windows.rotates else ("full_attention",)
    return replace(convention, parameters=parameters, layers=layers, nope=nope)


# Notes


def _notes(architecture: str, content: Mapping[str, Any], convention: Convention) -> list[str]:
    rope, notes = content.get("rope", {}), []
    if convention.pairing == "interleaved":
        notes.append(
            "the pairs are the file's own: where Hugging Face's code pairs halves, the "
            "converter has permuted the rows of q and k"
        )
    if convention.axes is not None:
        notes.append("coordinates are llama.cpp's (t, h, w, e); for text (p, p, p, 0)")
    if content["tensors"].get("rope_freqs.weight") is not None:
        notes.append("the frequencies are divided by the file's tensor rope_freqs.weight")
    if architecture != "mistral3":
        usual = {"scaling.yarn_beta_fast": 32.0, "scaling.yarn_beta_slow": 1.0}
        unused = [key for key, value in usual.items() if rope.get(key, value) != value]
        notes += [f"rope.{key} is not used: llama.cpp does not read it for {architecture}" for key in unused]
    return notes
