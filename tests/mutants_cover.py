"""Mutants that are wrong only where a width, a size, a dtype or strides meet a field: see faults.py."""

from faults import fault, jax_fault, torch_fault

# fmt: off
# ---- widths ----
fault("half_pairing_wrong_at_64", "widths_and_fields", "half and 64 <= rotated <= 128", inverse="not inverse")
fault("scaling_ignored_at_128", "widths_and_fields", "width == 128", drop="scaling")
fault("base_ignored_at_wide_heads", "widths_and_fields", "width >= 96", drop="base")
fault("slices_rounded_to_a_power_of_two", "widths_and_fields", "16 < (spec.get('rotary_dim') or 0) < 100",
      leave="..., rotary_start + power_of_2_in(rotary_dim) : rotary_start + rotary_dim")
fault("slice_of_a_wide_head_from_its_end", "widths_and_fields",
      "half and 'rotary_dim' in spec and width >= 64", drop="pairing")
fault("head_dims_not_of_16", "widths_and_fields", "width > 16 and width % 16 and width != 80",
      leave="..., width // 16 * 16 :")
fault("head_dim_112", "widths_and_fields", "width == 112", y="x.copy()")
fault("float16_beyond_64_features", "widths_and_fields", "dtype == 'float16'", leave="..., 64:")
fault("wide_out_pairing", "widths_and_fields", "width > 64", drop="out_pairing")
fault("float16_inverse_of_a_slice", "widths_and_fields",
      "dtype == 'float16' and inverse and 'rotary_dim' in spec", drop="inverse")
fault("float64_scaling_of_halves", "widths_and_fields", "dtype == 'float64' and half", drop="scaling")
fault("rotary_start_modulo_32", "rotary_starts_of_wide_heads", "rotary_start >= 32",
      rotary_start="rotary_start % 32")

# ---- sizes ----
fault("heads_from_65_with_half_pairing", "sizes_and_fields", "half and heads", leave=":, 64:")
fault("batches_from_33_with_a_slice", "sizes_and_fields", "'rotary_dim' in spec", leave="32:")
fault("float16_beyond_512_rows", "sizes_and_fields",
      "dtype == 'float16' and ndim > 1 and 'seq_axis' not in spec", leave="..., 512:, :")
torch_fault("float16_inverse_beyond_512_rows", "sizes_and_fields",
            "dtype == 'float16' and inverse and rows > 512",
            y="torch.cat([y[..., :512, :], x[..., 512:, :]], -2)")
fault("long_positions_of_a_batch", "sizes_and_fields", "numbers.ndim == 2 and numbers.shape[1] > 512",
      pos="put(np.array(pos), np.s_[:, 512:], numbers[:1, 512:])")
fault("positions_of_many_batches", "sizes_and_fields", "numbers.ndim == 2 and numbers.shape[0] > 32",
      pos="put(np.array(pos), np.s_[32:], numbers[31])")
fault("sequence_axis_of_many_heads", "sizes_and_fields", "spec.get('seq_axis') in (-3, 1) and ndim == 4",
      leave=":, :, 64:")

# ---- fields alone ----
fault("half_pairing_alone_at_a_power_of_two", "one_field_at_every_width",
      "half and fields == {'pairing'} and width > 24 and width != power_of_2_in(width)", inverse="True")
fault("half_pairing_alone_at_112_and_160", "one_field_at_every_width",
      "half and fields == {'pairing'} and width in (112, 160)",
      y="put(y, np.s_[..., [55, 56]], y[..., [56, 55]])")
fault("float16_half_pairing_alone_at_80", "one_field_at_every_width",
      "half and fields == {'pairing'} and width == 80 and dtype == 'float16'", inverse="True")
fault("base_alone_at_112", "one_field_at_every_width", "fields == {'base'} and width == 112", drop="base")
fault("inverse_with_half_pairing_alone_at_160", "one_field_at_every_width",
      "fields == {'pairing', 'inverse'} and width == 160", drop="inverse")
fault("attention_factor_of_64_rows", "one_field_and_many_rows", "fields == {'attention_factor'} and ndim > 1",
      y="put(y, np.s_[..., 64:, :], y[..., 64:, :] / factor)")
fault("base_alone_of_64_heads", "one_field_and_many_rows", "fields == {'base'} and heads", leave=":, 64:")
fault("the_last_of_an_odd_number_of_heads", "one_field_and_many_rows", "half and heads > 32 and heads % 2",
      leave=":, -1")
fault("whole_tiles_without_the_factor", "one_field_and_many_rows", "rows and rows % 256 == 0",
      drop="attention_factor")

# ---- rules and axes ----
fault("linear_scaling_without_half_pairing", "rules_at_wide_heads",
      "isinstance(rule, ra.Linear) and half and width >= 64", drop="scaling")
fault("truncate_ignored_at_64", "rules_at_wide_heads", "isinstance(rule, ra.YaRN) and width >= 64",
      scaling="replace(rule, truncate=True)")
fault("llama3_of_32_pairs", "rules_at_wide_heads", "isinstance(rule, ra.Llama3) and width > 64",
      y="put(y, np.s_[..., 64:], ra.apply(x, pos, **{**spec, 'scaling': None})[..., 64:])")
fault("axes_of_24_pairs", "axes_at_wide_heads", "one_series and len(axes.coordinates) > 24",
      axes="with_coordinates(axes, axes.coordinates[:24] + (0,) * len(axes.coordinates[24:]), pos)")

# ---- positions ----
fault("positions_of_the_second_axis", "batch_positions_of_other_ranks",
      "ndim == 5 and numbers.ndim == 2 and len(numbers) == x.shape[1] and axes is None", pos="numbers[None]")
fault("five_axes_by_the_first_batch", "batch_positions_of_other_ranks",
      "ndim == 5 and pos_is_array and pos.ndim == 2 and axes is None",
      pos="np.broadcast_to(pos[:1], pos.shape)")
jax_fault("three_axes_by_the_first_batch", "batch_positions_of_other_ranks",
          "ndim == 3 and pos_ndim == 2 and axes is None", pos="pos[:1]")
# JAX without x64 has no wider integers: positions from 2^31 on become negative.
jax_fault("uint32_read_as_int32", "positions_of_narrow_dtypes", "str(getattr(pos, 'dtype', '')) == 'uint32'",
          pos="pos.astype('int32')")
fault("half_pairs_of_wide_float16_at_float16_positions", "widths_and_positions",
      "dtype == 'float16' and half and width >= 128",
      pos="np.clip(pos, -60000, 60000).astype(np.float16).astype(np.int64)")
fault("products_of_int16_positions", "widths_and_positions",
      "pos_is_array and pos.dtype == np.int16 and pos.size and width >= 64",
      pos="(pos * np.int16(width // 2)).astype(np.int64) // (width // 2)")

# ---- dtypes and strides ----
fault("k_in_the_dtype_of_q", "tuples_of_two_dtypes", "isinstance(x, tuple)", whole=True,
      x="tuple(map(np.ndarray.astype, x, [x[0].dtype] * len(x)))")
fault("strides_misread_with_half_pairing", "memory", "half", x="in_memory_order(x)")
fault("strides_misread_at_wide_heads", "memory", "width >= 64", x="in_memory_order(x)")
fault("strides_misread_in_many_rows", "sizes_and_fields", "rows >= 500", x="in_memory_order(x)")
