// Positions to phases, and phases to cos and sin. The C++ kernel (loops/angles.hpp) runs these templates on
// vectors, the CUDA kernel (backends/cupy/rotate.cu) on scalars. Tests on the CPU check the bits of this
// source for both; tests/test_cuda_compile.py compiles it for GPUs.
//
// NVRTC has no standard headers. The unnamed namespace is explained in loops.cpp.
#ifndef ROPE_ARRAY_COS_SIN_H
#define ROPE_ARRAY_COS_SIN_H

#if !defined(__CUDACC_RTC__)
#include <cstring>
#endif

#if defined(__CUDACC__)
#define ROPE_ALWAYS
#define ROPE_INLINE __device__ __forceinline__
#elif defined(__GNUC__)
#define ROPE_ALWAYS __attribute__((always_inline))
#define ROPE_INLINE inline ROPE_ALWAYS
#else
#define ROPE_ALWAYS
#define ROPE_INLINE inline
#endif

namespace rope {
namespace {

// A compile-time integer passed as an argument: C++ has no constexpr parameters.
template <int number>
struct Index {
    ROPE_INLINE constexpr operator int() const { return number; }
};

// Call f with the constants 0, 1, ... K - 1.
template <int K, int k = 0, class F>
ROPE_INLINE void unroll(const F& f) {
    if constexpr (k < K) {
        f(Index<k>{});
        unroll<K, k + 1>(f);
    }
}

// The minimax polynomials of rope_array/_array_api/angles.py, which states their errors. sin(i) and cos(i)
// return coefficient i; they are functions because device code cannot read a constant array of the host.
template <class Real>
struct Polynomials;

template <>
struct Polynomials<float> {
    static constexpr int TERMS = 4;

    ROPE_INLINE static constexpr float sin(int i) {
        constexpr float SIN[] = {0.7853981256484985f, -0.08074513077735901f, 0.002489370759576559f,
                                 -3.5579418181441724e-05f};
        return SIN[i];
    }

    ROPE_INLINE static constexpr float cos(int i) {
        constexpr float COS[] = {-0.3084251284599304f, 0.015854282304644585f, -0.000325863336911425f,
                                 3.4905178836197592e-06f};
        return COS[i];
    }
};

template <>
struct Polynomials<double> {
    static constexpr int TERMS = 7;

    ROPE_INLINE static constexpr double sin(int i) {
        constexpr double SIN[] = {0.7853981633974483,     -0.08074551218827972,   0.002490394570182007,
                                  -3.6576204134671484e-05, 3.1336158090831277e-07, -1.7571158584135306e-09,
                                  6.866574506874848e-12};
        return SIN[i];
    }

    ROPE_INLINE static constexpr double cos(int i) {
        constexpr double COS[] = {-0.30842513753404244,   0.015854344243815096,   -0.0003259918869245824,
                                  3.5908604394852376e-06, -2.4611354040888294e-08, 1.1499763569296203e-10,
                                  -3.836316280346648e-13};
        return COS[i];
    }
};

// Phases are fractions of a turn in units of 2^-BITS turns, which split into quadrants and u:
//
//     phase / 2^BITS 0    1/8   1/4   3/8   1/2   5/8   3/4   7/8    1
//     quadrant         0   |     1     |     2     |     3     |   0     upper 2 bits of phase + an eighth
//     u              0    1|-1   0    1|-1   0    1|-1   0    1|-1   0   (phase << 2, signed) / 2^(BITS-1)
//     cos              c        -s          -c           s         c     c = cos(π/4 · u)
//     sin              s         c          -s          -c         s     s = sin(π/4 · u)
//
// u is the distance from the nearest axis in eighths of a turn, |u| <= 1.
template <class Ops, class Word, class Real, class Words, class Reals>
ROPE_INLINE void split_phase(Words phase, Words& quadrant, Reals& u) {
    constexpr int BITS = 8 * sizeof(Word);
    u = Ops::to_float(phase << 2) * static_cast<Real>(BITS == 32 ? 0x1p-31 : 0x1p-63);
    quadrant = phase + (Word{1} << (BITS - 3));
}

// Add the angle of a fraction of a position, in eighths of a turn, and keep |u| <= 1. Return a number in whose
// lowest bits is the number of quarters of a turn that u lost.
//
//     sum             1.5 · 2^24 + u       floats there are 2 apart, so it rounds u / 2 to an integer, ties to even
//     sum - ROUNDER   2 · quarters
//
// Valid for |u / 2| < 2^22 after the addition; in double for |u / 2| < 2^51.
template <class Real, class Reals>
ROPE_INLINE Reals add_eighths(Reals& u, Reals eighths) {
    constexpr Real ROUNDER = static_cast<Real>(sizeof(Real) == 4 ? 0x1.8p24 : 0x1.8p53);
    u = u + eighths;
    const Reals sum = u + ROUNDER;
    u = u - (sum - ROUNDER);
    return sum;
}

// Compute cos and sin of K vectors of quadrants and u. The upper bit of a quadrant negates c and s; its lower bit
// swaps c and -s for cos, s and c for sin.
//
// Max error at int32 positions, phase included: 9.5e-8 (float), 1.7e-16 (double); proved in proof/.
// Valid for every phase: nothing overflows, and no subnormal number occurs.
//
// The operations on one vector are a chain in which each waits for the previous result, so K vectors are
// interleaved to fill the pipeline. No product and sum may become a fused multiply-add, here and in the
// rotation: then the bits are equal on all processors.
template <class Ops, class Word, class Real, int K, class Words, class Reals>
ROPE_INLINE void cos_sin(const Words (&quadrant)[K], const Reals (&u)[K], Reals (&cos)[K], Reals (&sin)[K]) {
    using Table = Polynomials<Real>;
    constexpr int TOP = Table::TERMS - 1, BITS = 8 * sizeof(Word);
    constexpr Word QUARTER = Word{1} << (BITS - 2), HALF = 2 * QUARTER;
    Reals z[K], c[K], s[K];
    unroll<K>([&](auto k) ROPE_ALWAYS {
        z[k] = u[k] * u[k];
        c[k] = z[k] * Table::cos(TOP);
        s[k] = z[k] * Table::sin(TOP);
    });
    unroll<TOP - 1>([&](auto i) ROPE_ALWAYS {
        constexpr Real COS = Table::cos(TOP - 1 - i), SIN = Table::sin(TOP - 1 - i);
        unroll<K>([&](auto k) ROPE_ALWAYS {
            c[k] = (c[k] + COS) * z[k];
            s[k] = (s[k] + SIN) * z[k];
        });
    });
    unroll<K>([&](auto k) ROPE_ALWAYS {
        c[k] = (c[k] + Table::cos(0)) * z[k] + Real{1};
        s[k] = u[k] * (s[k] + Table::sin(0));
    });
    unroll<K>([&](auto k) ROPE_ALWAYS {
        const Words sign = quadrant[k] & HALF;
        const Reals signed_c = Ops::template bit_cast<Reals>(Ops::template bit_cast<Words>(c[k]) ^ sign);
        const Reals signed_s = Ops::template bit_cast<Reals>(Ops::template bit_cast<Words>(s[k]) ^ sign);
        const auto odd = Ops::any_bit(quadrant[k], QUARTER);
        cos[k] = Ops::select(odd, -signed_s, signed_c);
        sin[k] = Ops::select(odd, signed_c, signed_s);
    });
}

// The operations of cos_sin() on scalars, with Word of 32 bits for float and of 64 bits for double.
struct ScalarOps {
    ROPE_INLINE static float to_float(unsigned int v) { return static_cast<float>(static_cast<int>(v)); }
    ROPE_INLINE static double to_float(unsigned long long v) {
        return static_cast<double>(static_cast<long long>(v));
    }

    template <class To, class From>
    ROPE_INLINE static To bit_cast(From from) {
        static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
        To to;
        memcpy(&to, &from, sizeof to);
        return to;
    }

    template <class Word>
    ROPE_INLINE static bool any_bit(Word v, Word bits) {
        return (v & bits) != 0;
    }

    template <class Real>
    ROPE_INLINE static Real select(bool condition, Real a, Real b) {
        return condition ? a : b;
    }
};

// Return position · F mod 2^64, for F = round(ω/2π · 2^64). Full turns are above bit 63 and drop out.
//
//     bit   63        32 31         0
//          |   phase    |            |    the upper 32 bits: the phase of float32 arithmetic
//
// Valid for every int64 position. The product is exact; the rounding of F is an error of at most
// 2π · |position| · 2^-65 radians.
template <class Words>
ROPE_INLINE Words turns_at(Words position, Words turns_q64) {
    return position * turns_q64;
}

// Return (position · F mod 2^96) >> 32, the phase of float64 arithmetic, for F = round(ω/2π · 2^96).
//
//     F = high · 2^32 + low              high has 64 bits, low has 32
//     position = upper · 2^32 + lower    `position_high` is upper, with the sign; lower has 32 bits
//
//     bit of the product   95        64 63        32 31         0
//     position · high     |            |            |                modulo 2^64
//     upper · low         |            |            |                modulo 2^64
//     lower · low                      |            |            |   >> 32 drops the last 32 bits
//     phase               |            |            |
//
// Valid for every int64 position. The product is exact; the rounding of F is an error of at most
// 2π · |position| · 2^-97 radians.
template <class Words>
ROPE_INLINE Words phase_at(Words position, Words position_high, Words turns_q96_high, Words turns_q96_low) {
    return position * turns_q96_high + position_high * turns_q96_low +
           (((position & 0xFFFFFFFFu) * turns_q96_low) >> 32);
}

}  // namespace
}  // namespace rope

#endif
