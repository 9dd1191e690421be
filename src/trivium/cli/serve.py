"""`trivium serve`: options in, exit code out; the server takes its port before it reads any weight."""

from __future__ import annotations

from typing import Any

from trivium.cli.flags import ConfigFile, ModelName, flags_of, given_flags, settle
from trivium.config.options import EngineOptions, ServerOptions
from trivium.config.resolve import Settings, resolve


@flags_of(EngineOptions, ServerOptions, without=("model",))
def serve(model: ModelName = None, /, *, config: ConfigFile = None, **flags: Any) -> int:
    """Answer OpenAI requests over HTTP.

    Raises:
        ConfigError: An option has a bad value.
    """
    settings = settle((EngineOptions, ServerOptions), flags, config=config, model=model)
    from trivium.server.launch import run  # noqa: PLC0415  (start-up time: only when the options are right)

    def read_again() -> Settings:
        return resolve((EngineOptions, ServerOptions), flags=given_flags(flags, model), file=config)

    return run(settings.build(EngineOptions), settings.build(ServerOptions), read_again=read_again)
