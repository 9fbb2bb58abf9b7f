"""PyTorch on devices without a kernel, where each operation is a launch: few ones, with equal bits."""

import pytest
from compare import same
from torch_cases import POS, normal

import rope_array as ra
import rope_array._backends.torch as backend
from rope_array._backends.torch import _eager

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.library("torch")

# Of q and k: the rotation by positions, by a Rotation, and its gradient. Constants are
# on the device after the first call. apply_rotary_pos_emb of Hugging Face takes 10, its gradient 14.
LAUNCHES = {
    ("half", "float32", None): (27, 6, 7),
    ("half", "bfloat16", None): (29, 8, 9),
    ("interleaved", "float32", None): (29, 8, 9),
    ("interleaved", "bfloat16", None): (29, 8, 9),
    ("half", "bfloat16", 8): (31, 10, 11),
    ("interleaved", "float32", 8): (31, 10, 11),
}
ROPES = {
    "half": ra.RoPE(16, pairing="half"),
    "interleaved": ra.RoPE(16),
    "to interleaved": ra.RoPE(16, pairing="half", out_pairing="interleaved"),
    "to half": ra.RoPE(16, out_pairing="half", rotary_dim=8, rotary_start=4, attention_factor=1.25),
    "two blocks": ra.RoPE(16, axes=ra.Axes.chunked(4, 4), pairing="half"),
    "identity": ra.RoPE(16, rotary_dim=0),
}
DTYPES = [("float32", "bfloat16"), ("float16", "float32"), ("float64", "float32"), ("float64", "float64")]
POSITIONS = {"integers": POS, "floats": 0.3 * POS[:-1].float(), "a number": 7}


class CountLaunches(torch.utils._python_dispatch.TorchDispatchMode):
    """A mode that counts operations but views and new memory, and constants that are copied to the device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returns = [result.alias_info for result in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in returns)
        is_constant = func.name().startswith("aten::lift")
        self.count += is_constant or not (is_view or "empty" in func.name() or "_view" in func.name())
        return func(*args, **(kwargs or {}))


def launches(call):
    with CountLaunches() as mode:
        call()
    return mode.count


@pytest.fixture
def on_device(monkeypatch):
    """The CPU serves as a device without a kernel."""
    monkeypatch.setattr(backend, "_HOSTS", ())


@pytest.mark.parametrize(
    ("pairing", "dtype", "rotary_dim"), LAUNCHES, ids=lambda value: "whole" if value is None else str(value)
)
@pytest.mark.parametrize("seq_axis", [-2, -3])
def test_launches(pairing, dtype, rotary_dim, seq_axis, on_device, monkeypatch):
    monkeypatch.setattr(_eager, "_DISPATCH_MODES", lambda: 0)  # the mode that counts changes nothing
    rope = ra.RoPE(16, pairing=pairing, rotary_dim=rotary_dim)
    options = {"seq_axis": seq_axis, "backend": "torch"}
    shapes = [(2, heads, 5, 16) if seq_axis == -2 else (2, 5, heads, 16) for heads in (4, 1)]
    q, k = (normal(*shape, dtype=getattr(torch, dtype)).requires_grad_() for shape in shapes)
    rotation, ys = rope.rotation(POS, like=q), rope.apply((q, k), POS, **options)
    counts = (
        launches(lambda: rope.apply((q, k), POS, **options)),
        launches(lambda: rotation.apply((q, k), **options)),
        launches(lambda: torch.autograd.grad(ys, (q, k), ys)),
    )
    assert counts == LAUNCHES[pairing, dtype, rotary_dim]


@pytest.mark.parametrize("dtypes", DTYPES, ids=" ".join)
@pytest.mark.parametrize("pos", POSITIONS)
@pytest.mark.parametrize("name", ROPES)
def test_few_operations_have_the_bits_of_many(name, pos, dtypes, monkeypatch):
    rope, pos = ROPES[name], POSITIONS[pos]
    length = 5 if type(pos) is int else len(pos)
    if name == "two blocks":
        pos = [pos, 3] if type(pos) is int else torch.stack((pos, -pos), -1)
    xs = [normal(2, length, 3, 16, dtype=getattr(torch, dtype), seed=i) for i, dtype in enumerate(dtypes)]
    xs = tuple(x.transpose(0, 2).requires_grad_() for x in xs)
    weights = tuple(x.detach() for x in xs)
    rotations = [rope.rotation(pos, like=x) for x in xs]
    expected = rope.apply(xs, pos, seq_axis=1, backend="torch")
    tables = tuple(map(tuple, rotations))
    gradients = [by.adjoint().apply(x, seq_axis=1) for by, x in zip(rotations, weights, strict=True)]
    monkeypatch.setattr(backend, "_HOSTS", ())
    ys = rope.apply(xs, pos, seq_axis=1, backend="torch")
    assert same(ys, expected)
    assert same(tuple(tuple(rope.rotation(pos, like=x, backend="torch")) for x in xs), tables)
    assert same(torch.autograd.grad(ys, xs, weights), tuple(gradients))
    rotated = [by.apply(x, seq_axis=1, backend="torch") for by, x in zip(rotations, xs, strict=True)]
    assert same(tuple(rotated), expected)


@pytest.mark.parametrize("name", ["half", "to half"])
def test_zeros_keep_their_sign(name, monkeypatch):
    rotation, zeros = ROPES[name].rotation(POS, like=normal(1)), torch.zeros(4, 5, 16)
    zeros[::2] = -0.0
    zeros[:2, :, ::3] = 1.0
    expected = rotation.apply(zeros, backend="torch")
    monkeypatch.setattr(backend, "_HOSTS", ())
    assert same(rotation.apply(zeros, backend="torch"), expected)


def test_no_kernel_reads_memory_that_was_freed(on_device):
    rotation, x = ROPES["half"].rotation(POS, like=normal(1)), normal(2, 5, 16)
    cos = rotation.cos.clone()
    cos.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError):
        rotation._replace(cos=cos).apply(x, backend="torch")


def test_batched_gradients(on_device):
    x, weights = normal(2, 5, 16).requires_grad_(), normal(3, 2, 5, 16)
    for rope in ROPES["half"], ROPES["to half"]:
        y = rope.apply(x, POS, backend="torch")
        (batched,) = torch.autograd.grad(y, x, weights, is_grads_batched=True, retain_graph=True)
        single = [torch.autograd.grad(y, x, weight, retain_graph=True)[0] for weight in weights]
        assert same(batched, torch.stack(single))
