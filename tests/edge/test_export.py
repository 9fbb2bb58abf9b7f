"""Programs that PyTorch exports or traces, and their runtimes, against the definition.

Each case is recorded with one batch and length, and run with others, at far and negative positions.
"""

import io
from collections import Counter
from functools import partial

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
import torch
from hf._compare import off
from hf._tiny import TRAINED, tiny_of
from hf._tiny_inputs import tokens
from onnxconverter_common import float16
from onnxruntime.transformers import float16 as onnxruntime_float16
from torch_cases import module_of

import rope_array as ra
from rope_array.testing import apply_definition

pytestmark = [
    pytest.mark.library("torch"),
    pytest.mark.filterwarnings("default"),  # the exporters warn of much
]

# Of the largest logit, in float32: two runtimes add the products of a layer in other orders.
OF_LOGITS = 1e-5
FAR = [0, 1, 2, 63, 5000, 2**20, 2**24 + 12345, 2**31 - 1, -1, -(2**20), -(2**31)]
WIDE = [*FAR, 2**33 + 5, -(2**38) - 1]
NEAR = [0, 1, 2, 3, 30, 63, 64, 100]
TOLERANCE = {"float64": 2e-14, "float32": 2e-6, "float16": 4e-3}


class ExportCase:
    """A module or function of (q, k, positions), and the fields of its rotation."""

    def __init__(self, program, fields=None, positions=FAR, dtype="float32", seq_axis=-2, tolerance=None):
        self.module = program if isinstance(program, torch.nn.Module) else module_of(program)
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
        return apply_definition(
            x.double().numpy(), self.positions.numpy(), seq_axis=self.seq_axis, **self.fields
        )

    def check(self, run, inputs=None):
        inputs = inputs or self.inputs()
        for x, y in zip(inputs, run(*inputs), strict=False):
            y = np.asarray(y)
            assert y.dtype == self.dtype
            assert y.shape == x.shape
            np.testing.assert_allclose(y, self.want(x), rtol=0, atol=self.tolerance)


def learned():
    module = ra.torch.LearnedRotaryEmbedding(ra.RoPE(16, base=100.0))
    with torch.no_grad():
        module.log_scale += torch.linspace(-0.2, 0.3, 8)
    return module.requires_grad_(False)


def two_steps(rope):
    return lambda q, k, positions: rope.rotation(positions, like=q).apply((q, k))


def applied(fields=None, positions=FAR, dtype="float32", tolerance=None, **options):
    """Return the case of `apply` with options, which are the fields too unless these are stated."""
    fields = options if fields is None else fields
    return ExportCase(
        lambda q, k, p: ra.apply((q, k), p, **options), fields, positions, dtype, tolerance=tolerance
    )


OF_HALF = {"base": 500_000.0, "pairing": "half"}
HALF = ra.RoPE(16, **OF_HALF)
YARN = ra.RoPE(16, scaling=ra.YaRN(factor=4.0, original_max_position_embeddings=64))
LEARNED = learned()
FRACTIONS = [0.0, 0.25, -0.5, 1.5, 99.7, 4000.5, -77.125, 2.0**20 + 0.5]
LARGE_FRACTIONS = [0.0, 0.25, -0.5, 1.25, -99.75, 4000.5, -0.3125, 0.4375]
GRID = [[0, 0], [0, 1], [3, 500], [2**20, 2], [-7, 9], [63, 63], [5, 5], [1, 2**30]]
AXIAL = {"axes": {"coordinates": [0] * 4 + [1] * 4, "widths": [8, 8]}}


def module(rope, fields, positions=FAR, seq_axis=-2):
    return ExportCase(ra.torch.RotaryEmbedding(rope, seq_axis=seq_axis), fields, positions, seq_axis=seq_axis)


CASES = {
    "apply": applied(positions=WIDE),
    "one array": ExportCase(lambda q, k, p: (ra.apply(q, p), ra.apply(k, p, backend="array-api"))),
    "module": module(HALF, OF_HALF, WIDE),
    "module, heads inside": module(HALF, OF_HALF, seq_axis=-3),
    "int32 positions": module(ra.RoPE(16), {}, torch.tensor(FAR, dtype=torch.int32)),
    "rotation": ExportCase(two_steps(HALF), OF_HALF),
    "part of the features": applied(rotary_dim=8, rotary_start=4),
    "inverse": applied(inverse=True),
    "float64": applied(positions=WIDE, dtype="float64"),
    "float16": applied(pairing="half", dtype="float16"),
    "float positions": applied(positions=FRACTIONS),
    "large fractions": applied(positions=LARGE_FRACTIONS, tolerance=8e-5, inv_freq=[40.0, 3.0] * 4),
    "yarn": module(YARN, {"inv_freq": YARN.frequencies, "attention_factor": YARN.amplitude}),
    "axial": applied(AXIAL, GRID, axes=ra.Axes.axial(8, 8)),
    "float32 angles": applied({}, NEAR, tolerance=1e-4, angles="float32"),
    "learned": ExportCase(LEARNED, {"inv_freq": LEARNED.to_rope().frequencies}, NEAR, tolerance=1e-4),
}


def to_onnx(module, example, dynamo, opset=None, axes=None, names=("q", "k", "positions"), shapes=None):
    """Export a module; return its bytes. `axes`: the dynamic axes of each input by name."""
    file = io.BytesIO()
    options = {"input_names": list(names), "opset_version": opset, "dynamo": dynamo}
    if dynamo:
        shapes = shapes or tuple(axes[name] for name in names)
        options |= {"dynamic_shapes": shapes, "external_data": False}
    else:
        options["dynamic_axes"] = axes
    with torch.no_grad():
        torch.onnx.export(module.eval(), example, file, **options)
    return file.getvalue()


def axes_of(case):
    x = {0: "batch", 2 if case.seq_axis == -2 else 1: "tokens"}
    return {"q": x, "k": x, "positions": {0: "tokens"}}


def exported(case, dynamo, opset=None):
    return to_onnx(case.module, case.example(), dynamo, opset, axes_of(case))


def runner(model):
    """Return a function that runs the bytes of a model in ONNX Runtime."""
    session = onnxruntime.InferenceSession(model)
    names = [input_.name for input_ in session.get_inputs()]

    def run(*inputs):
        return session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True)))

    return run


EXPORTERS = pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
# The newer exporter takes seconds, so it has the cases whose operators differ.
DYNAMO = ["apply", "module, heads inside", "float64", "float16", "large fractions", "axial", "learned"]
EXPORTS = [(name, True, None) for name in DYNAMO] + [(name, False, None) for name in CASES]
EXPORTS += [(name, False, opset) for name in ("apply", "float positions") for opset in (11, 17)]


@pytest.mark.parametrize(("name", "dynamo", "opset"), EXPORTS)
def test_onnx_runtime_has_the_values_of_the_definition(name, dynamo, opset):
    CASES[name].check(runner(exported(CASES[name], dynamo, opset)))


# ---- conversion to float16 ----


def by_common(model):
    casts = [node.name for node in model.graph.node if node.op_type == "Cast"]
    return float16.convert_float_to_float16(model, keep_io_types=True, node_block_list=casts)


def by_onnx_runtime(model):
    return onnxruntime_float16.convert_float_to_float16(model, keep_io_types=True)


@pytest.mark.parametrize("convert", [by_common, by_onnx_runtime], ids=["onnxconverter", "onnxruntime"])
@EXPORTERS
def test_a_conversion_to_float16_only_rounds(dynamo, convert):
    """Other angles than exact ones are wrong beyond some tens of positions, as the documentation says."""
    case = ExportCase(ra.torch.RotaryEmbedding(HALF), OF_HALF, tolerance=TOLERANCE["float16"])
    model = onnx.load_from_string(exported(case, dynamo))
    case.check(runner(convert(model).SerializeToString()))


# ---- OpenVINO ----


def in_openvino(model):
    """Return a function that runs a model in OpenVINO, in float32."""
    options = {"INFERENCE_PRECISION_HINT": "f32"}  # bfloat16 by default on processors that have it
    compiled = openvino.Core().compile_model(model, "CPU", options)
    return lambda *inputs: [*compiled([x.numpy() for x in inputs]).values()]


FORMS = {
    "traced": lambda case, folder: openvino.convert_model(
        torch.jit.trace(case.module, case.example(), check_trace=False), example_input=case.example()
    ),
    "ONNX, dynamo": lambda case, folder: openvino.convert_model(saved(case, folder, True)),
    "ONNX, torchscript": lambda case, folder: openvino.convert_model(saved(case, folder, False)),
}
# Positions of 2^28 to 2^31. OpenVINO computes wrong casts and bit shifts at the first three lines of them.
LARGE = [
    699776997, 2**31 - 1, 918454252, 1343848385,
    1316569048, 2019377123, 806322170, 558891002,
    1092845509, 1886060514, 1881243602,
    *np.random.default_rng(0).integers(2**28, 2**31, 200).tolist(),
]  # fmt: skip
OPENVINO = {name: CASES[name] for name in ("module", "part of the features", "axial")}
OPENVINO["large positions"] = module(ra.RoPE(16, pairing="half"), {"pairing": "half"}, LARGE)
NEWER = ("axial", "large positions")


def dims_of(case):
    axes = axes_of(case).values()
    return tuple({axis: torch.export.Dim(name, min=2) for axis, name in names.items()} for names in axes)


def saved(case, folder, dynamo, opset=None):
    (folder / "model.onnx").write_bytes(exported(case, dynamo, opset))
    return folder / "model.onnx"


# Few by the newer exporter, as above.
@pytest.mark.parametrize(
    ("name", "form"),
    [(name, form) for name in OPENVINO for form in FORMS if "dynamo" not in form or name in NEWER],
)
def test_openvino_which_has_32_bits_for_integers(name, form, tmp_path):
    case = OPENVINO[name]
    fits = case.positions.abs().reshape(len(case.positions), -1).amax(-1) < 2**31
    case = ExportCase(case.module, case.fields, case.positions[fits])
    with torch.no_grad():
        case.check(in_openvino(FORMS[form](case, tmp_path)))


def test_openvino_rounds_positions_of_float64_to_float32():
    positions = torch.tensor(
        [0.1, 99.7, 4000.3, 5001.3, 8191.9, 10000.1, 12345.6, 16383.7], dtype=torch.float64
    )
    case = ExportCase(ra.torch.RotaryEmbedding(HALF), OF_HALF, positions)
    run = in_openvino(FORMS["traced"](case, None))
    y = run(*case.inputs())[0]
    rounded = ExportCase(case.module, OF_HALF, positions.float())
    np.testing.assert_allclose(y, rounded.want(case.inputs()[0]), rtol=0, atol=2e-6)
    assert 1e-4 < np.abs(y - case.want(case.inputs()[0])).max() < 2e-3


# ---- tables ----

LENGTH = 2**20 + 1
IN_TABLES = [0, 1, 77, 4095, 70_000, 2**20, 5]
OF_PART = {"base": 500_000.0, "pairing": "half", "rotary_dim": 4}  # with small tables


def exporting(case):
    return torch.export.export(case.module, case.example(), dynamic_shapes=dims_of(case))


def packaged(case, folder):
    path = torch._inductor.aoti_compile_and_package(exporting(case), package_path=f"{folder}/rotary.pt2")
    return torch._inductor.aoti_load_package(path)


RUNTIMES = {
    "ONNX Runtime, dynamo": lambda case, folder: runner(exported(case, True)),
    "ONNX Runtime, operator": lambda case, folder: runner(exported(case, True, 23)),
    "ONNX Runtime, torchscript": lambda case, folder: runner(exported(case, False)),
    "ONNX Runtime, opset 12": lambda case, folder: runner(exported(case, False, 12)),
    "OpenVINO, operator": lambda case, folder: in_openvino(
        openvino.convert_model(saved(case, folder, True, 23))
    ),
    "OpenVINO, traced": lambda case, folder: in_openvino(FORMS["traced"](case, folder)),
    "OpenVINO, torch.export": lambda case, folder: in_openvino(openvino.convert_model(exporting(case))),
    "AOTInductor": packaged,
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_results_outside_tables_are_nan(runtime, dtype, tmp_path):
    """In every runtime. Features that are not rotated are x's."""
    rotary = ra.torch.RotaryEmbedding(
        ra.RoPE(16, **OF_PART), tables=LENGTH, onnx_operator="operator" in runtime
    )
    case = ExportCase(rotary, OF_PART, torch.tensor(IN_TABLES, dtype=dtype))
    with torch.no_grad():
        run = RUNTIMES[runtime](case, tmp_path)
    case.check(run)
    q, k, positions = case.inputs()
    positions[1:] = torch.tensor([-1, LENGTH, LENGTH + 1, 2**31 - 1, -(2**31), -2])
    for x, y in zip((q, k), run(q, k, positions), strict=True):
        np.testing.assert_allclose(y[..., 0, :], x[..., 0, :], rtol=0, atol=1e-6)  # of position 0
        assert np.isnan(y[..., 1:, :4]).all()
        np.testing.assert_array_equal(y[..., 4:], x[..., 4:])


OPERATORS = {"Clip": 1, "Add": 1, "Gather": 2, "RotaryEmbedding": 2}
# The fields of the rope, and the operators of the program; None for plain operations.
BY_OPERATOR = {
    "half": ({"pairing": "half"}, OPERATORS),
    "interleaved": ({}, OPERATORS),
    "part of the features": ({"rotary_dim": 8}, OPERATORS),
    "amplitude": ({"attention_factor": 1.25}, OPERATORS),
    "heads inside": ({"pairing": "half"}, {**OPERATORS, "Transpose": 4}),
    "heads inside, axis 1": ({"pairing": "half"}, {**OPERATORS, "Transpose": 4}),
    "float16": ({"pairing": "half"}, {**OPERATORS, "Cast": 4}),
    "axes": (AXIAL, {**OPERATORS, "Gather": 5, "Mul": 1, "Add": 2}),
    "another start": ({"rotary_dim": 8, "rotary_start": 4}, None),
    "another output": ({"out_pairing": "half"}, None),
    "float64": ({}, None),
}


@pytest.mark.parametrize("name", BY_OPERATOR)
def test_onnx_has_one_operator_for_q_and_one_for_k(name):
    fields, operators = BY_OPERATOR[name]
    rope = ra.RoPE(16, axes=ra.Axes.axial(8, 8)) if name == "axes" else ra.RoPE(16, **fields)
    axis = -3 if name.startswith("heads inside") else -2
    module_axis = 1 if name.endswith("1") else axis
    rotary = ra.torch.RotaryEmbedding(rope, seq_axis=module_axis, tables=101, onnx_operator=True)
    positions = torch.tensor([[0, 1, 2, 99, 100, 7, 50], [3, 2, 1, 0, 9, 9, 100], [5, 4, 3, 2, 1, 1, 0]])
    positions = torch.stack([positions, positions.flip(0)], -1) if name == "axes" else positions
    dtype = name if name in TOLERANCE else "float32"
    case = ExportCase(rotary, fields, positions, dtype, axis)
    axes = axes_of(case) | {"positions": {0: "batch", 1: "tokens"}}
    model = to_onnx(rotary, (*case.arrays(2, 7), positions[:2]), True, 23, axes)
    case.check(runner(model), (*case.arrays(3, 7), positions))
    count = Counter(node.op_type for node in onnx.load_from_string(model).graph.node)
    assert count == operators if operators else not count["RotaryEmbedding"]


@EXPORTERS
def test_tables_take_a_sixth_of_the_operations(dynamo):
    """Of a program with exact angles. All of them are ExecuTorch's."""
    small = ExportCase(ra.torch.RotaryEmbedding(HALF, tables=101), OF_HALF, NEAR)
    models = [onnx.load_from_string(exported(case, dynamo)) for case in (CASES["module"], small)]
    exact, count = (sum(node.op_type != "Constant" for node in model.graph.node) for model in models)
    assert count <= 26 < exact / 6
    assert operators_beyond_core(small.module, small.example(), dims_of(small)) == set()


@pytest.mark.parametrize("form", ["dynamo", "torchscript", "operator"])
def test_tables_need_no_block_list_for_float16(form):
    rotary = ra.torch.RotaryEmbedding(HALF, tables=5001, onnx_operator=form == "operator")
    case = ExportCase(rotary, OF_HALF, [*NEAR, 5000], tolerance=TOLERANCE["float16"])
    model = exported(case, form != "torchscript", 23 if form == "operator" else None)
    half = float16.convert_float_to_float16(onnx.load_from_string(model), keep_io_types=True)
    run = runner(half.SerializeToString())
    case.check(run)
    assert np.isnan(run(*case.inputs()[:2], torch.full((9,), -1))[0]).all()


@pytest.mark.parametrize("form", ["dynamo", "torchscript", "operator"])
def test_a_rotation_in_place_of_positions_is_an_input(form):
    """The program has no integers; of ONNX's operator it is two nodes, without position_ids."""
    rotary, case = ra.torch.RotaryEmbedding(HALF, onnx_operator=form == "operator"), ExportCase(None, OF_HALF)
    heads, tokens = {0: "b", 2: "s"}, {0: "b", 1: "s"}
    axes = {"q": heads, "k": heads, "cos": tokens, "sin": tokens}
    positions = torch.tensor(FAR).expand(3, -1)
    rotation = HALF.rotation(positions, like=torch.ones(1))
    example = *case.arrays(2, 7), type(rotation)(*[table[:2, :7].clone() for table in rotation])
    shapes = heads, heads, type(rotation)(tokens, tokens)
    opset = 23 if form == "operator" else None
    model = to_onnx(rotary, example, form != "torchscript", opset, axes, tuple(axes), shapes)
    run = runner(model)
    case.check(lambda q, k, positions: run(q, k, *rotation))
    types = {value.type.tensor_type.elem_type for value in onnx.load_from_string(model).graph.input}
    assert types == {onnx.TensorProto.FLOAT}
    if form == "operator":
        nodes = onnx.load_from_string(model).graph.node
        assert [(node.op_type, len(node.input)) for node in nodes] == [("RotaryEmbedding", 3)] * 2


# ---- torch.export and torch.jit.trace ----


TRACERS = {
    "export": lambda case: exporting(case).module(),
    "jit.trace": lambda case: torch.jit.trace(case.module, case.example(), check_trace=False),
}


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("name", CASES)
def test_a_recorded_program_has_the_bits_of_the_array_api_backend(name, tracer, monkeypatch):
    case = CASES[name]
    with torch.no_grad():
        program = TRACERS[tracer](case)
        monkeypatch.setattr("rope_array._backends._native.kernel", None)
        for y, expected in zip(program(*case.inputs()), case.module(*case.inputs()), strict=True):
            if name == "learned":  # exp(x) - 1 has two forms
                torch.testing.assert_close(y, expected, rtol=0, atol=case.tolerance)
            else:
                assert torch.equal(y, expected)


MIXED = ra.torch.MixedRotaryEmbedding(ra.RoPE(16, base=10.0), 4, coordinates=1).requires_grad_(False)
REPEATED = {name: CASES[name].module for name in ("apply", "module", "rotation", "learned")}
REPEATED |= {"mixed": MIXED}
MERGING = {  # they make one input of a tensor that an example has twice
    "export": torch.export.export,
    "export, strict": partial(torch.export.export, strict=True),
    "ONNX, dynamo": partial(torch.onnx.export, verbose=False),
}


def example_of_repeated(name):
    positions = torch.arange(7)
    return torch.ones(2, 4, 7, 16), positions[:, None] if name == "mixed" else positions


# The newer ONNX exporter takes seconds.
@pytest.mark.parametrize(
    ("name", "recorder"),
    [(name, r) for name in REPEATED for r in MERGING if "ONNX" not in r or name == "module"],
)
def test_an_example_with_one_tensor_as_q_and_k_is_refused(name, recorder):
    q, positions = example_of_repeated(name)
    with pytest.raises(Exception, match="two tensors of one call, such as q and k, are the same tensor"):
        MERGING[recorder](REPEATED[name], (q, q, positions))
    MERGING[recorder](REPEATED[name], (q, q.clone(), positions))
    REPEATED[name](q, q, positions)


@pytest.mark.parametrize("name", REPEATED)
def test_torch_jit_trace_keeps_two_inputs_for_one_tensor(name):
    q, positions = example_of_repeated(name)
    program = torch.jit.trace(REPEATED[name], (q, q, positions), check_trace=False)
    for y, expected in zip(program(q, 2 * q, positions), REPEATED[name](q, 2 * q, positions), strict=True):
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-6)


SHIFT = torch.ops.aten.bitwise_right_shift.Tensor_Scalar


def test_a_program_has_the_operators_that_executorch_takes():
    """ExecuTorch takes Core ATen, and has a kernel for one operator more. It ignores checks of metadata."""
    operators = {
        name: operators_beyond_core(case.module, case.example(), dims_of(case))
        for name, case in CASES.items()
    }
    assert operators == {name: {SHIFT} for name in CASES} | {"float32 angles": set()}
    rotate = module_of(lambda q, k, tables: HALF.rotation_from(*tables).apply((q, k)))
    example = *CASES["module"].arrays(2, 7), (torch.ones(7, 8), torch.ones(7, 8))
    assert operators_beyond_core(rotate, example) == set()


def operators_beyond_core(module, example, shapes=None):
    program = torch.export.export(module, example, dynamic_shapes=shapes).run_decompositions()
    targets = {node.target for node in program.graph.nodes if node.op == "call_function"}
    operators = {target for target in targets if isinstance(target, torch._ops.OpOverload)}
    ignored = {torch.ops.aten._assert_tensor_metadata.default}
    return {operator for operator in operators if torch.Tag.core not in operator.tags} - ignored


def test_a_package_of_aotinductor_reads_the_strides_of_its_example(tmp_path):
    """PyTorch's own fault. If this test fails, take the paragraph about strides from the page."""
    double = module_of(lambda q, k, p: q * 2)
    x, wide = torch.arange(12.0).reshape(3, 4), torch.arange(15.0).reshape(3, 5)
    program = torch.export.export(double, (x, torch.ones(1), torch.ones(2)))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "double.pt2"))
    run = torch._inductor.aoti_load_package(path)
    part = wide[:, :4]
    assert torch.equal(run(part.contiguous(), torch.ones(1), torch.ones(2)), 2 * part)
    assert not torch.equal(run(part, torch.ones(1), torch.ones(2)), 2 * part)


class Cached(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs = ra.torch.AttentionInputs(HALF, norm=False)

    def forward(self, k, positions, slots, of_k, of_v):
        return self.inputs(k + 1, k, positions, 2 * k, cache=(of_k, of_v), slots=slots, unique_slots=True)[2]


@pytest.mark.parametrize("recorder", ["export", "torchscript"])
def test_a_written_cache_is_recorded_with_any_sizes(recorder):
    """The older ONNX exporter loses a write into a view, and drops its inputs, without an error."""

    def inputs(batch, tokens, size):
        positions = torch.arange(tokens).repeat(batch, 1) + 3
        slots = positions + size * torch.arange(batch)[:, None]
        caches = [torch.full((batch, 2, size, 16), float(i)) for i in (1, 2)]
        return torch.randn(batch, 2, tokens, 16), positions, slots, *caches

    cached, cache, of_tokens = Cached(), {0: "batch", 2: "slots"}, {0: "batch", 1: "tokens"}
    axes = dict(k={0: "batch", 2: "tokens"}, positions=of_tokens, slots=of_tokens, of_k=cache, of_v=cache)
    example, others = inputs(2, 5, 32), inputs(3, 2, 48)
    if recorder == "torchscript":
        run = runner(to_onnx(cached, example, False, None, axes, tuple(axes)))
    else:
        shapes = {name: dict.fromkeys(sizes, torch.export.Dim.DYNAMIC) for name, sizes in axes.items()}
        run = torch.export.export(cached, example, dynamic_shapes=shapes).module()
    outputs = run(*[each.clone() for each in others])
    for y, expected in zip(outputs, cached(*others), strict=True):
        np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6)


def test_a_trace_keeps_the_numbers_of_its_example():
    """PyTorch's own rule. If this test fails, take the sentence about `range` from the page."""
    traced = torch.jit.trace(lambda x: torch.tensor(range(len(x))), torch.ones(3), check_trace=False)
    assert traced(torch.ones(9)).tolist() == [0, 1, 2]


def test_frequencies_of_each_head_are_recorded():
    torch.manual_seed(0)
    mixed = ra.torch.MixedRotaryEmbedding(ra.RoPE(16, base=10.0), 4, coordinates=2).requires_grad_(False)
    axes = {name: {2: "tokens"} for name in ("q", "k")} | {"positions": {0: "tokens"}}
    example = torch.ones(2, 4, 7, 16), torch.ones(2, 4, 7, 16), torch.ones(7, 2, dtype=torch.int64)
    run = runner(to_onnx(mixed, example, False, None, axes))
    q, positions = torch.ones(2, 4, 5, 16), torch.tensor([[0, 0], [1, 2], [30, 7], [9, 63], [2, 2]])
    for y, expected in zip(run(q, 2 * q, positions), mixed(q, 2 * q, positions), strict=True):
        np.testing.assert_allclose(y, expected, rtol=0, atol=2e-5)


# ---- models of transformers, patched ----


class Logits(torch.nn.Module):
    """A tiny model as a function of tensors."""

    def __init__(self, name):
        super().__init__()
        self.model = tiny_of(name).make()

    def forward(self, ids, positions):
        return self.model(input_ids=ids, position_ids=positions, use_cache=False).logits


def text(length, first=0):
    return tokens(2, length), torch.arange(first, first + length).expand(2, -1).contiguous()


@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3", "glm", "gpt_neox"])
def test_a_patched_model_is_traced(name):
    model = Logits(name)
    lengths = 7, 11, 2 * TRAINED
    with torch.no_grad():
        near = [model(*text(length)) for length in lengths]
        ra.hf.patch(model.model)
        program = torch.jit.trace(model, text(7), check_trace=False)
        # The model's own code, at positions where it is right.
        assert all(
            off(program(*text(length)), y) < OF_LOGITS for length, y in zip(lengths, near, strict=True)
        )
        for length, first in ((11, 1000), (5, 2**20)):
            # Not the same bits: the patched norm of an eager call sums in another order than a trace.
            assert off(program(*text(length, first)), model(*text(length, first))) < OF_LOGITS


def test_a_rule_by_length_is_not_recorded():
    model = Logits("dynamic")
    ra.hf.patch(model.model)
    with pytest.raises(ra.PatchError, match="unpatch"), torch.no_grad():
        torch.jit.trace(model, text(7), check_trace=False)
    with pytest.raises(ra.PatchError, match="unpatch"), torch.no_grad():
        torch.export.export(model, text(7))
    ra.hf.unpatch(model.model)  # the remedy, with the example of the longest sequence
    with torch.no_grad():
        program = torch.jit.trace(model, text(40), check_trace=False)
        torch.testing.assert_close(program(*text(40)), model(*text(40)))


def test_a_patched_model_in_onnx_runtime():
    model = Logits("llama")
    ra.hf.patch(model.model)
    axes = {"ids": {1: "tokens"}, "positions": {1: "tokens"}}
    run = runner(to_onnx(model, text(7), True, None, axes, tuple(axes)))
    with torch.no_grad():
        for inputs in (text(7), text(12, 2**20)):
            assert off(torch.from_numpy(run(*inputs)[0]), model(*inputs)) < OF_LOGITS
