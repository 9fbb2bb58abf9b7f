"""Programs that PyTorch exports or traces, and their runtimes, against the definition.

Each case is recorded with one batch and length, and run with others, at far and negative positions.
"""

import io
import warnings

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
import torch
from onnxconverter_common import float16

import rope_array as ra
from rope_array.testing import apply_definition

pytestmark = [
    pytest.mark.library("torch"),
    pytest.mark.filterwarnings("default"),  # the exporters warn of much
]
torch.set_num_threads(1)

FAR = [0, 1, 2, 63, 5000, 2**20, 2**24 + 12345, 2**31 - 1, -1, -(2**20), -(2**31)]
WIDE = [*FAR, 2**33 + 5, -(2**38) - 1]
NEAR = [0, 1, 2, 3, 30, 63, 64, 100]
TOLERANCE = {"float64": 2e-14, "float32": 2e-6, "float16": 4e-3}


class Call(torch.nn.Module):
    """A function of (q, k, positions) as a module."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function, self.used = function, torch.nn.ModuleList(modules)

    def forward(self, q, k, positions):
        return self.function(q, k, positions)


class Case:
    """A module of (q, k, positions), and the fields of its rotation.

    `like`: two positions of the right kind, to make the example and the positions of the run.
    """

    def __init__(self, module, fields=None, positions=FAR, dtype="float32", seq_axis=-2, tolerance=None):
        self.module = module if isinstance(module, torch.nn.Module) else Call(module)
        self.fields, self.dtype, self.seq_axis = fields or {}, dtype, seq_axis
        self.positions = torch.as_tensor(positions)
        self.tolerance = tolerance or TOLERANCE[dtype]

    def arrays(self, batch, tokens, width=16):
        random = np.random.default_rng(batch)
        shapes = [(batch, heads, tokens, width) for heads in (4, 2)]
        shapes = shapes if self.seq_axis == -2 else [(b, s, h, d) for b, h, s, d in shapes]
        return [torch.from_numpy(random.standard_normal(s).astype(self.dtype)) for s in shapes]

    def example(self):
        return *self.arrays(2, 7), self.positions[:7].clone()

    def inputs(self):
        return *self.arrays(3, len(self.positions)), self.positions

    def want(self, x):
        return apply_definition(x.double().numpy(), self.positions.numpy(), seq_axis=self.seq_axis, **self.fields)

    def check(self, run, slack=1.0):
        inputs = self.inputs()
        for x, y in zip(inputs, run(*inputs), strict=False):
            y = np.asarray(y)
            assert y.dtype == self.dtype
            assert y.shape == x.shape
            np.testing.assert_allclose(y, self.want(x), rtol=0, atol=slack * self.tolerance)


def learned():
    module = ra.torch.LearnedRotaryEmbedding(ra.RoPE(16, base=100.0))
    with torch.no_grad():
        module.log_scale += torch.linspace(-0.2, 0.3, 8)
    return module.requires_grad_(False)


def apply_in_two_steps(rope, **options):
    def apply(q, k, positions):
        return rope.rotation(positions, like=q).apply((q, k), **options)

    return apply


HALF = ra.RoPE(16, base=500_000.0, pairing="half")
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = ra.Llama3(factor=8.0, original_max_position_embeddings=8192)
LEARNED = learned()
GRID = [[0, 0], [0, 1], [3, 500], [2**20, 2], [-7, 9], [63, 63], [5, 5], [1, 2**30]]
TEXT_AND_IMAGE = [[i, i + 2, 3 * i] for i in range(6)] + [[2**20, 7, 9], [-5, 100, 2**31 - 1]]


def stated(rope):
    """Return the fields of a rope's effective frequencies, exactly as floats."""
    return {"inv_freq": rope.frequencies, "attention_factor": rope.amplitude, "pairing": rope.pairing}


CASES = {
    "apply": Case(lambda q, k, p: ra.apply((q, k), p), positions=WIDE),
    "one array": Case(lambda q, k, p: (ra.apply(q, p), ra.apply(k, p, backend="array-api"))),
    "module": Case(ra.torch.RotaryEmbedding(HALF), {"base": 500_000.0, "pairing": "half"}, WIDE),
    "module, heads inside": Case(
        ra.torch.RotaryEmbedding(HALF, seq_axis=-3), {"base": 500_000.0, "pairing": "half"}, seq_axis=-3
    ),
    "int32 positions": Case(
        ra.torch.RotaryEmbedding(ra.RoPE(16)), positions=torch.tensor(FAR, dtype=torch.int32)
    ),
    "rotation": Case(apply_in_two_steps(HALF), {"base": 500_000.0, "pairing": "half"}),
    "part of the features": Case(
        lambda q, k, p: ra.apply((q, k), p, rotary_dim=8, rotary_start=4), {"rotary_dim": 8, "rotary_start": 4}
    ),
    "inverse": Case(lambda q, k, p: ra.apply((q, k), p, inverse=True), {"inverse": True}),
    "float64": Case(lambda q, k, p: ra.apply((q, k), p), positions=WIDE, dtype="float64"),
    "float16": Case(lambda q, k, p: ra.apply((q, k), p, pairing="half"), {"pairing": "half"}, dtype="float16"),
    "float positions": Case(
        lambda q, k, p: ra.apply((q, k), p), positions=[0.0, 0.25, -0.5, 1.5, 99.7, 4000.5, -77.125, 2.0**20 + 0.5]
    ),
    "large fractions": Case(
        lambda q, k, p: ra.apply((q, k), p, inv_freq=[40.0, 3.0] * 4), {"inv_freq": [40.0, 3.0] * 4},
        [0.0, 0.25, -0.5, 1.25, -99.75, 4000.5, -0.3125, 0.4375], tolerance=8e-5,
    ),
    "llama3": Case(ra.torch.RotaryEmbedding(ra.RoPE(16, scaling=LLAMA3)), stated(ra.RoPE(16, scaling=LLAMA3))),
    "yarn": Case(
        ra.torch.RotaryEmbedding(ra.RoPE(16, scaling=ra.YaRN(**YARN))), stated(ra.RoPE(16, scaling=ra.YaRN(**YARN)))
    ),
    "axial": Case(
        lambda q, k, p: ra.apply((q, k), p, axes=ra.Axes.axial(8, 8)),
        {"axes": {"coordinates": [0] * 4 + [1] * 4, "widths": [8, 8]}}, GRID,
    ),
    "sections of vision-language models": Case(
        apply_in_two_steps(ra.RoPE(16, pairing="half", axes=ra.Axes.chunked(2, 3, 3))),
        {"axes": {"coordinates": [0] * 2 + [1] * 3 + [2] * 3}, "pairing": "half"}, TEXT_AND_IMAGE,
    ),
    "learned": Case(LEARNED, {"inv_freq": LEARNED.to_rope().frequencies}, NEAR, tolerance=1e-4),
}  # fmt: skip


def to_onnx(module, example, dynamo, opset=None, axes=None, names=("q", "k", "positions")):
    """Export a module; return its bytes. `axes`: the dynamic axes of each input by name."""
    file = io.BytesIO()
    options = {"input_names": list(names), "opset_version": opset, "dynamo": dynamo}
    if dynamo:
        shapes = tuple(axes[name] for name in names)
        shapes = {"dynamic_shapes": shapes}
    else:
        shapes = {"dynamic_axes": axes}
    with torch.no_grad():
        torch.onnx.export(module.eval(), example, file, **options, **shapes, **({"external_data": False} if dynamo else {}))
    return file.getvalue()


def axes_of(case):
    tokens = 2 if case.seq_axis == -2 else 1
    return {"q": {0: "batch", tokens: "tokens"}, "k": {0: "batch", tokens: "tokens"}, "positions": {0: "tokens"}}


def runner(model):
    """Return a function that runs the bytes of a model in ONNX Runtime."""
    session = onnxruntime.InferenceSession(model)
    names = [each.name for each in session.get_inputs()]

    def run(*inputs):
        return session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True)))

    return run


EXPORTERS = {"dynamo": (True, None), "torchscript": (False, None), "torchscript, opset 13": (False, 13)}


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", CASES)
def test_onnx_runtime_has_the_values_of_the_definition(name, exporter):
    case, (dynamo, opset) = CASES[name], EXPORTERS[exporter]
    model = to_onnx(case.module, case.example(), dynamo, opset, axes_of(case))
    case.check(runner(model))
