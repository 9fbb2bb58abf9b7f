"""Rows: checks as data. A row names calls; running it makes each call, watches it and judges it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ._call import fits
from ._cover import Cover, resolved, single_fields
from ._factors import CallFactors, needs_of, read_call
from ._judge import Check, Judge, NoCalls
from ._observe import check_call
from ._shrink import simplest
from ._transformed import Context, Transformed, is_one_program


class CheckRow(NamedTuple):
    """A check as data."""

    name: str
    requirement: str
    # Calls as text, made in this order: "base=10.0|500.0 inverse=True" is two calls; covers; or a function of
    # the judge.
    calls: Sequence[str | Cover] | Callable[[Judge], Iterable[CallFactors]]
    # Capabilities that the check needs, in addition to the common needs of its calls.
    needs: tuple[str, ...] = ()
    few: int = 5  # number of calls, if each call is compiled
    each_dtype: bool = False  # whether the check is one for each dtype
    values: bool = True  # whether it needs a library with values
    context: Context = check_call  # where the calls are made
    thorough: bool = False  # whether the check takes long, and is run only if asked for
    # Makes and judges all calls, in place of the context.
    together: Callable[[Judge, list[CallFactors]], None] | None = None

    def calls_of(self, j: Judge, dtype: str | None = None) -> Iterator[CallFactors]:
        """Yield the calls that a target takes."""
        if callable(self.calls):
            yield from self.calls(j)
            return
        for call in self.calls:
            if isinstance(call, Cover):
                yield from call.calls(j)
            else:
                yield from read_calls(j, call, dtype=dtype or j.dtype)

    def all_needs(self) -> tuple[str, ...]:
        """Return the needs of the row, and the common needs of its calls if these are texts."""
        common: set[str] = set()
        if not callable(self.calls) and all(isinstance(call, str) for call in self.calls):
            read = (read_call(text, CallFactors()) for text in alternatives(map(str, self.calls)))
            common = set.intersection(*(needs_of(call, CallFactors()) for call in read))
        return tuple(dict.fromkeys((*(["values"] if self.values else []), *self.needs, *sorted(common))))


def alternatives(texts: Iterable[str]) -> Iterator[str]:
    """Yield every call of texts in which a factor may have several values: "width=2|4"."""
    for text in texts:
        assignments = [factor_text.partition("=") for factor_text in text.split()]
        choices = [[f"{name}={value}" for value in values.split("|")] for name, _, values in assignments]
        yield from map(" ".join, itertools.product(*choices))


def check_of(row: CheckRow, dtype: str | None = None) -> Check:
    """Return the check of a row, for a dtype if the row has one for each."""
    name = row.name if dtype is None else f"{row.name}[{dtype}]"
    capabilities = row.all_needs() if dtype is None else (*row.all_needs(), dtype)
    return Check(name, row.requirement, capabilities, _run_row, (row, dtype), row.thorough)


def _run_row(j: Judge, row: CheckRow, dtype: str | None) -> None:
    """Make and judge the calls of a row; raise the fault of the simplest call that fails."""
    calls = row.calls_of(j, dtype)
    if row.together is None:
        check_calls(j, calls, row.few, row.context)
    else:
        row.together(j, j.budget.few(calls, row.few))


def check_calls(
    j: Judge, calls: Iterable[CallFactors], few: int | None, context: Context = check_call
) -> None:
    """Make and judge calls: `few` of them if each is compiled. Raise if the target takes none."""
    is_many = isinstance(context, Transformed) and is_one_program(j)
    calls = j.budget.few(calls, None if is_many else few)
    if isinstance(context, Transformed):
        context = context.of_calls(j, calls)
    served = 0
    for seed, call in enumerate(calls):
        try:
            served += context(j, call, seed)
        except NotImplementedError:  # code that declares nothing refuses the call
            raise
        except Exception as error:
            raise simplest(j, call, error, context) from error
    if not calls:
        raise NoCalls("its claims leave none of these calls")
    if not served:
        j.raise_refused("refuses every call")


def read_calls(j: Judge, *texts: str, **values: Any) -> Iterator[CallFactors]:
    """Yield the calls of texts that a target takes, with some values in place of the plain ones."""
    plain = j.plain.replace(**values)
    read = (resolved(j, read_call(text, plain)) for text in alternatives(texts))
    return (call for call in read if fits(j, call))


def each_field(
    reach: int, *texts: str, cover: Cover | None = None
) -> Callable[[Judge], Iterator[CallFactors]]:
    """Return a function that yields calls of each field alone at far positions, of texts, and of a cover."""

    def calls(j: Judge) -> Iterator[CallFactors]:
        far = min(reach, j.target.reach)
        yield from (call.replace(reach=far) for call in single_fields(j) if not call.in_tuple)
        yield from read_calls(j, *texts, reach=far)
        yield from cover.calls(j) if cover is not None else ()

    return calls
