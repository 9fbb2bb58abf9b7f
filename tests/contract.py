"""The numerical contract of the library, in one place: how far a result may be from the exact rotation.

|y − exact| ≤ 2.5·eps(compute)·A·|pair| + half an ulp of the output, with eps of float64 for float64 and of
float32 for every other dtype, A the amplitude and |pair| the length of the pair that an element comes from;
elements outside the rotated slice are equal. `rope_array.testing.apply_definition` judges what is exact.
"""

import math

import numpy as np

from rope_array.testing import apply_definition, frequencies

# Bits behind the leading one, exponents of the smallest normal and of the largest number.
FORMATS = {
    "float16": (10, -14, 15),
    "bfloat16": (7, -126, 127),
    "float32": (23, -126, 127),
    "float64": (52, -1022, 1023),
}
# Error of cos and sin: at integers, and at float positions of a lane whose frequency is at most 1.
AT_INTEGERS = {"float32": 1.2e-7, "float64": 4e-16}
AT_FLOATS = {"float32": 2.5e-7, "float64": 2.5e-7 * 2.0**-29}
WORD_BITS = {"float32": 64, "float64": 96}


def compute_dtype(dtype):
    """The name of the dtype that an x of dtype `dtype` is rotated in."""
    return "float64" if dtype == "float64" else "float32"


def eps(dtype):
    """The distance from 1 to the next number of a dtype given by name."""
    return 2.0 ** -FORMATS[dtype][0]


def largest(dtype):
    """The largest finite number of a dtype given by name."""
    bits, _, top = FORMATS[dtype]
    return (2.0 - 2.0**-bits) * 2.0**top


def ulp(values, dtype):
    """The distance between the numbers of a dtype, given by name, around each of `values` (float64)."""
    bits, lowest, _ = FORMATS[dtype]
    exponents = np.frexp(np.abs(values))[1] - 1
    return np.ldexp(1.0, np.maximum(np.where(values == 0, lowest, exponents), lowest) - bits)


def pair_indices(width, rotary_dim=None, rotary_start=0, pairing="interleaved"):
    """Indices of the first and of the second member of every pair."""
    lanes = np.arange((width - rotary_start if rotary_dim is None else rotary_dim) // 2)
    if pairing == "half":
        return rotary_start + lanes, rotary_start + lanes + len(lanes)
    return rotary_start + 2 * lanes, rotary_start + 2 * lanes + 1


def _indices(width, fields, inverse):
    """The pairs that are read, and those that are written."""
    where = {name: fields[name] for name in ("rotary_dim", "rotary_start") if fields.get(name) is not None}
    pairing = fields.get("pairing", "interleaved")
    laid = [pair_indices(width, **where, pairing=p) for p in (pairing, fields.get("out_pairing") or pairing)]
    return laid[::-1] if inverse else laid


def _omegas(lanes, fields):
    given = fields.get("inv_freq")
    omegas = frequencies(2 * lanes, fields.get("base", 10000.0)) if given is None else given
    return np.abs(np.array([float(omega) for omega in omegas]))


def _angle_slack(pos, lanes, dtype, fields):
    """What the error of cos and sin may be beyond that at an int32 position, for each lane."""
    compute = compute_dtype(dtype)
    flat = np.asarray(pos if hasattr(pos, "dtype") else np.array(pos, dtype=object)).ravel().tolist()
    slack = np.zeros(lanes)
    if any(isinstance(p, float) for p in flat):
        slack += AT_FLOATS[compute] * np.maximum(1.0, _omegas(lanes, fields)) - AT_INTEGERS[compute]
    furthest = max((abs(p) for p in flat), default=0)
    if furthest > 2**31:
        slack += 2 * math.pi * float(furthest) * 2.0 ** -(WORD_BITS[compute] + 1)
    return slack


def allowed(x, dtype, fields, *, exact=None, pos=0, inverse=False, flushes=False):
    """The largest |y − exact| that the contract allows, for each element of y; 0 outside the slice.

    Parameters
    ----------
    x
        What was rotated, as float64 of NumPy.
    dtype
        Its dtype before that, by name.
    fields
        Fields of `RoPE` but for head_dim.
    exact
        The exact result, around which the ulp is taken; without it that of the longest result, A·|pair|.
    pos
        The positions: floats, and integers beyond 32 bits, are allowed more.
    inverse
        Whether the rotation was undone.
    flushes
        Whether the library may take a subnormal result for 0.
    """
    assert fields.get("angles", "exact") == "exact", "the contract is that of exact angles"
    x = np.asarray(x)
    assert x.dtype == np.float64, "give x as float64, its values those of its own dtype"
    (a, b), (out_a, out_b) = _indices(x.shape[-1], fields, inverse)
    amplitude = fields.get("attention_factor") or 1.0
    amplitude = 1.0 / amplitude if inverse else amplitude
    with np.errstate(over="ignore", invalid="ignore"):
        length = amplitude * np.hypot(x[..., a], x[..., b])
        per_lane = 2.5 * eps(compute_dtype(dtype)) + _angle_slack(pos, len(a), dtype, fields)
        bound = np.zeros(x.shape)
        for out in (out_a, out_b):
            error = per_lane * length
            near = (length if exact is None else np.abs(exact[..., out])) + error
            # The judge rounds once to float64 itself.
            half = 0.5 * ulp(near, dtype) + 0.51 * ulp(near, "float64")
            bound[..., out] = error + half + (2.0 ** FORMATS[dtype][1] if flushes else 0.0)
    return bound


def assert_contract(
    y, x, pos, *, dtype=None, seq_axis=-2, inverse=False, flushes=False, exact=None, **fields
):
    """Assert that y, a NumPy array, is x rotated by its positions as well as the contract says.

    x holds the values that were rotated, in any dtype that has them; `dtype` names the one they were rotated
    in, that of y by default (a bfloat16 that was widened has to be named). A pair with a NaN or an infinity
    is left out, and a result that overflows. `exact` is the judge's result where the caller has it already.
    """
    y, x = np.asarray(y), np.asarray(x).astype(np.float64)
    dtype = dtype or y.dtype.name
    assert y.shape == x.shape, f"the result is of shape {y.shape}, x of {x.shape}"
    if exact is None:
        exact = apply_definition(x, pos, seq_axis=seq_axis, inverse=inverse, **fields)
    y = y.astype(np.float64)
    bound = allowed(x, dtype, fields, exact=exact, pos=pos, inverse=inverse, flushes=flushes)
    (a, b), out = _indices(x.shape[-1], fields, inverse)
    rest = np.setdiff1d(np.arange(x.shape[-1]), np.concatenate([a, b]))
    np.testing.assert_array_equal(y[..., rest], x[..., rest], err_msg="elements outside the rotated slice")
    judged = np.zeros(x.shape, dtype=bool)
    for member in out:
        judged[..., member] = np.isfinite(x[..., a]) & np.isfinite(x[..., b])
    with np.errstate(over="ignore", invalid="ignore"):
        judged &= np.abs(exact) + bound <= largest(dtype)
        wrong = judged & ~(np.abs(y - exact) <= bound)
        if wrong.any():
            ratio = np.where(judged, np.abs(y - exact) / np.where(bound, bound, 1.0), 0.0)
            worst = np.unravel_index(np.argmax(np.where(wrong, np.nan_to_num(ratio, nan=np.inf), 0)), x.shape)
            raise AssertionError(
                f"{wrong.sum()} of {wrong.size} elements beyond the contract of {dtype}, worst at {worst}: "
                f"{y[worst]!r} for {exact[worst]!r}, {ratio[worst]:.3g} times the {bound[worst]:.3g} allowed"
            )
