"""Reading a request body: bounded while it arrives, and JSON in the strict sense.

Refused with 4xx: anything but UTF-8, a byte-order mark, NaN and infinities (also as 1e999), duplicate keys, lone
surrogates, nesting too deep for the parser, a root that is no object, an empty body.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import MutableMapping
from typing import Any, NoReturn

from starlette.types import Receive, Scope

from trivium.server.errors import BadBodyError, BodyTimeoutError, BodyTooLargeError, ClientGoneError, MediaTypeError

BODY_IDLE_S = 30.0
"""Seconds without a byte of the body after which the request is given up."""


async def read_json_object(
    scope: Scope, receive: Receive, *, max_bytes: int, idle_s: float = BODY_IDLE_S
) -> dict[str, Any]:
    """Receive the body and parse it.

    Raises:
        BodyTimeoutError: Nothing of it arrived for `idle_s`.
        MediaTypeError: It is declared as something other than JSON.
        BodyTooLargeError: It is longer than `max_bytes`; found as soon as that many bytes have arrived.
        BadBodyError: It is no strict JSON object.
        ClientGoneError: The connection closed first.
    """
    headers: dict[bytes, bytes] = dict(scope["headers"])
    _check_media_type(headers)
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    return parse_json_object(await _read(receive, max_bytes, idle_s))


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object strictly.

    Raises:
        BadBodyError: See the module docstring.
    """
    if not body.strip():
        raise BadBodyError("the body is empty; it must be a JSON object")
    if body.startswith(b"\xef\xbb\xbf"):
        raise BadBodyError("the body begins with a byte-order mark; send plain UTF-8")
    try:
        root = _DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadBodyError(f"the body is not UTF-8: byte {error.start} does not decode") from error
    except json.JSONDecodeError as error:
        raise BadBodyError(f"the body is not JSON: {error.msg} at character {error.pos}") from error
    except RecursionError:
        raise BadBodyError("the body is nested too deeply") from None
    except ValueError as error:
        raise BadBodyError(f"the body is not JSON: {_reason(error)}") from error
    if not isinstance(root, dict):
        raise BadBodyError("the body must be a JSON object")
    if b"\\ud" in body or b"\\uD" in body:
        _refuse_lone_surrogates(root)
    return root


async def _read(receive: Receive, max_bytes: int, idle_s: float) -> bytes:
    chunks: list[bytes] = []
    num_bytes = 0
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(idle_s) as patience:
            while True:
                message: MutableMapping[str, Any] = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                chunk = message.get("body", b"")
                num_bytes += len(chunk)
                if num_bytes > max_bytes:
                    raise _too_large(max_bytes)
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
                patience.reschedule(loop.time() + idle_s)
    except TimeoutError:
        raise BodyTimeoutError(f"nothing of the body arrived for {idle_s:g} s") from None


def _check_media_type(headers: dict[bytes, bytes]) -> None:
    # A browser sends JSON across origins only after asking (CORS), but a form, plain text or an untyped blob at once:
    # taking those would let any web page use a server on this machine.
    declared = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    is_json = declared == b"application/json" or declared.endswith(b"+json")
    if not is_json and (declared or b"origin" in headers):
        raise MediaTypeError("the body must have Content-Type: application/json")


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is larger than the limit of {max_bytes} bytes")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("an object has the same key twice")
    return entries


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique)


def _reason(error: ValueError) -> str:
    text = str(error)
    return "a number has too many digits" if "digits" in text else text


def _refuse_lone_surrogates(root: dict[str, Any]) -> None:
    pending: list[Any] = [root]
    while pending:
        value = pending.pop()
        if isinstance(value, str) and not _is_encodable(value):
            raise BadBodyError("a text holds half of a surrogate pair, which is no character")
        if isinstance(value, dict):
            pending.extend(value)
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
