"""The one middleware: request ids, keys, errors, the access log and request metrics.

Everything that enters passes here first, and every exception ends here. The access log has ids, route, status, counts
and times; neither it nor the error log ever holds a path that is not ours, a query, a body, a key, or the message of a
foreign exception.
"""

from __future__ import annotations

import logging
import re
import traceback
import uuid
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trivium.base.errors import TriviumError
from trivium.base.log import about_request
from trivium.server.errors import ClientGoneError, error_body, error_headers, error_status
from trivium.server.service import Service
from trivium.server.visit import VISIT, Visit

logger = logging.getLogger(__name__)
access_logger = logging.getLogger("trivium.access")

POLLED_ROUTES = frozenset({"/health", "/health_generate", "/live", "/ready", "/metrics"})
"""What monitors ask every few seconds; logged at debug level only."""

CLIENT_GONE_STATUS = 499
"""Logged (never sent) when the client closed the connection first."""
_ACCESS_LINE = (
    "%(method)s %(route)s %(status)s caller=%(caller)s answer=%(answer_id)s prompt=%(prompt_tokens)s "
    "completion=%(completion_tokens)s cached=%(cached_tokens)s queue_ms=%(queue_ms)s ttft_ms=%(ttft_ms)s ms=%(ms)s "
    "finish=%(finish)s error=%(error)s"
)
_PREFIXES = ("/v1/models/", "/v1/requests/", "/v1/programs/")
"""Routes that end with a name, which neither log nor metrics show."""
_TRACE_PARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_SAFE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Gate:
    """ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, *, service: Service, routes: frozenset[str]) -> None:
        """Wrap `app`.

        Args:
            app: The router.
            service: Keys, metrics and clock.
            routes: Paths that may appear in logs and metrics; everything else is `unmatched`.
        """
        self._app = app
        self._service = service
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one exchange through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = self._new_visit(scope)
        scope[VISIT] = visit
        request_id = (b"x-request-id", visit.request_id.encode())

        async def send_stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                visit.status = message["status"]
                message["headers"] = [*message.get("headers", ()), request_id]
            await send(message)

        self._service.telemetry.request_began()
        with about_request(visit.request_id, visit.trace_id):
            await self._let_through(scope, receive, send_stamped, visit)

    async def _let_through(self, scope: Scope, receive: Receive, send: Send, visit: Visit) -> None:
        try:
            visit.caller = self._service.doorkeeper.identify(scope["path"], scope["headers"])
            await self._app(scope, receive, send)
        except ClientGoneError:
            visit.status, visit.error_code = CLIENT_GONE_STATUS, "client_gone"
        except Exception as error:
            await self._answer_error(error, visit, send)
        finally:
            self._record(visit)

    def _new_visit(self, scope: Scope) -> Visit:
        path = scope["path"]
        route = path if path in self._routes else "unmatched"
        for prefix in _PREFIXES:
            if path.startswith(prefix):
                route = prefix + "{id}"
        request_id, trace_id = _ids(scope)
        return Visit(request_id, scope["method"], route, self._service.clock.now_s(), trace_id=trace_id)

    async def _answer_error(self, error: Exception, visit: Visit, send: Send) -> None:
        log_error(error, visit)
        if visit.status == 0:
            await send_json(send, error_body(error), status=error_status(error), headers=error_headers(error))

    def _record(self, visit: Visit) -> None:
        seconds = self._service.clock.now_s() - visit.began_s
        self._service.telemetry.request_ended(visit.route, visit.status, seconds, visit.error_code)
        if visit.record is not None:
            self._service.request_ended(visit.record, seconds)
        level = logging.DEBUG if visit.route in POLLED_ROUTES else logging.INFO
        if access_logger.isEnabledFor(level):
            fields = visit.fields(seconds)
            access_logger.log(level, _ACCESS_LINE, {k: _shown(v) for k, v in fields.items()}, extra=fields)


def log_error(error: Exception, visit: Visit) -> None:
    """Note an error in the visit, and log ours: where it happened and of what kind, never what it says."""
    visit.error_code = error.code if isinstance(error, TriviumError) else "internal_error"
    if error_status(error) != HTTPStatus.INTERNAL_SERVER_ERROR:
        return
    frames = "\n".join(f"  {f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__))
    extra = {"request_id": visit.request_id}
    logger.error("%s failed with %s at\n%s", visit.route, type(error).__name__, frames, extra=extra)


async def send_json(
    send: Send, body: bytes, *, status: int = 200, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    """Send a whole JSON answer."""
    fixed = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    start: MutableMapping[str, Any] = {"type": "http.response.start", "status": status}
    start["headers"] = [*fixed, *(headers or ())]
    await send(start)
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _ids(scope: Scope) -> tuple[str, str | None]:
    """Return the request's id, the client's or one that is drawn, and its trace's, if it brings one."""
    request_id = trace_id = None
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SAFE_ID.fullmatch(value):
            request_id = bytes(value).decode()
        elif name == b"traceparent" and (found := _TRACE_PARENT.fullmatch(value)) and found[1].strip(b"0"):
            trace_id = found[1].decode()
    return request_id or uuid.uuid4().hex, trace_id


def _shown(value: str | float | None) -> str:
    return "-" if value is None else str(value)
