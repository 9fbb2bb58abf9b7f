"""Calls of the Triton kernel in Triton's interpreter, and their judge: the definition and the CPU's bits."""

from typing import Any, NamedTuple

import compare
import torch

import rope_array as ra
from rope_array.testing._contract import assert_contract
from rope_array.testing._triton_interpreter import use_interpreter

assert not use_interpreter(), use_interpreter()

FLOATS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
INT32 = 2**31 - 1


class Call(NamedTuple):
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


def _random_positions(*shape, most=INT32, dtype=torch.int64):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(-most, most, shape, generator=generator).to(dtype)


FIELDS = {
    "half": {"pairing": "half"},
    "interleaved": {"pairing": "interleaved"},
    "half to interleaved": {"pairing": "half", "out_pairing": "interleaved"},
    "interleaved to half": {"pairing": "interleaved", "out_pairing": "half"},
    "amplitude": {"pairing": "half", "attention_factor": 1.37},
    "slice": {"pairing": "half", "rotary_dim": 8, "rotary_start": 4},
    "interleaved slice": {"rotary_dim": 6, "rotary_start": 3},
    "first features": {"pairing": "half", "rotary_dim": 6},
    "no features": {"rotary_dim": 0},
}


def _cases():
    for name, fields in FIELDS.items():
        yield name, Call(_qk(), _random_positions(2, 5), fields)
        yield f"{name}, inverse", Call(_qk(), _random_positions(5), fields, inverse=True)
        yield f"{name}, by tables", Call(_qk(), _random_positions(2, 5), fields, by_tables=True)
    for name in FLOATS:
        for pairing in ("half", "interleaved"):
            fields = {"pairing": pairing, "rotary_dim": 12, "attention_factor": 0.7}
            yield f"{name} {pairing}", Call(_qk(name), _random_positions(5), fields)
    half = {"pairing": "half"}
    ends = torch.tensor([-(2**31), 2**31 - 1, -1, 0, 1])
    for name in ("float32", "float64"):
        yield f"{name} at the ends of int32", Call(_qk(name), ends.to(torch.int32), half)
        yield f"{name} beyond int32", Call(_qk(name), ends * 2**20 + 12345, half)
    yield "an int", Call(_qk(), -123_456_789, half)
    yield "a range", Call(_qk(), range(10**9, 10**9 - 15, -3), half)
    yield "a range of one head", Call((normal(3, 11, 16),), range(5, 16), half)
    offsets = ra.positions.offset(5, torch.tensor([7, 100_000]))
    yield "an offset for each sequence", Call(_qk(), offsets, half)
    packed = ra.positions.packed(torch.tensor([0, 3, 4, 11]), 12, offsets=torch.tensor([0, 9, -5]))
    yield "packed lengths", Call((normal(12, 4, 16), normal(12, 2, 16)), packed, half, 0)
    yield "positions of a batch", Call(_qk(), torch.tensor([[7], [-900]]), half)
    yield "positions with strides", Call(_qk(), _random_positions(10, 4)[::2, ::2].T, half)
    yield "expanded positions", Call(_qk(), _random_positions(1, 5).expand(2, 5), half)
    yield (
        "sequence before heads",
        Call((normal(2, 5, 4, 16), normal(2, 5, 2, 16)), _random_positions(2, 5), half, -3),
    )
    yield "one row", Call((normal(16),), 5, half)
    yield "no row", Call((normal(2, 0, 16), normal(3, 0, 16)), range(0), half)
    yield "many heads", Call((normal(1, 70, 3, 8), normal(1, 9, 3, 8)), _random_positions(3), half)
    yield "more heads in k", Call((normal(1, 3, 3, 8), normal(1, 70, 3, 8)), _random_positions(3), half)
    yield "three arrays", Call((*_qk(), normal(2, 3, 5, 16, seed=2)), _random_positions(2, 5), half)
    other_rows = normal(2, 2, 5, 16), normal(2, 8, 5, 16)[:, :3]
    other_ranks = normal(2, 5, 16), normal(2, 8, 5, 16)[:, :3]
    yield "arrays of other shapes", Call((normal(2, 3, 5, 16), normal(5, 16)), _random_positions(5), half)
    yield "arrays of other ranks", Call(other_ranks, _random_positions(5), half)
    yield "arrays with other axes of rows", Call(other_rows, _random_positions(5), half)
    yield "many tokens", Call((normal(67, 6),), _random_positions(67), half)
    for order in ((0, 1, 2, 3), (2, 0, 1, 3), (3, 0, 1, 2), (0, 3, 2, 1)):
        for gap, skip in ((1, 0), (2, 0), (1, 3)):
            name = f"memory in the order {order}, features {gap} apart, {skip} left out"
            xs = tuple(_strided((2, H, 5, 16), "bfloat16", order, gap, skip) for H in (3, 2))
            yield name, Call(xs, _random_positions(2, 5), half)
            yield f"{name}, one position", Call(xs, 3, {})
    wide = normal(2, 3, 2, 5, 3, 8)
    yield "five axes", Call((wide[:, :2, :, :, 1:], wide[:, 1:, :, :, :2]), _random_positions(5), half, -3)
    empty = Call(
        (wide[:, :2, :, ::2, 1:],), _random_positions(2, 2, 3), {"rotary_dim": 0}, -3, by_tables=True
    )
    yield "five axes of empty tables", empty
    for fields in (half, {"rotary_dim": 4}):
        yield f"wide heads, {fields}", Call((normal(1, 3, 2, 2**14),), range(2), fields)
    by_tables = Call((wide[:, :2, :, ::2, 1:],), _random_positions(2, 2, 3), half, -3, by_tables=True)
    yield "five axes of tables", by_tables
    yield "five axes of a range", Call((wide[:, :2, :, ::2, 1:],), range(3), half, -3)
    yield "five axes of positions", Call((wide[:, :2, :, ::2, 1:],), _random_positions(2, 2, 3), half, -3)
    several = {"coordinates": (0, 1, 1, None, 2, 0, 1, 2)}
    blocks = {"coordinates": (0, 0, 1, 1, 0, 0, 1, 1), "widths": (8, 8), "blocks": 4}
    for pairing in ("half", "interleaved"):
        for name, axes, count in (("three coordinates", several, 3), ("four blocks", blocks, 2)):
            fields = {"pairing": pairing, "axes": axes}
            yield f"{name}, {pairing}", Call(_qk(), _random_positions(2, 5, count), fields)
            yield (
                f"{name}, {pairing}, inverse",
                Call(_qk(), _random_positions(5, count), fields, inverse=True),
            )
    fields = {"pairing": "half", "axes": several}
    strided = _random_positions(3, 5, 2).permute(1, 2, 0)[:, 0]
    yield "strided coordinates", Call(_qk(), strided, fields)
    for width in (2, 6, 20, 24, 34, 72):
        for pairing in ("half", "interleaved"):
            xs = normal(2, 3, width, dtype="bfloat16"), normal(5, 3, width, dtype="bfloat16")
            yield f"width {width} {pairing}", Call(xs, _random_positions(3), {"pairing": pairing})


CALLS = dict(_cases())
