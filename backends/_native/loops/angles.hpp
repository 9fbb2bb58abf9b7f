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

// Positions whose cos and sin are computed together: the K of cos_sin(). Fewer if there are fewer registers.
template <int W>
constexpr int POSITIONS_AT_ONCE = W == 16 ? 4 : W > 1 ? 2 : 1;

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
//     next()    the upper 32 bits of every lane: one vector of W lanes; then phase_ += step_
//
// Valid for all int64 positions and steps: the sums are exact modulo 2^64, so the bits equal a product's.
template <int W>
class PhaseSequence {
    static constexpr int HALF = W > 1 ? W / 2 : 1;
    using Long = Vec<uint64_t, HALF>;

  public:
    PhaseSequence(const Frequencies& frequencies, const Positions& positions, int64_t pair) {
        const int64_t* const first = positions.values;
        const int64_t* const second = positions.count > 1 ? first + positions.num_coordinates : first;
        for (int half = 0; half < W / HALF; ++half, pair += HALF) {
            const Long turns = load<Long>(frequencies.turns_q64 + pair);
            const Long start = driving_coordinates(frequencies, first, pair);
            phase_[half] = turns_at(start, turns);
            step_[half] = turns_at<Long>(driving_coordinates(frequencies, second, pair) - start, turns);
        }
        if constexpr (W > 1) {
            HighHalves<W>::split(phase_[0], phase_[1]);
            HighHalves<W>::split(step_[0], step_[1]);
        }
    }

    Vec<uint32_t, W> next() {
        const Vec<uint32_t, W> phase = high_halves();
        for (int half = 0; half < W / HALF; ++half) phase_[half] += step_[half];
        return phase;
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

// Cos and sin of W pairs at evenly spaced positions, in order: errors as of cos_sin(), before the amplitude.
template <int W>
class CosSinSequence {
    using Real = Vec<float, W>;

  public:
    CosSinSequence(const Frequencies& frequencies, const Positions& positions, int64_t pair)
        : phases_(frequencies, positions, pair),
          cos_amplitude_(static_cast<float>(frequencies.cos_amplitude)),
          sin_amplitude_(static_cast<float>(frequencies.sin_amplitude)),
          scaled_(cos_amplitude_ != 1.0f || sin_amplitude_ != 1.0f) {}

    template <int K>
    ROPE_INLINE void next(Real (&cos)[K], Real (&sin)[K]) {
        Vec<uint32_t, W> phase[K];
        unroll<K>([&](auto k) ROPE_ALWAYS { phase[k] = phases_.next(); });
        cos_sin<VectorOps, uint32_t, float>(phase, cos, sin);
        if (!scaled_) return;
        unroll<K>([&](auto k) ROPE_ALWAYS {
            cos[k] = cos[k] * cos_amplitude_;
            sin[k] = sin[k] * sin_amplitude_;
        });
    }

  private:
    PhaseSequence<W> phases_;
    float cos_amplitude_, sin_amplitude_;
    bool scaled_;
};

// Return the longest prefix of the positions from `begin` on that is evenly spaced, `max_count` at most. With
// n = 2 coordinates, 4 positions and a prefix of 3:
//
//     first     3 0   4 2   5 4   9 9
//     step       1 2   1 2   4 5          each coordinate against its value n numbers before
inline Positions evenly_spaced_from(const Positions& positions, int64_t begin, int64_t max_count) {
    const int64_t n = positions.num_coordinates, remaining = positions.count - begin;
    const int64_t* const first = positions.values + begin * n;
    const int64_t end = (remaining < max_count ? remaining : max_count) * n;
    // Compare differences modulo 2^64, as phases are summed modulo 2^64.
    auto at = [first](int64_t i) { return static_cast<uint64_t>(first[i]); };
    int64_t k = 2 * n;
    while (k < end && at(k) - at(k - n) == at(k - n) - at(k - 2 * n)) ++k;
    return {first, k < end ? k / n : end / n, n};
}

// Make float tables at evenly spaced positions: at<W>(i) writes W columns of both tables, row by row, keeping
// the pairs' phases in registers.
//
//     cos    [num_pairs]   . . . i | W pairs | . . .    position 0
//                          . . . i | W pairs | . . .    position 1
struct MakeTables32 {
    const Frequencies& frequencies;
    const Positions& positions;
    float* cos;
    float* sin;

    template <int W>
    void at(int64_t i) const {
        const int64_t num_pairs = frequencies.num_pairs;
        CosSinSequence<W> angles(frequencies, positions, i);
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
        const Word high = load<Word>(frequencies.turns_q96_high + i), low = load<Word>(frequencies.turns_q96_low + i);
        const double cos_amplitude = frequencies.cos_amplitude, sin_amplitude = frequencies.sin_amplitude;
        const int64_t count = positions.count, num_pairs = frequencies.num_pairs, step = positions.num_coordinates;
        for (int64_t r = 0; r < count; ++r) {
            const int64_t* const position = positions.values + r * step;
            uint64_t values[W], high_values[W];
            for (int k = 0; k < W; ++k) {
                const int64_t value = position[frequencies.coordinate ? frequencies.coordinate[i + k] : 0];
                values[k] = static_cast<uint64_t>(value);
                high_values[k] = static_cast<uint64_t>(value >> 32);
            }
            const Word p = load<Word>(values), p_high = load<Word>(high_values);
            const Word phase[1] = {phase_at(p, p_high, high, low)};
            Vec<double, W> c[1], s[1];
            cos_sin<VectorOps, uint64_t, double>(phase, c, s);
            store(cos + r * num_pairs + i, c[0] * cos_amplitude);
            store(sin + r * num_pairs + i, s[0] * sin_amplitude);
        }
    }
};

// Write float tables of all pairs at all positions. Max error at int32 positions: 9.5e-8, or 1.7e-7 ·
// amplitude if it is not 1. At int64 positions, 2π · |position| · 2^-65 · amplitude is added.
inline void make_tables32(const Frequencies& frequencies, const Positions& positions, float* cos, float* sin) {
    const int64_t num_pairs = frequencies.num_pairs;
    for (int64_t r = 0; r < positions.count;) {
        const Positions run = evenly_spaced_from(positions, r, positions.count);
        for_chunks<WIDTH>(num_pairs, MakeTables32{frequencies, run, cos + r * num_pairs, sin + r * num_pairs});
        r += run.count;
    }
}

// Write double tables of all pairs at all positions. Max error at int32 positions: 1.7e-16, or
// 3.1e-16 · amplitude if it is not 1. At int64 positions, 2π · |position| · 2^-97 · amplitude is added.
inline void make_tables64(const Frequencies& frequencies, const Positions& positions, double* cos, double* sin) {
    for_chunks<(WIDTH > 1 ? WIDTH / 2 : 1)>(frequencies.num_pairs, MakeTables64{frequencies, positions, cos, sin});
}

}  // namespace
}  // namespace rope
