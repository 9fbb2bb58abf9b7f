"""Compile the Triton kernel for GPUs that are not there, and read its machine code."""

import functools
import os
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rope_array._array_api.source import Tables
from rope_array._backends.torch import _launch
from rope_array._backends.torch._triton_kernel import rotate_rows

ARCHS = {"sm_80": 80, "sm_90": 90, "sm_100": 100}
_TYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}
_TYPES |= {torch.int32: "i32", torch.int64: "i64"}


class Code(NamedTuple):
    """The machine code of a launch: its instructions by name, and the pairs that a thread rotates."""

    instructions: Counter
    pairs: float
    registers: int
    local_bytes: int
    shared_bytes: int
    text: str

    @property
    def per_pair(self):
        return sum(self.instructions.values()) / self.pairs

    def widths(self, kind):
        """Return the bits of each load (LDG) or store (STG) of global memory, with their number."""
        found = Counter()
        for name, count in self.instructions.items():
            if name.startswith(kind):
                (bits,) = re.findall(r"\.(8|16|32|64|128)$", re.sub(r"\.[US](8|16)\b", r".\1", name)) or (
                    "32",
                )
                found[int(bits)] += count
        return found


def launches(xs, source, seq_axis=-2, in_place=False, transposed=False):
    """Return the launches of a call on tensors without memory, as a GPU would run them."""
    ys = xs if in_place else [torch.empty_like(x) for x in xs]
    return _launch._prepare(xs, ys, source, seq_axis, transposed)


def compile_launch(launch, xs, source, arch, aligned=True):
    """Return the code of a launch for an NVIDIA GPU."""
    tables = isinstance(source, Tables)
    if tables:
        first = second = _TYPES[source.cos.dtype]
    else:
        first = second = _TYPES[source.values.dtype] if isinstance(source.values, torch.Tensor) else "i64"
    arrays = [_TYPES[xs[i].dtype] for i in (launch.first, launch.first, launch.second, launch.second)]
    names = rotate_rows.arg_names
    pointers = [f"*{kind}" for kind in (*arrays, first, second, "i64")]
    count = len(launch.numbers) + 1
    kinds = [*pointers, *["i64"] * count, *["constexpr"] * len(launch.constants)]
    constants = dict(zip(names[-len(launch.constants) :], launch.constants, strict=True))
    attributes = {(i,): [["tt.divisibility", 16]] for i in range(len(pointers))} if aligned else {}
    made = ASTSource(
        rotate_rows, dict(zip(names, kinds, strict=True)), {(names.index(n),): v for n, v in constants.items()},
        attributes,
    )  # fmt: skip
    target = GPUTarget("cuda", ARCHS[arch], 32)
    options = {"num_warps": launch.num_warps, "enable_fp_fusion": False}
    compiled = triton.compile(made, target=target, options=options)
    x = xs[launch.first]
    head_dim = x.shape[-1]
    tile = dict(zip(names[-len(launch.constants) :], launch.constants, strict=True))
    rows = tile["TOKENS"] * (tile["HEADS0"] + tile["HEADS1"])
    pairs = rows * tile["PAIRS"] / (32 * launch.num_warps)
    del head_dim
    return _read(compiled.asm["cubin"], pairs, compiled.metadata.shared)


def _tool(name):
    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


def _read(cubin, pairs, shared):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.cubin")
        Path(path).write_bytes(cubin)
        text = subprocess.run(
            [_tool("cuobjdump"), "-sass", path], capture_output=True, text=True, check=True
        ).stdout
        usage = subprocess.run(
            [_tool("cuobjdump"), "-res-usage", path], capture_output=True, text=True, check=True
        ).stdout
    names = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", text, re.M)
    names = names[: len(names) - _padding(names)]
    usage_of = functools.partial(_usage, usage)
    return Code(Counter(names), pairs, usage_of("REG"), usage_of("STACK") + usage_of("LOCAL"), shared, text)


def _padding(names):
    """Return the number of instructions after the last exit: a branch to itself, and NOPs."""
    return next(i for i, name in enumerate(reversed(names)) if name.startswith(("EXIT", "RET")))


def _usage(text, name):
    return int(re.search(rf"\b{name}:(\d+)", text)[1])
