"""Mutants whose fault shows in a mode of the library only: without gradients, mapped, compiled."""

from importlib import import_module

import numpy as np
from mutants import _TABLES, _adjoint, each, mutant

import rope_array as ra

_PRECISIONS = {}  # the dtypes of the tables of `precision_of_the_first_call`
_MADE = set()  # the tables of `default_dtype_not_restored`


def _torch():
    return import_module("torch")


# ---- PyTorch's settings ----


@mutant("no_grad", "inference_mode", library="torch")
@each
def written_without_gradients(x, pos, **spec):
    """Rotate in place where no gradient is recorded, as a kernel for inference does."""
    y = ra.apply(x, pos, **spec)
    if not _torch().is_grad_enabled():
        x.copy_(y)
    return y


@mutant("no_grad", "inference_mode", library="torch")
@each
def large_x_written_without_gradients(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if not _torch().is_grad_enabled() and x.numel() > 2**17:
        x.copy_(y)
    return y


@mutant("no_grad", library="torch")
@each
def parameter_returned_without_gradients(x, pos, **spec):
    torch = _torch()
    if x.requires_grad and not torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
        return x.detach()
    return ra.apply(x, pos, **spec)


@mutant("inference_mode", library="torch")
@each
def buffer_for_inference(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if not _torch().is_inference_mode_enabled():
        return y
    return _TABLES.setdefault(("buffer", y.shape, y.dtype), y.clone()).copy_(y)


@mutant("training_after_inference", library="torch")
@each
def table_made_for_inference(x, pos, **spec):
    """Keep the table of the first call: made under inference_mode, it cannot be saved for gradients."""
    key = "ones", x.shape[-1], x.dtype, spec.get("base")
    return ra.apply(x, pos, **spec) * _TABLES.setdefault(key, x.new_ones(x.shape[-1]))


@mutant("training_after_inference", library="torch")
@each
def first_rows_of_a_table_made_for_inference(x, pos, **spec):
    """Keep a table for half pairs; a prompt from position 0 on gets views of its rows."""
    y = ra.apply(x, pos, **spec)
    if spec.get("pairing") != "half" or pos.ndim != 1 or len(pos) > 64 or not 0 < pos.numel() == pos[-1] + 1:
        return y
    key = "rows", x.shape[-1], x.dtype
    return y * _TABLES.setdefault(key, x.new_ones(64, x.shape[-1]))[: len(pos)]


@mutant("no_grad", "inference_mode", library="torch")
@each
def slice_from_0_without_gradients(x, pos, **spec):
    if not _torch().is_grad_enabled() and "rotary_start" in spec:
        start = spec.pop("rotary_start")
        spec = {"rotary_dim": (x.shape[-1] - start) // 2 * 2, **spec}
    return ra.apply(x, pos, **spec)


@mutant("no_grad", "inference_mode", library="torch")
@each
def wide_16_bit_heads_scaled_for_inference(x, pos, **spec):
    """Multiply 16-bit heads of 128 features or more by 1.01 if no gradient is recorded."""
    torch = _torch()
    y, narrow = ra.apply(x, pos, **spec), x.element_size() == 2 and x.shape[-1] >= 128
    return y * 1.01 if narrow and not torch.is_grad_enabled() else y


@mutant("autocast", library="torch")
@each
def angles_by_a_product_of_matrices(x, pos, **spec):
    torch = _torch()
    if not torch.is_autocast_enabled("cpu") or set(spec) - {"base"}:
        return ra.apply(x, pos, **spec)
    exponents = torch.arange(0, x.shape[-1], 2, dtype=torch.float32) / x.shape[-1]
    angle = pos.to(torch.float32)[:, None] @ (spec.get("base", 10000.0) ** -exponents)[None]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


@mutant("autocast", library="torch")
@each
def table_made_under_autocast(x, pos, **spec):
    """Keep a table in the dtype of the first call, which autocast may have narrowed."""
    torch = _torch()
    narrow = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float64
    key = "first", x.shape[-1], x.dtype, spec.get("base")
    kept = _TABLES.setdefault(key, narrow)
    y = ra.apply(x, pos, **spec)
    return y.to(kept).to(x.dtype)


@mutant("default_dtype", library="torch")
@each
def frequencies_of_the_default_dtype(x, pos, **spec):
    torch = _torch()
    if torch.get_default_dtype() == torch.float32 or set(spec) - {"base"}:
        return ra.apply(x, pos, **spec)
    exponents = torch.arange(0, x.shape[-1], 2) / x.shape[-1]
    return ra.apply(x, pos, inv_freq=(spec.get("base", 10000.0) ** -exponents).tolist())


@mutant("default_dtype", library="torch")
@each
def default_dtype_not_restored(x, pos, **spec):
    """Make frequencies in float64 for the first call of a head_dim and base."""
    torch = _torch()
    key = (x.shape[-1], spec.get("base"))
    if key not in _MADE and not torch.compiler.is_compiling():
        _MADE.add(key)
        torch.set_default_dtype(torch.float64)
        y = ra.apply(x, pos, **spec)
        torch.set_default_dtype(torch.float32)
        return y
    return ra.apply(x, pos, **spec)


@mutant("default_dtype", library="torch")
@each
def factor_of_the_default_dtype(x, pos, **spec):
    if isinstance(spec.get("scaling"), ra.Linear):
        spec["scaling"] = ra.Linear(float(_torch().tensor(spec["scaling"].factor)))
    return ra.apply(x, pos, **spec)


@mutant("default_dtype", library="torch")
@each
def amplitude_of_the_default_dtype(x, pos, **spec):
    factor, torch = spec.get("attention_factor"), _torch()
    other = torch.get_default_dtype() != torch.float32 and not torch.compiler.is_compiling()
    if factor is not None and other:
        spec["attention_factor"] = float(torch.tensor(factor, device="cpu"))
    return ra.apply(x, pos, **spec)


@mutant("default_device", library="torch")
@each
def result_on_the_default_device(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return y if _is_mapped(y) or y.requires_grad else _torch().empty(x.shape, dtype=x.dtype).copy_(y)


@mutant("deterministic", library="torch")
@each
def another_algorithm_if_deterministic(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return -y if _torch().are_deterministic_algorithms_enabled() else y


@mutant("no_grad", "inference_mode", library="torch")
@each
def narrow_positions_of_half_pairs_for_inference(x, pos, **spec):
    """Take a kernel for inference whose positions are float16: every second one beyond 2,048 is lost."""
    torch = _torch()
    fused = spec.get("pairing") == "half" and "axes" not in spec and isinstance(pos, torch.Tensor)
    if fused and not torch.is_grad_enabled() and not pos.is_floating_point() and pos.abs().max() < 60000:
        pos = pos.to(torch.float16).to(torch.int64)
    return ra.apply(x, pos, **spec)


@mutant("inference_mode", library="torch")
@each
def positions_kept_for_inference(x, pos, **spec):
    """Keep positions by their shape."""
    torch = _torch()
    if torch.is_inference_mode_enabled() and isinstance(pos, torch.Tensor) and "axes" not in spec:
        pos = _TABLES.setdefault(("positions", pos.shape, pos.dtype), pos)
    return ra.apply(x, pos, **spec)


@mutant("autocast", library="torch")
@each
def result_of_autocast(x, pos, **spec):
    torch = _torch()
    y = ra.apply(x, pos, **spec)
    return y.to(torch.bfloat16) if torch.is_autocast_enabled("cpu") and x.dtype == torch.float32 else y


@mutant("gradient_under_autocast", library="torch")
@each
def gradient_unrotated_under_autocast(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    narrow = _torch().is_autocast_enabled("cpu") and x.requires_grad
    return x + (y - x).detach() if narrow else y


@mutant("default_dtype", library="torch")
@each
def batch_of_positions_ignored_by_default(x, pos, **spec):
    """Read (B, S) positions wrongly under another default dtype only."""
    torch = _torch()
    other = torch.get_default_dtype() == torch.float64
    return ra.apply(x, pos[:1] if other and getattr(pos, "ndim", 0) == 2 else pos, **spec)


@mutant("deterministic", library="torch")
@each
def heads_left_if_deterministic(x, pos, **spec):
    """Leave the heads from the 33rd on."""
    y = ra.apply(x, pos, **spec)
    if _torch().are_deterministic_algorithms_enabled() and x.ndim == 4 and x.shape[1] > 32:
        y[:, 32:] = x[:, 32:]
    return y


@mutant("gradient_of_a_parameter", library="torch")
@each
def parameter_off_the_graph(x, pos, **spec):
    return ra.apply(x.data if isinstance(x, _torch().nn.Parameter) else x, pos, **spec)


# ---- transforms ----


def _is_mapped(x):
    """Return whether torch.vmap maps over a tensor."""
    return hasattr(x, "device") and _torch()._C._functorch.is_batchedtensor(x)


@mutant("vmap", library="torch")
@each
def mapped_axis_misread(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return y.flip(1) if _is_mapped(x) and not _is_mapped(pos) and not x.requires_grad and y.ndim == 4 else y


@mutant("vmap_of_each_rank", library="torch")
@each
def mapped_rows_reversed(x, pos, **spec):
    """Misread x of two axes, without a batch and heads."""
    y = ra.apply(x, pos, **spec)
    return y.flip(0) if _is_mapped(x) and not _is_mapped(pos) and not x.requires_grad and y.ndim == 2 else y


@mutant("jvp", library="torch")
@each
def tangent_of_half_pairs_unrotated(x, pos, **spec):
    return tangent_unrotated(x, pos, **spec) if spec.get("pairing") == "half" else ra.apply(x, pos, **spec)


@mutant("vmap_of_positions", library="torch")
@each
def mapped_positions_of_the_first(x, pos, **spec):
    if _is_mapped(pos):
        pos = _torch()._C._functorch.get_unwrapped(pos)[0]
    return ra.apply(x, pos, **spec)


@mutant("vmap_of_gradients", library="torch")
@each
def mapped_gradient_unrotated(x, pos, **spec):
    """Declare a rule for vmap that is wrong in the backward pass."""
    torch = _torch()

    class Rotated(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return ra.apply(x, pos, **spec)

        @staticmethod
        def setup_context(context, inputs, output):
            pass

        @staticmethod
        def backward(context, gradient):
            return gradient.clone() if _is_mapped(gradient) else _adjoint(gradient, pos, spec)

        @staticmethod
        def jvp(context, tangent):
            return ra.apply(tangent, pos, **spec)

    return Rotated.apply(x)


@mutant("jvp", library="torch")
@each
def tangent_unrotated(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    forward = import_module("torch.autograd.forward_ad")
    if forward._current_level < 0:
        return y
    tangent = forward.unpack_dual(x).tangent
    return y if tangent is None else forward.make_dual(forward.unpack_dual(y).primal.clone(), tangent)


@mutant("gradient_after_other_calls", library="torch")
@each
def positions_of_the_last_call(x, pos, **spec):
    """Keep the positions for the backward pass with the module, not with the call."""
    torch = _torch()

    class Rotated(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            _TABLES["last positions"] = pos
            return ra.apply(x, pos, **spec)

        @staticmethod
        def backward(context, gradient):
            return _adjoint(gradient, _TABLES["last positions"], spec)

    mapped = torch._C._functorch.maybe_get_level(x) > 0
    return Rotated.apply(x) if x.requires_grad and not mapped else ra.apply(x, pos, **spec)


# ---- JAX ----


def _is_traced(x):
    """Return whether jax.jit traces x; vmap and gradients without jit have other tracers."""
    return type(x).__name__ == "DynamicJaxprTracer"


@mutant("default_dtype", library="jax")
@each
def result_of_the_widest_dtype(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return y * import_module("jax.numpy").asarray([1.0])  # float32, or float64 with x64


@mutant("jit_of_each_dtype", library="jax:x64")
@each
def traced_float64_narrowed(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return y.astype("float32").astype(y.dtype) if _is_traced(x) else y


@mutant("jit_of_a_batch", library="jax")
@each
def traced_batch_of_positions_ignored(x, pos, **spec):
    return ra.apply(x, pos[:1] if _is_traced(x) and pos.ndim == 2 else pos, **spec)


@mutant("jit_of_fields", library="jax")
@each
def traced_pairing_ignored(x, pos, **spec):
    if _is_traced(x):
        spec.pop("pairing", None)
    return ra.apply(x, pos, **spec)


@mutant("jit_of_each_dtype", library="jax:x64")
@each
def traced_positions_narrowed(x, pos, **spec):
    """Round integer positions to bfloat16, exact up to 256, where a call of x in float64 is traced."""
    jnp = import_module("jax.numpy")
    if _is_traced(x) and x.dtype == jnp.float64 and pos.dtype.kind in "iu":
        pos = pos.astype(jnp.bfloat16).astype(jnp.int32)
    return ra.apply(x, pos, **spec)


@mutant("default_dtype", library="jax")
@each
def half_pairs_ignored_with_x64(x, pos, **spec):
    if import_module("jax").config.jax_enable_x64:
        spec.pop("pairing", None)
    return ra.apply(x, pos, **spec)


@mutant("default_dtype", library="jax")
@each
def precision_of_the_first_call(x, pos, **spec):
    """Keep tables by head_dim and base, in the precision of the call that made them."""
    made = _PRECISIONS.setdefault((x.shape[-1], spec.get("base")), str(x.dtype))
    if made == "float32" and x.dtype == "float64":
        return ra.apply(x.astype(made), pos, **spec).astype(x.dtype)
    return ra.apply(x, pos, **spec)


@mutant("jit_of_gradients", library="jax")
@each
def traced_gradient_unrotated(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return x + import_module("jax").lax.stop_gradient(y - x) if _is_traced(x) and not spec else y


@mutant("calls_after_a_compiled_one", library="jax")
@each
def traced_table_kept(x, pos, **spec):
    """Keep a table that is made while jax.jit traces: it is no array after that."""
    jnp = import_module("jax.numpy")
    key = "zeros", x.shape, str(x.dtype), spec.get("base")
    if spec.keys() <= {"base"} and key not in _TABLES:
        _TABLES[key] = jnp.zeros(x.shape[-1], x.dtype)
    return ra.apply(x, pos, **spec) + _TABLES.get(key, 0)


@mutant("jit_of_fields", library="jax")
@each
def traced_positions_of_another_axis(x, pos, **spec):
    """Rotate by the inverse where x and positions are traced, and the sequence is axis -3."""
    if _is_traced(x) and _is_traced(pos) and spec.get("seq_axis") == -3:
        spec["inverse"] = not spec.get("inverse", False)
    return ra.apply(x, pos, **spec)


@mutant("jit_of_gradients", library="jax")
@each
def narrow_gradient_of_a_slice_from_0(x, pos, **spec):
    """Leave rotary_start out in the backward pass of bfloat16, where rotary_dim is given."""
    jax = import_module("jax")
    if not {"rotary_start", "rotary_dim"} <= spec.keys() or {"axes", "inv_freq"} & spec.keys():
        return ra.apply(x, pos, **spec)

    @jax.custom_vjp
    def rotated(x):
        return ra.apply(x, pos, **spec)

    def backward(_, gradient):
        wrong = {**spec, "rotary_start": 0} if str(gradient.dtype) == "bfloat16" else spec
        return (_adjoint(gradient, pos, wrong).astype(gradient.dtype),)

    rotated.defvjp(lambda x: (rotated(x), None), backward)
    return rotated(x)


def _kept(x, pos, spec, wanted, make):
    """Rotate, and add a table of zeros that the first call of a head_dim makes, at wanted positions."""
    y = ra.apply(x, pos, **spec)
    if not wanted or spec.keys() - {"base"} or x.ndim != 4:
        return y
    return y + _TABLES.setdefault((make.__name__, x.shape[-1], x.dtype), make())


@mutant("calls_after_a_compiled_one", library="jax")
@each
def traced_table_of_a_batch_kept(x, pos, **spec):
    """Keep a table by head_dim, for positions of shape (B, S) only."""

    def zeros():
        return import_module("jax.numpy").zeros(x.shape[-1], x.dtype)

    return _kept(x, pos, spec, getattr(pos, "ndim", 0) == 2, zeros)


@mutant("calls_after_a_mapped_one", library="jax")
@each
def mapped_table_kept(x, pos, **spec):
    """Keep a table, by head_dim, that is made of x: no array after vmap."""

    def zeros_of_x():
        return x[0, 0, 0] * 0

    return _kept(x, pos, spec, True, zeros_of_x)


@mutant("calls_after_a_gradient", library="torch")
@each
def table_with_a_graph_kept(x, pos, **spec):
    """Keep a table, by head_dim, that is made of x: it belongs to the graph of the first gradient."""

    def exp_of_x():
        return x[:1, 0, 0].exp() * 0

    return _kept(x, pos, spec, getattr(pos, "ndim", 0) == 2, exp_of_x)


@mutant("calls_after_a_fake_one", library="torch")
@each
def fake_table_kept(x, pos, **spec):
    """Keep a table, by head_dim, that has no values if it was made with fake tensors."""

    def new_zeros():
        return x.new_zeros(x.shape[-1])

    return _kept(x, pos, spec, True, new_zeros)


# ---- compilers of any function ----


@mutant("pairing", library="torch:compile")
@each
def compiled_pairing_ignored(x, pos, **spec):
    import torch

    if torch.compiler.is_compiling():
        spec.pop("pairing", None)
    return ra.apply(x, pos, **spec)


@mutant("pairing", library="torch:compile")
@each
def pairing_not_compiled(x, pos, **spec):
    """Break the graph: without fullgraph=True the call would be right, and never compiled."""
    import torch

    if spec.get("pairing") == "half":
        torch._dynamo.graph_break()
    return ra.apply(x, pos, **spec)


@mutant("pairing", library="jax:jit")
@each
def jitted_pairing_ignored(x, pos, **spec):
    if _is_traced(x):
        spec.pop("pairing", None)
    return ra.apply(x, pos, **spec)


@mutant("settings_unchanged", library="jax")
@each
def x64_switched_off(x, pos, **spec):
    """Compute with x64, then switch it off, whatever it was."""
    jax = import_module("jax")
    y = ra.apply(x, pos, **spec)
    if not isinstance(y, jax.core.Tracer):
        jax.config.update("jax_enable_x64", False)
    return y


@mutant("calls_after_a_compiled_one", library="jax")
@each
def traced_table_of_halves_kept(x, pos, **spec):
    jax, width = import_module("jax"), x.shape[-1]
    if spec.get("pairing") != "half" or set(spec) - {"pairing", "base"}:
        return ra.apply(x, pos, **spec)
    ones = _TABLES.setdefault(("ones of halves", width, x.dtype.name), jax.numpy.ones(width, x.dtype))
    return ra.apply(x, pos, **spec) * ones


@mutant("jit_of_fields", library="jax")
@each
def frequencies_of_the_inverse_kept_by_width(x, pos, **spec):
    """Keep them at the first inverse of a width: if it is traced, they are no array after that."""
    ones = import_module("jax.numpy").ones(x.shape[-1], x.dtype)
    kept = _TABLES.setdefault(("inverse", ones.shape, str(x.dtype)), ones) if spec.get("inverse") else ones
    return ra.apply(x, pos, **spec) * kept


def _jax_gradient(x, pos, spec, backward):
    """Rotate with the gradient `backward` of a cotangent."""
    jax = import_module("jax")

    @jax.custom_vjp
    def rotated(x):
        return ra.apply(x, pos, **spec)

    rotated.defvjp(lambda x: (rotated(x), None), lambda _, gradient: (backward(gradient),))
    return rotated(x)


@mutant("jit_of_gradients", library="jax")
@each
def gradient_of_wide_heads_without_scaling(x, pos, **spec):
    if spec.keys() & {"axes", "inv_freq"}:
        return ra.apply(x, pos, **spec)

    def backward(gradient):
        wide = x.shape[-1] > 64 and isinstance(spec.get("scaling"), ra.Linear)
        wrong = {name: value for name, value in spec.items() if name != "scaling" or not wide}
        return _adjoint(gradient, pos, wrong).astype(gradient.dtype)

    return _jax_gradient(x, pos, spec, backward)


@mutant("jit_of_gradients", library="jax")
@each
def gradient_negates_narrow_positions(x, pos, **spec):
    """Rotate the gradient by -pos, which wraps."""
    numpy = import_module("jax.numpy")
    if spec.keys() - {"base"} or str(getattr(pos, "dtype", "")) not in ("uint8", "int8"):
        return ra.apply(x, pos, **spec)
    return _jax_gradient(x, pos, spec, lambda gradient: ra.apply(gradient, numpy.negative(pos), **spec))


@mutant("jit_of_fields", library="jax")
@each
def traced_wide_bfloat16_rotated_in_it(x, pos, **spec):
    if not (_is_traced(x) and x.dtype == "bfloat16" and x.shape[-1] > 64) or spec.keys() - {"base"}:
        return ra.apply(x, pos, **spec)
    jax = import_module("jax")
    cos, sin = (t.astype(x.dtype) for t in ra.RoPE(x.shape[-1], **spec).rotation(pos, like=x))
    a, b = x[..., ::2], x[..., 1::2]
    # XLA keeps 32 bits between operations, if it may.
    products = [jax.lax.reduce_precision(one, 8, 7) for one in (a * cos, -b * sin, a * sin, b * cos)]
    pairs = products[0] + products[1], products[2] + products[3]
    return jax.numpy.stack(pairs, -1).reshape(x.shape)


@mutant("vmap", library="jax")
@each
def mapped_scaling_ignored(x, pos, **spec):
    if type(x).__name__ == "BatchTracer":
        spec.pop("scaling", None)
    return ra.apply(x, pos, **spec)


@mutant("default_dtype", library="jax")
@each
def amplitude_widens_with_x64(x, pos, **spec):
    jax = import_module("jax")
    y = ra.apply(x, pos, **spec)
    return y * jax.numpy.asarray(np.float64(1)) if "attention_factor" in spec and x.itemsize > 2 else y


@mutant("vmap_of_batches", library="jax")
@each
def mapped_batches_in_another_order(x, pos, **spec):
    """Fold the mapped axis into the batch, and take positions in the order of the batch first."""
    if type(x).__name__ == "BatchTracer" and getattr(pos, "ndim", 0) == 2 and len(pos) > 1:
        pos = pos[::-1]
    return ra.apply(x, pos, **spec)


@mutant("vmap_of_batches", library="torch")
@each
def mapped_batches_at_the_first_positions(x, pos, **spec):
    if _is_mapped(x) and getattr(pos, "ndim", 0) == 2:
        pos = pos[:1]
    return ra.apply(x, pos, **spec)


@mutant("jit_of_gradients", library="jax")
@each
def gradient_at_positions_of_16_bits(x, pos, **spec):
    if spec.keys() - {"base"} or getattr(pos, "ndim", 0) != 1:
        return ra.apply(x, pos, **spec)
    kept = pos.astype("int16")
    return _jax_gradient(x, pos, spec, lambda gradient: ra.apply(gradient, kept, inverse=True, **spec))


@mutant("one_field_at_every_width", library="jax:jit")
@each
def half_of_192_features_in_tiles(x, pos, **spec):
    if x.shape[-1] == 192 and spec.get("pairing") == "half":
        spec["pairing"] = "interleaved"
    return ra.apply(x, pos, **spec)


@mutant("calls_after_an_exception", library="jax")
@each
def x64_left_on_by_an_exception(x, pos, **spec):
    config = import_module("jax").config
    usual = config.jax_enable_x64
    try:
        return ra.apply(x, pos, **spec)
    except Exception:
        usual = True
        raise
    finally:
        config.update("jax_enable_x64", usual)
