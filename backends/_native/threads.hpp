// A few threads that wait for work, so that none is started in a call.
#pragma once

#include <cstdint>

namespace rope {

// Calls work(context, worker, unit) once for each unit, by at most `threads` threads, this one among them; worker
// is below `threads`. While another call has the threads, this one works alone: so no number of Python threads
// makes more of them than were asked for.
void parallel(int64_t units, int threads, void (*work)(void* context, int worker, int64_t unit), void* context);

// ROPE_ARRAY_NUM_THREADS, or else what the caller's library uses; where that is 0, OMP_NUM_THREADS, or else the
// number of processors that this process may use.
int threads_of(int library);

}  // namespace rope
