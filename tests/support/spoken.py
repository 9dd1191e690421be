"""A server and its plain answers, to compare the answers of client libraries with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

MODEL = "tiny"


@dataclass(frozen=True, slots=True)
class Spoken:
    """Where a server is, and how to ask it without any client library."""

    address: str
    """Without `/v1`."""
    key: str
    plain: httpx.Client

    @property
    def base_url(self) -> str:
        """What OpenAI's clients call `base_url`."""
        return f"{self.address}/v1"

    def chat(self, content: str = "hi", **fields: Any) -> dict[str, Any]:
        """Answer of `/v1/chat/completions`, greedy and 12 tokens long unless `fields` say otherwise."""
        messages = [{"role": "user", "content": content}]
        return self.post("chat/completions", messages=messages, **{"max_tokens": 12, "temperature": 0, **fields})

    def complete(self, prompt: str = "hi", **fields: Any) -> dict[str, Any]:
        """Answer of `/v1/completions`, likewise."""
        return self.post("completions", prompt=prompt, **{"max_tokens": 12, "temperature": 0, **fields})

    def post(self, route: str, **fields: Any) -> dict[str, Any]:
        """Ask a route under `/v1`."""
        response = self.plain.post(f"{self.base_url}/{route}", json={"model": MODEL, **fields})
        assert response.status_code == httpx.codes.OK, response.text
        return dict(response.json())


def chat_text(answer: dict[str, Any]) -> str:
    """Text of the first choice."""
    return str(answer["choices"][0]["message"]["content"])
