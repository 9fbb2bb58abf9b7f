"""Mutants whose fault shows in a mode of the library only, such as no_grad, vmap, jit: see faults.py."""

from importlib import import_module

from faults import fault, is_traced, jax_fault, mutant, torch_fault

import rope_array as ra

# fmt: off
# ---- PyTorch without gradients ----
torch_fault("written_without_gradients", "no_grad inference_mode", "no_grad", after="x.copy_(y)")
torch_fault("large_x_written_without_gradients", "no_grad inference_mode", "no_grad and x.numel() > 2**17",
            after="x.copy_(y)")
torch_fault("parameter_returned_without_gradients", "no_grad",
            "no_grad and x.requires_grad and not inference", y="x.detach()")
torch_fault("slice_from_0_without_gradients", "no_grad inference_mode", "no_grad and 'rotary_start' in spec",
            spec="{'rotary_dim': (width - rotary_start) // 2 * 2, **spec}", drop="rotary_start")
torch_fault("wide_16_bit_heads_scaled_for_inference", "no_grad inference_mode",
            "no_grad and x.element_size() == 2 and width >= 128", y="y * 1.01")
torch_fault("narrow_positions_of_half_pairs_for_inference", "no_grad inference_mode",
            "no_grad and half and axes is None and torch.is_tensor(pos) and not pos.is_floating_point()",
            pos="pos if pos.abs().max() >= 60000 else pos.to(torch.float16).to(torch.int64)")
torch_fault("buffer_for_inference", "inference_mode", "inference",
            y="kept((y.shape, y.dtype), y.clone()).copy_(y)")
torch_fault("positions_kept_for_inference", "inference_mode",
            "inference and torch.is_tensor(pos) and axes is None", pos="kept((pos.shape, pos.dtype), pos)")
# Keep the table of the first call: made under inference_mode, it cannot be saved for gradients.
torch_fault("table_made_for_inference", "training_after_inference",
            y="y * kept((width, dtype, base), x.new_ones(width))")
torch_fault("first_rows_of_a_table_made_for_inference", "training_after_inference",
            "half and pos_ndim == 1 and len(pos) <= 64 and 0 < len(pos) == pos[-1] + 1",
            y="y * kept((width, dtype), x.new_ones(64, width))[: len(pos)]")

# ---- PyTorch's settings ----
torch_fault("result_of_autocast", "autocast", "autocast and dtype == 'float32'", y="y.to(torch.bfloat16)")
torch_fault("table_made_under_autocast", "autocast",
            y="y.to(kept((width, dtype, base), torch.bfloat16 if autocast else torch.float64)).to(x.dtype)")
torch_fault("frequencies_of_the_default_dtype", "default_dtype",
            "fields <= {'base'} and torch.get_default_dtype() != torch.float32",
            spec="{'inv_freq': (base ** -(torch.arange(0, width, 2) / width)).tolist()}")
torch_fault("factor_of_the_default_dtype", "default_dtype", "isinstance(rule, ra.Linear)",
            scaling="ra.Linear(float(torch.tensor(rule.factor)))")
torch_fault("amplitude_of_the_default_dtype", "default_dtype",
            "'attention_factor' in spec and torch.get_default_dtype() != torch.float32",
            attention_factor="float(torch.tensor(factor, device='cpu'))")
torch_fault("default_dtype_not_restored", "default_dtype",  # at the first call of a head_dim and base
            "not torch.compiler.is_compiling() and first((width, spec.get('base')))",
            after="torch.set_default_dtype(torch.float32)")
torch_fault("batch_of_positions_ignored_by_default", "default_dtype",
            "pos_ndim == 2 and torch.get_default_dtype() == torch.float64", pos="pos[:1]")
torch_fault("result_on_the_default_device", "default_device", "not is_mapped(y) and not y.requires_grad",
            y="torch.empty(x.shape, dtype=x.dtype).copy_(y)")
torch_fault("another_algorithm_if_deterministic", "deterministic",
            "torch.are_deterministic_algorithms_enabled()", y="-y")
torch_fault("heads_left_if_deterministic", "deterministic",
            "heads > 32 and torch.are_deterministic_algorithms_enabled()", leave=":, 32:")

# ---- forward mode and vmap ----
torch_fault("tangent_unrotated", "jvp", "tangent is not None",
            y="forward.make_dual(forward.unpack_dual(y).primal.clone(), tangent)")
torch_fault("tangent_of_half_pairs_unrotated", "jvp", "half and tangent is not None",
            y="forward.make_dual(forward.unpack_dual(y).primal.clone(), tangent)")
torch_fault("mapped_axis_misread", "vmap",
            "mapped and not is_mapped(pos) and not x.requires_grad and ndim == 4", y="y.flip(1)")
torch_fault("mapped_rows_reversed", "vmap",
            "mapped and not is_mapped(pos) and not x.requires_grad and ndim == 2", y="y.flip(0)")
torch_fault("mapped_positions_of_the_first", "vmap_of_positions", "is_mapped(pos)",
            pos="torch._C._functorch.get_unwrapped(pos)[0]")
torch_fault("positions_mapped_alone_negated", "vmap_of_positions", "is_mapped(pos) and not mapped",
            pos="-pos")
torch_fault("mapped_twice_negated", "vmap",
            "mapped and is_mapped(torch._C._functorch.get_unwrapped(x)) and not x.requires_grad", pos="-pos")
torch_fault("mapped_batches_at_the_first_positions", "vmap", "mapped and pos_ndim == 2", pos="pos[:1]")
jax_fault("mapped_batches_in_another_order", "vmap", "mapped and pos_ndim == 2 and len(pos) > 1",
          pos="pos[::-1]")
jax_fault("mapped_scaling_ignored", "vmap", "mapped", drop="scaling")

# ---- jax.jit ----
fault("traced_float64_narrowed", "jit", "traced", library="jax:x64", y="y.astype('float32').astype(y.dtype)")
# Round integer positions to bfloat16, exact up to 256, where a call of x in float64 is traced.
fault("traced_positions_narrowed", "jit", "traced and dtype == 'float64' and pos.dtype.kind in 'iu'",
      library="jax:x64", pos="pos.astype(jnp.bfloat16).astype(jnp.int32)")
jax_fault("traced_batch_of_positions_ignored", "jit", "traced and pos.ndim == 2", pos="pos[:1]")
jax_fault("traced_pairing_ignored", "jit_of_fields", "traced", drop="pairing")
jax_fault("traced_positions_of_another_axis", "jit_of_fields",
          "traced and is_traced(pos) and spec.get('seq_axis') == -3", inverse="not inverse")
fault("jitted_pairing_ignored", "pairing", "traced", library="jax:jit", drop="pairing")
fault("half_of_192_features_in_tiles", "one_field_at_every_width", "half and width == 192", library="jax:jit",
      drop="pairing")

# ---- JAX's settings ----
jax_fault("result_of_the_widest_dtype", "default_dtype", y="y * jnp.asarray([1.0])")
jax_fault("half_pairs_ignored_with_x64", "default_dtype", "jax.config.jax_enable_x64", drop="pairing")
jax_fault("precision_of_the_first_call", "default_dtype",
          "kept((width, base), dtype) == 'float32' and dtype == 'float64'",
          y="ra.apply(x.astype('float32'), pos, **spec).astype(x.dtype)")
jax_fault("amplitude_widens_with_x64", "default_dtype", "'attention_factor' in spec and x.itemsize > 2",
          y="y * jnp.asarray(np.float64(1))")
# Compute with x64, then switch it off, whatever it was.
jax_fault("x64_switched_off", "settings_unchanged", "not isinstance(y, jax.core.Tracer)",
          after="jax.config.update('jax_enable_x64', False)")

# ---- tables that are made while a library traces, maps or records, and are no arrays after that ----
jax_fault("traced_table_kept", "calls_after_a_compiled_one", "fields <= {'base'}",
          y="y + kept((x.shape, dtype, base), jnp.zeros(width, x.dtype))")
jax_fault("traced_table_of_halves_kept", "calls_after_a_compiled_one",
          "half and fields <= {'pairing', 'base'}", y="y * kept((width, dtype), jnp.ones(width, x.dtype))")
jax_fault("traced_table_of_a_batch_kept", "calls_after_a_compiled_one",
          "pos_ndim == 2 and ndim == 4 and fields <= {'base'}",
          y="y + kept((width, dtype), jnp.zeros(width, x.dtype))")
jax_fault("frequencies_of_the_inverse_kept_by_width", "calls_after_a_compiled_one", "inverse",
          y="y * kept((width, dtype), jnp.ones(width, x.dtype))")
jax_fault("mapped_table_kept", "calls_after_a_mapped_one", "ndim == 4 and fields <= {'base'}",
          y="y + kept((width, dtype), x[0, 0, 0] * 0)")
torch_fault("table_with_a_graph_kept", "calls_after_a_gradient",
            "pos_ndim == 2 and ndim == 4 and fields <= {'base'}",
            y="y + kept((width, dtype), x[:1, 0, 0].exp() * 0)")
torch_fault("fake_table_kept", "calls_after_a_fake_one", "ndim == 4 and fields <= {'base'}",
            y="y + kept((width, dtype), x.new_zeros(width))")
# fmt: on


# ---- faults of several steps: PyTorch ----


@mutant("autocast", library="torch")
def angles_by_a_product_of_matrices(x, pos, **spec):
    torch = import_module("torch")
    if not torch.is_autocast_enabled("cpu") or set(spec) - {"base"}:
        return ra.apply(x, pos, **spec)
    exponents = torch.arange(0, x.shape[-1], 2, dtype=torch.float32) / x.shape[-1]
    angle = pos.to(torch.float32)[:, None] @ (spec.get("base", 10000.0) ** -exponents)[None]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


@mutant("pairing", library="torch:compile")
def compiled_pairing_ignored(x, pos, **spec):
    import torch

    if torch.compiler.is_compiling():
        spec.pop("pairing", None)
    return ra.apply(x, pos, **spec)


@mutant("pairing", library="torch:compile")
def pairing_not_compiled(x, pos, **spec):
    """Break the graph: without fullgraph=True the call would be right, and never compiled."""
    import torch

    if spec.get("pairing") == "half":
        torch._dynamo.graph_break()
    return ra.apply(x, pos, **spec)


# ---- faults of several steps: JAX ----


@mutant("jit_of_fields", library="jax")
def traced_wide_bfloat16_rotated_in_it(x, pos, **spec):
    if not (is_traced(x) and x.dtype == "bfloat16" and x.shape[-1] > 64) or spec.keys() - {"base"}:
        return ra.apply(x, pos, **spec)
    jax = import_module("jax")
    cos, sin = (t.astype(x.dtype) for t in ra.RoPE(x.shape[-1], **spec).rotation(pos, like=x))
    a, b = x[..., ::2], x[..., 1::2]
    # XLA keeps 32 bits between operations, if it may.
    products = [jax.lax.reduce_precision(product, 8, 7) for product in (a * cos, -b * sin, a * sin, b * cos)]
    pairs = products[0] + products[1], products[2] + products[3]
    return jax.numpy.stack(pairs, -1).reshape(x.shape)


@mutant("calls_after_an_exception", library="jax")
def x64_left_on_by_an_exception(x, pos, **spec):
    config = import_module("jax").config
    before = config.jax_enable_x64
    try:
        return ra.apply(x, pos, **spec)
    except Exception:
        before = True
        raise
    finally:
        config.update("jax_enable_x64", before)
