// Which instruction set levels the processor and the operating system support.
#include "kernel.hpp"

namespace rope {

extern const Level level_baseline;
#if defined(ROPE_X86_LEVELS)
extern const Level level_v3, level_v4, level_v4_bf16;
#endif

const Level* const* levels() {
#if defined(ROPE_X86_LEVELS)
    static const Level* const all[] = {&level_v4_bf16, &level_v4, &level_v3, &level_baseline, nullptr};
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("x86-64-v3")) return all + 3;
    if (!__builtin_cpu_supports("x86-64-v4")) return all + 2;
    return __builtin_cpu_supports("avx512bf16") ? all : all + 1;
#else
    static const Level* const all[] = {&level_baseline, nullptr};
    return all;
#endif
}

}  // namespace rope
