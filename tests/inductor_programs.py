"""Triton code that torch.compile generates for an H100, without a GPU. A child process runs `main`.

Dynamo and AOTAutograd trace the call on the CPU: by the backend "torch", whose operations CUDA tensors get
too, or by the backend "triton", for which tensors pose as a GPU's. Then each graph, forward and backward,
moves to CUDA, and Inductor generates its code for a described device. The code runs nowhere.
"""

import contextlib
import functools
import itertools
import json
import math
import os
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
    """Print as JSON the modules that Inductor generates: of operations in every case, and of launches."""
    import torch
    import torch._functorch.config
    import torch._inductor.config

    torch._functorch.config.force_non_lazy_backward_lowering = True
    torch._inductor.config.force_disable_caches = True
    modules = {" ".join(case): [facts(module) for module in generate_case(*case)] for case in CASES}
    print(json.dumps(modules | {name: launch_facts(name) for name in LAUNCHES}))


def facts(module):
    """Return a module's code, the sizes of its kernels, and what the last kernel loads and stores."""
    kernels = kernels_of(module)
    code = module[module.index("def call(") :]
    return {"call": code, "sizes": list(map(elements, kernels)), "accesses": accesses(kernels[-1])}


def elements(kernel):
    """Return the number of elements that a pointwise kernel computes."""
    return math.prod(map(int, re.findall(r"^ +[xyz]numel = (\d+)$", kernel, re.MULTILINE)))


def generate_case(dtype, pairing, source):
    """Compile the call of one case by PyTorch's operations; return the modules of its graphs."""
    import torch

    import rope_array as ra

    rope = ra.RoPE(SHAPE[-1], pairing=pairing)

    def rotate(x, *arrays):
        if source == "positions":
            return rope.apply(x, *arrays, backend="torch")
        x = 2 * x if source == "tables in place" else x
        out = x if source == "tables in place" else None
        return rope.rotation_from(*arrays).apply(x, out=out, backend="torch")

    def arrays():
        tables = [torch.empty(SHAPE[-2], SHAPE[-1] // 2) for _ in range(2)]
        x = torch.empty(SHAPE, dtype=getattr(torch, dtype), requires_grad=True)
        return [x, *([torch.arange(SHAPE[-2])] if source == "positions" else tables)]

    return generate(rotate, arrays)


def generate(function, make_arrays, dynamic=False):
    """Compile a function; return the modules of its graphs."""
    import torch
    from torch._inductor.compile_fx import compile_fx
    from torch._subclasses.fake_tensor import FakeTensorMode

    modules = []

    def backend(graph, inputs):
        return compile_fx(graph, inputs, inner_compile=functools.partial(on_cuda, modules))

    torch._dynamo.reset()
    with FakeTensorMode(), contextlib.suppress(Generated):
        torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)(*make_arrays())
    return modules


# ---- launches of the kernel ----

LAYERS = 4
ARCHS = (90, 80, 100) if os.environ.get("ROPE_ARRAY_NIGHTLY") else (90,)
NUMBERS = "i32", "i64", "constexpr"
# By name: the arrays and their source, the dtype, and whether gradients are recorded.
LAUNCHES = {
    "positions": ("positions", "bfloat16", False),
    "float64": ("positions", "float64", False),
    "few tokens": ("few tokens", "bfloat16", False),
    "one array of few tokens": ("one array of few tokens", "bfloat16", False),
    "layers": ("layers", "bfloat16", False),
    "layers trained": ("layers", "bfloat16", True),
    "a rotation": ("a rotation", "bfloat16", False),
    "a rotation trained": ("a rotation", "bfloat16", True),
    "layers trained, any sizes": ("layers", "bfloat16", True),
    "a rotation, any sizes": ("a rotation", "bfloat16", False),
    "a norm": ("a norm", "bfloat16", False),
    "one array": ("one array", "bfloat16", False),
    "features first": ("features first", "bfloat16", False),  # tokens have a stride of 1
    "computed tables": ("computed tables", "bfloat16", False),
}


def launch_facts(name):
    """Return the programs of a function, forward and backward, and facts of our kernels in them.

    `written`: the arguments that PyTorch takes each launch to write, by the code of the kernel.
    """
    import posing_gpu
    from torch._higher_order_ops import triton_kernel_wrap

    written, analysis = [], triton_kernel_wrap.get_mutated_tensors

    def recording(*arguments):
        names = analysis(*arguments)
        written.append(" ".join(sorted(names)))
        return names

    recorded = mock.patch.object(triton_kernel_wrap, "get_mutated_tensors", recording)
    with posing_gpu.posing(interpreted=False), described_driver(), recorded:
        modules = generate(*function_of(*LAUNCHES[name]), "any sizes" in name)
    calls = [module[module.index("def call(") : module.index("runner =")] for module in modules]
    kernels = [kernel for module in modules for kernel in kernels_of(module) if "def _place(" in kernel]
    return {"calls": calls, "written": written, "code": list(map(code_of, kernels))}


def function_of(form, dtype, trained):
    """Return a function of q and k, and a function that makes its arguments."""
    import torch

    import rope_array as ra

    rope = ra.RoPE(128, pairing="half")
    plain = functools.partial(rope.apply, seq_axis=-3)

    def layers(q, k, pos):
        rotation = rope.rotation(pos, like=q) if form == "a rotation" else None
        for _ in range(LAYERS):
            xs = 2 * q, 2 * k  # as a projection makes them
            q, k = plain(xs, pos) if rotation is None else rotation.apply(xs, seq_axis=-3)
        return q, k

    functions = {
        **dict.fromkeys(("positions", "few tokens", "features first"), lambda q, k, pos: plain((q, k), pos)),
        **dict.fromkeys(("one array", "one array of few tokens"), lambda q, k, pos: plain(q, pos)),
        "computed tables": lambda q, k, pos: rope.rotation_from(
            pos[:, None] * q[0, 0, 0, :64].float(), pos[:, None] / k[0, 0, 0, :64].float()
        ).apply((q, k), seq_axis=-3),
        "a norm": lambda q, k, pos: ra.attention_inputs(
            q, k, pos, rope, norm=(q[0, 0, 0], None), seq_axis=-3
        ),
    }

    def arrays():
        tokens, options = (
            1 if "few" in form else 512,
            {"dtype": getattr(torch, dtype), "requires_grad": trained},
        )
        q, k = (torch.empty(2, tokens, heads, 128, **options) for heads in (32, 8))
        if form == "features first":
            q, k = (x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) for x in (q, k))
        return q, k, torch.arange(tokens)

    return functions.get(form, layers), arrays


def kernels_of(module):
    return re.findall(r"async_compile\.triton\('\w+', '''(.*?)'''", module, re.DOTALL)


@functools.cache
def code_of(kernel):
    """Return facts of the machine code of a launch, by GPU: as Inductor compiles it, and as an eager call."""
    meta = decorator_of(kernel)
    signature, constants = meta["triton_meta"]["signature"], meta["triton_meta"]["constants"]
    warps = {"num_warps": meta["configs"][0]["num_warps"]}
    numbers = {name: "i64" for name, kind in signature.items() if name.islower() and kind in NUMBERS}
    eager_constants = {name: value for name, value in constants.items() if name.isupper()} | {"FUSED": False}
    compiled = kernel, signature, constants, meta["triton_meta"]["configs"][0], warps
    eager = kernel, signature | numbers, eager_constants, compiled[3], {**warps, "enable_fp_fusion": False}
    return {arch: [read_code(arch, *compiled), read_code(arch, *eager)] for arch in ARCHS}


def read_code(arch, kernel, *arguments):
    """Return the numbers of instructions and registers, fused operations, and strides times 32 bits."""
    import gpu_compile

    compiled = compile_kernel(arch, kernel, *arguments)
    with tempfile.TemporaryDirectory() as folder:
        code = gpu_compile.read_code(compiled, 1, Path(folder))
    fused = {name: n for name, n in code.instructions.items() if re.match(r"[FD]FMA|F(MUL|ADD).*FTZ", name)}
    narrow = re.findall(r"arith\.muli %[xyw]\d_\w+, .*: i32", compiled.asm["ttir"])
    return {"size": len(code.order), "registers": code.registers, "fused": fused, "narrow": narrow}


def decorator_of(kernel):
    """Return the arguments of Inductor's decorator of a kernel: names of `DeviceProperties` and dtypes."""
    import torch
    import triton
    from torch._inductor.runtime import hints

    class Decorators:
        def __getattr__(self, name):
            return lambda **arguments: arguments

    names = {"triton_heuristics": Decorators(), "__file__": "", "torch": torch, "triton": triton}
    text = kernel[kernel.index("@triton_heuristics") + 1 : kernel.index("@triton.jit")]
    return eval(text, {**vars(hints), **names, "tl": triton.language})


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
        inputs = [x if isinstance(x, torch.SymInt) else _empty_like(x, cuda) for x in inputs]
    mode.allow_non_fake_inputs = True  # the constants
    FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*inputs)
    return inputs


def _empty_like(x, device):
    import torch

    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)


@contextlib.contextmanager
def described_driver():
    """Have Triton find an H100."""
    import triton
    from triton.backends.compiler import GPUTarget

    driver = types.SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0
    )
    with mock.patch.object(triton.runtime.driver, "_active", driver):
        yield


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
    meta = decorator_of(kernel)["triton_meta"]
    # 1024 elements in four warps: the first of the sizes that Inductor tries for large arrays.
    given = meta["signature"], {"XBLOCK": 1024}, meta["configs"][0], {"num_warps": 4}
    code = compile_kernel(90, kernel, *given).asm["ptx"]
    accesses = re.findall(r"\b(ld|st)\.global\S*?(?:\.v(\d))?\.[bfsu](\d+)\s", code)
    return [(instruction, int(count or 1) * int(bits) // 8) for instruction, count, bits in accesses]


def compile_kernel(arch, kernel, signature, constants, aligned, options):
    """Compile the source of a kernel for an NVIDIA GPU."""
    import importlib.util

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.py")
        path.write_text(HEAD + kernel[kernel.index("@triton.jit") :])
        spec = importlib.util.spec_from_file_location("kernel", path)
        spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
        function = getattr(module, re.search(r"def (\w+)\(", kernel)[1])
        source = ASTSource(function, signature, constants, aligned)
        return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
