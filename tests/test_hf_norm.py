"""`rope_array.hf`: the RMSNorm of q and k runs with their rotation, or as before.

tests/test_hf_families.py has the families; here a few tiny models and small modules show the mechanism.
"""

import copy
from types import FunctionType, SimpleNamespace

import pytest
import torch
from hf._compare import is_same, off, state
from hf._tiny import Tiny
from hf._tiny_inputs import tokens

import rope_array as ra
from rope_array import _dispatch
from rope_array.hf import _norm, _norm_code

TEXT = tokens(2, 20)
QWEN, GEMMA, GLM = Tiny("qwen3"), Tiny("gemma3"), Tiny("glm4_moe", {"use_qk_norm": True})
by_model = pytest.mark.parametrize("tiny", [QWEN, GEMMA, GLM], ids=lambda tiny: tiny.model_type)


def build(tiny=QWEN, dtype=torch.float32):
    model = tiny.make(dtype)
    model.generation_config.disable_compile = True
    return model


def logits(model, **inputs):
    with torch.no_grad():
        return model(TEXT, **inputs).logits


@pytest.fixture
def passes(monkeypatch):
    """Count the arrays of each call that norms and rotates in one pass."""
    counts, one_pass = [], _dispatch.attention_inputs

    def count(xs, *call):
        counts.append(len(xs))
        return one_pass(xs, *call)

    monkeypatch.setattr(_dispatch, "attention_inputs", count)
    return counts


def attention_of(model):
    return next(m for m in model.modules() if hasattr(m, "q_norm"))


# ---- models ----


@by_model
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_logits_are_those_of_the_model(tiny, dtype, passes):
    model = build(tiny, dtype)
    expected, before = logits(model), state(model)
    report = ra.hf.patch(model)
    passes.clear()
    difference = (logits(model).double() - expected.double()).abs().median()  # few tokens change their expert
    assert difference < (1e-5 if dtype is torch.float32 else 0.02) * expected.double().abs().max()
    layers = [entry for entry in report if entry.rope is None and "visual" not in entry.name]
    assert passes == [2] * len(layers)
    assert {(entry.replaced, entry.own_norm) for entry in layers} == {("norm and rotation", "")}
    ra.hf.unpatch(model)
    assert is_same(before, state(model))
    assert torch.equal(logits(model), expected)


@torch.no_grad()
def test_one_pass_keeps_the_rounding_of_the_norm_in_16_bits(passes):
    """Rotated by 0, q and k are the norm's own numbers, but for roundings near a tie."""
    model = build(QWEN, torch.bfloat16)
    attention = attention_of(model)
    ra.hf.patch(model)
    rotate = attention.forward.__func__.__wrapped__.__globals__["apply_rotary_pos_emb"]
    q, k = (torch.randn(1, heads, 9, 32).bfloat16() for heads in (4, 2))
    tables = torch.ones(1, 9, 32), torch.zeros(1, 9, 32)
    for y, x, norm in zip(
        rotate(q, k, *tables, norms=(attention.q_norm, attention.k_norm)),
        (q, k),
        (attention.q_norm, attention.k_norm),
        strict=True,
    ):
        assert (y != norm(x)).float().mean() < 0.01
    assert passes[-1] == 2


@by_model
def test_generated_tokens_are_the_same(tiny):
    mask = (torch.arange(20) >= torch.tensor([[7], [0]])).long()
    model, options = build(tiny), {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False}
    expected = model.generate(TEXT, **options)
    with ra.hf.patched(model):
        assert torch.equal(model.generate(TEXT, **options), expected)


@by_model
@pytest.mark.parametrize("checkpoints", [False, True], ids=["whole", "checkpoints"])
def test_gradients_are_those_of_the_model(tiny, checkpoints, passes):
    """Of all weights, the norm's among them; hooks of a weight run, and a frozen weight gets none."""
    model, hooked = build(tiny).train(), []
    first, second, *_ = (m for name, m in model.named_modules() if name.endswith("q_norm"))
    first.weight.register_hook(hooked.append)
    second.weight.requires_grad_(False)
    if checkpoints:
        model.activation_checkpointing_enable({"use_reentrant": False})

    def gradients():
        model.zero_grad()
        model(TEXT, labels=TEXT, use_cache=False).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    expected = gradients()
    with ra.hf.patched(model):
        passes.clear()
        ours = gradients()
        assert passes
    assert ours.keys() == expected.keys()
    assert all(off(ours[name], gradient) < 1e-3 for name, gradient in expected.items() if gradient.any())
    assert len(hooked) == 2
    assert second.weight.grad is None


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_code_calls_the_norm_and_is_one_graph():
    model = build(QWEN)
    expected = logits(model, use_cache=False)
    ra.hf.patch(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert off(logits(compiled, use_cache=False), expected) < 1e-5


def test_float32_angles_leave_the_norm(passes):
    model = build(QWEN)
    expected = logits(model)
    with ra.hf.patched(model, angles="float32") as report:
        assert torch.equal(logits(model), expected)
        assert {entry.own_norm for entry in report} == {""}
    assert not passes


def test_a_deep_copy_has_weights_of_its_own():
    model = build(QWEN)
    ra.hf.patch(model)
    expected, copied = logits(model), copy.deepcopy(model)
    with torch.no_grad():
        attention_of(model).q_norm.weight.zero_()
    assert torch.equal(logits(copied), expected)
    assert off(logits(model), expected) > 1e-3


def test_a_cast_after_the_patch(passes):
    model = build(QWEN)
    ra.hf.patch(model)
    expected = logits(model)
    passes.clear()
    assert off(logits(model.half()), expected) < 0.05
    assert passes


class Wrapper(torch.nn.Module):
    """A module in the place of another, as adapters are."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return 2 * self.module(x)


CHANGES = {
    "forward hook": lambda a: a.q_norm.register_forward_hook(lambda module, args, y: 2 * y),
    "pre-hook": lambda a: a.q_norm.register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
    "backward hook": lambda a: a.q_norm.register_full_backward_hook(lambda *gradients: None),
    "other forward": lambda a: setattr(a.q_norm, "forward", lambda x: 3 * x),
    "adapter": lambda a: setattr(a, "k_norm", Wrapper(a.k_norm)),
    "other dtype": lambda a: a.q_norm.half(),
    "other eps": lambda a: setattr(a.k_norm, "variance_epsilon", 0.5),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_norms_run_themselves(change, passes):
    model = build()
    changed = copy.deepcopy(model)
    change(attention_of(changed))
    expected = logits(changed)
    ra.hf.patch(model)
    change(attention_of(model))
    passes.clear()
    assert off(logits(model), expected) < 1e-5
    assert passes == [2]  # the second layer


def test_without_a_kernel_the_norms_run_themselves(passes, monkeypatch):
    assert (_norm.has_one_pass(torch.device("cpu")), _norm.has_one_pass(torch.device("meta"))) == (
        True,
        False,
    )
    model = build()
    expected = logits(model)
    ra.hf.patch(model)
    monkeypatch.setattr(_norm, "has_one_pass", lambda device: False)
    passes.clear()
    assert off(logits(model), expected) < 1e-5
    assert not passes


def test_global_hooks_see_the_norms():
    model, seen = build(QWEN), []
    ra.hf.patch(model)
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda m, *call: seen.append(type(m).__name__)
    )
    logits(model)
    hook.remove()
    assert seen.count("Qwen3RMSNorm") == 2 * 2 + 2 * 2 + 1  # of q and k, of the layers, and the last


def test_cohere_keeps_its_norm_which_subtracts_the_mean(passes):
    model = build(Tiny("cohere", {"use_qk_norm": True}))
    expected = logits(model)
    with ra.hf.patched(model) as report:
        passes.clear()
        assert off(logits(model), expected) < 1e-5
        assert "own norm: q_norm (CohereLayerNorm) has the weights (2, 32): they differ between heads" in str(
            report
        )
    assert not passes


# ---- norm modules ----


class Norm(torch.nn.Module):
    """Norms of models, and others: `form` is an expression of x in float32 and of the weight."""

    def __init__(self, form="(w * n.to(x.dtype)).to(x.dtype)", shape=(16,), **values):
        super().__init__()
        self.form, self.eps = form, 1e-5
        self.weight = torch.nn.Parameter(torch.ones(shape)) if shape else None
        vars(self).update(values)

    def forward(self, x):
        v = x.float()
        n = v * torch.rsqrt((v * v).mean(-1, keepdim=True) + self.eps)
        return eval(self.form, {"x": x, "v": v, "n": n, "w": self.weight, "torch": torch, "self": self})


FORMS = {
    "Llama's": (Norm(), ("eps", 0.0, "steps")),
    "Gemma's": (Norm("(n * (1 + w.float())).to(x.dtype)"), ("eps", 1.0, "norm")),
    "rounded once": (Norm("(n * w.float()).to(x.dtype)"), ("eps", 0.0, "norm")),
    "two numbers": (Norm(eps=1e-7, other=1e-8), ("eps", 0.0, "steps")),
    "wide": (Norm(shape=(32,)), "q_norm (Norm) norms 32 features at once, and a head has 16"),
    "of each head": (Norm(shape=(4, 16)), "has the weights (4, 16): they differ between heads"),
    "LayerNorm": (torch.nn.LayerNorm(16), "is no RMSNorm: it has weight, bias"),
    "the mean": (Norm("(w * (n - n.mean(-1, keepdim=True)).to(x.dtype))"), "another arithmetic"),
    "a sum": (Norm("w * torch.nn.functional.normalize(v, dim=-1).to(x.dtype)"), "another arithmetic"),
    "eps outside": (
        Norm("w * (v / ((v*v).mean(-1, keepdim=True).sqrt() + self.eps)).to(x.dtype)"),
        "another",
    ),
    "steps of 16 bits": (Norm("w * (x * (n / v).to(x.dtype))"), "another arithmetic or rounding"),
    "a float32 result": (Norm("w.float() * n"), "another arithmetic or rounding"),
    "another factor": (Norm("2 * w * n.to(x.dtype)"), "another arithmetic"),
}


@pytest.mark.parametrize(("norm", "expected"), FORMS.values(), ids=FORMS)
def test_the_arithmetic_of_a_norm_is_found_by_calling_it(norm, expected):
    attention = SimpleNamespace(head_dim=16, q_norm=norm)
    found = _norm.find_norm(attention, ["q_norm"], {})
    if isinstance(expected, str):
        assert expected in found
    else:
        assert (found.eps, found.offset, found.rounding) == expected


def test_norms_of_q_and_k_that_differ_stay():
    gemma = Norm("(n * (1 + w.float())).to(x.dtype)")
    assert "differ" in _norm.find_norm(SimpleNamespace(q_norm=Norm(), k_norm=gemma), ["q_norm", "k_norm"], {})


def test_a_norm_without_weights():
    norm = Norm("n.to(x.dtype)", shape=None)
    found = _norm.find_norm(SimpleNamespace(head_dim=16, q_norm=norm), ["q_norm"], {})
    assert (found.weight, found.offset) == (None, 0.0)
    q = torch.randn(1, 2, 3, 16)
    assert found.of_call((norm,), (q,)) == ((None, None), 1e-5, 0.0, "norm")


# ---- code ----


def rotate(q, k, c, norms=(None, None)):
    """Return sums in place of a rotation: another order of norms and additions would give other numbers."""
    q, k = (x if norm is None else norm(x) for norm, x in zip(norms, (q, k), strict=True))
    return q + c, k + 2 * c


def plain(self, q, k, c):
    q = self.q_norm(q + 1).transpose(1, 2)
    k = self.k_norm(k)
    k = k.transpose(1, 2)
    q, k = rotate(q, k, c)
    return q, k


def without_rotation(self, q, k, c):
    q = self.q_norm(q)
    k = self.k_norm(k)
    if self.first:
        q, k = rotate(q, k, c)
    return q, k


def in_branches(self, q, k, c):
    if self.first:
        q = self.q_norm(q)
        k = self.k_norm(k)
    q = q.transpose(1, 2)
    k = k.transpose(1, 2)
    if self.third:
        q, k = rotate(q, k, c)
    else:
        c = self.third
    return q, k


def left_early(self, q, k, c):
    q = self.q_norm(q)
    k = self.k_norm(k)
    if self.first:
        return q, k
    if self.second:
        k = k * 2
        k = self.k_norm(k)
    q, k = rotate(q, k, c)
    return q, k


def twice(self, q, k, c):
    q = self.q_norm(q)
    k = self.k_norm(k)
    if self.first:
        q = self.q_norm(self.k_norm(q))
    q, k = rotate(q, k, c)
    return q, k


def written(self, q, k, c):
    view = q[:1]
    q = self.q_norm(q)
    k = self.k_norm(k)
    view.mul_(2)
    q, k = rotate(q, k, c)
    return q, k


def read(self, q, k, c):
    q = self.q_norm(q)
    k = self.k_norm(k)
    total = q.sum() if self.first else 0
    q, k = rotate(q, k, c)
    return q + total, k


def from_normed(self, q, k, c):
    q = self.q_norm(q)
    k = self.k_norm(q + k)
    q, k = rotate(q, k, c)
    return q, k


def in_arguments(self, q, k, c):
    q = self.q_norm(q)
    k = self.k_norm(k)
    q, k = rotate(q, k, c + q.sum())
    return q, k


def of_one(self, q, k, c):
    q = self.q_norm(q)
    q, k = rotate(q, k, c)
    return q, k


def after(self, q, k, c):
    q, k = rotate(q, k, c)
    q = self.q_norm(q)
    k = self.k_norm(k).transpose(1, 2).contiguous()
    return q, k


REASONS = {
    plain: {},
    without_rotation: {},
    in_branches: {},
    left_early: {"q_norm": "`if self.first:` comes between", "k_norm": "`q, k = rotate(q, k, c)`"},
    twice: {"q_norm": "`if self.first:` comes between", "k_norm": "`q, k = rotate(q, k, c)`"},
    written: {"q_norm": "`view.mul_(2)` comes between", "k_norm": "`view.mul_(2)` comes between"},
    read: {
        "q_norm": "`total = q.sum() if self.first else 0` comes between",
        "k_norm": "`q, k = rotate(q, k, c)`",
    },
    from_normed: {"q_norm": "`k = self.k_norm(q + k)`", "k_norm": "`q, k = rotate(q, k, c)`"},
    in_arguments: dict.fromkeys(("q_norm", "k_norm"), "`q, k = rotate(q, k, c + q.sum())` comes between"),
    of_one: {"q_norm": "`q, k = rotate(q, k, c)` comes between"},
    after: {"q_norm": "it comes after the rotation", "k_norm": "it comes after the rotation"},
}


@pytest.mark.parametrize("method", REASONS, ids=lambda method: method.__name__)
def test_rewritten_code_has_the_results_of_the_original(method):
    """For all values of its conditions; each attribute is given to a rotation, or stays with the reason."""
    new = _norm_code.rewrite(method, {"rotate": 2})
    assert {
        name: new.kept[name].startswith(reason) for name, reason in REASONS[method].items()
    } == dict.fromkeys(new.kept, True)
    assert (new.code is None) == (not new.norms)
    calls = []

    def counted(q, k, c, norms=(None, None)):
        calls.append(norms)
        return rotate(q, k, c, norms)

    copied = method if new.code is None else FunctionType(new.code, {"rotate": counted})
    for bits in range(8):
        flags = dict(
            zip(("first", "second", "third"), map(bool, (bits & 1, bits & 2, bits & 4)), strict=True)
        )
        norms = {"q_norm": lambda x: x * x + 0.5, "k_norm": lambda x: x * x.abs() - 0.25}
        results = [
            function(SimpleNamespace(**norms, **flags), *(torch.arange(24.0).reshape(1, 2, 3, 4),) * 2, 0.1)
            for function in (method, copied)
        ]
        assert all(map(torch.equal, *results)), flags
    assert any(norm is not None for norms in calls for norm in norms) == bool(new.norms)


def test_a_method_without_source_keeps_its_norms():
    namespace = {"rotate": rotate}
    exec("def method(self, q, k, c):\n    q = self.q_norm(q)\n    return rotate(q, k, c)", namespace)
    assert _norm_code.rewrite(namespace["method"], {"rotate": 2}).code is None
    changed = plain.__code__.replace(co_names=("other", *plain.__code__.co_names[1:]))  # a file that changed
    assert _norm_code.rewrite(FunctionType(changed, {}), {"rotate": 2}).code is None
