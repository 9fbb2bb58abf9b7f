// The functions that Python calls: `rotate`, the one entry for arrays of NumPy and PyTorch, the handler that XLA calls,
// and the kernel's settings.
#include <atomic>

#include "attention.hpp"
#include "python_call.hpp"
#include "xla_call.hpp"

using namespace rope;

namespace {

// Rotate x, an array or a tuple of arrays, by a source; return the result or `out`.
//
// Serves NumPy arrays and CPU tensors of one compute dtype, and a source that is an int, a range or integers
// with an exact-angle plan, or tables of the compute dtype whose pairs are contiguous. Otherwise returns
// NotImplemented with nothing written, also for calls that Python's checks refuse. loops/rotate.hpp states
// the errors.
//
// `checked`: the caller has checked that each out is writable, and overlaps nothing but its own x.
// `transposed`: rotate by the transpose; positions only. `gated`: x are tensors; decline calls that PyTorch
// has to record or intercept, and count the writes to out.
nb::object rotate_arrays(nb::handle x, nb::handle source, nb::handle options, nb::handle out, bool checked,
                         bool transposed, bool gated) {
    const nb::object declined = nb::borrow(Py_NotImplemented);
    const ArrayTuple xs(x), outs(out);
    const bool fresh = out.is_none();
    const Library* const library = xs.size ? library_of(xs[0]) : nullptr;
    int64_t axis;
    ParsedSource parsed;
    if (!library || !parse_options(options, axis)) return declined;
    if (gated && !may_bypass_pytorch(xs, source, fresh ? nullptr : &outs)) return declined;
    if (!parsed.parse(source, *library, transposed)) return declined;
    if (gated && parsed.is_recorded_position(source)) return declined;
    Call call(*library, parsed, xs.size);
    if (!call.parse_xs(xs, axis, checked)) return declined;
    if (!fresh && !call.parse_outs(xs, outs, checked)) return declined;
    if (gated && !fresh && !count_writes(outs)) return declined;
    const nb::object result = fresh ? call.create_results(xs) : nb::borrow(out);
    call.run(fresh);
    return result;
}

// Write cos and sin at positions into contiguous arrays of float32 or float64, of the positions' shape and an axis of
// pairs. Return NotImplemented, with nothing written, for other arrays and sources. `gated`: see rotate_arrays().
nb::object make_tables_of_arrays(nb::handle cos, nb::handle sin, nb::handle source, bool gated) {
    const nb::object declined = nb::borrow(Py_NotImplemented);
    const Library* const library = library_of(cos);
    ParsedSource parsed;
    if (!library || (gated && !may_bypass_pytorch(ArrayTuple(cos), source, nullptr))) return declined;
    if (!parsed.parse(source, *library, false) || parsed.source.kind == TABLES) return declined;
    if (gated && parsed.is_recorded_position(source)) return declined;
    ArrayView views[2];
    const Source& positions = parsed.source;
    int64_t bytes = 0;
    for (int i = 0; i < 2; ++i) {
        ArrayView& view = views[i];
        if (!library->view(i ? sin : cos, view) || (view.dtype != F32 && view.dtype != F64)) return declined;
        const int last = view.num_axes - 1;
        if (last != positions.num_axes || view.shape[last] != parsed.plan->layout.num_pairs) return declined;
        if (!std::equal(view.shape, view.shape + last, positions.shape) || !view.is_contiguous()) return declined;
        if (view.is_empty()) return nb::borrow(Py_True);
        bytes = view.itemsize * std::accumulate(view.shape, view.shape + last + 1, int64_t{1}, std::multiplies<>());
    }
    if (views[0].dtype != views[1].dtype) return declined;
    run_unlocked(*library, bytes, [&](const Level& current, int threads) {
        make_tables(*parsed.plan, positions, static_cast<DType>(views[0].dtype), views[0].data, views[1].data, current, threads);
    });
    return nb::borrow(Py_True);
}

// ---- settings ----

nb::list level_names() {
    nb::list names;
    for (const Level* const* next = levels(); *next; ++next) names.append((*next)->name);
    return names;
}

void use_level(const char* name) {
    for (const Level* const* next = levels(); *next; ++next)
        if (std::strcmp((*next)->name, name) == 0) {
            level = *next;
            return;
        }
    throw nb::value_error("no such level on this processor");
}

}  // namespace

NB_MODULE(_kernel, m) {
    if (!levels()[0]) throw nb::import_error("it was compiled for another processor: install the package anew");
    import_numpy();
    os_module = nb::module_::import_("os").release().ptr();
    derived_name = PyUnicode_InternFromString("derived");
    kernel_name = PyUnicode_InternFromString("kernel");
    m.doc() = "The rotation in C++: see rope_array/_backends/_native/__init__.py.";
    m.attr("MAX_AXES") = MAX_AXES;
    m.attr("SOURCES") = ROPE_SOURCES;
    m.def("make_plan", asleep_at_exit(&make_plan));
    m.def("use_tensors", &use_tensors);
    m.def("use_gate", &use_gate, nb::arg("interceptors").none(), nb::arg("forward_ad"), nb::arg("is_grad_enabled"),
          nb::arg("is_inference_mode_enabled"), nb::arg("is_inference"), nb::arg("count_writes"));
    m.def("has_memory", [](nb::handle tensor) {
        ArrayView view;
        return TORCH.view(tensor, view);
    });
    m.def("rotate", asleep_at_exit(&rotate_arrays), nb::arg("x").none(), nb::arg("source").none(),
          nb::arg("options").none(), nb::arg("out").none(), nb::arg("checked") = false, nb::arg("transposed") = false,
          nb::arg("gated") = false);
    m.def("attention_inputs", asleep_at_exit(&attention_inputs), nb::arg("x"), nb::arg("source").none(),
          nb::arg("options").none(), nb::arg("norm").none(), nb::arg("write").none(), nb::arg("out").none(),
          nb::arg("checked") = false, nb::arg("gated") = false);
    m.def("attention_gradients", asleep_at_exit(&attention_gradients), nb::arg("gradients"), nb::arg("x"),
          nb::arg("source").none(), nb::arg("options").none(), nb::arg("norm").none());
    m.def("shift_keys", asleep_at_exit(&shift_keys), nb::arg("caches").none(), nb::arg("slots").none(),
          nb::arg("source").none(), nb::arg("seq_axis").none(), nb::arg("checked") = false, nb::arg("gated") = false);
    m.def("make_tables", asleep_at_exit(&make_tables_of_arrays), nb::arg("cos"), nb::arg("sin"), nb::arg("source").none(),
          nb::arg("gated") = false);
    m.def("xla_handler", [](bool writes) {
        return nb::capsule(reinterpret_cast<const void*>(writes ? &xla::write_in_program : &xla::rotate_in_program));
    });
    m.def("level_names", &level_names);
    m.def("level_name", [] { return level.load()->name; });
    m.def("use_level", &use_level);
    m.def("threads_of", &threads_of);
    m.def("share_out_from", [](int64_t bytes) { return parallel_bytes.exchange(bytes); });
    m.def("stream_from", [](int64_t bytes) { return stream_bytes.exchange(bytes); });
}
