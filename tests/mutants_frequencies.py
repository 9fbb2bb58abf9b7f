"""Mutants whose fault shows with frequencies in an array only: see faults.py."""

import functools

import numpy as np
from faults import array_fault, mutant

import rope_array as ra
from rope_array.testing._library_target import apply_any

torch_array_fault = functools.partial(array_fault, library="torch")
jax_array_fault = functools.partial(array_fault, library="jax")


# fmt: off
# ---- the numbers of the array ----
array_fault("float64_frequencies_narrowed", "inv_freq accuracy_2e16", "inv_freq.dtype == 'float64'",
            inv_freq="inv_freq.astype('float32')")
array_fault("last_bit_of_float64_frequencies_lost", "inv_freq accuracy_int32", "inv_freq.dtype == 'float64'",
            inv_freq="np.nextafter(inv_freq, 0)")
# Computed in the dtype of x.
array_fault("frequencies_as_narrow_as_x", "accuracy_small",
            "dtype == 'float16' and abs(inv_freq).max() < 6e4", inv_freq="inv_freq.astype('float16')")
array_fault("turns_rounded_to_float32", "inv_freq accuracy_2e16",
            inv_freq="np.float64(np.float32(inv_freq / np.float64(2 * np.pi))) * (2 * np.pi)")
array_fault("turns_of_53_bits_for_float64", "inv_freq accuracy_int32 accuracy_negative", "dtype == 'float64'",
            inv_freq="inv_freq.astype('float64') / (2 * np.pi) * (2 * np.pi)")
array_fault("negative_frequencies_lose_their_sign", "inv_freq accuracy_small", inv_freq="abs(inv_freq)")
array_fault("large_frequencies_of_an_array_are_clipped", "inv_freq accuracy_small",
            inv_freq="np.clip(inv_freq, -2 * np.pi, 2 * np.pi)")
array_fault("small_frequencies_of_an_array_are_zero", "inv_freq accuracy_2e16",
            inv_freq="np.where(abs(inv_freq) < 1e-5, 0, inv_freq)")
array_fault("frequencies_of_the_first_head", "inv_freq", "inv_freq.ndim == 2", inv_freq="inv_freq[0]")
array_fault("frequencies_of_reversed_heads", "inv_freq", "inv_freq.ndim == 2", inv_freq="inv_freq[::-1]")

# ---- positions ----
array_fault("positions_of_24_bits_with_an_array", "inv_freq accuracy_2e24", "numbers.dtype.kind in 'iu'",
            pos="numbers.astype('float32').astype('int64')")
array_fault("negative_positions_lose_their_sign_with_an_array", "inv_freq accuracy_negative",
            pos="abs(numbers)")
array_fault("positions_of_32_bits_with_an_array", "accuracy_wide", "numbers.dtype == 'int64'",
            pos="numbers.astype('int32')")

# ---- caches ----
array_fault("array_of_the_first_call", "inv_freq fields_that_differ_little",
            inv_freq="kept((inv_freq.shape, inv_freq.dtype), inv_freq)")
array_fault("array_by_its_first_numbers", "fields_that_differ_little",
            inv_freq="kept((inv_freq.shape, *inv_freq.flat[:4].tolist()), inv_freq)")
array_fault("array_by_its_last_numbers", "fields_that_differ_little",
            inv_freq="kept((inv_freq.shape, *inv_freq.flat[-4:].tolist()), inv_freq)")
array_fault("array_by_its_numbers_of_float32", "inv_freq",
            inv_freq="kept((inv_freq.shape, inv_freq.astype('float32').tobytes()), inv_freq)")
array_fault("array_by_its_identity", "fields_written_in_place", inv_freq="as_first_seen(inv_freq)")
array_fault("array_is_sorted_in_place", "inputs_unchanged", before="inv_freq.sort()")

# ---- bits ----
array_fault("other_bits_than_of_numbers", "inv_freq", "dtype == 'float32' and numbers.dtype.kind in 'iu'",
            y="nudged(y, (0,) * ndim)")

# ---- gradients ----
torch_array_fault("gradient_by_rounded_frequencies", "gradient_of_fields", "fields == {'inv_freq'}",
                  gradient="adjoint(inv_freq=inv_freq.to(torch.bfloat16))")
torch_array_fault("gradient_by_the_first_head", "gradient_of_fields",
                  "fields == {'inv_freq'} and inv_freq.ndim == 2",
                  gradient="adjoint(inv_freq=inv_freq[0])")
torch_array_fault("no_gradient_with_an_array", "gradient_of_fields gradient_of_one_field",
                  y="x + (y - x).detach()")

# ---- compiled ----
jax_array_fault("traced_array_rounded", "jit jit_of_fields jit_of_gradients", "is_traced(inv_freq)",
                inv_freq="inv_freq.astype(jnp.bfloat16)")
jax_array_fault("traced_heads_alike", "jit", "is_traced(inv_freq) and inv_freq.ndim == 2",
                inv_freq="inv_freq[0]")
# fmt: on


# ---- faults of several steps ----


def by_products(x, pos, inv_freq, dtype, **spec):
    """Rotate by angles that are products in a dtype, if no field but the frequencies is given."""
    if spec or inv_freq.ndim > 1:
        return apply_any(x, pos, inv_freq=inv_freq, **spec)
    angle = np.asarray(pos, dtype)[..., None] * inv_freq.astype(dtype)
    return ra.RoPE(x.shape[-1]).rotation_from(np.cos(angle), np.sin(angle)).apply(x)


@mutant("inv_freq accuracy_small accuracy_negative", arrays=True)
def array_angles_by_a_float32_product(x, pos, **spec):
    """As most modules with learned frequencies compute them."""
    in_array = hasattr(spec.get("inv_freq"), "dtype")
    return by_products(x, pos, dtype="float32", **spec) if in_array else ra.apply(x, pos, **spec)


@mutant("inv_freq accuracy_2e24 accuracy_int32", arrays=True)
def array_angles_by_a_float64_product(x, pos, **spec):
    in_array = hasattr(spec.get("inv_freq"), "dtype")
    return by_products(x, pos, dtype="float64", **spec) if in_array else ra.apply(x, pos, **spec)


@mutant("inv_freq", library="torch:compile", arrays=True)
def compiled_array_rounded(x, pos, **spec):
    import torch

    if hasattr(spec.get("inv_freq"), "dtype") and torch.compiler.is_compiling():
        spec["inv_freq"] = spec["inv_freq"].to(torch.bfloat16)
    return apply_any(x, pos, **spec)
