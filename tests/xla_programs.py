"""Programs that XLA compiles for an H100 or a TPU v5e without the device. A child process runs `main`.

XLA's plugins of JAX compile for a described device. h100.txtpb describes the H100 with the values of
xla/backends/gpu/target_config/specs/h100_sxm.txtpb in https://github.com/openxla/xla.
"""

import functools
import itertools
import json
import math
import os
import re
from pathlib import Path

import rope_array as ra
from rope_array._array_api.angles import SIN_32

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
# By positions, in bfloat16 with tokens first: a prompt's q and k, and one token of each of 64 sequences.
CALLS = {"q and k": ((2, 4096, 32, 128), (2, 4096, 8, 128)), "one token": ((64, 1, 32, 128),)}
DIRECTION_OF = dict(zip(ROPES, itertools.cycle(DIRECTIONS), strict=False))  # of a call
# Gradients of four layers, by positions or by a Rotation made before them.
MODELS = list(itertools.product(("positions", "rotation"), ("unrolled", "checkpoint", "scan")))
MODELS_OF = {"cuda": MODELS, "tpu": MODELS}
if not os.environ.get("ROPE_ARRAY_NIGHTLY"):
    # Half of the cases, in which each three values meet. Models take a minute and a half for the TPU.
    CASES = [case for case in CASES if sum(map(tuple.index, FACTORS, case)) % 2 == 0]
    MODELS_OF["tpu"] = []
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
    """Print the facts of every program, as JSON."""
    device = describe(platform)
    programs = {}
    for dtype, rope, source, direction in CASES:
        inputs = arguments(platform, device, dtype, rope, source)
        programs[f"{dtype} {rope} {source} {direction}"] = function_of(rope, source, direction), *inputs
    for (call, shapes), rope in itertools.product(CALLS.items(), ROPES):
        xs = tuple(described(device, shape, "bfloat16") for shape in shapes)
        function = function_of(rope, "positions", DIRECTION_OF[rope], seq_axis=1)
        programs[f"{call} {rope}"] = function, xs, described(device, shapes[0][:2], "int32")
    if platform == "cuda":
        xs = tuple(described(device, shape, "bfloat16") for shape in CALLS["q and k"])
        others = described(device, xs[0].shape[:2], "int32"), described(device, (128,), "bfloat16")
        programs |= {f"norm {direction}": (normed(direction), xs, *others) for direction in DIRECTIONS}
    for source, layers in MODELS_OF[platform]:
        programs[f"{source} {layers}"] = model_of(device, source, layers)
    print(json.dumps({name: facts(Path(dump), *program) for name, program in programs.items()}))


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


def facts(dump, function, *arguments):
    """Compile a function; return instructions, angles, temporary memory, traffic, widths of accesses."""
    import jax

    for path in dump.iterdir():
        path.unlink()
    compiled = jax.jit(function).lower(*arguments).compile()
    text = compiled.as_text()
    instructions = [
        (name, opcode, elements(shape))
        for name, shape, opcode in INSTRUCTION.findall(text[text.index("ENTRY") :])
        if opcode not in FREE
    ]
    ptx = "".join(path.read_text() for path in dump.glob("*.ptx"))
    return {
        "instructions": instructions,
        "angles": angles(text),
        "temporary": compiled.memory_analysis().temp_size_in_bytes,
        "traffic": (compiled.cost_analysis() or {}).get("bytes accessed"),  # None on the H100
        "accesses": {name: accesses(ptx, name) for name, *_ in instructions},
    }


def angles(text):
    """Return the fusions that compute sines: the elements of their largest result, and if a loop runs them.

    Their computations contain a coefficient of the sine.
    """
    coefficient = re.escape(f"constant({SIN_32[-1] * 1e5:.4f}")
    blocks = re.findall(r"^(ENTRY )?%(\S+) [^\n]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    sines = {name for _, name, block in blocks if re.search(coefficient, block)}
    calls = r"= (\(.*?\)|\S+) fusion\(.*calls=%([^\s,]+)"
    return [
        (elements(shape), not entry)
        for entry, _, block in blocks
        for shape, name in re.findall(calls, block)
        if name in sines
    ]


def function_of(rope, source, direction, **options):
    """Return the function of x and of positions or tables that a case compiles."""
    import jax

    rope = ra.RoPE(128, **ROPES[rope])

    def rotate(x, *arrays):
        if source == "tables":
            return rope.rotation_from(*arrays).apply(x, **options)
        return rope.apply(x, *arrays, **options)

    if direction == "forward":
        return rotate
    return lambda x, *arrays: jax.vjp(lambda x: rotate(x, *arrays), x)[1](x)


def normed(direction):
    """Return the function of q and k, positions and a weight that norms and rotates, or its gradient."""
    import jax

    rope = ra.RoPE(128)

    def norm_and_rotate(xs, pos, weight):
        return ra.attention_inputs(*xs, pos, rope, norm=(weight, weight), seq_axis=1)

    def gradient(xs, pos, weight):
        return jax.vjp(lambda xs, weight: norm_and_rotate(xs, pos, weight), xs, weight)[1](xs)

    return norm_and_rotate if direction == "forward" else gradient


def model_of(device, source, layers):
    """Return the gradient of a model with four layers, and descriptions of its arguments."""
    import jax

    rope = ra.RoPE(128, **ROPES["half"])

    def loss(weights, x, pos):
        rotation = rope.rotation(pos, like=x)

        def layer(x, weight):
            q, k, v = jax.numpy.split((x @ weight).reshape(*x.shape[:-1], -1, 128), (8, 10), axis=-2)
            rotate = functools.partial(rope.apply, pos=pos) if source == "positions" else rotation.apply
            q, k = rotate((q, k), seq_axis=1)
            return x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape), None

        if layers == "checkpoint":
            layer = jax.checkpoint(layer)
        if layers == "scan":
            return jax.lax.scan(layer, x, weights)[0].sum()
        return functools.reduce(lambda x, weight: layer(x, weight)[0], weights, x).sum()

    shapes = ((4, 1024, 12 * 128), "bfloat16"), ((1, 512, 1024), "bfloat16"), ((512,), "int32")
    return jax.grad(loss), *(described(device, *shape) for shape in shapes)


def arguments(platform, device, dtype, rope, source):
    """Return descriptions of x, and of positions or tables."""
    shape = SHAPES[platform]
    table = described(device, (shape[-2], ROPES[rope].get("rotary_dim", 128) // 2), "float32")
    arrays = [described(device, shape[-2:-1], "int32")] if source == "positions" else [table, table]
    return described(device, shape, dtype), *arrays


def described(device, shape, dtype):
    """Describe an array of a device."""
    import jax

    return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.sharding.SingleDeviceSharding(device))


def elements(shape):
    """Return the number of elements of the largest array in a shape of XLA's text."""
    return max(map(size, re.findall(r"\w\[([\d,]*)\]", shape)))


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
