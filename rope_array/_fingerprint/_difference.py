"""The first thing in which two measured rotations differ, with its meaning and the remedy."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ._measure import BANDS, MeasuredRotation, errors_of

Fact = tuple[str, Any, Any, str]  # its name, two values, and the remedy if they differ
_READ = "Compare {} of the two configs, as each program reads them."
_EXACT = "by hf.patch in transformers, and by ROPE_ARRAY_VLLM in vLLM."
_BITS = "The numbers are alike, the bits are not: "


def difference_of_rotations(here: MeasuredRotation, there: MeasuredRotation, length: int, dtype: str) -> str:
    """Return the first difference of two rotations, or ""."""
    for name, ours, others, remedy in _facts(here, there, length, dtype):
        if ours != others:
            return f"{name}: {ours} here, {others} in the other. {remedy}"
    return ""


def _facts(here: MeasuredRotation, there: MeasuredRotation, length: int, dtype: str) -> Iterator[Fact]:
    (pairing, part), (other_pairing, other_part) = (r.layout.split("; ", 1) for r in (here, there))
    if pairing.partition(" (")[0] != other_pairing.partition(" (")[0] or part == other_part:
        yield "pairing", pairing, other_pairing, "Rotate both by one, or change q and k by convert.weights."
    yield "rotated part", part, other_part, _READ.format("head_dim and partial_rotary_factor")
    yield "axes", here.axes or "unknown", there.axes or "unknown", _READ.format("mrope_section")
    yield from _facts_of_numbers(here, there, length, dtype)
    yield "16-bit tables", here.rounding, there.rounding, f"Keep cos and sin in float32, {_EXACT}"
    for end, ours, others in zip(BANDS, here.tables, there.tables, strict=False):
        remedy = f"{_BITS}angles in float32, or another sine. Make angles exact in both, {_EXACT}"
        yield f"bits of cos and sin below position {end}", ours, others, remedy
    for end, ours, others in zip(BANDS, here.results, there.results, strict=False):
        remedy = (
            f"{_BITS}products are rounded otherwise, such as to 16 bits. Rotate by one code in both, {_EXACT}"
        )
        yield f"bits of results alone, below position {end}", ours, others, remedy


def _facts_of_numbers(
    here: MeasuredRotation, there: MeasuredRotation, length: int, dtype: str
) -> Iterator[Fact]:
    ours, others, eps = here.frequencies, there.frequencies, max(here.eps(dtype), there.eps(dtype))
    errors, ratios = 4 * errors_of(others, length, eps), ours / others
    if (abs(ratios - 1) > errors).any():
        if (abs(ratios + 1) <= errors).all():
            sign, opposite = ("φ", "-φ")[:: 1 if ours.sum() > 0 else -1]
            yield "direction", sign, opposite, "Give the sines of one the other sign."
        if abs(here.base / there.base - 1) > 1e-4:
            remedy = _READ.format("rope_theta") + " A rule of the NTK family changes the base too."
            yield "base", f"{here.base:.7g}", f"{there.base:.7g}", remedy
        pair = int(abs(np.log(abs(ratios))).argmax())
        name = "factor" if (abs(ratios / ratios[0] - 1) <= errors + errors[0]).all() else "rule"
        first, second = (f"pair {pair} divided by {r.divisors[pair]:.6g}" for r in (here, there))
        yield name, first, second, _READ.format("rope_scaling (or rope_parameters)")
    if abs(here.amplitude - there.amplitude) > max(1e-5, eps) * here.amplitude:
        yield "amplitude", here.amplitude, there.amplitude, _READ.format("attention_factor and mscale")
