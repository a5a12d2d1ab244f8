"""What happens in a seed: people, journeys, and forty days of events."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from whenever import Date

from journeykit_server.incoming import Incoming

TENANT = 1
DAYS = 40  # of events, with faults
DAY = 86_400.0  # virtual seconds
NEARBY = 0.4  # of what happens has something else happen soon after
START_DAY = Date(2026, 6, 1)
PEOPLE = ("ann", "bob.1", "چراغ", "d%2", "eve", "fay")

Document = dict[str, Any]


def _node(node_id: str, kind: str, **fields: Any) -> Document:
    return {"id": node_id, "kind": kind, **fields}


def _on(event: str, then: str) -> Document:
    return _node("start", "trigger", trigger={"kind": "event", "event": event}, next=then)


def _wait(node_id: str, amount: int, unit: str, then: str) -> Document:
    config = {"kind": "duration", "amount": amount, "unit": unit}
    return _node(node_id, "wait", wait=config, next=then)


def _send(node_id: str, then: str, template: int = 1) -> Document:
    config = {"kind": "send", "channel": "email", "template_id": template}
    return _node(node_id, "action", action=config, next=then)


def _sends(node_id: str, then: str, *media: tuple[str, int]) -> Document:
    """A message with further channels, for whom the first one does not reach."""
    channels = [{"channel": channel, "template_id": template} for channel, template in media]
    config = {"kind": "send", "channels": channels}
    return _node(node_id, "action", action=config, next=then)


def _set(node_id: str, trait: str, value: Any, then: str) -> Document:
    config = {"kind": "update_trait", "trait": trait, "value": value}
    return _node(node_id, "action", action=config, next=then)


def _if(node_id: str, rule: Document, yes: str, no: str) -> Document:
    config = {"definition": {"root": rule}, "on_true": yes, "on_false": no}
    return _node(node_id, "condition", condition=config)


def _graph(*nodes: Document, **fields: Any) -> Document:
    return {"entry_id": "start", "nodes": [*nodes, _node("end", "exit")], **fields}


IS_PRO = {"trait": "plan", "op": "eq", "value": "pro"}
HAS_BOUGHT = {"event": "purchase", "op": "gte", "count": 1, "since": "entry"}


def trial(days: int = 1) -> Document:
    """Timed waits, sends, a trait that the walk writes and then asks about."""
    return _graph(
        _on("signup", "welcome"),
        _send("welcome", "pause"),
        _wait("pause", days, "day", "pro?"),
        _if("pro?", IS_PRO, "mark", "nudge"),
        _set("mark", "stage", "paid", "staged?"),
        _if("staged?", {"trait": "stage", "op": "eq", "value": "paid"}, "end", "nudge"),
        _send("nudge", "longer", 2),
        _wait("longer", 2, "day", "last"),
        _send("last", "end", 3),
        entry_rule="every_time",
        cooldown_hours=48,
    )


def cart(hours: int = 24) -> Document:
    """An event wait with a time-out, entered again and again."""
    wait = {"kind": "for_event", "event": "purchase", "timeout": "3d", "on_timeout": "remind"}
    return _graph(
        _on("cart", "await"),
        _node("await", "wait", wait=wait, next="thanks"),
        _send("thanks", "end", 4),
        _send("remind", "bought?", 5),
        _if("bought?", HAS_BOUGHT, "end", "again"),
        _send("again", "end", 6),
        entry_rule="every_time",
        cooldown_hours=hours,
        exit_criteria={"root": {"trait": "age", "op": "gt", "value": 50}},
    )


def digest() -> Document:
    """A loop with a message a week, for as long as the longest stay."""
    return _graph(
        _on("subscribe", "letter"),
        _send("letter", "week", 7),
        _wait("week", 1, "week", "letter"),
        max_duration_days=30,
        settings={"exit_on": ["unsubscribe"]},
    )


def test() -> Document:
    """Two arms and a holdout."""
    branches = [
        {"weight": 1, "next": "mail_a", "variant": "A"},
        {"weight": 1, "next": "mail_b", "variant": "B"},
    ]
    return _graph(
        _on("visit", "split"),
        _node("split", "split", split={"branches": branches, "holdout_percent": 40, "salt": "s"}),
        _send("mail_a", "rest", 8),
        _send("mail_b", "rest", 9),
        _wait("rest", 6, "hour", "seen"),
        _set("seen", "seen", True, "both"),
        _send("both", "end", 10),
    )


def daily() -> Document:
    """Once a calendar day, two messages in one step, and a window that they wait for."""
    window = {"days": ["mon", "tue", "wed", "thu", "fri"], "from": "09:00", "to": "17:30"}
    return _graph(
        _on("visit", "soon"),
        _wait("soon", 40, "minute", "one"),
        _send("one", "two", 11),
        _send("two", "end", 12),
        entry_rule="every_time",
        reentry_window="day",
        settings={"send_window": {**window, "tz": "contact"}, "jitter": "15m"},
    )


def leave() -> Document:
    """Exit criteria that an identify fulfils, and a segment."""
    add = {"kind": "add_to_segment", "segment_id": 5}
    return _graph(
        _on("signup", "join"),
        _node("join", "action", action=add, next="first"),
        _send("first", "ten", 13),
        _wait("ten", 10, "day", "member?"),
        _if("member?", {"segment": 5}, "second", "end"),
        _send("second", "end", 14),
        exit_criteria={"root": IS_PRO},
    )


def chain(target: int) -> Document:
    """Whoever buys is sent into another journey."""
    enter = {"kind": "enter_journey", "journey_id": target}
    return _graph(
        _on("purchase", "go"),
        _node("go", "action", action=enter, next="note"),
        _send("note", "end", 15),
        entry_rule="every_time",
        cooldown_hours=72,
    )


def called() -> Document:
    """Entered by a call or by another journey only."""
    return _graph(
        _node("start", "trigger", trigger={"kind": "api"}, next="hello"),
        _send("hello", "pause", 16),
        _wait("pause", 5, "hour", "bye"),
        _send("bye", "end", 17),
        entry_rule="every_time",
    )


def upgraded() -> Document:
    """A trait that changes."""
    return _graph(
        _node(
            "start", "trigger", trigger={"kind": "attribute_changed", "trait": "plan"}, next="mail"
        ),
        _send("mail", "end", 18),
        entry_rule="every_time",
    )


def found() -> Document:
    """Whoever is seen to have become pro, by whichever channel reaches them."""
    return _graph(
        _looked_for("segment_enter", "hello", definition={"root": IS_PRO}),
        _sends("hello", "day", ("push", 21), ("email", 22)),
        _wait("day", 1, "day", "again"),
        _send("again", "end", 23),
        entry_rule="every_time",
        settings={"exit_on": ["unsubscribe"]},
    )


def swept() -> Document:
    """Everybody who is not pro, each morning."""
    free = {"trait": "plan", "op": "eq", "value": "free"}
    return _graph(
        _looked_for("segment_periodic", "offer", definition={"root": free}, hours=[9]),
        _send("offer", "soon", 24),
        _wait("soon", 20, "hour", "more"),
        _send("more", "end", 25),
        entry_rule="every_time",
        cooldown_hours=72,
    )


def renewal() -> Document:
    """Two days before a date of each person's own, late in the evening."""
    return _graph(
        _looked_for("date", "remind", trait="renews", offset_days=2, annual=False, hour=22),
        _send("remind", "day", 26),
        _wait("day", 2, "day", "today"),
        _sends("today", "end", ("sms", 27), ("email", 28)),
        entry_rule="every_time",
    )


def noisy() -> Document:
    """Several messages a day with what the event said, at any hour, and an answer that is heard."""
    wait = {"kind": "for_event", "event": "purchase", "timeout": "5h", "on_timeout": "second"}
    return _graph(
        _on("ping", "first"),
        _send("first", "await", 29),
        _node("await", "wait", wait=wait, next="second"),
        _send("second", "hours", 30),
        _wait("hours", 3, "hour", "third"),
        _send("third", "end", 31),
        entry_rule="every_time",
    )


def _looked_for(kind: str, then: str, **asked: Any) -> Document:
    return _node("start", "trigger", trigger={"kind": kind, **asked}, next=then)


def spinning() -> Document:
    """Waits an hour and then turns in a circle, which no check would let pass."""
    return _graph(
        _on("glitch", "hour"),
        _wait("hour", 1, "hour", "a"),
        _set("a", "turn", 1, "b"),
        _set("b", "turn", 2, "a"),
    )


class Journey(NamedTuple):
    """A journey by its id, which is its place in `JOURNEYS` from 1."""

    name: str
    document: Document
    is_checked: bool = True  # else it is put into the database behind the check


CALLED = 8
SPINNING = 10
FOUND, SWEPT, RENEWAL, NOISY = 11, 12, 13, 14
LOOKED_FOR = (FOUND, SWEPT, RENEWAL)
HEARD = 10  # the journeys up to this id are entered by events alone, and every seed has some
JOURNEYS = (
    Journey("trial", trial()),
    Journey("cart", cart()),
    Journey("digest", digest()),
    Journey("test", test()),
    Journey("daily", daily()),
    Journey("leave", leave()),
    Journey("chain", chain(CALLED)),
    Journey("called", called()),
    Journey("upgraded", upgraded()),
    Journey("spinning", spinning(), is_checked=False),
    Journey("found", found()),
    Journey("swept", swept()),
    Journey("renewal", renewal()),
    Journey("noisy", noisy()),
)
REPUBLISHED: Mapping[int, tuple[Document, ...]] = {
    1: (trial(2), trial(3)),
    2: (cart(12), cart(1)),
}
"""Further versions of a journey, by its id."""

EVENTS = {
    1: ("signup", "identify"),
    2: ("cart", "cart", "cart", "purchase", "purchase", "identify"),
    3: ("subscribe", "unsubscribe"),
    4: ("visit",),
    5: ("visit", "visit"),
    6: ("signup", "identify"),
    7: ("purchase", "purchase"),
    8: ("enter", "purchase"),
    9: ("identify", "identify"),
    10: ("glitch",),
    FOUND: ("identify", "identify", "identify", "unsubscribe"),
    SWEPT: ("identify", "identify", "identify"),
    RENEWAL: ("identify", "identify", "identify"),
    NOISY: ("ping", "ping", "ping", "purchase"),
}
"""What people do who are in a journey."""


class Action(NamedTuple):
    """Something that a client does: sends events, or calls people into a journey."""

    at: float
    events: tuple[Incoming, ...] = ()
    entering: str = ""


class Workload(NamedTuple):
    """Everything that will be done, in the order of time, and to which journeys.

    `policy` is what the account allows, None where it has said nothing. `scans` is from when and
    until when (virtual seconds) the scanners look, which costs more than anything else.
    """

    people: tuple[str, ...]
    journeys: tuple[int, ...]
    actions: tuple[Action, ...]
    policy: Document | None = None
    scans: tuple[float, float] = (0.0, 0.0)


def draw(seed: int) -> Workload:
    """The workload of a seed."""
    drawn = random.Random(f"{seed}:workload")
    people = PEOPLE[: drawn.randint(2, len(PEOPLE))]
    journeys = tuple(sorted(drawn.sample(range(1, HEARD + 1), drawn.randint(1, 4))))
    if 7 in journeys and CALLED not in journeys:
        journeys = tuple(sorted((*journeys, CALLED)))
    names = [name for journey_id in journeys for name in EVENTS[journey_id]]
    times = [_time(drawn) for _ in range(drawn.randint(4, 11))]
    times += [at + drawn.uniform(0, 3 * 3_600.0) for at in times if drawn.random() < NEARBY]
    times.sort()
    actions = [_action(drawn, at, place, people, names) for place, at in enumerate(times)]
    return _with_more(seed, Workload(people, journeys, tuple(actions)))


def _with_more(seed: int, work: Workload) -> Workload:
    """Some seeds have a journey that people are looked for, or one that sends a lot; what an
    account allows, and people who want no more."""
    drawn = random.Random(f"{seed}:more")
    policy = drawn.choice(POLICIES) if drawn.random() < HAS_POLICY else None
    journeys: list[int] = []
    if drawn.random() < HAS_LOOKS:
        journeys.append(drawn.choice(LOOKED_FOR))
    if policy is not None or drawn.random() < HAS_NOISE:
        journeys.append(NOISY)
    if not journeys:
        return work
    last = drawn.uniform(*DAYS_OF_MORE) * DAY
    names = [name for journey_id in journeys for name in EVENTS[journey_id]]
    names += drawn.sample(SAYING, 2)
    times = sorted(drawn.uniform(0, last) for _ in range(drawn.randint(5, 10)))
    more = [_one_more(drawn, at, f"e+{n}", work.people, names) for n, at in enumerate(times)]
    actions = sorted((*work.actions, *more), key=lambda action: action.at)
    ids = tuple(sorted({*work.journeys, *journeys}))
    begin = last / 3 if journeys[0] in LOOKED_FOR else last
    return Workload(work.people, ids, tuple(actions), policy, (begin, last))


HAS_LOOKS, HAS_POLICY, HAS_NOISE = 0.15, 0.2, 0.05  # of all seeds
DAYS_OF_MORE = (4, 12)  # close enough for caps and looks to meet
POLICIES: tuple[Document, ...] = (
    {"quiet_hours": {"from": "20:00", "to": "09:30"}},
    {"caps": {"default": {"per_day": 1}}},
    {
        "quiet_hours": {"from": "22:00", "to": "08:00"},
        "caps": {"default": {"per_day": 2}},
        "channels_off": ["push"],
    },
)
SAYING = ("opt_out", "no email", "no marketing", "yes email", "yes all")
"""What people say about what they want to get."""
SAID: Mapping[str, Mapping[str, Any]] = {
    "no email": {"channel": "email", "state": "unsubscribed"},
    "no marketing": {"category": "marketing", "state": "unsubscribed"},
    "yes email": {"channel": "email", "state": "subscribed"},
    "yes all": {"category": "marketing", "state": "subscribed"},
}


def _one_more(
    drawn: random.Random, at: float, event_id: str, people: tuple[str, ...], names: list[str]
) -> Action:
    user_id, name = drawn.choice(people), drawn.choice(names)
    if name in SAID:
        said = Incoming("track", user_id, "subscription_changed", SAID[name], id=event_id)
        return Action(at, (said,))
    if name != "identify":
        return Action(at, (Incoming("track", user_id, name, {"amount": 1}, id=event_id),))
    plan, ahead = drawn.choice(("free", "pro")), drawn.randint(1, 6)
    renews = START_DAY.add(days=int(at // DAY) + ahead).format_iso()
    traits = {"plan": plan, "renews": renews}
    return Action(at, (Incoming("identify", user_id, "", traits, id=event_id),))


def few() -> Workload:
    """Little enough to be gone through once for each of its calls: a wait that an event answers,
    one that runs out, and a person whom one journey sends into another."""
    happened = ((1.0, "cart"), (0.2 * DAY, "purchase"), (2.0 * DAY, "cart"))
    actions = [
        Action(at, (Incoming("track", "ann", name, {"amount": 7}, id=f"e{place}"),))
        for place, (at, name) in enumerate(happened)
    ]
    return Workload(("ann",), (2, 7, CALLED), tuple(actions))


def _time(drawn: random.Random) -> float:
    """Some things happen at the very moment when a wait ends: whole hours and days are common."""
    at = drawn.uniform(0, DAYS * DAY)
    return at if drawn.random() < 0.5 else at - at % drawn.choice((3_600.0, DAY))


def _action(
    drawn: random.Random, at: float, place: int, people: tuple[str, ...], names: list[str]
) -> Action:
    name = drawn.choice(names)
    if name == "enter":
        return Action(at, entering=drawn.choice(people))
    many = drawn.choice((1, 1, 2, 4))
    events = [
        _incoming(drawn, f"e{place}.{number}", drawn.choice(people), drawn.choice(names))
        for number in range(many)
    ]
    return Action(at, tuple(event for event in events if event is not None))


def _incoming(drawn: random.Random, event_id: str, user_id: str, name: str) -> Incoming:
    if name == "identify":
        traits = {"plan": drawn.choice(("free", "pro")), "age": drawn.randint(20, 60)}
        return Incoming("identify", user_id, "", traits, id=event_id)
    if name == "enter":
        name = "visit"
    return Incoming("track", user_id, name, {"amount": drawn.randint(1, 99)}, id=event_id)
