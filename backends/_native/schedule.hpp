// Rotate all arrays of a call: pair rows with their positions, order them for the caches, share them among
// threads.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "kernel.hpp"

namespace rope {

constexpr int MAX_AXES = 64;  // NumPy's limit

// A layout, and the frequencies of its pairs; without frequencies it rotates by tables only.
struct KernelPlan {
    Layout layout;
    int64_t num_coordinates;  // of a position; 0 if it is one number
    bool takes_fractions;     // whether positions may be floats
    Frequencies frequencies;
};

// Items whose number is fixed at construction. Up to two, such as q and k, need no allocation, which would
// slow small calls.
template <class T>
class Items {
  public:
    explicit Items(size_t size)
        : more_(size > 2 ? new T[size] : nullptr), first_(more_ ? more_.get() : two_), size_(size) {}
    Items(const Items&) = delete;

    T& operator[](size_t i) { return first_[i]; }
    const T& operator[](size_t i) const { return first_[i]; }
    const T* begin() const { return first_; }
    const T* end() const { return first_ + size_; }
    size_t size() const { return size_; }
    void drop_last() { --size_; }

  private:
    T two_[2];
    std::unique_ptr<T[]> more_;
    T* const first_;
    size_t size_;
};

// Rows of a cache. The slot of a token is slots[Σ index · slots_stride] over x's axes, negative for none; the row of a
// head is `head_stride` bytes per index of x's axes from the slot's first byte. Slots continue from page to page:
//
//     data + slot / page_size · page + slot % page_size · row
struct CacheRows {
    CacheDType dtype;
    bool is_copy;  // of y's dtype
    char* data;
    int64_t page_size, page, row;
    int64_t head_stride[MAX_AXES];
    const int64_t* slots;
    int64_t slots_stride[MAX_AXES];
    float scale;

    CacheRows() {}  // leaves the axes uninitialized
    char* at(int64_t slot) const { return data + slot / page_size * page + slot % page_size * row; }
};

// A cache whose rows are rotated in place: `heads` rows in a slot, `head` bytes apart, of the dtype `x_dtype`, or of int8
// or float8_e4m3fn if `is_copy` is false.
struct ShiftedCache : CacheRows {
    DType x_dtype;
    int64_t heads = 1, head = 0;
};

// The x that was normed, for gradients: the array's own x is the gradient of its result. Strides are in bytes along the
// array's axes.
struct NormedX {
    const char* data;
    int64_t stride[MAX_AXES];
    size_t weight;  // index of the weight's first sum

    NormedX() {}  // leaves the axes uninitialized
};

// One array x and its result y. Strides are in bytes; `num_axes`, `shape` and strides leave out the last axis.
struct Array {
    int64_t width;                     // of the last axis
    bool rotates = true;               // else x goes to the cache only, as v does
    const Norm* norm = nullptr;        // of x before the rotation
    const CacheRows* cache = nullptr;  // that takes the results too
    const NormedX* normed = nullptr;   // if the result is the gradient of the norm
    DType dtype;
    int num_axes;
    int seq_axis;  // counted from the front; -1 for a single vector
    int64_t shape[MAX_AXES];
    const char* x;
    int64_t x_stride[MAX_AXES];
    int64_t x_feature;
    char* y;
    int64_t y_stride[MAX_AXES];
    int64_t y_feature;

    Array() {}  // leaves the axes uninitialized
};

enum SourceKind { SPACED, INT32, INT64, UINT32, FLOAT32, FLOAT64, TABLES };

// Positions (integers in equal steps, or numbers in memory) or tables of cos and sin. Strides are in bytes; `num_axes`,
// `shape` and strides leave out the axis of coordinates or pairs.
struct Source {
    SourceKind kind;
    int num_axes;
    int64_t shape[MAX_AXES];
    int64_t start, step;  // SPACED
    const char* data;     // of numbers in memory: positions; TABLES: cos
    int64_t stride[MAX_AXES];
    int64_t coordinate;  // of numbers in memory: distance between the coordinates of a position
    const char* sin;     // TABLES, whose pairs are contiguous
    int64_t sin_stride[MAX_AXES];

    bool has_floats() const { return kind == FLOAT32 || kind == FLOAT64; }
};

// Read a number that may be unaligned.
template <class Number>
Number read_as(const char* from) {
    Number number;
    std::memcpy(&number, from, sizeof number);
    return number;
}

// Return the axis of x that axis j of a source, or of slots, of `num_axes` axes pairs with: seq_axis for the last, the
// other axes in order.
inline int paired_axis(int num_axes, int seq_axis, int j) {
    if (j == num_axes - 1) return seq_axis;
    return j < seq_axis ? j : j + 1;
}

// Return whether x's axes line up with the source's: the shape rule of rope_array/_spec/shape_rule.py. False too for
// one position of `num_coordinates` numbers and as many tokens: check_row_of_coordinates() there raises.
bool lines_up(const Array& array, const Source& source, int64_t num_coordinates = 0);

// The instruction set level that runs.
extern std::atomic<const Level*> level;

// Bytes of x from which a call uses several threads, and from which it writes results by non-temporal stores.
extern std::atomic<int64_t> parallel_bytes, stream_bytes;

// Rotate arrays of one compute dtype. Serves every layout, stride and alignment, positions of int64 and of float64
// (integers below 2^63), and tables whose pairs are contiguous; loops/rotate.hpp states the errors. The caller has checked that the arrays line
// up with the source, and that each y is its x or overlaps nothing that is read. `fresh`: the call has just
// allocated every y.
void rotate(const KernelPlan& plan, const Items<Array>& arrays, const Source& source, bool fresh,
            const Level& level, int threads);

// Compute gradients of norm and rotation: `arrays` have gradients of results as x, and a norm. `plan` rotates back. Add
// the gradients of all weights to `weight_sums`; their bits do not depend on the number of threads.
void rotate_gradients(const KernelPlan& plan, const Items<Array>& arrays, const Source& source, const Level& level,
                      int threads, std::vector<double>& weight_sums);

// Rotate rows of caches in place: slot slots[t] by the position of index t, or by the only position. Slots below 0 are
// skipped; no other appears twice. The caches have one compute dtype; `bytes` of them are rotated.
void shift(const KernelPlan& plan, const std::vector<ShiftedCache>& caches, const std::vector<int64_t>& slots,
           const Source& source, int64_t bytes, const Level& level, int threads);

// Write tables of a plan at positions, contiguous, F32 or F64, with the errors of loops/angles.hpp.
void make_tables(const KernelPlan& plan, const Source& source, DType dtype, char* cos, char* sin, const Level& level,
                 int threads);

}  // namespace rope
