"""Fingerprints of rotations: their numbers, their bits in every library, and differences, each planted."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ropes
from refusals import refusals, refused

import rope_array as ra
from rope_array import Fingerprint, FingerprintError, RoPE, fingerprint
from rope_array._diagnose._mistakes import ROUNDERS
from rope_array._fingerprint import of_layers

HALF = RoPE(16, pairing="half", base=5e5)
ROPES = {
    **ropes.SPECS,
    **ropes.SEVERAL,
    "reversed": RoPE(64, scaling=ra.Reversed()),
    "proportional": RoPE(64, pairing="half", scaling=ra.Proportional(0.25)),
    "whole turns": RoPE(64, scaling=ra.Periods()),
    "length": RoPE(64, scaling=ra.DynamicNTK(2.0, 1024)),
    "small amplitude": RoPE(8, attention_factor=0.1),
}


def rotation_of(found):
    ((_, rotation),) = found.rotations
    return rotation


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_numbers_are_those_of_the_rope_and_survive_a_log(dtype):
    """Frequencies modulo 2π; in 16 bits, to the rounding at the last power of two."""
    for name, rope in ROPES.items():
        found = fingerprint(rope, length=4096, like=np.empty(0, dtype))
        log = f"{found}"[:-8] + f"\n{found}\nready".replace("\n", "\x1b[0m\n\x1b[36m12:00 [worker 3] ")
        assert Fingerprint.parse(log) == found, name
        assert str(Fingerprint.parse(log)) == str(found)
        rotation, rope = rotation_of(found), rope.at_length(4096)
        omegas = np.array([math.remainder(omega, 2 * math.pi) for omega in rope.frequencies])
        omegas, measured = (w[abs(w) > 1e-12] for w in (omegas, rotation.numbers[2]))  # others do not rotate
        errors = 3e-6 * abs(omegas) + 8 * np.finfo(dtype).eps * np.maximum(abs(omegas), 2.0**-11)
        assert (abs(measured - omegas) <= errors).all(), name
        size, *exact = rotation.cos_and_sin.split(", ")
        assert abs(float(size.split()[1]) - rope.amplitude) <= np.finfo(dtype).eps + 1e-5
        pairing = "half" if rope.pairing == "half" and len(omegas) > 1 else "interleaved"
        assert rotation.layout.startswith(pairing if len(omegas) else "no pairs; features none"), name
        assert exact == ["more than 16 bits", "angles exact"], name


def test_texts():
    ropes_of_texts = {
        "half (i, i + 32); features 0-7, 32-39 of 64": ROPES["proportional"],
        "half (i, i + 7) to interleaved; features 6-19 of 20": ROPES["end"],
        "axes: 0210": ROPES["unrotated pairs"],  # pairs without a coordinate do not rotate
        "10000000^(-i/64) / (1 x64)": RoPE(128, base=1e7),
        "500000^(-i/64) / (1 x29, 1.207484, 1.55": RoPE(128, base=5e5, scaling=ra.Llama3(8.0)),
        "length 4096)": RoPE(8, max_position=4095),
    }
    for text, rope in ropes_of_texts.items():
        assert text in str(fingerprint(rope, length=None if rope.max_position else 4096))


@pytest.mark.library("torch", "jax", "dask")
def test_one_fingerprint_in_every_mode():
    """tests/golden/bits.toml has hashes of each library and dtype."""
    import dask.array
    import jax
    import torch

    modes = {
        "dask": (HALF.apply, dask.array.zeros(1, dtype=np.float32)),
        "compiled": (torch.compile(HALF.apply), torch.zeros(1)),
        "operations": (lambda x, pos: HALF.apply(x, pos, backend="array-api"), torch.zeros(1)),
        "tables": (lambda x, pos: HALF.rotation(pos, like=x).apply(x), torch.zeros(1)),
        "jit": (jax.jit(HALF.apply), jax.numpy.zeros(1)),
    }
    for name, (rotate, like) in modes.items():
        found = fingerprint(rotate, head_dim=16, length=131_072, like=like)
        assert found == fingerprint(HALF, length=131_072), name


# ---- differences ----


def rotate(
    x, pos, offset=0, end=2**31, angles=np.float64, tables=np.asarray, sums=np.float32, products=np.asarray,
    order=1,
):  # fmt: skip
    """Rotate half pairs, by angles and sums of these dtypes, and with roundings of tables and products."""
    pos = np.minimum(pos + offset, end)[:, None].astype(angles)
    turned = (pos * np.array(HALF.frequencies, angles)).astype(np.float64)
    cos, sin = (tables(f(turned)).astype(np.float32).astype(sums) for f in (np.cos, np.sin))
    a, b = x[..., :8].astype(sums), x[..., 8:].astype(sums)
    ends = products(a * cos) - products(b * sin), products(b * cos) + products(a * sin)
    return np.concatenate(ends[::order], -1).astype(x.dtype)


def measured(code):
    """Return the fingerprint of a rope, or of `rotate` with other arguments."""
    if isinstance(code, RoPE):
        return fingerprint(code, length=131_072)
    return fingerprint(partial(rotate, **code), head_dim=16, length=131_072)


LLAMA, TABLES = replace(HALF, scaling=ra.Llama3(8.0)), ROUNDERS["bfloat16"]
DIFFERENT = {
    "pairing: half (i, i + 8) here, interleaved in": (HALF, replace(HALF, pairing="interleaved")),
    "pairing: half (i, i + 8) here, half (i, i + 8) to in": (HALF, replace(HALF, out_pairing="interleaved")),
    "pairing: half (i, i + 8) here, half (i, i + 8) to half (i + 8, i)": ({}, {"order": -1}),
    "rotated part: features 0-15 of 16 here, features 0-7 of 16": (HALF, replace(HALF, rotary_dim=8)),
    "rotated part: features 0-15 of 16 here, features none": (HALF, RoPE(16, rotary_dim=0)),
    "axes: unknown here, 00001111 in": (HALF, replace(HALF, axes=ra.Axes.chunked(4, 4))),
    "positions: angles exact here, angles off by 1 from position 0 on": ({}, {"offset": 1}),
    "positions: angles exact here, angles off by 3 from position 2048 on": ({}, {"end": 2047}),
    "direction: φ here, -φ in": (HALF, replace(HALF, scaling=ra.Reversed())),
    "base: 500000 here, 10000 in": (HALF, replace(HALF, base=1e4)),
    "base: 500000 here, 500020 in": (HALF, replace(HALF, base=500_020.0)),
    "factor: pair 7 divided by 1 here, pair 7 divided by 4 in": (HALF, replace(HALF, scaling=ra.Linear(4.0))),
    "rule: pair 7 divided by 1 here, pair 7 divided by 8 in": (HALF, LLAMA),
    "amplitude: 1.0 here, 1.25 in": (HALF, replace(HALF, attention_factor=1.25)),
    "16-bit tables: more than 16 bits here, bfloat16 in": (
        {"tables": lambda table: table * 1.1}, {"tables": lambda table: TABLES(table * 1.1)}
    ),
    "16-bit tables: more than 16 bits here, float16 in": ({}, {"tables": ROUNDERS["float16"]}),
    "float32 angles: angles exact here, angles in float32, off by": (LLAMA, replace(LLAMA, angles="float32")),
    "bits of cos and sin below position 4096: ": ({}, {"tables": lambda table: table * (1 + 2**-23)}),
    "bits of results alone, below position 4096: ": ({}, {"sums": np.float64}),
}  # fmt: skip


@pytest.mark.parametrize("start", DIFFERENT)
def test_the_first_difference_is_named_with_its_remedy(start):
    ours, other = map(measured, DIFFERENT[start])
    text = refused(FingerprintError, ["in the other. "], lambda: ours.check(other))
    assert text.startswith(f"the rotations differ: {start}")
    assert ours.difference(Fingerprint.parse(str(ours))) == ""


@pytest.mark.parametrize("products", [np.asarray, ROUNDERS["float16"]])
def test_tables_of_16_bits_show_in_the_results_of_heads_of_16_bits(products):
    options = {"head_dim": 16, "length": 4000, "like": np.empty(0, np.float16)}
    exact, rounded = (
        fingerprint(partial(rotate, tables=tables, products=products), **options)
        for tables in (np.asarray, ROUNDERS["float16"])
    )
    assert exact.difference(rounded).startswith("16-bit tables: more than 16 bits here, float16 in")


def test_layers():
    """A rope is compared with each layer of a model."""
    local, full = (fingerprint(rope, length=64) for rope in (HALF, replace(HALF, base=1e4)))
    model, part = (
        of_layers({n: rotation_of(full if n % 6 == 5 else local) for n in range(count)}, 64, "float32")
        for count in (12, 5)
    )
    assert "\nrotation of layers 0-4, 6-10:\n" in str(model)
    assert Fingerprint.parse(str(model)) == model
    assert local.difference(model).startswith("layers 5, 11: base: 500000 here, 10000 in")
    assert model.difference(full).startswith("layers 0-4, 6-10: base: 500000 here, 10000 in")
    assert part.difference(model).startswith("layers 5-11 are in one alone")
    assert part.difference(local) == ""
    no_rope = rotation_of(fingerprint(RoPE(16, rotary_dim=0), length=64))
    whole = of_layers({0: rotation_of(local), 1: no_rope}, 64, "float32")
    assert whole.difference(of_layers({0: rotation_of(local)}, 64, "float32")) == ""


LOG = str(fingerprint(HALF, length=64))


@refusals("fingerprint")
def test_refusals(call, error, words):
    refused(error, words, lambda: eval(call))


def test_command(command, tmp_path):
    """As `diff`, it exits with 0, 1 or 2."""
    (tmp_path / "config.json").write_text('{"model_type": "gemma3_text", "num_hidden_layers": 6}', "utf-8")
    status, report, _ = command(["fingerprint", str(tmp_path), "--length", "64"])
    assert (status, [layers for layers, _ in Fingerprint.parse(report).rotations]) == (
        0,
        [(0, 1, 2, 3, 4), (5,)],
    )
    model, rope = (str(tmp_path / name) for name in ("model", "rope"))
    for file, text in (
        (model, report),
        (rope, command("fingerprint --head-dim 256 --pairing half --length 64")[1]),
    ):
        Path(file).write_text(text, "utf-8")
    assert command(["fingerprint", "--compare", model, model])[:2] == (0, "equal\n")
    status, out, _ = command(["fingerprint", "--compare", model, rope])
    assert (status, out[:28]) == (1, "layers 5: base: 1000000 here")
    lines = (f"--compare {model} absent", f"--compare {model} {rope} --length 3", "--part a", "--head-dim 0")
    for line in (*lines, "--scaling DynamicNTK(2.0,512)"):
        assert command(f"fingerprint {line}")[0] == 2
