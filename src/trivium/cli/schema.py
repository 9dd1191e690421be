"""`trivium schema`: whether a JSON Schema can be enforced, before a request says so."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from trivium.base.errors import ConfigError, InvalidParameterError
from trivium.cli.terminal import note, table, write, write_json


def check(
    file: Annotated[Path, Parameter(help="The schema, in JSON.")],
    /,
    *,
    json: Annotated[bool, Parameter(help="Print JSON.", negative="", show_default=False)] = False,
) -> int:
    """List what of a JSON Schema cannot be enforced, and where; the exit status is 1 if anything is listed.

    Raises:
        ConfigError: There is no such file.
        InvalidParameterError: It holds no schema, or one beyond the limits of requests.
    """
    from trivium.grammar.schema_check import check_schema  # noqa: PLC0415  (start-up time)

    report = check_schema(read_schema(file))
    if json:
        write_json({
            "is_enforced": not report.problems,
            "problems": [problem._asdict() for problem in report.problems],
            "enforced": report.enforced,
            "annotations": report.annotations,
            "unknown": report.unknown,
        })
        return 1 if report.problems else 0
    if report.problems:
        write(table(("place", "why it cannot be enforced"), report.problems))
    for title, found in (("enforced", report.enforced), ("annotations, about no value", report.annotations)):
        if found:
            note(f"{title}: {', '.join(f'{name} {count}' for name, count in found.items())}")
    if report.unknown:
        note(f"no keywords of any draft, passed over: {', '.join(report.unknown)}")
    note(f"{file}: {'requests with it are refused' if report.problems else 'enforced in full'}")
    return 1 if report.problems else 0


def read_schema(file: Path) -> Any:
    """Read a schema that a request could bring.

    Raises:
        ConfigError: There is no such file.
        InvalidParameterError: It holds no schema, or one beyond the limits of requests.
    """
    import json as json_library  # noqa: PLC0415  (the name of a flag)

    from trivium.config.structured import StructuredOutputs  # noqa: PLC0415  (start-up time)

    text = read_text(file)
    try:
        StructuredOutputs(json=text).validate()
    except InvalidParameterError as error:
        raise InvalidParameterError(f"{file}: {error}", param="json") from None
    return json_library.loads(text)


def read_text(file: Path) -> str:
    """Read a file of text.

    Raises:
        ConfigError: There is no such file, or it is no UTF-8.
    """
    try:
        return file.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
