"""The suite's random calls, calls as text, and the simplest call that fails."""

import json
import os
import subprocess
import sys

import faults
import numpy as np
import pytest

import rope_array as ra
from rope_array.testing import Target, _shrink, run_checks
from rope_array.testing._call import fits, plain_call
from rope_array.testing._checks import checks
from rope_array.testing._cover import covering, resolved
from rope_array.testing._examples import draw_cases, extra_checks
from rope_array.testing._factors import FACTORS, Call, read_call
from rope_array.testing._judge import Judge
from rope_array.testing._names import resolve
from rope_array.testing._observe import check_call
from rope_array.testing._outcome import FAILED, INAPPLICABLE, PASSED, outcome_of


@faults.each
def wrong_beyond_148_features(x, pos, **spec):
    """Rotate float64 with a start wrongly at head_dims that no fixed check has."""
    y = ra.apply(x, pos, **spec)
    wrong = x.dtype == np.float64 and "rotary_start" in spec and 148 < x.shape[-1] < 190
    return y * 1.01 if wrong and x.shape[-1] != 160 and x.shape[-1] != 176 else y


def judge(rotate, library="numpy"):
    return Judge(faults.target(rotate, library))


def detail(check, judge):
    outcome, text = outcome_of(check, judge)
    assert outcome == FAILED, text
    return text


@pytest.mark.parametrize("with_hypothesis", [True, False], ids=["hypothesis", "no hypothesis"])
def test_random_calls_find_and_simplify_a_planted_fault(with_hypothesis, monkeypatch):
    if with_hypothesis:
        pytest.importorskip("hypothesis")
    else:
        monkeypatch.setattr(_shrink, "find_spec", lambda name: None)
    (examples,) = extra_checks(1500, seed=0)
    (printed,) = extra_checks(cases=["dtype=float64 width=150 rotary_start=2"])
    for check in (examples, printed):
        text = detail(check, judge(wrong_beyond_148_features))
        assert text.startswith("wrong with dtype=float64 width=150 rotary_start=2; right with dtype=float32")


@pytest.mark.parametrize("name", FACTORS)
def test_simplifying_ends_if_all_but_the_plain_value_fail(name):
    one = Judge(resolve("numpy"))
    plain = plain_call(one)
    for level in FACTORS[name].levels:
        call = resolved(one, plain.replace(**{name: level}))
        simpler = _shrink.simplified(call, plain, lambda c: getattr(c, name) != getattr(plain, name))
        assert simpler.differing(plain) == call.differing(plain)


def test_random_calls_are_judged_after_the_calls_for_observers():
    @faults.each
    def wrong_by_halves(x, pos, **spec):
        return ra.apply(x, pos, **spec) * (2 if spec.get("pairing") == "half" else 1)

    report = run_checks(wrong_by_halves, only=["inputs_unchanged"], examples=60)
    assert [one.outcome for one in report.results] == [PASSED, FAILED]


def test_fixed_checks_miss_the_planted_fault():
    """Only a random call finds it, so that the tests above show what random calls add."""
    one, names = judge(wrong_beyond_148_features), ("widths_and_fields", "rotary_starts_of_wide_heads")
    assert {outcome_of(check, one)[0] for check in checks() if check.name in names} == {PASSED}


def test_the_library_passes_random_calls_and_cases():
    cases = ("rotary_dim=most", "pairing=other out_pairing=other width=64", "layout=transposed kind=int32")
    for check in extra_checks(150, seed=3, cases=cases):
        assert outcome_of(check, judge(ra.apply)) == (PASSED, "")


def writes_x(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    for one in x if isinstance(x, tuple) else (x,):
        if "base" in spec and one.flags.writeable:
            one[..., 0] = 0
    return y


def sets_threads(x, pos, **spec):
    if spec.get("pairing") == "half":
        os.environ["OMP_NUM_THREADS"] = "1" if os.environ.get("OMP_NUM_THREADS") == "2" else "2"
    return ra.apply(x, pos, **spec)


@pytest.mark.parametrize(
    ("rotate", "case", "observer"),
    [(writes_x, "base=500.0", "inputs_unchanged"), (sets_threads, "pairing=half", "settings_unchanged")],
)
def test_what_an_observer_sees_fails_the_case_or_the_random_calls(rotate, case, observer, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (given,) = extra_checks(cases=[case])
    for check in (given, *extra_checks(200)):
        assert detail(check, judge(rotate)).startswith(f"{observer}: ")
    one = judge(rotate)
    one.reported.add(observer)
    assert not outcome_of(given, one)[1].startswith(observer)


def test_calls_depend_on_the_seed_only():
    """The calls are the same in another process, whose hashes of strings differ."""
    code = (
        "from rope_array.testing import _examples, _judge, _names\n"
        "judge = _judge.Judge(_names.resolve('numpy'))\n"
        "print(*map(repr, _examples.draw_cases(judge, 30, 5)), sep='\\n')"
    )
    done = [
        subprocess.run(
            [sys.executable, "-P", "-c", code], env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True, text=True, check=True,
        ).stdout
        for hashes in ("1", "2")
    ]  # fmt: skip
    assert done[0] == done[1]
    drawn = list(draw_cases(Judge(resolve("numpy")), 30, 5))
    assert done[0].splitlines() == [repr(case) for case in drawn]
    assert drawn[:10] == draw_cases(Judge(resolve("numpy")), 10, 5)
    assert drawn != list(draw_cases(Judge(resolve("numpy")), 30, 6))


def test_every_drawn_case_is_read_back_from_its_text():
    one = Judge(resolve("numpy"))
    for case in draw_cases(one, 200, 0):
        text = case.text(plain_call(one))
        assert read_call(text, plain_call(one)) == case
        assert fits(one, case), text
    call = Call(rows=(2, 3, 1), order=(40,))  # of one position
    assert read_call(call.text(Call()), Call()) == call


def test_random_calls_use_every_factor():
    one = Judge(resolve("numpy"))
    differing = {name for case in draw_cases(one, 300, 0) for name in case.differing(plain_call(one))}
    assert differing == {*FACTORS} - {"gradient"}  # NumPy has none


@pytest.mark.library("torch")
def test_random_calls_judge_gradients():
    @faults.each
    def rotate(x, pos, **spec):
        y = ra.apply(x, pos, **spec)
        return y.detach() + 0 * x if y.requires_grad else y

    (examples,) = extra_checks(100)
    assert "wrong with gradient=contiguous" in detail(examples, judge(rotate, "torch"))


def test_random_calls_of_limited_code_are_within_its_claims():
    @faults.each
    def table(x, pos, base=10000.0):
        if x.shape[-1] != 32 or np.max(pos) > 99 or np.min(pos) < 0:
            raise IndexError("no such row")
        return ra.apply(x, pos, base=base)

    lacks = {"batch_positions": "one row of positions", "python_positions": "arrays only"}
    target = Target(
        table, head_dim=32, furthest=99, positions="offset", declared=True, fields=("base",), lacks=lacks
    )
    (examples,) = extra_checks(100)
    assert outcome_of(examples, Judge(target)) == (PASSED, "")


def test_random_calls_that_are_all_refused_do_not_apply():
    def refuses(x, pos):
        raise NotImplementedError

    (examples,) = extra_checks(5)
    assert outcome_of(examples, Judge(Target(refuses)))[0] == INAPPLICABLE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("width", "cannot read 'width'; give factors as NAME=VALUE"),
        ("size=3", "cannot read 'size=3'; give factors as NAME=VALUE, of dtype, rows"),
        ("width=wide", "cannot read 'width=wide': give a whole number"),
        ("base=ten", "cannot read 'base=ten': give a number"),
        ("width=8 rows=2,5 width=16", "width is given twice"),
        ("rows=-1,1", "give sizes of 0 or more"),
        ("inverse=no", "give one of True"),
        ("pairing=both", "give one of interleaved, half"),
        ("positions=SB", "give one of S, scalar, 1"),
        ("scaling=3", "give one of yarn, ntk, linear, .* or a rule in JSON"),
        ("kind=int65", "give one of int64, int32"),
        ("layout=diagonal", "unknown layout 'diagonal'; give one of transposed, a_slice"),
    ],
    ids=lambda text: text.partition("=")[0] if "=" in text else None,
)
def test_a_case_that_cannot_be_read_is_an_error(text, message):
    with pytest.raises(ValueError, match=message):
        extra_checks(cases=[text], target=resolve("numpy"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rotary_dim=64", "its values contradict each other"),
        ("rows=99999,99999,99999", "elements; give 268,435,456 at most"),
    ],
)
def test_a_case_that_no_call_can_have_fails(text, message):
    (case,) = extra_checks(cases=[text])
    assert message in detail(case, judge(ra.apply))


def test_a_rule_in_json_is_a_scaling():
    rule = json.dumps({"rope_type": "linear", "factor": 2.5}, separators=(",", ":"))
    case = read_call(f"scaling={rule} positions=scalar rows=4", Call())
    assert (case.positions, case.rows) == ("", (4,))
    assert check_call(judge(ra.apply), case)


def test_a_fault_of_the_plain_call_is_told():
    (case,) = extra_checks(cases=["width=64 pairing=half"])
    text = detail(case, judge(faults.named("scaled")))
    assert text.startswith("the plain call is wrong: ")


def test_a_fault_that_does_not_repeat_is_told():
    calls = iter(range(100))

    @faults.each
    def first_wrong(x, pos, **spec):
        return ra.apply(x, pos, **spec) * (1 if next(calls) else np.asarray(2, x.dtype))

    (case,) = extra_checks(cases=["width=64"])
    assert "right if the call is repeated" in detail(case, judge(first_wrong))


def test_covering_combines_the_values_of_each_group():
    levels = {"a": [0, 1, 2], "b": [0, 1], "c": [0, 1], "d": [0]}
    groups = [("a", "b", "c"), ("a", "d")]

    def make(values):
        return None if values["a"] == values["b"] == 1 else tuple(values.values())

    made = list(covering(levels, groups, make))
    assert {case[:3] for case in made} == {
        (a, b, c) for a in range(3) for b in range(2) for c in range(2) if not a == b == 1
    }
    assert made == list(covering(levels, groups, make))
