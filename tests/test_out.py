"""out=: results have the bits of the allocating call; a refused call writes nothing."""

import itertools
from functools import partial

import fake_cupy
import numpy as np
import pytest
from compare import KERNEL, bits, normal, words
from conftest import LIBS
from numpy.lib.stride_tricks import as_strided
from refusals import refusals, refused
from ropes import BASIC, ropes_of

import rope_array as ra
from rope_array import ArrayTypeError, PositionError, ShapeError
from rope_array._array_api import out as _out
from rope_array._array_api.library import CuPy
from rope_array._backends import _native

WRITES = pytest.mark.without("strict", "dask", "jax")
NUMPY, TORCH = pytest.mark.library("numpy"), pytest.mark.library("torch")
ROPES = ropes_of(*BASIC, "no features", "float32 angles")
ROPE = ROPES["half"]
POS = [3, -1, 70_000, 2**31 - 1, 5]
# A list, which Python reads; a range and an int, which the kernel reads.
POSITIONS = (POS, range(5), 7)
values = partial(normal, "numpy", dtype="float64")


def filled(lib, *shape, dtype="float32"):
    """Return an array of sevens, which differs from every result."""
    return lib.asarray(np.full(shape, 7.0), dtype)


def backends_of(lib):
    names = ("native", "torch") if lib.name == "torch" else ("native",)
    return [None, *names[_native.kernel is None :], "array-api"]


def entries(rope, pos, like):
    """Yield functions of x, `out` and `backend`: by positions and by tables, forwards and back."""
    yield partial(rope.apply, pos=pos)
    yield partial(rope.apply, pos=pos, inverse=True)
    rotation = rope.rotation(pos, like=like)
    yield from (rotation.apply, rotation.inverse().apply, rotation.adjoint().apply)


def refuses(error, words, call, *buffers):
    """Check that a call is refused by this error, and that it wrote to none of the buffers."""
    before = [bits(buffer) for buffer in buffers]
    refused(error, words, call)
    assert [bits(buffer) for buffer in buffers] == before


# ---- valid calls ----


def check(lib, rope, pos, shape, cut, dtype="float32"):
    """Rotate x into out, and x in place, where `cut` makes x and out of a buffer of this shape."""
    like = normal(lib, 1, 16, dtype=dtype)
    for backend, entry in itertools.product(backends_of(lib), entries(rope, pos, like)):
        buffer, untouched = normal(lib, *shape, dtype=dtype), normal(lib, *shape, dtype=dtype)
        x, out = cut(buffer)
        call = partial(entry, x, backend=backend)
        before, expected = bits(x), bits(call())
        assert call(out=out) is out
        assert bits(out) == expected
        assert bits(x) == before
        assert call(out=x) is x
        assert bits(x) == expected
        for view in (*cut(buffer), *cut(untouched)):
            view[...] = 7
        assert bits(buffer) == bits(untouched)  # nothing outside the views is written


def apart(buffer):
    """Return two arrays with memory of their own."""
    return buffer[0], buffer[1]


@WRITES
@pytest.mark.parametrize("name", ROPES)
def test_the_result_is_written_with_the_bits_of_the_allocating_call(lib, float_dtype, name):
    check(lib, ROPES[name], POS, (2, 2, 5, 16), apart, float_dtype)


SEVERAL = ra.RoPE(16, axes=ra.Axes.interleaved(4, 2, 2))
CALLS = [  # of ropes, positions and shapes of x
    *((ROPE, pos, (2, 5, 16)) for pos in (3, 2.5, range(5), [0.5, 1, 2, 3, 4])),
    *((ROPE, np.arange(5, dtype=name), (2, 5, 16)) for name in ("int32", "int64", "uint8", "float64")),
    *((ROPE, 3, shape) for shape in ((0, 16), (2, 0, 16), (16,), (1, 1, 16))),
    *((ROPE, POS, shape) for shape in ((0, 5, 16), (5, 0, 5, 16))),
    (SEVERAL, np.arange(15).reshape(5, 3), (2, 5, 16)),
]


@WRITES
@pytest.mark.parametrize(("rope", "pos", "shape"), CALLS, ids=words)
def test_positions_and_shapes_of_every_kind(lib, rope, pos, shape):
    check(lib, rope, lib.asarray(pos) if isinstance(pos, np.ndarray) else pos, (2, *shape), apart)


# The shape of a buffer, and x and out as views of it.
VIEWS = {
    "sequence before heads": ((2, 2, 5, 3, 16), lambda b: apart(b.swapaxes(2, 3))),
    "a slice of features": ((2, 2, 3, 5, 41), lambda b: apart(b[..., 9:25])),
    "features first": ((2, 16, 3, 5), lambda b: apart(b.swapaxes(1, 3).swapaxes(1, 2))),
    # Two views that interleave without a byte in common.
    "features": ((5, 32), lambda b: (b[..., ::2], b[..., 1::2])),
    "heads of a joint q, k, v": ((5, 9, 16), lambda b: (b[:, :3].swapaxes(0, 1), b[:, 3:6].swapaxes(0, 1))),
    "axes of one": ((2, 1, 5, 1, 16), lambda b: apart(b.swapaxes(2, 3))),
}


@WRITES
@pytest.mark.parametrize("name", VIEWS)
def test_views(lib, name):
    check(lib, ROPES["plain"], POS, *VIEWS[name])
    for pos, dtype in ((range(5), "float32"), (7, "float16"), (POS, "float64")):
        check(lib, ROPES["partial"], pos, *VIEWS[name], dtype)


@WRITES
def test_in_place_by_another_view_of_the_same_elements(lib):
    """The stride of an axis with one element does not matter."""
    for backend in backends_of(lib):
        buffer = normal(lib, 4, 5, 16)
        x, out = buffer[::2][:1], buffer[:1]
        expected = bits(ROPE.apply(x, POS, backend=backend))
        ROPE.apply(x, POS, out=out, backend=backend)
        assert bits(x) == expected


@WRITES
def test_one_liners_write_into_out(lib):
    x, out = normal(lib, 5, 16), filled(lib, 5, 16)
    assert ra.apply(x, POS, pairing="half", base=500_000.0, out=out) is out
    assert bits(out) == bits(ROPE.apply(x, POS))


@WRITES
def test_a_tuple_for_a_tuple(lib):
    """One call writes in place and into another array; heads and dtypes differ."""
    for backend, dtypes in itertools.product(
        backends_of(lib), (["float32"] * 3, ["float32", "float16", "float64"])
    ):
        heads_and_dtypes = [*zip((4, 1, 2), dtypes, strict=True)]
        xs = tuple(normal(lib, 2, heads, 5, 16, dtype=dtype, seed=heads) for heads, dtype in heads_and_dtypes)
        for entry in [*entries(ROPES["partial"], POS, xs[0])][: 5 if len({*dtypes}) == 1 else 2]:
            before, expected = bits(xs[1]), bits(entry(xs, backend=backend))
            outs = (xs[0], filled(lib, 2, 1, 5, 16, dtype=dtypes[1]), xs[2])
            assert entry(xs, out=outs, backend=backend) is outs
            assert bits(outs) == expected
            assert bits(xs[1]) == before


@WRITES
def test_tuples_of_one_and_of_one_x_twice(lib):
    x, outs = normal(lib, 5, 16), (filled(lib, 5, 16), filled(lib, 5, 16))
    expected = bits(ROPE.apply(x, POS))
    ROPE.apply((x, x), POS, out=outs)
    assert bits(outs) == (expected, expected)
    assert ROPE.apply((x,), POS, out=(alone := (x,))) is alone
    assert bits(x) == expected


@NUMPY
def test_memory_maps(tmp_path):
    expected = ROPE.apply(values(5, 16).astype("float32"), POS)
    for backend in (None, "array-api"):
        x, out = (np.memmap(tmp_path / name, "float32", "w+", shape=(5, 16)) for name in ("x", "out"))
        x[...] = values(5, 16)
        call = partial(ROPE.apply, x, POS, backend=backend)
        kept = [rope.apply(x, POS, backend=backend) for rope in ROPES.values()]
        assert not any(isinstance(y, np.memmap) or np.may_share_memory(y, x) for y in kept)
        for y in (call(), call(out=out), call(out=x)):
            np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(out, x)
        refuses(ArrayTypeError, ["read-only"], partial(call, out=read_only(out)))


@NUMPY
def test_the_other_byte_order():
    """Results keep it; it is another dtype than the native order, though both have the name float32."""
    x, out = values(5, 16).astype(">f4"), np.zeros((5, 16), ">f4")
    assert ROPE.apply(x, POS, out=out) is out
    assert np.array_equal(out, ROPE.apply(x, POS))
    assert np.array_equal(ROPE.apply(x, POS, out=x), out)
    for backend in backends_of(LIBS["numpy"]):
        call = partial(ROPE.apply, x.astype("<f4"), POS, out=out, backend=backend)
        refuses(ArrayTypeError, [">f4", "dtype"], call, out)


# ---- errors ----


def strided(lib, memory, shape, strides):
    """Return a view with strides in elements."""
    if lib.name == "torch":
        return memory.as_strided(shape, strides, memory.storage_offset())
    return as_strided(memory, shape, [memory.itemsize * stride for stride in strides])


def named_arrays(lib):
    """Return arrays by name: a, b and c are parts of one buffer, as `near` is of a and b."""
    buffer = normal(lib, 3, 5, 16)
    return {
        "a": buffer[0],
        "b": buffer[1],
        "c": buffer[2],
        "d": normal(lib, 5, 16),
        "near": buffer.reshape(-1)[8:88].reshape(5, 16),
        "rows": normal(lib, 6, 16),
        "cube": normal(lib, 5, 5, 16),
        "wide": normal(lib, 5, 31),
        "narrow": normal(lib, 5, 6),
        "longer": filled(lib, 1, 5, 16),
        "double": filled(lib, 5, 16, dtype="float64"),
        "integers": lib.asarray(np.zeros((5, 16)), "int32"),
        "one_row": strided(lib, buffer, (5, 16), (0, 1)),
        "close": strided(lib, buffer, (5, 16), (15, 1)),
    }


@WRITES
@refusals("out")
def test_wrong_results_are_refused(lib, call, error, words):
    """By positions that Python reads and that the kernel reads, and by tables."""
    arrays = named_arrays(lib)
    x, out = eval(call, {**arrays})
    ROPE.apply(arrays["d"], range(5))  # prepares the plan: the kernel's fast entry declines calls before it
    for pos, backend in itertools.product(POSITIONS, backends_of(lib)):
        for entry in entries(ROPE, pos, arrays["d"]):
            refuses(error, words, partial(entry, x, out=out, backend=backend), *arrays.values())


@WRITES
def test_overlap_with_the_positions(lib):
    """test_out_overlap.py has positions at every place."""
    x, second = normal(lib, 5, 16, dtype="float64"), filled(lib, 5, 16, dtype="float64")
    for dtype, backend in itertools.product(("int64", "int32", "float32"), backends_of(lib)):
        buffer = lib.asarray(np.zeros(5 * 16 * 8, np.uint8), "uint8")
        out, pos = buffer.view(lib.dtype("float64")).reshape(5, 16), buffer.view(lib.dtype(dtype))[10:15]
        for of, into, name in ((x, out, "out"), ((x, x), (second, out), "out[1]")):
            call = partial(ROPE.apply, of, pos, out=into, backend=backend)
            refuses(ArrayTypeError, [f"{name} shares memory with the positions"], call, buffer, second, x)


@WRITES
@pytest.mark.parametrize("table", ["cos", "sin"])
def test_overlap_with_the_tables(lib, table):
    """The kernel reads contiguous tables itself, and checks the overlap itself."""
    x, buffer, says = normal(lib, 5, 16), filled(lib, 7 * 16), ["shares memory with the positions or tables"]
    rotation, out = ROPE.rotation(POS, like=x), buffer[16:96].reshape(5, 16)
    for at, backend in itertools.product((0, 40, 72), backends_of(lib)):
        inside = buffer[at : at + 40].reshape(5, 8)
        inside[...] = getattr(rotation, table)
        changed = rotation._replace(**{table: inside})
        refuses(ArrayTypeError, says, partial(changed.apply, x, out=out, backend=backend), buffer)
    assert bits(changed.apply(x, out=filled(lib, 5, 16))) == bits(rotation.apply(x))


def read_only(array):
    array.flags.writeable = False
    return array


@NUMPY
def test_read_only_results():
    x, second, out = values(5, 16), values(5, 16), read_only(values(5, 16))
    frozen = np.frombuffer(bytes(8 * 5 * 16)).reshape(5, 16)
    ROPE.apply(x, range(5))  # prepares the plan: the kernel's fast entry declines calls before it
    for pos, backend in itertools.product(POSITIONS, backends_of(LIBS["numpy"])):
        for entry in entries(ROPE, pos, x):
            for of, into in ((x, out), ((x, x), (second, out)), (out, out), (frozen, frozen)):
                call = partial(entry, of, out=into, backend=backend)
                refuses(ArrayTypeError, ["read-only", "give"], call, out, second)


# Strides, in elements, of two nested arrays of shape (2,) * 11, found by random search: NumPy's solver does
# not decide their overlap in 100,000 steps.
HARD_OUT = (47470, 23731, 11879, 5950, 2953, 1483, 745, 384, 195, 80, 60)
HARD_X = (25169, 12607, 6293, 3139, 1572, 789, 409, 196, 87, 61, 9)


@WRITES
def test_overlap_that_takes_too_long_to_decide(lib):
    buffer, rope = filled(lib, 100_000), ra.RoPE(2)
    out, x = strided(lib, buffer, (2,) * 11, HARD_OUT), strided(lib, buffer[1:], (2,) * 11, HARD_X)
    if lib.name == "numpy":
        with pytest.raises(np.exceptions.TooHardError):
            np.shares_memory(out, x, max_work=100_000)
    for backend in backends_of(lib):
        call = partial(rope.apply, x, 3, out=out, backend=backend)
        refuses(ArrayTypeError, ["out may share memory with x", "give memory apart"], call, buffer)


@WRITES
def test_positions_and_backends_are_checked_before_anything_is_written(lib):
    x, out = normal(lib, 5, 16), filled(lib, 5, 16)
    wrong = [
        (10**30, PositionError),
        (float("nan"), PositionError),
        ([0, 1], ShapeError),
        (True, ArrayTypeError),
    ]
    calls = [(error, {"pos": pos, "backend": b}) for pos, error in wrong for b in backends_of(lib)]
    calls += [(ra.BackendError, {"pos": POS, "backend": name}) for name in ("jax", "dask", "nothing")]
    for (error, options), into in itertools.product(calls, (x, out)):
        refuses(error, [], partial(ROPE.apply, x, out=into, **options), out, x)


@pytest.mark.without("numpy", "torch")
def test_libraries_that_are_not_written_into(lib):
    with lib.running():
        x, out = normal(lib, 5, 16), filled(lib, 5, 16)
        pos = lib.asarray(np.arange(5, dtype=np.int32))
        apply, by_tables = partial(ROPE.apply, pos=pos), ROPE.rotation(pos, like=x).apply
        for into in (x, out):
            for call in (
                partial(apply, x, out=into),
                partial(apply, x, out=into, backend="array-api"),
                partial(apply, (x, x), out=(into, into)),
                partial(by_tables, x, out=into),
            ):
                refuses(ArrayTypeError, ["not written into", "NumPy, PyTorch and CuPy"], call, out, x)


@pytest.mark.without("numpy")
def test_arrays_of_another_library_are_no_result(lib):
    with lib.running():
        theirs, ours = normal(lib, 5, 16), values(5, 16).astype("float32")
        for x, out in ((theirs, ours), (ours, theirs)):
            with pytest.raises(ArrayTypeError, match=r"out is|not written into"):
                ROPE.apply(x, POS, out=out)
        assert bits(theirs) == bits(normal(lib, 5, 16))
        assert np.array_equal(ours, values(5, 16).astype("float32"))


@NUMPY
def test_subclasses_that_are_no_result():
    x = values(5, 16)
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix(values(5, 16))
    for word, out in (("masked", np.ma.masked_array(values(5, 16), mask=x > 0)), ("matrix", matrix)):
        refuses(ArrayTypeError, [word], partial(ROPE.apply, x, POS, out=out), np.asarray(out))


# ---- PyTorch ----


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


TORCH_BACKENDS = pytest.mark.parametrize("backend", backends_of(LIBS["torch"]))


@TORCH
@TORCH_BACKENDS
def test_gradients_that_are_recorded(torch, backend):
    """Autograd would raise after the kernel has written, or lose the gradient."""
    x, out, says = torch.randn(5, 16), torch.zeros(5, 16), ["requires a gradient"]
    recorded, leaves = torch.randn(5, 16, requires_grad=True), torch.randn(5, 3, 16, requires_grad=True)
    inner, view, of_several = recorded * 2, leaves[:, 0], (leaves * 1).unbind(1)[0]
    viewed = inner.view(5, 16)  # the same numbers, in another tensor
    for of, into in (
        *((recorded, out), (inner, out), (recorded, recorded), (inner, viewed), (x, recorded), (x, inner)),
        *((view, view), (of_several, of_several)),
    ):
        for entry in entries(ROPE, POS, x):
            call = partial(entry, of, out=into, backend=backend)
            refuses(ArrayTypeError, [*says, "no_grad"], call, of, into)
    pos = torch.arange(5.0, requires_grad=True)
    refuses(ArrayTypeError, says, partial(ROPE.apply, x, pos, out=out), out)
    learned = ROPE.rotation(pos, like=x)
    for of, into in ((x, out), (inner, inner)):
        refuses(ArrayTypeError, says, partial(learned.apply, of, out=into), into)


# Queries, keys or both: views of the tensor of q, k and v, and tensors of their own.
RECORDED = {
    "a tensor": lambda qkv: (qkv[:, 0].clone(),),
    "a view": lambda qkv: (qkv[:, 0],),
    "a transposed view": lambda qkv: (qkv[:, 0].mT.contiguous().mT,),
    "two views": lambda qkv: (qkv[:, 0], qkv[:, 1]),
    "one of two": lambda qkv: (qkv[:, 0], qkv.detach()[:, 1].clone()),
}


@TORCH
@TORCH_BACKENDS
@pytest.mark.parametrize("name", RECORDED)
def test_in_place_while_a_gradient_is_recorded(torch, name, backend):
    """The gradient equals an allocating call's, which the suite judges; the values keep their gradient."""
    numbers, weight = torch.randn(5, 3, 16), torch.randn(5, 16)
    for call in (partial(ROPE.apply, pos=POS), ROPE.rotation(POS, like=numbers).apply):
        pairs = []
        for in_place in (False, True):
            leaf = numbers.clone().requires_grad_()
            qkv = leaf * 2
            xs = RECORDED[name](qkv)
            ys = call(xs, out=xs if in_place else None, backend=backend)
            assert [y.requires_grad for y in ys] == [x.requires_grad for x in xs]
            (sum((y * weight).sum() for y in ys) + qkv[:, 2].sum()).backward()
            pairs.append((*(y.detach() for y in ys), leaf.grad))
        assert ys is xs
        # Recorded in another order, sums of float32 may differ in their last bit.
        torch.testing.assert_close(pairs[1], pairs[0], rtol=0, atol=2.0**-20)


@TORCH
@TORCH_BACKENDS
def test_without_recording_gradients_all_is_written(torch, backend):
    plain = torch.randn(5, 16)
    for wrapped in (lambda a: a.requires_grad_(), torch.nn.Parameter):
        leaf, out = wrapped(plain.clone()), torch.zeros(5, 16)
        with torch.no_grad():
            assert ROPE.apply(leaf, POS, out=out, backend=backend) is out
            assert ROPE.apply(leaf, POS, out=leaf, backend=backend) is leaf
        assert bits(out)[2] == bits(leaf)[2] == bits(ROPE.apply(plain, POS, backend=backend))[2]
        assert leaf.requires_grad
        assert leaf.is_leaf


@TORCH
@TORCH_BACKENDS
def test_a_tensor_saved_for_a_gradient_and_then_overwritten_is_noticed(torch, backend):
    fresh, apply = partial(torch.randn, 5, 16), partial(ROPE.apply, backend=backend)
    for call in (
        lambda x: apply(x, POS, out=x),
        lambda x: apply(x, 3, out=x),
        lambda x: apply(fresh(), torch.arange(5), out=x),
        lambda x: apply((fresh(), fresh()), POS, out=(fresh(), x)),
        lambda x: apply(x[1:], POS[1:], out=x[1:]),
        lambda x: ROPE.rotation(POS, like=x).apply(x, out=x, backend=backend),
    ):
        x, weight = fresh(), fresh(requires_grad=True)
        product, version = (x * weight).sum(), x._version
        call(x)
        assert x._version > version
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


def refused_or_right(torch, call, out, expected, error=ArrayTypeError):
    """Assert that the call writes `expected`, or raises and leaves out unchanged."""
    before = out.clone()
    try:
        call()
    except error:
        expected = before
    assert torch.equal(out, expected)


@TORCH
@TORCH_BACKENDS
def test_inference_tensors(torch, backend):
    """Inference mode writes them; outside of it the call raises, or writes the right result."""
    x, outside = torch.randn(5, 16), torch.zeros(5, 16)
    expected = ROPE.apply(x, POS, backend=backend)
    with torch.inference_mode():
        out, copy = torch.zeros(5, 16), x.clone()
        assert ROPE.apply(x, POS, out=out, backend=backend) is out
        assert torch.equal(out, expected)
        assert ROPE.apply(out, POS, out=out, backend=backend) is out
    call = partial(ROPE.apply, x, POS, out=out, backend=backend)
    refused_or_right(torch, call, out, expected, (RuntimeError, ArrayTypeError))
    assert ROPE.apply(copy, POS, out=outside, backend=backend) is outside


@TORCH
@KERNEL
def test_the_kernel_serves_inference_mode(torch, runs):
    """It counts the writes to ordinary tensors; tensors of inference mode have no count."""
    rotation, x = ROPE.rotation(POS, like=torch.ones(1)), torch.randn(5, 16)
    ordinary, weight = torch.randn(5, 16), torch.randn(5, 16, requires_grad=True)
    product, version = (ordinary * weight).sum(), ordinary._version
    with torch.inference_mode():
        mixed = torch.randn(5, 16), ordinary
        for call in (
            partial(ROPE.apply, mixed, torch.arange(5), out=mixed),
            partial(rotation.apply, mixed, out=mixed),
            partial(ROPE.apply, (x, x), 3, out=mixed),
            partial(ROPE.apply, mixed[0], range(5), out=mixed[0]),
        ):
            runs.clear()
            expected = bits(call.func(*call.args))
            assert bits(call()) == expected
            assert len(runs) == 2
    assert ordinary._version == version + 3
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    outs = x, mixed[0]
    refuses(ArrayTypeError, ["inference_mode"], partial(ROPE.apply, (x, x.clone()), 3, out=outs), x)


@TORCH
def test_tensors_without_memory_of_their_own(torch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    x, out, meta = torch.randn(5, 16), torch.zeros(5, 16), torch.empty(5, 16, device="meta")
    tagged = out.as_subclass(type("Tagged", (torch.Tensor,), {}))
    for of, into, says in (
        *((x, meta, "meta"), (meta, meta, "meta"), (meta, out, "meta")),
        *((x, out.to_sparse(), "sparse"), (x, tagged, "Tagged")),
    ):
        with pytest.raises(ArrayTypeError, match=says):
            ROPE.apply(of, POS, out=into)
    with FakeTensorMode() as mode, pytest.raises(ArrayTypeError, match="FakeTensor"):
        ROPE.apply(torch.randn(5, 16), POS, out=torch.zeros(5, 16))
    fake = mode.from_tensor(torch.randn(5, 16))
    for into in (fake, out):
        with pytest.raises((ArrayTypeError, RuntimeError)):
            ROPE.apply(fake, POS, out=into)


@TORCH
@pytest.mark.parametrize("backend", [None, "torch", "array-api"])
def test_lazily_negated_results_and_results_without_storage(torch, backend):
    """The memory of a negated view has the opposite signs; the address of PyTorch's tensor of zeros is 0."""
    x = torch.randn(5, 16)
    out, negated = (torch.view_as_complex(torch.randn(5, 16, 2)).conj().imag for _ in range(2))
    assert out.is_neg()
    for call in (partial(ROPE.apply, pos=range(5)), ROPE.rotation(POS, like=x).apply):
        for of, into in ((x, out), (negated, negated), (x, torch._efficientzerotensor(5, 16))):
            expected = call(of, backend=backend)
            refused_or_right(torch, partial(call, of, out=into, backend=backend), into, expected)


@TORCH
def test_wrapped_tensors(torch):
    """In a functorch transform, a wrapper has no memory of its own."""
    x, captured = torch.randn(5, 16), torch.zeros(5, 16)
    expected = ROPE.apply(x, POS, backend="torch")

    def into(make):
        return lambda x: ROPE.apply(x, POS, out=make())

    func = torch.func
    for rotate in (into(lambda: torch.zeros(5, 16)), into(lambda: captured)):
        for transformed in (
            lambda f=rotate: func.vmap(f)(x[None])[0],
            lambda f=rotate: func.jvp(f, (x,), (x,))[1],
            lambda f=rotate: func.grad(lambda x: (f(x) * x).sum())(x),
            lambda f=rotate: func.functionalize(f)(x),
        ):
            try:
                y = transformed()
            except ArrayTypeError:
                assert not captured.any()
            else:
                assert torch.allclose(y, expected, atol=1e-6)
                captured.zero_()


@TORCH
def test_forward_mode_tangents_are_written_too(torch):
    fw = torch.autograd.forward_ad
    x, tangent = torch.randn(5, 16), torch.randn(5, 16)
    expected = ROPE.apply(tangent, POS, backend="torch")
    with fw.dual_level():
        out = torch.zeros(5, 16)
        ROPE.apply(fw.make_dual(x, tangent), POS, out=out)
        assert torch.equal(fw.unpack_dual(out).tangent, expected)
        in_place = fw.make_dual(x.clone(), tangent.clone())
        ROPE.apply(in_place, POS, out=in_place)
        assert torch.equal(fw.unpack_dual(in_place).tangent, expected)
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
    again = torch.from_numpy(memory[:5])
    ROPE.apply(x, POS, out=again)  # the same memory, by another tensor: in place


# ---- CuPy, without a GPU ----


@NUMPY
def test_results_on_the_device_are_held_to_the_same_rules():
    library = CuPy("cupy", np)
    library.is_array = lambda value: isinstance(value, fake_cupy.ndarray)
    library.same_device = lambda a, b: True
    memory = np.zeros((3, 5, 16), np.float32)
    x, apart, tables = map(fake_cupy.ndarray, memory)
    assert _out.check_outs(apart, x, (x,), (), library) == (apart,)
    assert _out.check_outs(x, x, (x,), (3,), library) == (x,)
    for out, operands, says in (
        (memory.reshape(-1)[1:81].reshape(5, 16), (), "out shares memory with x"),
        (as_strided(memory[1], (5, 16), (0, 4)), (), "share memory"),
        (read_only(memory[1].view()), (), "read-only"),
        (memory[2], (apart, tables), "the positions or tables"),
    ):
        with pytest.raises(ArrayTypeError, match=says):
            _out.check_outs(fake_cupy.ndarray(out), x, (x,), operands, library)
