"""Mutants of memory, state and plain sizes: see faults.py."""

import time
import weakref

import numpy as np
from faults import each, fault, mutant, torch_fault

import rope_array as ra

_STATE = {}


# fmt: off
# ---- the first call ----

fault("first_call_of_a_dtype_doubled", "first(dtype)", y="y * 2", kills="first_call")
fault("first_call_of_all_is_not_rotated", "x.size and first('call')", y="x.copy()", kills="first_call")

# ---- memory of x ----

fault("second_of_two_rotated_in_place", "isinstance(x, tuple) and len(x) == 2 and x[1].flags.writeable",
      whole=True, after="write(x[1], y[1])", kills="inputs_unchanged")
fault("large_x_rotated_in_place", "ndim == 4 and rows > 128 and x.flags.writeable", after="write(x, y)",
      kills="inputs_unchanged")
fault("memory_beside_x_cleared", "x.base is not None and x.base.flags.writeable",
      after="write(x.base.reshape(-1)[:1], 0)", kills="neighbours_unchanged")
fault("broadcast_misread", "0 in x.strides and x.size", x="np.zeros_like(x)", kills="memory")
fault("every_second_feature_misread", "ndim == 4 and x.strides[-1] == 2 * x.itemsize",
      x="with_strides(x, *x.strides[:-1], x.itemsize)", kills="memory same_bits")
# Read (B, S, H, D) that was transposed as if its rows followed each other.
fault("heads_of_a_fused_projection_misread",
      "min(rows, heads) > 1 and x.strides[1] == width * x.itemsize and x.strides[2] > heads * x.strides[1]",
      x="with_strides(x, *x.strides[:2], heads * x.strides[1], x.itemsize)",
      kills="memory")
# Read from the last multiple of 16 bytes, as an aligned load does.
fault("reads_aligned_memory",
      "x.flags.c_contiguous and x.ctypes.data % x.itemsize == 0 and x.ctypes.data % 16", x="np.roll(x, 1)",
      kills="memory")
# Write heads through a reshape of the result, which copies where x is transposed.
fault("transposed_x_of_2_16_elements_written_to_a_copy",
      "x.size > 2**16 and ndim == 4 and x.strides[1] < x.strides[2] and 1 not in x.shape",
      y="np.zeros_like(y)", kills="fields_and_many_elements")
fault("x_is_kept", before="state.update(x=x)", kills="x_is_released")
torch_fault("view_of_x_is_kept", before="state.update(view=x.detach()[..., ::2])", kills="x_is_released")
fault("x_at_positions_of_a_batch_kept", "pos_is_batch", before="state.update(x=x)",
      kills="x_is_released")

# ---- memory of positions ----

fault("positions_of_a_batch_written", "pos_is_array and pos.ndim == 2", whole=True,
      after="write(pos, pos - pos.min())", kills="inputs_unchanged")
fault("positions_of_many_rows_sorted_in_place", "pos_is_row and pos.size > 40 and pos.flags.writeable",
      whole=True, after="pos.sort()", kills="inputs_unchanged")
fault("positions_of_a_batch_reshaped_in_place",
      "pos_is_batch and pos.flags.c_contiguous and pos.flags.owndata and axes is None", whole=True,
      after="setattr(pos, 'shape', (len(pos), 1, -1))", kills="inputs_unchanged")
fault("positions_in_memory_order", "pos_is_batch and pos.flags.f_contiguous and not pos.flags.c_contiguous",
      pos="in_memory_order(pos)", kills="strides_of_positions")
fault("transposed_positions_misread", "pos_is_batch and 0 < pos.strides[0] < pos.strides[1] and len(pos) > 1",
      pos="np.ascontiguousarray(pos[:1]) + 0 * pos", kills="strides_of_positions")
fault("every_third_position_misread", "pos_is_row and pos.strides[0] == 3 * pos.itemsize",
      pos="pos[0] + np.arange(pos.size)", kills="strides_of_positions")
fault("negative_strides_misread", "pos_is_row and pos.strides[0] < 0", pos="pos[::-1]",
      kills="strides_of_positions")
fault("positions_from_the_start_of_memory",
      "pos_is_row and pos.flags.c_contiguous and pos.base is not None and pos.base.dtype == pos.dtype",
      pos="pos.base.ravel()[: pos.size]", kills="strides_of_positions")
fault("x_broadcast_along_rows_misread", "ndim == 4 and rows > 1 and x.strides[2] == 0", leave=":, :, 1:",
      kills="memory")
fault("strides_of_zero_misread", "pos_is_array and any(np.equal(pos.strides, 0) & np.greater(pos.shape, 1))",
      pos="np.zeros_like(pos)", kills="strides_of_positions")
fault("positions_in_the_other_byte_order_misread",
      "pos_is_array and pos.dtype.kind in 'iu' and not pos.dtype.isnative",
      pos="pos.view(pos.dtype.newbyteorder())", kills="strides_of_positions")

# ---- memory of results ----

fault("result_in_a_buffer", y="in_a_ring(y, 1)", kills="results_are_kept")
fault("ring_of_results", y="in_a_ring(y, 250)", kills="many_results_are_kept")
fault("ring_of_four_results_of_the_inverse", "inverse", y="in_a_ring(y, 4)", kills="many_results_are_kept")
fault("buffer_of_large_results", "y.nbytes > 2**20", y="in_a_ring(y, 1)", kills="large_results_are_kept")
fault("buffer_of_very_large_results", "y.nbytes > 2**23", y="in_a_ring(y, 2)", kills="large_results_are_kept")
fault("result_is_read_only", after="y.setflags(write=False)", kills="results_are_writable")
# The results of equal heads share their memory.
fault("result_in_the_strides_of_x", "ndim == 4 and numbers.ndim < 2 and x.strides[:2] == (0, 0)",
      y="with_strides(y, 0, 0, *y.strides[2:])", kills="results_without_overlap")
fault("scratch_is_kept", after="kept('results', []).append(y.copy())", kills="memory_does_not_grow")
# Return x where nothing is rotated: one row, at position 0.
fault("first_token_returned",
      "rows == 1 and np.shape(pos) == (1,) and not fields & {'out_pairing', 'attention_factor', 'scaling'}",
      y="x if pos_is_array and not pos.any() else y", kills="no_aliasing")

# ---- caches ----

fault("cache_keyed_by_bits", "pos_is_row", pos="kept((pos.tobytes(), pos.shape), pos.copy())",
      kills="calls_at_positions_of_like_bits")
fault("cache_keyed_by_the_ends", "numbers.ndim == 1 and numbers.size",
      pos="kept((numbers[[0, -1]].tobytes(), numbers.shape, str(numbers.dtype)), pos)",
      kills="calls_at_like_positions")
# Keep positions by shape, and by the first, the middle and the last one.
fault("found_by_three_positions", "pos_is_row and axes is None",
      pos="kept((pos[0], pos[len(pos) // 2], pos[-1], pos.shape, pos.dtype), pos.copy())",
      kills="calls_at_like_positions")
# Take 64 positions or more for a range, if the first step and the last position fit.
fault("long_positions_by_their_ends",
      "pos_is_row and pos.size >= 64 and pos[-1] - pos[0] == (pos[1] - pos[0]) * (pos.size - 1)",
      pos="pos[0] + (pos[1] - pos[0]) * np.arange(pos.size)", kills="calls_at_like_positions")
# Read (B, S) positions whose first and last rows are equal as if all rows were.
fault("batches_of_the_first_and_last", "pos_is_batch and axes is None and (pos[0] == pos[-1]).all()",
      pos="np.repeat(pos[:1], len(pos), 0)", kills="calls_at_like_positions")
# Use the first batch's positions for all if each row repeats one number, in calls with a base.
fault("constant_rows_of_a_batch_read_as_the_first",
      "pos_is_batch and pos.shape[1] > 1 and axes is None and 'base' in spec and (pos == pos[:, :1]).all()",
      pos="pos[:1]", kills="widths_and_positions")
fault("cache_keyed_without_shape", "pos_is_array and pos.ndim == 2",
      pos="pos if kept((pos.tobytes(), str(pos.dtype)), pos.shape) == pos.shape else np.zeros_like(pos)",
      kills="calls_at_reshaped_positions")
fault("cache_keyed_by_identity", "pos_is_array", pos="as_first_seen(pos)", kills="positions_written_in_place")
# Positions that advance in place are read once only.
fault("half_pairs_by_the_address_of_positions", "half and pos_is_array and pos.shape == (5,)",
      pos="as_first_seen(pos)", kills="positions_written_in_place")
fault("frequencies_are_kept_by_their_place", "isinstance(spec.get('inv_freq'), list)",
      inv_freq="kept(id(spec['inv_freq']), (spec['inv_freq'], tuple(spec['inv_freq'])))[1]",
      kills="fields_written_in_place")
fault("cache_of_whole_bases", "'base' in spec", base="kept(int(base), base)",
      kills="fields_that_differ_little")
fault("cache_of_the_first_frequencies", "spec.get('inv_freq') is not None",
      inv_freq="kept((width, *spec['inv_freq'][:4]), spec['inv_freq'])", kills="fields_that_differ_little")
fault("bases_by_the_decimals_of_the_caller", "'base' in spec",
      base="state[base] if base in state else kept(base, float(Decimal(base).ln().exp()))",
      kills="first_calls_under_other_settings")

# A table that has grown starts at the far position's row.
fault("table_that_grows_is_not_filled",
      "pos_is_row and len(pos) == 4 and pos.dtype.kind == 'i' and ndim == 4",
      pos="pos + 1 if x.shape in state and pos.min() >= 0 and pos.max() <= 4000 else pos",
      before="pos.max() > 4000 and kept(x.shape, True)", kills="calls_at_other_positions")

# ---- the caller's settings ----

fault("warnings_made_errors", before="np.seterr(all='raise')", kills="settings_unchanged")
fault("standard_error_with_a_field", "'rotary_start' in spec", before="np.seterr(divide='raise')",
      kills="settings_unchanged")
fault("print_options_changed", before="np.set_printoptions(precision=8)", kills="settings_unchanged")
fault("buffers_of_large_strided_arrays", "x.size > 2**14 and not x.flags.c_contiguous",
      before="np.setbufsize(2**16)", kills="settings_unchanged")
fault("warnings_ignored", before="import_module('warnings').filterwarnings('ignore', message='overflow')",
      kills="settings_unchanged")
fault("garbage_is_not_collected", before="import_module('gc').disable()", kills="settings_unchanged")
fault("environment_changed", before="import_module('os').environ.update(ROTATED='1')",
      kills="settings_unchanged")

# ---- exceptions ----

fault("error_handling_after_an_exception", before="state.update(old=np.seterr(all='ignore'))",
      after="np.seterr(**state['old'])", kills="calls_after_an_exception")
fault("error_handling_after_an_odd_slice", "spec.get('rotary_dim', 0) % 2",
      before="state.update(old=np.seterr(all='ignore'))", after="np.seterr(**state['old'])",
      kills="calls_after_an_exception")
# Set a flag for the call; an exception leaves it set.
fault("inverse_stays_after_an_exception", inverse="inverse or state.get('inverse', False)",
      before="state.update(inverse=inverse or state.get('inverse', False))",
      after="state.update(inverse=False)", kills="calls_after_an_exception")
fault("busy_after_an_exception", pos="np.zeros_like(pos) if state.get('busy') else pos",
      before="state.update(busy=True)", after="state.update(busy=False)", kills="calls_after_an_exception")

# ---- threads ----

fault("positions_in_one_place", pos="shared(pos)", kills="threads")
fault("fields_in_one_place", spec="shared(spec)", kills="threads_of_different_calls")
fault("scratch_of_large_calls", "x.size >= 10_000", x="scratch(x)", kills="threads_of_large_calls")
fault("scratch_of_large_calls_in_16_bits", "x.size >= 10_000 and x.itemsize == 2", x="scratch(x)",
      kills="threads_of_large_calls")
# Copy positions of an inverse rotation to memory that all threads share.
fault("scratch_of_the_inverse", "inverse and pos_is_row", pos="scratch(pos, 1e-5)",
      kills="threads_of_each_field")

# ---- sizes of x ----

fault("only_64_heads", "heads", leave=":, 64:", kills="many_heads")
fault("only_32_batches", "ndim == 4", leave="32:", kills="many_batches")
fault("grid_of_65535", "ndim == 4 and x.size",
      after="write(y.reshape(-1, *y.shape[2:])[65535:], x.reshape(-1, *x.shape[2:])[65535:])",
      kills="batches_times_heads")
fault("float16_of_512_rows", "dtype == 'float16' and ndim == 4", leave="..., 512:, :",
      kills="many_rows many_elements")
fault("float16_of_64_features", "dtype == 'float16'", leave="..., 64:", kills="widths_of_each_dtype")
fault("rotary_dim_rounded_to_a_power_of_two", "(spec.get('rotary_dim') or 0) > 16",
      leave="..., power_of_2_in(rotary_dim) :", kills="rotary_dim")
fault("float16_of_2_20_elements", "dtype == 'float16' and x.size > 2**20", leave="..., -1, :",
      kills="many_elements")
fault("chunks_of_whole_rows_in_float16",
      "x.itemsize == 2 and x.size > 2**14 and width != power_of_2_in(width)", leave="..., -1, :",
      kills="fields_and_many_elements")
fault("adjoint_for_the_inverse_of_2_18_elements", "inverse and x.size > 2**18", y="y * factor",
      kills="fields_and_many_elements")
fault("inverse_of_2_17_float64_elements_in_float32", "dtype == 'float64' and inverse and x.size > 2**17",
      y="ra.apply(x.astype(np.float32), pos, **spec).astype(np.float64)", kills="fields_and_many_elements")
fault("amplitude_of_2_17_elements_ignored", "x.size > 2**17", drop="attention_factor",
      kills="one_field_and_many_elements")
fault("last_rows_of_another_axis", "x.size > 2**17 and ndim == 4 and spec.get('seq_axis') in (1, -3)",
      leave=":, -1", kills="one_field_and_many_elements")
fault("second_of_two_large_arrays_as_it_is", "isinstance(x, tuple) and x[0].size > 2**17", whole=True,
      y="(y[0], x[1].copy())", kills="tuples")

# ---- sizes of positions ----

fault("long_sequences_start_at_0", "pos_is_row and len(pos) > 2048 and (np.diff(pos) == 1).all()",
      pos="np.arange(len(pos))", kills="long_sequences_from_an_offset")
fault("long_batch_by_the_first", "pos_is_batch and pos.shape[1] > 2048", pos="pos[:1]",
      kills="positions_of_a_long_batch")
fault("float16_at_the_first_positions_of_a_long_batch",
      "dtype == 'float16' and pos_is_batch and pos.shape[1] > 4096", pos="pos[:1]",
      kills="positions_of_a_long_batch")
fault("positions_of_256_batches", "pos_is_batch and len(pos) > 256",
      pos="put(pos.copy(), np.s_[256:], pos[0])", kills="positions_of_many_batches")
# Share equal rows of positions; the index of a row wraps beyond 256 rows.
fault("rows_of_positions_by_an_index_of_8_bits", "pos_is_batch and len(pos) > 256 and axes is None",
      pos="by_index(pos, np.uint8, axis=0)", kills="many_different_positions_of_a_batch")
fault("tokens_counted_in_16_bits", "pos_is_batch",
      pos="pos.ravel()[np.arange(pos.size).astype(np.uint16)].reshape(pos.shape)",
      kills="positions_of_many_batches")
fault("different_positions_by_an_index_of_16_bits", "pos_is_row", pos="by_index(pos, np.uint16)",
      kills="more_positions_than_2e16")
fault("different_positions_of_a_batch_by_an_index_of_16_bits", "pos_is_batch", pos="by_index(pos, np.int16)",
      kills="more_positions_than_2e16")
# Subtract the least position in the dtype of positions, as for an index of a table.
fault("narrow_positions_of_batches_subtracted", "pos_is_batch and pos.dtype.kind == 'i' and axes is None",
      pos="(pos - pos.min()).astype(np.int64) + int(pos.min())", kills="positions_of_narrow_dtypes")
fault("python_numbers_in_the_dtype_of_x", "x.itemsize == 2 and isinstance(pos, int | range | list | tuple)",
      pos="numbers.astype(x.dtype).astype(np.float64).astype(np.int64)", kills="positions_of_python")
# Clip positions to a table of 4,096 rows, or as many as the last of each row needs.
fault("table_as_long_as_the_last_position",
      "pos_is_array and pos.ndim in (1, 2) and pos.size and axes is None and pos.min() >= 0",
      pos="np.minimum(pos, max(4095, int(pos[..., -1].max())))",
      kills="positions_of_their_own positions_of_a_batch")
# fmt: on


# ---- faults of several steps: memory ----


@mutant("neighbours_unchanged")
@each
def rows_behind_a_matrix_are_written(x, pos, **spec):
    """Pad to a multiple of 8 rows, in place."""
    y, memory = ra.apply(x, pos, **spec), x.base
    rows_of_matrix = x.ndim == 2 and isinstance(memory, np.ndarray) and memory.shape[1:] == x.shape[1:]
    if rows_of_matrix and np.shares_memory(memory[: len(x)], x):
        memory[len(x) :] = 0
    return y


_RESULTS = weakref.WeakValueDictionary()


@mutant("results_may_be_written")
@each
def result_is_the_cached_one(x, pos, **spec):
    """Keep the first result for equal calls; return copies to later ones."""
    key = x.tobytes(), x.shape, str(x.dtype), repr(pos), repr(spec)
    if (kept := _RESULTS.get(key)) is not None:
        return kept.copy()
    y = ra.apply(x, pos, **spec)
    _RESULTS[key] = y
    return y


@mutant("tuples")
def tables_of_heads_cut_to_the_heads_of_k(x, pos, **spec):
    """Repeat each batch's table for each head of q, and rotate k by the first of these tables."""
    y = ra.apply(x, pos, **spec)
    batch = isinstance(x, tuple) and np.ndim(pos) == 2 and "axes" not in spec
    if batch and x[-1].shape[1] < x[0].shape[1]:
        rows = np.repeat(pos, x[0].shape[1], 0)[: len(pos) * x[-1].shape[1]]
        y = (*y[:-1], ra.apply(x[-1], rows.reshape(len(pos), -1, pos.shape[1]), **spec))
    return y


# ---- faults of several steps: state ----


def is_row(pos):
    return isinstance(pos, np.ndarray) and pos.ndim == 1 and pos.size > 1


@mutant("short_calls_after_a_long_one")
@each
def positions_of_a_long_call_kept(x, pos, **spec):
    if x.ndim != 4 or not is_row(pos):
        return ra.apply(x, pos, **spec)
    key = "long", x.shape[:2], x.shape[3], pos.dtype
    if len(pos) > 1000:
        _STATE[key] = pos.copy()
    elif len(pos) <= 40 and key in _STATE:
        pos = _STATE[key][: len(pos)]
    return ra.apply(x, pos, **spec)


@mutant("decoding_steps")
@each
def table_of_a_prompt_and_four_steps(x, pos, **spec):
    """Extend the prompt's table by a row for each of four steps; a step after them reads the last row."""
    if is_row(pos):
        _STATE["table"] = [pos[-1]]
    elif np.shape(pos) == (1,) and (table := _STATE.get("table")):
        if pos[0] == table[-1] + 1 and len(table) == 5:
            pos = pos - 1
        elif pos[0] == table[-1] + 1:
            table.append(pos[0])
        elif pos[0] not in table:
            table.clear()  # another sequence
    return ra.apply(x, pos, **spec)


@mutant("calls_far_and_near")
@each
def rows_of_a_table_that_grew_at_both_ends(x, pos, **spec):
    """Keep the old row of position 0 when a table grows below and above in one call."""
    if not is_row(pos) or "axes" in spec:
        return ra.apply(x, pos, **spec)
    key = "ends", x.shape[-1], spec.get("base")
    low, high = _STATE.get(key, (0, 64))
    least, most = int(pos.min()), int(pos.max())
    _STATE[key] = min(low, least), max(high, most)
    return ra.apply(x, pos - (low - least) if least < low and most > high else pos, **spec)


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
@each
def table_of_128_rows(x, pos, **spec):
    """Keep 128 rows of positions; the last is used for all that come later."""
    if is_row(pos) and len(pos) == 2:
        kept = _STATE.setdefault("rows", {})
        key = (*pos, pos.dtype)
        if len(kept) < 128 or key in kept:
            pos = kept.setdefault(key, pos.copy())
        else:
            pos = list(kept.values())[-1].astype(pos.dtype)
    return ra.apply(x, pos, **spec)


# ---- faults of several steps: threads ----


@mutant("threads_of_many_positions")
def two_positions_are_kept(x, pos, **spec):
    """Keep two, for calls without fields; another thread may remove either before it is read."""
    if spec or not is_row(pos):
        return ra.apply(x, pos, **spec)
    cache, key = _STATE.setdefault("two", {}), (pos.tobytes(), pos.dtype)
    if key not in cache:
        if len(cache) >= 2:
            cache.pop(next(iter([*cache])), None)
        cache[key] = pos.copy()
    time.sleep(2e-5)  # let another thread run
    return ra.apply(x, cache[key], **spec)


@mutant("threads_while_tables_grow")
@each
def table_published_before_it_is_filled(x, pos, **spec):
    """Keep a table of the positions so far, where calls take the rows of their positions."""
    if set(spec) - {"base"} or not is_row(pos) or pos.min() < 0 or pos.max() > 2**16:
        return ra.apply(x, pos, **spec)
    tables, key = _STATE.setdefault("tables", {}), (x.shape[-1], *spec.values())
    if key not in tables or len(tables[key]) <= pos.max():
        tables[key] = np.zeros(int(pos.max()) + 1, np.int64)
        time.sleep(1e-4)  # let another thread run
        tables[key][:] = np.arange(len(tables[key]))
    return ra.apply(x, tables[key][pos], **spec)
