"""A failed requirement as data, from which its message is made once, at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# `Fault.nearest` of a call that failed once, and passes when it is repeated.
REPEATED = "if the call is repeated"


class Fault(AssertionError):
    """A requirement is not met.

    Attributes
    ----------
    text
        The fault in words, such as "x was written". Wrong elements are described on the first access.
    wrong
        The wrong elements with the arrays and fields of their call, to judge them again; None for other
        faults.
    call
        The call, as text that ``--case`` reads; None if the fault belongs to no single call.
    nearest
        The nearest calls that are right, such as "without base".
    contexts
        Where the call was made, the outermost first, such as "under torch.no_grad()".
    """

    def __init__(
        self,
        text: str | Callable[[], str],
        wrong: Any = None,
        *,
        call: str | None = None,
        nearest: str = "",
        contexts: tuple[str, ...] = (),
    ):
        super().__init__()
        self._text, self.wrong, self.call, self.nearest, self.contexts = text, wrong, call, nearest, contexts

    @property
    def text(self) -> str:
        """The fault in words."""
        if callable(self._text):
            self._text = self._text()
        return self._text

    @classmethod
    def of(
        cls, error: BaseException, *, call: str | None = None, nearest: str = "", context: str = ""
    ) -> Fault:
        """Return an exception as a fault, with its call, and with one more context around it."""
        if not isinstance(error, Fault):
            plain = isinstance(error, AssertionError)
            error = cls(_message(error) if plain else f"{type(error).__name__}: {_message(error)}")
        return cls(
            error._text,
            error.wrong,
            call=error.call if call is None else call,
            nearest=nearest or error.nearest,
            contexts=(context, *error.contexts) if context else error.contexts,
        )

    @property
    def case(self) -> str:
        """The call, for ``--case`` to repeat; "" if it is the plain call, or right if it is repeated."""
        return "" if self.nearest == REPEATED else self.call or ""

    def __str__(self) -> str:
        call = self._of_call()
        text = self.text.removeprefix("wrong: ") if call else self.text  # the call says that it is wrong
        return ": ".join(filter(None, (*self.contexts, call, text)))

    def _of_call(self) -> str:
        if self.call is None:
            return ""
        right = f"; right {self.nearest}" if self.nearest else ""
        return (f"wrong with {self.call}" if self.call else "the plain call is wrong") + right


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # its own __str__ raises
        return "(its message cannot be read)"
