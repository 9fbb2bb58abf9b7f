// Read PyTorch's tensors by DLPack's C exchange table or, in versions without it, by their Python attributes.
#include <nanobind/ndarray.h>

#include <cstring>

#include "libraries.hpp"

namespace rope {
namespace {

// The table that a type offers as __dlpack_c_exchange_api__ (DLPack 1.3), up to the last entry used.
struct ExchangeTable {
    struct Header {
        uint32_t major, minor;
        Header* previous;
    } header;
    int (*allocate)(void);
    int (*export_tensor)(void);
    int (*import_tensor)(void);
    int (*view)(void* object, nb::dlpack::dltensor* out);  // valid as long as the object; may be null
};

// Kept for good, as PyTorch is.
PyObject *tensor_type, *parameter_type, *is_neg_method, *empty_like_function, *num_threads_function;
int (*view_by_table)(void*, nb::dlpack::dltensor*);

int dtype_of(nb::dlpack::dtype dtype) {
    using Code = nb::dlpack::dtype_code;
    constexpr auto FLOAT8_E4M3FN = static_cast<Code>(10);  // of DLPack 1.1
    auto is = [dtype](Code code, uint8_t bits) {
        return dtype == nb::dlpack::dtype{static_cast<uint8_t>(code), bits, 1};
    };
    if (is(Code::Float, 32)) return F32;
    if (is(Code::Float, 64)) return F64;
    if (is(Code::Float, 16)) return F16;
    if (is(Code::Bfloat, 16)) return BF16;
    if (is(Code::Int, 32)) return I32;
    if (is(Code::Int, 8)) return I8;
    if (is(FLOAT8_E4M3FN, 8)) return E4M3;
    return is(Code::Int, 64) ? I64 : OTHER_DTYPE;
}

int dtype_of(const char* name) {
    constexpr const char* NAMES[] = {"float32", "float64", "float16", "bfloat16",
                                     "int32",   "int64",   "int8",    "float8_e4m3fn"};  // in the order of numbers
    for (int dtype = 0; dtype <= E4M3; ++dtype)
        if (std::strcmp(name, NAMES[dtype]) == 0) return dtype;
    return OTHER_DTYPE;
}

// Call the methods of the type: an instance may have attributes of these names.
bool view_by_attributes(nb::handle tensor, ArrayView& view) {
    const nb::handle type(tensor_type);
    const nb::str dtype(nb::getattr(tensor, "dtype"));  // "torch.float32"
    const char* const dot = std::strrchr(dtype.c_str(), '.');
    const nb::object shape = nb::getattr(tensor, "shape"), strides = type.attr("stride")(tensor);
    const size_t num_axes = nb::len(shape);
    if (num_axes > MAX_AXES || !nb::cast<bool>(tensor.attr("is_cpu"))) return false;
    int64_t sizes[MAX_AXES], steps[MAX_AXES];
    for (size_t a = 0; a < num_axes; ++a) {
        sizes[a] = nb::cast<int64_t>(shape[a]);
        steps[a] = nb::cast<int64_t>(strides[a]);
    }
    void* const data = reinterpret_cast<void*>(nb::cast<uintptr_t>(type.attr("data_ptr")(tensor)));
    const int64_t itemsize = nb::cast<int64_t>(type.attr("element_size")(tensor));
    return set_view(view, dtype_of(dot ? dot + 1 : dtype.c_str()), itemsize, static_cast<int>(num_axes), sizes, steps,
                    itemsize, data);
}

bool view_by_exchange_table(nb::handle tensor, ArrayView& view) {
    nb::dlpack::dltensor memory;
    if (view_by_table(tensor.ptr(), &memory)) throw nb::python_error();
    if (memory.device.device_type != nb::device::cpu::value) return false;
    const int64_t itemsize = memory.dtype.bits / 8;
    return set_view(view, dtype_of(memory.dtype), itemsize, memory.ndim, memory.shape, memory.strides, itemsize,
                    static_cast<char*>(memory.data) + memory.byte_offset);
}

bool view_memory(nb::handle tensor, ArrayView& view) {
    const bool by_table = view_by_table && is_tensor(tensor);
    return by_table ? view_by_exchange_table(tensor, view) : view_by_attributes(tensor, view);
}

// Return false for tensors without strided memory, sparse or wrapped by a transform, for which PyTorch raises
// an error; and for lazily negated views, whose numbers have the opposite sign in memory, without an error.
bool view_tensor(nb::handle array, ArrayView& view) {
    if (!is_tensor(array)) return false;
    try {
        PyObject* const self = array.ptr();
        const nb::object negated = nb::steal(PyObject_Vectorcall(is_neg_method, &self, 1, nullptr));
        if (!negated.is_valid()) throw nb::python_error();
        return negated.ptr() == Py_False && view_memory(array, view);
    } catch (nb::python_error& error) {
        if (!error.matches(PyExc_Exception)) throw;
        return false;
    }
}

nb::object empty_like(nb::handle tensor, ArrayView& view) {
    nb::object y = nb::handle(empty_like_function)(tensor);
    if (!is_tensor(y) || !view_memory(y, view)) throw nb::type_error("torch.empty_like returned no plain tensor");
    return y;
}

}  // namespace

bool is_tensor(nb::handle array) {
    PyObject* const type = array.type().ptr();
    return tensor_type && (type == tensor_type || type == parameter_type);
}

const Library TORCH = {view_tensor, empty_like, [] { return nb::cast<int>(nb::handle(num_threads_function)()); }, true};

bool use_tensors(nb::handle tensor, nb::handle parameter, nb::handle empty_like, nb::handle num_threads, bool use_table) {
    constexpr const char* NAME = "dlpack_exchange_api";
    tensor_type = tensor.inc_ref().ptr();
    parameter_type = parameter.inc_ref().ptr();
    empty_like_function = empty_like.inc_ref().ptr();
    num_threads_function = num_threads.inc_ref().ptr();
    is_neg_method = nb::getattr(tensor, "is_neg").release().ptr();
    view_by_table = nullptr;
    const nb::object capsule = nb::getattr(tensor, "__dlpack_c_exchange_api__", nb::none());
    if (!use_table || !PyCapsule_IsValid(capsule.ptr(), NAME)) return false;
    const auto* const table = static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), NAME));
    if (table->header.major == 1) view_by_table = table->view;
    return view_by_table != nullptr;
}

}  // namespace rope
