// An array's memory as any library describes it.
#pragma once

#include "schedule.hpp"

namespace rope {

// Dtypes of arrays, in addition to DType. Only XLA passes U32: JAX without x64 has no wider integers to cast
// to. Caches alone are of I8 and E4M3.
constexpr int I32 = NUM_DTYPES, I64 = I32 + 1, I8 = I64 + 1, E4M3 = I8 + 1, U32 = E4M3 + 1, OTHER_DTYPE = U32 + 1;

struct ArrayView {
    int dtype, num_axes;
    int64_t itemsize;
    int64_t shape[MAX_AXES], strides[MAX_AXES];  // in bytes; 0 along an axis of one element, whose stride is never used
    char* data;
    bool writable = true;

    ArrayView() {}  // leaves the axes uninitialized

    bool has_same_shape(const ArrayView& other) const;
    bool is_empty() const;
    bool is_contiguous() const;
    bool is_aligned() const;
};

// Set a view; strides count by `unit` bytes. Return false if there are too many axes, or no memory: PyTorch can free a
// tensor's storage while the tensor remains.
template <class Int>
bool set_view(ArrayView& view, int dtype, int64_t itemsize, int num_axes, const Int* shape, const Int* strides,
              int64_t unit, void* data) {
    if (num_axes > MAX_AXES) return false;
    view.dtype = dtype;
    view.itemsize = itemsize;
    view.num_axes = num_axes;
    for (int a = 0; a < num_axes; ++a) {
        view.shape[a] = shape[a];
        view.strides[a] = shape[a] > 1 ? strides[a] * unit : 0;
    }
    view.data = static_cast<char*>(data);
    return data || view.is_empty();
}

}  // namespace rope
