"""The encoder and decoder of the study: RoFormer, where the encoding is `rope`.

With the weights of Hugging Face's RoFormer (`weights.py`) it computes the same. Layers are BERT's: the layer norm
comes after each residual sum (Vaswani et al., arXiv 1706.03762; Devlin et al., arXiv 1810.04805).
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import gelu

from .encodings import ENCODINGS


@dataclass(frozen=True)
class Config:
    """The sizes of a model. `encoding` is a name in ENCODINGS."""

    vocab_size: int
    encoding: str = "rope"
    hidden_size: int = 64
    embedding_size: int | None = None  # None: hidden_size
    num_layers: int = 2
    num_heads: int = 4
    intermediate_size: int | None = None  # None: 4 hidden_size
    max_length: int = 512  # the longest sequence, for encodings that have to know it
    num_types: int = 2  # kinds of token: of the first and of the second sentence
    causal: bool = False
    eps: float = 1e-12  # of layer norms

    def make_encodings(self, count: int) -> list[nn.Module]:
        """Return an encoding for each layer: one module for all where the encoding is shared."""
        kind = ENCODINGS[self.encoding]
        sizes = self.hidden_size // self.num_heads, self.num_heads, self.max_length
        first = kind(*sizes)
        return [first, *(first if first.shared else kind(*sizes) for _ in range(count - 1))]


class Attention(nn.Module):
    """Attention of several heads, from x to itself or to a context of another sequence."""

    def __init__(self, config: Config, encoding: nn.Module, causal: bool = False) -> None:
        super().__init__()
        width = config.hidden_size
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.num_heads, self.encoding, self.causal = config.num_heads, encoding, causal

    def forward(self, x, keep=None, context=None, cache=None):
        q, k, v = self._heads(self.query(x)), *self._keys_and_values(x if context is None else context)
        if cache is not None:
            k, v = cache.append(self, k, v)
        y = self.encoding.attend(q, k, v, keep, self.causal)
        return self.output(y.transpose(1, 2).flatten(2))

    def _keys_and_values(self, context):
        return self._heads(self.key(context)), self._heads(self.value(context))

    def _heads(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class Cache:
    """The keys and values of the tokens that a decoder has seen, before any rotation."""

    def __init__(self) -> None:
        self.tokens, self.kept = 0, {}

    def append(self, layer, k, v):
        """Return all keys and values of a layer, with those of new tokens at the end."""
        if layer in self.kept:
            k, v = (torch.cat(pair, -2) for pair in zip(self.kept[layer], (k, v), strict=True))
        self.kept[layer] = k, v
        return k, v


class Layer(nn.Module):
    """Attention to x, then to a context if the layer has `cross`, then two linear maps with GELU between."""

    def __init__(self, config: Config, encoding: nn.Module, causal: bool = False, cross: bool = False):
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size or 4 * config.hidden_size
        norm = lambda: nn.LayerNorm(width, config.eps)  # noqa: E731
        self.attention, self.attention_norm = Attention(config, encoding, causal), norm()
        if cross:
            no_position = ENCODINGS["none"](width // config.num_heads, config.num_heads, config.max_length)
            self.cross, self.cross_norm = Attention(config, no_position), norm()
        self.inner, self.outer, self.norm = nn.Linear(width, inner), nn.Linear(inner, width), norm()

    def forward(self, x, keep=None, context=None, context_keep=None, cache=None):
        x = self.attention_norm(x + self.attention(x, keep, cache=cache))
        if context is not None:
            x = self.cross_norm(x + self.cross(x, context_keep, context))
        return self.norm(x + self.outer(gelu(self.inner(x))))


class Transformer(nn.Module):
    """Embeddings and layers: an encoder, or with `causal` a decoder, or with `cross` the decoder of a pair."""

    def __init__(self, config: Config, cross: bool = False) -> None:
        super().__init__()
        self.config = config
        narrow, width = config.embedding_size or config.hidden_size, config.hidden_size
        self.words, self.types = nn.Embedding(config.vocab_size, narrow), nn.Embedding(config.num_types, narrow)
        self.embedding_norm = nn.LayerNorm(narrow, config.eps)
        self.project = nn.Identity() if narrow == width else nn.Linear(narrow, width)
        encodings = config.make_encodings(config.num_layers)
        self.layers = nn.ModuleList(Layer(config, each, config.causal, cross) for each in encodings)
        self.apply(_initialise)

    def forward(self, tokens, keep=None, types=None, context=None, context_keep=None, cache=None):
        """Return hidden states (B, S, hidden_size) of tokens (B, S); `keep` (B, T) is False for padding."""
        x = self.words(tokens) + self.types(torch.zeros_like(tokens) if types is None else types)
        x = self.layers[0].attention.encoding.embed(x)
        x = self.project(self.embedding_norm(x))
        for layer in self.layers:
            x = layer(x, keep, context, context_keep, cache)
        return x


class WordHead(nn.Module):
    """The logits of every word at every position: BERT's head, tied to the word embeddings."""

    def __init__(self, config: Config, words: nn.Embedding) -> None:
        super().__init__()
        narrow = words.embedding_dim
        self.dense, self.norm = nn.Linear(config.hidden_size, narrow), nn.LayerNorm(narrow, config.eps)
        self.words, self.bias = words, nn.Parameter(torch.zeros(config.vocab_size))
        self.dense.apply(_initialise)

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
    """A transformer and the logits of classes, from the first token's hidden state."""

    def __init__(self, config: Config, num_classes: int) -> None:
        super().__init__()
        self.body = Transformer(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, num_classes)
        self.dense.apply(_initialise), self.output.apply(_initialise)

    def forward(self, tokens, **options):
        return self.output(gelu(self.dense(self.body(tokens, **options)[:, 0])))


def _initialise(module: nn.Module) -> None:
    """Draw weights of linear maps and embeddings as BERT does: normal, deviation 0.02."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
