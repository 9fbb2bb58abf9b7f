"""The Triton kernel in Triton's interpreter: the definition, and the bits of the CPU's backends."""

import contextlib
from typing import NamedTuple

import child
import pytest
import torch
from compare import assert_same, bits
from triton_cases import CALLS, FLOATS, Call, assert_right, normal
from triton_mutants import MUTANTS, installed

import rope_array as ra
from rope_array._array_api.source import Positions, Tables
from rope_array._backends import _gpu
from rope_array._backends.torch import _eager, _gpu_kernel, _launch, triton

pytestmark = pytest.mark.library("torch")
ROPE = ra.RoPE(16, pairing="half", rotary_dim=12)
POS = torch.tensor([0, 1, -5, 70_000, 2**31 - 1])


@pytest.mark.parametrize("name", CALLS)
def test_every_call(name):
    assert_right(CALLS[name])


# ---- memory ----


def test_out_elsewhere():
    q, k = normal(2, 3, 5, 16), normal(2, 1, 5, 16)
    outs = torch.full((2, 5, 3, 16), 7.0).transpose(1, 2), torch.full((2, 1, 5, 32), 7.0)[..., ::2]
    assert ROPE.apply((q, k), POS, out=outs, backend="triton") is outs
    assert_same(outs, ROPE.apply((q, k), POS, backend="array-api"))


def test_nothing_outside_of_the_result_is_written():
    """Heads, tokens and features around the result stay as they are; around x is memory too, of NaN."""
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
        want = ra.apply(values, pos, pairing="half", backend="array-api")
        ra.apply(x, pos, out=x, pairing="half", backend="triton")
        assert_same(x.contiguous(), want)


# ---- launches ----


@pytest.fixture
def launched(monkeypatch):
    """The launches of the kernel."""
    seen, run = [], _launch._run_here

    def counting(launches, *arguments):
        seen.extend(launches)
        return run(launches, *arguments)

    monkeypatch.setattr(_launch, "_run_here", counting)
    return seen


def qk_calls():
    q, k = normal(2, 4, 5, 16), normal(2, 2, 5, 16)
    yield "heads first", Call((q, k), POS, {})
    yield "tokens first", Call((q.transpose(1, 2).contiguous(), k.transpose(1, 2).contiguous()), POS, {}, -3)
    packed = normal(2, 5, 8, 16)  # q, k and v of a fused projection
    yield "a fused projection", Call((packed[:, :, :4], packed[:, :, 4:6]), POS, {}, -3)
    yield "one position", Call((q, k), 3, {})
    yield "positions of a batch", Call((q, k), POS + torch.tensor([[0], [7]]), {})
    yield "tables", Call((q, k), POS, {}, by_tables=True)


QK = dict(qk_calls())


@pytest.mark.parametrize("name", QK)
def test_one_launch_rotates_q_and_k(name, launched):
    call = QK[name]
    if call.by_tables:
        rotation = call.rope().rotation(call.pos, like=call.xs[0])
        rotation.apply(call.xs, backend="triton")
    else:
        call.run("triton")
    (launch,) = launched
    assert launch.first != launch.second


@pytest.mark.parametrize("by_tables", [False, True], ids=["positions", "tables"])
def test_one_launch_rotates_the_gradients_of_q_and_k(by_tables, launched):
    q, k = normal(2, 4, 5, 16).requires_grad_(), normal(2, 2, 5, 16).requires_grad_()
    rotation = ROPE.rotation(POS, like=q)
    rotate = rotation.apply if by_tables else lambda xs, backend: ROPE.apply(xs, POS, backend=backend)
    ys = rotate((q, k), backend="triton")
    launched.clear()
    torch.autograd.grad(ys, (q, k), (q.detach(), k.detach()))
    assert len(launched) == 1


def test_a_repeated_call_is_recognised():
    """The fast entry, which makes no checks, serves a call whose checks have passed, and no other."""
    source = Positions(POS.clone(), ROPE._plan)
    q = normal(2, 3, 5, 16, dtype="float16")
    kernel = _gpu_kernel.load_gpu_kernel()
    kernel._launches.clear()
    assert _eager.try_fast(q, source, -2, None, kernel) is NotImplemented
    want = ROPE.apply(q, source.values, backend="triton")
    assert_same(_eager.try_fast(q, source, -2, None, kernel), want)
    assert _eager.try_fast(q, source, -2, q.clone(), kernel) is NotImplemented
    lists = source._replace(values=[1, 2, 3, 4, 5])
    others = [
        *((x, source, -2) for x in (q[:, :, :4], q.float(), q[0], (q, q), q.numpy(), q.to_sparse(), ())),
        *((q, source._replace(values=pos), -2) for pos in (POS.int(), POS.double(), POS[:4], 2**63)),
        *((q, source, axis) for axis in (-3, 0, 1.0)),
        (torch._neg_view(q), source, -2),
        (q, Positions(POS, ra.RoPE(16)._plan), -2),
        (q, lists, -2),
    ]
    for x, of, axis in others:
        assert _eager.try_fast(x, of, axis, None, kernel) is NotImplemented


def test_a_repeated_call_in_place_is_recognised():
    """If each array has memory of its own; else the checks find out whether they overlap."""
    kernel, source = _gpu_kernel.load_gpu_kernel(), Positions(POS.clone(), ROPE._plan)
    packed = normal(2, 2, 5, 16)
    for xs in ((normal(2, 5, 16),), (normal(2, 5, 16), normal(1, 5, 16))):
        want = ROPE.apply(xs, source.values, backend="triton")
        ROPE.apply(tuple(map(torch.clone, xs)), source.values, out=xs, backend="triton")
        again = tuple(map(torch.clone, xs))
        ROPE.apply(again, source.values, out=again, backend="triton")
        twice = tuple(map(torch.clone, want))
        assert _eager.try_fast(twice, source, -2, twice, kernel) is twice
    views = packed[0], packed[1]
    ROPE.apply(views, source.values, out=views, backend="triton")
    assert _eager.try_fast(views, source, -2, views, kernel) is NotImplemented


def test_a_result_in_place_is_another_launch():
    """Features outside of the slice are copied to another memory only."""
    rope, x = ra.RoPE(16, rotary_dim=8), normal(2, 5, 16)
    rope.apply(x, POS, out=x[:], backend="triton")
    out = torch.full_like(x, 7.0)
    rope.apply(x, POS, out=out, backend="triton")
    assert_same(out, rope.apply(x, POS, backend="array-api"))


def test_coordinates_are_another_launch():
    x = normal(3, 2, 16)
    for rope in (ra.RoPE(16), ra.RoPE(16, axes=ra.Axes((0, 1) * 4))):
        pos = torch.tensor([[3, 5]])
        assert_same(rope.apply(x, pos, backend="triton"), rope.apply(x, pos, backend="array-api"))


def test_another_alignment_is_another_launch():
    """Triton compiles accesses of 16 bytes for addresses that are multiples of 16."""
    x, source = normal(3, 16), Positions(POS[:3], ROPE._plan)
    keys = set()
    for shift in (0, 4, 8, 12):
        keys.add(_launch._memory_key((x,), (x,), source, [x.data_ptr() + shift, POS.data_ptr()]))
    assert len(keys) == 4


def test_the_default_device_changes_no_backend():
    x = normal(2, 5, 16)
    with torch.device("meta"):
        assert ra.explain(x, 3).backend == "native"
        assert_same(ROPE.apply(x, POS, backend="triton"), ROPE.apply(x, POS, backend="native"))


def test_another_memory_is_another_launch():
    q = normal(2, 5, 4, 16)
    for x in (
        q.transpose(1, 2),
        q.transpose(1, 2).contiguous(),
        normal(2, 4, 5, 32)[..., ::2],
        normal(5, 16).expand(2, 4, 5, 16),
    ):
        assert_same(ROPE.apply(x, POS, backend="triton"), ROPE.apply(x, POS, backend="array-api"))


def test_another_base_uses_the_same_launch(launched):
    x = normal(2, 5, 16)
    for base in (10.0, 1e6):
        rope = ra.RoPE(16, base=base)
        assert_same(rope.apply(x, POS, backend="triton"), rope.apply(x, POS, backend="array-api"))
    assert launched[0] is launched[1]


@pytest.mark.parametrize("start", [0, 5, -(2**40), 2**62])
def test_another_start_uses_the_same_launch(start, launched):
    x = normal(2, 5, 16)
    for pos in (range(start, start + 5), start):
        assert_same(ROPE.apply(x, pos, backend="triton"), ROPE.apply(x, pos, backend="array-api"))
    before = {id(launch) for launch in launched}
    launched.clear()
    for pos in (range(start + 9, start + 14), start + 9):
        ROPE.apply(x, pos, backend="triton")
    assert {id(launch) for launch in launched} == before


def test_constants_are_copied_to_a_device_once():
    rope = ra.RoPE(16, base=77.0)
    rope.apply(normal(5, 16), POS, backend="triton")
    ((words, _),) = rope._plan.on_devices.values()
    rope.apply(normal(5, 16), POS, backend="triton")
    ((again, _),) = rope._plan.on_devices.values()
    assert again is words


# ---- gradients, and the gate ----


@pytest.mark.parametrize(
    "fields", [{}, {"pairing": "half", "out_pairing": "interleaved", "rotary_dim": 8}], ids=["plain", "mixed"]
)
@pytest.mark.parametrize("by_tables", [False, True], ids=["positions", "tables"])
def test_gradients_of_any_order(fields, by_tables):
    rope = ra.RoPE(12, attention_factor=1.3, **fields)
    x = normal(2, 12, dtype="float64").requires_grad_()
    rotation = rope.rotation(POS[2:4], like=x)

    def rotate(x):
        return rotation.apply(x, backend="triton") if by_tables else rope.apply(x, POS[2:4], backend="triton")

    assert torch.autograd.gradcheck(rotate, (x,))
    assert torch.autograd.gradgradcheck(rotate, (x,))


def gradients(rotate):
    x = normal(2, 5, 16).requires_grad_()
    return torch.autograd.grad(rotate(x), x, normal(2, 5, 16, seed=1))


MIXED = ra.RoPE(16, pairing="half", out_pairing="interleaved", rotary_dim=12, attention_factor=1.3)


def test_gradients_of_positions():
    for pos in (POS, POS.int(), 3, range(-7, 8, 3)):
        found, want = (
            gradients(lambda x, b=b, p=pos: MIXED.apply(x, p, backend=b)) for b in ("triton", "native")
        )
        assert_same(found, want)


def test_gradients_of_tables():
    rotation = MIXED.rotation(POS, like=normal(1, 16))
    found, want = (gradients(lambda x, b=b: rotation.apply(x, backend=b)) for b in ("triton", "native"))
    assert_same(found, want)


def test_gradients_of_a_batch():
    """torch.autograd.grad(is_grads_batched=True) gives the backward tensors without memory."""
    x = normal(2, 5, 16).requires_grad_()
    cotangents = normal(3, 2, 5, 16, seed=1)
    found, want = (
        torch.autograd.grad(ROPE.apply(x, POS, backend=b), x, cotangents, is_grads_batched=True)[0]
        for b in ("triton", "native")
    )
    assert_same(found, want)


def test_freed_memory_is_declined():
    """Also by the fast entry, which recognises the metadata."""
    x, pos = normal(2, 5, 16), POS.clone()
    ROPE.apply(x, pos, backend="triton")
    kernel, freed, source = _gpu_kernel.load_gpu_kernel(), normal(2, 5, 16), Positions(pos, ROPE._plan)
    freed.untyped_storage().resize_(0)
    assert _eager.try_fast(freed, source, -2, None, kernel) is NotImplemented
    with pytest.raises(ra.BackendError, match="the memory has been freed"):
        ROPE.apply(freed, pos, backend="triton")
    pos.untyped_storage().resize_(0)
    assert (
        _eager.try_fast(x, Positions(pos, ROPE._plan), -2, None, _gpu_kernel.load_gpu_kernel())
        is NotImplemented
    )


def test_positions_alone_are_saved():
    x = normal(2, 5, 16).requires_grad_()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        ROPE.apply(x, POS, backend="triton")
    assert [t.shape for t in saved] == [POS.shape]


def test_a_gradient_in_place():
    leaf = normal(2, 5, 16).requires_grad_()
    x = leaf * 1.0
    assert ROPE.apply(x, POS, out=x, backend="triton") is x
    (found,) = torch.autograd.grad(x, leaf, torch.ones_like(x))
    other = ROPE.apply(leaf, POS, backend="array-api")
    assert_same(found, torch.autograd.grad(other, leaf, torch.ones_like(x))[0])


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.func.jvp imports it
def test_interceptions_are_declined():
    """The kernel shares the gate of the CPU's kernel, which tests/test_torch_transforms.py judges."""
    x, source = normal(2, 5, 16), Positions(POS, ROPE._plan)
    assert triton.decline_reason((x,), source) is None
    reasons = []

    def ask(x):
        reasons.append(triton.decline_reason((x,), source))
        return x * 1.0

    torch.func.vmap(ask)(x)
    torch.func.jvp(ask, (x,), (x,))
    with torch.utils._python_dispatch.TorchDispatchMode():
        reasons.append(triton.decline_reason((x,), source))
    ask(type("Own", (torch.Tensor,), {})(2, 3))
    ask(torch._neg_view(x))
    assert None not in reasons, reasons
    for transformed in (torch.func.vmap(lambda x: ROPE.apply(x, POS, backend=None)),):
        assert_same(transformed(x), ROPE.apply(x, POS))


def test_positions_that_are_not_exact_become_tables():
    x = normal(2, 5, 16)
    for pos in ([0.5, 1.25, -3.0, 7.0, 1e6], torch.tensor([0.5, 1.25, -3.0, 7.0, 1e6]), [5, 6, 7, 8, 9]):
        assert_same(ROPE.apply(x, pos, backend="triton"), ROPE.apply(x, pos, backend="array-api"))
    for dtype in (torch.int8, torch.uint8, torch.int16):
        pos = torch.arange(5).to(dtype)
        assert_same(ROPE.apply(x, pos, backend="triton"), ROPE.apply(x, pos, backend="array-api"))
    rope = ra.RoPE(16, angles="float32")
    assert_same(rope.apply(x, POS, backend="triton"), rope.apply(x, POS, backend="array-api"))


def test_arrays_of_several_dtypes():
    xs = tuple(normal(2, 3, 5, 16, dtype=name) for name in FLOATS)
    assert_same(ROPE.apply(xs, POS, backend="triton"), ROPE.apply(xs, POS, backend="array-api"))
    assert [y.dtype for y in ROPE.apply(xs, POS, backend="triton")] == [*FLOATS.values()]


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_tables_have_the_bits_of_the_array_api_backend(name, launched):
    like = normal(1, 16, dtype=name)
    for pos in (POS, 3, range(4), torch.tensor([[1, 2], [3, 4]])):
        found, want = (ROPE.rotation(pos, like=like, backend=b) for b in ("triton", "array-api"))
        assert bits(tuple(found)) == bits(tuple(want))
    assert len(launched) == 4


def test_special_values_stay_in_their_pair():
    x = normal(3, 16, dtype="bfloat16")
    x[0, 3], x[1, 1], x[2, 15] = float("nan"), float("inf"), 1e-40
    assert_same(ROPE.apply(x, 7, backend="triton"), ROPE.apply(x, 7, backend="array-api"))


def test_the_backend_is_listed():
    (listed,) = [each for each in ra.backends() if each.name == "triton"]
    assert listed.usable
    assert "interpreted" in listed.description


# ---- the device: what a GPU adds, on a fake one ----


def test_calls_are_served_where_triton_fails(monkeypatch):
    """A machine may have no compiler for Triton's launcher: PyTorch's operations serve then."""

    class Driver:
        def get_current_device(self):
            raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(_gpu_kernel, "is_interpreted", lambda: False)
    monkeypatch.setattr(_gpu_kernel, "_loaded", None)
    runtime = __import__("triton").runtime
    monkeypatch.setattr(runtime.driver, "_active", Driver())
    _gpu_kernel._why_triton_fails.cache_clear()
    assert "RuntimeError: Failed to find C compiler" in triton.unavailable_reason()
    assert _gpu_kernel.gpu_kernel() is None
    _gpu_kernel._why_triton_fails.cache_clear()


class Device:
    type, index = "cuda", 1


class OnDevice(NamedTuple):
    """An array on a device."""

    device: type = Device


def test_launches_run_on_the_device_of_the_arrays(monkeypatch):
    entered = []
    monkeypatch.setattr(_launch, "interpreted", False)
    monkeypatch.setattr(_launch, "_run_here", lambda *call: entered.append("run"))
    monkeypatch.setattr(
        torch.cuda, "device", lambda device: entered.append(device) or contextlib.nullcontext()
    )
    for current, expected in ((1, ["run"]), (0, [Device, "run"])):
        monkeypatch.setattr(torch.cuda, "current_device", lambda current=current: current)
        entered.clear()
        _launch._run([], (OnDevice(),), (), None)
        assert entered == expected


def test_another_stream_keeps_the_constants(monkeypatch):
    """Memory that another stream made must not be reused while this stream reads it."""
    recorded = []

    class Words:
        record_stream = recorded.append

    plan = ra.RoPE(16, base=5.0)._plan
    plan.on_devices[Device] = (Words, 5)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the other stream")
    for stream, expected in ((5, []), (7, ["the other stream"])):
        monkeypatch.setattr(_launch, "_stream", lambda device, stream=stream: stream)
        assert _launch._words(plan, Device) is Words
        assert recorded == expected


def test_a_capture_needs_the_constants(monkeypatch):
    """A CUDA graph cannot capture the copy of the constants, and keeps no memory that it reads."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    plan = ra.RoPE(16, base=3.0)._plan
    with pytest.raises(ra.BackendError, match="before the capture"):
        _launch._words(plan, Device)
    words = torch.zeros(1)
    plan.on_devices[Device] = (words, 5)
    monkeypatch.setattr(_launch, "_stream", lambda device: 5)
    monkeypatch.setattr(_gpu, "_CAPTURED", [])
    assert _launch._words(plan, Device) is words
    assert _launch._words(plan, Device) is words
    assert [kept is words for kept in _gpu._CAPTURED] == [True]


def test_tables_of_a_rotation_serve_every_dtype():
    x = normal(2, 5, 16)
    tables = ROPE.rotation(POS, like=x.double())
    for name in FLOATS:
        one = x.to(FLOATS[name])
        assert_same(tables.apply(one, backend="triton"), tables.apply(one, backend="array-api"))
    assert isinstance(Tables(*tables, ROPE._plan.layout), Tables)


# ---- the interpreter ----


def test_triton_imported_to_compile_is_refused():
    """Its own functions would then be compiled for ever, and each call of the kernel would fail."""
    script = """
        import triton
        from rope_array.testing._triton_interpreter import use_interpreter
        print(use_interpreter())
    """
    reason = child.run(script, TRITON_INTERPRET="0")
    assert "already imported, to compile for a GPU; start another process" in reason


# ---- the tests themselves ----


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_is_found(mutant, monkeypatch, tmp_path):
    """Each fault, put into the sources, fails the test that it names."""
    # Not at the top, as triton_cases has to be the first to import Triton.
    from triton.runtime.errors import InterpreterError

    test = globals().get(mutant.test) or (lambda: test_every_call(mutant.test))
    # What a fault leaves unwritten, or reads elsewhere, may be any bits, of which NumPy may warn.
    # The interpreter wraps the warning.
    found = (AssertionError, RuntimeWarning, InterpreterError)
    with installed(mutant, monkeypatch, tmp_path), pytest.raises(found):
        test()
    test()
