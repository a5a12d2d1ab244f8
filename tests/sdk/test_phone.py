"""Text messages go by the clock of the number."""

from __future__ import annotations

import journeykit as jk


def test_a_text_message_goes_by_the_clock_of_the_number() -> None:
    reminder = jk.journey("Reminder").on_event("cart").send(sms=1)
    rows = [{"userId": "u", "event": "cart", "timestamp": "2026-07-06T12:30:00Z"}]
    people = [{"userId": "u", "traits": {"phone": "+12135550100"}}]
    replayed = reminder.replay(
        rows, people, until="2026-07-07T00:00:00Z", account_timezone="America/New_York"
    )

    assert [message["at"] for message in replayed.messages] == ["2026-07-06T15:00:00Z"]
    assert (
        reminder.simulate(
            {"user_id": "u", "traits": {"phone": "+12135550100"}}, "2026-07-06T12:30:00Z"
        ).steps[1]["detail"]
        == "for its send window, until 2026-07-06T15:00:00Z"
    )
