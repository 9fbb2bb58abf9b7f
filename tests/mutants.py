"""Mutants: rotary embeddings with one fault each, and the checks that have to fail for each.

Each mutant wraps this library's `apply` with a fault as found in other code. If a released package had the
fault, the docstring names the thread.
"""

import functools
import time
from dataclasses import replace
from importlib import import_module
from typing import NamedTuple

import numpy as np

import rope_array as ra
from rope_array.testing import Target
from rope_array.testing._factors import FIELDS
from rope_array.testing._own import as_records


class Mutant(NamedTuple):
    """A faulty callable, its array library, and the names of the checks that it has to fail."""

    rotate: object
    library: str
    failed_checks: tuple[str, ...]

    @property
    def name(self):
        return self.rotate.__name__

    def target(self):
        return target(self.rotate, self.library)


MUTANTS = []


def target(rotate, library):
    """Make a target that claims all fields, all dtypes and the contract, so that every check applies."""
    narrow = {"numpy": ("float16",), "torch": ("float16",), "jax": ("bfloat16",)}
    dtypes = ("float32", "float64", *narrow.get(library, ()))
    return Target(
        with_records(rotate), library=library, fields=tuple(FIELDS), dtypes=dtypes, angles="exact",
        furthest=2**62, declared=True,
    )  # fmt: skip


def with_records(rotate):
    """Convert `scaling` and `axes` mappings to rope_array's classes before the call."""

    @functools.wraps(rotate)
    def call(x, pos, **spec):
        return rotate(x, pos, **as_records(spec))

    return call


def mutant(*failed_checks, library="numpy"):
    def register(rotate):
        MUTANTS.append(Mutant(rotate, library, failed_checks))
        return rotate

    return register


def whole(x):
    """Return the first array of a tuple, or the array."""
    return x[0] if isinstance(x, tuple) else x


def each(function):
    """Rotate a tuple array by array."""

    @functools.wraps(function)
    def call(x, pos, **spec):
        if isinstance(x, tuple):
            return tuple(function(one, pos, **spec) for one in x)
        return function(x, pos, **spec)

    return call


def split(spec):
    """Return the fields of a RoPE, and the fields of the call."""
    call = {name: spec.pop(name) for name in ("seq_axis", "inverse") if name in spec}
    return spec, call


def nudged(y, where=...):
    """Replace some elements by the next float: the bits differ, but the contract holds."""
    y = y.copy()
    y[where] = np.nextafter(y[where], np.asarray(np.inf, y.dtype))
    return y


# ---- frequencies and pairs ----


@mutant("definition", "direction", "inverse")
def wrong_direction(x, pos, **spec):
    return ra.apply(x, pos, **{**spec, "inverse": not spec.get("inverse", False)})


@mutant("base", "calls_in_turn")
def base_ignored(x, pos, **spec):
    return ra.apply(x, pos, **{name: value for name, value in spec.items() if name != "base"})


_TABLES = {}


@mutant("base", "calls_in_turn")
def cache_keyed_without_base(x, pos, **spec):
    """patrick-kidger/equinox, nn/_embedding.py of 0.13.8: the key of the table is its size and dtype."""
    key = whole(x).shape[-1], spec.get("rotary_dim")
    base = _TABLES.setdefault(key, spec.get("base", 10000.0))
    return ra.apply(x, pos, **{**spec, "base": base})


@mutant("calls_at_other_positions")
def cache_keyed_without_offset(x, pos, **spec):
    """lucidrains/rotary-embedding-torch #11."""
    kept = _TABLES.setdefault(("pos", np.shape(pos), np.asarray(pos).dtype), pos)
    return ra.apply(x, kept, **spec)


@mutant("definition", "widths")
@each
def exponent_i_over_d(x, pos, **spec):
    spec, call = split(spec)
    width = spec.get("rotary_dim", x.shape[-1] - spec.get("rotary_start", 0))
    base = spec.pop("base", 10000.0)
    spec.setdefault("inv_freq", [base ** (-i / width) for i in range(width // 2)])
    return ra.apply(x, pos, **spec, **call)


@mutant("rotary_dim", "rotary_start", "odd_width")
@each
def frequencies_from_head_dim(x, pos, **spec):
    """pie #602."""
    spec, call = split(spec)
    width = spec.get("rotary_dim", x.shape[-1] - spec.get("rotary_start", 0))
    base = spec.pop("base", 10000.0)
    spec.setdefault("inv_freq", [base ** (-2 * i / x.shape[-1]) for i in range(width // 2)])
    return ra.apply(x, pos, **spec, **call)


@mutant("definition", "norm", "rotations_add", "scores_are_relative")
@each
def pairing_mixed(x, pos, **spec):
    """facebookresearch/vjepa2 PR #15: cos and sin tiled for halves, x rotated pairwise."""
    rotation = ra.RoPE(x.shape[-1]).rotation(pos, like=x)
    cos, sin = (np.concatenate([t, t], -1) for t in (rotation.cos, rotation.sin))
    if cos.ndim == 3 and x.ndim == 4:
        cos, sin = cos[:, None], sin[:, None]
    other = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    return (x * cos + other * sin).astype(x.dtype)


@mutant("definition", "pairing")
def other_pairing(x, pos, **spec):
    other = {"interleaved": "half", "half": "interleaved"}[spec.get("pairing", "interleaved")]
    return ra.apply(x, pos, **{**spec, "pairing": other})


@mutant("pairing", "partial_pairing")
def pairing_ignored(x, pos, **spec):
    return ra.apply(x, pos, **{name: value for name, value in spec.items() if name != "pairing"})


@mutant("partial_pairing")
@each
def halves_of_the_head(x, pos, **spec):
    width = spec.get("rotary_dim")
    if spec.get("pairing") != "half" or not width or width == x.shape[-1]:
        return ra.apply(x, pos, **spec)
    middle = x.shape[-1] // 2
    order = [*range(width // 2), *range(middle, middle + width // 2)]
    y = x.copy()
    y[..., order] = ra.apply(x[..., order], pos, pairing="half")
    return y


@mutant("out_pairing", "inverse_of_layout")
def out_pairing_ignored(x, pos, **spec):
    return ra.apply(x, pos, **{name: value for name, value in spec.items() if name != "out_pairing"})


@mutant("rotary_start")
def rotary_start_ignored(x, pos, **spec):
    return ra.apply(x, pos, **{name: value for name, value in spec.items() if name != "rotary_start"})


@mutant("rotary_dim", "rotary_start", "odd_width")
@each
def tail_zeroed(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if spec.get("rotary_dim") is not None:
        y[..., spec.get("rotary_start", 0) + spec["rotary_dim"] :] = 0
    return y


@mutant("wide_heads")
@each
def block_of_256_features(x, pos, **spec):
    y = np.array(x)
    y[..., :256] = ra.apply(x, pos, **spec)[..., :256]
    return y


@mutant("widths")
@each
def only_128_features(x, pos, **spec):
    """Dao-AILab/flash-attention: a kernel for heads of a certain size."""
    y = ra.apply(x, pos, **spec)
    y[..., 128:] = x[..., 128:]
    return y


@mutant("inv_freq")
def frequencies_sorted(x, pos, **spec):
    if "inv_freq" in spec:
        spec["inv_freq"] = sorted(spec["inv_freq"], reverse=True)
    return ra.apply(x, pos, **spec)


@mutant("attention_factor", "attention_factor_of_a_part")
def amplitude_squared(x, pos, **spec):
    if "attention_factor" in spec:
        spec["attention_factor"] **= 2
    return ra.apply(x, pos, **spec)


@mutant("attention_factor_of_a_part")
@each
def amplitude_on_all(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    width = spec.get("rotary_dim", x.shape[-1])
    y[..., width:] *= spec.get("attention_factor", 1)
    return y


@mutant("inverse", "inverse_of_amplitude", "inverse_of_layout")
def inverse_ignored(x, pos, **spec):
    return ra.apply(x, pos, **{name: value for name, value in spec.items() if name != "inverse"})


@mutant("inverse_of_amplitude")
@each
def adjoint_for_inverse(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return (y * spec.get("attention_factor", 1.0) ** 2).astype(x.dtype) if spec.get("inverse") else y


@mutant("seq_axis", "seq_axis_and_batch")
def wrong_axis(x, pos, **spec):
    return ra.apply(x, pos, **{name: value for name, value in spec.items() if name != "seq_axis"})


@mutant("ranks")
@each
def vectors_and_videos(x, pos, **spec):
    """Rotate arrays that do not have four axes by position 0."""
    return ra.apply(x, pos if x.ndim == 4 else 0, **spec)


# ---- rules ----


def without(spec, *names):
    return {name: value for name, value in spec.items() if name not in names}


def rule_of(spec, kind):
    """Return the rule of a call if it is an instance of `kind`, else None."""
    return spec["scaling"] if isinstance(spec.get("scaling"), kind) else None


@mutant(
    "scaling_linear", "scaling_ntk", "scaling_dynamic", "scaling_yarn", "scaling_llama3", "scaling_longrope",
    "scaling_proportional", "scaling_periods", "scaling_amplitude", "scaling_of_a_part", "scaling_inverse",
    "axes_and_scaling",
)  # fmt: skip
def scaling_ignored(x, pos, **spec):
    """vllm PR #44158: configs with an old key were read as unscaled."""
    return ra.apply(x, pos, **without(spec, "scaling"))


@mutant("scaling_ntk", "axes_and_scaling")
def ntk_for_every_lane(x, pos, **spec):
    """keras-hub 0.32.0, rope_type="dynamic": all frequencies are divided by the power."""
    if rule := rule_of(spec, ra.NTKAware):
        spec["scaling"] = replace(rule, variant="every_pair")
    return ra.apply(x, pos, **spec)


@mutant("scaling_dynamic")
def dynamic_below_the_trained_length(x, pos, **spec):
    if rule := rule_of(spec, ra.DynamicNTK):
        spec["scaling"] = ra.NTKAware(rule.factor)
    return ra.apply(x, pos, **spec)


@mutant("scaling_yarn")
def yarn_always_truncated(x, pos, **spec):
    """transformers 5.23: truncate is read from the outer dict; vllm PR #28244."""
    if rule := rule_of(spec, ra.YaRN):
        spec["scaling"] = replace(rule, truncate=True)
    return ra.apply(x, pos, **spec)


@mutant("scaling_yarn", "scaling_amplitude", "scaling_in_turn")
def yarn_without_amplitude(x, pos, **spec):
    """torchtitan: the rotation leaves the amplitude out."""
    if rule := rule_of(spec, ra.YaRN):
        spec["scaling"] = replace(rule, attention_factor=1.0)
    return ra.apply(x, pos, **spec)


@mutant("scaling_amplitude")
def yarn_amplitude_for_any_factor(x, pos, **spec):
    """keras-hub 0.32.0: always 0.1·ln f + 1; mscale and attention_factor are ignored."""
    if rule := rule_of(spec, ra.YaRN):
        spec["scaling"] = replace(rule, attention_factor=0.1 * np.log(rule.factor) + 1)
    return ra.apply(x, pos, **spec)


@mutant("scaling_and_attention_factor")
def amplitudes_multiplied(x, pos, **spec):
    """sglang, mlx-lm: attn_factor multiplies the default instead of replacing it."""
    if rule := rule_of(spec, ra.YaRN):
        spec["attention_factor"] = spec.get("attention_factor", 1.0) * rule.amplitude
    return ra.apply(x, pos, **spec)


@mutant("scaling_of_a_part")
@each
def rule_by_the_head(x, pos, **spec):
    rule, width = spec.get("scaling"), spec.get("rotary_dim")
    if rule is None or width is None:
        return ra.apply(x, pos, **spec)
    spec, call = split(spec)
    whole_head = ra.RoPE(x.shape[-1], base=spec.get("base", 10000.0), scaling=rule)
    spec["inv_freq"] = whole_head.frequencies[: width // 2]
    spec.setdefault("attention_factor", whole_head.amplitude)
    return ra.apply(x, pos, **without(spec, "scaling"), **call)


@mutant("scaling_llama3")
def llama3_without_the_ramp(x, pos, **spec):
    if rule := rule_of(spec, ra.Llama3):
        spec["scaling"] = replace(rule, low_freq_factor=rule.high_freq_factor)
    return ra.apply(x, pos, **spec)


@mutant("scaling_longrope")
def longrope_long_at_the_trained_length(x, pos, **spec):
    """sglang: take the long list at the trained length too; the correct comparison is >, not ≥."""
    if rule := rule_of(spec, ra.LongRoPE):
        spec["scaling"] = replace(rule, length=rule.length + 1)
    return ra.apply(x, pos, **spec)


@mutant("scaling_proportional")
@each
def proportional_as_partial(x, pos, **spec):
    """Megatron-Bridge #4195: the first features of the head instead of the first pairs."""
    rule = rule_of(spec, ra.Proportional)
    if rule is None:
        return ra.apply(x, pos, **spec)
    width = int(rule.partial_rotary_factor * x.shape[-1]) // 2 * 2
    return ra.apply(x, pos, **{**spec, "scaling": ra.Linear(rule.factor), "rotary_dim": width})


@mutant("scaling_in_turn")
def rule_kept_from_the_first_call(x, pos, **spec):
    if "scaling" in spec:
        spec["scaling"] = _TABLES.setdefault(("rule", type(spec["scaling"])), spec["scaling"])
    return ra.apply(x, pos, **spec)


@mutant("rules_that_differ_in_one_parameter")
def cache_without_one_parameter_of_a_rule(x, pos, **spec):
    rule = spec.get("scaling")
    if isinstance(rule, ra.Llama3):
        key = "llama3", rule.factor, rule.low_freq_factor, rule.original_max_position_embeddings
        spec["scaling"] = _TABLES.setdefault(key, rule)
    return ra.apply(x, pos, **spec)


@mutant("scaling_inverse")
def inverse_keeps_the_rules_amplitude(x, pos, **spec):
    if spec.get("inverse") and (rule := rule_of(spec, ra.YaRN)):
        spec["attention_factor"] = 1 / rule.amplitude
    return ra.apply(x, pos, **spec)


# ---- coordinates ----


@mutant(
    "axes_chunked", "axes_interleaved", "axes_alternating", "axes_axial", "axes_blocks", "axes_indices",
    "axes_without_a_coordinate", "axes_of_a_part", "axes_of_floats", "axes_of_a_batch",
    "axes_of_one_position", "axes_and_seq_axis", "axes_inverse", "axes_and_scaling", "axes_and_inv_freq",
    "axes_of_a_tuple",
)  # fmt: skip
def first_coordinate_only(x, pos, **spec):
    """Wrong axes that pass every test with text: candle #3551, Liger PR #276, transformers #40490."""
    if "axes" in spec:
        pos = np.broadcast_to(np.asarray(pos)[..., :1], np.shape(pos))
    return ra.apply(x, pos, **spec)


@mutant("axes_interleaved", "axes_alternating")
def every_map_is_chunked(x, pos, **spec):
    if "axes" in spec:
        coordinates = spec["axes"].coordinates
        if None not in coordinates and spec["axes"].widths is None and spec["axes"].indices is None:
            spec["axes"] = replace(spec["axes"], coordinates=tuple(sorted(coordinates)))
    return ra.apply(x, pos, **spec)


@mutant("axes_axial", "axes_blocks", "axes_of_floats")
def frequencies_that_never_restart(x, pos, **spec):
    if "axes" in spec:
        spec["axes"] = replace(spec["axes"], widths=None)
    return ra.apply(x, pos, **spec)


@mutant("axes_of_text", "axes_chunked")
def frequencies_that_always_restart(x, pos, **spec):
    if "axes" in spec and spec["axes"].widths is None and spec["axes"].indices is None:
        width = 2 * len(spec["axes"].coordinates)
        spec["axes"] = replace(spec["axes"], widths=(width,) * spec["axes"].count)
    return ra.apply(x, pos, **spec)


@mutant("axes_blocks", "axes_inverse")
def halves_across_blocks(x, pos, **spec):
    if "axes" in spec:
        spec["axes"] = replace(spec["axes"], blocks=1)
    return ra.apply(x, pos, **spec)


@mutant("axes_without_a_coordinate")
def given_frequencies_turn_every_lane(x, pos, **spec):
    if "axes" in spec and "inv_freq" in spec:
        coordinates = tuple(a or 0 for a in spec["axes"].coordinates)
        spec["axes"] = replace(spec["axes"], coordinates=coordinates)
    return ra.apply(x, pos, **spec)


@mutant("axes_of_a_batch")
def coordinates_first(x, pos, **spec):
    """Read coordinates of shape (3, 3) as (n, S) instead of (S, n)."""
    if "axes" in spec and np.ndim(pos) > 1 and np.shape(pos)[-2:] == (3, 3):
        pos = np.swapaxes(pos, -1, -2)
    return ra.apply(x, pos, **spec)


# ---- accuracy ----


@mutant("definition", "accuracy_small", "accuracy_2e16")
@each
def bfloat16_tables(x, pos, **spec):
    spec, call = split(spec)
    rotation = ra.RoPE(x.shape[-1], **spec).rotation(pos, like=x)
    bits = [(t.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32) for t in rotation[:2]]
    rotation = rotation._replace(
        cos=bits[0].astype(rotation.cos.dtype), sin=bits[1].astype(rotation.sin.dtype)
    )
    rotation = rotation.inverse() if call.pop("inverse", False) else rotation
    return rotation.apply(x, **call)


@mutant("scores_are_relative", "accuracy_2e16", "positions_of_narrow_dtypes")
def bfloat16_positions(x, pos, **spec):
    """lucidrains/rotary-embedding-torch: positions in the dtype of x. huggingface/transformers #29285."""
    numbers = np.asarray(pos, np.float32).view(np.uint32)
    rounded = (numbers + 0x8000 & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return ra.apply(x, rounded.astype(np.int64), **spec)


@mutant("accuracy_2e20", "accuracy_2e24", "accuracy_int32", "accuracy_negative")
def float32_angles(x, pos, **spec):
    return ra.apply(x, pos, angles="float32", **spec)


@mutant("accuracy_2e24", "accuracy_int32")
def positions_counted_in_float32(x, pos, **spec):
    numbers = np.asarray(pos)
    return ra.apply(x, numbers.astype(np.float32).astype(np.float64) if numbers.size else pos, **spec)


@mutant("accuracy_2e24")
def positions_wrapped_at_2_24(x, pos, **spec):
    return ra.apply(x, np.where(np.asarray(pos) >= 2**24, np.asarray(pos) - 2**24, pos), **spec)


@mutant("accuracy_2e16", "accuracy_2e20")
def positions_clamped(x, pos, **spec):
    """Use the table's last row for all positions beyond it, as JAX's indexing does."""
    return ra.apply(x, np.minimum(np.asarray(pos), 40_000), **spec)


@mutant("accuracy_int32")
def end_of_int32_off(x, pos, **spec):
    numbers = np.asarray(pos)
    return ra.apply(x, np.where(numbers > 2**31 - 100, numbers - 1, numbers), **spec)


@mutant("accuracy_negative")
def absolute_positions(x, pos, **spec):
    return ra.apply(x, np.abs(np.asarray(pos)), **spec)


@mutant("accuracy_wide")
def positions_of_32_bits(x, pos, **spec):
    numbers = np.asarray(pos)
    return ra.apply(x, numbers.astype(np.int32) if numbers.dtype.kind in "iu" else pos, **spec)


@mutant("accuracy_float", "accuracy_float64_positions")
def positions_truncated(x, pos, **spec):
    return ra.apply(x, np.asarray(pos).astype(np.int64), **spec)


@mutant("accuracy_float64_positions")
def float_positions_in_float32(x, pos, **spec):
    numbers = np.asarray(pos)
    return ra.apply(x, numbers.astype(np.float32) if numbers.dtype.kind == "f" else pos, **spec)


@mutant("accuracy_small", "accuracy_int32")
@each
def dtype_narrowed_inside(x, pos, **spec):
    return ra.apply(x.astype(np.float32), pos, **spec).astype(x.dtype)


@mutant("definition", "identity_at_zero", "positions_offset", "rotations_add")
def off_by_one(x, pos, **spec):
    return ra.apply(x, np.asarray(pos) + 1, **spec)


@mutant("magnitudes", "linear")
@each
def clipped(x, pos, **spec):
    return np.clip(ra.apply(x, pos, **spec), -2, 2)


# ---- positions ----


@mutant("positions_of_their_own", "positions_of_length_of_batch")
def positions_sorted(x, pos, **spec):
    return ra.apply(x, np.sort(np.asarray(pos), axis=-1) if np.ndim(pos) else pos, **spec)


@mutant("positions_of_their_own", "accuracy_small")
def positions_counted_from_the_first(x, pos, **spec):
    """NVIDIA/Megatron-LM #453 and others: packed sequences are rotated as one."""
    numbers = np.asarray(pos)
    if numbers.ndim != 1 or not numbers.size:
        return ra.apply(x, pos, **spec)
    return ra.apply(x, numbers[0] + np.arange(len(numbers)), **spec)


@mutant("positions_offset", "same_bits_in_a_slice", "size_one_axes")
@each
def one_row_is_the_first(x, pos, **spec):
    return ra.apply(x, 0 if x.shape[-2:-1] == (1,) else pos, **spec)


@mutant("positions_of_a_batch", "seq_axis_and_batch", "positions_broadcast")
def batch_of_positions_ignored(x, pos, **spec):
    numbers = np.asarray(pos)
    return ra.apply(x, numbers[:1] if numbers.ndim == 2 else pos, **spec)


@mutant("positions_of_a_batch")
def square_positions_transposed(x, pos, **spec):
    numbers = np.asarray(pos)
    square = numbers.ndim == 2 and len(set(numbers.shape)) == 1
    return ra.apply(x, numbers.T if square else pos, **spec)


@mutant("positions_of_heads")
def heads_of_positions_ignored(x, pos, **spec):
    numbers = np.asarray(pos)
    return ra.apply(x, numbers[:, :1] if numbers.ndim == 3 else pos, **spec)


@mutant("positions_of_length_of_batch")
@each
def positions_of_the_batch_first(x, pos, **spec):
    if x.ndim == 4 and np.ndim(pos) == 1 and len(pos) == x.shape[0] > 2:
        return ra.apply(x, np.asarray(pos)[:, None], **spec)
    return ra.apply(x, pos, **spec)


@mutant("size_one_axes")
@each
def one_head_unrotated(x, pos, **spec):
    """linkedin/Liger-Kernel #342."""
    return x.copy() if x.ndim == 4 and x.shape[1] == 1 else ra.apply(x, pos, **spec)


@mutant("positions_of_python")
@each
def a_number_is_a_length(x, pos, **spec):
    return ra.apply(x, range(x.shape[-2]) if isinstance(pos, int) else pos, **spec)


@mutant("positions_of_python")
@each
def floats_of_python_cut_to_integers(x, pos, **spec):
    return ra.apply(x, int(pos) if isinstance(pos, float) else pos, **spec)


@mutant("positions_of_narrow_dtypes")
def positions_doubled_in_their_dtype(x, pos, **spec):
    numbers = np.asarray(pos)
    with np.errstate(over="ignore"):
        return ra.apply(x, numbers * np.array(2, numbers.dtype) // np.array(2, numbers.dtype), **spec)


# ---- arrays ----


@mutant("kind")
@each
def dtype_widened(x, pos, **spec):
    return ra.apply(x, pos, **spec).astype(np.float64)


@mutant("kind_of_identity")
@each
def dtype_widened_in_a_part(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return y.astype(np.float64) if spec.get("rotary_dim") == 4 else y


@mutant("kind", "kind_of_identity", "definition")
@each
def a_list(x, pos, **spec):
    return ra.apply(x, pos, **spec).tolist()


@mutant("kind", library="array_api_strict:device1")
@each
def device_dropped(x, pos, **spec):
    xp = x.__array_namespace__()
    return xp.asarray(ra.apply(x, pos, **spec), device=xp.Device("CPU_DEVICE"))


@mutant("zero_size")
@each
def nothing_squeezed(x, pos, **spec):
    return ra.apply(x, pos, **spec) if x.size else np.empty((0, x.shape[-1]), x.dtype)


@mutant("tuples", "same_bits_in_company")
def second_of_a_tuple_shifted(x, pos, **spec):
    if not isinstance(x, tuple):
        return ra.apply(x, pos, **spec)
    return (ra.apply(x[0], pos, **spec), *(ra.apply(one, np.asarray(pos) + 1, **spec) for one in x[1:]))


@mutant("inputs_unchanged")
@each
def input_written(x, pos, **spec):
    """linkedin/Liger-Kernel #272: a kernel rotates in place."""
    y = ra.apply(x, pos, **spec)
    x[...] = y
    return y


@mutant("inputs_unchanged")
def positions_written(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if isinstance(pos, np.ndarray) and pos.ndim:
        pos += 1
    return y


@mutant("no_aliasing")
@each
def output_aliased_where_nothing_turns(x, pos, **spec):
    return x if spec.get("rotary_dim") == 0 else ra.apply(x, pos, **spec)


@mutant("no_aliasing")
@each
def output_aliased_at_zero(x, pos, **spec):
    return ra.apply(x, pos, **spec) if np.any(np.asarray(pos) != 0) else x[...]


@mutant("strides", "same_bits_of_strides")
@each
def strides_misread(x, pos, **spec):
    """Read memory as contiguous, as a kernel without strides does."""
    return ra.apply(x.ravel(order="K").reshape(x.shape), pos, **spec)


@mutant("strides_of_positions")
def strides_of_positions_misread(x, pos, **spec):
    if isinstance(pos, np.ndarray) and pos.ndim == 1 and pos.size > 1 and pos.strides[0] != pos.itemsize:
        pos = np.lib.stride_tricks.as_strided(pos, strides=(pos.itemsize,))
    return ra.apply(x, pos, **spec)


@mutant("nonfinite")
@each
def nan_leaves_its_pair(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return np.where(np.isnan(y).any(-1, keepdims=True), np.asarray(np.nan, y.dtype), y)


@mutant("nonfinite_rows")
@each
def nan_leaves_its_row(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return (
        np.where(np.isnan(y).any(axis=-2, keepdims=True), np.asarray(np.nan, y.dtype), y) if y.ndim > 1 else y
    )


@mutant("many_rows")
@each
def only_1024_rows(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if y.ndim > 1:
        y[..., 1024:, :] = x[..., 1024:, :]
    return y


@mutant("many_heads")
@each
def only_32_heads(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if y.ndim == 4:
        y[:, 32:] = x[:, 32:]
    return y


# ---- properties ----


@mutant("norm", "definition")
@each
def scaled(x, pos, **spec):
    return (ra.apply(x, pos, **spec) * 1.01).astype(x.dtype)


@mutant("heads_alike", "definition")
@each
def only_the_first_head(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if y.ndim == 4:
        y[:, 1:] = x[:, 1:]
    return y


@mutant("linear")
@each
def bits_by_size(x, pos, **spec):
    """Round large vectors differently: within the contract, but not linear."""
    y = ra.apply(x, pos, **spec)
    return nudged(y) if y.size and np.abs(x).max() > 4 else y


@mutant("same_bits_in_a_slice")
@each
def bits_by_length(x, pos, **spec):
    """Compute the tail of a vector loop differently."""
    y = ra.apply(x, pos, **spec)
    return nudged(y, np.s_[..., -1:, :]) if y.ndim > 1 and y.shape[-2] % 2 else y


@mutant("same_bits_in_a_batch")
@each
def bits_by_batch(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return nudged(y) if y.ndim == 4 and y.shape[0] > 1 else y


@mutant("same_bits_of_strides")
@each
def bits_by_strides(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return y if x.flags.c_contiguous else nudged(y)


@mutant("same_bits_in_company")
def bits_by_company(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return tuple(map(nudged, y)) if isinstance(y, tuple) else y


_CALLS = iter(range(10**9))


@mutant("same_bits_again")
@each
def bits_by_call(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return nudged(y) if next(_CALLS) % 2 else y


# ---- transforms ----


@mutant("gradient", "gradient_keeps_the_amplitude", library="torch")
@each
def gradient_passed_on_unrotated(x, pos, **spec):
    return x + (ra.apply(x, pos, **spec) - x).detach()


@mutant("gradient_keeps_the_amplitude", library="torch")
@each
def inverse_for_adjoint(x, pos, **spec):
    factor = spec.get("attention_factor", 1.0)
    y = ra.apply(x, pos, **spec)
    back = y / factor**2
    return back + (y - back).detach()


@mutant("gradient_of_a_part", library="torch")
@each
def gradient_of_the_tail_lost(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    width = spec.get("rotary_dim", x.shape[-1])
    return import_module("torch").cat([y[..., :width], y[..., width:].detach()], -1)


@mutant("jit", library="jax")
@each
def computed_by_numpy(x, pos, **spec):
    return import_module("jax.numpy").asarray(ra.apply(np.asarray(x), np.asarray(pos), **spec))


@mutant("lazy", library="dask")
@each
def computed_at_once(x, pos, **spec):
    return import_module("dask.array").from_array(np.asarray(ra.apply(x, pos, **spec)))


# ---- combinations, and calls that affect later calls ----


@mutant("combinations")
def inverse_ignored_for_a_batch(x, pos, **spec):
    return ra.apply(x, pos, **{**spec, "inverse": spec.get("inverse", False) and np.ndim(pos) < 2})


@mutant("combinations")
def start_ignored_beside_halves(x, pos, **spec):
    if spec.get("pairing") == "half" and "rotary_dim" in spec:
        spec.pop("rotary_start", None)
    return ra.apply(x, pos, **spec)


@mutant("combinations")
@each
def float16_by_the_usual_base(x, pos, **spec):
    if x.dtype == np.float16:
        spec.pop("base", None)
    return ra.apply(x, pos, **spec)


@mutant("base_of_any_size")
def whole_base(x, pos, **spec):
    base = spec.get("base", 10000.0)
    return ra.apply(x, pos, **{**spec, "base": float(int(base)) if base > 1 else base})


@mutant("narrow_heads")
@each
def two_features_are_none(x, pos, **spec):
    return x.copy() if x.shape[-1] == 2 else ra.apply(x, pos, **spec)


@mutant("more_rows_than_2e16")
@each
def only_65536_rows(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if spec.get("seq_axis", -2) == -2 and y.ndim > 1:
        y[..., 2**16 :, :] = x[..., 2**16 :, :]
    return y


@mutant("tuples_of_any_length")
def one_of_a_tuple_unwrapped(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return y[0] if isinstance(x, tuple) and len(x) == 1 else y


@mutant("tuples_of_any_length")
def query_for_key(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return (y[0], y[0]) if isinstance(x, tuple) and [one.shape for one in x] == [x[0].shape] * 2 else y


@mutant("positions_of_a_batch_decoding")
def step_of_the_first_batch(x, pos, **spec):
    if np.ndim(pos) == 2 and np.shape(pos)[1] == 1 and whole(x).shape[-2] == 1:
        pos = pos[:1]
    return ra.apply(x, pos, **spec)


@mutant("calls_at_like_positions")
def cache_keyed_by_the_ends(x, pos, **spec):
    if np.ndim(pos) != 1 or not np.size(pos):
        return ra.apply(x, pos, **spec)
    numbers = np.asarray(pos)
    key = "ends", numbers[[0, -1]].tobytes(), numbers.shape, str(numbers.dtype)
    return ra.apply(x, _TABLES.setdefault(key, pos), **spec)


@mutant("calls_at_reshaped_positions")
def cache_keyed_without_shape(x, pos, **spec):
    if not isinstance(pos, np.ndarray) or pos.ndim != 2:
        return ra.apply(x, pos, **spec)
    kept = _TABLES.setdefault(("bytes", pos.tobytes(), str(pos.dtype)), pos)
    return ra.apply(x, kept if kept.shape == pos.shape else np.zeros_like(pos), **spec)


@mutant("positions_written_in_place")
def cache_keyed_by_identity(x, pos, **spec):
    if not isinstance(pos, np.ndarray):
        return ra.apply(x, pos, **spec)
    last, kept = _TABLES.get("last", (None, None))
    if last is not pos:
        last, kept = _TABLES["last"] = pos, pos.copy()
    return ra.apply(x, kept, **spec)


_RESULTS = {}


@mutant("results_are_kept")
@each
def result_in_a_buffer(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    kept = _RESULTS.setdefault((y.shape, y.dtype), np.empty_like(y))
    kept[...] = y
    return kept


@mutant("settings_unchanged")
def warnings_made_errors(x, pos, **spec):
    np.seterr(all="raise")
    return ra.apply(x, pos, **spec)


@mutant("threads")
def positions_in_one_place(x, pos, **spec):
    _TABLES["now"] = pos
    time.sleep(1e-4)  # let another thread run
    return ra.apply(x, _TABLES["now"], **spec)


@mutant("positions_unchanged")
def positions_of_a_batch_written(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if isinstance(pos, np.ndarray) and pos.ndim == 2:
        pos -= pos.min()
    return y


@mutant("neighbours_unchanged")
@each
def memory_beside_x_cleared(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if x.base is not None and x.base.flags.writeable:
        x.base.reshape(-1)[0] = 0
    return y


@mutant("strides_of_zero")
@each
def broadcast_misread(x, pos, **spec):
    return ra.apply(np.zeros_like(x) if 0 in x.strides and x.size else x, pos, **spec)


@mutant("same_bits_among_many")
@each
def bits_by_number_of_elements(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return nudged(y, (..., 3)) if y.size > 5000 else y


@mutant("same_bits_of_positions")
@each
def bits_by_shape_of_positions(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return nudged(y, (..., 3)) if np.ndim(pos) == 2 and y.size else y


def _with_gradient(backward):
    """Make `apply` with the gradient backward(gradient, pos, spec)."""
    torch = import_module("torch")

    class Rotated(torch.autograd.Function):
        @staticmethod
        def forward(context, x, pos, spec):
            context.pos, context.spec = pos, spec
            return ra.apply(x, pos, **spec)

        @staticmethod
        def backward(context, gradient):
            return backward(gradient, context.pos, context.spec), None, None

    return Rotated.apply


def _adjoint(gradient, pos, spec):
    factor = spec.get("attention_factor", 1.0) ** (-2 if spec.get("inverse") else 2)
    return factor * ra.apply(gradient, pos, **{**spec, "inverse": not spec.get("inverse", False)})


@mutant("gradient_of_a_step", library="torch")
@each
def gradient_of_a_step_forward(x, pos, **spec):
    def backward(gradient, pos, spec):
        return gradient.clone() if gradient.shape[-2] == 1 else _adjoint(gradient, pos, spec)

    return _with_gradient(backward)(x, pos, spec)


@mutant("gradient_of_a_batch", library="torch")
@each
def gradient_by_the_first_batch(x, pos, **spec):
    def backward(gradient, pos, spec):
        return _adjoint(gradient, pos[:1] if pos.ndim == 2 else pos, spec)

    return _with_gradient(backward)(x, pos, spec)


@mutant("gradient_of_a_sum", library="torch")
@each
def gradient_reads_memory(x, pos, **spec):
    def backward(gradient, pos, spec):
        return _adjoint(gradient if gradient.is_contiguous() else 0 * gradient, pos, spec)

    return _with_gradient(backward)(x, pos, spec)


@mutant("gradient_after_other_calls", library="torch")
@each
def gradient_by_a_buffer_of_batches(x, pos, **spec):
    """Keep the positions of a batch, for the gradient, in one buffer for each shape."""

    def backward(gradient, pos, spec):
        return _adjoint(gradient, pos, spec)

    if getattr(pos, "ndim", 0) == 2 and "axes" not in spec:
        pos = _TABLES.setdefault(("batch", pos.shape, pos.dtype), pos.clone()).copy_(pos)
    return _with_gradient(backward)(x, pos, spec)


@mutant("gradient_of_one_field", library="torch")
@each
def rest_of_a_wide_slice_has_no_gradient(x, pos, **spec):
    y, width = ra.apply(x, pos, **spec), spec.get("rotary_dim") or 0
    if set(spec) != {"rotary_dim"} or not 64 <= width < x.shape[-1]:
        return y
    rest = x.detach().clone()
    rest[..., :width] = y[..., :width]
    return rest
