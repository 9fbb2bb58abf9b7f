// The Python libraries whose arrays the kernel reads.
#pragma once

#include <nanobind/nanobind.h>

#include "array_view.hpp"

namespace nb = nanobind;

namespace rope {

struct Library {
    bool (*view)(nb::handle array, ArrayView& view);  // return false if the elements are not in memory by strides
    nb::object (*empty_like)(nb::handle array, ArrayView& view);
    int (*num_threads)();  // 0 if the library does not set it
    bool wants_huge_pages;  // hint that new results use huge pages; NumPy does so itself
};

// The arrays of a call: one array, or the items of a tuple.
struct ArrayTuple {
    nb::handle argument;
    bool is_tuple;
    size_t size;

    explicit ArrayTuple(nb::handle argument) : argument(argument), is_tuple(PyTuple_CheckExact(argument.ptr())) {
        size = is_tuple ? static_cast<size_t>(PyTuple_Size(argument.ptr())) : 1;
    }

    nb::handle operator[](size_t i) const {
        return is_tuple ? nb::handle(PyTuple_GetItem(argument.ptr(), static_cast<Py_ssize_t>(i))) : argument;
    }
};

bool is_numpy_array(nb::handle array);
extern const Library NUMPY;
void import_numpy();

bool is_tensor(nb::handle array);
extern const Library TORCH;

// Register PyTorch's types and functions. Tensors are read by DLPack's exchange table if their type has one and
// `use_table` is true, otherwise by their Python attributes. Return whether the table is used.
bool use_tensors(nb::handle tensor, nb::handle parameter, nb::handle empty_like, nb::handle num_threads, bool use_table);

}  // namespace rope
