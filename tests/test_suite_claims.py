"""Claims of a target of the suite: parts of capabilities, requirements, limits, and wrong words."""

import json
import threading

import numpy as np
import pytest
from conftest import NIGHTLY, sample
from faults import refusing

import rope_array as ra
from rope_array.testing import Target, check_backend, run_checks
from rope_array.testing._capability_parts import ALL_WIDTHS, with_parts
from rope_array.testing._checks import checks
from rope_array.testing._factors import FIELDS
from rope_array.testing._failure import Failure
from rope_array.testing._find_target import resolve
from rope_array.testing._judge import Judge
from rope_array.testing._lacking import lacks_wholly
from rope_array.testing._library_target import as_records
from rope_array.testing._options import claims_of
from rope_array.testing._outcome import FAILED, INAPPLICABLE, PASSED, outcome_of
from rope_array.testing._report_text import lines_of
from rope_array.testing._run import required_checks


def rotate(x, pos, base=10000.0):
    return ra.apply(x, pos, base=base)


def rows(x):
    return x.shape[-2] if x.ndim > 1 else 1


def results_of(target, *names):
    """Return the outcome and the detail of checks by their full names; each of `names` is a check."""
    judge = Judge(target)
    named = [check for check in checks() if check.name.partition("[")[0] in names]
    assert {check.name.partition("[")[0] for check in named} == {*names}
    return {check.name: outcome_of(check, judge) for check in named}


def outcomes(target, *names):
    """Return the outcomes of checks by their names without dtypes: the failure, if they fail in one."""
    by_name = {}
    for name, (outcome, _) in results_of(target, *names).items():
        by_name.setdefault(name.partition("[")[0], []).append(outcome)
    order = (FAILED, PASSED, INAPPLICABLE)
    return {name: min(of_name, key=order.index) for name, of_name in by_name.items()}


# ---- parts ----


def test_a_capability_is_declined_if_all_of_its_parts_are():
    assert "tuple" not in with_parts({"tuple[1]": "a", "tuple[2]": "b"})
    assert with_parts({"tuple[1]": "a", "tuple[2]": "b", "tuple[3]": "b"})["tuple"] == "b"
    declined = with_parts({"tuple": "why", "tuple[2]": "another"})
    assert (declined["tuple[1]"], declined["tuple[2]"]) == ("why", "another")


@pytest.mark.parametrize("widths", [(64, 128), (2, 4)])
def test_code_for_some_head_dims_is_judged_at_these(widths):
    taken = set()

    def few(x, pos, base=10000.0):
        if x.shape[-1] not in widths:
            raise ValueError("another width")
        taken.add(x.shape[-1])
        return ra.apply(x, pos, base=base)

    target = Target(few)
    assert target.taken_widths == tuple(sorted(set(widths) & set(ALL_WIDTHS)))
    names = ("definition", "widths", "wide_heads", "narrow_heads", "ranks")
    assert FAILED not in outcomes(target, *names).values()
    assert taken == set(target.taken_widths)


def test_reasons_are_of_the_signature_and_of_trial_calls():
    assert Target(rotate).declines["rotary_dim"] == "its signature does not name it"
    assert "changes nothing" in Target(swallowing).declines["pairing"]
    assert Target(of_int32).declines["narrow_positions[int64]"] == "refuses it: TypeError: another call"
    assert Target(of_int32).position_dtype == "int32"
    assert Target(from_minus_2e20).depth == 2**20


# ---- code and its claims: which checks pass, and which fail ----


def exactly_two(x, pos, base=10000.0):
    if isinstance(x, tuple) and len(x) != 2:
        raise ValueError("give q and k")
    return ra.apply(x, pos, base=base)


def with_x_as_scratch(x, pos, base=10000.0):
    y = ra.apply(x, pos, base=base)
    for array in x if isinstance(x, tuple) else (x,):
        array[...] = 0
    return y


def of_a_batch(x, pos, base=10000.0, seq_axis=-2):
    assert pos.shape == (len(x) if seq_axis % 4 else x.shape[1], x.shape[seq_axis])
    return ra.apply(x, pos, base=base, seq_axis=seq_axis)


def swallowing(x, pos, base=10000.0, **spec):
    return ra.apply(x, pos, base=base, inverse=bool(spec.get("inverse")))


def fixed(field, value):
    """Return code with a field that is built in: a row of `CODE`."""

    def rotate(x, pos):
        return ra.apply(x, pos, **{field: value})

    def with_others(x, pos, **spec):
        return ra.apply(x, pos, **{field: value} | as_records(spec))

    of_slice, claims = field.startswith("rotary"), {"fixed": {field: value}, "dtypes": ("float32",)}
    claimed = "inv_freq axes scaling" if of_slice else ""
    checks = "definition combinations accuracy_2e20 norm"
    return with_others if of_slice else rotate, claims, checks, "", claimed, ""


def q_and_k(layout, few_heads=None):
    """Return a function of q and k that rotates at most `few_heads` heads of q."""

    def rotate(q, k, pos):
        sequence, heads = layout.index("s") - len(layout), layout.index("h")
        y, z = ra.apply((q, k), pos, seq_axis=sequence)
        index = (slice(None),) * heads + (slice(few_heads and min(few_heads, k.shape[heads]), None),)
        if few_heads:
            y[index] = q[index]
        return y, z

    return rotate


def raising_at_first():
    keys = set()

    def is_new(x, p, spec):
        key = np.shape(x), np.shape(p)
        is_known = key in keys
        keys.add(key)
        return rows(x) > 1000 and not is_known

    return refusing(is_new, RuntimeError, base_only=True)


def writing_before_it_raises(x, pos, base=10000.0):
    if rows(x) > 1000:
        x[..., 0] = 0
        raise ValueError("too long")
    return ra.apply(x, pos, base=base)


def without_the_field(x, pos, base=10000.0, pairing="interleaved"):
    if pairing == "half":
        raise KeyError("omega")
    return ra.apply(x, pos, base=base)


def rule(spec):
    return spec.get("scaling") or {"rope_type": "", "factor": 1.0}


of_a_row = refusing(lambda x, p, s: np.shape(p) != (1, rows(x)), base_only=True)
of_consecutive = refusing(lambda x, p, s: (np.diff(np.atleast_1d(p)) != 1).any(), base_only=True)
of_int32 = refusing(lambda x, p, s: getattr(p, "dtype", None) != np.int32, TypeError, base_only=True)
from_minus_2e20 = refusing(lambda x, p, s: np.size(p) and np.min(p) < -(2**20), OverflowError, base_only=True)
not_uint16 = refusing(lambda x, p, s: np.asarray(p).dtype == np.uint16, TypeError, base_only=True)
of_rows = refusing(lambda x, p, s: np.ndim(p) == 0 or np.ndim(x) == 1, base_only=True)
of_one_batch_of_heads = refusing(lambda x, p, s: np.ndim(p) == 3 and len(p) > 1, base_only=True)
of_rising_memory = refusing(lambda x, p, s: np.ndim(p) == 1 and np.asarray(p).strides[0] < 0, base_only=True)

_KINDS = "definition kind accuracy_small combinations many_rows zero_size"
_ORDERS = "definition tuples positions_of_a_batch kind"
_IN_PLACE = "combinations inputs_unchanged no_aliasing tuples results_are_kept neighbours_unchanged"
# The code, its claims, the checks that pass or do not apply, and the checks that fail; then some of the
# claimed names, and some of the declined names.
CODE = {
    "one dtype of positions": (
        lambda x, pos, base=1e4: not_uint16(x, pos, base=base) * (
            1.01 if np.asarray(pos).dtype == np.int32 else 1), {},
        "definition", "positions_of_narrow_dtypes", "narrow_positions[int32]", "narrow_positions[uint16]"),
    "one shape": (
        lambda x, pos, base=1e4: of_rows(x, pos, base=base) * (
            -1 if np.ndim(x) == 4 and np.ndim(pos) == 2 and len(pos) == 1 < len(x) else 1),
        {}, "ranks positions_of_python", "positions_broadcast", "broadcast_positions python_positions ranks",
        "broadcast_positions[scalar] python_positions[int] ranks[1]"),
    "q and k": (exactly_two, {}, "tuples", "", "tuple[2]", "tuple[1] tuple[3]"),
    "in place": (lambda x, pos, base=1e4: np.copyto(x, ra.apply(x, pos, base=base)), {"in_place": True},
                 _IN_PLACE, "", "base", "keeps_x"),
    "not in place": (rotate, {"in_place": True}, "", "definition", "base", "keeps_x"),
    "scratch": (with_x_as_scratch, {"lacks": {"keeps_x": "x is scratch"}}, _IN_PLACE, "", "base", "keeps_x"),
    **{order: (code, {"arguments": order}, _ORDERS, "", claimed, declined)
       for order, code, claimed, declined in (
           ("pos,x", lambda pos, x: ra.apply(x, pos), "tuple", ""),
           ("q,k,pos", lambda q, k, pos: ra.apply((q, k), pos), "tuple[2]", "tuple[1] tuple[3]"),
           ("pos,q,k", lambda pos, q, k: [*ra.apply((q, k), pos)], "tuple[2]", "tuple[1]"),
           ("(q,k),pos", lambda qk, pos: ra.apply(qk, pos), "tuple[2]", ""))},
    "k alone": (lambda q, k, pos: (ra.apply(q, pos), k * 1), {"arguments": "q,k,pos"}, "", "tuples",
                "tuple[2]", ""),
    "batch": (of_a_batch, {"positions": "batch"}, f"{_KINDS} positions_of_a_batch", "", "batch_positions",
              "head_positions broadcast_positions python_positions"),
    "row": (of_a_row, {"positions": "row"}, _KINDS, "", "any_positions", "batch_positions"),
    "arange": (lambda x, base=1e4: ra.apply(x, np.arange(rows(x)), base=base), {"positions": "arange"},
               _KINDS, "", "ranks", "any_positions offset_positions negative_positions reaches_int32"),
    "offset": (of_consecutive, {"positions": "offset"}, f"{_KINDS} positions_of_a_batch", "",
               "offset_positions", "any_positions"),
    "int32": (of_int32, {}, "definition many_heads", "", "narrow_positions[int32]",
              "narrow_positions[int64]"),
    "heads of one batch": (
        lambda x, pos: of_one_batch_of_heads(x, pos[:, :1] + 0 * pos if np.ndim(pos) == 3 else pos),
        {}, "definition", "positions_broadcast", "broadcast_positions[1HS]",
        "head_positions broadcast_positions[BH1]"),
    "negative strides": (of_rising_memory, {}, "strides_of_positions", "", "base", ""),
    "from -2^20": (from_minus_2e20, {}, "accuracy_negative positions_of_narrow_dtypes accuracy_float", "",
                   "negative_positions", ""),
    "own defaults": (lambda x, pos, pairing="half", base=5e2: ra.apply(x, pos, pairing=pairing, base=base),
                     {}, "definition pairing base", "", "pairing base", "rotary_dim"),
    "own axes": (lambda x, pos, seq_axis=-3: ra.apply(x, pos, seq_axis=seq_axis), {},
                 "seq_axis combinations", "", "seq_axis", ""),
    "its own width": (lambda x, pos, rotary_dim=16, rotary_start=0:
                      ra.apply(x, pos, rotary_dim=rotary_dim, rotary_start=rotary_start),
                      {}, "rotary_dim rotary_start combinations", "", "rotary_start", ""),
    "a few fields": (swallowing, {}, "definition base", "", "base inverse",
                     "pairing seq_axis scaling inv_freq"),
    "every field, without effect": (lambda x, pos, **spec: ra.apply(x, pos), {}, "", "base pairing inverse",
                                    " ".join(FIELDS), ""),
    "positions of heads": (lambda x, pos: ra.apply(x, pos), {"layout": "hsd"},
                           "positions_of_heads definition", "", "", ""),
    **{f"fixed {field} {value}": fixed(field, value) for field, value in [
        ("rotary_dim", 8), ("rotary_start", 3), ("inv_freq", (1.0, 0.5, 0.2) * 3), ("base", 500.0)]},
    "several head_dims": (rotate, {"head_dim": (64, 128)}, "definition", "", "widths[64] widths[128]",
                          "widths[80] narrow_heads wide_heads odd_width"),
    "parts that are lacking": (
        rotate, {"lacks": {"ranks": "four axes", "tuple[3]": "two"}, "fields": ("base",), "declared": True},
        "definition", "", "tuple tuple[1] tuple[2] float_positions", "ranks[6] tuple[3]"),
    "all but yarn": (refusing(lambda x, p, s: rule(s)["rope_type"] not in ("", "yarn")), {},
                     "scaling_yarn scaling_linear", "", "scaling scaling[yarn]", "scaling[linear]"),
    **{f"{name}, {layout}": (code, {"layout": layout, "arguments": "q,k,pos"}, passing, failing, "", "")
       for layout in ("bshd", "hsd") for name, code, passing, failing in (
           ("heads of q and k", q_and_k(layout), "tuples", ""),
           # Pairs of heads of q and k, as `zip` makes them, leave heads of q out.
           ("some heads of q", q_and_k(layout, few_heads=100), "", "tuples"))},
    # Exceptions that are no refusals.
    "raises at first": (raising_at_first(), {}, "", "many_rows", "", ""),
    "raises after it wrote x": (writing_before_it_raises, {}, "", "many_rows", "", ""),
    "raises for a claimed field": (without_the_field, {}, "", "pairing", "", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CODE)
def test_code_is_judged_by_its_claims(name):
    code, claims, passing, failing, claimed, declined = CODE[name]
    target = Target(code, **claims)
    assert {*claimed.split()} <= target.claimed
    assert {*declined.split()} <= target.declines.keys()
    by_check = outcomes(target, *passing.split(), *failing.split())
    assert {check for check, outcome in by_check.items() if outcome == FAILED} == {*failing.split()}
    assert set(by_check.values()) & {PASSED, FAILED}


# ---- requirements ----


def lacking(target, *names):
    """Return the details of the required names that a target lacks, after some checks."""
    judge = Judge(target)
    names = {"definition", "ranks", "base", "pairing", *names}
    chosen = [check for check in checks() if check.name in names]
    outcomes = {check.name: outcome_of(check, judge) for check in (*chosen, *required_checks(target))}
    return {name: detail for name, (outcome, detail) in outcomes.items() if name.startswith("requires[")
            and outcome == FAILED}  # fmt: skip


REQUIRED = {
    "one row": (lambda x, p, s: np.ndim(p) == 2, "batch_positions ranks inv_freq definition",
                {"batch_positions": "another call", "inv_freq": "its signature does not name it"}),
    "a part": (lambda x, p, s: x.ndim == 1, "ranks[2]", {}),
    "all parts": (lambda x, p, s: x.ndim == 1, "ranks", {"ranks": "ranks[1]: refuses it"}),
}  # fmt: skip


@pytest.mark.parametrize("case", REQUIRED)
def test_a_required_capability_that_is_refused_fails(case):
    refuses, names, missing = REQUIRED[case]
    # NotImplementedError is how code refuses a call, which `requires` does not accept.
    details = lacking(Target(refusing(refuses, NotImplementedError, base_only=True), requires=names.split()))
    assert {*details} == {f"requires[{name}]" for name in missing}
    assert all(text in details[f"requires[{name}]"] for name, text in missing.items())


def test_arrays_of_frequencies_are_handed_over_only_if_they_are_required():
    given = set()

    def rotate(x, pos, inv_freq=None):
        shape = np.shape(inv_freq)
        given.add((type(inv_freq).__name__, len(shape)))
        if isinstance(inv_freq, np.ndarray):
            return ra.RoPE(x.shape[-1]).rotation(pos, like=x, inv_freq=inv_freq).apply(x)
        return ra.apply(x, pos, inv_freq=inv_freq)

    claims = {"angles": "exact", "dtypes": ["float32", "float64"]}
    assert outcomes(Target(rotate, **claims), "inv_freq") == {"inv_freq": PASSED}
    assert given == {("NoneType", 0), ("tuple", 1)}
    required = Target(rotate, requires=["array_frequencies"], **claims)
    assert outcomes(required, "inv_freq") == {"inv_freq": PASSED}
    assert given == {("NoneType", 0), ("tuple", 1), ("ndarray", 1), ("ndarray", 2)}
    without = Target(ra.apply, fields=["base"], requires=["array_frequencies"], **claims)
    assert without.declines["array_frequencies"] == "inv_freq: not among its fields"


def test_what_is_claimed_can_be_required():
    target = Target(rotate, lacks={"ranks[1]": "a batch is needed"})
    names = target.all_claimed()
    assert "ranks[2]" in names
    assert "ranks" not in names
    assert lacking(Target(rotate, lacks=target.lacks, requires=names)) == {}


def test_requirements_are_added_to_a_target_and_to_a_library():
    assert resolve(Target(rotate, requires=["base"]), requires=["jit", "base"]).requires == ("base", "jit")
    (required,) = required_checks(resolve("numpy", requires=["jit"]))
    assert outcome_of(required, Judge(resolve("numpy")))[0] == FAILED


# ---- limits ----


class TableModule:
    """A module with tables for one head_dim and positions below `rows`, pairing halves."""

    def __init__(self, head_dim, rows):
        angle = np.arange(rows)[:, None] * 10000.0 ** (-np.arange(0, head_dim, 2) / head_dim)
        self.cos, self.sin = np.cos(angle), np.sin(angle)

    def __call__(self, x, pos):
        if np.any(np.asarray(pos) < 0):
            raise IndexError("rows count from 0")
        cos, sin = self.cos[pos], self.sin[pos]
        cos, sin = (cos[:, None], sin[:, None]) if cos.ndim == 3 else (cos, sin)
        a, b = np.split(x.astype(np.float64), 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


@pytest.mark.parametrize(("head_dim", "rows"), [(64, 3000), (16, 1)])
def test_the_limits_of_a_module_are_found(head_dim, rows):
    """The module declares neither limit: the suite finds both by trying, and reports them."""
    target = Target(TableModule(head_dim, rows), fixed={"pairing": "half"})
    assert target.declines["wide_heads"] == f"takes a head_dim of {head_dim} only"
    assert target.taken_widths == (head_dim,)
    assert rows == 1 or "rows count from 0" in target.declines["negative_positions"]
    assert target.reach == rows - 1
    names = "definition accuracy_small positions_of_a_batch many_rows combinations"
    by_check = outcomes(target, *names.split())
    assert FAILED not in by_check.values()
    assert by_check["definition"] == by_check["accuracy_small"] == PASSED


def test_limits_may_be_claimed():
    claims = {"fixed": {"pairing": "half"}, "head_dim": 64, "furthest": 599, "dtypes": ("float32",)}
    report = check_backend(TableModule(64, 600), only=["definition", "accuracy_small"], **claims)
    assert report.as_dict()["claims"] == {**claims, "dtypes": ["float32"]}
    assert report.target.reach == 599


def test_narrow_heads_may_be_claimed():
    narrow = refusing(lambda x, p, s: x.shape[-1] != 6)
    names = {"rotary_dim", "rotary_start", "combinations"}
    report = check_backend(narrow, head_dim=6, angles="exact", furthest=2**62, only=sample(*names, "axes"))
    assert names <= {result.name for result in report.of(PASSED)}


def test_copies_have_the_strides_of_x():
    lib = Target(rotate).arrays
    a = np.arange(240.0).reshape(2, 3, 5, 8)
    for x in (a, a.T, a[..., ::-2], a[:, 1:2], np.broadcast_to(a[:1], a.shape), a[:0]):
        copy = lib.copied(x)
        assert np.array_equal(copy, x)
        assert not np.shares_memory(copy, x)
        if 0 not in x.strides and x.size:
            assert copy.strides == x.strides


LAYOUTS = ("sbhd", "sd", "s1hd")
LAYOUTS += ("bhsd", "bshd", "bsd", "hsd", "shd", "1hsd", "b1sd", "11sd") if NIGHTLY else ()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_axes_of_a_layout(layout):
    def rotate(x, pos, axes=None):
        assert [x.shape[i] for i, axis in enumerate(layout) if axis == "1"] == [1] * layout.count("1")
        assert x.ndim == len(layout)
        axis = layout.index("s")
        y = ra.apply(np.moveaxis(x, axis, -2), pos, **as_records({"axes": axes} if axes else {}))
        return np.moveaxis(y, -2, axis)

    names = ("definition", "combinations", "axes", "ranks", "many_batches")
    by_check = outcomes(Target(rotate, layout=layout, dtypes=("float32",)), *names)
    assert set(by_check.values()) - {INAPPLICABLE} == {PASSED}
    assert by_check["definition"] == by_check["axes"] == PASSED


def test_a_first_far_call_is_judged_although_it_is_a_trial():
    size = [2048]

    def by_a_table_that_doubles_once_in_a_call(x, pos):
        if np.max(pos, initial=0) >= size[0]:
            size[0] *= 2
        return ra.apply(x, np.minimum(pos, size[0] - 1))

    target = Target(by_a_table_that_doubles_once_in_a_call, furthest=2**16 - 1, dtypes=("float32",))
    assert target.reach == 2**16 - 1
    size[0] = 2**16  # as after further trial calls
    assert outcomes(target, "first_call") == {"first_call": FAILED}


@pytest.mark.library("jax")
def test_a_jitted_function_with_string_fields_does_not_claim_them():
    jax = pytest.importorskip("jax")

    @jax.jit
    def traced(x, pos, base=10000.0, pairing="interleaved", rotary_dim=None):
        rotated = x[..., :rotary_dim]
        y = ra.apply(rotated, pos, pairing=pairing)
        return jax.numpy.concatenate([y, x[..., rotated.shape[-1] :]], -1)

    declines = Target(traced, library="jax", lacks={"widths": "tried elsewhere"}).declines
    assert all("static_argnames does not name it" in declines[name] for name in ("pairing", "rotary_dim"))
    assert "base" not in declines


# ---- refused calls ----

# Correct code refuses the calls for which this holds: (x, pos, spec). With them, checks that make such calls.
REFUSED = {
    "4,096 rows": (lambda x, p, s: rows(x) > 4096, "more_rows_than_2e16 many_rows positions_of_a_long_batch"),
    "8 rows": (lambda x, p, s: rows(x) > 8, "calls_at_like_positions"),
    "a row": (lambda x, p, s: rows(x) == 1, "positions_offset size_one_axes"),
    "many elements": (lambda x, p, s: x.size > 2**20, "large_results_are_kept many_elements"),
    "strides": (lambda x, p, s: not x.flags.c_contiguous, "heads_alike neighbours_unchanged"),
    "position 0": (lambda x, p, s: np.size(p) and np.min(p) == 0, "identity_at_zero positions_offset"),
    "NaN": (lambda x, p, s: not np.isfinite(x).all(), "nonfinite_rows"),
    "no elements": (lambda x, p, s: not x.size, "zero_size"),
    "all but linear": (lambda x, p, s: rule(s)["rope_type"] not in ("", "linear"),
                       "scaling_linear scaling_yarn rules_at_wide_heads axes_and_frequencies"),
    "scaled inverses": (lambda x, p, s: s.get("inverse") and s.get("scaling"), "inverse sizes_and_fields"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_call_is_no_failure(name):
    refuses, names = REFUSED[name]
    by_check = results_of(Target(refusing(refuses)), *names.split())
    assert {check: detail for check, (outcome, detail) in by_check.items() if outcome == FAILED} == {}
    assert any("another call" in detail for _, detail in by_check.values()), by_check


def test_code_that_raises_from_some_call_on_fails():
    broken = []
    judge = Judge(Target(refusing(lambda x, p, s: broken, MemoryError, base_only=True)))
    broken.append(True)
    (norm,) = [check for check in checks() if check.name == "norm"]
    assert outcome_of(norm, judge)[0] == FAILED


def test_an_exception_beside_other_threads_is_a_failure():
    alone = threading.active_count()  # other tests may have left threads
    code = refusing(lambda x, p, s: threading.active_count() > alone and rows(x) == 120, base_only=True)
    assert outcomes(Target(code), "threads_of_large_calls") == {"threads_of_large_calls": FAILED}


def test_refused_calls_are_in_the_report_and_may_be_required():
    name = "long_sequences_from_an_offset"
    code = refusing(lambda x, p, s: rows(x) > 4000, base_only=True)
    text = " ".join(" ".join(lines_of(run_checks(code, only=[name, "base"]))).split())
    assert "Refused, and so not judged, in" in text
    assert "ValueError: another call; x float32[1, 1, 5003, 4], positions int64[5003]" in text
    details = lacking(Target(code, requires=[name, "base"]), name)
    assert [*details] == [f"requires[{name}]"]
    assert f"{name} refuses" in details[f"requires[{name}]"]


def test_what_is_claimed_does_not_hold_what_is_refused():
    code = refusing(lambda x, p, s: np.ndim(p) == 2 and rows(x) != 5)
    report = run_checks(code, fields=("base",), only=sample("positions_of_a_long_batch", "base"))
    assert report.ok
    claimed = json.loads(json.dumps(report.as_dict()))["claimed"]
    assert "batch_positions" not in claimed
    assert {"base", "ranks", "tuple"} <= set(claimed)


def test_a_case_that_is_refused_is_not_judged():
    report = run_checks(refusing(lambda x, p, s: rows(x) > 128), cases=["rows=1,1,200"])
    first = " ".join(" ".join(lines_of(report)).split())
    assert first.startswith("NOT JUDGED: refuses every call: ValueError: another call; x float32[1, 1, 200,")


# A gradient is refused for some calls, and checks that make them.
GRADIENTS = {
    "of 16-bit numbers": (lambda x, pos: x.dtype.itemsize == 2, "gradient"),
    "of many rows": (lambda x, pos: rows(x) > 128, "training_after_inference"),
    "at positions of a batch": (lambda x, pos: pos.ndim == 2, "gradient_of_shapes"),
}


@pytest.mark.library("torch")
@pytest.mark.parametrize("what", GRADIENTS)
def test_a_refused_gradient_is_no_failure(what):
    torch = pytest.importorskip("torch")
    refuses, names = GRADIENTS[what]

    def rotate(x, pos, base=10000.0):
        if x.requires_grad and refuses(x, pos) and torch.is_grad_enabled():
            raise NotImplementedError(f"no gradient {what}")
        return ra.apply(x, pos, base=base)

    by_check = results_of(Target(rotate, library="torch"), *names.split(), "gradient_of_a_sum", "gradient")
    assert FAILED not in {outcome for outcome, _ in by_check.values()}
    assert by_check["gradient_of_a_sum"][0] == by_check["gradient[float32]"][0] == PASSED


@pytest.mark.library("torch")
def test_code_without_a_gradient_is_told_to_claim_it():
    failed = dict.fromkeys(
        ("gradient[float32]", "gradient_of_a_sum"), Failure("no gradient", raised="ValueError")
    )
    assert lacks_wholly("gradient", failed, [*failed])
    failed["gradient_of_a_sum"] = Failure("3 of 9 elements are wrong")
    assert not lacks_wholly("gradient", failed, [*failed])
    code = refusing(lambda x, p, s: x.requires_grad, NotImplementedError, base_only=True)
    target = Target(code, library="torch", lacks={"gradient": "inference only"})
    assert outcomes(target, "gradient_of_a_sum") == {"gradient_of_a_sum": INAPPLICABLE}


# ---- wrong words ----


@pytest.mark.parametrize("word", ["yes", "1", "False", " None ", "", True, None])
def test_a_reason_is_a_reason(word):
    with pytest.raises(ValueError, match="give the reason why the target lacks it, or --require ranks"):
        Target(rotate, lacks={"ranks": word})


WRONG = [
    ({"fields": ("bases",)}, "unknown fields"),
    ({"fixed": {"rotary_dim": 7}}, "built-in"),
    ({"fixed": ["pairing"]}, "give"),
    ({"positions": "all"}, "unknown positions"),
    ({"angles": ["exact"]}, "give a string"),
    ({"arithmetic": "bfloat16"}, "unknown arithmetic"),
    ({"dtypes": ()}, "empty"),
    ({"dtypes": "float32"}, "give"),
    ({"layout": "hbds"}, "layout"),
    ({"furthest": True}, "give"),
    ({"head_dim": 1}, "2 or more"),
    ({"lacks": {"ranks[9]": "why"}}, r"unknown lacks 'ranks\[9\]'; ranks has the parts 1, 2, 3, 4, 5, 6"),
    ({"requires": ["batch_postions"]}, "did you mean batch_positions"),
    ({"requires": "ranks"}, "requires is 'ranks'; give a collection of names"),
    ({"requires": ["tuple"], "lacks": {"tuple": "one array"}}, "requires and lacks both name tuple"),
    ({"dtypes": ["float23"]}, "unknown dtypes 'float23'; did you mean float32"),
    ({"library": "torhc"}, "did you mean torch"),
    ({"fields": ("base", "pairing")}, "fields names pairing, and the signature of .* does not"),
    ({"arguments": "k,q,pos"}, "unknown arguments 'k,q,pos'"),
    ({"in_place": "yes"}, "in_place is 'yes'; give True or False"),
    ({"in_place": True, "library": "numpy:readonly"}, "arrays of numpy:readonly cannot be written"),
    ({"head_dim": "64"}, "head_dim is '64'; give an integer, or several"),
    ({"head_dim": (64, True)}, "head_dim has True; give integers"),
    ({"furthest": 3, "positions": "offset"}, "consecutive positions of 5 rows need 4 or more"),
    ({"fixed": {"rotary_dim": 32}, "head_dim": (16, 64)}, "must be within head_dim, which is 16"),
]


@pytest.mark.parametrize(("claims", "message"), WRONG)
def test_wrong_words_in_claims_are_errors(claims, message):
    with pytest.raises(ValueError, match=message):
        Target(rotate, **claims)


NAMES = {"json:lods": "json:loads", "json.dumps": "json:dumps", "nunpy": "numpy",
         "json/decoder.py:scan": "json.decoder:scan"}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_name_of_a_target_names_the_right_one(name):
    assert resolve("json:dump").name == "json:dump"
    with pytest.raises(ValueError, match=rf"(?i)did you mean {NAMES[name]}\?"):
        resolve(name)


def test_the_command_reads_these_claims():
    texts = "ranks[1]=rows only|head_dim=64,128|in_place=true|arguments=q,k,pos|requires=base,tuple[2]"
    assert claims_of(texts.split("|")) == {
        "lacks": {"ranks[1]": "rows only"}, "head_dim": (64, 128), "in_place": True, "arguments": "q,k,pos",
        "requires": ("base", "tuple[2]"),
    }  # fmt: skip
    with pytest.raises(ValueError, match="unknown claim 'batch_postions'; did you mean batch_positions"):
        claims_of(["batch_postions=why"])
