"""The rows: every check that is data. A call is text; "base=10.0|500.0" stands for two calls.

A row has a name, a requirement, calls, and the capabilities that all calls need; `few` is the number of calls
if each is compiled. In the levels of a cover, True stands for all levels of a factor, n for its plain value
and the first n levels. `_factors` has the values of each factor, `_checks` the checks that are code.

Observers may repeat a call between two calls of a row: see `_observe`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from . import _contexts as contexts
from ._call import plain_x
from ._capability_parts import INTEGERS, MODEL_WIDTHS, NARROW_WIDTHS, WIDE_WIDTHS
from ._contexts import fresh_call
from ._cover import Cover, pairs_among, pairs_of, single_fields
from ._factors import FAR, FEW_FIELDS, FIELDS, NEAR, SIMPLE_FIELDS, CallFactors
from ._judge import Judge
from ._large import check_consecutive, check_large_call, check_many_elements
from ._observe import check_kind_of
from ._row import CheckRow, read_calls
from ._threads import AtOnce, while_tables_grow

# The widths that are tried first, then the others.
_FIRST = (4, 10, 36, 64, 80, 96, 128, 192, 256, 512, 576, 2048, 2, 6)
_SMALL = {"rows": [(1, 2, 2)]}
_SAME_ANGLES = ("seq_axis", "pairing", "out_pairing", "inverse", "in_tuple")
# (B, H, S): many rows, heads or batches; one at a time, and two.
_MANY = [(1, 1, 1030), (2, 1, 600), (1, 130, 2), (70, 2, 2), (5, 40, 3), (70, 3, 1)]
# For more than 2^17 and 2^18 elements at head_dim 64.
_LARGE = [(3, 7, 103), (4, 9, 115), (1, 3, 1380), (2, 150, 14)]
# Frequencies in arrays: near, far and odd positions, the ends of int32, of each dtype, floats and batches.
_ARRAYS = [
    "inv_freq=mixed:float32|halving:float32|mixed:float32",
    "inv_freq=True:float32|any_size:float32|True:float64|any_size:float64 reach=2147483647",
    "inv_freq=True:float32:heads reach=2147483647",
    "inv_freq=True:float32|True:float64 order=2147483647,2147483646,16777217,131071,1 reach=2147483647",
    "inv_freq=True:float32|any_size:float64|True:float32:heads reach=-2147483647",
    "inv_freq=any_size:float32|any_size:float64 dtype=float64|float16|bfloat16 reach=2147483647",
    "inv_freq=True:float16|True:bfloat16|halving:bfloat16:heads reach=123457",
    "inv_freq=True:float32|True:float64:heads positions=BS reach=123457",
    "inv_freq=True:float32 kind=float",
    "inv_freq=True:float32:heads seq_axis=-3 reach=123457",
    "inv_freq=True:float32 axes=chunks",
]
_ODD = [(1, 1, 71), (1, 131, 2), (71, 2, 2), (1, 1, 1031), (2, 64, 2), (1, 1, 1024)]


def _widths(widths: tuple[int, ...]) -> str:
    """Return widths as the text of a factor: first the widths in `_FIRST`, then the others."""
    return "|".join(map(str, sorted(widths, key=lambda width: (width not in _FIRST, width))))


FIELD_ROWS = [
    CheckRow(
        "direction",
        "A pair (1, 0) becomes (cos, sin): its second member is positive at a small angle.",
        ["numbers=unit rows=1,1,2 reach=1"],
    ),
    CheckRow(
        "narrow_heads", "Narrow even head_dims are rotated: 2 to 14.",
        [f"rows=1,2,3 width={_widths(NARROW_WIDTHS)}"], ("narrow_heads",),
    ),
    CheckRow(
        "widths", "The head_dims of models are rotated: from 16 to 256.",
        [f"rows=1,2,3 width={_widths(MODEL_WIDTHS)}"], ("widths",), few=9,
    ),
    CheckRow(
        "wide_heads", "Wide head_dims are rotated: 320 to 2048.",
        [f"rows=1,2,3 width={_widths(WIDE_WIDTHS)}"], ("wide_heads",),
    ),
    CheckRow(
        "widths_of_each_dtype", "Every feature of a wide head is rotated in each dtype.",
        ["rows=1,2,3 width=96|256|512"], ("widths",), each_dtype=True,
    ),
    CheckRow(
        "pairing",
        'Pairs are (2i, 2i+1) for "interleaved" and (i, i + d/2) for "half", of the rotated slice, in any '
        "order of calls.",
        ["pairing=interleaved|half|interleaved", "pairing=half rotary_dim=8"],
    ),
    CheckRow(
        "out_pairing", "Pairs are read by `pairing` and written by `out_pairing`.",
        ["out_pairing=half pairing=interleaved|half", "out_pairing=interleaved pairing=half"], ("pairing",),
    ),
    CheckRow(
        "base",
        "The base is any positive number, of each call: no cache leaves it out of its key, or rounds it.",
        ["base=10000.0|500000.0|10000.0|100.0|1000000.0|500000.0",
         "reach=65536 base=20000|10000.5|1234.56789|1e10|5000000.0|10.0|0.25"], few=8,
    ),
    CheckRow(
        "rotary_dim",
        "The first rotary_dim features are rotated, by base^(-2i/rotary_dim); the others do not change.",
        ["rotary_dim=4|16|8|2|0", "width=64 rotary_dim=24|48|32|20", "width=80 rotary_dim=32|20",
         "width=128 rotary_dim=96|64|32", "width=256 rotary_dim=64|192"], few=5,
    ),
    CheckRow(
        "rotary_start",
        "The rotated slice starts at rotary_start; the features before and after it do not change.",
        ["rotary_start=4 rotary_dim=8", "rotary_start=12 rotary_dim=4", "rotary_start=1 rotary_dim=6",
         "rotary_start=0 rotary_dim=8", "rotary_start=4"],
    ),
    CheckRow(
        "rotary_starts_of_wide_heads",
        "A rotated slice may start anywhere in a wide head, beyond 32 and 64 too, with either pairing.",
        ["rows=1,2,2 width=128 rotary_start=64 rotary_dim=64 pairing=interleaved|half",
         "rows=1,2,2 width=128 rotary_start=96 rotary_dim=32 pairing=interleaved|half",
         "rows=1,2,2 width=128 rotary_start=100 rotary_dim=20", "rows=1,2,2 width=128 rotary_start=32",
         "rows=1,2,2 width=64 rotary_start=32 rotary_dim=32 pairing=half|interleaved",
         "rows=1,2,2 width=64 rotary_start=40 rotary_dim=16 pairing=half",
         "rows=1,2,2 width=64 rotary_start=33 rotary_dim=24", "rows=1,2,2 width=64 rotary_start=60",
         "rows=1,2,2 width=96 rotary_start=32 rotary_dim=64 pairing=half|interleaved",
         "rows=1,2,2 width=96 rotary_start=72 rotary_dim=24",
         "rows=1,2,2 width=256 rotary_start=128|192 rotary_dim=64 pairing=interleaved|half"],
        ("rotary_dim", "widths"), few=2,
    ),
    CheckRow("odd_width", "A head of odd width is rotated if rotary_dim is even.", ["width=13 rotary_dim=6"]),
    CheckRow(
        "inv_freq",
        "Frequencies of inv_freq are used exactly, in their order, and anew in every call; in an array too, "
        "also for each head, at any position, and to the same bits unless a compiler fuses operations.",
        ["inv_freq=True|mixed|halving|other_last|mixed", *_ARRAYS], few=13, context=contexts.with_frequencies,
    ),
    CheckRow(
        "attention_factor",
        "The attention factor multiplies cos and sin once, and no feature outside the rotated slice.",
        ["attention_factor=1.25|0.1|1.0|1.1386294361119891", "attention_factor=1.25|1.1 reach=0",
         "attention_factor=1.5 rotary_dim=8"],
    ),
    CheckRow(
        "inverse",
        "The inverse divides by the attention factor, reads pairs by out_pairing and writes them by pairing.",
        ["inverse=True", "inverse=True attention_factor=1.5",
         "inverse=True pairing=interleaved|half out_pairing=half", "inverse=True scaling=yarn:factor=4.0"],
    ),
    CheckRow(
        "seq_axis", "Positions run along seq_axis, which counts axes of x from either end.",
        ["seq_axis=-3|1|0|-4", "rows=4,4,4 seq_axis=-2|-3|-4", "seq_axis=-3|1 positions=BS",
         "seq_axis=-3 axes=chunks"],
    ),
]  # fmt: skip

POSITION_ROWS = [
    CheckRow(
        "positions_of_their_own",
        "Each row is rotated by its own position: unordered, repeated, or restarting in packed sequences.",
        ["order=0,1,2,0,1|9,3,3,7,0|4,3,2,1,0", "order=5000,40003,1,70000,2 reach=70000",
         "rows=4,4,4 order=5,0,9,2", "rows=2,3,16 order=descending|packed"],
    ),
    CheckRow(
        "positions_of_python",
        "Positions may be an int, a range, a list or a tuple of ints, negative and in steps, and of floats.",
        ["kind=python_int positions=scalar order=3|-3|8589934597",
         "kind=python_range order=2,3,4,5,6|0,3,6,9,12|-4,-3,-2,-1,0|9,7,5,3,1",
         *(f"kind=python_{name} order=4,0,2,9,1|4,-2,0,-9,1|1099511627776,0,1,2147483648,4294967303"
           for name in ("list", "tuple")),
         # 16-bit floats round these.
         "kind=python_int positions=scalar order=4005 dtype=float64|float16|bfloat16",
         "kind=python_range|python_list|python_tuple order=4001,4002,4003,4004,4005 "
         "dtype=float64|float16|bfloat16",
         "kind=python_float positions=scalar order=2",
         "kind=python_float|python_float_tuple order=4,0,2,8,1"],
        ("python_positions", "any_positions"), few=36,
    ),
    CheckRow(
        "positions_offset", "One row, a decoding step, is rotated by its own position.",
        ["rows=2,3,1 order=3|17|300 reach=300", "rows=2,3,1 reach=3|17|300"], ("offset_positions",),
    ),
    CheckRow(
        "positions_of_a_batch",
        "Positions of shape (B, S) rotate each batch by its own; B is x's first axis.",
        ["positions=BS rows=2,3,5|5,3,5|3,3,5|3,2,1", "positions=BS reach=70000",
         "positions=BS order=descending reach=100|70000"],
    ),
    CheckRow(
        "batch_positions_of_other_ranks",
        "Positions of shape (B, S), (1, S) and (B, 1) match the first axis of an x of three axes or more, "
        "whatever the sizes of the others.",
        ["positions=BS rows=4,5|4,4", "positions=B1|1S rows=4,5", "positions=BS rows=4,5 seq_axis=0",
         "positions=BS rows=2,3,4,5|2,2,3,5|2,3,2,5|3,2,3,3|2,2,2,2", "positions=BS rows=2,1,2,3,5"],
        ("batch_positions", "offset_positions"),
    ),
    CheckRow(
        "positions_of_heads", "Positions of shape (B, H, S) rotate each head by its own.",
        ["positions=BHS rows=2,3,5|2,5,5"],
    ),
    CheckRow(
        "positions_broadcast",
        "A scalar is broadcast to all rows, a size of 1 to its axis: (1,), (1, S), (B, 1), (B, 1, S), ...",
        ["positions=scalar|1|1S|B1|11|B1S|1HS|BH1"], ("broadcast_positions", "any_positions"),
    ),
    CheckRow(
        "size_one_axes", "Axes of size 1 in x are rotated as any other: one batch, one head, one row.",
        ["rows=1,1,1|2,1,5|1,3,5|2,3,1|1,1,5"],
    ),
    CheckRow(
        "strides_of_positions",
        "Positions of any strides and alignment are read correctly: reversed, transposed, broadcast, a part.",
        [Cover({"pos_layout": True, "positions": ["S", "BS", "BHS"], "order": [None, "ascending", "same"]},
              [("pos_layout", "positions", "order")], alone=True)],
        ("strides", "any_positions"),
    ),
]  # fmt: skip

COVER_ROWS = [
    CheckRow(
        "combinations",
        "Any two of the claimed fields, shapes, dtypes and kinds of positions are correct in one call.",
        [Cover(
            _FULL := {
                **dict.fromkeys((*FIELDS, "in_tuple", "dtype", "rows", "positions", "kind", "order"), True),
                "reach": 2, "scaling": ["yarn", "ntk", "linear", None],
            },
            pairs_among(_FULL),
        )], few=8,
    ),
    CheckRow(
        "memory",
        "An x of any strides, alignment and offset is rotated correctly, with every field and any positions.",
        [Cover(
            {**FEW_FIELDS, "dtype": True, "layout": True, "rows": [(2, 3, 5), (2, 1, 3), (1, 3, 1)],
             "width": [16, 64, 80], "positions": ["S", "BS"], "pos_layout": True, "numbers": True},
            [*pairs_of("layout", *FEW_FIELDS, "dtype", "rows", "width", "positions", "numbers"),
             *pairs_of("pos_layout", "dtype", "rows", "positions", "pairing", "inverse"),
             *pairs_of("numbers", "dtype", "pairing", "rotary_dim", "inverse"),
             ("width", "dtype")],
        )], ("strides",), few=2,
    ),
    CheckRow(
        "widths_and_fields",
        "Every claimed field is correct at the head_dims of models, for slices of any width.",
        [Cover(
            {**FEW_FIELDS, "dtype": True, "rotary_dim": [None, 24, 96, 8, 48, "most"],
             "positions": ["S", "BS"], "rows": [(2, 3, 2), (1, 2, 3)],
             "width": [16, 64, 112, 128, 36, 44, 72, 80, 88, 96, 192, 256]},
            [*pairs_of("width", "dtype", *FEW_FIELDS, "positions"), ("width", "rotary_dim", "pairing"),
             ("width", "pairing", "out_pairing"), ("rotary_dim", "pairing", "dtype")],
        )], ("widths",), few=12,
    ),
    CheckRow(
        "widths_and_positions",
        "Any three of head_dim, dtype, pairing, and range, shape and order of positions are right together.",
        [Cover(
            {**{name: FEW_FIELDS[name] for name in (*_SAME_ANGLES, "base")}, "dtype": True, "layout": True,
             "order": True, "width": [16, 64, 80, 128, 256], "rows": [(3, 2, 3), (2, 3, 2), (2, 1, 1)],
             "positions": ["S", "BS", "BHS", ""], "reach": [NEAR, 5000, FAR, -NEAR],
             "kind": [*INTEGERS, "float"]},
            [*combinations(("dtype", "width", "reach", "positions"), 3),
             *(("width", "reach", name) for name in _SAME_ANGLES),
             *(("dtype", "reach", name) for name in _SAME_ANGLES),
             *pairs_of("width", "rows", "kind"),
             *pairs_of("order", "width", "rows", "kind", "reach"),
             *(("order", "positions", name) for name in ("dtype", "base", *_SAME_ANGLES)),
             ("dtype", "kind"), ("kind", "reach"),
             *(("pairing", name, "reach") for name in ("inverse", "seq_axis", "in_tuple"))],
        )], ("widths",), few=3,
    ),
    CheckRow(
        "sizes_and_fields",
        "Every claimed field is correct for many rows, heads or batches, in every claimed dtype.",
        [Cover(
            {**FEW_FIELDS, "dtype": True, "rows": _MANY, "positions": ["S", "BS", "BHS"], "reach": 1,
             "layout": [None, "transposed", "a_slice", "every_second", "a_fused_projection", "reversed"]},
            [*pairs_of("rows", *FEW_FIELDS, "reach", "layout"), ("rows", "dtype", "positions"),
             ("rows", "dtype", "inverse"),
             *pairs_of("dtype", *FEW_FIELDS),
             *(("rows", "positions", name) for name in ("seq_axis", "inverse", "axes"))],
        )], few=7,
    ),
    CheckRow(
        "fields_and_many_elements",
        "Any two of the claimed fields, dtypes, head_dims and many rows, heads or batches are right "
        "together. Calls are of more than 2^18 elements: code chooses by size.",
        [Cover(
            {**{name: few for name, few in FEW_FIELDS.items() if name not in ("axes", "in_tuple")},
             "rotary_dim": [None, 24, "most"], "dtype": True, "width": [64, 36, 80, 96, 192],
             "rows": _LARGE[1:], "positions": ["S", "BS"],
             "layout": [None, "transposed", "a_fused_projection"]},
            [*pairs_among((*(name for name in FEW_FIELDS if name not in ("axes", "in_tuple")),
                           "dtype", "width", "rows", "positions")),
             *pairs_of("layout", "dtype", "rows", "pairing", "inverse")],
        )], few=5, context=check_many_elements,
    ),
    CheckRow(
        "calls_that_differ_in_one_thing",
        "A call is right after one that differs in one thing: no cache leaves that thing out of its key.",
        [Cover(_FULL, walk=160)], few=8,
    ),
    CheckRow(
        "one_field_at_every_width",
        "The plain call and every field alone are right at the head_dims of models, in every dtype.",
        ["rows=1,2,2 pairing=other width=112|64|192",
         Cover(
            {**_SMALL, "pairing": 1, "dtype": True, "width": MODEL_WIDTHS},
            [("width", "pairing", "dtype")], alone=True,
         ),
         Cover(
            {**FEW_FIELDS, **_SMALL, "rotary_dim": [None, "half_of_it"],
             "width": [36, 112, 128, 256, 64, 160]},
            [*pairs_of("width", *SIMPLE_FIELDS, "inv_freq"),
             *(("pairing", "width", name) for name in (*SIMPLE_FIELDS[1:], "inv_freq"))],
             alone=True,
         )], ("widths",), few=3,
    ),
    CheckRow(
        "one_field_and_many_rows",
        "The plain call and every field alone are right for many rows, heads or batches.",
        [Cover({**FEW_FIELDS, "rows": _ODD}, [("rows",), *pairs_of("rows", *FEW_FIELDS)], alone=True)],
         few=2,
    ),
    CheckRow(
        "one_field_and_many_elements",
        "Every field alone is right for an x of more than 2^17 elements. Code chooses by size: threads, "
        "blocks of memory, a kernel.",
        [Cover({**FEW_FIELDS, "rows": [_LARGE[0]], "width": [64], "axes": 0, "in_tuple": 0},
              [(name,) for name in FEW_FIELDS], alone=True)],
        few=3, context=check_many_elements,
    ),
]  # fmt: skip


def _at_like_positions(j: Judge) -> Iterator[CallFactors]:
    """Yield calls at rows with the same ends, mostly the same sum, and the same number in the middle."""
    yield from read_calls(j, "rows=1,2,4 order=2,5,7,9|2,7,5,9|2,6,6,9")
    first = "2,3,4,5,6,7,8"
    others = ["2,4,3,5,6,7,8", "2,6,4,5,3,7,8", "2,3,7,5,6,4,8", "2,3,4,5,7,6,8", "2,3,4,5,6,9,8"]
    for row in (first, *others[: None if j.lib.calls >= 1000 else 2]):
        batches = f"rows=2,1,7 positions=BS order={row}/{first}"
        three = f"rows=3,1,7 positions=BS order={first}/{row}/{first}"
        yield from read_calls(j, f"rows=1,2,7 order={row}", batches, three)
    long = "rows=1,1,1100 order=repeated|repeated_and_reversed"
    yield from read_calls(j, long, "rows=1,1,300 order=reversed_in_part", reach=min(600, j.target.reach))


def _far_and_near(j: Judge) -> Iterator[CallFactors]:
    """Yield calls of new tables at positions of both signs, far and near."""
    far, depth = max(min(j.target.reach - 5, 5000), 1), min(j.target.depth, 5000)
    new = fresh_call(j, j.plain.replace(rows=(1, 2, 5)))
    for low, high in ((-(depth // 8), far // 8), (-1, 1), (-depth, far), (-depth // 2, 5)):
        yield new.replace(order=(0, low, high, low + 1, high - 1))


def _at_many_positions(j: Judge) -> Iterator[CallFactors]:
    """Yield 140 calls at different positions, then repeat some of the first calls."""
    few = j.budget.is_slow or j.lib.is_lazy(plain_x(j).array)
    for start in (*range(20 if few else 140), 0, 1, 64):
        order = f"order={start},{start + 1}" if j.claims("any_positions") else ""
        yield from read_calls(j, f"rows=1,1,2 reach={start + 8} {order}")


STATE_ROWS = [
    CheckRow(
        "calls_in_turn",
        "A call depends on its own spec, shape, dtype and positions only, not on earlier calls.",
        ["base=500.0", "dtype=float64 pairing=half rows=2,3,4 width=24", "rotary_dim=8",
         "dtype=float16 base=500.0 rotary_dim=8 rows=2,3,4 width=24", ""] * 2,
        ("base", "pairing", "rotary_dim"), few=10,
    ),
    CheckRow(
        "fields_that_differ_little",
        "A field is used after one that differs little from it: no cache rounds it, or reads a part of it.",
        ["reach=300 base=10000.25|10000.75|10000|10001|10000.25",
         "reach=300 attention_factor=1.25|1.2501|1.0|1.25",
         "reach=300 inv_freq=halving|other_last|other_first|other_middle|halving",
         "reach=300 inv_freq=halving:float32|other_last:float32|other_first:float32|other_middle:float32",
         "reach=300 inv_freq=halving:float32:heads|halving:float64|other_last:float64|halving:float32",
         "reach=300 axes=alternating|other_last|other_first|alternating"], few=20,
    ),
    CheckRow(
        "calls_at_other_positions",
        "The same shape at other positions is another rotation: no cache leaves positions out of its key.",
        ["rows=1,2,4 reach=8|15|8|100", "rows=1,2,4 reach=8|2500|10|5000|78|4999|9"], ("offset_positions",),
        few=11,
    ),
    CheckRow(
        "calls_at_like_positions",
        "Positions are distinguished by all of their numbers, not by their ends, sum or repr.",
        _at_like_positions, ("any_positions",), few=15,
    ),
    CheckRow(
        "calls_at_reshaped_positions",
        "Positions are distinguished by their shape: the same numbers as (2, 3) and as (3, 2).",
        [*(_RESHAPED := ["rows=2,2,3 positions=BS order=4,8,15/16,23,30",
                         "rows=3,2,2 positions=BS order=4,8/15,16/23,30"]), _RESHAPED[0]],
        ("any_positions", "batch_positions"),
    ),
    CheckRow(
        "calls_far_and_near",
        "Tables that grow at both ends, for negative and positive positions in one call, are right each "
        "time.",
        _far_and_near, ("negative_positions", "any_positions"),
    ),
    CheckRow(
        "calls_at_positions_of_like_bits",
        "Positions are distinguished by their dtype: 253 of uint8 has the same bits as -3 of int8.",
        ["rows=1,2,4 kind=uint8 order=3,253,2,250", "rows=1,2,4 kind=int8 order=3,-3,2,-6",
         # The bits of 3.25, 1.25, 2.25 and 6.25 in float32.
         "rows=1,2,4 kind=float order=3,1,2,6",
         "rows=1,2,4 kind=int32 order=1078984704,1067450368,1074790400,1086849024"],
        ("narrow_positions", "any_positions"),
    ),
    CheckRow(
        "calls_at_many_positions",
        "Calls at 140 other positions, and at the first ones again, are right: a full cache loses no key.",
        _at_many_positions, ("offset_positions",), few=23,
    ),
    CheckRow(
        "decoding_steps",
        "A decoding step is right at each of 8 consecutive positions after a prompt of 40 rows.",
        ["rows=2,3,40 order=ascending", "rows=2,3,1 order=40|41|42|43|44|45|46|47"], few=9,
    ),
    CheckRow(
        "short_calls_after_a_long_one",
        "A long call leaves nothing behind: shorter calls after it, also at other positions, are right.",
        ["rows=1,2,40|1,2,1050|1,2,3|1,2,40|1,2,4 reach=2000", "kind=float rows=1,2,1050|1,2,3|1,2,4"],
        ("offset_positions",),
    ),
    CheckRow(
        "dtypes_in_turn",
        "Each call is as exact as its own dtype: no table is kept in the dtype of an earlier x.",
        ["rows=1,3,4 reach=19 dtype=bfloat16|float16|float64|float32",
         "rows=1,3,4 reach=38 dtype=float32|float64|float16|bfloat16",
         "rows=1,3,4 reach=19 dtype=float32|float64|float16|bfloat16"], ("offset_positions",), few=12,
    ),
]  # fmt: skip


def _of_large_calls(j: Judge) -> Iterator[CallFactors]:
    """Yield large calls of each dtype, in fours."""
    rows = min(120, j.target.reach + 1)
    for dtype in j.budget.few(j.dtypes, 1):
        yield from read_calls(j, f"rows=1,6,{rows} width=64 reach=119|152|119|139", dtype=dtype)


def _of_each_field(j: Judge) -> Iterator[CallFactors]:
    """Yield large calls of each field, and at positions of a batch, in pairs at other positions."""
    fields = single_fields(j, of_any_shape=False)[1:]
    fields += read_calls(j, "positions=BS")
    reach = j.target.reach
    for i, call in enumerate(j.budget.few(fields, 1)):
        large = call.replace(rows=(1, 2, min(1000, reach // 2 + 1)), dtype=j.dtypes[-(i % 2)])
        yield from (large.replace(reach=min(far, reach)) for far in (90, 300))


def _of_growing_tables(j: Judge) -> Iterator[CallFactors]:
    """Yield calls of new tables, each further away than the one before."""
    furthest = min(j.target.reach - 4, 59_000)
    for _ in j.budget.few(range(3), 1):
        new = fresh_call(j, j.plain)
        yield from (new.replace(reach=reach) for reach in (8, furthest // 16, furthest // 4, furthest))


_THREADS = ("threads", "offset_positions")
THREAD_ROWS = [
    CheckRow(
        "threads", "Calls from several threads at once do not affect each other.",
        ["rows=1,2,5 reach=8|15|68|208"], _THREADS, together=AtOnce(),
    ),
    CheckRow(
        "threads_of_many_positions",
        "Calls at more positions than threads do not affect each other: no thread removes another's tables.",
        [f"rows=1,2,5 reach={'|'.join(str(8 + 17 * i) for i in range(12))}"], _THREADS, few=12,
        together=AtOnce(times=12, in_turn=True),
    ),
    CheckRow(
        "threads_of_large_calls",
        "Large calls from several threads at once, which share no scratch memory, do not affect each other.",
        _of_large_calls, _THREADS, together=AtOnce(times=8, group=4),
    ),
    CheckRow(
        "threads_of_different_calls",
        "Calls of different shapes, dtypes and fields from several threads at once do not affect each other.",
        ["rows=1,2,5 reach=8", "rows=1,3,5 width=32 reach=15", "rows=1,2,4 reach=68",
         "rows=1,3,4 width=32 reach=208", "rows=1,3,5 width=32 dtype=float64 rotary_dim=8 reach=15",
         "rows=1,2,4 dtype=float16 reach=68", "rows=1,3,4 width=32 dtype=bfloat16 pairing=half reach=208"],
        _THREADS, few=7, together=AtOnce(),
    ),
    CheckRow(
        "threads_of_each_field",
        "Calls with each field, or positions of a batch, from two threads at once do not affect each other.",
        _of_each_field, _THREADS, together=AtOnce(times=20, group=2),
    ),
    CheckRow(
        "threads_while_tables_grow",
        "A call is right while another thread calls at positions far beyond it, for which tables may grow.",
        _of_growing_tables, _THREADS, together=while_tables_grow,
    ),
]  # fmt: skip

KIND_ROWS = [
    CheckRow(
        "kind", "The result has x's library, shape, dtype and device.", [""],
        each_dtype=True, values=False, context=check_kind_of,
    ),
    CheckRow(
        "kind_of_identity",
        "The result has x's library, shape, dtype and device for a partial rotation and for rotary_dim=0.",
        ["rotary_dim=0|4|all"], each_dtype=True, values=False, context=check_kind_of,
    ),
    CheckRow(
        "magnitudes",
        "Numbers near the ends of the dtype's range are rotated correctly, without a needless overflow.",
        ["numbers=huge|tiny rows=1,2,5"], each_dtype=True,
    ),
    CheckRow(
        "nonfinite", "NaN and infinities stay inside their pair; every other element is rotated as usual.",
        ["numbers=nan|infinity rotary_dim=8|16", "numbers=nan|infinity pairing=half",
         "numbers=nan|infinity rows=2,1,3"], ("nonfinite",),
    ),
    CheckRow(
        "zero_size", "An x without elements gives a result without elements, of its shape.",
        ["rows=0,3,5|2,0,5|2,3,0"], ("zero_size",), values=False, context=check_kind_of,
    ),
    CheckRow(
        "ranks", "An x of one to six axes is rotated: a vector by one position, others along axis -2.",
        ["rows=none positions=scalar", "rows=5|3,5|2,3,5|2,2,3,5|1,2,2,1,5"], ("ranks",), few=6, values=False,
    ),
    CheckRow(
        "tuples",
        "A tuple of arrays gives a tuple of results: of one, two or three arrays, which may differ in heads.",
        ["in_tuple=True|fewer_heads|one|twice|three", "in_tuple=fewer_heads positions=BS",
         "in_tuple=fewer_heads rows=1,4,5|4,2,5|2,32,130 positions=S|BS"],
        ("tuple",), values=False,
    ),
    CheckRow(
        "tuples_of_two_dtypes", "Each array of a tuple is rotated in its own dtype.",
        ["in_tuple=two_dtypes dtype=float32|float64|float16|bfloat16"], values=False,
    ),
]  # fmt: skip


def _narrow(j: Judge, *texts: str) -> Iterator[CallFactors]:
    """Yield calls at the narrowest head_dim: few features of many rows."""
    return read_calls(j, *texts, width=j.target.width_of(4 if j.claims("narrow_heads[4]") else 16))


def _from_an_offset(j: Judge) -> Iterator[CallFactors]:
    """Yield long calls that begin at a position other than 0, as far as the target's positions allow."""
    for start, count in ((17, 3001), (4099, 5003)):
        rows = min(count, j.target.reach // 4 * 3 + 1)
        for call in _narrow(j, f"rows=1,1,{rows}"):
            yield call.replace(reach=min(start + rows - 1, j.target.reach))


SIZE_ROWS = [
    CheckRow(
        "many_heads", "Every head is rotated, however many: from the 65th, the 129th and the 1,025th on.",
        ["rows=1,1030,2|2,131,3"], context=check_large_call,
    ),
    CheckRow(
        "many_batches", "Every batch is rotated, however many: from the 33rd, the 257th and the 1,025th on.",
        ["rows=1030,1,2|261,3,2"], context=check_large_call,
    ),
    CheckRow(
        "batches_times_heads",
        "More than 65,535 batches times heads are rotated, as many as one axis of a GPU's grid cannot hold.",
        ["rows=258,256,1 width=4|16"], few=1, context=check_large_call,
    ),
    CheckRow(
        "many_rows",
        "Every row is rotated, in each dtype: from the 513th, the 1,025th, the 4,097th and the 8,193rd on.",
        ["rows=1,2,8301"], each_dtype=True, context=check_large_call,
    ),
    CheckRow(
        "more_rows_than_2e16",
        "More than 2^16 rows are rotated, as many as an index of 16 bits cannot count.",
        ["rows=1,1,65576 width=4|16"], ("any_positions",), few=1, context=check_large_call,
    ),
    CheckRow(
        "positions_of_a_long_batch", "Positions of shape (B, S) are right for a long S.",
        ["rows=2,1,4200 positions=BS"], each_dtype=True, context=check_large_call,
    ),
    CheckRow(
        "positions_of_many_batches",
        "Positions of shape (B, S) and (B, 1) are right for many batches, and more than 2^16 in all.",
        ["rows=25,1,2700|300,2,3|1030,1,1 positions=BS"], context=check_large_call,
    ),
    CheckRow(
        "long_sequences_from_an_offset",
        "A long sequence of consecutive positions may start anywhere: prefill after a cached prefix.",
        _from_an_offset, ("offset_positions",), context=check_consecutive,
    ),
    CheckRow(
        "more_positions_than_2e16",
        "More than 2^16 different positions are read, as many as an index of 16 bits cannot count.",
        lambda j: _narrow(j, "rows=1,1,65576 reach=65575", "rows=2,1,32788 reach=65575 positions=BS"),
        ("offset_positions",), context=check_consecutive,
    ),
    CheckRow(
        "many_different_positions_of_a_batch",
        "Positions of shape (B, 2) are right if the rows of 300 batches all differ.",
        # Small positions, so that code with inexact angles fails other checks first.
        lambda j: _narrow(j, "rows=300,1,2 positions=BS reach=599"),
        ("batch_positions", "offset_positions"), context=check_consecutive,
    ),
    CheckRow(
        "many_elements", "Every element of an x of more than 2^20 is rotated, in each dtype.",
        ["rows=2,6,1402 width=128", "rows=2,6,1402"], each_dtype=True, few=1, context=check_many_elements,
    ),
]  # fmt: skip
