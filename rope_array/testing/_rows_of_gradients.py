"""Rows of gradients: the value while one is recorded, and the gradient itself."""

from __future__ import annotations

from itertools import combinations

from ._capability_parts import INTEGERS
from ._cover import Cover, pairs_among, pairs_of
from ._factors import FAR, FEW_FIELDS, FIELDS, NEAR, SIMPLE_FIELDS
from ._named_values import AXES
from ._row import CheckRow, each_field
from ._rows_of_scaling import RULES_AND_PARAMETERS, YARN

_RECORDED = "gradient=contiguous"
_WIDE = [16, 64, 128]

GRADIENT_ROWS = [
    CheckRow(
        "gradient", "The gradient with respect to x is the adjoint rotation of the cotangent.",
        [_RECORDED], each_dtype=True,
    ),
    CheckRow(
        "gradient_of_shapes",
        "The gradient is right for a decoding step, positions of a batch, wide heads, many rows or heads.",
        [f"{_RECORDED} rows=2,3,1|1,70,2|40,2,2|1,1,600 reach=17", f"{_RECORDED} positions=BS",
         f"{_RECORDED} width=64|128 pairing=interleaved|half",
         f"{_RECORDED} rows=2,8,130 width=64 pairing=other"], few=4,
    ),
    CheckRow(
        "gradient_of_fields",
        "The gradient multiplies by the attention factor; the gradient of features that are not rotated is "
        "their cotangent; it reads the cotangent's pairs by out_pairing and writes pairs by pairing.",
        [f"{_RECORDED} attention_factor=2.0", f"{_RECORDED} rotary_dim=8", f"{_RECORDED} out_pairing=other",
         f"{_RECORDED} inverse=True",
         f"{_RECORDED} inv_freq=True:float32|any_size:float64|True:float32:heads reach=2147483647",
         f"{_RECORDED} inverse=True attention_factor=2.0", f"{_RECORDED} in_tuple=True|two_dtypes"], few=5,
    ),
    CheckRow(
        "gradient_of_strides",
        "The gradient is right for an x, and for a cotangent, that is transposed, sliced or broadcast, and "
        "so is the value while it is recorded.",
        [Cover({"gradient": ["contiguous", "transposed", "broadcast", "every_second"], "layout": True},
              [("layout",), ("gradient",)], alone=True)], ("gradient",),
    ),
    CheckRow(
        "gradient_of_one_field",
        "The gradient is right for every field alone, at narrow and wide heads, and for many rows.",
        [Cover(
            {**FEW_FIELDS, "in_tuple": 0, "rotary_dim": [None, "half_of_it"], "gradient": ["contiguous"],
             "dtype": True, "width": _WIDE, "rows": [(2, 3, 5), (1, 37, 30), (1, 1, 2100)]},
            [*(("dtype", name) for name in FIELDS), *(("pairing", "width", name) for name in FIELDS),
             *pairs_of("rows", *FIELDS)], alone=True,
        )], ("gradient",), few=5,
    ),
    CheckRow(
        "gradient_of_scaling", "The gradient has the frequencies and the amplitude of each scaling rule.",
        [f"{_RECORDED} scaling={rule}" for rule in (*RULES_AND_PARAMETERS[3:], *RULES_AND_PARAMETERS[:3])]
        + [f"{_RECORDED} scaling=yarn:factor=40.0 pairing=other", f"{_RECORDED} {YARN} inverse=True"],
        ("scaling",), few=1,
    ),
    CheckRow(
        "gradient_of_axes",
        "The gradient of each pair is rotated by the pair's own coordinate, for axes of every kind.",
        [f"{_RECORDED} axes={'|'.join(AXES)}", f"{_RECORDED} width=64 rows=1,2,3 axes={'|'.join(AXES)}"],
         few=2,
    ),
    CheckRow(
        "gradient_at_far_positions",
        "The value while a gradient is recorded, and the gradient, are right at far positions of each dtype.",
        [Cover(
            {"gradient": ["contiguous"], "reach": [4001, 2**16, FAR], "positions": ["S", "BS", "BHS"],
             "kind": [*INTEGERS, "float"], "dtype": True,
             "width": [16, 128], "pairing": 1},
            [("kind", "reach"), ("positions", "reach"), ("dtype", "width", "pairing")], alone=True,
        )], ("gradient", "offset_positions"), few=3,
    ),
    CheckRow(
        "gradient_combinations",
        "Values and gradients are right with any two claimed fields, and with sizes, dtypes and strides.",
        [Cover(
            _RECORDED_FULL := {
                **FEW_FIELDS, "gradient": ["contiguous", "transposed", "broadcast", "every_second"],
                "dtype": True, "rows": [(2, 5, 5), (1, 70, 2), (2, 3, 5), (40, 2, 1), (1, 1, 530)],
                "width": _WIDE, "positions": ["S", "BS", "BHS"], "reach": [NEAR, 2**17],
                "order": True, "layout": True,
            },
            [*pairs_among(_RECORDED_FULL), ("dtype", "rows", "positions"), ("dtype", "width", "pairing"),
             ("rows", "pairing", "inverse")],
        ),
         Cover(
            {**dict.fromkeys((*SIMPLE_FIELDS, "seq_axis"), 1), "dtype": True, "rows": [(2, 3, 3)],
             "gradient": ["contiguous"]},
            [("dtype", *fields) for fields in combinations((*SIMPLE_FIELDS, "seq_axis"), 3)],
        )], ("gradient",), few=4,
    ),
    CheckRow(
        "gradient_after_other_calls",
        "A gradient belongs to its own call, also if other calls are made before it is asked for.",
        lambda j: (call.replace(gradient="later") for call in each_field(100, "positions=BS")(j)),
        ("gradient", "offset_positions"), few=1,
    ),
    CheckRow(
        "gradient_of_a_sum",
        "The gradient is right for a cotangent that is one number broadcast, as the gradient of a sum is.",
        ["gradient=sum"],
    ),
    CheckRow(
        "gradient_of_a_tuple", "The gradient is right for each array of a tuple, if the others need none.",
        ["in_tuple=True gradient=alone"],
    ),
    CheckRow(
        "gradient_twice", "A gradient asked for twice is the same, and so is the gradient of the next call.",
        ["gradient=twice", "gradient=twice"],
    ),
    CheckRow(
        "gradient_of_a_gradient",
        "The gradient of a gradient is the forward rotation, as the gradient is linear in the cotangent.",
        ["gradient=second", "gradient=second pairing=other", "gradient=second out_pairing=other",
         "gradient=second inverse=True", "gradient=second attention_factor=1.1",
         "gradient=second rotary_dim=8", "gradient=second seq_axis=-3|1"], few=1,
    ),
    CheckRow(
        "gradient_of_a_parameter",
        "The gradient of a torch.nn.Parameter is right: no result is cut off the graph.",
        ["gradient=parameter reach=12345"],
    ),
]  # fmt: skip
