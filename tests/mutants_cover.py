"""Mutants that are wrong only where a width, a size, a dtype or strides meet a field: see faults.py."""

from faults import fault, jax_fault, torch_fault

# fmt: off
# ---- widths ----

fault("half_pairing_wrong_at_64", "half and 64 <= rotated <= 128", inverse="not inverse",
      kills="widths_and_fields")
fault("scaling_ignored_at_128", "width == 128", drop="scaling", kills="widths_and_fields")
fault("base_ignored_at_wide_heads", "width >= 96", drop="base", kills="widths_and_fields")
# Rotate the first 16 of 24, 32 of 48, 64 of 96 features only.
fault("slices_rounded_to_a_power_of_two", "16 < (spec.get('rotary_dim') or 0) < 100",
      leave="..., rotary_start + power_of_2_in(rotary_dim) : rotary_start + rotary_dim",
      kills="widths_and_fields")
fault("slice_of_a_wide_head_from_its_end", "half and 'rotary_dim' in spec and width >= 64", drop="pairing",
      kills="widths_and_fields")
# Leave out the last features of 36, 44, 72, 88.
fault("head_dims_not_of_16", "width > 16 and width % 16 and width != 80", leave="..., width // 16 * 16 :",
      kills="widths_and_fields")
fault("head_dim_112", "width == 112", y="x.copy()", kills="widths_and_fields")
fault("float16_beyond_64_features", "dtype == 'float16'", leave="..., 64:", kills="widths_and_fields")
fault("wide_out_pairing", "width > 64", drop="out_pairing", kills="widths_and_fields")
fault("float16_inverse_of_a_slice", "dtype == 'float16' and inverse and 'rotary_dim' in spec", drop="inverse",
      kills="widths_and_fields")
fault("float64_scaling_of_halves", "dtype == 'float64' and half", drop="scaling", kills="widths_and_fields")
fault("rotary_start_modulo_32", "rotary_start >= 32", rotary_start="rotary_start % 32",
      kills="rotary_starts_of_wide_heads")

# ---- sizes ----

fault("heads_from_65_with_half_pairing", "half and heads", leave=":, 64:", kills="sizes_and_fields")
fault("batches_from_33_with_a_slice", "'rotary_dim' in spec", leave="32:", kills="sizes_and_fields")
fault("float16_beyond_512_rows", "dtype == 'float16' and ndim > 1 and 'seq_axis' not in spec",
      leave="..., 512:, :", kills="sizes_and_fields")
torch_fault("float16_inverse_beyond_512_rows", "dtype == 'float16' and inverse and rows > 512",
            y="torch.cat([y[..., :512, :], x[..., 512:, :]], -2)", kills="sizes_and_fields")
# Use the first batch's positions from the 513th row on.
fault("long_positions_of_a_batch", "numbers.ndim == 2 and numbers.shape[1] > 512",
      pos="put(np.array(pos), np.s_[:, 512:], numbers[:1, 512:])", kills="sizes_and_fields")
fault("positions_of_many_batches", "numbers.ndim == 2 and numbers.shape[0] > 32",
      pos="put(np.array(pos), np.s_[32:], numbers[31])", kills="sizes_and_fields")
fault("sequence_axis_of_many_heads", "spec.get('seq_axis') in (-3, 1) and ndim == 4", leave=":, :, 64:",
      kills="sizes_and_fields")

# ---- fields alone ----

# Split at half of the next power of two, in a fast path for half pairing.
fault("half_pairing_alone_at_a_power_of_two",
      "half and fields == {'pairing'} and width > 24 and width != power_of_2_in(width)", inverse="True",
      kills="one_field_at_every_width")
fault("half_pairing_alone_at_112_and_160", "half and fields == {'pairing'} and width in (112, 160)",
      y="put(y, np.s_[..., [55, 56]], y[..., [56, 55]])", kills="one_field_at_every_width")
fault("float16_half_pairing_alone_at_80",
      "half and fields == {'pairing'} and width == 80 and dtype == 'float16'", inverse="True",
      kills="one_field_at_every_width")
fault("base_alone_at_112", "fields == {'base'} and width == 112", drop="base",
      kills="one_field_at_every_width")
fault("inverse_with_half_pairing_alone_at_160", "fields == {'pairing', 'inverse'} and width == 160",
      drop="inverse", kills="one_field_at_every_width")
# Leave the amplitude out from the 65th row on, if there is no other field.
fault("attention_factor_of_64_rows", "fields == {'attention_factor'} and ndim > 1",
      y="put(y, np.s_[..., 64:, :], y[..., 64:, :] / factor)", kills="one_field_and_many_rows")
fault("base_alone_of_64_heads", "fields == {'base'} and heads", leave=":, 64:",
      kills="one_field_and_many_rows")
# Half pairs of more than 32 heads, two heads at a time.
fault("the_last_of_an_odd_number_of_heads", "half and heads > 32 and heads % 2", leave=":, -1",
      kills="one_field_and_many_rows")
# Whole tiles of 256 rows take a faster path, which forgets the attention factor.
fault("whole_tiles_without_the_factor", "rows and rows % 256 == 0", drop="attention_factor",
      kills="one_field_and_many_rows")

# ---- rules and axes ----

fault("linear_scaling_without_half_pairing", "isinstance(rule, ra.Linear) and half and width >= 64",
      drop="scaling", kills="rules_at_wide_heads")
fault("truncate_ignored_at_64", "isinstance(rule, ra.YaRN) and width >= 64",
      scaling="replace(rule, truncate=True)", kills="rules_at_wide_heads")
fault("llama3_of_32_pairs", "isinstance(rule, ra.Llama3) and width > 64",
      y="put(y, np.s_[..., 64:], ra.apply(x, pos, **{**spec, 'scaling': None})[..., 64:])",
      kills="rules_at_wide_heads")
# Rotate the pairs from the 25th on by the first coordinate.
fault("axes_of_24_pairs", "one_series and len(axes.coordinates) > 24",
      axes="with_coordinates(axes, axes.coordinates[:24] + (0,) * len(axes.coordinates[24:]), pos)",
      kills="axes_at_wide_heads")

# ---- positions ----

# Match (B, S) to the second of five axes, if that has the size B.
fault("positions_of_the_second_axis",
      "ndim == 5 and numbers.ndim == 2 and len(numbers) == x.shape[1] and axes is None", pos="numbers[None]",
      kills="batch_positions_of_other_ranks")
fault("five_axes_by_the_first_batch", "ndim == 5 and pos_is_array and pos.ndim == 2 and axes is None",
      pos="np.broadcast_to(pos[:1], pos.shape)", kills="batch_positions_of_other_ranks")
# Rotate x of three axes, without heads, by the positions of batch 0.
jax_fault("three_axes_by_the_first_batch", "ndim == 3 and pos_ndim == 2 and axes is None", pos="pos[:1]",
          kills="batch_positions_of_other_ranks")
# JAX without x64 has no wider integers: positions from 2^31 on become negative.
jax_fault("uint32_read_as_int32", "str(getattr(pos, 'dtype', '')) == 'uint32'", pos="pos.astype('int32')",
          kills="positions_of_narrow_dtypes")
fault("half_pairs_of_wide_float16_at_float16_positions", "dtype == 'float16' and half and width >= 128",
      pos="np.clip(pos, -60000, 60000).astype(np.float16).astype(np.int64)", kills="widths_and_positions")
# Find a row of a flat table of cos and sin in the dtype of positions.
fault("products_of_int16_positions", "pos_is_array and pos.dtype == np.int16 and pos.size and width >= 64",
      pos="(pos * np.int16(width // 2)).astype(np.int64) // (width // 2)", kills="widths_and_positions")

# ---- dtypes and strides ----

fault("k_in_the_dtype_of_q", "isinstance(x, tuple)", whole=True,
      x="tuple(map(np.ndarray.astype, x, [x[0].dtype] * len(x)))", kills="tuples_of_two_dtypes")
fault("strides_misread_with_half_pairing", "half", x="in_memory_order(x)", kills="memory")
fault("strides_misread_at_wide_heads", "width >= 64", x="in_memory_order(x)", kills="memory")
fault("strides_misread_in_many_rows", "rows >= 500", x="in_memory_order(x)", kills="sizes_and_fields")
