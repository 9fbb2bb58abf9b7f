"""Mutants with wrong gradients: see faults.py."""

from faults import jax_fault, torch_fault

# fmt: off
# ---- gradients that are not rotated back ----
torch_fault("gradient_passed_on_unrotated", "gradient gradient_of_fields", y="x + (y - x).detach()")
torch_fault("inverse_for_adjoint", "gradient_of_fields", y="y / factor**2 + (y - y / factor**2).detach()")
torch_fault("gradient_of_the_tail_lost", "gradient_of_fields",
            y="torch.cat([y[..., :rotary_dim], y[..., rotary_dim:].detach()], -1)")
torch_fault("rest_of_a_wide_slice_has_no_gradient", "gradient_of_one_field",
            "fields == {'rotary_dim'} and 64 <= rotated < width",
            y="put(x.detach().clone(), np.s_[..., :rotated], y[..., :rotated])")
torch_fault("gradient_of_a_step_forward", "gradient_of_shapes", "rows == 1", gradient="gradient.clone()")
torch_fault("gradient_of_64_heads", "gradient_of_shapes", "heads > 64 and y.requires_grad",
            y="torch.cat([y[:, :64], x[:, 64:] + (y - x)[:, 64:].detach()], 1)")
torch_fault("gradient_unrotated_under_autocast", "gradient_under_autocast", "autocast and x.requires_grad",
            y="x + (y - x).detach()")
torch_fault("parameter_off_the_graph", "gradient_of_a_parameter", "isinstance(x, torch.nn.Parameter)",
            x="x.data")
jax_fault("traced_gradient_unrotated", "jit_of_gradients", "traced and not spec",
          y="x + jax.lax.stop_gradient(y - x)")
torch_fault("gradient_of_the_first_of_a_tuple", "gradient_of_a_tuple", "isinstance(x, tuple)", whole=True,
            y="y[:1] + tuple(one + (two - one).detach() for one, two in zip(x[1:], y[1:]))")
# Compute the gradient by a kernel that PyTorch does not record.
torch_fault("gradient_without_a_gradient", "gradient_of_a_gradient", "not spec",
            gradient="ra.apply(gradient.detach(), pos, inverse=True)")

# ---- memory of a gradient ----
torch_fault("gradient_reads_memory", "gradient_of_a_sum",
            gradient="adjoint() if gradient.is_contiguous() else 0 * gradient")
torch_fault("transposed_cotangent_misread", "gradient_of_strides", "not spec",
            gradient="adjoint() if gradient.is_contiguous() or 0 in gradient.stride() else 0 * gradient")

# ---- positions of a gradient ----
torch_fault("gradient_by_the_first_batch", "gradient_of_shapes", "pos_ndim == 2", gradient="adjoint(pos[:1])")
torch_fault("gradient_by_a_buffer_of_batches", "gradient_after_other_calls", "pos_ndim == 2 and axes is None",
            pos="kept((pos.shape, pos.dtype), pos.clone()).copy_(pos)", gradient="adjoint()")
torch_fault("positions_of_the_last_call", "gradient_after_other_calls",
            "x.requires_grad and torch._C._functorch.maybe_get_level(x) <= 0", before="state.update(pos=pos)",
            gradient="adjoint(state['pos'])")
torch_fault("gradient_of_float16_at_float16_positions", "gradient_at_far_positions",
            "dtype == 'float16' and hasattr(pos, 'dtype')",
            gradient="adjoint(pos.to(torch.float16).to(pos.dtype))")
torch_fault("gradient_of_a_slice_at_positions_of_16_bits", "gradient_combinations",
            "'rotary_dim' in spec and torch.is_tensor(pos) and not pos.is_floating_point()",
            gradient="adjoint(pos.to(torch.int16).to(torch.int64))")
jax_fault("gradient_at_positions_of_16_bits", "jit_of_gradients", "fields <= {'base'} and pos_ndim == 1",
          gradient="adjoint(pos.astype('int16'))")
# Rotate the gradient by -pos, which wraps.
jax_fault("gradient_negates_narrow_positions", "jit_of_gradients",
          "fields <= {'base'} and str(getattr(pos, 'dtype', '')) in ('uint8', 'int8')",
          gradient="ra.apply(gradient, jnp.negative(pos), **spec)")

# ---- fields of a gradient ----
torch_fault("gradient_without_pairing", "gradient_of_shapes", gradient="adjoint(drop='pairing')")
torch_fault("gradient_without_out_pairing", "gradient_of_fields", gradient="adjoint(drop='out_pairing')")
torch_fault("gradient_always_backwards", "gradient_of_fields", gradient="adjoint(inverse=True)")
torch_fault("gradient_without_scaling", "gradient_combinations", gradient="adjoint(drop='scaling')")
torch_fault("gradient_without_base", "gradient_combinations", gradient="adjoint(drop='base')")
torch_fault("gradient_along_the_usual_axis", "gradient_combinations",
            "spec.get('seq_axis') in (-3, 1) and x.shape[1] == x.shape[2]",
            gradient="adjoint(drop='seq_axis')")
torch_fault("gradient_of_2_17_elements_without_pairing", "gradient_of_shapes", "x.numel() > 2**17",
            gradient="adjoint(drop='pairing')")
torch_fault("gradient_of_a_slice_alone", "gradient_of_one_field", "fields == {'rotary_dim'} and width > 64",
            gradient="adjoint(drop='rotary_dim')")
torch_fault("gradient_of_many_rows_without_the_factor", "gradient_of_one_field", "rows > 1024",
            gradient="adjoint(drop='attention_factor')")
torch_fault("gradient_without_the_amplitude_of_yarn", "gradient_of_scaling",
            "fields == {'scaling'} and isinstance(rule, ra.YaRN)", gradient="adjoint(attention_factor=1.0)")
torch_fault("gradient_by_the_first_coordinate", "gradient_of_axes", "axes is not None and not axes.widths",
            gradient="adjoint(axes=with_coordinates(axes, [one and 0 for one in axes.coordinates], pos))")
torch_fault("narrow_gradient_of_a_slice_of_another_base", "gradient_combinations",
            "dtype == 'float16' and 'base' in spec and not fields & {'axes', 'inv_freq', 'scaling'}",
            gradient="adjoint(drop='rotary_start')")
jax_fault("narrow_gradient_of_a_slice_from_0", "jit_of_gradients",
          "dtype == 'bfloat16' and 'rotary_dim' in spec and not fields & {'axes', 'inv_freq'}",
          gradient="adjoint(drop='rotary_start')")
jax_fault("gradient_of_wide_heads_without_scaling", "jit_of_gradients",
          "isinstance(rule, ra.Linear) and width > 64 and not fields & {'axes', 'inv_freq'}",
          gradient="adjoint(drop='scaling')")

# ---- values while a gradient is recorded ----
torch_fault("value_while_recorded_misreads_strides", "gradient_of_strides",
            "x.requires_grad and not x.is_contiguous()", y="y + 0 * x + x.detach().mean()")
torch_fault("positions_while_recorded_in_bfloat16", "gradient_at_far_positions",
            "x.requires_grad and not spec and torch.is_tensor(pos) and not pos.is_floating_point()",
            pos="pos.bfloat16().long()")
torch_fault("value_while_recorded_in_half", "gradient gradient_combinations", "x.requires_grad",
            y="y.bfloat16().to(y.dtype)")

# ---- several gradients ----
torch_fault("gradient_scales_what_it_saved", "gradient_twice", "not spec", before="state.update(scale=1.0)",
            gradient="state.pop('scale', 0.0) * adjoint()")
# Rotate q and k in one node, whose gradient is left out where q needs none.
torch_fault("gradient_of_k_as_of_q", "gradient_of_a_tuple",
            "isinstance(x, tuple) and len(x) == 2 and not x[0].requires_grad", whole=True,
            y="(y[0], x[1] + (y[1] - x[1]).detach())")
# Declare a rule for vmap that is wrong in the backward pass.
torch_fault("mapped_gradient_unrotated", "vmap_of_gradients",
            "torch._C._functorch.is_gradtrackingtensor(x) "
            "and is_mapped(torch._C._functorch.get_unwrapped(x))",
            y="x + (y - x).detach()")
