#include "thread_pool.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif
#if !defined(_WIN32)
#include <unistd.h>
#endif

namespace rope {
namespace {

struct Job {
    int64_t units;
    void (*work)(void*, int, int64_t);
    void* context;
};

class Pool {
  public:
    // Whether the job was done: not if another one has the threads.
    bool run(const Job& job, int threads) {
        std::unique_lock<std::mutex> mine(taken_, std::try_to_lock);
        if (!mine) return false;
        start(threads - 1);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            job_ = job;
            next_.store(0, std::memory_order_relaxed);
            wanted_ = threads - 1 < started_ ? threads - 1 : started_;
            busy_ = wanted_;
            ++round_;
        }
        wake_.notify_all();
        take_units(job, 0);
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return busy_ == 0; });
        return true;
    }

    long process = 0;  // that started the threads: a child of fork has none of them

  private:
    void start(int count) {
        try {
            for (; started_ < count; ++started_) std::thread(&Pool::wait_for_work, this, started_ + 1).detach();
        } catch (const std::system_error&) {
            // The system gives no more of them: those that are there do the work.
        }
    }

    void wait_for_work(int worker) {
        std::unique_lock<std::mutex> lock(mutex_);
        for (uint64_t seen = 0;;) {
            wake_.wait(lock, [&] { return round_ != seen; });
            seen = round_;
            if (worker > wanted_) continue;
            const Job job = job_;
            lock.unlock();
            take_units(job, worker);
            lock.lock();
            if (--busy_ == 0) done_.notify_one();
        }
    }

    void take_units(const Job& job, int worker) {
        for (int64_t unit; (unit = next_.fetch_add(1, std::memory_order_relaxed)) < job.units;)
            job.work(job.context, worker, unit);
    }

    std::mutex taken_, mutex_;
    std::condition_variable wake_, done_;
    std::atomic<int64_t> next_{0};
    Job job_{};
    int started_ = 0, wanted_ = 0, busy_ = 0;
    uint64_t round_ = 0;
};

long this_process() {
#if defined(_WIN32)
    return 1;
#else
    return getpid();
#endif
}

// Never destroyed, as its threads wait on it until the process ends. After fork the child makes its own: of the
// parent's it has a copy without threads, whose locks may be held for ever.
Pool* pool() {
    static std::atomic<Pool*> current{nullptr};
    Pool* found = current.load(std::memory_order_acquire);
    const long process = this_process();
    if (found && found->process == process) return found;
    Pool* made = new Pool;
    made->process = process;
    if (current.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return made;
    delete made;  // another thread was first; no thread waits on this one
    return found;
}

int number_in(const char* variable) {
    const char* text = std::getenv(variable);
    const long number = text ? std::strtol(text, nullptr, 10) : 0;
    return number < 1 ? 0 : number > 1024 ? 1024 : static_cast<int>(number);
}

int processors() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    const unsigned count = std::thread::hardware_concurrency();
    return count ? static_cast<int>(count) : 1;
}

}  // namespace

void parallel(int64_t units, int threads, void (*work)(void*, int, int64_t), void* context) {
    if (threads > units) threads = static_cast<int>(units);
    if (threads > 1 && pool()->run({units, work, context}, threads)) return;
    for (int64_t unit = 0; unit < units; ++unit) work(context, 0, unit);
}

int num_threads(int library_threads) {
    if (const int asked = number_in("ROPE_ARRAY_NUM_THREADS")) return asked;
    if (library_threads > 0) return library_threads;
    if (const int asked = number_in("OMP_NUM_THREADS")) return asked;
    return processors();
}

}  // namespace rope
