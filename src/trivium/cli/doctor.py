"""`trivium doctor`: what is wrong with this machine or this installation, and what to do about it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from trivium.base.errors import ConfigError
from trivium.cli.checks import CHECKS, Finding, Situation
from trivium.cli.flags import ConfigFile, GivenFlags, flags_of
from trivium.cli.terminal import table, write, write_json
from trivium.config.limits import check_value
from trivium.config.options import ModelOptions, ServerOptions
from trivium.config.record import options_of
from trivium.config.resolve import CONFIG_VARIABLE, RECORDS, resolve
from trivium.config.value import parse

OPTIONS = {option.name: option for record in RECORDS for option in options_of(record)}


@flags_of(ModelOptions, ServerOptions, only=("model", "cache_dir", "offline", "host", "port"))
def doctor(
    *,
    json: Annotated[bool, Parameter(help="Print JSON.", negative="", show_default=False)] = False,
    config: ConfigFile = None,
    **flags: Any,
) -> int:
    """Look at everything a server needs; the exit code is 1 when something must be mended.

    A setting that cannot be used is a finding too, and the rest is looked at without it.
    """
    situation = look_around(flags, config)
    findings = [_look(name, check, situation) for name, check in CHECKS.items()]
    if json:
        write_json([finding._asdict() | {"check": name} for name, finding in findings])
    else:
        write(table(("check", "state", "finding"), [(name, found.state, found.detail) for name, found in findings]))
        for name, found in findings:
            if found.remedy:
                write(f"\n{name}: {found.remedy}", end="")
        if any(found.remedy for _, found in findings):
            write("")
    return 1 if any(found.state == "fail" for _, found in findings) else 0


def look_around(flags: GivenFlags, config: Path | None) -> Situation:
    """Take in what flags, file and environment say, without what is wrong in them."""
    problems: list[str] = []
    file = config or (Path(named) if (named := os.environ.get(CONFIG_VARIABLE)) else None)
    if file is not None:
        try:
            resolve(file=file, environ={})
        except ConfigError as error:
            problems.append(str(error))
            file = None
    own_flags, variables = dict(flags), {k: text for k, text in os.environ.items() if k != CONFIG_VARIABLE}
    for option in OPTIONS.values():
        _leave_out_bad(variables, option.variable, option.name, option.variable, problems)
        _leave_out_bad(own_flags, option.name, option.name, option.flag, problems)
    try:
        settings = resolve(flags=own_flags, file=file, environ=variables)
    except ConfigError as error:  # settings that contradict each other
        problems.append(str(error))
        settings = resolve(flags=own_flags, environ={})
    return Situation(
        settings.build(ModelOptions), settings.build(ServerOptions), tuple(problems), settings.unknown_variables
    )


def _leave_out_bad(source: dict[str, Any], key: str, name: str, origin: str, problems: list[str]) -> None:
    """Delete a setting from its source, and note why, when its option cannot have that value."""
    text = source.get(key)
    if not text or isinstance(text, bool) or (isinstance(text, str) and not text.strip()):
        return
    try:
        check_value(name, parse(OPTIONS[name], text.strip() if isinstance(text, str) else text, origin), origin)
    except ConfigError as error:
        problems.append(str(error))
        del source[key]


def _look(name: str, check: Any, situation: Situation) -> tuple[str, Finding]:
    """Run one check; one that breaks is itself a finding, and the others still run."""
    try:
        return name, check(situation)
    except ConfigError as error:
        return name, Finding("fail", str(error), "correct or unset it")
    except Exception as error:
        # A doctor that dies on the patient helps nobody: whatever is broken is reported beside the rest.
        return name, Finding("fail", f"{type(error).__name__}: {error}", "report this if it makes no sense")
