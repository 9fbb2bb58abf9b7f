// The loop of bfloat16 with AVX-512's instructions for it. No other loop uses them: cpu_levels.cpp takes level_v4's.
#include "loops/norm.hpp"

namespace rope {

void rotate_bf16(const Layout& layout, const Rows& rows) { rotate<BFloat16>(layout, rows); }
void rotate_normed_bf16(const Layout& layout, const Rows& rows, const Norm* norm) {
    rotate_normed<BFloat16>(layout, rows, norm);
}

}  // namespace rope
