// Vectors of the widest registers of a level, and operations that the compiler's own vectors lack. Vec<T, 1>
// is a scalar, so that the same code handles remainders.
//
// Only loops.cpp and loops_bf16.cpp include this file and loops/*.hpp; they are compiled for each level.
// loops.cpp explains the unnamed namespaces. Figures begin with lane 0, which has the lowest address.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cos_sin.h"
#include "kernel.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "pairs of 16 bits are split as little-endian words"
#endif

// Round each product and sum to its type, for the bits of all processors. Most compilers are told so by CMakeLists.txt.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF  // clang-cl reads no -ffp-contract
#elif defined(_MSC_VER)
#pragma fp_contract(off)  // before Visual Studio 2022, /fp:precise contracts on ARM
#endif
#if defined(__FLT_EVAL_METHOD__) && (__FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2)
#error "float is computed in a wider type: compile for SSE2 (-msse2 -mfpmath=sse), or install without the kernel"
#endif

// Keep one copy of a function that several loops call: the kernel's size counts.
#if defined(__GNUC__)
#define ROPE_NOINLINE __attribute__((noinline))
#else
#define ROPE_NOINLINE
#endif

namespace rope {
namespace {

// Lanes of float32 in one register. 1 without the vectors of GCC and Clang.
#if !defined(__GNUC__)
constexpr int WIDTH = 1;
#elif defined(__AVX512BW__)
constexpr int WIDTH = 16;
#elif defined(__AVX2__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif

template <class T, int W>
struct VecOf {
#if defined(__GNUC__)
    typedef T type __attribute__((vector_size(sizeof(T) * W)));
#endif
};

template <class T>
struct VecOf<T, 1> {
    using type = T;
};

template <class T, int W>
using Vec = typename VecOf<T, W>::type;

template <class To, class From>
inline To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <class V>
inline V load(const void* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

template <class V>
inline void store(void* to, V v) {
    std::memcpy(to, &v, sizeof v);
}

template <class V, class T>
inline V splat(T number) {
    return V{} + number;
}

// Convert each lane to the type To.
template <class To, int W, class From>
inline Vec<To, W> convert(From v) {
#if defined(__GNUC__)
    if constexpr (W > 1)
        return __builtin_convertvector(v, Vec<To, W>);
    else
#endif
        return static_cast<To>(v);
}

// Shuffle a and b into n lanes: lane k takes element Index::at(k, n) of a followed by b. For n = 4 lanes:
//
//     a, b         a0 a1 a2 a3    b0 b1 b2 b3
//     Even, Odd    a0 a2 b0 b2    a1 a3 b1 b3    interleaved pairs to their first and their second features
//     ZipLow, High a0 b0 a1 b1    a2 b2 a3 b3    the inverse
//     ZipHalves    a0 a2 a1 a3                   zip the two halves of a alone
#if defined(__GNUC__)
template <class Index, class V, int... k>
ROPE_INLINE auto shuffle(V a, V b, std::integer_sequence<int, k...>) {
    return __builtin_shufflevector(a, b, Index::at(k, static_cast<int>(sizeof...(k)))...);
}
#endif

template <class Index, int n, class V>
ROPE_INLINE auto shuffle(V a, V b) {
    return shuffle<Index>(a, b, std::make_integer_sequence<int, n>{});
}

struct Even {
    static constexpr int at(int k, int) { return 2 * k; }
};
struct Odd {
    static constexpr int at(int k, int) { return 2 * k + 1; }
};
struct ZipLow {
    static constexpr int at(int k, int n) { return k % 2 * n + k / 2; }
};
struct ZipHigh {
    static constexpr int at(int k, int n) { return k % 2 * n + (n + k) / 2; }
};
struct ZipHalves {
    static constexpr int at(int k, int n) { return k % 2 * (n / 2) + k / 2; }
};

// Apply Index to each block of 128 bits of a and b: one instruction of x86. For n = 4 lanes, 2 to a block:
//
//     a, b                    a0 a1 | a2 a3    b0 b1 | b2 b3
//     InBlocks of Even, Odd   a0 b0 | a2 b2    a1 b1 | a3 b3    of ZipLow, ZipHigh: the inverse
template <class Index, int size>
struct InBlocks {
    static constexpr int at(int k, int n) {
        const int element = Index::at(k % size, size);
        return element / size * n + k / size * size + element % size;
    }
};

// Take the high 32 bits of W numbers of 64 bits, in two vectors a and b. split() reorders both once, so that
// each take() is one instruction, which works in blocks of 128 bits. For W = 8, the numbers by index:
//
//     before split()    a   0 1 | 2 3    b   4 5 | 6 7    two numbers to a block
//     after split()     a   0 1 | 4 5    b   2 3 | 6 7
//     take()            0 1 2 3 | 4 5 6 7                 each block: the halves of a's block, then of b's
template <int W>
struct HighHalves {
    struct First {
        static constexpr int at(int k, int) { return k / 2 * 4 + k % 2; }
    };
    struct Second {
        static constexpr int at(int k, int) { return k / 2 * 4 + k % 2 + 2; }
    };

    static void split(Vec<uint64_t, W / 2>& a, Vec<uint64_t, W / 2>& b) {
        const auto first = shuffle<First, W / 2>(a, b);
        b = shuffle<Second, W / 2>(a, b);
        a = first;
    }

    static Vec<uint32_t, W> take(Vec<uint64_t, W / 2> a, Vec<uint64_t, W / 2> b) {
        using Real = Vec<float, W>;
        return bit_cast<Vec<uint32_t, W>>(shuffle<InBlocks<Odd, 4>, W>(bit_cast<Real>(a), bit_cast<Real>(b)));
    }
};

// Multiply the lower halves of numbers of 64 bits, with their signs.
template <class Long>
inline Long low_product(Long a, Long b) {
    const auto sign = uint64_t{1} << 31;  // extend the sign: (v ^ 2^31) - 2^31
    a = ((a & 0xFFFFFFFFu) ^ sign) - sign;
    b = ((b & 0xFFFFFFFFu) ^ sign) - sign;
    return a * b;
}

#if defined(__GNUC__) && defined(__AVX2__)
inline Vec<uint64_t, 4> low_product(Vec<uint64_t, 4> a, Vec<uint64_t, 4> b) {
    return bit_cast<Vec<uint64_t, 4>>(_mm256_mul_epi32(bit_cast<__m256i>(a), bit_cast<__m256i>(b)));
}
#if defined(__AVX512BW__)
inline Vec<uint64_t, 8> low_product(Vec<uint64_t, 8> a, Vec<uint64_t, 8> b) {
    return bit_cast<Vec<uint64_t, 8>>(_mm512_mul_epi32(bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
}
#endif
#endif

// Split a vector into halves, and join them.
struct Lower {
    static constexpr int at(int k, int) { return k; }
};
struct Upper {
    static constexpr int at(int k, int n) { return n + k; }
};

// Interleave the upper halves of numbers of 64 bits, or take the lower halves of both in turn. For W = 4:
//
//     a, b          a0 A0 a1 A1    b0 B0 b1 B1    lower halves first
//     interleave    A0 B0 A1 B1
//     low_halves    a0 a1 b0 b1
struct InterleaveHigh {
    static constexpr int at(int k, int n) { return k % 2 * n + k / 2 * 2 + 1; }
};

template <int W>
inline Vec<uint32_t, W> interleave_high_halves(Vec<uint64_t, W / 2> a, Vec<uint64_t, W / 2> b) {
    return shuffle<InterleaveHigh, W>(bit_cast<Vec<uint32_t, W>>(a), bit_cast<Vec<uint32_t, W>>(b));
}

template <int W>
inline Vec<uint32_t, W> low_halves(const Vec<uint64_t, (W > 1 ? W / 2 : 1)> (&v)[W > 1 ? 2 : 1]) {
    if constexpr (W == 1)
        return static_cast<uint32_t>(v[0]);
    else
        return shuffle<Even, W>(bit_cast<Vec<uint32_t, W>>(v[0]), bit_cast<Vec<uint32_t, W>>(v[1]));
}

// Move 16 bits to the lower half of 32, and back if the upper half is zero. GCC 12 converts lane by lane.
inline uint32_t widen16(uint16_t v) { return v; }
inline uint16_t narrow16(uint32_t v) { return static_cast<uint16_t>(v); }

#if defined(__GNUC__)
inline Vec<uint32_t, 4> widen16(Vec<uint16_t, 4> v) {
#if defined(__SSE2__)
    return bit_cast<Vec<uint32_t, 4>>(_mm_unpacklo_epi16(_mm_cvtsi64_si128(bit_cast<int64_t>(v)), _mm_setzero_si128()));
#else
    return convert<uint32_t, 4>(v);
#endif
}

inline Vec<uint16_t, 4> narrow16(Vec<uint32_t, 4> v) {
#if defined(__SSE2__)
    // The instruction saturates signed numbers, so extend the sign first.
    const __m128i w = _mm_srai_epi32(_mm_slli_epi32(bit_cast<__m128i>(v), 16), 16);
    return bit_cast<Vec<uint16_t, 4>>(_mm_cvtsi128_si64(_mm_packs_epi32(w, w)));
#else
    return convert<uint16_t, 4>(v);
#endif
}

#if defined(__AVX512BW__)
inline Vec<uint32_t, 16> widen16(Vec<uint16_t, 16> v) {
    return bit_cast<Vec<uint32_t, 16>>(_mm512_cvtepu16_epi32(bit_cast<__m256i>(v)));
}

inline Vec<uint16_t, 16> narrow16(Vec<uint32_t, 16> v) {
    return bit_cast<Vec<uint16_t, 16>>(_mm512_cvtepi32_epi16(bit_cast<__m512i>(v)));
}
#elif defined(__AVX2__)
inline Vec<uint32_t, 8> widen16(Vec<uint16_t, 8> v) {
    return bit_cast<Vec<uint32_t, 8>>(_mm256_cvtepu16_epi32(bit_cast<__m128i>(v)));
}

inline Vec<uint16_t, 8> narrow16(Vec<uint32_t, 8> v) {
    const __m256i w = bit_cast<__m256i>(v);
    return bit_cast<Vec<uint16_t, 8>>(_mm_packus_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
#endif
#endif

// Store the lower halves of the words of a and of b, whose upper halves are zero.
template <int N>
inline void store_lower16(void* to_a, void* to_b, Vec<uint32_t, N> a, Vec<uint32_t, N> b) {
#if defined(__GNUC__) && defined(__AVX2__)
    if constexpr (N == 8) {  // a0-3 b0-3 | a4-7 b4-7 in blocks of 128 bits, then a0-3 a4-7 | b0-3 b4-7
        const __m256i blocks = _mm256_packus_epi32(bit_cast<__m256i>(a), bit_cast<__m256i>(b));
        const __m256i both = _mm256_permute4x64_epi64(blocks, 0xD8);
        store(to_a, _mm256_castsi256_si128(both));
        return store(to_b, _mm256_extracti128_si256(both, 1));
    }
#endif
    store(to_a, narrow16(a));
    store(to_b, narrow16(b));
}

// Load N numbers of 16 bits into the upper halves of words. The lower halves are zero.
template <int N>
inline Vec<uint32_t, N> load_upper16(const uint16_t* from) {
#if defined(__GNUC__) && defined(__AVX2__)
    if constexpr (N == 8) {  // copy all to both blocks of 128 bits, as a byte shuffle works in blocks
        const __m256i bytes = _mm256_set_epi64x(0x0F0E80800D0C8080, 0x0B0A808009088080, 0x0706808005048080,
                                                0x0302808001008080);
        const __m256i v = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load<__m128i>(from)), bytes);
        return bit_cast<Vec<uint32_t, 8>>(v);
    }
#endif
    return widen16(load<Vec<uint16_t, N>>(from)) << 16;
}

// Return words of the lower halves of `low`, whose upper halves are zero, and the upper halves of `high`.
template <int N>
inline Vec<uint32_t, N> join16(Vec<uint32_t, N> low, Vec<uint32_t, N> high) {
#if defined(__GNUC__) && defined(__AVX2__)
    if constexpr (N == 8)
        return bit_cast<Vec<uint32_t, 8>>(_mm256_blend_epi16(bit_cast<__m256i>(low), bit_cast<__m256i>(high), 0xAA));
#endif
    return low | (high & 0xFFFF0000u);
}

// Return a mask of the lanes that have a bit of `bits` set.
template <class Word, class Bits>
inline auto any_bit(Word v, Bits bits) {
    return (v & bits) != 0;
}

// Return the lanes of a where the mask is set, else of b.
template <class Mask, class Real>
inline Real select(Mask mask, Real a, Real b) {
    return mask ? a : b;
}

#if defined(__GNUC__) && defined(__AVX2__)
// `bits` is one bit. The blend reads the sign of each lane of the mask; for its intrinsic GCC compares the mask with 0.
inline Vec<uint32_t, 8> any_bit(Vec<uint32_t, 8> v, uint32_t bits) { return v << __builtin_clz(bits); }

inline Vec<float, 8> select(Vec<uint32_t, 8> mask, Vec<float, 8> a, Vec<float, 8> b) {
    Vec<float, 8> chosen;
    __asm__("vblendvps %3, %2, %1, %0" : "=x"(chosen) : "x"(b), "xm"(a), "x"(mask));
    return chosen;
}
#endif

#if defined(__GNUC__) && defined(__AVX512BW__)
inline __mmask16 any_bit(Vec<uint32_t, 16> v, uint32_t bits) {
    return _mm512_test_epi32_mask(bit_cast<__m512i>(v), _mm512_set1_epi32(static_cast<int>(bits)));
}

inline Vec<float, 16> select(__mmask16 mask, Vec<float, 16> a, Vec<float, 16> b) {
    return bit_cast<Vec<float, 16>>(_mm512_mask_blend_ps(mask, bit_cast<__m512>(b), bit_cast<__m512>(a)));
}
#endif

// Return the square root of each lane.
template <int N, class Real>
inline Real square_root(Real v) {
#if defined(__GNUC__) && defined(__AVX512BW__)
    if constexpr (N == 16) return bit_cast<Real>(_mm512_maskz_sqrt_ps(0xFFFF, bit_cast<__m512>(v)));
#endif
#if defined(__GNUC__) && defined(__AVX2__)
    if constexpr (N == 8 && sizeof v == 32) return bit_cast<Real>(_mm256_sqrt_ps(bit_cast<__m256>(v)));
#endif
#if defined(__GNUC__) && defined(__SSE2__)
    if constexpr (N == 4 && sizeof v == 16) return bit_cast<Real>(_mm_sqrt_ps(bit_cast<__m128>(v)));
#endif
    if constexpr (N == 1) {
        return std::sqrt(v);
    } else {
        for (int k = 0; k < N; ++k) v[k] = std::sqrt(v[k]);
        return v;
    }
}

// Return false if no lane of a and b is NaN.
template <int N>
inline bool may_have_nan(Vec<float, N> a, Vec<float, N> b) {
#if defined(__GNUC__) && defined(__AVX512BW__)
    if constexpr (N == 16)
        return __builtin_expect(_mm512_cmp_ps_mask(bit_cast<__m512>(a), bit_cast<__m512>(b), _CMP_UNORD_Q), 0);
#endif
#if defined(__GNUC__) && defined(__AVX2__)
    if constexpr (N == 8)
        return __builtin_expect(
            _mm256_movemask_ps(_mm256_cmp_ps(bit_cast<__m256>(a), bit_cast<__m256>(b), _CMP_UNORD_Q)), 0);
#endif
#if defined(__GNUC__) && defined(__SSE2__)
    if constexpr (N == 4)
        return __builtin_expect(_mm_movemask_ps(_mm_cmpunord_ps(bit_cast<__m128>(a), bit_cast<__m128>(b))), 0);
#endif
    (void)a, (void)b;
    return true;
}

// Write a cache line by non-temporal stores, which do not read it first. Other threads see it after store_fence().
inline void stream_line(const char* from, char* to) {
#if defined(__GNUC__) && defined(__AVX512BW__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), load<__m512i>(from));
#elif defined(__GNUC__) && defined(__AVX2__)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), load<__m256i>(from));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), load<__m256i>(from + 32));
#elif defined(__GNUC__) && defined(__SSE2__)
    unroll<4>([&](auto k) ROPE_ALWAYS {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to) + k, load<__m128i>(from + k * 16));
    });
#else
    std::memcpy(to, from, CACHE_LINE);
#endif
}

inline void store_fence() {
#if defined(__SSE2__) && defined(__GNUC__)
    _mm_sfence();
#endif
}

// Round each signed integer to the nearest float or double.
inline float to_float(uint32_t v) { return static_cast<float>(static_cast<int32_t>(v)); }
inline double to_float(uint64_t v) { return static_cast<double>(static_cast<int64_t>(v)); }

#if defined(__GNUC__)
template <class Word>
inline auto to_float(Word v) {
    if constexpr (sizeof(v[0]) == 4) {
        constexpr int W = sizeof(Word) / 4;
        return convert<float, W>(bit_cast<Vec<int32_t, W>>(v));
    } else {
        constexpr int W = sizeof(Word) / 8;
#if defined(__AVX512DQ__) || defined(__aarch64__)
        return convert<double, W>(bit_cast<Vec<int64_t, W>>(v));
#else
        // Put the halves into the fractions of 2^84 and 2^52: each is exact, and only the last sum rounds.
        //
        //     bit of a double       63    52 51    32 31      0
        //     2^84 + high · 2^32   | 0x453  |   0    |  high  |    high = (v >> 32) + 2^31, so v + 2^63 =
        //     2^52 + low           | 0x433  |   0    |  low   |    high · 2^32 + low
        using Real = Vec<double, W>;
        const Real high = bit_cast<Real>(((v >> 32) ^ 0x80000000u) | 0x4530000000000000u);
        const Real low = bit_cast<Real>((v & 0xFFFFFFFFu) | 0x4330000000000000u);
        return (high - (0x1p84 + 0x1p63 + 0x1p52)) + low;
#endif
    }
}
#endif

}  // namespace
}  // namespace rope
