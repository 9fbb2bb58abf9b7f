"""Gappa: bounds of rounding errors, for expressions that were recorded.

A compiler may fuse a product with a sum, and then rounds once instead of twice. In a script an operand of a
sum that is a product p is therefore p + m·(rnd(p) - p), with 0 <= m <= 1: 0 is fused and 1 is not, and each
product has an m of its own. So one proof covers every choice of a compiler.
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil, floor
from typing import Any

from .approximation import Interval, dyadic, from_dyadic
from .expressions import FORMATS, ProofError, Real
from .tools import run

_ROUNDINGS = {"float32": "float<ieee_32, ne>", "float64": "float<ieee_64, ne>"}
_SIGNS = {"add": "+", "sub": "-", "mul": "*"}


class Script:
    """A Gappa script: definitions, hypotheses and hints.

    Parameters
    ----------
    dtype
        The format that operations are rounded to.
    fused
        Whether products that are added may be fused, each or none; else every operation is rounded.
    """

    def __init__(self, dtype: str, fused: bool):
        self.fused = fused
        self.lines = [f"@rnd = {_ROUNDINGS[dtype]};"]
        self.hypotheses: list[str] = []
        self.hints: list[str] = []
        self.count = 0

    def define(self, name: str, value: str) -> str:
        self.lines.append(f"{name} = {value};")
        return name

    def assume(self, name: str, interval: Interval) -> str:
        """Assume that a variable is in an interval, whose ends are rounded outward to multiples of 2^-200."""
        low, high = floor(interval.low * 2**200), ceil(interval.high * 2**200)
        self.hypotheses.append(f"{name} in [{low}b-200, {high}b-200]")
        return name

    def rounded(self, expression: Real, leaves: dict[str, str]) -> tuple[str, str]:
        """Define an expression with and without roundings; return the names of both."""
        both: dict[int, tuple[str, str]] = {}
        for node in expression.nodes():
            both[id(node)] = self._node(node, leaves, both)
        return both[id(expression)]

    def _node(self, node: Real, leaves: dict[str, str], both: dict[int, tuple[str, str]]) -> tuple[str, str]:
        self.count += 1
        if node.op == "leaf":
            return leaves[node.operands[0]], leaves[node.operands[0]]
        if node.op == "constant":
            constant = self.define(f"k{self.count}", dyadic(node.operands[0]))
            return constant, constant
        if node.op not in _SIGNS:
            raise ProofError(f"no Gappa expression for {node.op}")
        found = [both[id(operand)] for operand in node.operands]
        sign = _SIGNS[node.op]
        products = [operand.op == "mul" for operand in node.operands]
        left, right = (
            self._maybe_fused(name) if node.op != "mul" and product else name
            for (name, _), product in zip(found, products, strict=True)
        )
        if node.op == "mul":
            self.define(f"p{self.count}", f"{left} * {right}")
            self.define(f"t{self.count}", f"rnd(p{self.count})")
        else:
            self.define(f"t{self.count}", f"rnd({left} {sign} {right})")
        self.define(f"e{self.count}", f"{found[0][1]} {sign} {found[1][1]}")
        return f"t{self.count}", f"e{self.count}"

    def _maybe_fused(self, product: str) -> str:
        """Define a product that is rounded or not; return its name."""
        if not self.fused:
            return product
        self.count += 1
        number, choice = product[1:], f"m{self.count}"
        self.assume(choice, Interval(Fraction(0), Fraction(1)))
        error = f"{choice} * ({product} - p{number})"
        self.hints.append(f"f{self.count} - e{number} -> (p{number} - e{number}) + {error};")
        return self.define(f"f{self.count}", f"p{number} + {error}")

    def run_for(self, *names: str) -> dict[str, Interval]:
        """Return an interval for each name that Gappa proves to contain its value."""
        hypotheses, goals = (
            r" /\ ".join(terms) for terms in (self.hypotheses, [f"{name} in ?" for name in names])
        )
        logic = f"{{ {hypotheses} -> {goals} }}"
        output = run("gappa", "\n".join([*self.lines, logic, *self.hints, ""]))
        results = dict(re.findall(r"^  (\w+) in (\[.*\])$", output, re.MULTILINE))
        if results.keys() != {*names}:
            raise ProofError(f"Gappa has no bound of { ({*names} - results.keys()) }:\n{output}")
        return {name: _interval(results[name]) for name in names}


def _interval(text: str) -> Interval:
    """Read an interval such as [-1b-25 {-2.98023e-08, -2^(-25)}, 1b-25 {2.98023e-08, 2^(-25)}]."""
    low, high = re.sub(r"\{[^}]*\}", "", text).strip("[]").split(",")
    return Interval(from_dyadic(low), from_dyadic(high))


def unit(dtype: str) -> Fraction:
    """Return the relative error of one rounding."""
    return Fraction(1, 2 ** FORMATS[dtype][0])


def size(interval: Interval) -> Fraction:
    return max(abs(interval.low), abs(interval.high))


class Errors:
    """Errors of an expression whose operations have a relative error, in a Gappa script.

    An operation returns (1 + e) times its exact result, |e| <= the unit of its dtype: a fused product has
    e = 0. Every node is an exact value and an error, both named. There is no underflow.
    """

    def __init__(self, script: Script):
        self.script, self.count = script, 0

    def of(
        self, expression: Real, leaves: dict[Any, tuple[str, str]], last_rounded: bool = True
    ) -> tuple[str, str]:
        """Define an expression of leaves with errors; return the names of its exact value and its error.

        A constant is a leaf too, by its number.
        """
        both: dict[int, tuple[str, str]] = {}
        for node in expression.nodes():
            found = [both[id(operand)] for operand in node.operands if isinstance(operand, Real)]
            rounded = last_rounded or node is not expression
            if node.op not in ("leaf", "constant"):
                both[id(node)] = self._node(node, found, rounded)
            elif node.operands[0] in leaves:
                both[id(node)] = leaves[node.operands[0]]
            else:
                raise ProofError(f"the error of {node.operands[0]} is not stated")
        return both[id(expression)]

    def _node(self, node: Real, found: list[tuple[str, str]], rounded: bool) -> tuple[str, str]:
        (x, dx), (y, dy) = found[0], found[-1]
        self.count += 1
        exact, error = f"x{self.count}", f"d{self.count}"
        if node.op == "cast":
            rounded = rounded and FORMATS[node.operands[0].dtype][0] > FORMATS[node.dtype][0]
            self.script.define(exact, f"{x} + 0")
            inherited = dx
        elif node.op == "mul":
            self.script.define(exact, f"{x} * {y}")
            inherited = f"({dx}) * {y} + ({dy}) * {x} + ({dx}) * ({dy})"
        elif node.op in ("add", "sub"):
            self.script.define(exact, f"{x} {_SIGNS[node.op]} {y}")
            inherited = f"({dx}) {_SIGNS[node.op]} ({dy})"
        else:
            raise ProofError(f"no error of {node.op}")
        if not rounded:
            return exact, self.script.define(error, inherited)
        u = unit(node.dtype)
        e = self.script.assume(f"r{self.count}", Interval(-u, u))
        self.script.define(f"i{self.count}", inherited)
        return exact, self.script.define(error, f"i{self.count} + {e} * ({exact} + i{self.count})")
