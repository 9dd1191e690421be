"""`chat --url` against a small server that speaks just enough of the OpenAI API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from support.command_line import Run


class Site(ThreadingHTTPServer):
    """Remembers what was asked; answers `pieces` as a stream, or `refusal` with status 400."""

    daemon_threads = True
    refusal: dict[str, Any] | None = None
    pieces: tuple[str, ...] = ("Hel", "lo", " 世\u2028\x85界")
    thoughts: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.keys.append(self.headers.get("Authorization"))
        self._send(json.dumps({"data": [{"id": "first"}, {"id": "second"}]}).encode(), "application/json")

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if self.server.refusal is not None:
            self._send(json.dumps({"error": self.server.refusal}).encode(), "application/json", 400)
            return
        events = [{"choices": [{"delta": {"reasoning_content": piece}}]} for piece in self.server.thoughts]
        events += [{"choices": [{"delta": {"content": piece}}]} for piece in self.server.pieces]
        lines = [
            ": keep-alive",
            *(f"data: {json.dumps(event, ensure_ascii=False)}" for event in events),
            "data: [DONE]",
        ]
        self._send("".join(f"{line}\n\n" for line in lines).encode(), "text/event-stream")

    def _send(self, body: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_conversation_goes_to_the_server_and_grows(trivium: Run, site: Site) -> None:
    outcome = trivium("chat", "--url", f"{site.url}/v1", "--key", "k", "--top-k", "3", stdin="hi\nmore\n")
    assert outcome.out == "Hello 世\u2028\x85界\nHello 世\u2028\x85界\n"
    first, second = site.bodies
    assert first == {"model": "first", "messages": [{"role": "user", "content": "hi"}], "stream": True, "top_k": 3}
    assert second["messages"][1] == {"role": "assistant", "content": "Hello 世\u2028\x85界"}
    assert site.keys == ["Bearer k"]


def test_a_refusal_is_told_and_the_message_forgotten(trivium: Run, site: Site) -> None:
    site.refusal = {"message": "temperature is too hot"}
    outcome = trivium("chat", "second", "--url", site.url, stdin="hi\nagain\n")
    assert outcome.code == 0
    assert outcome.err.count("temperature is too hot (status 400)") == 2
    assert [body["messages"] for body in site.bodies][1] == [{"role": "user", "content": "again"}]
    assert site.bodies[0]["model"] == "second"


def test_a_server_that_is_not_there_is_an_error(trivium: Run, site: Site) -> None:
    address = site.url
    site.server_close()
    outcome = trivium("chat", "--url", address.replace(str(site.server_port), "9"), stdin="hi\n")
    assert outcome.code == 1
    assert "does not list a model" in outcome.err


def test_reasoning_is_no_part_of_what_is_remembered(trivium: Run, site: Site) -> None:
    site.thoughts = ("hm, ", "so")
    outcome = trivium("chat", "--url", site.url, stdin="hi\nmore\n")
    assert outcome.out == "Hello 世\u2028\x85界\nHello 世\u2028\x85界\n"  # shown to a terminal only, dimmed
    assert site.bodies[1]["messages"][1] == {"role": "assistant", "content": "Hello 世\u2028\x85界"}
