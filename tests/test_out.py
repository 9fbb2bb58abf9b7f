"""out=: results have the bits of the allocating call; a refused call writes nothing."""

import itertools
from functools import partial

import child
import numpy as np
import pytest
from compare import KERNEL, bits, normal, words
from numpy.lib.stride_tricks import as_strided

import rope_array as ra
from rope_array import ArrayTypeError, PositionError, ShapeError, _registry
from rope_array._array_api.library import Library
from rope_array._backends import _native
from rope_array.testing._contract import assert_contract

WRITES = pytest.mark.without("strict", "dask", "jax")
NUMPY, TORCH = pytest.mark.library("numpy"), pytest.mark.library("torch")
BACKENDS = {"numpy": [None, "native", "numpy", "array-api"], "torch": [None, "native", "torch", "array-api"]}

ROPES = {
    "interleaved": ra.RoPE(16),
    "half": ra.RoPE(16, pairing="half", base=500_000.0),
    "partial": ra.RoPE(16, pairing="half", rotary_dim=8, rotary_start=4, attention_factor=1.25),
    "mixed": ra.RoPE(16, out_pairing="half", rotary_dim=12),
    "none": ra.RoPE(16, rotary_dim=0),
    "float32": ra.RoPE(16, angles="float32"),
}
ROPE = ROPES["half"]
POS = [3, -1, 70_000, 2**31 - 1, 5]
# A list, which Python reads; a range and an int, which the kernel reads.
POSITIONS = (POS, range(5), 7)


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def filled(lib, *shape, dtype="float32"):
    """Return an array of sevens, which differs from every result."""
    return lib.asarray(np.full(shape, 7.0), dtype)


def backends_of(lib):
    names = BACKENDS[lib.name]
    return [name for name in names if name != "native" or _native.kernel is not None]


def refuses(error, says, call, *buffers):
    """Check that a call is refused by this error, and that it wrote to none of the buffers."""
    before = [bits(buffer) for buffer in buffers]
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    missing = [part for part in says if part not in str(caught.value)]
    assert not missing, f"{missing} not in {caught.value}"
    assert str(caught.value).endswith(".")
    assert [bits(buffer) for buffer in buffers] == before


# ---- valid calls ----


@WRITES
@pytest.mark.parametrize("name", ROPES)
def test_the_result_is_written_with_the_bits_of_the_allocating_call(lib, float_dtype, name):
    rope, x = ROPES[name], normal(lib, 2, 5, 16, dtype=float_dtype)
    for backend in backends_of(lib):
        want = bits(rope.apply(x, POS, backend=backend))
        out = filled(lib, 2, 5, 16, dtype=float_dtype)
        assert rope.apply(x, POS, out=out, backend=backend) is out
        assert bits(out) == want
        assert bits(x) == bits(normal(lib, 2, 5, 16, dtype=float_dtype))
        same = normal(lib, 2, 5, 16, dtype=float_dtype)
        assert rope.apply(same, POS, out=same, backend=backend) is same
        assert bits(same) == want


@WRITES
@pytest.mark.parametrize("name", ROPES)
def test_a_rotation_writes_too(lib, float_dtype, name):
    x = normal(lib, 2, 5, 16, dtype=float_dtype)
    rotation = ROPES[name].rotation(POS, like=x)
    for backend in backends_of(lib):
        for each in (rotation, rotation.inverse(), rotation.adjoint()):
            want = bits(each.apply(x, backend=backend))
            out, same = filled(lib, 2, 5, 16, dtype=float_dtype), normal(lib, 2, 5, 16, dtype=float_dtype)
            assert each.apply(x, out=out, backend=backend) is out
            assert each.apply(same, out=same, backend=backend) is same
            assert bits(out) == bits(same) == want


@WRITES
@pytest.mark.parametrize(
    "pos", [3, 2.5, range(5), [0.5, 1, 2, 3, 4], "int32", "int64", "uint8", "float64"], ids=words
)
def test_every_kind_of_positions(lib, pos):
    if isinstance(pos, str):
        pos = lib.asarray(np.arange(5), pos)
    x = normal(lib, 2, 5, 16)
    for backend in backends_of(lib):
        out = filled(lib, 2, 5, 16)
        assert ROPE.apply(x, pos, out=out, inverse=True, backend=backend) is out
        assert bits(out) == bits(ROPE.apply(x, pos, inverse=True, backend=backend))


@WRITES
def test_every_entry_point_writes_into_out(lib):
    x, fields = normal(lib, 5, 16), {"pairing": "half", "base": 500_000.0}
    want = bits(ROPE.apply(x, POS))
    for call in (
        lambda out: ra.apply(x, POS, out=out, **fields),
        lambda out: ra.apply(x, POS, ROPE, out=out),
        lambda out: ROPE.apply(x, POS, out=out),
    ):
        out = filled(lib, 5, 16)
        assert call(out) is out
        assert bits(out) == want


@WRITES
def test_a_tuple_for_a_tuple(lib):
    """One call writes in place and into another array; heads and dtypes differ."""
    rope = ROPES["partial"]
    for backend in backends_of(lib):
        for dtypes in (["float32"] * 3, ["float32", "float16", "float64"]):
            xs = tuple(
                normal(lib, 2, h, 5, 16, dtype=d, seed=h) for h, d in zip((4, 1, 2), dtypes, strict=True)
            )
            want = bits(rope.apply(xs, POS, backend=backend))
            other = filled(lib, 2, 1, 5, 16, dtype=dtypes[1])
            outs = (xs[0], other, xs[2])
            assert rope.apply(xs, POS, out=outs, backend=backend) is outs
            assert bits(outs) == want
            assert bits(xs[1]) == bits(normal(lib, 2, 1, 5, 16, dtype=dtypes[1], seed=1))


@WRITES
def test_a_rotation_writes_tuples(lib):
    for backend in backends_of(lib):
        xs = normal(lib, 3, 5, 16), normal(lib, 5, 16, dtype="float16")
        rotation = ROPE.rotation(POS, like=xs[0])
        want = bits(rotation.apply(xs, backend=backend))
        outs = (filled(lib, 3, 5, 16), xs[1])
        assert rotation.apply(xs, out=outs, backend=backend) is outs
        assert bits(outs) == want


@WRITES
def test_a_tuple_of_one_is_a_tuple(lib):
    x = normal(lib, 5, 16)
    want, outs = bits(ROPE.apply(x, POS)), (x,)
    assert ROPE.apply((x,), POS, out=outs) is outs
    assert bits(x) == want


@WRITES
def test_one_x_twice_into_two_results(lib):
    x, outs = normal(lib, 5, 16), (filled(lib, 5, 16), filled(lib, 5, 16))
    ROPE.apply((x, x), POS, out=outs)
    assert bits(outs[0]) == bits(outs[1]) == bits(ROPE.apply(x, POS))


@WRITES
def test_coordinates(lib):
    rope = ra.RoPE(16, axes=ra.Axes.interleaved(4, 2, 2))
    x, pos = normal(lib, 2, 5, 16), lib.asarray(np.arange(15).reshape(5, 3))
    for backend in backends_of(lib):
        out = filled(lib, 2, 5, 16)
        rope.apply(x, pos, out=out, backend=backend)
        assert bits(out) == bits(rope.apply(x, pos, backend=backend))


# ---- views and strides of results ----

# The shape of a buffer, and a view of it of shape (2, 3, 5, 16).
VIEWS = {
    "sequence before heads": ((2, 5, 3, 16), lambda lib, a: a.swapaxes(1, 2)),
    "every other feature": ((2, 3, 5, 32), lambda lib, a: a[..., ::2]),
    "a slice of features": ((2, 3, 5, 41), lambda lib, a: a[..., 9:25]),
    "every third row": ((2, 3, 15, 16), lambda lib, a: a[:, :, ::3]),
    "features first": ((16, 2, 3, 5), lambda lib, a: lib.permute(a, (1, 2, 3, 0))),
    "a part of a joint q, k, v": ((2, 5, 9, 16), lambda lib, a: a[:, :, 3:6].swapaxes(1, 2)),
    "batch and heads exchanged": ((3, 2, 5, 16), lambda lib, a: a.swapaxes(0, 1)),
}
BACKWARDS = {
    "rows backwards": ((2, 3, 5, 16), lambda lib, a: a[:, :, ::-1]),
    "features backwards": ((2, 3, 5, 16), lambda lib, a: a[..., ::-1]),
    "all backwards, every other": ((4, 3, 5, 32), lambda lib, a: a[::-2, ::-1, ::-1, ::-2]),
}


def check_views(lib, view, of, dtype="float32"):
    """Rotate from view to view, and in place; compare with contiguous arrays."""
    ropes = ROPES["interleaved"], ROPES["partial"]
    for rope, pos, backend in itertools.product(ropes, POSITIONS, backends_of(lib)):
        x = normal(lib, 2, 3, 5, 16, dtype=dtype)
        want = bits(rope.apply(x, pos, backend=backend))
        buffer, given = filled(lib, *of, dtype=dtype), filled(lib, *of, dtype=dtype)
        untouched = filled(lib, *of, dtype=dtype)
        given_x, out = view(lib, given), view(lib, buffer)
        given_x[...] = x
        kept = bits(given)
        assert rope.apply(given_x, pos, out=out, backend=backend) is out
        assert bits(out) == want
        assert bits(given) == kept
        assert rope.apply(given_x, pos, out=given_x, backend=backend) is given_x
        assert bits(given_x) == want
        for written in (buffer, given):  # nothing outside the view
            view(lib, written)[...] = view(lib, untouched)
            assert bits(written) == bits(untouched)


@WRITES
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_views_of_larger_memory(lib, name, dtype):
    of, view = VIEWS[name]
    check_views(lib, view, of, dtype)


@NUMPY
@pytest.mark.parametrize("name", BACKWARDS)
def test_negative_strides(name, lib_numpy):
    of, view = BACKWARDS[name]
    check_views(lib_numpy, view, of)


@pytest.fixture
def lib_numpy():
    from conftest import LIBS

    return LIBS["numpy"]


@pytest.fixture
def lib_torch():
    from conftest import LIBS

    return LIBS["torch"]


# Two views of one buffer that interleave without a byte in common.
INTERLEAVED = {
    "features": ((5, 32), lambda b: (b[..., ::2], b[..., 1::2])),
    "rows": ((10, 16), lambda b: (b[::2], b[1::2])),
    "halves of a row": ((5, 32), lambda b: (b[:, :16], b[:, 16:])),
    "halves of a row, exchanged": ((5, 32), lambda b: (b[:, 16:], b[:, :16])),
    "heads of a joint q, k, v": ((5, 9, 16), lambda b: (b[:, :3].swapaxes(0, 1), b[:, 3:6].swapaxes(0, 1))),
    "every third feature": ((5, 48), lambda b: (b[..., 2::3], b[..., ::3])),
    "one after the other": ((10, 16), lambda b: (b[:5], b[5:])),
    "one before the other": ((10, 16), lambda b: (b[5:], b[:5])),
}


@WRITES
@pytest.mark.parametrize("name", INTERLEAVED)
def test_views_of_one_buffer_that_share_no_byte(lib, name):
    shape, cut = INTERLEAVED[name]
    ropes = ROPES["interleaved"], ROPES["half"]
    for rope, pos, backend in itertools.product(ropes, POSITIONS, backends_of(lib)):
        x, out = cut(normal(lib, *shape))
        kept, want = bits(x), bits(rope.apply(x, pos, backend=backend))
        assert rope.apply(x, pos, out=out, backend=backend) is out
        assert bits(out) == want
        assert bits(x) == kept
        rotation = rope.rotation(pos, like=x)
        want = bits(rotation.apply(x, backend=backend))
        assert rotation.apply(x, out=out, backend=backend) is out
        assert bits(out) == want
        assert bits(x) == kept


@WRITES
def test_q_and_k_in_place_in_their_joint_buffer(lib):
    for backend in backends_of(lib):
        joint = normal(lib, 2, 5, 4 + 2 + 2, 16)
        kept = bits(joint[:, :, 6:])
        q, k = joint[:, :, :4], joint[:, :, 4:6]
        want = bits(ROPE.apply((q, k), POS, seq_axis=1, backend=backend))
        ROPE.apply((q, k), POS, seq_axis=1, out=(q, k), backend=backend)
        assert bits((joint[:, :, :4], joint[:, :, 4:6])) == want
        assert bits(joint[:, :, 6:]) == kept


@WRITES
@pytest.mark.parametrize("shape", [(0, 16), (2, 0, 16), (0, 5, 16), (5, 0, 5, 16)], ids=str)
def test_empty_arrays(lib, shape):
    for backend in backends_of(lib):
        out = filled(lib, *shape)
        pos = 3 if shape[-2] == 0 else POS
        assert ROPE.apply(normal(lib, *shape), pos, out=out, backend=backend) is out
        same = normal(lib, *shape)
        assert ROPE.apply(same, pos, out=same, backend=backend) is same


@WRITES
def test_a_single_vector_and_axes_of_one(lib):
    for backend in backends_of(lib):
        for shape in ((16,), (1, 1, 16), (1, 5, 1, 16)):
            x, out = normal(lib, *shape), filled(lib, *shape)
            ROPE.apply(x, 3, out=out, backend=backend)
            assert bits(out) == bits(ROPE.apply(x, 3, backend=backend))


@WRITES
def test_in_place_by_another_view_of_the_same_elements(lib):
    """The stride of an axis with one element does not matter."""
    for backend in backends_of(lib):
        buffer = normal(lib, 4, 5, 16)
        x, out = buffer[::2][:1], buffer[:1]
        want = bits(ROPE.apply(x, POS, backend=backend))
        ROPE.apply(x, POS, out=out, backend=backend)
        assert bits(x) == want


@WRITES
def test_an_x_with_strides_of_zero_is_read(lib):
    """Only the result needs memory for each element."""
    x = lib.expanded(normal(lib, 1, 1, 16), (2, 5, 16))
    for backend in backends_of(lib):
        out = filled(lib, 2, 5, 16)
        ROPE.apply(x, POS, out=out, backend=backend)
        assert bits(out) == bits(ROPE.apply(x, POS, backend=backend))


@NUMPY
def test_memory_maps(tmp_path):
    want = ROPE.apply(values(5, 16).astype("float32"), POS)
    for backend in (None, "numpy", "array-api"):
        x = np.memmap(tmp_path / "x", "float32", "w+", shape=(5, 16))
        out = np.memmap(tmp_path / "out", "float32", "w+", shape=(5, 16))
        x[...] = values(5, 16)
        assert ROPE.apply(x, POS, out=out, backend=backend) is out
        assert ROPE.apply(x, POS, out=x, backend=backend) is x
        out.flush(), x.flush()
        for name in ("x", "out"):
            assert np.allclose(np.fromfile(tmp_path / name, "float32").reshape(5, 16), want, atol=1e-6)
        read_only = np.memmap(tmp_path / "out", "float32", "r", shape=(5, 16))
        with pytest.raises(ArrayTypeError, match="read-only"):
            ROPE.apply(x, POS, out=read_only, backend=backend)


@NUMPY
def test_memory_that_is_not_aligned(lib_numpy):
    for backend in backends_of(lib_numpy):
        x, out = (np.zeros(5 * 16 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(5, 16) for _ in range(2))
        x[...] = values(5, 16)
        assert not out.flags.aligned
        want = ROPE.apply(x.copy(), POS, backend=backend)
        assert ROPE.apply(x, POS, out=out, backend=backend) is out
        assert bits(out) == bits(want)


@NUMPY
def test_results_keep_the_other_byte_order():
    x, out = values(5, 16).astype(">f4"), np.zeros((5, 16), ">f4")
    assert ROPE.apply(x, POS, out=out) is out
    assert np.array_equal(out, ROPE.apply(x, POS))
    assert np.array_equal(ROPE.apply(x, POS, out=x), out)


# ---- errors ----


@WRITES
@pytest.mark.parametrize("how", ["apply", "rotation"])
def test_the_wrong_kind_of_result(lib, how):
    x = normal(lib, 5, 16)
    rotation = ROPE.rotation(POS, like=x)
    into = (lambda x, out: rotation.apply(x, out=out)) if how == "rotation" else None
    into = into or (lambda x, out: ROPE.apply(x, POS, out=out))
    wrong = {
        "shape": (filled(lib, 5, 32), ShapeError, ["[5, 32]", "[5, 16]", "shape"]),
        "axes": (filled(lib, 1, 5, 16), ShapeError, ["[1, 5, 16]"]),
        "dtype": (filled(lib, 5, 16, dtype="float64"), ArrayTypeError, ["float64", "float32", "dtype"]),
        "integers": (lib.asarray(np.zeros((5, 16)), "int32"), ArrayTypeError, ["int32", "float32"]),
    }
    for out, error, says in wrong.values():
        refuses(error, says, lambda out=out: into(x, out), out, x)
    for out in (0.0, [0.0], "out", {}):
        refuses(ArrayTypeError, ["out is", "give"], lambda out=out: into(x, out), x)
    right = filled(lib, 5, 16)
    for out, error, says in wrong.values():
        says = ["out[1]", *says]
        refuses(error, says, lambda out=out: into((x, normal(lib, 5, 16)), (right, out)), out, x, right)


@WRITES
def test_x_and_out_are_both_tuples_or_both_arrays(lib):
    x, y, out, more = (normal(lib, 5, 16, seed=i) for i in range(4))
    rotation = ROPE.rotation(POS, like=x)
    both = [lambda x, out: ROPE.apply(x, POS, out=out), lambda x, out: rotation.apply(x, out=out)]
    for into in both:
        for given, outs, says in [
            (x, (out,), ["a tuple of 1", "one array"]),
            ((x,), out, ["a tuple of 1"]),
            ((x, y), (out,), ["a tuple of 1", "a tuple of 2"]),
            ((x, y), (out, more, out), ["a tuple of 3", "a tuple of 2"]),
            ((x, y), [out, more], ["a tuple of 2"]),
            ((x, y), (), ["a tuple of 0"]),
        ]:
            refuses(ArrayTypeError, says, lambda f=into, a=given, o=outs: f(a, o), x, y, out, more)


# The shape of a buffer, and x and out as views of it.
OVERLAPS = {
    "one row further": ((6, 16), lambda b: (b[:5], b[1:])),
    "one row before": ((6, 16), lambda b: (b[1:], b[:5])),
    "one element further": ((96,), lambda b: (b[:80].reshape(5, 16), b[1:81].reshape(5, 16))),
    "features shifted": ((5, 18), lambda b: (b[:, :16], b[:, 2:])),
    "the same memory, rows of other axes": ((5, 5, 16), lambda b: (b, b.swapaxes(0, 1))),
    "every other feature, from one": ((5, 32), lambda b: (b[..., ::2], b[..., :16])),
    "the last element": ((5, 31), lambda b: (b[:, :16], b[:, 15:])),
}


@WRITES
@pytest.mark.parametrize("name", OVERLAPS)
def test_overlap_of_x_and_its_result(lib, name):
    shape, cut = OVERLAPS[name]
    buffer = normal(lib, *shape)
    x, out = cut(buffer)
    rotation = ROPE.rotation(POS, like=buffer)
    says = ["out shares memory with x", "give memory apart", "in place"]
    for pos, b in itertools.product(POSITIONS, backends_of(lib)):
        call = lambda p=pos, b=b: ROPE.apply(x, p, out=out, backend=b)  # noqa: E731
        refuses(ArrayTypeError, says, call, buffer)
        call = lambda b=b: rotation.apply(x, out=out, backend=b)  # noqa: E731
        refuses(ArrayTypeError, says, call, buffer)


@WRITES
def test_overlap_among_the_arrays_of_a_tuple(lib):
    buffer, other = normal(lib, 3, 5, 16), normal(lib, 5, 16)
    a, b, c = buffer[0], buffer[1], buffer[2]
    near = buffer.reshape(-1)[8:88].reshape(5, 16)
    for xs, outs, says in [
        ((a, b), (b, a), ["out[0] shares memory with x[1]"]),
        ((a, b), (c, a), ["out[1] shares memory with x[0], which is read"]),
        ((a, b), (c, c), ["out[1] shares memory with out[0], which is written too"]),
        ((a, b), (other, other), ["out[1] shares memory with out[0]"]),
        ((a, a), (a, other), ["out[0] shares memory with x[1]"]),
        ((a, a), (a, a), ["shares memory with"]),
        ((other, c), (near, c), []),
        ((b, other), (b, near), ["out[1] shares memory with"]),
        ((other, b), (near, b), ["out[0] shares memory with x[1]"]),
    ]:
        rotation = ROPE.rotation(POS, like=other)
        calls = [lambda p=pos, xs=xs, outs=outs: ROPE.apply(xs, p, out=outs) for pos in POSITIONS]
        for call in (*calls, lambda xs=xs, outs=outs, r=rotation: r.apply(xs, out=outs)):
            if says:
                refuses(ArrayTypeError, says, call, buffer, other)
            else:
                call()


@WRITES
@pytest.mark.parametrize("dtype", ["int64", "int32", "float64", "float32"])
def test_overlap_with_the_positions(lib, dtype):
    bytes_of = np.zeros(5 * 16 * 8, np.uint8)
    buffer = lib.asarray(bytes_of, "uint8")
    out = buffer.view(lib.dtype("float64")).reshape(5, 16)
    pos = buffer.view(lib.dtype(dtype))[10:15]
    x = normal(lib, 5, 16, dtype="float64")
    for backend in backends_of(lib):
        call = lambda b=backend: ROPE.apply(x, pos, out=out, backend=b)  # noqa: E731
        refuses(ArrayTypeError, ["out shares memory with the positions"], call, buffer)
        other = filled(lib, 5, 16, dtype="float64")
        call = lambda b=backend, o=other: ROPE.apply((x, x), pos, out=(o, out), backend=b)  # noqa: E731
        refuses(ArrayTypeError, ["out[1] shares memory with the positions"], call, buffer, other, x)


@WRITES
@pytest.mark.parametrize("table", ["cos", "sin"])
def test_overlap_with_the_tables(lib, table):
    x = normal(lib, 2, 5, 16)
    rotation = ROPE.rotation(lib.asarray(np.arange(10).reshape(2, 5), "int64"), like=x)
    buffer = filled(lib, 2, 5, 32)
    inside = buffer[..., 1:17:2]
    inside[...] = getattr(rotation, table)
    rotation = rotation._replace(**{table: inside})
    call = lambda: rotation.apply(x, out=buffer[..., :16])  # noqa: E731
    refuses(ArrayTypeError, ["shares memory with the positions or tables"], call, buffer, x)
    out = buffer[..., ::2]
    rotation.apply(x, out=out)
    assert bits(out) == bits(rotation.apply(x))


@WRITES
def test_overlap_with_contiguous_tables(lib):
    """The kernel reads contiguous tables itself, and checks the overlap itself."""
    x, buffer = normal(lib, 5, 16), filled(lib, 7 * 16)
    rotation = ROPE.rotation(POS, like=x)
    for at, name in itertools.product((0, 40, 72), ("cos", "sin")):
        table = buffer[at : at + 40].reshape(5, 8)
        table[...] = getattr(rotation, name)
        given = rotation._replace(**{name: table})
        out = buffer[16:96].reshape(5, 16)
        for backend in backends_of(lib):
            call = lambda r=given, o=out, b=backend: r.apply(x, out=o, backend=b)  # noqa: E731
            refuses(ArrayTypeError, ["the positions or tables"], call, buffer)
    apart = filled(lib, 5, 16)
    assert bits(given.apply(x, out=apart)) == bits(rotation.apply(x))


@WRITES
def test_results_whose_elements_share_memory(lib):
    x = normal(lib, 2, 5, 16)
    memory = filled(lib, 2 * 5 * 16)
    shared = []
    for strides in ((0, 0, 1), (0, 16, 1), (80, 1, 1), (16, 16, 1), (80, 15, 1), (1, 2, 3), (80, 16, 0)):
        if lib.name == "torch":
            shared.append(memory.as_strided((2, 5, 16), strides))
        else:
            shared.append(as_strided(memory, (2, 5, 16), [4 * stride for stride in strides]))
    ROPE.apply(x, range(5))  # prepares the plan: the kernel's fast entry declines calls before it
    for out, pos in itertools.product(shared, POSITIONS):
        for backend in backends_of(lib):
            call = lambda out=out, pos=pos, b=backend: ROPE.apply(x, pos, out=out, backend=b)  # noqa: E731
            refuses(ArrayTypeError, ["out is", "memory", "give an array"], call, memory)


@NUMPY
def test_read_only_results(lib_numpy):
    x, out, other = (values(5, 16) for _ in range(3))
    out.flags.writeable = False
    rotation = ROPE.rotation(range(5), like=x)
    ROPE.apply(x, range(5))  # prepares the plan: the kernel's fast entry declines calls before it
    calls = [partial(ROPE.apply, pos=pos) for pos in POSITIONS] + [rotation.apply]
    for backend, apply in itertools.product(backends_of(lib_numpy), calls):
        refuses(ArrayTypeError, ["read-only", "give"], partial(apply, x, out=out, backend=backend), out)
        call = partial(apply, (x, x), out=(other, out), backend=backend)
        refuses(ArrayTypeError, ["read-only"], call, out, other)
    x.flags.writeable = False
    frozen = np.frombuffer(bytes(8 * 5 * 16)).reshape(5, 16)
    for apply in calls:
        refuses(ArrayTypeError, ["read-only"], partial(apply, x, out=x), x)
        refuses(ArrayTypeError, ["read-only"], partial(apply, frozen, out=frozen), frozen)


# Strides, in elements, of two nested arrays of shape (2,) * 11, found by random search: NumPy's solver does
# not decide their overlap in 100,000 steps.
HARD_OUT = (47470, 23731, 11879, 5950, 2953, 1483, 745, 384, 195, 80, 60)
HARD_X = (25169, 12607, 6293, 3139, 1572, 789, 409, 196, 87, 61, 9)


@WRITES
def test_overlap_that_takes_too_long_to_decide(lib):
    buffer = filled(lib, 100_000)
    shape, rope = (2,) * 11, ra.RoPE(2)
    if lib.name == "torch":
        out, x = buffer.as_strided(shape, HARD_OUT), buffer.as_strided(shape, HARD_X, 1)
    else:
        out, x = (
            as_strided(buffer[i:], shape, [4 * s for s in of]) for i, of in enumerate((HARD_OUT, HARD_X))
        )
        with pytest.raises(np.exceptions.TooHardError):
            np.shares_memory(out, x, max_work=100_000)
    for backend in backends_of(lib):
        call = lambda b=backend: rope.apply(x, 3, out=out, backend=b)  # noqa: E731
        refuses(ArrayTypeError, ["out may share memory with x", "give memory apart"], call, buffer)


@WRITES
def test_the_second_array_is_checked_before_the_first_is_written(lib):
    x, out = normal(lib, 5, 16), filled(lib, 5, 16)
    bad = {
        "width": (normal(lib, 5, 32), filled(lib, 5, 32), ShapeError),
        "length": (normal(lib, 4, 16), filled(lib, 4, 16), ShapeError),
        "axes": (normal(lib, 16), filled(lib, 16), ShapeError),
        "dtype": (*(lib.asarray(np.ones((5, 16)), "int32") for _ in range(2)), ArrayTypeError),
        "its result": (normal(lib, 5, 16), filled(lib, 4, 16), ShapeError),
    }
    rotation = ROPE.rotation(POS, like=x)
    for other, into, error in bad.values():
        for backend in backends_of(lib):
            for call in (
                lambda o=other, i=into, b=backend: ROPE.apply((x, o), POS, out=(out, i), backend=b),
                lambda o=other, i=into, b=backend: rotation.apply((x, o), out=(out, i), backend=b),
                lambda o=other, i=into, b=backend: ROPE.apply((x, o), POS, out=(x, i), backend=b),
            ):
                refuses(error, [], call, out, into, x)


@WRITES
@pytest.mark.parametrize(
    ("pos", "error"),
    [(10**30, PositionError), (float("nan"), PositionError), ([0, 1], ShapeError), (True, ArrayTypeError)],
    ids=["too large", "nan", "too short", "bool"],
)
def test_positions_are_checked_before_anything_is_written(lib, pos, error):
    x, out = normal(lib, 5, 16), filled(lib, 5, 16)
    for backend in backends_of(lib):
        for into in (x, out):
            call = lambda o=into, b=backend: ROPE.apply(x, pos, out=o, backend=b)  # noqa: E731
            refuses(error, [], call, out, x)


@WRITES
def test_a_backend_that_declines_writes_nothing(lib):
    x, out = normal(lib, 5, 16), filled(lib, 5, 16)
    for backend in ("jax", "dask", "nothing"):
        call = lambda b=backend: ROPE.apply(x, POS, out=out, backend=b)  # noqa: E731
        refuses(ra.BackendError, [repr(backend)], call, out)


@pytest.mark.without("numpy", "torch")
def test_libraries_that_are_not_written_into(lib):
    with lib.running():
        x, out = normal(lib, 5, 16), filled(lib, 5, 16)
        pos = lib.asarray(np.arange(5, dtype=np.int32))
        rotation = ROPE.rotation(pos, like=x)
        for into in (x, out):
            for call in (
                lambda o=into: ROPE.apply(x, pos, out=o),
                lambda o=into: ROPE.apply(x, pos, out=o, backend="array-api"),
                lambda o=into: ROPE.apply((x, x), pos, out=(o, o)),
                lambda o=into: rotation.apply(x, out=o),
            ):
                refuses(ArrayTypeError, ["not written into", "NumPy, PyTorch and CuPy"], call, out, x)


@pytest.mark.without("numpy")
def test_arrays_of_another_library_are_no_result(lib):
    with lib.running():
        theirs, own = normal(lib, 5, 16), values(5, 16).astype("float32")
        for x, out in ((theirs, own), (own, theirs)):
            with pytest.raises(ArrayTypeError, match=r"out is|not written into"):
                ROPE.apply(x, POS, out=out)
        assert bits(theirs) == bits(normal(lib, 5, 16))
        assert np.array_equal(own, values(5, 16).astype("float32"))


@NUMPY
def test_subclasses_that_are_no_result(lib_numpy):
    x = values(5, 16)
    masked = np.ma.masked_array(values(5, 16), mask=x > 0)
    refuses(ArrayTypeError, ["masked"], lambda: ROPE.apply(x, POS, out=masked), masked.data)
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix(values(5, 16))
    refuses(ArrayTypeError, ["matrix"], lambda: ROPE.apply(x, POS, out=matrix), np.asarray(matrix))


@NUMPY
@pytest.mark.parametrize("backend", BACKENDS["numpy"])
def test_the_other_byte_order_is_another_dtype(backend, lib_numpy):
    """Both dtypes have the name float32."""
    if backend == "native" and _native.kernel is None:
        pytest.skip(_native.unavailable_reason())
    x, out = values(5, 16).astype("float32"), np.zeros((5, 16), ">f4")
    if np.little_endian:
        call = lambda: ROPE.apply(x, POS, out=out, backend=backend)  # noqa: E731
        refuses(ArrayTypeError, [">f4", "dtype"], call, out)


# ---- PyTorch ----


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@TORCH
def test_gradients_that_are_recorded(torch, lib_torch):
    x, out = torch.randn(5, 16), torch.zeros(5, 16)
    recorded = torch.randn(5, 16, requires_grad=True)
    inner = recorded * 2
    rotation = ROPE.rotation(POS, like=x)
    both = (recorded, inner)
    same = inner.view(5, 16)  # the same numbers, in another tensor
    for a, o in (*((a, out) for a in both), (recorded, recorded), (inner, same), *((x, o) for o in both)):
        for call in (lambda a=a, o=o: ROPE.apply(a, POS, out=o), lambda a=a, o=o: rotation.apply(a, out=o)):
            refuses(ArrayTypeError, ["requires a gradient", "no_grad"], call, a, o)
    pos = torch.arange(5.0, requires_grad=True)
    call = lambda: ROPE.apply(x, pos, out=out)  # noqa: E731
    refuses(ArrayTypeError, ["requires a gradient"], call, out)
    learned = ROPE.rotation(pos, like=x)
    refuses(ArrayTypeError, ["requires a gradient"], lambda: learned.apply(x, out=out), out)
    refuses(ArrayTypeError, ["requires a gradient"], lambda: learned.apply(inner, out=inner), inner)


# Tensors of shape (5, 16) computed from a leaf of shape (5, 3, 16).
COMPUTED = {
    "a tensor": lambda leaf: (leaf * 1)[:, 0].clone(),
    "a view": lambda leaf: (leaf * 1)[:, 1],
    "a transposed view": lambda leaf: (leaf * 1)[:, 1].mT.contiguous().mT,
}


@TORCH
@pytest.mark.parametrize("of", ["positions", "tables"])
@pytest.mark.parametrize("kind", COMPUTED)
def test_in_place_while_a_gradient_is_recorded(torch, lib_torch, kind, of):
    """The gradient is the adjoint rotation of the upstream gradient, and zero where x does not reach."""
    upstream = torch.linspace(-1, 1, 80).reshape(5, 16)
    rotation = ROPE.rotation(POS, like=upstream)
    for backend in backends_of(lib_torch):
        leaf = torch.ones(5, 3, 16, requires_grad=True)
        x = COMPUTED[kind](leaf)
        want = ROPE.apply(x.detach(), POS)
        if of == "tables":
            y = rotation.apply(x, out=x, backend=backend)
        else:
            y = ROPE.apply(x, POS, out=x, backend=backend)
        assert y is x
        assert bits(x.detach()) == bits(want)
        (grad,) = torch.autograd.grad((x * upstream).sum(), leaf)
        row = grad.sum(dim=1).numpy()
        # The amplitude is 1, so the adjoint is the inverse.
        assert_contract(row, upstream.numpy(), POS, inverse=True, pairing="half", base=500_000.0)
        assert np.count_nonzero(grad.abs().sum(dim=(0, 2)).numpy()) == 1


@TORCH
def test_a_projection_is_rotated_in_place_while_it_trains(torch, lib_torch):
    """Queries and keys are views of one tensor; the values are not rotated, and keep their gradient."""
    for backend in backends_of(lib_torch):
        leaf, grads = torch.randn(5, 3, 16), []
        for in_place in (False, True):
            a = leaf.clone().requires_grad_()
            qkv = a * 2
            q, k = qk = qkv[:, 0], qkv[:, 1]
            q, k = ROPE.apply(qk, POS, out=qk if in_place else None, backend=backend)
            ((q * k).sum() + qkv[:, 2].sum()).backward()
            grads.append(a.grad)
        # Recorded in another order, sums of float32 may differ in their last bit.
        torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=2.0**-20)


@TORCH
def test_part_of_a_tuple_is_recorded(torch, lib_torch):
    for backend in backends_of(lib_torch):
        leaf, k = torch.ones(5, 16, requires_grad=True), torch.ones(5, 16)
        q = leaf * 1
        out = torch.zeros(5, 16)
        got = ROPE.apply((q, k), POS, out=(q, out), backend=backend)
        assert got[0] is q
        assert got[1] is out
        assert bits(q.detach()) == bits(out) == bits(ROPE.apply(k, POS))
        assert not out.requires_grad
        q.sum().backward()
        assert leaf.grad is not None


UNWRITABLE = {
    "a leaf": lambda leaf: leaf,
    "a view of a leaf": lambda leaf: leaf[:, 0],
    "of unbind": lambda leaf: (leaf * 1).unbind(1)[0],
    "of split": lambda leaf: (leaf * 1).split(1, 1)[0][:, 0],
}


@TORCH
@pytest.mark.parametrize("kind", UNWRITABLE)
def test_tensors_that_autograd_does_not_write_in_place(torch, lib_torch, kind):
    """Autograd would raise after the kernel has written."""
    for backend in backends_of(lib_torch):
        leaf = torch.ones(5, 3, 16, requires_grad=True)
        x = UNWRITABLE[kind](leaf)
        call = lambda x=x, b=backend: ROPE.apply(x, POS, seq_axis=0, out=x, backend=b)  # noqa: E731
        refuses(ArrayTypeError, ["requires a gradient", "no_grad"], call, x)


@TORCH
def test_without_recording_gradients_all_is_written(torch, lib_torch):
    values_ = torch.randn(5, 16)
    want = bits(ROPE.apply(values_, POS))
    for wrapped in (lambda a: a.requires_grad_(), torch.nn.Parameter):
        for backend in backends_of(lib_torch):
            leaf, out = wrapped(values_.clone()), torch.zeros(5, 16)
            with torch.no_grad():
                assert ROPE.apply(leaf, POS, out=out, backend=backend) is out
                assert ROPE.apply(leaf, POS, out=leaf, backend=backend) is leaf
            assert bits(out)[2] == bits(leaf)[2]
            assert leaf.requires_grad
            assert leaf.is_leaf
            if backend in (None, "native"):
                assert bits(out) == want


@TORCH
@pytest.mark.parametrize("backend", BACKENDS["torch"])
@pytest.mark.parametrize("how", ["apply", "number", "tensor", "rotation", "tuple", "view"])
def test_a_tensor_saved_for_a_gradient_and_then_overwritten_is_noticed(torch, backend, how):
    if backend == "native" and _native.kernel is None:
        pytest.skip(_native.unavailable_reason())
    x, weight = torch.randn(5, 16), torch.randn(5, 16, requires_grad=True)
    product = (x * weight).sum()
    version = x._version
    if how == "apply":
        ROPE.apply(x, POS, out=x, backend=backend)
    elif how == "number":
        ROPE.apply(x, 3, out=x, backend=backend)
    elif how == "tensor":
        ROPE.apply(torch.randn(5, 16), torch.arange(5), out=x, backend=backend)
    elif how == "tuple":
        ROPE.apply(
            (torch.randn(5, 16), torch.randn(5, 16)), POS, out=(torch.zeros(5, 16), x), backend=backend
        )
    elif how == "view":
        ROPE.apply(x[1:], POS[1:], out=x[1:], backend=backend)
    else:
        ROPE.rotation(POS, like=x).apply(x, out=x, backend=backend)
    assert x._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@TORCH
def test_inference_tensors(torch, lib_torch):
    """Inference mode writes them; outside of it the call raises, or writes the right result."""
    x = torch.randn(5, 16)
    for backend in backends_of(lib_torch):
        with torch.inference_mode():
            out = torch.zeros(5, 16)
            assert ROPE.apply(x, POS, out=out, backend=backend) is out
            assert torch.equal(out, ROPE.apply(x, POS, backend=backend))
            assert ROPE.apply(out, POS, out=out, backend=backend) is out
            own = x.clone()
        want = ROPE.apply(x, POS, backend=backend)
        call = lambda o=out, b=backend: ROPE.apply(x, POS, out=o, backend=b)  # noqa: E731
        refused_or_right(torch, call, out, want, (RuntimeError, ArrayTypeError))
        outside = torch.zeros(5, 16)
        assert ROPE.apply(own, POS, out=outside, backend=backend) is outside


@TORCH
@KERNEL
def test_the_kernel_serves_inference_mode(torch, lib_torch, kernel_calls):
    """It counts the writes to ordinary tensors; tensors of inference mode have no count."""
    rotation, x = ROPE.rotation(POS, like=torch.ones(1)), torch.randn(5, 16)
    ordinary, weight = torch.randn(5, 16), torch.randn(5, 16, requires_grad=True)
    product, version = (ordinary * weight).sum(), ordinary._version
    with torch.inference_mode():
        both = torch.randn(5, 16), ordinary
        for call in (
            partial(ROPE.apply, both, torch.arange(5), out=both),
            partial(rotation.apply, both, out=both),
            partial(ROPE.apply, (x, x), 3, out=both),
            partial(ROPE.apply, both[0], range(5), out=both[0]),
        ):
            kernel_calls.clear()
            want = bits(call.func(*call.args))
            assert bits(call()) == want
            assert len(kernel_calls) == 2
    assert ordinary._version == version + 3
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    outs = x, both[0]
    refuses(ArrayTypeError, ["inference_mode"], lambda: ROPE.apply((x, x.clone()), 3, out=outs), x)


# Views of a tensor of q, k and v, of 4, 2 and 2 heads.
JOINT = {
    "split": ((5, 8 * 16), lambda a: [p.view(5, -1, 16) for p in a.split([64, 32, 32], -1)], 0),
    "selected": ((2, 5, 3, 4, 16), lambda a: a.unbind(2), 1),
    "transposed": ((2, 5, 3, 4, 16), lambda a: [p.transpose(1, 2) for p in a.unbind(2)], 2),
    "in each head": ((5, 4, 3, 16), lambda a: a.unbind(2), 0),
}


@TORCH
@KERNEL
@pytest.mark.parametrize("name", JOINT)
def test_the_kernel_serves_views_of_one_tensor(torch, lib_torch, kernel_calls, name):
    shape, cut, seq_axis = JOINT[name]
    joint = torch.randn(shape)
    q, k, v = cut(joint)
    want, kept = bits(ROPE.apply((q, k), torch.arange(5), seq_axis=seq_axis)), bits(v)
    kernel_calls.clear()
    assert bits(ROPE.apply((q, k), torch.arange(5), seq_axis=seq_axis, out=(q, k))) == want
    assert len(kernel_calls) == 1
    assert bits(v) == kept
    call = lambda: ROPE.apply((q, q), torch.arange(5), seq_axis=seq_axis, out=(q, q))  # noqa: E731
    refuses(ArrayTypeError, ["shares memory"], call, joint)


@TORCH
def test_tensors_without_memory_of_their_own(torch, lib_torch):
    x, out = torch.randn(5, 16), torch.empty(5, 16, device="meta")
    for source in (x, out):
        with pytest.raises(ArrayTypeError, match="meta"):
            ROPE.apply(source, POS, out=out)
    with pytest.raises(ArrayTypeError, match="sparse"):
        ROPE.apply(x, POS, out=torch.zeros(5, 16).to_sparse())
    with pytest.raises(ArrayTypeError, match="Tagged"):
        ROPE.apply(x, POS, out=torch.zeros(5, 16).as_subclass(type("Tagged", (torch.Tensor,), {})))


def refused_or_right(torch, call, out, want, error=ArrayTypeError):
    """Assert that the call writes `want`, or raises and leaves out unchanged."""
    before = out.clone()
    try:
        call()
    except error:
        want = before
    assert torch.equal(out, want)


@TORCH
def test_lazily_negated_results(torch, lib_torch):
    """The memory of a negated view has the opposite signs."""
    x = torch.randn(5, 16)
    for backend in backends_of(lib_torch):
        if backend == "native":
            continue
        out = torch.view_as_complex(torch.zeros(5, 16, 2)).conj().imag
        assert out.is_neg()
        want = ROPE.apply(x, POS, backend=backend)
        refused_or_right(torch, lambda o=out, b=backend: ROPE.apply(x, POS, out=o, backend=b), out, want)
        rotation = ROPE.rotation(POS, like=x)
        want = rotation.apply(x, backend=backend)
        refused_or_right(torch, lambda o=out, b=backend, r=rotation: r.apply(x, out=o, backend=b), out, want)
        given = torch.view_as_complex(torch.randn(5, 16, 2)).conj().imag  # a negated x, in place
        want = ROPE.apply(given, POS, backend=backend)
        refused_or_right(torch, lambda g=given, b=backend: ROPE.apply(g, POS, out=g, backend=b), given, want)


@TORCH
def test_results_without_storage():
    """A tensor of zeros that PyTorch has no memory for: its address is 0."""
    script = """
        import torch
        import rope_array as ra
        x, rope = torch.randn(5, 16), ra.RoPE(16)
        for backend in (None, "torch", "array-api"):
            for apply in (rope.apply, lambda x, pos, **k: rope.rotation(pos, like=x).apply(x, **k)):
                out = torch._efficientzerotensor(5, 16)
                assert out._is_zerotensor()
                try:
                    apply(x, range(5), out=out, backend=backend)
                except ra.ArrayTypeError:
                    continue
                assert torch.equal(out, apply(x, range(5), backend=backend))
    """
    child.run(script)


@TORCH
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_wrapped_tensors(torch):
    """In a functorch transform, a wrapper has no memory of its own."""
    x, captured = torch.randn(5, 16), torch.zeros(5, 16)
    want = ROPE.apply(x, POS, backend="torch")

    def into_new(x):
        return ROPE.apply(x, POS, out=torch.zeros(5, 16))

    def into_captured(x):
        return ROPE.apply(x, POS, out=captured)

    func = torch.func
    for into in (into_new, into_captured):
        for transformed in (
            lambda f=into: func.vmap(f)(x[None])[0],
            lambda f=into: func.jvp(f, (x,), (x,))[1],
            lambda f=into: func.grad(lambda x: (f(x) * x).sum())(x),
            lambda f=into: func.functionalize(f)(x),
        ):
            try:
                y = transformed()
            except ArrayTypeError:
                assert not captured.any()
            else:
                assert torch.allclose(y, want, atol=1e-6)
                captured.zero_()


@TORCH
def test_fake_tensors(torch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        x, out = torch.randn(5, 16), torch.zeros(5, 16)
        with pytest.raises(ArrayTypeError, match="FakeTensor"):
            ROPE.apply(x, POS, out=out)
    x = mode.from_tensor(torch.randn(5, 16))
    for out in (x, torch.zeros(5, 16)):
        with pytest.raises((ArrayTypeError, RuntimeError)):
            ROPE.apply(x, POS, out=out)


@TORCH
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_forward_mode_tangents_are_written_too(torch):
    fw = torch.autograd.forward_ad
    x, tangent = torch.randn(5, 16), torch.randn(5, 16)
    want = ROPE.apply(tangent, POS, backend="torch")
    with fw.dual_level():
        out = torch.zeros(5, 16)
        ROPE.apply(fw.make_dual(x, tangent), POS, out=out)
        assert torch.equal(fw.unpack_dual(out).tangent, want)
        same = fw.make_dual(x.clone(), tangent.clone())
        ROPE.apply(same, POS, out=same)
        assert torch.equal(fw.unpack_dual(same).tangent, want)
        stale = fw.make_dual(torch.zeros(5, 16), tangent.clone())
        ROPE.apply(x, POS, out=stale)
        left = fw.unpack_dual(stale).tangent
        assert left is None or not left.any()


@TORCH
def test_tensors_that_share_memory_with_numpy(torch):
    """PyTorch has two storages for one NumPy buffer."""
    memory = np.zeros((6, 16), np.float32)
    x, out = torch.from_numpy(memory[:5]), torch.from_numpy(memory[1:])
    assert x.untyped_storage().data_ptr() != out.untyped_storage().data_ptr()
    with pytest.raises(ArrayTypeError, match="out shares memory with x"):
        ROPE.apply(x, POS, out=out)
    bytes_ = np.zeros(5 * 16 * 4, np.uint8)
    pos = torch.from_numpy(bytes_[:40].view(np.int64))
    out = torch.from_numpy(bytes_.view(np.float32).reshape(5, 16))
    with pytest.raises(ArrayTypeError, match="out shares memory with the positions"):
        ROPE.apply(torch.randn(5, 16), pos, out=out)
    again = torch.from_numpy(memory[:5])
    ROPE.apply(x, POS, out=again)  # the same memory, by another tensor: in place


@TORCH
def test_tensors_of_two_devices(torch):
    with pytest.raises(ArrayTypeError, match="meta"):
        ROPE.apply(torch.empty(5, 16, device="meta"), POS, out=torch.zeros(5, 16))


# ---- CuPy, without a GPU ----


class Device:
    """An object with CuPy's __cuda_array_interface__."""

    def __init__(self, address, shape, strides, itemsize=4, read_only=False):
        self.shape, self.strides, self.itemsize, self.size = shape, strides, itemsize, int(np.prod(shape))
        self.dtype = np.dtype(f"f{itemsize}")
        self.__cuda_array_interface__ = {"data": (address, read_only), "shape": shape, "version": 3}


def shares(a, b):
    from rope_array._array_api import out as _out

    library = Library("cupy", np)
    return _out._share(*(library.memory(array) for array in (a, b)))


@NUMPY
def test_memory_of_cupy():
    library = Library("cupy", np)
    memory = library.memory(Device(4096, (5, 16), (64, 4)))
    assert memory == (4096, (5, 16), (64, 4), 4, True)
    assert not library.memory(Device(4096, (5, 16), (64, 4), read_only=True)).writable
    assert library.memory(Device(0, (0, 16), (64, 4))).address == 0
    assert Library("other", np).memory(Device(4096, (5, 16), (64, 4))) is None
    assert Library("cupy", np).memory(np.zeros(3)) is None  # it has no __cuda_array_interface__


@NUMPY
def test_overlap_is_decided_on_the_device_s_addresses():
    a = Device(2**40, (5, 16), (128, 8))
    assert shares(a, Device(2**40, (5, 16), (128, 8)))
    assert shares(a, Device(2**40 + 4, (5, 16), (128, 8))) is False
    assert shares(a, Device(2**40 + 8, (5, 16), (128, 8)))
    assert shares(a, Device(2**40 + 128 * 5, (5, 16), (64, 4))) is False
    assert shares(a, Device(2**40 + 64, (0, 16), (64, 4))) is False


@NUMPY
def test_results_on_the_device_are_held_to_the_same_rules():
    from rope_array._array_api import out as _out

    library = Library("cupy", np)
    library.is_array = lambda value: isinstance(value, Device)
    library.same_device = lambda a, b: True
    x, apart = Device(4096, (5, 16), (64, 4)), Device(8192, (5, 16), (64, 4))
    assert _out.check_outs(apart, x, (x,), (), library) == (apart,)
    assert _out.check_outs(x, x, (x,), (3,), library) == (x,)
    for out, says in [
        (Device(4100, (5, 16), (64, 4)), "out shares memory with x"),
        (Device(8192, (5, 16), (0, 4)), "share memory"),
        (Device(8192, (5, 16), (64, 4), read_only=True), "read-only"),
    ]:
        with pytest.raises(ArrayTypeError, match=says):
            _out.check_outs(out, x, (x,), (), library)
    tables = (apart, Device(12288, (5, 8), (32, 4)))
    with pytest.raises(ArrayTypeError, match="the positions or tables"):
        _out.check_outs(Device(12288, (5, 16), (64, 4)), x, (x,), tables, library)


# ---- which backend writes ----


@pytest.fixture
def kernel_calls(monkeypatch):
    """The names of the kernel's functions, once for each call that rotated."""
    counts = []

    def counting(function):
        def call(*args, **kwargs):
            done = function(*args, **kwargs)
            if done is not NotImplemented:
                counts.append(function.__name__)
            return done

        return call

    entry, backends_of = _native.kernel.rotate, _registry.backends_of
    monkeypatch.setattr(_native.kernel, "rotate", counting(entry))

    def counted_backends(cls):
        found = backends_of(cls)
        return found._replace(try_fast=_native.kernel.rotate) if found.try_fast is entry else found

    monkeypatch.setattr(_registry, "backends_of", counted_backends)
    return counts


@KERNEL
@WRITES
def test_the_kernel_writes_by_itself(lib, kernel_calls):
    x, out = normal(lib, 5, 16), filled(lib, 5, 16)
    for call in (
        lambda: ROPE.apply(x, POS, out=out),
        lambda: ROPE.apply(x, range(5), out=out),
        lambda: ROPE.apply(x, range(5), out=x),
        lambda: ROPE.apply((x, x), lib.asarray(np.arange(5)), out=(out, filled(lib, 5, 16))),
        lambda: ROPE.rotation(POS, like=x).apply(x, out=x),
    ):
        kernel_calls.clear()
        call()
        assert kernel_calls
    kernel_calls.clear()
    ROPE.apply(x, POS, out=out, backend="array-api")
    assert not kernel_calls


@KERNEL
@WRITES
def test_refused_calls_never_enter_the_kernel(lib, kernel_calls):
    buffer = normal(lib, 6, 16)
    with pytest.raises(ArrayTypeError):
        ROPE.apply(buffer[:5], range(5), out=buffer[1:])
    with pytest.raises(ArrayTypeError):
        ROPE.apply((buffer[:5], buffer[:5]), range(5), out=(buffer[:5], buffer[:5]))
    assert not kernel_calls


@WRITES
def test_these_tests_pass_without_the_kernel(lib):
    """Run these tests in a process without the kernel."""
    script = """
        import pathlib, sys, pytest
        names = "overlap or tuple or views or share or bits or rotation_writes"
        file = str(pathlib.Path(sys.argv[2]) / "test_out.py")
        options = ["-q", "-x", "-p", "no:cacheprovider", "--libraries", sys.argv[1], "-k", names]
        sys.exit(pytest.main([file, *options]))
    """
    done = child.run(script, lib.label, child.TESTS, ROPE_ARRAY_KERNEL_LEVEL="none")
    assert "passed" in done
    assert "failed" not in done
