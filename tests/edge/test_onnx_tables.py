"""`rope_array.onnx.write_tables`, on files with transformers' tables of float32 angles.

ONNX Runtime runs the files. Exact are the definition's numbers, of float64.
"""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.numpy_helper import from_array, to_array
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import rope_array as ra
from rope_array.onnx import _OPERATORS
from rope_array.testing import apply_definition, cos_sin

pytestmark = pytest.mark.library("torch")

OF_512 = {"original_max_position_embeddings": 512}
RULES = {
    "default": {"rope_type": "default", "rope_theta": 1e8},
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
    "llama3": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, **OF_512}
    | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, **OF_512},
    "longrope": {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, **OF_512}
    | {"factor": 8.0, "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 32.0]},
}
CONFIGS = {
    rule: LlamaConfig(head_dim=16, max_position_embeddings=4096, rope_parameters=parameters)
    for rule, parameters in RULES.items()
}
ROPES = {rule: ra.RoPE.from_config(config) for rule, config in CONFIGS.items()}
SHORT, LONG = (ROPES["longrope"].at_length(length) for length in (512, 4096))
# The relative error of a rounding, and its largest error below the smallest normal number.
ROUNDING = {np.float32: (2.0**-24, 0), np.float16: (2.0**-11, 2.0**-25), ml_dtypes.bfloat16: (2.0**-8, 0)}
FAR = np.array([[0, 1, 511, 4095, 2**20 - 1]])


def tables(rule="llama3", names=("cos", "sin"), length=4096, dtype=np.float32):
    """Return transformers' tables of pairs; LongRoPE's short ones up to a length of 512."""
    old = LlamaRotaryEmbedding(CONFIGS[rule])(torch.ones(1), torch.arange(length)[None])
    return [from_array(t[0, :, :8].numpy().astype(dtype), n) for t, n in zip(old, names, strict=True)]


def saved(path, nodes, weights=(), functions=""):
    """Save a model from x and positions to y, with a weight that it does not use; return its path."""
    opsets = 'opset_import: ["": 23, "com.microsoft": 1, "own": 1]'
    functions = functions and f'<domain: "own", {opsets}> {functions}'
    values = "(float[1,2,s,16] x, int64[1,s] ids) => (float[1,2,s,16] y)"
    model = onnx.parser.parse_model(f"<ir_version: 10, {opsets}> g {values} {{ {nodes} }} {functions}")
    model.graph.initializer.extend([*weights, from_array(np.arange(9.0), "other")])
    onnx.save(model, path)
    return path


def constants(names=("cos", "sin")):
    """Return Constant nodes: tables of two rows."""
    numbers = (to_array(table).ravel().tolist() for table in tables(length=2))
    texts = (str(row).replace("[", "{").replace("]", "}") for row in numbers)
    return " ".join(f"{n} = Constant <value = float[2,8] {t}> ()" for n, t in zip(names, texts, strict=True))


def difference(y, x, positions, rope):
    options = {"inv_freq": rope.frequencies, "attention_factor": rope.amplitude, "pairing": "half"}
    return abs(y - apply_definition(x.astype(float), positions, **options)).max()


ROTARY = "y = com.microsoft.RotaryEmbedding (x, ids, cos, sin)"
OTHER = "z = com.microsoft.RotaryEmbedding (x, ids, cos2, sin2)"
BRANCH = "b () => (float[4096,8] c, float[4096,8] d) {{ c = Identity (cos{0}) d = Identity (sin{0}) }}"
FORMS = {
    "opset 23": ("y = RotaryEmbedding (x, cos, sin, ids)", tables()),
    "ONNX Runtime": (ROTARY, tables()),
    "Constant": (constants() + ROTARY, ()),
    "Cast and Identity": (
        f"cos1 = Cast <to = 1> (cos0) cos = Identity (cos1) sin = Cast <to = 1> (sin0) {ROTARY}",
        tables(names=("cos0", "sin0"), dtype=np.float64),
    ),
    "in a function": (
        "y = own.f (x, ids, c, s)",
        tables(names="cs"),
        f"f (x, ids, cos, sin) => (y) {{ {ROTARY} }}",
    ),
    "from a function": (f"cos, sin = own.f () {ROTARY}", (), f"f () => (cos, sin) {{ {constants()} }}"),
    "branches": (
        "last = ReduceMax <keepdims = 0> (ids) top = Constant <value_int = 511> () long = Greater (last, top)"
        f"cos, sin = If (long) <then_branch = {BRANCH.format(2)}, else_branch = {BRANCH.format(1)}>{ROTARY}",
        [*tables("longrope", ("cos1", "sin1"), 512), *tables("longrope", ("cos2", "sin2"))],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_files_rotate_exactly_at_far_positions(form, tmp_path):
    path = saved(tmp_path / "model.onnx", *FORMS[form])
    ra.onnx.write_tables(path, path, [ROPES["llama3"], ROPES["longrope"]], length=2**20)
    onnx.shape_inference.infer_shapes(onnx.load(path), strict_mode=True)  # the sizes of branches
    session = onnxruntime.InferenceSession(path)
    for ids, long_rope in ((FAR, LONG), (FAR[:, :3], SHORT)):
        x = np.random.default_rng(0).uniform(-1, 1, (1, 2, ids.size, 16)).astype(np.float32)
        rope = long_rope if form == "branches" else ROPES["llama3"]
        # Two products and a sum, of tables: five roundings, of numbers below twice the amplitude.
        assert (
            difference(session.run(None, {"x": x, "ids": ids})[0], x, ids, rope) < 5 * 2**-23 * rope.amplitude
        )


def test_keys_of_attention_are_rotated_exactly(tmp_path):
    """GroupQueryAttention rotates q and k by the number of past keys, and returns k."""
    x, past = np.random.default_rng(0).uniform(-1, 1, (1, 1, 16)).astype("f4"), 2**20 - 1
    sizes = {"last": np.int32([past]), "total": np.int32(past + 1), "shape": np.array([1, 1, past, 16])}
    nodes = "past = ConstantOfShape (shape) z, y, v = com.microsoft.GroupQueryAttention "
    nodes += "<num_heads = 1, kv_num_heads = 1, do_rotary = 1> (k, k, k, past, past, last, total, cos, sin)"
    weights = [from_array(x, "k"), *(from_array(size, name) for name, size in sizes.items()), *tables()]
    path = saved(tmp_path / "model.onnx", nodes, weights)
    ra.onnx.write_tables(path, path, ROPES["llama3"], length=2**20)
    (y,) = onnxruntime.InferenceSession(path).run(["y"], {"x": np.zeros((1, 2, 1, 16), "f4"), "ids": [[0]]})
    assert difference(y[0, :, -1:], x, past, ROPES["llama3"]) < 5 * 2**-23


@pytest.mark.parametrize("dtype", ROUNDING, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("rule", RULES)
def test_numbers_are_exact_ones_rounded_once(rule, dtype, tmp_path):
    path = saved(tmp_path / "model.onnx", f"{ROTARY} z = Identity (y)", tables(rule, dtype=dtype))
    before = [to_array(table) for table in onnx.load(path).graph.initializer[:2]]
    (report,) = ra.onnx.write_tables(path, path, ROPES[rule])
    after = [to_array(table) for table in onnx.load(path).graph.initializer[:2]]
    rope = ROPES[rule].at_length(4096)
    assert report[:3] == (("y",), (rope,), 4096)
    rows, (unit, smallest) = [0, 1, 255, 4095, report.position], ROUNDING[dtype]
    for table, numbers in zip(after, cos_sin(rows, rotary_dim=16, inv_freq=rope.frequencies), strict=True):
        assert table.dtype == dtype
        exact = numbers * rope.amplitude  # by frequencies that are rounded to float64, at up to 4,095 radians
        assert (abs(table[rows] - exact) <= unit * abs(exact) + smallest + 1e-12).all()
    errors = [abs(old.astype(float) - new).max(axis=1) for old, new in zip(before, after, strict=True)]
    assert report.error == np.max(errors) == np.max(errors, axis=0)[report.position] > 0


def test_each_table_gets_the_rope_that_agrees(tmp_path):
    """Also the two tables of LongRoPE in one array."""
    both = zip(tables("longrope", length=512), tables("longrope"), strict=True)
    weights = [from_array(np.concatenate([*map(to_array, pair)]), pair[0].name) for pair in both]
    path = saved(tmp_path / "model.onnx", ROTARY + OTHER, [*weights, *tables("default", ("cos2", "sin2"))])
    one, two = ra.onnx.write_tables(path, path, [ROPES["default"], ROPES["longrope"]])
    assert (one.ropes, one.length) == ((SHORT, LONG), 4608)
    assert (two.ropes, two.length) == ((ROPES["default"],), 4096)
    for table, short, long in zip(
        onnx.load(path).graph.initializer, SHORT.tables(512), LONG.tables(4096), strict=False
    ):
        np.testing.assert_array_equal(to_array(table), np.concatenate([short, long]))
    with pytest.raises(ra.PatchError, match=r"several tables, of rows \[0, 512, 4608\]; omit length"):
        ra.onnx.write_tables(path, path, [*ROPES.values()], length=8)


@pytest.mark.parametrize("external", [False, True], ids=["one file", "data file"])
def test_all_else_is_kept_bit_for_bit(external, tmp_path):
    path, out = saved(tmp_path / "model.onnx", ROTARY, tables()), tmp_path / "out.onnx"
    onnx.save(onnx.load(path), path, save_as_external_data=external, location="data", size_threshold=0)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    ra.onnx.write_tables(path, out, ROPES["llama3"])
    assert {file: file.read_bytes() for file in tmp_path.iterdir() if file != out} == before
    old, new = (onnx.load(file, load_external_data=False) for file in (path, out))
    for table, replaced, exact in zip(
        old.graph.initializer, new.graph.initializer, ROPES["llama3"].tables(4096), strict=False
    ):
        np.testing.assert_array_equal(to_array(replaced), exact)
        replaced.CopyFrom(table)
    assert old.SerializeToString() == new.SerializeToString()
    onnxruntime.InferenceSession(out)
    (tmp_path / "elsewhere").mkdir()
    if external:
        with pytest.raises(ra.PatchError, match="has data files; give an out in their folder"):
            ra.onnx.write_tables(path, tmp_path / "elsewhere" / "out.onnx", ROPES["llama3"])


def test_inputs_of_operators():
    schemas = [*get_all_operator_schema(), onnx.defs.get_schema("RotaryEmbedding", 23)]
    inputs = {(schema.domain, schema.name): [each.name for each in schema.inputs] for schema in schemas}
    for operator, index in _OPERATORS.items():
        assert inputs[operator][index : index + 2] == ["cos_cache", "sin_cache"], operator


def spoilt(position, number):
    cos, sin = tables()
    numbers = to_array(cos).copy()
    numbers[position, 3] = number
    return [from_array(numbers, "cos"), sin]


def ones(*shape):
    return [from_array(np.ones(shape, np.float32), name) for name in ("cos", "sin")]


COMPUTED = "cos = Cos (x) sin = Sin (x) "
DIFFERS = r"^y: its tables differ from RoPE\(.*first at position "
REFUSED = {
    "base": (ROTARY, tables("default"), DIFFERS + "1, pair 1, and by up to 2 .*RoPE.from_config"),
    "cos for sin": (ROTARY, tables(names=("sin", "cos")), DIFFERS + "0, pair 0, and by up to 1.41 "),
    "one number": (ROTARY, spoilt(77, 0.9), DIFFERS + "77, pair 3"),
    "NaN": (ROTARY, spoilt(280, np.nan), "^y: its tables have NaN or infinity"),
    "one row": (ROTARY, ones(1, 8), r"cos is \(1, 8\) and sin"),
    "second layer": (ROTARY + OTHER, [*tables(), *tables("default", ("cos2", "sin2"))], "^z: its tables"),
    "width": (ROTARY, ones(9, 4), r"4 pairs, and the ropes \[8\]"),
    "axes": (ROTARY, ones(1, 9, 8), r"cos is \(1, 9, 8\) and sin"),
    "no operator": (
        "y = Identity (x)",
        tables(),
        r"^no node of RotaryEmbedding, com.microsoft.*, .* reads tables: export the model",
    ),
    "angles": (
        COMPUTED + "y = Mul (x, cos)",
        (),
        "reads tables; Cos and Sin compute them: export the model anew",
    ),
    "computed": (COMPUTED + ROTARY, (), "y: 'cos' is computed, by Cos; export the model anew"),
    "input": ("y = RotaryEmbedding (x, x, x, ids)", (), "y: 'x' is an input: give it exact numbers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_write_nothing(case, tmp_path):
    nodes, weights, message = REFUSED[case]
    path = saved(tmp_path / "model.onnx", nodes, weights)
    with pytest.raises(ra.PatchError, match=message):
        ra.onnx.write_tables(path, tmp_path / "out.onnx", ROPES["llama3"])
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("ropes", [None, [], [ra.RoPE(16), 5]], ids=["None", "no rope", "number"])
def test_ropes_that_are_none(ropes):
    with pytest.raises(ra.SpecError, match="give a RoPE, or several in a list"):
        ra.onnx.write_tables("model.onnx", "out.onnx", ropes)
