"""Patched models give the outputs of the model itself: a tiny random model of every type in docs/models.md.

The truth is the model's own code, all of it in float64: see `precision`. Tests of one family follow each
other, as they share its models. Each push tests the families of IN_FULL, `nightly` all.
"""

import contextlib
import functools
import inspect
import re
import sys

import pytest
import torch
from hf import _compare
from hf._compare import FLOAT32, FLOAT64, is_same, off, state
from hf._tiny import ABSENT, FAMILIES, Tiny, answer, rotaries
from hf._tiny_config import FAMILY, by_family
from hf._walk import cases
from oracle import pair

from rope_array import ConfigError, PatchError, _dispatch, config, convert, hf

UNITS = 2.0**-29  # the rounding of float64, relative to the rounding of float32
SMALLEST = 2e-7  # a few roundings of float32: an output of few sums can be right by luck
ANGLES = ("exact", "float32")

REFUSED, LEFT = by_family(FAMILY["refused"]), FAMILY["left"]
OWN_FUNCTION = FAMILY["own_function"].split()
OWN_FUNCTION_FLOAT32 = [*OWN_FUNCTION, *FAMILY["own_function_float32"].split()]
NORMS_ON_PUSH = ["cohere", "exaone4", "gemma3n", "glm4_moe", "nanochat", "olmo2", "qwen3"]
IN_FULL, TRAINED = FAMILY["in_full"].split(), FAMILY["trained"].split()

SERVED = [tiny for tiny in FAMILIES if tiny.model_type not in REFUSED]


class Family:
    """The models of a family, each made at its first use, with their own outputs."""

    def __init__(self, tiny):
        self.tiny, self.name = tiny, tiny.model_type

    @functools.cached_property
    def model(self):
        return self.tiny.make()

    @functools.cached_property
    def own(self):
        return self.run(self.model)

    @functools.cached_property
    def double(self):
        return self.tiny.make(FLOAT64)

    @functools.cached_property
    def true(self):
        return self.run(self.double)

    @functools.cached_property
    def error(self):
        """The error of the model's own code in float32."""
        error = off(self.own, self.true)
        assert 1e-8 < error < 1e-4  # a smaller error would mean that float32 was not used
        return max(error, SMALLEST)

    def run(self, model):
        with precision(model), torch.no_grad():
            return answer(model(**self.inputs(model)))

    def inputs(self, model):
        dtype = dtype_of(model)
        inputs = self.tiny.inputs(model)
        inputs = {name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()}
        return inputs | ({"use_cache": False} if self.name == FAMILY["no_cache"] else {})


def precision(model):
    """Make `float32` mean float64 in the code of a float64 model."""
    return _compare.precision(dtype_of(model))


def dtype_of(model):
    return next(model.parameters()).dtype


@pytest.fixture(scope="module")
def family(request):
    return Family(request.param)


def of_each(tinies, on_push=None):
    """Run a test on each family; with `on_push`, the families with other names in `nightly`."""
    nightly = [tiny for tiny in tinies if on_push is not None and tiny.model_type not in on_push]
    marked = [pytest.param(tiny, marks=pytest.mark.nightly) if tiny in nightly else tiny for tiny in tinies]
    return pytest.mark.parametrize(
        "family", marked, indirect=True, ids=lambda tiny: tiny.model_type, scope="module"
    )


# What a patch changes


@contextlib.contextmanager
def counted(model):
    """Count the calls of functions of the model's code that multiply by cos and sin."""
    files, calls = {sys.modules[type(module).__module__].__file__ for module in model.modules()}, []

    def watch(frame, event, argument):
        code = frame.f_code
        names = {*code.co_varnames[: code.co_argcount]}
        takes_tables = {"cos", "sin"} <= names or "freqs_cis" in names
        if event == "call" and code.co_filename in files and takes_tables:
            calls.append(code.co_name)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@contextlib.contextmanager
def without_frequencies(model, left):
    """Put another number into every buffer of a rotary module. NaN would not do: attention can drop it."""
    left_alone = {id(model.get_submodule(entry.name)) for entry in left}
    buffers = [x for module in rotaries(model) if id(module) not in left_alone for x in module.buffers()]
    kept = [x.clone() for x in buffers]
    for x in buffers:
        x.fill_(0.37)
    try:
        yield
    finally:
        for x, value in zip(buffers, kept, strict=True):
            x.copy_(value)


# Families


def test_every_type_of_the_documentation_has_a_tiny_model_or_a_reason():
    listed, tiny = {case.model for case in cases()}, {tiny.model_type for tiny in FAMILIES}
    assert tiny | ABSENT.keys() == listed
    assert not tiny & ABSENT.keys()
    assert len(ABSENT) <= 6
    assert len(SERVED) >= 180


@of_each([tiny for tiny in FAMILIES if tiny.model_type in REFUSED], {"clvp", "hunyuan_vl", "vjepa2"})
def test_a_family_is_refused_with_the_reason(family):
    before = state(family.model)
    for angles in ANGLES:
        with pytest.raises(PatchError) as refusal, hf.patched(family.model, angles=angles):
            pass
        assert REFUSED[family.name] in str(refusal.value)
    assert is_same(before, state(family.model))


# Outputs


@of_each(SERVED, IN_FULL)
def test_exact_angles_give_the_true_outputs(family):
    with hf.patched(family.double) as report:
        output = family.run(family.double)
    assert len(report)
    assert off(output, family.true) <= 10 * family.error * UNITS
    with hf.patched(family.model) as report:
        output = family.run(family.model)
    assert off(output, family.true) <= 3 * family.error
    assert {left.reason for left in report.left} == ({LEFT[family.name]} if family.name in LEFT else set())


@of_each(SERVED, IN_FULL)
def test_exact_angles_replace_the_tables_and_the_function(family):
    with counted(family.model) as calls, hf.patched(family.model) as report:
        ours = family.run(family.model)
        calls.clear()
        with without_frequencies(family.model, report.left):
            again = family.run(family.model)
        calls_own_function = bool(calls)
    assert torch.equal(ours, again)
    assert calls_own_function == (family.name in OWN_FUNCTION)


@of_each(SERVED, IN_FULL)
def test_float32_angles_give_the_outputs_of_the_model(family):
    output = family.own
    with counted(family.model) as calls, hf.patched(family.model, angles="float32"):
        calls.clear()
        assert torch.equal(family.run(family.model), output)
        assert bool(calls) == (family.name in OWN_FUNCTION_FLOAT32)
    before = state(family.model)
    for angles in ANGLES:
        with hf.patched(family.model, angles=angles):
            assert state(family.model).keys() != before.keys()
        assert is_same(before, state(family.model))
    assert torch.equal(family.run(family.model), output)


@of_each([tiny for tiny in SERVED if tiny.model_type != FAMILY["no_bfloat16"]], TRAINED)
def test_a_bfloat16_model(family):
    model = family.tiny.make(torch.bfloat16)
    output = family.run(model)
    with hf.patched(model, angles="float32"):
        assert torch.equal(family.run(model), output)
    with hf.patched(model):
        patched_output = family.run(model)
    assert patched_output.dtype is output.dtype
    # By the median, which a few tokens that are sent to other experts leave as it is.
    error, own_error = ((y.double() - family.true).abs().median() for y in (patched_output, output))
    assert error <= 1.5 * own_error


# The norm of q and k


NORMS = FAMILY["norms"]
KEPT, WITH_OPTION = by_family(NORMS["kept"]), by_family(NORMS["changes"])


@pytest.mark.parametrize(
    "tiny",
    [pytest.param(t, marks=[] if t.model_type in NORMS_ON_PUSH else pytest.mark.nightly) for t in SERVED],
    ids=lambda tiny: tiny.model_type,
)
def test_the_norm_of_a_family_is_in_one_pass_or_stays_with_the_reason(tiny, monkeypatch):
    family = Family(Tiny(tiny.model_type, WITH_OPTION.get(tiny.model_type, {})))
    passes, one_pass = [], _dispatch.attention_inputs
    monkeypatch.setattr(_dispatch, "attention_inputs", lambda *call: passes.append(1) or one_pass(*call))
    with hf.patched(family.model) as report:
        passes.clear()
        output = family.run(family.model)
    assert off(output, family.own) < 1e-4
    assert bool(passes) == (family.name in NORMS["in_one_pass"].split())
    reasons = "; ".join(filter(None, (entry.own_norm for entry in report)))
    assert KEPT.get(family.name, ("", ""))[1] in reasons
    assert not reasons or family.name in {*KEPT, "dots3_note"}  # whose vision tower alone is in one pass


# Weights of the other pairing

OTHER = {"half": "interleaved", "interleaved": "half"}
NO_WEIGHTS, CHANGES = by_family(FAMILY["weights"]), by_family(FAMILY["options"])
WEIGHTS_ON_PUSH = {*IN_FULL, "codegen", "falcon", "gptj", "phi3", "qwen3_next", "chameleon", "axk2", "zaya"}
CONVERTED = [Tiny(t.model_type, change) for t in FAMILIES for change in CHANGES.get(t.model_type, [{}])]
OTHER_PARTS = re.compile(r"(^|\.)(vision|visual|audio|codec|depth|\w*cross_attn|encoder_attn)")
HEADS = {"q", "k", "x", "xq", "xk", "tensor", "hidden_states"}


def in_pairing(x, rope, inverse=False):
    """Move features, by a loop over pairs, from the pairing of a rope to the other; or back."""
    index, blocks = [*range(x.shape[-1])], rope.axes.blocks if rope.axes else 1
    width, first = rope.rotary_dim // blocks, rope.rotary_start if len(index) == rope.head_dim else 0
    for block in range(blocks):
        for i in range(width // 2):
            old, new = (pair(p, i, width, first + block * width) for p in (rope.pairing, OTHER[rope.pairing]))
            index[new[0]], index[new[1]] = old
    return x[..., torch.tensor(index).argsort() if inverse else torch.tensor(index)]


def exchange_rotation(model, ropes, patch):
    """Put every array into the model's pairing before its own function rotates it, and back after it."""
    modules = [module for name, module in model.named_modules() if not OTHER_PARTS.search(name)]
    indexed = [module for module in modules if getattr(module, "layer_idx", None) is not None]
    layers = [] if indexed else [0]  # the layers that are called, from the outermost; in a function None
    for module in indexed:
        module.register_forward_pre_hook(lambda module, _: layers.append(module.layer_idx))
        module.register_forward_hook(lambda *_: layers.__delitem__(-1))

    def exchanged(function, *args, **options):
        if not layers or layers[-1] is None:
            return function(*args, **options)
        rope = ropes[layers[-1] if layers[-1] in ropes else max(ropes)]
        given = inspect.signature(function).bind(*args, **options).arguments
        given = {k: in_pairing(x, rope, True) if k in HEADS else x for k, x in given.items()}
        layers.append(None)
        y = function(**given)
        layers.pop()
        if rope.out_pairing:
            return y
        return tuple(in_pairing(x, rope) for x in y) if isinstance(y, tuple) else in_pairing(y, rope)

    for file in {sys.modules[type(module).__module__] for module in modules}:
        for name, function in [*vars(file).items()]:
            if re.search("apply_.*rot", name) and inspect.isfunction(function):
                patch.setattr(file, name, functools.partial(exchanged, function))


@pytest.mark.parametrize(
    "tiny",
    [
        pytest.param(t, marks=[] if t.model_type in WEIGHTS_ON_PUSH else pytest.mark.nightly)
        for t in CONVERTED
    ],
    ids=lambda tiny: "-".join([tiny.model_type, *map(str, tiny.changes)]),
)
def test_a_state_dict_in_the_other_pairing_gives_the_outputs_of_the_other_rotation(tiny, monkeypatch):
    family = Family(tiny)
    model, state = family.double, family.double.state_dict()
    if family.name in NO_WEIGHTS:
        with pytest.raises(ConfigError, match=NO_WEIGHTS[family.name]):
            convert.weights(state, model.config, "half")
        return
    ropes = {i: x.rope for layers, x in config.read_layers(model.config) for i in layers or range(9)}
    pairing = next(rope.pairing for rope in ropes.values() if rope.rotary_dim)
    new = convert.weights(state, model.config, OTHER[pairing])
    back = convert.weights(new, model.config, pairing, pairing=OTHER[pairing])
    assert (type(back), [*back], back._metadata) == (type(state), [*state], state._metadata)
    assert all(torch.equal(back[name], x) for name, x in state.items())
    true = family.true
    exchange_rotation(model, ropes, monkeypatch)
    assert off(family.run(model), true) > 1e-3
    model.load_state_dict(new)
    assert off(family.run(model), true) < 1e-12


# Training


def gradients(family, model):
    """Return the gradients of all parameters of a loss with a random weight for each output, flat."""
    model.zero_grad()
    with precision(model):
        out = answer(model(**family.inputs(model)))
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=FLOAT32)
        (out * weights.to(out.dtype)).sum().backward()
    flat = [p.grad.flatten().to(FLOAT64) for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return torch.cat(flat)


@of_each(SERVED, TRAINED)
def test_gradients_are_the_same(family):
    true, unpatched = gradients(family, family.double), gradients(family, family.model)
    error = off(unpatched, true)
    with hf.patched(family.double):
        assert off(gradients(family, family.double), true) <= 10 * error * UNITS
    for angles in ANGLES:
        with hf.patched(family.model, angles=angles):
            assert off(gradients(family, family.model), true) <= 5 * error
