"""Mutants with wrong gradients: see faults.py."""

from importlib import import_module

from faults import adjoint_spec, each, is_mapped, jax_fault, mutant, torch_fault, torch_with_gradient

import rope_array as ra

_STATE = {}


# fmt: off
# ---- gradients that are not rotated back ----

torch_fault("gradient_passed_on_unrotated", y="x + (y - x).detach()",
            kills="gradient gradient_of_fields")
torch_fault("inverse_for_adjoint", y="y / factor**2 + (y - y / factor**2).detach()",
            kills="gradient_of_fields")
torch_fault("gradient_of_the_tail_lost",
            y="torch.cat([y[..., :rotary_dim], y[..., rotary_dim:].detach()], -1)",
            kills="gradient_of_fields")
torch_fault("rest_of_a_wide_slice_has_no_gradient", "fields == {'rotary_dim'} and 64 <= rotated < width",
            y="put(x.detach().clone(), np.s_[..., :rotated], y[..., :rotated])",
            kills="gradient_of_one_field")
torch_fault("gradient_of_a_step_forward", "rows == 1", gradient="gradient.clone()",
            kills="gradient_of_shapes")
torch_fault("gradient_of_64_heads", "heads > 64 and y.requires_grad",
            y="torch.cat([y[:, :64], x[:, 64:] + (y - x)[:, 64:].detach()], 1)",
            kills="gradient_of_shapes")
torch_fault("gradient_unrotated_under_autocast", "autocast and x.requires_grad", y="x + (y - x).detach()",
            kills="gradient_under_autocast")
torch_fault("parameter_off_the_graph", "isinstance(x, torch.nn.Parameter)", x="x.data",
            kills="gradient_of_a_parameter")
jax_fault("traced_gradient_unrotated", "traced and not spec", y="x + jax.lax.stop_gradient(y - x)",
          kills="jit_of_gradients")
torch_fault("gradient_of_the_first_of_a_tuple", "isinstance(x, tuple)", whole=True,
            y="y[:1] + tuple(one + (two - one).detach() for one, two in zip(x[1:], y[1:]))",
            kills="gradient_of_a_tuple")
# Compute the gradient by a kernel that PyTorch does not record.
torch_fault("gradient_without_a_gradient", "not spec",
            gradient="ra.apply(gradient.detach(), pos, inverse=True)", kills="gradient_of_a_gradient")

# ---- memory of a gradient ----

torch_fault("gradient_reads_memory", gradient="adjoint() if gradient.is_contiguous() else 0 * gradient",
            kills="gradient_of_a_sum")
torch_fault("transposed_cotangent_misread", "not spec",
            gradient="adjoint() if gradient.is_contiguous() or 0 in gradient.stride() else 0 * gradient",
            kills="gradient_of_strides")

# ---- positions of a gradient ----

torch_fault("gradient_by_the_first_batch", "pos_ndim == 2", gradient="adjoint(pos[:1])",
            kills="gradient_of_shapes")
# Keep the positions of a batch, for the gradient, in one buffer for each shape.
torch_fault("gradient_by_a_buffer_of_batches", "pos_ndim == 2 and axes is None",
            pos="kept((pos.shape, pos.dtype), pos.clone()).copy_(pos)", gradient="adjoint()",
            kills="gradient_after_other_calls")
torch_fault("gradient_of_float16_at_float16_positions", "dtype == 'float16' and hasattr(pos, 'dtype')",
            gradient="adjoint(pos.to(torch.float16).to(pos.dtype))", kills="gradient_at_far_positions")
# Save positions as int16 for the backward pass of calls with a slice.
torch_fault("gradient_of_a_slice_at_positions_of_16_bits",
            "'rotary_dim' in spec and torch.is_tensor(pos) and not pos.is_floating_point()",
            gradient="adjoint(pos.to(torch.int16).to(torch.int64))", kills="gradient_combinations")
jax_fault("gradient_at_positions_of_16_bits", "fields <= {'base'} and pos_ndim == 1",
          gradient="adjoint(pos.astype('int16'))", kills="jit_of_gradients")
# Rotate the gradient by -pos, which wraps.
jax_fault("gradient_negates_narrow_positions",
          "fields <= {'base'} and str(getattr(pos, 'dtype', '')) in ('uint8', 'int8')",
          gradient="ra.apply(gradient, jnp.negative(pos), **spec)", kills="jit_of_gradients")

# ---- fields of a gradient ----

torch_fault("gradient_without_pairing", gradient="adjoint(drop='pairing')", kills="gradient_of_shapes")
torch_fault("gradient_without_out_pairing", gradient="adjoint(drop='out_pairing')",
            kills="gradient_of_fields")
torch_fault("gradient_always_backwards", gradient="adjoint(inverse=True)", kills="gradient_of_fields")
torch_fault("gradient_without_scaling", gradient="adjoint(drop='scaling')", kills="gradient_combinations")
torch_fault("gradient_without_base", gradient="adjoint(drop='base')", kills="gradient_combinations")
torch_fault("gradient_along_the_usual_axis", "spec.get('seq_axis') in (-3, 1) and x.shape[1] == x.shape[2]",
            gradient="adjoint(drop='seq_axis')", kills="gradient_combinations")
torch_fault("gradient_of_2_17_elements_without_pairing", "x.numel() > 2**17",
            gradient="adjoint(drop='pairing')", kills="gradient_of_shapes")
# Rotate back with rotary_dim's frequencies at narrow heads only.
torch_fault("gradient_of_a_slice_alone", "fields == {'rotary_dim'} and width > 64",
            gradient="adjoint(drop='rotary_dim')", kills="gradient_of_one_field")
torch_fault("gradient_of_many_rows_without_the_factor", "rows > 1024",
            gradient="adjoint(drop='attention_factor')", kills="gradient_of_one_field")
torch_fault("gradient_without_the_amplitude_of_yarn", "fields == {'scaling'} and isinstance(rule, ra.YaRN)",
            gradient="adjoint(attention_factor=1.0)", kills="gradient_of_scaling")
# Rotate back by the first coordinate, for axes of one series.
torch_fault("gradient_by_the_first_coordinate", "axes is not None and not axes.widths",
            gradient="adjoint(axes=with_coordinates(axes, [one and 0 for one in axes.coordinates], pos))",
            kills="gradient_of_axes")
# Leave rotary_start out in the backward pass of float16, by a path for calls with a base.
torch_fault("narrow_gradient_of_a_slice_of_another_base",
            "dtype == 'float16' and 'base' in spec and not fields & {'axes', 'inv_freq', 'scaling'}",
            gradient="adjoint(drop='rotary_start')", kills="gradient_combinations")
# Leave rotary_start out in the backward pass of bfloat16, where rotary_dim is given.
jax_fault("narrow_gradient_of_a_slice_from_0",
          "dtype == 'bfloat16' and 'rotary_dim' in spec and not fields & {'axes', 'inv_freq'}",
          gradient="adjoint(drop='rotary_start')", kills="jit_of_gradients")
jax_fault("gradient_of_wide_heads_without_scaling",
          "isinstance(rule, ra.Linear) and width > 64 and not fields & {'axes', 'inv_freq'}",
          gradient="adjoint(drop='scaling')", kills="jit_of_gradients")

# ---- values while a gradient is recorded ----

torch_fault("value_while_recorded_misreads_strides", "x.requires_grad and not x.is_contiguous()",
            y="y + 0 * x + x.detach().mean()", kills="gradient_of_strides")
torch_fault("positions_while_recorded_in_bfloat16",
            "x.requires_grad and not spec and torch.is_tensor(pos) and not pos.is_floating_point()",
            pos="pos.bfloat16().long()", kills="gradient_at_far_positions")
torch_fault("value_while_recorded_in_half", "x.requires_grad", y="y.bfloat16().to(y.dtype)",
            kills="gradient gradient_combinations")
# fmt: on


# ---- faults of several steps ----


@mutant("gradient_twice", library="torch")
@each
def gradient_scales_what_it_saved(x, pos, **spec):
    saved = {"factor": 1.0}

    def backward(gradient, pos):
        rotated = saved["factor"] * ra.apply(gradient, pos, inverse=True)
        saved["factor"] = 0.0
        return rotated

    return torch_with_gradient(x, pos, spec, backward) if not spec else ra.apply(x, pos, **spec)


@mutant("gradient_of_a_tuple", library="torch")
def gradient_of_k_as_of_q(x, pos, **spec):
    """Rotate q and k in one node, whose gradient is left out where q needs none."""
    if not isinstance(x, tuple) or len(x) != 2:
        return ra.apply(x, pos, **spec)
    torch = import_module("torch")

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(context, q, k):
            return ra.apply((q, k), pos, **spec)

        @staticmethod
        def backward(context, *gradients):
            if not context.needs_input_grad[0]:
                return gradients
            arrays = [array.detach().requires_grad_() for array in x]
            with torch.enable_grad():
                return torch.autograd.grad(ra.apply(tuple(arrays), pos, **spec), arrays, gradients)

    return Both.apply(*x)


@mutant("gradient_after_other_calls", library="torch")
@each
def positions_of_the_last_call(x, pos, **spec):
    """Keep the positions for the backward pass with the module, not with the call."""
    if not x.requires_grad or import_module("torch")._C._functorch.maybe_get_level(x) > 0:
        return ra.apply(x, pos, **spec)

    def backward(gradient, _):
        return ra.apply(gradient, _STATE["pos"], **adjoint_spec(gradient.shape[-1], spec))

    _STATE["pos"] = pos
    return torch_with_gradient(x, pos, spec, backward)


@mutant("vmap_of_gradients", library="torch")
@each
def mapped_gradient_unrotated(x, pos, **spec):
    """Declare a rule for vmap that is wrong in the backward pass."""

    class Rotated(import_module("torch").autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return ra.apply(x, pos, **spec)

        @staticmethod
        def setup_context(context, inputs, output):
            pass

        @staticmethod
        def backward(context, gradient):
            adjoint = adjoint_spec(gradient.shape[-1], spec)
            return gradient.clone() if is_mapped(gradient) else ra.apply(gradient, pos, **adjoint)

        @staticmethod
        def jvp(context, tangent):
            return ra.apply(tangent, pos, **spec)

    return Rotated.apply(x)
