"""The first thing in which two measured rotations differ, with its meaning and its remedy."""

from collections.abc import Iterator

import numpy as np

from ._measure import MeasuredRotation, eps_of, tolerances

Fact = tuple[str, object, object, str]  # its name, the two values, the remedy if they differ
_READ = "Compare {} of the configs, as each program reads them."
_BASE = _READ.format("rope_theta") + " A rule of the NTK family changes the base too."
_BITS = "Numbers are alike, bits are not: "


def difference_of_rotations(here: MeasuredRotation, there: MeasuredRotation, length: int, dtype: str) -> str:
    """Return the first difference of two rotations, or ""."""
    for name, ours, others, remedy in _facts(here, there, length, dtype):
        if ours != others:
            return f"{name}: {ours} here, {others} in the other. {remedy}"
    return ""


def _facts(here: MeasuredRotation, there: MeasuredRotation, length: int, dtype: str) -> Iterator[Fact]:
    (pairing, part), (other_pairing, other_part) = (r.layout.split("; ")[:2] for r in (here, there))
    yield "pairing", pairing, other_pairing, "Rotate both by one, or change weights by convert.weights."
    yield "rotated part", part, other_part, _READ.format("head_dim and partial_rotary_factor")
    yield "pairing", here.layout, there.layout, "Rotate both by one code."
    yield "axes", here.axes or "unknown", there.axes or "unknown", _READ.format("mrope_section")
    eps = max(eps_of(here.rounding, dtype), eps_of(there.rounding, dtype))
    yield from _facts_of_frequencies(here, there, length, eps)
    if abs(here.amplitude - there.amplitude) > max(1e-5, eps) * here.amplitude:
        yield "amplitude", here.amplitude, there.amplitude, _READ.format("attention_factor and mscale")
    yield "16-bit tables", here.rounding, there.rounding, (
        "Cos and sin of 16 bits are coarse: keep them in float32, by hf.patch or ROPE_ARRAY_VLLM=tables."
    )  # fmt: skip
    for (bound, ours), (_, others) in zip(here.tables, there.tables, strict=True):
        yield f"float32 angles, or other sines (tables below {bound})", ours, others, _BITS + (
            "make angles exact in both, by hf.patch or ROPE_ARRAY_VLLM=tables, or by one code in both."
        )  # fmt: skip
    for (bound, ours), (_, others) in zip(here.results, there.results, strict=True):
        yield f"bits only (results below {bound})", ours, others, _BITS + (
            "tables are equal, and products are rounded otherwise, such as to 16 bits. Rotate by one code."
        )  # fmt: skip


def _facts_of_frequencies(
    here: MeasuredRotation, there: MeasuredRotation, length: int, eps: float
) -> Iterator[Fact]:
    ours, others = np.array(here.frequencies), np.array(there.frequencies)
    errors = 4 * tolerances(others, length, eps) * abs(others)
    off = abs(ours - others) > errors
    if not off.any():
        return
    if (abs(ours + others) <= errors).all():
        yield (
            "direction",
            "forward" if ours.sum() > 0 else "backward",
            "opposite",
            "Change the sign of sin in one.",
        )
    for a, b in zip(here.series, there.series, strict=False):
        if abs(a.base / b.base - 1) > 1e-4:
            yield "base", f"{a.base:.7g}", f"{b.base:.7g}", _BASE
    factor = ours[off.argmax()] / others[off.argmax()]
    if (abs(ours - factor * others) <= errors * abs(factor)).all():
        yield "factor", f"every frequency times {factor:.5g}", "1", _READ.format("the factor of rope_scaling")
    pair = int(abs(np.log(abs(ours / others))).argmax())
    first, second = (f"pair {pair} divided by {rotation.divisors[pair]:.5g}" for rotation in (here, there))
    yield "rule", first, second, _READ.format("rope_scaling")
