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


def step_calls(names):
    return [step_call(names["step"], past, tokens) for past, tokens in ((0, 5), (0, 1), (4, 1), (4, 3))]


def step_call(step, past, tokens):
    """Return a call of the step: attention in float64."""
    x, past_k, past_v = normal(0, 3, tokens, 64), normal(1, 3, 4, past, 16), normal(2, 3, 4, past, 16)
    positions = np.arange(past, past + tokens)
    weight, bias = (p.detach().double().numpy() for p in (step.project.weight, step.project.bias))
    qkv = (x @ weight.T + bias).reshape(3, tokens, 3, 4, 16).transpose(2, 0, 3, 1, 4)
    q, k = rotated(qkv[0], positions, step.rotary.rope), rotated(qkv[1], positions, step.rotary.rope)
    k, v = np.concatenate((past_k, k), 2), np.concatenate((past_v, qkv[2]), 2)
    scores = q @ k.swapaxes(-1, -2) / 4
    weights = np.exp(np.where(np.arange(past + tokens) <= positions[:, None], scores, -np.inf))
    y = weights / weights.sum(-1, keepdims=True) @ v
    return Call((x, positions, past_k, past_v), (y, k, v), 1e-5)


BOTH = ("onnxruntime", "openvino")
# The calls of each section, and its files, with their readers.
FILES = {
    "ONNX": (rotary_calls, {"rotary.onnx": BOTH, "rotary_older.onnx": BOTH}),
    "Tables": (batch_calls, {"tables.onnx": BOTH}),
    "A generation step with a cache": (step_calls, {"step.onnx": BOTH, "step_older.onnx": BOTH}),
    "float16": (float16_calls, {"rotary_float16.onnx": ("onnxruntime",)}),
    "Tables as inputs": (table_calls, {"rotate.onnx": BOTH}),
    "An ONNX file that exists": (operator_calls, {"model.onnx": (), "exact.onnx": ("onnxruntime",)}),
    "torch.export and AOTInductor": (rotary_calls, {"rotary.pt2": ("aoti",)}),
    "torch.jit.trace": (rotary_calls, {"rotary.pt": ("jit",)}),
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

    program = torch._inductor.aoti_load_package(file) if reader == "aoti" else torch.jit.load(file)
    run = lambda inputs: [y.detach().numpy() for y in program(*map(torch.from_numpy, inputs))]

with open("calls.pickle", "rb") as calls:
    outputs = [run(inputs) for inputs in pickle.load(calls)]
with open("outputs.pickle", "wb") as results:
    pickle.dump(outputs, results)
assert "rope_array" not in sys.modules
assert ("torch" in sys.modules) is (reader in ("aoti", "jit"))
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
            check_in_another_process(tmp_path, reader, file, make_calls(names))


@pytest.mark.library("torch")
@pytest.mark.filterwarnings("default")
def test_other_tools_record_the_step_with_a_cache(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (program,) = [program for program in PROGRAMS if program.section == "A generation step with a cache"]
    names = program.run()
    step, example, calls = names["step"], names["example"], step_calls(names)
    sizes = {size: torch.export.Dim(size) for axes in names["axes"].values() for size in axes.values()}
    shapes = {
        name: {axis: sizes[size] for axis, size in axes.items()} for name, axes in names["axes"].items()
    }
    with torch.no_grad():
        torch.jit.trace(step, example).save("step.pt")
        exported = torch.export.export(step, example, dynamic_shapes=shapes)
        torch._inductor.aoti_compile_and_package(exported, package_path="step.pt2")
        for call in calls:
            call.check(exported.module()(*map(torch.from_numpy, call.inputs)))
    check_in_another_process(tmp_path, "jit", "step.pt", calls)
    check_in_another_process(tmp_path, "aoti", "step.pt2", calls)


def test_every_page_has_programs():
    assert {program.page for program in PROGRAMS} == docs_blocks.EDGE
