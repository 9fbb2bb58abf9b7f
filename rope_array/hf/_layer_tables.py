"""Cos and sin on their way from a model's rotary module to its layers."""

import weakref
from collections.abc import Iterator
from typing import Any

from rope_array._errors import describe


class LayerTables:
    """A pair of tables that tools which cast the inputs of a layer do not enter.

    FSDP's mixed precision casts each floating tensor among the arguments of a layer, also inside of tuples,
    lists, dicts and dataclasses. This is none of them. Code that unpacks or indexes a pair works as before.
    Tools that know no such object, such as torch.export, take `tuple(tables)`.
    """

    __slots__ = ("cos", "sin")

    def __init__(self, cos: Any, sin: Any):
        self.cos, self.sin = cos, sin

    def __iter__(self) -> Iterator[Any]:
        return iter((self.cos, self.sin))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> Any:
        return (self.cos, self.sin)[index]

    def __repr__(self) -> str:
        return f"LayerTables(cos={describe(self.cos)}, sin={describe(self.sin)})"

    def to(self, *args: Any, **options: Any) -> "LayerTables":
        """Return the tables on another device or in another dtype; it takes the arguments of `Tensor.to`."""
        return LayerTables(*(table.to(*args, **options) for table in self))


class KeptSources:
    """Sources by the tables that they were made of: the layers of a forward pass get the same tables.

    A source is dropped with its cos. Threads may replace each other's, as an entry is one tuple.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, Any] = {}

    def find(self, facts: Any, cos: Any, sin: Any) -> Any:
        """Return the source that was kept for these tables, and for a call of the same facts."""
        entry = self._entries.get(id(cos))
        if entry is None or entry[0]() is not cos or entry[1]() is not sin or entry[2] != facts:
            return None
        return entry[3]

    def keep(self, source: Any, facts: Any, cos: Any, sin: Any) -> None:
        """Keep the source of a call."""
        entries, key = self._entries, id(cos)
        alive = weakref.ref(cos, lambda _: entries.pop(key, None)), weakref.ref(sin)
        entries[key] = *alive, facts, source
