"""`rope_array.hf.patched` on a tiny random model of every type that docs/models.md lists.

Collected only with `--models`, as it needs transformers and PyTorch. The truth is the model's own code, all
of it in float64 (see test_hf_models.py). Tests of one family follow each other, as they share its models.
"""

import contextlib
import copy
import functools
import inspect
import sys
import types

import pytest
import torch
import transformers
from hf._models_patch import FLOAT32, FLOAT64, precision
from hf._tiny import ABSENT, FAMILIES, answer
from hf._walk import NAMES, cases

from rope_array import hf

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

UNITS = 2.0**-29  # the rounding of float64, relative to the rounding of float32
SMALLEST = 2e-7  # a few roundings of float32: an output of few sums can be right by luck
STEPS = 8

# Families that `patch` refuses, with a part of the reason.
BY_SHAPE = "not (x, position_ids)"
REFUSED = {
    "clvp": BY_SHAPE,
    "dinov3_vit": BY_SHAPE,
    "efficientloftr": BY_SHAPE,
    "eomt_dinov3": BY_SHAPE,
    "hunyuan_vl": "the two features of a pair follow",
    "musicflamingo": BY_SHAPE,
    "sapiens2": BY_SHAPE,
    "seamless_m4t": BY_SHAPE,
    "vjepa2": "no rotary module",
    "wav2vec2_bert": BY_SHAPE,
    "wav2vec2_conformer": BY_SHAPE,
}
# Families with parts that `patch` leaves alone, with a part of the reason.
LEFT: dict[str, str] = {}
# Families whose own function still multiplies by our tables.
OWN_FUNCTION = {"deepseek_v2", "llama4", "minimax_m3_vl", "muse_glimmer_assistant", "sam3"}
# Families whose outputs have other bits with float32 angles.
OTHER_BITS = {"zaya"}
NO_TOKENS = {
    "clvp": "it generates speech from speech",
    "diffusion_gemma": "it draws blocks of tokens at random",
    "higgs_audio_v2": "it generates codes of sound, with a shape of its own",
    "kyutai_speech_to_text": "it generates from sound",
    "voxtral_realtime": "it generates as many tokens as there is sound",
}
NO_CACHE = {"blt"}  # a forward pass alone fails in making a cache

SERVED = [tiny for tiny in FAMILIES if tiny.model_type not in REFUSED]


def off(x, y):
    """Return the largest difference, relative to the largest value."""
    return float((x.double() - y.double()).abs().max() / y.double().abs().max())


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
        with precision(dtype_of(model)), torch.no_grad():
            return answer(model(**self.inputs(model)))

    def inputs(self, model):
        dtype = dtype_of(model)
        given = self.tiny.inputs(model)
        given = {name: x.to(dtype) if x.is_floating_point() else x for name, x in given.items()}
        return given | ({"use_cache": False} if self.name in NO_CACHE else {})


def dtype_of(model):
    return next(model.parameters()).dtype


@pytest.fixture(scope="module")
def family(request):
    return Family(request.param)


def of_each(tinies):
    return pytest.mark.parametrize(
        "family", tinies, indirect=True, ids=lambda tiny: tiny.model_type, scope="module"
    )


def of_some(*names):
    return of_each([tiny for tiny in SERVED if tiny.model_type in names])


# What a patch changes


def state(model):
    """Return every attribute of every module, and every global of the model's code."""
    files = {type(module).__module__ for module in model.modules()}
    found = {(name, key): value for name, m in model.named_modules() for key, value in flat(vars(m))}
    return found | {(file, key): value for file in files for key, value in vars(sys.modules[file]).items()}


def flat(attributes):
    """Yield attributes, and the items of dictionaries, such as buffers and hooks."""
    for key, value in attributes.items():
        yield key, value
        if isinstance(value, dict):
            yield from (((key, inner), item) for inner, item in value.items())


def assert_same_state(before, after):
    assert before.keys() == after.keys()
    changed = [key for key in before if before[key] is not after[key]]
    assert not changed


@contextlib.contextmanager
def counted(model):
    """Count the calls of each function of the model's code that multiplies by cos and sin."""
    calls = []
    files = {type(module).__module__ for module in model.modules()}
    with pytest.MonkeyPatch.context() as patch:
        for file in files:
            for name, function in list(vars(sys.modules[file]).items()):
                if isinstance(function, types.FunctionType) and multiplies(function):
                    patch.setattr(sys.modules[file], name, counting(function, calls))
        yield calls


def multiplies(function):
    names = inspect.signature(function).parameters
    return {"cos", "sin"} <= names.keys() or "freqs_cis" in names


def counting(function, calls):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        calls.append(function.__name__)
        return function(*args, **kwargs)

    return wrapper


@contextlib.contextmanager
def without_frequencies(model):
    """Make every buffer of a rotary module NaN."""
    found = [x for module in model.modules() if NAMES.search(type(module).__name__) for x in module.buffers()]
    kept = [x.clone() for x in found]
    for x in found:
        x.fill_(float("nan"))
    try:
        yield
    finally:
        for x, value in zip(found, kept, strict=True):
            x.copy_(value)


# Families


def test_every_type_of_the_documentation_has_a_tiny_model_or_a_reason():
    listed = {case.model for case in cases()}
    assert {tiny.model_type for tiny in FAMILIES} | ABSENT.keys() == listed
    assert not {tiny.model_type for tiny in FAMILIES} & ABSENT.keys()
    assert len(ABSENT) <= 6
    assert len(SERVED) >= 180


@of_each([tiny for tiny in FAMILIES if tiny.model_type in REFUSED])
def test_a_family_is_refused_with_the_reason(family):
    before = state(family.model)
    for angles in ("exact", "float32"):
        with pytest.raises(hf.PatchError, match=r".") as refusal, hf.patched(family.model, angles=angles):
            pass
        assert REFUSED[family.name] in str(refusal.value)
    assert_same_state(before, state(family.model))


# Outputs


@of_each(SERVED)
def test_exact_angles_give_the_true_outputs(family):
    with hf.patched(family.double) as report:
        got = family.run(family.double)
    assert len(report)
    assert off(got, family.true) <= 10 * family.error * UNITS
    with hf.patched(family.model) as report:
        got = family.run(family.model)
    assert off(got, family.true) <= 3 * family.error
    assert [left for left in report.left if LEFT.get(family.name, "?") not in left.reason] == []


@of_each(SERVED)
def test_exact_angles_replace_the_tables_and_the_function(family):
    with counted(family.model) as calls, hf.patched(family.model):
        ours = family.run(family.model)
        calls.clear()
        with without_frequencies(family.model):
            again = family.run(family.model)
        own = bool(calls)
    assert torch.equal(ours, again)
    assert own == (family.name in OWN_FUNCTION)


@of_each(SERVED)
def test_an_unpatched_model_is_as_never_patched(family):
    assert torch.equal(family.run(family.model), family.own)
    before = state(family.model)
    for angles in ("exact", "float32"):
        with hf.patched(family.model, angles=angles):
            assert state(family.model).keys() != before.keys()
        assert_same_state(before, state(family.model))
    assert torch.equal(family.run(family.model), family.own)


@of_each(SERVED)
def test_float32_angles_give_the_outputs_of_the_model(family):
    with hf.patched(family.model, angles="float32"):
        got = family.run(family.model)
    if family.name in OTHER_BITS:
        assert off(got, family.own) <= 3 * family.error
    else:
        assert torch.equal(got, family.own)


BFLOAT16 = torch.bfloat16


def in_bfloat16(family):
    """Return the model as `from_pretrained(dtype=torch.bfloat16)` does: the frequencies stay float32."""
    model = family.tiny.make()
    kept = {name: x.clone() for name, x in model.named_buffers() if name.endswith("inv_freq")}
    model.to(BFLOAT16)
    for name, x in kept.items():
        model.get_submodule(name.rpartition(".")[0])._buffers[name.rpartition(".")[2]] = x
    return model


@of_each(SERVED)
def test_float32_angles_give_the_bits_of_a_bfloat16_model(family):
    model = in_bfloat16(family)
    own = family.run(model)
    with hf.patched(model, angles="float32"):
        assert torch.equal(family.run(model), own)
    with hf.patched(model):
        got = family.run(model)
    assert got.dtype is own.dtype
    assert off(got, family.true) <= 3 * off(own, family.true)


# Training


def gradients(family, model):
    """Return the gradients of all parameters of a loss with a random weight for each output, flat."""
    model.zero_grad()
    with precision(dtype_of(model)):
        out = answer(model(**family.inputs(model)))
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=FLOAT32)
        (out * weights.to(out.dtype)).sum().backward()
    found = [p.grad.flatten().to(FLOAT64) for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return torch.cat(found)


@of_each(SERVED)
def test_gradients_are_the_same(family):
    true, own = gradients(family, family.double), gradients(family, family.model)
    error = off(own, true)
    with hf.patched(family.double):
        assert off(gradients(family, family.double), true) <= 10 * error * UNITS
    for angles in ("exact", "float32"):
        with hf.patched(family.model, angles=angles):
            assert off(gradients(family, family.model), true) <= 3 * error


# Generation


def generated(family):
    """Return the tokens that a model generates; None if it does not."""
    model = family.model
    if not getattr(model, "can_generate", lambda: False)() or family.name in NO_TOKENS:
        return None
    settings = dict(max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False, pad_token_id=0)
    return model.generate(**family.inputs(model), **settings)


@of_each(SERVED)
def test_generated_tokens_are_the_same(family):
    tokens = generated(family)
    for angles in ("exact", "float32"):
        with hf.patched(family.model, angles=angles):
            got = generated(family)
        assert got is None if tokens is None else torch.equal(got, tokens)
