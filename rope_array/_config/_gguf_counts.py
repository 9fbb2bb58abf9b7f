"""Check the counts of a GGUF file against its size: the package gguf reads as many values as a file says."""

import mmap
import os
from struct import unpack_from

from rope_array._errors import ConfigError

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a number, by type
_STRING, _ARRAY = 8, 9
# The values of all arrays, above the vocabularies of published models; gguf takes some 20 µs for each.
_MOST_VALUES = 2**21


def check_counts(path: "os.PathLike[str]", name: str) -> None:
    """Raise ConfigError if the metadata of a file is longer than the file, or than any model's."""
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if len(data) >= 24:
            _Walk(data, name).metadata()


class _Walk:
    """A position in a file, behind the values that have been passed over."""

    def __init__(self, data: mmap.mmap, name: str):
        self.data, self.name, self.at, self.values = data, name, 4, 0
        self.order = "<" if unpack_from("<I", data, 4)[0] & 0xFFFF else ">"

    def metadata(self) -> None:
        """Pass over all keys and values."""
        self.skip(4 + 8)  # the version, the number of tensors
        for _ in range(self.number("Q")):
            self.skip(self.number("Q"))  # the key
            self.value(self.number("I"))

    def value(self, type_: int, count: int = 1) -> None:
        """Pass over values of one type."""
        if type_ in _SIZES:
            self.skip(_SIZES[type_] * count)
            return
        for _ in range(count):
            if type_ == _STRING:
                self.skip(self.number("Q"))
            elif type_ == _ARRAY:
                element_type, length = self.number("I"), self.number("Q")
                self.values += length
                if self.values > _MOST_VALUES:
                    raise ConfigError(
                        f"{self.name} claims more than {_MOST_VALUES} values; no model has as many."
                    )
                self.value(element_type, length)
            else:
                raise ConfigError(f"{self.name} has a value of the unknown type {type_}.")

    def number(self, code: str) -> int:
        """Read a number of 4 or 8 bytes."""
        at = self.at
        self.skip(8 if code == "Q" else 4)
        return int(unpack_from(self.order + code, self.data, at)[0])

    def skip(self, size: int) -> None:
        """Move on; raise ConfigError beyond the end."""
        self.at += size
        if self.at > len(self.data):
            raise ConfigError(
                f"{self.name} is no GGUF file that can be read: it claims more values than it has."
            )
