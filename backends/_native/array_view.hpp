// An array's memory as any library describes it, and the libraries whose arrays the kernel reads.
#pragma once

#include <nanobind/nanobind.h>

#include "schedule.hpp"

namespace nb = nanobind;

namespace rope {

constexpr int I32 = NUM_DTYPES, I64 = I32 + 1, OTHER_DTYPE = I64 + 1;  // dtypes of arrays, in addition to DType

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

struct Library {
    bool (*view)(nb::handle array, ArrayView& view);  // false if its elements are not in memory by its strides
    nb::object (*empty_like)(nb::handle array, ArrayView& view);
    int (*num_threads)();  // 0 if the library does not set it
    bool wants_huge_pages;  // hint that new results use huge pages; NumPy does so itself
};

// Return the library of an array, or null.
const Library* library_of(nb::handle array);

bool is_numpy_array(nb::handle array);
extern const Library NUMPY;
void import_numpy();

bool is_tensor(nb::handle array);
extern const Library TORCH;

// Register PyTorch's types and functions. Tensors are read by DLPack's exchange table if their type has one and
// `use_table` is true, otherwise by their Python attributes, as parameters always are. Return whether the table is used.
bool use_tensors(nb::handle tensor, nb::handle parameter, nb::handle empty_like, nb::handle num_threads, bool use_table);

}  // namespace rope
