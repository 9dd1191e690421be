"""`trivium serve`: check what can be checked before any weight is read, then hand over to the server."""

from __future__ import annotations

from typing import Any

from trivium.cli.flags import ConfigFile, flags_of, settle
from trivium.cli.port import check_port
from trivium.config.options import EngineOptions, ServerOptions


@flags_of(EngineOptions, ServerOptions, without=("model",))
def serve(model: str | None = None, /, *, config: ConfigFile = None, **flags: Any) -> int:
    """Answer OpenAI requests over HTTP.

    Raises:
        ConfigError: An option has a bad value.
        PortInUseError: Something else listens there.
    """
    settings = settle((EngineOptions, ServerOptions), flags, config=config, model=model)
    options = settings.build(ServerOptions)
    check_port(options.host, options.port)
    from trivium.server.run import run  # noqa: PLC0415  (start-up time: after the cheap checks)

    return run(settings.build(EngineOptions), options)
