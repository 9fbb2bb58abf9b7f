// A call from Python, parsed: plans, sources, arrays and results of NumPy and PyTorch. Each parse function returns
// false for what the kernel does not serve.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "libraries.hpp"
#include "operands.hpp"
#include "overlap.hpp"
#include "tensor_gate.hpp"
#include "thread_pool.hpp"

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace rope {

constexpr int64_t RELEASE_BYTES = 1 << 15;    // bytes of x from which a call releases the interpreter lock
inline PyObject *derived_name, *kernel_name;  // "derived", "kernel"
inline PyObject* os_module;

// Return the library of an array, or null.
inline const Library* library_of(nb::handle array) {
    if (is_numpy_array(array)) return &NUMPY;
    return is_tensor(array) ? &TORCH : nullptr;
}

inline nb::object get_attribute(nb::handle object, PyObject* name) {
    nb::object value = nb::steal(PyObject_GetAttr(object.ptr(), name));
    if (!value.is_valid()) throw nb::python_error();
    return value;
}

// ---- items and numbers ----

inline nb::handle item(nb::handle tuple, size_t i) { return PyTuple_GetItem(tuple.ptr(), static_cast<Py_ssize_t>(i)); }

inline bool is_tuple_of(nb::handle value, size_t size) {
    return PyTuple_Check(value.ptr()) && PyTuple_Size(value.ptr()) == static_cast<Py_ssize_t>(size);
}

inline bool parse_float(nb::handle value, double& number) {
    if (!PyFloat_CheckExact(value.ptr())) return false;
    number = PyFloat_AsDouble(value.ptr());
    return std::isfinite(number);
}

// ---- plans ----

// Convert an int that fits, and is no bool; otherwise return false.
inline bool parse_int(nb::handle object, int64_t& number) {
    if (!PyLong_CheckExact(object.ptr())) return false;
    int overflow = 0;
    number = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
    return !overflow;
}

// Parse the options of rope_array/_array_api/source.py, or their fields as a plain tuple. Return false for more fields
// than these.
inline bool parse_options(nb::handle options, int64_t& seq_axis) {
    const Py_ssize_t size = PyTuple_Size(options.ptr());
    if (size < 0) PyErr_Clear();  // not a tuple
    return size == 1 && parse_int(PyTuple_GetItem(options.ptr(), 0), seq_axis);
}

inline bool parse_pairing(nb::handle text, bool& half) {
    if (!PyUnicode_Check(text.ptr())) return false;
    half = PyUnicode_CompareWithASCIIString(text.ptr(), "half") == 0;
    return half || PyUnicode_CompareWithASCIIString(text.ptr(), "interleaved") == 0;
}

// Convert a Layout of rope_array/_spec/plan.py; return false for a layout that no rope has.
inline bool parse_layout(nb::handle tuple, Layout& layout) {
    auto field = [tuple](Py_ssize_t i) { return nb::handle(PyTuple_GetItem(tuple.ptr(), i)); };
    int64_t stop;
    if (!PyTuple_Check(tuple.ptr()) || PyTuple_Size(tuple.ptr()) != 7) return false;
    if (!parse_int(field(0), layout.head_dim) || !parse_int(field(1), layout.start) || !parse_int(field(2), stop) ||
        !parse_pairing(field(3), layout.reads_half) || !parse_pairing(field(4), layout.writes_half) ||
        !parse_int(field(6), layout.blocks))
        return false;
    if (layout.start < 0 || stop < layout.start || layout.head_dim < stop || (stop - layout.start) % 2) return false;
    layout.num_pairs = (stop - layout.start) / 2;
    const nb::handle amplitude = field(5);  // the tables contain it already
    const double number = PyFloat_Check(amplitude.ptr()) ? PyFloat_AsDouble(amplitude.ptr()) : 0;
    if (!amplitude.is_none() && !(number > 0 && std::isfinite(number))) return false;
    return is_valid(layout);
}

constexpr const char* PLANS = "rope_array.KernelPlans";

struct Plans {
    std::vector<int64_t> words;
    KernelPlan by_transposed[2];  // of a rotation, and of its transpose, the map of gradients
};

// A capsule, not a class: nanobind registers a class once in a process, and a module may be imported again.
inline nb::capsule make_plan(nb::handle words) {
    auto plans = std::make_unique<Plans>();
    for (nb::handle word : words) plans->words.push_back(nb::cast<int64_t>(word));
    KernelPlan& plan = plans->by_transposed[0];
    const bool is_plan = set_plan(plan, plans->words.data(), static_cast<int64_t>(plans->words.size()));
    if (!is_plan || (plan.layout.num_pairs && !plan.frequencies.turns_q64))
        throw nb::value_error("not a plan of a rope");
    plans->by_transposed[1] = transposed(plan);
    auto destroy = [](void* pointer) noexcept { delete static_cast<Plans*>(pointer); };
    return nb::capsule(plans.release(), PLANS, destroy);
}

// ---- sources ----

inline bool parse_range(nb::handle range, Source& source) {
    int64_t stop;
    if (!parse_int(nb::getattr(range, "start"), source.start) || !parse_int(nb::getattr(range, "stop"), stop) ||
        !parse_int(nb::getattr(range, "step"), source.step))
        return false;
    source.kind = SPACED;
    source.num_axes = 1;
    source.shape[0] = PyObject_Length(range.ptr());
    if (source.shape[0] < 0) PyErr_Clear();  // longer than a sequence can be
    return source.shape[0] >= 0;
}

inline bool parse_int_position(nb::handle position, Source& source) {
    source.kind = SPACED;
    source.num_axes = 0;
    source.step = 0;
    return parse_int(position, source.start);
}

// A source of rope_array/_array_api/source.py, parsed.
struct ParsedSource {
    Source source;
    nb::object capsule;  // holding it keeps the plan alive if another thread replaces the handle
    KernelPlan layout_plan = {};  // for tables: a layout without frequencies
    const KernelPlan* plan = &layout_plan;
    ArrayView views[2];  // of positions, or of cos and sin
    int num_views = 0;
    bool is_double = false;  // of tables
    double number;           // of a source that is a Python float

    // Return false if the kernel does not serve the source.
    bool parse(nb::handle tuple, const Library& library, bool transposed) {
        if (!PyTuple_Check(tuple.ptr()) || PyTuple_Size(tuple.ptr()) != 3) return false;
        const nb::handle first = PyTuple_GetItem(tuple.ptr(), 0), second = PyTuple_GetItem(tuple.ptr(), 1),
                         third = PyTuple_GetItem(tuple.ptr(), 2);
        // Positions(values, plan, inv_freq) or Tables(cos, sin, layout); a layout is a tuple.
        if (PyTuple_Check(third.ptr())) return parse_tables(first, second, third, library);
        return third.is_none() && parse_positions(first, second, library, transposed);
    }

    // Return whether positions are floats whose gradient PyTorch records.
    bool is_recorded_position(nb::handle tuple) const {
        return source.has_floats() && is_recorded(PyTuple_GetItem(tuple.ptr(), 0));
    }

  private:
    bool parse_positions(nb::handle values, nb::handle python_plan, const Library& library, bool transposed) {
        const nb::object derived = get_attribute(python_plan, derived_name);
        capsule = get_attribute(derived, kernel_name);
        if (capsule.is_none()) return false;
        const auto* plans = static_cast<const Plans*>(PyCapsule_GetPointer(capsule.ptr(), PLANS));
        if (!plans) {
            PyErr_Clear();
            return false;
        }
        plan = &plans->by_transposed[transposed];
        if (PyLong_CheckExact(values.ptr())) return !plan->num_coordinates && parse_int_position(values, source);
        if (PyFloat_CheckExact(values.ptr())) return !plan->num_coordinates && parse_float_position(values);
        if (PyRange_Check(values.ptr())) return !plan->num_coordinates && parse_range(values, source);
        num_views = 1;
        return library.view(values, views[0]) && set_positions(source, views[0], *plan);
    }

    // Python's checks raise for a float from 2^31 on, and for NaN.
    bool parse_float_position(nb::handle value) {
        number = PyFloat_AsDouble(value.ptr());
        source.kind = FLOAT64;
        source.num_axes = 0;
        source.data = reinterpret_cast<const char*>(&number);
        source.coordinate = 0;
        return std::fabs(number) < 0x1p31 && plan->takes_fractions;
    }

    bool parse_tables(nb::handle first, nb::handle second, nb::handle layout, const Library& library) {
        ArrayView &cos = views[0], &sin = views[1];
        num_views = 2;
        if (!library.view(first, cos) || !library.view(second, sin)) return false;
        if (!parse_layout(layout, layout_plan.layout) || !set_tables(source, cos, sin, layout_plan.layout)) return false;
        is_double = cos.dtype == F64;
        return true;
    }
};

// ---- the number of threads ----

// Without the GIL, getenv() could read memory that another Python thread frees when it sets a variable, whichever: the C
// library locks no reader, before glibc 2.41. os.environ is a dict.
#if defined(Py_GIL_DISABLED)
inline int number_in_os_environ(const char* variable) {
    const nb::object text = nb::handle(os_module).attr("environ").attr("get")(variable);
    const char* const utf8 = text.is_none() ? nullptr : PyUnicode_AsUTF8AndSize(text.ptr(), nullptr);
    if (!utf8) PyErr_Clear();
    return leading_number(utf8);
}
#else
constexpr auto number_in_os_environ = number_in_environment;
#endif

inline int threads_of(int library_threads) { return num_threads(library_threads, number_in_os_environ); }

// ---- the entry ----

// Make a call that may take the interpreter lock. While the interpreter exits, Python before 3.14 ends a
// daemon thread that takes the lock: with glibc, pthread_exit unwinds the stack by an exception, and
// nanobind's frames end the process, as they catch it and do not rethrow it, or are noexcept. So the thread
// sleeps, as Python 3.14 lets it. The caught reference is null, which sanitizers would report.
#if defined(__GLIBCXX__)
template <class F>
__attribute__((no_sanitize("null", "alignment"))) auto sleeping_at_exit(F call) {
    try {
        return call();
    } catch (abi::__forced_unwind&) {
        for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
}
#else
template <class F>
auto sleeping_at_exit(F call) {
    return call();
}
#endif

// Return the function with all of its calls guarded: attributes, iterators and finalizers may be Python code, which
// takes the lock anew.
template <class Result, class... Args>
auto asleep_at_exit(Result (*function)(Args...)) {
    return [function](Args... args) { return sleeping_at_exit([&] { return function(args...); }); };
}

// Call run(level, number of threads) for work on `bytes` bytes, without the interpreter lock if they are many.
template <class Run>
void run_unlocked(const Library& library, int64_t bytes, const Run& run) {
    const Level& current = *level.load(std::memory_order_relaxed);
    if (bytes < RELEASE_BYTES) return run(current, 1);
    const bool is_small = bytes < parallel_bytes.load(std::memory_order_relaxed);
    const int threads = is_small ? 1 : threads_of(library.num_threads());
    std::exception_ptr error;
    PyThreadState* const state = PyEval_SaveThread();
    try {
        run(current, threads);
    } catch (...) {
        error = std::current_exception();
    }
    sleeping_at_exit([&] { PyEval_RestoreThread(state); });
    if (error) std::rethrow_exception(error);
}

class Call {
  public:
    // `size`: the number of arrays; the first of them are x.
    Call(const Library& library, const ParsedSource& parsed, size_t size)
        : library_(library), parsed_(parsed), xs_(size), arrays_(size), separate_views_(size), outs_(size) {}

    // Return false if the kernel does not serve the arrays. A `checked` call may have one position for as many tokens as
    // it has coordinates: compiled programs do not compare them.
    bool parse_xs(const ArrayTuple& xs, int64_t seq_axis, bool checked) {
        const int64_t num_coordinates = checked ? 0 : parsed_.plan->num_coordinates;
        for (size_t i = 0; i < xs.size; ++i) {
            Array& array = arrays_[i];
            ArrayView& x = xs_[i];
            if (!library_.view(xs[i], x) || !set_array(array, x, parsed_.plan->layout, seq_axis)) return false;
            const bool is_double = array.dtype == F64;
            if (is_double != (arrays_[0].dtype == F64) || !lines_up(array, parsed_.source, num_coordinates)) return false;
            if (parsed_.source.kind == TABLES && is_double != parsed_.is_double) return false;
        }
        return true;
    }

    // Return false if the results cannot be written to `outs`.
    bool parse_outs(const ArrayTuple& xs, const ArrayTuple& outs, bool checked) {
        if (outs.size != xs.size || outs.is_tuple != xs.is_tuple) return false;
        num_outs_ = xs.size;
        for (size_t i = 0; i < xs.size; ++i) {
            const bool in_place = outs[i].is(xs[i]);
            outs_[i] = in_place ? &xs_[i] : &separate_views_[i];
            if (!in_place && !library_.view(outs[i], separate_views_[i])) return false;
            if (outs_[i]->dtype != xs_[i].dtype || !outs_[i]->has_same_shape(xs_[i])) return false;
            set_result(arrays_[i], *outs_[i]);
        }
        return checked || may_write();
    }

    nb::object create_results(const ArrayTuple& xs) {
        nb::object results;
        if (xs.is_tuple) {
            results = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(xs.size)));
            if (!results.is_valid()) throw nb::python_error();
        }
        for (size_t i = 0; i < xs.size; ++i) {
            ArrayView view;
            nb::object y = library_.empty_like(xs[i], view);
            set_result(arrays_[i], view);
            if (library_.wants_huge_pages) prefer_huge_pages(view.data, bytes_of(i));
            if (!xs.is_tuple) return y;
            PyTuple_SetItem(results.ptr(), static_cast<Py_ssize_t>(i), y.release().ptr());
        }
        return results;
    }

    void run(bool fresh) const { run(fresh, arrays_); }

    // Run on other arrays than those of the call, which have the same memory.
    void run(bool fresh, const Items<Array>& arrays) const {
        int64_t bytes = 0;
        for (size_t i = 0; i < arrays_.size(); ++i) bytes += bytes_of(i);
        run_unlocked(library_, bytes, [&](const Level& current, int threads) {
            rotate(*parsed_.plan, arrays, parsed_.source, fresh, current, threads);
        });
    }

    // Compute gradients on other arrays than those of the call.
    void run_gradients(const Items<Array>& arrays, std::vector<double>& weight_sums) const {
        int64_t bytes = 0;
        for (size_t i = 0; i < arrays_.size(); ++i) bytes += bytes_of(i);
        run_unlocked(library_, bytes, [&](const Level& current, int threads) {
            rotate_gradients(*parsed_.plan, arrays, parsed_.source, current, threads, weight_sums);
        });
    }

    // Return whether a view shares no byte with x, positions or tables, and results. If unsure, return false.
    bool is_apart_from_all(const ArrayView& view) const {
        for (size_t j = 0; j < arrays_.size(); ++j)
            if (!are_apart(view, xs_[j])) return false;
        return is_apart_from_source_and_results(view, num_outs_);
    }

    // Return whether a view shares no byte with results that the caller gave. If unsure, return false.
    bool is_apart_from_outs(const ArrayView& view) const {
        for (size_t j = 0; j < num_outs_; ++j)
            if (!are_apart(view, *outs_[j])) return false;
        return true;
    }

    ArrayView& view(size_t i) { return xs_[i]; }
    Array& array(size_t i) { return arrays_[i]; }
    const Items<Array>& arrays() const { return arrays_; }

  private:
    int64_t bytes_of(size_t i) const {
        int64_t bytes = xs_[i].itemsize;
        for (int a = 0; a < xs_[i].num_axes; ++a) bytes *= xs_[i].shape[a];
        return bytes;
    }

    bool is_apart_from_source_and_results(const ArrayView& view, size_t num_outs) const {
        for (int j = 0; j < parsed_.num_views; ++j)
            if (!are_apart(view, parsed_.views[j])) return false;
        for (size_t j = 0; j < num_outs; ++j)
            if (!are_apart(view, *outs_[j])) return false;
        return true;
    }

    // Return whether each out has memory for each of its elements, and overlaps nothing unless it is its own
    // x. If unsure, return false: Python's check decides.
    bool may_write() const {
        for (size_t i = 0; i < num_outs_; ++i) {
            const ArrayView& out = *outs_[i];
            if (!out.writable || may_overlap_itself(out) || !is_apart_from_source_and_results(out, i)) return false;
            for (size_t j = 0; j < arrays_.size(); ++j)
                if (!(i == j && are_same(out, xs_[j])) && !are_apart(out, xs_[j])) return false;
        }
        return true;
    }

    const Library& library_;
    const ParsedSource& parsed_;
    Items<ArrayView> xs_;
    Items<Array> arrays_;
    Items<ArrayView> separate_views_;  // of results that are not in place
    Items<const ArrayView*> outs_;
    size_t num_outs_ = 0;
};

}  // namespace rope
