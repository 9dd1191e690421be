"""Reading a request body: bounded while it arrives, and JSON in the strict sense.

Refused with 4xx: anything but UTF-8, a byte-order mark, NaN and infinities (also as 1e999), duplicate keys, lone
surrogates, nesting too deep for the parser, a root that is no object, an empty body.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, NoReturn

from starlette.types import Receive, Scope

from trivium.server.errors import BadBodyError, BodyTimeoutError, BodyTooLargeError, ClientGoneError, MediaTypeError
from trivium.server.fields import root_field

MAX_PLACE_CHARS = 100
"""Longest name of a place in the body that an error shows."""
MAX_BYTES_AT_ONCE = 1 << 15
"""Longest body that is parsed in the event loop: a third of a millisecond. A longer one would hold up the streams of
others, 0.1 s for each megabyte, so a thread parses it, with which the loop takes turns."""
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
    body = await _read(receive, max_bytes, idle_s)
    if len(body) > MAX_BYTES_AT_ONCE:
        return await asyncio.to_thread(parse_json_object, body)
    return parse_json_object(body)


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
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadBodyError(f"the body is not UTF-8: byte {error.start} does not decode") from error
    root = _parse(text)
    if not isinstance(root, dict):
        raise BadBodyError("the body must be a JSON object")
    if b"\\ud" in body or b"\\uD" in body:
        where = _first_place(root, _is_half_character)
        if where is not None:
            raise _bad_field(where, "it holds half of a surrogate pair, which is no character")
    return root


def _parse(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except _NoNumberError as error:
        where = _place_of_no_number(text)
        if where is None:
            raise BadBodyError(f"the body is not JSON: {error}") from error
        raise _bad_field(where, str(error)) from error
    except json.JSONDecodeError as error:
        raise BadBodyError(f"the body is not JSON: {error.msg} at character {error.pos}") from error
    except RecursionError:
        raise BadBodyError("the body is nested too deeply") from None
    except ValueError as error:
        raise BadBodyError(f"the body is not JSON: {_reason(error)}") from error


def _place_of_no_number(text: str) -> str | None:
    """Find what holds the first NaN or infinity; `None` when what follows it is no JSON either."""
    try:
        return _first_place(_LENIENT_DECODER.decode(text), _is_no_number)
    except (ValueError, RecursionError):
        return None


def _bad_field(where: str, reason: str) -> BadBodyError:
    shown = where[:MAX_PLACE_CHARS].encode("utf-8", "replace").decode()
    return BadBodyError(f"{shown}: {reason}", param=root_field(shown))


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


class _NoNumberError(ValueError):
    """A number that JSON does not have."""


def _refuse_constant(name: str) -> NoReturn:
    raise _NoNumberError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _NoNumberError("the number is too large")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"an object has the key '{twice[:MAX_PLACE_CHARS]}' twice")
    return entries


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique)
_LENIENT_DECODER = json.JSONDecoder()


def _reason(error: ValueError) -> str:
    text = str(error)
    return "a number has too many digits" if "digits" in text else text


def _first_place(root: Any, is_bad: Callable[[Any], bool]) -> str | None:
    """Name where a bad key or value is, such as `messages[0].content`; `None` when there is none."""
    path: list[str | int] = []
    open_levels = [_children(root)]
    while open_levels:
        key, child = next(open_levels[-1], (None, None))
        if key is None:
            open_levels.pop()
            del path[-1:]
        elif is_bad(key) or is_bad(child):
            return _spelled([*path, key])
        elif isinstance(child, dict | list):
            path.append(key)
            open_levels.append(_children(child))
    return None


def _children(value: Any) -> Iterator[tuple[str | int, Any]]:
    return iter(value.items() if isinstance(value, dict) else enumerate(value))


def _spelled(path: Sequence[str | int]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


def _is_no_number(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _is_half_character(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return True
    return False
