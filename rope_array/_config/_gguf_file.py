"""Read keys and small tensors of a GGUF file (ggml's docs/gguf.md), without its tokenizer and weights.

Arrays that no reading needs, such as the tokens, are passed over: only their lengths are read. Limits on
every count make a hostile file cost less than a second.
"""

import math
import mmap
import os
from collections.abc import Callable, Collection, Mapping
from struct import Struct, error
from typing import Any

from rope_array._errors import ConfigError, short

# The codes of `struct` of numbers, by their type in the keys, and by the type of a tensor's elements.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_ELEMENTS = {0: "f", 1: "e", 28: "d"}
_STRING, _ARRAY = 8, 9
_MOST_ENTRIES = 2**21  # keys, tensors and strings, above the vocabularies of published models
_MOST_VALUES = 2**16  # of a value that is kept
_DEEPEST = 4  # arrays within arrays


def read_gguf_file(
    path: "os.PathLike[str]", name: str, is_needed: Callable[[str], bool], tensor_names: Collection[str]
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Return the needed keys with their values, and the named tensors with their elements.

    Raises
    ------
    ConfigError
        The file is no GGUF file, claims more values than it has, or is beyond a limit.
    """
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _File(data, name).read(is_needed, tensor_names)
        except (error, OverflowError):  # a place beyond the end
            raise ConfigError(
                f"{name} is no GGUF file that can be read: it claims more values than it has."
            ) from None


class _File:
    """A place in a file. Methods read from it, and move it on."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self.data, self.name, self.at, self.entries = data, name, 4, 0
        order = "<" if Struct("<I").unpack_from(data, 4)[0] & 0xFFFF else ">"
        codes = {*_NUMBERS.values(), *_ELEMENTS.values()}
        self.structs = {code: Struct(order + code) for code in codes}

    def read(
        self, is_needed: Callable[[str], bool], tensor_names: Collection[str]
    ) -> tuple[dict[str, Any], dict[str, list[float]]]:
        """Return the needed keys and tensors."""
        if bytes(self.data[:4]) != b"GGUF" or self.number("I") not in (2, 3):
            raise self._refusal("its first bytes are not of GGUF 2 or 3")
        tensor_count, key_count = self.number("Q"), self.number("Q")
        keys = self._keys(key_count, is_needed)
        tensors = self._tensors(tensor_count, tensor_names)
        if tensors:
            alignment = keys.get("general.alignment", 32)
            if not isinstance(alignment, int) or not 0 < alignment <= _MOST_VALUES:
                raise self._refusal(f"general.alignment is {short(alignment)}")
            self.at += -self.at % alignment
        return keys, {name: self._elements(*tensor) for name, tensor in tensors.items()}

    def number(self, code: str) -> Any:
        """Read a number."""
        (value,) = self.structs[code].unpack_from(self.data, self.at)
        self.at += self.structs[code].size
        return value

    def string(self) -> str:
        """Read a string."""
        length = self._checked(self.number("Q"), _MOST_VALUES)
        self.at += length
        if self.at > len(self.data):
            raise error
        return bytes(self.data[self.at - length : self.at]).decode("utf-8", "replace")

    def _keys(self, count: int, is_needed: Callable[[str], bool]) -> dict[str, Any]:
        keys: dict[str, Any] = {}
        for _ in range(self._counted(count)):
            key, value_type = self.string(), self.number("I")
            if not is_needed(key):
                self._skip(value_type, 1)
            elif key in keys:
                raise self._refusal(f"the key {short(key)} appears twice")
            else:
                keys[key] = self._value(value_type)
        return keys

    def _value(self, value_type: int, depth: int = 0) -> Any:
        if value_type in _NUMBERS:
            return self.number(_NUMBERS[value_type])
        if value_type == _STRING:
            return self.string()
        if value_type != _ARRAY or depth == _DEEPEST:
            raise self._refusal(f"it has a value of the unknown type {value_type}")
        element_type, length = self.number("I"), self._checked(self.number("Q"), _MOST_VALUES)
        return [self._value(element_type, depth + 1) for _ in range(self._counted(length))]

    def _skip(self, value_type: int, count: int, depth: int = 0) -> None:
        """Pass over values of one type."""
        if value_type in _NUMBERS:
            self.at += self.structs[_NUMBERS[value_type]].size * count
        elif value_type == _STRING:
            unpack, data, at = self.structs["Q"].unpack_from, self.data, self.at
            for _ in range(self._counted(count)):
                at += 8 + unpack(data, at)[0]
            self.at = at
        elif value_type == _ARRAY and depth < _DEEPEST:
            for _ in range(self._counted(count)):
                self._skip(self.number("I"), self.number("Q"), depth + 1)
        else:
            raise self._refusal(f"it has a value of the unknown type {value_type}")
        if self.at > len(self.data):
            raise error

    def _tensors(self, count: int, names: Collection[str]) -> Mapping[str, tuple[int, int, int]]:
        """Return the number of elements, the type and the offset of the named tensors."""
        tensors = {}
        for _ in range(self._counted(count)):
            name = self.string()
            sizes = [self.number("Q") for _ in range(self._checked(self.number("I"), _DEEPEST))]
            tensor = (math.prod(sizes), self.number("I"), self.number("Q"))
            if name in names:
                tensors[name] = tensor
        return tensors

    def _elements(self, count: int, element_type: int, offset: int) -> list[float]:
        """Return the elements of a tensor, by its offset from the current place."""
        if (code := _ELEMENTS.get(element_type)) is None:
            raise self._refusal(f"a tensor of frequencies has the type {element_type}, no plain float")
        struct = self.structs[code]
        first, count = self.at + offset, self._checked(count, _MOST_VALUES)
        return [struct.unpack_from(self.data, first + i * struct.size)[0] for i in range(count)]

    def _counted(self, count: int) -> int:
        """Return a number of entries to walk over; refuse more in all than any model has."""
        self.entries += count
        return self._checked(count, _MOST_ENTRIES - self.entries + count)

    def _checked(self, count: int, most: int) -> int:
        if count > len(self.data):
            raise error
        if count > most:
            raise self._refusal(f"it claims {count} values in one place, more than any model has")
        return count

    def _refusal(self, why: str) -> ConfigError:
        return ConfigError(f"{self.name} is no GGUF file that can be read: {why}.")
