"""Write docs/reference/http.md from the server's own tables; with --check, fail when the file is behind them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from generated import write_or_compare

from trivium.base.errors import TriviumError
from trivium.schedule.timeline import WAIT_MEANINGS
from trivium.server import job, program_tables, sglang_tables, tables
from trivium.server.auth import ADMIN_PATHS, GUARDED_PATHS, OPEN_PATHS, OWNED_PREFIXES
from trivium.server.openapi import openapi_document
from trivium.server.telemetry import documented_metrics

TARGET = Path(__file__).resolve().parent.parent / "docs" / "reference" / "http.md"

HEAD = """# HTTP API

Written by `tools/http_reference.py` from the tables that the server itself reads; `/openapi.json` has the same as a
document for machines. A field is honoured, or has no effect by design, or is refused with a 400 that names it; a field
that is in no table is refused too. `null` means that a field was not given.
"""


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Write a Markdown table."""
    names = list(header)
    yield "| " + " | ".join(names) + " |"
    yield "|" + "---|" * len(names)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def limits_of(schema: Mapping[str, Any]) -> str:
    """Write a field's JSON schema in few words."""
    if "anyOf" in schema:
        return " or ".join(limits_of(option) for option in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{option}`" for option in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        most = f", at most {schema['maxItems']}" if "maxItems" in schema else ""
        return f"array of {limits_of(schema['items'])}{most}"
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    if low is None or "maximum" not in schema:
        return kind
    return f"{kind}, {'>' if 'exclusiveMinimum' in schema else ''}{low} to {schema['maximum']}"


def sections() -> Iterator[str]:
    """Write the page, line by line."""
    yield HEAD
    yield from ("## Routes", "")
    yield from table(("path", "key", "what"), routes())
    common = {name: field for name, field in tables.COMPLETION_FIELDS.items() if name in tables.CHAT_FIELDS}
    for title, fields in (
        ("Fields of both generating routes", common),
        ("Further fields of `/v1/completions`", {k: v for k, v in tables.COMPLETION_FIELDS.items() if k not in common}),
        ("Further fields of `/v1/chat/completions`", {k: v for k, v in tables.CHAT_FIELDS.items() if k not in common}),
    ):
        yield from ("", f"## {title}", "")
        yield from table(
            ("field", "value", "meaning"), ((f"`{n}`", limits_of(f.schema), f.doc) for n, f in fields.items())
        )
    for title, own in (
        ("Fields of `/generate`", sglang_tables.GENERATE),
        ("Fields of `sampling_params`", sglang_tables.GENERATE_SAMPLING),
        ("Fields of `POST /v1/programs`", program_tables.PROGRAM_RUN),
        ("Fields of `POST /v1/programs/{name}`", program_tables.PUBLISHED_RUN),
    ):
        yield from ("", f"## {title}", "")
        yield from table(
            ("field", "value", "meaning"), ((f"`{n}`", limits_of(f.schema), f.doc) for n, f in own.honoured.items())
        )
    yield from ("", "## Fields without effect", "")
    harmless = {
        **tables.CHAT.bookkeeping,
        **sglang_tables.GENERATE.bookkeeping,
        **sglang_tables.CONCATENATE.bookkeeping,
    }
    yield from table(("field", "why"), ((f"`{name}`", why) for name, why in harmless.items()))
    yield from ("", "## Known fields that are refused", "", "Only values that ask for nothing pass.", "")
    yield from table(("field", "values that pass", "note"), unsupported())
    yield from ("", "## Limits", "")
    yield f"One request has at most {tables.MAX_PROMPTS} prompts and draws at most {job.MAX_ANSWERS} answers."
    yield from ("", "## Errors", "", 'All have the shape `{"error": {"message", "type", "param", "code"}}`.', "")
    yield from table(
        ("code", "status"), sorted({(f"`{k.code}`", str(k.http_status)) for k in all_errors(TriviumError)})
    )
    yield from ("", "## Why answers wait", "", "Reasons in `/v1/requests`, in spans and in metrics.", "")
    yield from table(
        ("reason", "the answer waits because"), ((f"`{name}`", why) for name, why in WAIT_MEANINGS.items())
    )
    yield from ("", "## Metrics", "")
    yield "The last column is vLLM's name for the same; `--vllm-metric-names` shows it under that name too."
    yield ""
    names = ("name", "kind", "meaning", "in vLLM")
    yield from table(names, ((f"`{n}`", kind, doc, code(theirs)) for n, kind, doc, theirs in documented_metrics()))


def code(text: str) -> str:
    """Write a word as code; nothing stays nothing."""
    return f"`{text}`" if text else ""


def routes() -> Iterator[tuple[str, str, str]]:
    """Describe every route in a row."""
    for path, operations in openapi_document()["paths"].items():
        for method in ("get", "post", "put", "delete"):
            if method in operations:
                yield f"{method.upper()} `{path}`", key_of(path, method), operations[method]["summary"]


def key_of(path: str, method: str) -> str:
    """Say which key a path wants."""
    if (path, method) in (("/v1/programs/{name}", "put"), ("/v1/programs/{name}", "delete")):
        return "admin key"
    if path in OPEN_PATHS:
        return "none"
    if path in ADMIN_PATHS:
        return "admin key"
    if path in GUARDED_PATHS:
        return "admin key, if any is set, else API key, if any is set"
    return "API key, if any is set" + (", or admin key" if path.startswith(OWNED_PREFIXES) else "")


def unsupported() -> Iterator[tuple[str, str, str]]:
    """Describe every refused field in a row."""
    known = {
        **sglang_tables.GENERATE_SAMPLING.unsupported,
        **sglang_tables.GENERATE.unsupported,
        **tables.COMPLETIONS.unsupported,
        **tables.CHAT.unsupported,
    }
    for name, field in sorted(known.items()):
        yield f"`{name}`", ", ".join(f"`{json.dumps(value)}`" for value in field.neutral), field.hint


def all_errors(root: type[TriviumError]) -> Iterator[type[TriviumError]]:
    """Walk the tree of errors, the server's own included."""
    yield root
    for child in root.__subclasses__():
        yield from all_errors(child)


def page() -> str:
    """Return the file's text."""
    return "\n".join(sections()) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_compare(TARGET, page, about=__doc__, behind="the server's tables: run tools/http_reference.py"))
