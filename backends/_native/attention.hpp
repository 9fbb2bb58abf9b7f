// The entries for attention's inputs (norm, rotation and the write into caches) and for shifts of cached keys.
#pragma once

#include <nanobind/nanobind.h>

namespace rope {

// Norm and rotate a tuple of one or two arrays, and write the caches of k and v; return the results and the caches, or
// NotImplemented with nothing written. The arguments are the fields of AttentionCall in rope_array/_array_api/attention.py;
// `checked` and `gated` as for rotate_arrays() in bindings.cpp.
nanobind::object attention_inputs(nanobind::handle x, nanobind::handle source, nanobind::handle options,
                                  nanobind::handle norm, nanobind::handle write, nanobind::handle out, bool checked,
                                  bool gated);

// Return the gradients of arrays and of their weights (None for none) from the gradients of results; NotImplemented for
// calls that are not served. `source` is the call's source for positions, and its adjoint for tables.
nanobind::object attention_gradients(nanobind::handle gradients, nanobind::handle x, nanobind::handle source,
                                     nanobind::handle options, nanobind::handle norm);

// Rotate rows of a tuple of caches in place, and return the tuple. The arguments are the fields of KeyShift in
// rope_array/_array_api/shift.py. Return NotImplemented, with nothing written, for caches whose features are strided or
// unaligned or whose heads are not equally spaced, and for a slot that appears twice.
nanobind::object shift_keys(nanobind::handle caches, nanobind::handle slots, nanobind::handle source,
                            nanobind::handle seq_axis, bool checked, bool gated);

}  // namespace rope
