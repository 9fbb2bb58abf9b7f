#include "thread_pool.hpp"

#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif
#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace rope {
namespace {

struct Job {
    int64_t tasks;
    void (*work)(void*, int, int64_t);
    void* context;
    // The rounding mode of the caller's thread, and whether it flushes subnormal numbers. A thread of the
    // pool inherits these settings from the thread that started it, such as a thread of XLA, which flushes.
    std::fenv_t arithmetic;
};

class Pool {
  public:
    // Return false, without running the job, if another job has the threads.
    bool run(const Job& job, int threads) {
        std::unique_lock<std::mutex> lock_pool(in_use_, std::try_to_lock);
        if (!lock_pool) return false;
        start(threads - 1);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            job_ = job;
            next_.store(0, std::memory_order_relaxed);
            num_workers_ = threads - 1 < num_started_ ? threads - 1 : num_started_;
            num_busy_ = num_workers_;
            ++round_;
        }
        wake_.notify_all();
        take_tasks(job, 0);
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return num_busy_ == 0; });
        return true;
    }

  private:
    void start(int count) {
        try {
            for (; num_started_ < count; ++num_started_) std::thread(&Pool::wait_for_jobs, this, num_started_ + 1).detach();
        } catch (const std::system_error&) {
            // The system refuses another thread: the job runs on the threads started so far.
        }
    }

    void wait_for_jobs(int worker) {
        std::unique_lock<std::mutex> lock(mutex_);
        for (uint64_t last_round = 0;;) {
            wake_.wait(lock, [&] { return round_ != last_round; });
            last_round = round_;
            if (worker > num_workers_) continue;
            const Job job = job_;
            lock.unlock();
            std::fesetenv(&job.arithmetic);
            take_tasks(job, worker);
            lock.lock();
            if (--num_busy_ == 0) done_.notify_one();
        }
    }

    void take_tasks(const Job& job, int worker) {
        for (int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < job.tasks;)
            job.work(job.context, worker, task);
    }

    std::mutex in_use_, mutex_;
    std::condition_variable wake_, done_;
    std::atomic<int64_t> next_{0};
    Job job_{};
    int num_started_ = 0, num_workers_ = 0, num_busy_ = 0;
    uint64_t round_ = 0;
};

std::atomic<Pool*> shared_pool{nullptr};

#if !defined(_WIN32)
// A child of fork has a copy of the parent's pool without its threads, perhaps with locked mutexes: drop it.
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] { shared_pool.store(nullptr); });
#endif

// Never destroyed, as its threads wait on it until the process ends.
Pool* pool() {
    Pool* current = shared_pool.load(std::memory_order_acquire);
    if (current) return current;
    Pool* const created = new Pool;
    if (shared_pool.compare_exchange_strong(current, created, std::memory_order_acq_rel)) return created;
    delete created;  // another thread was first
    return current;
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

void parallel(int64_t tasks, int threads, void (*work)(void*, int, int64_t), void* context) {
    if (threads > tasks) threads = static_cast<int>(tasks);
    if (threads > 1) {
        Job job{tasks, work, context, {}};
        std::fegetenv(&job.arithmetic);
        if (pool()->run(job, threads)) return;
    }
    for (int64_t task = 0; task < tasks; ++task) work(context, 0, task);
}

int leading_number(const char* text) {
    const long number = text ? std::strtol(text, nullptr, 10) : 0;
    return number < 1 ? 0 : number > 1024 ? 1024 : static_cast<int>(number);
}

int number_in_environment(const char* variable) { return leading_number(std::getenv(variable)); }

int num_threads(int library_threads, int (*number_in)(const char*)) {
    if (const int requested = number_in("ROPE_ARRAY_NUM_THREADS")) return requested;
    if (library_threads > 0) return library_threads;
    if (const int requested = number_in("OMP_NUM_THREADS")) return requested;
    return processors();
}

}  // namespace rope
