"""The route of a generating endpoint: read, parse, run, answer whole or as a stream."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from trivium.engine.messages import Delta
from trivium.server.body import read_json_object
from trivium.server.errors import ClientGoneError, error_body
from trivium.server.events import EventStream, event
from trivium.server.gate import log_error, send_json
from trivium.server.generate import Collected, Counts, new_collection, run_job
from trivium.server.http1 import SHORTCUT, Shortcut
from trivium.server.job import Job
from trivium.server.service import Service
from trivium.server.shapes import Usage
from trivium.server.telemetry import TokenTimes
from trivium.server.token_texts import TokenTexts
from trivium.server.visit import Visit, visit_of


class Form(Protocol):
    """How an endpoint shows a job."""

    def chunk(self, prompt_idx: int, delta: Delta) -> bytes:
        """Show a delta as events; nothing when it has nothing to show."""
        ...

    def end(self, usage: Usage) -> bytes:
        """Show the end of the stream."""
        ...

    def whole(self, drawn: Sequence[Sequence[Collected]], usage: Usage) -> bytes:
        """Show all answers as one object."""
        ...


class MakeForm(Protocol):
    """Makes the form of one job."""

    def __call__(self, job: Job, texts: TokenTexts, *, created: int, fingerprint: str) -> Form:
        """Make it."""
        ...


Parse = Callable[[Service, Mapping[str, Any]], Awaitable[Job]]


class GenerationRoute:
    """ASGI application of one endpoint."""

    def __init__(self, service: Service, parse: Parse, make_form: MakeForm) -> None:
        self._service = service
        self._parse = parse
        self._make_form = make_form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            TriviumError: Before anything was sent; afterwards an error is the stream's last event.
            ClientGoneError: The connection closed; the engine has been told.
        """
        service, visit = self._service, visit_of(scope)
        service.check_ready()
        body = await read_json_object(scope, receive, max_bytes=service.options.max_body_bytes)
        job = replace(await self._parse(service, body), tenant=visit.caller or _user_of(body))
        visit.answer_id, visit.prompt_tokens = job.job_id, job.prompt_tokens
        service.request_began(job, visit, scope["headers"])
        form = self._make_form(job, service.texts, created=int(time.time()), fingerprint=service.fingerprint)
        run = _Run(service, job, form, visit)
        if job.is_stream:
            await self._stream(run, receive, send, scope.get(SHORTCUT))
        else:
            await service.jobs.run(run.answer(send), receive, request_ids=job.request_ids)

    async def _stream(self, run: _Run, receive: Receive, send: Send, shortcut: Shortcut | None) -> None:
        keep_alive_s = self._service.options.keep_alive_s
        async with EventStream(send, keep_alive_s=keep_alive_s, shortcut=shortcut) as events:
            try:
                await self._service.jobs.run(run.stream(events), receive, request_ids=run.job.request_ids)
            except ClientGoneError:
                raise
            except Exception as error:
                if not events.is_open:
                    raise
                log_error(error, run.visit)
                await events.close(event(error_body(error)))


def _user_of(body: Mapping[str, Any]) -> str:
    user = body.get("user")
    return user if isinstance(user, str) else ""


class _Run:
    """One job on its way through the engine."""

    def __init__(self, service: Service, job: Job, form: Form, visit: Visit) -> None:
        self.visit = visit
        self._service = service
        self.job = job
        self._form = form
        self._counts = Counts(job)
        self._times: TokenTimes = service.telemetry.watch_tokens(visit.began_s)

    async def stream(self, events: EventStream) -> None:
        """Send news as they come; those in the middle of an answer are sent in passing, without waking this task."""

        def send_in_passing(delta: Delta) -> bool:
            if not events.can_write_now:
                return False
            shown = self._show(0, delta)
            if shown:
                events.write_now(shown)
            return True

        try:
            async with contextlib.aclosing(run_job(self._service.engine, self.job, send_in_passing)) as news:
                async for prompt_idx, delta in news:
                    shown = self._show(prompt_idx, delta)
                    if shown:
                        await events.write(shown)
        finally:
            self._report()
        await events.close(self._form.end(self._counts.usage()))

    def _show(self, prompt_idx: int, delta: Delta) -> bytes:
        """Count a delta and show it as events."""
        self._times.add(prompt_idx, delta)
        self._counts.add(prompt_idx, delta)
        return self._form.chunk(prompt_idx, delta)

    async def answer(self, send: Send) -> None:
        """Collect everything, then send it."""
        drawn = new_collection(self.job)
        try:
            async with contextlib.aclosing(run_job(self._service.engine, self.job)) as news:
                async for prompt_idx, delta in news:
                    self._times.add(prompt_idx, delta)
                    self._counts.add(prompt_idx, delta)
                    drawn[prompt_idx][delta.choice].add(delta)
        finally:
            self._report()
        await send_json(send, self._form.whole(drawn, self._counts.usage()))

    def _report(self) -> None:
        usage = self._counts.usage()
        self.visit.completion_tokens = usage.completion_tokens
        self.visit.cached_tokens = usage.prompt_tokens_details.cached_tokens
        self.visit.first_token_s = self._times.first_token_s
