// The entry for attention's inputs: norm, rotation and the write into caches.
#pragma once

#include <nanobind/nanobind.h>

namespace rope {

// Norm and rotate a tuple of one or two arrays, and write the caches of k and v; return the results and the caches, or
// NotImplemented with nothing written. The arguments are those of AttentionCall in rope_array/_array_api/attention.py;
// `checked` and `gated` as for rotate_arrays() in bindings.cpp.
nanobind::object attention_inputs(nanobind::handle x, nanobind::handle source, nanobind::handle options,
                                  nanobind::handle norm, nanobind::handle write, nanobind::handle out, bool checked,
                                  bool gated);

}  // namespace rope
