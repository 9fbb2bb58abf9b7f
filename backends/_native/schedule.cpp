#include "schedule.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "thread_pool.hpp"

namespace rope {
namespace {

// Bytes of the tables in one tile: few if a position's rows are adjacent (they stay in the L1 cache), more if several
// runs of rows reuse them.
constexpr int64_t TABLE_BYTES = 1 << 14, TABLE_BYTES_OF_RUNS = 1 << 17;
constexpr int64_t MAX_TILE_POSITIONS = 256;   // without runs, or if the loop is fused
constexpr int64_t GRADIENT_POSITIONS = 64;    // in a tile of gradients
constexpr int64_t MIN_TILE_BYTES = 1 << 18;   // of x, if several threads share the tiles
constexpr int64_t PREFETCH_BYTES = 1 << 19;   // of x, from which x and y together exceed an L2 cache of 1 MiB
constexpr int64_t MIN_STREAMED_LINES = 8;     // contiguous cache lines
// malloc maps a new array of 32 MiB, and the system zeroes each page at its first store. The page is then in
// the caches, and non-temporal stores evict it: on an Intel Xeon these calls took 1.2 to 1.6 times as long.
// Non-temporal stores pay if runs of rows touch more new pages at a time than the caches hold.
constexpr int64_t NEW_PAGES_BYTES = 1 << 25;         // of one new array
constexpr int64_t STREAM_NEW_PAGES_BYTES = 1 << 26;  // of x, from which runs touch more new pages than caches hold
// Bytes of a block of rows in scratch: it stays in the L1 cache. If rows are so long that ADJACENT_BYTES of a feature
// are more, in an L2 cache: the features of transposed rows are pages apart, and each visit to a page costs time.
constexpr int64_t SCRATCH_BYTES = 1 << 15, MAX_SCRATCH_BYTES = 1 << 18, ADJACENT_BYTES = 256;
constexpr int64_t STACK_BYTES = 1 << 15;
constexpr int64_t FEW_ROWS = 16;  // a call to the inner loop costs as much as some rows

int64_t round_to_lines(int64_t bytes) { return (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE; }

void prefetch_rows(const char* from, int64_t row, int64_t count, int64_t bytes) {
#if defined(__GNUC__)
    for (int64_t r = 0; r < count; ++r, from += row)
        for (int64_t i = 0; i < bytes; i += CACHE_LINE) __builtin_prefetch(from + i);
#else
    (void)from, (void)row, (void)count, (void)bytes;
#endif
}

struct Axis {
    int64_t n, x, y, cos, sin;  // size, and strides in bytes
    int64_t slots, head;        // of a cache: stride of its slots in numbers, of its heads in bytes
};

// The axes of an array: strides along the source's axes, and the free axes, along which all rows share their position.
struct ArrayLoop {
    const Array* array;
    int64_t x_stride[MAX_AXES], y_stride[MAX_AXES], slots_stride[MAX_AXES], head_stride[MAX_AXES];
    Axis free[MAX_AXES];
    int num_free = 0;
    int64_t rows_per_position = 1;
    bool stages_x, stages_y;  // whether features are copied to scratch, and from scratch

    bool is_staged() const { return stages_x || stages_y; }

    // Return whether run_normed() serves the rows.
    bool is_normed() const { return array->norm || (array->cache && !array->cache->is_copy); }

    ArrayLoop() {}  // leaves the axes uninitialized: setting kilobytes would slow small calls
};

// Return whether features are strided or unaligned: the inner loops take them from scratch.
bool is_staged(const Array& array, const void* data, const int64_t* stride, int64_t feature) {
    const int64_t itemsize = ITEMSIZE[array.dtype];
    uint64_t bits = reinterpret_cast<uintptr_t>(data);
    for (int a = 0; a < array.num_axes; ++a) bits |= static_cast<uint64_t>(stride[a]);
    return (array.width > 1 && feature != itemsize) || (bits & static_cast<uint64_t>(itemsize - 1));
}

// Reads the positions of a source in blocks along its last axis.
class PositionReader {
  protected:
    PositionReader(const KernelPlan& plan, const Source& source, const Level& level, DType dtype)
        : plan_(plan), source_(source), level_(level), real_bytes_(dtype == F64 ? 8 : 4),
          num_coordinates_(std::max<int64_t>(1, plan.num_coordinates)) {
        for (int j = 0; j < source.num_axes; ++j)
            if (source.shape[j] != 1) source_axes_[num_source_axes_++] = j;
        length_ = num_source_axes_ ? source.shape[source_axes_[last()]] : 1;
        for (int k = 0; k < last(); ++k) outer_ *= source.shape[source_axes_[k]];
    }

    int last() const { return num_source_axes_ - 1; }

    void set_block_size(int64_t size) {
        block_size_ = std::min(size, length_);
        num_blocks_ = (length_ + block_size_ - 1) / block_size_;
    }

    // Set the indices of the first position of a block, along the source's axes; return the number of positions.
    int64_t locate(int64_t block, int64_t* index) const {
        int64_t outer = block / num_blocks_;
        block %= num_blocks_;
        for (int k = last() - 1; k >= 0; --k) {
            index[k] = outer % source_.shape[source_axes_[k]];
            outer /= source_.shape[source_axes_[k]];
        }
        if (num_source_axes_) index[last()] = block * block_size_;
        return std::min(block_size_, length_ - block * block_size_);
    }

    int64_t values_bytes() const { return round_to_lines(8 * block_size_ * num_coordinates_); }
    int64_t positions_bytes() const { return source_.kind == TABLES ? 0 : values_bytes() * (1 + source_.has_floats()); }

    // Read a block of positions into scratch of positions_bytes().
    Positions read_positions(char* scratch, const int64_t* index, int64_t count) const {
        int64_t* const values = reinterpret_cast<int64_t*>(scratch);
        char* const fractions = scratch + values_bytes();
        float* const floats = source_.kind == FLOAT32 ? reinterpret_cast<float*>(fractions) : nullptr;
        double* const doubles = source_.kind == FLOAT64 ? reinterpret_cast<double*>(fractions) : nullptr;
        if (floats)
            read_floats(values, floats, index, count);
        else if (doubles)
            read_floats(values, doubles, index, count);
        else
            read_integers(values, index, count);
        const auto is_int32 = [](int64_t value) { return value == static_cast<int32_t>(value); };
        const bool are_int32 = std::all_of(values, values + count * num_coordinates_, is_int32);
        return {values, floats, doubles, count, num_coordinates_, are_int32};
    }

    int64_t offset(const int64_t* stride, const int64_t* index) const {
        int64_t bytes = 0;
        for (int k = 0; k < num_source_axes_; ++k) bytes += index[k] * stride[source_axes_[k]];
        return bytes;
    }

    void read_integers(int64_t* values, const int64_t* index, int64_t count) const {
        if (source_.kind == SPACED) {
            // Add modulo 2^64: the step after the last position may overflow.
            const uint64_t step = static_cast<uint64_t>(source_.step);
            uint64_t next = static_cast<uint64_t>(source_.start);
            if (num_source_axes_) next += static_cast<uint64_t>(index[last()]) * step;
            for (int64_t r = 0; r < count; ++r, next += step) values[r] = static_cast<int64_t>(next);
            return;
        }
        for_each_number(index, count, [&](const char* from) { *values++ = read_integer(from); });
    }

    // Split numbers into the nearest integers, ties to even, and the rest, exactly. A number beyond int64, and NaN,
    // has some integer; the rest of NaN and of Inf is NaN.
    template <class Number>
    void read_floats(int64_t* values, Number* fractions, const int64_t* index, int64_t count) const {
        for_each_number(index, count, [&](const char* from) {
            const Number number = read_as<Number>(from), nearest = std::nearbyint(number);
            *fractions++ = number - nearest;
            *values++ = std::fabs(nearest) < Number{0x1p63} ? static_cast<int64_t>(nearest) : INT64_MIN;
        });
    }

    // Call f(address) for each coordinate of a block of positions.
    template <class F>
    void for_each_number(const int64_t* index, int64_t count, const F& f) const {
        const char* const first = source_.data + offset(source_.stride, index);
        const int64_t stride = num_source_axes_ ? source_.stride[source_axes_[last()]] : 0, n = num_coordinates_;
        for (int64_t r = 0; r < count; ++r)
            for (int64_t c = 0; c < n; ++c) f(first + r * stride + c * source_.coordinate);
    }

    int64_t read_integer(const char* from) const {
        if (source_.kind == UINT32) return read_as<uint32_t>(from);
        return source_.kind == INT32 ? read_as<int32_t>(from) : read_as<int64_t>(from);
    }

    // Bytes of the cos of a block, and of cos and sin in scratch, after positions_bytes().
    int64_t table_bytes() const { return block_size_ * plan_.layout.num_pairs * real_bytes_; }
    int64_t tables_bytes() const { return source_.kind == TABLES ? 0 : round_to_lines(2 * table_bytes()); }

    // Set the tables of a block of positions: the caller's, or computed into scratch.
    void set_tables(Rows& rows, const int64_t* index, int64_t count, char* scratch) const {
        if (source_.kind == TABLES) {
            rows.cos = source_.data + offset(source_.stride, index);
            rows.sin = source_.sin + offset(source_.sin_stride, index);
            rows.cos_row = num_source_axes_ ? source_.stride[source_axes_[last()]] : 0;
            rows.sin_row = num_source_axes_ ? source_.sin_stride[source_axes_[last()]] : 0;
            return;
        }
        rows.positions = read_positions(scratch, index, count);
        char* const cos = scratch + positions_bytes();
        char* const sin = cos + table_bytes();
        if (real_bytes_ == 8)
            level_.make_tables64(plan_.frequencies, rows.positions, reinterpret_cast<double*>(cos),
                                 reinterpret_cast<double*>(sin));
        else
            level_.make_tables32(plan_.frequencies, rows.positions, reinterpret_cast<float*>(cos),
                                 reinterpret_cast<float*>(sin));
        rows.cos = cos;
        rows.sin = sin;
        rows.cos_row = rows.sin_row = plan_.layout.num_pairs * real_bytes_;
    }

    const KernelPlan& plan_;
    const Source& source_;
    const Level& level_;
    const int64_t real_bytes_;  // of the precision that arrays are rotated in
    const int64_t num_coordinates_;
    int source_axes_[MAX_AXES], num_source_axes_ = 0;  // the source's axes longer than 1
    int64_t length_ = 1, outer_ = 1;                   // size of the last axis, product of the other sizes
    int64_t block_size_ = 1, num_blocks_ = 1;
};

// Call run_tile(scratch, tile) for each tile, each worker with `bytes` bytes of scratch.
template <class RunTile>
void run_tiles(int64_t num_tiles, int threads, int64_t bytes, const RunTile& run_tile) {
    const int workers = static_cast<int>(std::min<int64_t>(threads, num_tiles));
    alignas(CACHE_LINE) char stack[STACK_BYTES];
    std::unique_ptr<char[]> heap;
    char* scratch = stack;
    if (workers > 1 || bytes > STACK_BYTES) {
        heap.reset(new char[static_cast<size_t>(bytes * workers + CACHE_LINE)]);
        scratch = heap.get() + (CACHE_LINE - reinterpret_cast<uintptr_t>(heap.get()) % CACHE_LINE);
    }
    auto run = [&](int worker, int64_t tile) { run_tile(scratch + worker * bytes, tile); };
    auto work = [](void* context, int worker, int64_t tile) { (*static_cast<decltype(run)*>(context))(worker, tile); };
    parallel(num_tiles, workers, work, &run);
}

// Makes tables of all positions, a block in a tile.
class TableSchedule : PositionReader {
  public:
    TableSchedule(const KernelPlan& plan, const Source& source, const Level& level, DType dtype)
        : PositionReader(plan, source, level, dtype) {
        set_block_size(MAX_TILE_POSITIONS);
    }

    template <class Real>
    void run(void (*make)(const Frequencies&, const Positions&, Real*, Real*), Real* cos, Real* sin, int threads) {
        run_tiles(outer_ * num_blocks_, threads, positions_bytes(), [&](char* scratch, int64_t tile) {
            int64_t index[MAX_AXES] = {};
            const int64_t count = locate(tile, index);
            const int64_t at = (tile / num_blocks_ * length_ + tile % num_blocks_ * block_size_) * plan_.layout.num_pairs;
            make(plan_.frequencies, read_positions(scratch, index, count), cos + at, sin + at);
        });
    }
};

// Splits a call into tiles. A tile is a block of positions, and a share of the rows at each position. The
// tiles of positions with the same outer index, with 3 blocks along the last axis and 2 shares:
//
//                           block 0    block 1    block 2        positions ->
//     rows of share 0       tile 0     tile 2     tile 4         rows: all indices of the free axes
//     rows of share 1       tile 1     tile 3     tile 5
//
// The scratch memory of a tile; sections that it does not need are empty:
//
//     | values | fractions | cos | sin | rows of x | rows of y | line | rows | line | rows | 3 blocks |
//       positions              tables         if staged            the two stream buffers   if normed
class Schedule : PositionReader {
  public:
    Schedule(const KernelPlan& plan, const Items<Array>& arrays, const Source& source, bool fresh,
             const Level& level)
        : PositionReader(plan, source, level, arrays[0].dtype), fresh_(fresh), loops_(arrays.size()) {
        for (size_t i = 0; i < arrays.size(); ++i) classify_axes(loops_[i], arrays[i]);
        if (!fresh && arrays.size() == 2 && join(loops_[0], loops_[1])) loops_.drop_last();
        // With one row per position, the inner loop computes cos and sin, which hides the latency of memory.
        fused_ = source.kind != TABLES && real_bytes_ == 4 && loops_.size() == 1 && loops_[0].rows_per_position == 1 &&
                 !loops_[0].is_staged() && !loops_[0].is_normed();
    }

    void run(int threads) {
        int64_t bytes = 0;
        for (const ArrayLoop& loop : loops_) bytes += x_bytes(loop);
        if (!bytes) return;
        streams_ = bytes >= stream_bytes.load(std::memory_order_relaxed);
        streams_new_pages_ = bytes >= STREAM_NEW_PAGES_BYTES;
        prefetches_ = bytes >= PREFETCH_BYTES;
        choose_tiles(bytes, threads);
        const int64_t scratch_bytes =
            positions_bytes() + block_tables_bytes() + group_tables_bytes() + staged_bytes() + stream_buffer_bytes() + blocks_bytes();
        run_tiles(num_tiles_, threads, scratch_bytes, [this](char* scratch, int64_t tile) { run_tile(scratch, tile); });
    }

    // Sum the gradients of weights by tiles that do not depend on the number of threads.
    void run_with_gradients(int threads, std::vector<double>& weight_sums) {
        num_weights_ = weight_sums.size();
        tile_sums_.resize(num_weights_);
        run(threads);
        for (size_t i = 0; i < tile_sums_.size(); ++i) weight_sums[i % num_weights_] += tile_sums_[i];
    }

  private:
    void classify_axes(ArrayLoop& loop, const Array& array) const {
        loop.array = &array;
        bool is_paired[MAX_AXES] = {};
        for (int k = 0; k < num_source_axes_; ++k) {
            const int a = paired_axis(source_.num_axes, array.seq_axis, source_axes_[k]);
            is_paired[a] = true;
            loop.x_stride[k] = array.x_stride[a];
            loop.y_stride[k] = array.y_stride[a];
            loop.slots_stride[k] = array.cache ? array.cache->slots_stride[a] : 0;
            loop.head_stride[k] = array.cache ? array.cache->head_stride[a] : array.normed ? array.normed->stride[a] : 0;
        }
        for (int a = 0; a < array.num_axes; ++a) {
            if (is_paired[a] || array.shape[a] == 1) continue;
            Axis& axis = loop.free[loop.num_free++] = {array.shape[a], array.x_stride[a], array.y_stride[a], 0, 0, 0, 0};
            if (array.cache) axis.slots = array.cache->slots_stride[a], axis.head = array.cache->head_stride[a];
            if (array.normed) axis.head = array.normed->stride[a];
            loop.rows_per_position *= array.shape[a];
        }
        const Layout& layout = plan_.layout;
        const bool overwrites = array.x == array.y && layout.reads_half != layout.writes_half;  // features not yet read
        loop.stages_x = is_staged(array, array.x, array.x_stride, array.x_feature) || overwrites;
        loop.stages_y = is_staged(array, array.y, array.y_stride, array.y_feature);
    }

    // Join two arrays whose rows are adjacent in x and in y, such as q and k in one tensor, into one; return
    // whether they are joined. Only if the rows are few: then a second loop costs more than its rows.
    //
    //     at each position    | q0 q1 q2 q3 | k0 k1 |    axes of 4 and of 2 rows, one stride: an axis of 6 rows
    bool join(ArrayLoop& first, const ArrayLoop& second) const {
        const Array &a = *first.array, &b = *second.array;
        if (a.norm || b.norm || a.cache || b.cache) return false;
        if (a.dtype != b.dtype || a.x_feature != b.x_feature || a.y_feature != b.y_feature) return false;
        if (first.stages_x != second.stages_x || first.stages_y != second.stages_y) return false;
        if (first.num_free > 1 || second.num_free > 1) return false;
        for (int k = 0; k < num_source_axes_; ++k)
            if (first.x_stride[k] != second.x_stride[k] || first.y_stride[k] != second.y_stride[k]) return false;
        const int64_t n = first.rows_per_position, rows = n + second.rows_per_position;
        const Axis pair = {2, b.x - a.x, b.y - a.y, 0, 0, 0, 0};
        const Axis axis = first.num_free ? first.free[0] : second.num_free ? second.free[0] : pair;
        const bool same_steps = !second.num_free || (second.free[0].x == axis.x && second.free[0].y == axis.y);
        if (rows >= FEW_ROWS || !same_steps || pair.x != n * axis.x || pair.y != n * axis.y) return false;
        first.free[0] = {rows, axis.x, axis.y, 0, 0, 0, 0};
        first.num_free = 1;
        first.rows_per_position = rows;
        return true;
    }

    int64_t row_bytes(const ArrayLoop& loop) const { return loop.array->width * ITEMSIZE[loop.array->dtype]; }
    int64_t x_bytes(const ArrayLoop& loop) const {
        return row_bytes(loop) * loop.rows_per_position * outer_ * length_;
    }

    // Split the positions into blocks, and the free axes into shares if there are too few blocks for the
    // threads.
    void choose_tiles(int64_t bytes, int threads) {
        const int64_t table = 2 * plan_.layout.num_pairs * real_bytes_;
        int64_t size = MAX_TILE_POSITIONS;
        if (num_weights_) {
            set_block_size(GRADIENT_POSITIONS);
            num_tiles_ = outer_ * num_blocks_;
            tile_sums_.resize(num_weights_ * static_cast<size_t>(num_tiles_));
            return;
        }
        if (table && !fused_) size = has_runs() ? TABLE_BYTES_OF_RUNS / table : std::min(TABLE_BYTES / table, size);
        size = std::max<int64_t>(1, size);
        const int64_t target_tiles = threads > 1 ? std::min<int64_t>(4 * threads, bytes / MIN_TILE_BYTES) : 1;
        if (target_tiles > outer_)
            size = std::min(size, std::max<int64_t>(1, length_ * outer_ / target_tiles));
        set_block_size(size);
        num_shares_ = std::max<int64_t>(1, (target_tiles + outer_ * num_blocks_ - 1) / (outer_ * num_blocks_));
        num_tiles_ = outer_ * num_blocks_ * num_shares_;
    }

    // Return whether the rows of successive positions are closer in memory than some rows that share a
    // position.
    bool has_runs() const {
        return num_source_axes_ && std::any_of(loops_.begin(), loops_.end(), [this](const ArrayLoop& loop) {
            const int64_t stride = std::abs(loop.x_stride[last()]);
            auto is_outside = [stride](const Axis& axis) { return std::abs(axis.x) > stride; };
            return std::any_of(loop.free, loop.free + loop.num_free, is_outside);
        });
    }

    // The sections of a tile's scratch memory, in their order, after positions_bytes().
    int64_t block_tables_bytes() const { return fused_ ? 0 : tables_bytes(); }
    int64_t group_tables_bytes() const {
        const int64_t rows = std::max<int64_t>(1, GROUP_BYTES / std::max<int64_t>(1, row_bytes(loops_[0])));
        return fused_ ? round_to_lines(8 * std::min(rows, block_size_) * plan_.layout.num_pairs) : 0;
    }
    int64_t staged_bytes() const {
        int64_t bytes = 0;
        for (const ArrayLoop& loop : loops_)
            if (loop.is_staged()) bytes = std::max(bytes, round_to_lines(2 * scratch_rows(loop) * scratch_row(loop)));
        return bytes;
    }
    int64_t scratch_rows(const ArrayLoop& loop) const {
        const int64_t row = scratch_row(loop), adjacent = ADJACENT_BYTES / ITEMSIZE[loop.array->dtype];
        const int64_t rows = std::max(SCRATCH_BYTES / row, std::min(adjacent, MAX_SCRATCH_BYTES / row));
        return std::max<int64_t>(1, std::min(rows, block_size_ * loop.rows_per_position));
    }
    // Return the bytes of a row in scratch: an odd number of cache lines, so that rows do not evict each other. Shorter
    // rows are adjacent.
    int64_t scratch_row(const ArrayLoop& loop) const {
        const int64_t row = row_bytes(loop);
        return row < CACHE_LINE ? row : round_to_lines(row) | CACHE_LINE;
    }
    int64_t stream_buffer_bytes() const { return streams_ ? 2 * (CACHE_LINE + GROUP_BYTES) : 0; }
    // Blocks of rows for run_normed(): of x, of y, and of the compute dtype.
    int64_t blocks_bytes() const {
        int64_t bytes = 0;
        for (const ArrayLoop& loop : loops_)
            if (loop.is_normed()) bytes = std::max(bytes, 3 * block_bytes(loop));
        return bytes;
    }
    int64_t block_rows(const ArrayLoop& loop) const {
        return std::max<int64_t>(1, GROUP_BYTES / std::max<int64_t>(1, loop.array->width * real_bytes_));
    }
    int64_t block_bytes(const ArrayLoop& loop) const {
        return round_to_lines(block_rows(loop) * loop.array->width * real_bytes_);
    }

    // Return whether to stream results: only contiguous results, and not over x, whose lines are in the
    // caches already. Short runs of rows and heads shorter than a line leave too little computation between
    // stores; the buffer holds a group at most.
    bool is_streamed(const ArrayLoop& loop, const Rows& rows) const {
        const Array& array = *loop.array;
        const int64_t row = row_bytes(loop);
        if (array.cache) return false;  // which reads the results
        if (!streams_ || array.x == array.y || array.y_feature != ITEMSIZE[array.dtype]) return false;
        if (rows.y_row != row || row < CACHE_LINE || row > GROUP_BYTES) return false;
        if (rows.count * row < MIN_STREAMED_LINES * CACHE_LINE) return false;
        const bool new_pages = fresh_ && x_bytes(loop) >= NEW_PAGES_BYTES;
        return !new_pages || (streams_new_pages_ && rows.runs > 1);
    }

    void run_tile(char* scratch, int64_t tile) const {
        const int64_t share = tile % num_shares_;
        int64_t index[MAX_AXES] = {};
        const int64_t count = locate(tile / num_shares_, index);
        Rows rows = {};
        rows.scratch = scratch + positions_bytes() + block_tables_bytes();
        StreamBuffer stream = {};
        if (streams_) {
            char* const buffer = rows.scratch + group_tables_bytes() + staged_bytes() + CACHE_LINE;
            stream = {buffer, buffer + GROUP_BYTES + CACHE_LINE, buffer, buffer, 0};
        }
        rows.stream = &stream;
        if (num_weights_) rows.weight_sums = tile_sums_.data() + num_weights_ * static_cast<size_t>(tile);
        rows.blocks = rows.scratch + group_tables_bytes() + staged_bytes() + stream_buffer_bytes();
        set_angles(rows, index, count, scratch);
        for (const ArrayLoop& loop : loops_) rotate_tile(loop, rows, index, count, share);
        if (streams_) level_.finish_stream(stream);
    }

    // Set the tables of a block of positions, or the positions if the loop is fused.
    void set_angles(Rows& rows, const int64_t* index, int64_t count, char* scratch) const {
        if (!fused_) return set_tables(rows, index, count, scratch);
        rows.positions = read_positions(scratch, index, count);
        rows.frequencies = &plan_.frequencies;
    }

    // Rotate a share of the rows of an array at the tile's positions, in the order of their addresses. For x
    // in memory as (B, H, L, D), positions of L and one share; D · itemsize bytes are a row:
    //
    //     axes by stride      L: 1 row    H: L rows    B: H·L rows
    //     after merge_axes    L: 1 row    H, B: L rows                  as B's stride is H times H's
    //     inner axes          rows        runs                          runs share the tables of L
    void rotate_tile(const ArrayLoop& loop, Rows rows, const int64_t* index, int64_t count, int64_t share) const {
        Axis axes[MAX_AXES];
        int n = 0;
        rows.x = loop.array->x;
        rows.y = loop.array->y;
        for (int k = 0; k < num_source_axes_; ++k) {
            rows.x += index[k] * loop.x_stride[k];
            rows.y += index[k] * loop.y_stride[k];
        }
        if (loop.array->cache || loop.array->normed) set_places(loop, rows, index);
        const int64_t x_stride = num_source_axes_ ? loop.x_stride[last()] : 0;
        const int64_t y_stride = num_source_axes_ ? loop.y_stride[last()] : 0;
        if (count > 1) {
            axes[n++] = {count, x_stride, y_stride, rows.cos_row, rows.sin_row, 0, 0};
            axes[0].slots = loop.slots_stride[last()];
            axes[0].head = loop.head_stride[last()];
        }
        if (!add_free_axes(loop, axes, n, rows, share)) return;
        const bool by_y = loop.stages_y && !loop.stages_x;
        std::sort(axes, axes + n, [by_y](const Axis& a, const Axis& b) {
            return by_y ? std::abs(a.y) < std::abs(b.y) : std::abs(a.x) < std::abs(b.x);
        });
        n = merge_axes(axes, n);
        rows.x_feature = loop.array->x_feature;
        rows.y_feature = loop.array->y_feature;
        rows.stages_x = loop.stages_x;
        rows.stages_y = loop.stages_y;
        if (loop.is_staged()) {
            rows.scratch_rows = scratch_rows(loop);
            rows.scratch_row = scratch_row(loop);
        }
        int inner_axes = set_inner_axes(rows, axes, n);
        rows.streamed = is_streamed(loop, rows);
        if (!rows.streamed && has_few_rows(loop, rows, axes, n)) {
            std::swap(axes[0], axes[1]);
            inner_axes = set_inner_axes(rows, axes, n);
        }
        // Issue each batch one step late so that its successor can be prefetched; the last batch prefetches
        // the rows of the next positions.
        Rows previous = {};
        auto rotate_previous = [&](const char* next_x, const char* next_y) {
            previous.next_x = prefetches_ ? next_x : nullptr;
            previous.next_y = prefetches_ && next_x != next_y ? next_y : nullptr;
            if (previous.x) run_rows(loop, previous);
        };
        for_each_index(axes + inner_axes, n - inner_axes, rows, [&](const Rows& current) {
            rotate_previous(current.x, current.y);
            previous = current;
        });
        rotate_previous(rows.x + count * x_stride, rows.y + count * y_stride);
    }

    // Set the first slot, and the offset in the cache or in the x that was normed.
    void set_places(const ArrayLoop& loop, Rows& rows, const int64_t* index) const {
        if (loop.array->cache) rows.slots = loop.array->cache->slots;
        for (int k = 0; k < num_source_axes_; ++k) {
            rows.slots += index[k] * loop.slots_stride[k];
            rows.head += index[k] * loop.head_stride[k];
        }
    }

    // Norm, rotate and cache rows.
    void run_rows(const ArrayLoop& loop, const Rows& rows) const {
        const Array& array = *loop.array;
        if (array.normed) return run_gradients(loop, rows);
        if (loop.is_normed()) return run_normed(loop, rows);
        if (array.rotates) level_.rotate[array.dtype](plan_.layout, rows);
        if (!array.cache) return;
        for (int64_t u = 0; u < rows.runs; ++u) copy_to_cache(array, rows, u, 0, rows.count);
    }

    // Norm and rotate blocks of rows. A block is copied from x and to y if features are strided or unaligned, or if x is
    // overwritten before it is read. A cache of another dtype takes rows of the compute dtype, before y overwrites x:
    //
    //     x [--copy--> block] --widen, norm, rotate--> block --store--> cache of another dtype
    //                      '----norm, rotate--> [block --copy-->] y --copy--> cache of y's dtype
    void run_normed(const ArrayLoop& loop, const Rows& rows) const {
        const Array& array = *loop.array;
        const int64_t itemsize = ITEMSIZE[array.dtype], row = array.width * itemsize;
        char* const y_block = rows.blocks + block_bytes(loop);
        for_each_block(loop, rows, [&](Rows& block, int64_t run, int64_t first, const char*) {
            char* const y = block.y;
            if (array.cache && !array.cache->is_copy) store_in_cache(loop, rows, block, run, first);
            if (!array.rotates) return;
            if (loop.stages_y) block.y = y_block, block.y_row = row;
            level_.rotate_normed[array.dtype](plan_.layout, block, array.norm);
            if (loop.stages_y) copy_rows(y_block, row, itemsize, y, rows.y_row, rows.y_feature, block.count, array);
            if (array.cache && array.cache->is_copy) copy_to_cache(array, rows, run, first, block.count);
        });
    }

    // Call f(block, run, first row, next) for each block of rows. `next` is the first row of x in the next block, which
    // is prefetched; null for none. The block's x is copied to scratch if it is staged.
    template <class F>
    void for_each_block(const ArrayLoop& loop, const Rows& rows, const F& f) const {
        const Array& array = *loop.array;
        const int64_t itemsize = ITEMSIZE[array.dtype], row = array.width * itemsize, rows_at_once = block_rows(loop);
        for (int64_t u = 0; u < rows.runs; ++u)
            for (int64_t r = 0; r < rows.count; r += rows_at_once) {
                Rows block = rows;
                block.count = std::min(rows_at_once, rows.count - r);
                block.x += u * rows.x_run + r * rows.x_row;
                block.y += u * rows.y_run + r * rows.y_row;
                block.cos += r * rows.cos_row;
                block.sin += r * rows.sin_row;
                const char* const next = next_block(rows, u, r + block.count);
                if (next) prefetch_rows(next, rows.x_row, block.count, row);
                if (loop.stages_x) {
                    copy_rows(block.x, rows.x_row, rows.x_feature, rows.blocks, row, itemsize, block.count, array);
                    block.x = rows.blocks;
                    block.x_row = row;
                }
                f(block, u, r, next);
            }
    }

    // Return the first row of the next block, to prefetch; null for none.
    static const char* next_block(const Rows& rows, int64_t run, int64_t row) {
        if (!rows.next_x || row < rows.count) return rows.next_x ? rows.x + run * rows.x_run + row * rows.x_row : nullptr;
        return run + 1 < rows.runs ? rows.x + (run + 1) * rows.x_run : rows.next_x;
    }

    // Rotate blocks of gradients back, and compute the gradients of the norm from them.
    void run_gradients(const ArrayLoop& loop, const Rows& rows) const {
        const Array& array = *loop.array;
        const int64_t row = array.width * ITEMSIZE[array.dtype];
        char* const rotated = rows.blocks + block_bytes(loop);
        for_each_block(loop, rows, [&](Rows& block, int64_t run, int64_t first, const char* next) {
            char* const to = block.y;
            block.y = rotated;
            block.y_row = array.width * real_bytes_;
            level_.rotate_widened[array.dtype](plan_.layout, block, nullptr);
            const char* const x = array.normed->data + rows.head + run * rows.head_run + first * rows.head_row;
            const char* const gradient = rows.x + run * rows.x_run + first * rows.x_row;
            if (next && rows.head_row == rows.x_row) prefetch_rows(x + (next - gradient), rows.x_row, block.count, row);
            level_.norm_gradients[array.dtype]({rotated, x, rows.head_row, to, rows.y_row, block.count, array.width,
                                                rows.weight_sums + array.normed->weight}, *array.norm);
        });
    }

    // Write a block of rows into a cache of another dtype than x's.
    void store_in_cache(const ArrayLoop& loop, const Rows& rows, Rows block, int64_t run, int64_t first) const {
        const Array& array = *loop.array;
        char* const widened = rows.blocks + 2 * block_bytes(loop);
        const int64_t row = array.width * real_bytes_;
        if (array.rotates) {
            block.y = widened;
            block.y_row = row;
            level_.rotate_widened[array.dtype](plan_.layout, block, array.norm);
        } else {
            for (int64_t i = 0; i < block.count; ++i)
                level_.widen[array.dtype](block.x + i * block.x_row, array.width, widened + i * row);
        }
        for_each_slot(array, rows, run, first, block.count, [&](int64_t i, char* to) {
            const auto* const numbers = reinterpret_cast<const float*>(widened + i * row);
            level_.store[array.cache->dtype](numbers, to, array.width, array.cache->scale);
        });
    }

    static void copy_rows(const char* from, int64_t from_row, int64_t from_feature, char* to, int64_t to_row,
                          int64_t to_feature, int64_t count, const Array& array) {
        const size_t itemsize = static_cast<size_t>(ITEMSIZE[array.dtype]);
        for (int64_t r = 0; r < count; ++r)
            for (int64_t i = 0; i < array.width; ++i)
                std::memcpy(to + r * to_row + i * to_feature, from + r * from_row + i * from_feature, itemsize);
    }

    // Call f(i, address) for each row from `first` on of a run that has a slot; i counts from `first`.
    template <class F>
    static void for_each_slot(const Array& array, const Rows& rows, int64_t run, int64_t first, int64_t count, const F& f) {
        const int64_t* slot = rows.slots + run * rows.slots_run + first * rows.slots_row;
        int64_t head = rows.head + run * rows.head_run + first * rows.head_row;
        for (int64_t i = 0; i < count; ++i, slot += rows.slots_row, head += rows.head_row)
            if (*slot >= 0) f(i, array.cache->at(*slot) + head);
    }

    // Copy results, or x if it is not rotated, into the cache.
    static void copy_to_cache(const Array& array, const Rows& rows, int64_t run, int64_t first, int64_t count) {
        const size_t bytes = static_cast<size_t>(array.width * ITEMSIZE[array.dtype]);
        const int64_t row = array.rotates ? rows.y_row : rows.x_row;
        const char* const from = array.rotates ? rows.y + run * rows.y_run : rows.x + run * rows.x_run;
        for_each_slot(array, rows, run, first, count, [&](int64_t i, char* to) { std::memcpy(to, from + (first + i) * row, bytes); });
    }

    // Return whether few rows share a position, such as heads that are adjacent in memory: one call to the
    // inner loop then takes many positions, and the heads become runs. A block in scratch takes both.
    static bool has_few_rows(const ArrayLoop& loop, const Rows& rows, const Axis* axes, int n) {
        if (n < 2 || axes[0].cos || axes[0].sin) return false;
        return axes[0].n < (loop.is_staged() ? rows.scratch_rows : std::min(FEW_ROWS, axes[1].n));
    }

    // Set the axes of one call to the inner loop: rows, and runs that share their tables. Return how many
    // axes it takes.
    static int set_inner_axes(Rows& rows, const Axis* axes, int n) {
        const bool has_runs = n > 1 && !axes[1].cos && !axes[1].sin;
        const Axis single = {1, 0, 0, 0, 0, 0, 0}, row = n ? axes[0] : single, run = has_runs ? axes[1] : single;
        rows.count = row.n;
        rows.runs = run.n;
        rows.x_row = row.x;
        rows.x_run = run.x;
        rows.y_row = row.y;
        rows.y_run = run.y;
        rows.cos_row = row.cos;
        rows.sin_row = row.sin;
        rows.slots_row = row.slots;
        rows.slots_run = run.slots;
        rows.head_row = row.head;
        rows.head_run = run.head;
        return has_runs ? 2 : std::min(n, 1);
    }

    // Add the free axes, and restrict the longest to the tile's share of it. Return false if the share is
    // empty.
    bool add_free_axes(const ArrayLoop& loop, Axis* axes, int& n, Rows& rows, int64_t share) const {
        if (!loop.num_free) return share == 0;
        int longest = 0;
        for (int a = 1; a < loop.num_free; ++a)
            if (loop.free[a].n > loop.free[longest].n) longest = a;
        std::copy(loop.free, loop.free + loop.num_free, axes + n);
        Axis& axis = axes[n + longest];
        n += loop.num_free;
        const int64_t begin = axis.n * share / num_shares_, end = axis.n * (share + 1) / num_shares_;
        rows.x += begin * axis.x;
        rows.y += begin * axis.y;
        rows.slots += begin * axis.slots;
        rows.head += begin * axis.head;
        axis.n = end - begin;
        return begin < end;
    }

    // Merge neighbouring axes that one stride can describe: stride s of n rows, then stride n · s.
    static int merge_axes(Axis* axes, int n) {
        int merged = 0;
        for (int a = 1; a < n; ++a) {
            Axis& inner = axes[merged];
            const Axis& outer = axes[a];
            if (outer.x == inner.n * inner.x && outer.y == inner.n * inner.y && outer.cos == inner.n * inner.cos &&
                outer.sin == inner.n * inner.sin && outer.slots == inner.n * inner.slots && outer.head == inner.n * inner.head)
                inner.n *= outer.n;
            else
                axes[++merged] = outer;
        }
        return n ? merged + 1 : 0;
    }

    // Call leaf(rows) at each index of some axes, the last of them outermost.
    template <class Leaf>
    static void for_each_index(const Axis* axes, int n, Rows rows, const Leaf& leaf) {
        if (!n) return leaf(rows);
        const Axis& axis = axes[n - 1];
        for (int64_t i = 0; i < axis.n; ++i) {
            for_each_index(axes, n - 1, rows, leaf);
            rows.x += axis.x;
            rows.y += axis.y;
            rows.cos += axis.cos;
            rows.sin += axis.sin;
            rows.slots += axis.slots;
            rows.head += axis.head;
        }
    }

    const bool fresh_;
    Items<ArrayLoop> loops_;
    int64_t num_shares_ = 1, num_tiles_ = 1;
    size_t num_weights_ = 0;                 // numbers of all weights, for gradients
    mutable std::vector<double> tile_sums_;  // of the gradients of weights in each tile
    bool fused_ = false, streams_ = false, streams_new_pages_ = false, prefetches_ = false;
};

// Return the numbers of the 256 bytes of a quantised dtype; loops/norm.hpp describes float8_e4m3fn.
std::array<float, 256> numbers_of_bytes(CacheDType dtype) {
    std::array<float, 256> numbers;
    for (int byte = 0; byte < 256; ++byte) {
        const int exponent = byte >> 3 & 15, fraction = byte & 7, significand = exponent ? 8 + fraction : fraction;
        const float magnitude = (byte & 127) == 127 ? NAN : std::ldexp(1.0f * significand, std::max(exponent, 1) - 10);
        const float e4m3 = byte < 128 ? magnitude : -magnitude;
        numbers[static_cast<size_t>(byte)] = dtype == CACHE_I8 ? static_cast<int8_t>(byte) : e4m3;
    }
    return numbers;
}

// Rotates slots of caches in place, a block of tokens in a tile. The scratch memory of a tile:
//
//     | values | fractions | cos | sin | a row of floats |
class ShiftSchedule : PositionReader {
  public:
    ShiftSchedule(const KernelPlan& plan, const std::vector<ShiftedCache>& caches, const std::vector<int64_t>& slots,
                  const Source& source, const Level& level)
        : PositionReader(plan, source, level, caches[0].x_dtype), caches_(caches), slots_(slots.data()),
          num_tokens_(static_cast<int64_t>(slots.size())), rotated_(plan.layout) {
        rotated_.start = 0;
        rotated_.head_dim = 2 * rotated_.num_pairs;
    }

    void run(int64_t bytes, int threads) {
        if (!rotated_.num_pairs) return;
        const int64_t num_tiles = threads > 1 ? std::min<int64_t>(4 * threads, bytes / MIN_TILE_BYTES) : 1;
        tile_tokens_ = std::min(num_tokens_ / std::max<int64_t>(1, num_tiles), TABLE_BYTES / (rotated_.head_dim * real_bytes_));
        tile_tokens_ = std::max<int64_t>(1, std::min(tile_tokens_, MAX_TILE_POSITIONS));
        set_block_size(tile_tokens_);
        const int64_t scratch_bytes = positions_bytes() + tables_bytes() + round_to_lines(4 * rotated_.head_dim);
        run_tiles((num_tokens_ + tile_tokens_ - 1) / tile_tokens_, threads, scratch_bytes,
                  [this](char* scratch, int64_t tile) { run_tile(scratch, tile * tile_tokens_); });
    }

  private:
    void run_tile(char* scratch, int64_t first) const {
        const int64_t end = std::min(first + tile_tokens_, num_tokens_);
        StreamBuffer stream = {};
        Rows tables = {}, rows = {};
        set_tables(tables, &first, num_source_axes_ ? end - first : 1, scratch);
        if (!num_source_axes_) tables.cos_row = tables.sin_row = 0;
        rows.runs = 1;
        rows.stream = &stream;
        rows.scratch = scratch + positions_bytes() + tables_bytes();
        for (const ShiftedCache& cache : caches_)
            for (int64_t t = first; t < end; ++t) {
                if (slots_[t] < 0) continue;
                rows.cos = tables.cos + (t - first) * tables.cos_row;
                rows.sin = tables.sin + (t - first) * tables.sin_row;
                rows.x = rows.y = cache.at(slots_[t]);
                rows.next_x = t + 1 < end && slots_[t + 1] >= 0 ? cache.at(slots_[t + 1]) : nullptr;
                if (!cache.is_copy) {
                    shift_quantised(cache, rows);
                    continue;
                }
                rows.count = cache.heads;
                rows.x_row = rows.y_row = cache.head;
                level_.rotate[cache.x_dtype](plan_.layout, rows);
            }
    }

    // Read the rotated features of each row as floats, rotate them, and round them back.
    void shift_quantised(const ShiftedCache& cache, Rows rows) const {
        static const std::array<float, 256> of_e4m3 = numbers_of_bytes(CACHE_E4M3), of_int8 = numbers_of_bytes(CACHE_I8);
        const std::array<float, 256>& number_of = cache.dtype == CACHE_I8 ? of_int8 : of_e4m3;
        const int64_t width = rotated_.head_dim, start = plan_.layout.start;
        if (rows.next_x) prefetch_rows(rows.next_x + start, cache.head, cache.heads, width);
        char* features = rows.y + start;
        auto* const numbers = reinterpret_cast<float*>(rows.scratch);
        rows.count = 1;
        rows.x = rows.y = rows.scratch;
        rows.next_x = nullptr;
        for (int64_t h = 0; h < cache.heads; ++h, features += cache.head) {
            for (int64_t i = 0; i < width; ++i) numbers[i] = number_of[static_cast<uint8_t>(features[i])];
            level_.rotate[F32](rotated_, rows);
            level_.store[cache.dtype](numbers, features, width, cache.scale);
        }
    }

    const std::vector<ShiftedCache>& caches_;
    const int64_t* const slots_;
    const int64_t num_tokens_;
    Layout rotated_;  // of the rotated features alone
    int64_t tile_tokens_ = 1;
};

}  // namespace

bool lines_up(const Array& array, const Source& source, int64_t num_coordinates) {
    if (source.num_axes > array.num_axes || (source.num_axes && array.seq_axis < 0)) return false;
    for (int j = 0; j < source.num_axes; ++j)
        if (source.shape[j] != 1 && source.shape[j] != array.shape[paired_axis(source.num_axes, array.seq_axis, j)]) return false;
    const bool is_one_position = !source.num_axes && num_coordinates > 1 && array.seq_axis >= 0;
    return !is_one_position || array.shape[array.seq_axis] != num_coordinates;
}

std::atomic<const Level*> level{levels()[0]};

// A waiting thread wakes in some 50 µs. Measured in place, bfloat16 and float32, with many heads and few: two
// threads take 1.3 to 1.7 times one thread's time at 0.75 MiB, the same time at 1.5 MiB, and 0.7 to 0.85
// times at 2.5 MiB.
std::atomic<int64_t> parallel_bytes{1 << 21};

// Above this size streaming saves more than the next reader loses.
std::atomic<int64_t> stream_bytes{1 << 23};

void rotate(const KernelPlan& plan, const Items<Array>& arrays, const Source& source, bool fresh,
            const Level& level, int threads) {
    Schedule(plan, arrays, source, fresh, level).run(threads);
}

void rotate_gradients(const KernelPlan& plan, const Items<Array>& arrays, const Source& source, const Level& level,
                      int threads, std::vector<double>& weight_sums) {
    Schedule(plan, arrays, source, false, level).run_with_gradients(threads, weight_sums);
}

void shift(const KernelPlan& plan, const std::vector<ShiftedCache>& caches, const std::vector<int64_t>& slots,
           const Source& source, int64_t bytes, const Level& level, int threads) {
    ShiftSchedule(plan, caches, slots, source, level).run(bytes, threads);
}

void make_tables(const KernelPlan& plan, const Source& source, DType dtype, char* cos, char* sin, const Level& level,
                 int threads) {
    TableSchedule schedule(plan, source, level, dtype);
    if (dtype == F64)
        schedule.run(level.make_tables64, reinterpret_cast<double*>(cos), reinterpret_cast<double*>(sin), threads);
    else
        schedule.run(level.make_tables32, reinterpret_cast<float*>(cos), reinterpret_cast<float*>(sin), threads);
}

}  // namespace rope
