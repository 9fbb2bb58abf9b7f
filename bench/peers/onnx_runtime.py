"""ONNX Runtime on the CPU: RotaryEmbedding of ai.onnx (opset 23), and the older operator of com.microsoft."""

from functools import lru_cache

from rope_array.testing import Target

from ._note import Note, release
from ._onnx import caches
from ._timed import NotServedError, Timed

_HOW = (
    "an `InferenceSession` of one node. cos and sin are inputs of the node; they are computed in float64 "
    "and rounded to x's dtype, which the node's type constraint requires"
)
# The prefix of the domain, and the order of the inputs, which differs.
_DOMAINS = {
    "ONNX Runtime, ai.onnx": ("", ("x", "cos", "sin", "ids")),
    "ONNX Runtime, com.microsoft": ("com.microsoft.", ("x", "ids", "cos", "sin")),
}
NOTES = dict.fromkeys(_DOMAINS, Note(_HOW))


def targets() -> list[Target]:
    return [_target(name, *of) for name, of in _DOMAINS.items()]


def _target(name: str, domain: str, inputs: tuple[str, ...]) -> Target:
    session = lru_cache(lambda *key: _session(domain, inputs, *key))

    def rotate(x, pos, pairing="interleaved", rotary_dim=None):
        if rotary_dim == 0:
            return x.copy()  # the node reads 0 as the whole head
        cos, sin, ids = caches(x, pos, rotary_dim)
        # A partial rotation needs num_heads.
        heads = x.shape[1] if rotary_dim else 0
        run = session(x.dtype.name, int(pairing == "interleaved"), rotary_dim or 0, heads).run
        return run(None, {"x": x, "cos": cos, "sin": sin, "ids": ids})[0]

    return Target(
        rotate,
        name=name,
        version=release("onnxruntime"),
        library="numpy",
        layout="bhsd",
        dtypes=("float16", "float32"),
        arithmetic="own",
        lacks={
            "base": "cos and sin are its inputs",
            "bfloat16": "not on the CPU, and NumPy's own dtypes have none",
        },
    )


def _session(domain, inputs, dtype, interleaved, width, heads, threads=1):
    import onnxruntime
    from onnx import parser

    element = {"float16": "float16", "float32": "float"}[dtype]
    types = {"x": f"{element}[b,h,s,d]", "ids": "int64[b,s]"} | dict.fromkeys(
        ("cos", "sin"), f"{element}[m,r]"
    )
    attributes = f"interleaved = {interleaved}, rotary_embedding_dim = {width}"
    attributes += f", num_heads = {heads}" * bool(heads)
    model = parser.parse_model(  # ir_version 10: older runtimes read it too
        f"""<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>
        rotary ({", ".join(f"{types[name]} {name}" for name in inputs)}) => ({types["x"]} y) {{
            y = {domain}RotaryEmbedding <{attributes}> ({", ".join(inputs)})
        }}"""
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Threads that spin after a call would slow the next row.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def timed(arrays):
    """The session is made before, with its inputs and outputs bound."""
    return {name: lambda of=of: _timed(arrays, *of) for name, of in _DOMAINS.items()}


def _timed(arrays, domain, inputs):
    if arrays.dtype == "bfloat16":
        raise NotServedError("no bfloat16 on the CPU")
    x, out = arrays.numpy(), arrays.out()
    feeds = dict(zip(("cos", "sin", "ids"), caches(x, arrays.pos), strict=True), x=x)
    interleaved = int(arrays.pairing == "interleaved")
    session = _session(domain, inputs, arrays.dtype, interleaved, 0, 0, arrays.threads)
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    binding.bind_output("y", "cpu", 0, out.dtype, out.shape, out.ctypes.data)

    def run(run=session.run_with_iobinding, keep=feeds):
        run(binding)  # holds addresses, not references

    return Timed(run, result=out)
