"""Mutants that are wrong only where a width, a size, a dtype, strides or a gradient meets a field."""

import dataclasses
from importlib import import_module

import numpy as np
from mutants import _with_gradient, each, mutant

import rope_array as ra


def unrotated_from(y, x, index):
    """Return y with the elements of an index as they are in x."""
    y = y.copy()
    y[index] = x[index]
    return y


def replaced(x, pos, spec, wrong, **fields):
    """Rotate with other fields if a call is of the wrong kind."""
    return ra.apply(x, pos, **({**spec, **fields} if wrong else spec))


def rotated_width(x, spec):
    return spec.get("rotary_dim") or x.shape[-1] - spec.get("rotary_start", 0)


def flipped(spec):
    return not spec.get("inverse", False)


# ---- widths ----


@mutant("widths_and_fields")
@each
def half_pairing_wrong_at_64(x, pos, **spec):
    wrong = spec.get("pairing") == "half" and 64 <= rotated_width(x, spec) <= 128
    return replaced(x, pos, spec, wrong, inverse=flipped(spec))


@mutant("widths_and_fields")
@each
def scaling_ignored_at_128(x, pos, **spec):
    if x.shape[-1] == 128:
        spec.pop("scaling", None)
    return ra.apply(x, pos, **spec)


@mutant("widths_and_fields")
@each
def base_ignored_at_wide_heads(x, pos, **spec):
    if x.shape[-1] >= 96:
        spec.pop("base", None)
    return ra.apply(x, pos, **spec)


@mutant("widths_and_fields")
@each
def slices_rounded_to_a_power_of_two(x, pos, **spec):
    """Rotate the first 16 of 24, 32 of 48, 64 of 96 features only."""
    width = spec.get("rotary_dim") or 0
    y = ra.apply(x, pos, **spec)
    start = spec.get("rotary_start", 0)
    rest = slice(start + 2 ** (width.bit_length() - 1), start + width)
    return unrotated_from(y, x, np.s_[..., rest]) if 16 < width < 100 else y


@mutant("widths_and_fields")
@each
def slice_of_a_wide_head_from_its_end(x, pos, **spec):
    if x.shape[-1] >= 64 and "rotary_dim" in spec and spec.get("pairing") == "half":
        spec.pop("pairing")
    return ra.apply(x, pos, **spec)


@mutant("widths_and_fields")
@each
def head_dims_not_of_16(x, pos, **spec):
    """Leave out the last features of 36, 44, 72, 88."""
    y, width = ra.apply(x, pos, **spec), x.shape[-1]
    wrong = width > 16 and width % 16 and width != 80
    return unrotated_from(y, x, np.s_[..., width // 16 * 16 :]) if wrong else y


@mutant("widths_and_fields")
@each
def head_dim_112(x, pos, **spec):
    return x.copy() if x.shape[-1] == 112 else ra.apply(x, pos, **spec)


@mutant("widths_and_fields")
@each
def float16_beyond_64_features(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return unrotated_from(y, x, np.s_[..., 64:]) if x.dtype == np.float16 else y


@mutant("widths_and_fields")
@each
def wide_out_pairing(x, pos, **spec):
    if x.shape[-1] > 64:
        spec.pop("out_pairing", None)
    return ra.apply(x, pos, **spec)


# ---- sizes ----


@mutant("sizes_and_fields")
@each
def heads_from_65_with_half_pairing(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    wrong = spec.get("pairing") == "half" and x.ndim == 4
    return unrotated_from(y, x, np.s_[:, 64:]) if wrong else y


@mutant("sizes_and_fields")
@each
def batches_from_33_with_a_slice(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return unrotated_from(y, x, np.s_[32:]) if "rotary_dim" in spec else y


@mutant("sizes_and_fields")
@each
def float16_beyond_512_rows(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    wrong = x.dtype == np.float16 and "seq_axis" not in spec and x.ndim > 1
    return unrotated_from(y, x, np.s_[..., 512:, :]) if wrong else y


@mutant("sizes_and_fields", library="torch")
@each
def float16_inverse_beyond_512_rows(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if x.dtype == import_module("torch").float16 and spec.get("inverse") and x.shape[-2] > 512:
        y = import_module("torch").cat([y[..., :512, :], x[..., 512:, :]], -2)
    return y


@mutant("sizes_and_fields")
@each
def long_positions_of_a_batch(x, pos, **spec):
    """Use the first batch's positions from the 513th row on."""
    if np.ndim(pos) == 2 and np.shape(pos)[1] > 512:
        pos = np.array(pos)
        pos[:, 512:] = pos[:1, 512:]
    return ra.apply(x, pos, **spec)


@mutant("sizes_and_fields")
@each
def positions_of_many_batches(x, pos, **spec):
    if np.ndim(pos) == 2 and np.shape(pos)[0] > 32:
        pos = np.array(pos)
        pos[32:] = pos[31]
    return ra.apply(x, pos, **spec)


@mutant("sizes_and_fields")
@each
def sequence_axis_of_many_heads(x, pos, **spec):
    if spec.get("seq_axis") in (-3, 1) and x.ndim == 4 and x.shape[2] > 64:
        return unrotated_from(ra.apply(x, pos, **spec), x, np.s_[:, :, 64:])
    return ra.apply(x, pos, **spec)


# ---- fields alone ----


def is_alone(spec, name):
    return set(spec) == {name}


@mutant("one_field_at_every_width")
@each
def half_pairing_alone_at_a_power_of_two(x, pos, **spec):
    """Split at half of the next power of two, in a fast path for half pairing."""
    width = x.shape[-1]
    wrong = is_alone(spec, "pairing") and spec["pairing"] == "half" and width > 24 and width & (width - 1)
    return replaced(x, pos, spec, wrong, inverse=True)


@mutant("one_field_at_every_width")
@each
def half_pairing_alone_at_112_and_160(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if is_alone(spec, "pairing") and spec["pairing"] == "half" and x.shape[-1] in (112, 160):
        y = y.copy()
        y[..., [55, 56]] = y[..., [56, 55]]
    return y


@mutant("one_field_at_every_width")
@each
def float16_half_pairing_alone_at_80(x, pos, **spec):
    wrong = x.dtype == np.float16 and x.shape[-1] == 80 and is_alone(spec, "pairing")
    return replaced(x, pos, spec, wrong and spec["pairing"] == "half", inverse=True)


@mutant("one_field_at_every_width")
@each
def base_alone_at_112(x, pos, **spec):
    return ra.apply(x, pos, **({} if x.shape[-1] == 112 and is_alone(spec, "base") else spec))


@mutant("one_field_at_every_width")
@each
def inverse_with_half_pairing_alone_at_160(x, pos, **spec):
    wrong = x.shape[-1] == 160 and set(spec) == {"pairing", "inverse"}
    return replaced(x, pos, spec, wrong, inverse=False)


@mutant("one_field_and_many_rows")
@each
def attention_factor_of_64_rows(x, pos, **spec):
    """Leave the amplitude out from the 65th row on, if there is no other field."""
    y = ra.apply(x, pos, **spec)
    if is_alone(spec, "attention_factor") and x.ndim > 1:
        y = y.copy()
        y[..., 64:, :] /= spec["attention_factor"]
    return y


@mutant("one_field_and_many_rows")
@each
def base_alone_of_64_heads(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return unrotated_from(y, x, np.s_[:, 64:]) if is_alone(spec, "base") and x.ndim == 4 else y


@mutant("rotary_starts_of_wide_heads")
@each
def rotary_start_modulo_32(x, pos, **spec):
    if spec.get("rotary_start", 0) >= 32:
        spec["rotary_start"] %= 32
    return ra.apply(x, pos, **spec)


def rule_of(spec, kind):
    return isinstance(spec.get("scaling"), kind)


@mutant("rules_at_wide_heads")
@each
def linear_scaling_without_half_pairing(x, pos, **spec):
    wrong = rule_of(spec, ra.Linear) and spec.get("pairing") == "half" and x.shape[-1] >= 64
    return ra.apply(x, pos, **(_without("scaling")(spec, x) if wrong else spec))


@mutant("rules_at_wide_heads")
@each
def truncate_ignored_at_64(x, pos, **spec):
    if rule_of(spec, ra.YaRN) and x.shape[-1] >= 64:
        spec["scaling"] = dataclasses.replace(spec["scaling"], truncate=True)
    return ra.apply(x, pos, **spec)


@mutant("rules_at_wide_heads")
@each
def llama3_of_32_pairs(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if rule_of(spec, ra.Llama3) and x.shape[-1] > 64:
        y = y.copy()
        y[..., 64:] = ra.apply(x, pos, **_without("scaling")(spec, x))[..., 64:]
    return y


@mutant("axes_at_wide_heads")
@each
def axes_of_24_pairs(x, pos, **spec):
    """Rotate the pairs from the 25th on by the first coordinate."""
    axes = spec.get("axes")
    if axes is not None and len(axes.coordinates) > 24 and not axes.widths and not axes.indices:
        rest = (0,) * (len(axes.coordinates) - 24)
        count = np.shape(pos)[-1]
        spec["axes"] = dataclasses.replace(axes, coordinates=(*axes.coordinates[:24], *rest), count=count)
    return ra.apply(x, pos, **spec)


@mutant("batch_positions_of_five_axes")
@each
def positions_of_the_second_axis(x, pos, **spec):
    """Match (B, S) to the second of five axes, if that has the size B."""
    second = x.ndim == 5 and np.ndim(pos) == 2 and np.shape(pos)[0] == x.shape[1] and "axes" not in spec
    return ra.apply(x, np.asarray(pos)[None] if second else pos, **spec)


@mutant("gradient_at_far_positions", library="torch")
@each
def gradient_of_float16_at_float16_positions(x, pos, **spec):
    torch = import_module("torch")
    if not hasattr(pos, "dtype") or x.dtype != torch.float16:
        return ra.apply(x, pos, **spec)

    def backward(gradient, pos, spec):
        array = gradient.detach().clone().requires_grad_()
        with torch.enable_grad():
            rounded = pos.to(torch.float16).to(pos.dtype)
            return torch.autograd.grad(ra.apply(array, rounded, **spec), array, gradient)[0]

    return _with_gradient(backward)(x, pos, spec)


# ---- positions ----


@mutant("positions_of_narrow_dtypes", library="jax")
@each
def uint32_read_as_int32(x, pos, **spec):
    """JAX without x64 has no wider integers: positions from 2^31 on become negative."""
    if str(getattr(pos, "dtype", "")) == "uint32":
        pos = pos.astype("int32")
    return ra.apply(x, pos, **spec)


@mutant("batch_positions_of_three_axes", library="jax")
@each
def three_axes_by_the_first_batch(x, pos, **spec):
    """Rotate x of three axes, without heads, by the positions of batch 0."""
    if x.ndim == 3 and getattr(pos, "ndim", 0) == 2 and "axes" not in spec:
        pos = pos[:1]
    return ra.apply(x, pos, **spec)


# ---- dtypes and strides ----


@mutant("widths_and_fields")
@each
def float16_inverse_of_a_slice(x, pos, **spec):
    wrong = x.dtype == np.float16 and "rotary_dim" in spec and spec.get("inverse")
    return replaced(x, pos, spec, wrong, inverse=False)


@mutant("widths_and_fields")
@each
def float64_scaling_of_halves(x, pos, **spec):
    if x.dtype == np.float64 and spec.get("pairing") == "half":
        spec.pop("scaling", None)
    return ra.apply(x, pos, **spec)


@mutant("strides_and_fields")
@each
def strides_misread_with_half_pairing(x, pos, **spec):
    if spec.get("pairing") == "half":
        x = x.ravel(order="K").reshape(x.shape)
    return ra.apply(x, pos, **spec)


@mutant("strides_and_fields")
@each
def strides_misread_at_wide_heads(x, pos, **spec):
    if x.shape[-1] >= 64:
        x = x.ravel(order="K").reshape(x.shape)
    return ra.apply(x, pos, **spec)


@mutant("sizes_and_fields")
@each
def strides_misread_in_many_rows(x, pos, **spec):
    if x.ndim > 1 and x.shape[-2] >= 500:
        x = x.ravel(order="K").reshape(x.shape)
    return ra.apply(x, pos, **spec)


# ---- gradients ----


def with_adjoint(x, pos, spec, change):
    """Rotate with the adjoint as gradient, and the fields of the gradient changed."""

    def backward(gradient, pos, spec):
        # The adjoint is the inverse, of the reciprocal amplitude.
        fields = {**spec, "inverse": flipped(spec)}
        if fields.keys() & {"attention_factor", "scaling"}:
            plain = {name: value for name, value in spec.items() if name not in ("inverse", "seq_axis")}
            fields["attention_factor"] = 1 / ra.RoPE(gradient.shape[-1], **plain).amplitude
        return ra.apply(gradient, pos, **change(fields, gradient))

    return _with_gradient(backward)(x, pos, spec)


def _without(*names):
    return lambda spec, gradient: {name: value for name, value in spec.items() if name not in names}


@mutant("gradient_of_half_pairing", library="torch")
@each
def gradient_without_pairing(x, pos, **spec):
    return with_adjoint(x, pos, spec, _without("pairing"))


@mutant("gradient_of_out_pairing", library="torch")
@each
def gradient_without_out_pairing(x, pos, **spec):
    return with_adjoint(x, pos, spec, _without("out_pairing"))


@mutant("gradient_of_the_inverse", library="torch")
@each
def gradient_always_backwards(x, pos, **spec):
    return with_adjoint(x, pos, spec, lambda fields, gradient: {**fields, "inverse": True})


@mutant("gradient_combinations", library="torch")
@each
def gradient_without_scaling(x, pos, **spec):
    return with_adjoint(x, pos, spec, _without("scaling"))


@mutant("gradient_combinations", library="torch")
@each
def gradient_without_base(x, pos, **spec):
    return with_adjoint(x, pos, spec, _without("base"))


@mutant("gradient_combinations", library="torch")
@each
def gradient_along_the_usual_axis(x, pos, **spec):
    def change(fields, gradient):
        wrong = fields.get("seq_axis") in (-3, 1) and gradient.shape[1] == gradient.shape[2]
        return _without("seq_axis")(fields, gradient) if wrong else fields

    return with_adjoint(x, pos, spec, change)


@mutant("gradient_combinations", library="torch")
@each
def gradient_of_a_slice_at_positions_of_16_bits(x, pos, **spec):
    """Save positions as int16 for the backward pass of calls with a slice."""
    torch, narrow = import_module("torch"), pos
    if isinstance(pos, torch.Tensor) and "rotary_dim" in spec and not pos.is_floating_point():
        narrow = pos.to(torch.int16).to(torch.int64)
    y, wrong = ra.apply(x, pos, **spec), ra.apply(x, narrow, **spec)
    return wrong + (y - wrong).detach() if x.requires_grad else y


@mutant("gradient_of_many_elements", library="torch")
@each
def gradient_of_2_17_elements_without_pairing(x, pos, **spec):
    def change(fields, gradient):
        return _without("pairing")(fields, gradient) if gradient.numel() > 2**17 else fields

    return with_adjoint(x, pos, spec, change)


@mutant("gradient_at_wide_heads", library="torch")
@each
def gradient_of_64_heads(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if x.ndim != 4 or x.shape[1] <= 64 or not y.requires_grad:
        return y
    return import_module("torch").cat([y[:, :64], x[:, 64:] + (y - x)[:, 64:].detach()], 1)


@mutant("gradient_of_a_tuple", library="torch")
def gradient_of_the_first_of_a_tuple(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if not isinstance(x, tuple):
        return y
    return (y[0], *(one + (two - one).detach() for one, two in zip(x[1:], y[1:], strict=True)))


@mutant("gradient_of_strides", library="torch")
@each
def value_while_recorded_misreads_strides(x, pos, **spec):
    if x.requires_grad and not x.is_contiguous():
        return ra.apply(x, pos, **spec) + 0 * x + x.detach().mean()
    return ra.apply(x, pos, **spec)


@mutant("gradient_of_a_strided_cotangent", library="torch")
@each
def transposed_cotangent_misread(x, pos, **spec):
    def backward(gradient, pos, spec):
        if 0 not in gradient.stride() and not gradient.is_contiguous():
            gradient = 0 * gradient
        return ra.apply(gradient, pos, **{**spec, "inverse": flipped(spec)})

    return _with_gradient(backward)(x, pos, spec) if not spec else ra.apply(x, pos, **spec)


@mutant("gradient_twice", library="torch")
@each
def gradient_scales_what_it_saved(x, pos, **spec):
    kept = {"factor": 1.0}

    def backward(gradient, pos, spec):
        rotated = kept["factor"] * ra.apply(gradient, pos, inverse=True)
        kept["factor"] = 0.0
        return rotated

    return _with_gradient(backward)(x, pos, spec) if not spec else ra.apply(x, pos, **spec)


@mutant("gradient_of_one_field", library="torch")
@each
def gradient_of_a_slice_alone(x, pos, **spec):
    """Rotate back with rotary_dim's frequencies at narrow heads only."""
    wide = is_alone(spec, "rotary_dim") and x.shape[-1] > 64
    return with_adjoint(x, pos, spec, _without("rotary_dim")) if wide else ra.apply(x, pos, **spec)


@mutant("gradient_of_scaling", library="torch")
@each
def gradient_without_the_amplitude_of_yarn(x, pos, **spec):
    def change(fields, gradient):
        return {**fields, "attention_factor": 1.0} if is_alone(spec, "scaling") else fields

    return with_adjoint(x, pos, spec, change) if rule_of(spec, ra.YaRN) else ra.apply(x, pos, **spec)


@mutant("gradient_of_axes", library="torch")
@each
def gradient_by_the_first_coordinate(x, pos, **spec):
    """Rotate back by the first coordinate, for axes of one series."""
    axes = spec.get("axes")
    if axes is None or axes.widths:
        return ra.apply(x, pos, **spec)
    coordinates = tuple(None if one is None else 0 for one in axes.coordinates)
    wrong = dataclasses.replace(axes, coordinates=coordinates, count=pos.shape[-1])
    return with_adjoint(x, pos, spec, lambda fields, gradient: {**fields, "axes": wrong})


@mutant("gradient_at_far_positions", library="torch")
@each
def positions_while_recorded_in_bfloat16(x, pos, **spec):
    torch = import_module("torch")
    if x.requires_grad and torch.is_tensor(pos) and not pos.is_floating_point() and not spec:
        pos = pos.bfloat16().long()
    return ra.apply(x, pos, **spec)


@mutant("gradient_of_a_gradient", library="torch")
@each
def gradient_without_a_gradient(x, pos, **spec):
    """Compute the gradient by a kernel that PyTorch does not record."""

    def backward(gradient, pos, spec):
        return ra.apply(gradient.detach(), pos, inverse=True)

    return _with_gradient(backward)(x, pos, spec) if not spec else ra.apply(x, pos, **spec)


@mutant("gradient_combinations", library="torch")
@each
def narrow_gradient_of_a_slice_of_another_base(x, pos, **spec):
    """Leave rotary_start out in the backward pass of float16, by a path for calls with a base."""
    simple = "base" in spec and not {"axes", "inv_freq", "scaling"} & spec.keys()

    def change(fields, gradient):
        wrong = gradient.dtype == import_module("torch").float16 and simple
        return _without("rotary_start")(fields, gradient) if wrong else fields

    return with_adjoint(x, pos, spec, change)


@mutant("gradient", "gradient_combinations", library="torch")
@each
def value_while_recorded_in_half(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return y.bfloat16().to(y.dtype) if x.requires_grad else y


# ---- positions ----


@mutant("widths_and_positions")
@each
def half_pairs_of_wide_float16_at_float16_positions(x, pos, **spec):
    if x.dtype == np.float16 and spec.get("pairing") == "half" and x.shape[-1] >= 128:
        pos = np.clip(pos, -60000, 60000).astype(np.float16).astype(np.int64)
    return ra.apply(x, pos, **spec)


@mutant("batch_positions_of_five_axes")
@each
def five_axes_by_the_first_batch(x, pos, **spec):
    if x.ndim == 5 and isinstance(pos, np.ndarray) and pos.ndim == 2 and "axes" not in spec:
        pos = np.broadcast_to(pos[:1], pos.shape)
    return ra.apply(x, pos, **spec)


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


@mutant("widths_and_positions")
def products_of_int16_positions(x, pos, **spec):
    """Find a row of a flat table of cos and sin in the dtype of positions."""
    pairs = np.shape(x[0] if isinstance(x, tuple) else x)[-1] // 2
    if isinstance(pos, np.ndarray) and pos.dtype == np.int16 and pairs >= 32 and pos.size:
        pos = (pos * np.int16(pairs)).astype(np.int64) // pairs
    return ra.apply(x, pos, **spec)


@mutant("tuples_of_two_dtypes")
def k_in_the_dtype_of_q(x, pos, **spec):
    if isinstance(x, tuple):
        x = tuple(array.astype(x[0].dtype) for array in x)
    return ra.apply(x, pos, **spec)


@mutant("one_field_and_many_rows")
@each
def the_last_of_an_odd_number_of_heads(x, pos, **spec):
    """Half pairs of more than 32 heads, two heads at a time."""
    y = ra.apply(x, pos, **spec)
    if x.ndim == 4 and x.shape[1] > 32 and x.shape[1] % 2 and spec.get("pairing") == "half":
        y[:, -1] = x[:, -1]
    return y


@mutant("one_field_and_many_rows")
@each
def whole_tiles_without_the_factor(x, pos, **spec):
    """Whole tiles of 256 rows take a faster path, which forgets the attention factor."""
    if x.ndim > 1 and x.shape[-2] and x.shape[-2] % 256 == 0:
        spec.pop("attention_factor", None)
    return ra.apply(x, pos, **spec)


@mutant("gradient_of_one_field", library="torch")
@each
def gradient_of_many_rows_without_the_factor(x, pos, **spec):
    return with_adjoint(x, pos, spec, _without(*["attention_factor"] * (x.ndim > 1 and x.shape[-2] > 1024)))
