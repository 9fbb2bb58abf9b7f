// Copy blocks of rows from strided or unaligned memory to scratch, where features are contiguous, and back.
#pragma once

#include "angles.hpp"

namespace rope {
namespace {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline bool is_nearer(int64_t a, int64_t b) { return (a < 0 ? -a : a) < (b < 0 ? -b : b); }

// Return the size of the fewest equal parts of n that have at most `max`.
inline int64_t equal_part(int64_t n, int64_t max) {
    const int64_t num_parts = (n + max - 1) / max;
    return (n + num_parts - 1) / num_parts;
}

// An axis of a block: its size, and its strides in bytes.
struct BlockAxis {
    int64_t n, memory, scratch;
};

// The axes of a block, the smallest stride in memory first: all elements of a cache line are copied before the next
// line. Later it may be evicted, as lines whose addresses differ by a power of two share a few places in a cache.
struct Block {
    static constexpr int64_t FEW = 4;  // a loop costs as much as some elements
    BlockAxis inner, middle, outer;

    Block(BlockAxis features, BlockAxis rows, BlockAxis runs) : inner(features), middle(rows), outer(runs) {
        sort(inner, middle);
        sort(middle, outer);
        sort(inner, middle);
        if (middle.memory == inner.n * inner.memory && middle.scratch == inner.n * inner.scratch) {
            inner.n *= middle.n;
            middle = outer;
            outer = {1, 0, 0};
        }
        if (inner.n < FEW && inner.n < middle.n && is_nearer(middle.memory, CACHE_LINE)) swap(inner, middle);
    }

  private:
    static void sort(BlockAxis& first, BlockAxis& second) {
        if (first.n > 1 && (second.n == 1 || !is_nearer(second.memory, first.memory))) return;
        swap(first, second);
    }
    static void swap(BlockAxis& first, BlockAxis& second) {
        const BlockAxis axis = first;
        first = second;
        second = axis;
    }
};

// Prefetch the cache lines between two addresses.
inline void prefetch_lines(const char* from, const char* to) {
#if defined(__GNUC__)
    for (; from < to + CACHE_LINE; from += CACHE_LINE) __builtin_prefetch(from);
#else
    (void)from, (void)to;
#endif
}

// Copy one axis of a block. `Memory` is const char to copy to scratch, and char to copy from it.
template <class Stored, class Memory>
inline void copy_axis(Memory* memory, char* scratch, const BlockAxis axis) {
    constexpr int64_t itemsize = sizeof(Stored);
    const bool contiguous = axis.memory == itemsize && axis.scratch == itemsize;
    const size_t bytes = static_cast<size_t>(axis.n * itemsize);
    for_rows<4>(contiguous ? 0 : axis.n, [&](auto count) ROPE_ALWAYS {
        unroll<count>([&](auto) ROPE_ALWAYS {
            if constexpr (std::is_const_v<Memory>)
                store(scratch, load<Stored>(memory));
            else
                store(memory, load<Stored>(scratch));
            memory += axis.memory;
            scratch += axis.scratch;
        });
    });
    if (!contiguous) return;
    if constexpr (std::is_const_v<Memory>)
        std::memcpy(scratch, memory, bytes);
    else
        std::memcpy(memory, scratch, bytes);
}

#if defined(__GNUC__)
// Transpose N vectors of N lanes, for N = 4:
//
//     v[0]  a0 a1 a2 a3        a0 c0 a1 c1        a0 b0 c0 d0
//     v[1]  b0 b1 b2 b3        a2 c2 a3 c3        a1 b1 c1 d1
//     v[2]  c0 c1 c2 c3        b0 d0 b1 d1        a2 b2 c2 d2
//     v[3]  d0 d1 d2 d3        b2 d2 b3 d3        a3 b3 c3 d3
template <int step = 1, class V, int N>
ROPE_INLINE void transpose(V (&v)[N]) {
    if constexpr (step < N) {
        V zipped[N];
        unroll<N / 2>([&](auto k) ROPE_ALWAYS {
            zipped[2 * k] = shuffle<ZipLow, N>(v[k], v[k + N / 2]);
            zipped[2 * k + 1] = shuffle<ZipHigh, N>(v[k], v[k + N / 2]);
        });
        unroll<N>([&](auto k) ROPE_ALWAYS { v[k] = zipped[k]; });
        transpose<2 * step>(v);
    }
}

// Copy N rows of N features, whose rows are contiguous in memory. `feature` and `row` are the other strides.
template <int N, class Stored, class Memory>
ROPE_INLINE void copy_transposed(Memory* memory, char* scratch, int64_t feature, int64_t row) {
    Vec<Stored, N> v[N];
    constexpr bool to_scratch = std::is_const_v<Memory>;
    unroll<N>([&](auto k) ROPE_ALWAYS {
        v[k] = load<Vec<Stored, N>>(to_scratch ? memory + k * feature : scratch + k * row);
    });
    transpose(v);
    unroll<N>([&](auto k) ROPE_ALWAYS {
        if constexpr (to_scratch)
            store(scratch + k * row, v[k]);
        else
            store(memory + k * feature, v[k]);
    });
}
#endif

// Copy a block to scratch if Memory is const char, else from it.
template <class Stored, class Memory>
inline void copy_block(Memory* memory, char* scratch, const Block& block) {
    constexpr int64_t itemsize = sizeof(Stored), AHEAD = 8;
    const BlockAxis inner = block.inner, middle = block.middle, outer = block.outer;
    const int64_t length = (inner.n - 1) * inner.memory;
    // Strides up to a line fill lines; the processor itself prefetches lines that are adjacent.
    const bool prefetches = !is_nearer(CACHE_LINE, inner.memory) && is_nearer(CACHE_LINE, middle.memory);
    for (int64_t i = 0; i < outer.n; ++i) {
        for (int64_t j = 0; j < middle.n;) {
            Memory* from = memory + i * outer.memory + j * middle.memory;
            char* to = scratch + i * outer.scratch + j * middle.scratch;
            BlockAxis rest = inner;
            int64_t count = 1;
#if defined(__GNUC__)
            constexpr int N = 16 / itemsize;
            if (inner.memory == itemsize && middle.scratch == itemsize && j + N <= middle.n) count = N;
#endif
            for (int64_t k = AHEAD; prefetches && k < AHEAD + count; ++k) {
                const char* const next = from + k * middle.memory;
                prefetch_lines(length < 0 ? next + length : next, length < 0 ? next : next + length);
            }
#if defined(__GNUC__)
            for (; count == N && rest.n >= N; rest.n -= N, from += N * itemsize, to += N * inner.scratch)
                copy_transposed<N, Stored>(from, to, middle.memory, inner.scratch);
#endif
            for (int64_t k = 0; rest.n && k < count; ++k)
                copy_axis<Stored>(from + k * middle.memory, to + k * middle.scratch, rest);
            j += count;
        }
    }
}

}  // namespace
}  // namespace rope
