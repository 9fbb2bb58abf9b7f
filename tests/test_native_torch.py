"""The kernel rotates tensors, with the bits of the array-api backend."""

import pytest
from compare import assert_same, normal
from native_cases import PAIRINGS, THREADS, Axes, RoPE, by_array_api, in_pairs_of

import rope_array as ra

pytestmark = [pytest.mark.usefixtures("kernel_settings"), pytest.mark.library("torch")]


def torch_layouts(x):
    """Yield copies with other strides; in torch no stride is negative."""
    import torch

    spread = torch.zeros((*x.shape[:-1], 2 * x.shape[-1] + 3), dtype=x.dtype)
    spread[..., 3::2] = x
    odd = torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)
    yield from (x, spread[..., 3::2], odd.copy_(x), x.transpose(1, 2).contiguous().transpose(1, 2))
    yield from (x[:1].expand(x.shape), x.narrow(2, 1, 3))
    yield x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)


def unaligned(a):
    """Return a copy at an address that is not aligned for its dtype."""
    import torch

    memory = bytearray(a.nbytes + 1)
    return torch.frombuffer(memory, dtype=a.dtype, offset=1, count=a.numel()).view(a.shape).copy_(a)


def same_as_array_api(rope, x, pos, **kwargs):
    assert_same(rope.apply(x, pos, **kwargs), by_array_api(rope, x, pos, **kwargs))


@in_pairs_of(pairings=PAIRINGS, tensors=["table", "attributes"], indirect=["level", "tensors"])
def test_tensors_of_every_layout(level, dtype, pairings, tensors):
    import torch

    x = normal("torch", 2, 3, 5, 20, dtype=dtype)
    rope = RoPE(20, rotary_dim=18, rotary_start=1, pairing=pairings[0], out_pairing=pairings[1])
    for view in torch_layouts(x):
        length = view.shape[2]
        batch = torch.arange(4 * length, dtype=torch.int32).view(2, -1)[:, ::2]
        for pos in (7, -(2**62), torch.arange(length), batch, range(length)):
            expected = by_array_api(rope, view, pos)
            assert_same(rope.apply(view, pos), expected)
            assert_same(rope.apply(view, pos, backend="native"), expected)
            out, y = torch.empty(view.shape, dtype=x.dtype), view.clone()
            assert_same(rope.apply(view, pos, out=out), expected)
            assert_same(rope.apply(y, pos, out=y), expected)
            assert out._version  # the write is counted
            assert y._version
            same_as_array_api(rope, view, pos, inverse=True)


def test_tables(tensors):
    import torch

    xs = torch.randn(2, 3, 5, 16), torch.randn(2, 1, 5, 16).double(), torch.randn(2, 2, 5, 16).bfloat16()
    rope, several = RoPE(16, pairing="half", attention_factor=1.2), RoPE(16, axes=Axes.axial(8, 8))
    by_numbers = rope.rotation(torch.arange(10).view(2, 5), like=xs[1])
    by_coordinates = several.rotation(torch.arange(20).view(2, 5, 2).flip(-1), like=xs[1])
    for rotation in (by_numbers, by_numbers.inverse(), by_coordinates):
        expected = rotation.apply(xs, backend="array-api")
        assert_same(rotation.apply(xs), expected)
        strided = rotation._replace(cos=rotation.cos.repeat_interleave(2, -1)[..., ::2])
        assert_same(strided.apply(xs), expected)
        odd = rotation._replace(cos=unaligned(rotation.cos), sin=unaligned(rotation.sin))
        assert_same(odd.apply(xs), expected)
        assert_same(odd.apply(xs[0].clone().requires_grad_()).detach(), expected[0])


def test_any_number_of_threads(monkeypatch):
    import torch

    before, rope = torch.get_num_threads(), RoPE(130, pairing="half")
    x = torch.randn(2, 8, 2100, 130)
    rotation = rope.rotation(range(2100), like=x)
    expected = by_array_api(rope, x, range(2100))
    try:
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            assert_same(rope.apply(x, torch.arange(2100)), expected, threads)
            assert_same(rotation.apply(x), expected, threads)
        monkeypatch.setenv(THREADS, "3")
        assert_same(rope.apply(x, range(2100), out=torch.empty_like(x)), expected)
    finally:
        torch.set_num_threads(before)


def test_unusual_calls(tensors):
    import torch

    x = torch.randn(5, 8)
    with pytest.raises(ra.ShapeError):
        RoPE(8).apply(x, 3, seq_axis=2**70)
    axes = x.view([1] * 70 + [5, 8])
    assert_same(RoPE(8).apply(axes, 3).view(5, 8), by_array_api(RoPE(8), x, 3))
    pos = unaligned(torch.arange(5))
    assert pos.data_ptr() % 8
    same_as_array_api(RoPE(8), x, pos)


def test_methods_of_a_tensor_that_users_replaced(tensors):
    """The kernel calls methods of the type: a replaced method could free memory that the kernel reads."""
    import torch

    x, parameter = torch.randn(5, 8), torch.nn.Parameter(torch.randn(5, 8), requires_grad=False)
    expected_ys = [by_array_api(RoPE(8), array, range(5)) for array in (x, parameter)]
    for array in (x, parameter):
        for name in ("is_neg", "stride", "data_ptr", "element_size"):
            setattr(array, name, lambda: pytest.fail("called"))
    ys = RoPE(8).apply((x, parameter), range(5), backend="native")
    for y, expected in zip(ys, expected_ys, strict=True):
        assert_same(y, expected)
