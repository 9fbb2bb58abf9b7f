"""Mutants of memory, state and plain sizes: see faults.py."""

import time
import weakref

import numpy as np
from faults import fault, mutant, positions, torch_fault

import rope_array as ra

# fmt: off
# ---- the first call ----
fault("first_call_of_a_dtype_doubled", "first_call", "first(dtype)", y="y * 2")
fault("first_call_of_all_is_not_rotated", "first_call", "x.size and first('call')", y="x.copy()")

# ---- memory of x ----
fault("second_of_two_rotated_in_place", "inputs_unchanged",
      "isinstance(x, tuple) and len(x) == 2 and x[1].flags.writeable", whole=True, after="write(x[1], y[1])")
fault("large_x_rotated_in_place", "inputs_unchanged", "ndim == 4 and rows > 128 and x.flags.writeable",
      after="write(x, y)")
fault("memory_beside_x_cleared", "neighbours_unchanged", "x.base is not None and x.base.flags.writeable",
      after="write(x.base.reshape(-1)[:1], 0)")
fault("rows_behind_a_matrix_are_written", "neighbours_unchanged",  # to pad to a multiple of 8 rows
      "ndim == 2 and isinstance(x.base, np.ndarray) and x.base.shape[1:] == x.shape[1:]",
      after="np.shares_memory(x.base[:rows], x) and write(x.base[rows:], 0)")
fault("broadcast_misread", "memory", "0 in x.strides and x.size", x="np.zeros_like(x)")
fault("every_second_feature_misread", "memory same_bits", "ndim == 4 and x.strides[-1] == 2 * x.itemsize",
      x="with_strides(x, *x.strides[:-1], x.itemsize)")
fault("heads_of_a_fused_projection_misread", "memory",
      "min(rows, heads) > 1 and x.strides[1] == width * x.itemsize and x.strides[2] > heads * x.strides[1]",
      x="with_strides(x, *x.strides[:2], heads * x.strides[1], x.itemsize)")
# Read from the last multiple of 16 bytes, as an aligned load does.
fault("reads_aligned_memory", "memory",
      "x.flags.c_contiguous and x.ctypes.data % x.itemsize == 0 and x.ctypes.data % 16", x="np.roll(x, 1)")
# Write heads through a reshape of the result, which copies where x is transposed.
fault("transposed_x_of_2_16_elements_written_to_a_copy", "fields_and_many_elements",
      "x.size > 2**16 and ndim == 4 and x.strides[1] < x.strides[2] and 1 not in x.shape",
      y="np.zeros_like(y)")
fault("x_is_kept", "x_is_released", before="state.update(x=x)")
torch_fault("view_of_x_is_kept", "x_is_released", before="state.update(view=x.detach()[..., ::2])")
fault("x_at_positions_of_a_batch_kept", "x_is_released", "pos_is_batch", before="state.update(x=x)")

# ---- memory of positions ----
fault("positions_of_a_batch_written", "inputs_unchanged", "pos_is_array and pos.ndim == 2", whole=True,
      after="write(pos, pos - pos.min())")
fault("positions_of_many_rows_sorted_in_place", "inputs_unchanged",
      "pos_is_row and pos.size > 40 and pos.flags.writeable", whole=True, after="pos.sort()")
fault("positions_of_a_batch_reshaped_in_place", "inputs_unchanged",
      "pos_is_batch and pos.flags.c_contiguous and pos.flags.owndata and axes is None", whole=True,
      after="setattr(pos, 'shape', (len(pos), 1, -1))")
fault("positions_in_memory_order", "strides_of_positions",
      "pos_is_batch and pos.flags.f_contiguous and not pos.flags.c_contiguous", pos="in_memory_order(pos)")
fault("transposed_positions_misread", "strides_of_positions",
      "pos_is_batch and 0 < pos.strides[0] < pos.strides[1] and len(pos) > 1",
      pos="np.ascontiguousarray(pos[:1]) + 0 * pos")
fault("every_third_position_misread", "strides_of_positions",
      "pos_is_row and pos.strides[0] == 3 * pos.itemsize", pos="pos[0] + np.arange(pos.size)")
fault("negative_strides_misread", "strides_of_positions", "pos_is_row and pos.strides[0] < 0",
      pos="pos[::-1]")
fault("positions_from_the_start_of_memory", "strides_of_positions",
      "pos_is_row and pos.flags.c_contiguous and pos.base is not None and pos.base.dtype == pos.dtype",
      pos="pos.base.ravel()[: pos.size]")
fault("x_broadcast_along_rows_misread", "memory", "ndim == 4 and rows > 1 and x.strides[2] == 0",
      leave=":, :, 1:")
fault("strides_of_zero_misread", "strides_of_positions",
      "pos_is_array and any(np.equal(pos.strides, 0) & np.greater(pos.shape, 1))", pos="np.zeros_like(pos)")
fault("positions_in_the_other_byte_order_misread", "strides_of_positions",
      "pos_is_array and pos.dtype.kind in 'iu' and not pos.dtype.isnative",
      pos="pos.view(pos.dtype.newbyteorder())")

# ---- memory of results ----
fault("result_in_a_buffer", "results_are_kept", y="in_a_ring(y, 1)")
fault("ring_of_results", "many_results_are_kept", y="in_a_ring(y, 250)")
fault("ring_of_four_results_of_the_inverse", "many_results_are_kept", "inverse", y="in_a_ring(y, 4)")
fault("buffer_of_large_results", "large_results_are_kept", "y.nbytes > 2**20", y="in_a_ring(y, 1)")
fault("buffer_of_very_large_results", "large_results_are_kept", "y.nbytes > 2**23", y="in_a_ring(y, 2)")
fault("result_is_read_only", "results_are_writable", after="y.setflags(write=False)")
fault("result_in_the_strides_of_x", "results_without_overlap",
      "ndim == 4 and numbers.ndim < 2 and x.strides[:2] == (0, 0)", y="with_strides(y, 0, 0, *y.strides[2:])")
fault("scratch_is_kept", "memory_does_not_grow", after="kept('results', []).append(y.copy())")
fault("first_token_returned", "no_aliasing",
      "rows == 1 and np.shape(pos) == (1,) and not fields & {'out_pairing', 'attention_factor', 'scaling'}",
      y="x if pos_is_array and not pos.any() else y")

# ---- caches ----
fault("cache_keyed_by_bits", "calls_at_positions_of_like_bits", "pos_is_row",
      pos="kept((pos.tobytes(), pos.shape), pos.copy())")
fault("cache_keyed_by_the_ends", "calls_at_like_positions", "numbers.ndim == 1 and numbers.size",
      pos="kept((numbers[[0, -1]].tobytes(), numbers.shape, str(numbers.dtype)), pos)")
fault("found_by_three_positions", "calls_at_like_positions", "pos_is_row and axes is None",
      pos="kept((pos[0], pos[len(pos) // 2], pos[-1], pos.shape, pos.dtype), pos.copy())")
fault("long_positions_by_their_ends", "calls_at_like_positions",
      "pos_is_row and pos.size >= 64 and pos[-1] - pos[0] == (pos[1] - pos[0]) * (pos.size - 1)",
      pos="pos[0] + (pos[1] - pos[0]) * np.arange(pos.size)")
fault("batches_of_the_first_and_last", "calls_at_like_positions",
      "pos_is_batch and axes is None and (pos[0] == pos[-1]).all()", pos="np.repeat(pos[:1], len(pos), 0)")
fault("constant_rows_of_a_batch_read_as_the_first", "widths_and_positions",
      "pos_is_batch and pos.shape[1] > 1 and axes is None and 'base' in spec and (pos == pos[:, :1]).all()",
      pos="pos[:1]")
fault("cache_keyed_without_shape", "calls_at_reshaped_positions", "pos_is_array and pos.ndim == 2",
      pos="pos if kept((pos.tobytes(), str(pos.dtype)), pos.shape) == pos.shape else np.zeros_like(pos)")
fault("cache_keyed_by_identity", "positions_written_in_place", "pos_is_array", pos="as_first_seen(pos)")
fault("half_pairs_by_the_address_of_positions", "positions_written_in_place",
      "half and pos_is_array and pos.shape == (5,)", pos="as_first_seen(pos)")
fault("frequencies_are_kept_by_their_place", "fields_written_in_place",
      "isinstance(spec.get('inv_freq'), list)",
      inv_freq="kept(id(spec['inv_freq']), (spec['inv_freq'], tuple(spec['inv_freq'])))[1]")
fault("cache_of_whole_bases", "fields_that_differ_little", "'base' in spec", base="kept(int(base), base)")
fault("cache_of_the_first_frequencies", "fields_that_differ_little", "spec.get('inv_freq') is not None",
      inv_freq="kept((width, *spec['inv_freq'][:4]), spec['inv_freq'])")
fault("bases_by_the_decimals_of_the_caller", "first_calls_under_other_settings", "'base' in spec",
      base="state[base] if base in state else kept(base, float(Decimal(base).ln().exp()))")

fault("table_that_grows_is_not_filled", "calls_at_other_positions",
      "pos_is_row and len(pos) == 4 and pos.dtype.kind == 'i' and ndim == 4",
      pos="pos + 1 if x.shape in state and pos.min() >= 0 and pos.max() <= 4000 else pos",
      before="pos.max() > 4000 and kept(x.shape, True)")

# ---- the caller's settings ----
fault("warnings_made_errors", "settings_unchanged", before="np.seterr(all='raise')")
fault("standard_error_with_a_field", "settings_unchanged", "'rotary_start' in spec",
      before="np.seterr(divide='raise')")
fault("print_options_changed", "settings_unchanged", before="np.set_printoptions(precision=8)")
fault("buffers_of_large_strided_arrays", "settings_unchanged", "x.size > 2**14 and not x.flags.c_contiguous",
      before="np.setbufsize(2**16)")
fault("warnings_ignored", "settings_unchanged",
      before="import_module('warnings').filterwarnings('ignore', message='overflow')")
fault("garbage_is_not_collected", "settings_unchanged", before="import_module('gc').disable()")
fault("environment_changed", "settings_unchanged", before="import_module('os').environ.update(ROTATED='1')")

# ---- exceptions ----
fault("error_handling_after_an_exception", "calls_after_an_exception",
      before="state.update(old=np.seterr(all='ignore'))", after="np.seterr(**state['old'])")
fault("error_handling_after_an_odd_slice", "calls_after_an_exception", "spec.get('rotary_dim', 0) % 2",
      before="state.update(old=np.seterr(all='ignore'))", after="np.seterr(**state['old'])")
fault("inverse_stays_after_an_exception", "calls_after_an_exception",
      inverse="inverse or state.get('inverse', False)",
      before="state.update(inverse=inverse or state.get('inverse', False))",
      after="state.update(inverse=False)")
fault("busy_after_an_exception", "calls_after_an_exception",
      pos="np.zeros_like(pos) if state.get('busy') else pos", before="state.update(busy=True)",
      after="state.update(busy=False)")

# ---- threads ----
fault("positions_in_one_place", "threads", pos="shared(pos)")
fault("fields_in_one_place", "threads_of_different_calls", spec="shared(spec)")
fault("scratch_of_large_calls", "threads_of_large_calls", "x.size >= 10_000", x="scratch(x)")
fault("scratch_of_large_calls_in_16_bits", "threads_of_large_calls", "x.size >= 10_000 and x.itemsize == 2",
      x="scratch(x)")
fault("scratch_of_the_inverse", "threads_of_each_field", "inverse and pos_is_row", pos="scratch(pos, 1e-5)")

# ---- sizes of x ----
fault("only_64_heads", "many_heads", "heads", leave=":, 64:")
fault("only_32_batches", "many_batches", "ndim == 4", leave="32:")
fault("grid_of_65535", "batches_times_heads", "ndim == 4 and x.size",
      after="write(y.reshape(-1, *y.shape[2:])[65535:], x.reshape(-1, *x.shape[2:])[65535:])")
fault("float16_of_512_rows", "many_rows many_elements", "dtype == 'float16' and ndim == 4",
      leave="..., 512:, :")
fault("float16_of_64_features", "widths_of_each_dtype", "dtype == 'float16'", leave="..., 64:")
fault("rotary_dim_rounded_to_a_power_of_two", "rotary_dim", "(spec.get('rotary_dim') or 0) > 16",
      leave="..., power_of_2_in(rotary_dim) :")
fault("float16_of_2_20_elements", "many_elements", "dtype == 'float16' and x.size > 2**20",
      leave="..., -1, :")
fault("chunks_of_whole_rows_in_float16", "fields_and_many_elements",
      "x.itemsize == 2 and x.size > 2**14 and width != power_of_2_in(width)", leave="..., -1, :")
fault("adjoint_for_the_inverse_of_2_18_elements", "fields_and_many_elements", "inverse and x.size > 2**18",
      y="y * factor")
fault("inverse_of_2_17_float64_elements_in_float32", "fields_and_many_elements",
      "dtype == 'float64' and inverse and x.size > 2**17",
      y="ra.apply(x.astype(np.float32), pos, **spec).astype(np.float64)")
fault("amplitude_of_2_17_elements_ignored", "one_field_and_many_elements", "x.size > 2**17",
      drop="attention_factor")
fault("last_rows_of_another_axis", "one_field_and_many_elements",
      "x.size > 2**17 and ndim == 4 and spec.get('seq_axis') in (1, -3)", leave=":, -1")
fault("second_of_two_large_arrays_as_it_is", "tuples", "isinstance(x, tuple) and x[0].size > 2**17",
      whole=True, y="(y[0], x[1].copy())")

# ---- sizes of positions ----
fault("long_sequences_start_at_0", "long_sequences_from_an_offset",
      "pos_is_row and len(pos) > 2048 and (np.diff(pos) == 1).all()", pos="np.arange(len(pos))")
fault("long_batch_by_the_first", "positions_of_a_long_batch", "pos_is_batch and pos.shape[1] > 2048",
      pos="pos[:1]")
fault("float16_at_the_first_positions_of_a_long_batch", "positions_of_a_long_batch",
      "dtype == 'float16' and pos_is_batch and pos.shape[1] > 4096", pos="pos[:1]")
fault("positions_of_256_batches", "positions_of_many_batches", "pos_is_batch and len(pos) > 256",
      pos="put(pos.copy(), np.s_[256:], pos[0])")
fault("rows_of_positions_by_an_index_of_8_bits", "many_different_positions_of_a_batch",
      "pos_is_batch and len(pos) > 256 and axes is None", pos="by_index(pos, np.uint8, axis=0)")
fault("tokens_counted_in_16_bits", "positions_of_many_batches", "pos_is_batch",
      pos="pos.ravel()[np.arange(pos.size).astype(np.uint16)].reshape(pos.shape)")
fault("different_positions_by_an_index_of_16_bits", "more_positions_than_2e16", "pos_is_row",
      pos="by_index(pos, np.uint16)")
fault("different_positions_of_a_batch_by_an_index_of_16_bits", "more_positions_than_2e16", "pos_is_batch",
      pos="by_index(pos, np.int16)")
fault("narrow_positions_of_batches_subtracted", "positions_of_narrow_dtypes",
      "pos_is_batch and pos.dtype.kind == 'i' and axes is None",
      pos="(pos - pos.min()).astype(np.int64) + int(pos.min())")
fault("python_numbers_in_the_dtype_of_x", "positions_of_python",
      "x.itemsize == 2 and isinstance(pos, int | range | list | tuple)",
      pos="numbers.astype(x.dtype).astype(np.float64).astype(np.int64)")
fault("table_as_long_as_the_last_position", "positions_of_their_own positions_of_a_batch",
      "pos_is_array and pos.ndim in (1, 2) and pos.size and axes is None and pos.min() >= 0",
      pos="np.minimum(pos, max(4095, int(pos[..., -1].max())))")
# fmt: on


# ---- faults of several steps: memory ----

_RESULTS = weakref.WeakValueDictionary()


@mutant("results_may_be_written")
def result_is_the_cached_one(x, pos, **spec):
    """Keep the first result for equal calls; return copies to later ones."""
    key = x.tobytes(), x.shape, str(x.dtype), repr(pos), repr(spec)
    if (kept := _RESULTS.get(key)) is not None:
        return kept.copy()
    y = ra.apply(x, pos, **spec)
    _RESULTS[key] = y
    return y


@mutant("tuples", whole=True)
def tables_of_heads_cut_to_the_heads_of_k(x, pos, **spec):
    """Repeat each batch's table for each head of q, and rotate k by the first of these tables."""
    y = ra.apply(x, pos, **spec)
    batch = isinstance(x, tuple) and np.ndim(pos) == 2 and "axes" not in spec
    if batch and x[-1].shape[1] < x[0].shape[1]:
        rows = np.repeat(pos, x[0].shape[1], 0)[: len(pos) * x[-1].shape[1]]
        y = (*y[:-1], ra.apply(x[-1], rows.reshape(len(pos), -1, pos.shape[1]), **spec))
    return y


# ---- faults of several steps: state ----


@positions("short_calls_after_a_long_one", "ndim == 4 and pos_is_row")
def positions_of_a_long_call_kept(call):
    key = call.x.shape[:2], call.x.shape[3], call.pos.dtype
    if len(call.pos) > 1000:
        call.state[key] = call.pos.copy()
    return call.state[key][: len(call.pos)] if len(call.pos) <= 40 and key in call.state else call.pos


@positions("decoding_steps")
def table_of_a_prompt_and_four_steps(call):
    """Extend the prompt's table by a row for each of four steps; a step after them reads the last row."""
    pos = call.pos
    if call["pos_is_row"]:
        call.state["table"] = [pos[-1]]
    elif np.shape(pos) == (1,) and (table := call.state.get("table")):
        if pos[0] == table[-1] + 1 and len(table) == 5:
            return pos - 1
        if pos[0] == table[-1] + 1:
            table.append(pos[0])
        elif pos[0] not in table:
            table.clear()  # another sequence
    return pos


@positions("calls_far_and_near", "pos_is_row and axes is None")
def rows_of_a_table_that_grew_at_both_ends(call):
    """Keep the old row of position 0 when a table grows below and above in one call."""
    key, lowest, highest = (call.x.shape[-1], call["base"]), int(call.pos.min()), int(call.pos.max())
    low, high = call.state.get(key, (0, 64))
    call.state[key] = min(low, lowest), max(high, highest)
    return call.pos - (low - lowest) if lowest < low and highest > high else call.pos


@positions("calls_at_many_positions", "pos_is_row and len(pos) == 2")
def table_of_128_rows(call):
    """Keep 128 rows of positions; the last is used for all that come later."""
    key = (*call.pos, call.pos.dtype)
    if len(call.state) < 128 or key in call.state:
        return call.kept(key, call.pos.copy())
    return list(call.state.values())[-1].astype(call.pos.dtype)


@positions("threads_of_many_positions", "not spec and pos_is_row", whole=True)
def two_positions_are_kept(call):
    """Keep two; another thread may remove either before it is read."""
    cache, key = call.state, (call.pos.tobytes(), call.pos.dtype)
    if key not in cache:
        if len(cache) >= 2:
            cache.pop(next(iter([*cache])), None)
        cache[key] = call.pos.copy()
    time.sleep(2e-5)  # let another thread run
    return cache[key]


@positions(
    "threads_while_tables_grow", "fields <= {'base'} and pos_is_row and pos.min() >= 0 and pos.max() <= 2**16"
)
def table_published_before_it_is_filled(call):
    """Keep a table of the positions so far, where calls take the rows of their positions."""
    tables, key = call.state, (call.x.shape[-1], *call.spec.values())
    if key not in tables or len(tables[key]) <= call.pos.max():
        tables[key] = np.zeros(int(call.pos.max()) + 1, np.int64)
        time.sleep(1e-4)  # let another thread run
        tables[key][:] = np.arange(len(tables[key]))
    return tables[key][call.pos]


_STATE = {}


@mutant("dtypes_in_turn")
def table_narrowed_in_place(x, pos, **spec):
    """A batch of one keeps its table; it is made again for a new dtype, and rounded to narrower ones."""
    if x.ndim != 4 or x.shape[0] > 1:
        return ra.apply(x, pos, **spec)
    dtypes, now = _STATE.setdefault((x.shape, repr(pos), repr(spec)), (set(), [x.dtype]))
    if x.dtype not in dtypes or x.dtype.itemsize < now[0].itemsize:
        now[0] = x.dtype
    dtypes.add(x.dtype)
    return ra.apply(x.astype(now[0]), pos, **spec).astype(x.dtype)


@mutant("calls_that_differ_in_one_thing")
def direction_of_the_last_call(x, pos, **spec):
    """Keep the last call's fields for a call of the same shape, dtype, positions and other fields."""
    key = x.shape, x.dtype, repr(pos), repr({**spec, "inverse": None})
    spec = _STATE["spec"] if _STATE.get("key") == key else spec
    _STATE.update(key=key, spec=spec)
    return ra.apply(x, pos, **spec)
