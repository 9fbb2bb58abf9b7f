"""The Triton kernel in Triton's interpreter: the definition, the bits of the CPU's backends, and launches.

tests/test_conformance.py runs the suite over the backend too.
"""

import collections
import contextlib
from functools import partial
from types import SimpleNamespace

import child
import pytest
import torch
from compare import assert_same
from triton_cases import CALLS, GPUCall, assert_right, normal, tiles_of_many_tokens
from triton_mutants import MUTANTS, installed

import rope_array as ra
from rope_array._array_api.source import Positions
from rope_array._backends import _gpu
from rope_array._backends.torch import _eager, _triton_launch, triton

pytestmark = pytest.mark.library("torch")
ROPE = ra.RoPE(16, pairing="half", rotary_dim=12)
MIXED = ra.RoPE(16, pairing="half", out_pairing="interleaved", rotary_dim=12, attention_factor=1.3)
POS = torch.tensor([0, 1, -5, 70_000, 2**31 - 1])


def assert_same_bits(x, pos=POS, rope=ROPE, **options):
    """Compare new results of the backends "triton" and "array-api"."""
    wanted = rope.apply(x, pos, backend="array-api", **options)
    assert_same(rope.apply(x, pos, backend="triton", **options), wanted)


@pytest.mark.parametrize("name", CALLS)
def test_every_call(name):
    assert_right(CALLS[name])
    with tiles_of_many_tokens():
        assert_right(CALLS[name])


# ---- memory ----


def test_out_elsewhere():
    q, k = normal(2, 3, 5, 16), normal(2, 1, 5, 16)
    outs = torch.full((2, 5, 3, 16), 7.0).transpose(1, 2), torch.full((2, 1, 5, 32), 7.0)[..., ::2]
    assert ROPE.apply((q, k), POS, out=outs, backend="triton") is outs
    assert_same(outs, ROPE.apply((q, k), POS, backend="array-api"))


def test_nothing_outside_of_the_result_is_written():
    """Heads, tokens and features around the result stay as they are; around x is memory too, of NaN."""
    assert_only_the_result_is_written()
    with tiles_of_many_tokens():
        assert_only_the_result_is_written()


def assert_only_the_result_is_written():
    around = torch.full((5, 9, 40), torch.nan)
    x = around[1:4, 2:7, 3:19]
    x.copy_(normal(3, 5, 16))
    memory = torch.full((5, 9, 41), 7.0)
    out = memory[1:4, 2:7, 3:19]
    ROPE.apply(x, POS, out=out, backend="triton")
    assert_same(out.contiguous(), ROPE.apply(x, POS, backend="array-api").contiguous())
    out.fill_(7.0)
    assert bool((memory == 7.0).all())


def test_rows_beyond_32_bits_of_elements():
    """Two rows are 2^31 elements and more apart; an index of 32 bits would wrap to memory before them."""
    far = 2**31 + 16
    memory = torch.empty(2**31 + far + 16, dtype=torch.float16)  # untouched pages take no memory
    memory[16:32] = 7.0
    x = memory[2**31 :].as_strided((2, 8), (far, 1), 2**31)
    values = normal(2, 8, dtype="float16")
    for pos in (5, torch.arange(2)):  # the rows are heads, then tokens
        x.copy_(values)
        expected = ra.apply(values, pos, pairing="half", backend="array-api")
        ra.apply(x, pos, out=x, pairing="half", backend="triton")
        assert_same(x.contiguous(), expected)


# ---- launches ----


@pytest.fixture
def launched(monkeypatch):
    """The launches of the kernel."""
    recorded, run = [], _triton_launch._run_here

    def counting(launches, *arguments):
        recorded.extend(launches)
        return run(launches, *arguments)

    monkeypatch.setattr(_triton_launch, "_run_here", counting)
    return recorded


Q, K = normal(2, 4, 5, 16), normal(2, 2, 5, 16)
PACKED = normal(2, 5, 8, 16)  # q, k and v of a fused projection
QK = {
    "heads first": GPUCall((Q, K), POS, {}),
    "tokens first": GPUCall((Q.transpose(1, 2).contiguous(), K.transpose(1, 2).contiguous()), POS, {}, -3),
    "a fused projection": GPUCall((PACKED[:, :, :4], PACKED[:, :, 4:6]), POS, {}, -3),
    "one position": GPUCall((Q, K), 3, {}),
    "positions of a batch": GPUCall((Q, K), POS + torch.tensor([[0], [7]]), {}),
    "tables": GPUCall((Q, K), POS, {}, by_tables=True),
}


@pytest.mark.parametrize("name", QK)
def test_one_launch_rotates_q_and_k_and_one_their_gradients(name, launched):
    call = QK[name]
    xs = tuple(x.clone().requires_grad_() for x in call.xs)
    ys = call.run("triton", xs)
    rotations = launched[-1:]  # after the launch that makes tables
    launched.clear()
    torch.autograd.grad(ys, xs, tuple(map(torch.ones_like, xs)))
    assert [launch.index0 != launch.index1 for launch in (*rotations, *launched)] == [True, True]


def misaligned(x):
    """Return a copy at an address that is no multiple of 16, which Triton compiles another kernel for."""
    return torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x)


def test_a_repeated_call_is_recognised():
    """The fast entry, which makes no checks, serves a call whose checks have passed, and no other."""
    source = Positions(POS.clone(), ROPE._plan)
    q = normal(2, 3, 5, 16, dtype="float16")
    kernel = triton.load_kernel()
    kernel._launches.clear()
    assert _eager.try_kernel(kernel, q, source, (-2,), None) is NotImplemented
    expected = ROPE.apply(q, source.values, backend="triton")
    assert_same(_eager.try_kernel(kernel, q, source, (-2,), None), expected)
    assert _eager.try_kernel(kernel, q, source, (-2,), q.clone()) is NotImplemented
    other_calls = [
        *((x, source, -2) for x in (q[:, :, :4], q.float(), q[0], (q, q), q.numpy(), q.to_sparse(), ())),
        *((q, source._replace(values=pos), -2) for pos in (POS.int(), POS.double(), POS[:4], 2**63, [1] * 5)),
        *((q, source, axis) for axis in (-3, 0, 1.0)),
        *((x, source, -2) for x in (torch._neg_view(q), torch._efficientzerotensor(q.shape, dtype=q.dtype))),
        (misaligned(q), source, -2),
        (q, source._replace(values=misaligned(POS)), -2),
        (q, Positions(POS, ra.RoPE(16)._plan), -2),
    ]
    for x, of, axis in other_calls:
        assert _eager.try_kernel(kernel, x, of, (axis,), None) is NotImplemented


def test_a_repeated_call_in_place_is_recognised():
    """If each array has memory of its own; else the checks find out whether they overlap."""
    kernel, source = triton.load_kernel(), Positions(POS.clone(), ROPE._plan)
    for xs in ((normal(2, 5, 16),), (normal(2, 5, 16), normal(1, 5, 16))):
        for _ in range(2):
            again = tuple(map(torch.clone, xs))
            ROPE.apply(again, source.values, out=again, backend="triton")
        twice = tuple(map(torch.clone, xs))
        assert _eager.try_kernel(kernel, twice, source, (-2,), twice) is twice
        assert_same(twice, ROPE.apply(xs, source.values, backend="triton"))
    packed = normal(2, 2, 5, 16)
    views = packed[0], packed[1]
    ROPE.apply(views, source.values, out=views, backend="triton")
    assert _eager.try_kernel(kernel, views, source, (-2,), views) is NotImplemented


def test_other_calls_are_other_launches():
    """Calls that differ from an earlier call in the result's memory, in x's memory, or in coordinates."""
    rope, x = ra.RoPE(16, rotary_dim=8), normal(2, 5, 16)
    rope.apply(x, POS, out=x[:], backend="triton")
    out = torch.full_like(x, 7.0)  # features outside of the slice are copied to another memory only
    rope.apply(x, POS, out=out, backend="triton")
    assert_same(out, rope.apply(x, POS, backend="array-api"))
    for rope in (ra.RoPE(16), ra.RoPE(16, axes=ra.Axes((0, 1) * 4))):
        assert_same_bits(normal(3, 2, 16), torch.tensor([[3, 5]]), rope)
    heads_last = normal(2, 5, 4, 16).transpose(1, 2)
    strided = normal(2, 4, 5, 32)[..., ::2], normal(5, 16).expand(2, 4, 5, 16)
    for x in (heads_last, heads_last.contiguous(), *strided):
        assert_same_bits(x)


@pytest.mark.parametrize("start", [5, -(2**40)])
def test_another_start_or_base_uses_the_same_launch(start, launched):
    x = normal(2, 5, 16)
    for base in (10.0, 1e6):
        for pos in (range(start, start + 5), start, range(start + 9, start + 14), start + 9):
            assert_same_bits(x, pos, ra.RoPE(16, base=base))
    assert len({id(launch) for launch in launched}) == 2


def with_caches():
    q, caches = normal(5, 4, 16), (torch.zeros(8, 2, 16), torch.zeros(8, 2, 16))
    options = dict(seq_axis=-3, norm=(torch.ones(16), torch.ones(16)), cache=caches, slots=torch.arange(5))
    ra.attention_inputs(q, q[:, :2], POS, ROPE, v=q[:, 2:], **options, backend="triton")


LAUNCHED = {name: partial(CALLS[name].run, "triton") for name in ("half", "half, by tables", "five axes")}
LAUNCHED |= {"a range": partial(CALLS["a range"].run, "triton"), "attention's inputs": with_caches}


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_compiled_kernel_gets_the_addresses_of_its_tensors(name, monkeypatch):
    """And the same numbers. The interpreter, and the first launch of a GPU, get the tensors themselves."""
    calls, run, recorded = [], _triton_launch._run_here, []
    monkeypatch.setattr(_triton_launch, "_run_here", lambda *call: calls.append(call))
    LAUNCHED[name]()
    launches, *arrays, _, more = calls[-1]

    def record(*arguments, **options):
        recorded.append(arguments)

    run(launches, *arrays, collections.defaultdict(lambda: record), more)
    first, *others = ((*launch.numbers, *launch.constants) for launch in launches)
    assert recorded[0][-len(first) :] == first
    expected = [
        (None, *(a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments[: -len(first)]))
        for arguments in recorded
    ]
    recorded.clear()
    run([launch._replace(compiled=[record]) for launch in launches], *arrays, None, more)
    assert recorded == expected
    assert len(others) == (name == "five axes")


def test_tensors_of_other_devices_are_handed_to_this_backend(monkeypatch):
    """The registry asks the backend "native" first, and no other backend, for a call without checks."""
    monkeypatch.setattr(triton, "try_fast", lambda x, *call: f"served on {x.device}")
    for x in (torch.ones(2, 16, device="meta"), torch.ones(2, 16, device="meta", requires_grad=True)):
        assert ROPE.apply(x, 3) == "served on meta"
    assert ROPE.apply(torch.ones(2, 16), 3).shape == (2, 16)


def test_float_positions_are_read_by_the_kernel():
    """But for frequencies that are too large for its rounding, and for other angles: tables."""
    launches = triton.load_kernel()._launches
    floats, far = torch.tensor([torch.nan, -2.5, 2**24 - 1, -(2.0**40), 1e-42]), (1e8,) * 8
    for pos, fields, kind in (
        *((floats.to(dtype), {}, _gpu.Kind.POSITIONS) for dtype in (torch.float32, torch.float64)),
        *((POS / 3, fields, _gpu.Kind.TABLES) for fields in ({"inv_freq": far}, {"angles": "float32"})),
    ):
        launches.clear()
        assert_same_bits(normal(2, 5, 16), pos, ra.RoPE(16, **fields))
        assert [launch.source_kind for (launch,) in launches.values()] == [kind]
    x = normal(2, 16)
    y = ROPE.apply(x, torch.tensor([1e30, -1e19]), backend="triton")
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1))


# ---- gradients, and the gate ----


def test_a_gradient_of_a_gradient_by_tables():
    """The suite has those by positions."""
    x = normal(2, 16, dtype="float64").requires_grad_()
    rotation = MIXED.rotation(POS[2:4], like=x)
    assert torch.autograd.gradgradcheck(lambda x: rotation.apply(x, backend="triton"), (x,))


def assert_same_gradients(rotate):
    """Compare gradients by the backends "triton" and "native": of one cotangent, and of several at once."""
    g = normal(3, 2, 5, 16, seed=1)
    gradients = []
    for backend in ("triton", "native"):
        x = normal(2, 5, 16).requires_grad_()
        y = rotate(x, backend)
        (gradient,) = torch.autograd.grad(y, x, g[0], retain_graph=True)
        # The backward gets tensors without memory.
        (several,) = torch.autograd.grad(y, x, g, is_grads_batched=True)
        assert_same(several[0], gradient)
        gradients.append((gradient, several))
    assert_same(*gradients)


def test_gradients_of_positions():
    for pos in (POS, POS / 3, 3, range(-7, 8, 3)):
        assert_same_gradients(lambda x, backend, pos=pos: MIXED.apply(x, pos, backend=backend))


def test_gradients_of_tables():
    rotation = MIXED.rotation(POS, like=normal(1, 16))
    assert_same_gradients(lambda x, backend: rotation.apply(x, backend=backend))


def test_freed_memory_is_declined():
    """Also by the fast entry, which recognises the metadata."""
    x, pos = normal(2, 5, 16), POS.clone()
    ROPE.apply(x, pos, backend="triton")
    kernel, freed, source = triton.load_kernel(), normal(2, 5, 16), Positions(pos, ROPE._plan)
    freed.untyped_storage().resize_(0)
    assert _eager.try_kernel(kernel, freed, source, (-2,), None) is NotImplemented
    with pytest.raises(ra.BackendError, match="freed"):
        ROPE.apply(freed, pos, backend="triton")
    pos.untyped_storage().resize_(0)
    assert _eager.try_kernel(kernel, x, source, (-2,), None) is NotImplemented


def test_interceptions_are_declined():
    """By the gate of the CPU's kernel, which tests/test_torch.py judges."""
    x = normal(2, 5, 16)
    with torch.utils._python_dispatch.TorchDispatchMode():
        assert triton.decline_reason((x,), Positions(POS, ROPE._plan)) is not None
    assert triton.decline_reason((x,), Positions(POS, ROPE._plan)) is None


def test_vmap():
    """By the rule of the CPU's kernel, which tests/test_torch_transforms.py judges."""
    x, pos = normal(3, 2, 5, 16), torch.stack([POS, POS - 1, -POS])

    def rotate(x, pos):
        by_tables = ROPE.rotation(pos, like=x, backend="triton").apply(x, backend="triton")
        return ROPE.apply(x, pos, backend="triton"), by_tables

    y, by_tables = torch.func.vmap(rotate)(x, pos)
    assert_same(y, ROPE.apply(x, pos[:, None], backend="array-api"))
    assert_same(by_tables, y)


# ---- the device: what a GPU adds, on a fake one ----


def test_calls_are_served_where_triton_fails(monkeypatch):
    """A machine may have no compiler for Triton's launcher: PyTorch's operations serve then."""

    def fail():
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(triton, "is_interpreted", lambda: False)
    runtime = __import__("triton").runtime
    monkeypatch.setattr(runtime.driver, "_active", SimpleNamespace(get_current_device=fail))
    for function in (triton._why_triton_fails, triton.usable_kernel):
        function.cache_clear()
    assert "RuntimeError: Failed to find C compiler" in triton.unavailable_reason()
    assert triton.usable_kernel() is None
    for function in (triton._why_triton_fails, triton.usable_kernel):
        function.cache_clear()


class SecondGPU:
    type, index = "cuda", 1


def test_launches_run_on_the_device_of_the_arrays(monkeypatch):
    entered = []
    monkeypatch.setattr(_triton_launch, "interpreted", False)
    monkeypatch.setattr(_triton_launch, "_run_here", lambda *call: entered.append("run"))
    enter = lambda device: entered.append(device) or contextlib.nullcontext()  # noqa: E731
    monkeypatch.setattr(torch.cuda, "device", enter)
    for current, expected in ((1, ["run"]), (0, [SecondGPU, "run"])):
        monkeypatch.setattr(torch.cuda, "current_device", lambda current=current: current)
        entered.clear()
        _triton_launch.run([], (SimpleNamespace(device=SecondGPU),), (), None, None)
        assert entered == expected


def test_another_stream_keeps_the_constants(monkeypatch):
    """Memory that another stream made must not be reused while this stream reads it."""
    recorded, plan = [], ra.RoPE(16, base=5.0)._plan
    words = SimpleNamespace(record_stream=recorded.append)
    plan.derived.on_devices[SecondGPU] = (words, 5)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the other stream")
    for stream, expected in ((5, []), (7, ["the other stream"])):
        assert _triton_launch.words_on(plan, SecondGPU, stream) is words
        assert recorded == expected


def test_a_capture_needs_the_constants(monkeypatch):
    """A CUDA graph cannot capture the copy of the constants, and keeps no memory that it reads."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    plan = ra.RoPE(16, base=3.0)._plan
    with pytest.raises(ra.BackendError, match="before the capture"):
        _triton_launch.words_on(plan, SecondGPU, 5)
    words = torch.zeros(1)
    plan.derived.on_devices[SecondGPU] = (words, 5)
    monkeypatch.setattr(_gpu, "_CAPTURED", [])
    for _ in range(2):
        assert _triton_launch.words_on(plan, SecondGPU, 5) is words
    assert [kept is words for kept in _gpu._CAPTURED] == [True]


def test_triton_imported_to_compile_is_refused():
    """Its own functions would then be compiled for ever, and each call of the kernel would fail."""
    script = """
        import triton
        from rope_array.testing._triton_interpreter import use_interpreter
        print(use_interpreter())
    """
    assert "start another process" in child.run(script, TRITON_INTERPRET="0")


# ---- the tests themselves ----


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_is_found(mutant, monkeypatch, tmp_path):
    """Each fault, put into the sources, fails the test that it names."""
    # Not at the top, as triton_cases has to be the first to import Triton.
    from triton.runtime.errors import InterpreterError

    test = globals().get(mutant.test) or (lambda: test_every_call(mutant.test))
    # What a fault leaves unwritten, or reads elsewhere, may be any bits, of which NumPy may warn.
    # The interpreter wraps the warning.
    errors = (AssertionError, RuntimeWarning, InterpreterError)
    with installed(mutant, monkeypatch, tmp_path), pytest.raises(errors):
        test()
