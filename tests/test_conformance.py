"""The shipped suite on every target, backend and entry point of the library: each check is a test."""

import functools
import itertools

import pytest

import rope_array as ra
from rope_array.testing import Target
from rope_array.testing._checks import checks, subjects
from rope_array.testing._factors import FIELDS
from rope_array.testing._find_target import names, resolve
from rope_array.testing._judge import Judge
from rope_array.testing._libraries import DEFAULT_CONFIGURATIONS, LIBRARIES, NOT_COMPILED
from rope_array.testing._library_target import as_records
from rope_array.testing._outcome import FAILED, INAPPLICABLE, outcome_of

BACKENDS = [("dask", "array-api"), ("jax:jit", "array-api"), ("torch", "array-api")]
ENTRY_POINTS = ["numpy", "array_api_strict", "dask", "jax", "torch"]
# The subjects that secondary targets and builds run: calls of all fields together, sizes, and memory, where
# these can take another path through the code. The other checks have the mark `primary`: secondary targets
# leave them to `nightly`, and so do the sessions of secondary builds, `pure`, `sanitize` and `tests-min`.
COVER = {"first calls", "kinds", "combinations", "sizes", "memory"}
COVER_OF_GRADIENTS = "gradient_combinations"
# They run the code of another target: specs become plain numbers before any array is made.
SECONDARY = {
    *((name, how) for name in ENTRY_POINTS for how in ("RoPE", "Rotation")),
    *((name, None) for name in ("array_api_strict:device1", "jax:x64", "jax:x64:jit", "numpy:readonly")),
}
# Targets that take long and run the code of another target. Only `nightly` runs the checks of specs, sizes,
# bits, state and modes on these, and the gradients of more than the plain call. Code under jax.jit compiles
# each combination; the eager target has them all.
SHARING = {
    *(("jax:jit", "array-api"), ("jax:x64:jit", None), ("torch:compile", None)),
    *(("dask", how) for how in ("RoPE", "Rotation", "array-api")),
    ("array_api_strict:no_x64", None),
    *((lib.name, None) for lib in DEFAULT_CONFIGURATIONS if lib.session == "more"),
}
SHARED = {"combinations", "fields", "memory", "modes", "scaling and axes", "sizes", "state"}
# For the session `nightly`: each call takes tens of milliseconds, or is the call of two other targets.
LATER = {("cubed", None), *((name, "RoPE") for name in ("array_api_strict", "dask", "jax"))}
LATER |= {("array_api_strict", "Rotation")}
# They depend on the kernel's thresholds: only `nightly` runs them without it, and by RoPE.apply.
OF_THE_KERNEL = {"memory", "sizes", "state"}
COMPILING_EACH = {("jax:jit", None)}
# Checks that take long are run on these.
THOROUGH = {("numpy", None), ("torch", None)}
# Checks whose calls the library's own code refuses: compiled code of PyTorch has no gradient of a gradient,
# and the kernel of GPUs declines a call if PyTorch's operations are intercepted.
REFUSED = {
    ("torch:compile", "gradient_of_a_gradient"),
    *(("torch:triton-interpret", name) for name in ("jvp", "default_device", "calls_after_a_mapped_one")),
    *(("torch:triton-interpret", f"vmap{name}") for name in ("", "_of_positions", "_of_gradients")),
    ("torch:triton-interpret", "first_calls_under_other_settings"),
}
# Checks that take a library long: MLX compiles by a C++ compiler, and each operation of dask is a graph.
LONG = {
    ("dask", "strides_of_positions"),
    *(("mlx", name) for name in ("jit", "jit_of_fields")),
    *(("mlx", "calls_after_a_compiled_one"), ("ndonnx", "large_results_are_kept")),
}
GPU = {"torch:cuda", "torch:cuda:compile", "jax:gpu", "jax:gpu:jit", "cupy"}
IN_A_CHILD = {"jax:sharded"}  # it needs eight devices: see test_jax.py
INTERPRETED = "torch:triton-interpret"  # in the session `gpu-code`
# Checks that take the interpreter seconds: many rows, or many calls.
LONG_INTERPRETED = {
    *("default_dtype", "gradient_of_shapes", "many_rows", "no_grad", "results_are_kept"),
    *("threads_of_different_calls", "training_after_inference"),
    *("batches_times_heads", "fields_and_many_elements", "large_results_are_kept", "many_elements"),
    *("many_results_are_kept", "one_field_and_many_elements", "positions_of_a_long_batch"),
    *("positions_of_many_batches", "threads_of_each_field", "threads_of_large_calls"),
    *("threads_of_many_positions", "inference_mode", "more_positions_than_2e16"),
}


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
    yield from ((name, None) for name in names() if name not in GPU | IN_A_CHILD)
    yield from BACKENDS
    yield from ((name, how) for name in ENTRY_POINTS for how in ("RoPE", "Rotation"))


SUBJECTS = {check.name: subject for subject, group in subjects().items() for check in group}


def subject_of(check):
    return SUBJECTS[check.name]


def is_cover(check):
    return subject_of(check) in COVER or check.name == COVER_OF_GRADIENTS


def is_shared(target, check):
    """Return whether another target has the code that a check calls."""
    subject = subject_of(check)
    if target in COMPILING_EACH:
        return subject == "combinations"
    if target in SECONDARY and not is_cover(check):
        return True
    if target[1] == "RoPE" or target == ("torch", "array-api"):
        return subject in OF_THE_KERNEL
    return target in SHARING and (subject in SHARED or check.name.startswith("gradient_"))


def cases():
    for (name, how), check in itertools.product(targets(), checks()):
        label = name if how is None else f"{name}-{how}"
        marks = [pytest.mark.library(session_of(name))]
        if not is_cover(check):
            marks.append(pytest.mark.primary)
        target, long = (name, how), (name, check.name.partition("[")[0]) in LONG
        if target in LATER or is_shared(target, check) or long:
            marks.append(pytest.mark.nightly)
        if name == INTERPRETED:
            marks.append(pytest.mark.gpu_code)
            if check.name.partition("[")[0] in LONG_INTERPRETED:
                marks.append(pytest.mark.nightly)
        yield pytest.param(name, how, check, id=f"{label}-{check.name}", marks=marks)


@pytest.mark.parametrize(("name", "how", "check"), list(cases()))
def test_conforms(name, how, check):
    outcome, detail = outcome_of(check, judge(name, how))
    assert outcome != FAILED, f"{detail} (required: {check.requirement})"
    if outcome == INAPPLICABLE and (judge(name, how).thorough or not check.thorough):
        # Allowed only if the library lacks a capability.
        needed = set(check.needs) & judge(name, how).target.declines.keys()
        needed = {name for name in needed if "[" not in name}  # whole capabilities, without parts
        assert needed or (name, check.name) in REFUSED
        lacking = judge(name, how).lib.gaps.keys() | (NOT_COMPILED if name != session_of(name) else {}).keys()
        lacking |= {"jit"} if session_of(name) == "torch" else set()  # torch:compile has it
        assert needed <= lacking, detail
