"""Zones of the clock: which names are zones, and whose data say what the clock shows there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import TypeGuard

import whenever
from tzdata import IANA_VERSION  # type: ignore[import-untyped]
from whenever import Date, Instant

# With no directory of the host to look in, whenever reads the package tzdata: hosts lag behind the
# law, and an answer must not depend on the machine. This is whenever's own path: it holds for the
# whole process, and zoneinfo and other libraries do not see it.
whenever.reset_tzpath(())
whenever.clear_tzcache()

ZONES = frozenset(files("tzdata").joinpath("zones").read_text("ascii").split()) - {"Factory"}
"""Every usable name. "Factory" is the database's word for a clock that nobody has set."""

EARLIEST = Instant.from_utc(2, 1, 1)
LATEST = Instant.from_utc(9999, 1, 1)
"""A year inside what `whenever` can say: a search from any instant between the two stays sayable in
every zone. A wait that would end later ends here."""

END_OF_TABLES = 2100
"""The year from which zone data hold only yearly rules of an hour; Morocco's table ends in 2087."""

SHOWN_CHARACTERS = 60  # of a text from outside in a message; the longest zone name has 32


def is_zone(name: object) -> TypeGuard[str]:
    """Whether `name` is exactly a name of the package's own list; never raises.

    A host's extra files ("localtime", "posixrules"), other cases and paths are no zones.
    """
    return isinstance(name, str) and name in ZONES


def first_zone(candidates: Sequence[object]) -> tuple[str, tuple[str, ...]]:
    """The first usable name, and the unusable ones before it as text for a note.

    None and "" mean that nothing is set and are not noted; with no usable name the zone is "UTC".

    >>> first_zone([None, "Mars/Phobos", "Asia/Tehran"])
    ('Asia/Tehran', ('Mars/Phobos',))
    """
    unusable: list[str] = []
    for name in candidates:
        if is_zone(name):
            return name, tuple(unusable)
        if name is not None and name != "":
            unusable.append(as_text(name))
    return "UTC", tuple(unusable)


def tz_release() -> str:
    """The release of the zone data in use, as IANA names it: "2026f"."""
    return str(IANA_VERSION)


@lru_cache(maxsize=len(ZONES))
def skipped_dates(zone: str) -> tuple[Date, ...]:
    """The dates that never were in `zone`: where it crossed the date line, else ().

    >>> skipped_dates("Pacific/Apia")
    (Date("2011-12-30"),)
    """
    skipped = []
    change = EARLIEST.to_tz(zone).next_transition()
    while change is not None and change.year < END_OF_TABLES:
        day = change.to_instant().subtract(nanoseconds=1).to_tz(zone).date().next_day()
        while day < change.date():
            skipped.append(day)
            day = day.next_day()
        change = change.next_transition()
    return tuple(skipped)


def shown(value: object) -> str:
    """A value from outside as a message repeats it: texts in double quotes."""
    return f'"{as_text(value)}"' if isinstance(value, str) else as_text(value)


def as_text(value: object) -> str:
    """Shortened, and with whatever cannot be seen, or not be stored (U+0000), as an escape."""
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number of more than 64 bits"  # Python refuses to write out very long ones
    text = value if isinstance(value, str) else repr(value)
    if len(text) > SHOWN_CHARACTERS:
        text = f"{text[:SHOWN_CHARACTERS]}…"
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
