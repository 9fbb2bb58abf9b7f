"""The programs of the documentation that need exporters and their runtimes, collected only with `--edge`.

Each file that a program writes is run again in another process, by its runtime alone, with another batch and
with inputs that all differ, and compared with the definition.
"""

import pickle
from dataclasses import dataclass

import child
import docs_blocks
import numpy as np
import pytest
import torch

from rope_array.testing import apply_definition

PROGRAMS = docs_blocks.programs(edge=True)
POSITIONS = np.arange(4000, 4005)


@dataclass
class Call:
    """Inputs of a program, the outputs that it has to have, and their largest error."""

    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    tolerance: float = 2e-6

    def check(self, outputs):
        for y, expected in zip(outputs, self.outputs, strict=True):
            np.testing.assert_allclose(y, expected, rtol=0, atol=self.tolerance)


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def rotated(x, positions, rope):
    return apply_definition(x.astype(np.float64), positions, base=rope.base, pairing=rope.pairing)


def rotary_calls(names, tolerance=2e-6):
    q, k, rope = normal(0, 3, 4, 5, 16), normal(1, 3, 4, 5, 16), names["rotary"].rope
    expected = rotated(q, POSITIONS, rope), rotated(k, POSITIONS, rope)
    return [Call((q, k, POSITIONS), expected, tolerance)]


def float16_calls(names):
    return rotary_calls(names, 8e-3)  # twice the page's: the largest of these x is above 2


def table_calls(names):
    q, k, rope = normal(0, 3, 4, 5, 16), normal(1, 3, 4, 5, 16), names["rope"]
    angles = POSITIONS[:, None] * rope.base ** (-np.arange(0, 16, 2) / 16)
    tables = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    return [Call((q, k, *tables), (rotated(q, POSITIONS, rope), rotated(k, POSITIONS, rope)))]


def operator_calls(names):
    q, ids = normal(0, 3, 4, 5, 16), np.tile(POSITIONS, (3, 1))
    return [Call((q, ids), (rotated(q, ids, names["rope"]),))]


def batch_calls(names):
    """Return a call with positions of (batch, tokens), near the end of tables of 4,096 positions."""
    (call,), ids = rotary_calls(names), np.tile(POSITIONS, (3, 1))
    return [Call((*call.inputs[:2], ids), call.outputs)]


def growing_calls(names):
    return [growing_call(names["growing"], past, tokens) for past, tokens in ((0, 5), (0, 1), (4, 1), (4, 3))]


def growing_call(layer, past, tokens):
    x, past_k, past_v = normal(0, 3, tokens, 64), normal(1, 3, 4, past, 16), normal(2, 3, 4, past, 16)
    positions = np.arange(past, past + tokens)
    q, k, v = heads(layer, x, positions)
    k, v = np.concatenate((past_k, k), 2), np.concatenate((past_v, v), 2)
    y = attention(q, k, v, np.arange(past + tokens) <= positions[:, None])
    return Call((x, positions, past_k, past_v), (y, k, v), 1e-5)


def fixed_calls(names):
    return [fixed_call(names["fixed"], np.array([0, 7, 4000]), tokens) for tokens in (1, 5)]


def fixed_call(layer, lengths, tokens):
    """Return a call whose rows have caches of different lengths."""
    x, cache_k, cache_v = normal(0, 3, tokens, 64), normal(1, 3, 4, 4100, 16), normal(2, 3, 4, 4100, 16)
    positions = lengths[:, None] + np.arange(tokens)
    q, new_k, new_v = heads(layer, x, positions)
    k, v = cache_k.astype(float), cache_v.astype(float)
    for row, slots in enumerate(positions):
        k[row][:, slots], v[row][:, slots] = new_k[row], new_v[row]
    y = attention(q, k, v, np.arange(4100) <= positions[:, None, :, None])
    return Call((x, positions, cache_k, cache_v), (y, k, v), 1e-5)


def heads(layer, x, positions):
    """Return q and k, rotated, and v of a layer of the page, in float64."""
    weight, bias = (p.detach().double().numpy() for p in (layer.project.weight, layer.project.bias))
    q, k, v = (x @ weight.T + bias).reshape(*x.shape[:2], 3, 4, 16).transpose(2, 0, 3, 1, 4)
    return rotated(q, positions, layer.rotary.rope), rotated(k, positions, layer.rotary.rope), v


def attention(q, k, v, mask):
    weights = np.exp(np.where(mask, q @ k.swapaxes(-1, -2) / 4, -np.inf))
    return weights / weights.sum(-1, keepdims=True) @ v


BOTH = ("onnxruntime", "openvino")
# The calls of each section, and its files, with their readers.
FILES = {
    "ONNX": (rotary_calls, {"rotary.onnx": BOTH}),
    "Tables": (batch_calls, {"tables.onnx": BOTH}),
    "A KV cache": (
        growing_calls,
        {"growing.onnx": BOTH, "growing_older.onnx": BOTH, "fixed.onnx": BOTH, "fixed.pt2": ("aoti",)},
    ),
    "float16": (float16_calls, {"rotary_float16.onnx": ("onnxruntime",)}),
    "Tables as inputs": (table_calls, {"rotate.onnx": BOTH}),
    "An ONNX file that exists": (operator_calls, {"model.onnx": (), "exact.onnx": ("onnxruntime",)}),
    "torch.export and AOTInductor": (rotary_calls, {"rotary.pt2": ("aoti",)}),
    "OpenVINO": (rotary_calls, {"rotary.xml": ("openvino",)}),
}
RUN = """
import pickle, sys

reader, file = sys.argv[1:]
if reader == "onnxruntime":
    import onnxruntime

    session = onnxruntime.InferenceSession(file)
    names = [each.name for each in session.get_inputs()]
    run = lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))
elif reader == "openvino":
    import openvino

    compiled = openvino.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    run = lambda inputs: [y.copy() for y in compiled(list(inputs)).values()]
else:
    import torch

    program = torch._inductor.aoti_load_package(file)
    run = lambda inputs: [y.detach().numpy() for y in program(*map(torch.from_numpy, inputs))]

with open("calls.pickle", "rb") as calls:
    outputs = [run(inputs) for inputs in pickle.load(calls)]
with open("outputs.pickle", "wb") as results:
    pickle.dump(outputs, results)
assert "rope_array" not in sys.modules
assert ("torch" in sys.modules) is (reader == "aoti")
"""


def check_in_another_process(folder, reader, file, calls):
    (folder / "calls.pickle").write_bytes(pickle.dumps([call.inputs for call in calls]))
    done = child.python("-c", RUN, reader, file, cwd=folder)
    assert done.returncode == 0, f"{reader} and {file}:\n{done.stdout}\n{done.stderr}"
    for call, outputs in zip(calls, pickle.loads((folder / "outputs.pickle").read_bytes()), strict=True):
        call.check(outputs)


@pytest.mark.library("torch")
@pytest.mark.filterwarnings("default")  # allow the warnings of exporters and of transformers
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.id)
def test_programs_and_their_files(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = program.run()
    make_calls, files = FILES.get(program.section, (None, {}))
    written = {path.name for path in tmp_path.iterdir() if path.suffix in (".onnx", ".pt2", ".pt", ".xml")}
    assert written == {*files}
    for file, readers in files.items():
        for reader in readers:
            calls = fixed_calls if file.startswith("fixed") else make_calls
            check_in_another_process(tmp_path, reader, file, calls(names))
    if program.section == "A KV cache":
        check_other_recorders(names)


def check_other_recorders(names):
    """Compare torch.export's and torch.jit.trace's programs of both layers with a cache."""
    of_growing = {n: {a: torch.export.Dim.DYNAMIC for a in axes} for n, axes in names["axes"].items()}
    for layer, example, shapes, calls in (
        (names["growing"], names["example"], of_growing, growing_calls(names)),
        (names["fixed"], names["fixed_example"], names["shapes"], fixed_calls(names)),
    ):
        exported = torch.export.export(layer, example, dynamic_shapes=shapes).module()
        for run in (exported, torch.jit.trace(layer, example)):
            for call in calls:
                call.check(run(*map(torch.from_numpy, call.inputs)))


def test_every_page_has_programs():
    assert {program.page for program in PROGRAMS} == docs_blocks.EDGE
