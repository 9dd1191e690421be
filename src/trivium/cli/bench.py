"""`trivium bench offline` and `bench serve`: flags in, figures out; what is measured is in `trivium.bench`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from trivium import __version__
from trivium.bench.options import ReportOptions, ServeOptions, WorkloadOptions
from trivium.cli.flags import ConfigFile, ModelName, flags_of, settle
from trivium.cli.terminal import note, table, write, write_json
from trivium.config.options import EngineOptions
from trivium.config.record import SECRETS
from trivium.config.resolve import Settings

Json = Annotated[bool, Parameter(help="Print JSON.", negative="")]


@flags_of(WorkloadOptions, EngineOptions, without=("model",))
def offline(model: ModelName = None, /, *, json: Json = False, config: ConfigFile = None, **flags: Any) -> int:
    """Measure the engine in this process, without HTTP.

    Raises:
        ConfigError: An option has a bad value.
        ModelError: The model cannot be loaded.
    """
    from trivium.bench.offline import run  # noqa: PLC0415  (start-up time)

    settings = settle((WorkloadOptions, EngineOptions), flags, config=config, model=model)
    engine = settings.values(EngineOptions)
    figures = asdict(run(settings.build(WorkloadOptions), engine.pop("model"), engine))
    if json:
        write_json(figures)
        return 0
    about = figures.pop("engine")
    rows = [(name, f"{value:.2f}" if isinstance(value, float) else str(value)) for name, value in figures.items()]
    write(table(("figure", "value"), [*rows, *((name, str(value)) for name, value in about.items())]))
    return 0


@flags_of(WorkloadOptions, ServeOptions, ReportOptions)
def serve(*, json: Json = False, config: ConfigFile = None, **flags: Any) -> int:
    """Load a server that speaks OpenAI's API and measure it.

    Raises:
        ConfigError: An option has a bad value, or results cannot be written where they shall go.
        ServerFailedError: The server cannot be reached, or lists no model.
    """
    from trivium.bench import report  # noqa: PLC0415  (start-up time)
    from trivium.bench.serve import run  # noqa: PLC0415

    settings = settle((WorkloadOptions, ServeOptions, ReportOptions), flags, config=config)
    wanted = settings.build(ReportOptions)
    report.check_targets(wanted)
    runs = run(settings.build(WorkloadOptions), settings.build(ServeOptions), wanted, _advance)
    if wanted.json_file is not None:
        wanted.json_file.write_text(report.to_json(runs, **_asked(settings)), encoding="utf-8")
    if wanted.plot_file is not None:
        report.plot(runs, wanted.plot_file)
    if json:
        write_json([asdict(figures) for figures in runs])
    else:
        from rich.console import Console  # noqa: PLC0415  (start-up time)

        Console().print(report.to_table(runs))
    for figures in runs:
        if figures.num_failed:
            note(f"{figures.num_failed} of {figures.num_requests} requests failed; the first: {figures.first_error}")
    return 0 if all(figures.num_failed == 0 for figures in runs) else 1


def _asked(settings: Settings) -> dict[str, Any]:
    """What was asked for, to keep beside the figures; no keys."""
    return {
        "trivium": __version__,
        "workload": settings.values(WorkloadOptions),
        "load": {name: value for name, value in settings.values(ServeOptions).items() if name not in SECRETS},
    }


def _advance(done: int, total: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done}/{total}")
        if done == total:
            note("")
