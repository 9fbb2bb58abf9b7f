"""Mutants of frequencies, pairs, rules, coordinates, positions, arrays and bits: see faults.py.

If a released package had the fault, a comment names the thread.
"""

import numpy as np
from faults import fault, jax_fault, mutant, to_bfloat16

import rope_array as ra
from rope_array.testing._rules import RULES

# fmt: off
# ---- frequencies and pairs ----
fault("wrong_direction", "definition direction inverse", inverse="not inverse")
fault("not_a_number", "definition norm", y="x * np.nan")
fault("base_ignored", "base calls_in_turn", drop="base")
# patrick-kidger/equinox, nn/_embedding.py of 0.13.8: the key of the table is its size and dtype.
fault("cache_keyed_without_base", "base calls_in_turn", base="kept((width, spec.get('rotary_dim')), base)")
# lucidrains/rotary-embedding-torch #11.
fault("cache_keyed_without_offset", "calls_at_other_positions",
      pos="kept((numbers.shape, numbers.dtype), pos)")
fault("exponent_i_over_d", "definition widths", "'inv_freq' not in spec",
      inv_freq="powers(base, -1, rotated, rotated // 2)", drop="base")
# pie #602.
fault("frequencies_from_head_dim", "rotary_dim rotary_start odd_width", "'inv_freq' not in spec",
      inv_freq="powers(base, -2, width, rotated // 2)", drop="base")


@mutant("definition norm rotations_add scores_are_relative")
def pairing_mixed(x, pos, **spec):
    """facebookresearch/vjepa2 PR #15: cos and sin tiled for halves, x rotated pairwise."""
    rotation = ra.RoPE(x.shape[-1]).rotation(pos, like=x)
    cos, sin = (np.concatenate([t, t], -1) for t in (rotation.cos, rotation.sin))
    if cos.ndim == 3 and x.ndim == 4:
        cos, sin = cos[:, None], sin[:, None]
    swapped = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    return (x * cos + swapped * sin).astype(x.dtype)


fault("other_pairing", "definition pairing", pairing="'interleaved' if half else 'half'")
fault("pairing_ignored", "pairing", drop="pairing")


@mutant("pairing")
def halves_of_the_head(x, pos, **spec):
    width = spec.get("rotary_dim")
    if spec.get("pairing") != "half" or not width or width == x.shape[-1]:
        return ra.apply(x, pos, **spec)
    middle = x.shape[-1] // 2
    order = [*range(width // 2), *range(middle, middle + width // 2)]
    y = x.copy()
    y[..., order] = ra.apply(x[..., order], pos, pairing="half")
    return y


fault("out_pairing_ignored", "out_pairing inverse", drop="out_pairing")
fault("rotary_start_ignored", "rotary_start", drop="rotary_start")
fault("tail_zeroed", "rotary_dim rotary_start odd_width", "spec.get('rotary_dim') is not None",
      y="put(y, np.s_[..., rotary_start + rotary_dim :], 0)")
fault("block_of_256_features", "wide_heads", leave="..., 256:")
# Dao-AILab/flash-attention: a kernel for heads of a certain size.
fault("only_128_features", "widths", leave="..., 128:")
fault("frequencies_sorted", "inv_freq", "'inv_freq' in spec",
      inv_freq="sorted(spec['inv_freq'], reverse=True)")
fault("amplitude_squared", "attention_factor", "'attention_factor' in spec", attention_factor="factor**2")
fault("amplitude_on_all", "attention_factor",
      y="put(y, np.s_[..., rotary_dim:], y[..., rotary_dim:] * factor)")
fault("inverse_ignored", "inverse", drop="inverse")
fault("adjoint_for_inverse", "inverse", "inverse", y="(y * factor**2).astype(x.dtype)")
fault("wrong_axis", "seq_axis", drop="seq_axis")
fault("vectors_and_videos", "ranks", "ndim != 4", pos="0")

# ---- rules ----
# vllm PR #44158: configs with an old key were read as unscaled.
fault("scaling_ignored",
      " ".join([*(f"scaling_{rule}" for rule in RULES), "scaling_amplitude inverse axes_and_frequencies"]),
      drop="scaling")
# keras-hub 0.32.0, rope_type="dynamic": all frequencies are divided by the power.
fault("ntk_for_every_lane", "scaling_ntk axes_and_frequencies", "isinstance(rule, ra.NTKAware)",
      scaling="replace(rule, variant='every_pair')")
fault("dynamic_below_the_trained_length", "scaling_dynamic", "isinstance(rule, ra.DynamicNTK)",
      scaling="ra.NTKAware(rule.factor)")
# transformers 5.23: truncate is read from the outer dict; vllm PR #28244.
fault("yarn_always_truncated", "scaling_yarn", "isinstance(rule, ra.YaRN)",
      scaling="replace(rule, truncate=True)")
# torchtitan: the rotation leaves the amplitude out.
fault("yarn_without_amplitude", "scaling_yarn scaling_amplitude rules_that_differ_in_one_parameter",
      "isinstance(rule, ra.YaRN)", scaling="replace(rule, attention_factor=1.0)")
# keras-hub 0.32.0: mscale and attention_factor are ignored.
fault("yarn_amplitude_for_any_factor", "scaling_amplitude", "isinstance(rule, ra.YaRN)",
      scaling="replace(rule, attention_factor=0.1 * np.log(rule.factor) + 1)")
# sglang, mlx-lm: attn_factor multiplies the default instead of replacing it.
fault("amplitudes_multiplied", "scaling_amplitude", "isinstance(rule, ra.YaRN)",
      attention_factor="factor * rule.amplitude")
fault("rule_by_the_head", "scaling_yarn", "rule is not None and spec.get('rotary_dim') is not None",
      inv_freq="ra.RoPE(width, base=base, scaling=rule).frequencies[: rotary_dim // 2]", drop="scaling",
      attention_factor="spec.get('attention_factor', ra.RoPE(width, base=base, scaling=rule).amplitude)")
fault("llama3_without_the_ramp", "scaling_llama3", "isinstance(rule, ra.Llama3)",
      scaling="replace(rule, low_freq_factor=rule.high_freq_factor)")
# sglang: take the long list at the trained length too; the correct comparison is >, not ≥.
fault("longrope_long_at_the_trained_length", "scaling_longrope", "isinstance(rule, ra.LongRoPE)",
      scaling="replace(rule, length=rule.length + 1)")
# Megatron-Bridge #4195: the first features of the head instead of the first pairs.
fault("proportional_as_partial", "scaling_proportional", "isinstance(rule, ra.Proportional)",
      scaling="ra.Linear(rule.factor)", rotary_dim="int(rule.partial_rotary_factor * width) // 2 * 2")
fault("rule_kept_from_the_first_call", "rules_that_differ_in_one_parameter", "'scaling' in spec",
      scaling="kept(type(rule), rule)")
fault("cache_without_one_parameter_of_a_rule", "rules_that_differ_in_one_parameter",
      "isinstance(rule, ra.Llama3)",
      scaling="kept((rule.factor, rule.low_freq_factor, rule.original_max_position_embeddings), rule)")
fault("inverse_keeps_the_rules_amplitude", "inverse", "inverse and isinstance(rule, ra.YaRN)",
      attention_factor="1 / rule.amplitude")

# ---- coordinates ----
# Wrong axes that pass every test with text: candle #3551, Liger PR #276, transformers #40490.
fault("first_coordinate_only", "axes axes_of_a_part axes_of_positions seq_axis axes_and_frequencies",
      "axes is not None", pos="np.broadcast_to(numbers[..., :1], numbers.shape)")
fault("every_map_is_chunked", "axes", "one_series and None not in axes.coordinates",
      axes="replace(axes, coordinates=tuple(sorted(axes.coordinates)))")
fault("frequencies_that_never_restart", "axes axes_of_positions", "axes is not None",
      axes="replace(axes, widths=None)")
fault("frequencies_that_always_restart", "axes", "one_series",
      axes="replace(axes, widths=(2 * len(axes.coordinates),) * axes.count)")
fault("halves_across_blocks", "axes", "axes is not None", axes="replace(axes, blocks=1)")
fault("given_frequencies_turn_every_lane", "axes_and_frequencies", "axes is not None and 'inv_freq' in spec",
      axes="replace(axes, coordinates=tuple(one or 0 for one in axes.coordinates))")
fault("coordinates_first", "axes_of_positions", "axes is not None and numbers.shape[-2:] == (3, 3)",
      pos="np.swapaxes(pos, -1, -2)")

# ---- accuracy ----


@mutant("definition accuracy_small accuracy_2e16")
def bfloat16_tables(x, pos, **spec):
    call = {name: spec.pop(name) for name in ("seq_axis", "inverse") if name in spec}
    rotation = ra.RoPE(x.shape[-1], **spec).rotation(pos, like=x)
    cos, sin = (to_bfloat16(t).astype(t.dtype) for t in rotation[:2])
    rotation = rotation._replace(cos=cos, sin=sin)
    return (rotation.inverse() if call.pop("inverse", False) else rotation).apply(x, **call)


# lucidrains/rotary-embedding-torch: positions in the dtype of x; huggingface/transformers #29285.
fault("bfloat16_positions", "scores_are_relative accuracy_2e16 positions_of_narrow_dtypes", whole=True,
      pos="to_bfloat16(pos).astype(np.int64)")
fault("float32_angles", "accuracy_2e20 accuracy_2e24 accuracy_int32 accuracy_negative", angles="'float32'")
fault("positions_counted_in_float32", "accuracy_2e24 accuracy_int32", "numbers.size",
      pos="numbers.astype(np.float32).astype(np.float64)")
fault("positions_wrapped_at_2_24", "accuracy_2e24",
      pos="np.where(numbers >= 2**24, numbers - 2**24, numbers)")
# Use the table's last row for all positions beyond it, as JAX's indexing does.
fault("positions_clamped", "accuracy_2e16 accuracy_2e20", pos="np.minimum(numbers, 40_000)")
fault("end_of_int32_off", "accuracy_int32", pos="np.where(numbers > 2**31 - 100, numbers - 1, numbers)")
fault("absolute_positions", "accuracy_negative", pos="np.abs(numbers)")
fault("positions_of_32_bits", "accuracy_wide", "numbers.dtype.kind in 'iu'", pos="numbers.astype(np.int32)")
fault("positions_truncated", "accuracy_float accuracy_float64_positions", pos="numbers.astype(np.int64)")
fault("float_positions_in_float32", "accuracy_float64_positions", "numbers.dtype.kind == 'f'",
      pos="numbers.astype(np.float32)")
fault("dtype_narrowed_inside", "accuracy_small accuracy_int32",
      y="ra.apply(x.astype(np.float32), pos, **spec).astype(x.dtype)")
fault("off_by_one", "definition identity_at_zero positions_offset rotations_add", pos="numbers + 1")
fault("clipped", "magnitudes linear", y="np.clip(y, -2, 2)")

# ---- positions ----
fault("positions_sorted", "positions_of_their_own", "numbers.ndim", pos="np.sort(numbers, axis=-1)")
# NVIDIA/Megatron-LM #453 and others: packed sequences are rotated as one.
fault("positions_counted_from_the_first", "positions_of_their_own accuracy_small",
      "numbers.ndim == 1 and numbers.size", pos="numbers[0] + np.arange(len(numbers))")
fault("one_row_is_the_first", "combinations positions_offset", "rows == 1", pos="0")
fault("batch_of_positions_ignored", "positions_of_a_batch seq_axis positions_broadcast", "numbers.ndim == 2",
      pos="numbers[:1]")
fault("square_positions_transposed", "positions_of_a_batch",
      "numbers.ndim == 2 and numbers.shape[0] == numbers.shape[1]", pos="numbers.T")
fault("heads_of_positions_ignored", "positions_of_heads", "numbers.ndim == 3", pos="numbers[:, :1]")
fault("positions_of_the_batch_first", "positions_of_their_own",
      "ndim == 4 and numbers.ndim == 1 and len(numbers) == x.shape[0] > 2", pos="numbers[:, None]")
# linkedin/Liger-Kernel #342.
fault("one_head_unrotated", "size_one_axes", "heads == 1", y="x.copy()")
fault("a_number_is_a_length", "positions_of_python", "isinstance(pos, int)", pos="range(x.shape[-2])")
fault("floats_of_python_cut_to_integers", "positions_of_python", "isinstance(pos, float)", pos="int(pos)")
fault("positions_doubled_in_their_dtype", "positions_of_narrow_dtypes",
      pos="numbers * np.array(2, numbers.dtype) // np.array(2, numbers.dtype)")

# ---- arrays ----
fault("dtype_widened", "kind", y="y.astype(np.float64)")
fault("dtype_widened_in_a_part", "kind_of_identity", "spec.get('rotary_dim') == 4", y="y.astype(np.float64)")
fault("a_list", "kind kind_of_identity definition", y="y.tolist()")
fault("nothing_squeezed", "zero_size", "not x.size", y="np.empty((0, width), x.dtype)")
fault("device_dropped", "kind", library="array_api_strict:device1",
      y="x.__array_namespace__().asarray(y, device=x.__array_namespace__().Device('CPU_DEVICE'))")
fault("second_of_a_tuple_shifted", "tuples same_bits", "isinstance(x, tuple)", whole=True,
      y="y[:1] + ra.apply(x, numbers + 1, **spec)[1:]")
# linkedin/Liger-Kernel #272: a kernel rotates in place.
fault("input_written", "inputs_unchanged", after="write(x, y)")
fault("positions_written", "inputs_unchanged", "pos_is_array and pos.ndim", whole=True,
      after="write(pos, pos + 1)")
fault("output_aliased_where_nothing_turns", "no_aliasing", "spec.get('rotary_dim') == 0", y="x")
fault("output_aliased_at_zero", "no_aliasing", "not numbers.any()", y="x[...]")
# Read memory as contiguous, as a kernel without strides does.
fault("strides_misread", "memory same_bits", x="in_memory_order(x)")
fault("strides_of_positions_misread", "strides_of_positions", "pos_is_row and pos.strides[0] != pos.itemsize",
      pos="with_strides(pos, pos.itemsize)")
fault("nan_leaves_its_pair", "nonfinite",
      y="np.where(np.isnan(y).any(-1, keepdims=True), np.asarray(np.nan, y.dtype), y)")
fault("nan_leaves_its_row", "nonfinite_rows", "ndim > 1",
      y="np.where(np.isnan(y).any(-2, keepdims=True), np.asarray(np.nan, y.dtype), y)")
fault("only_1024_rows", "many_rows", "ndim > 1", leave="..., 1024:, :")
fault("only_32_heads", "many_heads", "heads", leave=":, 32:")

# ---- properties ----
fault("scaled", "norm definition", y="(y * 1.01).astype(x.dtype)")
fault("only_the_first_head", "heads_alike definition", "heads", leave=":, 1:")
# Round large vectors differently: within the contract, but not linear.
fault("bits_by_size", "linear", "x.size and np.abs(x).max() > 4", y="nudged(y)")
fault("bits_by_length", "same_bits", "rows % 2", y="nudged(y, np.s_[..., -1:, :])")
fault("bits_by_batch", "same_bits", "ndim == 4 and x.shape[0] > 1", y="nudged(y)")
fault("bits_by_strides", "same_bits", "not x.flags.c_contiguous", y="nudged(y)")
fault("bits_by_company", "same_bits", "isinstance(x, tuple)", whole=True, y="tuple(map(nudged, y))")
fault("bits_by_call", "same_bits", "next(kept('calls', count())) % 2", y="nudged(y)")
fault("bits_by_number_of_elements", "same_bits", "x.size > 5000", y="nudged(y, (..., 3))")
fault("bits_by_shape_of_positions", "same_bits", "numbers.ndim == 2 and x.size", y="nudged(y, (..., 3))")

# ---- transforms ----
jax_fault("computed_by_numpy", "jit",
          y="jnp.asarray(ra.apply(np.asarray(x), np.asarray(pos), **spec))")
fault("computed_at_once", "lazy", library="dask", y="import_module('dask.array').from_array(np.asarray(y))")

# ---- combinations ----
fault("inverse_ignored_for_a_batch", "combinations", "numbers.ndim > 1", drop="inverse")
fault("start_ignored_beside_halves", "combinations", "half and 'rotary_dim' in spec", drop="rotary_start")
fault("float16_by_the_usual_base", "combinations", "dtype == 'float16'", drop="base")
fault("whole_base", "base", "base > 1", base="float(int(base))")
fault("two_features_are_none", "narrow_heads", "width == 2", y="x.copy()")
fault("only_65536_rows", "more_rows_than_2e16", "ndim > 1 and spec.get('seq_axis', -2) == -2",
      leave="..., 2**16:, :")
fault("one_of_a_tuple_unwrapped", "tuples", "isinstance(x, tuple) and len(x) == 1", whole=True, y="y[0]")
fault("query_for_key", "tuples", "isinstance(x, tuple) and len(x) == 2 and x[0].shape == x[1].shape",
      whole=True, y="(y[0], y[0])")
fault("step_of_the_first_batch", "positions_of_a_batch",
      "numbers.ndim == 2 and numbers.shape[1] == rows == 1", pos="pos[:1]")
