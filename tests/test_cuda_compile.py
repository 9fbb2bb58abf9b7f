"""The CUDA source, compiled for GPUs and disassembled: wide accesses, no spills, few instructions. No GPU."""

import collections
import functools
import re
import subprocess
from importlib.metadata import distribution

import pytest
from cupy.cuda import nvrtc

from rope_array._backends.cupy import _launch

ARCHS = [
    pytest.param("sm_80", marks=pytest.mark.nightly),
    "sm_90",
    pytest.param("sm_100", marks=pytest.mark.nightly),
]
# Instructions for a pair that an H100 has time for while it copies at 3.0 TB/s, by the size of an element.
# Its 132 multiprocessors issue 4 · 32 a cycle at 1.7 GHz; of a pair of 16 bits, 8 bytes are read or written.
BUDGET = {2: 76, 4: 153, 8: 306}
IN_A_HEAD = {2: 13, 4: 12, 8: 26}  # instructions for a pair in each head
ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
LEAST_HEADS = 4  # of a thread, in calls with enough threads: see configure()
BOTH = (True, False)
MANY = [(dtype, (True, half, half, tables)) for dtype in ITEMSIZE for half in BOTH for tables in BOTH]
MIXED = [("bfloat16", (True, half, not half, False)) for half in BOTH]
NARROW = [(dtype, (False, True, True, False)) for dtype in ITEMSIZE]
FLOATS = [("bfloat16", (True, half, half, False), number) for half in BOTH for number in ("float", "double")]
KERNELS = {_launch.kernel_name(*kernel): kernel for kernel in [*MANY, *MIXED, *NARROW, *FLOATS]}
INPUTS = {
    _launch.inputs_name(*kernel): kernel
    for kernel in (("bfloat16", (True, True, True, False)), ("float32", (False, False, False, True)))
}


def disassemble(option, path):
    (tool,) = (f for f in distribution("nvidia-cuda-cuobjdump").files if f.name == "cuobjdump")
    return subprocess.run([tool.locate(), option, path], capture_output=True, text=True, check=True).stdout


@functools.cache
def compiled(arch, folder):
    """Compile the kernels as CuPy does, which adds -ftz=true; return their instructions and their usage."""
    program = nvrtc.createProgram(_launch.code(), "rotate.cu", [], [])
    for name in (*KERNELS, *INPUTS):
        nvrtc.addNameExpression(program, name)
    try:
        nvrtc.compileProgram(program, (f"-arch={arch}", *_launch.OPTIONS, "-ftz=true", "-w"))
    except nvrtc.NVRTCError:
        raise AssertionError(nvrtc.getProgramLog(program)) from None
    path = folder / f"{arch}.cubin"
    path.write_bytes(nvrtc.getCUBIN(program) + b"\0")  # CuPy leaves out the last byte
    names = {name: nvrtc.getLoweredName(program, name) for name in (*KERNELS, *INPUTS)}
    sass, usage = (disassemble(option, path) for option in ("-sass", "-res-usage"))
    code = {function.split()[0]: function for function in sass.split("Function : ")[1:]}
    used = {function.split(":")[0]: function for function in usage.split("Function ")[1:]}
    return {name: (instructions(code[mangled]), used[mangled]) for name, mangled in names.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cubin")


def instructions(code):
    """Return the instructions by their addresses, without their predicates."""
    lines = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;", code, re.MULTILINE)
    return {int(address, 16): text for address, text in lines if not text.startswith("NOP")}


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
        if not any(first <= start and end < last for start, end in ends.items() if start != first)
    ]
    return [[text for at, text in code.items() if first <= at <= last] for first, last in inner]


def kinds(code):
    return collections.Counter(text.split()[0] for text in code)


def pairs_of_thread(dtype, flags):
    vectors, reads_half, writes_half, _ = flags
    return 16 // ITEMSIZE[dtype] // (1 if reads_half or writes_half else 2) if vectors else 1


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("arch", ARCHS)
def test_machine_code(arch, name, folder):
    """Registers do not spill, accesses are wide, nothing is fused, and instructions fit in the budget."""
    (dtype, flags, *_), (code, used) = KERNELS[name], compiled(arch, folder)[name]
    assert not re.search(r"LDL|STL|DFMA", " ".join(code.values()))
    assert "STACK:0 " in used
    assert "LOCAL:0 " in used
    assert int(re.search(r"REG:(\d+)", used).group(1)) <= 65536 // (5 * 128)
    # The loop over heads that rotates most pairs.
    product = "DMUL" if dtype == "float64" else "FMUL"
    loop = max(loops(code), key=lambda loop: kinds(loop)[product])
    assert not kinds(loop)["FFMA"]
    # CuPy's -ftz=true does not reach the rotation.
    assert not [opcode for opcode in kinds(loop) if opcode.startswith("F") and "FTZ" in opcode]
    if flags[0]:
        assert_wide(code)
        pairs, heads_at_once = pairs_of_thread(dtype, flags), 2 if flags[1] or flags[2] else 4
        in_head = len(loop) / (pairs * heads_at_once)
        assert in_head <= IN_A_HEAD[ITEMSIZE[dtype]]
        # All other instructions, as if each ran once: other kinds of sources and copies too.
        once = (len(code) - len(loop)) / pairs
        assert in_head + once / LEAST_HEADS <= BUDGET[ITEMSIZE[dtype]]


def assert_wide(code):
    for loop in loops(code):
        accesses = [opcode for opcode in kinds(loop) if opcode.startswith(("LDG", "STG"))]
        if any(opcode.startswith("STG") for opcode in accesses):
            assert {opcode.rpartition(".")[2] for opcode in accesses} == {"128"}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("arch", ARCHS)
def test_machine_code_of_inputs(arch, name, folder):
    """The arguments are not copied to memory; q and k are read and written by 16 bytes."""
    (_, (is_wide, *_)), (code, used) = INPUTS[name], compiled(arch, folder)[name]
    assert int(re.search(r"STACK:(\d+)", used).group(1)) <= 160  # a copy takes 900 bytes
    accesses = kinds(code.values())
    assert (accesses["STG.E.128"] > 0) == (accesses["LDG.E.128"] > 0) == is_wide
    assert accesses["MUFU.RSQ"] + accesses["MUFU.SQRT"] > 0  # with steps that make it exact, all by FFMA
    assert "DFMA" not in accesses
