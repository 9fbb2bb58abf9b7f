"""`angles="float32"`: the bits of transformers, for every scaling rule and for released configs.

The golden file has the frequencies and amplitudes of transformers 5.24 and PyTorch 2.13, with AVX-512,
for configs of released models; tests/hf/_float32.py writes it. tests/test_hf.py compares with transformers.
"""

import dataclasses
import json
from pathlib import Path

import mpmath
import numpy as np
import pytest

import rope_array as ra
from rope_array import RoPE
from rope_array._spec import float32_steps

GOLDEN = Path(__file__).with_name("golden") / "transformers" / "float32.json"
CASES = json.loads(GOLDEN.read_text("utf-8"))["cases"]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])


def narrow(case):
    rope = RoPE.from_config(case["config"], layer_type=case["layer_type"]).at_length(case["length"])
    return dataclasses.replace(rope, angles="float32")


def golden_frequencies(case):
    return np.array([float.fromhex(omega) for omega in case["inv_freq"]], np.float32)


@each_case
def test_frequencies_have_the_bits_of_transformers(case):
    """They are near the exact frequencies, as a wrong golden file would not be."""
    rope, golden = narrow(case), golden_frequencies(case)
    assert rope.frequencies == tuple(map(float, golden))
    assert rope.amplitude == float.fromhex(case["amplitude"])
    exact = dataclasses.replace(rope, angles="exact").frequencies
    np.testing.assert_allclose(golden, exact, rtol=3e-6, atol=1e-12)


@each_case
@pytest.mark.library("torch")
def test_tables_of_torch_have_the_bits_of_transformers(case):
    """Follow LlamaRotaryEmbedding.forward at every 13th position."""
    torch = pytest.importorskip("torch")
    pos = torch.arange(0, case["length"], 13)
    angles = pos[:, None].float() * torch.from_numpy(golden_frequencies(case))
    rotation = narrow(case).rotation(pos, like=torch.zeros(1))
    assert torch.equal(rotation.cos, angles.cos() * float.fromhex(case["amplitude"]))
    assert torch.equal(rotation.sin, angles.sin() * float.fromhex(case["amplitude"]))


def test_every_rule_of_transformers_has_a_case():
    scalings = {type(narrow(case).scaling) for case in CASES}
    rules = {ra.Linear, ra.DynamicNTK, ra.YaRN, ra.Llama3, ra.LongRoPE, ra.Proportional}
    assert scalings == {type(None), *rules}


@pytest.mark.parametrize(
    "base", [10000.0, 500_000.0, 1e6, 12345.678, 150.0, 2.0, 1.0, 0.5, 1e-3, 1e-40, 3e38]
)
def test_powers_are_within_a_unit_in_the_last_place(base):
    """Whole blocks of 32 follow SLEEF, whose error is at most a unit; the rest is correctly rounded."""
    for width in (2, 16, 64, 80, 128, 256):
        exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
        powers = np.float32(float32_steps.powers(base, width, width // 2))
        with mpmath.workdps(40):
            wanted = np.float32(
                [mpmath.mpf(float(np.float32(base))) ** mpmath.mpf(float(e)) for e in exponents]
            )
        np.testing.assert_array_max_ulp(powers, wanted, maxulp=1)
        tail = width // 2 % 32
        np.testing.assert_array_equal(powers[-tail:] if tail else [], wanted[-tail:] if tail else [])


def frequencies(rule, width=128):
    return RoPE(width, scaling=rule, angles="float32").frequencies


OTHER_RULES = {
    "NTK-aware": ra.NTKAware(3.7),
    "fixed": ra.NTKAware(3.7, "fixed"),
    "mixed": ra.NTKAware(3.7, "mixed", 0.5),
    "periods": ra.Periods(),
    "Llama 3 without a ramp": ra.Llama3(8.0, 2.0, 2.0, 512),
}


@pytest.mark.parametrize("name", OTHER_RULES)
def test_other_rules_are_applied_to_float32_frequencies(name):
    """Transformers has no such rule, or divides by 0: results are float32 numbers near the exact ones."""
    rope = RoPE(128, scaling=OTHER_RULES[name])
    scaled = frequencies(rope.scaling)
    assert scaled == tuple(map(float, np.float32(scaled)))
    np.testing.assert_allclose(scaled, rope.frequencies, rtol=2e-6)


def test_factors_beyond_float32():
    """A factor that float32 rounds to 0 has no frequencies; beyond its largest number they are 0."""
    assert frequencies(ra.Linear(1e60))[0] == 0
    for rule in (ra.Linear(1e-60), ra.YaRN(1e-60, 512), ra.Llama3(1e-60)):
        with pytest.raises(ra.SpecError, match="range of floats"):
            frequencies(rule)
