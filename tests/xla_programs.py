"""Programs that XLA compiles for an H100 or a TPU v5e without the device. A child process runs `main`.

XLA's plugins of JAX compile for a described device. h100.txtpb describes the H100 with the values of
xla/backends/gpu/target_config/specs/h100_sxm.txtpb in https://github.com/openxla/xla.
"""

import itertools
import json
import math
import os
import re
from pathlib import Path

H100 = Path(__file__).with_name("h100.txtpb").read_text("utf-8")
# On the TPU larger than its 128 MiB of vector memory: there XLA could hide temporary arrays.
SHAPES = {"cuda": (1, 16, 2048, 128), "tpu": (4, 32, 4096, 128)}
DTYPES = ("float32", "bfloat16")
ROPES = {
    "half": {"pairing": "half"},
    "interleaved": {},
    "partial half": {"pairing": "half", "rotary_dim": 64},
    "partial interleaved": {"rotary_dim": 64, "rotary_start": 32},
}
SOURCES = ("positions", "tables")
DIRECTIONS = ("forward", "gradient")
FACTORS = DTYPES, tuple(ROPES), SOURCES, DIRECTIONS
CASES = list(itertools.product(*FACTORS))
if not os.environ.get("ROPE_ARRAY_NIGHTLY"):  # half of the cases, in which each three values meet
    CASES = [case for case in CASES if sum(map(tuple.index, FACTORS, case)) % 2 == 0]
# Instructions that compute nothing and move nothing.
FREE = {"parameter", "tuple", "get-tuple-element", "constant", "bitcast"}
INSTRUCTION = re.compile(r"^ +(?:ROOT )?%?(\S+) = (\(.*?\)|\S+) ([\w-]+)\(", re.MULTILINE)


def environment(platform, dump):
    """Return the environment variables of a child process, which writes PTX into the folder `dump`."""
    variables = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    variables |= {"TPU_ACCELERATOR_TYPE": "v5e-4", "TPU_WORKER_HOSTNAMES": "localhost"}
    # No lock on the device, which there is none of, and no log files.
    variables |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_LOG_DIR": "disabled"}
    if platform == "cuda":
        import nvidia

        (toolkit,) = Path(nvidia.__path__[0]).glob("cu1?")
        variables["XLA_FLAGS"] = f"--xla_gpu_cuda_data_dir={toolkit} --xla_dump_to={dump}"
    return variables


def main(platform, dump):
    """Print the facts of every case's program, as JSON."""
    device = describe(platform)
    print(json.dumps({" ".join(case): facts(platform, device, Path(dump), *case) for case in CASES}))


def describe(platform):
    """Return a described device."""
    from jax.experimental import topologies

    if platform == "cuda":
        description = topologies.get_topology_desc("H100", "cuda", target_config=H100, topology="1x1x1")
    else:
        import libtpu

        os.environ["TPU_LIBRARY_PATH"] = str(Path(libtpu.__path__[0], "libtpu.so"))
        description = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2x1")
    return description.devices[0]


def facts(platform, device, dump, dtype, rope, source, direction):
    """Compile one case; return instructions, temporary memory, traffic, and widths of loads and stores."""
    import jax

    for path in dump.iterdir():
        path.unlink()
    program = jax.jit(function_of(rope, source, direction)).lower(
        *arguments(platform, device, dtype, rope, source)
    )
    compiled = program.compile()
    text = compiled.as_text()
    instructions = [
        (name, opcode, max(map(size, re.findall(r"\w\[([\d,]*)\]", shape))))
        for name, shape, opcode in INSTRUCTION.findall(text[text.index("ENTRY") :])
        if opcode not in FREE
    ]
    ptx = "".join(path.read_text() for path in dump.glob("*.ptx"))
    return {
        "instructions": instructions,
        "temporary": compiled.memory_analysis().temp_size_in_bytes,
        "traffic": (compiled.cost_analysis() or {}).get("bytes accessed"),  # None on the H100
        "accesses": {name: accesses(ptx, name) for name, *_ in instructions},
    }


def function_of(rope, source, direction):
    """Return the function of x and of positions or tables that a case compiles."""
    import jax

    import rope_array as ra

    rope = ra.RoPE(128, **ROPES[rope])

    def rotate(x, *arrays):
        return rope.apply(x, *arrays) if source == "positions" else rope.rotation_from(*arrays).apply(x)

    if direction == "forward":
        return rotate
    return lambda x, *arrays: jax.vjp(lambda x: rotate(x, *arrays), x)[1](x)


def arguments(platform, device, dtype, rope, source):
    """Return descriptions of x, and of positions or tables."""
    import jax

    sharding = jax.sharding.SingleDeviceSharding(device)

    def described(shape, dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    shape = SHAPES[platform]
    table = described((shape[-2], ROPES[rope].get("rotary_dim", 128) // 2), "float32")
    arrays = [described(shape[-2:-1], "int32")] if source == "positions" else [table, table]
    return described(shape, dtype), *arrays


def size(text):
    """Return the number of elements of a shape such as "2,3"."""
    return math.prod(map(int, text.split(","))) if text else 1


def accesses(ptx, name):
    """Return the bytes that each load and each store of global memory in a kernel moves."""
    for kernel in ptx.split(".visible .entry ")[1:]:
        if kernel.startswith(name.replace(".", "_") + "("):
            matches = re.findall(r"\b(ld|st)\.global\S*?(?:\.v(\d))?\.[bfsu](\d+)\s", kernel)
            return [(access, int(count or 1) * int(bits) // 8) for access, count, bits in matches]
    return []
