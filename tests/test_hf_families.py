"""`rope_array.hf.patched` on a tiny random model of every type that docs/models.md lists.

Collected only with `--models`, as it needs transformers and PyTorch. The truth is the model's own code, all
of it in float64 (see test_hf_models.py). Tests of one family follow each other, as they share its models.
"""

import contextlib
import functools
import inspect
import sys
import types
from dataclasses import replace

import pytest
import torch
import transformers
from hf import _models_patch
from hf._compare import is_same, off, state
from hf._models_patch import FLOAT32, FLOAT64
from hf._tiny import ABSENT, FAMILIES, answer
from hf._walk import NAMES, cases

from rope_array import hf
from rope_array.hf import _rotary

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
# Families with parts that `patch` leaves alone, with the reason.
LEFT = {"llama4": "it keeps no inverse frequencies"}
# Families whose own function still multiplies by our tables.
OWN_FUNCTION = {
    "deepseek_v2",
    "gemma4",
    "llama4",
    "minimax_m3_vl",
    "muse_glimmer_assistant",
    "qwen4_exp",
    "sam3",
}
# With float32 angles also these, whose features are not adjacent in memory.
OWN_FUNCTION_FLOAT32 = OWN_FUNCTION | {"zaya"}
# The families that the default run tests: each pairing, and each way in which models rotate.
IN_FULL = {
    *("cohere", "deepseek_v2", "deepseek_v3", "ernie4_5", "esm", "gemma3", "gemma4", "glm", "gpt_neox"),
    *("gpt_oss", "kimi_k25", "llama", "llama4", "mixtral", "modernbert", "moonshine", "nanochat"),
    *("nemotron", "olmo2", "persimmon", "phi3", "qwen2_vl", "qwen3_vl", "t5gemma", "zamba2"),
}
# Families whose `generate` is not called, with the reason.
NO_TOKENS = {
    "diffusion_gemma": "it draws blocks of tokens at random",
    "higgs_audio_v2": "it generates codes of sound, with a shape of its own",
    "kyutai_speech_to_text": "it generates from sound",
    "voxtral_realtime": "it generates as many tokens as there is sound",
}
NO_CACHE = {"blt"}  # a forward pass alone fails in making a cache

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
        given = self.tiny.inputs(model)
        given = {name: x.to(dtype) if x.is_floating_point() else x for name, x in given.items()}
        return given | ({"use_cache": False} if self.name in NO_CACHE else {})


def precision(model):
    """Make `float32` mean float64 in the code of a float64 model."""
    return _models_patch.precision(FLOAT64 if dtype_of(model) is FLOAT64 else FLOAT32)


def dtype_of(model):
    return next(model.parameters()).dtype


@pytest.fixture(scope="module")
def family(request):
    return Family(request.param)


def of_each(tinies):
    return pytest.mark.parametrize(
        "family", tinies, indirect=True, ids=lambda tiny: tiny.model_type, scope="module"
    )


def of_each_nightly(tinies):
    """Return `of_each`, with the mark `nightly` for the families that are not IN_FULL."""
    return of_each(
        [
            tiny if tiny.model_type in IN_FULL else pytest.param(tiny, marks=pytest.mark.nightly)
            for tiny in tinies
        ]
    )


def of_some(*names):
    return of_each([tiny for tiny in SERVED if tiny.model_type in names])


# What a patch changes


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


def rotaries(model):
    return [module for module in model.modules() if NAMES.search(type(module).__name__)]


@contextlib.contextmanager
def without_frequencies(model, left):
    """Put another number into every buffer of a rotary module. NaN would not do: attention can drop it."""
    left_alone = {id(model.get_submodule(part.name)) for part in left}
    found = [x for module in rotaries(model) if id(module) not in left_alone for x in module.buffers()]
    kept = [x.clone() for x in found]
    for x in found:
        x.fill_(0.37)
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
    assert is_same(before, state(family.model))


# Outputs


@of_each_nightly(SERVED)
def test_exact_angles_give_the_true_outputs(family):
    with hf.patched(family.double) as report:
        got = family.run(family.double)
    assert len(report)
    assert off(got, family.true) <= 10 * family.error * UNITS
    with hf.patched(family.model) as report:
        got = family.run(family.model)
    assert off(got, family.true) <= 3 * family.error
    assert {left.reason for left in report.left} == ({LEFT[family.name]} if family.name in LEFT else set())


@of_each_nightly(SERVED)
def test_exact_angles_replace_the_tables_and_the_function(family):
    with counted(family.model) as calls, hf.patched(family.model) as report:
        ours = family.run(family.model)
        calls.clear()
        with without_frequencies(family.model, report.left):
            again = family.run(family.model)
        own = bool(calls)
    assert torch.equal(ours, again)
    assert own == (family.name in OWN_FUNCTION)


@of_each_nightly(SERVED)
def test_unpatch_restores_outputs(family):
    assert torch.equal(family.run(family.model), family.own)
    before = state(family.model)
    for angles in ("exact", "float32"):
        with hf.patched(family.model, angles=angles):
            assert state(family.model).keys() != before.keys()
        assert is_same(before, state(family.model))
    assert torch.equal(family.run(family.model), family.own)


@of_each_nightly(SERVED)
def test_float32_angles_give_the_outputs_of_the_model(family):
    with counted(family.model) as calls, hf.patched(family.model, angles="float32"):
        calls.clear()
        got = family.run(family.model)
        own = bool(calls)
    assert own == (family.name in OWN_FUNCTION_FLOAT32)
    assert torch.equal(got, family.own)


@of_some("llama", "gemma3", "qwen2_vl", "deepseek_v3", "deepseek_v2", "glm", "cohere", "gpt_neox", "olmo2")
def test_a_wrong_base_changes_the_outputs(family, monkeypatch):
    plan_rotary = _rotary.plan_rotary

    def planned_wrongly(*args):
        plan = plan_rotary(*args)
        wrong = {
            key: replace(t, rope=replace(t.rope, base=1.1 * t.rope.base)) for key, t in plan.formats.items()
        }
        return replace(plan, formats=wrong)

    error = family.error  # of the model's own code: before the patch
    monkeypatch.setattr(_rotary, "plan_rotary", planned_wrongly)
    with hf.patched(family.model):
        assert off(family.run(family.model), family.true) > 100 * error


BFLOAT16 = torch.bfloat16
NO_BFLOAT16 = {"inkling2"}  # its own code multiplies float32 by bfloat16, and fails


def in_bfloat16(family):
    """Return the model as `from_pretrained(dtype=torch.bfloat16)` does: its frequencies stay as they are."""
    model = family.tiny.make()
    frequencies = {id(x) for module in rotaries(model) for x in module.buffers()}
    for x in (*model.parameters(), *model.buffers()):
        if x.is_floating_point() and id(x) not in frequencies:
            x.data = x.data.to(BFLOAT16)
    return model


def usually_off(x, y):
    """Return the median difference, which a few tokens that are sent to other experts leave as it is."""
    return float((x.double() - y.double()).abs().median())


@of_each_nightly([tiny for tiny in SERVED if tiny.model_type not in NO_BFLOAT16])
def test_a_bfloat16_model(family):
    model = in_bfloat16(family)
    own = family.run(model)
    with hf.patched(model, angles="float32"):
        assert torch.equal(family.run(model), own)
    with hf.patched(model):
        got = family.run(model)
    assert got.dtype is own.dtype
    assert usually_off(got, family.true) <= 1.5 * usually_off(own, family.true)


# Training


def gradients(family, model):
    """Return the gradients of all parameters of a loss with a random weight for each output, flat."""
    model.zero_grad()
    with precision(model):
        out = answer(model(**family.inputs(model)))
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=FLOAT32)
        (out * weights.to(out.dtype)).sum().backward()
    found = [p.grad.flatten().to(FLOAT64) for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return torch.cat(found)


@of_each_nightly(SERVED)
def test_gradients_are_the_same(family):
    true, own = gradients(family, family.double), gradients(family, family.model)
    error = off(own, true)
    with hf.patched(family.double):
        assert off(gradients(family, family.double), true) <= 10 * error * UNITS
    for angles in ("exact", "float32"):
        with hf.patched(family.model, angles=angles):
            assert off(gradients(family, family.model), true) <= 5 * error


# Generation


def generated(family):
    """Return the tokens that a model generates; None if it does not."""
    model = family.model
    if not getattr(model, "can_generate", lambda: False)() or family.name in NO_TOKENS:
        return None
    settings = dict(max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False, pad_token_id=0)
    return model.generate(**family.inputs(model), **settings)


@of_each_nightly(SERVED)
def test_generated_tokens_are_the_same(family):
    tokens = generated(family)
    for angles in ("exact", "float32"):
        with hf.patched(family.model, angles=angles):
            got = generated(family)
        assert got is None if tokens is None else torch.equal(got, tokens)
