"""Compile the Triton kernel for GPUs that are not there, and read its machine code."""

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rope_array._array_api.attention import check_attention_call
from rope_array._array_api.checks import check_call
from rope_array._array_api.source import CallOptions, Tables
from rope_array._backends.torch import _triton_inputs, _triton_launch
from rope_array._backends.torch._library import LIBRARY
from rope_array._backends.torch._triton_kernel import rotate_rows

ARCHS = {"sm_80": 80, "sm_90": 90, "sm_100": 100}
_TYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}
_TYPES |= {torch.int32: "i32", torch.int64: "i64", torch.int8: "i8", torch.uint8: "u8"}
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class MachineCode(NamedTuple):
    """The machine code of a launch."""

    instructions: Counter  # their number by name
    pairs: float  # that a thread rotates
    registers: int
    stack: int  # bytes of memory that a thread needs in addition to its registers
    order: list[str]  # the names of the instructions

    @property
    def per_pair(self):
        return sum(self.instructions.values()) / self.pairs

    def widths(self, instruction):
        """Return the bits of the loads (LDG) or stores (STG) of global memory, each with their number."""
        widths = Counter()
        for name, count in self.instructions.items():
            if name.startswith(instruction):
                bits = re.search(r"\.[US]?(8|16|64|128)\b", name)
                widths[int(bits[1]) if bits else 32] += count
        return widths


def launches(xs, source, seq_axis=-2, in_place=False, transposed=False):
    """Return the launches of a call. Its tensors are on the CPU; on a GPU the launches are the same."""
    ys = xs if in_place else [torch.empty_like(x) for x in xs]
    return _triton_launch.prepare(xs, ys, source, CallOptions(seq_axis), transposed)


def inputs_launch(xs, source, seq_axis, norm=None, write=None, in_place=False):
    """Return the launch that makes attention's inputs, and the types of its arguments after the source's."""
    call = check_call(xs, source, (seq_axis,), LIBRARY)
    inputs = check_attention_call(call, norm, write, xs if in_place else None)
    ys = xs if in_place else [torch.empty_like(x) for x in xs]
    prepared = _triton_inputs.prepare(inputs, ys, source)
    more = _triton_inputs.arguments_of(xs, norm, write, prepared)
    return prepared.launch, [f"*{_TYPES[x.dtype]}" if isinstance(x, torch.Tensor) else "fp32" for x in more]


def compile_for(target, launch, xs, source, kernel=rotate_rows, more=()):
    """Compile a launch for a target of Triton's, tensors beginning at multiples of 16 bytes."""
    read = source[:2] if isinstance(source, Tables) else (source.values, source.values)
    read = [_TYPES[tensor.dtype] if isinstance(tensor, torch.Tensor) else "i64" for tensor in read]
    arrays = [_TYPES[xs[i].dtype] for i in (launch.index0, launch.index0, launch.index1, launch.index1)]
    pointers = [f"*{name}" for name in (*arrays, *read, "i64")]
    names, constants = kernel.arg_names, constants_of(launch, kernel)
    pointers += more
    types = [*pointers, *["i64"] * (1 + len(launch.numbers)), *["constexpr"] * len(constants)]
    kernel_source = ASTSource(
        kernel,
        dict(zip(names, types, strict=True)),
        {(names.index(name),): value for name, value in constants.items()},
        {(i,): [["tt.divisibility", 16]] for i, name in enumerate(pointers) if name[0] == "*"},
    )
    return triton.compile(kernel_source, target=target, options=_triton_launch.options_of(launch))


def constants_of(launch, kernel=rotate_rows):
    """Return the constants of a launch by their names in the kernel."""
    return dict(zip(kernel.arg_names[-len(launch.constants) :], launch.constants, strict=True))


def machine_code(arch, launch, xs, source, folder, kernel=rotate_rows, more=()):
    """Return the code of a launch for an NVIDIA GPU."""
    compiled = compile_for(GPUTarget("cuda", ARCHS[arch], 32), launch, xs, source, kernel, more)
    constants = constants_of(launch, kernel)
    rows = constants["TOKENS"] * (constants["HEADS0"] + constants["HEADS1"])
    return read_code(compiled, rows * constants["PAIRS"] / (32 * launch.num_warps), folder)


def read_code(compiled, pairs, folder):
    """Return the code of a compiled kernel, of which a thread rotates so many pairs."""
    path = folder / "kernel.cubin"
    path.write_bytes(compiled.asm["cubin"])
    text, usage = (_run("cuobjdump", option, path) for option in ("-sass", "-res-usage"))
    order = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", text, re.MULTILINE)
    while not order[-1].startswith(("EXIT", "RET")):  # padding
        order.pop()
    registers, *memory = (int(re.search(rf"\b{name}:(\d+)", usage)[1]) for name in ("REG", "STACK", "LOCAL"))
    return MachineCode(Counter(order), pairs, registers, sum(memory), order)


def _run(tool, *arguments):
    done = subprocess.run([_TOOLS / tool, *arguments], capture_output=True, text=True, check=True)
    return done.stdout
