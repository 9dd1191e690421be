"""`Visit`: one HTTP exchange, as the log, the metrics and the timelines tell it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.types import Scope

if TYPE_CHECKING:
    from trivium.server.request_log import RequestRecord

VISIT = "trivium.visit"
"""Key of the visit in the scope of an exchange."""


@dataclass(slots=True)
class Visit:
    """One HTTP exchange."""

    request_id: str
    method: str
    route: str
    began_s: float
    caller: str | None = None
    answer_id: str | None = None
    """`id` of the answer, which is also what the engine calls the request."""
    status: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    first_token_s: float | None = None
    error_code: str | None = None
    """Code of an error, also of one that ended a stream after its status was sent."""
    trace_id: str | None = None
    """Trace that the caller's `traceparent`, or our own span, belongs to."""
    record: RequestRecord | None = None
    """What is kept of a request for text once it was understood."""

    def fields(self, seconds: float) -> dict[str, str | int | float | None]:
        """What the access log has of an exchange that took this long; `None` where something does not apply."""
        return {
            "request_id": self.request_id,
            "method": self.method,
            "route": self.route,
            "status": self.status,
            "caller": self.caller,
            "answer_id": self.answer_id,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
            "queue_ms": _ms(None if self.record is None else self.record.queue_s),
            "ttft_ms": _ms(self.first_token_s),
            "ms": _ms(seconds),
            "finish": None if self.record is None else self.record.finish,
            "error": self.error_code,
            "trace_id": self.trace_id,
        }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def visit_of(scope: Scope) -> Visit:
    """Return the record of the exchange that `scope` belongs to."""
    visit: Visit = scope[VISIT]
    return visit
