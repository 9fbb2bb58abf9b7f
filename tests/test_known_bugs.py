"""Faults found in other code that no other file tests, and the names of tests on docs/known-bugs.md."""

import ast
import functools
import re
from pathlib import Path

import compare
import numpy as np
import pytest

import rope_array as ra
from rope_array import ConfigError, RoPE

normal = functools.partial(compare.normal, "numpy")
ROOT = Path(__file__).resolve().parent.parent


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
    tests = {name for name in functions_of("tests/test_known_bugs.py") if name.startswith("test_")}
    named = {name for path, name in named_on_the_page() if path == "tests/test_known_bugs.py"}
    assert tests - named == {"test_every_name_on_the_page_exists", "test_the_page_names_every_test_here"}


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

    operations = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            y = func(*args, **(kwargs or {}))
            operations.append((func.overloadpacket.__name__, getattr(y, "dtype", None)))
            return y

    pos = torch.arange(5)
    forbidden = {torch.complex32, torch.complex64, torch.complex128, torch.float64}
    for name, call in calls(torch.as_tensor, 5).items():
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.as_tensor(normal(3, 2, 5, 16)).to(dtype)
            operations.clear()
            with Watch():
                call(x, pos)
            assert len(operations) > 5, name
            assert not [op for op, _ in operations if re.search("mm|mv|dot|einsum", op)], name
            assert forbidden.isdisjoint({dtype for _, dtype in operations}), name


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


# ---- rules ----


def test_yarn_with_ends_that_clamping_makes_equal():
    """A trained context below one turn of pair 0: both ends are pair 0, and only its frequency is kept."""
    expected = [1.0, *(10000.0 ** (-i / 8) / 4 for i in range(1, 8))]
    np.testing.assert_allclose(RoPE(16, scaling=ra.YaRN(4.0, 4)).frequencies, expected, rtol=1e-14)


# ---- configs ----

RULED = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 1024, "truncate": False, "beta_fast": 16},
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
