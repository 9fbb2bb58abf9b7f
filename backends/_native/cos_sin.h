// Phases to cos and sin, and positions to phases. The CPU kernel (loops/angles.hpp) runs these templates on vectors,
// the CUDA source backends/cupy/rotate.cu on numbers, so a test on the CPU proves the bits of both.
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

// A number that is known when a call is compiled: C++ takes no constexpr parameters.
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

// The minimax polynomials of rope_array/_array_api/angles.py, which states their errors: coefficient i of cos and sin.
// Functions, as device code reads no constant array of the host.
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

// Compute cos and sin of K vectors of phases, the fraction of a turn in all bits of the words. The operations on one
// vector are a chain, each waiting for the previous result, so K vectors are interleaved to fill the pipeline. No
// product and sum may become a fused multiply-add, here and in the rotation: then the bits are equal on all processors.
template <class Ops, class Word, class Real, int K, class Words, class Reals>
ROPE_INLINE void cos_sin(const Words (&phase)[K], Reals (&cos)[K], Reals (&sin)[K]) {
    using Table = Polynomials<Real>;
    constexpr int TOP = Table::TERMS - 1, BITS = 8 * sizeof(Word);
    constexpr Word EIGHTH = Word{1} << (BITS - 3), QUARTER = 2 * EIGHTH, HALF = 2 * QUARTER;
    Reals u[K], z[K], c[K], s[K];
    unroll<K>([&](auto k) ROPE_ALWAYS {
        // u: eighths of a turn from the nearest axis.
        u[k] = Ops::to_float(phase[k] << 2) * static_cast<Real>(BITS == 32 ? 0x1p-31 : 0x1p-63);
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
        const Words quadrant = phase[k] + EIGHTH;  // its number is in the two upper bits
        const auto odd = Ops::any_bit(quadrant, QUARTER);
        const Reals unsigned_cos = Ops::select(odd, s[k], c[k]), unsigned_sin = Ops::select(odd, c[k], s[k]);
        cos[k] = Ops::template bit_cast<Reals>(Ops::template bit_cast<Words>(unsigned_cos) ^
                                               ((quadrant + QUARTER) & HALF));
        sin[k] = Ops::template bit_cast<Reals>(Ops::template bit_cast<Words>(unsigned_sin) ^ (quadrant & HALF));
    });
}

// The operations of cos_sin() on numbers, with Word of 32 bits for float and of 64 bits for double.
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

// Return position · F mod 2^64, for F = round(ω/2π · 2^64). Its upper 32 bits are the phase of float32 arithmetic.
template <class Words>
ROPE_INLINE Words turns_at(Words position, Words turns_q64) {
    return position * turns_q64;
}

// Return (position · F mod 2^96) >> 32, the phase of float64 arithmetic, for F = round(ω/2π · 2^96) = high·2^32 + low.
// `position_high` is position >> 32 with its sign.
template <class Words>
ROPE_INLINE Words phase_at(Words position, Words position_high, Words turns_q96_high, Words turns_q96_low) {
    return position * turns_q96_high + position_high * turns_q96_low +
           (((position & 0xFFFFFFFFu) * turns_q96_low) >> 32);
}

}  // namespace
}  // namespace rope

#endif
