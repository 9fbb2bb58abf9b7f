"""Tensors of the CPU that pose as a GPU's while torch.compile traces: graphs with launches of Triton.

Triton's interpreter runs the launches of a graph. It interprets all kernels of a process, so the graphs have
kernels that are never compiled.
"""

import contextlib
from unittest import mock

import torch
from torch._higher_order_ops import triton_kernel_wrap
from triton.runtime.jit import JITFunction

from rope_array._backends.torch import _attention, _compiled, _triton_kernel, _triton_traced, native
from rope_array._backends.torch import triton as backend

FUNCTIONAL = torch.ops.higher_order.triton_kernel_wrapper_functional


@contextlib.contextmanager
def posing():
    """Have the backend "triton" serve tensors of the CPU in compiled programs."""
    kernels = {name: JITFunction(getattr(_triton_kernel, name).fn) for name in ("rotate_rows", "make_inputs")}
    for name, kernel in kernels.items():
        kernel.hash = name  # of its source, which refers to functions that are interpreted
    patches = [
        (native, "decline_reason", lambda xs, source: "the tensors pose as a GPU's"),
        (backend, "_why_not_compiled", lambda device: None),
        (_compiled, "on_gpu", lambda tensor: True),
        (_attention, "on_gpu", lambda tensor: True),
        (triton_kernel_wrap, "get_mutated_tensors", _written),
        *((_triton_traced, name, kernel) for name, kernel in kernels.items()),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, value in patches:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def _written(kernel_idx, constant_args_idx, kwargs, metadata):
    return ["y0", "y1"] if kwargs["HEADS1"] else ["y0"]


class Interpreter(torch.fx.Interpreter):
    """Runs a graph; its launches by Triton's interpreter."""

    def call_function(self, target, args, kwargs):
        if target is not FUNCTIONAL:
            return super().call_function(target, args, kwargs)
        tensors, table = kwargs["kwargs"], triton_kernel_wrap.kernel_side_table
        written = {name: tensors[name].clone() for name in kwargs["tensors_to_clone"]}
        kernel = table.get_kernel(kwargs["kernel_idx"])
        constants = table.get_constant_args(kwargs["constant_args_idx"])
        name = getattr(kernel, "fn", kernel).__name__
        (grid,) = kwargs["grid"]
        # The interpreter does not know the instruction that FUSED stands for.
        getattr(_triton_kernel, name)[grid](**{**tensors, **constants, **written, "FUSED": False})
        return written


def run(graph, inputs):
    return Interpreter(graph).run(*inputs)
