"""The requests for text of this server: those under way, and the last that ended.

::

    HTTP  ──begin──► open ──end──► finished (the last N)
    engine ──take──►  report of each answer that ended; it may come just after `end`, when the client has left

A record holds counts, times and names, neither prompt nor answer.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trivium.server.visit import Visit

if TYPE_CHECKING:
    from trivium.base.clock import Clock
    from trivium.engine.messages import AnswerReport
    from trivium.server.job import Job


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request for text."""

    visit: Visit
    answer_id: str
    model: str
    is_stream: bool
    engine_ids: list[str]
    """What the engine calls the request of each prompt."""
    num_draws: int
    """Answers to each prompt."""
    created_at: float
    """Unix time of its arrival, in seconds."""
    reports: dict[tuple[int, int], AnswerReport] = field(default_factory=dict)
    """By (prompt index, choice), of the answers that have ended."""
    seconds: float | None = None
    """From its arrival to its end; `None` while it is under way."""
    span: Any = None
    """Its span, while that is open; belongs to `tracing`."""

    @property
    def queue_s(self) -> float | None:
        """Seconds until the first of its answers had its first step, as far as that is known."""
        starts = [report.timeline.starts[0].at_s for report in self.reports.values() if report.timeline.starts]
        return min(starts, default=None)

    @property
    def finish(self) -> str | None:
        """How its answers ended, as far as that is known; several ways are separated by commas."""
        return ",".join(sorted({str(report.finish_reason) for report in self.reports.values()})) or None

    @property
    def is_complete(self) -> bool:
        """Whether every answer was reported."""
        return len(self.reports) == self.num_draws * len(self.engine_ids)


class RequestLog:
    """Finds requests by the id of their answer.

    Invariants:
        A record is open or finished, never both; at most `history` are finished.
    """

    def __init__(self, clock: Clock, *, history: int) -> None:
        """Make an empty log.

        Args:
            clock: That of the visits.
            history: Most finished requests that are remembered.
        """
        self._clock = clock
        self._history = history
        self._open: dict[str, RequestRecord] = {}
        self._finished: OrderedDict[str, RequestRecord] = OrderedDict()
        self._by_engine_id: dict[str, tuple[RequestRecord, int]] = {}

    def begin(self, job: Job, visit: Visit) -> RequestRecord:
        """Remember a request that was understood."""
        age_s = self._clock.now_s() - visit.began_s
        record = RequestRecord(
            visit=visit,
            answer_id=job.job_id,
            model=job.model,
            is_stream=job.is_stream,
            engine_ids=list(job.request_ids),
            num_draws=job.num_draws,
            created_at=time.time() - age_s,
        )
        self._open[record.answer_id] = record
        self._by_engine_id.update({name: (record, idx) for idx, name in enumerate(record.engine_ids)})
        visit.record = record
        return record

    def take(self, report: AnswerReport) -> RequestRecord | None:
        """Add what the engine says of an answer that ended to its request, and return that, if it is remembered."""
        found = self._by_engine_id.get(report.request_id)
        if found is None:
            return None
        record, prompt_idx = found
        record.reports[prompt_idx, report.choice] = report
        return record

    def end(self, record: RequestRecord, seconds: float) -> None:
        """Note that a request has ended after so many seconds; the oldest finished one may be forgotten."""
        del self._open[record.answer_id]
        record.seconds = seconds
        self._finished[record.answer_id] = record
        while len(self._finished) > self._history:
            _, old = self._finished.popitem(last=False)
            for name in old.engine_ids:
                del self._by_engine_id[name]

    def find(self, answer_id: str) -> RequestRecord | None:
        """Return the request with that id, open or remembered."""
        return self._open.get(answer_id) or self._finished.get(answer_id)

    def __iter__(self) -> Iterator[RequestRecord]:
        """Iterate over the open requests, oldest first."""
        return iter(tuple(self._open.values()))

    def age_s(self, record: RequestRecord) -> float:
        """Return how long a request has taken, so far or in all."""
        return self._clock.now_s() - record.visit.began_s if record.seconds is None else record.seconds
