"""The shipped suite on every target, backend and entry point of the library: each check is a test."""

import functools
import itertools
from typing import NamedTuple

import pytest

import rope_array as ra
from rope_array.testing import Target
from rope_array.testing._checks import checks, subjects
from rope_array.testing._compilers import library_names
from rope_array.testing._factors import FIELDS
from rope_array.testing._find_target import resolve
from rope_array.testing._judge import Judge
from rope_array.testing._libraries import DEFAULT_CONFIGURATIONS, LIBRARIES, NOT_COMPILED
from rope_array.testing._library_target import as_records
from rope_array.testing._outcome import FAILED, INAPPLICABLE, outcome_of

BACKENDS = [("dask", "array-api"), ("jax:jit", "array-api"), ("torch", "array-api")]
ENTRY_POINTS = ["numpy", "array_api_strict", "dask", "jax", "torch"]
# Not here: they need a GPU, or eight devices, as in test_jax.py.
ELSEWHERE = {"torch:cuda", "torch:cuda:compile", "jax:gpu", "jax:gpu:jit", "cupy", "jax:sharded"}
INTERPRETED = "torch:triton-interpret"  # in the session `gpu-code`
# Checks that take long are run on these.
THOROUGH = {("numpy", None), ("torch", None)}


def group_of(check):
    """Return the subject of a check; gradients are three: some code has its own for each."""
    if check.name.startswith("gradient_"):
        return "combined gradients" if check.name == "gradient_combinations" else "more gradients"
    return SUBJECTS[check.name]


SUBJECTS = {check.name: subject for subject, group in subjects().items() for check in group}
ALL = {group_of(check) for check in checks()}
# Calls of all fields together, sizes, and memory, where secondary targets and builds can run other code.
# The other checks have the mark `primary`: the sessions of secondary builds, `pure`,
# `sanitize` and `tests-min`, leave them out.
COVER = {"first calls", "kinds", "combinations", "sizes", "memory", "combined gradients"}
# They depend on the kernel's thresholds.
OF_THE_KERNEL = {"memory", "sizes", "state"}
# Left to `nightly` on slow targets whose code another target tests.
SHARED = {"combinations", "fields", "memory", "modes", "scaling and axes", "sizes", "state"}
SHARED |= {"combined gradients", "more gradients"}


class Plan(NamedTuple):
    """The subjects that a push runs on a target; the session `nightly` runs all.

    `later` has further checks for `nightly`, and `refused` checks whose calls the library's own code refuses.
    """

    push: set
    later: str = ""
    refused: str = ""


OTHERS = [lib.name for lib in DEFAULT_CONFIGURATIONS if lib.session == "more"]
# The plans of targets that a push does not run in full, by library, and by backend or entry point.
PLANS = {
    ("torch", "array-api"): Plan(ALL - OF_THE_KERNEL),
    # Specs become plain numbers before any array is made: these run the code of another target.
    **{(name, "Rotation"): Plan(COVER) for name in ENTRY_POINTS},
    **{(name, "RoPE"): Plan(COVER - OF_THE_KERNEL) for name in ENTRY_POINTS},
    **{(name, None): Plan(COVER) for name in ("array_api_strict:device1", "jax:x64", "numpy:readonly")},
    # Compiling each combination takes long; the eager target has them all.
    ("jax:jit", None): Plan(ALL - {"combinations"}),
    ("jax:jit", "array-api"): Plan(ALL - SHARED - {"attention's inputs"}),
    ("jax:x64:jit", None): Plan(COVER - SHARED),
    # Compiled code of PyTorch has no gradient of a gradient.
    ("torch:compile", None): Plan(ALL - SHARED, refused="gradient_of_a_gradient"),
    **{(name, None): Plan(ALL - SHARED) for name in (*OTHERS, "array_api_strict:no_x64")},
    # MLX compiles by a C++ compiler, and each operation of dask is a graph.
    ("mlx", None): Plan(ALL - SHARED, later="jit jit_of_fields calls_after_a_compiled_one"),
    ("ndonnx", None): Plan(ALL - SHARED, later="large_results_are_kept"),
    ("dask", None): Plan(ALL, later="strides_of_positions"),
    ("dask", "array-api"): Plan(ALL - SHARED - {"attention's inputs"}, later="strides_of_positions"),
    ("dask", "Rotation"): Plan(COVER - SHARED, later="strides_of_positions"),
    # Each call takes tens of milliseconds, or is the call of two other targets.
    ("cubed", None): Plan(set()),
    **{(name, "RoPE"): Plan(set()) for name in ("array_api_strict", "dask", "jax")},
    ("array_api_strict", "Rotation"): Plan(set()),
    # Many rows, or many calls, take the interpreter seconds; the kernel declines intercepted operations.
    (INTERPRETED, None): Plan(
        ALL,
        later="default_dtype gradient_of_shapes many_rows no_grad results_are_kept "
        "threads_of_different_calls training_after_inference batches_times_heads "
        "fields_and_many_elements large_results_are_kept "
        "many_elements many_results_are_kept one_field_and_many_elements positions_of_a_long_batch "
        "positions_of_many_batches threads_of_each_field threads_of_large_calls threads_of_many_positions "
        "inference_mode more_positions_than_2e16",
        refused="jvp default_device calls_after_a_mapped_one vmap vmap_of_positions vmap_of_gradients "
        "first_calls_under_other_settings",
    ),
}


def plan_of(target):
    return PLANS.get(target, Plan(ALL))


def by_rope(x, pos, *, seq_axis=-2, inverse=False, **spec):
    width = (x[0] if isinstance(x, tuple) else x).shape[-1]
    return ra.RoPE(width, **as_records(spec)).apply(x, pos, seq_axis=seq_axis, inverse=inverse)


def by_rotation(x, pos, *, seq_axis=-2, inverse=False, **spec):
    """Rotate each array of a tuple by tables of its dtype, as the second of two arrays."""
    spec = as_records(spec)
    if isinstance(x, tuple):
        rotations = {array.dtype: ra.RoPE(array.shape[-1], **spec).rotation(pos, like=array) for array in x}
        if inverse:
            rotations = {dtype: rotation.inverse() for dtype, rotation in rotations.items()}
        return tuple(rotations[array.dtype].apply((array, array), seq_axis=seq_axis)[1] for array in x)
    rotation = ra.RoPE(x.shape[-1], **spec).rotation(pos, like=x)
    return (rotation.inverse() if inverse else rotation).apply(x, seq_axis=seq_axis)


@functools.cache
def judge(name, how):
    """Return the judge of a target; `how` is a backend's name or an entry point."""
    if how in (None, "array-api"):
        return Judge(resolve(name, how), thorough=(name, how) in THOROUGH)
    target = resolve(name)
    rotate = {"RoPE": by_rope, "Rotation": by_rotation}[how]
    return Judge(
        Target(
            rotate, name=how, library=target.library, fields=tuple(FIELDS), dtypes=target.dtypes,
            angles="exact", furthest=2**62, declared=True,
            lacks={"jit": "torch:compile has it"} if name == "torch" else {},
        )
    )  # fmt: skip


def session_of(name):
    """Return conftest.py's name of the target's library."""
    return LIBRARIES[name.partition(":")[0]].label


def targets():
    yield from ((name, None) for name in library_names() if name not in ELSEWHERE)
    yield from BACKENDS
    yield from ((name, how) for name in ENTRY_POINTS for how in ("RoPE", "Rotation"))


def cases():
    for target, check in itertools.product(targets(), checks()):
        name, how = target
        plan, group = plan_of(target), group_of(check)
        if how in ("RoPE", "Rotation") and "attention_inputs" in check.needs:
            continue
        marks = [pytest.mark.library(session_of(name))]
        marks += [] if group in COVER else [pytest.mark.primary]
        if group not in plan.push or check.name.partition("[")[0] in plan.later.split():
            marks.append(pytest.mark.nightly)
        marks += [pytest.mark.gpu_code] if name == INTERPRETED else []
        label = name if how is None else f"{name}-{how}"
        yield pytest.param(name, how, check, id=f"{label}-{check.name}", marks=marks)


@pytest.mark.parametrize(("name", "how", "check"), list(cases()))
def test_conforms(name, how, check):
    outcome, detail = outcome_of(check, judge(name, how))
    assert outcome != FAILED, f"{detail} (required: {check.requirement})"
    if outcome == INAPPLICABLE and (judge(name, how).thorough or not check.thorough):
        # Allowed only if the library lacks a capability.
        needed = set(check.needs) & judge(name, how).target.declines.keys()
        needed = {name for name in needed if "[" not in name}  # whole capabilities, without parts
        assert needed or check.name in plan_of((name, how)).refused.split()
        lacking = judge(name, how).lib.gaps.keys() | (NOT_COMPILED if name != session_of(name) else {}).keys()
        lacking |= {"jit"} if session_of(name) == "torch" else set()  # torch:compile has it
        assert needed <= lacking, detail
