#include "overlap.hpp"

#include <algorithm>
#include <cstdlib>

namespace rope {
namespace {

// First byte, and the byte after the last.
struct Extent {
    int64_t from, to;
};

// Return the extent of a view along the axes that `counts(stride)` selects. The view is not empty.
template <class Counts>
Extent extent_along(const ArrayView& view, const Counts& counts) {
    const int64_t first = static_cast<int64_t>(reinterpret_cast<intptr_t>(view.data));
    Extent extent = {first, first + view.itemsize};
    for (int a = 0; a < view.num_axes; ++a) {
        if (!counts(view.strides[a])) continue;
        const int64_t reach = (view.shape[a] - 1) * view.strides[a];
        (reach < 0 ? extent.from : extent.to) += reach;
    }
    return extent;
}

// Return whether two views have no column in common if memory is cut into rows of `period` bytes:
//
//     |<---- period ---->|
//     | q q q q | k k | v v |    An axis whose stride is a multiple of the period leaves the columns as they are.
//     | q q q q | k k | v v |    Along the other axes, a view reaches all columns from its first to its last byte.
//     | q q q q | k k | v v |    The last column of a row is next to the first.
bool have_columns_apart(const ArrayView& a, const ArrayView& b, int64_t period) {
    auto moves_columns = [period](int64_t stride) { return stride % period != 0; };
    const Extent extent_a = extent_along(a, moves_columns), extent_b = extent_along(b, moves_columns);
    const int64_t remainder = (extent_b.from - extent_a.from) % period;
    const int64_t distance = remainder < 0 ? remainder + period : remainder;
    return extent_a.to - extent_a.from <= distance && extent_b.to - extent_b.from <= period - distance;
}

}  // namespace

bool are_same(const ArrayView& a, const ArrayView& b) {
    return a.data == b.data && std::equal(a.strides, a.strides + a.num_axes, b.strides);
}

bool may_overlap_itself(const ArrayView& view) {
    if (view.is_contiguous()) return false;
    struct Axis {
        int64_t stride, size;
    } axes[MAX_AXES];
    int n = 0;
    for (int a = 0; a < view.num_axes; ++a)
        if (view.shape[a] > 1) axes[n++] = {std::abs(view.strides[a]), view.shape[a]};
    std::sort(axes, axes + n, [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
    int64_t reach = view.itemsize;  // of the axes inside
    return std::any_of(axes, axes + n, [&reach](const Axis& axis) {
        const bool overlaps = axis.stride < reach;
        reach += (axis.size - 1) * axis.stride;
        return overlaps;
    });
}

bool are_apart(const ArrayView& a, const ArrayView& b) {
    if (a.is_empty() || b.is_empty()) return true;
    auto all = [](int64_t) { return true; };
    const Extent extent_a = extent_along(a, all), extent_b = extent_along(b, all);
    if (extent_a.to <= extent_b.from || extent_b.to <= extent_a.from) return true;
    for (const ArrayView* view : {&a, &b})
        for (int axis = 0; axis < view->num_axes; ++axis) {
            const int64_t period = std::abs(view->strides[axis]);
            if (period && have_columns_apart(a, b, period)) return true;
        }
    return false;
}

}  // namespace rope
