"""`trivium doctor`: what is wrong with this machine or this installation, and what to do about it."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from trivium.cli.checks import CHECKS, Finding, Situation
from trivium.cli.flags import ConfigFile, flags_of, settle
from trivium.cli.terminal import table, write, write_json
from trivium.config.options import ModelOptions, ServerOptions


@flags_of(ModelOptions, ServerOptions, without=("tokenizer", "chat_template", "revision", "max_model_len"))
def doctor(
    *,
    json: Annotated[bool, Parameter(help="Print JSON.", negative="", show_default=False)] = False,
    config: ConfigFile = None,
    **flags: Any,
) -> int:
    """Look at everything a server needs; the exit code is 1 when something must be mended.

    Raises:
        ConfigError: An option has a bad value.
    """
    settings = settle((ModelOptions, ServerOptions), flags, config=config)
    situation = Situation(settings.build(ModelOptions), settings.build(ServerOptions))
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


def _look(name: str, check: Any, situation: Situation) -> tuple[str, Finding]:
    """Run one check; one that breaks is itself a finding, and the others still run."""
    try:
        return name, check(situation)
    except Exception as error:
        # A doctor that dies on the patient helps nobody: whatever is broken is reported beside the rest.
        return name, Finding("fail", f"{type(error).__name__}: {error}", "report this if it makes no sense")
