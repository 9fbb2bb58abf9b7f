"""Claims of a target: parts of capabilities, requirements, limits that can be declared, and wrong words."""

import json
import threading

import numpy as np
import pytest
from conftest import sample

import rope_array as ra
from rope_array.testing import Target, check_backend, run_checks
from rope_array.testing._causes import find_cause
from rope_array.testing._checks import checks
from rope_array.testing._claims import CAPABILITIES
from rope_array.testing._judge import Judge
from rope_array.testing._names import resolve
from rope_array.testing._options import claims_of
from rope_array.testing._outcome import FAILED, INAPPLICABLE, PASSED, outcome_of
from rope_array.testing._own import as_records
from rope_array.testing._parts import ALL_WIDTHS, PART_NAMES, PARTS, spread, whole_of
from rope_array.testing._run import check_expected
from rope_array.testing._text import lines_of
from rope_array.testing._told import lacks_wholly


def rotate(x, pos, base=10000.0):
    return ra.apply(x, pos, base=base)


class Tables:
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


def outcomes(target, *names):
    """Return the outcome of each of these checks, by its full name."""
    judge = Judge(target)
    some = [each for each in checks() if each.name.partition("[")[0] in names]
    return {each.name: outcome_of(each, judge)[0] for each in some}


# ---- parts ----


def test_parts_are_of_capabilities():
    assert set(PARTS) <= set(CAPABILITIES)
    assert len(set(PART_NAMES)) == len(PART_NAMES)
    assert {whole_of(name) for name in PART_NAMES} == set(PARTS)


def test_a_capability_is_declined_if_all_of_its_parts_are():
    assert "tuple" not in spread({"tuple[1]": "a", "tuple[2]": "b"})
    assert spread({"tuple[1]": "a", "tuple[2]": "b", "tuple[3]": "b"})["tuple"] == "b"
    assert spread({"tuple": "why", "tuple[2]": "another"}) == {
        "tuple": "why", "tuple[1]": "why", "tuple[2]": "another", "tuple[3]": "why",
    }  # fmt: skip


def test_one_refused_dtype_of_positions_hides_no_fault_at_another():
    def refusing(x, pos, base=10000.0):
        if np.asarray(pos).dtype == np.uint16:
            raise TypeError("no uint16")
        y = ra.apply(x, pos, base=base)
        return y * 1.01 if np.asarray(pos).dtype == np.int32 else y

    target = Target(refusing)
    assert target.declines["narrow_positions[uint16]"] == "refuses it: TypeError: no uint16"
    assert "narrow_positions[int32]" in target.claimed
    found = outcomes(target, "positions_of_narrow_dtypes")
    assert found == {"positions_of_narrow_dtypes": FAILED}


def test_one_refused_shape_hides_no_fault_at_another():
    def refusing(x, pos, base=10000.0):
        if np.ndim(pos) == 0 or np.ndim(x) == 1:
            raise ValueError("rows only")
        y = ra.apply(x, pos, base=base)
        return -y if np.shape(pos)[0] == 1 and np.ndim(pos) == 2 and len(x) > 1 and y.ndim == 4 else y

    target = Target(refusing)
    refused = {"broadcast_positions[scalar]", "python_positions[int]", "ranks[1]"}
    assert refused <= target.declines.keys()
    assert {"broadcast_positions", "python_positions", "ranks"} <= target.claimed
    assert outcomes(target, "positions_broadcast", "ranks", "positions_of_python") == {
        "ranks": PASSED, "positions_broadcast": FAILED, "positions_of_python": PASSED,
    }  # fmt: skip


@pytest.mark.parametrize("widths", [(64, 128), tuple(range(32, 577, 32)), (44,), (2, 4)])
def test_code_for_some_head_dims_is_judged_at_these(widths):
    seen = set()

    def few(x, pos, base=10000.0):
        if x.shape[-1] not in widths:
            raise ValueError("another width")
        seen.add(x.shape[-1])
        return ra.apply(x, pos, base=base)

    target = Target(few)
    assert target.taken_widths == tuple(sorted(set(widths) & set(ALL_WIDTHS)))
    found = outcomes(
        target, "definition", "widths", "wide_heads", "narrow_heads", "kind", "calls_in_turn", "ranks"
    )
    assert FAILED not in found.values()
    assert seen == set(target.taken_widths)


def test_several_head_dims_may_be_claimed():
    target = Target(rotate, head_dim=(64, 128))
    assert (target.width_of(16), target.width_of(80), target.width_of(512)) == (64, 128, 128)
    assert {"widths[64]", "widths[128]"} <= target.claimed
    assert target.declines["widths[80]"] == "takes a head_dim of 64, 128 only"
    assert {"narrow_heads", "wide_heads", "odd_width"} <= target.declines.keys()


def test_a_capability_that_is_lacking_takes_its_parts():
    target = Target(rotate, lacks={"ranks": "four axes", "tuple[3]": "at most two"}, declared=True)
    assert target.declines["ranks[6]"] == "four axes"
    assert {"tuple", "tuple[1]", "tuple[2]"} <= target.claimed
    assert not Judge(target).claims("tuple[3]")


def test_code_for_one_array_or_for_q_and_k_takes_no_tuple_of_one():
    def exactly_two(x, pos, base=10000.0):
        if isinstance(x, tuple):
            q, k = x
            return ra.apply((q, k), pos, base=base)
        return ra.apply(x, pos, base=base)

    target = Target(exactly_two)
    assert "tuple[2]" in target.claimed
    assert {"tuple[1]", "tuple[3]"} <= target.declines.keys()
    assert FAILED not in outcomes(target, "tuples", "tuples_of_any_length").values()


# ---- requirements ----


def test_a_required_capability_that_is_refused_fails():
    def rows_only(x, pos, base=10000.0):
        if np.ndim(pos) == 2:
            raise ValueError("one row of positions")
        return ra.apply(x, pos, base=base)

    report = run_checks(rows_only, requires=["batch_positions", "ranks", "inv_freq", "definition"])
    found = {result.name: result for result in report.results if result.name.startswith("requires[")}
    assert [*found] == [
        "requires[batch_positions]", "requires[ranks]", "requires[inv_freq]", "requires[definition]",
    ]  # fmt: skip
    assert [result.outcome for result in found.values()] == [FAILED, PASSED, FAILED, PASSED]
    assert "ValueError: one row of positions" in found["requires[batch_positions]"].detail
    assert not report.ok


def required(target):
    """Return the details of the required names that a target lacks."""
    from rope_array.testing._requires import required_checks

    judge = Judge(target)
    results = {each.name: outcome_of(each, judge) for each in (*checks()[:25], *required_checks(target))}
    return {name: detail for name, (outcome, detail) in results.items() if outcome == FAILED}


def test_a_required_capability_has_all_of_its_parts():
    def no_vector(x, pos, base=10000.0):
        if x.ndim == 1:
            raise ValueError("rows only")
        return ra.apply(x, pos, base=base)

    assert required(Target(no_vector, requires=["ranks[2]"])) == {}
    (detail,) = required(Target(no_vector, requires=["ranks"])).values()
    assert "ranks[1]: refuses it: ValueError: rows only" in detail


def test_a_required_field_that_is_not_implemented_fails():
    def interleaved(x, pos, base=10000.0, pairing="interleaved"):
        if pairing == "half":
            raise NotImplementedError("no halves")
        return ra.apply(x, pos, base=base)

    assert "no halves" in required(Target(interleaved, requires=["pairing"]))["requires[pairing]"]


def test_what_is_claimed_can_be_required():
    target = Target(rotate, lacks={"ranks[1]": "a batch is needed"})
    names = target.all_claimed()
    assert "ranks[2]" in names
    assert "ranks" not in names
    assert required(Target(rotate, lacks=target.lacks, requires=names)) == {}


def test_requirements_are_added_to_a_target_and_to_a_library():
    report = run_checks(Target(rotate, requires=["base"], declared=True), requires=["jit"])
    assert [result.name for result in report.results[-2:]] == ["requires[base]", "requires[jit]"]
    assert "requires[jit]" in {result.name for result in run_checks("numpy", requires=["jit"]).of(FAILED)}


# ---- limits ----


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_module_of_few_rows_passes(rows):
    names = ("definition", "combinations", "many_rows", "accuracy_small", "norm", "threads", "strides")
    report = check_backend(Tables(16, rows), fixed={"pairing": "half"}, only=sample(*names))
    assert report.target.reach == rows - 1
    assert "definition" in {result.name for result in report.of(PASSED)}


@pytest.mark.parametrize("head_dim", [2, 4, 6, 8, 12])
def test_narrow_heads_may_be_claimed(head_dim):
    def narrow(x, pos, **spec):
        assert x.shape[-1] == head_dim
        return ra.apply(x, pos, **spec)

    names = {"rotary_dim", "rotary_start", "combinations"}
    only = sample(*names, "scaling_yarn", "axes_alternating", "strides", "one_field_and_many_rows")
    report = check_backend(narrow, head_dim=head_dim, angles="exact", furthest=2**62, only=only)
    assert names <= {result.name for result in report.of(PASSED)}


def test_code_that_works_in_place_may_be_claimed():
    def in_place(x, pos, base=10000.0):
        x[...] = ra.apply(x, pos, base=base)

    names = ("strides", "combinations", "inputs_unchanged", "no_aliasing", "tuples", "results_are_kept")
    report = check_backend(in_place, in_place=True, only=sample(*names))
    assert report.target.declines["keeps_x"] == "writes its result into x"
    assert "strides[float32]" in {result.name for result in report.of(PASSED)}
    assert not run_checks(in_place, only=sample(*names)).ok


def test_code_that_writes_x_and_returns_a_result_may_be_claimed():
    def with_x_as_scratch(x, pos, base=10000.0):
        y = ra.apply(x, pos, base=base)
        for one in x if isinstance(x, tuple) else (x,):
            one[...] = 0
        return y

    only = sample(
        "strides", "combinations", "inputs_unchanged", "no_aliasing", "tuples", "neighbours_unchanged"
    )
    assert not run_checks(with_x_as_scratch, only=only).ok
    check_backend(with_x_as_scratch, lacks={"keeps_x": "uses x as scratch memory"}, only=only)


def test_code_that_says_that_it_works_in_place_has_to_write():
    found = outcomes(Target(rotate, in_place=True), "definition")
    assert found == {"definition": FAILED}


def test_copies_have_the_strides_of_x():
    lib = Target(rotate).arrays
    wide = np.arange(240.0).reshape(2, 3, 5, 8)
    for x in (wide, wide.T, wide[..., ::-2], wide[:, 1:2], np.broadcast_to(wide[:1], wide.shape), wide[:0]):
        copy = lib.copied(x)
        assert np.array_equal(copy, x)
        assert not np.shares_memory(copy, x)
        if 0 not in x.strides and x.size:
            assert copy.strides == x.strides


@pytest.mark.parametrize("order", ["pos,x", "q,k,pos", "pos,q,k", "(q,k),pos"])
def test_other_orders_of_arguments_may_be_claimed(order):
    functions = {
        "pos,x": lambda pos, x: ra.apply(x, pos),
        "q,k,pos": lambda q, k, pos: ra.apply((q, k), pos),
        "pos,q,k": lambda pos, q, k: [*ra.apply((q, k), pos)],
        "(q,k),pos": lambda qk, pos: ra.apply(qk, pos),
    }
    target = Target(functions[order], arguments=order)
    found = outcomes(target, "definition", "tuples", "tuples_of_any_length", "positions_of_a_batch", "kind")
    assert FAILED not in found.values()
    assert found["tuples"] == PASSED
    assert "tuple[2]" in target.claimed


def test_a_fault_in_k_alone_fails():
    target = Target(lambda q, k, pos: (ra.apply(q, pos), k * 1), arguments="q,k,pos")
    assert outcomes(target, "tuples") == {"tuples": FAILED}


def q_and_k(layout, few_heads=None):
    """Return a function of q and k that rotates at most `few_heads` heads of q."""

    def rotate(q, k, pos):
        sequence, heads = layout.index("s") - len(layout), layout.index("h")
        y, z = ra.apply((q, k), pos, seq_axis=sequence)
        some = (slice(None),) * heads + (slice(few_heads and min(few_heads, k.shape[heads]), None),)
        if few_heads:
            y[some] = q[some]
        return y, z

    return rotate


@pytest.mark.parametrize("layout", ["bshd", "shd", "hsd"])
def test_q_and_k_of_a_layout_are_given_together(layout):
    claims = {"layout": layout, "arguments": "q,k,pos"}
    assert outcomes(Target(q_and_k(layout), **claims), "tuples") == {"tuples": PASSED}
    # Pairs of heads of q and k, as `zip` makes them, leave heads of q out.
    assert outcomes(Target(q_and_k(layout, few_heads=100), **claims), "tuples") == {"tuples": FAILED}


def test_a_first_far_call_is_judged_although_it_is_a_trial():
    rows = [2048]

    def by_a_table_that_doubles_once_in_a_call(x, pos):
        if np.max(pos, initial=0) >= rows[0]:
            rows[0] *= 2
        return ra.apply(x, np.minimum(pos, rows[0] - 1))

    target = Target(by_a_table_that_doubles_once_in_a_call, furthest=2**16 - 1, dtypes=("float32",))
    assert target.reach == 2**16 - 1
    rows[0] = 2**16  # as after further trial calls
    assert outcomes(target, "first_call") == {"first_call": FAILED}


def test_a_remainder_by_two_pi_is_within_float64_angles():
    def by_remainder(x, pos, base=10000.0):
        width = x.shape[-1]
        angle = np.asarray(pos, np.float64)[..., None] * base ** (-np.arange(0, width, 2) / width)
        angle = np.mod(angle, 2 * np.pi)
        cos, sin = np.cos(angle), np.sin(angle)
        y = np.empty(np.broadcast_shapes(x.shape[:-1], cos.shape[:-1]) + x.shape[-1:])
        y[..., ::2] = x[..., ::2] * cos - x[..., 1::2] * sin
        y[..., 1::2] = x[..., ::2] * sin + x[..., 1::2] * cos
        return y.astype(x.dtype)

    target = Target(by_remainder, dtypes=("float64",))
    found = outcomes(target, "accuracy_small", "accuracy_int32", "accuracy_negative", "accuracy_2e20")
    assert {outcome for name, outcome in found.items() if "float64" in name} == {PASSED}


def test_threads_are_judged_in_every_class_and_may_be_lacking():
    assert "threads" in Target(rotate, angles="float32").claimed
    assert "threads" in Target(rotate, lacks={"threads": "one scratch buffer"}).declines


@pytest.mark.library("jax")
def test_a_jitted_function_with_string_fields_does_not_claim_them():
    jax = pytest.importorskip("jax")

    @jax.jit
    def traced(x, pos, base=10000.0, pairing="interleaved", rotary_dim=None):
        rotated = x[..., :rotary_dim]
        y = ra.apply(rotated, pos, pairing=pairing)
        return jax.numpy.concatenate([y, x[..., rotated.shape[-1] :]], -1)

    declines = Target(traced, library="jax", lacks={"widths": "tried elsewhere"}).declines
    for name in ("pairing", "rotary_dim"):
        assert declines[name].startswith("jax.jit traces it, as static_argnames does not name it: ")
    assert "base" not in declines


# ---- refused calls ----


def rows(x):
    return x.shape[-2] if x.ndim > 1 else 1


def arrays(x):
    return x if isinstance(x, tuple) else (x,)


def step(pos):
    """Return the differences of positions along the rows."""
    return np.diff(np.asarray(pos), axis=-1) if np.ndim(pos) else np.ones(0)


def rule(spec):
    return spec.get("scaling") or {"rope_type": "", "factor": 1.0}


# Correct code refuses the calls for which this holds: (x, pos, spec). With them, checks that make such calls.
REFUSED = {
    "4,096 rows": (lambda x, p, s: rows(x) > 4096, "more_rows_than_2e16 many_rows positions_of_a_long_batch"),
    "128 rows": (lambda x, p, s: rows(x) > 128, "more_rows_than_2e16 many_rows results_are_kept norm"),
    "8 rows": (lambda x, p, s: rows(x) > 8, "positions_unchanged inputs_unchanged calls_at_like_positions"),
    "a row": (lambda x, p, s: rows(x) == 1, "positions_offset size_one_axes"),
    "many batches": (lambda x, p, s: x.ndim > 2 and len(x) > 8, "many_batches batches_times_heads"),
    "many heads": (lambda x, p, s: x.ndim > 3 and x.shape[1] > 64, "many_heads many_elements"),
    "many elements": (lambda x, p, s: x.size > 2**20, "large_results_are_kept many_elements"),
    "equal sizes": (lambda x, p, s: x.ndim > 2 and len(x) == x.shape[1], "positions_of_a_batch heads_alike"),
    "wide heads": (lambda x, p, s: x.shape[-1] > 128, "widths_of_each_dtype one_field_at_every_width"),
    "four axes": (lambda x, p, s: x.ndim == 4 and rows(x) == 5 and len(x) == 1, "threads storage_offsets"),
    "strides": (lambda x, p, s: not x.flags.c_contiguous, "strides_of_zero strides results_are_writable"),
    "unaligned x": (lambda x, p, s: x.ctypes.data % 16, "storage_offsets strides"),
    "strided positions": (lambda x, p, s: np.ndim(p) and not p.flags.c_contiguous, "strides_of_positions"),
    "(B, 1)": (lambda x, p, s: np.shape(p)[1:] == (1,), "positions_of_a_batch_decoding"),
    "repeated positions": (lambda x, p, s: (step(p) == 0).any(), "positions_of_their_own identity_at_zero"),
    "packed positions": (lambda x, p, s: np.ndim(p) == 2 and (step(p) < -50).any(), "positions_of_a_batch"),
    "position 0": (lambda x, p, s: np.size(p) and np.min(p) == 0,
        "direction identity_at_zero positions_offset"),
    "NaN": (lambda x, p, s: not np.isfinite(x).all(), "nonfinite_rows"),
    "large numbers": (lambda x, p, s: x.size and np.abs(x.astype(float)).max() > 1e4, "magnitudes"),
    "no elements": (lambda x, p, s: not x.size, "zero_size"),
}  # fmt: skip
# The same for values of fields.
REFUSED_FIELDS = {
    "small bases": (lambda x, p, s: s.get("base", 2) < 1, "base base_of_any_size"),
    "whole bases": (lambda x, p, s: isinstance(s.get("base"), int), "base_of_any_size"),
    "rotary_dim=0": (lambda x, p, s: s.get("rotary_dim") == 0, "rotary_dim no_aliasing kind_of_identity"),
    "odd starts": (lambda x, p, s: (s.get("rotary_start") or 0) % 2,
        "rotary_start rotary_starts_of_wide_heads"),
    "seq_axis=0": (lambda x, p, s: s.get("seq_axis") in (0, -4), "seq_axis combinations"),
    "negative frequencies": (lambda x, p, s: min(s.get("inv_freq") or [1]) < 0, "inv_freq combinations"),
    "small amplitudes": (lambda x, p, s: (s.get("attention_factor") or 1) < 1, "attention_factor"),
    "small factors": (lambda x, p, s: rule(s).get("factor", 1) < 1, "scaling_linear scaling_amplitude"),
    "all but linear": (
        lambda x, p, s: rule(s)["rope_type"] not in ("", "linear"),
        "scaling_linear scaling_yarn scaling_in_turn rules_at_wide_heads axes_and_scaling",
    ),
    "blocks": (lambda x, p, s: (s.get("axes") or {}).get("blocks", 1) > 1,
        "axes_blocks axes_axial axes_and_scaling"),
    "scaled inverses": (lambda x, p, s: s.get("inverse") and s.get("scaling"),
        "scaling_inverse sizes_and_fields"),
}  # fmt: skip


def refusing(refuses):
    """Return correct code that refuses some calls."""

    def rotate(x, pos, **spec):
        if any(refuses(one, pos, spec) for one in arrays(x)):
            raise ValueError("another call")
        return ra.apply(x, pos, **as_records(spec))

    return rotate


@pytest.mark.parametrize("name", [*REFUSED, *REFUSED_FIELDS])
def test_a_refused_call_is_no_failure(name):
    refuses, names = {**REFUSED, **REFUSED_FIELDS}[name]
    judge = Judge(Target(refusing(refuses), fields=None if name in REFUSED_FIELDS else ("base",)))
    some = [each for each in checks() if each.name.partition("[")[0] in names.split()]
    found = {each.name: outcome_of(each, judge) for each in some}
    assert {name: detail for name, (outcome, detail) in found.items() if outcome == FAILED} == {}
    assert len({name.partition("[")[0] for name in found}) == len(names.split())
    named = [detail for _, detail in found.values() if "ValueError: another call" in detail]
    assert named, found


def raising_at_first():
    seen = set()

    def rotate(x, pos, base=10000.0):
        key = np.shape(x), np.shape(pos)
        if rows(x) > 1000 and key not in seen:
            seen.add(key)
            raise RuntimeError("compiled for another shape")
        return ra.apply(x, pos, base=base)

    return rotate


def writing_before_it_raises(x, pos, base=10000.0):
    if rows(x) > 1000:
        x[..., 0] = 0
        raise ValueError("too long")
    return ra.apply(x, pos, base=base)


def without_the_field(x, pos, base=10000.0, pairing="interleaved"):
    if pairing == "half":
        raise KeyError("omega")
    return ra.apply(x, pos, base=base)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (raising_at_first(), "many_rows"),
        (writing_before_it_raises, "many_rows"),
        (without_the_field, "pairing"),
    ],
    ids=["at first", "after writing x", "a claimed field"],
)
def test_an_exception_that_is_no_refusal_is_a_failure(function, name):
    judge = Judge(Target(function))
    found = [
        outcome_of(each, judge) for each in checks() if each.name.partition("[")[0] in ("definition", name)
    ]
    assert FAILED in {outcome for outcome, _ in found}


def test_code_that_raises_from_some_call_on_fails():
    broken = []

    def rotate(x, pos, base=10000.0):
        if broken:
            raise MemoryError("no table is left")
        return ra.apply(x, pos, base=base)

    judge = Judge(Target(rotate))
    broken.append(True)
    (norm,) = [each for each in checks() if each.name == "norm"]
    assert outcome_of(norm, judge)[0] == FAILED


def test_an_exception_beside_other_threads_is_a_failure():
    alone = threading.active_count()  # other tests may have left threads

    def rotate(x, pos, base=10000.0):
        if threading.active_count() > alone and rows(x) == 120:
            raise RuntimeError("the scratch has another shape")
        return ra.apply(x, pos, base=base)

    assert outcomes(Target(rotate), "threads_of_large_calls") == {"threads_of_large_calls": FAILED}


def test_refused_calls_are_in_the_report_and_may_be_required():
    def short(x, pos, base=10000.0):
        if rows(x) > 4000:
            raise ValueError(f"at most 4,000 rows, not {rows(x)}")
        return ra.apply(x, pos, base=base)

    report = run_checks(short, requires=["long_sequences_from_an_offset", "base"])
    text = " ".join(" ".join(lines_of(report)).split())
    assert "Refused, and so not judged, in" in text
    assert "at most 4,000 rows, not 8301; x float16[1, 2, 8301, 16], positions int64[8301]" in text
    assert [result.name for result in report.of(FAILED)] == ["requires[long_sequences_from_an_offset]"]
    assert "long_sequences_from_an_offset refuses 1 of 2 calls" in report.of(FAILED)[0].detail


def test_what_is_claimed_does_not_hold_what_is_refused():
    refuses, _ = REFUSED["(B, 1)"]
    names = ("positions_of_a_batch_decoding", "base", "definition")
    report = run_checks(refusing(refuses), fields=("base",), only=sample(*names))
    assert report.ok
    assert "batch_positions" not in report.as_dict()["claimed"]
    assert "base" in report.as_dict()["claimed"]


# ---- positions of one shape, or none; one kind of rule; one batch ----


def of_a_batch(x, pos, base=10000.0, seq_axis=-2):
    assert pos.shape == (len(x) if seq_axis % 4 else x.shape[1], x.shape[seq_axis])
    return ra.apply(x, pos, base=base, seq_axis=seq_axis)


def of_a_row(x, pos, base=10000.0):
    assert pos.shape == (1, x.shape[-2])
    return ra.apply(x, pos, base=base)


def of_x_alone(x, base=10000.0):
    return ra.apply(x, np.arange(rows(x)), base=base)


def of_consecutive_positions(x, pos, base=10000.0):
    if (step(pos) != 1).any():
        raise ValueError("consecutive positions")
    return ra.apply(x, pos, base=base)


@pytest.mark.parametrize(
    ("function", "kind"),
    [(of_a_batch, "batch"), (of_a_row, "row"), (of_x_alone, "arange"), (of_consecutive_positions, "offset")],
    ids=["batch", "row", "arange", "offset"],
)
def test_positions_of_one_kind_may_be_claimed(function, kind):
    names = (
        "definition",
        "kind",
        "accuracy_small",
        "positions_of_a_batch",
        "combinations",
        "many_rows",
        "zero_size",
    )
    found = outcomes(Target(function, positions=kind), *names)
    assert FAILED not in found.values()
    assert found["definition"] == PASSED
    assert (found["positions_of_a_batch"] == PASSED) == (kind in ("batch", "offset"))
    assert find_cause(Target(function), ["definition"]).claims == {"positions": kind}


def test_a_fault_at_positions_of_a_batch_alone_is_found():
    def reversed_batch(x, pos, base=10000.0):
        assert pos.ndim == 2
        return ra.apply(x, pos[::-1], base=base)

    found = outcomes(Target(reversed_batch, positions="batch"), "definition", "positions_of_a_batch")
    assert found == {"definition": PASSED, "positions_of_a_batch": FAILED}


def test_kinds_of_rules_are_parts():
    refuses, _ = REFUSED_FIELDS["all but linear"]
    target = Target(refusing(refuses), requires=["scaling[linear]", "scaling[yarn]"])
    assert {name for name in target.claimed if whole_of(name) == "scaling"} == {"scaling", "scaling[linear]"}
    assert [*required(target)] == ["requires[scaling[yarn]]"]
    yarn_only = Target(refusing(lambda x, pos, spec: rule(spec)["rope_type"] not in ("", "yarn")))
    assert {"scaling", "scaling[yarn]"} <= yarn_only.claimed
    assert outcomes(yarn_only, "scaling_yarn", "scaling_linear") == {
        "scaling_yarn": PASSED, "scaling_linear": INAPPLICABLE,
    }  # fmt: skip


@pytest.mark.parametrize("layout", ["1hsd", "b1sd", "11sd", "s1hd"])
def test_axes_of_size_one_may_be_claimed(layout):
    def rotate(x, pos):
        assert [x.shape[i] for i, axis in enumerate(layout) if axis == "1"] == [1] * layout.count("1")
        assert x.ndim == 4
        axis = layout.index("s")
        return np.moveaxis(ra.apply(np.moveaxis(x, axis, -2), pos), -2, axis)

    found = outcomes(Target(rotate, layout=layout), "definition", "strides", "no_aliasing", "combinations")
    assert set(found.values()) - {INAPPLICABLE} == {PASSED}


def test_positions_of_one_dtype_may_be_all_that_is_taken():
    def rotate(x, pos, base=10000.0):
        if getattr(pos, "dtype", None) != np.int32:
            raise TypeError("positions are int32")
        return ra.apply(x, pos, base=base)

    target = Target(rotate)
    assert target.position_dtype == "int32"
    assert target.declines["narrow_positions[int64]"] == "refuses it: TypeError: positions are int32"
    assert outcomes(target, "definition", "many_heads") == {"definition": PASSED, "many_heads": PASSED}


@pytest.mark.library("torch")
@pytest.mark.parametrize("what", ["of 16-bit numbers", "of many rows", "at positions of a batch"])
def test_a_refused_gradient_is_no_failure(what):
    torch = pytest.importorskip("torch")

    def rotate(x, pos, base=10000.0):
        kinds = {
            "of 16-bit numbers": x.dtype.itemsize == 2,
            "of many rows": rows(x) > 128,
            "at positions of a batch": pos.ndim == 2,
        }
        if x.requires_grad and kinds[what] and torch.is_grad_enabled():
            raise NotImplementedError(f"no gradient {what}")
        return ra.apply(x, pos, base=base)

    names = ["gradient", "gradient_of_a_batch", "gradient_at_wide_heads", "training_after_inference"]
    found = outcomes(Target(rotate, library="torch"), *names, "gradient_combinations", "gradient_of_a_sum")
    assert FAILED not in found.values()
    assert found["gradient_of_a_sum"] == found["gradient[float32]"] == PASSED


@pytest.mark.library("torch")
def test_code_without_a_gradient_is_told_to_claim_it():
    pytest.importorskip("torch")

    def rotate(x, pos, base=10000.0):
        if x.requires_grad:
            raise NotImplementedError("no gradient")
        return ra.apply(x, pos, base=base)

    failed = {"gradient[float32]": "ValueError: no gradient", "gradient_of_a_sum": "ValueError: no gradient"}
    assert lacks_wholly("gradient", failed, [*failed])
    assert not lacks_wholly("gradient", {**failed, "gradient_of_a_sum": "wrong: all elements"}, [*failed])
    target = Target(rotate, library="torch", lacks={"gradient": "inference only"})
    assert outcomes(target, "gradient_of_a_sum") == {"gradient_of_a_sum": INAPPLICABLE}


# ---- wrong words ----


@pytest.mark.parametrize("word", ["yes", "true", "on", "1", "False", "no", " None ", "", True, 1, None])
def test_a_reason_is_a_reason(word):
    with pytest.raises(ValueError, match="give the reason why the target lacks it, or --require ranks"):
        Target(rotate, lacks={"ranks": word})


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"lacks": {"rank": "why"}}, "unknown lacks 'rank'; did you mean ranks"),
        ({"lacks": {"ranks[9]": "why"}}, r"unknown lacks 'ranks\[9\]'; ranks has the parts 1, 2, 3, 4, 5, 6"),
        ({"requires": ["batch_postions"]}, "did you mean batch_positions"),
        ({"requires": ["inv_frequency"]}, "did you mean inv_freq"),
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
        ({"fixed": {"base": -1.0}}, "base must be a positive number"),
        ({"fixed": {"scaling": {"rope_type": "linaer"}}}, "linaer"),
        ({"fixed": {"scaling": {"rope_type": "linear"}}}, "built-in fields"),
        ({"fixed": {"rotary_dim": 32}, "head_dim": (16, 64)}, "must be within head_dim, which is 16"),
    ],
)
def test_wrong_words_in_claims_are_errors(claims, message):
    with pytest.raises(ValueError, match=message):
        Target(rotate, **claims)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("json:dump", None),
        ("json:lods", "did you mean json:loads?"),
        ("json.dumps", "Did you mean json:dumps?"),
        ("json/decoder.py:scan", "Did you mean json.decoder:scan?"),
        ("nunpy", "Did you mean numpy?"),
    ],
)
def test_a_wrong_name_of_a_target_names_the_right_one(name, hint):
    if hint is None:
        assert resolve(name).name == name
        return
    with pytest.raises(ValueError, match=hint.replace("?", r"\?")):
        resolve(name)


def test_a_wrong_name_of_a_check_names_the_right_one():
    with pytest.raises(ValueError, match="similar: accuracy_"):
        check_expected({"acuracy": "why"}, ())


def test_a_case_that_is_refused_is_not_judged():
    refuses, _ = REFUSED["128 rows"]
    report = run_checks(refusing(refuses), cases=["rows=1,1,200"])
    first = " ".join(" ".join(lines_of(report)).split())
    assert first.startswith(
        "NOT JUDGED: refuses every call: ValueError: another call; x float32[1, 1, 200, 16]"
    )


def test_the_last_right_position_is_advised():
    def off_by_one(x, pos, base=10000.0):
        pos = np.asarray(pos)
        return ra.apply(x, np.where(pos >= 8192, pos + 1, pos) if pos.dtype.kind in "iu" else pos, base=base)

    cause = find_cause(Target(off_by_one), ["accuracy_2e16[float32]", "long_sequences_from_an_offset"])
    assert cause.claims == {"furthest": 8191}


def test_the_command_reads_these_claims():
    claims = claims_of(
        [
            "ranks[1]=rows only",
            "head_dim=64,128",
            "in_place=true",
            "arguments=q,k,pos",
            "requires=base,tuple[2]",
        ]
    )
    assert claims == {
        "lacks": {"ranks[1]": "rows only"}, "head_dim": (64, 128), "in_place": True, "arguments": "q,k,pos",
        "requires": ("base", "tuple[2]"),
    }  # fmt: skip
    with pytest.raises(ValueError, match="unknown claim 'batch_postions'; did you mean batch_positions"):
        claims_of(["batch_postions=why"])


def test_the_report_lists_what_is_claimed():
    report = run_checks(rotate, only=sample("definition", "base", "tuples"))
    plain = json.loads(json.dumps(report.as_dict()))
    assert {"base", "ranks", "tuple"} <= set(plain["claimed"])


# ---- wrong where a part is refused ----


def failures_of(function, *names):
    judge = Judge(Target(function))
    found = [check for check in checks() if check.name.partition("[")[0] in names]
    return {check.name for check in found if outcome_of(check, judge)[0] == FAILED}


def refuses_below(x, pos):
    if np.size(pos) and np.min(pos) < -(2**20):
        raise OverflowError("positions from -2^20 on")
    return ra.apply(x, pos)


def clipped_and_refuses_below(x, pos):
    refuses_below(x, pos)
    return ra.apply(x, np.maximum(pos, -4096))


def test_negative_positions_are_checked_as_far_down_as_they_are_taken():
    names = "accuracy_negative", "positions_of_narrow_dtypes", "accuracy_float", "dtypes_and_fields"
    assert Target(refuses_below).depth == 2**20
    assert failures_of(refuses_below, *names) == set()
    assert "accuracy_negative[float32]" in failures_of(clipped_and_refuses_below, "accuracy_negative")


def test_positions_of_heads_alone_are_checked_where_a_batch_of_them_is_refused():
    def rotate(x, pos):
        if np.ndim(pos) == 3 and np.shape(pos)[0] > 1:
            raise ValueError("one batch only")
        return ra.apply(
            x, np.broadcast_to(np.asarray(pos)[:, :1], np.shape(pos)) if np.ndim(pos) == 3 else pos
        )

    assert failures_of(rotate, "positions_broadcast") == {"positions_broadcast"}


@pytest.mark.parametrize("wrong", [False, True])
def test_positions_of_other_strides_are_checked_where_negative_ones_are_refused(wrong):
    def rotate(x, pos):
        array = isinstance(pos, np.ndarray) and pos.ndim == 1 and pos.size > 1
        if array and pos.strides[0] < 0:
            raise ValueError("negative strides")
        if wrong and array and pos.strides[0] == 3 * pos.itemsize:
            pos = pos[0] + np.arange(pos.size)
        return ra.apply(x, pos)

    assert failures_of(rotate, "positions_reversed") == ({"positions_reversed"} if wrong else set())
