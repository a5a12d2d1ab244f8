"""The scanner on a virtual clock: who is in a segment now, who came, who left, whose date it is.

No event tells that a window has run out or that a birthday is near, so membership is asked for at
intervals and held against the answers of the time before. Between two looks only those people are
asked again about whom something new is known, or whose answer can have changed by the passing of
time.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

from whenever import Instant, TimeDelta

from journeykit_engine import graph, rule, timing
from journeykit_engine.instance import Person
from journeykit_engine.program import Program


class Looks:
    """The looks that a journey's trigger asks for; `next_at` is None where it asks for none.

    Segments that are entered or left are looked at every `scan_every` from `start` on; the first
    look records who is inside and enrols nobody. Sweeps and dates are looked at at their hours.
    """

    def __init__(self, program: Program, start: Instant, scan_every: TimeDelta) -> None:
        self.zone = program.zone
        self.every = scan_every
        self.inside: dict[str, bool] = {}
        self.people: dict[str, Person] = {}
        self.asked_again: list[tuple[Instant, str]] = []
        self.fresh: dict[str, None] = {}
        self.is_first = True
        self.trigger = program.trigger
        self.unreadable: set[str] = set()
        self.hours: list[int] = []
        self.next_at: Instant | None = None
        definition = question(program.trigger)
        if definition is None:
            return
        self.rule = rule.parse(definition)
        self.holds = rule.compile_rule(self.rule)
        match program.trigger:
            case graph.SegmentPeriodic() as sweep:
                self.hours = sorted(set(sweep.hours))
            case graph.DateTrigger() as date:
                self.hours = [date.hour]
            case _:
                self.next_at = start
        if self.hours:
            self.next_at = timing.next_sweep(
                start - TimeDelta(nanoseconds=1), self.hours, self.zone
            )

    @property
    def skipped_dates(self) -> int | None:
        """How many people had a date that cannot be read at a look (it enrols nobody); None where
        the trigger asks for no date."""
        return len(self.unreadable) if isinstance(self.trigger, graph.DateTrigger) else None

    def changed(self, person: Person) -> None:
        """Something new is known about this person: ask again at the next look."""
        if self.next_at is not None:
            self.people[person.user_id] = person
            self.fresh[person.user_id] = None

    def look(self) -> tuple[Instant, list[str]]:
        """Look now (at `next_at`): when it was, and whom the trigger enrols, by user id."""
        at = self.next_at
        assert at is not None
        came, left = self._compare(at)
        match self.trigger:
            case graph.SegmentEnter():
                found = [] if self.is_first else came
            case graph.SegmentExit():
                found = left  # at the first look nobody has been inside before
            case _:
                found = sorted(user_id for user_id, inside in self.inside.items() if inside)
        self.is_first = False
        if self.hours:
            self.next_at = timing.next_sweep(at, self.hours, self.zone)
        else:
            self.next_at = at + self.every
        return at, found

    def _compare(self, at: Instant) -> tuple[list[str], list[str]]:
        again = self.fresh
        while self.asked_again and self.asked_again[0][0] <= at:
            again[heapq.heappop(self.asked_again)[1]] = None
        self.fresh = {}
        came, left = [], []
        for user_id in sorted(again):
            was, now = self.inside.get(user_id, False), self._ask(self.people[user_id], at)
            if now and not was:
                came.append(user_id)
            elif was and not now:
                left.append(user_id)
        return came, left

    def _ask(self, person: Person, at: Instant) -> bool:
        zone = self.zone
        if person.timezone is not None:
            zone, _ = timing.first_zone((person.timezone, self.zone))
        facts = rule.Snapshot(person, at, self.zone, zone)
        if isinstance(self.trigger, graph.DateTrigger):
            self._note_unreadable(person, self.trigger.trait)
        self.inside[person.user_id] = answer = self.holds(facts)
        change = rule.next_change(self.rule, facts)
        if change is not None:
            heapq.heappush(self.asked_again, (change, person.user_id))
        return answer

    def _note_unreadable(self, person: Person, trait: str) -> None:
        if trait in person.traits and timing.read_date(person.traits[trait]) is None:
            self.unreadable.add(person.user_id)


def question(trigger: graph.Trigger | None) -> Mapping[str, Any] | None:
    """What the scanner asks of each person, None for a trigger that it does not serve."""
    match trigger:
        case graph.SegmentEnter() | graph.SegmentExit() | graph.SegmentPeriodic():
            return trigger.definition
        case graph.DateTrigger():
            until = {
                "trait": trigger.trait,
                "op": "days_until",
                "value": trigger.offset_days,
                "annual": trigger.annual,
            }
            asked = trigger.definition["root"] if trigger.definition else {}
            return {"root": {"all": [until, asked]}}
        case _:
            return None
