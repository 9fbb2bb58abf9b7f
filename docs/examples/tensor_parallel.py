"""Tensor parallelism: each rank has some of the heads, and all heads of a token have its position.

    torchrun --nproc-per-node=2 docs/examples/tensor_parallel.py

Trains a small decoder cut by `parallelize_module`: rotates plain tensors of the rank's heads, then DTensors
of all heads. A single process gets the same losses.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import rope_array as ra

LENGTH, WIDTH, HEADS, KV_HEADS, VOCABULARY = 32, 64, 8, 4, 128
ROPE = ra.RoPE(head_dim=WIDTH // HEADS, base=500_000.0, pairing="half")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = (nn.Linear(WIDTH, WIDTH * KV_HEADS // HEADS) for _ in range(2))

    def forward(self, x, pos):
        # (batch, tokens, the rank's heads or all heads, features)
        q, k, v = (project(x).unflatten(-1, (-1, ROPE.head_dim)) for project in (self.q, self.k, self.v))
        q, k = ROPE.apply((q, k), pos, seq_axis=-3)
        q, k, v = (as_local(heads).transpose(1, 2) for heads in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


def as_local(x):
    return x.to_local() if isinstance(x, DTensor) else x


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.layers = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList([Attention(), Attention()])
        self.logits = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, targets, pos):
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, pos)
        return nn.functional.cross_entropy(self.logits(x).flatten(0, 1), targets.flatten())


def train(mesh=None, rotate="local", steps=8):
    """Return the loss of each step, of one process or of a mesh."""
    torch.manual_seed(0)  # the same weights and data on every rank
    model, data = Decoder(), torch.randint(VOCABULARY, (2, LENGTH + 1))
    pos = torch.arange(LENGTH)
    if mesh is not None:
        columns = ColwiseParallel(use_local_output=rotate == "local")
        plan = {"q": columns, "k": columns, "v": columns, "out": RowwiseParallel()}
        for layer in model.layers:
            parallelize_module(layer, mesh, plan)
    if rotate == "DTensor":
        pos = distribute_tensor(pos, mesh, [Replicate()])  # of all tokens
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, foreach=False)
    losses = torch.zeros(steps)
    for step in range(steps):
        loss = model(data[:, :-1], data[:, 1:], pos)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step] = loss.detach()
    return losses


if __name__ == "__main__":
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    expected = train()
    runs = (("one process", expected), ("plain tensors", train(mesh)), ("DTensors", train(mesh, "DTensor")))
    for name, losses in runs:
        if dist.get_rank() == 0:
            print(f"{name:14}", *(f"{loss:.6f}" for loss in losses))
        # Sums are in another order: a few roundings of float32.
        torch.testing.assert_close(losses, expected, rtol=1e-5, atol=0)
    dist.barrier()  # or a thread of gloo's might still free a tensor when Python exits
    dist.destroy_process_group()
