"""A requirement that is not met, as data. Its text is written when it is read."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ._explanation import describe_values
from ._where import Place, describe, element_text
from ._wrong_result import WrongResult

# `Failure.nearest` of a call that failed once, and passes when it is repeated.
REPEATED = ("if the call is repeated",)
# Contexts: the value of a call while a gradient is recorded, and the gradient.
VALUE, GRADIENT = "the value while a gradient is recorded", "the gradient"
# Places that do not tell one fault from another.
VAGUE = ("all elements", "most elements", "nearly all elements", "scattered elements")


class Words(NamedTuple):
    """A failure in words: the place of wrong elements and the name of their values, and the rest."""

    place: Place | None
    values: str
    statement: str


class Failure(AssertionError):
    """A requirement is not met."""

    def __init__(
        self,
        statement: str = "",
        # The wrong elements with their call, to judge them again; None if the values cannot be judged again.
        wrong: WrongResult | None = None,
        *,
        place: Place | None = None,
        raised: str = "",  # the name of the type of the target's exception; "" if it raised none
        # The call, as text that ``--case`` reads; None if the failure belongs to no single call.
        call: str | None = None,
        nearest: tuple[str, ...] = (),  # the nearest calls that are right, such as "without base"
        # Where the call was made, the outermost first, such as "under torch.no_grad()".
        contexts: tuple[str, ...] = (),
    ):
        super().__init__()
        self._words = Words(place, "", statement) if wrong is None else None
        self.wrong, self.raised = wrong, raised
        self.call, self.nearest, self.contexts = call, nearest, contexts

    @classmethod
    def of(cls, error: BaseException, *, context: str = "", **changes: Any) -> Failure:
        """Return an exception as a failure, with other attributes, and with one more context around it."""
        if isinstance(error, Failure):
            failure = copy.copy(error)
        elif isinstance(error, AssertionError):
            failure = cls(_message(error))
        else:
            failure = cls(f"{type(error).__name__}: {_message(error)}", raised=type(error).__name__)
        vars(failure).update(changes)
        failure.contexts = (*filter(None, [context]), *failure.contexts)
        return failure

    @property
    def words(self) -> Words:
        """The failure in words."""
        if self._words is None:
            assert self.wrong is not None
            self._words = _words_of(self.wrong)
        return self._words

    @property
    def place(self) -> str:
        """The place of the wrong elements; "" if the failure is about none."""
        return self.words.place.text if self.words.place else ""

    @property
    def place_in_any_x(self) -> str:
        """The place in words that hold for x of other sizes."""
        return self.words.place.in_any_x if self.words.place else ""

    @property
    def is_vague(self) -> bool:
        """Whether its words say only that most results are wrong."""
        return self.place in VAGUE and not (self.words.values or self.factors)

    @property
    def factors(self) -> tuple[str, ...]:
        """The factors of the call, such as "width=72"; recording a plain gradient is none."""
        return tuple(factor for factor in (self.call or "").split() if factor != "gradient=contiguous")

    @property
    def case(self) -> str:
        """The call, for ``--case`` to repeat; "" if it is the plain call, or right if it is repeated."""
        return "" if self.nearest == REPEATED else self.call or ""

    def __str__(self) -> str:
        wrong = "wrong: " if self.place and self.call is None else ""
        text = "; ".join(filter(None, (self.place, self.words.values, self.words.statement)))
        return ": ".join(filter(None, (*self.contexts, self._of_call(), f"{wrong}{text}")))

    def _of_call(self) -> str:
        """Return that the call is wrong."""
        if self.call is None:
            return ""
        right = f"; right {', '.join(self.nearest)}" if self.nearest else ""
        return (f"wrong with {self.call}" if self.call else "the plain call is wrong") + right


@contextmanager
def named(where: str) -> Iterator[None]:
    """Name where a call is made in the message of its fault; "" names no place."""
    try:
        yield
    except NotImplementedError:  # the target refuses the call: a check that judges nothing else is left out
        raise
    except Exception as error:
        if not where:
            raise
        raise Failure.of(error, context=where) from error


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # its own __str__ raises
        return "(its message cannot be read)"


def difference(actual: Any, expected: Any, text: str, pos: Any = None) -> Failure | None:
    """Return where two results differ, and an element; None if they are equal."""
    wrong = np.asarray(actual != expected)
    if not wrong.any():
        return None
    first = tuple(np.argwhere(wrong)[0])
    statement = (
        f"{wrong.sum():,} of {wrong.size:,} elements {text}; first at {element_text(first)}: "
        f"{float(actual[first])!r}, not {float(expected[first])!r}"
    )
    return Failure(statement, place=describe(wrong, pos))


# ---- wrong elements in words ----


def _words_of(wrong: WrongResult) -> Words:
    """Describe wrong elements: the place, the values, the number, and the worst."""
    values, like_wrong = _class_text(wrong), None
    if not values:
        values, like_wrong = describe_values(wrong)
    place = describe(wrong.mask, wrong.pos, pairs=wrong.pairs, alike=like_wrong)
    worst = _worst_element(wrong)
    value, exact, bound = (float(array[worst]) for array in (wrong.y, wrong.exact, wrong.bound))
    statement = (
        f"{wrong.mask.sum():,} of {wrong.mask.size:,} elements, {wrong.dtype}; worst at {element_text(worst)}"
        f"{_position_text(wrong, worst)}: got {value!r}, exact {exact!r}, off by {abs(value - exact):.3g}, "
        f"{bound:.3g} is allowed; {_call_text(wrong)}"
    )
    return Words(place, values, statement)


def _class_text(wrong: WrongResult) -> str:
    """Return the weaker class of accuracy that allows all errors, in words; "" if none does."""
    accuracy, dtype = wrong.accuracy, wrong.dtype
    tried = [("float32 angles", dtype, accuracy._replace(angles="float32"))]
    if dtype == "float64":
        tried.insert(0, ("float32 arithmetic", "float32", accuracy))
    elif dtype != "float32":
        tried.insert(0, (f"{dtype} arithmetic", dtype, accuracy._replace(arithmetic="own")))
    for text, name, weaker in tried:
        differs = weaker != accuracy or name != dtype
        if differs and wrong.is_all(wrong.within(weaker, name)):
            return f"within the error of {text}"
    return ""


def _worst_element(wrong: WrongResult) -> tuple[Any, ...]:
    with np.errstate(all="ignore"):
        ratio = np.abs(wrong.y - wrong.exact) / np.where(wrong.bound, wrong.bound, 1.0)
    ratio = np.where(wrong.mask, np.nan_to_num(ratio, nan=np.inf), -1.0)
    return np.unravel_index(np.argmax(ratio), ratio.shape)


def _position_text(wrong: WrongResult, index: Sequence[Any]) -> str:
    rows = wrong.row_positions
    return "" if rows is None else f", position {rows[tuple(index[:-1])]}"


def _call_text(wrong: WrongResult) -> str:
    """Describe the call: shapes, and the fields that differ from the usual ones."""
    defaults = {"base": 10000.0, "pairing": "interleaved", "inverse": False}
    all_fields = {**wrong.fields, "inverse": wrong.inverse}
    fields = [f"{name}={value}" for name, value in all_fields.items() if defaults.get(name) != value]
    positions = "" if wrong.pos is None else f", pos {np.shape(wrong.pos)}"
    return ", ".join([f"x {wrong.x.shape}{positions}", *fields])
