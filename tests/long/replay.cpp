// Run the calls that tests/long/processor_calls.py records, without Python, and write their results:
//
//     replay CALLS RESULTS
//
// runs all calls at each level of the processor, by one thread and then streamed by three; prints the name of each
// run; writes the elements of every result, in C order. tests/long/processors.py compiles it by CMakeLists.txt's
// ROPE_ARRAY_PROGRAM, and compares hashes.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include "operands.hpp"

using namespace rope;

namespace {

constexpr int64_t ALWAYS = 1, NEVER = INT64_MAX;

[[noreturn]] void stop(const char* message) {
    std::fprintf(stderr, "replay: %s\n", message);
    std::exit(1);
}

// A view, and a copy of its memory, aligned as in the record.
struct Recorded {
    ArrayView view;
    std::vector<char> memory;

    void allocate(const char* from, int64_t bytes, int64_t offset) {
        memory.resize(static_cast<size_t>(bytes + CACHE_LINE));
        const auto address = reinterpret_cast<uintptr_t>(memory.data());
        char* const start = memory.data() + (CACHE_LINE - address % CACHE_LINE) % CACHE_LINE;
        std::memcpy(start, from, static_cast<size_t>(bytes));
        view.data = start + offset;
    }
};

class Record {
  public:
    explicit Record(const std::vector<char>& bytes) : next_(bytes.data()) {}

    int64_t word() {
        int64_t word;
        std::memcpy(&word, next_, sizeof word);
        next_ += sizeof word;
        return word;
    }

    void words(std::vector<int64_t>& words) {
        words.resize(static_cast<size_t>(word()));
        for (int64_t& each : words) each = word();
    }

    void view(Recorded& array) {
        array.view.dtype = static_cast<int>(word());
        array.view.itemsize = word();
        array.view.num_axes = static_cast<int>(word());
        for (int a = 0; a < array.view.num_axes; ++a) array.view.shape[a] = word();
        for (int a = 0; a < array.view.num_axes; ++a) array.view.strides[a] = word();
        const int64_t offset = word(), bytes = word();
        array.allocate(next_, bytes, offset);
        next_ += (bytes + 7) / 8 * 8;
    }

  private:
    const char* next_;
};

// Write the elements of a view in C order.
void write(const ArrayView& view, const char* from, int axis, std::ofstream& results) {
    if (axis == view.num_axes) {
        results.write(from, view.itemsize);
        return;
    }
    for (int64_t i = 0; i < view.shape[axis]; ++i) write(view, from + i * view.strides[axis], axis + 1, results);
}

void run_call(Record& record, int threads, std::ofstream& results) {
    std::vector<int64_t> plan_words, spaced;
    record.words(plan_words);
    const bool in_place = record.word() != 0;
    record.words(spaced);
    Recorded sources[2], x, y, scale;
    const int64_t rounding = record.word() - 1;  // -1 without a norm
    const int64_t num_sources = record.word();
    for (int64_t i = 0; i < num_sources; ++i) record.view(sources[i]);
    record.view(x);
    if (!in_place) record.view(y);
    if (rounding >= 0) record.view(scale);
    const ArrayView& result = in_place ? x.view : y.view;

    KernelPlan plan;
    Source source;
    Items<Array> arrays(1);
    if (!set_plan(plan, plan_words.data(), static_cast<int64_t>(plan_words.size()))) stop("not a plan");
    if (!spaced.empty()) {
        source.kind = SPACED;
        source.start = spaced[0];
        source.step = spaced[1];
        source.num_axes = spaced[2] < 0 ? 0 : 1;
        source.shape[0] = spaced[2];
    }
    const bool is_read = num_sources == 0 || (num_sources == 1 && set_positions(source, sources[0].view, plan)) ||
                         (num_sources == 2 && set_tables(source, sources[0].view, sources[1].view, plan.layout));
    if (!is_read || !set_array(arrays[0], x.view, plan.layout, -2) || !lines_up(arrays[0], source)) stop("not a call");
    set_result(arrays[0], result);
    const Norm norm{scale.view.data, 1e-6, static_cast<Rounding>(rounding)};
    if (rounding >= 0) arrays[0].norm = &norm;
    rotate(plan, arrays, source, false, *level.load(), threads);
    write(result, result.data, 0, results);
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) stop("give the file of the calls and the file to write");
    std::ifstream file(arguments[1], std::ios::binary);
    const std::vector<char> calls{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    std::ofstream results(arguments[2], std::ios::binary);
    if (calls.empty() || !results) stop("cannot read the calls, or cannot write the results");
    for (const Level* const* next = levels(); *next; ++next)
        for (const bool streams : {false, true}) {
            level = *next;
            stream_bytes = streams ? ALWAYS : NEVER;
            Record record(calls);
            for (int64_t left = record.word(); left > 0; --left) run_call(record, streams ? 3 : 1, results);
            std::printf("%s%s\n", (*next)->name, streams ? ", streamed" : "");
        }
    return results.flush() ? 0 : 1;
}
