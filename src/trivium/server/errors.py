"""Errors as HTTP: the exceptions that only a server has, and OpenAI's JSON shape for all of them.

::

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}

The body never holds a traceback, a key, or more than a few hundred characters of what the client sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from http import HTTPStatus
from typing import Self

import msgspec

from trivium.base.errors import (
    AuthenticationError,
    CapacityError,
    EngineDeadError,
    ProgramError,
    RequestError,
    RequestTooLargeError,
    TriviumError,
)

MAX_MESSAGE_CHARS = 600


class BadBodyError(RequestError):
    """The body is no JSON object in UTF-8."""

    code = "invalid_json"


class BodyTooLargeError(RequestTooLargeError):
    """The body is longer than `--max-body-bytes`."""


class BodyTimeoutError(RequestError):
    """The client stopped sending in the middle of its body."""

    http_status = 408
    code = "request_timeout"


class MediaTypeError(RequestError):
    """The body is declared as something other than JSON."""

    http_status = 415
    code = "unsupported_media_type"


class RouteNotFoundError(RequestError):
    """No route of that path."""

    http_status = 404
    code = "not_found"


class KVEventsOffError(RequestError):
    """The engine was not told to say what happens to its cache."""

    http_status = 404
    code = "kv_events_off"


class AdapterNotFoundError(RequestError):
    """There is no folder of that path below `--lora-root`."""

    http_status = 404
    code = "adapter_not_found"


class PinNotFoundError(RequestError):
    """Nothing of that id is pinned in the cache."""

    http_status = 404
    code = "pin_not_found"


class RequestNotFoundError(RequestError):
    """No request of that id is known to its asker."""

    http_status = 404
    code = "request_not_found"


class ProgramNotFoundError(RequestError):
    """No program of that name is published, or not in that version."""

    http_status = 404
    code = "program_not_found"


class RunNotFoundError(RequestError):
    """No run of a program of that id is under way for its asker, or no tool of it waits under that id."""

    http_status = 404
    code = "run_not_found"


class ProgramLimitError(RequestError):
    """A program does more than this server lets one do; the message names the limit."""

    code = "program_limit"


class ProgramFailedError(TriviumError):
    """A primitive of a program failed; status and code are those of what made it fail."""

    code = "program_error"

    @classmethod
    def of(cls, error: ProgramError) -> Self:
        """Tell of an error of the language as the server does."""
        made, cause = cls(str(error)), error.__cause__
        made.http_status = HTTPStatus.BAD_REQUEST  # of the program's own doing, where its cause does not say otherwise
        if isinstance(cause, TriviumError):
            made.http_status, made.code = cause.http_status, cause.code
        return made


class MethodNotAllowedError(RequestError):
    """The route exists and does not take this method."""

    http_status = 405
    code = "method_not_allowed"


class ForbiddenError(RequestError):
    """The key is known and not allowed here, or the route is switched off."""

    http_status = 403
    code = "permission_denied"


class BadConfigError(RequestError):
    """The options cannot be read again; the server goes on with those that it has."""

    http_status = 409
    code = "config_error"


class NotReadyError(CapacityError):
    """The model is still loading, or the engine does not answer."""

    code = "not_ready"


class ShuttingDownError(CapacityError):
    """The server was told to stop."""

    code = "shutting_down"


class AnswerFailedError(TriviumError):
    """The engine ended the answer with an error; code and status are those of the error, where it named one."""

    code = "engine_error"

    def __init__(self, message: str, *, code: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code
            self.http_status = _STATUS_OF_CODE.get(code, self.http_status)


class AnswerAbortedError(AnswerFailedError):
    """The engine ended the answer early though its client is still there."""

    code = "aborted"


class ClientGoneError(Exception):
    """The client closed the connection; nobody is left to be told."""


def _tree(root: type[TriviumError]) -> Iterator[type[TriviumError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


_STATUS_OF_CODE = {kind.code: kind.http_status for kind in _tree(TriviumError)}


def error_status(error: BaseException) -> int:
    """HTTP status of an error; 500 for what is not ours."""
    return error.http_status if isinstance(error, TriviumError) else 500


def error_body(error: BaseException) -> bytes:
    """Encode an error as OpenAI's JSON object; the text of foreign exceptions stays inside."""
    if isinstance(error, TriviumError):
        message = str(error) or type(error).__name__
        code = error.code
    else:
        message, code = "internal error; the server's log has the details", "internal_error"
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[:MAX_MESSAGE_CHARS] + "..."
    status = error_status(error)
    inner = {
        "message": message.encode("utf-8", "replace").decode(),
        "type": _error_type(status),
        "param": getattr(error, "param", None),
        "code": code,
    }
    return msgspec.json.encode({"error": inner})


def error_headers(error: BaseException) -> list[tuple[bytes, bytes]]:
    """Headers that belong to an error, besides type and length."""
    if (retry_after_s := getattr(error, "retry_after_s", None)) is not None:
        return [(b"retry-after", str(max(1, math.ceil(retry_after_s))).encode())]
    if isinstance(error, EngineDeadError):
        return [(b"retry-after", b"5")]
    if isinstance(error, AuthenticationError):
        return [(b"www-authenticate", b"Bearer")]
    if isinstance(error, BodyTooLargeError | MediaTypeError | BodyTimeoutError):
        return [(b"connection", b"close")]
    return []


def _error_type(status: int) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    if status == HTTPStatus.UNAUTHORIZED:
        return "authentication_error"
    return "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
