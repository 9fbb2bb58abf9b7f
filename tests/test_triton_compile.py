"""The Triton kernel, compiled for GPUs that are not there: wide accesses, no spills, few instructions.

The tile of a launch was chosen by these counts: q and k of 32 and 8 heads of 128 features, bfloat16, half
pairing, for sm_90 by Triton 3.9. A star is the choice; its time is not measured yet but for the first row.

| rows of a program | warps | instructions of a thread | of a pair | registers | warps of an SM |
|---|---|---|---|---|---|
| tokens first: all heads of a token * | 2 | 688 | 17.2 | 110 | 18 |
| half of the heads of a token | 2 | 480 | 24.0 | 64 | 32 |
| few tokens: 8 heads of q or of k * | 2 | 288 | 36.0 | 32 | 64 |
| 4 heads of q or of k | 1 | 490 | 61.2 | 42 | 32 |
| 16 heads of q or of k | 4 | 476 | 59.5 | 34 | 48 |
| heads first: all heads of a token | 2 | 688 | 17.2 | 110 | 18 |
| half of the heads of four tokens * | 4 | 758 | 18.9 | 88 | 20 |
| a quarter of the heads of eight tokens | 4 | 902 | 22.6 | 96 | 20 |
| one head: 32 tokens | 2 | 1547 | 48.3 | 106 | 18 |
| 32 tokens * | 4 | 834 | 52.1 | 54 | 36 |

Few tokens wait for their loads and for the arithmetic of a thread, so a thread has little of it: one angle,
which threads exchange, and 8 pairs. One program of all heads had 728 instructions for each token; for
attention's inputs 1929, now 1087.

Heads first, the rows of a token are far apart, but tokens are neighbours: a program reads 1 KiB of each head.
One head has an angle for each pair: twice the warps are expected to hide the arithmetic, which takes most of
the time of the bytes.

Of interleaved pairs, a thread has 64 bytes: that takes a third more instructions, and on an H200 it took a
quarter less time for 64 sequences, with all heads of a token in a program.
"""

import itertools
import re
from types import SimpleNamespace

import gpu_compile
import pytest
import torch
import triton
from gpu_compile import constants_of
from triton.backends.compiler import GPUTarget

import rope_array as ra
from rope_array._array_api.cache import CacheWrite
from rope_array._array_api.norm import Norm
from rope_array._array_api.source import Positions, Tables
from rope_array._backends.torch import _triton_launch
from rope_array._backends.torch._triton_kernel import make_inputs

pytestmark = pytest.mark.library("torch")
DTYPES = {name: getattr(torch, name) for name in ("bfloat16", "float16", "float32", "float64")}
PAIRINGS = {"half": {"pairing": "half"}, "interleaved": {}}
TOKENS = 4096
# Instructions of a pair that are issued while the pair is read and written, for each byte of an element. Of
# NVIDIA's data sheets, with a copy's rate of 3.0 TB/s on an H100, and the same share on the others:
# 4 bytes ÷ rate · SMs · 128 lanes · clock.
ISSUED = {
    "sm_80": 4 / 1.83e12 * 108 * 128 * 1.41e9,
    "sm_90": 4 / 3.0e12 * 132 * 128 * 1.7e9,
    "sm_100": 4 / 7.16e12 * 148 * 128 * 1.7e9,
}


def q_and_k(dtype, heads=(32, 8), head_dim=128, tokens_first=True):
    shapes = [(2, TOKENS, n, head_dim) if tokens_first else (2, n, TOKENS, head_dim) for n in heads if n]
    return tuple(torch.empty(shape, dtype=DTYPES[dtype]) for shape in shapes)


def source_of(fields, source_kind="positions", dtype="bfloat16", head_dim=128):
    plan = ra.RoPE(head_dim, **fields)._plan
    if source_kind != "tables":
        tensor = torch.empty(TOKENS, dtype=DTYPES.get(source_kind, torch.int64))
        return Positions(range(5, 5 + TOKENS) if source_kind == "range" else tensor, plan)
    real = torch.float64 if dtype == "float64" else torch.float32
    table = torch.empty((TOKENS, plan.layout.num_pairs), dtype=real)
    return Tables(table, table, plan.layout)


def compiled(
    arch, dtype, pairing, folder, source_kind="positions", heads=(32, 8), head_dim=128, fields=(), **options
):
    """Return the only launch of a call, and its code."""
    xs = q_and_k(dtype, heads, head_dim)
    source = source_of({**PAIRINGS[pairing], **dict(fields)}, source_kind, dtype, head_dim)
    (launch,) = gpu_compile.launches(xs, source, -3, **options)
    return launch, gpu_compile.machine_code(arch, launch, xs, source, folder)


def assert_efficient(code, launch, arch, dtype, share, least_bits=128):
    """Assert wide accesses, loads before stores, and instructions that take a share of the bytes' time."""
    itemsize = DTYPES[dtype].itemsize
    constants = constants_of(launch)
    rows = constants["TOKENS"] * (constants["HEADS0"] + constants["HEADS1"])
    accesses = rows * constants["HEAD_DIM"] * itemsize / (16 * 32 * launch.num_warps)
    assert code.widths("STG") == {128: accesses} or least_bits < 128
    assert code.widths("LDG")[128] >= accesses or least_bits < 128
    assert min(code.widths("STG")) >= least_bits
    assert min(code.widths("LDG")) >= 32
    assert re.fullmatch("L+S+", loads_and_stores(code))
    assert code.stack == 0
    assert code.registers <= 160
    assert code.per_pair <= share * itemsize * ISSUED[arch]
    # The bits of the CPU: no fused operation, and none that takes subnormal numbers as zero.
    assert not re.search(r"LDL|STL|FFMA|DFMA|FMUL\.FTZ|FADD\.FTZ", " ".join(code.instructions))


def launch_of(shapes, dtype, positions, pairing, seq_axis):
    """Return the only launch of q and k with positions of a shape, its arrays and its source."""
    xs = tuple(torch.empty(shape, dtype=DTYPES[dtype]) for shape in shapes)
    source = source_of(PAIRINGS[pairing], head_dim=shapes[0][-1])
    source = source._replace(values=torch.empty(positions, dtype=torch.int64))
    (launch,) = gpu_compile.launches(xs, source, seq_axis)
    return launch, xs, source


def loads_and_stores(code):
    return order_of(code, "LDG", "STG")


def order_of(code, *names):
    return "".join(name[0] for name in code.order if name.startswith(names))


CASES = [
    *(("sm_90", dtype, "positions") for dtype in DTYPES),
    *(("sm_90", dtype, "tables") for dtype in DTYPES if dtype != "float16"),  # which are as bfloat16's
    *(
        pytest.param(arch, dtype, "positions", marks=pytest.mark.nightly)
        for arch in ("sm_80", "sm_100")
        for dtype in ("bfloat16", "float32")
    ),
]


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize(("arch", "dtype", "source_kind"), CASES)
def test_wide_accesses_and_few_instructions(arch, dtype, pairing, source_kind, tmp_path):
    """Instructions take at most 0.4 of the time of the bytes on an H100; 0.85 on a B200.

    At a share of 0.5 the time was still a copy's, on an H200, whose memory is a third faster.
    """
    launch, code = compiled(arch, dtype, pairing, tmp_path, source_kind)
    assert_efficient(code, launch, arch, dtype, 0.85 if arch == "sm_100" else 0.4)


ARCHS = ["sm_90", *(pytest.param(arch, marks=pytest.mark.nightly) for arch in ("sm_80", "sm_100"))]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_decoding_has_short_programs_that_load_first(dtype, pairing, arch, tmp_path):
    """Every load is issued before the arithmetic, by a thread of few instructions and registers."""
    shapes = (64, 1, 32, 128), (64, 1, 8, 128)
    launch, xs, source = launch_of(shapes, dtype, (64, 1), pairing, -3)
    code = gpu_compile.machine_code(arch, launch, xs, source, tmp_path)
    constants = constants_of(launch)
    heads = 16 // xs[0].itemsize
    assert (constants["TOKENS"], constants["HEADS0"], constants["HEADS1"]) == (1, heads, 0)
    assert launch.programs == 64 * constants["CHUNKS"] == 64 * 40 // heads
    assert code.widths("STG") == {128: 2}
    assert code.widths("LDG")[128] == 2
    assert re.fullmatch("L+F[FS]+", order_of(code, "LDG", "STG", "FMUL"))
    assert code.stack == 0
    assert code.registers <= 48
    assert sum(code.instructions.values()) <= 330


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_heads_first_reads_tokens_that_are_neighbours(dtype, pairing, arch, tmp_path):
    """A program has four tokens of each head, and not more instructions of a pair than with one token."""
    shapes = (1, 32, TOKENS, 128), (1, 8, TOKENS, 128)
    launch, xs, source = launch_of(shapes, dtype, (TOKENS,), pairing, -2)
    code = gpu_compile.machine_code(arch, launch, xs, source, tmp_path)
    assert [constants_of(launch)[name] for name in ("TOKENS", "HEADS0", "HEADS1")] == [4, 16, 4]
    assert_efficient(code, launch, arch, dtype, 0.85 if arch == "sm_100" else 0.4)
    assert code.registers <= 96


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_one_head_has_warps_to_hide_its_angles(dtype, pairing, arch, tmp_path):
    """An exact angle for each pair: less than the time of the bytes on an H100, and many warps."""
    launch, xs, source = launch_of([(TOKENS, 1, 128)], dtype, (TOKENS,), pairing, -3)
    code = gpu_compile.machine_code(arch, launch, xs, source, tmp_path)
    assert_efficient(code, launch, arch, dtype, 1.6 if arch == "sm_100" else 0.75)
    assert code.registers <= (64 if dtype == "bfloat16" else 72)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(32, 8), (8, 1), (1, 0), (64, 8)], ids=str)
def test_batch_sizes_share_programs(heads, dtype):
    """Decoding is compiled at most twice for all numbers of sequences."""
    full, pos = q_and_k(dtype, heads), torch.empty((2 * TOKENS, 1), dtype=torch.int64)
    full = [x.flatten(0, 1)[:, None] for x in full]
    source, compiled = source_of({}, dtype=dtype), set()
    for batch in [*range(1, 300), *range(300, TOKENS + 1, 97), TOKENS]:
        xs = [x[:batch] for x in full]
        (launch,) = gpu_compile.launches(xs, source._replace(values=pos[:batch]), -3)
        compiled.add((launch.constants, launch.num_warps))
    assert len(compiled) <= 2


def test_arrays_of_two_dtypes_share_programs_of_few_tokens(tmp_path):
    """A program of one array would need one type for both."""
    xs = torch.empty((4, 32, 128), dtype=torch.bfloat16), torch.empty((4, 8, 128))
    source = source_of(PAIRINGS["half"])._replace(values=torch.empty(4, dtype=torch.int64))
    (launch,) = gpu_compile.launches(xs, source, -3)
    assert constants_of(launch)["CHUNKS"] == 0
    gpu_compile.machine_code("sm_90", launch, xs, source, tmp_path)


MORE = {
    "the adjoint": {"transposed": True},
    "in place": {"in_place": True},
    "more heads in k": {"heads": (8, 32)},
    "64 features": {"head_dim": 64},
    "256 features, more heads in k": {"heads": (16, 32), "head_dim": 256},
    "a slice": {"fields": {"rotary_dim": 64, "rotary_start": 32}},
    "an amplitude": {"fields": {"attention_factor": 1.3}},
    "a range": {"source_kind": "range"},
    "float32 positions": {"source_kind": "float32"},
    "float64 positions": {"source_kind": "float64"},
}


@pytest.mark.parametrize("pairing", ["half", pytest.param("interleaved", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", MORE)
def test_other_calls(name, pairing, tmp_path):
    launch, code = compiled("sm_90", "bfloat16", pairing, tmp_path, **MORE[name])
    constants = constants_of(launch)
    assert constants["IN_PLACE"] == (name == "in place")
    assert constants["COPIES"] == (name == "a slice")
    # A few features around the slice leave a thread less than 16 bytes.
    assert_efficient(code, launch, "sm_90", "bfloat16", 0.75, 32 if name == "a slice" else 128)


@pytest.mark.parametrize("head_dim", [40, 72, 96])
def test_widths_that_are_no_power_of_two_have_wide_accesses(head_dim, tmp_path):
    """Rows of a multiple of 16 bytes. The strides of 40 and 72 are no multiples of 16 elements."""
    _, code = compiled("sm_90", "bfloat16", "interleaved", tmp_path, head_dim=head_dim)
    assert set(code.widths("STG")) == {128}
    assert min(code.widths("LDG")) >= 32


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_all_is_read_before_anything_is_written_in_place(pairing, tmp_path):
    """Threads write features that others read, if the pairing changes: a barrier comes between."""
    out_pairing = {"half": "interleaved", "interleaved": "half"}[pairing]
    options = {"fields": {"out_pairing": out_pairing}, "in_place": True, "heads": (32, 0)}
    _, code = compiled("sm_90", "bfloat16", pairing, tmp_path, **options)
    order = [name for name in code.order if name.startswith(("LDG.E.128", "BAR.SYNC", "STG"))]
    first_store = next(i for i, name in enumerate(order) if name.startswith("STG"))
    assert order[first_store - 1].startswith("BAR.SYNC")
    assert not any(name.startswith("LDG") for name in order[first_store:])


def test_unaligned_rows_are_not_read_wide(tmp_path):
    """Rows of 130 elements begin at multiples of 4 bytes: a wide access would be an error."""
    xs = tuple(torch.empty((2, TOKENS, 8, 130), dtype=torch.bfloat16)[..., :128] for _ in "qk")
    source = source_of(PAIRINGS["half"])
    (launch,) = gpu_compile.launches(xs, source, -3)
    code = gpu_compile.machine_code("sm_90", launch, xs, source, tmp_path)
    assert constants_of(launch)["UNIT"] == 2
    assert max(code.widths("STG")) <= 32


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_amd(dtype):
    """Triton's other backend: an MI300, whose warps have 64 threads."""
    xs, source = q_and_k(dtype), source_of(PAIRINGS["half"], dtype=dtype)
    (launch,) = gpu_compile.launches(xs, source, -3)
    code = gpu_compile.compile_for(GPUTarget("hip", "gfx942", 64), launch, xs, source).asm["amdgcn"]
    assert "global_load_dwordx4" in code
    assert "global_store_dwordx4" in code
    assert not re.search(r"scratch_store|v_fmac?_f|v_mac_f|v_pk_fma", code)


@pytest.mark.parametrize("tokens_first", [True, False], ids=["tokens first", "heads first"])
def test_one_launch_and_enough_programs(tokens_first):
    """A program has 64 KiB of x at most, and few rows in vain; the options on a GPU are the tests'."""
    all_heads = [(1, 0), (1, 1), (8, 1), (32, 8), (64, 8), (128, 128)]
    for dtype, heads in itertools.product(DTYPES, all_heads):
        xs = q_and_k(dtype, heads, tokens_first=tokens_first)
        (launch,) = gpu_compile.launches(xs, source_of({}, dtype=dtype), -3 if tokens_first else -2)
        constants = constants_of(launch)
        rows = constants["TOKENS"] * (constants["HEADS0"] + constants["HEADS1"])
        assert rows * 128 * DTYPES[dtype].itemsize <= 65536
        assert launch.programs * rows <= 2 * sum(x.numel() // 128 for x in xs)
        assert _triton_launch.options_of(launch) == {"num_warps": launch.num_warps, "enable_fp_fusion": False}


def test_a_launch_passes_the_arguments_that_triton_passes(monkeypatch):
    """To a compiled kernel's `run`, which Triton does not document; but for hooks, if there are none."""
    xs, source, recorded = q_and_k("bfloat16"), source_of({}), []
    (launch,) = gpu_compile.launches(xs, source, -3)
    kernel = gpu_compile.compile_for(GPUTarget("cuda", 90, 32), launch, xs, source)
    utils = SimpleNamespace(
        get_device_properties=lambda device: {"max_shared_mem": 2**20},
        load_binary=lambda *binary: ("a module", "a function", 0, 0, 1024),
    )
    run = SimpleNamespace(utils=utils, get_current_device=lambda: 0)
    run.launcher_cls = lambda *compiled: lambda *arguments: recorded.append(arguments)
    monkeypatch.setattr(triton.runtime.driver, "_active", run)
    addresses_and_start = tuple(range(16, 24))
    launch_at = _triton_launch._launcher(kernel, launch)
    launch_at(3, *addresses_and_start)
    numbers = (*launch.numbers, *launch.constants)
    kernel[(launch.programs, 1, 1)](*addresses_and_start, *numbers, stream=3)
    ours, of_triton = recorded
    assert ours == (*of_triton[:6], None, None, None, *addresses_and_start, *numbers)
    assert of_triton[9:] == ours[9:]
    for name in ("launch_enter_hook", "launch_exit_hook"):
        with monkeypatch.context() as patch:
            patch.setattr(triton.knobs.runtime, name, print)
            launch_at(3, *addresses_and_start)
            assert print in recorded[-1]
    kernel.module = None  # there is none to unload


# ---- attention's inputs ----


def compile_inputs(
    target, folder, dtype="bfloat16", cache_dtype=None, pairing="half", tokens=TOKENS, in_place=False
):
    """Return the code for q and k with norms, and v, into paged caches."""
    q, k, v = (torch.empty(tokens, heads, 128, dtype=DTYPES[dtype]) for heads in (32, 8, 8))
    caches = [torch.empty(64, 16, 8, 128, dtype=cache_dtype or DTYPES[dtype]) for _ in "kv"]
    write = CacheWrite(tuple(caches), v, torch.zeros(tokens, dtype=torch.int32), (1.0, 1.0), -3, tokens > 512)
    weight = torch.empty(128, dtype=DTYPES[dtype])
    source = source_of(PAIRINGS[pairing])._replace(values=torch.empty(tokens, dtype=torch.int64))
    norm = Norm((weight, weight), 1e-6, 0.0, "none")
    launch, more = gpu_compile.inputs_launch((q, k), source, -3, norm, write, in_place)
    if not isinstance(target, str):
        return gpu_compile.compile_for(target, launch, (q, k), source, make_inputs, more).asm
    return gpu_compile.machine_code(target, launch, (q, k), source, folder, make_inputs, more)


# Instructions of a pair, for norm, rotation and caches; an H100 has time for 76 of bfloat16, 153 of float32.
INPUTS = {
    "bfloat16": (60, {}),
    "few tokens": (80, {"tokens": 64}),
    "a search for equal slots": (64, {"tokens": 256}),
    "in place": (60, {"in_place": True}),
    "interleaved": (76, {"pairing": "interleaved"}),
    "float32": (76, {"dtype": "float32"}),
    "a cache of float8_e4m3fn": (90, {"cache_dtype": torch.float8_e4m3fn}),
    "a cache of int8": (85, {"cache_dtype": torch.int8}),
}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", INPUTS)
def test_inputs_are_read_once_before_anything_is_written(name, arch, tmp_path):
    """Wide accesses, no stack, and no load after the first store; a cache of 8 bits is written by 8 bytes."""
    most, options = INPUTS[name]
    code = compile_inputs(arch, tmp_path, **options)
    assert min(code.widths("STG")) >= (64 if "cache" in name or name == "few tokens" else 128)
    assert re.fullmatch("L+S+", loads_and_stores(code))
    if name != "interleaved":  # whose columns and pairs are different loads
        read = 48 * 128 * (4 if name == "float32" else 2) / 16  # accesses of a token
        assert code.widths("LDG")[128] <= read / (128 if name == "float32" else 64) + 6
    assert code.stack == 0
    # Of few tokens, v has too few heads for a program to write 16 bytes of a thread.
    assert code.registers <= (96 if name == "few tokens" else 184 if arch == "sm_100" else 168)
    assert code.per_pair <= most
    assert not re.search(r"LDL|STL|DFMA", " ".join(code.instructions))


@pytest.mark.parametrize("target", [GPUTarget("cuda", 80, 32), GPUTarget("hip", "gfx942", 64)], ids=str)
def test_inputs_are_rounded_as_on_the_cpu(target, tmp_path):
    """Nothing is fused but in the exact division and square root; a native cast to 8 bits is not needed."""
    code = compile_inputs(target, tmp_path, cache_dtype=torch.float8_e4m3fn)
    if "ptx" in code:
        assert not re.search(r"fma\.rn|\.ftz|\.approx|e4m3", code["ptx"])
        assert code["ptx"].count("sqrt.rn.f32")
        assert code["ptx"].count("div.rn.f32")
    else:
        assert "v_div_fixup_f32" in code["amdgcn"]
        assert not re.search(r"scratch_store|fp8", code["amdgcn"])
