"""`Presenter`: what the forms of all generating routes have in common: the head of every event, and a stream's end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from trivium.server.events import DONE
from trivium.server.job import Job
from trivium.server.shapes import Usage
from trivium.server.token_texts import TokenTexts

encode = msgspec.json.Encoder().encode


class Presenter:
    """Shows one job; each route's form says what a choice looks like."""

    event_object: ClassVar[str]
    """Value of `object` in the events of a stream."""

    def __init__(self, job: Job, texts: TokenTexts, *, created: int, fingerprint: str) -> None:
        """Show `job`.

        Args:
            job: What was asked.
            texts: Spells tokens.
            created: When, in Unix seconds.
            fingerprint: `system_fingerprint` of everything that is shown.
        """
        self._job = job
        self._texts = texts
        self._created = created
        self._fingerprint = fingerprint
        self._begun: set[int] = set()
        """Choices of which something has been shown."""
        head = {
            "id": job.job_id,
            "object": self.event_object,
            "created": created,
            "model": job.model,
            "system_fingerprint": fingerprint,
        }
        self._head = b"data: " + encode(head)[:-1] + b',"choices":['

    def end(self, usage: Usage) -> bytes:
        """Show the end of the stream."""
        if not self._job.includes_usage:
            return DONE
        return self._head + b'],"usage":' + encode(usage) + b"}\n\n" + DONE

    def _event(self, choice: Mapping[str, Any], extra: bytes = b"") -> bytes:
        """Write an event with one choice; `extra` are further fields of its object, as JSON text."""
        return self._head + encode(choice) + b"]" + extra + b"}\n\n"
