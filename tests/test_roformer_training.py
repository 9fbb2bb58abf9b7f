"""The study's training loop is AdamW with a linear schedule, by its formulas."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from roformer.training import train

pytestmark = pytest.mark.library("torch")


def adamw(w, b, gradients, steps, warmup, rate, betas, decay):
    """Train w (D,) and b () by AdamW (arXiv 1711.05101, algorithm 2), gradients clipped to norm 1."""
    theta, m, v = np.append(w, b), 0.0, 0.0
    decayed = np.append(np.ones_like(w), 0.0)  # the bias has no decay
    for t in range(1, steps + 1):
        lr = rate * (t / warmup if t <= warmup else (steps - t + 1) / (steps - warmup))
        g = gradients(theta)
        g = g / max(1.0, np.linalg.norm(g) + 1e-6)  # PyTorch's addition
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        step = (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + 1e-8)
        theta = theta - lr * decay * decayed * theta - lr * step
    return theta


@pytest.mark.parametrize(("scale", "clipped"), [(0.1, False), (10.0, True)], ids=["unclipped", "clipped"])
def test_training_is_adamw(scale, clipped):
    rng = np.random.default_rng(5)
    x, y = scale * rng.normal(size=(7, 3)), rng.normal(size=7)
    model = nn.Linear(3, 1).double()
    w, b = (p.detach().numpy().ravel().copy() for p in (model.weight, model.bias))
    loss = lambda step: (model(torch.tensor(x)).squeeze(1) - torch.tensor(y)).square().mean()  # noqa: E731
    numbers = {"learning_rate": 0.05, "warmup": 4, "betas": (0.8, 0.95), "weight_decay": 0.3}
    train(model, loss, 12, **numbers)

    def gradients(theta):
        error = x @ theta[:3] + theta[3] - y
        return 2 / len(x) * np.append(x.T @ error, error.sum())

    expected = adamw(w, b, gradients, 12, 4, 0.05, (0.8, 0.95), 0.3)
    found = np.append(model.weight.detach().numpy(), model.bias.detach().numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert (np.linalg.norm(gradients(np.append(w, b))) > 1) == clipped
