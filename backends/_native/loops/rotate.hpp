// Rotate rows of x into y, by cos and sin from tables or computed from positions.
#pragma once

#include "angles.hpp"
#include "dtypes.hpp"
#include "scratch.hpp"
#include "stream.hpp"

namespace rope {
namespace {

// Rotate W pairs (a, b) at x into y. With half pairing, the second features start `second_half` bytes later:
//
//     interleaved    a0 b0 a1 b1 a2 b2 a3 b3
//     half           a0 a1 a2 a3  ...  b0 b1 b2 b3  ...
//                    |<- second_half ->|
//
// Max error, with cos and sin from make_tables: eps · amplitude · |pair| · n, plus half an ulp of y. eps is
// 2^-23, or 2^-52 for float64; n is 1.6 for float32 and float64 and 2.1 for 16 bits, or 2.5 and 3 with an
// amplitude other than 1. Proved in proof/; docs/numerics.md has the terms for underflow and wider positions.
template <class T, bool reads_half, bool writes_half, int W>
ROPE_INLINE void rotate_pairs(const char* x, char* y, int64_t second_half, Vec<typename T::Real, W> cos,
                              Vec<typename T::Real, W> sin) {
    const auto at_x = [x](int64_t i) { return reinterpret_cast<const typename T::Stored*>(x + i); };
    const auto at_y = [y](int64_t i) { return reinterpret_cast<typename T::Stored*>(y + i); };
    Vec<typename T::Real, W> a, b;
    if constexpr (reads_half) {
        a = T::template read<W>(at_x(0));
        b = T::template read<W>(at_x(second_half));
    } else {
        T::template read_pairs<W>(at_x(0), a, b);
    }
    const auto first = a * cos - b * sin, second = b * cos + a * sin;
    if constexpr (writes_half)
        T::template write_two<W>(at_y(0), at_y(second_half), first, second);
    else
        T::template write_pairs<W>(at_y(0), first, second);
}

// T, or its variant in blocks if cos and sin may have that order: see Shuffled.
template <class T, bool reads_half, bool writes_half, class From, int W>
using Ordered = std::conditional_t<!reads_half && !writes_half && From::template IN_BLOCKS<W>, typename T::Blocked, T>;

inline int64_t pairs_per_block(const Layout& layout) {
    return layout.blocks == 1 ? layout.num_pairs : layout.num_pairs / layout.blocks;
}

// Up to GROUP_BYTES of rows that are rotated together.
struct RowGroup {
    const char* x;
    char* y;
    int64_t x_row, y_row;
    int64_t first, count;      // index of the first row, and how many
    int64_t x_ahead, y_ahead;  // from each row of x and y to the row to prefetch; 0 for none
    StreamBuffer* stream;      // earlier results, to be stored between computations
};

// Call rotate(group) for each group of rows, in all runs before the next group, as runs share their tables.
// Each call prefetches x and y of the next call. Streamed rows are written to the stream buffer.
//
//              rows 0 1 2    rows 3 4 5    <- x_row between rows
//     run 0     1st call      3rd call
//     run 1     2nd call      4th call     <- x_run after run 0; the same cos and sin as run 0
template <class Rotate>
inline void for_row_groups(const Rows& rows, int64_t row_bytes, const Rotate& rotate) {
    if (!rows.count) return;
    const int64_t max_rows = row_bytes < GROUP_BYTES ? GROUP_BYTES / row_bytes : 1;
    const int64_t groups = (rows.count + max_rows - 1) / max_rows;
    const int64_t group_rows = (rows.count + groups - 1) / groups;  // equal sizes, as a group prefetches the next
    StreamBuffer& stream = *rows.stream;
    for (int64_t r = 0; r < rows.count; r += group_rows) {
        const int64_t count = rows.count - r < group_rows ? rows.count - r : group_rows;
        const char* x = rows.x + r * rows.x_row;
        char* y = rows.y + r * rows.y_row;
        const bool last = r + count == rows.count;
        const char* const next_x = last ? rows.next_x : x + count * rows.x_row;
        const char* const next_y = last ? rows.next_y : y + count * rows.y_row;
        for (int64_t run = 1; run <= rows.runs; ++run, x += rows.x_run, y += rows.y_run) {
            const int64_t x_ahead = !rows.next_x ? 0 : run < rows.runs ? rows.x_run : next_x - x;
            const int64_t y_ahead = !rows.next_y ? 0 : run < rows.runs ? rows.y_run : next_y - y;
            if (rows.streamed) {
                rotate(RowGroup{x, stream.active, rows.x_row, row_bytes, r, count, x_ahead, 0, &stream});
                queue_active(stream, y, count * row_bytes);
            } else {
                rotate(RowGroup{x, y, rows.x_row, rows.y_row, r, count, x_ahead, y_ahead, &stream});
            }
        }
    }
}

// Load cos or sin. If in_blocks, of two blocks of 128 bits, swap the middle quarters of the vector.
template <class Real, bool in_blocks>
ROPE_INLINE Real load_table(const void* from) {
    if constexpr (in_blocks) {
        constexpr int n = sizeof(Real) / 8;
        const auto quarters = load<Vec<double, n>>(from);
        return bit_cast<Real>(shuffle<ZipHalves, n>(quarters, quarters));
    } else {
        return load<Real>(from);
    }
}

// Cos and sin of `vectors` adjacent vectors of pairs, read from tables row by row.
template <class Number, int W, int vectors, bool in_blocks>
class TableSequence {
    using Real = Vec<Number, W>;

  public:
    TableSequence(const char* cos, const char* sin, int64_t cos_row, int64_t sin_row)
        : cos_(cos), sin_(sin), cos_row_(cos_row), sin_row_(sin_row) {}

    template <int K>
    ROPE_INLINE void next(Real (&cos)[K * vectors], Real (&sin)[K * vectors]) {
        unroll<K>([&](auto k) ROPE_ALWAYS {
            unroll<vectors>([&](auto v) ROPE_ALWAYS {
                cos[k * vectors + v] = load_table<Real, in_blocks>(cos_ + v * sizeof(Real));
                sin[k * vectors + v] = load_table<Real, in_blocks>(sin_ + v * sizeof(Real));
            });
            cos_ += cos_row_;
            sin_ += sin_row_;
        });
    }

  private:
    const char *cos_, *sin_;
    const int64_t cos_row_, sin_row_;
};

// Angles of a group, read from tables; `cos` and `sin` point to the first row.
template <class Number>
struct FromTables {
    const char *cos, *sin;
    int64_t cos_row, sin_row;

    FromTables from(int64_t row) const { return {cos + row * cos_row, sin + row * sin_row, cos_row, sin_row}; }

    // Pairs of a chunk: four vectors, as each takes few operations. Their cos and sin fit in registers.
    static constexpr int CHUNK = WIDTH > 1 ? 16 * WIDTH / static_cast<int>(sizeof(Number)) : 1, MIXED_CHUNK = CHUNK;

    template <int W, int vectors>
    static constexpr int ROWS_AT_ONCE = 1;

    // Reorder cos and sin where that takes fewer instructions than the shuffles in memory order.
    template <int W>
    static constexpr bool IN_BLOCKS = W * sizeof(Number) == 32;

    template <int W, int vectors, bool in_blocks>
    TableSequence<Number, W, vectors, in_blocks> sequence(int64_t pair) const {
        const int64_t bytes = pair * static_cast<int64_t>(sizeof(Number));
        return {cos + bytes, sin + bytes, cos_row, sin_row};
    }
};

// Angles of a group, computed from evenly spaced positions.
struct FromPositions {
    const Frequencies& frequencies;
    const Positions& positions;

    // Pairs of a chunk: two vectors, as setting up a chunk takes as long as some rows. One if y has another pairing
    // than x, which is rare: less code.
    static constexpr int CHUNK = WIDTH > 4 ? 2 * WIDTH : WIDTH, MIXED_CHUNK = WIDTH;

    template <int W, int vectors>
    static constexpr int ROWS_AT_ONCE = POSITIONS_AT_ONCE<W> / vectors;

    template <int W>
    static constexpr bool IN_BLOCKS = W > 4;

    template <int W, int vectors, bool in_blocks>
    CosSinSequence<W, PhaseSequence, vectors> sequence(int64_t pair) const {
        return {frequencies, positions, pair, in_blocks};
    }
};

// at<chunk>(i) rotates pairs i to i + chunk - 1 of a block of n pairs in all rows of a group, keeping
// per-pair constants in registers.
//
//                 pairs 0 .. chunk-1   chunk .. 2·chunk-1
//     row 0             1                    4                rotate_by_column: in this order
//     row 1             2                    5                rotate_by_row: 1, 4, 2, 5, 3, 6
//     row 2             3                    6
template <class T, bool reads_half, bool writes_half, class From>
struct RotateColumn {
    const From& angles;
    const RowGroup& group;
    const char* x;
    char* y;
    int64_t pair;
    int64_t n;

    template <int chunk>
    void at(int64_t i) const {
        constexpr int W = chunk < T::W ? chunk : T::W, vectors = chunk / W;
        constexpr int64_t itemsize = sizeof(typename T::Stored), chunk_bytes = 2 * chunk * itemsize;
        constexpr int64_t x_step = itemsize * (reads_half ? 1 : 2), y_step = itemsize * (writes_half ? 1 : 2);
        using Pairs = Ordered<T, reads_half, writes_half, From, W>;
        using Real = Vec<typename T::Real, W>;
        const int64_t x_row = group.x_row, y_row = group.y_row, second_half = itemsize * n;
        const int64_t x_ahead = x_step * i % CACHE_LINE == 0 ? group.x_ahead : 0;
        const int64_t y_ahead = y_step * i % CACHE_LINE == 0 ? group.y_ahead : 0;
        const char* from = x + x_step * i;
        char* to = y + y_step * i;
        auto sequence = angles.template sequence<W, vectors, Pairs::IN_BLOCKS>(pair + i);
        StreamBuffer stream = *group.stream;  // a local copy stays in registers
        for_rows<From::template ROWS_AT_ONCE<W, vectors>>(group.count, [&](auto rows) ROPE_ALWAYS {
            constexpr int K = rows;
            Real cos[K * vectors], sin[K * vectors];
            sequence.template next<K>(cos, sin);
            unroll<K>([&](auto k) ROPE_ALWAYS {
                if (x_ahead) prefetch<reads_half, chunk_bytes>(from + x_ahead, second_half);
                if (y_ahead) prefetch<writes_half, chunk_bytes>(to + y_ahead, second_half);
                unroll<vectors>([&](auto v) ROPE_ALWAYS {
                    rotate_pairs<Pairs, reads_half, writes_half, W>(from + v * W * x_step, to + v * W * y_step,
                                                                    second_half, cos[k * vectors + v],
                                                                    sin[k * vectors + v]);
                });
                from += x_row;
                to += y_row;
            });
            stream_lines<K * chunk_bytes / CACHE_LINE>(stream);
        });
        *group.stream = stream;
    }
};

// Prefetch a later cache line of x and of y, and store a line of earlier results.
ROPE_INLINE void prefetch_and_stream(const RowGroup& group, StreamBuffer& stream, const char* x, const char* y) {
    if (group.x_ahead) prefetch<false, CACHE_LINE>(x + group.x_ahead, 0);
    if (group.y_ahead) prefetch<false, CACHE_LINE>(y + group.y_ahead, 0);
    stream_lines<1>(stream);
}

inline void copy_bytes(const RowGroup& group, int64_t begin, int64_t end) {
    StreamBuffer stream = *group.stream;
    for (int64_t r = 0; r < group.count; ++r) {
        const char* const x = group.x + r * group.x_row;
        char* const y = group.y + r * group.y_row;
        for (int64_t i = begin; i < end; i += CACHE_LINE) {
            if (end - i < CACHE_LINE)
                std::memcpy(y + i, x + i, static_cast<size_t>(end - i));
            else
                std::memcpy(y + i, x + i, CACHE_LINE);
            prefetch_and_stream(group, stream, x + i, y + i);
        }
    }
    *group.stream = stream;
}

inline void copy_unrotated(const Layout& layout, const RowGroup& group, int64_t itemsize) {
    if (2 * layout.num_pairs == layout.head_dim || group.x == group.y) return;
    copy_bytes(group, 0, itemsize * layout.start);
    copy_bytes(group, itemsize * (layout.start + 2 * layout.num_pairs), itemsize * layout.head_dim);
}

template <class T, bool reads_half, bool writes_half, class From>
inline void rotate_by_column(const Layout& layout, const RowGroup& group, const From& angles) {
    constexpr int64_t itemsize = sizeof(typename T::Stored);
    constexpr int chunk = reads_half == writes_half ? From::CHUNK : From::MIXED_CHUNK;
    using Column = RotateColumn<T, reads_half, writes_half, From>;
    copy_unrotated(layout, group, itemsize);
    const int64_t n = pairs_per_block(layout);
    for (int64_t i = 0; i < layout.num_pairs; i += n) {
        const int64_t begin = (layout.start + 2 * i) * itemsize;
        for_chunks<chunk>(n, Column{angles, group, group.x + begin, group.y + begin, i, n});
    }
}

// The pairs of one block in one row.
template <class T, bool reads_half, bool writes_half>
struct RotateRow {
    const char* x;
    char* y;
    const typename T::Real* cos;
    const typename T::Real* sin;
    int64_t second_half;

    template <int chunk>
    void at(int64_t i) const {
        constexpr int W = chunk < T::W ? chunk : T::W;
        constexpr int64_t itemsize = sizeof(typename T::Stored);
        using Pairs = Ordered<T, reads_half, writes_half, FromTables<typename T::Real>, W>;
        using Real = Vec<typename T::Real, W>;
        unroll<chunk / W>([&](auto v) ROPE_ALWAYS {
            const int64_t k = i + v * W;
            const int64_t at_x = itemsize * (reads_half ? k : 2 * k), at_y = itemsize * (writes_half ? k : 2 * k);
            rotate_pairs<Pairs, reads_half, writes_half, W>(x + at_x, y + at_y, second_half,
                                                            load_table<Real, Pairs::IN_BLOCKS>(cos + k),
                                                            load_table<Real, Pairs::IN_BLOCKS>(sin + k));
        });
    }
};

// Rotate row by row. For few rows this is faster than rotate_by_column, which sets up each column.
template <class T, bool reads_half, bool writes_half>
inline void rotate_by_row(const Layout& layout, const RowGroup& group, const FromTables<typename T::Real>& tables) {
    using Number = typename T::Real;
    using Row = RotateRow<T, reads_half, writes_half>;
    constexpr int64_t itemsize = sizeof(typename T::Stored);
    copy_unrotated(layout, group, itemsize);
    const int64_t n = pairs_per_block(layout);
    for (int64_t r = 0; r < group.count; ++r) {
        const char* const x = group.x + r * group.x_row + itemsize * layout.start;
        char* const y = group.y + r * group.y_row + itemsize * layout.start;
        const FromTables<Number> row = tables.from(r);
        const Number* const cos = reinterpret_cast<const Number*>(row.cos);
        const Number* const sin = reinterpret_cast<const Number*>(row.sin);
        for (int64_t i = 0; i < layout.num_pairs; i += n) {
            const int64_t begin = 2 * i * itemsize;
            for_chunks<FromTables<Number>::CHUNK>(n, Row{x + begin, y + begin, cos + i, sin + i, n * itemsize});
        }
        if (group.x_ahead || group.y_ahead || group.stream->bytes)
            for (int64_t i = 0; i < 2 * layout.num_pairs * itemsize; i += CACHE_LINE)
                prefetch_and_stream(group, *group.stream, x + i, y + i);
    }
}

// Rotate a group by the faster order for its number of rows.
template <class T, bool reads_half, bool writes_half>
ROPE_NOINLINE void rotate_group(const Layout& layout, const RowGroup& group, const FromTables<typename T::Real>& tables) {
    // With so many rows, rotate_by_column is no slower than rotate_by_row (measured on 2026-11-21).
    const int64_t rows_for_columns = layout.num_pairs > 128 ? layout.num_pairs / 32 : 4;
    if (group.count < rows_for_columns)
        rotate_by_row<T, reads_half, writes_half>(layout, group, tables);
    else
        rotate_by_column<T, reads_half, writes_half>(layout, group, tables);
}

// Rotate blocks of rows, with x, y or both in scratch. A block first takes the rows or runs that are nearer in memory,
// as they share cache lines, then the others:
//
//     x or y      a0 a1 a2 a3  ...  b0 b1 b2 b3  ...    features a, b, ... of the rows 0 to 3
//     scratch     a0 b0 ...  a1 b1 ...  a2 b2 ...  a3 b3 ...
template <class Stored, class Number>
ROPE_NOINLINE void rotate_via_scratch(const Layout& layout, const Rows& rows, const FromTables<Number>& tables,
                                      void (*rotate)(const Layout&, const RowGroup&, const FromTables<Number>&)) {
    constexpr int64_t itemsize = sizeof(Stored);
    if (!rows.count || !rows.runs) return;
    const int64_t row_bytes = layout.head_dim * itemsize;
    const bool stages_x = rows.stages_x, stages_y = rows.stages_y && !rows.streamed;
    const int64_t max_rows = smaller(rows.scratch_rows, rows.streamed ? GROUP_BYTES / row_bytes : rows.scratch_rows);
    const bool runs_first = stages_x ? is_nearer(rows.x_run, rows.x_row) : is_nearer(rows.y_run, rows.y_row);
    const int64_t first = equal_part(runs_first ? rows.runs : rows.count, max_rows), others = max_rows / first;
    const int64_t block_runs = runs_first ? first : equal_part(rows.runs, others);
    const int64_t block_rows = runs_first ? equal_part(rows.count, others) : first;
    char* const in = rows.scratch;
    char* const out = stages_x && layout.reads_half == layout.writes_half ? in : in + rows.scratch_rows * rows.scratch_row;
    for (int64_t u = 0; u < rows.runs; u += block_runs) {
        for (int64_t r = 0; r < rows.count; r += block_rows) {
            const int64_t runs = smaller(block_runs, rows.runs - u), count = smaller(block_rows, rows.count - r);
            const int64_t row = rows.scratch_row * (runs_first ? runs : 1);
            const int64_t run = rows.scratch_row * (runs_first ? 1 : count);
            const char* const x = rows.x + u * rows.x_run + r * rows.x_row;
            char* const y = rows.y + u * rows.y_run + r * rows.y_row;
            auto block = [&](int64_t memory_feature, int64_t memory_row, int64_t memory_run) {
                return Block({layout.head_dim, memory_feature, itemsize}, {count, memory_row, row},
                             {runs, memory_run, run});
            };
            if (stages_x) copy_block<Stored>(x, in, block(rows.x_feature, rows.x_row, rows.x_run));
            for (int64_t k = 0; k < runs; ++k) {
                RowGroup group = {x + k * rows.x_run, y + k * rows.y_run, rows.x_row, rows.y_row, r, count, 0, 0,
                                  rows.stream};
                if (stages_x) group.x = in + k * run, group.x_row = row;
                if (stages_y) group.y = out + k * run, group.y_row = row;
                if (rows.streamed) group.y = rows.stream->active, group.y_row = row_bytes;
                rotate(layout, group, tables.from(r));
                if (rows.streamed) queue_active(*rows.stream, y + k * rows.y_run, count * row_bytes);
            }
            if (stages_y) copy_block<Stored>(y, out, block(rows.y_feature, rows.y_row, rows.y_run));
        }
    }
}

template <class T, bool reads_half, bool writes_half>
inline void rotate_by_tables(const Layout& layout, const Rows& rows) {
    constexpr int64_t itemsize = sizeof(typename T::Stored);
    const FromTables<typename T::Real> tables = {rows.cos, rows.sin, rows.cos_row, rows.sin_row};
    if (rows.stages_x || rows.stages_y)
        return rotate_via_scratch<typename T::Stored>(layout, rows, tables, rotate_group<T, reads_half, writes_half>);
    for_row_groups(rows, layout.head_dim * itemsize, [&](const RowGroup& group) {
        rotate_group<T, reads_half, writes_half>(layout, group, tables.from(group.first));
    });
}

// Rotate each group in prefixes of evenly spaced positions, which need no tables, and from a short prefix on by
// tables in scratch. Float compute only: float64 takes tables.
template <class T, bool reads_half, bool writes_half>
inline void rotate_by_positions(const Layout& layout, const Rows& rows) {
    constexpr int64_t itemsize = sizeof(typename T::Stored);
    for_row_groups(rows, layout.head_dim * itemsize, [&](const RowGroup& group) {
        RowGroup pending = group;
        for (const int64_t end = group.first + group.count; pending.first < end; pending.first += pending.count) {
            const Positions rest = rows.positions.from(pending.first, end - pending.first), spaced = evenly_spaced(rest);
            if (is_short(spaced, rest)) {
                pending.count = rest.count;
                float *const cos = reinterpret_cast<float*>(rows.scratch), *const sin = cos + rest.count * layout.num_pairs;
                make_tables32(*rows.frequencies, rest, cos, sin);
                const int64_t row = layout.num_pairs * static_cast<int64_t>(sizeof *cos);
                rotate_group<T, reads_half, writes_half>(
                    layout, pending, {reinterpret_cast<char*>(cos), reinterpret_cast<char*>(sin), row, row});
                return;
            }
            pending.count = spaced.count;
            rotate_by_column<T, reads_half, writes_half>(layout, pending, FromPositions{*rows.frequencies, spaced});
            pending.x += pending.count * pending.x_row;
            pending.y += pending.count * pending.y_row;
        }
    });
}

template <class T, bool reads_half, bool writes_half>
void rotate_layout(const Layout& layout, const Rows& rows) {
    if constexpr (sizeof(typename T::Real) == 4) {
        if (rows.frequencies) return rotate_by_positions<T, reads_half, writes_half>(layout, rows);
    }
    rotate_by_tables<T, reads_half, writes_half>(layout, rows);
}

template <class T>
void rotate(const Layout& layout, const Rows& rows) {
    if (layout.reads_half)
        layout.writes_half ? rotate_layout<T, true, true>(layout, rows) : rotate_layout<T, true, false>(layout, rows);
    else
        layout.writes_half ? rotate_layout<T, false, true>(layout, rows) : rotate_layout<T, false, false>(layout, rows);
}

}  // namespace
}  // namespace rope
