#include "tensor_gate.hpp"

namespace rope {
namespace {

// Kept for good, as PyTorch is.
PyObject *interceptor_functions, *forward_ad_module, *grad_enabled_function, *inference_mode_function, *count_function;
PyObject *is_inference_method, *requires_grad_name, *version_name, *level_name;

nb::object steal_or_throw(PyObject* result) {
    if (!result) throw nb::python_error();
    return nb::steal(result);
}

nb::object call(PyObject* function) { return steal_or_throw(PyObject_CallNoArgs(function)); }

nb::object call(PyObject* function, PyObject* argument) {
    return steal_or_throw(PyObject_Vectorcall(function, &argument, 1, nullptr));
}

bool is_true(const nb::object& value) {
    const int truth = PyObject_IsTrue(value.ptr());
    if (truth < 0) throw nb::python_error();
    return truth;
}

bool is_intercepted() {
    for (Py_ssize_t i = 0; i < PyTuple_Size(interceptor_functions); ++i)
        if (is_true(call(PyTuple_GetItem(interceptor_functions, i)))) return true;
    return nb::cast<int64_t>(steal_or_throw(PyObject_GetAttr(forward_ad_module, level_name))) >= 0;
}

bool all_are_of_inference_mode(const ArrayTuple& tensors) {
    for (size_t i = 0; i < tensors.size; ++i)
        if (!is_true(call(is_inference_method, tensors[i].ptr()))) return false;
    return true;
}

// Tensors of inference mode have no version. Reading it takes half the time of is_inference().
bool all_have_versions(const ArrayTuple& tensors) {
    for (size_t i = 0; i < tensors.size; ++i)
        if (!nb::steal(PyObject_GetAttr(tensors[i].ptr(), version_name)).is_valid()) {
            PyErr_Clear();
            return false;
        }
    return true;
}

bool any(const ArrayTuple& arrays, bool (*test)(nb::handle)) {
    for (size_t i = 0; i < arrays.size; ++i)
        if (test(arrays[i])) return true;
    return false;
}

// Return whether tables require a gradient.
bool tables_require_grad(nb::handle source) {
    auto item = [source](Py_ssize_t i) { return nb::handle(PyTuple_GetItem(source.ptr(), i)); };
    if (!PyTuple_Check(source.ptr()) || PyTuple_Size(source.ptr()) != 3 || !PyTuple_Check(item(2).ptr())) return false;
    return requires_grad(item(0)) || requires_grad(item(1));
}

bool have_same_items(const ArrayTuple& a, const ArrayTuple& b) {
    for (size_t i = 0; i < a.size && i < b.size; ++i)
        if (!a[i].is(b[i])) return false;
    return a.size == b.size;
}

bool is_recorded(const ArrayTuple& xs, nb::handle source, const ArrayTuple* outs) {
    if (!is_true(call(grad_enabled_function))) return false;
    if (any(xs, requires_grad) || tables_require_grad(source)) return true;
    return outs && !have_same_items(*outs, xs) && any(*outs, requires_grad);
}

}  // namespace

void use_gate(nb::handle interceptors, nb::handle forward_ad, nb::handle is_grad_enabled,
              nb::handle is_inference_mode_enabled, nb::handle is_inference, nb::handle count_writes) {
    forward_ad_module = forward_ad.inc_ref().ptr();
    grad_enabled_function = is_grad_enabled.inc_ref().ptr();
    inference_mode_function = is_inference_mode_enabled.inc_ref().ptr();
    is_inference_method = is_inference.inc_ref().ptr();
    count_function = count_writes.inc_ref().ptr();
    requires_grad_name = PyUnicode_InternFromString("requires_grad");
    version_name = PyUnicode_InternFromString("_version");
    level_name = PyUnicode_InternFromString("_current_level");
    interceptor_functions = interceptors.is_none() ? nullptr : interceptors.inc_ref().ptr();
}

bool is_grad_enabled() { return is_true(call(grad_enabled_function)); }

bool requires_grad(nb::handle array) {
    return is_tensor(array) && is_true(steal_or_throw(PyObject_GetAttr(array.ptr(), requires_grad_name)));
}

bool is_recorded(nb::handle tensor) { return is_tensor(tensor) && requires_grad(tensor) && is_true(call(grad_enabled_function)); }

bool may_bypass_pytorch(const ArrayTuple& xs, nb::handle source, const ArrayTuple* outs) {
    return interceptor_functions && !is_recorded(xs, source, outs) && !is_intercepted();
}

bool count_writes(const ArrayTuple& outs) {
    if (!is_true(call(inference_mode_function))) {
        if (!all_have_versions(outs)) return false;
    } else if (all_are_of_inference_mode(outs)) {
        return true;
    }
    call(count_function, (outs.is_tuple ? nb::borrow(outs.argument) : steal_or_throw(PyTuple_Pack(1, outs.argument.ptr()))).ptr());
    return true;
}

}  // namespace rope
