"""Claims of a target: parts of capabilities, requirements, limits that can be declared, and wrong words."""

import json

import numpy as np
import pytest

import rope_array as ra
from rope_array.testing import Target, check_backend, run_checks
from rope_array.testing._checks import checks
from rope_array.testing._claims import CAPABILITIES
from rope_array.testing._judge import Judge
from rope_array.testing._options import claims_of
from rope_array.testing._outcome import FAILED, PASSED, outcome_of
from rope_array.testing._parts import ALL_WIDTHS, PART_NAMES, PARTS, spread, whole_of


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
    report = check_backend(Tables(16, rows), fixed={"pairing": "half"})
    assert report.target.reach == rows - 1
    assert "definition" in {result.name for result in report.of(PASSED)}


@pytest.mark.parametrize("head_dim", [2, 4, 6, 8, 12])
def test_narrow_heads_may_be_claimed(head_dim):
    def narrow(x, pos, **spec):
        assert x.shape[-1] == head_dim
        return ra.apply(x, pos, **spec)

    report = check_backend(narrow, head_dim=head_dim, angles="exact", furthest=2**62)
    assert {"rotary_dim", "rotary_start", "combinations"} <= {result.name for result in report.of(PASSED)}


def test_code_that_works_in_place_may_be_claimed():
    def in_place(x, pos, base=10000.0):
        x[...] = ra.apply(x, pos, base=base)

    report = check_backend(in_place, in_place=True)
    assert report.target.declines["keeps_x"] == "writes its result into x"
    assert "strides[float32]" in {result.name for result in report.of(PASSED)}
    assert not run_checks(in_place).ok


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
    plain = json.loads(json.dumps(run_checks(rotate).as_dict()))
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
