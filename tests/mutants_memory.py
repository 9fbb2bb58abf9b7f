"""Mutants of memory, state and plain sizes: see mutants.py."""

import time
import weakref
from importlib import import_module

import numpy as np
from mutants import each, mutant, whole

import rope_array as ra

_STATE = {}


def at_rest(y, x, where):
    """Leave some elements unrotated."""
    y[where] = x[where]
    return y


# ---- the first call ----


@mutant("first_call")
@each
def first_call_of_a_dtype_doubled(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    seen = _STATE.setdefault("dtypes", set())
    if x.dtype.name not in seen:
        seen.add(x.dtype.name)
        y *= 2
    return y


@mutant("first_call")
def first_call_of_all_is_not_rotated(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if not _STATE.setdefault("called", False) and whole(x).size:
        _STATE["called"] = True
        return x.copy()
    return y


# ---- memory of x and positions ----


@mutant("tuples_unchanged", "tuples_of_any_length")
def second_of_two_rotated_in_place(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if isinstance(x, tuple) and len(x) == 2 and x[1].flags.writeable:
        x[1][...] = y[1]
    return y


@mutant("inputs_unchanged")
@each
def large_x_rotated_in_place(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if y.ndim == 4 and y.shape[2] > 128 and x.flags.writeable:
        x[...] = y
    return y


@mutant("positions_unchanged")
def positions_of_many_rows_sorted_in_place(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if _array_of(pos, 1) and pos.size > 40 and pos.flags.writeable:
        pos.sort()
    return y


@mutant("neighbours_unchanged")
@each
def rows_behind_a_matrix_are_written(x, pos, **spec):
    """Pad to a multiple of 8 rows, in place."""
    y, whole_x = ra.apply(x, pos, **spec), x.base
    if x.ndim == 2 and isinstance(whole_x, np.ndarray) and whole_x.shape[1:] == x.shape[1:]:
        whole_x[len(x) :] = 0 if np.shares_memory(whole_x[: len(x)], x) else whole_x[len(x) :]
    return y


@mutant("strides", "same_bits_of_strides")
@each
def every_second_feature_misread(x, pos, **spec):
    if x.ndim == 4 and x.strides[-1] == 2 * x.itemsize:
        x = np.lib.stride_tricks.as_strided(x, x.shape, (*x.strides[:-1], x.itemsize))
    return ra.apply(x, pos, **spec)


@mutant("positions_transposed")
def positions_in_memory_order(x, pos, **spec):
    if _array_of(pos, 2) and pos.flags.f_contiguous and not pos.flags.c_contiguous:
        pos = pos.ravel("K").reshape(pos.shape)
    return ra.apply(x, pos, **spec)


@mutant("positions_reversed")
def every_third_position_misread(x, pos, **spec):
    if _array_of(pos, 1) and pos.strides[0] == 3 * pos.itemsize:
        pos = pos[0] + np.arange(pos.size)
    return ra.apply(x, pos, **spec)


@mutant("storage_offsets")
@each
def reads_aligned_memory(x, pos, **spec):
    """Read from the last multiple of 16 bytes, as an aligned load does."""
    address = x.ctypes.data
    if x.flags.c_contiguous and address % x.itemsize == 0 and address % 16:
        x = np.roll(x, 1)
    return ra.apply(x, pos, **spec)


def _array_of(pos, ndim):
    return isinstance(pos, np.ndarray) and pos.ndim == ndim and pos.size > 1


@mutant("storage_offsets_of_positions")
def positions_from_the_start_of_memory(x, pos, **spec):
    if _array_of(pos, 1) and pos.base is not None and pos.flags.c_contiguous and pos.base.dtype == pos.dtype:
        pos = pos.base.ravel()[: pos.size]
    return ra.apply(x, pos, **spec)


@mutant("positions_reversed")
def negative_strides_misread(x, pos, **spec):
    return ra.apply(x, pos[::-1] if _array_of(pos, 1) and pos.strides[0] < 0 else pos, **spec)


@mutant("positions_transposed")
def transposed_positions_misread(x, pos, **spec):
    if _array_of(pos, 2) and 0 < pos.strides[0] < pos.strides[1] and pos.shape[0] > 1:
        pos = np.ascontiguousarray(pos[:1]) + 0 * pos
    return ra.apply(x, pos, **spec)


@mutant("positions_expanded")
def strides_of_zero_misread(x, pos, **spec):
    zero = isinstance(pos, np.ndarray) and any(
        s == 0 and n > 1 for s, n in zip(pos.strides, pos.shape, strict=True)
    )
    return ra.apply(x, np.zeros_like(pos) if zero else pos, **spec)


# ---- memory of results ----


_WEAK = weakref.WeakValueDictionary()


@mutant("results_may_be_written")
@each
def result_is_the_cached_one(x, pos, **spec):
    """Keep the first result for equal calls; return copies to later ones."""
    key = x.tobytes(), x.shape, str(x.dtype), repr(pos), repr(spec)
    if (kept := _WEAK.get(key)) is not None:
        return kept.copy()
    y = ra.apply(x, pos, **spec)
    _WEAK[key] = y
    return y


@mutant("results_are_writable")
@each
def result_is_read_only(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    y.flags.writeable = False
    return y


@mutant("results_without_overlap")
@each
def result_in_the_strides_of_x(x, pos, **spec):
    """The results of equal heads share their memory."""
    y = ra.apply(x, pos, **spec)
    if x.ndim != 4 or np.ndim(pos) > 1 or x.strides[:2] != (0, 0):
        return y
    return np.lib.stride_tricks.as_strided(y, strides=(0, 0, *y.strides[2:]))


def _in_a_ring(y, count):
    """Return a view of the next of `count` buffers."""
    ring = _STATE.setdefault((count, y.shape, y.dtype), [])
    ring.append(ring.pop(0) if len(ring) == count else np.empty_like(y))
    ring[-1][...] = y
    return ring[-1][...]


@mutant("many_results_are_kept")
@each
def ring_of_results(x, pos, **spec):
    return _in_a_ring(ra.apply(x, pos, **spec), 250)


@mutant("large_results_are_kept")
@each
def buffer_of_large_results(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return _in_a_ring(y, 1) if y.nbytes > 2**20 else y


@mutant("large_results_are_kept")
@each
def buffer_of_very_large_results(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return _in_a_ring(y, 2) if y.nbytes > 2**23 else y


@mutant("x_is_released")
@each
def x_is_kept(x, pos, **spec):
    _STATE["x"] = x
    return ra.apply(x, pos, **spec)


@mutant("x_is_released", library="torch")
@each
def view_of_x_is_kept(x, pos, **spec):
    _STATE["view"] = x.detach()[..., ::2]
    return ra.apply(x, pos, **spec)


@mutant("memory_does_not_grow")
@each
def scratch_is_kept(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    _STATE.setdefault("scratch", []).append(y.copy())
    return y


# ---- state ----


@mutant("short_calls_after_a_long_one")
@each
def positions_of_a_long_call_kept(x, pos, **spec):
    if x.ndim != 4 or not _array_of(pos, 1):
        return ra.apply(x, pos, **spec)
    key = "long", x.shape[:2], x.shape[3], pos.dtype
    if len(pos) > 1000:
        _STATE[key] = pos.copy()
    elif len(pos) <= 40 and key in _STATE:
        pos = _STATE[key][: len(pos)]
    return ra.apply(x, pos, **spec)


@mutant("calls_far_and_near")
def table_that_grows_is_not_filled(x, pos, **spec):
    """A table that has grown starts at the far position's row."""
    key = "far", np.shape(whole(x))
    if _array_of(pos, 1) and pos.dtype.kind == "i" and whole(x).ndim == 4 and len(pos) == 4:
        if pos.max() > 4000:
            _STATE[key] = True
        elif key in _STATE and pos.min() >= 0:
            pos = pos + 1
    return ra.apply(x, pos, **spec)


@mutant("fields_written_in_place")
def frequencies_are_kept_by_their_place(x, pos, **spec):
    if isinstance(spec.get("inv_freq"), list):
        kept, given = _STATE.setdefault("frequencies", {}), spec["inv_freq"]
        spec["inv_freq"] = kept.setdefault(id(given), (given, tuple(given)))[1]
    return ra.apply(x, pos, **spec)


@mutant("dtypes_in_turn")
@each
def table_narrowed_in_place(x, pos, **spec):
    """A batch of one keeps its table; it is made again for a new dtype, and rounded to narrower ones."""
    if x.ndim != 4 or x.shape[0] > 1:
        return ra.apply(x, pos, **spec)
    seen, now = _STATE.setdefault((x.shape, repr(pos), repr(spec)), (set(), [x.dtype]))
    if x.dtype not in seen or x.dtype.itemsize < now[0].itemsize:
        now[0] = x.dtype
    seen.add(x.dtype)
    return ra.apply(x.astype(now[0]), pos, **spec).astype(x.dtype)


@mutant("calls_at_positions_of_like_bits")
def cache_keyed_by_bits(x, pos, **spec):
    if not _array_of(pos, 1):
        return ra.apply(x, pos, **spec)
    return ra.apply(x, _STATE.setdefault((pos.tobytes(), pos.shape), pos.copy()), **spec)


@mutant("calls_after_an_exception")
@each
def inverse_stays_after_an_exception(x, pos, **spec):
    """Set a flag for the call; an exception leaves it set."""
    _STATE["inverse"] = spec.pop("inverse", False) or _STATE.get("inverse", False)
    y = ra.apply(x, pos, inverse=_STATE["inverse"], **spec)
    _STATE["inverse"] = False
    return y


@mutant("calls_after_an_exception")
def busy_after_an_exception(x, pos, **spec):
    if _STATE.pop("busy", False):
        pos = np.zeros_like(pos)
    _STATE["busy"] = True
    y = ra.apply(x, pos, **spec)
    _STATE["busy"] = False
    return y


@mutant("calls_after_an_exception")
def error_handling_after_an_exception(x, pos, **spec):
    old = np.seterr(all="ignore")
    y = ra.apply(x, pos, **spec)
    np.seterr(**old)
    return y


@mutant("settings_unchanged")
def print_options_changed(x, pos, **spec):
    np.set_printoptions(precision=8)
    return ra.apply(x, pos, **spec)


@mutant("settings_unchanged")
def buffers_of_large_strided_arrays(x, pos, **spec):
    if whole(x).size > 2**14 and not whole(x).flags.c_contiguous:
        np.setbufsize(2**16)
    return ra.apply(x, pos, **spec)


@mutant("settings_unchanged")
def standard_error_with_a_field(x, pos, **spec):
    if "rotary_start" in spec:
        np.seterr(divide="raise")
    return ra.apply(x, pos, **spec)


@mutant("first_calls_under_other_settings")
def bases_by_the_decimals_of_the_caller(x, pos, **spec):
    if "base" in spec:
        bases, base = _STATE.setdefault("bases", {}), spec["base"]
        if base not in bases:
            bases[base] = float(import_module("decimal").Decimal(base).ln().exp())
        spec["base"] = bases[base]
    return ra.apply(x, pos, **spec)


@mutant("settings_unchanged")
def warnings_ignored(x, pos, **spec):
    import_module("warnings").filterwarnings("ignore", message="overflow")
    return ra.apply(x, pos, **spec)


@mutant("settings_unchanged")
def garbage_is_not_collected(x, pos, **spec):
    import_module("gc").disable()
    return ra.apply(x, pos, **spec)


@mutant("settings_unchanged")
def environment_changed(x, pos, **spec):
    import_module("os").environ["ROTATED"] = "1"
    return ra.apply(x, pos, **spec)


@mutant("threads_of_many_positions")
def two_positions_are_kept(x, pos, **spec):
    """Keep two, for calls without fields; another thread may remove either before it is read."""
    if spec or not _array_of(pos, 1):
        return ra.apply(x, pos, **spec)
    cache, key = _STATE.setdefault("two", {}), (pos.tobytes(), pos.dtype)
    if key not in cache:
        if len(cache) >= 2:
            cache.pop(next(iter([*cache])), None)
        cache[key] = pos.copy()
    time.sleep(2e-5)  # let another thread run
    return ra.apply(x, cache[key], **spec)


@mutant("threads_of_large_calls")
@each
def scratch_of_large_calls(x, pos, **spec):
    if x.size < 10_000:
        return ra.apply(x, pos, **spec)
    scratch = _STATE.setdefault(("scratch", x.shape, x.dtype), np.empty_like(x))
    scratch[...] = x
    time.sleep(1e-4)  # let another thread run
    return ra.apply(scratch, pos, **spec)


@mutant("threads_of_large_calls")
@each
def scratch_of_large_calls_in_16_bits(x, pos, **spec):
    return scratch_of_large_calls(x, pos, **spec) if x.itemsize == 2 else ra.apply(x, pos, **spec)


@mutant("threads_while_tables_grow")
@each
def table_published_before_it_is_filled(x, pos, **spec):
    """Keep a table of the positions so far, where calls take the rows of their positions."""
    if set(spec) - {"base"} or not _array_of(pos, 1) or not pos.size or pos.min() < 0 or pos.max() > 2**16:
        return ra.apply(x, pos, **spec)
    tables, key = _STATE.setdefault("tables", {}), (x.shape[-1], *spec.values())
    if key not in tables or len(tables[key]) <= pos.max():
        tables[key] = np.zeros(int(pos.max()) + 1, np.int64)
        time.sleep(1e-4)  # let another thread run
        tables[key][:] = np.arange(len(tables[key]))
    return ra.apply(x, tables[key][pos], **spec)


@mutant("threads_of_different_calls")
def fields_in_one_place(x, pos, **spec):
    _STATE["spec"] = spec
    time.sleep(1e-4)  # let another thread run
    return ra.apply(x, pos, **_STATE["spec"])


# ---- sizes ----


@mutant("many_heads")
@each
def only_64_heads(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return at_rest(y, x, np.s_[:, 64:]) if y.ndim == 4 else y


@mutant("many_batches")
@each
def only_32_batches(x, pos, **spec):
    return at_rest(ra.apply(x, pos, **spec), x, np.s_[32:] if x.ndim == 4 else np.s_[:0])


@mutant("batches_times_heads")
@each
def grid_of_65535(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if y.ndim == 4 and y.size:
        y.reshape(-1, *y.shape[2:])[65535:] = x.reshape(-1, *y.shape[2:])[65535:]
    return y


@mutant("many_rows", "many_elements")
@each
def float16_of_512_rows(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return at_rest(y, x, np.s_[..., 512:, :]) if x.dtype == np.float16 and y.ndim == 4 else y


@mutant("long_sequences_from_an_offset")
def long_sequences_start_at_0(x, pos, **spec):
    if _array_of(pos, 1) and len(pos) > 2048 and (np.diff(pos) == 1).all():
        pos = np.arange(len(pos))
    return ra.apply(x, pos, **spec)


@mutant("positions_of_a_long_batch")
def long_batch_by_the_first(x, pos, **spec):
    return ra.apply(x, pos[:1] if _array_of(pos, 2) and pos.shape[1] > 2048 else pos, **spec)


@mutant("positions_of_many_batches")
def positions_of_256_batches(x, pos, **spec):
    if _array_of(pos, 2) and len(pos) > 256:
        pos = pos.copy()
        pos[256:] = pos[0]
    return ra.apply(x, pos, **spec)


@mutant("positions_of_many_batches")
def tokens_counted_in_16_bits(x, pos, **spec):
    if _array_of(pos, 2):
        pos = pos.ravel()[np.arange(pos.size).astype(np.uint16)].reshape(pos.shape)
    return ra.apply(x, pos, **spec)


@mutant("no_aliasing")
@each
def first_token_returned(x, pos, **spec):
    """Return x where nothing is rotated: one row, at position 0."""
    nothing = _zero(pos) and x.shape[-2:-1] == (1,) and not spec.keys() & {"out_pairing", "attention_factor"}
    return x if nothing and "scaling" not in spec else ra.apply(x, pos, **spec)


def _zero(pos):
    return isinstance(pos, np.ndarray) and pos.shape == (1,) and not pos.any()


@mutant("widths_of_each_dtype")
@each
def float16_of_64_features(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return at_rest(y, x, np.s_[..., 64:]) if x.dtype == np.float16 else y


@mutant("rotary_dims_of_models")
@each
def rotary_dim_rounded_to_a_power_of_two(x, pos, **spec):
    y, width = ra.apply(x, pos, **spec), spec.get("rotary_dim") or 0
    return at_rest(y, x, np.s_[..., 2 ** (width.bit_length() - 1) :]) if width > 16 else y


@mutant("many_elements")
@each
def float16_of_2_20_elements(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return at_rest(y, x, np.s_[..., -1, :]) if x.dtype == np.float16 and y.size > 2**20 else y


@mutant("fields_and_many_elements")
@each
def chunks_of_whole_rows_in_float16(x, pos, **spec):
    y, width = ra.apply(x, pos, **spec), x.shape[-1]
    return (
        at_rest(y, x, np.s_[..., -1, :]) if x.itemsize == 2 and x.size > 2**14 and width & (width - 1) else y
    )


@mutant("fields_and_many_elements")
@each
def adjoint_for_the_inverse_of_2_18_elements(x, pos, **spec):
    y, factor = ra.apply(x, pos, **spec), spec.get("attention_factor")
    return y * (factor or 1.0) if x.size > 2**18 and spec.get("inverse") else y


@mutant("one_field_and_many_elements")
@each
def amplitude_of_2_17_elements_ignored(x, pos, **spec):
    if x.size > 2**17:
        spec.pop("attention_factor", None)
    return ra.apply(x, pos, **spec)


# ---- caches, scratch memory and what calls leave to the caller ----


@mutant("calls_at_like_positions")
def batches_of_the_first_and_last(x, pos, **spec):
    """Read (B, S) positions whose first and last rows are equal as if all rows were."""
    if _array_of(pos, 2) and "axes" not in spec and (pos[0] == pos[-1]).all():
        pos = np.repeat(pos[:1], len(pos), 0)
    return ra.apply(x, pos, **spec)


@mutant("calls_at_like_positions")
def found_by_three_positions(x, pos, **spec):
    """Keep positions by shape, and by the first, the middle and the last one."""
    if _array_of(pos, 1) and "axes" not in spec:
        kept = _STATE.setdefault("by three positions", {})
        pos = kept.setdefault((pos[0], pos[len(pos) // 2], pos[-1], pos.shape, pos.dtype), pos.copy())
    return ra.apply(x, pos, **spec)


@mutant("calls_that_differ_in_one_thing")
@each
def direction_of_the_last_call(x, pos, **spec):
    """Keep the last call's fields for a call of the same shape, dtype, positions and other fields."""
    others = {name: value for name, value in spec.items() if name != "inverse"}
    key = (x.shape, x.dtype, repr(pos), repr(others))
    if _STATE.get("last key") == key:
        spec = _STATE["last spec"]
    _STATE.update({"last key": key, "last spec": spec})
    return ra.apply(x, pos, **spec)


@mutant("calls_at_many_positions")
def table_of_128_rows(x, pos, **spec):
    """Keep 128 rows of positions; the last is used for all that come later."""
    if _array_of(pos, 1) and len(pos) == 2:
        kept = _STATE.setdefault("rows", {})
        key = (*pos, pos.dtype)
        if len(kept) < 128 or key in kept:
            pos = kept.setdefault(key, pos.copy())
        else:
            pos = list(kept.values())[-1].astype(pos.dtype)
    return ra.apply(x, pos, **spec)


@mutant("threads_of_each_field")
@each
def scratch_of_the_inverse(x, pos, **spec):
    """Copy positions of an inverse rotation to memory that all threads share."""
    if spec.get("inverse") and _array_of(pos, 1):
        shared = _STATE.setdefault("scratch", {}).setdefault((pos.shape, pos.dtype), pos.copy())
        shared[...] = pos
        time.sleep(1e-5)  # another thread runs
        pos = shared
    return ra.apply(x, pos, **spec)


@mutant("combinations", "widths_and_positions")
@each
def x_at_positions_of_a_batch_kept(x, pos, **spec):
    if _array_of(pos, 2):
        _STATE["x of a batch"] = x
    return ra.apply(x, pos, **spec)


@mutant("positions_unchanged")
def positions_of_a_batch_reshaped_in_place(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if _array_of(pos, 2) and pos.flags.c_contiguous and pos.flags.owndata and "axes" not in spec:
        pos.shape = (len(pos), 1, -1)
    return y


# ---- calls with one field ----


@mutant("many_results_are_kept")
@each
def ring_of_four_results_of_the_inverse(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    if not spec.get("inverse"):
        return y
    ring = _STATE.setdefault(("ring", y.shape, y.dtype), [np.empty_like(y) for _ in range(4)])
    ring.append(ring.pop(0))
    ring[0][...] = y
    return ring[0]


@mutant("positions_written_in_place")
def half_pairs_by_the_address_of_positions(x, pos, **spec):
    """Keep the positions of the latest array: positions that advance in place are read once only."""
    if spec.get("pairing") == "half" and isinstance(pos, np.ndarray) and pos.shape == (5,):
        kept = _STATE.setdefault("address", [None, None])
        if kept[0] is not pos:
            kept[:] = pos, pos.copy()
        pos = kept[1]
    return ra.apply(x, pos, **spec)


@mutant("positions_of_many_batches")
def rows_of_positions_by_an_index_of_8_bits(x, pos, **spec):
    """Share equal rows of positions; the index of a row wraps beyond 256 rows."""
    if _array_of(pos, 2) and len(pos) > 256 and "axes" not in spec:
        rows, index = np.unique(pos, axis=0, return_inverse=True)
        pos = rows[index.reshape(-1).astype(np.uint8)]
    return ra.apply(x, pos, **spec)


@mutant("strides", "strides_and_fields")
@each
def heads_of_a_fused_projection_misread(x, pos, **spec):
    """Read (B, S, H, D) that was transposed as if its rows followed each other."""
    rows, heads = x.shape[-2:0:-1] if x.ndim == 4 else (0, 0)
    size = x.shape[-1] * x.itemsize
    if x.ndim == 4 and min(rows, heads) > 1 and x.strides[-2] > heads * size and x.strides[1] == size:
        x = np.lib.stride_tricks.as_strided(x, x.shape, (*x.strides[:2], heads * size, x.itemsize))
    return ra.apply(x, pos, **spec)


@mutant("strides_of_positions")
def positions_in_the_other_byte_order_misread(x, pos, **spec):
    if isinstance(pos, np.ndarray) and pos.dtype.kind in "iu" and not pos.dtype.isnative:
        pos = pos.view(pos.dtype.newbyteorder())
    return ra.apply(x, pos, **spec)


@mutant("positions_of_narrow_dtypes")
@each
def narrow_positions_of_batches_subtracted(x, pos, **spec):
    """Subtract the least position in the dtype of positions, as for an index of a table."""
    if _array_of(pos, 2) and pos.size and pos.dtype.kind == "i" and "axes" not in spec:
        pos = (pos - pos.min()).astype(np.int64) + int(pos.min())
    return ra.apply(x, pos, **spec)


@mutant("fields_that_differ_little")
@each
def cache_of_whole_bases(x, pos, **spec):
    if "base" in spec:
        spec["base"] = _STATE.setdefault(("base", int(spec["base"])), spec["base"])
    return ra.apply(x, pos, **spec)


@mutant("fields_that_differ_little")
@each
def cache_of_the_first_frequencies(x, pos, **spec):
    if spec.get("inv_freq") is not None:
        key = "inv_freq", x.shape[-1], *spec["inv_freq"][:4]
        spec["inv_freq"] = _STATE.setdefault(key, spec["inv_freq"])
    return ra.apply(x, pos, **spec)


@mutant("calls_at_like_positions")
def long_positions_by_their_ends(x, pos, **spec):
    """Take 64 positions or more for a range, if the first step and the last position fit."""
    if _array_of(pos, 1) and pos.size >= 64 and pos[-1] - pos[0] == (pos[1] - pos[0]) * (pos.size - 1):
        pos = pos[0] + (pos[1] - pos[0]) * np.arange(pos.size)
    return ra.apply(x, pos, **spec)


@mutant("more_positions_than_2e16")
def different_positions_by_an_index_of_16_bits(x, pos, **spec):
    if _array_of(pos, 1):
        different, index = np.unique(pos, return_inverse=True)
        pos = different[index.astype(np.uint16)]
    return ra.apply(x, pos, **spec)


@mutant("more_positions_than_2e16")
def different_positions_of_a_batch_by_an_index_of_16_bits(x, pos, **spec):
    if _array_of(pos, 2):
        different, index = np.unique(pos, return_inverse=True)
        pos = different[index.astype(np.int16).reshape(pos.shape)]
    return ra.apply(x, pos, **spec)


@mutant("positions_of_python")
@each
def python_numbers_in_the_dtype_of_x(x, pos, **spec):
    if isinstance(pos, int | range | list | tuple) and x.itemsize == 2:
        pos = np.asarray(pos).astype(x.dtype).astype(np.float64).astype(np.int64)
    return ra.apply(x, pos, **spec)


@mutant("positions_of_their_own", "positions_of_a_batch")
@each
def table_as_long_as_the_last_position(x, pos, **spec):
    """Clip positions to a table of 4,096 rows, or as many as the last of each row needs."""
    if isinstance(pos, np.ndarray) and 1 <= pos.ndim <= 2 and pos.size and "axes" not in spec:
        last = int(pos[..., -1].max())
        pos = np.minimum(pos, max(4095, last)) if pos.min() >= 0 else pos
    return ra.apply(x, pos, **spec)


@mutant("calls_after_an_exception")
def error_handling_after_an_odd_slice(x, pos, **spec):
    old = np.seterr(all="ignore")
    try:
        y = ra.apply(x, pos, **spec)
    except Exception:
        if spec.get("rotary_dim", 0) % 2 == 0:
            np.seterr(**old)
        raise
    np.seterr(**old)
    return y


@mutant("one_field_and_many_elements")
@each
def last_rows_of_another_axis(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    large = x.size > 2**17 and spec.get("seq_axis", -2) in (1, -3) and x.ndim == 4
    return at_rest(y, x, np.s_[:, -1]) if large else y


@mutant("tuples")
def second_of_two_large_arrays_as_it_is(x, pos, **spec):
    y = ra.apply(x, pos, **spec)
    return (y[0], x[1].copy()) if isinstance(x, tuple) and x[0].size > 2**17 else y


@mutant("positions_of_a_long_batch")
@each
def float16_at_the_first_positions_of_a_long_batch(x, pos, **spec):
    if _array_of(pos, 2) and pos.shape[1] > 4096 and x.dtype == np.float16:
        pos = pos[:1]
    return ra.apply(x, pos, **spec)


@mutant("fields_and_many_elements")
@each
def transposed_x_of_2_16_elements_written_to_a_copy(x, pos, **spec):
    """Write heads through a reshape of the result, which copies where x is transposed."""
    y = ra.apply(x, pos, **spec)
    transposed = x.ndim == 4 and x.strides[1] < x.strides[2] and 1 not in x.shape
    return np.zeros_like(y) if x.size > 2**16 and transposed else y


@mutant("fields_and_many_elements")
@each
def inverse_of_2_17_float64_elements_in_float32(x, pos, **spec):
    if x.dtype == np.float64 and x.size > 2**17 and spec.get("inverse"):
        return ra.apply(x.astype(np.float32), pos, **spec).astype(np.float64)
    return ra.apply(x, pos, **spec)


@mutant("tuples")
def tables_of_heads_cut_to_the_heads_of_k(x, pos, **spec):
    """Repeat each batch's table for each head of q, and rotate k by the first of these tables."""
    y = ra.apply(x, pos, **spec)
    if isinstance(x, tuple) and _array_of(pos, 2) and "axes" not in spec and x[-1].shape[1] < x[0].shape[1]:
        rows = np.repeat(pos, x[0].shape[1], 0)[: len(pos) * x[-1].shape[1]]
        y = (*y[:-1], ra.apply(x[-1], rows.reshape(len(pos), -1, pos.shape[1]), **spec))
    return y


@mutant("calls_far_and_near")
@each
def rows_of_a_table_that_grew_at_both_ends(x, pos, **spec):
    """Keep the old row of position 0 when a table grows below and above in one call."""
    key = (x.shape[-1], spec.get("base"))
    low, high = _STATE.setdefault("ends", {}).get(key, (0, 64))
    if not _array_of(pos, 1) or "axes" in spec or not pos.size:
        return ra.apply(x, pos, **spec)
    least, most = int(pos.min()), int(pos.max())
    _STATE["ends"][key] = min(low, least), max(high, most)
    return ra.apply(x, pos - (low - least) if least < low and most > high else pos, **spec)


@mutant("widths_and_positions")
@each
def constant_rows_of_a_batch_read_as_the_first(x, pos, **spec):
    """Use the first batch's positions for all if each row repeats one number, in calls with a base."""
    rows = _array_of(pos, 2) and pos.shape[1] > 1 and "axes" not in spec and "base" in spec
    if rows and (pos == pos[:, :1]).all():
        pos = pos[:1]
    return ra.apply(x, pos, **spec)
