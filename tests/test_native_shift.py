"""The kernel shifts rows of caches in place, with the bits of a rotation of these rows."""

import numpy as np
import pytest
from native_cases import (
    BF16,
    DTYPES,
    F32,
    RoPE,
    by_array_api,
    each_level_and_thread_count,
    kernel,
    normal,
    uneven,
)

from rope_array._array_api.shift import KeyShift
from rope_array._array_api.source import Positions
from rope_array._backends import _native
from rope_array._backends.numpy import native
from rope_array.convert import shift_rope

pytestmark = pytest.mark.usefixtures("kernel_settings")

LIMITS = {np.dtype("int8"): (-128, 127)}
if BF16 is not None:
    LIMITS[np.dtype(pytest.importorskip("ml_dtypes").float8_e4m3fn)] = (-448, 448)
MLA = RoPE(576, rotary_start=512, rotary_dim=64)
POOLS = {  # the shape, the axis of slots, the rope
    "slots": ((73, 3, 24), -3, RoPE(24, rotary_start=3, rotary_dim=10, attention_factor=1.3)),
    "pages": ((9, 8, 8, 128), -3, RoPE(128, pairing="half")),
    "pages of heads": ((9, 3, 8, 32), -2, RoPE(32, pairing="interleaved", out_pairing="half")),
    "latent slots": ((73, 1, 576), -3, MLA),
    "latent pages": ((9, 8, 576), -2, MLA),
    "odd rows": ((73, 67), -2, RoPE(67, rotary_start=1, rotary_dim=64, angles="float32")),
}
TOKENS, SCALE = 41, 0.037
DISTANCES = {"one": -37, "range": range(TOKENS), "uneven": uneven(TOKENS), "floats": normal(TOKENS)}


def pool_of(name, dtype, length=1):
    """Return random keys, of all bytes if they are quantised, and the larger array that they are in."""
    shape, _, _ = POOLS[name]
    shape = (shape[0] * length, *shape[1:-1], shape[-1] + 7)
    of_bytes = np.random.default_rng(1).integers(0, 256, shape).astype("uint8")
    around = of_bytes.view(dtype) if dtype in LIMITS else normal(shape, dtype)
    return around[..., 3:-4], around


def slots_of(pool, axis, count=TOKENS):
    num_slots = pool.shape[axis] * (pool.shape[0] if axis + pool.ndim else 1)
    slots = np.random.default_rng(0).permutation(num_slots)[:count]
    return np.where(np.arange(count) % 11 == 3, -7, slots)


def rows_of(pool, axis):
    """Return a view of the slots of a pool in order, or of its pages and their slots."""
    return np.moveaxis(pool, axis, 1 if axis + pool.ndim else 0)


def shift_by_rows(pool, slots, delta, rope, scale, axis):
    rows, tokens = rows_of(pool, axis), np.flatnonzero(slots >= 0)
    at = slots[tokens] if axis + pool.ndim == 0 else np.divmod(slots[tokens], pool.shape[axis])
    delta = delta if isinstance(delta, int) else np.asarray(delta)[tokens]
    x = rows[at] if pool.dtype not in LIMITS else rows[at].astype("float32") * np.float32(scale)
    y = by_array_api(shift_rope(rope), x.reshape(len(tokens), -1, x.shape[-1]), delta, seq_axis=0)
    if pool.dtype in LIMITS:
        y = y / np.float32(scale)
        y = np.clip(np.rint(np.nan_to_num(y)) if pool.dtype.kind == "i" else y, *LIMITS[pool.dtype])
    rotated = slice(rope.rotary_start, rope.rotary_start + rope.rotary_dim)
    rows[(*(at if isinstance(at, tuple) else (at,)), ..., rotated)] = y.astype(pool.dtype).reshape(x.shape)[
        ..., rotated
    ]


def record(pools, slots, delta, rope, axis, scale):
    source = Positions(delta, shift_rope(rope)._plan)
    return KeyShift(pools, slots, source, (scale,) * len(pools), axis, axis + pools[0].ndim > 0)


def assert_same_bits(array, expected, call):
    bits, expected_bits = (a.view(f"u{a.itemsize}") for a in (array, expected))
    assert ((bits == expected_bits) | ((array != array) & (expected != expected))).all(), call


@pytest.mark.parametrize("dtype", [*DTYPES, *LIMITS], ids=str)
@pytest.mark.parametrize("name", POOLS)
def test_rows_of_slots(name, dtype, level):
    _, axis, rope = POOLS[name]
    for call, delta in DISTANCES.items():
        (pool, around), (expected, expected_around) = pool_of(name, dtype), pool_of(name, dtype)
        slots, scale = slots_of(pool, axis), SCALE if dtype in LIMITS else 1.0
        shift_by_rows(expected, slots, delta, rope, scale, axis)
        shift = record((pool,), slots.astype("int32"), delta, rope, axis, scale)
        assert native.shift_keys(shift) is shift.caches
        assert_same_bits(around, expected_around, call)


@pytest.mark.parametrize("name", ["pages", "latent slots"])
def test_layers_and_threads(name, monkeypatch):
    """Threads share tokens; the layers of a call share the angles."""
    kernel.share_out_from(0)
    _, axis, rope = POOLS[name]
    expected, _ = pool_of(name, BF16 or F32, 20)
    slots, delta = slots_of(expected, axis, 1103), uneven(1103)
    layers = [expected.copy() for _ in range(3)]
    shift_by_rows(expected, slots, delta, rope, 1.0, axis)
    for call in each_level_and_thread_count(monkeypatch):
        pools = tuple(layer.copy() for layer in layers)
        assert native.shift_keys(record(pools, slots, delta, rope, axis, 1.0)) is not NotImplemented
        for pool in pools:
            assert_same_bits(pool, expected, call)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
@pytest.mark.library("torch")
def test_tensors(mode):
    """A write is counted; slots may have strides."""
    import torch

    from rope_array._backends.torch import native

    _, axis, rope = POOLS["pages"]
    expected, _ = pool_of("pages", F32)
    with getattr(torch, mode)():
        pool = torch.from_numpy(expected.copy()).clone()
        slots, delta = slots_of(expected, axis), uneven(TOKENS)
        version = pool._version if mode == "no_grad" else 0
        strided = torch.from_numpy(np.repeat(slots, 2))[::2]
        shift = record((pool,), strided, torch.from_numpy(delta), rope, axis, 1.0)
        assert native.shift_keys(shift) is not NotImplemented
        assert mode == "inference_mode" or pool._version == version + 1
    shift_by_rows(expected, slots, delta, rope, 1.0, axis)
    assert_same_bits(pool.numpy(), expected, mode)


def changed(field, value):
    return lambda call: call | {field: value(call[field])}


DECLINED = {
    "a slot twice": changed("slots", lambda slots: slots // 2),
    "a slot beyond the pool": changed("slots", lambda slots: slots + 70),
    "features apart": changed("caches", lambda caches: (caches[0][..., ::-1],)),
    "a broadcast pool": changed("caches", lambda caches: (np.broadcast_to(caches[0][:1], (73, 3, 24)),)),
    "a pool twice, unchecked": changed("caches", lambda caches: caches * 2),
    "two of three axes, unchecked": changed("seq_axis", lambda axis: -2),
    "a scale of floats": changed("scales", lambda scales: (0.5,)),
    "another number of distances": changed("source", lambda source: (source[0][1:], *source[1:])),
}


@pytest.mark.parametrize("case", DECLINED)
def test_a_declined_call_writes_nothing(case):
    pool, around = pool_of("slots", F32)
    call = record((pool,), np.arange(2, 43), uneven(TOKENS), POOLS["slots"][2], -3, 1.0)._asdict()
    del call["has_pages"]
    _native.prepare(call["source"].plan)
    call, before = DECLINED[case](call), around.copy()
    call["scales"] *= len(call["caches"])
    assert kernel.shift_keys(*call.values(), checked="unchecked" not in case) is NotImplemented
    assert_same_bits(around, before, case)
