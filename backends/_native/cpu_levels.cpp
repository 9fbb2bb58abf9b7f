// Which levels of instructions the processor has.
#include "kernel.hpp"

#include <initializer_list>

#if defined(ROPE_X86_LEVELS)
#include <cpuid.h>
#endif

namespace rope {

extern const Level level_baseline;
#if defined(ROPE_X86_LEVELS)
extern const Level level_v3, level_v4, level_v4_bf16;
#endif

namespace {

#if defined(ROPE_X86_LEVELS)
struct Registers {
    unsigned a = 0, b = 0, c = 0, d = 0;

    explicit Registers(unsigned leaf, unsigned part = 0) {
        if (!__get_cpuid_count(leaf, part, &a, &b, &c, &d)) a = b = c = d = 0;
    }
};

// The registers that the operating system saves: vectors of 256 bits, of 512 bits.
unsigned saved() {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

constexpr unsigned places(std::initializer_list<int> list) {
    unsigned mask = 0;
    for (int place : list) mask |= 1u << place;
    return mask;
}

// FMA, MOVBE, OSXSAVE, AVX, F16C; BMI1, AVX2, BMI2; LZCNT. And AVX-512 F, DQ, CD, BW, VL.
constexpr unsigned V3_OF_1 = places({12, 22, 27, 28, 29}), V3_OF_7 = places({3, 5, 8}), V3_EXTENDED = places({5});
constexpr unsigned V4_OF_7 = places({16, 17, 28, 30, 31});
// AVX512_BF16, of the second part of leaf 7.
constexpr unsigned BF16_OF_7_1 = places({5});

// How many levels the processor has.
int x86_levels() {
    const unsigned of_1 = Registers(1).c, of_7 = Registers(7).b, extended = Registers(0x80000001).c;
    if ((of_1 & V3_OF_1) != V3_OF_1 || (of_7 & V3_OF_7) != V3_OF_7 || (extended & V3_EXTENDED) != V3_EXTENDED) return 1;
    if ((saved() & 0x06) != 0x06) return 1;
    if ((of_7 & V4_OF_7) != V4_OF_7 || (saved() & 0xE6) != 0xE6) return 2;
    return Registers(7, 1).a & BF16_OF_7_1 ? 4 : 3;
}
#endif

}  // namespace

const Level* const* levels() {
#if defined(ROPE_X86_LEVELS)
    static const Level* const all[] = {&level_v4_bf16, &level_v4, &level_v3, &level_baseline, nullptr};
    return all + (4 - x86_levels());
#else
    static const Level* const all[] = {&level_baseline, nullptr};
    return all;
#endif
}

}  // namespace rope
