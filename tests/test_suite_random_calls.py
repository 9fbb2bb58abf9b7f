"""The suite's random calls, calls as text, and the simplest call that fails."""

import json
import os

import child
import faults
import numpy as np
import pytest

import rope_array as ra
from rope_array.testing import Target, _shrink, run_checks
from rope_array.testing._call import fits
from rope_array.testing._cover import covering, resolved
from rope_array.testing._examples import draw_cases, extra_checks
from rope_array.testing._factors import FACTORS, CallFactors, read_call
from rope_array.testing._find_target import resolve
from rope_array.testing._judge import Judge
from rope_array.testing._observe import check_call
from rope_array.testing._outcome import FAILED, INAPPLICABLE, PASSED, outcome_of


@faults.each
def wrong_beyond_148_features(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return y * 1.01 if x.dtype == np.float64 and "rotary_start" in spec and x.shape[-1] > 148 else y


def judge(rotate, library="numpy"):
    return Judge(faults.target(rotate, library))


def detail(check, judge):
    outcome, text = outcome_of(check, judge)
    assert outcome == FAILED, text
    return text


def test_random_calls_find_and_simplify_a_planted_fault():
    (examples,) = extra_checks(300, seed=0)
    (printed,) = extra_checks(cases=["dtype=float64 width=150 rotary_start=2"])
    for check in (examples, printed):
        text = detail(check, judge(wrong_beyond_148_features))
        assert text.startswith("wrong with dtype=float64 width=150 rotary_start=2; right with dtype=float32")


@pytest.mark.parametrize("name", FACTORS)
def test_simplifying_ends_if_all_but_the_plain_value_fail(name):
    judge_of_numpy = Judge(resolve("numpy"))
    plain = judge_of_numpy.plain
    for level in FACTORS[name].levels:
        call = resolved(judge_of_numpy, plain.replace(**{name: level}))
        simpler = _shrink.simplified(call, plain, lambda c: getattr(c, name) != getattr(plain, name))
        assert simpler.differing(plain) == call.differing(plain)


def test_random_calls_are_judged_after_the_calls_for_observers():
    @faults.each
    def wrong_by_halves(x, pos, **spec):
        return ra.apply(x, pos, **spec) * (2 if spec.get("pairing") == "half" else 1)

    report = run_checks(wrong_by_halves, only=["inputs_unchanged"], examples=60)
    assert [one.outcome for one in report.results] == [PASSED, FAILED]


def test_the_library_passes_random_calls_and_cases():
    cases = ("rotary_dim=most", "pairing=other out_pairing=other width=64", "layout=transposed kind=int32")
    for check in extra_checks(150, seed=3, cases=cases):
        assert outcome_of(check, judge(ra.apply)) == (PASSED, "")


def writes_x(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    for array in x if isinstance(x, tuple) else (x,):
        if "base" in spec and array.flags.writeable:
            array[..., 0] = 0
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
    (case_check,) = extra_checks(cases=[case])
    for check in (case_check, *extra_checks(200)):
        assert detail(check, judge(rotate)).startswith(f"{observer}: ")
    observing = judge(rotate)
    observing.reported.add(observer)
    assert not outcome_of(case_check, observing)[1].startswith(observer)


def test_calls_depend_on_the_seed_only():
    """The calls are the same in another process, whose hashes of strings differ."""
    code = """
        from rope_array.testing import _examples, _find_target, _judge
        judge = _judge.Judge(_find_target.resolve("numpy"))
        print(*map(repr, _examples.draw_cases(judge, 30, 5)), sep="\\n")
        """
    drawn, shorter, reseeded = (
        list(draw_cases(Judge(resolve("numpy")), *call)) for call in ((30, 5), (10, 5), (30, 6))
    )
    assert child.run(code, PYTHONHASHSEED="1").splitlines() == [repr(case) for case in drawn]
    assert drawn[:10] == shorter
    assert drawn != reseeded


def test_drawn_cases_use_every_factor_and_are_read_back_from_their_text():
    judge_of_numpy, differing = Judge(resolve("numpy")), set()
    plain = judge_of_numpy.plain
    for case in draw_cases(judge_of_numpy, 300, 0):
        text = case.text(plain)
        assert read_call(text, plain) == case
        assert fits(judge_of_numpy, case), text
        differing |= {*case.differing(plain)}
    assert differing == {*FACTORS} - {"gradient"}  # NumPy has none
    call = CallFactors(rows=(2, 3, 1), order=(40,))  # of one position
    assert read_call(call.text(CallFactors()), CallFactors()) == call


@pytest.mark.library("torch")
def test_random_calls_judge_gradients():
    @faults.each
    def rotate(x, pos, **spec):
        y = ra.apply(x, pos, **spec)
        return y.detach() + 0 * x if y.requires_grad else y

    (examples,) = extra_checks(100)
    assert "wrong with gradient=contiguous" in detail(examples, judge(rotate, "torch"))


def test_random_calls_of_limited_code_are_within_its_claims():
    limited = faults.refusing(
        lambda x, p, s: x.shape[-1] != 32 or np.max(p) > 99 or np.min(p) < 0, IndexError, base_only=True
    )
    lacks = {"batch_positions": "one row of positions", "python_positions": "arrays only"}
    claims = {"head_dim": 32, "furthest": 99, "positions": "offset", "fields": ("base",), "lacks": lacks}
    (examples,) = extra_checks(100)
    assert outcome_of(examples, Judge(Target(limited, declared=True, **claims))) == (PASSED, "")


def test_random_calls_that_are_all_refused_do_not_apply():
    refuses = faults.refusing(lambda *call: True, NotImplementedError, base_only=True)
    (examples,) = extra_checks(5)
    assert outcome_of(examples, Judge(Target(refuses)))[0] == INAPPLICABLE


UNREADABLE = {
    "width": "cannot read 'width'; give factors as NAME=VALUE",
    "size=3": "cannot read 'size=3'; give factors as NAME=VALUE, of dtype, rows",
    "width=wide": "cannot read 'width=wide': give a whole number",
    "base=ten": "cannot read 'base=ten': give a number",
    "width=8 rows=2,5 width=16": "width is given twice",
    "rows=-1,1": "give sizes of 0 or more",
    "pairing=both": "give one of interleaved, half",
    "positions=SB": "give one of S, scalar, 1",
    "scaling=3": "give one of linear, ntk, dynamic, .* or a rule in JSON",
    "layout=diagonal": "unknown layout 'diagonal'; give one of transposed, a_slice",
}
IMPOSSIBLE = {"rotary_dim=64": "its values contradict", "rows=99999,99999,99999": "give 268,435,456 at most"}


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_case_that_cannot_be_read_is_an_error(text):
    with pytest.raises(ValueError, match=UNREADABLE[text]):
        extra_checks(cases=[text], target=resolve("numpy"))


@pytest.mark.parametrize("text", IMPOSSIBLE)
def test_a_case_that_no_call_can_have_fails(text):
    (case,) = extra_checks(cases=[text])
    assert IMPOSSIBLE[text] in detail(case, judge(ra.apply))


def test_a_rule_in_json_is_a_scaling():
    rule = json.dumps({"rope_type": "linear", "factor": 2.5}, separators=(",", ":"))
    case = read_call(f"scaling={rule} positions=scalar rows=4", CallFactors())
    assert (case.positions, case.rows) == ("", (4,))
    assert check_call(judge(ra.apply), case)


def test_a_fault_of_the_plain_call_is_told():
    (case,) = extra_checks(cases=["width=64 pairing=half"])
    text = detail(case, judge(faults.named("scaled")))
    assert text.startswith("the plain call is wrong: ")


def test_covering_combines_the_values_of_each_group():
    levels = {"a": [0, 1, 2], "b": [0, 1], "c": [0, 1], "d": [0]}
    groups = [("a", "b", "c"), ("a", "d")]

    def make(values):
        return None if values["a"] == values["b"] == 1 else tuple(values.values())

    cases = list(covering(levels, groups, make))
    assert {case[:3] for case in cases} == {
        (a, b, c) for a in range(3) for b in range(2) for c in range(2) if not a == b == 1
    }
    assert cases == list(covering(levels, groups, make))
