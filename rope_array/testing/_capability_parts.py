"""The capabilities that a target can claim, and their parts: it may claim `ranks[1]` and `widths[80]` alone.

A part is a factor of a call at one level. A capability is declined if all of its parts are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ._rules import RULES

# Sizes of x without the features, for one to six axes.
RANKS: tuple[tuple[int, ...], ...] = ((), (5,), (3, 5), (2, 3, 5), (2, 2, 3, 5), (1, 2, 2, 1, 5))
# Sizes (B, H, S), one of them 0.
EMPTY = {"batch": (0, 3, 5), "heads": (2, 0, 5), "rows": (2, 3, 0)}
NARROW_WIDTHS = (2, 4, 6, 8, 10, 12, 14)
MODEL_WIDTHS = (
    16, 24, 32, 36, 40, 44, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 144, 160, 176, 192, 224, 256,
)  # fmt: skip
WIDE_WIDTHS = (320, 384, 512, 576, 1024, 2048)
# The widths that are tried first where each is compiled.
FIRST_WIDTHS = (2, 4, 6, 16, 24, 36, 64, 80, 256, 512)
ALL_WIDTHS = (*NARROW_WIDTHS, *MODEL_WIDTHS, *WIDE_WIDTHS)
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32")
# Positions that are broadcast: a scalar, or axes of size 1 in place of a B, H or S.
BROADCAST = ("scalar", "1", "1S", "B1", "11", "B1S", "1HS", "BH1")


def _levels(factor: str, levels: Iterable[Any]) -> dict[str, str]:
    return {str(level): f"{factor}={level}" for level in levels}


def _rows(sizes: Iterable[int]) -> str:
    return f"rows={','.join(map(str, sizes))}"


class Capability(NamedTuple):
    """One capability."""

    words: str  # words that follow "the target"
    # The trial call, as `_factors.read_call` reads it; "" is the plain call, or a call for each part. None is
    # no trial. `_trials.CONTEXTS` makes some calls in another way.
    trial: str | None = None
    # The parts by their labels; each with the values of factors.
    parts: Mapping[str, str] = MappingProxyType({})


# The values of fields change the result, for an x of any even width from 6 on.
_FIELDS = {
    "base": 50.0, "rotary_dim": 2, "rotary_start": 2, "pairing": "half", "out_pairing": "half",
    "inv_freq": "halving", "attention_factor": 2.0, "axes": "alternating", "inverse": True,
}  # fmt: skip
TABLE = {
    **{name: Capability(f"takes {name}", f"{name}={value}") for name, value in _FIELDS.items()},
    "array_frequencies": Capability("takes inv_freq in an array of x's library, for each head or for all"),
    "scaling": Capability("takes scaling", "", _levels("scaling", RULES)),
    "seq_axis": Capability("takes seq_axis", "rows=2,5,5 seq_axis=-3"),  # as many heads as rows
    "values": Capability("computes values, not only shapes"),
    "any_positions": Capability("takes positions in any order"),
    "offset_positions": Capability("takes positions that start anywhere"),
    "batch_positions": Capability("takes positions of shape (B, S)", "positions=BS"),
    "head_positions": Capability("takes positions of shape (B, H, S)", "positions=BHS"),
    "broadcast_positions": Capability(
        "takes a scalar position, and positions with axes of size 1", "", _levels("positions", BROADCAST)),
    "python_positions": Capability(
        "takes an int, a range, a list or a tuple as positions", "",
        {"int": "kind=python_int positions=scalar", "range": "kind=python_range order=ascending",
         "list": "kind=python_list", "tuple": "kind=python_tuple"}),
    "negative_positions": Capability("takes negative positions", "reach=-5"),
    "float_positions": Capability("takes float positions", "", _levels("kind", ("float32", "float64"))),
    "narrow_positions": Capability("takes positions of every integer dtype", "", _levels("kind", INTEGERS)),
    "wide_positions": Capability("takes positions beyond 32 bits"),
    "reaches_2e16": Capability("takes positions beyond 4,095"),
    "reaches_2e20": Capability("takes positions beyond 2^16"),
    "reaches_2e24": Capability("takes positions beyond 2^20"),
    "reaches_int32": Capability("takes positions beyond 2^24"),
    "ranks": Capability(
        "takes x of any number of axes", "",
        {"1": "rows=none positions=scalar"} | {str(len(lead) + 1): _rows(lead) for lead in RANKS[1:]}),
    "narrow_heads": Capability("takes a head_dim below 16", parts=_levels("width", NARROW_WIDTHS)),
    "widths": Capability("takes the head_dims of models, 16 to 256", parts=_levels("width", MODEL_WIDTHS)),
    "wide_heads": Capability("takes a head_dim beyond 256", parts=_levels("width", WIDE_WIDTHS)),
    "odd_width": Capability("takes an odd head_dim with an even rotary_dim", "width=17 rotary_dim=4"),
    "keeps_x": Capability("does not write or delete x"),
    "zero_size": Capability(
        "takes arrays without elements", "", {label: _rows(sizes) for label, sizes in EMPTY.items()}),
    "strides": Capability("takes arrays of any strides", ""),
    "tuple": Capability(
        "takes several arrays in a tuple", "",
        {"1": "in_tuple=one", "2": "in_tuple=True", "3": "in_tuple=three"}),
    "mixed_dtypes": Capability("takes a tuple of arrays of two dtypes", "in_tuple=two_dtypes"),
    "nonfinite": Capability("keeps NaN and infinities in their pair"),
    "nonfinite_rows": Capability("keeps NaN and infinities in their vector"),
    "same_bits": Capability("rotates a row to the same bits in every batch, slice and tuple"),
    "threads": Capability("can be called from several threads at once"),
    "attention_inputs": Capability("makes attention's inputs: norm of each head, rotation, caches"),
    "caches": Capability("writes k and v into caches by slots"),
    "out": Capability("writes attention's inputs into given arrays"),
    "gradient": Capability("is differentiable", ""),
    "no_grad": Capability("takes a call under torch.no_grad()", ""),
    "inference_mode": Capability("takes a call under torch.inference_mode()", ""),
    "autocast": Capability("takes a call under torch.autocast()", ""),
    "default_dtype": Capability("takes a call under another default dtype of the library", ""),
    "default_device": Capability("takes a call under another default device of the library", ""),
    "deterministic": Capability("takes a call with PyTorch's deterministic algorithms", ""),
    "vmap": Capability("takes a call that the library's vmap maps over x", "rows=4,2,3,5"),
    "vmap_positions": Capability(
        "takes a call that the library's vmap maps over positions", "rows=4,2,3,5 positions=BS"),
    "jvp": Capability("is differentiable in forward mode", ""),
    "shards": Capability(
        "takes the part of a sequence that each device has, under jax.shard_map", "rows=2,3,16"),
    "float16": Capability("takes float16", "dtype=float16"),
    "bfloat16": Capability("takes bfloat16", "dtype=bfloat16"),
    "float32": Capability("takes float32"),
    "float64": Capability("takes float64", "dtype=float64"),
    "lazy": Capability("returns arrays that are computed later"),
    "jit": Capability("can be compiled by its library", ""),
}  # fmt: skip
PARTS = {name: capability.parts for name, capability in TABLE.items() if capability.parts}
PART_NAMES = tuple(f"{name}[{label}]" for name, labels in PARTS.items() for label in labels)


def whole_of(name: str) -> str:
    """Return the capability of a part, or the name itself."""
    return name.partition("[")[0]


def parts_of(name: str) -> tuple[str, ...]:
    """Return the names of a capability's parts: none for a part, or for a capability without parts."""
    return tuple(f"{name}[{label}]" for label in PARTS.get(name, ()))


def with_parts(reasons: Mapping[str, str]) -> dict[str, str]:
    """Add the parts of declined capabilities, and the capabilities whose parts are all declined."""
    all_reasons = dict(reasons)
    for name in PARTS:
        names = parts_of(name)
        if name in all_reasons:
            all_reasons.update({part: all_reasons.get(part, all_reasons[name]) for part in names})
        elif all(part in all_reasons for part in names):
            reasons_of_parts = [all_reasons[part] for part in names]
            all_reasons[name] = max(dict.fromkeys(reasons_of_parts), key=reasons_of_parts.count)
    return all_reasons


def parts_joined(names: Collection[str]) -> list[str]:
    """Return names with the parts of one capability together: "ranks[1, 2]"."""
    groups: dict[str, list[str]] = {}
    for name in names:
        capability, _, label = name.partition("[")
        groups.setdefault(capability, []).extend([label[:-1]] if label else [])
    return [f"{name}[{', '.join(labels)}]" if labels else name for name, labels in groups.items()]
