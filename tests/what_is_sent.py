"""Writes docs/what-is-sent-and-why.md from a real run: one person, every gate, a real database.

    python -m tests.what_is_sent > docs/what-is-sent-and-why.md

The prose stands here, the tables come out of the store. A test holds the page to the run.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import select
from whenever import Instant

import journeykit as jk
from journeykit_server import inbound, lifecycle, people, publishing, subscriptions, tasks
from journeykit_server.clock import SeededChance, VirtualClock, instant
from journeykit_server.database import Database
from journeykit_server.incoming import Incoming
from journeykit_server.migrate import migrate
from journeykit_server.policy import save_policy
from journeykit_server.runtime import Runtime
from journeykit_server.tables import deferred_sends, deliveries, messages
from journeykit_server.templates import save_template
from journeykit_server.worker import Worker

ACCOUNT = 1
MONDAY = "2026-06-01T"  # of the story, which begins at nine in Berlin
ZONE = "Europe/Berlin"
MINA = {
    "name": "Mina",
    "email": "mina@example.com",
    "phone": "+4930123456",
    "timezone": ZONE,
}
POLICY = {
    "quiet_hours": {"from": "22:00", "to": "08:00"},
    "caps": {"default": {"per_day": 2}},
}
TEXTS = [
    ("Welcome", "email", {"subject": "Welcome, {{ name }}", "body": "Good to have you."}),
    ("Shipped", "email", {"subject": "On its way", "body": "Parcel {{ event.parcel }} left."}),
    ("Rank", "email", {"subject": "You are {{ event.rank }}", "body": "Keep going, {{ name }}."}),
    ("Offer", "push", {"body": "10% for you"}),
    ("Offer by mail", "email", {"subject": "10% for you", "body": "Until Friday."}),
    ("Reminder", "sms", {"body": "Your table is booked. STOP ends these."}),
    ("Birthday", "email", {"subject": "Happy birthday", "body": "A gift for {{ nickname }}."}),
]
WELCOME, SHIPPED, RANK, PUSH, OFFER, REMINDER, BIRTHDAY = range(1, len(TEXTS) + 1)


class Story:
    """An account with one customer, whose days pass on a clock of their own."""

    def __init__(self, database: Database, clock: VirtualClock) -> None:
        self.database, self.clock = database, clock
        self.runtime = Runtime(database)
        self.worker = Worker(self.runtime)
        self.page: list[str] = []
        self.told: set[str] = set()
        self.events = 0

    # --- what happens

    async def opens(self, journey: Callable[[], jk.Journey]) -> int:
        """Publish a journey and show how it was written."""
        built = journey()
        draft = await publishing.save_draft(self.database, ACCOUNT, built.to_json())
        await self.runtime.publish(ACCOUNT, draft.journey_id, account_timezone=ZONE)
        source = inspect.getsource(journey).split("return ", 1)[1].replace("  # fmt: skip", "")
        self.writes(f"```python\n{textwrap.dedent(' ' * 8 + source).strip()}\n```")
        return draft.journey_id

    async def at(self, moment: str) -> None:
        """Let time pass until then, as a worker does: never past what is due before."""
        end = Instant(moment)
        while (due := await self.runtime.next_due()) is not None and due <= end:
            self.clock.set(max(due, self.clock.now()))
            await self.works()
        self.clock.set(end)
        await self.works()

    async def works(self) -> None:
        while sum(await self.worker.tick()):
            pass

    async def hears(self, name: str, user_id: str = "mina", **properties: Any) -> None:
        self.events += 1
        event = Incoming("track", user_id, name, properties, f"event-{self.events}")
        await self.runtime.ingest(ACCOUNT, [event])
        await self.works()

    async def knows(self, user_id: str, traits: dict[str, Any]) -> None:
        await self.runtime.ingest(ACCOUNT, [Incoming("identify", user_id, properties=traits)])

    # --- what is told

    def writes(self, text: str) -> None:
        self.page.append(textwrap.dedent(text).strip())

    async def shows(self, *user_ids: str) -> None:
        """What became of everything since the last look, as the store has it."""
        rows = [*await self._settled(), *await self._waiting()]
        about = user_ids or ("mina",)
        rows = [row for row in rows if row[0] not in self.told and row[2] in about]
        self.told |= {row[0] for row in rows}
        head = "| Berlin time | who | channel | became | why | text |\n|---|---|---|---|---|---|"
        lines = [f"| {' | '.join(row[1:])} |" for row in sorted(rows)]
        self.page.append("\n".join([head, *lines]))

    async def _settled(self) -> list[tuple[str, ...]]:
        texts = {row.message_id: _text(row.payload) for row in await self._rows(deliveries)}
        found: list[tuple[str, ...]] = []
        for row in await self._rows(messages):
            why = ": ".join(filter(None, (row.reason, row.detail))) or "nothing spoke against it"
            own, other = row.message_id, f"{row.message_id}.{row.channel}"
            text, at = texts.get(own) or texts.get(other, ""), _berlin(row.settled_at)
            found.append((own, at, row.user_id, row.channel, row.state, why, text))
        return found

    async def _waiting(self) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []
        for row in await self._rows(deferred_sends):
            state = f"deferred to {_berlin(row.send_at)}"
            at, channel = _berlin(row.created_at), orjson.loads(row.payload)["channel"]
            name = f"{row.message_id} deferred"
            found.append((name, at, row.user_id, channel, state, row.reason, ""))
        return found

    async def _rows(self, table: Any) -> list[Any]:
        async def read(connection: Any) -> list[Any]:
            return list(await connection.execute(select(table)))

        return await self.database.read(read)

    async def stands(self, journey_id: int) -> None:
        [here] = [
            found
            for found in await people.where_is(self.database, ACCOUNT, "mina")
            if found.journey_id == journey_id
        ]
        wakes = f", until {_berlin_of(here.wake_at)}" if here.wake_at else ""
        why = f" ({here.exit_reason})" if here.exit_reason else ""
        self.writes(f"Mina is `{here.status}` at `{here.node}`{why}{wakes}.")


def _text(payload: str) -> str:
    texts = orjson.loads(payload).get("texts") or {}
    return " / ".join(texts[name] for name in ("subject", "body") if name in texts)


def _berlin(at: int) -> str:
    return _berlin_of(instant(at))


def _berlin_of(at: Instant) -> str:
    local = at.to_tz(ZONE)
    day = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[local.date().day_of_week().value - 1]
    return f"{day} {local.day} {local.hour:02}:{local.minute:02}"


# --- the journeys


def welcome() -> jk.Journey:
    return jk.journey("Welcome").on_event("signed_up").send(email=WELCOME).exit()


def shipped() -> jk.Journey:
    return (
        jk.journey("Shipped")
          .on_event("shipped").reenter()
          .send(email=SHIPPED, category="transactional")
          .exit()
    )  # fmt: skip


def ranks() -> jk.Journey:
    return jk.journey("Ranks").on_event("ranked").reenter().send(email=RANK).exit()


def later() -> jk.Journey:
    return jk.journey("Later").on_event("played").wait("1h").send(email=RANK).exit()


def gift() -> jk.Journey:
    return jk.journey("Gift").on_event("turned_30").send(email=BIRTHDAY).exit()


def offer() -> jk.Journey:
    return jk.journey("Offer").on_event("browsed").reenter().send(push=PUSH, email=OFFER).exit()


def office() -> jk.Journey:
    return (
        jk.journey("Office hours")
          .on_event("asked")
          .send_window(from_="09:00", to="17:00")
          .send(email=OFFER)
          .exit()
    )  # fmt: skip


def trial() -> jk.Journey:
    return (
        jk.journey("Trial")
          .on_event("tried")
          .split("half", holdout=50, A=lambda j: j)
          .send(email=OFFER)
          .exit()
    )  # fmt: skip


def booking() -> jk.Journey:
    return (
        jk.journey("Booking")
          .on_event("booked").reenter()
          .send(sms=REMINDER)
          .wait("7d", id="a_week")
          .send(sms=REMINDER)
          .exit()
    )  # fmt: skip


def call() -> jk.Journey:
    return (
        jk.journey("Call")
          .on_event("left_number")
          .task("call", title="Call back")
          .wait_for({"call_connected": lambda j: j.exit(id="talked")}, timeout="2d",
                    on_timeout=lambda j: j.send(email=OFFER).exit(id="wrote"))
    )  # fmt: skip


# --- the page


async def told(folder: Path) -> str:
    """The whole page, from a run on an empty SQLite file in this folder."""
    clock = VirtualClock(Instant(f"{MONDAY}07:00:00Z"))
    database = Database(f"sqlite:///{folder}/page.db", clock=clock, chance=SeededChance(1))
    await migrate(database)
    try:
        story = Story(database, clock)
        await _begins(story)
        for part in (_goes_out, _consent, _caps, _quiet, _windows, _texts, _channels, _held_out):
            await part(story)
        for part in (_pauses, _stops, _by_hand):
            await part(story)
        return "\n\n".join(story.page) + "\n"
    finally:
        await database.close()


async def _begins(story: Story) -> None:
    for name, channel, texts in TEXTS:
        await save_template(story.database, ACCOUNT, name=name, channel=channel, texts=texts)
    await save_policy(story.database, ACCOUNT, POLICY)
    await story.knows("mina", MINA)
    story.writes("""
        # What is sent, and why

        A journey says that a message should go out. Whether it does is decided afterwards, by a
        row of questions that are asked of every message, and every answer is kept. On this page
        one customer, Mina, meets each of the questions once. It was written by
        `python -m tests.what_is_sent`, which lives through her days on a real store and copies
        what it finds there; a test compares the two.

        The questions come in this order, and the first that speaks against a message decides:

        1. Is the person held out? Then the walk withholds it, the table refuses it, and so does
           the dispatcher: three doors, each of which is enough.
        2. Does its journey let anything out, or is it paused, archived, deleted?
        3. Is there a text to send?
        4. Can this channel reach the person? If not, the next channel of the message is tried.
        5. Do they want it: is this channel, this category subscribed?
        6. Have they had enough for today (the account's day)?
        7. Is it a time for it: quiet hours, and 08:00 to 21:00 for every SMS?
        8. Does the text find every value that it prints?

        A message of the category `transactional` skips 6, the quiet hours of 7, and whatever was
        said about marketing in 5.
    """)
    story.writes(f"""
        Mina lives in Berlin and has an e-mail address and a telephone number, but no device for
        push messages. The account's policy:

        ```json
        {orjson.dumps(POLICY).decode()}
        ```
    """)


async def _goes_out(story: Story) -> None:
    story.writes("## Nothing speaks against it")
    await story.opens(welcome)
    await story.hears("signed_up")
    story.writes("The message goes out with her name filled in.")
    await story.shows()


async def _consent(story: Story) -> None:
    story.writes("## She does not want it")
    await story.opens(ranks)
    await story.opens(shipped)
    story.writes("On Tuesday Mina unsubscribes from marketing by e-mail. A day later:")
    await story.at("2026-06-02T08:00:00Z")
    await subscriptions.unsubscribe(
        story.database, ACCOUNT, "mina", "email", "marketing", source="preference page"
    )
    await story.at("2026-06-03T08:00:00Z")
    await story.hears("ranked", rank=3)
    await story.hears("shipped", parcel="P-17")
    story.writes("""
        The rank is marketing and stays here, once and for good: it is not tried again. The parcel
        is `transactional`, which she has to be told.
    """)
    await story.shows()
    await subscriptions.subscribe(
        story.database, ACCOUNT, "mina", "email", "marketing", source="preference page"
    )


async def _caps(story: Story) -> None:
    story.writes("""
        ## Enough for today

        On Thursday she has subscribed again, and climbs three times. Two messages a day are
        allowed from the budget `default`; the day is the account's.
    """)
    await story.at("2026-06-04T08:00:00Z")
    for rank in (9, 8, 7):
        await story.hears("ranked", rank=rank)
    await story.hears("shipped", parcel="P-18")
    await story.shows()
    story.writes("The third is withheld, the parcel is not counted and goes out.")


async def _quiet(story: Story) -> None:
    story.writes("""
        ## Not at this hour

        On Friday night at ten past eleven she climbs once more. The message is put aside until
        eight, with the values of the event that caused it, since that event cannot be read
        again; her journey does not wait for it.
    """)
    await story.at("2026-06-05T21:10:00Z")
    await story.hears("ranked", rank=6)
    await story.shows()
    await story.at("2026-06-06T06:30:00Z")
    story.writes("In the morning every question is asked anew, and it goes out.")
    await story.shows()


async def _windows(story: Story) -> None:
    story.writes("""
        A send window of a journey is another thing: it holds the person at the step, and nothing
        is made before it opens. On Saturday:
    """)
    journey_id = await story.opens(office)
    await story.hears("asked")
    await story.stands(journey_id)
    await story.at("2026-06-08T07:00:00Z")
    story.writes("On Monday at nine:")
    await story.shows()


async def _texts(story: Story) -> None:
    story.writes("""
        ## A hole in the text

        A text that names a value nobody has is not sent with a hole in it. Mina never told us a
        nickname, and behind a wait there is no event any more whose rank could be printed.
    """)
    await story.opens(gift)
    await story.opens(later)
    await story.at("2026-06-09T08:00:00Z")
    await story.hears("turned_30")
    await story.hears("played", rank=1)
    await story.at("2026-06-09T10:00:00Z")
    await story.shows()


async def _channels(story: Story) -> None:
    story.writes("""
        ## Another channel

        `send(push=…, email=…)` tries one after the other. Having no device speaks against the
        channel, so the mail goes out. Had she unsubscribed from push messages, that would have
        been her answer, and nobody looks for a way around it.
    """)
    await story.opens(offer)
    await story.at("2026-06-10T08:00:00Z")
    await story.hears("browsed")
    await story.shows()
    await story.at("2026-06-11T08:00:00Z")
    await subscriptions.unsubscribe(
        story.database, ACCOUNT, "mina", "push", "marketing", source="device settings"
    )
    await story.knows("mina", {"push_token": "device-1"})
    await story.hears("browsed")
    story.writes("The next day she has a device, and has said no to push messages:")
    await story.shows()


async def _held_out(story: Story) -> None:
    story.writes("""
        ## Held out

        Half of those who try are held out, by a hash of who they are: Mina is treated, her
        neighbour Omid is not. He walks the same way and is sent nothing, which is what makes the
        difference between the two measurable.
    """)
    await story.opens(trial)
    await story.at("2026-06-12T08:00:00Z")
    await story.knows("omid", {**MINA, "name": "Omid", "email": "omid@example.com"})
    await story.hears("tried", "omid")
    await story.hears("tried")
    await story.shows("mina", "omid")


async def _pauses(story: Story) -> None:
    story.writes("""
        ## The journey stands still

        `pause(…, "freeze")` stops everybody where they are and holds what is on its way.
        (Without a word about it, a pause only lets nobody new in.)
    """)
    journey_id = await story.opens(booking)
    await story.at("2026-06-15T08:00:00Z")
    await story.hears("booked")
    await lifecycle.pause(story.runtime, ACCOUNT, journey_id, "freeze")
    await story.at("2026-06-23T08:00:00Z")
    story.writes("Frozen on Monday, for longer than the wait of a week:")
    await story.shows()
    await story.stands(journey_id)
    await lifecycle.resume(story.runtime, ACCOUNT, journey_id)
    await story.at("2026-06-23T08:05:00Z")
    story.writes("When it is resumed, what is overdue happens once:")
    await story.shows()
    await story.stands(journey_id)


async def _stops(story: Story) -> None:
    story.writes("""
        ## STOP

        She books again, and answers the message with STOP. That ends every journey she is in, and
        no SMS goes out to her again, not even a transactional one, until she writes START.
    """)
    await story.at("2026-06-24T08:00:00Z")
    await story.hears("booked")
    received = await inbound.receive(
        story.runtime, ACCOUNT, inbound.Inbound("sms", MINA["phone"], " Stop. ", id="in-1")
    )
    await story.works()
    await story.shows()
    where = await people.where_is(story.database, ACCOUNT, "mina")
    inside = sum(found.status == "waiting" for found in where)
    story.writes(f"Taken as an opt-out: {received.is_opt_out}. Journeys she is in: {inside}.")
    await story.at("2026-06-25T08:00:00Z")
    await story.hears("booked")
    story.writes("The day after, she books a third time:")
    await story.shows()


async def _by_hand(story: Story) -> None:
    story.writes("""
        ## What a person does

        A task is an effect too: it is withheld from who is held out, and its outcome is a signal
        that wakes whoever waits for it.
    """)
    journey_id = await story.opens(call)
    await story.at("2026-06-26T08:00:00Z")
    await story.hears("left_number")
    [task] = await tasks.list_tasks(story.database, ACCOUNT, status="open")
    story.writes(f"On the list: `{task.task}`, “{task.title}”, for {task.user_id}.")
    await tasks.complete_task(story.runtime, ACCOUNT, task.task_id, "connected", by="Jo")
    await story.works()
    story.writes("Jo calls and reports `connected`:")
    await story.stands(journey_id)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(asyncio.run(told(Path(folder))))


if __name__ == "__main__":
    main()
