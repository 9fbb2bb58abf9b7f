"""The report of `patch`: the modules that were replaced, their ropes, and the modules left alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Entry", "Left", "Report"]


@dataclass(frozen=True)
class Entry:
    """A module of the report.

    With ``angles="float32"`` a rotary module is listed with its rope, but keeps its methods.

    Attributes
    ----------
    name : str
        The name of the module in the model, as in ``model.named_modules()``: empty for the model itself.
    cls : str
        The name of its class.
    rope : RoPE, dict or None
        The rope of a rotary module, or a dict of ropes by layer type. None for an attention, which rotates by
        the tables of a rotary module.
    replaced : str
        The part of the module that is replaced.
    own_norm : str
        Why the norm of q and k stays the model's, with the name of its module; "" if it is replaced too, or
        the attention has none.
    """

    name: str
    cls: str
    rope: Any
    replaced: str
    own_norm: str = ""


@dataclass(frozen=True)
class Left:
    """A rotary module that `patch` left unchanged.

    Attributes
    ----------
    name, cls : str
        As in `Entry`.
    reason : str
        Why the module is not supported.
    """

    name: str
    cls: str
    reason: str


@dataclass(frozen=True)
class Report:
    """The result of `patch`: a sequence of entries, one for each module.

    Attributes
    ----------
    entries : tuple of Entry
        The modules: rotary modules first, then attentions.
    left : tuple of Left
        Rotary modules that work as before, with the reasons.
    angles : {"exact", "float32"}
        The mode.

    Examples
    --------
    >>> import rope_array as ra
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=2)
    >>> report = ra.hf.patch(LlamaForCausalLM(config))
    >>> report[0].name, report[0].cls, report[0].rope.head_dim
    ('model.rotary_emb', 'LlamaRotaryEmbedding', 16)
    >>> [entry.name for entry in report if entry.rope is None]
    ['model.layers.0.self_attn', 'model.layers.1.self_attn']
    >>> report.left
    ()
    """

    entries: tuple[Entry, ...]
    left: tuple[Left, ...]
    angles: str

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Entry:
        return self.entries[index]

    def __repr__(self) -> str:
        modules = "1 module" if len(self) == 1 else f"{len(self)} modules"
        return "\n".join([f"{modules} patched, angles={self.angles!r}", *self._lines()])

    def _lines(self) -> Iterator[str]:
        """Yield a line for each group of modules that differ in their numbers only."""
        groups: dict[tuple[Any, ...], list[str]] = {}
        for entry in self:
            key = (pattern_of(entry.name), entry.cls, repr(entry.rope), entry.replaced, entry.own_norm)
            groups.setdefault(key, []).append(entry.name)
        width = max((len(_label(names)) for names in groups.values()), default=0)
        for (_, cls, _, replaced, own_norm), names in groups.items():
            yield f"  {_label(names):{width}}  {cls}: {replaced}"
            if own_norm:
                yield f"  {'':{width}}    own norm: {own_norm}"
            ropes = next(entry.rope for entry in self if entry.name == names[0])
            for layer_type, rope in ropes.items() if isinstance(ropes, dict) else [(None, ropes)]:
                if rope is not None:
                    yield f"  {'':{width}}    {f'{layer_type}: ' if layer_type else ''}{rope!r}"
        for left in self.left:
            yield f"  left alone: {left.name} ({left.cls}): {left.reason}"


def pattern_of(name: str) -> str:
    """Return a module's name with a star in place of each number."""
    return ".".join("*" if label.isdigit() else label for label in name.split("."))


def _label(names: list[str]) -> str:
    name = names[0] or "(the model itself)"
    return name if len(names) == 1 else f"{pattern_of(name)} ({len(names)})"
