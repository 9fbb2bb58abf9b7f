// The caches of a call and their slots: see rope_array/_array_api/cache.py.
#pragma once

#include "python_call.hpp"

namespace rope {

inline bool is_quantised(const ArrayView& view) { return view.dtype == I8 || view.dtype == E4M3; }

// Return the dtype of a cache; NUM_CACHE_DTYPES for float64, and for a dtype of no cache.
inline CacheDType cache_dtype_of(const ArrayView& view) {
    constexpr CacheDType DTYPES[] = {CACHE_F32, NUM_CACHE_DTYPES, CACHE_F16, CACHE_BF16,
                                     NUM_CACHE_DTYPES, NUM_CACHE_DTYPES, CACHE_I8, CACHE_E4M3};  // by dtypes of views
    return view.dtype <= E4M3 ? DTYPES[view.dtype] : NUM_CACHE_DTYPES;
}

struct ParsedSlots {
    ArrayView view;
    std::vector<int64_t> numbers;

    // Read the numbers of the view in order. Return false for other dtypes than int32 and int64, and for too many axes.
    bool read() {
        if ((view.dtype != I32 && view.dtype != I64) || !view.num_axes || view.num_axes > 4) return false;
        int64_t index[4] = {}, count = 1;
        for (int a = 0; a < view.num_axes; ++a) count *= view.shape[a];
        numbers.resize(static_cast<size_t>(count));
        for (int64_t& slot : numbers) {
            const char* from = view.data;
            for (int a = 0; a < view.num_axes; ++a) from += index[a] * view.strides[a];
            slot = view.dtype == I64 ? read_as<int64_t>(from) : read_as<int32_t>(from);
            for (int a = view.num_axes - 1; a >= 0 && ++index[a] == view.shape[a]; --a) index[a] = 0;
        }
        return true;
    }

    // Set a slot to -1 if a later token has it too: rows are written in any order. Return whether there is one. Seen slots
    // are kept in a table of open addressing, at the first free place from their hash on.
    bool drop_overwritten() {
        const size_t count = numbers.size();
        if (std::adjacent_find(numbers.begin(), numbers.end(), std::greater_equal<>()) == numbers.end()) return false;
        int bits = 1;
        while ((size_t{1} << bits) < 2 * count) ++bits;
        std::vector<int64_t> seen(size_t{1} << bits, -1);
        bool any = false;
        for (size_t i = count; i-- > 0;) {
            int64_t& slot = numbers[i];
            if (slot < 0) continue;
            size_t place = static_cast<size_t>(static_cast<uint64_t>(slot) * 0x9E3779B97F4A7C15u >> (64 - bits));
            while (seen[place] >= 0 && seen[place] != slot) place = (place + 1) & (seen.size() - 1);
            const bool is_overwritten = seen[place] == slot;
            any |= is_overwritten;
            (is_overwritten ? slot : seen[place]) = is_overwritten ? -1 : slot;
        }
        return any;
    }

    // Set the memory of a cache's slots. Return false if a slot is beyond it.
    bool locate(CacheRows& rows, const ArrayView& cache, int64_t slot_axis, bool has_pages) const {
        const int64_t size = cache.shape[slot_axis], pages = has_pages ? cache.shape[0] : 1;
        rows.data = cache.data;
        rows.page_size = std::max<int64_t>(1, size);
        rows.page = has_pages ? cache.strides[0] : 0;
        rows.row = cache.strides[slot_axis];
        return std::all_of(numbers.begin(), numbers.end(), [&](int64_t slot) { return slot < size * pages; });
    }
};

}  // namespace rope
