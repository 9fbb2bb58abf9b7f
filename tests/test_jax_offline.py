"""JAX on GPU and TPU, without the devices: one loop over x, no temporary array, vector loads and stores.

XLA compiles the jitted calls for an H100 and a TPU v5e (xla_programs.py). On the H100 a program by positions
makes the tables in a first small kernel. A rotation of a part of the features may read some of them one by
one, so these cases check the loop and the memory only.
"""

import json
import math
import tempfile

import child
import pytest
import xla_programs as programs

pytestmark = pytest.mark.library("jax")
each_platform = pytest.mark.parametrize("platform", programs.SHAPES)
each_dtype = pytest.mark.parametrize("dtype", programs.DTYPES)
each_rope = pytest.mark.parametrize("rope", programs.ROPES)
each_whole_rope = pytest.mark.parametrize("rope", ["half", "interleaved"])
each_source = pytest.mark.parametrize("source", programs.SOURCES)
each_direction = pytest.mark.parametrize("direction", programs.DIRECTIONS)
ITEMSIZE = {"float32": 4, "bfloat16": 2}


@pytest.fixture(scope="module")
def cuda():
    """The facts of the programs for an H100, by case."""
    return compile_in_child("cuda")


@pytest.fixture(scope="module")
def tpu():
    """The facts of the programs for a TPU v5e, by case."""
    return compile_in_child("tpu")


def compile_in_child(platform):
    with tempfile.TemporaryDirectory() as dump:
        script = f"import xla_programs; xla_programs.main({platform!r}, {dump!r})"
        return json.loads(child.run(script, **programs.environment(platform, dump)))


def loops_over_x(platform, found):
    """Return the names and opcodes of the instructions with results of half of x's elements or more."""
    many = math.prod(programs.SHAPES[platform]) // 2
    return [(name, opcode) for name, opcode, elements in found["instructions"] if elements >= many]


@each_platform
@each_dtype
@each_rope
@each_source
@each_direction
def test_one_fusion_over_x(platform, dtype, rope, source, direction, request):
    found = request.getfixturevalue(platform)[" ".join((dtype, rope, source, direction))]
    assert [opcode for _, opcode in loops_over_x(platform, found)] == ["fusion"]
    if platform == "cuda":
        assert len(found["instructions"]) == (2 if source == "positions" else 1)


@each_platform
@each_dtype
@each_rope
@each_source
@each_direction
def test_no_temporary_of_the_size_of_x(platform, dtype, rope, source, direction, request):
    found = request.getfixturevalue(platform)[" ".join((dtype, rope, source, direction))]
    tables = 2 * 4 * programs.SHAPES[platform][-2] * programs.ROPES[rope].get("rotary_dim", 128) // 2
    allowed = tables + 512 if platform == "cuda" and source == "positions" else 0
    assert found["temporary"] <= allowed


@each_dtype
@each_rope
@each_source
@each_direction
def test_the_tpu_reads_and_writes_x_once(tpu, dtype, rope, source, direction):
    """XLA's own count of the bytes: x, the result, and an eighth more for tables of full width."""
    once = 2 * math.prod(programs.SHAPES["tpu"]) * ITEMSIZE[dtype]
    assert tpu[" ".join((dtype, rope, source, direction))]["traffic"] <= 1.13 * once


@each_dtype
@each_whole_rope
@each_source
@each_direction
def test_vector_loads_and_stores_on_the_gpu(cuda, dtype, rope, source, direction):
    """Four elements of x at a time; tables two at a time if each number serves two elements of x."""
    found = cuda[" ".join((dtype, rope, source, direction))]
    ((name, _),) = loops_over_x("cuda", found)
    accesses = found["accesses"][name]
    widths = {kind: {width for each, width in accesses if each == kind} for kind in ("ld", "st")}
    assert widths["st"] == {4 * ITEMSIZE[dtype]}
    tables = 8 if rope == "interleaved" else 16
    assert widths["ld"] == {4 * ITEMSIZE[dtype], tables}
