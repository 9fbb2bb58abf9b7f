"""Scaling rules: golden tables, the formulas of the definition, lengths, and errors."""

import dataclasses
import math
import pickle
import re
import tomllib

import docs_blocks
import numpy as np
import oracle
import pytest
from refusals import faults_of, refusals, refused

import rope_array as ra
from rope_array import RoPE, SpecError
from rope_array._spec import scaling
from rope_array._spec.frequencies import Scaling
from rope_array.testing import rotation_matrix
from rope_array.testing._library_target import as_records, rope_type_of
from rope_array.testing._named_values import rule_of
from rope_array.testing._rules import RULES as FORMULAS

LONG = {
    "short_factor": tuple(1 + 0.1 * i for i in range(8)),
    "long_factor": tuple(2.0 + i for i in range(8)),
    "original_max_position_embeddings": 4096,
    "factor": 32.0,
}

GOLDEN = tomllib.loads((oracle.GOLDEN / "rules.toml").read_text("utf-8"))


NAMES = vars(scaling) | {"RoPE": RoPE, "Axes": ra.Axes, "LONG": LONG, "NAN": math.nan, "INF": math.inf}
NAMES["rope"] = lambda rule, **fields: RoPE(16, scaling=rule, **fields)


def evaluate(call):
    """Make a rule or a rope of a text."""
    return eval(call, NAMES)


# ---- golden numbers ----


@pytest.mark.parametrize("name", GOLDEN["frequencies"])
def test_golden_frequencies(name):
    call, *wanted = GOLDEN["frequencies"][name]
    rope = evaluate(call)
    np.testing.assert_allclose(rope.frequencies[: len(wanted)], wanted, rtol=1e-6)
    narrow = dataclasses.replace(rope, angles="float32")
    np.testing.assert_allclose(narrow.frequencies[: len(wanted)], wanted, rtol=1e-6)


@pytest.mark.parametrize(("call", "wanted"), GOLDEN["amplitudes"].items())
def test_golden_amplitudes(call, wanted):
    assert RoPE(16, scaling=evaluate(call)).amplitude == pytest.approx(wanted, rel=1e-8)


# ---- against the definition ----

RULES = [
    *(rule_of(name, 0) for name in FORMULAS if name != "longrope"),  # its lists have a number for each pair
    {"rope_type": "dynamic", "factor": 2.5, "max_position_embeddings": 300, "length": 1000},
    {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 512},
    {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 8192, "truncate": False},
    {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.5, "high_freq_factor": 5.0,
        "original_max_position_embeddings": 2048,
    },
    {"rope_type": "proportional", "partial_rotary_factor": 0.3, "factor": 2.0},
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule['rope_type']}")
@pytest.mark.parametrize(("base", "width"), [(10_000.0, 64), (500_000.0, 128), (1234.5, 30)])
def test_frequencies_against_decimals(rule, base, width):
    """The definition has its own code for the rules; frequencies agree to the last digits of float64."""
    rope = RoPE(width, base=base, **as_records({"scaling": rule}))
    wanted = rotation_matrix(1, head_dim=width, base=base, scaling={**rule, "attention_factor": 1})
    omegas = [math.atan2(wanted[2 * i + 1, 2 * i], wanted[2 * i, 2 * i]) for i in range(width // 2)]
    turned = np.asarray(rope.frequencies)
    turned = (turned + np.pi) % (2 * np.pi) - np.pi  # periods rotate by more than half a turn
    np.testing.assert_allclose(turned, omegas, rtol=2e-13, atol=1e-14)


def test_other_rules_round_frequencies_to_float64():
    """A rope with the same frequencies as inv_freq has the same bits."""
    for rule in (ra.YaRN(4.0, 4096), ra.Llama3(), ra.NTKAware(3.0), ra.LongRoPE(**LONG, length=1)):
        rope = RoPE(16, scaling=rule, pairing="half")
        by_inv_freq = RoPE(16, inv_freq=rope.frequencies, attention_factor=rope.amplitude, pairing="half")
        x, pos = np.random.default_rng(0).standard_normal((3, 16)), [7, 10**6, 2**31 - 1]
        np.testing.assert_array_equal(rope.apply(x, pos), by_inv_freq.apply(x, pos))


def test_llama3_with_equal_bounds_is_a_step():
    rope = RoPE(32, scaling=ra.Llama3(8.0, 2.0, 2.0, 512))
    turns = [512 * omega / (2 * math.pi) for omega in RoPE(32).frequencies]
    wanted = [omega if n >= 2 else omega / 8 for omega, n in zip(RoPE(32).frequencies, turns, strict=True)]
    np.testing.assert_allclose(rope.frequencies, wanted)


@pytest.mark.parametrize("angles", ["exact", "float32"])
@pytest.mark.parametrize("rule", [None, ra.Linear(4.0), ra.YaRN(4.0, 64), ra.Proportional(0.5)], ids=str)
def test_reversed_rotates_in_the_other_direction(rule, angles):
    rope = RoPE(16, scaling=rule, angles=angles)
    reversed_rope = RoPE(16, scaling=ra.Reversed(rule), angles=angles)
    assert reversed_rope.frequencies == tuple(-omega for omega in rope.frequencies)
    assert reversed_rope.amplitude == rope.amplitude
    assert RoPE(16, scaling=ra.Reversed(ra.Reversed(rule)), angles=angles).frequencies == rope.frequencies
    x = np.random.default_rng(0).standard_normal((3, 16))
    wanted = rope.amplitude**2 * rope.apply(x, range(3), inverse=True)
    np.testing.assert_allclose(reversed_rope.apply(x, range(3)), wanted, rtol=1e-12)


def test_a_long_chain_of_reversals_is_short():
    rule = ra.Linear(2.0)
    for _ in range(2_001):  # more than Python's calls may nest
        rule = ra.Reversed(rule)
    assert rule == ra.Reversed(ra.Linear(2.0))


# ---- one list of rules ----


def test_every_class_of_rules_is_in_the_list():
    classes = [value for value in vars(scaling).values() if isinstance(value, type)]
    rules = {rule for rule in classes if rule.__module__ == scaling.__name__ and rule.__base__ is Scaling}
    assert rules == {*scaling.RULES}


def test_a_rope_type_is_of_one_rule():
    types = [rule._rope_type for rule in scaling.RULES if rule._rope_type]
    assert sorted(types) == sorted(scaling.OF_CONFIGS)


def test_every_rule_has_a_formula_golden_numbers_and_a_row_of_the_page():
    """Reversed has no numbers of its own: its test compares it with the rule that it reverses."""
    rules = {*scaling.RULES} - {ra.Reversed}
    assert {rope_type_of(rule) for rule in rules} == FORMULAS.keys()
    by_transformers = {ra.Linear, ra.DynamicNTK, ra.YaRN, ra.Llama3, ra.LongRoPE, ra.Proportional}
    assert {
        type(evaluate(call).scaling) for call, *_ in GOLDEN["frequencies"].values()
    } | by_transformers == rules
    page = (docs_blocks.DOCS / "scaling.md").read_text("utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == scaling.__all__


@pytest.mark.parametrize("rule", scaling.OF_CONFIGS.values(), ids=scaling.OF_CONFIGS)
def test_an_error_suggests_a_rule_of_the_rope_type(rule):
    with pytest.raises(SpecError) as error:
        RoPE(8, scaling=rule._rope_type)
    suggested = re.search(r"give (ra\.\w+\(.*?\)), or read", str(error.value))[1]
    assert isinstance(eval(suggested.replace("_factor=...", "_factor=(1.0, 2.0)")), rule)


# ---- rules that depend on the length ----

WAITING = [ra.DynamicNTK(2.0, 4096), ra.LongRoPE(**LONG), ra.Reversed(ra.DynamicNTK(2.0, 4096))]
each_waiting = pytest.mark.parametrize("rule", WAITING, ids=["dynamic", "longrope", "reversed"])


@each_waiting
def test_an_angle_before_the_length_is_an_error(rule):
    rope, x = RoPE(16, scaling=rule), np.ones((3, 16))
    for ask in (
        lambda: rope.frequencies,
        lambda: rope.amplitude,
        lambda: rope.apply(x, range(3)),
        lambda: ra.apply(x, range(3), rope),
        lambda: ra.apply(x, range(3), scaling=rule),
        lambda: rope.rotation(range(3), like=x),
        lambda: rope.rotation_xpos(range(3), like=x),
        lambda: rope.matrix(0),
    ):
        with pytest.raises(SpecError, match=r"at_length\(n\)"):
            ask()


@each_waiting
def test_lengths_that_mean_the_same_give_equal_ropes(rule):
    """A rope is a static argument of jit: lengths with equal frequencies must give equal ropes."""
    rope = RoPE(16, scaling=rule)
    assert rope.at_length(1) == rope.at_length(4096) != rope.at_length(4097)
    assert hash(rope.at_length(1)) == hash(rope.at_length(4096))
    assert rope.at_length(4097).at_length(7) == rope.at_length(7)


def test_longrope_has_two_ropes():
    """The long list begins beyond the trained length (sglang begins one position early)."""
    rope = RoPE(16, scaling=ra.LongRoPE(**LONG))
    assert rope.at_length(4097) == rope.at_length(10**6)
    assert rope.at_length(4096).frequencies != rope.at_length(4097).frequencies


def test_dynamic_does_not_depend_on_the_calls_before():
    """transformers #25104: a long call changed the frequencies of later short calls."""
    rope = RoPE(16, scaling=ra.DynamicNTK(2.0, 64))
    x = np.random.default_rng(0).standard_normal((3, 16))
    first = rope.at_length(10).apply(x, range(3))
    assert not np.array_equal(rope.at_length(1000).apply(x, range(3)), first)
    np.testing.assert_array_equal(rope.at_length(10).apply(x, range(3)), first)
    np.testing.assert_array_equal(RoPE(16).apply(x, range(3)), first)


def test_at_length_of_other_ropes_is_the_rope():
    for rope in (RoPE(16), RoPE(16, scaling=ra.YaRN(4.0, 4096))):
        assert rope.at_length(10**6) is rope


@pytest.mark.parametrize("length", [0, -1, 2.0, True, "8", None, 10**400], ids=str)
def test_invalid_lengths(length):
    rope = RoPE(16, scaling=ra.DynamicNTK(2.0, 4096))
    with pytest.raises(SpecError, match=r"length|range of floats"):
        rope.at_length(length).frequencies  # noqa: B018


# ---- errors ----


@refusals("scaling")
def test_refused(call, error, words):
    refused(error, words, lambda: evaluate(call))


def test_numbers_become_plain_ones():
    assert ra.Linear(np.float32(4)) == ra.Linear(4)
    assert type(ra.Linear(np.int64(4)).factor) is float
    assert type(ra.NTKAware(4, np.str_("base")).variant) is str
    rule = ra.LongRoPE([np.float32(1)] * 2, np.ones(2).tolist(), np.int64(64), length=np.int32(3))
    assert rule == ra.LongRoPE((1.0, 1.0), (1, 1), 64, length=1)
    assert {type(v) for v in dataclasses.astuple(rule)} <= {tuple, int, float, type(None)}


def test_a_rule_and_its_rope_are_values():
    yarn = ra.YaRN(4.0, 64)
    rules = ra.Linear(2.0), yarn, ra.LongRoPE(**LONG, length=5), ra.Reversed(), ra.Reversed(yarn), *WAITING
    for value in (*rules, *(RoPE(16, scaling=rule) for rule in rules)):
        assert eval(repr(value), vars(ra)) == value
        assert pickle.loads(pickle.dumps(value)) == value
        assert hash(pickle.loads(pickle.dumps(value))) == hash(value)
        with pytest.raises(AttributeError):  # FrozenInstanceError is one
            value.factor = 3.0


@pytest.mark.parametrize("name", ["Linear", "Llama3", "LongRoPE", "Reversed"])
def test_records_without_fields_are_refused(name):
    """`object.__new__` makes them, even where the class has defaults; so does tracing by Dynamo."""
    rule = object.__new__(getattr(ra, name))
    for make in (lambda: RoPE(8, scaling=rule), lambda: ra.apply(np.ones(8), 1, scaling=rule)):
        with pytest.raises(SpecError, match=f"{name} is without its fields") as caught:
            make()
        assert faults_of(str(caught.value)) == []


def test_unpickled_records_are_checked():
    """pickle sets fields without checking them."""
    axes, rule = ra.Axes((0, 0)), ra.Linear(2.0)
    vars(axes)["coordinates"], vars(rule)["factor"] = (0, -1), -2.0
    for fields, message in (
        ({"axes": axes}, r"coordinates\[1\] is -1"),
        ({"scaling": rule}, "factor is -2.0"),
    ):
        with pytest.raises(SpecError, match=message):
            RoPE(4, **pickle.loads(pickle.dumps(fields)))
