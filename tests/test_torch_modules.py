"""rope_array.torch: calls of the modules, state that casts and checkpoints keep, gradients, tracing."""

import copy
import io
import math
import pickle
import re

import numpy as np
import pytest
from compare import judge, same
from refusals import refusals, refused
from torch_cases import FIELDS, IGNORED, ROPES, normal

import rope_array as ra
from rope_array._backends import _native
from rope_array.testing import apply_definition, cos_sin

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.library("torch"), *IGNORED]

RotaryEmbedding = ra.torch.RotaryEmbedding
Learned = ra.torch.LearnedRotaryEmbedding
Mixed = ra.torch.MixedRotaryEmbedding
HALF = ROPES["half"]
SCALED = ra.RoPE(16, pairing="half", scaling=ra.YaRN(factor=8.0, original_max_position_embeddings=64))
MODULES = {
    "fixed": lambda: RotaryEmbedding(HALF),
    "learned": lambda: Learned(HALF),
    "learned per head": lambda: Learned(HALF, heads=2),
    "mixed": lambda: Mixed(HALF, heads=2),
}
by_module = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)


def positions_for(module, length):
    """Return positions of a sequence: numbers, or two coordinates for mixed frequencies."""
    pos = torch.arange(length)
    return torch.stack([pos, pos + 3], -1) if isinstance(module, Mixed) else pos


def changed(module):
    """Return a module after training: its parameters have other values."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.linspace(-0.1, 0.2, parameter.numel()).reshape(parameter.shape))
    return module


def call(module, length=5, seed=0):
    q = normal(2, 2, length, 16, seed=seed)
    return module(q, -q, positions_for(module, length))


@by_module
def test_ensemble(make, runs):
    """Modules stacked and mapped by vmap have the bits of each; the kernel rotates by tables of all."""
    modules = [changed(make())]
    modules.append(changed(copy.deepcopy(modules[0])))
    state = torch.func.stack_module_state(modules)
    qs, pos = normal(2, 2, 2, 5, 16), positions_for(modules[0], 5)

    def rotate(state, q):
        return torch.func.functional_call(modules[0], state, (q, -q, pos))

    with torch.no_grad():
        expected = [module(q, -q, pos) for module, q in zip(modules, qs, strict=True)]
        runs.clear()
        ys = torch.func.vmap(rotate)(state, qs)
    assert all(map(torch.equal, ys, map(torch.stack, zip(*expected, strict=True))))
    assert len(runs) == (_native.kernel is not None)


class Attention(torch.nn.Module):
    def __init__(self, rotary):
        super().__init__()
        self.rotary, self.qkv = rotary, torch.nn.Linear(32, 96, bias=False)

    def forward(self, x, positions):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        q, k = self.rotary(q, k, positions)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + y.transpose(1, 2).flatten(2)


# ---- module(q, k, positions) ----


@pytest.mark.parametrize("axis", [-2, -3])
@pytest.mark.parametrize(
    "pos", [torch.arange(5.0) / 2, torch.arange(10).reshape(2, 5), range(5), [4, 0, 9, 1, 2]], ids=str
)
def test_every_form_of_positions(pos, axis):
    q, k = normal(2, 4, 5, 16), normal(2, 1, 5, 16)
    for module in (RotaryEmbedding(HALF, seq_axis=axis), Learned(HALF, seq_axis=axis)):
        arrays = (q, k) if axis == -2 else (q.transpose(1, 2), k.transpose(1, 2))
        for y, x in zip(module(*arrays, positions=pos), (q, k), strict=True):
            judge(y if axis == -2 else y.transpose(1, 2), x, np.asarray(pos), **FIELDS["half"])


@pytest.mark.parametrize("pos", [7, 2.5, range(7, 8), torch.tensor([[7], [100]])], ids=str)
@pytest.mark.parametrize("axis", [-2, -3])
def test_one_position_is_no_offset(pos, axis):
    """A number serves one token; for more, the message gives the positions that follow it."""
    q = normal(2, 4, 5, 16) if axis == -2 else normal(2, 5, 4, 16)
    token = q.narrow(axis, 0, 1)
    for module in (RotaryEmbedding(HALF, seq_axis=axis), Learned(HALF, seq_axis=axis)):
        assert same(module(token, token, pos)[1], HALF.apply(token, pos, seq_axis=axis))
        with pytest.raises(ra.ShapeError, match="a position is no offset") as caught:
            module(q, q, pos)
        positions_text, call = re.findall(r"another, give (.*?)\. .* call (.*)\.$", str(caught.value))[0]
        names = {"positions": pos, "q": q, "k": q, "torch": torch, "range": range, "module": module}
        y, _ = module(q, q, eval(positions_text, names))
        expected = torch.as_tensor(pos) + torch.arange(5)
        judge(*(x if axis == -2 else x.transpose(1, 2) for x in (y, q)), expected, **FIELDS["half"])
        assert same(eval(call, names)[0], HALF.apply(q, pos, seq_axis=axis))


@pytest.mark.parametrize("heads", [2, 4], ids=["fewer key heads", "as many key heads"])
@pytest.mark.parametrize("pos", [3, [[3], [5]]], ids=str)
def test_heads_of_one_token_are_no_tokens(pos, heads):
    """Without an axis of tokens the axis of the heads takes its place: the message has a call for heads."""
    q, k, module = normal(2, 4, 16), normal(2, heads, 16), RotaryEmbedding(HALF)
    with pytest.raises(ra.ShapeError, match=r"axis -2 of q has the size 4") as caught:
        module(q, k, pos)
    (call,) = re.findall(r"heads of one token, call (.*)\.$", str(caught.value))
    rotated = eval(call, {"module": module, "positions": pos, "q": q, "k": k})
    for y, x in zip(rotated, (q, k), strict=True):
        assert same(y, HALF.apply(x[..., None, :], [[[3]], [[5]]] if pos != 3 else 3)[..., 0, :])


@pytest.mark.filterwarnings("always")
def test_one_position_in_a_trace():
    """It is refused, and the check warns of nothing."""
    q = torch.randn(1, 2, 5, 16)
    with pytest.raises(ra.ShapeError, match="no offset"):
        torch.jit.trace(FIXED, (q, q, torch.tensor([3])))
    with pytest.warns(torch.jit.TracerWarning) as caught:  # of other checks
        torch.jit.trace(FIXED, (q, q, torch.arange(5)))
    assert not [warning for warning in caught if warning.filename.endswith("_rotary.py")]


def test_coordinates():
    q, pos = normal(1, 4, 6, 16), torch.cartesian_prod(torch.arange(2), torch.arange(3))
    for module in (RotaryEmbedding(AXIAL), Learned(AXIAL), Mixed(HALF, 4)):
        rotated = module(q, q, pos)[1]
        assert isinstance(module, Mixed) or same(rotated, AXIAL.apply(q, pos))
        assert same(module(q[..., 5:, :], q[..., 5:, :], [[1, 2]])[0], rotated[..., 5:, :])
        with pytest.raises(ra.ShapeError, match="give 6 positions"):
            module(q, q, [[1, 2]])


# ---- module(x, position_ids) ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", [RotaryEmbedding, Learned])
def test_tables_of_full_width(make, dtype):
    ids = torch.tensor([[0, 1, 2, 900], [3, 4, 5, 70_000]])
    truth = cos_sin(ids.numpy(), rotary_dim=16, base=500_000.0)
    module, x = make(HALF), normal(2, 4, 32, dtype=dtype)
    assert same(module(x, position_ids=ids.float())[0][..., :8], module(x, ids)[0][..., :8])
    for tables in (module(x, ids), module(x, position_ids=ids)):
        for table, exact in zip(tables, truth, strict=True):
            assert (table.dtype, table.shape) == (dtype, (2, 4, 16))
            exact = torch.tensor(np.concatenate([exact, exact], -1))
            limit = 9.5e-8 if dtype == torch.float32 else 2.0**-8
            assert (table - exact).abs().max() <= limit


# ---- calls that are wrong ----

Q, K, IDS, TWO = normal(1, 4, 5, 16), normal(1, 2, 5, 16), torch.arange(5), torch.ones(5, 2)
DYNAMIC, AXIAL = ra.RoPE(16, scaling=ra.DynamicNTK(2.0, 64)), ra.RoPE(16, axes=ra.Axes.axial(8, 8))
FIXED = RotaryEmbedding(HALF)


@refusals("torch modules")
def test_wrong_calls_are_refused(call, error, words):
    refused(error, words, lambda: eval(call))


def test_torch_script_is_refused():
    with pytest.raises(ra.RoPEError, match=r"torch\.compile or torch\.export"):
        torch.jit.script(torch.nn.Sequential(FIXED))


# ---- nothing to cast, to lose or to store ----


def saved(module):
    """Save a module whole, and load it."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "bfloat16": lambda module: module.bfloat16(),
    "type": lambda module: module.type(torch.float16),
    "inside a model": lambda module: torch.nn.Sequential(module).to(torch.bfloat16)[0],
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": saved,
    "share_memory": lambda module: module.share_memory(),
    "requires_grad": lambda module: module.requires_grad_(False),
}


@by_module
@pytest.mark.parametrize("name", COPIES)
def test_casts_and_copies_change_no_bit(name, make):
    module = changed(make())
    expected = call(module)
    copied = COPIES[name](module)
    assert all(map(same, call(copied), expected))
    assert repr(copied) == repr(module)
    assert all(parameter.dtype == torch.float32 for parameter in copied.parameters())


def test_the_fixed_module_has_no_state():
    model = torch.nn.Sequential(FIXED)
    assert [*model.parameters(), *model.buffers(), *model.state_dict()] == []
    model.load_state_dict({}, strict=True)


CALLS = [
    "RotaryEmbedding(RoPE(head_dim=16, base=500000.0, pairing='half'))",
    "RotaryEmbedding(RoPE(head_dim=4), seq_axis=-3, tables=9, onnx_operator=True)",
    "LearnedRotaryEmbedding(RoPE(head_dim=4), seq_axis=-3, heads=3)",
    "MixedRotaryEmbedding(RoPE(head_dim=4, base=10.0), seq_axis=-3, heads=3, coordinates=2)",
    "AttentionInputs(RoPE(head_dim=4), heads=(4, 2), eps=1e-06, offset=1.0, rounding='none')",
]


@pytest.mark.parametrize("text", CALLS)
def test_the_repr_is_the_call_that_makes_the_module(text):
    assert repr(eval(text, {"RoPE": ra.RoPE, **vars(ra.torch)})) == text


@by_module
def test_settings_change_no_bit(make):
    """Autocast, and a default dtype of bfloat16 when a module is made and called."""
    module = changed(make())
    expected = call(module)
    with torch.autocast("cpu", torch.bfloat16):
        assert all(map(same, call(module), expected))
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert all(map(same, call(module), expected))
        assert all(parameter.dtype == torch.float32 for parameter in make().parameters())
    finally:
        torch.set_default_dtype(torch.float32)


# ---- training ----


@by_module
def test_gradients_are_right(make):
    """In q, k, positions and parameters, first and second derivatives."""
    module = changed(make()).double()
    q, k = (normal(1, 2, 3, 16, dtype=torch.float64, seed=s).requires_grad_() for s in (0, 1))
    pos = (positions_for(module, 3) + 0.3).double().requires_grad_()
    names, values = zip(*module.named_parameters(), strict=True) if [*module.parameters()] else ((), ())

    def function(q, k, pos, *values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (q, k, pos))

    assert torch.autograd.gradcheck(function, (q, k, pos, *values))
    assert torch.autograd.gradgradcheck(function, (q, k, pos, *values), fast_mode=True)


# ---- learned frequencies ----


@pytest.mark.parametrize("rope", [*ROPES.values(), SCALED], ids=[*ROPES, "scaled"])
def test_initial_learned_rotation_equals_the_rope(rope):
    q, pos = normal(2, 2, 5, 16), torch.tensor([0, 1, -5, 70_000, 2**31 - 1])
    fixed, learned = RotaryEmbedding(rope), Learned(rope)
    assert all(map(same, learned(q, -q, pos), fixed.rotation(pos, like=q).apply((q, -q))))
    assert learned.frequencies.tolist() == list(rope.frequencies)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1e-6, 0.3])
def test_learned_frequencies_rotate_by_the_definition(size, dtype):
    module, pos = Learned(HALF).to(dtype), torch.tensor([0, 1, 77, 100_003, 1_000_003])
    module.log_scale.data += size * torch.linspace(-1, 1, 8)
    scale = np.exp(module.log_scale.detach().double().numpy())
    omegas = np.array(HALF.frequencies) * scale
    q = normal(2, 2, 5, 16, dtype=dtype)
    y = module(q, q, pos)[0].detach().double().numpy()
    truth = apply_definition(q.double().numpy(), pos.numpy(), inv_freq=omegas.tolist(), pairing="half")
    largest = np.abs(q.double().numpy()).max()
    # The last term is the rounding of the definition's frequencies to float64.
    limit = largest * (8 * torch.finfo(dtype).eps + 2.0**-51 * pos.numpy())
    assert (np.abs(y - truth) <= limit[:, None]).all()


def test_a_learned_rope_is_used_without_torch():
    for rope in (HALF, SCALED, ROPES["mixed"]):
        module = changed(Learned(rope))
        trained = module.to_rope()
        assert trained.amplitude == rope.amplitude
        q = normal(2, 2, 5, 16)
        y = trained.apply(q.numpy(), range(5))
        assert np.allclose(y, module(q, q, range(5))[0].detach().numpy(), atol=2e-6)
    assert Learned(HALF).to_rope().frequencies == HALF.frequencies


@pytest.mark.parametrize("make", [*MODULES.values()][1:], ids=[*MODULES][1:])
def test_state_round_trip(make):
    """Into float32: parameters of 16 bits are refused."""
    module, loaded = changed(make()), make()
    state = module.state_dict()
    assert len(state) == 1
    loaded.load_state_dict({name: value.clone() for name, value in state.items()})
    assert all(map(same, call(loaded), call(module)))
    narrow = {name: value.bfloat16() for name, value in state.items()}
    loaded.load_state_dict(narrow)  # copies into float32
    call(loaded)
    loaded.load_state_dict(narrow, assign=True)
    with pytest.raises(ra.ArrayTypeError, match=r"bfloat16.*must stay float32"):
        call(loaded)


@pytest.mark.parametrize("axis", [-2, -3])
@pytest.mark.parametrize("rope", [HALF, SCALED, AXIAL], ids=["plain", "scaled", "axes"])
def test_learned_frequencies_of_each_head_rotate_as_one_module_for_each(rope, axis):
    """At 0 as the rope, and after training each head as a module of its own frequencies."""
    module, q = Learned(rope, heads=4, seq_axis=axis), normal(2, 4, 6, 16)
    pos = torch.tensor([0, 1, -5, 70_000, 131_072, 2**31 - 1])
    pos = torch.stack([pos, pos + 3], -1) if rope is AXIAL else pos
    arrays = (q, -q) if axis == -2 else (q.transpose(1, 2), -q.transpose(1, 2))

    def rotated():
        return [y if axis == -2 else y.transpose(1, 2) for y in module(*arrays, pos)]

    expected = rope.rotation(pos, like=q).apply((q, -q))
    assert all(map(same, rotated(), expected))
    assert module.frequencies.tolist() == [list(rope.frequencies)] * 4
    changed(module)
    head = Learned(rope)
    for i in range(4):
        head.load_state_dict({"log_scale": module.log_scale[i]})
        for y, single in zip(rotated(), head(q[:, i : i + 1], -q[:, i : i + 1], pos), strict=True):
            assert same(y[:, i : i + 1], single)


# ---- mixed frequencies ----


def test_mixed_frequencies_rotate_as_those_given_to_the_rope():
    module, q, k, pos = Mixed(HALF, 2, 3), normal(2, 2, 6, 16), normal(2, 2, 6, 16, seed=1), normal(2, 6, 3)
    rotation = HALF.rotation_mixed(pos, like=q, inv_freq=module.inv_freq.detach())
    assert all(map(same, (y.detach() for y in module(q, k, pos)), rotation.apply((q, k))))
    cos, _ = module(q, position_ids=pos)
    assert same(cos.detach(), rotation.full_width(torch.float32)[0])


@pytest.mark.parametrize("rope", [HALF, SCALED], ids=["plain", "scaled"])
def test_mixed_frequencies_start_with_the_lengths_of_the_rope(rope):
    torch.manual_seed(0)
    module = Mixed(rope, heads=50, coordinates=3)
    lengths = torch.linalg.vector_norm(module.inv_freq.detach(), dim=1)
    assert torch.allclose(lengths, torch.tensor(rope.frequencies).expand(50, 8), rtol=1e-5, atol=0)
    directions = module.inv_freq.detach() / lengths[:, None]
    assert directions.mean((0, 2)).abs().max() < 0.15  # no direction is preferred
    assert math.isclose(module.rotation([[0, 0, 0]], like=Q).cos.max().item(), rope.amplitude, rel_tol=1e-6)


# ---- tracing ----


@by_module
def test_compiled_over_lengths(make, fresh_dynamo):
    from torch._dynamo.testing import CompileCounterWithBackend

    model = Attention(changed(make()))
    counter = CompileCounterWithBackend("aot_eager" if isinstance(model.rotary, Learned) else "eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for length in (3, 4, 9, 17):
        x, pos = normal(2, length, 32), positions_for(model.rotary, length)
        gradients = []
        for function in (model, compiled):
            model.zero_grad()
            y = function(x, pos)
            y.square().sum().backward()
            gradients.append([y, *(parameter.grad for parameter in model.parameters())])
        for eager, by_program in zip(*gradients, strict=True):
            assert torch.allclose(eager, by_program, atol=1e-5, rtol=1e-4)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("make", [RotaryEmbedding, Learned])
def test_layers_compiled_one_by_one_share_their_code(make, fresh_dynamo):
    """Each layer has a module and a rope of its own: more layers than Dynamo's limit of recompilations."""
    from torch._dynamo.testing import CompileCounter

    counter, layers = CompileCounter(), [Attention(make(ra.RoPE(16))) for _ in range(10)]
    for layer in layers:
        layer.compile(backend=counter, fullgraph=True)
    y = normal(2, 5, 32).requires_grad_()
    for layer in layers:
        y = layer(y, torch.arange(5))
    assert counter.frame_count == 1


def test_a_mistake_in_a_compiled_function_is_named(fresh_dynamo):
    for module in (FIXED, Learned(HALF)):
        for fullgraph in (False, True):
            with pytest.raises(Exception, match="positions are missing"):
                torch.compile(module, backend="eager", fullgraph=fullgraph)(Q, K)


@by_module
def test_exported_with_a_dynamic_length(make):
    module = changed(make())
    q, length = normal(2, 2, 5, 16), torch.export.Dim("length", min=2, max=4096)
    shapes = {2: length}, {2: length}, {0: length}
    arguments = q, -q, positions_for(module, 5)
    program = torch.export.export(module, arguments, dynamic_shapes=shapes)
    for size in (2, 77):
        q, pos = normal(2, 2, size, 16), positions_for(module, size)
        for y, expected in zip(program.module()(q, -q, pos), module(q, -q, pos), strict=True):
            assert torch.allclose(y, expected, atol=1e-6)


# ---- tables of recorded programs ----

LENGTH = 70_001
TABLED = RotaryEmbedding(HALF, tables=LENGTH)
ROWS = torch.tensor([0, 1, 4095, 70_000, 77])
RECORDERS = {
    "export": torch.export.export,
    "strict export": lambda *call: torch.export.export(*call, strict=True),
    "jit.trace": torch.jit.trace,
}
by_recorder = pytest.mark.parametrize("record", RECORDERS.values(), ids=RECORDERS)


def recorded(record, *call):
    program = record(*call)
    return program.module() if hasattr(program, "module") else program


def constants(program):
    """Return the tensors that an exported program has, by their memory."""
    tensors = [*program.constants.values(), *program.state_dict.values()]
    return {tensor.data_ptr(): tensor for tensor in tensors if tensor.ndim}


@by_recorder
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_recorded_program_rotates_by_tables(record, dtype):
    """Of a module made on the device meta, cast and copied; NaN outside the tables."""
    with torch.device("meta"):
        module = copy.deepcopy(RotaryEmbedding(HALF, tables=LENGTH).bfloat16())
    q, k = normal(2, 2, 5, 16, dtype=dtype), normal(2, 2, 5, 16, dtype=dtype, seed=1)
    for kind in (torch.int64, torch.int32):
        program = recorded(record, module, (q, k, torch.arange(5, dtype=kind)))
        for y, x in zip(program(q, k, ROWS.to(kind)), (q, k), strict=True):
            judge(y, x, ROWS, **FIELDS["half"])
        outside = torch.tensor([3, -1, LENGTH, torch.iinfo(kind).max, torch.iinfo(kind).min], dtype=kind)
        y = program(q, k, outside)[0]
        judge(y[..., :1, :], q[..., :1, :], outside[:1], **FIELDS["half"])
        assert y[..., 1:, :].isnan().all()


BLOCKS = {"coordinates": [0] * 4 + [1] * 4, "widths": [8, 8]}
OF_TABLES = {**FIELDS, "axial": {"axes": BLOCKS}, "no rotation": {"rotary_dim": 0}}


@by_recorder
@pytest.mark.parametrize("name", OF_TABLES)
def test_every_rope_is_recorded_with_tables(name, record):
    rope = AXIAL if name == "axial" else ROPES.get(name, ra.RoPE(16, rotary_dim=0))
    module, pos = RotaryEmbedding(rope, seq_axis=-3, tables=LENGTH), torch.stack([ROWS, ROWS.flip(0)])
    pos = torch.stack([pos, pos // 2], -1) if rope is AXIAL else pos
    q, k = normal(2, 5, 3, 16), normal(2, 5, 2, 16, seed=1)
    for positions in (pos, pos[0], (pos % 1000).to(torch.int16)):
        rotated = recorded(record, module, (q, k, positions))(q, k, positions)
        for y, x in zip(rotated, (q, k), strict=True):
            judge(y.transpose(1, 2), x.transpose(1, 2), positions, **OF_TABLES[name])


def test_tables_are_float32_and_shared_by_the_layers_of_a_program():
    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([RotaryEmbedding(ra.RoPE(16), tables=50) for _ in range(3)])

        def forward(self, q, k, positions):
            for layer in self.layers:
                q, k = layer(q, k, positions)
            return q, k

    program = torch.export.export(Layers(), (Q, K, IDS))
    tables = constants(program).values()
    assert sorted((tuple(t.shape), t.dtype) for t in tables) == [((52, 8), torch.float32)] * 2
    y = Q.clone().requires_grad_()
    program.module()(y, K, IDS)[0].sum().backward()
    expected = torch.ones_like(Q)
    for _ in range(3):
        expected = ra.RoPE(16).rotation(IDS, like=Q).adjoint().apply(expected)
    assert torch.allclose(y.grad, expected, atol=1e-5)


def test_tables_change_no_call_that_is_not_recorded(fresh_dynamo):
    """Eager calls have exact angles at every position of a tensor, and so do compiled calls."""
    assert [*TABLED.parameters(), *TABLED.buffers(), *TABLED.state_dict()] == []
    assert repr(TABLED) == f"{repr(FIXED)[:-1]}, tables={LENGTH})"
    for module in (TABLED, saved(TABLED), copy.deepcopy(TABLED).half()):
        assert module.tables == LENGTH
        for positions in (ROWS, range(5), torch.tensor([-1, LENGTH, 2**31 - 1, -5, 3])):
            for y, expected in zip(module(Q, K, positions), FIXED(Q, K, positions), strict=True):
                assert same(y, expected)
    compiled = torch.compile(TABLED, backend="eager", fullgraph=True)
    assert torch.equal(compiled(Q, K, ROWS + 1)[0], FIXED(Q, K, ROWS + 1)[0])


@by_recorder
def test_cos_and_sin_take_the_place_of_positions(record):
    rotation = FIXED.rotation(ROWS, like=Q)
    for module in (FIXED, Learned(HALF)):
        assert all(map(same, module(Q, K, rotation), rotation.apply((Q, K))))
        assert all(map(same, module(Q, K, tuple(rotation)), rotation.apply((Q, K))))
    program = recorded(record, FIXED, (Q, K, FIXED.rotation(IDS, like=Q)))
    for y, x in zip(program(Q, K, rotation), (Q, K), strict=True):
        judge(y, x, ROWS, **FIELDS["half"])


# ---- norm, rotation and caches ----


@pytest.mark.parametrize("heads", [None, (4, 2)], ids=["shared", "of each head"])
def test_attention_inputs_is_one_call_with_the_module_s_weights(heads):
    """By positions and by a Rotation, with caches, and gradients of both weights."""
    inputs = changed(ra.torch.AttentionInputs(HALF, heads=heads, eps=1e-3, offset=1.0, seq_axis=-3))
    q, k, v, pos = normal(5, 4, 16), normal(5, 2, 16, seed=1), normal(5, 2, 16, seed=2), torch.arange(5)
    options = {"norm": (inputs.q_weight, inputs.k_weight), "eps": 1e-3, "offset": 1.0, "seq_axis": -3}
    expected = ra.attention_inputs(q, k, pos, HALF, **options)
    for positions in (pos, inputs.rotation(pos, like=q)):
        assert all(map(torch.equal, inputs(q, k, positions), expected))
    sum(y.sum() for y in inputs(q, k, pos)).backward()
    assert all(weight.grad.any() for weight in inputs.parameters())
    with torch.no_grad():
        pages = torch.zeros(2, 8, 2, 16)
        *_, caches = inputs(q, k, pos, v, cache=tuple(pages), slots=torch.arange(2, 7))
    assert torch.equal(caches[0][2:7], expected[1])
    assert torch.equal(pages[1, 2:7], v)


@pytest.mark.parametrize("options", [{}, {"tables": LENGTH, "rounding": "steps"}], ids=["angles", "tables"])
def test_attention_inputs_is_traced(options):
    """Sizes of a trace are tensors."""
    inputs = changed(ra.torch.AttentionInputs(HALF, **options)).requires_grad_(False)
    traced = torch.jit.trace(inputs, (Q, K, IDS))
    for y, expected in zip(traced(2 * Q, K, ROWS), inputs(2 * Q, K, ROWS), strict=True):
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-5)


def test_attention_inputs_without_a_norm_rotates():
    inputs = ra.torch.AttentionInputs(HALF, norm=False, tables=9)
    q, pos = normal(2, 5, 16), torch.arange(5)
    program = torch.export.export(inputs, (q, 2 * q, pos))
    assert [tuple(table.shape) for table in constants(program).values()] == [(11, 8)] * 2
    judge(program.module()(q, 2 * q, pos + 4)[0], q, pos + 4, **FIELDS["half"])
    assert not list(inputs.parameters())
    assert torch.equal(inputs(q, None, pos)[0], HALF.apply(q, pos))
    with pytest.raises(ra.ShapeError, match="a position is no offset"):
        inputs(q, q, 7)
    with pytest.raises(ra.SpecError, match="give the numbers of heads of q and of k"):
        ra.torch.AttentionInputs(HALF, heads=4)
    for options, text in (
        ({"eps": -1.0}, "eps is -1.0"),
        ({"rounding": "bits"}, "rounding is 'bits'"),
        ({"heads": (0, 2)}, "heads is"),
        ({"norm": False, "heads": (4, 2)}, "norm is False"),
        ({"norm": "yes"}, "norm is 'yes'"),
    ):
        with pytest.raises(ra.SpecError, match=text):
            ra.torch.AttentionInputs(HALF, **options)
    with pytest.raises(TypeError, match="multiple values for keyword argument 'eps'"):
        inputs(q, None, pos, eps=0.1)
