"""`trivium config show`: what every option would be, and why."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from trivium.cli.flags import ConfigFile, ModelName, flags_of, settle
from trivium.cli.terminal import table, write, write_json
from trivium.config.options import EngineOptions, ServerOptions


@flags_of(EngineOptions, ServerOptions, without=("model",))
def show(
    model: ModelName = None,
    /,
    *,
    config: ConfigFile = None,
    json: Annotated[bool, Parameter(help="Print JSON.", negative="", show_default=False)] = False,
    **flags: Any,
) -> int:
    """Print every option with its value and origin, as `serve` would take it; secrets are masked.

    Raises:
        ConfigError: An option has a bad value.
    """
    settings = settle((EngineOptions, ServerOptions), flags, config=config, model=model)
    if json:
        write_json({name: {"value": one.plain, "origin": one.origin} for name, one in settings.by_name.items()})
    else:
        rows = [(name, setting.shown, setting.origin) for name, setting in settings.by_name.items()]
        write(table(("option", "value", "origin"), rows))
    return 0
