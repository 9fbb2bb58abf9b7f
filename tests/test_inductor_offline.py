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
each_dtype = pytest.mark.parametrize("dtype", programs.DTYPES)
each_pairing = pytest.mark.parametrize("pairing", programs.PAIRINGS)
each_source = pytest.mark.parametrize("source", programs.SOURCES)
each_direction = pytest.mark.parametrize("direction", ["forward", "gradient"])
SIZE = math.prod(programs.SHAPE)
TABLE = programs.SHAPE[-2] * programs.SHAPE[-1] // 2
ITEMSIZE = {"float32": 4, "bfloat16": 2}


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """The facts of the modules that Inductor generates, forward and backward, by case; in a child process."""
    folder = tmp_path_factory.mktemp("caches")
    caches = {f"{name}_CACHE_DIR": str(folder / name) for name in ("TORCHINDUCTOR", "TRITON")}
    script = "import inductor_programs; inductor_programs.main()"
    return json.loads(child.run(script, TRITON_DEFAULT_FP_FUSION="1", **caches))


def module_of(modules, dtype, pairing, source, direction):
    forward, gradient = modules[f"{dtype} {pairing} {source}"]
    return forward if direction == "forward" else gradient


@each_dtype
@each_pairing
@each_source
@each_direction
def test_one_kernel_over_x(modules, dtype, pairing, source, direction):
    module = module_of(modules, dtype, pairing, source, direction)
    assert module["sizes"] == ([TABLE, SIZE] if source == "positions" else [SIZE])
    assert module["call"].count(".run(") == len(module["sizes"])
    assert "extern_kernels" not in module["call"]
    assert "torch.ops" not in module["call"]


@each_dtype
@each_pairing
@each_source
@each_direction
def test_no_temporary_of_the_size_of_x(modules, dtype, pairing, source, direction):
    code = module_of(modules, dtype, pairing, source, direction)["call"]
    allocated = re.findall(r"= empty_strided_cuda\(\(([\d, ]*)\), \([\d, ]*\), torch\.(\w+)\)", code)
    assert len(allocated) == code.count("= empty_strided")
    sizes = [(math.prod(map(int, shape.split(", "))), kind) for shape, kind in allocated]
    tables = [(TABLE, "float32")] * 2 if source == "positions" else []
    assert sizes == [*tables, (SIZE, dtype)]


@each_dtype
@each_pairing
@each_source
@each_direction
def test_vector_loads_and_stores(modules, dtype, pairing, source, direction):
    """In the half pairing all are of 16 bytes. In the interleaved pairing each load reads one element."""
    found = module_of(modules, dtype, pairing, source, direction)["accesses"]
    widths = {kind: {width for each, width in found if each == kind} for kind in ("ld", "st")}
    assert widths["st"] == {16}
    assert widths["ld"] == ({16} if pairing == "half" else {4, ITEMSIZE[dtype]})


def test_in_place_is_the_program_of_a_new_result(tmp_path):
    """Of an array that the function has made: no copy, and no operator that the compiler cannot fuse."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    script = "import inductor_programs; inductor_programs.print_in_place()"
    new, in_place = (
        module[module.index("def call(") :] for module in json.loads(child.run(script, **caches))
    )
    for module in (new, in_place):
        assert module.count(".run(") == module.count("= empty_strided_cuda(") == 1
        assert "torch.ops" not in module
