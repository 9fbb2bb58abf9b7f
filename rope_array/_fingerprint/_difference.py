"""The first thing in which two measured rotations differ, with its meaning and the remedy."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ._measure import BANDS, MeasuredRotation, eps_of, errors_of

Fact = tuple[str, Any, Any, str]  # its name, two values, and the remedy if they differ
_SAME = "Give both programs the same {}."
_EXACT = "as hf.patch does in transformers, and ROPE_ARRAY_VLLM=1 in vLLM."
_BITS = "Pairing, frequencies and amplitude are alike, the bits are not:"
_OF_TABLES = f"{_BITS} another sine, or other rounding of angles. Make both exact, {_EXACT}"
_OF_RESULTS = f"{_BITS} products are rounded otherwise, such as to 16 bits. Make both by one code."


def difference_of_rotations(here: MeasuredRotation, there: MeasuredRotation, length: int, dtype: str) -> str:
    """Return the first difference of two rotations, or ""."""
    for name, ours, others, remedy in _facts(here, there, length, dtype):
        if ours != others:
            return f"{name}: {ours} here, {others} in the other. {remedy}"
    return ""


def _facts(here: MeasuredRotation, there: MeasuredRotation, length: int, dtype: str) -> Iterator[Fact]:
    (pairing, part), (other_pairing, other_part) = (r.layout.split("; ", 1) for r in (here, there))
    words = {text.partition(" (")[0] for text in (pairing, other_pairing)}
    if "no pairs" not in words and (len(words) == 2 or part == other_part):
        yield "pairing", pairing, other_pairing, "Move the weights of one by convert.weights."
    yield "rotated part", part, other_part, _SAME.format("partial_rotary_factor and head_dim")
    yield "axes", here.axes or "unknown", there.axes or "unknown", _SAME.format("mrope_section")
    (size, rounding, angles), (other_size, other_rounding, other_angles) = (
        r.cos_and_sin.split(", ", 2) for r in (here, there)
    )
    if any("from position" in text for text in (angles, other_angles)):
        yield "positions", angles, other_angles, _SAME.format("positions, and tables that are long enough")
    eps = max(eps_of(rounding, dtype), eps_of(other_rounding, dtype))
    yield from _facts_of_frequencies(here, there, length, eps)
    a, b = (float(text.removeprefix("amplitude ")) for text in (size, other_size))
    if abs(a - b) > max(1e-5, eps) * a:
        yield "amplitude", a, b, _SAME.format("attention_factor and mscale")
    yield "16-bit tables", rounding, other_rounding, f"Make cos and sin in float32, {_EXACT}"
    yield "float32 angles", angles, other_angles, f"Make angles exact in both, {_EXACT}"
    for end, ours, others in zip(BANDS, here.tables.split(), there.tables.split(), strict=False):
        yield f"bits of cos and sin below position {end}", ours, others, _OF_TABLES
    for end, ours, others in zip(BANDS, here.results.split(), there.results.split(), strict=False):
        yield f"bits of results alone, below position {end}", ours, others, _OF_RESULTS


def _facts_of_frequencies(
    here: MeasuredRotation, there: MeasuredRotation, length: int, eps: float
) -> Iterator[Fact]:
    (base, divisors, ours), (other_base, other_divisors, others) = here.numbers, there.numbers
    yield "number of pairs", len(ours), len(others), _SAME.format("head_dim")
    errors = 4 * errors_of(others, length, eps)
    with np.errstate(all="ignore"):  # 0: frequencies of whole turns
        ratios = np.where(ours == others, 1.0, ours / others)
    if (abs(ratios - 1) <= errors).all():
        return
    if (abs(ratios + 1) <= errors).all():
        sign, opposite = ("φ", "-φ")[:: 1 if ours.sum() > 0 else -1]
        yield "direction", sign, opposite, "Give the sines of one the other sign."
    both = divisors, other_divisors  # of a base, few differ, or all by the rounding to 16 bits
    are_series = all(2 * len(set(d)) <= len(d) + 1 or (abs(d - 1) < 0.02).all() for d in both)
    if are_series and (abs(base / other_base - 1) > 1e-4 or (divisors == other_divisors).all()):
        remedy = _SAME.format("rope_theta") + " A rule of the NTK family changes it too."
        yield "base", f"{base:.9g}", f"{other_base:.9g}", remedy
    pair = np.flatnonzero(abs(ratios - 1) > errors)[-1]  # the slowest
    name = "factor" if (abs(ratios / ratios[0] - 1) <= errors + errors[0]).all() else "rule"
    first, second = (f"pair {pair} divided by {d[pair]:.6g}" for d in both)
    if first == second or not are_series:
        first, second = (f"pair {pair} rotates by {omega[pair]:.9g}" for omega in (ours, others))
    yield name, first, second, _SAME.format("rope_scaling (or rope_parameters)")
