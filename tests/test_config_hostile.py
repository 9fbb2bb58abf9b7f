"""Any value is read as a config or refused with a ConfigError: files, foreign objects, random configs."""

import contextlib
import json
import os
import re
import time
import tracemalloc
from collections.abc import Mapping
from struct import pack

import hypothesis.strategies as st
import numpy as np
import pytest
from config_cases import gguf_file, model, refuse, rope
from conftest import TIMES
from hypothesis import example, given, settings

import rope_array as ra
from rope_array import ConfigError
from rope_array._config import _document
from rope_array._config import _model_defaults as defaults
from rope_array._config._conventions import REMOTE
from rope_array.config import read, read_layers

LLAMA = model("llama", head_dim=128, rope_theta=500000.0, max_position_embeddings=131072)
MROPE = {"type": "mrope", "mrope_section": [16, 24, 24]}
QWEN = model("qwen2_vl_text", head_dim=128, rope_theta=1e6, rope_scaling=MROPE)


class Config:
    """A config object that belongs to no library."""

    def __init__(self, content):
        self.to_dict = lambda: content


# ---- entry points and files ----


def test_all_entry_points_read_the_same_config(tmp_path):
    file, marked = tmp_path / "config.json", tmp_path / "marked.json"
    file.write_text(json.dumps(LLAMA), encoding="utf-8")
    marked.write_text(json.dumps(LLAMA), "utf-8-sig")  # with a byte order mark
    expected = ra.RoPE(128, base=5e5, pairing="half")
    for source in (LLAMA, Config(LLAMA), file, str(file), marked, tmp_path, str(tmp_path)):
        assert rope(source) == ra.RoPE.from_config(source) == expected

    class Own(ra.RoPE):
        pass

    assert type(Own.from_config(LLAMA)) is Own


def test_errors_of_the_reader_a_rule_and_a_rope_are_config_errors():
    for scaling, text in (
        ({"type": "zork"}, "is 'zork', and the known rules are"),
        ({"type": "linear", "factor": 0.0}, "llama: factor is 0.0"),
        ({"type": "linear", "factor": 5e-324}, "llama: .* beyond the range of floats"),
    ):
        with pytest.raises(ConfigError, match=text):
            ra.RoPE.from_config({**LLAMA, "rope_scaling": scaling})


@pytest.mark.parametrize("config", [None, 3, 2.5, [LLAMA], b"config.json", Config, Config([1]), object()])
def test_other_values_are_not_configs(config):
    refuse("config is|no dict", config)


FILES = {
    "empty": (b"", "is empty; give a config.json, or a GGUF file"),
    "binary": (b"\xff\xfe\x00\x01", "no JSON"),
    "Python": (b"{'model_type': 1}", "no JSON"),
    "a list": (b"[1, 2]", "holds"),
    "null": (b"null", "holds"),
    "a key twice": (b'{"head_dim": 8, "head_dim": 16}', "twice"),
    "brackets": (b"[" * 200_000, "too deeply|no JSON"),
    "depth": (b'{"a":' * 200_000, "too deeply|no JSON"),
    "digits": (b'{"rope_theta": ' + b"9" * 10_000 + b"}", "no JSON"),
    "NaN": (b'{"model_type": "llama", "rope_theta": NaN}', "rope_theta is nan"),
    "infinity": (b'{"model_type": "llama", "rope_theta": 1e999}', "rope_theta is inf"),
    "too large": (bytes(2**23 + 1), "has more than 8388608 bytes"),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_files(tmp_path, name):
    content, text = FILES[name]
    (tmp_path / "config.json").write_bytes(content)
    refuse(text, tmp_path)


def test_paths_that_are_not_files(tmp_path):
    refuse("the folder .* has no config.json; give the path of one", tmp_path)
    refuse("no file or folder here is named", tmp_path / "absent")
    refuse("cannot be read|no file or folder", "a\0b")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refuse("no file or folder|cannot be read", tmp_path / "loop")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        refuse("is no regular file", tmp_path / "pipe")
    (tmp_path / "config.json").mkdir()
    refuse("is no regular file", tmp_path)


def test_a_large_config_is_read(tmp_path):
    """A config.json of 3.1 MB, with the names of many classes."""
    config = {**LLAMA, "id2label": {str(i): f"class {i}" * 3 for i in range(90_000)}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (tmp_path / "config.json").stat().st_size > 3.1e6
    assert rope(tmp_path) == rope(LLAMA)


GGUF = {"general.architecture": "llama", "llama.attention.key_length": 64}


def test_the_tokenizer_of_a_gguf_file_costs_little(tmp_path):
    """0.5 s and 50 MB for 300,000 tokens, which the package gguf reads in 13 s and 389 MB."""
    tokens = {
        "tokenizer.ggml.tokens": [f"token{i}" for i in range(300_000)],
        "tokenizer.ggml.merges": ["a b"] * 300_000,
    }
    path = gguf_file(tmp_path / "model.gguf", {**GGUF, **tokens, "llama.rope.freq_base": 5e5})
    tracemalloc.start()
    start = time.thread_time()
    assert rope(path) == ra.RoPE(64, base=5e5)
    seconds, (_, peak) = time.thread_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e6
    assert seconds < 5  # under tracemalloc, on a busy machine


NEEDED = b"llama.rope.x"
BEYOND = "claims more values than it has"
# The keys of a GGUF file after the first, and the reason of its refusal.
HOSTILE_GGUF = {
    "numbers": (pack("<Q1sIIQ", 1, b"x", 9, 4, 2**62), BEYOND),
    "texts": (pack("<Q1sIIQ", 1, b"x", 9, 8, 2**62), BEYOND),
    "a text": (pack("<Q1sIQ", 1, b"x", 8, 2**63), BEYOND),
    "texts beyond the end": (pack("<Q1sIIQQQ", 1, b"x", 9, 8, 2, 2**63, 2**63), BEYOND),
    "a list of lists": (pack("<Q1sI", 1, b"x", 9) + pack("<IQ", 9, 1) * 2000, "the unknown type 9"),
    "empty texts": (pack("<Q1sIIQ", 1, b"x", 9, 8, 2**22) + bytes(2**25), "4194304 values in one place"),
    "a needed list": (pack("<Q12sIIQ", 12, NEEDED, 9, 4, 2**20) + bytes(2**22), "1048576 values in one"),
    "an unknown type": (pack("<Q1sI", 1, b"x", 13), "the unknown type 13"),
    "a key twice": (pack("<Q12sIIQ12sII", 12, NEEDED, 4, 1, 12, NEEDED, 4, 1), "appears twice"),
}


@pytest.mark.parametrize("case", HOSTILE_GGUF)
def test_a_hostile_gguf_file_is_refused_at_once(case, tmp_path):
    keys, message = HOSTILE_GGUF[case]
    first = pack("<Q20sIQ5s", 20, b"general.architecture", 8, 5, b"llama")
    (tmp_path / "blob").write_bytes(pack("<4sIQQ", b"GGUF", 3, 0, 3) + first + keys)
    start = time.thread_time()
    refuse(message, tmp_path / "blob")
    assert time.thread_time() - start < 2
    (tmp_path / "tensors").write_bytes(pack("<4sIQQ", b"GGUF", 3, 2**40, 0))
    refuse(BEYOND, tmp_path / "tensors")


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "gpt2", ".", "model/config.json"])
def test_names_on_a_hub_are_not_fetched(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse(f"{re.escape(repr(name))}.*download its config.json first: nothing is fetched", name)


# ---- foreign objects ----


def test_a_config_that_holds_itself():
    config = model("zork")
    config["text_config"] = config["rope_parameters"] = config
    refuse("it holds itself", config)
    refuse("it holds itself", config, part="text.text.text")
    deep = 1
    for _ in range(5000):
        deep = [deep]
    refuse("nested too deeply", {**LLAMA, "zork": deep})
    shared = {}  # no cycle, however often it occurs
    for _ in range(60):
        shared = [shared, shared]
    assert rope({**LLAMA, "zork": shared}) == rope(LLAMA)


def raising(*args):
    raise RuntimeError("no")


def odd(base, **methods):
    return type("Odd", (base,), methods)


class Endless(Mapping):
    def __getitem__(self, key):
        return 1

    def __iter__(self):
        return iter(range(10**9))

    def __len__(self):
        return 10**9


FOREIGN = {
    "iter": odd(dict, __iter__=raising)(LLAMA),
    "to_dict": odd(object, to_dict=raising)(),
    "property": odd(object, to_dict=property(raising))(),
    "class": odd(object, __class__=property(raising))(),
    "path": odd(os.PathLike, __fspath__=raising)(),
    "path that is not a string": odd(os.PathLike, __fspath__=lambda self: 3)(),
    "endless": Endless(),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_errors_of_foreign_code_are_config_errors(name, monkeypatch):
    monkeypatch.setattr(_document, "_MOST_VALUES", 2**12)  # of 2**21, which take seconds
    refuse("cannot be read|more than 4096 values", FOREIGN[name])


def test_subclasses_are_read_by_their_own_class():
    text, integer = odd(str, __eq__=raising, __hash__=str.__hash__), odd(int, __eq__=raising)
    assert rope(model(text("llama"), head_dim=integer(8))) == rope(model("llama", head_dim=8))


def test_values_that_deny_their_class():
    """isinstance asks the value itself: it may raise, or name a class that the value is not of."""
    sections = odd(list, __class__=property(raising))([16, 24, 24])
    assert rope({**QWEN, "rope_scaling": {**MROPE, "mrope_section": sections}}) == rope(QWEN)
    number = odd(float, __class__=property(raising), __float__=raising, is_integer=raising)(1e6)
    assert rope({**QWEN, "rope_theta": number}) == rope(QWEN)
    for cls in (float, list, dict):
        value = odd(object, __class__=property(lambda self, cls=cls: cls))()
        refuse("rope_theta is a Odd; it must be a number", {**LLAMA, "rope_theta": value})
        refuse("rope_scaling is a Odd; it must be an object", {**LLAMA, "rope_scaling": value})


@pytest.mark.parametrize("key", ["model_type", "head_dim", "rope_theta", "rope_scaling", "layer_types"])
def test_arrays_are_refused(key):
    refuse("is a ndarray|type is .*ndarray", {**LLAMA, key: np.array([1, 2])}, layer_type=0)


@pytest.mark.parametrize(
    "source", [model("\x1b[31mred\n"), model("\x1b[31mred\n", rope_theta="x"), "x/" * 5000]
)
def test_messages_hold_no_raw_bytes_and_no_long_names(source):
    with pytest.raises(ConfigError) as caught:
        read(source)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


# ---- arbitrary configs ----

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
SCALARS |= st.sampled_from([10**400, -(10**400), 2**63, "default", "yarn", "longrope", "full_attention"])
JSON = st.recursive(
    SCALARS, lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=4), x, max_size=4)
)
PLAUSIBLE = JSON | st.sampled_from([1, 2, 8, 64, 128, 0.5, 1.0, 2.0, 4096, [16, 24, 24], [1.0] * 32])
PARAMETERS = """
    rope_type type rope_theta partial_rotary_factor factor alpha original_max_position_embeddings beta_fast
    beta_slow attention_factor mscale mscale_all_dim truncate low_freq_factor high_freq_factor short_factor
    long_factor mrope_section mrope_interleaved full_attention sliding_attention main rope_dim zork
"""
TOP = """
    head_dim hidden_size num_attention_heads num_hidden_layers max_position_embeddings rope_theta rotary_dim
    partial_rotary_factor original_max_position_embeddings rotary_pct qk_rope_head_dim layer_types
    no_rope_layers no_rope_layer_interval layer_rope_theta per_layer_config alibi sliding_window text_config
    vision_config attn_config position_encoding_2d rope_interleaved rope_ratio rotary use_dynamic_ntk
"""


def some_of(keys, values, max_size):
    return st.dictionaries(st.sampled_from(keys.split()), values, max_size=max_size)


RULES = some_of(PARAMETERS, PLAUSIBLE, 6)
CONFIGS = st.builds(
    lambda model_type, top, parameters: {"model_type": model_type, **top, **parameters},
    st.one_of(st.sampled_from(sorted({*defaults.MODELS, *REMOTE})), JSON),
    some_of(TOP, PLAUSIBLE, 6),
    some_of("rope_parameters rope_scaling", RULES | some_of("full_attention main", RULES, 2) | JSON, 2),
)


@settings(max_examples=200 * TIMES)
@given(
    CONFIGS,
    st.sampled_from([None, None, "text", "vision", "text.text", "", 3]),
    st.sampled_from([None, None, 0, 3, -1, 10**400, "full_attention", "main", True, 1.5]),
)
@example(model("neomme", rope_parameters={"full_attention": [1]}), None, None)
def test_any_config_is_read_or_refused(config, part, layer_type):
    with contextlib.suppress(ConfigError):
        reading = read(config, part=part, layer_type=layer_type)
        assert len(repr(reading)) < 100_000
        assert hash(reading.rope) == hash(rope(config, part=part, layer_type=layer_type))


@given(st.one_of(st.binary(max_size=64), CONFIGS.map(lambda c: json.dumps(c).encode("utf-8", "replace"))))
def test_any_file_is_read_or_refused(tmp_path_factory, content):
    file = tmp_path_factory.mktemp("configs") / "config.json"
    file.write_bytes(content)
    with contextlib.suppress(ConfigError):
        read(file)


def test_numbers_of_too_many_digits():
    """Python raises when it formats an integer with so many digits, so error messages must not contain it."""
    number, keys = 10**5000, ("rope_theta", "head_dim", "rope_parameters", "num_hidden_layers", "model_type")
    for value in (number, {"a": number}, [number], {number}):
        for key in keys:
            refuse(".", {**LLAMA, key: value}, layer_type=0)
        refuse(".", {**LLAMA, "rope_parameters": {"rope_theta": value}})
        refuse(".", {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": value}})


def test_objects_that_share_objects_are_looked_at_once():
    shared = {"a": 1}
    for _ in range(45):
        shared = {"a": shared, "b": shared, "c": [shared, shared]}
    assert rope(model("llama", net=shared)).head_dim == 128
    wide = {f"key_{index}": [{"a": index}] for index in range(10**5)}
    start = time.thread_time()
    assert len(read_layers(model("llama", num_hidden_layers=1024, net=wide))) == 1
    assert time.thread_time() - start < 10


def test_a_huge_config_takes_no_time():
    huge = model("smollm3", num_hidden_layers=2**60)
    assert rope(huge, layer_type=3).rotary_dim == 0
    refuse("layer_types has 1025 values; give at most", {**huge, "layer_types": [""] * 1025}, layer_type=3)
    refuse("a list of layers has 1025 values; give at most", model("bamba", attn_layer_indices=[1] * 1025))
    with pytest.raises(ConfigError, match="num_hidden_layers is 1152921504606846976; give at most 1024"):
        read_layers(huge)
    many = {f"k{i}": 1 for i in range(1025)}
    refuse("keys", {**LLAMA, "rope_scaling": many})
    for config in ({**LLAMA, **many}, {"text_config": LLAMA, **many}, {"text_config": {**LLAMA, **many}}):
        refuse("has 10.. keys in one object; give at most 1024", config)
    refuse("it must be a list of names", {**LLAMA, "layer_types": list(range(10**5))}, layer_type=3)
