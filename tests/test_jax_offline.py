"""JAX on GPU and TPU, without the devices: one loop over x, no temporary array, vector loads and stores.

XLA compiles the jitted calls for an H100 and a TPU v5e (xla_programs.py). On the H100 a program by positions
makes the tables in a first small kernel. A rotation of a part of the features may read some of them one by
one, so these cases check the loop and the memory only.
"""

import functools
import json
import math
import tempfile

import child
import pytest
import xla_programs as programs

pytestmark = pytest.mark.library("jax")
ITEMSIZE = {"float32": 4, "bfloat16": 2}
each_case = pytest.mark.parametrize(("dtype", "rope", "source", "direction"), programs.CASES)


@functools.cache
def facts_of(platform):
    """Return the facts of a platform's programs by case, which a child process compiles."""
    with tempfile.TemporaryDirectory() as dump:
        script = f"import xla_programs; xla_programs.main({platform!r}, {dump!r})"
        return json.loads(child.run(script, **programs.environment(platform, dump)))


def only_loop_over_x(platform, facts):
    """Return the name of the only instruction with results of half of x's elements or more: a fusion."""
    many = math.prod(programs.SHAPES[platform]) // 2
    ((name, opcode),) = [instruction[:2] for instruction in facts["instructions"] if instruction[2] >= many]
    assert opcode == "fusion"
    return name


@each_case
def test_the_tpu_reads_and_writes_x_once(dtype, rope, source, direction):
    """XLA's own count of the bytes: x, the result, and an eighth more for tables of full width."""
    facts = facts_of("tpu")[" ".join((dtype, rope, source, direction))]
    only_loop_over_x("tpu", facts)
    assert facts["temporary"] == 0
    assert facts["traffic"] <= 1.13 * 2 * math.prod(programs.SHAPES["tpu"]) * ITEMSIZE[dtype]


@each_case
def test_the_gpu_has_one_loop_of_vector_loads_and_stores(dtype, rope, source, direction):
    """Four elements of x at a time; tables two at a time if each number serves two elements of x."""
    facts = facts_of("cuda")[" ".join((dtype, rope, source, direction))]
    name = only_loop_over_x("cuda", facts)
    tables = 2 * 4 * programs.SHAPES["cuda"][-2] * programs.ROPES[rope].get("rotary_dim", 128) // 2
    assert len(facts["instructions"]) == (2 if source == "positions" else 1)
    assert facts["temporary"] <= (tables + 512 if source == "positions" else 0)
    if "partial" not in rope:
        accesses = facts["accesses"][name]
        widths = {op: {width for access, width in accesses if access == op} for op in ("ld", "st")}
        assert widths["st"] == {4 * ITEMSIZE[dtype]}
        assert widths["ld"] == {4 * ITEMSIZE[dtype], 8 if rope == "interleaved" else 16}
