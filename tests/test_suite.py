"""The claims of a target, and the reports of `run_checks` and `check_backend`."""

import functools

import numpy as np
import pytest
from conftest import sample

import rope_array as ra
from rope_array.testing import (
    ConformanceError,
    MissingLibrary,
    Target,
    check_backend,
    iter_checks,
    run_checks,
)
from rope_array.testing._checks import checks
from rope_array.testing._claims import CAPABILITIES
from rope_array.testing._factors import FIELDS
from rope_array.testing._libraries import LIBRARIES
from rope_array.testing._names import resolve
from rope_array.testing._parts import PART_NAMES

FEWER_OF_ANY_WIDTH = {"dtypes": ("float32",), "layout": "sd"}
FEWER = {**FEWER_OF_ANY_WIDTH, "head_dim": 16}


def rotate(x, pos, base=10000.0, pairing="interleaved"):
    return ra.apply(x, pos, base=base, pairing=pairing)


# ---- claims ----


def test_a_signature_is_a_claim():
    target = Target(rotate)
    assert {"base", "pairing"} <= target.claimed
    assert target.declines["rotary_dim"] == "its signature does not name it"


def test_a_default_of_the_signature_is_claimed():
    def by_half(x, pos, pairing="half", base=500.0):
        return ra.apply(x, pos, pairing=pairing, base=base)

    assert check_backend(by_half, only=sample("definition", "pairing", "base"), **FEWER).ok


def test_a_field_that_is_ignored_is_not_claimed():
    target = Target(lambda x, pos, base=10000.0, **more: ra.apply(x, pos, base=base))
    assert "changes nothing" in target.declines["rotary_dim"]
    assert "base" in target.claimed


def test_a_field_passed_in_spec_is_claimed():
    """`**spec` alone claims all fields; a field that changes nothing fails its check."""
    target = Target(lambda x, pos, **spec: ra.apply(x, pos), dtypes=("float32",))
    assert set(FIELDS) <= target.claimed
    names = {"base", "pairing", "inverse"}
    assert names <= {result.name for result in run_checks(target, only=sample(*names)).of("failed")}


def test_a_refused_field_is_not_claimed():
    def refusing(x, pos, **spec):
        if "inv_freq" in spec:
            raise NotImplementedError("no frequencies")
        return ra.apply(x, pos, **spec)

    report = check_backend(refusing, angles="exact", only=sample("inv_freq", "combinations"), **FEWER)
    assert report.target.declines["inv_freq"] == "refuses it: NotImplementedError: no frequencies"


def test_a_fault_in_a_field_is_no_refusal():
    def broken(x, pos, **spec):
        if "base" in spec:
            raise ZeroDivisionError
        return ra.apply(x, pos, **spec)

    assert "base" in {
        result.name for result in run_checks(broken, only=sample("base", "pairing"), **FEWER).of("failed")
    }


def test_refused_calls_are_listed():
    def only_rows(x, pos, base=10000.0):
        if np.ndim(pos) != 1:
            raise ValueError("positions of one axis only")
        return ra.apply(x, pos, base=base)

    declines = Target(only_rows).declines
    assert "positions of one axis only" in declines["batch_positions"]


def test_a_declared_target_is_not_tried():
    target = Target(rotate, fields=("base",), declared=True)
    assert {"tuple", "float_positions"} <= target.claimed


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sbhd", "bsd", "hsd", "shd", "sd"])
def test_axes_of_its_own(layout):
    def served(x, pos, base=10000.0):
        assert x.ndim == len(layout)
        moved = np.moveaxis(x, layout.index("s"), -2)
        if np.ndim(pos) == 2:  # one row of positions for each batch
            pos = np.reshape(pos, (len(pos),) + (1,) * (moved.ndim - 3) + np.shape(pos)[1:])
            moved = np.moveaxis(moved, layout.replace("s", "").index("b"), 0)
            y = ra.apply(moved, pos if moved.ndim > 3 else pos.reshape(len(pos), -1), base=base)
            y = np.moveaxis(y, 0, layout.replace("s", "").index("b"))
        else:
            y = ra.apply(moved, pos, base=base)
        return np.moveaxis(y, -2, layout.index("s"))

    names = ("definition", "ranks", "positions_of_a_batch", "combinations", "memory", "many_batches")
    report = check_backend(served, layout=layout, dtypes=("float32",), only=sample(*names))
    assert "definition" in {result.name for result in report.of("passed")}


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sd"])
def test_axes_that_are_mixed_up_fail(layout):
    def wrong(x, pos, base=10000.0):
        return ra.apply(x, pos[::-1].copy() if np.ndim(pos) else pos, base=base, seq_axis=-2)

    assert not run_checks(wrong, layout=layout, dtypes=("float32",), only=sample("definition")).ok


@pytest.mark.parametrize(
    "name", ["numpy", pytest.param("torch", marks=pytest.mark.library("torch"))], ids=["numpy", "torch"]
)
def test_strided_arrays_have_other_strides(name):
    lib = LIBRARIES[name]
    array = lib.asarray(np.arange(240.0).reshape(2, 3, 5, 8), "float32")
    made = dict(lib.strided(array))
    assert {"transposed", "a slice", "every second"} <= made.keys()
    for how, other in made.items():
        assert np.array_equal(lib.to_numpy(other), lib.to_numpy(array))
        assert lib.dtype_of(other) == "float32"
        strides = other.strides if name == "numpy" else other.stride()
        packed = strides == (array.strides if name == "numpy" else array.stride())
        assert packed == (how in ("a slice", "read-only")), how  # "a slice" starts inside of a buffer


@pytest.mark.parametrize("positions", ["any", "offset", "arange"])
def test_only_claimed_positions_are_tried(positions):
    seen = []

    def recording(x, pos, base=10000.0):
        seen.append(np.asarray(pos))
        return ra.apply(x, pos, base=base)

    lacks = {"tuple": "takes one array"}
    report = check_backend(
        recording, positions=positions, furthest=2**16, lacks=lacks, dtypes=("float32",),
        only=sample("definition", "accuracy_2e16", "positions_offset", "combinations", "many_rows"),
    )  # fmt: skip
    asked = [pos for pos in seen if pos.ndim == 1]
    contiguous = all((np.diff(pos) == 1).all() for pos in asked)
    from_zero = all(pos[:1].tolist() in ([], [0]) for pos in asked)
    assert contiguous == (positions != "any")
    assert from_zero == (positions == "arange")
    assert report.target.claimed.isdisjoint({"any_positions"} if positions != "any" else ())


def test_positions_beyond_a_table_are_not_tried():
    seen = []

    def recording(x, pos, base=10000.0):
        seen.append(np.max(np.abs(np.asarray(pos, dtype=float)), initial=0))
        return ra.apply(x, pos, base=base)

    names = ("accuracy_small", "accuracy_2e16", "combinations", "long_sequences_from_an_offset")
    report = check_backend(recording, furthest=2047, dtypes=("float32",), only=sample(*names))
    assert max(seen) <= 2047
    assert report.target.declines["reaches_2e16"] == "takes positions up to 2,047"


@pytest.mark.parametrize(
    "claims",
    [
        {"library": "nump"}, {"fields": ("bases",)}, {"fixed": {"pairings": "half"}}, {"positions": "all"},
        {"angles": "double"}, {"arithmetic": "bfloat16"}, {"lacks": {"speed": "slow"}}, {"dtypes": ("int8",)},
        {"layout": "hbds"},
    ],
)  # fmt: skip
def test_unknown_claims_are_refused(claims):
    with pytest.raises(ValueError, match=r"unknown|layout"):
        Target(rotate, **claims)


def test_an_object_that_is_not_callable_is_refused():
    with pytest.raises(ValueError, match="give a callable"):
        Target(np.ones(2))


def test_a_target_is_not_claimed_for_twice():
    with pytest.raises(ValueError, match="has its claims already"):
        check_backend(Target(rotate), angles="exact")


# ---- reports ----


def test_checks_have_stable_names_and_reasons():
    """Users list expected failures by name: the changelog has removed and changed names."""
    assert len({each.name for each in checks()}) == len(checks())
    for each in checks():
        assert len(each.requirement) > 20
        assert each.requirement.endswith(".")
        assert set(each.needs) <= {*CAPABILITIES, *PART_NAMES}


def test_iter_checks_runs_applicable_checks():
    ran = [each.name for each, run in iter_checks(rotate, **FEWER) if run() is None]
    assert ran == [result.name for result in run_checks(rotate, **FEWER).of("passed")]


def test_expected_failures_are_strict_both_ways():
    def off(x, pos, base=10000.0):
        return ra.apply(x, pos, base=base) if base == 10000.0 else ra.apply(x, pos, base=base + 1)

    judged = {**FEWER, "only": sample("base", "definition", "inv_freq", "combinations")}
    failing = {result.name: "known, a link" for result in run_checks(off, **judged).of("failed")}
    assert "base" in failing
    assert check_backend(off, expected_failures=failing, **judged).ok
    with pytest.raises(ConformanceError, match="base"):
        check_backend(off, **judged)
    with pytest.raises(ConformanceError, match="definition: unexpected pass"):
        check_backend(off, expected_failures={**failing, "definition": "why"}, **judged)
    with pytest.raises(ConformanceError, match=r"inv_freq: unexpected pass: .* not applicable"):
        check_backend(off, expected_failures={**failing, "inv_freq": "why"}, **judged)


def test_expected_failures_need_a_reason():
    with pytest.raises(ValueError, match="give the reason"):
        check_backend(rotate, expected_failures={"base": " "})
    with pytest.raises(ValueError, match="no check is named 'bases'"):
        check_backend(rotate, expected_failures={"bases": "why"})


def test_a_missing_library_is_an_error(monkeypatch):
    monkeypatch.setattr(type(LIBRARIES["cupy"]), "module", "no_such_library")
    vars(LIBRARIES["cupy"]).pop("native", None)
    with pytest.raises(MissingLibrary, match="needs the package no_such_library"):
        resolve("cupy")


def test_worst_errors_are_measured():
    """A float32 angle at 2^20 is off by hundredths, an exact angle by a rounding."""

    def float32_angles(x, pos, base=10000.0):
        omega = np.float32(base) ** (
            -np.arange(0, x.shape[-1], 2, dtype=np.float32) / np.float32(x.shape[-1])
        )
        angle = np.asarray(pos).astype(np.float32)[..., None] * omega
        cos, sin = np.cos(angle), np.sin(angle)
        if angle.ndim == 3:
            cos, sin = cos[:, None], sin[:, None]
        a, b = x[..., ::2].astype(np.float32), x[..., 1::2].astype(np.float32)
        y = np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)
        return y.astype(x.dtype)

    far = ("accuracy_2e16", "accuracy_2e20", "accuracy_2e24", "accuracy_int32")
    report = run_checks(
        float32_angles, angles="float32", arithmetic="float32", dtypes=("float32",),
        only=sample("definition", "accuracy_small", *far),
    )  # fmt: skip
    failed = {result.name.partition("[")[0] for result in report.of("failed")}
    assert {"accuracy_2e20", "accuracy_2e24", "accuracy_int32"} <= failed
    assert failed.isdisjoint({"accuracy_small", "accuracy_2e16", "definition"})
    assert 1e-2 < report.worst["2^20"] < 1
    assert run_checks(rotate, only=sample(*far), **FEWER).worst["2^20"] < 3e-7


# ---- kinds of targets, and their faults ----


class Tables:
    """A module with tables for one head_dim and positions below `rows`."""

    def __init__(self, head_dim=64, rows=300, base=10000.0):
        angle = np.arange(rows)[:, None] * base ** (-np.arange(0, head_dim, 2) / head_dim)
        self.cos, self.sin = np.cos(angle), np.sin(angle)

    def __call__(self, x, pos):
        if np.any(np.asarray(pos) < 0):
            raise IndexError("rows count from 0")
        cos, sin = self.cos[pos], self.sin[pos]
        if cos.ndim == 3:
            cos, sin = cos[:, None], sin[:, None]
        a, b = np.split(x.astype(np.float64), 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("head_dim", "rows"), [(16, 3000), (64, 32), (128, 300)])
def test_the_limits_of_a_module_are_found(head_dim, rows):
    """The module declares neither limit: the suite finds both by trying, and reports them."""
    names = ("definition", "accuracy_small", "positions_of_a_batch", "widths", "many_rows", "combinations")
    report = check_backend(Tables(head_dim, rows), fixed={"pairing": "half"}, only=sample(*names))
    passed = {result.name for result in report.of("passed")}
    assert {"definition", "accuracy_small[float16]", "positions_of_a_batch"} <= passed
    assert report.target.declines["wide_heads"] == f"takes a head_dim of {head_dim} only"
    assert report.target.taken_widths == (head_dim,)
    assert "rows count from 0" in report.target.declines["negative_positions"]
    assert report.target.reach == rows - 1


def test_limits_of_a_module_may_be_claimed():
    claims = {"fixed": {"pairing": "half"}, "head_dim": 64, "furthest": 599, "dtypes": ("float32",)}
    names = ("definition", "widths", "accuracy_small", "many_rows")
    report = check_backend(Tables(64, 600), only=sample(*names), **claims)
    assert report.as_dict()["claims"] == {**claims, "dtypes": ["float32"]}
    assert report.target.reach == 599


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rotary_dim", 8), ("rotary_dim", 32), ("rotary_start", 3), ("inv_freq", (1.0, 0.5, 0.2) * 3),
        ("attention_factor", 1.2), ("out_pairing", "half"), ("base", 500.0),
    ],
)  # fmt: skip
def test_fixed_fields_apply_to_every_call(field, value):
    names = ("definition", "kind", "combinations", "widths", "accuracy_2e20", "memory", "norm")
    claims = {"fixed": {field: value}, **FEWER_OF_ANY_WIDTH, "only": sample(*names)}
    assert check_backend(lambda x, pos: ra.apply(x, pos, **{field: value}), **claims).ok


def test_the_other_field_of_a_built_in_slice_is_claimed():
    def by_start(x, pos, rotary_dim=None):
        return ra.apply(x, pos, rotary_start=8, rotary_dim=rotary_dim)

    def by_width(x, pos, rotary_dim=16, rotary_start=0):
        return ra.apply(x, pos, rotary_dim=rotary_dim, rotary_start=rotary_start)

    some = {**FEWER, "only": sample("rotary_dim", "rotary_start", "combinations")}
    assert "rotary_dim" in check_backend(by_start, fixed={"rotary_start": 8}, **some).target.claimed
    assert "rotary_start" in check_backend(by_width, **some).target.claimed


def test_defaults_of_the_call_in_a_signature():
    def rotate(x, pos, seq_axis=-3, inverse=True):
        return ra.apply(x, pos, seq_axis=seq_axis, inverse=inverse)

    names = ("seq_axis", "inverse", "combinations")
    assert {"seq_axis", "inverse"} <= check_backend(rotate, only=sample(*names)).target.claimed


def test_positions_of_heads_in_a_layout_without_batch():
    """(B, H, S) positions become (H, S) for each batch."""
    names = ("positions_of_heads", "definition")
    report = check_backend(lambda x, pos: ra.apply(x, pos), layout="hsd", only=sample(*names))
    assert "positions_of_heads" in {result.name for result in report.of("passed")}


def test_a_wrong_layout_is_named():
    def rotate(x, pos):
        assert x.shape[1] == len(pos), "positions are those of axis 1"
        return ra.apply(x, pos, seq_axis=-3)

    cause = run_checks(rotate, only=sample("definition", "direction", "accuracy_small")).cause
    assert cause.text == "the layout of x is (b, s, h, d)"
    assert cause.options == "--claim layout=bshd"


@pytest.mark.parametrize(
    "error", [NotImplementedError, SystemExit, KeyError, "a message that cannot be read"]
)
def test_a_function_that_refuses_every_call_fails(error):
    class Unreadable(Exception):
        def __str__(self):
            raise RuntimeError

    def rotate(x, pos):
        raise Unreadable if isinstance(error, str) else error(0)

    report = run_checks(rotate, only=sample("definition", "norm", "base", "combinations"))
    assert not report.ok
    assert "definition" in {result.name for result in report.of("failed")}


def test_a_target_that_changes_settings_fails_one_check():
    def rotate(x, pos, base=10000.0):
        y = ra.apply(x, pos, base=base)
        np.seterr(all="raise")
        return y

    names = ("definition", "settings_unchanged", "nonfinite", "norm")
    report = run_checks(rotate, only=sample(*names))
    assert [result.name for result in report.of("failed")] == ["settings_unchanged"]


@pytest.mark.parametrize(
    "claims",
    [
        {"fixed": {"pairing": "neox"}}, {"fixed": {"rotary_dim": 7}}, {"fixed": {"base": "abc"}},
        {"fixed": {"inverse": True}}, {"fixed": ["pairing"]}, {"dtypes": ()}, {"dtypes": "float32"},
        {"furthest": "abc"}, {"furthest": True}, {"furthest": -1}, {"head_dim": 1},
        {"head_dim": (64, "80")}, {"layout": 3},
        {"angles": ["exact"]}, {"lacks": ["gradient"]}, {"lacks": {"gradient": " "}}, {"wraps": "jit"},
        {"declared": "no"}, {"expected_failures": ["norm"]},
    ],
)  # fmt: skip
def test_claims_without_a_meaning_are_refused(claims):
    with pytest.raises(ValueError, match=r"give|unknown|built-in|needs|empty"):
        Target(rotate, **claims)


def test_claims_are_checked_when_they_are_made():
    with pytest.raises(ValueError, match="unknown target"):
        iter_checks("numppy")
    with pytest.raises(ValueError, match=r"unknown claim 'angels'; did you mean angles\?"):
        run_checks(rotate, angels="exact")


def test_names_of_targets_have_no_address():
    assert Target(Tables()).name.endswith("test_suite:Tables")
    assert Target(functools.partial(rotate, base=500.0)).name.endswith("test_suite:rotate")


@pytest.mark.parametrize("exception", [SystemExit(0), GeneratorExit()])
def test_an_exit_in_a_trial_call_is_no_refusal(exception):
    def rotate(x, pos, base=10000.0):
        if x.shape[-1] == 8:
            raise exception
        return ra.apply(x, pos, base=base)

    names = ("refusals_raise", "definition", "narrow_heads", "combinations")
    report = run_checks(rotate, only=sample(*names), **FEWER_OF_ANY_WIDTH)
    assert [result.name for result in report.of("failed")] == ["refusals_raise"]
    assert type(exception).__name__ in report.of("failed")[0].detail
