"""Tests of the checks: every mutant fails the checks named for it, and correct code passes."""

import json
import time
from pathlib import Path

import faults
import pytest

import rope_array as ra
from rope_array.testing import Target, _threads
from rope_array.testing._checks import checks
from rope_array.testing._failure import Failure
from rope_array.testing._judge import Judge
from rope_array.testing._observe import OBSERVERS
from rope_array.testing._outcome import FAILED, PASSED, outcome_of


def base_name(check):
    return check.name.partition("[")[0]


def of_library(name, library):
    """Return a parameter with the mark of conftest.py's name of a library."""
    session = library.partition(":")[0].replace("array_api_strict", "strict")
    return pytest.param(name, id=name, marks=pytest.mark.library(session))


MUTANTS = faults.load_mutants()
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
RESULTS = Path(__file__).parents[1] / "bench" / "results"
OBSERVED = {each.check for each in OBSERVERS}


@pytest.mark.parametrize("name", [of_library(mutant.name, mutant.library) for mutant in MUTANTS])
def test_a_mutant_fails_its_named_checks(name):
    judge, missing = Judge(BY_NAME[name].target(), thorough=True), set(BY_NAME[name].failed_checks)
    judge.explains = False  # no search for the simplest call that fails
    if missing <= OBSERVED:  # let no other observers watch, to halve the time
        judge.observed = {check: Failure("") for check in OBSERVED - missing}
    for check in checks():
        # A check of several dtypes fails if it does for one.
        if base_name(check) in missing and outcome_of(check, judge)[0] == FAILED:
            missing.remove(base_name(check))
    assert missing == set()


@pytest.mark.parametrize(
    "library", [of_library(name, name) for name in ("array_api_strict:device1", "jax:x64")]
)
def test_without_the_fault_the_same_checks_pass(library):
    """A check that always fails would fail for every mutant too; `test_conforms` has the other libraries."""
    named = {check for mutant in MUTANTS if mutant.library == library for check in mutant.failed_checks}
    judge = Judge(faults.target(ra.apply, library), thorough=True)
    outcomes = {check.name: outcome_of(check, judge) for check in checks() if base_name(check) in named}
    assert {name: outcome for name, outcome in outcomes.items() if outcome[0] == FAILED} == {}
    assert PASSED in {outcome for outcome, _ in outcomes.values()}


def test_mutants_have_unique_names():
    assert len(BY_NAME) == len(MUTANTS) >= 20


def test_every_check_kills_a_mutant():
    named = {check for mutant in MUTANTS for check in mutant.failed_checks}
    # Its mutant ends the process: see test_suite.py. The other needs eight devices: see test_jax.py.
    in_a_child = {"refusals_raise", "positions_of_a_shard"}
    assert sorted({base_name(check) for check in checks()} ^ (named | in_a_child)) == []


@pytest.mark.library("numpy")
def test_slow_code_is_called_less_often_from_threads(monkeypatch):
    """Code of JAX that compiles at each call takes 0.1 s for it; the check would not end in time."""
    calls = []

    def rotate(x, pos):
        calls.append(time.sleep(0.002))
        return ra.apply(x, pos)

    monkeypatch.setattr(_threads, "_MOST_SECONDS", 0.1)
    (named,) = (check for check in checks() if check.name == "threads_of_many_positions")
    assert outcome_of(named, Judge(Target(rotate)))[0] == PASSED
    assert 72 < len(calls) < 400  # 864 otherwise, and the trial calls


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*-kill-matrix-*.json")), ids=lambda path: path.stem)
def test_a_kill_matrix_has_the_checks_and_mutants_of_today(path):
    """A matrix of an older suite says nothing about today's checks: the session `matrix` runs it again."""
    numbers = json.loads(path.read_text("utf-8"))["numbers"]
    killers = {name for names in numbers["mutants"].values() for name in names}
    applied = {name for names in numbers["applied"].values() for name in names}
    assert (killers | applied) - {base_name(check) for check in checks()} == set()
    assert numbers["mutants"].keys() - BY_NAME.keys() == set()
