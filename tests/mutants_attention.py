"""Mutants of attention's inputs: norm of each head, rotation, write into caches; see faults.py."""

from importlib import import_module

import numpy as np
from faults import inputs_mutant, nudged

from rope_array.testing._attention_definition import write_rows
from rope_array.testing._library_target import make_inputs


def changed(name, kills, change):
    """Register a mutant whose arguments are changed in place by a function of their dict."""

    def make(q, k, pos, **options):
        call = {"q": q, "k": k, "pos": pos, **options}
        change(call)
        return make_inputs(**call)

    make.__name__ = make.__qualname__ = name
    inputs_mutant(kills)(make)


# ---- the norm ----


def norm_fault(name, kills, divisor, times="w + offset"):
    """Register a mutant that divides each head x by an expression, and multiplies it by another one.

    w is its weight with the axes of x, `mean` the mean over a head, `rope` has the fields of the rope.
    """

    def heads(x, w, options):
        w = np.ones(x.shape[-1]) if w is None else w.astype(np.float64)
        w = w[:, None] if w.ndim == 2 and "seq_axis" not in options else w
        names = {
            "x": x.astype(np.float64),
            "w": w,
            "rope": options,
            "np": np,
            "mean": mean,
            "width": x.shape[-1],
        }
        names |= {"eps": options.get("eps", 1e-6), "offset": options.get("offset", 0.0)}
        return (names["x"] / eval(divisor, names) * eval(times, names)).astype(x.dtype)

    def change(call):
        if "norm" not in call or call["q"].itemsize == 2:  # heads of 16 bits would be rounded here
            return
        for name, w in zip("qk", call.pop("norm"), strict=True):
            call[name] = None if call[name] is None else heads(call[name], w, call)
        for option in {"eps", "offset", "rounding"} & call.keys():
            del call[option]

    changed(name, kills, change)


def mean(x):
    return np.mean(x, axis=-1, keepdims=True)


# fmt: off
norm_fault("eps_outside_of_the_root", "norm_options", "np.sqrt(mean(x * x)) + eps")
norm_fault("eps_of_1e_6", "norm_options", "np.sqrt(mean(x * x) + 1e-6)")
norm_fault("sum_in_place_of_the_mean", "norm_weights norm_of_widths", "np.sqrt(mean(x * x) * width + eps)")
norm_fault("offset_ignored", "norm_options", "np.sqrt(mean(x * x) + eps)", "w")
norm_fault("weight_of_the_first_head", "norm_weights", "np.sqrt(mean(x * x) + eps)",
           "offset + (w if w.ndim == 1 else w.reshape(-1, width)[0])")
norm_fault("norm_of_all_heads_together", "norm_weights",
           "np.sqrt(np.mean(x * x, axis=(1, 3), keepdims=True) + eps)")
norm_fault("norm_of_the_rotated_slice", "norm_of_slices",
           "np.sqrt(mean(x[..., : rope.get('rotary_dim') or None] ** 2) + eps)")
norm_fault("rest_is_not_normed", "norm_of_slices",
           "np.where(np.arange(width) < rope.get('rotary_dim', 999), np.sqrt(mean(x * x) + eps), w + offset)")
norm_fault("norm_of_256_features", "norm_of_widths", "np.sqrt(mean(x[..., :256] ** 2) + eps)")
norm_fault("sum_in_another_order", "norm_in_order",
           "np.sqrt(np.cumsum((x * x).astype(np.float32)[..., ::-1], -1)[..., -1:] / width + eps)")
# fmt: on


@inputs_mutant("norm_before_pairs")
def weight_after_the_rotation(q, k, pos, norm=(None,), **options):
    if norm[0] is None or norm[0].ndim == 2 or k is None:
        return make_inputs(q, k, pos, norm=None if len(norm) == 1 else norm, **options)
    ys = make_inputs(q, k, pos, norm=(None, None), **options)
    return tuple((y * w).astype(y.dtype) for y, w in zip(ys[:2], norm, strict=True))


def exchange_weights(call):
    if "norm" in call and call["k"] is not None and np.ndim(call["norm"][0]) < 2:
        call["norm"] = call["norm"][::-1]


changed("weights_exchanged", "norm_weights", exchange_weights)
changed("rounding_ignored", "norm_rounding", lambda call: call.pop("rounding", None))
changed(
    "steps_rounded_once",
    "norm_rounding",
    lambda call: call.update(rounding="norm") if "rounding" in call else 0,
)


@inputs_mutant("gradients_of_inputs", "torch")
def root_is_constant(q, k, pos, norm=None, **options):
    """Compute the norm by operations of PyTorch, in which the root has no gradient."""
    eps, offset = options.pop("eps", 1e-6), options.pop("offset", 0.0)
    return make_inputs(
        *(_torch_heads(*pair, eps, offset, options) for pair in zip((q, k), norm, strict=True)),
        pos,
        **options,
    )


def _torch_heads(x, w, eps, offset, options):
    torch = import_module("torch")
    w = w[:, None] if w.ndim == 2 and "seq_axis" not in options else w
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps).detach() * (w + offset)


# ---- results ----


@inputs_mutant("inputs_in_parts")
def other_bits_in_a_batch(q, k, pos, **options):
    y, *rest = make_inputs(q, k, pos, **options)
    return (nudged(y) if len(q) > 1 else y, *rest)


@inputs_mutant("inputs_rotated")
def k_is_written_without_out(q, k, pos, **options):
    y, y_k, *rest = make_inputs(q, k, pos, **options)
    if k is not None:
        k[...] = y_k
    return (y, y_k, *rest)


changed("out_ignored", "inputs_in_place", lambda call: call.pop("out", None))


# ---- caches ----


def slots_fault(name, kills, change):
    """Register a mutant with slots changed by a function of them."""

    def changed_slots(call):
        if "slots" in call:
            call["slots"] = np.asarray(change(call["slots"]), call["slots"].dtype)

    changed(name, kills, changed_slots)


def first_of_each(slots):
    """Return slots, with -1 for a token whose slot an earlier token has."""
    first = np.unique(slots, return_index=True)[1]
    return np.where(np.isin(np.arange(slots.size), first).reshape(slots.shape), slots, -1)


# fmt: off
# Negative indices count from the end.
slots_fault("slot_below_0_is_the_last", "cache_slots",
            lambda slots: np.where(slots < 0, 2 * slots.size - 1, slots))
# vllm #46685, FlagGems #5143: two stores to one slot without order.
slots_fault("first_token_is_kept", "cache_slots", first_of_each)
slots_fault("slots_of_the_first_batch", "cache_layouts",
            lambda slots: slots if slots.ndim < 2 else slots * 0 + slots[:1])
slots_fault("page_and_row_exchanged", "cache_layouts",
            lambda slots: (slots % 4 * 4 + slots // 4) % (2 * slots.size))
# linkedin/Liger-Kernel #1335: offsets in too few bits.
slots_fault("slots_of_8_bits", "cache_slots", lambda slots: slots.astype(np.int8))
# fmt: on


def cache_fault(name, kills, fault):
    """Register a mutant that changes the caches after a call, by copies of before and the result of k."""

    def make(q, k, pos, **options):
        before = [cache if cache is None else cache.copy() for cache in options.get("cache", ())]
        result = make_inputs(q, k, pos, **options)
        if before:
            fault(result[2], before, {"y": result[1], "k": k, **options})
        return result

    make.__name__ = make.__qualname__ = name
    inputs_mutant(kills)(make)


def rows_fault(name, kills, rows):
    """Register a mutant that writes other rows of k, a function of y, k and the scale."""

    def write(caches, before, call):
        scale = call.get("scales", (1.0,))[0]
        if (values := rows(call["y"], call["k"], scale)) is not None:
            rest = call["slots"], call.get("seq_axis", -2), call["cache_seq_axis"]
            write_rows(caches[0], values.astype(caches[0].dtype), *rest)

    cache_fault(name, kills, write)


def rest_is_left_out(caches, before, call):
    rest = np.s_[..., call.get("rotary_dim", 999) :]
    caches[0][rest] = before[0][rest]


def v_is_left_out(caches, before, call):
    if caches[1] is not None:
        caches[1][...] = before[1]


def features_beyond_k_are_left_out(caches, before, call):
    if caches[1] is not None:
        rest = np.s_[..., call["k"].shape[-1] :]
        caches[1][rest] = before[1][rest]


def block_before_is_written(caches, before, call):
    if caches[0].base is not None:
        caches[0].base[0] = 0


def multiply_by_scales(call):
    if "scales" in call:
        call["scales"] = tuple(1 / scale for scale in call["scales"])


def wrapped(y, k, scale):
    return None if scale == 1.0 else np.round(y / scale).astype(np.int64)


# sglang #22868.
cache_fault("rest_is_not_cached", "cache_layouts", rest_is_left_out)
cache_fault("v_is_not_cached", "cache_layouts cache_of_v", v_is_left_out)
cache_fault("v_is_as_wide_as_k", "cache_of_v", features_beyond_k_are_left_out)
cache_fault("block_before_the_cache_is_written", "cache_in_pools", block_before_is_written)
rows_fault("k_is_cached_unrotated", "cache_layouts", lambda y, k, scale: k)
rows_fault("k_is_rounded_twice", "cache_dtypes", lambda y, k, scale: y)
rows_fault("numbers_of_int8_wrap", "cache_quantised", wrapped)
changed("multiplied_by_scales", "cache_quantised", multiply_by_scales)
