"""`apply` and its cos and sin against the definition, on every library, in every dtype, at every position."""

import functools

import numpy as np
import pytest
from compare import array_and_values
from ropes import fields_of

import rope_array as ra
from rope_array.testing import apply_definition, cos_sin
from rope_array.testing._contract import (
    AT_FLOATS,
    AT_INTEGERS,
    ROTATED,
    allowed,
    assert_contract,
    compute_dtype,
    eps,
    ulp,
)
from rope_array.testing._definition import pairs_of

INT32 = 2**31
# The definition's cos and sin are rounded to float64.
ROUNDED_TRUTH = 2.0**-54
RANGES = (
    range(-40, 41, 7),
    range(2**16 - 3, 2**16 + 4),
    range(2**20 - 3, 2**20 + 4),
    range(2**24 - 3, 2**24 + 4),
    range(-(2**24) - 3, -(2**24) + 4),
    range(INT32 - 7, INT32),
    range(-INT32, -INT32 + 7),
)
SPECS = fields_of(
    "plain", "half", "slice to interleaved", "amplitude to half", "frequencies", "last features"
)


def positions(n, seed=0):
    """Return the numbers of all ranges and n random ones."""
    rng = np.random.default_rng(seed)
    return np.concatenate([*map(np.array, RANGES), rng.integers(-INT32, INT32, n)])


def int_positions(lib, pos):
    return lib.asarray(np.asarray(pos, dtype=np.int32 if lib.name == "jax" else np.int64))


def assert_within_the_proved_bound(y, values, pos, dtype, spec):
    """The contract allows other code 2.5 eps, more than this library needs without an amplitude."""
    exact, plan = apply_definition(values, pos, **spec), pairs_of(16, spec)
    amplitude = float(plan.amplitude)
    length = amplitude * np.hypot(values[..., plan.source[0]], values[..., plan.source[1]])
    error = ROTATED[dtype][amplitude != 1.0] * eps(compute_dtype(dtype)) * length
    for out in plan.target:
        near = np.abs(exact[..., out]) + error
        bound = error + 0.5 * ulp(near, dtype) + ulp(near, "float64")
        assert (np.abs(y.astype(np.float64)[..., out] - exact[..., out]) <= bound).all()


@pytest.mark.neutral
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_apply_holds_the_contract_at_integers(lib, float_dtype, spec):
    """And the proved bound, where no number is subnormal."""
    pos = positions(100)
    for scale, inverse in ((1, False), (1, True), (1e-4, False), (1e4, False)):
        x, values = array_and_values(lib, float_dtype, 2, len(pos), 16, scale=scale)
        y = lib.to_numpy(ra.apply(x, int_positions(lib, pos), inverse=inverse, **spec))
        assert_contract(y, values, pos, dtype=float_dtype, inverse=inverse, flushes=True, **spec)
        if scale == 1 and not inverse:
            assert_within_the_proved_bound(y, values, pos, float_dtype, spec)


@pytest.mark.library("numpy")
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_an_error_of_any_element_beyond_its_bound_is_found(dtype, spec, inverse):
    pos, x = [5, 70_000], np.random.default_rng(4).standard_normal((2, 16))
    exact = apply_definition(x, pos, inverse=inverse, **spec)
    bound = allowed(x, dtype, spec, exact=exact, pos=pos, inverse=inverse)
    judge = functools.partial(assert_contract, x=x, pos=pos, dtype=dtype, inverse=inverse)
    near = 0.5 if dtype == "float64" else 0.001  # float64 has few numbers within the bound
    judge(exact + (1 - near) * bound * np.sign(x), **spec)
    for index in np.ndindex(*x.shape):
        y = exact.copy()
        y[index] += (1 + near) * bound[index] or np.spacing(y[index])
        with pytest.raises(AssertionError):
            judge(y, **spec)


@pytest.mark.parametrize("tiny", [2.0**-149, 1.35 * 2.0**-126])
@pytest.mark.parametrize("flushes", [False, True])
def test_products_that_underflow_are_within_their_bound(lib, tiny, flushes):
    """Two products may underflow: each is off by half a subnormal number, or flushed to zero."""
    if lib.name == "jax" and not flushes:
        return  # it flushes
    pos = [*range(200)]  # some are near an eighth of a turn
    x = np.full((200, 2), tiny, np.float32)
    y, exact = lib.to_numpy(ra.apply(lib.asarray(x), pos)), apply_definition(x.astype(np.float64), pos)
    bound = allowed(x.astype(np.float64), "float32", {}, exact=exact, pos=pos, flushes=flushes)
    assert (np.abs(y - exact) <= bound).all()


def errors_of_tables(lib, dtype, positions, pos, **fields):
    """Return the errors of cos and sin; `positions` are the positions as the call gets them."""
    width = fields["rotary_dim"]
    tables = ra.RoPE(width, **fields).rotation(positions, like=lib.asarray(np.ones((1, width)), dtype))
    table_values = np.stack([lib.to_numpy(table).astype(np.float64) for table in tables])
    return np.abs(table_values - cos_sin(pos, **fields))


@pytest.mark.neutral
@pytest.mark.parametrize("base", [10_000.0, 1e6, 1.7])
def test_cos_and_sin_are_within_their_bound(lib, float_dtype, base):
    pos = positions(100, seed=1)
    errors = errors_of_tables(lib, float_dtype, int_positions(lib, pos), pos, rotary_dim=128, base=base)
    assert errors.max() <= AT_INTEGERS[compute_dtype(float_dtype)] + ROUNDED_TRUTH


def test_float_positions_are_within_their_bound(lib, float_dtype):
    rng, inv_freq = np.random.default_rng(2), (200.0, 6.0, 1.0, 1e-3)
    pos = [*rng.uniform(-100, 100, 60), *rng.uniform(-(2**31), 2**31, 60), 0.5, -0.5, 1.5, 2.5]
    pos = np.array(pos, np.float32 if lib.name == "jax" else np.float64)
    errors = errors_of_tables(lib, float_dtype, lib.asarray(pos), pos, rotary_dim=8, inv_freq=inv_freq)
    bound = AT_FLOATS[compute_dtype(float_dtype)] * np.maximum(1.0, inv_freq) + ROUNDED_TRUTH
    assert (errors <= bound).all()


# LTX-Video's frequencies: π/2 to 5,000π for coordinates of about 1.
FAST = tuple((np.pi / 2 * 10_000.0 ** np.linspace(0, 1, 8)).tolist())


@pytest.mark.parametrize("form", ["array", "list"])
def test_digits_of_float64_positions_count(lib, float_dtype, form):
    """A frequency of thousands multiplies the error of its position: rounded to float32 it is near 1e-3."""
    pos = np.random.default_rng(5).uniform(-3, 3, 200)

    def largest_error():
        positions = pos.tolist() if form == "list" else lib.asarray(pos)
        return errors_of_tables(lib, float_dtype, positions, pos, rotary_dim=16, inv_freq=FAST).max()

    bound = AT_FLOATS[compute_dtype(float_dtype)] + AT_FLOATS["float64"] * max(FAST) + ROUNDED_TRUTH
    if lib.name != "jax":
        assert largest_error() <= bound
        return
    assert 1e-5 < largest_error() < AT_FLOATS["float32"] * max(FAST)  # no float64 without x64
    import jax

    with jax.enable_x64(True):  # the remedy of the docs
        assert largest_error() <= bound


def test_floats_of_the_host_have_the_same_bits_beside_a_float64_x(lib):
    if "float64" not in lib.dtypes:
        return
    x, _ = array_and_values(lib, "float32", 2, 3, 16)
    y, _ = array_and_values(lib, "float64", 2, 3, 16)
    pos, rope = [0.1, 2.7, 1e6 + 0.3], ra.RoPE(16, inv_freq=FAST)
    alone, with_float64 = rope.apply(x, pos), rope.apply((y, x), pos)[1]
    np.testing.assert_array_equal(lib.to_numpy(alone), lib.to_numpy(with_float64))


def test_one_rounding_of_bfloat16_and_float16(lib, float_dtype):
    """Rounding once, after a rotation in float32, nearly always gives the nearest number; twice does not."""
    if float_dtype not in ("float16", "bfloat16"):
        return
    x, exact = array_and_values(lib, float_dtype, 200, 64)
    y = lib.to_numpy(ra.apply(x, range(200))).astype(np.float64)
    judged = apply_definition(exact, range(200))
    nearest = lib.to_numpy(lib.asarray(judged.astype(np.float32), float_dtype)).astype(np.float64)
    assert (y == nearest).mean() > 0.999
