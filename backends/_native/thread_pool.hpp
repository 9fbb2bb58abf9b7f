// Threads that wait for work, so that no call starts its own.
#pragma once

#include <cstdint>

namespace rope {

// Call work(context, worker, task) for each task, on at most `threads` threads including this one; worker is below
// `threads`. While another call uses the pool this thread works alone, so many Python threads start no more workers.
void parallel(int64_t tasks, int threads, void (*work)(void* context, int worker, int64_t task), void* context);

// Return ROPE_ARRAY_NUM_THREADS, else `library_threads`, else OMP_NUM_THREADS, else the number of processors that this
// process may use. A variable counts if its text begins with a number above 0, which is cut to 1024; `library_threads`
// counts if it is positive.
int num_threads(int library_threads);

}  // namespace rope
