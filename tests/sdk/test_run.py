"""What a notebook gets back: the trace of one person, the replay of a history, and what is said
of a person, a moment or a frame that cannot be used."""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from whenever import Instant, TimeDelta

import journeykit as jk
from journeykit.given import interval_of, moment_of, person_of
from journeykit.history import BadHistory
from journeykit.mistake import JourneyError
from journeykit_engine.instance import Happened, Person
from journeykit_engine.replay import Line

TEN = "2026-06-01T10:00:00Z"
NOON = "2026-06-01T12:00:00Z"
ROWS: list[dict[str, Any]] = [
    {"userId": "ann", "event": "added", "properties": {"value": 20}, "timestamp": TEN},
    {"userId": "bob", "event": "added", "timestamp": "2026-06-01T10:30:00Z"},
]


@pytest.fixture
def cart() -> jk.Journey:
    return (
        jk.journey("Cart", journey_id=1, version=2).on_event("added").wait("1h").send(push=3).exit()
    )


@pytest.fixture
def plans() -> jk.Journey:
    """Sends only to those who are on the plan "pro"."""
    return (
        jk.journey("Plans", journey_id=1)
        .on_event("added")
        .when(jk.trait("plan") == "pro", yes=lambda j: j.send(push=3).exit())
        .exit()
    )


def mistake(act: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(JourneyError) as caught:
        act()
    return caught.value.code, str(caught.value)


# One person.


def test_a_trace_reads_as_what_happened(cart: jk.Journey) -> None:
    trace = cart.simulate("ann", TEN)

    assert repr(trace) == (
        '"ann" walks "Cart"\n'
        "  visited  trigger: trigger\n"
        "  wait     wait_1h: until 2026-06-01T11:00:00Z\n"
        "  visited  send_push_3: action\n"
        "  effect   send_push_3: send\n"
        "  visited  exit: exit\n"
        "  end      exit: completed\n"
        'The person completes the journey at "exit".'
    )
    assert (trace.sends, trace.outcome) == (1, 'The person completes the journey at "exit".')
    assert [step["node_id"] for step in trace.steps] == [
        step["node_id"] for step in trace.to_dict()["steps"]
    ]


def test_a_trace_draws_the_path_lit_up(cart: jk.Journey) -> None:
    bundle = cart.simulate("ann", TEN)._repr_mimebundle_()

    assert bundle["image/svg+xml"] != cart._repr_mimebundle_()["image/svg+xml"]
    assert bundle["text/plain"] == repr(cart.simulate("ann", TEN))


def test_a_draft_is_walked_and_says_that_it_is_one() -> None:
    draft = jk.Journey.from_json(
        {
            "entry_id": "t",
            "nodes": [
                {"id": "t", "kind": "trigger", "trigger": {"kind": "api"}, "next": "s"},
                {"id": "s", "kind": "action", "action": {"kind": "send"}},
            ],
        }
    )

    first, *_, last = repr(draft.simulate("ann", TEN)).splitlines()

    assert first == '"ann" walks the journey'
    assert last == "2 problems block publishing; validate lists them."


def test_a_simulation_sees_the_real_person(plans: jk.Journey) -> None:
    assert plans.simulate({"user_id": "ann", "traits": {"plan": "pro"}}, TEN).sends == 1
    assert plans.simulate({"user_id": "ann", "traits": {"plan": "free"}}, TEN).sends == 0


def test_now_is_when_a_simulation_begins_unless_it_is_said(cart: jk.Journey) -> None:
    before = Instant.now().round("second", mode="floor")
    told = cart.simulate("ann").steps[1]["detail"]
    began = moment_of("until", told.removeprefix("until ")) - TimeDelta(hours=1)

    assert before <= began <= Instant.now()


def test_inside_a_running_loop_everything_works_as_outside(
    cart: jk.Journey, cases: Mapping[str, dict[str, Any]]
) -> None:
    assert cases["nb-inside-running-loop"]["expect"] == {"exception": None}

    async def cell() -> tuple[str, dict[str, Any]]:
        return repr(cart.simulate("ann", TEN)), cart.replay(ROWS, until=NOON).summary

    outside = repr(cart.simulate("ann", TEN)), cart.replay(ROWS, until=NOON).summary
    assert asyncio.run(cell()) == outside


# Who a person is.


def test_a_person_is_given_in_any_of_these_ways() -> None:
    whole = {
        "user_id": 7,
        "traits": {"plan": "pro"},
        "timezone": "Asia/Tehran",
        "events": [{"event": "bought", "timestamp": TEN, "properties": {"value": 1}}],
        "segments": [4],
    }

    assert person_of("7") == person_of(7) == Person("7")  # type: ignore[arg-type]
    assert person_of(Person("7")) == Person("7")
    assert person_of({"userId": "7"}) == Person("7")
    bought = Happened(Instant(TEN), {"value": 1}, "")
    assert person_of(whole) == Person(
        "7", {"plan": "pro"}, "Asia/Tehran", {"bought": [bought]}, frozenset({4})
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, 'the person: "userId" is missing. Say who it was, as "7".'),
        (
            {"user_id": "a", "traits": 3},
            'the person: "traits" must be an object, not 3. Write {…}.',
        ),
        (
            {"user_id": "a", "segments": "4"},
            '"segments" of the person must be a list of whole numbers, not "4". Write [4, 7].',
        ),
        (
            {"user_id": "a", "segments": [True]},
            '"segments" of the person must be a list of whole numbers, not a list. Write [4, 7].',
        ),
        (
            {"user_id": "a", "events": 3},
            '"events" of the person must be a list of objects, not 3. '
            'Write [{"event": "purchase", "timestamp": "2026-06-01T10:00:00Z"}].',
        ),
        (
            {"user_id": "a", "events": [{"event": "x"}]},
            "the person's event 1: "
            '"timestamp" is missing. Say when it was, as "2026-06-01T10:00:00Z".',
        ),
        (
            "",
            "The user id is empty; expected a text or a whole number. "
            'Send the id as a text, for example "7".',
        ),
    ],
)
def test_a_person_that_cannot_be_used_is_told(given: Any, told: str) -> None:
    with pytest.raises(ValueError) as caught:
        person_of(given)

    assert str(caught.value) == told


# Moments and durations.


def test_a_moment_is_given_in_any_of_these_ways() -> None:
    tehran = dt.datetime(2026, 6, 1, 13, 30, tzinfo=ZoneInfo("Asia/Tehran"))

    for given in (TEN, "2026-06-01T13:30:00+03:30", tehran, Instant(TEN)):
        assert moment_of("at", given) == Instant(TEN)


@pytest.mark.parametrize("name", ["at", "since", "until"])
def test_a_moment_without_a_zone_is_refused(name: str, cart: jk.Journey) -> None:
    naive = dt.datetime(2026, 6, 1, 10)
    call: dict[str, Callable[[], object]] = {
        "at": lambda: cart.simulate("ann", naive),
        "since": lambda: cart.replay(ROWS, since=naive),
        "until": lambda: cart.replay(ROWS, until=naive),
    }

    assert mistake(call[name]) == (
        "NAIVE_DATETIME",
        f'"{name}" is "2026-06-01T10:00:00", which does not say in which zone. '
        'Attach a timezone, as "2026-06-01T10:00:00Z" for UTC.',
    )


@pytest.mark.parametrize(("given", "shown"), [("NAIVE", '"NAIVE"'), (5, "5"), (None, "null")])
def test_what_is_no_moment_is_refused(given: object, shown: str) -> None:
    assert mistake(lambda: moment_of("until", given)) == (
        "BAD_INSTANT",
        f'"until" is {shown}, which is no instant. Write it like "2026-06-01T10:00:00Z".',
    )


def test_an_end_before_the_beginning_is_refused(cart: jk.Journey) -> None:
    assert mistake(lambda: cart.replay(ROWS, since=NOON, until=TEN)) == (
        "BAD_SPAN",
        '"until" is 2026-06-01T10:00:00Z, before "since", 2026-06-01T12:00:00Z. '
        "Give a later end, or leave one of them out.",
    )


def test_looks_are_minutes_or_hours_apart() -> None:
    assert (interval_of("30m"), interval_of("24h")) == (TimeDelta(minutes=30), TimeDelta(hours=24))


@pytest.mark.parametrize("text", ["1d", "x", "0h", ""])
def test_any_other_time_between_looks_is_refused(text: str) -> None:
    assert mistake(lambda: interval_of(text)) == (
        "BAD_DURATION",
        f'"scan_every" is "{text}", which is no time between two looks. '
        'Write minutes or hours: "30m", "1h", "24h".',
    )


@pytest.mark.parametrize("call", ["simulate", "replay"])
def test_an_unknown_zone_of_the_account_is_refused(call: str, cart: jk.Journey) -> None:
    given: Any = "ann" if call == "simulate" else ROWS
    code, told = mistake(lambda: getattr(cart, call)(given, account_timezone="Asia/Tehrn"))

    assert code == "BAD_TIMEZONE"
    assert told.startswith('The time zone "Asia/Tehrn" is unknown. Did you mean "Asia/Tehran"?')


# A history.


def test_a_replay_tells_everything_and_its_sums(cart: jk.Journey) -> None:
    replayed = cart.replay(ROWS, until=NOON)

    assert repr(replayed) == (
        '"Cart", replayed\n'
        "people             2\n"
        "events             2\n"
        "entries            2\n"
        "messages           2\n"
        "\n"
        "node           entered     exited suppressed    waiting\n"
        "trigger              2          0          0          0\n"
        "wait_1h              2          0          0          0\n"
        "send_push_3          2          0          0          0\n"
        "exit                 2          2          0          0\n"
        "left by completed: 2"
    )
    assert [record["what"] for record in replayed.of("ann")] == (
        [
            "entered",
            "visited",
            "visited",
            "waiting",
            "woke",
            "visited",
            "effect",
            "visited",
            "exited",
        ]
    )
    assert replayed.of("nobody") == []
    assert [(m["at"], m["effect"]["message_id"]) for m in replayed.messages] == [
        ("2026-06-01T11:00:00Z", "j1.v2.send_push_3.ann.e1"),
        ("2026-06-01T11:30:00Z", "j1.v2.send_push_3.bob.e1"),
    ]
    assert "image/svg+xml" in replayed._repr_mimebundle_()


def test_the_arms_of_a_split_are_told() -> None:
    halves = (
        jk.journey(journey_id=1)
        .on_event("added")
        .split("half", A=lambda j: j.send(push=3), B=lambda j: j.send(email=7))
        .exit()
    )
    told = repr(halves.replay(ROWS))

    assert told.splitlines()[-1].startswith('split "half": A ')


def test_a_file_rows_and_lines_are_the_same_history(cart: jk.Journey, tmp_path: Path) -> None:
    events, people = tmp_path / "events.jsonl", tmp_path / "people.jsonl"
    events.write_text(
        '{"type":"track","userId":"ann","event":"added","properties":{"value":20},'
        f'"timestamp":"{TEN}"}}\n'
        '{"type":"track","userId":"bob","event":"added","timestamp":"2026-06-01T10:30:00Z"}'
    )
    people.write_text('{"userId":"cid","traits":{}}')
    rows = cart.replay(ROWS, [{"userId": "cid"}], until=NOON)
    bob = Line("track", "bob", Instant("2026-06-01T10:30:00Z"), "added")
    lines = [bob, Line("track", "ann", Instant(TEN), "added", {"value": 20})]

    for read in (
        cart.replay(events, people, until=NOON),
        cart.replay(str(events), str(people), until=NOON),
        cart.replay(lines, [{"user_id": "cid"}], until=NOON),
    ):
        assert (read.journal, read.summary) == (rows.journal, rows.summary)


def test_a_journey_with_problems_is_not_replayed() -> None:
    broken = jk.Journey.from_json({"entry_id": "gone", "nodes": []})

    code, told = mistake(lambda: broken.replay(ROWS))
    assert code == "NO_ENTRY"
    assert told.endswith("See .validate() for all.")


def test_templates_withhold_what_they_cannot_fill(cart: jk.Journey) -> None:
    replayed = cart.replay(
        ROWS,
        [{"userId": "ann", "traits": {"name": "Ann"}}],
        until=NOON,
        templates={3: "Hi {{ name }}"},
    )

    assert [message["user_id"] for message in replayed.messages] == ["ann"]
    assert replayed.summary["nodes"]["send_push_3"]["suppressed"] == 1


def test_a_single_object_is_no_history(cart: jk.Journey) -> None:
    assert mistake(lambda: cart.replay(ROWS[0])) == (
        "WRONG_TYPE",
        "Expected rows, not a single object. Give a list of rows or a frame.",
    )


@pytest.mark.parametrize("row", ["added", ("ann", "added"), 3])
def test_a_row_that_is_none_is_told(row: object, cart: jk.Journey) -> None:
    with pytest.raises(BadHistory, match=r"^row 1: expected a dict, not "):
        cart.replay([row])


def test_the_collector_runs_again_after_a_replay_however_it_ends(cart: jk.Journey) -> None:
    assert gc.isenabled()
    cart.replay(ROWS)
    assert gc.isenabled()
    with pytest.raises(BadHistory):
        cart.replay([{}])
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off(cart: jk.Journey) -> None:
    gc.disable()
    try:
        cart.replay(ROWS)
        assert not gc.isenabled()
    finally:
        gc.enable()


# Frames.


def frame_of(rows: list[dict[str, Any]]) -> Any:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows)
    frame["timestamp"] = pandas.to_datetime(frame["timestamp"])
    return frame


def test_a_frame_is_a_history(cart: jk.Journey) -> None:
    frame = frame_of(ROWS).rename(columns={"userId": "user_id"})
    rows = cart.replay(ROWS, until=NOON)

    read = cart.replay(frame, until=frame["timestamp"].max() + dt.timedelta(hours=1.5))

    assert (read.journal, read.summary) == (rows.journal, rows.summary)


def test_cells_that_are_not_filled_are_absent(cart: jk.Journey) -> None:
    rows: list[dict[str, Any]] = [
        {**ROWS[0], "message_id": "m1"},
        {**ROWS[0], "type": "track", "message_id": "m1"},
        {"userId": "ann", "type": "identify", "traits": {"x": 1}, "timestamp": NOON},
    ]

    summary = cart.replay(frame_of(rows)).summary

    assert (summary["events"], summary["entries"], summary["messages"]) == (2, 1, 1)


def test_numbers_and_dates_of_a_frame_are_what_rules_read() -> None:
    pandas = pytest.importorskip("pandas")
    numbers = pandas.Series([7, 8])
    old = (
        jk.journey(journey_id=1)
        .on_event("added", where=jk.prop("value") == 7)
        .when(
            (jk.trait("age") == 8)
            & jk.trait("born").before("2000-01-01")
            & jk.trait("gap").missing(),
            yes=lambda j: j.send(push=3).exit(),
        )
        .exit()
    )
    traits = {
        "age": numbers[1],
        "born": pandas.Timestamp("1990-01-01", tz="UTC"),
        "gap": float("nan"),
    }

    replayed = old.replay(
        [{**ROWS[0], "properties": {"value": numbers[0]}}], [{"userId": "ann", "traits": traits}]
    )

    assert replayed.summary["messages"] == 1


def test_a_naive_column_is_refused(cart: jk.Journey) -> None:
    frame = frame_of(ROWS)
    frame["timestamp"] = frame["timestamp"].dt.tz_localize(None)

    with pytest.raises(BadHistory) as caught:
        cart.replay(frame)

    assert str(caught.value) == (
        'row 1: "timestamp": NAIVE_DATETIME: "2026-06-01T10:00:00" does not say in which zone; '
        'attach one, as "2026-06-01T10:00:00Z" for UTC or "2026-06-01T10:00:00+02:00".'
    )


def test_a_polars_frame_is_a_history(cart: jk.Journey) -> None:
    polars = pytest.importorskip("polars")
    rows = [{**row, "timestamp": moment_of("", row["timestamp"]).to_stdlib()} for row in ROWS]
    expected = cart.replay(ROWS, until=NOON)

    read = cart.replay(polars.DataFrame(rows), until=NOON)

    assert (read.journal, read.summary) == (expected.journal, expected.summary)


def test_a_journal_becomes_a_frame(cart: jk.Journey) -> None:
    pandas = pytest.importorskip("pandas")
    frame = cart.replay(ROWS, until=NOON).to_frame()

    assert list(frame.columns[:5]) == ["at", "user_id", "entry", "what", "node_id"]
    assert len(frame) == 18
    assert frame["at"].iloc[0] == pandas.Timestamp(TEN)
    assert (frame["what"] == "effect").sum() == 2


def test_a_journal_of_nothing_becomes_an_empty_frame(cart: jk.Journey) -> None:
    pytest.importorskip("pandas")
    frame = cart.replay([]).to_frame()

    assert list(frame.columns) == ["at", "user_id", "entry", "what", "node_id"]
    assert len(frame) == 0


def test_without_pandas_a_frame_says_what_to_install(
    cart: jk.Journey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(ImportError) as caught:
        cart.replay(ROWS).to_frame()

    assert str(caught.value) == 'A frame needs pandas: pip install "journeykit[notebooks]".'


def test_of_two_ways_to_one_node_only_the_taken_one_is_lit_and_each_has_its_figure() -> None:
    both = (
        jk.journey("Arms")
        .on_event("joined")
        .split("test", holdout=50, A=lambda j: j.send(push=3), B=lambda j: j.send(push=3, id="b"))
        .exit()
    )
    held = next(str(i) for i in range(99) if _arm(both, str(i)) == "on_holdout")
    treated = next(str(i) for i in range(99) if _arm(both, str(i)) == "A")

    assert (
        both.simulate(held, "2026-06-01T10:00:00Z").draw().svg
        != both.simulate(treated, "2026-06-01T10:00:00Z").draw().svg
    )
    rows = [
        {"userId": person, "event": "joined", "timestamp": "2026-06-01T10:00:00Z"}
        for person in map(str, range(40))
    ]
    replayed = both.replay(rows)
    arms = replayed.summary["arms"]["test"]
    drawn = replayed.draw().dot
    assert arms["A"] + arms["B"] + arms["holdout"] == 40
    assert f"A 25 % · {arms['A']}" in drawn
    assert f"held out 50 % · {arms['holdout']}" in drawn


def _arm(journey: jk.Journey, person: str) -> str:
    return journey.simulate(person, "2026-06-01T10:00:00Z").simulation.taken[0][1]


def test_the_way_out_of_a_wait_is_told_by_its_port() -> None:
    waits = (
        jk.journey("Waits")
        .on_event("joined")
        .wait_for("paid", timeout="1d", id="one")
        .wait_for({"reply": ..., "won": ...}, timeout="1d", on_timeout=..., id="many")
        .exit()
    )
    late = {"one": "timeout", "many": "timeout"}
    by_event = waits.simulate("u", "2026-06-01T10:00:00Z").simulation.taken
    by_time = waits.simulate("u", "2026-06-01T10:00:00Z", answers=late).simulation.taken

    assert by_event == (("one", "next"), ("many", "reply"))
    assert by_time == (("one", "next"), ("many", "on_timeout"))


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(JourneyError) as caught:
        jk.journey().on_event("joined").exit().replay(5)

    assert str(caught.value) == (
        "Expected rows, not 5. Give a list of rows, a frame or a file's path."
    )


def test_a_simulation_of_now_is_told_in_whole_seconds() -> None:
    waits = jk.journey().on_event("joined").wait("1h").exit()

    assert "." not in waits.simulate("u").steps[1]["detail"]
