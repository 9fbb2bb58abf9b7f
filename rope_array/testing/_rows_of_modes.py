"""The rows of modes: calls under settings of their library, mapped, compiled, and after other calls."""

from __future__ import annotations

from collections.abc import Iterator

from . import _contexts as contexts
from . import _transformed as transformed
from ._call import fits
from ._capability_parts import INTEGERS, MODEL_WIDTHS
from ._cover import Cover, pairs_among, single_fields
from ._factors import FEW_FIELDS, SIMPLE_FIELDS, CallFactors
from ._judge import Judge
from ._row import CheckRow, each_field, read_calls

# Far positions: floats of 16 bits round them, and products of them that are too narrow.
_FAR = "reach=12345"
# Two shapes of positions, a decoding step, the other pairing and the inverse, in several dtypes.
_AFTER = ["reach=12345", "reach=12345 positions=BS rows=2,3,4|2,3,1", "reach=12345 pairing=other",
          "reach=12345 inverse=True", "reach=12345 dtype=float64|bfloat16"]  # fmt: skip
_CROSSED = Cover(
    {
        "pairing": 1, "inverse": 1, "dtype": True, "width": [16, 128],
        "rows": [(2, 3, 5), (1, 70, 1), (2, 1, 70)], "positions": ["S", "BS"],
        "order": [None, "ascending", "descending"], "reach": [12345],
    },
    pairs_among(("dtype", "width", "rows", "positions", "pairing", "inverse")),
)  # fmt: skip


_UNDER_A_SETTING = each_field(12345, cover=_CROSSED)
# A large x too, as code may choose a kernel for inference by size.
_FOR_INFERENCE = each_field(12345, "rows=1,16,520", cover=_CROSSED)


def _wide(j: Judge) -> list[int]:
    """Return the widest head_dim of models, if it is claimed and beyond 64."""
    widths = [width for width in MODEL_WIDTHS if fits(j, j.plain.replace(width=width))]
    return [width for width in widths if width > 64][-1:]


_FIELDS_OF_X = {**FEW_FIELDS, "in_tuple": 0}
# Any two simple fields, each field for many rows of a batch, many rows, and kinds and ranges of positions.
# Few calls: XLA takes a tenth of a second for each.
_PROGRAMS = (
    Cover(
        {**dict.fromkeys(("seq_axis", *SIMPLE_FIELDS), 1), "rows": [(2, 3, 3)],
         "dtype": ["bfloat16", "float16", "float64"]},
        [("dtype", *fields) for fields in pairs_among(("seq_axis", *SIMPLE_FIELDS))],
    ),
    Cover(
        {**_FIELDS_OF_X, "rows": [(2, 1, 600)], "positions": ["BS"]}, [(name,) for name in FEW_FIELDS],
        alone=True,
    ),
    Cover({"rows": [(1, 1, 1100)], "pairing": 1}, [("pairing",)], alone=True),
    Cover(
        {"kind": [*INTEGERS, "float"],
         "reach": [2**15 + 10, 2**17, 2**31 - 1]},
        [("kind",), ("reach",)], alone=True,
    ),
)  # fmt: skip


def _compiled_gradients(j: Judge) -> Iterator[CallFactors]:
    """Yield the plain call; with JAX, which compiles all as one program, many more."""
    calls = [*read_calls(j, "", reach=min(12345, j.target.reach))]
    if transformed.is_one_program(j):
        calls += [call for cover in _PROGRAMS for call in cover.calls(j)]
        fields = [call for call in single_fields(j) if not call.in_tuple]
        calls += [call.replace(width=width, rows=(1, 2, 3)) for width in _wide(j) for call in fields]
    return (call for call in dict.fromkeys(calls) if fits(j, call))


def _compiled_fields(j: Judge) -> Iterator[CallFactors]:
    """Yield a call of each field, unless all rows compile it; with JAX, of a wide head in each dtype too."""
    if j.target.compiled:
        yield from read_calls(j, "", "pairing=other", reach=4001)
        return
    yield from each_field(4001)(j)
    if transformed.is_one_program(j):
        for width in _wide(j):
            yield from read_calls(j, "dtype=float32|float64|float16|bfloat16", reach=4001, width=width)


MODE_ROWS = [
    CheckRow(
        "no_grad", "Under torch.no_grad() a call is right, writes nothing, and returns memory of its own.",
        _FOR_INFERENCE, ("no_grad",), context=contexts.no_grad,
    ),
    CheckRow(
        "inference_mode",
        "Under torch.inference_mode() a call is right, writes nothing, and returns memory of its own.",
        _FOR_INFERENCE, ("inference_mode",), context=contexts.inference_mode,
    ),
    CheckRow(
        "training_after_inference",
        "After a call under torch.inference_mode() gradients are right: no tensor of that mode is kept.",
        each_field(100, "order=ascending pairing=half|interleaved", "dtype=float64|float16|bfloat16"),
        ("inference_mode", "gradient"), context=contexts.training_after_inference,
    ),
    CheckRow(
        "autocast",
        "Under torch.autocast the angles keep their accuracy; x may be rounded, to autocast's dtype.",
        _UNDER_A_SETTING, ("autocast",), context=contexts.autocast,
    ),
    CheckRow(
        "gradient_under_autocast",
        "Under torch.autocast the gradient is the adjoint rotation of the cotangent, in x's dtype.",
        [_FAR, f"{_FAR} pairing=half", f"{_FAR} dtype=float16|bfloat16"], ("autocast", "gradient"),
        context=contexts.gradient_under_autocast,
    ),
    CheckRow(
        "default_dtype",
        "Whatever the library's default dtype, the result has x's dtype and accuracy; in JAX, where "
        "jax.enable_x64 adds float64, no table keeps the precision of an earlier call either.",
        _UNDER_A_SETTING, ("default_dtype",), few=19, context=contexts.default_dtype,
    ),
    CheckRow(
        "default_device", "Whatever the library's default device, the result is on x's device, and is right.",
        _UNDER_A_SETTING, ("default_device",), context=contexts.default_device,
    ),
    CheckRow(
        "deterministic", "With deterministic algorithms, which fill new memory with NaN, a call is right.",
        _UNDER_A_SETTING, ("deterministic",), context=contexts.deterministic,
    ),
    CheckRow(
        "vmap",
        "Mapped over any axis of x, once or twice, each x of any rank is rotated as by a call of its own.",
        each_field(12345, "rows=none positions=scalar", "rows=5|3,5 pairing=half|interleaved",
                    "positions=BS rows=2,4,5"),
        ("vmap",), few=1, context=transformed.MAPPED,
    ),
    CheckRow(
        "vmap_of_positions",
        "Mapped over x and positions, or positions alone, each x is rotated by its own positions.",
        each_field(12345, "positions=BS"), ("vmap_positions", "offset_positions"), few=1,
        context=transformed.MAPPED_WITH_POSITIONS,
    ),
    CheckRow(
        "vmap_of_gradients",
        "The gradient of each x, mapped over x and cotangents, is the adjoint rotation of its cotangent.",
        [_FAR], ("vmap", "gradient"), context=transformed.MAPPED_GRADIENT,
    ),
    CheckRow(
        "jvp", "The derivative along a tangent, in forward mode, is the tangent rotated.",
        each_field(12345), ("jvp", "gradient"), few=1, context=transformed.DERIVATIVE,
    ),
    CheckRow(
        "positions_of_a_shard",
        "Under jax.shard_map over the sequence, each part is rotated by its positions in the whole sequence.",
        ["rows=2,3,16 reach=15|12345"], ("shards",), context=contexts.in_shards,
    ),
    CheckRow(
        "jit",
        "One compiled function is right for each dtype, size and shape of positions, in turn, and for each "
        "array of frequencies.",
        [f"{_FAR} dtype=float32|float64|float16|bfloat16|float32",
         f"{_FAR} positions=BS rows=2,3,5|3,3,5|2,3,1", "rows=2,3,1|2,3,5",
         "inv_freq=True:float32|halving:float32|other_last:float32|any_size:float64|True:float32:heads "
         "reach=2147483647"],
        ("jit",), few=15, context=transformed.check_compiled_in_turn,
    ),
    CheckRow(
        "jit_of_fields",
        "Compiled with any claimed field, with x and positions traced, a call is right; with JAX at a wide "
        "head in each dtype too.",
        _compiled_fields, ("jit",), few=40, context=transformed.COMPILED,
    ),
    CheckRow(
        "jit_of_gradients",
        "The gradient of a compiled call is the adjoint rotation of the cotangent; with JAX also with any "
        "two fields, at wide heads, for many rows, and at far positions of each dtype.",
        _compiled_gradients, ("jit", "gradient"), context=transformed.COMPILED_GRADIENT,
    ),
    CheckRow(
        "calls_after_a_compiled_one", "A call after one that was compiled is right: no traced array is kept.",
        _AFTER, ("jit",), few=5,
        context=contexts.after("a compiled call", transformed.COMPILED),
    ),
    CheckRow(
        "calls_after_a_mapped_one", "A call after one that was mapped is right: no mapped array is kept.",
        _AFTER, ("vmap",), few=3,
        context=contexts.after("a call under vmap", transformed.MAPPED),
    ),
    CheckRow(
        "calls_after_a_gradient",
        "A call after one whose gradient was asked for is right, and so is its gradient.",
        _AFTER, ("gradient",), few=3,
        context=contexts.after("a call for a gradient", contexts.gradient_if_taken),
    ),
    CheckRow(
        "calls_after_a_fake_one",
        "A call after one with fake tensors, which have no values, is right: none of them is kept. A table "
        "that a function keeps is such a tensor; few programs make both calls, so this is for `--thorough`.",
        _AFTER, ("no_grad",), thorough=True,
        # No second fake call: PyTorch refuses to mix fake tensors with cached tables of real ones.
        context=contexts.after("a call with fake tensors", contexts.fake_call, contexts.check_alone),
    ),
    CheckRow(
        "lazy", "A call computes nothing: the result is lazy, whatever the fields.",
        ["", "rotary_dim=8"], ("lazy",), values=False, context=contexts.lazy_call,
    ),
]  # fmt: skip
