// Find the instruction set levels that the processor and the operating system support. CMakeLists.txt
// compiles all levels, or the best level of the computer that builds the kernel.
#include <array>

#include "kernel.hpp"

namespace rope {

extern const Level level_baseline, level_v3, level_v4;
void rotate_bf16(const Layout&, const Rows&);  // of loops_bf16.cpp
void rotate_normed_bf16(const Layout&, const Rows&, const Norm*);

namespace {

#if defined(ROPE_HAS_v4)
Level make_v4_bf16() {
    Level level = level_v4;
    level.name = "x86-64-v4+bf16";
    level.rotate[BF16] = rotate_bf16;
    level.rotate_normed[BF16] = rotate_normed_bf16;
    return level;
}
#endif

std::array<const Level*, 5> find_levels() {
    std::array<const Level*, 5> supported{};
    const Level** next = supported.data();
#if defined(ROPE_HAS_v4) || defined(ROPE_HAS_v3)
    __builtin_cpu_init();  // `level` in schedule.cpp is initialized before macOS runs the compiler's own constructor
#endif
#if defined(ROPE_HAS_v4)
    static const Level v4_bf16 = make_v4_bf16();
    if (__builtin_cpu_supports("avx512bf16")) *next++ = &v4_bf16;
    if (__builtin_cpu_supports("x86-64-v4")) *next++ = &level_v4;
#endif
#if defined(ROPE_HAS_v3)
    if (__builtin_cpu_supports("x86-64-v3")) *next++ = &level_v3;
#endif
#if defined(ROPE_HAS_baseline)
    *next++ = &level_baseline;
#endif
    return supported;
}

}  // namespace

const Level* const* levels() {
    static const std::array<const Level*, 5> supported = find_levels();
    return supported.data();
}

}  // namespace rope
