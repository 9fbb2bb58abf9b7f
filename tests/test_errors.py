"""Invalid calls raise the documented exception before any work; the message names fault and remedy."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import types
import warnings
from collections.abc import Callable
from typing import Any

import child
import numpy as np
import pytest
from conftest import LIBS

import rope_array as ra
from rope_array import ArrayTypeError, BackendError, PositionError, RoPE, ShapeError, SpecError
from rope_array._errors import short
from rope_array._spec import spec as _spec
from rope_array.testing import apply_definition

NAN, INF = float("nan"), float("inf")

# ---- reading a message ----

# Verbs of a remedy; every message has one.
REMEDY = re.compile(
    r"\b(give|call|make|move|cast|split|shard|redistribute|would fit|needs|it has)\b", re.IGNORECASE
)
# None as a value to pass; any other None is a leaked value.
NONE_TO_GIVE = re.compile(r"=None\b|\bgive None\b|\bor None\b|\bNone or\b")


def faults_of(text: str, *, none_given: bool = False) -> list[str]:
    """Return the faults in the form of a message."""
    faults = []
    if not text.endswith("."):
        faults.append("does not end with a period")
    if not REMEDY.search(text):
        faults.append("names no remedy")
    if not none_given and "None" in NONE_TO_GIVE.sub("", text):
        faults.append("None leaks")
    if re.search(r"object at 0x|<class|<function|array\(\[|\n|  ", text):
        faults.append("contains a long repr or a line break")
    if re.search(r"(?<!\.)\.\.(?!\.)|,\.|\(\)\(|\{\}|\{[a-z_]+\}", text):
        faults.append("contains stray punctuation or braces")
    if len(text) > 600:
        faults.append(f"has {len(text)} characters")
    for low, high in re.findall(r"from (-?\d+) to (-?\d+)", text):
        if int(low) > int(high):
            faults.append(f"offers an empty range, from {low} to {high}")
    return faults


def refused(error: type[Exception], says: list[str], call: Callable[[], Any], **form: bool) -> str:
    """Check that a call is refused with exactly this exception, and read the message."""
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    text = str(caught.value)
    missing = [part for part in says if part not in text]
    assert not missing, f"{missing} not in {text!r}"
    assert not faults_of(text, **form), f"{faults_of(text, **form)} in {text!r}"
    return text


@pytest.mark.parametrize(
    "text",
    [
        "x is int32[2, 4] (numpy); give a float array",
        "x is int32[2, 4] (numpy), which is not served.",
        "axis None has the size 3; give 4.",
        "pos is <list_iterator object at 0x7f0ee808a810>; give a list.",
        "pos is array([1, 2]); give a tuple.",
        "give an axis from -1 to -2.",
        "give one of the two..",
        "give an axis,\nor none at all.",
        "give {name}.",
        "give " + 600 * "9" + ".",
    ],
    ids=["period", "remedy", "None", "address", "array", "range", "periods", "newline", "braces", "length"],
)
def test_faults_of_finds_bad_messages(text: str) -> None:
    assert faults_of(text)
    with pytest.raises(AssertionError):
        refused(ValueError, [], lambda: (_ for _ in ()).throw(ValueError(text)))


def test_exceptions_derive_from_rope_error_and_a_builtin() -> None:
    for name, base in [
        ("SpecError", ValueError),
        ("ArrayTypeError", TypeError),
        ("ShapeError", ValueError),
        ("PositionError", ValueError),
        ("BackendError", ValueError),
    ]:
        assert issubclass(getattr(ra, name), (ra.RoPEError,))
        assert issubclass(getattr(ra, name), base)
    assert not issubclass(ra.RoPEError, (ValueError, TypeError))


# The docstring of a function names the exceptions that it raises.
@pytest.mark.parametrize(
    ("function", "names"),
    [
        (ra.apply, "ArrayTypeError ShapeError PositionError SpecError BackendError"),
        (RoPE, "SpecError"),
        (RoPE.rotation, "ArrayTypeError PositionError BackendError ShapeError"),
        (RoPE.matrix, "ArrayTypeError PositionError ShapeError"),
        (ra.Rotation.apply, "ArrayTypeError ShapeError BackendError"),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_docstrings_name_the_exceptions(function: Any, names: str) -> None:
    raises = inspect.getdoc(function).partition("Raises\n")[2].partition("Examples\n")[0]
    assert all(name in raises for name in names.split())


# ---- the spec: no arrays ----

SPECS: list[tuple[dict[str, Any], list[str]]] = [
    ({"head_dim": 5}, ["5", "odd", "even", "rotary_dim=4"]),
    ({"head_dim": 0}, ["head_dim is 0", "at least 1"]),
    ({"head_dim": -2}, ["head_dim is -2", "at least 1"]),
    ({"head_dim": 8.0}, ["head_dim is 8.0", "float", "int"]),
    ({"head_dim": "8"}, ["head_dim is '8'", "str", "int"]),
    ({"head_dim": True}, ["head_dim is True", "bool", "int"]),
    ({"head_dim": np.array([8, 8])}, ["head_dim", "int64[2]", "int"]),
    ({"head_dim": 8, "rotary_dim": 3}, ["rotary_dim is 3", "odd", "even", "rotary_dim=2"]),
    ({"head_dim": 8, "rotary_dim": 10}, ["rotary_dim is 10", "head_dim 8", "at most 8"]),
    ({"head_dim": 8, "rotary_dim": -2}, ["rotary_dim is -2", "at least 0"]),
    ({"head_dim": 8, "rotary_dim": 4.0}, ["rotary_dim is 4.0", "float"]),
    ({"head_dim": 8, "rotary_dim": np.array([4])}, ["rotary_dim", "int64[1]"]),
    ({"head_dim": 8, "rotary_dim": 6, "rotary_start": 4}, ["rotary_dim is 6", "rotary_start 4", "at most 4"]),
    ({"head_dim": 8, "rotary_start": 9}, ["rotary_start is 9", "8", "at most"]),
    ({"head_dim": 8, "rotary_start": -1}, ["rotary_start is -1", "at least 0"]),
    ({"head_dim": 8, "rotary_start": 3}, ["rotary_start", "5", "odd", "rotary_dim=4"]),
    ({"head_dim": 8, "base": 0}, ["base is 0.0", "above 0"]),
    ({"head_dim": 8, "base": -10000.0}, ["base is -10000.0", "above 0"]),
    ({"head_dim": 8, "base": INF}, ["base is inf", "finite"]),
    ({"head_dim": 8, "base": NAN}, ["base is nan", "finite"]),
    ({"head_dim": 8, "base": "10000"}, ["base is '10000'", "str", "number"]),
    ({"head_dim": 8, "base": True}, ["base is True", "bool", "number"]),
    ({"head_dim": 8, "base": np.array([1.0, 2.0])}, ["base is float64[2]", "number"]),
    ({"head_dim": 8, "base": 10**400}, ["base is", "finite"]),
    ({"head_dim": 8, "base": 10**5000}, ["base is", "finite"]),
    ({"head_dim": 8, "pairing": "neox"}, ["pairing is 'neox', which here is named 'half'", "give"]),
    ({"head_dim": 8, "pairing": "rotate_half"}, ["pairing is 'rotate_half'", "here is named 'half'"]),
    ({"head_dim": 8, "pairing": "gptj"}, ["pairing is 'gptj'", "here is named 'interleaved'"]),
    ({"head_dim": 8, "pairing": "GPT-J"}, ["pairing is 'GPT-J'", "here is named 'interleaved'"]),
    (
        {"head_dim": 8, "pairing": "llama"},
        ["named 'half' for Hugging Face's weights and 'interleaved' for Meta's"],
    ),
    ({"head_dim": 8, "pairing": "spiral"}, ["pairing is 'spiral'", "'interleaved'", "'half'"]),
    ({"head_dim": 8, "pairing": 1}, ["pairing is 1", "'interleaved'", "'half'"]),
    ({"head_dim": 8, "pairing": ["half"]}, ["pairing is", "'interleaved'", "'half'"]),
    ({"head_dim": 8, "out_pairing": "neox"}, ["out_pairing is 'neox'", "here is named 'half'"]),
    *(
        ({"head_dim": 8, "scaling": given}, ["scaling is", f"give {rule}", "RoPE.from_config(config)"])
        for given, rule in (
            ({"rope_type": "yarn", "factor": 4.0}, "ra.YaRN(factor="),
            ({"type": "linear", "factor": 4.0}, "ra.Linear(factor="),
            ({"rope_type": "dynamic"}, "ra.DynamicNTK(factor="),
            ({"rope_type": "llama3"}, "ra.Llama3(factor="),
            ({"rope_type": "su"}, "ra.LongRoPE(short_factor="),
            ({"rope_type": "proportional"}, "ra.Proportional(partial_rotary_factor="),
            ({"rope_type": "default"}, "None"),
            ({"rope_type": ["yarn"]}, "a rule"),
            ({"factor": 4.0}, "a rule"),
            ("yarn", "ra.YaRN(factor="),
        )
    ),
    ({"head_dim": 8, "angles": "float64"}, ["angles is 'float64'", "'exact'", "'float32'"]),
    ({"head_dim": 8, "attention_factor": 0.0}, ["attention_factor is 0.0", "above 0"]),
    ({"head_dim": 8, "attention_factor": -1.5}, ["attention_factor is -1.5", "above 0"]),
    ({"head_dim": 8, "attention_factor": NAN}, ["attention_factor is nan", "finite"]),
    ({"head_dim": 8, "attention_factor": INF}, ["attention_factor is inf", "finite"]),
    ({"head_dim": 8, "attention_factor": "1"}, ["attention_factor is '1'", "str"]),
    ({"head_dim": 8, "inv_freq": (1.0, 0.1, 0.01)}, ["inv_freq has 3", "4", "rotary_dim"]),
    ({"head_dim": 8, "inv_freq": ()}, ["inv_freq has 0", "4"]),
    ({"head_dim": 8, "rotary_dim": 0, "inv_freq": (1.0,)}, ["inv_freq has 1", "0"]),
    ({"head_dim": 4, "inv_freq": (1.0, NAN)}, ["inv_freq[1] is nan", "finite"]),
    ({"head_dim": 4, "inv_freq": (INF, 1.0)}, ["inv_freq[0] is inf", "finite"]),
    ({"head_dim": 4, "inv_freq": (1.0, "0.1")}, ["inv_freq[1] is '0.1'", "str"]),
    ({"head_dim": 4, "inv_freq": "ab"}, ["inv_freq is 'ab'", "str", "tuple"]),
    ({"head_dim": 4, "inv_freq": 1.0}, ["inv_freq is 1.0", "tuple"]),
    ({"head_dim": 4, "inv_freq": {1.0, 2.0}}, ["inv_freq is", "set", "tuple"]),
    ({"head_dim": 4, "inv_freq": np.ones(2)}, ["float64[2]", "tolist()", "rotation(", "inv_freq="]),
]


@pytest.mark.parametrize(("fields", "says"), SPECS, ids=[short(fields) for fields, _ in SPECS])
def test_spec(fields: dict[str, Any], says: list[str]) -> None:
    refused(SpecError, says, lambda: RoPE(**fields))
    if type(fields["head_dim"]) is int and fields["head_dim"] > 0:  # by ra.apply too: x gives the width
        rest = {name: value for name, value in fields.items() if name != "head_dim"}
        refused(SpecError, says, lambda: ra.apply(np.ones((2, fields["head_dim"])), 0, **rest))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"theta": 5.0}, ["'theta' (give base)"]),
        ({"rope_theta": 5.0}, ["'rope_theta' (give base)"]),
        ({"pairng": "half"}, ["'pairng' (give pairing)"]),
        ({"interleaved": True}, ["pairing='interleaved' or 'half'"]),
        ({"rope_scaling": {}}, ["scaling", "from_config"]),
        ({"seq_dim": 1}, ["'seq_dim' (give seq_axis, an argument of apply)"]),
        ({"inplace": True}, ["give out=x, an argument of apply"]),
        ({"position_ids": 1}, ["give pos, an argument of apply"]),
        ({"nonsense": 1}, ["'nonsense'; it has head_dim, base"]),
    ],
    ids=lambda value: "".join(value) if isinstance(value, dict) else "",
)
def test_names_that_are_no_fields(fields: dict[str, Any], says: list[str]) -> None:
    refused(SpecError, says, lambda: RoPE(8, **fields))
    refused(SpecError, says, lambda: RoPE(head_dim=8, **fields))


def test_every_hint_names_a_field() -> None:
    names = {*RoPE.__dataclass_fields__, *inspect.signature(ra.apply).parameters}
    for hint in _spec._OTHER_NAMES.values():
        assert re.split(r"[ ,=]", hint)[0] in names


def test_fields_given_by_position() -> None:
    refused(SpecError, ["head_dim by position", "(8, 10000.0)"], lambda: RoPE(8, 10000.0))  # type: ignore[misc]


def suggested(call: Callable[[], Any]) -> str:
    """Return the lines that the error of a call suggests."""
    with pytest.raises(ShapeError) as caught:
        call()
    lines = re.search(r"(?:heads|back): (.*?)(?:, where.*)?\.$", str(caught.value))
    assert lines
    return lines[1]


def test_the_lines_suggested_for_heads_in_one_axis() -> None:
    x, rope, pos = np.random.default_rng(0).standard_normal((5, 12)), RoPE(4), range(5)
    y = eval(suggested(lambda: rope.apply(x, pos)))
    want = apply_definition(x.reshape(5, 3, 4), [*pos], seq_axis=0).reshape(5, 12)
    np.testing.assert_allclose(y, want, rtol=0, atol=1e-15)


def test_the_lines_suggested_for_features_that_are_not_last() -> None:
    names = {"x": np.random.default_rng(0).standard_normal((2, 4, 5)), "pos": range(5), "xp": np}
    names["rope"] = RoPE(4)
    exec(suggested(lambda: names["rope"].apply(names["x"], names["pos"])), names)
    want = apply_definition(names["x"].swapaxes(1, 2), [*range(5)]).swapaxes(1, 2)
    np.testing.assert_allclose(names["y"], want, rtol=0, atol=1e-15)


# ---- the calls, on every library ----


def ones(lib: Any, *shape: int, dtype: str = "float32") -> Any:
    return lib.asarray(np.ones(shape), dtype)


def of(lib: Any, dtype: str, *shape: int) -> Any:
    """Make an array of a dtype that is not real floating point."""
    return lib.xp.ones(shape, dtype=lib.dtype(dtype))


def arange(lib: Any, n: int) -> Any:
    return lib.asarray(np.arange(n, dtype=np.int32))


def learned(lib: Any, frequencies: Any) -> Any:
    return RoPE(4).rotation(0, like=ones(lib, 2, 4), inv_freq=frequencies)


def rotated(x: Any, lib: Any, pos: Any = 0, **options: Any) -> Any:
    return RoPE(4).rotation(pos, like=ones(lib, 4)).apply(x, **options)


BIG = 2**63


def on_ones(*args: Any, shape: tuple[int, ...] = (2, 4), **options: Any) -> Callable[[Any], Any]:
    """Return a function of a library, which calls apply on an array of ones."""
    return lambda lib: ra.apply(ones(lib, *shape), *args, **options)


CALLS: dict[type[Exception], dict[str, tuple[Callable[[Any], Any], list[str]]]] = {}
CALLS[SpecError] = {
    "odd width": (on_ones(0, shape=(2, 5)), ["5", "odd", "even", "rotary_dim=4"]),
    "width 0": (on_ones(0, shape=(2, 0)), ["head_dim is 0", "at least 1"]),
    "rotary_dim of a one-liner": (on_ones(0, rotary_dim=6), ["rotary_dim is 6", "head_dim 4", "at most 4"]),
    "rope of a wrong type": (on_ones(0, "half"), ["'half'", "str", "RoPE", "by name"]),
    "a rotation for the rope": (
        lambda lib: ra.apply(ones(lib, 2, 4), 0, RoPE(4).rotation(0, like=ones(lib, 2, 4))),
        ["Rotation", "rotation.apply(x)"],
    ),
    "a dict for the rope": (on_ones(0, {"base": 5}), ["dict", "RoPE"]),
    "rope and spec": (on_ones(0, RoPE(4), base=5.0), ["both", "base", "dataclasses.replace"]),
    "queries, keys and positions": (
        lambda lib: ra.apply(ones(lib, 2, 4), ones(lib, 2, 4), arange(lib, 2)),
        ["third argument", "int32[2]", "ra.apply((q, k), pos)"],
    ),
    "queries, keys and a range": (
        lambda lib: ra.apply(ones(lib, 2, 4), ones(lib, 2, 4), range(2)),
        ["third argument", "range(0, 2)", "ra.apply((q, k), pos)"],
    ),
    "a name of other libraries": (on_ones(0, theta=5.0), ["'theta' (give base)", "rotary_dim", "pairing"]),
    "a misspelt field": (on_ones(0, pairng="half"), ["'pairng' (give pairing)"]),
    "two unknown fields": (on_ones(0, dim=4, nonsense=1), ["'dim' (give head_dim", "'nonsense'"]),
    "array in the spec": (
        lambda lib: ra.apply(ones(lib, 2, 4), 0, inv_freq=ones(lib, 2)),
        ["float32[2]", "tuple", "rotation(", "inv_freq="],
    ),
}
CALLS[ShapeError] = {
    "scalar x": (lambda lib: ra.apply(ones(lib), 0), ["float32[]", "axis"]),
    "width 0 with a rope": (
        lambda lib: RoPE(4).apply(ones(lib, 2, 0), 0),
        ["float32[2, 0]", "4 features", "head_dim"],
    ),
    "other width": (
        lambda lib: RoPE(6).apply(ones(lib, 2, 4), 0),
        ["float32[2, 4]", "6 features", "head_dim=6"],
    ),
    "heads not split": (
        lambda lib: RoPE(4).apply(ones(lib, 2, 3, 8), range(3)),
        ["float32[2, 3, 8]", "4 features", "Split its 2 heads", "reshape"],
    ),
    "features not last": (
        lambda lib: RoPE(4).apply(ones(lib, 2, 4, 3), range(2)),
        ["float32[2, 4, 3]", "along axis 1", "moveaxis(x, 1, -1)", "moveaxis(y, -1, 1)"],
    ),
    "queries and keys without positions": (
        lambda lib: RoPE(4).apply(ones(lib, 2, 3, 4), ones(lib, 1, 3, 4)),
        ["(1, 3, 4)", "(2, 3, 4)", "apply((q, k), pos)"],
    ),
    "head_dim of a one-liner": (on_ones(0, head_dim=8), ["float32[2, 4]", "head_dim=8"]),
    "too many learned frequencies": (lambda lib: learned(lib, ones(lib, 4)), ["(4,)", "rotary_dim", "(2,)"]),
    "learned, two axes": (lambda lib: learned(lib, ones(lib, 3, 2)), ["(3, 2)", "rotary_dim", "(2,)"]),
    "last axis": (on_ones(0, seq_axis=-1, shape=(2, 3, 4)), ["seq_axis is -1", "-2"]),
    "last axis from the front": (
        on_ones(0, seq_axis=2, shape=(2, 3, 4)),
        ["seq_axis is 2", "-3", "-2", "0", "1"],
    ),
    "beyond the axes": (on_ones(0, seq_axis=5, shape=(2, 3, 4)), ["seq_axis is 5", "-3", "-2", "0", "1"]),
    "before the axes": (on_ones(0, seq_axis=-4, shape=(2, 3, 4)), ["seq_axis is -4", "-3", "-2"]),
    "seq_axis of a single vector": (on_ones(0, seq_axis=0, shape=(4,)), ["seq_axis is 0", "1"]),
    "positions of a single vector": (on_ones([1, 2], shape=(4,)), ["(2,)", "(4,)", "scalar"]),
    "ragged": (on_ones([[0, 1], [2]], shape=(2, 2, 4)), ["ragged", "(1,)", "(2,)"]),
    "ragged in depth": (on_ones([0, [1]], shape=(2, 2, 4)), ["ragged", "()", "(1,)"]),
    "rotation of another width": (
        lambda lib: RoPE(6).rotation(0, like=ones(lib, 6)).apply(ones(lib, 2, 4)),
        ["float32[2, 4]", "6 features", "head_dim=6"],
    ),
    "rotation of other positions": (
        lambda lib: rotated(ones(lib, 2, 4), lib, range(3)),
        ["(3,)", "(2, 4)", "line up"],
    ),
    "second is a scalar": (lambda lib: ra.apply((ones(lib, 2, 4), ones(lib)), 0), ["float32[]", "axis"]),
    "second is of another width": (
        lambda lib: ra.apply((ones(lib, 2, 4), ones(lib, 2, 6)), 0),
        ["float32[2, 6]", "head_dim=4"],
    ),
    "second is of another length": (
        lambda lib: ra.apply((ones(lib, 3, 4), ones(lib, 5, 4)), range(3)),
        ["(3,)", "(5, 4)", "line up"],
    ),
    "second has fewer axes": (
        lambda lib: ra.apply((ones(lib, 2, 3, 4), ones(lib, 3, 4)), [[0, 1, 2]]),
        ["(1, 3)", "(3, 4)", "line up"],
    ),
}
CALLS[ArrayTypeError] = {
    "int x": (lambda lib: ra.apply(of(lib, "int32", 2, 4), 0), ["int32[2, 4]", "float32"]),
    "bool x": (lambda lib: ra.apply(of(lib, "bool", 2, 4), 0), ["bool[2, 4]", "float32"]),
    "int8 x": (
        lambda lib: ra.apply(of(lib, "int8", 2, 4), 0),
        ["int8[2, 4]", "Rotate before you quantise", "multiplied by its scale"],
    ),
    "x and positions swapped": (
        lambda lib: RoPE(4).apply(arange(lib, 4), ones(lib, 4, 4)),
        ["int32[4]", "positions, give them second: apply(x, pos)"],
    ),
    "a text for inverse": (
        lambda lib: ra.apply(ones(lib, 2, 4), 0, inverse="no"),  # type: ignore[arg-type]
        ["inverse is 'no'", "give True or False."],
    ),
    "an array for inverse": (
        lambda lib: ra.apply(ones(lib, 2, 4), 0, inverse=lib.asarray(np.array([True]))),  # type: ignore[arg-type]
        ["inverse is bool[1]", "give True or False."],
    ),
    "a fraction for inverse": (
        lambda lib: ra.apply(ones(lib, 2, 4), 0, inverse=ones(lib)),  # type: ignore[arg-type]
        ["inverse is float", "give True or False."],
    ),
    "positions of a rotation": (
        lambda lib: RoPE(4).rotation([0, 1], like=ones(lib, 4)).apply(ones(lib, 2, 4), [0, 1]),  # type: ignore[arg-type]
        ["rotation.apply((q, k)), without positions"],
    ),
    "a called rope": (
        lambda lib: RoPE(4)(ones(lib, 2, 4), arange(lib, 2)),  # type: ignore[arg-type]
        ["a RoPE is not called", "rope.apply(x, pos)", "rope.apply((q, k), pos)"],
    ),
    "complex x": (
        lambda lib: ra.apply(of(lib, "complex64", 2, 4), 0),
        ["complex64[2, 4]", "real", "float32"],
    ),
    "list of arrays": (lambda lib: ra.apply([ones(lib, 2, 4)], 0), ["got a list", "array", "tuple"]),
    "number": (lambda lib: ra.apply(1.0, 0), ["got 1.0", "float", "array"]),
    "empty tuple": (lambda lib: ra.apply((), 0), ["empty tuple", "array"]),
    "object as like": (
        lambda lib: RoPE(4).rotation(0, like=types.SimpleNamespace(dtype="float32", shape=(4,))),
        ["got float32[4]", "not an array", "give an array"],
    ),
    "int like": (lambda lib: RoPE(4).rotation(0, like=of(lib, "int32", 2, 4)), ["int32[2, 4]", "float32"]),
    "complex like of a matrix": (
        lambda lib: RoPE(4).matrix(0, like=of(lib, "complex64", 2, 4)),
        ["complex64[2, 4]", "float32"],
    ),
    "learned list": (
        lambda lib: learned(lib, [1.0, 2.0]),
        ["inv_freq is a list of length 2", "floating array"],
    ),
    "learned integers": (
        lambda lib: learned(lib, of(lib, "int32", 2)),
        ["inv_freq is int32[2]", "floating array"],
    ),
    "True": (on_ones(True), ["True", "bool", "integer"]),
    "True in a list": (on_ones([0, True]), ["True", "bool"]),
    "True among floats": (on_ones([0.5, True]), ["True", "bool"]),
    "complex position": (on_ones(1j), ["1j", "complex"]),
    "complex in a list": (on_ones([1j, 0]), ["1j", "complex"]),
    "text": (on_ones("12"), ["'12'", "str"]),
    "text in a list": (on_ones(["1", "2"]), ["'1'", "str"]),
    "arrays in a list": (
        lambda lib: ra.apply(ones(lib, 2, 2, 4), [arange(lib, 2)] * 2),
        ["sequence", "int32[2]", "one array"],
    ),
    "rotation of an integer x": (
        lambda lib: rotated(of(lib, "int32", 2, 4), lib),
        ["int32[2, 4]", "float32"],
    ),
    "rotation of a list": (lambda lib: rotated([ones(lib, 2, 4)], lib), ["got a list", "array"]),
    "second is a list": (lambda lib: ra.apply((ones(lib, 2, 4), [1.0]), 0), ["list", "array"]),
    "second is of integers": (
        lambda lib: ra.apply((ones(lib, 2, 4), of(lib, "int32", 2, 4)), 0),
        ["int32[2, 4]", "float32"],
    ),
}
CALLS[PositionError] = {
    "position beyond int64": (on_ones(BIG), [str(BIG), "out of range", "below 2**"]),
    "position before int64": (on_ones(-BIG - 1), [str(-BIG - 1), "out of range", "below 2**"]),
    "list beyond int64": (on_ones([0, BIG]), [str(BIG), "out of range", "below 2**"]),
    "nested list beyond int64": (
        on_ones([(0, BIG)], shape=(1, 2, 4)),
        [str(BIG), "out of range", "below 2**"],
    ),
    "range beyond int64": (on_ones(range(BIG, BIG + 2)), ["out of range", "below 2**"]),
    "range that runs down beyond int64": (on_ones(range(-BIG, -BIG - 2, -1)), ["out of range", "below 2**"]),
    "a position of 5000 digits": (on_ones(10**5000), ["out of range", "below 2**"]),
    "nan": (on_ones(NAN), ["nan", "not a number", "2**31"]),
    "inf": (on_ones(INF), ["inf", "out of range", "2**31"]),
    "-inf": (on_ones(-INF), ["-inf", "out of range", "2**31"]),
    "float of 2**31": (on_ones(2.0**31), ["2147483648.0", "out of range", "2**31"]),
    "nan in a list": (on_ones([0, NAN]), ["nan", "2**31"]),
    "-inf in a list": (on_ones([-INF, 0]), ["-inf", "2**31"]),
    "large int among floats": (on_ones([0.5, 2**40]), [str(2**40), "2**31"]),
    "huge int among floats": (on_ones([0.5, 2**2000]), ["out of range", "2**31"]),
    "nan as a NumPy scalar": (on_ones(np.float32(NAN)), ["nan", "2**31"]),
    "nan for a rotation": (lambda lib: RoPE(4).rotation([0, NAN], like=ones(lib, 2, 4)), ["nan", "2**31"]),
}
CALLS[BackendError] = {
    "unknown backend": (on_ones(0, backend="nonesuch"), ["backend is 'nonesuch'", "'array-api'"]),
    "backend of a wrong type": (on_ones(0, backend=3), ["backend is 3", "'array-api'"]),
    "backend of another library": (
        lambda lib: ra.apply(ones(lib, 2, 4), 0, backend="jax" if lib.name != "jax" else "torch"),
        ["float32[2, 4]", "does not serve", "'array-api'"],
    ),
    "unknown backend of a rotation": (
        lambda lib: RoPE(4).rotation(0, like=ones(lib, 4), backend="nonesuch"),
        ["backend is 'nonesuch'", "'array-api'"],
    ),
    "unknown backend of its application": (
        lambda lib: rotated(ones(lib, 4), lib, backend="nonesuch"),
        ["backend is 'nonesuch'", "'array-api'"],
    ),
}
CASES = [pytest.param(error, *case, id=name) for error in CALLS for name, case in CALLS[error].items()]


def forbid_computing(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("something was computed")


@pytest.fixture
def no_work(lib: Any) -> Any:
    """Fail if dask computes a graph."""
    if lib.name != "dask":
        yield
        return
    with importlib.import_module("dask").config.set(scheduler=forbid_computing):
        yield


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(("error", "call", "says"), CASES)
def test_call(lib: Any, error: type[Exception], call: Callable[[Any], Any], says: list[str]) -> None:
    refused(error, says, lambda: call(lib))


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("place", ["x", "second", "like", "applied"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.without("strict")
def test_float8(lib: Any, dtype: str, place: str) -> None:
    """A 16-bit float is the narrowest that is rotated."""
    if lib.name in ("numpy", "dask"):
        value = np.ones((2, 4)).astype(getattr(pytest.importorskip("ml_dtypes"), dtype))
        x = value if lib.name == "numpy" else importlib.import_module("dask.array").from_array(value)
    else:
        x = lib.asarray(np.ones((2, 4)), dtype)
    good = ones(lib, 2, 4)
    call = {
        "x": lambda: ra.apply(x, 0),
        "second": lambda: ra.apply((good, x), 0),
        "like": lambda: RoPE(4).rotation(0, like=x),
        "applied": lambda: RoPE(4).rotation(0, like=good).apply(x),
    }[place]
    text = refused(ArrayTypeError, [f"{dtype}[2, 4]", "float16", "bfloat16", "float32", "float64"], call)
    assert "multiplied by its scale" in text
    assert "cast x first" not in text.lower()


@pytest.mark.usefixtures("no_work")
def test_float64_by_tables_of_float32(lib: Any) -> None:
    if "float64" not in lib.dtypes:
        return  # JAX has it with x64 alone
    rotation = RoPE(4).rotation(0, like=ones(lib, 2, 4))
    for x in (ones(lib, 2, 4, dtype="float64"), (ones(lib, 2, 4), ones(lib, 2, 4, dtype="float64"))):
        refused(ArrayTypeError, ["float64", "float32", "like=x"], lambda x=x: rotation.apply(x))


# ---- positions: dtypes ----

REFUSED = ["float16", "bfloat16", "bool", "uint64", "complex64"]


def numpy_scalar(dtype: str) -> Any:
    if dtype == "bfloat16":
        return pytest.importorskip("ml_dtypes").bfloat16(1)
    return np.ones((), dtype)[()]


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("dtype", REFUSED)
@pytest.mark.parametrize("shape", [(), (2,), (2, 2)], ids=str)
def test_position_arrays_of_a_refused_dtype(lib: Any, dtype: str, shape: tuple[int, ...]) -> None:
    if (lib.name, dtype) in [
        ("array_api_strict", "float16"),
        ("array_api_strict", "bfloat16"),
        ("jax", "uint64"),
    ]:
        return  # the library has no such dtype
    if dtype == "bfloat16" and lib.name in ("numpy", "dask"):
        pytest.importorskip("ml_dtypes")
        pos = lib.asarray(np.ones(shape), dtype)
    else:
        pos = of(lib, dtype, *shape)
    says = [dtype, "integer", "float32", "float64"]
    refused(ArrayTypeError, says, lambda: ra.apply(ones(lib, 2, 2, 4), pos))
    refused(ArrayTypeError, says, lambda: RoPE(4).rotation(pos, like=ones(lib, 2, 2, 4)))


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("dtype", REFUSED)
@pytest.mark.parametrize("form", ["scalar", "list", "nested list", "with a float"])
def test_numpy_scalars_of_a_refused_dtype(lib: Any, dtype: str, form: str) -> None:
    value = numpy_scalar(dtype)
    pos = {
        "scalar": value,
        "list": [value, value],
        "nested list": [(value, value)],
        "with a float": [0.5, value],
    }[form]
    text = refused(ArrayTypeError, [dtype], lambda: ra.apply(ones(lib, 2, 2, 4), pos))
    assert "two libraries" not in text  # a number is no array of another library
    assert "asarray(pos)" not in text  # asarray(pos) would be refused again


@pytest.mark.parametrize("dtype", ["float16", "bool", "uint64"])
@pytest.mark.without("numpy", "strict", "torch")
def test_numpy_arrays_of_a_refused_dtype(lib: Any, dtype: str) -> None:
    refused(ArrayTypeError, [dtype, "float32"], lambda: ra.apply(ones(lib, 2, 4), np.ones(2, dtype)))


def test_numpy_positions_that_are_no_numbers() -> None:
    for dtype in ("object", "S1", "longdouble", "datetime64[s]", "complex128"):
        pos = np.zeros(2, "int64").astype(dtype)
        name = pos.dtype.name
        text = refused(ArrayTypeError, [name], lambda pos=pos: ra.apply(np.ones((2, 4)), pos))
        assert "16-bit" not in text  # the reason for float16 and bfloat16, not for these


# ---- positions: values that are read on the host ----


@pytest.mark.library("jax")
@pytest.mark.parametrize(
    "pos",
    [
        2**31,
        -(2**31) - 1,
        [0, 2**31],
        range(2**31 - 1, 2**31 + 1),
        range(-(2**31), -(2**31) - 2, -1),
        np.int64(2**31),
        np.array([0, 2**31]),
        np.array([-(2**31) - 1, 0]),
        np.array([2**32, 5]),
    ],
    ids=repr,
)
def test_jax_without_64_bit_integers(lib: Any, pos: Any) -> None:
    says = ["position", "out of range", "2**31", "x64"]
    x = ones(lib, 2, 4)
    refused(PositionError, says, lambda: ra.apply(x, pos))
    refused(PositionError, says, lambda: RoPE(4).rotation(pos, like=x))
    refused(PositionError, says, lambda: importlib.import_module("jax").jit(lambda x: ra.apply(x, pos))(x))
    with importlib.import_module("jax").enable_x64(True):
        ra.apply(x, pos)


@pytest.mark.library("jax")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("value", [NAN, INF, -INF, 2.0**31, -(2.0**31)], ids=str)
def test_jax_reads_numpy_floats(lib: Any, value: float, dtype: str) -> None:
    pos = np.array([1.0, value], dtype)
    text = refused(PositionError, ["position", "2**31"], lambda: ra.apply(ones(lib, 2, 4), pos))
    assert ("nan" in text and "not a number" in text) if value != value else "out of range" in text


@pytest.mark.without("jax")
def test_the_ends_of_int64_are_served(lib: Any) -> None:
    for pos in (2**63 - 1, -(2**63), [-(2**63), 2**63 - 1], range(2**63 - 2, 2**63), np.int64(2**63 - 1)):
        lib.to_numpy(ra.apply(ones(lib, 2, 4), pos))


def test_the_ends_of_the_range_of_every_library(lib: Any) -> None:
    for pos in (2**31 - 1, -(2**31), range(2**31 - 2, 2**31), 2.0**31 - 256, -(2.0**31) + 256, [], range(0)):
        x = ones(lib, 2, 4) if np.ndim(pos) == 0 or len(pos) else ones(lib, 0, 4)
        lib.to_numpy(ra.apply(x, pos))


class NaN(float):
    def __float__(self) -> float:
        return float("nan")


class Huge(int):
    def __int__(self) -> int:
        return 10**30

    __index__ = __int__


class Long(list[Any]):
    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize(
    ("pos", "plain"),
    [
        (NaN(1.5), 1.5),
        (Huge(7), 7),
        (Long([1, 2, 3]), [1, 2, 3]),
        (Long([1, NaN(2.5), 3]), [1, 2.5, 3]),
        ((1, Huge(2), 3), [1, 2, 3]),
        ([Long([1, 2, 3])], [[1, 2, 3]]),
    ],
    ids=["float", "int", "list", "float in a list", "int in a tuple", "list in a list"],
)
def test_subclasses_of_numbers_and_lists_count_by_their_values(lib: Any, pos: Any, plain: Any) -> None:
    """Methods of a subclass may contradict its values: another length, or another number."""
    x, rope = ones(lib, 1, 3, 4), RoPE(4, max_position=7)
    np.testing.assert_array_equal(lib.to_numpy(rope.apply(x, pos)), lib.to_numpy(rope.apply(x, plain)))
    if isinstance(pos, Long):
        refused(ShapeError, ["(3,)", "line up"], lambda: rope.apply(ones(lib, 5, 4), pos))


# ---- lining up ----


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("tables", [False, True], ids=["apply", "rotation"])
@pytest.mark.parametrize(
    ("shape", "pos_shape", "seq_axis", "fits"),
    [
        ((2, 3, 4), (2,), -2, [-3]),
        ((2, 3, 4), (3,), -3, [-2]),
        ((2, 3, 5, 4), (3,), -2, [-3]),
        ((2, 3, 5, 4), (2, 3), -2, [-3]),
        ((2, 3, 5, 4), (2, 5), -3, [-2]),
        ((2, 3, 5, 4), (2, 5), 1, [-2]),
        ((2, 3, 5, 4), (2,), -2, [-4]),
        ((3, 3, 5, 4), (3,), -2, [-4, -3]),
        ((2, 5, 3, 4), (5, 2), -2, [-4]),
        ((2, 5, 3, 4), (3, 2), -2, []),
        ((2, 3, 4), (7,), -2, []),
        ((2, 3, 4), (3, 3), -2, []),
        ((2, 3, 4), (2, 3, 1), -2, []),
        ((2, 3, 5, 4), (5, 1), -2, []),
        ((2, 5, 3, 4), (5, 1), -2, [-3]),
        ((1, 5, 3, 4), (5, 1), -2, [-3]),
        ((2, 5, 3, 4), (7, 1), -2, []),
        ((2, 3, 5, 4), (1, 2, 1), -2, [-4]),
        ((3, 4), (1, 3), -2, []),
        ((3, 4), (5,), -2, []),
        ((1, 4), (5,), -2, []),
        ((0, 4), (5,), -2, []),
    ],
    ids=str,
)
def test_lining_up(
    lib: Any, shape: tuple[int, ...], pos_shape: tuple[int, ...], seq_axis: int, fits: list[int], tables: bool
) -> None:
    x, pos = ones(lib, *shape), lib.asarray(np.zeros(pos_shape, np.int32))

    def call(seq_axis: int) -> Any:
        if tables:
            return RoPE(4).rotation(pos, like=x).apply(x, seq_axis=seq_axis)
        return ra.apply(x, pos, seq_axis=seq_axis)

    text = refused(ShapeError, [str(pos_shape), str(shape), f"seq_axis={seq_axis}"], lambda: call(seq_axis))
    remedy = text.partition("equal or 1. ")[2] or text.partition("axis 0 (")[2].partition(". ")[2]
    assert [int(axis) for axis in re.findall(r"seq_axis=(-?\d+)", remedy)] == fits
    # The message offers shapes, or other axes for these shapes; each must work.
    offered = [tuple(map(int, re.findall(r"\d+", s))) for s in re.findall(r"\(([\d, ]+)\)", remedy)]
    assert offered or fits
    for form in offered or [pos_shape]:
        for axis in fits or [seq_axis]:
            ra.apply(x, lib.asarray(np.zeros(form, np.int32)), seq_axis=axis)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("shape", "pos_shape", "seq_axis", "offered"),
    [
        ((2, 3, 7, 4), (3, 5, 2), -2, ["(7, 2)", "(2, 7, 2)", "(2, 3, 7, 2)", "(2,)"]),
        ((2, 3, 4, 4), (5, 2), -2, ["(4, 2)", "(2, 4, 2)", "(2, 3, 4, 2)", "(2,)"]),
        ((2, 3, 5, 4), (5, 1, 2), -2, ["(5, 2)"]),
        ((4,), (5, 2), -2, ["(2,)"]),
    ],
    ids=str,
)
def test_lining_up_with_coordinates(
    lib: Any, shape: tuple[int, ...], pos_shape: tuple[int, ...], seq_axis: int, offered: list[str]
) -> None:
    """The shapes in the message have the axis of coordinates."""
    rope, x = RoPE(4, axes=ra.Axes.axial(2, 2)), ones(lib, *shape)

    def call(pos_shape: tuple[int, ...]) -> Any:
        return rope.apply(x, lib.asarray(np.zeros(pos_shape, np.int32)), seq_axis=seq_axis)

    text = refused(ShapeError, [str(pos_shape)], lambda: call(pos_shape))
    assert re.findall(r"\([\d, ]+\)", text.rpartition("Give ")[2]) == offered
    for form in offered:
        call(eval(form))


def test_the_remedy_for_class_tokens(lib: Any) -> None:
    """Coordinates of 0 leave a token as it is, and the others at their places."""
    rope, x = RoPE(4, axes=ra.Axes.axial(2, 2)), np.random.default_rng(0).standard_normal((2, 3, 17, 4))
    grid = ra.positions.grid(4, 4).astype(np.int32)

    def rotated(x: Any, pos: Any) -> Any:
        return lib.to_numpy(rope.apply(lib.asarray(x, "float32"), lib.asarray(pos)))

    text = refused(ShapeError, ["1 more token than pos"], lambda: rotated(x, grid))
    match = re.search(r"zeros of shape (\(.*?\)) joined with pos", text)
    assert match
    got = rotated(x, np.concatenate([np.zeros(eval(match[1]), np.int32), grid]))
    np.testing.assert_array_equal(got[..., :1, :], x[..., :1, :].astype(np.float32))
    np.testing.assert_array_equal(got[..., 1:, :], rotated(x[..., 1:, :], grid))


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("shape", "patches", "axes", "zeros"),
    [
        ((2, 10, 16, 4), (3, 3), [-3], "(1, 2)"),
        ((2, 17, 4, 4), (4, 4), [-3], "(1, 2)"),
        ((2, 10, 10, 4), (3, 3), [-3], "(1, 2)"),
        ((2, 16, 10, 4), (3, 3), [], "(1, 2)"),
        ((2, 3, 20, 4), (4, 4), [], "(4, 2)"),
        ((2, 3, 32, 4), (4, 4), [], None),
        ((2, 3, 400, 4), (4, 4), [], None),
        ((2, 3, 53, 4), (6, 6), [], None),
    ],
    ids=str,
)
def test_class_tokens_are_a_condition(
    lib: Any, shape: tuple[int, ...], patches: tuple[int, int], axes: list[int], zeros: str | None
) -> None:
    """Other axes as near to the number of patches come first; many more tokens are not class tokens."""
    rope, x = RoPE(4, axes=ra.Axes.axial(2, 2)), ones(lib, *shape)
    pos = ra.positions.grid(*patches).astype(np.int32)
    text = refused(ShapeError, [str(pos.shape)], lambda: rope.apply(x, lib.asarray(pos)))
    remedy = text.partition("equal or 1. ")[2]
    assert [int(axis) for axis in re.findall(r"seq_axis=(-?\d+), if axis", remedy)] == axes
    found = re.search(r"Only if .* class token.* zeros of shape (\(.*?\)) joined with pos", remedy)
    assert (found and found[1]) == zeros
    if zeros:
        joined = np.concatenate([np.zeros(eval(zeros), np.int32), pos])
        for axis in axes or [-2]:
            rope.apply(x, lib.asarray(joined), seq_axis=axis)


@pytest.mark.parametrize(
    ("shape", "seq_axis", "coordinates", "form", "axis"),
    [
        ((2, 4, 1, 4), -2, 0, "(2, 1)", -4),
        ((2, 1, 4, 4), -3, 0, "(2, 1)", -4),
        ((1, 2, 4, 4), 0, 0, "(2, 1)", -3),
        ((2, 4, 1, 4), -2, 2, "(2, 1, 2)", -4),
    ],
    ids=str,
)
def test_one_new_token_in_each_sequence(
    lib: Any, shape: tuple[int, ...], seq_axis: int, coordinates: int, form: str, axis: int
) -> None:
    rope = RoPE(4, axes=ra.Axes.axial(2, 2)) if coordinates else RoPE(4)
    x, pos = ones(lib, *shape), np.arange(2 * (coordinates or 1), dtype=np.int32)
    pos = pos.reshape(2, coordinates) if coordinates else pos
    batch = "1" if seq_axis == 0 else "0"
    says = [f"If axis {batch} is the batch, give pos the shape {form},", f"tokens, give seq_axis={axis}."]
    refused(ShapeError, says, lambda: rope.apply(x, lib.asarray(pos), seq_axis=seq_axis))
    y = lib.to_numpy(rope.apply(x, lib.asarray(pos.reshape(eval(form))), seq_axis=seq_axis))
    for sequence, position in zip(np.moveaxis(y, int(batch), 0), pos, strict=True):
        want = lib.to_numpy(rope.apply(ones(lib, 4), lib.asarray(position)))
        np.testing.assert_array_equal(sequence, np.broadcast_to(want, sequence.shape))
    rope.apply(x, lib.asarray(pos), seq_axis=axis)


def test_arrays_of_different_lengths_are_two_calls(lib: Any) -> None:
    q, k = ones(lib, 2, 3, 5, 4), ones(lib, 2, 1, 7, 4)
    for xs in ((q, k), (k, q)):
        says = ["array of shape (2, 3, 5, 4)", "call once for each array", "cross-attention"]
        refused(ShapeError, says, lambda xs=xs: ra.apply(xs, range(5)))
    refused(ShapeError, ["or (2, 5) or"], lambda: ra.apply((q, q), range(6)))  # no other array lines up


IDS = np.arange(30).reshape(3, 2, 5)


@pytest.mark.parametrize(
    ("pos", "remedy"),
    [
        (IDS, "xp.moveaxis(pos, 0, -1)"),
        (np.concatenate([IDS[:1], IDS]), "xp.moveaxis(pos[1:, ...], 0, -1)"),
        (np.concatenate([IDS[:1], IDS])[:, 0], "xp.moveaxis(pos[1:, ...], 0, -1)"),
        (IDS[0], "ra.positions.text(pos, 3, like=x)"),
        ([1, 2, 3, 4, 5], "ra.positions.text(pos, 3, like=x)"),
        (7, "ra.positions.text(pos, 3, like=x)"),
        (np.arange(25).reshape(5, 1, 5), ""),
    ],
    ids=["three rows", "four rows", "four rows of one sequence", "batch", "list", "number", "unknown"],
)
def test_remedies_for_positions_without_coordinates(lib: Any, pos: Any, remedy: str) -> None:
    """The remedy in the message gives positions that rotate as (t, h, w) on the last axis."""
    rope, x = RoPE(8, axes=ra.Axes.chunked(2, 1, 1)), np.random.default_rng(0).standard_normal((2, 3, 5, 8))
    x = lib.asarray(x, "float32")
    given = lib.asarray(pos.astype(np.int32)) if isinstance(pos, np.ndarray) else pos
    text = refused(ShapeError, ["3 coordinates", "(..., 3)"], lambda: rope.apply(x, given))
    assert remedy in text
    if not remedy:
        assert text.endswith("(..., 3).")
        return
    got = rope.apply(x, eval(remedy, {"xp": lib.xp, "pos": given, "ra": ra, "x": x}))
    host = np.asarray(pos)
    want = np.moveaxis(host[-3:], 0, -1) if "moveaxis" in remedy else np.stack([host] * 3, -1)
    want = rope.apply(x, lib.asarray(np.asarray(want, np.int32)))
    np.testing.assert_array_equal(lib.to_numpy(got), lib.to_numpy(want))


# ---- two libraries ----

PAIRS = [
    pytest.param(a, b, marks=pytest.mark.library(a, b), id=f"{a}-{b}") for a in LIBS for b in LIBS if a != b
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_libraries(first: str, second: str) -> None:
    a, b = LIBS[first], LIBS[second]
    x, y, names = ones(a, 2, 4), ones(b, 2, 4), [a.name, b.name]
    rotation = RoPE(4).rotation(0, like=x)
    refused(ArrayTypeError, [*names, "two libraries"], lambda: ra.apply((x, y), 0))
    refused(ArrayTypeError, [*names, "like="], lambda: rotation.apply(y))
    refused(ArrayTypeError, [*names, "inv_freq"], lambda: RoPE(4).rotation(0, like=x, inv_freq=ones(b, 2)))
    pos = arange(b, 2)
    if second == "numpy" and first in ("jax", "dask"):
        ra.apply(x, pos)  # these accept NumPy positions
        return
    remedies = {"torch": "torch.as_tensor(pos", "cubed": "cubed.from_array(pos"}
    grid = ra.positions.grid(2, 1)[:, 0]
    if second == "numpy":
        refused(ArrayTypeError, ["ra.positions with like=x"], lambda: ra.apply(x, grid))
        ra.apply(x, ra.positions.grid(2, 1, like=x)[:, 0])
    says = [*names, "int32[2]", "float32[2, 4]", remedies.get(first, "asarray(pos)")]
    refused(ArrayTypeError, says, lambda: ra.apply(x, pos))
    refused(ArrayTypeError, says[:3], lambda: RoPE(4).rotation(pos, like=x))


# ---- two devices ----


@pytest.mark.library("strict")
def test_two_devices_of_strict() -> None:
    import array_api_strict as xp

    there = xp.Device("device1")
    x, y = xp.ones((2, 4), dtype=xp.float32), xp.ones((2, 4), dtype=xp.float32, device=there)
    devices_refused(x, y, xp.arange(2, device=there), xp.ones(2, dtype=xp.float32, device=there), "device1")
    assert ra.apply(y, xp.arange(2, device=there)).device == there
    assert ra.apply(y, [0, 1]).device == RoPE(4).matrix(3, like=y).device == there


@pytest.mark.library("torch")
def test_two_devices_of_torch() -> None:
    import torch

    y = torch.ones(2, 4, device="meta")
    devices_refused(torch.ones(2, 4), y, torch.arange(2, device="meta"), torch.ones(2, device="meta"), "meta")


def devices_refused(x: Any, y: Any, pos: Any, frequencies: Any, name: str) -> None:
    """Assert that y on another device than x is refused in every argument."""
    refused(ArrayTypeError, [name, "device"], lambda: ra.apply((x, y), 0))
    refused(ArrayTypeError, [name, "pos"], lambda: ra.apply(x, pos))
    refused(ArrayTypeError, [name, "pos"], lambda: RoPE(4).rotation(pos, like=x))
    refused(ArrayTypeError, [name, "like="], lambda: RoPE(4).rotation(0, like=x).apply(y))
    refused(ArrayTypeError, [name, "inv_freq"], lambda: RoPE(4).rotation(0, like=x, inv_freq=frequencies))


TWO_DEVICES_OF_JAX = """
import jax, jax.numpy as jnp
from test_errors import devices_refused
import rope_array as ra

here, there = jax.devices()
x, y = jax.device_put(jnp.ones((2, 4)), here), jax.device_put(jnp.ones((2, 4)), there)
pos, frequencies = jax.device_put(jnp.arange(2), there), jax.device_put(jnp.ones(2), there)
devices_refused(x, y, pos, frequencies, repr(there))
assert ra.apply(y, pos).devices() == ra.apply(y, [0, 1]).devices() == {there}
"""


@pytest.mark.library("jax")
def test_two_devices_of_jax() -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    child.run(TWO_DEVICES_OF_JAX, XLA_FLAGS=flags, JAX_PLATFORMS="cpu")


# ---- arrays without plain elementwise arithmetic ----

PLACES = ["x", "second", "pos", "like", "applied", "inv_freq"]


def unsound_call(place: str, make: Callable[[Any], Any], lib: Any, backend: str | None) -> Callable[[], Any]:
    """Return a call with an unsound array in one argument; `make` makes it from a sound array."""
    x, pos = ones(lib, 2, 4), arange(lib, 2)
    if place == "x":
        return lambda: ra.apply(make(x), 0, backend=backend)
    if place == "second":
        return lambda: ra.apply((x, make(x)), 0, backend=backend)
    if place == "pos":
        return lambda: ra.apply(x, make(pos), backend=backend)
    if place == "like":
        return lambda: RoPE(4).rotation(0, like=make(x), backend=backend)
    if place == "applied":
        return lambda: RoPE(4).rotation(0, like=x).apply(make(x), backend=backend)
    return lambda: RoPE(4).rotation(0, like=x, inv_freq=make(ones(lib, 2)), backend=backend)


@pytest.mark.usefixtures("no_work")
@pytest.mark.without("strict", "jax", "torch")
@pytest.mark.parametrize("backend", [None, "array-api"])
@pytest.mark.parametrize("place", PLACES)
def test_masked_arrays(lib: Any, place: str, backend: str | None) -> None:
    def masked(array: Any) -> Any:
        if lib.name == "numpy":
            return np.ma.masked_equal(array, 1)
        return importlib.import_module("dask.array").ma.masked_equal(array, 1)

    refused(ArrayTypeError, ["mask"], unsound_call(place, masked, lib, backend))


@pytest.mark.without("numpy", "strict", "torch")
def test_masked_numpy_positions(lib: Any) -> None:
    x = ones(lib, 2, 4)
    refused(ArrayTypeError, ["mask"], lambda: ra.apply(x, np.ma.masked_equal([0, 1], 1)))


@pytest.mark.parametrize("place", PLACES)
def test_numpy_matrix(place: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        call = unsound_call(place, np.asmatrix, LIBS["numpy"], None)
        refused(ArrayTypeError, ["matrix", "asarray"], call)


def torch_kinds() -> dict[str, tuple[Callable[[Any], Any], list[str]]]:
    import torch

    def nested(layout: Any) -> Callable[[Any], Any]:
        return lambda x: torch.nested.nested_tensor([x, x], layout=layout)

    def masked(x: Any) -> Any:
        return torch.masked.masked_tensor(x, x == 1)

    return {
        "coo": (lambda x: x.to_sparse(), ["sparse_coo", "to_dense()"]),
        "csr": (lambda x: x.reshape(-1, x.shape[-1]).to_sparse_csr(), ["sparse_csr", "to_dense()"]),
        "mkldnn": (lambda x: x.float().to_mkldnn(), ["mkldnn", "to_dense()"]),
        "jagged": (nested(torch.jagged), ["nested"]),
        "nested": (nested(torch.strided), ["nested"]),
        "masked": (masked, ["mask"]),
    }


@pytest.mark.library("torch")
@pytest.mark.filterwarnings("ignore:.*(prototype|beta state|sparse)")
@pytest.mark.parametrize("backend", [None, "array-api"])
@pytest.mark.parametrize("place", ["x", "second", "pos", "like", "applied"])
@pytest.mark.parametrize("kind", ["coo", "csr", "mkldnn", "jagged", "nested", "masked"])
def test_torch_tensors_of_another_kind(kind: str, place: str, backend: str | None) -> None:
    make, says = torch_kinds()[kind]
    if place == "pos" and kind == "mkldnn":
        return  # integers have no such layout
    refused(ArrayTypeError, says, unsound_call(place, make, LIBS["torch"], backend))


# ---- before any work ----

LATE = ["integers", "another width", "another length", "a scalar"]


class Spy(np.ndarray):
    """A NumPy array whose ufuncs raise."""

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("arithmetic")


def test_no_work_before_an_error_in_numpy() -> None:
    x, pos = np.ones((2, 4)).view(Spy), np.arange(2).view(Spy)
    with pytest.raises(AssertionError, match="arithmetic"):
        ra.apply(x, pos)  # the spy notices a valid call
    bad = [np.ones((2, 4), int), np.ones((2, 6)), np.ones((3, 4)), np.ones(()), [1.0]]
    for second in bad:
        with pytest.raises(ra.RoPEError):
            ra.apply((x, second), pos)
    for call in (
        lambda: ra.apply(x, pos, base=-1.0),
        lambda: ra.apply(x, pos, theta=1.0),
        lambda: ra.apply(x, pos, RoPE(6)),
        lambda: ra.apply(x, pos, seq_axis=-1),
        lambda: ra.apply(x, pos, backend="nonesuch"),
        lambda: ra.apply(x, np.arange(3).view(Spy)),
        lambda: ra.apply(x, np.arange(2).astype(np.uint64).view(Spy)),
    ):
        with pytest.raises(ra.RoPEError):
            call()


def wrong_second(lib: Any, name: str) -> Any:
    """Make an array that is refused in a tuple with an array of shape (3, 4)."""
    return {
        "integers": of(lib, "int32", 3, 4),
        "another width": ones(lib, 3, 6),
        "another length": ones(lib, 5, 4),
        "a scalar": ones(lib),
    }[name]


@pytest.mark.library("torch")
@pytest.mark.parametrize("name", LATE)
def test_no_work_before_an_error_in_torch(name: str) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        ops: list[str]

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.ops.append(str(func))
            return func(*args, **(kwargs or {}))

    lib = LIBS["torch"]
    x, pos = ones(lib, 3, 4), arange(lib, 3)
    second = wrong_second(lib, name)
    seen = Seen()
    seen.ops = []
    with seen, pytest.raises(ra.RoPEError):
        ra.apply((x, second), pos)
    assert seen.ops == []
    with seen:
        ra.apply((x, x), pos)
    assert seen.ops


@pytest.mark.library("jax")
@pytest.mark.parametrize("name", LATE)
def test_no_work_before_an_error_in_jax(name: str) -> None:
    """JAX cannot compute with an array whose buffer is deleted."""
    lib = LIBS["jax"]
    x, pos = ones(lib, 3, 4), arange(lib, 3)
    second = wrong_second(lib, name)
    x.delete()
    pos.delete()
    with pytest.raises(ra.RoPEError):
        ra.apply((x, second), pos)
    with pytest.raises(RuntimeError, match="deleted"):
        ra.apply((x, x), pos)


def test_an_error_leaves_x_unchanged() -> None:
    x = np.arange(8.0).reshape(2, 4)
    before = x.tobytes()
    for second in (np.ones((2, 6)), np.ones((2, 4), int), [1.0]):
        with pytest.raises(ra.RoPEError):
            ra.apply((x, second), [1, 2])
    for pos in (NAN, [1, 2, 3], np.ones(2, np.float16), None):
        with pytest.raises(ra.RoPEError):
            ra.apply(x, pos)
    assert x.tobytes() == before


# ---- messages that could mislead ----


def test_a_numpy_number_for_x() -> None:
    text = refused(ShapeError, ["float32"], lambda: ra.apply(np.float32(1), 0))
    assert "two libraries" not in text


@pytest.mark.parametrize("pos", [None, "3", {1, 2}, 1j], ids=repr)
def test_errors_do_not_call_other_objects_arrays(lib: Any, pos: Any) -> None:
    text = refused(
        ArrayTypeError, [type(pos).__name__], lambda: ra.apply(ones(lib, 2, 4), pos), none_given=pos is None
    )
    assert "two libraries" not in text


@pytest.mark.parametrize("like", [None, (np.ones(4),), np.float32], ids=["None", "tuple", "class"])
def test_errors_name_the_argument_like(like: Any) -> None:
    text = refused(ArrayTypeError, ["like"], lambda: RoPE(4).rotation(0, like=like), none_given=like is None)
    assert "or a tuple" not in text


@pytest.mark.parametrize("place", [0, 1], ids=["cos", "sin"])
@pytest.mark.parametrize("bad", [[1.0, 1.0], 1.0, np.ones((3, 2), int)], ids=["list", "number", "integers"])
def test_errors_name_the_table(place: int, bad: Any) -> None:
    tables = [np.ones((3, 2)), np.ones((3, 2))]
    tables[place] = bad
    text = refused(ArrayTypeError, [("cos", "sin")[place]], lambda: RoPE(4).rotation_from(*tables))
    assert "like" not in text


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ra.apply(x, x, [0, 1], RoPE(4)),
        lambda x: RoPE(4).apply(x, x, [0, 1]),
        lambda x: RoPE(4).rotation([0, 1], like=x).apply(x, x),
        lambda x: RoPE(4).rotation([0, 1], like=x).apply(x, [0, 1]),
    ],
    ids=["one-liner", "rope", "rotation", "rotation and positions"],
)
def test_arrays_given_one_by_one(call: Callable[[Any], Any]) -> None:
    refused(ArrayTypeError, ["too many", "apply((q, k)"], lambda: call(np.ones((2, 4))))


class BrokenRepr:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("cls", [np.ndarray, np.float32, int])
def test_classes_are_named(cls: type) -> None:
    refused(SpecError, [f"base is the class {cls.__name__}"], lambda: RoPE(8, base=cls))


# Python does not print an integer of so many digits, nor a container of it.
@pytest.mark.parametrize(
    ("value", "says"),
    [
        (10**5000, "a number of 16610 bits"),
        (-(10**5000), "a number of 16610 bits"),
        ([10**5000], "a list that cannot be written out"),
        ({"a": [10**5000]}, "a dict that cannot be written out"),
        ({10**5000}, "a set that cannot be written out"),
        (BrokenRepr(), "a BrokenRepr that cannot be written out"),
    ],
    ids=["number", "negative", "list", "dict", "set", "broken repr"],
)
def test_values_without_a_short_repr_are_named(value: Any, says: str) -> None:
    assert short(value) == says
    with pytest.raises(SpecError, match=says) as caught:
        RoPE(8, pairing=value)
    assert faults_of(str(caught.value)) == []


def test_two_fields_with_a_rope_are_refused() -> None:
    call = lambda: ra.apply(np.ones((2, 4)), 0, RoPE(4), base=5.0, pairing="half")  # noqa: E731
    refused(SpecError, ["base", "pairing", "replace(rope, base=..., pairing=...)"], call)


@pytest.mark.library("torch", "numpy")
def test_an_array_of_no_axes_is_an_array_of_its_library() -> None:
    """A 0-d tensor is no number: it is refused with NumPy, and a 0-d NumPy array with PyTorch."""
    import torch

    for x, pos in ((np.ones((2, 4)), torch.tensor(3)), (torch.ones(2, 4), np.array(3))):
        refused(ArrayTypeError, ["two libraries"], lambda x=x, pos=pos: ra.apply(x, pos))
