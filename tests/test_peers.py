"""Compare `rope_array` with other implementations at small positions.

Collected only with `--peers` (`nox -s peers`), as it needs their packages. The adapters of `bench/peers` call
them; `bench/scoreboard.py` runs the whole suite on these adapters. The tolerance is the peers' own error:
float32 angles at positions below 64 are off by at most 64 · 2^-24 radians and a rounding or two.
"""

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import rope_array as ra

sys.path.append(str(Path(__file__).parents[1] / "bench"))

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
