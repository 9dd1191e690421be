"""`/v1/cache` and below: what the prefix cache holds, and what is to stay there. All want an admin key.

Whoever pins takes memory from everybody, and the counts tell what others have asked, so neither is for API keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from trivium.base.errors import InvalidParameterError
from trivium.config.sampling import SamplingParams
from trivium.server.body import read_json_object
from trivium.server.chat_prompt import chat_prompt
from trivium.server.errors import KVEventsOffError, PinNotFoundError
from trivium.server.job import check_prompt_ids, fit_to_context
from trivium.server.service import Service
from trivium.server.shapes import CacheState, PinMade, PinRemoved
from trivium.server.tables import PIN, UNPIN

_NUMBER = re.compile(r"[0-9]{1,18}")
_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class CacheRoutes:
    """Endpoint functions over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def state(self, _: Request) -> Response:
        """Describe what the cache holds."""
        self._service.check_ready()
        return _json(msgspec.convert(await self._service.engine.call("cache"), CacheState))

    async def check(self, _: Request) -> Response:
        """Derive by brute force who owns every page of KV memory, and list the differences: none when all is well."""
        self._service.check_ready()
        return _json(await self._service.engine.call("check"))

    async def flush(self, _: Request) -> Response:
        """Forget every cached prefix that no running request uses, and that is not pinned."""
        self._service.check_ready()
        return _json(await self._service.engine.call("flush"))

    async def events(self, request: Request) -> Response:
        """Stream what happens to the cache, from `?since=` on.

        Raises:
            KVEventsOffError: The engine does not tell.
            InvalidParameterError: `since` is no number of a record.
        """
        service = self._service
        service.check_ready()
        if not service.engine.status().info.get("kv_events"):
            raise KVEventsOffError("KV events are off; start the server with --kv-events")
        given = request.query_params.get("since")
        if given is not None and not _NUMBER.fullmatch(given):
            raise InvalidParameterError(f"since is '{given[:20]}'; it must be a whole number", param="since")
        since = service.kv_events.check(None if given is None else int(given))
        stream = service.kv_events.follow(since, keep_alive_s=service.options.keep_alive_s)
        return StreamingResponse(stream, media_type="text/event-stream", headers=_STREAM_HEADERS)

    async def pin(self, request: Request) -> Response:
        """Compute a prompt unless it is cached, and keep it.

        Raises:
            InvalidParameterError: The prompt has no whole page, or is more than all pins may hold.
            CapacityError: Too much is pinned already, or memory is too short to keep it.
        """
        service = self._service
        service.check_ready()
        values = PIN.read(await self._body(request))
        model = service.choose_model(values["model"]) if "model" in values else None
        ids = await self._ids(values)
        fit_to_context(
            SamplingParams(max_tokens=0), len(ids), context_len=service.context_len, default=None, param="prompt"
        )
        adapter = None if model is None else model.adapter
        pin_id, num_pinned = await service.pins.pin(
            ids, values.get("cache_salt", ""), values.get("ttl_s"), adapter=adapter
        )
        return _json(PinMade(pin_id=pin_id, prompt_tokens=len(ids), pinned_tokens=num_pinned))

    async def unpin(self, request: Request) -> Response:
        """Let a pinned prompt go.

        Raises:
            PinNotFoundError: Nothing of that id is pinned.
        """
        self._service.check_ready()
        values = UNPIN.read(await self._body(request))
        if "pin_id" not in values:
            raise InvalidParameterError("pin_id is missing; it is what /v1/cache/pin answered", param="pin_id")
        if not await self._service.pins.unpin(values["pin_id"]):
            raise PinNotFoundError(f"no prompt is pinned as '{values['pin_id'][:80]}'; /v1/cache lists the pins")
        return _json(PinRemoved(pin_id=values["pin_id"]))

    async def _body(self, request: Request) -> Mapping[str, Any]:
        return await read_json_object(request.scope, request.receive, max_bytes=self._service.options.max_body_bytes)

    async def _ids(self, values: Mapping[str, Any]) -> list[int]:
        service = self._service
        if ("prompt" in values) == ("messages" in values):
            raise InvalidParameterError("give either prompt or messages", param="prompt")
        if "messages" in values:
            return (await chat_prompt(service, values)).ids
        if isinstance(values["prompt"], str):
            adds_special = values.get("add_special_tokens", True)
            (ids,) = await service.encode([values["prompt"]], add_special_tokens=adds_special)
        else:
            ids = values["prompt"]
        check_prompt_ids("prompt", ids, service.vocab_size)
        return list(ids)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
