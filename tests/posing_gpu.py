"""Tensors of the CPU that pose as a GPU's while torch.compile traces: graphs with launches of Triton.

Triton's interpreter runs the launches of a graph. It interprets all kernels of a process, so the graphs have
kernels that are never compiled.
"""

import collections
import contextlib
from unittest import mock

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch._higher_order_ops import triton_kernel_wrap
from triton.runtime.jit import JITFunction

import rope_array._backends.torch._triton_traced
from rope_array._backends.torch import _attention, _compiled, _triton_kernel, _triton_launch, native
from rope_array._backends.torch import triton as backend

FUNCTIONAL = torch.ops.higher_order.triton_kernel_wrapper_functional


@contextlib.contextmanager
def posing(interpreted=True):
    """Have the backend "triton" serve tensors of the CPU in compiled programs.

    `interpreted`: the process interprets all kernels.
    """
    patches = [
        (native, "decline_reason", lambda xs, source: "the tensors pose as a GPU's"),
        (backend, "_why_not_compiled", lambda device: None),
        (_compiled, "on_gpu", lambda tensor: True),
        (_attention, "on_gpu", lambda tensor: True),
        (_triton_launch, "interpreted", True),  # a stream of a GPU has no use
    ]
    if interpreted:
        traced = rope_array._backends.torch._triton_traced  # which a fault replaces
        patches += [(traced, name, _uninterpreted(name)) for name in ("rotate_rows", "make_inputs")]
        patches += [(triton_kernel_wrap, "get_mutated_tensors", _written)]
    with contextlib.ExitStack() as stack:
        for owner, name, value in patches:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def _uninterpreted(name):
    """Return a kernel that PyTorch takes into a graph."""
    kernel = JITFunction(getattr(_triton_kernel, name).fn)
    kernel.hash = name  # of its source, which refers to functions that are interpreted
    return kernel


def _written(kernel_idx, constant_args_idx, kwargs, metadata):
    """Return what PyTorch finds in the code of a compiled kernel: tests/test_inductor_offline.py."""
    return ["y0", "y1"] if kwargs["HEADS1"] or kwargs.get("CHUNKS") else ["y0"]


class Program:
    """A compiled function, whose graphs run here, by Triton's interpreter.

    Attributes
    ----------
    graphs
        Forward and backward, of each compilation.
    static
        The inputs of each graph that have a static address.
    """

    def __init__(self, function, **options):
        self.graphs, self.static = [], []
        backend = aot_autograd(fw_compiler=self._keep, bw_compiler=self._keep)
        self.run = torch.compile(function, **{"backend": backend, "fullgraph": True, **options})

    def _keep(self, graph, inputs):
        self.graphs.append(graph)
        self.static.append(TracingContext.get().fw_metadata.static_input_indices)
        return make_boxed_func(lambda *arguments: Interpreter(graph).run(*arguments))

    def operators(self):
        """Return the operators of each graph."""
        return list(map(operators_of, self.graphs))


def operators_of(graph):
    """Return the kernels that a graph launches and the package's operators in it, with their number."""
    return dict(collections.Counter(filter(None, map(_name, graph.graph.nodes))))


def _name(node):
    """Return the name of a kernel that a node launches, or of an operator of the package."""
    if node.target is FUNCTIONAL:
        kernel = triton_kernel_wrap.kernel_side_table.get_kernel(node.kwargs["kernel_idx"])
        return getattr(kernel, "fn", kernel).__name__
    names = map(str, (node.target, *node.args))  # an operator that writes is an argument of functionalization
    return next((name for name in names if name.startswith("rope_array.")), None)


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
        # The interpreter has no instruction of a GPU, with which FUSED multiplies.
        getattr(_triton_kernel, name)[grid](**{**tensors, **constants, **written, "FUSED": False})
        return written
