"""Faults found in other code, one test each; docs/known-bugs.md lists them, with tests in other files too.

The tests compare with formulas written here, pair by pair, or with the package's definition.
"""

import ast
import copy
import dataclasses
import functools
import itertools
import json
import math
import re
import shutil
from pathlib import Path

import compare
import numpy as np
import pytest

import rope_array as ra
from rope_array import RoPE, SpecError, convert, positions
from rope_array.config import ConfigError, read
from rope_array.testing import apply_definition
from rope_array.testing._contract import assert_contract

normal = functools.partial(compare.normal, "numpy")
ROOT = Path(__file__).resolve().parent.parent
PAIRINGS = ("interleaved", "half")


def series(width, base=10000.0):
    return [base ** (-2 * i / width) for i in range(width // 2)]


def turned(x, angles, pairing):
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
    for name, call in calls(torch.as_tensor, 5).items():
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.as_tensor(normal(3, 2, 5, 16)).to(dtype)
            seen.clear()
            with Watch():
                call(x, pos)
            assert len(seen) > 5, name
            products = [op for op, _ in seen if "mm" in op or "mv" in op or "dot" in op or "einsum" in op]
            assert products == [], name
            forbidden = {torch.complex32, torch.complex64, torch.complex128, torch.float64}
            assert forbidden.isdisjoint({dtype for _, dtype in seen}), name


@pytest.mark.library("jax")
def test_jax_multiplies_real_numbers_element_by_element():
    import jax
    import jax.numpy as jnp

    for name, call in calls(jnp.asarray, 5).items():
        for dtype in (jnp.float32, jnp.bfloat16):
            x = jnp.asarray(normal(3, 2, 5, 16)).astype(dtype)
            program = str(jax.make_jaxpr(call)(x, jnp.arange(5)))
            assert re.search(r"\b(dot_general|conv_general\w*|complex\w*|c64|c128|f64)\b", program) is None, (
                name
            )


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
    # Pass the frequencies of the rule to the definition.
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


@pytest.mark.library("torch")
def test_autocast_leaves_every_builder_alone():
    import torch

    x, pos = torch.as_tensor(normal(3, 2, 5, 16)), torch.tensor([0, 257, 2049, 40_001, 131_071])
    for name, call in calls(torch.as_tensor, 5).items():
        want = call(x, pos)
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=dtype):
                assert torch.equal(call(x, pos), want), name


# ---- shapes ----

STEPS = {
    "contiguous": lambda lib, x: lib.asarray(np.ascontiguousarray(x)),
    "transposed": lambda lib, x: lib.permute(
        lib.asarray(np.ascontiguousarray(x.transpose(0, 2, 1, 3))), (0, 2, 1, 3)
    ),
    "last of many": lambda lib, x: lib.asarray(np.repeat(x, 4, axis=2))[:, :, 3:, :],
    "every second head": lambda lib, x: lib.asarray(np.repeat(x, 2, axis=1))[:, ::2, :, :],
    "every second batch": lambda lib, x: lib.asarray(np.repeat(x, 2, axis=0))[::2, ...],
}


@pytest.mark.neutral
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_one_token_of_every_batch(lib, pairing):
    """A decoding step rotates all batches, for every layout of x and every form of positions."""
    x, rope = normal(3, 4, 1, 16), RoPE(16, pairing=pairing)
    for pos in (9, np.array([9]), np.array([[9]]), np.array([[70], [3], [1009]])):
        angles = np.asarray(pos).reshape(-1, 1, 1, 1) * np.array(series(16))
        want = turned(x, np.broadcast_to(angles, (3, 4, 1, 8)), pairing)
        own = pos if isinstance(pos, int) else lib.asarray(pos.astype(np.int32))
        for name, laid in STEPS.items():
            array = laid(lib, x)
            for got in (rope.apply(array, own), rope.rotation(own, like=array).apply(array)):
                np.testing.assert_allclose(lib.to_numpy(got), want, atol=2e-6, err_msg=name)
        flat = lib.asarray(np.ascontiguousarray(x.transpose(0, 2, 1, 3)))
        got = lib.to_numpy(rope.apply(flat, own, seq_axis=-3)).transpose(0, 2, 1, 3)
        np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.neutral
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_widths_that_no_block_of_a_kernel_divides(lib, pairing):
    pos = np.array([0, 5, 77, 1000, 31])
    for width, heads in itertools.product((36, 72, 88, 120), (1, 3)):
        x = normal(2, heads, 5, width)
        want = turned(x, pos[:, None] * np.array(series(width)), pairing)
        got = ra.apply(lib.asarray(x), lib.asarray(pos.astype(np.int32)), pairing=pairing)
        np.testing.assert_allclose(lib.to_numpy(got), want, atol=2e-6)


@pytest.mark.library("torch", "jax")
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_gradient_at_these_widths(lib, pairing):
    pos = np.array([1, 5, 77])
    for width in (36, 72):
        x, cotangent = normal(2, 1, 3, width), normal(2, 1, 3, width, seed=1)
        want = turned(cotangent, -pos[:, None] * np.array(series(width)), pairing)
        own = lib.asarray(pos.astype(np.int32))
        got = lib.gradient(
            lambda x, own=own: ra.apply(x, own, pairing=pairing), lib.asarray(x), lib.asarray(cotangent)
        )
        np.testing.assert_allclose(lib.to_numpy(got), want, atol=2e-6)


# ---- packed, split, and padded sequences ----


def test_packed_sequences_are_rotated_as_alone(lib):
    lengths, rope = (3, 1, 4), RoPE(16)
    x = normal(2, sum(lengths), 16)
    pos = positions.packed(np.cumsum((0, *lengths)).tolist(), like=lib.asarray(x))
    got = lib.to_numpy(rope.apply(lib.asarray(x), pos))
    for start, n in zip((0, 3, 4), lengths, strict=True):
        want = turned(x[:, start : start + n], np.arange(n)[:, None] * np.array(series(16)), "interleaved")
        np.testing.assert_allclose(got[:, start : start + n], want, atol=2e-6)


HELD = {"contiguous": [[*range(8)], [*range(8, 16)]]}
HELD["zigzag"] = [[*range(4), *range(12, 16)], [*range(4, 12)]]


@pytest.mark.parametrize("layout", HELD)
def test_ranks_together_rotate_the_whole(lib, layout):
    """Each rank rotates by positions in the packed sequence, not by indices in the rank."""
    x, cu_seqlens = normal(2, 16, 16), [0, 5, 6, 16]
    pos = positions.packed(cu_seqlens)
    assert pos.tolist() == [*range(5), 0, *range(10)]
    want = turned(x, pos[:, None] * np.array(series(16)), "interleaved")
    own, array = lib.asarray(pos.astype(np.int32)), lib.asarray(x)
    for rank, held in enumerate(HELD[layout]):
        cut = {"rank": rank, "size": 2, "layout": layout}
        got = ra.apply(
            positions.context_parallel(array, axis=1, **cut), positions.context_parallel(own, **cut)
        )
        np.testing.assert_allclose(lib.to_numpy(got), want[:, held], atol=2e-6)


def test_padding_on_the_left_moves_no_token_of_an_image():
    rope = RoPE(16, axes=ra.Axes.chunked(2, 3, 3))
    tokens, x = [0, 0, 1, 1, 1, 1, 0], normal(1, 7, 16)
    alone, delta = positions.mrope(tokens, [(1, 4, 4)])
    padded, deltas = positions.mrope([[0, 0, 0, *tokens]], [(1, 4, 4)], mask=[[0, 0, 0, *[1] * 7]])
    assert deltas.tolist() == [int(delta)]
    got = rope.apply(np.concatenate([x[:, :3], x], axis=1), padded)[:, 3:]
    np.testing.assert_array_equal(got, rope.apply(x, alone))
    angles = alone[:, [0, 0, 1, 1, 1, 2, 2, 2]] * np.array(series(16))
    np.testing.assert_allclose(got, turned(x, angles, "interleaved"), atol=2e-6)


# ---- rules ----


def test_yarn_with_ends_that_clamping_makes_equal():
    """A trained context below one turn of pair 0: both ends are pair 0, and only its frequency is kept."""
    found = RoPE(16, scaling=ra.YaRN(4.0, 4)).frequencies
    plain = series(16)
    np.testing.assert_allclose(found, [plain[0], *(omega / 4 for omega in plain[1:])], rtol=1e-14)
    assert all(math.isfinite(omega) for omega in found)


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_against_its_formula(truncate):
    """Frequencies are kept below low, divided above high, and interpolated linearly between them."""
    for width, base, trained, factor, fast, slow in (
        (64, 150_000.0, 4096, 32.0, 32.0, 1.0),  # gpt-oss
        (128, 1e6, 32768, 4.0, 32.0, 1.0),  # Qwen2.5
        (64, 1e4, 4096, 40.0, 32.0, 1.0),  # DeepSeek-V3
        (128, 5e5, 8192, 8.0, 20.0, 2.0),
    ):
        low, high = (
            width * math.log(trained / (2 * math.pi * turns)) / (2 * math.log(base)) for turns in (fast, slow)
        )
        low, high = (math.floor(low), math.ceil(high)) if truncate else (low, high)
        ramp = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(width // 2)]
        want = [w / factor * r + w * (1 - r) for w, r in zip(series(width, base), ramp, strict=True)]
        rule = ra.YaRN(factor, trained, beta_fast=fast, beta_slow=slow, truncate=truncate)
        rope = RoPE(width, base=base, scaling=rule)
        np.testing.assert_allclose(rope.frequencies, want, rtol=1e-12)
        assert rope.amplitude == pytest.approx(0.1 * math.log(factor) + 1, rel=1e-15)
        # The amplitude scales rotated features once, and other features not at all.
        x = normal(1, width + 4).astype(np.float64)
        y = dataclasses.replace(rope, head_dim=width + 4).apply(x, 77)
        ratio = np.linalg.norm(y[0, :width]) / np.linalg.norm(x[0, :width])
        assert ratio == pytest.approx(0.1 * math.log(factor) + 1, rel=1e-12)
        np.testing.assert_array_equal(y[0, width:], x[0, width:])


def test_longrope_up_to_and_beyond_the_trained_length():
    """The trained length itself takes the short list; only `at_length` chooses a list, not positions."""
    short, long = [1.0, 1.1, 1.2, 1.3], [2.0, 4.0, 8.0, 16.0]
    rope = RoPE(8, scaling=ra.LongRoPE(short, long, 64, factor=8.0))
    amplitude, x = math.sqrt(1 + math.log(8) / math.log(64)), normal(100, 8)
    for length, divisors in ((1, short), (63, short), (64, short), (65, long), (100, long)):
        pos = np.arange(length)
        angles = pos[:, None] * (np.array(series(8)) / divisors)
        want = amplitude * turned(x[:length], angles, "interleaved")
        chosen = rope.at_length(length)
        np.testing.assert_allclose(chosen.apply(x[:length], pos), want, atol=3e-6)
        # A single token, at position 0, has the same bits as in the whole: positions choose no list.
        np.testing.assert_array_equal(chosen.apply(x[:1], 0), chosen.apply(x[:length], pos)[:1])


def test_a_shift_of_scaled_keys_with_coordinates():
    """The cached keys already contain the amplitude, and each pair moves by its own coordinate."""
    coordinates = (0, 1, 2, 0, 1, 2, 0, 0)
    rope = RoPE(16, pairing="half", axes=ra.Axes(coordinates), scaling=ra.YaRN(4.0, 64))
    raw, pos = normal(2, 5, 16), np.array([[4, 4, 4], [5, 5, 5], [5, 5, 6], [5, 6, 5], [7, 7, 7]]) + 50
    cached = rope.apply(raw, pos)
    for delta in ([-50, -50, -50], [3, 0, -2]):
        angles = (pos + delta)[:, list(coordinates)] * np.array(rope.frequencies)
        want = (0.1 * math.log(4) + 1) * turned(raw, angles, "half")
        np.testing.assert_allclose(convert.shift_keys(cached, delta, rope), want, atol=4e-6)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_quantised_cache_is_not_shifted(dtype):
    with pytest.raises(ra.ArrayTypeError, match=f"{dtype}.*Rotate before you quantise"):
        convert.shift_keys(np.zeros((2, 3, 8), dtype), 3, RoPE(8))


# ---- maps of pairs to coordinates ----

COORDINATES = {
    "interleaved": (ra.Axes.interleaved(3, 3, 2), (0, 1, 2, 0, 1, 2, 0, 1)),
    "interleaved, uneven": (ra.Axes.interleaved(4, 3, 1), (0, 1, 2, 0, 1, 0, 0, 1)),
    "alternating": (ra.Axes.alternating(2, 3, 3), (1, 2, 1, 2, 1, 2, 0, 0)),
    "chunked": (ra.Axes.chunked(2, 3, 3), (0, 0, 1, 1, 1, 2, 2, 2)),
}
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++", "cl"))), reason="needs a C++ compiler"
)


@pytest.mark.neutral
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("name", COORDINATES)
def test_pairs_take_their_own_coordinate(lib, name, pairing):
    """The coordinates differ in every token, unlike in text."""
    axes, coordinates = COORDINATES[name]
    assert axes.coordinates == coordinates
    pos, x = np.array([[1, 50, 9], [700, 2, 33], [4, 5, 6000]]), normal(2, 3, 16)
    want = turned(x, pos[:, list(coordinates)] * np.array(series(16)), pairing)
    got = ra.apply(lib.asarray(x), lib.asarray(pos.astype(np.int32)), axes=axes, pairing=pairing)
    np.testing.assert_allclose(lib.to_numpy(got), want, atol=2e-6)


@pytest.mark.slow
@pytest.mark.library("torch")
@needs_compiler
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_axes_compiled_by_inductor():
    """Generated code gives each pair its coordinate too."""
    import torch

    torch._dynamo.reset()
    rope = RoPE(16, pairing="half", axes=COORDINATES["interleaved"][0])
    pos, x = np.random.default_rng(0).integers(0, 1000, (33, 3)), normal(2, 33, 16)
    got = torch.compile(rope.apply, fullgraph=True)(torch.as_tensor(x), torch.as_tensor(pos))
    angles = pos[:, list(COORDINATES["interleaved"][1])] * np.array(series(16))
    np.testing.assert_allclose(got.numpy(), turned(x, angles, "half"), atol=2e-6)
    torch._dynamo.reset()


def test_the_fourth_coordinate_of_text_is_not_zero():
    """Qwen3-VL's pairs 61 and 62 rotate by the time, as pairs 60 and 63 do."""
    rope = RoPE(128, base=5e6, pairing="half", axes=ra.Axes.interleaved(24, 20, 20))
    assert rope.axes.coordinates[60:] == (0, 0, 0, 0)
    x = np.zeros((1, 128))
    x[0, 61] = x[0, 62] = 1.0
    y = rope.apply(x, [[100_000] * 3])
    angles = [math.atan2(y[0, i + 64], y[0, i]) for i in (61, 62)]
    np.testing.assert_allclose(angles, [1e5 * 5e6 ** (-i / 64) for i in (61, 62)], rtol=1e-9)
    assert angles == pytest.approx([0.041, 0.032], abs=1e-3)


def test_interleaved_axes_are_no_interleaved_pairs():
    """`mrope_interleaved` names the map of pairs to axes; the pairing is the model's."""
    scaling = {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}
    text = {"head_dim": 128, "rope_theta": 5e6, "rope_scaling": scaling}
    qwen = {"model_type": "qwen3_vl", "text_config": text}
    glm = {
        "model_type": "glm4v",
        "text_config": {
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "partial_rotary_factor": 0.5,
            "rope_scaling": {"type": "default", "mrope_section": [8, 12, 12]},
        },
    }
    x, pos = normal(4, 128), np.array([[3, 9, 1], [40, 2, 77], [5, 6, 7], [0, 100, 1000]])
    for config, coordinates, pairing, base in (
        (qwen, [0, 1, 2] * 20 + [0] * 4, "half", 5e6),
        (glm, [0] * 8 + [1] * 12 + [2] * 12, "interleaved", 1e4),
    ):
        want = turned(x, pos[:, coordinates] * np.array(series(2 * len(coordinates), base)), pairing)
        np.testing.assert_allclose(RoPE.from_config(config).apply(x, pos), want, atol=2e-6)


# ---- names ----


@pytest.mark.parametrize(
    "name", ["neox", "gpt-j", "alternate", "consecutive", "adjacent", "rotate_half", "traditional", True, 0]
)
def test_pairings_have_two_names(name):
    """Refuse names and switches that mean opposite pairings in two libraries."""
    for fields in ({"pairing": name}, {"out_pairing": name}):
        with pytest.raises(SpecError, match=r"'interleaved'.*'half'"):
            ra.apply(np.ones((2, 8)), 0, **fields)


def test_every_entry_point_has_the_same_defaults():
    x, pos = normal(3, 8), np.array([1, 20, 300])
    want = turned(x, pos[:, None] * np.array(series(8)), "interleaved")
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
    "codegen": (256, 64, {"n_embd": 4096, "n_head": 16, "rotary_dim": 64}, None),
    "phi": (80, 32, {"partial_rotary_factor": 0.4}, {"partial_rotary_factor": 0.4}),
    "phi3": (128, 96, {"partial_rotary_factor": 0.75}, {"partial_rotary_factor": 0.75}),
    "stablelm": (80, 20, {"partial_rotary_factor": 0.25}, {"partial_rotary_factor": 0.25}),
    "persimmon": (64, 32, {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.5}),
    "nemotron": (128, 32, {"partial_rotary_factor": 0.25}, {"partial_rotary_factor": 0.25}),
    "glm": (128, 64, {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.5}),
    "glm4_moe": (128, 32, {"partial_rotary_factor": 0.25}, {"partial_rotary_factor": 0.25}),
    "qwen3_next": (256, 32, {"partial_rotary_factor": 0.125}, {"partial_rotary_factor": 0.125}),
    "minimax_m2": (128, 64, {"rotary_dim": 64}, None),
}


@pytest.mark.parametrize("kind", PARTIAL)
def test_a_part_of_the_head_stays_a_part(kind):
    """Older and current keys set the rotated width, and a rule scales the frequencies of this width."""
    head, rotary, old, new = PARTIAL[kind]
    base = {"model_type": kind, "hidden_size": 4 * head, "num_attention_heads": 4, "head_dim": head}
    given = [{**base, "rope_theta": 2e4, **old}]
    if new is not None:
        given.append({**base, "rope_parameters": {"rope_type": "default", "rope_theta": 2e4, **new}})
        linear = {"rope_type": "linear", "rope_theta": 2e4, "factor": 4.0, **new}
        scaled = RoPE.from_config({**base, "rope_parameters": linear})
        np.testing.assert_allclose(
            scaled.frequencies, [omega / 4 for omega in series(rotary, 2e4)], rtol=1e-14
        )
    for config in given:
        rope = RoPE.from_config(json.loads(json.dumps(config)))
        assert (rope.head_dim, rope.rotary_dim) == (head, rotary)
        x = normal(3, head)
        y = rope.apply(x, [1, 2, 3])
        np.testing.assert_array_equal(y[:, rotary:], x[:, rotary:])
        assert (y[:, :rotary] != x[:, :rotary]).all()


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


@pytest.mark.parametrize("kind", ["dynamic", "yarn", "longrope"])
def test_a_head_dim_of_null_is_not_stated(kind):
    config = {"model_type": "llama", "hidden_size": 128, "num_attention_heads": 4}
    config |= {"max_position_embeddings": 4096, "rope_scaling": {"type": kind, **RULED[kind]}}
    assert RoPE.from_config({**config, "head_dim": None}) == RoPE.from_config({**config, "head_dim": 32})


@pytest.mark.parametrize("kind", ["gemma3_text", "gemma3n_text"])
def test_gemma_scales_its_global_layers_only(kind):
    config = {"model_type": kind, "head_dim": 32, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    near, far = (RoPE.from_config(config, layer_type=f"{name}_attention") for name in ("sliding", "full"))
    np.testing.assert_allclose(near.frequencies, series(32, 1e4), rtol=1e-14)
    np.testing.assert_allclose(far.frequencies, [omega / 8 for omega in series(32, 1e6)], rtol=1e-14)


def test_modernbert_scales_both_kinds_of_layers():
    config = {"model_type": "modernbert", "hidden_size": 128, "num_attention_heads": 4}
    config |= {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    for name, base in (("sliding", 1e4), ("full", 160000.0)):
        rope = RoPE.from_config(config, layer_type=f"{name}_attention")
        np.testing.assert_allclose(rope.frequencies, [omega / 2 for omega in series(32, base)], rtol=1e-14)


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
