// Share work among threads that wait between calls, so that a call need not start them.
#pragma once

#include <cstdint>

namespace rope {

// Call work(context, worker, task) for each task, on at most `threads` threads including this one; worker is below
// `threads`. While another call uses the pool this thread works alone, so many Python threads start no more workers.
void parallel(int64_t tasks, int threads, void (*work)(void* context, int worker, int64_t task), void* context);

// Return the positive number that a text begins with, capped at 1024; 0 for any other text, and for null.
int leading_number(const char* text);
int number_in_environment(const char* variable);

// Return ROPE_ARRAY_NUM_THREADS, else `library_threads`, else OMP_NUM_THREADS, else the number of processors
// that this process may use. A variable is skipped if `number_in` returns 0 for it; `library_threads` is skipped unless
// it is positive.
int num_threads(int library_threads, int (*number_in)(const char* variable) = number_in_environment);

}  // namespace rope
