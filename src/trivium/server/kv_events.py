"""`/v1/cache/events`: what the engine tells of the prefix cache, numbered, kept for a while, and read by routers.

::

    numbers     first ........ oldest ........................ last
    records     given up       in the buffer
    ?since=S                        │ S + 1, S + 2, ... and then whatever comes
    ?since=S       │ `missed` (S + 1 to oldest - 1), oldest, ...

A reader that is too slow for the buffer is told of a gap in the same way, so that nobody holds more than the buffer.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from itertools import islice

import msgspec

from trivium.base.errors import InvalidParameterError
from trivium.engine.messages import CacheNews
from trivium.server.events import KEEP_ALIVE, event

_RECORDS_AT_ONCE = 256


class EventBuffer:
    """The last records, as server-sent events.

    Invariants:
        Records are numbered without gaps, and by later numbers than those of an earlier server.
    """

    def __init__(self, limit: int, *, first: int | None = None) -> None:
        """Make an empty buffer.

        Args:
            limit: Most records that are kept.
            first: Number of the first record; by default the time in microseconds.
        """
        self._first = self._next = time.time_ns() // 1000 if first is None else first
        self._records: deque[bytes] = deque(maxlen=limit)
        self._epoch = 0
        self._news = asyncio.Event()
        self._is_closed = False

    def add(self, news: CacheNews) -> None:
        """Number what the engine tells, and wake the readers."""
        self._epoch = news.epoch
        for told in news.events:
            shown = {"seq": self._next, "epoch": news.epoch, **msgspec.to_builtins(told)}
            self._records.append(event(msgspec.json.encode(shown)))
            self._next += 1
        self._wake()

    def close(self) -> None:
        """End the streams of all readers."""
        self._is_closed = True
        self._wake()

    def check(self, since: int | None) -> int:
        """Return the number after which to read: `since`, or by default that before the first.

        Raises:
            InvalidParameterError: No record has had this number yet.
        """
        if since is None:
            return self._first - 1
        if not 0 <= since < self._next:
            raise InvalidParameterError(
                f"since is {since}; it must be the seq of a record that was read, at most {self._next - 1} now. "
                "Leave it out to read everything that is kept",
                param="since",
            )
        return since

    def read(self, since: int) -> tuple[bytes, int]:
        """Return some records after `since` as events, and the number up to which they go."""
        oldest = self._next - len(self._records)
        skipped = since + 1 - oldest
        missed = b""
        if skipped < 0:
            gap = {"seq": oldest - 1, "epoch": self._epoch, "kind": "missed", "first": since + 1, "last": oldest - 1}
            missed, since, skipped = event(msgspec.json.encode(gap)), oldest - 1, 0
        records = list(islice(self._records, skipped, skipped + _RECORDS_AT_ONCE))
        return missed + b"".join(records), since + len(records)

    async def follow(self, since: int, *, keep_alive_s: float) -> AsyncIterator[bytes]:
        """Yield what comes after `since`, for ever or until `close`; a comment where nothing comes for a while."""
        while not self._is_closed:
            events, since = self.read(since)
            if events:
                yield events
                continue
            try:
                await asyncio.wait_for(self._news.wait(), keep_alive_s)
            except TimeoutError:
                yield KEEP_ALIVE

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
