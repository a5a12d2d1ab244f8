"""A mistake in a journey or a rule, raised at the line that made it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from journeykit_engine.comparison import shown


class JourneyError(ValueError):
    """What is wrong, naming the node or the rule, and how to mend it.

    `code` is a short name for programs, `message` says what is wrong, `fix` what to do; `str()`
    gives both.
    """

    def __init__(self, code: str, message: str, fix: str) -> None:
        super().__init__(code, message, fix)
        self.code = code
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message} {self.fix}"


def wrong_type(where: str, wanted: str, given: object, fix: str) -> JourneyError:
    """The error for an argument of another type than the one that is wanted."""
    return JourneyError("WRONG_TYPE", f"{where} must be {wanted}, not {shown(given)}.", fix)


def text_of(where: str, given: object) -> str:
    """A text of at least one character, or the error that says where one was wanted."""
    if isinstance(given, str) and given:
        return given
    raise wrong_type(where, "text", given, "Write it between quotes.")


def whole_of(where: str, given: object) -> int:
    """A whole number (those of data frames too), or the error that says where one was wanted."""
    number = plain(given)
    if isinstance(number, int) and not isinstance(number, bool):
        return number
    raise wrong_type(where, "a whole number", given, "Write it without quotes.")


def texts_of(where: str, given: object) -> list[str]:
    """A list of texts; a single text is a list of one."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Iterable):
        raise wrong_type(where, "a list of texts", given, 'Write for example ["mon", "tue"].')
    return [text_of(where, item) for item in given]


def plain(value: Any) -> Any:
    """The value without the wrapping that numpy and pandas put around a single number."""
    is_wrapped = hasattr(value, "item") and getattr(value, "shape", None) == ()
    return value.item() if is_wrapped else value
