"""Read the metadata of a GGUF file, by the conventions of llama.cpp.

`gguf.toml` has the architectures. Read from llama.cpp (the sources in llama-cpp-python 0.3.36): the factor on
cos and sin in src/llama-context.cpp; rope_yarn and ggml_mrope_cache_init in ggml/src/ggml-cpu/ops.cpp.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rope_array._config._convention import Convention, Note, Pairing
from rope_array._config._format import Format, Metadata
from rope_array._config._gguf_file import read_gguf_file
from rope_array._config._tables import read_table
from rope_array._config._values import FULL, MOST_LAYERS, SLIDING, PartValues
from rope_array._errors import ConfigError, short
from rope_array._spec.axes import Axes, GgmlMode
from rope_array._spec.frequencies import Scaling, frequencies
from rope_array._spec.scaling import Linear, LongRoPE, YaRN

_TABLE = read_table("gguf.toml")
_PART = re.compile(r"(-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)
# Tensors that divide the frequencies.
_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# The remedy for a file that is not read.
_SOURCE = "the config.json of the model that the file was converted from"


# The file

# The values of a file that concern its rotary embedding, with its architecture before the first dot.
_NEEDED = re.compile(
    r"general\.(?:architecture|alignment)$|split\.(?:no|count)$"
    r"|[^.]+\.(?:rope\.|attention\.|block_count$|context_length$|embedding_length$)"
)


def metadata(path: Path, name: str) -> Metadata:
    """Return the values of a GGUF file that concern its rotary embedding."""
    keys, tensors = _read(path, name)
    for number, part in _other_parts(path, name, keys):
        states, more = _read(part, short(str(part)))
        if (states.get("split.no"), states.get("split.count")) != (number, keys["split.count"]):
            raise ConfigError(
                f"{part.name} states that it is another part than its name; give matching files."
            )
        if both := tensors.keys() & more.keys():
            raise ConfigError(f"{part.name} and a file before it have {min(both)}; give files of one model.")
        tensors |= more
    if not isinstance(architecture := keys.get("general.architecture"), str):
        raise ConfigError(
            f"{name} states no general.architecture; of a model in several files give the first."
        )
    start = f"{architecture}."
    of_architecture = {key.removeprefix(start): value for key, value in keys.items() if key.startswith(start)}
    return _in_groups(architecture, of_architecture, tensors)


def _read(path: Path, name: str) -> tuple[dict[str, Any], dict[str, list[float]]]:
    return read_gguf_file(path, name, lambda key: _NEEDED.match(key) is not None, _FACTORS)


def _other_parts(path: Path, name: str, keys: Mapping[str, Any]) -> Iterator[tuple[int, Path]]:
    """Yield the other files of a split model by split.no; raise if one is missing, or `path` is no first."""
    number, count = keys.get("split.no", 0), keys.get("split.count", 0)
    if not isinstance(count, int) or count < 2:
        return
    start, end = _PART.sub("", path.name), f"of-{count:05d}{path.suffix}"
    if number:
        raise ConfigError(f"{name} is not the first of {count} files; give {start}-00001-{end}.")
    if path.name != (first := f"{start}-00001-{end}"):
        raise ConfigError(
            f"{name} is the first of {count} files, which are found by its name; name it {first}."
        )
    for index in range(1, count):
        part = path.with_name(f"{start}-{index + 1:05d}-{end}")
        if not part.is_file():
            raise ConfigError(
                f"{name} is the first of {count} files, and another may have factors on the frequencies; "
                f"put {part.name} into its folder."
            )
        yield index, part


def _in_groups(architecture: str, keys: Mapping[str, Any], tensors: Mapping[str, Any]) -> Metadata:
    content = Metadata(architecture=architecture, tensors=dict(tensors))
    for key, value in keys.items():
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


def read_gguf(content: Metadata) -> Format:
    """Return the format of a GGUF file's values."""
    architecture, rope = content["architecture"], content.get("rope", {})
    if unknown := sorted(rope.keys() - _TABLE["keys"]):
        raise ConfigError(
            f"{architecture}.rope.{unknown[0]} is unknown: llama.cpp has no such key, and other programs, "
            f"such as Ollama, write keys of their own; give {_SOURCE}."
        )
    if rope.get("scaling.alpha"):
        raise ConfigError(f"{architecture}.rope.scaling.alpha is not read; give {_SOURCE}.")
    convention = _convention(architecture, content)
    defaults: dict[str, Any] = {
        "alias": {"num_hidden_layers": "block_count", "max_position_embeddings": "context_length"},
        "rope": None,
        "no_rope_layer_interval": _TABLE["no_rope_every"].get(architecture),
    }
    windows = _TABLE["windows"].get(architecture)
    has_window = bool(content.get("attention", {}).get("sliding_window"))
    if windows is not None and (has_window or not windows.get("optional")):
        convention = _with_windows(convention, windows)
        defaults["layer_types"] = _layer_types(windows, content)
    return Format(
        name="GGUF",
        model_type=architecture,
        convention=convention,
        defaults=defaults,
        notes=tuple(_notes(architecture, content, convention)),
    )


def _convention(architecture: str, content: Mapping[str, Any]) -> Convention:
    plain = Convention(
        width=("attention.key_length", "embedding_length/attention.head_count"),
        rotated=lambda values, width: values.integer("rope.dimension_count", width),
        theta_keys=("rope.freq_base",),
        scaling=_rule,
    )
    if architecture in _TABLE["unrotated"]:
        return replace(plain, unless={"architecture": ()})
    if architecture.startswith("granite"):  # its switch for the rotation
        plain = replace(plain, unless={"rope.scaling.finetuned": (None, True)})
    pairings: tuple[Pairing, Pairing] = ("interleaved", "half")
    pairing = next((name for name in pairings if architecture in _TABLE[name]), None)
    if pairing is None:
        raise ConfigError(
            f"the architecture {short(architecture)} of a GGUF file is not known here; give {_SOURCE}."
        )
    convention = replace(plain, pairing=pairing)
    if architecture in _TABLE["latent"]:
        # The rotated features of latent attention are arrays of their own.
        convention = replace(convention, width=("rope.dimension_count",))
    if (mode := _sections_of(architecture, content)) is not None:
        convention = replace(convention, pairing="half", axes=partial(_axes, mode=mode))
    if content["tensors"].get("rope_freqs.weight") is not None:
        convention = replace(convention, inv_freq=_divided)
    factor = content.get("rope", {}).get("scaling.attn_factor", 1.0)
    return convention if factor == 1 else replace(convention, attention_factor=_amplitude)


def _sections_of(architecture: str, content: Mapping[str, Any]) -> Any:
    sizes = content.get("rope", {}).get("dimension_sections")
    first = sizes[:2] if isinstance(sizes, list) else []
    has_sections = len(first) == 2 and all(isinstance(size, int) and size > 0 for size in first)
    of_file = "mrope" if architecture in _TABLE["maybe_sections"] and has_sections else None
    return _TABLE["sections"].get(architecture, of_file)


def _axes(values: PartValues, width: int, mode: GgmlMode) -> Axes:
    sizes = values.get("rope.dimension_sections")
    if not isinstance(sizes, list) or len(sizes) > 4:
        raise ConfigError(f"rope.dimension_sections is {short(sizes)}; give up to four numbers of pairs.")
    return Axes.ggml(*sizes, *[0] * (4 - len(sizes)), mode=mode, num_pairs=width // 2)


# Frequencies


def _factor(values: PartValues) -> float:
    """Return the factor by which a rule stretches; 0 and a missing factor are 1."""
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        if values.get(key) is not None:
            return values.number(key) or 1.0
    return 1.0


def _rule(values: PartValues, width: int) -> Scaling | None:
    rule_name, factor = values.get("rope.scaling.type", "linear"), _factor(values)
    if rule_name not in ("none", "linear", "yarn", "longrope"):
        raise ConfigError(
            f"rope.scaling.type is {short(rule_name)}; llama.cpp has none, linear, yarn, longrope."
        )
    lists = [values.get(f"tensors.rope_factors_{name}.weight") for name in ("short", "long")]
    if None in lists and (rule_name == "longrope" or lists != [None, None]):
        raise ConfigError(
            "the file has not both tensors rope_factors_short.weight and rope_factors_long.weight, which "
            f"longrope needs; give {_SOURCE}."
        )
    if None not in lists:
        return _gguf_longrope(values, lists, 1.0 if rule_name == "none" else factor)
    if rule_name == "none" or factor == 1:
        return None
    return _gguf_yarn(values, factor) if rule_name == "yarn" else Linear(factor)


def _original(values: PartValues) -> float:
    longest = values.number("context_length") if values.get("context_length") is not None else None
    return values.number("rope.scaling.original_context_length", longest)


def _gguf_longrope(values: PartValues, lists: list[Any], factor: float) -> LongRoPE:
    short_factors, long_factors = (tuple(factor * float(divisor) for divisor in row) for row in lists)
    amplitude = values.number("rope.scaling.attn_factor", 1.0)
    return LongRoPE(short_factors, long_factors, int(_original(values)), attention_factor=amplitude)


def _gguf_yarn(values: PartValues, factor: float) -> YaRN:
    """Return the rule with llama.cpp's amplitude: its own factor times ggml's."""
    architecture = values.content["architecture"]
    betas = architecture == "mistral3"  # others do not read them
    plain = YaRN(
        factor,
        _original(values),
        beta_fast=values.number("rope.scaling.yarn_beta_fast", 32.0) if betas else 32.0,
        beta_slow=values.number("rope.scaling.yarn_beta_slow", 1.0) if betas else 1.0,
    )
    amplitude, all_dim = plain.amplitude, 0.0
    if architecture in ("deepseek2", "mistral3"):
        all_dim = values.number("rope.scaling.yarn_log_multiplier", 0.0)
    if all_dim:
        latent = architecture == "deepseek2"
        amplitude = 1.0 if latent else replace(plain, mscale=1.0, mscale_all_dim=all_dim).amplitude
    return replace(plain, attention_factor=amplitude * values.number("rope.scaling.attn_factor", 1.0))


def _amplitude(values: PartValues) -> float:
    """Return the factor on cos and sin of an architecture, with the file's own factor."""
    rule = _rule(values, 0)
    return rule.amplitude if isinstance(rule, YaRN) else values.number("rope.scaling.attn_factor", 1.0)


def _divided(values: PartValues, width: int) -> tuple[float, ...]:
    """Return the frequencies of a rule, each divided by the file's own number (Llama 3's rule)."""
    divisors = values.get("tensors.rope_freqs.weight")
    if not isinstance(divisors, list) or len(divisors) != width // 2:
        raise ConfigError(f"rope_freqs.weight does not have {width // 2} numbers, one for each pair.")
    rule, base = _rule(values, width), values.number("rope.freq_base", 1e4)
    omegas = frequencies(base, width, width // 2, rule, "exact")
    return tuple(float(omega) / float(divisor) for omega, divisor in zip(omegas, divisors, strict=True))


# Layers


def _layer_types(windows: Mapping[str, Any], content: Mapping[str, Any]) -> tuple[str, ...]:
    pattern = content.get("attention", {}).get("sliding_window_pattern")
    count = content.get("block_count")
    if not isinstance(count, int) or not 0 < count <= MOST_LAYERS:
        raise ConfigError(f"block_count is {short(count)}; give the number of layers.")
    if isinstance(pattern, list):
        slides = [bool(flag) for flag in pattern[:count]]
    else:
        period = pattern if isinstance(pattern, int) and pattern > 0 else windows["period"]
        if not period:
            raise ConfigError("attention.sliding_window_pattern is missing; it must list the layers.")
        full = 0 if windows.get("first") else period - 1
        slides = [index % period != full for index in range(count)]
    return tuple(SLIDING if layer_slides else FULL for layer_slides in slides)


def _rotated_in_windows(values: PartValues, width: int) -> int:
    return values.integer("rope.dimension_count_swa", values.integer("rope.dimension_count", width))


def _parameters(values: PartValues, parameters: dict[str, Any], sliding_base: float | None) -> dict[str, Any]:
    base = values.number("rope.freq_base", 1e4)
    sliding = values.number("rope.freq_base_swa", base if sliding_base is None else sliding_base)
    return {FULL: {"rope_theta": base}, SLIDING: {"rope_theta": sliding}}


def _with_windows(convention: Convention, windows: Mapping[str, Any]) -> Convention:
    """Return the convention of an architecture whose layers alternate."""
    unscaled = replace(
        convention,
        width=("attention.key_length_swa", *convention.width),
        rotated=_rotated_in_windows,
        scaling=lambda values, width: None,
        inv_freq=None,
        attention_factor=None,
    )
    return replace(
        convention,
        parameters=partial(_parameters, sliding_base=windows.get("base")),
        of_layer_type={} if windows.get("scaled", True) else {SLIDING: unscaled},
        nope=() if windows.get("rotates", True) else (FULL,),
    )


# Notes


def _notes(architecture: str, content: Mapping[str, Any], convention: Convention) -> list[str]:
    facts = _TABLE["facts"]
    of_file = {
        facts["pairs"]: convention.pairing == "interleaved",
        facts["coordinates"]: convention.axes is not None,
        facts["divided"]: content["tensors"].get("rope_freqs.weight") is not None,
    }
    notes: list[str] = [Note(text, "fact") for text, holds in of_file.items() if holds]
    if architecture != "mistral3":
        betas = {"scaling.yarn_beta_fast": 32.0, "scaling.yarn_beta_slow": 1.0}
        rope = content.get("rope", {})
        unused = [key for key, beta in betas.items() if rope.get(key, beta) != beta]
        notes += [f"rope.{key} is not used: llama.cpp does not read it for {architecture}" for key in unused]
    return notes
