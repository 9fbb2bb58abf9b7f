#include "array_view.hpp"

#include <algorithm>

namespace rope {

bool ArrayView::has_same_shape(const ArrayView& other) const {
    return num_axes == other.num_axes && std::equal(shape, shape + num_axes, other.shape);
}

bool ArrayView::is_empty() const { return std::find(shape, shape + num_axes, 0) != shape + num_axes; }

bool ArrayView::is_contiguous() const {
    int64_t bytes = itemsize;
    for (int a = num_axes - 1; a >= 0; --a) {
        if (shape[a] > 1 && strides[a] != bytes) return is_empty();
        bytes *= shape[a];
    }
    return true;
}

bool ArrayView::is_aligned() const {
    uint64_t bits = reinterpret_cast<uintptr_t>(data);
    for (int a = 0; a < num_axes; ++a) bits |= static_cast<uint64_t>(strides[a]);
    return !(bits & static_cast<uint64_t>(itemsize - 1));
}

}  // namespace rope
