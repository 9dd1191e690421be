"""`GET /v1/requests` and `GET /v1/requests/{id}`: what happens, and happened, to requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trivium.base.errors import EngineDeadError
from trivium.engine.messages import AnswerReport
from trivium.engine.report import read_reports
from trivium.server.errors import RequestNotFoundError
from trivium.server.service import Service
from trivium.server.timeline_shapes import RequestList, show_request, show_summary
from trivium.server.visit import visit_of

_SHOWN_ID_CHARS = 80


class RequestRoutes:
    """Endpoint functions over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list_open(self, _: Request) -> Response:
        """List the requests under way, oldest first."""
        log = self._service.requests
        live: dict[str, list[AnswerReport]] = defaultdict(list)
        for report in await self._ask():
            live[report.request_id].append(report)
        rows = [
            show_summary(record, (one for name in record.engine_ids for one in live[name]), log.age_s(record))
            for record in log
        ]
        return _json(RequestList(data=rows))

    async def one(self, request: Request) -> Response:
        """Show the timeline of a request to whoever sent it, or to an admin.

        Raises:
            RequestNotFoundError: There is no such request, or it is somebody else's; the two look the same.
        """
        service, answer_id = self._service, request.path_params["answer_id"]
        record = service.requests.find(answer_id)
        is_allowed = record is not None and (
            record.visit.caller == visit_of(request.scope).caller
            or service.doorkeeper.is_admin(request.scope["headers"])
        )
        if record is None or not is_allowed:
            raise RequestNotFoundError(
                f"no request '{answer_id[:_SHOWN_ID_CHARS]}' of yours is under way or among the last "
                f"{service.options.request_history} that ended (--request-history)"
            )
        live = await self._ask(record.engine_ids) if record.seconds is None else []
        return _json(show_request(record, live, service.requests.age_s(record)))

    async def _ask(self, engine_ids: Collection[str] | None = None) -> list[AnswerReport]:
        """Ask the engine for its open answers; it has none while it is not there."""
        try:
            return read_reports(await self._service.engine.call("answers", {"request_ids": engine_ids}))
        except EngineDeadError:
            return []


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
