#include "attention.hpp"
#include "cache_slots.hpp"

namespace rope {
namespace {

// Set a cache, which is not empty. Its heads have all axes but the slots', the pages' and the features'. Return false if
// the kernel does not serve it.
bool set_cache(ShiftedCache& cache, const ArrayView& view, const ParsedSlots& slots, const ParsedSource& source,
               int64_t seq_axis) {
    const int last = view.num_axes - 1;
    const int64_t slot_axis = seq_axis + view.num_axes, width = source.plan->layout.head_dim;
    if (slot_axis < 0 || slot_axis >= last || view.shape[last] != width) return false;
    cache.is_copy = view.dtype < NUM_DTYPES;
    if (!cache.is_copy && !is_quantised(view)) return false;
    cache.x_dtype = cache.is_copy ? static_cast<DType>(view.dtype) : F32;
    cache.dtype = cache_dtype_of(view);
    cache.scale = 1;
    if (source.source.kind == TABLES && source.is_double != (cache.x_dtype == F64)) return false;
    if ((width > 1 && view.strides[last] != view.itemsize) || !view.is_aligned()) return false;
    if (!view.writable || may_overlap_itself(view) || !slots.locate(cache, view, slot_axis, slot_axis > 0)) return false;
    for (int a = last - 1; a >= (slot_axis > 0); --a) {
        if (a == slot_axis || view.shape[a] == 1) continue;
        if (cache.heads == 1) cache.head = view.strides[a];
        if (view.strides[a] != cache.heads * cache.head) return false;
        cache.heads *= view.shape[a];
    }
    return true;
}

// Return whether a view shares no memory with slots, positions and the views before it.
bool is_apart(const ArrayView* view, const std::vector<ArrayView>& views, const ParsedSlots& slots, const ParsedSource& source) {
    const auto is_other = [view](const ArrayView& other) { return are_apart(*view, other); };
    return is_other(slots.view) && std::all_of(source.views, source.views + source.num_views, is_other) &&
           std::all_of(views.data(), view, is_other);
}

}  // namespace

nb::object shift_keys(nb::handle caches, nb::handle slots, nb::handle source, nb::handle seq_axis, bool checked,
                      bool gated) {
    const nb::object declined = nb::borrow(Py_NotImplemented);
    const ArrayTuple arrays(caches);
    const Library* const library = arrays.is_tuple && arrays.size ? library_of(arrays[0]) : nullptr;
    int64_t axis;
    ParsedSource parsed;
    ParsedSlots parsed_slots;
    if (!library || !parse_int(seq_axis, axis) || axis > -2) return declined;
    if (gated && !may_bypass_pytorch(arrays, source, nullptr)) return declined;
    if (!parsed.parse(source, *library, false) || (gated && parsed.is_recorded_position(source))) return declined;
    if (!library->view(slots, parsed_slots.view) || parsed_slots.view.num_axes != 1) return declined;
    if (!parsed_slots.read() || parsed_slots.drop_overwritten()) return declined;
    const Source& positions = parsed.source;
    const Layout& layout = parsed.plan->layout;
    const int64_t num_tokens = parsed_slots.view.shape[0];
    if (positions.num_axes > 1 || (positions.num_axes && positions.shape[0] != num_tokens)) return declined;
    if (!checked && !positions.num_axes && parsed.plan->num_coordinates) return declined;  // or a number for each token
    if (layout.reads_half != layout.writes_half) return declined;
    std::vector<ArrayView> views(arrays.size);
    std::vector<ShiftedCache> shifted;
    int64_t bytes = 0;
    for (size_t i = 0; i < arrays.size; ++i) {
        ArrayView& view = views[i];
        ShiftedCache cache;
        if (!library->view(arrays[i], view)) return declined;
        // Three axes may be (pages, slots, features) or (heads, slots, features): Python's check decides.
        const bool is_plain = view.num_axes == 4 || view.num_axes + axis == 0;
        if (!checked && (!is_plain || !is_apart(&view, views, parsed_slots, parsed))) return declined;
        if (view.is_empty() && !checked) return declined;  // for Python's checks
        if (view.is_empty()) continue;
        if (!set_cache(cache, view, parsed_slots, parsed, axis)) return declined;
        shifted.push_back(cache);
        if ((cache.x_dtype == F64) != (shifted[0].x_dtype == F64)) return declined;
        bytes += num_tokens * cache.heads * layout.head_dim * view.itemsize;
    }
    if (gated && !count_writes(arrays)) return declined;
    if (bytes)
        run_unlocked(*library, bytes, [&](const Level& current, int threads) {
            shift(*parsed.plan, shifted, parsed_slots.numbers, positions, bytes, current, threads);
        });
    return nb::borrow(caches);
}

}  // namespace rope
