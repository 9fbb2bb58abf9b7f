// Rotate the rows of one or two arrays, q and k: CUDA C++ without any header, for NVRTC. tests/cuda_on_host.cpp
// compiles this file for the CPU too, where tests/test_cuda_source.py runs all of it.
//
// A thread has a few pairs of one token: it computes their cos and sin once, and rotates these pairs in
// several heads. It reads and writes units of 16 bytes if addresses, strides and widths are multiples of 16
// bytes, else units of single elements. The threads of a block, for 64 pairs of float32 in 16-byte units:
//
//     threadIdx.x    0            1            ...  31              the pairs of a token
//     interleaved    a0 b0 a1 b1  a2 b2 a3 b3                       one unit a thread, 2 pairs
//     threadIdx.x    0            1            ...  15
//     half           a0 a1 a2 a3  a4 a5 a6 a7  ...                  two units a thread, 4 pairs
//                    b0 b1 b2 b3  b4 b5 b6 b7  ...
//     threadIdx.y                                                   tokens: outer · seq + index along seq
//     threadIdx.z                                                   chunks of heads_per_thread heads
//
// Serves float16, bfloat16, float32 and float64, any strides of aligned elements, positions of 32 and 64 bits.
// The bits, and with them the errors (the contract in docs/numerics.md), equal the array-api backend's.
//
// Compile with --fmad=false: see cos_sin() in cos_sin.h.
#include "../_native/cos_sin.h"

namespace rope {

using Int = long long;
using Word64 = unsigned long long;
using Word32 = unsigned int;

// ---- the arguments: 64 bits each, as backends/cupy/_launch.py writes them. Strides count elements. ----

// One array and its result: `heads` rows for each token.
struct Array {
    const void* x;
    void* y;
    Int heads;
    Int x_outer, x_seq, x_head, x_feature;
    Int y_outer, y_seq, y_head, y_feature;
};

enum Source : Int { SPACED, INT32, INT64, TABLES };

struct Call {
    Array q, k;
    Int outer, seq;  // a token has the index outer · seq + its index along seq
    Int heads_per_thread;
    // See Layout in rope_array/_spec/plan.py. Features outside the rotated slice are copied if `copies`.
    Int head_dim, start, num_pairs, pairs_per_block, copies;
    Int source;
    Int first, outer_step, seq_step;  // SPACED: the position of token (0, 0), and steps modulo 2^64
    const void* positions;            // INT32, INT64, or floats
    Int pos_outer, pos_seq, pos_coordinate;
    const void *cos, *sin;  // TABLES, in the compute dtype; the pairs of a token are contiguous
    Int cos_outer, cos_seq, sin_outer, sin_seq;
    const Int* words;  // plan_words() of backends/_gpu: rows of num_pairs numbers
    Int has_coordinates;  // of each position: row 3 of `words` has the index of the coordinate of each pair
    Int scaled;           // multiply cos and sin by the amplitude
    Int transposed;       // negate sin
};

// ---- dtypes: 16 bytes to numbers of the compute dtype and back ----

struct alignas(16) Chunk {
    Word32 word[4];

    // In PTX, as compilers split some accesses by a struct or vector type.
    ROPE_INLINE static Chunk load(const void* from) {
        Chunk chunk;
#if defined(__CUDACC__)
        asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(chunk.word[0]), "=r"(chunk.word[1]), "=r"(chunk.word[2]), "=r"(chunk.word[3])
                     : "l"(__cvta_generic_to_global(from))
                     : "memory");
#else
        copy_aligned(&chunk, from);
#endif
        return chunk;
    }

    ROPE_INLINE void store(void* to) const {
#if defined(__CUDACC__)
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(word[0]),
                     "r"(word[1]), "r"(word[2]), "r"(word[3])
                     : "memory");
#else
        copy_aligned(to, this);
#endif
    }
};

struct Float32 {
    using Computed = Float32;
    using Stored = float;
    using Real = float;
    ROPE_INLINE static Real read(Stored v) { return v; }
    ROPE_INLINE static Stored write(Real v) { return v; }

    ROPE_INLINE static void unpack(const Chunk& chunk, Real* to) {
        unroll<4>([&](auto i) ROPE_ALWAYS { to[i] = ScalarOps::bit_cast<float>(chunk.word[i]); });
    }

    ROPE_INLINE static void pack(const Real* from, Chunk& chunk) {
        unroll<4>([&](auto i) ROPE_ALWAYS { chunk.word[i] = ScalarOps::bit_cast<Word32>(from[i]); });
    }
};

struct Float64 {
    using Computed = Float64;
    using Stored = double;
    using Real = double;
    ROPE_INLINE static Real read(Stored v) { return v; }
    ROPE_INLINE static Stored write(Real v) { return v; }

    ROPE_INLINE static void unpack(const Chunk& chunk, Real* to) {
        unroll<2>([&](auto i) ROPE_ALWAYS {
            const Word64 high = chunk.word[2 * i + 1];
            to[i] = ScalarOps::bit_cast<double>(high << 32 | chunk.word[2 * i]);
        });
    }

    ROPE_INLINE static void pack(const Real* from, Chunk& chunk) {
        unroll<2>([&](auto i) ROPE_ALWAYS {
            const Word64 bits = ScalarOps::bit_cast<Word64>(from[i]);
            chunk.word[2 * i] = static_cast<Word32>(bits);
            chunk.word[2 * i + 1] = static_cast<Word32>(bits >> 32);
        });
    }
};

// 16 bits, rotated in float32. `Format` converts one number, or the two in a word: | high | low |, low first
// in memory.
template <class Format>
struct Sixteen {
    using Computed = Float32;
    using Stored = unsigned short;
    using Real = float;
    ROPE_INLINE static Real read(Stored v) { return Format::widen_low(v); }
    ROPE_INLINE static Stored write(Real v) { return static_cast<Stored>(Format::narrow(v, 0.0f)); }

    ROPE_INLINE static void unpack(const Chunk& chunk, Real* to) {
        unroll<4>([&](auto i) ROPE_ALWAYS {
            to[2 * i] = Format::widen_low(chunk.word[i]);
            to[2 * i + 1] = Format::widen_high(chunk.word[i]);
        });
    }

    ROPE_INLINE static void pack(const Real* from, Chunk& chunk) {
        unroll<4>([&](auto i) ROPE_ALWAYS { chunk.word[i] = Format::narrow(from[2 * i], from[2 * i + 1]); });
    }
};

struct BFloat16Format {
    ROPE_INLINE static float widen_low(Word32 v) { return ScalarOps::bit_cast<float>(v << 16); }
    ROPE_INLINE static float widen_high(Word32 v) { return ScalarOps::bit_cast<float>(v & 0xFFFF0000u); }

    ROPE_INLINE static Word32 narrow(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        Word32 packed;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
        return packed;
#else
        return rounded(low) | rounded(high) << 16;
#endif
    }

    // Round to nearest, ties to even. Set a bit of each NaN, whose upper half may be the bits of Inf.
    ROPE_INLINE static Word32 rounded(float v) {
        const Word32 b = ScalarOps::bit_cast<Word32>(v);
        return v != v ? b >> 16 | 0x40u : (b + 0x7FFFu + (b >> 16 & 1u)) >> 16;
    }
};

struct Float16Format {
#if defined(__CUDACC__)
    ROPE_INLINE static float widen(unsigned short v) {
        float number;
        asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(v));
        return number;
    }

    ROPE_INLINE static unsigned short rounded(float v) {
        unsigned short bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
        return bits;
    }
#else
    ROPE_INLINE static float widen(unsigned short v) { return ScalarOps::bit_cast<_Float16>(v); }
    ROPE_INLINE static unsigned short rounded(float v) {
        return ScalarOps::bit_cast<unsigned short>(static_cast<_Float16>(v));
    }
#endif
    ROPE_INLINE static float widen_low(Word32 v) { return widen(static_cast<unsigned short>(v)); }
    ROPE_INLINE static float widen_high(Word32 v) { return widen(static_cast<unsigned short>(v >> 16)); }

    ROPE_INLINE static Word32 narrow(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        Word32 packed;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
        return packed;
#else
        return rounded(low) | static_cast<Word32>(rounded(high)) << 16;
#endif
    }
};

// The arithmetic of the rotation, in PTX for float: CuPy compiles with -ftz=true, by which C++ operators would take
// subnormal numbers as zeros.
#if defined(__CUDACC__)
ROPE_INLINE float product(float a, float b) {
    float c;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
ROPE_INLINE float sum(float a, float b) {
    float c;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
ROPE_INLINE float difference(float a, float b) {
    float c;
    asm("sub.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
#else
ROPE_INLINE float product(float a, float b) { return a * b; }
ROPE_INLINE float sum(float a, float b) { return a + b; }
ROPE_INLINE float difference(float a, float b) { return a - b; }
#endif
ROPE_INLINE double product(double a, double b) { return a * b; }
ROPE_INLINE double sum(double a, double b) { return a + b; }
ROPE_INLINE double difference(double a, double b) { return a - b; }

using BFloat16 = Sixteen<BFloat16Format>;
using Float16 = Sixteen<Float16Format>;

// ---- units: a single element or 16 bytes, one access of a thread ----

// A single element.
template <class T, bool WIDE>
struct Unit {
    using Stored = typename T::Stored;
    using Raw = Stored;
    static constexpr int SIZE = 1;
    ROPE_INLINE static Raw load(const Stored* from) { return *from; }
    ROPE_INLINE static void store(Stored* to, Raw raw) { *to = raw; }
    ROPE_INLINE static void unpack(Raw raw, typename T::Real* to) { *to = T::read(raw); }
    ROPE_INLINE static void pack(const typename T::Real* from, Raw& raw) { raw = T::write(*from); }
};

// 16 bytes.
template <class T>
struct Unit<T, true> {
    using Stored = typename T::Stored;
    using Raw = Chunk;
    static constexpr int SIZE = 16 / static_cast<int>(sizeof(Stored));
    ROPE_INLINE static Raw load(const Stored* from) { return Chunk::load(from); }
    ROPE_INLINE static void store(Stored* to, const Raw& raw) { raw.store(to); }
    ROPE_INLINE static void unpack(const Raw& raw, typename T::Real* to) { T::unpack(raw, to); }
    ROPE_INLINE static void pack(const typename T::Real* from, Raw& raw) { T::pack(from, raw); }
};

// ---- positions, and cos and sin ----

// A thread's token, and its first pair or feature.
struct Place {
    Int outer, seq, first;
};

ROPE_INLINE Int index_of(const Call& call, const Place& place, Int pair) {
    const Int at = place.outer * call.pos_outer + place.seq * call.pos_seq;
    return call.has_coordinates ? at + call.words[3 * call.num_pairs + pair] * call.pos_coordinate : at;
}

ROPE_INLINE Word64 position_of(const Call& call, const Place& place, Int pair, Int&) {
    const Word64 outer = place.outer, seq = place.seq;
    if (call.source == SPACED) return call.first + outer * call.outer_step + seq * call.seq_step;
    const Int at = index_of(call, place, pair);
    if (call.source == INT32) return static_cast<Int>(static_cast<const int*>(call.positions)[at]);
    return static_cast<const Int*>(call.positions)[at];
}

// Split a float: return the nearest integer, ties to even, and set the rest, which is exact.
template <class Real>
ROPE_INLINE Word64 position_of(const Call& call, const Place& place, Int pair, Real& fraction) {
    constexpr Real UNIT = sizeof(Real) == 4 ? 0x1p23 : 0x1p52;  // larger floats are integers
    const Real x = static_cast<const Real*>(call.positions)[index_of(call, place, pair)];
    const Real size = x < 0 ? -x : x, shift = x < 0 ? -UNIT : UNIT;  // a sum with `shift` is rounded to an integer
    const Real nearest = size < UNIT ? (x + shift) - shift : x;
    // The conversion of NaN and of floats beyond int64 is undefined: return the result of x86 processors.
    fraction = x - nearest;
    return size < Real{0x1p63} ? static_cast<Word64>(static_cast<Int>(nearest)) : Word64{1} << 63;
}

ROPE_INLINE Word32 phase_of(const Call& call, Word64 position, Int pair, float) {
    const Word64 turns = call.words[pair];
    return static_cast<Word32>(turns_at(position, turns) >> 32);
}

ROPE_INLINE Word64 phase_of(const Call& call, Word64 position, Int pair, double) {
    const Word64 high = call.words[call.num_pairs + pair], low = call.words[2 * call.num_pairs + pair];
    return phase_at<Word64>(position, static_cast<Int>(position) >> 32, high, low);
}

// Add the angle of a pair at a fraction of a position, in double if the fraction or u is. Valid if Plan.takes_fractions.
template <class Word, class Real, class Number>
ROPE_INLINE void add_fraction(const Call& call, Number fraction, Int pair, Word& quadrant, Real& u) {
    using Sum = decltype(fraction * u);
    using SumWord = decltype(phase_of(call, 0, 0, Sum{}));
    const Sum eighths = static_cast<Sum>(ScalarOps::bit_cast<double>(call.words[5 * call.num_pairs + pair]));
    Sum sum = u;
    const Sum quarters = add_eighths<Sum>(sum, fraction * eighths);
    quadrant += static_cast<Word>(ScalarOps::bit_cast<SumWord>(quarters)) << (8 * sizeof(Word) - 2);
    u = static_cast<Real>(sum);
}

// Compute cos and sin of PAIRS pairs from place.first on, for any position: see cos_sin.h for the errors.
template <class Number, class Real, int PAIRS>
ROPE_INLINE void compute_angles(const Call& call, const Place& place, Real (&cos)[PAIRS], Real (&sin)[PAIRS]) {
    using Word = decltype(phase_of(call, 0, 0, Real{}));
    Word quadrant[PAIRS];
    Real u[PAIRS];
    Number fraction{};
    Word64 position = position_of(call, place, place.first, fraction);
    unroll<PAIRS>([&](auto i) ROPE_ALWAYS {
        const Int pair = place.first + i;
        if (i && call.has_coordinates) position = position_of(call, place, pair, fraction);
        split_phase<ScalarOps, Word, Real>(phase_of(call, position, pair, Real{}), quadrant[i], u[i]);
        if constexpr (Number{1} / 2 != 0) add_fraction(call, fraction, pair, quadrant[i], u[i]);  // not of integers
    });
    cos_sin<ScalarOps, Word, Real>(quadrant, u, cos, sin);
    if (!call.scaled) return;
    const Real amplitude = static_cast<Real>(ScalarOps::bit_cast<double>(call.words[4 * call.num_pairs]));
    unroll<PAIRS>([&](auto i) ROPE_ALWAYS {
        cos[i] = product(cos[i], amplitude);
        sin[i] = product(sin[i], amplitude);
    });
}

// Read PAIRS numbers of a table, 16 bytes at a time if possible.
template <class T, bool WIDE, int PAIRS>
ROPE_INLINE void read_table(const void* table, Int at, typename T::Real (&to)[PAIRS]) {
    using Piece = Unit<T, WIDE && PAIRS % Unit<T, true>::SIZE == 0>;
    const typename T::Stored* const from = static_cast<const typename T::Stored*>(table) + at;
    unroll<PAIRS / Piece::SIZE>(
        [&](auto i) ROPE_ALWAYS { Piece::unpack(Piece::load(from + i * Piece::SIZE), to + i * Piece::SIZE); });
}

// ---- rows ----

// Call each(array, first head, number of heads, is_k) for the thread's heads of q and of k, numbered through: with
// 6 heads of q, 2 of k and 4 heads per thread,
//
//     heads        q0 q1 q2 q3 | q4 q5 k0 k1
//     threadIdx.z       0      |      1        calls each(q, 4, 2, false), then each(k, 0, 2, true)
template <class Each>
ROPE_INLINE void for_arrays(const Call& call, Int begin, const Each& each) {
    const Int end = begin + call.heads_per_thread;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
        const Array array = i ? call.k : call.q;
        const Int before = i ? call.q.heads : 0;
        const Int first = begin > before ? begin - before : 0;
        const Int last = end - before < array.heads ? end - before : array.heads;
        if (first < last) each(array, first, last - first, i != 0);
    }
}

template <class T>
struct Cursor {  // a thread's first feature in a row of x and of y
    const typename T::Stored* x;
    typename T::Stored* y;

    ROPE_INLINE Cursor(const Array& array, const Place& place, Int head, Int x_feature, Int y_feature)
        : x(static_cast<const typename T::Stored*>(array.x) + place.outer * array.x_outer +
            place.seq * array.x_seq + head * array.x_head + x_feature * array.x_feature),
          y(static_cast<typename T::Stored*>(array.y) + place.outer * array.y_outer + place.seq * array.y_seq +
            head * array.y_head + y_feature * array.y_feature) {}
};

// Inputs of attention have these steps too: see Steps. A rotation has none.
struct NoSteps {
    static constexpr bool ANY = false;
};

// Call step(n) for n heads at a time: HEADS, a constant, while that many are left, then 1.
template <int HEADS, class Step>
ROPE_INLINE void for_heads(Int count, const Step& step) {
#pragma unroll 1
    for (; count >= HEADS; count -= HEADS) step(Index<HEADS>{});
#pragma unroll 1
    for (; count > 0; --count) step(Index<1>{});
}

template <class T, bool WIDE, bool READS_HALF, bool WRITES_HALF, bool FROM_TABLES, class Number>
struct Rotation {
    using Real = typename T::Real;
    using Piece = Unit<T, WIDE>;
    // With half pairing, the first and the second features of a thread's pairs are a unit each. 16 bytes of interleaved
    // pairs hold both features.
    static constexpr int UNITS = WIDE && !READS_HALF && !WRITES_HALF ? 1 : 2;
    static constexpr int PAIRS = UNITS * Piece::SIZE / 2;
    // Heads that are read before the first of them is written, so that a wide thread has 64 bytes on their way.
    static constexpr int HEADS = 4 / UNITS;

    // Return the index of feature `member` of pair k among a thread's features, in the order of memory:
    //
    //     interleaved    a0 b0 a1 b1    2 · k + member
    //     half           a0 a1 b0 b1    member · PAIRS + k
    template <bool HALF>
    ROPE_INLINE static constexpr int at(int k, int member) {
        return HALF ? member * PAIRS + k : 2 * k + member;
    }

    // Return the index of a pair's first feature in the slice. With half pairing in 2 blocks of 3 pairs:
    //
    //     feature    0  1  2  3  4  5 | 6  7  8  9  10 11
    //                a0 a1 a2 b0 b1 b2| a3 a4 a5 b3 b4 b5     pair + block · pairs_per_block
    template <bool HALF>
    ROPE_INLINE static Int feature_of(const Call& call, Int pair) {
        if (!HALF) return 2 * pair;
        if (call.pairs_per_block == call.num_pairs) return pair;
        const Int block = static_cast<Word32>(pair) / static_cast<Word32>(call.pairs_per_block);
        return pair + block * call.pairs_per_block;
    }

    // Return the distance between a thread's two units, in features.
    template <bool HALF>
    ROPE_INLINE static Int second_unit(const Call& call) {
        return HALF ? call.pairs_per_block : Piece::SIZE;
    }

    template <class Steps>
    ROPE_INLINE static void run(const Call& call, const Place& place, Int first_head, const Steps& steps) {
        Real cos[PAIRS], sin[PAIRS];
        if constexpr (FROM_TABLES) {
            using Computed = typename T::Computed;
            const Int of_cos = place.outer * call.cos_outer + place.seq * call.cos_seq + place.first;
            const Int of_sin = place.outer * call.sin_outer + place.seq * call.sin_seq + place.first;
            read_table<Computed, WIDE>(call.cos, of_cos, cos);
            read_table<Computed, WIDE>(call.sin, of_sin, sin);
        } else {
            compute_angles<Number>(call, place, cos, sin);
        }
        if (call.transposed) unroll<PAIRS>([&](auto i) ROPE_ALWAYS { sin[i] = product(sin[i], Real{-1}); });
        const Int from = call.start + feature_of<READS_HALF>(call, place.first);
        const Int to = call.start + feature_of<WRITES_HALF>(call, place.first);
        for_arrays(call, first_head, [&](const Array& array, Int head, Int count, bool is_k) ROPE_ALWAYS {
            Cursor<T> row(array, place, head, from, to);
            const Int x_second = second_unit<READS_HALF>(call) * array.x_feature;
            const Int y_second = second_unit<WRITES_HALF>(call) * array.y_feature;
            for_heads<HEADS>(count, [&](auto heads) ROPE_ALWAYS {
                constexpr int N = heads;
                // All units are read before any is written. y may be x if both have the same pairing: then a
                // thread writes the very features that it reads.
                typename Piece::Raw raw[N][UNITS];
                unroll<N>([&](auto n) ROPE_ALWAYS {
                    unroll<UNITS>([&](auto u) ROPE_ALWAYS { raw[n][u] = Piece::load(row.x + u * x_second); });
                    row.x += array.x_head;
                });
                unroll<N>([&](auto n) ROPE_ALWAYS {
                    Real x[2 * PAIRS], y[2 * PAIRS];
                    unroll<UNITS>([&](auto u) ROPE_ALWAYS { Piece::unpack(raw[n][u], x + u * Piece::SIZE); });
                    if constexpr (Steps::ANY) unroll<UNITS>([&](auto u) ROPE_ALWAYS {
                        const Int feature = from + u * second_unit<READS_HALF>(call);
                        steps.template norm<Piece::SIZE>(place, is_k, head + n, feature, x + u * Piece::SIZE);
                    });
                    unroll<PAIRS>([&](auto k) ROPE_ALWAYS {
                        const Real a = x[at<READS_HALF>(k, 0)], b = x[at<READS_HALF>(k, 1)];
                        y[at<WRITES_HALF>(k, 0)] = difference(product(a, cos[k]), product(b, sin[k]));
                        y[at<WRITES_HALF>(k, 1)] = sum(product(b, cos[k]), product(a, sin[k]));
                    });
                    unroll<UNITS>([&](auto u) ROPE_ALWAYS {
                        typename Piece::Raw result;
                        Piece::pack(y + u * Piece::SIZE, result);
                        Piece::store(row.y + u * y_second, result);
                        const Int feature = to + u * second_unit<WRITES_HALF>(call);
                        if constexpr (Steps::ANY)
                            steps.template write<Piece::SIZE>(is_k, head + n, feature, y + u * Piece::SIZE);
                    });
                    row.y += array.y_head;
                });
                head += N;
            });
        });
    }
};

// Copy a unit of the features outside the rotated slice; place.first counts these features only.
template <class T, bool WIDE, class Steps>
ROPE_INLINE void copy_features(const Call& call, const Place& place, Int first_head, const Steps& steps) {
    using Piece = Unit<T, WIDE>;
    const Int feature = place.first < call.start ? place.first : place.first + 2 * call.num_pairs;
    for_arrays(call, first_head, [&](const Array& array, Int head, Int count, bool is_k) ROPE_ALWAYS {
        Cursor<T> row(array, place, head, feature, feature);
        for_heads<4>(count, [&](auto heads) ROPE_ALWAYS {
            constexpr int N = heads;
            typename Piece::Raw raw[N];
            unroll<N>([&](auto n) ROPE_ALWAYS { raw[n] = Piece::load(row.x + n * array.x_head); });
            if constexpr (Steps::ANY) unroll<N>([&](auto n) ROPE_ALWAYS {
                typename T::Real x[Piece::SIZE];
                Piece::unpack(raw[n], x);
                steps.template norm<Piece::SIZE>(place, is_k, head + n, feature, x);
                Piece::pack(x, raw[n]);
                steps.template write<Piece::SIZE>(is_k, head + n, feature, x);
            });
            unroll<N>([&](auto n) ROPE_ALWAYS { Piece::store(row.y + n * array.y_head, raw[n]); });
            head += N;
            row.x += N * array.x_head;
            row.y += N * array.y_head;
        });
    });
}

// Return a / b of non-negative numbers: almost always a division of 32 bits, which takes fewer instructions.
ROPE_INLINE Int quotient(Int a, Int b) {
    if ((a | b) >> 32) return a / b;
    return static_cast<Word32>(a) / static_cast<Word32>(b);
}

// Threads of a block. Five blocks on a multiprocessor leave a thread the 102 registers that no kernel here exceeds; 640
// threads with 64 bytes each on their way are 40 KiB, enough to keep the memory of an H100 busy.
constexpr int MAX_THREADS = 128;

// Do the work of a thread: a token, and heads from `first_head` on. threadIdx.x counts groups of pairs.
template <class T, bool WIDE, bool READS_HALF, bool WRITES_HALF, bool FROM_TABLES, class Number, class Steps>
ROPE_INLINE void run_thread(const Call& call, const Place& place, Int first_head, const Steps& steps) {
    using Pairs = Rotation<T, WIDE, READS_HALF, WRITES_HALF, FROM_TABLES, Number>;
    constexpr int UNIT = Unit<T, WIDE>::SIZE;
    const Int rotated = call.num_pairs / Pairs::PAIRS;
    const Int copied = call.copies ? (call.head_dim - 2 * call.num_pairs) / UNIT : 0;
    for (Int i = threadIdx.x; i < rotated + copied; i += blockDim.x) {
        if (i < rotated)
            Pairs::run(call, {place.outer, place.seq, i * Pairs::PAIRS}, first_head, steps);
        else
            copy_features<T, WIDE>(call, {place.outer, place.seq, (i - rotated) * UNIT}, first_head, steps);
    }
}

// Set the place of a thread's token; return whether there is a token.
ROPE_INLINE bool find_token(const Call& call, Place& place) {
    const Int token = static_cast<Int>(blockIdx.x) * blockDim.y + threadIdx.y;
    if (token >= call.outer * call.seq) return false;
    place.outer = quotient(token, call.seq);
    place.seq = token - place.outer * call.seq;
    return true;
}

ROPE_INLINE Int first_head_of_thread(const Call& call) {
    return (static_cast<Int>(blockIdx.y) * blockDim.z + threadIdx.z) * call.heads_per_thread;
}

// A block has threads for groups of pairs (x), tokens (y) and chunks of heads (z). `Number` is the type of the
// positions: float, double, or Int for all integers, and for tables.
template <class T, bool WIDE, bool READS_HALF, bool WRITES_HALF, bool FROM_TABLES, class Number>
__global__ void __launch_bounds__(MAX_THREADS, 5) rotate(const Call call) {
    Place place{};
    if (!find_token(call, place)) return;
    const Int first_head = first_head_of_thread(call);
    run_thread<T, WIDE, READS_HALF, WRITES_HALF, FROM_TABLES, Number>(call, place, first_head, NoSteps{});
}

// ---- attention's inputs: the norm before the rotation, and k and v into caches ----

enum Format : Int { FLOAT32, FLOAT64, FLOAT16, BFLOAT16, INT8, E4M3 };

struct Weight {
    const void* data;  // null: ones
    Int format, outer, seq, head;
};

struct Cache {
    void* data;
    Int format, outer, seq, head, feature, page, slot;
    Int page_size, slots;  // 0: no pages; all slots
    double scale;
};

// As backends/cupy/_inputs.py writes them.
struct Inputs {
    Call call;
    Array v;  // without y
    Int v_dim;
    Weight weights[2];
    Cache caches[2];  // of k and v
    Int norm;         // 0: none; its roundings: 1 none, 2 "norm", 3 "steps"
    double eps, offset, inverse_dim;  // 1 / head_dim
    const void* slots;  // null: no caches
    Int slots_are_wide, slots_outer, slots_seq, num_tokens, searches;
};

// Correctly rounded, of subnormal numbers too: see product().
#if defined(__CUDACC__)
ROPE_INLINE float root(float a) {
    float c;
    asm("sqrt.rn.f32 %0, %1;" : "=f"(c) : "f"(a));
    return c;
}
ROPE_INLINE float ratio(float a, float b) {
    float c;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
ROPE_INLINE double root(double a) { return __dsqrt_rn(a); }
#else
ROPE_INLINE float root(float a) { return __builtin_sqrtf(a); }
ROPE_INLINE float ratio(float a, float b) { return a / b; }
ROPE_INLINE double root(double a) { return __builtin_sqrt(a); }
#endif
ROPE_INLINE double ratio(double a, double b) { return a / b; }

// Read COUNT adjacent weights.
template <int COUNT, class Real>
ROPE_INLINE void read_weights(const Weight& weight, Int at, Real* to) {
    const auto read = [&](auto convert, auto* from) ROPE_ALWAYS {
        for (int j = 0; j < COUNT; ++j) to[j] = static_cast<Real>(convert(from[at + j]));
    };
    using Half = const unsigned short;
    switch (weight.format) {
        case FLOAT64: return read([](double v) ROPE_ALWAYS { return v; }, static_cast<const double*>(weight.data));
        case FLOAT16: return read(Float16::read, static_cast<Half*>(weight.data));
        case BFLOAT16: return read(BFloat16::read, static_cast<Half*>(weight.data));
        default: return read([](float v) ROPE_ALWAYS { return v; }, static_cast<const float*>(weight.data));
    }
}

// Return |x| <= 448 rounded to float8_e4m3fn, ties to even: a float32's exponent is 120 larger, its fraction 20 bits
// longer. Below 2^-6 numbers are multiples of 2^-9, as are the floats around 2^14.
ROPE_INLINE unsigned char e4m3_of(float x) {
    const Word32 bits = ScalarOps::bit_cast<Word32>(x), size = bits & 0x7FFFFFFFu, sign = bits >> 24 & 0x80u;
    if (size > 0x7F800000u) return static_cast<unsigned char>(sign | 0x7Fu);
    const Word32 normal = ((size + 0x7FFFFu + (size >> 20 & 1u)) >> 20) - (120u << 3);
    const Word32 small = ScalarOps::bit_cast<Word32>(sum(ScalarOps::bit_cast<float>(size), 16384.0f)) - 0x46800000u;
    return static_cast<unsigned char>(sign | (size < 0x3C800000u ? small : normal));
}

ROPE_INLINE signed char int8_of(float x) {
    if (x != x) return 0;
    const float rounder = 12582912.0f;  // 1.5 · 2^23: a sum with it is rounded to an integer
    const float limited = x < -128.0f ? -128.0f : x > 127.0f ? 127.0f : x;
    return static_cast<signed char>(difference(sum(limited, rounder), rounder));
}

// Write COUNT features of a cache.
template <int COUNT, class Real>
ROPE_INLINE void write_features(const Cache& cache, Int at, const Real* values) {
    const auto write = [&](auto convert, auto* to) ROPE_ALWAYS {
        for (int j = 0; j < COUNT; ++j) to[at + j * cache.feature] = convert(values[j]);
    };
    const float scale = static_cast<float>(cache.scale);
    const auto int8 = [=](float v) ROPE_ALWAYS { return int8_of(ratio(v, scale)); };
    const auto e4m3 = [=](float v) ROPE_ALWAYS {
        const float scaled = ratio(v, scale);
        return e4m3_of(scaled < -448.0f ? -448.0f : scaled > 448.0f ? 448.0f : scaled);
    };
    switch (cache.format) {
        case FLOAT64: return write([](double v) ROPE_ALWAYS { return v; }, static_cast<double*>(cache.data));
        case FLOAT16: return write(Float16::write, static_cast<unsigned short*>(cache.data));
        case BFLOAT16: return write(BFloat16::write, static_cast<unsigned short*>(cache.data));
        case INT8: return write(int8, static_cast<signed char*>(cache.data));
        case E4M3: return write(e4m3, static_cast<unsigned char*>(cache.data));
        default: return write([](float v) ROPE_ALWAYS { return v; }, static_cast<float*>(cache.data));
    }
}

ROPE_INLINE Int slot_at(const Inputs& inputs, Int index) {
    return inputs.slots_are_wide ? static_cast<const Int*>(inputs.slots)[index]
                                 : static_cast<const int*>(inputs.slots)[index];
}

// Return the slot of a token; -1 if there is none, or if a later token has the same.
ROPE_INLINE Int slot_of(const Inputs& inputs, Int outer, Int seq) {
    if (!inputs.slots) return -1;
    const Int index = outer * inputs.slots_outer + seq * inputs.slots_seq, slot = slot_at(inputs, index);
    for (Int later = inputs.searches ? index + 1 : inputs.num_tokens; later < inputs.num_tokens; ++later)
        if (slot_at(inputs, later) == slot) return -1;
    return slot;
}

// A thread has at most 8 heads of a token, and with a norm all of their features: it reads a head before it writes it.
template <class T>
struct Steps {
    using Real = typename T::Real;
    static constexpr bool ANY = true;
    const Inputs& inputs;
    Int first_head;
    bool writes[2];  // whether the token has a slot in the cache of k, of v
    Int rows[2];     // where it begins
    Real inverse_rms[8];

    ROPE_INLINE Steps(const Inputs& all, const Place& place, Int head) : inputs(all), first_head(head) {
        const Int slot = slot_of(inputs, place.outer, place.seq);
        unroll<2>([&](auto i) ROPE_ALWAYS {
            const Cache& cache = inputs.caches[i];
            const Int page = slot > 0 && cache.page_size ? quotient(slot, cache.page_size) : 0;
            writes[i] = slot >= 0 && slot < cache.slots;
            rows[i] = page * cache.page + (slot - page * cache.page_size) * cache.slot + place.outer * cache.outer +
                      place.seq * cache.seq;
        });
    }

    template <bool WIDE>
    ROPE_INLINE void find_rms(const Place& place) {
        const Call& call = inputs.call;
        for_arrays(call, first_head, [&](const Array& array, Int head, Int count, bool is_k) {
            for (Int h = head; h < head + count; ++h) {
                Real total[Unit<T, WIDE>::SIZE];
                const Cursor<T> row(array, place, h, 0, 0);
                fold<WIDE, 1>(row.x, array.x_feature, 0, total);
                for (int n = Unit<T, WIDE>::SIZE; n > 1; n /= 2)
                    for (int j = 0; j < n / 2; ++j) total[j] = sum(total[j], total[j + n / 2]);
                const Real mean = product(total[0], static_cast<Real>(inputs.inverse_dim));
                inverse_rms[is_k * call.q.heads + h - first_head] =
                    ratio(Real{1}, root(sum(mean, static_cast<Real>(inputs.eps))));
            }
        });
    }

    // Set the sums of the columns `unit`, unit + DISTANCE, unit + 2 · DISTANCE ..., each half added to the other, in
    // units of columns. All sums have the order of rope_array/_array_api/norm.py: 64 columns, folded.
    template <bool WIDE, int DISTANCE>
    ROPE_INLINE void fold(const typename T::Stored* x, Int x_feature, int unit, Real* total) const {
        using Piece = Unit<T, WIDE>;
        Real part[Piece::SIZE];
        if constexpr (DISTANCE * Piece::SIZE == 64) {
            for (int j = 0; j < Piece::SIZE; ++j) total[j] = 0;
            for (Int at = unit * Piece::SIZE; at < inputs.call.head_dim; at += 64) {
                Piece::unpack(Piece::load(x + at * x_feature), part);
                for (int j = 0; j < Piece::SIZE; ++j) total[j] = sum(total[j], product(part[j], part[j]));
            }
        } else {
            fold<WIDE, 2 * DISTANCE>(x, x_feature, unit, total);
            fold<WIDE, 2 * DISTANCE>(x, x_feature, unit + DISTANCE, part);
            for (int j = 0; j < Piece::SIZE; ++j) total[j] = sum(total[j], part[j]);
        }
    }

    template <int COUNT>
    ROPE_INLINE void norm(const Place& place, bool is_k, Int head, Int feature, Real* x) const {
        if (!inputs.norm) return;
        const Real r = inverse_rms[is_k * inputs.call.q.heads + head - first_head];
        const Weight& w = inputs.weights[is_k];
        const Int at = place.outer * w.outer + place.seq * w.seq + head * w.head + feature;
        Real weight[COUNT];
        if (w.data) read_weights<COUNT>(w, at, weight);
        for (int j = 0; j < COUNT; ++j) {
            x[j] = product(x[j], r);
            if (inputs.norm == 3) x[j] = T::read(T::write(x[j]));
            if (w.data && inputs.offset != 0) weight[j] = sum(weight[j], static_cast<Real>(inputs.offset));
            if (w.data) x[j] = product(x[j], weight[j]);
            if (inputs.norm > 1) x[j] = T::read(T::write(x[j]));
        }
    }

    template <int COUNT>
    ROPE_INLINE void write(bool is_k, Int head, Int feature, const Real* y) const {
        if (is_k) write_row<COUNT, 0>(head, feature, y);
    }

    template <int COUNT, int CACHE>
    ROPE_INLINE void write_row(Int head, Int feature, const Real* values) const {
        const Cache& cache = inputs.caches[CACHE];
        if (!writes[CACHE]) return;
        const Int at = rows[CACHE] + head * cache.head;
        write_features<COUNT>(cache, at + feature * cache.feature, values);
    }
};

// A parameter that threads read where it is: else each would copy it, as parts are chosen by an index.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
#define ROPE_CONSTANT __grid_constant__
#else
#define ROPE_CONSTANT
#endif

// As rotate(), for the heads of v too, numbered after the heads of k. With a norm blockDim.x is 1.
template <class T, bool WIDE, bool READS_HALF, bool WRITES_HALF, bool FROM_TABLES>
__global__ void __launch_bounds__(MAX_THREADS) make_inputs(const ROPE_CONSTANT Inputs inputs) {
    const Call& call = inputs.call;
    const Int first_head = first_head_of_thread(call);
    Place place{};
    if (!find_token(call, place)) return;
    Steps<T> steps(inputs, place, first_head);
    if (inputs.norm) steps.template find_rms<WIDE>(place);
    run_thread<T, WIDE, READS_HALF, WRITES_HALF, FROM_TABLES, Int>(call, place, first_head, steps);
    const Int before = call.q.heads + call.k.heads, end = first_head + call.heads_per_thread - before;
    for (Int head = first_head > before ? first_head - before : 0; head < end && head < inputs.v.heads; ++head) {
        const Cursor<T> row(inputs.v, place, head, 0, 0);
        for (Int i = threadIdx.x, step = blockDim.x; i < inputs.v_dim; i += step) {
            const typename T::Real value = T::read(row.x[i * inputs.v.x_feature]);
            steps.template write_row<1, 1>(head, i, &value);
        }
    }
}

}  // namespace rope
