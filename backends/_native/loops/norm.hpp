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

// Compute 1 / sqrt(mean of squares + eps) of up to T::W rows together: the latency of a root is that of many products.
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

// The norm of one row, as it is applied to vectors of features: by its factor and by the scales of the features.
template <class T>
struct RowNorm {
    typename T::Real factor;
    const typename T::Real* scale;  // null if rows are only rotated
    Rounding rounding;

    template <int W>
    ROPE_INLINE void apply(Vec<typename T::Real, W>& v, Vec<typename T::Real, W> scales) const {
        v = v * factor;
        if (rounding == ROUND_STEPS) v = T::template round<W>(v);
        v = v * scales;
        if (rounding != ROUND_NONE) v = T::template round<W>(v);
    }
};

// Norm and rotate the pairs of one block in one row, from T into Out.
template <class T, class Out, bool reads_half, bool writes_half>
struct RotateNormedRow {
    const RowNorm<T> norm;
    const typename T::Stored* x;
    typename Out::Stored* y;
    const typename T::Real* cos;
    const typename T::Real* sin;
    int64_t feature;  // of x[0] in its row
    int64_t n;

    template <int chunk>
    void at(int64_t i) const {
        constexpr int W = chunk < T::W ? chunk : T::W;
        using Number = typename T::Real;
        using Real = Vec<Number, W>;
        // In blocks if all of the shuffles may be: see Shuffled.
        constexpr bool in_blocks = !reads_half && !writes_half && FromTables<Number>::template IN_BLOCKS<W> &&
                                   T::Blocked::IN_BLOCKS && Out::Blocked::IN_BLOCKS;
        using From = std::conditional_t<in_blocks, typename T::Blocked, T>;
        using To = std::conditional_t<in_blocks, typename Out::Blocked, Out>;
        using Scales = Native<Number, From::IN_BLOCKS>;
        unroll<chunk / W>([&](auto v) ROPE_ALWAYS {
            const int64_t k = i + v * W;
            Real a, b, scale_a, scale_b;
            const Number* const scale = norm.scale + feature;
            if constexpr (reads_half) {
                a = From::template read<W>(x + k);
                b = From::template read<W>(x + n + k);
                if (norm.scale) scale_a = load<Real>(scale + k), scale_b = load<Real>(scale + n + k);
            } else {
                From::template read_pairs<W>(x + 2 * k, a, b);
                if (norm.scale) Scales::template read_pairs<W>(scale + 2 * k, scale_a, scale_b);
            }
            if (norm.scale) {
                norm.template apply<W>(a, scale_a);
                norm.template apply<W>(b, scale_b);
            }
            const Real c = load_table<Real, From::IN_BLOCKS>(cos + k), s = load_table<Real, From::IN_BLOCKS>(sin + k);
            const Real first = a * c - b * s, second = b * c + a * s;
            if constexpr (writes_half)
                To::template write_two<W>(y + k, y + n + k, first, second);
            else
                To::template write_pairs<W>(y + 2 * k, first, second);
        });
    }
};

// Norm the features of one row that are not rotated.
template <class T, class Out>
struct NormFeatures {
    const RowNorm<T> norm;
    const typename T::Stored* x;
    typename Out::Stored* y;

    template <int W>
    void at(int64_t i) const {
        typename Out::Stored unused[W];
        auto v = T::template read<W>(x + i);
        if (norm.scale) norm.template apply<W>(v, load<Vec<typename T::Real, W>>(norm.scale + i));
        Out::template write_two<W>(y + i, unused, v, v);
    }
};

template <class T, class Out, bool reads_half, bool writes_half>
inline void rotate_normed_row(const Layout& layout, const char* x, char* y, const RowNorm<T>& norm, const char* cos,
                              const char* sin) {
    using Number = typename T::Real;
    const auto* const from = reinterpret_cast<const typename T::Stored*>(x);
    auto* const to = reinterpret_cast<typename Out::Stored*>(y);
    const int64_t n = pairs_per_block(layout);
    auto keep = [&](int64_t begin, int64_t end) {
        RowNorm<T> rest = norm;
        if (norm.scale) rest.scale += begin;
        if (begin < end) for_chunks<T::W>(end - begin, NormFeatures<T, Out>{rest, from + begin, to + begin});
    };
    keep(0, layout.start);
    for (int64_t i = 0; i < layout.num_pairs; i += n) {
        const int64_t begin = layout.start + 2 * i;
        for_chunks<FromTables<Number>::CHUNK>(
            n, RotateNormedRow<T, Out, reads_half, writes_half>{norm, from + begin, to + begin,
                                                                reinterpret_cast<const Number*>(cos) + i,
                                                                reinterpret_cast<const Number*>(sin) + i, begin, n});
    }
    keep(layout.start + 2 * layout.num_pairs, layout.head_dim);
}

// Norm, unless `norm` is null, and rotate rows of one run, by tables.
template <class T, class Out, bool reads_half, bool writes_half>
void rotate_normed_rows(const Layout& layout, const Rows& rows, const Norm* norm) {
    using Number = typename T::Real;
    Number factors[T::W];
    const char* x = rows.x;
    char* y = rows.y;
    for (int64_t r = 0; r < rows.count; ++r, x += rows.x_row, y += rows.y_row) {
        if (norm && r % T::W == 0)
            inverse_rms<T>(x, rows.x_row, smaller(T::W, rows.count - r), layout.head_dim, norm->eps, factors);
        RowNorm<T> row = {};
        if (norm) row = {factors[r % T::W], static_cast<const Number*>(norm->scale), norm->rounding};
        rotate_normed_row<T, Out, reads_half, writes_half>(layout, x, y, row, rows.cos + r * rows.cos_row,
                                                           rows.sin + r * rows.sin_row);
    }
}

template <class T, class Out = T>
void rotate_normed(const Layout& layout, const Rows& rows, const Norm* norm) {
    if (layout.reads_half)
        layout.writes_half ? rotate_normed_rows<T, Out, true, true>(layout, rows, norm)
                           : rotate_normed_rows<T, Out, true, false>(layout, rows, norm);
    else
        layout.writes_half ? rotate_normed_rows<T, Out, false, true>(layout, rows, norm)
                           : rotate_normed_rows<T, Out, false, false>(layout, rows, norm);
}

// ---- gradients ----

// The terms of the mean of h · n over a row, for h = gradient · scale and n = x · factor.
template <class T>
struct GradientTerm {
    const typename T::Real* gradient;
    const typename T::Real* scale;
    const typename T::Stored* x;
    typename T::Real factor;

    template <int W>
    auto at(int64_t i) const {
        using Real = Vec<typename T::Real, W>;
        return (load<Real>(gradient + i) * load<Real>(scale + i)) * (T::template read<W>(x + i) * factor);
    }
};

// Compute the gradients of some features in all rows:
//
//     of x         (h - n · mean(h · n)) · factor
//     of weight    Σ gradient · n over rows; a sum of few rows is added in double
template <class T>
struct NormGradients {
    const GradientRows& rows;
    const typename T::Real* scale;
    const typename T::Real* factors;
    const typename T::Real* means;

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
                const Real g = load<Real>(gradient + v * W), n = T::template read<W>(x + v * W) * factors[r];
                of_x[v] = (g * scales[v] - n * means[r]) * factors[r];
                sums[v] = sums[v] + g * n;
            });
            typename T::Stored unused[W];
            T::template write_two<W>(to, vectors > 1 ? to + W : unused, of_x[0], of_x[vectors - 1]);
        }
        unroll<vectors>([&](auto v) ROPE_ALWAYS {
            Number numbers[W];
            store(numbers, sums[v]);
            for (int k = 0; k < W; ++k) rows.weight[i + v * W + k] += static_cast<double>(numbers[k]);
        });
    }
};

template <class T>
void norm_gradients(const GradientRows& all, const Norm& norm) {
    using Number = typename T::Real;
    constexpr int W = T::W;
    const auto* const scale = static_cast<const Number*>(norm.scale);
    Number factors[W], means[W];
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
                                            reinterpret_cast<const typename T::Stored*>(rows.x + k * rows.x_row), factors[k]});
        fold_lanes<W>(sums);
        store(means, sums[0] * static_cast<Number>(1.0 / static_cast<double>(rows.width)));
        for_chunks<(W > 1 ? 2 * W : 1)>(rows.width, NormGradients<T>{rows, scale, factors, means});
    }
}

// ---- rows of the compute dtype ----

// Convert the features of a row.
template <class T>
void widen_row(const char* x, int64_t width, void* y) {
    for_chunks<T::W>(width, NormFeatures<T, Native<typename T::Real>>{{}, reinterpret_cast<const typename T::Stored*>(x),
                                                                     static_cast<typename T::Real*>(y)});
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
