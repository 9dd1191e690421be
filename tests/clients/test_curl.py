"""`curl`: a whole answer, an unbuffered stream, an error; as the guides show it."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from support.spoken import MODEL, Spoken, chat_text
from support.sse import chunks

BODY: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hi"}],
    "temperature": 0,
    "max_tokens": 12,
}


def curl(spoken: Spoken, *flags: str, key: str | None = None, **fields: Any) -> str:
    program = shutil.which("curl")
    if program is None:
        pytest.skip("curl is not installed")
    command = [program, "-sS", *flags, f"{spoken.base_url}/chat/completions", "-H", "Content-Type: application/json"]
    command += ["-H", f"Authorization: Bearer {key or spoken.key}", "-d", json.dumps({**BODY, **fields})]
    return subprocess.run(command, capture_output=True, check=True, timeout=20).stdout.decode()  # noqa: S603


def test_a_whole_answer_is_json(spoken: Spoken) -> None:
    assert chat_text(json.loads(curl(spoken))) == chat_text(spoken.chat())


def test_a_stream_comes_event_by_event_and_ends_with_done(spoken: Spoken) -> None:
    text = curl(spoken, "-N", "-i", stream=True)

    head, _, body = text.replace("\r\n", "\n").partition("\n\n")
    assert "text/event-stream" in head.lower()
    assert body.rstrip().endswith("data: [DONE]")
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks(body)]
    assert "".join(deltas) == chat_text(spoken.chat())
    assert len(deltas) > 3


def test_errors_are_json_with_their_status(spoken: Spoken) -> None:
    for fields, status, code in (
        ({"model": "nope"}, 404, "model_not_found"),
        ({"temperature": 1000}, 400, "invalid_value"),
        ({"max_tokens": 5000, "stream": True}, 400, "context_length_exceeded"),
    ):
        body, _, shown = curl(spoken, "-w", "\n%{http_code}", **fields).rpartition("\n")
        assert (int(shown), json.loads(body)["error"]["code"]) == (status, code)
    assert curl(spoken, "-o", "/dev/null", "-w", "%{http_code}", key="wrong") == "401"
