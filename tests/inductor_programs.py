"""Triton code that torch.compile generates for an H100, without a GPU. A child process runs `main`.

Dynamo and AOTAutograd trace the call on the CPU, by the backend "torch", whose operations CUDA tensors get
too. Then each graph, forward and backward, moves to CUDA, and Inductor generates its code for a described
device. The code runs nowhere.
"""

import contextlib
import functools
import itertools
import json
import math
import re
import tempfile
import types
from pathlib import Path
from unittest import mock

SHAPE = (2, 16, 2048, 128)
DTYPES = ("float32", "bfloat16")
PAIRINGS = ("half", "interleaved")
CASES = list(itertools.product(DTYPES, PAIRINGS, ("positions", "tables")))
CASES.append(("bfloat16", "half", "tables in place"))
H100 = types.SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    shared_memory_per_block=49152,
    warp_size=32,
)
HEAD = """
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
"""


class Generated(Exception):
    """Raised in place of running the code."""


def main():
    """Print the modules that Inductor generates in every case, and their loads and stores, as JSON."""
    import torch
    import torch._functorch.config
    import torch._inductor.config

    torch._functorch.config.force_non_lazy_backward_lowering = True
    torch._inductor.config.force_disable_caches = True
    modules = {" ".join(case): generate(*case) for case in CASES}
    print(json.dumps({case: [facts(module) for module in pair] for case, pair in modules.items()}))


def facts(module):
    """Return a module's code, the sizes of its kernels, and what the last kernel loads and stores."""
    kernels = re.findall(r"async_compile\.triton\('\w+', '''(.*?)'''", module, re.DOTALL)
    code = module[module.index("def call(") :]
    return {"call": code, "sizes": list(map(elements, kernels)), "accesses": accesses(kernels[-1])}


def elements(kernel):
    """Return the number of elements that a pointwise kernel computes."""
    return math.prod(map(int, re.findall(r"^ +[xyz]numel = (\d+)$", kernel, re.MULTILINE)))


def generate(dtype, pairing, source):
    """Compile the call of one case; return the modules of its graphs."""
    import torch
    from torch._inductor.compile_fx import compile_fx
    from torch._subclasses.fake_tensor import FakeTensorMode

    import rope_array as ra

    rope, modules = ra.RoPE(SHAPE[-1], pairing=pairing), []

    def rotate(x, *arrays):
        if source == "positions":
            return rope.apply(x, *arrays, backend="torch")
        x = 2 * x if source == "tables in place" else x
        out = x if source == "tables in place" else None
        return rope.rotation_from(*arrays).apply(x, out=out, backend="torch")

    def backend(graph, inputs):
        return compile_fx(graph, inputs, inner_compile=functools.partial(on_cuda, modules))

    torch._dynamo.reset()
    with FakeTensorMode(), contextlib.suppress(Generated):
        x = torch.empty(SHAPE, dtype=getattr(torch, dtype), requires_grad=True)
        tables = [torch.empty(SHAPE[-2], SHAPE[-1] // 2) for _ in range(2)]
        arrays = [torch.arange(SHAPE[-2])] if source == "positions" else tables
        torch.compile(rotate, fullgraph=True, backend=backend)(x, *arrays)
    return modules


def on_cuda(modules, graph, inputs, **options):
    """Move a graph to CUDA, and append the module that Inductor generates of it to `modules`."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.graph import GraphLowering

    def keep(self):
        modules.append(self.codegen()[0].value)
        return types.SimpleNamespace(__file__="", call=stop, key="", value="")

    def stop(arguments):
        raise Generated

    inputs = move(graph, inputs)
    with described_device(), mock.patch.object(GraphLowering, "compile_to_module", keep):
        compile_fx_inner(graph, inputs, **options)
    stop._boxed_call = True
    return stop


def move(graph, inputs):
    """Move a graph to CUDA: devices, constants and the metadata; return its inputs there."""
    import torch
    from torch._inductor.virtualized import V
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    cuda, mode = torch.device("cuda", 0), V.fake_mode
    for node in list(graph.graph.nodes):
        node.args, node.kwargs = torch.fx.node.map_aggregate(
            (node.args, node.kwargs), lambda value: cuda if isinstance(value, torch.device) else value
        )
        if node.op == "get_attr":
            with graph.graph.inserting_after(node):
                moved = graph.graph.call_function(torch.ops.prims.device_put.default, (node, cuda))
            node.replace_all_uses_with(moved, delete_user_cb=lambda user, moved=moved: user is not moved)
    graph.recompile()
    with mode:
        inputs = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=cuda) for x in inputs]
    mode.allow_non_fake_inputs = True  # the constants
    FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*inputs)
    return inputs


@contextlib.contextmanager
def described_device():
    """Have Inductor find an H100 and Triton."""
    import torch
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.graph import GraphLowering

    answers = {"get_device_properties": H100, "get_compute_capability": 90}
    answers |= {"is_available": True, "is_bf16_supported": True}
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(CudaInterface, name, return_value=answer))
        for owner in (torch.cuda, CudaInterface.Worker):
            stack.enter_context(mock.patch.object(owner, "get_device_properties", return_value=H100))
        stack.enter_context(mock.patch("torch._inductor.scheduler.has_triton", return_value=True))
        stack.enter_context(mock.patch("torch.utils._triton.triton_hash_with_backend", return_value=""))
        # Inductor would copy constants to the device.
        keep_name = mock.patch.object(GraphLowering, "constant_name", lambda self, name, device: name)
        stack.enter_context(keep_name)
        yield


def accesses(kernel):
    """Compile a pointwise kernel for an H100; return the bytes of each load and each store."""
    import ast
    import importlib.util

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = ast.literal_eval(re.search(r"'signature': (\{.*?\})", kernel)[1])
    aligned = ast.literal_eval(re.search(r"'configs': \[(\{.*?\})\]", kernel)[1])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.py")
        path.write_text(HEAD + kernel[kernel.index("@triton.jit") :])
        spec = importlib.util.spec_from_file_location("kernel", path)
        spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
        function = getattr(module, re.search(r"def (\w+)\(", kernel)[1])
        # 1024 elements in four warps: the first of the sizes that Inductor tries for large arrays.
        source = ASTSource(function, signature, {"XBLOCK": 1024}, aligned)
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    accesses = re.findall(r"\b(ld|st)\.global\S*?(?:\.v(\d))?\.[bfsu](\d+)\s", compiled.asm["ptx"])
    return [(instruction, int(count or 1) * int(bits) // 8) for instruction, count, bits in accesses]
