#include "operands.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace rope {
namespace {

// The words of a plan before its rows of a word for each pair, in the order of plan_words().
enum PlanWord {
    HEAD_DIM, START, NUM_PAIRS, BLOCKS, READS_HALF, WRITES_HALF, TRANSPOSED, NUM_COORDINATES, AMPLITUDE, NUM_PLAN_WORDS
};

// The largest frequency for fractions, in eighths of a turn: see Plan.takes_fractions in rope_array/_spec/plan.py.
constexpr double MAX_EIGHTHS = 1 << 22;

// Return seq_axis counted from the front; -1 for a single vector, -2 if there is no such axis.
int sequence_axis(int64_t seq_axis, int num_axes) {
    if (num_axes == 0) return seq_axis == -2 ? -1 : -2;
    const int64_t from_front = seq_axis < 0 ? seq_axis + num_axes + 1 : seq_axis;
    return 0 <= from_front && from_front < num_axes ? static_cast<int>(from_front) : -2;
}

}  // namespace

bool is_valid(const Layout& layout) {
    if (layout.start < 0 || layout.num_pairs < 0 || layout.start > layout.head_dim) return false;
    if (layout.num_pairs > (layout.head_dim - layout.start) / 2 || layout.blocks < 1) return false;
    return layout.blocks <= std::max<int64_t>(1, layout.num_pairs) && layout.num_pairs % layout.blocks == 0;
}

bool set_plan(KernelPlan& plan, const int64_t* words, int64_t count) {
    if (count < NUM_PLAN_WORDS) return false;
    plan = {};
    plan.layout = {words[HEAD_DIM],         words[START],           words[NUM_PAIRS], words[BLOCKS],
                   words[READS_HALF] != 0, words[WRITES_HALF] != 0};
    plan.num_coordinates = words[NUM_COORDINATES];
    double amplitude;
    std::memcpy(&amplitude, words + AMPLITUDE, sizeof amplitude);
    if (!is_valid(plan.layout) || plan.num_coordinates < 0 || !(amplitude > 0 && std::isfinite(amplitude))) return false;
    const int64_t num_pairs = plan.layout.num_pairs, num_rows = plan.num_coordinates ? 5 : 4;
    Frequencies& frequencies = plan.frequencies;
    frequencies.num_pairs = num_pairs;
    frequencies.cos_amplitude = amplitude;
    frequencies.sin_amplitude = words[TRANSPOSED] ? -amplitude : amplitude;
    plan.takes_fractions = !num_pairs;
    words += NUM_PLAN_WORDS;
    count -= NUM_PLAN_WORDS;
    if (count == 0) return true;  // a layout, for tables
    if (count / num_rows != num_pairs || count % num_rows) return false;
    const auto* const turns = reinterpret_cast<const uint64_t*>(words);
    frequencies.turns_q64 = turns;
    frequencies.turns_q96_high = turns + num_pairs;
    frequencies.turns_q96_low = turns + 2 * num_pairs;
    const double* const eighths = frequencies.eighth_turns = reinterpret_cast<const double*>(words + 3 * num_pairs);
    plan.takes_fractions =
        std::all_of(eighths, eighths + num_pairs, [](double number) { return std::fabs(number) < MAX_EIGHTHS; });
    if (!plan.num_coordinates) return true;
    const int64_t* const coordinate = frequencies.coordinate = words + 4 * num_pairs;
    return std::all_of(coordinate, coordinate + num_pairs,
                       [&plan](int64_t index) { return 0 <= index && index < plan.num_coordinates; });
}

KernelPlan transposed(KernelPlan plan) {
    std::swap(plan.layout.reads_half, plan.layout.writes_half);
    plan.frequencies.sin_amplitude = -plan.frequencies.sin_amplitude;
    return plan;
}

bool set_array(Array& array, const ArrayView& x, const Layout& layout, int64_t seq_axis) {
    const int last = x.num_axes - 1;
    if (x.dtype >= NUM_DTYPES || last < 0 || x.shape[last] != layout.head_dim) return false;
    array.dtype = static_cast<DType>(x.dtype);
    array.width = layout.head_dim;
    array.num_axes = last;
    array.seq_axis = sequence_axis(seq_axis, last);
    std::copy(x.shape, x.shape + last, array.shape);
    std::copy(x.strides, x.strides + last, array.x_stride);
    array.x_feature = x.strides[last];
    array.x = x.data;
    return array.seq_axis != -2;
}

void set_result(Array& array, const ArrayView& y) {
    std::copy(y.strides, y.strides + array.num_axes, array.y_stride);
    array.y_feature = y.strides[array.num_axes];
    array.y = y.data;
}

bool set_positions(Source& source, const ArrayView& pos, const KernelPlan& plan) {
    const int coordinate_axes = plan.num_coordinates ? 1 : 0;
    switch (pos.dtype) {
        case I32: source.kind = INT32; break;
        case I64: source.kind = INT64; break;
        case U32: source.kind = UINT32; break;
        case F32: source.kind = FLOAT32; break;
        case F64: source.kind = FLOAT64; break;
        default: return false;
    }
    source.num_axes = pos.num_axes - coordinate_axes;
    if (source.num_axes < 0 || (source.has_floats() && !plan.takes_fractions)) return false;
    std::copy(pos.shape, pos.shape + source.num_axes, source.shape);
    std::copy(pos.strides, pos.strides + source.num_axes, source.stride);
    source.coordinate = coordinate_axes ? pos.strides[source.num_axes] : 0;
    source.data = pos.data;
    return !coordinate_axes || pos.shape[source.num_axes] == plan.num_coordinates;
}

bool set_tables(Source& source, const ArrayView& cos, const ArrayView& sin, const Layout& layout) {
    const int last = source.num_axes = cos.num_axes - 1;
    source.kind = TABLES;
    if ((cos.dtype != F32 && cos.dtype != F64) || sin.dtype != cos.dtype || last < 0) return false;
    if (!cos.has_same_shape(sin) || cos.shape[last] != layout.num_pairs) return false;
    auto is_readable = [last](const ArrayView& table) {
        const bool is_contiguous = table.shape[last] < 2 || table.strides[last] == table.itemsize;
        return table.is_empty() || (is_contiguous && table.is_aligned());
    };
    if (!is_readable(cos) || !is_readable(sin)) return false;
    std::copy(cos.shape, cos.shape + last, source.shape);
    std::copy(cos.strides, cos.strides + last, source.stride);
    std::copy(sin.strides, sin.strides + last, source.sin_stride);
    source.data = cos.data;
    source.sin = sin.data;
    return true;
}

void prefer_huge_pages(char* memory, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr int64_t HUGE_BYTES = 1 << 22;  // a smaller result fits few huge pages
    constexpr uintptr_t PAGE = 4096;
    if (bytes < HUGE_BYTES) return;
    const uintptr_t from = reinterpret_cast<uintptr_t>(memory), to = from + static_cast<uintptr_t>(bytes);
    const uintptr_t first = (from + PAGE - 1) / PAGE * PAGE, last = to / PAGE * PAGE;
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
    (void)memory;
    (void)bytes;
#endif
}

}  // namespace rope
