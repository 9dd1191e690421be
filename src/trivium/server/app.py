"""The ASGI application: routes, and what surrounds them."""

from __future__ import annotations

import functools
from http import HTTPStatus

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from trivium.base.clock import Clock, SystemClock
from trivium.config.options import ServerOptions
from trivium.grammar.detect import ModelDialects
from trivium.server import chat, completions, sglang_generate
from trivium.server.adapter_routes import AdapterRoutes
from trivium.server.auth import Doorkeeper
from trivium.server.cache_routes import CacheRoutes
from trivium.server.chat_form import ChatForm
from trivium.server.cors import Cors
from trivium.server.errors import MethodNotAllowedError, RouteNotFoundError, error_body
from trivium.server.gate import Gate
from trivium.server.generation_route import GenerationRoute
from trivium.server.openapi import openapi_document
from trivium.server.plain_routes import PlainRoutes
from trivium.server.ports import ChatTemplatePort, EnginePort, TokenizerPort
from trivium.server.program_routes import ProgramRoutes, Raw
from trivium.server.request_routes import RequestRoutes
from trivium.server.served import ServedModel
from trivium.server.service import Service
from trivium.server.sglang_generate import GenerateForm
from trivium.server.sglang_routes import SglangRoutes
from trivium.server.telemetry import Telemetry
from trivium.server.tracing import Tracing


def build_app(
    engine: EnginePort,
    tokenizer: TokenizerPort,
    chat_template: ChatTemplatePort | None,
    options: ServerOptions,
    served: ServedModel,
    *,
    dialects: ModelDialects | None = None,
    clock: Clock | None = None,
    tracing: Tracing | None = None,
) -> Starlette:
    """Make the application for one engine; `app.state.service` is what its routes share.

    Args:
        engine: Started or not; routes answer 503 until it is ready.
        tokenizer: The model's.
        chat_template: The model's, or `None`: chat is then refused with the reason.
        options: Keys, limits and times.
        served: Names and defaults.
        dialects: How the model writes tool calls and marks its reasoning; by default neither is known.
        clock: Times requests and tokens.
        tracing: Takes spans; by default what `otlp_endpoint` says.

    Raises:
        ConfigError: A key, the key file, or the collector's address cannot be used.
    """
    own_clock = clock or SystemClock()
    service = Service(
        engine=engine,
        tokenizer=tokenizer,
        chat_template=chat_template,
        options=options,
        served=served,
        telemetry=Telemetry(
            engine.status, own_clock, vllm_names_for=served.name if options.vllm_metric_names else None
        ),
        doorkeeper=Doorkeeper(options),
        dialects=dialects or ModelDialects(),
        clock=own_clock,
        tracing=tracing or (Tracing(options.otlp_endpoint) if options.otlp_endpoint else None),
    )
    routes = _routes(service)
    app = Starlette(
        routes=routes,
        middleware=_middleware(service, routes),
        exception_handlers={HTTPException: _answer_http_exception},
    )
    # A second spelling of a route (/v1/models/) is no route: every path has one meaning, also to whoever checks keys.
    app.router.redirect_slashes = False
    app.state.service = service
    return app


def _routes(service: Service) -> list[Route]:
    plain, requests, cache = PlainRoutes(service), RequestRoutes(service), CacheRoutes(service)
    adapters = AdapterRoutes(service)

    async def openapi(_: Request) -> Response:
        document = (
            _openapi_bytes() if not any(service.programs) else msgspec.json.encode(openapi_document(service.programs))
        )
        return Response(document, media_type="application/json")

    generating: list[tuple[str, ASGIApp]] = [
        ("/v1/completions", GenerationRoute(service, completions.parse, completions.CompletionForm)),
        ("/v1/chat/completions", GenerationRoute(service, chat.parse, ChatForm)),
        ("/generate", GenerationRoute(service, sglang_generate.parse, GenerateForm)),
    ]
    return [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in generating),
        Route("/v1/models", plain.models),
        Route("/v1/models/{model_id:path}", plain.model),
        Route("/tokenize", plain.tokenize, methods=["POST"]),
        Route("/detokenize", plain.detokenize, methods=["POST"]),
        Route("/health", plain.health),
        Route("/ready", plain.health),
        Route("/live", plain.live),
        Route("/version", plain.version),
        Route("/metrics", plain.metrics),
        Route("/v1/requests", requests.list_open),
        Route("/v1/requests/{answer_id}", requests.one),
        Route("/v1/cache", cache.state),
        Route("/v1/cache/check", cache.check),
        Route("/v1/cache/events", cache.events),
        Route("/v1/cache/flush", cache.flush, methods=["POST"]),
        Route("/v1/cache/pin", cache.pin, methods=["POST"]),
        Route("/v1/cache/unpin", cache.unpin, methods=["POST"]),
        *_program_routes(service),
        Route("/v1/load_lora_adapter", adapters.load, methods=["POST"]),
        Route("/v1/unload_lora_adapter", adapters.unload, methods=["POST"]),
        Route("/v1/config/reload", plain.reload_config, methods=["POST"]),
        Route("/openapi.json", openapi),
        *_sglang_routes(service, plain),
    ]


def _program_routes(service: Service) -> list[Route]:
    programs = ProgramRoutes(service)
    return [
        Route("/v1/programs", programs.list_all),
        Route("/v1/programs", Raw(programs.run), methods=["POST"]),
        Route("/v1/programs/runs/{run_id}", programs.cancel, methods=["DELETE"]),
        Route("/v1/programs/runs/{run_id}/tools/{call_id}", programs.resume, methods=["POST"]),
        Route("/v1/programs/{name}", programs.show),
        Route("/v1/programs/{name}", Raw(programs.run_published), methods=["POST"]),
        Route("/v1/programs/{name}", programs.publish, methods=["PUT"]),
        Route("/v1/programs/{name}", programs.delete, methods=["DELETE"]),
    ]


def _sglang_routes(service: Service, plain: PlainRoutes) -> list[Route]:
    sglang = SglangRoutes(service)
    return [
        Route("/model_info", sglang.model_info),
        Route("/get_model_info", sglang.model_info),
        Route("/server_info", sglang.server_info),
        Route("/get_server_info", sglang.server_info),
        Route("/health_generate", plain.health),
        Route("/flush_cache", sglang.flush_cache, methods=["GET", "POST"]),
        Route("/start_profile", sglang.profile, methods=["POST"]),
        Route("/stop_profile", sglang.profile, methods=["POST"]),
        Route("/concate_and_append_request", sglang.concatenate, methods=["POST"]),
        Route("/v1/tokenizer", sglang.tokenizer),
    ]


@functools.cache
def _openapi_bytes() -> bytes:
    return msgspec.json.encode(openapi_document())


def _middleware(service: Service, routes: list[Route]) -> list[Middleware]:
    gate = Middleware(Gate, service=service, routes=frozenset(route.path for route in routes))
    # Outside the gate: a browser asks for permission without a key.
    return [Middleware(Cors, service=service), gate]


async def _answer_http_exception(_: Request, exception: Exception) -> Response:
    status = exception.status_code if isinstance(exception, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR
    headers = exception.headers if isinstance(exception, HTTPException) else None
    error = (
        MethodNotAllowedError("this route does not take this method")
        if status == HTTPStatus.METHOD_NOT_ALLOWED
        else RouteNotFoundError("there is no route of this path")
    )
    return Response(error_body(error), status_code=error.http_status, headers=headers, media_type="application/json")
