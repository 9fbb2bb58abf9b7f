#include "attention.hpp"

#include "cache_slots.hpp"

namespace rope {
namespace {

// A norm of rope_array/_array_api/norm.py: (weights, eps, offset, rounding). Each function returns false for what the
// kernel does not serve.
class ParsedNorm {
  public:
    bool parse(nb::handle norm, const Library& library, size_t num_xs) {
        double eps;
        Rounding rounding;
        if (!is_tuple_of(norm, 4) || num_xs > MAX_XS) return false;
        if (!is_tuple_of(item(norm, 0), MAX_XS) && !is_tuple_of(item(norm, 0), num_xs)) return false;
        if (!parse_float(item(norm, 1), eps) || !parse_float(item(norm, 2), offset_) || eps < 0) return false;
        if (!parse_rounding(item(norm, 3), rounding)) return false;
        weights_ = item(norm, 0);
        for (size_t i = 0; i < num_xs; ++i) {
            norms_[i] = {nullptr, eps, rounding};
            if (has_weight(i) && (!library.view(item(weights_, i), views_[i]) || views_[i].dtype >= NUM_DTYPES)) return false;
        }
        return true;
    }

    bool has_weight(size_t i) const { return !item(weights_, i).is_none(); }
    bool is_per_head(size_t i) const { return has_weight(i) && views_[i].num_axes == 2; }
    const ArrayView& view(size_t i) const { return views_[i]; }
    bool any_requires_grad(size_t num_xs) const {
        for (size_t i = 0; i < num_xs; ++i)
            if (has_weight(i) && requires_grad(item(weights_, i))) return true;
        return false;
    }

    // Make the scales of an x in its compute dtype, and set its norm; the first of several for weights of each head.
    bool set_norm(size_t i, Array& array, int64_t heads) {
        const ArrayView& view = views_[i];
        const int last = has_weight(i) ? view.num_axes - 1 : 0;
        if (has_weight(i) && (last < 0 || last > 1 || view.shape[last] != array.width || (last && view.shape[0] != heads)))
            return false;
        array.dtype == F64 ? make_scales<double>(i, array.width) : make_scales<float>(i, array.width);
        norms_[i].scale = scales_[i].get();
        width_ = array.width;
        array.norm = &norms_[i];
        return true;
    }

    // Return the gradients of weights, rounded to their dtypes: None where there is no weight.
    nb::object gradients(const Library& library, size_t num_xs, const std::vector<double>& sums) const {
        nb::list all;
        const double* from = sums.data();
        for (size_t i = 0; i < num_xs; ++i) {
            if (!has_weight(i)) {
                all.append(nb::none());
                from += width_;
                continue;
            }
            ArrayView view;
            nb::object gradient = library.empty_like(item(weights_, i), view);
            const int last = view.num_axes - 1;
            for (int64_t r = 0; r < (last ? view.shape[0] : 1); ++r)
                for (int64_t k = 0; k < view.shape[last]; ++k)
                    write_number(*from++, view.data + (last ? r * view.strides[0] : 0) + k * view.strides[last], view.dtype);
            all.append(gradient);
        }
        return nb::tuple(all);
    }

    // Return a norm with the scale of another head.
    static Norm of_head(const Norm& norm, int64_t head, const Array& array) {
        const int64_t bytes = array.width * (array.dtype == F64 ? 8 : 4);
        return {static_cast<const char*>(norm.scale) + head * bytes, norm.eps, norm.rounding};
    }

  private:
    static constexpr size_t MAX_XS = 2;

    static bool parse_rounding(nb::handle text, Rounding& rounding) {
        constexpr const char* NAMES[] = {"none", "norm", "steps"};
        for (int i = 0; i < 3; ++i) {
            rounding = static_cast<Rounding>(i);
            if (PyUnicode_Check(text.ptr()) && PyUnicode_CompareWithASCIIString(text.ptr(), NAMES[i]) == 0) return true;
        }
        return false;
    }

    template <class Number>
    void make_scales(size_t i, int64_t width) {
        const ArrayView& view = views_[i];
        const int64_t rows = is_per_head(i) ? view.shape[0] : 1;
        scales_[i].reset(new char[static_cast<size_t>(rows * width) * sizeof(Number)]);
        auto* const scales = reinterpret_cast<Number*>(scales_[i].get());
        if (!has_weight(i)) return std::fill(scales, scales + width, Number{1});
        for (int64_t r = 0; r < rows; ++r) {
            const char* const from = view.data + (rows > 1 || view.num_axes == 2 ? r * view.strides[0] : 0);
            read_row(from, view.strides[view.num_axes - 1], view.dtype, width, scales + r * width);
        }
        const auto offset = static_cast<Number>(offset_);
        if (offset_ != 0) std::for_each(scales, scales + rows * width, [offset](Number& scale) { scale = scale + offset; });
    }

    template <class Number>
    static void read_row(const char* from, int64_t stride, int dtype, int64_t width, Number* to) {
        if (dtype == F64) return read_numbers<double>(from, stride, width, to);
        if (dtype == F32) return read_numbers<float>(from, stride, width, to);
        const bool is_readable = (width < 2 || stride == 2) && reinterpret_cast<uintptr_t>(from) % 2 == 0;
        std::unique_ptr<uint16_t[]> copy(is_readable ? nullptr : new uint16_t[static_cast<size_t>(width)]);
        for (int64_t k = 0; !is_readable && k < width; ++k) std::memcpy(&copy[static_cast<size_t>(k)], from + k * stride, 2);
        const char* const numbers = is_readable ? from : reinterpret_cast<const char*>(copy.get());
        const auto widen = level.load(std::memory_order_relaxed)->widen[dtype];
        if constexpr (sizeof(Number) == sizeof(float)) return widen(numbers, width, to);
        std::unique_ptr<float[]> floats(new float[static_cast<size_t>(width)]);
        widen(numbers, width, floats.get());
        std::copy(floats.get(), floats.get() + width, to);
    }

    static void write_number(double number, char* to, int dtype) {
        constexpr CacheDType DTYPES[] = {CACHE_F32, NUM_CACHE_DTYPES, CACHE_F16, CACHE_BF16};  // by DType
        const float narrow = static_cast<float>(number);
        if (dtype == F64)
            std::memcpy(to, &number, sizeof number);
        else
            level.load(std::memory_order_relaxed)->store[DTYPES[dtype]](&narrow, to, 1, 1.0f);
    }

    template <class From, class Number>
    static void read_numbers(const char* from, int64_t stride, int64_t width, Number* to) {
        for (int64_t k = 0; k < width; ++k, from += stride) to[k] = static_cast<Number>(read_as<From>(from));
    }

    nb::handle weights_;
    double offset_ = 0;
    int64_t width_ = 0;
    Norm norms_[MAX_XS];
    ArrayView views_[MAX_XS];
    std::unique_ptr<char[]> scales_[MAX_XS];
};

// A write into caches of rope_array/_array_api/cache.py: ((k_cache, v_cache), v, slots, (k_scale, v_scale), seq_axis,
// unique_slots).
class ParsedWrite {
  public:
    bool parse(nb::handle write, const Library& library) {
        if (!is_tuple_of(write, 6) || !is_tuple_of(item(write, 0), 2) || !is_tuple_of(item(write, 3), 2)) return false;
        caches = item(write, 0);
        values = item(write, 1);
        if (!parse_int(item(write, 4), seq_axis_) || !library.view(item(write, 2), slots_.view)) return false;
        const bool is_unique = item(write, 5).ptr() == Py_True;
        if (!is_unique && item(write, 5).ptr() != Py_False) return false;
        if (values.is_none() != item(caches, 1).is_none()) return false;
        num_caches = values.is_none() ? 1 : 2;
        for (size_t i = 0; i < 2; ++i) {
            double scale;
            if (!parse_float(item(item(write, 3), i), scale) || scale <= 0) return false;
            if (i < num_caches && !library.view(item(caches, i), views[i])) return false;
            rows_[i].scale = static_cast<float>(scale);
        }
        if (!slots_.read()) return false;
        if (!is_unique) slots_.drop_overwritten();
        return true;
    }

    // Set the cache of an array of k or v.
    bool set_cache(size_t i, Array& array) {
        CacheRows& rows = rows_[i];
        const ArrayView& view = views[i];
        const int64_t feature = array.rotates ? array.y_feature : array.x_feature;
        if (!set_dtype(rows, view, array) || !set_axes(rows, view, array)) return false;
        if (rows.is_copy && array.width > 1 && feature != ITEMSIZE[array.dtype]) return false;
        rows.slots = slots_.numbers.data();
        array.cache = &rows;
        return view.writable && !may_overlap_itself(view) && view.is_aligned();
    }

    const ArrayView& slots_view() const { return slots_.view; }
    static CacheRows of_head(const CacheRows& rows, int axis, int64_t head, int num_axes) {
        CacheRows head_rows = rows;
        head_rows.data += head * rows.head_stride[axis];
        std::copy(rows.head_stride + axis + 1, rows.head_stride + num_axes, head_rows.head_stride + axis);
        std::copy(rows.slots_stride + axis + 1, rows.slots_stride + num_axes, head_rows.slots_stride + axis);
        return head_rows;
    }

    nb::handle caches, values;
    size_t num_caches = 0;
    ArrayView views[2];

  private:
    static bool set_dtype(CacheRows& rows, const ArrayView& view, const Array& array) {
        rows.is_copy = view.dtype == array.dtype;
        rows.dtype = cache_dtype_of(view);
        if (rows.scale != 1 && !is_quantised(view)) return false;
        return rows.is_copy || (rows.dtype != NUM_CACHE_DTYPES && array.dtype != F64);
    }

    // Match the axes of x with the axes of slots and of the cache, and check the slots.
    bool set_axes(CacheRows& rows, const ArrayView& view, const Array& array) {
        const int num_tokens = slots_.view.num_axes, num_free = array.num_axes - num_tokens, last = view.num_axes - 1;
        const int num_pages = view.num_axes - num_free - 2;
        const int64_t slot_axis = seq_axis_ + view.num_axes;
        if (num_free < 0 || array.seq_axis < 0 || (num_pages != 0 && num_pages != 1)) return false;
        if (slot_axis < num_pages || slot_axis >= last || view.shape[last] != array.width) return false;
        if (array.width > 1 && view.strides[last] != view.itemsize) return false;
        std::fill(rows.slots_stride, rows.slots_stride + array.num_axes, int64_t{0});
        std::fill(rows.head_stride, rows.head_stride + array.num_axes, int64_t{0});
        bool is_token[MAX_AXES] = {};
        int64_t stride = 1;
        for (int j = num_tokens - 1; j >= 0; --j) {
            const int a = paired_axis(num_tokens, array.seq_axis, j);
            if (slots_.view.shape[j] != array.shape[a]) return false;
            is_token[a] = true;
            rows.slots_stride[a] = stride;
            stride *= slots_.view.shape[j];
        }
        int cache_axis = num_pages;
        for (int a = 0; a < array.num_axes; ++a) {
            if (is_token[a]) continue;
            if (cache_axis == slot_axis) ++cache_axis;
            if (view.shape[cache_axis] != array.shape[a]) return false;
            rows.head_stride[a] = view.strides[cache_axis++];
        }
        return slots_.locate(rows, view, slot_axis, num_pages == 1);
    }

    int64_t seq_axis_ = 0;
    ParsedSlots slots_;
    CacheRows rows_[2];
};

// Return the axis of heads, as heads_axis() of rope_array/_array_api/norm.py; -1 if there is none.
int heads_axis(const Array& array) {
    const int last = array.num_axes - 1;
    return array.seq_axis == last ? last - 1 : last;
}

// Remove the axis of heads from an array, at one head.
Array of_head(const Array& array, int axis, int64_t head) {
    Array head_array = array;
    head_array.x += head * array.x_stride[axis];
    head_array.y += head * array.y_stride[axis];
    --head_array.num_axes;
    if (head_array.seq_axis > axis) --head_array.seq_axis;
    for (int a = axis; a < head_array.num_axes; ++a) {
        head_array.shape[a] = array.shape[a + 1];
        head_array.x_stride[a] = array.x_stride[a + 1];
        head_array.y_stride[a] = array.y_stride[a + 1];
    }
    return head_array;
}

// Return the caches that are written, as a tuple.
nb::object written_caches(const ParsedWrite& write) {
    return write.num_caches == 2 ? nb::borrow(write.caches) : nb::make_tuple(nb::handle(item(write.caches, 0)));
}

NormedX normed_of_head(const NormedX& normed, const Array& array, int axis, int64_t head) {
    NormedX head_x = normed;
    head_x.data += head * normed.stride[axis];
    head_x.weight += static_cast<size_t>(head * array.width);
    std::copy(normed.stride + axis + 1, normed.stride + array.num_axes, head_x.stride + axis);
    return head_x;
}

class AttentionCall {
  public:
    Call call;

    AttentionCall(const Library& library, const ParsedSource& parsed, size_t num_xs, bool has_values)
        : call(library, parsed, num_xs + has_values), library_(library), parsed_(parsed), num_xs_(num_xs) {}

    // Set v, which is the last array.
    bool parse_values(nb::handle values, int64_t seq_axis) {
        ArrayView& view = call.view(num_xs_);
        Array& array = call.array(num_xs_);
        if (!library_.view(values, view) || !view.num_axes) return false;
        const Layout layout = {view.shape[view.num_axes - 1], 0, 0, 1, false, false};
        if (!set_array(array, view, layout, seq_axis) || array.dtype != call.array(0).dtype) return false;
        set_result(array, view);
        array.rotates = false;
        return lines_up(array, parsed_.source);
    }

    // Return whether caches share no memory with other arrays of the call.
    bool has_caches_apart(const ParsedWrite& write, const ParsedNorm* norm) const {
        for (size_t i = 0; i < write.num_caches; ++i) {
            const ArrayView& cache = write.views[i];
            if (!call.is_apart_from_all(cache) || !are_apart(cache, write.slots_view())) return false;
            for (size_t j = 0; norm && j < num_xs_; ++j)
                if (norm->has_weight(j) && !are_apart(cache, norm->view(j))) return false;
        }
        return write.num_caches < 2 || are_apart(write.views[0], write.views[1]);
    }

    // Return whether results share no memory with weights and slots.
    bool has_outs_apart(const ParsedWrite* write, const ParsedNorm* norm) const {
        if (write && !call.is_apart_from_outs(write->slots_view())) return false;
        for (size_t i = 0; norm && i < num_xs_; ++i)
            if (norm->has_weight(i) && !call.is_apart_from_outs(norm->view(i))) return false;
        return true;
    }

    // Weights of each head make an array of each head.
    bool has_weights_of_heads(const ParsedNorm& norm) const {
        for (size_t i = 0; i < num_xs_; ++i)
            if (norm.is_per_head(i)) return true;
        return false;
    }

    bool set_norms(ParsedNorm& norm) {
        for (size_t i = 0; i < num_xs_; ++i) {
            Array& array = call.array(i);
            const int axis = heads_axis(array);
            if (norm.is_per_head(i) && (axis < 0 || is_paired(array, axis))) return false;
            if (!norm.set_norm(i, array, norm.is_per_head(i) ? array.shape[axis] : 1)) return false;
        }
        return true;
    }

    void run_gradients(const ParsedNorm& norm, std::vector<double>& sums) {
        run_by_heads(norm, [&](const Items<Array>& arrays) { call.run_gradients(arrays, sums); });
    }

    // Call run(arrays), with an array for each head that has a weight of its own.
    template <class Run>
    void run_by_heads(const ParsedNorm& norm, const Run& run) {
        if (!has_weights_of_heads(norm)) return run(call.arrays());
        size_t size = 0;
        const size_t num_arrays = call.arrays().size();
        auto heads_of = [&](size_t i) { return i < num_xs_ && norm.is_per_head(i) ? norm.view(i).shape[0] : 1; };
        for (size_t i = 0; i < num_arrays; ++i) size += static_cast<size_t>(heads_of(i));
        Items<Array> arrays(size);
        std::vector<Norm> norms(size);
        std::vector<CacheRows> caches(size);
        std::vector<NormedX> normed(size);
        size_t next = 0;
        for (size_t i = 0; i < num_arrays; ++i) {
            const Array& array = call.array(i);
            if (i >= num_xs_ || !norm.is_per_head(i)) {
                arrays[next++] = array;
                continue;
            }
            const int axis = heads_axis(array);
            for (int64_t h = 0; h < heads_of(i); ++h, ++next) {
                Array& head_array = arrays[next] = of_head(array, axis, h);
                norms[next] = ParsedNorm::of_head(*array.norm, h, array);
                head_array.norm = &norms[next];
                if (array.normed) head_array.normed = &(normed[next] = normed_of_head(*array.normed, array, axis, h));
                if (!array.cache) continue;
                caches[next] = ParsedWrite::of_head(*array.cache, axis, h, array.num_axes);
                head_array.cache = &caches[next];
            }
        }
        run(arrays);
    }

  private:
    // Return whether an axis of x has positions of its own.
    bool is_paired(const Array& array, int axis) const {
        for (int j = 0; j < parsed_.source.num_axes; ++j)
            if (paired_axis(parsed_.source.num_axes, array.seq_axis, j) == axis) return true;
        return false;
    }

    const Library& library_;
    const ParsedSource& parsed_;
    const size_t num_xs_;
};

}  // namespace

nb::object attention_inputs(nb::handle x, nb::handle source, nb::handle options, nb::handle norm, nb::handle write,
                            nb::handle out, bool checked, bool gated) {
    const nb::object declined = nb::borrow(Py_NotImplemented);
    const ArrayTuple xs(x), outs(out);
    const bool fresh = out.is_none(), has_norm = !norm.is_none(), has_caches = !write.is_none();
    const Library* const library = xs.is_tuple && xs.size ? library_of(xs[0]) : nullptr;
    int64_t axis;
    ParsedSource parsed;
    ParsedNorm parsed_norm;
    ParsedWrite parsed_write;
    if (!library || !parse_options(options, axis)) return declined;
    if (gated && !may_bypass_pytorch(xs, source, fresh ? nullptr : &outs)) return declined;
    if (!parsed.parse(source, *library, false) || (gated && parsed.is_recorded_position(source))) return declined;
    if (has_norm && !parsed_norm.parse(norm, *library, xs.size)) return declined;
    if (gated && has_norm && parsed_norm.any_requires_grad(xs.size) && is_grad_enabled()) return declined;
    if (has_caches && (xs.size != 2 || !parsed_write.parse(write, *library))) return declined;
    const bool has_values = has_caches && parsed_write.num_caches == 2;
    AttentionCall attention(*library, parsed, xs.size, has_values);
    Call& call = attention.call;
    if (!call.parse_xs(xs, axis, checked) || call.array(xs.size - 1).dtype != call.array(0).dtype) return declined;
    if (has_values && !attention.parse_values(parsed_write.values, axis)) return declined;
    if (!fresh && !call.parse_outs(xs, outs, checked)) return declined;
    if (has_norm && !attention.set_norms(parsed_norm)) return declined;
    const ParsedNorm* const used_norm = has_norm ? &parsed_norm : nullptr;
    if (!checked && !attention.has_outs_apart(has_caches ? &parsed_write : nullptr, used_norm)) return declined;
    if (has_caches && !checked && !attention.has_caches_apart(parsed_write, used_norm)) return declined;
    for (size_t i = 0; gated && has_caches && i < parsed_write.num_caches; ++i)
        if (is_recorded(item(parsed_write.caches, i))) return declined;
    const nb::object results = fresh ? call.create_results(xs) : nb::borrow(out);
    for (size_t i = 0; has_caches && i < parsed_write.num_caches; ++i)
        if (!parsed_write.set_cache(i, call.array(xs.size - 1 + i))) return declined;
    if (gated && !fresh && !count_writes(outs)) return declined;
    if (gated && has_caches && !count_writes(ArrayTuple(written_caches(parsed_write)))) return declined;
    if (has_norm)
        attention.run_by_heads(parsed_norm, [&](const Items<Array>& arrays) { call.run(fresh, arrays); });
    else
        call.run(fresh);
    return nb::make_tuple(results, has_caches ? nb::borrow(parsed_write.caches) : nb::none());
}

nb::object attention_gradients(nb::handle gradients, nb::handle x, nb::handle source, nb::handle options, nb::handle norm) {
    const nb::object declined = nb::borrow(Py_NotImplemented);
    const ArrayTuple grads(gradients), xs(x);
    const Library* const library = grads.is_tuple && grads.size ? library_of(grads[0]) : nullptr;
    int64_t axis;
    ParsedSource parsed;
    ParsedNorm parsed_norm;
    if (!library || !xs.is_tuple || xs.size != grads.size || !parse_options(options, axis)) return declined;
    if (!parsed.parse(source, *library, true) || !parsed_norm.parse(norm, *library, xs.size)) return declined;
    AttentionCall attention(*library, parsed, grads.size, false);
    Call& call = attention.call;
    if (!call.parse_xs(grads, axis, true) || call.array(grads.size - 1).dtype != call.array(0).dtype) return declined;
    ArrayView views[2];
    NormedX normed[2];
    size_t num_weights = 0;
    for (size_t i = 0; i < xs.size; ++i) {
        ArrayView& view = views[i];
        if (!library->view(xs[i], view) || view.dtype != call.view(i).dtype || !view.has_same_shape(call.view(i))) return declined;
        if (view.shape[view.num_axes - 1] > 1 && view.strides[view.num_axes - 1] != view.itemsize) return declined;
        if (!view.is_aligned()) return declined;
        normed[i].data = view.data;
        std::copy(view.strides, view.strides + view.num_axes - 1, normed[i].stride);
        normed[i].weight = num_weights;
        num_weights += static_cast<size_t>(call.array(i).width * (parsed_norm.is_per_head(i) ? parsed_norm.view(i).shape[0] : 1));
    }
    const nb::object results = call.create_results(grads);
    for (size_t i = 0; i < xs.size; ++i) {
        Array& array = call.array(i);
        if (array.width > 1 && array.y_feature != ITEMSIZE[array.dtype]) return declined;
        array.normed = &normed[i];
    }
    if (!attention.set_norms(parsed_norm)) return declined;
    std::vector<double> sums(num_weights);
    attention.run_gradients(parsed_norm, sums);
    return nb::make_tuple(results, parsed_norm.gradients(*library, xs.size, sums));
}

}  // namespace rope
