"""What may go out: asked of every offer that reaches the outside, by the referee's own rules.

Only an offer of the worker that claimed the effect last is judged: one that was stopped in the
middle offers what it had been allowed to, and the other one has asked since.
"""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime
from typing import Any, NamedTuple

from journeykit_server.delivery import Item
from tests.sim.outside import asked_for

HOUR = 3_600_000_000  # microseconds


class Claim(NamedTuple):
    """By whom, at which place of the log, and what their clock said."""

    process: str
    seq: int
    at: int


class Gates:
    """Remembers who claimed what; `offered` says what is wrong with an offer, "" if nothing is."""

    def __init__(self, raw: sqlite3.Connection, policy: dict[str, Any] | None) -> None:
        self.raw = raw
        self.policy = policy or {}
        self.claims: dict[str, Claim] = {}

    def claimed(self, process: str, row: sqlite3.Row, now: int) -> None:
        self.claims[row["user_id"]] = Claim(process, row["seq"], now)

    def offered(self, process: str, item: Item, now: int) -> str:
        name = asked_for(item)
        claim = self.claims.get(name)
        if claim is None or claim.process != process:
            return ""
        if self._stood_still(item, claim):
            return f'16: "{name}" went out while its journey stood still'
        if item.kind != "send":
            return ""
        if self._was_unwanted(item, claim):
            return f'29: "{name}" went to somebody who had said no'
        if self._is_uncounted(name, item):
            return f'30: "{name}" went out and does not count'
        if self._is_quiet(claim.at) and self._is_quiet(now) and 0 <= now - claim.at < HOUR:
            return f'30: "{name}" went out when it was quiet'
        return ""

    def _stood_still(self, item: Item, claim: Claim) -> bool:
        row = self.raw.execute(LAST_DOOR, (item.journey_id,)).fetchone()
        return row is not None and not row["number"] and bool(row["seq"] < claim.seq)

    def _was_unwanted(self, item: Item, claim: Claim) -> bool:
        (last,) = self.raw.execute(LAST_WORD, (item.user_id,)).fetchone()
        if last is None or last > claim.seq:
            return False
        said = {(row[0], row[1]): row[2] for row in self.raw.execute(SAID, (item.user_id,))}
        channel = str(item.payload["channel"])
        if "unsubscribed" in (said.get((channel, "*")), said.get(("*", "*"))):
            return True
        asked = [(channel, "marketing"), ("*", "marketing"), (channel, "*"), ("*", "*")]
        return next((said[key] for key in asked if key in said), "") == "unsubscribed"

    def _is_uncounted(self, name: str, item: Item) -> bool:
        if not self.policy.get("caps"):
            return False
        return self.raw.execute(COUNTS, (item.user_id, name)).fetchone() is None

    def _is_quiet(self, at: int) -> bool:
        """Everybody here lives where the account does, in UTC."""
        quiet = self.policy.get("quiet_hours")
        if quiet is None:
            return False
        clock = f"{datetime.fromtimestamp(at / 1e6, UTC):%H:%M}"
        return bool(clock >= quiet["from"] or clock < quiet["to"])


def store_policy(raw: sqlite3.Connection, tenant_id: int, policy: dict[str, Any]) -> None:
    """The account has said so from the beginning."""
    raw.execute(ADD_POLICY, (tenant_id, json.dumps(policy)))


LAST_DOOR = """
    SELECT seq, number FROM sim_log WHERE what = 'door' AND journey_id = ?
    ORDER BY seq DESC LIMIT 1"""
LAST_WORD = "SELECT max(seq) FROM sim_log WHERE what = 'said' AND user_id = ?"
SAID = "SELECT channel, category, state FROM subscriptions WHERE user_id = ?"
COUNTS = "SELECT 1 FROM budget_uses WHERE user_id = ? AND message_id = ?"
ADD_POLICY = """
    INSERT INTO policies (tenant_id, version, document, saved_at, saved_token)
    VALUES (?, 1, ?, 0, '')"""
