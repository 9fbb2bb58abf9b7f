"""Shapes, dtypes, memory and kinds of positions of `apply`, on every library."""

import itertools

import numpy as np
import pytest
from compare import array_and_values, values, words

import rope_array as ra
from rope_array.testing import apply_definition
from rope_array.testing._contract import assert_contract

B, H, S, D = 2, 3, 5, 8


def close(y, x, pos, **fields):
    assert_contract(values(y), x, pos, dtype="float32", **fields)


def positions(lib, pos):
    pos = np.asarray(pos)
    return lib.asarray(pos.astype(np.int32) if lib.name == "jax" and pos.dtype == np.int64 else pos)


# The shape rule: for x of these axes and seq_axis, all these shapes of pos.
RULE = [
    ((D,), -2, [()]),
    ((S, D), -2, [(), (1,), (S,)]),
    ((B, H, S, D), -2, [(), (1,), (S,), (1, S), (B, S), (B, 1), (B, H, S), (1, H, 1), (B, 1, S), (1, 1, 1)]),
    ((B, S, H, D), -3, [(), (S,), (B, S), (B, 1), (1, S), (B, H, S), (1, H, S)]),
    ((S, B, H, D), 0, [(), (S,), (B, S), (B, H, S), (B, 1, 1)]),
    ((B, S, H, D), 1, [(S,), (B, S)]),
    ((B, H, 2, S, D), -2, [(S,), (B, S), (B, H, S), (B, H, 2, S)]),
]


def brute_force(x, pos, seq_axis, **fields):
    """Follow the documented shape rule element by element: one vector and one position at a time."""
    axis = seq_axis % x.ndim
    lead = [a for a in range(x.ndim - 1) if a != axis]
    y = np.empty_like(x)
    for index in itertools.product(*map(range, x.shape[:-1])):
        wanted = [index[a] for a in lead[: max(0, pos.ndim - 1)]] + ([index[axis]] if pos.ndim else [])
        place = tuple(i if size > 1 else 0 for i, size in zip(wanted, pos.shape, strict=True))
        y[index] = apply_definition(x[index], int(pos[place]), **fields)
    return y


@pytest.mark.parametrize(("shape", "seq_axis", "pos_shapes"), RULE, ids=words)
def test_shape_rule(lib, shape, seq_axis, pos_shapes):
    x, exact = array_and_values(lib, "float32", *shape)
    for i, pos_shape in enumerate(pos_shapes):
        pos = np.random.default_rng(i).integers(-1000, 1000, pos_shape)
        y = ra.apply(x, positions(lib, pos), seq_axis=seq_axis)
        want = brute_force(exact, pos, seq_axis)
        assert_contract(lib.to_numpy(y), exact, 0, dtype="float32", exact=want)


POSITION_DTYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float32", "float64"]


@pytest.mark.parametrize("dtype", POSITION_DTYPES)
def test_position_dtypes(lib, dtype):
    if lib.name == "jax" and dtype in ("int64", "float64"):
        return  # JAX has them with x64 alone: test_jax.py
    x, exact = array_and_values(lib, "float32", 4, D)
    pos = np.array([0, 1, 50, 127], dtype=dtype)
    if dtype.startswith("float"):
        pos += np.array(0.25, dtype=dtype)
    if dtype == "uint32":
        pos[3] = 2**32 - 1
    close(ra.apply(x, lib.asarray(pos)), exact, pos)


@pytest.mark.library("jax")
def test_all_of_uint32_from_numpy_in_jax(lib):
    x, exact = array_and_values(lib, "float32", 3, D)
    pos = np.array([0, 2**31, 2**32 - 1], dtype=np.uint32)
    close(ra.apply(x, pos), exact, pos)


@pytest.mark.parametrize(
    "pos",
    [7, -7, 2.5, True + 1, range(5), range(9, -1, -2), [4, 3, 2, 1, 0], (1, 2, 3, 4, 5), [0.5, 1, 2, 3, 4]],
    ids=repr,
)
def test_positions_of_the_host(lib, pos):
    x, exact = array_and_values(lib, "float32", B, S, D)
    close(ra.apply(x, pos), exact, [*pos] if isinstance(pos, range) else pos)


def test_positions_that_are_numpy_scalars(lib):
    x, exact = array_and_values(lib, "float32", B, S, D)
    for pos in (np.int64(5), np.int8(-5), np.uint32(5), np.float32(2.5), np.float64(2.5)):
        close(ra.apply(x, pos), exact, pos.item())
    close(ra.apply(x, [np.int64(k) for k in range(5)]), exact, [*range(5)])


def test_nested_sequences(lib):
    x, exact = array_and_values(lib, "float32", B, H, S, D)
    pos = [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14]]
    close(ra.apply(x, pos), exact, pos)


def test_dtype_shape_and_library_are_kept(lib, float_dtype):
    x, _ = array_and_values(lib, float_dtype, B, S, D)
    y = ra.apply(x, range(S))
    assert type(y) is type(x)
    assert y.dtype == x.dtype
    assert tuple(y.shape) == tuple(x.shape)


@pytest.mark.parametrize(
    "shape", [(0, S, D), (B, 0, D), (0, 0, D), (1, 1, D), (1, S, D), (B, 1, D), (B, S, 2)]
)
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_zero_size_and_size_one(lib, shape, pairing):
    x, exact = array_and_values(lib, "float32", *shape)
    y = ra.apply(x, range(shape[-2]), pairing=pairing)
    assert tuple(y.shape) == shape
    if exact.size:
        close(y, exact, [*range(shape[-2])], pairing=pairing)


def test_tuples_with_other_heads_and_dtypes(lib):
    shapes = [(B, 4, S, D), (B, 1, S, D), (B, 2, S, D)]
    dtypes = [lib.dtypes[0], lib.dtypes[-1], "float32"]
    kinds = enumerate(zip(shapes, dtypes, strict=True))
    arrays = [array_and_values(lib, d, *s, seed=i) for i, (s, d) in kinds]
    ys = ra.apply(tuple(x for x, _ in arrays), range(S), pairing="half")
    assert type(ys) is tuple
    for y, (x, exact), dtype in zip(ys, arrays, dtypes, strict=True):
        assert y.dtype == x.dtype
        assert_contract(lib.to_numpy(y), exact, [*range(S)], dtype=dtype, pairing="half")


def test_a_tuple_of_one_is_a_tuple(lib):
    x, _ = array_and_values(lib, "float32", S, D)
    (y,) = ra.apply((x,), range(S))
    np.testing.assert_array_equal(lib.to_numpy(y), lib.to_numpy(ra.apply(x, range(S))))


SPECS = [{}, {"rotary_dim": 0}, {"rotary_dim": 4}, {"rotary_dim": 4, "rotary_start": 2, "pairing": "half"}]


@pytest.mark.parametrize("spec", SPECS, ids=words)
def test_x_is_not_written_and_not_aliased(lib, float_dtype, spec):
    x, before = array_and_values(lib, float_dtype, B, S, D)
    y = ra.apply(x, range(S), **spec)
    np.testing.assert_array_equal(lib.to_numpy(x).astype(np.float64), before)
    if lib.name in ("numpy", "torch"):
        kept = lib.to_numpy(y).copy()
        x[...] = 7
        np.testing.assert_array_equal(lib.to_numpy(y), kept)


def test_rotary_dim_zero_is_the_identity(lib, float_dtype):
    x, _ = array_and_values(lib, float_dtype, B, S, D)
    np.testing.assert_array_equal(lib.to_numpy(ra.apply(x, range(S), rotary_dim=0)), lib.to_numpy(x))


def test_position_zero_is_the_identity_to_the_bit(lib, float_dtype):
    x, _ = array_and_values(lib, float_dtype, B, S, D)
    np.testing.assert_array_equal(lib.to_numpy(ra.apply(x, 0)), lib.to_numpy(x))


def test_the_array_api_backend_by_name(lib, float_dtype):
    x, exact = array_and_values(lib, float_dtype, B, S, D)
    y = ra.apply(x, range(S), backend="array-api", pairing="half")
    assert_contract(lib.to_numpy(y), exact, [*range(S)], dtype=float_dtype, pairing="half")


@pytest.mark.library("strict")
def test_another_device_is_kept_in_strict(lib):
    device = lib.xp.Device("device1")
    x, exact = array_and_values(lib, "float32", B, S, D)
    x, pos = (lib.xp.asarray(a, device=device) for a in (x, lib.asarray(np.arange(S))))
    rope = ra.RoPE(D, rotary_dim=4)
    for y in (rope.apply(x, pos), rope.apply(x, range(S)), rope.rotation(pos, like=x).apply(x)):
        assert y.device == device
        assert_contract(
            np.from_dlpack(lib.xp.asarray(y, device=lib.xp.Device("CPU_DEVICE"))),
            exact,
            [*range(S)],
            rotary_dim=4,
        )
    assert rope.matrix(pos, like=x).device == device


@pytest.mark.library("jax", "torch", "dask")
def test_a_backend_is_chosen_by_name(lib):
    x, exact = array_and_values(lib, "float32", B, S, D)
    close(ra.apply(x, range(S), backend=lib.name), exact, [*range(S)])


def test_one_liner_equals_rope(lib):
    x, _ = array_and_values(lib, "float32", B, S, D)
    rope = ra.RoPE(head_dim=D, base=500.0, pairing="half", rotary_dim=4)
    want = lib.to_numpy(rope.apply(x, range(S)))
    fields = {"base": 500.0, "pairing": "half", "rotary_dim": 4}
    for y in (
        ra.apply(x, range(S), rope),
        ra.apply(x, range(S), **fields),
        ra.apply(x, range(S), head_dim=D, **fields),
    ):
        np.testing.assert_array_equal(lib.to_numpy(y), want)


class TestNumPyMemory:
    """Memory layouts that only NumPy has."""

    POS = np.arange(S)

    def check(self, x, pos=POS, **kwargs):
        before = np.array(x)
        y = ra.apply(x, pos, **kwargs)
        assert_contract(y, before, pos, dtype=x.dtype.name, **kwargs)
        np.testing.assert_array_equal(np.asarray(x), before)
        assert not np.shares_memory(y, x)
        return y

    @pytest.fixture(params=["interleaved", "half"])
    def pairing(self, request):
        return request.param

    @pytest.fixture
    def x(self):
        return np.random.default_rng(0).standard_normal((B, S, D)).astype(np.float32)

    def test_strides(self, x, pairing):
        big = np.zeros((B, S, 3 * D), np.float32)
        big[..., ::3] = x
        self.check(big[..., ::3], pairing=pairing)

    def test_negative_strides(self, x, pairing):
        self.check(x[:, ::-1, ::-1], pairing=pairing)

    def test_fortran_order(self, x, pairing):
        self.check(np.asfortranarray(x), pairing=pairing)

    def test_broadcast(self, x, pairing):
        self.check(np.broadcast_to(x[:, :1], x.shape), pairing=pairing)
        self.check(np.broadcast_to(x[..., :1], x.shape), pairing=pairing)

    def test_read_only(self, x, pairing):
        x.flags.writeable = False
        self.check(x, pairing=pairing)

    def test_read_only_positions(self, x):
        pos = np.arange(S)
        pos.flags.writeable = False
        self.check(x, pos)

    def test_other_byte_order(self, x):
        y = self.check(x.astype(">f4"))
        assert y.dtype == np.dtype(">f4")
        self.check(x, self.POS.astype(">i8"))

    def test_memmap(self, x, tmp_path, pairing):
        mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=x.shape)
        mapped[...] = x
        self.check(mapped, pairing=pairing)

    def test_subclass(self, x):
        class Sub(np.ndarray):
            pass

        self.check(x.view(Sub))

    def test_no_floating_point_error_is_raised(self, x):
        with np.errstate(all="raise"):
            self.check(x, np.array([0, 1, -(2**31), 2**31 - 1, 12345]))
