"""Compare `rope_array` with other implementations at small positions, and run other projects' own tests.

Collected only with `--peers` (`nox -s peers`), as it needs their packages. The adapters of `bench/peers` call
them; `bench/scoreboard.py` runs the whole suite on these adapters. The tolerance is the peers' own error:
float32 angles at positions below 64 are off by at most 64 · 2^-24 radians and a rounding or two.
"""

import sys
import unittest
from importlib import import_module
from pathlib import Path

import pytest
import torch

import rope_array as ra

sys.path.append(str(Path(__file__).parents[1] / "bench"))
from peers import their_cases

S, D = 64, 32
# An angle pos·ω of at most 63 in float32 has half a unit of error by the product, and a few by ω. Features
# are below 5 here, and a result depends on both features of a pair.
FLOAT32_ANGLES = 4 * 63 * 2.0**-24 * 5 * 2**0.5
MODULES = ("huggingface", "meta", "rotary_embedding_torch", "onnx_reference")
CALLS = {
    "defaults": {},
    "base": {"base": 500_000.0},
    "part of the features": {"rotary_dim": 16},
    "interleaved": {"pairing": "interleaved"},
    "half": {"pairing": "half"},
}


NO_ROTATION = "transformers V-JEPA 2"


def cases():
    for module in MODULES:
        for peer in import_module(f"peers.{module}").targets():
            for call, fields in CALLS.items():
                if peer.name != NO_ROTATION and fields.keys() <= peer.claimed:
                    yield pytest.param(peer, fields, id=f"{peer.name}-{call}")


@pytest.mark.parametrize(("peer", "fields"), [*cases()])
def test_a_peer_agrees(peer, fields):
    q = torch.randn(2, 4, S, D, generator=torch.Generator().manual_seed(0))
    q, pos = (q.numpy(), torch.arange(S).numpy()) if peer.library == "numpy" else (q, torch.arange(S))
    want = torch.as_tensor(peer.call(q, pos, **fields)).detach()
    for angles in ("exact", "float32"):
        y = torch.as_tensor(ra.RoPE(D, angles=angles, **{**peer.fixed, **fields}).apply(q, pos))
        assert (y - want).abs().max() <= FLOAT32_ANGLES


# ---- the tests of other projects ----


def their(cases):
    """Return the cases of a project as parameters; one skipped parameter if its repository is missing."""
    try:
        return [pytest.param(case, id=case.name) for case in cases()]
    except their_cases.MissingSource as missing:
        return [pytest.param(None, id=cases.__name__, marks=pytest.mark.skip(reason=str(missing)))]


@pytest.mark.parametrize("case", their(their_cases.onnx_cases))
def test_onnx_node_tests(case):
    y = case.rotate(case.x)
    assert (y.shape, y.dtype) == (case.x.shape, case.x.dtype)
    assert abs(y.astype("float64") - case.expected).max() <= case.tolerance


@pytest.mark.parametrize("case", [*their(their_cases.flash_attention_cases), *their(their_cases.vllm_cases)])
def test_reference_cases(case):
    y = case.rotate(case.x)
    assert (y - case.expected).abs().max() <= case.tolerance
    if case.x.requires_grad:  # the reference's own gradient, in float64
        cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
        (pulled,) = torch.autograd.grad(y, case.x, cotangent)
        (expected,) = torch.autograd.grad(case.expected, case.x, cotangent.double())
        assert (pulled - expected).abs().max() <= case.tolerance


def test_rope_parameters_of_transformers():
    try:
        suite = their_cases.transformers_tests()
    except their_cases.MissingSource as missing:
        pytest.skip(str(missing))
    result = unittest.TestResult()
    suite.run(result)
    assert result.testsRun >= 3
    assert [trace for _, trace in [*result.errors, *result.failures]] == []
