"""One streamed request against an OpenAI-compatible server, timed token by token."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx


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


async def measure(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Measured:
    """Send one request with `stream: true` and time what comes back; never raises for a failed request."""
    result = Measured(began_s=time.perf_counter())
    last_s = result.began_s
    try:
        async with client.stream("POST", path, json=body) as response:
            if response.status_code != httpx.codes.OK:
                text = (await response.aread()).decode(errors="replace")
                result.error = f"HTTP {response.status_code}: {text[:300]}"
            else:
                async for event in _events(response):
                    last_s = _take(result, event, last_s)
    except httpx.HTTPError as error:
        result.error = f"{type(error).__name__}: {error}"
    result.ended_s = time.perf_counter()
    if result.error is None and result.completion_tokens == 0:
        result.completion_tokens = len(result.gaps_s) + (result.ttft_s is not None)
    return result


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[6:])


def _take(result: Measured, event: dict[str, Any], last_s: float) -> float:
    """Record one event; returns when the last piece of text came."""
    if event.get("error"):
        result.error = str(event["error"])
        return last_s
    usage = event.get("usage")
    if usage:
        result.prompt_tokens = usage.get("prompt_tokens", 0)
        result.completion_tokens = usage.get("completion_tokens", 0)
        result.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
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
