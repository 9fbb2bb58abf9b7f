"""The encoder and decoder of the study: RoFormer, where the encoding is `rope`.

With the weights of Hugging Face's RoFormer (`weights.py`) it computes the same. Layers are BERT's: the layer
norm comes after each residual sum (Vaswani et al., arXiv 1706.03762; Devlin et al., arXiv 1810.04805).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.functional import gelu

from .encodings import ENCODINGS

Pair = tuple[torch.Tensor, torch.Tensor]  # keys and values


@dataclass(frozen=True)
class Config:
    """The sizes of a model. `encoding` is a name in ENCODINGS."""

    vocab_size: int
    encoding: str = "rope"
    hidden_size: int = 64
    embedding_size: int | None = None  # None: hidden_size, which encodings that add to embeddings need
    num_layers: int = 2
    num_heads: int = 4
    intermediate_size: int | None = None  # None: 4 hidden_size
    max_length: int = 512  # the longest sequence, for encodings that have to know it
    num_types: int = 2  # kinds of token: of the first and of the second sentence
    causal: bool = False
    eps: float = 1e-12  # of layer norms
    deviation: float = 0.02  # of the first weights, as in BERT

    def make_encodings(self, count: int) -> list[nn.Module]:
        """Return an encoding for each layer: one module for all where the encoding is shared."""
        cls = ENCODINGS[self.encoding]
        sizes = self.hidden_size // self.num_heads, self.num_heads, self.max_length, self.causal
        first = cls(*sizes)
        return [first, *(first if first.shared else cls(*sizes) for _ in range(count - 1))]

    def initialise(self, module: nn.Module) -> None:
        """Draw the weights of linear maps and embeddings from a normal distribution, as BERT does."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.deviation)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


class Attention(nn.Module):
    """Attention of several heads, from x to itself or to a context of another sequence."""

    def __init__(self, config: Config, encoding: nn.Module) -> None:
        super().__init__()
        width = config.hidden_size
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.num_heads, self.encoding = config.num_heads, encoding

    def forward(self, x, keep=None, context=None, cache=None):
        """Return (B, S, hidden_size) from x (B, S, hidden_size); `keep` (B, T) is False for padding.

        The T keys belong to the context if there is one, else to the cached tokens and x.
        """
        q = self._heads(self.query(x))
        k, v = self._keys_and_values(x, context, cache)
        y = self.encoding.attend(q, k, v, keep)
        return self.output(y.transpose(1, 2).flatten(2))

    def _keys_and_values(self, x, context, cache):
        if cache is None:
            return self._project(x if context is None else context)
        if context is None:
            return cache.extend(self, *self._project(x))
        return cache.once(self, lambda: self._project(context))

    def _project(self, x):
        return self._heads(self.key(x)), self._heads(self.value(x))

    def _heads(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class Cache:
    """Keys and values (B, H, T, D) of the `length` earlier tokens of a decoder, before any rotation."""

    def __init__(self) -> None:
        self.length = 0
        self._grown: dict[Attention, Pair] = {}  # self-attention: more with each token
        self._fixed: dict[Attention, Pair] = {}  # cross attention: the context does not change

    def extend(self, layer: Attention, k: torch.Tensor, v: torch.Tensor) -> Pair:
        """Return all keys and values of a layer, the new ones at the end."""
        if layer in self._grown:
            k, v = (torch.cat(pair, -2) for pair in zip(self._grown[layer], (k, v), strict=True))
        self._grown[layer] = k, v
        return k, v

    def once(self, layer: Attention, compute: Callable[[], Pair]) -> Pair:
        """Return the keys and values of a layer's context, computed at the first call."""
        if layer not in self._fixed:
            self._fixed[layer] = compute()
        return self._fixed[layer]

    def select(self, rows: torch.Tensor) -> None:
        """Replace the batch by its sequences `rows`: each by a sequence with the same context."""
        self._grown = {layer: (k[rows], v[rows]) for layer, (k, v) in self._grown.items()}


class Layer(nn.Module):
    """Attention to x, then to a context if the layer has `cross`, then two linear maps with GELU between."""

    def __init__(self, config: Config, encoding: nn.Module, cross: bool = False):
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size or 4 * config.hidden_size
        norm = lambda: nn.LayerNorm(width, config.eps)  # noqa: E731
        self.attention, self.attention_norm = Attention(config, encoding), norm()
        if cross:
            no_position = ENCODINGS["none"](width // config.num_heads, config.num_heads, config.max_length)
            self.cross, self.cross_norm = Attention(config, no_position), norm()
        self.inner, self.outer, self.norm = nn.Linear(width, inner), nn.Linear(inner, width), norm()

    def forward(self, x, keep=None, context=None, context_keep=None, cache=None):
        x = self.attention_norm(x + self.attention(x, keep, cache=cache))
        if context is not None:
            x = self.cross_norm(x + self.cross(x, context_keep, context, cache))
        return self.norm(x + self.outer(gelu(self.inner(x))))


class Transformer(nn.Module):
    """Embeddings and layers: an encoder; with `config.causal`, a decoder; with `cross`, also of a context."""

    def __init__(self, config: Config, cross: bool = False) -> None:
        super().__init__()
        self.config = config
        narrow, width = config.embedding_size or config.hidden_size, config.hidden_size
        self.words = nn.Embedding(config.vocab_size, narrow)
        self.types = nn.Embedding(config.num_types, narrow)
        self.embedding_norm = nn.LayerNorm(narrow, config.eps)
        self.project = nn.Identity() if narrow == width else nn.Linear(narrow, width)
        encodings = config.make_encodings(config.num_layers)
        self.layers = nn.ModuleList(Layer(config, encoding, cross) for encoding in encodings)
        self.apply(config.initialise)

    def forward(self, tokens, keep=None, types=None, context=None, context_keep=None, cache=None):
        """Return hidden states (B, S, hidden_size) of tokens (B, S); `keep` (B, T) is False for padding.

        With a cache, the tokens follow the cached ones: T counts both, and the cache then has all T.
        """
        x = self.words(tokens) + self.types(torch.zeros_like(tokens) if types is None else types)
        x = self.layers[0].attention.encoding.embed(x, cache.length if cache else 0)
        x = self.project(self.embedding_norm(x))
        for layer in self.layers:
            x = layer(x, keep, context, context_keep, cache)
        if cache:
            cache.length += tokens.shape[1]
        return x


class WordHead(nn.Module):
    """The logits of every word at every position: BERT's head, tied to the word embeddings."""

    def __init__(self, config: Config, words: nn.Embedding) -> None:
        super().__init__()
        narrow = words.embedding_dim
        self.dense, self.norm = nn.Linear(config.hidden_size, narrow), nn.LayerNorm(narrow, config.eps)
        self.words, self.bias = words, nn.Parameter(torch.zeros(config.vocab_size))
        self.dense.apply(config.initialise)

    def forward(self, x):
        return nn.functional.linear(self.norm(gelu(self.dense(x))), self.words.weight, self.bias)


class LanguageModel(nn.Module):
    """A transformer and its head for words: masked or, with `config.causal`, from left to right."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.body = Transformer(config)
        self.head = WordHead(config, self.body.words)

    def forward(self, tokens, **options):
        return self.head(self.body(tokens, **options))


class Classifier(nn.Module):
    """A transformer and the logits of classes, from the first token's hidden state; with `mean`, from all."""

    def __init__(self, config: Config, num_classes: int, mean: bool = False) -> None:
        super().__init__()
        self.body, self.mean = Transformer(config), mean
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, num_classes)
        self.dense.apply(config.initialise), self.output.apply(config.initialise)

    def forward(self, tokens, keep=None, **options):
        x = self.body(tokens, keep, **options)
        return self.output(gelu(self.dense(mean_of(x, keep) if self.mean else x[:, 0])))


def mean_of(x: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
    """Return the mean (B, W) of hidden states (B, S, W), without padding."""
    if keep is None:
        return x.mean(1)
    weights = keep[..., None].to(x.dtype)
    return (x * weights).sum(1) / weights.sum(1)


class Seq2Seq(nn.Module):
    """An encoder of the source and a decoder of the target, with one word table for both and for the output.

    The shape is Vaswani et al.'s (section 3), of BERT's layers. Cross attention has no position: RoFormer
    encodes positions in self-attention only (section 4.1).
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoder = Transformer(replace(config, causal=False))
        self.decoder = Transformer(replace(config, causal=True), cross=True)
        self.decoder.words = self.encoder.words
        self.head = WordHead(config, self.encoder.words)

    def forward(self, source, source_keep, target):
        """Return the logits (B, T, vocab_size) of the word after each of target (B, T), for source (B, S)."""
        return self.decode(target, self.encoder(source, source_keep), source_keep)

    def decode(self, target, context, context_keep=None, cache=None):
        """Return logits as `forward` does, for the context (B, S, hidden_size): the encoded source."""
        return self.head(self.decoder(target, context=context, context_keep=context_keep, cache=cache))
