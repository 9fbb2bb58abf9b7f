"""Calls of the Triton kernel in Triton's interpreter, and their judge: the definition and the CPU's bits.

The suite, which runs over the backend too, has other calls: numbers, lists, wide heads, arrays without rows.
"""

import contextlib
from typing import Any, NamedTuple

import compare
import pytest
import torch
from ropes import fields_of

import rope_array as ra
from rope_array.testing._contract import assert_contract
from rope_array.testing._triton_interpreter import use_interpreter

assert not use_interpreter(), use_interpreter()

FLOATS = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}


class GPUCall(NamedTuple):
    """A call: arrays of one dtype, positions, and the fields of a rope."""

    xs: tuple[torch.Tensor, ...]
    pos: Any
    fields: dict
    seq_axis: int = -2
    inverse: bool = False
    by_tables: bool = False

    def rope(self):
        fields = {k: ra.Axes(**v) if k == "axes" else v for k, v in self.fields.items()}
        return ra.RoPE(self.xs[0].shape[-1], **fields)

    def run(self, backend, xs=None, out=None):
        xs = self.xs if xs is None else xs
        if self.by_tables:
            rotation = self.rope().rotation(self.pos, like=xs[0], backend=backend)
            rotation = rotation.inverse() if self.inverse else rotation
            return rotation.apply(xs, seq_axis=self.seq_axis, out=out, backend=backend)
        return ra.apply(
            xs, self.pos, self.rope(), seq_axis=self.seq_axis, inverse=self.inverse, out=out, backend=backend
        )


def assert_right(call):
    """Assert that results agree with the definition and have the bits of other backends, in place too."""
    ys = call.run("triton")
    for x, y in zip(call.xs, ys, strict=True):
        dtype = compare.name_of(x.dtype)
        pos = call.pos.numpy() if isinstance(call.pos, torch.Tensor) else call.pos
        numbers = dict(seq_axis=call.seq_axis, inverse=call.inverse, **call.fields)
        assert_contract(compare.on_host(y), compare.values(x), pos, dtype=dtype, **numbers)
    for backend in ("array-api", "native"):
        compare.assert_same(ys, call.run(backend))
    in_place = tuple(map(torch.clone, call.xs))
    assert call.run("triton", in_place, in_place) is in_place
    compare.assert_same(in_place, ys)


@contextlib.contextmanager
def tiles_of_many_tokens():
    """Give few tokens the tiles of many tokens."""
    # After Triton was set to interpret.
    from rope_array._backends.torch import _triton_inputs, _triton_launch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_triton_launch, "_FEW_TOKENS", 0)
        patch.setattr(_triton_launch, "_launches", {})
        patch.setattr(_triton_inputs, "_launches", {})
        yield


def normal(*shape, dtype="float32", seed=0):
    return compare.normal("torch", *shape, dtype=dtype, seed=seed)


def _qk(dtype="float32", B=2, H=4, Hk=2, S=5, D=16):
    return normal(B, H, S, D, dtype=dtype), normal(B, Hk, S, D, dtype=dtype, seed=1)


def _strided(shape, dtype, order, gap=1, skip=0):
    """Return a tensor with its axes in memory in an order, and its features `gap` elements apart."""
    sizes = [shape[a] + (1 if a < len(shape) - 1 else skip) for a in order]
    sizes[order.index(len(shape) - 1)] = (shape[-1] + skip) * gap
    memory = normal(*sizes, dtype=dtype).permute(*(order.index(a) for a in range(len(shape))))
    index = tuple(slice(0, n) for n in shape[:-1])
    return memory[(*index, slice(skip * gap, None, gap))]


def _random_positions(*shape, largest=2**31 - 1):
    return torch.randint(-largest, largest, shape, generator=torch.Generator().manual_seed(3))


LAYOUTS = "plain", "half", "half to interleaved", "interleaved to half", "slice", "interleaved slice"
FIELDS = fields_of(*LAYOUTS, "amplitude")
HALF = FIELDS["half"]
# A fraction of a position is several quarters of a turn.
FAST = {**FIELDS["amplitude"], "inv_freq": (300.0, 40.0, 20.0, 7.0, 3.0, 1.0, 0.5, 0.01)}


def _of_fields():
    for name, fields in FIELDS.items():
        yield name, GPUCall(_qk(), _random_positions(2, 5), fields)
    yield "inverse", GPUCall(_qk(), _random_positions(5), FIELDS["half to interleaved"], inverse=True)
    yield "half, by tables", GPUCall(_qk(), _random_positions(2, 5), HALF, by_tables=True)
    few = {"pairing": "half", "rotary_dim": 6}
    yield "first features, by tables", GPUCall(_qk(), _random_positions(2, 5), few, by_tables=True)
    for name in FLOATS:
        for pairing in ("half", "interleaved"):
            fields = {"pairing": pairing, "rotary_dim": 12, "attention_factor": 0.7}
            yield f"{name} {pairing}", GPUCall(_qk(name), _random_positions(5), fields)
    yield "width 34", GPUCall((normal(5, 3, 34, dtype="bfloat16"),), _random_positions(3), HALF)


def _of_positions():
    ends = torch.tensor([-(2**31), 2**31 - 1, -1, 0, 1])
    for name in ("float32", "float64"):
        yield f"{name} at the ends of int32", GPUCall(_qk(name), ends.to(torch.int32), HALF)
        yield f"{name} beyond int32", GPUCall(_qk(name), ends * 2**20 + 12345, HALF)
        for pos_name in ("float32", "float64"):
            floats = torch.tensor([0.5, -2.5, 2**22 + 0.5, -3.14e8, 77.3], dtype=FLOATS[pos_name])
            yield f"{name} at {pos_name} positions", GPUCall(_qk(name), floats, FAST)
    yield "a range", GPUCall(_qk(), range(10**9, 10**9 - 15, -3), HALF)
    yield "tables of a range", GPUCall(_qk("float64"), range(-2, 3), HALF, by_tables=True)
    yield "tables of one position", GPUCall(_qk(), 7, HALF, by_tables=True)
    offsets = ra.positions.offset(5, torch.tensor([7, 100_000]))
    yield "an offset for each sequence", GPUCall(_qk(), offsets, HALF)
    packed = ra.positions.packed(torch.tensor([0, 3, 4, 11]), 12, offsets=torch.tensor([0, 9, -5]))
    yield "packed lengths", GPUCall((normal(12, 4, 16), normal(12, 2, 16)), packed, HALF, 0)
    yield "positions with strides", GPUCall(_qk(), _random_positions(10, 4)[::2, ::2].T, HALF)
    yield "expanded positions", GPUCall(_qk(), _random_positions(1, 5).expand(2, 5), HALF)
    several = {"coordinates": (0, 1, 1, None, 2, 0, 1, 2)}
    blocks = {"coordinates": (0, 0, 1, 1, 0, 0, 1, 1), "widths": (8, 8), "blocks": 4}
    for pairing in ("half", "interleaved"):
        for name, axes, count in (("three coordinates", several, 3), ("four blocks", blocks, 2)):
            fields = {"pairing": pairing, "axes": axes}
            yield f"{name}, {pairing}", GPUCall(_qk(), _random_positions(2, 5, count), fields)
    strided = _random_positions(3, 5, 2).permute(1, 2, 0)[:, 0]
    yield "strided coordinates", GPUCall(_qk(), strided, {"pairing": "half", "axes": several})
    fields = {**FIELDS["slice"], "axes": {"coordinates": (0, 1, None, 2)}}
    yield "strided floats", GPUCall(_qk(), strided / 7e3, fields, inverse=True)


def _of_shapes():
    pos, pos_of_batch = _random_positions(5), _random_positions(2, 5)
    yield "tokens first", GPUCall((normal(2, 5, 4, 16), normal(2, 5, 2, 16)), pos_of_batch, HALF, -3)
    yield "many heads", GPUCall((normal(1, 70, 3, 8), normal(1, 9, 3, 8)), _random_positions(3), HALF)
    yield "more heads in k", GPUCall((normal(1, 3, 3, 8), normal(1, 70, 3, 8)), _random_positions(3), HALF)
    yield "arrays of other shapes", GPUCall((normal(2, 3, 5, 16), normal(5, 16)), pos, HALF)
    yield "arrays of other ranks", GPUCall((normal(2, 5, 16), normal(2, 8, 5, 16)[:, :3]), pos, HALF)
    xs = tuple(normal(3, 5, 16, dtype=name) for name in FLOATS)
    yield "arrays of other dtypes", GPUCall(xs, pos, HALF)
    yield "tables of other dtypes", GPUCall(xs[::-1], pos, HALF, by_tables=True)
    for order, gap, skip in (
        ((0, 1, 2, 3), 2, 0),
        ((2, 0, 1, 3), 1, 3),
        ((3, 0, 1, 2), 2, 0),
        ((0, 3, 2, 1), 1, 3),
    ):
        name = f"memory in the order {order}, features {gap} apart, {skip} left out"
        xs = tuple(_strided((2, H, 5, 16), "bfloat16", order, gap, skip) for H in (3, 2))
        yield name, GPUCall(xs, _random_positions(2, 5), HALF)
    memory = normal(2, 3, 2, 5, 3, 8)
    yield "five axes", GPUCall((memory[:, :2, :, :, 1:], memory[:, 1:, :, :, :2]), pos, HALF, -3)
    views, view_positions = (memory[:, :2, :, ::2, 1:],), _random_positions(2, 2, 3)
    yield "five axes of tables", GPUCall(views, view_positions, HALF, -3, by_tables=True)
    yield "five axes of a range", GPUCall(views, range(3), HALF, -3)
    yield "five axes of positions", GPUCall(views, view_positions, HALF, -3)


CALLS = {**dict(_of_fields()), **dict(_of_positions()), **dict(_of_shapes())}
