"""The other side of `trivium run --url`: a program inside a server, whose tools are called here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trivium.base.errors import ConfigError, RequestError
from trivium.base.sse import event_data
from trivium.cli.remote import ServerAnswerError, message_of

Event = dict[str, Any]


def run_remotely(
    url: str,
    key: str | None,
    program: Mapping[str, Any],
    arguments: Mapping[str, Any],
    tools: Mapping[str, Callable[..., Any]],
) -> Iterator[Event]:
    """Run a program and yield its events; the last one is `run.ended`.

    Args:
        url: Base address, with or without /v1.
        key: API key, sent as a bearer token.
        program: As JSON.
        arguments: By name.
        tools: What its tools call.

    Raises:
        ServerAnswerError: The server cannot be reached, or ends before the program does.
        RequestError: It refuses the program, or the program failed there.
        ConfigError: The program calls a tool that is not known here.
    """
    import httpx  # noqa: PLC0415  (start-up time)

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    base = url.rstrip("/").removesuffix("/v1")
    body = {"program": program, "arguments": arguments, "stream": True}
    try:
        with (
            httpx.Client(base_url=base, headers=headers, timeout=httpx.Timeout(10.0, read=600.0)) as client,
            client.stream("POST", "/v1/programs", json=body) as response,
        ):
            if response.is_error:
                response.read()
                raise RequestError(message_of(response))
            run_id = ""
            for data in event_data(response.iter_bytes()):
                if data == b"[DONE]":
                    continue
                event: Event = json.loads(data)
                run_id = event.get("run_id", run_id)
                if event["type"] == "tool.call":
                    _answer(client, run_id, event, tools)
                if event["type"] == "run.error":
                    raise RequestError(str(event["error"]["message"]))
                yield event
                if event["type"] == "run.ended":
                    return
    except httpx.HTTPError as error:
        raise ServerAnswerError(f"{base}: {error!r}") from error
    raise ServerAnswerError(f"{base}: the stream ended before the program did")


def _answer(client: Any, run_id: str, call: Event, tools: Mapping[str, Callable[..., Any]]) -> None:
    """Call a tool and post what it returns, or why it failed."""
    tool = tools.get(call["tool"])
    if tool is None:
        known = ", ".join(tools) or "none"
        raise ConfigError(f"the program calls the tool '{call['tool']}'; known are {known} (see function(tools=...))")
    try:
        answer: Event = {"result": tool(**call["args"])}
    except Exception as error:
        answer = {"error": f"{error!r:.500}"}
    client.post(f"/v1/programs/runs/{run_id}/tools/{call['call_id']}", json=answer).raise_for_status()
