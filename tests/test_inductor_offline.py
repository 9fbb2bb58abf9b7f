"""torch.compile on a GPU, without the GPU: one launch rotates q and k, and no temporary array.

Inductor generates the code for an H100 (inductor_programs.py). Of PyTorch's operations, backend="torch", it
makes one Triton kernel over x; a program by positions makes the tables in a small kernel first.
"""

import json
import math
import re

import child
import inductor_programs as programs
import pytest

pytestmark = pytest.mark.library("torch")
SIZE = math.prod(programs.SHAPE)
TABLE = programs.SHAPE[-2] * programs.SHAPE[-1] // 2
ITEMSIZE = {"float32": 4, "bfloat16": 2}
IDS = [" ".join(case) for case in programs.CASES]


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """The facts of the modules that Inductor generates, by case or launch; in a child process."""
    folder = tmp_path_factory.mktemp("caches")
    caches = {f"{name}_CACHE_DIR": str(folder / name) for name in ("TORCHINDUCTOR", "TRITON")}
    script = "import inductor_programs; inductor_programs.main()"
    return json.loads(child.run(script, TRITON_DEFAULT_FP_FUSION="1", TRITON_INTERPRET="0", **caches))


@pytest.mark.parametrize(("dtype", "pairing", "source"), programs.CASES, ids=IDS)
@pytest.mark.parametrize("direction", ["forward", "gradient"])
def test_one_kernel_over_x_by_vectors_without_a_temporary(modules, dtype, pairing, source, direction):
    """In the half pairing all loads are of 16 bytes; in the interleaved pairing each reads one element.

    A rotation in place, of an array that the function has made, is no copy and no operator of its own.
    """
    module = modules[f"{dtype} {pairing} {source}"][direction == "gradient"]
    code, by_positions = module["call"], source == "positions"
    assert module["sizes"] == ([TABLE, SIZE] if by_positions else [SIZE])
    assert code.count(".run(") == len(module["sizes"])
    assert not re.search(r"extern_kernels|torch\.ops", code)
    allocated = re.findall(r"= empty_strided_cuda\(\(([\d, ]*)\), \([\d, ]*\), torch\.(\w+)\)", code)
    assert len(allocated) == code.count("= empty_strided")
    sizes = [(math.prod(map(int, shape.split(", "))), name) for shape, name in allocated]
    assert sizes == [*[(TABLE, "float32")] * (2 * by_positions), (SIZE, dtype)]
    assert {width for name, width in module["accesses"] if name == "st"} == {16}
    loads = {width for name, width in module["accesses"] if name == "ld"}
    assert loads == ({16} if pairing == "half" else {4, ITEMSIZE[dtype]})


# By name: the kernels that the programs run, forward and backward. `mul` is the caller's.
ROTATE, DOUBLE = "rotate_rows", "triton_poi_fused_mul"
LAYERS = [*8 * [DOUBLE], *4 * [ROTATE]]
TABLES = [ROTATE, "triton_poi_fused__to_copy_arange_expand_lt"]
RUN = {
    "positions": [[ROTATE]],
    "float64": [[ROTATE]],
    "few tokens": [[ROTATE]],
    "one array": [[ROTATE]],
    "one array of few tokens": [[ROTATE]],
    "a norm": [["make_inputs"]],
    "features first": [["rotate_rows"]],
    "computed tables": [["rotate_rows", "triton_poi_fused__to_copy_div_mul_select_slice_unsqueeze"]],
    "layers": [LAYERS],
    "layers trained": [LAYERS, LAYERS],
    "layers trained, any sizes": [LAYERS, LAYERS],
    "a rotation": [[*LAYERS, *TABLES]],
    "a rotation, any sizes": [[*LAYERS, *TABLES]],
    "a rotation trained": [[*LAYERS, *TABLES, "triton_poi_fused_neg"], LAYERS],
}


@pytest.mark.parametrize("name", programs.LAUNCHES)
def test_q_and_k_are_one_launch_that_copies_nothing(modules, name):
    """PyTorch reads in the kernel's code which arguments it writes, and would copy others of these first."""
    assert len(modules[name]["calls"]) == len(RUN[name])
    written = {"y0" if name.startswith("one array") else "y0 y1", *["y0"] * name.startswith("a rotation")}
    assert set(modules[name]["written"]) == written
    for code, expected in zip(modules[name]["calls"], RUN[name], strict=True):
        launched = re.findall(r"(\w+?)(?:_split)?_\d+\.run\(", code)
        assert sorted(launched) == sorted(expected)
        assert not re.search(r"extern_kernels|torch\.ops|copy_\(", code)
        assert not re.search(
            r"empty_strided_cuda\(\([^)]*\), \(s\d+, 1\)", code
        )  # the strides of tables are numbers
        if len(expected) == 1:
            assert code.count("= empty_strided_cuda(") == 2 - name.startswith("one array")


@pytest.mark.parametrize("name", programs.LAUNCHES)
def test_the_code_of_a_launch_is_that_of_an_eager_call(modules, name):
    """The compiler fuses and rounds nothing else than in an eager call, where it is asked not to fuse at all.

    Inductor passes numbers of 32 bits, and some as constants. Row offsets still have 64 bits.
    """
    for arch, (compiled, eager) in [pair for code in modules[name]["code"] for pair in code.items()]:
        assert compiled["fused"] == eager["fused"], arch
        assert bool(compiled["fused"]) == (name == "a norm")  # whose division and square root are exact
        assert compiled["narrow"] == []
        assert compiled["size"] <= 1.1 * eager["size"]
        assert compiled["registers"] <= 1.1 * eager["registers"]
