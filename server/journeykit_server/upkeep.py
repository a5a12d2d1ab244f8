"""What nobody waits for and has to be done now and then: drained journeys are archived, the bin is
emptied, what is old is deleted."""

from __future__ import annotations

import logging

from journeykit_server import bin as recycle_bin
from journeykit_server import lifecycle, retention
from journeykit_server.retention import Place, Retention
from journeykit_server.runtime import Runtime

log = logging.getLogger("journeykit")

UPKEEP_SECONDS = 5.0  # between two turns: how long a drained journey stays unarchived
SELDOM_SECONDS = 3_600.0  # between two looks into the bin, and two rounds of deleting


class Upkeep:
    """One worker's part of it; any number may do it at once. `kept` says for how many days what is
    kept; nothing is deleted without it."""

    def __init__(self, runtime: Runtime, *, kept: Retention | None = None) -> None:
        self.runtime = runtime
        self.kept = kept
        self._seldom_at = float("-inf")  # monotonic
        self._place: Place | None = None
        self._is_deleting = False

    async def once(self) -> int:
        """A turn; how much was done, 0 where there is nothing to do now. Raises what
        `Database.run` raises."""
        done = await lifecycle.tidy_once(self.runtime)
        now = self.runtime.clock.monotonic()
        if now >= self._seldom_at:
            self._seldom_at = now + SELDOM_SECONDS
            self._is_deleting = self.kept is not None
            done += await recycle_bin.purge(self.runtime)
        return done + await self._delete()

    async def _delete(self) -> int:
        """A page of what is old, until the round is over."""
        if not self._is_deleting or self.kept is None:
            return 0
        told = await retention.retain_once(self.runtime.database, self.kept, self._place)
        self._place, self._is_deleting = told.place, told.place is not None
        if told.deleted:
            log.info("deleted", extra={"figures": {"kind": told.kind, "rows": told.deleted}})
        return told.looked_at
