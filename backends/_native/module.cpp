// What Python calls: doors for the plain cases of NumPy and PyTorch, whose arrays are looked at here, and one for any
// memory, as Python says it lies.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "schedule.hpp"
#include "thread_pool.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace nb = nanobind;
using namespace rope;

namespace {

constexpr int64_t RELEASE_BYTES = 1 << 15;  // of x, from which on other Python threads may run meanwhile
constexpr int64_t HUGE_BYTES = 1 << 22;     // from which on a result asks for huge pages, as NumPy's own do

const Level* level = levels()[0];
PyObject* native_name;  // "native"

// ---- specs ----

template <class To>
std::vector<To> numbers(nb::handle sequence) {
    std::vector<To> out;
    for (nb::handle number : sequence) out.push_back(nb::cast<To>(number));
    return out;
}

// Words of frequencies, most of which are signed in Python.
std::vector<uint64_t> unsigned_words(nb::handle sequence) {
    std::vector<uint64_t> out;
    for (int64_t word : numbers<int64_t>(sequence)) out.push_back(static_cast<uint64_t>(word));
    return out;
}

constexpr const char* SPEC = "rope_array.Spec";

// A capsule, not a class: nanobind knows a class once in a process, and a module may be imported anew.
nb::capsule make_spec(int64_t head_dim, int64_t start, int64_t stop, int64_t blocks, bool reads_half, bool writes_half,
                      double amplitude, bool transposed, nb::handle words64, nb::handle upper, nb::handle lower,
                      nb::handle coordinate, int64_t coordinates) {
    const Layout layout = {head_dim, start, (stop - start) / 2, blocks, reads_half, writes_half};
    KernelPlan* const made = new KernelPlan{layout, amplitude, transposed, coordinates, unsigned_words(words64),
                                            unsigned_words(upper), unsigned_words(lower), numbers<int32_t>(coordinate)};
    return nb::capsule(made, SPEC, [](void* spec) noexcept { delete static_cast<KernelPlan*>(spec); });
}

// Null where it is none.
const KernelPlan* spec_of(nb::handle object) {
    if (!PyCapsule_IsValid(object.ptr(), SPEC)) return nullptr;
    return static_cast<const KernelPlan*>(PyCapsule_GetPointer(object.ptr(), SPEC));
}

// ---- arrays and positions ----

// Bytes between the elements along an axis. Where there is one element, its library may have any number for it.
template <class Int>
int64_t distance(const Int* shape, const Int* strides, int axis, int64_t unit) {
    return shape[axis] > 1 ? unit * strides[axis] : 0;
}

// An array and its result, from shape and strides as its library has them; strides count by `unit` bytes.
template <class Int>
void place(Array& array, int type, int axes, const Int* shape, const void* x, const Int* x_strides, void* y,
           const Int* y_strides, int64_t unit) {
    array.dtype = static_cast<DType>(type);
    array.num_axes = axes - 1;
    for (int a = 0; a < array.num_axes; ++a) {
        array.shape[a] = shape[a];
        array.x_stride[a] = distance(shape, x_strides, a, unit);
        array.y_stride[a] = distance(shape, y_strides, a, unit);
    }
    array.features = shape[array.num_axes];
    array.x_feature = distance(shape, x_strides, array.num_axes, unit);
    array.y_feature = distance(shape, y_strides, array.num_axes, unit);
    array.x = static_cast<const char*>(x);
    array.y = static_cast<char*>(y);
}

// Integer positions; false where their coordinates are not the plan's.
template <class Int>
bool place(Source& source, SourceKind kind, int axes, const Int* shape, const void* data, const Int* strides, int64_t unit,
           const KernelPlan& plan) {
    const int several = plan.num_coordinates ? 1 : 0;
    source.kind = kind;
    source.num_axes = axes - several;
    if (source.num_axes < 0 || source.num_axes > MAX_AXES || (several && shape[source.num_axes] != plan.num_coordinates)) return false;
    for (int a = 0; a < source.num_axes; ++a) {
        source.shape[a] = shape[a];
        source.stride[a] = distance(shape, strides, a, unit);
    }
    source.coordinate = several ? distance(shape, strides, source.num_axes, unit) : 0;
    source.data = static_cast<const char*>(data);
    return true;
}

// Tables with lanes side by side; false where these are not as many as the layout's.
template <class Int>
bool place(Source& source, int axes, const Int* shape, const void* cos, const Int* cos_strides, const void* sin,
           const Int* sin_strides, int64_t unit, const Layout& layout) {
    source.kind = TABLES;
    source.num_axes = axes - 1;
    if (axes < 1 || shape[source.num_axes] != layout.num_pairs) return false;
    for (int a = 0; a < source.num_axes; ++a) {
        source.shape[a] = shape[a];
        source.stride[a] = distance(shape, cos_strides, a, unit);
        source.sin_stride[a] = distance(shape, sin_strides, a, unit);
    }
    source.data = static_cast<const char*>(cos);
    source.sin = static_cast<const char*>(sin);
    return true;
}

// ---- NumPy's plain case ----

// The type of an array that is rotated as it lies in memory, or -1.
int type_of(PyArrayObject* x) {
    PyArray_Descr* const dtype = PyArray_DESCR(x);
    if (!PyArray_ISNBO(dtype->byteorder) || !PyArray_ISALIGNED(x)) return -1;
    switch (dtype->type_num) {
        case NPY_FLOAT: return F32;
        case NPY_DOUBLE: return F64;
        case NPY_HALF: return F16;
        default: break;
    }
    if (dtype->type_num < NPY_USERDEF) return -1;
    // ml_dtypes' own; NumPy has none.
    const nb::object name = nb::steal(PyType_GetName(reinterpret_cast<PyTypeObject*>(dtype->typeobj)));
    if (!name.is_valid()) throw nb::python_error();
    return PyUnicode_CompareWithASCIIString(name.ptr(), "bfloat16") == 0 ? BF16 : -1;
}

// First byte, and the byte after the last.
struct Extent {
    const char *from, *to;

    explicit Extent(PyArrayObject* array) : from(PyArray_BYTES(array)), to(from + PyArray_ITEMSIZE(array)) {
        for (int a = 0; a < PyArray_NDIM(array); ++a) {
            const npy_intp reach = (PyArray_DIM(array, a) - 1) * PyArray_STRIDE(array, a);
            (reach < 0 ? from : to) += reach;
        }
        if (!PyArray_SIZE(array)) to = from;
    }

    bool apart(const Extent& other) const { return to <= other.from || other.to <= from; }
};

bool same_memory(PyArrayObject* a, PyArrayObject* b) {
    const npy_intp* const strides = PyArray_STRIDES(a);
    return PyArray_BYTES(a) == PyArray_BYTES(b) && std::equal(strides, strides + PyArray_NDIM(a), PyArray_STRIDES(b));
}

bool same_shape(PyArrayObject* a, PyArrayObject* b) {
    const npy_intp* const shape = PyArray_SHAPE(a);
    return PyArray_NDIM(a) == PyArray_NDIM(b) && std::equal(shape, shape + PyArray_NDIM(a), PyArray_SHAPE(b));
}

// Arrays of a call as nanobind gives them: one, or those of a tuple.
class Arrays {
  public:
    explicit Arrays(nb::handle given) : tuple_(PyTuple_CheckExact(given.ptr())), given_(given) {
        size_ = tuple_ ? static_cast<size_t>(PyTuple_Size(given.ptr())) : 1;
    }

    size_t size() const { return size_; }
    bool tuple() const { return tuple_; }

    // Null where it is not a plain array.
    PyArrayObject* operator[](size_t i) const {
        PyObject* const one = tuple_ ? PyTuple_GetItem(given_.ptr(), static_cast<Py_ssize_t>(i)) : given_.ptr();
        return PyArray_CheckExact(one) ? reinterpret_cast<PyArrayObject*>(one) : nullptr;
    }

  private:
    bool tuple_;
    nb::handle given_;
    size_t size_;
};

// `seq_axis` from the front, -1 for a single vector, or -2 where it is none.
int sequence_axis(int64_t seq_axis, int axes) {
    if (axes == 0) return seq_axis == -2 ? -1 : -2;
    const int64_t from_front = seq_axis < 0 ? seq_axis + axes + 1 : seq_axis;
    return 0 <= from_front && from_front < axes ? static_cast<int>(from_front) : -2;
}

// A Python int that is one and fits, or false.
bool integer(PyObject* object, int64_t& number) {
    if (!PyLong_CheckExact(object)) return false;
    int overflow = 0;
    number = PyLong_AsLongLongAndOverflow(object, &overflow);
    return !overflow;
}

bool read_range(nb::handle pos, Source& source) {
    int64_t stop;
    const nb::object start = nb::getattr(pos, "start"), end = nb::getattr(pos, "stop"), step = nb::getattr(pos, "step");
    if (!integer(start.ptr(), source.start) || !integer(end.ptr(), stop) || !integer(step.ptr(), source.step))
        return false;
    source.kind = SPACED;
    source.num_axes = 1;
    source.shape[0] = PyObject_Length(pos.ptr());
    if (source.shape[0] < 0) PyErr_Clear();  // longer than a sequence may be
    return source.shape[0] >= 0;
}

bool read_array(PyArrayObject* pos, const KernelPlan& plan, Source& source) {
    const int kind = PyArray_DESCR(pos)->type_num;
    const bool wide = kind == NPY_LONGLONG || (kind == NPY_LONG && sizeof(npy_long) == 8);
    if (!wide && kind != NPY_INT && kind != NPY_LONG) return false;
    if (!PyArray_ISNBO(PyArray_DESCR(pos)->byteorder) || !PyArray_ISALIGNED(pos)) return false;
    return place(source, wide ? INT64 : INT32, PyArray_NDIM(pos), PyArray_SHAPE(pos), PyArray_BYTES(pos),
                 PyArray_STRIDES(pos), 1, plan);
}

bool read_tables(PyArrayObject* cos, PyArrayObject* sin, const Layout& layout, Source& source) {
    const int axes = PyArray_NDIM(cos);
    const npy_intp size = PyArray_ITEMSIZE(cos);
    if (!axes || PyArray_STRIDE(cos, axes - 1) != size || PyArray_STRIDE(sin, axes - 1) != size) return false;
    return place(source, axes, PyArray_SHAPE(cos), PyArray_BYTES(cos), PyArray_STRIDES(cos), PyArray_BYTES(sin),
                 PyArray_STRIDES(sin), 1, layout);
}

bool read_positions(nb::handle pos, const KernelPlan& plan, Source& source) {
    if (PyArray_CheckExact(pos.ptr())) return read_array(reinterpret_cast<PyArrayObject*>(pos.ptr()), plan, source);
    if (plan.num_coordinates) return false;
    if (PyRange_Check(pos.ptr())) return read_range(pos, source);
    source.kind = SPACED;
    source.num_axes = 0;
    source.step = 0;
    return integer(pos.ptr(), source.start);
}

void describe(PyArrayObject* x, PyArrayObject* y, int type, Array& array) {
    place(array, type, PyArray_NDIM(x), PyArray_SHAPE(x), PyArray_BYTES(x), PyArray_STRIDES(x), PyArray_BYTES(y),
          PyArray_STRIDES(y), 1);
}

void turn(const KernelPlan& plan, const std::vector<Array>& arrays, const Source& source, bool fresh, int64_t bytes,
          int threads) {
    if (bytes < RELEASE_BYTES) return rotate(plan, arrays, source, fresh, *level, 1);
    threads = num_threads(threads);
    nb::gil_scoped_release released;
    rotate(plan, arrays, source, fresh, *level, threads);
}

// Whether results may be written where they are asked for: plain memory of their own, or their own x's. What is
// not plain is judged in Python, which has the time to.
bool may_write(const Arrays& xs, const Arrays& outs, std::initializer_list<nb::handle> beside) {
    if (outs.size() != xs.size() || outs.tuple() != xs.tuple()) return false;
    for (size_t i = 0; i < xs.size(); ++i) {
        PyArrayObject* const out = outs[i];
        if (!out || !PyArray_ISCARRAY(out) || PyArray_DESCR(out) != PyArray_DESCR(xs[i]) || !same_shape(out, xs[i]))
            return false;
        const Extent extent(out);
        for (nb::handle other : beside)
            if (PyArray_CheckExact(other.ptr()) && !extent.apart(Extent(reinterpret_cast<PyArrayObject*>(other.ptr()))))
                return false;
        for (size_t j = 0; j < xs.size(); ++j) {
            if (j == i ? !same_memory(out, xs[i]) && !extent.apart(Extent(xs[i]))
                       : !extent.apart(Extent(xs[j])) || !extent.apart(Extent(outs[j] ? outs[j] : out)))
                return false;
        }
    }
    return true;
}

nb::object declined() { return nb::borrow(Py_NotImplemented); }

// A call on plain arrays, read and checked.
struct Plain {
    std::vector<Array> arrays;
    int64_t bytes = 0;

    // Whether all xs are of one precision and line up with what is source.
    bool read(const Arrays& xs, const Layout& layout, const Source& source, int64_t axis) {
        arrays.resize(xs.size());
        for (size_t i = 0; i < xs.size(); ++i) {
            PyArrayObject* const x = xs[i];
            const int type = x ? type_of(x) : -1;
            if (type < 0 || PyArray_NDIM(x) < 1 || PyArray_DIM(x, PyArray_NDIM(x) - 1) != layout.head_dim) return false;
            describe(x, x, type, arrays[i]);
            arrays[i].seq_axis = sequence_axis(axis, arrays[i].num_axes);
            const bool same_precision = (type == F64) == (arrays[0].dtype == F64);
            if (arrays[i].seq_axis == -2 || !same_precision || !lines_up(arrays[i], source)) return false;
            bytes += PyArray_NBYTES(x);
        }
        return !arrays.empty();
    }

    void write_to(const Arrays& xs, size_t i, PyArrayObject* y) { describe(xs[i], y, arrays[i].dtype, arrays[i]); }
};

// New arrays, ordered in memory as their xs are.
nb::object fresh_results(const Arrays& xs, Plain& call) {
    nb::object made = xs.tuple() ? nb::steal(PyTuple_New(static_cast<Py_ssize_t>(xs.size()))) : nb::object();
    for (size_t i = 0; i < xs.size(); ++i) {
        PyObject* const y = PyArray_NewLikeArray(xs[i], NPY_KEEPORDER, nullptr, 0);
        if (!y) throw nb::python_error();
        call.write_to(xs, i, reinterpret_cast<PyArrayObject*>(y));
        if (!xs.tuple()) return nb::steal(y);
        PyTuple_SetItem(made.ptr(), static_cast<Py_ssize_t>(i), y);
    }
    return made;
}

// Rotates plain NumPy arrays of one precision by what is given; NotImplemented for all that is not plain, and for
// what is refused, as Python says why.
nb::object turn_plain(const KernelPlan& spec, const Arrays& xs, const Source& source, nb::handle seq_axis, nb::handle out,
                      std::initializer_list<nb::handle> beside) {
    int64_t axis;
    Plain call;
    if (!integer(seq_axis.ptr(), axis) || !call.read(xs, spec.layout, source, axis)) return declined();
    nb::object result;
    if (out.is_none()) {
        result = fresh_results(xs, call);
    } else {
        const Arrays outs(out);
        if (!may_write(xs, outs, beside)) return declined();
        for (size_t i = 0; i < xs.size(); ++i) call.write_to(xs, i, outs[i]);
        result = nb::borrow(out);
    }
    turn(spec, call.arrays, source, out.is_none(), call.bytes, 0);
    return result;
}

// By integer positions.
nb::object quick(nb::handle x, nb::handle pos, nb::handle plan, nb::handle seq_axis, nb::handle out) {
    const nb::object native = nb::steal(PyObject_GetAttr(plan.ptr(), native_name));
    if (!native.is_valid()) throw nb::python_error();
    const KernelPlan* const spec = spec_of(native);
    Source source;
    if (!spec || !spec->has_frequencies() || !read_positions(pos, *spec, source)) return declined();
    return turn_plain(*spec, Arrays(x), source, seq_axis, out, {pos});
}

// By tables in the precision of the arithmetic.
nb::object quick_tables(nb::handle x, nb::handle cos, nb::handle sin, nb::handle native, nb::handle seq_axis,
                        nb::handle out) {
    const KernelPlan* const spec = spec_of(native);
    const Arrays xs(x);
    if (!PyArray_CheckExact(cos.ptr()) || !PyArray_CheckExact(sin.ptr())) return declined();
    PyArrayObject* const c = reinterpret_cast<PyArrayObject*>(cos.ptr());
    PyArrayObject* const s = reinterpret_cast<PyArrayObject*>(sin.ptr());
    if (!spec || !xs.size() || !xs[0] || type_of(c) != (type_of(xs[0]) == F64 ? F64 : F32)) return declined();
    Source source;
    if (type_of(s) != type_of(c) || !same_shape(c, s) || !read_tables(c, s, spec->layout, source)) return declined();
    return turn_plain(*spec, xs, source, seq_axis, out, {cos, sin});
}

// ---- any memory ----

template <class T>
T* address(nb::handle number) {
    return reinterpret_cast<T*>(nb::cast<uintptr_t>(number));
}

int64_t number(nb::handle object) {
    const long long value = PyLong_AsLongLong(object.ptr());
    if (value == -1 && PyErr_Occurred()) throw nb::python_error();
    return value;
}

nb::handle item(nb::handle tuple, Py_ssize_t i) {
    PyObject* const found = PyTuple_GetItem(tuple.ptr(), i);
    if (!found) throw nb::python_error();
    return found;
}

int length(nb::handle tuple) {
    const Py_ssize_t n = PyTuple_Size(tuple.ptr());
    if (n < 0) throw nb::python_error();
    if (n > MAX_AXES) throw nb::value_error("more axes than NumPy has");
    return static_cast<int>(n);
}

void read(nb::handle tuple, int64_t* numbers, int count) {
    for (int a = 0; a < count; ++a) numbers[a] = number(item(tuple, a));
}

// (type, shape, address of x, its strides, address of y, its strides, bytes that strides count by)
void read_array(nb::handle given, Array& array) {
    const nb::handle shape = item(given, 1);
    const int64_t type = number(item(given, 0));
    if (type < 0 || type >= NUM_DTYPES) throw nb::value_error("no such type");
    const int axes = length(shape);
    if (!axes) throw nb::value_error("an array without axes");
    int64_t sizes[MAX_AXES], x[MAX_AXES], y[MAX_AXES];
    read(shape, sizes, axes);
    read(item(given, 3), x, axes);
    read(item(given, 5), y, axes);
    place(array, static_cast<int>(type), axes, sizes, address<void>(item(given, 2)), x, address<void>(item(given, 4)),
          y, number(item(given, 6)));
}

// Bytes of an array, without gaps.
int64_t bytes_of(const Array& array) {
    int64_t bytes = ITEMSIZE[array.dtype] * array.features;
    for (int a = 0; a < array.num_axes; ++a) bytes *= array.shape[a];
    return bytes;
}

// Whether all memory is there: PyTorch frees that of a tensor while its shape stays (fully sharded training does).
bool is_there(const std::vector<Array>& arrays, const Source& source, const Layout& layout) {
    bool there = source.kind == SPACED || source.data || (source.kind == TABLES && !layout.num_pairs);
    for (int a = 0; a < source.num_axes; ++a) there = there || !source.shape[a];
    for (const Array& array : arrays) there = there && ((array.x && array.y) || !bytes_of(array));
    return there;
}


// (SPACED, start, step, shape), (INT32 or INT64, address, strides, shape, unit),
// (TABLES, address of cos, strides, shape, unit, address of sin, strides): shape with coordinates or lanes.
// False where they do not fit the spec.
bool read_given(nb::handle tuple, const KernelPlan& plan, Source& source) {
    const SourceKind kind = static_cast<SourceKind>(number(item(tuple, 0)));
    if (kind != TABLES && !plan.has_frequencies()) throw nb::value_error("positions for a spec that takes tables");
    const nb::handle shape = item(tuple, 3);
    const int axes = length(shape);
    if (kind == SPACED) {
        source.kind = kind;
        source.num_axes = axes;
        source.start = number(item(tuple, 1));
        source.step = number(item(tuple, 2));
        read(shape, source.shape, axes);
        return true;
    }
    int64_t sizes[MAX_AXES], strides[MAX_AXES], sin_strides[MAX_AXES];
    read(shape, sizes, axes);
    read(item(tuple, 2), strides, axes);
    const void* const data = address<void>(item(tuple, 1));
    const int64_t unit = number(item(tuple, 4));
    if (kind != TABLES) return place(source, kind, axes, sizes, data, strides, unit, plan);
    read(item(tuple, 6), sin_strides, axes);
    return place(source, axes, sizes, data, strides, address<void>(item(tuple, 5)), sin_strides, unit, plan.layout);
}

// Asks that fresh memory come in huge pages, a page fault for each 2 MiB instead of each 4 KiB: a hint, and none
// where the system has no such pages. NumPy asks for its own.
void prefer_huge_pages(char* memory, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (bytes < HUGE_BYTES) return;
    constexpr uintptr_t PAGE = 4096;
    const uintptr_t from = reinterpret_cast<uintptr_t>(memory), to = from + static_cast<uintptr_t>(bytes);
    const uintptr_t first = (from + PAGE - 1) / PAGE * PAGE, last = to / PAGE * PAGE;
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
    (void)memory;
    (void)bytes;
#endif
}

// Rotates what is checked. How many threads its library has is asked where they may be used.
void turn_checked(const KernelPlan& plan, const std::vector<Array>& arrays, const Source& source,
                  nb::handle library_threads, bool fresh) {
    int64_t bytes = 0;
    for (const Array& array : arrays) {
        if (fresh) prefer_huge_pages(array.y, bytes_of(array));
        bytes += bytes_of(array);
    }
    const bool ask = bytes >= RELEASE_BYTES && !library_threads.is_none();
    turn(plan, arrays, source, fresh, bytes, ask ? nb::cast<int>(library_threads()) : 0);
}

// Rotates memory of one precision, checked by the caller but for shapes: false where they do not fit. All arrays
// are looked at before one is written.
bool run(nb::handle given_spec, nb::handle given_arrays, nb::handle given_positions, int64_t seq_axis,
         nb::handle library_threads, bool fresh) {
    const KernelPlan* const spec = spec_of(given_spec);
    if (!spec) throw nb::type_error("no spec");
    const KernelPlan& plan = *spec;
    const int count = static_cast<int>(PyTuple_Size(given_arrays.ptr()));
    if (count < 0) throw nb::python_error();
    std::vector<Array> arrays(static_cast<size_t>(count));
    Source source;
    if (!read_given(given_positions, plan, source)) return false;
    for (size_t i = 0; i < arrays.size(); ++i) {
        const nb::handle one = item(given_arrays, static_cast<Py_ssize_t>(i));
        const Py_ssize_t axes = PyTuple_Size(item(one, 1).ptr());
        if (axes < 0) throw nb::python_error();
        if (axes < 1 || axes > MAX_AXES) return false;
        read_array(one, arrays[i]);
        arrays[i].seq_axis = sequence_axis(seq_axis, arrays[i].num_axes);
        if (arrays[i].seq_axis == -2 || !lines_up(arrays[i], source)) return false;
        if (arrays[i].features != plan.layout.head_dim) return false;
    }
    if (!is_there(arrays, source, plan.layout)) return false;
    if (!arrays.empty()) turn_checked(plan, arrays, source, library_threads, fresh);
    return true;
}

// ---- PyTorch's tensors, read without Python ----

// The table that a library's tensors offer as __dlpack_c_exchange_api__ (DLPack 1.3), up to the last entry used.
struct ExchangeAPI {
    struct Header {
        uint32_t major, minor;
        Header* before;
    } header;
    int (*allocate)(void);
    int (*export_tensor)(void);
    int (*import_tensor)(void);
    int (*look_at)(void* object, nb::dlpack::dltensor* out);  // valid as long as the object is; may be null
};

PyObject* tensor_type;  // kept for good, as its library is
int (*look_at_tensor)(void*, nb::dlpack::dltensor*);

// Whether a type has such a table, by which its arrays are looked at from now on.
bool use_tensors(nb::handle type) {
    constexpr const char* NAME = "dlpack_exchange_api";
    const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
    if (!PyCapsule_IsValid(capsule.ptr(), NAME)) return false;
    const auto* const api = static_cast<const ExchangeAPI*>(PyCapsule_GetPointer(capsule.ptr(), NAME));
    if (api->header.major != 1 || !api->look_at) return false;
    tensor_type = type.inc_ref().ptr();
    look_at_tensor = api->look_at;
    return true;
}

nb::dlpack::dltensor look_at(nb::handle tensor) {
    if (tensor.type().ptr() != tensor_type) throw nb::type_error("no tensor");
    nb::dlpack::dltensor seen;
    if (look_at_tensor(tensor.ptr(), &seen)) throw nb::python_error();
    if (seen.device.device_type != nb::device::cpu::value) throw nb::value_error("a tensor that is not on the CPU");
    return seen;
}

int type_of(const nb::dlpack::dltensor& x) {
    using Code = nb::dlpack::dtype_code;
    if (x.dtype == nb::dlpack::dtype{static_cast<uint8_t>(Code::Float), 32, 1}) return F32;
    if (x.dtype == nb::dlpack::dtype{static_cast<uint8_t>(Code::Float), 64, 1}) return F64;
    if (x.dtype == nb::dlpack::dtype{static_cast<uint8_t>(Code::Float), 16, 1}) return F16;
    if (x.dtype == nb::dlpack::dtype{static_cast<uint8_t>(Code::Bfloat), 16, 1}) return BF16;
    return -1;
}

char* address(const nb::dlpack::dltensor& x) { return static_cast<char*>(x.data) + x.byte_offset; }

// A tensor and its result, of one dtype and shape; false where they are not for the kernel.
bool read_array(const nb::dlpack::dltensor& x, const nb::dlpack::dltensor& y, Array& array) {
    const int type = type_of(x);
    if (type < 0 || x.ndim < 1 || x.ndim > MAX_AXES || y.ndim != x.ndim || y.dtype != x.dtype) return false;
    if (!std::equal(x.shape, x.shape + x.ndim, y.shape)) return false;
    place(array, type, x.ndim, x.shape, address(x), x.strides, address(y), y.strides, ITEMSIZE[type]);
    return true;
}

bool read_positions(const nb::dlpack::dltensor& pos, const KernelPlan& plan, Source& source) {
    if (pos.dtype != nb::dlpack::dtype{static_cast<uint8_t>(nb::dlpack::dtype_code::Int), 64, 1}) return false;
    return place(source, INT64, pos.ndim, pos.shape, address(pos), pos.strides, 8, plan);
}

// As `run`, of one plain tensor of PyTorch's, by a tensor of positions or an int. False for all else.
bool run_tensor(nb::handle given_spec, nb::handle x, nb::handle y, nb::handle pos, int64_t seq_axis,
                nb::handle library_threads, bool fresh) {
    const KernelPlan* const spec = spec_of(given_spec);
    if (!spec) throw nb::type_error("no spec");
    std::vector<Array> arrays(1);
    Source source;
    if (!spec->has_frequencies() || !read_array(look_at(x), look_at(y), arrays[0])) return false;
    const bool one = PyLong_CheckExact(pos.ptr());
    if (one ? !read_positions(pos, *spec, source) : !read_positions(look_at(pos), *spec, source)) return false;
    const int axis = arrays[0].seq_axis = sequence_axis(seq_axis, arrays[0].num_axes);
    if (axis == -2 || arrays[0].features != spec->layout.head_dim || !lines_up(arrays[0], source)) return false;
    if (!is_there(arrays, source, spec->layout)) return false;
    turn_checked(*spec, arrays, source, library_threads, fresh);
    return true;
}

// ---- levels ----

nb::list level_names() {
    nb::list names;
    for (const Level* const* each = levels(); *each; ++each) names.append((*each)->name);
    return names;
}

void use_level(const char* name) {
    for (const Level* const* each = levels(); *each; ++each)
        if (std::strcmp((*each)->name, name) == 0) {
            level = *each;
            return;
        }
    throw nb::value_error("no such level on this processor");
}

PyObject* import_numpy() {
    import_array();
    return Py_None;
}

}  // namespace

NB_MODULE(_kernel, m) {
    if (!import_numpy()) throw nb::python_error();
    native_name = PyUnicode_InternFromString("native");
    m.doc() = "The rotation in C++: see rope_array/_backends/_native/__init__.py.";
    m.def("make_spec", &make_spec);
    m.def("quick", &quick, nb::arg("x").none(), nb::arg("pos").none(), nb::arg("plan"), nb::arg("seq_axis").none(),
          nb::arg("out").none());
    m.def("quick_tables", &quick_tables, nb::arg("x").none(), nb::arg("cos").none(), nb::arg("sin").none(),
          nb::arg("spec"), nb::arg("seq_axis").none(), nb::arg("out").none());
    m.def("run", &run, nb::arg("spec"), nb::arg("arrays"), nb::arg("given"), nb::arg("seq_axis"),
          nb::arg("threads").none(), nb::arg("fresh"));
    m.def("use_tensors", &use_tensors);
    m.def("run_tensor", &run_tensor, nb::arg("spec"), nb::arg("x"), nb::arg("y"), nb::arg("pos"), nb::arg("seq_axis"),
          nb::arg("threads").none(), nb::arg("fresh"));
    m.def("level_names", &level_names);
    m.def("level_name", [] { return level->name; });
    m.def("use_level", &use_level);
    m.def("threads_of", &num_threads);
    m.def("share_out_from", [](int64_t bytes) { return parallel_bytes.exchange(bytes); });
    m.def("stream_from", [](int64_t bytes) { return stream_bytes.exchange(bytes); });
}
