"""Rotation: tables, inverse, adjoint, learned frequencies, copies, and trees of frameworks.

tests/test_conformance.py runs the rows of the suite by `Rotation.apply`.
"""

import contextlib
import copy
import importlib
import pickle
import re
import warnings

import child
import numpy as np
import pytest
import ropes
from compare import array_and_values, normal, on_host, values

from rope_array import ArrayTypeError, RoPE, Rotation, ShapeError, SpecError, _rotation
from rope_array.testing import cos_sin
from rope_array.testing._contract import AMPLIFIED, AT_INTEGERS, assert_contract, compute_dtype, eps

pytestmark = pytest.mark.neutral

POSITIONS = [0, 1, -7, 4097, 2**31 - 1, -(2**31)]
S = len(POSITIONS)
# All four combinations of pairing and out_pairing. Amplitudes that are powers of two have exact reciprocals,
# which the definition of an adjoint needs.
LAYOUTS = {
    "slice": (10, {"rotary_dim": 4, "rotary_start": 3, "pairing": "half", "out_pairing": "interleaved"}),
    "amplitude": (8, {"attention_factor": 0.5, "out_pairing": "half", "base": 500_000.0}),
    "odd amplitude": (7, {"rotary_dim": 6, "attention_factor": 1.1386294361119891}),
    "explicit": (4, {"inv_freq": (1.5, -0.3), "attention_factor": 2.0, "pairing": "half"}),
    "identity": (4, {"rotary_dim": 0, "attention_factor": 2.0}),
}
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
FIELDS = {"pairing": "half", "attention_factor": 2.0}


def same(actual, expected):
    np.testing.assert_array_equal(on_host(actual), on_host(expected))


# ---- tables ----


@each_layout
def test_tables(lib, float_dtype, layout):
    """Cos and sin have the right shape, dtype and library, and values within the contract."""
    width, fields = LAYOUTS[layout]
    # Neither the values nor the shape of `like` matter.
    rope, like = RoPE(width, **fields), lib.asarray(np.full((0, 2), np.nan), float_dtype)
    compute = compute_dtype(float_dtype)
    # The definition's cos and sin, and their product with the amplitude, are rounded to float64.
    bound = (AT_INTEGERS if rope.amplitude == 1.0 else AMPLIFIED)[compute] + 2.0**-53
    for pos in (5, [POSITIONS, POSITIONS[::-1]], lib.asarray(np.array([[7], [8]], np.int32))):
        rotation = rope.rotation(pos, like=like)
        host = lib.to_numpy(pos) if hasattr(pos, "shape") else np.array(pos)
        exact_tables = cos_sin(host, rotary_dim=rope.rotary_dim, base=rope.base, inv_freq=rope.inv_freq)
        for table, exact in zip(rotation, exact_tables, strict=True):
            assert type(table) is type(like)
            assert table.dtype == lib.dtype(compute)
            assert table.shape == (*host.shape, len(rope.frequencies))
            assert (np.abs(values(table) - exact * rope.amplitude) <= bound * rope.amplitude).all()


@pytest.mark.library("strict", "torch")
def test_tables_and_matrices_are_where_like_is(lib):
    device = "meta" if lib.name == "torch" else lib.native.Device("device1")
    like = lib.native.ones((2, 4), dtype=lib.native.float32, device=device)
    rotation, matrix = RoPE(4).rotation([1, 2], like=like), RoPE(4).matrix([1, 2], like=like)
    for array in (*rotation, *rotation.inverse(), *rotation.adjoint(), rotation.apply(like), matrix):
        assert array.device == like.device
    if lib.name == "torch":
        assert not RoPE(4).rotation([1, 2], like=like.requires_grad_()).cos.requires_grad


# ---- apply, inverse, adjoint ----


@pytest.mark.parametrize("backend", [None, "array-api"])
@each_layout
def test_apply_has_the_bits_of_the_one_shot(lib, float_dtype, layout, backend):
    width, fields = LAYOUTS[layout]
    rope, x = RoPE(width, **fields), normal(lib, 2, S, width, dtype=float_dtype)
    rotation = rope.rotation(POSITIONS, like=x, backend=backend)
    same(rotation.apply(x, backend=backend), rope.apply(x, POSITIONS, backend=backend))


@each_layout
def test_inverse_and_adjoint(lib, float_dtype, layout):
    """The inverse divides by the amplitude, the adjoint multiplies by it; neither changes the rotation."""
    width, fields = LAYOUTS[layout]
    x, exact = array_and_values(lib, float_dtype, 2, S, width)
    rotation = RoPE(width, **fields).rotation(POSITIONS, like=x)
    before = lib.to_numpy(rotation.apply(x)).copy()
    back = rotation.inverse().apply(x)
    assert_contract(lib.to_numpy(back), exact, POSITIONS, dtype=float_dtype, inverse=True, **fields)
    if layout != "odd amplitude":
        reciprocal = {**fields, "attention_factor": 1.0 / fields.get("attention_factor", 1.0)}
        back = rotation.adjoint().apply(x)
        assert_contract(lib.to_numpy(back), exact, POSITIONS, dtype=float_dtype, inverse=True, **reciprocal)
        forth = rotation.adjoint().inverse().apply(x)
        assert_contract(lib.to_numpy(forth), exact, POSITIONS, dtype=float_dtype, **reciprocal)
    same(rotation.apply(x), before)
    again = rotation.adjoint().adjoint()
    same(again.apply(x), before)
    assert again.layout == rotation.layout
    back = rotation.inverse().inverse()
    assert back.layout._replace(amplitude=1.0) == rotation.layout._replace(amplitude=1.0)
    assert back.layout.amplitude == pytest.approx(rotation.layout.amplitude, rel=2.0**-51)


@pytest.mark.parametrize(
    ("dtype", "amplitude"), [("float32", 1e-25), ("float32", 1e25), ("float64", 1e-200), ("float64", 1e200)]
)
def test_inverse_of_amplitudes_that_have_no_square(lib, dtype, amplitude):
    """1e-25 and 1e25 are float32 numbers, but their squares are not: the inverse must not square."""
    if dtype in lib.dtypes:
        x, exact = array_and_values(lib, dtype, 2, 4, scale=amplitude)
        back = RoPE(4, attention_factor=amplitude).rotation([3, 4], like=x).inverse().apply(x)
        fields = {"inverse": True, "attention_factor": amplitude}
        assert_contract(lib.to_numpy(back), exact, [3, 4], dtype=dtype, **fields)


def test_float64_tables_serve_every_dtype(lib):
    """Tables like a float64 array rotate each array of a tuple in its own precision."""
    fields = {"pairing": "half", "attention_factor": 1.25}
    x64 = importlib.import_module("jax").enable_x64(True) if lib.name == "jax" else contextlib.nullcontext()
    with x64:
        float64_x, wide64 = array_and_values(lib, "float64", 2, S, 8)
        rotation = RoPE(8, **fields).rotation(POSITIONS, like=float64_x)
        assert rotation.cos.dtype == lib.dtype("float64")
        for dtype in lib.dtypes:
            x, exact = array_and_values(lib, dtype, 1, S, 8)
            first, second, third = rotation.apply((x, float64_x, x))
            assert_contract(lib.to_numpy(first), exact, POSITIONS, dtype=dtype, **fields)
            assert_contract(lib.to_numpy(second), wide64, POSITIONS, dtype="float64", **fields)
            same(first, third)
            same(first, rotation.apply(x))
            if dtype != "float64":  # rotated in float32, as by float32 tables
                cos, sin = (lib.xp.astype(table, lib.dtype("float32")) for table in rotation)
                same(first, rotation._replace(cos=cos, sin=sin).apply(x))


def test_tables_of_two_precisions_are_cast_one_by_one_and_other_dtypes_are_refused(lib):
    x = normal(lib, 3, 4)
    rotation = RoPE(4).rotation(range(3), like=x)
    with lib.running():
        if "float64" in lib.dtypes:
            mixed = rotation._replace(sin=lib.asarray(values(rotation.sin), "float64"))
            for backend in (None, "array-api"):
                same(mixed.apply(x, backend=backend), rotation.apply(x, backend=backend))
        for dtype in {"float16", "bfloat16", "int32"} & {*lib.dtypes, "int32"}:
            cast = lib.asarray(np.ones((3, 2)), dtype)
            for tables in ({"cos": cast}, {"sin": cast}, {"cos": cast, "sin": cast}):
                with pytest.raises(ArrayTypeError, match="float32 or float64"):
                    rotation._replace(**tables).apply(x)


# ---- learned frequencies ----

LEARNED = [1.0, 0.5, 0.1234567, -0.003]


@pytest.mark.parametrize("pos", [5, [[1], [-300]], [0.25, 100.75], "int32", "float32"])
def test_learned_frequencies(lib, float_dtype, pos):
    """Cos and sin of pos · ω, times the amplitude; each step is rounded."""
    if isinstance(pos, str):
        pos = lib.asarray(np.array([[3, 4, 5]], pos))
    like = normal(lib, 2, dtype=float_dtype)
    omegas = lib.asarray(np.array(LEARNED), float_dtype)
    rope = RoPE(10, rotary_dim=8, pairing="half", attention_factor=1.25)
    rotation = rope.rotation(pos, like=like, inv_freq=omegas)
    assert rotation.layout == rope.rotation(pos, like=like).layout
    compute = compute_dtype(float_dtype)
    host = np.asarray(lib.to_numpy(pos) if hasattr(pos, "shape") else pos, np.float64)
    angle = host[..., None] * values(omegas)
    # A position and the product each to half an ulp; cos and sin to 4 eps.
    bound = eps(compute) * (np.abs(angle) + 4.0) * 1.25
    for table, exact in zip(rotation, (np.cos(angle), np.sin(angle)), strict=True):
        assert table.dtype == lib.dtype(compute)
        assert tuple(table.shape) == angle.shape
        assert (np.abs(values(table) - exact * 1.25) <= bound).all()


# ---- tables of full width, and tables that exist ----


def case(lib, layout, dtype="float32"):
    """Return a rope, x of the library, and a rotation."""
    rope, x = ropes.rope(layout), normal(lib, 2, 3, 16, dtype=dtype)
    return rope, x, rope.rotation([[1, 2], [3, 4], [5, 6]] if rope.axes else [1, 2, 3], like=x)


def one_per_feature(table, pairing, blocks):
    """Return a table of full width: the number of each pair at both of its features, block by block."""
    widen = {"half": lambda table: np.tile(table, 2), "interleaved": lambda table: np.repeat(table, 2, -1)}
    return np.concatenate([widen[pairing](table) for table in np.split(table, blocks, -1)], -1)


@pytest.mark.parametrize(
    "layout", ["half", "plain", "partial", "blocks", "interleaved blocks", "no features"]
)
def test_full_width_for_either_pairing_and_back(lib, layout):
    rope, x, rotation = case(lib, layout)
    for pairing in (None, "half", "interleaved"):
        full = rotation.full_width(pairing=pairing)
        for full_table, table in zip(full, rotation, strict=True):
            blocks = rope.axes.blocks if rope.axes else 1
            same(full_table, one_per_feature(lib.to_numpy(table), pairing or rope.pairing, blocks))
        for again in (rope.rotation_from(*full, pairing=pairing), rope.rotation_from(*rotation)):
            assert type(again) is type(rotation)
            same(again.apply(x), rotation.apply(x))
            same(again.inverse().apply(x), rotation.inverse().apply(x))


def test_narrow_tables_are_converted_exactly(lib, float_dtype):
    rope, x, rotation = case(lib, "half", float_dtype)
    narrow = rotation.full_width(x.dtype)
    assert narrow[0].dtype == x.dtype
    again = rope.rotation_from(*narrow)
    assert again.cos.dtype == lib.dtype(compute_dtype(float_dtype))
    for table, table_given in zip(again, narrow, strict=True):
        np.testing.assert_array_equal(values(table), values(table_given)[..., :8])


def test_tables_and_dtypes_that_are_refused(lib):
    rope, _, rotation = case(lib, "half")
    cos, sin = rotation
    with lib.running():
        for bad in ((cos, sin[:2, ...]), (cos[:, :3], sin[:, :3])):
            with pytest.raises(ShapeError):
                rope.rotation_from(*bad)
        for dtype in (lib.xp.int32, lib.xp.bool, lib.xp.complex64, "a word"):
            with pytest.raises(ArrayTypeError, match="dtype is"):
                rotation.full_width(dtype)
    for call in (rotation.full_width, lambda **options: rope.rotation_from(*rotation, **options)):
        with pytest.raises(SpecError, match="pairing is 'neox'"):
            call(pairing="neox")
    halves = RoPE(4, out_pairing="half").rotation([1], like=np.ones(4))
    with pytest.raises(SpecError, match="out_pairing"):
        halves.full_width()
    same(halves.full_width(pairing="half")[0], np.tile(halves.cos, 2))


# ---- a value: repr, pickle, copy ----


@each_layout
def test_repr_is_short(lib, layout):
    width, fields = LAYOUTS[layout]
    rope = RoPE(width, **fields)
    text = repr(rotation := rope.rotation(POSITIONS, like=normal(lib, 2)))
    table = f"float32[{S}, {rope.rotary_dim // 2}] ({lib.name})"
    assert text.startswith(f"Rotation(cos={table}, sin={table}, ")
    for phrase in (f"head_dim={width}", f"amplitude={rope.amplitude}", repr(rope.pairing)):
        assert phrase in text
    assert len(text) < 300
    assert str(rotation) == text


COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy}
COPIES |= {f"pickle {n}": lambda rotation, n=n: pickle.loads(pickle.dumps(rotation, n)) for n in (2, 5)}


@pytest.mark.without("strict")  # arrays of old versions cannot be copied, and none can be pickled
@pytest.mark.parametrize("how", COPIES)
def test_copies(lib, how):
    x = normal(lib, S, 8)
    rotation = RoPE(8, **FIELDS).rotation(POSITIONS, like=x)
    for form in (rotation, rotation.inverse()):
        again = COPIES[how](form)
        assert isinstance(again, Rotation)
        assert again.layout == form.layout
        same(again.apply(x), form.apply(x))


def test_a_rotation_made_by_its_class_has_no_layout():
    x = np.ones((3, 4))
    bare = Rotation(*RoPE(4).rotation(range(3), like=x))
    for use in (lambda: bare.apply(x), bare.inverse, bare.adjoint, lambda: repr(bare)):
        with pytest.raises(SpecError, match="rotation_from"):
            use()


# ---- a tree of PyTorch, and compiled code; test_jax.py has the tree of JAX ----


def layers(rotation, x):
    q, k = rotation.apply((x, x))
    return rotation.inverse().apply(q) + k


@pytest.mark.library("torch")
def test_a_compiled_function_takes_and_gives_rotations():
    torch = importlib.import_module("torch")
    counted = importlib.import_module("torch._dynamo.testing").CompileCounter()
    torch._dynamo.reset()
    x, rope = normal("torch", S, 8), RoPE(8, **FIELDS)
    rotation = rope.rotation(POSITIONS, like=x)
    # Tables are the leaves, the layout is structure.
    pytree = importlib.import_module("torch.utils._pytree")
    leaves, structure = pytree.tree_flatten(rotation)
    assert [leaf is table for leaf, table in zip(leaves, rotation, strict=True)] == [True, True]
    assert structure != pytree.tree_flatten(rotation.inverse())[1]
    assert structure == pytree.tree_flatten(rotation.adjoint().adjoint())[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = torch.compile(layers, fullgraph=True, backend=counted)
        # The counter runs the operations eagerly, with the same bits.
        torch.testing.assert_close(compiled(rotation, x), layers(rotation, x), rtol=0, atol=0)
        compiled(rotation.adjoint().adjoint(), x)
        assert counted.frame_count == 1
        round_trip = torch.compile(
            lambda r: rope.rotation_from(*r.full_width()), fullgraph=True, backend="eager"
        )(rotation)
    assert type(round_trip) is type(rotation)
    torch.testing.assert_close(round_trip.cos, rotation.cos, rtol=0, atol=0)
    torch._dynamo.reset()


def saved_structure(rotation):
    """Return a tree's structure as PyTorch saves it."""
    pytree = importlib.import_module("torch.utils._pytree")
    return pytree.treespec_dumps(pytree.tree_structure(rotation))


def saved_name(rotation):
    """Return the name of a rotation's type in a program that JAX saves; the rest has line numbers."""
    jax = importlib.import_module("jax")
    export = importlib.import_module("jax.export").export
    program = export(jax.jit(lambda rotation: rotation.cos))(rotation).serialize()
    return re.search(rb"rope_array\.Rotation\(.*?\)", program).group()


@pytest.mark.library("torch", "jax")
def test_unused_types_are_freed_and_others_keep_their_names(lib, monkeypatch):
    monkeypatch.setattr(_rotation, "_max_types", 1024)
    rotation = RoPE(8, attention_factor=0.75).rotation([1], like=normal(lib, 1, 8))
    save = {"torch": saved_structure, "jax": saved_name}[lib.name]
    before, numbers = save(rotation), []
    for i in range(4000):
        _rotation.rotation_type(*rotation.layout._replace(amplitude=100.0 + i))
        numbers.append(len(_rotation._types))
    assert max(numbers) < 2500
    assert _rotation.rotation_type(*rotation.layout) is type(rotation)
    assert save(rotation) == before


# ---- made before the framework was imported ----

BEFORE_TORCH = """
    import sys
    import numpy as np
    import rope_array as ra

    x = np.linspace(-1, 1, 24, dtype="float32").reshape(3, 8)
    rotation = ra.RoPE(8, pairing="half", attention_factor=2.0).rotation([1, 2, 3], like=x)
    want = rotation.apply(x)
    assert "torch" not in sys.modules
    import torch
    from torch.utils import _pytree as pytree

    moved = pytree.tree_map(torch.from_numpy, rotation)
    assert moved.layout == rotation.layout
    t = torch.from_numpy(x)
    compiled = torch.compile(lambda r, x: r.apply(x), backend="eager", fullgraph=True)
    for got in (moved.apply(t), torch.func.vmap(lambda r, x: r.apply(x))(moved, t), compiled(moved, t)):
        torch.testing.assert_close(got, torch.from_numpy(want))
    """


@pytest.mark.library("torch")
def test_made_before_torch_was_imported():
    child.run(BEFORE_TORCH)
