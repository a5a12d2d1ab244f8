"""What a rule may look at: one person, the moment, the zones, the entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from whenever import Instant

from journeykit_engine.instance import Person


class Facts(Protocol):
    """All that a rule may look at; `Snapshot` has it, and so has a walker on its way.

    `zone` is the recipient's, `account_zone` the account's. `entered_at` and `entered_by` are the
    start of the pass and the id of the event that caused it; outside a journey there is no entry,
    and nothing has happened since it.
    """

    @property
    def person(self) -> Person: ...
    @property
    def at(self) -> Instant: ...
    @property
    def account_zone(self) -> str: ...
    @property
    def zone(self) -> str: ...
    @property
    def entered_at(self) -> Instant | None: ...
    @property
    def entered_by(self) -> str: ...


class Snapshot(NamedTuple):
    """The facts about one person at one moment, outside a walk or for a look at one."""

    person: Person
    at: Instant
    account_zone: str
    zone: str
    entered_at: Instant | None = None
    entered_by: str = ""


Predicate = Callable[[Facts], bool]
