"""The likely causes that a report of the suite names: tried on code with faults as users have them."""

from types import SimpleNamespace

import numpy as np
import pytest
from conftest import sample
from faults import named, refusing, to_bfloat16

import rope_array as ra
from rope_array.testing import Target, _find_causes, _find_rotation, check_backend, run_checks
from rope_array.testing._checks import checks
from rope_array.testing._command import lines_of
from rope_array.testing._failure import Failure
from rope_array.testing._find_causes import DONATES_X, fault_of_state, find_causes
from rope_array.testing._judge import DELETES_X, Judge
from rope_array.testing._outcome import outcome_of
from rope_array.testing._where import Place

FLOAT32 = {"dtypes": ("float32",)}


@pytest.fixture(autouse=True)
def of_few_libraries(request, monkeypatch):
    """Hide the libraries that other tests have imported: the search would call the code in each of them."""
    names = {name for mark in request.node.iter_markers("library") for name in mark.args}
    monkeypatch.setattr(_find_rotation, "sys", SimpleNamespace(modules={"numpy", *names}))


def with_fields(**fields):
    """Return code with built-in fields."""
    return lambda x, pos: ra.apply(x, pos, **fields)


def at(change):
    """Return code that rotates by other positions."""
    return lambda x, pos: ra.apply(x, change(np.asarray(pos)))


def three_faults(x, pos):
    """Convert positions to int16, rotate the last pair of 32 too fast, and leave heads from 32 on."""
    pos = np.asarray(pos)
    fast = 1.5 if x.shape[-1] == 64 else 1.0
    pos = pos.astype(np.int16) if pos.dtype.kind in "iu" else pos
    y = by_tables(x, *tables(x, pos, lambda omega: omega * np.r_[np.ones(len(omega) - 1), fast]))
    if x.ndim == 4:
        y[:, 32:] = x[:, 32:]
    return y


def no_scaling_and_rows_to_512(x, pos, base=10000.0, scaling=None):
    y = ra.apply(x, pos, base=base)
    if x.ndim > 1:
        y[..., 512:, :] = 0
    return y


def in_place(x, pos):
    x[...] = ra.apply(x, pos)
    return x


def tables(x, pos, change=lambda omega: omega):
    """Return cos and sin of frequencies that are `change` of the right ones."""
    n = x.shape[-1] // 2
    angle = np.asarray(pos)[..., None] * change(10000.0 ** (-np.arange(n) / n))
    angle = angle[:, None] if angle.ndim == 3 and x.ndim == 4 else angle
    return np.cos(angle), np.sin(angle)


def by_tables(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape).astype(x.dtype)


def in_own_arithmetic(x, pos):
    """Round cos, sin and each product to float16."""
    cos, sin = (table.astype(x.dtype) for table in tables(x, pos))
    return by_tables(x, cos, sin) if x.dtype == np.float16 else ra.apply(x, pos)


def by_position_ids(x, pos):
    """Broadcast tables with an axis for heads to (B, S, H, D) too, as in most of Hugging Face."""
    cos, sin = (table[:, None] for table in tables(x[0, 0], pos))
    return by_tables(x, cos, sin)


float32_halves = with_fields(pairing="half", angles="float32")


def leaving(index, axes=2, value=None):
    """Return code that leaves a part of x as it is, or gives it a value, if x has so many axes."""

    def rotate(x, pos):
        y = ra.apply(x, pos)
        if x.ndim >= axes:
            y[index] = x[index] if value is None else value
        return y

    return rotate


def counting_on(x, pos):
    """Give rows after a restart the position of the row before plus 1: 0 1 2 0 1 as 0 1 2 3 4."""
    pos = np.asarray(pos)
    if pos.ndim and pos.dtype.kind in "iu":
        steps = np.diff(pos.astype(np.int64), axis=-1, prepend=0)
        pos = np.cumsum(np.where(steps < 0, 1, steps), axis=-1)
    return ra.apply(x, pos)


def with_frequencies(change):
    return lambda x, pos: by_tables(x, *tables(x, pos, change))


def rounded_tables(*dtypes):
    """Return code whose cos and sin are rounded to two dtypes."""
    return lambda x, pos: by_tables(
        x, *(t.astype(d) * 1.0 for t, d in zip(tables(x, pos), dtypes, strict=True))
    )


def without_the_last_tile(x, pos):
    """Leave the rows after the last full tile of 16 rows."""
    y, rows = ra.apply(x, pos), x.shape[-2]
    if rows > 16:
        y[..., rows // 16 * 16 :, :] = x[..., rows // 16 * 16 :, :]
    return y


def widened(x, pos):
    return ra.apply(x, pos).astype(np.result_type(x, np.float32))


HALF, ANGLES, END = {"pairing": "half"}, {"angles": "float32"}, {"furthest": 65535}
SLICE = {"rotary_start": 4, "rotary_dim": 8}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192.0}
ACCURACY = "definition accuracy_small accuracy_2e16 accuracy_2e20"
IN_USE = "definition accuracy_small accuracy_2e16 positions_of_a_batch ranks many_rows sizes_and_fields"
# The code, the checks that run, words of each cause, and the claims of all causes.
CAUSES = {
    "three": (three_faults,
              "definition widths accuracy_2e16 accuracy_2e20 accuracy_int32 many_heads sizes_and_fields",
              ["pair 31 of 32", "int16 beyond position 32,767", "heads from 32 on"], {"furthest": 32767}),
    "scaling and rows": (no_scaling_and_rows_to_512,
                         "definition many_rows positions_of_many_batches scaling_linear",
                         ["rows from 512 on", "without scaling"], {}),
    "half and inverse": (
        lambda x, pos, inverse=False: x.copy() if inverse else ra.apply(x, pos, pairing="half"),
        "definition inverse direction", ["half pairing", "with inverse"], {"fixed": HALF, "fields": ()}),
    "first batch": (at(lambda pos: pos[0] if pos.ndim == 2 else pos),
                    "definition positions_of_a_batch positions_of_many_batches",
                    ["the positions of batch 0"], {}),
    "sign": (at(np.abs), "accuracy_negative accuracy_float calls_far_and_near", ["|pos|"],
             {"lacks": {"negative_positions": "wrong results"}}),
    "widths": (lambda x, pos: ra.apply(x, pos) * x.dtype.type(1.01 if x.shape[-1] > 64 else 1),
               "definition widths", ["width=66"], {}),
    "last features": (leaving(np.s_[..., -2:], 1), ACCURACY, ["the last 2 features"], {}),
    "base and inverse": (with_fields(base=1e6, inverse=True), ACCURACY, ["1e+06, rotated by the inverse"],
                         {"fixed": {"base": 1e6}}),
    "pos + 1": (at(lambda pos: pos + 1), ACCURACY, ["pos + 1"], {}),
    "float64": (lambda x, pos: ra.apply(x.astype(np.float64), pos), "definition kind", ["is float64"], {}),
    "in place": (in_place, "definition inputs_unchanged no_aliasing", ["writes into x"], {}),
    "layout, half and angles": (
        with_fields(seq_axis=-3, pairing="half", angles="float32"), f"direction {ACCURACY}",
        ["(b, s, h, d), half", "float32 angles", "65,535"],
        {"layout": "bshd", "fixed": HALF, **ANGLES, **END}),
    "slice": (with_fields(**SLICE), ACCURACY, ["feature 4"], {"fixed": SLICE}),
    "a quarter": (lambda x, pos: ra.apply(x, pos, rotary_dim=x.shape[-1] // 8 * 2), ACCURACY,
                  ["the first 16 features"], {"fixed": {"rotary_dim": 16}, "head_dim": 64}),
    "llama3": (with_fields(pairing="half", base=5e5, scaling=ra.Llama3(8.0)), ACCURACY, ["llama3"],
               {"fixed": {**HALF, "base": 5e5, "scaling": LLAMA3}}),
    "arange": (lambda x, pos: ra.apply(x, np.arange(x.shape[-2])), "definition", ["from 0"],
               {"positions": "arange"}),
    "batch": (by_position_ids, f"{ACCURACY} positions_of_a_batch ranks", ["(B, S)"], {"positions": "batch"}),
    "row": (refusing(lambda x, p, s: np.shape(p) != (1, x.shape[-2]), base_only=True), "definition",
            ["(1, S)"], {"positions": "row"}),
    "offset": (refusing(lambda x, p, s: (np.diff(p) != 1).any(), base_only=True), "definition",
               ["consecutive"], {"positions": "offset"}),
    "end": (at(lambda pos: pos + (pos >= 8192)), "accuracy_2e16 long_sequences_from_an_offset",
            ["beyond position 8,191"], {"furthest": 8191}),
    "16 bits": (lambda x, pos: ra.apply(x.astype(np.float32), pos).astype(x.dtype), ACCURACY,
                ["in float64"], {"dtypes": ("float16", "float32")}),
    "own": (in_own_arithmetic, ACCURACY, ["in their own dtype, in float16 only"], {"arithmetic": "own"}),
    # A claim with which fewer calls are tried, such as one of layout=1hsd, would hide these.
    "first token": (leaving(np.s_[:, :, 0], 4), IN_USE, ["row 0, equal to x"], {}),
    "first token of batch 1": (leaving(np.s_[1:, :, 0], 4), IN_USE, ["row 0 of batch 1, equal to x"], {}),
    "packed": (counting_on, IN_USE, ["the row before plus 1 after a restart"], {}),
    "linspace": (with_frequencies(lambda omega: 10000.0 ** -np.linspace(0, 1, len(omega))), IN_USE,
                 ["linspace(0, 1, d/2)"], {}),
    "float32 linspace": (
        with_frequencies(lambda omega: 1 / 10000.0 ** np.linspace(0, 1, len(omega), dtype=np.float32)),
        IN_USE, ["linspace(0, 1, d/2)"], {}),
    "bfloat16 frequencies": (with_frequencies(to_bfloat16), IN_USE, ["frequencies rounded to bfloat16"], {}),
    "one frequency": (with_frequencies(lambda omega: np.r_[omega[:5], 0.94 * omega[5:6], omega[6:]]), IN_USE,
                      ["pair 5 of 8 has 0.0029725, base 10000 gives 0.0031623"], {}),
    "tables": (rounded_tables("float16", "float16"), IN_USE, ["cos and sin rounded to float16"], {}),
    "cos": (rounded_tables("float16", "float64"), IN_USE, ["by cos rounded to float16"], {}),
    "sin": (rounded_tables("float64", "float16"), IN_USE, ["by sin rounded to float16"], {}),
    "exchanged": (lambda x, pos: by_tables(x, *tables(x, pos)[::-1]), IN_USE, ["cos and sin exchanged"], {}),
    # The claim explains checks whose results are not kept, too.
    "clamped": (at(lambda pos: np.minimum(pos, 4095)), f"{IN_USE} accuracy_2e20 calls_far_and_near",
                ["beyond position 4,095"], {"furthest": 4095}),
    "row 61": (leaving(np.s_[..., 61:62, :], value=0), IN_USE,
               ["right with rows=1,1,61: row 61 (the last), zeros"], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSES)
def test_each_fault_is_a_cause_with_the_checks_that_it_explains(name):
    rotate, only, words, expected = CAUSES[name]
    claims = {} if name in ("16 bits", "own") else FLOAT32
    report = run_checks(rotate, only=only.split(), **claims)
    explained = [name for cause in report.causes for name in cause.checks]
    failed = [result.name for result in report.of("failed")]
    assert sorted(explained) == sorted(failed)
    assert all(cause.checks for cause in report.causes)
    assert (report.cause.explained, report.cause.failed) == (len(failed), len(failed))
    assert len(report.causes) == len(words)
    for word in words:
        assert any(word in cause.text for cause in report.causes)
    assert report.cause.claims == expected
    if (
        expected
        and report.cause.stated == expected
        and not {"inverse", "positions"} & report.cause.facts.keys()
    ):
        assert check_backend(rotate, only=sample(*only.split()), **{**claims, **expected}).ok


def test_causes_are_in_the_order_in_which_they_are_mended():
    """The next finding is of code with the causes before mended; one check may have two causes."""
    first, second = run_checks(float32_halves, only=["direction", "definition"], **FLOAT32).causes
    assert (first.checks, first.found, second.checks) == (("direction",), "", ("definition",))
    assert "float32 angles" in second.found
    report = run_checks(float32_halves, only=["definition"], **FLOAT32)
    assert report.cause.claims == {"fixed": HALF, **ANGLES}


def test_dtypes_with_one_fault_are_claimed_away_together():
    dtypes = "float16", "bfloat16", "float32", "float64"
    report = run_checks(widened, only=["accuracy_small", "widths"], dtypes=dtypes)
    assert report.cause.withdrawn == {"dtypes": ("float32", "float64")}
    assert report.cause.explained == report.cause.failed


def test_a_cause_says_more_than_that_results_are_wrong():
    """A table that is kept by the number of rows is right for the first positions alone."""
    kept = {}

    def rotate(x, pos):
        key = x.shape[-2:], np.shape(pos)
        return by_tables(x, *kept.setdefault(key, tables(x, pos)))

    report = run_checks(rotate, only=IN_USE.split(), **FLOAT32)
    assert not report.ok
    assert all("wrong results: all elements" not in cause.text for cause in report.causes)


@pytest.mark.library("torch")
def test_a_module_of_another_library_gets_all_its_claims():
    """A rotary class as in transformers: PyTorch only, one head_dim, halves, float32 angles."""
    torch = pytest.importorskip("torch")
    omega = 1.0 / 10000.0 ** (torch.arange(0, 64, 2).float() / 64)

    def rotate(x, pos):
        angle = pos.float()[..., None] * omega
        angle = torch.cat([angle, angle], dim=-1)
        cos, sin = (table[:, None] if table.ndim == 3 else table for table in (angle.cos(), angle.sin()))
        a, b = x.chunk(2, dim=-1)
        return (x * cos + torch.cat([-b, a], dim=-1) * sin).to(x.dtype)

    only = f"direction {ACCURACY}".split()
    claims = run_checks(rotate, only=only).cause.claims
    assert claims == {"library": "torch", "fixed": HALF, **ANGLES, **END}
    assert check_backend(rotate, only=sample(*only, "positions_of_a_batch", "gradient"), **claims).ok


def test_a_cause_is_found_by_declared_targets():
    rotate = with_fields(angles="float32")
    target = Target(rotate, declared=True, fields=(), lacks={"tuple": "takes one array"})
    assert run_checks(target, only=ACCURACY.split()).cause.claims == {**ANGLES, **END}


def table_in_the_order_of_halves(x, pos):
    cos, sin = (np.concatenate([table, table], -1) for table in tables(x, pos))
    quarter = np.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)
    return (x * cos + quarter * sin).astype(x.dtype)


def test_an_error_of_every_result_is_not_claimed_away():
    def noisy_sine(x, pos):
        cos, sin = tables(x, pos)
        return by_tables(x, cos, sin + 1e-4)  # no rounding of any class

    report = run_checks(noisy_sine, only=["definition"], **FLOAT32)
    assert "No single cause was found." in " ".join(next(lines_of(report)).split())
    assert report.cause is None or not report.cause.claims


def test_a_class_of_accuracy_is_not_claimed_for_plain_calls_that_are_right():
    code = refusing(lambda x, p, s: np.min(p, initial=0) < -(2**20), base_only=True)
    only = f"{ACCURACY} accuracy_int32 accuracy_negative accuracy_float".split()
    report = run_checks(code, only=only, **FLOAT32)
    assert report.ok or not report.cause.stated


# ---- words ----


def keeping_the_base():
    """A base that is changed for good by a large call."""
    kept = [1e4]

    def rotate(x, pos, **spec):
        y = ra.apply(x, pos, **{"base": kept[0], **spec})
        if np.size(x) > 2**19:
            kept[0] = 5e5
        return y

    return rotate


def wrong_in_turn():
    left = [1, 2, 3]

    def rotate(x, pos, **spec):
        wrong = x.shape[-1] == 144 and left and left.pop()
        return np.zeros_like(x) if wrong else ra.apply(x, pos, **spec)

    return rotate


# The code, the checks that run, and the begin of the cause's text. The first five are of the plain call.
TEXTS = {
    "unrotated": (lambda x, pos: x.copy(), "definition", "it returns x as it is"),
    "a tuple": (lambda x, pos: (x, x), "definition",
                "rotate(x, pos) returns a tuple; return x rotated, one array"),
    "four arguments": (lambda q, k, cos, sin, position_ids=None: (q, k), "definition",
                       "the suite calls rotate(x, pos), and its parameters"),
    "another pairing": (table_in_the_order_of_halves, "definition",
                        "in the plain call, features pair interleaved, "),
    "an exception": (refusing(lambda *call: True, base_only=True), "definition",
                     "rotate(x, pos) raises ValueError: another call"),
    "tiles": (without_the_last_tile, f"{IN_USE} memory", "wrong with rows=1,1,17, right with rows=1,1,16: "),
    "base": (named("base_ignored_at_wide_heads"), "definition base one_field_at_every_width",
             "wrong with width=96 base=500.0, right with width=94, "),
    "strides": (named("strides_misread_with_half_pairing"), "definition memory", "wrong with layout="),
    "for good": (keeping_the_base(), "definition many_elements",
                 "right at first, and wrong for good after some call: the first check to fail is "),
    "in turn": (wrong_in_turn(), "kind definition widths", "results depend on earlier calls: "),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_the_cause_is_in_the_words_of_the_simplest_failing_call(name):
    rotate, only, text = TEXTS[name]
    report = run_checks(rotate, only=only.split(), **FLOAT32)
    assert report.cause.text.startswith(text)
    assert len(str(report.cause)) < 400
    assert not report.cause.stated
    assert next(lines_of(report)).startswith(f"FAILED: {len(report.of('failed'))} of ")


OF_TORCH = {
    "gradient_without_base": ("gradient gradient_of_one_field", "the gradient is wrong"),
    "gradient_of_64_heads": ("gradient_of_shapes gradient_combinations", "the gradient is wrong"),
    "written_without_gradients": ("inference_mode", "under torch.inference_mode(): x was written"),
}


@pytest.mark.library("torch")
@pytest.mark.parametrize("name", OF_TORCH)
def test_gradients_and_modes_are_named_and_not_claimed_away(name):
    only, text = OF_TORCH[name]
    cause = run_checks(named(name), only=sample("definition", *only.split()), library="torch").cause
    assert cause.text.startswith(text)
    assert not cause.claims


@pytest.mark.library("torch")
def test_a_gradient_that_is_lost_in_one_dtype_is_not_claimed_away():
    torch = pytest.importorskip("torch")

    def rotate(x, pos):
        y = ra.apply(x, pos)
        return y.detach().requires_grad_() if x.dtype == torch.bfloat16 and x.requires_grad else y

    report = run_checks(rotate, only=["gradient", "gradient_of_shapes"], library="torch")
    assert [one.name for one in report.of("failed")] == ["gradient[bfloat16]"]
    assert not report.causes or not report.cause.claims


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


# ---- the lines of a report ----


def test_the_verdict_is_first_and_its_command_can_be_pasted():
    only = f"direction norm inv_freq kind {ACCURACY}".split()
    report = run_checks(float32_halves, only=only, angles="float32", furthest=2**24, **FLOAT32)
    options = ["--claim", "furthest=16777216", "--claim", "angles=float32", "--expect", "norm=a reason"]
    lines = list(lines_of(report, ["check", "mylib:rotate", *options]))
    assert lines[0].startswith(f"FAILED: {len(report.of('failed'))} of ")
    assert "half pairing" in " ".join(lines[:3])
    assert [line for line in lines if line.startswith("  python -m rope_array")] == [
        "  python -m rope_array check mylib:rotate --claim angles=float32 --expect 'norm=a reason' "
        "--claim pairing=half --claim furthest=65535"
    ]
    lines = list(lines_of(report))
    assert max(map(len, lines)) <= 110
    starts = ("Failed (", "Passed (", f"{len(report.of('not applicable'))} do not apply; --verbose")
    order = [next(i for i, line in enumerate(lines) if line.startswith(f"\n{word}")) for word in starts]
    assert order == sorted(order)
    text = "\n".join(lines_of(report, verbose=True))
    assert all(result.name.partition("[")[0] in text for result in report.results)


def test_a_claim_to_lack_a_capability_is_not_pasted():
    needing = [check.name for check in checks() if "batch_positions" in check.needs]
    rotate = at(lambda pos: pos[0] if pos.ndim == 2 else pos)
    report = run_checks(rotate, only=["definition", *needing], fixed={"base": 10000.0}, **FLOAT32)
    assert report.cause.withdrawn == {"lacks": {"batch_positions": "wrong results"}}
    assert not report.cause.stated
    lines = list(lines_of(report, ["check", "mylib:rotate"]))
    assert "only if nobody calls it so, claim that it lacks this: --claim" in " ".join("".join(lines).split())
    pasted = [line for line in lines if line.startswith("  python -m rope_array")]
    assert not any("lacks" in line or "=wrong results" in line for line in pasted)


one_row = refusing(lambda x, p, s: np.ndim(p) == 2 or x.ndim == 1, base_only=True)


def test_parts_that_are_declined_are_in_the_report():
    lines = [*lines_of(run_checks(one_row, only=["ranks"]))]
    assert any(line.startswith("Partly declined: ") and "ranks[1]" in line for line in lines)
    assert any(line.startswith("bfloat16 was not tried") for line in lines)
    assert "bfloat16" not in "".join(lines_of(run_checks(one_row, only=["ranks"], **FLOAT32)))


@pytest.mark.nightly  # requirements are judged by every check
def test_a_missing_requirement_has_no_cause_to_look_for():
    report = run_checks(one_row, requires=("batch_positions",), head_dim=16, **FLOAT32)
    assert "It lacks what is required." in next(lines_of(report))


def test_q_and_k_are_never_said_to_be_lacking():
    def rotate(q, k, pos):
        return ra.apply(q, pos), 0 * ra.apply(k, pos)

    report = run_checks(rotate, only=["definition", "kind", "tuples"], arguments="q,k,pos", **FLOAT32)
    assert not report.ok
    assert "tuple=" not in str(report.cause).replace("in_tuple=", "")


def test_positions_kept_by_identity_are_a_cause_with_a_text():
    kept = {}

    def rotate(x, pos):
        if kept.get("pos") is not pos:
            kept.update(pos=pos, numbers=np.array(pos))
        return ra.apply(x, kept["numbers"])

    report = run_checks(rotate, only=["positions_written_in_place"])
    assert not report.ok
    assert report.cause is None or "pos - 1" in report.cause.text
    assert "" not in [cause.text for cause in report.causes]


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
        y = ra.apply(x, pos)
        y.setflags(write=False)
        return y

    report = run_checks(rotate, only=["magnitudes", "results_are_writable"], dtypes=["float16", "float32"])
    assert [one.call for one in report.of("failed")] == [""]


# ---- findings that checks share ----

PLAIN = Target(ra.apply, declared=True)
VALUES = Failure("3 of 9 elements", place=Place("row 100", "row 100"))
WRONG = Failure.of(VALUES, call="rows=1,1,101")
STALE = Failure.of(VALUES, call="reach=0", contexts=("positions were written since the last call",))
VMAP = Failure.of(VALUES, contexts=("vmap over positions",))
LINEAR = Failure("ValueError: Linearization", raised="ValueError", contexts=("compiled",))
# Failures by check, and the checks of the first cause.
SHARED = {
    "like calls": (
        {"many_rows[float32]": WRONG, "kind": Failure("it is a list", call="rows=2,3,5 width=32"),
         "many_elements[float32]": WRONG},
        {"many_rows[float32]", "many_elements[float32]"},
    ),
    "positions that were written": (
        {"positions_written_in_place": STALE, "kind": Failure.of(VALUES, call="rows=1,1,4 reach=9")},
        {"positions_written_in_place"},
    ),
    "wrong results before an exception": ({"norm": VMAP, "linear": LINEAR}, {"norm"}),
    "an exception": ({"linear": LINEAR}, {"linear"}),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_the_first_finding_that_checks_share(name, monkeypatch):
    failures, names = SHARED[name]
    monkeypatch.setattr(_find_causes, "fault_of_state", lambda *_: "")
    assert {*find_causes(PLAIN, failures).causes[0].checks} == names


def test_a_changed_setting_is_named_and_not_that_calls_depend_on_others(monkeypatch):
    failed = {"settings_unchanged": Failure("the call changed jax_enable_x64")}
    failed["kind"] = Failure("the result is float64")
    assert fault_of_state(PLAIN, failed) == "the call changed jax_enable_x64"  # passes if run again
    monkeypatch.setattr(
        _find_causes, "_judged_again", lambda target, names: {**names} if "kind" in names else {}
    )
    assert fault_of_state(PLAIN, {"kind": Failure()}) == ""
