"""Names of PyTorch, JAX and Triton that these libraries do not document: a version may lack each of them.

All are listed here, and none is imported: `internal` looks them up in the modules that the program has
imported. If one is missing, a kernel may decline calls; nothing else changes.
"""

import sys
from typing import Any

INTERCEPTORS = (  # each returns a true value while something intercepts PyTorch's operations
    "torch._C._are_functorch_transforms_active",
    "torch._C._len_torch_dispatch_stack",
    "torch._C._len_torch_function_stack",
    "torch._C._get_tracing_state",  # torch.jit.is_tracing, in less time
)
FORWARD_LEVEL = (
    "_current_level"  # of torch.autograd.forward_ad: below 0 outside of forward-mode differentiation
)
CREATION = (  # how a view was made, and how most are
    "torch._C._autograd._get_creation_meta",
    "torch._C._autograd.CreationMeta.DEFAULT",
    "torch.Tensor._is_view",
    "torch.Tensor._base",
)
VMAP = (  # the active transforms, the kind that is vmap, its wrappers, and a context outside of transforms
    "torch._C._functorch.get_interpreter_stack",
    "torch._C._functorch.TransformType.Vmap",
    "torch._C._functorch._unwrap_batched",
    "torch._C._functorch._add_batch_dim",
    "torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack",
)
INTERNALS = (
    *INTERCEPTORS,
    f"torch.autograd.forward_ad.{FORWARD_LEVEL}",
    *CREATION,
    *VMAP,
    "torch._C._increment_version",
    "torch.Tensor._is_zerotensor",
    "torch.nn.modules.module._has_any_global_hook",
    "torch.overrides._get_current_function_mode_stack",
    "torch.utils._device.DeviceContext",
    "torch.utils._pytree.register_constant",
    "torch.utils._pytree._register_namedtuple",
    "torch.utils._pytree.SUPPORTED_NODES",
    "torch.utils._pytree.SUPPORTED_SERIALIZED_TYPES",
    "torch.utils._pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE",
    "torch._inductor.config.cpp_wrapper",
    "torch._subclasses.functional_tensor.FunctionalTensorMode",
    "torch.distributed.tensor.DTensor._op_dispatcher._allow_implicit_replication",
    "jax._src.export._export.serialization_registry",
    "jax._src.export._export.deserialization_registry",
    "triton.knobs.runtime",
    "triton.runtime.driver.driver.active.get_current_device",
    "triton.runtime.driver.driver.active.get_current_stream",
)

# The attribute that torch.compiler.assume_constant_result sets on a function, which is all that it does.
CONSTANT_MARK = "_dynamo_marked_constant"


def internal(path: str) -> Any:
    """Return the value of a name; None if its module lacks it, or the program has not imported the module."""
    if path not in INTERNALS:
        raise KeyError(path)
    module, attributes = path, []
    while module not in sys.modules:
        module, _, attribute = module.rpartition(".")
        if not module:
            return None
        attributes.append(attribute)
    value: Any = sys.modules[module]
    for attribute in reversed(attributes):
        value = getattr(value, attribute, None)
    return value
