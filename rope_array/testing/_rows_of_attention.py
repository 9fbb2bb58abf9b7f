"""Rows of attention's inputs: the norm of each head, the rotation, and the write into caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ._attention import (
    check_gradients,
    check_in_order,
    check_inputs,
    check_parts,
    make_inputs_call,
    read_inputs_calls,
)
from ._factors import DTYPES
from ._failure import named
from ._judge import Check, Judge
from ._row import alternatives


class InputsRow(NamedTuple):
    """A check as data: calls as text, as `_attention` reads it."""

    name: str
    requirement: str
    calls: tuple[str, ...]
    needs: tuple[str, ...] = ()
    few: int = 3  # number of calls, if each is compiled
    context: Callable[..., None] = check_inputs  # how a call is made and judged
    each_dtype: bool = False

    def checks(self) -> Iterator[Check]:
        """Yield the check of the row, or the checks of each dtype."""
        needs = ("values", "attention_inputs", *self.needs)
        for dtype in DTYPES if self.each_dtype else ("",):
            name = f"{self.name}[{dtype}]" if dtype else self.name
            yield Check(name, self.requirement, (*needs, *([dtype] if dtype else [])), _run, (self, dtype))


def _run(j: Judge, row: InputsRow, dtype: str) -> None:
    """Make and judge the calls of a row."""
    texts = alternatives(f"{text} dtype={dtype}" if dtype else text for text in row.calls)
    calls = [(text, *call) for text in texts for call in read_inputs_calls(j, text)]
    for seed, (text, factors, options) in enumerate(j.budget.few(calls, row.few)):
        with named(text):
            row.context(j, make_inputs_call(j, factors, options, seed))


_NORM, _CACHED = "weights=shared", "cache=pages|slots"
_FUSED = "layout=a_fused_projection"

ROWS = [
    InputsRow(
        "inputs_rotated", "Without norm and caches q and k are rotated, and k may be None.",
        ("", "k=none", "positions=BS", "seq_axis=-3 pairing=half", "rotary_dim=8"), each_dtype=True,
    ),
    InputsRow(
        "norm_weights",
        "Each head of q and of k is normed over its features, and multiplied by its weight: of each head, of "
        "all heads, or none.",
        ("weights=ones|shared|q|heads", "weights=heads seq_axis=-3", f"{_NORM} k=none",
         f"{_NORM} weight_dtype=float32 positions=BS"), each_dtype=True,
    ),
    InputsRow(
        "norm_options", "eps is added to the mean of squares inside the root, and offset to the weights.",
        ("weights=ones|heads eps=0.5", f"{_NORM} offset=1.0", f"{_NORM} eps=0.1 offset=-0.5"),
    ),
    InputsRow(
        "norm_of_slices", "The norm is of the whole head, also of the features that are not rotated.",
        (f"{_NORM} rotary_dim=8|0", f"{_NORM} rotary_dim=4 rotary_start=8",
         f"{_NORM} width=96 rotary_dim=32"), ("rotary_dim",),
    ),
    InputsRow(
        "norm_before_pairs", "The weight of a feature multiplies before the rotation, in every pairing.",
        (f"{_NORM} pairing=half|interleaved", f"{_NORM} pairing=half out_pairing=interleaved",
         f"{_NORM} attention_factor=1.5"), ("pairing",),
    ),
    InputsRow(
        "norm_of_widths", "Narrow, wide and odd heads are normed, of few rows and of many.",
        (f"{_NORM} width=4|64|80|128|256|320", f"{_NORM} width=13 rotary_dim=6",
         f"{_NORM} width=128 rows=2,4,300", f"{_NORM} width=64 rows=1,1,1|3,40,1"), ("widths",),
    ),
    InputsRow(
        "norm_in_order",
        "The norm adds squares in 64 columns, then columns by halves, so that every library has its bits.",
        ("weights=heads|ones reach=0", f"{_NORM} width=64|80|128|256|320|576 reach=0",
         f"{_NORM} eps=0.1 offset=1.0 reach=0", f"{_NORM} width=128"),
        ("same_bits", "any_positions"), context=check_in_order, each_dtype=True,
    ),
    InputsRow(
        "norm_rounding",
        'rounding="norm" rounds the normed head to the dtype of q, and "steps" before the weight too.',
        (f"{_NORM} rounding=norm|steps width=64", f"{_NORM} rounding=steps width=64 reach=0",
         "weights=heads rounding=norm|steps offset=1.0"),
        ("same_bits", "any_positions"), context=check_in_order, each_dtype=True,
    ),
    InputsRow(
        "inputs_in_parts",
        "A row has the same bits in a part of the batch, with any strides, and if q is alone.",
        (f"{_NORM} width=16|128", f"{_NORM} rows=3,4,40 width=64", f"{_NORM} seq_axis=-3 {_FUSED}",
         f"{_NORM} layout=transposed|every_second_feature"),
        ("same_bits",), context=check_parts, each_dtype=True,
    ),
    InputsRow(
        "cache_layouts",
        "k, rotated, and v are written into the slots of their tokens, in caches of pages or without, and "
        "nothing else is written.",
        ("cache=pages rows=2,5 seq_axis=-3 cache_axis=-3|-2", f"{_CACHED} seq_axis=-3 slots=BS",
         f"{_CACHED} cache_axis=-2|-3 slots=S|BS",
         f"{_CACHED} {_NORM} slots=BS", f"{_CACHED} rotary_dim=8"), ("caches",), few=2, each_dtype=True,
    ),
    InputsRow(
        "cache_slots",
        "A token with a slot below 0 is not written; of several tokens with one slot the last is kept.",
        (f"{_CACHED} skips=yes slots=S|BS slot_dtype=int64|int32",
         "cache=pages skips=yes slots=BS rows=3,2,70"), ("caches",),
    ),
    InputsRow(
        "cache_of_v", "v may have other features than k, or be None, as for the rows of MLA.",
        (f"{_CACHED} v=wide|none", f"{_CACHED} v=wide slots=BS seq_axis=-3",
         "cache=pages v=none rows=1,5 seq_axis=-3 width=36 rotary_start=20 rotary_dim=16"), ("caches",),
    ),
    InputsRow(
        "cache_dtypes", "A cache may have another floating dtype than k, which is rounded once.",
        (f"cache=pages {_NORM} stored=float16|float32|bfloat16|float64",
         "cache=slots rotary_dim=8 stored=float16|float32"), ("caches",), few=2, each_dtype=True,
    ),
    InputsRow(
        "cache_quantised",
        "Caches of int8 and float8_e4m3fn hold k and v over their scales; larger numbers become the largest.",
        (f"{_CACHED} stored=int8 scale=0.05|0.01", "cache=pages stored=float8_e4m3fn scale=0.5|0.004",
         f"cache=pages {_NORM} rotary_dim=8 stored=int8|float8_e4m3fn scale=0.05"),
        ("caches",), each_dtype=True,
    ),
    InputsRow(
        "cache_in_pools", "Caches, q, k and v may be parts of larger arrays, whose other elements are kept.",
        (f"{_CACHED} pool=yes slots=S|BS cache_axis=-2|-3",
         f"{_CACHED} pool=yes {_NORM} slots=BS seq_axis=-3 skips=yes {_FUSED}"), ("caches", "out", "strides"),
    ),
    InputsRow(
        "inputs_in_place", "The results are written into out: q and k themselves, or other arrays.",
        ("out=in_place|apart", f"out=in_place|apart {_NORM} rotary_dim=8", "out=in_place k=none",
         f"out=in_place {_NORM} cache=pages slots=BS", f"out=in_place {_NORM} seq_axis=-3 {_FUSED}"),
        ("out",), each_dtype=True,
    ),
    InputsRow(
        "gradients_of_inputs", "The gradients of q, of k and of both weights are right.",
        (_NORM, "weights=heads offset=1.0 eps=0.1", "weights=heads seq_axis=-3 pairing=half",
         f"{_NORM} rotary_dim=8 width=96"),
        ("gradient",), few=2, context=check_gradients, each_dtype=True,
    ),
]  # fmt: skip
