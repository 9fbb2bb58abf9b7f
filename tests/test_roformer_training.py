"""The study's training loop: AdamW by its formulas, schedule, curves, continuation to the same bits."""

import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from roformer import training
from roformer.training import load_weights, save_weights, schedule, seed_everything, train, write_atomically

pytestmark = pytest.mark.library("torch")


def make_model():
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.25), nn.Linear(8, 1))


def make_loss(model, stop=None):
    """Return the loss of a step, which needs the global generator for dropout; step `stop` is interrupted."""

    def loss(step):
        if step == stop:
            raise KeyboardInterrupt
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(step))
        return (model(x) - x.square().sum(1, keepdim=True)).square().mean()

    return loss


def train_until(stop, path, monkeypatch, save_seconds=0.0):
    """Train a new model for 20 steps; return its curve (None if interrupted) and weights."""
    monkeypatch.setattr(training, "SAVE_SECONDS", save_seconds)
    seed_everything(3)
    model = make_model()
    options = {"learning_rate": 0.02, "warmup": 5, "every": 6, "checkpoint": path}
    try:
        curve = train(model, make_loss(model, stop), 20, **options)
    except KeyboardInterrupt:
        curve = None
    return curve, model.state_dict()


def same_bits(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("stops", [(1,), (6,), (9, 15), (19,)], ids=str)
def test_interrupted_training_continues_to_the_same_bits(tmp_path, monkeypatch, stops):
    curve, weights = train_until(None, None, monkeypatch)
    for stop in stops:
        assert train_until(stop, tmp_path / "checkpoint.pt", monkeypatch)[0] is None
    continued, again = train_until(None, tmp_path / "checkpoint.pt", monkeypatch)
    assert continued == curve
    assert same_bits(weights, again)


def test_finished_training_is_not_repeated(tmp_path, monkeypatch):
    curve, weights = train_until(None, tmp_path / "checkpoint.pt", monkeypatch, save_seconds=math.inf)
    again, same = train_until(0, tmp_path / "checkpoint.pt", monkeypatch)  # step 0 would be interrupted
    assert again == curve
    assert same_bits(weights, same)


def test_checkpoints_wait_for_their_time(tmp_path, monkeypatch):
    train_until(12, tmp_path / "checkpoint.pt", monkeypatch, save_seconds=1000.0)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_curve_has_the_mean_losses_since_the_last_value():
    losses, model = [], make_model()
    of_step = make_loss(model)

    def loss(step):
        found = of_step(step)
        losses.append(found.item())
        return found

    curve = train(model, loss, 8, learning_rate=0.01, every=3)
    means = [np.mean(losses[:3]), np.mean(losses[3:6]), np.mean(losses[6:])]
    assert [step for step, _ in curve] == [3, 6, 8]
    np.testing.assert_allclose([value for _, value in curve], means, rtol=1e-14)


def test_curve_has_evaluations_without_dropout_and_gradients():
    model, seen = make_model(), []

    def evaluate():
        seen.append((model.training, torch.is_grad_enabled()))
        return {"accuracy": len(seen)}

    fractions = []
    options = {"learning_rate": 0.01, "evaluate": evaluate, "every": 2, "report": fractions.append}
    curve = train(model, make_loss(model), 4, **options)
    assert curve == [(2, {"accuracy": 1}), (4, {"accuracy": 2})]
    assert seen == [(False, False)] * 2
    assert model.training
    assert fractions == [0.25, 0.5, 0.75, 1.0]


def test_schedule_rises_and_falls_in_straight_lines():
    shares = [schedule(step, 10, 4) for step in range(10)]
    np.testing.assert_allclose(
        shares, [1 / 4, 2 / 4, 3 / 4, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6], rtol=1e-15
    )
    assert schedule(0, 10) == 1.0


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


def test_weights_are_read_as_they_were_written(tmp_path):
    model, other = make_model(), make_model()
    save_weights(model, tmp_path / "new" / "weights.pt")
    load_weights(other, tmp_path / "new" / "weights.pt")
    assert same_bits(model.state_dict(), other.state_dict())


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, lambda part: part.write_text("old"))

    def fail(part):
        part.write_text("ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == "old"


def test_a_seed_gives_the_same_draws():
    def draws(seed):
        seed_everything(seed)
        return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002 - the global generator

    assert draws(1) == draws(1)
    assert all(a != b for a, b in zip(draws(1), draws(2), strict=True))
