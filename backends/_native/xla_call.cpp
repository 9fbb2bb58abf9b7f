#include "xla_call.hpp"

#include <cstring>
#include <exception>
#include <functional>
#include <numeric>

#include "operands.hpp"
#include "thread_pool.hpp"

namespace rope::xla {
namespace {

struct DTypeInfo {
    int dtype;
    int64_t itemsize;
};

DTypeInfo dtype_of(int type) {
    switch (type) {
        case F32: return {rope::F32, 4};
        case F64: return {rope::F64, 8};
        case F16: return {rope::F16, 2};
        case BF16: return {rope::BF16, 2};
        case S32: return {I32, 4};
        case S64: return {I64, 8};
        case xla::U32: return {rope::U32, 4};
        default: return {OTHER_DTYPE, 1};
    }
}

// Return false if the operand is no buffer with memory, or has more axes than the kernel takes.
bool view_operand(const Operands& operands, int64_t index, ArrayView& view) {
    if (index >= operands.size || operands.types[index] != BUFFER) return false;
    const Buffer& buffer = *static_cast<const Buffer*>(operands.values[index]);
    if (buffer.rank > MAX_AXES) return false;
    const DTypeInfo info = dtype_of(buffer.dtype);
    int64_t strides[MAX_AXES], items = 1;
    for (int64_t a = buffer.rank - 1; a >= 0; --a) {
        strides[a] = items;
        items *= buffer.shape[a];
    }
    return set_view(view, info.dtype, info.itemsize, static_cast<int>(buffer.rank), buffer.shape, strides, info.itemsize,
                    buffer.data);
}

// Return the numbers of an attribute; null if it is no array of int64.
const int64_t* read_numbers(const Attributes& attributes, int64_t index, int64_t& count) {
    if (attributes.types[index] != ARRAY) return nullptr;
    const Array& numbers = *static_cast<const Array*>(attributes.values[index]);
    count = static_cast<int64_t>(numbers.size);
    return numbers.dtype == S64 ? static_cast<const int64_t*>(numbers.data) : nullptr;
}

bool read_plan(const Attributes& attributes, KernelPlan& plan) {
    int64_t count;
    if (attributes.size < 1 || attributes.size > 2) return false;
    const int64_t* const words = read_numbers(attributes, attributes.size - 1, count);
    return words && set_plan(plan, words, count);
}

// Read the bits of eps and the rounding, from the attribute before the plan.
bool read_norm(const Attributes& attributes, rope::Norm& norm) {
    int64_t count;
    const int64_t* const numbers = read_numbers(attributes, 0, count);
    if (!numbers || count != 2 || numbers[1] < ROUND_NONE || numbers[1] > ROUND_STEPS) return false;
    std::memcpy(&norm.eps, &numbers[0], sizeof norm.eps);
    norm.rounding = static_cast<Rounding>(numbers[1]);
    return true;
}

// An array in parts, each with its own row of a scale. The scale has x's axes, each of x's size or 1; the source has
// size 1 along the axes of parts.
class Parts {
  public:
    Parts(const rope::Array& array, const ArrayView& scale, const rope::Norm& norm, int64_t count)
        : arrays_(static_cast<size_t>(count)), norms_(static_cast<size_t>(count)) {
        for (int64_t i = 0; i < count; ++i) {
            rope::Array& part = arrays_[static_cast<size_t>(i)] = array;
            int64_t rest = i;
            for (int a = array.num_axes - 1; a >= 0; --a) {
                if (scale.shape[a] == 1) continue;
                const int64_t at = rest % scale.shape[a];
                rest /= scale.shape[a];
                part.x += at * part.x_stride[a];
                part.y += at * part.y_stride[a];
                part.shape[a] = 1;
            }
            norms_[static_cast<size_t>(i)] = {scale.data + i * array.width * scale.itemsize, norm.eps, norm.rounding};
            part.norm = &norms_[static_cast<size_t>(i)];
        }
    }

    // Return the number of parts; 0 if the scale does not fit.
    static int64_t count(const rope::Array& array, const ArrayView& scale, const Source& source) {
        const int dtype = array.dtype == rope::F64 ? rope::F64 : rope::F32;
        if (scale.dtype != dtype || scale.num_axes != array.num_axes + 1 || scale.shape[array.num_axes] != array.width) return 0;
        int64_t count = 1;
        for (int a = 0; a < array.num_axes; ++a) {
            if (scale.shape[a] != 1 && (scale.shape[a] != array.shape[a] || source.shape[a] != 1)) return 0;
            count *= scale.shape[a];
        }
        return count;
    }

    const Items<rope::Array>& arrays() const { return arrays_; }

  private:
    Items<rope::Array> arrays_;
    Items<rope::Norm> norms_;
};

// Return whether all positions along an axis are equal. `from` points to the element that has the current
// indices of the axes before `at`, and index 0 of the others.
bool is_constant_along(const ArrayView& pos, int axis, const char* from, int at = 0) {
    const int64_t stride = pos.strides[at];
    for (int64_t i = at == axis; i < pos.shape[at]; ++i) {
        const char* const element = from + i * stride;
        if (at < axis ? !is_constant_along(pos, axis, element, at + 1) : std::memcmp(from, element, static_cast<size_t>(stride)))
            return false;
    }
    return true;
}

// Set the size of axes along which all positions are equal to 1, so that rows share their angles. XLA splits
// a call among devices along axes that all operands have, so backends/jax repeats the positions of such a
// call.
void drop_repeated(ArrayView& pos) {
    if (pos.is_empty()) return;
    for (int a = 0; a < pos.num_axes - 1; ++a)
        if (pos.shape[a] > 1 && is_constant_along(pos, a, pos.data)) {
            pos.shape[a] = 1;
            pos.strides[a] = 0;
        }
}

// Parse positions or tables, from argument `at` on. Positions have an axis of coordinates, of size 1 if a position is
// one number.
bool read_source(const Operands& arguments, int64_t at, const KernelPlan& plan, Source& source, bool& is_double) {
    ArrayView first, second;
    if (!view_operand(arguments, at, first)) return false;
    is_double = first.dtype == rope::F64;
    if (arguments.size == at + 2)
        return view_operand(arguments, at + 1, second) && set_tables(source, first, second, plan.layout);
    if (arguments.size != at + 1 || !first.num_axes) return false;
    drop_repeated(first);
    if (!plan.num_coordinates && first.shape[--first.num_axes] != 1) return false;
    return plan.frequencies.turns_q64 && set_positions(source, first, plan);
}

// Return the size of XLA's thread pool; 1 if it has none.
int threads_of(const CallFrame& frame) {
    int64_t count = 1;
    NumThreadsArgs args = {sizeof args, nullptr, frame.context, &count};
    if (Error* const error = frame.api->get_num_threads(&args)) {
        ErrorDestroyArgs destroy_args = {sizeof destroy_args, nullptr, error};
        frame.api->destroy_error(&destroy_args);
        return 1;
    }
    return static_cast<int>(count);
}

// Return false for operands that the kernel does not serve: no program of backends/jax has them.
bool rotate_operands(const CallFrame& frame) {
    KernelPlan plan;
    Source source;
    bool is_double;
    ArrayView x, y, scale;
    Items<rope::Array> arrays(1);
    const bool has_norm = frame.attributes.size == 2;
    if (!read_plan(frame.attributes, plan)) return false;
    if (!read_source(frame.arguments, 1 + has_norm, plan, source, is_double)) return false;
    if (!view_operand(frame.arguments, 0, x) || !set_array(arrays[0], x, plan.layout, -2)) return false;
    if (frame.results.size != 1 || !view_operand(frame.results, 0, y) || y.dtype != x.dtype || !y.has_same_shape(x)) return false;
    if (source.num_axes != arrays[0].num_axes || !lines_up(arrays[0], source)) return false;
    if (source.kind == TABLES && (arrays[0].dtype == rope::F64) != is_double) return false;
    set_result(arrays[0], y);
    int64_t bytes = x.itemsize;
    for (int a = 0; a < x.num_axes; ++a) bytes *= x.shape[a];
    const bool in_place = x.data == y.data;
    if (!in_place) prefer_huge_pages(y.data, bytes);
    const bool is_small = bytes < parallel_bytes.load(std::memory_order_relaxed);
    const int threads = is_small ? 1 : num_threads(threads_of(frame));
    const Level& loops = *level.load(std::memory_order_relaxed);
    if (!has_norm) {
        rotate(plan, arrays, source, !in_place, loops, threads);
        return true;
    }
    rope::Norm norm;
    if (!read_norm(frame.attributes, norm) || !view_operand(frame.arguments, 1, scale)) return false;
    const int64_t count = Parts::count(arrays[0], scale, source);
    if (count) rotate(plan, Parts(arrays[0], scale, norm, count).arrays(), source, !in_place, loops, threads);
    return count;
}

int64_t itemsize_of(int type) {
    switch (type) {
        case S8:
        case F8E4M3FN: return 1;
        case xla::F16:
        case xla::BF16: return 2;
        case xla::F32: return 4;
        case xla::F64: return 8;
        default: return 0;
    }
}

const Buffer* buffer_at(const Operands& operands, int64_t index) {
    const bool is_buffer = index < operands.size && operands.types[index] == BUFFER;
    return is_buffer ? static_cast<const Buffer*>(operands.values[index]) : nullptr;
}

int64_t product(const int64_t* first, const int64_t* last) { return std::accumulate(first, last, int64_t{1}, std::multiplies<>()); }

// Write rows into a cache of the axes (pages, outer, slots, inner), of which the first may be missing, and the others
// may be several.
template <class Slot>
void write_rows(char* cache, const char* rows, const Slot* slots, int64_t count, int64_t pages, int64_t outer, int64_t size,
                int64_t inner_bytes) {
    for (int64_t t = 0; t < count; ++t, rows += outer * inner_bytes) {
        const int64_t slot = slots[t];
        if (slot < 0 || slot >= pages * size) continue;
        char* const to = cache + (slot / size * outer * size + slot % size) * inner_bytes;
        for (int64_t i = 0; i < outer; ++i)
            std::memcpy(to + i * size * inner_bytes, rows + i * inner_bytes, static_cast<size_t>(inner_bytes));
    }
}

bool write_operands(const CallFrame& frame) {
    int64_t number;
    const Buffer *const cache = buffer_at(frame.arguments, 0), *const rows = buffer_at(frame.arguments, 1);
    const Buffer *const slots = buffer_at(frame.arguments, 2), *const result = buffer_at(frame.results, 0);
    if (!cache || !rows || !slots || !result || frame.attributes.size != 1) return false;
    const int64_t* const axes = read_numbers(frame.attributes, 0, number);
    const int64_t itemsize = itemsize_of(cache->dtype);
    if (!axes || number != 2 || axes[0] < 0 || axes[0] > 1 || axes[1] < axes[0] || axes[1] >= cache->rank) return false;
    const int64_t *const shape = cache->shape, *const slot_axis = shape + axes[1], *const end = shape + cache->rank;
    const int64_t pages = product(shape, shape + axes[0]), outer = product(shape + axes[0], slot_axis);
    const int64_t inner = product(slot_axis + 1, end), count = slots->rank == 1 ? slots->shape[0] : -1;
    if (!itemsize || rows->dtype != cache->dtype || result->data != cache->data) return false;
    if (product(rows->shape, rows->shape + rows->rank) != count * outer * inner) return false;
    auto write = [&](const auto* numbers) {
        write_rows(static_cast<char*>(cache->data), static_cast<const char*>(rows->data), numbers, count, pages, outer, *slot_axis,
                   inner * itemsize);
        return true;
    };
    if (slots->dtype == S32) return write(static_cast<const int32_t*>(slots->data));
    return slots->dtype == S64 && write(static_cast<const int64_t*>(slots->data));
}

Error* make_error(const CallFrame& frame, const char* message, int code) {
    ErrorArgs args = {sizeof args, nullptr, message, code};
    return frame.api->create_error(&args);
}

// Call a function for a frame, or tell XLA the version of the interface.
Error* run(CallFrame* frame, bool (*serve)(const CallFrame&)) {
    if (frame->extensions && frame->extensions->type == METADATA) {
        reinterpret_cast<MetadataExtension*>(frame->extensions)->metadata->version = {sizeof(Version), nullptr, 0, 1};
        return nullptr;
    }
    try {
        if (serve(*frame)) return nullptr;
        return make_error(*frame, "rope_array's kernel does not serve these operands", INVALID_ARGUMENT);
    } catch (const std::exception& error) {  // no memory for tables
        return make_error(*frame, error.what(), INTERNAL);
    }
}

}  // namespace

Error* rotate_in_program(CallFrame* frame) { return run(frame, rotate_operands); }

Error* write_in_program(CallFrame* frame) { return run(frame, write_operands); }

}  // namespace rope::xla
