"""The likely causes that a report names: tried on code as users have it, and told as data."""

import numpy as np
import pytest
from conftest import sample
from faults import named

import rope_array as ra
from rope_array.testing import Target, check_backend, run_checks
from rope_array.testing._causes import DONATES_X, find_causes
from rope_array.testing._checks import checks
from rope_array.testing._command import lines_of
from rope_array.testing._judge import DELETES_X, Judge
from rope_array.testing._outcome import outcome_of
from rope_array.testing._shared_findings import depend_on_others, shared_findings
from rope_array.testing._verdict import Fault


def angles(x, pos, base=10000.0, dtype=np.float64):
    """Return angles; positions of shape (B, S) apply to all heads."""
    width = x.shape[-1]
    omega = dtype(base) ** (-np.arange(0, width, 2, dtype=dtype) / dtype(width))
    angle = np.asarray(pos).astype(dtype)[..., None] * omega
    return angle[:, None] if angle.ndim == 3 and x.ndim == 4 else angle


def by_pairs(x, angle, sign=1):
    y, (cos, sin) = np.empty(x.shape, np.result_type(x, angle)), (np.cos(angle), sign * np.sin(angle))
    y[..., ::2] = x[..., ::2] * cos - x[..., 1::2] * sin
    y[..., 1::2] = x[..., 1::2] * cos + x[..., ::2] * sin
    return y


def by_halves(x, angle):
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def float32_angles(x, pos):
    return by_pairs(x, angles(x, pos, dtype=np.float32)).astype(x.dtype)


def float32_halves(x, pos):
    return by_halves(x, angles(x, pos, dtype=np.float32)).astype(x.dtype)


def rows_before_heads(x, pos):
    angle = angles(x[:, :, 0], pos)
    return by_pairs(x, angle[..., :, None, :]).astype(x.dtype)


def rows_before_heads_in_halves(x, pos):
    angle = angles(x[:, :, 0], pos, dtype=np.float32)
    return by_halves(x, angle[..., :, None, :]).astype(x.dtype)


def another_base(x, pos):
    return by_pairs(x, angles(x, pos, 500_000.0)).astype(x.dtype)


def a_quarter(x, pos):
    rotated, rest = np.split(x, [x.shape[-1] // 4], axis=-1)
    return np.concatenate([by_pairs(rotated, angles(rotated, pos)).astype(x.dtype), rest], axis=-1)


def interpolated(x, pos):
    return by_pairs(x, angles(x, np.asarray(pos) / 4)).astype(x.dtype)


def rows_from_0(x, pos):
    return by_pairs(x, angles(x, np.arange(x.shape[-2]))).astype(x.dtype)


def only_the_first_batch(x, pos):
    angle = angles(x, pos)
    return by_pairs(x, angle[0] if np.ndim(pos) == 2 else angle).astype(x.dtype)


def tables_of_16_bits(x, pos):
    angle = angles(x, pos)
    return by_pairs(x, angle).astype(x.dtype) if x.dtype != np.float16 else _rounded_often(x, angle)


def _rounded_often(x, angle):
    cos, sin, y = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype), np.empty_like(x)
    y[..., ::2] = x[..., ::2] * cos - x[..., 1::2] * sin
    y[..., 1::2] = x[..., 1::2] * cos + x[..., ::2] * sin
    return y


def by_complex64(x, pos):
    pairs = np.ascontiguousarray(x, np.float32).view(np.complex64)
    return (pairs * np.exp(1j * angles(x, pos)).astype(np.complex64)).view(np.float32).astype(x.dtype)


def short_positions(x, pos):
    return by_pairs(x, angles(x, np.asarray(pos).astype(np.int16))).astype(x.dtype)


class TablesInHalves:
    """Tables of 2,048 rows for a head_dim of 64; a negative position is a row from the end."""

    def __init__(self):
        self.angle = angles(np.zeros((2048, 64)), np.arange(2048), dtype=np.float32)

    def __call__(self, x, pos):
        angle = self.angle[pos]
        return by_halves(x, angle[:, None] if angle.ndim == 3 else angle).astype(x.dtype)


def int16_positions_and_more(x, pos):
    """Integer positions wrap at 2^15; the last pair of 32 is too fast; heads from 32 on are not rotated."""
    pos = np.asarray(pos)
    angle = angles(x, pos.astype(np.int16) if pos.dtype.kind in "iu" else pos)
    angle[..., -1] *= 1.5 if x.shape[-1] == 64 else 1
    y = by_pairs(x, angle).astype(x.dtype)
    if x.ndim == 4:
        y[:, 32:] = x[:, 32:]
    return y


def scaling_ignored_and_the_last_row(x, pos, base=10000.0, scaling=None):
    y = by_pairs(x, angles(x, pos, base)).astype(x.dtype)
    if x.ndim > 1 and x.shape[-2] > 512:
        y[..., 512:, :] = 0
    return y


def half_pairing_and_a_wrong_inverse(x, pos, inverse=False):
    return x.copy() if inverse else ra.apply(x, pos, pairing="half")


def the_last_features(x, pos):
    y = ra.apply(x, pos)
    y[..., -2:] = x[..., -2:]
    return y


def heads_from_64(x, pos):
    y = ra.apply(x, pos)
    if x.ndim == 4:
        y[:, 64:] = x[:, 64:]
    return y


def float16_rows_from_512(x, pos):
    y = ra.apply(x, pos)
    if x.dtype == np.float16 and x.ndim > 1:
        y[..., 512:, :] *= 2
    return y


def heads_wider_than_64(x, pos):
    return (ra.apply(x, pos) * (1.01 if x.shape[-1] > 64 else 1)).astype(x.dtype)


def widths_that_are_powers_of_two(x, pos):
    return x.copy() if x.shape[-1] & (x.shape[-1] - 1) else ra.apply(x, pos)


def llama(x, pos):
    return ra.apply(x, pos, base=500_000.0, pairing="half", scaling=ra.Llama3(8.0))


def a_slice(x, pos):
    return ra.apply(x, pos, rotary_start=4, rotary_dim=8)


def another_base_backwards(x, pos):
    return ra.apply(x, pos, base=1e6, inverse=True)


def clockwise(x, pos):
    return by_pairs(x, angles(x, pos), sign=-1).astype(x.dtype)


def from_1(x, pos):
    return by_pairs(x, angles(x, np.asarray(pos) + 1)).astype(x.dtype)


def float64_results(x, pos):
    return by_pairs(x, angles(x, pos))


def unrotated(x, pos):
    return x.copy()


def two_results(x, pos):
    return x, x


def four_arguments(q, k, cos, sin, position_ids=None):
    return q, k


def without_a_device(x, pos):
    raise RuntimeError("no device")


def in_place(x, pos):
    x[...] = by_pairs(x, angles(x, pos))
    return x


# Checks that tell these faults apart.
TELLING = (
    *("definition", "direction", "kind", "ranks", "norm", "combinations", "base", "inverse", "widths"),
    *("accuracy_small", "accuracy_2e16", "accuracy_2e20", "accuracy_int32", "accuracy_negative"),
    *("accuracy_float", "long_sequences_from_an_offset", "positions_of_python", "positions_broadcast"),
    *("positions_of_a_batch", "positions_of_many_batches", "positions_offset", "scaling_linear"),
    *("batch_positions_of_other_ranks", "sizes_and_fields", "inputs_unchanged", "no_aliasing"),
    *("many_heads", "many_rows", "wide_heads", "one_field_at_every_width"),
)
# Checks that tell conventions and classes of accuracy apart.
FEW = ("definition", "direction", "kind", "norm", "accuracy_small", "accuracy_2e16", "accuracy_2e20")
# Checks of one dtype, where no other dtype has a part in the cause: they take half the time.
ONE_DTYPE = {"dtypes": ("float32",)}
FLOAT32 = {"angles": "float32", "furthest": 65535}


def judged(rotate, *more, **claims):
    """Run the checks that tell faults apart, and more."""
    return run_checks(rotate, only=sample(*TELLING, *more), **claims)


def name_of(rotate):
    return getattr(rotate, "__name__", type(rotate).__name__)


INT16 = {"positions": "pos converted to int16"}
# Code with faults, and the facts of each cause that the report has to name.
FAULTS = {
    int16_positions_and_more: [INT16, {"pairs": (31,), "num_pairs": 32}, {"axis": "head", "first": 32}],
    scaling_ignored_and_the_last_row: [{"field": "scaling"}, {"axis": "row", "first": 512}],
    half_pairing_and_a_wrong_inverse: [{"pairing": "half"}, {"lacks": ["inverse"]}],
    short_positions: [INT16],
    only_the_first_batch: [{"positions": "the positions of batch 0"}],
    heads_from_64: [{"axis": "head", "first": 64}],
    float16_rows_from_512: [{"axis": "row", "first": 512}],
    heads_wider_than_64: [{"width": "66"}],
    the_last_features: [{"axis": "feature", "last": 2}],
    llama: [{"pairing": "half", "base": 500_000.0}],
    a_slice: [{"rotary_start": 4, "rotary_dim": 8}],
    another_base_backwards: [{"base": 1e6, "inverse": True}],
    clockwise: [{"inverse": True}],
    from_1: [{"positions": "pos + 1"}],
    float64_results: [{"dtype": "float64"}],
    in_place: [{"written": "x"}],
}
# The first of FAULTS is the example below.
IN_EACH_RUN = (half_pairing_and_a_wrong_inverse, heads_from_64, float16_rows_from_512, llama, in_place)


def holds(facts, cause):
    """Return whether a cause has some facts."""
    return facts.items() <= {**cause.facts}.items()


def cases(rotates, in_each_run):
    """Return functions as parameters; the others are left to `nightly`."""
    marks = {rotate: () if rotate in in_each_run else pytest.mark.nightly for rotate in rotates}
    return [pytest.param(rotate, id=name_of(rotate), marks=marks[rotate]) for rotate in rotates]


@pytest.mark.slow
@pytest.mark.parametrize("rotate", cases(FAULTS, IN_EACH_RUN))
def test_each_fault_is_named_with_the_checks_that_it_explains(rotate):
    dtypes = ("float16", "float32") if rotate is float16_rows_from_512 else ("float32",)
    report = judged(rotate, dtypes=dtypes)
    for facts in FAULTS[rotate]:
        (cause,) = (cause for cause in report.causes if holds(facts, cause))
        assert cause.checks
    explained = [name for cause in report.causes for name in cause.checks]
    unexplained = [name for names in report.unexplained.values() for name in names]
    failed = [result.name for result in report.of("failed")]
    assert sorted(explained + unexplained) == sorted(failed)
    assert len(explained) >= 0.9 * len(failed)
    assert report.cause.explained == len(explained)
    assert report.cause.failed == len(failed)


def test_the_causes_of_the_example_are_of_no_other_checks():
    """Each of three faults has the checks that find no other one."""
    report = judged(int16_positions_and_more, **ONE_DTYPE)
    causes = [{**cause.facts} for cause in report.causes]
    assert sorted(causes, key=str) == sorted(FAULTS[int16_positions_and_more], key=str)
    of_check = {name: cause.facts for cause in report.causes for name in cause.checks}
    assert of_check["accuracy_int32[float32]"] == INT16
    assert of_check["many_heads"] == {"axis": "head", "first": 32}
    assert of_check["widths"] == {"pairs": (31,), "num_pairs": 32}
    assert not report.unexplained


# Claims that end all failures.
CLAIMED = {
    float32_angles: FLOAT32,
    float32_halves: {"fixed": {"pairing": "half"}, **FLOAT32},
    rows_before_heads: {"layout": "bshd"},
    rows_before_heads_in_halves: {"layout": "bshd", "fixed": {"pairing": "half"}, **FLOAT32},
    another_base: {"fixed": {"base": 500_000.0}},
    a_quarter: {"fixed": {"rotary_dim": 16}, "head_dim": 64},
    interpolated: {"fixed": {"scaling": {"rope_type": "linear", "factor": 4.0}}},
    rows_from_0: {"positions": "arange"},
    by_complex64: {"dtypes": ("float16", "float32")},
    tables_of_16_bits: {"arithmetic": "own"},
}


# The command of the documentation has the cause of float32_halves: tests/test_check.py.
@pytest.mark.slow
@pytest.mark.parametrize("rotate", cases(CLAIMED, (rows_before_heads, another_base)))
def test_the_claims_of_a_cause_end_its_failures(rotate):
    dtypes = {} if rotate in (by_complex64, tables_of_16_bits) else ONE_DTYPE
    report = judged(rotate, **dtypes)
    cause = report.cause
    assert cause.claims == CLAIMED[rotate]
    assert cause.explained == cause.failed == len(report.of("failed"))
    assert check_backend(rotate, only=sample(*TELLING), **{**dtypes, **cause.claims}).ok


def table_in_the_order_of_halves(x, pos):
    angle = angles(x, pos)
    angle = np.concatenate([angle, angle], axis=-1)
    other = np.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)
    return (x * np.cos(angle) + other * np.sin(angle)).astype(x.dtype)


# Faults of the plain call, which is no rotation.
PLAIN = {
    unrotated: "it returns x as it is",
    two_results: "rotate(x, pos) returns a tuple; return x rotated, one array",
    four_arguments: "the suite calls rotate(x, pos), and its parameters are ",
    without_a_device: "rotate(x, pos) raises RuntimeError: no device",
    table_in_the_order_of_halves: "in the plain call, features pair interleaved, and the table of angles is ",
}  # fmt: skip


@pytest.mark.parametrize("rotate", PLAIN, ids=name_of)
def test_a_plain_call_that_is_no_rotation_is_the_only_cause(rotate):
    report = run_checks(rotate, only=sample(*FEW), **ONE_DTYPE)
    assert report.cause.text.startswith(PLAIN[rotate])
    assert not report.cause.claims
    assert report.causes == (report.cause,)
    (first, *_) = " ".join(lines_of(report)).split("\n")
    assert first.startswith(f"FAILED: {len(report.of('failed'))} of ")


def test_a_fault_of_every_result_has_no_cause():
    """An error of 1e-4 in sin is no rounding of any class."""

    def rotate(x, pos):
        angle = angles(x, pos)
        a, b = np.split(x, 2, axis=-1)
        cos, sin = np.cos(angle), np.sin(angle) + 1e-4
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)

    report = run_checks(rotate, only=sample(*FEW), fixed={"pairing": "half"}, **ONE_DTYPE)
    assert report.cause is None
    assert "No single cause was found." in next(lines_of(report))
    assert {"accuracy_small[float32]", "definition"} <= {result.name for result in report.of("failed")}


def test_correct_code_has_no_cause():
    report = judged(lambda x, pos: by_pairs(x, angles(x, pos)).astype(x.dtype))
    assert report.ok
    assert report.cause is None
    assert next(lines_of(report)).startswith("PASSED: ")


def test_code_that_needs_contiguous_arrays_passes():
    def rotate(x, pos):
        if not x.flags.c_contiguous:
            raise ValueError("x has to be contiguous")
        return by_pairs(x, angles(x, pos)).astype(x.dtype)

    assert check_backend(rotate, only=sample(*TELLING, "memory")).ok


@pytest.mark.library("torch")
def test_a_module_of_another_library_is_told_all_its_claims():
    """A rotary class as in transformers: PyTorch only, one head_dim, halves, float32 angles."""
    torch = pytest.importorskip("torch")
    omega = 1.0 / 10000.0 ** (torch.arange(0, 64, 2).float() / 64)

    def rotate(x, pos):
        angle = pos.float()[..., None] * omega
        angle = torch.cat([angle, angle], dim=-1)
        cos, sin = (table[:, None] if table.ndim == 3 else table for table in (angle.cos(), angle.sin()))
        a, b = x.chunk(2, dim=-1)
        return (x * cos + torch.cat([-b, a], dim=-1) * sin).to(x.dtype)

    cause = run_checks(rotate, only=sample(*FEW)).cause
    assert cause.claims == {"library": "torch", "fixed": {"pairing": "half"}, **FLOAT32}
    assert check_backend(rotate, only=sample(*FEW, "positions_of_a_batch", "gradient"), **cause.claims).ok


# ---- the lines of a report ----


@pytest.fixture(scope="module")
def failed():
    return judged(float32_halves, "base", "jit", angles="float32", **ONE_DTYPE)


def test_the_verdict_is_first_and_its_command_can_be_pasted(failed):
    command = ["check", "mylib:rotate", "--claim", "angles=float32", "--expect", "norm=a reason"]
    lines = list(lines_of(failed, command))
    failures = len(failed.of("failed"))
    assert lines[0].startswith(f"FAILED: {failures} of ")
    assert "half pairing, wrong results beyond position 65,535; try --claim" in " ".join(lines[:3])
    pasted = next(line for line in lines if line.startswith("  python -m rope_array"))
    assert pasted == (
        "  python -m rope_array check mylib:rotate --claim angles=float32 --expect 'norm=a reason' "
        "--claim pairing=half --claim furthest=65535"
    )


def test_claims_of_the_command_are_replaced():
    report = run_checks(float32_angles, only=sample(*FEW), furthest=2**24, **ONE_DTYPE)
    lines = lines_of(report, ["check", "mylib:rotate", "--claim", "furthest=16777216"])
    pasted = next(line for line in lines if line.startswith("  python -m rope_array"))
    assert pasted.count("furthest=") == 1
    assert "--claim furthest=65535" in pasted


def test_every_check_is_in_the_lines_of_verbose(failed):
    text = "\n".join(lines_of(failed, verbose=True))
    for name in {result.name.partition("[")[0] for result in failed.results}:
        assert name in text
    short = list(lines_of(failed))
    assert len(short) < 70
    assert max(map(len, short)) <= 110


def test_checks_that_do_not_apply_are_counted_after_the_passes(failed):
    lines = list(lines_of(failed))
    starts = [
        next(i for i, line in enumerate(lines) if line.startswith(f"\n{word}"))
        for word in ("Failed (", "Passed (", f"{len(failed.of('not applicable'))} do not apply; --verbose")
    ]
    assert starts == sorted(starts)
    assert starts[-1] > len(lines) - 4


def test_a_cause_is_found_by_declared_targets():
    target = Target(float32_angles, declared=True, fields=(), lacks={"tuple": "takes one array"})
    assert run_checks(target, only=sample(*FEW)).cause.claims == FLOAT32


# ---- failures that no claim explains: the checks' own words ----


def sticky_base(x, pos, _kept=[1e4], **spec):  # noqa: B006 (the fault)
    y = ra.apply(x, pos, **{"base": _kept[0], **spec})
    if not isinstance(x, tuple) and np.size(x) > 2**19:
        _kept[0] = 5e5
    return y


def one_wrong_call(x, pos, _count=[0], **spec):  # noqa: B006 (the fault)
    _count[0] += 1
    y = ra.apply(x, pos, **spec)
    return np.zeros_like(y) if isinstance(y, np.ndarray) and 900 <= _count[0] < 905 else y


def float64_angles_modulo_a_turn(x, pos):
    return by_pairs(x, np.mod(angles(x, pos), 2 * np.pi)).astype(x.dtype)


def deep_positions_refused(x, pos):
    if np.min(pos, initial=0) < -(2**20):
        raise ValueError("negative positions end at -2^20")
    return by_pairs(x, angles(x, pos)).astype(x.dtype)


def tiles_of_16_rows(x, pos):
    y = ra.apply(x, pos)
    if x.ndim > 1 and x.shape[-2] > 64 and (rest := x.shape[-2] % 16):
        y[..., -rest:, :] = x[..., -rest:, :]
    return y


TOLD = {
    named("base_ignored_at_wide_heads"): "wrong with width=96 base=500.0, right with width=94, ",
    named("half_pairing_wrong_at_64"): "wrong with width=64 pairing=half, right with width=",
    named("strides_misread_with_half_pairing"): "wrong with layout=",
    tiles_of_16_rows: "wrong with rows=1,1,65, right with rows=1,1,64: row 64, equal to x, unchanged",
    sticky_base: "right at first, and wrong for good after some call: the first check to fail is ",
    one_wrong_call: "results depend on earlier calls: ",
}


# Checks that fail for one of TOLD or more, and the plain call.
OF_SIMPLEST_CALLS = (
    *("definition", "kind", "base", "widths", "widths_and_fields", "one_field_at_every_width", "memory"),
    *("sizes_and_fields", "many_rows", "many_elements", "calls_in_turn"),
)


@pytest.mark.slow
@pytest.mark.parametrize("rotate", cases(TOLD, {*TOLD} - {tiles_of_16_rows, one_wrong_call}))
def test_the_cause_is_in_the_words_of_the_simplest_failing_call(rotate):
    cause = run_checks(getattr(rotate, "rotate", rotate), only=sample(*OF_SIMPLEST_CALLS)).cause
    assert cause.text.startswith(TOLD[rotate])
    assert len(str(cause)) < 400
    assert not cause.stated


@pytest.mark.parametrize("rotate", [float64_angles_modulo_a_turn, deep_positions_refused], ids=name_of)
def test_a_class_of_accuracy_is_not_claimed_for_plain_calls_that_are_right(rotate):
    report = judged(rotate)
    if not report.ok:
        assert not report.cause.stated


GRADIENTS_AND_MODES = {
    "gradient_without_base": "the gradient is wrong",
    "gradient_of_64_heads": "the gradient is wrong",
    "written_without_gradients": "under torch.inference_mode(): x was written",
}


@pytest.mark.library("torch")
@pytest.mark.slow
@pytest.mark.parametrize("name", GRADIENTS_AND_MODES)
def test_gradients_and_modes_are_named_and_not_claimed_away(name):
    pytest.importorskip("torch")
    names = ("definition", "kind", "gradient", "gradient_of_one_field", "gradient_of_shapes")
    only = sample(*names, "gradient_combinations", "inference_mode", "many_heads")
    cause = run_checks(named(name), only=only, library="torch").cause
    assert cause.text.startswith(GRADIENTS_AND_MODES[name])
    assert not cause.claims


def test_a_claim_to_lack_a_capability_is_said_as_one_and_not_pasted():
    needing = [check.name for check in checks() if "batch_positions" in check.needs]
    report = judged(only_the_first_batch, *needing, fixed={"base": 10000.0}, **ONE_DTYPE)
    assert report.cause.withdrawn == {"lacks": {"batch_positions": "wrong results"}}
    assert not report.cause.stated
    lines = list(lines_of(report, ["check", "mylib:rotate"]))
    assert "only if nobody calls it so, claim that it lacks this: --claim" in " ".join("".join(lines).split())
    assert not any(line.startswith("  python -m rope_array") and "lacks" in line for line in lines)
    assert not any("=wrong results" in line for line in lines if line.startswith("  python"))


def test_a_missing_requirement_has_no_cause_to_look_for():
    def rotate(x, pos):
        if np.ndim(pos) == 2 or x.ndim == 1:
            raise ValueError("one row of positions")
        return by_pairs(x, angles(x, pos)).astype(x.dtype)

    text = " ".join("\n".join(lines_of(run_checks(rotate, requires=("batch_positions",)))).split())
    assert "It lacks what is required." in text
    assert "No single cause" not in text
    assert "Partly declined: ranks[1]" in text


@pytest.mark.library("jax")
def test_a_deleted_x_is_named_and_not_the_head_dims_at_which_it_is():
    import jax

    doubled = jax.jit(lambda x: 2 * x, donate_argnums=0)

    def rotate(x, pos):
        y = ra.apply(x, pos)
        if x.shape[-1] >= 96 and not isinstance(x, jax.core.Tracer):
            doubled(x)
        return y

    target = Target(rotate, library="jax", declared=True)
    (widths,) = (check for check in checks() if check.name == "widths")
    judge = Judge(target)
    assert DELETES_X in outcome_of(widths, judge)[1]
    assert find_causes(target, judge.faults).cause.text == DONATES_X


def faults_of(**texts):
    return {name: Fault(text) for name, text in texts.items()}


def test_a_changed_setting_is_named_and_not_that_calls_depend_on_others():
    failed = faults_of(settings_unchanged="the call changed jax_enable_x64", kind="the result is float64")
    assert depend_on_others(failed, lambda name: False, True) == "the call changed jax_enable_x64"
    assert depend_on_others(failed, lambda name: name == "kind", False) == ""
    assert "kind" in depend_on_others({"kind": failed["kind"]}, lambda name: False, True)


def test_wrong_results_are_named_before_an_exception_that_one_other_check_met():
    failed = faults_of(
        vmap_positions="vmap over positions: wrong: all elements; by the inverse; 3 of 3 elements",
        jit_gradient="compiled: ValueError: Linearization failed",
    )
    requirements = dict.fromkeys(failed, "It is right.")
    first = next(shared_findings(failed, requirements))
    assert first.text.startswith("vmap over positions, wrong")
    del failed["vmap_positions"]
    assert "Linearization failed" in next(shared_findings(failed, requirements)).text


def test_positions_of_a_batch_are_told_before_another_layout():
    """Tables of rows with an axis for heads broadcast to (B, S, H, D) too, as in most of Hugging Face."""

    def by_position_ids(x, pos):
        angle = angles(np.zeros((1, x.shape[-1])), pos)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., ::2], x[..., 1::2]
        return np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape).astype(x.dtype)

    report = run_checks(by_position_ids, only=sample(*FEW, "positions_of_a_batch", "ranks"), **ONE_DTYPE)
    assert report.cause.claims == {"positions": "batch"}


def test_q_and_k_are_never_said_to_be_lacking():
    def rotate(q, k, pos):
        return ra.apply(q, pos), 0 * ra.apply(k, pos)

    report = judged(rotate, "tuples", arguments="q,k,pos", dtypes=["float32"])
    assert not report.ok
    assert "tuple=" not in str(report.cause).replace("in_tuple=", "")


def test_positions_kept_by_identity_are_a_cause_with_a_text():
    kept = {}

    def rotate(x, pos):
        if kept.get("pos") is not pos:
            kept.update(pos=pos, numbers=np.array(pos))
        return by_pairs(x, angles(x, kept["numbers"])).astype(x.dtype)

    report = run_checks(rotate, only=["positions_written_in_place"])
    assert not report.ok
    assert report.cause is None or "pos - 1" in report.cause.text
    assert "" not in [cause.text for cause in report.causes]


def test_a_call_that_writes_positions_is_told_apart_from_wrong_rows_of_like_calls():
    wrong = Fault("wrong: row 100; equal to x, unchanged", call="rows=1,1,101")
    written = Fault("pos was written", call="rows=2,3,5 width=32")
    faults = {"many_rows": wrong, "inputs_unchanged": written, "many_elements": wrong}
    shown = shared_findings(faults, dict.fromkeys(faults, "It is right."))
    assert next(shown).names == ("many_rows", "many_elements")


def test_a_call_after_positions_were_written_does_not_explain_other_calls():
    place = "wrong: row 2; equal to x, unchanged"
    stale = Fault(place, call="reach=0", contexts=("positions were written since the last call",))
    other = Fault(place, call="rows=1,1,4 reach=10")
    faults = {"positions_written_in_place": stale, "calls_at_other_positions": other}
    assert len(next(shared_findings(faults, dict.fromkeys(faults, "It is right."))).names) == 1


def test_two_conventions_are_found_by_the_definition_alone():
    def rotate(x, pos):
        return by_halves(x, angles(x, pos, dtype=np.float32)).astype(x.dtype)

    report = run_checks(rotate, only=["definition"], dtypes=["float32"])
    assert report.cause.claims == {"fixed": {"pairing": "half"}, "angles": "float32"}


def test_a_call_that_is_right_if_it_is_repeated_is_no_case():
    wrong = [True]

    def rotate(x, pos):
        at_45 = np.size(pos) == 1 and np.max(pos) == 45
        return -ra.apply(x, pos) if at_45 and wrong and wrong.pop() else ra.apply(x, pos)

    (failed,) = run_checks(rotate, only=["decoding_steps"]).of("failed")
    assert "; right if the call is repeated: " in failed.detail
    assert failed.call == ""


def test_the_call_of_an_observer_is_the_simplest():
    def rotate(x, pos):
        y = by_pairs(x, angles(x, pos)).astype(x.dtype)
        y.setflags(write=False)
        return y

    report = run_checks(rotate, only=["magnitudes", "results_are_writable"], dtypes=["float16", "float32"])
    assert [one.call for one in report.of("failed")] == [""]


@pytest.mark.library("torch")
def test_a_gradient_that_is_lost_in_one_dtype_is_not_claimed_away():
    torch = pytest.importorskip("torch")

    def rotate(x, pos):
        y = ra.apply(x, pos)
        return y.detach().requires_grad_() if x.dtype == torch.bfloat16 and x.requires_grad else y

    report = run_checks(rotate, only=["gradient", "gradient_of_shapes"], library="torch")
    assert [one.name for one in report.of("failed")] == ["gradient[bfloat16]"]
    assert not report.causes or not report.cause.claims


def test_the_next_finding_is_of_code_with_the_causes_before_mended():
    def rotate(x, pos):
        return by_halves(x, angles(x, pos, dtype=np.float32)).astype(x.dtype)

    report = run_checks(rotate, only=["direction", "definition"], dtypes=["float32"])
    first, second = report.causes
    assert (first.checks, first.found, second.checks) == (("direction",), "", ("definition",))
    assert "; within the error of float32 angles; " in second.found
    assert "half pairing" not in second.found


def test_positions_without_their_sign_are_not_called_the_inverse():
    report = run_checks(
        lambda x, pos: ra.apply(x, np.abs(np.asarray(pos))),
        only=["accuracy_negative", "accuracy_float", "calls_far_and_near"], dtypes=["float32"],
    )  # fmt: skip
    assert report.cause.facts == {"positions": "|pos|"}
