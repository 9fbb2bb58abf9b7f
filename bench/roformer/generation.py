"""Text from a model, token by token: from left to right, and translations by beam search."""

import torch

from .model import Cache, LanguageModel, Seq2Seq


@torch.no_grad()
def generate(
    model: LanguageModel,
    tokens: torch.Tensor,
    steps: int,
    keep: torch.Tensor | None = None,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Return tokens (B, S) and `steps` more (B, S + steps): each the likeliest, or drawn with a generator.

    `keep` (B, S) is False for padding, which comes before the text. Positions count padding, as they do in
    transformers: scores of relative encodings do not change; for absolute encodings the text begins later.
    """
    if not model.body.config.causal:
        raise ValueError("generation needs a causal model: Config(causal=True)")
    cache, new = Cache(), tokens
    for _ in range(steps):
        probabilities = model(new, keep=keep, cache=cache)[:, -1].softmax(-1)
        new = _choose(probabilities, generator)
        tokens = torch.cat((tokens, new), 1)
        if keep is not None:
            keep = torch.cat((keep, torch.ones_like(new, dtype=torch.bool)), 1)
    return tokens


def _choose(probabilities, generator):
    if generator is None:
        return probabilities.argmax(-1, keepdim=True)
    return torch.multinomial(probabilities, 1, generator=generator)


@torch.no_grad()
def translate(
    model: Seq2Seq,
    source: torch.Tensor,
    keep: torch.Tensor | None,
    begin: int,
    end: int,
    max_steps: int,
    beams: int = 1,
    penalty: float = 0.6,
) -> torch.Tensor:
    """Return targets (B, N) for source (B, S), without `begin`; a target shorter than N is filled with `end`.

    One beam is greedy search. With more, each step keeps the best targets by their log-probability divided by
    ((5 + length) / 6)^penalty (Wu et al., arXiv 1609.08144, eq. 14), and returns the best of the last step.
    RoFormer uses 4 beams and the penalty 0.6 (section 4.1).
    """
    context = model.encoder(source, keep).repeat_interleave(beams, 0)
    keep = None if keep is None else keep.repeat_interleave(beams, 0)
    search, cache = _Beams(source, beams, begin, end, penalty), Cache()
    while search.targets.shape[1] <= max_steps and not search.ended.all():
        logits = model.decode(search.targets[:, -1:], context, keep, cache)[:, -1]
        cache.select(search.extend(logits.log_softmax(-1)))
    return search.targets[::beams, 1:]


class _Beams:
    """The best targets (B·K, N) of B sources, K of each, best first, with `begin`."""

    def __init__(self, source, beams: int, begin: int, end: int, penalty: float) -> None:
        self.beams, self.end, self.penalty = beams, end, penalty
        self.firsts = torch.arange(0, len(source) * beams, beams, device=source.device)
        self.targets = torch.full((len(source) * beams, 1), begin, device=source.device)
        self.ended = torch.zeros_like(self.targets[:, 0], dtype=torch.bool)
        self.lengths = torch.zeros_like(self.targets[:, 0])  # with `end`
        # All K are the same before the first word: continue the first of them only.
        self.scores = torch.full(self.ended.shape, -torch.inf, device=source.device)
        self.scores[self.firsts] = 0

    def extend(self, words: torch.Tensor) -> torch.Tensor:
        """Add a word to targets, by log-probabilities (B·K, V); return the rows (B·K,) that go on."""
        words = words.masked_fill(self.ended[:, None], -torch.inf)
        words[:, self.end].masked_fill_(self.ended, 0.0)  # after `end` comes only `end`
        scores, lengths = self.scores[:, None] + words, self.lengths + ~self.ended
        ranks = scores / ((5 + lengths[:, None]) / 6) ** self.penalty
        best = ranks.view(len(self.firsts), -1).topk(self.beams).indices
        rows = (self.firsts[:, None] + best // words.shape[-1]).flatten()
        new = (best % words.shape[-1]).flatten()
        self.scores, self.lengths = scores[rows, new], lengths[rows]
        self.targets = torch.cat((self.targets[rows], new[:, None]), 1)
        self.ended = self.ended[rows] | (new == self.end)
        return rows
