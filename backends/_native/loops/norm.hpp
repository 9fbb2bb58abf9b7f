// RMSNorm of rows before their rotation, and the conversion of rows to the dtype of a cache. The order of the sum is
// that of rope_array/_array_api/norm.py, at every level.
#pragma once

#include <cmath>

#include "dtypes.hpp"
#include "scratch.hpp"

namespace rope {
namespace {

constexpr int COLUMNS = 64;

template <int W>
struct UpperHalf {
    static constexpr int at(int k, int) { return W / 2 + k; }
};

// Add the upper half of the lanes to the lower half until one is left.
template <int W, class Real>
ROPE_INLINE auto fold(Real v) {
    if constexpr (W == 1)
        return v;
    else if constexpr (W == 2)
        return v[0] + v[1];
    else
        return fold<W / 2>(shuffle<Lower, W / 2>(v, v) + shuffle<UpperHalf<W>, W / 2>(v, v));
}

// Add the second half of the vectors to the first until one is left.
template <int vectors, class Real, int N>
ROPE_INLINE void fold_vectors(Real (&total)[N]) {
    if constexpr (vectors > 1) {
        unroll<vectors / 2>([&](auto v) ROPE_ALWAYS { total[v] = total[v] + total[v + vectors / 2]; });
        fold_vectors<vectors / 2>(total);
    }
}

// Return the sum of term(i), vectors of W lanes from feature i on, over `width` features: 64 columns, folded by halves.
// `tail` is called for the last, partial row of columns, with the number of features before it.
template <class Number, int W, class Term, class Tail>
ROPE_INLINE Number sum_in_order(int64_t width, const Term& term, const Tail& tail) {
    constexpr int vectors = COLUMNS / W;
    Vec<Number, W> total[vectors] = {};
    int64_t i = 0;
    for (; i + COLUMNS <= width; i += COLUMNS)
        unroll<vectors>([&](auto v) ROPE_ALWAYS { total[v] = total[v] + term(i + v * W); });
    if (i < width) {
        Number last[COLUMNS] = {};
        tail(i, last);
        unroll<vectors>([&](auto v) ROPE_ALWAYS { total[v] = total[v] + load<Vec<Number, W>>(last + v * W); });
    }
    fold_vectors<vectors>(total);
    return fold<W>(total[0]);
}

// Return 1 / sqrt(mean of squares + eps) of a row.
template <class T>
ROPE_INLINE typename T::Real inverse_rms(const typename T::Source* x, int64_t width, const Norm& norm) {
    using Number = typename T::Real;
    constexpr int W = T::W;
    const Number sum = sum_in_order<Number, W>(
        width,
        [x](int64_t i) ROPE_ALWAYS {
            const auto v = T::template read<W>(x + i);
            return v * v;
        },
        [x, width](int64_t i, Number* last) {
            for (; i < width; ++i, ++last) {
                const Number number = T::template read<1>(x + i);
                *last = number * number;
            }
        });
    return Number{1} / std::sqrt(sum * static_cast<Number>(1.0 / static_cast<double>(width)) + static_cast<Number>(norm.eps));
}

// Multiply the features of a row by its factor and by the scale; T reads x, Stored is the dtype to round to.
template <class T, class Stored, int rounding>
struct NormRow {
    const typename T::Source* x;
    const typename T::Real* scale;
    typename T::Real* to;
    typename T::Real factor;

    template <int W>
    void at(int64_t i) const {
        using Real = Vec<typename T::Real, W>;
        Real v = T::template read<W>(x + i) * factor;
        if constexpr (rounding == ROUND_STEPS) v = Stored::template round<W>(v);
        v = v * load<Real>(scale + i);
        if constexpr (rounding != ROUND_NONE) v = Stored::template round<W>(v);
        store(to + i, v);
    }
};

// Convert the features of a row to the compute dtype.
template <class T>
struct WidenRow {
    const typename T::Source* x;
    typename T::Real* to;

    template <int W>
    void at(int64_t i) const {
        store(to + i, T::template read<W>(x + i));
    }
};

template <class T, class Stored, int rounding>
ROPE_INLINE void norm_row(const typename T::Source* x, int64_t width, const Norm& norm, typename T::Real* to) {
    const auto* const scale = static_cast<const typename T::Real*>(norm.scale);
    for_chunks<T::W>(width, NormRow<T, Stored, rounding>{x, scale, to, inverse_rms<T>(x, width, norm)});
}

template <class T, class Stored>
inline void norm_row(const typename T::Source* x, int64_t width, const Norm& norm, typename T::Real* to) {
    switch (norm.rounding) {
        case ROUND_NONE: return norm_row<T, Stored, ROUND_NONE>(x, width, norm, to);
        case ROUND_NORM: return norm_row<T, Stored, ROUND_NORM>(x, width, norm, to);
        case ROUND_STEPS: return norm_row<T, Stored, ROUND_STEPS>(x, width, norm, to);
    }
}

// Norm rows, or only convert them: see NormRows.
template <class T>
void normalise(const NormRows& rows, const Norm* norm) {
    using Number = typename T::Real;
    for (int64_t r = 0; r < rows.count; ++r) {
        const char* x = rows.x + r * rows.x_row;
        Number* const to = static_cast<Number*>(rows.to) + r * rows.width;
        if (rows.staged) {
            for (int64_t i = 0; i < rows.width; ++i, x += rows.x_feature) {
                const auto number = load<typename T::Source>(x);
                to[i] = T::template read<1>(&number);
            }
            if (norm) norm_row<Native<Number>, T>(to, rows.width, *norm, to);
        } else {
            const auto* const features = reinterpret_cast<const typename T::Source*>(x);
            if (norm)
                norm_row<T, T>(features, rows.width, *norm, to);
            else
                for_chunks<T::W>(rows.width, WidenRow<T>{features, to});
        }
    }
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
