// Decide whether views share memory: exactly, if the views are column ranges of rows of one length, as q, k
// and v in one array are. rope_array/_array_api/out.py has the same rule, and a search for all other views.
#pragma once

#include "array_view.hpp"

namespace rope {

// Return whether two views of one shape and dtype have the same elements in the same order.
bool are_same(const ArrayView& a, const ArrayView& b);

// Return whether elements of a view may share memory. False if each stride is at least the extent of the axes
// with smaller strides.
bool may_overlap_itself(const ArrayView& view);

// Return whether two views share no byte. If unsure, return false.
bool are_apart(const ArrayView& a, const ArrayView& b);

}  // namespace rope
