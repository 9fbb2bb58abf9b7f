"""The same bits in every library and mode: random calls, compared with NumPy's array operations.

docs/numerics.md promises them in item 4 of the contract, and names the exceptions. Each way to compute is
compared with one reference, so all ways agree with each other. A failure names the seed of its call, and
`ROPE_ARRAY_SEED` sets the first seed. In `nightly` it is another seed each time.
"""

import copy
import functools
import os
import time
from functools import partial
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
from compare import library_of
from conftest import NIGHTLY
from ropes import FIELDS, SEVERAL, SPECS
from ropes import rope as rope_named

import rope_array as ra
from rope_array import _registry, _rotation
from rope_array._array_api import angles, cache, norm, pairs, tables
from rope_array._array_api.ops import ArrayOps
from rope_array._backends import _native
from rope_array._backends.jax import _custom_call as jax_custom_call
from rope_array._backends.jax._library import FusedOps, JaxOps
from rope_array._backends.numpy import native as numpy_native
from rope_array.convert import shift_keys
from rope_array.testing._libraries import LIBRARIES
from rope_array.testing._triton_interpreter import use_interpreter

torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
jnp, ml_dtypes = jax.numpy, pytest.importorskip("ml_dtypes")
assert not use_interpreter(), use_interpreter()
pytestmark = [
    pytest.mark.library("numpy", "torch", "jax", "dask", "strict"),
    pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow"),
]
SEED = int(os.environ.get("ROPE_ARRAY_SEED") or (time.time_ns() % 2**32 if NIGHTLY else 0))
ROPES = [*SPECS.values(), *SEVERAL.values(), *(rope_named(n) for n in FIELDS if n != "float32 angles")]
POSITIONS = (-(2**31), 2**31 - 1, "int32"), (2**31 - 9999, 2**31 - 1, "int32"), (-(2**40), 2**40, "int64")
POSITIONS += (-9999, 99999, "float32"), (-9999, 99999, "float64")
PI_4 = np.float32(np.pi / 4)
DTYPES = [np.dtype(getattr(ml_dtypes, n, n)) for n in ("float32", "float16", "bfloat16", "float64")]

# Modules and folders of the package that these tests run: .ci/reach.py reads the names.
RUN = "rope_array._backends.torch", "rope_array._backends.dask", "rope_array._backends._gpu"
RUN += "rope_array._apply", "rope_array._attention", "rope_array._dispatch", "rope_array._spec.plan"
assert _native.kernel, _native.unavailable_reason()


# ---- calls ----


class Case(NamedTuple):
    """A call: its kind, rope, options, and arrays of NumPy by their names."""

    seed: int
    kind: str
    rope: ra.RoPE
    options: dict
    arrays: dict


def random_case(seed):
    rng = np.random.default_rng(seed)
    choose = lambda *values: values[int(rng.integers(len(values)))]  # noqa: E731
    kind = choose("positions", "positions", "inputs", "inputs", "inv_freq", "mixed", "angles")
    plain = kind in ("positions", "inputs")
    rope = choose(*(r for r in ROPES if plain or not (r.axes or r.scaling or r.inv_freq)))
    dtype, (batch, heads), tokens = choose(*DTYPES), choose((2, 3), (1, 1)), 4
    last = (2,) if kind == "mixed" else (rope.axes.count,) if rope.axes else ()
    shape = choose((tokens,), (batch, tokens), (1, tokens))
    first, last_pos, pos_dtype = choose(*POSITIONS)
    pos = rng.uniform(first, last_pos, (*shape, *last)).astype(pos_dtype)
    arrays = {"x": rng.standard_normal((batch, heads, tokens, rope.head_dim)).astype(dtype), "pos": pos}
    pairs, options = len(rope.frequencies), {}
    if not plain:
        shapes = {"inv_freq": (pairs,), "mixed": (heads, 2, pairs), "angles": (*shape, pairs)}
        scale = 10.0 ** rng.integers(0, 9) if kind == "angles" else 1.0
        arrays["freq"] = (scale * rng.uniform(-1, 2, shapes[kind])).astype(choose("float32", "float64"))
    elif kind == "inputs":
        options = {"eps": choose(1e-6, 0.3), "offset": choose(0.0, 1.0)}
        options["rounding"] = choose("none", "norm", "steps")
        arrays["weight"] = rng.standard_normal(rope.head_dim).astype(dtype)
        arrays["slots"] = rng.permutation(9)[:tokens].astype(np.int32) - 2
        arrays["cache"] = np.zeros((batch, heads, 7, rope.head_dim), choose(np.float32, dtype))
    return Case(seed, kind, rope, options, arrays)


def main_result(case, arrays, backend=None):
    """Return the result whose gradient is compared: rotated, and of a call with a norm normed before."""
    rope, x, pos = case.rope, arrays["x"], arrays["pos"]
    if case.kind == "positions":
        return rope.apply(x, pos, backend=backend)
    if case.kind == "inputs":
        norm = arrays["weight"], None
        return ra.attention_inputs(x, None, pos, rope, norm=norm, backend=backend, **case.options)[0]
    return rotation_of(case, arrays, backend).apply(x, backend=backend)


def rotation_of(case, arrays, backend):
    rope, x, pos = case.rope, arrays["x"], arrays["pos"]
    if case.kind == "mixed":
        return rope.rotation_mixed(pos, like=x, inv_freq=arrays["freq"])
    if case.kind == "angles":
        return rope.rotation_of_angles(arrays["freq"], like=x)
    return rope.rotation(pos, like=x, inv_freq=arrays.get("freq"), backend=backend)


def results(case, arrays, backend=None):
    """Return the results of a call by their names, for arrays of one library."""
    rope, x, by = case.rope, arrays["x"], {"backend": backend}
    rotation = rotation_of(case, arrays, backend)
    ys = {"main": main_result(case, arrays, backend), "cos": rotation.cos, "sin": rotation.sin}
    directions = {"by tables": rotation, "inverse": rotation.inverse(), "adjoint": rotation.adjoint()}
    ys |= {name: direction.apply(x, **by) for name, direction in directions.items()}
    if case.kind == "positions":
        ys["inverse at positions"] = rope.apply(x, arrays["pos"], inverse=True, **by)
    if case.kind == "inputs" and library_of(x).has_caches:
        caches = arrays["cache"] + 0, arrays["cache"] + 1
        options = {**case.options, **by, "norm": (None, arrays["weight"]), "slots": arrays["slots"]}
        _, ys["k"], written = ra.attention_inputs(x, x, arrays["pos"], rope, v=x, cache=caches, **options)
        ys |= dict(zip(("cache", "cache of v"), written, strict=True))
        if not rope.axes:
            ys["shifted"] = shift_keys(x + 0, [5, -(2**30)], rope, seq_axis=-2, slots=[2, 0])
    return ys


# ---- ways: functions of calls, which return the results of each ----


def by_library(cases, name="numpy", backend=None):
    lib, every = LIBRARIES[name], []
    for case in cases:
        given = case.arrays if is_served(case, {*lib.dtypes, "int32", "int64"}) else {}
        kept = {"pos"} if name == "dask" else set()  # NumPy's
        arrays = {n: array if n in kept else lib.asarray(array) for n, array in given.items()}
        ys = results(case, arrays, backend) if given else {}
        every.append({n: lib.to_numpy(y) for n, y in ys.items()})
    return every


def is_served(case, dtypes):
    return {array.dtype.name for array in case.arrays.values()} <= {*dtypes}


def by_torch(cases, backend=None, wrap=lambda function: function):
    """Return the main results and their gradients; of calls that are not compiled all results."""
    torch._dynamo.reset()
    given = [
        {name: LIBRARIES["torch"].asarray(array) for name, array in case.arrays.items()} for case in cases
    ]
    leaves = [{**arrays, "x": arrays["x"].clone().requires_grad_()} for arrays in given]
    main = wrap(lambda given: [main_result(*call, backend) for call in zip(cases, given, strict=True)])
    recorded, xs = main(leaves), [[arrays["x"] for arrays in each] for each in (leaves, given)]
    every = zip(main(given), recorded, torch.autograd.grad(recorded, *xs), strict=True)
    every = [dict(zip(("main", "recorded", "gradient"), ys, strict=True)) for ys in every]
    for case, arrays, ys in zip(cases, given, every, strict=True) if wrap is not torch.compile else ():
        ys |= results(case, arrays, backend)
        if case.kind == "positions":
            y = arrays["x"].clone()
            ys["in place"] = case.rope.apply(y, arrays["pos"], out=y, backend=backend)
    return [{name: y.detach().to(torch.float64).numpy() for name, y in ys.items()} for ys in every]


def by_jax(cases, backend=None, wrap=jax.jit, x64=True):
    with jax.enable_x64(x64):
        dtypes = {"int32", "float32", "float16", "bfloat16", *(("int64", "float64") if x64 else ())}
        served = [case for case in cases if is_served(case, dtypes)]
        given = [{name: jnp.asarray(array) for name, array in case.arrays.items()} for case in served]
        run = wrap(lambda given: [with_gradient(*call, backend) for call in zip(served, given, strict=True)])
        every = dict(zip((case.seed for case in served), run(given), strict=True))
    return [{name: np.asarray(y) for name, y in every.get(case.seed, {}).items()} for case in cases]


def with_gradient(case, arrays, backend):
    recorded, pull = jax.vjp(lambda x: main_result(case, {**arrays, "x": x}, backend), arrays["x"])
    gradient = {} if backend == "array-api" else {"gradient": pull(arrays["x"])[0]}
    return {**results(case, arrays, backend), "recorded": recorded, **gradient}


def by_jax_without_the_kernel(cases):
    never = lambda *_: False  # noqa: E731
    with mock.patch.multiple(jax_custom_call, serves=never, serves_norm=never):
        return by_jax(cases)


# By name: the function, and how many calls it has in the default run.
WAYS = {
    "NumPy": (by_library, 60),
    "array-api": (partial(by_library, backend="array-api"), 60),
    "array-api-strict": (partial(by_library, name="array_api_strict"), 60),
    "dask": (partial(by_library, name="dask"), 30),
    "PyTorch": (by_torch, 60),
    "PyTorch by operations": (partial(by_torch, backend="torch"), 60),
    "PyTorch by array-api": (partial(by_torch, backend="array-api"), 30),
    "PyTorch compiled": (partial(by_torch, wrap=torch.compile), 2),
    "PyTorch compiled by operations": (partial(by_torch, backend="torch", wrap=torch.compile), 2),
    "Triton": (partial(by_torch, backend="triton"), 8),
    "JAX": (partial(by_jax, wrap=lambda function: function), 6),
    "JAX jitted": (by_jax, 8),
    "JAX without x64": (partial(by_jax, x64=False), 8),
    "JAX by array-api": (partial(by_jax, backend="array-api"), 8),
    "JAX without the kernel": (by_jax_without_the_kernel, 8),
}


# ---- the comparison ----


@functools.cache
def reference(case_seed):
    """Return the results of NumPy's array operations. Gradients are adjoints; of a norm the kernel's."""
    case = random_case(case_seed)
    last = mock.patch.object(_registry, "choose", lambda backends, *call: backends.in_order[-1])
    with last, mock.patch.object(numpy_native, "try_fast_shift", None, create=True):
        (ys,) = by_library([case], backend="array-api")
    gradient = by_torch([case])[0]["gradient"] if case.kind == "inputs" else ys["adjoint"]
    return {**ys, **dict.fromkeys(("recorded", "in place"), ys["main"]), "gradient": gradient}


def differing(name, count, seed=SEED):
    """Return the results of a way that differ from the reference, with the seeds of their calls."""
    way, wrong = WAYS[name][0], []
    cases = [random_case(seed + i) for i in range(count)]
    for case, ys in zip(cases, way(cases), strict=True):
        if case.kind == "inputs" and name not in ("PyTorch", "PyTorch compiled"):
            ys.pop("gradient", None)  # of a norm: an exception of the promise
        for result, y in ys.items():
            y, expected = (np.asarray(a).astype(np.float64) for a in (y, reference(case.seed)[result]))
            assert y.shape == expected.shape
            # Autograd adds 0.0, after which -0.0 is 0.0.
            zero, any_nan = 0.0 if result == "gradient" else -0.0, np.float64("nan")
            if len({np.where(a == a, a + zero, any_nan).tobytes() for a in (y, expected)}) > 1:
                wrong.append(f"{result} of seed {case.seed}: {case.kind}, {case.rope}, {case.options}")
    return wrong


@pytest.mark.parametrize("name", WAYS)
def test_every_way_has_the_bits_of_numpy(name):
    assert not differing(name, WAYS[name][1] * (5 if NIGHTLY else 1))


# ---- mutants: each way in which bits could drift ----


def other(array, dtype):
    return np.asarray(array).astype(dtype)


def with_product(product, x, cos, sin, layout, ops, rotate=pairs._rotate_block):
    changed = copy.copy(ops)
    changed.product = product
    return [other(y, x.dtype) for y in rotate(x, cos, sin, layout, changed)]


def by_float_angles(integers, fraction, plan, use_float64, ops, inv_freq=None):
    angle = angles.rounded_angle(integers, fraction, plan, True, ops, inv_freq)
    return [other(f(angle) * plan.layout.amplitude, "f8" if use_float64 else "f4") for f in (np.cos, np.sin)]


def in_another_order(u):
    z, (s0, s1, s2, s3), (c1, c2, c3, c4) = u * u, angles.SIN_32, angles.COS_32
    return 1.0 + z * c1 + z * z * (c2 + z * c3 + z * z * c4), u * (s0 + z * s1 + z * z * (s2 + z * s3))


def in_16_bits(make, *call):
    return tuple(other(other(table, "f2"), table.dtype) for table in make(*call))


def cast_twice(rows, target, ops, store=cache.stored_values):
    return store(other(other(rows, "f2"), rows.dtype), target, ops)


MUTANTS = {
    "a product and a sum, rounded once": (
        pairs, "_rotate_block", partial(with_product, lambda a, b: other(a, "f8") * b)
    ),
    "products in 16 bits": (pairs, "_rotate_block", partial(with_product, lambda a, b: other(a * b, "f2"))),
    "tables in 16 bits": (
        angles, "_cos_sin_of_quadrant", partial(in_16_bits, angles._cos_sin_of_quadrant)
    ),
    "tables by float angles": (tables, "cos_sin", by_float_angles),
    "a polynomial in another order": (angles, "polynomials32", in_another_order),
    "the C library's sin and cos": (angles, "polynomials32", lambda u: (np.cos(u * PI_4), np.sin(u * PI_4))),
    "an inverse by one factor": (
        _rotation, "inverse_tables", lambda cos, sin, factor, ops: (cos / factor**2, -sin / factor**2)
    ),
    "a norm's sum in another order": (norm, "sum_in_order", lambda x, ops: x.sum(-1, keepdims=True)),
    "a norm's sum in float64": (
        norm, "sum_in_order", lambda x, ops: other(other(x, "f8").sum(-1, keepdims=True), x.dtype)
    ),
    "a root and a quotient, rounded once": (
        ArrayOps, "inverse_sqrt", lambda ops, x: other(1 / np.sqrt(other(x, "f8")), x.dtype)
    ),
    "keys cast twice": (cache, "stored_values", cast_twice),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_drift_is_found(mutant, monkeypatch):
    assert not differing("array-api", 60, seed=0)  # which keeps the reference
    monkeypatch.setattr(*MUTANTS[mutant])
    assert differing("array-api", 60, seed=0)


def test_xla_fuses_products_and_sums_that_are_not_rounded(monkeypatch):
    monkeypatch.setattr(JaxOps, "product", FusedOps.product)
    assert differing("JAX without the kernel", 4, seed=0)
