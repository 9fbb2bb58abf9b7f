// The structs that a call passes to the inner loops, and the functions of an instruction set level.
//
// The loops repeat each operation of rope_array/_array_api/angles.py and pairs.py, without contraction into fused
// multiply-adds. So their bits equal the array-api backend's at every level, for every stride and thread count;
// tests/test_native_bits.py checks it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rope {

enum DType : int { F32, F64, F16, BF16, NUM_DTYPES };

constexpr int64_t ITEMSIZE[NUM_DTYPES] = {4, 8, 2, 2};

// Which features form pairs: see Layout in rope_array/_spec/plan.py.
struct Layout {
    int64_t head_dim;
    int64_t start;
    int64_t num_pairs;
    int64_t blocks;
    bool reads_half;
    bool writes_half;
};

// The frequency of each pair in turns, in fixed point: see Plan in rope_array/_spec/plan.py.
struct Frequencies {
    int64_t num_pairs;
    const uint64_t* turns_q64;       // round(ω/2π · 2^64)
    const uint64_t* turns_q96_high;  // round(ω/2π · 2^96): its upper 64 bits
    const uint64_t* turns_q96_low;   // and its lower 32
    const double* eighth_turns;      // ω · 4/π, to multiply the fractions of float positions
    const int64_t* coordinate;       // index of the coordinate that drives each pair; null for positions of one number
    double cos_amplitude;
    double sin_amplitude;  // negative for the transposed rotation
};

constexpr int64_t GROUP_BYTES = 8192;  // size of the rows rotated together: they stay in the L1 cache
constexpr int64_t CACHE_LINE = 64;

// Contiguous positions, each of `num_coordinates` numbers: values, plus fractions of at most 1/2. The angles of
// `doubles` are added in double, of `floats` in the compute dtype.
struct Positions {
    const int64_t* values;
    const float* floats;  // null if there are none, as `doubles`
    const double* doubles;
    int64_t count;
    int64_t num_coordinates;
    bool are_int32;  // whether all values fit

    bool has_fractions() const { return floats || doubles; }

    Positions from(int64_t begin, int64_t length) const {
        const int64_t offset = begin * num_coordinates;
        return {values + offset, floats ? floats + offset : nullptr, doubles ? doubles + offset : nullptr, length,
                num_coordinates, are_int32};
    }
};

// Results in scratch that wait for non-temporal stores: see queue_active() in loops/stream.hpp.
struct StreamBuffer {
    char *active, *spare;  // buffers of the next rows and of the rows after them, each after a free cache line
    const char* from;      // the first byte not yet stored
    char* to;              // its address in y
    int64_t bytes;         // not yet stored
};

// Equally spaced rows, repeated in equally spaced runs that share their tables. A row is one head. All
// distances are in bytes.
struct Rows {
    int64_t count, runs;
    const char* x;
    int64_t x_row, x_run, x_feature;
    char* y;
    int64_t y_row, y_run, y_feature;
    const char* cos;
    int64_t cos_row;
    const char* sin;
    int64_t sin_row;
    const char *next_x, *next_y;  // rows of the next call, to prefetch; null to prefetch none
    char* scratch;  // two blocks of `scratch_rows` rows, `scratch_row` bytes apart; or tables of a group for `frequencies`
    int64_t scratch_rows, scratch_row;
    StreamBuffer* stream;
    const Frequencies* frequencies;  // if not null, the loop computes cos and sin from `positions` and reads no tables
    Positions positions;
    bool streamed;  // write by non-temporal stores: y's rows and features are contiguous, y is not x,
                    // and a head has at least CACHE_LINE and at most GROUP_BYTES bytes
    bool stages_x, stages_y;  // copy x's features to scratch, y's from scratch: see ArrayLoop in schedule.cpp
    // The slot of the first row in a cache, and the offset of its head there; see CacheRows in schedule.hpp.
    const int64_t* slots;
    int64_t slots_row, slots_run;
    int64_t head, head_row, head_run;
    char* blocks;  // of rows: see run_normed() in schedule.cpp
    double* weight_sums;  // of the tile, for gradients
};

// How much of the norm is rounded to x's dtype before the rotation: see rope_array/_array_api/norm.py.
enum Rounding : int { ROUND_NONE, ROUND_NORM, ROUND_STEPS };

// RMSNorm of each row: see rope_array/_array_api/norm.py. `scale` has the weights plus their offset, in the compute
// dtype.
struct Norm {
    const void* scale;
    double eps;
    Rounding rounding;
};

// Rows for the gradients of the norm; distances are in bytes. `rotated` are gradients of the results, rotated back, in
// contiguous rows of the compute dtype. The gradient of x is written to `to`, the weight's gradient added to `weight`.
struct GradientRows {
    const char* rotated;
    const char* x;
    int64_t x_row;
    char* to;
    int64_t to_row;
    int64_t count, width;
    double* weight;
};

enum CacheDType : int { CACHE_F32, CACHE_F16, CACHE_BF16, CACHE_E4M3, CACHE_I8, NUM_CACHE_DTYPES };

struct Level {
    const char* name;
    // Compute cos and sin of each pair at each position, contiguous, `num_pairs` to a position.
    void (*make_tables32)(const Frequencies&, const Positions&, float* cos, float* sin);
    void (*make_tables64)(const Frequencies&, const Positions&, double* cos, double* sin);
    void (*finish_stream)(StreamBuffer&);  // store all waiting bytes and make them visible to other threads
    void (*rotate[NUM_DTYPES])(const Layout&, const Rows&);
    // Rotate the rows of one run by tables, after their norm unless it is null: into rows of x's dtype, or of the compute
    // dtype. Features are contiguous and aligned; y is x only if both have one pairing.
    void (*rotate_normed[NUM_DTYPES])(const Layout&, const Rows&, const Norm*);
    void (*rotate_widened[NUM_DTYPES])(const Layout&, const Rows&, const Norm*);
    void (*widen[NUM_DTYPES])(const char* x, int64_t width, void* y);  // convert a row to the compute dtype
    void (*norm_gradients[NUM_DTYPES])(const GradientRows&, const Norm&);
    // Divide a row of floats by a scale, unless it is 1, and convert it to the dtype of a cache.
    void (*store[NUM_CACHE_DTYPES])(const float* row, char* to, int64_t width, float scale);
};

// Return the compiled levels that this processor has, best first; null-terminated.
const Level* const* levels();

}  // namespace rope
