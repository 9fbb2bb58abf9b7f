"""Other projects' own tests, run on `rope_array`.

Collected only with `--peers` (`nox -s peers`), as it needs their packages and repositories.
`bench/scoreboard.py` runs the suite on other implementations.
"""

import unittest

import peer_cases
import pytest
import torch

import rope_array as ra


def their(cases):
    """Return the cases of a project as parameters; one skipped parameter if its repository is missing."""
    try:
        return [pytest.param(case, id=case.name) for case in cases()]
    except peer_cases.MissingSource as missing:
        return [pytest.param(None, id=cases.__name__, marks=pytest.mark.skip(reason=str(missing)))]


@pytest.mark.parametrize("case", their(peer_cases.onnx_cases))
def test_onnx_node_tests(case):
    y = case.rotate()
    assert (y.shape, y.dtype) == (case.x.shape, case.x.dtype)
    assert abs(y.astype("float64") - case.expected).max() <= case.tolerance


@pytest.mark.parametrize("case", [*their(peer_cases.flash_attention_cases), *their(peer_cases.vllm_cases)])
def test_reference_cases(case):
    y = case.rotate()
    assert (y - case.expected).abs().max() <= case.tolerance
    if case.x.requires_grad:  # the reference's own gradient, in float64
        cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
        (pulled,) = torch.autograd.grad(y, case.x, cotangent)
        (expected,) = torch.autograd.grad(case.expected, case.x, cotangent.double())
        assert (pulled - expected).abs().max() <= case.tolerance


def test_rope_parameters_of_transformers():
    try:
        suite = peer_cases.transformers_tests()
    except peer_cases.MissingSource as missing:
        pytest.skip(str(missing))
    outcome = unittest.TestResult()
    suite.run(outcome)
    assert outcome.testsRun >= 3
    assert [trace for _, trace in [*outcome.errors, *outcome.failures]] == []


def test_full_tables_have_the_form_of_transformers():
    """Its rotary module multiplies in float32: a relative error of some 2^-22."""
    from transformers.models.llama import LlamaConfig, modeling_llama

    config = LlamaConfig(hidden_size=128, num_attention_heads=2, rope_theta=10_000.0)
    theirs = modeling_llama.LlamaRotaryEmbedding(config)(torch.ones(1), torch.arange(2048)[None])
    ours = ra.RoPE(64, base=10_000.0, pairing="half").tables(2048, "full", like=torch.ones(1))
    for table, expected in zip(ours, theirs, strict=True):
        assert (table[None].shape, table.dtype) == (expected.shape, expected.dtype)
        assert ((table - expected[0]).abs().amax(1) <= 2.0**-22 * torch.arange(2048) + 2.0**-22).all()
