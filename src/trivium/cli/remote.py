"""The other side of `trivium chat --url`: any OpenAI-compatible server, over server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trivium.base.errors import RequestError, TriviumError
from trivium.base.sse import event_data

if TYPE_CHECKING:
    import httpx

    from trivium.cli.chat import Answer, Message, Piece


class ServerAnswerError(TriviumError):
    """The server cannot be reached, or did not answer in the way of the OpenAI API."""


@contextmanager
def remote_answers(url: str, key: str | None, model: str | None, params: dict[str, Any]) -> Iterator[Answer]:
    """Yield what answers a conversation through a server.

    Args:
        url: Base address, with or without /v1.
        key: API key, sent as a bearer token.
        model: Name to ask for; the first that the server lists when `None`.
        params: Sampling parameters by their names in the request body.

    Raises:
        ServerAnswerError: The server cannot be reached.
    """
    import httpx  # noqa: PLC0415  (start-up time)

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    base = url.rstrip("/").removesuffix("/v1")
    timeout = httpx.Timeout(10.0, read=600.0)
    with httpx.Client(base_url=base, headers=headers, timeout=timeout) as client:
        name = model or _first_model(client)

        def answer(messages: list[Message]) -> Iterator[Piece]:
            body = {**params, "model": name, "messages": messages, "stream": True}
            try:
                with client.stream("POST", "/v1/chat/completions", json=body) as response:
                    if response.is_error:
                        response.read()
                        raise RequestError(message_of(response))
                    yield from _pieces(response)
            except httpx.HTTPError as error:
                raise ServerAnswerError(f"{base}: {error!r}") from error

        yield answer


def _first_model(client: httpx.Client) -> str:
    import httpx  # noqa: PLC0415  (start-up time)

    try:
        response = client.get("/v1/models")
        if response.is_error:
            raise ServerAnswerError(f"{client.base_url}: {message_of(response)}")
        return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise ServerAnswerError(f"{client.base_url} does not list a model: {error!r}") from error


def _pieces(response: httpx.Response) -> Iterator[Piece]:
    from trivium.cli.chat import Piece  # noqa: PLC0415  (which imports this module when it needs it)

    for payload in event_data(response.iter_bytes()):
        if payload == b"[DONE]":
            continue
        event = json.loads(payload)
        if "error" in event:
            raise RequestError(str(event["error"].get("message", event["error"])))
        for choice in event.get("choices", ()):
            delta = choice.get("delta", {})
            if thought := delta.get("reasoning_content") or delta.get("reasoning"):
                yield Piece(thought, is_reasoning=True)
            if text := delta.get("content"):
                yield Piece(text)


def message_of(response: httpx.Response) -> str:
    """Return what an answer says of its error."""
    try:
        return f"{response.json()['error']['message']} (status {response.status_code})"
    except (ValueError, LookupError, TypeError):
        return f"status {response.status_code}"
