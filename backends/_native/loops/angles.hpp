// Compute cos and sin of vectors of pairs at integer positions.
#pragma once

#include "../simd.hpp"

namespace rope {
namespace {

// Call step.at<W>(i) for chunks of W of n numbers, then for smaller chunks: W/2, W/4, ... WIDTH, 4, 1.
//
//     n = 29, W = 16, WIDTH = 8    |       16       |   8    | 4  |1|
//
// Each number takes the same operations in every chunk, so its bits do not depend on i.
template <int W, class Step>
inline void for_chunks(int64_t n, const Step& step, int64_t i = 0) {
    for (; i + W <= n; i += W) step.template at<W>(i);
    constexpr int next = W > WIDTH ? W / 2 : W > 4 ? 4 : 1;
    if constexpr (W > 1) for_chunks<next>(n, step, i);
}

// Call step(K), a constant, for K rows at a time while at least K are left, then step(1) for each row.
template <int K, class Step>
ROPE_INLINE void for_rows(int64_t count, const Step& step) {
    for (; count >= K; count -= K) step(std::integral_constant<int, K>{});
    for (; count > 0; --count) step(std::integral_constant<int, 1>{});
}

// Vectors of cos and sin that are computed together: the K of cos_sin().
template <int W>
constexpr int POSITIONS_AT_ONCE = W == WIDTH && W > 4 ? 4 : W > 1 ? 2 : 1;

// The operations of cos_sin.h on vectors.
struct VectorOps {
    template <class Word>
    ROPE_INLINE static auto to_float(Word v) {
        return rope::to_float(v);
    }
    template <class To, class From>
    ROPE_INLINE static To bit_cast(From v) {
        return rope::bit_cast<To>(v);
    }
    template <class Word, class Bits>
    ROPE_INLINE static auto any_bit(Word v, Bits bits) {
        return rope::any_bit(v, bits);
    }
    template <class Mask, class Real>
    ROPE_INLINE static Real select(Mask mask, Real a, Real b) {
        return rope::select(mask, a, b);
    }
};

// Phases of W pairs in units of 2^-32 turns, (position · F mod 2^64) >> 32, at evenly spaced positions: one
// product for the first position and one for the step, then sums, all modulo 2^64.
//
//     phase_    pair 0: start · F0    pair 1: start · F1    ...    64 bits each: two vectors of W / 2 lanes
//     next()    splits the upper 32 bits of every lane: one vector of W lanes; then phase_ += step_
//
// If `in_blocks`, the pairs of a vector have the order of Shuffled in dtypes.hpp, which HighHalves::take() gives.
// Valid for all int64 positions and steps: the sums are exact modulo 2^64, so the bits equal a product's.
template <int W>
class PhaseSequence {
    static constexpr int HALF = W > 1 ? W / 2 : 1;
    using Long = Vec<uint64_t, HALF>;

  public:
    PhaseSequence(const Frequencies& frequencies, const Positions& positions, int64_t pair, bool in_blocks = false) {
        const int64_t* const first = positions.values;
        const int64_t* const second = positions.count > 1 ? first + positions.num_coordinates : first;
        for (int half = 0; half < W / HALF; ++half, pair += HALF) {
            const Long turns = load<Long>(frequencies.turns_q64 + pair);
            const Long start = driving_coordinates(frequencies, first, pair);
            phase_[half] = turns_at(start, turns);
            step_[half] = turns_at<Long>(driving_coordinates(frequencies, second, pair) - start, turns);
        }
        if constexpr (W > 1) {
            if (in_blocks) return;
            HighHalves<W>::split(phase_[0], phase_[1]);
            HighHalves<W>::split(step_[0], step_[1]);
        }
    }

    ROPE_INLINE void next(Vec<uint32_t, W>& quadrant, Vec<float, W>& u) {
        split_phase<VectorOps, uint32_t, float>(high_halves(), quadrant, u);
        for (int half = 0; half < W / HALF; ++half) phase_[half] += step_[half];
    }

  private:
    static Long driving_coordinates(const Frequencies& frequencies, const int64_t* position, int64_t pair) {
        if (!frequencies.coordinate) return splat<Long>(static_cast<uint64_t>(*position));
        uint64_t values[HALF];
        for (int k = 0; k < HALF; ++k) values[k] = static_cast<uint64_t>(position[frequencies.coordinate[pair + k]]);
        return load<Long>(values);
    }

    Vec<uint32_t, W> high_halves() const {
        if constexpr (W == 1)
            return static_cast<uint32_t>(phase_[0] >> 32);
        else
            return HighHalves<W>::take(phase_[0], phase_[1]);
    }

    Long phase_[W / HALF], step_[W / HALF];
};

// The same at positions of any spacing, integers or floats, by products for each: with F = high · 2^32 + low and an
// integer m, both low and m signed numbers of 32 bits, the phase modulo 2^32 is
//
//     (m · low >> 32) + m · high        and (m >> 32) · low for an m of 64 bits, whose lower half is taken first
//
// The angle of a fraction is added to u.
template <int W>
class PhaseProducts {
    using Words = Vec<uint32_t, W>;
    using Reals = Vec<float, W>;
    static constexpr int HALF = W > 1 ? W / 2 : 1;
    using Long = Vec<uint64_t, HALF>;
    using Wide = Vec<double, HALF>;

  public:
    PhaseProducts(const Frequencies& frequencies, const Positions& positions, int64_t pair)
        : positions_(positions), eighth_turns_(frequencies.eighth_turns + pair) {
        if (frequencies.coordinate) find_drivers(frequencies.coordinate + pair);
        Long turns[W / HALF], upper[W / HALF];
        Vec<float, HALF> eighths[W / HALF];
        for (int half = 0; half < W / HALF; ++half) {
            turns[half] = load<Long>(frequencies.turns_q64 + pair + half * HALF);
            upper[half] = (turns[half] + 0x80000000u) >> 32;
            if (positions.floats) eighths[half] = convert<float, HALF>(load<Wide>(eighth_turns_ + half * HALF));
        }
        low_ = low_halves<W>(turns);
        high_ = low_halves<W>(upper);
        if (positions.floats) std::memcpy(&eighths_, eighths, sizeof eighths);
    }

    ROPE_INLINE void next(Words& quadrant, Reals& u) {
        split_phase<VectorOps, uint32_t, float>(phase(), quadrant, u);
        if (positions_.floats) {
            const Reals eighths = at_pairs<float, W>(positions_.floats) * eighths_;
            quadrant += bit_cast<Words>(add_eighths<float, Reals>(u, eighths)) << 30;
        } else if (positions_.doubles) {
            add_in_double(quadrant, u);
        }
        at_ += positions_.num_coordinates;
    }

  private:
    // Set the different coordinates, and for each but the first the pairs that it drives; num_drivers_ to 0 if there are
    // more than fit.
    void find_drivers(const int64_t* coordinate) {
        int32_t is_driven[MAX_DRIVERS][W] = {};
        std::memcpy(coordinate_, coordinate, sizeof coordinate_);
        num_drivers_ = 0;
        for (int k = 0; k < W; ++k) {
            int d = 0;
            while (d < num_drivers_ && drivers_[d] != coordinate_[k]) ++d;
            if (d == MAX_DRIVERS) {
                num_drivers_ = 0;
                return;
            }
            drivers_[d] = coordinate_[k];
            num_drivers_ = d == num_drivers_ ? d + 1 : num_drivers_;
            is_driven[d][k] = -1;
        }
        for (int d = 1; d < num_drivers_; ++d) is_driven_[d] = load<Vec<int32_t, W>>(is_driven[d]);
    }

    // Return the number, cast to T, that drives each of N pairs from `first` on.
    template <class T, int N, class Number>
    ROPE_INLINE Vec<T, N> at_pairs(const Number* numbers, int first = 0) const {
        numbers += at_;
        if (N == 1 || !num_drivers_) {
            T chosen[N];
            for (int k = 0; k < N; ++k) chosen[k] = static_cast<T>(numbers[coordinate_[first + k]]);
            return load<Vec<T, N>>(chosen);
        }
        if (num_drivers_ == 1) return splat<Vec<T, N>>(static_cast<T>(numbers[drivers_[0]]));
        auto chosen = splat<Vec<T, N>>(static_cast<T>(numbers[drivers_[0]]));
        if constexpr (N > 1) {
            using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;  // of a mask
            for (int d = 1; d < num_drivers_; ++d) {
                const auto mask = load<Vec<int32_t, N>>(reinterpret_cast<const char*>(is_driven_ + d) + 4 * first);
                const Vec<Bits, N> is_driven = convert<Bits, N>(mask);
                chosen = is_driven ? splat<Vec<T, N>>(static_cast<T>(numbers[drivers_[d]])) : chosen;
            }
        }
        return chosen;
    }

    ROPE_INLINE Words phase() const {
        const Words m = at_pairs<uint32_t, W>(positions_.values);
        Words phase = m * high_;
        if constexpr (W == 1) {
            phase += static_cast<uint32_t>(low_product<uint64_t>(m, low_) >> 32);
        } else {
            const Long a = bit_cast<Long>(m), b = bit_cast<Long>(low_);
            phase += interleave_high_halves<W>(low_product(a, b), low_product(a >> 32, b >> 32));
        }
        return positions_.are_int32 ? phase : phase + upper_words() * low_;
    }

    // Return (m - its lower half with a sign) >> 32.
    Words upper_words() const {
        uint32_t upper[W];
        for (int k = 0; k < W; ++k) {
            const uint64_t m = static_cast<uint64_t>(positions_.values[at_ + coordinate_[k]]);
            upper[k] = static_cast<uint32_t>((m + 0x80000000u) >> 32);
        }
        return load<Words>(upper);
    }

    ROPE_INLINE void add_in_double(Words& quadrant, Reals& u) const {
        Long quarters[W / HALF];
        if constexpr (W == 1) {
            add_in_double(0, quarters[0], u);
        } else {
            auto lower = shuffle<Lower, HALF>(u, u), upper = shuffle<Upper, HALF>(u, u);
            add_in_double(0, quarters[0], lower);
            add_in_double(HALF, quarters[1], upper);
            u = shuffle<Lower, W>(lower, upper);
        }
        quadrant += low_halves<W>(quarters) << 30;
    }

    ROPE_INLINE void add_in_double(int first, Long& quarters, Vec<float, HALF>& u) const {
        Wide sum = convert<double, HALF>(u);
        const Wide fraction = at_pairs<double, HALF>(positions_.doubles, first);
        quarters = bit_cast<Long>(add_eighths<double, Wide>(sum, fraction * load<Wide>(eighth_turns_ + first)));
        u = convert<float, HALF>(sum);
    }

    const Positions positions_;
    int64_t at_ = 0;  // first coordinate of the next position
    const double* const eighth_turns_;
    static constexpr int MAX_DRIVERS = 4;
    int64_t coordinate_[W] = {}, drivers_[MAX_DRIVERS] = {};
    int num_drivers_ = 1;
    Vec<int32_t, W> is_driven_[MAX_DRIVERS];  // -1 for each pair of a driver
    Words low_, high_;
    Reals eighths_;
};

// Cos and sin of `vectors` adjacent vectors of W pairs at positions in order: errors as of cos_sin(), before the
// amplitude. `order` goes to the phases.
template <int W, template <int> class Phases, int vectors = 1>
class CosSinSequence {
    using Real = Vec<float, W>;

  public:
    template <class... Order>
    CosSinSequence(const Frequencies& frequencies, const Positions& positions, int64_t pair, Order... order)
        : CosSinSequence(std::make_integer_sequence<int, vectors>{}, frequencies, positions, pair, order...) {}

    template <int... v, class... Order>
    CosSinSequence(std::integer_sequence<int, v...>, const Frequencies& frequencies, const Positions& positions,
                   int64_t pair, Order... order)
        : phases_{Phases<W>(frequencies, positions, pair + v * W, order...)...},
          cos_amplitude_(static_cast<float>(frequencies.cos_amplitude)),
          sin_amplitude_(static_cast<float>(frequencies.sin_amplitude)),
          scaled_(cos_amplitude_ != 1.0f || sin_amplitude_ != 1.0f) {}

    template <int K>
    ROPE_INLINE void next(Real (&cos)[K * vectors], Real (&sin)[K * vectors]) {
        Vec<uint32_t, W> quadrant[K * vectors];
        Real u[K * vectors];
        unroll<K * vectors>([&](auto k) ROPE_ALWAYS { phases_[k % vectors].next(quadrant[k], u[k]); });
        cos_sin<VectorOps, uint32_t, float>(quadrant, u, cos, sin);
        if (!scaled_) return;
        unroll<K * vectors>([&](auto k) ROPE_ALWAYS {
            cos[k] = cos[k] * cos_amplitude_;
            sin[k] = sin[k] * sin_amplitude_;
        });
    }

  private:
    Phases<W> phases_[vectors];
    float cos_amplitude_, sin_amplitude_;
    bool scaled_;
};

// Return the longest prefix of positions that is evenly spaced; none of floats. With n = 2 coordinates, 4 positions
// and a prefix of 3:
//
//     first     3 0   4 2   5 4   9 9
//     step       1 2   1 2   4 5          each coordinate against its value n numbers before
inline Positions evenly_spaced(const Positions& positions) {
    if (positions.has_fractions()) return positions.from(0, 0);
    const int64_t n = positions.num_coordinates, end = positions.count * n;
    // Compare differences modulo 2^64, as phases are summed modulo 2^64.
    auto at = [&positions](int64_t i) { return static_cast<uint64_t>(positions.values[i]); };
    int64_t k = 2 * n;
    while (k < end && at(k) - at(k - n) == at(k - n) - at(k - 2 * n)) ++k;
    return positions.from(0, k < end ? k / n : positions.count);
}

// Return whether setting up a sequence for a prefix of positions costs more than a product for each.
inline bool is_short(const Positions& prefix, const Positions& positions) {
    constexpr int64_t MIN_SPACED = 8;
    return prefix.count < positions.count && prefix.count < MIN_SPACED;
}

// Make float tables: at<W>(i) writes W columns of both tables, row by row, keeping the pairs' phases in registers.
//
//     cos    [num_pairs]   . . . i | W pairs | . . .    position 0
//                          . . . i | W pairs | . . .    position 1
template <template <int> class Phases>
struct MakeTables32 {
    const Frequencies& frequencies;
    const Positions& positions;
    float* cos;
    float* sin;

    template <int W>
    void at(int64_t i) const {
        const int64_t num_pairs = frequencies.num_pairs;
        CosSinSequence<W, Phases> angles(frequencies, positions, i);
        float *to_cos = cos + i, *to_sin = sin + i;
        for_rows<POSITIONS_AT_ONCE<W>>(positions.count, [&](auto rows) ROPE_ALWAYS {
            constexpr int K = rows;
            Vec<float, W> c[K], s[K];
            angles.template next<K>(c, s);
            unroll<K>([&](auto k) ROPE_ALWAYS {
                store(to_cos, c[k]);
                store(to_sin, s[k]);
                to_cos += num_pairs;
                to_sin += num_pairs;
            });
        });
    }
};

// Make double tables from phases in units of 2^-64 turns: at<W>(i) writes W columns of both tables, for
// positions of any spacing.
struct MakeTables64 {
    const Frequencies& frequencies;
    const Positions& positions;
    double* cos;
    double* sin;

    template <int W>
    void at(int64_t i) const {
        using Word = Vec<uint64_t, W>;
        using Real = Vec<double, W>;
        const Word high = load<Word>(frequencies.turns_q96_high + i), low = load<Word>(frequencies.turns_q96_low + i);
        const double cos_amplitude = frequencies.cos_amplitude, sin_amplitude = frequencies.sin_amplitude;
        const int64_t count = positions.count, num_pairs = frequencies.num_pairs, step = positions.num_coordinates;
        for (int64_t r = 0; r < count; ++r) {
            uint64_t values[W], high_values[W];
            double fractions[W];
            for (int k = 0; k < W; ++k) {
                const int64_t at = r * step + (frequencies.coordinate ? frequencies.coordinate[i + k] : 0);
                const int64_t value = positions.values[at];
                values[k] = static_cast<uint64_t>(value);
                high_values[k] = static_cast<uint64_t>(value >> 32);
                fractions[k] = positions.doubles ? positions.doubles[at] : positions.floats ? positions.floats[at] : 0;
            }
            const Word p = load<Word>(values), p_high = load<Word>(high_values);
            Word quadrant[1];
            Real u[1], c[1], s[1];
            split_phase<VectorOps, uint64_t, double>(phase_at(p, p_high, high, low), quadrant[0], u[0]);
            if (positions.has_fractions()) {
                const Real eighths = load<Real>(fractions) * load<Real>(frequencies.eighth_turns + i);
                quadrant[0] += bit_cast<Word>(add_eighths<double, Real>(u[0], eighths)) << 62;
            }
            cos_sin<VectorOps, uint64_t, double>(quadrant, u, c, s);
            store(cos + r * num_pairs + i, c[0] * cos_amplitude);
            store(sin + r * num_pairs + i, s[0] * sin_amplitude);
        }
    }
};

// Write float tables of all pairs at all positions. Max error at int32 positions: 9.5e-8, or 1.7e-7 ·
// amplitude if it is not 1. At int64 positions, 2π · |position| · 2^-65 · amplitude is added.
ROPE_NOINLINE void make_tables32(const Frequencies& frequencies, const Positions& positions, float* cos, float* sin) {
    const int64_t num_pairs = frequencies.num_pairs;
    for (int64_t r = 0; r < positions.count;) {
        const Positions rest = positions.from(r, positions.count - r), spaced = evenly_spaced(rest);
        float *const to_cos = cos + r * num_pairs, *const to_sin = sin + r * num_pairs;
        if (is_short(spaced, rest))
            return for_chunks<WIDTH>(num_pairs, MakeTables32<PhaseProducts>{frequencies, rest, to_cos, to_sin});
        for_chunks<WIDTH>(num_pairs, MakeTables32<PhaseSequence>{frequencies, spaced, to_cos, to_sin});
        r += spaced.count;
    }
}

// Write double tables of all pairs at all positions. Max error at int32 positions: 1.7e-16, or
// 3.1e-16 · amplitude if it is not 1. At int64 positions, 2π · |position| · 2^-97 · amplitude is added.
inline void make_tables64(const Frequencies& frequencies, const Positions& positions, double* cos, double* sin) {
    for_chunks<(WIDTH > 1 ? WIDTH / 2 : 1)>(frequencies.num_pairs, MakeTables64{frequencies, positions, cos, sin});
}

}  // namespace
}  // namespace rope
