// What one pass over x needs to know, and the functions that each instruction set level offers.
//
// The arithmetic is that of rope_array/_array_api/angles.py and rope_array/_array_api/pairs.py, operation by operation and without
// contraction into fused multiply-adds: so the bits are those of the core, at every level and for every stride,
// thread count and company. tests/test_native.py holds it to that.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rope {

enum Type : int { F32, F64, F16, BF16, TYPES };

constexpr int64_t SIZE[TYPES] = {4, 8, 2, 2};

// Where the pairs stand: see Layout in rope_array/_spec/plan.py.
struct Layout {
    int64_t head_dim;
    int64_t start;
    int64_t lanes;
    int64_t blocks;
    bool reads_half;
    bool writes_half;
};

// The frequency of each lane in turns, in fixed point: see Plan in rope_array/_spec/plan.py.
struct Words {
    int64_t lanes;
    const uint64_t* words64;    // round(ω/2π · 2^64)
    const uint64_t* upper96;    // round(ω/2π · 2^96): its upper 64 bits
    const uint64_t* lower96;    // and its lower 32
    const int32_t* coordinate;  // which coordinate drives each lane; null where a position is one number
    double amplitude;           // of cos
    double sin_amplitude;       // and of sin: the negative, where the transposed rotation is meant
};

constexpr int64_t GROUP_BYTES = 8192;  // of rows that are done at a time, and stay in the first cache
constexpr int64_t LINE = 64;           // of the caches

// Positions side by side, each of them as many numbers as it has coordinates.
struct Positions {
    const int64_t* first;
    int64_t count;
    int64_t coordinates;
};

// Results in scratch that are on their way past the caches.
struct Pending {
    char *stage, *other;  // where the next rows are written, and those after them: a group and a line before it each
    const char* from;     // what goes next
    char* to;
    int64_t left;  // bytes
};

// Equally spaced rows, each one head, and equally spaced runs of them, whose tables are the same. All distances are in
// bytes.
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
    const char *next_x, *next_y;  // rows that come after these, and are fetched meanwhile; null where they are near
    char* scratch;                // two heads, aligned for any type
    Pending* pending;
    const Words* words;  // not null: cos and sin are made on the way, by positions, and are not read; not staged then
    Positions positions;
    // Past the caches, as y is large: its rows and features are side by side, it is not x, and a head is no less than a
    // line and no more than a group.
    bool streamed;
    bool staged;    // through scratch, as features are not side by side, not aligned, or written over unread ones
};

struct Level {
    const char* name;
    // Cos and sin of every lane at each of some positions: `lanes` numbers for each.
    void (*angles32)(const Words&, const Positions&, float* cos, float* sin);
    void (*angles64)(const Words&, const Positions&, double* cos, double* sin);
    void (*finish)(Pending&);  // after it, what was streamed is there, for other threads too
    void (*rotate[TYPES])(const Layout&, const Rows&);
};

// Level of the processor this runs on and all below it, best first; null-terminated.
const Level* const* levels();

}  // namespace rope
