"""GGUF files, written here with the package gguf, against ropes by llama.cpp's code.

The code is ggml's rope_yarn and ggml_mrope_cache_init, with the factor of llama-context.cpp.
"""

import math

import gguf
import numpy as np
import pytest
from config_cases import half, refuse

import rope_array as ra
from rope_array import ConfigError
from rope_array._command._config_report import report
from rope_array._config import _gguf
from rope_array.config import read, read_layers


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A function that writes a GGUF file of values (a dot in a key is "__") and tensors."""
    monkeypatch.chdir(tmp_path)

    def write(architecture, tensors=None, **values):
        path = tmp_path / "m.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        add |= {str: writer.add_string, list: writer.add_array}
        for key, value in {**SMALL, **values}.items():
            add[type(value)](f"{architecture}.{key.replace('__', '.')}", value)
        for name, value in (tensors or {}).items():
            writer.add_tensor(name, np.array(value, np.float32))
        writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


SMALL = {"embedding_length": 256, "attention__head_count": 4, "context_length": 4096, "block_count": 8}


POSITIONS = np.array([0, 1, 7, 100, 4095, 40000, 1_000_003])


def check(reading, expected, positions=POSITIONS, length=None):
    """Compare the rotations by the rope that is read, and by the rope of llama.cpp's code."""
    rope = reading.rope if length is None else reading.rope.at_length(length)
    x = np.random.default_rng(3).standard_normal((len(positions), expected.head_dim))
    ours, theirs = rope.apply(x, positions), expected.apply(x, positions)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)
    assert reading.inferred["format"] == "GGUF"


def divided(divisors, base=1e4):
    """Return the frequencies that a tensor of the file divides, in float32."""
    n = len(divisors)
    return {"inv_freq": [base ** (-i / n) / float(np.float32(d)) for i, d in enumerate(divisors)]}


def yarn(fast=32.0, slow=1.0, amplitude=None):
    rule = ra.YaRN(4.0, 1024, beta_fast=fast, beta_slow=slow, attention_factor=amplitude)
    return {"scaling": rule}


PLAIN, HALF = ra.RoPE(64), half(64)
RULE = "rope__scaling"
YARN = {f"{RULE}__type": "yarn", f"{RULE}__factor": 4.0, f"{RULE}__original_context_length": 1024}
FAST, SLOW = {f"{RULE}__yarn_beta_fast": 16.0}, {f"{RULE}__yarn_beta_slow": 2.0}
HALVED = {f"{RULE}__attn_factor": 0.5}
DEEPSEEK = {"attention__key_length": 192, "rope__dimension_count": 64, f"{RULE}__yarn_log_multiplier": 0.1}
WIDE = {"attention__key_length": 128, "rope__dimension_count": 128}
GPT_OSS = {"attention__key_length": 64, "attention__sliding_window": 128}
FREQS = [1 + i / 7 for i in range(32)]
TENSORS, LINEAR = {"rope_freqs.weight": FREQS}, {"scaling": ra.Linear(4.0)}
MISTRAL3 = {**YARN, **FAST, **SLOW, f"{RULE}__yarn_log_multiplier": 1.0}
BY_YARN = 0.1 * math.log(4) + 1

# An architecture, the values of a file, and the rope by llama.cpp's code.
FILES = {
    "llama": ("llama", {}, PLAIN),
    "llama 3": ("llama", {"rope__freq_base": 5e5, "tensors": TENSORS}, ra.RoPE(64, **divided(FREQS, 5e5))),
    "glm4 without sections": ("glm4", {}, PLAIN),
    "qwen2": ("qwen2", {"rope__freq_base": 1e6}, half(64, base=1e6)),
    "linear": ("qwen2", {f"{RULE}__factor": 4.0}, half(64, **LINEAR)),
    "an older linear": ("llama", {"rope__scale_linear": 4.0}, ra.RoPE(64, **LINEAR)),
    "no rule, with a factor": ("qwen2", {f"{RULE}__type": "none", f"{RULE}__factor": 4.0}, HALF),
    "a factor of 0": ("qwen2", {f"{RULE}__type": "linear", f"{RULE}__factor": 0.0}, HALF),
    "yarn": ("qwen2", YARN, half(64, **yarn())),
    "yarn with an unread beta": ("qwen2", {**YARN, **FAST}, half(64, **yarn())),
    "yarn of mistral3": ("mistral3", MISTRAL3, ra.RoPE(64, **yarn(16, 2, amplitude=1.0))),
    "yarn with a factor on cos": ("qwen2", {**YARN, **HALVED}, half(64, **yarn(amplitude=0.5 * BY_YARN))),
    "a factor on cos alone": ("qwen2", HALVED, half(64, attention_factor=0.5)),
    "yarn of gpt-oss": ("gpt-oss", {**YARN, **GPT_OSS}, half(64, **yarn())),
    "yarn of deepseek2": ("deepseek2", {**YARN, **DEEPSEEK}, ra.RoPE(64, **yarn(amplitude=1.0))),
    "a part of the head": ("gptneox", {"rope__dimension_count": 16}, half(64, rotary_dim=16)),
    "a stated head": ("gemma", WIDE, half(128)),
    "a head count for each layer": ("openelm", {"attention__head_count": [4, 8]}, HALF),
    "rotating granite": ("granite", {f"{RULE}__finetuned": True}, PLAIN),
    "gemma 2": ("gemma2", {"attention__sliding_window": 512}, HALF),
    "gemma 3 without a window": ("gemma3", {"rope__freq_base": 1e6}, half(64, base=1e6)),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_rotates_as_llama_cpp_does(case, file):
    architecture, values, expected = FILES[case]
    # The file is recognised by its first bytes.
    reading = read(file(architecture, **values).rename("blob"))
    assert (reading.model_type, reading.context) == (architecture, 4096)
    assert (reading.rope.pairing, reading.rope.rotary_dim) == (expected.pairing, expected.rotary_dim)
    check(reading, expected)


def axis(pair, sections, interleaved):
    """Return the coordinate of a pair, of (t, h, w, e), as ggml_mrope_cache_init does."""
    sector = pair % sum(sections)
    if interleaved:
        return sector % 3 if sector < 3 * sections[sector % 3] else 3
    return int(np.searchsorted(np.cumsum(sections), sector, side="right"))


@pytest.mark.parametrize(
    ("architecture", "sections", "interleaved"),
    [
        ("qwen2vl", [16, 8, 8, 0], False),
        ("qwen3vl", [12, 10, 10, 0], True),
        ("qwen35", [11, 11, 10, 0], True),
        ("qwen3vlmoe", [8, 10, 10], True),
        ("glm4moe", [8, 12, 12, 0], False),
    ],
)
def test_sections_are_ggmls(architecture, sections, interleaved, file):
    coordinates = [axis(pair, [*sections, 0][:4], interleaved) for pair in range(32)]
    positions = np.random.default_rng(1).integers(0, 5000, (7, 4))
    expected = half(64, axes=ra.Axes(coordinates, count=4))
    check(read(file(architecture, rope__dimension_sections=sections)), expected, positions)


def test_longrope_takes_the_lists_by_length(file):
    short, long = [1 + i / 50 for i in range(32)], [1 + i / 3 for i in range(32)]
    tensors = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    values = {f"{RULE}__type": "longrope", f"{RULE}__attn_factor": 1.19}
    reading = read(file("phi3", tensors, **values, rope__scaling__original_context_length=1024))
    for length, divisors in ((1024, short), (1025, long)):
        expected = half(64, **divided(divisors), attention_factor=float(np.float32(1.19)))
        check(reading, expected, length=length)


WINDOW = {"attention__sliding_window": 512}
EVERY_SECOND = {"attention__sliding_window_pattern": [True, False] * 4}


@pytest.mark.parametrize(
    ("architecture", "values", "full", "sliding", "full_layers"),
    [
        ("gemma3", {"rope__freq_base": 1e6, "rope__scaling__factor": 8.0}, (1e6, 8.0), (1e4, 1.0), (5,)),
        ("gemma3", {"rope__freq_base_swa": 2e4}, (1e4, 1.0), (2e4, 1.0), (5,)),
        ("gemma3", {"rope__freq_base": 1e6, **EVERY_SECOND}, (1e6, 1.0), (1e4, 1.0), (1, 3, 5, 7)),
        ("gemma3n", {"rope__freq_base": 1e6}, (1e6, 1.0), (1e4, 1.0), (4,)),
        ("modern-bert", {"rope__freq_base": 1.6e5}, (1.6e5, 1.0), (1e4, 1.0), (0, 3, 6)),
        ("olmo2", {"rope__freq_base": 5e5, "rope__scaling__factor": 8.0}, (5e5, 8.0), (5e5, 1.0), (3, 7)),
    ],
)
def test_layers_with_a_window_differ(architecture, values, full, sliding, full_layers, file):
    path = file(architecture, **WINDOW, **values)
    refuse("layers differ", path)
    readings = {i: reading for layers, reading in read_layers(path) for i in layers}
    for layer in range(8):
        base, scale = full if layer in full_layers else sliding
        assert readings[layer].rope == read(path, layer_type=layer).rope
        check(readings[layer], half(64, base=base, scaling=ra.Linear(scale)))


def test_gemma_4_has_heads_of_two_widths(file):
    divisors = [1.0] * 16 + [1e30] * 48
    tensors = {"rope_freqs.weight": divisors}
    values = {**WIDE, "rope__freq_base": 1e6, "attention__key_length_swa": 64, **WINDOW}
    values |= {"rope__dimension_count_swa": 64}
    path = file("gemma4", tensors, **values, attention__sliding_window_pattern=[True, True, True, False] * 2)
    check(read(path, layer_type=0), HALF)
    check(read(path, layer_type=3), half(128, **divided(divisors, 1e6)))
    refuse("sliding_window_pattern is missing", file("gemma4", tensors, **values))


@pytest.mark.parametrize(
    ("architecture", "values", "unrotated"),
    [
        ("cohere2", WINDOW, (3, 7)),
        ("exaone4", WINDOW, (3, 7)),
        ("exaone4", {}, ()),
        ("smollm3", {}, (3, 7)),
        ("llama4", {}, (3, 7)),
        ("granite", {"rope__scaling__finetuned": False}, range(8)),
        ("bert", {}, range(8)),
        ("gpt2", {}, range(8)),
    ],
)
def test_layers_without_rotation(architecture, values, unrotated, file):
    groups = read_layers(file(architecture, **values))
    assert {i for layers, reading in groups for i in layers if not reading.rope.rotary_dim} == {*unrotated}


def test_notes(file):
    assert "architecture is 'bert': no rotation" in read(file("bert")).notes
    path = file("llama", {"rope_freqs.weight": [1.0] * 32}, rope__freq_base=5e5)
    assert any("permuted the rows of q and k" in note for note in read(path).notes)
    lines = [*report(str(path), None, None, None)]
    assert lines[-1] == "Doubtful: nothing"
    assert "Notes" in lines


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        ("gemma9", {}, "'gemma9' of a GGUF file is not known here; give the config.json"),
        ("llama", {"rope__spiral": 1.0}, "llama.rope.spiral is unknown: .* Ollama, .*; give the config.json"),
        ("hunyuan-dense", {"rope__scaling__alpha": 1000.0}, "alpha is not read"),
        ("llama", {"rope__scaling__type": "spiral"}, "'spiral'; llama.cpp has none, linear, yarn, longrope"),
        ("qwen2vl", {"rope__dimension_sections": [1] * 5}, "up to four"),
    ],
)
def test_unknown_values_are_refused(architecture, values, message, file):
    refuse(message, file(architecture, **values))


def test_files_that_are_broken_are_refused(file, tmp_path):
    content = file("llama").read_bytes()
    for count in (4, 20, 60, len(content) // 2):
        (tmp_path / "part.gguf").write_bytes(content[:count])
        refuse("is no GGUF file that can be read", tmp_path / "part.gguf")
    writer = gguf.GGUFWriter(tmp_path / "second.gguf", "llama")
    writer.kv_data[0].clear()
    writer.add_uint16("split.no", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    refuse("of a model in several files give the first", tmp_path / "second.gguf")


def test_every_architecture_of_the_package_is_read_or_refused_by_name(file):
    """No architecture that gguf can write ends in another error, or in a rope without a known pairing."""
    values = {"rope__dimension_sections": [16, 8, 8, 0], "rope__dimension_count": 64, **EVERY_SECOND}
    refused = set()
    for name in gguf.MODEL_ARCH_NAMES.values():
        try:
            read(file(name, **values), layer_type=0)
        except ConfigError as problem:
            refused.add((name, "not known here" in str(problem)))
    listed = [name for section in ("interleaved", "half", "unrotated") for name in _gguf._TABLE[section]]
    assert refused == {(name, True) for name in {*gguf.MODEL_ARCH_NAMES.values()} - {*listed}}
    assert len(listed) == len(set(listed))  # each is in one list
