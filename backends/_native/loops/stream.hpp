// Prefetch x and y, and store results by non-temporal stores: a few cache lines between computations, as the
// queues to memory are short.
#pragma once

#include "../simd.hpp"

namespace rope {
namespace {

// Prefetch `bytes` bytes of features in a later row, each cache line once: the processor's own prefetch stops
// at each page. An ordinary store reads its line first, so y is prefetched too.
template <bool half, int64_t bytes>
ROPE_INLINE void prefetch(const char* first, int64_t second_half) {
#if defined(__GNUC__)
    constexpr int64_t contiguous = half ? bytes / 2 : bytes;
    for (int64_t i = 0; i < contiguous; i += CACHE_LINE) {
        __builtin_prefetch(first + i);
        if constexpr (half) __builtin_prefetch(first + second_half + i);
    }
#else
    (void)first, (void)second_half;
#endif
}

ROPE_INLINE void advance(StreamBuffer& stream, int64_t bytes) {
    stream.from += bytes;
    stream.to += bytes;
    stream.bytes -= bytes;
}

template <int64_t lines>
ROPE_INLINE void stream_lines(StreamBuffer& stream) {
    if (stream.bytes < lines * CACHE_LINE) return;
    for (int64_t i = 0; i < lines; ++i) stream_line(stream.from + i * CACHE_LINE, stream.to + i * CACHE_LINE);
    advance(stream, lines * CACHE_LINE);
}

inline void stream_all_lines(StreamBuffer& stream) {
    while (stream.bytes >= CACHE_LINE) stream_lines<1>(stream);
}

// Write the next `bytes` bytes, less than a cache line, by ordinary stores.
inline void copy_partial_line(StreamBuffer& stream, int64_t bytes) {
    std::memcpy(stream.to, stream.from, static_cast<size_t>(bytes));
    advance(stream, bytes);
}

// Store the waiting rows, then queue the rows of the active buffer, at least a cache line, for y, and swap
// the buffers. The waiting bytes that do not fill a line, the tail, move before the new rows:
//
//     active    |  free line  tail|rows for y                    |
//                             ^ from; bytes = tail + rows
//     memory      ... |line      |tail rows |rows      |rows           cache lines: stores write them whole
//                                 ^ to = y - tail
//
// If y does not continue the rows before it, ordinary stores write the tail instead.
inline void queue_active(StreamBuffer& stream, char* y, int64_t bytes) {
    stream_all_lines(stream);
    if (y != stream.to + stream.bytes) {
        copy_partial_line(stream, stream.bytes);
        stream.to = y;
    }
    // Move the tail into the free line.
    char* const rows = stream.active;
    std::memcpy(rows - stream.bytes, stream.from, static_cast<size_t>(stream.bytes));
    stream.from = rows - stream.bytes;
    stream.bytes += bytes;
    stream.active = stream.spare;
    stream.spare = rows;
    const int64_t unaligned = static_cast<int64_t>((0 - reinterpret_cast<uintptr_t>(stream.to)) % CACHE_LINE);
    if (unaligned) copy_partial_line(stream, unaligned);
}

inline void finish_stream(StreamBuffer& stream) {
    stream_all_lines(stream);
    copy_partial_line(stream, stream.bytes);
    store_fence();
}

}  // namespace
}  // namespace rope
