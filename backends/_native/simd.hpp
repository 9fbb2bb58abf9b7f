// A few numbers side by side, in the widest registers of the level that includes this: types and the operations
// that the compiler's own vectors lack. A pack of one is a plain number, and the same code serves both.
//
// Included by level.cpp alone, once for each level; so all of it is in an unnamed namespace.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "pairs of 16 bits are taken apart as little-endian words"
#endif

#if defined(__GNUC__)
#define ROPE_ALWAYS __attribute__((always_inline))
#define ROPE_INLINE inline ROPE_ALWAYS
#else
#define ROPE_ALWAYS
#define ROPE_INLINE inline
#endif

namespace rope {
namespace {

// Single-precision numbers in one register. Without the vectors of GCC and Clang, one.
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
struct PackOf {
#if defined(__GNUC__)
    typedef T type __attribute__((vector_size(sizeof(T) * W)));
#endif
};

template <class T>
struct PackOf<T, 1> {
    using type = T;
};

template <class T, int W>
using Pack = typename PackOf<T, W>::type;

template <class To, class From>
inline To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "a cast of bits");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <class P>
inline P load(const void* from) {
    P pack;
    std::memcpy(&pack, from, sizeof pack);
    return pack;
}

template <class P>
inline void store(void* to, P pack) {
    std::memcpy(to, &pack, sizeof pack);
}

// The same number everywhere.
template <class P, class T>
inline P all(T number) {
    return P{} + number;
}

// Each number in another type.
template <class T, int W>
struct Convert {
    template <class From>
    static Pack<T, W> of(From from) {
#if defined(__GNUC__)
        return __builtin_convertvector(from, Pack<T, W>);
#else
        return static_cast<T>(from);
#endif
    }
};

template <class T>
struct Convert<T, 1> {
    template <class From>
    static T of(From from) {
        return static_cast<T>(from);
    }
};

// 16 bits to the lower half of 32, and back, where the upper half is zero. (GCC 12 does this number by number.)
inline uint32_t widen16(uint16_t number) { return number; }
inline uint16_t narrow16(uint32_t number) { return static_cast<uint16_t>(number); }

#if defined(__GNUC__)
inline Pack<uint32_t, 4> widen16(Pack<uint16_t, 4> v) {
#if defined(__SSE2__)
    return bits<Pack<uint32_t, 4>>(_mm_unpacklo_epi16(_mm_cvtsi64_si128(bits<int64_t>(v)), _mm_setzero_si128()));
#else
    return Convert<uint32_t, 4>::of(v);
#endif
}

inline Pack<uint16_t, 4> narrow16(Pack<uint32_t, 4> v) {
#if defined(__SSE2__)
    // Saturation is signed here, so the sign is made to fit first.
    const __m128i w = _mm_srai_epi32(_mm_slli_epi32(bits<__m128i>(v), 16), 16);
    return bits<Pack<uint16_t, 4>>(_mm_cvtsi128_si64(_mm_packs_epi32(w, w)));
#else
    return Convert<uint16_t, 4>::of(v);
#endif
}

#if defined(__AVX512BW__)
inline Pack<uint32_t, 16> widen16(Pack<uint16_t, 16> v) {
    return bits<Pack<uint32_t, 16>>(_mm512_cvtepu16_epi32(bits<__m256i>(v)));
}

inline Pack<uint16_t, 16> narrow16(Pack<uint32_t, 16> v) {
    return bits<Pack<uint16_t, 16>>(_mm512_cvtepi32_epi16(bits<__m512i>(v)));
}
#elif defined(__AVX2__)
inline Pack<uint32_t, 8> widen16(Pack<uint16_t, 8> v) {
    return bits<Pack<uint32_t, 8>>(_mm256_cvtepu16_epi32(bits<__m128i>(v)));
}

inline Pack<uint16_t, 8> narrow16(Pack<uint32_t, 8> v) {
    const __m256i w = bits<__m256i>(v);
    return bits<Pack<uint16_t, 8>>(_mm_packus_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
#endif
#endif

// Numbers at even places, at odd places, and back: what stands side by side as pairs.
template <int W>
struct Pairs;

#if defined(__GNUC__)
#define ROPE_PAIRS(W, EVEN, ODD, LOWER, UPPER)                                                                        \
    template <>                                                                                                       \
    struct Pairs<W> {                                                                                                 \
        template <class P> static P even(P a, P b) { return __builtin_shufflevector(a, b, EVEN); }                    \
        template <class P> static P odd(P a, P b) { return __builtin_shufflevector(a, b, ODD); }                      \
        template <class P> static P lower(P a, P b) { return __builtin_shufflevector(a, b, LOWER); }                  \
        template <class P> static P upper(P a, P b) { return __builtin_shufflevector(a, b, UPPER); }                  \
    }
#define ROPE_LIST(...) __VA_ARGS__
ROPE_PAIRS(2, ROPE_LIST(0, 2), ROPE_LIST(1, 3), ROPE_LIST(0, 2), ROPE_LIST(1, 3));
ROPE_PAIRS(4, ROPE_LIST(0, 2, 4, 6), ROPE_LIST(1, 3, 5, 7), ROPE_LIST(0, 4, 1, 5), ROPE_LIST(2, 6, 3, 7));
ROPE_PAIRS(8, ROPE_LIST(0, 2, 4, 6, 8, 10, 12, 14), ROPE_LIST(1, 3, 5, 7, 9, 11, 13, 15),
           ROPE_LIST(0, 8, 1, 9, 2, 10, 3, 11), ROPE_LIST(4, 12, 5, 13, 6, 14, 7, 15));
ROPE_PAIRS(16, ROPE_LIST(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
           ROPE_LIST(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31),
           ROPE_LIST(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
           ROPE_LIST(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
#endif

// Two packs of 64-bit numbers whose upper halves are taken together, often: they are dealt out so that registers do it
// in one step, two numbers to the one, two to the other.
template <int W>
struct Dealt;

#if defined(__GNUC__)
#define ROPE_DEALT(W, FIRST, SECOND, UPPER)                                                                           \
    template <>                                                                                                       \
    struct Dealt<W> {                                                                                                 \
        template <class Long> static void deal(Long& a, Long& b) {                                                    \
            const Long first = __builtin_shufflevector(a, b, FIRST);                                                  \
            b = __builtin_shufflevector(a, b, SECOND);                                                                \
            a = first;                                                                                                \
        }                                                                                                             \
        template <class Word> static Word upper_halves(Word a, Word b) {                                              \
            using Real = Pack<float, W>;                                                                              \
            return bits<Word>(__builtin_shufflevector(bits<Real>(a), bits<Real>(b), UPPER));                          \
        }                                                                                                             \
    }
ROPE_DEALT(4, ROPE_LIST(0, 1), ROPE_LIST(2, 3), ROPE_LIST(1, 3, 5, 7));
ROPE_DEALT(8, ROPE_LIST(0, 1, 4, 5), ROPE_LIST(2, 3, 6, 7), ROPE_LIST(1, 3, 9, 11, 5, 7, 13, 15));
ROPE_DEALT(16, ROPE_LIST(0, 1, 4, 5, 8, 9, 12, 13), ROPE_LIST(2, 3, 6, 7, 10, 11, 14, 15),
           ROPE_LIST(1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31));
#endif

// Which numbers have a bit of `mask`, and the numbers of one pack there and of another elsewhere.
template <class Word>
inline auto any_bit(Word v, uint32_t mask) {
    return (v & mask) != 0;
}

template <class Which, class Real>
inline Real chosen(Which which, Real there, Real elsewhere) {
    return which ? there : elsewhere;
}

#if defined(__GNUC__) && defined(__AVX512BW__)
inline __mmask16 any_bit(Pack<uint32_t, 16> v, uint32_t mask) {
    return _mm512_test_epi32_mask(bits<__m512i>(v), _mm512_set1_epi32(static_cast<int>(mask)));
}

inline Pack<float, 16> chosen(__mmask16 which, Pack<float, 16> there, Pack<float, 16> elsewhere) {
    return bits<Pack<float, 16>>(_mm512_mask_blend_ps(which, bits<__m512>(elsewhere), bits<__m512>(there)));
}
#endif

// Writes a line of the caches past them, so that it is not read before. Other threads see it after `fence`.
inline void stream_line(const char* from, char* to) {
#if defined(__GNUC__) && defined(__AVX512BW__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), load<__m512i>(from));
#elif defined(__GNUC__) && defined(__SSE2__)
    for (int64_t k = 0; k < CACHE_LINE; k += 16)
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + k), load<__m128i>(from + k));
#else
    std::memcpy(to, from, CACHE_LINE);
#endif
}

inline void fence() {
#if defined(__SSE2__) && defined(__GNUC__)
    _mm_sfence();
#endif
}

// To the nearest double of a signed integer.
inline double to_double(uint64_t number) { return static_cast<double>(static_cast<int64_t>(number)); }

#if defined(__GNUC__)
template <class Long>
inline auto to_double(Long number) {
    constexpr int W = sizeof(Long) / 8;
#if defined(__AVX512DQ__) || defined(__aarch64__)
    return Convert<double, W>::of(bits<Pack<int64_t, W>>(number));
#else
    // Halves in the fraction of 2^84 and of 2^52: each is exact, and their sum rounds once.
    using Real = Pack<double, W>;
    const Real upper = bits<Real>(((number >> 32) ^ 0x80000000u) | 0x4530000000000000u);
    const Real lower = bits<Real>((number & 0xFFFFFFFFu) | 0x4330000000000000u);
    return (upper - (0x1p84 + 0x1p63 + 0x1p52)) + lower;
#endif
}
#endif

}  // namespace
}  // namespace rope
