"""`run`: from options to a served model."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time

from trivium import __version__, assembly
from trivium.base.errors import ConfigError, TriviumError
from trivium.base.garbage import freeze_what_is_loaded
from trivium.config.defaults import recommended_sampling
from trivium.config.limits import parse_adapters
from trivium.config.options import EngineOptions, ServerOptions
from trivium.config.resolve import Settings
from trivium.engine.client import EngineClient
from trivium.server import tracing
from trivium.server.app import build_app
from trivium.server.auth import Doorkeeper
from trivium.server.lifetime import bind_socket, report_failure, serve
from trivium.server.loading import Found, Opened
from trivium.server.reload import ReadAgain, Reload
from trivium.server.served import ServedModel

logger = logging.getLogger(__name__)


def run(options: EngineOptions, server: ServerOptions, *, read_again: ReadAgain | None = None) -> int:
    """Serve a model over HTTP until told to stop.

    Args:
        options: The engine's.
        server: The server's.
        read_again: Resolves both once more, for SIGHUP; without it SIGHUP changes nothing.

    Returns:
        The exit code: 0 after an orderly end, 1 when the server cannot start (said on standard error), 128 + signal
        when a second signal cut the end short.
    """
    try:
        Doorkeeper(server)  # a bad key file is found before anything is taken or loaded
        if server.otlp_endpoint is not None:
            tracing.check(server.otlp_endpoint)
        with bind_socket(server) as listener:
            return asyncio.run(serve(lambda: _find(listener, options, server, read_again), listener, server))
    except TriviumError as error:
        return report_failure(error)


def _find(
    listener: socket.socket, options: EngineOptions, server: ServerOptions, read_again: ReadAgain | None = None
) -> Found:
    settings = read_again() if read_again is not None else None
    assembly.find_model(options, _report)
    engine = assembly.engine_client(options, heartbeat_timeout_s=server.heartbeat_timeout_s, report=_report)
    return Found(engine=engine, open=lambda: _open(engine, listener, options, server, settings, read_again))


def _open(
    engine: EngineClient,
    listener: socket.socket,
    options: EngineOptions,
    server: ServerOptions,
    settings: Settings | None,
    read_again: ReadAgain | None,
) -> Opened:
    frontend = assembly.load_frontend(options, _report)
    served = served_model(frontend, options, server)
    if shadowed := set(served.names) & set(parse_adapters(options.adapters.lora)):
        raise ConfigError(f"lora names an adapter '{shadowed.pop()}', which is a name of the model; choose another")
    logger.info("Trivium %s: %s (%s)", __version__, served.name, frontend.precision)
    spoken = frontend.dialects
    logger.info("tool calls: %s, reasoning: %s", spoken.tools or "not read", spoken.reasoning or "not split off")
    if not (server.api_key or server.api_key_file) and server.host not in {"127.0.0.1", "::1", "localhost"}:
        logger.warning("listening on %s without API keys: anybody who reaches it may use it", server.host)
    app = build_app(engine, frontend.tokenizer, frontend.chat_template, server, served, dialects=frontend.dialects)
    url = base_url(server, listener.getsockname()[1])
    freeze_what_is_loaded()  # in this thread, while the engine still reads weights

    def say_ready() -> None:
        logger.info("%s", engine.status().info.get("kv_cache", "KV cache: unknown"))
        logger.info("ready: %s at %s, context %d tokens", served.name, url, app.state.service.context_len)

    def send_last_spans() -> None:
        if app.state.service.tracing is not None:
            app.state.service.tracing.close()

    reload = None
    if settings is not None and read_again is not None:
        reload = Reload(settings, read_again, app.state.service, engine)
    return Opened(app=app, on_ready=say_ready, on_end=send_last_spans, reload=reload)


def base_url(server: ServerOptions, port: int) -> str:
    """Address that clients are given."""
    scheme = "https" if server.ssl_certfile else "http"
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"{scheme}://{host}:{port}/v1"


def served_model(frontend: assembly.Frontend, options: EngineOptions, server: ServerOptions) -> ServedModel:
    """Say what the API serves: names, limits, the checkpoint's own defaults."""
    names = server.served_model_name or (frontend.name,)
    max_positions = frontend.config.max_positions
    return ServedModel(
        name=names[0],
        aliases=tuple(names[1:]),
        config=frontend.config,
        max_model_len=options.model.max_model_len or max_positions,
        sampling_defaults=recommended_sampling(frontend.generation_config),
        details={
            "architecture": frontend.config.architecture,
            "weights": frontend.precision,
            "licence": frontend.licence,
            "tool_call_parser": frontend.dialects.tools,
            "reasoning_parser": frontend.dialects.reasoning,
        },
        created=int(time.time()),
    )


def _report(stage: str, done: int, total: int) -> None:
    """Say how loading goes, on a terminal only."""
    if sys.stderr.isatty() and total:
        sys.stderr.write(f"\r{stage} {100 * done // total:3d} %" + ("\n" if done >= total else ""))
        sys.stderr.flush()
