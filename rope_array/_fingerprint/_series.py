"""Measured frequencies in few numbers: series of a base, and divisors as scaling rules have them."""

import re
from typing import NamedTuple

from rope_array._diagnose._frequency_fit import BASES
from rope_array._diagnose._observation import Floats


class Series(NamedTuple):
    """Frequencies base^(-i/width) / divisor; printed, `500000^(-i/64) / (1 x29, 1.2, 8 x34)`."""

    base: float
    width: int
    divisors: tuple[float, ...]

    @property
    def frequencies(self) -> list[float]:
        """The frequency of each pair, in radians per position."""
        return [self.base ** (-i / self.width) / divisor for i, divisor in enumerate(self.divisors)]

    def __str__(self) -> str:
        changes = [i for i, d in enumerate(self.divisors) if not i or d != self.divisors[i - 1]]
        runs = zip(changes, [*changes[1:], len(self.divisors)], strict=True)
        texts = [_number(self.divisors[i]) + (f" x{j - i}" if j - i > 1 else "") for i, j in runs]
        return f"{_number(self.base)}^(-i/{self.width}) / ({', '.join(texts)})"


def parse_series(text: str) -> tuple[Series, ...]:
    """Return the series that a text has."""
    read = []
    for base, width, runs in re.findall(r"(\S+)\^\(-i/(\d+)\) / \(([^)]*)\)", text):
        divisors: list[float] = []
        for run in runs.split(", "):
            number, _, count = run.partition(" x")
            divisors += [float(number)] * int(count or 1)
        read.append(Series(float(base), int(width), tuple(divisors)))
    return tuple(read)


def fit_series(omegas: Floats, errors: Floats, width: int) -> tuple[Series, ...]:
    """Return series with the frequencies, to their relative errors; a new one where frequencies grow.

    `width` is the number of pairs of a whole series, if there is one.
    """
    starts = [i for i in range(len(omegas)) if not i or abs(omegas[i]) > abs(omegas[i - 1]) * 1.5]
    stops = [*starts[1:], len(omegas)]
    return tuple(
        _fit(omegas[i:j], errors[i:j], width if len(starts) == 1 else j - i)
        for i, j in zip(starts, stops, strict=False)
    )


def _fit(omegas: Floats, errors: Floats, width: int) -> Series:
    """Return the series of the base that needs the fewest divisors."""
    count, bases = len(omegas), [*BASES] if len(omegas) > 1 else [1.0]
    for k in {2**n for n in range(9) if 2**n < count} | {count - 1} - {0}:
        base = abs(omegas[0] / omegas[k]) ** (width / k)
        bases.append(_shortest(base, (errors[0] + errors[k]) * width / k))
    fits = [Series(base, width, _divisors(omegas, errors, base, width)) for base in bases if 0 < base < 1e300]
    return min(fits, key=lambda fit: len(str(fit)))


def _divisors(omegas: Floats, errors: Floats, base: float, width: int) -> tuple[float, ...]:
    """Return divisors of few digits; the same as the one before where it is as good."""
    divisors: list[float] = []
    for i, (omega, error) in enumerate(zip(omegas.tolist(), errors.tolist(), strict=True)):
        exact = base ** (-i / width) / omega
        before = divisors[-1] if divisors else 1.0
        divisors.append(before if abs(exact / before - 1) <= 2 * error else _shortest(exact, error))
    return tuple(divisors)


def _shortest(number: float, error: float) -> float:
    """Return the number of the fewest digits within a relative error."""
    texts = (float(f"{number:.{digits}g}") for digits in range(1, 17))
    return next((value for value in texts if abs(value - number) <= error * abs(number)), number)


def _number(value: float) -> str:
    return repr(float(value)).removesuffix(".0")
