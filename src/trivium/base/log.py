"""How the log looks: lines for people, or one JSON object a line. Called once, where a process starts.

Every module logs through `logging.getLogger(__name__)`. A message names requests by their id and never holds prompt
text, answers or keys; keys that were registered with `set_up` are blanked even so. The id of the request at work comes
from `about_request`, or from `extra={"request_id": ...}`. What else is in `extra` becomes fields of the JSON form; a
message says the same in words.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal, TextIO

ROOT = "trivium"
"""Logger above all of ours; loggers of other libraries are left alone."""
BLANK = "****"

_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
_trace_id: ContextVar[str | None] = ContextVar("trace_id", default=None)


@contextmanager
def about_request(request_id: str, trace_id: str | None = None) -> Iterator[None]:
    """Put a request's id, and its trace's, on every message logged inside the block, by this task or thread."""
    token, trace_token = _request_id.set(request_id), _trace_id.set(trace_id)
    try:
        yield
    finally:
        _request_id.reset(token)
        _trace_id.reset(trace_token)


def join_trace(trace_id: str | None) -> None:
    """Put a trace's id on every message from now on, until the block of `about_request` ends."""
    _trace_id.set(trace_id)


def set_up(
    *,
    level: Literal["debug", "info", "warning", "error"] = "info",
    form: Literal["text", "json"] = "text",
    stream: TextIO | None = None,
    secrets: Iterable[str] = (),
) -> None:
    """Send our log to a stream, replacing what an earlier call set up.

    Args:
        level: Least important level that is shown.
        form: Lines for people (in colour on a terminal), or one JSON object a line.
        stream: Where to; standard error when `None`.
        secrets: Texts that never appear in the log.
    """
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    kind = JsonLines if form == "json" else PlainLines
    handler.setFormatter(kind(secrets, is_coloured=form == "text" and target.isatty()))
    logger = logging.getLogger(ROOT)
    for old in logger.handlers[:]:
        if isinstance(old.formatter, _Lines):
            logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level.upper())


_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; anything beyond came with `extra`."""


class _Lines(logging.Formatter):
    """What both forms share: the request's id, and blanked secrets."""

    def __init__(self, secrets: Iterable[str] = (), *, is_coloured: bool = False) -> None:
        super().__init__()
        self._secrets = sorted((secret for secret in secrets if secret), key=len, reverse=True)
        self._is_coloured = is_coloured

    def format(self, record: logging.LogRecord) -> str:
        line = self._line(record, getattr(record, "request_id", None) or _request_id.get())
        for secret in self._secrets:
            line = line.replace(secret, BLANK)
        return line

    def _line(self, record: logging.LogRecord, request_id: str | None) -> str:
        raise NotImplementedError


_COLOURS = {"DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "31"}


class PlainLines(_Lines):
    """`12:30:01 WARNING engine.loop [chatcmpl-1] message`."""

    def _line(self, record: logging.LogRecord, request_id: str | None) -> str:
        time = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        about = f" [{request_id}]" if request_id else ""
        line = f"{time} {record.levelname} {record.name.removeprefix(ROOT + '.')}{about} {record.getMessage()}"
        if self._is_coloured and (colour := _COLOURS.get(record.levelname)):
            line = f"\x1b[{colour}m{line}\x1b[0m"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(_Lines):
    """One object a line: time (UTC, ISO 8601), level, logger, message; request_id, trace_id, error when there are.

    Fields given as `extra` follow, `null` included; none of them replaces one of the fixed fields.
    """

    def _line(self, record: logging.LogRecord, request_id: str | None) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id:
            entry["request_id"] = request_id
        if (trace_id := getattr(record, "trace_id", None) or _trace_id.get()) is not None:
            entry["trace_id"] = trace_id
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        for name, value in vars(record).items():
            if name not in _OWN_FIELDS:
                entry.setdefault(name, value)
        return json.dumps(entry, ensure_ascii=False, default=str)
