"""Faults found in other code, one test each; docs/known-bugs.md lists them, with tests in other files too.

The tests compare with formulas written here, pair by pair, or with the package's definition.
"""

import ast
import copy
import functools
import math
import re
from pathlib import Path

import compare
import numpy as np
import pytest

import rope_array as ra
from rope_array import RoPE, SpecError
from rope_array.config import ConfigError, read
from rope_array.testing import apply_definition
from rope_array.testing._contract import assert_contract

normal = functools.partial(compare.normal, "numpy")
ROOT = Path(__file__).resolve().parent.parent


def series(width, base=10000.0):
    return [base ** (-2 * i / width) for i in range(width // 2)]


def rotated(x, angles, pairing):
    """Rotate pair i of x, of shape (..., S, D), by angles[..., i]; copy features without an angle."""
    y, num_pairs = x.astype(np.float64), angles.shape[-1]
    for i in range(num_pairs):
        a, b = (2 * i, 2 * i + 1) if pairing == "interleaved" else (i, i + num_pairs)
        cos, sin = np.cos(angles[..., i]), np.sin(angles[..., i])
        y[..., a], y[..., b] = x[..., a] * cos - x[..., b] * sin, x[..., b] * cos + x[..., a] * sin
    return y


# ---- the page ----


def named_on_the_page():
    page = (ROOT / "docs" / "known-bugs.md").read_text(encoding="utf-8")
    return set(re.findall(r"`([\w./]+\.py)::(\w+)`", page))


@functools.cache
def functions_of(path):
    """Return the names of a file's functions, and of its mutants, which are rows: fault("name", ...)."""
    nodes = [*ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))]
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    rows = {call.args[0].value for call in calls if call.func.id in ("fault", "torch_fault", "jax_fault")}
    return rows | {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def test_every_name_on_the_page_exists():
    named = named_on_the_page()
    assert len(named) > 50
    missing = [f"{path}::{name}" for path, name in sorted(named) if name not in functions_of(path)]
    assert missing == []


def test_the_page_names_every_test_here():
    here = {name for name in functions_of("tests/test_known_bugs.py") if name.startswith("test_")}
    named = {name for path, name in named_on_the_page() if path == "tests/test_known_bugs.py"}
    assert here - named == {"test_every_name_on_the_page_exists", "test_the_page_names_every_test_here"}


# ---- angles ----


def calls(array, count):
    """Return functions of (x, positions) by name: one for each builder and kind of positions."""
    rope, mrope = RoPE(16, pairing="half"), RoPE(16, axes=ra.Axes.interleaved(3, 3, 2))
    learned = array(np.array(rope.frequencies, np.float32))
    mixed = array(normal(2, 3, 8))
    scaled = RoPE(16, scaling=ra.YaRN(4.0, 64))
    grid = array(np.arange(3 * count).reshape(count, 3))
    return {
        "apply": lambda x, pos: rope.apply(x, pos),
        "floats": lambda x, pos: rope.apply(x, pos * 1.5 + 0.25),
        "yarn": lambda x, pos: scaled.apply(x, pos),
        "coordinates": lambda x, pos: mrope.apply(x, grid + pos[:, None]),
        "learned": lambda x, pos: rope.rotation(pos, like=x, inv_freq=learned).apply(x),
        "mixed": lambda x, pos: rope.rotation_mixed(grid + pos[:, None], like=x, inv_freq=mixed).apply(x),
        "xpos": lambda x, pos: rope.rotation_xpos(pos, like=x)[0].apply(x),
        "inverse": lambda x, pos: rope.apply(x, pos, inverse=True),
    }


@pytest.mark.library("torch")
def test_torch_multiplies_real_numbers_element_by_element():
    """No matrix product, which TF32 rounds; no complex dtype; no float64 for float32 and bfloat16."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            seen.append((func.overloadpacket.__name__, getattr(result, "dtype", None)))
            return result

    pos = torch.arange(5)
    forbidden = {torch.complex32, torch.complex64, torch.complex128, torch.float64}
    for name, call in calls(torch.as_tensor, 5).items():
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.as_tensor(normal(3, 2, 5, 16)).to(dtype)
            seen.clear()
            with Watch():
                call(x, pos)
            assert len(seen) > 5, name
            assert not [op for op, _ in seen if re.search("mm|mv|dot|einsum", op)], name
            assert forbidden.isdisjoint({dtype for _, dtype in seen}), name


@pytest.mark.library("jax")
def test_jax_multiplies_real_numbers_element_by_element():
    import jax
    import jax.numpy as jnp

    for name, call in calls(jnp.asarray, 5).items():
        for dtype in (jnp.float32, jnp.bfloat16):
            x = jnp.asarray(normal(3, 2, 5, 16)).astype(dtype)
            program = str(jax.make_jaxpr(call)(x, jnp.arange(5)))
            forbidden = r"\b(dot_general|conv_general\w*|complex\w*|c64|c128|f64)\b"
            assert re.search(forbidden, program) is None, name


@pytest.mark.library("torch")
def test_no_cast_of_a_module_changes_an_angle():
    """A rope inside a module has nothing that `half`, an engine's casts, or `to_empty` could change."""
    import torch

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.rope = RoPE(64, base=500_000.0, pairing="half", scaling=ra.Llama3())

        def forward(self, x, pos):
            return self.rope.apply(x, pos)

    x, pos = torch.as_tensor(normal(2, 5, 64)), torch.tensor([0, 2049, 131_071, 1_000_003, 2**31 - 1])
    plain = Attention()
    want = plain(x, pos)
    exact = {"pairing": "half", "inv_freq": plain.rope.frequencies}
    assert_contract(want.numpy(), x.numpy(), pos.numpy(), **exact)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta"):
            on_meta = Attention()
    finally:
        torch.set_default_dtype(before)
    cast = {
        "half": Attention().half(),
        "bfloat16 and back": Attention().bfloat16().float(),
        "float64": Attention().to(torch.float64),
        "every tensor": Attention()._apply(lambda tensor: tensor.to(torch.float8_e4m3fn)),
        "meta": on_meta.to_empty(device="cpu"),
        "copied": copy.deepcopy(Attention().half()),
    }
    for name, module in cast.items():
        assert torch.equal(module(x, pos), want), name
        assert set(module.state_dict()) == {"linear.weight", "linear.bias"}, name
        assert torch.equal(module(x.bfloat16(), pos), plain(x.bfloat16(), pos)), name
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(module(x, pos), want), name


# ---- rules ----


def test_yarn_with_ends_that_clamping_makes_equal():
    """A trained context below one turn of pair 0: both ends are pair 0, and only its frequency is kept."""
    first, *others = series(16)
    expected = [first, *(omega / 4 for omega in others)]
    np.testing.assert_allclose(RoPE(16, scaling=ra.YaRN(4.0, 4)).frequencies, expected, rtol=1e-14)


# ---- maps of pairs to coordinates ----


def test_interleaved_axes_are_no_interleaved_pairs():
    """`mrope_interleaved` names the map of pairs to axes; the pairing is the model's."""
    scaling = {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}
    text = {"head_dim": 128, "rope_theta": 5e6, "rope_scaling": scaling}
    qwen = {"model_type": "qwen3_vl", "text_config": text}
    glm = {"hidden_size": 4096, "num_attention_heads": 32, "partial_rotary_factor": 0.5}
    glm |= {"rope_scaling": {"type": "default", "mrope_section": [8, 12, 12]}}
    glm = {"model_type": "glm4v", "text_config": glm}
    x, pos = normal(4, 128), np.array([[3, 9, 1], [40, 2, 77], [5, 6, 7], [0, 100, 1000]])
    for config, coordinates, pairing, base in (
        (qwen, [0, 1, 2] * 20 + [0] * 4, "half", 5e6),
        (glm, [0] * 8 + [1] * 12 + [2] * 12, "interleaved", 1e4),
    ):
        want = rotated(x, pos[:, coordinates] * np.array(series(2 * len(coordinates), base)), pairing)
        np.testing.assert_allclose(RoPE.from_config(config).apply(x, pos), want, atol=2e-6)


# ---- names ----


def test_every_entry_point_has_the_same_defaults():
    x, pos = normal(3, 8), np.array([1, 20, 300])
    want = rotated(x, pos[:, None] * np.array(series(8)), "interleaved")
    rope = RoPE(8)
    for got in (
        ra.apply(x, pos), rope.apply(x, pos), ra.apply(x, pos, rope), rope.rotation(pos, like=x).apply(x),
        apply_definition(x, pos), np.einsum("sij,sj->si", rope.matrix(pos), x), ra.apply((x,), pos)[0],
        ra.apply(x, pos, backend="array-api"),
    ):  # fmt: skip
        np.testing.assert_allclose(got, want, atol=2e-6)


# ---- configs ----

# Model type: width of a head, rotated width, keys of older files, current keys.
PARTIAL = {
    "gpt_neox": (64, 16, {"rotary_pct": 0.25}, {"partial_rotary_factor": 0.25}),
    "gptj": (256, 64, {"n_embd": 4096, "n_head": 16, "rotary_dim": 64}, None),
    "phi": (80, 32, {"partial_rotary_factor": 0.4}, {"partial_rotary_factor": 0.4}),
    "phi3": (128, 96, {"partial_rotary_factor": 0.75}, {"partial_rotary_factor": 0.75}),
    "stablelm": (80, 20, {"partial_rotary_factor": 0.25}, {"partial_rotary_factor": 0.25}),
    "glm": (128, 64, {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.5}),
    "qwen3_next": (256, 32, {"partial_rotary_factor": 0.125}, {"partial_rotary_factor": 0.125}),
    "minimax_m2": (128, 64, {"rotary_dim": 64}, None),
}


@pytest.mark.parametrize("kind", PARTIAL)
def test_a_part_of_the_head_stays_a_part(kind):
    """Older and current keys set the rotated width, and a rule scales the frequencies of this width."""
    head, rotary, old, new = PARTIAL[kind]
    base = {"model_type": kind, "hidden_size": 4 * head, "num_attention_heads": 4, "head_dim": head}
    ropes = [RoPE.from_config({**base, "rope_theta": 2e4, **old})]
    for rule, factor in (({"rope_type": "default"}, 1), ({"rope_type": "linear", "factor": 4.0}, 4)):
        if new is not None:
            ropes.append(RoPE.from_config({**base, "rope_parameters": {**rule, "rope_theta": 2e4, **new}}))
            expected = [omega / factor for omega in series(rotary, 2e4)]
            np.testing.assert_allclose(ropes[-1].frequencies, expected, rtol=1e-14)
    assert {(rope.head_dim, rope.rotary_dim) for rope in ropes} == {(head, rotary)}


RULED = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 1024, "truncate": False, "beta_fast": 16},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    "longrope": {
        "short_factor": [1.0] * 16, "long_factor": [2.0] * 16, "original_max_position_embeddings": 1024,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", RULED)
def test_old_and_new_spellings_are_one_rope(kind):
    """Every spelling gives the same base and rule."""
    base = {"model_type": "llama", "head_dim": 32, "max_position_embeddings": 4096}
    rule, theta = RULED[kind], {"rope_theta": 123456.0}
    spellings = [
        {**theta, "rope_scaling": {"type": kind, **rule}},
        {**theta, "rope_scaling": {"rope_type": kind, **rule}},
        {"rope_scaling": {"rope_type": kind, **theta, **rule}},
        {"rope_parameters": {"rope_type": kind, **theta, **rule}},
        {**theta, "rope_parameters": {"rope_type": kind, **rule}},
        {**theta, "rope_parameters": {"rope_type": kind, **theta, **rule}},
        {"rope_parameters": {"full_attention": {"rope_type": kind, **theta, **rule}}},
        {**theta, "rope_scaling": None, "rope_parameters": {"rope_type": kind, **rule}},
    ]
    ropes = {RoPE.from_config({**base, **spelling}) for spelling in spellings}
    assert len(ropes) == 1
    rope = ropes.pop()
    assert rope.base == 123456.0
    scaled = rope.at_length(4096 * 4)
    assert scaled.frequencies[-1] < RoPE(32, base=123456.0).frequencies[-1]
    with pytest.raises(ConfigError, match="'scale'"):
        RoPE.from_config({**base, **theta, "rope_scaling": {"type": kind, **rule, "scale": 2.0}})


# The base of a layer type, and the divisor of its frequencies by a linear rule of 8.
DIVIDED = {
    "gemma3_text": {"sliding": (1e4, 1), "full": (1e6, 8)},
    "gemma3n_text": {"sliding": (1e4, 1), "full": (1e6, 8)},
    "modernbert": {"sliding": (1e4, 8), "full": (160000.0, 8)},
}


@pytest.mark.parametrize("kind", DIVIDED)
def test_a_rule_scales_the_layers_that_the_model_scales(kind):
    config = {"model_type": kind, "hidden_size": 128, "num_attention_heads": 4}
    config |= {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    config |= {"head_dim": 32} if kind.startswith("gemma") else {}
    for name, (base, divisor) in DIVIDED[kind].items():
        rope = RoPE.from_config(config, layer_type=f"{name}_attention")
        np.testing.assert_allclose(
            rope.frequencies, [omega / divisor for omega in series(32, base)], rtol=1e-14
        )


def test_a_layer_type_has_its_own_amplitude_and_length():
    """In transformers 5.23, a layer type whose length grows overwrites the amplitude of all types."""
    nested = {
        "full_attention": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
        "sliding_attention": {"rope_type": "yarn", "rope_theta": 1e6, **RULED["yarn"]},
    }
    config = {"model_type": "olmo3", "head_dim": 32, "max_position_embeddings": 4096}
    config |= {"rope_parameters": nested}
    full, sliding = (RoPE.from_config(config, layer_type=f"{n}_attention") for n in ("full", "sliding"))
    before = sliding.frequencies
    grown = full.at_length(10_000)
    assert grown.amplitude == 1.0
    assert sliding.amplitude == pytest.approx(0.1 * math.log(4) + 1)
    assert sliding.frequencies == before
    base = 1e4 * (2.0 * 10_000 / 4096 - 1) ** (32 / 30)
    np.testing.assert_allclose(grown.frequencies, series(32, base), rtol=1e-13)
    np.testing.assert_allclose(full.at_length(4096).frequencies, series(32), rtol=1e-13)


@pytest.mark.parametrize("name", ["short_factor", "long_factor"])
def test_a_list_that_is_too_short_or_too_long(name):
    for count in (15, 17):
        scaling = {"type": "longrope", **RULED["longrope"], name: [1.0] * count}
        config = {"model_type": "llama", "head_dim": 32, "rope_scaling": scaling}
        with pytest.raises(ConfigError, match=f"{name} has {count} numbers.*16 pairs"):
            read(config)
        lists = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16, name: [1.0] * count}
        for length in (None, 1, 65):  # both lists are checked, whichever is in use
            rule = ra.LongRoPE(**lists, original_max_position_embeddings=64, length=length)
            with pytest.raises(SpecError, match=f"{name} has {count} numbers"):
                RoPE(32, scaling=rule)
