"""The class Fingerprint: rotations by layer, printed, parsed and compared."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rope_array._errors import FingerprintError, describe, ranges

from ._difference import difference_of_rotations
from ._measure import MeasuredRotation, short_hash

_VERSION = "1"  # of the probe, the hashes and the report
_HEAD = re.compile(r"rope_array fingerprint (\S+): ([0-9a-f]{16}) \((\w+), length (\d+)\)")
_NAMES = {field.name: field.name.replace("_", " ") for field in fields(MeasuredRotation)}
_LINE = re.compile(rf"\b(rotation|{'|'.join(_NAMES.values())})(?: of layers ([\d, -]+))?: ?(.*)")

Rotations = tuple[tuple[tuple[int, ...], MeasuredRotation], ...]


@dataclass(frozen=True, repr=False)
class Fingerprint:
    """The rotations of a rope or of a model's layers, as a process computes them; see `fingerprint`.

    Attributes
    ----------
    rotations : tuple of (tuple of int, MeasuredRotation)
        Each different rotation with its layers; without layers, the rotation of a rope.
    length : int
        The rotations are measured at positions below it.
    dtype : str
        The dtype of the rotated arrays.
    hash : str
        16 hexadecimal digits, of all layouts and bits: equal fingerprints have equal ones.

    Examples
    --------
    >>> import rope_array as ra
    >>> ours = ra.fingerprint(ra.RoPE(128, base=500_000.0, pairing="half"), length=8192)
    >>> ra.fingerprint(ra.RoPE(128, pairing="half"), length=8192).difference(ours)[:38]
    'base: 10000 here, 500000 in the other.'
    """

    __module__ = "rope_array"

    rotations: Rotations
    length: int
    dtype: str

    @property
    def hash(self) -> str:
        texts = [(layers, r.layout, r.axes, r.tables, r.results) for layers, r in self.rotations]
        return short_hash(repr((_VERSION, self.dtype, self.length, texts)).encode())

    def __str__(self) -> str:
        lines = [f"rope_array fingerprint {_VERSION}: {self.hash} ({self.dtype}, length {self.length})"]
        for layers, rotation in self.rotations:
            lines.append(f"rotation of layers {ranges(layers)}:" if layers else "rotation:")
            lines += [f"  {_NAMES[name]}: {text}" for name, text in vars(rotation).items() if text]
        return "\n".join(lines)

    __repr__ = __str__

    @classmethod
    def parse(cls, text: str) -> "Fingerprint":
        """Read the first whole report in a text, such as a log, whose lines may begin with other text.

        Parameters
        ----------
        text : str
            One process prints ``str(fingerprint)``, and another reads it.

        Returns
        -------
        Fingerprint
            Equal to the printed one.

        Raises
        ------
        FingerprintError
            No report is in the text, or it is cut, its layouts or bits are changed, or it is of another
            version of the format.

        Examples
        --------
        >>> import rope_array as ra
        >>> ours = ra.fingerprint(ra.RoPE(8))
        >>> ra.Fingerprint.parse(f"INFO worker: {ours}") == ours
        True
        """
        if not isinstance(text, str):
            raise FingerprintError(f"text is {describe(text)}; give the printed lines, in a str.")
        head, lines, rotations = None, dict[str, str](), list[Any]()
        for line in re.sub(r"\x1b\[[\d;]*m", "", text).splitlines():  # without colours
            if found := _HEAD.search(line):
                head, rotations = found, []
            elif head and head[1] == _VERSION and (found := _LINE.search(line)):
                name, layers, value = found.groups()
                lines = {"layers": layers or ""} if name == "rotation" else lines | {name: value.strip()}
                values = [lines.get(name, "") for name in ("layers", *_NAMES.values())]
                if values[-1] and (rotation := _read_rotation(*values)):
                    rotations.append(rotation)
                    fingerprint = cls(tuple(rotations), int(head[4]), head[3])
                    if fingerprint.hash == head[2]:
                        return fingerprint
        reason = "no line begins with 'rope_array fingerprint'"
        if head:
            reason = f"its version is {head[1]}, here it is {_VERSION}"
            reason = "the lines do not have its hash" if head[1] == _VERSION else reason
        raise FingerprintError(f"the text holds no fingerprint: {reason}; give all of its lines.")

    def difference(self, other: "Fingerprint") -> str:
        """Return the first thing in which two fingerprints differ, with its meaning and the remedy; or "".

        Parameters
        ----------
        other : Fingerprint
            Of the same length and dtype. A rope's fingerprint compares with each layer of a model's.

        Returns
        -------
        str
            In this order: pairing, rotated part, axes, positions, direction, base, factor, rule,
            amplitude, 16-bit tables, float32 angles, bits of cos and sin, bits of results.

        Raises
        ------
        FingerprintError
            The lengths or dtypes differ.

        Examples
        --------
        >>> import rope_array as ra
        >>> half = ra.fingerprint(ra.RoPE(8, pairing="half"))
        >>> half.difference(ra.fingerprint(ra.RoPE(8))).partition(".")[0]
        'pairing: half (i, i + 4) here, interleaved in the other'
        """
        self._check_comparable(other)
        here, there = by_layer(self), by_layer(other)
        if None in here or None in there:
            here = dict.fromkeys(there, here[None]) if None in here else here
            there = dict.fromkeys(here, there[None]) if None in there else there
        texts: dict[str, list[int]] = {}
        for layer in sorted(here.keys() & there.keys(), key=lambda number: -1 if number is None else number):
            if here[layer] != there[layer]:
                text = difference_of_rotations(here[layer], there[layer], self.length, self.dtype)
                texts.setdefault(text, []).append(layer)
        for text, layers in texts.items():
            return text if None in here else f"layers {ranges(layers)}: {text}"
        rotating = ({n for n, r in each.items() if "no pairs" not in r.layout} for each in (here, there))
        alone = sorted(set.symmetric_difference(*rotating))
        return (
            f"layers {ranges(alone)} are in one alone. Compare models of one config, whole." if alone else ""
        )

    def check(self, other: "Fingerprint") -> None:
        """Raise the difference, if there is one: a guard of a training loop.

        Parameters
        ----------
        other : Fingerprint
            As in `difference`.

        Returns
        -------
        None
            The two rotate alike.

        Raises
        ------
        FingerprintError
            They differ, or do not compare.

        Examples
        --------
        >>> import rope_array as ra
        >>> ra.fingerprint(ra.RoPE(8)).check(ra.fingerprint(ra.RoPE(8, angles="exact")))
        """
        if difference := self.difference(other):
            raise FingerprintError(f"the rotations differ: {difference}")

    def _check_comparable(self, other: Any) -> None:
        if not isinstance(other, Fingerprint):
            raise FingerprintError(f"got {describe(other)}; give a Fingerprint, or Fingerprint.parse(text).")
        here, there = (self.dtype, self.length), (other.dtype, other.length)
        if here != there:
            raise FingerprintError(
                f"the fingerprints are of {here[0]} at length {here[1]} and of {there[0]} at length "
                f"{there[1]}, and do not compare; make both with one length= and one dtype."
            )


def by_layer(fingerprint: Fingerprint) -> dict[Any, MeasuredRotation]:
    """Return the rotation of each layer by number; None is the number of a rope."""
    return {n: rotation for layers, rotation in fingerprint.rotations for n in layers or (None,)}


def _read_rotation(layers: str, *texts: str) -> tuple[tuple[int, ...], MeasuredRotation] | None:
    """Return a rotation and its layers; None if the texts are none that a report has."""
    rotation = MeasuredRotation(*texts)
    try:
        spans = [[*map(int, span.split("-"))] for span in layers.split(", ") if span]
        if len(rotation.numbers[1]) and rotation.cos_and_sin.count(", ") < 2:
            return None
    except (ValueError, IndexError):
        return None
    return tuple(number for span in spans for number in range(span[0], span[-1] + 1)), rotation


def of_layers(measured: Mapping[Any, MeasuredRotation], length: int, dtype: str) -> Fingerprint:
    """Group the rotations of layers by number; None is the number of a rope."""
    groups: dict[MeasuredRotation, list[int]] = {}
    for layer, rotation in measured.items():
        groups.setdefault(rotation, []).extend([] if layer is None else [layer])
    ordered = sorted([(tuple(sorted(n)), r) for r, n in groups.items()], key=lambda group: group[0])
    return Fingerprint(tuple(ordered), length, dtype)
