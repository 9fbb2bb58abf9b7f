// Convert each stored dtype to and from its compute dtype, the precision that it is rotated in.
#pragma once

#include "../simd.hpp"

namespace rope {
namespace {

// float32 and float64 are their own compute dtypes. `W`: lanes of a register, in the compute dtype.
template <class T>
struct Native {
    using Stored = T;
    using Real = T;
    static constexpr int W = sizeof(T) == 8 && WIDTH > 1 ? WIDTH / 2 : WIDTH;

    template <int N>
    static Vec<T, N> read(const T* from) {
        return load<Vec<T, N>>(from);
    }

    template <int N>
    static void write_two(T* to, T* to_second, Vec<T, N> first, Vec<T, N> second) {
        store(to, first);
        store(to_second, second);
    }

    // Interleaved pairs: first, second, first, second, ...
    template <int N>
    static void read_pairs(const T* from, Vec<T, N>& first, Vec<T, N>& second) {
        const auto a = load<Vec<T, N>>(from), b = load<Vec<T, N>>(from + N);
        if constexpr (N == 1) {
            first = a;
            second = b;
        } else {
            first = shuffle<Even, N>(a, b);
            second = shuffle<Odd, N>(a, b);
        }
    }

    template <int N>
    static void write_pairs(T* to, Vec<T, N> first, Vec<T, N> second) {
        if constexpr (N == 1) {
            write_two<N>(to, to + 1, first, second);
        } else {
            store(to, shuffle<ZipLow, N>(first, second));
            store(to + N, shuffle<ZipHigh, N>(first, second));
        }
    }
};

// 16-bit dtypes are rotated in float32; `Format` converts the low half of a 32-bit word to float32 and back.
//
//     bits        sign   exponent      fraction
//     float32     31     30 .. 23      22 .. 0     bias 127
//     bfloat16    15     14 ..  7       6 .. 0     bias 127: the upper half of a float32
//     float16     15     14 .. 10       9 .. 0     bias 15
//
// An interleaved pair is one word, | second | first |, as memory is little-endian.
template <class Format>
struct Sixteen {
    using Stored = uint16_t;
    using Real = float;
    static constexpr int W = WIDTH;
    template <int N>
    using Word = Vec<uint32_t, N>;

    template <int N>
    static Vec<float, N> read(const uint16_t* from) {
        return Format::template widen<N>(widen16(load<Vec<uint16_t, N>>(from)));
    }

    template <int N>
    static void write_two(uint16_t* to, uint16_t* to_second, Vec<float, N> first, Vec<float, N> second) {
        store(to, narrow16(Format::template narrow<N>(first)));
        store(to_second, narrow16(Format::template narrow<N>(second)));
    }

    template <int N>
    static void read_pairs(const uint16_t* from, Vec<float, N>& first, Vec<float, N>& second) {
        const auto pairs = load<Word<N>>(from);
        first = Format::template widen<N>(pairs & 0xFFFFu);
        second = Format::template widen<N>(pairs >> 16);
    }

    template <int N>
    static void write_pairs(uint16_t* to, Vec<float, N> first, Vec<float, N> second) {
        store<Word<N>>(to, Format::template narrow<N>(first) | Format::template narrow<N>(second) << 16);
    }
};

struct BFloat16Format {
    template <int N>
    static Vec<float, N> widen(Vec<uint32_t, N> v) {
        return bit_cast<Vec<float, N>>(v << 16);
    }

    // Round to nearest, ties to even. Set a bit of each NaN, whose upper half may be the bits of Inf.
    template <int N>
    static Vec<uint32_t, N> narrow(Vec<float, N> v) {
        using Word = Vec<uint32_t, N>;
        const Word b = bit_cast<Word>(v);
        const Word rounded = (b + 0x7FFFu + ((b >> 16) & 1u)) >> 16, nan = (b >> 16) | 0x40u;
        return v != v ? nan : rounded;
    }
};

struct BFloat16 : Sixteen<BFloat16Format> {
    template <int N>
    static void read_pairs(const uint16_t* from, Vec<float, N>& first, Vec<float, N>& second) {
        const auto pairs = load<Word<N>>(from);
        first = bit_cast<Vec<float, N>>(pairs << 16);
        second = bit_cast<Vec<float, N>>(pairs & 0xFFFF0000u);
    }

#if defined(__AVX512BF16__)
    template <int N>
    static void write_two(uint16_t* to, uint16_t* to_second, Vec<float, N> first, Vec<float, N> second) {
        Both both;
        if (!narrow_both(first, second, both)) return Sixteen::write_two<N>(to, to_second, first, second);
        store(to, _mm512_castsi512_si256(bit_cast<__m512i>(both)));
        store(to_second, _mm512_extracti64x4_epi64(bit_cast<__m512i>(both), 1));
    }

    template <int N>
    static void write_pairs(uint16_t* to, Vec<float, N> first, Vec<float, N> second) {
        Both both;
        if (!narrow_both(first, second, both)) return Sixteen::write_pairs<N>(to, first, second);
        store(to, shuffle<ZipHalves, 2 * WIDTH>(both, both));
    }

  private:
    using Both = Vec<uint16_t, 2 * WIDTH>;

    // Return false if a number is subnormal: the instruction would take it as zero.
    static bool narrow_both(Vec<float, 16> first, Vec<float, 16> second, Both& both) {
        constexpr int SUBNORMAL = 0x20;
        const __m512 a = bit_cast<__m512>(first), b = bit_cast<__m512>(second);
        both = bit_cast<Both>(_mm512_cvtne2ps_pbh(b, a));
        const __mmask16 in_a = _mm512_fpclass_ps_mask(a, SUBNORMAL), in_b = _mm512_fpclass_ps_mask(b, SUBNORMAL);
        return __builtin_expect(_kortestz_mask16_u8(in_a, in_b), 1);
    }

    template <class Real>
    static bool narrow_both(Real, Real, Both&) {
        return false;
    }
#endif
};

struct Float16Format {
    // Shift exponent and fraction of normal numbers; compute subnormal ones as integers times 2^-24; set all bits of
    // the exponent of Inf and NaN. No operand is a subnormal float32, which the processor may be set to flush to 0.
    template <int N>
    static Vec<float, N> widen(Vec<uint32_t, N> v) {
#if defined(__F16C__)
        if constexpr (N == 4)
            return bit_cast<Vec<float, N>>(_mm_cvtph_ps(_mm_cvtsi64_si128(bit_cast<int64_t>(narrow16(v)))));
        if constexpr (N == 8) return bit_cast<Vec<float, N>>(_mm256_cvtph_ps(bit_cast<__m128i>(narrow16(v))));
#if defined(__AVX512BW__)
        if constexpr (N == 16) return bit_cast<Vec<float, N>>(_mm512_cvtph_ps(bit_cast<__m256i>(narrow16(v))));
#endif
#endif
        using Word = Vec<uint32_t, N>;
        using Real = Vec<float, N>;
        const Word magnitude = v & 0x7FFFu, sign = (v & 0x8000u) << 16;
        const Word normal = (magnitude << 13) + 0x38000000u;
        const Word subnormal = bit_cast<Word>(to_float(magnitude) * 0x1p-24f);
        const Word special = (magnitude << 13) | 0x7F800000u | (magnitude > 0x7C00u ? splat<Word>(0x400000u) : Word{});
        const Word finite = magnitude < 0x400u ? subnormal : normal;
        return bit_cast<Real>((magnitude >= 0x7C00u ? special : finite) | sign);
    }

    // Round to nearest, ties to even: normal numbers in integers; subnormal ones by adding a float whose last place is
    // the smallest float16.
    template <int N>
    static Vec<uint32_t, N> narrow(Vec<float, N> v) {
#if defined(__F16C__)
        if constexpr (N == 4)
            return widen16(bit_cast<Vec<uint16_t, N>>(_mm_cvtsi128_si64(_mm_cvtps_ph(bit_cast<__m128>(v), 0))));
        if constexpr (N == 8) return widen16(bit_cast<Vec<uint16_t, N>>(_mm256_cvtps_ph(bit_cast<__m256>(v), 0)));
#if defined(__AVX512BW__)
        if constexpr (N == 16) return widen16(bit_cast<Vec<uint16_t, N>>(_mm512_cvtps_ph(bit_cast<__m512>(v), 0)));
#endif
#endif
        using Word = Vec<uint32_t, N>;
        using Real = Vec<float, N>;
        const Word b = bit_cast<Word>(v), sign = (b >> 16) & 0x8000u, magnitude = b & 0x7FFFFFFFu;
        const Word normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
        const Word subnormal = bit_cast<Word>(bit_cast<Real>(magnitude) + 0.5f) - 0x3F000000u;
        const Word finite = magnitude < 0x38800000u ? subnormal : normal;
        const Word nan = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
        const Word special = magnitude > 0x7F800000u ? nan : splat<Word>(0x7C00u);
        return (magnitude >= 0x477FF000u ? special : finite) | sign;  // 65,520 and more round to Inf
    }
};

}  // namespace
}  // namespace rope
