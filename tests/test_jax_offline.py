"""JAX on GPU and TPU, without the devices: one loop over x, no temporary array, vector loads and stores.

XLA compiles the jitted calls for an H100 and a TPU v5e (xla_programs.py). A program by positions makes the
tables in a first small kernel, for all heads and all layers: XLA's cost model keeps the angles out of the
loops over x. On the H100 it moves them into the loop for few tokens, which then need one kernel less. So the
tables are behind no optimization barrier.

A rotation of a part of the features may read some of them one by one, so these cases check the loop and the
memory only.
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
TABLE_WIDTH = {
    "half": 16,
    "interleaved": 8,
}  # bytes of a load: in interleaved pairs a number serves two features
each_case = pytest.mark.parametrize(("dtype", "rope", "source", "direction"), programs.CASES)


@functools.cache
def facts_of(platform):
    """Return the facts of a platform's programs by case, which a child process compiles."""
    with tempfile.TemporaryDirectory() as dump:
        script = f"import xla_programs; xla_programs.main({platform!r}, {dump!r})"
        return json.loads(child.run(script, **programs.environment(platform, dump)))


def only_loop_over_x(platform, facts):
    """Return the name of the only instruction with results of half of x's elements or more: a fusion."""
    (name,) = loops_over(math.prod(programs.SHAPES[platform]), facts)
    return name


def loops_over(count, facts):
    """Return the names of the instructions with results of half of so many elements or more: fusions."""
    loops = [(name, opcode) for name, opcode, elements in facts["instructions"] if elements >= count // 2]
    assert {opcode for _, opcode in loops} == {"fusion"}
    return [name for name, _ in loops]


def assert_vectors(accesses, dtype, table_width):
    """Four elements of x at a time; tables as wide as given."""
    widths = {op: {width for access, width in accesses if access == op} for op in ("ld", "st")}
    assert widths["st"] == {4 * ITEMSIZE[dtype]}
    assert widths["ld"] == {4 * ITEMSIZE[dtype], table_width}


@each_case
def test_the_tpu_reads_and_writes_x_once(dtype, rope, source, direction):
    """XLA's own count of the bytes: x, the result, and an eighth more for tables of full width."""
    facts = facts_of("tpu")[" ".join((dtype, rope, source, direction))]
    only_loop_over_x("tpu", facts)
    assert facts["temporary"] == 0
    assert facts["traffic"] <= 1.13 * 2 * math.prod(programs.SHAPES["tpu"]) * ITEMSIZE[dtype]


@each_case
def test_the_gpu_has_one_loop_of_vector_loads_and_stores(dtype, rope, source, direction):
    facts = facts_of("cuda")[" ".join((dtype, rope, source, direction))]
    name = only_loop_over_x("cuda", facts)
    tables = 2 * 4 * programs.SHAPES["cuda"][-2] * programs.ROPES[rope].get("rotary_dim", 128) // 2
    assert len(facts["instructions"]) == (2 if source == "positions" else 1)
    assert facts["temporary"] <= (tables + 512 if source == "positions" else 0)
    if "partial" not in rope:
        assert_vectors(facts["accesses"][name], dtype, TABLE_WIDTH[rope])


@pytest.mark.parametrize("rope", programs.ROPES)
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_all_heads_of_q_and_k_share_the_tables(platform, rope):
    """The loops over q and k compute no angle. On the GPU the program has one kernel besides."""
    facts, (q, k) = facts_of(platform)[f"q and k {rope}"], programs.CALLS["q and k"]
    assert facts["angles"] == [[math.prod(q[:2]) * programs.ROPES[rope].get("rotary_dim", 128) // 2, False]]
    if platform == "cuda":
        loops = loops_over(math.prod(k), facts)
        assert (len(loops), len(facts["instructions"])) == (2, 3)
        for name in loops if "partial" not in rope else ():
            assert_vectors(facts["accesses"][name], "bfloat16", TABLE_WIDTH[rope])


@pytest.mark.parametrize("rope", programs.ROPES)
def test_one_token_is_one_kernel(rope):
    """The GPU computes the angles of few tokens in the loop over x, for each head."""
    facts, (x,) = facts_of("cuda")[f"one token {rope}"], programs.CALLS["one token"]
    assert facts["angles"] == [[math.prod(x), False]]
    assert len(facts["instructions"]) == 1


@pytest.mark.parametrize("direction", programs.DIRECTIONS)
def test_the_gpu_keeps_no_squares_of_a_norm(direction):
    """Forward, the kernels are of the tables, of the factors of q's and k's heads, and of q and k."""
    facts, size = facts_of("cuda")[f"norm {direction}"], math.prod(programs.CALLS["q and k"][1])
    assert facts["temporary"] < size  # bytes: a quarter of k's squares
    if direction == "forward":
        assert len(facts["instructions"]) == 5
        assert len(loops_over(size, facts)) == 2


@pytest.mark.parametrize("platform", ["cuda", pytest.param("tpu", marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("source", "layers"), programs.MODELS)
def test_layers_share_the_tables(platform, source, layers):
    """One computation of angles for four layers, forward and backward, which no loop repeats.

    By positions, a loop makes the tables in each iteration, forward and backward, and each checkpoint makes
    its own.
    """
    tables, count = 512 * 64, {"unrolled": 1, "checkpoint": 5, "scan": 2}[layers]
    expected = [[tables, False]] if source == "rotation" else [[tables, layers == "scan"]] * count
    assert facts_of(platform)[f"{source} {layers}"]["angles"] == expected
