"""The CUDA source, compiled for GPUs and disassembled: wide accesses, no spills, few instructions. No GPU."""

import collections
import functools
import re
import subprocess
from importlib.metadata import distribution

import pytest
from cupy.cuda import nvrtc

from rope_array._backends.cupy import _launch

ARCHS = ["sm_80", "sm_90", "sm_100"]
# Instructions for a pair that an H100 has time for while it copies at 3.0 TB/s, by the size of an element.
# Its 132 multiprocessors issue 4 · 32 a cycle at 1.7 GHz; of a pair of 16 bits, 8 bytes are read or written.
BUDGET = {2: 76, 4: 153, 8: 306}
IN_A_HEAD = {2: 13, 4: 12, 8: 26}  # instructions for a pair in each head
ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
LEAST_HEADS = 4  # of a thread, in calls with enough threads: see configure()
MANY = [
    (dtype, (True, half, half, tables))
    for dtype in ITEMSIZE
    for half in (True, False)
    for tables in (False, True)
]
MIXED = [("bfloat16", (True, half, not half, False)) for half in (True, False)]
NARROW = [(dtype, (False, True, True, False)) for dtype in ITEMSIZE]
KERNELS = {_launch.kernel_name(*kernel): kernel for kernel in [*MANY, *MIXED, *NARROW]}


def tool(name):
    package = {"cuobjdump": "nvidia-cuda-cuobjdump", "nvcc": "nvidia-cuda-nvcc"}[name]
    (path,) = (file for file in distribution(package).files if file.name == name)
    return str(path.locate())


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@functools.cache
def compiled(arch, folder):
    """Compile the kernels as CuPy does, which adds -ftz=true; return their mangled names and the file."""
    program = nvrtc.createProgram(_launch.code(), "rotate.cu", [], [])
    for name in KERNELS:
        nvrtc.addNameExpression(program, name)
    try:
        nvrtc.compileProgram(program, (f"-arch={arch}", *_launch.OPTIONS, "-ftz=true", "-w"))
    except nvrtc.NVRTCError:
        raise AssertionError(nvrtc.getProgramLog(program)) from None
    path = folder / f"{arch}.cubin"
    path.write_bytes(nvrtc.getCUBIN(program) + b"\0")  # CuPy leaves out the last byte
    names = {name: nvrtc.getLoweredName(program, name) for name in KERNELS}
    sass, usage = (run(tool("cuobjdump"), option, str(path)) for option in ("-sass", "-res-usage"))
    code = {part.split()[0]: part for part in sass.split("Function : ")[1:]}
    used = {part.split(":")[0]: part for part in usage.split("Function ")[1:]}
    return {name: (code[mangled], used[mangled]) for name, mangled in names.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cubin")


@pytest.fixture(params=ARCHS)
def arch(request):
    return request.param


@pytest.fixture(params=KERNELS)
def kernel(request, arch, folder):
    """A kernel's dtype and flags, its instructions, and its registers and memory."""
    code, used = compiled(arch, folder)[request.param]
    return *KERNELS[request.param], instructions(code), used


def instructions(code):
    """Return the instructions by their addresses, without their predicates."""
    found = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;", code, re.MULTILINE)
    return {int(address, 16): text for address, text in found if not text.startswith("NOP")}


def loops(code):
    """Return the instructions of each innermost loop."""
    ends = {}
    for address, text in code.items():
        target = re.search(r"^BRA\b.*?(0x[0-9a-f]+)", text)
        if target and int(target.group(1), 16) <= address:
            ends[int(target.group(1), 16)] = address
    inner = [
        (first, last)
        for first, last in ends.items()
        if not any(first <= other and end < last for other, end in ends.items() if other != first)
    ]
    return [[text for at, text in code.items() if first <= at <= last] for first, last in inner]


def kinds(code):
    return collections.Counter(text.split()[0] for text in code)


def pairs_of_thread(dtype, flags):
    wide, reads_half, writes_half, _ = flags
    if not wide:
        return 1
    return 16 // ITEMSIZE[dtype] // (1 if reads_half or writes_half else 2)


def main_loop(dtype, code):
    """Return the loop over heads that rotates most pairs."""
    product = "DMUL" if dtype == "float64" else "FMUL"
    return max(loops(code), key=lambda loop: kinds(loop)[product])


def heads_at_once(flags):
    return 4 if flags[0] and not (flags[1] or flags[2]) else 2


def test_registers_stay_in_registers(kernel):
    _, _, code, used = kernel
    assert not {kind for kind in kinds(code.values()) if kind.startswith(("LDL", "STL"))}
    assert "STACK:0 " in used
    assert "LOCAL:0 " in used
    assert int(re.search(r"REG:(\d+)", used).group(1)) <= 65536 // (5 * 128)


def test_accesses_are_wide(kernel):
    dtype, flags, code, _ = kernel
    for loop in loops(code):
        accesses = [kind for kind in kinds(loop) if kind.startswith(("LDG", "STG"))]
        if flags[0] and any(kind.startswith("STG") for kind in accesses):
            assert {kind.rpartition(".")[2] for kind in accesses} == {"128"}, dtype


def test_products_and_sums_are_not_fused(kernel):
    dtype, _, code, _ = kernel
    assert not kinds(code.values())["DFMA"]
    assert not kinds(main_loop(dtype, code))["FFMA"]


def test_instructions_for_a_pair(kernel):
    dtype, flags, code, _ = kernel
    if not flags[0]:
        return
    pairs = pairs_of_thread(dtype, flags)
    loop = main_loop(dtype, code)
    in_head = len(loop) / (pairs * heads_at_once(flags))
    assert in_head <= IN_A_HEAD[ITEMSIZE[dtype]]
    # All other instructions, as if each ran once: other kinds of sources and copies too.
    once = (len(code) - len(loop)) / pairs
    assert in_head + once / LEAST_HEADS <= BUDGET[ITEMSIZE[dtype]]


def test_subnormal_numbers_are_kept(kernel):
    """CuPy's -ftz=true does not reach the rotation."""
    dtype, _, code, _ = kernel
    assert not {kind for kind in kinds(main_loop(dtype, code)) if kind.startswith("F") and "FTZ" in kind}


@pytest.mark.parametrize("arch", ARCHS)
def test_nvcc_compiles_without_spills(arch, tmp_path):
    names = [name for name, (dtype, _) in KERNELS.items() if dtype in ("bfloat16", "float64")]
    text = "".join(f"template __global__ void {name}(rope::Call);\n" for name in names)
    source = tmp_path / "instances.cu"
    source.write_text(_launch.code() + text, "utf-8")
    options = ("-cubin", "-std=c++17", "--fmad=false", "-ftz=true", "-Xptxas", "-v")
    printed = run(
        tool("nvcc"), f"-arch={arch}", *options, str(source), "-o", str(tmp_path / "instances.cubin")
    )
    assert printed.count("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") == len(names)
