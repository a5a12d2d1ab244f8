"""A shop that sends: it has texts and a policy, and a post office that writes down what it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from journeykit_server import subscriptions
from journeykit_server.database import Database
from journeykit_server.delivery import Delivered, Item, Outcome
from journeykit_server.outbox import Settled
from journeykit_server.policy import save_policy
from journeykit_server.tables import budget_uses, messages
from journeykit_server.templates import save_template
from tests.engine.journeys import Value
from tests.server.shop import Shop, track

HELLO = {"subject": "Hello", "body": "Hi {{ name }}"}


def message(id: str = "a", next: str = "", **send: Any) -> Value:
    """A node that sends the template 1 by e-mail, if nothing else is said."""
    config = {"kind": "send", "channel": "email", "template_id": 1, **send}
    if "channels" in send:
        del config["channel"], config["template_id"]
    return {"id": id, "kind": "action", "action": config, "next": next}


def by(*channels: str, mode: str = "", first: int = 1) -> Mapping[str, Any]:
    """These channels in turn, or all of them (mode "all"); templates are numbered from `first`."""
    media = [{"channel": each, "template_id": first + n} for n, each in enumerate(channels)]
    return {"channels": media, "channel_mode": mode}


class Office:
    """Takes every item, except where it was told how to answer an id, time after time."""

    def __init__(self) -> None:
        self.script: dict[str, list[Outcome]] = {}
        self.got: list[Item] = []

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        self.got.extend(items)
        return [self._answer(item) for item in items]

    def _answer(self, item: Item) -> Outcome:
        left = self.script.get(item.message_id)
        return left.pop(0) if left else Delivered(str(item.payload.get("channel") or ""))


class Post(Shop):
    def __init__(self, database: Database) -> None:
        self.office = Office()
        super().__init__(database, provider=self.office)

    async def writes(self, channel: str = "email", category: str = "", **texts: str) -> int:
        """Save a template; its number."""
        said = texts or HELLO
        saved = await save_template(
            self.database, 1, name=f"{channel} text", channel=channel, texts=said, category=category
        )
        return saved.template_id

    async def decides(self, **policy: Any) -> int:
        """Save a policy; its version."""
        return await save_policy(self.database, 1, policy)

    async def signs_up(self, *user_ids: str, **traits: Any) -> None:
        """Each of them becomes known and enters."""
        for user_id in user_ids:
            await self.learns(user_id, **{"name": user_id, "email": f"{user_id}@x.org", **traits})
            await self.hears(track(user_id, "signed_up", **EVENT))

    async def refuses(self, user_id: str, channel: str = "*", category: str = "*") -> None:
        await subscriptions.unsubscribe(self.database, 1, user_id, channel, category, source="test")

    async def mails(self) -> Settled:
        """Deliver until there is nothing left that is due; the sums."""
        sums = Settled()
        while any(settled := await self.runtime.deliver()):
            sums = Settled(*map(sum, zip(sums, settled, strict=True)))
        return sums

    def arrived(self) -> list[str]:
        """What the office got: "email ann@x.org Hi ann"."""
        return [
            " ".join([i.payload["channel"], str(i.payload["address"]), i.payload["texts"]["body"]])
            for i in self.office.got
        ]

    async def log(self) -> list[str]:
        """What became of each message: "suppressed email capped"."""
        rows = await self.rows(messages)
        return [
            " ".join(filter(None, (row.state, row.channel, row.reason, row.detail)))
            for row in sorted(rows, key=lambda row: (row.settled_at, row.message_id))
        ]

    async def places(self) -> list[str]:
        """The messages that count against caps."""
        return [row.message_id for row in await self.rows(budget_uses)]


EVENT = {"rank": 4}
