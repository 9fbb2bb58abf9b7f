// backends/cupy/rotate.cu compiled for the CPU: each thread of each block runs in turn, which is right because the
// kernel has no barrier and no shared memory. tests/fake_cupy.py calls launch().
//
// ONLY is the one dtype to compile: 64, 32 and 16 for floats of that many bits, 8 for bfloat16. ONLY_SOURCE, if defined,
// is 't' for tables, 'f' for float positions, 'i' for integers, or 'n' for make_inputs().
#include <cstdint>
#include <cstring>

#define __device__
#define __global__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

struct Dim3 {
    unsigned int x, y, z;
};
static thread_local Dim3 blockIdx, blockDim, threadIdx;

static bool misaligned;  // an access of 16 bytes at another address stops a GPU

static inline void copy_aligned(void* to, const void* from) {
    misaligned |= (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 != 0;
    std::memcpy(to, from, 16);
}

#include "rotate.cu"

namespace {

using Kernel = void (*)(const rope::Call);

template <class T, class Number, bool wide, bool reads_half, bool writes_half, bool from_tables>
Kernel kernel() {
    constexpr bool floats = Number(1) / 2 != 0;
#if defined(ONLY_SOURCE)
    constexpr bool compiled = ONLY_SOURCE == (from_tables ? 't' : floats ? 'f' : 'i');
#else
    constexpr bool compiled = true;
#endif
    if constexpr (compiled && !(from_tables && floats))
        return rope::rotate<T, wide, reads_half, writes_half, from_tables, Number>;
    else
        return nullptr;
}

template <class T, class Number, bool... flags, class... More>
Kernel kernel(bool flag, More... more) {
    return flag ? kernel<T, Number, flags..., true>(more...) : kernel<T, Number, flags..., false>(more...);
}

template <class T, class... Flags>
Kernel kernel_at(char number, Flags... flags) {
    if (number == 'f') return kernel<T, float>(flags...);
    return number == 'd' ? kernel<T, double>(flags...) : kernel<T, rope::Int>(flags...);
}

}  // namespace

extern "C" int64_t size_of_call() { return sizeof(rope::Call); }

template <class Format>
static void narrow(const float* from, uint32_t* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = Format::narrow(from[i], -from[i]);
}

// Round each number, into the lower halves of words, and its negative, into the upper halves.
extern "C" void narrow_float16(const float* from, uint32_t* to, int64_t count) {
    narrow<rope::Float16Format>(from, to, count);
}
extern "C" void narrow_bfloat16(const float* from, uint32_t* to, int64_t count) {
    narrow<rope::BFloat16Format>(from, to, count);
}

// Call each thread of each block.
template <class Run>
static int run_threads(const unsigned int* grid, const unsigned int* block, const Run& run) {
    misaligned = false;
    blockDim = {block[0], block[1], block[2]};
    for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x)
                for (threadIdx.z = 0; threadIdx.z < block[2]; ++threadIdx.z)
                    for (threadIdx.y = 0; threadIdx.y < block[1]; ++threadIdx.y)
                        for (threadIdx.x = 0; threadIdx.x < block[0]; ++threadIdx.x) run();
    return misaligned ? 2 : 0;
}

#if !defined(ONLY_SOURCE) || ONLY_SOURCE == 'n'
template <class T, bool... flags>
static int run_inputs(const unsigned int* grid, const unsigned int* block, const rope::Inputs* inputs) {
    return run_threads(grid, block, [&] { rope::make_inputs<T, flags...>(*inputs); });
}

template <class T, bool... flags, class... More>
static int run_inputs(const unsigned int* grid, const unsigned int* block, const rope::Inputs* inputs, bool flag,
                      More... more) {
    return flag ? run_inputs<T, flags..., true>(grid, block, inputs, more...)
                : run_inputs<T, flags..., false>(grid, block, inputs, more...);
}

// As launch(), of make_inputs.
extern "C" int launch_inputs(bool wide, bool reads_half, bool writes_half, bool from_tables, const unsigned int* grid,
                             const unsigned int* block, const rope::Inputs* inputs) {
#if ONLY == 64
    using T = rope::Float64;
#elif ONLY == 32
    using T = rope::Float32;
#elif ONLY == 16
    using T = rope::Float16;
#else
    using T = rope::BFloat16;
#endif
    return run_inputs<T>(grid, block, inputs, wide, reads_half, writes_half, from_tables);
}
#endif
extern "C" int64_t size_of_inputs() { return sizeof(rope::Inputs); }

// Return 0; 1 if no kernel has the name, 2 after a misaligned access.
extern "C" int launch(int dtype, char number, bool wide, bool reads_half, bool writes_half, bool from_tables,
                       const unsigned int* grid, const unsigned int* block, const rope::Call* call) {
    Kernel run;
    switch (dtype) {
#if !defined(ONLY) || ONLY == 64
        case 64: run = kernel_at<rope::Float64>(number, wide, reads_half, writes_half, from_tables); break;
#endif
#if !defined(ONLY) || ONLY == 32
        case 32: run = kernel_at<rope::Float32>(number, wide, reads_half, writes_half, from_tables); break;
#endif
#if !defined(ONLY) || ONLY == 16
        case 16: run = kernel_at<rope::Float16>(number, wide, reads_half, writes_half, from_tables); break;
#endif
#if !defined(ONLY) || ONLY == 8
        case 8: run = kernel_at<rope::BFloat16>(number, wide, reads_half, writes_half, from_tables); break;
#endif
        default: return 1;
    }
    if (!run) return 1;
    return run_threads(grid, block, [&] { run(*call); });
}
