"""The arithmetic of the C++ kernel, read from backends/_native: cos_sin.h and loops/*.hpp.

The function `cos_sin` is translated line by line, and run on symbols. A line of an unknown form is an error,
so a change of the source either changes the expressions that are compared, or fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .expressions import ProofError, Real, leaf
from .recorded import Tables

NATIVE = Path(__file__).resolve().parents[1] / "backends" / "_native"
_REALS = {"float32": "float", "float64": "double"}


def source(name: str = "angles") -> str:
    """Return the source of the angles, with the header that GPUs share, or of the rotation."""
    files = {"angles": ("cos_sin.h", "loops/angles.hpp"), "rotate": ("loops/rotate.hpp",)}
    return "".join((NATIVE / file).read_text("utf-8") for file in files[name])


def constants(text: str, dtype: str) -> dict[str, tuple[float, ...]]:
    """Return the coefficients SIN and COS of a type."""
    body = _between(text, rf"struct Polynomials<{_REALS[dtype]}> {{", "\n};")
    found = re.findall(r"constexpr \w+ (SIN|COS)\[\] = \{([^}]*)\};", body)
    return {name: tuple(float(n.strip().rstrip("f")) for n in numbers.split(",")) for name, numbers in found}


def tables(text: str, dtype: str) -> Tables:
    """Return cos and sin of u, before the quadrant, as `cos_sin` computes them."""
    found = constants(text, dtype)
    table = type("Table", (), {name.lower(): staticmethod(found[name].__getitem__) for name in found})
    top = len(found["COS"]) - 1
    names: dict[str, Any] = {"u": leaf("u", dtype), "Table": table, "TOP": top}
    first, horner, last, _ = _blocks(text)
    for statement in first:
        _run(statement, names)
    for i in range(top - 1):
        for statement in horner:
            step = {name: found[name][top - 1 - i] for name in ("COS", "SIN")}
            _run(statement, {**names, **step}, names)
    for statement in last:
        _run(statement, names)
    return Tables(names["c"], names["s"])


def _blocks(text: str) -> list[list[str]]:
    """Return the statements of the four blocks of `cos_sin`: start, Horner's steps, end, quadrant."""
    body = _between(text, "ROPE_INLINE void cos_sin(", "\n}\n")
    body = re.sub(r"//[^\n]*", "", body)
    body = " ".join(body.split()).replace("Ops::template ", "").replace("Ops::", "")
    parts = body.split("unroll<K>([&](auto k) ROPE_ALWAYS {")
    steps = (
        "unroll<TOP - 1>([&](auto i) ROPE_ALWAYS { "
        "constexpr Real COS = Table::cos(TOP - 1 - i), SIN = Table::sin(TOP - 1 - i);"
    )
    if len(parts) != 5 or not parts[1].rstrip().endswith(steps):
        raise ProofError("cos_sin has other loops than the proof knows")
    return [[s.strip() for s in part.split("});")[0].split(";") if s.strip()] for part in parts[1:]]


def _run(statement: str, names: dict[str, Any], results: dict[str, Any] | None = None) -> None:
    """Run a C++ assignment to c[k], s[k] or z[k] as Python."""
    match = re.fullmatch(r"([csz])\[k\] = ([\w\s\[\]+*():{},-]+)", statement)
    if not match:
        raise ProofError(f"the proof does not know the statement {statement!r}")
    python = match[2].replace("[k]", "").replace("Table::", "Table.").replace("Real{1}", "1.0")
    try:
        value = eval(python, {"__builtins__": {}}, names)
    except (NameError, SyntaxError, IndexError) as error:
        raise ProofError(f"the proof cannot read {statement!r}: {error}") from error
    (names if results is None else results)[match[1]] = value


def check_quadrants(text: str, dtype: str) -> None:
    """Check u and the quadrant of each phase at every end of a quadrant and between, in integers."""
    bits = 32 if dtype == "float32" else 64
    eighth, quarter, half = 1 << (bits - 3), 1 << (bits - 2), 1 << (bits - 1)
    *_, end = _blocks(text)
    signs = [
        "const Words sign = quadrant[k] & HALF",
        "const Reals signed_c = bit_cast<Reals>(bit_cast<Words>(c[k]) ^ sign)",
        "const Reals signed_s = bit_cast<Reals>(bit_cast<Words>(s[k]) ^ sign)",
        "const auto odd = any_bit(quadrant[k], QUARTER)",
        "cos[k] = select(odd, -signed_s, signed_c)",
        "sin[k] = select(odd, signed_c, signed_s)",
    ]
    lines = (
        "u = Ops::to_float(phase << 2) * static_cast<Real>(BITS == 32 ? 0x1p-31 : 0x1p-63);",
        "quadrant = phase + (Word{1} << (BITS - 3));",
        "constexpr Word QUARTER = Word{1} << (BITS - 2), HALF = 2 * QUARTER;",
        "return rope::to_float(v);",
        "return rope::bit_cast<To>(v);",
        "return rope::any_bit(v, bits);",
        "return rope::select(mask, a, b);",
    )
    _check_lines(text, lines)
    if end != signs:
        raise ProofError("cos_sin splits phases in another way than the proof knows")
    for phase in (n * eighth // 4 + near & (2**bits - 1) for n in range(32) for near in (-1, 0, 1)):
        number = (phase + eighth) >> (bits - 2) & 3
        signed = (phase << 2) % 2**bits
        u = signed - 2**bits if signed >= half else signed
        if (u - 4 * (phase - number * quarter)) % 2 ** (bits + 2):
            raise ProofError(f"the rest of the phase {phase:#x} is no angle from its axis")
        turned = phase + eighth
        odd, sign = bool(turned & quarter), bool(turned & half)
        if (odd, odd != sign, sign) != (number % 2 == 1, number in (1, 2), number in (2, 3)):
            raise ProofError(f"the quadrant of the phase {phase:#x} is wrong")


def check_fractions(text: str) -> None:
    """Check the sum with the angle of a fraction, and that it is rounded to quarters of a turn."""
    lines = (
        "constexpr Real ROUNDER = static_cast<Real>(sizeof(Real) == 4 ? 0x1.8p24 : 0x1.8p53);",
        "u = u + eighths; const Reals sum = u + ROUNDER; u = u - (sum - ROUNDER); return sum;",
        "const Reals eighths = at_pairs<float, W>(positions_.floats) * eighths_;",
        "quadrant += bit_cast<Words>(add_eighths<float, Reals>(u, eighths)) << 30;",
        "bit_cast<Long>(add_eighths<double, Wide>(sum, fraction * load<Wide>(eighth_turns_ + first)));",
        "const Real eighths = load<Real>(fractions) * load<Real>(frequencies.eighth_turns + i);",
        "quadrant[0] += bit_cast<Word>(add_eighths<double, Real>(u[0], eighths)) << 62;",
    )
    _check_lines(" ".join(text.split()), lines)
    for precision, rounder in (
        (24, 3 * 2**23),
        (53, 3 * 2**52),
    ):  # 2 is a unit in the last place of sums near it
        low, high = rounder - 2 ** (precision - 1), rounder + 2 ** (precision - 1)
        if not 2**precision <= low < high <= 2 ** (precision + 1) or rounder // 2 % 4:
            raise ProofError(
                "adding the number does not round to quarters of a turn, or not their number's bits"
            )


def _check_lines(text: str, lines: tuple[str, ...]) -> None:
    for line in lines:
        if line not in text:
            raise ProofError(f"the kernel no longer has the line {line!r}")


def check_amplitude(text: str) -> None:
    """Check that the amplitude is rounded to the tables' type, and multiplies cos and sin."""
    lines = (
        "cos_amplitude_(static_cast<float>(frequencies.cos_amplitude)),",
        "sin_amplitude_(static_cast<float>(frequencies.sin_amplitude)),",
        "cos[k] = cos[k] * cos_amplitude_;",
        "sin[k] = sin[k] * sin_amplitude_;",
        "store(cos + r * num_pairs + i, c[0] * cos_amplitude);",
        "store(sin + r * num_pairs + i, s[0] * sin_amplitude);",
    )
    _check_lines(text, lines)


def rotated(text: str, dtype: str) -> list[Real]:
    """Return both members of a rotated pair, as `rotate_pairs` computes them."""
    match = re.search(r"const auto first = ([\w\s*+-]+), second = ([\w\s*+-]+);", text)
    if not match:
        raise ProofError("rotate_pairs has no line of the form that the proof knows")
    names = {name: leaf(name, dtype) for name in ("a", "b", "cos", "sin")}
    run: Callable[[str], Any] = lambda line: eval(line, {"__builtins__": {}}, names)  # noqa: E731
    return [run(match[1]), run(match[2])]


def _between(text: str, start: str, end: str) -> str:
    at = re.search(re.escape(start) if "(" in start or "{" in start else start, text)
    if not at:
        raise ProofError(f"the kernel's source no longer has {start!r}")
    return text[at.end() : text.index(end, at.end())]
