"""Cos and sin on their way from a model's rotary module to its layers."""

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
