"""Training a small GPT with this library's rotation and with others, on the CPU, one thread.

4 layers of width 256 with 4 heads, 2 sequences of 512 bytes of this repository's documentation in a batch,
AdamW; eager and compiled, float32 and bfloat16 autocast. Each model rotates q and k as its users do: tables
once per forward pass, if the implementation has them. All models start from the same weights and see the same
batches; weights of q and k are permuted for interleaved pairs (`rope_array.convert`), so that only roundings
make their loss curves different.

Tokens per second: the models of a setting take turns in blocks of steps; the median of the blocks counts, and
ratios are medians of the ratios within rounds. A step is forward, backward and optimizer.

Memory: the peak of the bytes that PyTorch's CPU allocator has handed out within one step, above the start of
the step (weights and optimizer state), from torch.profiler's record of allocations. It has activations,
gradients and temporary tensors; it lacks memory that libraries allocate by themselves.
"""

import argparse
import os
import sys
import warnings

os.environ |= {
    "ROPE_ARRAY_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "KINETO_LOG_LEVEL": "99",
}

import torch
from _blocks import finish, parse
from _record import record
from _training import (
    BASE,
    HEAD_DIM,
    HEADS,
    LAYERS,
    LENGTH,
    NONE,
    OURS,
    ROUNDS,
    WIDTH,
    Run,
    show,
    text_batches,
    train,
)
from torch import nn
from torch.nn import functional

import rope_array as ra

PACKAGES = ("numpy", "torch", "transformers", "rotary-embedding-torch", "array-api-compat", "rope-array")
THEIRS = "transformers"


# ---- rotations: `tables` once per forward pass, then `forward` in each layer; q and k are (B, H, S, D) ----


class RopeArray(nn.Module):
    """`rope.rotation` once, `rotation.apply((q, k))` in each layer."""

    pairing = "half"

    def __init__(self):
        super().__init__()
        self.rope = ra.RoPE(head_dim=HEAD_DIM, base=BASE, pairing=self.pairing)

    def tables(self, x):
        return self.rope.rotation(torch.arange(x.shape[1], device=x.device), like=x)

    def forward(self, q, k, rotation):
        return rotation.apply((q, k))


class Transformers(nn.Module):
    """The module and the function of transformers' Llama."""

    pairing = "half"

    def __init__(self):
        from transformers.models.llama import modeling_llama as llama

        super().__init__()
        config = llama.LlamaConfig(hidden_size=WIDTH, num_attention_heads=HEADS,
                                   rope_parameters={"rope_type": "default", "rope_theta": BASE})  # fmt: skip
        self.embedding, self.apply_rotary_pos_emb = (
            llama.LlamaRotaryEmbedding(config),
            llama.apply_rotary_pos_emb,
        )

    def tables(self, x):
        return self.embedding(x, torch.arange(x.shape[1], device=x.device)[None])

    def forward(self, q, k, tables):
        return self.apply_rotary_pos_emb(q, k, *tables)


class HandWritten(nn.Module):
    """The complex form of Meta's Llama: a table made with the model."""

    pairing = "interleaved"

    def __init__(self):
        super().__init__()
        freqs = 1.0 / (BASE ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM))
        angles = torch.outer(torch.arange(2 * LENGTH), freqs)
        self.register_buffer("table", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def tables(self, x):
        return self.table[: x.shape[1]]

    def forward(self, q, k, table):
        return self._rotate(q, table), self._rotate(k, table)

    def _rotate(self, x, table):
        numbers = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(numbers * table).flatten(3).type_as(x)


class RotaryEmbeddingTorch(nn.Module):
    """rotary-embedding-torch: one module for all layers, called for q and for k."""

    pairing = "interleaved"

    def __init__(self):
        from rotary_embedding_torch import RotaryEmbedding

        super().__init__()
        self.embedding = RotaryEmbedding(dim=HEAD_DIM, theta=BASE)

    def tables(self, x):
        return None

    def forward(self, q, k, tables):
        return self.embedding.rotate_queries_or_keys(q), self.embedding.rotate_queries_or_keys(k)


class NoRotation(nn.Module):
    """Nothing: the rest of the step."""

    pairing = "half"

    def tables(self, x):
        return None

    def forward(self, q, k, tables):
        return q, k


ROTATIONS = {
    OURS: RopeArray,
    THEIRS: Transformers,
    "complex numbers, by hand": HandWritten,
    "rotary-embedding-torch": RotaryEmbeddingTorch,
    NONE: NoRotation,
}


# ---- the model ----


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = (
            nn.Linear(WIDTH, 4 * WIDTH, bias=False),
            nn.Linear(4 * WIDTH, WIDTH, bias=False),
        )

    def forward(self, x, rotation, tables):
        x = x + self.attend(self.norms[0](x), rotation, tables)
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))

    def attend(self, x, rotation, tables):
        q, k, v = (
            proj(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for proj in (self.q, self.k, self.v)
        )
        q, k = rotation(q, k, tables)
        return self.out(
            functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )


class GPT(nn.Module):
    """Bytes to the loss of the next bytes."""

    def __init__(self, rotation):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(256, WIDTH)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
        self.rotation = rotation
        if rotation.pairing == "interleaved":
            self.interleave()

    @torch.no_grad()
    def interleave(self):
        """Permute the weights of q and k: then the model is the function that it is with half pairs."""
        rope = ra.RoPE(head_dim=HEAD_DIM, pairing="half")
        for layer in self.layers:
            for projection in (layer.q, layer.k):
                weight = ra.convert.weights(projection.weight, rope, "interleaved", num_heads=HEADS)
                projection.weight.copy_(weight)

    def forward(self, tokens):
        x = self.embedding(tokens[:, :-1])
        tables = self.rotation.tables(x)
        for layer in self.layers:
            x = layer(x, self.rotation, tables)
        return functional.cross_entropy(
            self.head(self.norm(x)).flatten(0, 1).float(), tokens[:, 1:].flatten()
        )


# ---- training ----


class TorchRun(Run):
    def __init__(self, name, compiled, autocast, batches):
        super().__init__(batches)
        self.model, self.autocast = GPT(ROTATIONS[name]()), autocast
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95))
        self.loss = torch.compile(self.model, dynamic=False) if compiled else self.model

    def step(self):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = self.loss(self.batches[len(self.losses)])
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def peak(self):
        self.optimizer.zero_grad()
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
            self.step()
        events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
        live = peak = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            live += event.nbytes()
            peak = max(peak, live)
        return peak


def setting(compiled, autocast, rounds):
    torch._dynamo.reset()
    batches = torch.from_numpy(text_batches(rounds)).long()
    runs = {name: TorchRun(name, compiled, autocast, batches) for name in ROTATIONS}
    return train(runs, rounds, (THEIRS,))


# ---- results ----


def measure(rounds):
    settings = {}
    for compiled in (False, True):
        for autocast in (False, True):
            name = f"{'compiled' if compiled else 'eager'}, {'bfloat16 autocast' if autocast else 'float32'}"
            print(name, file=sys.stderr)
            settings[name] = setting(compiled, autocast, rounds)
    return settings


def main():
    options = parse(argparse.ArgumentParser(description=__doc__.partition("\n")[0]), "training")
    torch.set_num_threads(1)
    # Inductor runs complex numbers by eager operations, and says so.
    warnings.filterwarnings(
        "ignore", "Torchinductor does not support code generation for complex", UserWarning
    )
    run = record("training", measure(1 if options.quick else ROUNDS), __doc__, PACKAGES)
    show(run, (THEIRS,))
    finish(run, options)


if __name__ == "__main__":
    main()
