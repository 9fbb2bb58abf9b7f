// Read NumPy's arrays by its C API.
#include "libraries.hpp"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

namespace rope {
namespace {

PyArrayObject* array_of(nb::handle array) { return reinterpret_cast<PyArrayObject*>(array.ptr()); }

int dtype_of(PyArray_Descr* dtype) {
    if (!PyArray_ISNBO(dtype->byteorder)) return OTHER_DTYPE;
    switch (dtype->type_num) {
        case NPY_FLOAT: return F32;
        case NPY_DOUBLE: return F64;
        case NPY_HALF: return F16;
        case NPY_INT: return I32;
        case NPY_BYTE: return I8;
        case NPY_LONG: return sizeof(npy_long) == 8 ? I64 : I32;
        case NPY_LONGLONG: return I64;
        default: break;
    }
    if (dtype->type_num < NPY_USERDEF) return OTHER_DTYPE;
    const nb::object name = nb::steal(PyType_GetName(reinterpret_cast<PyTypeObject*>(dtype->typeobj)));
    if (!name.is_valid()) throw nb::python_error();
    const auto is = [&name](const char* text) { return PyUnicode_CompareWithASCIIString(name.ptr(), text) == 0; };
    return is("bfloat16") ? int{BF16} : is("float8_e4m3fn") ? E4M3 : OTHER_DTYPE;  // of ml_dtypes
}

bool view_numpy(nb::handle object, ArrayView& view) {
    if (!is_numpy_array(object)) return false;
    PyArrayObject* const array = array_of(object);
    view.writable = PyArray_ISWRITEABLE(array);
    return set_view(view, dtype_of(PyArray_DESCR(array)), PyArray_ITEMSIZE(array), PyArray_NDIM(array),
                    PyArray_SHAPE(array), PyArray_STRIDES(array), 1, PyArray_DATA(array));
}

nb::object empty_like(nb::handle array, ArrayView& view) {
    const nb::object y = nb::steal(PyArray_NewLikeArray(array_of(array), NPY_KEEPORDER, nullptr, 0));
    if (!y.is_valid()) throw nb::python_error();
    view_numpy(y, view);
    return y;
}

void* import_c_api() {
    import_array();
    return &PyArray_API;
}

}  // namespace

bool is_numpy_array(nb::handle array) { return PyArray_CheckExact(array.ptr()); }

const Library NUMPY = {view_numpy, empty_like, [] { return 0; }, false};

void import_numpy() {
    if (!import_c_api()) throw nb::python_error();
}

}  // namespace rope
