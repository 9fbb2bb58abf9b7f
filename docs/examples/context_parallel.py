"""Context parallelism: each rank has a part of every sequence, and rotates it by the positions of that part.

    torchrun --nproc-per-node=2 docs/examples/context_parallel.py

Trains a small decoder in both layouts; a single process gets the same losses. Queries stay on their
rank; keys are rotated first, and then gathered.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Shard, init_device_mesh

import rope_array as ra

LENGTH, WIDTH, HEADS, VOCABULARY = 64, 64, 4, 128


def gather(x, mesh, dim):
    """Join the ranks' parts of x. In the backward, each rank gets the sum of the gradients of its part."""
    if mesh is None:
        return x
    return DTensor.from_local(x, mesh, [Shard(dim)]).full_tensor(grad_placements=[Partial()])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, rotation, pos, mesh):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        q, k = rotation.apply((q, k))  # (batch, heads, the rank's tokens, features)
        k, v, key_pos = gather(k, mesh, 2), gather(v, mesh, 2), gather(pos, mesh, 0)
        mask = key_pos <= pos[:, None]  # keys come in the order of the ranks, not of the positions
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rope = ra.RoPE(head_dim=WIDTH // HEADS, pairing="half")
        self.tokens, self.layers = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList([Attention(), Attention()])
        self.logits = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, targets, pos, mesh):
        x = self.tokens(tokens)
        rotation = self.rope.rotation(pos, like=x)  # of the rank's positions, once for all layers
        for layer in self.layers:
            x = layer(x, rotation, pos, mesh)
        return nn.functional.cross_entropy(self.logits(x).flatten(0, 1), targets.flatten())


def train(mesh=None, layout="contiguous", steps=8):
    """Return the loss of each step, of one process or of all ranks of a mesh."""
    torch.manual_seed(0)  # the same weights and data on every rank
    model, data = Decoder(), torch.randint(VOCABULARY, (2, LENGTH + 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rank, size = (mesh.get_local_rank(), mesh.size()) if mesh is not None else (0, 1)
    pos = ra.positions.context_parallel(LENGTH, rank, size, layout=layout, like=data)
    losses = torch.zeros(steps)
    for step in range(steps):
        loss = model(data[:, pos], data[:, pos + 1], pos, mesh) / size
        optimizer.zero_grad()
        loss.backward()
        losses[step] = loss.detach()
        if mesh is not None:
            for total in (losses[step], *(parameter.grad for parameter in model.parameters())):
                dist.all_reduce(total)
        optimizer.step()
    return losses


if __name__ == "__main__":
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    expected = train()
    runs = (("one process", expected), ("contiguous", train(mesh)), ("zigzag", train(mesh, "zigzag")))
    for name, losses in runs:
        if dist.get_rank() == 0:
            print(f"{name:12}", *(f"{loss:.6f}" for loss in losses))
        # Sums are in another order: a few roundings of float32.
        torch.testing.assert_close(losses, expected, rtol=1e-5, atol=0)
    dist.barrier()  # or a thread of gloo's might still free a tensor when Python exits
    dist.destroy_process_group()
