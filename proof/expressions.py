"""Floating-point expressions, recorded by running a function on symbols instead of arrays.

A `Real` records each sum, difference and product as a node, with its dtype. An `Integer` keeps track of its
value: a sum of symbols with integer factors, and its range.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Significant bits, and the exponent of the smallest positive number, subnormal numbers included.
FORMATS = {"float16": (11, -24), "bfloat16": (8, -133), "float32": (24, -149), "float64": (53, -1074)}


class ProofError(Exception):
    """A step of a proof does not hold, or the code has a form that the proof does not cover."""


class Real:
    """A node: an operation and its operands.

    The operations are "leaf" (operand: a name), "constant" (a float), "cast" (of a Real or an Integer),
    "round" (to the nearest integer), "add", "sub" and "mul".
    """

    def __init__(self, op: str, dtype: str, *operands: Any):
        self.op, self.dtype, self.operands = op, dtype, operands

    def _binary(self, op: str, other: Any, swapped: bool = False) -> Real:
        if isinstance(other, (int, float)):
            other = Real("constant", self.dtype, float(other))
        if not isinstance(other, Real) or other.dtype != self.dtype:
            raise ProofError(f"{op} of {self.dtype} and {other!r}: the proof needs equal dtypes")
        return Real(op, self.dtype, *((other, self) if swapped else (self, other)))

    def __add__(self, other: Any) -> Real:
        return self._binary("add", other)

    def __radd__(self, other: Any) -> Real:
        return self._binary("add", other, swapped=True)

    def __sub__(self, other: Any) -> Real:
        return self._binary("sub", other)

    def __rsub__(self, other: Any) -> Real:
        return self._binary("sub", other, swapped=True)

    def __mul__(self, other: Any) -> Real:
        return self._binary("mul", other)

    def __rmul__(self, other: Any) -> Real:
        return self._binary("mul", other, swapped=True)

    def __getitem__(self, index: Any) -> Real:
        return self  # a new axis: each element is computed alone

    def key(self) -> tuple[Any, ...]:
        """Return the expression as nested tuples; equal for expressions that differ in commuted operands."""
        if self.op in ("leaf", "constant"):
            return (self.op, self.dtype, *self.operands)
        keys = [operand.key() for operand in self.operands]
        return (self.op, self.dtype, *(sorted(keys, key=repr) if self.op in ("add", "mul") else keys))

    def nodes(self) -> Iterator[Real]:
        """Yield every node once, operands before the node that uses them."""
        seen: set[int] = set()

        def walk(node: Real) -> Iterator[Real]:
            if id(node) not in seen:
                seen.add(id(node))
                for operand in node.operands:
                    if isinstance(operand, Real):
                        yield from walk(operand)
                yield node

        return walk(self)


def leaf(name: str, dtype: str) -> Real:
    return Real("leaf", dtype, name)


class Integer:
    """An integer: `constant` plus symbols times factors, with the lowest and the highest value if known.

    The symbols are names, and pairs (integer, bits) for the integer's quotient by 2^bits, rounded down.
    """

    dtype = "int64"

    def __init__(self, factors: dict[Any, int], constant: int = 0, ends: tuple[int, int] | None = None):
        self.factors, self.constant, self.ends = factors, constant, ends

    def _key(self) -> tuple[Any, ...]:
        return (frozenset(self.factors.items()), self.constant)

    def __add__(self, other: int) -> Integer:
        ends = self.ends and (self.ends[0] + other, self.ends[1] + other)
        return Integer(self.factors, self.constant + other, ends)

    def __sub__(self, other: int) -> Integer:
        return self + -other

    def __rshift__(self, bits: int) -> Integer:
        return Integer({(self._key(), bits): 1})

    def __and__(self, mask: int) -> Integer:
        bits = mask.bit_length()
        if mask != 2**bits - 1:
            raise ProofError(f"{mask:#x} is no mask of lower bits")
        return Integer({**self.factors, (self._key(), bits): -(2**bits)}, self.constant, (0, mask))

    def key(self) -> tuple[Any, ...]:
        return ("integer", *self._key())
