// Make the operands of rotate() in schedule.hpp from the words of a plan and the views of arrays. Each
// function returns false for operands that the kernel does not serve.
#pragma once

#include "array_view.hpp"

namespace rope {

// Return whether a rope may have the layout, by the rules of Layout.check() in rope_array/_spec/plan.py.
bool is_valid(const Layout& layout);

// Read a plan from the numbers that plan_words() of backends/_native/__init__.py packs. The plan points into them.
bool set_plan(KernelPlan& plan, const int64_t* words, int64_t count);

// Return the plan of the transposed rotation, the map of gradients.
KernelPlan transposed(KernelPlan plan);

// Set the fields of x. Return false for another dtype, a last axis other than head_dim, or no such sequence
// axis.
bool set_array(Array& array, const ArrayView& x, const Layout& layout, int64_t seq_axis);

void set_result(Array& array, const ArrayView& y);

bool set_positions(Source& source, const ArrayView& pos, const KernelPlan& plan);

bool set_tables(Source& source, const ArrayView& cos, const ArrayView& sin, const Layout& layout);

// Ask that new memory come in huge pages, a page fault for each 2 MiB instead of each 4 KiB: a hint only.
void prefer_huge_pages(char* memory, int64_t bytes);

}  // namespace rope
