// The inner loops. This file is compiled once for each level of instructions, and must not use inline functions
// with a name that other files have: the linker keeps one copy of such a function, which might be that of a
// level the processor does not have.
#include "kernel.hpp"
#include "simd.hpp"

#include <type_traits>
#include <utility>

namespace rope {
namespace {

// Calls step<W>(i) for i = 0, W, ... while W numbers are left, then step<4>(i) and step<1>(i) for the rest. Each number
// goes through the same operations either way, so its bits do not depend on where it stands.
template <int W, class Step>
inline void for_each(int64_t n, const Step& step) {
    int64_t i = 0;
    for (; i + W <= n; i += W) step.template at<W>(i);
    if constexpr (W > 4)
        for (; i + 4 <= n; i += 4) step.template at<4>(i);
    if constexpr (W > 1)
        for (; i < n; ++i) step.template at<1>(i);
}

// Calls f with 0, 1, ... K - 1 as constants.
template <int... k, class F>
ROPE_INLINE void each_of(std::integer_sequence<int, k...>, const F& f) {
    (f(std::integral_constant<int, k>{}), ...);
}

template <int K, class F>
ROPE_INLINE void each(const F& f) {
    each_of(std::make_integer_sequence<int, K>{}, f);
}

// Positions of which a pack is made at once: see `cos_sin_of`. Fewer where there are fewer registers.
template <int W>
constexpr int AT_ONCE = W == 16 ? 4 : W > 1 ? 2 : 1;

// Calls step(K), a constant, for `some` rows at a time while that many are left, then for one at a time.
template <int some, class Step>
ROPE_INLINE void for_rows(int64_t count, const Step& step) {
    for (; count >= some; count -= some) step(std::integral_constant<int, some>{});
    for (; count > 0; --count) step(std::integral_constant<int, 1>{});
}

// ---- positions to cos and sin ----

// The minimax polynomials of rope_array/_array_api/angles.py, which says what their errors are.
constexpr float S32[] = {0.7853981256484985f, -0.08074513077735901f, 0.002489370759576559f,
                         -3.5579418181441724e-05f};
constexpr float C32[] = {-0.3084251284599304f, 0.015854282304644585f, -0.000325863336911425f,
                         3.4905178836197592e-06f};
constexpr double S64[] = {0.7853981633974483,     -0.08074551218827972,   0.002490394570182007,
                          -3.6576204134671484e-05, 3.1336158090831277e-07, -1.7571158584135306e-09,
                          6.866574506874848e-12};
constexpr double C64[] = {-0.30842513753404244,   0.015854344243815096,   -0.0003259918869245824,
                          3.5908604394852376e-06, -2.4611354040888294e-08, 1.1499763569296203e-10,
                          -3.836316280346648e-13};

// Cos and sin of phases in units of 2^-32 turns, of K packs side by side: each step waits for the one before it, and
// the processor looks no farther ahead than a few packs, so that steps of the others have to stand between.
template <int W, int K>
ROPE_INLINE void cos_sin_of(const Pack<uint32_t, W> (&phase)[K], Pack<float, W> (&cos)[K], Pack<float, W> (&sin)[K]) {
    using Real = Pack<float, W>;
    using Word = Pack<uint32_t, W>;
    Real u[K], z[K], c[K], s[K];
    each<K>([&](auto k) ROPE_ALWAYS {
        // In eighths of a turn from the nearest axis.
        u[k] = Convert<float, W>::of(bits<Pack<int32_t, W>>(phase[k] << 2)) * 0x1p-31f;
        z[k] = u[k] * u[k];
        c[k] = z[k] * C32[3];
        s[k] = z[k] * S32[3];
    });
    each<2>([&](auto i) ROPE_ALWAYS {
        each<K>([&](auto k) ROPE_ALWAYS {
            c[k] = (c[k] + C32[2 - i]) * z[k];
            s[k] = (s[k] + S32[2 - i]) * z[k];
        });
    });
    each<K>([&](auto k) ROPE_ALWAYS {
        c[k] = (c[k] + C32[0]) * z[k] + 1.0f;
        s[k] = u[k] * (s[k] + S32[0]);
    });
    each<K>([&](auto k) ROPE_ALWAYS {
        const Word quadrant = phase[k] + 0x20000000u;  // its number is in the two upper bits
        const auto odd = any_bit(quadrant, 0x40000000u);
        const Real of_cos = chosen(odd, s[k], c[k]), of_sin = chosen(odd, c[k], s[k]);
        cos[k] = bits<Real>(bits<Word>(of_cos) ^ ((quadrant + 0x40000000u) & 0x80000000u));
        sin[k] = bits<Real>(bits<Word>(of_sin) ^ (quadrant & 0x80000000u));
    });
}

// Cos and sin of phases in units of 2^-64 turns.
template <int W>
struct Turns64 {
    using Real = Pack<double, W>;
    using Word = Pack<uint64_t, W>;

    static void cos_sin(Word phase, Real& cos, Real& sin) {
        const Real u = to_double(phase << 2) * 0x1p-63;
        const Real z = u * u;
        Real c = z * C64[6] + C64[5], s = z * S64[6] + S64[5];
        for (int i = 4; i >= 0; --i) {
            c = c * z + C64[i];
            s = s * z + S64[i];
        }
        c = c * z + 1.0;
        s = u * s;
        const Word quadrant = phase + 0x2000000000000000u;
        const auto odd = (quadrant & 0x4000000000000000u) != 0;
        const Real of_cos = odd ? s : c, of_sin = odd ? c : s;
        cos = bits<Real>(bits<Word>(of_cos) ^ ((quadrant + 0x4000000000000000u) & 0x8000000000000000u));
        sin = bits<Real>(bits<Word>(of_sin) ^ (quadrant & 0x8000000000000000u));
    }
};

// Phases of some lanes in units of 2^-32 turns, (position · F mod 2^64) >> 32, at positions in equal steps: a product
// for the first and for the step, then sums, modulo 2^64 all of them.
template <int W>
class Phases {
    static constexpr int HALF = W > 1 ? W / 2 : 1;
    using Long = Pack<uint64_t, HALF>;
    using Word = Pack<uint32_t, W>;

  public:
    Phases(const Frequencies& words, const Positions& positions, int64_t lane) {
        const int64_t* const first = positions.values;
        const int64_t* const second = positions.count > 1 ? first + positions.num_coordinates : first;
        for (int half = 0; half < W / HALF; ++half, lane += HALF) {
            const Long word = load<Long>(words.turns_q64 + lane);
            const Long from = numbers(words, first, lane);
            phase_[half] = from * word;
            step_[half] = (numbers(words, second, lane) - from) * word;
        }
        if constexpr (W > 1) {
            Dealt<W>::deal(phase_[0], phase_[1]);
            Dealt<W>::deal(step_[0], step_[1]);
        }
    }

    Word next() {
        const Word phase = upper_halves();
        for (int half = 0; half < W / HALF; ++half) phase_[half] += step_[half];
        return phase;
    }

  private:
    // The coordinate of a position that drives each lane.
    static Long numbers(const Frequencies& words, const int64_t* position, int64_t lane) {
        if (!words.coordinate) return all<Long>(static_cast<uint64_t>(*position));
        uint64_t each[HALF];
        for (int k = 0; k < HALF; ++k) each[k] = static_cast<uint64_t>(position[words.coordinate[lane + k]]);
        return load<Long>(each);
    }

    Word upper_halves() const {
        if constexpr (W == 1)
            return static_cast<uint32_t>(phase_[0] >> 32);
        else
            return Dealt<W>::upper_halves(bits<Word>(phase_[0]), bits<Word>(phase_[1]));
    }

    Long phase_[W / HALF], step_[W / HALF];
};

// Cos and sin of some lanes at positions in equal steps, one after another.
template <int W>
class Angles {
    using Real = Pack<float, W>;

  public:
    Angles(const Frequencies& words, const Positions& positions, int64_t lane)
        : phases_(words, positions, lane),
          amplitude_(static_cast<float>(words.cos_amplitude)),
          sin_amplitude_(static_cast<float>(words.sin_amplitude)),
          scaled_(amplitude_ != 1.0f || sin_amplitude_ != 1.0f) {}

    template <int K>
    ROPE_INLINE void next(Real (&cos)[K], Real (&sin)[K]) {
        Pack<uint32_t, W> phase[K];
        each<K>([&](auto k) ROPE_ALWAYS { phase[k] = phases_.next(); });
        cos_sin_of<W, K>(phase, cos, sin);
        if (!scaled_) return;
        each<K>([&](auto k) ROPE_ALWAYS {
            cos[k] = cos[k] * amplitude_;
            sin[k] = sin[k] * sin_amplitude_;
        });
    }

  private:
    Phases<W> phases_;
    float amplitude_, sin_amplitude_;
    bool scaled_;
};

// The positions from `begin` on that go on in equal steps, `most` at most.
inline Positions stretch(const Positions& all, int64_t begin, int64_t most) {
    const int64_t each = all.num_coordinates;
    const int64_t* const first = all.values + begin * each;
    const int64_t rest = (all.count - begin < most ? all.count - begin : most) * each;
    // A number differs from the one before as that does from the one before it. Modulo 2^64, as phases go on.
    int64_t k = 2 * each;
    auto at = [first](int64_t i) { return static_cast<uint64_t>(first[i]); };
    while (k < rest && at(k) - at(k - each) == at(k - each) - at(k - 2 * each)) ++k;
    return {first, k < rest ? k / each : rest / each, each};
}

// Tables of positions in equal steps: for some lanes all positions are done in turn, so that what is of the lanes
// stays in registers.
struct TablesOf {
    const Frequencies& words;
    const Positions& positions;
    float* cos;
    float* sin;

    template <int W>
    void at(int64_t i) const {
        const int64_t lanes = words.num_pairs;
        Angles<W> angles(words, positions, i);
        float *to_cos = cos + i, *to_sin = sin + i;
        for_rows<AT_ONCE<W>>(positions.count, [&](auto some) ROPE_ALWAYS {
            constexpr int K = some;
            Pack<float, W> c[K], s[K];
            angles.template next<K>(c, s);
            each<K>([&](auto k) ROPE_ALWAYS {
                store(to_cos, c[k]);
                store(to_sin, s[k]);
                to_cos += lanes;
                to_sin += lanes;
            });
        });
    }
};

// (position · F mod 2^96) >> 32, F = upper·2^32 + lower.
struct Angles64 {
    const Frequencies& words;
    const Positions& positions;
    double* cos;
    double* sin;

    template <int W>
    void at(int64_t i) const {
        using Word = Pack<uint64_t, W>;
        const Word upper = load<Word>(words.turns_q96_high + i), lower = load<Word>(words.turns_q96_low + i);
        const double amplitude = words.cos_amplitude, sin_amplitude = words.sin_amplitude;
        const int64_t count = positions.count, lanes = words.num_pairs, step = positions.num_coordinates;
        for (int64_t r = 0; r < count; ++r) {
            const int64_t* const position = positions.values + r * step;
            uint64_t numbers[W], above[W];
            for (int k = 0; k < W; ++k) {
                const int64_t p = position[words.coordinate ? words.coordinate[i + k] : 0];
                numbers[k] = static_cast<uint64_t>(p);
                above[k] = static_cast<uint64_t>(p >> 32);
            }
            const Word p = load<Word>(numbers), high = load<Word>(above);
            const Word phase = p * upper + high * lower + (((p & 0xFFFFFFFFu) * lower) >> 32);
            Pack<double, W> c, s;
            Turns64<W>::cos_sin(phase, c, s);
            store(cos + r * lanes + i, c * amplitude);
            store(sin + r * lanes + i, s * sin_amplitude);
        }
    }
};

void angles32(const Frequencies& words, const Positions& positions, float* cos, float* sin) {
    for (int64_t r = 0; r < positions.count;) {
        const Positions here = stretch(positions, r, positions.count);
        for_each<WIDTH>(words.num_pairs, TablesOf{words, here, cos + r * words.num_pairs, sin + r * words.num_pairs});
        r += here.count;
    }
}

void angles64(const Frequencies& words, const Positions& positions, double* cos, double* sin) {
    for_each<(WIDTH > 1 ? WIDTH / 2 : 1)>(words.num_pairs, Angles64{words, positions, cos, sin});
}

// ---- how types are stored, and the arithmetic that they are rotated in ----

template <class T>
struct AsIs {
    using Stored = T;
    using Real = T;
    static constexpr int W = sizeof(T) == 8 && WIDTH > 1 ? WIDTH / 2 : WIDTH;

    template <int N>
    static Pack<T, N> read(const T* from) {
        return load<Pack<T, N>>(from);
    }

    template <int N>
    static void write_two(T* to, T* to_second, Pack<T, N> first, Pack<T, N> second) {
        store(to, first);
        store(to_second, second);
    }

    // Two by two: (first, second, first, second, ...).
    template <int N>
    static void read_pairs(const T* from, Pack<T, N>& first, Pack<T, N>& second) {
        const auto a = load<Pack<T, N>>(from), b = load<Pack<T, N>>(from + N);
        if constexpr (N == 1) {
            first = a;
            second = b;
        } else {
            first = Pairs<N>::even(a, b);
            second = Pairs<N>::odd(a, b);
        }
    }

    template <int N>
    static void write_pairs(T* to, Pack<T, N> first, Pack<T, N> second) {
        if constexpr (N == 1) {
            store(to, first);
            store(to + 1, second);
        } else {
            store(to, Pairs<N>::lower(first, second));
            store(to + N, Pairs<N>::upper(first, second));
        }
    }
};

// 16 bits: `Bits` tells a pattern, in the lower half of a 32-bit word, to float32 and back.
template <class Bits>
struct Sixteen {
    using Stored = uint16_t;
    using Real = float;
    static constexpr int W = WIDTH;
    template <int N>
    using Word = Pack<uint32_t, N>;

    template <int N>
    static Pack<float, N> read(const uint16_t* from) {
        return Bits::template widen<N>(widen16(load<Pack<uint16_t, N>>(from)));
    }

    template <int N>
    static void write_two(uint16_t* to, uint16_t* to_second, Pack<float, N> first, Pack<float, N> second) {
        store(to, narrow16(Bits::template narrow<N>(first)));
        store(to_second, narrow16(Bits::template narrow<N>(second)));
    }

    template <int N>
    static void read_pairs(const uint16_t* from, Pack<float, N>& first, Pack<float, N>& second) {
        const auto pairs = load<Word<N>>(from);
        first = Bits::template widen<N>(pairs & 0xFFFFu);
        second = Bits::template widen<N>(pairs >> 16);
    }

    template <int N>
    static void write_pairs(uint16_t* to, Pack<float, N> first, Pack<float, N> second) {
        store<Word<N>>(to, Bits::template narrow<N>(first) | Bits::template narrow<N>(second) << 16);
    }
};

struct BFloat16Bits {
    template <int N>
    static Pack<float, N> widen(Pack<uint32_t, N> v) {
        return bits<Pack<float, N>>(v << 16);
    }

    // To the nearest, ties to even; a NaN stays one, though the bits that tell it from Inf were the lower ones.
    template <int N>
    static Pack<uint32_t, N> narrow(Pack<float, N> v) {
        using Word = Pack<uint32_t, N>;
        const Word b = bits<Word>(v);
        const Word rounded = (b + 0x7FFFu + ((b >> 16) & 1u)) >> 16, nan = (b >> 16) | 0x40u;
        return v != v ? nan : rounded;
    }
};

struct BFloat16 : Sixteen<BFloat16Bits> {
    template <int N>
    static void read_pairs(const uint16_t* from, Pack<float, N>& first, Pack<float, N>& second) {
        const auto pairs = load<Word<N>>(from);
        first = bits<Pack<float, N>>(pairs << 16);
        second = bits<Pack<float, N>>(pairs & 0xFFFF0000u);
    }

#if defined(__AVX512BF16__)
    template <int N>
    static void write_two(uint16_t* to, uint16_t* to_second, Pack<float, N> first, Pack<float, N> second) {
        Pack<uint16_t, 2 * WIDTH> both;
        if (narrow_two(first, second, both)) {
            store(to, __builtin_shufflevector(both, both, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
            store(to_second, __builtin_shufflevector(both, both, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
                                                     29, 30, 31));
        } else {
            Sixteen::write_two<N>(to, to_second, first, second);
        }
    }

    template <int N>
    static void write_pairs(uint16_t* to, Pack<float, N> first, Pack<float, N> second) {
        Pack<uint16_t, 2 * WIDTH> both;
        if (narrow_two(first, second, both))
            store(to, __builtin_shufflevector(both, both, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8,
                                              24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
        else
            Sixteen::write_pairs<N>(to, first, second);
    }

  private:
    // By an instruction that takes subnormal numbers as zero; false where there are some.
    static bool narrow_two(Pack<float, 16> first, Pack<float, 16> second, Pack<uint16_t, 32>& both) {
        constexpr int SUBNORMAL = 0x20;
        const __m512 a = bits<__m512>(first), b = bits<__m512>(second);
        both = bits<Pack<uint16_t, 32>>(_mm512_cvtne2ps_pbh(b, a));
        const __mmask16 of_a = _mm512_fpclass_ps_mask(a, SUBNORMAL), of_b = _mm512_fpclass_ps_mask(b, SUBNORMAL);
        return __builtin_expect(_kortestz_mask16_u8(of_a, of_b), 1);
    }

    template <class Real>
    static bool narrow_two(Real, Real, Pack<uint16_t, 2 * WIDTH>&) {
        return false;
    }
#endif
};

struct Float16Bits {
    // Exponent and fraction are moved into place; subnormal numbers are integers times 2^-24; Inf and NaN have all
    // bits of the exponent. No operand is a subnormal float32, which the processor may be told to take as 0.
    template <int N>
    static Pack<float, N> widen(Pack<uint32_t, N> v) {
#if defined(__F16C__)
        if constexpr (N == 4)
            return bits<Pack<float, N>>(_mm_cvtph_ps(_mm_cvtsi64_si128(bits<int64_t>(narrow16(v)))));
        if constexpr (N == 8) return bits<Pack<float, N>>(_mm256_cvtph_ps(bits<__m128i>(narrow16(v))));
#if defined(__AVX512BW__)
        if constexpr (N == 16) return bits<Pack<float, N>>(_mm512_cvtph_ps(bits<__m256i>(narrow16(v))));
#endif
#endif
        using Word = Pack<uint32_t, N>;
        using Real = Pack<float, N>;
        const Word magnitude = v & 0x7FFFu, sign = (v & 0x8000u) << 16;
        const Word normal = (magnitude << 13) + 0x38000000u;
        const Word small = bits<Word>(Convert<float, N>::of(bits<Pack<int32_t, N>>(magnitude)) * 0x1p-24f);
        const Word special = (magnitude << 13) | 0x7F800000u | (magnitude > 0x7C00u ? all<Word>(0x400000u) : Word{});
        const Word finite = magnitude < 0x400u ? small : normal;
        return bits<Real>((magnitude >= 0x7C00u ? special : finite) | sign);
    }

    // To the nearest, ties to even: by hand for normal numbers; below them a float addition rounds, at a number
    // whose last place is the smallest float16.
    template <int N>
    static Pack<uint32_t, N> narrow(Pack<float, N> v) {
#if defined(__F16C__)
        if constexpr (N == 4)
            return widen16(bits<Pack<uint16_t, N>>(_mm_cvtsi128_si64(_mm_cvtps_ph(bits<__m128>(v), 0))));
        if constexpr (N == 8) return widen16(bits<Pack<uint16_t, N>>(_mm256_cvtps_ph(bits<__m256>(v), 0)));
#if defined(__AVX512BW__)
        if constexpr (N == 16) return widen16(bits<Pack<uint16_t, N>>(_mm512_cvtps_ph(bits<__m512>(v), 0)));
#endif
#endif
        using Word = Pack<uint32_t, N>;
        using Real = Pack<float, N>;
        const Word b = bits<Word>(v), sign = (b >> 16) & 0x8000u, magnitude = b & 0x7FFFFFFFu;
        const Word normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
        const Word subnormal = bits<Word>(bits<Real>(magnitude) + 0.5f) - 0x3F000000u;
        const Word finite = magnitude < 0x38800000u ? subnormal : normal;
        const Word nan = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
        const Word beyond = magnitude > 0x7F800000u ? nan : all<Word>(0x7C00u);
        return (magnitude >= 0x477FF000u ? beyond : finite) | sign;  // 65,520 and more round to Inf
    }
};

// ---- x to y ----

// Some pairs, the first of them at x and y. In halves, the other numbers of the pairs are `apart` bytes on.
template <class T, bool reads_half, bool writes_half, int W>
ROPE_INLINE void turn_pairs(const char* x, char* y, int64_t apart, Pack<typename T::Real, W> cos,
                            Pack<typename T::Real, W> sin) {
    using Stored = typename T::Stored;
    using Real = Pack<typename T::Real, W>;
    Real a, b;
    if constexpr (reads_half) {
        a = T::template read<W>(reinterpret_cast<const Stored*>(x));
        b = T::template read<W>(reinterpret_cast<const Stored*>(x + apart));
    } else {
        T::template read_pairs<W>(reinterpret_cast<const Stored*>(x), a, b);
    }
    const Real first = a * cos - b * sin, second = b * cos + a * sin;
    if constexpr (writes_half)
        T::template write_two<W>(reinterpret_cast<Stored*>(y), reinterpret_cast<Stored*>(y + apart), first, second);
    else
        T::template write_pairs<W>(reinterpret_cast<Stored*>(y), first, second);
}

inline int64_t pairs_of_block(const Layout& at) { return at.blocks == 1 ? at.num_pairs : at.num_pairs / at.blocks; }

// Features that stand apart, or not where their type may stand, to and from a head of scratch.
template <class Stored>
inline void gather(const char* x, int64_t step, Stored* head, int64_t n) {
    for (int64_t i = 0; i < n; ++i) std::memcpy(head + i, x + i * step, sizeof *head);
}

template <class Stored>
inline void scatter(const Stored* head, char* y, int64_t step, int64_t n) {
    for (int64_t i = 0; i < n; ++i) std::memcpy(y + i * step, head + i, sizeof *head);
}

// Asks for what some lanes have in a row that comes later, `bytes` in all, each line once: the processor does so itself
// only inside a page, and waits at each new one. What is to be written is read before, and is to be there too.
template <bool half, int64_t bytes>
ROPE_INLINE void fetch(const char* place, int64_t apart) {
#if defined(__GNUC__)
    constexpr int64_t side_by_side = half ? bytes / 2 : bytes;
    for (int64_t i = 0; i < side_by_side; i += CACHE_LINE) {
        __builtin_prefetch(place + i);
        if constexpr (half) __builtin_prefetch(place + apart + i);
    }
#else
    (void)place, (void)apart;
#endif
}

// ---- results past the caches: a few lines at a time, while more are made, as memory takes no more at once ----

ROPE_INLINE void pass(StreamBuffer& pending, int64_t bytes) {
    pending.from += bytes;
    pending.to += bytes;
    pending.bytes -= bytes;
}

template <int64_t lines>
ROPE_INLINE void pass_lines(StreamBuffer& pending) {
    if (pending.bytes < lines * CACHE_LINE) return;
    for (int64_t i = 0; i < lines; ++i) stream_line(pending.from + i * CACHE_LINE, pending.to + i * CACHE_LINE);
    pass(pending, lines * CACHE_LINE);
}

inline void pass_part(StreamBuffer& pending, int64_t bytes) {
    std::memcpy(pending.to, pending.from, static_cast<size_t>(bytes));
    pass(pending, bytes);
}

inline void pass_all_lines(StreamBuffer& pending) {
    while (pending.bytes >= CACHE_LINE) pass_lines<1>(pending);
}

// Bytes have been written to the stage, a line at least, and belong at y.
inline void add(StreamBuffer& pending, char* y, int64_t bytes) {
    pass_all_lines(pending);
    if (y != pending.to + pending.bytes) {
        pass_part(pending, pending.bytes);
        pending.to = y;
    }
    // The part of a line that is left goes before them, where there is room for it.
    char* const from = pending.active - pending.bytes;
    std::memcpy(from, pending.from, static_cast<size_t>(pending.bytes));
    pending.from = from;
    pending.bytes += bytes;
    std::swap(pending.active, pending.spare);
    const int64_t before = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(pending.to) % CACHE_LINE);
    if (before) pass_part(pending, before);
}

// After it, other threads see all that was added.
void finish(StreamBuffer& pending) {
    pass_all_lines(pending);
    pass_part(pending, pending.bytes);
    fence();
}

// Where some rows stand.
struct RowGroup {
    const char* x;
    char* y;
    int64_t x_row, y_row, y_feature;
    int64_t first, count;      // which ones they are
    int64_t x_ahead, y_ahead;  // from a row of x, of y, to the one that is fetched meanwhile; 0 for none
    StreamBuffer* pending;          // what goes on its way meanwhile
};

// Calls turn(place) for a few rows at a time, and for the same of all runs in turn, as they have the same tables. Rows
// that are streamed are written into scratch.
template <class Turn>
inline void turn_groups(const Rows& rows, int64_t bytes, int64_t size, const Turn& turn) {
    const int64_t group = bytes < GROUP_BYTES ? GROUP_BYTES / bytes : 1;
    StreamBuffer& pending = *rows.stream;
    for (int64_t r = 0; r < rows.count; r += group) {
        const int64_t count = rows.count - r < group ? rows.count - r : group;
        const char* x = rows.x + r * rows.x_row;
        char* y = rows.y + r * rows.y_row;
        const bool last = r + count == rows.count;
        const char* const next_x = last ? rows.next_x : x + count * rows.x_row;
        const char* const next_y = last ? rows.next_y : y + count * rows.y_row;
        for (int64_t run = 1; run <= rows.runs; ++run, x += rows.x_run, y += rows.y_run) {
            const int64_t x_ahead = !rows.next_x ? 0 : run < rows.runs ? rows.x_run : next_x - x;
            const int64_t y_ahead = !rows.next_y ? 0 : run < rows.runs ? rows.y_run : next_y - y;
            if (rows.streamed) {
                turn(RowGroup{x, pending.active, rows.x_row, bytes, size, r, count, x_ahead, 0, &pending});
                add(pending, y, count * bytes);
            } else {
                turn(RowGroup{x, y, rows.x_row, rows.y_row, rows.y_feature, r, count, x_ahead, y_ahead, &pending});
            }
        }
    }
}

// Cos and sin of some lanes from tables, row after row: of `packs` packs side by side.
template <class Number, int W, int packs>
class Tables {
    using Real = Pack<Number, W>;

  public:
    Tables(const char* cos, const char* sin, int64_t cos_row, int64_t sin_row)
        : cos_(cos), sin_(sin), cos_row_(cos_row), sin_row_(sin_row) {}

    template <int K>
    ROPE_INLINE void next(Real (&cos)[K * packs], Real (&sin)[K * packs]) {
        each<K>([&](auto k) ROPE_ALWAYS {
            each<packs>([&](auto c) ROPE_ALWAYS {
                cos[k * packs + c] = load<Real>(cos_ + c * sizeof(Real));
                sin[k * packs + c] = load<Real>(sin_ + c * sizeof(Real));
            });
            cos_ += cos_row_;
            sin_ += sin_row_;
        });
    }

  private:
    const char *cos_, *sin_;
    const int64_t cos_row_, sin_row_;
};

// Tables of rows: those of one, and where the next ones are.
template <class Number>
struct TablesFrom {
    const char *cos, *sin;
    int64_t cos_row, sin_row;

    TablesFrom from(int64_t row) const { return {cos + row * cos_row, sin + row * sin_row, cos_row, sin_row}; }

    // Lanes at a time: in several packs, where registers are narrow, as little is done with each.
    static constexpr int LANES = WIDTH > 1 ? 16 : 1;

    template <int W>
    static constexpr int ROWS = 1;  // at a time

    template <int W, int packs>
    Tables<Number, W, packs> of(int64_t lane) const {
        const int64_t bytes = lane * static_cast<int64_t>(sizeof(Number));
        return {cos + bytes, sin + bytes, cos_row, sin_row};
    }
};

struct AnglesFrom {
    const Frequencies& words;
    const Positions& positions;

    static constexpr int LANES = WIDTH;

    template <int W>
    static constexpr int ROWS = AT_ONCE<W>;

    template <int W, int packs>
    Angles<W> of(int64_t lane) const {
        static_assert(packs == 1, "more of them would not stay in registers");
        return {words, positions, lane};
    }
};

// The pairs of one block, n in each row: for some lanes all rows are done in turn, so that what is of the lanes stays
// in registers.
template <class T, bool reads_half, bool writes_half, class Source>
struct TurnBlock {
    const Source& source;
    const RowGroup& place;
    const char* x;
    char* y;
    int64_t lane;
    int64_t n;

    template <int lanes>
    void at(int64_t i) const {
        constexpr int W = lanes < T::W ? lanes : T::W, packs = lanes / W, rows = Source::template ROWS<W>;
        constexpr int64_t size = sizeof(typename T::Stored), share = 2 * lanes * size;  // of a row
        constexpr int64_t x_pack = W * size * (reads_half ? 1 : 2), y_pack = W * size * (writes_half ? 1 : 2);
        using Real = Pack<typename T::Real, W>;
        const int64_t x_step = place.x_row, y_step = place.y_row, apart = size * n;
        const int64_t from_x = reads_half ? size * i : 2 * size * i, from_y = writes_half ? size * i : 2 * size * i;
        const bool fetches_x = place.x_ahead && from_x % CACHE_LINE == 0, fetches_y = place.y_ahead && from_y % CACHE_LINE == 0;
        const int64_t x_ahead = place.x_ahead, y_ahead = place.y_ahead;
        const char* from = x + from_x;
        char* to = y + from_y;
        auto angles = source.template of<W, packs>(lane + i);
        StreamBuffer pending = *place.pending;  // in registers
        for_rows<rows>(place.count, [&](auto some) ROPE_ALWAYS {
            constexpr int K = some;
            Real cos[K * packs], sin[K * packs];
            angles.template next<K>(cos, sin);
            each<K>([&](auto k) ROPE_ALWAYS {
                if (fetches_x) fetch<reads_half, share>(from + x_ahead, apart);
                if (fetches_y) fetch<writes_half, share>(to + y_ahead, apart);
                each<packs>([&](auto c) ROPE_ALWAYS {
                    turn_pairs<T, reads_half, writes_half, W>(from + c * x_pack, to + c * y_pack, apart,
                                                              cos[k * packs + c], sin[k * packs + c]);
                });
                from += x_step;
                to += y_step;
            });
            pass_lines<K * share / CACHE_LINE>(pending);
        });
        *place.pending = pending;
    }
};

// While a line of x is made one of y: asks for the lines that come later, and lets one go that was made before.
ROPE_INLINE void meanwhile(const RowGroup& place, StreamBuffer& pending, const char* x, const char* y) {
    if (place.x_ahead) fetch<false, CACHE_LINE>(x + place.x_ahead, 0);
    if (place.y_ahead) fetch<false, CACHE_LINE>(y + place.y_ahead, 0);
    pass_lines<1>(pending);
}

// What stands in some bytes of each row and is not rotated.
inline void copy_features(const RowGroup& place, int64_t from, int64_t to) {
    StreamBuffer pending = *place.pending;
    for (int64_t r = 0; r < place.count; ++r) {
        const char* const x = place.x + r * place.x_row;
        char* const y = place.y + r * place.y_row;
        for (int64_t i = from; i < to; i += CACHE_LINE) {
            if (to - i < CACHE_LINE)
                std::memcpy(y + i, x + i, static_cast<size_t>(to - i));
            else
                std::memcpy(y + i, x + i, CACHE_LINE);
            meanwhile(place, pending, x + i, y + i);
        }
    }
    *place.pending = pending;
}

inline void copy_rest(const Layout& at, const RowGroup& place, int64_t size) {
    if (2 * at.num_pairs == at.head_dim || place.x == place.y) return;
    copy_features(place, 0, size * at.start);
    copy_features(place, size * (at.start + 2 * at.num_pairs), size * at.head_dim);
}

template <class T, bool reads_half, bool writes_half, class Source>
inline void turn_rows(const Layout& at, const RowGroup& place, const Source& source) {
    constexpr int64_t size = sizeof(typename T::Stored);
    using Block = TurnBlock<T, reads_half, writes_half, Source>;
    copy_rest(at, place, size);
    const int64_t n = pairs_of_block(at);
    for (int64_t i = 0; i < at.num_pairs; i += n) {
        const int64_t from = (at.start + 2 * i) * size;
        for_each<Source::LANES>(n, Block{source, place, place.x + from, place.y + from, i, n});
    }
}

// The pairs of one block of one row by its tables.
template <class T, bool reads_half, bool writes_half>
struct TurnRow {
    const char* x;
    char* y;
    const typename T::Real* cos;
    const typename T::Real* sin;
    int64_t apart;

    template <int lanes>
    void at(int64_t i) const {
        constexpr int W = lanes < T::W ? lanes : T::W;
        constexpr int64_t size = sizeof(typename T::Stored);
        using Real = Pack<typename T::Real, W>;
        each<lanes / W>([&](auto c) ROPE_ALWAYS {
            const int64_t k = i + c * W;
            const int64_t from_x = size * (reads_half ? k : 2 * k), from_y = size * (writes_half ? k : 2 * k);
            turn_pairs<T, reads_half, writes_half, W>(x + from_x, y + from_y, apart, load<Real>(cos + k),
                                                      load<Real>(sin + k));
        });
    }
};

// The same as `turn_rows`, row by row: for each column of lanes more is done once than is won over a few rows.
template <class T, bool reads_half, bool writes_half>
inline void turn_few(const Layout& at, const RowGroup& place, const TablesFrom<typename T::Real>& tables) {
    using Number = typename T::Real;
    constexpr int64_t size = sizeof(typename T::Stored);
    copy_rest(at, place, size);
    const int64_t n = pairs_of_block(at);
    for (int64_t r = 0; r < place.count; ++r) {
        const char* const x = place.x + r * place.x_row + size * at.start;
        char* const y = place.y + r * place.y_row + size * at.start;
        const TablesFrom<Number> here = tables.from(r);
        const Number* const cos = reinterpret_cast<const Number*>(here.cos);
        const Number* const sin = reinterpret_cast<const Number*>(here.sin);
        using Row = TurnRow<T, reads_half, writes_half>;
        for (int64_t i = 0; i < at.num_pairs; i += n)
            for_each<here.LANES>(n, Row{x + 2 * i * size, y + 2 * i * size, cos + i, sin + i, n * size});
        if (place.x_ahead || place.y_ahead || place.pending->bytes)
            for (int64_t i = 0; i < 2 * at.num_pairs * size; i += CACHE_LINE) meanwhile(place, *place.pending, x + i, y + i);
    }
}

// One head at a time, through scratch.
template <class T, bool reads_half, bool writes_half>
inline void turn_staged(const Layout& at, const Rows& rows, const RowGroup& place,
                        const TablesFrom<typename T::Real>& tables) {
    using Stored = typename T::Stored;
    Stored* const in = reinterpret_cast<Stored*>(rows.scratch);
    Stored* const out = in + at.head_dim;
    for (int64_t k = 0; k < place.count; ++k) {
        const char* const x = place.x + k * place.x_row;
        const RowGroup head = {rows.scratch, reinterpret_cast<char*>(out), 0, 0, 0, 0, 1, 0, 0, place.pending};
        if (place.x_ahead)
            for (int64_t i = 0; i < at.head_dim * static_cast<int64_t>(sizeof(Stored)); i += CACHE_LINE)
                fetch<false, CACHE_LINE>(x + place.x_ahead + i, 0);
        gather(x, rows.x_feature, in, at.head_dim);
        turn_few<T, reads_half, writes_half>(at, head, tables.from(k));
        scatter(out, place.y + k * place.y_row, place.y_feature, at.head_dim);
    }
}

template <class T, bool reads_half, bool writes_half>
inline void turn_by_tables(const Layout& at, const Rows& rows) {
    constexpr int64_t size = sizeof(typename T::Stored);
    const int64_t few = at.num_pairs > 128 ? at.num_pairs / 32 : 4;  // measured: with so many rows, columns are not slower
    const TablesFrom<typename T::Real> tables = {rows.cos, rows.sin, rows.cos_row, rows.sin_row};
    turn_groups(rows, at.head_dim * size, size, [&](const RowGroup& place) {
        const auto here = tables.from(place.first);
        if (rows.staged)
            turn_staged<T, reads_half, writes_half>(at, rows, place, here);
        else if (place.count < few)
            turn_few<T, reads_half, writes_half>(at, place, here);
        else
            turn_rows<T, reads_half, writes_half>(at, place, here);
    });
}

template <class T, bool reads_half, bool writes_half>
inline void turn_by_positions(const Layout& at, const Rows& rows) {
    constexpr int64_t size = sizeof(typename T::Stored);
    turn_groups(rows, at.head_dim * size, size, [&](const RowGroup& place) {
        RowGroup some = place;
        for (const int64_t end = place.first + place.count; some.first < end; some.first += some.count) {
            const Positions here = stretch(rows.positions, some.first, end - some.first);
            some.count = here.count;
            turn_rows<T, reads_half, writes_half>(at, some, AnglesFrom{*rows.frequencies, here});
            some.x += here.count * some.x_row;
            some.y += here.count * some.y_row;
        }
    });
}

template <class T, bool reads_half, bool writes_half>
void turn_all(const Layout& at, const Rows& rows) {
    if constexpr (sizeof(typename T::Real) == 4) {
        if (rows.frequencies) return turn_by_positions<T, reads_half, writes_half>(at, rows);
    }
    turn_by_tables<T, reads_half, writes_half>(at, rows);
}

template <class T>
void rotate(const Layout& at, const Rows& rows) {
    if (at.reads_half)
        at.writes_half ? turn_all<T, true, true>(at, rows) : turn_all<T, true, false>(at, rows);
    else
        at.writes_half ? turn_all<T, false, true>(at, rows) : turn_all<T, false, false>(at, rows);
}

}  // namespace

#define ROPE_JOIN(a, b) a##b
#define ROPE_LEVEL(name) ROPE_JOIN(level_, name)
extern const Level ROPE_LEVEL(ROPE_NAME);
const Level ROPE_LEVEL(ROPE_NAME) = {
    ROPE_LABEL,
    angles32,
    angles64,
    finish,
    {rotate<AsIs<float>>, rotate<AsIs<double>>, rotate<Sixteen<Float16Bits>>, rotate<BFloat16>}};

}  // namespace rope
