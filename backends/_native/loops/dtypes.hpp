// Convert each stored dtype to and from its compute dtype, the precision that it is rotated in.
#pragma once

#include "../simd.hpp"

namespace rope {
namespace {

// Read and write interleaved pairs by shuffles of the vectors of `Format`. If `in_blocks`, each is one instruction of
// x86, and the pairs have another order, in which the rotation takes cos and sin too. For 8 floats to a register:
//
//     pairs in memory   0 1 | 2 3    4 5 | 6 7
//     in blocks         0 1 4 5 | 2 3 6 7          Blocked::IN_BLOCKS is false for dtypes that need no shuffles
template <class Format, bool in_blocks>
struct Shuffled {
    static constexpr bool IN_BLOCKS = in_blocks;

    template <int N, class Stored, class Real>
    static void read_pairs(const Stored* from, Real& first, Real& second) {
        first = Format::template read<N>(from);
        second = Format::template read<N>(from + N);
        shuffle_both<N, Even, Odd>(first, second);
    }

    template <int N, class Stored, class Real>
    static void write_pairs(Stored* to, Real first, Real second) {
        shuffle_both<N, ZipLow, ZipHigh>(first, second);
        Format::template write_two<N>(to, to + N, first, second);
    }

  private:
    template <int N, class Low, class High, class Real>
    static void shuffle_both(Real& a, Real& b) {
        if constexpr (N > 1) {
            constexpr int size = in_blocks ? 16 * N / static_cast<int>(sizeof(Real)) : N;
            const Real low = shuffle<InBlocks<Low, size>, N>(a, b);
            b = shuffle<InBlocks<High, size>, N>(a, b);
            a = low;
        }
    }
};

// float32 and float64 are their own compute dtypes. `W`: lanes of a register, in the compute dtype.
template <class T, bool in_blocks = false>
struct Native : Shuffled<Native<T>, in_blocks> {
    using Stored = T;
    using Real = T;
    using Blocked = Native<T, true>;
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

    template <int N>
    static Vec<T, N> round(Vec<T, N> v) {
        return v;
    }
};

// 16-bit dtypes are rotated in float32.
//
//     bits        sign   exponent      fraction
//     float32     31     30 .. 23      22 .. 0     bias 127
//     bfloat16    15     14 ..  7       6 .. 0     bias 127: the upper half of a float32
//     float16     15     14 .. 10       9 .. 0     bias 15
//
// An interleaved pair is one word, | second | first |, as memory is little-endian.
struct Sixteen {
    using Stored = uint16_t;
    using Real = float;
    static constexpr int W = WIDTH;
    template <int N>
    using Word = Vec<uint32_t, N>;
};

struct BFloat16 : Sixteen {
    using Blocked = BFloat16;
    static constexpr bool IN_BLOCKS = false;

    template <int N>
    static Vec<float, N> read(const uint16_t* from) {
        return bit_cast<Vec<float, N>>(load_upper16<N>(from));
    }

    template <int N>
    static void read_pairs(const uint16_t* from, Vec<float, N>& first, Vec<float, N>& second) {
        const auto pairs = load<Word<N>>(from);
        first = bit_cast<Vec<float, N>>(pairs << 16);
        second = bit_cast<Vec<float, N>>(pairs & 0xFFFF0000u);
    }

    template <int N>
    static void write_two(uint16_t* to, uint16_t* to_second, Vec<float, N> first, Vec<float, N> second) {
#if defined(__AVX512BF16__)
        Both both;
        if (narrow_both(first, second, both)) {
            store(to, _mm512_castsi512_si256(bit_cast<__m512i>(both)));
            store(to_second, _mm512_extracti64x4_epi64(bit_cast<__m512i>(both), 1));
            return;
        }
#endif
        Word<N> a, b;
        round_both<N>(first, second, a, b);
        store_lower16<N>(to, to_second, a >> 16, b >> 16);
    }

    template <int N>
    static void write_pairs(uint16_t* to, Vec<float, N> first, Vec<float, N> second) {
#if defined(__AVX512BF16__)
        Both both;
        if (narrow_both(first, second, both)) return store(to, shuffle<ZipHalves, 2 * WIDTH>(both, both));
#endif
        Word<N> a, b;
        round_both<N>(first, second, a, b);
        store(to, join16<N>(a >> 16, b));
    }

    // Round to bfloat16, in float32.
    template <int N>
    static Vec<float, N> round(Vec<float, N> v) {
        const Word<N> word = may_have_nan<N>(v, v) ? rounded_or_nan<N>(v) : rounded<N>(v);
        return bit_cast<Vec<float, N>>(word & 0xFFFF0000u);
    }

  private:
    // Round the upper half of each word to nearest, ties to even. The sum may carry into the sign of a NaN.
    template <int N>
    static Word<N> rounded(Vec<float, N> v) {
        const auto b = bit_cast<Word<N>>(v);
        return b + 0x7FFFu + ((b >> 16) & 1u);
    }

    // Set a bit of each NaN, whose upper half may be the bits of Inf.
    template <int N>
    static Word<N> rounded_or_nan(Vec<float, N> v) {
        const Word<N> nan = bit_cast<Word<N>>(v) | 0x400000u;
        return v != v ? nan : rounded<N>(v);
    }

    // Test both vectors for NaN at once: a NaN is rare.
    template <int N>
    static void round_both(Vec<float, N> first, Vec<float, N> second, Word<N>& a, Word<N>& b) {
        if (may_have_nan<N>(first, second)) {
            a = rounded_or_nan<N>(first);
            b = rounded_or_nan<N>(second);
        } else {
            a = rounded<N>(first);
            b = rounded<N>(second);
        }
    }

#if defined(__AVX512BF16__)
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

template <bool in_blocks = false>
struct Float16 : Sixteen, Shuffled<Float16<>, in_blocks> {
    using Blocked = Float16<true>;

    template <int N>
    static Vec<float, N> read(const uint16_t* from) {
        const auto v = load<Vec<uint16_t, N>>(from);
#if defined(__F16C__)
        if constexpr (N == 1) return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(v))));
        if constexpr (N == 4)
            return bit_cast<Vec<float, N>>(_mm_cvtph_ps(_mm_cvtsi64_si128(bit_cast<int64_t>(v))));
        if constexpr (N == 8) return bit_cast<Vec<float, N>>(_mm256_cvtph_ps(bit_cast<__m128i>(v)));
#if defined(__AVX512BW__)
        if constexpr (N == 16) return bit_cast<Vec<float, N>>(_mm512_cvtph_ps(bit_cast<__m256i>(v)));
#endif
#endif
        return widened<N>(widen16(v));
    }

    template <int N>
    static void write_two(uint16_t* to, uint16_t* to_second, Vec<float, N> first, Vec<float, N> second) {
        store(to, narrowed<N>(first));
        store(to_second, narrowed<N>(second));
    }

    // Round to float16, in float32.
    template <int N>
    static Vec<float, N> round(Vec<float, N> v) {
        const Vec<uint16_t, N> narrow = narrowed<N>(v);
        return read<N>(reinterpret_cast<const uint16_t*>(&narrow));
    }

  private:
    // Shift exponent and fraction of normal numbers; compute subnormal ones as integers times 2^-24; set all bits of
    // the exponent of Inf and NaN. No operand is a subnormal float32, which the processor may be set to flush to 0.
    template <int N>
    static Vec<float, N> widened(Word<N> v) {
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
    static Vec<uint16_t, N> narrowed(Vec<float, N> v) {
#if defined(__F16C__)
        if constexpr (N == 1) return static_cast<uint16_t>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(v), 0)));
        if constexpr (N == 4)
            return bit_cast<Vec<uint16_t, N>>(_mm_cvtsi128_si64(_mm_cvtps_ph(bit_cast<__m128>(v), 0)));
        if constexpr (N == 8) return bit_cast<Vec<uint16_t, N>>(_mm256_cvtps_ph(bit_cast<__m256>(v), 0));
#if defined(__AVX512BW__)
        if constexpr (N == 16) return bit_cast<Vec<uint16_t, N>>(_mm512_cvtps_ph(bit_cast<__m512>(v), 0));
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
        return narrow16((magnitude >= 0x477FF000u ? special : finite) | sign);  // 65,520 and more round to Inf
    }
};

}  // namespace
}  // namespace rope
