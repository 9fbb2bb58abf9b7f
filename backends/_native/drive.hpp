// A whole call: which rows of which arrays meet which position, in what order, by how many threads.
#pragma once

#include <atomic>
#include <vector>

#include "kernel.hpp"

namespace rope {

constexpr int AXES = 64;  // as many as NumPy has

// What a spec is: where the pairs stand, and frequencies as words. Without words it takes tables.
struct Plan {
    Layout layout;
    double amplitude;
    bool transposed;  // by the same angles back: sin has the other sign
    int64_t coordinates;  // of a position; 0 where it is one number
    std::vector<uint64_t> words64, upper96, lower96;
    std::vector<int32_t> coordinate;

    Words words() const;
};

// One array and its result. Strides are in bytes; those of the last axis stand apart.
struct Array {
    Type type;
    int axes;  // without the last
    int64_t shape[AXES];
    int64_t features;
    const char* x;
    int64_t x_stride[AXES];
    int64_t x_feature;
    char* y;
    int64_t y_stride[AXES];
    int64_t y_feature;
};

enum Kind { SPACED, INT32, INT64, TABLES };

// Positions: numbers in equal steps, integers in memory, or the tables that were made of them. Strides are in
// bytes; those of coordinates, or of lanes, stand apart.
struct Given {
    Kind kind;
    int axes;  // without that of coordinates, or of lanes
    int64_t shape[AXES];
    int64_t start, step;  // SPACED
    const char* data;     // the others: positions, or cos
    int64_t stride[AXES];
    int64_t coordinate;  // INT32, INT64: between the coordinates of a position
    const char* sin;     // TABLES, with lanes side by side
    int64_t sin_stride[AXES];
};

// Whether x's axes line up with those of positions: the shape rule of rope_array/_spec/plan.py. `seq_axis` is counted
// from the front; -1 for a single vector.
bool lines_up(const Array& array, const Given& given, int seq_axis);

// Bytes of x from which on a call is shared out among threads, and from which on results do not go through the caches.
extern std::atomic<int64_t> parallel_bytes, stream_bytes;

// Rotates arrays of one precision, which line up; their results are disjoint from all that is read, or their
// own array.
void rotate(const Plan& plan, const std::vector<Array>& arrays, const std::vector<int>& seq_axes, const Given& given,
            const Level& level, int threads);

}  // namespace rope
