"""rope_array.torch: calls of the modules, state that casts and checkpoints keep, gradients, tracing."""

import copy
import io
import math
import pickle
import re

import child
import numpy as np
import pytest
from compare import judge, same
from torch_cases import FIELDS, IGNORED, ROPES, normal

import rope_array as ra
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", FIELDS)
def test_queries_and_keys_are_rotated_by_the_definition(name, dtype):
    q, k = normal(2, 4, 5, 16, dtype=dtype), normal(2, 1, 5, 16, dtype=dtype, seed=1)
    pos = torch.tensor([0, 1, 77, 1_000_003, 2**31 - 1])
    for y, x in zip(RotaryEmbedding(ROPES[name])(q, k, pos), (q, k), strict=True):
        judge(y, x, pos, **FIELDS[name])


def test_tensors_of_batch_sequence_heads():
    q, k, pos = normal(2, 5, 4, 16), normal(2, 5, 1, 16), torch.arange(10).reshape(2, 5) * 1_001
    for module in (RotaryEmbedding(HALF, seq_axis=-3), Learned(HALF, seq_axis=-3)):
        for y, x in zip(module(q, k, pos), (q, k), strict=True):
            judge(y.transpose(1, 2), x.transpose(1, 2), pos, **FIELDS["half"])


@pytest.mark.parametrize(
    "pos", [torch.arange(5.0) / 2, torch.arange(10).reshape(2, 5), range(5), [4, 0, 9, 1, 2]], ids=str
)
def test_every_form_of_positions(pos):
    q, k = normal(2, 4, 5, 16), normal(2, 1, 5, 16)
    for module in (RotaryEmbedding(HALF), Learned(HALF)):
        for y, x in zip(module(q, k, positions=pos), (q, k), strict=True):
            judge(y, x, np.asarray(pos), **FIELDS["half"])


@pytest.mark.parametrize(
    "pos", [0, 7, 2.5, range(7, 8), torch.tensor(7), torch.tensor([[7], [100]])], ids=str
)
@pytest.mark.parametrize("axis", [-2, -3])
def test_one_position_is_no_offset(pos, axis):
    """A number serves one token; for more, the message gives the positions that follow it."""
    q = normal(2, 4, 5, 16) if axis == -2 else normal(2, 5, 4, 16)
    one = q.narrow(axis, 0, 1)
    for module in (RotaryEmbedding(HALF, seq_axis=axis), Learned(HALF, seq_axis=axis)):
        assert same(module(one, one, pos)[1], HALF.apply(one, pos, seq_axis=axis))
        with pytest.raises(ra.ShapeError, match="a position is no offset") as caught:
            module(q, q, pos)
        each, call = re.findall(r"another, give (.*?)\. .* call (.*)\.$", str(caught.value))[0]
        names = {"positions": pos, "q": q, "k": q, "torch": torch, "range": range, "module": module}
        y, _ = module(q, q, eval(each, names))
        want = torch.as_tensor(pos) + torch.arange(5)
        judge(*(x if axis == -2 else x.transpose(1, 2) for x in (y, q)), want, **FIELDS["half"])
        assert same(eval(call, names)[0], HALF.apply(q, pos, seq_axis=axis))


@pytest.mark.parametrize("heads", [2, 4], ids=["fewer key heads", "as many key heads"])
@pytest.mark.parametrize("pos", [3, [[3], [5]]], ids=str)
def test_heads_of_one_token_are_no_tokens(pos, heads):
    """Without an axis of tokens the axis of the heads takes its place: the message has a call for heads."""
    q, k, module = normal(2, 4, 16), normal(2, heads, 16), RotaryEmbedding(HALF)
    with pytest.raises(ra.ShapeError, match=r"axis -2 of q has the size 4") as caught:
        module(q, k, pos)
    (call,) = re.findall(r"heads of one token, call (.*)\.$", str(caught.value))
    got = eval(call, {"module": module, "positions": pos, "q": q, "k": k})
    for y, x in zip(got, (q, k), strict=True):
        assert same(y, HALF.apply(x[..., None, :], [[[3]], [[5]]] if pos != 3 else 3)[..., 0, :])


@pytest.mark.parametrize("pos", [3, [[3], [5]], torch.tensor([[3], [5]])], ids=str)
def test_queries_and_keys_of_different_lengths_are_two_calls(pos):
    q, k = normal(2, 4, 1, 16), normal(2, 4, 64, 16)
    for xs in ((q, k), (k, q)):
        with pytest.raises(
            ra.ShapeError, match=r"rotate each .* module\.rotation\(positions, like=q\)\.apply"
        ):
            RotaryEmbedding(HALF)(*xs, pos)
    with pytest.raises(ra.ShapeError, match="call once for each array"):
        RotaryEmbedding(HALF)(q, k, range(64))


@pytest.mark.filterwarnings("always")
def test_one_position_is_refused_in_a_trace_without_a_warning_of_its_own():
    q = torch.randn(1, 2, 5, 16)
    with pytest.raises(ra.ShapeError, match="a position is no offset"):
        torch.jit.trace(RotaryEmbedding(HALF), (q, q, torch.tensor([3])))
    with pytest.warns(torch.jit.TracerWarning) as caught:  # of other checks
        torch.jit.trace(RotaryEmbedding(HALF), (q, q, torch.arange(5)))
    assert not [each for each in caught if each.filename.endswith("_rotary.py")]


def test_one_position_of_coordinates():
    axial, mixed = RotaryEmbedding(ra.RoPE(16, axes=ra.Axes.axial(8, 8))), Mixed(HALF, 4)
    q = normal(1, 4, 3, 16)
    for module in (axial, mixed):
        assert module(q[..., :1, :], q[..., :1, :], [[1, 2]])[0].shape == (1, 4, 1, 16)
        assert module(q, q, [[1, 2]] * 3)[0].shape == q.shape
        with pytest.raises(ra.ShapeError, match="give 3 positions"):
            module(q, q, [[1, 2]])


def test_coordinates():
    rope = ra.RoPE(16, axes=ra.Axes.chunked(4, 4), pairing="half")
    q, pos = normal(2, 2, 6, 16), torch.cartesian_prod(torch.arange(2), torch.arange(3))
    want = rope.apply(q, pos)
    for module in (RotaryEmbedding(rope), Learned(rope)):
        assert same(module(q, q, pos)[1], want)


def test_the_call_for_one_tensor_names_the_axis_of_the_module():
    for axis, call_of_q in ((-2, r"apply\(q\) for"), (-3, r"apply\(q, seq_axis=-3\) for"), (1, "seq_axis=1")):
        with pytest.raises(ra.ArrayTypeError, match=call_of_q):
            RotaryEmbedding(HALF, seq_axis=axis)(Q)


@by_module
def test_a_model_on_meta_has_the_right_shapes(make):
    with torch.device("meta"):
        module, q = make(), torch.empty(2, 2, 5, 16)
        y, _ = module(q, q, positions_for(module, 5))
    assert y.is_meta
    assert y.shape == q.shape


# ---- module(x, position_ids) ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", [RotaryEmbedding, Learned])
def test_tables_of_full_width(make, dtype):
    ids = torch.tensor([[0, 1, 2, 900], [3, 4, 5, 70_000]])
    truth = cos_sin(ids.numpy(), rotary_dim=16, base=500_000.0)
    module, x = make(HALF), normal(2, 4, 32, dtype=dtype)
    for tables in (module(x, ids), module(x, position_ids=ids)):
        for table, exact in zip(tables, truth, strict=True):
            assert (table.dtype, table.shape) == (dtype, (2, 4, 16))
            exact = torch.tensor(np.concatenate([exact, exact], -1))
            limit = 9.5e-8 if dtype == torch.float32 else 2.0**-8
            assert (table - exact).abs().max() <= limit


def test_named_position_ids_may_be_floats():
    ids, x = torch.arange(6.0).reshape(1, 6) / 4, normal(1, 6, 32)
    cos, _ = RotaryEmbedding(HALF)(x, position_ids=ids)
    exact, _ = cos_sin(ids.numpy(), rotary_dim=16, base=500_000.0)
    assert np.abs(cos.numpy()[..., :8] - exact).max() <= 4e-7


def test_tables_rotate_as_the_module_does():
    """With the function of Hugging Face's models: x·cos + rotate_half(x)·sin."""
    q, pos = normal(2, 4, 5, 16), torch.arange(5)[None]
    for module in (RotaryEmbedding(HALF), changed(Learned(HALF))):
        cos, sin = (table[:, None] for table in module(normal(2, 5, 64), pos))
        swapped = torch.cat([-q[..., 8:], q[..., :8]], -1)
        assert torch.allclose(q * cos + swapped * sin, module(q, q, pos)[0], atol=1e-6)


# ---- calls that are wrong ----

Q, K, IDS = normal(1, 4, 5, 16), normal(1, 2, 5, 16), torch.arange(5)
FIXED = RotaryEmbedding(HALF)
WRONG = {
    "positions are missing": (lambda: FIXED(Q, K), ra.ArrayTypeError, r"positions are missing; .*arange"),
    "all but q is missing": (lambda: FIXED(Q), ra.ArrayTypeError, "positions are missing"),
    "k is missing": (lambda: FIXED(Q, positions=IDS), ra.ArrayTypeError, "k is missing"),
    "nothing is given": (lambda: FIXED(None), ra.ArrayTypeError, "first argument is None"),
    "a range without k": (lambda: FIXED(Q, range(5)), ra.ArrayTypeError, "integer tensor"),
    "a mask without k": (lambda: FIXED(Q, IDS > 2), ra.ArrayTypeError, "bool"),
    "positions first": (lambda: FIXED(IDS, Q, K), ra.ArrayTypeError, "first argument is int64"),
    "positions second": (lambda: FIXED(Q, IDS, K), ra.ArrayTypeError, r"k is int64\[5\]"),
    "a tuple": (lambda: FIXED((Q, K), IDS), ra.ArrayTypeError, "a tuple of length 2"),
    "both names": (lambda: FIXED(Q, K, IDS, position_ids=IDS), ra.ArrayTypeError, "takes x alone"),
    "position_ids with k": (lambda: FIXED(Q, K, position_ids=IDS), ra.ArrayTypeError, "takes x alone"),
    "a type of layer": (
        lambda: FIXED(Q, IDS, "full_attention"),
        ra.ArrayTypeError,
        r"layer_type='full_attention'\)",
    ),
    "bfloat16 positions": (lambda: FIXED(Q, K, IDS.bfloat16()), ra.ArrayTypeError, "above 2048 or 256"),
    "values as positions": (lambda: FIXED(Q, Q, Q), ra.ShapeError, "as if both were queries or keys"),
    "NumPy positions": (lambda: FIXED(Q, K, np.arange(5)), ra.ArrayTypeError, "torch.as_tensor"),
    "another width": (lambda: FIXED(Q[..., :8], K, IDS), ra.ShapeError, "16 features of one head"),
    "heads not split": (lambda: FIXED(normal(1, 5, 64), K, IDS), ra.ShapeError, "Split its 4 heads"),
    "the other seq_axis": (
        lambda: FIXED(Q.transpose(1, 2), K.transpose(1, 2), IDS),
        ra.ShapeError,
        "seq_axis=-3",
    ),
    "a width for a rope": (lambda: RotaryEmbedding(64), ra.SpecError, r"ra\.RoPE\(head_dim=64\)"),
    "a config for a rope": (lambda: Learned({"rope_theta": 1e4}), ra.SpecError, "from_config"),
    "a rope without its length": (
        lambda: RotaryEmbedding(ra.RoPE(16, scaling=ra.DynamicNTK(2.0, 64))),
        ra.SpecError,
        "at_length",
    ),
    "mixed frequencies with axes": (
        lambda: Mixed(ra.RoPE(16, axes=ra.Axes.chunked(4, 4)), 2),
        ra.SpecError,
        "without axes",
    ),
    "no heads": (lambda: Mixed(HALF, 0), ra.SpecError, "heads is 0"),
    "other query heads": (
        lambda: Mixed(HALF, 3)(Q, Q, torch.ones(5, 2)),
        ra.ShapeError,
        "for 3 heads, and q has 4; make the module with heads=4",
    ),
    "fewer key heads": (
        lambda: Mixed(HALF, 4)(Q, K, torch.ones(5, 2)),
        ra.ShapeError,
        "for 4 heads, and k has 2; mixed frequencies need as many key heads as query heads",
    ),
    "fewer key heads after positions": (
        lambda: Mixed(HALF, 4, seq_axis=-3)(Q.transpose(1, 2), K.transpose(1, 2), torch.ones(5, 2)),
        ra.ShapeError,
        "for 4 heads, and k has 2",
    ),
    "mixed frequencies, heads not split": (
        lambda: Mixed(HALF, 4)(normal(1, 5, 64), normal(1, 5, 64), torch.ones(5, 2)),
        ra.ShapeError,
        "Split its 4 heads",
    ),
    "positions of another length": (lambda: Mixed(HALF, 4)(Q, Q, torch.ones(6, 2)), ra.ShapeError, "line up"),
    "a letter as seq_axis": (
        lambda: RotaryEmbedding(HALF, seq_axis="x"),
        ra.SpecError,
        "seq_axis is 'x'; give",
    ),
    "a bool as seq_axis": (lambda: Learned(HALF, seq_axis=True), ra.SpecError, "seq_axis is True; give"),
    "the features as seq_axis": (lambda: Mixed(HALF, 2, seq_axis=-1), ra.SpecError, "seq_axis is -1; give"),
    "a learned module without values": (
        lambda: Learned(HALF, device="meta")(Q, K, IDS),
        ra.ArrayTypeError,
        r"log_scale is on the device meta.*to_empty\(device=\.\.\.\)",
    ),
    "a rope of a module without values": (
        lambda: Learned(HALF, device="meta").to_rope(),
        ra.ArrayTypeError,
        "log_scale is on the device meta",
    ),
    "a mixed module without values": (
        lambda: Mixed(HALF, 4, device="meta")(Q, Q, torch.ones(5, 2)),
        ra.ArrayTypeError,
        "inv_freq is on the device meta",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_refused(name):
    function, error, text = WRONG[name]
    with pytest.raises(error, match=text) as caught:
        function()
    if "argument" in str(caught.value) or "missing" in str(caught.value):
        assert "Call module(q, k, positions)" in str(caught.value)


@by_module
def test_torch_script_is_refused(make):
    with pytest.raises(ra.RoPEError, match=r"torch\.compile or torch\.export"):
        torch.jit.script(torch.nn.Sequential(make()))


# ---- nothing to cast, to lose or to store ----


def saved(module):
    """Save a module whole, and load it."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def from_meta(make):
    """Make a module without memory, then allocate it."""
    with torch.device("meta"):
        module = make()
    assert all(parameter.is_meta for parameter in module.parameters())
    module.to_empty(device="cpu")
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
    return module


COPIES = {
    "bfloat16": lambda module: module.bfloat16(),
    "float16": lambda module: module.half(),
    "to": lambda module: module.to("cpu", torch.bfloat16),
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
    want = call(module)
    copied = COPIES[name](module)
    assert all(map(same, call(copied), want))
    assert repr(copied) == repr(module)
    assert all(parameter.dtype == torch.float32 for parameter in copied.parameters())


@pytest.mark.parametrize("make", [MODULES["fixed"], MODULES["learned"]], ids=["fixed", "learned"])
def test_modules_made_on_meta_rotate_as_others(make):
    assert all(map(same, call(from_meta(make)), call(make())))


def test_the_fixed_module_has_no_state():
    model = torch.nn.Sequential(FIXED)
    assert [*model.parameters(), *model.buffers(), *model.state_dict()] == []
    model.load_state_dict({}, strict=True)


def test_the_module_shows_its_rope():
    assert repr(FIXED) == "RotaryEmbedding(RoPE(head_dim=16, base=500000.0, pairing='half'))"
    assert repr(Learned(ra.RoPE(4), seq_axis=-3)) == "LearnedRotaryEmbedding(RoPE(head_dim=4), seq_axis=-3)"


@by_module
def test_a_default_dtype_of_bfloat16(make):
    want = call(make().eval()) if make is not MODULES["mixed"] else None
    torch.set_default_dtype(torch.bfloat16)
    try:
        module = make()
        assert all(parameter.dtype == torch.float32 for parameter in module.parameters())
        assert want is None or all(map(same, call(module), want))
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


@by_module
def test_autocast_changes_no_bit(make):
    module = changed(make())
    want = call(module)
    with torch.autocast("cpu", torch.bfloat16):
        assert all(map(same, call(module), want))


@by_module
def test_training_after_inference_mode_and_by_checkpoint(make):
    model = Attention(changed(make()))
    x, pos = normal(2, 5, 32), positions_for(model.rotary, 5)
    with torch.inference_mode():
        first = model(x, pos)

    def gradients(**options):
        model.zero_grad()
        function = torch.utils.checkpoint.checkpoint if options else lambda f, *a: f(*a)
        y = function(model, x, pos, **options)
        assert same(y.detach(), first)
        y.square().sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    want = gradients()
    assert all(gradient.abs().sum() > 0 for gradient in want)
    assert all(map(same, gradients(use_reentrant=False), want))


# ---- learned frequencies ----


@pytest.mark.parametrize("rope", [*ROPES.values(), SCALED], ids=[*ROPES, "scaled"])
def test_initial_learned_rotation_equals_the_rope(rope):
    q, pos = normal(2, 2, 5, 16), torch.tensor([0, 1, -5, 70_000, 2**31 - 1])
    fixed, learned = RotaryEmbedding(rope), Learned(rope)
    assert all(map(same, learned(q, -q, pos), fixed.rotation(pos, like=q).apply((q, -q))))
    assert torch.allclose(learned.frequencies, torch.tensor(rope.frequencies), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("dtype", "eps"), [(torch.float32, 2.0**-22), (torch.float64, 2.0**-50)])
@pytest.mark.parametrize("size", [1e-6, 0.3])
def test_learned_frequencies_rotate_by_the_definition(size, dtype, eps):
    """The error is that of the learned change of an angle, not of the whole angle."""
    module, pos = Learned(HALF).to(dtype), torch.tensor([0, 1, 77, 100_003, 1_000_003])
    module.log_scale.data += size * torch.linspace(-1, 1, 8)
    scale = np.exp(module.log_scale.detach().double().numpy())
    omegas = np.array(HALF.frequencies) * scale
    change = np.abs(np.array(HALF.frequencies) * (scale - 1)).max() * pos.numpy()
    q = normal(2, 2, 5, 16, dtype=dtype)
    y = module(q, q, pos)[0].detach().double().numpy()
    truth = apply_definition(q.double().numpy(), pos.numpy(), inv_freq=omegas.tolist(), pairing="half")
    largest = np.abs(q.double().numpy()).max()
    # The last term is the rounding of the definition's frequencies to float64.
    limit = largest * (8 * torch.finfo(dtype).eps + 2 * eps * change + 2.0**-51 * pos.numpy())
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


def test_training_finds_the_frequencies():
    """Adam finds the base of the target, from another."""
    torch.manual_seed(0)
    target, module = ra.RoPE(16, base=1_000.0), Learned(ra.RoPE(16, base=500.0))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    q, pos = normal(64, 16), torch.arange(64)
    want = target.apply(q, pos)
    for _ in range(150):
        loss = (module.rotation(pos, like=q).apply(q) - want).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 1e-4
    found = np.array(module.to_rope().frequencies)
    assert np.allclose(found[:6], target.frequencies[:6], rtol=0.02)


def test_state_round_trip():
    for make in (MODULES["learned"], MODULES["mixed"]):
        module, other = changed(make()), make()
        state = module.state_dict()
        assert len(state) == 1
        other.load_state_dict({name: value.clone() for name, value in state.items()})
        assert all(map(same, call(other), call(module)))


@pytest.mark.parametrize("make", [MODULES["learned"], MODULES["mixed"]], ids=["learned", "mixed"])
def test_parameters_of_16_bits_are_refused(make):
    module = make()
    state = {name: value.bfloat16() for name, value in module.state_dict().items()}
    module.load_state_dict(state, assign=True)
    with pytest.raises(ra.ArrayTypeError, match=r"bfloat16.*must stay float32"):
        call(module)
    module = make()
    module.load_state_dict(state)  # copies into float32
    call(module)


def test_a_parametrized_module():
    """Learn one factor for all pairs."""

    class Shared(torch.nn.Module):
        def forward(self, value):
            return value.mean().expand(8)

        def right_inverse(self, value):
            return value

    module = Learned(HALF)
    torch.nn.utils.parametrize.register_parametrization(module, "log_scale", Shared())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    call(module)[0].sum().backward()
    optimizer.step()
    scales = module.frequencies.detach() / torch.tensor(HALF.frequencies)
    assert torch.allclose(scales, scales[:1].expand(8), rtol=1e-5)
    assert not torch.allclose(scales, torch.ones(8))


# ---- mixed frequencies ----


def test_mixed_frequencies_rotate_by_their_definition():
    torch.manual_seed(0)
    module, q, k = Mixed(HALF, 2, 3), normal(2, 2, 6, 16), normal(2, 2, 6, 16, seed=1)
    pos = normal(2, 6, 3, seed=2) * 5
    angle = np.einsum("bsa,hai->bhsi", pos.double().numpy(), module.inv_freq.detach().double().numpy())
    for y, x in zip(module(q, k, pos), (q, k), strict=True):
        pairs = x.double().numpy()
        rotated = (pairs[..., :8] + 1j * pairs[..., 8:]) * np.exp(1j * angle)
        want = np.concatenate([rotated.real, rotated.imag], -1)
        assert np.abs(y.detach().numpy() - want).max() <= 1e-5
    cos, _ = module(normal(2, 2, 6, 16), position_ids=pos)
    assert np.abs(cos.detach().numpy()[..., :8] - np.cos(angle)).max() <= 2e-6


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
        for one, other in zip(*gradients, strict=True):
            assert torch.allclose(one, other, atol=1e-5, rtol=1e-4)
    assert counter.frame_count <= 2


def test_compiled_tables_over_lengths(fresh_dynamo):
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    compiled = torch.compile(FIXED, backend=counter, fullgraph=True)
    for length in (3, 4, 9, 17):
        x, ids = normal(2, length, 32, dtype=torch.bfloat16), torch.arange(length)[None] + 7
        assert all(map(same, compiled(x, ids), FIXED(x, ids)))
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
def test_exported_with_a_dynamic_length_and_saved(make):
    module = changed(make())
    q, length = normal(2, 2, 5, 16), torch.export.Dim("length", min=2, max=4096)
    shapes = {2: length}, {2: length}, {0: length}
    arguments = q, -q, positions_for(module, 5)
    program = torch.export.export(module, arguments, dynamic_shapes=shapes)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for size in (2, 77):
        q, pos = normal(2, 2, size, 16), positions_for(module, size)
        for y, want in zip(loaded(q, -q, pos), module(q, -q, pos), strict=True):
            assert torch.allclose(y, want, atol=1e-6)


# ---- distributed training, in one process ----

DISTRIBUTED = """
    import torch, warnings
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
    import test_torch_modules as cases
    import rope_array as ra

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)

    def step(model, x, pos):
        y = model(x, pos)
        y.float().square().sum().backward()
        return [y.detach(), *(getattr(p.grad, "full_tensor", lambda: p.grad)() for p in model.parameters())]

    for name, make in cases.MODULES.items():
        model = cases.Attention(cases.changed(make()))
        x, pos = cases.normal(2, 5, 32), cases.positions_for(model.rotary, 5)
        state = {key: value.clone() for key, value in model.state_dict().items()}
        want = step(model, x, pos)

        def fresh(make=make, state=state):
            model = cases.Attention(make())
            model.load_state_dict(state)
            return model

        replicated = torch.nn.parallel.DistributedDataParallel(fresh())
        for got, truth in zip(step(replicated, x, pos), want, strict=True):
            assert torch.equal(got, truth), name

        for first in (False, True):
            model = fresh()
            if first:
                fully_shard(model.rotary, mesh=mesh)
            fully_shard(model, mesh=mesh)
            for got, truth in zip(step(model, x, pos), want, strict=True):
                assert torch.allclose(got, truth, atol=1e-6), name

        # `rotation` is no forward: fully_shard gathers for it only if it is registered.
        sharded = fully_shard(fresh().rotary, mesh=mesh)
        q = cases.normal(2, 2, 5, 16)
        try:
            assert name == "fixed" or not sharded.rotation(pos, like=q)
        except ra.ArrayTypeError as error:
            assert 'register_fsdp_forward_method(module, "rotation")' in str(error)
        register_fsdp_forward_method(sharded, "rotation")
        sharded.rotation(pos, like=q).apply(q)

        # Without memory at first, then sharded, allocated and initialised.
        with torch.device("meta"):
            model = cases.Attention(make())
        fully_shard(model, mesh=mesh).to_empty(device="cpu")
        model.qkv.reset_parameters()
        if name != "fixed":
            model.rotary.reset_parameters()
        rotary = model.rotary
        if name == "learned":
            assert rotary.log_scale.full_tensor().abs().max() == 0
        if name == "mixed":
            lengths = torch.linalg.vector_norm(rotary.inv_freq.full_tensor().detach(), dim=1)
            assert torch.allclose(lengths, torch.tensor(rotary.rope.frequencies).expand_as(lengths))
        assert torch.isfinite(model(x, pos)).all()

        # In bfloat16 the parameters of the rotary module need a group of their own.
        model = fully_shard(fresh(), mesh=mesh, mp_policy=policy)
        try:
            assert name == "fixed" or not len(step(model, x, pos))
        except ra.ArrayTypeError as error:
            assert "shard this module first" in str(error)
        model = fresh()
        fully_shard(model.rotary, mesh=mesh)
        step(fully_shard(model, mesh=mesh, mp_policy=policy), x, pos)
    dist.destroy_process_group()
    """


@pytest.mark.slow
def test_distributed_training():
    child.run(DISTRIBUTED)
