"""A server that speaks as OpenAI's and Anthropic's do, answers by a script, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Script = Callable[[Mapping[str, Any]], str]
"""Body of a request to the model's text, before stops cut it."""


@dataclass(slots=True)
class FakeApi:
    """What a server is to say, and what it was asked."""

    script: Script
    owner: str = "other"
    """Owner of its models, by which servers are told apart."""
    fail_with: int | None = None
    hang: threading.Event | None = None
    """Wait for this after the first piece of every answer."""
    piece_len: int = 3
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    num_open: int = 0
    """Answers under way."""

    def bodies(self) -> list[dict[str, Any]]:
        """What was posted, in order."""
        return self.asked

    def answer(self, body: Mapping[str, Any]) -> tuple[str, str, str | None]:
        """Text, finish reason and stop."""
        text, reason, matched = self.script(body), "stop", None
        stops = body.get("stop") or body.get("stop_sequences") or []
        ends = [(text.find(stop), stop) for stop in stops if stop in text]
        if ends:
            end, matched = min(ends)
            text = text[:end]
        most = body.get("max_tokens", body.get("max_completion_tokens"))
        if most is not None and len(text) > most:  # a token is a letter here
            text, reason, matched = text[:most], "length", None
        return text, reason, matched


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: FakeApi

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        models = [{"id": "m", "object": "model", "created": 1, "owned_by": self.api.owner}]
        self._whole(200, {"object": "list", "data": models})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.api.asked.append({"path": self.path, **body})
        self.api.headers.append({name.lower(): value for name, value in self.headers.items()})
        if self.api.fail_with is not None:
            self._whole(self.api.fail_with, {"error": {"message": "no such luck", "type": "t"}})
            return
        self.api.num_open += 1
        try:
            self._post(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self.api.num_open -= 1

    def _post(self, body: Mapping[str, Any]) -> None:
        if self.path.endswith("/messages"):
            self._stream(_anthropic(self.api, body))
        elif body.get("echo"):
            self._whole(200, _echo(body))
        else:
            self._stream(_openai(self.api, body, is_chat="chat" in self.path))

    def _whole(self, status: int, value: Mapping[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Iterator[str]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        for idx, event in enumerate(events):
            self.wfile.write(event.encode())
            self.wfile.flush()
            if idx == 1 and self.api.hang is not None:
                while not self.api.hang.wait(0.01):
                    self.wfile.write(b": still here\n\n")
                    self.wfile.flush()


def _openai(api: FakeApi, body: Mapping[str, Any], *, is_chat: bool) -> Iterator[str]:
    def chunk(**fields: Any) -> str:
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        return (
            "data: "
            + json.dumps({"id": "1", "object": kind, "created": 1, "model": "m", "choices": [], **fields})
            + "\n\n"
        )

    def choice(idx: int, text: str, reason: str | None = None, matched: str | None = None) -> dict[str, Any]:
        own: dict[str, Any] = {"delta": {"content": text}} if is_chat else {"text": text}
        if body.get("logprobs") is not None and text:
            letters = [(letter, -float(at)) for at, letter in enumerate(text, start=1)]
            own["logprobs"] = (
                {"content": [{"token": each, "logprob": value, "top_logprobs": []} for each, value in letters]}
                if is_chat
                else {"tokens": list(text), "token_logprobs": [value for _, value in letters], "top_logprobs": None}
            )
        return {"index": idx, "finish_reason": reason, "stop_reason": matched, **own}

    total = 0
    for idx in range(body.get("n", 1)):
        text, reason, matched = api.answer(body)
        total += len(text)
        for at in range(0, len(text), api.piece_len):
            yield chunk(choices=[choice(idx, text[at : at + api.piece_len])])
        yield chunk(choices=[choice(idx, "", reason, matched)])
    if body.get("stream_options"):
        prompt = body.get("prompt") or json.dumps(body.get("messages"))
        yield chunk(
            usage={"prompt_tokens": len(prompt), "completion_tokens": total, "total_tokens": len(prompt) + total}
        )
    yield "data: [DONE]\n\n"


def _echo(body: Mapping[str, Any]) -> dict[str, Any]:
    """Score prompts cut into pairs of letters: the logprob of a pair is minus its place in the alphabet."""
    choices = []
    for idx, prompt in enumerate(body["prompt"]):
        tokens = [prompt[at : at + 2] for at in range(0, len(prompt), 2)]
        logprobs = {
            "tokens": tokens,
            "token_logprobs": [None, *(-float(ord(token[0]) - ord("a")) for token in tokens[1:])],
            "text_offset": list(range(0, len(prompt), 2)),
            "top_logprobs": None,
        }
        choices.append({"index": idx, "text": prompt, "finish_reason": "length", "logprobs": logprobs})
    usage = {"prompt_tokens": 7, "completion_tokens": 0, "total_tokens": 7}
    return {"id": "1", "object": "text_completion", "created": 1, "model": "m", "choices": choices, "usage": usage}


def _anthropic(api: FakeApi, body: Mapping[str, Any]) -> Iterator[str]:
    def event(kind: str, **fields: Any) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"

    text, reason, matched = api.answer(body)
    usage = {"input_tokens": 11, "output_tokens": 1, "cache_read_input_tokens": 4}
    message = {
        "id": "1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    yield event("message_start", message=message)
    yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for at in range(0, len(text), api.piece_len):
        yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": text[at : at + api.piece_len]})
    yield event("content_block_stop", index=0)
    named = {"length": "max_tokens"}.get(reason, "stop_sequence" if matched else "end_turn")
    yield event(
        "message_delta", delta={"stop_reason": named, "stop_sequence": matched}, usage={"output_tokens": len(text)}
    )
    yield event("message_stop")


@contextmanager
def fake_api(script: Script | list[str], **fields: Any) -> Iterator[FakeApi]:
    """Run a server in a thread."""
    left = iter(script) if isinstance(script, list) else None
    api = FakeApi(script if callable(script) else lambda _: next(left or iter(())), **fields)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": api}))
    server.daemon_threads = True
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        if api.hang is not None:
            api.hang.set()
        server.shutdown()
        server.server_close()
        thread.join()
