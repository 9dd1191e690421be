"""One streamed request against an OpenAI-compatible server, timed token by token."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from trivium.base.sse import event_data_async

_MAX_SHOWN_CHARS = 300


class BadStreamError(Exception):
    """What the server sent is not a stream of JSON events that ends."""


@dataclass(slots=True, kw_only=True)
class Measured:
    """What one request took."""

    began_s: float
    ttft_s: float | None = None
    """Time to the first piece of text."""
    gaps_s: list[float] = field(default_factory=list)
    """Times between pieces (inter-token latency when a piece is a token)."""
    ended_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tells_cached: bool = False
    """Whether the server said how many prompt tokens came from its cache."""
    completion_tokens: int = 0
    text: str = ""
    error: str | None = None

    @property
    def e2e_s(self) -> float:
        """Whole time."""
        return self.ended_s - self.began_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; `None` for answers of fewer than two tokens."""
        if self.ttft_s is None or self.completion_tokens < 2:  # noqa: PLR2004
            return None
        return (self.e2e_s - self.ttft_s) / (self.completion_tokens - 1)

    @property
    def is_cached(self) -> bool:
        """Whether at least a quarter of the prompt came from the server's cache.

        A cache that is exact to the token finds a few tokens for almost every prompt (the start token, the beginning of
        the chat template); that does not make it warm. The second of two equal turns finds nearly half.
        """
        return self.cached_tokens > 0 and self.cached_tokens * 4 >= self.prompt_tokens


async def measure(client: httpx.AsyncClient, path: str, body: dict[str, Any], *, timeout_s: float) -> Measured:
    """Send one request with `stream: true` and time what comes back; a failed request is a result too.

    Args:
        client: Knows the server and the key.
        path: Route to post to.
        body: The request.
        timeout_s: Longest time of the whole request.
    """
    result = Measured(began_s=time.perf_counter())
    try:
        async with asyncio.timeout(timeout_s), client.stream("POST", path, json=body) as response:
            if response.status_code == httpx.codes.OK:
                await _follow(result, response)
            else:
                text = (await response.aread()).decode(errors="replace")
                result.error = f"HTTP {response.status_code}: {text[:_MAX_SHOWN_CHARS]}"
    except TimeoutError:
        result.error = f"not finished after {timeout_s:g} s"
    except (httpx.HTTPError, BadStreamError) as error:
        result.error = f"{type(error).__name__}: {error}"
    result.ended_s = time.perf_counter()
    if result.error is None and result.completion_tokens == 0:
        result.completion_tokens = len(result.gaps_s) + (result.ttft_s is not None)
    return result


async def _follow(result: Measured, response: httpx.Response) -> None:
    """Read a stream to its end."""
    last_s = result.began_s
    is_over = False
    async for event in _events(response):
        if event is None or _has_ended(event):
            is_over = True
        if event is not None:
            last_s = _take(result, event, last_s)
    if not is_over and result.error is None:
        raise BadStreamError("the stream ended without a finish_reason or [DONE]")


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any] | None]:
    """Yield each event's object, and `None` for `[DONE]`."""
    async for payload in event_data_async(response.aiter_bytes()):
        yield None if payload == b"[DONE]" else _object(payload)


def _object(payload: bytes) -> dict[str, Any]:
    try:
        event = json.loads(payload)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        shown = payload[:_MAX_SHOWN_CHARS].decode("utf-8", "replace")
        raise BadStreamError(f"an event is no JSON object: {shown}")
    return event


def _has_ended(event: dict[str, Any]) -> bool:
    return any(choice.get("finish_reason") for choice in event.get("choices") or ())


def _take(result: Measured, event: dict[str, Any], last_s: float) -> float:
    """Record one event; returns when the last piece of text came."""
    if event.get("error"):
        result.error = str(event["error"])[:_MAX_SHOWN_CHARS]
        return last_s
    usage = event.get("usage")
    if usage:
        result.prompt_tokens = usage.get("prompt_tokens", 0)
        result.completion_tokens = usage.get("completion_tokens", 0)
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        result.tells_cached, result.cached_tokens = cached is not None, cached or 0
    piece = _text_of(event)
    if not piece:
        return last_s
    now_s = time.perf_counter()
    if result.ttft_s is None:
        result.ttft_s = now_s - result.began_s
    else:
        result.gaps_s.append(now_s - last_s)
    result.text += piece
    return now_s


def _text_of(event: dict[str, Any]) -> str:
    choices = event.get("choices") or []
    if not choices:
        return ""
    return choices[0].get("text") or (choices[0].get("delta") or {}).get("content") or ""
