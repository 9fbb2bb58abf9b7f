#include "schedule.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "thread_pool.hpp"

namespace rope {
namespace {

// Of cos and sin made at a time. Few, where the rows of a position stand together: they stay in the first cache.
// More, where they are used for a run of rows after another.
constexpr int64_t TABLE_BYTES = 1 << 14, TABLE_BYTES_OF_RUNS = 1 << 17;
constexpr int64_t MOST_POSITIONS = 256;    // at a time, where they stand together
constexpr int64_t UNIT_BYTES = 1 << 18;    // of x, at least, that a thread takes at a time
constexpr int64_t LARGE_BYTES = 1 << 19;   // of x, from which on x and y together are not in the nearer caches
constexpr int64_t STREAM_LINES = 8;        // side by side, at least, that do not go through them
constexpr int64_t STACK = 1 << 15;

int64_t size_of_real(DType dtype) { return dtype == F64 ? 8 : 4; }

int64_t whole_lines(int64_t bytes) { return (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE; }

struct Axis {
    int64_t n, x, y, cos, sin;  // how many, and bytes from one to the next
};

// An array's axes sorted out: those along which positions go on, as `Source` counts them, and the free ones, along
// which all rows have the same position.
struct Item {
    const Array* array;
    int64_t x_along[MAX_AXES] = {}, y_along[MAX_AXES] = {};
    Axis free[MAX_AXES];
    int count = 0;
    int64_t rows = 1;  // along the free axes
    bool staged;
};

// The axis of x that goes with one of positions: the last of them with the sequence, the others in order.
int axis_of(const Source& source, int seq_axis, int j) {
    if (j == source.num_axes - 1) return seq_axis;
    return j < seq_axis ? j : j + 1;
}

bool is_staged(const Layout& at, const Array& array) {
    const int64_t size = ITEMSIZE[array.dtype];
    auto apart = [&](int64_t feature) { return at.head_dim > 1 && feature != size; };
    uint64_t bits = reinterpret_cast<uintptr_t>(array.x) | reinterpret_cast<uintptr_t>(array.y);
    for (int a = 0; a < array.num_axes; ++a)
        bits |= static_cast<uint64_t>(array.x_stride[a]) | static_cast<uint64_t>(array.y_stride[a]);
    const bool unaligned = bits & static_cast<uint64_t>(size - 1);
    return apart(array.x_feature) || apart(array.y_feature) || unaligned ||
           (array.x == array.y && at.reads_half != at.writes_half);
}

class Call {
  public:
    Call(const KernelPlan& plan, const std::vector<Array>& arrays, const Source& source,
         const Level& level)
        : plan_(plan), frequencies_(plan.frequencies()), source_(source), level_(level), real_(size_of_real(arrays[0].dtype)) {
        for (int j = 0; j < source.num_axes; ++j)
            if (source.shape[j] != 1) along_[axes_++] = j;
        items_.resize(arrays.size());
        for (size_t i = 0; i < arrays.size(); ++i) sort_out(items_[i], arrays[i]);
        length_ = axes_ ? source.shape[along_[axes_ - 1]] : 1;
        for (int k = 0; k + 1 < axes_; ++k) outer_ *= source.shape[along_[k]];
        // Where each position serves one row, the row's own loop makes cos and sin: memory is waited for meanwhile.
        fused_ = source.kind != TABLES && real_ == 4 && items_.size() == 1 && items_[0].rows == 1 && !items_[0].staged;
    }

    void run(int threads) {
        const int64_t bytes = all_bytes();
        if (!bytes) return;
        if (bytes < parallel_bytes.load(std::memory_order_relaxed)) threads = 1;
        streamed_ = bytes >= stream_bytes.load(std::memory_order_relaxed);
        large_ = bytes >= LARGE_BYTES;
        cut(bytes, threads);
        const int64_t scratch = positions_bytes() + tables_bytes() + heads_bytes() + pending_bytes();
        const int workers = static_cast<int>(std::min<int64_t>(threads, units_));
        scratch_step_ = scratch;
        if (workers == 1 && scratch <= STACK) {
            alignas(CACHE_LINE) char stack[STACK];
            return run_units(stack, 1);
        }
        const std::unique_ptr<char[]> heap(new char[static_cast<size_t>(scratch * workers + CACHE_LINE)]);
        run_units(heap.get() + (CACHE_LINE - reinterpret_cast<uintptr_t>(heap.get()) % CACHE_LINE), workers);
    }

  private:
    struct Run {
        const Call& call;
        char* scratch;
    };

    void run_units(char* scratch, int workers) const {
        Run run = {*this, scratch};
        auto work = [](void* context, int worker, int64_t unit) {
            const Run& run = *static_cast<Run*>(context);
            run.call.do_unit(run.scratch + worker * run.call.scratch_step_, unit);
        };
        parallel(units_, workers, work, &run);
    }

    void sort_out(Item& item, const Array& array) const {
        item.array = &array;
        bool taken[MAX_AXES] = {};
        for (int k = 0; k < axes_; ++k) {
            const int a = axis_of(source_, array.seq_axis, along_[k]);
            taken[a] = true;
            item.x_along[k] = array.x_stride[a];
            item.y_along[k] = array.y_stride[a];
        }
        for (int a = 0; a < array.num_axes; ++a) {
            if (taken[a] || array.shape[a] == 1) continue;
            item.free[item.count++] = {array.shape[a], array.x_stride[a], array.y_stride[a], 0, 0};
            item.rows *= array.shape[a];
        }
        item.staged = is_staged(plan_.layout, array);
    }

    int64_t all_bytes() const {
        int64_t bytes = 0;
        for (const Item& item : items_) bytes += item.rows * plan_.layout.head_dim * ITEMSIZE[item.array->dtype];
        return bytes * outer_ * length_;
    }

    // Blocks of positions, and parts of the free axes where there are few blocks for the threads.
    void cut(int64_t bytes, int threads) {
        const int64_t table = 2 * plan_.layout.num_pairs * real_;
        block_ = MOST_POSITIONS;
        if (table && !fused_) block_ = in_runs() ? TABLE_BYTES_OF_RUNS / table : std::min(TABLE_BYTES / table, block_);
        block_ = std::max<int64_t>(1, block_);
        const int64_t wanted = threads > 1 ? std::min<int64_t>(4 * threads, bytes / UNIT_BYTES) : 1;
        if (wanted > outer_) block_ = std::min(block_, std::max<int64_t>(1, length_ * outer_ / wanted));
        block_ = std::min(block_, length_);
        blocks_ = (length_ + block_ - 1) / block_;
        parts_ = std::max<int64_t>(1, (wanted + outer_ * blocks_ - 1) / (outer_ * blocks_));
        units_ = outer_ * blocks_ * parts_;
    }

    // Whether some rows of other positions stand nearer than those of the same.
    bool in_runs() const {
        return axes_ && std::any_of(items_.begin(), items_.end(), [this](const Item& item) {
            const int64_t along = std::abs(item.x_along[axes_ - 1]);
            auto outside = [along](const Axis& axis) { return std::abs(axis.x) > along; };
            return std::any_of(item.free, item.free + item.count, outside);
        });
    }

    int64_t coordinates() const { return std::max<int64_t>(1, plan_.num_coordinates); }
    int64_t positions_bytes() const { return source_.kind == TABLES ? 0 : whole_lines(8 * block_ * coordinates()); }
    int64_t tables_bytes() const {
        return source_.kind == TABLES || fused_ ? 0 : whole_lines(2 * block_ * plan_.layout.num_pairs * real_);
    }
    int64_t heads_bytes() const {  // of staged rows: one that is read, one that is written
        const bool any = std::any_of(items_.begin(), items_.end(), [](const Item& item) { return item.staged; });
        return any ? whole_lines(2 * 8 * plan_.layout.head_dim) : 0;
    }
    int64_t pending_bytes() const { return streamed_ ? 2 * (CACHE_LINE + GROUP_BYTES) : 0; }

    // Not where features or rows stand apart, or x is written over: its lines are in the caches already. Nor short runs
    // of rows or heads narrower than a line, as then little goes on its way meanwhile, nor heads wider than a group.
    bool is_streamed(const Item& item, const Axis* axes, int n) const {
        const int64_t size = ITEMSIZE[item.array->dtype], head = size * plan_.layout.head_dim;
        return streamed_ && item.array->x != item.array->y && item.array->y_feature == size && n && axes[0].y == head &&
               head >= CACHE_LINE && head <= GROUP_BYTES && axes[0].n * head >= STREAM_LINES * CACHE_LINE;
    }

    void do_unit(char* scratch, int64_t unit) const {
        const int64_t part = unit % parts_, block = unit / parts_ % blocks_;
        int64_t rest = unit / parts_ / blocks_, index[MAX_AXES] = {};
        for (int k = axes_ - 2; k >= 0; --k) {
            index[k] = rest % source_.shape[along_[k]];
            rest /= source_.shape[along_[k]];
        }
        if (axes_) index[axes_ - 1] = block * block_;
        const int64_t count = std::min(block_, length_ - block * block_);
        Rows rows = {};
        rows.scratch = scratch + positions_bytes() + tables_bytes();
        StreamBuffer pending = {};
        if (streamed_) {
            char* const stage = rows.scratch + heads_bytes() + CACHE_LINE;
            pending = {stage, stage + GROUP_BYTES + CACHE_LINE, stage, stage, 0};
        }
        rows.stream = &pending;
        angles(rows, index, count, scratch);
        for (const Item& item : items_) turn(item, rows, index, count, part);
        if (streamed_) level_.finish_stream(pending);
    }

    // Makes the tables of some positions, or finds them.
    void angles(Rows& rows, const int64_t* index, int64_t count, char* scratch) const {
        const int last = axes_ ? along_[axes_ - 1] : 0;
        if (source_.kind == TABLES) {
            rows.cos = source_.data + offset(source_.stride, index);
            rows.sin = source_.sin + offset(source_.sin_stride, index);
            rows.cos_row = axes_ ? source_.stride[last] : 0;
            rows.sin_row = axes_ ? source_.sin_stride[last] : 0;
            return;
        }
        int64_t* const numbers = reinterpret_cast<int64_t*>(scratch);
        read_positions(numbers, index, count);
        const Positions positions = {numbers, count, coordinates()};
        if (fused_) {
            rows.frequencies = &frequencies_;
            rows.positions = positions;
            return;
        }
        char* const cos = scratch + positions_bytes();
        char* const sin = cos + block_ * plan_.layout.num_pairs * real_;
        if (real_ == 8)
            level_.make_tables64(frequencies_, positions, reinterpret_cast<double*>(cos), reinterpret_cast<double*>(sin));
        else
            level_.make_tables32(frequencies_, positions, reinterpret_cast<float*>(cos), reinterpret_cast<float*>(sin));
        rows.cos = cos;
        rows.sin = sin;
        rows.cos_row = rows.sin_row = plan_.layout.num_pairs * real_;
    }

    int64_t offset(const int64_t* stride, const int64_t* index) const {
        int64_t bytes = 0;
        for (int k = 0; k < axes_; ++k) bytes += index[k] * stride[along_[k]];
        return bytes;
    }

    void read_positions(int64_t* numbers, const int64_t* index, int64_t count) const {
        if (source_.kind == SPACED) {
            // Modulo 2^64: a step is added once more than there are positions, maybe beyond the integers.
            uint64_t next = static_cast<uint64_t>(source_.start);
            if (axes_) next += static_cast<uint64_t>(index[axes_ - 1]) * static_cast<uint64_t>(source_.step);
            for (int64_t r = 0; r < count; ++r, next += static_cast<uint64_t>(source_.step))
                numbers[r] = static_cast<int64_t>(next);
            return;
        }
        const char* first = source_.data + offset(source_.stride, index);
        const int64_t step = axes_ ? source_.stride[along_[axes_ - 1]] : 0, each = coordinates();
        for (int64_t r = 0; r < count; ++r)
            for (int64_t c = 0; c < each; ++c) *numbers++ = number_at(first + r * step + c * source_.coordinate);
    }

    template <class Integer>
    static int64_t number_in(const char* place) {
        Integer number;
        std::memcpy(&number, place, sizeof number);
        return number;
    }

    int64_t number_at(const char* place) const {
        return source_.kind == INT32 ? number_in<int32_t>(place) : number_in<int64_t>(place);
    }

    // Turns all rows of an array that have the positions, nearby rows one after another.
    void turn(const Item& item, Rows rows, const int64_t* index, int64_t count, int64_t part) const {
        Axis axes[MAX_AXES];
        int n = 0;
        rows.x = item.array->x;
        rows.y = item.array->y;
        for (int k = 0; k < axes_; ++k) {
            rows.x += index[k] * item.x_along[k];
            rows.y += index[k] * item.y_along[k];
        }
        if (axes_ && count > 1)
            axes[n++] = {count, item.x_along[axes_ - 1], item.y_along[axes_ - 1], rows.cos_row, rows.sin_row};
        n = add_free(item, axes, n, rows, part);
        if (n < 0) return;
        std::sort(axes, axes + n, [](const Axis& a, const Axis& b) { return std::abs(a.x) < std::abs(b.x); });
        n = merged(axes, n);
        rows.x_feature = item.array->x_feature;
        rows.y_feature = item.array->y_feature;
        rows.staged = item.staged;
        rows.streamed = is_streamed(item, axes, n);
        const Axis one = {1, 0, 0, 0, 0}, inner = n ? axes[0] : one;
        // Runs of rows that have the same tables: each few of these are used for all runs while they are near.
        const bool has_runs = n > 1 && !axes[1].cos && !axes[1].sin;
        const Axis outer = has_runs ? axes[1] : one;
        rows.count = inner.n;
        rows.runs = outer.n;
        rows.x_row = inner.x;
        rows.x_run = outer.x;
        rows.y_row = inner.y;
        rows.y_run = outer.y;
        rows.cos_row = inner.cos;
        rows.sin_row = inner.sin;
        const auto rotate_rows = level_.rotate[item.array->dtype];
        // Rows wait until it is known what comes after them; after the last, it is what has the next positions.
        Rows before = {};
        auto go_on = [&](const char* x, const char* y) {
            before.next_x = large_ ? x : nullptr;
            before.next_y = large_ && x != y ? y : nullptr;
            if (before.x) rotate_rows(plan_.layout, before);
        };
        const int done = has_runs ? 2 : 1;
        walk(axes + done, n - done, rows, [&](const Rows& here) {
            go_on(here.x, here.y);
            before = here;
        });
        const int64_t steps = axes_ ? count : 0;
        const int k = axes_ ? axes_ - 1 : 0;
        go_on(rows.x + steps * item.x_along[k], rows.y + steps * item.y_along[k]);
    }

    static Rows moved(Rows rows, const Axis& axis, int64_t steps) {
        rows.x += steps * axis.x;
        rows.y += steps * axis.y;
        rows.cos += steps * axis.cos;
        rows.sin += steps * axis.sin;
        return rows;
    }

    // Adds the free axes, of the longest its part; -1 where the part is empty.
    int add_free(const Item& item, Axis* axes, int n, Rows& rows, int64_t part) const {
        int longest = 0;
        for (int a = 1; a < item.count; ++a)
            if (item.free[a].n > item.free[longest].n) longest = a;
        if (!item.count && part) return -1;  // one row: it is the first part's
        for (int a = 0; a < item.count; ++a) {
            Axis axis = item.free[a];
            if (a == longest && parts_ > 1) {
                const int64_t from = axis.n * part / parts_, to = axis.n * (part + 1) / parts_;
                if (from == to) return -1;
                rows.x += from * axis.x;
                rows.y += from * axis.y;
                axis.n = to - from;
            }
            axes[n++] = axis;
        }
        return n;
    }

    // Makes one axis of two where the outer one goes on where the inner one ends.
    static int merged(Axis* axes, int n) {
        int kept = 0;
        for (int a = 1; a < n; ++a) {
            Axis& inner = axes[kept];
            const Axis& outer = axes[a];
            if (outer.x == inner.n * inner.x && outer.y == inner.n * inner.y && outer.cos == inner.n * inner.cos &&
                outer.sin == inner.n * inner.sin)
                inner.n *= outer.n;
            else
                axes[++kept] = outer;
        }
        return n ? kept + 1 : 0;
    }

    // Calls leaf(rows) at each place along some axes, the last of them outermost.
    template <class Leaf>
    static void walk(const Axis* axes, int n, const Rows& rows, const Leaf& leaf) {
        if (n <= 0) return leaf(rows);
        for (int64_t i = 0; i < axes[n - 1].n; ++i) walk(axes, n - 1, moved(rows, axes[n - 1], i), leaf);
    }

    const KernelPlan& plan_;
    const Frequencies frequencies_;
    const Source& source_;
    const Level& level_;
    const int64_t real_;
    std::vector<Item> items_;
    int along_[MAX_AXES], axes_ = 0;  // the axes of positions that are longer than one
    int64_t outer_ = 1, length_ = 1, block_ = 1, blocks_ = 1, parts_ = 1, units_ = 1;
    bool fused_ = false, streamed_ = false, large_ = false;
    int64_t scratch_step_ = 0;
};

}  // namespace

Frequencies KernelPlan::frequencies() const {
    return {layout.num_pairs, turns_q64.data(), turns_q96_high.data(), turns_q96_low.data(),
            coordinate.empty() ? nullptr : coordinate.data(), amplitude, transposed ? -amplitude : amplitude};
}

bool lines_up(const Array& array, const Source& source) {
    if (source.num_axes > array.num_axes || (source.num_axes && array.seq_axis < 0)) return false;
    for (int j = 0; j < source.num_axes; ++j)
        if (source.shape[j] != 1 && source.shape[j] != array.shape[axis_of(source, array.seq_axis, j)]) return false;
    return true;
}

// Measured: 1 MiB takes 30 µs by one thread, and 70 µs by two, as a thread that waits takes some time to begin.
std::atomic<int64_t> parallel_bytes{1 << 22};

// From there on more time is won than is lost by whoever reads the results from memory.
std::atomic<int64_t> stream_bytes{1 << 23};

void rotate(const KernelPlan& plan, const std::vector<Array>& arrays, const Source& source, bool /*fresh*/,
            const Level& level, int threads) {
    Call(plan, arrays, source, level).run(threads);
}

}  // namespace rope
