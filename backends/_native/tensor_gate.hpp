// Decide which calls may bypass PyTorch, which does not see the kernel's calls, and count their writes for
// autograd.
#pragma once

#include "libraries.hpp"

namespace rope {

// Register PyTorch's functions. Each of `interceptors` returns a true value while something intercepts operations; None
// if this PyTorch does not report that. `forward_ad` is the module with the level of forward-mode differentiation, and
// `count_writes` takes a tuple of tensors.
void use_gate(nb::handle interceptors, nb::handle forward_ad, nb::handle is_grad_enabled,
              nb::handle is_inference_mode_enabled, nb::handle is_inference, nb::handle count_writes);

// Return whether a call may bypass PyTorch: nothing intercepts operations, and no gradient is recorded. False
// if `interceptors` was None. backends/torch/_eager.py decides all other calls, and gives reasons.
bool may_bypass_pytorch(const ArrayTuple& xs, nb::handle source, const ArrayTuple* outs);

// Return whether PyTorch records a gradient of this tensor; may_bypass_pytorch() does not look at positions.
bool is_recorded(nb::handle tensor);

// Return whether PyTorch records gradients of anything now.
bool is_grad_enabled();

// Return whether a tensor requires a gradient.
bool requires_grad(nb::handle array);

// Count a write to each out, as operations in place do, so that autograd detects a change of saved tensors.
// Tensors of inference mode have no count, and may be written in that mode only: outside of it, return false
// if there is such a tensor, with nothing counted.
bool count_writes(const ArrayTuple& outs);

}  // namespace rope
