"""The field tables of programs: what a run is given, and what a published one is."""

from __future__ import annotations

from typing import Any

from trivium.server.fields import Field, FieldTable, count, flag, refused, text, whatever
from trivium.server.tables import COMPLETION_FIELDS, SAMPLING_FIELDS

DEFAULTS = (
    "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "ignore_eos", "stop",
    "max_tokens",
)  # fmt: skip
"""Fields that hold for each gen that does not say otherwise."""


def _object(doc: str) -> Field:
    def read(name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise refused(name, value, "an object")
        return value

    return Field(read, {"type": "object"}, doc)


_COMMON = {
    "model": COMPLETION_FIELDS["model"],
    "arguments": _object("Every parameter's value by name; those with a default may be left out."),
    "stream": flag("Send what happens as server-sent events: variables as they grow, calls of tools, the end."),
    **{name: SAMPLING_FIELDS[name] for name in DEFAULTS if name in SAMPLING_FIELDS},
    "max_tokens": count(0, (1 << 31) - 1, "Most tokens of each gen that does not say; 128 unless given."),
    "cache_salt": COMPLETION_FIELDS["cache_salt"],
    "priority": COMPLETION_FIELDS["priority"],
}
_BOOKKEEPING = {"user": "Names the end user; without API keys, the tenant of --fair-share."}
PROGRAM_RUN = FieldTable(
    honoured={"program": _object("The program, as JSON."), **_COMMON}, bookkeeping=_BOOKKEEPING, unsupported={}
)
"""Fields of `POST /v1/programs`."""
PUBLISHED_RUN = FieldTable(
    honoured={"version": count(1, (1 << 31) - 1, "Which version; the newest unless given."), **_COMMON},
    bookkeeping=_BOOKKEEPING,
    unsupported={},
)
"""Fields of `POST /v1/programs/{name}`."""
PUBLISH = FieldTable(honoured={"program": _object("The program, as JSON.")}, bookkeeping={}, unsupported={})
"""Fields of `PUT /v1/programs/{name}`."""
TOOL_RESULT = FieldTable(
    honoured={
        "result": whatever({}, "What the tool returns: any JSON."),
        "error": text("Why it failed, instead of a result; the program then fails at the call.", max_chars=1000),
    },
    bookkeeping={},
    unsupported={},
)
"""Fields of `POST /v1/programs/runs/{run_id}/tools/{call_id}`."""
