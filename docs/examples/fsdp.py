"""Fully sharded data parallelism (FSDP2): a rotary embedding has nothing to shard, cast or initialise.

    torchrun --nproc-per-node=2 docs/examples/fsdp.py

Builds a decoder on the device "meta", shards its layers and loads the weights of a single process, which gets
the same losses.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import rope_array as ra
from rope_array.torch import RotaryEmbedding

LENGTH, WIDTH, HEADS, VOCABULARY, BATCH = 32, 64, 4, 128, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary = RotaryEmbedding(ra.RoPE(head_dim=WIDTH // HEADS, pairing="half"))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, pos):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.rotary(q, k, pos)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.layers = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList([Attention(), Attention()])
        self.logits = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, targets, pos):
        x = self.tokens(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, pos, use_reentrant=False)  # rotates again in the backward
        return nn.functional.cross_entropy(self.logits(x).flatten(0, 1), targets.flatten())


def shard(weights):
    """Return a decoder whose weights are cut over the ranks; it has never existed whole."""
    with torch.device("meta"):
        model = Decoder()
    for part in (*model.layers, model):
        fully_shard(part)
    model.to_empty(device="cpu")
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True))
    return model


def train(model, data, steps=8):
    """Return the loss of each step. FSDP2 averages gradients, as the mean over a whole batch does."""
    optimizer, pos = torch.optim.SGD(model.parameters(), lr=1.0), torch.arange(LENGTH)
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
    torch.manual_seed(0)  # the same weights and data on every rank
    whole, data = Decoder(), torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    model = shard(whole.state_dict())
    assert not [name for name in model.state_dict() if "rotary" in name]
    size, rank = dist.get_world_size(), dist.get_rank()
    losses = train(model, data.chunk(size)[rank]) / size
    dist.all_reduce(losses)
    expected = train(whole, data)
    if rank == 0:
        print("one process", *(f"{loss:.6f}" for loss in expected))
        print("FSDP2      ", *(f"{loss:.6f}" for loss in losses))
    # Sums are in another order than in one process: a few roundings of float32.
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=0)
    dist.barrier()  # or a thread of gloo's might still free a tensor when Python exits
    dist.destroy_process_group()
