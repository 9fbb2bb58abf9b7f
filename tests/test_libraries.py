"""Libraries that the array-api backend serves or refuses, and the backends that adapt a library to it."""

import functools
import re
import types
from pathlib import Path

import array_api_compat.numpy as numpy_xp
import numpy as np
import position_cases
import pytest
import test_turns
from compare import normal
from ropes import fields_of

import rope_array as ra
from rope_array import _dynamo, _registry
from rope_array._array_api import library as _library
from rope_array._array_api import trial as _trial
from rope_array._tables import FORMATS
from rope_array.testing._libraries import DEFAULT_CONFIGURATIONS

FAR = np.array([0, 1, -5, 2**31 - 1, 10**12])
FIELDS = fields_of("half", "plain", "interleaved to half", "interleaved slice", "float32 angles")


values = functools.partial(normal, "numpy")


# ---- libraries that have half of the Array API ----


class Array:
    """An array of no values, of a library whose functions are NumPy's but for the given replacements."""

    def __init__(self, **replaced):
        names = {name: getattr(numpy_xp, name) for name in (*_trial.FUNCTIONS, "int64", "uint32")}
        self.xp = types.ModuleType("half")
        vars(self.xp).update({**names, **replaced})
        self.dtype, self.shape, self.ndim, self.device = np.dtype("float32"), (2, 4), 2, "cpu"

    def __array_namespace__(self, api_version=None):
        return self.xp


def without(name):
    """Return an array without an attribute, or of a library without a function."""
    x = Array()
    delattr(x if hasattr(x, name) else x.xp, name)
    return x


def raises(*args, **kwargs):
    raise ValueError("half of it is missing")


def explained(x):
    """Return the refusal of `explain`, `apply` and `rotation`, which is the same."""
    texts = set()
    for call in (ra.explain, ra.apply, lambda x, pos: ra.RoPE(4).rotation(pos, like=x)):
        with pytest.raises(ra.ArrayTypeError) as error:
            call(x, range(2))
        texts.add(str(error.value))
    (text,) = texts
    return text


@pytest.fixture
def fresh_types(monkeypatch):
    """No memory of the types that earlier tests used."""
    monkeypatch.setattr(_library, "_libraries", {})
    monkeypatch.setattr(_library, "_by_namespace", {})
    monkeypatch.setattr(_registry, "backends_of", _dynamo.traced_memo_of_one(_registry._load_backends))


INCOMPLETE = {
    **{f"no {name}": (without(name), f"lacks {name} of the Python Array API") for name in _trial.FUNCTIONS},
    "no array's device": (without("device"), "lacks the array's device"),
    "where raises": (Array(where=raises), "raised ValueError: half of it is missing in a trial rotation"),
    "another shape": (
        Array(reshape=lambda array, shape: numpy_xp.reshape(array, (-1,))),
        "returned float32[4] (numpy), not float32[2, 2]",
    ),
    "no dtypes": (Array(__array_namespace_info__=raises), "raised ValueError in __array_namespace_info__"),
}


@pytest.mark.usefixtures("fresh_types")
@pytest.mark.parametrize("name", INCOMPLETE)
def test_an_incomplete_library_is_refused(name):
    x, reason = INCOMPLETE[name]
    assert reason in explained(x)


@pytest.mark.usefixtures("fresh_types")
def test_a_complete_library_is_tried_once_and_a_refusal_is_not_remembered():
    calls, x = [], Array(where=raises)
    explained(x)
    x.xp.where = lambda *args: calls.append(args) or numpy_xp.where(*args)
    counts = [len(calls) for _ in range(2) if ra.explain(x, 0).backend == "array-api"]
    assert counts[0] == counts[1] > 0


def test_the_names_that_are_checked_are_those_that_a_rotation_uses():
    folder = Path(_trial.__file__).parent
    modules = ("angles", "library", "ops", "pairs", "position_input", "tables")
    code = "".join((folder / f"{module}.py").read_text("utf-8") for module in modules)
    dtypes, of_norms = {"int64", "uint32", "float64"}, {"sqrt"}  # a device may lack these dtypes
    assert {*re.findall(r"\bxp\.(\w+)", code)} - dtypes - of_norms == set(_trial.FUNCTIONS)


@pytest.mark.library("sparse")
def test_a_sparse_array_is_refused():
    import sparse

    text = explained(sparse.COO.from_numpy(np.ones((2, 4), np.float32)))
    assert "sparse lacks arange" in text
    assert "its todense()" in text
    with pytest.raises(ra.ArrayTypeError, match="Give positions of NumPy"):
        ra.apply(values(5, 16), sparse.COO(np.arange(5)))


class Quantity(np.ndarray):
    """An array with a unit, by the name of astropy's."""


def test_an_array_with_a_unit_is_refused():
    metres = np.arange(5).view(Quantity)
    for call in (ra.apply, ra.explain):
        with pytest.raises(ra.ArrayTypeError, match="has a unit"):
            call(values(5, 16), metres)
    assert "has a unit" in explained(values(2, 4).view(Quantity))


@pytest.mark.library("blosc2")
def test_a_compressed_array_is_refused():
    import blosc2

    assert "blosc2 raised" in explained(blosc2.asarray(np.ones((2, 4), np.float32)))


@pytest.mark.library("strict")
def test_a_version_of_the_standard_without_information_on_dtypes_is_refused():
    import array_api_strict

    x = array_api_strict.asarray(values(2, 4))
    for _ in range(2):  # before and after the type is known
        with array_api_strict.ArrayAPIStrictFlags(api_version="2022.12"):
            assert "2022.12" in explained(x)
        assert ra.explain(x, range(2)).backend == "array-api"


# ---- a device without 64-bit dtypes ----


@pytest.mark.library("strict")
def test_a_device_without_int64_has_positions_and_tables():
    import array_api_strict as xp

    x = xp.asarray(values(2, 4), device=xp.Device("no_x64"))
    pos = ra.positions.offset(2, 5, like=x)
    assert str(pos.dtype).endswith("int32")
    assert pos.device == x.device == ra.RoPE(4).rotation(pos, like=x).cos.device
    assert ra.RoPE(4).matrix(3, like=x).device == x.device
    with pytest.raises(ra.PositionError, match=r"2\*\*31"):
        ra.apply(x, 2**31)
    with pytest.raises(ra.ArrayTypeError, match="no 64-bit dtypes"):
        ra.positions.offset(2, 5, like=x, dtype="int64")


# ---- backends that adapt a library ----


def first_backend(lib):
    package = lib.module.partition(".")[0]
    records = [record for record in _registry.RECORDS if re.match(rf"{package}\b", record.types[0])]
    return records[0].name if records else "array-api"


# The libraries of the session `tests(more)`.
ADAPTED = {lib.name: first_backend(lib) for lib in DEFAULT_CONFIGURATIONS if lib.session == "more"}


@pytest.mark.library(*ADAPTED)
def test_each_library_has_its_backend(lib):
    x = lib.asarray(values(2, 4))
    assert ra.explain(x, range(2)).backend == ADAPTED[lib.name]
    backends = _registry.backends_of(type(x)).in_order
    assert ra.explain(x, range(2), backend="array-api").backend == backends[-1].name
    with pytest.raises(ra.ArrayTypeError, match="out="):
        ra.apply(x, range(2), out=x)
    with pytest.raises(ra.ArrayTypeError, match="two libraries"):
        ra.apply((x, values(2, 4)), 0)


@pytest.mark.library(*ADAPTED)
@pytest.mark.parametrize("name", position_cases.MAKERS)
def test_positions_of_each_library(lib, name):
    position_cases.check(name, lib.asarray, lib.to_numpy)


@pytest.mark.library(*ADAPTED)
def test_as_many_coordinates_as_pairs(lib):
    position_cases.check_as_many_coordinates_as_pairs(lib.asarray, lib.to_numpy)


@pytest.mark.library("mlx", "tensorflow")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float_positions_have_gradients(lib, dtype):
    x, cotangent = (values(3, 16, dtype=dtype, seed=seed) for seed in (0, 1))
    pos, step = np.array([0.25, 1.5, 3.125], dtype), 2.0**-8
    rotate = functools.partial(ra.apply, lib.asarray(x))
    gradient = lib.to_numpy(lib.gradient(rotate, lib.asarray(pos), lib.asarray(cotangent)))
    differences = ra.apply(x, pos + step) - ra.apply(x, pos - step)
    np.testing.assert_allclose(gradient, (differences * cotangent).sum(-1) / (2 * step), rtol=0, atol=1e-3)


@pytest.mark.library(*ADAPTED)
@pytest.mark.parametrize("format", FORMATS)
def test_tables_have_the_numbers_of_numpy(lib, format):
    """5,000 rows of 64 pairs are three chunks."""
    rope, like = ra.RoPE(128, pairing="half"), lib.asarray(values(2))
    if format == "complex" and lib.name == "ndonnx":
        with pytest.raises(ra.ArrayTypeError, match="ndonnx has no complex64; give another"):
            rope.tables(5, format, like=like)
        return
    tables, expected = rope.tables(5000, format, like=like), rope.tables(5000, format)
    pairs = zip(tables, expected, strict=True) if isinstance(tables, tuple) else [(tables, expected)]
    for table, wanted in pairs:
        np.testing.assert_array_equal(np.asarray(lib.to_numpy(table)), wanted)


@pytest.mark.library(*ADAPTED)
@pytest.mark.parametrize("check", test_turns.CHECKS)
def test_frequencies_in_arrays(lib, check):
    check(lib)


@pytest.mark.library("mlx", "tensorflow")
def test_frequencies_in_arrays_have_gradients(lib):
    x, cotangent = (values(3, 16, seed=seed) for seed in (0, 1))
    pos, omegas = (
        np.array([0, 3, -1000]),
        np.array([1.0, -0.5, 0.25, 0.01, 3.0, 0.0, 1e-4, 0.125], np.float32),
    )

    def rotate(omegas):
        return ra.RoPE(16).rotation(pos.tolist(), like=lib.asarray(x), inv_freq=omegas).apply(lib.asarray(x))

    gradient = lib.to_numpy(lib.gradient(rotate, lib.asarray(omegas), lib.asarray(cotangent)))
    pairs = np.exp(1j * pos[:, None] * omegas.astype(float)) * (x[:, ::2] + 1j * x[:, 1::2])
    expected = (-pairs.imag * cotangent[:, ::2] + pairs.real * cotangent[:, 1::2]) * pos[:, None]
    np.testing.assert_allclose(gradient, expected.sum(0), rtol=1e-5, atol=1e-3)


# ---- MLX ----


@pytest.mark.library("mlx")
def test_mlx_compiles_a_call_once_for_all_positions():
    import mlx.core as mx

    traced = []

    @mx.compile
    def rotate(x, pos):
        traced.append(x.shape)
        return ra.apply(x, pos)

    x = mx.array(values(2, 3, 16))
    for start in (0, 7, 2**31 - 4):
        pos = mx.arange(start, start + 3, dtype=mx.int64)
        np.testing.assert_allclose(np.array(rotate(x, pos)), np.array(ra.apply(x, pos)), rtol=0, atol=1e-6)
    assert len(traced) == 1


@pytest.mark.library("mlx")
def test_mlx_maps_a_call():
    import mlx.core as mx

    x, pos = mx.array(values(4, 3, 16)), mx.array(FAR[:3])
    assert bool(mx.array_equal(mx.vmap(lambda row: ra.apply(row, pos))(x), ra.apply(x, pos)))


@pytest.mark.library("mlx")
def test_an_old_mlx_is_refused(monkeypatch):
    import mlx.core as mx

    monkeypatch.delattr(mx, "__array_namespace_info__")
    assert "install MLX 0.32 or newer" in explained(mx.ones((2, 4)))


# ---- TensorFlow ----


@pytest.mark.library("tensorflow")
@pytest.mark.parametrize("fields", [*FIELDS.values(), "axes"], ids=[*FIELDS, "axes"])
def test_tensorflow_traces_unknown_sizes(fields, caplog):
    import tensorflow as tf

    axes = fields == "axes"
    rope = ra.RoPE(16, axes=ra.Axes.axial(8, 8, blocks=True)) if axes else ra.RoPE(16, **fields)
    tf.get_logger().addHandler(caplog.handler)
    traced, shape = [], (None, 2) if axes else (None,)

    @tf.function(input_signature=[tf.TensorSpec((None, 3, None, 16)), tf.TensorSpec(shape, tf.int64)])
    def rotate(x, pos):
        traced.append(x)
        return rope.apply(x, pos), rope.rotation(pos, like=x).apply(x), ra.apply(x, pos, rope)

    for batch, length in ((2, 5), (1, 3), (0, 4)):
        x, pos = tf.constant(values(batch, 3, length, 16)), tf.constant(FAR[:length])
        pos = tf.stack([pos, pos + 3], axis=-1) if axes else pos
        for y in rotate(x, pos):
            np.testing.assert_allclose(y, rope.apply(x, pos), rtol=0, atol=1e-6)
    assert len(traced) == 1
    tf.get_logger().removeHandler(caplog.handler)
    assert "AutoGraph" not in caplog.text  # which warns of code that it cannot translate


@pytest.mark.library("tensorflow")
@pytest.mark.parametrize("by_xla", [False, True])
@pytest.mark.parametrize("fields", [FIELDS["half"], FIELDS["interleaved slice"]], ids=str)
def test_unknown_sizes_that_do_not_line_up_fail_in_tensorflow(fields, by_xla):
    """x is never repeated: not its one token, nor its one sequence."""
    import tensorflow as tf

    x, pos = tf.TensorSpec((None, 3, None, 16), tf.float32), tf.TensorSpec((None, None), tf.int64)
    call = functools.partial(ra.apply, **fields)
    rotate = tf.function(call, [x, pos], jit_compile=by_xla, autograph=False)
    assert rotate.get_concrete_function().output_shapes.as_list() == x.shape.as_list()
    arguments = tf.constant(values(2, 3, 5, 16)), tf.constant(FAR[None])
    np.testing.assert_allclose(rotate(*arguments), call(*arguments), rtol=0, atol=1e-6)
    for size in ((2, 3, 1, 16), (1, 3, 5, 16), (1, 3, 1, 16)):
        with pytest.raises(tf.errors.InvalidArgumentError):
            rotate(tf.ones(size), tf.ones((2, 5), tf.int64))


@pytest.mark.library("tensorflow")
def test_tensors_without_a_shape_are_refused():
    import tensorflow as tf

    x, unknown = tf.constant(values(5, 16)), [tf.TensorSpec(None, tf.float32)]
    rope = ra.RoPE(16)
    for call in (lambda t: rope.apply(t, 3), lambda t: ra.explain(t, 3, rope), lambda t: rope.apply(x, t)):
        with pytest.raises(ra.ArrayTypeError, match=r"unknown number of axes; tf\.ensure_shape"):
            tf.function(call, unknown, autograph=False).get_concrete_function()
    with pytest.raises(ra.ArrayTypeError, match="of the type RaggedTensor, not an array"):
        ra.apply(x, tf.ragged.constant([[1, 2], [3]]))
    assert "of the type SparseTensor, not an array" in explained(tf.sparse.from_dense(x))


@pytest.mark.library("tensorflow")
def test_tensorflow_rotates_in_graphs_of_version_1():
    """In such a graph == and != compare the tensor objects."""
    import tensorflow as tf

    x = values(2, 3, 5, 16)
    for fields in FIELDS.values():
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            pos = FAR.copy()
            ys = [ra.apply(tf.constant(x), p, **fields) for p in (tf.constant(pos), pos)]
            pos += 7  # the graph keeps the positions of the call
            ys = session.run(ys)
        expected = ra.apply(x, FAR, backend="array-api", **fields)
        np.testing.assert_allclose(ys, [expected] * 2, rtol=0, atol=1e-5)


@pytest.mark.library("tensorflow")
def test_tensorflow_saves_a_call(tmp_path):
    import tensorflow as tf

    module = tf.Module()
    signature = [tf.TensorSpec((None, 16), tf.bfloat16), tf.TensorSpec((None,), tf.int64)]
    module.rotate = tf.function(ra.apply, input_signature=signature, autograph=False)
    tf.saved_model.save(module, str(tmp_path))
    x, pos = tf.cast(values(5, 16), tf.bfloat16), tf.constant(FAR)
    y = tf.saved_model.load(str(tmp_path)).rotate(x, pos)
    assert bool(tf.reduce_all(y == ra.apply(x, pos)))


@pytest.mark.library("tensorflow")
def test_a_tensorflow_variable_is_refused_and_positions_of_numpy_are_not():
    import tensorflow as tf

    x = tf.Variable(values(5, 16))
    assert "tf.convert_to_tensor" in explained(x)
    x = tf.convert_to_tensor(x)
    assert bool(tf.reduce_all(ra.apply(x, FAR) == ra.apply(x, tf.constant(FAR))))


# ---- ndonnx ----


def run_in_onnxruntime(function, **arrays):
    """Make an ONNX graph of a function of arrays whose sizes are unknown, and run it."""
    import ndonnx as ndx
    import onnxruntime

    shapes = {"x": ("batch", 3, "length", 16), "pos": ("length",), "coordinates": ("length", 2)}
    shapes |= {"angles": ("batch", 3, "length", 8), "omegas": (8,), "of_heads": (3, 8)}
    dtypes = {name: ndx.asarray(array).dtype for name, array in arrays.items()}
    inputs = {name: ndx.argument(shape=shapes[name], dtype=dtype) for name, dtype in dtypes.items()}
    model = ndx.build(inputs, {"y": function(*inputs.values())})
    (y,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, arrays)
    return y


def by_full_width(rope):
    """Return a function that rotates by tables in full width."""

    def rotate(x, coordinates):
        tables = rope.rotation(coordinates, like=x).full_width()
        assert {table.shape[-1] for table in tables} == {16}
        return rope.rotation_from(*tables).apply(x)

    return rotate


def by_angles(x, angles):
    return ra.RoPE(16).rotation_of_angles(angles, like=x).apply(x)


def by_frequencies(x, pos, omegas):
    return ra.RoPE(16).rotation(pos, like=x, inv_freq=omegas).apply(x)


OMEGAS = np.linspace(-3, 3, 24, dtype=np.float32).reshape(3, 8)
COORDINATES = {"coordinates": np.stack([FAR, FAR[::-1]], axis=-1)}
# Functions of x and of more arrays, with these arrays.
GRAPHS = {
    **{name: (functools.partial(ra.apply, **fields), {"pos": FAR}) for name, fields in FIELDS.items()},
    "float positions": (ra.apply, {"pos": np.array([0.25, 1, 2.5, -3, 100], np.float32)}),
    "a range": (lambda x: ra.apply(x, range(3, 8)), {}),
    "positions with values": (lambda x: ra.apply(x, x.__array_namespace__().asarray(FAR)), {}),
    "angles": (by_angles, {"angles": values(2, 3, 5, 8) * 1e4}),
    "frequencies in an array": (by_frequencies, {"pos": FAR, "omegas": OMEGAS[0]}),
    "frequencies of each head": (by_frequencies, {"pos": FAR, "of_heads": OMEGAS}),
    "coordinates": (ra.RoPE(16, axes=ra.Axes.chunked(4, 4)).apply, COORDINATES),
    **{
        f"full width, {pairing}, blocks {blocks}": (
            by_full_width(ra.RoPE(16, pairing=pairing, axes=ra.Axes.axial(8, 8, blocks=blocks))),
            COORDINATES,
        )
        for pairing in ("half", "interleaved")
        for blocks in (False, True)
    },
}


@pytest.mark.library("ndonnx")
@pytest.mark.parametrize("name", GRAPHS)
def test_an_onnx_graph_has_the_values_of_numpy(name):
    function, arrays = GRAPHS[name]
    errors = {"float32": 1e-5 if name == "float32 angles" else 1e-6, "float16": 2e-3, "float64": 1e-15}
    for dtype in errors if name in ("half", "plain") else ("float32",):
        x = values(2, 3, 5, 16, dtype=dtype)
        y, expected = run_in_onnxruntime(function, x=x, **arrays), function(x, *arrays.values())
        assert y.dtype == expected.dtype
        np.testing.assert_allclose(y, expected, rtol=0, atol=errors[dtype])


@pytest.mark.library("ndonnx")
@pytest.mark.parametrize("fields", [FIELDS["half"], FIELDS["plain"], FIELDS["interleaved slice"]], ids=str)
def test_a_graph_knows_the_sizes_of_x_and_fails_for_others(fields):
    import ndonnx as ndx
    import onnxruntime

    x = ndx.argument(shape=("batch", 3, "length", 16), dtype=ndx.float32)
    pos = ndx.argument(shape=("positions",), dtype=ndx.int64)
    y = ra.apply(x, pos, **fields)
    assert y.shape == (None, 3, None, 16)
    model = ndx.build({"x": x, "pos": pos}, {"y": ra.apply(y, pos, **fields)})
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for batch, length in ((2, 5), (0, 5), (2, 0)):
        inputs = {"x": values(batch, 3, length, 16), "pos": FAR[:length]}
        assert session.run(None, inputs)[0].shape == (batch, 3, length, 16)
    with pytest.raises(Exception, match="status code returned"):  # ONNX Runtime has no public class
        session.run(None, {"x": values(2, 3, 1, 16), "pos": FAR})


@pytest.mark.library("ndonnx")
def test_sizes_that_a_graph_has_to_know():
    import ndonnx as ndx

    pos, rope = ndx.argument(shape=("length",), dtype=ndx.int64), ra.RoPE(16)
    for shape in (("batch", "length", "width"), (16, "length", "width")):
        x = ndx.argument(shape=shape, dtype=ndx.float32)
        for call in (rope.apply, ra.apply):
            with pytest.raises(ra.ShapeError, match=r"None\] \(ndonnx\).* unknown.*reshape x"):
                call(x, pos)
    x = ndx.argument(shape=("length", 16), dtype=ndx.float32)
    with pytest.raises(ra.ShapeError, match=r"pos is int64\[None\] \(ndonnx\), of unknown size"):
        rope.matrix(pos, like=x)
    assert rope.matrix(ndx.argument(shape=(3,), dtype=ndx.int64), like=x).shape == (3, 16, 16)


@pytest.mark.library("ndonnx")
def test_explain_says_which_arrays_extend_the_graph():
    import ndonnx as ndx

    x, pos = ndx.asarray(values(5, 16)), ndx.argument(shape=(5,), dtype=ndx.int64)
    for explanation in (ra.explain(x, pos), ra.explain(ndx.argument(shape=(5, 16), dtype=ndx.float32), 3)):
        assert explanation.backend == "array-api"
        assert "ONNX graph" in explanation.declined["ndonnx"]
    with pytest.raises(ra.BackendError, match="ONNX graph"):
        ra.apply(x, pos, backend="ndonnx")


# ---- marray ----


@pytest.mark.library("marray")
def test_two_namespaces_of_marray_are_not_mixed():
    from marray import numpy as one
    from marray import numpy as other

    with pytest.raises(ra.ArrayTypeError, match=r"two namespaces of marray .* Give both of one namespace"):
        ra.apply(one.asarray(values(2, 4)), other.asarray(np.arange(2)))


@pytest.mark.library("marray")
def test_a_masked_feature_masks_its_pair_and_a_masked_position_its_row():
    from marray import numpy as xp

    numbers, mask = values(2, 4), np.arange(8).reshape(2, 4) == 4
    for pairing, partner in (("half", 2), ("interleaved", 1)):
        y = ra.apply(xp.asarray(numbers, mask=mask), range(2), pairing=pairing)
        assert np.argwhere(np.asarray(y.mask)).tolist() == [[1, 0], [1, partner]]
        expected = ra.apply(numbers, range(2), pairing=pairing, backend="array-api")
        assert np.array_equal(np.asarray(y.data)[~y.mask], expected[~y.mask])
    pos = xp.asarray(np.arange(3), mask=np.array([False, True, False]))
    masked = np.asarray(ra.apply(xp.asarray(values(2, 3, 4)), pos).mask)
    assert masked.all(axis=-1).tolist() == masked.any(axis=-1).tolist() == [[False, True, False]] * 2
