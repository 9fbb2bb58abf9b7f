"""The reports of `run_checks` and `check_backend`, and the checks that a target gets."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from conftest import sample
from faults import refusing

import rope_array as ra
from rope_array.testing import ConformanceError, Target, check_backend, iter_checks, run_checks
from rope_array.testing._capability_parts import PART_NAMES
from rope_array.testing._checks import checks
from rope_array.testing._claims import CAPABILITIES
from rope_array.testing._find_target import resolve
from rope_array.testing._libraries import LIBRARIES, MissingLibrary

FEWER_BUT_WIDTHS = {"dtypes": ("float32",), "layout": "sd"}
FEWER = {**FEWER_BUT_WIDTHS, "head_dim": 16}


def rotate(x, pos, base=10000.0):
    return ra.apply(x, pos, base=base)


def off(x, pos, base=10000.0):
    """A fault with any base but the default."""
    return ra.apply(x, pos, base=base) if base == 10000.0 else ra.apply(x, pos, base=base + 1)


def names_of(report, outcome):
    return {result.name for result in report.of(outcome)}


def test_checks_have_stable_names_and_reasons():
    """Users list expected failures by name: the changelog has removed and changed names."""
    assert len({check.name for check in checks()}) == len(checks())
    for check in checks():
        assert len(check.requirement) > 20
        assert check.requirement.endswith(".")
        assert set(check.needs) <= {*CAPABILITIES, *PART_NAMES}


def test_iter_checks_runs_applicable_checks():
    runs = {check.name: run for check, run in iter_checks(off, **FEWER)}
    assert "inv_freq" not in runs
    runs["definition"]()
    with pytest.raises(AssertionError):
        runs["base"]()


def test_named_checks_of_a_function():
    report = check_backend(off, only=["norm", "kind"], **FEWER)
    assert names_of(report, "passed") == {"kind[float32]", "norm"}
    (result,) = run_checks(Target(off, requires=["inv_freq"], **FEWER), only=("base",)).results
    assert (result.name, result.outcome) == ("base", "failed")


def test_expected_failures_are_strict_both_ways():
    judged = {**FEWER, "only": ["base", "definition", "inv_freq"]}
    failing = {"base": "known, a link"}
    assert check_backend(off, expected_failures=failing, **judged).ok
    with pytest.raises(ConformanceError, match="base"):
        check_backend(off, **judged)
    for name in ("definition", "inv_freq"):  # it passes, or does not apply
        with pytest.raises(ConformanceError, match=f"{name}: unexpected pass"):
            check_backend(off, expected_failures={**failing, name: "why"}, **judged)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": "norm"}, "only is 'norm'; give a collection of names"),
        ({"expected_failures": {"base": " "}}, "give the reason"),
        ({"expected_failures": {"acuracy": "why"}}, "no check is named 'acuracy'; similar: accuracy_"),
        ({"angels": "exact"}, r"unknown claim 'angels'; did you mean angles\?"),
    ],
)
def test_keywords_that_are_unusable(options, message):
    with pytest.raises(ValueError, match=message):
        check_backend(off, **options)


def test_targets_are_checked_when_they_are_made(monkeypatch):
    with pytest.raises(ValueError, match="give a callable"):
        Target(np.ones(2))
    with pytest.raises(ValueError, match="has its claims already"):
        check_backend(Target(rotate), angles="exact")
    monkeypatch.setattr(type(LIBRARIES["cupy"]), "module", "no_such_library")
    vars(LIBRARIES["cupy"]).pop("native", None)
    for target, claims in (("cupy", {}), (rotate, {"library": "cupy"})):
        with pytest.raises(MissingLibrary, match="needs the package no_such_library"):
            resolve(target, **claims)


def test_worst_errors_are_measured():
    """Positions off by half a unit in the last place of float32 are off by hundredths at 2^20."""

    def of_float32_positions(x, pos, base=10000.0):
        return ra.apply(x, np.asarray(pos, np.float64) * (1 + 2**-24), base=base)

    far = ("accuracy_2e20", "accuracy_2e24", "accuracy_int32")
    near = ("definition", "accuracy_small", "accuracy_2e16")
    claims = {"angles": "float32", "arithmetic": "float32", "dtypes": ("float32",)}
    report = run_checks(of_float32_positions, only=(*near, *far), **claims)
    assert {name.partition("[")[0] for name in names_of(report, "failed")} == {*far}
    assert 1e-2 < report.worst["2^20"] < 1
    assert run_checks(rotate, only=far, **FEWER).worst["2^20"] < 3e-7


@pytest.mark.parametrize("name", ["numpy", pytest.param("torch", marks=pytest.mark.library("torch"))])
def test_strided_arrays_have_other_strides(name):
    lib = LIBRARIES[name]
    array = lib.asarray(np.arange(240.0).reshape(2, 3, 5, 8), "float32")
    views = dict(lib.strided(array))
    assert {"transposed", "a slice", "every second"} <= views.keys()
    for how, view in views.items():
        assert np.array_equal(lib.to_numpy(view), lib.to_numpy(array))
        assert lib.dtype_of(view) == "float32"
        packed = lib.strides_of(view) == lib.strides_of(array)
        assert packed == (how in ("a slice", "read-only")), how  # "a slice" starts inside of a buffer


@pytest.mark.parametrize("positions", ["offset", "arange"])
def test_only_claimed_positions_are_tried(positions):
    tried = []

    def recording(x, pos, base=10000.0):
        tried.append(np.asarray(pos))
        return ra.apply(x, pos, base=base)

    claims = {"furthest": 2**16, "lacks": {"tuple": "takes one array"}, "dtypes": ("float32",)}
    names = ("definition", "accuracy_2e16", "combinations", "long_sequences_from_an_offset")
    check_backend(recording, positions=positions, only=sample(*names), **claims)
    asked = [pos for pos in tried if pos.ndim == 1]
    assert all((np.diff(pos) == 1).all() for pos in asked)
    assert all(pos[:1].tolist() in ([], [0]) for pos in asked) == (positions == "arange")
    assert max(np.max(np.abs(pos.astype(float)), initial=0) for pos in tried) <= 2**16


class Unusual(BaseException):
    pass


class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError


# Raised by the function that the suite judges, never caught by it: none may end the run.
ERRORS = [NotImplementedError(), SystemExit(0), Unusual(), Unreadable(), ValueError('give --case "x')]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_function_that_refuses_every_call_fails(error):
    def rotate(x, pos):
        raise error

    assert "definition" in names_of(run_checks(rotate, only=["definition", "norm", "base"]), "failed")


@pytest.mark.parametrize("error", [ValueError, SystemExit, Unusual])
def test_an_exception_of_every_call_is_the_likely_cause(error):
    def rotate(x, pos):
        raise error("no table")

    report = run_checks(rotate, only=["definition", "norm", "base"])
    assert report.cause.text.startswith(f"rotate(x, pos) raises {error.__name__}: no table")


def test_a_target_that_changes_settings_fails_one_check():
    def rotate(x, pos, base=10000.0):
        y = ra.apply(x, pos, base=base)
        np.seterr(all="raise")
        return y

    report = run_checks(rotate, only=["definition", "settings_unchanged", "nonfinite", "norm"])
    assert names_of(report, "failed") == {"settings_unchanged"}


def plain_inputs(q, k, pos, norm=None, eps=1e-6, **options):
    """Norm by NumPy's mean, whose sum has another order; without caches, out, or other options."""

    def heads(x, w):
        n = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
        return n if w is None else n * w

    pair = [
        x if norm is None or x is None else heads(x, w) for x, w in zip((q, k), norm or "qk", strict=True)
    ]
    return [None if x is None else ra.apply(x, pos, **options) for x in pair]


def test_attention_inputs_of_other_code_are_judged_within_bounds():
    """Its capabilities are claimed with the function alone; the bits of the norm only with exact angles."""
    lacks = dict.fromkeys(("caches", "out"), "returns new arrays")
    claims = {"fields": ("rotary_dim", "rotary_start"), "dtypes": ("float32",), "declared": True}
    only = ["norm_of_slices", "norm_in_order", "cache_slots", "inputs_in_place"]
    target = Target(ra.apply, attention_inputs=plain_inputs, lacks=lacks, **claims)
    report = run_checks(target, only=only)
    assert names_of(report, "failed") == set()
    assert names_of(report, "passed") == {"norm_of_slices"}
    assert names_of(run_checks(replace(target, angles="exact"), only=only), "failed") == {
        "norm_in_order[float32]"
    }
    assert "attention_inputs" not in Target(ra.apply, **claims).claimed


def test_names_of_targets_have_no_address():
    class Module:
        def __call__(self, x, pos):
            return rotate(x, pos)

    assert Target(Module()).name.endswith("Module")
    assert Target(functools.partial(rotate, base=500.0)).name.endswith("test_suite:rotate")


@pytest.mark.parametrize("exception", [SystemExit, GeneratorExit])
def test_an_exit_in_a_trial_call_is_no_refusal(exception):
    rotate = refusing(lambda x, p, s: x.shape[-1] == 8, exception, base_only=True)
    # The check of refusals is run in addition to the named checks.
    (failed,) = run_checks(rotate, only=["definition", "narrow_heads"], **FEWER_BUT_WIDTHS).of("failed")
    assert failed.name == "refusals_raise"
    assert exception.__name__ in failed.detail


@pytest.mark.library("torch")
def test_an_exit_under_a_map_is_no_refusal():
    torch = pytest.importorskip("torch")

    def rotate(x, pos, base=10000.0):
        if base != 10000.0 and torch._C._functorch.is_batchedtensor(x):
            raise SystemExit
        return ra.apply(x, pos, base=base)

    report = run_checks(rotate, library="torch", only=["vmap"], dtypes=["float32"])
    assert [result.name for result in report.of("failed")] == ["vmap"]
