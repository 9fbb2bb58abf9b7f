// The inner loops. This file is compiled once for each level of instructions, and must not use inline functions
// with a name that other files have: the linker keeps one copy of such a function, which might be that of a
// level the processor does not have.
#include "kernel.hpp"
#include "pack.hpp"

namespace rope {
namespace {

// Calls step<W>(i) for i = 0, W, ... while W numbers are left, then step<1>(i) for the rest. Each number goes
// through the same operations either way, so its bits do not depend on where it stands.
template <int W, class Step>
inline void for_each(int64_t n, const Step& step) {
    int64_t i = 0;
    for (; i + W <= n; i += W) step.template at<W>(i);
    if (W > 1)
        for (; i < n; ++i) step.template at<1>(i);
}

// ---- positions to cos and sin ----

// The minimax polynomials of rope_array/_angles.py, which says what their errors are.
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

// Cos and sin of phases in units of 2^-32 turns.
template <int W>
struct Turns32 {
    using Real = Pack<float, W>;
    using Word = Pack<uint32_t, W>;

    static void cos_sin(Word phase, Real& cos, Real& sin) {
        // In eighths of a turn from the nearest axis.
        const Real u = Convert<float, W>::of(bits<Pack<int32_t, W>>(phase << 2)) * 0x1p-31f;
        const Real z = u * u;
        const Real c = (((z * C32[3] + C32[2]) * z + C32[1]) * z + C32[0]) * z + 1.0f;
        const Real s = u * (((z * S32[3] + S32[2]) * z + S32[1]) * z + S32[0]);
        const Word quadrant = phase + 0x20000000u;  // its number is in the two upper bits
        const auto odd = (quadrant & 0x40000000u) != 0;
        const Real of_cos = odd ? s : c, of_sin = odd ? c : s;
        cos = bits<Real>(bits<Word>(of_cos) ^ ((quadrant + 0x40000000u) & 0x80000000u));
        sin = bits<Real>(bits<Word>(of_sin) ^ (quadrant & 0x80000000u));
    }
};

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

// Cos and sin of some lanes at a position: (position · F mod 2^64) >> 32 is the phase, F = high·2^32 + low.
template <int W, bool several>
inline void cos_sin_of(const Words& words, const int64_t* position, int64_t i, Pack<float, W>& cos, Pack<float, W>& sin) {
    using Word = Pack<uint32_t, W>;
    Word below, above;
    if constexpr (several) {
        uint32_t halves[2][W];
        for (int k = 0; k < W; ++k) {
            const uint64_t p = static_cast<uint64_t>(position[words.coordinate[i + k]]);
            halves[0][k] = static_cast<uint32_t>(p);
            halves[1][k] = static_cast<uint32_t>(p >> 32);
        }
        below = load<Word>(halves[0]);
        above = load<Word>(halves[1]);
    } else {
        below = all<Word>(static_cast<uint32_t>(static_cast<uint64_t>(*position)));
        above = all<Word>(static_cast<uint32_t>(static_cast<uint64_t>(*position) >> 32));
    }
    const Word high = load<Word>(words.high64 + i), low = load<Word>(words.low64 + i);
    Turns32<W>::cos_sin(below * high + above * low + high_product(below, low), cos, sin);
    cos = cos * static_cast<float>(words.amplitude);
    sin = sin * static_cast<float>(words.sin_amplitude);
}

// For some lanes all positions are done in turn: what is of the lanes stays in registers.
template <bool several>
struct Angles32 {
    const Words& words;
    const Positions& positions;
    float* cos;
    float* sin;

    template <int W>
    void at(int64_t i) const {
        const Words here = words;
        for (int64_t r = 0; r < positions.count; ++r) {
            Pack<float, W> c, s;
            cos_sin_of<W, several>(here, positions.first + r * positions.coordinates, i, c, s);
            store(cos + r * here.lanes + i, c);
            store(sin + r * here.lanes + i, s);
        }
    }
};

// (position · F mod 2^96) >> 32, F = upper·2^32 + lower.
struct Angles64 {
    const Words& words;
    const Positions& positions;
    double* cos;
    double* sin;

    template <int W>
    void at(int64_t i) const {
        using Word = Pack<uint64_t, W>;
        const Word upper = load<Word>(words.upper96 + i), lower = load<Word>(words.lower96 + i);
        const double amplitude = words.amplitude, sin_amplitude = words.sin_amplitude;
        const int64_t count = positions.count, lanes = words.lanes, step = positions.coordinates;
        for (int64_t r = 0; r < count; ++r) {
            const int64_t* const position = positions.first + r * step;
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

void angles32(const Words& words, const Positions& positions, float* cos, float* sin) {
    if (words.coordinate)
        for_each<WIDTH>(words.lanes, Angles32<true>{words, positions, cos, sin});
    else
        for_each<WIDTH>(words.lanes, Angles32<false>{words, positions, cos, sin});
}

void angles64(const Words& words, const Positions& positions, double* cos, double* sin) {
    for_each<(WIDTH > 1 ? WIDTH / 2 : 1)>(words.lanes, Angles64{words, positions, cos, sin});
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
    static void write(T* to, Pack<T, N> pack) {
        store(to, pack);
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
    static void write(uint16_t* to, Pack<float, N> pack) {
        store(to, narrow16(Bits::template narrow<N>(pack)));
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

struct Float16Bits {
    // Exponent and fraction are moved into place; subnormal numbers are integers times 2^-24; Inf and NaN have all
    // bits of the exponent. No operand is a subnormal float32, which the processor may be told to take as 0.
    template <int N>
    static Pack<float, N> widen(Pack<uint32_t, N> v) {
#if defined(__F16C__)
        if constexpr (N == 8) return bits<Pack<float, N>>(_mm256_cvtph_ps(bits<__m128i>(narrow16(v))));
#if defined(__AVX512F__)
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
        if constexpr (N == 8) return widen16(bits<Pack<uint16_t, N>>(_mm256_cvtps_ph(bits<__m256>(v), 0)));
#if defined(__AVX512F__)
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

// Where cos and sin of a head's lanes are from: tables, or made on the way where they serve one head only.
template <class Real>
struct Tables {
    const Real* cos;
    const Real* sin;

    template <int W>
    void at(int64_t i, Pack<Real, W>& c, Pack<Real, W>& s) const {
        c = load<Pack<Real, W>>(cos + i);
        s = load<Pack<Real, W>>(sin + i);
    }
};

template <bool several>
struct Made {
    Words words;
    const int64_t* position;

    template <int W>
    void at(int64_t i, Pack<float, W>& c, Pack<float, W>& s) const {
        cos_sin_of<W, several>(words, position, i, c, s);
    }
};

// The pairs of one block, n of them.
template <class T, bool reads_half, bool writes_half, class Angles>
struct Turn {
    const typename T::Stored* x;
    typename T::Stored* y;
    const Angles& angles;
    int64_t lane;
    int64_t n;

    template <int W>
    void at(int64_t i) const {
        using Real = Pack<typename T::Real, W>;
        Real a, b;
        if constexpr (reads_half) {
            a = T::template read<W>(x + i);
            b = T::template read<W>(x + n + i);
        } else {
            T::template read_pairs<W>(x + 2 * i, a, b);
        }
        Real c, s;
        angles.template at<W>(lane + i, c, s);
        const Real first = a * c - b * s, second = b * c + a * s;
        if constexpr (writes_half) {
            T::template write<W>(y + i, first);
            T::template write<W>(y + n + i, second);
        } else {
            T::template write_pairs<W>(y + 2 * i, first, second);
        }
    }
};

// One head, its features side by side.
template <class T, bool reads_half, bool writes_half, class Angles>
inline void turn_head(const Layout& at, const typename T::Stored* x, typename T::Stored* y, const Angles& angles) {
    const int64_t stop = at.start + 2 * at.lanes, n = at.blocks == 1 ? at.lanes : at.lanes / at.blocks;
    if (2 * at.lanes != at.head_dim && x != y) {
        std::memcpy(y, x, sizeof *x * at.start);
        std::memcpy(y + stop, x + stop, sizeof *x * (at.head_dim - stop));
    }
    for (int64_t i = 0; i < at.lanes; i += n) {
        const int64_t from = at.start + 2 * i;
        for_each<T::W>(n, Turn<T, reads_half, writes_half, Angles>{x + from, y + from, angles, i, n});
    }
}

// Features that stand apart, or not where their type may stand, to and from a head of scratch.
template <class Stored>
inline void gather(const char* x, int64_t step, Stored* head, int64_t n) {
    for (int64_t i = 0; i < n; ++i) std::memcpy(head + i, x + i * step, sizeof *head);
}

template <class Stored>
inline void scatter(const Stored* head, char* y, int64_t step, int64_t n) {
    for (int64_t i = 0; i < n; ++i) std::memcpy(y + i * step, head + i, sizeof *head);
}

// Asks for a row that comes later: the processor does so itself only inside a page, and waits at each new one.
inline void fetch(const char* x, int64_t bytes) {
#if defined(__GNUC__)
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(x + i);
#else
    (void)x, (void)bytes;
#endif
}

template <class T, bool reads_half, bool writes_half, class Angles>
inline void turn_row(const Layout& at, const Rows& rows, const char* x, char* y, int64_t y_feature,
                     const Angles& angles) {
    using Stored = typename T::Stored;
    if (rows.ahead) fetch(x + rows.ahead, at.head_dim * static_cast<int64_t>(sizeof(Stored)));
    if (rows.staged) {
        Stored* const in = reinterpret_cast<Stored*>(rows.scratch);
        Stored* const out = in + at.head_dim;
        gather(x, rows.x_feature, in, at.head_dim);
        turn_head<T, reads_half, writes_half>(at, in, out, angles);
        scatter(out, y, y_feature, at.head_dim);
    } else {
        turn_head<T, reads_half, writes_half>(at, reinterpret_cast<const Stored*>(x), reinterpret_cast<Stored*>(y),
                                              angles);
    }
}

// Some rows at a time where they are streamed: into scratch, and from there in whole lines.
template <class T, bool reads_half, bool writes_half, class AnglesOf>
inline void turn_rows(const Layout& layout, const Rows& given, const AnglesOf& angles_of) {
    using Stored = typename T::Stored;
    constexpr int64_t size = sizeof(Stored);
    const Layout at = layout;
    const Rows rows = given;
    if (!rows.streamed) {
        for (int64_t r = 0; r < rows.count; ++r)
            turn_row<T, reads_half, writes_half>(at, rows, rows.x + r * rows.x_row, rows.y + r * rows.y_row,
                                                 rows.y_feature, angles_of(r));
        return;
    }
    const int64_t bytes = at.head_dim * size, group = bytes < STAGE ? STAGE / bytes : 1;
    char* const stage = rows.scratch + 2 * bytes;
    for (int64_t r = 0; r < rows.count; r += group) {
        const int64_t count = rows.count - r < group ? rows.count - r : group;
        for (int64_t k = 0; k < count; ++k)
            turn_row<T, reads_half, writes_half>(at, rows, rows.x + (r + k) * rows.x_row, stage + k * bytes, size,
                                                 angles_of(r + k));
        stream(stage, rows.y + r * bytes, count * bytes);
    }
}

template <class T, bool reads_half, bool writes_half, bool several>
void turn_by_positions(const Layout& at, const Rows& rows) {
    const Words words = *rows.words;
    const Positions positions = rows.positions;
    turn_rows<T, reads_half, writes_half>(at, rows, [&](int64_t r) {
        return Made<several>{words, positions.first + r * positions.coordinates};
    });
}

template <class T, bool reads_half, bool writes_half>
void turn_by_tables(const Layout& at, const Rows& rows) {
    using Real = typename T::Real;
    const Rows from = rows;
    turn_rows<T, reads_half, writes_half>(at, rows, [&](int64_t r) {
        return Tables<Real>{reinterpret_cast<const Real*>(from.cos + r * from.cos_row),
                            reinterpret_cast<const Real*>(from.sin + r * from.sin_row)};
    });
}

template <class T, bool reads_half, bool writes_half>
void turn_all(const Layout& at, const Rows& rows) {
    if constexpr (sizeof(typename T::Stored) == 4) {
        if (rows.words)
            return rows.words->coordinate ? turn_by_positions<T, reads_half, writes_half, true>(at, rows)
                                          : turn_by_positions<T, reads_half, writes_half, false>(at, rows);
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
    written,
    {rotate<AsIs<float>>, rotate<AsIs<double>>, rotate<Sixteen<Float16Bits>>, rotate<Sixteen<BFloat16Bits>>}};

}  // namespace rope
