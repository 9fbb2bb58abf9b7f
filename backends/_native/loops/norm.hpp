// Rotate rows after RMSNorm, and convert rows to the dtype of a cache. The sum has the order of
// rope_array/_array_api/norm.py at every level.
#pragma once

#include "rotate.hpp"

namespace rope {
namespace {

constexpr int COLUMNS = 64;

// Add the second half of the vectors to the first until one is left.
template <int vectors, class Real, int N>
ROPE_INLINE void fold_vectors(Real (&total)[N]) {
    if constexpr (vectors > 1) {
        unroll<vectors / 2>([&](auto v) ROPE_ALWAYS { total[v] = total[v] + total[v + vectors / 2]; });
        fold_vectors<vectors / 2>(total);
    }
}

// Take the lower or the upper halves of runs of `run` lanes of a followed by b.
template <int run, bool upper>
struct HalvesOfRuns {
    static constexpr int at(int k, int) { return k / (run / 2) * run + k % (run / 2) + (upper ? run / 2 : 0); }
};

// Fold the lanes of W vectors into one vector of their sums, for W = 4:
//
//     v[0]  a0 a1 a2 a3        a0 + a2  a1 + a3  b0 + b2  b1 + b3        (a0 + a2) + (a1 + a3)  b  c  d
//     v[1]  b0 b1 b2 b3        c0 + c2  c1 + c3  d0 + d2  d1 + d3
//     v[2]  c0 c1 c2 c3
//     v[3]  d0 d1 d2 d3
template <int W, int run = W, class Real, int N>
ROPE_INLINE void fold_lanes(Real (&v)[N]) {
    if constexpr (run > 1) {
        unroll<run / 2>([&](auto i) ROPE_ALWAYS {
            v[i] = shuffle<HalvesOfRuns<run, false>, W>(v[2 * i], v[2 * i + 1]) +
                   shuffle<HalvesOfRuns<run, true>, W>(v[2 * i], v[2 * i + 1]);
        });
        fold_lanes<W, run / 2>(v);
    }
}

// Return the sums of 64 columns, added from the first to the last and folded to the lanes of one vector. term<W>(i)
// returns the terms of W features from i on.
template <class Number, int W, class Term>
ROPE_INLINE Vec<Number, W> sum_of_columns(int64_t width, const Term& term) {
    constexpr int vectors = COLUMNS / W;
    Vec<Number, W> total[vectors] = {};
    int64_t i = 0;
    for (; i + COLUMNS <= width; i += COLUMNS)
        unroll<vectors>([&](auto v) ROPE_ALWAYS { total[v] = total[v] + term.template at<W>(i + v * W); });
    if (i < width) {  // columns without a feature are zeros
        Number last[COLUMNS] = {};
        for (Number* to = last; i < width; ++i) *to++ = term.template at<1>(i);
        unroll<vectors>([&](auto v) ROPE_ALWAYS { total[v] = total[v] + load<Vec<Number, W>>(last + v * W); });
    }
    fold_vectors<vectors>(total);
    return total[0];
}

template <class T>
struct SquareTerm {
    const typename T::Stored* x;

    template <int W>
    auto at(int64_t i) const {
        const auto v = T::template read<W>(x + i);
        return v * v;
    }
};

// Compute 1 / sqrt(mean of squares + eps) of up to T::W rows together: a root takes as long as many products.
template <class T>
inline void inverse_rms(const char* x, int64_t x_row, int64_t count, int64_t width, double eps, typename T::Real* factors) {
    using Number = typename T::Real;
    constexpr int W = T::W;
    Vec<Number, W> sums[W];
    for (int64_t r = count; r < W; ++r) sums[r] = Vec<Number, W>{};
    for (int64_t r = 0; r < count; ++r)
        sums[r] = sum_of_columns<Number, W>(width, SquareTerm<T>{reinterpret_cast<const typename T::Stored*>(x + r * x_row)});
    fold_lanes<W>(sums);
    const auto inverse_width = static_cast<Number>(1.0 / static_cast<double>(width));
    store(factors, Number{1} / square_root<W>(sums[0] * inverse_width + static_cast<Number>(eps)));
}

enum Variant { ONLY_ROTATES, NORMS, NORMS_AND_ROUNDS };

// The norm of rows, as it is applied to vectors of features: by a factor of each row and a scale of each feature.
template <class T, Variant variant>
struct AppliedNorm {
    const typename T::Real* factors;
    const typename T::Real* scale;
    bool rounds_steps;

    template <int W>
    ROPE_INLINE void apply(Vec<typename T::Real, W>& v, typename T::Real factor, Vec<typename T::Real, W> scales) const {
        if constexpr (variant == ONLY_ROTATES) return;
        v = v * factor;
        if constexpr (variant == NORMS_AND_ROUNDS)
            if (rounds_steps) v = T::template round<W>(v);
        v = v * scales;
        if constexpr (variant == NORMS_AND_ROUNDS) v = T::template round<W>(v);
    }

    template <int W>
    ROPE_INLINE Vec<typename T::Real, W> load_scales(int64_t feature) const {
        return variant == ONLY_ROTATES ? Vec<typename T::Real, W>{} : load<Vec<typename T::Real, W>>(scale + feature);
    }
};

// Norm and rotate some pairs of one block in all rows, from T into Out, keeping their scales in registers: see
// RotateColumn.
template <class T, class Out, bool reads_half, bool writes_half, Variant variant>
struct RotateNormedColumn {
    const Rows& rows;
    const AppliedNorm<T, variant> norm;
    int64_t pair, feature;  // the first of the block
    int64_t n;

    template <int chunk>
    void at(int64_t i) const {
        constexpr int W = chunk < T::W ? chunk : T::W, vectors = chunk / W;
        using Number = typename T::Real;
        using Real = Vec<Number, W>;
        // In blocks if all of the shuffles may be: see Shuffled.
        constexpr bool in_blocks = !reads_half && !writes_half && FromTables<Number>::template IN_BLOCKS<W> &&
                                   T::Blocked::IN_BLOCKS && Out::Blocked::IN_BLOCKS;
        using From = std::conditional_t<in_blocks, typename T::Blocked, T>;
        using To = std::conditional_t<in_blocks, typename Out::Blocked, Out>;
        const int64_t x_at = feature + (reads_half ? i : 2 * i), y_at = feature + (writes_half ? i : 2 * i);
        Real scale_a[vectors], scale_b[vectors];
        unroll<vectors>([&](auto v) ROPE_ALWAYS {
            if constexpr (reads_half) {
                scale_a[v] = norm.template load_scales<W>(x_at + v * W);
                scale_b[v] = norm.template load_scales<W>(x_at + n + v * W);
            } else if constexpr (variant != ONLY_ROTATES) {
                Native<Number, From::IN_BLOCKS>::template read_pairs<W>(norm.scale + x_at + 2 * v * W, scale_a[v], scale_b[v]);
            }
        });
        const char *from = rows.x, *cos = rows.cos + (pair + i) * sizeof(Number), *sin = rows.sin + (pair + i) * sizeof(Number);
        char* to = rows.y;
        for (int64_t r = 0; r < rows.count; ++r) {
            const auto* const x = reinterpret_cast<const typename T::Stored*>(from) + x_at;
            auto* const y = reinterpret_cast<typename Out::Stored*>(to) + y_at;
            const Number factor = variant == ONLY_ROTATES ? Number{} : norm.factors[r];
            unroll<vectors>([&](auto v) ROPE_ALWAYS {
                Real a, b;
                if constexpr (reads_half) {
                    a = From::template read<W>(x + v * W);
                    b = From::template read<W>(x + n + v * W);
                } else {
                    From::template read_pairs<W>(x + 2 * v * W, a, b);
                }
                norm.template apply<W>(a, factor, scale_a[v]);
                norm.template apply<W>(b, factor, scale_b[v]);
                const Real c = load_table<Real, From::IN_BLOCKS>(cos + v * sizeof(Real));
                const Real s = load_table<Real, From::IN_BLOCKS>(sin + v * sizeof(Real));
                const Real first = a * c - b * s, second = b * c + a * s;
                if constexpr (writes_half)
                    To::template write_two<W>(y + v * W, y + n + v * W, first, second);
                else
                    To::template write_pairs<W>(y + 2 * v * W, first, second);
            });
            from += rows.x_row;
            to += rows.y_row;
            cos += rows.cos_row;
            sin += rows.sin_row;
        }
    }
};

// Norm the features that are not rotated, in all rows.
template <class T, class Out, Variant variant>
struct NormColumn {
    const Rows& rows;
    const AppliedNorm<T, variant> norm;
    int64_t feature;

    template <int W>
    void at(int64_t i) const {
        const auto scales = norm.template load_scales<W>(feature + i);
        for (int64_t r = 0; r < rows.count; ++r) {
            typename Out::Stored unused[W];
            auto v = T::template read<W>(reinterpret_cast<const typename T::Stored*>(rows.x + r * rows.x_row) + feature + i);
            norm.template apply<W>(v, variant == ONLY_ROTATES ? 0 : norm.factors[r], scales);
            Out::template write_two<W>(reinterpret_cast<typename Out::Stored*>(rows.y + r * rows.y_row) + feature + i, unused, v, v);
        }
    }
};

// Norm and rotate up to T::W rows, by tables.
template <class T, class Out, bool reads_half, bool writes_half, Variant variant>
inline void rotate_normed_rows(const Layout& layout, const Rows& rows, const AppliedNorm<T, variant>& norm) {
    const int64_t n = pairs_per_block(layout), end = layout.start + 2 * layout.num_pairs;
    for (int64_t i = 0; i < layout.num_pairs; i += n)
        for_chunks<(WIDTH > 8 ? 4 * T::W : WIDTH > 1 ? 2 * T::W : 1)>(
            n, RotateNormedColumn<T, Out, reads_half, writes_half, variant>{rows, norm, i, layout.start + 2 * i, n});
    for_chunks<T::W>(layout.start, NormColumn<T, Out, variant>{rows, norm, 0});
    for_chunks<T::W>(layout.head_dim - end, NormColumn<T, Out, variant>{rows, norm, end});
}

// Norm, unless `norm` is null, and rotate rows of one run, by tables.
template <class T, class Out, bool reads_half, bool writes_half>
void rotate_normed_layout(const Layout& layout, const Rows& all, const Norm* norm) {
    using Number = typename T::Real;
    Number factors[T::W];
    const auto* const scale = norm ? static_cast<const Number*>(norm->scale) : nullptr;
    for (int64_t r = 0; r < all.count; r += T::W) {
        Rows rows = all;
        rows.count = smaller(T::W, all.count - r);
        rows.x += r * all.x_row;
        rows.y += r * all.y_row;
        rows.cos += r * all.cos_row;
        rows.sin += r * all.sin_row;
        if (!norm) {
            rotate_normed_rows<T, Out, reads_half, writes_half, ONLY_ROTATES>(layout, rows, {});
            continue;
        }
        inverse_rms<T>(rows.x, rows.x_row, rows.count, layout.head_dim, norm->eps, factors);
        if (norm->rounding == ROUND_NONE)
            rotate_normed_rows<T, Out, reads_half, writes_half, NORMS>(layout, rows, {factors, scale, false});
        else
            rotate_normed_rows<T, Out, reads_half, writes_half, NORMS_AND_ROUNDS>(
                layout, rows, {factors, scale, norm->rounding == ROUND_STEPS});
    }
}

template <class T, class Out = T>
void rotate_normed(const Layout& layout, const Rows& rows, const Norm* norm) {
    if (layout.reads_half)
        layout.writes_half ? rotate_normed_layout<T, Out, true, true>(layout, rows, norm)
                           : rotate_normed_layout<T, Out, true, false>(layout, rows, norm);
    else
        layout.writes_half ? rotate_normed_layout<T, Out, false, true>(layout, rows, norm)
                           : rotate_normed_layout<T, Out, false, false>(layout, rows, norm);
}

// ---- gradients ----

// The terms of the sum of gradient · scale · x over a row.
template <class T>
struct GradientTerm {
    const typename T::Real* gradient;
    const typename T::Real* scale;
    const typename T::Stored* x;

    template <int W>
    auto at(int64_t i) const {
        using Real = Vec<typename T::Real, W>;
        return load<Real>(gradient + i) * load<Real>(scale + i) * T::template read<W>(x + i);
    }
};

// Add lanes to doubles, in vectors of half the lanes.
template <int W, class Real>
ROPE_INLINE void add_doubles(double* to, Real v) {
    if constexpr (W == 1) {
        *to += static_cast<double>(v);
    } else if constexpr (W == 2) {
        to[0] += static_cast<double>(v[0]);
        to[1] += static_cast<double>(v[1]);
    } else {
        constexpr int H = W / 2;
        store(to, load<Vec<double, H>>(to) + convert<double, H>(shuffle<Lower, H>(v, v)));
        store(to + H, load<Vec<double, H>>(to + H) + convert<double, H>(shuffle<Upper, H>(v, v)));
    }
}

// Compute the gradients of some features in all rows:
//
//     of x         g · scale - x · shift       g = gradient · factor
//     of weight    Σ g · x over rows           shift = factor³ · mean of gradient · scale · x
//
// The sum of up to W rows is added to the others in double.
template <class T>
struct NormGradients {
    const GradientRows& rows;
    const typename T::Real* scale;
    const typename T::Real* factors;
    const typename T::Real* shifts;

    template <int chunk>
    void at(int64_t i) const {
        constexpr int W = chunk < T::W ? chunk : T::W, vectors = chunk / W;
        using Number = typename T::Real;
        using Real = Vec<Number, W>;
        Real sums[vectors] = {}, scales[vectors];
        unroll<vectors>([&](auto v) ROPE_ALWAYS { scales[v] = load<Real>(scale + i + v * W); });
        for (int64_t r = 0; r < rows.count; ++r) {
            const auto* const gradient = reinterpret_cast<const Number*>(rows.rotated) + r * rows.width + i;
            const auto* const x = reinterpret_cast<const typename T::Stored*>(rows.x + r * rows.x_row) + i;
            auto* const to = reinterpret_cast<typename T::Stored*>(rows.to + r * rows.to_row) + i;
            Real of_x[vectors];
            unroll<vectors>([&](auto v) ROPE_ALWAYS {
                const Real g = load<Real>(gradient + v * W) * factors[r], values = T::template read<W>(x + v * W);
                of_x[v] = g * scales[v] - values * shifts[r];
                sums[v] = sums[v] + g * values;
            });
            typename T::Stored unused[W];
            T::template write_two<W>(to, vectors > 1 ? to + W : unused, of_x[0], of_x[vectors - 1]);
        }
        unroll<vectors>([&](auto v) ROPE_ALWAYS {
            add_doubles<W>(rows.weight + i + v * W, sums[v]);
        });
    }
};

template <class T>
void norm_gradients(const GradientRows& all, const Norm& norm) {
    using Number = typename T::Real;
    constexpr int W = T::W;
    const auto* const scale = static_cast<const Number*>(norm.scale);
    Number factors[W], shifts[W];
    for (int64_t r = 0; r < all.count; r += W) {
        GradientRows rows = all;
        rows.count = smaller(W, all.count - r);
        rows.rotated += r * all.width * static_cast<int64_t>(sizeof(Number));
        rows.x += r * all.x_row;
        rows.to += r * all.to_row;
        inverse_rms<T>(rows.x, rows.x_row, rows.count, rows.width, norm.eps, factors);
        Vec<Number, W> sums[W];
        for (int64_t k = rows.count; k < W; ++k) sums[k] = Vec<Number, W>{};
        for (int64_t k = 0; k < rows.count; ++k)
            sums[k] = sum_of_columns<Number, W>(
                rows.width, GradientTerm<T>{reinterpret_cast<const Number*>(rows.rotated) + k * rows.width, scale,
                                            reinterpret_cast<const typename T::Stored*>(rows.x + k * rows.x_row)});
        fold_lanes<W>(sums);
        const auto factor = load<Vec<Number, W>>(factors);
        const auto mean = sums[0] * static_cast<Number>(1.0 / static_cast<double>(rows.width));
        store(shifts, factor * (factor * mean) * factor);
        for_chunks<(W > 1 ? 2 * W : 1)>(rows.width, NormGradients<T>{rows, scale, factors, shifts});
    }
}

// ---- rows of the compute dtype ----

// Convert the features of a row.
template <class T>
void widen_row(const char* x, int64_t width, void* y) {
    Rows row = {};
    row.count = 1;
    row.x = x;
    row.y = static_cast<char*>(y);
    for_chunks<T::W>(width, NormColumn<T, Native<typename T::Real>, ONLY_ROTATES>{row, {}, 0});
}

// ---- caches ----

template <class T>
struct ToFloat {
    using Stored = typename T::Stored;

    template <int W>
    static void write(Stored* to, Vec<float, W> v) {
        Stored unused[W];
        T::template write_two<W>(to, unused, v, v);
    }
};

// Narrow numbers below 256.
template <int W>
ROPE_INLINE void store_bytes(uint8_t* to, Vec<uint32_t, W> v) {
    store(to, convert<uint8_t, W>(v));
}

template <int W>
ROPE_INLINE Vec<float, W> clamp(Vec<float, W> v, float low, float high) {
    using Real = Vec<float, W>;
    v = v < low ? splat<Real>(low) : v;
    return v > high ? splat<Real>(high) : v;
}

// float8_e4m3fn: 1 sign, 4 bits of exponent with bias 7, 3 of fraction. Numbers beyond ±448 become ±448. Normal numbers
// are rounded in integers; below 2^-6, by adding a float whose last place is 2^-9, the smallest number.
struct ToE4M3 {
    using Stored = uint8_t;

    template <int W>
    static void write(uint8_t* to, Vec<float, W> v) {
        using Word = Vec<uint32_t, W>;
        using Real = Vec<float, W>;
        const Word bits = bit_cast<Word>(v), sign = (bits >> 24) & 0x80u;
        const Word magnitude = bit_cast<Word>(clamp<W>(bit_cast<Real>(bits & 0x7FFFFFFFu), 0.0f, 448.0f));
        const Word normal = ((magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
        const Word subnormal = bit_cast<Word>(bit_cast<Real>(magnitude) + 0x1p14f) - 0x46800000u;
        const Word finite = magnitude < 0x3C800000u ? subnormal : normal;
        store_bytes<W>(to, (v != v ? splat<Word>(0x7Fu) : finite) | sign);
    }
};

// int8: to the nearest, ties to even; from -128 to 127; NaN becomes 0.
struct ToInt8 {
    using Stored = uint8_t;

    template <int W>
    static void write(uint8_t* to, Vec<float, W> v) {
        using Real = Vec<float, W>;
        using Word = Vec<uint32_t, W>;
        v = clamp<W>(v != v ? Real{} : v, -128.0f, 127.0f);
        // Adding 1.5 · 2^23 rounds to integers, and leaves the integer in the lower bits.
        store_bytes<W>(to, bit_cast<Word>(v + 0x1.8p23f) & 0xFFu);
    }
};

template <class T>
struct StoreRow {
    const float* row;
    typename T::Stored* to;
    float scale;

    template <int W>
    void at(int64_t i) const {
        auto v = load<Vec<float, W>>(row + i);
        if (scale != 1.0f) v = v / scale;
        T::template write<W>(to + i, v);
    }
};

template <class T>
void store_row(const float* row, char* to, int64_t width, float scale) {
    for_chunks<WIDTH>(width, StoreRow<T>{row, reinterpret_cast<typename T::Stored*>(to), scale});
}

}  // namespace
}  // namespace rope
