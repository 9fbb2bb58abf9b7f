"""Mutants of frequencies, pairs, rules, coordinates, positions, arrays and bits: see faults.py.

If a released package had the fault, a comment names the thread.
"""

import numpy as np
from faults import each, fault, mutant

import rope_array as ra

# fmt: off
# ---- frequencies and pairs ----

fault("wrong_direction", inverse="not inverse", kills="definition direction inverse")
fault("not_a_number", y="x * np.nan", kills="definition norm")
fault("base_ignored", drop="base", kills="base calls_in_turn")
# patrick-kidger/equinox, nn/_embedding.py of 0.13.8: the key of the table is its size and dtype.
fault("cache_keyed_without_base", base="kept((width, spec.get('rotary_dim')), base)",
      kills="base calls_in_turn")
# lucidrains/rotary-embedding-torch #11.
fault("cache_keyed_without_offset", pos="kept((numbers.shape, numbers.dtype), pos)",
      kills="calls_at_other_positions")
fault("exponent_i_over_d", "'inv_freq' not in spec", inv_freq="powers(base, -1, rotated, rotated // 2)",
      drop="base", kills="definition widths")
# pie #602.
fault("frequencies_from_head_dim", "'inv_freq' not in spec", inv_freq="powers(base, -2, width, rotated // 2)",
      drop="base", kills="rotary_dim rotary_start odd_width")


@mutant("definition norm rotations_add scores_are_relative")
@each
def pairing_mixed(x, pos, **spec):
    """facebookresearch/vjepa2 PR #15: cos and sin tiled for halves, x rotated pairwise."""
    rotation = ra.RoPE(x.shape[-1]).rotation(pos, like=x)
    cos, sin = (np.concatenate([t, t], -1) for t in (rotation.cos, rotation.sin))
    if cos.ndim == 3 and x.ndim == 4:
        cos, sin = cos[:, None], sin[:, None]
    other = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    return (x * cos + other * sin).astype(x.dtype)


fault("other_pairing", pairing="'interleaved' if half else 'half'", kills="definition pairing")
fault("pairing_ignored", drop="pairing", kills="pairing")


@mutant("pairing")
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


fault("out_pairing_ignored", drop="out_pairing", kills="out_pairing inverse")
fault("rotary_start_ignored", drop="rotary_start", kills="rotary_start")
fault("tail_zeroed", "spec.get('rotary_dim') is not None",
      y="put(y, np.s_[..., rotary_start + rotary_dim :], 0)", kills="rotary_dim rotary_start odd_width")
fault("block_of_256_features", leave="..., 256:", kills="wide_heads")
# Dao-AILab/flash-attention: a kernel for heads of a certain size.
fault("only_128_features", leave="..., 128:", kills="widths")
fault("frequencies_sorted", "'inv_freq' in spec", inv_freq="sorted(spec['inv_freq'], reverse=True)",
      kills="inv_freq")
fault("amplitude_squared", "'attention_factor' in spec", attention_factor="factor**2",
      kills="attention_factor")
fault("amplitude_on_all", y="put(y, np.s_[..., rotary_dim:], y[..., rotary_dim:] * factor)",
      kills="attention_factor")
fault("inverse_ignored", drop="inverse", kills="inverse")
fault("adjoint_for_inverse", "inverse", y="(y * factor**2).astype(x.dtype)", kills="inverse")
fault("wrong_axis", drop="seq_axis", kills="seq_axis")
# Rotate arrays that do not have four axes by position 0.
fault("vectors_and_videos", "ndim != 4", pos="0", kills="ranks")

# ---- rules ----

# vllm PR #44158: configs with an old key were read as unscaled.
fault("scaling_ignored", drop="scaling",
      kills="scaling_linear scaling_ntk scaling_dynamic scaling_yarn scaling_llama3 scaling_longrope "
      "scaling_proportional scaling_periods scaling_amplitude inverse axes_and_frequencies")
# keras-hub 0.32.0, rope_type="dynamic": all frequencies are divided by the power.
fault("ntk_for_every_lane", "isinstance(rule, ra.NTKAware)", scaling="replace(rule, variant='every_pair')",
      kills="scaling_ntk axes_and_frequencies")
fault("dynamic_below_the_trained_length", "isinstance(rule, ra.DynamicNTK)",
      scaling="ra.NTKAware(rule.factor)", kills="scaling_dynamic")
# transformers 5.23: truncate is read from the outer dict; vllm PR #28244.
fault("yarn_always_truncated", "isinstance(rule, ra.YaRN)", scaling="replace(rule, truncate=True)",
      kills="scaling_yarn")
# torchtitan: the rotation leaves the amplitude out.
fault("yarn_without_amplitude", "isinstance(rule, ra.YaRN)", scaling="replace(rule, attention_factor=1.0)",
      kills="scaling_yarn scaling_amplitude rules_that_differ_in_one_parameter")
# keras-hub 0.32.0: mscale and attention_factor are ignored.
fault("yarn_amplitude_for_any_factor", "isinstance(rule, ra.YaRN)",
      scaling="replace(rule, attention_factor=0.1 * np.log(rule.factor) + 1)", kills="scaling_amplitude")
# sglang, mlx-lm: attn_factor multiplies the default instead of replacing it.
fault("amplitudes_multiplied", "isinstance(rule, ra.YaRN)", attention_factor="factor * rule.amplitude",
      kills="scaling_amplitude")


@mutant("scaling_yarn")
@each
def rule_by_the_head(x, pos, **spec):
    rule, width = spec.get("scaling"), spec.get("rotary_dim")
    if rule is not None and width is not None:
        whole_head = ra.RoPE(x.shape[-1], base=spec.get("base", 10000.0), scaling=spec.pop("scaling"))
        spec["inv_freq"] = whole_head.frequencies[: width // 2]
        spec.setdefault("attention_factor", whole_head.amplitude)
    return ra.apply(x, pos, **spec)


fault("llama3_without_the_ramp", "isinstance(rule, ra.Llama3)",
      scaling="replace(rule, low_freq_factor=rule.high_freq_factor)", kills="scaling_llama3")
# sglang: take the long list at the trained length too; the correct comparison is >, not ≥.
fault("longrope_long_at_the_trained_length", "isinstance(rule, ra.LongRoPE)",
      scaling="replace(rule, length=rule.length + 1)", kills="scaling_longrope")
# Megatron-Bridge #4195: the first features of the head instead of the first pairs.
fault("proportional_as_partial", "isinstance(rule, ra.Proportional)", scaling="ra.Linear(rule.factor)",
      rotary_dim="int(rule.partial_rotary_factor * width) // 2 * 2", kills="scaling_proportional")
fault("rule_kept_from_the_first_call", "'scaling' in spec", scaling="kept(type(rule), rule)",
      kills="rules_that_differ_in_one_parameter")
fault("cache_without_one_parameter_of_a_rule", "isinstance(rule, ra.Llama3)",
      scaling="kept((rule.factor, rule.low_freq_factor, rule.original_max_position_embeddings), rule)",
      kills="rules_that_differ_in_one_parameter")
fault("inverse_keeps_the_rules_amplitude", "inverse and isinstance(rule, ra.YaRN)",
      attention_factor="1 / rule.amplitude", kills="inverse")

# ---- coordinates ----

# Wrong axes that pass every test with text: candle #3551, Liger PR #276, transformers #40490.
fault("first_coordinate_only", "axes is not None", pos="np.broadcast_to(numbers[..., :1], numbers.shape)",
      kills="axes axes_of_a_part axes_of_positions seq_axis axes_and_frequencies")
fault("every_map_is_chunked", "one_series and None not in axes.coordinates",
      axes="replace(axes, coordinates=tuple(sorted(axes.coordinates)))",
      kills="axes")
fault("frequencies_that_never_restart", "axes is not None", axes="replace(axes, widths=None)",
      kills="axes axes_of_positions")
fault("frequencies_that_always_restart", "one_series",
      axes="replace(axes, widths=(2 * len(axes.coordinates),) * axes.count)",
      kills="axes")
fault("halves_across_blocks", "axes is not None", axes="replace(axes, blocks=1)",
      kills="axes")
fault("given_frequencies_turn_every_lane", "axes is not None and 'inv_freq' in spec",
      axes="replace(axes, coordinates=tuple(one or 0 for one in axes.coordinates))",
      kills="axes_and_frequencies")
# Read coordinates of shape (3, 3) as (n, S) instead of (S, n).
fault("coordinates_first", "axes is not None and numbers.shape[-2:] == (3, 3)",
      pos="np.swapaxes(pos, -1, -2)", kills="axes_of_positions")

# ---- accuracy ----


@mutant("definition accuracy_small accuracy_2e16")
@each
def bfloat16_tables(x, pos, **spec):
    call = {name: spec.pop(name) for name in ("seq_axis", "inverse") if name in spec}
    rotation = ra.RoPE(x.shape[-1], **spec).rotation(pos, like=x)
    cos, sin = (cut_to_bfloat16(t).astype(t.dtype) for t in rotation[:2])
    rotation = rotation._replace(cos=cos, sin=sin)
    return (rotation.inverse() if call.pop("inverse", False) else rotation).apply(x, **call)


def cut_to_bfloat16(array):
    return (array.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


@mutant("scores_are_relative accuracy_2e16 positions_of_narrow_dtypes")
def bfloat16_positions(x, pos, **spec):
    """lucidrains/rotary-embedding-torch: positions in the dtype of x. huggingface/transformers #29285."""
    bits = np.asarray(pos, np.float32).view(np.uint32)
    rounded = (bits + 0x8000 & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return ra.apply(x, rounded.astype(np.int64), **spec)


fault("float32_angles", angles="'float32'",
      kills="accuracy_2e20 accuracy_2e24 accuracy_int32 accuracy_negative")
fault("positions_counted_in_float32", "numbers.size", pos="numbers.astype(np.float32).astype(np.float64)",
      kills="accuracy_2e24 accuracy_int32")
fault("positions_wrapped_at_2_24", pos="np.where(numbers >= 2**24, numbers - 2**24, numbers)",
      kills="accuracy_2e24")
# Use the table's last row for all positions beyond it, as JAX's indexing does.
fault("positions_clamped", pos="np.minimum(numbers, 40_000)", kills="accuracy_2e16 accuracy_2e20")
fault("end_of_int32_off", pos="np.where(numbers > 2**31 - 100, numbers - 1, numbers)", kills="accuracy_int32")
fault("absolute_positions", pos="np.abs(numbers)", kills="accuracy_negative")
fault("positions_of_32_bits", "numbers.dtype.kind in 'iu'", pos="numbers.astype(np.int32)",
      kills="accuracy_wide")
fault("positions_truncated", pos="numbers.astype(np.int64)",
      kills="accuracy_float accuracy_float64_positions")
fault("float_positions_in_float32", "numbers.dtype.kind == 'f'", pos="numbers.astype(np.float32)",
      kills="accuracy_float64_positions")
fault("dtype_narrowed_inside", y="ra.apply(x.astype(np.float32), pos, **spec).astype(x.dtype)",
      kills="accuracy_small accuracy_int32")
fault("off_by_one", pos="numbers + 1", kills="definition identity_at_zero positions_offset rotations_add")
fault("clipped", y="np.clip(y, -2, 2)", kills="magnitudes linear")

# ---- positions ----

fault("positions_sorted", "numbers.ndim", pos="np.sort(numbers, axis=-1)",
      kills="positions_of_their_own")
# NVIDIA/Megatron-LM #453 and others: packed sequences are rotated as one.
fault("positions_counted_from_the_first", "numbers.ndim == 1 and numbers.size",
      pos="numbers[0] + np.arange(len(numbers))", kills="positions_of_their_own accuracy_small")
fault("one_row_is_the_first", "rows == 1", pos="0",
      kills="combinations positions_offset")
fault("batch_of_positions_ignored", "numbers.ndim == 2", pos="numbers[:1]",
      kills="positions_of_a_batch seq_axis positions_broadcast")
fault("square_positions_transposed", "numbers.ndim == 2 and numbers.shape[0] == numbers.shape[1]",
      pos="numbers.T", kills="positions_of_a_batch")
fault("heads_of_positions_ignored", "numbers.ndim == 3", pos="numbers[:, :1]", kills="positions_of_heads")
fault("positions_of_the_batch_first", "ndim == 4 and numbers.ndim == 1 and len(numbers) == x.shape[0] > 2",
      pos="numbers[:, None]", kills="positions_of_their_own")
# linkedin/Liger-Kernel #342.
fault("one_head_unrotated", "heads == 1", y="x.copy()", kills="size_one_axes")
fault("a_number_is_a_length", "isinstance(pos, int)", pos="range(x.shape[-2])", kills="positions_of_python")
fault("floats_of_python_cut_to_integers", "isinstance(pos, float)", pos="int(pos)",
      kills="positions_of_python")
fault("positions_doubled_in_their_dtype",
      pos="numbers * np.array(2, numbers.dtype) // np.array(2, numbers.dtype)",
      kills="positions_of_narrow_dtypes")

# ---- arrays ----

fault("dtype_widened", y="y.astype(np.float64)", kills="kind")
fault("dtype_widened_in_a_part", "spec.get('rotary_dim') == 4", y="y.astype(np.float64)",
      kills="kind_of_identity")
fault("a_list", y="y.tolist()", kills="kind kind_of_identity definition")
fault("nothing_squeezed", "not x.size", y="np.empty((0, width), x.dtype)", kills="zero_size")
fault("device_dropped", library="array_api_strict:device1",
      y="x.__array_namespace__().asarray(y, device=x.__array_namespace__().Device('CPU_DEVICE'))",
      kills="kind")
fault("second_of_a_tuple_shifted", "isinstance(x, tuple)", whole=True,
      y="y[:1] + ra.apply(x, numbers + 1, **spec)[1:]", kills="tuples same_bits")
# linkedin/Liger-Kernel #272: a kernel rotates in place.
fault("input_written", after="write(x, y)", kills="inputs_unchanged")
fault("positions_written", "pos_is_array and pos.ndim", whole=True, after="write(pos, pos + 1)",
      kills="inputs_unchanged")
fault("output_aliased_where_nothing_turns", "spec.get('rotary_dim') == 0", y="x", kills="no_aliasing")
fault("output_aliased_at_zero", "not numbers.any()", y="x[...]", kills="no_aliasing")
# Read memory as contiguous, as a kernel without strides does.
fault("strides_misread", x="in_memory_order(x)", kills="memory same_bits")
fault("strides_of_positions_misread", "pos_is_row and pos.strides[0] != pos.itemsize",
      pos="with_strides(pos, pos.itemsize)", kills="strides_of_positions")
fault("nan_leaves_its_pair", y="np.where(np.isnan(y).any(-1, keepdims=True), np.asarray(np.nan, y.dtype), y)",
      kills="nonfinite")
fault("nan_leaves_its_row", "ndim > 1",
      y="np.where(np.isnan(y).any(-2, keepdims=True), np.asarray(np.nan, y.dtype), y)",
      kills="nonfinite_rows")
fault("only_1024_rows", "ndim > 1", leave="..., 1024:, :", kills="many_rows")
fault("only_32_heads", "heads", leave=":, 32:", kills="many_heads")

# ---- properties ----

fault("scaled", y="(y * 1.01).astype(x.dtype)", kills="norm definition")
fault("only_the_first_head", "heads", leave=":, 1:", kills="heads_alike definition")
# Round large vectors differently: within the contract, but not linear.
fault("bits_by_size", "x.size and np.abs(x).max() > 4", y="nudged(y)", kills="linear")
# Compute the tail of a vector loop differently.
fault("bits_by_length", "rows % 2", y="nudged(y, np.s_[..., -1:, :])", kills="same_bits")
fault("bits_by_batch", "ndim == 4 and x.shape[0] > 1", y="nudged(y)", kills="same_bits")
fault("bits_by_strides", "not x.flags.c_contiguous", y="nudged(y)", kills="same_bits")
fault("bits_by_company", "isinstance(x, tuple)", whole=True, y="tuple(map(nudged, y))",
      kills="same_bits")
fault("bits_by_call", "next(kept('calls', count())) % 2", y="nudged(y)", kills="same_bits")
fault("bits_by_number_of_elements", "x.size > 5000", y="nudged(y, (..., 3))", kills="same_bits")
fault("bits_by_shape_of_positions", "numbers.ndim == 2 and x.size", y="nudged(y, (..., 3))",
      kills="same_bits")

# ---- transforms ----

fault("computed_by_numpy", library="jax", y="jnp.asarray(ra.apply(np.asarray(x), np.asarray(pos), **spec))",
      kills="jit")
fault("computed_at_once", library="dask", y="import_module('dask.array').from_array(np.asarray(y))",
      kills="lazy")

# ---- combinations ----

fault("inverse_ignored_for_a_batch", "numbers.ndim > 1", drop="inverse", kills="combinations")
fault("start_ignored_beside_halves", "half and 'rotary_dim' in spec", drop="rotary_start",
      kills="combinations")
fault("float16_by_the_usual_base", "dtype == 'float16'", drop="base", kills="combinations")
fault("whole_base", "base > 1", base="float(int(base))", kills="base")
fault("two_features_are_none", "width == 2", y="x.copy()", kills="narrow_heads")
fault("only_65536_rows", "ndim > 1 and spec.get('seq_axis', -2) == -2", leave="..., 2**16:, :",
      kills="more_rows_than_2e16")
fault("one_of_a_tuple_unwrapped", "isinstance(x, tuple) and len(x) == 1", whole=True, y="y[0]",
      kills="tuples")
fault("query_for_key", "isinstance(x, tuple) and len(x) == 2 and x[0].shape == x[1].shape", whole=True,
      y="(y[0], y[0])", kills="tuples")
fault("step_of_the_first_batch", "numbers.ndim == 2 and numbers.shape[1] == rows == 1", pos="pos[:1]",
      kills="positions_of_a_batch")
