"""torch.compile on a GPU, without the GPU: one Triton kernel over x, and no temporary array.

Inductor generates the code for an H100 (inductor_programs.py). A program by positions makes the tables in a
small kernel first.
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
    """The facts of the modules that Inductor generates, forward and backward, by case; in a child process."""
    folder = tmp_path_factory.mktemp("caches")
    caches = {f"{name}_CACHE_DIR": str(folder / name) for name in ("TORCHINDUCTOR", "TRITON")}
    script = "import inductor_programs; inductor_programs.main()"
    return json.loads(child.run(script, TRITON_DEFAULT_FP_FUSION="1", **caches))


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
