"""The kernel moves rows of caches with the bits of array operations, which test_shift.py judges."""

import functools

import numpy as np
import pytest
from native_cases import (
    BF16,
    DTYPES,
    F32,
    RoPE,
    assert_same,
    each_level_and_thread_count,
    kernel,
    normal,
    uneven,
)

from rope_array import _dispatch
from rope_array._array_api.library import numpy_library
from rope_array._array_api.shift import KeyShift, shift_by_parts
from rope_array._array_api.source import Positions
from rope_array._backends.numpy import native
from rope_array.convert import shift_keys, shift_rope

pytestmark = pytest.mark.usefixtures("kernel_settings")

QUANTISED = [np.dtype("int8"), *([] if BF16 is None else [np.dtype("float8_e4m3fn")])]
POOLS = {  # the shape, and the rope
    "slots": ((73, 3, 24), RoPE(24, rotary_start=3, rotary_dim=10, attention_factor=1.3)),
    "pages": ((9, 8, 8, 128), RoPE(128, pairing="half")),
    "rows of MLA": ((73, 1, 576), RoPE(576, rotary_start=512, rotary_dim=64, out_pairing="half")),
    "odd rows": ((73, 2, 67), RoPE(67, rotary_start=1, rotary_dim=64, angles="float32")),
}


def pool_of(name, dtype, length=1):
    """Return random keys, of all bytes if they are quantised, and the larger array that they are in."""
    shape = (POOLS[name][0][0] * length, *POOLS[name][0][1:-1], POOLS[name][0][-1] + 7)
    of_bytes = np.random.default_rng(1).integers(0, 256, shape).astype("uint8")
    around = of_bytes.view(dtype) if dtype in QUANTISED else normal(shape, dtype)
    return around[..., 3:-4], around


def shift_of(name, pools, delta, count=41):
    """Return the shift of some slots in random order; some are below 0."""
    shape = pools[0].shape
    slots = np.random.default_rng(0).permutation(np.prod(shape[:-2]))[:count]
    slots[3::11] = -7
    source = Positions(delta, shift_rope(POOLS[name][1])._plan)
    return KeyShift(pools, np.where(np.arange(count) % 11 == 3, -7, slots), source, -3, pools[0].ndim > 3)


def by_array_operations(shift):
    shift_by_parts(shift, _dispatch.make_tables, _dispatch.rotate, numpy_library())


@pytest.mark.parametrize("dtype", [*DTYPES, *QUANTISED], ids=str)
@pytest.mark.parametrize("name", POOLS)
def test_rows_of_slots(name, dtype, level):
    for delta in (-37, range(41), uneven(41), normal(41)):
        (pool, around), (expected, expected_around) = pool_of(name, dtype), pool_of(name, dtype)
        by_array_operations(shift_of(name, (expected,), delta))
        shift = shift_of(name, (pool,), delta)
        assert native.shift_keys(shift._replace(slots=shift.slots.astype("int32"))) is shift.caches
        assert_same(around, expected_around, delta)


@pytest.mark.parametrize("name", ["pages", "rows of MLA"])
def test_layers_and_threads(name, monkeypatch):
    """Threads share tokens; the layers of a call share the angles."""
    kernel.share_out_from(0)
    expected, delta = pool_of(name, DTYPES[-1], 20)[0].copy(), uneven(1103)
    layers = [expected.copy() for _ in range(3)]
    by_array_operations(shift_of(name, (expected,), delta, 1103))
    for call in each_level_and_thread_count(monkeypatch):
        pools = tuple(layer.copy() for layer in layers)
        assert native.shift_keys(shift_of(name, pools, delta, 1103)) is pools
        assert_same(pools, (expected,) * 3, call)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
@pytest.mark.library("torch")
def test_tensors(mode):
    """A write is counted; slots may have strides. The first call prepares the plan for the fast entry."""
    import torch

    expected, delta = pool_of("pages", F32)[0].copy(), uneven(41)
    shift = shift_of("pages", (expected,), delta)
    with getattr(torch, mode)():
        pool, slots = torch.from_numpy(expected).clone(), torch.from_numpy(shift.slots.repeat(2))[::2]
        for calls in (1, 2):
            shift_keys(pool, torch.from_numpy(delta), POOLS["pages"][1], seq_axis=-3, slots=slots)
            by_array_operations(shift)
            assert_same(pool.numpy(), expected, calls)
            assert mode == "inference_mode" or pool._version == calls


@pytest.mark.parametrize("seq_axis", [-3, -2])
def test_pages_are_slots_of_more_heads(seq_axis, monkeypatch):
    """The second call is served before all checks."""
    pools, fast = [pool_of("pages", F32)[0] for _ in range(2)], native.try_fast_shift
    shift = functools.partial(shift_keys, delta=np.arange(4), rope=POOLS["pages"][1], seq_axis=seq_axis)
    shift(pools[0], pages=[7, -1, 0, 3])  # a list is served after the checks
    served = []
    monkeypatch.setattr(native, "try_fast_shift", lambda *call: served.append(fast(*call)) or served[-1])
    assert shift(pools[1], pages=np.array([7, -1, 0, 3])) is pools[1]
    assert served[0] is not NotImplemented
    assert_same(*pools)


DECLINED = {
    "a slot twice": ("slots", lambda slots: slots // 2),
    "a slot beyond the pool": ("slots", lambda slots: slots + 1),
    "features apart": ("caches", lambda caches: (caches[0][..., ::-1],)),
    "a broadcast pool": (
        "caches",
        lambda caches: (np.lib.stride_tricks.as_strided(caches[0], strides=(0, 96, 4)),),
    ),
    "a pool twice": ("caches", lambda caches: caches * 2),
    "pages or heads": ("seq_axis", lambda axis: -2),
    "another number of distances": ("source", lambda source: (source[0][1:], *source[1:])),
}


@pytest.mark.parametrize("case", DECLINED)
def test_a_declined_call_writes_nothing(case):
    pool, around = pool_of("slots", F32)
    shift, before, (field, change) = shift_of("slots", (pool,), uneven(41)), around.copy(), DECLINED[case]
    assert native.shift_keys(shift._replace(slots=shift.slots * 0 - 1)) is shift.caches  # prepares the plan
    call = shift._replace(**{field: change(getattr(shift, field))})
    assert native.try_fast_shift(*call[:-1]) is NotImplemented
    assert_same(around, before)
    assert native.try_fast_shift(*shift[:-1]) is not NotImplemented
