"""The routes that generate nothing: models, tokens, health, version, metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from trivium import __version__
from trivium.base.errors import ConfigError, InvalidParameterError
from trivium.engine.adapters import AdapterRecord
from trivium.server.body import read_json_object
from trivium.server.chat_prompt import chat_prompt
from trivium.server.errors import BadConfigError
from trivium.server.job import check_prompt_ids
from trivium.server.service import Service
from trivium.server.shapes import Condition, ModelCard, ModelList, Text, Tokens
from trivium.server.tables import DETOKENIZE, TOKENIZE

_SHOWN_INFO = ("arithmetic", "executor")
"""What the engine says of itself that `/v1/models` shows."""
Answer = Callable[[Request], Awaitable[Response]]


class PlainRoutes:
    """Endpoint functions over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self, _: Request) -> Response:
        """List the names that `model` may have."""
        self._service.check_ready()
        cards = [self._card(name) for name in self._service.served.names]
        return _json(ModelList(data=[*cards, *map(self._adapter_card, self._service.engine.adapters)]))

    async def model(self, request: Request) -> Response:
        """Describe one of them."""
        self._service.check_ready()
        chosen = self._service.choose_model(request.path_params["model_id"])
        adapter = self._service.engine.adapters.find(chosen.adapter)
        return _json(self._card(chosen.name) if adapter is None else self._adapter_card(adapter))

    async def tokenize(self, request: Request) -> Response:
        """Turn a text, or a conversation, into token ids."""
        service = self._service
        body = await read_json_object(request.scope, request.receive, max_bytes=service.options.max_body_bytes)
        values = TOKENIZE.read(body)
        if "model" in values:
            service.choose_model(values["model"])
        if ("prompt" in values) == ("messages" in values):
            raise InvalidParameterError("give either prompt or messages", param="prompt")
        if "messages" in values:
            ids = (await chat_prompt(service, values)).ids
        else:
            adds_special = values.get("add_special_tokens", True)
            (ids,) = await service.encode([values["prompt"]], add_special_tokens=adds_special)
        shown = [service.texts.text_of(token_id) for token_id in ids] if values.get("return_token_strs") else None
        return _json(Tokens(count=len(ids), max_model_len=service.context_len, tokens=ids, token_strs=shown))

    async def detokenize(self, request: Request) -> Response:
        """Turn token ids into text."""
        service = self._service
        body = await read_json_object(request.scope, request.receive, max_bytes=service.options.max_body_bytes)
        values = DETOKENIZE.read(body)
        if "model" in values:
            service.choose_model(values["model"])
        ids = list(values.get("tokens", ()))
        check_prompt_ids("tokens", ids, service.vocab_size)
        return _json(Text(service.tokenizer.decode(ids, skip_special_tokens=False)))

    async def health(self, _: Request) -> Response:
        """Say whether an answer can be given now: weights loaded, the loop moving, not shutting down."""
        reason = self._service.why_not_ready()
        if reason is None and not self._service.jobs.is_accepting:
            reason = "the server is shutting down"
        if reason is None:
            return _json(Condition(status="ok"))
        return _json(Condition(status="unavailable", reason=reason), status=503)

    async def live(self, _: Request) -> Response:
        """Say that the HTTP side runs, whatever the engine does."""
        return _json(Condition(status="ok"))

    async def version(self, _: Request) -> Response:
        """Say which version this is."""
        return _json({"version": __version__})

    async def metrics(self, _: Request) -> Response:
        """Write all metrics for Prometheus."""
        return Response(self._service.telemetry.render(), media_type=CONTENT_TYPE_LATEST)

    async def reload_config(self, _: Request) -> Response:
        """Read the options again, as SIGHUP does, and say what changed."""
        if self._service.reload is None:
            raise BadConfigError("this server was not started with options that can be read again")
        try:
            return _json(self._service.reload())
        except ConfigError as error:
            raise BadConfigError(f"the options cannot be read again, so all keep their values: {error}") from error

    def _card(self, name: str) -> ModelCard:
        served = self._service.served
        info = self._service.engine.status().info
        details = {**served.details, **{key: info[key] for key in _SHOWN_INFO if key in info}}
        return ModelCard(
            id=name,
            created=served.created,
            root=served.name,
            max_model_len=self._service.context_len,
            details=details,
        )

    def _adapter_card(self, record: AdapterRecord) -> ModelCard:
        """Describe an adapter, with its folder as `root` and the model as `parent`, as vLLM does."""
        served = self._service.served
        return ModelCard(
            id=record.name,
            created=served.created,
            root=record.path,
            parent=served.name,
            max_model_len=self._service.context_len,
            details={
                "rank": record.rank,
                "bytes": record.num_bytes,
                "generation": record.generation,
                "base_model": record.base_model,
                "load_seconds": record.load_seconds,
            },
        )


def _json(value: object, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")
